//! Reliable connection: requests that find no receive request, and are tried again. Each rule is tested by packets and
//! by messages.
mod link;
mod messages;
mod pair;

use link::*;
use pair::*;

both!(
    what_finds_no_receive_request_is_tried_again_after_the_timer,
    what_was_refused_waits_for_its_timer_whatever_else_is_to_be_sent,
    what_was_refused_goes_alone,
    the_same_refusal_once_more_uses_up_no_retry,
    rnr_retries_run_out,
    rnr_retries_are_counted_for_each_request,
    rnr_retry_seven_is_for_ever,
    an_rnr_retry_that_was_raised_in_sqd_holds_for_the_next_request,
    a_message_that_is_refused_while_it_leaves_begins_anew_and_takes_one_receive_request,
);

fn what_finds_no_receive_request_is_tried_again_after_the_timer(by: By) {
    for (len, rnr_timer) in [(8, 1), (3 * by.unit(), 1), (8, 14), (3 * by.unit(), 14)] {
        for op in [SendOp::Send, SendOp::WriteImm(remote(300_000), 7)] {
            let mut p = by.connected(&Setup { rnr_timer, ..Setup::default() });
            p.fill(A, 0, len);
            p.send(A, op, 0, len as u32);
            p.send(A, SendOp::Write(remote(MEMORY - 8)), 0, 8);
            p.settle();
            assert_eq!(p.rnr_naks(), 1);
            assert!(p.naks(B).is_empty(), "what comes behind the refused one is no error");
            assert!(p.b.host.held.is_none() && p.b.host.mem[MEMORY - 8..] == [0; 8], "and is dropped");
            // Timers are looked at in the turn that took the refusal, too. The time of that turn was taken before it,
            // and by how much is not known: the wait begins with the next one.
            p.fire();
            p.now += 5_000_000;
            let came = p.now;
            p.recv(B, 200_000, len);
            let before = p.sent(A).len();
            while p.sent(A).len() == before {
                assert!(p.turn());
            }
            assert_eq!(p.now, came + RnrTimer::new(rnr_timer).duration().as_nanos() as u64);
            p.ends(&[Success; 2]);
            let recvs = p.b.host.recvs();
            assert_eq!((recvs.len(), recvs[0].1.byte_len as usize), (1, len));
            let at = if op == SendOp::Send { 200_000 } else { 300_000 };
            p.expect_bytes(B, at, 0, len);
            assert_eq!(p.a.host.counted(Count::RnrNakReceived), 1);
            assert_eq!(p.rnr_naks(), 1);
        }
    }
}

fn what_was_refused_waits_for_its_timer_whatever_else_is_to_be_sent(by: By) {
    let mut p = by.rc();
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    p.skip();
    let begun = p.begun(A);
    // Requests that are posted meanwhile, and answers to the peer, must not carry it along.
    p.send(A, WRITE, 0, 8);
    if let Link::Messages(ways) = &mut p {
        assert!(ways.send_at_once(A) || !ways.a.qp.wants_transmit());
    }
    p.send(B, READ, 0, 8);
    p.settle();
    assert_eq!(p.b.host.statuses(), [Success]);
    assert_eq!(p.begun(A), begun);
    p.recv(B, 0, 8);
    p.ends(&[Success; 2]);
}

fn the_same_refusal_once_more_uses_up_no_retry(by: By) {
    let mut p = by.connected(&Setup { rnr_retry: 1, ..Setup::default() });
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    assert_eq!(p.rnr_naks(), 1);
    // A peer that was slow refuses each of the copies that were sent to it meanwhile.
    for skips in [false, true] {
        if skips {
            p.skip();
        }
        p.deliver(A, &by.answer(0, Syndrome::RnrNak(RnrTimer::new(1))));
        p.expect_sends(&[]);
    }
    let begun = p.now;
    p.recv(B, 0, 8);
    p.ends(&[Success]);
    assert_eq!(p.a.host.counted(Count::RnrNakReceived), 3);
    let resent = begun + RnrTimer::new(1).duration().as_nanos() as u64;
    assert!(p.now <= resent + 2 * LATENCY_NS, "it waits no longer for them: {} ns", p.now - resent);
}

