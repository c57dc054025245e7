//! Frames, built from a template a path and taken apart without a copy.

use std::net::IpAddr;

use bytemuck::Pod;
use hca_core::Gid;
use hca_core::wire::{
    Be16, EthernetHeader, Grh, Ipv4Header, Ipv6Header, ROCEV2_PORT, UdpHeader, VlanTag, ether_type,
};

use super::RoceVersion;
use super::sys::VNET_BYTES;
use crate::PacketHeader;
use crate::paths::PathKey;

/// A hardware address.
pub(crate) type Mac = [u8; 6];

/// Headers in front of a BTH at most: Ethernet, a VLAN tag, IPv6, UDP.
pub(super) const MAX_HEAD_BYTES: usize = 14 + 4 + 40 + 8;
/// In a `virtio_net_hdr`: the checksum is the kernel's to put on.
const NEEDS_CSUM: u8 = 1;
/// In a `virtio_net_hdr`: the kernel, or a peer on this machine, cuts the payload into UDP packets.
pub(super) const GSO_UDP_L4: u8 = 5;

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
        self.write_but_checksum(to, ident, payload.len(), out);
        if self.network == Network::Ipv6 {
            let head = &mut out[self.network_at..];
            // Once in the pseudo header, once in UDP's own.
            let lengths = 2 * u64::from(u16::from_ne_bytes([head[44], head[45]]));
            let checksum = match !folded(self.sum + lengths + sum(payload)) {
                0 => 0xffff,
                other => other,
            };
            head[46..48].copy_from_slice(&checksum.to_ne_bytes());
        }
        self.len
    }

    /// Whether frames of several packets can be cut on their way: UDP, and no tag that the cutter had to repeat.
    pub(super) fn may_leave_uncut(&self) -> bool {
        self.network != Network::Grh && self.network_at == EthernetHeader::BYTES
    }

    /// Writes the headers in front of `bytes` bytes of packets, which are cut into `segment` bytes each on
    /// their way or by who receives them; how long they are, and the `virtio_net_hdr` that says so. UDP's checksum
    /// is left to who cuts.
    #[inline]
    pub(super) fn write_uncut(
        &self,
        to: &Mac,
        ident: u16,
        (bytes, segment): (usize, usize),
        out: &mut [u8; MAX_HEAD_BYTES],
    ) -> (usize, [u8; VNET_BYTES]) {
        self.write_but_checksum(to, ident, bytes, out);
        let head = &mut out[self.network_at..];
        let (addresses, udp_at) = match self.network {
            Network::Ipv6 => (8..40, Ipv6Header::BYTES),
            _ => (12..20, Ipv4Header::BYTES),
        };
        let len = u16::from_ne_bytes([head[udp_at + 4], head[udp_at + 5]]);
        let protocol = u16::from_ne_bytes([0, UdpHeader::PROTOCOL]);
        let pseudo = sum(&head[addresses]) + u64::from(len) + u64::from(protocol);
        head[udp_at + 6..udp_at + 8].copy_from_slice(&folded(pseudo).to_ne_bytes());
        let mut vnet = [0; VNET_BYTES];
        (vnet[0], vnet[1]) = (NEEDS_CSUM, GSO_UDP_L4);
        let numbers =
            [self.len, segment, self.network_at + udp_at, std::mem::offset_of!(UdpHeader, checksum)];
        for (field, number) in vnet[2..].as_chunks_mut::<2>().0.iter_mut().zip(numbers) {
            *field = (number as u16).to_ne_bytes();
        }
        (self.len, vnet)
    }

    /// All headers but UDP's checksum, which is 0.
    #[inline]
    fn write_but_checksum(&self, to: &Mac, ident: u16, bytes: usize, out: &mut [u8; MAX_HEAD_BYTES]) {
        *out = self.bytes;
        out[..6].copy_from_slice(to);
        let head = &mut out[self.network_at..];
        let udp = ((UdpHeader::BYTES + bytes) as u16).to_be_bytes();
        match self.network {
            Network::Ipv4 => {
                let total = ((Ipv4Header::BYTES + UdpHeader::BYTES + bytes) as u16).to_be_bytes();
                let ident = ident.to_be_bytes();
                head[2..4].copy_from_slice(&total);
                head[4..6].copy_from_slice(&ident);
                let more = u64::from(u16::from_ne_bytes(total)) + u64::from(u16::from_ne_bytes(ident));
                head[10..12].copy_from_slice(&(!folded(self.sum + more)).to_ne_bytes());
                head[24..26].copy_from_slice(&udp);
            }
            Network::Ipv6 => {
                head[4..6].copy_from_slice(&udp);
                head[44..46].copy_from_slice(&udp);
            }
            Network::Grh => head[4..6].copy_from_slice(&(bytes as u16).to_be_bytes()),
        }
    }
}

