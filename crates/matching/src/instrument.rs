//! Marks between the parts of a message's way at its target, by which benches measure each part. Without the feature
//! `instrument` the marks do nothing.

/// A part of a message's way at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Taking the lock of the object that holds the interface.
    Lock,
    /// Reading and checking the header.
    Inspect,
    /// Finding the entry.
    Match,
    /// Counting uses, offsets and operations under way.
    Housekeeping,
    /// Moving the bytes to their place.
    Bytes,
    /// Writing the event.
    Event,
    /// Unlinking an entry that was used up, and reporting that.
    Unlink,
    /// Releasing the lock.
    Unlock,
}

impl Part {
    /// All parts, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Lock,
        Self::Inspect,
        Self::Match,
        Self::Housekeeping,
        Self::Bytes,
        Self::Event,
        Self::Unlink,
        Self::Unlock,
    ];
}

#[cfg(not(feature = "instrument"))]
mod marks {
    use super::Part;

    /// Begins a part now, instead of at the last mark.
    #[inline(always)]
    pub fn begin() {}
    /// Ends a part: the time since the last mark is counted for it.
    #[inline(always)]
    pub fn mark(_: Part) {}
}

#[cfg(feature = "instrument")]
mod marks {
    use std::cell::Cell;
    use std::sync::OnceLock;

    use super::Part;

    static CLOCK: OnceLock<fn() -> u64> = OnceLock::new();

    thread_local! {
        static LAST: Cell<u64> = const { Cell::new(0) };
        static SPENT: [Cell<u64>; Part::ALL.len()] = const { [const { Cell::new(0) }; Part::ALL.len()] };
    }

    /// Sets the clock that the marks read, once for the process. Without a clock nothing is counted.
    pub fn set_clock(clock: fn() -> u64) {
        // A second one would be no better.
        let _ = CLOCK.set(clock);
    }
    /// The clock ticks that this thread has spent in each part since the last call.
    pub fn take() -> [u64; Part::ALL.len()] {
        SPENT.with(|spent| std::array::from_fn(|part| spent[part].replace(0)))
    }
    /// Begins a part now, instead of at the last mark.
    #[inline]
    pub fn begin() {
        if let Some(clock) = CLOCK.get() {
            LAST.set(clock());
        }
    }
    /// Ends a part: the time since the last mark is counted for it.
    #[inline]
    pub fn mark(part: Part) {
        let Some(clock) = CLOCK.get() else { return };
        let now = clock();
        let last = LAST.replace(now);
        SPENT.with(|spent| {
            let of = &spent[part as usize];
            of.set(of.get() + now.saturating_sub(last));
        });
    }
}

pub use marks::*;

#[cfg(all(test, feature = "instrument"))]
mod tests {
    use std::cell::Cell;

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
        mark(Part::Match);
        at(110);
        mark(Part::Event);
        at(111);
        mark(Part::Match);
        let spent = take();
        assert_eq!((spent[Part::Match as usize], spent[Part::Event as usize]), (4, 7));
        assert_eq!((spent.iter().sum::<u64>(), take()), (11, [0; Part::ALL.len()]));
    }
}
