//! Empty polls without the engine's lock: the few words that such a poll reads.
//!
//! A poller that found no work under the lock knows the places where the next message will arrive, and that no work
//! waits. Both stay true until a thread takes the engine for more than a poll; that thread counts the change
//! (`changes` in `shared`) before it releases the engine. So a poll that finds no change, no
//! message in these places and no call has checked everything that a short turn checks. The limits of such polls in a
//! row, in number and in time, are those of short turns. A thread that rings a doorbell takes the engine, or makes its
//! holder turn once more: that is a change, too.

use crate::clock;
use crate::engine::Engine;
use crate::patience;

/// A poller's own.
#[derive(Default)]
pub(crate) struct Glance {
    /// Where it is seen that the network has input.
    network: hca_fabric::Glance,
    /// `network` shows where input is seen.
    shows: bool,
    /// How often the engine had been changed when this was made.
    changes: u32,
    /// Looks until a whole turn is due, and how many they were; none where this shows nothing.
    left: u32,
    looks: u32,
    /// When the last one was, in ticks, and how many later the next one is due.
    whole_at: u32,
    ticks: u32,
    /// How often the engine had been changed by the end of the last turn that found nothing to do.
    idle_at: u32,
}

impl Glance {
    /// Whether nothing is to be done, if nothing but the network has changed since this was made.
    #[inline(always)]
    pub(crate) fn is_quiet(&mut self, changes: u32) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        if self.changes != changes || !self.network.is_quiet() {
            return false;
        }
        self.left = left;
        clock::ticks().wrapping_sub(self.whole_at) <= self.ticks
    }
    /// Whether as many looks were made as may be between two whole turns, once.
    #[inline]
    pub(crate) fn take_spent(&mut self) -> bool {
        let spent = self.looks > 0 && self.left == 0;
        if spent {
            // Of no use until it is renewed.
            self.looks = 0;
        }
        spent
    }
    /// The next poll looks at more.
    pub(crate) fn forget(&mut self) {
        (self.left, self.looks) = (0, 0);
    }
    /// Behind a turn that found nothing: who turns in vain twice in a row, with nobody at the engine meanwhile, is
    /// likely to go on.
    #[inline(always)]
    pub(crate) fn turned_in_vain(&mut self, engine: &mut Engine, changes: u32) {
        if changes == core::mem::replace(&mut self.idle_at, changes).wrapping_add(1) {
            self.renew(engine, changes);
        }
    }
    /// As the engine is now, in which nothing was found to do.
    #[inline]
    pub(crate) fn renew(&mut self, engine: &mut Engine, changes: u32) {
        (self.left, self.whole_at) = engine.renew_glance(&mut self.network);
        self.looks = self.left;
        let shows = self.looks > 0;
        if core::mem::replace(&mut self.shows, shows) && !shows {
            // The memory that it showed may go.
            self.network = hca_fabric::Glance::default();
        }
        (self.changes, self.ticks) = (changes, patience::of_short_turns());
    }
}
