//! Reliable connection by messages: what requests do, in which order they end, and what holds them back.
mod messages;
mod pair;

use std::cell::RefCell;
use std::rc::Rc;

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
    for _ in 0..20 {
        p.send(A, SendOp::Write(remote(0)), 0, 8);
    }
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
    for _ in 0..4 {
        p.send(A, SendOp::Send, 0, 8);
    }
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.settle();
    assert_eq!((p.sent_of(A, M::Send), p.rnr_naks(B)), (2, 1));
    assert_eq!(p.sent_of(A, M::Write), 0, "nothing overtakes");
    for _ in 0..4 {
        p.recv(B, 0, 8);
    }
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
        for _ in 0..2 {
            p.recv(B, 0, 8);
        }
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
    for _ in 0..8 {
        p.recv(B, 0, 8);
    }
    p.send(A, SendOp::Send, 0, 8);
    p.send_side(A);
    p.take_all(B);
    p.send(B, SendOp::Write(remote(0)), 0, 8);
    p.send_side(B);
    assert!(p.b.qp.ack_owed().is_some(), "of the limit");
    p.ack_side(B);
    p.take_all(A);
    p.log.clear();
    for _ in 0..9 {
        p.send(A, SendOp::Send, 0, 8);
    }
    p.send_side(A);
    assert_eq!(p.sent_of(A, M::Send), 7);
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
    for _ in 0..4 {
        p.recv(B, 0, 9000);
    }
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
fn without_a_hello_nothing_is_let_in() {
    let mut p = Ways::rc();
    p.hand_msg(B, &Msg::new(M::Write, B, NUMBER).remote(remote(0), 8).data(8));
    assert_eq!((p.b.host.counted(Count::DroppedPkey), p.b.host.writes), (1, 0));
}

/// What a rule of direct access was asked.
type Asked = Rc<RefCell<Vec<(u32, bool)>>>;

/// A's WRITEs, READs and atomics meet this rule; returns what it is asked.
fn direct(p: &mut Ways, mut rule: impl FnMut(u32, bool) -> Direct + 'static) -> Asked {
    let asked = Asked::default();
    let log = Rc::clone(&asked);
    p.reach = true;
    p.a.host.near.direct = Some(Box::new(move |index, _, behind| {
        log.borrow_mut().push((index.wrapping_sub(SQ_BASE), behind));
        rule(index.wrapping_sub(SQ_BASE), behind)
    }));
    asked
}

#[test]
fn what_is_done_directly_takes_no_number_and_sends_nothing() {
    let mut p = Ways::rc();
    direct(&mut p, |_, behind| if behind { Direct::Unable } else { Direct::Done });
    p.fill(A, 0, 9000);
    p.fill(B, 100_000, 9000);
    p.recv(B, 200_000, 9000);
    p.queue(A, SendOp::Write(remote(300_000)), 0, 9000);
    p.queue(A, SendOp::Read(remote(100_000)), 50_000, 9000);
    p.queue(A, SendOp::FetchAdd { remote: remote(MEMORY - 8), add: 4 }, 60_000, 8);
    assert!(p.send_at_once(A));
    p.expect_sends(&[Success; 3]);
    assert!(p.log.is_empty() && p.a.qp.is_idle_near());
    assert_eq!(p.a.host.done[1], Done::Send(SQ_BASE.wrapping_add(1), Success, 9000));
    p.send(A, SendOp::Send, 0, 9000);
    p.run();
    p.expect_sends(&[Success; 4]);
    assert_eq!(p.sent(A)[1].number, NUMBER, "the peer heard of none before it");
    p.expect_bytes(B, 300_000, 0, 9000);
    p.expect_bytes(A, 50_000, 100_000, 9000);
    p.expect_bytes(B, 200_000, 0, 9000);
}

