//! The lock around the engine: who can't have it leaves word, and who has it looks once more.
//!
//! A thread that posts must never wait for another that turns, and what it posted must not lie until
//! the next turn. So lock and word are one atomic: who finds it held marks it, and who unlocks it finds
//! the mark by the same exchange and runs once more. Taking and giving back cost one exchange each.
//!
//! Invariants of the unsafe code:
//! 1. The value is reached only by who moved `state` from `FREE` to `HELD`, until it moves it back.
//!    [`Guard`] does both, so the two come in pairs, also when a turn panics.
//! 2. `state` is taken with Acquire and given back with Release. A mark is made with Release and found
//!    with Acquire, so that the next turn sees what was posted before it.
#![allow(unsafe_code)]

use crate::sync::{AtomicU32, Ordering, UnsafeCell, yield_now};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and word was left.
const MARKED: u32 = 2;
/// Looks at a held lock before the CPU is given to somebody else.
const SPINS: u32 = 64;

pub(crate) struct TurnLock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: (1) one thread at a time reaches the value, and (2) orders one after the other.
unsafe impl<T: Send> Sync for TurnLock<T> {}

/// The lock, held.
struct Guard<'a, T>(&'a TurnLock<T>);

impl<T> Guard<'_, T> {
    #[inline]
    fn run<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: (1) a guard exists only while the lock is held, and it is borrowed for the call.
        self.0.value.with_mut(|p| f(unsafe { &mut *p }))
    }
    /// Gives the lock back. Returns whether word was left.
    #[inline]
    fn unlock(self) -> bool {
        let state = &self.0.state;
        core::mem::forget(self);
        state.swap(FREE, Ordering::AcqRel) == MARKED
    }
}
impl<T> Drop for Guard<'_, T> {
    /// After a panic in a turn, a bug that was reported: the others may still close down.
    fn drop(&mut self) {
        self.0.state.swap(FREE, Ordering::AcqRel);
    }
}

impl<T> TurnLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Runs `f` if nobody holds the lock, and again while word was left meanwhile; else leaves word, so
    /// that the holder runs its own once more. `None`: another holder does the work.
    #[inline]
    pub(crate) fn turn_or_leave_word<R>(&self, mut f: impl FnMut(&mut T) -> R) -> Option<R> {
        let mut result = None;
        loop {
            match self.lock_once() {
                Ok(mut guard) => {
                    result = Some(guard.run(&mut f));
                    if !guard.unlock() {
                        return result;
                    }
                }
                Err(held) => {
                    let marked =
                        self.state.compare_exchange(held, MARKED, Ordering::Release, Ordering::Relaxed);
                    if marked.is_ok() {
                        return result;
                    }
                }
            }
        }
    }

    /// As [`turn_or_leave_word`](Self::turn_or_leave_word), but leaves no word where the lock is held.
    #[inline]
    pub(crate) fn try_turn<R>(&self, mut f: impl FnMut(&mut T) -> R) -> Option<R> {
        let mut guard = self.lock_once().ok()?;
        let result = guard.run(&mut f);
        if guard.unlock() {
            return self.turn_or_leave_word(f).or(Some(result));
        }
        Some(result)
    }

    /// Waits for the lock and runs `f`: the control path. A turn is bounded, so the wait is. `again` is run
    /// for word left meanwhile.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R, again: impl FnMut(&mut T)) -> R {
        let mut looks = 0_u32;
        let mut guard = loop {
            if let Ok(guard) = self.lock_once() {
                break guard;
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(SPINS) {
                yield_now();
            } else {
                core::hint::spin_loop();
            }
        };
        let r = guard.run(f);
        if guard.unlock() {
            self.turn_or_leave_word(again);
        }
        r
    }

    /// The lock, or the state that says that another has it.
    #[inline]
    fn lock_once(&self) -> Result<Guard<'_, T>, u32> {
        self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).map(|_| Guard(self))
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
