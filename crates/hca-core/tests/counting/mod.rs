//! An allocator that counts, for the tests of every crate: they include this file by its path.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counted a thread.
struct Counting;

fn count() {
    CALLS.set(CALLS.get() + 1);
}

// SAFETY: every call goes to the system's allocator unchanged; the counter is plain thread-local data
// without a destructor, so touching it allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What this thread has allocated and freed so far, in calls.
pub(crate) fn calls() -> u64 {
    CALLS.get()
}
