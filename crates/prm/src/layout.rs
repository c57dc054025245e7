//! Layouts: named bit fields at fixed places of a big-endian structure.
//!
//! The manual draws every structure as rows of 32 bits, the first byte on the left, and names a field by the byte
//! offset of its row and its bits there: `0x08 [23:0]`. [`layout!`](crate::layout!) takes these names and places,
//! checks them at compile time, and defines a type that owns the bytes.

use std::fmt;
use std::marker::PhantomData;

/// A structure of the programming interface: its bytes, and its named fields.
///
/// Implemented by [`layout!`](crate::layout!) only. The usual calls (`get`, `set`, `with`, `from_bytes`, …) are
/// inherent methods of each layout, so callers need not import this trait.
pub trait Layout: Copy + 'static {
    /// The structure's name.
    const NAME: &'static str;
    /// Bytes in the structure.
    const SIZE: usize;
    /// The fields, in the order of their places. Bits without a field are reserved.
    const FIELDS: &'static [FieldInfo];

    /// The structure with all bytes zero.
    fn zeroed() -> Self;
    /// The structure's bytes, as in memory.
    fn as_bytes(&self) -> &[u8];
    /// The structure's bytes, as in memory, for changes.
    fn as_bytes_mut(&mut self) -> &mut [u8];
}

/// A field of the layout `L` with a value of type `V`.
///
/// Fields are the associated constants of a layout, named as in the manual: `Qpc::LOG_RQ_SIZE`.
pub struct Field<L, V> {
    name: &'static str,
    start: u32,
    width: u32,
    of: PhantomData<fn(L) -> V>,
}

impl<L, V> Clone for Field<L, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L, V> Copy for Field<L, V> {}

impl<L, V> fmt::Debug for Field<L, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at bit {:#x}, {} bits", self.name, self.start, self.width)
    }
}

impl<L: Layout, V: Value> Field<L, V> {
    #[doc(hidden)]
    #[must_use]
    pub const fn at(name: &'static str, start: u32, width: u32) -> Self {
        Self { name, start, width, of: PhantomData }
    }

    /// The field's name, as in the manual.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// The number of bits before the field, from the structure's first bit, which is the highest bit of its first byte.
    #[must_use]
    pub const fn start(self) -> u32 {
        self.start
    }

    /// The number of bits in the field.
    #[must_use]
    pub const fn width(self) -> u32 {
        self.width
    }

    /// The byte offset at which the field's row of 32 bits begins.
    #[must_use]
    pub const fn offset(self) -> usize {
        (self.start / 32 * 4) as usize
    }

    /// The largest number that the field can hold, if the field is a number of at most 64 bits.
    #[must_use]
    pub const fn max(self) -> u64 {
        if self.width >= 64 { u64::MAX } else { (1 << self.width) - 1 }
    }

