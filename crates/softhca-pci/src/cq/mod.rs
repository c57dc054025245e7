//! Completion queues.

pub(crate) mod arm;
pub(crate) mod arms;
pub(crate) mod complete;
#[cfg(test)]
mod tests;

use hca_prm::command::cq::{CreateCqIn, CreateCqOut, DestroyCqIn, ModifyCqIn, QueryCqIn, QueryCqOut, modify};
use hca_prm::{CI_MASK, CmdStatus, CqSt, CqStatus, Cqc, Cqe64, CqeOpcode, XrcSrqc};

use crate::command::caps::{LOG_CQ_SIZE, LOG_CQS};
use crate::command::{Output, parse};
use crate::cq::arm::{Arm, Bell, UNARMED};
use crate::eth::uses::Thing;
use crate::function::Function;
use crate::guest::users::{Noted, Windows};
use crate::guest::{Guest, Window};
use crate::objects::{Objects, has_room, no_window};
use crate::srq::Srq;

/// Bytes of an entry, as a power of two.
const LOG_CQE: u32 = 6;
/// Where in the doorbell record how far the driver has read is, and the word that arms.
const RECORD_CI: usize = 0;
const RECORD_ARM: usize = 4;
const RECORD: u64 = 8;

/// The client memory of a completion queue.
#[derive(Debug)]
pub(crate) struct CqMemory {
    ring: Window,
    record: Window,
}

impl Windows for CqMemory {
    fn windows(&self) -> impl Iterator<Item = &Window> {
        [&self.ring, &self.record].into_iter()
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) eqn: u32,
    pub(crate) uar: u32,
    pub(crate) memory: Option<Noted<CqMemory>>,
    log_size: u32,
    /// Bytes of an entry, as a power of two; one of 128 bytes has its content in the upper half.
    log_entry: u32,
    /// Entries written, and taken when that was looked at last.
    produced: u32,
    consumed: u32,
    may_overrun: bool,
    /// A completion was lost, or could not be written: there will be none any more.
    pub(crate) failed: bool,
    pub(crate) arm: Arm,
    context: Cqc,
}

/// The outcome of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The client can see it.
    Shown,
    /// And there is an event to be made.
    Event,
    /// There was no room.
    Overrun,
    /// The queue is in error already, or its memory is gone.
    Nowhere,
}

impl Cq {
    fn is_full(&mut self, memory_ci: impl FnOnce() -> u32) -> bool {
        let full = |produced: u32, consumed: u32, log_size: u32| {
            produced.wrapping_sub(consumed) & CI_MASK >= 1 << log_size
        };
        if full(self.produced, self.consumed, self.log_size) {
            self.consumed = memory_ci() & CI_MASK;
        }
        full(self.produced, self.consumed, self.log_size) && !self.may_overrun
    }

    /// Writes a completion of this time; `urgent` are solicited ones and errors.
    pub(crate) fn write(&mut self, mut entry: Cqe64, urgent: bool, now_ns: u64) -> Written {
        if self.failed {
            return Written::Nowhere;
        }
        let Some(memory) = self.memory.take() else { return Written::Nowhere };
        let written = if self.is_full(|| memory.record.load32(RECORD_CI)) {
            Written::Overrun
        } else {
            if CqeOpcode::from_code(entry.get(Cqe64::OPCODE)).is_some_and(CqeOpcode::has_time) {
                entry.set(Cqe64::TIMESTAMP, now_ns);
            }
            entry.set(Cqe64::OWNER, Cqe64::sw_owner(self.produced, self.log_size));
            let slot = (self.produced & ((1 << self.log_size) - 1)) as usize;
            let at = (slot << self.log_entry) + (1 << self.log_entry) - Cqe64::SIZE;
            let (body, last) = entry.as_bytes().split_at(Cqe64::SIZE - 8);
            memory.ring.store(at, body);
            // The last byte shows it.
            memory.ring.store64(at + body.len(), last.try_into().expect("eight bytes were left"));
            self.produced = self.produced.wrapping_add(1);
            if self.arm.wrote(urgent) { Written::Event } else { Written::Shown }
        };
        self.memory = Some(memory);
        written
    }

    /// A doorbell of its page was rung. Whether an event is to be made.
    pub(crate) fn rung(&mut self, bell: Bell) -> bool {
        let Some(memory) = self.memory.as_ref().filter(|_| !self.failed) else { return false };
        self.arm.look(memory.record.load32(RECORD_ARM), bell)
    }

    fn context(&self) -> Cqc {
        let st = match self.arm.waits() {
            None => CqSt::Fired,
            Some(false) => CqSt::Armed,
            Some(true) => CqSt::SolicitedArmed,
        };
        let status = match (self.failed, &self.memory) {
            (false, _) => CqStatus::Ok,
            (true, Some(_)) => CqStatus::Overflow,
            (true, None) => CqStatus::WriteFail,
        };
        let taken = self.memory.as_ref().map_or(self.consumed, |m| m.record.load32(RECORD_CI) & CI_MASK);
        self.context
            .with(Cqc::STATUS, status.code())
            .with(Cqc::ST, st.code())
            .with(Cqc::PRODUCER_COUNTER, self.produced & CI_MASK)
            .with(Cqc::CONSUMER_COUNTER, taken)
    }
}

