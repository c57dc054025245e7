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
//! The last of those turns returns the thread to ACTIVE, at the cost of one wake-up. So at most 2 ms pass between the
//! program's last turn and the thread's first. A turn that misses the change of state costs a wake-up, never a stall,
//! because in GUARD the thread does all work.
//!
//! A turn or a post beside GUARD may leave work for later, which the sleeping thread has to know. Waking the thread
//! costs microseconds, which a program that posts and spins on its memory would pay for each message. So the program
//! wakes the thread only if the work is due before the thread's sleep ends ([`Sleeper::sleeps_until`]). A thread beside a
//! program that posts sleeps for [`HORIZON`](crate::guard::HORIZON) at most, which ends before the retransmit timer of a
//! new request can fire. So posts wake the thread once, and then no more. The first sleep in which the program left
//! nothing is the last one that the horizon ends ([`Horizon`]): an idle adapter has no tick.

use core::cell::Cell;
use core::time::Duration;
use std::os::fd::AsFd;

use hca_core::{DeviceError, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::engine::{AckRule, Engine};
use crate::guard::{HeldAcks, Horizon, Looks};
use crate::notify::EventFd;
use crate::options::Progress;
use crate::patience;
use crate::runs::NEVER;
use crate::shared::{Shared, earlier};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, CachePadded, Ordering};

const TICK: Duration = Duration::from_millis(1);

/// The mode in which the program turns. Any other is that of the guard, which so many turns of the program end.
const ACTIVE: u32 = 0;
/// How many they are where the program does not leave work lying, and at most; the factor from one such time to the
/// next, and the share by which they are fewer behind a tick without work.
const MIN_TOLERANCE: u32 = 1;
const MAX_TOLERANCE: u32 = 512;
const TOLERANCE_FACTOR: u32 = 8;

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
    /// When a sleep in GUARD ends by itself, in nanoseconds. Written under the engine's lock.
    until: AtomicU64,
    /// Changes whenever the program leaves work to the guard. Lost counts of racing threads do not matter.
    left: AtomicU32,
    stop: AtomicBool,
    kick: Option<EventFd>,
}

impl Sleeper {
    pub(crate) fn new(progress: Progress) -> Result<Self, DeviceError> {
        Ok(Self {
            turns: CachePadded::new(AtomicU64::new(0)),
            mode: CachePadded::new(AtomicU32::new(ACTIVE)),
            asleep: AtomicBool::new(false),
            until: AtomicU64::new(0),
            left: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            kick: if progress == Progress::Inline { None } else { Some(EventFd::new()?) },
        })
    }

