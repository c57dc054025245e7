//! Incoming flows: the prediction of the next IPv4 Identification, and the check of the ICRC.
//!
//! The ICRC covers the Identification, and a UDP socket does not show it. So this module predicts the Identification
//! from the flow's last packets. Linux gives a connected socket's datagrams ascending numbers, one a send call; segment
//! `k` of a train carries the train's number plus `k`; an unconnected socket that does not fragment has 0 plus `k`; the
//! soft RoCE of Linux has one counter for all flows to one address, to which it adds for each tick that passed. When
//! the prediction fails, the number is solved from the ICRC itself, and the packet is right if the flow leads to that
//! number.
//!
//! **Strength.** A CRC is linear, so each bit of the IP header that the check leaves open takes one bit from the
//! strength of the ICRC. The number of accepted Identifications depends on the state of the flow:
//!
//! | state of the flow | Identifications that count | bits of check left | damaged packets that pass |
//! |---|---|---|---|
//! | predicted, or shown by the fabric, or none in the header (IPv6, RoCEv1) | 1 | 32 | 1 in 4.3e9 |
//! | known; another than predicted | 320 near it, and 1 for each ms since its last packet | 23.7 | 1 in 1.3e7 |
//! | the same, while packets arrive damaged | 17 near it, and 1 for each ms | 27.9 | 1 in 2.5e8 |
//! | the same, on a host whose flows share a counter, or behind a refused packet | as many near that one, too | 22.7 (26.9) | 1 in 6.7e6 |
//! | new: its first packet | 65,536 | 16 | 1 in 65,536 |
//! | of a host whose numbers follow no rule | 65,536 | 16 | 1 in 65,536 |
//!
//! - *A known flow.* "Don't fragment" is as the flow has it. With that fixed, no single flipped bit of a packet up to
//!   4,200 bytes is mistaken for another Identification. After 16 damaged packets the window is narrow, and one more in
//!   each quarter of a second is tried against the wide one: that lets one damaged packet pass in 39 days, however many
//!   come. The milliseconds of an idle flow let less than one pass in 49 days in which it is idle and its next packet
//!   is damaged each time. At 1,000,000 packets a second of which 2 in 1,000 are damaged, one passes in 1.5 days; by a
//!   whole CRC one would pass in 25.
//! - *A flow that jumps* (a sender that began anew on its port, 256 datagrams lost in a row): the packet is refused, as
//!   if it were lost, and counted by `icrc_idents_refused`. The next packet is accepted if its number follows the
//!   refused packet's.
//! - *A host without a rule* is found by three refused packets in a row on one flow, of which the third is accepted,
//!   and counted by `icrc_hosts_without_rule`. The verdict ends when eight packets in a row were predicted. Damage
//!   alone leads to this verdict only if three damaged packets in a row each fit some Identification: 1 in 2.8e14.
//! - *First packets* are accepted. No field of a first packet tells its number, and a second packet comes only when the
//!   first was answered: a refusal would cost each new flow its sender's timeout, from a millisecond to seconds for
//!   datagrams of the connection manager. The remaining risk is small, since a flow has one first packet: at 1,000 new
//!   flows a second and one damaged packet in a million, one damaged packet passes in two years. They are counted by
//!   `icrc_flows_learned`. A packet with damaged addresses or ports neither adds a flow to the table nor evicts one,
//!   unless its ICRC fits.
//! - *A sender without "don't fragment"*, which RoCEv2 asks for, loses the first packet of its first flow.
//!
//! UDP's checksum stands beside all of this where the sender set one; Linux's soft RoCE and most adapters do not.
//! Packets that were solved are counted by `icrc_ident_solved`, which between ends of this project stays at 0 on a path
//! without loss.

use core::net::IpAddr;

use hca_core::wire::{Bth, ICRC_BYTES};
use hca_core::{Gid, Instant};

use crate::icrc::{FlowCrc, Icrc};
use crate::ident::{Host, Numbers, Verdict};
use hca_core::counters;

