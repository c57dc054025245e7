//! Which rings a turn goes through.

use std::time::Duration;

use hca_core::Instant;

use super::link::Links;

/// Rings that are polled each turn, once the others were parked, which each [`TICK`] does.
pub(super) const HOT_RINGS: usize = 8;

/// Rings that are polled before some are parked again within a tick: one barrier, which takes as long as hundreds of
/// looks at a ring, then does for so many more.
pub(super) const MAX_POLLED: usize = HOT_RINGS + 64;

/// How often sockets are looked at while the adapter is busy.
pub(super) const TICK: Duration = Duration::from_millis(1);

/// The rings that are gone through: which are polled, and who called.
pub(super) struct Rounds {
    /// Turns so far.
    pub(super) turn: u64,
    /// When sockets are looked at next.
    pub(super) tick_at: Instant,
    /// Links whose rings are polled each turn.
    pub(super) polled: Vec<u32>,
    /// Which of them is looked at next.
    pub(super) look_at: usize,
    /// Links that were called for, to be gone through.
    pub(super) called: Vec<u32>,
    /// Links found to be over while rings were polled.
    pub(super) ended: u32,
    /// The link from which the scan of parked rings goes on.
    pub(super) scan_at: u32,
    /// Links whose rings were found full since there was room last.
    pub(super) full: Vec<u32>,
    /// The refused messages to wake a peer that were made up for.
    pub(super) woken_again: u64,
}

impl Rounds {
    pub(super) fn new() -> Self {
        Self {
            turn: 0,
            tick_at: Instant::ZERO,
            polled: Vec::with_capacity(2 * MAX_POLLED),
            look_at: 0,
            called: Vec::with_capacity(64),
            ended: 0,
            scan_at: 0,
            full: Vec::with_capacity(64),
            woken_again: 0,
        }
    }
    /// A ring was found full.
    pub(super) fn note_full(&mut self, links: &mut Links, slot: u32) {
        if let Some(link) = links.get_mut(slot)
            && !core::mem::replace(&mut link.listed_full, true)
        {
            self.full.push(slot);
        }
    }
    /// Before this side sleeps: asks the consumers of rings that were found full to call when there is room. `true`:
    /// they were not asked before.
    pub(super) fn ask_for_calls(&mut self, links: &mut Links) -> bool {
        let mut asked = false;
        for &slot in &self.full {
            asked |= links.get_mut(slot).is_some_and(|l| l.tx.ask_for_call());
        }
        asked
    }
    /// Whether there is room in a ring that was found full. Then the adapter sends again.
    pub(super) fn has_room(&mut self, links: &mut Links) -> bool {
        // The sender sees to impossible credits.
        let has_room =
            |slot: &u32| links.get_mut(*slot).is_some_and(|l| !matches!(l.tx.refresh(), Ok(false)));
        let any = self.full.iter().any(has_room);
        if any {
            for slot in self.full.drain(..) {
                if let Some(link) = links.get_mut(slot) {
                    link.listed_full = false;
                }
            }
        }
        any
    }
}
