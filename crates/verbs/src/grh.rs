//! The global route header: the 40 bytes before a received datagram.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hca_core::{AddressVector, Gid};

/// The global route header before the payload of a datagram, which names sender and path. On RoCEv2 over IPv6
/// that is the IP header; over IPv4 the IP header lies in the last 20 of the 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// The sender's GID.
    pub sgid: Gid,
    /// The receiver's GID.
    pub dgid: Gid,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// Hop limit (TTL) on arrival; 0 if unknown, as over UDP sockets, where the fabric does not ask for it.
    pub hop_limit: u8,
}

impl Grh {
    /// The length in bytes, before every datagram.
    pub const BYTES: usize = 40;

    /// Parses the header; `None` if the bytes are the header of neither IP version.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let v4: &[u8; 20] = bytes.last_chunk().expect("20 of 40 bytes");
        // An IPv6 header may have 0x45 there as well, but then the checksum would hardly fit.
        if v4[0] == 0x45 && (bytes[0] >> 4 != 6 || checksum_holds(v4)) {
            let ip = |i: usize| IpAddr::V4(Ipv4Addr::new(v4[i], v4[i + 1], v4[i + 2], v4[i + 3]));
            return Some(Self {
                sgid: ip(12).into(),
                dgid: ip(16).into(),
                traffic_class: v4[1],
                hop_limit: v4[8],
            });
        }
        if bytes[0] >> 4 != 6 {
            return None;
        }
        let ip = |i: usize| -> Gid {
            let octets: [u8; 16] = bytes[i..i + 16].try_into().expect("16 bytes");
            IpAddr::V6(Ipv6Addr::from(octets)).into()
        };
        let traffic_class = bytes[0] << 4 | bytes[1] >> 4;
        Some(Self { sgid: ip(8), dgid: ip(24), traffic_class, hop_limit: bytes[7] })
    }

    /// The path back to the sender. The header has no LID. So on an InfiniBand subnet the device has to know the LID of
    /// this GID (`lid=` in the device's name), or the program adds the LID.
    pub fn reply_path(&self) -> AddressVector {
        // The ECN bits are the network's.
        let traffic_class = self.traffic_class & !3;
        AddressVector { dgid: self.sgid, traffic_class, ..AddressVector::default() }
    }
}

/// Whether the ones' complement sum of an IPv4 header is right.
fn checksum_holds(header: &[u8; 20]) -> bool {
    let sum: u32 = header.chunks_exact(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_header_is_read_from_the_last_twenty_bytes() {
        let mut bytes = [0_u8; 40];
        bytes[20..]
            .copy_from_slice(&[0x45, 0x02, 0, 100, 0, 0, 0x40, 0, 64, 17, 0, 0, 127, 0, 0, 2, 127, 0, 0, 3]);
        let grh = Grh::parse(&bytes).unwrap();
        assert_eq!(grh.sgid, Ipv4Addr::new(127, 0, 0, 2).into());
        assert_eq!(grh.dgid, Ipv4Addr::new(127, 0, 0, 3).into());
        assert_eq!((grh.traffic_class, grh.hop_limit), (2, 64));
        assert_eq!(grh.reply_path().dgid, grh.sgid);
        assert_eq!(grh.reply_path().traffic_class, 0);
    }

    #[test]
    fn an_ipv6_header_is_told_apart_even_with_a_misleading_byte() {
        let mut bytes = [0_u8; 40];
        bytes[0] = 0x6a;
        bytes[1] = 0xb0;
        bytes[7] = 9;
        bytes[8..24].copy_from_slice(&[1; 16]);
        bytes[20] = 0x45;
        bytes[24..].copy_from_slice(&[2; 16]);
        let grh = Grh::parse(&bytes).unwrap();
        assert_eq!((grh.dgid, grh.traffic_class, grh.hop_limit), (Gid([2; 16]), 0xab, 9));
    }

    #[test]
    fn anything_else_is_no_header() {
        assert_eq!(Grh::parse(&[0; 40]), None);
    }
}
