//! Sockets that end with their adapter, whatever children its process has.
//!
//! The kernel keeps a socket open as long as anybody has a descriptor of it. A child that a program forks for another
//! purpose, and that outlives it, would hide the program's end from all peers, and keep its name. And what the program
//! closes would stay in the set of descriptors that it sleeps on, readable for ever.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hca_process::NotInChildren;

/// A socket that children do not keep.
pub(super) struct Socket {
    /// Goes before the descriptor, whose number another one may have then.
    _not_in_children: NotInChildren,
    fd: OwnedFd,
}

impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Self {
        Self { _not_in_children: NotInChildren::new(&[fd.as_fd()]), fd }
    }
}
impl Deref for Socket {
    type Target = OwnedFd;
    fn deref(&self) -> &OwnedFd {
        &self.fd
    }
}
impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
