//! The waiters of an adapter: one sleeps on the descriptor of the completion channel, the others on a condition.

use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use hca_verbs::{CompletionChannel, Context};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;

use crate::{Error, lock};

/// The time to look again and again before sleeping.
const LOOK: Duration = Duration::from_micros(20);

pub(crate) struct Waiters {
    channel: CompletionChannel,
    /// Readable when the waiters have to look although no completion came.
    called: OwnedFd,
    lead: Mutex<Lead>,
    changed: Condvar,
}

#[derive(Default)]
struct Lead {
    /// A waiter sleeps on the descriptors.
    taken: bool,
    /// Counts the times that all waiters had to look.
    round: u64,
}

impl Waiters {
    pub(crate) fn new(context: &Context) -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let called = eventfd(0, flags).map_err(std::io::Error::from)?;
        let (lead, changed) = Default::default();
        Ok(Self { channel: context.create_channel()?, called, lead, changed })
    }
    pub(crate) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }
    /// Has all waiters look again.
    pub(crate) fn call(&self) {
        let mut lead = lock::lock(&self.lead);
        lead.round += 1;
        if lead.taken {
            let _ = rustix::io::write(&self.called, &1_u64.to_ne_bytes());
        }
        drop(lead);
        self.changed.notify_all();
    }

    /// Waits until `ready` yields something. `arm` asks for notifications of the queues that `ready` looks at; what
    /// came before is found by the look after it.
    pub(crate) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut arm: impl FnMut(),
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, Error> {
        let begin = Instant::now();
        let end = timeout.and_then(|timeout| begin.checked_add(timeout));
        loop {
            if let Some(value) = ready() {
                return Ok(value);
            }
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Err(Error::TimedOut(timeout.unwrap_or_default()));
            }
            if now - begin >= LOOK {
                break;
            }
        }
        loop {
            let round = lock::lock(&self.lead).round;
            arm();
            if let Some(value) = ready() {
                return Ok(value);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Error::TimedOut(timeout.unwrap_or_default()));
            }
            self.sleep(round, left)?;
        }
    }

    /// Sleeps until all waiters have to look: the round is then another one.
    fn sleep(&self, round: u64, left: Option<Duration>) -> Result<(), Error> {
        let mut lead = lock::lock(&self.lead);
        if lead.round != round {
            return Ok(());
        }
        if lead.taken {
            match left {
                Some(left) => drop(self.changed.wait_timeout(lead, left)),
                None => drop(self.changed.wait(lead)),
            }
            return Ok(());
        }
        lead.taken = true;
        drop(lead);
        let slept = self.sleep_on_descriptors(left);
        let mut lead = lock::lock(&self.lead);
        lead.taken = false;
        lead.round += 1;
        drop(lead);
        self.changed.notify_all();
        slept
    }

    fn sleep_on_descriptors(&self, left: Option<Duration>) -> Result<(), Error> {
        if self.channel.poll().is_none() {
            let mut fds = [self.channel.as_fd(), self.called.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::Io(error.into())),
            }
        }
        while self.channel.poll().is_some() {}
        let _ = rustix::io::read(&self.called, &mut [0; 8]);
        Ok(())
    }
}
