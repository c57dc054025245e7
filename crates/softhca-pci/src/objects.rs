//! Objects that commands make: keys, completion queues, queue pairs, shared receive queues.
//!
//! Each command is a method of [`Function`], called by the dispatcher in `command` with the whole input and the place
//! for the output. The method's return value becomes the output's status; to fail, a method returns `Err`, and no more.
//!
//! Each queue pair, shared receive queue and key has a counterpart at the adapter, in the adapter's protection domain
//! for the function's protection domain. Completion queues are the function's alone: all queue pairs of a function
//! complete into one queue of the adapter, and `cq::complete` empties that queue, so that one look finds all
//! completions.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use hca_core::{
    AddressVector, AhHandle, AsyncEvent, Completion, CqHandle, CqPort, Device, DeviceError, PdHandle, QpAttr,
    QpHandle, QpState, SrqHandle, Srqn,
};
use hca_prm::{CmdStatus, CqErrorSyndrome, EventType};
use rustc_hash::FxHashSet;
use softhca::{Pace, SoftHca};

use crate::bus::registers::Clock;
use crate::command::Numbers;
use crate::command::caps::LOG_QPS;
use crate::cq::{self, complete::BATCH};
use crate::function::Function;
use crate::guest::users::{SharedUsers, Users};
use crate::guest::{Fault, MOST_QUEUE_BYTES, NoWindow};
use crate::leaving::Leaving;
use crate::mkey::{self, bus};
use crate::port::counters;
use crate::port::directory::Directory;
use crate::port::link::Wire;
use crate::{qp, srq};

/// Entries of the queue into which all queue pairs of a function complete, at first and at most. The queue has one for
/// each request that the function's queues may hold, as all of these may end at once: a peer that goes takes many queue
/// pairs along. Beyond the most the queue can overflow; then all queue pairs of the function are in error.
const COMPLETIONS: u32 = 1 << 17;
const MOST_COMPLETIONS: u32 = 1 << 22;
/// Queue pairs that are destroyed in one look where all objects go, or put in error where their memory goes.
pub(crate) const QUEUE_PAIRS_A_LOOK: usize = 64;
/// Numbers have 24 bits.
const NUMBERS: u32 = 1 << 24;

/// Bytes of a request in a queue of the adapter's, and of an entry of its list.
const REQUEST: usize = 64;
const ENTRY: usize = 16;
/// Bytes of its completion.
const COMPLETION: usize = 64;
/// Bytes of a key, about.
pub(crate) const KEY: usize = 512;

// As many queue pairs as are announced have room, however long their send queues are.
const _: () = assert!(
    (qp::MAX_HELD_SENDS as usize * (REQUEST + COMPLETION + qp::MAX_SEND_SGE as usize * ENTRY)) << LOG_QPS
        <= MOST_QUEUE_BYTES
);

/// Whether there are fewer than 2^`log_limit` objects of a kind.
pub(crate) fn has_room(there: usize, log_limit: u32) -> Result<(), CmdStatus> {
    if there < 1 << log_limit { Ok(()) } else { Err(CmdStatus::NoRes) }
}

/// An event of an object, for the event queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Raised {
    /// A completion queue that was armed has something.
    Completion {
        /// The event queue.
        eqn: u32,
        /// The number.
        cqn: u32,
    },
    /// A completion queue is in error.
    CqError {
        /// The number.
        cqn: u32,
        /// The reason.
        syndrome: CqErrorSyndrome,
    },
    /// Something happened to a queue pair or shared receive queue.
    Queue {
        /// The kind of the event.
        event: EventType,
        /// The number.
        number: u32,
    },
}

/// The queue of the adapter into which all queue pairs of a function complete.
pub(crate) struct Completions {
    pub(crate) handle: CqHandle,
    pub(crate) port: Box<dyn CqPort>,
    /// Those that were taken last.
    pub(crate) batch: Box<[Completion]>,
}

/// The part of a function's memory and completions that queues of the adapter have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) bytes: usize,
    pub(crate) requests: usize,
}

impl core::ops::Add for Counted {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, requests: self.requests + other.requests }
    }
}

