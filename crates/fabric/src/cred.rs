//! The user and process at the other end of a socket, from the kernel.
//!
//! Invariants:
//! 1. The structure that the system call fills lives until the call returns, and has the size that the call is given.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

/// The process that connected, or that listened when this side connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerCred {
    /// The number in our PID namespace; 0: it has none there. (So no type of numbers that are never 0 serves here.)
    pub(crate) pid: i32,
    /// Its user, by the number that our user namespace has for him.
    pub(crate) uid: u32,
}

impl PeerCred {
    pub(crate) fn of(socket: &OwnedFd) -> rustix::io::Result<Self> {
        let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: (1)
        let got = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut cred).cast(),
                &raw mut len,
            )
        };
        if got == 0 {
            Ok(Self { pid: cred.pid, uid: cred.uid })
        } else {
            Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
        }
    }
}
