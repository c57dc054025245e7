//! Numbers of the InfiniBand architecture as types of their own.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

/// With the feature `serde`: a bare number, refused beyond its largest value.
macro_rules! serde_bounded {
    ($name:ident, $t:ty, $max:expr) => {
        #[cfg(feature = "serde")]
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                self.0.serialize(s)
            }
        }
        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let raw = <$t>::deserialize(d)?;
                if raw > $max {
                    return Err(serde::de::Error::custom(format_args!(
                        concat!(stringify!($name), " of {} is out of range: at most {}"),
                        raw, $max
                    )));
                }
                Ok(Self(raw))
            }
        }
    };
}

macro_rules! number {
    ($(#[$m:meta])* $name:ident($t:ty), $mask:expr, $width:literal) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name($t);

        serde_bounded!($name, $t, $mask);

        impl $name {
            /// The number, cut to the bits that the wire has for it.
            #[inline]
            pub const fn new(raw: $t) -> Self {
                Self(raw & $mask)
            }
            /// The number as an integer.
            #[inline]
            pub const fn raw(self) -> $t {
                self.0
            }
        }
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
    /// Queue pair number, 24 bits. 0 and 1 are the management queue pairs.
    Qpn(u32), 0xff_ffff, 8
);
number!(
    /// Number of a shared receive queue of an XRC domain, 24 bits.
    Srqn(u32), 0xff_ffff, 8
);
number!(
    /// Packet sequence number, 24 bits, compared by serial arithmetic (so not [`Ord`]).
    Psn(u32), 0xff_ffff, 8
);
number!(
    /// Local key: names a memory region in scatter/gather entries.
    Lkey(u32), u32::MAX, 10
);
number!(
    /// Remote key: lets a peer reach a memory region.
    Rkey(u32), u32::MAX, 10
);
number!(
    /// Queue key, checked on every datagram. Bit 31 marks a privileged one.
    Qkey(u32), u32::MAX, 10
);
number!(
    /// Partition key: 15 bits and a membership bit (bit 15 set: full member).
    Pkey(u16), u16::MAX, 6
);
number!(
    /// Local identifier of a port on an InfiniBand subnet; 0 on RoCE.
    Lid(u16), u16::MAX, 6
);

impl Qpn {
    /// A number below 2^`bits` (1 to 32 bits) that spreads queue pairs: consecutive queue pair numbers get different
    /// results as long as there are unused ones.
    pub const fn spread(self, bits: u32) -> u32 {
        // 2^32 by the golden ratio, of which multiples lie evenly.
        const GOLDEN: u32 = 0x9e37_79b9;
        assert!(bits >= 1 && bits <= u32::BITS);
        self.0.wrapping_mul(GOLDEN) >> (u32::BITS - bits)
    }
}

impl Psn {
    /// This PSN plus `n`, modulo 2^24.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }
    /// This PSN minus `n`, modulo 2^24.
    #[must_use]
    pub const fn sub(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }
    /// Signed serial distance `self - other`, in -2^23 ..= 2^23 - 1.
    pub const fn distance(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
    /// Whether this PSN comes before `other` in serial order.
    pub const fn is_before(self, other: Self) -> bool {
        self.distance(other) < 0
    }
}

impl Qpn {
    /// The number that stands for all members of a multicast group.
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// Whether a program's queue pair can have the number: 0 and 1 are for management, and 0xffffff means all members
    /// of a multicast group.
    pub const fn is_ordinary(self) -> bool {
        self.0 > 1 && self.0 < Self::MULTICAST.0
    }
}

impl Lid {
    /// Whether the LID names one port: from 0x0001 to 0xbfff.
    pub const fn is_unicast(self) -> bool {
        self.0 > 0 && self.0 < 0xc000
    }
}

impl Qkey {
    /// Whether bit 31 is set: a request with such a Q_Key takes the queue pair's own instead.
    pub const fn is_privileged(self) -> bool {
        self.0 >> 31 == 1
    }
}

impl Pkey {
    /// The default partition with full membership.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether two members of these partitions may communicate: the lower 15 bits are equal, and not both are limited
    /// members.
    pub const fn matches(self, other: Self) -> bool {
        (self.0 ^ other.0) & 0x7fff == 0 && (self.0 | other.0) & 0x8000 != 0 && self.0 & 0x7fff != 0
    }
}

/// Global identifier of a port, 128 bits. On RoCEv2 it holds the port's IP address, IPv4 as an
/// IPv4-mapped IPv6 address.
///
/// With the feature `serde` it is written as text, `::ffff:127.0.0.1`, in formats for people.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an IP address.
    pub const fn from_ip(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
    /// The IP address that this GID holds, IPv4-mapped ones as IPv4.
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
    /// Whether the GID names a group of ports.
    pub fn is_multicast(self) -> bool {
        self.ip().is_multicast()
    }
    /// Whether the GID holds an IPv4 address.
    pub fn is_ipv4(self) -> bool {
        self.ip().is_ipv4()
    }
}
impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        Self::from_ip(ip)
    }
}
impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Self::from_ip(IpAddr::V4(ip))
    }
}
impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Gid {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        Ipv6Addr::from(self.0).serialize(s)
    }
}
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Gid {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Self(Ipv6Addr::deserialize(d)?.octets()))
    }
}

