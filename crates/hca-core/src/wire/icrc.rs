//! The invariant CRC of RoCEv2.
//!
//! CRC-32 (IEEE 802.3, reflected) over 8 bytes of ones, the IP header with TOS, TTL and checksum as ones (IPv6: traffic
//! class, flow label and hop limit), the UDP header with its checksum as ones, the BTH with byte 4 as ones, and all
//! that follows up to the CRC itself, which is appended in little-endian order. The IPv4 Identification and flags are
//! covered unchanged.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Bth, ICRC_BYTES, ROCEV2_PORT};

/// The IP and UDP header fields of a flow that the ICRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFlow {
    /// IPv4 without options, DF set, not a fragment.
    V4 {
        /// Source address.
        src: Ipv4Addr,
        /// Destination address.
        dst: Ipv4Addr,
        /// UDP source port.
        src_port: u16,
    },
    /// IPv6 without extension headers.
    V6 {
        /// Source address.
        src: Ipv6Addr,
        /// Destination address.
        dst: Ipv6Addr,
        /// UDP source port.
        src_port: u16,
    },
}

/// IPv4 "don't fragment" as it stands in the flags and offset field.
const DF: u16 = 0x4000;

impl IpFlow {
    /// A flow between two addresses of one family; `None` if the families differ.
    pub fn new(src: IpAddr, dst: IpAddr, src_port: u16) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4 { src, dst, src_port }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6 { src, dst, src_port }),
            _ => None,
        }
    }

    /// The ICRC of a packet whose transport bytes (BTH to padding, the CRC left out) are `packet`;
    /// `ident` is the IPv4 Identification (ignored on IPv6).
    ///
    /// # Panics
    /// When `packet` is shorter than a BTH.
    #[inline]
    pub fn icrc(&self, ident: u16, packet: &[u8]) -> u32 {
        self.icrc_with_flags(ident, DF, packet)
    }

    /// Like [`icrc`](Self::icrc), with the 16 bits of IPv4 flags and fragment offset given.
    pub fn icrc_with_flags(&self, ident: u16, flags: u16, packet: &[u8]) -> u32 {
        let mut head = [0xff_u8; 8 + 40 + 8 + Bth::BYTES];
        let udp_len = (8 + packet.len() + ICRC_BYTES) as u16;
        let (udp, src_port) = match *self {
            Self::V4 { src, dst, src_port } => {
                let ip = &mut head[8..28];
                ip[0] = 0x45;
                ip[2..4].copy_from_slice(&(udp_len + 20).to_be_bytes());
                ip[4..6].copy_from_slice(&ident.to_be_bytes());
                ip[6..8].copy_from_slice(&flags.to_be_bytes());
                ip[9] = 17;
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                (28, src_port)
            }
            Self::V6 { src, dst, src_port } => {
                let ip = &mut head[8..48];
                ip[0] = 0x6f;
                ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
                ip[6] = 17;
                ip[8..24].copy_from_slice(&src.octets());
                ip[24..40].copy_from_slice(&dst.octets());
                (48, src_port)
            }
        };
        head[udp..udp + 2].copy_from_slice(&src_port.to_be_bytes());
        head[udp + 2..udp + 4].copy_from_slice(&ROCEV2_PORT.to_be_bytes());
        head[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        let bth = udp + 8;
        head[bth..bth + Bth::BYTES].copy_from_slice(&packet[..Bth::BYTES]);
        head[bth + 4] = 0xff;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&head[..bth + Bth::BYTES]);
        crc.update(&packet[Bth::BYTES..]);
        crc.finalize()
    }
}
