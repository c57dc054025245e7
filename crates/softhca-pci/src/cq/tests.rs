//! Events of completion queues.

use hca_prm::command::cq::{QueryCqIn, QueryCqOut};
use hca_prm::{CQ_DOORBELL, CompEvent, CqStatus, Cqc, Cqe64, EventType, Opcode, Qpc, WqeOpcode};

use crate::bed::{Pair, QpShape, Server, Wqe};

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

/// The clock as a driver reads it.
fn clock(p: &mut Pair) -> u64 {
    let mut half = |at: u64| {
        let mut bytes = [0; 4];
        p.b.client.function.bar_read(at, &mut bytes);
        u64::from(u32::from_be_bytes(bytes))
    };
    loop {
        let (high, low) = (half(0x1000), half(0x1004));
        if half(0x1000) == high {
            return high << 32 | low;
        }
    }
}

#[test]
fn a_completion_tells_when_it_came_by_the_clock_that_the_registers_tell() {
    let mut p = begin();
    let mut last = clock(&mut p);
    for _ in 0..5 {
        send(&mut p, false);
        let received = p.received().get(Cqe64::TIMESTAMP);
        let to = p.a.mr.remote(0);
        p.b.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[1; 8]));
        let sent = p.until("a completion of B's", |p| p.b.sent()).get(Cqe64::TIMESTAMP);
        p.b.post(&Wqe::new(WqeOpcode::Nop));
        let nothing = p.until("a completion of B's", |p| p.b.sent()).get(Cqe64::TIMESTAMP);
        let now = clock(&mut p);
        let times = [last, received, sent, nothing, now];
        assert!(times.is_sorted() && times[0] < times[4], "{times:?}");
        last = now;
    }
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
fn who_arms_for_any_completion_and_then_for_a_solicited_one_waits_for_any_whatever_the_record_holds_by_then()
{
    for record_first in [false, true] {
        let mut p = begin();
        let (cq, at) = (p.b.recv_cq, u64::from(p.b.client.uar) * 4096 + CQ_DOORBELL as u64);
        let word = |solicited: u32| (solicited << 24).to_be_bytes();
        // The driver may write the record the second time before the first doorbell is taken.
        p.b.client.write(cq.record + 4, &word(record_first.into()));
        for solicited in [0, 1] {
            if solicited == 1 {
                p.b.client.write(cq.record + 4, &word(1));
            }
            p.b.client.function.bar_write(at, &[word(solicited), cq.cqn.to_be_bytes()].concat());
        }
        send(&mut p, false);
        p.received();
        assert_eq!(completion_event(&mut p), Some(cq.cqn), "record first: {record_first}");
    }
}

#[test]
fn queues_of_one_page_have_their_events_though_one_doorbell_was_lost() {
    let mut p = begin();
    // Both records are written, and the page is rung once.
    let (first, second) = (p.b.recv_cq, p.b.send_cq);
    let word = |cq: &crate::bed::ClientCq| (cq.sn << 28 | cq.ci).to_be_bytes();
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

#[test]
fn a_queue_that_has_overrun_says_so_whatever_completes_into_it_later() {
    let mut p = begin();
    let gid = p.server.gid();
    let client = &mut p.b.client;
    let cq = client.cq(0);
    let mut qp = client.qp(QpShape::default(), &p.b.send_cq, &cq);
    client.connect(&qp, gid, 1);
    for _ in 0..4 {
        client.post_recv(&mut qp, &[p.b.mr.seg(0, 64)]);
    }
    p.look();
    p.b.client.change(Opcode::QP_2ERR, qp.qpn, 0, Qpc::new()).unwrap();
    (0..10).for_each(|_| p.look());
    assert!(p.b.client.all_events().contains(&EventType::CqError));
    let context = p.b.client.command(&QueryCqIn::new().with(QueryCqIn::CQN, cq.cqn)).unwrap();
    let status = context.get(QueryCqOut::CQ_CONTEXT).get(Cqc::STATUS);
    assert_eq!(status, CqStatus::Overflow.code());
}

#[test]
fn many_queue_pairs_that_end_at_once_lose_no_completion() {
    let mut server = Server::new();
    server.completion_entries = Some(64);
    let mut client = server.client(0);
    let (cq, mr) = (client.cq(8), client.mr(4096));
    let shape = QpShape { log_rq: 4, ..QpShape::default() };
    let mut qps: Vec<_> = (0..6).map(|_| client.qp(shape, &cq, &cq)).collect();
    for qp in &mut qps {
        client.connect(qp, server.gid(), 1);
        for _ in 0..16 {
            client.post_recv(qp, &[mr.seg(0, 64)]);
        }
    }
    (0..4).for_each(|_| _ = client.function.look());
    for qp in &qps {
        client.change(Opcode::QP_2ERR, qp.qpn, 0, Qpc::new()).unwrap();
    }
    (0..10).for_each(|_| _ = client.function.look());
    server.events(&mut [&mut client]);
    assert_eq!(client.all_events(), []);
    let mut cq = cq;
    let ended = std::iter::from_fn(|| client.poll(&mut cq)).count();
    assert_eq!(ended, 6 * 16);
}
