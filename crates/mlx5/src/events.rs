//! Asynchronous events on their way to the program.

use core::task::Waker;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hca_core::AsyncEvent;
use rustix::event::{EventfdFlags, eventfd};

/// Events that wait at most; the oldest are lost beyond that, and counted.
const MAX_EVENTS: usize = 4096;

/// A descriptor that is readable while something is to be done.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }
    /// Makes it readable.
    pub(crate) fn signal(&self) {
        // A counter that is full is readable as well.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
    /// Makes it unreadable.
    pub(crate) fn clear(&self) {
        // Nothing to read: it was not readable.
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Events that wait.
pub(crate) struct Events {
    queue: Mutex<Queue>,
    fd: EventFd,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<AsyncEvent>,
    lost: u64,
    waker: Option<Waker>,
}

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { queue: Mutex::default(), fd: EventFd::new()? })
    }
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // It is whole between any two of its operations.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: AsyncEvent) {
        let mut q = self.queue();
        if q.events.len() == MAX_EVENTS {
            q.events.pop_front();
            q.lost += 1;
        }
        q.events.push_back(event);
        self.fd.signal();
        if let Some(waker) = q.waker.take() {
            drop(q);
            waker.wake();
        }
    }
    pub(crate) fn pop(&self) -> Option<AsyncEvent> {
        let mut q = self.queue();
        let event = q.events.pop_front();
        if q.events.is_empty() {
            self.fd.clear();
        }
        event
    }
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut q = self.queue();
        if q.events.is_empty() {
            q.waker = Some(waker.clone());
        } else {
            drop(q);
            waker.wake_by_ref();
        }
    }
    /// Readable while events wait.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    /// How many were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.queue().lost
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn readable(e: &Events) -> bool {
        poll(&mut [PollFd::new(&e.fd(), PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_while_events_wait_and_the_oldest_are_lost_beyond_the_limit() {
        let e = Events::new().unwrap();
        assert!(!readable(&e) && e.pop().is_none());
        e.push(AsyncEvent::PortError);
        e.push(AsyncEvent::PortActive);
        assert!(readable(&e));
        assert_eq!(e.pop(), Some(AsyncEvent::PortError));
        assert!(readable(&e));
        assert_eq!((e.pop(), e.pop()), (Some(AsyncEvent::PortActive), None));
        assert!(!readable(&e));
        e.push(AsyncEvent::PortError);
        (0..MAX_EVENTS).for_each(|_| e.push(AsyncEvent::PortActive));
        assert_eq!((e.pop(), e.lost()), (Some(AsyncEvent::PortActive), 1));
    }
}
