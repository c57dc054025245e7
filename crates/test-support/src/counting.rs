//! An allocator that counts. A test program makes it its own:
//!
//! ```
//! use test_support::counting::{self, Counting};
//!
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting;
//!
//! let before = counting::calls();
//! drop(Box::new(1));
//! assert_eq!(counting::calls() - before, 2);
//! ```
//!
//! Invariants:
//! 1. Every call goes to the system's allocator unchanged. The counters are plain thread-local data without a
//!    destructor, so that touching them allocates nothing.
#![allow(unsafe_code)] // `unsafe impl GlobalAlloc`

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counted a thread.
#[derive(Clone, Copy, Debug)]
pub struct Counting;

fn count(bytes: isize) {
    CALLS.set(CALLS.get() + 1);
    HELD.set(HELD.get() + bytes);
    MOST.set(MOST.get().max(HELD.get()));
}

// SAFETY: (1)
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: (1) the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: (1) the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Allocations and frees of this thread so far.
pub fn calls() -> u64 {
    CALLS.get()
}

/// Bytes that this thread has allocated and not freed. Below 0 where it freed what others had allocated.
pub fn held_bytes() -> isize {
    HELD.get()
}

/// What `run` returns, and the most bytes that this thread held during it beyond those that it held before.
pub fn most_bytes<T>(run: impl FnOnce() -> T) -> (T, isize) {
    let before = HELD.get();
    MOST.set(before);
    let result = run();
    (result, MOST.get() - before)
}
