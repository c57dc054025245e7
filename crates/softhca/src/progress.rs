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
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// A guard that so many turns of the program end.
    fn guarded(turns: u32) -> Sleeper {
        let sleeper = Sleeper::new(Progress::Adaptive).unwrap();
        sleeper.mode.store(turns, Ordering::SeqCst);
        sleeper
    }
    fn mode(s: &Sleeper) -> u32 {
        s.mode.load(Ordering::SeqCst)
    }
    /// Whether its thread was kicked since the last look.
    fn kicked(s: &Sleeper) -> bool {
        let kick = s.kick.as_ref().unwrap();
        let fd = kick.fd();
        let readable =
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap()
                == 1;
        kick.clear();
        readable
    }

    /// A turn of the program; whether it leaves what it did not do to a guard.
    fn turn(s: &Sleeper) -> bool {
        s.program_turned() && s.turned_beside_guard()
    }

    #[test]
    fn what_an_engine_does_on_the_adapters_thread_is_no_turn_of_the_programs() {
        let sleeper = guarded(1);
        assert!(!turn(&sleeper));
        assert_eq!(mode(&sleeper), ACTIVE);
        sleeper.mode.store(1, Ordering::SeqCst);
        OWN.set(core::ptr::from_ref(&sleeper).addr());
        assert!(!turn(&sleeper));
        OWN.set(0);
        assert_eq!(mode(&sleeper), 1, "it would look at the network once a tick only");
    }

    #[test]
    fn a_guard_that_sleeps_tells_until_when_and_is_woken_once() {
        let sleeper = guarded(2);
        assert_eq!(sleeper.sleeps_until(), None, "it is awake");
        sleeper.until.store(7, Ordering::Relaxed);
        sleeper.asleep.store(true, Ordering::SeqCst);
        assert_eq!(sleeper.sleeps_until(), Some(Instant::from_nanos(7)));
        assert!(turn(&sleeper), "the program's last turn but one");
        sleeper.wake_if_asleep();
        sleeper.wake_if_asleep();
        assert_eq!((mode(&sleeper), kicked(&sleeper), kicked(&sleeper)), (1, true, false));
    }

    #[test]
    fn who_says_that_it_sleeps_is_guarded_at_once() {
        let sleeper = guarded(ACTIVE);
        assert!(!sleeper.program_sleeps());
        assert!(mode(&sleeper) != ACTIVE && kicked(&sleeper));
        assert!(sleeper.program_sleeps());
        assert!(!kicked(&sleeper), "its thread stands guard");
    }

    #[test]
    fn a_program_that_is_woken_and_sleeps_again_does_not_end_its_guard() {
        let sleeper = guarded(ACTIVE);
        assert!(!sleeper.program_sleeps());
        for _ in 0..10 {
            sleeper.stand_guard(MIN_TOLERANCE);
            sleeper.guard_found_work(MIN_TOLERANCE);
            assert!(turn(&sleeper) && sleeper.program_sleeps());
        }
        assert_eq!((1..SLEEPERS_TOLERANCE).filter(|_| !turn(&sleeper)).count(), 0);
        assert!(!turn(&sleeper) && mode(&sleeper) == ACTIVE, "it has polled on and on");
        sleeper.stand_guard(MIN_TOLERANCE);
        sleeper.guard_found_work(MIN_TOLERANCE);
        assert!(!turn(&sleeper), "it has not slept since");
    }

    #[test]
    fn a_guard_that_sleeps_until_packets_come_sleeps_on_when_its_program_sleeps_too() {
        let device = device();
        let shared = device.shared();
        let s = &shared.sleeper;
        let begin = std::time::Instant::now();
        let sleeps = || s.stands_guard() && s.asleep.load(Ordering::SeqCst);
        while !(sleeps() && s.until.load(Ordering::SeqCst) == crate::runs::NEVER) {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
        for _ in 0..100 {
            shared.program_sleeps();
            assert!(sleeps(), "it was woken");
        }
    }

    /// A device on an address of its own.
    fn device() -> Arc<crate::SoftHca> {
        device_with(crate::Options::default())
    }
    fn device_with(options: crate::Options) -> Arc<crate::SoftHca> {
        let open = |host| hca_fabric::UdpFabric::open(host, &hca_fabric::UdpOptions::default()).ok();
        let pid = std::process::id();
        let hosts = (1..=200).map(|n| std::net::Ipv4Addr::from(0x7f00_0000 | (pid << 8 | n) & 0xff_ffff));
        let fabric = hosts.into_iter().find_map(|host| open(host.into())).expect("a free address");
        crate::SoftHca::open(Box::new(fabric), options).unwrap()
    }

    #[test]
    fn who_arms_a_queue_that_has_a_waker_and_no_descriptor_is_guarded_at_once() {
        use hca_core::{Completion, Device, Notify};
        let device = device();
        let (_, mut cq) = device.create_cq(4).unwrap();
        let mut one = [Completion::default()];
        let is_guarded = || mode(&device.shared().sleeper) != ACTIVE;
        cq.poll(&mut one);
        cq.set_waker(core::task::Waker::noop());
        cq.arm(Notify::Any);
        assert!(is_guarded());
        assert!(cq.poll(&mut one) == 0 && is_guarded(), "the look behind it is the last one");
        // Its thread may stand guard again soon.
        while cq.poll(&mut one) > 0 || is_guarded() {}
    }

    #[test]
    fn a_guard_that_finds_the_engine_held_waits_for_nobody_and_has_the_holder_turn() {
        let device = device_with(crate::Options { progress: Progress::Inline, ..crate::Options::default() });
        let shared = device.shared();
        let turns = Cell::new(0);
        let turn = || shared.turn_or_ask(|_| turns.set(turns.get() + 1)).is_some();
        shared.control(|_| assert!(!turn()));
        assert_eq!(turns.get(), 0);
        assert!(!shared.sleeper.is_asked_for_a_turn(), "the holder has turned");
        assert!(turn() && turns.get() == 1 && !shared.sleeper.is_asked_for_a_turn());
    }

    #[test]
    fn a_program_whose_other_thread_sleeps_on_a_descriptor_has_no_guard_at_once() {
        use hca_core::{Device, Notify, Offload};
        let device = device();
        let sleeper = &device.shared().sleeper;
        let (_, mut cq) = device.create_cq(4).unwrap();
        // Whether the mode is still that of a program which turns, behind its word that it sleeps. A tick may have come
        // in between.
        let stays_active = || {
            let seen = || {
                while sleeper.stands_guard() {
                    device.turn();
                }
                Offload::program_sleeps(&*device);
                !sleeper.stands_guard()
            };
            (0..2000).any(|_| seen())
        };
        assert!(!stays_active());
        cq.wait_fd().unwrap();
        cq.arm(Notify::Any);
        assert!(stays_active());
    }

    #[test]
    fn a_guard_learns_from_work_that_was_left_lying() {
        let mut tolerance = MIN_TOLERANCE;
        for _ in 0..5 {
            tolerance = learn(tolerance, true);
        }
        assert_eq!(tolerance, MAX_TOLERANCE);
        let sleeper = guarded(tolerance);
        (1..tolerance).for_each(|_| assert!(turn(&sleeper)));
        assert!(mode(&sleeper) != ACTIVE && !kicked(&sleeper));
        sleeper.guard_found_work(tolerance);
        (1..tolerance).for_each(|_| assert!(turn(&sleeper)));
        assert!(mode(&sleeper) != ACTIVE, "the turns are counted since it found work");
        assert!(!turn(&sleeper));
        assert!(mode(&sleeper) == ACTIVE && kicked(&sleeper));
        sleeper.guard_found_work(tolerance);
        assert_eq!(mode(&sleeper), ACTIVE, "it was sent away");
        assert!(learn(tolerance, false) > tolerance / 2, "one tick without work says little");
        for _ in 0..50 {
            tolerance = learn(tolerance, false);
        }
        assert_eq!(tolerance, MIN_TOLERANCE);
    }

    /// Brings a queue pair of a service to RTS, towards that of a number at another device.
    fn connect(
        device: &crate::SoftHca,
        (qp, qp_type): (hca_core::QpHandle, hca_core::QpType),
        (peer, qpn): (&crate::SoftHca, hca_core::Qpn),
    ) {
        use hca_core::{
            AckTimeout, AddressVector, Device, Gid, Mtu, Pkey, Psn, QpAttr, QpState, QpType, RnrTimer,
        };
        let (receives, sends) = (qp_type != QpType::XrcIni, qp_type != QpType::XrcTgt);
        let init = QpAttr { state: Some(QpState::Init), pkey: Some(Pkey::DEFAULT), ..QpAttr::default() };
        let init = QpAttr { access: Some(hca_core::Access::empty()), ..init };
        let dgid = Gid::from_ip(peer.fabric().local);
        let rtr = QpAttr {
            state: Some(QpState::Rtr),
            dest_qpn: Some(qpn),
            av: Some(AddressVector { dgid, ..AddressVector::default() }),
            path_mtu: Some(Mtu::B1024),
            rq_psn: Some(Psn::new(7)),
            max_dest_rd_atomic: receives.then_some(1),
            min_rnr_timer: receives.then(|| RnrTimer::new(1)),
            ..QpAttr::default()
        };
        let rts = QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(7)),
            timeout: Some(AckTimeout::new(18)),
            retry_cnt: sends.then_some(7),
            rnr_retry: sends.then_some(7),
            max_rd_atomic: sends.then_some(1),
            ..QpAttr::default()
        };
        for attr in [init, rtr, rts] {
            device.modify_qp(qp, &attr).unwrap();
        }
    }
    /// Two queue pairs of these devices, connected to each other, with a receive request each.
    #[allow(unsafe_code)] // posts, as a program does
    fn connected(devices: &[Arc<crate::SoftHca>; 2]) -> [hca_core::QpPorts; 2] {
        use hca_core::{Device, QpCap, QpInit, QpType, RecvWr};
        let mut qps = devices.each_ref().map(|device| {
            let (cq, _) = device.create_cq(16).unwrap();
            let (pd, cap) = (device.alloc_pd().unwrap(), QpCap::default());
            let init = QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap };
            device.create_qp(pd, &init).unwrap()
        });
        for (n, device) in devices.iter().enumerate() {
            connect(device, (qps[n].handle, QpType::Rc), (&devices[1 - n], qps[1 - n].qpn));
            let recv = qps[n].recv.as_mut().unwrap();
            // SAFETY: the request names no memory.
            unsafe { recv.post(&[RecvWr { wr_id: 0, sges: &[] }]) }.unwrap();
            recv.ring();
        }
        qps
    }
    /// An initiator of XRC at the first device, with its completion queue, and the number of a queue at the second, which
    /// has so many receive requests.
    #[allow(unsafe_code)] // posts, as a program does
    fn connected_xrc(
        devices: &[Arc<crate::SoftHca>; 2],
        requests: u64,
    ) -> (hca_core::QpPorts, Box<dyn hca_core::CqPort>, hca_core::Srqn) {
        use hca_core::{Device, ExtendedConnections, QpCap, QpInit, QpType, RecvWr, SrqInit};
        let (send_cq, port) = devices[0].create_cq(16).unwrap();
        let cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..QpCap::default() };
        let init = QpInit { qp_type: QpType::XrcIni, send_cq, recv_cq: send_cq, srq: None, cap };
        let initiator = devices[0].create_qp(devices[0].alloc_pd().unwrap(), &init).unwrap();
        let (cq, pd) = (devices[1].create_cq(16).unwrap().0, devices[1].alloc_pd().unwrap());
        let domain = devices[1].alloc_xrcd().unwrap();
        let mut srq = devices[1].create_xrc_srq(pd, domain, cq, &SrqInit { max_wr: 16, max_sge: 1 }).unwrap();
        let (target, qpn) = devices[1].create_xrc_target(domain).unwrap();
        connect(&devices[1], (target, QpType::XrcTgt), (&devices[0], initiator.qpn));
        connect(&devices[0], (initiator.handle, QpType::XrcIni), (&devices[1], qpn));
        for wr_id in 0..requests {
            // SAFETY: the request names no memory.
            unsafe { srq.recv.post(&[RecvWr { wr_id, sges: &[] }]) }.unwrap();
        }
        srq.recv.ring();
        (initiator, port, srq.number)
    }

    #[test]
    #[allow(unsafe_code)] // posts, as a program does
    fn a_post_beside_a_holder_of_the_engine_shortens_the_sleep_of_the_guard() {
        use hca_core::{Payload, SendFlags, SendOp, SendWr};
        let inline = || crate::Options { progress: Progress::Inline, ..crate::Options::default() };
        // Nobody turns the peer, so there is no answer, and the request stays to be repeated.
        let devices = [device(), device_with(inline())];
        let [mut qp, _peer] = connected(&devices);
        let shared = devices[0].shared();
        let until = |sleeps: &dyn Fn(u64) -> bool| {
            let begin = std::time::Instant::now();
            while !(shared.sleeper.asleep.load(Ordering::SeqCst)
                && shared.sleeper.stands_guard()
                && sleeps(shared.sleeper.until.load(Ordering::SeqCst)))
            {
                assert!(begin.elapsed() < Duration::from_secs(20));
                std::thread::yield_now();
            }
        };
        until(&|at| at == crate::runs::NEVER);
        let (payload, flags) = (Payload::Inline(b""), SendFlags::SIGNALED);
        let message = SendWr { wr_id: 1, op: SendOp::Send, flags, payload, dest: None };
        // SAFETY: inline data names no memory.
        shared.control(|_| unsafe { qp.send.post_now(&message) }).unwrap();
        until(&|at| at != crate::runs::NEVER);
    }

    #[test]
    #[allow(unsafe_code)] // posts, as a program does
    fn an_acknowledgement_that_leaves_with_an_answer_leaves_the_guard_nothing_to_do() {
        use hca_core::{Payload, SendFlags, SendOp, SendWr};
        let devices = [0, 1]
            .map(|_| device_with(crate::Options { progress: Progress::Inline, ..crate::Options::default() }));
        let mut qps = connected(&devices);
        let (payload, flags) = (Payload::Inline(b""), SendFlags::SIGNALED);
        let message = SendWr { wr_id: 1, op: SendOp::Send, flags, payload, dest: None };
        let mut held = HeldAcks::default();
        let mut turn = || {
            devices[1].shared().control(|e| {
                let now = devices[1].shared().time.now();
                guard_turn(devices[1].shared(), e, now, Some((&mut held, Duration::from_micros(250))));
                (e.owes_acks(), held.until(), e.sends_at())
            })
        };
        // SAFETY: inline data names no memory.
        unsafe { qps[0].send.post_now(&message) }.unwrap();
        let (owes, until, _) = turn();
        assert!(owes && until.is_some(), "it waits for the answer");
        // SAFETY: as above.
        unsafe { qps[1].send.post_now(&message) }.unwrap();
        assert_eq!(turn(), (false, None, None), "the guard sleeps until a packet comes or a timer fires");
    }

    /// The program's answer to a message of XRC goes by another queue pair, and may overtake what the target owes.
    #[test]
    #[allow(unsafe_code)] // posts, as a program does
    fn what_an_xrc_target_owes_waits_for_no_answer() {
        use hca_core::{Completion, Dest, Payload, SendFlags, SendOp, SendWr};
        let devices = [0, 1]
            .map(|_| device_with(crate::Options { progress: Progress::Inline, ..crate::Options::default() }));
        let mut answering = connected(&devices);
        let (mut initiator, mut cq, number) = connected_xrc(&devices, 4);
        let begin = std::time::Instant::now();
        // Turns until the turn in which the message arrives; whether acknowledgements are owed behind it.
        let turn = |rule| {
            let shared = devices[1].shared();
            shared.control(|e| {
                e.core.arrived = false;
                while !e.core.arrived {
                    assert!(begin.elapsed() < Duration::from_secs(20), "{rule:?}: nothing arrives");
                    shared.whole_turn(e, shared.time.now(), rule);
                }
                (e.owes_acks(), e.sends_at())
            })
        };
        let (payload, flags) = (Payload::Inline(b""), SendFlags::SIGNALED);
        let mut message = SendWr { wr_id: 1, op: SendOp::Send, flags, payload, dest: None };
        // SAFETY: inline data names no memory.
        unsafe { answering[0].send.post_now(&message) }.unwrap();
        turn(AckRule::WithAnswer);
        message.dest = Some(Dest::Srq(number));
        for rule in [AckRule::WithAnswer, AckRule::NextTurn, AckRule::UnlessDelivered, AckRule::Now] {
            // SAFETY: as above.
            unsafe { initiator.send.post_now(&message) }.unwrap();
            let others_owe = rule == AckRule::WithAnswer;
            assert_eq!(turn(rule), (others_owe, None), "{rule:?}");
            // Nobody turns the target's device meanwhile.
            let mut one = [Completion::default()];
            while cq.poll(&mut one) == 0 {
                assert!(begin.elapsed() < Duration::from_secs(20), "{rule:?}: it was not acknowledged");
            }
            assert_eq!(one[0].status, hca_core::WcStatus::Success, "{rule:?}");
        }
    }
}
