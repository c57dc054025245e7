//! A descriptor that wakes the manager's thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd that is readable after [`ring`](Self::ring), until [`clear`](Self::clear).
#[derive(Debug)]
pub(super) struct Bell {
    fd: OwnedFd,
    /// Spares a system call where nobody rang.
    rung: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, rung: AtomicBool::new(false) })
    }
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    pub(super) fn ring(&self) {
        // A full counter is readable already.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        // Behind the write: who finds the word finds the descriptor readable.
        self.rung.store(true, Ordering::Release);
    }
    /// The caller looks afterwards at everything for which the bell may have been rung. A ring that comes meanwhile
    /// leaves the descriptor readable.
    pub(super) fn clear(&self) {
        if self.rung.swap(false, Ordering::Acquire) {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn it_is_readable_until_it_is_cleared_however_often_it_was_rung() {
        let bell = Bell::new().unwrap();
        let readable = || poll(&mut [PollFd::new(&bell.fd, PollFlags::IN)], Some(&Timespec::default()));
        assert_eq!(readable(), Ok(0));
        bell.ring();
        bell.ring();
        assert_eq!(readable(), Ok(1));
        bell.clear();
        assert_eq!(readable(), Ok(0));
    }
}
