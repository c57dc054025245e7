//! Incoming flows: which IPv4 Identification comes next, and whether a packet's ICRC is right.
//!
//! A UDP socket does not show the Identification, and the ICRC covers it. So it is predicted from the
//! flow's last packets. Linux gives a connected socket's datagrams ascending numbers, one a send call;
//! segment `k` of a train carries the train's number plus `k`; an unconnected socket that does not
//! fragment has 0 plus `k`. When the prediction fails (a first packet, a loss, another kind of sender),
//! the number is solved from the ICRC itself, and taken for true if there is a solution.
//!
//! **Strength.** A predicted packet is checked by all 32 bits. One that had to be solved is checked by
//! the 15 bits that the Identification and "don't fragment" leave over: of packets damaged at random,
//! one in 2^15 passes. The UDP checksum stands beside it where the sender set one. The first packet of a
//! flow is always solved, and counted by `icrc_flows_learned`; later ones that had to be solved are
//! counted by `icrc_ident_solved`, which between ends of this project stays at 0 on a path without loss.

use core::net::IpAddr;

use hca_core::Gid;
use hca_core::wire::{Bth, ICRC_BYTES};

use crate::icrc::{FlowCrc, Icrc};

/// Flows whose next number is remembered; beyond it flows evict each other, and are solved.
const FLOWS: usize = 1024;
/// Packets of a train at most, and so how far the number steps back behind a train that was cut. A
/// step back within it is no surprise, and leaves a check of 26 bits.
const MAX_STEP_BACK: u16 = 64;

#[derive(Clone, Copy)]
struct Flow {
    src: IpAddr,
    port: u16,
    /// The slot is in use.
    known: bool,
    /// A packet of it was found right.
    learned: bool,
    /// Datagrams begin at 0.
    zero_based: bool,
    /// Number of the datagram that is being checked, or comes next.
    base: u16,
    /// Number of the packet that came last.
    last: u16,
    crc: FlowCrc,
}

/// What the check of one packet found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// Right, with this Identification.
    Good(u16),
    /// Wrong. With the Identification that was expected.
    Bad(u16),
    /// Shorter than a BTH and an ICRC.
    Short,
}

/// Checks packets as they come from one socket.
pub(crate) struct RxFlows {
    local: IpAddr,
    /// A GRH stands in front of the packets, and no UDP.
    grh: bool,
    flows: Box<[Flow]>,
    icrc: Icrc,
    current: usize,
    segments: u16,
    /// Packets of known flows whose Identification was solved, not predicted.
    pub(crate) ident_solved: u64,
    /// Flows whose Identification was learned from their first packet.
    pub(crate) flows_learned: u64,
}

impl RxFlows {
    pub(crate) fn new(local: IpAddr) -> Self {
        let empty = Flow {
            src: local,
            port: 0,
            known: false,
            learned: false,
            zero_based: false,
            base: 0,
            last: 0,
            crc: FlowCrc::default(),
        };
        let flows = vec![empty; FLOWS].into_boxed_slice();
        let icrc = Icrc::new();
        Self { local, grh: false, flows, icrc, current: 0, segments: 0, ident_solved: 0, flows_learned: 0 }
    }

    /// The flows of RoCEv1, which have no ports.
    pub(crate) fn behind_grh(local: IpAddr) -> Self {
        Self { grh: true, ..Self::new(local) }
    }