/// Address handles by what they stand for; a datagram carries its address in each request.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) handles: HashMap<(PdHandle, AddressKey), AhHandle>,
    /// Datagrams that the adapter has not completed.
    pub(crate) in_flight: u32,
    /// A datagram waits for room: no other leaves before there is none in flight, and all handles go.
    pub(crate) is_waited_for: bool,
}

/// Objects by numbers, which are given out here: nobody chooses them to collide.
pub(crate) type Numbered<T> = rustc_hash::FxHashMap<u32, T>;

/// An address vector as a key.
pub(crate) type AddressKey = ([u8; 16], u32, u8, u8);

/// The key of an address vector.
pub(crate) fn address_key(av: &AddressVector) -> AddressKey {
    (av.dgid.0, av.flow_label, av.hop_limit, av.traffic_class)
}

/// The queues of a function by the client memory that they lie in.
#[derive(Debug, Default)]
pub(crate) struct QueuesOf {
    pub(crate) qps: SharedUsers,
    pub(crate) cqs: SharedUsers,
    pub(crate) srqs: SharedUsers,
}

/// The objects of a function.
pub(crate) struct Objects {
    pub(crate) hca: Arc<SoftHca>,
    pub(crate) completions: Option<Completions>,
    /// Entries of that.
    pub(crate) completion_entries: u32,
    pub(crate) mkeys: Numbered<mkey::Mkey>,
    /// Keys by the memory that they name.
    pub(crate) keys_of: Users,
    /// Queues by the memory where they and their records lie.
    pub(crate) queues_of: QueuesOf,
    /// The objects that resets have left.
    pub(crate) leaving: Leaving,
    /// Keys of the bus's own addresses.
    pub(crate) buses: bus::Buses,
    /// Where keys belong that nobody may use.
    pub(crate) nobody: Option<PdHandle>,
    /// Where queue pairs belong whose driver names no protection domain.
    pub(crate) unnamed: Option<PdHandle>,
    pub(crate) cqs: Numbered<cq::Cq>,
    pub(crate) arms: cq::arms::Arms,
    pub(crate) qps: Numbered<qp::Qp>,
    pub(crate) watched: qp::watch::Watched,
    pub(crate) srqs: Numbered<srq::Srq>,
    /// Domains of extended connections.
    pub(crate) xrcds: Numbered<srq::xrc::Domain>,
    pub(crate) xrcd_numbers: Numbers,
    /// Queue pairs by the adapter's index.
    pub(crate) by_index: Numbered<u32>,
    pub(crate) addresses: Addresses,
    /// Where a request is read to.
    pub(crate) room: Box<qp::send::Room>,
    /// The function's port.
    pub(crate) wire: Wire,
    /// The pace of the function's queue pairs.
    pub(crate) pace: Option<Arc<Pace>>,
    /// By which completions tell when they came.
    pub(crate) clock: Clock,
    pub(crate) raised: VecDeque<Raised>,
    /// Counters of queue pairs.
    pub(crate) counters: counters::QCounters,
    /// Completion queues that lost a completion, and whose queue pairs are still to be put in error.
    pub(crate) failed_cqs: Vec<u32>,
    /// Those queue pairs.
    failing: Vec<u32>,
    last_number: u32,
    /// Bytes that the adapter's queues have for this function, and may have.
    pub(crate) queue_bytes: usize,
    pub(crate) max_queue_bytes: usize,
    /// Packets that strangers had sent were taken and dropped, by many turns of the adapter.
    pub(crate) has_dropped_packets: bool,
    /// Requests that the adapter's queues may hold for this function.
    pub(crate) requests: usize,
    /// Bytes that were let go of, and that nobody has asked about.
    pub(crate) freed_bytes: usize,
    /// Bytes of the keys' lists of pages.
    pub(crate) listed_bytes: usize,
    /// Bytes of the tables of keys' pages, which may have as many as the adapter's queues.
    pub(crate) table_bytes: usize,
    /// Queue pairs that were looked at because of completion queues that failed.
    #[cfg(test)]
    pub(crate) looked_through: usize,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects")
            .field("mkeys", &self.mkeys.len())
            .field("cqs", &self.cqs.len())
            .field("qps", &self.qps.len())
            .field("srqs", &self.srqs.len())
            .finish_non_exhaustive()
    }
}

