//! IPv4 header without options (RFC 791).

use core::net::Ipv4Addr;

use bytemuck::{Pod, Zeroable};

use super::{Be16, checksum};

/// IPv4 header, 20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Ipv4Header {
    /// Version (4 bits), header length in units of 4 bytes (4 bits).
    version_ihl: u8,
    /// Type of service: DSCP and ECN bits.
    pub tos: u8,
    /// Bytes from the start of this header to the end of the packet.
    pub total_len: Be16,
    /// Identification; the ICRC covers it.
    pub ident: Be16,
    /// Reserved, DF, MF (3 bits), fragment offset (13 bits); the ICRC covers them.
    pub flags_offset: Be16,
    /// Time to live.
    pub ttl: u8,
    /// The next header; 17 is UDP.
    pub protocol: u8,
    /// Checksum of this header.
    pub checksum: Be16,
    src: [u8; 4],
    dst: [u8; 4],
}
const _: () = assert!(size_of::<Ipv4Header>() == 20 && align_of::<Ipv4Header>() == 1);

const VERSION_IHL: u8 = 0x45;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

impl Ipv4Header {
    /// Bytes on the wire.
    pub const BYTES: usize = 20;
    /// "Don't fragment" in [`flags_offset`](Self::flags_offset).
    pub const DONT_FRAGMENT: u16 = 0x4000;

    /// A header of a UDP datagram, DF set, Identification 0, TTL 64, checksum not yet put on.
    pub const fn new(src: Ipv4Addr, dst: Ipv4Addr, total_len: u16) -> Self {
        Self {
            version_ihl: VERSION_IHL,
            tos: 0,
            total_len: Be16::new(total_len),
            ident: Be16::new(0),
            flags_offset: Be16::new(Self::DONT_FRAGMENT),
            ttl: 64,
            protocol: super::UdpHeader::PROTOCOL,
            checksum: Be16::new(0),
            src: src.octets(),
            dst: dst.octets(),
        }
    }
    /// This header with its correct checksum.
    #[must_use]
    pub fn with_checksum(mut self) -> Self {
        self.checksum = Be16::new(0);
        self.checksum = Be16::new(checksum::of(&[bytemuck::bytes_of(&self)]));
        self
    }
    /// IP version, 4 in every header that is one.
    pub const fn version(&self) -> u8 {
        self.version_ihl >> 4
    }
    /// The header's own length field in bytes, options included.
    pub const fn header_bytes(&self) -> usize {
        (self.version_ihl & 0x0f) as usize * 4
    }
    /// Whether the packet is a fragment.
    pub const fn is_fragment(&self) -> bool {
        self.flags_offset.get() & (MORE_FRAGMENTS | OFFSET) != 0
    }
    /// The address of the source.
    pub const fn src(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(self.src)
    }
    /// The address of the destination.
    pub const fn dst(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(self.dst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_an_adapter_is_built_again() {
        // The IPv4 header of a notification packet that a ConnectX-4 Lx sent.
        let bytes = [
            0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00, 0x11, 0x01,
            0x0a, 0x00, 0x12, 0x01,
        ];
        let mut h = Ipv4Header::new(Ipv4Addr::new(10, 0, 17, 1), Ipv4Addr::new(10, 0, 18, 1), 60);
        h.tos = 0xc2;
        h.ident = Be16::new(0x718c);
        let h = h.with_checksum();
        assert_eq!(bytemuck::bytes_of(&h), bytes);
        assert_eq!((h.version(), h.header_bytes(), h.is_fragment()), (4, 20, false));
    }

    #[test]
    fn more_fragments_and_an_offset_each_make_a_fragment() {
        for flags in [0x2000, 0x0001, 0x1fff] {
            let mut h = Ipv4Header::new(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 20);
            h.flags_offset = Be16::new(flags);
            assert!(h.is_fragment(), "{flags:#x}");
        }
    }
}
