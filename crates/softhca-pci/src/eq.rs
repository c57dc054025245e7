//! Event queues: rings of entries in the client's memory, each with a vector.
//!
//! An event goes to the event queue that subscribes to its type; a completion event goes to the event queue that its
//! completion queue names. An armed queue interrupts once. The driver arms it again by a doorbell that says how far the
//! driver has read; if the queue holds more events, the interrupt comes at once. Many queues share the doorbells of the
//! trapped page, where no doorbell is lost; another page has one event queue at most.
//!
//! A queue without room for an event enters the error state: it takes no more events, and the health buffer reports the
//! error, because a driver can't recover the lost event.

use hca_prm::command::eq::{CreateEqIn, CreateEqOut, DestroyEqIn, QueryEqIn, QueryEqOut};
use hca_prm::{CI_MASK, CmdStatus, EqDoorbell, EqSt, EqStatus, Eqc, Eqe, EventType, HealthSyndrome, pas};

use crate::bus::interrupts::VECTORS;
use crate::command::{Output, parse};
use crate::function::Function;
use crate::guest::Guest;

/// Event queues of a function; their numbers begin at 1.
pub(crate) const MAX_EQS: usize = 64;
/// Entries of a queue, as a power of two.
pub(crate) const MAX_LOG_EQ_SIZE: u32 = 16;
/// Bytes of an entry, as a power of two.
const LOG_EQE: u32 = 6;

/// Events that a function has. Those of functions that manage others, and those of capabilities that are not offered,
/// it has not; who asks for one is refused.
const EVENTS: [EventType; 14] = [
    EventType::PathMig,
    EventType::CommEst,
    EventType::SqDrained,
    EventType::CqError,
    EventType::WqCatasError,
    EventType::PathMigFailed,
    EventType::PortChange,
    EventType::Cmd,
    EventType::PageRequest,
    EventType::WqInvalReqError,
    EventType::WqAccessError,
    EventType::SrqCatasError,
    EventType::SrqLastWqe,
    EventType::SrqRqLimit,
];

/// Events that a function has, a bit each.
pub(crate) fn known_events() -> u64 {
    EVENTS.iter().fold(0, |all, event| all | event.mask()[0])
}

/// An event queue.
#[derive(Debug)]
struct Eq {
    context: Eqc,
    mask: [u64; 4],
    pages: Vec<u64>,
    produced: u32,
    consumed: u32,
    armed: bool,
    failed: bool,
}

/// The event queues of a function.
#[derive(Debug, Default)]
pub(crate) struct Eqs {
    queues: Vec<Option<Eq>>,
}

impl Eqs {
    fn get(&mut self, eqn: u32) -> Option<&mut Eq> {
        let at = (eqn as usize).checked_sub(1)?;
        self.queues.get_mut(at)?.as_mut()
    }

    /// Whether there is such a queue.
    pub(crate) fn exists(&self, eqn: u32) -> bool {
        let at = (eqn as usize).checked_sub(1);
        at.and_then(|at| self.queues.get(at)).is_some_and(Option::is_some)
    }

    /// Whether one of them is armed on a doorbell page.
    pub(crate) fn use_uar(&self, uar: u32) -> bool {
        self.queues.iter().flatten().any(|eq| eq.context.get(Eqc::UAR_PAGE) == uar)
    }

    /// The queue that asks for events of a type.
    pub(crate) fn of_type(&self, event: EventType) -> Option<u32> {
        let code = event.code();
        let asks = |eq: &Eq| eq.mask[code as usize / 64] >> (code % 64) & 1 != 0;
        let at = self.queues.iter().position(|eq| eq.as_ref().is_some_and(asks))?;
        Some(at as u32 + 1)
    }

    /// Takes all queues away.
    pub(crate) fn clear(&mut self) {
        self.queues.clear();
    }
}

impl Eq {
    fn entries(&self) -> u32 {
        1 << self.context.get(Eqc::LOG_EQ_SIZE)
    }

