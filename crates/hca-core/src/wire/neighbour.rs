//! Address resolution on Ethernet: whole frames of ARP and of neighbour discovery, as questions and answers. The caller
//! decides how to react.
//!
//! ```
//! use hca_core::wire::neighbour::{Message, Station, question};
//!
//! let me = Station { mac: [2, 0, 0, 0, 0, 1], ip: "10.0.0.1".parse().unwrap() };
//! let peer = Station { mac: [2, 0, 0, 0, 0, 2], ip: "10.0.0.2".parse().unwrap() };
//! let asked = Message::parse(&question(me, peer.ip).unwrap()).unwrap();
//! assert_eq!(asked, Message::Question { wanted: peer.ip, by: me });
//! let told = Message::parse(&asked.answer(peer.mac).unwrap()).unwrap();
//! assert!(matches!(told, Message::Statement { of, solicited: true, .. } if of == peer));
//! ```

use core::net::{IpAddr, Ipv6Addr};

use bytemuck::{Pod, bytes_of};

use super::{ArpPacket, Be16, EthernetHeader, Ipv6Header, LinkAddressOption, NdpMessage, ether_type};

/// The address of an Ethernet interface.
pub type Mac = [u8; 6];

/// The MAC of all interfaces.
pub const BROADCAST: Mac = [0xff; 6];
/// The group of all IPv6 nodes: its MAC, and its address.
pub const ALL_NODES: (Mac, Ipv6Addr) = ([0x33, 0x33, 0, 0, 0, 1], Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));

/// An interface with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// The MAC of the interface.
    pub mac: Mac,
    /// The address.
    pub ip: IpAddr,
}

/// A message of ARP or neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A request for the MAC of an address.
    Question {
        /// The address.
        wanted: IpAddr,
        /// The asking station. An unspecified address: a probe by a host that wants the address (duplicate address
        /// detection).
        by: Station,
    },
    /// A statement that a station has an address.
    Statement {
        /// The station.
        of: Station,
        /// Whether the statement replaces earlier knowledge.
        replaces: bool,
        /// Whether the statement answers a request.
        solicited: bool,
    },
}

/// Whether a MAC is of one interface.
pub fn is_unicast(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

/// The solicited-node group of an IPv6 address (RFC 4291), and the group's MAC (RFC 2464).
pub fn solicited_node(ip: Ipv6Addr) -> (Mac, Ipv6Addr) {
    let [.., a, b, c] = ip.octets();
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    ([0x33, 0x33, 0xff, a, b, c], group)
}

/// The frame that asks for the MAC of an address. `None`: the two addresses are not of one family.
pub fn question(by: Station, wanted: IpAddr) -> Option<Vec<u8>> {
    Some(match (by.ip, wanted) {
        (IpAddr::V4(own), IpAddr::V4(wanted)) => {
            arp(BROADCAST, by.mac, &ArpPacket::new(ArpPacket::REQUEST, (by.mac, own), ([0; 6], wanted)))
        }
        (IpAddr::V6(own), IpAddr::V6(wanted)) => {
            let message = NdpMessage::new(NdpMessage::SOLICITATION, 0, wanted);
            let option = LinkAddressOption::new(LinkAddressOption::SOURCE, by.mac);
            ndp(solicited_node(wanted), (by.mac, own), message, option)
        }
        _ => return None,
    })
}

/// The frame by which a station tells all others that it has its address.
pub fn announcement(of: Station) -> Vec<u8> {
    match of.ip {
        IpAddr::V4(ip) => {
            arp(BROADCAST, of.mac, &ArpPacket::new(ArpPacket::REQUEST, (of.mac, ip), ([0; 6], ip)))
        }
        IpAddr::V6(ip) => advertisement(of.mac, ip, ALL_NODES, NdpMessage::OVERRIDE),
    }
}

impl Message {
    /// Parses a frame; `None` if it is another frame, or one to ignore.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let (ethernet, rest) = split::<EthernetHeader>(frame)?;
        match ethernet.ether_type.get() {
            ether_type::ARP => Self::of_arp(split(rest)?.0),
            ether_type::IPV6 => Self::of_ipv6(&ethernet, rest),
            _ => None,
        }
    }

    fn of_arp(arp: ArpPacket) -> Option<Self> {
        let mac = arp.sender_mac;
        if !arp.is_known() || !is_unicast(mac) {
            return None;
        }
        let (sender, target) = (arp.sender_ip(), arp.target_ip());
        let by = Station { mac, ip: sender.into() };
        let reply = arp.operation.get() == ArpPacket::REPLY;
        if reply || sender == target {
            return usable(sender.into()).then_some(Self::Statement {
                of: by,
                replaces: true,
                solicited: reply,
            });
        }
        Some(Self::Question { wanted: target.into(), by })
    }

    fn of_ipv6(ethernet: &EthernetHeader, rest: &[u8]) -> Option<Self> {
        let (ip, rest) = split::<Ipv6Header>(rest)?;
        let message = rest.get(..usize::from(ip.payload_len.get()))?;
        let (ndp, options) = split::<NdpMessage>(message)?;
        let (src, dst, target) = (ip.src(), ip.dst(), ndp.target());
        let whole = ip.version() == 6
            && (ip.next_header, ip.hop_limit, ndp.code) == (NdpMessage::PROTOCOL, NdpMessage::HOP_LIMIT, 0)
            && NdpMessage::checksum_of(src, dst, message) == 0;
        if !whole || target.is_multicast() {
            return None;
        }
        let told = |kind| NdpMessage::link_address(options, kind).ok();
        match ndp.kind {
            NdpMessage::SOLICITATION => {
                let source = told(LinkAddressOption::SOURCE)?;
                let mac = source.unwrap_or(ethernet.src);
                let by = Station { mac, ip: src.into() };
                // Who would like to have the address has none to tell.
                let broken = src.is_unspecified() && (dst != solicited_node(target).1 || source.is_some());
                (is_unicast(mac) && !broken && !src.is_multicast())
                    .then_some(Self::Question { wanted: target.into(), by })
            }
            NdpMessage::ADVERTISEMENT => {
                let mac = told(LinkAddressOption::TARGET)?.filter(|mac| is_unicast(*mac))?;
                let flag = |f| ndp.flags.get() & f != 0;
                let solicited = flag(NdpMessage::SOLICITED);
                let broken = solicited && dst.is_multicast() || !usable(target.into());
                let of = Station { mac, ip: target.into() };
                let replaces = flag(NdpMessage::OVERRIDE);
                (!broken).then_some(Self::Statement { of, replaces, solicited })
            }
            _ => None,
        }
    }

    /// The frame that answers a question with `mac`. `None`: the message is not a question.
    pub fn answer(&self, mac: Mac) -> Option<Vec<u8>> {
        self.answer_with(mac, NdpMessage::OVERRIDE)
    }
    /// The frame that answers a question as a proxy for the address's owner, whose own answer overrides it (RFC 4861,
    /// 7.2.8). `None`: the message is not a question.
    pub fn answer_for_another(&self, mac: Mac) -> Option<Vec<u8>> {
        self.answer_with(mac, 0)
    }
    fn answer_with(&self, mac: Mac, flags: u32) -> Option<Vec<u8>> {
        let &Self::Question { wanted, by } = self else { return None };
        Some(match (wanted, by.ip) {
            (IpAddr::V4(wanted), IpAddr::V4(asker)) => {
                arp(by.mac, mac, &ArpPacket::new(ArpPacket::REPLY, (mac, wanted), (by.mac, asker)))
            }
            (IpAddr::V6(wanted), IpAddr::V6(asker)) if asker.is_unspecified() => {
                advertisement(mac, wanted, ALL_NODES, flags)
            }
            (IpAddr::V6(wanted), IpAddr::V6(asker)) => {
                advertisement(mac, wanted, (by.mac, asker), NdpMessage::SOLICITED | flags)
            }
            _ => return None,
        })
    }
}

