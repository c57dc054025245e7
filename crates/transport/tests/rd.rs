//! Reliable datagrams (RD): end-to-end contexts, requests that name queue pairs, and RESYNC.
mod pair;

use std::collections::VecDeque;

use pair::*;

use WcStatus::*;

/// Queue pairs of the domain at B, and the key of each one's protection domain.
const AT_B: [(u32, Rkey); 2] = [(0x22_0001, KEY), (0x22_0002, Rkey::new(0x5678))];
/// Queue pairs of the domain at A.
const AT_A: [u32; 2] = [0x11_0001, 0x11_0002];
/// A number that no queue pair of the domain has.
const ELSEWHERE: u32 = 0x22_0009;

fn pair_of(setup: &Setup) -> Pair {
    let mut p = Pair::new(setup);
    p.a.host.srq = true;
    for (number, key) in AT_B {
        p.b.host.xrc.queues.insert(number, (VecDeque::new(), key));
    }
    p
}
fn pair() -> Pair {
    pair_of(&Setup::rd())
}
/// Posts a request from a queue pair of A to one of B.
fn send(p: &mut Pair, (from, to): (u32, u32), op: SendOp, addr: usize, len: u32) -> u32 {
    p.a.host.ends = RdEnds { to: Qpn::new(to), qkey: QKEY, from: Qpn::new(from) };
    p.send(A, op, addr, len)
}
fn at(addr: u64, rkey: Rkey) -> RemoteAddr {
    RemoteAddr { addr, rkey }
}
fn recv_statuses(p: &Pair) -> Vec<WcStatus> {
    p.b.host.recvs().iter().map(|(_, r)| r.status).collect()
}

#[test]
fn each_message_goes_to_the_queue_pair_that_it_names() {
    let mut p = pair();
    let [(one, _), (two, _)] = AT_B;
    p.fill(A, 0, 10_000);
    for (to, addr) in [(one, 100_000), (two, 200_000), (two, 300_000)] {
        p.recv_srq(to, addr, 10_000);
    }
    send(&mut p, (AT_A[0], two), SendOp::Send, 0, 10_000);
    send(&mut p, (AT_A[1], one), SendOp::SendImm(5), 0, 9_000);
    send(&mut p, (AT_A[1], two), SendOp::Send, 0, 40);
    p.ends(&[Success; 3]);
    assert_eq!(p.b.host.xrc.completed, [two, one, two]);
    let recvs: Vec<_> = p.b.host.recvs().iter().map(|(id, r)| (*id, r.byte_len, r.src_qp.raw())).collect();
    assert_eq!(recvs, [(1, 10_000, AT_A[0]), (0, 9_000, AT_A[1]), (2, 40, AT_A[1])]);
    for (addr, len) in [(200_000, 10_000), (100_000, 9_000), (300_000, 40)] {
        p.expect_bytes(B, addr, 0, len);
    }
}

#[test]
fn rdma_and_atomics_take_the_keys_of_the_queue_pair_that_they_name() {
    let mut p = pair();
    let [(one, key_one), (two, key_two)] = AT_B;
    p.fill(A, 0, 9_000);
    p.fill(B, 500_000, 9_000);
    p.recv_srq(two, 0, 0);
    let from = AT_A[0];
    send(&mut p, (from, one), SendOp::Read(at(500_000, key_one)), 100_000, 9_000);
    send(&mut p, (from, two), SendOp::Read(at(500_000, key_two)), 200_000, 9_000);
    send(&mut p, (from, one), SendOp::Write(at(600_000, key_one)), 0, 9_000);
    send(&mut p, (from, two), SendOp::WriteImm(at(700_000, key_two), 3), 0, 9_000);
    send(&mut p, (from, two), SendOp::FetchAdd { remote: at(800_000, key_two), add: 4 }, 300_000, 8);
    let swap = SendOp::CompareSwap { remote: at(800_000, key_one), compare: 4, swap: 9 };
    send(&mut p, (from, one), swap, 300_008, 8);
    p.ends(&[Success; 6]);
    for (side, addr, from) in [(A, 100_000, 500_000), (A, 200_000, 500_000), (B, 600_000, 0), (B, 700_000, 0)]
    {
        p.expect_bytes(side, addr, from, 9_000);
    }
    assert_eq!(p.b.host.mem[800_000..800_008], 9_u64.to_ne_bytes());
    assert_eq!(p.b.host.recvs().len(), 1, "WRITE with immediate data alone");
}

