//! Requests that end in error, and the requests that an error flushes.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hca_core::{Device, Gid};
use hca_fabric::LoopbackNet;
use hca_prm::command::cq::DestroyCqIn;
use hca_prm::command::eq::DestroyEqIn;
use hca_prm::command::mkey::DestroyMkeyIn;
use hca_prm::command::resource::{DeallocPdIn, DeallocUarIn};
use hca_prm::command::srq::DestroyRmpIn;
use hca_prm::{
    AccessMode, Ads, CmdStatus, CqError, Cqe64, CqeOpcode, CqeSyndrome, DataSeg, EventType, Mkc, Opcode,
    QpState, Qpc, RaddrSeg, ServiceType, WqeOpcode,
};

use crate::bed::{BASE, Client, End, LEN, PAGE, Pair, QpShape, Server, Wqe};
use crate::qp::tests::{counter, opcode, syndrome};

/// The counters and syndromes of all completions of A's send queue, once there are this many.
fn failures(p: &mut Pair, n: usize) -> Vec<(u32, CqeSyndrome)> {
    (0..n).map(|_| p.sent()).map(|cqe| (counter(&cqe), syndrome(&cqe))).collect()
}

fn state(p: &mut Pair) -> u32 {
    p.a.client.query(&p.a.qp.clone()).get(Qpc::STATE)
}

#[test]
fn a_queue_pair_in_error_flushes_all_of_both_queues_in_order_signaled_or_not() {
    let mut p = Pair::new(QpShape { log_sq: 9, ..QpShape::default() });
    // B has no receive requests, so nothing ends; more than the adapter holds at one time.
    p.a.client.cq(4);
    let (cq, n) = (p.a.client.cq(10), 400_u32);
    p.a.send_cq = cq;
    let shape = QpShape { log_sq: 9, ..QpShape::default() };
    let recv_cq = p.a.recv_cq;
    p.a.qp = p.a.client.qp(shape, &cq, &recv_cq);
    let (gid, peer) = (p.server.gid(), p.b.qp.qpn);
    p.b.client.change(Opcode::QP_2RST, peer, 0, Qpc::new()).unwrap();
    let own = p.a.qp.qpn;
    p.b.client.connect(&p.b.qp.clone(), gid, own);
    p.a.client.connect(&p.a.qp.clone(), gid, peer);
    for _ in 0..3 {
        p.a.recv(0, 100);
    }
    for i in 0..n {
        let wqe = Wqe::new(WqeOpcode::Send).inline(&[1; 8]);
        p.a.post(&if i % 2 == 0 { wqe.quiet() } else { wqe });
    }
    for _ in 0..20 {
        p.look();
    }
    assert!(p.a.sent().is_none());
    let qpn = p.a.qp.qpn;
    p.a.client.change(Opcode::QP_2ERR, qpn, 0, Qpc::new()).unwrap();
    assert_eq!(state(&mut p), QpState::Err.code());
    let flushed = failures(&mut p, n as usize);
    assert!(flushed.iter().map(|(_, s)| *s).all(|s| s == CqeSyndrome::WrFlushErr));
    assert!(flushed.iter().map(|(at, _)| *at).eq(0..n), "{flushed:?}");
    for at in 0..3 {
        let cqe = p.until("a flushed receive request", |p| p.a.received());
        assert_eq!((counter(&cqe), syndrome(&cqe)), (at, CqeSyndrome::WrFlushErr));
    }
    // What is posted later is flushed as well.
    p.a.post(&Wqe::new(WqeOpcode::Send).inline(&[1; 8]));
    p.a.recv(0, 100);
    assert_eq!(failures(&mut p, 1), [(n, CqeSyndrome::WrFlushErr)]);
    let cqe = p.until("a flushed receive request", |p| p.a.received());
    assert_eq!(counter(&cqe), 3);
    assert!(p.a.sent().is_none() && p.a.received().is_none());
}

