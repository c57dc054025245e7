//! The classic BPF program of a receiving packet socket: only RoCE frames for one address pass, and at a shared address
//! only those of one part of the numbers of queue pairs.

use std::net::IpAddr;

use hca_core::Gid;
use hca_core::wire::{EthernetHeader, Grh, Ipv4Header, Ipv6Header, ROCEV2_PORT, UdpHeader, ether_type};
use libc::sock_filter;
use socket2::SockFilter;

use super::RoceVersion;
use crate::share::program::{self, AND, IF_EQUAL, LOAD_BYTE, LOAD_HALF, LOAD_WORD, Part, RETURN};

/// A jump's target that stands for "drop"; put right when the program is finished.
const DROP: u8 = 0xff;
/// The frame's own metadata begins here.
const METADATA: u32 = 0xffff_f000;
/// To us, to others, to many, or from us.
const PACKET_TYPE: u32 = METADATA + 4;
/// The VLAN tag that was taken off; 0 without one.
const VLAN_TAG: u32 = METADATA + 44;
const VID: u32 = 0x0fff;
/// To this interface's own MAC address, and to that of a group.
const PACKET_HOST: u32 = 0;
const PACKET_MULTICAST: u32 = 2;
/// "More fragments" and the offset.
const FRAGMENT: u32 = 0x3fff;
const ETHERNET: u32 = EthernetHeader::BYTES as u32;

const LOAD_HALF_AT_X: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
const X_IS_IPV4_HEADER: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
const X_IS: u16 = (libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM) as u16;
const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;

struct Program(Vec<sock_filter>);

impl Program {
    fn op(&mut self, code: u16, k: u32) {
        self.0.push(sock_filter { code, jt: 0, jf: 0, k });
    }
    /// Drops what does not have this value there.
    fn want(&mut self, load: u16, at: u32, value: u32) {
        self.op(load, at);
        self.want_loaded(value);
    }
    fn want_loaded(&mut self, value: u32) {
        self.0.push(sock_filter { code: IF_EQUAL, jt: 0, jf: DROP, k: value });
    }
    /// Drops what has none of both values there.
    fn want_either(&mut self, load: u16, at: u32, values: [u32; 2]) {
        self.op(load, at);
        self.0.push(sock_filter { code: IF_EQUAL, jt: 1, jf: 0, k: values[0] });
        self.want_loaded(values[1]);
    }
    /// Passes over the next `ops` instructions if what is loaded has this value.
    fn pass_over_if(&mut self, value: u32, ops: u8) {
        self.0.push(sock_filter { code: IF_EQUAL, jt: ops, jf: 0, k: value });
    }
    fn want_words(&mut self, at: u32, bytes: &[u8]) {
        for (i, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
            self.want(LOAD_WORD, at + 4 * i as u32, u32::from_be_bytes(*word));
        }
    }
    /// Ends the program: what was not dropped passes, or, at a shared address, goes on to that filter, which finds the
    /// BTH at this offset from X.
    fn finish(mut self, shared: Option<(u16, Part)>, bth: u32) -> Vec<sock_filter> {
        match shared {
            None => self.op(RETURN, u32::MAX),
            Some((slots, part)) => self.0.extend(program::filter(slots, part, bth)),
        }
        self.op(RETURN, 0);
        let last = self.0.len() - 1;
        for (i, op) in self.0.iter_mut().enumerate() {
            let to_drop = (last - i).saturating_sub(1) as u8;
            for target in [&mut op.jt, &mut op.jf] {
                if *target == DROP {
                    *target = to_drop;
                }
            }
        }
        self.0
    }
}