impl Objects {
    /// Makes a completion queue; `pas` follows the command's layout.
    pub(crate) fn create_cq(
        &mut self,
        guest: &Guest,
        command: &CreateCqIn,
        pas: &[u8],
    ) -> Result<u32, CmdStatus> {
        has_room(self.cqs.len(), LOG_CQS)?;
        let context = command.get(CreateCqIn::CQ_CONTEXT);
        let (log_size, sort) = (context.get(Cqc::LOG_CQ_SIZE), context.get(Cqc::CQE_SZ));
        let unsupported = command.get(CreateCqIn::CQ_UMEM_VALID)
            || context.get(Cqc::DBR_UMEM_VALID)
            || context.get(Cqc::APU_CQ)
            || context.get(Cqc::CC)
            || sort > 1;
        let record = context.get(Cqc::DBR_ADDR);
        if unsupported || log_size > LOG_CQ_SIZE || !record.is_multiple_of(RECORD) {
            return Err(CmdStatus::BadParam);
        }
        let (log_entry, log_page) = (LOG_CQE + sort, context.get(Cqc::LOG_PAGE_SIZE) + 12);
        let first = u64::from(context.get(Cqc::PAGE_OFFSET)) << (log_page - 6);
        if !first.is_multiple_of(Cqe64::SIZE as u64) {
            return Err(CmdStatus::BadParam);
        }
        let ring = guest.window_of_pages(pas, log_page, first, 1 << (log_size + log_entry), true);
        let memory = CqMemory {
            ring: ring.map_err(no_window)?,
            record: guest.window(&[(record, RECORD)], true).map_err(no_window)?,
        };
        let cqn = self.new_number()?;
        memory.record.store(RECORD_ARM, &UNARMED.to_be_bytes());
        let cq = Cq {
            eqn: context.get(Cqc::C_EQN),
            uar: context.get(Cqc::UAR_PAGE),
            memory: Some(self.queues_of.cqs.note(cqn, memory)),
            log_size,
            log_entry,
            produced: 0,
            consumed: 0,
            may_overrun: context.get(Cqc::OI),
            failed: false,
            arm: Arm::default(),
            context,
        };
        self.arms.insert(cq.uar, cqn);
        self.cqs.insert(cqn, cq);
        Ok(cqn)
    }

    /// That a completion queue is there and can be written. Returns its number.
    pub(crate) fn usable_cq(&self, cqn: u32) -> Result<u32, CmdStatus> {
        match self.cqs.get(&cqn) {
            None => Err(CmdStatus::BadRes),
            Some(cq) if cq.failed => Err(CmdStatus::BadResState),
            Some(_) => Ok(cqn),
        }
    }

    /// Destroys a completion queue that no queue pair and no shared receive queue uses.
    pub(crate) fn destroy_cq(&mut self, cqn: u32) -> Result<(), CmdStatus> {
        if !self.cqs.contains_key(&cqn) {
            return Err(CmdStatus::BadRes);
        }
        let of_domain = |srq: &Srq| srq.extended().is_some_and(|context| context.get(XrcSrqc::CQN) == cqn);
        if self.qps.values().any(|qp| qp.cq_send == cqn || qp.cq_recv == cqn)
            || self.srqs.values().any(of_domain)
        {
            return Err(CmdStatus::ResBusy);
        }
        if let Some(cq) = self.cqs.remove(&cqn) {
            self.arms.remove(cq.uar, cqn);
        }
        Ok(())
    }

    /// Changes how many completions wait for an event, and how long: taken, and not needed, as events come at once. The
    /// size stays as it is.
    pub(crate) fn modify_cq(&mut self, command: &ModifyCqIn) -> Result<(), CmdStatus> {
        let cq = self.cqs.get_mut(&command.get(ModifyCqIn::CQN)).ok_or(CmdStatus::BadRes)?;
        if command.get(ModifyCqIn::OP_MOD) == ModifyCqIn::RESIZE {
            return Err(CmdStatus::BadParam);
        }
        let (asked, select) =
            (command.get(ModifyCqIn::CQ_CONTEXT), command.get(ModifyCqIn::MODIFY_FIELD_SELECT));
        if select & modify::PERIOD != 0 {
            cq.context.set(Cqc::CQ_PERIOD, asked.get(Cqc::CQ_PERIOD));
        }
        if select & modify::COUNT != 0 {
            cq.context.set(Cqc::CQ_MAX_COUNT, asked.get(Cqc::CQ_MAX_COUNT));
        }
        if select & modify::OVERRUN != 0 {
            cq.may_overrun = asked.get(Cqc::OI);
            cq.context.set(Cqc::OI, cq.may_overrun);
        }
        Ok(())
    }
}

impl Function {
    pub(crate) fn create_cq(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let command: CreateCqIn = parse(input)?;
        let context = command.get(CreateCqIn::CQ_CONTEXT);
        if !self.pages.is_given(context.get(Cqc::UAR_PAGE)) || !self.eqs.exists(context.get(Cqc::C_EQN)) {
            return Err(CmdStatus::BadRes);
        }
        let cqn = self.objects.create_cq(&self.guest, &command, &input[CreateCqIn::SIZE..])?;
        out.put(&CreateCqOut::new().with(CreateCqOut::CQN, cqn))
    }

    pub(crate) fn destroy_cq(&mut self, input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        let cqn = parse::<DestroyCqIn>(input)?.get(DestroyCqIn::CQN);
        if self.ethernet.uses.has(Thing::Cq(cqn)) {
            return Err(CmdStatus::ResBusy);
        }
        self.commands.charge(self.objects.qps.len() + self.objects.srqs.len());
        self.objects.destroy_cq(cqn)
    }

    pub(crate) fn query_cq(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let cqn = parse::<QueryCqIn>(input)?.get(QueryCqIn::CQN);
        let cq = self.objects.cqs.get(&cqn).ok_or(CmdStatus::BadRes)?;
        out.put(&QueryCqOut::new().with(QueryCqOut::CQ_CONTEXT, cq.context()))
    }

    pub(crate) fn modify_cq(&mut self, input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        self.objects.modify_cq(&parse(input)?)
    }
}
