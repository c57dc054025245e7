//! The random number generator: the simulation's only source of chance.

use core::time::Duration;

use hca_core::SplitMix64;

/// A generator of pseudo-random numbers (xoshiro256**): small, fast, the same on every machine.
#[derive(Clone, Debug)]
pub struct Rng {
    s: [u64; 4],
}

impl Rng {
    /// The generator with this seed.
    pub fn new(seed: u64) -> Self {
        let mut seeds = SplitMix64::new(seed);
        Self { s: core::array::from_fn(|_| seeds.next_u64()) }
    }
    /// An independent generator, seeded by this one.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.s;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }
    /// A random number from 0 to `n - 1`.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "there is no number below 0");
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }
    /// A random number from `lo` to `hi`, both included.
    ///
    /// # Panics
    /// If `lo` lies above `hi`.
    pub fn between(&mut self, lo: u64, hi: u64) -> u64 {
        assert!(lo <= hi, "the range {lo} to {hi} is empty");
        lo + self.below((hi - lo).saturating_add(1))
    }
    /// Returns `true` with probability `p`. With `p` 0 nothing is drawn, so that a disabled fault does not shift the
    /// others.
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && ((self.next_u64() >> 11) as f64) < p * (1u64 << 53) as f64
    }
    /// One of several values.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
    /// A random time from 0 to `max`, both included.
    pub fn up_to(&mut self, max: Duration) -> Duration {
        Duration::from_nanos(self.between(0, max.as_nanos().min(u64::MAX as u128 / 2) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_stream_and_another_seed_another() {
        let take = |seed| {
            let mut r = Rng::new(seed);
            [r.next_u64(), r.below(10), r.between(3, 4)]
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }

    #[test]
    fn a_chance_of_one_in_ten_comes_true_about_that_often() {
        let mut r = Rng::new(1);
        let hits = (0..100_000).filter(|_| r.chance(0.1)).count();
        assert!((9_500..10_500).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !r.chance(0.0)) && (0..1000).all(|_| r.chance(1.0)));
    }

    #[test]
    fn numbers_stay_within_their_range() {
        let mut r = Rng::new(2);
        for _ in 0..1000 {
            assert!((5..=9).contains(&r.between(5, 9)));
            assert!(r.below(3) < 3);
        }
    }
}
