//! [`Pause`]: the pauses of a wait.

use std::time::{Duration, Instant};

/// The time for which a wait only yields: most results are there within it.
const YIELDS_FOR: Duration = Duration::from_millis(1);
/// The sleep between two looks after that.
const SLEEP: Duration = Duration::from_micros(100);

/// The pauses of a wait, between one look and the next. As long as anything moves it yields. When nothing has moved for a
/// while the wait is one for a timer or for another process: it sleeps between looks, and leaves the processor to the
/// tests that run beside it.
#[derive(Debug)]
pub struct Pause {
    moved: Instant,
}

impl Default for Pause {
    fn default() -> Self {
        Self::new()
    }
}

impl Pause {
    /// The pauses of a wait that begins.
    #[must_use]
    pub fn new() -> Self {
        Self { moved: Instant::now() }
    }

    /// Pauses; `moved` says whether anything has moved since the last pause.
    pub fn rest(&mut self, moved: bool) {
        if moved {
            self.moved = Instant::now();
        }
        if self.moved.elapsed() < YIELDS_FOR {
            std::thread::yield_now();
        } else {
            std::thread::sleep(SLEEP);
        }
    }
}
