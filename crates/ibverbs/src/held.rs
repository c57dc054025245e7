//! A lock that one call of a program may take, and a later call release: between `ibv_start_poll` and `ibv_end_poll`,
//! and between `ibv_wr_start` and `ibv_wr_complete`, no other thread uses the queue.
//!
//! Invariants:
//! 1. The value is reached by the thread that set [`TAKEN`] in the word, and no other, until it has cleared it.
//! 2. `within` is set only while a call sequence has the lock. The thread that began the sequence makes its calls: the
//!    contract of the two sequences.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::futex;

/// The bit of a lock that a thread has. The bits are such that taking and releasing are one instruction each.
const TAKEN: u32 = 1;
/// The bit of a lock for which threads may wait.
const WAITED_FOR: u32 = 2;

/// A value behind a lock of one word.
pub(crate) struct Held<T> {
    word: AtomicU32,
    within: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: (1): one thread at a time reaches the value, as behind a mutex.
unsafe impl<T: Send> Sync for Held<T> {}

impl<T> Held<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), within: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the lock for one call.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        // Acquire: pairs with the Release of `unlock`.
        if self.word.fetch_or(TAKEN, Ordering::Acquire) & TAKEN != 0 {
            wait(&self.word);
        }
        Locked(self)
    }
    /// Begins a call sequence: keeps a lock that was taken.
    #[inline]
    pub(crate) fn begin(locked: Locked<'_, T>) {
        locked.0.within.store(true, Ordering::Relaxed);
        core::mem::forget(locked);
    }
    /// The value, within a call sequence; `None` where the program began none.
    #[inline]
    pub(crate) fn within<R>(&self, read: impl FnOnce(&mut T) -> R) -> Option<R> {
        // SAFETY: (1), (2)
        self.within.load(Ordering::Relaxed).then(|| read(unsafe { &mut *self.value.get() }))
    }
    /// Ends a call sequence: the lock is released when the result is dropped. `None` where the program began none.
    #[inline]
    pub(crate) fn end(&self) -> Option<Locked<'_, T>> {
        self.within.load(Ordering::Relaxed).then(|| {
            self.within.store(false, Ordering::Relaxed);
            Locked(self)
        })
    }

    #[inline]
    fn unlock(&self) {
        // Release: pairs with the Acquire of whoever takes the lock next.
        if self.word.fetch_sub(TAKEN, Ordering::Release) != TAKEN {
            wake(&self.word);
        }
    }
}

/// Takes a lock that another thread has.
#[cold]
#[inline(never)]
fn wait(word: &AtomicU32) {
    // A waiting thread leaves the bit of waiting as it takes the lock: others may wait beside it.
    while word.fetch_or(TAKEN | WAITED_FOR, Ordering::Acquire) & TAKEN != 0 {
        // Returns at once if the word has changed; a signal ends the wait early, and the loop looks again.
        let _ = futex::wait(word, futex::Flags::PRIVATE, TAKEN | WAITED_FOR, None);
    }
}
/// Wakes a thread that waits for a lock, which was released.
#[cold]
#[inline(never)]
fn wake(word: &AtomicU32) {
    // Another thread may have the lock by now: its bit stays.
    word.fetch_and(!WAITED_FOR, Ordering::Relaxed);
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}

/// An object with a lock, which is taken by calls that are to keep one register only: the object's address.
pub(crate) trait Guards: Sized {
    type Value;
    /// Its lock.
    fn held(&self) -> &Held<Self::Value>;
    /// Takes its lock for one call if no other thread has it. For calls that leave the wait to another function.
    #[inline(always)]
    fn try_lock(&self) -> Option<LockedIn<'_, Self>> {
        // Acquire: as `lock`.
        let is_taken = self.held().word.fetch_or(TAKEN, Ordering::Acquire) & TAKEN != 0;
        (!is_taken).then(|| LockedIn(same(self)))
    }
}
/// The lock of an object, taken.
pub(crate) struct LockedIn<'a, O: Guards>(&'a O);

/// The same object. The compiler does not know so, and computes the address of the lock anew where it is released: one
/// that it has computed before, it would keep in a register of its own.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block)] // none is followed
fn same<O>(object: &O) -> &O {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let mut at = core::ptr::from_ref(object);
        // SAFETY: no instruction; what was a reference stays one.
        unsafe {
            core::arch::asm!("/* {0} */", inout(reg) at, options(pure, nomem, nostack, preserves_flags));
            &*at
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    object
}

impl<'a, O: Guards> LockedIn<'a, O> {
    /// Releases the lock, and returns what the call does.
    #[inline(always)]
    pub(crate) fn end(self, result: c_int) -> c_int {
        #[cold]
        #[inline(never)]
        fn wake_of<O: Guards>(object: &O, result: c_int) -> c_int {
            wake(&object.held().word);
            result
        }
        let Self(object) = *core::mem::ManuallyDrop::new(self);
        // Release: as `unlock`.
        if object.held().word.fetch_sub(TAKEN, Ordering::Release) != TAKEN {
            return wake_of(object, result);
        }
        result
    }
    #[inline(always)]
    pub(crate) fn object(&self) -> &'a O {
        self.0
    }
    #[inline(always)]
    pub(crate) fn value(&mut self) -> &mut O::Value {
        // SAFETY: (1)
        unsafe { &mut *self.0.held().value.get() }
    }
}
impl<O: Guards> Drop for LockedIn<'_, O> {
    #[inline(always)]
    fn drop(&mut self) {
        /// Behind a panic, or what is not frequent.
        #[cold]
        #[inline(never)]
        fn release<O: Guards>(object: &O) {
            object.held().unlock();
        }
        release(self.0);
    }
}

/// The lock, taken.
pub(crate) struct Locked<'a, T>(&'a Held<T>);

impl<T> Deref for Locked<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: (1)
        unsafe { &*self.0.value.get() }
    }
}
impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: (1)
        unsafe { &mut *self.0.value.get() }
    }
}
impl<T> Drop for Locked<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    impl<T> Guards for Held<T> {
        type Value = T;
        fn held(&self) -> &Self {
            self
        }
    }

    #[test]
    fn a_sequence_keeps_other_threads_out_until_it_ends() {
        let held = Arc::new(Held::new(1));
        assert!(held.within(|_| ()).is_none() && held.end().is_none(), "none was begun");
        Held::begin(held.lock());
        assert!(held.try_lock().is_none());
        let other = std::thread::spawn({
            let held = Arc::clone(&held);
            move || *held.lock()
        });
        while held.word.load(Ordering::Relaxed) & WAITED_FOR == 0 {
            std::thread::yield_now();
        }
        held.within(|value| *value = 2).unwrap();
        *held.end().unwrap() += 1;
        assert_eq!(other.join().unwrap(), 3);
        assert!(held.within(|_| ()).is_none());
    }

    #[test]
    fn threads_count_one_by_one() {
        let held = Arc::new(Held::new(0));
        let threads = Vec::from_iter((0..4).map(|_| {
            let held = Arc::clone(&held);
            let count = move |_| match held.try_lock() {
                Some(mut value) => *value.value() += 1,
                None => *held.lock() += 1,
            };
            std::thread::spawn(move || (0..1000).for_each(count))
        }));
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*held.lock(), 4000);
    }
}
