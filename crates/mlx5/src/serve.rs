//! The work of the driver's thread when it is woken.

use std::sync::{MutexGuard, PoisonError};

use hca_core::{AsyncEvent, DeviceError};
use hca_prm::{CompEvent, CqError, Eqe, EventType, PortChangeSubtype, QpEvent};
use hca_vfio::{DmaArena, FunctionError};

use crate::caps::Caps;
use crate::cmd::{CmdError, CommandQueue};
use crate::eq::{Eq, EqError};
use crate::error::OpenError;
use crate::hca::Core;
use crate::health::Death;
use crate::uar::EventUar;

/// Events of the queue of commands and pages, as a power of two.
const LOG_COMMANDS: u32 = 9;
/// Events that are taken of each queue before the others have their turn.
const BUDGET: usize = 1024;

/// How often the queues are drained for one object that is made: an adapter may tell without end.
const ROUNDS: usize = 1024;

/// What comes to the queue of asynchronous events. Those of functions that manage others (`NicVportChange`) are not
/// asked for, and the health buffer tells of internal errors.
const ASYNC: [EventType; 10] = [
    EventType::CommEst,
    EventType::SqDrained,
    EventType::CqError,
    EventType::WqCatasError,
    EventType::PortChange,
    EventType::WqInvalReqError,
    EventType::WqAccessError,
    EventType::SrqCatasError,
    EventType::SrqLastWqe,
    EventType::SrqRqLimit,
];

/// The event queues but that of commands and pages, which the command queue has.
pub(crate) struct Eqs {
    others: Eq,
    /// One for each vector but the first.
    completions: Vec<Eq>,
}

impl EqError {
    pub(crate) fn open(self, name: &str) -> OpenError {
        match self {
            Self::Memory(e) => e.into(),
            Self::Command(source) => OpenError::Command { name: name.to_owned(), source },
        }
    }
}

impl Eqs {
    /// Makes them: completions have a queue for each vector but the first, which everything else has; all share one
    /// where there is no other.
    pub(crate) fn open(
        cmd: &CommandQueue,
        arena: &DmaArena,
        uar: &EventUar,
        caps: &Caps,
        entries: u32,
        vectors: u32,
    ) -> Result<Self, EqError> {
        // The adapter is told how far after fewer than that, and counts in 24 bits.
        let log_events = entries.clamp(256, 1 << 20).next_power_of_two().ilog2();
        let make = |log_size: u32, vector, types: &[EventType]| {
            Eq::create(cmd, arena, uar, log_size.min(caps.log_max_eq_sz), vector, types)
        };
        let others = match make(log_events, 0, &ASYNC) {
            Err(EqError::Command(e @ CmdError::Refused { .. })) => {
                let known = known(cmd, |event| make(LOG_COMMANDS, 0, &[event]))?;
                let left: Vec<_> = ASYNC.iter().filter(|event| !known.contains(event)).collect();
                tracing::warn!(%e, ?left, "the adapter does not report some events");
                make(log_events, 0, &known)?
            }
            made => made?,
        };
        let vectors = if vectors > 1 { 1..vectors } else { 0..1 };
        let completions = vectors.map(|vector| make(log_events, vector, &[])).collect::<Result<_, _>>()?;
        Ok(Self { others, completions })
    }
    /// Has all queues interrupt, with that of commands.
    pub(crate) fn arm(&self, cmd: &CommandQueue) -> Result<(), FunctionError> {
        cmd.take_completions(true)?;
        self.others.arm()?;
        self.completions.iter().try_for_each(Eq::arm)
    }
    /// The numbers of those of completions.
    pub(crate) fn completion_numbers(&self) -> Vec<u32> {
        self.completions.iter().map(Eq::number).collect()
    }
    /// Takes them from the adapter.
    pub(crate) fn close(self, cmd: &CommandQueue) -> Result<(), CmdError> {
        let Self { others, completions } = self;
        completions.into_iter().try_for_each(|eq| eq.destroy(cmd))?;
        others.destroy(cmd)
    }
}

/// Makes the queue of events of commands, and of pages that are wanted: the first of all, as those who make others may
/// have to lend some.
pub(crate) fn open_events(
    cmd: &CommandQueue,
    arena: &DmaArena,
    uar: &EventUar,
    caps: &Caps,
) -> Result<(), EqError> {
    let log_size = LOG_COMMANDS.min(caps.log_max_eq_sz);
    let types = [EventType::Cmd, EventType::PageRequest];
    cmd.set_events(Eq::create(cmd, arena, uar, log_size, 0, &types)?);
    Ok(())
}

