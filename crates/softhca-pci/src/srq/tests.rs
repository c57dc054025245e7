//! Shared receive queues, datagrams, and keys over scattered pages.

use hca_core::Gid;
use hca_prm::command::resource::{AllocPdIn, AllocPdOut};
use hca_prm::command::srq::{QueryRmpIn, QueryRmpOut};
use hca_prm::{
    AccessMode, CmdStatus, Cqe64, CqeOpcode, CqeSyndrome, DataSeg, EventType, Mkc, Opcode, QpEvent, Qpc,
    RmpState, Rmpc, ServiceType, Wq, WqeOpcode,
};

use crate::bed::{BASE, End, LEN, PAGE, Pair, QpShape, Server, Wqe};
use crate::qp::tests::{counter, opcode, syndrome};
use crate::qp::tests_datagram::ethernet;

/// A pair whose side B takes its receive requests from a shared queue of 2^`log_size` entries.
fn shared(log_size: u32) -> (Pair, crate::bed::ClientSrq) {
    let mut p = Pair::new(QpShape::default());
    let srq = p.b.client.rmp(log_size);
    let (send_cq, recv_cq) = (p.b.send_cq, p.b.recv_cq);
    let shape = QpShape { srq: Some(srq.rmpn), ..QpShape::default() };
    let (a, gid) = (p.a.qp.qpn, p.server.gid());
    p.b.qp = p.b.client.qp(shape, &send_cq, &recv_cq);
    p.a.client.change(Opcode::QP_2RST, a, 0, Qpc::new()).unwrap();
    p.b.client.connect(&p.b.qp.clone(), gid, a);
    let b = p.b.qp.qpn;
    p.a.client.connect(&p.a.qp.clone(), gid, b);
    (p, srq)
}

#[test]
fn a_shared_receive_queue_is_followed_as_its_entries_are_linked() {
    let (mut p, mut srq) = shared(3);
    let mr = p.b.mr;
    let mut used = Vec::new();
    let mut waiting = std::collections::VecDeque::new();
    for round in 0..40_u32 {
        while waiting.len() < 3 {
            let index = p.b.client.post_srq(&mut srq, &mr.seg(u64::from(waiting.len() as u32) * 64, 64));
            waiting.push_back(index);
        }
        p.a.post(&Wqe::new(WqeOpcode::SendImm).imm(round).inline(&[round as u8; 20]));
        p.sent();
        let cqe = p.received();
        let index = waiting.pop_front().unwrap();
        assert_eq!((counter(&cqe), cqe.get(Cqe64::IMM)), (index.into(), round));
        assert_eq!((cqe.get(Cqe64::QPN), cqe.get(Cqe64::SRQN_USER_INDEX)), (p.b.qp.qpn, 0xabc));
        used.push(index);
        // Entries come back in another order than they went.
        if used.len() == 3 {
            for index in used.drain(..).rev() {
                p.b.client.free_srq(&mut srq, index);
            }
        }
    }
}

#[test]
fn a_shared_receive_queue_that_runs_low_says_so_once() {
    let (mut p, mut srq) = shared(4);
    let mr = p.b.mr;
    for i in 0..4 {
        p.b.client.post_srq(&mut srq, &mr.seg(64 * i, 64));
    }
    let f = &mut p.b.client.function;
    f.arm_srq(srq.rmpn, 3).unwrap();
    p.look();
    p.b.client.all_events();
    for i in 0..3 {
        p.a.post(&Wqe::new(WqeOpcode::Send).inline(&[1; 8]));
        p.received();
        p.look();
        let events: Vec<_> = std::iter::from_fn(|| p.b.client.event()).collect();
        let limits: Vec<_> = events.iter().filter(|(e, _)| *e == EventType::SrqRqLimit).collect();
        let command = QueryRmpIn::new().with(QueryRmpIn::RMPN, srq.rmpn);
        let out = p.b.client.command(&command).unwrap();
        let limit = out.get(QueryRmpOut::RMP_CONTEXT).get(Rmpc::WQ).get(Wq::LWM);
        assert_eq!(limit, if i == 0 { 3 } else { 0 }, "armed until it is reached");
        // Three are left after the first, and two after the second.
        assert_eq!(limits.len(), usize::from(i == 1), "message {i}: {events:?}");
        for (_, data) in limits {
            assert_eq!(QpEvent::from_array(*data).get(QpEvent::QPN_RQN_SQN), srq.rmpn);
        }
    }
    // Armed too late, it comes at once.
    let f = &mut p.b.client.function;
    f.arm_srq(srq.rmpn, 3).unwrap();
    p.look();
    assert!(p.b.client.all_events().contains(&EventType::SrqRqLimit));
    let f = &mut p.b.client.function;
    assert_eq!(f.arm_srq(srq.rmpn, 17), Err(CmdStatus::BadParam));
}

