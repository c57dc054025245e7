//! Reliable connection by messages: requests that the peer refuses, most of them since it has no receive request.
mod messages;
mod pair;

use hca_core::wire::{NakCode, Syndrome};
use hca_core::*;
use hca_transport::*;
use messages::*;
use pair::*;

use Side::{A, B};
use WcStatus::{Success, WrFlushed};

/// The number of A's first request.
const NUMBER: u16 = 0xfffd;
const NANOS_OF_RNR_1: u64 = 10_000;

fn rnr(number: u16, done: u16) -> Msg {
    let syndrome = Syndrome::RnrNak(RnrTimer::new(1)).encode();
    Msg::new(M::Nak, A, number).flags(0).done(done).extra(syndrome.into())
}

#[test]
fn rnr_naks_wait_for_their_timer_and_come_through() {
    for len in [8, 3 * PIECE as u32] {
        for op in [SendOp::Send, SendOp::WriteImm(remote(300_000), 7)] {
            let mut p = Ways::rc();
            p.fill(A, 0, len as usize);
            p.send(A, op, 0, len);
            p.send(A, SendOp::Write(remote(MEMORY - 8)), 0, 8);
            p.settle();
            assert_eq!(p.rnr_naks(B), 1);
            assert!(p.b.host.held.is_none() && p.b.host.mem[MEMORY - 8..] == [0; 8], "all behind is dropped");
            let at = p.a.qp.next_deadline().unwrap().as_nanos();
            assert_eq!(at, p.now, "the time at the refusal may have been an old one");
            p.fire(A);
            assert_eq!(p.a.qp.next_deadline().unwrap().as_nanos(), p.now + NANOS_OF_RNR_1);
            p.recv(B, 200_000, len as usize);
            p.run();
            p.expect_sends(&[Success; 2]);
            let recvs = p.b.host.recvs();
            assert_eq!((recvs.len(), recvs[0].1.byte_len), (1, len));
            let at = if op == SendOp::Send { 200_000 } else { 300_000 };
            p.expect_bytes(B, at, 0, len as usize);
            assert_eq!(p.a.host.counted(Count::RnrNakReceived), 1);
            assert_eq!(p.b.host.counted(Count::RnrNakSent), 1);
        }
    }
}

#[test]
fn a_refused_request_waits_for_its_timer_whatever_else_is_to_be_sent() {
    let mut p = Ways::rc();
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    p.fire(A);
    p.log.clear();
    // Requests that are posted meanwhile, and answers to the peer, must not carry it along.
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    assert!(p.send_at_once(A) || !p.a.qp.wants_transmit());
    p.send(B, SendOp::Read(remote(0)), 0, 8);
    p.settle();
    assert_eq!(p.b.host.statuses(), [Success]);
    assert_eq!(p.kinds(A), [M::ReadData]);
    p.recv(B, 0, 8);
    p.run();
    p.expect_sends(&[Success; 2]);
}

#[test]
fn a_request_that_was_refused_half_sent_still_has_its_turn_before_others() {
    let mut p = Ways::rc();
    p.burst = 2;
    p.send(A, SendOp::Send, 0, 3 * PIECE as u32);
    p.send_side(A);
    p.take_all(B);
    p.send_side(B);
    p.take_all(A);
    assert_eq!(p.rnr_naks(B), 1);
    assert!(!p.a.qp.is_idle_near());
    p.recv(B, 0, 3 * PIECE);
    p.run();
    p.expect_sends(&[Success]);
    assert!(p.a.qp.is_idle_near());
}

#[test]
fn rnr_retries_run_out() {
    for rnr_retry in [0, 1, 6] {
        let mut p = Ways::new(&Setup { rnr_retry, ..Setup::default() });
        p.send(A, SendOp::Send, 0, 8);
        p.send(A, SendOp::Send, 0, 8);
        p.run();
        p.expect_sends(&[WcStatus::RnrRetryExceeded, WrFlushed]);
        assert_eq!(p.rnr_naks(B), usize::from(rnr_retry) + 1);
        assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Error, QpState::Rts));
    }
}

#[test]
fn rnr_retries_are_counted_for_each_request() {
    let mut p = Ways::new(&Setup { rnr_retry: 2, ..Setup::default() });
    for i in 0..3 {
        p.send(A, SendOp::Send, 0, 8);
        p.settle();
        for _ in 0..2 {
            p.skip();
            p.settle();
        }
        assert_eq!(p.rnr_naks(B), 2 * (i + 1));
        assert_eq!(p.a.host.statuses().len(), i);
        p.recv(B, 0, 8);
        p.run();
    }
    p.expect_sends(&[Success; 3]);
}

#[test]
fn rnr_retry_7_is_for_ever() {
    let mut p = Ways::rc();
    p.send(A, SendOp::Send, 0, 8);
    for _ in 0..500 {
        assert!(p.step());
    }
    p.expect_sends(&[]);
    p.recv(B, 0, 8);
    p.run();
    p.expect_sends(&[Success]);
}

