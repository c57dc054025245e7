//! With `progress=inline`, a message that a poll yields is acknowledged when the poll returns: a program that has the
//! message it waited for may make no more calls, and then no thread could acknowledge it.

mod ends;

use ends::{End, open, send};
use hca_core::{Completion, Device, QpAttr, QpState, SendFlags, WcStatus};
use softhca::Progress;

fn pair(fabric: &str) -> Option<[End; 2]> {
    let [a, b] = [0, 1].map(|n| open(fabric, Progress::Inline, 40 + n).map(End::new));
    let [a, b] = [a?, b?];
    a.connect(&b);
    b.connect(&a);
    Some([a, b])
}

/// Polls, and calls nothing else, until a completion comes; the poll that yields it is the last call. The peer is
/// turned meanwhile, which has to meet this end first.
fn poll_only(end: &mut End, peer: &dyn Device) -> Completion {
    let mut one = [Completion::default()];
    while end.cq.poll(&mut one) == 0 {
        peer.turn();
        std::thread::yield_now();
    }
    one[0]
}

fn the_last_message_is_acknowledged(fabric: &str) {
    let Some([mut a, mut b]) = pair(fabric) else { return };
    b.recv();
    // The first one may set things up that the second one finds; neither is followed by a call of the receiver's.
    for round in 0..2 {
        if round > 0 {
            b.recv();
        }
        send(&mut a.rc, SendFlags::SIGNALED);
        let device = a.device.clone();
        poll_only(&mut b, &*device);
        let sent = a.next(&*device);
        assert!(sent.is_some(), "{fabric}, message {round}: nothing came back");
    }
    a.close();
    b.close();
}

/// A program that has its message may end the queue pair at once.
#[test]
fn a_queue_pair_that_is_stopped_acknowledges_first_what_it_delivered() {
    for (fabric, to) in [("udp", QpState::Error), ("udp", QpState::Reset), ("shm", QpState::Error)] {
        let Some([mut a, mut b]) = pair(fabric) else { continue };
        b.recv();
        send(&mut a.rc, SendFlags::SIGNALED);
        let device = a.device.clone();
        poll_only(&mut b, &*device);
        assert!(a.next(&*device).is_some(), "{fabric}: nothing came back");
        b.recv();
        send(&mut a.rc, SendFlags::SIGNALED);
        // The turn delivers the message, and leaves its acknowledgement to the next.
        b.device.turn();
        b.device.modify_qp(b.rc.handle, &QpAttr { state: Some(to), ..QpAttr::default() }).unwrap();
        let sent = a.next(&*device).map(|wc| wc.status);
        assert_eq!(sent, Some(WcStatus::Success), "{fabric}, {to:?}");
        a.close();
        b.close();
    }
}

#[test]
fn the_last_message_is_acknowledged_over_udp() {
    the_last_message_is_acknowledged("udp");
}
#[test]
fn the_last_message_is_acknowledged_over_io_uring() {
    the_last_message_is_acknowledged("uring");
}
#[test]
fn the_last_message_is_acknowledged_over_shared_memory() {
    the_last_message_is_acknowledged("shm");
}
