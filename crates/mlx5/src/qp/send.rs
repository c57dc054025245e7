//! The send queue.

use std::sync::Arc;

use hca_core::{
    MAX_MESSAGE_BYTES, Payload, PostError, PostErrorKind, QpType, SendOp, SendPort, SendWr, WcOpcode,
};
use hca_prm::BF_OFFSET;
use hca_vfio::mmio::dma_wmb;

use super::core::{Counter, QpCore};
use super::shadow::Noted;
use super::wqe::{self, UdTo};
use crate::ah::AhTable;
use crate::shared::SharedCells;
use crate::sync::Ordering;
use crate::uar::Uar;

/// A doorbell page.
pub(crate) trait Bell: Send {
    /// Writes a doorbell of 8 bytes, behind all stores before it.
    fn ring(&self, at: usize, value: u64);
    /// Has who serves the adapter look at what memory says, where it might sleep.
    fn nudge(&self);
}

impl Bell for Uar {
    #[inline(always)]
    fn ring(&self, at: usize, value: u64) {
        Uar::ring(self, at, value.to_be_bytes());
    }
    #[inline(always)]
    fn nudge(&self) {
        self.wake();
    }
}

/// What a send queue is created with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    /// Requests that are outstanding at most. A ring has room for as many of the longest.
    pub(crate) depth: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    /// The longest message.
    pub(crate) max_message: u64,
}

/// A send queue's posting side.
pub(crate) struct SendQueue<B> {
    qp: Arc<QpCore>,
    /// Of which the queue pair's protection domain is the first.
    ahs: Arc<AhTable>,
    pd: u32,
    ring: SharedCells,
    bell: B,
    limits: SendLimits,
    /// The doorbell to be written next, of two that take turns.
    slot: usize,
    /// The next block, and up to which the adapter was told.
    next: u16,
    told: u16,
    /// Requests that were posted, and that have ended as last seen.
    posted: u32,
    freed: u32,
    /// The last entry's first 8 bytes.
    first: u64,
    epoch: u32,
}

impl<B: Bell> SendQueue<B> {
    /// The queue of a queue pair, whose blocks are `ring`.
    pub(crate) fn new(
        qp: Arc<QpCore>,
        ahs: Arc<AhTable>,
        pd: u32,
        ring: SharedCells,
        bell: B,
        limits: SendLimits,
    ) -> Self {
        assert!(ring.len().is_power_of_two(), "{} cells", ring.len());
        let epoch = qp.life().epoch();
        let (posted, freed) = (qp.send.posted(), qp.send.freed());
        Self {
            qp,
            ahs,
            pd,
            ring,
            bell,
            limits,
            slot: BF_OFFSET,
            next: 0,
            told: 0,
            posted,
            freed,
            first: 0,
            epoch,
        }
    }

    /// Checks a request against the queue pair's limits.
    #[inline(always)]
    fn check(&self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        let qp_type = self.qp.qp_type;
        let is_ud = qp_type == QpType::Ud;
        if qp_type != QpType::Rc {
            offers(qp_type, &wr.op)?;
        }
        if wr.dest.is_some() != is_ud {
            return Err(PostErrorKind::Destination);
        }
        let len = match wr.payload {
            Payload::Sges(&[one]) if self.limits.max_sge > 0 => one.len.into(),
            Payload::Sges(list) if list.len() <= self.limits.max_sge as usize => {
                list.iter().map(|s| u64::from(s.len)).sum()
            }
            Payload::Sges(list) => {
                return Err(PostErrorKind::TooManySges { count: list.len(), max: self.limits.max_sge });
            }
            Payload::Inline(_) if wr.op.is_read_or_atomic() => {
                return Err(PostErrorKind::Unsupported { qp_type, op: "inline data with READ or atomics" });
            }
            Payload::Inline(bytes) if bytes.len() <= self.limits.max_inline as usize => bytes.len() as u64,
            Payload::Inline(bytes) => {
                return Err(PostErrorKind::InlineTooLong { len: bytes.len(), max: self.limits.max_inline });
            }
        };
        if len > self.limits.max_message {
            return Err(PostErrorKind::MessageTooLong { len, max: self.limits.max_message });
        }
        if len != 8 && matches!(wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) {
            return Err(PostErrorKind::AtomicLength { len });
        }
        Ok(())
    }

