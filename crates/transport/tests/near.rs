//! Reliable connection by messages: the effects of requests, the order of their completions, and the conditions that
//! delay them.
mod messages;
mod pair;

use hca_core::*;
use hca_transport::*;
use messages::*;
use pair::*;

use Side::{A, B};
use WcStatus::Success;

const NUMBER: u16 = 0xfffd;
const QUIET: SendFlags = SendFlags::empty();

#[test]
fn every_operation_carries_its_data_at_every_length() {
    for len in [0, 1, 48, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 100_000] {
        let mut p = Ways::rc();
        p.fill(A, 0, len);
        p.fill(B, 400_000, len);
        for at in [500_000, 600_000, 700_000] {
            p.recv(B, at, len);
        }
        p.recv(B, 0, 0);
        let n = len as u32;
        p.send(A, SendOp::Send, 0, n);
        p.send(A, SendOp::SendImm(0xfeed), 0, n);
        p.send(A, SendOp::SendInv(KEY), 0, n);
        p.send(A, SendOp::Write(remote(100_000)), 0, n);
        p.send(A, SendOp::WriteImm(remote(200_000), 0xbeef), 0, n);
        p.send(A, SendOp::Read(remote(400_000)), 800_000, n);
        p.run();
        p.expect_sends(&[Success; 6]);
        let lens: Vec<_> =
            p.a.host
                .done
                .iter()
                .filter_map(|d| if let Done::Send(_, _, l) = d { Some(*l) } else { None })
                .collect();
        assert_eq!(lens, [0, 0, 0, 0, 0, n], "only a READ tells its length");
        for at in [500_000, 600_000, 700_000, 100_000, 200_000] {
            p.expect_bytes(B, at, 0, len);
        }
        p.expect_bytes(A, 800_000, 400_000, len);
        let recvs: Vec<_> =
            p.b.host.recvs().iter().map(|(i, r)| (*i, r.status, r.opcode, r.byte_len, r.extra)).collect();
        let recv = |i, extra| (i, Success, WcOpcode::Recv, n, extra);
        assert_eq!(
            recvs,
            [
                recv(0, RecvExtra::None),
                recv(1, RecvExtra::Imm(0xfeed)),
                recv(2, RecvExtra::Invalidated(KEY)),
                (3, Success, WcOpcode::RecvRdmaWithImm, n, RecvExtra::Imm(0xbeef)),
            ]
        );
        assert_eq!(p.b.host.invalidated, [KEY]);
        let pieces = len.div_ceil(PIECE).max(1);
        assert_eq!((p.sent_of(A, M::Write), p.sent_of(B, M::ReadData)), (pieces, pieces));
    }
}

#[test]
fn atomics_return_the_old_value() {
    let mut p = Ways::rc();
    p.b.host.mem[64..72].copy_from_slice(&5_u64.to_ne_bytes());
    let at = remote(64);
    p.send(A, SendOp::FetchAdd { remote: at, add: 3 }, 0, 8);
    p.send(A, SendOp::CompareSwap { remote: at, compare: 7, swap: 1 }, 8, 8);
    p.send(A, SendOp::CompareSwap { remote: at, compare: 8, swap: 20 }, 16, 8);
    p.send(A, SendOp::FetchAdd { remote: at, add: u64::MAX }, 24, 8);
    p.run();
    p.expect_sends(&[Success; 4]);
    let old: Vec<u64> =
        p.a.host.mem[..32].as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w)).collect();
    assert_eq!(old, [5, 8, 8, 20]);
    assert_eq!(p.b.host.mem[64..72], 19_u64.to_ne_bytes());
}

