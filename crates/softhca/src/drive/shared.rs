//! The state that the adapter's handle, its ports and its thread share.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use hca_core::{Completion, CqHandle, DeviceAttr, DeviceError, Instant, PortAttr, QpHandle};
use hca_turn_lock::{Guard, INNER, TurnLock};
use rustix::event::epoll;

use crate::drive::glance::Glance;
use crate::drive::sleeper::Sleeper;
use crate::engine::near::Look;
use crate::engine::{AckRule, Engine};
use crate::fork::Fork;
use crate::notify::events::Events;
use crate::notify::fd::{TimerFd, epoll_of, needs_setting};
use crate::notify::runs::{Attention, NEVER};
use crate::objects::qp_shared::QpShared;
use crate::options::{Progress, Time};
use crate::patience;
use crate::queues::attached::Attached;
use crate::queues::doorbell::Doorbell;
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering};

/// The engine, held.
pub(crate) type EngineGuard<'a> = Guard<'a, Engine, INNER>;

pub(crate) struct Shared {
    engine: TurnLock<Engine, INNER>,
    /// How often somebody had the engine for more than a look; stored by who has it.
    changes: AtomicU32,
    pub(crate) bell: Doorbell<QpShared>,
    pub(crate) time: Time,
    pub(crate) progress: Progress,
    /// When what a poll yields is acknowledged.
    poll_acks: AckRule,
    pub(crate) attr: DeviceAttr,
    pub(crate) port: PortAttr,
    pub(crate) events: Arc<Events>,
    pub(crate) sleeper: Sleeper,
    pub(crate) fork: Fork,
    /// Memory is allocated such that peers on this machine can be given it.
    pub(crate) gives_shared_memory: bool,
    /// Copies of the fabric's descriptors, for those that sleep without the engine's lock.
    pub(crate) fabric_fds: Vec<OwnedFd>,
    /// A copy of the descriptor of multicast groups, where [`fabric_fds`](Self::fabric_fds) do not tell of them. Set
    /// under the engine's lock.
    pub(crate) group_fd: OnceLock<OwnedFd>,
    wait: OnceLock<DeviceWait>,
    /// Readable as that of [`DeviceWait`], and while asynchronous events wait.
    wait_or_event: OnceLock<OwnedFd>,
    /// What else is to be seen to; its waiters are completion queues that were armed with a descriptor and have yielded
    /// nothing since: somebody may sleep on them, or is about to.
    pub(crate) attention: Arc<Attention>,
    /// Polls in vain beside those since one of them was armed, up to [`BUSY_POLLS`]: who polls on and on does what is to
    /// be done for them, and behind that the adapter's thread.
    polls_beside: AtomicU32,
    /// Portals engines; never locked while one runs.
    pub(crate) engines: Mutex<Vec<Arc<Attached>>>,
}

/// The descriptor that a program sleeps on when it turns the device itself.
struct DeviceWait {
    epoll: OwnedFd,
    timer: TimerFd,
    /// What the timer is set to, in nanoseconds; `NEVER` if it is not. Changed under the engine's lock.
    timer_at: AtomicU64,
}

impl DeviceWait {
    /// Makes the descriptor readable as soon as the engine needs a turn, and at once if it does now, or if something is
    /// `due` beside it.
    fn prepare(&self, e: &mut Engine, time: &Time, attention: &Attention, due: bool) {
        let now = time.now();
        let input = e.network.prepare_wait() || due;
        let deadline = if input { Some(now) } else { earlier(e.next_deadline(), attention) };
        let at = deadline.map_or(NEVER, |d| d.as_nanos());
        if needs_setting(self.timer_at.load(Ordering::Relaxed), at, now) {
            self.timer_at.store(at, Ordering::Relaxed);
            self.timer.set(deadline.map(|d| d.since(now)));
        }
    }
}

