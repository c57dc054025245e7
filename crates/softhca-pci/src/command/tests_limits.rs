//! Announced limits: a driver can create as many objects of each kind as the function announces.

use hca_prm::caps::HcaCap;
use hca_prm::command::counter::*;
use hca_prm::command::cq::*;
use hca_prm::command::hca::*;
use hca_prm::command::mkey::*;
use hca_prm::command::qp::*;
use hca_prm::command::srq::*;
use hca_prm::*;

use super::caps;
use crate::bed::{Answer, BASE, Client, LEN, PAGE, Pair, QpShape, Server, Wqe, pages};
use crate::function::FunctionOptions;
use crate::qp::tests::opcode;

fn client() -> Client {
    Server::new().client(0)
}

/// The pages of a range of so many bytes, which are the client's memory over and over.
fn round_pages(len: u64) -> Vec<u64> {
    (0..len).step_by(PAGE as usize).map(|at| BASE + at % LEN).collect()
}

/// The context of a completion queue, which others are made with.
fn cq_context(c: &mut Client, cqn: u32) -> Cqc {
    let command = QueryCqIn::new().with(QueryCqIn::CQN, cqn);
    c.command(&command).unwrap().get(QueryCqOut::CQ_CONTEXT)
}

fn make_cq(c: &mut Client, context: Cqc, bytes: u64) -> Result<u32, CmdStatus> {
    let command = CreateCqIn::new().with(CreateCqIn::CQ_CONTEXT, context);
    let (out, _) = c.command_with(&command, &round_pages(bytes), 0)?;
    Ok(out.get(CreateCqOut::CQN))
}

fn make_qp(c: &mut Client, context: Qpc, bytes: u64) -> Result<u32, CmdStatus> {
    let command = CreateQpIn::new().with(CreateQpIn::QPC, context.with(Qpc::STATE, 0));
    let (out, _) = c.command_with(&command, &round_pages(bytes), 0)?;
    Ok(out.get(CreateQpOut::QPN))
}

/// How many are made before there is no room for another one.
fn count(mut make: impl FnMut() -> Result<u32, CmdStatus>) -> usize {
    let mut made = 0;
    loop {
        match make() {
            Ok(_) => made += 1,
            Err(status) => {
                assert_eq!(status, CmdStatus::NoRes);
                return made;
            }
        }
    }
}

#[test]
fn queues_are_as_long_as_is_announced_and_no_longer() {
    let mut c = client();
    let first = c.cq(4);
    let context = cq_context(&mut c, first.cqn);
    for (log, expected) in [(caps::LOG_CQ_SIZE, true), (caps::LOG_CQ_SIZE + 1, false)] {
        let done = make_cq(&mut c, context.with(Cqc::LOG_CQ_SIZE, log), 64 << log);
        assert_eq!(done.is_ok(), expected, "{done:?}");
    }
    let shape = QpShape { log_rq: 2, log_sq: 4, ..QpShape::default() };
    let qp = c.qp(shape, &first, &first);
    let context = c.query(&qp);
    let log = caps::LOG_QP_SIZE;
    for (rq, sq, expected) in [(2, log, true), (log, 4, true), (2, log + 1, false), (log + 1, 4, false)] {
        let context = context.with(Qpc::LOG_RQ_SIZE, rq).with(Qpc::LOG_SQ_SIZE, sq);
        let done = make_qp(&mut c, context, (64 << rq) + (64 << sq));
        assert_eq!(done.is_ok(), expected, "{done:?}");
    }
    let stride = context.with(Qpc::LOG_RQ_STRIDE, caps::RECV_WQE.ilog2() + 1 - 4);
    assert_eq!(make_qp(&mut c, stride, 8 * u64::from(caps::RECV_WQE) + (64 << 4)), Err(CmdStatus::LimErr));
    let rmp = |c: &mut Client, log: u32| {
        let wq = Wq::new()
            .with(Wq::WQ_TYPE, WqType::LinkedList.code())
            .with(Wq::PD, c.pd)
            .with(Wq::LOG_WQ_STRIDE, 6)
            .with(Wq::LOG_WQ_SZ, log)
            .with(Wq::DBR_ADDR, BASE);
        let command = CreateRmpIn::new().with(CreateRmpIn::CTX, Rmpc::new().with(Rmpc::WQ, wq));
        c.command_with(&command, &round_pages(64 << log), 0).map(drop)
    };
    assert_eq!(rmp(&mut c, caps::LOG_SRQ_SIZE), Ok(()));
    assert!(rmp(&mut c, caps::LOG_SRQ_SIZE + 1).is_err());
}