/// The path MTU: the most payload bytes of a packet.
///
/// With the feature `serde` it is written as its bytes, `1024`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    #[default]
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// All path MTUs, ascending.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// The bytes of payload in a full packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u8
    }
    /// The encoding of the IBA (1 to 5).
    pub const fn encoding(self) -> u8 {
        self as u8
    }
    /// The MTU of exactly `bytes` bytes.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.bytes() == bytes)
    }
    /// The largest MTU whose packets (with 80 bytes for the IPv6, UDP and transport headers and the ICRC) fit a link
    /// that carries IP packets of `link_mtu` bytes.
    pub fn largest_for_link(link_mtu: u32) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|m| m.bytes() + 80 <= link_mtu)
    }
    /// The number of packets of a message of `len` bytes: at least one.
    pub const fn packets(self, len: u64) -> u32 {
        let n = len.div_ceil(self.bytes() as u64);
        if n == 0 { 1 } else { n as u32 }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Mtu {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.bytes().serialize(s)
    }
}
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Mtu {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let bytes = u32::deserialize(d)?;
        Self::from_bytes(bytes).ok_or_else(|| {
            serde::de::Error::custom(format_args!("a path MTU of {bytes} bytes: 256 to 4096, a power of two"))
        })
    }
}

/// Local ACK timeout, 5 bits: 4.096 us x 2^n; 0 means for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AckTimeout(u8);

serde_bounded!(AckTimeout, u8, 31);

impl AckTimeout {
    /// No timeout at all.
    pub const INFINITE: Self = Self(0);

    /// The encoded value, cut to 5 bits.
    pub const fn new(encoded: u8) -> Self {
        Self(encoded & 31)
    }
    /// The value as packets and attributes encode it.
    pub const fn encoding(self) -> u8 {
        self.0
    }
    /// The timeout's duration; `None`: for ever.
    pub const fn duration(self) -> Option<Duration> {
        if self.0 == 0 { None } else { Some(Duration::from_nanos(4096 << self.0)) }
    }
}
impl Default for AckTimeout {
    /// 14: 67 ms, as most programs set it.
    fn default() -> Self {
        Self(14)
    }
}

/// RNR NAK timer, 5 bits: how long a requester waits after "receiver not ready".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

serde_bounded!(RnrTimer, u8, 31);

impl RnrTimer {
    /// The encoded value, cut to 5 bits.
    pub const fn new(encoded: u8) -> Self {
        Self(encoded & 31)
    }
    /// The value as packets and attributes encode it.
    pub const fn encoding(self) -> u8 {
        self.0
    }
    /// The time, from the table of the IBA: 0 is the longest (655.36 ms), 1 the shortest (10 us).
    pub const fn duration(self) -> Duration {
        const UNITS_10US: [u64; 32] = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
            2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        Duration::from_micros(UNITS_10US[self.0 as usize] * 10)
    }
}
impl Default for RnrTimer {
    /// 12: 0.64 ms, as most programs set it.
    fn default() -> Self {
        Self(12)
    }
}

/// The highest rate of sending on a path, 6 bits, with the encoding of PathRecords of subnet management: 3 is 10
/// Gbit/s; 0 is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct StaticRate(u8);

serde_bounded!(StaticRate, u8, 63);

impl StaticRate {
    /// No limit but the port's.
    pub const UNLIMITED: Self = Self(0);

