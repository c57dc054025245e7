//! Frames, built from a template a path and taken apart without a copy.

use std::net::IpAddr;

use bytemuck::Pod;
use hca_core::Gid;
use hca_core::wire::{
    Be16, EthernetHeader, Grh, Ipv4Header, Ipv6Header, ROCEV2_PORT, UdpHeader, VlanTag, ether_type,
};

use super::RoceVersion;
use crate::paths::PathKey;

/// A hardware address.
pub(crate) type Mac = [u8; 6];

/// Headers in front of a BTH at most: Ethernet, a VLAN tag, IPv6, UDP.
pub(super) const MAX_HEAD_BYTES: usize = 14 + 4 + 40 + 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Network {
    Ipv4,
    Ipv6,
    Grh,
}

/// The headers of a path's frames, but for lengths, Identification and what depends on them.
pub(super) struct Template {
    bytes: [u8; MAX_HEAD_BYTES],
    len: usize,
    /// Where the network header begins.
    network_at: usize,
    network: Network,
    /// Of what the checksum covers and does not change: IPv4's header, or IPv6's and UDP's.
    sum: u64,
}

/// What a path's headers are made of, beside its key.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) version: RoceVersion,
    pub(super) local: IpAddr,
    pub(super) mac: Mac,
    pub(super) vlan: Option<u16>,
}

impl Template {
    /// The headers of frames from `from` along a path. Both addresses are of one IP version.
    pub(super) fn new(from: &Source, key: &PathKey, src_port: u16) -> Self {
        let (network, kind) = match (from.version, from.local) {
            (RoceVersion::V1, _) => (Network::Grh, ether_type::ROCEV1),
            (RoceVersion::V2, IpAddr::V4(_)) => (Network::Ipv4, ether_type::IPV4),
            (RoceVersion::V2, IpAddr::V6(_)) => (Network::Ipv6, ether_type::IPV6),
        };
        let mut t = Self { bytes: [0; MAX_HEAD_BYTES], len: 0, network_at: 0, network, sum: 0 };
        let outer = if from.vlan.is_some() { ether_type::VLAN } else { kind };
        t.push(&EthernetHeader { dst: [0; 6], src: from.mac, ether_type: Be16::new(outer) });
        if let Some(vid) = from.vlan {
            t.push(&VlanTag::new(0, vid, kind));
        }
        t.network_at = t.len;
        let mut udp = UdpHeader {
            src_port: Be16::new(src_port),
            dst_port: Be16::new(ROCEV2_PORT),
            len: Be16::new(0),
            checksum: Be16::new(0),
        };
        match (network, from.local, key.peer) {
            (Network::Ipv4, IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut ip = Ipv4Header::new(src, dst, 0);
                (ip.tos, ip.ttl) = (key.traffic_class, key.hop_limit);
                t.sum = sum(bytemuck::bytes_of(&ip));
                t.push(&ip);
                t.push(&udp);
            }
            (Network::Ipv6, IpAddr::V6(src), IpAddr::V6(dst)) => {
                let label = if key.flow_label == 0 { u32::from(src_port) } else { key.flow_label };
                t.push(&Ipv6Header::new(src, dst, 0, key.traffic_class, label, key.hop_limit));
                t.push(&udp);
                // Sums are of 16-bit words in the machine's own order.
                udp.checksum = Be16::new(UdpHeader::PROTOCOL.into());
                t.sum = sum(&src.octets()) + sum(&dst.octets()) + sum(bytemuck::bytes_of(&udp));
            }
            _ => {
                let (src, dst) = (Gid::from_ip(from.local), Gid::from_ip(key.peer));
                t.push(&Grh::new(key.traffic_class, key.flow_label, 0, key.hop_limit, src, dst));
            }
        }
        t
    }

    fn push(&mut self, header: &impl Pod) {
        let bytes = bytemuck::bytes_of(header);
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Writes the headers in front of `payload` (BTH to ICRC), and says how long they are.
    #[inline]
    pub(super) fn write(
        &self,
        to: &Mac,
        ident: u16,
        payload: &[u8],
        out: &mut [u8; MAX_HEAD_BYTES],
    ) -> usize {
        *out = self.bytes;
        out[..6].copy_from_slice(to);
        let head = &mut out[self.network_at..];
        match self.network {
            Network::Ipv4 => {
                let udp = ((UdpHeader::BYTES + payload.len()) as u16).to_be_bytes();
                let total = ((Ipv4Header::BYTES + UdpHeader::BYTES + payload.len()) as u16).to_be_bytes();
                let ident = ident.to_be_bytes();
                head[2..4].copy_from_slice(&total);
                head[4..6].copy_from_slice(&ident);
                let more = u64::from(u16::from_ne_bytes(total)) + u64::from(u16::from_ne_bytes(ident));
                head[10..12].copy_from_slice(&(!folded(self.sum + more)).to_ne_bytes());
                head[24..26].copy_from_slice(&udp);
            }
            Network::Ipv6 => {
                let udp = ((UdpHeader::BYTES + payload.len()) as u16).to_be_bytes();
                head[4..6].copy_from_slice(&udp);
                head[44..46].copy_from_slice(&udp);
                // Once in the pseudo header, once in UDP's own.
                let lengths = 2 * u64::from(u16::from_ne_bytes(udp));
                let checksum = match !folded(self.sum + lengths + sum(payload)) {
                    0 => 0xffff,
                    other => other,
                };
                head[46..48].copy_from_slice(&checksum.to_ne_bytes());
            }
            Network::Grh => head[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes()),
        }
        self.len
    }
}

/// A frame, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shown<'a> {
    pub(super) src: IpAddr,
    /// 0 on RoCEv1, which has no ports.
    pub(super) src_port: u16,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    pub(super) ident: u16,
    pub(super) dont_fragment: bool,
    /// BTH to ICRC; of a super-frame, all its packets.
    pub(super) payload: &'a [u8],
    /// UDP carries a checksum, and it is wrong as it stands.
    pub(super) checksum_wrong: bool,
}