    #[doc(hidden)]
    #[inline(always)]
    #[must_use]
    pub fn load(self, bytes: &[u8]) -> V {
        V::load(bytes, self.start, self.width)
    }

    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn store(self, bytes: &mut [u8], value: V) {
        if !value.fits(self.width) {
            does_not_fit(self.name, self.width);
        }
        value.store(bytes, self.start, self.width);
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn does_not_fit(field: &'static str, width: u32) -> ! {
    panic!("{field} holds {width} bits, which is too few for the value given");
}

impl<L: Layout> Field<L, u32> {
    /// The field's value in the number of its row, for a register.
    #[must_use]
    pub const fn of_row(self, row: u32) -> u32 {
        row >> (32 - self.start % 32 - self.width) & (u32::MAX >> (32 - self.width))
    }

    /// The number of the row with `value` in the field and its other bits unchanged, for a write to a register.
    ///
    /// # Panics
    ///
    /// If `value` has more bits than the field.
    #[must_use]
    pub const fn in_row(self, row: u32, value: u32) -> u32 {
        let mask = u32::MAX >> (32 - self.width);
        assert!(value <= mask, "the value has more bits than the field");
        let shift = 32 - self.start % 32 - self.width;
        row & !(mask << shift) | value << shift
    }
}

impl<L: Layout> Field<L, bool> {
    /// Whether the field's bit is set in the number of its row, for a register.
    #[must_use]
    pub const fn of_row(self, row: u32) -> bool {
        row >> (31 - self.start % 32) & 1 != 0
    }

    /// The number of the row with `value` in the field and its other bits unchanged, for a write to a register.
    #[must_use]
    pub const fn in_row(self, row: u32, value: bool) -> u32 {
        let shift = 31 - self.start % 32;
        row & !(1 << shift) | (value as u32) << shift
    }
}

/// The type of a field's value: `bool` for one bit, `u32` for up to 32, `u64` for 64, another layout, or an array of
/// these or of bytes.
pub trait Value: Copy + 'static {
    #[doc(hidden)]
    fn load(bytes: &[u8], start: u32, width: u32) -> Self;
    #[doc(hidden)]
    fn store(self, bytes: &mut [u8], start: u32, width: u32);
    #[doc(hidden)]
    fn fits(self, _width: u32) -> bool {
        true
    }
}

#[inline(always)]
fn row(bytes: &[u8], start: u32) -> u32 {
    let at = (start / 32 * 4) as usize;
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
fn set_row(bytes: &mut [u8], start: u32, value: u32) {
    let at = (start / 32 * 4) as usize;
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

#[inline(always)]
fn mask(width: u32) -> u32 {
    u32::MAX >> (32 - width)
}

impl Value for u32 {
    #[inline(always)]
    fn load(bytes: &[u8], start: u32, width: u32) -> Self {
        row(bytes, start) >> (32 - start % 32 - width) & mask(width)
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8], start: u32, width: u32) {
        let shift = 32 - start % 32 - width;
        let rest = if width == 32 { 0 } else { row(bytes, start) & !(mask(width) << shift) };
        set_row(bytes, start, rest | self << shift);
    }

    #[inline(always)]
    fn fits(self, width: u32) -> bool {
        self <= mask(width)
    }
}

impl Value for bool {
    #[inline(always)]
    fn load(bytes: &[u8], start: u32, width: u32) -> Self {
        u32::load(bytes, start, width) != 0
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8], start: u32, width: u32) {
        u32::from(self).store(bytes, start, width);
    }
}

impl Value for u64 {
    #[inline(always)]
    fn load(bytes: &[u8], start: u32, _width: u32) -> Self {
        let at = (start / 8) as usize;
        let b = &bytes[at..at + 8];
        u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8], start: u32, _width: u32) {
        let at = (start / 8) as usize;
        bytes[at..at + 8].copy_from_slice(&self.to_be_bytes());
    }
}

impl Value for u8 {
    #[inline(always)]
    fn load(bytes: &[u8], start: u32, _width: u32) -> Self {
        bytes[(start / 8) as usize]
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8], start: u32, _width: u32) {
        bytes[(start / 8) as usize] = self;
    }
}

impl<V: Value, const N: usize> Value for [V; N] {
    #[inline(always)]
    fn load(bytes: &[u8], start: u32, width: u32) -> Self {
        let one = width / N as u32;
        std::array::from_fn(|i| V::load(bytes, start + one * i as u32, one))
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8], start: u32, width: u32) {
        let one = width / N as u32;
        for (i, value) in self.into_iter().enumerate() {
            value.store(bytes, start + one * i as u32, one);
        }
    }
}

impl<L: Layout> Value for L {
    #[inline]
    fn load(bytes: &[u8], start: u32, _width: u32) -> Self {
        let at = (start / 8) as usize;
        let mut value = L::zeroed();
        value.as_bytes_mut().copy_from_slice(&bytes[at..at + L::SIZE]);
        value
    }

    #[inline]
    fn store(self, bytes: &mut [u8], start: u32, _width: u32) {
        let at = (start / 8) as usize;
        bytes[at..at + L::SIZE].copy_from_slice(self.as_bytes());
    }
}

/// The kind of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number of at most 32 bits within one row, or of 64 bits.
    Bits,
    /// An array, of bytes or of numbers.
    Array,
    /// Another layout.
    Layout(&'static str),
}

