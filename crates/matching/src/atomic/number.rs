//! Elements of the 14 types: their bytes and operations.

use std::ops::{BitAnd, BitOr, BitXor};

/// An element in bytes of the host's order.
pub(super) trait Cell: Copy {
    const BYTES: usize;
    /// From the first bytes.
    fn read(bytes: &[u8]) -> Self;
    /// To the first bytes.
    fn write(self, bytes: &mut [u8]);
}

/// What can be added and multiplied.
pub(super) trait Number: Cell + PartialEq {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
}

/// An integer.
pub(super) trait Bits:
    Number + PartialOrd + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self>
{
    const ZERO: Self;
    const ONE: Self;
}

/// A floating-point number: what a product of complex ones needs to know of its parts.
pub(super) trait Real: Number + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    const INFINITY: Self;
    fn minus(self, other: Self) -> Self;
    fn nan(self) -> bool;
    fn infinite(self) -> bool;
    /// This magnitude with the other's sign.
    fn signed_as(self, other: Self) -> Self;
}

macro_rules! cell {
    ($($ty:ty)*) => { $(
        impl Cell for $ty {
            const BYTES: usize = size_of::<$ty>();
            #[inline]
            fn read(bytes: &[u8]) -> Self {
                <$ty>::from_ne_bytes(*bytes.first_chunk().expect("an element's bytes"))
            }
            #[inline]
            fn write(self, bytes: &mut [u8]) {
                *bytes.first_chunk_mut().expect("an element's bytes") = self.to_ne_bytes();
            }
        }
    )* };
}
cell! { i8 u8 i16 u16 i32 u32 i64 u64 f32 f64 }

macro_rules! integer {
    ($($ty:ty)*) => { $(
        impl Number for $ty {
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
        impl Bits for $ty {
            const ZERO: Self = 0;
            const ONE: Self = 1;
        }
    )* };
}
integer! { i8 u8 i16 u16 i32 u32 i64 u64 }

macro_rules! float {
    ($($ty:ty)*) => { $(
        impl Number for $ty {
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn times(self, other: Self) -> Self {
                self * other
            }
        }
        impl Real for $ty {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const INFINITY: Self = <$ty>::INFINITY;
            fn minus(self, other: Self) -> Self {
                self - other
            }
            fn nan(self) -> bool {
                self.is_nan()
            }
            fn infinite(self) -> bool {
                self.is_infinite()
            }
            fn signed_as(self, other: Self) -> Self {
                self.copysign(other)
            }
        }
    )* };
}
float! { f32 f64 }

/// A complex number: the real part first.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Complex<T> {
    pub(super) re: T,
    pub(super) im: T,
}

impl<T: Real> Cell for Complex<T> {
    const BYTES: usize = 2 * T::BYTES;
    fn read(bytes: &[u8]) -> Self {
        Self { re: T::read(bytes), im: T::read(&bytes[T::BYTES..]) }
    }
    fn write(self, bytes: &mut [u8]) {
        self.re.write(bytes);
        self.im.write(&mut bytes[T::BYTES..]);
    }
}

impl<T: Real> Number for Complex<T> {
    fn plus(self, other: Self) -> Self {
        Self { re: self.re.plus(other.re), im: self.im.plus(other.im) }
    }
    fn times(self, other: Self) -> Self {
        let product = self.product(other);
        if product.re.nan() && product.im.nan() {
            self.infinite_product(other).unwrap_or(product)
        } else {
            product
        }
    }
}

impl<T: Real> Complex<T> {
    fn product(self, other: Self) -> Self {
        Self {
            re: self.re.times(other.re).minus(self.im.times(other.im)),
            im: self.re.times(other.im).plus(self.im.times(other.re)),
        }
    }
    fn infinite(self) -> bool {
        self.re.infinite() || self.im.infinite()
    }
    /// Infinite parts as ones and finite ones as zeros, with their signs.
    fn direction(self) -> Self {
        let part = |x: T| if x.infinite() { T::ONE } else { T::ZERO }.signed_as(x);
        Self { re: part(self.re), im: part(self.im) }
    }
    /// Zeros in place of what is not a number.
    fn without_nan(self) -> Self {
        let part = |x: T| if x.nan() { T::ZERO.signed_as(x) } else { x };
        Self { re: part(self.re), im: part(self.im) }
    }
    /// C's Annex G: a number with an infinite part is infinite, whatever the other part is, and so is its product with
    /// anything but zero; so is a product whose parts overflow. `None` if that is not the case here.
    fn infinite_product(self, other: Self) -> Option<Self> {
        let (mut a, mut b) = (self, other);
        if a.infinite() {
            (a, b) = (a.direction(), b.without_nan());
        }
        if b.infinite() {
            (a, b) = (a.without_nan(), b.direction());
        }
        if !self.infinite() && !other.infinite() {
            let products = [
                self.re.times(other.re),
                self.im.times(other.im),
                self.re.times(other.im),
                self.im.times(other.re),
            ];
            if !products.into_iter().any(T::infinite) {
                return None;
            }
            (a, b) = (a.without_nan(), b.without_nan());
        }
        let Self { re, im } = a.product(b);
        Some(Self { re: T::INFINITY.times(re), im: T::INFINITY.times(im) })
    }
}