#[test]
fn a_reset_queue_pair_begins_anew_without_what_it_had() {
    let mut p = Pair::new(QpShape::default());
    for _ in 0..3 {
        p.a.post(&Wqe::new(WqeOpcode::Send).inline(&[1; 8]));
        p.a.recv(0, 8);
    }
    p.look();
    let qpn = p.a.qp.qpn;
    p.a.client.change(Opcode::QP_2RST, qpn, 0, Qpc::new()).unwrap();
    // A driver clears the record behind the command; until then it may hold anything.
    p.a.client.write(p.a.qp.record, &[0x7f; 8]);
    p.look();
    p.a.client.write(p.a.qp.record, &[0; 8]);
    (p.a.qp.rq_pi, p.a.qp.sq_pi) = (0, 0);
    let other = p.b.qp.qpn;
    p.b.client.change(Opcode::QP_2RST, other, 0, Qpc::new()).unwrap();
    p.look();
    assert!(p.a.sent().is_none() && p.a.received().is_none());
    assert_eq!(state(&mut p), QpState::Rst.code());
    let gid = p.server.gid();
    p.a.client.connect(&p.a.qp.clone(), gid, other);
    p.b.client.connect(&p.b.qp.clone(), gid, qpn);
    p.b.recv(0, 8);
    p.a.post(&Wqe::new(WqeOpcode::Send).inline(&[5; 8]));
    assert_eq!(counter(&p.sent()), 0);
    p.received();
    assert_eq!(p.b.bytes(0, 8), [5; 8]);
}

#[test]
fn a_request_that_is_not_understood_fails_in_its_place_and_those_behind_it_are_flushed() {
    let with_nothing = |w: Wqe| w;
    type Change = fn(Wqe) -> Wqe;
    fn claims(len: u32) -> DataSeg {
        DataSeg::new().with(DataSeg::INLINE, true).with(DataSeg::BYTE_COUNT, len)
    }
    let broken: [(&str, WqeOpcode, Change); 6] = [
        ("an operation that there is not", WqeOpcode::Send, |w| w.opcode(0x7e)),
        ("an operation that is not offered", WqeOpcode::Umr, with_nothing),
        ("no remote address", WqeOpcode::RdmaWrite, with_nothing),
        ("more inline data than there are", WqeOpcode::Send, |w| w.seg(claims(13))),
        ("more inline data than there are, beside others", WqeOpcode::Send, |w| {
            w.inline(&[1]).seg(claims(13))
        }),
        ("inline data that are to be read", WqeOpcode::RdmaRead, |w| w.to(RaddrSeg::new()).inline(&[1; 8])),
    ];
    for (what, opcode, change) in broken {
        let mut p = Pair::new(QpShape::default());
        let to = p.b.mr.remote(0);
        let first = p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[3; 8]));
        let wrong = p.a.post(&change(Wqe::new(opcode)).quiet());
        let behind = p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[4; 8]).quiet());
        assert_eq!(counter(&p.sent()), u32::from(first), "{what}");
        let expected = [(wrong.into(), CqeSyndrome::LocalQpOpErr), (behind.into(), CqeSyndrome::WrFlushErr)];
        assert_eq!(failures(&mut p, 2), expected, "{what}");
        assert_eq!(p.b.bytes(0, 8), [3; 8], "{what}");
        assert_eq!(state(&mut p), QpState::Err.code());
        assert_eq!(p.b.client.query(&p.b.qp.clone()).get(Qpc::STATE), QpState::Rts.code(), "{what}");
    }
}

#[test]
fn behind_an_error_that_the_adapter_finds_nothing_is_looked_at_any_more() {
    let mut p = Pair::new(QpShape::default());
    let mut to = p.b.mr.remote(0);
    to.set(hca_prm::RaddrSeg::RKEY, 0x1234);
    let first = p.a.client.put_send(&mut p.a.qp, &Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[1; 8]));
    let second = p.a.client.put_send(&mut p.a.qp, &Wqe::new(WqeOpcode::Send).opcode(0x7e));
    let qp = p.a.qp;
    p.a.client.announce(&qp);
    let expected = [(first.into(), CqeSyndrome::RemoteAccessErr), (second.into(), CqeSyndrome::WrFlushErr)];
    assert_eq!(failures(&mut p, 2), expected);
}

#[test]
fn a_message_that_is_longer_than_its_places_is_an_error_of_both_sides() {
    let mut p = Pair::new(QpShape::default());
    let (one, two) = (p.b.mr.seg(0, 10), p.b.mr.seg(100, 10));
    p.b.client.post_recv(&mut p.b.qp, &[one, two]);
    p.b.client.post_recv(&mut p.b.qp, &[one, two]);
    p.a.post(&Wqe::new(WqeOpcode::Send).inline(&[7; 20]));
    p.sent();
    p.received();
    assert_eq!(
        (p.b.bytes(0, 11), p.b.bytes(100, 11)),
        ([&[7; 10][..], &[0]].concat(), [&[7; 10][..], &[0]].concat())
    );
    p.a.post(&Wqe::new(WqeOpcode::Send).inline(&[7; 21]));
    assert_eq!(syndrome(&p.sent()), CqeSyndrome::RemoteInvalReqErr);
    assert_eq!(syndrome(&p.received()), CqeSyndrome::LocalLengthErr);
}

