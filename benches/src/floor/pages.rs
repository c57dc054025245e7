//! Pages of shared memory, from the system: what any memory costs that a device, or another process, is to reach.
//!
//! 1. A mapping that the system has placed is of nobody else, is never read or written here, and is unmapped once.
#![allow(unsafe_code)]

use std::io;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// How long it takes to map so many bytes of shared memory with all of their pages there. They are given back outside
/// of that.
///
/// # Errors
/// The system has no memory.
pub fn populate(bytes: usize) -> io::Result<Duration> {
    let begin = Instant::now();
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: (1) the system chooses a place where nothing is.
    let at = unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
    let took = begin.elapsed();
    // SAFETY: (1)
    unsafe { munmap(at, bytes) }?;
    Ok(took)
}