    /// A datagram from this source comes; its packets follow by [`check`](Self::check).
    #[inline]
    pub(crate) fn begin(&mut self, src: IpAddr, port: u16) {
        let folded = match src {
            IpAddr::V4(a) => u64::from(a.to_bits()),
            IpAddr::V6(a) => a.to_bits() as u64 ^ (a.to_bits() >> 64) as u64,
        };
        let mixed = (folded ^ u64::from(port) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.current = (mixed >> 54) as usize;
        self.segments = 0;
        let flow = &mut self.flows[self.current];
        if !flow.known || flow.port != port || flow.src != src {
            let crc = if self.grh {
                FlowCrc::grh(Gid::from_ip(src), Gid::from_ip(self.local))
            } else {
                FlowCrc::new(src, self.local, port).unwrap_or_default()
            };
            *flow = Flow { src, port, known: true, learned: false, zero_based: false, base: 0, last: 0, crc };
        }
    }

    /// Checks the datagram's next packet, ICRC included.
    #[inline]
    pub(crate) fn check(&mut self, packet: &[u8]) -> Checked {
        if packet.len() < Bth::BYTES + ICRC_BYTES {
            self.segments += 1;
            return Checked::Short;
        }
        let flow = &mut self.flows[self.current];
        let expected = flow.base.wrapping_add(self.segments);
        let residual = self.icrc.residual(&flow.crc, expected, packet);
        let k = self.segments;
        self.segments += 1;
        if residual == 0 {
            flow.last = expected;
            flow.learned = true;
            return Checked::Good(expected);
        }
        self.check_unexpected(expected, k, residual, packet.len() - ICRC_BYTES)
    }

    /// Checks the datagram's next packet, ICRC included, whose frame shows these 16 bits of Identification;
    /// "don't fragment" is as `dont_fragment` says. Nothing is solved: all 32 bits count.
    #[inline]
    pub(crate) fn check_shown(&mut self, ident: u16, dont_fragment: bool, packet: &[u8]) -> Checked {
        if packet.len() < Bth::BYTES + ICRC_BYTES {
            return Checked::Short;
        }
        let mut crc = self.flows[self.current].crc;
        if !dont_fragment && !crc.has_no_ident() {
            crc.toggle_df();
        }
        match self.icrc.residual(&crc, ident, packet) {
            0 => Checked::Good(ident),
            _ => Checked::Bad(ident),
        }
    }

    /// The datagram ends: what number begins the next?
    #[inline]
    pub(crate) fn end(&mut self) {
        let flow = &mut self.flows[self.current];
        flow.base = if flow.zero_based { 0 } else { flow.base.wrapping_add(1) };
    }

    #[cold]
    fn check_unexpected(&mut self, expected: u16, k: u16, residual: u32, bytes: usize) -> Checked {
        let flow = &mut self.flows[self.current];
        if flow.crc.has_no_ident() {
            return Checked::Bad(expected);
        }
        let Some(found) = self.icrc.solve(expected, residual, bytes) else {
            return Checked::Bad(expected);
        };
        let ident = found.ident;
        if found.df_differs {
            flow.crc.toggle_df();
        }
        // A sender whose trains were cut on their way steps back to where it sent its last train, plus one.
        let near = flow.last.wrapping_add(1).wrapping_sub(ident) <= MAX_STEP_BACK;
        flow.zero_based = ident == k;
        if !flow.learned {
            flow.learned = true;
            self.flows_learned += 1;
        } else if found.df_differs || !(near || flow.zero_based) {
            self.ident_solved += 1;
        }
        flow.base = ident.wrapping_sub(k);
        flow.last = ident;
        Checked::Good(ident)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SRC: [u8; 4] = [10, 0, 0, 1];
    const PORT: u16 = 50_000;

    /// A receiver and a sender's view of one flow.
    struct Pair {
        rx: RxFlows,
        icrc: Icrc,
        crc: FlowCrc,
    }

    impl Pair {
        fn new() -> Self {
            let (src, dst) = (IpAddr::from(SRC), IpAddr::from([10, 0, 0, 2]));
            let crc = FlowCrc::new(src, dst, PORT).unwrap();
            Self { rx: RxFlows::new(dst), icrc: Icrc::new(), crc }
        }
        fn packet(&mut self, ident: u16) -> Vec<u8> {
            let mut p = [0x5a; 28];
            self.icrc.seal(&self.crc, ident, p.len(), &mut p);
            p.to_vec()
        }
        /// One datagram of these packets; all have to be right.
        fn datagram(&mut self, idents: impl IntoIterator<Item = u16>) {
            self.rx.begin(IpAddr::from(SRC), PORT);
            for ident in idents {
                let p = self.packet(ident);
                assert_eq!(self.rx.check(&p), Checked::Good(ident));
            }
            self.rx.end();
        }
        fn solved(&self) -> u64 {
            self.rx.ident_solved
        }
    }

    #[test]
    fn merged_trains_count_by_one_a_call_and_wrap() {
        let mut p = Pair::new();
        p.datagram([65_530]);
        for base in 65_531_u32..65_631 {
            p.datagram((0..base % 7 + 1).map(|k| (base + k) as u16));
        }
        assert_eq!((p.solved(), p.rx.flows_learned), (0, 1));
    }

    #[test]
    fn trains_that_were_cut_on_their_way_are_predicted() {
        let mut p = Pair::new();
        p.datagram([100]);
        for base in 101..200 {
            for k in 0..3 {
                p.datagram([base + k]);
            }
        }
        assert_eq!(p.solved(), 0);
    }

    #[test]
    fn a_sender_without_numbers_is_predicted() {
        let mut p = Pair::new();
        for n in [1, 3, 1, 1, 5, 2] {
            p.datagram(0..n);
        }
        assert_eq!(p.solved(), 0);
    }

    #[test]
    fn a_loss_is_solved_once_and_counted() {
        let mut p = Pair::new();
        p.datagram([7]);
        p.datagram([8]);
        p.datagram([300, 301]);
        p.datagram([301]);
        assert_eq!(p.solved(), 1);
    }

    #[test]
    fn a_sender_that_does_not_set_dont_fragment_is_learned() {
        let mut p = Pair::new();
        p.crc.toggle_df();
        for ident in 500..520 {
            p.datagram([ident]);
        }
        assert_eq!((p.solved(), p.rx.flows_learned), (0, 1));
    }

    #[test]
    fn a_damaged_packet_is_refused_and_disturbs_nothing() {
        let mut p = Pair::new();
        p.datagram([40]);
        let mut bad = p.packet(41);
        bad[20] ^= 4;
        p.rx.begin(IpAddr::from(SRC), PORT);
        assert_eq!(p.rx.check(&bad), Checked::Bad(41));
        p.rx.end();
        p.datagram([42]);
        assert_eq!(p.solved(), 0);
    }

    #[test]
    fn short_packets_are_told_from_wrong_ones() {
        let mut p = Pair::new();
        p.rx.begin(IpAddr::from(SRC), PORT);
        assert_eq!(p.rx.check(&[0; 15]), Checked::Short);
        assert_eq!(p.rx.check(&[]), Checked::Short);
        assert!(matches!(p.rx.check(&[0; 16]), Checked::Bad(_)));
        p.rx.end();
    }

    #[test]
    fn flows_beyond_the_table_evict_each_other_and_are_still_right() {
        let mut p = Pair::new();
        for round in 0..3_u16 {
            for port in 0..3000_u16 {
                let (src, dst) = (IpAddr::from(SRC), IpAddr::from([10, 0, 0, 2]));
                p.crc = FlowCrc::new(src, dst, port).unwrap();
                let packet = p.packet(port.wrapping_mul(31).wrapping_add(round));
                p.rx.begin(src, port);
                assert!(matches!(p.rx.check(&packet), Checked::Good(_)));
                p.rx.end();
            }
        }
        assert_eq!(p.rx.flows.len(), FLOWS);
    }
}
