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

use hca_core::{Completion, CqHandle, CqPort, DeviceError, Notify, Qpn, RecvExtra, WcOpcode, WcStatus};
use hca_prm::command::cq::{CreateCqIn, CreateCqOut, DestroyCqIn};
use hca_prm::{CI_MASK, CQ_DOORBELL, CqArm, CqDbr, Cqc};
use hca_vfio::mmio::dma_wmb;
use rustix::event::{EventfdFlags, eventfd};

use crate::caps::Caps;
use crate::cqe::{self, CQE_CELLS, Cqe, Kind};
use crate::exclusion::Exclusion;
use crate::hca::Hca;
use crate::qp::core::QpCore;
use crate::qp::send::{Bell, opcode_of};
use crate::queue::{QueueMemory, in_range};
use crate::shared::SharedCells;
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use crate::table::Table;
use crate::uar::Uar;

/// Polls in vain before the CPU is given to others, where the adapter is a process that may wait for it.
const VAIN_POLLS: u32 = 16;

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
    cells: SharedCells,
    record: SharedCells,
    /// Its version counts the adapter's death as well.
    members: Exclusion<Vec<Member>>,
    dead: AtomicBool,
    /// Entries that were taken. Written by the poller.
    taken: AtomicU32,
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
        assert!(cells.len() >= CQE_CELLS << log_size);
        Self {
            handle,
            number,
            log_size,
            cells,
            record,
            members: Exclusion::new(Vec::new()),
            dead: AtomicBool::new(false),
            taken: AtomicU32::new(0),
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
        let taken = self.taken.load(Ordering::Relaxed);
        for i in 0..1_u32 << self.log_size {
            let Some(cqe) = Cqe::ready(&self.cells, taken.wrapping_add(i), self.log_size) else { break };
            if cqe.qpn() != qp.qpn.raw() {
                continue;
            }
            if let (Kind::Recv, Some(srq)) = (cqe.kind(), &qp.srq) {
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
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake_by_ref();
        }
    }
}

/// A place of the poller's table: open addressing, by number.
type Seat = Option<Member>;

/// The polling side of a completion queue.
pub(crate) struct CqPoller<B> {
    core: Arc<CqCore>,
    bell: B,
    /// Entries that were taken.
    next: u32,
    /// That of `CqCore::members` that `seats` are of.
    version: u32,
    /// A power of two, with at least as many empty as taken.
    seats: Box<[Seat]>,
    dead: bool,
    /// The events there had been when the queue was armed for any completion.
    armed: Option<u32>,
    /// The adapter is a process that may wait for this CPU.
    yields: bool,
    vain: u32,
}

impl<B: Bell> CqPoller<B> {
    pub(crate) fn new(core: Arc<CqCore>, bell: B, yields: bool) -> Self {
        let version = core.members.never_seen();
        Self {
            core,
            bell,
            next: 0,
            version,
            seats: Box::new([None]),
            dead: false,
            armed: None,
            yields,
            vain: 0,
        }
    }

    /// Copies the list of queue pairs. While who removes one has the list, this waits.
    #[cold]
    fn look_anew(&mut self) {
        let (version, members) = self.core.members.copy(Clone::clone);
        self.version = version;
        self.dead = self.core.dead.load(Ordering::Relaxed);
        self.seats = vec![None; (2 * members.len()).next_power_of_two()].into();
        for member in members {
            let mut at = member.qp.qpn.raw() as usize;
            while self.seats[at & (self.seats.len() - 1)].is_some() {
                at += 1;
            }
            self.seats[at & (self.seats.len() - 1)] = Some(member);
        }
    }

    #[inline(always)]
    fn find(seats: &[Seat], qpn: u32) -> Option<&Member> {
        let mask = seats.len() - 1;
        let mut at = qpn as usize;
        loop {
            let member = seats[at & mask].as_ref()?;
            if member.qp.qpn.raw() == qpn {
                return Some(member);
            }
            // There is an empty one behind.
            at += 1;
        }
    }

    /// Makes an entry a completion. `false`: it is of no request that is outstanding, as of a queue pair that is gone.
    #[inline(always)]
    fn complete(seats: &[Seat], cqe: &Cqe<'_>, out: &mut Completion) -> bool {
        let Some(Member { qp, sends, recvs }) = Self::find(seats, cqe.qpn()) else { return false };
        let opcode = match cqe.kind() {
            Kind::Send if *sends => {
                let Some(noted) = qp.send.take(cqe.place()) else { return false };
                out.wr_id = noted.wr_id;
                let opcode = opcode_of(noted.tag);
                if !cqe.is_error() {
                    cqe.complete_send(opcode, out);
                }
                opcode
            }
            Kind::Recv if *recvs => {
                let wr_id = match &qp.srq {
                    None => qp.recv.take(cqe.place()).map(|noted| noted.wr_id),
                    Some(srq) => srq.take(cqe.place()),
                };
                let Some(wr_id) = wr_id else { return false };
                out.wr_id = wr_id;
                if !cqe.is_error() {
                    cqe.complete_recv(out);
                }
                WcOpcode::Recv
            }
            _ => return false,
        };
        out.qp = qp.handle;
        if cqe.is_error() {
            failed(out, cqe.status(), opcode);
            if out.status != WcStatus::WrFlushed {
                tracing::debug!(qp = %qp.qpn, status = %out.status, vendor = cqe.vendor_syndrome(), "a request failed");
            }
        }
        true
    }

    /// Ends what is outstanding on a dead adapter.
    #[cold]
    fn end_all(&self, out: &mut [Completion]) -> usize {
        let mut n = 0;
        for Member { qp, sends, recvs } in self.seats.iter().flatten() {
            let mut end = |wr_id, opcode| {
                out[n].wr_id = wr_id;
                out[n].qp = qp.handle;
                failed(&mut out[n], WcStatus::Fatal, opcode);
                n += 1;
                n == out.len()
            };
            while *sends && let Some(noted) = qp.send.take_oldest() {
                if end(noted.wr_id, opcode_of(noted.tag)) {
                    return n;
                }
            }
            while *recvs
                && qp.srq.is_none()
                && let Some(noted) = qp.recv.take_oldest()
            {
                if end(noted.wr_id, WcOpcode::Recv) {
                    return n;
                }
            }
        }
        n
    }
}

/// Fills in what a request that failed tells.
fn failed(out: &mut Completion, status: WcStatus, opcode: WcOpcode) {
    out.status = status;
    out.opcode = opcode;
    out.byte_len = 0;
    out.extra = RecvExtra::None;
    out.src_qp = Qpn::new(0);
    out.grh = false;
    out.solicited = false;
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
        let core = &*self.core;
        let (mut n, first) = (0, self.next);
        let end = first.wrapping_add(1 << core.log_size);
        while n < out.len() && self.next != end {
            let Some(cqe) = Cqe::ready(&core.cells, self.next, core.log_size) else { break };
            self.next = self.next.wrapping_add(1);
            n += usize::from(Self::complete(&self.seats, &cqe, &mut out[n]));
        }
        if self.next != first {
            self.vain = 0;
            core.taken.store(self.next, Ordering::Relaxed);
            // Entries are read before the adapter is told that they may be written.
            core.record
                .word32(CqDbr::UPDATE_CI.offset())
                .store((self.next & CI_MASK).to_be(), Ordering::Release);
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
        self.bell.ring(CQ_DOORBELL, u64::from(word) << 32 | u64::from(core.number));
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
        let memory = QueueMemory::alloc(hca, CQE_CELLS << log_size)?;
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
        self.table().iter().for_each(|c| c.core.die());
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
