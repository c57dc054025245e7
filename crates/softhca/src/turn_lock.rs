//! The lock around the engine: who can't have it leaves word, and who has it looks once more.
//!
//! A thread that posts must never wait for another that turns, and what it posted must not lie until
//! the next turn. So it tries the lock; if that fails it sets `pending` and tries once more. The holder
//! looks at `pending` after it has unlocked. Both sides write, then fence, then read the other's word:
//! at least one of them sees it.

use std::sync::TryLockError;

use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, fence};

pub(crate) struct TurnLock<T> {
    inner: Mutex<T>,
    pending: AtomicBool,
}

impl<T> TurnLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: Mutex::new(value), pending: AtomicBool::new(false) }
    }

    /// Runs `f` if nobody holds the lock; else leaves word, so that the holder runs its own once more.
    /// `None`: another holder does the work.
    #[inline]
    pub(crate) fn turn_or_leave_word<R>(&self, mut f: impl FnMut(&mut T) -> R) -> Option<R> {
        if let Some(r) = self.try_turn(&mut f) {
            return Some(r);
        }
        self.pending.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.try_turn(f)
    }

    /// Runs `f` if nobody holds the lock, and again while word was left meanwhile.
    #[inline]
    pub(crate) fn try_turn<R>(&self, mut f: impl FnMut(&mut T) -> R) -> Option<R> {
        let mut result = None;
        while let Some(mut guard) = self.try_lock() {
            self.pending.store(false, Ordering::Relaxed);
            result = Some(f(&mut guard));
            drop(guard);
            fence(Ordering::SeqCst);
            if !self.pending.load(Ordering::Relaxed) {
                break;
            }
        }
        result
    }

    /// Waits for the lock and runs `f`: the control path. `again` is run for word left meanwhile.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R, again: impl FnMut(&mut T)) -> R {
        let mut guard = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let r = f(&mut guard);
        drop(guard);
        fence(Ordering::SeqCst);
        if self.pending.load(Ordering::Relaxed) {
            self.try_turn(again);
        }
        r
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.inner.try_lock() {
            Ok(g) => Some(g),
            // A panic of ours in a turn is a bug that was reported; the others may still close down.
            Err(TryLockError::Poisoned(p)) => Some(p.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, AtomicU32};

    /// Work is posted outside of the lock and taken inside; no posted work may be left lying once all
    /// threads are done.
    #[test]
    fn no_posted_work_is_left_lying() {
        loom::model(|| {
            let lock = Arc::new(TurnLock::new(0_u32));
            let posted = Arc::new(AtomicU32::new(0));
            let turn = |lock: &TurnLock<u32>, posted: &AtomicU32| {
                posted.fetch_add(1, Ordering::AcqRel);
                lock.turn_or_leave_word(|done| *done += posted.swap(0, Ordering::AcqRel));
            };
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let (lock, posted) = (lock.clone(), posted.clone());
                    loom::thread::spawn(move || turn(&lock, &posted))
                })
                .collect();
            for t in threads {
                t.join().unwrap();
            }
            assert_eq!(posted.load(Ordering::Acquire), 0);
            assert_eq!(lock.with(|done| *done, |_| ()), 2);
        });
    }
}
