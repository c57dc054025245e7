//! Extended reliable connections: initiators, targets, domains and their shared receive queues.

use hca_core::{Device, ExtendedConnections};
use hca_prm::command::cq::DestroyCqIn;
use hca_prm::command::resource::{DeallocPdIn, DeallocXrcdIn};
use hca_prm::command::srq::{ArmXrcSrqIn, DestroyXrcSrqIn, QueryXrcSrqIn, QueryXrcSrqOut};
use hca_prm::{
    CmdStatus, Cqe64, CqeOpcode, CqeSyndrome, EventType, Opcode, QpState, Qpc, RqType, ServiceType,
    WqeOpcode, XrcSrqState, XrcSrqc,
};

use crate::bed::{Client, ClientCq, ClientQp, ClientSrq, End, Pair, QpShape, Server, Wqe};
use crate::qp::tests::{counter, opcode, syndrome};
use crate::qp::tests_watch::{all_doze, missed};
use crate::srq::xrc::QUEUES_A_LOOK;

/// How an initiator is made: with a shared receive queue of no meaning, as Linux makes it.
const INITIATOR: QpShape = QpShape { st: ServiceType::Xrc, log_rq: 0, log_sq: 6, srq: Some(0), clock: 0 };
/// The user's number of the first shared receive queue.
const USER: u32 = 0x777;

/// An initiator (A) that is connected to a target of a domain (B), which has a shared receive queue.
struct Extended {
    p: Pair,
    xrcd: u32,
    srq: ClientSrq,
}

impl Extended {
    fn new() -> Self {
        let server = Server::new();
        let (mut a, mut b) = (End::new(&server, 0, INITIATOR), End::new(&server, 1, QpShape::default()));
        let xrcd = b.client.xrcd();
        let srq = b.client.try_xrc_srq(4, (xrcd, b.recv_cq.cqn), USER).unwrap();
        let own = b.qp.qpn;
        b.client.destroy(own).unwrap();
        b.qp = b.client.try_target(xrcd).unwrap();
        connect(&server, &mut a.client, &a.qp, b.qp.qpn);
        connect(&server, &mut b.client, &b.qp, a.qp.qpn);
        Self { p: Pair { server, a, b }, xrcd, srq }
    }

    /// Another shared receive queue of the domain, with a completion queue of its own.
    fn other_srq(&mut self, user_index: u32) -> (ClientSrq, ClientCq) {
        let (xrcd, client) = (self.xrcd, &mut self.p.b.client);
        let cq = client.cq(4);
        (client.try_xrc_srq(4, (xrcd, cq.cqn), user_index).unwrap(), cq)
    }

    /// Posts to the first shared receive queue. Returns the entry's index.
    fn recv(&mut self, from: u64, len: u32) -> u16 {
        let seg = self.p.b.mr.seg(from, len);
        self.p.b.client.post_srq(&mut self.srq, &seg)
    }

    fn send(&mut self, srqn: u32, bytes: &[u8]) {
        self.p.a.post(&Wqe::new(WqeOpcode::Send).srq(srqn).inline(bytes));
    }
}

fn connect(server: &Server, client: &mut Client, qp: &ClientQp, peer: u32) {
    client.connect(qp, server.gid(), peer);
}

fn dealloc(client: &mut Client, xrcd: u32) -> Result<(), CmdStatus> {
    client.command(&DeallocXrcdIn::new().with(DeallocXrcdIn::XRCD, xrcd)).map(drop)
}
fn destroy_srq(client: &mut Client, number: u32) -> Result<(), CmdStatus> {
    client.command(&DestroyXrcSrqIn::new().with(DestroyXrcSrqIn::XRC_SRQN, number)).map(drop)
}
fn query(client: &mut Client, number: u32) -> XrcSrqc {
    let command = QueryXrcSrqIn::new().with(QueryXrcSrqIn::XRC_SRQN, number);
    client.command(&command).unwrap().get(QueryXrcSrqOut::XRC_SRQ_CONTEXT_ENTRY)
}

