//! Reliable datagrams (RD): domains, queue pairs, and the end-to-end contexts that serve them in turn.
//!
//! A queue pair calls the context that its oldest request names. The context has its send queue until that request is
//! done, and then gives it back; so the machine of the context works as that of a connected queue pair does. A context
//! has one message under way, and so has a queue pair.
//!
//! The receive queue of a queue pair stands in the table of shared ones, as several contexts may take from it. While a
//! context handles a request it has the keys of the queue pair that the request is for. A receive request that it holds
//! stays with the queue that it was taken from.

use std::collections::VecDeque;

use hca_core::wire::Packet;
use hca_core::{
    DeviceError, Instant, PdHandle, Qkey, QpCap, QpHandle, QpState, QpType, Qpn, RddHandle, WcStatus,
};
use hca_fabric::RxPacket;
use hca_transport::RxMeta;

use crate::engine::host::QpHost;
use crate::engine::{Core, Engine};
use crate::limits::{NO_PD, NONE, slot_of};
use crate::objects::qp::{QpEntry, QpRes, RecvQueue};
use crate::objects::qp_shared::QpShared;
use crate::objects::rd::{Context, ContextRecv, Place, Queue, Rd, Rdd};
use crate::objects::srq::Held;
use crate::objects::tables::Tables;
use crate::queues::ring::ring;
use crate::queues::slot::{DestKind, SendHeader, cell_to_reliable};
use crate::sync::Arc;

/// Protection domain, completion queue and queue pair of a receive request.
type RecvOf = (PdHandle, u32, Arc<QpShared>);

impl ContextRecv {
    /// Enters the queue pair of this number in the domain; returns its protection domain.
    pub(crate) fn enter(&mut self, number: Qpn, qkey: Option<Qkey>, tables: &Tables) -> Option<PdHandle> {
        let slot = *tables.rd.queues.get(&number.raw())?;
        let srq = tables.srqs.at(slot)?;
        let rd = srq.rd.as_ref().filter(|rd| rd.receives && rd.rdd == self.rdd)?;
        if qkey.is_some_and(|qkey| qkey != rd.qkey) {
            return None;
        }
        tables.cqs.at(rd.cq).filter(|cq| !cq.ended)?;
        self.entered = slot;
        Some(srq.pd)
    }
    /// Takes the oldest request of the queue pair that was entered. Returns the bytes that it can take, and whose it is.
    pub(crate) fn take(&mut self, tables: &mut Tables, held: &mut Held) -> Option<(u64, RecvOf)> {
        let srq = tables.srqs.at(self.entered)?;
        let rd = srq.rd.as_ref()?;
        let of = (srq.pd, rd.cq, rd.qp.clone());
        let room = tables.take_from_srq(self.entered, held)?;
        self.taken_from = self.entered;
        Some((room, of))
    }
    /// Gives the held request back to its queue.
    pub(crate) fn give_back(&self, tables: &mut Tables, held: &mut Held) {
        tables.return_to_srq(self.taken_from, held);
    }
}

impl QpRes {
    fn queue(&mut self) -> Option<&mut Queue> {
        if let Some(Rd::Queue(queue)) = self.rd.as_deref_mut() { Some(queue) } else { None }
    }
    fn context(&mut self) -> Option<&mut Context> {
        if let Some(Rd::Context(context)) = self.rd.as_deref_mut() { Some(context) } else { None }
    }
}

