//! The driver's thread: it sleeps on the adapter's interrupts, gives the pages that the adapter requests, wakes waiting
//! threads, and checks the adapter's health.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use hca_vfio::Notices;
use hca_vfio::user::take_count;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::events::EventFd;
use crate::hca::Core;
use crate::health::Death;

/// How often it looks where there are no interrupts.
const TICK: Duration = Duration::from_millis(1);

/// The descriptors that wake the thread, beside its own bell.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Those of the function's vectors.
    pub(crate) interrupts: Vec<OwnedFd>,
    /// The descriptors of notices about the function itself.
    pub(crate) notices: Notices,
}

/// The thread, from outside.
#[derive(Debug)]
pub(crate) struct DriverThread {
    bell: Arc<EventFd>,
    leave: Arc<AtomicBool>,
    own: ThreadId,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl DriverThread {
    /// Starts it. Without interrupts it looks each millisecond.
    pub(crate) fn start(core: &Arc<Core>, bell: Arc<EventFd>, signals: Signals) -> io::Result<Self> {
        let leave = Arc::new(AtomicBool::new(false));
        let (core, rung, left) = (core.clone(), bell.clone(), leave.clone());
        let run = move || run(&core, &rung, &left, &signals);
        let thread = hca_process::spawn("hca-mlx5", run)?;
        Ok(Self { bell, leave, own: thread.thread().id(), thread: Mutex::new(Some(thread)) })
    }

    /// The thread's name for itself.
    pub(crate) fn thread(&self) -> ThreadId {
        self.own
    }

    /// Ends the thread, and waits until it has; but for a call on that thread itself, by a waker that drops the last of
    /// all who use the adapter: it ends when that call has returned.
    pub(crate) fn leave(&self) {
        self.leave.store(true, Ordering::Release);
        self.bell.signal();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && self.own != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the driver's thread has panicked");
        }
    }
}

fn run(core: &Core, bell: &EventFd, leave: &AtomicBool, signals: &Signals) {
    let Signals { interrupts, notices } = signals;
    loop {
        let left = core.health.due_in();
        let left = if interrupts.is_empty() { left.min(TICK) } else { left };
        let timeout = Timespec::try_from(left).expect("less than the age of the universe");
        let mut fds: Vec<PollFd<'_>> = interrupts.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        fds.push(PollFd::new(bell, PollFlags::IN));
        let both = [&notices.error, &notices.request].into_iter().flatten();
        fds.extend(both.map(|fd| PollFd::new(fd, PollFlags::IN)));
        // A signal is as good a reason to look as any.
        let _ = poll(&mut fds, Some(&timeout));
        bell.clear();
        if leave.load(Ordering::Acquire) {
            return;
        }
        // A server has them, too.
        let came = |fd: &OwnedFd| take_count(fd);
        if notices.error.as_ref().is_some_and(came) {
            // Whether it is kept from memory is logged.
            let _ = core.kill(Death::Bus);
        }
        if notices.request.as_ref().is_some_and(came) {
            core.hand_back();
        }
        core.serve(&interrupts.iter().map(came).collect::<Vec<_>>());
    }
}
