//! Queue pairs that doze.

use hca_core::Device;
use hca_prm::{Cqe64, CqeOpcode, CqeSyndrome, CtrlSeg, Opcode, Qpc, ServiceType, WqeOpcode};

use crate::bed::{Client, PAGE, Pair, QpShape, Wqe};
use crate::qp::tests::{opcode, syndrome};

fn awake(client: &Client) -> usize {
    client.function.objects.watched.awake.len()
}

/// Looks until none of both sides' queue pairs is awake.
fn all_doze(p: &mut Pair) {
    p.until("sleep", |p| (awake(&p.a.client) + awake(&p.b.client) == 0).then_some(()));
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
        let counters = p.server.hca.counters();
        let missed = |c: &&hca_core::Counter| c.name.contains("no_recv") || c.name.contains("rnr");
        assert_eq!(counters.iter().filter(missed).map(|c| c.value).sum::<u64>(), 0, "{st:?}");
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
    assert!(!p.b.client.function.look_at_dozing(0) && p.b.client.function.look_at_dozing(usize::MAX));
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
