//! One side of a measurement: an interface with an entry, and the messages to the other side's entry.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ::portals::v4::{
    AckReq, AtomicOp, CtHandle, Datatype, EqHandle, EventKind, Fetch, Get, Limits, ListKind, Md, MdHandle,
    MdOptions, Me, MeOptions, Ni, NiOptions, PtOptions, Put, ReturnCode, Source,
};
use ::portals::{Card, Memory, Node, Process};

use super::super::control::Phase;
use super::super::plan::Op;
use super::{Before, Case, Entries};
use crate::Failure;

/// The portal that messages name.
const PORTAL: u32 = 3;
/// The match bits of messages, and of the entry that they are for.
const BITS: u64 = 7;
/// Match bits of other entries: they differ above the ignored ones.
const OTHERS: u64 = 1 << 40;
const IGNORED: u64 = 0xffff;
/// Bytes that a side has under way at most.
const BYTES_UNDER_WAY: u64 = 2 << 20;
/// The limit of a side's messages under way: puts, and operations with replies.
const MAX_PUTS: u64 = 512;
const MAX_ANSWERS: u64 = 64;
/// Of a stream of short puts, every so many are acknowledged, and with them all before them.
const ACK_EVERY: u64 = 64;
/// Operations between two polls.
const BATCH: u64 = 64;
/// The time limit for operations under way to end.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// What messages are made of.
const FILL: u8 = 0x5a;

/// One side.
pub(super) struct Half {
    ni: Ni,
    op: Op,
    /// Events of the other side's messages.
    came: EqHandle,
    /// Events of this side's operations.
    own: EqHandle,
    /// The memory that is sent, and that receives replies.
    md: MdHandle,
    /// The counting event of acknowledgements, if they post no events.
    acks: CtHandle,
    counts: bool,
    put: Put,
    get: Get,
    fetch: Fetch,
    window: u64,
    ack_every: u64,
    posted: u64,
    completed: u64,
    /// Operations whose acknowledgement is to come, by their number; and acknowledgements that came.
    acked: VecDeque<u64>,
    counted: u64,
    _memory: [Memory; 2],
}

impl Half {
    /// An interface of a node for a measurement with another.
    pub(super) fn new(
        node: &Node,
        other: Card,
        case: &Case,
        phase: Phase,
        eager_bytes: u64,
    ) -> Result<Self, Failure> {
        let ni = Ni::init(node, NiOptions::MATCHING | NiOptions::PHYSICAL, None, &Limits::default())?;
        let (op, size) = (case.op, case.size.bytes());
        let window = window(op, size);
        let (came, own) = (ni.eq_alloc(4 * window as u32 + 64)?, ni.eq_alloc(4 * window as u32 + 64)?);
        let acks = ni.ct_alloc()?;
        let memory = [node.alloc(size as usize)?, node.alloc(size as usize)?];
        // Written once, so that it has pages of its own and not the system's one page of zeros.
        let fill = vec![FILL; size as usize];
        memory.iter().for_each(|memory| memory.write_at(0, &fill));
        let counts = op == Op::Put && phase == Phase::Stream;
        let target = Process::physical(other.nid, other.pid);
        ni.pt_alloc(PtOptions::empty(), Some(came), Some(PORTAL))?;
        if let Some(before) = case.before {
            others(&ni, before, target, &memory[0])?;
        }
        let quiet = if op == Op::Put { MeOptions::empty() } else { MeOptions::EVENT_SUCCESS_DISABLE };
        let entry = Me {
            options: MeOptions::OP_PUT | MeOptions::OP_GET | MeOptions::EVENT_LINK_DISABLE | quiet,
            match_id: Source::exactly(target),
            match_bits: BITS,
            ..Me::new(&memory[0])
        };
        ni.me_append(PORTAL, &entry, ListKind::Priority, 0)?;
        let count = if counts { MdOptions::EVENT_CT_ACK } else { MdOptions::empty() };
        let options = MdOptions::EVENT_SEND_DISABLE | count;
        let md = ni.md_bind(&Md { options, eq: Some(own), ct: Some(acks), ..Md::new(&memory[1]) })?;
        let ack_req = if op == Op::PutAck { AckReq::Ack } else { AckReq::None };
        Ok(Self {
            op,
            came,
            own,
            md,
            acks,
            counts,
            put: Put { match_bits: BITS, ack_req, ..Put::new(md, size, target, PORTAL) },
            get: Get { match_bits: BITS, ..Get::new(md, size, target, PORTAL) },
            fetch: Fetch { match_bits: BITS, ..Fetch::new(md, md, size, target, PORTAL) },
            window,
            // The initiator of a long message gets its completion anyway.
            ack_every: if size > eager_bytes { 1 } else { (window / 4).clamp(1, ACK_EVERY) },
            posted: 0,
            completed: 0,
            acked: VecDeque::new(),
            counted: 0,
            _memory: memory,
            ni,
        })
    }

