//! The send queue of a queue pair.

use std::sync::Arc;

use hca_core::{
    Dest, MAX_MESSAGE_BYTES, Mixed, Payload, PostError, PostErrorKind, QpType, SendOp, SendPort, SendWr,
    WcOpcode,
};
use hca_prm::WqeOpcode;
use hca_vfio::mmio::dma_wmb;

use super::core::{Counter, Life, QpCore};
use super::shadow::Noted;
use super::wqe::{self, Control, Segment, UdTo, Written};
use crate::ah::AhTable;
use crate::shared::{Ring, SharedCells, Word};
use crate::sync::Ordering;
use crate::uar::Uar;

/// A doorbell page.
pub(crate) trait Bell: Send {
    /// Rings a send queue's doorbell, one of two that take turns, behind all stores before it.
    fn ring(&self, turn: bool, first: u64);
    /// Whether [`ring_whole`](Self::ring_whole) is of use.
    fn has_flames(&self) -> bool;
    /// Rings by all of an entry, which is no longer than this.
    fn ring_whole(&self, turn: bool, entry: &[u8; 64]);
    /// Arms a completion queue, likewise.
    fn arm(&self, what: u64);
    /// Has who serves the adapter look at what memory says, where it might sleep.
    fn nudge(&self);
}

impl Bell for Uar {
    #[inline(always)]
    fn ring(&self, turn: bool, first: u64) {
        Uar::ring(self, turn, first.to_be_bytes());
    }
    fn has_flames(&self) -> bool {
        Uar::has_flames(self)
    }
    fn ring_whole(&self, turn: bool, entry: &[u8; 64]) {
        Uar::ring_whole(self, turn, entry);
    }
    fn arm(&self, what: u64) {
        Uar::arm(self, what.to_be_bytes());
    }
    #[inline(always)]
    fn nudge(&self) {
        self.wake();
    }
}

