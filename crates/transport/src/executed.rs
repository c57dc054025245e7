//! The READs, atomics, ATOMIC WRITEs and FLUSHes that a responder executed last: the unsent rest of their responses,
//! and the requests that may be repeated.
//!
//! There is room for `max_dest_rd_atomic` of them, which is enough: a requester repeats only requests without a
//! response, and it has at most that many of them. The responder answers a repeated READ only if it is one of these, or
//! a part of one, by its PSNs, its key and its address. Any other repeated request was never allowed, and an answer to
//! it would tell whether a key is valid.

use alloc::boxed::Box;
use alloc::vec;

use hca_core::{Psn, Rkey};

use crate::psn::span;

/// The range of a READ request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) rkey: Rkey,
    pub(crate) va: u64,
    pub(crate) len: u32,
}

/// What a request names beside its operation: the shared receive queue that it is for (XRC); or the queue pair that it is
/// for, and the one that sent it (RD).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) to: u32,
    pub(crate) from: u32,
}

/// An executed request: a READ's range, an atomic's old value, or an ATOMIC WRITE or FLUSH.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deed {
    Read(Read),
    Atomic { original: u64 },
    Placed,
}

/// A READ or atomic that was carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Executed {
    pub(crate) psn: Psn,
    /// The message sequence number that its responses tell.
    pub(crate) msn: u32,
    pub(crate) deed: Deed,
    pub(crate) named: Named,
    /// Packets of the whole response.
    packets: u32,
    /// The packets that are to be sent: from `next` up to `end`, which is excluded.
    pub(crate) next: u32,
    end: u32,
    /// The packet that they began with.
    begin: u32,
    /// Its response has not left as a whole yet.
    pub(crate) fresh: bool,
}

impl Executed {
    fn is_pending(&self) -> bool {
        self.next < self.end
    }
    /// Whether the packet that is sent next is the first of those that were asked for.
    pub(crate) fn begins(&self) -> bool {
        self.next == self.begin
    }
    /// Whether the packet that is sent next is the last.
    pub(crate) fn ends(&self) -> bool {
        self.next + 1 == self.end
    }
    /// Sends `from..end` again, beside what waits already. What waits and goes beyond `end` is on its way, and stays.
    fn repeat(&mut self, from: u32, end: u32, msn: u32) {
        if !self.is_pending() {
            (self.begin, self.next, self.end, self.msn) = (from, from, end, msn);
        } else if end >= self.end {
            self.end = end;
            if from < self.next {
                (self.begin, self.next) = (from, from);
            }
        }
    }
}

/// The outcome of a repeated request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It is answered again.
    Answered,
    /// The request is too old, or not a part of an executed one: it is dropped.
    Unknown,
    /// Another request was executed under its PSN: this one is a guess of a host that never sent the executed one.
    Strange,
}

const _: () = assert!(size_of::<Executed>() <= 64);

const NOTHING: Executed = Executed {
    psn: Psn::new(0),
    msn: 0,
    deed: Deed::Atomic { original: 0 },
    named: Named { to: 0, from: 0 },
    packets: 0,
    next: 0,
    end: 0,
    begin: 0,
    fresh: false,
};

/// The latest of them, in the order of their PSNs.
#[derive(Debug)]
pub(crate) struct History {
    slots: Box<[Executed]>,
    first: usize,
    len: usize,
    /// Before this one, counted from `first`, nothing is to be sent; `len`: nothing at all.
    front: usize,
    /// Those that are fresh.
    fresh: usize,
}

