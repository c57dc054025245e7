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

/// `core::cell::UnsafeCell` with the interface of loom's cell, which takes closures.
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
    /// Calls `f` with the address, for reading.
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }
    #[inline(always)]
    /// Calls `f` with the address, for writing.
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