#[test]
fn requests_end_in_the_order_of_posting_and_unsignalled_ones_as_well() {
    let mut p = Ways::rc();
    p.recv(B, 0, 8);
    p.send(A, SendOp::Read(remote(0)), 0, 8);
    p.post(A, SendOp::Write(remote(0)), 0, 8, QUIET);
    p.post(A, SendOp::Send, 0, 8, QUIET);
    p.send(A, SendOp::FetchAdd { remote: remote(0), add: 1 }, 0, 8);
    p.post(A, SendOp::Write(remote(0)), 0, 0, QUIET);
    p.run();
    // The host itself checks the order.
    p.expect_sends(&[Success; 5]);
}

#[test]
fn one_acknowledgement_answers_all_requests_before_it() {
    let mut p = Ways::rc();
    p.sends(20, A, SendOp::Write(remote(0)), 0, 8);
    p.run();
    p.expect_sends(&[Success; 20]);
    let acks = p.sent(B);
    assert_eq!((acks.len(), acks[0].kind, acks[0].done), (1, M::Ack, NUMBER.wrapping_add(20)));
}

#[test]
fn a_response_answers_the_requests_before_it() {
    let mut p = Ways::rc();
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send(A, SendOp::Read(remote(0)), 0, 8);
    p.run();
    p.expect_sends(&[Success; 2]);
    assert_eq!(p.kinds(B), [M::ReadData]);
}

#[test]
fn requests_carry_acknowledgements_along() {
    let mut p = Ways::rc();
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send_side(A);
    p.take_all(B);
    assert!(p.b.qp.ack_owed().is_some());
    p.send(B, SendOp::Write(remote(0)), 0, 8);
    p.send_side(B);
    assert!(p.b.qp.ack_owed().is_none(), "told along");
    p.take_all(A);
    p.expect_sends(&[Success]);
    assert_eq!(p.ack_side(A), 1);
    p.take_all(B);
    assert_eq!(p.b.host.statuses(), [Success]);
}