    fn kick(&self) {
        if let Some(k) = &self.kick {
            k.signal();
        }
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
                self.kick();
                false
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }
    /// The program left something to the guard. Returns when the guard's sleep ends by itself, `None` if it is awake.
    pub(crate) fn sleeps_until(&self) -> Option<Instant> {
        self.left.store(self.left.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // Under the engine's lock `until` is of the sleep that is announced, or of one before, which has ended.
        let asleep = self.asleep.load(Ordering::SeqCst);
        asleep.then(|| Instant::from_nanos(self.until.load(Ordering::Relaxed)))
    }
    /// The program is about to sleep, and has nothing to be woken by but the thread.
    #[cold]
    pub(crate) fn program_sleeps(&self) {
        let guard = |mode| if mode == ACTIVE { Some(MIN_TOLERANCE) } else { None };
        match self.mode.fetch_update(Ordering::SeqCst, Ordering::SeqCst, guard) {
            Ok(_) => self.kick(),
            Err(_) => self.wake_if_asleep(),
        }
    }
    /// The guard has found work: the program's turns count from now on.
    fn guard_found_work(&self, tolerance: u32) {
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
pub(crate) fn run(shared: &Arc<Shared>) {
    let s = &shared.sleeper;
    OWN.set(core::ptr::from_ref(s).addr());
    let (mut tolerance, mut looks, mut held) = (MIN_TOLERANCE, Looks::default(), HeldAcks::default());
    while !s.stop.load(Ordering::SeqCst) {
        let mut by_tick = false;
        if shared.progress == Progress::Adaptive {
            let seen = s.turns.load(Ordering::Relaxed);
            sleep(shared, false, Some(TICK));
            // The program may have said meanwhile that it sleeps.
            by_tick = s.mode.load(Ordering::SeqCst) == ACTIVE;
            if by_tick && s.turns.load(Ordering::Relaxed) != seen {
                continue;
            }
            s.mode.store(tolerance, Ordering::SeqCst);
        }
        guard(shared, &mut tolerance, (&mut looks, &mut held), by_tick);
    }
}

/// Turns the engine until the program does so itself again. `by_tick`: the program did not turn for a whole tick.
///
/// With [`Progress::Thread`] the program gives its CPU away while it waits, so the thread yields between its looks.
fn guard(
    shared: &Shared,
    tolerance: &mut u32,
    (looks, held): (&mut Looks, &mut HeldAcks),
    mut by_tick: bool,
) {
    let s = &shared.sleeper;
    let learns = shared.progress == Progress::Adaptive;
    let (mut look_until, mut by_look) = (Instant::ZERO, false);
    let mut horizon = Horizon::new(s.left.load(Ordering::Relaxed));
    while !s.stop.load(Ordering::SeqCst) {
        if learns && s.mode.load(Ordering::Relaxed) == ACTIVE {
            return;
        }
        // The clock is read by whoever has the engine: a wait for the engine would make it late.
        let ((worked, now), ran) = shared.control_and_run(|e| {
            let now = shared.time.now();
            (guard_turn(shared, e, now, learns.then_some(&mut *held)), now)
        });
        if core::mem::take(&mut by_tick) {
            *tolerance = learn(*tolerance, worked);
        }
        // An engine that ran may have more to do.
        if worked || ran {
            s.guard_found_work(*tolerance);
            patience::found();
            let looks_on = !learns || looks.found(core::mem::take(&mut by_look));
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
            looks.in_vain();
        }
        s.asleep.store(true, Ordering::SeqCst);
        if shared.bell.is_empty()
            && let Some(timeout) =
                prepare_to_sleep(shared, held.until(), horizon.next(s.left.load(Ordering::Relaxed)))
        {
            sleep(shared, true, timeout);
        }
        s.asleep.store(false, Ordering::SeqCst);
    }
}

/// A turn of the thread in GUARD. Where the program may answer what comes, acknowledgements may wait for the answer.
fn guard_turn(shared: &Shared, e: &mut Engine, now: Instant, held: Option<&mut HeldAcks>) -> bool {
    let Some(held) = held else { return shared.whole_turn(e, now, AckRule::UnlessDelivered) };
    let holds_back = held.hold_back(now, e.owes_acks());
    let rule = if holds_back { AckRule::WithAnswer } else { AckRule::UnlessDelivered };
    let worked = shared.whole_turn(e, now, rule);
    held.turned(now, holds_back, worked, e.owes_acks());
    worked
}

/// For how long the thread may sleep, which has said that it does; `None`: there is input after all, or was something
/// to be run. All that others have done with the engine before is seen here; who does something behind this sees that
/// the thread sleeps, and until when.
fn prepare_to_sleep(
    shared: &Shared,
    held_until: Option<Instant>,
    horizon: Option<Duration>,
) -> Option<Option<Duration>> {
    let ((input, now, until), ran) = shared.control_and_run(|e| {
        let (input, now) = (e.fabric.prepare_wait(), shared.time.now());
        let deadline = earlier(e.next_deadline(), &shared.attention);
        let until = [deadline, held_until, horizon.map(|h| now + h)].into_iter().flatten().min();
        shared.sleeper.until.store(until.map_or(NEVER, Instant::as_nanos), Ordering::Relaxed);
        (input, now, until)
    });
    if input || ran || shared.attention.is_due() {
        return None;
    }
    Some(until.map(|d| d.since(now)))
}

/// Sleeps until it is kicked, the time is over, or (if asked for) packets arrive.
fn sleep(shared: &Shared, network: bool, timeout: Option<Duration>) {
    let kick = shared.sleeper.kick.as_ref().expect("a thread has something to kick it by");
    let kick_fd = kick.fd();
    let network = shared.fabric_fd.as_ref().filter(|_| network);
    let none = || PollFd::new(&kick_fd, PollFlags::empty());
    let mut fds = [PollFd::new(&kick_fd, PollFlags::IN), none(), none()];
    let groups = network.and_then(|_| shared.group_fd.get());
    let (network_fd, group_fd) = (network.map(|n| n.as_fd()), groups.map(|g| g.as_fd()));
    let mut used = 1;
    for fd in [&network_fd, &group_fd].into_iter().flatten() {
        fds[used] = PollFd::new(fd, PollFlags::IN);
        used += 1;
    }
    let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
    // An interruption is a wake-up like any other: everything is looked at again.
    let _ = poll(&mut fds[..used], timeout.as_ref());
    if fds[0].revents().contains(PollFlags::IN) {
        kick.clear();
    }
}

#[cfg(test)]
mod tests {
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
        sleeper.program_sleeps();
        assert!(mode(&sleeper) != ACTIVE && kicked(&sleeper));
        sleeper.program_sleeps();
        assert!(!kicked(&sleeper), "its thread is awake");
        sleeper.asleep.store(true, Ordering::SeqCst);
        sleeper.program_sleeps();
        assert!(kicked(&sleeper));
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

    #[test]
    #[allow(unsafe_code)]
    fn an_acknowledgement_that_leaves_with_an_answer_leaves_the_guard_nothing_to_do() {
        use hca_core::{
            AckTimeout, AddressVector, Device, Gid, Mtu, Payload, Pkey, Psn, QpAttr, QpCap, QpInit, QpState,
            QpType, RecvWr, RnrTimer, SendFlags, SendOp, SendWr,
        };
        let devices = [0, 1]
            .map(|_| device_with(crate::Options { progress: Progress::Inline, ..crate::Options::default() }));
        let mut qps = devices.each_ref().map(|device| {
            let (cq, _) = device.create_cq(16).unwrap();
            let (pd, cap) = (device.alloc_pd().unwrap(), QpCap::default());
            let init = QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap };
            device.create_qp(pd, &init).unwrap()
        });
        for (n, device) in devices.iter().enumerate() {
            let dgid = Gid::from_ip(devices[1 - n].fabric().local);
            let init = QpAttr { state: Some(QpState::Init), pkey: Some(Pkey::DEFAULT), ..QpAttr::default() };
            let rtr = QpAttr {
                state: Some(QpState::Rtr),
                dest_qpn: Some(qps[1 - n].qpn),
                av: Some(AddressVector { dgid, ..AddressVector::default() }),
                path_mtu: Some(Mtu::B1024),
                rq_psn: Some(Psn::new(7)),
                max_dest_rd_atomic: Some(1),
                min_rnr_timer: Some(RnrTimer::new(1)),
                ..QpAttr::default()
            };
            let rts = QpAttr {
                state: Some(QpState::Rts),
                sq_psn: Some(Psn::new(7)),
                timeout: Some(AckTimeout::new(18)),
                retry_cnt: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(1),
                ..QpAttr::default()
            };
            let init = QpAttr { access: Some(hca_core::Access::empty()), ..init };
            for attr in [init, rtr, rts] {
                device.modify_qp(qps[n].handle, &attr).unwrap();
            }
            let recv = qps[n].recv.as_mut().unwrap();
            // SAFETY: the request names no memory.
            unsafe { recv.post(&[RecvWr { wr_id: 0, sges: &[] }]) }.unwrap();
            recv.ring();
        }
        let (payload, flags) = (Payload::Inline(b""), SendFlags::SIGNALED);
        let message = SendWr { wr_id: 1, op: SendOp::Send, flags, payload, dest: None };
        let mut held = HeldAcks::default();
        let mut turn = || {
            devices[1].shared().control(|e| {
                let now = devices[1].shared().time.now();
                guard_turn(devices[1].shared(), e, now, Some(&mut held));
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
}
