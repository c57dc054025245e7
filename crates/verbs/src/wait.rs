//! Waiting on a device's descriptor.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// When a wait that begins now is over; `None`: never, as for a time beyond what the clock counts.
pub(crate) fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    Instant::now().checked_add(timeout?)
}

/// Blocks until `fd` is readable or `timeout` is over; whether it is readable.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> std::io::Result<bool> {
    Ok(wait_either(fd, None, timeout)? != Readable::default())
}

/// The descriptors that are readable after a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readable {
    pub(crate) fd: bool,
    pub(crate) other: bool,
}

/// Blocks until `fd` or `other` is readable or `timeout` is over.
pub(crate) fn wait_either(
    fd: BorrowedFd<'_>,
    other: Option<BorrowedFd<'_>>,
    timeout: Option<Duration>,
) -> std::io::Result<Readable> {
    let timeout = timeout.map(|t| Timespec {
        tv_sec: t.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    let second = other.map_or_else(
        || PollFd::from_borrowed_fd(fd, PollFlags::empty()),
        |other| PollFd::from_borrowed_fd(other, PollFlags::IN),
    );
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN), second];
    let used = 1 + usize::from(other.is_some());
    match poll(&mut fds[..used], timeout.as_ref()) {
        Ok(_) => Ok(Readable { fd: !fds[0].revents().is_empty(), other: !fds[1].revents().is_empty() }),
        // The caller looks again at everything, its own deadline included.
        Err(rustix::io::Errno::INTR) => Ok(Readable::default()),
        Err(e) => Err(e.into()),
    }
}
