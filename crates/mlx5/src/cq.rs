//! Completion queues of the adapter.
//!
//! One thread polls a queue by its port, with its own copy of the table of the queue's queue pairs, by number. Other
//! threads add and remove queue pairs: [`Exclusion`] lets them do so while the queue is polled.
//!
//! Removing a queue pair takes its entries out of the queue: no later poll finds the queue pair, its entries are free
//! again, and its requests from a shared receive queue are returned. A reset of a queue pair does the same, but
//! requests of a shared receive queue complete as flushed. For that the poller must be outside, so the removal waits
//! for as long as a poll takes.

use core::task::Waker;
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hca_core::{
    Completion, CqHandle, CqModeration, CqPort, CqStatus, DeviceError, Notify, QpType, WakerSlot, WcOpcode,
    WcStatus,
};
use hca_prm::command::cq::{CreateCqIn, CreateCqOut, DestroyCqIn, ModifyCqIn, QueryCqIn, QueryCqOut, modify};
use hca_prm::{CI_MASK, CqArm, CqDbr, Cqc};
use hca_turn_lock::{Exclusion, Inside};
use hca_vfio::mmio::dma_wmb;
use rustix::event::{EventfdFlags, eventfd};

use crate::caps::Caps;
use crate::cqe::{self, CQE_CELLS, Cqe, Kind};
use crate::error::memory;
use crate::hca::Hca;
use crate::masked::Masked;
use crate::qp::core::QpCore;
use crate::qp::send::{Bell, opcode_of};
use crate::queue::QueueMemory;
use crate::shared::{Ring, SharedCells, Word};
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use crate::table::Table;

/// The most that the fields of a queue's context hold.
pub(crate) const MAX_MODERATION: CqModeration =
    CqModeration { count: u16::MAX, period: Duration::from_micros(4095) };

/// Polls in vain before the CPU is given to others, where the adapter is a process that may wait for it.
const EMPTY_POLLS: u32 = 4;

/// A queue pair that completes here.
#[derive(Clone)]
struct Member {
    qp: Arc<QpCore>,
    /// The send requests complete here.
    sends: bool,
    /// The receive requests do.
    recvs: bool,
}

/// The state that the polling side and the control path of a completion queue share.
pub(crate) struct CqCore {
    pub(crate) handle: CqHandle,
    pub(crate) number: u32,
    log_size: u32,
    ring: Ring,
    record: SharedCells,
    /// The version counts the adapter's death as well.
    members: Exclusion<Vec<Member>>,
    dead: AtomicBool,
    /// Events that came: part of what arms the queue.
    events: AtomicU32,
    waker: WakerSlot,
    event: OnceLock<OwnedFd>,
}

impl CqCore {
    /// A queue of 2^`log_size` entries, which are marked as not written.
    pub(crate) fn new(
        handle: CqHandle,
        number: u32,
        log_size: u32,
        cells: SharedCells,
        record: SharedCells,
    ) -> Self {
        Self {
            handle,
            number,
            log_size,
            ring: Ring::new(cells.part(0, CQE_CELLS << log_size)),
            record,
            members: Exclusion::new(Vec::new()),
            dead: AtomicBool::new(false),
            events: AtomicU32::new(0),
            waker: WakerSlot::default(),
            event: OnceLock::new(),
        }
    }

    /// A queue pair completes here from now on.
    pub(crate) fn add(&self, qp: &Arc<QpCore>, sends: bool, recvs: bool) {
        self.members.change(|members| members.push(Member { qp: qp.clone(), sends, recvs }));
    }

    /// Takes out a queue pair, and what it left here, of which the adapter adds no more. Returned are the requests that
    /// it took from a shared receive queue.
    pub(crate) fn remove(&self, qp: &QpCore) -> Vec<u64> {
        let mut shared = Vec::new();
        self.members.exclude(|members| {
            members.retain(|m| m.qp.handle != qp.handle);
            self.take_out(qp, Some(&mut shared));
        });
        // Oldest first.
        shared.reverse();
        shared
    }

