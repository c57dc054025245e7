//! Completion queues.
//!
//! One thread polls a queue by its port, and has a copy of its own of which queue pairs complete there, by number. Other
//! threads add and remove queue pairs: `exclusion` says how they do so while the queue is polled.
//!
//! Who removes a queue pair takes what it left in the queue out: no poll that begins later finds it, and what it took from a
//! shared receive queue is given back. For that the poller must be outside, which takes as long as a poll.

use core::task::Waker;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hca_core::{Completion, CqHandle, CqPort, DeviceError, Notify, QpType, WcOpcode, WcStatus};
use hca_prm::command::cq::{CreateCqIn, CreateCqOut, DestroyCqIn};
use hca_prm::{CI_MASK, CqArm, CqDbr, Cqc};
use hca_vfio::mmio::dma_wmb;
use rustix::event::{EventfdFlags, eventfd};

use crate::caps::Caps;
use crate::cqe::{self, CQE_CELLS, Cqe, Kind};
use crate::error::memory;
use crate::exclusion::Exclusion;
use crate::hca::Hca;
use crate::masked::Masked;
use crate::qp::core::QpCore;
use crate::qp::send::{Bell, opcode_of};
use crate::queue::{QueueMemory, in_range};
use crate::shared::{Ring, SharedCells, Word};
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use crate::table::Table;
use crate::uar::Uar;

/// Polls in vain before the CPU is given to others, where the adapter is a process that may wait for it.
const VAIN_POLLS: u32 = 4;

/// A queue pair that completes here.
#[derive(Clone)]
struct Member {
    qp: Arc<QpCore>,
    /// Its send requests complete here.
    sends: bool,
    /// Its receive requests do.
    recvs: bool,
}

