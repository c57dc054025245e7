//! Arenas: memory with a known value of every byte.

use std::collections::BTreeMap;

use portals::{Memory, Node};

/// What nobody wrote.
const CANARY: u8 = 0xee;
/// Between two ranges.
const GAP: usize = 16;

/// Memory that ranges are taken from, and what it must hold.
pub(crate) struct Arena {
    pub(crate) memory: Memory,
    shadow: Vec<u8>,
    /// Ranges that may hold anything: what was to be moved there failed.
    unknown: BTreeMap<usize, usize>,
    /// Start to end.
    taken: BTreeMap<usize, usize>,
}

impl Arena {
    pub(crate) fn new(node: &Node, len: usize) -> Self {
        let memory = node.alloc(len).expect("memory of an arena");
        let shadow = vec![CANARY; len];
        memory.write_at(0, &shadow);
        Self { memory, shadow, unknown: BTreeMap::new(), taken: BTreeMap::new() }
    }
    pub(crate) fn filled(node: &Node, bytes: &[u8]) -> Self {
        let mut arena = Self::new(node, bytes.len());
        arena.put(0, bytes);
        arena
    }
    pub(crate) fn offset_of(&self, start: u64) -> usize {
        (start - self.memory.addr()) as usize
    }
    /// A range that nothing else uses.
    pub(crate) fn take(&mut self, len: usize) -> Option<usize> {
        let mut at = GAP;
        for (&start, &end) in &self.taken {
            if at + len + GAP <= start {
                break;
            }
            at = at.max((end + GAP).next_multiple_of(8));
        }
        if at + len + GAP > self.shadow.len() {
            return None;
        }
        self.taken.insert(at, at + len.max(1));
        Some(at)
    }
    /// The program writes.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.memory.write_at(at, bytes);
        self.wrote(at, bytes);
    }
    /// A message wrote.
    pub(crate) fn wrote(&mut self, at: usize, bytes: &[u8]) {
        self.shadow[at..at + bytes.len()].copy_from_slice(bytes);
    }
    /// A message may have written.
    pub(crate) fn taint(&mut self, at: usize, len: usize) {
        let end = self.unknown.entry(at).or_insert(at + len);
        *end = (*end).max(at + len);
    }
    pub(crate) fn is_known(&self, at: usize, len: usize) -> bool {
        self.unknown.iter().all(|(&start, &end)| end <= at || start >= at + len)
    }
    pub(crate) fn known(&self, at: usize, len: usize) -> Option<&[u8]> {
        self.is_known(at, len).then(|| &self.shadow[at..at + len])
    }
    /// The first byte of a range that is not as it should be.
    pub(crate) fn wrong(&self, at: usize, len: usize) -> Option<String> {
        let mut now = vec![0; len];
        self.memory.read_at(at, &mut now);
        if now[..] == self.shadow[at..at + len] {
            return None;
        }
        let i = (0..len).find(|&i| now[i] != self.shadow[at + i] && self.is_known(at + i, 1))?;
        Some(format!("byte {} is {:#04x}, and should be {:#04x}", at + i, now[i], self.shadow[at + i]))
    }
    pub(crate) fn wrong_anywhere(&self) -> Option<String> {
        self.wrong(0, self.shadow.len())
    }
    /// The range is free again, once it was found to be as it should.
    pub(crate) fn give_back(&mut self, at: usize) -> Option<String> {
        let end = self.taken.remove(&at).expect("it was taken");
        let wrong = self.wrong(at, end - at);
        self.unknown.retain(|&start, _| start < at || start >= end);
        self.put(at, &vec![CANARY; end - at]);
        wrong
    }
    pub(crate) fn taken(&self) -> usize {
        self.taken.len()
    }
}