    /// Takes out what a queue pair left here that is reset, and of which the adapter adds no more. Requests that it
    /// took from a shared receive queue complete as flushed: nobody could name them any more. `also` is run while
    /// nobody polls.
    pub(crate) fn reset(&self, qp: &QpCore, also: impl FnOnce()) {
        self.members.exclude(|_| {
            self.take_out(qp, None);
            also();
        });
    }

    /// Takes out what a queue pair left here: entries of others move up behind it, and the adapter is told that those
    /// in front are free. Requests that it took from a shared receive queue are named, the youngest first, or stay as
    /// flushed where they are not `named`. While nobody polls.
    fn take_out(&self, qp: &QpCore, mut named: Option<&mut Vec<u64>>) {
        let record = self.record.word32(CqDbr::UPDATE_CI.offset());
        // As many bits as tell the round.
        let taken = u32::from_be(record.load(Ordering::Relaxed));
        let entry = |i| Cqe::ready(&self.ring, taken.wrapping_add(i), self.log_size);
        let count = (0..1_u32 << self.log_size).take_while(|&i| entry(i).is_some()).count() as u32;
        let mut free = count;
        for (i, mut cqe) in (0..count).rev().filter_map(|i| Some((i, entry(i)?))) {
            if cqe.qpn() == qp.qpn.raw() {
                let Some(srq) = qp.srq.as_ref().filter(|_| cqe.kind().is_recv()) else { continue };
                if let Some(named) = &mut named {
                    named.extend(srq.take(cqe.place()));
                    continue;
                }
                cqe.flush();
            }
            free -= 1;
            if free != i {
                cqe.copy_to(&self.ring, taken.wrapping_add(free), self.log_size);
            }
        }
        // Release: entries are moved before the adapter is told that it may write in front of them.
        record.store((taken.wrapping_add(free) & CI_MASK).to_be(), Ordering::Release);
    }

    /// The consumer's counter, as the adapter is told.
    #[cfg(test)]
    pub(crate) fn announced_consumer_counter(&self) -> u32 {
        self.record_word(CqDbr::UPDATE_CI.offset())
    }
    #[cfg(test)]
    pub(crate) fn is_polled(&self) -> bool {
        self.members.is_inside()
    }
    #[cfg(test)]
    pub(crate) fn record_word(&self, at: usize) -> u32 {
        u32::from_be(self.record.word32(at).load(Ordering::Relaxed))
    }