impl History {
    pub(crate) fn new(max: u8) -> Self {
        let slots = vec![NOTHING; usize::from(max)].into_boxed_slice();
        Self { slots, first: 0, len: 0, front: 0, fresh: 0 }
    }
    /// Makes room for so many; nothing is forgotten.
    pub(crate) fn grow(&mut self, max: u8) {
        if usize::from(max) <= self.slots.len() {
            return;
        }
        let mut slots = vec![NOTHING; usize::from(max)].into_boxed_slice();
        for (i, slot) in slots.iter_mut().enumerate().take(self.len) {
            *slot = self.slots[self.at(i)];
        }
        (self.slots, self.first) = (slots, 0);
    }
    /// Bytes on the heap.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }
    fn at(&self, i: usize) -> usize {
        (self.first + i) % self.slots.len()
    }
    /// How many have not been answered yet.
    pub(crate) fn fresh(&self) -> usize {
        self.fresh
    }
    /// Whether responses wait to be sent.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.front < self.len
    }
    /// The oldest whose response waits to be sent.
    pub(crate) fn front(&self) -> Option<Executed> {
        self.is_pending().then(|| self.slots[self.at(self.front)])
    }
    /// Remembers what was carried out just now, in place of the oldest if there is no room. Its response waits from now
    /// on.
    pub(crate) fn push(&mut self, psn: Psn, msn: u32, (deed, named): (Deed, Named), packets: u32) {
        assert!(self.fresh < self.slots.len(), "the limit was checked");
        if self.len == self.slots.len() {
            self.first = self.at(1);
            self.len -= 1;
            self.front = self.front.saturating_sub(1);
            self.seek();
        }
        let at = self.at(self.len);
        self.slots[at] =
            Executed { psn, msn, deed, named, packets, next: 0, end: packets, begin: 0, fresh: true };
        self.len += 1;
        self.fresh += 1;
    }
    /// A packet of the front's response left.
    pub(crate) fn sent(&mut self) {
        let at = self.at(self.front);
        let front = &mut self.slots[at];
        front.next += 1;
        if !front.is_pending() {
            self.fresh -= usize::from(core::mem::take(&mut front.fresh));
            self.seek();
        }
    }
    /// Nothing more is sent of the front's response.
    pub(crate) fn leave_off(&mut self) {
        let at = self.at(self.front);
        self.slots[at].end = self.slots[at].next;
        self.seek();
    }
    /// Goes on to the next whose response waits.
    fn seek(&mut self) {
        while self.front < self.len && !self.slots[self.at(self.front)].is_pending() {
            self.front += 1;
        }
    }
    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        (self.len, self.front, self.fresh) = (0, 0, 0);
    }

    /// The latest one whose response has this PSN: an older one may have had it 2^24 packets ago.
    fn find(&self, psn: Psn) -> Option<usize> {
        (0..self.len).rev().find(|&i| {
            let e = &self.slots[self.at(i)];
            span(e.psn, psn) < e.packets
        })
    }
    fn repeat(&mut self, i: usize, from: u32, end: u32, msn: u32) -> Repeat {
        let at = self.at(i);
        self.slots[at].repeat(from, end, msn);
        self.front = self.front.min(i);
        Repeat::Answered
    }
    /// A READ request came again, whose response takes so many `packets` of `mtu` bytes.
    pub(crate) fn read_again(
        &mut self,
        psn: Psn,
        (read, named): (Read, Named),
        packets: u32,
        mtu: u32,
        msn: u32,
    ) -> Repeat {
        let Some(i) = self.find(psn) else { return Repeat::Unknown };
        let e = &self.slots[self.at(i)];
        let Deed::Read(whole) = e.deed else { return Repeat::Strange };
        let from = span(e.psn, psn);
        // Of a packet that exists, so it begins before the end.
        let offset = from * mtu;
        if named != e.named || read.rkey != whole.rkey || read.va != whole.va.wrapping_add(offset.into()) {
            return Repeat::Strange;
        }
        let left = whole.len - offset;
        let is_part = read.len == left || read.len < left && read.len > 0 && read.len.is_multiple_of(mtu);
        if is_part { self.repeat(i, from, from + packets, msn) } else { Repeat::Unknown }
    }
    /// An atomic (`placed` is false), an ATOMIC WRITE or a FLUSH came again: its result is told again, and no memory is
    /// touched, whatever it names now.
    pub(crate) fn done_again(&mut self, psn: Psn, placed: bool, msn: u32) -> Repeat {
        let Some(i) = self.find(psn) else { return Repeat::Unknown };
        match (self.slots[self.at(i)].deed, placed) {
            (Deed::Atomic { .. }, false) | (Deed::Placed, true) => self.repeat(i, 0, 1, msn),
            _ => Repeat::Strange,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_under_one_psn_the_latest_is_repeated() {
        // PSNs come round after 2^24 packets, and SENDs and WRITEs put nothing out of the history.
        let mut history = History::new(2);
        let psn = Psn::new(5);
        for (msn, original) in [(1, 10), (2, 20)] {
            history.push(psn, msn, (Deed::Atomic { original }, Named::default()), 1);
            history.sent();
        }
        assert_eq!(history.done_again(psn, false, 2), Repeat::Answered);
        let again = history.front().expect("it is answered again");
        assert!(matches!(again.deed, Deed::Atomic { original: 20 }), "{again:?}");
    }
}
