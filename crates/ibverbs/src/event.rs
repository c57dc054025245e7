//! Events on their way to a program: a list with a descriptor that counts it, and events that are to be acknowledged.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, PoisonError};

use hca::hca_core::Device;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::entry::{Errno, Sleep, lock};

/// Events, and a descriptor that counts them, on which programs sleep.
pub(crate) struct Events<T> {
    fd: OwnedFd,
    waiting: Mutex<VecDeque<T>>,
}

impl<T> Events<T> {
    /// The most events that wait. Beyond it the oldest is lost: the program does not look.
    const MAX: usize = 1 << 16;

    pub(crate) fn new() -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?;
        Ok(Self { fd, waiting: Mutex::default() })
    }
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    pub(crate) fn push(&self, event: T) {
        self.push_if(event, || true);
    }
    /// Adds an event if a condition holds, both under the lock of the list. An object that is destroyed ends the
    /// condition first, and then [forgets](Self::forget) its events, so none is added behind that.
    pub(crate) fn push_if(&self, event: T, condition: impl FnOnce() -> bool) {
        let mut waiting = lock(&self.waiting);
        if !condition() {
            return;
        }
        if waiting.len() == Self::MAX {
            waiting.pop_front();
            self.uncount();
        }
        waiting.push_back(event);
        // The counter does not overflow: each event of it is in the list.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }
    /// Takes the oldest event, and notes it while no other thread can [forget](Self::forget) it. Does not wait: the
    /// descriptor counts what the list has.
    fn pop(&self, note: impl FnOnce(&T)) -> Option<T> {
        let mut waiting = lock(&self.waiting);
        let event = waiting.pop_front()?;
        self.uncount();
        note(&event);
        Some(event)
    }
    /// Takes away all events of an object that is destroyed.
    pub(crate) fn forget(&self, of: impl Fn(&T) -> bool) {
        let mut waiting = lock(&self.waiting);
        let before = waiting.len();
        waiting.retain(|event| !of(event));
        (waiting.len()..before).for_each(|_| self.uncount());
    }
    fn uncount(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }

    /// Takes an event, or tells how to sleep until there is one, while the device makes progress.
    ///
    /// # Errors
    /// There is none, and the program has made the descriptor one that does not block; or a signal came.
    pub(crate) fn look(
        &self,
        device: &dyn Device,
        slept: Option<Sleep>,
        note: impl Fn(&T),
    ) -> Result<Result<T, Sleep>, Errno> {
        if let Some(slept) = slept
            && !slept.was_woken()?
        {
            device.turn();
        }
        if let Some(event) = self.pop(&note) {
            return Ok(Ok(event));
        }
        if fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK) {
            return Err(Errno(libc::EAGAIN));
        }
        Ok(Err(Sleep::on(self.fd(), device.turn_fd(), device.next_deadline())))
    }
}

/// Events of one object that were taken, and not acknowledged yet.
#[derive(Default)]
pub(crate) struct Unacknowledged {
    count: Mutex<u32>,
    none: Condvar,
}

impl Unacknowledged {
    pub(crate) fn take(&self) {
        *lock(&self.count) += 1;
    }
    pub(crate) fn acknowledge(&self, count: u32) {
        let mut unacknowledged = lock(&self.count);
        *unacknowledged = unacknowledged.saturating_sub(count);
        self.none.notify_all();
    }
    /// Waits until all are acknowledged.
    pub(crate) fn wait(&self) {
        let mut count = lock(&self.count);
        while *count > 0 {
            count = self.none.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object that ends its condition while it is looked at finds the event.
    #[test]
    fn no_event_is_forgotten_between_a_condition_and_its_event() {
        let events = Events::new().unwrap();
        events.push_if(1, || false);
        events.push_if(2, || events.waiting.try_lock().is_err());
        assert_eq!(events.pop(|_| ()), Some(2), "the condition was looked at without the lock");
        assert_eq!(events.pop(|_| ()), None);
    }
}
