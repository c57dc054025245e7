//! The driver's thread: it sleeps on the adapter's interrupts and does what is to be done whether the program calls or
//! not: pages that the adapter asks for, words to those who wait, looks at its health.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::events::EventFd;
use crate::hca::Core;

/// How often it looks where there are no interrupts.
const TICK: Duration = Duration::from_millis(1);

/// The thread, from outside.
#[derive(Debug)]
pub(crate) struct House {
    bell: Arc<EventFd>,
    leave: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl House {
    /// Starts it. Without interrupts it looks each millisecond.
    pub(crate) fn start(
        core: &Arc<Core>,
        bell: Arc<EventFd>,
        interrupts: Vec<OwnedFd>,
        health_interval: Duration,
    ) -> io::Result<Self> {
        let leave = Arc::new(AtomicBool::new(false));
        let (core, rung, left) = (core.clone(), bell.clone(), leave.clone());
        let run = move || run(&core, &rung, &left, &interrupts, health_interval);
        let thread = std::thread::Builder::new().name("hca-mlx5".to_owned()).spawn(run)?;
        Ok(Self { bell, leave, thread: Some(thread) })
    }

    /// The thread's name for itself.
    pub(crate) fn thread(&self) -> Option<ThreadId> {
        self.thread.as_ref().map(|t| t.thread().id())
    }

    /// Ends the thread, and waits until it has; but for a call on that thread itself, by a waker that drops the last of
    /// all who use the adapter: it ends when that call has returned.
    pub(crate) fn leave(&mut self) {
        self.leave.store(true, Ordering::Release);
        self.bell.signal();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the driver's thread has panicked");
        }
    }
}

fn run(core: &Core, bell: &EventFd, leave: &AtomicBool, interrupts: &[OwnedFd], health_interval: Duration) {
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
        if leave.load(Ordering::Acquire) {
            return;
        }
        // Nothing to read: that one did not come.
        let came: Vec<bool> =
            interrupts.iter().map(|fd| rustix::io::read(fd, &mut [0_u8; 8]).is_ok()).collect();
        let look = Instant::now() >= due;
        if look {
            due = Instant::now() + health_interval;
        }
        core.serve(&came, look);
    }
}
