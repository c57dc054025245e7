//! Descriptors to sleep on: an event, and a timer.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use hca_core::{DeviceError, Instant};
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

/// An epoll descriptor that is readable when any of `fds` is.
pub(crate) fn epoll_of(fds: &[BorrowedFd<'_>]) -> Result<OwnedFd, DeviceError> {
    use rustix::event::epoll;
    let doing = "creating the descriptor that waiters sleep on";
    let io = |e: rustix::io::Errno| DeviceError::Io { doing, source: e.into() };
    let ep = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io)?;
    for (i, fd) in fds.iter().enumerate() {
        epoll::add(&ep, fd, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN).map_err(io)?;
    }
    Ok(ep)
}

/// Whether a timer that is set to `set` has to be set for something that is due at `due`. To set a timer costs more than
/// the wake-up by one that is early, after which the timer is set again: deadlines move on with each message. A timer
/// that has expired stays readable, so it has to be set.
pub(crate) fn needs_setting(set: u64, due: u64, now: Instant) -> bool {
    let now = now.as_nanos();
    if due <= now { set > now } else { due < set || set <= now }
}
