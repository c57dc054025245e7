//! Memory that is moved while other threads of the process may write there: they wait until it has moved.
//!
//! The memory is made read-only for the time of the move. A write is a fault then, whose handler (that of
//! [`survive`](crate::survive)) waits for the end of the move, and has the write done again.
//!
//! Invariants:
//! 1. What a handler calls here is nothing but system calls and atomics.
#![allow(unsafe_code)] // system calls

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const PAGE: usize = 4096;

/// The memory that is held, or was held last.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// Writes wait.
static IS_HELD: AtomicBool = AtomicBool::new(false);
/// The thread that holds it.
static HOLDER: AtomicI32 = AtomicI32::new(0);

/// Calls `call`, which moves `len` bytes at `at` and leaves memory with the same bytes there. Threads of the process
/// that write there meanwhile wait until it returns. Returns `None`, and has called nothing, where faults are not
/// survived, and where the system (Linux before 5.14) does not make pages of memory at a request.
///
/// A system call of another thread that writes there meanwhile fails (`EFAULT`).
///
/// # Safety
/// `at` and `len` are of whole pages, which can be read and written; after `call` they can be, too. `call` writes
/// nothing there.
pub unsafe fn hold_writers<T>(at: NonNull<u8>, len: usize, call: impl FnOnce() -> T) -> Option<T> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let start = at.addr().get();
    if !crate::survives() || !can_write(start) {
        return None;
    }
    HOLDER.store(crate::fault::thread(), Ordering::SeqCst);
    IS_HELD.store(true, Ordering::SeqCst);
    START.store(start, Ordering::SeqCst);
    END.store(start + len, Ordering::SeqCst);
    let set = |rights| {
        // SAFETY: the caller's pages, which both are allowed.
        unsafe { libc::mprotect(at.as_ptr().cast(), len, rights) == 0 }
    };
    let result = set(libc::PROT_READ).then(call);
    set(libc::PROT_READ | libc::PROT_WRITE);
    IS_HELD.store(false, Ordering::SeqCst);
    result
}

/// Whether a write that was forbidden at an address can be done again: it was of held memory, which is held no more.
pub(crate) fn has_waited(at: usize) -> bool {
    if at < START.load(Ordering::SeqCst) || at >= END.load(Ordering::SeqCst) {
        return false;
    }
    while IS_HELD.load(Ordering::SeqCst) {
        // It would wait for itself.
        if HOLDER.load(Ordering::SeqCst) == crate::fault::thread() {
            return false;
        }
        // SAFETY: it changes nothing.
        unsafe { libc::sched_yield() };
    }
    can_write(at)
}

/// Whether the program can write at an address; `false` where the system does not tell.
fn can_write(at: usize) -> bool {
    let page = core::ptr::with_exposed_provenance_mut(at & !(PAGE - 1));
    // SAFETY: the call changes no content. The thread's error number is that of the code where the fault was.
    unsafe {
        let error = libc::__errno_location();
        let before = *error;
        let can = libc::madvise(page, PAGE, libc::MADV_POPULATE_WRITE) == 0;
        *error = before;
        can
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::null_mut;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::survive;

    const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

    fn pages(len: usize) -> NonNull<u8> {
        // SAFETY: new memory.
        let at = unsafe { libc::mmap(null_mut(), len, BOTH, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        NonNull::new(at.cast()).unwrap()
    }
    /// Moves pages to other ones, which take their place. Other threads run between the copy and the exchange.
    fn exchange(at: NonNull<u8>, len: usize) {
        let other = pages(len);
        // SAFETY: both are this test's.
        unsafe {
            core::ptr::copy_nonoverlapping(at.as_ptr(), other.as_ptr(), len);
            (0..100).for_each(|_| std::thread::yield_now());
            let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let moved = libc::mremap(other.as_ptr().cast(), len, len, fixed, at.as_ptr());
            assert_eq!(moved, at.as_ptr().cast());
        }
    }

    #[test]
    fn no_write_is_lost_by_a_move() {
        survive();
        let (at, len) = (pages(2 * PAGE), 2 * PAGE);
        let address = at.addr().get();
        let is_over = AtomicBool::new(false);
        let counted = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let count: *mut u64 = core::ptr::with_exposed_provenance_mut(address + PAGE + 8);
                while !is_over.load(Ordering::Relaxed) {
                    // SAFETY: memory of this test, which nobody else writes.
                    unsafe { count.write_volatile(count.read_volatile() + 1) };
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            });
            for _ in 0..200 {
                let before = counted.load(Ordering::Relaxed);
                // SAFETY: whole pages, which are exchanged for pages with the same bytes.
                assert_eq!(unsafe { hold_writers(at, len, || exchange(at, len)) }, Some(()));
                while counted.load(Ordering::Relaxed) < before + 10 {
                    std::thread::yield_now();
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        // SAFETY: as above.
        let in_memory = unsafe { at.as_ptr().add(PAGE + 8).cast::<u64>().read() };
        assert_eq!(in_memory, counted.load(Ordering::Relaxed));
    }

    #[test]
    fn a_move_that_does_not_take_place_leaves_memory_that_can_be_written() {
        survive();
        let at = pages(PAGE);
        // SAFETY: a whole page, which stays.
        assert_eq!(unsafe { hold_writers(at, PAGE, || 7) }, Some(7));
        // SAFETY: the page of this test.
        unsafe { at.as_ptr().write_volatile(1) };
        assert!(!has_waited(at.addr().get() + PAGE) && has_waited(at.addr().get()));
        // SAFETY: as above.
        unsafe { libc::mprotect(at.as_ptr().cast(), PAGE, libc::PROT_READ) };
        assert!(!has_waited(at.addr().get()), "its owner forbids it");
        // SAFETY: as above.
        assert_eq!(unsafe { hold_writers(at, PAGE, || 7) }, None);
    }
}
