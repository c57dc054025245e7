//! Every command about objects that the function refuses, with every status that there is.

mod scripted;

use std::sync::Arc;
use std::time::Duration;

use hca_core::{
    Access, CqHandle, Device, DeviceError, MrInit, PdHandle, Pkey, QpAttr, QpCap, QpHandle, QpInit, QpState,
    QpType, SrqHandle, SrqInit,
};
use hca_mlx5::{Death, Mlx5, Options};
use hca_prm::{CmdStatus, Opcode};
use scripted::{Scripted, Wants};

fn open(scripted: &Scripted) -> Arc<Mlx5> {
    let mut options = Options::default();
    options.health_interval = Duration::from_secs(3600);
    Mlx5::open(scripted.function(), options).unwrap()
}
fn statuses() -> impl Iterator<Item = CmdStatus> {
    CmdStatus::ALL.iter().copied().filter(|status| *status != CmdStatus::Ok)
}
/// What is told is the command, its status and its syndrome.
fn is(e: &DeviceError, opcode: Opcode, status: CmdStatus) {
    let DeviceError::Refused { command, reason, status: code, syndrome, .. } = e else { panic!("{e}") };
    assert_eq!((Some(*command), *reason), (opcode.name(), status.text()));
    assert_eq!((*code, *syndrome), (status.code(), 0xabc));
}

struct Bed {
    device: Arc<Mlx5>,
    pd: PdHandle,
    /// It ends with its client, who goes before.
    scripted: Scripted,
}

impl Bed {
    fn new() -> Self {
        let scripted = Scripted::serve(Wants::default());
        let device = open(&scripted);
        let pd = device.alloc_pd().unwrap();
        Self { scripted, device, pd }
    }
    /// Has the function refuse a command while `call` is made, for every status, and makes the call once more.
    fn refuses<T>(&self, opcode: Opcode, mut call: impl FnMut() -> Result<T, DeviceError>) -> T {
        let before = self.scripted.state().objects.clone();
        for status in statuses() {
            self.scripted.state().wants.status.insert(opcode, (status.code(), 0xabc));
            is(&call().map(drop).unwrap_err(), opcode, status);
            assert_eq!(
                self.scripted.state().objects,
                before,
                "{opcode} is refused, and nothing is made or gone"
            );
        }
        self.scripted.state().wants.status.clear();
        assert!(self.device.death().is_none(), "an adapter that refuses lives");
        call().unwrap()
    }
    fn cq(&self) -> CqHandle {
        self.device.create_cq(16).unwrap().0
    }
    fn srq(&self) -> SrqHandle {
        self.device.create_srq(self.pd, &SrqInit { max_wr: 16, max_sge: 1 }).unwrap().0
    }
    fn try_qp(&self, cq: CqHandle) -> Result<QpHandle, DeviceError> {
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let init = QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap };
        self.device.create_qp(self.pd, &init).map(|ports| ports.handle)
    }
}

fn attr(state: QpState) -> QpAttr {
    let init = state == QpState::Init;
    let (pkey, access) = (init.then_some(Pkey::DEFAULT), init.then_some(Access::empty()));
    QpAttr { state: Some(state), pkey, access, ..QpAttr::default() }
}