/// The configuration of a new send queue.
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
    ring: Ring,
    /// The doorbell record's counter.
    record: Word,
    control: Control,
    limits: SendLimits,
    /// Requests may be posted as [`push_usual`](Self::push_usual) does it.
    usual: bool,
    /// The queue pair's life as it was last seen to take requests, and how often it had been reset by then.
    life: Life,
    epoch: u32,
    /// Requests that were posted, and up to which number there is room as last seen.
    posted: u32,
    room: u32,
    /// The next block, and up to which the adapter was told.
    next: u16,
    told: u16,
    /// Which of the two doorbells is next.
    turn: bool,
    /// Short requests go to the doorbell page whole.
    flames: bool,
    /// The first 8 bytes of the last entry that was not told by itself.
    first: u64,
    /// Of which the queue pair's protection domain is the first.
    ahs: Arc<AhTable>,
    pd: u32,
    /// The last, as it may hold the adapter.
    bell: B,
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
        // No more inline bytes than a message may have, so that those need no second look.
        let limits = SendLimits { max_inline: limits.max_inline.min(limits.max_message as u32), ..limits };
        let (flames, posted) = (bell.has_flames(), qp.send.oldest());
        let lengths = limits.max_sge > 0 && limits.max_inline >= 8 && limits.max_message >= 8;
        let usual = qp.qp_type == QpType::Rc && !flames && lengths;
        Self {
            ring: Ring::new(ring),
            record: qp.record(Counter::Send),
            control: Control::of(qp.qpn.raw()),
            limits,
            usual,
            life: Life::UNSEEN,
            epoch: qp.life().epoch(),
            posted,
            room: posted.wrapping_add(limits.depth),
            next: 0,
            told: 0,
            turn: false,
            flames,
            bell,
            first: 0,
            ahs,
            pd,
            qp,
        }
    }

    /// Checks a request against the queue pair's service and limits.
    #[inline(always)]
    fn check(&self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        if self.qp.qp_type != QpType::Rc || wr.dest.is_some() {
            self.check_service(wr)?;
        }
        if !wr.op.has_list() {
            return Err(PostErrorKind::Unsupported { qp_type: self.qp.qp_type, op: wr.op.wc_opcode() });
        }
        let len = match wr.payload {
            Payload::Inline(bytes) => {
                // Never longer than a message may be.
                return if bytes.len() <= self.limits.max_inline as usize && !wr.op.is_read_or_atomic() {
                    Ok(())
                } else {
                    Err(self.why_not_inline(wr, bytes.len()))
                };
            }
            Payload::Sges(list) if list.len() <= self.limits.max_sge as usize => {
                list.iter().map(|s| u64::from(s.len)).sum()
            }
            Payload::Sges(list) => {
                return Err(PostErrorKind::too_many_sges(list.len(), self.limits.max_sge));
            }
            Payload::Mixed(list) => self.check_mixed(wr, &list)?,
        };
        if len > self.limits.max_message {
            return Err(PostErrorKind::message_too_long(len, self.limits.max_message));
        }
        if len != 8 && matches!(wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) {
            return Err(PostErrorKind::atomic_length(len));
        }
        Ok(())
    }
    /// The bytes of a list of both kinds, which is within the limits.
    #[cold]
    fn check_mixed(&self, wr: &SendWr<'_>, list: &Mixed<'_>) -> Result<u64, PostErrorKind> {
        let SendLimits { max_sge, max_inline, .. } = self.limits;
        if list.entries.len() > max_sge as usize {
            return Err(PostErrorKind::too_many_sges(list.entries.len(), max_sge));
        }
        let len = list.bytes.len();
        if len > max_inline as usize || wr.op.is_read_or_atomic() {
            return Err(self.why_not_inline(wr, len));
        }
        let beyond = wqe::mixed_cells(list).saturating_sub(wqe::data_cells(max_sge, max_inline));
        if beyond > 0 {
            let max = len.saturating_sub(beyond * crate::shared::CELL) as u32;
            return Err(PostErrorKind::inline_too_long(len, max));
        }
        Ok(list.message_bytes())
    }
    /// Whether the service offers the operation, to whom it names.
    #[inline(never)]
    fn check_service(&self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        let qp_type = self.qp.qp_type;
        if qp_type != QpType::Rc {
            offers(qp_type, &wr.op)?;
        }
        if matches!(wr.dest, Some(Dest::Datagram(_))) != (qp_type == QpType::Ud) {
            return Err(PostErrorKind::Destination);
        }
        Ok(())
    }
    #[cold]
    fn why_not_inline(&self, wr: &SendWr<'_>, len: usize) -> PostErrorKind {
        if wr.op.is_read_or_atomic() {
            let qp_type = self.qp.qp_type;
            PostErrorKind::Unsupported { qp_type, op: wr.op.wc_opcode() }
        } else {
            PostErrorKind::inline_too_long(len, self.limits.max_inline)
        }
    }

    /// Why nothing is taken in this state; or, after a reset, begins anew.
    #[cold]
    fn look_at_state(&mut self) -> Result<(), PostErrorKind> {
        let life = self.qp.life();
        if life.epoch() != self.epoch {
            self.epoch = life.epoch();
            (self.next, self.told) = (0, 0);
            self.posted = self.qp.send.oldest();
            self.room = self.posted.wrapping_add(self.limits.depth);
        }
        if !life.takes_sends() {
            return Err(life.state().map_or(PostErrorKind::Destroyed, PostErrorKind::WrongState));
        }
        self.life = life;
        Ok(())
    }
    /// Looks how many requests have ended, and whether there is room behind `before` more.
    fn look_for_room(&mut self, before: usize) -> Result<(), PostErrorKind> {
        let depth = self.limits.depth;
        self.room = self.qp.send.oldest().wrapping_add(depth);
        let left = self.room.wrapping_sub(self.posted) as usize;
        if left > before { Ok(()) } else { Err(PostErrorKind::QueueFull { depth }) }
    }

    /// Makes a request an entry of the queue, and returns its first 8 bytes.
    #[inline(always)]
    fn push(&mut self, wr: &SendWr<'_>) -> Result<u64, PostErrorKind> {
        match self.push_usual(wr) {
            Some(first) => Ok(first),
            None => self.push_any(wr),
        }
    }
    /// The same of a request as most are: on a connection, which lives as it did, with one pointer or 8 bytes, where
    /// there is room. `None`: it is another one, and nothing was done. No function is called here, so that nothing has
    /// to be kept across a call.
    #[inline(always)]
    fn push_usual(&mut self, wr: &SendWr<'_>) -> Option<u64> {
        let as_it_was = self.qp.life() == self.life && self.posted != self.room;
        if !as_it_was || !self.usual || wr.dest.is_some() {
            return None;
        }
        let data = match wr.payload {
            Payload::Inline(bytes) if !wr.op.is_read_or_atomic() => Segment::inline(bytes.try_into().ok()?),
            Payload::Sges([one]) if one.len == 8 => Segment::pointer(one),
            Payload::Sges([one])
                if one.len != 0 && u64::from(one.len) <= self.limits.max_message && !wr.op.is_atomic() =>
            {
                Segment::pointer(one)
            }
            _ => return None,
        };
        let block = self.ring.block(self.next.into());
        let written = wqe::write_short(block, self.next, &self.control, wr, data)?;
        self.note(wr.wr_id, &written);
        Some(written.bell)
    }
    /// Whether the queue pair takes a request now, if there is room.
    #[inline(always)]
    fn check_now(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        if self.qp.life() != self.life {
            self.look_at_state()?;
        }
        self.check(wr)
    }
    /// The same of any.
    #[inline(always)]
    fn push_any(&mut self, wr: &SendWr<'_>) -> Result<u64, PostErrorKind> {
        self.check_now(wr)?;
        if self.posted == self.room {
            self.look_for_room(0)?;
        }
        let written = match &wr.dest {
            None => wqe::write(&self.ring, self.next, &self.control, wr),
            Some(dest) => self.write_datagram(wr, dest)?,
        };
        self.note(wr.wr_id, &written);
        Ok(written.bell)
    }
    /// Remembers a request that was written.
    #[inline(always)]
    fn note(&mut self, wr_id: u64, written: &Written) {
        let noted = Noted { wr_id, tag: written.opcode.code() as u8 };
        self.qp.send.note(self.posted, self.next, written.blocks as u8, noted);
        self.posted = self.posted.wrapping_add(1);
        self.next = self.next.wrapping_add(written.blocks);
    }
    #[inline(never)]
    fn write_datagram(&self, wr: &SendWr<'_>, dest: &Dest) -> Result<Written, PostErrorKind> {
        let to = self.peer(dest)?;
        Ok(wqe::write_datagram(&self.ring, self.next, &self.control, wr, &to))
    }
    /// Where a datagram goes.
    fn peer(&self, dest: &Dest) -> Result<UdTo, PostErrorKind> {
        let Dest::Datagram(dest) = dest else { return Err(PostErrorKind::Destination) };
        let address = self.ahs.address(dest.ah, self.pd).ok_or(PostErrorKind::AddressHandle)?;
        Ok(UdTo { address, qpn: dest.qpn.raw(), qkey: dest.qkey.raw() })
    }

    /// Tells the adapter, by the first 8 bytes of the last entry.
    #[inline(always)]
    fn ring_doorbell(&mut self, first: u64) {
        self.told = self.next;
        // Entries before the record, the record before the doorbell.
        dma_wmb();
        self.record.store(u32::from(self.next).to_be(), Ordering::Relaxed);
        let turn = self.turn;
        self.turn = !turn;
        self.bell.ring(turn, first);
    }
    /// Posts any request by itself.
    #[inline(never)]
    fn post_any(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        let first = self.push_any(wr)?;
        if self.flames {
            self.tell_one(first);
        } else {
            self.ring_doorbell(first);
        }
        Ok(())
    }
    /// The same of a request that was posted by itself, where those that are short enough go to the doorbell page
    /// whole.
    #[cold]
    fn tell_one(&mut self, first: u64) {
        let at = self.told;
        if self.next != at.wrapping_add(1) {
            return self.ring_doorbell(first);
        }
        self.told = self.next;
        dma_wmb();
        self.record.store(u32::from(self.next).to_be(), Ordering::Relaxed);
        let words = self.ring.block(at.into()).as_flattened();
        let mut entry = [0; 64];
        for (word, bytes) in words.iter().zip(entry.as_chunks_mut::<8>().0) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        self.bell.ring_whole(self.turn, &entry);
        self.turn = !self.turn;
    }
}

