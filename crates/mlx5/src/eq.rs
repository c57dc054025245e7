//! Event queues, by which the adapter sends reports.
//!
//! There are three queues: for finished commands and requests for pages, for all other asynchronous events, and for
//! armed completion queues. The driver's thread takes events, writes the consumer index to the adapter, and arms the
//! queue again; events that arrived in between then raise the interrupt at once.

use std::sync::atomic::Ordering;

use hca_prm::command::eq::{CreateEqIn, CreateEqOut, DestroyEqIn};
use hca_prm::{CI_MASK, EQ_ARM, EQ_CI, EqDoorbell, Eqc, Eqe, EventType, pas};
use hca_vfio::mmio::dma_rmb;
use hca_vfio::{DmaArena, DmaBuf, DmaError, FunctionError};

use crate::cmd::{CmdError, CommandQueue};
use crate::uar::EventUar;

/// Bytes of a page of a queue.
const PAGE: usize = 4096;
/// Events that are taken before the adapter is told how far.
const BUDGET: u32 = 128;

/// An event queue.
pub(crate) struct Eq {
    eqn: u32,
    buf: DmaBuf,
    log_size: u32,
    /// Events taken, counted without end.
    taken: u32,
    uar: EventUar,
}

/// An error of making an event queue.
pub(crate) enum EqError {
    Memory(DmaError),
    Command(CmdError),
}

impl Eq {
    /// A queue of 2^`log_size` events of these types, which interrupts by vector `vector`.
    pub(crate) fn create(
        cmd: &CommandQueue,
        arena: &DmaArena,
        uar: &EventUar,
        log_size: u32,
        vector: u32,
        types: &[EventType],
    ) -> Result<Self, EqError> {
        let bytes = Eqe::SIZE << log_size;
        let buf = arena.alloc(bytes, PAGE).map_err(EqError::Memory)?;
        let fresh = Eqe::new().with(Eqe::OWNER, true);
        for i in 0..1 << log_size {
            buf.store(i * Eqe::SIZE, fresh.as_bytes());
        }
        let context = Eqc::new()
            .with(Eqc::LOG_EQ_SIZE, log_size)
            .with(Eqc::UAR_PAGE, uar.index)
            .with(Eqc::INTR, vector)
            .with(Eqc::LOG_PAGE_SIZE, PAGE.ilog2() - 12);
        let mut mask = [0; 4];
        for event in types {
            for (all, one) in mask.iter_mut().zip(event.mask()) {
                *all |= one;
            }
        }
        let input = CreateEqIn::new()
            .with(CreateEqIn::EQ_CONTEXT_ENTRY, context)
            .with(CreateEqIn::EVENT_BITMASK, mask);
        let pages: Vec<u64> = (0..buf.len() / PAGE).map(|i| buf.iova().0 + (i * PAGE) as u64).collect();
        let mut list = vec![0; pages.len() * pas::ENTRY];
        pas::write(&pages, &mut list).expect("the list has room for all of them");
        match cmd.exec_with(&input, &list, &mut []) {
            Ok(out) => {
                let eqn = out.get(CreateEqOut::EQ_NUMBER);
                Ok(Self { eqn, buf, log_size, taken: 0, uar: uar.clone() })
            }
            Err(e) => {
                if !matches!(e, CmdError::Refused { .. }) {
                    // Nobody knows whether the adapter has it.
                    buf.leak();
                }
                Err(EqError::Command(e))
            }
        }
    }

    /// The number, which completion queues name.
    pub(crate) fn number(&self) -> u32 {
        self.eqn
    }

    /// Takes the next event.
    pub(crate) fn take(&mut self) -> Result<Option<Eqe>, FunctionError> {
        let at = (self.taken & ((1 << self.log_size) - 1)) as usize * Eqe::SIZE;
        let word = self.buf.word32(at + Eqe::OWNER.offset()).load(Ordering::Acquire);
        // What stands there is big-endian.
        if Eqe::OWNER.of_row(u32::from_be(word)) != Eqe::sw_owner(self.taken, self.log_size) {
            return Ok(None);
        }
        dma_rmb();
        let mut event = Eqe::new();
        self.buf.load(at, event.as_bytes_mut());
        self.taken = self.taken.wrapping_add(1);
        if self.taken.is_multiple_of(BUDGET) {
            self.ring_doorbell(EQ_CI)?;
        }
        Ok(Some(event))
    }

    /// Tells the adapter how far events were taken, and has it interrupt at the next one.
    pub(crate) fn arm(&self) -> Result<(), FunctionError> {
        self.ring_doorbell(EQ_ARM)
    }
    fn ring_doorbell(&self, at: usize) -> Result<(), FunctionError> {
        let word =
            EqDoorbell::new().with(EqDoorbell::EQN, self.eqn).with(EqDoorbell::CI, self.taken & CI_MASK);
        self.uar.write(at as u64, u32::from_be_bytes(*word.as_bytes()))
    }

    /// Takes it away from the adapter.
    pub(crate) fn destroy(self, cmd: &CommandQueue) -> Result<(), CmdError> {
        let gone = cmd.exec(&DestroyEqIn::new().with(DestroyEqIn::EQ_NUMBER, self.eqn));
        if gone.is_err() {
            // The adapter may still write it.
            self.buf.leak();
        }
        gone.map(drop)
    }
}
