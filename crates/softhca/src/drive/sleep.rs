//! The sleep of the adapter's thread in GUARD: one descriptor for all that wakes it, and one timer.
//!
//! Beside a program that spins, the time of the thread for a message is what decides. The scheduler lets a thread that
//! wakes run before another one only as long as it had no more of the processor than the other. A thread that takes
//! longer for a message than the program's looks in between waits for the clock's tick, milliseconds later. So the
//! descriptors stay registered, and the timer stays set: to set and to stop a timer for each message takes as long as to
//! receive it, and in a virtual machine much longer. A timer that has become too early costs a wake-up once.

use core::time::Duration;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use hca_core::{DeviceError, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use crate::notify::fd::{EventFd, TimerFd, epoll_of, needs_setting};
use crate::notify::runs::NEVER;
use crate::sync::{Arc, AtomicBool, Ordering};

/// Whether packets end the sleeps of a thread in GUARD. They do not while another thread has the engine that will take
/// them, for a sleep that ends at once would keep that one from its CPU.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// What the thread sleeps on.
    epoll: OnceLock<Arc<OwnedFd>>,
    stopped: AtomicBool,
}

impl Watch {
    /// Has packets at `sockets` end no more sleeps.
    pub(crate) fn stop<'a>(&self, sockets: impl Iterator<Item = &'a OwnedFd>) {
        self.change(sockets, epoll::EventFlags::empty());
        self.stopped.store(true, Ordering::SeqCst);
    }
    /// Has packets end sleeps again, and at once if there are any.
    pub(crate) fn go_on<'a>(&self, sockets: impl Iterator<Item = &'a OwnedFd>) {
        if self.stopped.load(Ordering::Relaxed) && self.stopped.swap(false, Ordering::SeqCst) {
            self.change(sockets, epoll::EventFlags::IN);
        }
    }
    fn change<'a>(&self, sockets: impl Iterator<Item = &'a OwnedFd>, flags: epoll::EventFlags) {
        let Some(epoll) = self.epoll.get() else { return };
        for socket in sockets {
            // Those of groups may not be watched yet.
            let _ = epoll::modify(epoll, socket, epoll::EventData::new_u64(u64::MAX), flags);
        }
    }
}

/// What a thread in GUARD sleeps on.
pub(crate) struct Sleep {
    epoll: Arc<OwnedFd>,
    timer: TimerFd,
    /// When the timer expires, in nanoseconds.
    timer_at: u64,
    /// The sockets of multicast groups are watched.
    groups: bool,
    /// Those of the network are.
    hears: bool,
}

impl Sleep {
    pub(crate) fn new(kick: &EventFd, watch: &Watch) -> Result<Self, DeviceError> {
        let timer = TimerFd::new()?;
        // The first one is the kick.
        let epoll = Arc::new(epoll_of(&[kick.fd(), timer.fd()])?);
        let _ = watch.epoll.set(epoll.clone());
        Ok(Self { epoll, timer, timer_at: NEVER, groups: false, hears: false })
    }
    /// Has packets at `sockets` end sleeps, or not: beside a program that turns each packet would cost the kernel a look
    /// at this set. Returns whether they do.
    pub(crate) fn hear(&mut self, sockets: &[OwnedFd], hears: bool) -> bool {
        if self.hears != hears {
            let data = epoll::EventData::new_u64(u64::MAX);
            let change = |socket| match hears {
                true => epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)
                    .or_else(|e| if e == Errno::EXIST { Ok(()) } else { Err(e) }),
                false => epoll::delete(&self.epoll, socket),
            };
            let changed = sockets.iter().all(|socket| change(socket).is_ok());
            self.hears = hears && changed;
        }
        self.hears
    }
    /// Whether packets end sleeps.
    pub(crate) fn hears(&self) -> bool {
        self.hears
    }
    /// Has packets to multicast groups end sleeps, once there is a descriptor of them.
    pub(crate) fn watch_groups(&mut self, groups: &OwnedFd) {
        if !self.groups {
            let data = epoll::EventData::new_u64(u64::MAX);
            self.groups = epoll::add(&self.epoll, groups, data, epoll::EventFlags::IN).is_ok();
        }
    }
    /// When a sleep that begins now ends by itself, if it is to end at `until`: then, or when the timer expires that is set.
    pub(crate) fn ends_at(&self, until: Option<Instant>, now: Instant) -> u64 {
        let due = until.map_or(NEVER, Instant::as_nanos);
        if needs_setting(self.timer_at, due, now) { due } else { self.timer_at }
    }
    /// Sleeps until the thread is kicked, packets arrive, or the time is over.
    pub(crate) fn sleep(&mut self, kick: &EventFd, until: Option<Instant>, now: Instant) {
        let due = until.map_or(NEVER, Instant::as_nanos);
        if needs_setting(self.timer_at, due, now) {
            self.timer_at = due;
            self.timer.set(until.map(|at| at.since(now)));
        }
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 4];
        // An interruption is a wake-up like any other: everything is looked at again.
        let n = epoll::wait(&self.epoll, &mut events, None).unwrap_or(0);
        if events[..n].iter().any(|event| event.data.u64() == 0) {
            kick.clear();
        }
    }
}