impl Core {
    fn queue(&mut self, slot: u32) -> Option<&mut Queue> {
        self.qps.at_mut(slot)?.res.queue()
    }
    fn context(&mut self, slot: u32) -> Option<&mut Context> {
        self.qps.at_mut(slot)?.res.context()
    }
    /// The machine of a queue pair or context, with its host.
    fn with_machine(&mut self, slot: u32, f: impl FnOnce(&mut hca_transport::Qp, &mut QpHost<'_>)) {
        if let Some(entry) = self.qps.at_mut(slot) {
            let QpEntry { machine, res, .. } = &mut **entry;
            f(machine, &mut QpHost::new(res, &mut self.tables, &self.ahs));
        }
    }

    /// One reliable datagram: it is for the context that it names, whatever queue pair it is for.
    #[cold]
    #[inline(never)]
    pub(crate) fn receive_datagram(&mut self, now: Instant, rx: &RxPacket<'_>, packet: &Packet<'_>) {
        let named = packet.rdeth().map(|rdeth| rdeth.eec.get());
        let slot = named.map_or(NONE, slot_of);
        let entry = self.qps.at_mut(slot).filter(|e| Some(e.machine.qpn().raw()) == named);
        let Some(entry) = entry else {
            self.counters.rx_unknown_qp += 1;
            return;
        };
        if entry.res.peer.is_some_and(|peer| peer != rx.header.src) {
            self.counters.rx_foreign_source += 1;
            return;
        }
        let QpEntry { machine, res, .. } = &mut **entry;
        let meta = RxMeta { ce: rx.congestion_experienced(), grh: None };
        machine.handle_packet(now, &meta, packet, &mut QpHost::new(res, &mut self.tables, &self.ahs));
        self.settle_touched(Some(slot));
    }

    /// Notes what an input has changed for a queue pair or context.
    #[cold]
    pub(crate) fn settle_rd(&mut self, slot: u32) {
        if self.context(slot).is_some() { self.settle_context(slot) } else { self.settle_queue(slot) }
    }

    fn settle_queue(&mut self, slot: u32) {
        let Some(entry) = self.qps.at_mut(slot) else { return };
        let QpEntry { machine, res, .. } = &mut **entry;
        let (state, qkey) = (machine.state(), machine.attr().qkey.unwrap_or_default());
        let has_requests = res.sq.head() != res.sq.tail();
        let Some(queue) = res.queue() else { return };
        if let Some(rd) = self.tables.srqs.at_mut(queue.srq.index).and_then(|srq| srq.rd.as_deref_mut()) {
            rd.receives = matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqe);
            rd.qkey = qkey;
        }
        if state != QpState::Rts {
            self.end_wait(slot);
        } else if has_requests && queue.place == Place::Home {
            self.call_context(slot);
        }
    }
    /// A queue pair waits for no context any more.
    fn end_wait(&mut self, slot: u32) {
        let Some(queue) = self.queue(slot) else { return };
        if let Place::Waits(called) = queue.place {
            queue.place = Place::Home;
            if let Some(context) = self.context(called) {
                context.waiting.retain(|waits| *waits != slot);
            }
        }
    }
    /// The context that a queue pair's oldest request names.
    fn named_context(&mut self, slot: u32) -> Result<u32, WcStatus> {
        let res = &mut self.qps.at_mut(slot).ok_or(WcStatus::LocalQpOperation)?.res;
        let (header, cells) = res.sq.at(res.sq.head());
        if header.dest != DestKind::Reliable {
            return Err(WcStatus::LocalQpOperation);
        }
        let eec = cell_to_reliable(cells[0]).eec;
        let rdd = res.queue().ok_or(WcStatus::LocalQpOperation)?.rdd;
        let entry = self.qps.get_mut(eec.index, eec.generation).ok_or(WcStatus::InvalidEecn)?;
        if entry.res.context().ok_or(WcStatus::InvalidEecn)?.rdd != rdd {
            return Err(WcStatus::LocalRddViolation);
        }
        match entry.machine.state() {
            QpState::Rts | QpState::Sqd => Ok(eec.index),
            _ => Err(WcStatus::InvalidEecState),
        }
    }
    /// Has a queue pair with requests wait for the context that the oldest one names.
    fn call_context(&mut self, slot: u32) {
        let named = match self.named_context(slot) {
            Ok(named) => named,
            Err(status) => return self.stop_sending(slot, status),
        };
        if let Some(context) = self.context(named) {
            context.waiting.push_back(slot);
        }
        if let Some(queue) = self.queue(slot) {
            queue.place = Place::Waits(named);
        }
        self.settle(named);
    }
    /// The oldest request of a queue pair ends with this status, and the others as flushed.
    fn stop_sending(&mut self, slot: u32, status: WcStatus) {
        self.with_machine(slot, |machine, host| machine.stop_sending(status, host));
        self.settle(slot);
    }