#[test]
fn every_packet_names_the_context_and_requests_name_both_queue_pairs() {
    let mut p = pair();
    let (to, key) = AT_B[0];
    p.recv_srq(to, 0, 1000);
    for op in [SendOp::Send, SendOp::Write(at(0, key)), SendOp::Read(at(0, key))] {
        send(&mut p, (AT_A[1], to), op, 0, 1000);
    }
    send(&mut p, (AT_A[1], to), SendOp::FetchAdd { remote: at(0, key), add: 1 }, 0, 8);
    p.ends(&[Success; 4]);
    for sent in &p.wire {
        let packet = sent.packet();
        assert_eq!(packet.opcode().kind(), Some(TransportKind::Rd));
        assert_eq!(packet.rdeth().map(|r| r.eec.get()), Some(qpn(sent.side.other()).raw()), "{packet:?}");
        let ends = packet.deth().map(|d| (d.qkey.get(), d.src_qp.get()));
        let (to, named) = if sent.side == A { (to, Some((QKEY.raw(), AT_A[1]))) } else { (AT_A[1], None) };
        assert_eq!((packet.bth().dest_qp().raw(), ends), (to, named), "{packet:?}");
    }
}

#[test]
fn one_message_is_under_way_at_a_time() {
    let mut p = pair();
    let (to, _) = AT_B[0];
    for i in 0..3 {
        p.recv_srq(to, i * 1000, 1000);
        send(&mut p, (AT_A[i % 2], to), SendOp::Send, 0, 600);
    }
    let psn = p.psns(A).len();
    p.transmit();
    assert_eq!(p.psns(A).len() - psn, 3, "the packets of the first message");
    p.ends(&[Success; 3]);
}

/// What a request is refused for, how it ends, and how its receive request does, if it takes one.
const REFUSALS: [(SendOp, u32, WcStatus, Option<WcStatus>); 5] = [
    (SendOp::Write(RemoteAddr { addr: 0, rkey: Rkey::new(1) }), 700, RemoteAccess, None),
    (SendOp::Read(RemoteAddr { addr: 0, rkey: Rkey::new(1) }), 700, RemoteAccess, None),
    (SendOp::FetchAdd { remote: RemoteAddr { addr: 4, rkey: KEY }, add: 1 }, 8, RemoteInvalidRequest, None),
    // More than one packet of it was placed.
    (SendOp::Send, 1700, RemoteInvalidRequest, Some(LocalLength)),
    (SendOp::WriteImm(RemoteAddr { addr: 0, rkey: Rkey::new(1) }, 3), 16, RemoteAccess, None),
];

#[test]
fn a_refused_request_ends_alone_and_the_next_ones_go_on() {
    for (op, len, status, recv) in REFUSALS {
        let mut p = pair();
        let [(one, _), (two, _)] = AT_B;
        p.recv_srq(one, 0, 1000);
        p.recv_srq(two, 4000, 1000);
        p.fill(A, 0, 2000);
        send(&mut p, (AT_A[0], one), op, 0, len);
        send(&mut p, (AT_A[1], two), SendOp::Send, 0, 900);
        p.ends(&[status, Success]);
        let states = (p.a.qp.state(), p.b.qp.state());
        assert_eq!(states, (QpState::Rts, QpState::Rts), "{op:?}");
        let statuses: Vec<_> = recv.into_iter().chain([Success]).collect();
        assert_eq!(recv_statuses(&p), statuses, "{op:?}");
        p.expect_bytes(B, 4000, 0, 900);
        assert!(p.ops(A).contains(&PacketOp::Resync), "{op:?}");
    }
}