#[test]
fn a_shared_receive_queue_with_many_requests_does_not_run_low_when_it_is_armed() {
    let server = Server::new();
    let mut c = server.client(0);
    let mut srq = c.rmp(11);
    let mr = c.mr(64);
    for _ in 0..1500 {
        c.post_srq(&mut srq, &mr.seg(0, 64));
    }
    for (limit, events) in [(1000, &[][..]), (1500, &[]), (1501, &[EventType::SrqRqLimit])] {
        let f = &mut c.function;
        f.arm_srq(srq.rmpn, limit).unwrap();
        server.events(&mut [&mut c]);
        assert_eq!(c.all_events(), events, "fewer than {limit} of 1500");
    }
}

#[test]
fn a_shared_receive_queue_that_is_armed_anew_before_its_event_comes_stays_armed() {
    let server = Server::new();
    let mut c = server.client(0);
    let mut srq = c.rmp(4);
    let mr = c.mr(64);
    c.post_srq(&mut srq, &mr.seg(0, 64));
    c.function.arm_srq(srq.rmpn, 2).unwrap();
    // The adapter has the event now, and the function has not heard of it.
    (0..3).for_each(|_| _ = c.post_srq(&mut srq, &mr.seg(0, 64)));
    c.function.arm_srq(srq.rmpn, 3).unwrap();
    server.events(&mut [&mut c]);
    assert_eq!(c.all_events(), [EventType::SrqRqLimit]);
    let out = c.command(&QueryRmpIn::new().with(QueryRmpIn::RMPN, srq.rmpn)).unwrap();
    assert_eq!(out.get(QueryRmpOut::RMP_CONTEXT).get(Rmpc::WQ).get(Wq::LWM), 3);
}

#[test]
fn a_shared_receive_queue_whose_memory_is_gone_says_that_it_is_in_error() {
    let server = Server::new();
    let mut c = server.client(0);
    let query = QueryRmpIn::new().with(QueryRmpIn::RMPN, c.rmp(2).rmpn);
    for state in [RmpState::Rdy, RmpState::Err] {
        let context = c.command(&query).unwrap().get(QueryRmpOut::RMP_CONTEXT);
        assert_eq!(RmpState::from_code(context.get(Rmpc::STATE)), Some(state));
        c.function.release_memory(BASE, LEN);
    }
}

/// Destroys B's queue pair, and connects another one to A that takes its requests from the same queue.
fn replace_b(p: &mut Pair, srq: &crate::bed::ClientSrq) {
    let (send_cq, recv_cq, gone) = (p.b.send_cq, p.b.recv_cq, p.b.qp.qpn);
    let shape = QpShape { srq: Some(srq.rmpn), ..QpShape::default() };
    let other = p.b.client.qp(shape, &send_cq, &recv_cq);
    p.b.client.destroy(gone).unwrap();
    p.b.qp = other;
    let (a, b, gid) = (p.a.qp.qpn, other.qpn, p.server.gid());
    p.a.client.change(Opcode::QP_2RST, a, 0, Qpc::new()).unwrap();
    p.a.client.write(p.a.qp.record, &[0; 8]);
    p.a.qp.sq_pi = 0;
    p.a.client.connect(&p.a.qp.clone(), gid, b);
    p.b.client.connect(&other, gid, a);
}

