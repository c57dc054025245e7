//! Shared receive queues of the adapter.
//!
//! The adapter follows a list: each entry names the next one. Queue pairs take entries, which complete in any order and
//! on any completion queue; a place whose request has ended is free for another request. The poster names an entry's
//! successor when it writes the entry, so the list needs one place more than it has requests: the place at which it
//! ends.
//!
//! Free places are a stack: pollers push to it, and the poster takes it as a whole, so that no ABA arises. The thread
//! that changes a place's word from full to empty frees the place: once, for any contents of completions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hca_core::{DeviceError, PdHandle, PostError, PostErrorKind, RecvPort, RecvWr, Sge, SrqHandle, SrqInit};
use hca_prm::command::srq::{CreateRmpIn, CreateRmpOut, DestroyRmpIn, ModifyRmpIn};
use hca_prm::{RmpState, Rmpc, Wq, WqType};
use hca_vfio::mmio::dma_wmb;

use crate::caps::Caps;
use crate::error::memory;
use crate::hca::Hca;
use crate::qp::send::Bell;
use crate::qp::wqe;
use crate::queue::QueueMemory;
use crate::shared::{CELL, SharedCells, Word, set_rows};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, CachePadded, Ordering};
use crate::table::Table;

/// Cells of an entry before its list.
const HEAD_CELLS: usize = 1;

struct Place {
    /// Not 0: a request is there.
    full: AtomicU32,
    wr_id: AtomicU64,
    /// The next free place plus one; 0 ends the list.
    next_free: AtomicU32,
}

/// The state that the posting and polling sides of a shared receive queue share.
pub(crate) struct SrqCore {
    pub(crate) handle: SrqHandle,
    pub(crate) number: u32,
    places: Box<[Place]>,
    /// Places that became free: the first plus one, or 0.
    freed: CachePadded<AtomicU32>,
    gone: AtomicBool,
}

impl SrqCore {
    /// A queue of at most `depth` requests. Place 0 is the poster's first.
    pub(crate) fn new(handle: SrqHandle, number: u32, depth: u32) -> Self {
        let next = |i: u32| if i == 0 || i == depth { 0 } else { i + 2 };
        let place = |i: u32| Place {
            full: AtomicU32::new(0),
            wr_id: AtomicU64::new(0),
            next_free: AtomicU32::new(next(i)),
        };
        Self {
            handle,
            number,
            places: (0..=depth).map(place).collect(),
            freed: CachePadded::new(AtomicU32::new(0)),
            gone: AtomicBool::new(false),
        }
    }

    /// The request at a place has ended. `None`: none is there.
    #[inline]
    pub(crate) fn take(&self, at: u16) -> Option<u64> {
        let place = self.places.get(usize::from(at))?;
        // Acquire: pairs with the Release in `SrqQueue::push`.
        if place.full.swap(0, Ordering::Acquire) == 0 {
            return None;
        }
        let wr_id = place.wr_id.load(Ordering::Relaxed);
        let mut first = self.freed.load(Ordering::Relaxed);
        loop {
            place.next_free.store(first, Ordering::Relaxed);
            // Release: pairs with the Acquire in `SrqQueue::pop`.
            let pushed = self.freed.compare_exchange_weak(
                first,
                u32::from(at) + 1,
                Ordering::Release,
                Ordering::Relaxed,
            );
            match pushed {
                Ok(_) => return Some(wr_id),
                Err(now) => first = now,
            }
        }
    }
}

/// A shared receive queue's posting side.
pub(crate) struct SrqQueue<B> {
    core: Arc<SrqCore>,
    ring: SharedCells,
    /// The doorbell record's counter.
    record: Word,
    /// Cells of an entry.
    stride: usize,
    max_sge: u32,
    depth: u32,
    /// The place of the next request, which the entry before names.
    next: u32,
    /// Places that are free beside that one: the first plus one, or 0.
    free: u32,
    posted: u16,
    told: u16,
    /// The last, as it may hold the adapter.
    bell: B,
}

impl<B: Bell> SrqQueue<B> {
    pub(crate) fn new(
        core: Arc<SrqCore>,
        ring: SharedCells,
        record: SharedCells,
        bell: B,
        stride: usize,
        max_sge: u32,
    ) -> Self {
        let depth = core.places.len() as u32 - 1;
        assert!(
            depth > 0 && core.places.len() * stride <= ring.len() && max_sge as usize + HEAD_CELLS <= stride
        );
        let record = record.word(0);
        // All but place 0 are free, each naming the next.
        Self { core, ring, record, bell, stride, max_sge, depth, next: 0, free: 2, posted: 0, told: 0 }
    }

