//! The lock of a node: a thread that finds it held, and only wants the node's work done, leaves a note for the holder
//! and returns.
//!
//! It is outside of the lock of the node's adapter, to which a holder posts and which it polls. Work that waits for the
//! adapter, or for peers, is done after the release (`node/device_work.rs`). A program's thread takes the lock by
//! [`Lock::lock`], and may become its favourite. A thread of the adapter ([`Lock::lock_or_notify_holder`],
//! [`Lock::try_lock`]) is a guest: it works while the program computes, and never becomes the favourite, so the program
//! does not have to revoke its favour later. A lock that is only taken in these ways, such as a handler's, has no
//! favourite.

use std::ops::{Deref, DerefMut};

use hca_turn_lock::{OUTER, TurnLock};

/// A value that one thread at a time uses.
pub(crate) struct Lock<T>(TurnLock<T, OUTER>);

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(TurnLock::new(value))
    }
    /// Takes it as a guest if it is free. Never waits.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.0.try_lock().map(|guard| Guard { guard, is_guest: true })
    }
    /// Waits for it. Sections under it are short and never wait.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        Guard { guard: self.0.lock(), is_guest: false }
    }
    /// Takes it as a guest, or leaves a note for the holder, which may be this thread: [`Guard::unlock`] returns it.
    /// Never waits.
    pub(crate) fn lock_or_notify_holder(&self) -> Option<Guard<'_, T>> {
        self.0.lock_or_notify_holder().map(|guard| Guard { guard, is_guest: true })
    }
}

/// The value, until it is [unlocked](Self::unlock); if it is dropped, a word that was left is lost.
pub(crate) struct Guard<'a, T> {
    guard: hca_turn_lock::Guard<'a, T, OUTER>,
    is_guest: bool,
}

impl<T> Guard<'_, T> {
    /// Releases it; returns whether a note was left meanwhile.
    #[inline(always)]
    #[must_use = "somebody may have left word"]
    pub(crate) fn unlock(self) -> bool {
        if self.is_guest { self.guard.unlock_unfavoured() } else { self.guard.unlock() }
    }
}
impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.guard
    }
}
impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
