//! Multicast listener discovery, by which an IPv6 host announces the groups that it receives: version 2 (RFC 3810) and
//! version 1 (RFC 2710), as whole frames. A snooping switch forwards a group's frames only to ports with announced
//! listeners, so neighbours do not find a host that announces nothing.
//!
//! ```
//! use hca_core::wire::listener::{Query, Version, report};
//! use hca_core::wire::neighbour::{Station, solicited_node};
//!
//! let me = Station { mac: [2, 0, 0, 0, 0, 1], ip: "fe80::1".parse().unwrap() };
//! let (_, group) = solicited_node("fe80::1".parse().unwrap());
//! let frame = report(me, group, Version::New { change: true }).unwrap();
//! assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 0x16], "to all routers that hear reports");
//! assert_eq!(Query::parse(&frame), None);
//! ```

use core::net::{IpAddr, Ipv6Addr};

use bytemuck::{Pod, Zeroable, bytes_of};

use super::neighbour::Station;
use super::{Be16, EthernetHeader, Ipv6Header, NdpMessage, ether_type};

/// The protocol of the options that routers on the way look at, in front of all others.
const HOP_BY_HOP: u8 = 0;
/// Of a header of such options: what follows it, and its bytes in units of 8, less one; then the option that has
/// routers look at the message (RFC 2711), and two bytes of padding.
const ROUTER_ALERT: [u8; 8] = [NdpMessage::PROTOCOL, 0, 5, 2, 0, 0, 1, 0];
/// Where reports of version 2 go: all routers that understand them.
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// ICMPv6 types.
const QUERY: u8 = 130;
const OLD_REPORT: u8 = 131;
const REPORT: u8 = 143;
/// A record type: the host receives the whole group.
const IS_EXCLUDE: u8 = 2;
const TO_EXCLUDE: u8 = 4;
/// Hops that these messages may make, and must have come by.
const HOPS: u8 = 1;
/// Bytes of a query of version 1; those of version 2 are longer.
const OLD_QUERY: usize = size_of::<Old>();

/// A query, or a report of version 1: ICMPv6, 24 bytes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Old {
    kind: u8,
    code: u8,
    checksum: Be16,
    /// How long an answer may take, and 0.
    delay: [u8; 4],
    group: [u8; 16],
}
const _: () = assert!(size_of::<Old>() == 24 && align_of::<Old>() == 1);

/// A report of version 2 about one group: ICMPv6, 28 bytes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct New {
    kind: u8,
    code: u8,
    checksum: Be16,
    reserved: [u8; 2],
    groups: Be16,
    /// Of the group: what is said, bytes behind it in units of 4, sources that are named.
    record: u8,
    more: u8,
    sources: Be16,
    group: [u8; 16],
}
const _: () = assert!(size_of::<New>() == 28 && align_of::<New>() == 1);

/// The version of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version 1, for a network whose querier understands no other version.
    Old,
    /// Version 2.
    New {
        /// An unsolicited report: the host has joined the group.
        change: bool,
    },
}

/// A query for the groups that hosts receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The group that the query asks about; `None`: all groups.
    pub group: Option<Ipv6Addr>,
    /// The protocol version of the answer.
    pub version: Version,
}

impl Query {
    /// Parses a frame; `None` if it is another frame, or one to ignore.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let (ethernet, rest) = frame.split_at_checked(size_of::<EthernetHeader>())?;
        let ethernet: EthernetHeader = bytemuck::pod_read_unaligned(ethernet);
        let (ip, rest) = rest.split_at_checked(Ipv6Header::BYTES)?;
        let ip: Ipv6Header = bytemuck::pod_read_unaligned(ip);
        let packet = rest.get(..usize::from(ip.payload_len.get()))?;
        let on_link = ip.version() == 6 && ip.hop_limit == HOPS && ip.src().is_unicast_link_local();
        if ethernet.ether_type.get() != ether_type::IPV6 || ip.next_header != HOP_BY_HOP || !on_link {
            return None;
        }
        let &[next, units, ..] = packet else { return None };
        let message = packet.get((usize::from(units) + 1) * 8..)?;
        let head = message.get(..OLD_QUERY)?;
        let query: Old = bytemuck::pod_read_unaligned(head);
        let whole = NdpMessage::checksum_of(ip.src(), ip.dst(), message) == 0;
        if next != NdpMessage::PROTOCOL || (query.kind, query.code) != (QUERY, 0) || !whole {
            return None;
        }
        let group = Ipv6Addr::from(query.group);
        let version = if message.len() == OLD_QUERY { Version::Old } else { Version::New { change: false } };
        Some(Self { group: (!group.is_unspecified()).then_some(group), version })
    }
}

