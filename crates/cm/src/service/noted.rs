//! A value whose holder does the work of those that found the value held.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A value under a lock, and a note that there is work to be done with it.
#[derive(Debug)]
pub(super) struct Noted<T> {
    value: Mutex<T>,
    note: AtomicBool,
}

impl<T> Noted<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), note: AtomicBool::new(false) }
    }
    /// Waits for the value. The caller [takes the note](Self::take_note) once it has given the value back.
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Leaves a note. The caller takes it at once, or the holder of the value does so later.
    pub(super) fn leave_note(&self) {
        self.note.store(true, Ordering::Relaxed);
    }
    /// Takes the note, and the value to do the work with. `None`: there is no note, or another thread has the value and
    /// takes the note once it has given the value back. Never waits.
    pub(super) fn take_note(&self) -> Option<MutexGuard<'_, T>> {
        // Behind the note and in front of the attempt at the lock, or behind a release of the lock and in front of the
        // look for a note: one of two threads sees the other's.
        fence(Ordering::SeqCst);
        if !self.note.load(Ordering::Relaxed) {
            return None;
        }
        let value = match self.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(value)) => value.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.note.store(false, Ordering::Relaxed);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_that_finds_the_value_held_is_the_holders() {
        let noted = Noted::new(0);
        let held = noted.lock();
        noted.leave_note();
        assert!(noted.take_note().is_none(), "the value is held, also by this thread");
        drop(held);
        assert!(noted.take_note().is_some());
        assert!(noted.take_note().is_none(), "it was taken");
    }

    #[test]
    fn no_note_is_lost_between_threads() {
        const NOTES: u32 = 20_000;
        let noted = Noted::new((0, 0));
        let work = || {
            while let Some(mut value) = noted.take_note() {
                value.1 = value.0;
            }
        };
        let come = || {
            for _ in 0..NOTES {
                noted.lock().0 += 1;
                noted.leave_note();
                work();
            }
        };
        std::thread::scope(|s| {
            s.spawn(come);
            s.spawn(come);
            s.spawn(|| {
                for _ in 0..NOTES {
                    drop(noted.lock());
                    work();
                }
            });
        });
        assert_eq!(*noted.lock(), (2 * NOTES, 2 * NOTES));
    }
}
