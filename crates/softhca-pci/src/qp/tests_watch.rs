//! Dormant queue pairs.

use hca_core::Device;
use hca_prm::{Cqe64, CqeOpcode, CqeSyndrome, CtrlSeg, Opcode, Qpc, ServiceType, WqeOpcode};

use crate::bed::{Client, ClientSrq, PAGE, Pair, QpShape, Wqe};
use crate::qp::tests::{opcode, syndrome};

fn awake(client: &Client) -> usize {
    client.function.objects.watched.awake.len()
}

/// Looks until none of both sides' queue pairs is awake.
pub(crate) fn all_doze(p: &mut Pair) {
    p.until("sleep", |p| (awake(&p.a.client) + awake(&p.b.client) == 0).then_some(()));
}

/// Messages that found no place.
pub(crate) fn missed(p: &Pair) -> u64 {
    let missed = |c: &&hca_core::Counter| c.name.contains("no_recv") || c.name.contains("rnr");
    p.server.hca.counters().iter().filter(missed).map(|c| c.value).sum()
}

#[test]
fn what_comes_for_one_that_dozes_finds_the_places_that_it_was_given_meanwhile() {
    for st in [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud] {
        let mut p = Pair::new(QpShape { st, ..QpShape::default() });
        let (gid, to) = (p.server.hca.port().gid, p.b.qp.qpn);
        for round in 0..3_u8 {
            all_doze(&mut p);
            for _ in 0..4 {
                p.b.recv(0, 256);
            }
            for i in 0..4 {
                let wqe = Wqe::new(WqeOpcode::Send);
                let wqe = if st == ServiceType::Ud { wqe.datagram(gid, 0, to, 0x1111) } else { wqe };
                p.a.post(&wqe.inline(&[round * 4 + i; 8]));
            }
            for _ in 0..4 {
                assert_eq!(opcode(&p.received()), CqeOpcode::RespSend, "{st:?}");
                assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
            }
        }
        assert_eq!(missed(&p), 0, "{st:?}");
    }
}

#[test]
fn one_that_dozes_without_places_says_so_to_its_peer_and_takes_what_comes_later() {
    let mut p = Pair::new(QpShape::default());
    all_doze(&mut p);
    p.a.post(&Wqe::new(WqeOpcode::Send).inline(b"early"));
    for _ in 0..20 {
        p.look();
    }
    assert!(p.b.received().is_none());
    p.b.recv(0, 64);
    assert_eq!(p.received().get(Cqe64::BYTE_CNT), 5);
    assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
}

#[test]
fn a_doorbell_wakes_the_one_that_it_names_and_one_that_it_hid_is_found() {
    let mut p = Pair::new(QpShape::default());
    let (client, cqs) = (&mut p.a.client, (p.a.send_cq, p.a.recv_cq));
    for _ in 0..40 {
        client.qp(QpShape { log_sq: 4, ..QpShape::default() }, &cqs.0, &cqs.1);
    }
    all_doze(&mut p);
    let to = p.b.mr.remote(0);
    let write = |text: &[u8]| Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(text);
    let announce = |p: &mut Pair| {
        let (client, qp) = (&mut p.a.client, &p.a.qp);
        client.write(qp.record + 4, &u32::from(qp.sq_pi).to_be_bytes());
    };
    let ring = |p: &mut Pair, qpn: u32| {
        let doorbell = CtrlSeg::new().with(CtrlSeg::QP_OR_SQ, qpn);
        let at = u64::from(p.a.client.uar) * PAGE + 0x800;
        p.a.client.function.bar_write(at, &doorbell.as_bytes()[..8]);
    };
    p.a.client.put_send(&mut p.a.qp, &write(b"named"));
    announce(&mut p);
    let qpn = p.a.qp.qpn;
    ring(&mut p, qpn);
    assert_eq!(awake(&p.a.client), 1);
    p.look();
    assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
    all_doze(&mut p);
    // Another one's doorbell, or nobody's, took the place of this one's.
    p.a.client.put_send(&mut p.a.qp, &write(b"hidden"));
    announce(&mut p);
    ring(&mut p, 0);
    assert_eq!(awake(&p.a.client), 0);
    assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
    assert_eq!(p.b.bytes(0, 6), b"hidden");
}

#[test]
fn what_one_in_error_is_given_is_flushed_though_nothing_tells_of_it() {
    let mut p = Pair::new(QpShape::default());
    let qpn = p.b.qp.qpn;
    p.b.client.change(Opcode::QP_2ERR, qpn, 0, Qpc::new()).unwrap();
    all_doze(&mut p);
    p.b.recv(0, 64);
    assert!(!p.b.client.function.poll_dormant(0) && p.b.client.function.poll_dormant(usize::MAX));
    assert_eq!(syndrome(&p.received()), CqeSyndrome::WrFlushErr);
}

