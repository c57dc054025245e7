//! Changes of a socket, which threads wait for, and calls that wait for several sockets. A signal ends a wait for one if
//! its handler is of those that end system calls, as with `read`.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hca_process::PerProcess;
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::thread::futex;

use crate::entry::{Errno, lock};
use crate::waiting::while_it_has;

/// The changes of a socket that were told.
#[derive(Default)]
pub(super) struct Changes {
    count: AtomicU32,
    sleepers: AtomicU32,
}

impl Changes {
    /// The number of changes, which begins anew behind 2^32.
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }
    pub(super) fn tell(&self) {
        // SeqCst: either this load sees the sleeper, or the sleeper's system call sees another count.
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _ = futex::wake(&self.count, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }
    /// Waits for a change beyond the first `count`, for so long at most, or until a signal comes. The caller looks again
    /// at what it waits for. The thread is one that is not cancelled.
    pub(super) fn wait(&self, count: u32, within: Duration) {
        let within = Timespec::try_from(within).ok();
        let _sleeper = Sleeper::new(self);
        let _ = futex::wait(&self.count, futex::Flags::PRIVATE, count, within.as_ref());
    }
    /// As [`wait`](Self::wait), without a limit, in a call of the program.
    ///
    /// # Errors
    /// A signal came.
    pub(super) async fn beyond(&self, count: u32) -> Result<(), Errno> {
        let _sleeper = Sleeper::new(self);
        match while_it_has(&self.count, count).await {
            libc::EINTR => Err(Errno(libc::EINTR)),
            _ => Ok(()),
        }
    }
}

/// A thread that sleeps, or is about to.
struct Sleeper<'a>(&'a Changes);
impl<'a> Sleeper<'a> {
    fn new(of: &'a Changes) -> Self {
        of.sleepers.fetch_add(1, Ordering::SeqCst);
        Self(of)
    }
}
impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Descriptors of calls that wait for one of several sockets.
static WAITERS: PerProcess<Mutex<Vec<Arc<OwnedFd>>>> = PerProcess::new();

/// Makes a descriptor readable.
pub(super) fn ring(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Has all calls look again that wait for one of several sockets.
pub(super) fn tell_waiters() {
    lock(WAITERS.get()).iter().for_each(|fd| ring(fd));
}

/// The time that a waiting call has left, as `poll` takes it; for ever without an end.
pub(super) fn left_ms(end: Option<Instant>) -> c_int {
    let left = end.map(|end| end.saturating_duration_since(Instant::now()));
    left.map_or(-1, |left| left.as_nanos().div_ceil(1_000_000).min(c_int::MAX as u128) as c_int)
}

/// A descriptor that becomes readable when a socket changes, as long as it is held.
pub(super) struct Waiter(pub(super) Arc<OwnedFd>);
impl Waiter {
    pub(super) fn new() -> Result<Self, Errno> {
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        lock(WAITERS.get()).push(Arc::clone(&fd));
        Ok(Self(fd))
    }
    /// Forgets the changes until now.
    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0_u8; 8]);
    }
}
impl Drop for Waiter {
    fn drop(&mut self) {
        lock(WAITERS.get()).retain(|fd| !Arc::ptr_eq(fd, &self.0));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::waiting::finish;

    #[test]
    fn no_change_is_missed_and_a_wait_without_one_ends() {
        const CHANGES: u32 = 20_000;
        let changes = Changes::default();
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for seen in 0..CHANGES {
                    while changes.count() == seen {
                        finish(changes.beyond(seen)).unwrap();
                    }
                    tell.send(()).unwrap();
                }
            });
            for _ in 0..CHANGES {
                changes.tell();
                told.recv_timeout(Duration::from_secs(10)).expect("the sleeper is woken");
            }
        });
        changes.wait(changes.count(), Duration::from_millis(1));
    }
}
