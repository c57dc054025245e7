//! How the program and the adapter's thread tell each other what they do; the thread's modes are told in `progress`.

use core::cell::Cell;
use core::time::Duration;
use std::os::fd::OwnedFd;

use hca_core::{DeviceError, Instant};

use crate::drive::sleep::Watch;
use crate::engine::AckRule;
use crate::notify::fd::EventFd;
use crate::options::Progress;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, CachePadded, Ordering};

/// The mode in which the program turns. Any other is that of the guard, which so many turns of the program end.
pub(crate) const ACTIVE: u32 = 0;

/// How many they are behind a program that said that it sleeps. A program that is woken for a message turns some times,
/// and sleeps again: the guard that came and went would cost it two wake-ups of the thread.
pub(super) const SLEEPERS_TOLERANCE: u32 = 64;

thread_local! {
    /// Whose thread this is.
    pub(crate) static OWN: Cell<usize> = const { Cell::new(0) };
}

/// How the program and the thread tell each other what they do.
pub(crate) struct Sleeper {
    /// Changes with every turn of the program. Lost counts of racing threads do not matter.
    pub(super) turns: CachePadded<AtomicU64>,
    pub(super) mode: CachePadded<AtomicU32>,
    pub(super) asleep: AtomicBool,
    /// The program has said that it sleeps, with nothing to be woken by but the thread, and no guard has ended since.
    pub(super) program_sleeps: AtomicBool,
    /// When a sleep in GUARD ends by itself, in nanoseconds. Written under the engine's lock.
    pub(super) until: AtomicU64,
    /// Changes whenever the program leaves work to the guard. Lost counts of racing threads do not matter.
    pub(super) left: AtomicU32,
    /// How much later than due a timer may fire that the program leaves, in nanoseconds.
    pub(super) late: AtomicU64,
    /// The thread holds acknowledgements back for an answer of the program.
    pub(super) holds: AtomicBool,
    /// The CPU on which the program left something last.
    pub(super) program_cpu: AtomicU32,
    pub(super) stop: AtomicBool,
    /// Whoever gives the engine back does a turn for the thread.
    pub(super) asked: AtomicBool,
    /// Whoever has given the engine back ends the thread's sleep, or has packets end it again.
    pub(super) wanted: AtomicBool,
    pub(super) done: AtomicBool,
    pub(crate) watch: Watch,
    pub(super) kick: Option<EventFd>,
}

impl Sleeper {
    pub(crate) fn new(progress: Progress) -> Result<Self, DeviceError> {
        Ok(Self {
            turns: CachePadded::new(AtomicU64::new(0)),
            mode: CachePadded::new(AtomicU32::new(ACTIVE)),
            asleep: AtomicBool::new(false),
            program_sleeps: AtomicBool::new(false),
            until: AtomicU64::new(0),
            left: AtomicU32::new(0),
            late: AtomicU64::new(0),
            holds: AtomicBool::new(false),
            program_cpu: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            done: AtomicBool::new(false),
            watch: Watch::default(),
            kick: if progress == Progress::Inline { None } else { Some(EventFd::new()?) },
        })
    }

    /// Ends the thread's sleep.
    fn wake(&self) {
        if let Some(k) = &self.kick {
            k.signal();
        }
    }
    /// The descriptor by which the thread's sleep is ended.
    ///
    /// # Panics
    /// There is no thread.
    pub(crate) fn kick(&self) -> &EventFd {
        self.kick.as_ref().expect("a thread has something to kick it by")
    }

