//! Short turns: turns that look at shared memory alone, between whole ones.

use crate::clock;
use crate::patience;

/// Looks, or short turns, in a row at most: where one network alone is looked at, which shows its input in memory.
pub(super) const MOST: u32 = 256;
/// The same beside another network. A look at a socket is a system call, during which what a near peer sends or writes
/// waits. So the number doubles, up to [`MOST`], while near peers are talked with and the other network is silent.
const BESIDE_ANOTHER: u32 = 16;

/// When a whole turn is due.
pub(super) struct ShortTurns {
    /// Short turns until then.
    left: u32,
    /// Short turns from one whole turn to the next, and how many at least: none without near peers.
    in_a_row: u32,
    least: u32,
    /// Accesses of the memory of near peers that were done as they were posted.
    accesses: u64,
    /// Turns and these accesses before the last whole turn.
    before_whole: u64,
    /// When that began, in ticks.
    whole_at: u32,
}

impl ShortTurns {
    /// `near_is_alone`: near peers are the only network; `None` where there are none.
    pub(super) fn new(near_is_alone: Option<bool>) -> Self {
        let least = near_is_alone.map_or(0, |alone| if alone { MOST } else { BESIDE_ANOTHER });
        Self { left: 0, in_a_row: 0, least, accesses: 0, before_whole: 0, whole_at: clock::ticks() }
    }
    /// Whether so many short turns were done that a whole one is due.
    #[inline(always)]
    pub(super) fn are_done(&self) -> bool {
        self.left == 0
    }
    /// Whether a whole turn is due as the last one was some time ago.
    #[inline(always)]
    pub(super) fn are_late(&self) -> bool {
        clock::ticks().wrapping_sub(self.whole_at) > patience::of_short_turns()
    }
    /// One is done.
    #[inline(always)]
    pub(super) fn count(&mut self) {
        self.left -= 1;
    }
    /// How many are left, and when the last whole turn began, in ticks.
    #[inline]
    pub(super) fn left(&self) -> (u32, u32) {
        (self.left, self.whole_at)
    }
    /// The next turn is whole.
    #[inline(always)]
    pub(super) fn end(&mut self) {
        self.left = 0;
    }
    /// A whole turn begins, behind so many turns of all kinds; short ones follow.
    #[inline(always)]
    pub(super) fn begin(&mut self, turns: u64) {
        // Without near peers each turn is whole.
        if self.least > 0 {
            let done = turns + self.accesses;
            // The last whole turn was one.
            let were_near = done > self.before_whole + 1;
            self.before_whole = done;
            let doubled = if were_near { 2 * self.in_a_row } else { 0 };
            self.in_a_row = doubled.clamp(self.least, MOST);
            self.left = self.in_a_row;
            self.whole_at = clock::ticks();
        }
    }
    /// The memory of a near peer was accessed as it was posted.
    #[inline(always)]
    pub(super) fn note_access(&mut self) {
        self.accesses += 1;
    }
    /// The other network has brought packets.
    #[inline]
    pub(super) fn note_packets(&mut self) {
        self.in_a_row = self.least;
        self.left = self.left.min(self.least);
    }
    /// Whether this is one of `turns` short turns.
    #[inline(always)]
    pub(super) fn is_one_of(&self, turns: u32) -> bool {
        self.left.is_multiple_of(turns)
    }
}
