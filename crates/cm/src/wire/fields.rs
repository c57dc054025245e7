//! The fields of the messages: places in a datagram, and the types of values that stand there.

use core::fmt;
use core::time::Duration;

/// Bytes of a management datagram behind its header: a message.
pub(super) const BODY_BYTES: usize = 232;

/// The bytes of a message behind the header of the datagram.
pub(super) type Body = [u8; BODY_BYTES];

/// The place of a number in a message: its first bit, counted from the most significant bit of the first byte, and its
/// width.
#[derive(Clone, Copy)]
pub(super) struct Field {
    bit: usize,
    width: usize,
}

/// The field that begins `bit` bits behind the start of byte `byte`.
pub(super) const fn at(byte: usize, bit: usize, width: usize) -> Field {
    assert!(width > 0 && width <= 64 && byte * 8 + bit + width <= BODY_BYTES * 8);
    Field { bit: byte * 8 + bit, width }
}

impl Field {
    /// The bytes that the field touches, and the bits behind it in the last one.
    const fn span(self) -> (usize, usize, usize) {
        let end = self.bit + self.width;
        (self.bit / 8, end.div_ceil(8), end.next_multiple_of(8) - end)
    }
    const fn mask(self) -> u128 {
        (1 << self.width) - 1
    }
    pub(super) fn get(self, body: &Body) -> u64 {
        let (first, end, behind) = self.span();
        let bytes = body[first..end].iter().fold(0u128, |v, b| v << 8 | u128::from(*b));
        (bytes >> behind & self.mask()) as u64
    }
    pub(super) fn set(self, body: &mut Body, value: u64) {
        let (first, end, behind) = self.span();
        debug_assert!(u128::from(value) <= self.mask(), "{value:#x} does not fit {} bits", self.width);
        let mut bits = (u128::from(value) & self.mask()) << behind;
        let mut mask = self.mask() << behind;
        for byte in body[first..end].iter_mut().rev() {
            *byte = *byte & !(mask as u8) | bits as u8;
            (bits, mask) = (bits >> 8, mask >> 8);
        }
    }
}

/// An unsigned number of `N` bits, at most 32.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bits<const N: u32>(u32);

impl<const N: u32> Bits<N> {
    /// The largest value.
    pub const MAX: Self = Self(u32::MAX >> (32 - N));

    /// The number; `None` if it has more bits.
    pub const fn new(value: u32) -> Option<Self> {
        if value <= Self::MAX.0 { Some(Self(value)) } else { None }
    }
    /// The number, or the largest value if it has more bits.
    pub const fn at_most(value: u32) -> Self {
        if value <= Self::MAX.0 { Self(value) } else { Self::MAX }
    }
    /// The number as an integer.
    pub const fn get(self) -> u32 {
        self.0
    }
}
impl<const N: u32> fmt::Debug for Bits<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! number {
    ($(#[$m:meta])* $name:ident($t:ty), $width:literal) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $t);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#0", $width, "x})"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:#0", $width, "x}"), self.0)
            }
        }
    };
}
number!(
    /// A communication ID: the name that one side has for a connection. SIDR calls it request ID.
    CommId(u32), 10
);
number!(
    /// A globally unique identifier of an adapter.
    Guid(u64), 18
);
number!(
    /// A transaction ID, by which a management datagram is paired with its response.
    TransactionId(u64), 18
);

/// A timeout of the connection manager, 5 bits: 4.096 us x 2^n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CmTimeout(u8);

impl CmTimeout {
    /// The encoded value, cut to 5 bits.
    pub const fn new(encoded: u8) -> Self {
        Self(encoded & 31)
    }
    /// The smallest timeout that is not shorter than this time.
    pub fn at_least(time: Duration) -> Self {
        (0..31).map(Self).find(|t| t.duration() >= time).unwrap_or(Self(31))
    }
    /// The value as the messages encode it.
    pub const fn encoding(self) -> u8 {
        self.0
    }
    /// The time that this stands for.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }
}

/// Private data of a message: `N` bytes, of which the program's come first and the others are 0.
///
/// The length of the program's data is not on the wire. A program that needs it puts it in the data.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrivateData<const N: usize>([u8; N]);

/// An error: private data that does not fit its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes of private data; the message has room for {max}: send the rest through the connection")]
pub struct PrivateDataTooLong {
    /// The length of the data in bytes.
    pub len: usize,
    /// The longest data that fits.
    pub max: usize,
}

impl<const N: usize> PrivateData<N> {
    /// No data: all bytes 0.
    pub const EMPTY: Self = Self([0; N]);

