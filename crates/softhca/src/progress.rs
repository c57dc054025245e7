//! The adapter's thread.
//!
//! In [`Progress::Thread`] it alone turns the engine, and sleeps on the network's descriptor and the
//! program's doorbells when there is nothing to do.
//!
//! In [`Progress::Adaptive`] it stands guard. While the program turns, a thread that slept on the
//! network's descriptor would be woken by every packet, so it is registered nowhere then:
//!
//! - ACTIVE: it sleeps for a tick of 1 ms and looks whether the program has turned since.
//! - GUARD: entered by a tick without a turn. It turns the engine until nothing is left, and sleeps on
//!   the descriptors and the next protocol deadline, without a tick: an idle adapter uses no CPU.
//!
//! The first turn of the program puts it back to ACTIVE, at the cost of one wake-up. So at most 2 ms pass
//! between the program's last turn and the thread's first. A turn that misses the change of state costs
//! a wake-up, never a stall: in GUARD everything moves.

use core::cell::Cell;
use core::time::Duration;
use std::os::fd::AsFd;

use hca_core::{DeviceError, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::engine::AckRule;
use crate::notify::EventFd;
use crate::options::Progress;
use crate::patience;
use crate::shared::{Shared, earlier};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, CachePadded, Ordering};

const TICK: Duration = Duration::from_millis(1);

const ACTIVE: u32 = 0;
const GUARD: u32 = 1;

thread_local! {
    /// Whose thread this is.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// How the program and the thread tell each other what they do.
pub(crate) struct Sleeper {
    /// Changes with every turn of the program. Lost counts of racing threads do not matter.
    turns: CachePadded<AtomicU64>,
    mode: CachePadded<AtomicU32>,
    asleep: AtomicBool,
    stop: AtomicBool,
    kick: Option<EventFd>,
}

impl Sleeper {
    pub(crate) fn new(progress: Progress) -> Result<Self, DeviceError> {
        Ok(Self {
            turns: CachePadded(AtomicU64::new(0)),
            mode: CachePadded(AtomicU32::new(ACTIVE)),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            kick: if progress == Progress::Inline { None } else { Some(EventFd::new()?) },
        })
    }

    fn kick(&self) {
        if let Some(k) = &self.kick {
            k.signal();
        }
    }

    /// The program turned the engine.
    #[inline]
    pub(crate) fn program_turned(&self) {
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if self.mode.load(Ordering::Relaxed) == GUARD
            && !self.is_own_thread()
            && self.mode.swap(ACTIVE, Ordering::Relaxed) == GUARD
        {
            self.kick();
        }
    }
    /// Whether this is the adapter's thread: what a Portals engine posts and polls there are not the program's turns.
    #[cold]
    fn is_own_thread(&self) -> bool {
        OWN.get() == core::ptr::from_ref(self).addr()
    }

    /// The program rang a doorbell. The ring was a SeqCst exchange and so is the thread's word that it
    /// sleeps, followed by its look at the doorbells: one of the two sees the other.
    #[inline]
    pub(crate) fn wake_if_asleep(&self) {
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.kick();
        }
    }

    /// The control path changed something that the thread may have to look at.
    pub(crate) fn nudge(&self) {
        self.kick();
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.kick();
    }
}

/// The thread's life.
pub(crate) fn run(shared: &Arc<Shared>) {
    let s = &shared.sleeper;
    OWN.set(core::ptr::from_ref(s).addr());
    while !s.stop.load(Ordering::SeqCst) {
        if shared.progress == Progress::Adaptive {
            let seen = s.turns.load(Ordering::Relaxed);
            sleep(shared, false, Some(TICK));
            if s.turns.load(Ordering::Relaxed) != seen {
                continue;
            }
            s.mode.store(GUARD, Ordering::SeqCst);
        }
        guard(shared);
    }
}

/// Turns the engine until the program does so itself again.
fn guard(shared: &Shared) {
    let s = &shared.sleeper;
    let mut look_until = Instant::ZERO;
    while !s.stop.load(Ordering::SeqCst) {
        if shared.progress == Progress::Adaptive && s.mode.load(Ordering::Relaxed) == ACTIVE {
            return;
        }
        // The clock is read by whoever has the engine: a wait for the engine would make it late.
        let ((worked, quiet, deadline, now), ran) = shared.control_and_run(|e| {
            let now = shared.time.now();
            let worked = shared.whole_turn(e, now, AckRule::UnlessDelivered);
            (worked, e.is_quiet(), e.next_deadline(), now)
        });
        // What an engine posted is not yet in these, and it may have more to do.
        if worked || ran {
            patience::found();
            look_until = now + patience::of_the_thread();
            continue;
        }
        if now < look_until {
            patience::in_vain();
            continue;
        }
        s.asleep.store(true, Ordering::SeqCst);
        if shared.bell.is_empty() && !prepare_to_sleep(shared) {
            // What is neither done nor quiet waits for the network to take more.
            let timeout = earlier(deadline, &shared.attention).map(|d| d.since(now));
            sleep(shared, true, if quiet { timeout } else { Some(timeout.map_or(TICK, |t| t.min(TICK))) });
        }
        s.asleep.store(false, Ordering::SeqCst);
    }
}

/// Whether there is input after all, or was something to be run.
fn prepare_to_sleep(shared: &Shared) -> bool {
    let (input, ran) = shared.control_and_run(|e| e.fabric.prepare_wait());
    input || ran || shared.attention.is_due()
}

/// Sleeps until it is kicked, the time is over, or (if asked for) packets arrive.
fn sleep(shared: &Shared, network: bool, timeout: Option<Duration>) {
    let kick = shared.sleeper.kick.as_ref().expect("a thread has something to kick it by");
    let kick_fd = kick.fd();
    let network = shared.fabric_fd.as_ref().filter(|_| network);
    let mut fds = [PollFd::new(&kick_fd, PollFlags::IN), PollFd::new(&kick_fd, PollFlags::empty())];
    let network_fd = network.map(|n| n.as_fd());
    if let Some(fd) = &network_fd {
        fds[1] = PollFd::new(fd, PollFlags::IN);
    }
    let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
    // An interruption is a wake-up like any other: everything is looked at again.
    let _ = poll(&mut fds, timeout.as_ref());
    if fds[0].revents().contains(PollFlags::IN) {
        kick.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_engine_does_on_the_adapters_thread_is_no_turn_of_the_programs() {
        let sleeper = Sleeper::new(Progress::Adaptive).unwrap();
        let mode = || {
            sleeper.mode.store(GUARD, Ordering::SeqCst);
            sleeper.program_turned();
            sleeper.mode.load(Ordering::SeqCst)
        };
        assert_eq!(mode(), ACTIVE);
        OWN.set(core::ptr::from_ref(&sleeper).addr());
        let own = mode();
        OWN.set(0);
        assert_eq!(own, GUARD, "it would look at the network once a tick only");
    }
}
