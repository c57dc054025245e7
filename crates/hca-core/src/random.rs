//! Pseudo-random numbers.

/// A small generator of numbers (splitmix64): one seed gives one stream, on every machine. Who knows one number knows
/// those behind it.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// By so much its state grows with each number.
    pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// The generator with this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }
    /// The next number of the stream.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::STEP);
        Self::mix(self.0)
    }
    /// Turns a state into a number: each bit of the one changes about half of those of the other.
    pub const fn mix(state: u64) -> u64 {
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_are_those_of_the_published_generator() {
        // As its author's program yields them, from the seed 0.
        let mut numbers = super::SplitMix64::new(0);
        let expected = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
        assert_eq!([(); 3].map(|()| numbers.next_u64()), expected);
    }
}