/// The engine's deadline, or that of what is run beside it.
pub(crate) fn earlier(deadline: Option<Instant>, attention: &Attention) -> Option<Instant> {
    let at = Some(attention.next_at()).filter(|at| *at != NEVER).map(Instant::from_nanos);
    [deadline, at].into_iter().flatten().min()
}

/// A turn whose caller polls a completion queue.
struct Poll<'a> {
    engine: &'a mut Engine,
}

#[allow(unsafe_code)] // one call, with its argument
impl<'a> Poll<'a> {
    /// Has completions of the queue go to `out`, which must not be empty.
    #[inline(always)]
    fn begin(engine: &'a mut Engine, cq: CqHandle, out: &'a mut [Completion]) -> Self {
        // SAFETY: `out` is borrowed for as long as this lives, and `drop` closes it.
        unsafe { engine.core.tables.complete_here(cq, out) };
        Self { engine }
    }
    /// How many went there.
    #[inline(always)]
    fn end(self) -> usize {
        let taken = self.engine.core.tables.take_here();
        core::mem::forget(self);
        taken
    }
}
impl Drop for Poll<'_> {
    /// In a panic.
    fn drop(&mut self) {
        self.engine.core.tables.take_here();
    }
}

/// Looks at the engine that the adapter's thread in GUARD has, before a post is left to it: some microseconds.
const GUARD_LOOKS: u32 = 64;
/// Polls in vain after which a program is taken for one that polls on and on: a program that sleeps soon polls less.
const BUSY_POLLS: u32 = 8;
/// Looks at the engine by who ends: as long as a turn takes.
const END_LOOKS: u32 = 4096;

impl Shared {
    pub(crate) fn new(
        engine: Engine,
        time: Time,
        (progress, lazy_acks): (Progress, bool),
        (attr, port): (DeviceAttr, PortAttr),
        (events, attention): (Arc<Events>, Arc<Attention>),
        sleeper: Sleeper,
    ) -> Result<Self, DeviceError> {
        let fds = engine.network.wait_fd().into_iter().chain(engine.network.wait_fd_beside());
        let fabric_fds = fds
            .map(|fd| fd.try_clone_to_owned())
            .collect::<Result<_, _>>()
            .map_err(|source| DeviceError::Io { doing: "copying the network's descriptors", source })?;
        let gives_shared_memory = engine.shares_memory;
        let engine = TurnLock::new(engine);
        // With nobody else to do it, what is yielded is acknowledged before it is.
        let at_once = progress == Progress::Inline && !lazy_acks;
        let poll_acks = if at_once { AckRule::Now } else { AckRule::UnlessDelivered };
        let (bell, fork, engines) = (Doorbell::new(), Fork::new(), Mutex::new(Vec::new()));
        Ok(Self {
            engine,
            changes: AtomicU32::new(0),
            bell,
            time,
            progress,
            poll_acks,
            attr,
            port,
            events,
            sleeper,
            fork,
            gives_shared_memory,
            fabric_fds,
            group_fd: OnceLock::new(),
            wait: OnceLock::new(),
            wait_or_event: OnceLock::new(),
            attention,
            polls_beside: AtomicU32::new(0),
            engines,
        })
    }

    /// A turn by the program, in the modes in which it turns. Where many find nothing, it gives way to others.
    pub(crate) fn program_turn(&self, acks: AckRule) -> bool {
        if self.fork.is_child() {
            return false;
        }
        let mut worked = false;
        if self.progress != Progress::Thread {
            worked = self.with_engine(|e| self.any_turn(e, acks)) == Some(true);
            self.note_program_turn();
        }
        patience::note(worked);
        worked
    }