/// Flows that are remembered fall into this many sets, by address and port.
const SET_BITS: u32 = 10;
/// The same of a multicast group.
const GROUP_SET_BITS: u32 = 5;
/// Flows of one set; the one that was used longest ago makes room.
const WAYS: usize = 4;
/// Where a flow stands until a packet of it was right. The sets follow.
const UNKNOWN_FLOW: usize = 0;
/// Hosts that are remembered; beyond it hosts evict each other, and are learned again.
const HOSTS: usize = 1 << HOST_BITS;
const HOST_BITS: u32 = 8;
/// Spreads the bits of a product over its upper ones.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy)]
struct Flow {
    src: IpAddr,
    port: u16,
    /// The slot is in use.
    used: bool,
    numbers: Numbers,
    crc: FlowCrc,
}

/// What the check of one packet found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// Right, with this Identification.
    Good(u16),
    /// Wrong. With the Identification that was expected.
    Bad(u16),
    /// Right by this Identification, to which nothing leads: to be dropped.
    Odd(u16),
    /// Shorter than a BTH and an ICRC.
    Short,
}

/// Checks packets as they come from one socket.
pub(crate) struct RxFlows {
    local: IpAddr,
    /// A GRH stands in front of the packets, and no UDP.
    grh: bool,
    /// The Identification is not shown.
    hidden: bool,
    flows: Box<[Flow]>,
    set_bits: u32,
    hosts: Box<[(IpAddr, Host)]>,
    icrc: Icrc,
    current: usize,
    segments: u16,
    /// What it counts.
    pub(crate) counts: FlowCounts,
}

counters! {
    FlowCounts:
    /// Packets of known flows whose Identification was solved, not predicted.
    icrc_ident_solved,
    /// Flows whose Identification was learned from their first packet.
    icrc_flows_learned,
    /// Packets whose Identification nothing leads to; dropped.
    icrc_idents_refused,
    /// Hosts whose Identifications were found to follow no rule.
    icrc_hosts_without_rule,
}

impl RxFlows {
    /// Flows whose Identification is hidden.
    pub(crate) fn new(local: IpAddr) -> Self {
        Self::with_sets(local, SET_BITS)
    }

    /// Flows to a multicast group, whose Identification is hidden.
    pub(crate) fn of_group(group: IpAddr) -> Self {
        Self::with_sets(group, GROUP_SET_BITS)
    }

    fn with_sets(local: IpAddr, set_bits: u32) -> Self {
        let empty = Flow { src: local, port: 0, used: false, numbers: Numbers::NEW, crc: FlowCrc::default() };
        Self {
            local,
            grh: false,
            hidden: true,
            flows: vec![empty; 1 + (WAYS << set_bits)].into_boxed_slice(),
            set_bits,
            hosts: vec![(local, Host::NEW); HOSTS].into_boxed_slice(),
            icrc: Icrc::new(),
            current: UNKNOWN_FLOW,
            segments: 0,
            counts: FlowCounts::default(),
        }
    }

    /// Flows whose packets are checked by [`check_shown`](Self::check_shown).
    pub(crate) fn shown(local: IpAddr) -> Self {
        Self { hidden: false, ..Self::new(local) }
    }
    /// The same of flows to a multicast group.
    pub(crate) fn shown_of_group(group: IpAddr) -> Self {
        Self { hidden: false, ..Self::of_group(group) }
    }

    /// The flows of RoCEv1, which have no ports.
    pub(crate) fn behind_grh(local: IpAddr) -> Self {
        Self { grh: true, ..Self::shown(local) }
    }

    /// A datagram from this source comes; its packets follow by [`check`](Self::check).
    #[inline]
    pub(crate) fn begin(&mut self, src: IpAddr, port: u16) {
        // A flow that is remembered stands first in its set while it is the current one.
        let flow = &self.flows[self.current];
        if self.current == UNKNOWN_FLOW || flow.port != port || flow.src != src {
            self.turn_to(self.set_of(src, port), src, port);
        }
        self.segments = 0;
    }

    /// First slot of a flow's set.
    #[inline]
    fn set_of(&self, src: IpAddr, port: u16) -> usize {
        let spread = (folded(src) ^ u64::from(port) << 32).wrapping_mul(GOLDEN);
        1 + WAYS * (spread >> (64 - self.set_bits)) as usize
    }

