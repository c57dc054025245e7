//! Extended reliable connections (XRC): domains, their shared receive queues by number, and target queue pairs.
//!
//! A target has neither a protection domain nor completion queues of its own. While it handles a request it has those
//! of the shared receive queue that the request names. A receive request that it holds stays with the queue that it was
//! taken from, as packets of a READ of another queue may come in between.

use hca_core::{CqHandle, DeviceError, PdHandle, QpCap, QpHandle, QpType, Qpn, SrqHandle, Srqn, XrcdHandle};

use crate::engine::Engine;
use crate::engine::host::QpHost;
use crate::limits::{NO_PD, NONE};
use crate::objects::qp::{QpEntry, QpRes, RecvQueue};
use crate::objects::qp_shared::QpShared;
use crate::objects::srq::Held;
use crate::objects::tables::Tables;
use crate::objects::xrc::{SLOT_BITS, XrcRecv, XrcSrq, Xrcd, number_of};
use crate::queues::cq::Purge;
use crate::queues::ring::ring;
use crate::queues::slot::SendHeader;
use crate::sync::Arc;

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
    pub(crate) fn xrcd(&mut self, xrcd: XrcdHandle) -> Result<&mut Xrcd, DeviceError> {
        self.core.tables.xrcds.known_mut(xrcd.index, xrcd.generation)
    }
    fn leave_xrcd(&mut self, xrcd: XrcdHandle) {
        self.xrcd(xrcd).expect("a domain outlives what belongs to it").users -= 1;
    }

    /// What makes a shared receive queue one of an XRC domain.
    pub(crate) fn begin_xrc_srq(
        &mut self,
        srq: SrqHandle,
        xrcd: XrcdHandle,
        cq: CqHandle,
    ) -> Result<Srqn, DeviceError> {
        self.xrcd(xrcd)?;
        self.cq(cq)?;
        let none = DeviceError::LimitReached { what: "XRC queue", limit: (1 << SLOT_BITS) - 1 };
        let number = number_of(srq).ok_or(none)?;
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

    pub(crate) fn create_xrc_target(&mut self, xrcd: XrcdHandle) -> Result<(QpHandle, Qpn), DeviceError> {
        self.xrcd(xrcd)?;
        let (handle, qpn) = self.next_qp(None)?;
        let cap = QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline: 0 };
        let (_, sq) = ring::<SendHeader>(0, 0);
        let rq = RecvQueue::Xrc(XrcRecv { xrcd, entered: NONE, taken_from: NONE, number: Srqn::default() });
        let res = QpRes::new(Arc::new(QpShared::new(handle, false)), (NO_PD, NO_PD), cap, [NONE; 2], sq, rq);
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