impl Objects {
    pub(crate) fn new(hca: Arc<SoftHca>, wire: Wire, clock: Clock) -> Self {
        Self {
            hca,
            wire,
            pace: None,
            clock,
            completions: None,
            completion_entries: COMPLETIONS,
            mkeys: Numbered::default(),
            keys_of: Users::default(),
            queues_of: QueuesOf::default(),
            leaving: Leaving::default(),
            buses: bus::Buses::default(),
            nobody: None,
            unnamed: None,
            cqs: Numbered::default(),
            arms: cq::arms::Arms::default(),
            qps: Numbered::default(),
            watched: qp::watch::Watched::default(),
            srqs: Numbered::default(),
            xrcds: Numbered::default(),
            xrcd_numbers: Numbers::default(),
            by_index: Numbered::default(),
            addresses: Addresses::default(),
            room: Box::default(),
            raised: VecDeque::new(),
            counters: counters::QCounters::default(),
            failed_cqs: Vec::new(),
            failing: Vec::new(),
            last_number: 0,
            queue_bytes: 0,
            requests: 0,
            has_dropped_packets: false,
            freed_bytes: 0,
            max_queue_bytes: MOST_QUEUE_BYTES,
            listed_bytes: 0,
            table_bytes: 0,
            #[cfg(test)]
            looked_through: 0,
        }
    }

    /// The adapter's queue of completions, made when it is first asked for.
    pub(crate) fn completions(&mut self) -> Result<CqHandle, CmdStatus> {
        if let Some(c) = &self.completions {
            return Ok(c.handle);
        }
        let (handle, port) = self.hca.create_cq(self.completion_entries).map_err(status)?;
        let batch = vec![Completion::default(); BATCH].into();
        self.completions = Some(Completions { handle, port, batch });
        Ok(handle)
    }

    /// Counts a queue of this many requests with this many entries each, if there is room, and makes room for the
    /// completions of all.
    pub(crate) fn count_queue(&mut self, requests: u32, entries: u32) -> Result<Counted, CmdStatus> {
        let requests = requests as usize;
        let bytes = requests * (REQUEST + COMPLETION + entries as usize * ENTRY);
        if bytes > self.max_queue_bytes.saturating_sub(self.queue_bytes) {
            return Err(CmdStatus::NoRes);
        }
        self.make_room_for(self.requests + requests)?;
        self.queue_bytes += bytes;
        self.requests += requests;
        Ok(Counted { bytes, requests })
    }

    /// Has the adapter's queue of completions have an entry for each of so many requests.
    fn make_room_for(&mut self, requests: usize) -> Result<(), CmdStatus> {
        let needed = requests.next_power_of_two().min(MOST_COMPLETIONS as usize) as u32;
        if needed > self.completion_entries {
            self.completion_entries = match &mut self.completions {
                Some(completions) => completions.port.resize(needed).map_err(status)?,
                None => needed,
            };
        }
        Ok(())
    }

    /// Bytes of all queues and tables, about.
    pub(crate) fn held_bytes(&self) -> usize {
        self.queue_bytes + self.table_bytes + self.completion_entries as usize * COMPLETION
    }

    /// A number that no completion queue of the function has.
    pub(crate) fn new_number(&mut self) -> Result<u32, CmdStatus> {
        for _ in 0..NUMBERS {
            self.last_number = (self.last_number + 1) % NUMBERS;
            let n = self.last_number;
            if n != 0 && !self.cqs.contains_key(&n) {
                return Ok(n);
            }
        }
        Err(CmdStatus::NoRes)
    }

    /// A queue that was counted has gone.
    pub(crate) fn uncount_queue(&mut self, Counted { bytes, requests }: Counted) {
        self.queue_bytes -= bytes;
        self.requests -= requests;
        self.freed_bytes += bytes;
    }

    /// Takes the oldest event.
    pub(crate) fn take_raised(&mut self) -> Option<Raised> {
        self.raised.pop_front()
    }

