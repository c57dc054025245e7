//! A word for each thread and level, by which it says which lock it is inside of as that lock's favourite.
//!
//! Words are never freed, so that others may look at one at any time; a thread that ends leaves its own to the next.

use core::ptr;

use crate::sync::{AtomicPtr, Ordering};

/// The level of locks that are held while one of [`INNER`] is taken.
pub const OUTER: usize = 0;
/// The level of locks within which none is taken.
pub const INNER: usize = 1;
/// How many levels there are.
pub(crate) const LEVELS: usize = 2;

/// One thread's words. The alignment leaves room for what a lock's state says beside the name.
#[repr(align(128))]
pub(crate) struct ThreadWord {
    /// The lock of each level that it is inside of.
    inside: [AtomicPtr<()>; LEVELS],
}

impl ThreadWord {
    pub(crate) fn new() -> Self {
        Self { inside: core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())) }
    }
    /// The lock that it is inside of, as the thread itself sees it.
    #[inline(always)]
    pub(crate) fn inside<const LEVEL: usize>(&self) -> *mut () {
        self.inside[LEVEL].load(Ordering::Relaxed)
    }
    /// Whether it is inside of this one; if not, all that it did there is seen.
    pub(crate) fn is_within<const LEVEL: usize>(&self, lock: *mut ()) -> bool {
        // Acquire: pairs with the Release of `leave`, and with that of `enter` into another.
        self.inside[LEVEL].load(Ordering::Acquire) == lock
    }
    #[inline(always)]
    pub(crate) fn enter<const LEVEL: usize>(&self, lock: *mut ()) {
        // Release: who finds this one has to see what was done in the one before, as by `leave`.
        self.inside[LEVEL].store(lock, Ordering::Release);
    }
    /// Says that it is in none.
    #[inline(always)]
    pub(crate) fn leave<const LEVEL: usize>(&self) {
        self.inside[LEVEL].store(ptr::null_mut(), Ordering::Release);
    }
}

#[cfg(not(loom))]
pub(crate) use system::this_thread;

#[cfg(not(loom))]
mod system {
    use core::cell::Cell;
    use std::sync::{Mutex, PoisonError};

    use super::ThreadWord;

    /// Words of threads that have ended.
    static FREE: Mutex<Vec<&'static ThreadWord>> = Mutex::new(Vec::new());

    thread_local! {
        static WORD: Cell<Option<&'static ThreadWord>> = const { Cell::new(None) };
        static OWNER: Owner = const { Owner };
    }

    /// Gives the word back when the thread ends.
    struct Owner;
    impl Drop for Owner {
        fn drop(&mut self) {
            if let Some(word) = WORD.take() {
                FREE.lock().unwrap_or_else(PoisonError::into_inner).push(word);
            }
        }
    }

    /// This thread's word; none while the thread ends.
    #[inline]
    pub(crate) fn this_thread() -> Option<&'static ThreadWord> {
        WORD.get().or_else(make)
    }

    #[cold]
    fn make() -> Option<&'static ThreadWord> {
        // Fails once the owner is gone, whose word another thread may have by now.
        OWNER.try_with(|_| ()).ok()?;
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let word = free.unwrap_or_else(|| Box::leak(Box::new(ThreadWord::new())));
        WORD.set(Some(word));
        Some(word)
    }
}

#[cfg(loom)]
loom::thread_local! {
    static WORD: &'static ThreadWord = Box::leak(Box::new(ThreadWord::new()));
}
/// This thread's word.
#[cfg(loom)]
pub(crate) fn this_thread() -> Option<&'static ThreadWord> {
    Some(WORD.with(|w| *w))
}