    fn settle_context(&mut self, slot: u32) {
        let Some(entry) = self.qps.at_mut(slot) else { return };
        let QpEntry { machine, res, .. } = &mut **entry;
        let (state, done) = (machine.state(), res.sq.head());
        let Some(context) = res.context() else { return };
        if context.serves.is_some() && context.posted == done {
            self.give_back(slot);
        }
        match state {
            QpState::Rts => self.serve_next(slot),
            QpState::Sqd => {}
            _ => self.send_away(slot),
        }
    }
    /// All queue pairs that wait for a context look for it anew.
    fn send_away(&mut self, slot: u32) {
        let Some(context) = self.context(slot) else { return };
        for waits in core::mem::take(&mut context.waiting) {
            if let Some(queue) = self.queue(waits) {
                queue.place = Place::Home;
                self.call_context(waits);
            }
        }
    }
    /// The queue pair that waits for longest is served, if none is.
    fn serve_next(&mut self, slot: u32) {
        let Some(entry) = self.qps.at_mut(slot).filter(|entry| entry.machine.is_vacant()) else { return };
        let Some(context) = entry.res.context().filter(|context| context.serves.is_none()) else { return };
        let Some(from) = context.waiting.pop_front() else { return };
        let spare = context.spare.take().expect("it serves none");
        let served = self.qps.at_mut(from).expect("a queue pair that goes waits no more");
        let qpn = served.machine.qpn();
        let QpRes { sq, send_pd, send_cq, sender, .. } = &mut served.res;
        let sq = core::mem::replace(sq, spare);
        let of = (*send_pd, *send_cq, sender.clone());
        if let Some(queue) = served.res.queue() {
            queue.place = Place::Served(slot);
        }
        let QpEntry { machine, res, .. } = &mut **self.qps.at_mut(slot).expect("seen just now");
        let index = sq.head();
        let own = core::mem::replace(&mut res.sq, sq);
        (res.send_pd, res.send_cq, res.sender) = of;
        if let Some(context) = res.context() {
            (context.serves, context.spare) = (Some((from, qpn)), Some(own));
            (context.posted, context.failed) = (index.wrapping_add(1), false);
        }
        machine.serve_from(index);
        self.make_ready(slot);
    }
    /// The request that a context served is done: the send queue goes back.
    fn give_back(&mut self, slot: u32) {
        let res = &mut self.qps.at_mut(slot).expect("seen just now").res;
        let Some(context) = res.context() else { return };
        let Some((to, _)) = context.serves.take() else { return };
        let own = context.spare.take().expect("it serves one");
        let failed = context.failed;
        let sq = core::mem::replace(&mut res.sq, own);
        (res.send_pd, res.send_cq) = (NO_PD, NONE);
        res.sender = res.shared.clone();
        let QpEntry { machine, res, .. } =
            &mut **self.qps.at_mut(to).expect("a queue pair that goes has its queue back");
        let spare = core::mem::replace(&mut res.sq, sq);
        res.sq.refresh();
        machine.served_until(res.sq.head());
        if let Some(queue) = res.queue() {
            queue.place = Place::Home;
        }
        if let Some(context) = self.context(slot) {
            context.spare = Some(spare);
        }
        if failed { self.stop_sending(to, WcStatus::WrFlushed) } else { self.settle_queue(to) }
    }