    /// Takes an event of the adapter's, if it is of an object of this function. Returns whether it was.
    pub(crate) fn take_event(&mut self, event: AsyncEvent) -> bool {
        let (what, qp) = match event {
            AsyncEvent::CommEstablished(qp) => (EventType::CommEst, qp),
            AsyncEvent::SqDrained(qp) => (EventType::SqDrained, qp),
            AsyncEvent::LastWqeReached(qp) => (EventType::SrqLastWqe, qp),
            AsyncEvent::QpFatal(qp) => (EventType::WqCatasError, qp),
            AsyncEvent::QpRequestError(qp) => (EventType::WqInvalReqError, qp),
            AsyncEvent::QpAccessError(qp) => (EventType::WqAccessError, qp),
            AsyncEvent::SrqLimitReached(srq) => return self.srq_limit_reached(srq),
            AsyncEvent::CqOverrun(cq) => return self.completions_lost(cq),
            _ => return false,
        };
        let Some(number) = self.number_of(qp) else { return false };
        if !matches!(what, EventType::CommEst | EventType::SqDrained | EventType::SrqLastWqe)
            && let Some(qp) = self.qps.get_mut(&number)
        {
            qp.send_failed = true;
        }
        self.raised.push_back(Raised::Queue { event: what, number });
        true
    }

    /// The number of the queue pair that is the adapter's `qp`.
    pub(crate) fn number_of(&self, qp: QpHandle) -> Option<u32> {
        let number = *self.by_index.get(&qp.index)?;
        (self.qps.get(&number)?.handle == qp).then_some(number)
    }

    fn srq_limit_reached(&mut self, srq: SrqHandle) -> bool {
        let Some(number) = SoftHca::srq_number(srq).map(Srqn::raw) else { return false };
        // The queue may have been armed anew since.
        let limit = self.hca.query_srq(srq).map_or(0, |now| now.limit);
        let found = self.srqs.get_mut(&number).filter(|queue| queue.handle() == Some(srq));
        let Some(queue) = found else { return false };
        queue.limit = limit;
        self.raised.push_back(Raised::Queue { event: EventType::SrqRqLimit, number });
        true
    }

    /// The adapter's own queue has lost completions, and with them the order of all.
    fn completions_lost(&mut self, cq: CqHandle) -> bool {
        if self.completions.as_ref().is_none_or(|c| c.handle != cq) {
            return false;
        }
        let all: Vec<u32> = self.cqs.keys().copied().collect();
        for cqn in all {
            self.fail_cq(cqn, CqErrorSyndrome::CqOverrun);
        }
        self.end_failed();
        true
    }

    /// A completion queue can't be written any more.
    pub(crate) fn fail_cq(&mut self, cqn: u32, syndrome: CqErrorSyndrome) {
        if let Some(cq) = self.cqs.get_mut(&cqn).filter(|cq| !cq.failed) {
            cq.failed = true;
            self.raised.push_back(Raised::CqError { cqn, syndrome });
            self.failed_cqs.push(cqn);
        }
    }

    /// Notes the queue pairs of failed completion queues, for [`fail_some`](Self::fail_some), and ends the shared receive
    /// queues of domains: by one look at each of them, however many completion queues there are.
    pub(crate) fn end_failed(&mut self) {
        if self.failed_cqs.is_empty() {
            return;
        }
        let failed: FxHashSet<u32> = self.failed_cqs.drain(..).collect();
        #[cfg(test)]
        {
            self.looked_through += self.qps.len();
        }
        let of_failed = |qp: &qp::Qp| failed.contains(&qp.cq_send) || failed.contains(&qp.cq_recv);
        let ends = self.qps.iter().filter(|(_, qp)| of_failed(qp) && !qp.has_ended());
        self.failing.extend(ends.map(|(number, _)| *number));
        self.end_extended_of(&failed);
    }

    /// Puts some of the queue pairs in error whose completion queues have failed. Returns whether there were any.
    pub(crate) fn fail_some(&mut self) -> bool {
        let some = self.failing.len().saturating_sub(QUEUE_PAIRS_A_LOOK)..;
        let has_failed = |cqn| self.cqs.get(&cqn).is_some_and(|cq| cq.failed);
        let mut any = false;
        for number in self.failing.drain(some) {
            any = true;
            // The number may have gone to another queue pair.
            let qp = self.qps.get_mut(&number);
            if let Some(qp) = qp.filter(|qp| has_failed(qp.cq_send) || has_failed(qp.cq_recv)) {
                qp.fail(&self.hca);
            }
        }
        any
    }