/// What the polling side and the control path of a completion queue share.
pub(crate) struct CqCore {
    pub(crate) handle: CqHandle,
    pub(crate) number: u32,
    log_size: u32,
    ring: Ring,
    record: SharedCells,
    /// Its version counts the adapter's death as well.
    members: Exclusion<Vec<Member>>,
    dead: AtomicBool,
    /// Events that came: part of what arms the queue.
    events: AtomicU32,
    waker: Mutex<Option<Waker>>,
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
            waker: Mutex::new(None),
            event: OnceLock::new(),
        }
    }

    /// A queue pair completes here from now on.
    pub(crate) fn add(&self, qp: &Arc<QpCore>, sends: bool, recvs: bool) {
        self.members.change(|members| members.push(Member { qp: qp.clone(), sends, recvs }));
    }

    /// Takes out what a queue pair left here, of which the adapter adds no more; and the queue pair itself, if it is to `stay`
    /// no more. `also` is run while nobody polls. Returned are the requests that it took from a shared receive queue.
    pub(crate) fn remove(&self, qp: &QpCore, stay: bool, also: impl FnOnce()) -> Vec<u64> {
        self.members.exclude(|members| {
            if !stay {
                members.retain(|m| m.qp.handle != qp.handle);
            }
            let shared = self.take_out(qp);
            also();
            shared
        })
    }

    /// Takes out what a queue pair left here. Returned are the requests that it took from a shared receive queue. While nobody polls.
    fn take_out(&self, qp: &QpCore) -> Vec<u64> {
        let mut shared = Vec::new();
        // As many bits as tell the round.
        let taken = u32::from_be(self.record.word32(CqDbr::UPDATE_CI.offset()).load(Ordering::Relaxed));
        for i in 0..1_u32 << self.log_size {
            let Some(cqe) = Cqe::ready(&self.ring, taken.wrapping_add(i), self.log_size) else { break };
            if cqe.qpn() != qp.qpn.raw() {
                continue;
            }
            if let (Kind::Received | Kind::RecvFailed, Some(srq)) = (cqe.kind(), &qp.srq) {
                shared.extend(srq.take(cqe.place()));
            }
            cqe.disown();
        }
        shared
    }

    /// The consumer's counter, as the adapter is told.
    #[cfg(test)]
    pub(crate) fn consumed_as_told(&self) -> u32 {
        self.record_word(CqDbr::UPDATE_CI.offset())
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
    /// The adapter is dead: polls end what is outstanding.
    pub(crate) fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.members.tell();
        self.wake();
    }
    fn wake(&self) {
        if let Some(event) = self.event.get() {
            // A counter that is full is readable as well.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
        // Woken without the lock: whoever is woken may set another one at once.
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A place of the poller's table of queue pairs: open addressing, by number.
struct Seat {
    /// [`NOBODY`]: it is free.
    qpn: u32,
    /// The queue pair, if its send requests complete here.
    sends: Option<Arc<QpCore>>,
    /// The queue pair, if its receive requests do.
    recvs: Option<Arc<QpCore>>,
}

/// No queue pair's number.
const NOBODY: u32 = u32::MAX;

/// The polling side of a completion queue.
pub(crate) struct CqPoller<B> {
    core: Arc<CqCore>,
    ring: Ring,
    /// The doorbell record's counter of entries that were taken.
    record: Word,
    log_size: u32,
    /// Entries that were taken.
    next: u32,
    /// That of `CqCore::members` that `seats` are of.
    version: u32,
    /// At least as many free ones as taken ones.
    seats: Masked<Seat>,
    dead: bool,
    /// The adapter is a process that may wait for this CPU.
    yields: bool,
    vain: u32,
    /// The events there had been when the queue was armed for any completion.
    armed: Option<u32>,
    bell: B,
}

impl<B: Bell> CqPoller<B> {
    pub(crate) fn new(core: Arc<CqCore>, bell: B, yields: bool) -> Self {
        Self {
            ring: core.ring.clone(),
            record: core.record.word(CqDbr::UPDATE_CI.offset()),
            log_size: core.log_size,
            next: 0,
            version: core.members.never_seen(),
            seats: free_seats(1),
            dead: false,
            yields,
            vain: 0,
            armed: None,
            bell,
            core,
        }
    }

    /// Copies the list of queue pairs. While who removes one has the list, this waits.
    #[cold]
    fn look_anew(&mut self) {
        let (version, members) = self.core.members.copy(Clone::clone);
        self.version = version;
        self.dead = self.core.dead.load(Ordering::Relaxed);
        self.seats = free_seats((2 * members.len()).next_power_of_two());
        for Member { qp, sends, recvs } in members {
            let qpn = qp.qpn.raw();
            let mut at = qpn as usize;
            while self.seats.get(at).qpn != NOBODY {
                at += 1;
            }
            let of = |completes: bool| completes.then(|| qp.clone());
            *self.seats.get_mut(at) = Seat { qpn, sends: of(sends), recvs: of(recvs) };
        }
    }

    #[inline(always)]
    fn find(seats: &Masked<Seat>, qpn: u32) -> Option<&Seat> {
        let mut at = qpn as usize;
        loop {
            let seat = seats.get(at);
            if seat.qpn == qpn {
                return Some(seat);
            }
            if seat.qpn == NOBODY {
                return None;
            }
            // There is a free one behind.
            at += 1;
        }
    }

    /// Makes an entry a completion. `None`: it is of no request that is outstanding, as of a queue pair that is gone.
    #[inline(always)]
    fn complete(seats: &Masked<Seat>, cqe: &Cqe<'_>, out: &mut Completion) -> Option<()> {
        let seat = Self::find(seats, cqe.qpn())?;
        match cqe.kind() {
            Kind::Sent => {
                let qp = seat.sends.as_deref()?;
                let noted = qp.send.take(cqe.place())?;
                (out.wr_id, out.qp) = (noted.wr_id, qp.handle);
                cqe.complete_send(opcode_of(noted.tag), out);
                Some(())
            }
            Kind::Received => {
                let qp = seat.recvs.as_deref()?;
                (out.wr_id, out.qp) = (qp.take_recv(cqe.place())?, qp.handle);
                cqe.complete_recv(qp.qp_type == QpType::Ud, out);
                Some(())
            }
            _ => seat.fail(*cqe, out),
        }
    }

    /// Ends what is outstanding on a dead adapter.
    #[cold]
    fn end_all(&self, out: &mut [Completion]) -> usize {
        let mut n = 0;
        let mut end = |qp: &QpCore, wr_id, opcode| {
            failed(&mut out[n], qp, wr_id, WcStatus::Fatal, opcode);
            n += 1;
            n == out.len()
        };
        for Seat { sends, recvs, .. } in self.seats.iter() {
            while let Some(qp) = sends
                && let Some(noted) = qp.send.take_oldest()
            {
                if end(qp, noted.wr_id, opcode_of(noted.tag)) {
                    return n;
                }
            }
            while let Some(qp) = recvs.as_ref().filter(|qp| qp.srq.is_none())
                && let Some(noted) = qp.recv.take_oldest()
            {
                if end(qp, noted.wr_id, WcOpcode::Recv) {
                    return n;
                }
            }
        }
        n
    }
}

fn free_seats(count: usize) -> Masked<Seat> {
    Masked::new((0..count).map(|_| Seat { qpn: NOBODY, sends: None, recvs: None }))
}

impl Seat {
    /// Makes an entry of a request that failed a completion.
    #[cold]
    #[inline(never)]
    fn fail(&self, cqe: Cqe<'_>, out: &mut Completion) -> Option<()> {
        let (qp, wr_id, opcode) = match cqe.kind() {
            Kind::SendFailed => {
                let qp = self.sends.as_deref()?;
                let noted = qp.send.take(cqe.place())?;
                (qp, noted.wr_id, opcode_of(noted.tag))
            }
            Kind::RecvFailed => {
                let qp = self.recvs.as_deref()?;
                (qp, qp.take_recv(cqe.place())?, WcOpcode::Recv)
            }
            _ => return None,
        };
        failed(out, qp, wr_id, cqe.status(), opcode);
        if out.status != WcStatus::WrFlushed {
            tracing::debug!(qp = %qp.qpn, status = %out.status, vendor = cqe.vendor_syndrome(), "a request failed");
        }
        Some(())
    }
}
fn failed(out: &mut Completion, qp: &QpCore, wr_id: u64, status: WcStatus, opcode: WcOpcode) {
    *out = Completion { wr_id, qp: qp.handle, status, opcode, ..Completion::default() };
}

impl<B: Bell> CqPort for CqPoller<B> {
    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if out.is_empty() {
            return 0;
        }
        let inside = loop {
            if let Some(inside) = self.core.members.enter(self.version) {
                break inside;
            }
            self.look_anew();
        };
        let (mut n, first) = (0, self.next);
        let mut next = first;
        while let Some(cqe) = Cqe::ready(&self.ring, next, self.log_size) {
            next = next.wrapping_add(1);
            n += usize::from(Self::complete(&self.seats, &cqe, &mut out[n]).is_some());
            // Not for ever, whatever is written meanwhile.
            if n == out.len() || next.wrapping_sub(first) as usize == self.ring.blocks() {
                break;
            }
        }
        if next != first {
            self.next = next;
            self.vain = 0;
            // Release: entries are read before the adapter is told that they may be written.
            self.record.store((next & CI_MASK).to_be(), Ordering::Release);
        } else {
            if self.dead {
                return self.end_all(out);
            }
            self.vain = self.vain.saturating_add(1);
            if self.yields && self.vain > VAIN_POLLS {
                drop(inside);
                std::thread::yield_now();
            }
        }
        n
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
        let word = (events & 3) << 28 | what.code() << 24 | self.next & CI_MASK;
        core.record.word32(CqDbr::ARM_CI.offset()).store(word.to_be(), Ordering::Release);
        dma_wmb();
        self.bell.arm(u64::from(word) << 32 | u64::from(core.number));
        if self.dead || core.dead.load(Ordering::Relaxed) {
            core.wake();
        }
    }

    fn set_waker(&mut self, waker: &Waker) {
        let mut slot = self.core.waker.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *slot {
            Some(w) => w.clone_from(waker),
            None => *slot = Some(waker.clone()),
        }
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
        in_range("depth", depth, 1, max_cqe(&hca.caps))?;
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
        let inserted = self.table().insert_with(|index, generation| {
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
        let poller = CqPoller::new(core, uar, yields);
        Ok((CqHandle { index, generation }, Box::new(CqOf { poller, _hca: hca.clone() })))
    }

    pub(crate) fn destroy(&self, hca: &Arc<Hca>, cq: CqHandle) -> Result<(), DeviceError> {
        let found = {
            let mut table = self.table();
            let users = Arc::strong_count(&table.find(cq.index, cq.generation)?.users) as u64 - 1;
            if users > 0 {
                return Err(DeviceError::InUse { what: "completion queue", users });
            }
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
    fn by_number(&self, cqn: u32) -> Option<Arc<CqCore>> {
        self.table().iter().find(|c| c.core.number == cqn).map(|c| c.core.clone())
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
    /// The adapter is dead: wakes all who wait.
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

/// The port: the poller, and the adapter that runs as long.
struct CqOf {
    poller: CqPoller<Uar>,
    _hca: Arc<Hca>,
}

impl CqPort for CqOf {
    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.poller.poll(out)
    }
    fn arm(&mut self, notify: Notify) {
        self.poller.arm(notify);
    }
    fn set_waker(&mut self, waker: &Waker) {
        self.poller.set_waker(waker);
    }
    fn wait_fd(&mut self) -> Result<BorrowedFd<'_>, DeviceError> {
        self.poller.wait_fd()
    }
}