#[test]
fn a_queue_pair_of_no_such_number_or_q_key_is_refused_as_an_invalid_rd_request() {
    for (to, qkey) in [(ELSEWHERE, QKEY), (AT_B[0].0, Qkey::new(1))] {
        let mut p = pair();
        for (number, _) in AT_B {
            p.recv_srq(number, 0, 64);
        }
        p.a.host.ends = RdEnds { to: Qpn::new(to), qkey, from: Qpn::new(AT_A[0]) };
        p.send(A, SendOp::Send, 0, 8);
        send(&mut p, (AT_A[1], AT_B[1].0), SendOp::Send, 0, 8);
        p.ends(&[RemoteInvalidRd, Success]);
        assert_eq!(p.naks(B), [NakCode::InvalidRd]);
        assert_eq!(p.b.host.xrc.completed, [AT_B[1].0]);
    }
}

#[test]
fn a_message_that_fails_at_its_sender_is_aborted_at_its_receiver() {
    let mut p = pair();
    let [(one, _), (two, _)] = AT_B;
    p.recv_srq(one, 0, 10_000);
    p.recv_srq(two, 20_000, 1000);
    p.sink_room = 3;
    send(&mut p, (AT_A[0], one), SendOp::Send, 0, 5000);
    p.transmit_side(A);
    p.a.host.sq[0].bad = true;
    p.sink_room = usize::MAX;
    send(&mut p, (AT_A[1], two), SendOp::Send, 0, 900);
    p.ends(&[LocalProtection, Success]);
    assert_eq!(recv_statuses(&p), [RemoteAborted, Success]);
    assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Rts, QpState::Rts));
}

#[test]
fn a_request_that_fails_before_its_first_packet_needs_no_resync() {
    let mut p = pair();
    p.recv_srq(AT_B[0].0, 0, 64);
    p.a.host.ends = RdEnds { to: Qpn::new(AT_B[0].0), qkey: QKEY, from: Qpn::new(AT_A[0]) };
    for (len, bad) in [(8, true), (700, true), (8, false)] {
        let request = SendRequest { op: SendOp::Send.into(), flags: SendFlags::SIGNALED, len, dest: None };
        p.post_raw(A, Posted { request, addr: 0, bad });
    }
    p.ends(&[LocalProtection, LocalProtection, Success]);
    assert_eq!(p.ops(A), [PacketOp::SendOnly]);
}

/// Each packet of either side is lost, doubled and late in turn.
#[test]
fn a_refusal_and_its_resync_survive_each_fault_of_each_packet() {
    for (op, len, status, recv) in REFUSALS {
        for side in [A, B] {
            for n in 0..12 {
                for fate in [Fate::Drop, Fate::Double, Fate::Late(300_000)] {
                    let mut p = pair();
                    let [(one, _), (two, _)] = AT_B;
                    p.recv_srq(one, 0, 1000);
                    for i in 0..2 {
                        p.recv_srq(two, 4000 + 1000 * i, 1000);
                    }
                    p.fill(A, 0, 2000);
                    p.script = Box::new(move |s, k, _| if s == side && k == n { fate } else { Fate::Pass });
                    for (to, op, len) in [(two, SendOp::Send, 900), (one, op, len), (two, SendOp::Send, 700)]
                    {
                        send(&mut p, (AT_A[0], to), op, 0, len);
                    }
                    p.run();
                    let what = format!("{op:?}, packet {n} of {side:?}: {fate:?}");
                    assert_eq!(p.a.host.statuses(), [Success, status, Success], "{what}");
                    let statuses: Vec<_> = [Success].into_iter().chain(recv).chain([Success]).collect();
                    assert_eq!(recv_statuses(&p), statuses, "{what}");
                    p.expect_bytes(B, 4000, 0, 900);
                    p.expect_bytes(B, 5000, 0, 700);
                }
            }
        }
    }
}

#[test]
fn a_late_packet_of_an_aborted_message_is_dropped() {
    let mut p = pair();
    let [(one, _), (two, _)] = AT_B;
    p.recv_srq(one, 0, 1000);
    p.recv_srq(two, 4000, 1000);
    // The fourth packet comes behind the RESYNC, and the next message.
    p.script = Box::new(|s, n, _| if s == A && n == 3 { Fate::Late(10_000_000) } else { Fate::Pass });
    send(&mut p, (AT_A[0], one), SendOp::Send, 0, 1700);
    send(&mut p, (AT_A[1], two), SendOp::Send, 0, 900);
    p.ends(&[RemoteInvalidRequest, Success]);
    assert_eq!(recv_statuses(&p), [LocalLength, Success]);
}

