//! The adapter's tables, which all queue pairs of an engine share.
#![allow(unsafe_code)] // one pointer to a poller's memory, with its invariant

use hca_core::{AsyncEvent, Completion, CqHandle, Instant, KeyFault, PdHandle, QpHandle, WcOpcode, WcStatus};
use hca_fabric::PathId;
use hca_transport::Count;

use crate::counters::OpCounts;
use crate::limits::MAX_XRCD;
use crate::memory::mr::MrTable;
use crate::notify::events::Events;
use crate::objects::rd::RdTables;
use crate::objects::regions::Regions;
use crate::objects::slab::Slab;
use crate::objects::srq::{Held, SrqEntry};
use crate::objects::xrc::Xrcd;
use crate::queues::cq::CqEntry;
use crate::sync::Arc;

/// An address handle.
pub(crate) struct Ah {
    pub(crate) pd: PdHandle,
    pub(crate) path: PathId,
}

/// A protection domain: how many objects belong to it.
pub(crate) struct Pd {
    pub(crate) users: u64,
}

/// Completions that need not go through their queue, since it is empty and its poller runs the turn.
///
/// Invariant: unless `cq` is `CLOSED`, `out .. out + room` is the poller's, which lends it to the engine until it calls
/// [`Tables::take_here`]. It opens and closes this under the engine's lock, by a guard that closes it in a panic, too.
struct Here {
    /// The queue, or none.
    cq: u32,
    /// Another queue may stand in its slot by now.
    generation: u32,
    /// The queue of those that went there.
    of: u32,
    count: usize,
    room: usize,
    /// Where they go.
    out: *mut Completion,
}

// SAFETY: the pointer is used under the engine's lock by the thread that put it there, and by nobody once it is closed.
unsafe impl Send for Here {}

impl Here {
    const CLOSED: u32 = u32::MAX;
}
impl Default for Here {
    fn default() -> Self {
        let (cq, of, out) = (Self::CLOSED, Self::CLOSED, core::ptr::null_mut());
        Self { cq, generation: 0, of, count: 0, room: 0, out }
    }
}

/// The completion of a request that succeeded and brought nothing but bytes.
#[inline(always)]
fn plain(wr_id: u64, qp: QpHandle, opcode: WcOpcode, byte_len: u32) -> Completion {
    Completion { wr_id, qp, status: WcStatus::Success, opcode, byte_len, ..Completion::default() }
}

/// What every queue pair of an engine shares.
pub(crate) struct Tables {
    pub(crate) pds: Slab<Pd>,
    pub(crate) mrs: MrTable,
    pub(crate) cqs: Slab<CqEntry>,
    pub(crate) srqs: Slab<SrqEntry>,
    pub(crate) xrcds: Slab<Xrcd>,
    pub(crate) rd: RdTables,
    pub(crate) counts: [u64; Count::COUNT],
    /// Refused accesses of peers, by reason.
    pub(crate) key_faults: [u64; KeyFault::ALL.len()],
    /// The counts of destroyed queue pairs.
    pub(crate) ops_of_the_gone: OpCounts,
    pub(crate) completions: u64,
    pub(crate) events: Arc<Events>,
    /// Memory of peers on this machine.
    pub(crate) regions: Regions,
    /// Keys that peers took back, and that nobody may use directly any more once that is shown, in this completion
    /// queue.
    pub(crate) taken_back: Vec<(u32, u32)>,
    /// Completions of this turn that its caller takes at once.
    here: Here,
    /// Completion queues that were pushed to since the last `finish`.
    fresh_cqs: Vec<u32>,
    /// Notifications that are held back since [`finish`](Self::finish), and until when.
    pub(crate) held_back: Vec<(Instant, u32)>,
    /// Completion queues that lost a completion and whose queue pairs are still to be put in error.
    pub(crate) overrun_cqs: Vec<u32>,
}

impl Tables {
    pub(crate) fn new(
        pds: Slab<Pd>,
        mrs: MrTable,
        cqs: Slab<CqEntry>,
        srqs: Slab<SrqEntry>,
        events: Arc<Events>,
    ) -> Self {
        Self {
            pds,
            mrs,
            cqs,
            srqs,
            xrcds: Slab::new("XRC domain", MAX_XRCD),
            rd: RdTables::default(),
            counts: [0; Count::COUNT],
            key_faults: [0; KeyFault::ALL.len()],
            ops_of_the_gone: OpCounts::default(),
            completions: 0,
            events,
            regions: Regions::default(),
            taken_back: Vec::new(),
            here: Here::default(),
            fresh_cqs: Vec::with_capacity(16),
            held_back: Vec::new(),
            overrun_cqs: Vec::new(),
        }
    }