#[test]
fn requests_of_a_shared_queue_that_a_queue_pair_did_not_use_are_there_for_others() {
    let mut halfway = 0;
    for looks in 0..12 {
        let (mut p, mut srq) = shared(4);
        let mr = p.b.mr;
        for i in 0..2 {
            p.b.client.post_srq(&mut srq, &mr.seg((1 << 17) * i, 1 << 17));
        }
        p.look();
        // A long message, of which some has come.
        let long = p.a.mr.seg(0, 1 << 17);
        p.a.fill(0, &[7]);
        p.a.post(&Wqe::new(WqeOpcode::Send).seg(long));
        for _ in 0..looks {
            p.a.client.function.look();
        }
        let begun = p.b.bytes(0, 1) == [7] || p.b.bytes(1 << 17, 1) == [7];
        replace_b(&mut p, &srq);
        let already = u32::from(p.b.received().is_some());
        halfway += u32::from(begun && already == 0);
        for _ in already..2 {
            p.a.post(&Wqe::new(WqeOpcode::Send).inline(&[1; 8]));
            p.received();
        }
    }
    assert!(halfway > 0, "none was taken");
}

/// Two sides that send datagrams, by their LIDs or by their GIDs.
fn datagrams() -> Pair {
    Pair::new(QpShape { st: ServiceType::Ud, ..QpShape::default() })
}

#[test]
fn a_datagram_finds_its_queue_pair_by_gid_and_tells_where_it_comes_from() {
    let mut p = datagrams();
    let (gid, b) = (p.server.gid(), p.b.qp.qpn);
    p.b.recv(0, 40 + 64);
    p.a.post(&Wqe::new(WqeOpcode::Send).datagram(gid, 0, b, 0x1111).inline(b"by gid"));
    assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
    let cqe = p.received();
    assert_eq!((cqe.get(Cqe64::BYTE_CNT), cqe.get(Cqe64::RQPN)), (46, p.a.qp.qpn));
    assert_ne!(cqe.get(Cqe64::G), 0);
    assert_eq!(p.b.bytes(40, 6), b"by gid");
    // A wrong key is dropped, and nobody hears of it.
    p.b.recv(0, 40 + 64);
    p.a.post(&Wqe::new(WqeOpcode::Send).datagram(gid, 0, b, 0x2222).inline(b"wrong"));
    p.sent();
    p.a.post(&Wqe::new(WqeOpcode::SendImm).imm(3).datagram(gid, 0, b, 0x1111).inline(b"right"));
    p.sent();
    assert_eq!(p.received().get(Cqe64::IMM), 3);
}

#[test]
fn between_ethernet_ports_a_datagram_goes_by_its_gid_though_no_bit_says_so() {
    let mut p = datagrams();
    let (gid, b) = (p.server.gid(), p.b.qp.qpn);
    ethernet(&mut p.a.client, &[]);
    // Neither port is a LID that anybody has.
    for (port, text) in [(0xc000, b"first"), (0xffff, b"other")] {
        p.b.recv(0, 40 + 64);
        p.a.post(&Wqe::new(WqeOpcode::Send).ethernet_datagram(gid, port, b, 0x1111).inline(text));
        assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
        assert_eq!(p.received().get(Cqe64::BYTE_CNT), 45);
        assert_eq!(p.b.bytes(40, 5), text);
    }
}

#[test]
fn functions_reach_each_other_by_the_addresses_that_the_directory_has_for_them() {
    let mut p = datagrams();
    let [first, own] = [8, 9].map(|last| Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]));
    {
        let mut directory = p.server.directory.lock();
        [0, 1].into_iter().for_each(|function| directory.remove_function(function));
        assert!(directory.add_gid(first, 0) && directory.add_gid(own, 1));
        assert!(directory.add_lid(hca_core::Lid::new(1), 0) && directory.add_lid(hca_core::Lid::new(2), 1));
    }
    let b = p.b.qp.qpn;
    p.b.recv(0, 128);
    // The header lies in three places.
    let places = [p.b.mr.seg(128, 7), p.b.mr.seg(135, 20), p.b.mr.seg(155, 101)];
    p.b.client.post_recv(&mut p.b.qp, &places);
    p.a.post(&Wqe::new(WqeOpcode::Send).datagram(own, 0, b, 0x1111).inline(b"by gid"));
    p.a.post(&Wqe::new(WqeOpcode::Send).datagram(Gid::default(), 2, b, 0x1111).inline(b"by lid"));
    for (text, header) in [(b"by gid", true), (b"by lid", false)] {
        p.sent();
        let cqe = p.received();
        // Without the bit in the sender's address there is no header, though there is room for one.
        assert_eq!((cqe.get(Cqe64::G), cqe.get(Cqe64::SLID)), (header.into(), 1), "A is known by its LID");
        assert_eq!(cqe.get(Cqe64::BYTE_CNT), 46);
        let at = u64::from(counter(&cqe)) * 128;
        if header {
            assert_eq!((p.b.bytes(at + 8, 16), p.b.bytes(at + 24, 16)), (first.0.to_vec(), own.0.to_vec()));
        }
        assert_eq!(p.b.bytes(at + 40, 7), [&text[..], &[0]].concat());
    }
    // Addresses that nobody has, one without a way in the adapter's network: datagrams are lost, and their requests end
    // well.
    let no_way = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 77]);
    for (gid, lid) in [(Gid::default(), 77), (no_way, 0)] {
        p.b.recv(0, 128);
        p.a.post(&Wqe::new(WqeOpcode::Send).datagram(gid, lid, b, 0x1111).inline(b"nowhere"));
        assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
        assert!(p.b.received().is_none());
    }
}

