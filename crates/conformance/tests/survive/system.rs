//! System calls without a safe interface: namespaces, mounts, settings of the process.
//!
//! Invariants:
//! 1. Every pointer that a call takes is of a C string that lives across it, or null where the call allows it.
#![allow(unsafe_code)]

use std::io;

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// This process gets no huge pages from now on.
pub(crate) fn no_huge_pages() -> io::Result<()> {
    // SAFETY: takes numbers only.
    done(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) })
}

/// No other process may read this one from now on, but for those with rights to all.
pub(crate) fn hide() -> io::Result<()> {
    // SAFETY: takes numbers only.
    done(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) })
}

/// A mount namespace of this thread's own, whose changes nobody else sees.
pub(crate) fn own_mounts() -> io::Result<()> {
    // SAFETY: (1)
    unsafe {
        done(libc::unshare(libc::CLONE_NEWNS))?;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        done(libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()))
    }
}

/// Mounts an empty file system of so many bytes over a folder.
pub(crate) fn mount_over(folder: &std::ffi::CStr, bytes: usize) -> io::Result<()> {
    let size = std::ffi::CString::new(format!("size={bytes}")).expect("no byte of it is 0");
    let kind = c"tmpfs".as_ptr();
    // SAFETY: (1)
    done(unsafe { libc::mount(kind, folder.as_ptr(), kind, 0, size.as_ptr().cast()) })
}
