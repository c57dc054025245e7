//! Events of completion queues.

use hca_prm::{CompEvent, EventType, WqeOpcode};

use super::bed::{Pair, QpShape, Wqe};

fn completion_event(p: &mut Pair) -> Option<u32> {
    let (event, data) = p.b.client.event()?;
    assert_eq!(event, EventType::Comp);
    Some(CompEvent::from_array(data).get(CompEvent::CQ_NUMBER))
}

fn send(p: &mut Pair, solicited: bool) {
    p.b.recv(0, 64);
    let wqe = Wqe::new(WqeOpcode::Send).inline(&[1; 8]);
    p.a.post(&if solicited { wqe.solicited() } else { wqe });
    p.sent();
}

/// The event that says that the connection is used, and nothing else.
fn begin() -> Pair {
    let mut p = Pair::new(QpShape::default());
    p.look();
    assert_eq!(p.b.client.all_events(), []);
    p
}

#[test]
fn who_armed_and_polled_has_an_event_for_what_comes_then() {
    let mut p = begin();
    // As a driver does that waits for events: arm, look, sleep, count the event, take what there is.
    for round in 0..9_u32 {
        let cq = p.b.recv_cq;
        p.b.client.arm(&cq, false);
        assert!(p.b.received().is_none(), "round {round}");
        assert_eq!(completion_event(&mut p), None, "nothing has come");
        send(&mut p, false);
        p.look();
        assert_eq!(completion_event(&mut p), Some(cq.cqn), "round {round}");
        p.b.recv_cq.sn += 1;
        p.received();
        send(&mut p, false);
        p.received();
        assert_eq!(completion_event(&mut p), None, "armed for one");
    }
}

#[test]
fn what_came_before_the_arming_and_was_not_taken_makes_the_event_at_once() {
    let mut p = begin();
    send(&mut p, false);
    p.look();
    // The first word of all: it is what stood there from the beginning.
    let cq = p.b.recv_cq;
    p.b.client.arm(&cq, false);
    assert_eq!(completion_event(&mut p), Some(cq.cqn));
    p.b.recv_cq.sn += 1;
    let cq = p.b.recv_cq;
    p.b.client.arm(&cq, false);
    assert_eq!(completion_event(&mut p), None, "not taken, but told of");
    send(&mut p, false);
    p.received();
    assert_eq!(completion_event(&mut p), Some(cq.cqn));
}

#[test]
fn a_queue_that_waits_for_solicited_messages_has_no_event_for_others() {
    let mut p = begin();
    let cq = p.b.recv_cq;
    p.b.client.arm(&cq, true);
    send(&mut p, false);
    p.received();
    assert_eq!(completion_event(&mut p), None);
    send(&mut p, true);
    p.received();
    assert_eq!(completion_event(&mut p), Some(cq.cqn));
}

#[test]
fn queues_of_one_page_have_their_events_though_one_doorbell_was_lost() {
    let mut p = begin();
    // Both records are written, and the page is rung once.
    let (first, second) = (p.b.recv_cq, p.b.send_cq);
    let word = |cq: &super::bed::ClientCq| (cq.sn << 28 | cq.ci).to_be_bytes();
    p.b.client.write(first.record + 4, &word(&first));
    p.b.client.arm(&second, false);
    send(&mut p, false);
    p.look();
    assert_eq!(completion_event(&mut p), Some(first.cqn));
    let to = p.a.mr.remote(0);
    p.b.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[1; 8]));
    p.until("a completion of B's", |p| p.b.sent());
    assert_eq!(completion_event(&mut p), Some(second.cqn));
}