#[test]
fn no_more_messages_leave_than_are_asked_for_the_first_of_all_included() {
    let mut p = Ways::rc();
    p.burst = 1;
    p.send(A, SendOp::Send, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    for kinds in [&[M::Hello][..], &[M::Hello, M::Send], &[M::Hello, M::Send, M::Send]] {
        assert!(p.a.qp.wants_transmit());
        p.send_side(A);
        assert_eq!(p.kinds(A), kinds);
    }
}

#[test]
fn a_fence_waits_for_reads_and_atomics_only() {
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    for (before, waits) in [
        (SendOp::Read(remote(0)), true),
        (SendOp::FetchAdd { remote: remote(0), add: 1 }, true),
        (SendOp::Write(remote(0)), false),
    ] {
        for op in [SendOp::Write(remote(64)), SendOp::Read(remote(64))] {
            let mut p = Ways::rc();
            p.send(A, before, 0, 8);
            p.post(A, op, 0, 8, fenced);
            p.send_side(A);
            assert_eq!(p.log.len(), if waits { 2 } else { 3 }, "the Hello, the first and perhaps the second");
            assert!(!p.a.qp.wants_transmit());
            p.run();
            p.expect_sends(&[Success; 2]);
        }
    }
}

#[test]
fn no_more_reads_than_max_rd_atomic_are_under_way() {
    for rd_atomic in [1, 2, 4] {
        let mut p = Ways::new(&Setup { rd_atomic, ..Setup::default() });
        for i in 0..10 {
            p.send(A, SendOp::Read(remote(i * 8)), i * 8, 8);
            p.send(A, SendOp::FetchAdd { remote: remote(MEMORY - 8), add: 1 }, 1000, 8);
        }
        p.send_side(A);
        assert_eq!(p.log.len(), 1 + usize::from(rd_atomic));
        p.run();
        p.expect_sends(&[Success; 20]);
        assert_eq!(p.b.host.atomics, 10);
    }
}

#[test]
fn a_ways_end_holds_messages_back_and_loses_none() {
    for room in 1..4 {
        let mut p = Ways::rc();
        p.room = room;
        p.fill(A, 0, 20_000);
        p.fill(B, 100_000, 20_000);
        p.recv(B, 200_000, 20_000);
        p.send(A, SendOp::Send, 0, 20_000);
        p.send(A, SendOp::Read(remote(100_000)), 50_000, 20_000);
        p.send(A, SendOp::FetchAdd { remote: remote(MEMORY - 8), add: 1 }, 90_000, 8);
        p.send(B, SendOp::Write(remote(300_000)), 100_000, 20_000);
        p.run();
        p.expect_sends(&[Success; 3]);
        assert_eq!(p.b.host.statuses(), [Success]);
        p.expect_bytes(B, 200_000, 0, 20_000);
        p.expect_bytes(A, 50_000, 100_000, 20_000);
        p.expect_bytes(A, 300_000, 100_000, 20_000);
        assert_eq!(p.sent_of(A, M::Hello), 1);
    }
}

#[test]
fn without_receive_requests_one_message_goes_as_a_probe() {
    let mut p = Ways::rc();
    p.recv(B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.run();
    // One was told: none is left.
    p.sends(4, A, SendOp::Send, 0, 8);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.settle();
    assert_eq!((p.sent_of(A, M::Send), p.rnr_naks(B)), (2, 1));
    assert_eq!(p.sent_of(A, M::Write), 0, "nothing overtakes");
    p.recvs(4, B, 0, 8);
    p.run();
    p.expect_sends(&[Success; 6]);
    assert_eq!(p.rnr_naks(B), 1, "the probe's acknowledgement tells how many may follow");
}

#[test]
fn limits_are_told_although_requests_carry_acknowledgements_along() {
    // Each side sends for each message that it gets; without a limit told the SENDs of A would stop at the first one.
    let mut p = Ways::new(&Setup { rnr_retry: 0, ..Setup::default() });
    for _ in 0..4 {
        p.recv(B, 0, 8);
        p.recv(A, 0, 8);
    }
    p.send(A, SendOp::Send, 0, 8);
    p.run();
    for round in 0..100 {
        p.send(A, SendOp::Send, 0, 8);
        p.send(A, SendOp::Send, 0, 8);
        p.send_side(A);
        p.take_all(B);
        p.recvs(2, B, 0, 8);
        p.send(B, SendOp::Write(remote(0)), 0, 8);
        p.send_side(B);
        p.ack_side(B);
        p.take_all(A);
        p.ack_side(A);
        p.take_all(B);
        assert!(p.a.host.statuses().len() >= 2 * round, "round {round}");
    }
    p.run();
    p.expect_sends(&[Success; 201]);
    assert_eq!(p.rnr_naks(B), 0);
    let (acks, writes) = (p.sent_of(B, M::Ack), p.sent_of(B, M::Write));
    assert!(writes == 100 && acks < 100, "{acks} acknowledgements of their own");
}

#[test]
fn a_limit_that_was_passed_is_told_anew_although_the_rest_went_along() {
    let mut p = Ways::rc();
    p.recv(B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    // A knows of no receive request: this one is a probe, and finds one.
    p.recvs(8, B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.send_side(A);
    p.take_all(B);
    p.send(B, SendOp::Write(remote(0)), 0, 8);
    p.send_side(B);
    assert!(p.b.qp.ack_owed().is_some(), "of the limit");
    p.ack_side(B);
    p.take_all(A);
    p.log.clear();
    p.sends(9, A, SendOp::Send, 0, 8);
    p.send_side(A);
    assert_eq!(p.sent_of(A, M::Send), 7);
}

#[test]
fn the_limit_counts_what_every_operation_used() {
    for op in [SendOp::Send, SendOp::SendImm(1), SendOp::SendInv(KEY), SendOp::WriteImm(remote(0), 1)] {
        for len in [0, 8, 3 * PIECE as u32] {
            let mut p = Ways::rc();
            p.recvs(3, B, 200_000, len as usize);
            p.send(A, op, 0, len);
            p.run();
            p.expect_sends(&[Success]);
            let told = p.sent(B).into_iter().rfind(|m| m.kind == M::Ack && m.has(LIMITED)).map(|m| m.extra);
            assert_eq!(told, Some(3), "{op:?} of {len}: one is used, and two are left");
        }
    }
}

#[test]
fn the_limit_counts_what_a_message_under_way_holds() {
    let mut p = Ways::rc();
    p.recvs(3, B, 200_000, 3 * PIECE);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.run();
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send(A, SendOp::Send, 0, 3 * PIECE as u32);
    p.send_side(A);
    // The WRITE, and the first piece of the SEND.
    assert!(p.take(B) && p.take(B));
    p.log.clear();
    p.ack_side(B);
    let told: Vec<_> = p.sent(B).into_iter().filter(|m| m.has(LIMITED)).map(|m| m.extra).collect();
    assert_eq!(told, [3], "one is held, and two are left");
}

#[test]
fn a_shared_receive_queue_tells_no_limit() {
    let mut p = Ways::new(&Setup { srq_b: true, ..Setup::default() });
    for _ in 0..40 {
        p.recv(B, 0, 8);
        p.send(A, SendOp::Send, 0, 8);
    }
    p.run();
    p.expect_sends(&[Success; 40]);
    assert!(p.sent(B).iter().all(|m| m.kind == M::Ack && !m.has(LIMITED)));
}

#[test]
fn a_solicited_request_says_so_once() {
    let mut p = Ways::rc();
    p.recvs(4, B, 0, 9000);
    p.post(A, SendOp::Send, 0, 9000, SendFlags::SOLICITED);
    p.post(A, SendOp::Send, 0, 9000, QUIET);
    p.post(A, SendOp::WriteImm(remote(0), 1), 0, 9000, SendFlags::SOLICITED);
    p.post(A, SendOp::WriteImm(remote(0), 1), 0, 9000, QUIET);
    p.run();
    let flags: Vec<bool> = p.b.host.recvs().iter().map(|r| r.1.solicited).collect();
    assert_eq!(flags, [true, false, true, false]);
}

#[test]
fn the_first_message_in_rtr_raises_comm_established_once() {
    let s = Setup::default();
    let mut p = Ways::one_sided(&s);
    p.ready_to_receive(B, &s);
    p.recv(B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.send(A, SendOp::Read(remote(0)), 0, 8);
    p.run();
    p.expect_sends(&[Success; 2]);
    let events = p.b.host.done.iter().filter(|d| **d == Done::Event(QpEvent::CommEstablished)).count();
    assert_eq!(events, 1, "and it answers in RTR");
}

#[test]
fn a_queue_pair_in_rtr_takes_no_answers_and_sends_nothing() {
    let s = Setup::default();
    let mut p = Ways::reset(&s);
    p.ready_to_receive(A, &s);
    p.send(A, SendOp::Send, 0, 8);
    p.hand_msg(A, &Msg::new(M::Ack, A, NUMBER + 1).done(NUMBER + 1));
    assert_eq!(p.a.host.counted(Count::DroppedState), 1);
    assert_eq!(p.send_side(A), 0);
    p.expect_sends(&[]);
}

#[test]
fn a_drained_send_queue_finishes_what_is_under_way_and_tells() {
    let sqd = QpAttr { state: Some(QpState::Sqd), sqd_event: Some(true), ..QpAttr::default() };
    let mut p = Ways::rc();
    p.burst = 2;
    p.send(A, SendOp::Write(remote(0)), 0, 3 * PIECE as u32);
    p.send_side(A);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.modify(A, sqd).unwrap();
    assert!(!p.a.host.has_event(QpEvent::SqDrained));
    p.run();
    p.expect_sends(&[Success]);
    assert_eq!(p.a.host.done.last(), Some(&Done::Event(QpEvent::SqDrained)));
    // The responder goes on meanwhile.
    p.send(B, SendOp::Read(remote(0)), 0, 8);
    p.run();
    assert_eq!(p.b.host.statuses(), [Success]);
    p.state(A, QpState::Rts);
    p.run();
    p.expect_sends(&[Success; 2]);
    // An idle one drains at once.
    p.a.host.done.clear();
    p.modify(A, sqd).unwrap();
    assert!(p.a.host.has_event(QpEvent::SqDrained));
}

#[test]
fn a_queue_drains_by_what_is_told_along_and_by_what_is_sent_again() {
    let sqd = QpAttr { state: Some(QpState::Sqd), sqd_event: Some(true), ..QpAttr::default() };
    let mut p = Ways::rc();
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send_side(A);
    p.modify(A, sqd).unwrap();
    p.take_all(B);
    p.send(B, SendOp::Write(remote(0)), 0, 8);
    p.send_side(B);
    p.take_all(A);
    assert!(p.a.host.has_event(QpEvent::SqDrained));

    let s = Setup::default();
    let mut p = Ways::one_sided(&s);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send(A, SendOp::Read(remote(0)), 0, 8);
    p.send_side(A);
    p.lose();
    p.modify(A, sqd).unwrap();
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    while p.a.host.counted(Count::Probe) == 0 {
        assert!(p.skip());
    }
    assert!(!p.a.host.has_event(QpEvent::SqDrained));
    p.ready_to_receive(B, &s);
    p.run();
    p.expect_sends(&[Success; 2]);
    assert_eq!(p.a.host.done.last(), Some(&Done::Event(QpEvent::SqDrained)));
    p.state(A, QpState::Rts);
    p.run();
    p.expect_sends(&[Success; 3]);
}

#[test]
fn p_keys_that_do_not_match_let_nothing_in() {
    // Limited members of one partition do not match each other.
    for (a, b, lets_in) in
        [(0xffff, 0xffff, true), (0x7fff, 0xffff, true), (0x7fff, 0x7fff, false), (0x8001, 0x8002, false)]
    {
        let s = Setup::default();
        let mut p = Ways::reset(&s);
        for (side, pkey) in [(A, a), (B, b)] {
            p.ready_to_receive(side, &s);
            p.ready_to_send(side, &s);
            let sqd = |pkey| QpAttr { state: Some(QpState::Sqd), pkey, ..QpAttr::default() };
            p.modify(side, sqd(None)).unwrap();
            p.modify(side, sqd(Some(Pkey::new(pkey)))).unwrap();
            p.state(side, QpState::Rts);
        }
        p.send(A, SendOp::Write(remote(0)), 0, 8);
        p.run();
        let want = if lets_in { Success } else { WcStatus::RetryExceeded };
        p.expect_sends(&[want]);
        assert_eq!(p.b.host.counted(Count::DroppedPkey) > 0, !lets_in);
        assert_eq!(p.b.host.writes > 0, lets_in);
    }
}

#[test]
fn a_p_key_that_changes_is_told_and_judged_anew() {
    let other = Pkey::new(0x8001);
    let change = |p: &mut Ways, side| {
        p.state(side, QpState::Sqd);
        p.modify(side, QpAttr { state: Some(QpState::Sqd), pkey: Some(other), ..QpAttr::default() }).unwrap();
        p.state(side, QpState::Rts);
    };
    let write = |p: &mut Ways| {
        p.send(A, SendOp::Write(remote(64)), 0, 8);
        p.settle();
    };
    for first in [A, B] {
        let mut p = Ways::rc();
        write(&mut p);
        p.expect_sends(&[Success]);
        change(&mut p, first);
        write(&mut p);
        p.expect_sends(&[Success]);
        assert_eq!(p.b.host.writes, 1, "{first:?}: the keys differ now");
        assert!(p.b.host.counted(Count::DroppedPkey) > 0, "{first:?}");
        change(&mut p, first.other());
        p.run();
        p.expect_sends(&[Success; 2]);
    }
    // Both at once: what is told by the first message is enough.
    let mut p = Ways::rc();
    write(&mut p);
    change(&mut p, A);
    change(&mut p, B);
    write(&mut p);
    p.expect_sends(&[Success; 2]);
}

#[test]
fn without_a_hello_nothing_is_let_in() {
    let mut p = Ways::rc();
    p.hand_msg(B, &Msg::new(M::Write, B, NUMBER).remote(remote(0), 8).data(8));
    assert_eq!((p.b.host.counted(Count::DroppedPkey), p.b.host.writes), (1, 0));
}

/// Lets a side send this many messages at most, and returns how many left.
fn sends_at_most(p: &mut Ways, side: Side, max: usize) -> usize {
    p.burst = max;
    let sent = p.send_side(side);
    p.burst = 64;
    sent
}

#[test]
fn no_more_messages_leave_than_may() {
    for len in [8, 3 * PIECE as u32] {
        let mut p = Ways::rc();
        p.recvs(8, B, 0, len as usize);
        // The peer knows this side, and this side its receive requests.
        p.send(A, SendOp::Write(remote(0)), 0, 8);
        p.settle();
        p.sends(8, A, SendOp::Send, 0, len);
        for max in [1, 3, 0, 2] {
            assert_eq!(sends_at_most(&mut p, A, max), max, "{len} bytes");
        }
    }
    // Answers are counted, too.
    let mut p = Ways::rc();
    p.fill(B, 0, 5 * PIECE);
    p.send(B, SendOp::Write(remote(PIECE * 5)), 0, 8);
    p.settle();
    p.send(A, SendOp::Read(remote(0)), 0, 5 * PIECE as u32);
    p.send_side(A);
    p.take_all(B);
    p.log.clear();
    p.send(B, SendOp::Write(remote(PIECE * 5)), 0, 8);
    for (max, sent) in [(1, 1), (2, 2), (0, 0), (3, 3)] {
        assert_eq!(sends_at_most(&mut p, B, max), sent);
    }
    assert_eq!(p.sent_of(B, M::ReadData), 5);
    p.run();
    p.expect_bytes(A, 0, 0, 5 * PIECE);
}

/// A has small SENDs, is known to B, and knows of so many receive requests there.
fn small(receives: usize) -> Ways {
    let mut p = Ways::rc();
    p.recvs(receives, B, 0, 8);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.settle();
    p.expect_sends(&[Success]);
    p
}

#[test]
fn small_sends_are_not_begun_while_draining() {
    let mut p = small(1);
    p.state(A, QpState::Sqd);
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    assert_eq!(p.sent_of(A, M::Send), 0);
    p.state(A, QpState::Rts);
    p.run();
    p.expect_sends(&[Success; 2]);
}

#[test]
fn small_sends_go_as_far_as_the_peer_has_receive_requests() {
    let mut p = small(3);
    for _ in 0..8 {
        p.queue(A, SendOp::Send, 0, 8);
    }
    p.send(A, SendOp::Send, 0, 8);
    p.send_side(A);
    assert_eq!(p.sent_of(A, M::Send), 3, "of three that the peer takes");
    p.recvs(6, B, 0, 8);
    p.run();
    p.expect_sends(&[Success; 10]);
    assert_eq!((p.b.host.recvs().len(), p.rnr_naks(B)), (9, 0));
}

#[test]
fn a_small_send_to_a_peer_that_is_gone_fails() {
    let mut p = small(1);
    p.with(A, |_, qp, host| qp.peer_gone(host));
    p.send(A, SendOp::Send, 0, 8);
    p.send_side(A);
    p.expect_sends(&[Success, WcStatus::RetryExceeded]);
    assert_eq!(p.sent_of(A, M::Send), 0);
}

#[test]
fn a_small_send_that_was_refused_goes_alone() {
    let mut p = small(0);
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    assert_eq!(p.rnr_naks(B), 1);
    for _ in 0..4 {
        p.recv(B, 0, 8);
        p.send(A, SendOp::Send, 0, 8);
    }
    p.log.clear();
    p.skip();
    p.skip();
    p.send_side(A);
    assert_eq!(p.sent_of(A, M::Send), 1, "whether it is taken shows first");
    p.recv(B, 0, 8);
    p.run();
    p.expect_sends(&[Success; 6]);
}

#[test]
fn the_quick_way_is_for_those_whom_nothing_keeps_back() {
    // Before anything was said, the peer does not know the partition key.
    let p = Ways::rc();
    let accesses = Lanes { accesses: true, ..Lanes::default() };
    assert_eq!(p.a.qp.lanes(), accesses, "what reaches its memory says nothing");
    let mut p = small(0);
    assert_eq!(p.a.qp.lanes(), Lanes { sends: true, ..accesses }, "the peer has said nothing");
    // A READ that is not answered.
    p.send(A, SendOp::Read(remote(0)), 0, 8);
    p.send_side(A);
    assert!(!p.a.qp.lanes().sends);
    p.settle();
    assert!(p.a.qp.lanes().sends);
    // One that was refused, and goes alone.
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    assert!(!p.a.qp.lanes().sends, "it waits");
    p.skip();
    assert!(!p.a.qp.lanes().sends, "it waits still");
    p.skip();
    p.send_side(A);
    assert!(!p.a.qp.lanes().sends, "it goes alone");
    p.lose();
    // Draining, and while an event of it is due.
    let mut p = small(0);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send_side(A);
    p.modify(A, QpAttr { state: Some(QpState::Sqd), sqd_event: Some(true), ..QpAttr::default() }).unwrap();
    p.send_side(A);
    assert!(!p.a.qp.lanes().sends);
    p.state(A, QpState::Rts);
    p.send_side(A);
    assert!(!p.a.qp.lanes().sends, "an event is due");
    let mut p = small(0);
    p.state(A, QpState::Sqd);
    p.send_side(A);
    assert_eq!(p.a.qp.lanes(), Lanes::default(), "it does not send");
    // A peer that is gone.
    let mut p = small(0);
    p.with(A, |_, qp, host| qp.peer_gone(host));
    assert_eq!(p.a.qp.lanes(), Lanes::default());
}

#[test]
fn a_lane_tells_of_credits() {
    let mut p = small(0);
    let credit = |p: &mut Ways| p.a.qp.lane().unwrap().has_credit();
    assert!(!credit(&mut p), "the peer has no receive request");
    p.recvs(2, B, 0, 8);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.settle();
    for left in [true, true, false] {
        assert_eq!(credit(&mut p), left);
        if left {
            p.queue(A, SendOp::Send, 0, 8);
            assert!(p.send_quick(A));
        }
    }
    p.settle();
    assert_eq!(p.b.host.recvs().len(), 2);
}

#[test]
fn the_quick_way_keeps_what_is_owed_to_the_peer() {
    let mut p = small(0);
    p.recvs(4, A, 0, 8);
    p.send(B, SendOp::Write(remote(0)), 0, 8);
    p.recv(B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    assert!(p.b.qp.lanes().sends && p.b.qp.lane().unwrap().has_credit());
    // A knows of no receive request: this one is a probe, and finds one. How many there are is told by itself.
    p.recvs(8, B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.send_side(A);
    p.take_all(B);
    // B looks once whether there is something to send.
    p.send_side(B);
    p.queue(B, SendOp::Send, 0, 8);
    assert!(p.send_quick(B));
    assert!(p.b.qp.ack_owed().is_some());
    p.settle();
    assert_eq!((p.a.host.recvs().len(), p.b.host.statuses().len()), (1, 2));
    // A refusal goes before anything else.
    let mut p = small(0);
    p.send(B, SendOp::Write(remote(0)), 0, 8);
    p.settle();
    p.send(A, SendOp::Send, 0, 8);
    p.send_side(A);
    p.take_all(B);
    assert!(!p.b.qp.lanes().sends);
    p.send_side(B);
    assert_eq!(p.rnr_naks(B), 1);
}
