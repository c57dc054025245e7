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
    use hca_core::marks;

    use super::Part;

    pub use marks::{begin, set_clock};

    /// The clock ticks that this thread has spent in each part since the last call.
    pub fn take() -> [u64; Part::ALL.len()] {
        let spent = marks::take();
        Part::ALL.map(|part| spent[part as usize].ticks)
    }
    /// Ends a part: the time since the last mark is counted for it.
    #[inline]
    pub fn mark(part: Part) {
        marks::mark(part as usize);
    }
}

pub use marks::*;