/// The description of a field without its type: for tools that show a structure, and for tests.
#[derive(Clone, Copy, Debug)]
pub struct FieldInfo {
    /// The field's name.
    pub name: &'static str,
    /// Bits before the field.
    pub start: u32,
    /// Bits in the field.
    pub width: u32,
    /// The kind of the field's value.
    pub kind: Kind,
    /// Whether the field is another name, or another meaning, of bits of an earlier field.
    pub over: bool,
    /// Copies a value of the field's type; one function for all fields of a type.
    pub(crate) copied: fn(field: &Self, from: &[u8], to: &mut [u8]),
}

impl FieldInfo {
    /// The description of `field`.
    #[doc(hidden)]
    #[must_use]
    pub const fn of<L: Layout, V: Value>(field: Field<L, V>, kind: Kind, over: bool) -> Self {
        Self { name: field.name, start: field.start, width: field.width, kind, over, copied: copied::<V> }
    }

    /// Copies only this field from the bytes of one value of the layout to the bytes of another.
    pub fn copy(&self, from: &[u8], to: &mut [u8]) {
        (self.copied)(self, from, to);
    }

    /// The number that a field of kind [`Kind::Bits`] holds.
    #[must_use]
    pub fn number(&self, bytes: &[u8]) -> u64 {
        if self.width > 32 {
            u64::load(bytes, self.start, self.width)
        } else {
            u64::from(u32::load(bytes, self.start, self.width))
        }
    }
}

/// The description of a layout without its type.
#[derive(Clone, Copy, Debug)]
pub struct LayoutInfo {
    /// The structure's name.
    pub name: &'static str,
    /// Bytes in the structure.
    pub size: usize,
    /// The fields in the bytes.
    pub fields: &'static [FieldInfo],
}

impl LayoutInfo {
    /// The description of `L`.
    #[must_use]
    pub const fn of<L: Layout>() -> Self {
        Self { name: L::NAME, size: L::SIZE, fields: L::FIELDS }
    }
}

/// The error of fewer bytes than the structure has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{layout} has {needed} bytes, and only {got} were given: the other side sent or asked for too few")]
pub struct TooShort {
    /// The name of the structure.
    pub layout: &'static str,
    /// The length of the structure.
    pub needed: usize,
    /// The number of given bytes.
    pub got: usize,
}

fn copied<V: Value>(field: &FieldInfo, from: &[u8], to: &mut [u8]) {
    V::load(from, field.start, field.width).store(to, field.start, field.width);
}

#[doc(hidden)]
pub fn copy_in<L: Layout>(bytes: &[u8]) -> Result<L, TooShort> {
    let Some(head) = bytes.get(..L::SIZE) else {
        return Err(TooShort { layout: L::NAME, needed: L::SIZE, got: bytes.len() });
    };
    let mut value = L::zeroed();
    value.as_bytes_mut().copy_from_slice(head);
    Ok(value)
}

#[doc(hidden)]
pub fn copy_out<L: Layout>(value: &L, bytes: &mut [u8]) -> Result<(), TooShort> {
    let got = bytes.len();
    let Some(head) = bytes.get_mut(..L::SIZE) else {
        return Err(TooShort { layout: L::NAME, needed: L::SIZE, got });
    };
    head.copy_from_slice(value.as_bytes());
    Ok(())
}

/// Formats the fields that are not zero; numbers are hexadecimal.
#[doc(hidden)]
pub fn debug<L: Layout>(value: &L, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let bytes = value.as_bytes();
    let mut shown = f.debug_struct(L::NAME);
    for field in L::FIELDS.iter().filter(|field| !field.over) {
        match field.kind {
            Kind::Bits => match field.number(bytes) {
                0 => {}
                number => _ = shown.field(field.name, &format_args!("{number:#x}")),
            },
            Kind::Array | Kind::Layout(_) => {
                let part = &bytes[(field.start / 8) as usize..((field.start + field.width) / 8) as usize];
                if part.iter().any(|&byte| byte != 0) {
                    shown.field(field.name, &format_args!("{part:02x?}"));
                }
            }
        }
    }
    shown.finish()
}

