//! Reliable connection by messages: requests that are sent again, the times of that, and their single execution;
//! refusals for want of a receive request that come amid them.
mod messages;
mod pair;

use messages::*;
use pair::*;

/// The peer's memory is reached from now on, and what is long waits for what is under way.
fn reach_from_now_on(p: &mut Ways) {
    p.a.host.near.direct =
        Some(Box::new(|_, _, behind| if behind { Direct::Later } else { panic!("it was sent before") }));
}

#[test]
fn what_was_sent_as_a_message_is_sent_again_as_one() {
    // Lost, and found out by time.
    let s = Setup::default();
    let mut p = Ways::one_sided(&s);
    p.send(A, SendOp::Write(remote(50_000)), 0, 40_000);
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    p.ready_to_receive(B, &s);
    p.recv(B, 100_000, 8);
    reach_from_now_on(&mut p);
    p.ends(&[Success; 2]);
    assert_eq!(p.a.host.counted(Count::Probe), 1);
    // Dropped behind a SEND that was refused.
    let mut p = Ways::rc();
    p.send(A, SendOp::Send, 0, 8);
    p.send(A, SendOp::Write(remote(50_000)), 0, 40_000);
    p.settle();
    p.recv(B, 100_000, 8);
    reach_from_now_on(&mut p);
    p.ends(&[Success; 2]);
    assert_eq!(p.a.host.counted(Count::Probe), 0);
}

#[test]
fn a_request_that_was_blocked_and_is_begun_along_with_an_answer_goes_on() {
    let mut p = Ways::rc();
    p.reach = true;
    p.a.host.near.direct = Some(Box::new(|_, _, _| Direct::Later));
    p.fill(A, 0, 3 * PIECE);
    p.send(A, SendOp::Write(remote(500_000)), 0, 3 * PIECE as u32);
    p.send_side(A);
    assert!(!p.a.qp.wants_transmit(), "it waits");
    // The answer to a READ of the peer's brings its queue pair to send, and the memory is out of reach by now.
    p.a.host.near.direct = None;
    p.send(B, READ, 600_000, 8);
    p.flow(B);
    // The answer, the Hello, and a piece.
    p.burst = 3;
    p.send_side(A);
    assert_eq!(p.sent_of(A, M::Write), 1);
    assert!(p.a.qp.wants_transmit(), "the rest of it");
    p.ends(&[Success]);
    p.expect_bytes(B, 500_000, 0, 3 * PIECE);
}

#[test]
fn of_a_message_whose_first_piece_was_lost_nothing_is_placed() {
    let s = Setup::default();
    let mut p = Ways::one_sided(&s);
    p.fill(A, 0, 3 * PIECE);
    p.send(A, SendOp::Send, 0, 3 * PIECE as u32);
    p.send_side(A);
    // The Hello and the first piece find nobody, the others a peer that knows nothing of them.
    p.take(B);
    p.take(B);
    p.ready_to_receive(B, &s);
    p.recv(B, 100_000, 3 * PIECE);
    p.hand_msg(B, &Msg::new(M::Hello, B, NUMBER).extra(0xffff));
    p.take_all(B);
    assert!(p.b.host.held.is_none());
    assert_eq!(p.b.host.counted(Count::DroppedPsn), 2);
    p.ends(&[Success]);
    p.expect_bytes(B, 100_000, 0, 3 * PIECE);
}

#[test]
fn a_slow_peer_gets_requests_twice_and_executes_them_once() {
    let mut p = Ways::rc();
    p.fill(B, 0, 3 * PIECE);
    p.recv(B, 200_000, 100);
    p.send(A, SendOp::Send, 100_000, 100);
    p.send(A, READ, 50_000, 3 * PIECE as u32);
    p.send(A, ADD, 90_000, 8);
    p.send_side(A);
    while p.a.host.counted(Count::Probe) < 2 {
        assert!(p.skip());
        p.send_side(A);
    }
    assert_eq!(p.sent_of(A, M::Read), 3);
    p.ends(&[Success; 3]);
    p.expect_bytes(A, 50_000, 0, 3 * PIECE);
    assert_eq!((p.b.host.atomics, p.b.host.recvs().len()), (1, 1));
    assert!(p.b.host.counted(Count::Duplicate) > 0);
}

