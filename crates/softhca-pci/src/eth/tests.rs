//! Frames between functions, from a request to a completion.

use std::sync::atomic::Ordering;

use hca_prm::command::counter::{AllocQCounterIn, TrafficCounter};
use hca_prm::command::counter::{
    QueryQCounterIn, QueryQCounterOut, QueryVportCounterIn, QueryVportCounterOut,
};
use hca_prm::command::cq::DestroyCqIn;
use hca_prm::command::ethernet::{
    CreateRqIn, CreateRqtIn, CreateRqtOut, CreateSqIn, CreateTisIn, DestinationType, DestroyFlowTableIn,
    DestroyRqIn, DestroyRqtIn, DestroyTirIn, DestroyTisIn, FteMatchSetLyr24, QuerySqIn, QuerySqOut, Rqtc,
    RxHashFieldSelect, Tirc, Tisc,
};
use hca_prm::command::resource::{DeallocPdIn, DeallocTransportDomainIn};
use hca_prm::command::vport::{ModifyNicVportContextIn, NicVportContext, NicVportFieldSelect};
use hca_prm::{
    AccessMode, CmdStatus, CompEvent, CompletionMode, Cqe64, CqeOpcode, CqeSyndrome, DataSeg, ErrCqe, EthSeg,
    Mkc, Rqc, Sqc, Wq, WqeOpcode,
};

use super::frame::{Headers, fill_checksums};
use super::sq::{BUDGET, BYTES};
use super::{ERROR, READY, RESET, caps};
use crate::bed::ethernet::{LOG_SIZE, Port, RECEIVES, Request, SENDS, frame, is_error, look};
use crate::bed::{Answer, Server, pages};
use crate::bus::uar::PAGE;

const ALL: [u8; 6] = [0xff; 6];

fn opcode(entry: &Cqe64) -> Option<CqeOpcode> {
    CqeOpcode::from_code(entry.get(Cqe64::OPCODE))
}

fn syndrome(entry: &Cqe64) -> Option<CqeSyndrome> {
    let entry = ErrCqe::from_array(*entry.as_bytes());
    CqeSyndrome::from_code(entry.get(ErrCqe::SYNDROME))
}