    /// Why nothing is taken in this state; or, after a reset, begins anew.
    #[cold]
    fn look_at_state(&mut self) -> Result<(), PostErrorKind> {
        let life = self.qp.life();
        if life.epoch() != self.epoch {
            self.epoch = life.epoch();
            (self.next, self.told) = (0, 0);
            (self.posted, self.freed) = (self.qp.send.posted(), self.qp.send.freed());
        }
        if life.takes_sends() {
            return Ok(());
        }
        Err(life.state().map_or(PostErrorKind::Destroyed, PostErrorKind::WrongState))
    }

    /// Makes a request an entry of the queue.
    #[inline(always)]
    fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        let life = self.qp.life();
        if !life.takes_sends() || life.epoch() != self.epoch {
            self.look_at_state()?;
        }
        self.check(wr)?;
        if self.posted.wrapping_sub(self.freed) >= self.limits.depth {
            self.freed = self.qp.send.freed();
            if self.posted.wrapping_sub(self.freed) >= self.limits.depth {
                return Err(PostErrorKind::QueueFull { depth: self.limits.depth });
            }
        }
        let qpn = self.qp.qpn.raw();
        let written = match &wr.dest {
            None => wqe::write(&self.ring, self.next, qpn, wr, None),
            Some(dest) => {
                let address = self.ahs.address(dest.ah, self.pd).ok_or(PostErrorKind::AddressHandle)?;
                let to = UdTo { address, qpn: dest.qpn.raw(), qkey: dest.qkey.raw() };
                self.write_datagram(wr, &to)
            }
        };
        let noted = Noted { wr_id: wr.wr_id, tag: wr.op.wc_opcode() as u8 };
        self.qp.send.note(self.posted, self.next, written.blocks as u8, noted);
        self.posted = self.posted.wrapping_add(1);
        self.next = self.next.wrapping_add(written.blocks);
        self.first = written.bell;
        Ok(())
    }
    #[inline(never)]
    fn write_datagram(&self, wr: &SendWr<'_>, to: &UdTo) -> wqe::Written {
        wqe::write(&self.ring, self.next, self.qp.qpn.raw(), wr, Some(to))
    }

    /// Tells the adapter.
    #[inline(always)]
    fn tell(&mut self) {
        self.told = self.next;
        // Entries before the record, the record before the doorbell.
        dma_wmb();
        self.qp.record(Counter::Send).store(u32::from(self.next).to_be(), Ordering::Relaxed);
        self.bell.ring(self.slot, self.first);
        self.slot ^= DOORBELLS;
    }
}

/// Bytes from one doorbell to the other.
const DOORBELLS: usize = 0x100;

/// The operation of a note.
#[inline(always)]
pub(crate) fn opcode_of(tag: u8) -> WcOpcode {
    use WcOpcode::{CompSwap, FetchAdd, RdmaRead, RdmaWrite, Send};
    const ALL: [WcOpcode; 8] = [Send, RdmaWrite, RdmaRead, CompSwap, FetchAdd, Send, Send, Send];
    ALL[usize::from(tag & 7)]
}

/// Whether a service that is not RC offers an operation.
fn offers(qp_type: QpType, op: &SendOp) -> Result<(), PostErrorKind> {
    let uc = qp_type == QpType::Uc;
    let name = match op {
        SendOp::Send | SendOp::SendImm(_) => return Ok(()),
        SendOp::Write(_) | SendOp::WriteImm(..) if uc => return Ok(()),
        SendOp::SendInv(_) => "SEND with invalidate",
        SendOp::Write(_) => "RDMA WRITE",
        SendOp::WriteImm(..) => "RDMA WRITE with immediate",
        SendOp::Read(_) => "RDMA READ",
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => "atomics",
    };
    Err(PostErrorKind::Unsupported { qp_type, op: name })
}

/// The longest message of a service, where the adapter carries 2^`log_max` bytes.
pub(crate) fn max_message(qp_type: QpType, log_max: u32, mtu_bytes: u32) -> u64 {
    if qp_type == QpType::Ud { mtu_bytes.into() } else { MAX_MESSAGE_BYTES.min(1 << log_max) }
}

#[allow(unsafe_code)] // the port's contract is the trait's; nothing unsafe is done here
impl<B: Bell> SendPort for SendQueue<B> {
    #[inline]
    unsafe fn post(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        for (accepted, wr) in wrs.iter().enumerate() {
            self.push(wr).map_err(|kind| PostError { accepted, kind })?;
        }
        Ok(())
    }
    #[inline]
    fn ring(&mut self) {
        if self.told != self.next {
            self.tell();
        }
    }
    #[inline]
    unsafe fn post_now(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        self.push(wr)?;
        self.tell();
        Ok(())
    }
}