#[test]
fn a_request_of_an_extended_connection_names_its_queue_whose_completion_names_the_user() {
    let mut x = Extended::new();
    let (mut other, mut other_cq) = x.other_srq(0x888);
    let (first, second, target) = (x.srq.rmpn, other.rmpn, x.p.b.qp.qpn);
    assert_ne!(first, second);
    for round in 0..20_u8 {
        let seg = x.p.b.mr.seg(4096, 256);
        let indices = [x.recv(0, 256), x.p.b.client.post_srq(&mut other, &seg)];
        for (srqn, at, index, user) in [(first, 0, indices[0], USER), (second, 4096, indices[1], 0x888)] {
            let text = [round, srqn as u8, 7, 9];
            x.p.a.post(&Wqe::new(WqeOpcode::SendImm).imm(u32::from(round)).srq(srqn).inline(&text));
            assert_eq!(opcode(&x.p.sent()), CqeOpcode::Req);
            let cqe = x.p.until("a message", |p| {
                let cq = if srqn == first { &mut p.b.recv_cq } else { &mut other_cq };
                p.b.client.poll(cq)
            });
            assert_eq!((opcode(&cqe), cqe.get(Cqe64::BYTE_CNT)), (CqeOpcode::RespSendImm, 4));
            assert_eq!((counter(&cqe), cqe.get(Cqe64::IMM)), (index.into(), round.into()));
            assert_eq!((cqe.get(Cqe64::SRQN_USER_INDEX), cqe.get(Cqe64::QPN)), (user, target));
            assert_eq!(x.p.b.bytes(at, 4), text);
        }
        x.p.b.client.free_srq(&mut x.srq, indices[0]);
        x.p.b.client.free_srq(&mut other, indices[1]);
    }
    assert!(x.p.b.received().is_none() && x.p.b.client.poll(&mut other_cq).is_none());
}

#[test]
fn rdma_and_atomics_of_an_extended_connection_use_the_keys_of_the_queues_domain() {
    let mut x = Extended::new();
    let (srqn, mr, old) = (x.srq.rmpn, x.p.b.mr, x.p.a.mr.seg(0, 8));
    x.p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).srq(srqn).to(mr.remote(64)).inline(b"extended"));
    assert_eq!(opcode(&x.p.sent()), CqeOpcode::Req);
    assert_eq!(x.p.b.bytes(64, 8), b"extended");
    x.p.a.post(&Wqe::new(WqeOpcode::RdmaRead).srq(srqn).to(mr.remote(64)).seg(old));
    assert_eq!(x.p.sent().get(Cqe64::BYTE_CNT), 8);
    assert_eq!(x.p.a.bytes(0, 8), b"extended");
    x.p.b.fill(64, &5_u64.to_ne_bytes());
    x.p.a.post(&Wqe::new(WqeOpcode::AtomicFa).srq(srqn).to(mr.remote(64)).atomic(3, 0).seg(old));
    assert_eq!(opcode(&x.p.sent()), CqeOpcode::Req);
    assert_eq!(
        (x.p.a.bytes(0, 8), x.p.b.bytes(64, 8)),
        (5_u64.to_ne_bytes().into(), 8_u64.to_ne_bytes().into())
    );
    x.recv(0, 64);
    x.p.a.post(&Wqe::new(WqeOpcode::RdmaWriteImm).imm(6).srq(srqn).to(mr.remote(64)).inline(&[1; 8]));
    let cqe = x.p.received();
    assert_eq!((opcode(&cqe), cqe.get(Cqe64::IMM)), (CqeOpcode::RespWrImm, 6));
    // Bytes beside pointers are set aside behind the same segment.
    x.p.a.fill(0, b"pointers");
    x.recv(4096, 64);
    let seg = x.p.a.mr.seg(0, 8);
    x.p.sent();
    x.p.a.post(&Wqe::new(WqeOpcode::Send).srq(srqn).inline(b"beside ").seg(seg));
    assert_eq!(opcode(&x.p.sent()), CqeOpcode::Req);
    assert_eq!(x.p.received().get(Cqe64::BYTE_CNT), 15);
    assert_eq!(x.p.b.bytes(4096, 15), b"beside pointers");
}

