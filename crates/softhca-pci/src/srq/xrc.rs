//! Extended reliable connections (XRC): domains, and their shared receive queues.
//!
//! A domain of a function is a domain of the adapter. A shared receive queue of a domain has the number by which peers
//! name it, and its requests complete into a completion queue of its own choice. Target queue pairs of the domain take
//! receive requests from all queues of the domain, so these are read while one of the targets is awake.

use hca_core::{Device, ExtendedConnections, PdHandle, RecvPort, SrqHandle, SrqInit, XrcdHandle};
use hca_prm::command::resource::{AllocXrcdOut, DeallocXrcdIn};
use hca_prm::command::srq::{
    ArmXrcSrqIn, CreateXrcSrqIn, CreateXrcSrqOut, DestroyXrcSrqIn, QueryXrcSrqIn, QueryXrcSrqOut,
};
use hca_prm::{CmdStatus, EventType, XrcSrqState, XrcSrqc};
use rustc_hash::FxHashSet;

use super::{Kind, Shape, Srq};
use crate::command::resource::LOG_XRCDS;
use crate::command::{Output, parse};
use crate::function::Function;
use crate::objects::{Counted, Objects, Raised, gone, status};

/// Shared receive queues that are read in one look for targets of domains that have more of them.
pub(crate) const QUEUES_A_LOOK: usize = if cfg!(any(test, fuzzing)) { 4 } else { 64 };

/// A domain of extended connections.
pub(crate) struct Domain {
    pub(crate) handle: XrcdHandle,
    /// Its shared receive queues, and which one's turn it is.
    srqs: Vec<u32>,
    next: usize,
    /// Queues that were read in turn, and how often there have come to be others.
    pub(super) read: u64,
    changes: u32,
    /// Its targets that are awake.
    pub(crate) awake: u32,
    /// One of its shared receive queues has more requests than were taken in the last look.
    pub(crate) more: bool,
}

/// How far a domain has to read, from some look on, until it has read each of its queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    read: u64,
    changes: u32,
}

impl Domain {
    fn new(handle: XrcdHandle) -> Self {
        Self { handle, srqs: Vec::new(), next: 0, read: 0, changes: 0, awake: 0, more: false }
    }
    pub(super) fn insert(&mut self, number: u32) {
        self.srqs.push(number);
        self.changes = self.changes.wrapping_add(1);
    }
    pub(super) fn remove(&mut self, number: u32) {
        self.srqs.retain(|n| *n != number);
        self.changes = self.changes.wrapping_add(1);
    }
    /// Whether it has so many queues that they are read in turn, and its targets do not stay awake.
    pub(crate) fn is_large(&self) -> bool {
        self.srqs.len() > QUEUES_A_LOOK
    }
    pub(crate) fn due(&self) -> Due {
        Due { read: self.read + self.srqs.len() as u64, changes: self.changes }
    }
    /// Whether it has read so far. If its queues are other ones by now, it begins anew.
    pub(crate) fn has_read(&self, due: &mut Due) -> bool {
        if due.changes != self.changes {
            *due = self.due();
        }
        self.read >= due.read
    }
    /// Reads all of its queues. `take` says whether one has more requests than it took.
    pub(crate) fn read_all(&mut self, mut take: impl FnMut(&u32) -> bool) {
        self.more = self.srqs.iter().fold(false, |more, number| take(number) | more);
    }
    /// Reads some of its queues, at most `left`, of which it takes those.
    pub(crate) fn read_some(&mut self, left: &mut usize, mut take: impl FnMut(&u32) -> bool) {
        let most = (*left).min(self.srqs.len());
        for _ in 0..most {
            *left -= 1;
            self.next %= self.srqs.len();
            if take(&self.srqs[self.next]) {
                return;
            }
            self.next += 1;
            self.read += 1;
        }
    }
}

impl Srq {
    /// The context of one of a domain.
    pub(crate) fn extended(&self) -> Option<&XrcSrqc> {
        if let Kind::Extended(context) = &self.kind { Some(context) } else { None }
    }
}

impl Shape {
    pub(super) fn of_extended(context: &XrcSrqc) -> Result<Self, CmdStatus> {
        if context.get(XrcSrqc::DBR_UMEM_VALID) || context.get(XrcSrqc::BASIC_CYCLIC_RCV_WQE) {
            return Err(CmdStatus::BadParam);
        }
        Ok(Self {
            log_size: context.get(XrcSrqc::LOG_XRC_SRQ_SIZE),
            log_stride: context.get(XrcSrqc::LOG_RQ_STRIDE) + 4,
            log_page: context.get(XrcSrqc::LOG_PAGE_SIZE) + 12,
            page_offset: context.get(XrcSrqc::PAGE_OFFSET),
            record: context.get(XrcSrqc::DBR_ADDR),
        })
    }
}

impl Objects {
    fn alloc_xrcd(&mut self) -> Result<u32, CmdStatus> {
        let number = self.xrcd_numbers.alloc(LOG_XRCDS)?;
        match self.hca.alloc_xrcd() {
            Ok(handle) => {
                self.xrcds.insert(number, Domain::new(handle));
                Ok(number)
            }
            Err(e) => {
                self.xrcd_numbers.free(number)?;
                Err(status(e))
            }
        }
    }

