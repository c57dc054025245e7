//! Waiting for what another thread or process does.

use std::time::{Duration, Instant};

/// The longest wait: the machine may be busy with other programs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until that is so.
///
/// # Panics
/// If it is not so after a minute.
#[track_caller]
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}