#[test]
fn an_rnr_retry_that_was_raised_in_sqd_holds() {
    let mut p = Ways::new(&Setup { rnr_retry: 0, ..Setup::default() });
    p.state(A, QpState::Sqd);
    p.modify(A, QpAttr { state: Some(QpState::Sqd), rnr_retry: Some(3), ..QpAttr::default() }).unwrap();
    p.state(A, QpState::Rts);
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    p.expect_sends(&[]);
    p.recv(B, 0, 8);
    p.run();
    p.expect_sends(&[Success]);
}

#[test]
fn a_second_refusal_of_the_same_request_may_come_amid_its_next_try() {
    let len = 3 * PIECE as u32;
    let mut p = Ways::rc();
    p.fill(A, 0, 4 * PIECE);
    p.send(A, SendOp::Send, 0, len);
    p.send(A, SendOp::Send, 100, len);
    p.settle();
    p.skip();
    p.skip();
    p.recvs(2, B, 200_000, len as usize);
    // The first piece of its next try is in, as a refusal comes that an earlier copy brought on.
    p.burst = 1;
    p.send_side(A);
    p.take_all(B);
    assert!(p.b.host.held.is_some());
    p.hand_msg(A, &rnr(NUMBER, NUMBER));
    p.burst = 64;
    p.run();
    p.expect_sends(&[Success; 2]);
    assert_eq!(p.b.qp.state(), QpState::Rts);
    assert_eq!(p.b.host.recvs().iter().map(|r| r.0).collect::<Vec<_>>(), [0, 1]);
    p.expect_bytes(B, 200_000, 100, len as usize);
}

#[test]
fn a_request_that_is_begun_anew_uses_one_receive_request_as_the_requester_is_told() {
    let len = 3 * PIECE as u32;
    let mut p = Ways::rc();
    p.send(A, SendOp::Send, 0, len);
    p.settle();
    p.skip();
    p.skip();
    p.recvs(3, B, 200_000, len as usize);
    // Its first piece is in, and it begins again, as a refusal comes that an earlier copy brought on.
    p.burst = 1;
    p.send_side(A);
    p.take_all(B);
    p.hand_msg(A, &rnr(NUMBER, NUMBER));
    p.burst = 64;
    p.run();
    p.expect_sends(&[Success]);
    let told = p.sent(B).into_iter().rfind(|m| m.kind == M::Ack && m.has(LIMITED)).map(|m| m.extra);
    assert_eq!((told, p.b.host.rq.len()), (Some(3), 2), "one is used, and two are left");
}

#[test]
fn a_peer_gone_during_an_rnr_wait_is_not_waited_for() {
    let mut p = Ways::rc();
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    p.with(A, |_, qp, host| qp.peer_gone(host));
    p.expect_sends(&[WcStatus::RetryExceeded]);
}

#[test]
fn naks_of_other_numbers_are_dropped() {
    let mut p = Ways::rc();
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send_side(A);
    let fatal = u32::from(Syndrome::Nak(NakCode::RemoteAccess).encode());
    for number in [NUMBER - 1, NUMBER + 1, NUMBER.wrapping_add(0x8000)] {
        p.hand_msg(A, &Msg::new(M::Nak, A, number).flags(0).done(NUMBER).extra(fatal));
        p.hand_msg(A, &rnr(number, NUMBER));
        p.hand_msg(A, &Msg::new(M::Ack, A, number).flags(0).done(NUMBER - 1));
    }
    p.expect_sends(&[]);
    assert_eq!(p.a.host.counted(Count::DroppedPsn), 9);
    p.run();
    p.expect_sends(&[Success]);
}

#[test]
fn a_message_that_is_refused_while_it_leaves_begins_anew_and_takes_one_receive_request() {
    let mut p = Ways::rc();
    p.fill(A, 0, 3 * PIECE);
    p.send(A, SendOp::Send, 0, 3 * PIECE as u32);
    // The Hello and the first piece.
    p.burst = 2;
    p.send_side(A);
    p.take_all(B);
    p.send_side(B);
    assert_eq!(p.rnr_naks(B), 1);
    p.take_all(A);
    p.burst = 64;
    p.recv(B, 100_000, 3 * PIECE);
    p.run();
    p.expect_sends(&[Success]);
    p.expect_bytes(B, 100_000, 0, 3 * PIECE);
    assert_eq!((p.b.host.recvs().len(), p.b.host.counted(Count::DroppedPsn)), (1, 0));
    // Each of two more is known to find a receive request.
    p.recvs(2, B, 0, 8);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.settle();
    let before = p.sent_of(A, M::Send);
    p.sends(2, A, SendOp::Send, 0, 8);
    p.send_side(A);
    assert_eq!(p.sent_of(A, M::Send) - before, 2);
    p.run();
    p.expect_sends(&[Success; 4]);
}
