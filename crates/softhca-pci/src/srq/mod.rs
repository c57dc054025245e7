//! Shared receive queues: those of version 1 of the interface (receive memory pools), of version 0, and of extended
//! reliable connections ([`xrc`]). Each has the number that the adapter has for it.
//!
//! A shared receive queue is a list: each entry names the next one. The list begins with entry 0, and the driver
//! appends entries that it has taken back, so the adapter follows the list as far as the doorbell record counts.

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_xrc;
pub(crate) mod xrc;

use hca_core::{Device, PdHandle, RecvPort, SrqHandle, SrqInit, Srqn};
use hca_prm::command::srq::{
    ArmRqIn, CreateRmpIn, CreateRmpOut, CreateSrqIn, CreateSrqOut, DestroyRmpIn, DestroySrqIn, ModifyRmpIn,
    QueryRmpIn, QueryRmpOut, QuerySrqIn, QuerySrqOut,
};
use hca_prm::{CmdStatus, RmpState, Rmpc, Srqc, Wq, WqType, XrcSrqc};
use softhca::SoftHca;

use crate::command::caps::{LOG_SRQ_SIZE, LOG_SRQS};
use crate::command::{Output, parse};
use crate::function::Function;
use crate::guest::users::{Noted, Windows};
use crate::guest::{Guest, Window};
use crate::objects::{Counted, Objects, gone, has_room, no_window, status};

/// Bytes of an entry, as powers of two.
const LOG_STRIDES: core::ops::RangeInclusive<u32> = 5..=9;
/// Bytes of a doorbell record.
const RECORD: u64 = 4;

/// What a shared receive queue was made as.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A receive memory pool.
    Pool(Rmpc),
    /// A queue of version 0.
    Plain(Srqc),
    /// A queue of extended connections.
    Extended(XrcSrqc),
}

/// Where a queue lies, in terms that its layouts share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    log_size: u32,
    log_stride: u32,
    log_page: u32,
    page_offset: u32,
    record: u64,
}

/// The client memory of a shared receive queue.
#[derive(Debug)]
pub(crate) struct SrqMemory {
    pub(crate) list: Window,
    pub(crate) record: Window,
}

impl Windows for SrqMemory {
    fn windows(&self) -> impl Iterator<Item = &Window> {
        [&self.list, &self.record].into_iter()
    }
}

/// The adapter's queue.
pub(crate) struct Adapters {
    pub(crate) handle: SrqHandle,
    pub(crate) port: Box<dyn RecvPort>,
    counted: Counted,
}

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) kind: Kind,
    pub(crate) pd: PdHandle,
    /// None once nobody can be told of what is received.
    pub(crate) adapters: Option<Adapters>,
    pub(crate) memory: Option<Noted<SrqMemory>>,
    pub(crate) log_size: u32,
    pub(crate) log_stride: u32,
    /// Requests taken, and the entry that is the next one.
    pub(crate) taken: u16,
    pub(crate) next: u16,
    /// Entries that were taken for queue pairs that went before they used them.
    pub(crate) again: Vec<u16>,
    /// The event is made when fewer are left; 0: not armed.
    pub(crate) limit: u32,
    /// Queue pairs of it that are awake: while there are any it is looked at.
    pub(crate) awake: u32,
    /// There are more requests than were taken in the last look.
    pub(crate) more: bool,
}

impl Srq {
    pub(crate) fn handle(&self) -> Option<SrqHandle> {
        self.adapters.as_ref().map(|a| a.handle)
    }
}

impl Shape {
    fn of_pool(context: &Rmpc) -> Result<Self, CmdStatus> {
        let wq = context.get(Rmpc::WQ);
        let unsupported = wq.get(Wq::WQ_TYPE) != WqType::LinkedList.code()
            || wq.get(Wq::DBR_UMEM_VALID)
            || wq.get(Wq::WQ_UMEM_VALID)
            || context.get(Rmpc::BASIC_CYCLIC_RCV_WQE);
        if unsupported {
            return Err(CmdStatus::BadParam);
        }
        Ok(Self {
            log_size: wq.get(Wq::LOG_WQ_SZ),
            log_stride: wq.get(Wq::LOG_WQ_STRIDE),
            log_page: wq.get(Wq::LOG_WQ_PG_SZ) + 12,
            page_offset: wq.get(Wq::PAGE_OFFSET),
            record: wq.get(Wq::DBR_ADDR),
        })
    }
    fn of_plain(context: &Srqc) -> Self {
        Self {
            log_size: context.get(Srqc::LOG_SRQ_SIZE),
            log_stride: context.get(Srqc::LOG_RQ_STRIDE) + 4,
            log_page: context.get(Srqc::LOG_PAGE_SIZE) + 12,
            page_offset: context.get(Srqc::PAGE_OFFSET),
            record: context.get(Srqc::DBR_ADDR),
        }
    }