    /// These bytes, and 0 behind them.
    ///
    /// # Errors
    /// There are more than `N`.
    pub fn new(data: &[u8]) -> Result<Self, PrivateDataTooLong> {
        let mut all = [0; N];
        let room = all.get_mut(..data.len()).ok_or(PrivateDataTooLong { len: data.len(), max: N })?;
        room.copy_from_slice(data);
        Ok(Self(all))
    }
    /// All bytes, the zeros too.
    pub const fn bytes(&self) -> &[u8; N] {
        &self.0
    }
    pub(super) fn parse(body: &Body, offset: usize) -> Self {
        let mut all = [0; N];
        all.copy_from_slice(&body[offset..offset + N]);
        Self(all)
    }
    pub(super) fn build(&self, body: &mut Body, offset: usize) {
        body[offset..offset + N].copy_from_slice(&self.0);
    }
}
impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self::EMPTY
    }
}
impl<const N: usize> From<[u8; N]> for PrivateData<N> {
    fn from(all: [u8; N]) -> Self {
        Self(all)
    }
}
/// The bytes as hexadecimal digits, without the zeros at the end.
impl<const N: usize> fmt::Debug for PrivateData<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        f.write_str("PrivateData(")?;
        self.0[..used].iter().try_for_each(|b| write!(f, "{b:02x}"))?;
        f.write_str(")")
    }
}

/// Additional information of a rejection or of a SIDR response: up to 72 bytes, whose meaning depends on the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Info {
    len: u8,
    data: PrivateData<{ Info::MAX_BYTES }>,
}

impl Info {
    /// The longest information in bytes.
    pub const MAX_BYTES: usize = 72;
    /// No information.
    pub const EMPTY: Self = Self { len: 0, data: PrivateData::EMPTY };

    /// Information of these bytes.
    ///
    /// # Errors
    /// There are more than 72.
    pub fn new(info: &[u8]) -> Result<Self, PrivateDataTooLong> {
        Ok(Self { data: PrivateData::new(info)?, len: info.len() as u8 })
    }
    /// The bytes, as many as were told.
    pub fn bytes(&self) -> &[u8] {
        &self.data.bytes()[..usize::from(self.len)]
    }
    pub(super) fn build(&self, body: &mut Body, offset: usize) {
        self.data.build(body, offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_changes_its_own_bits_only() {
        for (field, value, first) in [
            (at(0, 0, 32), 0x1234_5678, vec![0x12, 0x34, 0x56, 0x78]),
            (at(0, 0, 20), 0xabcde, vec![0xab, 0xcd, 0xe0, 0]),
            (at(1, 5, 3), 5, vec![0, 5, 0, 0]),
            (at(1, 2, 6), 0x21, vec![0, 0x21, 0, 0]),
            (at(0, 4, 1), 1, vec![8, 0, 0, 0]),
            (at(0, 0, 64), u64::MAX, vec![0xff; 8]),
        ] {
            for background in [0, 0xff] {
                let mut body = [background; BODY_BYTES];
                field.set(&mut body, value);
                assert_eq!(field.get(&body), value);
                if background == 0 {
                    assert_eq!(&body[..first.len()], &first[..]);
                    assert!(body[first.len()..].iter().all(|b| *b == 0));
                }
                field.set(&mut body, 0);
                let ones: u32 = body.iter().map(|b| b.count_ones()).sum();
                let width = field.width as u32;
                assert_eq!(ones, if background == 0 { 0 } else { BODY_BYTES as u32 * 8 - width });
            }
        }
    }

    #[test]
    fn private_data_is_as_long_as_its_message_has_room_and_no_longer() {
        assert_eq!(PrivateData::<4>::new(&[1, 2]).unwrap().bytes(), &[1, 2, 0, 0]);
        assert_eq!(PrivateData::<4>::new(&[0; 5]), Err(PrivateDataTooLong { len: 5, max: 4 }));
        assert_eq!(format!("{:?}", PrivateData::<4>::from([1, 0, 0xab, 0])), "PrivateData(0100ab)");
        assert!(Info::new(&[0; 73]).is_err() && Info::new(&[7; 72]).unwrap().bytes() == [7; 72]);
    }

    #[test]
    fn timeouts_double_from_four_microseconds() {
        assert_eq!(CmTimeout::new(0).duration(), Duration::from_nanos(4096));
        assert_eq!(CmTimeout::new(20).duration(), Duration::from_nanos(4_294_967_296));
        assert_eq!(CmTimeout::at_least(Duration::from_secs(4)), CmTimeout::new(20));
        assert_eq!(CmTimeout::at_least(Duration::MAX), CmTimeout::new(31));
        assert_eq!(CmTimeout::new(33), CmTimeout::new(1));
    }

    #[test]
    fn small_numbers_keep_their_range() {
        assert_eq!(Bits::<3>::new(8), None);
        assert_eq!(Bits::<3>::at_most(9).get(), 7);
        assert_eq!(Bits::<32>::MAX.get(), u32::MAX);
    }
}