#[test]
fn direct_and_sent_requests_may_alternate() {
    let mut p = Ways::rc();
    direct(&mut p, |_, behind| if behind { Direct::Unable } else { Direct::Done });
    p.burst = 3;
    for i in 0..60_usize {
        let addr = i * 512;
        p.fill(A, addr, 512);
        if i % 3 == 0 {
            p.recv(B, 500_000 + addr, 512);
            p.send(A, SendOp::Send, addr, 512);
        } else {
            p.send(A, SendOp::Write(remote(500_000 + addr)), addr, 512);
        }
        if i % 5 == 0 {
            p.run();
        }
    }
    p.run();
    p.expect_sends(&[Success; 60]);
    p.expect_bytes(B, 500_000, 0, 60 * 512);
}

#[test]
fn nothing_is_done_directly_behind_what_is_under_way() {
    let mut p = Ways::rc();
    let asked = direct(&mut p, |_, behind| if behind { Direct::Later } else { Direct::Done });
    p.recv(B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send_side(A);
    assert_eq!(p.kinds(A), [M::Hello, M::Send]);
    assert_eq!(*asked.borrow(), [(1, true)]);
    assert!(!p.a.qp.wants_transmit() && !p.a.qp.is_idle_near());
    p.run();
    p.expect_sends(&[Success; 3]);
    assert_eq!(*asked.borrow(), [(1, true), (1, false), (2, false)]);
    assert_eq!(p.kinds(A), [M::Hello, M::Send]);
}

#[test]
fn what_failed_is_never_followed_by_something_direct() {
    let mut p = Ways::rc();
    let asked = direct(&mut p, |_, behind| if behind { Direct::Later } else { Direct::Done });
    p.send(A, SendOp::SendInv(Rkey::new(5)), 0, 8);
    p.send(A, SendOp::Write(remote(64)), 0, 8);
    p.fill(A, 0, 8);
    p.settle();
    // Refused for want of a receive request: the WRITE behind still waits, also while it is to be sent again.
    p.skip();
    assert!(p.skip() && p.a.qp.wants_transmit() && !p.a.qp.is_idle_near());
    p.recv(B, 0, 8);
    p.run();
    p.expect_sends(&[WcStatus::RemoteAccess, WcStatus::WrFlushed]);
    assert!(asked.borrow().iter().all(|(_, behind)| *behind));
    assert_eq!(p.b.host.mem[64..72], [0; 8]);
}

#[test]
fn a_direct_request_may_take_several_turns_and_is_finished_in_sqd() {
    let mut p = Ways::rc();
    let mut turns = 0;
    direct(&mut p, move |_, _| {
        turns += 1;
        if turns % 3 == 0 { Direct::Done } else { Direct::Again }
    });
    p.queue(A, SendOp::Write(remote(0)), 0, 8);
    assert!(!p.send_at_once(A) && p.a.qp.wants_transmit() && !p.a.qp.is_idle_near());
    p.send_side(A);
    p.expect_sends(&[]);
    p.send_side(A);
    p.expect_sends(&[Success]);
    // It was begun, so the queue drains behind it.
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send_side(A);
    let sqd = QpAttr { state: Some(QpState::Sqd), sqd_event: Some(true), ..QpAttr::default() };
    p.modify(A, sqd).unwrap();
    assert!(!p.a.host.has_event(QpEvent::SqDrained));
    for _ in 0..2 {
        p.send_side(A);
    }
    p.expect_sends(&[Success; 2]);
    assert!(p.a.host.has_event(QpEvent::SqDrained) && p.log.is_empty());
}

#[test]
fn what_began_directly_and_is_out_of_reach_then_goes_as_a_message() {
    let mut p = Ways::rc();
    let mut turns = 0;
    direct(&mut p, move |_, _| {
        turns += 1;
        if turns == 1 { Direct::Again } else { Direct::Unable }
    });
    p.fill(A, 0, 9000);
    p.send(A, SendOp::Write(remote(100_000)), 0, 9000);
    p.send_side(A);
    assert!(p.log.is_empty());
    p.run();
    p.expect_sends(&[Success]);
    assert_eq!(p.sent_of(A, M::Write), 3);
    p.expect_bytes(B, 100_000, 0, 9000);
}

#[test]
fn a_key_that_fails_directly_ends_the_connection() {
    let mut p = Ways::rc();
    direct(&mut p, |_, _| Direct::Fail(LocalError::Protection));
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send_side(A);
    p.expect_sends(&[WcStatus::LocalProtection, WcStatus::WrFlushed]);
}

/// A lends what `rule` says of a request (from 0), an offset and the bytes at most.
fn lend(p: &mut Ways, mut rule: impl FnMut(u32, u32, u32) -> Option<u32> + 'static) {
    p.reach = true;
    p.a.host.near.lend =
        Some(Box::new(move |index, offset, max| rule(index.wrapping_sub(SQ_BASE), offset, max)));
}

#[test]
fn sends_are_lent_from_one_kib_on() {
    for (len, lent) in [(1023, 0), (1024, 1), (128 << 10, 1), ((128 << 10) + 1, 2), (300_000, 3)] {
        for (op, kind) in
            [(SendOp::Send, M::Send), (SendOp::SendImm(3), M::SendImm), (SendOp::SendInv(KEY), M::SendInv)]
        {
            let mut p = Ways::rc();
            lend(&mut p, |_, _, max| Some(max));
            p.fill(A, 0, len);
            p.recv(B, 500_000, len);
            p.post(A, op, 0, len as u32, SendFlags::SIGNALED | SendFlags::SOLICITED);
            p.run();
            p.expect_sends(&[Success]);
            p.expect_bytes(B, 500_000, 0, len);
            let fetched: u32 = p.b.host.near.fetched.iter().map(|l| l.len).sum();
            assert_eq!(p.b.host.near.fetched.len(), lent);
            assert_eq!(fetched as usize, if lent > 0 { len } else { 0 });
            assert_eq!(p.sent_of(A, kind), lent.max(1));
            let (_, done) = p.b.host.recvs()[0];
            assert_eq!((done.byte_len as usize, done.solicited), (len, true));
        }
    }
}

#[test]
fn writes_are_lent_from_one_kib_on() {
    for (len, lent) in [(1023, 0), (1024, 1), (128 << 10, 1), ((128 << 10) + 1, 2), (300_000, 3)] {
        for (op, kind) in
            [(SendOp::Write(remote(500_000)), M::Write), (SendOp::WriteImm(remote(500_000), 5), M::WriteImm)]
        {
            let mut p = Ways::rc();
            lend(&mut p, |_, _, max| Some(max));
            p.fill(A, 0, len);
            p.recv(B, 0, 8);
            p.send(A, op, 0, len as u32);
            p.run();
            p.expect_sends(&[Success]);
            p.expect_bytes(B, 500_000, 0, len);
            let fetched: u32 = p.b.host.near.fetched.iter().map(|l| l.len).sum();
            assert_eq!(fetched as usize, if lent > 0 { len } else { 0 });
            assert_eq!((p.b.host.near.fetched.len(), p.sent_of(A, kind)), (lent, lent.max(1)));
            let recvs = p.b.host.recvs();
            let imm = recvs.first().map(|r| (r.1.extra, r.1.byte_len as usize));
            assert_eq!(imm, (kind == M::WriteImm).then_some((RecvExtra::Imm(5), len)));
        }
    }
}

#[test]
fn pieces_of_a_write_may_be_lent_and_sent_by_turns() {
    let mut p = Ways::rc();
    lend(&mut p, |_, offset, max| (offset % 10_000 < 5_000).then(|| max.min(5_000 - offset % 10_000)));
    p.fill(A, 0, 50_000);
    p.recv(B, 0, 8);
    p.send(A, SendOp::WriteImm(remote(500_000), 1), 0, 50_000);
    p.run();
    p.expect_sends(&[Success]);
    p.expect_bytes(B, 500_000, 0, 50_000);
    assert!(p.b.host.near.fetched.len() > 2 && p.b.host.writes > p.b.host.near.fetched.len() as u32);
}

#[test]
fn a_write_that_the_peer_cant_fetch_is_sent_by_value() {
    for which in 0..6 {
        for piece in 0..3 {
            let mut p = Ways::new(&Setup { rnr_retry: 0, ..Setup::default() });
            lend(&mut p, |_, _, max| Some(max.min(2000)));
            p.burst = 2;
            p.b.host.near.gone.extend((0..which * 3 + piece).map(|_| false));
            p.b.host.near.gone.push_back(true);
            for i in 0..6 {
                p.fill(A, i * 6000, 6000);
                p.recv(B, 0, 8);
                p.send(A, SendOp::WriteImm(remote(500_000 + i * 6000), i as u32), i * 6000, 6000);
            }
            p.run();
            p.expect_sends(&[Success; 6]);
            p.expect_bytes(B, 500_000, 0, 36_000);
            let imms: Vec<_> = p.b.host.recvs().iter().map(|r| r.1.extra).collect();
            assert_eq!(imms, (0..6).map(RecvExtra::Imm).collect::<Vec<_>>());
            assert_eq!((p.rnr_naks(B), p.b.host.near.gone.len()), (1, 0));
        }
    }
}

#[test]
fn a_lent_write_is_judged_by_the_targets_key() {
    for len in [5_000_u32, 200_000] {
        let mut p = Ways::rc();
        lend(&mut p, |_, _, max| Some(max));
        p.send(A, SendOp::Write(remote(MEMORY - 4_000)), 0, len);
        p.run();
        p.expect_sends(&[WcStatus::RemoteAccess]);
        assert!(p.b.host.near.fetched.is_empty());
        assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Error, QpState::Error));
    }
}