/// Which asynchronous events the adapter knows: those for which it makes a queue.
fn known(
    cmd: &CommandQueue,
    make: impl Fn(EventType) -> Result<Eq, EqError>,
) -> Result<Vec<EventType>, EqError> {
    let mut known = Vec::new();
    for event in ASYNC {
        match make(event) {
            Ok(eq) => eq.destroy(cmd).map_err(EqError::Command)?,
            Err(EqError::Command(CmdError::Refused { .. })) => continue,
            Err(e) => return Err(e),
        }
        known.push(event);
    }
    Ok(known)
}

/// Takes what a queue has, and arms it if that was anything or its interrupt came, which may have been for an event
/// that was taken before.
fn drain(eq: &mut Eq, interrupted: bool, mut each: impl FnMut(&Eqe)) -> Result<bool, FunctionError> {
    let mut taken = 0;
    while taken < BUDGET
        && let Some(event) = eq.take()?
    {
        each(&event);
        taken += 1;
    }
    if taken > 0 || interrupted {
        eq.arm()?;
    }
    Ok(taken == BUDGET)
}

/// What an event carries; the layouts are as long as the place, so that none is too short.
macro_rules! data {
    ($layout:ident, $event:expr) => {
        $layout::from_bytes(&$event.get(Eqe::EVENT_DATA)).expect("an event's data are 28 bytes")
    };
}

/// Work that is put off until the queues are drained and nothing of them is locked: commands, and whatever calls the
/// program's wakers.
pub(crate) enum Later {
    /// Something came to the completion queue of this number, which was armed.
    Completed(u32),
    Tell(AsyncEvent),
    /// The port may have changed; `up`: it is active.
    Port {
        up: bool,
    },
}

impl Core {
    /// Takes all events and does what they ask for; looks at the adapter's health where that is due. `came` says which
    /// interrupts came.
    pub(crate) fn serve(&self, came: &[bool]) {
        let mut later = core::mem::take(&mut *self.put_off());
        if !self.health.is_dead() && self.take_events(came, &mut later) {
            self.wake_driver_thread();
        }
        self.cmd.lend();
        for work in later {
            self.catch_up(&work);
        }
        if let Some(eth) = &self.ethernet {
            eth.serve();
        }
        self.health.look_if_due(&self.registers);
        if self.health.is_dead() {
            self.release_dead();
        }
    }

    /// The adapter has told the number of an object, which is not found by it yet: events of this number that are here
    /// are of an object that had it before, and is gone. Others are left to the driver's thread.
    pub(crate) fn hear_of_former(&self) {
        let mut later = Vec::new();
        (0..ROUNDS).take_while(|_| !self.health.is_dead() && self.take_events(&[], &mut later)).count();
        self.cmd.lend();
        if !later.is_empty() {
            self.put_off().append(&mut later);
            self.wake_driver_thread();
        }
    }
    fn put_off(&self) -> MutexGuard<'_, Vec<Later>> {
        self.put_off.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a bounded number of events. Returns whether there are more.
    fn take_events(&self, came: &[bool], later: &mut Vec<Later>) -> bool {
        let mut eqs = self.eqs.lock().unwrap_or_else(PoisonError::into_inner);
        let more = eqs.as_mut().map_or(Ok(false), |eqs| self.drain_all(eqs, came, later));
        more.unwrap_or_else(|e| {
            tracing::error!(%e, "arming the event queues failed");
            self.health.declare(Death::Unreachable);
            false
        })
    }

    fn drain_all(&self, eqs: &mut Eqs, came: &[bool], later: &mut Vec<Later>) -> Result<bool, FunctionError> {
        let first = came.first() == Some(&true);
        self.cmd.take_completions(first)?;
        let mut completed = |event: &Eqe| {
            let cqn = data!(CompEvent, event).get(CompEvent::CQ_NUMBER);
            if !self.ethernet.as_ref().is_some_and(|eth| eth.completed(cqn)) {
                later.push(Later::Completed(cqn));
            }
        };
        let mut more = false;
        let vectors = if came.len() > 1 { &came[1..] } else { came };
        for (i, eq) in eqs.completions.iter_mut().enumerate() {
            more |= drain(eq, vectors.get(i) == Some(&true), &mut completed)?;
        }
        more |= drain(&mut eqs.others, first, |event| later.extend(self.deferred_by(event)))?;
        Ok(more)
    }