#[test]
fn a_record_that_counts_more_than_the_queue_holds_is_the_end_of_its_queue_pair() {
    for side in [0, 4] {
        let mut p = Pair::new(QpShape::default());
        let qp = p.a.qp;
        p.a.client.write(qp.record + side, &65_u32.to_be_bytes());
        p.look();
        assert_eq!(p.a.client.all_events(), [EventType::WqCatasError]);
        assert_eq!(state(&mut p), QpState::Err.code());
        assert!(p.a.sent().is_none() && p.a.received().is_none());
        p.a.client.destroy(qp.qpn).unwrap();
    }
}

#[test]
fn an_unreliable_send_queue_fails_alone_and_is_brought_back() {
    let mut p = Pair::new(QpShape { st: ServiceType::Uc, ..QpShape::default() });
    p.a.post(&Wqe::new(WqeOpcode::Send).opcode(0x7e));
    assert_eq!(syndrome(&p.sent()), CqeSyndrome::LocalQpOpErr);
    assert_eq!(state(&mut p), QpState::SqEr.code());
    p.a.recv(0, 8);
    p.b.post(&Wqe::new(WqeOpcode::Send).inline(&[1; 8]));
    p.until("a message to A", |p| p.a.received());
    let qpn = p.a.qp.qpn;
    p.a.client.change(Opcode::SQERR2RTS_QP, qpn, 0, Qpc::new()).unwrap();
    p.b.recv(0, 8);
    p.a.post(&Wqe::new(WqeOpcode::Send).inline(&[2; 8]));
    p.sent();
    p.received();
    // The adapter's own finding: a key that is none.
    p.a.post(&Wqe::new(WqeOpcode::Send).seg(hca_prm::DataSeg::pointer(8, 0x1234_5678, 0)));
    assert_eq!(syndrome(&p.sent()), CqeSyndrome::LocalProtErr);
    assert_eq!(state(&mut p), QpState::SqEr.code());
    p.a.client.change(Opcode::SQERR2RTS_QP, qpn, 0, Qpc::new()).unwrap();
    assert_eq!(state(&mut p), QpState::Rts.code());
}

#[test]
fn keys_of_one_function_mean_nothing_to_another_one() {
    for remote in [false, true] {
        let mut p = Pair::new(QpShape::default());
        let (own, foreign) = (p.a.mr, p.b.mr);
        p.b.fill(0, b"untouched");
        // A third function's memory; and the peer's, by a local key.
        let mut third = p.server.client(2);
        let theirs = third.mr(PAGE);
        third.write(theirs.iova, b"untouched");
        let wqe = if remote {
            Wqe::new(WqeOpcode::RdmaWrite).to(theirs.remote(0)).seg(own.seg(0, 8))
        } else {
            Wqe::new(WqeOpcode::RdmaWrite).to(foreign.remote(64)).seg(theirs.seg(0, 8))
        };
        p.a.post(&wqe);
        let expected = if remote { CqeSyndrome::RemoteAccessErr } else { CqeSyndrome::LocalProtErr };
        assert_eq!(syndrome(&p.sent()), expected);
        assert_eq!(
            (third.read(theirs.iova, 9), p.b.bytes(0, 9)),
            (b"untouched".to_vec(), b"untouched".to_vec())
        );
        assert_eq!(p.b.bytes(64, 8), [0; 8]);
        if remote {
            assert_eq!(p.b.client.query(&p.b.qp.clone()).get(Qpc::STATE), QpState::Err.code());
            assert_eq!(p.b.client.all_events(), [EventType::WqAccessError]);
        }
    }
}

