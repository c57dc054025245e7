//! The lock of a node: whoever comes while it is held, and only wants the work done, leaves word and goes.
//!
//! Invariants of the unsafe code:
//! 1. The value is reached through a [`Guard`] only, and there is one at a time: it is made by who moved the word from
//!    `FREE`, and the word goes back to `FREE` when it is dropped.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::sync::{AtomicU32, Ordering, UnsafeCell};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody left word that there is work.
const WANTED: u32 = 2;

/// Looks before a waiter gives way to other threads, and times that it gives way before it sleeps.
const SPINS: u32 = 64;
const YIELDS: u32 = 256;
const NAP: Duration = Duration::from_micros(50);

/// A value that one thread at a time uses.
pub(crate) struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: (1): a guard is the only way to the value, and moves it between threads as a `Mutex` would.
unsafe impl<T: Send> Send for Lock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Acquire: pairs with the Release of `unlock`.
        let taken = self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Guard { lock: self })
    }
    /// Waits for it. Sections under it are short and never wait for anybody.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }
    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        let mut tries = 0;
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            tries += 1;
            match tries {
                0..SPINS => crate::sync::spin_loop(),
                SPINS..YIELDS => crate::sync::yield_now(),
                _ => crate::sync::sleep(NAP),
            }
        }
    }
    /// Takes it, or leaves word for who holds it: [`Guard::unlock`] will say so.
    pub(crate) fn lock_or_leave_word(&self) -> Option<Guard<'_, T>> {
        loop {
            if let Some(guard) = self.try_lock() {
                return Some(guard);
            }
            // Release: what came before is seen by who finds the word.
            match self.word.compare_exchange(HELD, WANTED, Ordering::Release, Ordering::Relaxed) {
                Ok(_) | Err(WANTED) => return None,
                Err(_) => {}
            }
        }
    }
}

/// The value, until it is dropped or [unlocked](Self::unlock).
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Guard<'_, T> {
    /// Gives it back; whether somebody left word meanwhile.
    #[inline]
    #[must_use = "somebody may have left word"]
    pub(crate) fn unlock(self) -> bool {
        let lock = self.lock;
        std::mem::forget(self);
        // AcqRel: Release pairs with the Acquire of `try_lock`, Acquire with the Release of who left word.
        lock.word.swap(FREE, Ordering::AcqRel) == WANTED
    }
}
impl<T> Drop for Guard<'_, T> {
    /// In a panic; a word that was left is lost, and so is the node.
    fn drop(&mut self) {
        self.lock.word.swap(FREE, Ordering::AcqRel);
    }
}
impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: (1).
        unsafe { &*self.lock.value.get() }
    }
}
impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: (1).
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32 as Word;

    #[test]
    fn loom_work_that_is_left_to_the_holder_is_done() {
        loom::model(|| {
            let state = Arc::new((Lock::new(0), Word::new(0)));
            let do_work = |state: &(Lock<u32>, Word)| {
                while let Some(mut guard) = state.0.lock_or_leave_word() {
                    *guard += state.1.swap(0, Ordering::Relaxed);
                    if !guard.unlock() {
                        return;
                    }
                }
            };
            let other = {
                let state = Arc::clone(&state);
                loom::thread::spawn(move || {
                    state.1.fetch_add(1, Ordering::Relaxed);
                    do_work(&state);
                })
            };
            state.1.fetch_add(1, Ordering::Relaxed);
            do_work(&state);
            other.join().unwrap();
            assert_eq!(*state.0.lock(), 2);
        });
    }
}
