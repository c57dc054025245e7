//! Files in memory, within the limit of file sizes.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, getrlimit};

/// The bytes of pages that one system call makes: as many as are made between two signals of a timer.
const PART: u64 = 2 << 20;

/// Whether a file of `len` bytes is within the process's limit of file sizes.
///
/// # Errors
/// [`Errno::FBIG`]: it is not. Creating it nevertheless raises SIGXFSZ, which ends the process.
pub fn check_file_len(len: u64) -> Result<(), Errno> {
    let over = getrlimit(Resource::Fsize).current.is_some_and(|limit| len > limit);
    if over { Err(Errno::FBIG) } else { Ok(()) }
}

/// Creates a file of `len` zeros in memory, without allocated pages and with close-on-exec.
///
/// # Errors
/// As [`check_file_len`], and errors of the system.
pub fn memory_file(name: &str, flags: MemfdFlags, len: u64) -> Result<OwnedFd, Errno> {
    check_file_len(len)?;
    let file = memfd_create(name, flags | MemfdFlags::CLOEXEC)?;
    ftruncate(&file, len)?;
    Ok(file)
}

/// Allocates the pages of a part of a file in memory, whatever signals the thread gets meanwhile. Some systems end a call
/// for any signal, and free its pages.
///
/// # Errors
/// Errors of the system, such as that it has no memory.
pub fn allocate_pages(file: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), Errno> {
    let mut done = 0;
    loop {
        let part = PART.min(len - done);
        retry_on_intr(|| fallocate(file, FallocateFlags::empty(), at + done, part))?;
        done += part;
        if done == len {
            return Ok(());
        }
    }
}
