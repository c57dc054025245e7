//! Zones: the bytes of an arena and their users.

use core::ops::Range;
use std::collections::BTreeMap;

use crate::Rng;

/// A part of an arena from which ranges are given out, with gaps between them now and then.
pub(super) struct Zone {
    all: Range<usize>,
    /// Start to end of what is free.
    free: BTreeMap<usize, usize>,
}

impl Zone {
    pub(super) fn new(all: Range<usize>) -> Self {
        Self { free: BTreeMap::from([(all.start, all.end)]), all }
    }
    pub(super) fn all(&self) -> Range<usize> {
        self.all.clone()
    }
    /// A free range of `len` bytes at a random place, aligned.
    pub(super) fn take(&mut self, len: usize, align: usize, rng: &mut Rng) -> Option<Range<usize>> {
        if len == 0 {
            return Some(self.all.start..self.all.start);
        }
        let fits = |start: usize, end: usize| {
            let at = start.next_multiple_of(align);
            (at + len <= end).then_some(at)
        };
        let found: Vec<_> =
            self.free.iter().filter_map(|(s, e)| fits(*s, *e).map(|at| (*s, *e, at))).collect();
        if found.is_empty() {
            return None;
        }
        let (start, end, mut at) = rng.pick(&found);
        // A few bytes further on, so that neighbours and guards vary.
        let shift = rng.below(4) as usize * align;
        if at + shift + len <= end {
            at += shift;
        }
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at);
        }
        if at + len < end {
            self.free.insert(at + len, end);
        }
        Some(at..at + len)
    }
    pub(super) fn give_back(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        if let Some((s, e)) = self.free.range(..start).next_back().map(|(s, e)| (*s, *e))
            && e == start
        {
            self.free.remove(&s);
            start = s;
        }
        if let Some(e) = self.free.remove(&end) {
            end = e;
        }
        self.free.insert(start, end);
    }
    /// Whether everything was given back.
    #[cfg(test)]
    fn is_whole(&self) -> bool {
        self.free.len() == 1 && self.free.get(&self.all.start) == Some(&self.all.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_all_comes_back() {
        let (mut z, mut rng) = (Zone::new(100..10_000), Rng::new(1));
        let mut held: Vec<Range<usize>> = Vec::new();
        for _ in 0..2000 {
            if rng.chance(0.5) && !held.is_empty() {
                let n = rng.below(held.len() as u64) as usize;
                z.give_back(held.swap_remove(n));
            } else if let Some(r) = z.take(rng.between(0, 500) as usize, 8, &mut rng) {
                assert!(r.start >= 100 && r.end <= 10_000);
                assert!(
                    held.iter().all(|h| h.is_empty() || r.is_empty() || h.end <= r.start || r.end <= h.start)
                );
                held.push(r);
            }
        }
        held.drain(..).for_each(|r| z.give_back(r));
        assert!(z.is_whole());
    }
}
