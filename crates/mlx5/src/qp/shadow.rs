//! The driver's record of the requests in a queue: the program's number of each, by its index.
//!
//! The posting thread and the polling thread share a queue without a lock. The poster records a request at the
//! request's place. The poller finds that place in a completion, checks whether the request there is outstanding, and
//! copies its record to `ended`. Requests of a queue end in order, so all requests before the completed one have ended,
//! too.
//!
//! A completion names a place by a counter of 16 bits, which goes on behind the ring's last place. Linux's network
//! driver relies on all 16 bits in its send queues (`mlx5e_poll_tx_cq` in en_tx.c compares the number with a counter of
//! its own). For queue pairs' queues no public source confirms that: rdma-core (cq.c) and mlx5_ib use only the bits
//! that number the ring's places. So the driver checks a counter in full, and also accepts a bare place, with zeros
//! above it.
//!
//! All of the record is atomics. So the worst effect of wrong completions from an adapter is a wrong number, and never
//! the number of a request that is not outstanding.

use crate::masked::Masked;
use crate::sync::{AtomicU64, CachePadded, Ordering};

/// A request that was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    /// The program's number.
    pub(crate) wr_id: u64,
    /// What else was noted, 8 bits.
    pub(crate) tag: u8,
}

/// A request in one word: its number in the queue (bits 0 to 31), the tag (32 to 39), how many places it takes (40 to
/// 47), and the first of them (48 to 63).
#[derive(Clone, Copy)]
struct Note(u64);

impl Note {
    #[inline(always)]
    fn new(seq: u32, at: u16, len: u8, tag: u8) -> Self {
        Self(u64::from(at) << 48 | u64::from(len) << 40 | u64::from(tag) << 32 | u64::from(seq))
    }
    #[inline(always)]
    fn seq(self) -> u32 {
        self.0 as u32
    }
    #[inline(always)]
    fn tag(self) -> u8 {
        (self.0 >> 32) as u8
    }
    #[inline(always)]
    fn at(self) -> u16 {
        (self.0 >> 48) as u16
    }
    /// The place behind it.
    fn behind(self) -> u16 {
        self.at().wrapping_add((self.0 >> 40 & 0xff) as u16)
    }
}

struct Place {
    wr_id: AtomicU64,
    /// The [`Note`] of the request that was the last to begin here.
    note: AtomicU64,
}

/// What is remembered of the requests in a ring of places. A request takes one or more of them.
pub(crate) struct Shadow {
    places: Masked<Place>,
    /// The [`Note`] of the last request that has ended. Written by the poller.
    ended: CachePadded<AtomicU64>,
}

impl Shadow {
    /// A ring of `places`, a power of two of at most 2^15.
    pub(crate) fn new(places: u32) -> Self {
        assert!(places <= 1 << 15, "{places} places");
        // As if the request before the first one had ended, and stood everywhere.
        let none = || AtomicU64::new(Note::new(u32::MAX, 0, 0, 0).0);
        let place = |_| Place { wr_id: AtomicU64::new(0), note: none() };
        Self { places: Masked::new((0..places).map(place)), ended: CachePadded::new(none()) }
    }

    /// The number of the oldest request that has not ended, or of the next one if all have.
    #[inline(always)]
    pub(crate) fn oldest(&self) -> u32 {
        // Acquire: what the poller read of the places before is read before the poster writes there anew.
        Note(self.ended.load(Ordering::Acquire)).seq().wrapping_add(1)
    }
    /// How many requests have not ended.
    #[cfg(test)]
    pub(crate) fn outstanding(&self) -> usize {
        let notes = self.places.iter().map(|p| Note(p.note.load(Ordering::Relaxed)));
        let ended = Note(self.ended.load(Ordering::Relaxed));
        notes
            .enumerate()
            .filter(|(i, n)| usize::from(n.at()) & self.places.mask() == *i && self.is_outstanding(*n, ended))
            .count()
    }

    /// Notes request number `seq` at place `at`, `len` places long. By the poster only: the first number is
    /// [`oldest`](Self::oldest), then they count on.
    #[inline(always)]
    pub(crate) fn note(&self, seq: u32, at: u16, len: u8, noted: Noted) {
        let place = self.places.get(at.into());
        place.wr_id.store(noted.wr_id, Ordering::Relaxed);
        // Release: pairs with the Acquire in `take`.
        place.note.store(Note::new(seq, at, len, noted.tag).0, Ordering::Release);
    }

    /// Whether a request comes behind the last one that has `ended`. There are no more of them than places.
    #[inline(always)]
    fn is_outstanding(&self, note: Note, ended: Note) -> bool {
        note.seq().wrapping_sub(ended.seq()).wrapping_sub(1) as usize <= self.places.mask()
    }

    /// The request at place `at` has ended, and all before it. `None`: none that is outstanding is there. By the poller
    /// only.
    #[inline(always)]
    pub(crate) fn take(&self, at: u16) -> Option<Noted> {
        let place = self.places.get(at.into());
        // Acquire: pairs with the Release in `note`. The poller comes here by a completion, which the adapter wrote
        // after it had seen the doorbell, which is written after that; the barriers around those carry it.
        let note = Note(place.note.load(Ordering::Acquire));
        // Relaxed: only the poller stores it.
        let ended = Note(self.ended.load(Ordering::Relaxed));
        if !self.is_outstanding(note, ended) || (note.at() != at && !self.is_bare(at)) {
            return None;
        }
        let noted = Noted { wr_id: place.wr_id.load(Ordering::Relaxed), tag: note.tag() };
        // Release: pairs with the Acquire in `oldest`.
        self.ended.store(note.0, Ordering::Release);
        Some(noted)
    }

    /// Whether a completion may name a request by its place in the ring alone: there is nothing above it.
    #[inline(always)]
    fn is_bare(&self, at: u16) -> bool {
        usize::from(at) <= self.places.mask()
    }

    /// Ends the oldest request that is outstanding. By the poller only, where the adapter completes nothing any more.
    pub(crate) fn take_oldest(&self) -> Option<Noted> {
        self.take(Note(self.ended.load(Ordering::Relaxed)).behind())
    }

    /// Forgets all requests: the next one posted stands at place 0. While nobody polls.
    pub(crate) fn clear(&self) {
        // Numbers go on behind all that are outstanding, so that nothing noted before is taken for one that is.
        let ended = Note(self.ended.load(Ordering::Relaxed)).seq();
        let ended = ended.wrapping_add(self.places.mask() as u32 + 1);
        self.ended.store(Note::new(ended, 0, 0, 0).0, Ordering::Release);
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
        assert_eq!((s.outstanding(), s.oldest()), (1, 2));
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
        // By who has not seen it yet.
        s.note(2, 2, 1, noted(4, 0));
        assert_eq!(s.take(2), None);
        s.note(s.oldest(), 0, 2, noted(3, 0));
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
            s.ended.store(Note::new(start.wrapping_sub(1), 0, 0, 0).0, Ordering::Relaxed);
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
                prop_assert_eq!(s.outstanding(), outstanding.len());
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
    use crate::sync::AtomicU32;
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
                while seq.wrapping_sub(s.oldest()) >= 1 {
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