#[test]
fn what_is_refused_is_told_makes_nothing_and_is_done_when_it_is_asked_for_again() {
    let bed = Bed::new();
    let d = &bed.device;
    let pd = bed.refuses(Opcode::ALLOC_PD, || d.alloc_pd());
    let cq = bed.refuses(Opcode::CREATE_CQ, || Ok(d.create_cq(16)?.0));
    let srq =
        bed.refuses(Opcode::CREATE_RMP, || Ok(d.create_srq(pd, &SrqInit { max_wr: 16, max_sge: 1 })?.0));
    let qp = bed.refuses(Opcode::CREATE_QP, || bed.try_qp(cq));
    let memory = d.alloc_memory(4096).unwrap();
    let init = MrInit { addr: memory.addr(), len: 4096, iova: 0, access: Access::LOCAL_WRITE };
    // SAFETY: the memory outlives the region, and nobody looks at it.
    let mr = bed.refuses(Opcode::CREATE_MKEY, || Ok(unsafe { d.reg_mr(pd, &init) }?.handle));
    bed.refuses(Opcode::RST2INIT_QP, || d.modify_qp(qp, &attr(QpState::Init)));
    bed.refuses(Opcode::QP_2ERR, || d.modify_qp(qp, &attr(QpState::Error)));
    bed.refuses(Opcode::QP_2RST, || d.modify_qp(qp, &attr(QpState::Reset)));
    d.modify_qp(qp, &attr(QpState::Init)).unwrap();
    bed.refuses(Opcode::MODIFY_RMP, || d.set_srq_limit(srq, 3));
    d.destroy_qp(qp).unwrap();
    d.destroy_srq(srq).unwrap();
    d.destroy_cq(cq).unwrap();
    d.dereg_mr(mr).unwrap();
    d.dealloc_pd(pd).unwrap();
    d.dealloc_pd(bed.pd).unwrap();
    let Bed { mut scripted, device, .. } = bed;
    drop((memory, device));
    let state = scripted.end();
    assert!(state.faults.is_empty() && state.pages.is_empty() && state.resets == 1, "{:?}", state.faults);
}

/// The handle is gone all the same, as nobody could do anything with it; memory that the adapter may reach is kept.
#[test]
fn a_queue_that_is_not_let_go_of_is_told_and_the_others_go() {
    let bed = Bed::new();
    let d = &bed.device;
    for status in statuses() {
        let (cq, srq) = (bed.cq(), bed.srq());
        let qp = bed.try_qp(cq).unwrap();
        let before = bed.scripted.state().objects.len();
        for opcode in [Opcode::DESTROY_QP, Opcode::DESTROY_RMP, Opcode::DESTROY_CQ] {
            bed.scripted.state().wants.status.insert(opcode, (status.code(), 0xabc));
        }
        is(&d.destroy_qp(qp).unwrap_err(), Opcode::DESTROY_QP, status);
        is(&d.destroy_srq(srq).unwrap_err(), Opcode::DESTROY_RMP, status);
        is(&d.destroy_cq(cq).unwrap_err(), Opcode::DESTROY_CQ, status);
        bed.scripted.state().wants.status.clear();
        assert_eq!(bed.scripted.state().objects.len(), before);
        assert!(matches!(d.destroy_qp(qp), Err(DeviceError::UnknownHandle { .. })));
        assert!(matches!(d.destroy_cq(cq), Err(DeviceError::UnknownHandle { .. })));
        // Those that come next are others, and go.
        let cq = bed.cq();
        let qp = bed.try_qp(cq).unwrap();
        d.destroy_qp(qp).unwrap();
        d.destroy_cq(cq).unwrap();
    }
    assert!(d.death().is_none());
}

#[test]
fn an_adapter_that_does_not_let_go_of_a_region_reaches_no_memory_any_more() {
    for status in statuses() {
        let bed = Bed::new();
        let memory = bed.device.alloc_memory(4096).unwrap();
        let init = MrInit { addr: memory.addr(), len: 4096, iova: 0, access: Access::LOCAL_WRITE };
        // SAFETY: the memory outlives the device, and nobody looks at it.
        let mr = unsafe { bed.device.reg_mr(bed.pd, &init) }.unwrap().handle;
        bed.scripted.state().wants.status.insert(Opcode::DESTROY_MKEY, (status.code(), 0xabc));
        bed.device.dereg_mr(mr).unwrap();
        assert_eq!(bed.device.death(), Some(Death::Holds));
        assert!(!bed.scripted.state().masters(), "the memory is the program's again");
        let told = bed.device.alloc_pd().unwrap_err();
        assert!(told.to_string().contains("release memory"), "{told}");
    }
}
