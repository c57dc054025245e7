//! Reliable datagrams (RD): domains, queue pairs, and the end-to-end contexts that serve them in turn.
//!
//! A queue pair calls the context that its oldest request names. The context has its send queue until that request is
//! done, and then gives it back; so the machine of the context works as that of a connected queue pair does. A context
//! has one message under way, and so has a queue pair.
//!
//! The receive queue of a queue pair stands in the table of shared ones, as several contexts may take from it. While a
//! context handles a request it has the keys of the queue pair that the request is for. A receive request that it holds
//! stays with the queue that it was taken from.

use std::collections::{HashMap, VecDeque};

use hca_core::wire::Packet;
use hca_core::{
    DeviceError, Instant, PdHandle, Qkey, QpCap, QpHandle, QpInit, QpPorts, QpState, QpType, Qpn, RddHandle,
    ReliableDatagrams, SrqHandle, WcStatus,
};

use hca_fabric::RxPacket;
use hca_transport::RxMeta;

use crate::device::{SoftHca, limit, unknown};
use crate::engine::{Core, Engine, slot_of};
use crate::qp::{
    DestKind, Held, QpEntry, QpHost, QpRes, QpShared, RecvHeader, RecvQueue, SendHeader, cell_to_reliable,
};
use crate::ring::{Consumer, ring};
use crate::shared::Shared;
use crate::slab::Slab;
use crate::sync::Arc;
use crate::tables::{SrqEntry, Tables};

/// RD domains.
pub(crate) const MAX_RDD: u32 = 4096;
/// No completion queue, and no protection domain: no table has so many.
const NONE: u32 = u32::MAX;
const NO_PD: PdHandle = PdHandle { index: NONE, generation: NONE };

/// An RD domain: how many queue pairs and contexts belong to it, and the slots of the contexts.
pub(crate) struct Rdd {
    users: u64,
    contexts: Vec<u32>,
}

/// What RD has in the tables.
pub(crate) struct RdTables {
    rdds: Slab<Rdd>,
    /// The slots of receive queues, by the number of their queue pair.
    queues: HashMap<u32, u32>,
}

impl Default for RdTables {
    fn default() -> Self {
        Self { rdds: Slab::new(MAX_RDD), queues: HashMap::new() }
    }
}

/// The receive queue of a queue pair: who may send to it, and where its requests complete.
pub(crate) struct RdRecv {
    rdd: RddHandle,
    qkey: Qkey,
    /// The queue pair is in a state in which it receives.
    receives: bool,
    qp: Arc<QpShared>,
    cq: u32,
}

/// The part of a queue pair or context in RD.
pub(crate) enum Rd {
    Queue(Queue),
    Context(Context),
}

/// A queue pair.
pub(crate) struct Queue {
    rdd: RddHandle,
    /// Its receive queue.
    srq: SrqHandle,
    place: Place,
}

/// Where the send queue of a queue pair is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Home,
    /// At home, and the context in this slot is called.
    Waits(u32),
    /// At the context in this slot.
    Served(u32),
}

/// An end-to-end context.
pub(crate) struct Context {
    rdd: RddHandle,
    /// The slot of the queue pair whose send queue is here, and its number.
    serves: Option<(u32, Qpn)>,
    /// The index behind the request that is served, or was served last.
    posted: u32,
    /// That request has failed.
    failed: bool,
    /// The slots of the queue pairs that wait.
    waiting: VecDeque<u32>,
    /// An empty send queue, for the place of the one that is not where it belongs.
    spare: Option<Consumer<SendHeader>>,
}

impl Rd {
    /// The index behind the requests that the machine may have.
    pub(crate) fn posted(&self, sq: &Consumer<SendHeader>) -> u32 {
        match self {
            Self::Queue(_) => sq.tail(),
            Self::Context(context) => context.posted,
        }
    }
    /// The number of the queue pair that a context serves.
    pub(crate) fn served(&self) -> Option<Qpn> {
        if let Self::Context(context) = self { context.serves.map(|(_, qpn)| qpn) } else { None }
    }
    /// A send request has ended with an error.
    pub(crate) fn request_failed(&mut self) {
        if let Self::Context(context) = self {
            context.failed = true;
        }
    }
}