#[test]
fn a_loan_of_what_the_peer_does_not_have_ends_the_connection() {
    for op in [SendOp::Send, SendOp::Write(remote(500_000)), SendOp::WriteImm(remote(500_000), 1)] {
        let mut p = Ways::rc();
        lend(&mut p, |_, _, max| Some(max));
        p.b.host.near.bad = true;
        p.recv(B, 0, 6000);
        p.send(A, op, 0, 6000);
        p.run();
        p.expect_sends(&[WcStatus::RemoteInvalidRequest]);
        assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Error, QpState::Error), "{op:?}");
    }
}

#[test]
fn loans_that_are_none_end_the_connection() {
    let good = || Msg::new(M::Send, B, NUMBER).flags(FIRST | LAST | LENT);
    for (what, msg) in [
        ("no length", good().remote(remote(0), 0)),
        ("too long", good().remote(remote(0), (128 << 10) + 1)),
        ("half of the terms", good().remote(remote(0), 5000).data(8)),
        ("too many terms", good().remote(remote(0), 5000).data(24)),
        ("nothing", good()),
    ] {
        let mut p = Ways::rc();
        p.recv(B, 0, 300_000);
        p.hand_msg(B, &Msg::new(M::Hello, B, NUMBER).extra(0xffff));
        p.hand_msg(B, &msg);
        assert_eq!(p.b.qp.state(), QpState::Error, "{what}");
    }
}