#[test]
fn a_datagram_with_a_header_has_it_whatever_its_class_within_the_adapter_and_from_outside() {
    let net = hca_fabric::LoopbackNet::new();
    let [here, outside] = ["10.0.0.1", "10.0.0.2"].map(|addr| Server::at(&net, addr));
    let shape = QpShape { st: ServiceType::Ud, ..QpShape::default() };
    let mut b = End::new(&here, 0, shape);
    let qp = b.qp;
    b.client.connect(&qp, here.gid(), 0);
    for server in [&here, &outside] {
        let mut a = End::new(server, 1, shape);
        let from = a.qp;
        a.client.connect(&from, here.gid(), 0);
        // It sends from the adapter's own address.
        server.directory.lock().remove_function(1);
        for class in [0, 0xfc, 0xff] {
            b.recv(0, 128);
            let wqe = Wqe::new(WqeOpcode::Send);
            a.post(&wqe.datagram_of_class(here.gid(), 0, qp.qpn, 0x1111, class).inline(b"text"));
            let mut looks = (0..10_000).map(|_| {
                a.client.function.look();
                b.client.function.look();
                b.received()
            });
            let cqe = looks.find_map(|cqe| cqe).expect("a datagram comes");
            assert_eq!((cqe.get(Cqe64::G), cqe.get(Cqe64::RQPN)), (1, from.qpn), "class {class:#x}");
            assert_eq!(b.bytes(32, 4), server.gid().0[12..]);
            // But for the bits that are congestion's.
            assert_eq!(u32::from(b.bytes(21, 1)[0]) & !3, class & !3);
            assert_eq!(b.bytes(40, 4), b"text");
        }
    }
}

#[test]
fn more_destinations_than_are_kept_are_served_one_after_the_other() {
    let mut p = datagrams();
    let b = p.b.qp.qpn;
    for i in 0..1100_u32 {
        let mut gid = p.server.gid();
        // Another traffic class each time would do as well; these lead to hosts that are not there.
        gid.0[14..].copy_from_slice(&(i as u16 + 2).to_be_bytes());
        p.a.post(&Wqe::new(WqeOpcode::Send).datagram(gid, 0, b, 0x1111).inline(b"x"));
        assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
    }
    assert!(p.a.client.function.objects.addresses.handles.len() <= 1024);
}

