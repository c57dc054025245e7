//! Extended reliable connections (XRC): domains, their shared receive queues by number, and target queue pairs.
//!
//! A target has neither a protection domain nor completion queues of its own. While it handles a request it has those
//! of the shared receive queue that the request names. A receive request that it holds stays with the queue that it was
//! taken from, as packets of a READ of another queue may come in between.

use hca_core::{
    CqHandle, DeviceError, ExtendedConnections, PdHandle, QpCap, QpHandle, QpType, Qpn, SrqHandle, SrqInit,
    Srqn, XrcSrqPort, XrcdHandle,
};

use crate::cq::Purge;
use crate::device::{SoftHca, limit, unknown};
use crate::engine::Engine;
use crate::qp::{Held, QpEntry, QpHost, QpRes, QpShared, RecvQueue, SendHeader};
use crate::ring::ring;
use crate::sync::Arc;
use crate::tables::Tables;

/// XRC domains.
pub(crate) const MAX_XRCD: u32 = 4096;
/// Bits of a queue's slot plus one in its number; the others are the lowest of the slot's generation.
const SLOT_BITS: u32 = 16;

/// No completion queue, and no protection domain: no table has so many.
const NONE: u32 = u32::MAX;
const NO_PD: PdHandle = PdHandle { index: NONE, generation: NONE };

/// An XRC domain: how many queues and targets belong to it, and the slots of the targets.
pub(crate) struct Xrcd {
    users: u64,
    targets: Vec<u32>,
}

/// The XRC side of a shared receive queue.
#[derive(Clone, Copy)]
pub(crate) struct XrcSrq {
    xrcd: XrcdHandle,
    number: Srqn,
    cq: CqHandle,
}

/// Where the receive requests of a target come from.
pub(crate) struct XrcRecv {
    xrcd: XrcdHandle,
    /// The slot of the queue that the request under way names.
    entered: u32,
    /// The slot of the queue that the held request was taken from, and its number.
    taken_from: u32,
    number: Srqn,
}

impl SoftHca {
    /// The number of a shared receive queue, which no other one of the adapter has at the same time. By the number of a
    /// queue of an XRC domain, requests of peers name it. `None`: the queue lies beyond those that have a number.
    pub fn srq_number(srq: SrqHandle) -> Option<Srqn> {
        let slot = srq.index + 1;
        (slot >> SLOT_BITS == 0).then(|| Srqn::new(srq.generation << SLOT_BITS | slot))
    }
}

impl XrcRecv {
    /// Enters the queue of this number in the domain; returns its protection domain. A queue whose completion queue has
    /// lost a completion is none.
    pub(crate) fn enter(&mut self, number: Srqn, tables: &Tables) -> Option<PdHandle> {
        let slot = (number.raw() & ((1 << SLOT_BITS) - 1)).checked_sub(1)?;
        let srq = tables.srqs.at(slot)?;
        let xrc = srq.xrc.filter(|xrc| xrc.number == number && xrc.xrcd == self.xrcd)?;
        tables.cqs.at(xrc.cq.index).filter(|cq| !cq.overrun)?;
        self.entered = slot;
        Some(srq.pd)
    }
    /// Takes the oldest request of the queue that was entered. Returns the bytes that it can take, its protection
    /// domain, and the completion queue of its completion.
    pub(crate) fn take(&mut self, tables: &mut Tables, held: &mut Held) -> Option<(u64, PdHandle, u32)> {
        let srq = tables.srqs.at(self.entered)?;
        let (pd, xrc) = (srq.pd, srq.xrc?);
        let room = tables.take_from_srq(self.entered, held)?;
        (self.taken_from, self.number) = (self.entered, xrc.number);
        Some((room, pd, xrc.cq.index))
    }
    /// The number of the queue that the held request was taken from, or the last one.
    pub(crate) fn number(&self) -> Srqn {
        self.number
    }
    /// Gives the held request back to its queue.
    pub(crate) fn give_back(&self, tables: &mut Tables, held: &mut Held) {
        tables.return_to_srq(self.taken_from, held);
    }
}

impl Engine {
    fn xrcd(&mut self, xrcd: XrcdHandle) -> Result<&mut Xrcd, DeviceError> {
        let found = self.core.tables.xrcds.get_mut(xrcd.index, xrcd.generation);
        found.ok_or(unknown("XRC domain", xrcd.index))
    }
    fn leave_xrcd(&mut self, xrcd: XrcdHandle) {
        self.xrcd(xrcd).expect("a domain outlives what belongs to it").users -= 1;
    }

