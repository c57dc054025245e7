//! The adapter's thread.
//!
//! In [`Progress::Thread`] only this thread runs the engine. It sleeps on the network's descriptor and the program's
//! doorbells when there is no work.
//!
//! In [`Progress::Adaptive`] the thread stands by. While the program runs turns, a thread that slept on the network's
//! descriptor would be woken by every packet, so the thread does not wait for the descriptor then:
//!
//! - ACTIVE: the thread sleeps for a tick of 1 ms, and then checks whether the program has run a turn since.
//! - GUARD: entered after a tick without a turn, or when the program announces that it sleeps, by arming a queue that
//!   has a waker and no descriptor. The thread runs the engine until no work is left, and sleeps on the descriptors and
//!   the next protocol deadline, without a tick: an idle adapter uses no CPU.
//!
//! A turn polls the network. A post is not a turn: a program may post for ever and never poll, while its peers'
//! requests wait. A program that spins on its own memory runs at most occasional turns, for the completions of its
//! posts. So a thread in GUARD that finds work which the program has left for a whole tick requires more turns in a row
//! before it returns to ACTIVE, up to [`MAX_TOLERANCE`].
//!
//! Behind a program that said that it sleeps they are [`SLEEPERS_TOLERANCE`].
//!
//! The last of those turns returns the thread to ACTIVE, at the cost of one wake-up. So at most 2 ms pass between the
//! program's last turn and the thread's first. A turn that misses the change of state costs a wake-up, never a stall,
//! because in GUARD the thread does all work.
//!
//! A turn or a post beside GUARD may leave work for later, which the sleeping thread has to know. Waking the thread
//! costs microseconds, which a program that posts and spins on its memory would pay for each message. So the program
//! wakes the thread only if the work is due before the thread's sleep ends ([`Sleeper::sleeps_until`]). A thread beside
//! a program that posts sleeps for no longer than a bound ([`Horizon::bound`]), which ends before the retransmit timer of
//! a new request can fire, or so much later as timers may fire late. So posts wake the thread once, and then no more.
//! The first sleep in which the program left nothing is the last one that the bound ends: an idle adapter has no tick.
//!
//! A thread that wakes may have interrupted the program's thread that has the engine, on the same CPU. So in GUARD the
//! thread does not wait for the engine: it asks the holder for a whole turn, and sleeps for no longer than that bound.
//! Packets do not wake it from that, until the holder has done the turn: they would do so at once, before the holder
//! runs.
//!
//! A program's thread does not wait for the engine either, nor does it wake the thread that has it: it leaves a note,
//! and the holder looks whether the thread's sleep is short enough for what was left.

use core::cell::Cell;
use core::time::Duration;
use std::os::fd::OwnedFd;

use hca_core::{DeviceError, Instant};

use crate::engine::{AckRule, Engine};
use crate::guard::{HeldAcks, Horizon, Looks};
use crate::notify::EventFd;
use crate::options::Progress;
use crate::patience;
use crate::seat::Seat;
use crate::shared::{Shared, earlier};
use crate::sleep::{Sleep, Watch, doze};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, CachePadded, Ordering};

