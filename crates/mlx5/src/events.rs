//! Asynchronous events on their way to the program.

use core::task::Waker;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hca_core::{AsyncEvent, EventQueue};
use rustix::event::{EventfdFlags, eventfd};

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

/// The adapter's queue of events, with the descriptor that tells of them.
pub(crate) struct Events {
    queue: Mutex<EventQueue>,
    fd: EventFd,
}

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { queue: Mutex::default(), fd: EventFd::new()? })
    }
    fn queue(&self) -> MutexGuard<'_, EventQueue> {
        // It is whole between any two of its operations.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an event, and wakes who waits for it: each may use the adapter at once, so the caller holds no lock.
    pub(crate) fn push(&self, event: AsyncEvent) {
        let mut q = self.queue();
        let waiters = q.push(event);
        self.fd.signal();
        drop(q);
        waiters.into_iter().for_each(Waker::wake);
    }
    pub(crate) fn pop(&self) -> Option<AsyncEvent> {
        let mut q = self.queue();
        let event = q.pop();
        if q.is_empty() {
            self.fd.clear();
        }
        event
    }
    pub(crate) fn set_waker(&self, waker: &Waker) {
        // Its clone is the program's code, as is its drop.
        let mut waker = Some(waker.clone());
        let now = self.queue().wait(&mut waker);
        now.into_iter().for_each(Waker::wake);
    }
    /// Readable while events wait.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    /// How many were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.queue().dropped()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use test_support::waiting::ends;
    use test_support::wakers;

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
        (0..EventQueue::MAX_EVENTS).for_each(|_| e.push(AsyncEvent::PortActive));
        assert_eq!((e.pop(), e.lost()), (Some(AsyncEvent::PortActive), 1));
    }

    #[test]
    fn a_waker_may_look_while_it_is_cloned_and_dropped() {
        let e = std::sync::Arc::new(Events::new().unwrap());
        let looks = e.clone();
        let waker = wakers::running(move || assert!(looks.pop().is_none()));
        ends("wakers are set", move || (0..2).for_each(|_| e.set_waker(&waker)));
    }

    #[test]
    fn all_who_wait_are_woken_and_may_look_at_once() {
        use std::sync::Arc;
        use std::task::Wake;

        struct Looks(Arc<Events>, Mutex<Vec<Option<AsyncEvent>>>);
        impl Wake for Looks {
            fn wake(self: Arc<Self>) {
                let found = self.0.pop();
                self.1.lock().unwrap().push(found);
            }
        }
        let e = Arc::new(Events::new().unwrap());
        let waiters = [(); 2].map(|()| Arc::new(Looks(e.clone(), Mutex::default())));
        waiters.iter().for_each(|w| e.set_waker(&w.clone().into()));
        e.push(AsyncEvent::PortError);
        let found = waiters.each_ref().map(|w| w.1.lock().unwrap().clone());
        assert_eq!(found, [vec![Some(AsyncEvent::PortError)], vec![None]]);
    }
}