/// B lends what A reads, as `rule` says of an address and the bytes at most.
fn lend_reads(p: &mut Ways, rule: impl FnMut(u64, u32) -> Option<u32> + 'static) {
    p.reach = true;
    p.b.host.near.lend_read = Some(Box::new(rule));
}

#[test]
fn reads_are_lent_and_what_was_fetched_is_told_once() {
    for (len, lent) in [(1023, 0), (1024, 1), (128 << 10, 1), ((128 << 10) + 1024, 2), (300_000, 3)] {
        let mut p = Ways::rc();
        lend_reads(&mut p, |_, max| Some(max));
        p.fill(B, 0, len);
        for _ in 0..3 {
            p.send(A, SendOp::Read(remote(0)), 500_000, len as u32);
        }
        p.run();
        p.expect_sends(&[Success; 3]);
        p.expect_bytes(A, 500_000, 0, len);
        assert_eq!(p.a.host.near.fetched.len(), 3 * lent);
        assert_eq!(p.sent_of(A, M::Fetched), if lent > 0 { 3 } else { 0 });
        assert_eq!(p.sent_of(B, M::ReadData), 3 * lent.max(1));
        assert!(p.a.qp.is_idle_near());
    }
}

#[test]
fn nothing_is_answered_behind_a_lent_response_before_it_was_fetched() {
    let mut p = Ways::rc();
    lend_reads(&mut p, |_, max| Some(max));
    p.fill(B, 0, 5000);
    p.recv(B, 600_000, 8);
    p.send(A, SendOp::Read(remote(0)), 500_000, 5000);
    p.send(A, SendOp::Send, 0, 8);
    p.send(A, SendOp::FetchAdd { remote: remote(MEMORY - 8), add: 1 }, 8, 8);
    p.send_side(A);
    p.take_all(B);
    p.send_side(B);
    assert_eq!((p.sent_of(B, M::ReadData), p.sent_of(B, M::Original)), (1, 0));
    assert!(!p.b.qp.wants_transmit(), "it waits");
    // A request of B's tells nothing along that A may not know yet.
    p.recv(A, 700_000, 8);
    p.send(B, SendOp::Send, 0, 8);
    p.send_side(B);
    p.ack_side(B);
    assert!(p.sent(B).iter().all(|m| m.done == NUMBER), "nothing is done yet");
    p.run();
    p.expect_sends(&[Success; 3]);
    p.expect_bytes(A, 500_000, 0, 5000);
    assert_eq!(p.b.host.atomics, 1);
}