#[test]
fn a_request_for_no_queue_of_the_targets_domain_is_an_access_error_and_of_no_segment_an_error_of_its_own() {
    let foreign = |x: &mut Extended| {
        let (xrcd, cqn) = (x.p.b.client.xrcd(), x.p.b.recv_cq.cqn);
        x.p.b.client.try_xrc_srq(4, (xrcd, cqn), 1).unwrap().rmpn
    };
    for number in [|_: &mut Extended| 0, |_: &mut Extended| 0xff_fffe, foreign] {
        let mut x = Extended::new();
        let number = number(&mut x);
        x.send(number, &[1; 8]);
        assert_eq!(syndrome(&x.p.sent()), CqeSyndrome::RemoteAccessErr, "{number:#x}");
        let state = x.p.a.client.query(&x.p.a.qp.clone()).get(Qpc::STATE);
        assert_eq!(state, QpState::Err.code(), "the service is reliable");
    }
    let mut x = Extended::new();
    x.p.a.post(&Wqe::new(WqeOpcode::Send).raw(&[0; 0]));
    assert_eq!(syndrome(&x.p.sent()), CqeSyndrome::LocalQpOpErr);
    assert_eq!(x.p.a.client.query(&x.p.a.qp.clone()).get(Qpc::STATE), QpState::Err.code());
}

#[test]
fn a_sleeping_target_finds_the_requests_that_were_posted_meanwhile() {
    let mut x = Extended::new();
    let srqn = x.srq.rmpn;
    for round in 0..5_u8 {
        for _ in 0..8 {
            x.p.look();
        }
        assert!(x.p.b.client.function.objects.watched.domains.is_empty(), "its targets sleep");
        let index = x.recv(0, 64);
        x.send(srqn, &[round; 8]);
        assert_eq!(opcode(&x.p.sent()), CqeOpcode::Req);
        assert_eq!((opcode(&x.p.received()), x.p.b.bytes(0, 1)), (CqeOpcode::RespSend, vec![round]));
        x.p.b.client.free_srq(&mut x.srq, index);
    }
    // No receiver is ready: the sender tries until one is.
    x.send(srqn, &[9; 8]);
    for _ in 0..8 {
        x.p.look();
    }
    assert!(x.p.b.received().is_none());
    x.recv(0, 64);
    assert_eq!((opcode(&x.p.received()), x.p.b.bytes(0, 1)), (CqeOpcode::RespSend, vec![9]));
}

#[test]
fn a_target_of_a_domain_with_many_queues_sleeps_while_they_are_read_in_turn() {
    let mut x = Extended::new();
    let mut others: Vec<_> = (0..3 * QUEUES_A_LOOK as u32).map(|user| x.other_srq(user)).collect();
    all_doze(&mut x.p);
    let read = |x: &Extended| x.p.b.client.function.objects.xrcds[&x.xrcd].read;
    for round in 0..2_u8 {
        for (user, (srq, cq)) in (0..).zip(&mut others) {
            let (before, seg) = (read(&x), x.p.b.mr.seg(0, 64));
            let index = x.p.b.client.post_srq(srq, &seg);
            x.send(srq.rmpn, &[round; 8]);
            let (mut last, mut looks) = (before, 0);
            let cqe = x.p.until("a message", |p| {
                let objects = &p.b.client.function.objects;
                assert!(objects.watched.domains.is_empty(), "the target is awake");
                let now = objects.xrcds[&x.xrcd].read;
                assert!(now - last <= QUEUES_A_LOOK as u64, "{last} queues were read, then {now}");
                (last, looks) = (now, looks + 1);
                p.b.client.poll(cq)
            });
            assert_eq!((opcode(&cqe), cqe.get(Cqe64::SRQN_USER_INDEX)), (CqeOpcode::RespSend, user));
            assert!(
                looks >= 3 && last - before <= 4 * QUEUES_A_LOOK as u64,
                "{looks} looks, {before} to {last}"
            );
            assert_eq!(opcode(&x.p.sent()), CqeOpcode::Req);
            x.p.b.client.free_srq(srq, index);
        }
    }
    assert_eq!(missed(&x.p), 0);
    // The acknowledgement of the last message may come before the last look for it.
    (0..8).for_each(|_| x.p.look());
    let before = read(&x);
    (0..8).for_each(|_| x.p.look());
    assert_eq!(read(&x), before, "nothing waits");
    // Queues that go while something waits are waited for no more.
    x.send(x.srq.rmpn, &[1; 8]);
    x.p.look();
    for (srq, _) in others {
        destroy_srq(&mut x.p.b.client, srq.rmpn).unwrap();
    }
    x.recv(0, 64);
    assert_eq!(opcode(&x.p.received()), CqeOpcode::RespSend);
}

