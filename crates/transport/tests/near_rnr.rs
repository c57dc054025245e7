//! Reliable connection by messages: requests that the peer refuses, most of them since it has no receive request.
mod messages;
mod pair;

use messages::*;
use pair::*;

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