#[test]
fn what_was_done_behind_a_lent_response_is_told_once_that_was_fetched() {
    let mut p = Ways::rc();
    lend_reads(&mut p, |_, max| Some(max));
    p.recv(B, 600_000, 8);
    p.send(A, SendOp::Read(remote(0)), 500_000, 5000);
    p.send(A, SendOp::Send, 0, 8);
    p.send_side(A);
    p.take_all(B);
    p.send_side(B);
    p.ack_side(B);
    p.take_all(A);
    p.send_side(A);
    p.take_all(B);
    // No timer has to help.
    p.settle();
    p.expect_sends(&[Success; 2]);
    assert_eq!(p.a.host.counted(Count::Probe), 0);
}

#[test]
fn a_lent_response_that_cant_be_fetched_comes_by_value_from_there_on() {
    for piece in 0..3 {
        let mut p = Ways::rc();
        lend_reads(&mut p, |_, max| Some(max.min(5000)));
        p.a.host.near.gone.extend((0..piece).map(|_| false));
        p.a.host.near.gone.push_back(true);
        p.fill(B, 0, 15_000);
        p.send(A, SendOp::Read(remote(0)), 500_000, 15_000);
        p.send(A, SendOp::FetchAdd { remote: remote(MEMORY - 8), add: 1 }, 8, 8);
        p.send(A, SendOp::Read(remote(0)), 600_000, 15_000);
        p.run();
        p.expect_sends(&[Success; 3]);
        p.expect_bytes(A, 500_000, 0, 15_000);
        p.expect_bytes(A, 600_000, 0, 15_000);
        assert_eq!(p.b.host.atomics, 1);
        let told: Vec<_> = p.sent(A).into_iter().filter(|m| m.kind == M::Fetched).collect();
        let told: Vec<_> = told.iter().map(|m| (m.number, m.flags, m.extra)).collect();
        assert_eq!(told, [(NUMBER, NOT_LENT, piece * 5000), (NUMBER + 2, 0, 0)], "piece {piece}");
        assert_eq!(p.a.host.near.fetched.len(), piece as usize + 3);
    }
}

#[test]
fn what_had_left_behind_a_loan_that_cant_be_fetched_is_passed_over() {
    // A loan, data, a loan, and so on, all of which have left when A finds the first or second loan out of reach.
    for gone in 0..2 {
        let mut p = Ways::rc();
        lend_reads(&mut p, |at, max| (at % 7_000 == 0).then(|| max.min(2_904)));
        p.a.host.near.gone.extend((0..gone).map(|_| false));
        p.a.host.near.gone.push_back(true);
        p.fill(B, 0, 20_000);
        p.send(A, SendOp::Read(remote(0)), 500_000, 20_000);
        p.run();
        p.expect_sends(&[Success]);
        p.expect_bytes(A, 500_000, 0, 20_000);
        assert_eq!(p.sent_of(A, M::Fetched), 1);
    }
}

