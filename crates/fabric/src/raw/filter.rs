//! The classic BPF program of a receiving packet socket: only RoCE frames for one address pass.

use std::net::IpAddr;

use hca_core::Gid;
use hca_core::wire::{EthernetHeader, Grh, Ipv4Header, ROCEV2_PORT, UdpHeader, ether_type};
use socket2::SockFilter;

use super::RoceVersion;

/// A jump's target that stands for "drop"; put right when the program is finished.
const DROP: u8 = 0xff;
/// The frame's own metadata begins here.
const METADATA: u32 = 0xffff_f000;
/// To us, to others, to many, or from us.
const PACKET_TYPE: u32 = METADATA + 4;
/// The VLAN tag that was taken off; 0 without one.
const VLAN_TAG: u32 = METADATA + 44;
const VID: u32 = 0x0fff;
/// To this interface's own MAC address.
const PACKET_HOST: u32 = 0;
/// "More fragments" and the offset.
const FRAGMENT: u32 = 0x3fff;
const ETHERNET: u32 = EthernetHeader::BYTES as u32;

/// One instruction, before jumps are made.
#[derive(Clone, Copy)]
pub(super) struct Op {
    pub(super) code: u16,
    pub(super) jt: u8,
    pub(super) jf: u8,
    pub(super) k: u32,
}

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const LOAD_HALF_AT_X: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
const X_IS_IPV4_HEADER: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

struct Program(Vec<Op>);

impl Program {
    fn op(&mut self, code: u16, k: u32) {
        self.0.push(Op { code, jt: 0, jf: 0, k });
    }
    /// Drops what does not have this value there.
    fn want(&mut self, load: u16, at: u32, value: u32) {
        self.op(load, at);
        self.want_loaded(value);
    }
    fn want_loaded(&mut self, value: u32) {
        self.0.push(Op { code: IF_EQUAL, jt: 0, jf: DROP, k: value });
    }
    fn want_words(&mut self, at: u32, bytes: &[u8]) {
        for (i, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
            self.want(LOAD_WORD, at + 4 * i as u32, u32::from_be_bytes(*word));
        }
    }
    fn finish(mut self) -> Vec<Op> {
        self.op(RETURN, u32::MAX);
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

/// Passes RoCE packets of this version to `local` in this VLAN (0: untagged, or tagged with a priority only);
/// fragments and what leaves this machine do not pass.
pub(super) fn program(version: RoceVersion, local: IpAddr, vlan: u16) -> Vec<Op> {
    let mut p = Program(Vec::new());
    p.want(LOAD_BYTE, PACKET_TYPE, PACKET_HOST);
    p.op(LOAD_HALF, VLAN_TAG);
    p.op(AND, VID);
    p.want_loaded(u32::from(vlan));
    match (version, local) {
        (RoceVersion::V1, _) => {
            p.want(LOAD_HALF, 12, ether_type::ROCEV1.into());
            p.want(LOAD_BYTE, ETHERNET + 6, Grh::NEXT_IBA.into());
            p.want_words(ETHERNET + 24, &Gid::from_ip(local).0);
        }
        (RoceVersion::V2, IpAddr::V4(ip)) => {
            p.want(LOAD_HALF, 12, ether_type::IPV4.into());
            p.want(LOAD_BYTE, ETHERNET + 9, UdpHeader::PROTOCOL.into());
            p.op(LOAD_HALF, ETHERNET + 6);
            p.0.push(Op { code: IF_ANY_BIT, jt: DROP, jf: 0, k: FRAGMENT });
            p.want_words(ETHERNET + Ipv4Header::BYTES as u32 - 4, &ip.octets());
            p.op(X_IS_IPV4_HEADER, ETHERNET);
            p.op(LOAD_HALF_AT_X, ETHERNET + 2);
            p.want_loaded(ROCEV2_PORT.into());
        }
        (RoceVersion::V2, IpAddr::V6(ip)) => {
            p.want(LOAD_HALF, 12, ether_type::IPV6.into());
            p.want(LOAD_BYTE, ETHERNET + 6, UdpHeader::PROTOCOL.into());
            p.want_words(ETHERNET + 24, &ip.octets());
            p.want(LOAD_HALF, ETHERNET + 40 + 2, ROCEV2_PORT.into());
        }
    }
    p.finish()
}

/// As a socket takes it.
pub(super) fn for_socket(ops: &[Op]) -> Vec<SockFilter> {
    ops.iter().map(|o| SockFilter::new(o.code, o.jt, o.jf, o.k)).collect()
}

/// Passes nothing.
pub(super) fn nothing() -> Vec<SockFilter> {
    vec![SockFilter::new(RETURN, 0, 0, 0)]
}