/// One is changed while its domain has more requests than are taken in one look, and sleeps again by then.
#[test]
fn a_target_that_sleeps_again_before_all_was_read_for_it_is_not_woken_by_that() {
    let mut x = Extended::new();
    (0..QUEUES_A_LOOK as u32).for_each(|user| _ = x.other_srq(user));
    let cq = x.p.b.client.cq(4);
    let mut large = x.p.b.client.try_xrc_srq(10, (x.xrcd, cq.cqn), 9).unwrap();
    let other = x.p.b.client.try_target(x.xrcd).unwrap();
    all_doze(&mut x.p);
    for _ in 0..600 {
        let seg = x.p.b.mr.seg(0, 64);
        x.p.b.client.post_srq(&mut large, &seg);
    }
    let own = x.p.b.qp.qpn;
    x.p.b.client.change(Opcode::RTS2RTS_QP, own, 0, Qpc::new()).unwrap();
    x.p.look();
    x.p.b.client.change(Opcode::QP_2RST, other.qpn, 0, Qpc::new()).unwrap();
    (0..4).for_each(|_| x.p.look());
    x.recv(0, 64);
    x.send(x.srq.rmpn, &[1; 8]);
    assert_eq!(opcode(&x.p.received()), CqeOpcode::RespSend);
    assert_eq!(missed(&x.p), 0);
}

#[test]
fn a_queue_of_a_domain_that_runs_low_says_so_once() {
    let mut x = Extended::new();
    let srqn = x.srq.rmpn;
    for i in 0..3 {
        x.recv(64 * i, 64);
    }
    let arm = ArmXrcSrqIn::new().with(ArmXrcSrqIn::XRC_SRQN, srqn).with(ArmXrcSrqIn::LWM, 2);
    x.p.b.client.command(&arm).unwrap();
    assert_eq!(query(&mut x.p.b.client, srqn).get(XrcSrqc::LWM), 2);
    x.p.b.client.all_events();
    for i in 0..2 {
        x.send(srqn, &[1; 8]);
        x.p.received();
        x.p.look();
        let low = x.p.b.client.all_events().iter().filter(|e| **e == EventType::SrqRqLimit).count();
        assert_eq!(
            (low, query(&mut x.p.b.client, srqn).get(XrcSrqc::LWM)),
            if i == 0 { (0, 2) } else { (1, 0) }
        );
    }
    let no_such = ArmXrcSrqIn::new().with(ArmXrcSrqIn::XRC_SRQN, x.p.b.client.rmp(2).rmpn);
    assert_eq!(x.p.b.client.command(&no_such).err(), Some(CmdStatus::BadRes), "a pool is none of them");
}

#[test]
fn what_extended_connections_are_made_of_stays_as_long_as_it_is_used() {
    let mut x = Extended::new();
    let (xrcd, srqn, target, cqn) = (x.xrcd, x.srq.rmpn, x.p.b.qp.qpn, x.p.b.recv_cq.cqn);
    let c = &mut x.p.b.client;
    let destroy_cq = |c: &mut Client| c.command(&DestroyCqIn::new().with(DestroyCqIn::CQN, cqn)).map(drop);
    assert_eq!((dealloc(c, xrcd), destroy_cq(c)), (Err(CmdStatus::ResBusy), Err(CmdStatus::ResBusy)));
    let dealloc_pd = DeallocPdIn::new().with(DeallocPdIn::PD, c.pd);
    assert_eq!(c.command(&dealloc_pd).err(), Some(CmdStatus::ResBusy));
    destroy_srq(c, srqn).unwrap();
    assert_eq!((destroy_srq(c, srqn), destroy_cq(c)), (Err(CmdStatus::BadRes), Ok(())));
    assert_eq!(dealloc(c, xrcd), Err(CmdStatus::ResBusy), "the target is left");
    c.destroy(target).unwrap();
    assert_eq!((dealloc(c, xrcd), dealloc(c, xrcd)), (Ok(()), Err(CmdStatus::BadRes)));
    // What was there is there no more: neither may be made of it.
    assert_eq!(c.try_target(xrcd).err(), Some(CmdStatus::BadRes));
    let (other, cq) = (c.xrcd(), c.cq(2));
    for (of, status) in [((xrcd + 7, cq.cqn), CmdStatus::BadRes), ((other, cqn), CmdStatus::BadRes)] {
        assert_eq!(c.try_xrc_srq(2, of, 1).err(), Some(status));
    }
    c.try_xrc_srq(2, (other, cq.cqn), 1).unwrap();
}