#[test]
fn what_was_fetched_is_told_although_the_way_was_full_or_a_receive_request_is_missing() {
    let mut p = Ways::rc();
    lend_reads(&mut p, |_, max| Some(max));
    p.send(A, SendOp::Read(remote(0)), 500_000, 5000);
    p.send(A, SendOp::Send, 0, 8);
    p.send_side(A);
    p.take_all(B);
    p.send_side(B);
    p.room = 0;
    p.take_all(A);
    assert_eq!(p.send_side(A), 0);
    p.room = usize::MAX;
    p.settle();
    assert_eq!(p.sent_of(A, M::Fetched), 1);
    p.recv(B, 600_000, 8);
    p.run();
    p.expect_sends(&[Success; 2]);
}

#[test]
fn answers_that_nobody_waits_for_are_dropped() {
    let mut p = Ways::rc();
    lend_reads(&mut p, |_, max| Some(max));
    p.send(A, SendOp::Read(remote(0)), 500_000, 5000);
    p.send_side(A);
    p.take_all(B);
    p.send_side(B);
    for (number, flags, extra) in
        [(NUMBER + 1, 0, 0), (NUMBER - 1, 0, 0), (NUMBER - 1, NOT_LENT, 0), (NUMBER, NOT_LENT, 5001)]
    {
        p.hand_msg(B, &Msg::new(M::Fetched, B, number).flags(flags).extra(extra).done(NUMBER));
        assert_eq!(p.b.qp.state(), QpState::Rts);
        assert!(!p.b.qp.wants_transmit());
    }
    p.run();
    p.expect_sends(&[Success]);
}

#[test]
fn a_response_that_lends_nonsense_ends_the_connection() {
    for (what, flags, msg) in [
        ("longer than what is left", LENT | FIRST | LAST, (0, 5001)),
        ("too short for the last", LENT | FIRST | LAST, (0, 4999)),
        ("not the first", LENT | LAST, (0, 5000)),
        ("of no length", LENT | FIRST, (0, 0)),
    ] {
        let mut p = Ways::rc();
        p.reach = true;
        p.send(A, SendOp::Read(remote(0)), 500_000, 5000);
        p.send_side(A);
        let lent = Msg::new(M::ReadData, A, NUMBER).flags(flags).done(NUMBER);
        p.hand_msg(A, &lent.remote(remote(msg.0), msg.1));
        p.expect_sends(&[WcStatus::BadResponse]);
        assert_eq!(p.a.qp.state(), QpState::Error, "{what}");
    }
    let mut p = Ways::rc();
    lend_reads(&mut p, |_, max| Some(max));
    p.a.host.near.bad = true;
    p.send(A, SendOp::Read(remote(0)), 500_000, 5000);
    p.run();
    p.expect_sends(&[WcStatus::BadResponse]);
}

#[test]
fn a_lent_read_is_told_of_while_the_queue_drains() {
    let mut p = Ways::rc();
    lend_reads(&mut p, |_, max| Some(max));
    p.send(A, SendOp::Read(remote(0)), 500_000, 5000);
    p.send_side(A);
    p.state(A, QpState::Sqd);
    p.run();
    assert_eq!(p.sent_of(A, M::Fetched), 1);
    p.expect_sends(&[Success]);
}

#[test]
fn pieces_may_be_lent_and_sent_by_turns() {
    // Entries of a list that the peer reaches, and others that it does not.
    for rule in [
        (|offset, max: u32| (offset % 10_000 < 5_000).then(|| max.min(5_000 - offset % 10_000)))
            as fn(u32, u32) -> _,
        |offset, max| (offset > 0).then_some(max),
        |offset, max| (offset == 0).then_some(max.min(1)),
        |offset, max| (offset >= 8192).then_some(max.min(100)),
    ] {
        let mut p = Ways::rc();
        lend(&mut p, move |_, offset, max| rule(offset, max));
        p.fill(A, 0, 50_000);
        p.recv(B, 500_000, 50_000);
        p.send(A, SendOp::SendImm(9), 0, 50_000);
        p.run();
        p.expect_sends(&[Success]);
        p.expect_bytes(B, 500_000, 0, 50_000);
        assert!(!p.b.host.near.fetched.is_empty());
        assert_eq!(p.b.host.recvs()[0].1.extra, RecvExtra::Imm(9));
    }
}