#[test]
fn there_are_as_many_queues_as_is_announced_and_no_more() {
    let mut c = client();
    let first = c.cq(4);
    let context = cq_context(&mut c, first.cqn);
    assert_eq!(1 + count(|| make_cq(&mut c, context, PAGE)), 1 << caps::LOG_CQS);
    let shape = QpShape { log_rq: 2, log_sq: 4, ..QpShape::default() };
    let qp = c.qp(shape, &first, &first);
    let context = c.query(&qp);
    assert_eq!(1 + count(|| make_qp(&mut c, context, PAGE)), 1 << caps::LOG_QPS);
    let srq = c.rmp(2);
    let query = QueryRmpIn::new().with(QueryRmpIn::RMPN, srq.rmpn);
    let out = c.command(&query).unwrap();
    let command = CreateRmpIn::new().with(CreateRmpIn::CTX, out.get(QueryRmpOut::RMP_CONTEXT));
    let make = || {
        let (out, _) = c.command_with(&command, &pages(srq.list, PAGE), 0)?;
        Ok(out.get(CreateRmpOut::RMPN))
    };
    assert_eq!(1 + count(make), 1 << caps::LOG_SRQS);
}

#[test]
fn there_are_as_many_keys_as_is_announced_and_no_more() {
    let mut c = client();
    // Pages one by one, and two that do not lie side by side in each sixteenth.
    let mut n = 0_u64;
    let make = || {
        n += 1;
        let at = BASE + n % 100 * PAGE;
        let pages = [at, at + 2 * PAGE];
        let pages = &pages[..if n.is_multiple_of(16) { 2 } else { 1 }];
        c.try_mr(pages, 0x1000 * n, PAGE * pages.len() as u64, |context| context)
    };
    assert_eq!(count(make), 1 << caps::LOG_MKEYS);
}

#[test]
fn as_many_reads_and_atomics_are_under_way_as_is_announced() {
    let mut p = Pair::new(QpShape { log_sq: 8, ..QpShape::default() });
    let (gid, a, b) = (p.server.gid(), p.a.qp, p.b.qp);
    for (client, qp, peer) in [(&mut p.a.client, a, b.qpn), (&mut p.b.client, b, a.qpn)] {
        client.change(Opcode::QP_2RST, qp.qpn, 0, Qpc::new()).unwrap();
        client.write(qp.record, &[0; 8]);
        client.reads = caps::LOG_READS;
        client.connect(&qp, gid, peer);
    }
    p.b.fill(0, &5_u64.to_ne_bytes());
    let word = p.b.mr.remote(0);
    for i in 0..40_u64 {
        let seg = p.a.mr.seg(8 * i, 8);
        let wqe = if i % 2 == 0 { Wqe::new(WqeOpcode::RdmaRead) } else { Wqe::new(WqeOpcode::AtomicFa) };
        let wqe = wqe.to(word);
        let wqe = if i % 2 == 0 { wqe } else { wqe.atomic(1, 0) };
        p.a.post(&wqe.seg(seg));
    }
    for i in 0..40_u64 {
        assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
        let seen = u64::from_ne_bytes(p.a.bytes(8 * i, 8).try_into().unwrap());
        assert!((5..=25).contains(&seen), "{seen}");
    }
    assert_eq!(p.b.bytes(0, 8), 25_u64.to_ne_bytes());
}

#[test]
fn a_queue_that_may_wait_for_more_completions_makes_its_events_at_once() {
    let mut p = Pair::new(QpShape::default());
    p.look();
    p.b.client.all_events();
    let cq = p.b.recv_cq;
    let context = Cqc::new().with(Cqc::CQ_PERIOD, 100).with(Cqc::CQ_MAX_COUNT, 32);
    let command = ModifyCqIn::new()
        .with(ModifyCqIn::CQN, cq.cqn)
        .with(ModifyCqIn::MODIFY_FIELD_SELECT, modify::PERIOD | modify::COUNT)
        .with(ModifyCqIn::CQ_CONTEXT, context);
    p.b.client.command(&command).unwrap();
    let told = cq_context(&mut p.b.client, cq.cqn);
    assert_eq!((told.get(Cqc::CQ_PERIOD), told.get(Cqc::CQ_MAX_COUNT)), (100, 32));
    p.b.client.arm(&cq, false);
    p.b.recv(0, 64);
    p.a.post(&Wqe::new(WqeOpcode::Send).inline(&[1; 8]));
    p.received();
    assert_eq!(p.b.client.all_events(), [EventType::Comp]);
}