/// Checks the place of a field at compile time. The compiler stops with the message of the rule that it breaks.
#[doc(hidden)]
pub const fn check_place(offset: u32, within_a_row: bool, within_the_structure: bool, broken: [&str; 3]) {
    let [at_no_row, in_two_rows, outside] = broken;
    assert!(offset.is_multiple_of(4), "{}", at_no_row);
    assert!(within_a_row, "{}", in_two_rows);
    assert!(within_the_structure, "{}", outside);
}

/// Whether a field ends within a structure of `size` bytes.
#[doc(hidden)]
#[must_use]
pub const fn fits(start: u32, width: u32, size: usize) -> bool {
    start as usize + width as usize <= 8 * size
}

/// Checks the order of fields at compile time. The compiler stops with the message of the first field that overlaps an
/// earlier field without a declaration, or that has such a declaration and overlaps none.
#[doc(hidden)]
pub const fn check_order(fields: &[FieldInfo], apart: &[&str], over: &[&str]) {
    let (mut i, mut end) = (0, 0);
    while i < fields.len() {
        let field = &fields[i];
        if field.over {
            assert!(field.start < end, "{}", over[i]);
        } else {
            assert!(field.start >= end, "{}", apart[i]);
        }
        if field.start + field.width > end {
            end = field.start + field.width;
        }
        i += 1;
    }
}