    /// The caller of this turn polls this queue, which it found empty: completions of it go straight to `out`, as many
    /// as it has room for, until [`take_here`](Self::take_here). Of a queue that was destroyed there are none.
    ///
    /// # Safety
    /// `out` is used by nobody else until `take_here`, which is called before its memory ends.
    #[inline(always)]
    pub(crate) unsafe fn complete_here(&mut self, cq: CqHandle, out: &mut [Completion]) {
        let CqHandle { index, generation } = cq;
        let (room, out) = (out.len(), out.as_mut_ptr());
        self.here = Here { cq: index, generation, of: index, count: 0, room, out };
    }
    /// Whether some went there so far.
    pub(crate) fn has_some_here(&self) -> bool {
        self.here.count > 0
    }
    /// How many went there; those that follow go to the queue.
    #[inline(always)]
    pub(crate) fn take_here(&mut self) -> usize {
        self.here.cq = Here::CLOSED;
        core::mem::take(&mut self.here.count)
    }

    /// Appends a completion to a queue.
    #[inline]
    pub(crate) fn complete(&mut self, cq: u32, c: Completion) {
        self.complete_with(cq, || c);
    }

    /// Appends the completion of a request that succeeded and brought nothing but bytes.
    #[inline(always)]
    pub(crate) fn complete_plain(&mut self, cq: u32, wr_id: u64, qp: QpHandle, opcode: WcOpcode, len: u32) {
        self.complete_with(cq, || plain(wr_id, qp, opcode, len));
    }

    /// As [`complete_plain`](Self::complete_plain), and shows it to the poller. `false`: others are to be shown before
    /// it, or there is no room; that is due.
    #[inline(always)]
    pub(crate) fn complete_shown(
        &mut self,
        cq: u32,
        wr_id: u64,
        qp: QpHandle,
        opcode: WcOpcode,
        len: u32,
    ) -> bool {
        let c = plain(wr_id, qp, opcode, len);
        let shown = self.cqs.at_mut(cq).is_some_and(|entry| entry.show(&c));
        if shown {
            self.completions += 1;
        } else {
            self.push_completion(cq, c);
        }
        shown
    }

    /// Makes a completion where it goes, so that it is not copied.
    #[inline(always)]
    pub(crate) fn complete_with(&mut self, cq: u32, make: impl FnOnce() -> Completion) {
        match self.place_here(cq) {
            // SAFETY: `Here`'s invariant, and it is one of its room.
            Some(place) => unsafe { place.write(make()) },
            None => self.push_completion(cq, make()),
        }
    }

    /// Where the next completion of this queue goes, if the caller of this turn takes it at once.
    #[inline(always)]
    fn place_here(&mut self, cq: u32) -> Option<*mut Completion> {
        let here = &mut self.here;
        // What was pushed since the caller looked comes first; who asked for a notification is to have it.
        let goes = here.cq == cq
            && if here.count > 0 {
                here.count < here.room
            } else {
                let generation = here.generation;
                self.cqs.get_mut(cq, generation).is_some_and(CqEntry::is_idle)
            };
        if !goes {
            return None;
        }
        self.completions += 1;
        here.count += 1;
        // SAFETY: `Here`'s invariant: `count` was below `room`, which is not 0.
        Some(unsafe { here.out.add(here.count - 1) })
    }

    #[inline(never)]
    fn push_completion(&mut self, cq: u32, c: Completion) {
        if self.here.cq == cq {
            // What follows comes behind this one.
            self.here.cq = Here::CLOSED;
        }
        let entry = self.cqs.at_mut(cq).expect("a queue pair's completion queue outlives it");
        self.completions += 1;
        let (first, lost) = entry.push(c);
        if first {
            self.fresh_cqs.push(cq);
        }
        if lost && !core::mem::replace(&mut entry.ended, true) {
            entry.overrun = true;
            let handle = entry.handle;
            self.overrun_cqs.push(cq);
            self.events.push(AsyncEvent::CqOverrun(handle));
        }
    }

    /// Shows no completion of a queue any more that is not shown, until it [may](Self::let_show). Not those either that
    /// went to the caller of this turn.
    #[cold]
    pub(crate) fn withhold(&mut self, cq: u32) -> Option<CqHandle> {
        let mut here = Vec::new();
        if self.here.of == cq {
            let (out, count) = (self.here.out, self.take_here());
            // SAFETY: `Here`'s invariant; so many were written.
            here.extend((0..count).map(|i| unsafe { out.add(i).read() }));
        }
        let entry = self.cqs.at_mut(cq)?;
        entry.withhold();
        let behind = if here.is_empty() { Vec::new() } else { entry.take_unshown() };
        self.completions -= (here.len() + behind.len()) as u64;
        let handle = entry.handle;
        here.into_iter().chain(behind).for_each(|c| self.push_completion(cq, c));
        Some(handle)
    }
    /// Takes one [`withhold`](Self::withhold) back; behind the last one what was kept is shown by
    /// [`finish`](Self::finish).
    #[cold]
    pub(crate) fn let_show(&mut self, cq: CqHandle) {
        let entry = self.cqs.get_mut(cq.index, cq.generation);
        if entry.is_some_and(CqEntry::let_show) {
            self.fresh_cqs.push(cq.index);
        }
    }