#[test]
fn a_read_that_is_half_answered_is_not_asked_again() {
    let mut p = Ways::rc();
    p.fill(B, 0, 3 * PIECE);
    p.send(A, READ, 50_000, 3 * PIECE as u32);
    p.flow(A);
    p.send_side(B);
    p.take(A);
    for _ in 0..3 {
        p.skip();
    }
    assert_eq!((p.send_side(A), p.a.host.counted(Count::Probe)), (0, 0));
    p.ends(&[Success]);
    p.expect_bytes(A, 50_000, 0, 3 * PIECE);
}

#[test]
fn a_read_that_is_about_to_be_asked_again_takes_its_response() {
    for pieces in 0..=3 {
        let mut p = Ways::rc();
        p.fill(B, 0, 3 * PIECE);
        p.send(A, READ, 50_000, 3 * PIECE as u32);
        p.flow(A);
        p.send_side(B);
        while p.a.host.counted(Count::Probe) == 0 {
            assert!(p.skip());
        }
        assert!(p.a.qp.wants_transmit());
        for _ in 0..pieces {
            p.take(A);
        }
        p.send_side(A);
        // One READ at a time, so that a wrong count of what waits would show.
        p.sends(5, A, READ, 50_000, 8);
        p.post(A, SendOp::Write(remote(100_000)), 0, 8, SendFlags::SIGNALED | SendFlags::FENCE);
        p.ends(&[Success; 7]);
        p.expect_bytes(A, 50_008, 8, 3 * PIECE - 8);
    }
}

#[test]
fn the_wait_between_two_tries_doubles_up_to_a_quarter_of_a_second() {
    let s = Setup { timeout: 0, ..Setup::default() };
    let mut p = Ways::one_sided(&s);
    p.send(A, WRITE, 0, 8);
    let mut times = Vec::new();
    for _ in 0..200 {
        if p.send_side(A) > 0 {
            times.push(p.now);
        }
        p.lose();
        p.skip();
    }
    let waits: Vec<_> = times.windows(2).map(|w| (w[1] - w[0]) / MS).collect();
    assert_eq!(waits[..6], [32, 32, 64, 128, 256, 256], "{waits:?}");
}

#[test]
fn after_progress_the_timer_still_runs_for_what_is_left() {
    let s = Setup::default();
    let mut p = Ways::one_sided(&s);
    p.sends(3, A, READ, 0, 8);
    p.send_side(A);
    p.lose();
    while p.a.host.counted(Count::Probe) == 0 {
        assert!(p.skip());
    }
    // The peer is ready now, answers one request, and is then put in error without a word.
    p.ready_to_receive(B, &s);
    p.send_side(A);
    p.take(B);
    p.take(B);
    p.send_side(B);
    p.take(A);
    p.expect_sends(&[Success]);
    p.state(B, QpState::Error);
    p.take_all(B);
    assert!(p.a.qp.next_deadline().is_some(), "two requests are under way");
    p.ends(&[Success, WcStatus::RetryExceeded, WrFlushed]);
}

#[test]
fn credits_stay_right_when_what_was_to_be_sent_again_turns_out_done() {
    // With no retry a SEND beyond the credits ends the connection.
    let mut p = Ways::new(&Setup { rnr_retry: 0, ..Setup::default() });
    p.recvs(4, B, 0, 8);
    p.sends(4, A, SendOp::Send, 0, 8);
    p.flow(A);
    while p.a.host.counted(Count::Probe) == 0 {
        assert!(p.skip());
    }
    // They are to be sent again, as the acknowledgement of all comes.
    p.recv(B, 0, 8);
    p.ack_side(B);
    p.take_all(A);
    p.expect_sends(&[Success; 4]);
    p.sends(5, A, SendOp::Send, 0, 8);
    p.send_side(A);
    assert_eq!(p.sent_of(A, M::Send), 5, "one receive request waits there");
    p.recvs(4, B, 0, 8);
    p.ends(&[Success; 9]);
    assert_eq!(p.rnr_naks(B), 0);
}

