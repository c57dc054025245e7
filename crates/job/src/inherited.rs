//! The descriptor that a launcher left open for this process, by its number.
//!
//! Invariants:
//! 1. By `PMI_FD` the launcher asserts that it opened this descriptor for this process, and that no code of this
//!    process owns it. The descriptor is borrowed for system calls that duplicate it or query its kind, and that return
//!    EBADF if it is closed. It is never closed and never owned here, so that code which owns it against the launcher's
//!    assertion does not lose it.
//! 2. -1 is no descriptor and is never borrowed.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;

/// Set once the launcher's descriptor was taken over.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the launcher's descriptor over, as one of our own; `None` if that was done before. Children no longer inherit
/// either.
pub(crate) fn take(fd: RawFd) -> io::Result<Option<OwnedFd>> {
    if fd < 0 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: (1) it is used until the end of this call only, for questions and a duplicate; (2) it is not negative.
    let theirs = unsafe { BorrowedFd::borrow_raw(fd) };
    if socket_type(theirs)? != SocketType::STREAM {
        return Err(Errno::PROTOTYPE.into());
    }
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Ok(None);
    }
    let ours = fcntl_dupfd_cloexec(theirs, 0)?;
    fcntl_setfd(theirs, FdFlags::CLOEXEC)?;
    Ok(Some(ours))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_is_no_open_stream_socket_is_refused_and_takes_nobodys_turn() {
        let errno = |fd| take(fd).unwrap_err().raw_os_error();
        assert_eq!(errno(-1), Some(Errno::BADF.raw_os_error()));
        assert_eq!(errno(1 << 20), Some(Errno::BADF.raw_os_error()));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(errno(file.as_raw_fd()), Some(Errno::NOTSOCK.raw_os_error()));
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(errno(datagrams.as_raw_fd()), Some(Errno::PROTOTYPE.raw_os_error()));
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(take(a.as_raw_fd()).unwrap().is_some());
        assert!(take(b.as_raw_fd()).unwrap().is_none(), "once in a process");
    }
}
