//! Wakers whose clones and drops run code, as those of programs may.
//!
//! Invariants:
//! 1. The data pointer of each waker of `TABLE` is that of an `Arc<Run>`, of which the waker owns one count.
#![allow(unsafe_code)] // a table of functions

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::task::{RawWaker, RawWakerVTable, Waker};

type Run = Box<dyn Fn() + Send + Sync>;

const TABLE: RawWakerVTable = RawWakerVTable::new(clone, drop, nothing, drop);

/// A waker each clone and each drop of which runs `run`. A wake does nothing.
pub fn running(run: impl Fn() + Send + Sync + 'static) -> Waker {
    let data = Arc::into_raw(Arc::<Run>::new(Box::new(run)));
    // SAFETY: (1), and each function of the table may be called on any thread.
    unsafe { Waker::from_raw(RawWaker::new(data.cast(), &TABLE)) }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: (1); the count stays the waker's.
    let run = ManuallyDrop::new(unsafe { Arc::from_raw(data.cast::<Run>()) });
    (run)();
    RawWaker::new(Arc::into_raw(Arc::clone(&run)).cast(), &TABLE)
}
unsafe fn drop(data: *const ()) {
    // SAFETY: (1); the waker ends, and leaves its count.
    let run = unsafe { Arc::from_raw(data.cast::<Run>()) };
    (run)();
}
unsafe fn nothing(_: *const ()) {}