    /// As [`program_turn`](Self::program_turn), by who polls this completion queue and found it empty; returns the
    /// completions that it takes at once, or that there is no need to look at the queue again. `out` must not be empty.
    /// `is_last`: the caller sleeps if it finds nothing, and only the adapter's thread wakes it. `waits`: the caller may
    /// sleep on a descriptor if it finds nothing.
    #[inline(always)]
    pub(crate) fn poller_turn(
        &self,
        cq: CqHandle,
        out: &mut [Completion],
        (is_last, waits): (bool, bool),
        glance: &mut Glance,
    ) -> Option<usize> {
        if self.progress == Progress::Thread {
            patience::in_vain();
            return None;
        }
        let Some(mut turn) = self.engine.try_lock() else {
            self.note_look(is_last);
            patience::in_vain();
            return Some(0);
        };
        if glance.take_spent() {
            turn.next_turn_is_whole();
        }
        let look = turn.look(&self.bell);
        if look != Look::Nothing || self.is_wanted(waits) {
            return self.poller_works(turn, look, (cq, out), (is_last, waits), glance);
        }
        glance.renew(&mut turn, self.changes.load(Ordering::Relaxed));
        if turn.unlock() {
            self.catch_up();
        }
        self.note_look(is_last);
        patience::in_vain();
        None
    }
    /// Whether a poll that finds its queue empty may leave it at that: nobody is to be seen to, and the engine's turn
    /// would find nothing.
    #[inline(always)]
    pub(crate) fn is_quiet(&self, glance: &mut Glance) -> bool {
        // Acquire: pairs with the Release in `note_change`.
        let quiet = glance.is_quiet(self.changes.load(Ordering::Acquire)) && !self.is_wanted(false);
        if quiet {
            self.note_program_turn();
            patience::in_vain();
        }
        quiet
    }
    /// By who has the engine for more than a look, before it is given back: what pollers know of it is to be looked at
    /// again.
    #[inline(always)]
    fn note_change(&self) {
        let changes = self.changes.load(Ordering::Relaxed).wrapping_add(1);
        // Release: pairs with the Acquire in `is_quiet`.
        self.changes.store(changes, Ordering::Release);
    }
    /// The turn of who polls, where there is something to do.
    #[inline(always)]
    fn poller_works(
        &self,
        mut turn: EngineGuard<'_>,
        look: Look,
        (cq, out): (CqHandle, &mut [Completion]),
        (is_last, waits): (bool, bool),
        glance: &mut Glance,
    ) -> Option<usize> {
        let poll = Poll::begin(&mut turn, cq, out);
        let worked = self.turn_as(look, poll.engine, self.poll_acks);
        let taken = poll.end();
        self.note_change();
        if !worked {
            glance.turned_in_vain(&mut turn, self.changes.load(Ordering::Relaxed));
            self.note_poll_beside(waits);
        }
        self.return_of(turn, Some(cq), waits);
        self.note_look(is_last);
        patience::note(worked);
        (taken > 0 || worked).then_some(taken)
    }

