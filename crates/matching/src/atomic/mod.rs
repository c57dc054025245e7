//! The 18 atomic operations on the 14 types, on bytes.
//!
//! The caller makes sure that no other code accesses the elements meanwhile. Bytes are in the host's order. Integers
//! wrap. If the target or the message is NaN, minimum and maximum keep the target's element. A product of complex
//! numbers finds the infinities that C finds (Annex G). Long double is the x87's 80 bits in 16 bytes, as on x86-64,
//! added and multiplied here in integers; where `long double` is something else, the type is refused.
//!
//! ```
//! use hca_matching::atomic::{AtomicOp, Datatype, apply};
//!
//! let mut target = [1u32, 2, 3].map(u32::to_ne_bytes).concat();
//! let message = [10u32, 20, 30].map(u32::to_ne_bytes).concat();
//! let mut before = [0; 12];
//! apply(AtomicOp::Sum, Datatype::U32, &mut target, &message, &[], Some(&mut before))?;
//! assert_eq!(target, [11u32, 22, 33].map(u32::to_ne_bytes).concat());
//! assert_eq!(before[..], [1u32, 2, 3].map(u32::to_ne_bytes).concat());
//! # Ok::<(), hca_matching::atomic::AtomicError>(())
//! ```

mod number;
mod x87;

use number::{Bits, Cell, Complex, Number};
use x87::X87;

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$item:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$item])* $variant = $value,)* }

        impl $name {
            /// All values, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The value with this number.
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

numbered! {
    /// The operation on an element, numbered as in Portals 4.3.
    AtomicOp {
        /// The smaller of the two.
        Min = 0,
        /// The larger of the two.
        Max = 1,
        /// The sum.
        Sum = 2,
        /// The product.
        Prod = 3,
        /// 1 if either is not 0.
        Lor = 4,
        /// 1 if both are not 0.
        Land = 5,
        /// The bits of either.
        Bor = 6,
        /// The bits of both.
        Band = 7,
        /// 1 if one of them is not 0, and the other is.
        Lxor = 8,
        /// The bits that differ.
        Bxor = 9,
        /// The message's.
        Swap = 10,
        /// The message's if the operand equals the target's.
        Cswap = 11,
        /// The message's if the operand differs from the target's.
        CswapNe = 12,
        /// The message's if the operand is the target's or less.
        CswapLe = 13,
        /// The message's if the operand is less than the target's.
        CswapLt = 14,
        /// The message's if the operand is the target's or more.
        CswapGe = 15,
        /// The message's if the operand is more than the target's.
        CswapGt = 16,
        /// The message's bits where the operand has ones, the target's elsewhere.
        Mswap = 17,
    }
}

numbered! {
    /// The type of the elements, numbered as in Portals 4.3.
    Datatype {
        /// 8 bits, signed.
        I8 = 0,
        /// 8 bits, unsigned.
        U8 = 1,
        /// 16 bits, signed.
        I16 = 2,
        /// 16 bits, unsigned.
        U16 = 3,
        /// 32 bits, signed.
        I32 = 4,
        /// 32 bits, unsigned.
        U32 = 5,
        /// `float`.
        F32 = 6,
        /// 64 bits, signed.
        I64 = 7,
        /// 64 bits, unsigned.
        U64 = 8,
        /// `double`.
        F64 = 9,
        /// Two `float`s.
        C32 = 10,
        /// Two `double`s.
        C64 = 11,
        /// `long double`: on x86-64 the x87's 80 bits, in 16 bytes.
        LongDouble = 12,
        /// Two `long double`s.
        LongDoubleComplex = 13,
    }
}

impl AtomicOp {
    /// Whether this is an operation of swap; the other operations are those of atomic and fetch-atomic.
    pub const fn is_swap(self) -> bool {
        self as u8 >= Self::Swap as u8
    }
    /// Whether the operation has an operand beside the message, and so works on one element only.
    pub const fn needs_operand(self) -> bool {
        self as u8 > Self::Swap as u8
    }
    /// Whether the operation is defined on a type, and this machine has the type.
    ///
    /// Logical and bitwise operations and the masked swap are for integers; complex numbers have no order.
    pub const fn takes(self, ty: Datatype) -> bool {
        ty.is_supported()
            && match self {
                Self::Sum | Self::Prod | Self::Swap | Self::Cswap | Self::CswapNe => true,
                Self::Min | Self::Max | Self::CswapLe | Self::CswapLt | Self::CswapGe | Self::CswapGt => {
                    !ty.is_complex()
                }
                Self::Lor | Self::Land | Self::Bor | Self::Band | Self::Lxor | Self::Bxor | Self::Mswap => {
                    ty.is_integer()
                }
            }
    }
}

impl Datatype {
    /// The bytes of an element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::C32 => 8,
            Self::C64 | Self::LongDouble => 16,
            Self::LongDoubleComplex => 32,
        }
    }
    /// Whether this is an integer type.
    pub const fn is_integer(self) -> bool {
        matches!(
            self,
            Self::I8 | Self::U8 | Self::I16 | Self::U16 | Self::I32 | Self::U32 | Self::I64 | Self::U64
        )
    }
    /// Whether this is a complex type.
    pub const fn is_complex(self) -> bool {
        matches!(self, Self::C32 | Self::C64 | Self::LongDoubleComplex)
    }
    /// Whether this machine has the type: `long double` is supported on x86-64 only.
    pub const fn is_supported(self) -> bool {
        cfg!(target_arch = "x86_64") || !matches!(self, Self::LongDouble | Self::LongDoubleComplex)
    }
}

