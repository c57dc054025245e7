//! Doorbell pages (UARs).
//!
//! The first page belongs to the event queues: a server traps accesses to it, so the driver accesses it by calls. The
//! other pages are mapped, and spread over the queues.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hca_prm::command::resource::{AllocUarIn, AllocUarOut, DeallocUarIn};
use hca_prm::{BF_REGS, CQ_DOORBELL, UAR_PAGE, bf_buffer};
use hca_vfio::mmio::{Register, doorbell_wmb, wc_flush};
use hca_vfio::{Bar, FunctionError, Mmio, Waker};

use crate::caps::Caps;
use crate::cmd::{CmdError, CommandQueue};
use crate::error::OpenError;
use crate::hca::Hca;
use crate::options::Options;

/// A doorbell page that is mapped. Clones are the same page.
#[derive(Clone)]
pub(crate) struct Uar {
    /// The number, for contexts of queues.
    pub(crate) index: u32,
    /// Of send queues: two that take turns.
    sends: [Register<u64>; 2],
    /// Of completion queues.
    arms: Register<u64>,
    waker: Option<Waker>,
    /// Where whole requests may be written.
    flames: Option<Arc<Flames>>,
    /// A port's page has the adapter run as long as the port is there.
    _hca: Option<Arc<Hca>>,
}

/// A doorbell register that one queue pair has for itself: stores of others would get among the parts of its requests.
#[derive(Debug)]
struct Flames {
    buffers: [Mmio; 2],
    /// Where it is given back: the page, by its place in the list, and which one.
    free: Arc<Mutex<Vec<(usize, usize)>>>,
    at: (usize, usize),
}

impl Drop for Flames {
    fn drop(&mut self) {
        lock(&self.free).push(self.at);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // It is whole between any two of its operations.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Uar {
    /// The page of a port of this adapter.
    pub(crate) fn of_port(self, hca: &Arc<Hca>) -> Self {
        Self { _hca: Some(hca.clone()), ..self }
    }
    /// Rings a send queue's doorbell, one of two that take `turn`s, by the first 8 bytes of an entry. The adapter sees
    /// it in this order, behind all stores to memory before it. Wakes a server that sleeps.
    #[inline(always)]
    pub(crate) fn ring(&self, turn: bool, first: [u8; 8]) {
        doorbell_wmb();
        self.sends[usize::from(turn)].store(u64::from_ne_bytes(first));
        self.wake();
    }
    /// Whether whole requests may be written.
    pub(crate) fn has_flames(&self) -> bool {
        self.flames.is_some()
    }
    /// Rings a send queue's doorbell by all of an entry, which is not longer than this; where that may not be, by its
    /// first 8 bytes.
    pub(crate) fn ring_whole(&self, turn: bool, entry: &[u8; 64]) {
        let Some(flames) = &self.flames else {
            return self.ring(turn, *entry.first_chunk().expect("it is longer"));
        };
        doorbell_wmb();
        flames.buffers[usize::from(turn)].store_64_bytes(0, entry);
        // Before the next one, which goes to the other buffer.
        wc_flush();
        self.wake();
    }
    /// Arms a completion queue, likewise.
    #[inline]
    pub(crate) fn arm(&self, what: [u8; 8]) {
        doorbell_wmb();
        self.arms.store(u64::from_ne_bytes(what));
        self.wake();
    }
    /// Wakes a server that sleeps, where memory says that there is work.
    #[inline(always)]
    pub(crate) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.after_doorbell();
        }
    }
    /// Whether a process serves the adapter, which may wait for this CPU.
    pub(crate) fn is_served(&self) -> bool {
        self.waker.is_some()
    }
}

/// The doorbell page of the event queues.
#[derive(Clone, Debug)]
pub(crate) struct EventUar {
    pub(crate) index: u32,
    bar: Arc<Bar>,
}