    /// Destroys so many queue pairs, at most, before all objects are. Returns whether there are more.
    fn destroy_some(&mut self, most: usize, directory: &mut Directory) -> bool {
        let some: Vec<u32> = self.qps.keys().copied().take(most).collect();
        for number in some {
            let Some(qp) = self.qps.remove(&number) else { continue };
            self.by_index.remove(&qp.handle.index);
            directory.remove_qp(number);
            gone("queue pair", self.hca.destroy_qp(qp.handle).map(drop));
        }
        !self.qps.is_empty()
    }

    /// Destroys all objects, in an order in which none is in use. When it returns, the adapter touches no memory of the
    /// client's any more.
    pub(crate) fn destroy_all(&mut self, directory: &mut Directory) {
        self.freed_bytes += self.queue_bytes + self.listed_bytes;
        self.destroy_some(usize::MAX, directory);
        self.by_index.clear();
        self.watched.clear();
        for (_, srq) in self.srqs.drain() {
            if let Some(handle) = srq.handle() {
                gone("shared receive queue", self.hca.destroy_srq(handle));
            }
        }
        self.remove_domains();
        self.remove_bus_keys();
        self.leaving.add_keys(std::mem::take(&mut self.mkeys), std::mem::take(&mut self.keys_of));
        self.forget_addresses();
        self.cqs.clear();
        self.arms = cq::arms::Arms::default();
        if let Some(c) = self.completions.take() {
            gone("completion queue", self.hca.destroy_cq(c.handle));
        }
        self.completion_entries = self.completion_entries.min(COMPLETIONS);
        for pd in [self.nobody.take(), self.unnamed.take()].into_iter().flatten() {
            self.leaving.add_domain(pd);
        }
        self.raised.clear();
        self.failed_cqs.clear();
        self.failing.clear();
        (self.queue_bytes, self.listed_bytes, self.table_bytes, self.requests) = (0, 0, 0, 0);
    }

    /// Destroys all address handles.
    pub(crate) fn forget_addresses(&mut self) {
        for (_, ah) in self.addresses.handles.drain() {
            gone("address handle", self.hca.destroy_ah(ah));
        }
        (self.addresses.in_flight, self.addresses.is_waited_for) = (0, false);
    }

    /// Destroys the address handles of a protection domain, which is about to go.
    pub(crate) fn forget_addresses_of(&mut self, pd: PdHandle) {
        let hca = &self.hca;
        self.addresses.handles.retain(|(of, _), ah| {
            if *of == pd {
                gone("address handle", hca.destroy_ah(*ah));
            }
            *of != pd
        });
    }

    /// Puts queue pairs in error whose queues or records lie here, so many at most. Returns whether there may be more.
    pub(crate) fn release_queue_pairs(&mut self, iova: u64, size: u64, most: usize) -> bool {
        let touches = |qp: &qp::Qp| qp.memory.as_ref().is_some_and(|memory| memory.touches(iova, size));
        let some =
            self.queues_of.qps.near(iova, size, most, |number| self.qps.get(&number).is_some_and(touches));
        for number in &some {
            let Some(qp) = self.qps.get_mut(number).filter(|qp| qp.memory.is_some()) else { continue };
            qp.fail(&self.hca);
            qp.memory = None;
        }
        some.len() == most
    }

    /// The ranges of client memory go that begin here: keys and queues that lie in them, even in part, are made
    /// invalid. When it returns, the adapter touches that memory no more.
    pub(crate) fn release_memory(&mut self, iova: u64, size: u64) {
        self.release_queue_pairs(iova, size, usize::MAX);
        self.release_keys(iova, size, usize::MAX);
        self.unmap_range(iova, size);
        for number in self.queues_of.srqs.near(iova, size, usize::MAX, |_| true) {
            if let Some(srq) = self.srqs.get_mut(&number) {
                srq.memory.take_if(|memory| memory.touches(iova, size));
            }
        }
        for cqn in self.queues_of.cqs.near(iova, size, usize::MAX, |_| true) {
            let memory = self.cqs.get_mut(&cqn).map(|cq| &mut cq.memory);
            if memory.is_some_and(|memory| memory.take_if(|memory| memory.touches(iova, size)).is_some()) {
                self.fail_cq(cqn, CqErrorSyndrome::CqAccessViolation);
            }
        }
        self.end_failed();
    }
}

