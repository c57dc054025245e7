//! The receive queue of a queue pair.

use std::sync::Arc;

use hca_core::{PostError, PostErrorKind, RecvPort, RecvWr};
use hca_vfio::mmio::dma_wmb;

use super::core::{Counter, QpCore};
use super::send::Bell;
use super::shadow::Noted;
use super::wqe;
use crate::shared::{SharedCells, Word};
use crate::sync::Ordering;

/// A receive queue's posting side.
pub(crate) struct RecvQueue<B> {
    qp: Arc<QpCore>,
    ring: SharedCells,
    /// The doorbell record's counter.
    record: Word,
    /// Cells of an entry.
    stride: usize,
    /// Entries of the ring, less one.
    mask: usize,
    depth: u32,
    max_sge: u32,
    /// The next entry, and up to which the adapter was told.
    next: u16,
    told: u16,
    posted: u32,
    freed: u32,
    epoch: u32,
    /// The last, as it may hold the adapter.
    bell: B,
}

impl<B: Bell> RecvQueue<B> {
    /// The queue of a queue pair, in `ring`, of entries of `stride` cells.
    pub(crate) fn new(
        qp: Arc<QpCore>,
        ring: SharedCells,
        bell: B,
        stride: usize,
        depth: u32,
        max_sge: u32,
    ) -> Self {
        let entries = ring.len() / stride;
        assert!(entries.is_power_of_two() && depth as usize <= entries && max_sge as usize <= stride);
        let (epoch, posted) = (qp.life().epoch(), qp.recv.oldest());
        let mask = entries - 1;
        let record = qp.record(Counter::Recv);
        Self {
            qp,
            ring,
            bell,
            record,
            stride,
            mask,
            depth,
            max_sge,
            next: 0,
            told: 0,
            posted,
            freed: posted,
            epoch,
        }
    }

    #[cold]
    fn look_at_state(&mut self) -> Result<(), PostErrorKind> {
        let life = self.qp.life();
        if life.epoch() != self.epoch {
            self.epoch = life.epoch();
            (self.next, self.told) = (0, 0);
            self.freed = self.qp.recv.oldest();
            self.posted = self.freed;
        }
        if life.takes_recvs() {
            return Ok(());
        }
        Err(life.state().map_or(PostErrorKind::Destroyed, PostErrorKind::WrongState))
    }

    #[inline(always)]
    fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostErrorKind> {
        let life = self.qp.life();
        if !life.takes_recvs() || life.epoch() != self.epoch {
            self.look_at_state()?;
        }
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostErrorKind::too_many_sges(wr.sges.len(), self.max_sge));
        }
        if self.posted.wrapping_sub(self.freed) >= self.depth {
            self.freed = self.qp.recv.oldest();
            if self.posted.wrapping_sub(self.freed) >= self.depth {
                return Err(PostErrorKind::QueueFull { depth: self.depth });
            }
        }
        let at = (usize::from(self.next) & self.mask) * self.stride;
        wqe::write_list(&self.ring[at..at + self.stride], wr.sges);
        self.qp.recv.note(self.posted, self.next, 1, Noted { wr_id: wr.wr_id, tag: 0 });
        self.posted = self.posted.wrapping_add(1);
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    #[inline(always)]
    fn ring_doorbell(&mut self) {
        self.told = self.next;
        dma_wmb();
        self.record.store(u32::from(self.next).to_be(), Ordering::Relaxed);
        // An adapter in software that sleeps would not see it, and a queue pair in error has to flush it.
        self.bell.nudge();
    }
}

#[allow(unsafe_code)] // the port's contract is the trait's; nothing unsafe is done here
// SAFETY: (1) a list is written into the ring as the adapter reads it. (2) A refusal comes before the request is noted
// and told. (3) Adapters complete a queue's requests in order, and the shadow ends with one all that were noted before.
unsafe impl<B: Bell> RecvPort for RecvQueue<B> {
    #[inline]
    unsafe fn post(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        for (accepted, wr) in wrs.iter().enumerate() {
            self.push(wr).map_err(|kind| PostError { accepted, kind })?;
        }
        Ok(())
    }
    #[inline]
    fn ring(&mut self) {
        let life = self.qp.life();
        // What a reset has forgotten is not told.
        if self.told != self.next && life.takes_recvs() && life.epoch() == self.epoch {
            self.ring_doorbell();
        }
    }
    #[inline]
    unsafe fn post_now(&mut self, wr: &RecvWr<'_>) -> Result<(), PostErrorKind> {
        self.push(wr)?;
        self.ring_doorbell();
        Ok(())
    }
}
