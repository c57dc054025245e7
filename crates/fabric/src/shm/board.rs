//! The board on which an adapter publishes the words that peers check before each access.
//!
//! ```text
//! board    page 0   whether the adapter sleeps
//!          then     a word (u64) for each queue pair
//!          then     a generation (u32) for each region that is granted
//!          then     a page of words (u32) that change when the loans by a key end
//! ```
//!
//! Only the owner writes the board, and its pages are allocated on first use.

use hca_core::Access;

use super::bell::PAGE_BYTES;
use super::grant::{MAX_GRANTED_REGIONS, MAX_QP_WORDS};
use super::memory::LINE;
use super::pages::PAGE;

/// Where the words of queue pairs begin on a board.
pub(super) const QP_WORDS_AT: usize = PAGE_BYTES;
/// Where the generations of regions begin.
pub(super) const GENERATIONS_AT: usize = QP_WORDS_AT + MAX_QP_WORDS as usize * 8;
/// Where the words of loans are.
pub(super) const LOAN_WORDS_AT: usize = GENERATIONS_AT + MAX_GRANTED_REGIONS as usize * 4;
/// Bytes of a board.
pub(super) const BOARD_BYTES: usize = LOAN_WORDS_AT + PAGE;
const BOARD_PAGES: usize = BOARD_BYTES / PAGE;
const _: () = assert!(BOARD_BYTES.is_multiple_of(PAGE));

/// Where an outbox of this size says what its owner is within: its last line, as far from the ring as can be.
pub(super) fn in_use_at(outbox_bytes: usize) -> usize {
    outbox_bytes - LINE
}

pub(super) fn qp_word_at(slot: u32) -> usize {
    assert!(slot < MAX_QP_WORDS, "queue pair {slot} of {MAX_QP_WORDS}");
    QP_WORDS_AT + slot as usize * 8
}

pub(super) fn generation_at(region: u32) -> usize {
    GENERATIONS_AT + region as usize * 4
}

/// Pages, by a bit each.
#[derive(Clone, Copy, Default)]
pub(super) struct Bits([u64; BOARD_PAGES.div_ceil(64)]);

impl Bits {
    pub(super) fn has(&self, page: usize) -> bool {
        self.0[page / 64] >> (page % 64) & 1 != 0
    }
    pub(super) fn set(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }
}

pub(super) fn is_writable(access: Access) -> bool {
    access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}
