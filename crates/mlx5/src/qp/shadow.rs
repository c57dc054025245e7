//! What the driver remembers of requests in a queue: the program's number for each, by its place in the queue.
//!
//! A queue is shared by the thread that posts and the one that polls, without a lock: the poster notes a request and then
//! moves `posted` on; the poller, which finds the request's place in a completion, looks whether that is outstanding and moves
//! `freed` on. Requests of a queue end in order, so whatever stands before the one that completed has ended with it.
//!
//! A completion names a place by a counter of 16 bits, which goes on behind the ring's last place. That an adapter writes all
//! 16 is what Linux's network driver takes for granted of its send queues (`mlx5e_poll_tx_cq` in en_tx.c compares the number
//! with a counter of its own). Of queue pairs' queues nothing public says it: rdma-core (cq.c) and mlx5_ib take the bits that
//! number the ring's places, and look at no others. So a counter is checked in full, and a bare place, with zeros above it, is
//! as good.
//!
//! All of it is atomics, so that whatever an adapter writes into completions, the worst that comes of it is a wrong
//! number; and not even that of a request that is not outstanding.

use crate::masked::Masked;
use crate::sync::{AtomicU32, AtomicU64, CachePadded, Ordering};

/// A request that was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    /// The program's number.
    pub(crate) wr_id: u64,
    /// What else was noted, 8 bits.
    pub(crate) tag: u8,
}

struct Place {
    wr_id: AtomicU64,
    /// The request's number in the queue (upper half), its place (bits 8 to 23), its length in places (24 to 31), the tag.
    what: AtomicU64,
}

/// What is remembered of the requests in a ring of places. A request takes one or more of them.
pub(crate) struct Shadow {
    places: Masked<Place>,
    /// Requests that were posted, counted without end. Written by the poster.
    posted: CachePadded<AtomicU32>,
    /// Requests that have ended. Written by the poller.
    freed: CachePadded<AtomicU32>,
    /// The place behind the last request that has ended. Written by the poller.
    freed_place: AtomicU32,
}

impl Shadow {
    /// A ring of `places`, a power of two of at most 2^15.
    pub(crate) fn new(places: u32) -> Self {
        assert!(places <= 1 << 15, "{places} places");
        Self {
            places: Masked::new(
                (0..places).map(|_| Place { wr_id: AtomicU64::new(0), what: AtomicU64::new(0) }),
            ),
            posted: CachePadded(AtomicU32::new(0)),
            freed: CachePadded(AtomicU32::new(0)),
            freed_place: AtomicU32::new(0),
        }
    }

    /// How many requests have ended.
    #[inline(always)]
    pub(crate) fn freed(&self) -> u32 {
        // Acquire: what the poller read of these places is read before the poster writes there anew.
        self.freed.load(Ordering::Acquire)
    }
    /// How many requests were posted.
    pub(crate) fn posted(&self) -> u32 {
        self.posted.load(Ordering::Acquire)
    }
    /// How many requests have not ended.
    #[cfg(test)]
    pub(crate) fn outstanding(&self) -> u32 {
        let freed = self.freed();
        self.posted().wrapping_sub(freed)
    }

    /// Notes request number `seq` at place `at`, `len` places long. By the poster only.
    #[inline(always)]
    pub(crate) fn note(&self, seq: u32, at: u16, len: u8, noted: Noted) {
        let place = self.places.get(at.into());
        let what = u64::from(seq) << 32 | u64::from(len) << 24 | u64::from(at) << 8 | u64::from(noted.tag);
        place.wr_id.store(noted.wr_id, Ordering::Relaxed);
        place.what.store(what, Ordering::Relaxed);
        // Release: pairs with the Acquire in `take`. The poller comes there by a completion, which the adapter wrote after it
        // had seen the doorbell, which is written after this; the barriers around those carry it.
        self.posted.store(seq.wrapping_add(1), Ordering::Release);
    }

