//! Requests that change keys.

use hca_prm::command::resource::{AllocPdIn, AllocPdOut};
use hca_prm::{
    Cqe64, CqeOpcode, CqeSyndrome, Mkc, Opcode, Qpc, RaddrSeg, ServiceType, UmrCtrlSeg, WqeOpcode, mkey_mask,
};

use crate::bed::{BASE, ClientQp, PAGE, Pair, QpShape, Wqe};
use crate::qp::tests::{opcode, syndrome};

const RIGHTS: u64 = mkey_mask::LR | mkey_mask::LW | mkey_mask::RR | mkey_mask::RW | mkey_mask::A;

/// B's queue pair by which it changes keys, as Linux makes it.
fn changer(p: &mut Pair) -> ClientQp {
    let shape = QpShape { st: ServiceType::RegUmr, ..QpShape::default() };
    let (send_cq, recv_cq) = (p.b.send_cq, p.b.recv_cq);
    let qp = p.b.client.qp(shape, &send_cq, &recv_cq);
    for change in [Opcode::RST2INIT_QP, Opcode::INIT2RTR_QP, Opcode::RTR2RTS_QP] {
        p.b.client.change(change, qp.qpn, 0, Qpc::new()).unwrap();
    }
    qp
}

/// Has B change a key. Returns what became of that.
fn ask(p: &mut Pair, key: u32, mask: u64, check: u32, requested: Mkc) -> Result<(), CqeSyndrome> {
    let mut qp = changer(p);
    let asked = UmrCtrlSeg::new()
        .with(UmrCtrlSeg::INLINE, true)
        .with(UmrCtrlSeg::CHECK, check)
        .with(UmrCtrlSeg::MKEY_MASK, mask);
    let wqe = Wqe::new(WqeOpcode::Umr).imm(key).raw(asked.as_bytes()).raw(requested.as_bytes());
    p.b.client.post_send(&mut qp, &wqe);
    let cqe: Cqe64 = p.until("a completion of B's", |p| p.b.sent());
    let done = if opcode(&cqe) == CqeOpcode::Req { Ok(()) } else { Err(syndrome(&cqe)) };
    p.b.client.destroy(qp.qpn).unwrap();
    done
}

/// What becomes of A's WRITE and READ by a key of B's.
fn reached(p: &mut Pair, key: u32) -> [bool; 2] {
    [WqeOpcode::RdmaWrite, WqeOpcode::RdmaRead].map(|operation| {
        let to = RaddrSeg::new().with(RaddrSeg::RADDR, 0x5000).with(RaddrSeg::RKEY, key);
        p.a.post(&Wqe::new(operation).to(to).seg(p.a.mr.seg(0, 8)));
        let cqe = p.sent();
        if opcode(&cqe) == CqeOpcode::Req {
            return true;
        }
        assert_eq!(syndrome(&cqe), CqeSyndrome::RemoteAccessErr);
        // Both begin anew.
        let (a, b, gid) = (p.a.qp.qpn, p.b.qp.qpn, p.server.gid());
        p.a.client.change(Opcode::QP_2RST, a, 0, Qpc::new()).unwrap();
        p.b.client.change(Opcode::QP_2RST, b, 0, Qpc::new()).unwrap();
        for (end, peer) in [(&mut p.a, b), (&mut p.b, a)] {
            (end.qp.sq_pi, end.qp.rq_pi) = (0, 0);
            end.client.write(end.qp.record, &[0; 8]);
            let qp = end.qp;
            end.client.connect(&qp, gid, peer);
        }
        false
    })
}

fn all() -> Mkc {
    [Mkc::LR, Mkc::LW, Mkc::RR, Mkc::RW, Mkc::A].into_iter().fold(Mkc::new(), |m, right| m.with(right, true))
}

#[test]
fn a_request_changes_the_rights_and_the_domain_of_a_key_and_nothing_else() {
    let mut p = Pair::new(QpShape::default());
    let page = p.b.client.alloc(PAGE, PAGE);
    let key = p.b.client.try_mr(&[page], 0x5000, PAGE, |m| m).unwrap();
    let own = p.b.client.pd;
    assert_eq!(reached(&mut p, key), [true, true]);
    // As Linux does for `ibv_rereg_mr`.
    let requested = all().with(Mkc::PD, own);
    assert_eq!(
        ask(&mut p, key, RIGHTS | mkey_mask::PD, UmrCtrlSeg::MUST_BE_USED, requested.with(Mkc::RW, false)),
        Ok(())
    );
    assert_eq!(reached(&mut p, key), [false, true]);
    assert_eq!(ask(&mut p, key, mkey_mask::RR | mkey_mask::RW, 2, Mkc::new().with(Mkc::RW, true)), Ok(()));
    assert_eq!(reached(&mut p, key), [true, false]);
    let other = p.b.client.command(&AllocPdIn::new()).unwrap();
    let elsewhere = all().with(Mkc::PD, other.get(AllocPdOut::PD));
    assert_eq!(ask(&mut p, key, RIGHTS | mkey_mask::PD, 2, elsewhere), Ok(()));
    assert_eq!(reached(&mut p, key), [false, false], "the queue pair is of another domain");
    assert_eq!(ask(&mut p, key, RIGHTS | mkey_mask::PD, 0, requested), Ok(()));
    assert_eq!(reached(&mut p, key), [true, true]);
    // And for one whose pages are used anew.
    assert_eq!(ask(&mut p, key, mkey_mask::FREE, 0, Mkc::new().with(Mkc::FREE, true)), Ok(()));
    assert_eq!(reached(&mut p, key), [false, false]);
    assert_eq!(ask(&mut p, key, RIGHTS, 2, all()), Err(CqeSyndrome::LocalQpOpErr), "it is free");
    assert_eq!(ask(&mut p, key, mkey_mask::FREE, UmrCtrlSeg::MUST_BE_FREE, Mkc::new()), Ok(()));
    assert_eq!(reached(&mut p, key), [true, true]);
    assert_eq!(ask(&mut p, key, RIGHTS, 1, all()), Err(CqeSyndrome::LocalQpOpErr), "it is in use");
    // What else it is, and keys that are not there.
    let wrong = Err(CqeSyndrome::LocalQpOpErr);
    for mask in [mkey_mask::LEN, mkey_mask::PAGE_SIZE, mkey_mask::START_ADDR, mkey_mask::KEY, 1 << 63] {
        assert_eq!(ask(&mut p, key, mask, 0, all()), wrong, "{mask:#x}");
    }
    assert_eq!(ask(&mut p, key ^ 1, RIGHTS, 0, all()), wrong, "another lowest byte");
    assert_eq!(ask(&mut p, key ^ 0x100, RIGHTS, 0, all()), wrong, "another number");
    assert_eq!(ask(&mut p, key, mkey_mask::PD, 0, all().with(Mkc::PD, 777)), wrong);
    assert_eq!(reached(&mut p, key), [true, true], "it is as it was");
}

#[test]
fn a_key_whose_memory_goes_is_not_changed_any_more() {
    let mut p = Pair::new(QpShape::default());
    let page = p.b.client.alloc(PAGE, PAGE);
    let key = p.b.client.try_mr(&[page], 0x5000, PAGE, |m| m).unwrap();
    p.b.client.function.objects.mkeys.get_mut(&(key >> 8)).unwrap().release(&p.server.hca);
    assert!(page >= BASE);
    assert_eq!(ask(&mut p, key, RIGHTS, 0, all()), Err(CqeSyndrome::LocalQpOpErr));
}
