//! The messages that a requester has in flight, by the index of their request, and the responses that READs and atomics
//! wait for.

use alloc::boxed::Box;
use alloc::vec;

use hca_core::{FlatOp, Psn, SendOp};

/// Messages in flight: the ring begins with this many and grows when all are in use.
const MIN_INFLIGHT: usize = 32;
/// Messages in flight at most.
const MAX_INFLIGHT: usize = 512;

/// The kind of a message in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    #[default]
    Send,
    Write,
    WriteImm,
    /// READ; or ATOMIC WRITE or FLUSH, which a READ response of no bytes answers.
    Read,
    Atomic,
    /// Nothing is sent for it, and it is never in flight.
    Local,
    /// RESYNC of an end-to-end context, which is no request of the host.
    Resync,
}

impl Kind {
    #[inline]
    pub(crate) fn of(op: &FlatOp) -> Self {
        match op.op() {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => Self::Send,
            SendOp::Write(_) => Self::Write,
            SendOp::WriteImm(..) => Self::WriteImm,
            SendOp::Read(_) | SendOp::AtomicWrite { .. } | SendOp::Flush { .. } => Self::Read,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => Self::Atomic,
            SendOp::BindMw { .. } | SendOp::LocalInv(_) => Self::Local,
        }
    }
    /// Completed by a response of its own, never by an acknowledgement of a later packet.
    #[inline]
    pub(crate) fn is_answered(self) -> bool {
        matches!(self, Self::Read | Self::Atomic)
    }
    #[inline]
    pub(crate) fn consumes_recv(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }
}

/// A message in flight, 6 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    psn_low: u16,
    psn_high: u8,
    pub(crate) kind: Kind,
    /// Cost of all messages before this one, modulo 2^16.
    pub(crate) cost: u16,
}

impl Slot {
    /// The first PSN of the message.
    #[inline]
    pub(crate) fn psn(&self) -> Psn {
        Psn::new(u32::from(self.psn_high) << 16 | u32::from(self.psn_low))
    }
}

/// The messages in flight, by the index of their request.
#[derive(Debug)]
pub(crate) struct Inflight {
    slots: Box<[Slot]>,
}

impl Inflight {
    pub(crate) fn new() -> Self {
        Self { slots: vec![Slot::default(); MIN_INFLIGHT].into_boxed_slice() }
    }
    #[inline]
    pub(crate) fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize & (self.slots.len() - 1)]
    }
    #[inline]
    pub(crate) fn put(&mut self, index: u32, psn: Psn, kind: Kind, cost: u16) {
        let raw = psn.raw();
        let at = index as usize & (self.slots.len() - 1);
        self.slots[at] = Slot { psn_low: raw as u16, psn_high: (raw >> 16) as u8, kind, cost };
    }
    /// Makes room behind `count` messages from `first` on; `false` at the limit.
    #[inline]
    pub(crate) fn make_room(&mut self, first: u32, count: u32) -> bool {
        (count as usize) < self.slots.len() || self.grow(first, count)
    }
    /// Bytes on the heap.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }
    #[cold]
    fn grow(&mut self, first: u32, count: u32) -> bool {
        let len = self.slots.len() * 2;
        if len > MAX_INFLIGHT {
            return false;
        }
        let mut slots = vec![Slot::default(); len].into_boxed_slice();
        for i in 0..count {
            let index = first.wrapping_add(i);
            slots[index as usize & (len - 1)] = *self.slot(index);
        }
        self.slots = slots;
        true
    }
}

/// READ requests and atomics that wait for their answers: the PSN behind each one's last.
#[derive(Debug)]
pub(crate) struct Unanswered {
    ends: Box<[Psn]>,
    head: usize,
    len: usize,
}

impl Unanswered {
    pub(crate) fn new(max: u8) -> Self {
        Self { ends: vec![Psn::default(); usize::from(max)].into_boxed_slice(), head: 0, len: 0 }
    }
    pub(crate) fn push(&mut self, end: Psn) {
        let at = (self.head + self.len) % self.ends.len();
        self.ends[at] = end;
        self.len += 1;
    }
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// Makes room for so many; those that wait stay.
    pub(crate) fn grow(&mut self, max: u8) {
        if usize::from(max) <= self.ends.len() {
            return;
        }
        let mut grown = Self::new(max);
        for i in 0..self.len {
            grown.push(self.ends[(self.head + i) % self.ends.len()]);
        }
        *self = grown;
    }
    /// Forgets all: they are asked for again.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
    /// Bytes on the heap.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.ends)
    }
    /// Everything before `una` was answered.
    #[inline]
    pub(crate) fn release(&mut self, una: Psn) {
        while self.len > 0 && !una.is_before(self.ends[self.head]) {
            self.head = (self.head + 1) % self.ends.len();
            self.len -= 1;
        }
    }
}