#[test]
fn what_is_sent_again_takes_its_credits_once() {
    let mut p = Ways::rc();
    p.recvs(9, B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    p.sends(4, A, SendOp::Send, 0, 8);
    p.send_side(A);
    while p.a.host.counted(Count::Probe) < 2 {
        assert!(p.skip());
        p.send_side(A);
    }
    p.sends(4, A, SendOp::Send, 0, 8);
    p.log.clear();
    p.send_side(A);
    assert_eq!(p.sent_of(A, M::Send), 4, "nine receive requests were told of");
    p.ends(&[Success; 9]);
}

#[test]
fn numbers_wrap_with_as_many_requests_as_a_queue_takes() {
    const DEPTH: usize = 32_768;
    let s = Setup::default();
    let mut p = Ways::one_sided(&s);
    for _ in 0..DEPTH {
        p.post(A, WRITE, 0, 0, SendFlags::empty());
    }
    p.burst = usize::MAX;
    p.send_side(A);
    p.lose();
    p.ready_to_receive(B, &s);
    // A copy of the last finds none of them done: it is dropped, whatever it is taken for.
    p.hand_msg(B, &Msg::new(M::Hello, B, NUMBER).extra(0xffff));
    p.hand_msg(B, &Msg::new(M::Write, B, NUMBER.wrapping_add(DEPTH as u16 - 1)).remote(remote(0), 0));
    p.hand_msg(B, &Msg::new(M::Write, B, NUMBER.wrapping_add(DEPTH as u16)).remote(remote(0), 0));
    p.settle();
    p.expect_sends(&[]);
    p.run();
    assert_eq!(p.a.host.statuses(), vec![Success; DEPTH]);
    let copies: Vec<Msg> = p.sent(A).into_iter().filter(|m| m.kind == M::Write).take(9).cloned().collect();
    for copy in &copies {
        p.hand_msg(B, copy);
    }
    assert_eq!(p.b.host.counted(Count::Duplicate), 10, "nine, and one that is half the numbers away");
}

#[test]
fn where_nobody_is_a_request_is_tried_again_until_its_patience_ends() {
    for sent_before in [false, true] {
        let mut p = Ways::new(&Setup { timeout: 14, retry_cnt: 1, ..Setup::default() });
        p.send(A, WRITE, 0, 8);
        if sent_before {
            p.send_side(A);
            p.send(A, WRITE, 0, 8);
        }
        let (begin, patience) = (p.now, (4096_u64 << 14) * 2);
        for tries in 0.. {
            assert!(tries < 1000, "it goes on for ever");
            if p.a.qp.state() == QpState::Error {
                break;
            }
            if p.a.qp.wants_transmit() {
                p.with(A, |now, qp, host| qp.unreachable(now, host));
                assert!(!p.a.qp.is_idle_near());
            } else {
                assert!(p.skip());
            }
        }
        assert_eq!(p.a.host.statuses()[0], WcStatus::RetryExceeded);
        assert!(p.now - begin >= patience && p.now - begin < patience + 50 * MS);
    }
}

#[test]
fn a_peer_that_comes_in_time_gets_the_request() {
    let mut p = Ways::rc();
    p.send(A, WRITE, 0, 8);
    for _ in 0..3 {
        p.with(A, |now, qp, host| qp.unreachable(now, host));
        assert!(!p.a.qp.wants_transmit());
        assert!(p.skip() && p.a.qp.wants_transmit());
    }
    p.ends(&[Success]);
    assert!(p.a.qp.is_idle_near());
}

#[test]
fn that_nobody_was_there_long_ago_costs_a_request_no_patience() {
    let mut p = Ways::rc();
    p.send(B, SendOp::Send, 0, 8);
    p.flow(B);
    // The refusal finds nobody.
    p.with(A, |now, qp, host| qp.unreachable(now, host));
    assert!(p.a.qp.next_deadline().is_none() && !p.a.qp.wants_transmit());
    p.now += 3_600_000 * MS;
    p.send(A, WRITE, 0, 8);
    p.with(A, |now, qp, host| qp.unreachable(now, host));
    p.expect_sends(&[]);
    while !p.a.qp.wants_transmit() {
        assert!(p.skip());
    }
    p.flow(A);
    p.ack_side(B);
    p.take_all(A);
    p.expect_sends(&[Success]);
}

#[test]
fn an_answer_that_finds_nobody_costs_no_receive_request() {
    let mut p = Ways::rc();
    p.recv(B, 200_000, 3 * PIECE);
    p.fill(A, 0, 3 * PIECE);
    p.send(A, SendOp::Send, 0, 3 * PIECE as u32);
    // The Hello, and a piece.
    p.burst = 2;
    p.flow(A);
    assert!(p.b.host.held.is_some());
    p.with(B, |now, qp, host| qp.unreachable(now, host));
    assert!(p.b.qp.next_deadline().is_none());
    p.burst = 64;
    p.ends(&[Success]);
    p.expect_bytes(B, 200_000, 0, 3 * PIECE);
}

#[test]
fn a_read_whose_answer_was_lost_in_the_middle_is_never_called_done() {
    let mut p = Ways::rc();
    p.send(A, READ, 0, 3 * PIECE as u32);
    p.send(A, SendOp::Write(remote(50_000)), 0, 8);
    p.flow(A);
    p.burst = 1;
    p.send_side(B);
    p.with(B, |now, qp, host| qp.unreachable(now, host));
    p.burst = 64;
    // It says what it has done along with a request of its own, and with acknowledgements.
    p.send(B, SendOp::Write(remote(60_000)), 0, 8);
    p.send_side(B);
    p.ack_side(B);
    p.take_all(A);
    p.expect_sends(&[]);
    p.ends(&[WcStatus::RetryExceeded, WrFlushed]);
    assert_eq!(p.b.host.statuses(), [Success]);
}

#[test]
fn when_the_peer_is_gone_all_fails_at_once_and_later_posts_too() {
    let mut p = Ways::rc();
    p.send(A, WRITE, 0, 8);
    p.send_side(A);
    p.send(A, WRITE, 0, 8);
    p.recv(A, 0, 8);
    p.with(A, |_, qp, host| qp.peer_gone(host));
    p.expect_sends(&[WcStatus::RetryExceeded, WrFlushed]);
    assert_eq!(p.a.host.done.last(), Some(&Done::RecvFlushed(0)));
    assert_eq!(p.a.qp.state(), QpState::Error);
    assert!(p.a.qp.next_deadline().is_none() && !p.a.qp.wants_transmit());
    // With nothing under way it is told by the next request, also of a peer that was known to have a receive request.
    for (op, known) in [(READ, false), (SendOp::Send, true)] {
        let mut p = Ways::rc();
        p.recv(B, 0, 8);
        if known {
            p.send(A, WRITE, 0, 8);
            p.settle();
            (p.a.host.done, p.log) = (Vec::new(), Vec::new());
        }
        p.with(A, |_, qp, host| qp.peer_gone(host));
        assert_eq!(p.a.qp.state(), QpState::Rts);
        assert!(!p.a.qp.is_idle_near());
        p.send(A, op, 0, 8);
        p.send_side(A);
        p.expect_sends(&[WcStatus::RetryExceeded]);
        assert!(p.log.is_empty());
    }
    // The same where there is no way to it any more.
    let mut p = Ways::rc();
    p.with(A, |_, qp, host| qp.peer_gone(host));
    p.with(A, |now, qp, host| qp.unreachable(now, host));
    assert_eq!(p.a.qp.state(), QpState::Rts);
    p.send(A, READ, 0, 8);
    p.with(A, |now, qp, host| qp.unreachable(now, host));
    p.expect_sends(&[WcStatus::RetryExceeded]);
    assert_eq!(p.a.qp.state(), QpState::Error);
}

#[test]
fn a_peer_gone_before_the_queue_pair_may_send_stays_gone() {
    let setup = Setup::default();
    let mut p = Ways::reset(&setup);
    p.ready_to_receive(A, &setup);
    p.with(A, |_, qp, host| qp.peer_gone(host));
    p.ready_to_send(A, &setup);
    p.send(A, WRITE, 0, 8);
    p.send_side(A);
    p.expect_sends(&[WcStatus::RetryExceeded]);
}

#[test]
fn responses_of_other_numbers_are_dropped_while_one_is_waited_for() {
    let mut p = Ways::rc();
    p.send(A, SendOp::FetchAdd { remote: remote(0), add: 1 }, 0, 8);
    p.send_side(A);
    for number in [NUMBER - 1, NUMBER + 1, NUMBER.wrapping_add(0x8000)] {
        p.hand_msg(A, &Msg::new(M::Original, A, number).data(8));
    }
    p.expect_sends(&[]);
    assert_eq!(p.a.host.counted(Count::DroppedPsn), 3);
    p.ends(&[Success]);
}

/// Each post by the quick way is one more that waits, and no sign of life.
#[test]
fn a_silent_peer_is_given_up_at_its_time_though_more_is_posted() {
    let s = Setup { timeout: 12, retry_cnt: 0, ..Setup::default() };
    let patience = 4096 << 12;
    let mut p = Ways::new(&s);
    p.recvs(2, B, 0, 8);
    p.send(A, WRITE, 0, 8);
    p.settle();
    let begin = p.now;
    p.queue(A, SendOp::Send, 0, 8);
    assert!(p.send_quick(A));
    p.lose();
    assert!(p.skip(), "the timer looks first");
    assert_eq!(p.now - begin, RESEND_NS);
    p.now += patience / 2;
    p.queue(A, SendOp::Send, 0, 8);
    assert!(p.send_quick(A));
    p.lose();
    while p.a.qp.state() != QpState::Error {
        assert!(p.skip());
        p.lose();
    }
    assert_eq!(p.now - begin, RESEND_NS + patience);
    p.expect_sends(&[Success, WcStatus::RetryExceeded, WrFlushed]);
}

fn rnr(number: u16, done: u16) -> Msg {
    let syndrome = Syndrome::RnrNak(RnrTimer::new(1)).encode();
    Msg::new(M::Nak, A, number).flags(0).done(done).extra(syndrome.into())
}

#[test]
fn a_request_that_was_refused_half_sent_still_has_its_turn_before_others() {
    let mut p = Ways::rc();
    p.burst = 2;
    p.send(A, SendOp::Send, 0, 3 * PIECE as u32);
    p.flow(A);
    p.flow(B);
    assert_eq!(p.rnr_naks(B), 1);
    assert!(!p.a.qp.is_idle_near());
    p.recv(B, 0, 3 * PIECE);
    p.ends(&[Success]);
    assert!(p.a.qp.is_idle_near());
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
    p.flow(A);
    assert!(p.b.host.held.is_some());
    p.hand_msg(A, &rnr(NUMBER, NUMBER));
    p.burst = 64;
    p.ends(&[Success; 2]);
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
    p.flow(A);
    p.hand_msg(A, &rnr(NUMBER, NUMBER));
    p.burst = 64;
    p.ends(&[Success]);
    let told = p.last_limit();
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