#[test]
fn one_that_dozes_can_be_destroyed_whatever_waits_for_it() {
    let mut p = Pair::new(QpShape::default());
    all_doze(&mut p);
    p.a.post(&Wqe::new(WqeOpcode::Send).inline(b"late"));
    let qpn = p.b.qp.qpn;
    // The adapter brings it to the other function while this one is looked at.
    for _ in 0..10 {
        p.a.client.function.look();
    }
    assert_eq!(p.server.hca.called(|_| true).len(), 1);
    p.b.client.destroy(qpn).unwrap();
    assert_eq!(p.server.hca.called(|_| true).len(), 0);
    p.look();
}

/// Shared receive queues that are looked at.
fn shared_awake(client: &Client) -> usize {
    client.function.objects.watched.shared.len()
}

/// Another queue pair in the place of B's, whose completion queue has room for 1,024 messages.
fn replace_b(p: &mut Pair, shape: QpShape) {
    let (gid, a, before) = (p.server.gid(), p.a.qp, p.b.qp.qpn);
    let client = &mut p.b.client;
    client.destroy(before).unwrap();
    p.b.recv_cq = client.cq(10);
    p.b.qp = client.qp(QpShape { log_sq: 4, ..shape }, &p.b.send_cq, &p.b.recv_cq);
    client.connect(&p.b.qp.clone(), gid, a.qpn);
    p.a.client.change(Opcode::QP_2RST, a.qpn, 0, Qpc::new()).unwrap();
    let b = p.b.qp.qpn;
    p.a.client.connect(&a, gid, b);
}

/// A pair of which B takes its receive requests from a shared queue of 2^`log_size` entries, and has others beside it.
fn shared(st: ServiceType, log_size: u32) -> (Pair, ClientSrq) {
    let mut p = Pair::new(QpShape { st, ..QpShape::default() });
    let srq = p.b.client.rmp(log_size);
    for _ in 0..20 {
        p.b.client.rmp(2);
    }
    replace_b(&mut p, QpShape { st, srq: Some(srq.rmpn), ..QpShape::default() });
    (p, srq)
}

#[test]
fn a_shared_queue_is_looked_at_while_a_queue_pair_of_its_is_awake() {
    let (mut p, mut srq) = shared(ServiceType::Rc, 4);
    assert_eq!(shared_awake(&p.b.client), 1);
    for round in 0..3_u8 {
        all_doze(&mut p);
        assert_eq!(shared_awake(&p.b.client), 0);
        let index = p.b.client.post_srq(&mut srq, &p.b.mr.seg(0, 64));
        p.a.post(&Wqe::new(WqeOpcode::Send).inline(&[round; 8]));
        assert_eq!(opcode(&p.received()), CqeOpcode::RespSend);
        assert_eq!(p.b.bytes(0, 8), [round; 8]);
        assert_eq!(shared_awake(&p.b.client), 1);
        p.b.client.free_srq(&mut srq, index);
        p.sent();
    }
    assert_eq!(missed(&p), 0);
    let qpn = p.b.qp.qpn;
    p.b.client.destroy(qpn).unwrap();
    assert_eq!(shared_awake(&p.b.client), 0);
}

#[test]
fn what_waits_comes_when_all_places_that_were_given_are_taken() {
    const DATAGRAMS: usize = 700;
    let st = ServiceType::Ud;
    for own in [true, false] {
        let (mut p, mut srq) = shared(st, 10);
        if own {
            replace_b(&mut p, QpShape { st, log_rq: 10, ..QpShape::default() });
        }
        all_doze(&mut p);
        for _ in 0..DATAGRAMS {
            if own {
                p.b.recv(0, 128);
            } else {
                p.b.client.post_srq(&mut srq, &p.b.mr.seg(0, 128));
            }
        }
        let (gid, to) = (p.server.gid(), p.b.qp.qpn);
        // The sender alone is looked at.
        for i in 0..DATAGRAMS {
            p.a.post(&Wqe::new(WqeOpcode::Send).datagram(gid, 0, to, 0x1111).inline(&[i as u8; 8]));
            while p.a.sent().is_none() {
                p.a.client.function.look();
            }
        }
        for _ in 0..DATAGRAMS {
            assert_eq!(opcode(&p.received()), CqeOpcode::RespSend);
        }
        assert_eq!(missed(&p), 0, "own: {own}");
    }
}