    /// The work that an event asks for.
    fn deferred_by(&self, event: &Eqe) -> Option<Later> {
        let kind = EventType::from_code(event.get(Eqe::EVENT_TYPE));
        let number = data!(QpEvent, event).get(QpEvent::QPN_RQN_SQN);
        let told = match kind? {
            EventType::PortChange => return self.hear_port(event),
            EventType::CqError => {
                let cqn = data!(CqError, event).get(CqError::CQN);
                if let Some(eth) = &self.ethernet {
                    eth.failed(cqn);
                }
                self.cqs.failed(cqn).map(AsyncEvent::CqOverrun)
            }
            EventType::SrqRqLimit => self.srqs.by_number(number).map(AsyncEvent::SrqLimitReached),
            EventType::SrqCatasError => {
                tracing::error!(number, "a shared receive queue is in error");
                None
            }
            kind => self.qps.by_number(number).and_then(|qp| match kind {
                EventType::CommEst => Some(AsyncEvent::CommEstablished(qp)),
                EventType::SqDrained => Some(AsyncEvent::SqDrained(qp)),
                EventType::SrqLastWqe => Some(AsyncEvent::LastWqeReached(qp)),
                EventType::WqCatasError => Some(AsyncEvent::QpFatal(qp)),
                EventType::WqInvalReqError => Some(AsyncEvent::QpRequestError(qp)),
                EventType::WqAccessError => Some(AsyncEvent::QpAccessError(qp)),
                _ => None,
            }),
        };
        told.map(Later::Tell)
    }

    fn hear_port(&self, event: &Eqe) -> Option<Later> {
        match PortChangeSubtype::from_code(event.get(Eqe::EVENT_SUB_TYPE)) {
            Some(PortChangeSubtype::Down) => {
                self.port.set_active(false).then_some(Later::Tell(AsyncEvent::PortError))
            }
            change => Some(Later::Port { up: change == Some(PortChangeSubtype::Active) }),
        }
    }

    /// Reads again what the port is, and tells what is another, so that whoever hears it finds it in the port.
    fn look_at_port(&self, up: bool) -> Result<(), CmdError> {
        let before = self.port.attr();
        if up {
            self.port.set_active(true);
        }
        let read = self.port.refresh(&self.cmd);
        let now = self.port.attr();
        if (now.lid, now.gid) != (before.lid, before.gid) {
            self.events.push(AsyncEvent::PortAddressChanged);
        }
        if now.active != before.active {
            self.events.push(if now.active { AsyncEvent::PortActive } else { AsyncEvent::PortError });
        }
        read
    }

    fn catch_up(&self, work: &Later) {
        let done = match work {
            Later::Completed(cqn) => {
                self.cqs.completed(*cqn);
                Ok(())
            }
            Later::Tell(event) => {
                self.events.push(*event);
                Ok(())
            }
            Later::Port { up } => self.look_at_port(*up),
        };
        if let Err(e) = done {
            tracing::error!(%e, "a request of the adapter failed");
        }
    }

    /// Takes it for dead, for this reason if there was none before, and keeps it from all memory. An error: that may
    /// not have succeeded.
    pub(crate) fn kill(&self, death: Death) -> Result<(), DeviceError> {
        self.health.declare(death);
        if self.release_dead() { Ok(()) } else { self.health.check_alive() }
    }

    /// Does once what has to be done when the adapter is dead: it reaches no memory any more, and all who wait are
    /// woken. Returns whether the first is certain; whoever comes meanwhile waits for that.
    pub(crate) fn release_dead(&self) -> bool {
        let mut dead_released = self.dead_released.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept_away) = *dead_released {
            return kept_away;
        }
        let off = self.function().config().and_then(|c| c.set_bus_master(false));
        // What was let go of reaches nothing.
        let kept_away = off.is_ok() || self.function().is_let_go();
        if let (Err(e), false) = (&off, kept_away) {
            tracing::error!(%e, "switching off bus mastering of a dead adapter failed");
        }
        *dead_released = Some(kept_away);
        drop(dead_released);
        self.cmd.wake();
        self.cqs.wake_all();
        self.events.push(AsyncEvent::DeviceFatal);
        kept_away
    }
}