/// The operation of a note, whose tag is the adapter's code for it.
#[inline(always)]
pub(crate) fn opcode_of(tag: u8) -> WcOpcode {
    const ALL: [WcOpcode; 32] = {
        let mut all = [WcOpcode::Send; 32];
        all[WqeOpcode::RdmaWrite as usize] = WcOpcode::RdmaWrite;
        all[WqeOpcode::RdmaWriteImm as usize] = WcOpcode::RdmaWrite;
        all[WqeOpcode::RdmaRead as usize] = WcOpcode::RdmaRead;
        all[WqeOpcode::AtomicCs as usize] = WcOpcode::CompSwap;
        all[WqeOpcode::AtomicFa as usize] = WcOpcode::FetchAdd;
        all
    };
    ALL[usize::from(tag & 31)]
}

/// Whether a service that is not RC offers an operation.
fn offers(qp_type: QpType, op: &SendOp) -> Result<(), PostErrorKind> {
    let uc = qp_type == QpType::Uc;
    match op {
        SendOp::Send | SendOp::SendImm(_) => Ok(()),
        SendOp::Write(_) | SendOp::WriteImm(..) if uc => Ok(()),
        op => Err(PostErrorKind::Unsupported { qp_type, op: op.wc_opcode() }),
    }
}

/// The longest message of a service, where the adapter carries 2^`log_max` bytes.
pub(crate) fn max_message(qp_type: QpType, log_max: u32, mtu_bytes: u32) -> u64 {
    if qp_type == QpType::Ud { mtu_bytes.into() } else { MAX_MESSAGE_BYTES.min(1 << log_max) }
}