    /// A free place.
    #[inline]
    fn pop(&mut self) -> Option<u32> {
        if self.free == 0 {
            // Acquire: pairs with the Release in `SrqCore::take`.
            self.free = self.core.freed.swap(0, Ordering::Acquire);
        }
        let at = self.free.checked_sub(1)?;
        self.free = self.core.places[at as usize].next_free.load(Ordering::Relaxed);
        Some(at)
    }

    fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostErrorKind> {
        if self.core.gone.load(Ordering::Relaxed) {
            return Err(PostErrorKind::Destroyed);
        }
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostErrorKind::too_many_sges(wr.sges.len(), self.max_sge));
        }
        let behind = self.pop().ok_or(PostErrorKind::QueueFull { depth: self.depth })?;
        self.write(self.next, behind, wr.sges);
        let place = &self.core.places[self.next as usize];
        place.wr_id.store(wr.wr_id, Ordering::Relaxed);
        // Release: pairs with the Acquire in `SrqCore::take`.
        place.full.store(1, Ordering::Release);
        self.next = behind;
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }

    fn write(&self, at: u32, behind: u32, sges: &[Sge]) {
        let at = at as usize * self.stride;
        let cells = &self.ring[at..at + self.stride];
        set_rows(&cells[0][0], u64::from(behind) << 32);
        wqe::write_list(&cells[HEAD_CELLS..], sges);
    }

    fn ring_doorbell(&mut self) {
        self.told = self.posted;
        dma_wmb();
        self.record.store(u32::from(self.posted).to_be(), Ordering::Relaxed);
        self.bell.nudge();
    }
}

#[allow(unsafe_code)] // the port's contract is the trait's; nothing unsafe is done here
// SAFETY: (1) a list is written into the ring as the adapter reads it. (2) A refusal comes before a place is taken and
// told. (3) A place is given back by who finds it full, once; the adapter is done with what it completes.
unsafe impl<B: Bell> RecvPort for SrqQueue<B> {
    unsafe fn post(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        for (accepted, wr) in wrs.iter().enumerate() {
            self.push(wr).map_err(|kind| PostError { accepted, kind })?;
        }
        Ok(())
    }
    fn ring(&mut self) {
        if self.told != self.posted {
            self.ring_doorbell();
        }
    }
}

/// A shared receive queue, as the control path has it.
struct Srq {
    core: Arc<SrqCore>,
    pd: PdHandle,
    pdn: u32,
    depth: u32,
    memory: SharedCells,
    /// Each queue pair that takes from it holds a clone.
    users: Arc<()>,
}

/// A queue pair's hold on its shared receive queue.
pub(crate) struct SrqUser {
    pub(crate) core: Arc<SrqCore>,
    _user: Arc<()>,
}

/// All shared receive queues.
pub(crate) struct Srqs(Mutex<Table<Srq>>);

