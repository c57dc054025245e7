//! The atomics that the lock is made of; under loom, loom's.

#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence},
    sync::{Mutex, MutexGuard},
    thread::{sleep, yield_now},
};

#[cfg(loom)]
pub use loom::cell::UnsafeCell;
#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence},
    sync::{Mutex, MutexGuard},
    thread::yield_now,
};

/// Like [`std::thread::sleep`].
#[cfg(loom)]
pub(crate) fn sleep(_: core::time::Duration) {
    yield_now();
}

/// `core::cell::UnsafeCell` with the closure face that loom's cell has.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// A cell that holds this value.
    pub const fn new(v: T) -> Self {
        Self(core::cell::UnsafeCell::new(v))
    }
    #[inline(always)]
    /// The address, to be read.
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }
    #[inline(always)]
    /// The address, to be written.
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
