//! Calls of a producer to a consumer that does not poll its ring: a bit in a page that all peers may write, and, if the
//! consumer sleeps, a message over the link's socket. A page that only the consumer writes tells whether the consumer
//! sleeps.
//!
//! A peer that misuses the first page delays other peers' packets at most: bits are hints, a consumer that a socket
//! wakes polls that link's ring, and rings that are not polled otherwise are polled now and then anyway; where peers may
//! be of other users, each of them before the consumer sleeps.

use super::memory::{LINE, Segment, Window};
#[cfg(not(loom))]
use crate::glance::InputWord;
use crate::sync::{Ordering, fence};

/// Bytes of either page.
#[cfg(not(loom))]
pub(super) const PAGE_BYTES: usize = 4096;
/// Where the bits stand that say in which words there are bits.
const SUMMARY_AT: usize = 0;
/// Where the words of bits begin.
const WORDS_AT: usize = 2 * LINE;
/// Links that have a bit of their own; those beyond share them.
pub(super) const BITS: u32 = 1024;
/// Where it stands that the consumer sleeps.
pub(super) const SLEEPS_AT: usize = 0;

/// The consumer's end: the page of bits, and the page that says whether it sleeps.
pub(super) struct Doorbells {
    bits: Segment,
    board: Segment,
    sleeps: bool,
}

impl Doorbells {
    pub(super) fn new(bits: Segment, board: Segment) -> Self {
        Self { bits, board, sleeps: false }
    }
    /// A producer of ours, which calls ourselves.
    pub(super) fn caller(&self, bit: u32) -> Caller {
        Caller::new(self.bits.clone(), self.board.window(), bit)
    }
    /// Whether a producer has called.
    #[inline(always)]
    pub(super) fn rung(&self) -> bool {
        self.bits.word(SUMMARY_AT).load(Ordering::Relaxed) != 0
    }
    /// The word that tells so, to be looked at without the fabric.
    #[cfg(not(loom))]
    pub(super) fn glance(&self) -> InputWord {
        self.bits.glance(SUMMARY_AT, 0)
    }
    /// Takes the bits of all that have called.
    pub(super) fn take(&self, mut called: impl FnMut(u32)) {
        // Acquire: pairs with the exchange in `Caller::call`; the word's bit was set before.
        let mut groups = self.bits.word(SUMMARY_AT).swap(0, Ordering::AcqRel);
        while groups != 0 {
            let group = groups.trailing_zeros();
            groups &= groups - 1;
            let mut bits = self.bits.word(WORDS_AT + group as usize * 4).swap(0, Ordering::AcqRel);
            while bits != 0 {
                called(group * 32 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
    /// Says that the consumer is about to sleep. A barrier is due, and one more look at everything.
    pub(super) fn sleep(&mut self) {
        self.sleeps = true;
        self.board.word(SLEEPS_AT).store(1, Ordering::Release);
    }
    /// Whether it has said that it sleeps.
    #[cfg(not(loom))]
    pub(super) fn sleeps(&self) -> bool {
        self.sleeps
    }
    /// Says that it does not.
    pub(super) fn wake(&mut self) {
        self.sleeps = false;
        self.board.word(SLEEPS_AT).store(0, Ordering::Relaxed);
    }
}

/// A producer's end.
pub(super) struct Caller {
    bits: Segment,
    board: Window,
    bit: u32,
}

impl Caller {
    /// `bit` is what the consumer said, any value.
    pub(super) fn new(bits: Segment, board: Window, bit: u32) -> Self {
        Self { bits, board, bit: bit % BITS }
    }
    /// Calls the consumer. `true`: it sleeps, and has to be woken.
    pub(super) fn call(&self) -> bool {
        let (group, bit) = (self.bit / 32, self.bit % 32);
        self.bits.word(WORDS_AT + group as usize * 4).fetch_or(1 << bit, Ordering::AcqRel);
        self.bits.word(SUMMARY_AT).fetch_or(1 << group, Ordering::AcqRel);
        // Pairs with the barrier behind `Doorbells::sleep`: either the consumer sees the bit, or we see it sleep.
        fence(Ordering::SeqCst);
        self.board.word(SLEEPS_AT, Ordering::Acquire) != 0
    }
}
