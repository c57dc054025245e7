//! IPv6 header (RFC 8200).

use core::net::Ipv6Addr;

use bytemuck::{Pod, Zeroable};

use super::Be16;
use super::class_flow::VersionClassFlow;

/// IPv6 header, 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Ipv6Header {
    /// Version, traffic class, flow label.
    version_class_flow: VersionClassFlow,
    /// Bytes behind this header.
    pub payload_len: Be16,
    /// The next header; 17 is UDP.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    src: [u8; 16],
    dst: [u8; 16],
}
const _: () = assert!(size_of::<Ipv6Header>() == 40 && align_of::<Ipv6Header>() == 1);

impl Ipv6Header {
    /// Bytes on the wire.
    pub const BYTES: usize = 40;

    /// A header before `payload_len` bytes of UDP; `flow_label` is cut to 20 bits.
    pub const fn new(
        src: Ipv6Addr,
        dst: Ipv6Addr,
        payload_len: u16,
        traffic_class: u8,
        flow_label: u32,
        hop_limit: u8,
    ) -> Self {
        Self {
            version_class_flow: VersionClassFlow::new(traffic_class, flow_label),
            payload_len: Be16::new(payload_len),
            next_header: super::UdpHeader::PROTOCOL,
            hop_limit,
            src: src.octets(),
            dst: dst.octets(),
        }
    }
    /// IP version, 6 in every header that is one.
    pub const fn version(&self) -> u8 {
        self.version_class_flow.version()
    }
    /// Traffic class: DSCP and ECN bits.
    pub const fn traffic_class(&self) -> u8 {
        self.version_class_flow.traffic_class()
    }
    /// Flow label, 20 bits.
    pub const fn flow_label(&self) -> u32 {
        self.version_class_flow.flow_label()
    }
    /// The address of the source.
    pub const fn src(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.src)
    }
    /// The address of the destination.
    pub const fn dst(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.dst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_stand_where_the_rfc_has_them() {
        let (src, dst) = ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
        let h = Ipv6Header::new(src, dst, 40, 2, 0x1_2345, 64);
        let bytes = bytemuck::bytes_of(&h);
        assert_eq!(bytes[..10], [0x60, 0x21, 0x23, 0x45, 0x00, 0x28, 0x11, 0x40, 0xfe, 0x80]);
        assert_eq!((bytes[23], bytes[24], bytes[39]), (1, 0xfe, 2));
        assert_eq!((h.version(), h.traffic_class(), h.flow_label()), (6, 2, 0x1_2345));
        assert_eq!((h.src(), h.dst()), (src, dst));
    }
}
