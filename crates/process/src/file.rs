//! Files in memory, within the limit of file sizes.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

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