    fn memory(&self, guest: &Guest, pas: &[u8]) -> Result<SrqMemory, CmdStatus> {
        let fits = self.log_size <= LOG_SRQ_SIZE
            && LOG_STRIDES.contains(&self.log_stride)
            && self.log_page <= 62
            && self.record.is_multiple_of(RECORD);
        if !fits {
            return Err(CmdStatus::BadParam);
        }
        let first = u64::from(self.page_offset) << (self.log_page - 6);
        let bytes = 1 << (self.log_size + self.log_stride);
        Ok(SrqMemory {
            list: guest.window_of_pages(pas, self.log_page, first, bytes, false).map_err(no_window)?,
            record: guest.window(&[(self.record, RECORD)], false).map_err(no_window)?,
        })
    }
}

impl Objects {
    /// Makes a shared receive queue.
    pub(crate) fn create_srq(
        &mut self,
        guest: &Guest,
        pd: PdHandle,
        kind: Kind,
        pas: &[u8],
    ) -> Result<u32, CmdStatus> {
        has_room(self.srqs.len(), LOG_SRQS)?;
        let shape = match &kind {
            Kind::Pool(context) => Shape::of_pool(context)?,
            Kind::Plain(context) => Shape::of_plain(context),
            Kind::Extended(context) => Shape::of_extended(context)?,
        };
        let memory = shape.memory(guest, pas)?;
        let Shape { log_size, log_stride, .. } = shape;
        let init = SrqInit { max_wr: 1 << log_size, max_sge: (1 << (log_stride - 4)) - 1 };
        let counted = self.count_queue(init.max_wr, init.max_sge)?;
        let made = match &kind {
            Kind::Extended(context) => self.make_extended(pd, context, &init),
            _ => self.hca.create_srq(pd, &init).map_err(status),
        };
        let (handle, port) = made.inspect_err(|_| self.uncount_queue(counted))?;
        let Some(number) = SoftHca::srq_number(handle).map(Srqn::raw) else {
            gone("shared receive queue", self.hca.destroy_srq(handle));
            self.uncount_queue(counted);
            return Err(CmdStatus::NoRes);
        };
        if let Kind::Extended(context) = &kind
            && let Some(domain) = self.xrcds.get_mut(&context.get(XrcSrqc::XRCD))
        {
            domain.insert(number);
        }
        let srq = Srq {
            kind,
            pd,
            adapters: Some(Adapters { handle, port, counted }),
            memory: Some(self.queues_of.srqs.note(number, memory)),
            log_size,
            log_stride,
            taken: 0,
            next: 0,
            again: Vec::new(),
            limit: 0,
            awake: 0,
            more: false,
        };
        self.srqs.insert(number, srq);
        Ok(number)
    }

    pub(super) fn destroy_srq(&mut self, number: u32, is: impl Fn(&Kind) -> bool) -> Result<(), CmdStatus> {
        let srq = self.srqs.get(&number).filter(|srq| is(&srq.kind)).ok_or(CmdStatus::BadRes)?;
        if let Some(handle) = srq.handle() {
            self.hca.destroy_srq(handle).map_err(status)?;
        }
        let removed = self.srqs.remove(&number);
        let context = removed.as_ref().and_then(Srq::extended);
        if let Some(domain) = context.and_then(|context| self.xrcds.get_mut(&context.get(XrcSrqc::XRCD))) {
            domain.remove(number);
        }
        let adapters = removed.and_then(|srq| srq.adapters);
        self.uncount_queue(adapters.map(|a| a.counted).unwrap_or_default());
        Ok(())
    }

    /// Arms the event that is made when fewer requests are left.
    fn arm_srq(&mut self, number: u32, limit: u32) -> Result<(), CmdStatus> {
        let srq = self.srqs.get_mut(&number).ok_or(CmdStatus::BadRes)?;
        if limit > 1 << srq.log_size {
            return Err(CmdStatus::BadParam);
        }
        srq.limit = limit;
        match srq.handle() {
            Some(handle) => self.hca.set_srq_limit(handle, limit).map_err(status),
            None => Ok(()),
        }
    }