#[test]
fn a_receive_request_has_as_many_places_as_is_announced() {
    let mut p = Pair::new(QpShape::default());
    let (gid, a) = (p.server.gid(), p.a.qp);
    let bytes =
        super::tests_caps::general(&mut super::tests_caps::running(crate::function::PortKind::InfiniBand));
    let bytes = bytes.get(HcaCap::MAX_WQE_SZ_RQ);
    let (log_stride, places) = (bytes.ilog2(), u64::from(bytes / 16));
    let context = p.b.client.query(&p.b.qp.clone());
    let context = context.with(Qpc::LOG_RQ_STRIDE, log_stride - 4).with(Qpc::LOG_RQ_SIZE, 2);
    let context = context.with(Qpc::DBR_ADDR, BASE + LEN - 64).with(Qpc::LOG_SQ_SIZE, 4);
    let at = BASE + LEN - 2 * PAGE;
    let command = CreateQpIn::new().with(CreateQpIn::QPC, context.with(Qpc::STATE, 0));
    let (out, _) = p.b.client.command_with(&command, &pages(at, PAGE), 0).unwrap();
    p.b.qp.qpn = out.get(CreateQpOut::QPN);
    p.a.client.change(Opcode::QP_2RST, a.qpn, 0, Qpc::new()).unwrap();
    let b = p.b.qp;
    p.b.client.connect(&b, gid, a.qpn);
    p.a.client.connect(&a, gid, b.qpn);
    for i in 0..places {
        let seg = p.b.mr.seg(100 * i, 3);
        p.b.client.write(at + 16 * i, seg.as_bytes());
    }
    p.b.client.write(BASE + LEN - 64, &1_u32.to_be_bytes());
    let message: Vec<u8> = (0..3 * places).map(|i| i as u8).collect();
    p.a.fill(0, &message);
    p.a.post(&Wqe::new(WqeOpcode::Send).seg(p.a.mr.seg(0, message.len() as u32)));
    assert_eq!(opcode(&p.received()), CqeOpcode::RespSend);
    for i in 0..places {
        assert_eq!(p.b.bytes(100 * i, 3), message[3 * i as usize..][..3]);
    }
}

#[test]
fn a_message_is_as_long_as_is_announced() {
    // Half of what is announced and as much again is not too long, but its places are not there; more is.
    for (log_place, expected) in [(25, CqeSyndrome::LocalProtErr), (27, CqeSyndrome::LocalLengthErr)] {
        let mut p = Pair::new(QpShape { log_sq: 6, ..QpShape::default() });
        let to = p.b.mr.remote(0);
        let places = std::iter::repeat_n(p.a.mr.seg(0, 1 << log_place), 31);
        let wqe = places.fold(Wqe::new(WqeOpcode::RdmaWrite).to(to), Wqe::seg);
        p.a.post(&wqe.seg(p.a.mr.seg(0, 1 << log_place)));
        assert_eq!(crate::qp::tests::syndrome(&p.sent()), expected, "2^{log_place} each");
    }
}

#[test]
fn a_key_is_as_long_as_its_pages_up_to_what_is_announced() {
    let mut c = client();
    let log = LEN.ilog2();
    let key = |c: &mut Client, len: u64| c.try_mr(&[BASE], 0, len, |m| m.with(Mkc::LOG_PAGE_SIZE, log));
    assert!(key(&mut c, LEN).is_ok());
    assert_eq!(key(&mut c, LEN + 1), Err(CmdStatus::BadParam));
}

#[test]
fn a_driver_says_who_it_is() {
    let mut d = super::tests_caps::running(crate::function::PortKind::InfiniBand);
    d.command(&SetDriverVersionIn::new()).unwrap();
}

#[test]
fn keys_say_what_they_were_made_with() {
    let mut c = client();
    let key = c.try_mr(&[BASE], 0x1000, PAGE, |context| context.with(Mkc::A, false)).unwrap();
    let command = QueryMkeyIn::new().with(QueryMkeyIn::MKEY_INDEX, key >> 8);
    let out = c.command(&command).unwrap();
    let context = out.get(QueryMkeyOut::MEMORY_KEY_MKEY_ENTRY);
    assert_eq!((context.get(Mkc::LEN), context.get(Mkc::A), context.get(Mkc::RW)), (PAGE, false, true));
}