fn rnr_retries_run_out(by: By) {
    for rnr_retry in [0, 1, 3, 6] {
        for len in [8, 9000] {
            let mut p = by.connected(&Setup { rnr_retry, ..Setup::default() });
            for (op, len) in [(WRITE, 8), (SendOp::Send, len), (SendOp::Send, 8)] {
                p.send(A, op, 0, len);
            }
            p.ends(&[Success, WcStatus::RnrRetryExceeded, WrFlushed]);
            assert_eq!((p.rnr_naks(), p.b.host.writes), (u64::from(rnr_retry) + 1, 1));
            assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Error, QpState::Rts));
        }
    }
}

fn rnr_retries_are_counted_for_each_request(by: By) {
    let mut p = by.connected(&Setup { rnr_retry: 2, ..Setup::default() });
    for i in 1..=3 {
        p.send(A, SendOp::Send, 0, 8);
        while p.rnr_naks() < 2 * i {
            assert!(p.turn());
        }
        p.recv(B, 0, 8);
        p.run();
        assert_eq!(p.a.host.statuses(), vec![Success; i as usize]);
        assert_eq!(p.rnr_naks(), 2 * i);
    }
}

fn rnr_retry_seven_is_for_ever(by: By) {
    let mut p = by.connected(&Setup { rnr_retry: 7, retry_cnt: 0, ..Setup::default() });
    p.send(A, SendOp::WriteImm(remote(0), 1), 0, 300);
    while p.rnr_naks() < 200 {
        assert!(p.turn());
    }
    p.expect_sends(&[]);
    p.recv(B, 0, 0);
    p.ends(&[Success]);
}

fn an_rnr_retry_that_was_raised_in_sqd_holds_for_the_next_request(by: By) {
    for srq_b in [false, true] {
        let mut p = by.connected(&Setup { rnr_retry: 0, srq_b, ..Setup::default() });
        p.state(A, QpState::Sqd);
        p.change(A, QpAttr { rnr_retry: Some(3), ..QpAttr::default() });
        p.state(A, QpState::Rts);
        p.send(A, SendOp::Send, 0, 8);
        p.settle();
        assert_eq!(p.rnr_naks(), 1);
        p.expect_sends(&[]);
        p.recv(B, 0, 8);
        p.ends(&[Success]);
    }
}

fn a_message_that_is_refused_while_it_leaves_begins_anew_and_takes_one_receive_request(by: By) {
    let (mut p, len) = (by.rc(), 3 * by.unit());
    p.fill(A, 0, len);
    p.send(A, SendOp::Send, 0, len as u32);
    p.transmit_some(A, 1);
    p.take_all(B);
    p.transmit_side(B);
    assert_eq!(p.rnr_naks(), 1);
    p.take_all(A);
    p.recv(B, 100_000, len);
    p.ends(&[Success]);
    p.expect_bytes(B, 100_000, 0, len);
    assert_eq!((p.b.host.recvs().len(), p.b.host.counted(Count::DroppedPsn)), (1, 0));
    // Each of two more is known to find a receive request.
    p.recvs(2, B, 0, 8);
    p.send(A, WRITE, 0, 8);
    p.settle();
    let before = p.begun(A).len();
    p.sends(2, A, SendOp::Send, 0, 8);
    p.transmit_side(A);
    assert_eq!(p.begun(A).len() - before, 2);
    p.ends(&[Success; 4]);
}

fn what_was_refused_goes_alone(by: By) {
    let mut p = by.rc();
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    assert_eq!(p.rnr_naks(), 1);
    for _ in 0..4 {
        p.recv(B, 0, 8);
        p.send(A, SendOp::Send, 0, 8);
    }
    let before = p.begun(A).len();
    p.skip();
    p.skip();
    p.transmit_side(A);
    assert_eq!(p.begun(A).len() - before, 1, "whether it is taken shows first");
    p.recv(B, 0, 8);
    p.ends(&[Success; 5]);
}