    /// The program turned the engine. Returns whether a guard stands, which
    /// [`turned_beside_guard`](Self::turned_beside_guard) tells of it.
    #[inline]
    #[must_use]
    pub(crate) fn program_turned(&self) -> bool {
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.stands_guard()
    }
    /// Whether the thread does all work now. If so, work that the program leaves for later is the thread's. Asked after
    /// the engine was given back, or a note left for its holder: the thread announces that it sleeps before it has the
    /// engine for the last time.
    #[inline]
    pub(crate) fn stands_guard(&self) -> bool {
        self.mode.load(Ordering::Relaxed) != ACTIVE
    }
    /// Counts a turn of the program while a guard stands. Returns whether the guard still stands after it, beside the
    /// program.
    #[cold]
    pub(crate) fn turned_beside_guard(&self) -> bool {
        if self.is_own_thread() {
            return false;
        }
        let one_less = |mode: u32| mode.checked_sub(1);
        match self.mode.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            Ok(1) => {
                self.program_sleeps.store(false, Ordering::Relaxed);
                self.wake();
                false
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }
    /// The program left something to the guard. Returns when the guard's sleep ends by itself, `None` if it is awake.
    pub(crate) fn sleeps_until(&self) -> Option<Instant> {
        self.left.store(self.left.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.program_cpu.store(rustix::thread::sched_getcpu() as u32, Ordering::Relaxed);
        // Under the engine's lock `until` is of the sleep that is announced, or of one before, which has ended.
        let asleep = self.asleep.load(Ordering::SeqCst);
        asleep.then(|| Instant::from_nanos(self.until.load(Ordering::Relaxed)))
    }
    /// How much later than due a timer may fire that the program leaves.
    pub(crate) fn late(&self) -> Duration {
        Duration::from_nanos(self.late.load(Ordering::Relaxed))
    }
    /// By which rule a turn acknowledges that the thread has asked for.
    pub(crate) fn ack_rule(&self) -> AckRule {
        if self.holds.load(Ordering::Relaxed) { AckRule::WithAnswer } else { AckRule::UnlessDelivered }
    }
    /// Asks for a turn by whoever has the engine.
    pub(crate) fn ask_for_a_turn(&self) {
        self.asked.store(true, Ordering::SeqCst);
    }
    /// Whether a turn was asked for; once.
    pub(crate) fn is_asked_for_a_turn(&self) -> bool {
        self.asked.load(Ordering::Relaxed) && self.asked.swap(false, Ordering::SeqCst)
    }
    /// The turn that was asked for is done: packets end the thread's sleep again, or it ends now, as soon as the engine is
    /// given back.
    pub(crate) fn turn_done(&self, ends: bool) {
        if ends { &self.wanted } else { &self.done }.store(true, Ordering::Relaxed);
    }
    /// Behind the engine: sees to the thread's sleep.
    pub(crate) fn see_to_sleep<'a>(&self, sockets: impl Iterator<Item = &'a OwnedFd>) {
        let taken = |flag: &AtomicBool| flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Relaxed);
        if taken(&self.done) {
            self.watch.go_on(sockets);
        }
        if taken(&self.wanted) {
            self.wake_if_asleep();
        }
    }
    /// The program is about to sleep, and has nothing to be woken by but the thread. Returns whether a guard stood
    /// before, which is asleep or not, and is told by [`sleeps_until`](Self::sleeps_until) of what the program leaves.
    #[cold]
    #[must_use]
    pub(crate) fn program_sleeps(&self) -> bool {
        self.program_sleeps.store(true, Ordering::Relaxed);
        let guard = |mode| if mode < SLEEPERS_TOLERANCE { Some(SLEEPERS_TOLERANCE) } else { None };
        let stood = match self.mode.fetch_update(Ordering::SeqCst, Ordering::SeqCst, guard) {
            Ok(before) => before != ACTIVE,
            Err(_) => true,
        };
        if !stood {
            self.wake();
        }
        stood
    }
    /// The thread begins to stand guard, which so many turns of the program end, or more if it has said that it sleeps.
    pub(super) fn stand_guard(&self, tolerance: u32) {
        self.mode.fetch_max(tolerance, Ordering::SeqCst);
    }
    /// The guard has found work: the program's turns count from now on.
    pub(super) fn guard_found_work(&self, tolerance: u32) {
        let sleeps = self.program_sleeps.load(Ordering::Relaxed);
        let tolerance = if sleeps { tolerance.max(SLEEPERS_TOLERANCE) } else { tolerance };
        let renewed = |mode| if mode == ACTIVE { None } else { Some(tolerance) };
        let _ = self.mode.fetch_update(Ordering::Relaxed, Ordering::Relaxed, renewed);
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
            self.wake();
        }
    }

    /// The control path changed something that the thread may have to look at.
    pub(crate) fn nudge(&self) {
        self.wake();
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }
}