    fn waiting(&self) -> u32 {
        self.produced.wrapping_sub(self.consumed) & CI_MASK
    }

    /// Writes an entry.
    fn write(&mut self, guest: &Guest, mut entry: Eqe) -> Result<(), Unwritten> {
        if self.waiting() >= self.entries() {
            return Err(Unwritten::Full);
        }
        let log_size = self.context.get(Eqc::LOG_EQ_SIZE);
        entry.set(Eqe::OWNER, Eqe::sw_owner(self.produced, log_size));
        let log_page = self.context.get(Eqc::LOG_PAGE_SIZE) + 12;
        let start = u64::from(self.context.get(Eqc::PAGE_OFFSET)) << (log_page - 6);
        let at = start + (u64::from(self.produced & (self.entries() - 1)) << LOG_EQE);
        let page = self.pages.get((at >> log_page) as usize).ok_or(Unwritten::Gone)?;
        let iova = page + (at & ((1 << log_page) - 1));
        let (body, last) = entry.as_bytes().split_at(Eqe::SIZE - 4);
        let last = u32::from_be_bytes(last.try_into().expect("four bytes were left"));
        // The owner bit comes last: the client may look at any time.
        let written = guest.write(iova, body).and_then(|()| guest.store32(iova + body.len() as u64, last));
        written.map_err(|_| Unwritten::Gone)?;
        self.produced = self.produced.wrapping_add(1) & CI_MASK;
        Ok(())
    }
}

/// The reason why an event was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unwritten {
    /// The client has not read what is there.
    Full,
    /// The queue's memory can't be reached any more: the client has taken it back.
    Gone,
}

impl Function {
    /// Puts an event into a queue, and interrupts if that is armed. A queue that is not there has nobody who waits.
    pub(crate) fn post_event(&mut self, eqn: u32, entry: Eqe) {
        let Some(eq) = self.eqs.get(eqn).filter(|eq| !eq.failed) else { return };
        if let Err(why) = eq.write(&self.guest, entry) {
            eq.failed = true;
            let asynchronous = eq.mask != [0; 4];
            match why {
                // What the client did to this queue is this queue's fault alone.
                Unwritten::Gone => tracing::debug!(eqn, "an event queue's memory was unmapped"),
                Unwritten::Full if asynchronous => {
                    self.registers.set_syndrome(HealthSyndrome::AsynchronousEqBufOverrun);
                }
                Unwritten::Full => self.registers.set_syndrome(HealthSyndrome::EqInErr),
            }
            return;
        }
        if std::mem::take(&mut eq.armed) {
            let vector = eq.context.get(Eqc::INTR);
            self.interrupts.fire(vector);
        }
    }

    /// Puts an event into the queue that asks for its type, if one does.
    pub(crate) fn raise(&mut self, event: EventType, entry: Eqe) {
        if let Some(eqn) = self.eqs.of_type(event) {
            self.post_event(eqn, entry);
        }
    }

    /// The client has read a queue so far, and may want an interrupt for what comes next.
    pub(crate) fn eq_doorbell(&mut self, doorbell: EqDoorbell, arm: bool) {
        let Some(eq) = self.eqs.get(doorbell.get(EqDoorbell::EQN)) else { return };
        let ci = doorbell.get(EqDoorbell::CI);
        if eq.produced.wrapping_sub(ci) & CI_MASK > eq.entries() {
            tracing::debug!(
                ci,
                produced = eq.produced,
                "an event queue's consumer index is ahead of its producer index"
            );
            return;
        }
        // Of two doorbells the earlier one may be seen later.
        if eq.produced.wrapping_sub(ci) & CI_MASK < eq.waiting() {
            eq.consumed = ci;
        }
        // A doorbell that only tells how far the queue was read leaves it armed.
        eq.armed |= arm;
        if arm && eq.waiting() > 0 {
            eq.armed = false;
            let vector = eq.context.get(Eqc::INTR);
            self.interrupts.fire(vector);
        }
    }