#[test]
fn what_the_peer_cant_fetch_is_sent_by_value_and_takes_one_receive_request() {
    // The index wraps among these: the third request is number u32::MAX.
    for which in 0..6 {
        // The first, the second or the third piece of that request is out of reach.
        for piece in 0..3 {
            // Also with no patience for missing receive requests, which this is not.
            let mut p = Ways::new(&Setup { rnr_retry: 0, ..Setup::default() });
            lend(&mut p, |_, _, max| Some(max.min(2000)));
            p.burst = 2;
            p.b.host.near.gone.extend((0..which * 3 + piece).map(|_| false));
            p.b.host.near.gone.push_back(true);
            for i in 0..6 {
                p.fill(A, i * 6000, 6000);
                p.recv(B, 500_000 + i * 6000, 6000);
                p.send(A, SendOp::Send, i * 6000, 6000);
            }
            p.run();
            p.expect_sends(&[Success; 6]);
            p.expect_bytes(B, 500_000, 0, 36_000);
            assert_eq!(p.b.host.recvs().iter().map(|r| r.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
            assert_eq!((p.rnr_naks(B), p.b.host.counted(Count::RnrNakSent)), (1, 0));
            assert_eq!(p.a.host.counted(Count::RnrNakReceived), 0);
            let lent_again = p.b.host.near.gone.len();
            assert_eq!(lent_again, 0);
        }
    }
}

#[test]
fn a_loan_that_is_always_out_of_reach_is_tried_once() {
    for before in 0..5 {
        let mut p = Ways::new(&Setup { rnr_retry: 0, ..Setup::default() });
        lend(&mut p, |_, _, max| Some(max.min(2000)));
        for _ in 0..before {
            p.send(A, SendOp::Write(remote(0)), 0, 8);
        }
        p.run();
        p.burst = 1;
        p.b.host.near.gone.extend([true; 100]);
        p.fill(A, 0, 6000);
        p.recv(B, 500_000, 6000);
        p.send(A, SendOp::Send, 0, 6000);
        p.run();
        assert_eq!(p.a.host.statuses(), vec![Success; before + 1]);
        p.expect_bytes(B, 500_000, 0, 6000);
        assert_eq!((p.rnr_naks(B), p.b.host.near.gone.len()), (1, 99), "after {before} others");
    }
}

#[test]
fn a_refused_loan_is_told_as_such_although_the_way_was_full() {
    let mut p = Ways::new(&Setup { rnr_retry: 0, ..Setup::default() });
    lend(&mut p, |_, _, max| Some(max));
    p.b.host.near.gone.push_back(true);
    p.recv(B, 500_000, 6000);
    p.fill(A, 0, 6000);
    p.send(A, SendOp::Send, 0, 6000);
    p.send_side(A);
    p.take_all(B);
    p.room = 0;
    assert_eq!(p.send_side(B), 0);
    p.room = usize::MAX;
    p.run();
    p.expect_sends(&[Success]);
    assert!(p.sent(B)[0].has(NOT_LENT));
    p.expect_bytes(B, 500_000, 0, 6000);
}

#[test]
fn a_loan_needs_a_receive_request_with_room() {
    let mut p = Ways::rc();
    lend(&mut p, |_, _, max| Some(max));
    p.send(A, SendOp::Send, 0, 6000);
    p.settle();
    assert_eq!((p.rnr_naks(B), p.b.host.counted(Count::RnrNakSent)), (1, 1));
    p.recv(B, 500_000, 5999);
    p.run();
    p.expect_sends(&[WcStatus::RemoteInvalidRequest]);
    assert_eq!(p.b.host.recvs()[0].1.status, WcStatus::LocalLength);
    assert!(p.b.host.near.fetched.is_empty());
}

#[test]
fn a_loan_into_a_list_that_cant_be_written_is_a_remote_operation_error() {
    let mut p = Ways::rc();
    lend(&mut p, |_, _, max| Some(max));
    p.recv_raw(B, 500_000, 6000, true);
    p.send(A, SendOp::Send, 0, 6000);
    p.run();
    p.expect_sends(&[WcStatus::RemoteOperation]);
    assert_eq!(p.b.host.recvs()[0].1.status, WcStatus::LocalProtection);
}
