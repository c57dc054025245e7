//! Asynchronous events on their way to the program.

use core::task::Waker;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use hca_core::{AsyncEvent, DeviceError, EventQueue};

use crate::notify::fd::EventFd;
use crate::notify::runs::Attention;
use crate::sync::{Arc, Mutex, lock};

/// The device's queue of events, with the descriptor that tells of them.
pub(crate) struct Events {
    queue: Mutex<EventQueue>,
    fd: OnceLock<EventFd>,
    attention: Arc<Attention>,
}

impl Events {
    pub(crate) fn new(attention: Arc<Attention>) -> Self {
        Self { queue: Mutex::new(EventQueue::default()), fd: OnceLock::new(), attention }
    }
    /// Appends an event, under the engine's lock; who waits for it is woken behind that.
    pub(crate) fn push(&self, event: AsyncEvent) {
        let mut q = lock(&self.queue);
        let waiters = q.push(event);
        if let Some(fd) = self.fd.get() {
            fd.signal();
        }
        drop(q);
        waiters.into_iter().for_each(|w| self.attention.wake_later(w));
    }
    /// Takes the oldest event.
    pub(crate) fn pop(&self) -> Option<AsyncEvent> {
        let mut q = lock(&self.queue);
        let e = q.pop();
        if q.is_empty()
            && let Some(fd) = self.fd.get()
        {
            fd.clear();
        }
        e
    }
    /// The caller holds no lock of the adapter.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        // Its clone is the program's code, as is its drop.
        let mut waker = Some(waker.clone());
        let now = lock(&self.queue).wait(&mut waker);
        now.into_iter().for_each(Waker::wake);
    }
    /// A descriptor that is readable while events wait, made at the first call.
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, DeviceError> {
        let fd = EventFd::get_or_create(&self.fd)?;
        // Events may have come before there was one to tell of them.
        let q = lock(&self.queue);
        if !q.is_empty() {
            fd.signal();
        }
        Ok(fd.fd())
    }
    pub(crate) fn dropped(&self) -> u64 {
        lock(&self.queue).dropped()
    }
}