    /// The encoded value, cut to 6 bits.
    pub const fn new(encoded: u8) -> Self {
        Self(encoded & 63)
    }
    /// The value as packets and attributes encode it.
    pub const fn encoding(self) -> u8 {
        self.0
    }
    /// The rate in Mbit/s; `None` for no limit, and for numbers that encode no rate.
    pub const fn mbits(self) -> Option<u32> {
        const GBITS: [u32; 25] = [
            0, 0, 0, 10, 30, 5, 20, 40, 60, 80, 120, 14, 56, 112, 168, 25, 100, 200, 300, 28, 50, 400, 600,
            800, 1200,
        ];
        match self.0 {
            2 => Some(2_500),
            3..=24 => Some(GBITS[self.0 as usize] * 1000),
            _ => None,
        }
    }
}

/// A retry count that means "for ever" at its largest value, 7 (`rnr_retry` only; `retry_cnt` 7 is
/// seven retries).
pub const RNR_RETRY_INFINITE: u8 = 7;

/// The longest message, in bytes (2^31).
pub const MAX_MESSAGE_BYTES: u64 = 1 << 31;

/// An index into a table of the device, with a generation that tells a reused slot from its
/// predecessor.
macro_rules! handle {
    ($(#[$m:meta])* $name:ident) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
        pub struct $name {
            /// The slot in the device's table.
            pub index: u32,
            /// The number of earlier uses of the slot.
            pub generation: u32,
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}.{}", self.index, self.generation)
            }
        }
    };
}
handle!(
    /// A protection domain of a device.
    PdHandle
);
handle!(
    /// An XRC domain of a device.
    XrcdHandle
);
handle!(
    /// A domain of reliable datagrams (RD) of a device.
    RddHandle
);
handle!(
    /// A queue pair of a device. Completions carry it, since QPNs are reused.
    QpHandle
);
handle!(
    /// A completion queue of a device.
    CqHandle
);
handle!(
    /// A shared receive queue of a device.
    SrqHandle
);
handle!(
    /// An address handle of a device.
    AhHandle
);
handle!(
    /// A memory region of a device.
    MrHandle
);
handle!(
    /// A memory window of a device.
    MwHandle
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_are_spread_evenly() {
        for (first, step) in [(0, 1), (0xff_0000, 1), (5, 2), (64, 64)] {
            let mut found = [0; 16];
            for n in 0..64 {
                found[Qpn::new(first + n * step).spread(4) as usize] += 1;
            }
            assert!(found.iter().all(|n| (1..=8).contains(n)), "from {first} by {step}: {found:?}");
        }
        assert_eq!(Qpn::new(1).spread(32), 0x9e37_79b9);
        assert_eq!(Qpn::new(1).spread(20), 0x9_e377);
    }

    #[test]
    fn psn_distance_is_serial() {
        assert_eq!(Psn::new(0).distance(Psn::new(0xff_ffff)), 1);
        assert_eq!(Psn::new(0xff_ffff).distance(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x80_0000).distance(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0x7f_ffff).distance(Psn::new(0)), 0x7f_ffff);
        assert!(Psn::new(0xff_fff0).is_before(Psn::new(3)));
    }

    #[test]
    fn pkeys_match_when_one_is_a_full_member() {
        assert!(Pkey::new(0x8001).matches(Pkey::new(1)));
        assert!(!Pkey::new(1).matches(Pkey::new(1)));
        assert!(!Pkey::new(0x8001).matches(Pkey::new(0x8002)));
    }

    #[test]
    fn timers_have_the_tables_ends() {
        assert_eq!(RnrTimer::new(0).duration(), Duration::from_micros(655_360));
        assert_eq!(RnrTimer::new(1).duration(), Duration::from_micros(10));
        assert_eq!(RnrTimer::new(31).duration(), Duration::from_micros(491_520));
        assert_eq!(AckTimeout::new(14).duration(), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(AckTimeout::new(0).duration(), None);
    }

    #[test]
    fn rates_are_those_of_the_table() {
        let mbits = |code| StaticRate::new(code).mbits();
        assert_eq!((mbits(2), mbits(5), mbits(3)), (Some(2_500), Some(5_000), Some(10_000)));
        assert_eq!((mbits(16), mbits(24), mbits(15)), (Some(100_000), Some(1_200_000), Some(25_000)));
        assert_eq!([0, 1, 25, 63].map(mbits), [None; 4]);
        assert_eq!(StaticRate::default(), StaticRate::UNLIMITED);
    }

    #[test]
    fn message_packets() {
        assert_eq!(Mtu::B4096.packets(0), 1);
        assert_eq!(Mtu::B256.packets(257), 2);
        assert_eq!(Mtu::B256.packets(MAX_MESSAGE_BYTES), 1 << 23);
    }
}