/// Declares structures of the programming interface.
///
/// A field is its name, the byte offset of its row, and what lies there:
///
/// | written | holds |
/// |---|---|
/// | `0x08 [23:0]` | a `u32` in these bits of the row at byte 8 |
/// | `0x08 [31]` | a `bool` |
/// | `0xa0 [63:0]` | a `u64` in the rows at 0xa0 and 0xa4 |
/// | `0x10 [u8; 16]` | an array, of `u8`, `u32`, `u64` or layouts |
/// | `0x18 {Ads}` | another layout |
/// | `0x24 [31:0] over` | any of these, in bits that a field above has already |
///
/// ```
/// use hca_prm::layout;
///
/// layout! {
///     /// Where a thing is.
///     pub struct Place: 0x10 {
///         /// Whether it is there at all.
///         VALID: 0x00 [31],
///         /// Its number.
///         NUMBER: 0x00 [23:0],
///         /// Its address.
///         ADDRESS: 0x08 [63:0],
///     }
/// }
///
/// let place = Place::new().with(Place::VALID, true).with(Place::NUMBER, 7).with(Place::ADDRESS, 0x1000);
/// assert_eq!(*place.as_bytes(), [0x80, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]);
/// assert_eq!(Place::from_bytes(place.as_bytes())?.get(Place::NUMBER), 7);
/// # Ok::<(), hca_prm::TooShort>(())
/// ```
///
/// Fields stand in the order of their places, and none may overlap another:
///
/// ```compile_fail
/// hca_prm::layout! {
///     /// Both want bit 7.
///     pub struct Overlapping: 4 {
///         /// First.
///         A: 0x00 [31:7],
///         /// Second.
///         B: 0x00 [7:0],
///     }
/// }
/// ```
///
/// but where it is said:
///
/// ```
/// hca_prm::layout! {
///     /// One row, two senses.
///     pub struct Sharing: 4 {
///         /// In the one.
///         A: 0x00 [31:0],
///         /// In the other.
///         B: 0x00 [7:0] over,
///     }
/// }
/// ```
///
/// which is refused where it is not so:
///
/// ```compile_fail
/// hca_prm::layout! {
///     /// These do not meet.
///     pub struct Apart: 4 {
///         /// First.
///         A: 0x00 [31:8],
///         /// Second.
///         B: 0x00 [7:0] over,
///     }
/// }
/// ```
///
/// A field lies within the structure,
///
/// ```compile_fail
/// hca_prm::layout! {
///     /// Four bytes.
///     pub struct Short: 4 {
///         /// In the fifth.
///         A: 0x04 [31:0],
///     }
/// }
/// ```
///
/// within its row,
///
/// ```compile_fail
/// hca_prm::layout! {
///     /// A row has bits 31 to 0.
///     pub struct Wide: 8 {
///         /// 36 of them.
///         A: 0x00 [35:0],
///     }
/// }
/// ```
///
/// and its offset is that of a row:
///
/// ```compile_fail
/// hca_prm::layout! {
///     /// Rows begin at multiples of 4.
///     pub struct Askew: 8 {
///         /// Between two.
///         A: 0x02 [31:0],
///     }
/// }
/// ```
///
/// A field belongs to its own layout only:
///
/// ```compile_fail
/// use hca_prm::{Cqc, Qpc};
/// let state = Qpc::new().get(Cqc::STATUS);
/// ```
///
/// `list NAME;` before the first structure also makes a constant of that name, visible in the crate: a slice with the
/// [`LayoutInfo`] of each.
#[macro_export]
macro_rules! layout {
    (list $list:ident; $(
        $(#[$meta:meta])*
        pub struct $name:ident: $size:literal $(, opcode $opcode:ident)? {$($fields:tt)*}
    )*) => {
        pub(crate) const $list: &[$crate::LayoutInfo] = &[$($crate::LayoutInfo::of::<$name>()),*];
        $crate::layout! {$(
            $(#[$meta])*
            pub struct $name: $size $(, opcode $opcode)? {$($fields)*}
        )*}
    };

    ($(
        $(#[$meta:meta])*
        pub struct $name:ident: $size:literal $(, opcode $opcode:ident)? {$(
            $(#[$field_meta:meta])*
            $field:ident: $offset:literal $spec:tt $($over:ident)?
        ),* $(,)?}
    )*) => {
        $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name([u8; $size]);

        impl $name {
            $(
                $(#[$field_meta])*
                pub const $field: $crate::Field<Self, $crate::layout!(@type $spec)> = $crate::Field::at(
                    stringify!($field),
                    $crate::layout!(@start $offset $spec),
                    $crate::layout!(@width $spec),
                );
            )*

            /// Bytes in the structure.
            pub const SIZE: usize = $size;

            /// A structure of zeros, except for the operation code of a command's input.
            #[inline]
            #[must_use]
            pub const fn new() -> Self {
                #[allow(unused_mut)]
                let mut bytes = [0; $size];
                $(
                    let code = $crate::Opcode::$opcode.0.to_be_bytes();
                    bytes[0] = code[0];
                    bytes[1] = code[1];
                )?
                Self(bytes)
            }

            /// The structure of these bytes, as in memory.
            #[inline]
            #[must_use]
            pub const fn from_array(bytes: [u8; $size]) -> Self {
                Self(bytes)
            }

            /// A copy of the structure at the beginning of `bytes`.
            ///
            /// # Errors
            ///
            /// `TooShort` if there are fewer bytes than it has.
            #[inline]
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, $crate::TooShort> {
                $crate::layout_support::copy_in(bytes)
            }

            /// Writes the structure to the beginning of `bytes`, and leaves the bytes behind it unchanged.
            ///
            /// # Errors
            ///
            /// `TooShort` if there are fewer bytes than it has; none of them is changed.
            #[inline]
            pub fn write_to(&self, bytes: &mut [u8]) -> Result<(), $crate::TooShort> {
                $crate::layout_support::copy_out(self, bytes)
            }

            /// The structure's bytes, as in memory.
            #[inline]
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; $size] {
                &self.0
            }

            /// The structure's bytes, as in memory, for changes.
            #[inline]
            pub const fn as_bytes_mut(&mut self) -> &mut [u8; $size] {
                &mut self.0
            }

            /// The value that `field` holds.
            #[inline(always)]
            #[must_use]
            pub fn get<V: $crate::Value>(&self, field: $crate::Field<Self, V>) -> V {
                field.load(&self.0)
            }

            /// Puts `value` into `field`.
            ///
            /// # Panics
            ///
            /// If `value` has more bits than the field: callers check untrusted numbers before.
            #[inline(always)]
            #[track_caller]
            pub fn set<V: $crate::Value>(&mut self, field: $crate::Field<Self, V>, value: V) -> &mut Self {
                field.store(&mut self.0, value);
                self
            }

            /// The structure with `value` in `field`.
            ///
            /// # Panics
            ///
            /// If `value` has more bits than the field.
            #[inline(always)]
            #[must_use]
            #[track_caller]
            pub fn with<V: $crate::Value>(mut self, field: $crate::Field<Self, V>, value: V) -> Self {
                field.store(&mut self.0, value);
                self
            }
        }

        impl $crate::Layout for $name {
            const NAME: &'static str = stringify!($name);
            const SIZE: usize = $size;
            const FIELDS: &'static [$crate::FieldInfo] = &[$(
                $crate::FieldInfo::of($name::$field, $crate::layout!(@kind $spec), $crate::layout!(@over $($over)?))
            ),*];

            fn zeroed() -> Self {
                Self([0; $size])
            }
            fn as_bytes(&self) -> &[u8] {
                &self.0
            }
            fn as_bytes_mut(&mut self) -> &mut [u8] {
                &mut self.0
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::layout_support::debug(self, f)
            }
        }

        const _: () = {
            $(
                $crate::layout_support::check_place(
                    $offset,
                    $crate::layout!(@well $offset $spec),
                    $crate::layout_support::fits($crate::layout!(@start $offset $spec), $crate::layout!(@width $spec), $size),
                    [
                        concat!(stringify!($name), "::", stringify!($field), " is at no row's offset"),
                        concat!(stringify!($name), "::", stringify!($field), " does not lie within a row"),
                        concat!(stringify!($name), "::", stringify!($field), " lies outside of the structure"),
                    ],
                );
            )*
            $crate::layout_support::check_order(
                <$name as $crate::Layout>::FIELDS,
                &[$(concat!(
                    stringify!($name), "::", stringify!($field), " overlaps a field above it, or stands out of order"
                )),*],
                &[$(concat!(stringify!($name), "::", stringify!($field), " lies over no field above it")),*],
            );
        };
        )*
    };

    (@type [63:0]) => { u64 };
    (@type [$hi:literal: $lo:literal]) => { u32 };
    (@type [$bit:literal]) => { bool };
    (@type [$item:ty; $count:literal]) => { [$item; $count] };
    (@type {$layout:ty}) => { $layout };

    (@start $offset:literal [63:0]) => { $offset * 8 };
    (@start $offset:literal [$hi:literal: $lo:literal]) => { $offset * 8 + (31 - $hi) };
    (@start $offset:literal [$bit:literal]) => { $offset * 8 + (31 - $bit) };
    (@start $offset:literal $other:tt) => { $offset * 8 };

    (@width [$hi:literal: $lo:literal]) => { ($hi - $lo + 1) };
    (@width [$bit:literal]) => { 1 };
    (@width [u8; $count:literal]) => { $count * 8 };
    (@width [u32; $count:literal]) => { $count * 32 };
    (@width [u64; $count:literal]) => { $count * 64 };
    (@width [$layout:ty; $count:literal]) => { (<$layout as $crate::Layout>::SIZE * 8 * $count) as u32 };
    (@width {$layout:ty}) => { (<$layout as $crate::Layout>::SIZE * 8) as u32 };

    (@well $offset:literal [63:0]) => { true };
    (@well $offset:literal [$hi:literal: $lo:literal]) => { $lo <= $hi && $hi < 32 };
    (@well $offset:literal [$bit:literal]) => { $bit < 32 };
    (@well $offset:literal $other:tt) => { true };

    (@kind [$hi:literal: $lo:literal]) => { $crate::Kind::Bits };
    (@kind [$bit:literal]) => { $crate::Kind::Bits };
    (@kind [$item:ty; $count:literal]) => { $crate::Kind::Array };
    (@kind {$layout:ty}) => { $crate::Kind::Layout(<$layout as $crate::Layout>::NAME) };

    (@over) => { false };
    (@over over) => { true };
}

/// Support functions for the macro's expansion.
#[doc(hidden)]
pub mod support {
    pub use super::{check_order, check_place, copy_in, copy_out, debug, fits};
}