    /// Has entries that went with a queue pair be taken again.
    pub(crate) fn give_back(&mut self, number: u32, lost: &[u64]) {
        if let Some(srq) = self.srqs.get_mut(&number) {
            srq.again.extend(lost.iter().map(|id| *id as u16));
        } else if !lost.is_empty() {
            gone("request of a shared receive queue", Ok(()));
        }
    }
}

fn is_pool(kind: &Kind) -> bool {
    matches!(kind, Kind::Pool(_))
}
fn is_plain(kind: &Kind) -> bool {
    matches!(kind, Kind::Plain(_))
}

impl Function {
    fn pd(&self, number: u32) -> Result<PdHandle, CmdStatus> {
        self.resources.pd(number).ok_or(CmdStatus::BadRes)
    }

    pub(crate) fn create_srq(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let context = parse::<CreateSrqIn>(input)?.get(CreateSrqIn::SRQ_CONTEXT_ENTRY);
        let pd = self.pd(context.get(Srqc::PD))?;
        let pas = &input[CreateSrqIn::SIZE..];
        let number = self.objects.create_srq(&self.guest, pd, Kind::Plain(context), pas)?;
        out.put(&CreateSrqOut::new().with(CreateSrqOut::SRQN, number))
    }
    pub(crate) fn destroy_srq(&mut self, input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        self.objects.destroy_srq(parse::<DestroySrqIn>(input)?.get(DestroySrqIn::SRQN), is_plain)
    }
    pub(crate) fn query_srq(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let number = parse::<QuerySrqIn>(input)?.get(QuerySrqIn::SRQN);
        let srq = self.objects.srqs.get(&number).ok_or(CmdStatus::BadRes)?;
        let Kind::Plain(context) = srq.kind else { return Err(CmdStatus::BadRes) };
        let context = context.with(Srqc::LWM, srq.limit);
        out.put(&QuerySrqOut::new().with(QuerySrqOut::SRQ_CONTEXT_ENTRY, context))
    }
    pub(crate) fn arm_rq(&mut self, input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        let command: ArmRqIn = parse(input)?;
        self.arm_srq(command.get(ArmRqIn::SRQ_NUMBER), command.get(ArmRqIn::LWM))
    }
    /// Arms a shared receive queue, once all of its requests are taken: the adapter counts no others.
    pub(crate) fn arm_srq(&mut self, number: u32, limit: u32) -> Result<(), CmdStatus> {
        while self.objects.take_requests_of_srq(&self.guest, number) {
            self.commands.charge_all();
        }
        self.objects.arm_srq(number, limit)
    }

    pub(crate) fn create_rmp(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let context = parse::<CreateRmpIn>(input)?.get(CreateRmpIn::CTX);
        let pd = self.pd(context.get(Rmpc::WQ).get(Wq::PD))?;
        let pas = &input[CreateRmpIn::SIZE..];
        let number = self.objects.create_srq(&self.guest, pd, Kind::Pool(context), pas)?;
        out.put(&CreateRmpOut::new().with(CreateRmpOut::RMPN, number))
    }
    pub(crate) fn modify_rmp(&mut self, input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        let command: ModifyRmpIn = parse(input)?;
        let number = command.get(ModifyRmpIn::RMPN);
        let srq = self.objects.srqs.get(&number).filter(|srq| is_pool(&srq.kind));
        srq.ok_or(CmdStatus::BadRes)?;
        if command.get(ModifyRmpIn::LWM) {
            let limit = command.get(ModifyRmpIn::CTX).get(Rmpc::WQ).get(Wq::LWM);
            self.arm_srq(number, limit)?;
        }
        Ok(())
    }
    pub(crate) fn destroy_rmp(&mut self, input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        self.objects.destroy_srq(parse::<DestroyRmpIn>(input)?.get(DestroyRmpIn::RMPN), is_pool)
    }
    pub(crate) fn query_rmp(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let number = parse::<QueryRmpIn>(input)?.get(QueryRmpIn::RMPN);
        let srq = self.objects.srqs.get(&number).ok_or(CmdStatus::BadRes)?;
        let Kind::Pool(context) = srq.kind else { return Err(CmdStatus::BadRes) };
        let wq = context.get(Rmpc::WQ).with(Wq::LWM, srq.limit).with(Wq::HW_COUNTER, srq.taken.into());
        let state = if srq.memory.is_some() { RmpState::Rdy } else { RmpState::Err };
        let context = context.with(Rmpc::STATE, state.code()).with(Rmpc::WQ, wq);
        out.put(&QueryRmpOut::new().with(QueryRmpOut::RMP_CONTEXT, context))
    }
}