    /// Takes a queue pair's send queue back from the context that has it; the request under way is flushed. A context
    /// gives back the one that it has.
    pub(crate) fn recall(&mut self, slot: u32) {
        self.end_wait(slot);
        let at = match self.queue(slot).map(|queue| queue.place) {
            Some(Place::Served(context)) => context,
            Some(_) => return,
            None if self.context(slot).is_some_and(|context| context.serves.is_some()) => slot,
            None => return,
        };
        self.with_machine(at, |machine, host| _ = machine.abandon(WcStatus::WrFlushed, host));
        self.settle(at);
    }
    /// The messages under way to a queue pair that goes or ends its requests, or by a context that goes, are refused.
    /// Their receive requests complete as flushed.
    pub(crate) fn refuse_inbound_of(&mut self, slot: u32) {
        let Some(queue) = self.queue(slot) else {
            return self.with_machine(slot, |machine, host| machine.refuse_inbound(host));
        };
        let (rdd, srq) = (queue.rdd, queue.srq.index);
        let contexts = self.tables.rd.rdds.at(rdd.index).map(|rdd| rdd.contexts.clone());
        for context in contexts.unwrap_or_default() {
            let holds = |res: &QpRes| matches!(&res.rq, RecvQueue::Context(c) if res.held.active && c.taken_from == srq);
            if self.qps.at(context).is_some_and(|entry| holds(&entry.res)) {
                self.with_machine(context, |machine, host| machine.refuse_inbound(host));
                self.settle(context);
            }
        }
    }
}

impl Tables {
    /// Forgets all requests that wait in the receive queue of a queue pair.
    pub(crate) fn drop_datagram_requests(&mut self, slot: u32) {
        if let Some(srq) = self.srqs.at_mut(slot) {
            let tail = srq.ring.refresh();
            srq.ring.release(tail);
            srq.returned.clear();
        }
    }
}

impl Engine {
    pub(crate) fn rdd(&mut self, rdd: RddHandle) -> Result<&mut Rdd, DeviceError> {
        self.core.tables.rd.rdds.known_mut(rdd.index, rdd.generation)
    }
    /// The queue pair goes, and its receive queue with it.
    pub(crate) fn end_rd_qp(&mut self, qpn: Qpn, res: &mut QpRes) {
        let Some(&mut Queue { rdd, srq, .. }) = res.queue() else { return };
        self.core.tables.srqs.remove(srq.index, srq.generation);
        self.core.tables.rd.queues.remove(&qpn.raw());
        self.rdd(rdd).expect("a domain outlives what belongs to it").users -= 1;
    }

    pub(crate) fn create_eec(&mut self, rdd: RddHandle) -> Result<(QpHandle, Qpn), DeviceError> {
        self.rdd(rdd)?;
        let (handle, qpn) = self.next_qp(None)?;
        let cap = QpCap { max_send_wr: 1, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline: 0 };
        let empty = || ring::<SendHeader>(0, 0).1;
        let rq = RecvQueue::Context(ContextRecv { rdd, entered: NONE, taken_from: NONE });
        let mut res =
            QpRes::new(Arc::new(QpShared::new(handle, false)), (NO_PD, NO_PD), cap, [NONE; 2], empty(), rq);
        res.rd = Some(Box::new(Rd::Context(Context {
            rdd,
            serves: None,
            posted: 0,
            failed: false,
            waiting: VecDeque::new(),
            spare: Some(empty()),
        })));
        self.insert_qp(QpType::Eec, qpn, res);
        let domain = self.rdd(rdd)?;
        domain.users += 1;
        domain.contexts.push(handle.index);
        Ok((handle, qpn))
    }
    /// The context that was in this slot is gone.
    pub(crate) fn end_eec(&mut self, slot: u32, res: &mut QpRes) {
        let Some(context) = res.context() else { return };
        let (rdd, waiting) = (context.rdd, core::mem::take(&mut context.waiting));
        let domain = self.rdd(rdd).expect("a domain outlives what belongs to it");
        domain.users -= 1;
        domain.contexts.retain(|context| *context != slot);
        for waits in waiting {
            if let Some(queue) = self.core.queue(waits) {
                queue.place = Place::Home;
                self.core.call_context(waits);
            }
        }
    }
}