/// Takes a frame apart that is for `local`; `None` where it is no whole RoCE frame, or somebody else's. The VLAN tag
/// has been taken off by the kernel. IPv4's own checksum is not looked at: the ICRC covers what matters of
/// the header. UDP's is, unless `trusted`: it was found right already, or is yet to be put on.
pub(super) fn parse(version: RoceVersion, local: IpAddr, trusted: bool, frame: &[u8]) -> Option<Shown<'_>> {
    let mut rest = frame;
    let kind = take::<EthernetHeader>(&mut rest)?.ether_type.get();
    match (version, local) {
        (RoceVersion::V1, _) if kind == ether_type::ROCEV1 => parse_grh(local, rest),
        (RoceVersion::V2, IpAddr::V4(_)) if kind == ether_type::IPV4 => parse_ipv4(local, trusted, rest),
        (RoceVersion::V2, IpAddr::V6(_)) if kind == ether_type::IPV6 => parse_ipv6(local, trusted, rest),
        _ => None,
    }
}

fn parse_grh(local: IpAddr, mut rest: &[u8]) -> Option<Shown<'_>> {
    let grh: &Grh = take(&mut rest)?;
    if grh.version() != 6 || grh.next_header != Grh::NEXT_IBA || grh.dgid() != Gid::from_ip(local) {
        return None;
    }
    Some(Shown {
        src: grh.sgid().ip(),
        src_port: 0,
        traffic_class: grh.traffic_class(),
        hop_limit: grh.hop_limit,
        ident: 0,
        dont_fragment: true,
        payload: rest.get(..grh.pay_len.get().into())?,
        checksum_wrong: false,
    })
}

fn parse_ipv4(local: IpAddr, trusted: bool, mut rest: &[u8]) -> Option<Shown<'_>> {
    let ip: &Ipv4Header = take(&mut rest)?;
    let plain = ip.version() == 4 && ip.header_bytes() == Ipv4Header::BYTES && !ip.is_fragment();
    if !plain || ip.protocol != UdpHeader::PROTOCOL || IpAddr::V4(ip.dst()) != local {
        return None;
    }
    let bytes = usize::from(ip.total_len.get()).checked_sub(Ipv4Header::BYTES)?;
    let addresses = || sum(&ip.src().octets()) + sum(&ip.dst().octets());
    let (src_port, payload, checksum_wrong) = parse_udp(trusted, addresses, rest.get(..bytes)?)?;
    Some(Shown {
        src: IpAddr::V4(ip.src()),
        src_port,
        traffic_class: ip.tos,
        hop_limit: ip.ttl,
        ident: ip.ident.get(),
        dont_fragment: ip.flags_offset.get() & Ipv4Header::DONT_FRAGMENT != 0,
        payload,
        checksum_wrong,
    })
}

fn parse_ipv6(local: IpAddr, trusted: bool, mut rest: &[u8]) -> Option<Shown<'_>> {
    let ip: &Ipv6Header = take(&mut rest)?;
    if ip.version() != 6 || ip.next_header != UdpHeader::PROTOCOL || IpAddr::V6(ip.dst()) != local {
        return None;
    }
    let bytes = usize::from(ip.payload_len.get());
    let addresses = || sum(&ip.src().octets()) + sum(&ip.dst().octets());
    let (src_port, payload, checksum_wrong) = parse_udp(trusted, addresses, rest.get(..bytes)?)?;
    Some(Shown {
        src: IpAddr::V6(ip.src()),
        src_port,
        traffic_class: ip.traffic_class(),
        hop_limit: ip.hop_limit,
        ident: 0,
        dont_fragment: true,
        payload,
        checksum_wrong,
    })
}

/// Source port, payload, and whether the checksum is wrong. `addresses` is the sum of both.
fn parse_udp(trusted: bool, addresses: impl Fn() -> u64, datagram: &[u8]) -> Option<(u16, &[u8], bool)> {
    let mut rest = datagram;
    let udp: &UdpHeader = take(&mut rest)?;
    if udp.dst_port.get() != ROCEV2_PORT || usize::from(udp.len.get()) != datagram.len() {
        return None;
    }
    let wrong = !trusted && udp.checksum.get() != 0 && {
        let pseudo = [[0, UdpHeader::PROTOCOL], udp.len.get().to_be_bytes()];
        folded(addresses() + sum(pseudo.as_flattened()) + sum(datagram)) != 0xffff
    };
    Some((udp.src_port.get(), rest, wrong))
}

/// Cuts a header off the front of `rest`.
fn take<'a, T: Pod>(rest: &mut &'a [u8]) -> Option<&'a T> {
    let (head, tail) = rest.split_at_checked(size_of::<T>())?;
    *rest = tail;
    Some(bytemuck::from_bytes(head))
}

/// The sum of 16-bit words in the machine's own order (RFC 1071 §2 (B)), not folded; an odd last byte is
/// followed by a zero.
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    let (fours, rest) = bytes.as_chunks::<4>();
    let mut total: u64 = fours.iter().map(|f| u64::from(u32::from_ne_bytes(*f))).sum();
    let mut last = [0_u8; 4];
    last[..rest.len()].copy_from_slice(rest);
    total += u64::from(u32::from_ne_bytes(last));
    total
}

/// Folds a sum to 16 bits.
#[inline]
fn folded(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}