    /// The adapter has told that the queue was armed, and something came.
    pub(crate) fn completed(&self) {
        self.events.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }
    /// Marks the adapter as dead: polls then end outstanding requests.
    pub(crate) fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.members.invalidate();
        self.wake();
    }
    fn wake(&self) {
        if let Some(event) = self.event.get() {
            // A counter that is full is readable as well.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
        // Woken without the lock: whoever is woken may set another one at once.
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

/// The queue pairs of which send requests, or receive requests, complete here: open addressing, by number. At least as
/// many places are free as taken.
struct QpTable(Masked<Option<Arc<QpCore>>>);

impl QpTable {
    fn of(members: &[&Arc<QpCore>]) -> Self {
        let count = (2 * members.len()).next_power_of_two();
        let mut seats = Masked::new((0..count).map(|_| None));
        for qp in members {
            let mut at = qp.qpn.raw() as usize;
            while seats.get(at).is_some() {
                at += 1;
            }
            *seats.get_mut(at) = Some(Arc::clone(qp));
        }
        Self(seats)
    }
    /// The queue pair of a number, if it stands where that belongs.
    #[inline(always)]
    fn find_at_once(&self, qpn: u32) -> Option<&QpCore> {
        self.0.get(qpn as usize).as_deref().filter(|qp| qp.qpn.raw() == qpn)
    }
    /// The queue pair of a number.
    fn find(&self, qpn: u32) -> Option<&QpCore> {
        let mut at = qpn as usize;
        // There is a free one behind.
        while let Some(qp) = self.0.get(at) {
            if qp.qpn.raw() == qpn {
                return Some(qp);
            }
            at += 1;
        }
        None
    }
    fn iter(&self) -> impl Iterator<Item = &Arc<QpCore>> {
        self.0.iter().flatten()
    }
}

/// The entries of a completion queue, as its poller takes them.
struct Entries {
    ring: Ring,
    log_size: u32,
    /// Entries that were taken.
    next: u32,
    /// The doorbell record's counter of these.
    record: Word,
    senders: QpTable,
    receivers: QpTable,
}

impl Entries {
    /// The next entry, if it is there.
    #[inline(always)]
    fn next(&self) -> Option<Cqe<'_>> {
        Cqe::ready(&self.ring, self.next, self.log_size)
    }

    /// Makes the entry of a send request that succeeded a completion. `None`: it is of none that is outstanding.
    #[inline(always)]
    fn sent(qp: &QpCore, cqe: &Cqe<'_>, out: &mut Completion) -> Option<()> {
        let noted = qp.send.take(cqe.place())?;
        (out.wr_id, out.qp) = (noted.wr_id, qp.handle);
        cqe.complete_send(opcode_of(noted.tag), out);
        Some(())
    }
    /// The same of a receive request.
    #[inline(always)]
    fn received(qp: &QpCore, cqe: &Cqe<'_>, out: &mut Completion) -> Option<()> {
        (out.wr_id, out.qp) = (qp.take_recv(cqe.place())?, qp.handle);
        cqe.complete_recv(qp.qp_type == QpType::Ud, out);
        Some(())
    }
    /// The same of a request that failed.
    #[cold]
    fn failed(&self, cqe: &Cqe<'_>, out: &mut Completion) -> Option<()> {
        let (qp, wr_id, opcode) = match cqe.kind() {
            Kind::SendFailed => {
                let qp = self.senders.find(cqe.qpn())?;
                let noted = qp.send.take(cqe.place())?;
                (qp, noted.wr_id, opcode_of(noted.tag))
            }
            Kind::RecvFailed => {
                let qp = self.receivers.find(cqe.qpn())?;
                (qp, qp.take_recv(cqe.place())?, WcOpcode::Recv)
            }
            _ => return None,
        };
        fill_in(out, qp, wr_id, cqe.status(), opcode);
        out.byte_len = cqe.vendor_syndrome().into();
        if out.status != WcStatus::WrFlushed {
            tracing::debug!(qp = %qp.qpn, status = %out.status, vendor = cqe.vendor_syndrome(), "a request failed");
        }
        Some(())
    }

    /// Takes entries of any kind. The first `n` completions were filled in, and there is room for another.
    #[inline]
    fn take_any(&mut self, out: &mut [Completion], n: usize) -> usize {
        self.take_noting(out, n, |_, _| ())
    }
    /// The same; `note` is given each entry that became a completion, with the place of that.
    #[inline]
    fn take_noting(
        &mut self,
        out: &mut [Completion],
        mut n: usize,
        mut note: impl FnMut(usize, &Cqe<'_>),
    ) -> usize {
        // Not for ever, whatever is written meanwhile.
        for _ in 0..self.ring.blocks() {
            let Some(cqe) = self.next() else { break };
            let done = match cqe.kind() {
                Kind::Received => {
                    self.receivers.find(cqe.qpn()).and_then(|qp| Self::received(qp, &cqe, &mut out[n]))
                }
                Kind::Sent => self.senders.find(cqe.qpn()).and_then(|qp| Self::sent(qp, &cqe, &mut out[n])),
                _ => self.failed(&cqe, &mut out[n]),
            };
            if done.is_some() {
                note(n, &cqe);
                n += 1;
            }
            self.next = self.next.wrapping_add(1);
            if n == out.len() {
                break;
            }
        }
        self.publish_consumer_index();
        n
    }

    /// Goes on where the adapter was told that entries are not free: who took some out has moved that.
    fn pass_over_the_free(&mut self) {
        let told = u32::from_be(self.record.load(Ordering::Relaxed));
        self.next = self.next.wrapping_add(told.wrapping_sub(self.next) & CI_MASK);
    }

    /// Writes the consumer index for the adapter.
    #[inline(always)]
    fn publish_consumer_index(&self) {
        // Release: entries are read before the adapter is told that they may be written.
        self.record.store((self.next & CI_MASK).to_be(), Ordering::Release);
    }

    /// Ends the outstanding requests of a dead adapter.
    fn end_all(&self, out: &mut [Completion]) -> usize {
        let mut n = 0;
        let mut end = |qp: &QpCore, wr_id, opcode| {
            fill_in(&mut out[n], qp, wr_id, WcStatus::Fatal, opcode);
            n += 1;
            n == out.len()
        };
        for qp in self.senders.iter() {
            while let Some(noted) = qp.send.take_oldest() {
                if end(qp, noted.wr_id, opcode_of(noted.tag)) {
                    return n;
                }
            }
        }
        for qp in self.receivers.iter().filter(|qp| qp.srq.is_none()) {
            while let Some(noted) = qp.recv.take_oldest() {
                if end(qp, noted.wr_id, WcOpcode::Recv) {
                    return n;
                }
            }
        }
        n
    }
}

/// Fills in how a request ended that did not succeed.
fn fill_in(out: &mut Completion, qp: &QpCore, wr_id: u64, status: WcStatus, opcode: WcOpcode) {
    *out = Completion { wr_id, qp: qp.handle, status, opcode, ..Completion::default() };
}

/// The polling side of a completion queue.
pub(crate) struct CqPoller<B> {
    core: Arc<CqCore>,
    entries: Entries,
    /// That of `CqCore::members` that the entries' queue pairs are of.
    version: u32,
    dead: bool,
    /// The adapter is a process that may wait for this CPU.
    yields: bool,
    /// How often nothing was there, since so many entries had been taken.
    empty_polls: (u32, u32),
    /// The events there had been when the queue was armed for any completion.
    armed: Option<u32>,
    /// The adapter has a clock, whose time entries tell.
    has_times: bool,
    bell: B,
}

impl<B: Bell> CqPoller<B> {
    pub(crate) fn new(core: Arc<CqCore>, bell: B, yields: bool, has_times: bool) -> Self {
        let nobody = || QpTable::of(&[]);
        let entries = Entries {
            ring: core.ring.clone(),
            log_size: core.log_size,
            next: 0,
            record: core.record.word(CqDbr::UPDATE_CI.offset()),
            senders: nobody(),
            receivers: nobody(),
        };
        let version = core.members.never_seen();
        Self {
            core,
            entries,
            version,
            dead: false,
            yields,
            empty_polls: (0, 0),
            armed: None,
            has_times,
            bell,
        }
    }

    /// Copies the list of queue pairs. While who removes one has the list, this waits.
    fn look_anew(&mut self) {
        let (version, members) = self.core.members.copy(Clone::clone);
        self.version = version;
        self.dead = self.core.dead.load(Ordering::Relaxed);
        self.entries.pass_over_the_free();
        let of = |completes: fn(&Member) -> bool| {
            let of: Vec<_> = members.iter().filter(|m| completes(m)).map(|m| &m.qp).collect();
            QpTable::of(&of)
        };
        (self.entries.senders, self.entries.receivers) = (of(|m| m.sends), of(|m| m.recvs));
    }
    /// Polls, with a new copy of the list where there is one.
    #[cold]
    fn poll_anew(&mut self, out: &mut [Completion]) -> usize {
        self.poll_noting(out, |_, _| ())
    }
    /// The same; `note` as in [`Entries::take_noting`].
    fn poll_noting(&mut self, out: &mut [Completion], note: impl FnMut(usize, &Cqe<'_>)) -> usize {
        let _inside = loop {
            if let Some(inside) = self.core.members.enter(self.version) {
                break inside;
            }
            self.look_anew();
        };
        if self.dead && self.entries.next().is_none() {
            return self.entries.end_all(out);
        }
        self.entries.take_noting(out, 0, note)
    }
    /// As `poll`, from inside, where the first entry is there and is of no send request that succeeded.
    #[inline(never)]
    fn poll_received(&mut self, out: &mut [Completion]) -> usize {
        let Some((cqe, first)) = self.entries.next().zip(out.first_mut()) else {
            return self.poll_any(out, 0);
        };
        if cqe.kind() != Kind::Received {
            return self.poll_any(out, 0);
        }
        let qp = self.entries.receivers.find_at_once(cqe.qpn());
        let done = qp.and_then(|qp| Entries::received(qp, &cqe, first)).is_some();
        self.poll_on(out, done)
    }
    /// Ends a poll, from inside, whose first entry was looked at, and whether a completion was made of it.
    #[inline(always)]
    fn poll_on(&mut self, out: &mut [Completion], done: bool) -> usize {
        if !done {
            return self.poll_any(out, 0);
        }
        self.entries.next = self.entries.next.wrapping_add(1);
        if out.len() > 1 && self.entries.next().is_some() {
            return self.poll_any(out, 1);
        }
        self.entries.publish_consumer_index();
        drop(self.core.members.inside());
        1
    }
    /// Takes entries of any kind, from inside. The first `n` completions were filled in, and there is room for another.
    #[inline(never)]
    fn poll_any(&mut self, out: &mut [Completion], n: usize) -> usize {
        let _inside = self.core.members.inside();
        self.entries.take_any(out, n)
    }
    /// Nothing was there.
    #[inline(never)]
    fn poll_empty(&mut self, out: &mut [Completion]) -> usize {
        if self.dead {
            return self.poll_anew(out);
        }
        let (times, since) = self.empty_polls;
        let times = if since == self.entries.next { times.saturating_add(1) } else { 1 };
        self.empty_polls = (times, self.entries.next);
        if self.yields && times > EMPTY_POLLS {
            std::thread::yield_now();
        }
        0
    }
}

#[allow(unsafe_code)] // a promise; nothing unsafe is done here
// SAFETY: (1) an entry becomes a completion only if its place is that of a request that a shadow has as outstanding,
// which it is no longer from then on: once, whatever the adapter writes. (2) The adapter writes memory before the
// entry, whose valid bit is looked at before all else, with a barrier behind that (`Cqe::ready`). (3) Every way counts
// what it filled in, and goes on while that is less than `out`'s length.
unsafe impl<B: Bell> CqPort for CqPoller<B> {
    /// Most polls find nothing, or one entry of a request that succeeded. What one has to do beyond that is left to
    /// other functions, each at the end of the one before, so that nothing has to be kept across a call.
    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let Some(first) = out.first_mut() else { return 0 };
        if self.core.members.enter(self.version).map(Inside::stay).is_none() {
            return self.poll_anew(out);
        }
        let Some(cqe) = self.entries.next() else {
            drop(self.core.members.inside());
            return self.poll_empty(out);
        };
        if cqe.kind() != Kind::Sent {
            return self.poll_received(out);
        }
        let qp = self.entries.senders.find_at_once(cqe.qpn());
        let done = qp.and_then(|qp| Entries::sent(qp, &cqe, first)).is_some();
        self.poll_on(out, done)
    }

    fn poll_with_times(&mut self, out: &mut [Completion], at: &mut [u64]) -> Option<usize> {
        if !self.has_times {
            return None;
        }
        let room = out.len().min(at.len());
        // Of what no entry tells of, on an adapter that is dead, there is no time.
        at[..room].fill(0);
        if room == 0 {
            return Some(0);
        }
        let n = self.poll_noting(&mut out[..room], |i, cqe| at[i] = cqe.time());
        if n == 0 && !self.dead {
            self.poll_empty(&mut []);
        }
        Some(n)
    }

    fn arm(&mut self, notify: Notify) {
        let core = &*self.core;
        if let Some(event) = core.event.get() {
            let mut count = [0; 8];
            // Nothing to read: nothing came.
            let _ = rustix::io::read(event, &mut count);
        }
        // Acquire: a request after an event is a new one.
        let events = core.events.load(Ordering::Acquire);
        // The last word counts, and one that asks for more is not taken back.
        let any = notify == Notify::Any || self.armed == Some(events);
        self.armed = any.then_some(events);
        let what = if any { CqArm::Next } else { CqArm::Solicited };
        let word = (events & 3) << 28 | what.code() << 24 | self.entries.next & CI_MASK;
        core.record.word32(CqDbr::ARM_CI.offset()).store(word.to_be(), Ordering::Release);
        dma_wmb();
        self.bell.arm(u64::from(word) << 32 | u64::from(core.number));
        if self.dead || core.dead.load(Ordering::Relaxed) {
            core.wake();
        }
    }

    fn set_waker(&mut self, waker: &Waker) {
        self.core.waker.set(waker);
    }

    fn wait_fd(&mut self) -> Result<BorrowedFd<'_>, DeviceError> {
        if self.core.event.get().is_none() {
            let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let made = made.map_err(|e| DeviceError::Io { doing: "making an eventfd", source: e.into() })?;
            // Nobody else makes one: this is the only port.
            let _ = self.core.event.set(made);
            // What came before there was a descriptor: the first wait returns at once.
            self.core.wake();
        }
        Ok(self.core.event.get().expect("made above").as_fd())
    }
}

/// A completion queue, as the control path has it.
struct Cq {
    core: Arc<CqCore>,
    memory: SharedCells,
    /// Each queue pair that completes here holds a clone for each of its queues.
    users: Arc<()>,
}

/// A queue pair's hold on a completion queue.
pub(crate) struct CqUser {
    pub(crate) core: Arc<CqCore>,
    _user: Arc<()>,
}

/// All completion queues.
pub(crate) struct Cqs(Mutex<Table<Cq>>);

impl Cqs {
    pub(crate) fn new(caps: &Caps) -> Self {
        Self(Mutex::new(Table::new("completion queue", 1 << caps.log_max_cq.min(24))))
    }
    fn table(&self) -> MutexGuard<'_, Table<Cq>> {
        // It is whole between any two of its operations.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn create(
        &self,
        hca: &Arc<Hca>,
        depth: u32,
    ) -> Result<(CqHandle, Box<dyn CqPort>), DeviceError> {
        DeviceError::unless_within("depth", depth, 1, max_cqe(&hca.caps))?;
        hca.check_alive()?;
        self.table().check_room()?;
        let log_size = (depth + 1).next_power_of_two().trailing_zeros();
        let memory = QueueMemory::alloc(hca.arena(), CQE_CELLS << log_size).map_err(memory)?;
        cqe::clear(&memory.cells[..CQE_CELLS << log_size]);
        let uar = hca.uars.for_queue();
        let context = Cqc::new()
            .with(Cqc::LOG_CQ_SIZE, log_size)
            .with(Cqc::UAR_PAGE, uar.index)
            .with(Cqc::C_EQN, hca.completion_eq())
            .with(Cqc::LOG_PAGE_SIZE, memory.log_page_size)
            .with(Cqc::DBR_ADDR, memory.record_iova);
        let input = CreateCqIn::new().with(CreateCqIn::CQ_CONTEXT, context);
        let number = hca.exec_with(&input, &memory.pages, &mut [])?.get(CreateCqOut::CQN);
        hca.hear_of_former();
        let inserted = self.table().insert_numbered(number, |index, generation| {
            let handle = CqHandle { index, generation };
            let core = CqCore::new(handle, number, log_size, memory.cells.clone(), memory.record.clone());
            Cq { core: Arc::new(core), memory: memory.cells.clone(), users: Arc::default() }
        });
        let (index, generation) = match inserted {
            Ok(handle) => handle,
            Err(e) => {
                destroy(hca, number)?;
                return Err(e);
            }
        };
        let core = self.table().find(index, generation)?.core.clone();
        let yields = uar.is_served();
        let poller = CqPoller::new(core, uar.of_port(hca), yields, hca.caps.clock_khz.is_some());
        Ok((CqHandle { index, generation }, Box::new(poller)))
    }

    /// Sets how many completions make an event, and how long they are waited for.
    pub(crate) fn moderate(
        &self,
        hca: &Hca,
        cq: CqHandle,
        moderation: CqModeration,
    ) -> Result<(), DeviceError> {
        if !hca.caps.cq_moderation {
            return Err(DeviceError::Unsupported { what: "moderation of completion queues" });
        }
        let period = u32::try_from(moderation.period.as_micros()).unwrap_or(u32::MAX);
        DeviceError::unless_within(
            "period in microseconds",
            period,
            0,
            MAX_MODERATION.period.as_micros() as u32,
        )?;
        let number = self.acquire(cq)?.core.number;
        let given = if moderation.holds_back() { (moderation.count.into(), period) } else { (0, 0) };
        let context = Cqc::new().with(Cqc::CQ_MAX_COUNT, given.0).with(Cqc::CQ_PERIOD, given.1);
        let input = ModifyCqIn::new()
            .with(ModifyCqIn::CQN, number)
            .with(ModifyCqIn::MODIFY_FIELD_SELECT, modify::PERIOD | modify::COUNT)
            .with(ModifyCqIn::CQ_CONTEXT, context);
        hca.exec(&input)?;
        Ok(())
    }
    /// The attributes that the adapter has of a queue.
    pub(crate) fn query(&self, hca: &Hca, cq: CqHandle) -> Result<CqStatus, DeviceError> {
        let number = self.acquire(cq)?.core.number;
        let context = hca.exec(&QueryCqIn::new().with(QueryCqIn::CQN, number))?.get(QueryCqOut::CQ_CONTEXT);
        let moderation = CqModeration {
            count: context.get(Cqc::CQ_MAX_COUNT) as u16,
            period: Duration::from_micros(context.get(Cqc::CQ_PERIOD).into()),
        };
        let depth = (1 << context.get(Cqc::LOG_CQ_SIZE)) - 1;
        Ok(CqStatus { depth, moderation, timed: hca.caps.clock_khz.is_some() })
    }

    pub(crate) fn destroy(&self, hca: &Arc<Hca>, cq: CqHandle) -> Result<(), DeviceError> {
        let found = {
            let mut table = self.table();
            let users = Arc::strong_count(&table.find(cq.index, cq.generation)?.users) as u64 - 1;
            DeviceError::unless_unused("completion queue", users)?;
            table.remove(cq.index, cq.generation)?
        };
        if hca.health.is_dead() {
            found.memory.leak();
            return Ok(());
        }
        destroy(hca, found.core.number).inspect_err(|_| found.memory.leak())
    }

    /// A queue for a queue of a queue pair.
    pub(crate) fn acquire(&self, cq: CqHandle) -> Result<CqUser, DeviceError> {
        let table = self.table();
        let found = table.find(cq.index, cq.generation)?;
        Ok(CqUser { core: found.core.clone(), _user: found.users.clone() })
    }
    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.table().len() > 0
    }
    fn by_number(&self, cqn: u32) -> Option<Arc<CqCore>> {
        self.table().by_number(cqn).map(|c| c.core.clone())
    }
    /// The adapter has an event of the completion queue of this number: it was armed, and something came.
    pub(crate) fn completed(&self, cqn: u32) {
        if let Some(core) = self.by_number(cqn) {
            core.completed();
        }
    }
    /// The completion queue of this number is in error: it has overrun, or its memory can't be reached.
    pub(crate) fn failed(&self, cqn: u32) -> Option<CqHandle> {
        let core = self.by_number(cqn)?;
        core.wake();
        Some(core.handle)
    }
    /// Wakes all waiters, because the adapter is dead.
    pub(crate) fn wake_all(&self) {
        // Without the lock, as above: whoever is woken may destroy one.
        let all: Vec<_> = self.table().iter().map(|c| c.core.clone()).collect();
        all.iter().for_each(|core| core.die());
    }
}

fn destroy(hca: &Hca, number: u32) -> Result<(), DeviceError> {
    hca.exec(&DestroyCqIn::new().with(DestroyCqIn::CQN, number))?;
    Ok(())
}

/// Entries of a queue, at most: of those that it has, one stays free, as stock drivers leave it.
pub(crate) fn max_cqe(caps: &Caps) -> u32 {
    (1 << caps.log_max_cq_sz.min(22)) - 1
}