impl EventUar {
    /// Takes a page.
    pub(crate) fn open(cmd: &CommandQueue, bar: &Arc<Bar>, name: &str) -> Result<Self, OpenError> {
        Ok(Self { index: take(cmd, name)?, bar: bar.clone() })
    }
    /// Writes 4 bytes.
    pub(crate) fn write(&self, at: u64, value: u32) -> Result<(), FunctionError> {
        doorbell_wmb();
        self.bar.write32_be(u64::from(self.index) * UAR_PAGE as u64 + at, value)
    }
}

fn take(cmd: &CommandQueue, name: &str) -> Result<u32, OpenError> {
    let page = cmd.exec(&AllocUarIn::new()).map(|o| o.get(AllocUarOut::UAR));
    page.map_err(|source| OpenError::Command { name: name.to_owned(), source })
}

/// How doorbell pages are used.
#[derive(Clone, Copy)]
pub(crate) struct Doorbells {
    /// Pages for queues.
    pages: u32,
    /// Bytes of a register, as a power of two.
    log_size: u32,
    blueflame: bool,
}

impl Doorbells {
    pub(crate) fn of(options: &Options, caps: &Caps) -> Self {
        let blueflame = options.blueflame && caps.blueflame && caps.log_bf_reg_size > 6;
        Self { pages: options.uars.max(1), log_size: caps.log_bf_reg_size, blueflame }
    }
    /// Where in a page a register's buffer is.
    fn buffer(self, register: usize, turn: usize) -> usize {
        bf_buffer(register, turn, if self.log_size > 3 { 1 << (self.log_size - 1) } else { 0 })
    }
}

/// All doorbell pages of an adapter.
pub(crate) struct Uars {
    events: EventUar,
    queues: Vec<(Uar, Mmio)>,
    next: AtomicUsize,
    doorbells: Doorbells,
    /// Registers that a queue pair may have for itself, as [`Flames::at`].
    free: Arc<Mutex<Vec<(usize, usize)>>>,
}

impl Uars {
    /// Takes some for queues, beside that of events.
    pub(crate) fn open(
        cmd: &CommandQueue,
        events: EventUar,
        name: &str,
        doorbells: Doorbells,
        waker: Option<Waker>,
    ) -> Result<Self, OpenError> {
        let mut queues = Vec::new();
        let mut free = Vec::new();
        for at in 0..doorbells.pages as usize {
            let index = take(cmd, name)?;
            let page = events.bar.map(u64::from(index) * UAR_PAGE as u64, UAR_PAGE)?;
            let send = |turn| page.register(doorbells.buffer(0, turn));
            let (sends, arms) = ([send(0), send(1)], page.register(CQ_DOORBELL));
            queues.push((Uar { index, sends, arms, waker: waker.clone(), flames: None, _hca: None }, page));
            // The first is everybody's.
            free.extend((1..BF_REGS).filter(|_| doorbells.blueflame).map(|register| (at, register)));
        }
        let free = Arc::new(Mutex::new(free));
        Ok(Self { events, queues, next: AtomicUsize::new(0), doorbells, free })
    }
    /// Gives all back.
    pub(crate) fn close(&self, cmd: &CommandQueue) -> Result<(), CmdError> {
        for index in self.queues.iter().map(|(uar, _)| uar.index).chain([self.events.index]) {
            cmd.exec(&DeallocUarIn::new().with(DeallocUarIn::UAR, index))?;
        }
        Ok(())
    }

    /// The one of the event queues.
    pub(crate) fn events(&self) -> &EventUar {
        &self.events
    }
    /// One for a queue: they take turns.
    pub(crate) fn for_queue(&self) -> Uar {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.queues[turn % self.queues.len()].0.clone()
    }
    /// One for a queue pair: with a register of its own, if it may have one, and one is free.
    pub(crate) fn for_queue_pair(&self) -> Uar {
        let Some(at) = lock(&self.free).pop() else { return self.for_queue() };
        let (uar, page) = &self.queues[at.0];
        let places = [0, 1].map(|turn| self.doorbells.buffer(at.1, turn));
        let buffers = places.map(|place| page.part(place, 64));
        let flames = Some(Arc::new(Flames { buffers, free: self.free.clone(), at }));
        Uar { sends: places.map(|place| page.register(place)), flames, ..uar.clone() }
    }
}