/// A packet of UDP with the checksums that it should have.
pub(super) fn udp(to: [u8; 6], from: [u8; 6], payload: &[u8]) -> Vec<u8> {
    let mut f = [&to[..], &from, &[8, 0]].concat();
    f.extend([0x45, 0, 0, (28 + payload.len()) as u8, 0, 7, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    f.extend([0x30, 0x39, 0, 7, 0, (8 + payload.len()) as u8, 0, 0]);
    f.extend(payload);
    fill_checksums(&mut f, true, true);
    f
}

#[test]
fn a_frame_goes_to_who_has_its_address_or_to_all_others() {
    let server = Server::new();
    let [mut a, mut b, mut c] = [0, 1, 2].map(|number| Port::new(&server, number));
    assert!(a.mac != b.mac && b.mac != c.mac);
    let [at_a, at_b, at_c] = [&mut a, &mut b, &mut c].map(|port| [port.recv_2k(), port.recv_2k()]);
    let one = frame(b.mac, a.mac, 60);
    let clock = |port: &mut Port| {
        let mut read = || [0x1000, 0x1004, 0x1000].map(|at| u64::from(port.d.load(at)));
        let [high, low, _] = std::iter::repeat_with(&mut read).find(|read| read[0] == read[2]).unwrap();
        high << 32 | low
    };
    let before = [&mut a, &mut b].map(clock);
    a.post(&Request::inline(&one));
    look(&mut [&mut a, &mut b, &mut c]);
    let sent = a.sent().expect("it left");
    assert_eq!((opcode(&sent), sent.get(Cqe64::SRQN_USER_INDEX)), (Some(CqeOpcode::Req), SENDS));
    let got = b.received().expect("it came");
    let after = [&mut a, &mut b].map(clock);
    let times = [&sent, &got].map(|entry| entry.get(Cqe64::TIMESTAMP));
    assert!((0..2).all(|i| before[i] <= times[i] && times[i] <= after[i]), "{before:?} {times:?} {after:?}");
    assert_eq!(opcode(&got), Some(CqeOpcode::RespSend));
    assert_eq!((got.get(Cqe64::BYTE_CNT), got.get(Cqe64::WQE_COUNTER)), (60, 0));
    assert_eq!((got.get(Cqe64::SRQN_USER_INDEX), got.get(Cqe64::QPN)), (RECEIVES, 0x100));
    assert_eq!(b.bytes(at_b[0], 60), one);
    assert!(a.received().is_none() && c.received().is_none(), "it is nobody else's");

    let several = frame(ALL, a.mac, 64);
    a.post(&Request::inline(&several));
    look(&mut [&mut a, &mut b, &mut c]);
    assert!(b.received().is_some() && c.received().is_some() && a.received().is_none());
    assert_eq!((b.bytes(at_b[1], 64), c.bytes(at_c[0], 64)), (several.clone(), several));
    // To its own address, and to one that nobody has.
    for to in [a.mac, [2, 9, 9, 9, 9, 9]] {
        a.post(&Request::inline(&frame(to, a.mac, 60)));
    }
    look(&mut [&mut a, &mut b, &mut c]);
    assert!(a.received().is_none() && b.received().is_none() && c.received().is_none());
    assert_eq!(a.bytes(at_a[0], 60), vec![0; 60]);
    counts(&mut a, [0, 0], [3, 1]);
    counts(&mut b, [1, 1], [0, 0]);
}

/// Frames to one and to all that a port has received, and sent.
fn counts(port: &mut Port, received: [u64; 2], sent: [u64; 2]) {
    type Out = QueryVportCounterOut;
    let out = port.d.command(&QueryVportCounterIn::new()).unwrap();
    let of = |field: hca_prm::Field<Out, TrafficCounter>| out.get(field).get(TrafficCounter::PACKETS);
    assert_eq!([of(Out::RECEIVED_ETH_UNICAST), of(Out::RECEIVED_ETH_BROADCAST)], received);
    assert_eq!([of(Out::TRANSMITTED_ETH_UNICAST), of(Out::TRANSMITTED_ETH_BROADCAST)], sent);
}

#[test]
fn a_frame_is_put_together_by_keys_of_both_kinds_and_taken_apart_by_them() {
    let server = Server::new();
    let (mut a, mut b) = (Port::new(&server, 0), Port::new(&server, 1));
    let whole = frame(b.mac, a.mac, 1400);
    let at = a.d.alloc(3 * PAGE, PAGE);
    // Pages of a key, in another order than they lie in; and the bus's own addresses.
    let context = Mkc::new().with(Mkc::START_ADDR, 0x5500_0000).with(Mkc::LEN, 2 * PAGE);
    let key = a.key(context, AccessMode::Mtt, &[at + PAGE, at]);
    a.d.write(at + 2 * PAGE - 300, &whole[100..400]);
    a.d.write(at, &whole[400..1000]);
    a.d.write(at + 2 * PAGE + 1, &whole[1000..]);
    let request = Request::inline(&whole[..100]).places(&[
        DataSeg::pointer(900, key, 0x5500_0000 + PAGE - 300),
        DataSeg::pointer(400, a.bus, at + 2 * PAGE + 1),
    ]);
    let to = b.d.alloc(2 * PAGE, PAGE);
    let context = Mkc::new().with(Mkc::START_ADDR, 0x7000).with(Mkc::LEN, PAGE);
    let key = b.key(context, AccessMode::Mtt, &[to]);
    let places = [
        DataSeg::pointer(14, b.bus, to + PAGE + 3),
        DataSeg::pointer(1000, key, 0x7000 + 8),
        DataSeg::pointer(2000, b.bus, to + PAGE + 100),
    ];
    b.recv(&places);
    a.post(&request);
    look(&mut [&mut a, &mut b]);
    assert_eq!(opcode(&a.sent().unwrap()), Some(CqeOpcode::Req));
    assert_eq!(b.received().unwrap().get(Cqe64::BYTE_CNT), 1400);
    let got = [b.bytes(to + PAGE + 3, 14), b.bytes(to + 8, 1000), b.bytes(to + PAGE + 100, 386)].concat();
    assert_eq!(got, whole);
    assert_eq!(b.bytes(to + PAGE + 486, 8), [0; 8], "no more was written");
}

#[test]
fn a_request_that_can_not_be_done_puts_its_queue_in_error_and_the_others_behind_it_are_flushed() {
    let server = Server::new();
    let mut b = Port::new(&server, 1);
    let mut a = Port::new(&server, 0);
    let (to, from, pd) = (b.mac, a.mac, a.d.pd);
    let page = a.d.alloc(PAGE, PAGE);
    let plain = Mkc::new().with(Mkc::START_ADDR, page).with(Mkc::LEN, 100);
    let key = a.key(plain, AccessMode::Mtt, &[page]);
    let mut unreadable = plain.with(Mkc::PD, pd).with(Mkc::QPN, Mkc::ANY_QPN).with(Mkc::LOG_PAGE_SIZE, 12);
    unreadable.set_access_mode(AccessMode::Mtt);
    let unreadable = a.d.key(unreadable, &[page]).unwrap();
    let header = frame(to, from, 18);
    let by = |lkey, addr, len| Request::inline(&header).places(&[DataSeg::pointer(len, lkey, addr)]);
    let (operation, protection, length) =
        (CqeSyndrome::LocalQpOpErr, CqeSyndrome::LocalProtErr, CqeSyndrome::LocalLengthErr);
    let bus = a.bus;
    let mut beyond = Request::inline(&header);
    beyond.head.set(EthSeg::MSS, 0);
    let cases = [
        ("short", Request::inline(&header[..13]), length),
        ("long", by(bus, page, 1501), length),
        ("2^31 bytes", by(bus, page, 0), length),
        ("an operation of RDMA", Request::inline(&header).opcode(WqeOpcode::RdmaWrite), operation),
        ("segments of nothing", beyond.opcode(WqeOpcode::Lso), operation),
        ("an unknown key", by(0x1234_5678, page, 60), protection),
        ("a key's other tag", by(key ^ 1, page, 60), protection),
        ("beyond the key", by(key, page + 50, 60), protection),
        ("before the key", by(key, page - 1, 60), protection),
        ("no right to read", by(unreadable, page, 60), protection),
        ("no memory", by(bus, 0x77_0000_0000, 60), protection),
    ];
    for (what, request, wanted) in cases {
        assert_eq!(a.sq_state(), READY);
        a.post(&Request::inline(&frame(to, from, 60)));
        let counter = a.post(&request);
        a.post(&Request::inline(&frame(to, from, 60)));
        look(&mut [&mut a, &mut b]);
        assert_eq!(opcode(&a.sent().unwrap()), Some(CqeOpcode::Req), "{what}");
        let failed = a.sent().expect(what);
        assert_eq!((opcode(&failed), syndrome(&failed)), (Some(CqeOpcode::ReqErr), Some(wanted)), "{what}");
        assert_eq!(failed.get(Cqe64::WQE_COUNTER), u32::from(counter), "{what}");
        assert_eq!(syndrome(&a.sent().unwrap()), Some(CqeSyndrome::WrFlushErr), "{what}");
        assert!(a.sent().is_none() && is_error(a.sq_state()), "{what}");
        // As drivers bring it back.
        let sqn = a.sq.number;
        a.change_sq(sqn, ERROR, RESET).unwrap();
        a.change_sq(sqn, RESET, READY).unwrap();
        a.sq.count = 0;
    }
    counts(&mut b, [11, 0], [0, 0]);
    // Requests that do nothing, with and without a completion.
    let mut nothing = Request::inline(&[]).opcode(WqeOpcode::Nop);
    a.post(&nothing);
    nothing.mode = CompletionMode::OnErrorOnly.code();
    a.post(&nothing);
    look(&mut [&mut a]);
    assert_eq!(opcode(&a.sent().unwrap()), Some(CqeOpcode::Req));
    assert!(a.sent().is_none() && a.sq_state() == READY);
}

#[test]
fn a_key_of_another_protection_domain_is_refused() {
    let server = Server::new();
    let mut a = Port::new(&server, 0);
    let page = a.d.alloc(PAGE, PAGE);
    let other = {
        use hca_prm::command::resource::{AllocPdIn, AllocPdOut};
        a.d.command(&AllocPdIn::new()).unwrap().get(AllocPdOut::PD)
    };
    let own = std::mem::replace(&mut a.d.pd, other);
    let key = a.key(Mkc::new().with(Mkc::START_ADDR, page).with(Mkc::LEN, PAGE), AccessMode::Mtt, &[page]);
    let bus = a.key(Mkc::new().with(Mkc::LENGTH64, true), AccessMode::Pa, &[]);
    a.d.pd = own;
    for lkey in [key, bus] {
        a.post(&Request::inline(&frame(ALL, a.mac, 18)).places(&[DataSeg::pointer(60, lkey, page)]));
        look(&mut [&mut a]);
        assert_eq!(syndrome(&a.sent().unwrap()), Some(CqeSyndrome::LocalProtErr));
        let sqn = a.sq.number;
        a.change_sq(sqn, ERROR, RESET).unwrap();
        a.change_sq(sqn, RESET, READY).unwrap();
        a.sq.count = 0;
    }
}

#[test]
fn a_frame_that_finds_no_request_is_lost_and_counted() {
    let server = Server::new();
    let (mut a, mut b) = (Port::new(&server, 0), Port::new(&server, 1));
    b.d.command(&AllocQCounterIn::new()).unwrap();
    b.recv_2k();
    for _ in 0..3 {
        a.post(&Request::inline(&frame(b.mac, a.mac, 60)));
    }
    look(&mut [&mut a, &mut b]);
    assert!(b.received().is_some() && b.received().is_none());
    let lost = b.d.command(&QueryQCounterIn::new().with(QueryQCounterIn::COUNTER_SET_ID, 1)).unwrap();
    assert_eq!(lost.get(QueryQCounterOut::OUT_OF_BUFFER), 2);
    let wq = b.query_rq().get(Rqc::WQ);
    assert_eq!((wq.get(Wq::HW_COUNTER), wq.get(Wq::SW_COUNTER)), (1, 1));
    // The queue goes on, and goes round.
    for i in 0..(3 << LOG_SIZE) {
        let at = b.recv_2k();
        let one = frame(b.mac, a.mac, 60 + i);
        a.post(&Request::inline(&one));
        look(&mut [&mut a, &mut b]);
        assert_eq!(b.received().unwrap().get(Cqe64::WQE_COUNTER) as usize, 1 + i);
        assert_eq!(b.bytes(at, one.len()), one);
        a.sent().unwrap();
    }
}

#[test]
fn a_frame_that_does_not_fit_its_request_puts_the_queue_in_error() {
    let server = Server::new();
    let (mut a, mut b) = (Port::new(&server, 0), Port::new(&server, 1));
    let (rqn, bus) = (b.rq.number, b.bus);
    let unknown = DataSeg::pointer(100, 0x1234_5600, 0);
    let gone = DataSeg::pointer(100, bus, 0x77_0000_0000);
    let small = b.place(59);
    let at = b.d.alloc(PAGE, PAGE);
    let pd = b.d.pd;
    let [by_pages, by_bus] = [AccessMode::Mtt, AccessMode::Pa].map(|mode| {
        let mut context = Mkc::new()
            .with(Mkc::LR, true)
            .with(Mkc::QPN, Mkc::ANY_QPN)
            .with(Mkc::PD, pd)
            .with(Mkc::LENGTH64, mode == AccessMode::Pa)
            .with(Mkc::LOG_PAGE_SIZE, 12);
        if mode == AccessMode::Mtt {
            context.set(Mkc::START_ADDR, at).set(Mkc::LEN, PAGE);
        }
        context.set_access_mode(mode);
        DataSeg::pointer(100, b.d.key(context, &[at]).unwrap(), at)
    });
    for (place, wanted) in [
        (by_pages, CqeSyndrome::LocalProtErr),
        (by_bus, CqeSyndrome::LocalProtErr),
        (small, CqeSyndrome::LocalLengthErr),
        (unknown, CqeSyndrome::LocalProtErr),
        (gone, CqeSyndrome::LocalProtErr),
    ] {
        b.recv(&[place]);
        b.recv_2k();
        a.post(&Request::inline(&frame(b.mac, a.mac, 60)));
        look(&mut [&mut a, &mut b]);
        let failed = b.received().unwrap();
        assert_eq!((opcode(&failed), syndrome(&failed)), (Some(CqeOpcode::RespErr), Some(wanted)));
        assert_eq!(failed.get(Cqe64::SRQN_USER_INDEX), RECEIVES);
        look(&mut [&mut b]);
        assert_eq!(syndrome(&b.received().unwrap()), Some(CqeSyndrome::WrFlushErr));
        assert!(is_error(b.query_rq().get(Rqc::STATE)) && b.received().is_none());
        // What comes now is lost.
        a.post(&Request::inline(&frame(b.mac, a.mac, 60)));
        look(&mut [&mut a, &mut b]);
        assert!(b.received().is_none());
        b.change_rq(rqn, ERROR, RESET).unwrap();
        b.change_rq(rqn, RESET, READY).unwrap();
        b.rq.count = 0;
    }
    // A record that counts more than there can be.
    b.d.write(b.rq.record, &0x8000_u32.to_be_bytes());
    a.post(&Request::inline(&frame(b.mac, a.mac, 60)));
    look(&mut [&mut a, &mut b]);
    assert!(is_error(b.query_rq().get(Rqc::STATE)) && b.received().is_none());
}

#[test]
fn queues_change_their_state_as_adapters_let_them() {
    let server = Server::new();
    let mut a = Port::new(&server, 0);
    let (sqn, rqn) = (a.sq.number, a.rq.number);
    let bad = Err(CmdStatus::BadResState);
    for (from, to) in [(RESET, READY), (ERROR, RESET), (READY, 2)] {
        assert_eq!((a.change_sq(sqn, from, to), a.change_rq(rqn, from, to)), (bad, bad), "{from} to {to}");
    }
    for (from, to) in [(READY, READY), (READY, ERROR)] {
        assert_eq!((a.change_sq(sqn, from, to), a.change_rq(rqn, from, to)), (Ok(()), Ok(())));
    }
    assert_eq!((a.change_sq(sqn, ERROR, READY), a.change_rq(rqn, ERROR, READY)), (bad, bad));
    assert_eq!((a.change_sq(99, READY, ERROR), a.change_rq(99, READY, ERROR)), {
        (Err(CmdStatus::BadRes), Err(CmdStatus::BadRes))
    });
    assert_eq!((a.sq_state(), a.query_rq().get(Rqc::STATE)), (ERROR, ERROR));
}

#[test]
fn queues_that_are_put_in_error_flush_what_is_announced() {
    let server = Server::new();
    let mut a = Port::new(&server, 0);
    let (sqn, rqn) = (a.sq.number, a.rq.number);
    for _ in 0..3 {
        a.recv_2k();
        a.post(&Request::inline(&frame(ALL, a.mac, 60)));
    }
    a.change_sq(sqn, READY, ERROR).unwrap();
    a.change_rq(rqn, READY, ERROR).unwrap();
    look(&mut [&mut a]);
    for _ in 0..3 {
        assert_eq!(syndrome(&a.sent().unwrap()), Some(CqeSyndrome::WrFlushErr));
        assert_eq!(syndrome(&a.received().unwrap()), Some(CqeSyndrome::WrFlushErr));
    }
    assert!(a.sent().is_none() && a.received().is_none());
    counts(&mut a, [0, 0], [0, 0]);
    // In reset nothing of them is left.
    a.change_sq(sqn, ERROR, RESET).unwrap();
    a.change_rq(rqn, ERROR, RESET).unwrap();
    look(&mut [&mut a]);
    assert!(a.sent().is_none() && a.received().is_none());
}

/// Linux's driver counts from 0 again, and leaves the record until it posts.
#[test]
fn a_queue_that_was_reset_takes_nothing_until_it_is_rung_again() {
    let server = Server::new();
    let (mut a, mut b) = (Port::new(&server, 0), Port::new(&server, 1));
    let other = a.sq(4);
    let (to, from, sqn) = (b.mac, a.mac, a.sq.number);
    a.post(&Request::inline(&frame(to, from, 60)));
    look(&mut [&mut a, &mut b]);
    assert_eq!(opcode(&a.sent().unwrap()), Some(CqeOpcode::Req));
    a.change_sq(sqn, READY, ERROR).unwrap();
    a.change_sq(sqn, ERROR, RESET).unwrap();
    a.change_sq(sqn, RESET, READY).unwrap();
    // The page is rung for another queue.
    a.sq.count = 0;
    let reset = std::mem::replace(&mut a.sq, other);
    a.post(&Request::inline(&frame(to, from, 60)));
    look(&mut [&mut a, &mut b]);
    assert_eq!(a.sent().unwrap().get(Cqe64::QPN), other.number);
    assert!(a.sent().is_none(), "of a request from before the reset");
    // As many requests as before, so that the record says the same.
    a.sq = reset;
    a.post(&Request::inline(&frame(to, from, 60)));
    look(&mut [&mut a, &mut b]);
    assert_eq!(a.sent().unwrap().get(Cqe64::QPN), sqn);
    assert!(a.sent().is_none());
}

#[test]
fn what_others_name_stays() {
    let server = Server::new();
    let mut a = Port::new(&server, 0);
    let list = [u64::from(a.rq.number) << 32];
    let context = Rqtc::new().with(Rqtc::RQT_MAX_SIZE, 4).with(Rqtc::RQT_ACTUAL_SIZE, 1);
    let command = CreateRqtIn::new().with(CreateRqtIn::RQT_CONTEXT, context);
    let rqt = a.d.command_with(&command, &list, 0).unwrap().0.get(CreateRqtOut::RQTN);
    let tir = a.indirect(Tirc::new().with(Tirc::DISP_TYPE, 1).with(Tirc::INDIRECT_TABLE, rqt)).unwrap();
    let (named, busy) = (Some(CmdStatus::BadResState), Some(CmdStatus::ResBusy));
    let rqn = a.rq.number;
    assert_eq!(a.refuses(&DestroyRqIn::new().with(DestroyRqIn::RQN, rqn)), named);
    assert_eq!(a.refuses(&DestroyRqtIn::new().with(DestroyRqtIn::RQTN, rqt)), named);
    let first = a.tir;
    assert_eq!(a.refuses(&DestroyTirIn::new().with(DestroyTirIn::TIRN, first)), named);
    let tis = a.tis;
    assert_eq!(a.refuses(&DestroyTisIn::new().with(DestroyTisIn::TISN, tis)), named);
    let table = a.table;
    assert_eq!(a.refuses(&DestroyFlowTableIn::new().with(DestroyFlowTableIn::TABLE_ID, table)), named);
    let domain = a.domain;
    let command = DeallocTransportDomainIn::new().with(DeallocTransportDomainIn::TRANSPORT_DOMAIN, domain);
    assert_eq!(a.refuses(&command), named);
    let (pd, cqn) = (a.d.pd, a.recv_cq.cqn);
    assert_eq!(a.refuses(&DeallocPdIn::new().with(DeallocPdIn::PD, pd)), busy);
    assert_eq!(a.refuses(&DestroyCqIn::new().with(DestroyCqIn::CQN, cqn)), busy);
    // In their order all go; of those that are not there none is named.
    a.d.command(&DestroyTirIn::new().with(DestroyTirIn::TIRN, tir)).unwrap();
    a.d.command(&DestroyRqtIn::new().with(DestroyRqtIn::RQTN, rqt)).unwrap();
    let gone = Some(CmdStatus::BadRes);
    assert_eq!(a.refuses(&DestroyRqtIn::new().with(DestroyRqtIn::RQTN, rqt)), gone);
    assert_eq!(a.direct(999).err(), gone);
    assert_eq!(a.indirect(Tirc::new().with(Tirc::DISP_TYPE, 1).with(Tirc::INDIRECT_TABLE, rqt)).err(), gone);
    a.d.shut();
    assert!(!server.directory.switch().knows(0));
}

#[test]
fn frames_that_are_waited_for_make_an_event_and_an_interrupt() {
    let server = Server::new();
    let (mut a, mut b) = (Port::new(&server, 0), Port::new(&server, 1));
    let line = b.d.line(0);
    let arm = |port: &mut Port| {
        let word = port.recv_cq.ci & 0xff_ffff;
        port.d.write(port.recv_cq.record + 4, &word.to_be_bytes());
        let bell = [word.to_be_bytes(), port.recv_cq.cqn.to_be_bytes()].concat();
        let at = u64::from(port.d.uar) * PAGE + 0x20;
        port.d.function.bar_write(at, &bell);
    };
    let eq = b.d.eq;
    b.d.consume(&eq, true);
    arm(&mut b);
    b.recv_2k();
    b.recv_2k();
    assert_eq!(line.count(), 0);
    for _ in 0..2 {
        a.post(&Request::inline(&frame(b.mac, a.mac, 60)));
    }
    look(&mut [&mut a, &mut b]);
    let (_, data) = b.d.event().expect("an event");
    let data = CompEvent::from_array(data);
    assert_eq!(data.get(CompEvent::CQ_NUMBER), b.recv_cq.cqn);
    assert_eq!((line.count(), b.d.event().is_none()), (1, true), "one for both");
}

#[test]
fn what_a_client_sends_is_limited_in_each_look_and_what_waits_for_one_too() {
    let server = Server::new();
    let (mut a, mut b) = (Port::new(&server, 0), Port::new(&server, 1));
    a.sq = a.sq(10);
    let page = a.d.alloc(PAGE, PAGE);
    let mut request =
        Request::inline(&frame(b.mac, a.mac, 18)).places(&[DataSeg::pointer(1482, a.bus, page)]);
    request.mode = 0;
    for _ in 0..1000 {
        a.post(&request);
    }
    let mut before = 0;
    let waiting = || server.directory.switch().waiting.load(Ordering::Relaxed);
    while a.d.function.look() {
        let now = waiting();
        assert!((now - before) * 1500 <= BYTES + 1500 && now - before <= BUDGET, "{}", now - before);
        before = now;
    }
    assert_eq!(waiting(), (1 << 20) / 1500, "no more than that waits");
    let lost = server.directory.switch().lost(1);
    assert_eq!(lost, 1000 - waiting() as u64);
    // Small ones are limited by their number.
    b.d.function.reset();
    assert_eq!(waiting(), 0, "what waited for it is gone");
    let mut b = Port::new(&server, 1);
    for round in 0..3 {
        request = Request::inline(&frame(b.mac, a.mac, 14));
        request.mode = 0;
        (0..1000).for_each(|_| _ = a.post(&request));
        while a.d.function.look() {}
        assert_eq!(waiting(), ((round + 1) * 1000).min(2048));
    }
    look(&mut [&mut b]);
    assert!((1..2048).contains(&waiting()), "some in each look");
    drop(a);
    b.d.function.disconnect();
    assert_eq!(waiting(), 0);
}

#[test]
fn segments_of_one_request_are_limited_as_requests_are() {
    let server = Server::new();
    let mut ports: Vec<Port> = (0..5).map(|number| Port::new(&server, number)).collect();
    let a = &mut ports[0];
    let mut header = udp(ALL, a.mac, b"");
    header[16..18].fill(0);
    let at = a.d.alloc(PAGE, PAGE);
    let mut request =
        Request::inline(&header).places(&[DataSeg::pointer(4000, a.bus, at)]).opcode(WqeOpcode::Lso);
    request.head.set(EthSeg::MSS, 1);
    a.post(&request);
    a.d.function.look_at_requests();
    assert_eq!(
        server.directory.switch().waiting.load(Ordering::Relaxed),
        BUDGET - 1 + 1,
        "4000 segments to four others"
    );
    request.head.set(EthSeg::MSS, 0);
    a.post(&request);
    a.d.function.look_at_requests();
    assert_eq!([a.sent(), a.sent()].map(|sent| opcode(&sent.unwrap())), {
        [Some(CqeOpcode::Req), Some(CqeOpcode::ReqErr)]
    });
}

#[test]
fn a_frame_larger_than_a_port_takes_does_not_come_to_it() {
    let server = Server::new();
    let (mut a, mut b) = (Port::new(&server, 0), Port::new(&server, 1));
    let set = |port: &mut Port, mtu| {
        let command = ModifyNicVportContextIn::new()
            .with(
                ModifyNicVportContextIn::FIELD_SELECT,
                NicVportFieldSelect::new().with(NicVportFieldSelect::MTU, true),
            )
            .with(
                ModifyNicVportContextIn::NIC_VPORT_CONTEXT,
                NicVportContext::new().with(NicVportContext::MTU, mtu),
            );
        port.d.command(&command).unwrap();
    };
    set(&mut a, 9022);
    let page = a.d.alloc(3 * PAGE, PAGE);
    let send = |a: &mut Port, b: &Port, len: u32| {
        let places = [DataSeg::pointer(len - 18, a.bus, page)];
        a.post(&Request::inline(&frame(b.mac, a.mac, 18)).places(&places));
    };
    b.recv_2k();
    send(&mut a, &b, 1519);
    look(&mut [&mut a, &mut b]);
    assert!(b.received().is_none());
    let counters = b.d.command(&QueryVportCounterIn::new()).unwrap();
    assert_eq!(counters.get(QueryVportCounterOut::RECEIVED_ERRORS).get(TrafficCounter::PACKETS), 1);
    send(&mut a, &b, 1518);
    look(&mut [&mut a, &mut b]);
    assert_eq!(b.received().unwrap().get(Cqe64::BYTE_CNT), 1518);
    let place = b.place(9100);
    b.recv(&[place]);
    set(&mut b, 9022);
    send(&mut a, &b, 9018);
    look(&mut [&mut a, &mut b]);
    assert_eq!(b.received().unwrap().get(Cqe64::BYTE_CNT), 9018);
}

#[test]
fn a_completion_tells_of_headers_and_checksums() {
    let server = Server::new();
    let (mut a, mut b) = (Port::new(&server, 0), Port::new(&server, 1));
    let good = udp(b.mac, a.mac, b"12345");
    let mut spoilt = good.clone();
    spoilt[44] ^= 1;
    for (f, ok) in [(&good, 7), (&spoilt, 3)] {
        b.recv_2k();
        a.post(&Request::inline(f));
        look(&mut [&mut a, &mut b]);
        let got = b.received().unwrap();
        assert_eq!((got.get(Cqe64::HDS_IP_EXT), got.get(Cqe64::L4_L3_HDR_TYPE)), (ok, 0x28));
        let sum = super::frame::fold(super::frame::sum(&f[14..]));
        assert_eq!(got.get(Cqe64::CHECK_SUM), u32::from(sum));
    }
    // The adapter makes those that a request asks for; what fills the frame up is in no sum.
    let mut unmade = good.clone();
    unmade[24..26].fill(0x55);
    unmade[40..42].fill(0x66);
    let mut request = Request::inline(&[&unmade[..], &[9; 20]].concat());
    request.head.set(EthSeg::CS_FLAGS, 0xc0);
    let at = b.recv_2k();
    a.post(&request);
    look(&mut [&mut a, &mut b]);
    assert_eq!(b.bytes(at, good.len()), good);
    let got = b.received().unwrap();
    let sum = super::frame::fold(super::frame::sum(&good[14..]));
    assert_eq!((got.get(Cqe64::HDS_IP_EXT), got.get(Cqe64::CHECK_SUM)), (7, u32::from(sum)));
}

#[test]
fn a_vlan_tag_is_taken_off_unless_the_queue_leaves_it() {
    let server = Server::new();
    let (mut a, mut b) = (Port::new(&server, 0), Port::new(&server, 1));
    let plain = udp(b.mac, a.mac, b"12345");
    let tagged = [&plain[..12], &[0x81, 0, 0x60, 7], &plain[12..]].concat();
    let at = b.recv_2k();
    a.post(&Request::inline(&tagged));
    look(&mut [&mut a, &mut b]);
    let got = b.received().unwrap();
    assert_eq!((got.get(Cqe64::VLAN_INFO), got.get(Cqe64::L4_L3_HDR_TYPE)), (0x6007, 0x29));
    assert_eq!((got.get(Cqe64::BYTE_CNT) as usize, b.bytes(at, plain.len())), (plain.len(), plain));
    let rqn = b.rq.number;
    let leave = hca_prm::command::ethernet::ModifyRqIn::new()
        .with(hca_prm::command::ethernet::ModifyRqIn::RQN, rqn)
        .with(hca_prm::command::ethernet::ModifyRqIn::RQ_STATE, READY)
        .with(hca_prm::command::ethernet::ModifyRqIn::MODIFY_BITMASK, 2)
        .with(
            hca_prm::command::ethernet::ModifyRqIn::CTX,
            Rqc::new().with(Rqc::STATE, READY).with(Rqc::VSD, true),
        );
    b.d.command(&leave).unwrap();
    let at = b.recv_2k();
    a.post(&Request::inline(&tagged));
    look(&mut [&mut a, &mut b]);
    assert_eq!(b.received().unwrap().get(Cqe64::L4_L3_HDR_TYPE), 0x28);
    assert_eq!(b.bytes(at, tagged.len()), tagged);
}

#[test]
fn a_hash_chooses_among_queues_and_stays_the_same_for_a_flow() {
    let server = Server::new();
    let (mut a, mut b) = (Port::new(&server, 0), Port::bare(&server, 1));
    let second = b.rq(|rqc| rqc.with(Rqc::USER_INDEX, 0x222));
    let list = [u64::from(b.rq.number) << 32 | u64::from(second.number); 2];
    let context = Rqtc::new().with(Rqtc::RQT_MAX_SIZE, 4).with(Rqtc::RQT_ACTUAL_SIZE, 4);
    let command = CreateRqtIn::new().with(CreateRqtIn::RQT_CONTEXT, context);
    let rqt = b.d.command_with(&command, &list, 0).unwrap().0.get(CreateRqtOut::RQTN);
    let select = RxHashFieldSelect::new()
        .with(RxHashFieldSelect::L4_PROT_TYPE, true)
        .with(RxHashFieldSelect::SELECTED_FIELDS, 0xf);
    let tirc = Tirc::new()
        .with(Tirc::DISP_TYPE, 1)
        .with(Tirc::INDIRECT_TABLE, rqt)
        .with(Tirc::RX_HASH_FN, 2)
        .with(Tirc::RX_HASH_TOEPLITZ_KEY, core::array::from_fn(|i| (i * 37 + 11) as u8))
        .with(Tirc::RX_HASH_FIELD_SELECTOR_OUTER, select);
    let tir = b.indirect(tirc).unwrap();
    let (table, none) = (b.table, FteMatchSetLyr24::new());
    let group = b.group(table, 0..=0, none).unwrap();
    b.flow(table, group, 0, none, &[(DestinationType::Tir, tir)]).unwrap();
    for mut rq in [b.rq, second] {
        for _ in 0..15 {
            std::mem::swap(&mut b.rq, &mut rq);
            b.recv_2k();
            std::mem::swap(&mut b.rq, &mut rq);
        }
    }
    let mut by_port = [[0; 2]; 7];
    for i in 0..14 {
        let mut one = udp(b.mac, a.mac, b"x");
        one[35] = i % 7;
        fill_checksums(&mut one, true, true);
        a.post(&Request::inline(&one));
        look(&mut [&mut a, &mut b]);
        let got = b.received().unwrap();
        assert_eq!(got.get(Cqe64::RSS_HASH_TYPE), 0xa5);
        let which = usize::from(got.get(Cqe64::SRQN_USER_INDEX) == 0x222);
        assert_eq!(got.get(Cqe64::RSS_HASH_RESULT) % 2, which as u32);
        by_port[usize::from(i % 7)][which] += 1;
    }
    assert!(by_port.iter().all(|counts| *counts == [2, 0] || *counts == [0, 2]), "{by_port:?}");
    assert!(by_port.contains(&[2, 0]) && by_port.contains(&[0, 2]), "{by_port:?}");
    // A list has no more than it was made for, and only queues that are there.
    let more = context.with(Rqtc::RQT_ACTUAL_SIZE, 5);
    let refused = |b: &mut Port, context, list: &[u64]| {
        b.d.command_with(&CreateRqtIn::new().with(CreateRqtIn::RQT_CONTEXT, context), list, 0).err()
    };
    assert_eq!(refused(&mut b, more, &[list[0]; 3]), Some(CmdStatus::BadParam));
    assert_eq!(refused(&mut b, context, &[7 << 40; 2]), Some(CmdStatus::BadRes));
    assert_eq!(refused(&mut b, context, &list[..1]), Some(CmdStatus::BadInpLen));
}

#[test]
fn a_packet_is_cut_into_segments_that_are_right() {
    let server = Server::new();
    let (mut a, mut b) = (Port::new(&server, 0), Port::new(&server, 1));
    let payload: Vec<u8> = (0..2500).map(|i| (i * 7) as u8).collect();
    let mut header = [&b.mac[..], &a.mac, &[8, 0]].concat();
    header.extend([0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    // From sequence number 2^32 - 1000 on, with CWR, PSH and FIN.
    header.extend([0x30, 0x39, 0, 7, 0xff, 0xff, 0xfc, 0x18, 0, 0, 0, 1, 0x50, 0x99, 1, 0, 0, 0, 0, 0]);
    let at = a.d.alloc(PAGE, PAGE);
    a.d.write(at, &payload);
    let mut request =
        Request::inline(&header).places(&[DataSeg::pointer(2500, a.bus, at)]).opcode(WqeOpcode::Lso);
    request.head.set(EthSeg::MSS, 1000).set(EthSeg::CS_FLAGS, 0xc0);
    let places: Vec<u64> = (0..4).map(|_| b.recv_2k()).collect();
    a.post(&request);
    look(&mut [&mut a, &mut b]);
    assert_eq!(opcode(&a.sent().unwrap()), Some(CqeOpcode::Req));
    let mut whole = Vec::new();
    for (i, place) in places.iter().take(3).enumerate() {
        let got = b.received().unwrap();
        assert_eq!(got.get(Cqe64::HDS_IP_EXT), 7, "segment {i}");
        let bytes = b.bytes(*place, got.get(Cqe64::BYTE_CNT) as usize);
        let ip = Headers::of(&bytes).ip.unwrap();
        assert_eq!(ip.end, bytes.len());
        assert_eq!(bytes[18..20], 0xffff_u16.wrapping_add(i as u16).to_be_bytes(), "identification");
        assert_eq!(bytes[38..42], 0xffff_fc18_u32.wrapping_add(1000 * i as u32).to_be_bytes(), "sequence");
        assert_eq!(bytes[47], [0x90, 0x10, 0x19][i], "flags of segment {i}");
        whole.extend_from_slice(&bytes[54..]);
    }
    assert!(whole == payload && b.received().is_none());
}

#[test]
fn an_input_that_is_too_short_is_refused() {
    let server = Server::new();
    let mut a = Port::new(&server, 0);
    for code in 0x900..0x940_u16 {
        for len in [8, 12, 16, 0x40, 0x110, 0x340] {
            let mut input = vec![0; len];
            input[..2].copy_from_slice(&code.to_be_bytes());
            let answer = a.d.give(&input, 0x200);
            assert!(matches!(answer, Answer::Delivered(..)), "{code:#x}, {len}: {answer:?}");
        }
    }
}

#[test]
fn of_a_list_of_pages_no_more_are_kept_than_the_queue_needs() {
    use super::ring::Ring;
    let wq = |log_size| Wq::new().with(Wq::LOG_WQ_STRIDE, 6).with(Wq::LOG_WQ_SZ, log_size);
    for (log_size, kept) in [(0, 1), (6, 1), (7, 2), (15, 512)] {
        let list = vec![0; 1000 * hca_prm::pas::ENTRY];
        let ring = |list: &[u8]| Ring::new(&wq(log_size), 15, 6..=6, list);
        assert_eq!(ring(&list).unwrap().pages(), kept);
        assert_eq!(ring(&list[..(kept - 1) * hca_prm::pas::ENTRY]).err(), Some(CmdStatus::BadInpLen));
    }
    assert_eq!(Ring::new(&wq(16), 15, 6..=6, &[]).err(), Some(CmdStatus::BadParam));
}

#[test]
fn there_are_as_many_ethernet_objects_as_is_announced_and_no_more() {
    let server = Server::new();
    let mut a = Port::bare(&server, 0);
    let all = (1 << caps::LOG_ETHERNET) - 1;
    let count = |a: &mut Port, make: &dyn Fn(&mut Port) -> Result<(), CmdStatus>| {
        let made = (0..2 * all).take_while(|_| make(a).is_ok()).count();
        assert_eq!(make(a), Err(CmdStatus::NoRes));
        made
    };
    let tisc = Tisc::new().with(Tisc::TRANSPORT_DOMAIN, a.domain);
    let tis = CreateTisIn::new().with(CreateTisIn::CTX, tisc);
    assert_eq!(1 + count(&mut a, &|a| a.d.command(&tis).map(drop)), all);
    let rqn = a.rq.number;
    assert_eq!(1 + count(&mut a, &|a| a.direct(rqn).map(drop)), all);
    let list = |max: u32| {
        let context = Rqtc::new().with(Rqtc::RQT_MAX_SIZE, max);
        CreateRqtIn::new().with(CreateRqtIn::RQT_CONTEXT, context)
    };
    let most = 1 << caps::LOG_RQT_SIZE;
    assert_eq!(a.d.command(&list(most + 1)).err(), Some(CmdStatus::LimErr));
    assert_eq!(count(&mut a, &|a| a.d.command(&list(most)).map(drop)), all);
    let query = QuerySqIn::new().with(QuerySqIn::SQN, a.sq.number);
    let context = a.d.command(&query).unwrap().get(QuerySqOut::SQ_CONTEXT).with(Sqc::STATE, 0);
    let (sq, at) = (CreateSqIn::new().with(CreateSqIn::CTX, context), a.sq.at);
    assert_eq!(1 + count(&mut a, &|a| a.d.command_with(&sq, &pages(at, 4096), 0).map(drop)), all);
    let context = a.query_rq().with(Rqc::STATE, 0);
    let (rq, at) = (CreateRqIn::new().with(CreateRqIn::CTX, context), a.rq.at);
    assert_eq!(1 + count(&mut a, &|a| a.d.command_with(&rq, &pages(at, 4096), 0).map(drop)), all);
}

#[test]
fn a_receive_queue_has_the_strides_that_are_announced() {
    let server = Server::new();
    let mut a = Port::bare(&server, 0);
    let context = a.query_rq().with(Rqc::STATE, 0);
    let at = a.d.alloc(1 << 16, PAGE);
    for stride in 0..16 {
        let wq = context.get(Rqc::WQ).with(Wq::LOG_WQ_STRIDE, stride).with(Wq::LOG_WQ_SZ, 4);
        let command = CreateRqIn::new().with(CreateRqIn::CTX, context.with(Rqc::WQ, wq));
        let done = a.d.command_with(&command, &pages(at, 1 << 16), 0).map(drop);
        assert_eq!(done.is_ok(), caps::LOG_RQ_STRIDES.contains(&stride), "{stride}: {done:?}");
    }
}

#[test]
fn a_queue_that_always_has_more_than_one_look_takes_holds_up_no_other_one() {
    let mut port = Port::new(&Server::new(), 0);
    let (bulk, other) = (port.sq(12), port.sq(4));
    port.sq = bulk;
    let nothing = Request { opcode: WqeOpcode::Nop.code(), mode: 0, ..Request::inline(&[]) };
    (0..1 << 12).for_each(|_| _ = port.post(&nothing));
    let bulk = port.sq;
    port.sq = other;
    port.post(&Request::inline(&frame([2; 6], port.mac, 60)));
    let mut rounds = (0..20).map(|_| {
        port.sq = bulk;
        // The same requests again, for which there is room.
        let taken = port.d.function.ethernet.sqs.get(bulk.number).unwrap().taken;
        port.sq.count = (u32::from(taken) + (1 << 12)) & 0xffff;
        port.ring();
        look(&mut [&mut port]);
        port.sent()
    });
    assert!(rounds.find_map(|sent| sent).is_some(), "the other one waits");
}