#[test]
fn a_command_that_ends_other_connections_is_the_last_one_of_its_look() {
    let mut p = Pair::new(QpShape::default());
    let path = Ads::new().with(Ads::RGID_RIP, p.server.gid().0).with(Ads::GRH, true);
    let b = p.b.qp.qpn;
    // A stays connected to it.
    for (peer, ends_others) in [(p.a.qp.qpn, false), (b, true), (b, false)] {
        p.b.client.change(Opcode::QP_2RST, b, 0, Qpc::new()).unwrap();
        p.b.client.change(Opcode::RST2INIT_QP, b, 0, Qpc::new()).unwrap();
        let rtr = Qpc::new().with(Qpc::MTU, 3).with(Qpc::REMOTE_QPN, peer);
        p.b.client.change(Opcode::INIT2RTR_QP, b, 0, rtr.with(Qpc::PRIMARY_ADDRESS_PATH, path)).unwrap();
        assert_eq!(p.b.client.function.commands.is_all_spent(), ends_others, "{peer}");
    }
}

#[test]
fn who_is_connected_to_a_queue_pair_that_is_not_to_him_is_not_heard() {
    for st in [ServiceType::Rc, ServiceType::Uc] {
        // A third function, whose queue pair would continue where A's is.
        let clock = Arc::new(AtomicU64::new(0));
        let later = || clock.fetch_add(100_000_000, Ordering::Relaxed);
        let server = Server::by_clock(&LoopbackNet::new(), "10.0.0.1", clock.clone());
        let mut p = Pair::over(server, [0, 1], QpShape { st, ..QpShape::default() });
        let mut c = End::new(&p.server, 2, QpShape { st, ..QpShape::default() });
        let (gid, b, to) = (p.server.gid(), p.b.qp.qpn, p.b.mr.remote(0));
        let qp = c.qp;
        c.client.connect(&qp, gid, b);
        p.b.recv(128, 64);
        c.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[6; 8]));
        let cqe = p.until("the stranger's completion", |_| {
            later();
            c.client.function.look();
            c.sent()
        });
        if st == ServiceType::Rc {
            assert_eq!(syndrome(&cqe), CqeSyndrome::TransportRetryExcErr);
        }
        // One that was connected before, when nobody was the peer.
        let mut d = End::new(&p.server, 3, QpShape { st, ..QpShape::default() });
        let qp = d.qp;
        p.b.client.change(Opcode::QP_2RST, b, 0, Qpc::new()).unwrap();
        d.client.connect(&qp, gid, b);
        d.post(&Wqe::new(WqeOpcode::Send).inline(&[6; 8]));
        d.client.function.look();
        // A retransmission may be on its way when B gets its peer.
        later();
        p.server.hca.turn();
        later();
        let a = p.a.qp.qpn;
        p.b.client.write(p.b.qp.record, &[0; 8]);
        p.b.qp.rq_pi = 0;
        p.b.client.connect(&p.b.qp.clone(), gid, a);
        p.b.recv(128, 64);
        for _ in 0..50 {
            d.client.function.look();
            p.look();
        }
        assert_eq!(d.client.query(&qp).get(Qpc::STATE), QpState::Err.code());
        assert!(p.b.received().is_none());
        assert_eq!((p.b.bytes(0, 8), p.b.bytes(128, 8)), (vec![0; 8], vec![0; 8]));
    }
}

#[test]
fn a_connection_to_an_address_that_nobody_has_is_made_and_nothing_answers() {
    // A LID that no function has, and GIDs that the adapter's network has no way to.
    let by_lid = Ads::new().with(Ads::RLID, 77);
    let by_gid = |gid: [u8; 16]| Ads::new().with(Ads::RGID_RIP, gid).with(Ads::GRH, true);
    let other_version = by_gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    let group = by_gid(Gid::from_ip([224, 0, 0, 5].into()).0);
    for path in [by_lid, other_version, group] {
        for (st, retries) in [(ServiceType::Rc, 0), (ServiceType::Rc, 2), (ServiceType::Uc, 2)] {
            let server = Server::new();
            let shape = QpShape { st, ..QpShape::default() };
            let (mut a, mut b) = (End::new(&server, 0, shape), End::new(&server, 1, shape));
            let (qp, peer) = (a.qp, b.qp);
            a.client.connect_by(&qp, path, peer.qpn, (6, retries));
            // The queue pair that it names is there, and takes it for its peer.
            b.client.connect(&peer, server.gid(), qp.qpn);
            b.recv(0, 64);
            let mut p = Pair { server, a, b };
            let counted = |p: &Pair, name| {
                p.server.hca.counters().iter().find(|c| c.name == name).expect("it is counted").value
            };
            for _ in 0..2 {
                p.a.post(&Wqe::new(WqeOpcode::Send).inline(b"nowhere"));
            }
            if st == ServiceType::Uc {
                assert_eq!(
                    [opcode(&p.sent()), opcode(&p.sent())],
                    [CqeOpcode::Req; 2],
                    "they leave, and are lost"
                );
                continue;
            }
            let failed = failures(&mut p, 2).into_iter().map(|(_, syndrome)| syndrome);
            let expected = [CqeSyndrome::TransportRetryExcErr, CqeSyndrome::WrFlushErr];
            assert!(failed.eq(expected), "{path:?}");
            assert_eq!(state(&mut p), QpState::Err.code());
            // They leave, and again as often as the queue pair was told, each time after its timeout.
            let retries = u64::from(retries);
            assert_eq!(counted(&p, "timeouts"), retries, "{path:?}");
            assert!(counted(&p, "rx_unknown_qp") >= 2 * (retries + 1), "{path:?}");
            assert!(p.b.received().is_none());
        }
    }
}

