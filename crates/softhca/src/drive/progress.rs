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
//! Behind a program that said that it sleeps they are `SLEEPERS_TOLERANCE`.
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

use core::time::Duration;

use hca_core::Instant;

use crate::drive::guard::{HeldAcks, Horizon, Looks};
use crate::drive::seat::Seat;
use crate::drive::shared::{Shared, earlier};
use crate::drive::sleep::{Sleep, doze};
use crate::drive::sleeper::{ACTIVE, OWN, Sleeper};
use crate::engine::{AckRule, Engine};
use crate::options::Progress;
use crate::patience;
use crate::sync::{Arc, Ordering};

/// How many they are where the program does not leave work lying, and at most; the factor from one such time to the
/// next, and the share by which they are fewer behind a tick without work.
const MIN_TOLERANCE: u32 = 1;
const MAX_TOLERANCE: u32 = 512;
const TOLERANCE_FACTOR: u32 = 8;

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
        let (input, now) = (e.network.prepare_wait() || !shared.bell.is_empty(), shared.time.now());
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
