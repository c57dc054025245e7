//! Reliable connection by messages: requests that are done directly on the peer's memory, between others.
mod messages;
mod pair;

use std::cell::RefCell;
use std::rc::Rc;

use messages::*;
use pair::*;

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
    p.ends(&[Success; 4]);
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
    p.ends(&[Success; 60]);
    p.expect_bytes(B, 500_000, 0, 60 * 512);
}

#[test]
fn nothing_is_done_directly_behind_what_is_under_way() {
    let mut p = Ways::rc();
    let asked = direct(&mut p, |_, behind| if behind { Direct::Later } else { Direct::Done });
    p.recv(B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.send(A, WRITE, 0, 8);
    p.send(A, WRITE, 0, 8);
    p.send_side(A);
    assert_eq!(p.kinds(A), [M::Hello, M::Send]);
    assert_eq!(*asked.borrow(), [(1, true)]);
    assert!(!p.a.qp.wants_transmit() && !p.a.qp.is_idle_near());
    p.ends(&[Success; 3]);
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
    p.ends(&[WcStatus::RemoteAccess, WcStatus::WrFlushed]);
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
    p.queue(A, WRITE, 0, 8);
    assert!(!p.send_at_once(A) && p.a.qp.wants_transmit() && !p.a.qp.is_idle_near());
    p.send_side(A);
    p.expect_sends(&[]);
    p.send_side(A);
    p.expect_sends(&[Success]);
    // It was begun, so the queue drains behind it.
    p.send(A, WRITE, 0, 8);
    p.send(A, WRITE, 0, 8);
    p.send_side(A);
    p.drain(A);
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
    p.ends(&[Success]);
    assert_eq!(p.sent_of(A, M::Write), 3);
    p.expect_bytes(B, 100_000, 0, 9000);
}

#[test]
fn a_key_that_fails_directly_ends_the_connection() {
    let mut p = Ways::rc();
    direct(&mut p, |_, _| Direct::Fail(LocalError::Protection));
    p.send(A, WRITE, 0, 8);
    p.send(A, WRITE, 0, 8);
    p.send_side(A);
    p.expect_sends(&[WcStatus::LocalProtection, WcStatus::WrFlushed]);
}
