//! A word for each thread, by which it says which lock it is inside of as that lock's favourite.
//!
//! Words are never freed, so that others may look at one at any time; a thread that ends leaves its own to the next.

use core::ptr;

use crate::sync::{AtomicBool, AtomicPtr, Ordering};

/// One thread's word.
#[repr(align(128))]
pub(crate) struct ThreadWord {
    /// The lock that it is inside of.
    inside: AtomicPtr<()>,
    /// The thread has left word for itself. Only the thread looks at it.
    word_left: AtomicBool,
}

impl ThreadWord {
    pub(crate) fn new() -> Self {
        Self { inside: AtomicPtr::new(ptr::null_mut()), word_left: AtomicBool::new(false) }
    }
    /// The lock that it is inside of, as the thread itself sees it.
    #[inline]
    pub(crate) fn inside(&self) -> *mut () {
        self.inside.load(Ordering::Relaxed)
    }
    /// Whether it is inside of this one; if not, all that it did there is seen.
    pub(crate) fn is_within(&self, lock: *mut ()) -> bool {
        // Acquire: pairs with the Release in `leave`.
        self.inside.load(Ordering::Acquire) == lock
    }
    #[inline]
    pub(crate) fn enter(&self, lock: *mut ()) {
        self.inside.store(lock, Ordering::Relaxed);
    }
    /// Says that it is in none. Returns whether it had left word for itself.
    #[inline]
    pub(crate) fn leave(&self) -> bool {
        self.inside.store(ptr::null_mut(), Ordering::Release);
        if self.word_left.load(Ordering::Relaxed) {
            self.word_left.store(false, Ordering::Relaxed);
            return true;
        }
        false
    }
    /// Leaves word for itself. `false`: it is not inside of this lock.
    pub(crate) fn leave_word(&self, lock: *mut ()) -> bool {
        let inside = self.inside.load(Ordering::Relaxed) == lock;
        self.word_left.store(inside, Ordering::Relaxed);
        inside
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