/// A frame, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shown<'a> {
    /// To this side, or to a multicast group.
    pub(super) header: PacketHeader,
    pub(super) ident: u16,
    pub(super) dont_fragment: bool,
    /// BTH to ICRC; of a super-frame, all its packets.
    pub(super) payload: &'a [u8],
    /// UDP carries a checksum, and it is wrong as it stands.
    pub(super) checksum_wrong: bool,
}

/// Takes a frame apart that is for `local` or, on RoCEv2, for a multicast group; `None` for a frame of another receiver
/// and for one that is no whole RoCE frame. The kernel has taken the VLAN tag off. IPv4's own checksum is not looked
/// at: the ICRC covers the fields of the header that matter. UDP's checksum is, unless `trusted`: the checksum was found
/// right already, or is yet to be put on.
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
        header: PacketHeader {
            src: grh.sgid().ip(),
            dst: local,
            src_port: 0,
            traffic_class: grh.traffic_class(),
            hop_limit: grh.hop_limit,
        },
        ident: 0,
        dont_fragment: true,
        payload: rest.get(..grh.pay_len.get().into())?,
        checksum_wrong: false,
    })
}

/// Whether a packet may be for this side: groups are told apart by who has joined them.
#[inline]
fn is_for(dst: IpAddr, local: IpAddr) -> bool {
    dst == local || dst.is_multicast()
}

fn parse_ipv4(local: IpAddr, trusted: bool, mut rest: &[u8]) -> Option<Shown<'_>> {
    let ip: &Ipv4Header = take(&mut rest)?;
    let plain = ip.version() == 4 && ip.header_bytes() == Ipv4Header::BYTES && !ip.is_fragment();
    if !plain || ip.protocol != UdpHeader::PROTOCOL || !is_for(ip.dst().into(), local) {
        return None;
    }
    let bytes = usize::from(ip.total_len.get()).checked_sub(Ipv4Header::BYTES)?;
    let addresses = || sum(&ip.src().octets()) + sum(&ip.dst().octets());
    let (src_port, payload, checksum_wrong) = parse_udp(trusted, addresses, rest.get(..bytes)?)?;
    let (src, dst) = (ip.src().into(), ip.dst().into());
    Some(Shown {
        header: PacketHeader { src, dst, src_port, traffic_class: ip.tos, hop_limit: ip.ttl },
        ident: ip.ident.get(),
        dont_fragment: ip.flags_offset.get() & Ipv4Header::DONT_FRAGMENT != 0,
        payload,
        checksum_wrong,
    })
}