impl Function {
    /// Destroys all objects, in an order in which none is in use. When it returns, the adapter touches no memory of the
    /// client's any more.
    pub(crate) fn destroy_objects(&mut self) {
        self.objects.destroy_all(&mut self.directory.lock());
    }

    /// Does a piece of what [`destroy_objects`](Self::destroy_objects) is about to do, which would take long where
    /// there are thousands of queue pairs. Returns whether there is more.
    pub(crate) fn destroy_piece(&mut self) -> bool {
        self.objects.destroy_some(QUEUE_PAIRS_A_LOOK, &mut self.directory.lock())
    }

    /// Bytes that objects had which have gone since this was asked last.
    pub(crate) fn take_freed(&mut self) -> usize {
        std::mem::take(&mut self.objects.freed_bytes)
    }

    /// Like [`Objects::release_memory`], with the events that come of it.
    pub(crate) fn release_memory(&mut self, iova: u64, size: u64) {
        self.objects.release_memory(iova, size);
        self.post_raised();
    }
}

impl qp::Qp {
    /// Whether it was put in error as its memory went, and not reset since.
    fn has_ended(&self) -> bool {
        self.memory.is_none() && self.send_failed
    }

    /// Puts it in error: what it has under way is flushed.
    pub(crate) fn fail(&mut self, hca: &SoftHca) {
        self.send_failed = true;
        if self.is_inert() {
            self.inert_state = QpState::Error;
        } else {
            let attr = QpAttr { state: Some(QpState::Error), ..QpAttr::default() };
            gone("queue pair in error", hca.modify_qp(self.handle, &attr));
        }
    }
}

/// Logs what can't be: an object of the adapter that we made does not go.
pub(crate) fn gone(what: &str, done: Result<(), DeviceError>) {
    if let Err(e) = done {
        tracing::error!("the adapter keeps a {what}: {e}");
    }
}

/// A command's status for a refusal of the adapter.
pub(crate) fn status(e: DeviceError) -> CmdStatus {
    tracing::debug!("a command is refused: {e}");
    match e {
        DeviceError::LimitReached { .. } | DeviceError::OutOfMemory { .. } => CmdStatus::NoRes,
        DeviceError::InUse { .. } => CmdStatus::ResBusy,
        DeviceError::UnknownHandle { .. } => CmdStatus::BadRes,
        DeviceError::OutOfRange { .. } => CmdStatus::LimErr,
        DeviceError::Transition(hca_core::TransitionError::Illegal { .. }) => CmdStatus::BadQpState,
        DeviceError::Transition(_) | DeviceError::NoPath { .. } => CmdStatus::BadParam,
        _ => CmdStatus::IntErr,
    }
}

/// A command's status for memory that can't be used.
pub(crate) fn no_window(e: NoWindow) -> CmdStatus {
    tracing::debug!("a command is refused: {e}");
    match e {
        NoWindow::Fault(_) | NoWindow::Pages => CmdStatus::BadParam,
        NoWindow::Apart => CmdStatus::NoRes,
    }
}

