//! What the driver's thread does when it is woken.

use std::sync::PoisonError;

use hca_core::{AsyncEvent, DeviceError};
use hca_prm::{CompEvent, CqError, Eqe, EventType, PagesReqEvent, PortChangeSubtype, QpEvent};
use hca_vfio::{DmaArena, FunctionError};

use crate::caps::Caps;
use crate::cmd::{CmdError, CommandQueue};
use crate::eq::{Eq, EqError};
use crate::error::OpenError;
use crate::hca::Core;
use crate::health::Death;
use crate::uar::EventUar;

/// Events of the queue of commands, as a power of two.
const LOG_COMMANDS: u32 = 9;
/// Events that are taken of each queue before the others have their turn.
const BUDGET: usize = 1024;

/// What comes to the queue of asynchronous events.
const ASYNC: [EventType; 13] = [
    EventType::CommEst,
    EventType::SqDrained,
    EventType::CqError,
    EventType::WqCatasError,
    EventType::InternalError,
    EventType::PortChange,
    EventType::PageRequest,
    EventType::WqInvalReqError,
    EventType::WqAccessError,
    EventType::SrqCatasError,
    EventType::SrqLastWqe,
    EventType::SrqRqLimit,
    EventType::NicVportChange,
];

/// The event queues but that of commands, which the command queue has.
pub(crate) struct Eqs {
    others: Eq,
    completions: Eq,
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
    /// Makes all: completions have the last vector, everything else the first.
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
        cmd.set_events(make(LOG_COMMANDS, 0, &[EventType::Cmd])?);
        let others = make(log_events, 0, &ASYNC)?;
        let completions = make(log_events, vectors.saturating_sub(1), &[])?;
        Ok(Self { others, completions })
    }
    /// Has all of them interrupt.
    pub(crate) fn arm(&self, cmd: &CommandQueue) -> Result<(), FunctionError> {
        cmd.hear(true)?;
        self.others.arm()?;
        self.completions.arm()
    }
    /// The number of that of completions.
    pub(crate) fn completion_number(&self) -> u32 {
        self.completions.number()
    }
    /// Takes them from the adapter, that of commands last.
    pub(crate) fn close(self, cmd: &CommandQueue) -> Result<(), CmdError> {
        let Self { others, completions } = self;
        completions.destroy(cmd)?;
        others.destroy(cmd)?;
        cmd.close_events()
    }
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
enum Later {
    /// Something came to the completion queue of this number, which was armed.
    Completed(u32),
    Tell(AsyncEvent),
    Pages {
        function: u32,
        pages: i32,
    },
    Port,
    Health,
}

impl Core {
    /// Takes all events and does what they ask for; looks at the adapter's health where that is due. `came` says which
    /// interrupts came.
    pub(crate) fn serve(&self, came: &[bool], look: bool) {
        let mut later = Vec::new();
        if !self.health.is_dead() {
            let mut eqs = self.eqs.lock().unwrap_or_else(PoisonError::into_inner);
            let more = eqs.as_mut().map_or(Ok(false), |eqs| self.drain_all(eqs, came, &mut later));
            drop(eqs);
            match more {
                Ok(false) => {}
                Ok(true) => self.ring_house(),
                Err(e) => {
                    tracing::error!(%e, "the event queues can't be armed");
                    self.health.declare(Death::Unreachable);
                }
            }
        }
        for work in later {
            self.catch_up(&work);
        }
        if let Some(eth) = &self.ethernet {
            eth.serve();
        }
        if look {
            self.health.look(&self.registers);
        }
        if self.health.is_dead() {
            self.bury();
        }
    }

    fn drain_all(&self, eqs: &mut Eqs, came: &[bool], later: &mut Vec<Later>) -> Result<bool, FunctionError> {
        let (first, last) = (came.first() == Some(&true), came.last() == Some(&true));
        self.cmd.hear(first)?;
        let completed = |event: &Eqe| {
            let cqn = data!(CompEvent, event).get(CompEvent::CQ_NUMBER);
            if !self.ethernet.as_ref().is_some_and(|eth| eth.completed(cqn)) {
                later.push(Later::Completed(cqn));
            }
        };
        let mut more = drain(&mut eqs.completions, last, completed)?;
        more |= drain(&mut eqs.others, first, |event| later.extend(self.hear(event).into_iter().flatten()))?;
        Ok(more)
    }

    /// What an event asks for.
    fn hear(&self, event: &Eqe) -> [Option<Later>; 2] {
        if EventType::from_code(event.get(Eqe::EVENT_TYPE)) == Some(EventType::PortChange) {
            return self.hear_port(event);
        }
        [self.hear_other(event), None]
    }
    fn hear_other(&self, event: &Eqe) -> Option<Later> {
        let kind = EventType::from_code(event.get(Eqe::EVENT_TYPE));
        let number = data!(QpEvent, event).get(QpEvent::QPN_RQN_SQN);
        let told = match kind? {
            EventType::PageRequest => {
                let asked = data!(PagesReqEvent, event);
                let pages = asked.get(PagesReqEvent::NUM_PAGES) as i32;
                return Some(Later::Pages { function: asked.get(PagesReqEvent::FUNCTION_ID), pages });
            }
            EventType::NicVportChange => return Some(Later::Port),
            EventType::InternalError => return Some(Later::Health),
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

    fn hear_port(&self, event: &Eqe) -> [Option<Later>; 2] {
        match PortChangeSubtype::from_code(event.get(Eqe::EVENT_SUB_TYPE)) {
            Some(PortChangeSubtype::Down) => {
                self.port.set_active(false);
                [Some(Later::Tell(AsyncEvent::PortError)), None]
            }
            Some(PortChangeSubtype::Active) => {
                self.port.set_active(true);
                [Some(Later::Tell(AsyncEvent::PortActive)), Some(Later::Port)]
            }
            _ => [Some(Later::Port), None],
        }
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
            Later::Pages { function, pages } => self.pages.change(&self.cmd, *function, *pages),
            Later::Port => self.port.refresh(&self.cmd),
            Later::Health => {
                self.health.look(&self.registers);
                Ok(())
            }
        };
        if let Err(e) = done {
            tracing::error!(%e, "what the adapter asked for was not done");
        }
    }

    /// Takes it for dead, for this reason if there was none before, and keeps it from all memory. An error: that may
    /// not have succeeded.
    pub(crate) fn kill(&self, death: Death) -> Result<(), DeviceError> {
        self.health.declare(death);
        if self.bury() { Ok(()) } else { self.health.check_alive() }
    }

    /// Does once what has to be done when the adapter is dead: it reaches no memory any more, and all who wait are
    /// woken. Returns whether the first is certain; whoever comes meanwhile waits for that.
    pub(crate) fn bury(&self) -> bool {
        let mut buried = self.buried.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept_away) = *buried {
            return kept_away;
        }
        let off = self.function().config().and_then(|c| c.set_bus_master(false));
        if let Err(e) = &off {
            tracing::error!(%e, "a dead adapter was not kept from memory");
        }
        *buried = Some(off.is_ok());
        drop(buried);
        self.cmd.wake();
        self.cqs.wake_all();
        self.events.push(AsyncEvent::DeviceFatal);
        off.is_ok()
    }
}