    /// Begins one operation.
    #[inline]
    pub(super) fn post(&mut self) -> Result<(), Failure> {
        self.posted += 1;
        match self.op {
            Op::Get => self.ni.get(&self.get)?,
            Op::Atomic => self.ni.fetch_atomic(&self.fetch, AtomicOp::Sum, Datatype::U64)?,
            _ if self.counts && self.posted.is_multiple_of(self.ack_every) => self.post_acked()?,
            _ => self.ni.put(&self.put)?,
        }
        Ok(())
    }
    fn post_acked(&mut self) -> Result<(), Failure> {
        self.acked.push_back(self.posted);
        Ok(self.ni.put(&Put { ack_req: AckReq::Ct, ..self.put })?)
    }
    /// Begins as many operations as the window and `budget` allow, as one bundle; returns how many.
    pub(super) fn post_many(&mut self, budget: u64) -> Result<u64, Failure> {
        let count = budget.min(BATCH).min(self.window - (self.posted - self.completed));
        self.ni.start_bundle();
        for _ in 0..count {
            self.post()?;
        }
        self.ni.end_bundle();
        Ok(count)
    }
    /// Has the last operations of a stream reported: begins one more, if they are not. Returns how many it began.
    pub(super) fn finish(&mut self) -> Result<u64, Failure> {
        if !self.counts || self.acked.back() == Some(&self.posted) || self.completed == self.posted {
            return Ok(0);
        }
        self.posted += 1;
        self.post_acked()?;
        Ok(1)
    }
    /// How many of this side's operations are newly known to be over.
    #[inline]
    pub(super) fn completed(&mut self) -> Result<u64, Failure> {
        let before = self.completed;
        if self.counts {
            let count = self.ni.ct_get(self.acks)?;
            if count.failure > 0 {
                let why = "a put failed: the connection to the peer was lost, or its entry did not take it";
                return Err(why.into());
            }
            for _ in self.counted..count.success {
                self.completed = self.acked.pop_front().expect("as many as were asked for");
            }
            self.counted = count.success;
        } else {
            for _ in 0..BATCH {
                let Some(got) = self.ni.eq_get(self.own)? else { break };
                if !got.event.is_ok() {
                    return Err(format!("a {} ended with {:?}", self.op, got.event.ni_fail_type).into());
                }
                self.completed += 1;
            }
        }
        Ok(self.completed - before)
    }
    /// Waits until nothing of this side is under way any more: an interface that is closed before would take its
    /// connections along. The other side makes progress meanwhile.
    pub(super) fn settle(self) -> Result<(), Failure> {
        self.ni.pt_disable(PORTAL)?;
        let begin = Instant::now();
        loop {
            match self.ni.md_release(self.md) {
                Err(e) if e.code() == ReturnCode::InUse && begin.elapsed() < SETTLE_LIMIT => {
                    self.ni.node().progress();
                }
                released => return Ok(released?),
            }
        }
    }
    /// Whether a message of the other side has come.
    #[inline]
    pub(super) fn arrived(&mut self) -> Result<bool, Failure> {
        match self.ni.eq_get(self.came)? {
            None => Ok(false),
            Some(got) if got.event.kind == EventKind::Put && got.event.is_ok() => Ok(true),
            Some(got) => Err(format!("the other side's put came as {:?}", got.event).into()),
        }
    }
}

/// Entries that messages do not match.
fn others(ni: &Ni, before: Before, target: Process, memory: &Memory) -> Result<(), Failure> {
    let exact = before.entries == Entries::Exact;
    let mut entry = Me {
        options: MeOptions::OP_PUT | MeOptions::EVENT_LINK_DISABLE,
        match_id: if exact { Source::exactly(target) } else { Source::ANY },
        ignore_bits: if exact { 0 } else { IGNORED },
        ..Me::new(memory)
    };
    for i in 0..before.count {
        entry.match_bits = OTHERS | i << 16;
        ni.me_append(PORTAL, &entry, ListKind::Priority, 0)?;
    }
    Ok(())
}

/// Operations that a side has under way at most.
fn window(op: Op, size: u64) -> u64 {
    let max = if matches!(op, Op::Put | Op::PutAck) { MAX_PUTS } else { MAX_ANSWERS };
    (BYTES_UNDER_WAY / size).clamp(2, max)
}
