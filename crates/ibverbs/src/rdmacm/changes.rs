//! Changes of a socket, which threads wait for. A signal ends a wait if its handler is of those that end system calls, as
//! with `read`.

use core::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::thread::futex;

use crate::entry::Errno;

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
    /// Waits for a change beyond the first `count`, for so long at most. The caller looks again at what it waits for.
    ///
    /// # Errors
    /// A signal came.
    pub(super) fn wait(&self, count: u32, within: Option<Duration>) -> Result<(), Errno> {
        let within = within.and_then(|within| Timespec::try_from(within).ok());
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let waited = futex::wait(&self.count, futex::Flags::PRIVATE, count, within.as_ref());
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        match waited {
            Err(rustix::io::Errno::INTR) => Err(Errno(libc::EINTR)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn no_change_is_missed_and_a_wait_without_one_ends() {
        const CHANGES: u32 = 20_000;
        let changes = Changes::default();
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for seen in 0..CHANGES {
                    while changes.count() == seen {
                        changes.wait(seen, None).unwrap();
                    }
                    tell.send(()).unwrap();
                }
            });
            for _ in 0..CHANGES {
                changes.tell();
                told.recv_timeout(Duration::from_secs(10)).expect("the sleeper is woken");
            }
        });
        changes.wait(changes.count(), Some(Duration::from_millis(1))).unwrap();
    }
}