#[test]
fn a_key_over_scattered_pages_is_one_range() {
    let mut p = Pair::new(QpShape::default());
    let base = p.b.client.alloc(8 * PAGE, PAGE);
    // Backwards, but for two that follow each other; it begins and ends within a page.
    let order = [7_u64, 5, 6, 3, 0];
    let pages: Vec<u64> = order.iter().map(|n| base + n * PAGE).collect();
    let (start, len) = (0x1234_5678_9100_u64, 4 * PAGE + 0x80);
    let key = p.b.client.try_mr(&pages, start, len, |c| c).unwrap();
    assert_eq!(key & 0xff, 0x42, "the driver's part of the key");
    let message: Vec<u8> = (0..len).map(|i| (i * 31 / 8) as u8).collect();
    p.a.fill(0, &message);
    let mut to = p.b.mr.remote(0);
    to.set(hca_prm::RaddrSeg::RADDR, start).set(hca_prm::RaddrSeg::RKEY, key);
    p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).seg(p.a.mr.seg(0, len as u32)));
    assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
    let mut seen = Vec::new();
    for page in &pages {
        seen.extend(p.b.client.read(*page, PAGE as usize));
    }
    let first = (start % PAGE) as usize;
    assert_eq!(seen[first..first + len as usize], message);
    assert!(seen[..first].iter().chain(&seen[first + len as usize..]).all(|b| *b == 0));
    // One byte behind the end is out of reach.
    to.set(hca_prm::RaddrSeg::RADDR, start + len);
    p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).seg(p.a.mr.seg(0, 1)));
    assert_eq!(syndrome(&p.sent()), CqeSyndrome::RemoteAccessErr);
}

#[test]
fn keys_that_the_model_has_not_are_refused_and_those_of_a_part_of_the_bus_allow_nothing() {
    let server = Server::new();
    let mut c = server.client(0);
    let page = c.alloc(PAGE, PAGE);
    let with = |c: &mut crate::bed::Client, pages: &[u64], len, change: fn(Mkc) -> Mkc| {
        c.try_mr(pages, page, len, change).map(drop)
    };
    let bad = Err(CmdStatus::BadParam);
    assert_eq!(with(&mut c, &[page], PAGE, |m| m.with(Mkc::FREE, true)), bad);
    assert_eq!(with(&mut c, &[page], PAGE, |m| m.with(Mkc::QPN, 5)), bad);
    assert_eq!(with(&mut c, &[page], PAGE, |m| m.with(Mkc::LENGTH64, true)), bad);
    assert_eq!(with(&mut c, &[page], PAGE, |m| m.with(Mkc::LOG_PAGE_SIZE, 11)), bad);
    assert_eq!(with(&mut c, &[page], PAGE, |m| m.with(Mkc::LOG_PAGE_SIZE, 63)), bad);
    assert_eq!(with(&mut c, &[page], PAGE, |m| *m.clone().set_access_mode(AccessMode::Ksm)), bad);
    assert_eq!(with(&mut c, &[page], 2 * PAGE, |m| m), bad, "too few pages");
    assert_eq!(with(&mut c, &[BASE + LEN], PAGE, |m| m), bad, "not mapped");
    assert_eq!(with(&mut c, &[page], PAGE, |m| m.with(Mkc::START_ADDR, u64::MAX - 5)), bad);
    assert_eq!(with(&mut c, &[page], PAGE, |m| m.with(Mkc::PD, 77)), Err(CmdStatus::BadRes));
    assert_eq!(with(&mut c, &[page], PAGE, |m| m), Ok(()));

    let mut p = Pair::new(QpShape::default());
    let bus = p.a.client.try_mr(&[], 0, 0, |m| *m.with(Mkc::LEN, LEN).set_access_mode(AccessMode::Pa));
    let to = p.b.mr.remote(0);
    for (key, addr) in [(bus.unwrap(), BASE), (0x100, 0)] {
        p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).seg(DataSeg::pointer(8, key, addr)));
    }
    assert_eq!(syndrome(&p.sent()), CqeSyndrome::LocalProtErr);
}

