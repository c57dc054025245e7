//! [`Ran`]: the measure of a wait's duration.

use std::time::{Duration, Instant};

/// The time that this process spent running: time without a processor, stopped or not, counts little. An awaited result
/// may arrive a moment after the process continues, so waits end by this time and not by the clock.
#[derive(Debug)]
pub struct Ran {
    last: Instant,
    total: Duration,
}

impl Default for Ran {
    fn default() -> Self {
        Self::new()
    }
}

impl Ran {
    /// A record of no check so far.
    #[must_use]
    pub fn new() -> Self {
        Self { last: Instant::now(), total: Duration::ZERO }
    }
    /// The sum, including the time since the last call, of which at most a scheduler's slice counts.
    pub fn tick(&mut self) -> Duration {
        let now = Instant::now();
        self.total += now.duration_since(self.last).min(Duration::from_millis(4));
        self.last = now;
        self.total
    }
}