#[allow(unsafe_code)] // the port's contract is the trait's; nothing unsafe is done here
// SAFETY: (1) a list, or inline bytes, are written into the ring as the adapter reads them. (2) A refusal comes before
// the request is noted and told. (3) Adapters complete a queue's requests in order, and the shadow ends with one all
// that were noted before.
unsafe impl<B: Bell> SendPort for SendQueue<B> {
    #[inline]
    unsafe fn post(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        for (accepted, wr) in wrs.iter().enumerate() {
            self.first = self.push(wr).map_err(|kind| PostError { accepted, kind })?;
        }
        Ok(())
    }
    fn would_take(&mut self, wr: &SendWr<'_>, before: usize) -> Result<(), PostErrorKind> {
        self.check_now(wr)?;
        if let Some(dest) = &wr.dest {
            self.peer(dest)?;
        }
        self.look_for_room(before)
    }
    #[inline]
    fn ring(&mut self) {
        if self.told == self.next {
            return;
        }
        // What a reset has forgotten is not told.
        let lives = self.qp.life() == self.life || self.look_at_state().is_ok();
        if lives && self.told != self.next {
            self.ring_doorbell(self.first);
        }
    }
    #[inline]
    unsafe fn post_now(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        let Some(first) = self.push_usual(wr) else { return self.post_any(wr) };
        self.ring_doorbell(first);
        Ok(())
    }
}