#[test]
fn a_shared_queue_may_be_of_another_protection_domain_whose_keys_its_requests_have() {
    let server = Server::new();
    let (mut a, mut b) = (End::new(&server, 0, QpShape::default()), End::new(&server, 1, QpShape::default()));
    let (own, mr_of_own) = (b.client.pd, b.mr);
    let other = b.client.command(&AllocPdIn::new()).unwrap();
    b.client.pd = other.get(AllocPdOut::PD);
    let (mut srq, mr) = (b.client.rmp(4), b.client.mr(4096));
    b.client.pd = own;
    let shape = QpShape { srq: Some(srq.rmpn), ..QpShape::default() };
    let (send_cq, recv_cq) = (b.send_cq, b.recv_cq);
    b.qp = b.client.qp(shape, &send_cq, &recv_cq);
    let gid = server.gid();
    a.client.connect(&a.qp, gid, b.qp.qpn);
    b.client.connect(&b.qp, gid, a.qp.qpn);
    let mut p = Pair { server, a, b };
    for len in [8_usize, 900] {
        p.b.client.post_srq(&mut srq, &mr.seg(16, 1024));
        p.a.post(&Wqe::new(WqeOpcode::Send).inline(&vec![7; len]));
        assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
        assert_eq!(opcode(&p.received()), CqeOpcode::RespSend);
        assert_eq!(p.b.client.read(mr.iova + 16, len), vec![7; len]);
    }
    // What the queue pair itself lists is of its own.
    let to = p.a.mr.remote(0);
    p.b.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).seg(mr_of_own.seg(0, 8)));
    assert_eq!(opcode(&p.until("a completion of B's", |p| p.b.sent())), CqeOpcode::Req);
    // A key of the queue pair's is none of the shared queue's.
    p.b.client.post_srq(&mut srq, &mr_of_own.seg(0, 8));
    p.a.post(&Wqe::new(WqeOpcode::Send).inline(&[8; 8]));
    assert_eq!(syndrome(&p.received()), CqeSyndrome::LocalProtErr);
}

#[test]
fn queue_pairs_that_nothing_is_behind_send_datagrams_of_management_and_nothing_else() {
    let wrong = Some(CqeSyndrome::LocalQpOpErr);
    for (st, opcode, expected) in [
        (ServiceType::Qp0, WqeOpcode::Send, None),
        (ServiceType::Qp1, WqeOpcode::SendImm, None),
        (ServiceType::Qp1, WqeOpcode::RdmaWrite, wrong),
        (ServiceType::Qp1, WqeOpcode::RdmaRead, wrong),
        (ServiceType::Qp1, WqeOpcode::Umr, wrong),
        (ServiceType::RegUmr, WqeOpcode::Send, wrong),
        (ServiceType::RegUmr, WqeOpcode::Umr, wrong),
    ] {
        let mut p = Pair::new(QpShape::default());
        let (send_cq, recv_cq) = (p.a.send_cq, p.a.recv_cq);
        let shape = QpShape { st, ..QpShape::default() };
        p.a.qp = p.a.client.qp(shape, &send_cq, &recv_cq);
        let qpn = p.a.qp.qpn;
        for change in [Opcode::RST2INIT_QP, Opcode::INIT2RTR_QP, Opcode::RTR2RTS_QP] {
            p.a.client.change(change, qpn, 0, Qpc::new()).unwrap();
        }
        assert_eq!(p.a.client.change(Opcode::RTR2RTS_QP, qpn, 0, Qpc::new()), Err(CmdStatus::BadQpState));
        p.a.recv(0, 64);
        p.a.post(&Wqe::new(opcode).inline(&[1; 200]));
        let cqe = p.sent();
        match expected {
            None => assert_eq!(crate::qp::tests::opcode(&cqe), CqeOpcode::Req, "{st:?} {opcode:?}"),
            Some(wrong) => assert_eq!(syndrome(&cqe), wrong, "{st:?} {opcode:?}"),
        }
        p.a.client.change(Opcode::QP_2ERR, qpn, 0, Qpc::new()).unwrap();
        let cqe = p.until("the flushed receive request", |p| p.a.received());
        assert_eq!(syndrome(&cqe), CqeSyndrome::WrFlushErr);
        p.a.client.destroy(qpn).unwrap();
    }
}

#[test]
fn queue_pairs_of_services_that_are_not_served_are_refused() {
    use ServiceType as S;
    let server = Server::new();
    let mut c = server.client(0);
    let (cq, mut refused) = (c.cq(4), Vec::new());
    for st in S::ALL.iter().copied() {
        let shape = QpShape { st, log_rq: 2, log_sq: 4, ..QpShape::default() };
        match c.try_qp(shape, &cq, &cq) {
            Ok(qp) => c.destroy(qp.qpn).unwrap(),
            Err(status) => refused.push((st, status)),
        }
    }
    let others =
        [S::Xrc, S::Mlx, S::Dci, S::Dct, S::RawEthertype, S::RawIpv6, S::Sniffer, S::Ptp1588, S::SyncUmr];
    assert!(refused.iter().copied().eq(others.map(|st| (st, CmdStatus::BadParam))), "{refused:?}");
}