/// The mode in which the program turns. Any other is that of the guard, which so many turns of the program end.
const ACTIVE: u32 = 0;
/// How many they are where the program does not leave work lying, and at most; the factor from one such time to the
/// next, and the share by which they are fewer behind a tick without work.
const MIN_TOLERANCE: u32 = 1;
const MAX_TOLERANCE: u32 = 512;
const TOLERANCE_FACTOR: u32 = 8;
/// How many they are behind a program that said that it sleeps. A program that is woken for a message turns some times,
/// and sleeps again: the guard that came and went would cost it two wake-ups of the thread.
const SLEEPERS_TOLERANCE: u32 = 64;

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
    /// The program has said that it sleeps, with nothing to be woken by but the thread, and no guard has ended since.
    program_sleeps: AtomicBool,
    /// When a sleep in GUARD ends by itself, in nanoseconds. Written under the engine's lock.
    until: AtomicU64,
    /// Changes whenever the program leaves work to the guard. Lost counts of racing threads do not matter.
    left: AtomicU32,
    /// How much later than due a timer may fire that the program leaves, in nanoseconds.
    late: AtomicU64,
    /// The thread holds acknowledgements back for an answer of the program.
    holds: AtomicBool,
    /// The CPU on which the program left something last.
    program_cpu: AtomicU32,
    stop: AtomicBool,
    /// Whoever gives the engine back does a turn for the thread.
    asked: AtomicBool,
    /// Whoever has given the engine back ends the thread's sleep, or has packets end it again.
    wanted: AtomicBool,
    done: AtomicBool,
    pub(crate) watch: Watch,
    kick: Option<EventFd>,
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
    fn stand_guard(&self, tolerance: u32) {
        self.mode.fetch_max(tolerance, Ordering::SeqCst);
    }
    /// The guard has found work: the program's turns count from now on.
    fn guard_found_work(&self, tolerance: u32) {
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

/// How many turns end a guard, behind one that was entered by a tick and found work at once, or none. A tick without
/// work says little: of two programs that answer each other, only one has left work lying. So the number falls slowly.
fn learn(tolerance: u32, found_work: bool) -> u32 {
    let next = if found_work {
        tolerance * TOLERANCE_FACTOR
    } else {
        tolerance - tolerance.div_ceil(TOLERANCE_FACTOR)
    };
    next.clamp(MIN_TOLERANCE, MAX_TOLERANCE)
}

/// The thread's life.
pub(crate) fn run(shared: &Arc<Shared>, sleep: Sleep) {
    let s = &shared.sleeper;
    OWN.set(core::ptr::from_ref(s).addr());
    // Where the system refuses, the thread waits for the slice of a program that spins.
    let _ = hca_process::run_soon();
    let mut tolerance = MIN_TOLERANCE;
    let mut own = Own {
        sleep,
        looks: Looks::default(),
        held: HeldAcks::default(),
        horizon: Horizon::new(0),
        seat: Seat::default(),
    };
    while !s.stop.load(Ordering::SeqCst) {
        let mut by_tick = false;
        if shared.progress == Progress::Adaptive {
            let seen = s.turns.load(Ordering::Relaxed);
            own.sleep.hear(&shared.fabric_fds, false);
            doze(s.kick(), patience::tick());
            // The program may have said meanwhile that it sleeps.
            by_tick = s.mode.load(Ordering::SeqCst) == ACTIVE;
            if by_tick && s.turns.load(Ordering::Relaxed) != seen {
                continue;
            }
            s.stand_guard(tolerance);
        }
        guard(shared, &mut tolerance, &mut own, by_tick);
    }
}

/// What the thread sleeps on, and what it has learned.
struct Own {
    sleep: Sleep,
    looks: Looks,
    held: HeldAcks,
    horizon: Horizon,
    seat: Seat,
}

impl Own {
    /// Something was found. Returns whether the thread looks for more before it sleeps.
    fn looks_on(&mut self, by_look: bool, s: &Sleeper) -> bool {
        let looks_on = self.looks.found(by_look);
        if looks_on {
            self.seat.leave();
            self.horizon.begin_again();
        } else {
            self.seat.take(s.program_cpu.load(Ordering::Relaxed));
        }
        looks_on
    }
}

/// Turns the engine until the program does so itself again. `by_tick`: the program did not turn for a whole tick.
///
/// With [`Progress::Thread`] the program gives its CPU away while it waits, so the thread yields between its looks.
fn guard(shared: &Shared, tolerance: &mut u32, own: &mut Own, mut by_tick: bool) {
    let s = &shared.sleeper;
    let learns = shared.progress == Progress::Adaptive;
    let (mut look_until, mut by_look, mut slept) = (Instant::ZERO, false, false);
    own.horizon = Horizon::new(s.left.load(Ordering::Relaxed));
    own.sleep.hear(&shared.fabric_fds, true);
    while !s.stop.load(Ordering::SeqCst) {
        if learns && s.mode.load(Ordering::Relaxed) == ACTIVE {
            own.seat.leave();
            return;
        }
        // The clock is read by whoever has the engine: a wait for the engine would make it late.
        let (mut worked, mut arrived, bound) = (false, false, own.horizon.bound());
        let turn = |e: &mut Engine| {
            let now = shared.time.now();
            // It runs again where notes were left meanwhile.
            worked |= guard_turn(shared, e, now, learns.then_some((&mut own.held, bound)));
            arrived |= core::mem::take(&mut e.core.arrived);
            now
        };
        let done = match learns {
            true => turn_or_nap(shared, &mut own.sleep, bound, turn),
            false => Some(shared.control_and_run(turn)),
        };
        let Some((now, ran)) = done else { continue };
        if core::mem::take(&mut slept) && !arrived && own.seat.is_taken() {
            own.horizon.ended(worked || ran);
        }
        s.late.store(own.horizon.late().as_nanos() as u64, Ordering::Relaxed);
        if core::mem::take(&mut by_tick) {
            *tolerance = learn(*tolerance, worked);
        }
        // An engine that ran may have more to do.
        if worked || ran {
            s.guard_found_work(*tolerance);
            patience::found();
            if by_look && learns && !arrived {
                // What its own program has posted says nothing of the next message.
                continue;
            }
            let looks_on = !learns || own.looks_on(core::mem::take(&mut by_look), s);
            look_until = if looks_on { now + patience::of_the_thread() } else { now };
            if looks_on || ran {
                continue;
            }
        } else if now < look_until {
            by_look = true;
            if !learns {
                patience::in_vain();
            }
            continue;
        } else if core::mem::take(&mut by_look) && learns {
            own.looks.in_vain();
        }
        s.asleep.store(true, Ordering::SeqCst);
        if shared.bell.is_empty()
            && let Some((until, now)) = prepare_to_sleep(shared, own)
        {
            own.sleep.sleep(s.kick(), until, now);
            slept = true;
        }
        s.asleep.store(false, Ordering::SeqCst);
    }
}

/// Does `turn` with the engine. If another thread has that, sleeps until it has done a whole turn and packets come; for
/// `nap` at most, which is longer than a turn: the holder may be on the same CPU, and interrupted by the thread.
fn turn_or_nap<R>(
    shared: &Shared,
    sleep: &mut Sleep,
    nap: Duration,
    mut turn: impl FnMut(&mut Engine) -> R,
) -> Option<(R, bool)> {
    let s = &shared.sleeper;
    if let Some(done) = shared.turn_or_ask(&mut turn) {
        return Some(done);
    }
    let now = shared.time.now();
    let until = Some(now + nap);
    // Before the thread says that it sleeps: who sees that sees until when.
    s.until.store(sleep.ends_at(until, now), Ordering::SeqCst);
    s.asleep.store(true, Ordering::SeqCst);
    s.watch.stop(shared.sockets());
    // Who does a turn behind this has packets wake the thread again.
    let done = shared.turn_or_ask(turn);
    if done.is_none() {
        sleep.sleep(s.kick(), until, now);
    }
    s.asleep.store(false, Ordering::SeqCst);
    s.watch.go_on(shared.sockets());
    done
}

/// A turn of the thread in GUARD. Where the program may answer what comes, acknowledgements may wait for the answer.
fn guard_turn(
    shared: &Shared,
    e: &mut Engine,
    now: Instant,
    held: Option<(&mut HeldAcks, Duration)>,
) -> bool {
    let Some((held, hold)) = held else { return shared.whole_turn(e, now, AckRule::UnlessDelivered) };
    let holds_back = held.hold_back(now, e.owes_acks());
    let rule = if holds_back { AckRule::WithAnswer } else { AckRule::UnlessDelivered };
    let worked = shared.whole_turn(e, now, rule);
    held.turned(now, holds_back, worked, e.owes_acks(), hold);
    shared.sleeper.holds.store(held.holds(), Ordering::Relaxed);
    worked
}

/// Until when the thread may sleep, which has said that it does, and what time it is. `None`: there is input after all, or
/// work that is due, or something was to be run, or another thread has the engine. All that others have done with the
/// engine before is seen here; a thread that does something behind this sees that this one sleeps, and until when.
fn prepare_to_sleep(shared: &Shared, own: &mut Own) -> Option<(Option<Instant>, Instant)> {
    let horizon = own.horizon.next(shared.sleeper.left.load(Ordering::Relaxed));
    let (sleep, held_until) = (&mut own.sleep, own.held.until());
    let prepare = |e: &mut Engine| {
        // A program that finds the engine held here has rung, and does not wake the thread.
        let (input, now) = (e.fabric.prepare_wait() || !shared.bell.is_empty(), shared.time.now());
        let late = if horizon.is_some() { shared.sleeper.late() } else { Duration::ZERO };
        let deadline = earlier(e.deadline_of_late_timers(late), &shared.attention);
        // Where the system has no memory for its set, the thread looks each tick.
        let deaf = (!sleep.hears()).then(|| now + patience::tick());
        let until = [deadline, held_until, horizon.map(|h| now + h), deaf].into_iter().flatten().min();
        shared.sleeper.until.store(sleep.ends_at(until, now), Ordering::Relaxed);
        (input, now, until)
    };
    let adaptive = shared.progress == Progress::Adaptive;
    let done = if adaptive { shared.turn_or_ask(prepare) } else { Some(shared.control_and_run(prepare)) };
    let ((input, now, until), ran) = done?;
    if let Some(groups) = shared.group_fd.get() {
        sleep.watch_groups(groups);
    }
    let goes_on = input || ran || shared.attention.is_due() || until.is_some_and(|at| at <= now);
    (!goes_on).then_some((until, now))
}

#[cfg(test)]
mod tests;