    /// Runs `f` if nobody else has the engine, or not for long.
    #[inline(always)]
    fn with_engine<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        let mut turn = self.engine_soon();
        let result = turn.as_mut().map(|turn| f(turn));
        if let Some(turn) = turn {
            self.give_back_of(turn, None);
        }
        result
    }

    /// Gives the engine back behind a post, and does what others posted who found it held.
    #[inline(always)]
    pub(crate) fn give_back(&self, turn: EngineGuard<'_>) {
        self.give_back_of(turn, None);
        self.note_post();
    }
    /// The same behind an access to a peer's memory. One that leaves the engine as it was needs no care for those that
    /// sleep on a descriptor: what ends their sleep stands. Nor is anything left to the adapter's thread.
    #[inline(always)]
    pub(crate) fn give_back_behind_access(&self, turn: EngineGuard<'_>, leaves_nothing: bool) {
        self.note_change();
        if !leaves_nothing || self.attention.is_wanted_now() {
            self.return_of(turn, None, false);
            self.note_post();
        } else if turn.unlock() {
            self.catch_up();
        }
    }
    /// Gives the engine back, and does what others posted who found it held. `polled`: the queue that the caller polls.
    #[inline(always)]
    fn give_back_of(&self, turn: EngineGuard<'_>, polled: Option<CqHandle>) {
        self.note_change();
        self.return_of(turn, polled, false);
    }
    /// As [`give_back_of`](Self::give_back_of), behind [`note_change`](Self::note_change). `waits`: as in
    /// [`poller_turn`](Self::poller_turn).
    #[inline(always)]
    fn return_of(&self, turn: EngineGuard<'_>, polled: Option<CqHandle>, waits: bool) {
        if self.is_wanted(waits) {
            return self.give_back_attentively(turn, polled, waits);
        }
        if turn.unlock() {
            self.catch_up();
        }
    }
    /// Where somebody may sleep, or an engine is to be run.
    #[cold]
    #[inline(never)]
    fn give_back_attentively(&self, mut turn: EngineGuard<'_>, polled: Option<CqHandle>, waits: bool) {
        let e = &mut *turn;
        self.keep_waiters(e, waits);
        if let Some(entry) = polled.and_then(|cq| e.core.tables.cqs.get_mut(cq.index, cq.generation)) {
            entry.note_poller();
        }
        if turn.unlock() {
            self.engine.turn_or_notify_holder(|e| self.turn_posted(e));
        }
        self.wake_now();
        self.run_due(polled);
    }
    #[cold]
    #[inline(never)]
    fn catch_up(&self) {
        self.engine.turn_or_notify_holder(|e| self.turn_posted(e));
        self.wake_now();
        self.run_due(None);
    }

    #[inline(always)]
    fn any_turn(&self, e: &mut Engine, acks: AckRule) -> bool {
        let look = e.look(&self.bell);
        self.turn_as(look, e, acks)
    }
    #[inline(always)]
    fn turn_as(&self, look: Look, e: &mut Engine, acks: AckRule) -> bool {
        let short = match look {
            Look::Nothing => Some(false),
            Look::Ring(ring) => e.lines_turn(ring, acks),
            Look::Near => e.near_turn(acks),
            Look::All => None,
        };
        short.unwrap_or_else(|| self.whole_turn(e, self.time.now(), acks))
    }
    /// A turn that looks at everything.
    #[inline]
    pub(crate) fn whole_turn(&self, e: &mut Engine, now: Instant, acks: AckRule) -> bool {
        self.attention.note_time(now.as_nanos());
        e.turn(now, &self.bell, acks)
    }

    /// A queue pair has something new.
    #[inline]
    pub(crate) fn posted(&self, qp: &Arc<QpShared>) {
        if self.fork.is_child() {
            return;
        }
        patience::found();
        if self.progress == Progress::Thread {
            self.bell.ring(qp);
            self.sleeper.wake_if_asleep();
            return;
        }
        // Who has the engine need not ring.
        if self.with_engine(|e| self.turn_once(e, Some(qp.handle))).is_none() {
            self.bell.ring(qp);
            self.catch_up();
        }
        self.note_post();
    }

    /// The engine, if nobody else has it, for who posts something; to be [given back](Self::give_back).
    #[inline(always)]
    pub(crate) fn engine_to_post(&self) -> Option<EngineGuard<'_>> {
        patience::found();
        self.engine_soon()
    }
    #[inline(always)]
    fn engine_soon(&self) -> Option<EngineGuard<'_>> {
        self.engine_at_once().or_else(|| self.engine_of_guard())
    }
    /// The engine, which another thread has, if the adapter's thread in GUARD gives it back soon. That thread has just
    /// placed what this program answers. What the program left it to send would be counted as that thread's share of the
    /// CPU, which it needs to run at once when the next packet comes.
    #[cold]
    #[inline(never)]
    fn engine_of_guard(&self) -> Option<EngineGuard<'_>> {
        if self.progress != Progress::Adaptive || !self.sleeper.stands_guard() {
            return None;
        }
        (0..GUARD_LOOKS).find_map(|_| {
            core::hint::spin_loop();
            self.engine.try_lock()
        })
    }
    /// The engine for who ends, and may have interrupted its holder: within some looks.
    pub(crate) fn engine_without_wait(&self) -> Option<EngineGuard<'_>> {
        if self.fork.is_child() {
            return None;
        }
        (0..END_LOOKS).find_map(|_| {
            core::hint::spin_loop();
            self.engine.try_lock()
        })
    }
    /// The same for what is done behind the post: nobody waits for it by looks.
    #[inline(always)]
    pub(crate) fn engine_at_once(&self) -> Option<EngineGuard<'_>> {
        self.engine.try_lock()
    }

    /// Does what a queue pair's owner, who runs this, has posted.
    #[inline]
    pub(crate) fn turn_once(&self, e: &mut Engine, caller: Option<QpHandle>) {
        if !e.network.has_near() || !e.send_at_once(&self.bell, caller) {
            e.turn_posted(self.time.now(), &self.bell, caller);
        }
    }
    /// What others posted who found the engine held, or left to the adapter's thread.
    fn turn_posted(&self, e: &mut Engine) {
        self.note_change();
        let asked = self.sleeper.is_asked_for_a_turn();
        if asked {
            let now = self.time.now();
            self.whole_turn(e, now, self.sleeper.ack_rule());
        } else {
            self.turn_once(e, None);
        }
        self.keep_waiters(e, false);
        if self.progress == Progress::Adaptive && self.sleeper.stands_guard() {
            let ends = !self.guard_sleeps_on(e);
            if asked || ends {
                self.sleeper.turn_done(ends);
            }
        }
    }
    /// What the adapter's thread in GUARD sleeps on, of the network.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &OwnedFd> {
        self.fabric_fds.iter().chain(self.group_fd.get())
    }
    /// Behind the engine: wakes all that are to be woken.
    fn wake_now(&self) {
        self.attention.wake_now();
        self.sleeper.see_to_sleep(self.sockets());
    }

    #[inline(always)]
    fn note_program_turn(&self) {
        // Counted in all modes, as that is less than to ask for the mode.
        if self.sleeper.program_turned() && self.progress == Progress::Adaptive {
            self.turned_beside_guard();
        }
    }

    /// The caller has looked at a queue and the network; `is_last` as in [`poller_turn`](Self::poller_turn).
    #[inline(always)]
    fn note_look(&self, is_last: bool) {
        if is_last { self.program_sleeps() } else { self.note_program_turn() }
    }
    #[inline(always)]
    fn note_post(&self) {
        if self.progress == Progress::Adaptive && self.sleeper.stands_guard() {
            self.leave_to_guard(false);
        }
    }
    #[cold]
    #[inline(never)]
    fn turned_beside_guard(&self) {
        if self.sleeper.turned_beside_guard() {
            self.leave_to_guard(true);
        }
    }
    /// The program has left what it did not do to the guard, which is woken if it sleeps for too long for that.
    /// `turned`: the caller has no need of the engine.
    #[cold]
    #[inline(never)]
    fn leave_to_guard(&self, turned: bool) {
        if self.sleeper.sleeps_until().is_none() {
            return;
        }
        let Some(mut turn) = self.engine.try_lock() else {
            // What was posted is looked after by whoever has the engine.
            return if turned { self.sleeper.wake_if_asleep() } else { self.catch_up() };
        };
        let sleeps_on = self.guard_sleeps_on(&mut turn);
        if turn.unlock() {
            self.catch_up();
        }
        if !sleeps_on {
            self.sleeper.wake_if_asleep();
        }
    }
    /// Whether the adapter's thread may sleep on in GUARD, with what was left to it; also if it is awake. The network
    /// learns again that it sleeps: a turn may have taken from a ring, and a post may have opened a path, as the first
    /// datagram to a peer does.
    fn guard_sleeps_on(&self, e: &mut Engine) -> bool {
        self.sleeper.sleeps_until().is_none_or(|until| {
            let due = earlier(e.deadline_of_late_timers(self.sleeper.late()), &self.attention);
            due.is_none_or(|due| due >= until)
                && self.bell.is_empty()
                && !self.attention.is_due()
                && !e.network.prepare_wait()
        })
    }
    /// The control path changed something. The adapter's thread is woken if that is due before its sleep ends; else the
    /// network learns again that it sleeps, for a path may be new.
    pub(crate) fn note_changed(&self) {
        if self.progress == Progress::Thread || self.sleeper.stands_guard() {
            self.leave_to_guard(true);
        }
    }
    /// The program is about to sleep, with nothing to be woken by but a waker.
    #[cold]
    pub(crate) fn program_sleeps(&self) {
        if self.progress == Progress::Adaptive && self.sleeper.program_sleeps() {
            self.leave_to_guard(true);
        }
    }

    /// The control path: waits for the engine, and runs `f` on it.
    pub(crate) fn control<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        self.control_and_run(f).0
    }
    /// As [`control`](Self::control); tells whether Portals engines were run behind it.
    pub(crate) fn control_and_run<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> (R, bool) {
        let f = |e: &mut Engine| {
            self.note_change();
            let r = f(e);
            self.keep_waiters(e, false);
            r
        };
        let r = self.engine.with(f, |e| self.turn_posted(e));
        self.wake_now();
        (r, self.attention.is_due() && self.run_due(None))
    }

    /// As [`control_and_run`](Self::control_and_run), for the thread in GUARD, which does not wait for the engine: a thread
    /// that wakes may have interrupted the one that has the engine. `None`: that one does a whole turn as it gives the
    /// engine back.
    pub(crate) fn turn_or_ask<R>(&self, mut f: impl FnMut(&mut Engine) -> R) -> Option<(R, bool)> {
        self.sleeper.ask_for_a_turn();
        let r = self.engine.turn_or_notify_holder(|e| {
            self.sleeper.is_asked_for_a_turn();
            self.note_change();
            let r = f(e);
            self.keep_waiters(e, false);
            r
        })?;
        self.wake_now();
        Some((r, self.attention.is_due() && self.run_due(None)))
    }

    /// Whether anything but the engine is to be seen to; `waits`: the caller may sleep on a descriptor.
    #[inline(always)]
    fn is_wanted(&self, waits: bool) -> bool {
        self.attention.is_wanted() && (self.attention.is_wanted_now() || self.has_waiters(waits))
    }
    /// Whether somebody may sleep, or be about to, while a turn, a post or a change is made: deadlines that are new
    /// and input that is left have to wake the sleeper, and the network has to know again that one sleeps. Where the
    /// adapter's thread does all turns it sees to that. And where the program polls on and on: what wakes the sleeper
    /// is found by these polls, and some milliseconds behind the last one the thread stands guard.
    fn has_waiters(&self, waits: bool) -> bool {
        self.attention.has_waiters()
            && match self.progress {
                Progress::Inline => true,
                Progress::Adaptive => waits || self.polls_beside.load(Ordering::Relaxed) < BUSY_POLLS,
                Progress::Thread => false,
            }
    }
    /// A poll in vain; lost counts of racing threads do not matter.
    #[inline]
    fn note_poll_beside(&self, waits: bool) {
        let polls = self.polls_beside.load(Ordering::Relaxed);
        if !waits && polls < BUSY_POLLS {
            self.polls_beside.store(polls + 1, Ordering::Relaxed);
        }
    }
    /// As [`has_waiters`](Self::has_waiters) says.
    #[inline]
    fn keep_waiters(&self, e: &mut Engine, waits: bool) {
        if self.has_waiters(waits) {
            // The caller runs what is due once it has given the engine back.
            self.prepare(e, false);
        }
    }

    #[cold]
    fn prepare(&self, e: &mut Engine, due: bool) {
        self.note_change();
        e.next_turn_is_whole();
        if let Some(wait) = self.wait.get() {
            wait.prepare(e, &self.time, &self.attention, due);
        }
    }

    /// Before a program sleeps on a descriptor: makes it readable as soon as the device needs a turn.
    pub(crate) fn prepare_wait(&self) {
        self.polls_beside.store(0, Ordering::Relaxed);
        let prepare = |e: &mut Engine| self.prepare(e, self.attention.is_due());
        let catch_up = |e: &mut Engine| {
            self.turn_posted(e);
            prepare(e);
        };
        self.engine.with(prepare, catch_up);
        self.wake_now();
    }

    /// How long until the next turn is due.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let (deadline, ran) = self.control_and_run(|e| e.next_deadline());
        if ran || self.attention.is_due() {
            return Some(Duration::ZERO);
        }
        earlier(deadline, &self.attention).map(|d| d.since(self.time.now()))
    }

    /// The descriptor that is readable when the engine needs a turn by the program, made at the first call. Not where
    /// the adapter's thread does all turns.
    pub(crate) fn turn_fd(&self) -> Result<BorrowedFd<'_>, DeviceError> {
        if let Some(w) = self.wait.get() {
            return Ok(w.epoll.as_fd());
        }
        let none = DeviceError::Unsupported { what: "waiting on a descriptor: its network has none" };
        if self.fabric_fds.is_empty() {
            return Err(none);
        }
        let timer = TimerFd::new()?;
        let fds: Vec<_> = self.fabric_fds.iter().map(AsFd::as_fd).chain([timer.fd()]).collect();
        let epoll = epoll_of(&fds)?;
        let timer_at = AtomicU64::new(NEVER);
        let _ = self.wait.get_or_init(|| DeviceWait { epoll, timer, timer_at });
        self.watch_groups();
        Ok(self.wait.get().expect("it is there").epoll.as_fd())
    }
    /// Has all who sleep be woken by packets to multicast groups, too. Whoever makes one of both descriptors comes here
    /// behind it.
    pub(crate) fn watch_groups(&self) {
        // The later one here, by the engine's lock, sees both.
        self.control(|_| ());
        if let (Some(groups), Some(wait)) = (self.group_fd.get(), self.wait.get()) {
            // Both may come here, and the second one finds it done.
            let _ = epoll::add(&wait.epoll, groups, epoll::EventData::new_u64(2), epoll::EventFlags::IN);
        }
        self.sleeper.nudge();
    }
    /// As [`turn_fd`](Self::turn_fd) where there is one, and readable while asynchronous events wait. Completion queues
    /// do not sleep on this: events may wait for ever, and are not theirs.
    pub(crate) fn wait_fd(&self) -> Result<BorrowedFd<'_>, DeviceError> {
        if let Some(fd) = self.wait_or_event.get() {
            return Ok(fd.as_fd());
        }
        let events = self.events.fd()?;
        let epoll = match self.progress {
            Progress::Thread => epoll_of(&[events])?,
            _ => epoll_of(&[self.turn_fd()?, events])?,
        };
        Ok(self.wait_or_event.get_or_init(|| epoll).as_fd())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_set_for_what_is_earlier_and_anew_when_it_has_expired() {
        let at = |now| move |set, due| needs_setting(set, due, Instant::from_nanos(now));
        let early = at(5);
        assert!(early(9, 8) && early(NEVER, 8), "it would expire too late");
        assert!(!early(9, 10) && !early(9, NEVER) && !early(9, 9), "it expires, and is set then");
        let late = at(9);
        assert!(late(9, 10) && late(9, NEVER), "it would stay readable");
        assert!(!late(9, 9) && !late(8, 9) && !late(9, 2), "it is readable, as it has to be");
        assert!(late(10, 9), "it is not readable yet");
        assert!(!early(NEVER, NEVER));
    }
}