/// Whether a station can have an address.
pub fn usable(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || broadcast)
}

fn split<T: Pod>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (head, rest) = bytes.split_at_checked(size_of::<T>())?;
    Some((bytemuck::pod_read_unaligned(head), rest))
}

fn ethernet(dst: Mac, src: Mac, kind: u16) -> Vec<u8> {
    let header = EthernetHeader { dst, src, ether_type: Be16::new(kind) };
    let mut frame = Vec::with_capacity(86);
    frame.extend_from_slice(bytes_of(&header));
    frame
}

fn arp(dst: Mac, src: Mac, packet: &ArpPacket) -> Vec<u8> {
    let mut frame = ethernet(dst, src, ether_type::ARP);
    frame.extend_from_slice(bytes_of(packet));
    frame
}

fn advertisement(mac: Mac, ip: Ipv6Addr, to: (Mac, Ipv6Addr), flags: u32) -> Vec<u8> {
    let option = LinkAddressOption::new(LinkAddressOption::TARGET, mac);
    ndp(to, (mac, ip), NdpMessage::new(NdpMessage::ADVERTISEMENT, flags, ip), option)
}

fn ndp(
    (dst_mac, dst): (Mac, Ipv6Addr),
    (src_mac, src): (Mac, Ipv6Addr),
    message: NdpMessage,
    option: LinkAddressOption,
) -> Vec<u8> {
    let mut body = [bytes_of(&message), bytes_of(&option)].concat();
    let sum = NdpMessage::checksum_of(src, dst, &body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut ip = Ipv6Header::new(src, dst, body.len() as u16, 0, 0, NdpMessage::HOP_LIMIT);
    ip.next_header = NdpMessage::PROTOCOL;
    let mut frame = ethernet(dst_mac, src_mac, ether_type::IPV6);
    frame.extend_from_slice(bytes_of(&ip));
    frame.extend_from_slice(&body);
    frame
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(last: u8, ip: &str) -> Station {
        Station { mac: [2, 0, 0, 0, 0, last], ip: ip.parse().unwrap() }
    }
    fn pairs() -> [(Station, Station); 2] {
        [(at(1, "10.0.0.1"), at(2, "10.0.0.2")), (at(1, "fe80::1"), at(2, "2001:db8::2:3"))]
    }

    #[test]
    fn a_question_is_answered_and_both_are_read_as_written() {
        for (me, peer) in pairs() {
            let asked = question(me, peer.ip).unwrap();
            let read = Message::parse(&asked).unwrap();
            assert_eq!(read, Message::Question { wanted: peer.ip, by: me });
            let told = read.answer(peer.mac).unwrap();
            assert_eq!(told[..6], me.mac, "to who asked");
            let told = Message::parse(&told).unwrap();
            assert_eq!(told, Message::Statement { of: peer, replaces: true, solicited: true });
            assert_eq!(told.answer(me.mac), None);
            let other = Message::parse(&read.answer_for_another(peer.mac).unwrap()).unwrap();
            // ARP knows no answer that gives way.
            let replaces = peer.ip.is_ipv4();
            assert_eq!(other, Message::Statement { of: peer, replaces, solicited: true });
        }
        assert_eq!(question(at(1, "10.0.0.1"), "fe80::2".parse().unwrap()), None);
    }

    #[test]
    fn who_is_asked_in_a_group_is_asked_by_its_mac() {
        let asked = question(at(1, "fe80::1"), "2001:db8::aa:bbcc".parse().unwrap()).unwrap();
        assert_eq!(asked[..6], [0x33, 0x33, 0xff, 0xaa, 0xbb, 0xcc]);
        assert_eq!(asked[38..54], [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xaa, 0xbb, 0xcc]);
        assert_eq!(question(at(1, "10.0.0.1"), "10.0.0.2".parse().unwrap()).unwrap()[..6], BROADCAST);
    }

    #[test]
    fn an_announcement_is_a_statement_to_all() {
        for (me, _) in pairs() {
            let frame = announcement(me);
            assert!(frame[0] & 1 == 1, "to a group");
            let read = Message::parse(&frame).unwrap();
            assert_eq!(read, Message::Statement { of: me, replaces: true, solicited: false });
        }
    }

    #[test]
    fn who_would_like_an_address_is_told_whose_it_is() {
        // ARP probe (RFC 5227), and duplicate address detection (RFC 4862).
        let probe = question(at(1, "0.0.0.0"), "10.0.0.2".parse().unwrap()).unwrap();
        let asked = Message::parse(&probe).unwrap();
        let told = asked.answer([2; 6]).unwrap();
        assert_eq!((&told[..6], &told[38..42]), (&[2, 0, 0, 0, 0, 1][..], &[0; 4][..]));
        let target: Ipv6Addr = "fe80::2".parse().unwrap();
        let message = NdpMessage::new(NdpMessage::SOLICITATION, 0, target);
        let from_nobody = |option| {
            ndp(solicited_node(target), ([2, 0, 0, 0, 0, 1], Ipv6Addr::UNSPECIFIED), message, option)
        };
        let asked = Message::parse(&from_nobody(LinkAddressOption::new(14, [0; 6]))).unwrap();
        assert_eq!(asked, Message::Question { wanted: target.into(), by: at(1, "::") });
        let told = asked.answer([2; 6]).unwrap();
        assert_eq!(told[..6], ALL_NODES.0);
        let of = Station { mac: [2; 6], ip: target.into() };
        let told = Message::parse(&told).unwrap();
        assert_eq!(told, Message::Statement { of, replaces: true, solicited: false });
        // Who has no address has no MAC to tell, either.
        let told = LinkAddressOption::new(LinkAddressOption::SOURCE, [2, 0, 0, 0, 0, 1]);
        assert_eq!(Message::parse(&from_nobody(told)), None);
    }

    #[test]
    fn what_has_passed_a_router_or_is_broken_says_nothing() {
        let (me, peer) = pairs()[1];
        let frame = question(me, peer.ip).unwrap();
        assert!(Message::parse(&frame).is_some());
        // Version, protocol, hop limit, source, destination, kind, code, checksum, target, option.
        for byte in [14, 20, 21, 22, 53, 54, 55, 56, 77, 85] {
            let mut broken = frame.clone();
            broken[byte] ^= 0x10;
            assert_eq!(Message::parse(&broken), None, "byte {byte}");
        }
        for len in 0..frame.len() {
            assert_eq!(Message::parse(&frame[..len]), None, "{len} bytes");
        }
        let mut group = announcement(at(1, "10.0.0.1"));
        group[22] |= 1;
        assert_eq!(Message::parse(&group), None, "the MAC of a group");
        for nobody in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "127.0.0.1", "ff02::1", "::", "::1"] {
            assert_eq!(Message::parse(&announcement(at(1, nobody))), None, "{nobody}");
        }
    }

    proptest! {
        #![proptest_config(if cfg!(miri) { ProptestConfig::with_cases(6) } else { ProptestConfig::default() })]

        #[test]
        fn no_bytes_make_it_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..120),
            kind in prop_oneof![Just(ether_type::ARP), Just(ether_type::IPV6)],
        ) {
            let mut frame = bytes;
            if frame.len() > 14 {
                frame[12..14].copy_from_slice(&kind.to_be_bytes());
            }
            if let Some(m) = Message::parse(&frame) {
                m.answer([2; 6]);
            }
        }
    }
}
