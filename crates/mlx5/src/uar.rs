//! Doorbell pages (UARs).
//!
//! The first that is taken belongs to the event queues: a server traps accesses of it, so that it is reached by calls.
//! The others are mapped, and spread over the queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hca_prm::command::resource::{AllocUarIn, AllocUarOut, DeallocUarIn};
use hca_prm::{CQ_DOORBELL, UAR_PAGE, bf_buffer};
use hca_vfio::mmio::{Register, doorbell_wmb};
use hca_vfio::{Bar, FunctionError, Waker};

use crate::cmd::{CmdError, CommandQueue};
use crate::error::OpenError;

/// A doorbell page that is mapped. Clones are the same page.
#[derive(Clone, Debug)]
pub(crate) struct Uar {
    /// Its number, for contexts of queues.
    pub(crate) index: u32,
    /// Of send queues: two that take turns.
    sends: [Register<u64>; 2],
    /// Of completion queues.
    arms: Register<u64>,
    waker: Option<Waker>,
}

impl Uar {
    /// Rings a send queue's doorbell, one of two that take `turn`s, by the first 8 bytes of an entry. The adapter sees it in this
    /// order, behind all stores to memory before it. Wakes a server that sleeps.
    #[inline(always)]
    pub(crate) fn ring(&self, turn: bool, first: [u8; 8]) {
        doorbell_wmb();
        self.sends[usize::from(turn)].store(u64::from_ne_bytes(first));
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
    /// Writes 4 bytes.
    pub(crate) fn write(&self, at: u64, value: u32) -> Result<(), FunctionError> {
        doorbell_wmb();
        self.bar.write32_be(u64::from(self.index) * UAR_PAGE as u64 + at, value)
    }
}

/// All doorbell pages of an adapter.
pub(crate) struct Uars {
    events: EventUar,
    queues: Vec<Uar>,
    next: AtomicUsize,
}

impl Uars {
    /// Takes one for events, and `count` for queues, whose send doorbells take turns in registers of 2^`log_bf_reg_size` bytes.
    pub(crate) fn open(
        cmd: &CommandQueue,
        bar: &Arc<Bar>,
        name: &str,
        (count, log_bf_reg_size): (u32, u32),
        waker: Option<Waker>,
    ) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Command { name: name.to_owned(), source };
        let take = || cmd.exec(&AllocUarIn::new()).map(|o| o.get(AllocUarOut::UAR)).map_err(failed);
        let events = EventUar { index: take()?, bar: bar.clone() };
        let mut queues = Vec::new();
        let buffer = if log_bf_reg_size > 3 { 1 << (log_bf_reg_size - 1) } else { 0 };
        for _ in 0..count.max(1) {
            let index = take()?;
            let page = bar.map(u64::from(index) * UAR_PAGE as u64, UAR_PAGE)?;
            let send = |turn| page.register(bf_buffer(0, turn, buffer));
            let (sends, arms) = ([send(0), send(1)], page.register(CQ_DOORBELL));
            queues.push(Uar { index, sends, arms, waker: waker.clone() });
        }
        Ok(Self { events, queues, next: AtomicUsize::new(0) })
    }
    /// Gives all back.
    pub(crate) fn close(&self, cmd: &CommandQueue) -> Result<(), CmdError> {
        for index in self.queues.iter().map(|u| u.index).chain([self.events.index]) {
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
        self.queues[turn % self.queues.len()].clone()
    }
}