fn parse_ipv6(local: IpAddr, trusted: bool, mut rest: &[u8]) -> Option<Shown<'_>> {
    let ip: &Ipv6Header = take(&mut rest)?;
    if ip.version() != 6 || ip.next_header != UdpHeader::PROTOCOL || !is_for(ip.dst().into(), local) {
        return None;
    }
    let bytes = usize::from(ip.payload_len.get());
    let addresses = || sum(&ip.src().octets()) + sum(&ip.dst().octets());
    let (src_port, payload, checksum_wrong) = parse_udp(trusted, addresses, rest.get(..bytes)?)?;
    let (src, dst, traffic_class) = (ip.src().into(), ip.dst().into(), ip.traffic_class());
    Some(Shown {
        header: PacketHeader { src, dst, src_port, traffic_class, hop_limit: ip.hop_limit },
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

#[cfg(all(test, not(loom)))]
mod tests {
    use hca_core::wire::frame::Frame;
    use proptest::prelude::*;

    use super::*;

    const PCAP: &[u8] = include_bytes!("../../../hca-core/tests/data/rocev2_packets.pcap");

    /// The golden frames.
    fn golden() -> Vec<&'static [u8]> {
        let (mut rest, mut frames) = (&PCAP[24..], Vec::new());
        while let Some((head, tail)) = rest.split_first_chunk::<16>() {
            let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
            frames.push(&tail[..len]);
            rest = &tail[len..];
        }
        assert!(frames.len() >= 100, "{} frames", frames.len());
        frames
    }

    fn template_of(frame: &Frame<'_>) -> (Template, u16) {
        let head = frame.head();
        let (local, peer) = match head.flow {
            hca_core::wire::icrc::IpFlow::V4 { src, dst, .. } => (IpAddr::V4(src), IpAddr::V4(dst)),
            hca_core::wire::icrc::IpFlow::V6 { src, dst, .. } => (IpAddr::V6(src), IpAddr::V6(dst)),
        };
        let source =
            Source { version: RoceVersion::V2, local, mac: head.src_mac, vlan: head.vlan.map(|v| v.1) };
        let key = PathKey {
            peer,
            traffic_class: head.traffic_class,
            hop_limit: head.hop_limit,
            flow_label: head.flow_label,
            lane: 0,
            process: crate::paths::Process::Unknown,
        };
        (Template::new(&source, &key, frame.udp.src_port.get()), head.ident)
    }

    #[test]
    fn golden_packets_are_taken_apart_and_built_again_bit_for_bit() {
        for bytes in golden() {
            let frame = Frame::parse(bytes).unwrap();
            let (template, ident) = template_of(&frame);
            let local = match frame.network {
                hca_core::wire::frame::Network::V4(h) => IpAddr::V4(h.dst()),
                hca_core::wire::frame::Network::V6(h) => IpAddr::V6(h.dst()),
            };
            let shown = parse(RoceVersion::V2, local, false, bytes).expect("a whole packet");
            assert!(!shown.checksum_wrong);
            assert_eq!((shown.header.src_port, shown.ident), (frame.udp.src_port.get(), ident));
            assert_eq!(shown.payload.len(), frame.packet.bytes().len() + 4);
            if !shown.dont_fragment {
                // Not as this side would send it.
                continue;
            }
            let mut head = [0; MAX_HEAD_BYTES];
            let len = template.write(&frame.ethernet.dst, ident, shown.payload, &mut head);
            let mut built = [&head[..len], shown.payload].concat();
            let mut golden = bytes.to_vec();
            if local.is_ipv6() {
                // A flow label is made up where the golden packet has none, and the checksum is always put on.
                for frame in [&mut built, &mut golden] {
                    frame[15..18].fill(0);
                    frame[60..62].fill(0);
                }
            }
            assert_eq!(built, golden);
        }
    }

    #[test]
    fn a_frame_for_somebody_else_or_of_the_other_version_is_none() {
        let frame = golden()[0];
        let local = match parse_any(frame) {
            Some(local) => local,
            None => panic!("the first golden packet is one"),
        };
        assert!(parse(RoceVersion::V2, local, true, frame).is_some());
        assert!(parse(RoceVersion::V1, local, true, frame).is_none());
        assert!(parse(RoceVersion::V2, "10.9.9.9".parse().unwrap(), true, frame).is_none());
        assert!(parse(RoceVersion::V2, "::1".parse().unwrap(), true, frame).is_none());
    }

    fn parse_any(bytes: &[u8]) -> Option<IpAddr> {
        match Frame::parse(bytes).ok()?.network {
            hca_core::wire::frame::Network::V4(h) => Some(IpAddr::V4(h.dst())),
            hca_core::wire::frame::Network::V6(h) => Some(IpAddr::V6(h.dst())),
        }
    }

    fn plain_sum(bytes: &[u8]) -> u16 {
        let words = bytes.chunks(2).map(|c| u32::from(u16::from_be_bytes([c[0], *c.get(1).unwrap_or(&0)])));
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    proptest! {
        #[test]
        fn garbage_is_taken_apart_without_a_panic(
            v6: bool, v1: bool, trusted: bool, kind in 0_usize..4, bytes in proptest::collection::vec(any::<u8>(), 0..120),
        ) {
            let version = if v1 { RoceVersion::V1 } else { RoceVersion::V2 };
            let local: IpAddr = if v6 { "::".parse().unwrap() } else { "0.0.0.0".parse().unwrap() };
            let mut bytes = bytes;
            if bytes.len() > 14 {
                let kinds = [0x0800_u16, 0x86dd, 0x8915, 0x8100];
                bytes[12..14].copy_from_slice(&kinds[kind].to_be_bytes());
            }
            parse(version, local, trusted, &bytes);
        }

        #[test]
        fn a_golden_frame_with_bytes_changed_or_cut_off_is_taken_apart_without_a_panic(
            which in 0_usize..100, cut in 0_usize..400, at in 0_usize..80, value: u8,
        ) {
            let mut bytes = golden()[which].to_vec();
            let local = parse_any(&bytes).unwrap();
            bytes.truncate(bytes.len().saturating_sub(cut));
            if let Some(b) = bytes.get_mut(at) {
                *b = value;
            }
            parse(RoceVersion::V2, local, false, &bytes);
        }

        #[test]
        fn the_sum_is_that_of_the_rfc(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let ours = folded(sum(&bytes)).to_ne_bytes();
            let (ours, plain) = (u16::from_be_bytes(ours), plain_sum(&bytes));
            // Zero has two forms in ones' complement.
            prop_assert!(ours == plain || ours % 0xffff == plain % 0xffff);
        }

        #[test]
        fn what_is_built_is_taken_apart_again(
            src: u128, dst: u128, v6: bool, v1: bool, tagged: bool, port in 0xc000_u16..,
            tc: u8, hops in 1_u8.., ident: u16, len in 4_usize..1100, fill: u8,
        ) {
            let ip = |bits: u128| -> IpAddr {
                if v6 { IpAddr::V6((bits | 1 << 127).into()) } else { IpAddr::V4((bits as u32).into()) }
            };
            let version = if v1 { RoceVersion::V1 } else { RoceVersion::V2 };
            let source = Source { version, local: ip(src), mac: [2; 6], vlan: tagged.then_some(77) };
            let key = PathKey { peer: ip(dst), traffic_class: tc, hop_limit: hops, flow_label: 5, lane: 0, process: crate::paths::Process::Unknown };
            let payload = vec![fill; len * 4];
            let mut head = [0; MAX_HEAD_BYTES];
            let n = Template::new(&source, &key, port).write(&[4; 6], ident, &payload, &mut head);
            let mut frame = [&head[..n], &payload].concat();
            if tagged {
                prop_assert_eq!(&frame[12..16], &[0x81, 0, 0, 77]);
                frame.drain(12..16);
            }
            // Ethernet pads short frames.
            frame.extend([0; 9]);
            let shown = parse(version, ip(dst), false, &frame).expect("it is whole");
            let header = shown.header;
            prop_assert_eq!((header.src, header.traffic_class, header.hop_limit), (ip(src), tc, hops));
            prop_assert_eq!((shown.payload, shown.checksum_wrong), (&payload[..], false));
            if !v1 {
                prop_assert_eq!(header.src_port, port);
                prop_assert!(v6 || (shown.ident == ident && shown.dont_fragment));
            }
            if v6 && !v1 {
                let at = frame.len() - 10;
                frame[at] ^= 1;
                prop_assert!(parse(version, ip(dst), false, &frame).unwrap().checksum_wrong);
                prop_assert!(!parse(version, ip(dst), true, &frame).unwrap().checksum_wrong);
            }
        }
    }
}
