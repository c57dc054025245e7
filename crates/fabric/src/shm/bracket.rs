//! The two sides of a direct access: the initiator announces it, and the owner, to revoke the memory, waits for its
//! end.
//!
//! ```text
//! makes it    in-use word := region       takes it back   generation := next
//!             (barrier)                                    barrier in every process
//!             generation, queue pair's word as granted?    in-use word names the region? wait
//!             yes: copies; no: nothing
//!             in-use word := 0
//! ```
//!
//! Either the initiator sees the new generation, or the owner sees the in-use word: each side writes before it reads,
//! and the barrier of the revoking owner serves for both sides ([`Barrier`]). The in-use word is in the outbox of the
//! initiator, the other two words are on the board of the memory's owner, so each word is written by one process only.
//!
//! An in-use word carries a count besides the region. If the word differs from the one that the owner saw behind the
//! barrier, it is from a later access, which found the new generation or did not use this region.

use super::memory::{OwnWord, PeerWord, PeerWords, Window};
use super::ring::Barrier;
use crate::sync::Ordering;

/// Bits of an in-use word that name the region, plus one; the others count.
const REGION_BITS: u32 = 14;
const REGION_MASK: u32 = (1 << REGION_BITS) - 1;
#[cfg(not(loom))]
const _: () = assert!(super::grant::MAX_GRANTED_REGIONS < REGION_MASK);

/// What is looked at before an access, and what has to stand there.
pub(super) struct Terms<'a> {
    /// The region's word on the board of the memory's owner.
    pub(super) generation_now: &'a PeerWord,
    pub(super) generation: u32,
    /// The queue pairs' words on the same board, and which of them is looked at.
    pub(super) qp_words: &'a PeerWords,
    pub(super) qp: u32,
    pub(super) qp_word: u64,
}

/// The reason why an access does not go ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stale {
    Generation,
    QueuePair(u64),
}

/// Begins an access to a region, if the terms hold. Otherwise the in-use word is down again.
#[inline(always)]
pub(super) fn enter(
    in_use: &OwnWord,
    region: u32,
    count: u32,
    terms: &Terms<'_>,
    barrier: Barrier,
) -> Result<(), Stale> {
    let word = count << REGION_BITS | (region + 1);
    // Release: this word says, too, that the copies of the access before are done.
    in_use.store(word, Ordering::Release);
    barrier.on_showing();
    // Acquire, both: what the owner did before it published them is done.
    let generation = terms.generation_now.load(Ordering::Acquire);
    let qp_word = terms.qp_words.load(terms.qp, Ordering::Acquire);
    if generation == terms.generation && qp_word == terms.qp_word {
        return Ok(());
    }
    leave(in_use);
    Err(if generation == terms.generation { Stale::QueuePair(qp_word) } else { Stale::Generation })
}

/// Ends an access.
#[inline(always)]
pub(super) fn leave(in_use: &OwnWord) {
    // Release: all copies are done for who sees this. Pairs with the Acquire in `seen`.
    in_use.store(0, Ordering::Release);
}

/// What a peer says that it is within. Behind a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen(u32);

impl Seen {
    /// The region, if it is within one.
    pub(super) fn region(self) -> Option<u32> {
        (self.0 & REGION_MASK).checked_sub(1)
    }
}

#[inline]
pub(super) fn seen(peer: &Window, in_use_at: usize) -> Seen {
    Seen(peer.word(in_use_at, Ordering::Acquire))
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::super::memory::{LINE, Segment};
    use super::*;
    use crate::sync::{Arc, AtomicU32};

    const GENERATION_AT: usize = 0;
    const QP: u32 = 1;

    /// Two accesses, one after the other, against a revocation: once that has returned, nothing changes the memory.
    /// `by_qp`: the queue pair's word is withdrawn, and not the region.
    fn accesses_against_revocation(by_qp: bool) {
        loom::model(move || {
            let (own, board) = (Segment::heap(LINE), Segment::heap(LINE));
            let (peer, published) = (own.window(), board.window());
            let memory = Arc::new(AtomicU32::new(0));
            let target = Arc::clone(&memory);
            let (in_use, generation_now) = (own.word_at(0), published.word_at(GENERATION_AT));
            let qp_words = published.words64(0, 2);
            let t = loom::thread::spawn(move || {
                for count in 1..=2 {
                    let terms = Terms {
                        generation_now: &generation_now,
                        generation: 0,
                        qp_words: &qp_words,
                        qp: QP,
                        qp_word: 0,
                    };
                    if enter(&in_use, 4, count, &terms, Barrier::Fence).is_ok() {
                        target.store(count, Ordering::Relaxed);
                        leave(&in_use);
                    }
                }
            });
            let at = if by_qp { QP as usize * 8 } else { GENERATION_AT };
            board.word(at).store(1, Ordering::Release);
            Barrier::Fence.on_parking();
            let first = seen(&peer, 0);
            if first.region() == Some(4) {
                while seen(&peer, 0) == first {
                    loom::thread::yield_now();
                }
            }
            let left = memory.load(Ordering::Relaxed);
            t.join().unwrap();
            assert_eq!(memory.load(Ordering::Relaxed), left, "it changed behind the revocation");
        });
    }

    #[test]
    fn loom_nothing_changes_behind_a_revocation() {
        accesses_against_revocation(false);
    }
    #[test]
    fn loom_nothing_changes_behind_the_withdrawal_of_a_queue_pairs_word() {
        accesses_against_revocation(true);
    }
}