/// The reason why [`apply`] did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AtomicError {
    /// The operation is not defined on the type.
    #[error("{op:?} is not defined on {ty:?}")]
    Pair {
        /// The operation.
        op: AtomicOp,
        /// The type.
        ty: Datatype,
    },
    /// This machine does not have the type.
    #[error("{ty:?} is not known on this machine")]
    Unsupported {
        /// The type.
        ty: Datatype,
    },
    /// A slice is too short, too long, or ends within an element.
    #[error("{argument} has {length} bytes, which does not go with the target's or with {ty:?}")]
    Length {
        /// Which slice.
        argument: &'static str,
        /// The bytes.
        length: usize,
        /// The type.
        ty: Datatype,
    },
}

/// Applies an operation to each element of `target`, with the elements of `message`.
///
/// `operand` is the value that a conditional swap compares with, or the mask: one element, and any bytes behind it are
/// ignored. Operations without an operand ignore it. The target's old elements go to `fetched`. Padding bytes of an
/// element are exchanged with it, and arithmetic leaves them unchanged.
///
/// # Errors
/// [`AtomicError`]; nothing has changed then.
pub fn apply(
    op: AtomicOp,
    ty: Datatype,
    target: &mut [u8],
    message: &[u8],
    operand: &[u8],
    fetched: Option<&mut [u8]>,
) -> Result<(), AtomicError> {
    if !ty.is_supported() {
        return Err(AtomicError::Unsupported { ty });
    }
    if !op.takes(ty) {
        return Err(AtomicError::Pair { op, ty });
    }
    let size = ty.size_bytes();
    let bad = |argument, length| Err(AtomicError::Length { argument, length, ty });
    if !target.len().is_multiple_of(size) || op.needs_operand() && target.len() > size {
        return bad("target", target.len());
    }
    if message.len() != target.len() {
        return bad("message", message.len());
    }
    if op.needs_operand() && operand.len() < size {
        return bad("operand", operand.len());
    }
    if let Some(fetched) = fetched {
        if fetched.len() != target.len() {
            return bad("fetched", fetched.len());
        }
        fetched.copy_from_slice(target);
    }
    match ty {
        Datatype::I8 => integers::<i8>(op, target, message, operand),
        Datatype::U8 => integers::<u8>(op, target, message, operand),
        Datatype::I16 => integers::<i16>(op, target, message, operand),
        Datatype::U16 => integers::<u16>(op, target, message, operand),
        Datatype::I32 => integers::<i32>(op, target, message, operand),
        Datatype::U32 => integers::<u32>(op, target, message, operand),
        Datatype::I64 => integers::<i64>(op, target, message, operand),
        Datatype::U64 => integers::<u64>(op, target, message, operand),
        Datatype::F32 => reals::<f32>(op, target, message, operand),
        Datatype::F64 => reals::<f64>(op, target, message, operand),
        Datatype::LongDouble => reals::<X87>(op, target, message, operand),
        Datatype::C32 => numbers::<Complex<f32>>(op, target, message, operand),
        Datatype::C64 => numbers::<Complex<f64>>(op, target, message, operand),
        Datatype::LongDoubleComplex => numbers::<Complex<X87>>(op, target, message, operand),
    }
    Ok(())
}