#[test]
fn nothing_goes_over_a_link_that_is_down_and_all_does_when_it_is_up_again() {
    for (st, which) in
        [(ServiceType::Rc, 0), (ServiceType::Rc, 1), (ServiceType::Ud, 0), (ServiceType::Ud, 1)]
    {
        let shape = QpShape { st, ..QpShape::default() };
        let mut p = Pair::new(shape);
        let (gid, b) = (Gid([0xfe; 16]), p.b.qp.qpn);
        assert!(p.server.directory.lock().add_gid(gid, 1));
        let wqe = match st {
            ServiceType::Ud => Wqe::new(WqeOpcode::Send).datagram(gid, 0, b, 0x1111),
            _ => Wqe::new(WqeOpcode::Send),
        };
        let wqe = wqe.inline(b"over");
        p.b.recv(0, 128);
        p.server.directory.lock().set_link(which, false);
        p.a.post(&wqe);
        let cqe = p.sent();
        if st == ServiceType::Rc {
            assert_eq!(syndrome(&cqe), CqeSyndrome::TransportRetryExcErr);
        } else {
            assert_eq!(opcode(&cqe), CqeOpcode::Req, "it is lost");
            assert!(p.b.received().is_none());
            p.server.directory.lock().set_link(which, true);
            p.a.post(&wqe);
            p.sent();
            assert_eq!(p.received().get(Cqe64::BYTE_CNT), 44);
        }
        // What is connected stays so.
        let mut q = Pair::new(shape);
        q.b.recv(0, 128);
        q.server.directory.lock().set_link(which, false);
        q.server.directory.lock().set_link(which, true);
        if st == ServiceType::Rc {
            q.a.post(&wqe);
            assert_eq!(opcode(&q.sent()), CqeOpcode::Req);
            assert_eq!(q.received().get(Cqe64::BYTE_CNT), 4);
        }
    }
}

#[test]
fn a_full_completion_queue_is_in_error_with_its_queue_pairs_and_keeps_what_it_had() {
    let mut p = Pair::new(QpShape::default());
    let (small, recv_cq) = (p.a.client.cq(2), p.a.recv_cq);
    p.a.send_cq = small;
    p.a.qp = p.a.client.qp(QpShape::default(), &small, &recv_cq);
    let (gid, peer, to) = (p.server.gid(), p.b.qp.qpn, p.b.mr.remote(0));
    let b_qpn = p.b.qp.qpn;
    p.b.client.change(Opcode::QP_2RST, b_qpn, 0, Qpc::new()).unwrap();
    let a_qpn = p.a.qp.qpn;
    p.b.client.connect(&p.b.qp.clone(), gid, a_qpn);
    p.a.client.connect(&p.a.qp.clone(), gid, peer);
    for _ in 0..5 {
        p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[3; 8]));
    }
    let data = p.until("the event", |p| p.a.client.event().filter(|e| e.0 == EventType::CqError));
    assert_eq!(CqError::from_array(data.1).get(CqError::CQN), small.cqn);
    assert_eq!(state(&mut p), QpState::Err.code());
    assert!((0..4).map(|_| p.a.sent()).all(|cqe| cqe.is_some()));
    assert!(p.a.sent().is_none());
    // It can't go while it is used.
    let command = DestroyCqIn::new().with(DestroyCqIn::CQN, small.cqn);
    let destroy = |p: &mut Pair| p.a.client.command(&command).map(drop);
    assert_eq!(destroy(&mut p), Err(CmdStatus::ResBusy));
    p.a.client.destroy(a_qpn).unwrap();
    assert_eq!(destroy(&mut p), Ok(()));
    assert_eq!(destroy(&mut p), Err(CmdStatus::BadRes));
}