    /// Whether [`finish`](Self::finish) is due, or something for who sees to overruns.
    #[inline(always)]
    pub(crate) fn has_fresh(&self) -> bool {
        !(self.fresh_cqs.is_empty() && self.overrun_cqs.is_empty())
    }
    /// Shows all new completions to the pollers and notifies those that asked for it.
    #[inline]
    pub(crate) fn finish(&mut self) {
        while let Some(cq) = self.fresh_cqs.pop() {
            if let Some(due) = self.cqs.at_mut(cq).and_then(CqEntry::finish) {
                self.held_back.push((due, cq));
            }
        }
    }

    pub(crate) fn event(&mut self, event: AsyncEvent) {
        self.events.push(event);
    }

    /// Takes the oldest request of a shared receive queue; returns the bytes that it can take.
    pub(crate) fn take_from_srq(&mut self, srq: u32, held: &mut Held) -> Option<u64> {
        let q = self.srqs.at_mut(srq)?;
        if let Some((wr_id, sges)) = q.returned.pop() {
            (held.wr_id, held.sges) = (wr_id, sges);
        } else {
            let head = q.ring.head();
            if head == q.ring.tail() && q.ring.refresh() == head {
                return None;
            }
            let (h, cells) = q.ring.at(head);
            held.wr_id = h.wr_id;
            held.sges.clear();
            held.sges.extend(h.list(cells));
            q.ring.release(head.wrapping_add(1));
        }
        held.active = true;
        held.first = held.sges.first().copied().unwrap_or_default();
        if q.limit_reached() {
            let event = AsyncEvent::SrqLimitReached(q.handle);
            self.events.push(event);
        }
        Some(held.sges.iter().map(|s| u64::from(s.len)).sum())
    }

    /// Gives a request back unused; it is the next to be taken.
    pub(crate) fn return_to_srq(&mut self, srq: u32, held: &mut Held) {
        if let Some(q) = self.srqs.at_mut(srq) {
            q.returned.push((held.wr_id, core::mem::take(&mut held.sges)));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::notify::runs::Attention;
    use crate::queues::cq::CqShared;
    use crate::queues::ring::ring;
    use hca_core::SplitMix64 as Random;

    /// Completions that went to the poller's room, and to the queue once that was full: all are kept, in their order.
    #[test]
    fn what_is_withheld_does_not_go_to_the_caller_of_the_turn_either() {
        for room in 1..=4 {
            let attention = Arc::new(Attention::new());
            let events = Arc::new(Events::new(attention.clone()));
            let mrs = MrTable::new(1, Random::new(1));
            let mut tables = Tables::new(Slab::new("", 1), mrs, Slab::new("", 1), Slab::new("", 1), events);
            let (producer, mut polled) = ring::<Completion>(8, 0);
            let (index, generation) = tables.cqs.vacant().unwrap();
            let cq = CqHandle { index, generation };
            tables.cqs.insert(CqEntry::new(cq, producer, Arc::new(CqShared::new(attention)))).unwrap();
            let mut out = vec![Completion::default(); room];
            // SAFETY: `out` outlives its use, which `take_here` ends.
            unsafe { tables.complete_here(cq, &mut out) };
            let of = |wr_id| Completion { wr_id, ..Completion::default() };
            (0..3).for_each(|n| tables.complete(cq.index, of(n)));
            assert_eq!(tables.withhold(cq.index), Some(cq));
            assert_eq!(tables.withhold(cq.index), Some(cq));
            tables.complete(cq.index, of(3));
            assert_eq!(tables.take_here(), 0, "room {room}");
            tables.finish();
            tables.let_show(cq);
            tables.finish();
            assert_eq!(polled.refresh(), 0, "room {room}: one take-back is under way");
            tables.let_show(cq);
            tables.finish();
            assert_eq!(polled.refresh(), 4, "room {room}");
            assert_eq!([0, 1, 2, 3].map(|i| polled.header(i).wr_id), [0, 1, 2, 3], "room {room}");
            assert_eq!(tables.completions, 4);
        }
    }

    #[test]
    fn a_queue_pairs_completions_are_purged_while_they_are_withheld() {
        let attention = Arc::new(Attention::new());
        let (producer, mut polled) = ring::<Completion>(8, 0);
        let handle = CqHandle { index: 0, generation: 0 };
        let mut entry = CqEntry::new(handle, producer, Arc::new(CqShared::new(attention)));
        let qp = |index| QpHandle { index, generation: 0 };
        let of = |wr_id, index| Completion { wr_id, qp: qp(index), ..Completion::default() };
        entry.push(of(0, 1));
        entry.finish();
        entry.withhold();
        (1..4).for_each(|n| _ = entry.push(of(n, n as u32 % 2)));
        entry.purge(qp(1), crate::queues::cq::Purge::All);
        assert_eq!(polled.refresh(), 1, "what is kept is not shown by that");
        assert!(entry.let_show());
        entry.finish();
        assert_eq!(polled.refresh(), 2);
        assert_eq!(polled.header(1).wr_id, 2);
    }
}
