//! Asynchronous events, sorted by the objects that they are about.
//!
//! A device has one queue of events. A thread that waits for events of one object takes events of other objects out as
//! well. These are kept in order for the threads that ask for them, and waiting threads are woken.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use hca_core::{AsyncEvent, Device, EventObject, EventQueue};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;

use crate::WaitError;
use crate::wait::deadline;

/// Events that were taken from the device on behalf of other waiters.
#[derive(Default)]
pub(crate) struct Events(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    events: VecDeque<AsyncEvent>,
    /// The waiters, each with the object whose events it waits for; `None`: any.
    waiters: Vec<(Option<EventObject>, Waker)>,
}

fn fits(wanted: Option<EventObject>, event: &AsyncEvent) -> bool {
    wanted.is_none_or(|object| event.object() == object)
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        // It is whole between any two of its operations.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the oldest event, of one object where one is named.
    pub(crate) fn poll(&self, device: &dyn Device, wanted: Option<EventObject>) -> Option<AsyncEvent> {
        self.take_first(device, |event| fits(wanted, event))
    }
    /// Takes the given event; all others stay in their order. Whether the event was there.
    pub(crate) fn take(&self, device: &dyn Device, wanted: AsyncEvent) -> bool {
        self.take_first(device, |event| *event == wanted).is_some()
    }

    /// Takes the oldest event that is wanted.
    fn take_first(&self, device: &dyn Device, wanted: impl Fn(&AsyncEvent) -> bool) -> Option<AsyncEvent> {
        let mut kept = self.lock();
        let mut woken = Vec::new();
        while let Some(event) = device.poll_event() {
            // As the device's own queue: the oldest give way.
            if kept.events.len() == EventQueue::MAX_EVENTS {
                kept.events.pop_front();
            }
            kept.events.push_back(event);
            woken.extend(kept.waiters.extract_if(.., |(of, _)| fits(*of, &event)));
        }
        let at = kept.events.iter().position(wanted);
        let found = at.and_then(|at| kept.events.remove(at));
        drop(kept);
        // A woken task may ask at once.
        woken.into_iter().for_each(|(_, waker)| waker.wake());
        found
    }

    /// Registers a waker that is woken once when another waiter takes a matching event from the device.
    fn register(&self, wanted: Option<EventObject>, waker: &Waker) {
        // Its clone is the program's code, as is its drop: `kept` is dropped before.
        let new = (wanted, waker.clone());
        let mut kept = self.lock();
        if kept.waiters.iter().any(|(of, w)| *of == wanted && w.will_wake(&new.1)) {
            return;
        }
        let longest = (kept.waiters.len() == EventQueue::MAX_WAITERS).then(|| kept.waiters.remove(0));
        kept.waiters.push(new);
        drop(kept);
        if let Some((_, waker)) = longest {
            waker.wake();
        }
    }
    fn forget(&self, waker: &Waker) {
        self.lock().waiters.retain(|(_, w)| !w.will_wake(waker));
    }

    /// As [`poll`](Self::poll), for a future.
    pub(crate) fn poll_next(
        &self,
        device: &dyn Device,
        wanted: Option<EventObject>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<AsyncEvent> {
        device.turn();
        device.set_event_waker(cx.waker());
        self.register(wanted, cx.waker());
        match self.poll(device, wanted) {
            Some(event) => Poll::Ready(event),
            None => {
                if device.needs_turns() {
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }

    /// Waits for an event; for ever without a `timeout`.
    pub(crate) fn wait(
        &self,
        device: &dyn Device,
        wanted: Option<EventObject>,
        timeout: Option<Duration>,
    ) -> Result<AsyncEvent, WaitError> {
        let deadline = deadline(timeout);
        device.turn();
        if let Some(event) = self.poll(device, wanted) {
            return Ok(event);
        }
        let told = Told::new(device.wait_fd())?;
        let found = loop {
            if told.has_no_descriptor() {
                device.set_event_waker(&told.waker);
            }
            self.register(wanted, &told.waker);
            device.turn();
            if let Some(event) = self.poll(device, wanted) {
                break Ok(event);
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break Err(WaitError::TimedOut(timeout.unwrap_or_default()));
            }
            // Asked for behind the descriptor, this has the device make that readable when a turn is due.
            let left = left.into_iter().chain(device.next_deadline()).min();
            if let Err(e) = told.sleep(left) {
                break Err(e);
            }
        };
        self.forget(&told.waker);
        found
    }
}

/// The descriptors on which a thread waits for an event: the device's, and one that wakers raise.
struct Told<'a> {
    device: Option<BorrowedFd<'a>>,
    raised: Arc<Raised>,
    waker: Waker,
}

struct Raised(OwnedFd);

impl Wake for Raised {
    fn wake(self: Arc<Self>) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl<'a> Told<'a> {
    fn new(device: Option<BorrowedFd<'a>>) -> Result<Self, WaitError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(std::io::Error::from)?;
        let raised = Arc::new(Raised(fd));
        Ok(Self { device, waker: Waker::from(Arc::clone(&raised)), raised })
    }
    fn has_no_descriptor(&self) -> bool {
        self.device.is_none()
    }
    fn sleep(&self, time: Option<Duration>) -> Result<(), WaitError> {
        let time = time.map(|t| Timespec {
            tv_sec: t.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        let mut fds: Vec<_> = (self.device.iter().copied().chain([self.raised.0.as_fd()]))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, time.as_ref()) {
            // The caller looks again at everything, its own deadline included.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(std::io::Error::from(e).into()),
        }
        let _ = rustix::io::read(&self.raised.0, &mut [0; 8]);
        Ok(())
    }
}
