//! Chains of entries or headers with equal match bits and source, found by a keyed hash.
//!
//! An open-addressing table whose slots hold the keys themselves, so that most look-ups read one cache line: a chain is
//! in the slot of its hash, or behind it with no free slot in between. The table is at most half full.

use crate::dense::NONE;

/// Places of the smallest table.
const SMALLEST: usize = 16;

#[derive(Debug)]
pub(crate) struct Chains {
    /// As many as a power of two, or none.
    places: Vec<Chain>,
    len: usize,
    seed: Seed,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    bits: u64,
    source: u64,
    /// The first link; [`NONE`] in a free place.
    pub(crate) head: u32,
    pub(crate) tail: u32,
}

const FREE: Chain = Chain { bits: 0, source: 0, head: NONE, tail: NONE };

impl Chains {
    pub(crate) const fn new(seed: Seed) -> Self {
        Self { places: Vec::new(), len: 0, seed }
    }
    /// The first link of a chain, or [`NONE`].
    #[inline(always)]
    pub(crate) fn head(&self, bits: u64, source: u64) -> u32 {
        if self.len == 0 { NONE } else { self.places[self.find(bits, source)].head }
    }
    /// The chain, made where it is missing; the caller puts the first link in.
    pub(crate) fn entry(&mut self, bits: u64, source: u64) -> &mut Chain {
        if self.len * 2 >= self.places.len() {
            self.grow();
        }
        let at = self.find(bits, source);
        let chain = &mut self.places[at];
        if chain.head == NONE {
            *chain = Chain { bits, source, ..FREE };
            self.len += 1;
        }
        chain
    }
    /// Closes the gap between what were the neighbours of a link.
    pub(crate) fn unlink(&mut self, bits: u64, source: u64, prev: u32, next: u32) {
        if prev != NONE && next != NONE {
            return;
        }
        let at = self.find(bits, source);
        match (prev, next) {
            (NONE, NONE) => self.remove(at),
            (NONE, next) => self.places[at].head = next,
            (prev, _) => self.places[at].tail = prev,
        }
    }

    /// Where a chain is, or would be.
    #[inline(always)]
    fn find(&self, bits: u64, source: u64) -> usize {
        let mask = self.places.len() - 1;
        let mut at = self.seed.hash(bits, source) as usize & mask;
        loop {
            let chain = &self.places[at];
            if chain.head == NONE || (chain.bits, chain.source) == (bits, source) {
                return at;
            }
            at = (at + 1) & mask;
        }
    }
    /// Frees a place, and moves what could not have its own for this one nearer to it.
    fn remove(&mut self, mut free: usize) {
        self.len -= 1;
        let mask = self.places.len() - 1;
        let mut at = free;
        loop {
            at = (at + 1) & mask;
            let chain = self.places[at];
            if chain.head == NONE {
                break;
            }
            let own = self.seed.hash(chain.bits, chain.source) as usize & mask;
            if at.wrapping_sub(own) & mask >= at.wrapping_sub(free) & mask {
                self.places[free] = chain;
                free = at;
            }
        }
        self.places[free] = FREE;
    }
    #[cold]
    fn grow(&mut self) {
        let places = vec![FREE; (self.places.len() * 2).max(SMALLEST)];
        for chain in std::mem::replace(&mut self.places, places) {
            if chain.head != NONE {
                let at = self.find(chain.bits, chain.source);
                self.places[at] = chain;
            }
        }
    }
}

/// The key of the hash: peers choose match bits, and are not to choose what collides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(u64, u64);

impl Seed {
    pub(crate) fn new(seed: u64) -> Self {
        // Two words from one, by the finishing steps of splitmix64.
        let mix = |x: u64| {
            let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ x >> 31
        };
        Self(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)), mix(seed.wrapping_add(0x3c6e_f372_fe94_f82a)) | 1)
    }
    /// Multiplies, and folds the high half of the product onto the low one, for each word.
    #[inline]
    fn hash(self, bits: u64, source: u64) -> u64 {
        let fold = |word: u64| {
            let product = u128::from(word) * u128::from(self.1);
            product as u64 ^ (product >> 64) as u64
        };
        fold(fold(self.0 ^ bits) ^ source)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use test_support::random::Rng;

    use super::*;

    #[test]
    fn chains_are_found_however_many_come_and_go() {
        let mut chains = Chains::new(Seed::new(1));
        let mut plain: HashMap<(u64, u64), u32> = HashMap::new();
        let mut rng = Rng::new(3);
        for step in 0..50_000u32 {
            let x = rng.next_u64();
            // Few keys, so that they come again; now many of them, now few.
            let key = ((x >> 33) % 300, (x >> 50) % 3);
            let grows = step / 5_000 % 2 == 0;
            match plain.remove(&key) {
                Some(_) if !grows || x.is_multiple_of(4) => chains.unlink(key.0, key.1, NONE, NONE),
                was => {
                    let chain = chains.entry(key.0, key.1);
                    assert_eq!(chain.head, was.unwrap_or(NONE));
                    (chain.head, chain.tail) = (step, step);
                    plain.insert(key, step);
                }
            }
            assert_eq!(chains.len, plain.len());
            assert!(
                chains.len * 2 <= chains.places.len(),
                "half of the places stay free, so that looks are short"
            );
            if step % 64 == 0 {
                for bits in 0..300 {
                    for source in 0..3 {
                        let wanted = plain.get(&(bits, source)).copied();
                        assert_eq!(chains.head(bits, source), wanted.unwrap_or(NONE), "step {step}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_chain_knows_its_ends_when_links_go() {
        let mut chains = Chains::new(Seed::new(2));
        let chain = chains.entry(7, 1);
        (chain.head, chain.tail) = (10, 13);
        let mut ends_after = |prev, next| {
            chains.unlink(7, 1, prev, next);
            let head = chains.head(7, 1);
            (head, if head == NONE { NONE } else { chains.entry(7, 1).tail })
        };
        assert_eq!(ends_after(10, 12), (10, 13), "one amid others");
        assert_eq!(ends_after(NONE, 12), (12, 13), "the first");
        assert_eq!(ends_after(12, NONE), (12, 12), "the last");
        assert_eq!(ends_after(NONE, NONE), (NONE, NONE), "the only one");
    }

    #[test]
    fn different_seeds_make_different_hashes() {
        assert_ne!(Seed::new(1).hash(5, 1), Seed::new(2).hash(5, 1));
        let mut low: Vec<_> = (0..4096).map(|bits| Seed::new(3).hash(bits << 40, 1) % 65_536).collect();
        low.sort_unstable();
        low.dedup();
        assert!(low.len() > 3800, "bits at the top reach the bottom: {}", low.len());
    }
}
