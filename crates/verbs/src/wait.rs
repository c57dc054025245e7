//! Waiting on a device's descriptor.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a blocking wait looks before it sleeps: about what it takes to wake a sleeper on a CPU that idles.
const LOOK_NS: u64 = 50_000;
/// The figure in use; benches change it.
static LOOK_NOW: AtomicU64 = AtomicU64::new(LOOK_NS);

/// How long a blocking wait looks before it sleeps.
pub(crate) fn look_before_sleep() -> Duration {
    Duration::from_nanos(LOOK_NOW.load(Ordering::Relaxed))
}

/// Has blocking waits of this process look so long before they sleep, for a bench; `None` as by default.
pub fn set_look_before_sleep(look: Option<Duration>) {
    LOOK_NOW.store(look.map_or(LOOK_NS, |l| l.as_nanos() as u64), Ordering::Relaxed);
}

/// When a wait that begins now is over; `None`: never, as for a time beyond what the clock counts.
pub(crate) fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    Instant::now().checked_add(timeout?)
}

/// Blocks until `fd` is readable or `timeout` is over; whether it is readable.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> std::io::Result<bool> {
    let timeout = timeout.map(|t| Timespec {
        tv_sec: t.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(n) => Ok(n > 0),
        // The caller looks again at everything, its own deadline included.
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