    /// Another flow's turn comes: it stands first in its set then, or is a stranger.
    #[inline(never)]
    fn turn_to(&mut self, set: usize, src: IpAddr, port: u16) {
        let left = &self.flows[self.current];
        if left.numbers.known {
            host(&mut self.hosts, left.src).left(&left.numbers);
        }
        let ways = &mut self.flows[set..set + WAYS];
        if let Some(at) = ways.iter().position(|f| f.used && f.port == port && f.src == src) {
            ways[..=at].rotate_right(1);
            self.current = set;
            return;
        }
        let mut crc = if self.grh {
            FlowCrc::grh(Gid::from_ip(src), Gid::from_ip(self.local))
        } else {
            FlowCrc::new(src, self.local, port).unwrap_or_default()
        };
        let hidden = self.hidden && !crc.has_no_ident();
        if hidden && host(&mut self.hosts, src).may_fragment {
            crc.toggle_df();
        }
        self.flows[UNKNOWN_FLOW] = Flow { src, port, used: true, numbers: Numbers::NEW, crc };
        self.current = UNKNOWN_FLOW;
        if !hidden {
            self.keep(set);
        }
    }

    /// The stranger's flow is one that is remembered from now on.
    fn keep(&mut self, set: usize) {
        let flow = self.flows[UNKNOWN_FLOW];
        let ways = &mut self.flows[set..set + WAYS];
        ways.rotate_right(1);
        ways[0] = flow;
        self.current = set;
    }

    /// Checks the datagram's next packet, ICRC included.
    #[inline]
    pub(crate) fn check(&mut self, now: Instant, packet: &[u8]) -> Checked {
        if packet.len() < Bth::BYTES + ICRC_BYTES {
            self.segments += 1;
            return Checked::Short;
        }
        let flow = &mut self.flows[self.current];
        let expected = flow.numbers.base.wrapping_add(self.segments);
        let residual = self.icrc.residual(&flow.crc, expected, packet);
        let k = self.segments;
        self.segments += 1;
        if residual == 0 {
            flow.numbers.last = expected;
            flow.numbers.at = now;
            return Checked::Good(expected);
        }
        self.check_unexpected(now, expected, k, residual, packet.len() - ICRC_BYTES)
    }

    /// Checks the datagram's next packet, ICRC included, whose frame shows these 16 bits of Identification;
    /// "don't fragment" is as `dont_fragment` says. Nothing is solved: all 32 bits count.
    #[inline]
    pub(crate) fn check_shown(&mut self, ident: u16, dont_fragment: bool, packet: &[u8]) -> Checked {
        if packet.len() < Bth::BYTES + ICRC_BYTES {
            return Checked::Short;
        }
        let crc = &self.flows[self.current].crc;
        let residual = if dont_fragment || crc.has_no_ident() {
            self.icrc.residual(crc, ident, packet)
        } else {
            let mut crc = *crc;
            crc.toggle_df();
            self.icrc.residual(&crc, ident, packet)
        };
        if residual == 0 { Checked::Good(ident) } else { Checked::Bad(ident) }
    }

    /// The datagram ends.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.flows[self.current].numbers.end();
    }

    #[cold]
    fn check_unexpected(
        &mut self,
        now: Instant,
        expected: u16,
        k: u16,
        residual: u32,
        bytes: usize,
    ) -> Checked {
        let flow = &mut self.flows[self.current];
        if flow.crc.has_no_ident() {
            return Checked::Bad(expected);
        }
        let known = flow.numbers.known;
        let solution = self.icrc.solve(expected, residual, bytes).filter(|s| !(s.df_differs && known));
        let Some(found) = solution else {
            flow.numbers.damaged(now);
            return Checked::Bad(expected);
        };
        let verdict =
            flow.numbers.judge(host(&mut self.hosts, flow.src), now, k, found.ident, found.df_differs);
        let c = &mut self.counts;
        match verdict {
            Verdict::Odd => {
                c.icrc_idents_refused += 1;
                return Checked::Odd(found.ident);
            }
            Verdict::First => c.icrc_flows_learned += 1,
            Verdict::Found => c.icrc_ident_solved += 1,
            Verdict::Back => {}
            Verdict::Ruleless => {
                c.icrc_ident_solved += 1;
                c.icrc_hosts_without_rule += 1;
            }
        }
        if !known {
            if found.df_differs {
                flow.crc.toggle_df();
            }
            let (src, port) = (flow.src, flow.port);
            self.keep(self.set_of(src, port));
        }
        Checked::Good(found.ident)
    }
}

