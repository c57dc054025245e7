//! Waiting for what another thread or process does.

use std::sync::mpsc;
use std::thread;
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

/// Runs `f` on a thread of its own, and returns its value.
///
/// # Panics
/// If it has not ended after a minute, or panics.
#[track_caller]
pub fn ends<R: Send + 'static>(what: &str, f: impl FnOnce() -> R + Send + 'static) -> R {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || _ = tell.send(f()));
    told.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{what}: {e}"))
}
