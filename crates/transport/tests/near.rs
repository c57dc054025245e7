//! Reliable connection by messages: the effects of requests, the order of their completions, and the conditions that
//! delay them.
mod messages;
mod pair;

use messages::*;
use pair::*;

#[test]
fn requests_carry_acknowledgements_along() {
    let mut p = Ways::rc();
    p.send(A, WRITE, 0, 8);
    p.flow(A);
    assert!(p.b.qp.ack_owed().is_some());
    p.send(B, WRITE, 0, 8);
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
        p.flow(A);
        p.recvs(2, B, 0, 8);
        p.send(B, WRITE, 0, 8);
        p.send_side(B);
        p.ack_side(B);
        p.take_all(A);
        p.ack_side(A);
        p.take_all(B);
        assert!(p.a.host.statuses().len() >= 2 * round, "round {round}");
    }
    p.ends(&[Success; 201]);
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
    p.flow(A);
    p.send(B, WRITE, 0, 8);
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
            p.ends(&[Success]);
            let told = p.last_limit();
            assert_eq!(told, Some(3), "{op:?} of {len}: one is used, and two are left");
        }
    }
}

#[test]
fn the_limit_counts_what_a_message_under_way_holds() {
    let mut p = Ways::rc();
    p.recvs(3, B, 200_000, 3 * PIECE);
    p.send(A, WRITE, 0, 8);
    p.run();
    p.send(A, WRITE, 0, 8);
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
fn a_queue_drains_by_what_is_told_along() {
    let mut p = Ways::rc();
    p.send(A, WRITE, 0, 8);
    p.send_side(A);
    p.drain(A);
    p.take_all(B);
    p.send(B, WRITE, 0, 8);
    p.flow(B);
    assert!(p.a.host.has_event(QpEvent::SqDrained));
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
        p.send(A, WRITE, 0, 8);
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
    p.send(A, READ, 0, 5 * PIECE as u32);
    p.flow(A);
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
    p.send(A, WRITE, 0, 8);
    p.settle();
    p.expect_sends(&[Success]);
    p
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
    p.ends(&[Success; 10]);
    assert_eq!((p.b.host.recvs().len(), p.rnr_naks(B)), (9, 0));
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
    p.send(A, READ, 0, 8);
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
    p.send(A, WRITE, 0, 8);
    p.send_side(A);
    p.drain(A);
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
    p.send(A, WRITE, 0, 8);
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
    p.send(B, WRITE, 0, 8);
    p.recv(B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    assert!(p.b.qp.lanes().sends && p.b.qp.lane().unwrap().has_credit());
    // A knows of no receive request: this one is a probe, and finds one. How many there are is told by itself.
    p.recvs(8, B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.flow(A);
    // B looks once whether there is something to send.
    p.send_side(B);
    p.queue(B, SendOp::Send, 0, 8);
    assert!(p.send_quick(B));
    assert!(p.b.qp.ack_owed().is_some());
    p.settle();
    assert_eq!((p.a.host.recvs().len(), p.b.host.statuses().len()), (1, 2));
    // A refusal goes before anything else.
    let mut p = small(0);
    p.send(B, WRITE, 0, 8);
    p.settle();
    p.send(A, SendOp::Send, 0, 8);
    p.flow(A);
    assert!(!p.b.qp.lanes().sends);
    p.send_side(B);
    assert_eq!(p.rnr_naks(B), 1);
}
