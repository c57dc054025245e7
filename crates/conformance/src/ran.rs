//! How long something was waited for.

use std::time::{Duration, Instant};

/// Time that this process spent running: what it waited for a processor, stopped or not, counts little. What it waits
/// for may come a moment after it goes on, so waits end by this time and not by the clock.
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
    /// The sum, with what has passed since the last call, of which no more than a scheduler's slice counts.
    pub fn tick(&mut self) -> Duration {
        let now = Instant::now();
        self.total += now.duration_since(self.last).min(Duration::from_millis(4));
        self.last = now;
        self.total
    }
}