/// Passes RoCE packets of this version to `local` in this VLAN (0: untagged, or tagged with a priority only), and, if
/// asked for, RoCEv2 packets to all multicast groups; fragments and what leaves this machine do not pass. If the address
/// is shared among so many processes, only one part of the packets does.
pub(super) fn program(
    version: RoceVersion,
    local: IpAddr,
    vlan: u16,
    shared: Option<(u16, Part)>,
    groups: bool,
) -> Vec<sock_filter> {
    let mut p = Program(Vec::new());
    match groups {
        true => p.want_either(LOAD_BYTE, PACKET_TYPE, [PACKET_HOST, PACKET_MULTICAST]),
        false => p.want(LOAD_BYTE, PACKET_TYPE, PACKET_HOST),
    }
    p.op(LOAD_HALF, VLAN_TAG);
    p.op(AND, VID);
    p.want_loaded(u32::from(vlan));
    let udp = UdpHeader::BYTES as u32;
    let bth = match (version, local) {
        (RoceVersion::V1, _) => {
            p.op(X_IS, Grh::BYTES as u32);
            p.want(LOAD_HALF, 12, ether_type::ROCEV1.into());
            p.want(LOAD_BYTE, ETHERNET + 6, Grh::NEXT_IBA.into());
            p.want_words(ETHERNET + 24, &Gid::from_ip(local).0);
            ETHERNET
        }
        (RoceVersion::V2, IpAddr::V4(ip)) => {
            p.want(LOAD_HALF, 12, ether_type::IPV4.into());
            p.want(LOAD_BYTE, ETHERNET + 9, UdpHeader::PROTOCOL.into());
            p.op(LOAD_HALF, ETHERNET + 6);
            p.0.push(sock_filter { code: IF_ANY_BIT, jt: DROP, jf: 0, k: FRAGMENT });
            const DST: u32 = ETHERNET + Ipv4Header::BYTES as u32 - 4;
            if groups {
                p.op(LOAD_WORD, DST);
                p.pass_over_if(ip.to_bits(), 2);
                p.op(AND, 0xf000_0000);
                p.want_loaded(0xe000_0000);
            } else {
                p.want_words(DST, &ip.octets());
            }
            p.op(X_IS_IPV4_HEADER, ETHERNET);
            p.op(LOAD_HALF_AT_X, ETHERNET + 2);
            p.want_loaded(ROCEV2_PORT.into());
            ETHERNET + udp
        }
        (RoceVersion::V2, IpAddr::V6(ip)) => {
            p.op(X_IS, Ipv6Header::BYTES as u32);
            p.want(LOAD_HALF, 12, ether_type::IPV6.into());
            p.want(LOAD_BYTE, ETHERNET + 6, UdpHeader::PROTOCOL.into());
            if groups {
                // Four words with two instructions each.
                p.op(LOAD_BYTE, ETHERNET + 24);
                p.pass_over_if(0xff, 8);
            }
            p.want_words(ETHERNET + 24, &ip.octets());
            p.op(LOAD_HALF_AT_X, ETHERNET + 2);
            p.want_loaded(ROCEV2_PORT.into());
            ETHERNET + udp
        }
    };
    p.finish(shared, bth)
}

/// As a socket takes it.
pub(super) fn for_socket(ops: &[sock_filter]) -> Vec<SockFilter> {
    ops.iter().map(|o| SockFilter::new(o.code, o.jt, o.jf, o.k)).collect()
}

