//! The few words that an empty poll reads, without the engine's lock.
//!
//! A poller that found nothing to do under the lock knows where the next message will come, and that nothing waits to
//! be done. That stays so until somebody has the engine for more than a look, which is counted
//! ([`Shared::changes`](crate::shared::Shared)) before it is given back. So a poll that finds no change, nothing in
//! that place and no call has looked at all that a short turn looks at. As many come in a row as short turns would, and
//! for as long. Who rings a doorbell has the engine, or has its holder turn once more: that is a change, too.

use crate::clock;
use crate::engine::Engine;
use crate::patience;

/// A poller's own.
#[derive(Default)]
pub(crate) struct Glance {
    /// Where it is seen that the network has input.
    network: Option<hca_fabric::Glance>,
    /// How often the engine had been changed when this was made.
    changes: u32,
    /// Looks until a whole turn is due.
    left: u32,
    /// When the last one was, in ticks, and how many later the next one is due.
    whole_at: u32,
    ticks: u32,
    /// The last turn found nothing to do.
    idle: bool,
}

impl Glance {
    /// Whether nothing is to be done, if nothing but the network has changed since this was made.
    #[inline(always)]
    pub(crate) fn is_quiet(&mut self, changes: u32) -> bool {
        let (Some(network), Some(left)) = (&self.network, self.left.checked_sub(1)) else { return false };
        if self.changes != changes || !network.is_quiet() {
            return false;
        }
        self.left = left;
        clock::ticks().wrapping_sub(self.whole_at) <= self.ticks
    }
    /// Whether as many looks were made as may be between two whole turns, once.
    #[inline]
    pub(crate) fn take_spent(&mut self) -> bool {
        let spent = self.network.is_some() && self.left == 0;
        if spent {
            // Of no use until it is renewed.
            (self.left, self.changes) = (1, self.changes.wrapping_sub(1));
        }
        spent
    }
    /// The next poll looks at more.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
    /// Behind a turn: who turns in vain twice in a row is likely to go on.
    #[inline(always)]
    pub(crate) fn turned(&mut self, worked: bool, engine: &mut Engine, changes: u32) {
        if core::mem::replace(&mut self.idle, !worked) && !worked {
            self.renew(engine, changes);
        }
    }
    /// As the engine is now, in which nothing was found to do.
    #[inline]
    pub(crate) fn renew(&mut self, engine: &mut Engine, changes: u32) {
        (self.left, self.whole_at) = engine.renew_glance(&mut self.network);
        (self.changes, self.ticks) = (changes, patience::of_short_turns());
    }
}