#[inline]
fn folded(ip: IpAddr) -> u64 {
    match ip {
        IpAddr::V4(a) => u64::from(a.to_bits()),
        IpAddr::V6(a) => a.to_bits() as u64 ^ (a.to_bits() >> 64) as u64,
    }
}

/// What is known of a host, which drives out another of the same slot.
fn host(hosts: &mut [(IpAddr, Host)], src: IpAddr) -> &mut Host {
    let (owner, host) = &mut hosts[(folded(src).wrapping_mul(GOLDEN) >> (64 - HOST_BITS)) as usize];
    if *owner != src {
        (*owner, *host) = (src, Host::NEW);
    }
    host
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use test_support::random::Rng;

    use super::*;

    const SRC: [u8; 4] = [10, 0, 0, 1];
    const PORT: u16 = 50_000;
    /// Flows that are remembered.
    const FLOWS: usize = WAYS << SET_BITS;

    /// A receiver and a sender's view of one flow.
    struct Pair {
        rx: RxFlows,
        icrc: Icrc,
        crc: FlowCrc,
        port: u16,
        now: Instant,
    }

    impl Pair {
        fn new() -> Self {
            let (src, dst) = (IpAddr::from(SRC), IpAddr::from([10, 0, 0, 2]));
            let crc = FlowCrc::new(src, dst, PORT).unwrap();
            let now = Instant::from_nanos(1 << 40);
            Self { rx: RxFlows::new(dst), icrc: Icrc::new(), crc, port: PORT, now }
        }
        /// From another port on.
        fn turn_to(&mut self, port: u16) {
            self.port = port;
            self.crc = FlowCrc::new(SRC.into(), self.rx.local, port).unwrap();
        }
        fn packet(&mut self, ident: u16) -> Vec<u8> {
            self.long(ident, 28)
        }
        fn long(&mut self, ident: u16, bytes: usize) -> Vec<u8> {
            let mut p: Vec<u8> = (0..bytes).map(|i| (i * 7) as u8 ^ ident as u8).collect();
            self.icrc.seal(&self.crc, ident, bytes, &mut p);
            p
        }
        /// One datagram of one packet, as it is.
        fn give(&mut self, packet: &[u8]) -> Checked {
            self.rx.begin(IpAddr::from(SRC), self.port);
            let checked = self.rx.check(self.now, packet);
            self.rx.end();
            checked
        }
        /// One datagram of one packet with this number.
        fn number(&mut self, ident: u16) -> Checked {
            let p = self.packet(ident);
            self.give(&p)
        }
        /// One datagram of these packets; all have to be right.
        #[track_caller]
        fn datagram(&mut self, idents: impl IntoIterator<Item = u16>) {
            self.rx.begin(IpAddr::from(SRC), self.port);
            for ident in idents {
                let p = self.packet(ident);
                assert_eq!(self.rx.check(self.now, &p), Checked::Good(ident));
            }
            self.rx.end();
        }
        fn pass(&mut self, ms: u64) {
            self.now = self.now + Duration::from_millis(ms);
        }
        fn solved(&self) -> u64 {
            self.rx.counts.icrc_ident_solved
        }
        fn learned(&self) -> u64 {
            self.rx.counts.icrc_flows_learned
        }
        fn refused(&self) -> u64 {
            self.rx.counts.icrc_idents_refused
        }
        fn ruleless(&self) -> u64 {
            self.rx.counts.icrc_hosts_without_rule
        }
    }

    #[test]
    fn merged_trains_count_by_one_a_call_and_wrap() {
        let mut p = Pair::new();
        p.datagram([65_530]);
        for base in 65_531_u32..65_631 {
            p.datagram((0..base % 7 + 1).map(|k| (base + k) as u16));
        }
        assert_eq!((p.solved(), p.learned()), (0, 1));
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
        assert_eq!((p.solved(), p.learned()), (0, 1));
    }

    #[test]
    fn a_loss_is_solved_once_and_counted() {
        let mut p = Pair::new();
        p.datagram([7]);
        p.datagram([8]);
        p.datagram([200, 201]);
        p.datagram([201]);
        assert_eq!((p.solved(), p.refused()), (1, 0));
    }

    #[test]
    fn packets_that_overtake_each_other_are_all_right() {
        let mut p = Pair::new();
        p.datagram([500]);
        for at in (501..900).step_by(4) {
            for ident in [at + 2, at, at + 3, at + 1] {
                p.datagram([ident]);
            }
        }
        assert_eq!(p.refused(), 0);
    }

    #[test]
    fn a_flow_that_jumps_loses_one_packet_and_goes_on() {
        let mut p = Pair::new();
        p.datagram([7]);
        p.datagram([8]);
        assert_eq!(p.number(40_000), Checked::Odd(40_000));
        p.datagram([40_001, 40_002]);
        p.datagram([40_002]);
        assert_eq!((p.solved(), p.refused(), p.learned()), (1, 1, 1));
        // A lone packet with another number changes nothing.
        assert_eq!(p.number(9), Checked::Odd(9));
        p.pass(1);
        p.datagram([40_003 + 1]);
        assert_eq!(p.number(11), Checked::Odd(11), "9 is forgotten");
        assert_eq!(p.ruleless(), 0);
    }

    #[test]
    fn a_counter_that_goes_on_while_its_flow_is_idle_is_followed() {
        let mut p = Pair::new();
        p.datagram([7]);
        p.pass(1000);
        p.datagram([7 + 1000]);
        assert_eq!(p.number(7 + 2400), Checked::Odd(7 + 2400), "too far for no time");
        p.datagram([7 + 1001]);
        p.pass(70_000);
        p.datagram([50_000]);
        assert_eq!(p.refused(), 1);
    }

    #[test]
    fn flows_that_share_a_counter_are_followed() {
        let mut p = Pair::new();
        for n in 0..2000_u32 {
            p.turn_to(50_000 + (n % 500) as u16);
            p.datagram([(n * 3) as u16]);
        }
        // Each of the 500 flows steps by 1,500 from one packet to its next.
        assert_eq!((p.refused(), p.learned()), (0, 500));
        assert_eq!(p.number(30_000), Checked::Odd(30_000));
    }

    #[test]
    fn a_host_without_a_rule_is_found_by_three_packets_and_may_mend() {
        let mut p = Pair::new();
        let mut random = Rng::new(0x1234_5678);
        let lost =
            (0..1000).filter(|_| matches!(p.number(random.next_u32() as u16), Checked::Odd(_))).count();
        assert!(lost <= 2, "{lost} of 1000 packets were refused");
        assert_eq!(p.ruleless(), 1);
        // It is the host's, not the flow's; damage of one bit is still none that passes, as "don't fragment" counts.
        p.turn_to(PORT + 1);
        for _ in 0..100 {
            let ident = random.next_u32() as u16;
            p.datagram([ident]);
            let mut bad = p.long(random.next_u32() as u16, 2048);
            for (at, bit) in [(173, 3), (1834, 6)] {
                bad[at] ^= 1 << bit;
                assert!(matches!(p.give(&bad), Checked::Bad(_)));
                bad[at] ^= 1 << bit;
            }
        }
        assert_eq!((p.refused(), p.ruleless()), (lost as u64, 1));
        for ident in 1000..1010 {
            p.datagram([ident]);
        }
        assert_eq!(p.number(50_000), Checked::Odd(50_000), "it counts again");
    }

    #[test]
    fn a_sender_that_does_not_set_dont_fragment_loses_its_first_packet() {
        let mut p = Pair::new();
        p.crc.toggle_df();
        assert_eq!(p.number(500), Checked::Odd(500));
        for ident in 501..520 {
            p.datagram([ident]);
        }
        assert_eq!((p.solved(), p.learned()), (0, 1));
        // Another flow of it loses none.
        p.turn_to(PORT + 1);
        p.crc.toggle_df();
        p.datagram([9000]);
        assert_eq!((p.refused(), p.learned()), (1, 2));
        // From now on it does not change.
        p.crc.toggle_df();
        assert!(matches!(p.number(9001), Checked::Bad(_)));
    }

    #[test]
    fn a_damaged_packet_is_refused_and_disturbs_nothing() {
        let mut p = Pair::new();
        p.datagram([40]);
        let mut bad = p.packet(41);
        bad[20] ^= 4;
        assert_eq!(p.give(&bad), Checked::Bad(41));
        p.datagram([42]);
        assert_eq!(p.solved(), 0);
    }

    /// One and two flipped bits anywhere, in packets of many lengths, on flows of all kinds that are known.
    #[test]
    fn no_flipped_bit_nor_two_pass_on_a_known_flow() {
        let mut random = Rng::new(0x9e37_79b9_7f4a_7c15);
        for (len, flips) in (16..4116)
            .step_by(52)
            .flat_map(|len| (0..100).map(move |_| (len, None)))
            .chain([(2048, Some([(173, 3), (1834, 6)]))])
        {
            let mut p = Pair::new();
            let start = random.below(1 << 16) as u16;
            p.datagram([start]);
            let ident = start.wrapping_add(1 + random.below(4) as u16);
            let packet = p.long(ident, len);
            let mut anywhere = || {
                // The BTH's fifth byte is not covered.
                let at = random.below(len - 1);
                (at + usize::from(at >= 4), random.below(8))
            };
            let flips = flips.unwrap_or_else(|| [anywhere(), anywhere()]);
            let [one, other] = flips;
            let both: &[_] = if one == other { &[] } else { &flips };
            for flips in [&[one], &[other], both] {
                let mut bad = packet.clone();
                flips.iter().for_each(|&(at, bit)| bad[at] ^= 1 << bit);
                let checked = p.give(&bad);
                let right = matches!(checked, Checked::Good(_));
                assert_eq!(right, flips.is_empty(), "{len} bytes, {flips:?} flipped: {checked:?}");
            }
        }
    }

    /// A flipped bit of the source port, which nothing else guards where UDP's checksum is 0.
    #[test]
    fn a_flipped_bit_of_the_source_port_makes_no_flow_known() {
        let mut p = Pair::new();
        p.datagram([40]);
        for bit in 0..16 {
            for len in [16, 28, 1040, 4112] {
                let packet = p.long(41, len);
                p.port = PORT ^ 1 << bit;
                assert!(!matches!(p.give(&packet), Checked::Good(_)), "bit {bit}, {len} bytes");
                p.port = PORT;
            }
        }
        assert_eq!(p.learned(), 1);
    }

    #[test]
    fn damaged_packets_narrow_the_window_for_a_while() {
        let mut p = Pair::new();
        p.datagram([1000]);
        let damaged = |p: &mut Pair| {
            let mut bad = p.packet(1001);
            bad[16] ^= 1;
            assert!(matches!(p.give(&bad), Checked::Bad(_)));
        };
        (0..15).for_each(|_| damaged(&mut p));
        // 15 numbers were used up by them.
        p.datagram([1016 + 200]);
        damaged(&mut p);
        assert_eq!(p.number(1218 + 200), Checked::Odd(1218 + 200));
        p.datagram([1219 + 3]);
        p.pass(256);
        p.datagram([1223 + 200 + 256]);
        assert_eq!(p.refused(), 1);
    }

    #[test]
    fn short_packets_are_told_from_wrong_ones() {
        let mut p = Pair::new();
        assert_eq!(p.give(&[0; 15]), Checked::Short);
        assert_eq!(p.give(&[]), Checked::Short);
        assert!(matches!(p.give(&[0; 16]), Checked::Bad(_)));
    }

    #[test]
    fn flows_beyond_the_table_make_room_for_each_other_and_are_still_right() {
        let mut p = Pair::new();
        for round in 0..3_u16 {
            for port in 0..3 * FLOWS as u16 {
                p.turn_to(port);
                p.datagram([port.wrapping_mul(31).wrapping_add(round)]);
            }
        }
        assert_eq!(p.rx.flows.len(), 1 + FLOWS);
    }

    #[test]
    fn damage_drives_no_flow_out_of_the_table() {
        let mut p = Pair::new();
        p.datagram([7]);
        let packet = p.packet(8);
        for port in (0..60_000).filter(|&port| port != PORT) {
            p.port = port;
            p.give(&[0x55; 28]);
        }
        p.port = PORT;
        assert_eq!(p.give(&packet), Checked::Good(8));
        let known = p.rx.flows[1..].iter().filter(|f| f.used).count() as u64;
        assert_eq!(known, p.learned());
    }
}
