//! A clock that goes on by how often somebody looks at it.
//!
//! A queue pair's timers follow the system's clock. Under valgrind, and beside other programs, the processor takes fifty
//! times as long for the same code or longer: timers go off that never would, and their instructions are counted. Here
//! each look at the monotonic clock finds [`STEP_NS`] more than the one before, so counts depend on the code alone.
//!
//! Invariants:
//! 1. The caller passes a structure that may be written: the C library's function demands the same.
#![allow(unsafe_code)] // a function with the C library's name

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

/// As long as some turns of an adapter take. Many rounds before a count bring about what takes milliseconds, as grants.
const STEP_NS: u64 = 2_000;
const NS_A_SECOND: u64 = 1_000_000_000;

static NOW_NS: AtomicU64 = AtomicU64::new(NS_A_SECOND);

/// Stands in for the C library's function of this name in the whole process.
///
/// # Safety
/// As of the C library's: `time` may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    if clock != libc::CLOCK_MONOTONIC {
        // SAFETY: (1). The kernel checks the rest.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as c_int;
    }
    let ns = NOW_NS.fetch_add(STEP_NS, Ordering::Relaxed);
    let now = libc::timespec { tv_sec: (ns / NS_A_SECOND) as _, tv_nsec: (ns % NS_A_SECOND) as _ };
    // SAFETY: (1).
    unsafe { time.write(now) };
    0
}
