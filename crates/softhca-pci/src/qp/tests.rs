//! Two clients use the data path.

use hca_prm::{Cqe64, CqeOpcode, CqeSyndrome, ErrCqe, QpState, Qpc, ServiceType, WqeOpcode};

use crate::bed::{Pair, QpShape, Wqe};

pub(crate) fn opcode(cqe: &Cqe64) -> CqeOpcode {
    CqeOpcode::from_code(cqe.get(Cqe64::OPCODE)).unwrap()
}
pub(crate) fn syndrome(cqe: &Cqe64) -> CqeSyndrome {
    let error = ErrCqe::from_array(*cqe.as_bytes());
    assert!(matches!(opcode(cqe), CqeOpcode::ReqErr | CqeOpcode::RespErr), "{cqe:?}");
    CqeSyndrome::from_code(error.get(ErrCqe::SYNDROME)).unwrap()
}
/// The counter, and that of an error.
pub(crate) fn counter(cqe: &Cqe64) -> u32 {
    cqe.get(Cqe64::WQE_COUNTER)
}

#[test]
fn every_operation_moves_its_bytes_and_completes_with_what_it_was() {
    let mut p = Pair::new(QpShape::default());
    let message: Vec<u8> = (0..3000).map(|i| (i * 7) as u8).collect();
    p.a.fill(0, &message);

    p.b.recv(0, 4096);
    p.b.recv(4096, 4096);
    let (seg, key) = (p.a.mr.seg(0, 3000), p.b.mr);
    let at = p.a.post(&Wqe::new(WqeOpcode::Send).seg(seg));
    let cqe = p.sent();
    assert_eq!((opcode(&cqe), counter(&cqe), cqe.get(Cqe64::S_WQE_OPCODE)), (CqeOpcode::Req, at.into(), 0xa));
    assert_eq!((cqe.get(Cqe64::QPN), cqe.get(Cqe64::SRQN_USER_INDEX)), (p.a.qp.qpn, 0xabc));
    let cqe = p.received();
    assert_eq!((opcode(&cqe), counter(&cqe), cqe.get(Cqe64::BYTE_CNT)), (CqeOpcode::RespSend, 0, 3000));
    assert_eq!((cqe.get(Cqe64::QPN), cqe.get(Cqe64::SRQN_USER_INDEX)), (p.b.qp.qpn, 0xabc));
    assert_eq!(p.b.bytes(0, 3000), message);

    // In the request itself, and with immediate data; requests go round the end of the queue, in the middle of one.
    p.a.post(&Wqe::new(WqeOpcode::Nop).quiet());
    for turn in 0..40_u32 {
        p.b.recv(4096, 4096);
        let text: Vec<u8> = (0..150).map(|i| (i * 3 + turn) as u8).collect();
        p.a.post(&Wqe::new(WqeOpcode::SendImm).imm(0xdead_0000 + turn).inline(&text));
        p.sent();
        let cqe = p.received();
        assert_eq!((opcode(&cqe), cqe.get(Cqe64::BYTE_CNT)), (CqeOpcode::RespSendImm, 150));
        assert_eq!(cqe.get(Cqe64::IMM), 0xdead_0000 + turn);
        assert_eq!(p.b.bytes(4096, 150), text);
    }

    let to = key.remote(8192);
    p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).seg(p.a.mr.seg(0, 1000)).seg(p.a.mr.seg(2000, 1000)));
    assert_eq!(p.sent().get(Cqe64::S_WQE_OPCODE), 8);
    assert_eq!(p.b.bytes(8192, 2000), [&message[..1000], &message[2000..]].concat());

    p.a.post(&Wqe::new(WqeOpcode::RdmaWriteImm).to(to).imm(7).inline(b"with immediate"));
    p.sent();
    let cqe = p.received();
    assert_eq!((opcode(&cqe), cqe.get(Cqe64::IMM), cqe.get(Cqe64::BYTE_CNT)), (CqeOpcode::RespWrImm, 7, 14));
    assert_eq!(p.b.bytes(8192, 14), b"with immediate");

    p.a.post(&Wqe::new(WqeOpcode::RdmaRead).to(key.remote(0)).seg(p.a.mr.seg(16384, 3000)));
    let cqe = p.sent();
    assert_eq!((cqe.get(Cqe64::S_WQE_OPCODE), cqe.get(Cqe64::BYTE_CNT)), (0x10, 3000));
    assert_eq!(p.a.bytes(16384, 3000), message);

    p.b.fill(65536, &100_u64.to_ne_bytes());
    let (word, old) = (key.remote(65536), p.a.mr.seg(32768, 8));
    for (wqe, before, after) in [
        (Wqe::new(WqeOpcode::AtomicFa).to(word).atomic(11, 0), 100_u64, 111_u64),
        (Wqe::new(WqeOpcode::AtomicCs).to(word).atomic(5, 111), 111, 5),
        (Wqe::new(WqeOpcode::AtomicCs).to(word).atomic(6, 111), 5, 5),
    ] {
        p.a.post(&wqe.seg(old));
        let cqe = p.sent();
        assert_eq!((opcode(&cqe), cqe.get(Cqe64::BYTE_CNT)), (CqeOpcode::Req, 8));
        assert_eq!(p.a.bytes(32768, 8), before.to_ne_bytes());
        assert_eq!(p.b.bytes(65536, 8), after.to_ne_bytes());
    }
    assert!(p.a.received().is_none() && p.b.sent().is_none());
}

#[test]
fn requests_that_want_no_completion_have_none_and_one_that_does_nothing_ends_in_its_place() {
    let mut p = Pair::new(QpShape::default());
    let to = p.b.mr.remote(0);
    for i in 0..5 {
        p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[i; 8]).quiet());
    }
    let nop = p.a.post(&Wqe::new(WqeOpcode::Nop));
    p.a.post(&Wqe::new(WqeOpcode::Nop).quiet());
    let last = p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(to).inline(&[9; 8]));
    let cqe = p.sent();
    assert_eq!((opcode(&cqe), counter(&cqe)), (CqeOpcode::Req, nop.into()));
    assert_eq!(counter(&p.sent()), u32::from(last));
    assert_eq!(p.b.bytes(0, 8), [9; 8]);
    assert!(p.a.sent().is_none());
}

#[test]
fn a_queue_pair_tells_its_state_and_what_was_set() {
    let mut p = Pair::new(QpShape::default());
    let context = p.a.client.query(&p.a.qp);
    assert_eq!(context.get(Qpc::STATE), QpState::Rts.code());
    assert_eq!((context.get(Qpc::REMOTE_QPN), context.get(Qpc::NEXT_SEND_PSN)), (p.b.qp.qpn, 7));
    assert_eq!((context.get(Qpc::RRE), context.get(Qpc::RETRY_COUNT)), (true, 7));
    assert_eq!(context.get(Qpc::ST), ServiceType::Rc.code());
}