#[test]
fn a_peer_that_does_not_answer_ends_the_context() {
    let mut p = pair_of(&Setup { retry_cnt: 1, ..Setup::rd() });
    p.recv_srq(AT_B[0].0, 0, 64);
    p.script = Box::new(|s, _, _| if s == A { Fate::Drop } else { Fate::Pass });
    send(&mut p, (AT_A[0], AT_B[0].0), SendOp::Send, 0, 8);
    p.ends(&[RetryExceeded]);
    assert_eq!(p.a.qp.state(), QpState::Error);
}

#[test]
fn a_resync_that_is_not_answered_ends_the_context_and_no_request() {
    let mut p = pair_of(&Setup { retry_cnt: 1, ..Setup::rd() });
    // No answer comes behind the refusal.
    p.script = Box::new(|s, n, _| if s == B && n > 0 { Fate::Drop } else { Fate::Pass });
    send(&mut p, (AT_A[0], AT_B[0].0), SendOp::Write(at(0, Rkey::new(1))), 0, 8);
    p.ends(&[RemoteAccess]);
    assert_eq!(p.a.qp.state(), QpState::Error);
}

#[test]
fn an_abandoned_message_leaves_its_context_to_the_others() {
    let mut p = pair();
    let [(one, _), (two, _)] = AT_B;
    p.recv_srq(two, 4000, 1000);
    // There is no receive request for it.
    send(&mut p, (AT_A[0], one), SendOp::Send, 0, 600);
    p.run_until(200_000);
    assert!(p.b.host.counted(Count::RnrNakSent) > 0 && !p.a.qp.is_vacant());
    assert!(p.a.qp.abandon(WrFlushed, &mut p.a.host));
    send(&mut p, (AT_A[1], two), SendOp::Send, 0, 900);
    p.ends(&[WrFlushed, Success]);
    assert!(p.a.qp.is_vacant());
}

#[test]
fn the_rest_of_a_message_to_a_queue_pair_that_goes_is_refused() {
    let mut p = pair();
    let [(one, _), (two, _)] = AT_B;
    p.recv_srq(one, 0, 10_000);
    p.recv_srq(two, 20_000, 1000);
    p.script = Box::new(|s, n, _| if s == A && n >= 3 { Fate::Drop } else { Fate::Pass });
    send(&mut p, (AT_A[0], one), SendOp::Send, 0, 5000);
    while p.b.host.held.is_none() {
        assert!(p.turn());
    }
    p.b.qp.refuse_inbound(&mut p.b.host);
    p.b.host.xrc.queues.remove(&one);
    p.script = Box::new(|_, _, _| Fate::Pass);
    send(&mut p, (AT_A[1], two), SendOp::Send, 0, 900);
    p.ends(&[RemoteInvalidRd, Success]);
    assert_eq!(recv_statuses(&p), [WrFlushed, Success]);
}

#[test]
fn a_refusal_that_a_resync_crosses_is_that_of_the_message_before() {
    let mut p = pair();
    let [(one, _), (two, _)] = AT_B;
    p.recv_srq(one, 0, 10_000);
    p.recv_srq(two, 20_000, 1000);
    // The RESYNC is late. Its PSN is the one that B expects next when B refuses the message.
    p.script = Box::new(|s, n, _| if s == A && n == 3 { Fate::Late(100_000) } else { Fate::Pass });
    p.sink_room = 3;
    send(&mut p, (AT_A[0], one), SendOp::Send, 0, 5000);
    p.transmit_side(A);
    p.sink_room = usize::MAX;
    assert!(p.a.qp.abandon(WrFlushed, &mut p.a.host));
    while p.b.host.held.is_none() {
        assert!(p.turn());
    }
    p.b.qp.refuse_inbound(&mut p.b.host);
    send(&mut p, (AT_A[1], two), SendOp::Send, 0, 900);
    p.run();
    assert!(p.naks(B).contains(&NakCode::InvalidRd));
    p.expect_sends(&[WrFlushed, Success]);
    assert_eq!(recv_statuses(&p), [WrFlushed, Success]);
    assert!(p.a.qp.is_vacant());
}
