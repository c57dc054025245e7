//! Files in memory, within the limit of file sizes.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Whether a file of `len` bytes is within the process's limit of file sizes.
///
/// # Errors
/// [`Errno::FBIG`]: it is not. Who makes it nevertheless gets SIGXFSZ, which ends the process.
pub fn check_file_len(len: u64) -> Result<(), Errno> {
    let over = getrlimit(Resource::Fsize).current.is_some_and(|limit| len > limit);
    if over { Err(Errno::FBIG) } else { Ok(()) }
}

/// Makes a file of `len` zeros in memory, with none of its pages there yet, closed where a program is executed.
///
/// # Errors
/// As [`check_file_len`]; what the system refuses otherwise.
pub fn memory_file(name: &str, flags: MemfdFlags, len: u64) -> Result<OwnedFd, Errno> {
    check_file_len(len)?;
    let file = memfd_create(name, flags | MemfdFlags::CLOEXEC)?;
    ftruncate(&file, len)?;
    Ok(file)
}