#[test]
fn an_initiator_has_no_receive_queue_of_its_own() {
    let server = Server::new();
    let mut c = server.client(0);
    let cq = c.cq(4);
    assert_eq!(c.try_qp(QpShape { srq: None, ..INITIATOR }, &cq, &cq).err(), Some(CmdStatus::BadParam));
    let qp = c.qp(INITIATOR, &cq, &cq);
    let context = c.query(&qp);
    assert_eq!(
        (context.get(Qpc::ST), context.get(Qpc::RQ_TYPE)),
        (ServiceType::Xrc.code(), RqType::Srq.code())
    );
    c.destroy(qp.qpn).unwrap();
}

#[test]
fn what_a_queue_received_is_shown_before_the_queue_or_the_target_goes() {
    for queue_goes in [true, false] {
        let mut x = Extended::new();
        let srqn = x.srq.rmpn;
        x.recv(0, 64);
        x.p.look();
        x.send(srqn, &[3; 8]);
        // The adapter has it, and B has not looked since.
        x.p.a.client.function.look();
        x.p.server.hca.turn();
        let (c, target) = (&mut x.p.b.client, x.p.b.qp.qpn);
        if queue_goes {
            destroy_srq(c, srqn).unwrap();
        } else {
            c.destroy(target).unwrap();
        }
        assert_eq!(x.p.b.bytes(0, 1), [3]);
        let cqe = x.p.b.received().expect("it has come");
        assert_eq!((opcode(&cqe), cqe.get(Cqe64::SRQN_USER_INDEX)), (CqeOpcode::RespSend, USER));
        for _ in 0..8 {
            x.p.look();
        }
        assert!(x.p.b.received().is_none());
    }
}

#[test]
fn requests_of_a_target_that_goes_or_is_reset_are_there_for_others() {
    let mut x = Extended::new();
    let srqn = x.srq.rmpn;
    x.recv(0, 64);
    x.p.look();
    let (gid, a, b) = (x.p.server.gid(), x.p.a.qp, x.p.b.qp);
    x.p.b.client.change(Opcode::QP_2RST, b.qpn, 0, Qpc::new()).unwrap();
    x.p.b.client.destroy(b.qpn).unwrap();
    x.p.b.qp = x.p.b.client.try_target(x.xrcd).unwrap();
    x.p.a.client.change(Opcode::QP_2RST, a.qpn, 0, Qpc::new()).unwrap();
    x.p.a.client.write(a.record, &[0; 8]);
    x.p.a.qp.sq_pi = 0;
    let (other, from) = (x.p.b.qp, x.p.a.qp);
    x.p.b.client.connect(&other, gid, from.qpn);
    x.p.a.client.connect(&from, gid, other.qpn);
    x.send(srqn, &[4; 8]);
    let cqe = x.p.received();
    assert_eq!((opcode(&cqe), cqe.get(Cqe64::QPN)), (CqeOpcode::RespSend, other.qpn));
}