fn integers<T: Bits>(op: AtomicOp, target: &mut [u8], message: &[u8], operand: &[u8]) {
    let truth = |truth: bool| if truth { T::ONE } else { T::ZERO };
    let set = |x: T| x != T::ZERO;
    match op {
        AtomicOp::Lor => each(target, message, |t: T, m| truth(set(t) || set(m))),
        AtomicOp::Land => each(target, message, |t: T, m| truth(set(t) && set(m))),
        AtomicOp::Lxor => each(target, message, |t: T, m| truth(set(t) != set(m))),
        AtomicOp::Bor => each(target, message, |t: T, m| t | m),
        AtomicOp::Band => each(target, message, |t: T, m| t & m),
        AtomicOp::Bxor => each(target, message, |t: T, m| t ^ m),
        AtomicOp::Mswap => each(target, message, |t: T, m| {
            let mask = T::read(operand);
            t ^ ((t ^ m) & mask)
        }),
        _ => reals::<T>(op, target, message, operand),
    }
}

fn reals<T: Number + PartialOrd>(op: AtomicOp, target: &mut [u8], message: &[u8], operand: &[u8]) {
    match op {
        AtomicOp::Min => each(target, message, |t: T, m| if m < t { m } else { t }),
        AtomicOp::Max => each(target, message, |t: T, m| if m > t { m } else { t }),
        AtomicOp::CswapLe => swap_if(target, message, operand, |o: T, t| o <= t),
        AtomicOp::CswapLt => swap_if(target, message, operand, |o: T, t| o < t),
        AtomicOp::CswapGe => swap_if(target, message, operand, |o: T, t| o >= t),
        AtomicOp::CswapGt => swap_if(target, message, operand, |o: T, t| o > t),
        _ => numbers::<T>(op, target, message, operand),
    }
}

fn numbers<T: Number>(op: AtomicOp, target: &mut [u8], message: &[u8], operand: &[u8]) {
    match op {
        AtomicOp::Sum => each(target, message, T::plus),
        AtomicOp::Prod => each(target, message, T::times),
        AtomicOp::Swap => target.copy_from_slice(message),
        AtomicOp::Cswap => swap_if(target, message, operand, |o: T, t| o == t),
        AtomicOp::CswapNe => swap_if(target, message, operand, |o: T, t| o != t),
        _ => unreachable!("{op:?} was checked against the type"),
    }
}

fn each<T: Cell>(target: &mut [u8], message: &[u8], f: impl Fn(T, T) -> T) {
    for (target, message) in target.chunks_exact_mut(T::BYTES).zip(message.chunks_exact(T::BYTES)) {
        f(T::read(target), T::read(message)).write(target);
    }
}

/// One element at most; none of an empty message.
fn swap_if<T: Cell>(target: &mut [u8], message: &[u8], operand: &[u8], f: impl Fn(T, T) -> bool) {
    if !target.is_empty() && f(T::read(operand), T::read(target)) {
        target.copy_from_slice(message);
    }
}

#[cfg(test)]
mod tests;
