//! Reliable datagrams, as programs create domains, queue pairs and contexts.

use hca_core::{
    DeviceError, PdHandle, Qkey, QpCap, QpHandle, QpInit, QpPorts, QpType, Qpn, RddHandle, ReliableDatagrams,
    SrqHandle,
};

use crate::device::SoftHca;
use crate::drive::shared::Shared;
use crate::engine::Engine;
use crate::objects::qp::RecvQueue;
use crate::objects::rd::{Place, Queue, Rd, RdRecv, Rdd};
use crate::objects::srq::SrqEntry;
use crate::queues::ring::Consumer;
use crate::queues::slot::RecvHeader;
use crate::sync::Arc;

impl Engine {
    /// The queue pair is created as others are; then contexts may take from its receive queue.
    fn create_rd_qp(
        &mut self,
        hca: &Arc<Shared>,
        pd: PdHandle,
        rdd: RddHandle,
        init: &QpInit,
    ) -> Result<QpPorts, DeviceError> {
        self.rdd(rdd)?;
        if init.qp_type != QpType::Rd || init.srq.is_some() {
            return Err(DeviceError::Unsupported {
                what: "a queue pair of RD of another type, or with a shared queue",
            });
        }
        let (index, generation) = self.core.tables.srqs.vacant()?;
        let ports = self.create_any_qp(hca, pd, init, None)?;
        let srq = SrqHandle { index, generation };
        let entry = self.core.qps.at_mut(ports.handle.index).expect("created just now");
        let RecvQueue::Own(ring) = core::mem::replace(&mut entry.res.rq, RecvQueue::Datagrams(index)) else {
            unreachable!("it was created with a queue of its own");
        };
        let (qp, cq) = (entry.res.shared.clone(), init.recv_cq.index);
        entry.res.rd = Some(Box::new(Rd::Queue(Queue { rdd, srq, place: Place::Home })));
        let rd = RdRecv { rdd, qkey: Qkey::default(), receives: false, qp, cq };
        let queue = datagram_queue(srq, pd, ring, &ports.cap, rd);
        self.core.tables.srqs.insert(queue).expect("a vacant slot was seen");
        self.core.tables.rd.queues.insert(ports.qpn.raw(), index);
        self.rdd(rdd)?.users += 1;
        Ok(ports)
    }
}

fn datagram_queue(
    handle: SrqHandle,
    pd: PdHandle,
    ring: Consumer<RecvHeader>,
    cap: &QpCap,
    rd: RdRecv,
) -> SrqEntry {
    let (depth, max_sge) = (cap.max_recv_wr, cap.max_recv_sge);
    let (returned, limit, users, xrc, rd) = (Vec::new(), 0, 0, None, Some(Box::new(rd)));
    SrqEntry { handle, pd, ring, returned, depth, max_sge, limit, users, xrc, rd }
}

impl ReliableDatagrams for SoftHca {
    fn alloc_rdd(&self) -> Result<RddHandle, DeviceError> {
        self.control(|e| {
            let made = Rdd { users: 0, contexts: Vec::new() };
            let (index, generation) = e.core.tables.rd.rdds.insert(made)?;
            Ok(RddHandle { index, generation })
        })
    }
    fn dealloc_rdd(&self, rdd: RddHandle) -> Result<(), DeviceError> {
        self.control(|e| {
            DeviceError::unless_unused("RD domain", e.rdd(rdd)?.users)?;
            e.core.tables.rd.rdds.remove(rdd.index, rdd.generation);
            Ok(())
        })
    }
    fn create_rd_qp(&self, pd: PdHandle, rdd: RddHandle, init: &QpInit) -> Result<QpPorts, DeviceError> {
        self.control(|e| e.create_rd_qp(self.shared(), pd, rdd, init))
    }
    fn create_eec(&self, rdd: RddHandle) -> Result<(QpHandle, Qpn), DeviceError> {
        self.control(|e| e.create_eec(rdd))
    }
}