#[test]
fn what_queues_and_keys_name_stays_until_they_go() {
    let server = Server::new();
    let mut c = server.client(0);
    let (pd, uar, eqn) = (c.pd, c.uar, c.eq.eqn);
    let (cq, srq) = (c.cq(4), c.rmp(4));
    let qp = c.qp(QpShape { srq: Some(srq.rmpn), ..QpShape::default() }, &cq, &cq);
    let mr = c.mr(4096);
    // A key without bytes, one of bus addresses, and one whose memory is gone.
    let mut context = Mkc::new().with(Mkc::PD, pd).with(Mkc::QPN, Mkc::ANY_QPN).with(Mkc::LENGTH64, true);
    context.set_access_mode(AccessMode::Pa);
    let others = [c.try_mr(&[], 0, 0, |context| context), c.key(context, &[]), Ok(c.mr(4096).key)];
    let (pd, uar) =
        (DeallocPdIn::new().with(DeallocPdIn::PD, pd), DeallocUarIn::new().with(DeallocUarIn::UAR, uar));
    let eq = DestroyEqIn::new().with(DestroyEqIn::EQ_NUMBER, eqn);
    let cq = DestroyCqIn::new().with(DestroyCqIn::CQN, cq.cqn);
    let srq = DestroyRmpIn::new().with(DestroyRmpIn::RMPN, srq.rmpn);
    let statuses = |c: &mut Client| {
        let of = |done: Result<(), CmdStatus>| done.err();
        [
            of(c.command(&srq).map(drop)),
            of(c.command(&cq).map(drop)),
            of(c.command(&eq).map(drop)),
            of(c.command(&uar).map(drop)),
            of(c.command(&pd).map(drop)),
        ]
    };
    let (busy, gone) = (Some(CmdStatus::ResBusy), Some(CmdStatus::BadRes));
    assert_eq!(statuses(&mut c), [busy; 5], "a queue pair and a key are there");
    c.destroy(qp.qpn).unwrap();
    assert_eq!(statuses(&mut c), [None, None, None, None, busy], "a key is left");
    c.function.objects.release_keys(BASE, LEN, usize::MAX);
    for key in [mr.key].into_iter().chain(others.map(Result::unwrap)) {
        assert_eq!(statuses(&mut c), [gone, gone, gone, gone, busy], "{key:#x} is left");
        c.command(&DestroyMkeyIn::new().with(DestroyMkeyIn::MKEY_INDEX, key >> 8)).unwrap();
    }
    assert_eq!(statuses(&mut c), [gone, gone, gone, gone, None]);
}

#[test]
fn an_entry_that_is_taken_gives_room_for_the_next_round_after_round() {
    let mut p = Pair::new(QpShape::default());
    let to = p.b.mr.remote(0);
    for i in 0..300_u32 {
        p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[3; 8]));
        assert_eq!(counter(&p.sent()), i);
    }
}

#[test]
fn memory_that_goes_under_traffic_is_touched_no_more_and_takes_down_who_used_it() {
    let mut p = Pair::new(QpShape::default());
    let (to, seg) = (p.b.mr.remote(0), p.a.mr.seg(0, 1 << 16));
    for _ in 0..20 {
        p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).seg(seg));
    }
    for _ in 0..3 {
        p.look();
    }
    p.b.client.function.dma_unmap(BASE, LEN).unwrap();
    p.b.client.write(BASE, &vec![0x5a; LEN as usize]);
    let failed = p.until("an error", |p| {
        let cqe = p.a.sent()?;
        (cqe.get(Cqe64::OPCODE) == hca_prm::CqeOpcode::ReqErr.code()).then_some(cqe)
    });
    assert!(
        matches!(syndrome(&failed), CqeSyndrome::RemoteAccessErr | CqeSyndrome::TransportRetryExcErr),
        "{failed:?}"
    );
    for _ in 0..100 {
        p.look();
    }
    assert!(p.b.client.read(BASE, LEN as usize).iter().all(|byte| *byte == 0x5a), "it was written");
    // Nothing keeps the mapping: the range can be mapped anew, and objects destroyed.
    let file = p.b.client.memory.file.try_clone().unwrap();
    p.b.client.function.dma_map(BASE, LEN, (true, true), Some((file.into(), 0))).unwrap();
    let qpn = p.b.qp.qpn;
    p.b.client.destroy(qpn).unwrap();
    p.b.client.function.reset();
}

