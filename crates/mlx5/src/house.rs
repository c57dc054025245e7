//! The driver's thread: it sleeps on the adapter's interrupts and does what is to be done whether the program calls or
//! not: pages that the adapter asks for, words to those who wait, looks at its health.
//!
//! It holds the adapter only while it works, so that the last port that is dropped stops the adapter.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::events::EventFd;
use crate::hca::Hca;

/// How often it looks where there are no interrupts.
const TICK: Duration = Duration::from_millis(1);

/// The thread, from outside.
#[derive(Debug)]
pub(crate) struct House {
    bell: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl House {
    /// Starts it. Without interrupts it looks each millisecond.
    pub(crate) fn start(
        hca: &Arc<Hca>,
        interrupts: Vec<OwnedFd>,
        health_interval: Duration,
    ) -> io::Result<Self> {
        let bell = Arc::new(EventFd::new()?);
        let (hca, rung) = (Arc::downgrade(hca), bell.clone());
        let run = move || run(&hca, &rung, &interrupts, health_interval);
        let thread = std::thread::Builder::new().name("hca-mlx5".to_owned()).spawn(run)?;
        Ok(Self { bell, thread: Some(thread) })
    }

    /// Has it look at once.
    pub(crate) fn ring(&self) {
        self.bell.signal();
    }
    /// The thread's name for itself.
    pub(crate) fn thread(&self) -> Option<std::thread::ThreadId> {
        self.thread.as_ref().map(|t| t.thread().id())
    }
}

impl Drop for House {
    /// The adapter is gone already: the thread finds that when it looks.
    fn drop(&mut self) {
        self.bell.signal();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the driver's thread has panicked");
        }
    }
}

fn run(hca: &Weak<Hca>, bell: &EventFd, interrupts: &[OwnedFd], health_interval: Duration) {
    let mut due = Instant::now() + health_interval;
    loop {
        let left = due.saturating_duration_since(Instant::now());
        let left = if interrupts.is_empty() { left.min(TICK) } else { left };
        let timeout = Timespec::try_from(left).expect("less than the age of the universe");
        let mut fds: Vec<PollFd<'_>> = interrupts.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        fds.push(PollFd::new(bell, PollFlags::IN));
        // A signal is as good a reason to look as any.
        let _ = poll(&mut fds, Some(&timeout));
        bell.clear();
        // Nothing to read: that one did not come.
        let came: Vec<bool> =
            interrupts.iter().map(|fd| rustix::io::read(fd, &mut [0_u8; 8]).is_ok()).collect();
        let Some(hca) = hca.upgrade() else { return };
        let look = Instant::now() >= due;
        if look {
            due = Instant::now() + health_interval;
        }
        hca.serve(&came, look);
    }
}
