//! The shadow of a memory: its expected contents.

use core::ops::Range;
use std::collections::BTreeMap;

use super::Breach;

/// The expected contents of a memory, byte for byte, except for open ranges, which an operation under way may be
/// writing.
#[derive(Clone, Debug)]
pub struct Shadow {
    bytes: Vec<u8>,
    /// Start to end; they don't overlap.
    open: BTreeMap<usize, usize>,
}

impl Shadow {
    /// The shadow of a memory with these contents.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, open: BTreeMap::new() }
    }
    /// The expected bytes of a range.
    ///
    /// # Panics
    /// If it lies outside of the memory.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }
    /// Records bytes that the program wrote itself.
    ///
    /// # Panics
    /// If it lies outside of the memory.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
    /// Opens a range: from now on an operation may write it.
    ///
    /// # Panics
    /// If the range overlaps another open range: its expected contents would be undefined.
    pub fn open(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let before = self.open.range(..range.end).next_back();
        assert!(
            before.is_none_or(|(_, end)| *end <= range.start),
            "{range:?} overlaps the open range {before:?}"
        );
        self.open.insert(range.start, range.end);
    }
    /// Closes a range when its operation has ended: the range holds the bytes of `write`, or its old bytes.
    ///
    /// # Panics
    /// If the range is not open.
    pub fn close(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            assert_eq!(self.open.remove(&range.start), Some(range.end), "{range:?} was opened");
        }
    }
    /// Whether exactly this range is open.
    pub fn is_open(&self, range: &Range<usize>) -> bool {
        self.open.get(&range.start) == Some(&range.end)
    }
    /// Compares the memory with its shadow, open ranges left out. `memory` compares these bytes with the memory at this
    /// offset, and returns the first difference.
    ///
    /// # Errors
    /// A byte differs.
    pub fn compare(&self, mut memory: impl FnMut(usize, &[u8]) -> Option<(usize, u8)>) -> Result<(), Breach> {
        let mut at = 0;
        let end = (self.bytes.len(), self.bytes.len());
        for (open, close) in self.open.iter().map(|(a, b)| (*a, *b)).chain([end]) {
            if let Some((offset, found)) = memory(at, &self.bytes[at..open]) {
                let at = at + offset;
                return Err(Breach::Memory { at, expected: self.bytes[at], found });
            }
            at = close;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differs(memory: &[u8]) -> impl FnMut(usize, &[u8]) -> Option<(usize, u8)> + '_ {
        |at, expected| {
            let found = &memory[at..at + expected.len()];
            (0..expected.len()).find(|i| found[*i] != expected[*i]).map(|i| (i, found[i]))
        }
    }

    #[test]
    fn a_changed_byte_is_found_unless_its_range_is_open() {
        let mut memory = vec![0; 100];
        let mut s = Shadow::new(memory.clone());
        memory[50] = 7;
        let wrong = Err(Breach::Memory { at: 50, expected: 0, found: 7 });
        assert_eq!(s.compare(differs(&memory)), wrong);
        s.open(50..51);
        assert_eq!(s.compare(differs(&memory)), Ok(()));
        s.write(50, &[7]);
        s.close(50..51);
        assert_eq!(s.compare(differs(&memory)), Ok(()));
        for at in [0, 49, 51, 99] {
            memory[at] = 1;
            assert!(s.compare(differs(&memory)).is_err(), "{at}");
            memory[at] = 0;
        }
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn open_ranges_do_not_overlap() {
        let mut s = Shadow::new(vec![0; 10]);
        s.open(2..5);
        s.open(4..6);
    }
}