#[test]
fn what_is_torn_down_with_many_queue_pairs_goes_bit_by_bit_and_is_answered_behind_the_last() {
    let disable = CmdIn::new().with(CmdIn::OPCODE, Opcode::DISABLE_HCA.0.into());
    for ends in [TeardownHcaIn::new().as_bytes().to_vec(), disable.as_bytes().to_vec()] {
        let mut c = Client::new(&Server::new(), FunctionOptions::default(), 16 << 20);
        let cq = c.cq(4);
        let made: Vec<u32> = (0..200).map(|_| c.qp(QpShape::default(), &cq, &cq).qpn).collect();
        let refused = TeardownHcaIn::new().with(TeardownHcaIn::PROFILE, 77);
        assert_eq!(c.command(&refused), Err(CmdStatus::BadParam));
        assert_eq!(c.function.objects.qps.len(), 200, "what is refused destroys nothing");
        let mut answer = c.give(&ends, 16);
        let mut left = vec![c.function.objects.qps.len()];
        while answer == Answer::Lost {
            for qpn in &made {
                let is_known = c.function.directory.lock().lid_of_qp(*qpn).is_some();
                assert_eq!(is_known, c.function.objects.qps.contains_key(qpn), "what has gone is nobody's");
            }
            assert!(c.function.look());
            left.push(c.function.objects.qps.len());
            answer = c.answer(0);
        }
        assert_eq!(left, [136, 72, 8, 0]);
        assert!(matches!(answer, Answer::Delivered(CmdStatus::Ok, _)));
    }
}

/// Gives these commands, each by a slot. Returns how many are answered at once.
fn given(c: &mut Client, inputs: &[Vec<u8>], output_len: usize) -> usize {
    c.rewind();
    for (slot, input) in (0..).zip(inputs) {
        c.put(slot, input, output_len);
    }
    c.store(0x18, (1 << inputs.len()) - 1);
    (0..inputs.len() as u32).filter(|slot| c.answer(*slot) != Answer::Lost).count()
}

#[test]
fn so_many_bytes_of_queues_are_made_between_two_looks_and_so_many_go() {
    let mut c = client();
    let cq = c.cq(4);
    let qp = c.qp(QpShape { log_rq: 2, log_sq: 4, ..QpShape::default() }, &cq, &cq);
    // The longest ones, of some 10 MiB.
    let context = c.query(&qp).with(Qpc::LOG_RQ_SIZE, caps::LOG_QP_SIZE).with(Qpc::STATE, 0);
    let command = CreateQpIn::new().with(CreateQpIn::QPC, context.with(Qpc::LOG_RQ_STRIDE, 5));
    let list = round_pages(u64::from(caps::RECV_WQE << caps::LOG_QP_SIZE) + (64 << 4));
    let list = list.iter().flat_map(|page| page.to_be_bytes());
    let input: Vec<u8> = command.as_bytes().iter().copied().chain(list).collect();
    assert_eq!(given(&mut c, &vec![input; 4], 16), 2);
    // Each look runs one of the others.
    let made: Vec<usize> = (0..3).map(|_| (c.function.look(), c.function.objects.qps.len()).1).collect();
    assert_eq!(made, [4, 5, 5]);
    let destroys = |number: &u32| DestroyQpIn::new().with(DestroyQpIn::QPN, *number).as_bytes().to_vec();
    let longest: Vec<Vec<u8>> =
        c.function.objects.qps.keys().filter(|number| **number != qp.qpn).map(destroys).collect();
    assert_eq!(given(&mut c, &longest, 16), 2);
}

#[test]
fn so_many_completion_queues_of_many_pages_are_made_between_two_looks() {
    let mut c = client();
    let first = c.cq(4);
    let context = cq_context(&mut c, first.cqn).with(Cqc::LOG_CQ_SIZE, caps::LOG_CQ_SIZE);
    // A thousand pages each, which are looked up at once.
    let list = round_pages(64 << caps::LOG_CQ_SIZE);
    let list = list.iter().flat_map(|page| page.to_be_bytes());
    let command = CreateCqIn::new().with(CreateCqIn::CQ_CONTEXT, context);
    let input: Vec<u8> = command.as_bytes().iter().copied().chain(list).collect();
    c.function.look();
    assert_eq!(given(&mut c, &vec![input; 8], CreateCqOut::SIZE), 4);
    let made: Vec<usize> = (0..4).map(|_| (c.function.look(), c.function.objects.cqs.len()).1).collect();
    assert_eq!(made, [6, 7, 8, 9]);
}

#[test]
fn so_many_queue_pairs_are_asked_for_their_counters_between_two_looks() {
    let mut c = client();
    let cq = c.cq(4);
    let set = c.command(&AllocQCounterIn::new()).unwrap().get(AllocQCounterOut::COUNTER_SET_ID);
    let qp = c.qp(QpShape { log_rq: 2, log_sq: 4, ..QpShape::default() }, &cq, &cq);
    let context = c.query(&qp).with(Qpc::COUNTER_SET_ID, set);
    for _ in 0..400 {
        make_qp(&mut c, context, PAGE).unwrap();
    }
    let query = QueryQCounterIn::new().with(QueryQCounterIn::COUNTER_SET_ID, set);
    let answered = given(&mut c, &vec![query.as_bytes().to_vec(); 30], QueryQCounterOut::SIZE);
    assert!((5..=16).contains(&answered), "{answered}");
}