#[test]
fn a_key_goes_with_its_memory_and_nothing_else_does() {
    let mut p = Pair::new(QpShape::default());
    let (more, at) = (crate::bed::sealed(4 * PAGE), 0x9_0000_0000);
    let copy = || Some((more.try_clone().unwrap().into(), 0));
    p.b.client.function.dma_map(at, 4 * PAGE, (true, true), copy()).unwrap();
    let key = p.b.client.try_mr(&[at + PAGE, at], 0x1000, 2 * PAGE, |c| c).unwrap();
    let mut to = p.b.mr.remote(0);
    let last = Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[9; 8]);
    to.set(hca_prm::RaddrSeg::RADDR, 0x1000).set(hca_prm::RaddrSeg::RKEY, key);
    let write = |byte: u8| Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[byte; 8]);
    let mut seen = [0; 8];
    p.a.post(&write(1));
    p.sent();
    more.read_exact_at(&mut seen, PAGE).unwrap();
    assert_eq!(seen, [1; 8]);
    p.b.client.function.dma_unmap(at, 4 * PAGE).unwrap();
    p.a.post(&last);
    assert_eq!(crate::qp::tests::opcode(&p.sent()), hca_prm::CqeOpcode::Req);
    p.a.post(&write(2));
    assert_eq!(syndrome(&p.sent()), CqeSyndrome::RemoteAccessErr);
    more.read_exact_at(&mut seen, PAGE).unwrap();
    assert_eq!((seen, p.b.bytes(0, 8)), ([1; 8], vec![9; 8]));
    // The number is still the driver's to give back.
    assert_eq!(p.b.client.function.objects.destroy_mkey(key >> 8), Ok(()));
    assert_eq!(p.b.client.function.objects.destroy_mkey(key >> 8), Err(CmdStatus::BadRes));
}

#[test]
fn a_function_that_is_reset_leaves_nothing_in_the_adapter() {
    let mut p = Pair::new(QpShape::default());
    let count = |p: &Pair, name| p.server.hca.counters().iter().find(|c| c.name == name).unwrap().value;
    let before = (count(&p, "queue_pairs"), count(&p, "memory_regions"));
    p.a.post(&Wqe::new(WqeOpcode::Send).inline(&[1; 8]));
    p.look();
    p.a.client.function.reset();
    while p.a.client.function.give_back() {}
    assert_eq!((count(&p, "queue_pairs"), count(&p, "memory_regions")), (before.0 - 1, before.1 - 1));
    p.b.client.function.disconnect();
    while p.b.client.function.give_back() {}
    assert_eq!((count(&p, "queue_pairs"), count(&p, "memory_regions")), (0, 0));
    p.look();
}

#[test]
fn a_function_that_may_not_reach_memory_any_more_does_not() {
    let mut p = Pair::new(QpShape::default());
    let to = p.b.mr.remote(0);
    let command = |p: &mut Pair, value: u16| p.b.client.function.config_write(4, &value.to_le_bytes());
    command(&mut p, 6);
    p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[1; 8]));
    p.sent();
    assert_eq!(p.b.bytes(0, 8), [1; 8]);
    command(&mut p, 2);
    p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[2; 8]));
    p.sent();
    assert_eq!(p.b.bytes(0, 8), [1; 8]);
}

#[test]
fn what_had_ended_before_its_queue_pair_went_is_shown() {
    let mut p = Pair::new(QpShape::default());
    let to = p.b.mr.remote(0);
    p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[1; 8]));
    p.a.client.function.look_at_requests();
    p.a.client.function.carry_out();
    // The adapter ends it while another function is looked at.
    for _ in 0..50 {
        p.b.client.function.look();
    }
    let qpn = p.a.qp.qpn;
    p.a.client.destroy(qpn).unwrap();
    assert_eq!(p.a.sent().map(|cqe| counter(&cqe)), Some(0));
}
