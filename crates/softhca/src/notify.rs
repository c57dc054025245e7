//! Descriptors to sleep on: an event, and a timer.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use hca_core::DeviceError;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// An eventfd.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> Result<Self, DeviceError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags)
            .map(Self)
            .map_err(|e| DeviceError::Io { doing: "creating an eventfd for notifications", source: e.into() })
    }
    /// Who tells of something by it looks behind the first call whether there was something before.
    pub(crate) fn get_or_create(cell: &OnceLock<Self>) -> Result<&Self, DeviceError> {
        if let Some(e) = cell.get() {
            return Ok(e);
        }
        let new = Self::new()?;
        Ok(cell.get_or_init(|| new))
    }
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
    /// Makes it readable. A full counter is readable already, hence no error matters.
    pub(crate) fn signal(&self) {
        let _: Result<usize, Errno> = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
    /// Makes it unreadable.
    pub(crate) fn clear(&self) {
        let _: Result<usize, Errno> = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

/// A timerfd on the monotonic clock.
#[derive(Debug)]
pub(crate) struct TimerFd(OwnedFd);

impl TimerFd {
    pub(crate) fn new() -> Result<Self, DeviceError> {
        timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map(Self)
            .map_err(|e| DeviceError::Io { doing: "creating a timer descriptor", source: e.into() })
    }
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
    /// Makes it readable after `delay` (at least 1 ns), or never.
    pub(crate) fn set(&self, delay: Option<Duration>) {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = delay.map_or(zero, |d| {
            let d = d.max(Duration::from_nanos(1));
            Timespec { tv_sec: d.as_secs().min(1 << 40) as i64, tv_nsec: d.subsec_nanos().into() }
        });
        let spec = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec).expect("a timer of ours takes any time");
    }
}
