//! Waiting: polling for some time, then sleeping on the device's descriptor.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use hca_core::{Instant, Notify};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::{ARMED, Fds, Inner, Node, State};
use crate::Error;

impl Node {
    /// Waits until `ready` yields something, for `timeout` at most.
    ///
    /// # Errors
    /// `ready` yields one; the device has no descriptor to sleep on, or has failed.
    pub(crate) fn wait<R>(
        &self,
        timeout: Option<Duration>,
        mut ready: impl FnMut(&mut State) -> Result<Option<R>, Error>,
    ) -> Result<Option<R>, Error> {
        let inner = &*self.inner;
        let mut look = |state: &mut State| match ready(state)? {
            None if state.progress() => ready(state),
            None => {
                state.run_timers();
                ready(state)?.map_or_else(|| state.has_nothing_to_come(), |found| Ok(Some(found)))
            }
            some => Ok(some),
        };
        if let Some(found) = self.with(&mut look)? {
            return Ok(Some(found));
        }
        let began = inner.clock.now();
        let deadline = timeout.map(|timeout| began + timeout);
        let mut look_until = began + self.with(|state| state.net.ports.cq().look_before_sleep());
        loop {
            if let Some(found) = self.with(&mut look)? {
                return Ok(Some(found));
            }
            let now = inner.clock.now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(None);
            }
            if now < look_until {
                std::hint::spin_loop();
                continue;
            }
            if let Some(found) = self.sleep(deadline, &mut look)? {
                return Ok(Some(found));
            }
            look_until = Instant::ZERO;
        }
    }
    /// Sleeps until the device has something, another thread has found something, or the time is over.
    fn sleep<R>(
        &self,
        deadline: Option<Instant>,
        look: &mut impl FnMut(&mut State) -> Result<Option<R>, Error>,
    ) -> Result<Option<R>, Error> {
        let inner = &*self.inner;
        let fds = inner.fds()?;
        let (before, calls) = self.with(|state| {
            state.waiters += 1;
            state.net.ports.cq().arm(Notify::Any);
            // Events from before the arming raise no signal.
            (look(state).map(|found| (found, state.timer)), state.calls)
        });
        let (found, timer) = match before {
            Ok((None, timer)) => (None, timer),
            Ok((found, _)) => (found, None),
            Err(error) => {
                self.end_wait(fds, calls);
                return Err(error);
            }
        };
        if found.is_none() {
            let until = [deadline, timer].into_iter().flatten().min();
            let now = inner.clock.now();
            let wait = until.map(|until| until.since(now));
            let timeout = wait
                .map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() });
            let mut polled = [
                PollFd::from_borrowed_fd(fds.queue.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(fds.found.as_fd(), PollFlags::IN),
            ];
            inner.sleeps.fetch_add(1, Ordering::Relaxed);
            // An interruption is a wake-up like any other: everything is looked at again.
            let _ = poll(&mut polled, timeout.as_ref());
        }
        self.end_wait(fds, calls);
        Ok(found)
    }
    /// Ends a sleep that began behind so many calls. A waiter that was called since takes its word, and no other does.
    fn end_wait(&self, fds: &Fds, calls: u64) {
        let is_called = self.with(|state| {
            let is_called = state.calls != calls;
            state.waiters -= u32::from(!is_called);
            is_called
        });
        if is_called {
            fds.take_word();
        }
    }
}

impl Fds {
    /// Takes a word of [`found`](Self::found), which the caller is due: it is there, or its writer has given the lock
    /// back and is about to write it.
    fn take_word(&self) {
        while rustix::io::read(&self.found, &mut [0; 8]) == Err(Errno::AGAIN) {
            let _ = poll(&mut [PollFd::from_borrowed_fd(self.found.as_fd(), PollFlags::IN)], None);
        }
    }
}

impl Inner {
    pub(super) fn fds(&self) -> Result<&Fds, Error> {
        if let Some(fds) = self.fds.get() {
            return Ok(fds);
        }
        let mut state = self.state.lock();
        let queue = state.net.ports.cq().wait_fd().map_err(Error::from).and_then(|fd| {
            fd.try_clone_to_owned().map_err(|source| Error::Io { doing: "copying a descriptor", source })
        });
        let wanted = state.unlock();
        self.after_unlock(wanted, Vec::new());
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let found: OwnedFd = eventfd(0, flags)
            .map_err(|e| Error::Io { doing: "creating a descriptor to wait on", source: e.into() })?;
        let queue = queue?;
        Ok(self.fds.get_or_init(|| Fds { queue, found }))
    }
    /// Wakes waiters that were [taken](State::take_waiters).
    #[cold]
    pub(super) fn wake(&self, waiters: u32) {
        let asleep = waiters & !ARMED;
        if let Some(fds) = self.fds.get().filter(|_| asleep > 0) {
            let _ = rustix::io::write(&fds.found, &u64::from(asleep).to_ne_bytes());
        }
        if waiters & ARMED != 0 {
            self.tell_signals();
        }
    }
    /// Wakes all waiters, for an abort.
    pub(super) fn wake_all(&self) {
        let mut state = self.state.lock();
        let waiters = state.take_waiters();
        let wanted = state.unlock();
        self.wake(waiters);
        self.after_unlock(wanted, Vec::new());
    }
}
