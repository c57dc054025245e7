//! Marks between the parts of an operation, by which benches measure each part: feature `instrument`. The crates that
//! set marks name the parts.

use std::cell::{Cell, RefCell};
use std::sync::OnceLock;

/// The number of parts.
pub const PARTS: usize = 16;

/// The time spent in a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Ticks of the clock.
    pub ticks: u64,
    /// Marks that have ended the part.
    pub marks: u64,
}

static CLOCK: OnceLock<fn() -> u64> = OnceLock::new();

thread_local! {
    static LAST: Cell<u64> = const { Cell::new(0) };
    static SPENT: RefCell<[Spent; PARTS]> = const { RefCell::new([Spent { ticks: 0, marks: 0 }; PARTS]) };
    static HELD: RefCell<[Spent; PARTS]> = const { RefCell::new([Spent { ticks: 0, marks: 0 }; PARTS]) };
}

/// Sets the clock that the marks read, once for the process. Without a clock nothing is counted.
pub fn set_clock(clock: fn() -> u64) {
    // A second one would be no better.
    let _ = CLOCK.set(clock);
}
/// What this thread has spent in each part since the last call.
pub fn take() -> [Spent; PARTS] {
    SPENT.take()
}
/// Begins a part now, instead of at the last mark.
#[inline]
pub fn begin() {
    if let Some(clock) = CLOCK.get() {
        LAST.set(clock());
    }
}
/// Ends a part: the time since the last mark is counted for it. A part beyond the last is not counted.
#[inline]
pub fn mark(part: usize) {
    let Some(clock) = CLOCK.get() else { return };
    let now = clock();
    let last = LAST.replace(now);
    SPENT.with_borrow_mut(|spent| {
        if let Some(of) = spent.get_mut(part) {
            of.ticks += now.saturating_sub(last);
            of.marks += 1;
        }
    });
}
/// Remembers what was counted up to now.
#[inline]
pub fn hold() {
    HELD.set(SPENT.with_borrow(|spent| *spent));
}
/// Forgets what was counted since the last [`hold`]: a poll that has found nothing.
#[inline]
pub fn undo() {
    SPENT.set(HELD.with_borrow(|held| *held));
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn the_time_between_marks_is_the_part_of_the_later_one() {
        set_clock(|| NOW.get());
        let at = |now| NOW.set(now);
        at(100);
        begin();
        at(103);
        mark(2);
        at(110);
        mark(5);
        hold();
        at(150);
        mark(5);
        undo();
        mark(PARTS);
        at(151);
        mark(2);
        let spent = take();
        assert_eq!((spent[2], spent[5]), (Spent { ticks: 4, marks: 2 }, Spent { ticks: 7, marks: 1 }));
        assert_eq!((spent.iter().map(|s| s.ticks).sum::<u64>(), take()), (11, [Spent::default(); PARTS]));
    }
}
