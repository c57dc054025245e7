//! The free bytes of a region: ranges by address and by length.

use std::collections::{BTreeMap, BTreeSet};

/// Parts begin at multiples of this, so that two parts share no cache line unless a program splits one.
pub(crate) const PART_ALIGN: usize = 64;

/// The free ranges of one region, coalesced.
#[derive(Debug)]
pub(crate) struct FreeRanges {
    by_start: BTreeMap<usize, usize>,
    by_len: BTreeSet<(usize, usize)>,
    /// Bytes from here on were never given out, so they are still zero.
    untouched: usize,
}

/// A range that was given out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Carved {
    /// Offset of its first byte.
    pub(crate) start: usize,
    /// How many of its first bytes were given out before and have to be zeroed.
    pub(crate) dirty: usize,
}

impl FreeRanges {
    /// A region of `len` free bytes.
    pub(crate) fn new(len: usize) -> Self {
        let mut free = Self { by_start: BTreeMap::new(), by_len: BTreeSet::new(), untouched: 0 };
        free.insert(0, len);
        free
    }

    /// Takes `len` bytes out of the smallest range that has them.
    pub(crate) fn carve(&mut self, len: usize) -> Option<Carved> {
        if len == 0 {
            return Some(Carved { start: 0, dirty: 0 });
        }
        let slack = |start: usize| start.next_multiple_of(PART_ALIGN) - start;
        // A range of `len + PART_ALIGN` surely does; shorter ones are looked at first, but not all
        // of them: odd ends of parts are many, and each too short.
        let fits = |&&(have, start): &&(usize, usize)| have >= len + slack(start);
        let near = self.by_len.range((len, 0)..).take(8).find(fits);
        let &(have, from) = near.or_else(|| self.by_len.range((len + PART_ALIGN, 0)..).next())?;
        let start = from + slack(from);
        self.remove(from, have);
        self.insert(from, start - from);
        self.insert(start + len, from + have - start - len);
        let dirty = self.untouched.saturating_sub(start).min(len);
        self.untouched = self.untouched.max(start + len);
        Some(Carved { start, dirty })
    }

    /// Takes bytes back that [`carve`](Self::carve) gave out, in any pieces.
    pub(crate) fn give_back(&mut self, mut start: usize, mut len: usize) {
        if len == 0 {
            return;
        }
        if let Some((&before, &n)) = self.by_start.range(..start).next_back() {
            assert!(before + n <= start, "bytes {start}..{} are free already", start + len);
            if before + n == start {
                self.remove(before, n);
                (start, len) = (before, len + n);
            }
        }
        if let Some((&after, &n)) = self.by_start.range(start..).next() {
            assert!(start + len <= after, "bytes {start}..{} are free already", start + len);
            if start + len == after {
                self.remove(after, n);
                len += n;
            }
        }
        self.insert(start, len);
    }

    fn insert(&mut self, start: usize, len: usize) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    fn remove(&mut self, start: usize, len: usize) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_and_do_not_overlap() {
        let mut free = FreeRanges::new(4096);
        let a = free.carve(100).unwrap().start;
        let b = free.carve(1).unwrap().start;
        let c = free.carve(64).unwrap().start;
        assert!([a, b, c].iter().all(|s| s % PART_ALIGN == 0));
        assert!(a + 100 <= b && b < c);
        assert_eq!(free.carve(4096), None);
    }

    #[test]
    fn everything_given_back_in_pieces_is_one_range_again() {
        let mut free = FreeRanges::new(1 << 20);
        let parts = if cfg!(miri) { 60 } else { 1000 };
        let starts: Vec<_> = (0..parts).map(|i| (free.carve(i + 1).unwrap().start, i + 1)).collect();
        for &(start, len) in starts.iter().rev().step_by(2).chain(starts.iter().rev().skip(1).step_by(2)) {
            let cut = len / 3;
            free.give_back(start + cut, len - cut);
            free.give_back(start, cut);
        }
        assert_eq!(free.by_start, BTreeMap::from([(0, 1 << 20)]));
        assert_eq!(free.by_len.len(), 1);
    }

    #[test]
    fn only_bytes_that_were_given_out_are_dirty() {
        let mut free = FreeRanges::new(4096);
        let a = free.carve(128).unwrap();
        assert_eq!(a, Carved { start: 0, dirty: 0 });
        free.give_back(0, 128);
        assert_eq!(free.carve(256).unwrap(), Carved { start: 0, dirty: 128 });
    }

    #[test]
    fn a_whole_region_can_be_carved() {
        let mut free = FreeRanges::new(4096);
        assert_eq!(free.carve(4096), Some(Carved { start: 0, dirty: 0 }));
        assert_eq!(free.carve(1), None);
    }

    #[test]
    #[should_panic(expected = "free already")]
    fn bytes_given_back_twice_are_found_out() {
        let mut free = FreeRanges::new(4096);
        free.carve(64);
        free.give_back(0, 64);
        free.give_back(0, 64);
    }
}