    /// What makes a shared receive queue one of an XRC domain.
    fn begin_xrc_srq(&mut self, srq: SrqHandle, xrcd: XrcdHandle, cq: CqHandle) -> Result<Srqn, DeviceError> {
        self.xrcd(xrcd)?;
        self.cq(cq)?;
        let none = DeviceError::LimitReached { what: "XRC queue", limit: (1 << SLOT_BITS) - 1 };
        let number = SoftHca::srq_number(srq).ok_or(none)?;
        self.srq(srq)?.xrc = Some(XrcSrq { xrcd, number, cq });
        self.xrcd(xrcd)?.users += 1;
        *self.cq_users(cq)? += 1;
        Ok(number)
    }
    /// The queue goes, and its completions with it. A target that is receiving a message into one of its requests goes
    /// to the error state: the memory is not to be accessed any more.
    pub(crate) fn end_xrc_srq(&mut self, slot: u32, of: XrcSrq) {
        let mut slots = self.xrcd(of.xrcd).expect("a domain outlives what belongs to it").targets.clone();
        let core = &mut self.core;
        let holds = |e: &QpEntry| matches!(&e.res.rq, RecvQueue::Xrc(x) if x.taken_from == slot);
        slots.retain(|i| core.qps.at(*i).is_some_and(|e| holds(e)));
        let now = core.now;
        for i in slots {
            let QpEntry { machine, res, .. } = &mut **core.qps.at_mut(i).expect("listed just now");
            if res.held.active {
                machine.fail(now, &mut QpHost::new(res, &mut core.tables, &core.ahs));
            }
            // Another queue may have the slot of this one's completion queue soon.
            (res.recv_cq, res.recv_pd) = (NONE, NO_PD);
            core.settle(i);
        }
        if let Some(cq) = core.tables.cqs.at_mut(of.cq.index) {
            cq.purge_each(|c| c.srq == of.number, Purge::All);
        }
        self.core.finish(now);
        *self.cq_users(of.cq).expect("a queue's completion queue outlives it") -= 1;
        self.leave_xrcd(of.xrcd);
    }

    fn create_xrc_target(&mut self, xrcd: XrcdHandle) -> Result<(QpHandle, Qpn), DeviceError> {
        self.xrcd(xrcd)?;
        let (handle, qpn) = self.next_qp(None)?;
        let cap = QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline: 0 };
        let (_, sq) = ring::<SendHeader>(0, 0);
        let rq = RecvQueue::Xrc(XrcRecv { xrcd, entered: NONE, taken_from: NONE, number: Srqn::default() });
        let res = QpRes::new(Arc::new(QpShared::new(handle)), (NO_PD, NO_PD), cap, [NONE; 2], sq, rq);
        self.insert_qp(QpType::XrcTgt, qpn, res);
        let domain = self.xrcd(xrcd)?;
        domain.users += 1;
        domain.targets.push(handle.index);
        Ok((handle, qpn))
    }
    /// The target in this slot goes.
    pub(crate) fn end_xrc_target(&mut self, slot: u32, of: &XrcRecv) {
        let targets = &mut self.xrcd(of.xrcd).expect("a domain outlives what belongs to it").targets;
        if let Some(at) = targets.iter().position(|target| *target == slot) {
            targets.swap_remove(at);
        }
        self.leave_xrcd(of.xrcd);
    }
}

impl ExtendedConnections for SoftHca {
    fn alloc_xrcd(&self) -> Result<XrcdHandle, DeviceError> {
        self.shared().fork.check()?;
        self.shared().control(|e| {
            let xrcds = &mut e.core.tables.xrcds;
            let inserted = xrcds.insert(Xrcd { users: 0, targets: Vec::new() });
            inserted
                .map(|(index, generation)| XrcdHandle { index, generation })
                .ok_or_else(|| limit("XRC domain", xrcds))
        })
    }
    fn dealloc_xrcd(&self, xrcd: XrcdHandle) -> Result<(), DeviceError> {
        self.shared().fork.check()?;
        self.shared().control(|e| {
            let users = e.xrcd(xrcd)?.users;
            if users > 0 {
                return Err(DeviceError::InUse { what: "XRC domain", users });
            }
            e.core.tables.xrcds.remove(xrcd.index, xrcd.generation);
            Ok(())
        })
    }
    fn create_xrc_srq(
        &self,
        pd: PdHandle,
        xrcd: XrcdHandle,
        cq: CqHandle,
        init: &SrqInit,
    ) -> Result<XrcSrqPort, DeviceError> {
        let mut number = Srqn::default();
        let (handle, recv) = self.create_srq_as(pd, init, |e, srq| {
            number = e.begin_xrc_srq(srq, xrcd, cq)?;
            Ok(())
        })?;
        Ok(XrcSrqPort { handle, number, recv })
    }
    fn create_xrc_target(&self, xrcd: XrcdHandle) -> Result<(QpHandle, Qpn), DeviceError> {
        self.shared().fork.check()?;
        self.shared().control(|e| e.create_xrc_target(xrcd))
    }
}