#[test]
fn a_queue_of_a_domain_whose_completion_queue_overruns_is_in_error_and_takes_nothing_more() {
    let mut x = Extended::new();
    let (xrcd, user) = (x.xrcd, 0x999);
    let small = x.p.b.client.cq(0);
    let mut srq = x.p.b.client.try_xrc_srq(3, (xrcd, small.cqn), user).unwrap();
    for i in 0..4 {
        let seg = x.p.b.mr.seg(64 * i, 64);
        x.p.b.client.post_srq(&mut srq, &seg);
    }
    x.p.b.client.all_events();
    for _ in 0..2 {
        x.send(srq.rmpn, &[1; 8]);
        assert_eq!(opcode(&x.p.sent()), CqeOpcode::Req);
    }
    let mut seen = Vec::new();
    x.p.until("both events", |p| {
        seen.extend(p.b.client.all_events());
        let has = |event| seen.contains(&event);
        (has(EventType::CqError) && has(EventType::SrqCatasError)).then_some(())
    });
    assert_eq!(query(&mut x.p.b.client, srq.rmpn).get(XrcSrqc::STATE), XrcSrqState::Error.code());
    x.send(srq.rmpn, &[2; 8]);
    assert_eq!(syndrome(&x.p.sent()), CqeSyndrome::RemoteAccessErr);
    destroy_srq(&mut x.p.b.client, srq.rmpn).unwrap();
}

#[test]
fn a_reset_takes_domains_and_all_that_belongs_to_them() {
    let mut x = Extended::new();
    let (srqn, before) = (x.srq.rmpn, x.p.b.client.function.objects.queue_bytes);
    assert!(before > 0);
    x.p.b.client.function.reset();
    assert_eq!(x.p.b.client.function.objects.queue_bytes, 0);
    assert!(x.p.b.client.function.objects.xrcds.is_empty());
    // The adapter has none of them any more, so that nothing of a sender's is done.
    x.send(srqn, &[1; 8]);
    for _ in 0..8 {
        x.p.a.client.function.look();
    }
    assert!(x.p.a.sent().is_none_or(|cqe| opcode(&cqe) == CqeOpcode::ReqErr));
    x.p.a.client.function.reset();
    for function in [&mut x.p.a.client.function, &mut x.p.b.client.function] {
        while function.give_back() {}
    }
    // A shared receive queue would keep its protection domain.
    let new = Server::new();
    assert_eq!(protection_domains(&x.p.server), protection_domains(&new));
    assert_eq!(free_domains(&x.p.server), free_domains(&new));
}

/// The protection domains that the adapter has.
fn protection_domains(server: &Server) -> u64 {
    server.hca.counters().iter().find(|c| c.name == "protection_domains").expect("it is counted").value
}

/// The domains of extended connections that the adapter has left.
fn free_domains(server: &Server) -> usize {
    std::iter::from_fn(|| server.hca.alloc_xrcd().ok()).count()
}

#[test]
fn a_target_holds_no_completion_queue_and_ends_with_none() {
    let mut x = Extended::new();
    let (xrcd, c) = (x.xrcd, &mut x.p.b.client);
    let cq = c.cq(2);
    let target = c.try_target_with(xrcd, cq.cqn).unwrap();
    c.command(&DestroyCqIn::new().with(DestroyCqIn::CQN, cq.cqn)).unwrap();
    c.destroy(target.qpn).unwrap();
}

#[test]
fn a_queue_of_a_domain_is_for_targets_alone() {
    let mut x = Extended::new();
    let (srqn, cq) = (x.srq.rmpn, x.p.b.recv_cq);
    let shape = QpShape { srq: Some(srqn), ..QpShape::default() };
    assert_eq!(x.p.b.client.try_qp(shape, &cq, &cq).err(), Some(CmdStatus::BadRes));
}

#[test]
fn nothing_is_made_that_completes_into_a_queue_in_error() {
    let mut x = Extended::new();
    let (xrcd, c) = (x.xrcd, &mut x.p.b.client);
    let (cq, good) = (c.cq(2), c.cq(2));
    c.function.objects.fail_cq(cq.cqn, hca_prm::CqErrorSyndrome::CqOverrun);
    let refused = Some(CmdStatus::BadResState);
    assert_eq!(c.try_xrc_srq(2, (xrcd, cq.cqn), USER).err(), refused);
    assert_eq!(c.try_qp(QpShape::default(), &cq, &good).err(), refused);
    assert_eq!(c.try_qp(QpShape::default(), &good, &cq).err(), refused);
    assert_eq!(c.try_qp(QpShape::default(), &good, &good).err(), None);
}
