//! The time at which a manager has to be run, as its runner knows it.

use std::sync::atomic::{AtomicU64, Ordering};

use hca_core::Instant;

const NEVER: u64 = u64::MAX;

/// The time at which the manager has something to do, and the one that its runner (the device, or the manager's
/// thread) was told. Both in nanoseconds.
#[derive(Debug)]
pub(super) struct Alarm {
    due: AtomicU64,
    /// 0 while the runner is at work: it asks before it sleeps.
    told: AtomicU64,
}

impl Alarm {
    pub(super) fn new() -> Self {
        Self { due: AtomicU64::new(NEVER), told: AtomicU64::new(0) }
    }
    /// The manager has something to do at `due`. Returns whether the runner has to be called, as it sleeps longer.
    pub(super) fn set(&self, due: Option<Instant>) -> bool {
        let due = due.map_or(NEVER, Instant::as_nanos);
        // SeqCst: either this load sees the time that the runner was told, or the runner's second load sees `due`.
        self.due.store(due, Ordering::SeqCst);
        let oversleeps = due < self.told.load(Ordering::SeqCst);
        if oversleeps {
            self.told.store(0, Ordering::SeqCst);
        }
        oversleeps
    }
    /// The runner is at work.
    pub(super) fn runs(&self) {
        self.told.store(0, Ordering::SeqCst);
    }
    /// The runner is about to sleep, until this time. `None`: until it is called.
    pub(super) fn tell(&self) -> Option<Instant> {
        loop {
            let due = self.due.load(Ordering::SeqCst);
            self.told.store(due, Ordering::SeqCst);
            if self.due.load(Ordering::SeqCst) == due {
                return (due != NEVER).then(|| Instant::from_nanos(due));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runner_is_called_once_for_what_is_due_before_its_sleep_ends() {
        let at = |ns| Some(Instant::from_nanos(ns));
        let alarm = Alarm::new();
        assert!(!alarm.set(at(7)), "the runner asks before it sleeps");
        assert_eq!(alarm.tell(), at(7));
        assert_eq!([9, 7].map(|ns| alarm.set(at(ns))), [false; 2]);
        assert!(!alarm.set(None));
        assert!(alarm.set(at(6)));
        assert!(!alarm.set(at(5)), "it was called");
        assert_eq!(alarm.tell(), at(5));
        alarm.runs();
        assert!(!alarm.set(at(1)), "it is at work");
        alarm.set(None);
        assert_eq!(alarm.tell(), None);
        assert!(alarm.set(at(1_000)), "it sleeps until it is called");
    }
}
