//! Which rings a turn goes through.

use std::time::Duration;

/// Rings that are polled each turn, once the others were parked, which each [`TICK`] does.
pub(super) const HOT_RINGS: usize = 8;

/// Rings that are polled before some are parked again within a tick: one barrier, which takes as long as hundreds of
/// looks at a ring, then does for so many more.
pub(super) const MAX_POLLED: usize = HOT_RINGS + 64;

/// How often sockets are looked at while the adapter is busy.
pub(super) const TICK: Duration = Duration::from_millis(1);

/// The rings that are gone through: which are polled, and who called.
pub(super) struct Rounds {
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
}

impl Rounds {
    pub(super) fn new() -> Self {
        Self {
            polled: Vec::with_capacity(2 * MAX_POLLED),
            look_at: 0,
            called: Vec::with_capacity(64),
            ended: 0,
            scan_at: 0,
            full: Vec::with_capacity(64),
        }
    }
}
