//! The 80-bit format of the x87, added, multiplied and compared in integers.
//!
//! A sign, 15 bits of exponent, and 64 bits of significand whose first bit, the integer bit, is written out. Results
//! are rounded to nearest, ties to even, to all 64 bits, with gradual underflow, as the processor does it by default.
//! Unsupported values (an exponent without the integer bit) are NaN, and so are results from them.

use std::cmp::Ordering;

use super::number::{Cell, Number, Real};

/// A number in the x87's extended format. In memory it fills 16 bytes, of which the last 6 mean nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct X87 {
    pub(super) sign_exponent: u16,
    pub(super) significand: u64,
}

const SIGN: u16 = 1 << 15;
const MAX_EXPONENT: u16 = SIGN - 1;
const BIAS: i32 = 16383;
const INTEGER_BIT: u64 = 1 << 63;
const QUIET_BIT: u64 = 1 << 62;
/// What invalid operations yield.
const INDEFINITE: X87 = X87 { sign_exponent: u16::MAX, significand: INTEGER_BIT | QUIET_BIT };

impl X87 {
    fn exponent(self) -> u16 {
        self.sign_exponent & MAX_EXPONENT
    }
    fn negative(self) -> bool {
        self.sign_exponent & SIGN != 0
    }
    fn negated(self) -> Self {
        Self { sign_exponent: self.sign_exponent ^ SIGN, ..self }
    }
    fn unsupported(self) -> bool {
        self.exponent() != 0 && self.significand & INTEGER_BIT == 0
    }
    fn zero(self) -> bool {
        self.exponent() == 0 && self.significand == 0
    }
    /// The exponent counted as for the smallest normal numbers where there is none, and the significand.
    fn parts(self) -> (i32, u64) {
        (i32::from(self.exponent().max(1)), self.significand)
    }
    /// The result of an operation with what is not a number, or of an invalid one.
    fn nan_of(self, other: Self) -> Self {
        if self.unsupported() || other.unsupported() {
            return INDEFINITE;
        }
        let quiet = |x: Self| Self { significand: x.significand | QUIET_BIT, ..x };
        match (self.nan(), other.nan()) {
            (true, false) => quiet(self),
            (false, true) => quiet(other),
            (false, false) => INDEFINITE,
            // The one with more bits, which a quiet one has before a signalling one; else the positive one.
            (true, true) => {
                let rank = |x: Self| (x.significand, !x.negative());
                quiet(if rank(self) >= rank(other) { self } else { other })
            }
        }
    }
    /// The number that is nearest; bit 127 of `significand` is the integer bit at `exponent`, if it is not 0.
    fn rounded(negative: bool, mut exponent: i32, mut significand: u128) -> Self {
        if exponent < 1 {
            significand = shifted(significand, (1 - exponent) as u32);
            exponent = 1;
        }
        let (mut high, low) = ((significand >> 64) as u64, significand as u64);
        if low > INTEGER_BIT || low == INTEGER_BIT && high & 1 == 1 {
            high = high.wrapping_add(1);
            if high == 0 {
                (high, exponent) = (INTEGER_BIT, exponent + 1);
            }
        }
        let sign = if negative { SIGN } else { 0 };
        if exponent >= i32::from(MAX_EXPONENT) {
            return Self { sign_exponent: sign | MAX_EXPONENT, significand: INTEGER_BIT };
        }
        let exponent = if high & INTEGER_BIT == 0 { 0 } else { exponent as u16 };
        Self { sign_exponent: sign | exponent, significand: high }
    }
    /// The sum of two finite numbers.
    fn finite_sum(self, other: Self) -> Self {
        let (mut large, mut small) = (self, other);
        if large.parts().0 < small.parts().0 {
            (large, small) = (small, large);
        }
        let ((exponent, a), (small_exponent, b)) = (large.parts(), small.parts());
        let a = u128::from(a) << 63;
        let b = shifted(u128::from(b) << 63, (exponent - small_exponent) as u32);
        let (negative, sum) = match (large.negative(), small.negative()) {
            (x, y) if x == y => (x, a + b),
            (x, _) if a >= b => (x, a - b),
            (_, y) => (y, b - a),
        };
        if sum == 0 {
            // Only two zeros of the same sign keep it.
            let negative = self.negative() && other.negative();
            return Self { sign_exponent: if negative { SIGN } else { 0 }, significand: 0 };
        }
        let zeros = sum.leading_zeros();
        Self::rounded(negative, exponent + 1 - zeros as i32, sum << zeros)
    }
}

/// Shifts to the right; the last bit tells whether ones were lost, unless all were: they are less than rounding looks at.
fn shifted(word: u128, by: u32) -> u128 {
    word.checked_shr(by).map_or(0, |result| result | u128::from(result << by != word))
}

impl Cell for X87 {
    const BYTES: usize = 16;
    fn read(bytes: &[u8]) -> Self {
        Self { significand: u64::read(bytes), sign_exponent: u16::read(&bytes[8..]) }
    }
    fn write(self, bytes: &mut [u8]) {
        self.significand.write(bytes);
        self.sign_exponent.write(&mut bytes[8..]);
    }
}

impl Number for X87 {
    fn plus(self, other: Self) -> Self {
        if self.nan() || other.nan() {
            return self.nan_of(other);
        }
        match (self.infinite(), other.infinite()) {
            (true, true) if self.negative() != other.negative() => INDEFINITE,
            (true, _) => self,
            (_, true) => other,
            _ => self.finite_sum(other),
        }
    }
    fn times(self, other: Self) -> Self {
        if self.nan() || other.nan() {
            return self.nan_of(other);
        }
        let negative = self.negative() != other.negative();
        let sign = if negative { SIGN } else { 0 };
        if self.infinite() || other.infinite() {
            return match self.zero() || other.zero() {
                true => INDEFINITE,
                false => Self { sign_exponent: sign | MAX_EXPONENT, significand: INTEGER_BIT },
            };
        }
        if self.zero() || other.zero() {
            return Self { sign_exponent: sign, significand: 0 };
        }
        let ((a_exponent, a), (b_exponent, b)) = (self.parts(), other.parts());
        let product = u128::from(a) * u128::from(b);
        let zeros = product.leading_zeros();
        Self::rounded(negative, a_exponent + b_exponent - BIAS + 1 - zeros as i32, product << zeros)
    }
}

impl Real for X87 {
    const ZERO: Self = Self { sign_exponent: 0, significand: 0 };
    const ONE: Self = Self { sign_exponent: BIAS as u16, significand: INTEGER_BIT };
    const INFINITY: Self = Self { sign_exponent: MAX_EXPONENT, significand: INTEGER_BIT };

    fn minus(self, other: Self) -> Self {
        // What is not a number keeps its sign.
        if self.nan() || other.nan() { self.nan_of(other) } else { self.plus(other.negated()) }
    }
    fn nan(self) -> bool {
        self.unsupported() || self.exponent() == MAX_EXPONENT && self.significand != INTEGER_BIT
    }
    fn infinite(self) -> bool {
        self.exponent() == MAX_EXPONENT && self.significand == INTEGER_BIT
    }
    fn signed_as(self, other: Self) -> Self {
        Self { sign_exponent: self.exponent() | other.sign_exponent & SIGN, ..self }
    }
}

impl PartialEq for X87 {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl PartialOrd for X87 {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        if self.nan() || other.nan() {
            return None;
        }
        if self.zero() && other.zero() {
            return Some(Ordering::Equal);
        }
        Some(match (self.negative(), other.negative()) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.parts().cmp(&other.parts()),
            (true, true) => other.parts().cmp(&self.parts()),
        })
    }
}
