//! Detection of forked children: whether this process was forked off after a value was created.
//!
//! A comparison of pids is not enough: the first process of a new pid namespace has the pid 1, as its parent may have
//! in its own namespace. A page that the kernel zeroes in a child tells, at the cost of one load.
//!
//! Invariants:
//! 1. [`WORD`] is null, or points to a word that is mapped for ever, aligned, and only accessed by atomics.
//! 2. The pointer of a [`PerProcess`] is null, or is that of a box that is never freed, and read only.
#![allow(unsafe_code)] // memory that the kernel wipes in a forked child

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Where the kernel wipes: a whole page, whatever its size.
const PAGE: usize = 4096;
/// The word's value in the process that made it. Its children read 0.
const HERE: u32 = 1;

/// The word of this process, or, in a child that has not asked yet, of its parent.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

/// A word of this process's.
fn word() -> &'static AtomicU32 {
    loop {
        // Acquire: pairs with the Release below, behind which the word is set.
        let known = WORD.load(Ordering::Acquire);
        // SAFETY: (1)
        if let Some(word) = unsafe { known.as_ref() }
            && word.load(Ordering::Relaxed) == HERE
        {
            return word;
        }
        let Some(made) = make() else {
            static FALLBACK: AtomicU32 = AtomicU32::new(HERE);
            return &FALLBACK;
        };
        // The parent's page stays: values that were made there look at it.
        if WORD.compare_exchange(known, made, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: another thread was quicker, and no reference to this page exists.
            let _ = unsafe { munmap(made.cast(), PAGE) };
        }
    }
}

/// A new word; `None` where the system gives no page, or (before Linux 4.14) would not wipe it. Forks are not detected
/// there.
fn make() -> Option<*mut AtomicU32> {
    if cfg!(miri) {
        return None;
    }
    // SAFETY: a new anonymous mapping touches nothing that exists.
    let page =
        unsafe { mmap_anonymous(null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    let page = page.ok()?;
    // SAFETY: the page is ours, and the advice changes no content here.
    if unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above, and nobody has its address.
        let _ = unsafe { munmap(page, PAGE) };
        return None;
    }
    let word: *mut AtomicU32 = page.cast();
    // SAFETY: the page is ours, aligned and zeroed.
    unsafe { &*word }.store(HERE, Ordering::Relaxed);
    Some(word)
}

/// The process that created this value, for `Drop` implementations: a forked child inherits its parent's objects and
/// must not remove, unmap, send or write anything that it shares with the parent.
#[derive(Clone, Copy, Debug)]
pub struct Fork(&'static AtomicU32);

impl Fork {
    /// A mark of the calling process.
    pub fn new() -> Self {
        Self(word())
    }
    /// Whether this process was forked off after the value was created.
    #[inline]
    pub fn is_child(self) -> bool {
        self.0.load(Ordering::Relaxed) != HERE
    }
}

/// A static value that a forked child creates anew: at the fork another thread of the parent may have been changing the
/// parent's value, or have held a lock within it, which no thread of the child would release.
///
/// ```
/// use std::sync::Mutex;
///
/// static NAMES: hca_process::PerProcess<Mutex<Vec<String>>> = hca_process::PerProcess::new();
/// NAMES.get().lock().unwrap().push("one".into());
/// ```
#[derive(Debug)]
pub struct PerProcess<T>(AtomicPtr<(Fork, T)>);

impl<T> PerProcess<T> {
    /// An empty place for the value, which is created on first use.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }
}

impl<T: Default + Send + Sync + 'static> PerProcess<T> {
    /// This process's value, which is created once and lives as long as the process.
    pub fn get(&self) -> &'static T {
        let mut made: Option<Box<(Fork, T)>> = None;
        loop {
            // Acquire: pairs with the Release below, behind which the value is whole.
            let known = self.0.load(Ordering::Acquire);
            // SAFETY: (2)
            if let Some((fork, value)) = unsafe { known.as_ref() }
                && !fork.is_child()
            {
                return value;
            }
            let new = Box::into_raw(made.take().unwrap_or_else(|| Box::new((Fork::new(), T::default()))));
            if self.0.compare_exchange(known, new, Ordering::Release, Ordering::Relaxed).is_err() {
                // SAFETY: another thread was quicker, and nobody has the address of this box.
                made = Some(unsafe { Box::from_raw(new) });
            }
        }
    }
}

impl<T> Default for PerProcess<T> {
    /// Like [`PerProcess::new`].
    fn default() -> Self {
        Self::new()
    }
}

impl Default for Fork {
    /// Like [`Fork::new`].
    fn default() -> Self {
        Self::new()
    }
}