    pub(crate) fn create_eq(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let command: CreateEqIn = parse(input)?;
        let context = command.get(CreateEqIn::EQ_CONTEXT_ENTRY);
        let (log_size, log_page) = (context.get(Eqc::LOG_EQ_SIZE), context.get(Eqc::LOG_PAGE_SIZE) + 12);
        let uar = context.get(Eqc::UAR_PAGE);
        if log_size > MAX_LOG_EQ_SIZE || log_page > 30 || !self.pages.is_given(uar) {
            return Err(CmdStatus::BadParam);
        }
        if context.get(Eqc::INTR) as usize >= VECTORS {
            return Err(CmdStatus::BadParam);
        }
        let bytes =
            (u64::from(context.get(Eqc::PAGE_OFFSET)) << (log_page - 6)) + (1 << (log_size + LOG_EQE));
        let needed = bytes.div_ceil(1 << log_page) as usize;
        let pages: Vec<u64> = pas::iter(&input[CreateEqIn::SIZE..]).take(needed).collect();
        if pages.len() < needed {
            return Err(CmdStatus::BadInpLen);
        }
        if pages.iter().any(|page| page & ((1 << log_page) - 1) != 0) {
            return Err(CmdStatus::BadParam);
        }
        let mask = command.get(CreateEqIn::EVENT_BITMASK);
        if mask[0] & !known_events() != 0 || mask[1..] != [0; 3] {
            return Err(CmdStatus::BadParam);
        }
        let free = self.eqs.queues.iter().position(Option::is_none).unwrap_or(self.eqs.queues.len());
        if free == MAX_EQS {
            return Err(CmdStatus::NoRes);
        }
        if free == self.eqs.queues.len() {
            self.eqs.queues.push(None);
        }
        if !self.pages.listen(uar) {
            return Err(CmdStatus::BadParam);
        }
        let armed = context.get(Eqc::ST) == EqSt::Armed.code();
        self.eqs.queues[free] =
            Some(Eq { context, mask, pages, produced: 0, consumed: 0, armed, failed: false });
        out.put(&CreateEqOut::new().with(CreateEqOut::EQ_NUMBER, free as u32 + 1))
    }

    pub(crate) fn destroy_eq(&mut self, input: &[u8]) -> Result<(), CmdStatus> {
        let eqn = parse::<DestroyEqIn>(input)?.get(DestroyEqIn::EQ_NUMBER);
        let uar = self.eqs.get(eqn).ok_or(CmdStatus::BadRes)?.context.get(Eqc::UAR_PAGE);
        self.commands.charge(self.objects.cqs.len());
        if self.objects.cqs.values().any(|cq| cq.eqn == eqn) {
            return Err(CmdStatus::ResBusy);
        }
        self.eqs.queues[eqn as usize - 1] = None;
        self.pages.remove_event_queue(uar);
        self.forget_requests();
        Ok(())
    }

    pub(crate) fn query_eq(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let eqn = parse::<QueryEqIn>(input)?.get(QueryEqIn::EQ_NUMBER);
        let eq = self.eqs.get(eqn).ok_or(CmdStatus::BadRes)?;
        let st = if eq.armed { EqSt::Armed } else { EqSt::Fired };
        let status = if eq.failed { EqStatus::WriteFailure } else { EqStatus::Ok };
        let context = eq
            .context
            .with(Eqc::STATUS, status.code())
            .with(Eqc::ST, st.code())
            .with(Eqc::CONSUMER_COUNTER, eq.consumed)
            .with(Eqc::PRODUCER_COUNTER, eq.produced);
        let output = QueryEqOut::new().with(QueryEqOut::EQ_CONTEXT_ENTRY, context);
        out.put(&output.with(QueryEqOut::EVENT_BITMASK, eq.mask[0]))
    }
}