    /// The request at place `at` has ended, and all before it. `None`: none that is outstanding is there. By the poller only.
    #[inline(always)]
    pub(crate) fn take(&self, at: u16) -> Option<Noted> {
        // Acquire: pairs with the Release in `note`.
        let posted = self.posted.load(Ordering::Acquire);
        // Relaxed: only the poller stores it.
        let freed = self.freed.load(Ordering::Relaxed);
        let place = self.places.get(at.into());
        let what = place.what.load(Ordering::Relaxed);
        let (seq, begin) = ((what >> 32) as u32, (what >> 8) as u16);
        let is_outstanding = seq.wrapping_sub(freed) < posted.wrapping_sub(freed);
        if !is_outstanding || (begin != at && !self.is_bare(at, begin)) {
            return None;
        }
        let noted = Noted { wr_id: place.wr_id.load(Ordering::Relaxed), tag: what as u8 };
        let behind = begin.wrapping_add((what >> 24 & 0xff) as u16);
        self.freed_place.store(behind.into(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `freed`.
        self.freed.store(seq.wrapping_add(1), Ordering::Release);
        Some(noted)
    }

    /// Whether a completion names a request that begins at `begin` by its place in the ring alone.
    #[cold]
    fn is_bare(&self, at: u16, begin: u16) -> bool {
        usize::from(begin) & self.places.mask() == usize::from(at)
    }

    /// Ends the oldest request that is outstanding. By the poller only, where the adapter completes nothing any more.
    pub(crate) fn take_oldest(&self) -> Option<Noted> {
        self.take(self.freed_place.load(Ordering::Relaxed) as u16)
    }

    /// Forgets all requests: the next one posted stands at place 0. While nobody posts or polls.
    pub(crate) fn clear(&self) {
        // Numbers go on, so that no place noted before is taken for one that is outstanding.
        self.freed_place.store(0, Ordering::Relaxed);
        self.freed.store(self.posted.load(Ordering::Acquire), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn noted(wr_id: u64, tag: u8) -> Noted {
        Noted { wr_id, tag }
    }

    #[test]
    fn a_request_that_completes_ends_those_before_it() {
        let s = Shadow::new(8);
        for (seq, at, len) in [(0, 0, 1), (1, 1, 3), (2, 4, 1)] {
            s.note(seq, at, len, noted(u64::from(seq) + 10, 7));
        }
        assert_eq!(s.outstanding(), 3);
        assert_eq!(s.take(1), Some(noted(11, 7)));
        assert_eq!((s.outstanding(), s.freed()), (1, 2));
        assert_eq!(s.take(1), None, "it has ended");
        assert_eq!(s.take(0), None, "as has the one before it");
        assert_eq!(s.take(2), None, "no request begins here");
        assert_eq!(s.take(12), None, "the same place, a round later");
        assert_eq!(s.take(4), Some(noted(12, 7)));
        assert_eq!(s.take(4), None);
    }

    #[test]
    fn a_completion_that_names_the_place_in_the_ring_alone_is_of_the_request_that_begins_there() {
        let s = Shadow::new(8);
        s.note(0, 20, 3, noted(10, 7));
        s.note(1, 23, 2, noted(11, 7));
        assert_eq!([5, 12, 28, 0x8004].map(|at| s.take(at)), [None; 4], "other places, other rounds");
        assert_eq!(s.take(4), Some(noted(10, 7)));
        assert_eq!(s.take(20), None, "it has ended");
        assert_eq!(s.take_oldest(), Some(noted(11, 7)));
    }

    #[test]
    fn what_was_noted_before_all_was_forgotten_is_not_found() {
        let s = Shadow::new(4);
        s.note(0, 0, 1, noted(1, 0));
        s.note(1, 1, 1, noted(2, 0));
        s.clear();
        assert_eq!((s.outstanding(), s.take(0), s.take(1)), (0, None, None));
        s.note(s.posted(), 0, 2, noted(3, 0));
        assert_eq!(s.take(1), None);
        assert_eq!(s.take_oldest(), Some(noted(3, 0)));
        assert_eq!(s.take_oldest(), None);
    }

    proptest! {
        #[test]
        fn each_request_is_found_once_or_ends_with_a_later_one(
            steps in prop::collection::vec((1..=4_u8, any::<bool>(), 0..6_u8), 1..300),
            start in any::<u32>(),
        ) {
            let s = Shadow::new(16);
            // As if many had been posted before.
            s.posted.store(start, Ordering::Relaxed);
            s.clear();
            let (mut seq, mut at, mut used) = (start, 0_u16, 0_usize);
            let mut outstanding: std::collections::VecDeque<(u16, u8, u64)> = Default::default();
            for (len, post, back) in steps {
                if post && used + usize::from(len) <= 16 {
                    s.note(seq, at, len, noted(seq.into(), len));
                    outstanding.push_back((at, len, seq.into()));
                    (seq, at, used) = (seq.wrapping_add(1), at.wrapping_add(len.into()), used + usize::from(len));
                } else if !outstanding.is_empty() {
                    let which = usize::from(back) % outstanding.len();
                    let (place, len, wr_id) = outstanding[which];
                    prop_assert_eq!(s.take(place), Some(noted(wr_id, len)));
                    prop_assert_eq!(s.take(place), None);
                    used -= outstanding.drain(..=which).map(|o| usize::from(o.1)).sum::<usize>();
                }
                prop_assert_eq!(s.outstanding() as usize, outstanding.len());
            }
            for (_, len, wr_id) in outstanding {
                prop_assert_eq!(s.take_oldest(), Some(noted(wr_id, len)));
            }
            prop_assert_eq!(s.take_oldest(), None);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// The adapter stands between the two: it completes what it was told of, by a word each.
    #[test]
    fn the_poller_finds_what_the_poster_noted_and_the_poster_finds_room() {
        loom::model(|| {
            let s = Arc::new(Shadow::new(1));
            let [bell, cqe] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
            let poller = {
                let (s, cqe) = (s.clone(), cqe.clone());
                loom::thread::spawn(move || {
                    let mut next = 0;
                    while next < 2 {
                        // Acquire: stands for the barrier behind the owner bit.
                        if cqe.load(Ordering::Acquire) > next {
                            let found = s.take(next as u16).expect("outstanding, as it completed");
                            assert_eq!(found, Noted { wr_id: 10 + u64::from(next), tag: next as u8 });
                            next += 1;
                        } else {
                            loom::thread::yield_now();
                        }
                    }
                })
            };
            let adapter = {
                let (bell, cqe) = (bell.clone(), cqe);
                loom::thread::spawn(move || {
                    for next in 1..=2 {
                        while bell.load(Ordering::Acquire) < next {
                            loom::thread::yield_now();
                        }
                        cqe.store(next, Ordering::Release);
                    }
                })
            };
            for seq in 0..2_u32 {
                while seq.wrapping_sub(s.freed()) >= 1 {
                    loom::thread::yield_now();
                }
                s.note(seq, seq as u16, 1, Noted { wr_id: 10 + u64::from(seq), tag: seq as u8 });
                // Release: stands for the barrier before the doorbell.
                bell.store(seq + 1, Ordering::Release);
            }
            poller.join().unwrap();
            adapter.join().unwrap();
        });
    }
}