/// Sleeps until the thread is kicked or the time is over.
pub(crate) fn doze(kick: &EventFd, time: Duration) {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let fd = kick.fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let _ = poll(&mut fds, Some(&time));
    if fds[0].revents().contains(PollFlags::IN) {
        kick.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn a_sleep_ends_by_a_kick_by_packets_and_by_its_time() {
        let kick = EventFd::new().unwrap();
        let [(to_us, network), (to_group, groups)] = [0, 1].map(|_| {
            let (theirs, ours) = UnixDatagram::pair().unwrap();
            (theirs, OwnedFd::from(ours))
        });
        let mut sleep = Sleep::new(&kick, &Watch::default()).unwrap();
        let network = [network];
        assert!(sleep.hear(&network, true));
        kick.signal();
        sleep.sleep(&kick, None, at(1));
        // The kick is taken: the time ends the next sleep, of one millisecond.
        let before = std::time::Instant::now();
        sleep.sleep(&kick, Some(at(1_000_001)), at(1));
        assert!(before.elapsed() >= Duration::from_millis(1));
        sleep.watch_groups(&groups);
        to_group.send(&[1]).unwrap();
        sleep.sleep(&kick, None, at(2_000_000));
        let mut event = [0; 1];
        rustix::io::read(&groups, &mut event).unwrap();
        to_us.send(&[1]).unwrap();
        sleep.sleep(&kick, None, at(2_000_000));
        // Beside a program that turns they end none, and later they do at once.
        rustix::io::read(&network[0], &mut event).unwrap();
        assert!(!sleep.hear(&network, false));
        to_us.send(&[1]).unwrap();
        let before = std::time::Instant::now();
        sleep.sleep(&kick, Some(at(3_000_001)), at(2_000_001));
        assert!(before.elapsed() >= Duration::from_millis(1));
        assert!(sleep.hear(&network, true) && sleep.hear(&network, true));
        sleep.sleep(&kick, None, at(3_000_001));
    }

    #[test]
    fn a_timer_that_is_early_enough_stays_set_and_one_that_has_expired_does_not() {
        let kick = EventFd::new().unwrap();
        let mut sleep = Sleep::new(&kick, &Watch::default()).unwrap();
        assert_eq!(sleep.ends_at(None, at(1)), NEVER);
        let hour = 3_600_000_000_000;
        kick.signal();
        sleep.sleep(&kick, Some(at(hour)), at(1));
        let until = |due: Option<u64>, now| sleep.ends_at(due.map(at), at(now));
        assert_eq!([until(Some(hour + 5), 2), until(None, 2)], [hour; 2], "it is early, and wakes once");
        assert_eq!(until(Some(hour - 5), 2), hour - 5);
        assert_eq!([until(Some(hour + 5), hour), until(None, hour + 1)], [hour + 5, NEVER]);
    }

    #[test]
    fn packets_end_no_sleep_while_another_thread_takes_them() {
        let (kick, watch) = (EventFd::new().unwrap(), Watch::default());
        let (theirs, ours) = UnixDatagram::pair().unwrap();
        let network = OwnedFd::from(ours);
        let mut sleep = Sleep::new(&kick, &watch).unwrap();
        let network = [network];
        assert!(sleep.hear(&network, true));
        theirs.send(&[1]).unwrap();
        watch.stop(network.iter());
        let mut slept = |now, until| {
            let begin = std::time::Instant::now();
            sleep.sleep(&kick, Some(at(until)), at(now));
            begin.elapsed()
        };
        assert!(slept(1, 1_000_001) >= Duration::from_millis(1));
        watch.go_on(network.iter());
        assert!(slept(2_000_000, 30_000_000_000) < Duration::from_secs(25), "the packet is still there");
    }
}