    /// Destroys a domain that neither queues nor targets belong to.
    fn dealloc_xrcd(&mut self, number: u32) -> Result<(), CmdStatus> {
        let domain = self.xrcds.get(&number).ok_or(CmdStatus::BadRes)?;
        self.hca.dealloc_xrcd(domain.handle).map_err(status)?;
        self.xrcds.remove(&number);
        self.xrcd_numbers.free(number)
    }

    /// Destroys all domains; their queues and targets are gone by now.
    pub(crate) fn remove_domains(&mut self) {
        for (_, domain) in self.xrcds.drain() {
            gone("domain of extended connections", self.hca.dealloc_xrcd(domain.handle));
        }
        self.xrcd_numbers = Default::default();
    }

    /// Has the adapter make a shared receive queue of a domain.
    pub(super) fn make_extended(
        &mut self,
        pd: PdHandle,
        context: &XrcSrqc,
        init: &SrqInit,
    ) -> Result<(SrqHandle, Box<dyn RecvPort>), CmdStatus> {
        self.usable_cq(context.get(XrcSrqc::CQN))?;
        let completions = self.completions()?;
        let domain = self.xrcds.get(&context.get(XrcSrqc::XRCD)).ok_or(CmdStatus::BadRes)?;
        let made = self.hca.create_xrc_srq(pd, domain.handle, completions, init).map_err(status)?;
        Ok((made.handle, made.recv))
    }

    /// The queues of domains whose completion queue has failed end with it: nobody could be told of what they receive.
    pub(crate) fn end_extended_of(&mut self, failed: &FxHashSet<u32>) {
        for (number, srq) in &mut self.srqs {
            let names = srq.extended().is_some_and(|context| failed.contains(&context.get(XrcSrqc::CQN)));
            let Some(adapters) = srq.adapters.take_if(|_| names) else { continue };
            gone("shared receive queue", self.hca.destroy_srq(adapters.handle));
            let Counted { bytes, requests } = adapters.counted;
            self.queue_bytes -= bytes;
            self.requests -= requests;
            self.freed_bytes += bytes;
            srq.memory = None;
            self.raised.push_back(Raised::Queue { event: EventType::SrqCatasError, number: *number });
        }
    }
}

fn is_extended(kind: &Kind) -> bool {
    matches!(kind, Kind::Extended(_))
}

impl Function {
    pub(crate) fn alloc_xrcd(&mut self, out: &mut Output) -> Result<(), CmdStatus> {
        out.put(&AllocXrcdOut::new().with(AllocXrcdOut::XRCD, self.objects.alloc_xrcd()?))
    }
    pub(crate) fn dealloc_xrcd(&mut self, input: &[u8]) -> Result<(), CmdStatus> {
        self.objects.dealloc_xrcd(parse::<DeallocXrcdIn>(input)?.get(DeallocXrcdIn::XRCD))
    }

    pub(crate) fn create_xrc_srq(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let context = parse::<CreateXrcSrqIn>(input)?.get(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY);
        let pd = self.pd(context.get(XrcSrqc::PD))?;
        let pas = &input[CreateXrcSrqIn::SIZE..];
        let number = self.objects.create_srq(&self.guest, pd, Kind::Extended(context), pas)?;
        out.put(&CreateXrcSrqOut::new().with(CreateXrcSrqOut::XRC_SRQN, number))
    }
    /// Received messages of the queue are shown first.
    pub(crate) fn destroy_xrc_srq(&mut self, input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        let number = parse::<DestroyXrcSrqIn>(input)?.get(DestroyXrcSrqIn::XRC_SRQN);
        // The adapter looks whether a target receives into one of its requests.
        self.commands.charge(self.objects.qps.len());
        self.objects.take_all_completions(&self.directory.lock());
        self.objects.destroy_srq(number, is_extended)
    }
    pub(crate) fn query_xrc_srq(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let number = parse::<QueryXrcSrqIn>(input)?.get(QueryXrcSrqIn::XRC_SRQN);
        let srq = self.objects.srqs.get(&number).ok_or(CmdStatus::BadRes)?;
        let context = srq.extended().ok_or(CmdStatus::BadRes)?;
        let state = if srq.memory.is_some() { XrcSrqState::Good } else { XrcSrqState::Error };
        let context = context.with(XrcSrqc::STATE, state.code()).with(XrcSrqc::LWM, srq.limit);
        out.put(&QueryXrcSrqOut::new().with(QueryXrcSrqOut::XRC_SRQ_CONTEXT_ENTRY, context))
    }
    pub(crate) fn arm_xrc_srq(&mut self, input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        let command: ArmXrcSrqIn = parse(input)?;
        let number = command.get(ArmXrcSrqIn::XRC_SRQN);
        self.objects.srqs.get(&number).filter(|srq| is_extended(&srq.kind)).ok_or(CmdStatus::BadRes)?;
        self.arm_srq(number, command.get(ArmXrcSrqIn::LWM))
    }
}
