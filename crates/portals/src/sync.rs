//! What the lock is made of, or loom's model of it.

#[cfg(not(loom))]
pub(crate) use std::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::atomic::{AtomicU32, Ordering},
    thread::{sleep, yield_now},
};

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, Ordering},
    thread::yield_now,
};

/// As [`std::thread::sleep`].
#[cfg(loom)]
pub(crate) fn sleep(_: std::time::Duration) {
    yield_now();
}

/// As [`std::cell::UnsafeCell`]; what the lock protects is told by its word alone.
#[cfg(loom)]
pub(crate) type UnsafeCell<T> = std::cell::UnsafeCell<T>;