/// Where the receive requests of a context come from.
pub(crate) struct ContextRecv {
    rdd: RddHandle,
    /// The slot of the receive queue that the request under way is for.
    entered: u32,
    /// The slot of the queue that the held request was taken from.
    taken_from: u32,
}

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
        tables.cqs.at(rd.cq).filter(|cq| !cq.overrun)?;
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
            self.counters.unknown_qp += 1;
            return;
        };
        if entry.res.peer.is_some_and(|peer| peer != rx.src) {
            self.counters.foreign_source += 1;
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
    fn rdd(&mut self, rdd: RddHandle) -> Result<&mut Rdd, DeviceError> {
        let found = self.core.tables.rd.rdds.get_mut(rdd.index, rdd.generation);
        found.ok_or(unknown("RD domain", rdd.index))
    }

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
        let srqs = &self.core.tables.srqs;
        let (index, generation) = srqs.vacant().ok_or_else(|| limit("shared receive queue", srqs))?;
        let ports = self.create_any_qp(hca, pd, init, None)?;
        let srq = SrqHandle { index, generation };
        let entry = self.core.qps.at_mut(ports.handle.index).expect("created just now");
        let RecvQueue::Own(ring) = core::mem::replace(&mut entry.res.rq, RecvQueue::Datagrams(index)) else {
            unreachable!("it was created with a queue of its own");
        };
        let (qp, cq) = (entry.res.shared.clone(), init.recv_cq.index);
        entry.res.rd = Some(Box::new(Rd::Queue(Queue { rdd, srq, place: Place::Home })));
        let rd = RdRecv { rdd, qkey: Qkey::default(), receives: false, qp, cq };
        self.core.tables.srqs.insert(datagram_queue(srq, pd, ring, &ports.cap, rd));
        self.core.tables.rd.queues.insert(ports.qpn.raw(), index);
        self.rdd(rdd)?.users += 1;
        Ok(ports)
    }
    /// The queue pair goes, and its receive queue with it.
    pub(crate) fn end_rd_qp(&mut self, qpn: Qpn, res: &mut QpRes) {
        let Some(&mut Queue { rdd, srq, .. }) = res.queue() else { return };
        self.core.tables.srqs.remove(srq.index, srq.generation);
        self.core.tables.rd.queues.remove(&qpn.raw());
        self.rdd(rdd).expect("a domain outlives what belongs to it").users -= 1;
    }

    fn create_eec(&mut self, rdd: RddHandle) -> Result<(QpHandle, Qpn), DeviceError> {
        self.rdd(rdd)?;
        let (handle, qpn) = self.next_qp(None)?;
        let cap = QpCap { max_send_wr: 1, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline: 0 };
        let empty = || ring::<SendHeader>(0, 0).1;
        let rq = RecvQueue::Context(ContextRecv { rdd, entered: NONE, taken_from: NONE });
        let mut res =
            QpRes::new(Arc::new(QpShared::new(handle)), (NO_PD, NO_PD), cap, [NONE; 2], empty(), rq);
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
        self.shared().fork.check()?;
        self.shared().control(|e| {
            let rdds = &mut e.core.tables.rd.rdds;
            let inserted = rdds.insert(Rdd { users: 0, contexts: Vec::new() });
            inserted
                .map(|(index, generation)| RddHandle { index, generation })
                .ok_or_else(|| limit("RD domain", rdds))
        })
    }
    fn dealloc_rdd(&self, rdd: RddHandle) -> Result<(), DeviceError> {
        self.shared().fork.check()?;
        self.shared().control(|e| {
            let users = e.rdd(rdd)?.users;
            if users > 0 {
                return Err(DeviceError::InUse { what: "RD domain", users });
            }
            e.core.tables.rd.rdds.remove(rdd.index, rdd.generation);
            Ok(())
        })
    }
    fn create_rd_qp(&self, pd: PdHandle, rdd: RddHandle, init: &QpInit) -> Result<QpPorts, DeviceError> {
        self.shared().fork.check()?;
        self.shared().control(|e| e.create_rd_qp(self.shared(), pd, rdd, init))
    }
    fn create_eec(&self, rdd: RddHandle) -> Result<(QpHandle, Qpn), DeviceError> {
        self.shared().fork.check()?;
        self.shared().control(|e| e.create_eec(rdd))
    }
}