/// The frame by which a station at a link-local address reports that it receives a group. `None`: the station's address
/// is not link-local.
pub fn report(by: Station, group: Ipv6Addr, version: Version) -> Option<Vec<u8>> {
    let IpAddr::V6(src) = by.ip else { return None };
    if !src.is_unicast_link_local() {
        return None;
    }
    let (to, mut message) = match version {
        Version::Old => {
            let message = Old {
                kind: OLD_REPORT,
                code: 0,
                checksum: Be16::new(0),
                delay: [0; 4],
                group: group.octets(),
            };
            (group, bytes_of(&message).to_vec())
        }
        Version::New { change } => {
            let message = New {
                kind: REPORT,
                code: 0,
                checksum: Be16::new(0),
                reserved: [0; 2],
                groups: Be16::new(1),
                record: if change { TO_EXCLUDE } else { IS_EXCLUDE },
                more: 0,
                sources: Be16::new(0),
                group: group.octets(),
            };
            (ROUTERS, bytes_of(&message).to_vec())
        }
    };
    let sum = NdpMessage::checksum_of(src, to, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut ip = Ipv6Header::new(src, to, (ROUTER_ALERT.len() + message.len()) as u16, 0, 0, HOPS);
    ip.next_header = HOP_BY_HOP;
    let [.., a, b, c, d] = to.octets();
    let ethernet = EthernetHeader {
        dst: [0x33, 0x33, a, b, c, d],
        src: by.mac,
        ether_type: Be16::new(ether_type::IPV6),
    };
    Some([bytes_of(&ethernet), bytes_of(&ip), &ROUTER_ALERT, &message].concat())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn me() -> Station {
        Station { mac: [2, 0, 0, 0, 0, 1], ip: "fe80::1".parse().unwrap() }
    }
    fn group() -> Ipv6Addr {
        "ff02::1:ff00:1".parse().unwrap()
    }
    /// A query from fe80::9, with so many bytes behind those of version 1.
    fn query(group: &str, more: usize) -> Vec<u8> {
        let (src, dst): (Ipv6Addr, Ipv6Addr) = ("fe80::9".parse().unwrap(), "ff02::1".parse().unwrap());
        let mut message = vec![QUERY, 0, 0, 0, 0x27, 0x10, 0, 0];
        message.extend(group.parse::<Ipv6Addr>().unwrap().octets());
        message.extend(vec![0; more]);
        let sum = NdpMessage::checksum_of(src, dst, &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut frame = report(Station { ip: src.into(), ..me() }, dst, Version::Old).unwrap();
        frame.truncate(14 + 40 + 8);
        frame[18..20].copy_from_slice(&(8 + message.len() as u16).to_be_bytes());
        frame.extend(message);
        frame
    }

    #[test]
    fn a_report_has_its_bytes_where_the_rfcs_have_them() {
        let frame = report(me(), group(), Version::New { change: true }).unwrap();
        assert_eq!(frame.len(), 14 + 40 + 8 + 28);
        assert_eq!(frame[..14], [0x33, 0x33, 0, 0, 0, 0x16, 2, 0, 0, 0, 0, 1, 0x86, 0xdd]);
        // Length 36, hop by hop, one hop; from fe80::1 to ff02::16.
        assert_eq!((&frame[18..22], frame[37], frame[38], frame[53]), (&[0, 36, 0, 1][..], 1, 0xff, 0x16));
        assert_eq!(frame[54..62], [58, 0, 5, 2, 0, 0, 1, 0]);
        assert_eq!((frame[62], &frame[66..74]), (143, &[0, 0, 0, 1, 4, 0, 0, 0][..]));
        assert_eq!(frame[74..], group().octets());
        let dst = ROUTERS;
        assert_eq!(NdpMessage::checksum_of("fe80::1".parse().unwrap(), dst, &frame[62..]), 0);
        let asked = report(me(), group(), Version::New { change: false }).unwrap();
        assert_eq!(asked[70], 2);
        let old = report(me(), group(), Version::Old).unwrap();
        assert_eq!((&old[..6], old.len(), old[62]), (&[0x33, 0x33, 0xff, 0, 0, 1][..], 86, 131));
        assert_eq!((&old[38..54], &old[70..]), (&group().octets()[..], &group().octets()[..]));
    }

    /// Linux's bridge entered the group for a port that sent these bytes.
    #[test]
    fn a_report_is_one_that_a_bridge_of_linux_takes() {
        let frame = report(me(), "ff02::1:ff00:55".parse().unwrap(), Version::New { change: true }).unwrap();
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "33330000001602000000000186dd6000000000240001fe800000000000000000000000000001ff0200000000000000000000\
             000000163a000502000001008f0070b30000000104000000ff0200000000000000000001ff000055"
        );
    }

    #[test]
    fn reports_come_from_link_local_addresses_alone() {
        for ip in ["2001:db8::1", "10.0.0.1", "::"] {
            let by = Station { ip: ip.parse().unwrap(), ..me() };
            assert_eq!(report(by, group(), Version::Old), None, "{ip}");
        }
    }

    #[test]
    fn a_query_is_read_in_its_version_and_asks_about_one_group_or_all() {
        let of = |group, more| Query::parse(&query(group, more)).unwrap();
        let new = Version::New { change: false };
        assert_eq!(of("::", 0), Query { group: None, version: Version::Old });
        assert_eq!(of("::", 4), Query { group: None, version: new });
        assert_eq!(of("ff02::1:ff00:1", 20), Query { group: Some(group()), version: new });
    }

    #[test]
    fn what_is_broken_or_has_passed_a_router_asks_nothing() {
        let frame = query("::", 4);
        // Type, version, length, protocol, hops, source, options' protocol and length, ICMPv6 type, code, checksum.
        for byte in [12, 14, 19, 20, 21, 22, 54, 55, 62, 63, 64] {
            let mut broken = frame.clone();
            broken[byte] ^= 0x30;
            assert_eq!(Query::parse(&broken), None, "byte {byte}");
        }
        for len in 0..frame.len() {
            assert_eq!(Query::parse(&frame[..len]), None, "{len} bytes");
        }
    }

    proptest! {
        #![proptest_config(if cfg!(miri) { ProptestConfig::with_cases(6) } else { ProptestConfig::default() })]

        #[test]
        fn no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..160), units in 0..20_u8) {
            if bytes.len() > 62 {
                bytes[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
                let behind = (bytes.len() - 54) as u8;
                bytes[18..24].copy_from_slice(&[0, behind, 0, 1, 0xfe, 0x80]);
                (bytes[54], bytes[55]) = (58, units);
            }
            Query::parse(&bytes);
        }
    }
}
