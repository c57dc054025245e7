//! The software adapter's own limits, reached.

use std::sync::Arc;

use hca_core::{Access, Device, DeviceError, MrInit, MrKeys, PdHandle, QpCap, QpInit, QpPorts, QpType};
use hca_fabric::LoopbackNet;
use softhca::{Limits, Options, Progress, SoftHca};

fn open(limits: Limits) -> Arc<SoftHca> {
    let fabric = LoopbackNet::new().attach("10.0.0.1".parse().unwrap());
    let options = Options { progress: Progress::Inline, limits, ..Options::default() };
    SoftHca::open(Box::new(fabric), options).unwrap()
}

fn smallest_qp(hca: &SoftHca, pd: PdHandle, cq: hca_core::CqHandle) -> Result<QpPorts, DeviceError> {
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    hca.create_qp(pd, &QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap })
}

fn reg(hca: &SoftHca, pd: PdHandle, memory: &hca_core::DmaMemory) -> Result<MrKeys, DeviceError> {
    let addr = memory.addr();
    let init = MrInit { addr, len: 64, iova: addr.as_ptr() as u64, access: Access::LOCAL_WRITE };
    // SAFETY: nothing is posted, and the adapter goes before the memory in every test here.
    #[allow(unsafe_code)]
    unsafe {
        hca.reg_mr(pd, &init)
    }
}

/// Creates objects until one is refused, and checks that the limit was reached exactly.
fn fill<T>(limit: u32, mut create: impl FnMut() -> Result<T, DeviceError>) -> Vec<T> {
    let mut all = Vec::new();
    let e = loop {
        match create() {
            Ok(t) => all.push(t),
            Err(e) => break e,
        }
    };
    assert!(matches!(e, DeviceError::LimitReached { limit: l, .. } if l == u64::from(limit)), "{e}");
    assert_eq!(all.len(), limit as usize);
    all
}

#[test]
fn the_limits_are_those_that_programs_count_on() {
    let hca = open(Limits::default());
    let a = hca.attr();
    assert_eq!((a.max_qp, a.max_mr, a.max_qp_wr, a.max_sge), (65_533, 1 << 20, 32_768, 64));
    assert!(a.max_inline >= 1024 && a.max_srq_wr >= 32_768 && a.max_cqe >= 32_768);
    assert_eq!(a.atomics, hca_core::AtomicScope::Cpu);
}

#[test]
fn every_table_ends_at_its_limit_and_a_freed_place_is_used_again() {
    let hca = open(Limits { qps: 100, cqs: 10, srqs: 20, mrs: 200, pds: 5, ahs: 30 });
    let memory = hca.alloc_memory(4096).unwrap();
    let pds = fill(5, || hca.alloc_pd());
    hca.dealloc_pd(pds[4]).unwrap();
    let pd = hca.alloc_pd().unwrap();
    let cqs = fill(10, || hca.create_cq(4));
    let qps = fill(100, || smallest_qp(&hca, pd, cqs[0].0));
    hca.destroy_qp(qps[50].handle).unwrap();
    smallest_qp(&hca, pd, cqs[0].0).unwrap();
    let mrs = fill(200, || reg(&hca, pd, &memory));
    hca.dereg_mr(mrs[7].handle).unwrap();
    reg(&hca, pd, &memory).unwrap();
    let init = hca_core::SrqInit { max_wr: 1, max_sge: 1 };
    fill(20, || hca.create_srq(pd, &init));
    let av = hca_core::AddressVector { dgid: hca.port().gid, ..Default::default() };
    let ahs = fill(30, || hca.create_ah(pd, &av));
    hca.destroy_ah(ahs[0]).unwrap();
    hca.create_ah(pd, &av).unwrap();
    drop(hca);
}

#[test]
#[ignore = "needs some seconds and 1 GiB"]
fn sixty_five_thousand_queue_pairs_and_a_million_regions() {
    let hca = open(Limits::default());
    let memory = hca.alloc_memory(4096).unwrap();
    let pd = hca.alloc_pd().unwrap();
    let (cq, _port) = hca.create_cq(64).unwrap();
    let qps = fill(65_533, || smallest_qp(&hca, pd, cq));
    let mrs = fill(1 << 20, || reg(&hca, pd, &memory));
    for mr in mrs {
        hca.dereg_mr(mr.handle).unwrap();
    }
    for qp in qps {
        hca.destroy_qp(qp.handle).unwrap();
    }
    hca.destroy_cq(cq).unwrap();
    hca.dealloc_pd(pd).unwrap();
    drop(hca);
}