impl Srqs {
    pub(crate) fn new(caps: &Caps) -> Self {
        Self(Mutex::new(Table::new("shared receive queue", 1 << caps.log_max_srq.min(24))))
    }
    fn table(&self) -> MutexGuard<'_, Table<Srq>> {
        // It is whole between any two of its operations.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn create(
        &self,
        hca: &Arc<Hca>,
        pd: PdHandle,
        init: &SrqInit,
    ) -> Result<(SrqHandle, Box<dyn RecvPort>), DeviceError> {
        DeviceError::unless_within("max_wr", init.max_wr, 1, max_wr(&hca.caps))?;
        DeviceError::unless_within("max_sge", init.max_sge, 0, max_sge(&hca.caps))?;
        hca.check_alive()?;
        self.table().check_room()?;
        hca.pds.hold(pd, |pdn| self.make(hca, pd, pdn, init))
    }

    fn make(
        &self,
        hca: &Arc<Hca>,
        pd: PdHandle,
        pdn: u32,
        init: &SrqInit,
    ) -> Result<(SrqHandle, Box<dyn RecvPort>), DeviceError> {
        let stride = (init.max_sge as usize + HEAD_CELLS).next_power_of_two().max(2);
        let places = (init.max_wr + 1).next_power_of_two();
        let memory = QueueMemory::alloc(hca.arena(), places as usize * stride).map_err(memory)?;
        let uar = hca.uars.for_queue();
        let wq = Wq::new()
            .with(Wq::WQ_TYPE, WqType::LinkedList.code())
            .with(Wq::PD, pdn)
            .with(Wq::DBR_ADDR, memory.record_iova)
            .with(Wq::LOG_WQ_STRIDE, (stride * CELL).trailing_zeros())
            .with(Wq::LOG_WQ_PG_SZ, memory.log_page_size)
            .with(Wq::LOG_WQ_SZ, places.trailing_zeros());
        let context = Rmpc::new().with(Rmpc::STATE, RmpState::Rdy.code()).with(Rmpc::WQ, wq);
        let input = CreateRmpIn::new().with(CreateRmpIn::CTX, context);
        let number = hca.exec_with(&input, &memory.pages, &mut [])?.get(CreateRmpOut::RMPN);
        hca.hear_of_former();
        let mut core = None;
        let inserted = self.table().insert_numbered(number, |index, generation| {
            let made = Arc::new(SrqCore::new(SrqHandle { index, generation }, number, init.max_wr));
            core = Some(made.clone());
            let memory = memory.cells.clone();
            Srq { core: made, pd, pdn, depth: init.max_wr, memory, users: Arc::default() }
        });
        if let Err(e) = inserted {
            destroy(hca, number)?;
            return Err(e);
        }
        let core = core.expect("it was inserted");
        let handle = core.handle;
        let uar = uar.of_port(hca);
        let queue = SrqQueue::new(core, memory.cells, memory.record, uar, stride, init.max_sge);
        Ok((handle, Box::new(queue)))
    }

    pub(crate) fn set_limit(&self, hca: &Arc<Hca>, srq: SrqHandle, limit: u32) -> Result<(), DeviceError> {
        let (number, depth) = {
            let table = self.table();
            let found = table.find(srq.index, srq.generation)?;
            (found.core.number, found.depth)
        };
        DeviceError::unless_within("limit", limit, 0, depth)?;
        let context = Rmpc::new()
            .with(Rmpc::STATE, RmpState::Rdy.code())
            .with(Rmpc::WQ, Wq::new().with(Wq::LWM, limit));
        let input = ModifyRmpIn::new()
            .with(ModifyRmpIn::RMP_STATE, RmpState::Rdy.code())
            .with(ModifyRmpIn::RMPN, number)
            .with(ModifyRmpIn::LWM, true)
            .with(ModifyRmpIn::CTX, context);
        hca.exec(&input)?;
        Ok(())
    }

    pub(crate) fn destroy(&self, hca: &Arc<Hca>, srq: SrqHandle) -> Result<(), DeviceError> {
        let found = {
            let mut table = self.table();
            let users = Arc::strong_count(&table.find(srq.index, srq.generation)?.users) as u64 - 1;
            DeviceError::unless_unused("shared receive queue", users)?;
            table.remove(srq.index, srq.generation)?
        };
        found.core.gone.store(true, Ordering::Relaxed);
        hca.pds.release(found.pd);
        if hca.health.is_dead() {
            found.memory.leak();
            return Ok(());
        }
        destroy(hca, found.core.number).inspect_err(|_| found.memory.leak())
    }

    /// A queue for a queue pair of a domain.
    pub(crate) fn acquire(&self, srq: SrqHandle, pdn: u32) -> Result<SrqUser, DeviceError> {
        let table = self.table();
        let found = table.find(srq.index, srq.generation)?;
        if found.pdn != pdn {
            return Err(DeviceError::ForeignPd { what: "shared receive queue" });
        }
        Ok(SrqUser { core: found.core.clone(), _user: found.users.clone() })
    }
    /// The shared receive queue of this number, for events.
    pub(crate) fn by_number(&self, srqn: u32) -> Option<SrqHandle> {
        self.table().by_number(srqn).map(|s| s.core.handle)
    }
}

fn destroy(hca: &Hca, number: u32) -> Result<(), DeviceError> {
    hca.exec(&DestroyRmpIn::new().with(DestroyRmpIn::RMPN, number))?;
    Ok(())
}

/// Requests of a queue, at most: places have 16 bits.
pub(crate) fn max_wr(caps: &Caps) -> u32 {
    (1 << caps.log_max_srq_sz.min(15)) - 1
}
/// Entries of a list, at most.
pub(crate) fn max_sge(caps: &Caps) -> u32 {
    (caps.max_wqe_sz_rq / CELL as u32).saturating_sub(HEAD_CELLS as u32).min(wqe::MAX_SGE)
}