impl From<Fault> for CmdStatus {
    fn from(_: Fault) -> Self {
        Self::BadParam
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::{QpShape, Server};

    #[test]
    fn where_all_memory_goes_queue_pairs_end_piece_by_piece_and_are_looked_at_once() {
        let server = Server::new();
        let mut c = server.client(0);
        let (cqs, other): (Vec<_>, _) = ((0..32).map(|_| c.cq(1)).collect(), c.cq(1));
        let count = QUEUE_PAIRS_A_LOOK * 3 / 2;
        for i in 0..count {
            c.qp(QpShape { log_rq: 0, log_sq: 0, ..QpShape::default() }, &cqs[i % 32], &other);
        }
        let (master, none) = (6_u16.to_le_bytes(), 2_u16.to_le_bytes());
        c.function.config_write(4, &master);
        let ended = |c: &Function| c.objects.qps.values().filter(|qp| qp.has_ended()).count();
        let (mut before, mut pieces) = (0, 0);
        loop {
            let more = c.function.piece_before(4, &none);
            let now = ended(&c.function);
            assert!(now - before <= QUEUE_PAIRS_A_LOOK, "{before} queue pairs, then {now}");
            (before, pieces) = (now, pieces + 1);
            assert!(pieces < 1000, "it comes to no end");
            if !more {
                break;
            }
        }
        assert_eq!(ended(&c.function), count);
        c.function.config_write(4, &none);
        assert!(c.function.objects.cqs.values().all(|cq| cq.failed && cq.memory.is_none()));
        assert_eq!(c.function.objects.looked_through, count, "once, and not for each completion queue");
    }

    #[test]
    fn where_a_completion_queue_overruns_its_queue_pairs_end_piece_by_piece() {
        let server = Server::new();
        let mut c = server.client(0);
        let (cq, other) = (c.cq(1), c.cq(1));
        let count = QUEUE_PAIRS_A_LOOK * 5 / 2;
        for i in 0..count + 3 {
            let of = if i < count { &cq } else { &other };
            c.qp(QpShape { log_rq: 0, log_sq: 0, ..QpShape::default() }, of, of);
        }
        c.function.objects.fail_cq(cq.cqn, CqErrorSyndrome::CqOverrun);
        let ended = |c: &Function| c.objects.qps.values().filter(|qp| qp.send_failed).count();
        let (mut before, mut looks) = (0, 0);
        while c.function.look() {
            let now = ended(&c.function);
            assert!(now - before <= QUEUE_PAIRS_A_LOOK, "{before} queue pairs, then {now}");
            (before, looks) = (now, looks + 1);
            assert!(looks < 1000, "it comes to no end");
        }
        assert!(looks >= 3, "{looks} looks");
        assert_eq!(before, count, "those of the other completion queue go on");
    }

    #[test]
    fn memory_that_goes_has_its_own_queues_looked_at() {
        let server = Server::new();
        let mut c = server.client(0);
        let (cq, other) = (c.cq(1), c.cq(1));
        let qps: Vec<_> = (0..8).map(|_| c.qp(QpShape::default(), &cq, &other)).collect();
        let srq = c.rmp(2);
        let objects = &c.function.objects;
        let all = (objects.queues_of.qps.len(), objects.queues_of.cqs.len(), objects.queues_of.srqs.len());
        assert_eq!(all, (8, 2, 1));
        // Another range of the client's memory than that of the queues.
        let near = |users: &SharedUsers| users.near(crate::bed::BASE + (1 << 40), 4096, 100, |_| true).len();
        assert_eq!(
            [&objects.queues_of.qps, &objects.queues_of.cqs, &objects.queues_of.srqs].map(near),
            [0; 3]
        );
        for qp in &qps {
            c.destroy(qp.qpn).unwrap();
        }
        c.function.objects.destroy_srq(srq.rmpn, |_| true).unwrap();
        c.function.objects.destroy_cq(cq.cqn).unwrap();
        c.function.objects.destroy_cq(other.cqn).unwrap();
        let of = &c.function.objects.queues_of;
        assert_eq!((of.qps.len(), of.cqs.len(), of.srqs.len()), (0, 0, 0));
    }

    #[test]
    fn queues_that_go_give_their_room_back() {
        let server = Server::new();
        let mut c = server.client(0);
        let (cq, before) = (c.cq(4), c.function.objects.queue_bytes);
        let srq = c.rmp(4);
        let qp = c.qp(QpShape::default(), &cq, &cq);
        assert!(c.function.objects.queue_bytes > before);
        c.destroy(qp.qpn).unwrap();
        let (with_srq, objects) = (c.function.objects.queue_bytes, &mut c.function.objects);
        assert!(with_srq > before);
        objects.destroy_srq(srq.rmpn, |_| true).unwrap();
        assert_eq!(objects.queue_bytes, before);
        // There is an end of it, for queues together.
        let counted: Vec<Counted> = std::iter::from_fn(|| objects.count_queue(1 << 14, 32).ok()).collect();
        assert!((100..200).contains(&counted.len()), "{}", counted.len());
        assert_eq!(c.try_qp(QpShape { log_sq: 9, ..QpShape::default() }, &cq, &cq).err(), None);
        let full = c.function.objects.count_queue(1 << 14, 32);
        assert_eq!(full, Err(CmdStatus::NoRes));
    }
}