/// Passes nothing.
pub(super) fn nothing() -> Vec<SockFilter> {
    vec![SockFilter::new(RETURN, 0, 0, 0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::machine::{big_endian, run};

    /// What a kernel would do with a frame; `tag` and `kind` are its metadata.
    fn passes(program: &[sock_filter], frame: &[u8], tag: u16, kind: u32) -> bool {
        run(program, &|at, bytes| match at {
            PACKET_TYPE => Some(kind),
            VLAN_TAG => Some(tag.into()),
            _ => big_endian(frame, at, bytes),
        }) != 0
    }

    fn frame(src: &str, dst: &str, version: RoceVersion) -> Vec<u8> {
        use super::super::frame::{MAX_HEAD_BYTES, Source, Template};
        let (local, peer) = (src.parse().unwrap(), dst.parse().unwrap());
        let source = Source { version, local, mac: [2; 6], vlan: None };
        let key = crate::paths::PathKey {
            peer,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            lane: 0,
            process: crate::paths::Process::Unknown,
        };
        let mut head = [0; MAX_HEAD_BYTES];
        let len = Template::new(&source, &key, 0xc001).write(&[4; 6], 9, &[0; 16], &mut head);
        [&head[..len], &[0; 16]].concat()
    }

    const CASES: [(&str, &str, RoceVersion); 4] = [
        ("10.0.0.1", "10.0.0.2", RoceVersion::V2),
        ("fd00::1", "fd00::2", RoceVersion::V2),
        ("10.0.0.1", "10.0.0.2", RoceVersion::V1),
        ("fe80::1", "fe80::2", RoceVersion::V1),
    ];

    #[test]
    fn only_whole_packets_for_this_address_pass() {
        for (src, dst, version) in CASES {
            let p = program(version, dst.parse().unwrap(), 0, None, false);
            let good = frame(src, dst, version);
            assert!(passes(&p, &good, 0, 0), "{dst} {version}");
            assert!(passes(&p, &good, 0xe000, 0), "a priority alone is no VLAN");
            assert!(!passes(&p, &good, 7, 0), "a VLAN");
            for kind in 1..=4 {
                assert!(!passes(&p, &good, 0, kind), "to others, or from here");
            }
            let other = if dst.contains(':') { "fd00::3" } else { "10.0.0.3" };
            assert!(!passes(&p, &frame(src, other, version), 0, 0), "to another address");
            for len in 0..38 {
                assert!(!passes(&p, &good[..len], 0, 0), "cut to {len} bytes");
            }
        }
    }

    #[test]
    fn a_frame_to_a_shared_address_passes_to_one_part() {
        const SLOTS: u16 = 5;
        let parts: Vec<_> = (0..SLOTS as u8).map(Part::Slot).chain([Part::Desk]).collect();
        for (src, dst, version) in CASES {
            let filters = parts
                .iter()
                .map(|part| program(version, dst.parse().unwrap(), 0, Some((SLOTS, *part)), false));
            let filters: Vec<_> = filters.collect();
            let bare = frame(src, dst, version);
            let bth = bare.len() - 16;
            for (number, part) in
                [(0x01_0007_u32, 1), (0x04_fffe, 4), (0x00_0002, 0), (0x05_0001, 5), (1, 5), (0xff_ffff, 5)]
            {
                let mut to = [&bare[..], &[0; 272]].concat();
                to[bth + 4..bth + 8].copy_from_slice(&number.to_be_bytes());
                let passed: Vec<_> = filters.iter().map(|f| passes(f, &to, 0, 0)).collect();
                let expected: Vec<_> = (0..filters.len()).map(|n| n == part).collect();
                assert_eq!(passed, expected, "{dst} {version}: {number:#x}");
                assert!(filters.iter().all(|f| !passes(f, &to, 0, 4) && !passes(f, &to, 7, 0)));
                assert!(filters.iter().all(|f| !passes(f, &to[..bth + 4], 0, 0)), "no BTH");
            }
        }
    }

    #[test]
    fn a_vlan_gets_its_own_frames_only() {
        for (src, dst, version) in CASES {
            let p = program(version, dst.parse().unwrap(), 7, None, false);
            let f = frame(src, dst, version);
            assert!(passes(&p, &f, 7, 0) && passes(&p, &f, 0x6007, 0));
            assert!(!passes(&p, &f, 0, 0) && !passes(&p, &f, 8, 0));
        }
    }

    #[test]
    fn fragments_other_protocols_and_other_ports_do_not_pass() {
        let good = frame("10.0.0.1", "10.0.0.2", RoceVersion::V2);
        let p = program(RoceVersion::V2, "10.0.0.2".parse().unwrap(), 0, None, false);
        for (at, value) in [(20, 0x20), (21, 1), (23, 6), (36, 0), (37, 0), (12, 0x86), (13, 6)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(!passes(&p, &bad, 0, 0), "byte {at} as {value:#x}");
        }
        let six = frame("fd00::1", "fd00::2", RoceVersion::V2);
        let p = program(RoceVersion::V2, "fd00::2".parse().unwrap(), 0, None, false);
        for (at, value) in [(20, 44), (56, 0), (13, 0)] {
            let mut bad = six.clone();
            bad[at] = value;
            assert!(!passes(&p, &bad, 0, 0), "byte {at} as {value:#x}");
        }
    }

    #[test]
    fn packets_to_groups_pass_only_where_they_are_asked_for() {
        for (src, dst, group) in [("10.0.0.1", "10.0.0.2", "239.1.2.3"), ("fd00::1", "fd00::2", "ff0e::1:2")]
        {
            let [without, with] =
                [false, true].map(|groups| program(RoceVersion::V2, dst.parse().unwrap(), 0, None, groups));
            let [own, to_group] = [dst, group].map(|to| frame(src, to, RoceVersion::V2));
            let strange = frame(src, if dst.contains(':') { "fd00::3" } else { "10.0.0.3" }, RoceVersion::V2);
            for kind in [PACKET_HOST, PACKET_MULTICAST] {
                assert!(passes(&with, &own, 0, kind) && passes(&with, &to_group, 0, kind), "{kind}");
                assert!(!passes(&with, &strange, 0, kind) && !passes(&without, &to_group, 0, kind));
            }
            for kind in [1, 3, 4] {
                assert!(!passes(&with, &own, 0, kind) && !passes(&with, &to_group, 0, kind), "{kind}");
            }
            let mut other_port = to_group.clone();
            other_port[if dst.contains(':') { 57 } else { 37 }] ^= 1;
            assert!(!passes(&with, &other_port, 0, PACKET_MULTICAST));
        }
    }
}
