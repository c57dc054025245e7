//! Thread words: a word for each thread and level, which names the lock that the thread holds as its favourite.
//!
//! Words are never freed, so that other threads may load a word at any time. A new thread reuses the word of a thread
//! that has ended.

use core::ptr;

use crate::sync::{AtomicPtr, Ordering};

/// The level of locks that a thread may hold while it takes one of [`INNER`].
pub const OUTER: usize = 0;
/// The level of locks within which a thread takes no other lock.
pub const INNER: usize = 1;
/// The number of levels.
pub(crate) const LEVELS: usize = 2;

/// The words of one thread. The alignment leaves room for the flags in a lock's state beside the thread's name.
#[repr(align(128))]
pub(crate) struct ThreadWord {
    /// For each level, the lock that the thread is inside of.
    inside: [AtomicPtr<()>; LEVELS],
}

impl ThreadWord {
    pub(crate) fn new() -> Self {
        Self { inside: core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())) }
    }
    /// The lock that the thread is inside of, as seen by the thread itself.
    #[inline(always)]
    pub(crate) fn inside<const LEVEL: usize>(&self) -> *mut () {
        self.inside[LEVEL].load(Ordering::Relaxed)
    }
    /// Whether the thread is inside of this lock. If not, all that the thread did inside is visible to the caller.
    pub(crate) fn is_within<const LEVEL: usize>(&self, lock: *mut ()) -> bool {
        // Acquire: pairs with the Release of `leave`, and with that of `enter` into another.
        self.inside[LEVEL].load(Ordering::Acquire) == lock
    }
    #[inline(always)]
    pub(crate) fn enter<const LEVEL: usize>(&self, lock: *mut ()) {
        // Release: who finds this one has to see what was done in the one before, as by `leave`.
        self.inside[LEVEL].store(lock, Ordering::Release);
    }
    /// Marks the thread as outside of all locks of the level.
    #[inline(always)]
    pub(crate) fn leave<const LEVEL: usize>(&self) {
        self.inside[LEVEL].store(ptr::null_mut(), Ordering::Release);
    }
}

#[cfg(not(loom))]
pub(crate) use system::{known_thread, this_thread};

#[cfg(not(loom))]
mod system {
    use core::cell::Cell;
    use core::ptr;
    use std::sync::{Mutex, PoisonError};

    use super::ThreadWord;
    use crate::sync::AtomicPtr;

    /// Words of threads that have ended.
    static FREE: Mutex<Vec<&'static ThreadWord>> = Mutex::new(Vec::new());

    /// Stands for the word of a thread that has none. No lock is its.
    static NOBODY: ThreadWord =
        ThreadWord { inside: [const { AtomicPtr::new(ptr::null_mut()) }; super::LEVELS] };

    thread_local! {
        static WORD: Cell<&'static ThreadWord> = const { Cell::new(&NOBODY) };
        static OWNER: Owner = const { Owner };
    }

    /// Gives the word back when the thread ends.
    struct Owner;
    impl Drop for Owner {
        fn drop(&mut self) {
            let word = WORD.replace(&NOBODY);
            if !ptr::eq(word, &NOBODY) {
                FREE.lock().unwrap_or_else(PoisonError::into_inner).push(word);
            }
        }
    }

    /// This thread's word, or one that is no thread's if none was made.
    #[inline(always)]
    pub(crate) fn known_thread() -> &'static ThreadWord {
        WORD.get()
    }
    /// This thread's word; none while the thread ends.
    #[inline]
    pub(crate) fn this_thread() -> Option<&'static ThreadWord> {
        let word = WORD.get();
        if ptr::eq(word, &NOBODY) { make() } else { Some(word) }
    }

    #[cold]
    fn make() -> Option<&'static ThreadWord> {
        // Fails once the owner is gone, whose word another thread may have by now.
        OWNER.try_with(|_| ()).ok()?;
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let word = free.unwrap_or_else(|| Box::leak(Box::new(ThreadWord::new())));
        WORD.set(word);
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
/// This thread's word.
#[cfg(loom)]
pub(crate) fn known_thread() -> &'static ThreadWord {
    WORD.with(|w| *w)
}
