//! Ethernet receive queues: received frames pass through the flow tables to interfaces, and from there to queues, where
//! each frame fills a request.
//!
//! A frame without a request is dropped and counted. A frame that is longer than its request's memory, or whose memory
//! can't be reached, ends the request with an error and puts the queue into the error state.

use hca_core::PdHandle;
use hca_prm::command::ethernet::{CreateRqIn, CreateRqOut, ModifyRqIn, QueryRqOut};
use hca_prm::{CmdStatus, Cqe64, CqeOpcode, CqeSyndrome, DataSeg, EventType, Rqc, Wq, WqType};

use super::flow::Place;
use super::frame::{Headers, MAC, TAG, check, destination};
use super::hash::{self, Hash};
use super::reach::Reach;
use super::ring::Ring;
use super::sq::complete;
use super::switch::Frame;
use super::uses::Thing;
use super::{ERROR, Ethernet, READY, RESET, may_change};
use crate::command::{Output, caps, parse};
use crate::cq::complete::error_entry;
use crate::function::{Function, PortKind};
use crate::objects::Raised;
use crate::qp::recv::byte_count;

/// What may be done in one look: each frame is one, each group of flows that it is compared with, each copy, each
/// request that is flushed.
const BUDGET: usize = 4096;
/// The same for a frame that is nowhere looked at.
const FRAME: usize = 4;
/// In completions: which checksums are right.
const L2_OK: u32 = 1;
const L3_OK: u32 = 2;
const L4_OK: u32 = 4;
/// In completions: a tag was taken off; IPv6, IPv4; TCP without acknowledgement, UDP, TCP with one alone, TCP with
/// data.
const TAGGED: u32 = 1;
const OF_IPV6: u32 = 1 << 2;
const OF_IPV4: u32 = 2 << 2;
const OF_TCP: u32 = 1 << 4;
const OF_UDP: u32 = 2 << 4;
const OF_TCP_ACK: u32 = 3 << 4;
const OF_TCP_DATA: u32 = 4 << 4;
const ACK: u8 = 0x10;

/// A receive queue.
#[derive(Debug)]
pub(super) struct Rq {
    context: Rqc,
    ring: Ring,
    pd: Option<PdHandle>,
    state: u32,
    taken: u16,
}

/// The reason why a frame did not fill a request.
enum Unfilled {
    /// There is none.
    Nothing,
    /// The queue's record or entries are out of reach, or mean nothing.
    Lost,
    /// The request is no place for it.
    Wrong(CqeSyndrome),
}

impl Rq {
    fn new(context: Rqc, pd: Option<PdHandle>, list: &[u8]) -> Result<Self, CmdStatus> {
        let wq = context.get(Rqc::WQ);
        let own = context.get(Rqc::MEM_RQ_TYPE) == 0 && !context.get(Rqc::HAIRPIN);
        caps::check_clock(context.get(Rqc::TS_FORMAT))?;
        if wq.get(Wq::WQ_TYPE) != WqType::Cyclic.code() || !own || context.get(Rqc::SCATTER_FCS) {
            return Err(CmdStatus::BadParam);
        }
        let ring = Ring::new(&wq, caps::LOG_WQ_SIZE, caps::LOG_RQ_STRIDES, list)?;
        Ok(Self { context, ring, pd, state: RESET, taken: 0 })
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> u16 {
        self.taken
    }

    fn names(&self) -> Vec<Thing> {
        let mut names = vec![Thing::Cq(self.context.get(Rqc::CQN))];
        names.extend(self.pd.map(|_| Thing::Pd(self.context.get(Rqc::WQ).get(Wq::PD))));
        names
    }

    /// How many requests are announced; `None`: the record means nothing.
    fn announced(&self, guest: &crate::guest::Guest) -> Option<u16> {
        let count = self.ring.counter(guest, 0)?.wrapping_sub(self.taken);
        (u32::from(count) <= self.ring.entries()).then_some(count)
    }

    /// Puts a frame into the places of the next request.
    fn fill(&self, guest: &crate::guest::Guest, reach: &Reach<'_>, frame: &[u8]) -> Result<(), Unfilled> {
        if self.announced(guest).ok_or(Unfilled::Lost)? == 0 {
            return Err(Unfilled::Nothing);
        }
        let mut list = vec![0; self.ring.stride()];
        self.ring.read(guest, self.taken, &mut list).map_err(|_| Unfilled::Lost)?;
        let places = list.as_chunks().0.iter().map(|seg| DataSeg::from_array(*seg));
        let mut rest = frame;
        for place in places.take_while(|place| !place.is_terminator()) {
            let (now, later) = rest.split_at(rest.len().min(byte_count(&place) as usize));
            reach.write(self.pd, &place, now).map_err(Unfilled::Wrong)?;
            rest = later;
            if rest.is_empty() {
                return Ok(());
            }
        }
        Err(Unfilled::Wrong(CqeSyndrome::LocalLengthErr))
    }

    /// An entry of this queue's.
    fn entry(&self, entry: Cqe64) -> Cqe64 {
        entry.with(Cqe64::SRQN_USER_INDEX, self.context.get(Rqc::USER_INDEX))
    }
}

/// What a completion says of a frame's headers.
fn seen(frame: &[u8], headers: &Headers) -> Cqe64 {
    let mut entry = Cqe64::new();
    let Some(ip) = &headers.ip else { return entry.with(Cqe64::HDS_IP_EXT, L2_OK) };
    let (of_ip, above, sum) = check(frame, ip);
    let mut ok = L2_OK;
    ok |= if of_ip { L3_OK } else { 0 };
    ok |= if above { L4_OK } else { 0 };
    let mut kind = if ip.v6 { OF_IPV6 } else { OF_IPV4 };
    kind |= match ip.l4 {
        None => 0,
        Some(l4) if !l4.tcp => OF_UDP,
        Some(l4) if frame[l4.at + 13] & ACK == 0 => OF_TCP,
        Some(l4) if l4.data == ip.end => OF_TCP_ACK,
        Some(_) => OF_TCP_DATA,
    };
    entry.set(Cqe64::HDS_IP_EXT, ok).set(Cqe64::L4_L3_HDR_TYPE, kind).set(Cqe64::CHECK_SUM, sum.into());
    entry
}

impl Ethernet {
    pub(super) fn modify_rq(&mut self, command: &ModifyRqIn) -> Result<(), CmdStatus> {
        let rqn = command.get(ModifyRqIn::RQN);
        let rq = self.rqs.named(rqn)?;
        let (from, requested) = (command.get(ModifyRqIn::RQ_STATE), command.get(ModifyRqIn::CTX));
        let to = requested.get(Rqc::STATE);
        if from != rq.state || !may_change(from, to) {
            return Err(CmdStatus::BadResState);
        }
        if command.get(ModifyRqIn::MODIFY_BITMASK) & CHANGES_VSD != 0 {
            rq.context.set(Rqc::VSD, requested.get(Rqc::VSD));
        }
        rq.state = to;
        if to == RESET {
            rq.taken = 0;
        }
        if to == ERROR {
            self.flushing.insert(rqn);
        } else {
            self.flushing.remove(&rqn);
        }
        Ok(())
    }

    pub(super) fn destroy_rq(&mut self, rqn: u32) -> Result<(), CmdStatus> {
        self.uses.none(Thing::Rq(rqn))?;
        let rq = self.rqs.remove(rqn)?;
        self.flushing.remove(&rqn);
        rq.names().into_iter().for_each(|thing| self.uses.remove(thing));
        Ok(())
    }
}

/// What of a queue is changed: whether tags are left in place.
const CHANGES_VSD: u64 = 1 << 1;

impl Function {
    pub(super) fn create_rq(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let context = parse::<CreateRqIn>(input)?.get(CreateRqIn::CTX);
        let pd = self.queue_names(&context.get(Rqc::WQ), context.get(Rqc::CQN))?;
        let rq = Rq::new(context, pd, &input[CreateRqIn::SIZE..])?;
        let names = rq.names();
        let number = self.ethernet.rqs.insert(rq)?;
        names.into_iter().for_each(|thing| self.ethernet.uses.add(thing));
        out.put(&CreateRqOut::new().with(CreateRqOut::RQN, number))
    }

    pub(super) fn query_rq(&mut self, rqn: u32, out: &mut Output) -> Result<(), CmdStatus> {
        let rq = self.ethernet.rqs.named(rqn)?;
        let posted = rq.ring.counter(&self.guest, 0).unwrap_or(rq.taken);
        let wq =
            rq.context.get(Rqc::WQ).with(Wq::HW_COUNTER, rq.taken.into()).with(Wq::SW_COUNTER, posted.into());
        let context = rq.context.with(Rqc::STATE, rq.state).with(Rqc::WQ, wq);
        out.put(&QueryRqOut::new().with(QueryRqOut::RQ_CONTEXT, context))
    }

    /// Takes a bounded piece of what has come. Returns whether there was any.
    pub(crate) fn take_received(&mut self) -> bool {
        if self.options.port != PortKind::Roce {
            return false;
        }
        let mut left = BUDGET;
        let mut any = self.flush(&mut left);
        if self.directory.nothing_waits() {
            return any;
        }
        while left > 0 {
            let Some(frame) = self.directory.switch().receive(self.options.number) else { break };
            any = true;
            self.receive(frame, &mut left);
        }
        self.post_raised();
        any
    }

    fn receive(&mut self, Frame { bytes: frame, own }: Frame, left: &mut usize) {
        self.ethernet.seen.count_received(&destination(&frame), frame.len());
        let headers = Headers::of(&frame);
        let places = self.ethernet.tables.route(&headers.fields(&frame), left);
        *left = left.saturating_sub(FRAME);
        for place in places {
            *left = left.saturating_sub(FRAME);
            self.deliver(&frame, own, &headers, place);
        }
    }

    /// Brings a frame to an interface.
    fn deliver(&mut self, frame: &[u8], own: bool, headers: &Headers, place: Place) {
        let Self { ethernet, objects, guest, .. } = self;
        let Some(tir) = ethernet.tirs.get(place.tirn) else { return };
        if own && !tir.takes_own(&destination(frame)) {
            return;
        }
        let hash = match tir.names[0] {
            Thing::Rqt(_) => hash::of(&tir.context, frame, headers),
            _ => Hash::default(),
        };
        let Some(rqn) = ethernet.queue_of(tir, hash.value) else { return };
        let Some(rq) = ethernet.rqs.get_mut(rqn) else { return };
        let set = rq.context.get(Rqc::COUNTER_SET_ID);
        if rq.state != READY {
            return ethernet.seen.count_lost(set);
        }
        let mut entry = seen(frame, headers);
        let untagged;
        let mut frame = frame;
        if let Some((tag, false)) = headers.tag.filter(|_| !rq.context.get(Rqc::VSD)) {
            untagged = [&frame[..2 * MAC], &frame[2 * MAC + TAG..]].concat();
            frame = &untagged;
            let kind = entry.get(Cqe64::L4_L3_HDR_TYPE);
            entry.set(Cqe64::VLAN_INFO, tag.into()).set(Cqe64::L4_L3_HDR_TYPE, kind | TAGGED);
        }
        let counter = rq.taken;
        let entry = match rq.fill(guest, &Reach::new(guest, objects), frame) {
            Ok(()) => entry
                .with(Cqe64::OPCODE, CqeOpcode::RespSend.code())
                .with(Cqe64::WQE_COUNTER, counter.into())
                .with(Cqe64::BYTE_CNT, frame.len() as u32)
                .with(Cqe64::RSS_HASH_RESULT, hash.value)
                .with(Cqe64::RSS_HASH_TYPE, hash.of)
                // Where other entries have the queue's number, those of Ethernet have the flow's.
                .with(Cqe64::QPN, place.tag),
            Err(Unfilled::Nothing) => return ethernet.seen.count_lost(set),
            Err(Unfilled::Lost) => {
                rq.state = ERROR;
                objects.raised.push_back(Raised::Queue { event: EventType::WqCatasError, number: rqn });
                return;
            }
            Err(Unfilled::Wrong(syndrome)) => {
                rq.state = ERROR;
                ethernet.flushing.insert(rqn);
                error_entry(false, syndrome, counter, 0).with(Cqe64::QPN, rqn)
            }
        };
        rq.taken = counter.wrapping_add(1);
        let urgent = rq.state == ERROR;
        if !complete(objects, rq.context.get(Rqc::CQN), rq.entry(entry), urgent) {
            rq.state = ERROR;
            ethernet.flushing.remove(&rqn);
        }
    }

    /// Ends requests of queues in error. Returns whether there were any.
    fn flush(&mut self, left: &mut usize) -> bool {
        let Self { ethernet, objects, guest, .. } = self;
        let mut any = false;
        while let Some(rqn) = ethernet.flushing.first().copied().filter(|_| *left > 0) {
            any = true;
            *left -= 1;
            let rq = ethernet.rqs.get_mut(rqn).filter(|rq| rq.context.get(Rqc::FLUSH_IN_ERROR_EN));
            let Some(rq) = rq.filter(|rq| rq.announced(guest).is_some_and(|count| count > 0)) else {
                ethernet.flushing.remove(&rqn);
                continue;
            };
            let entry = error_entry(false, CqeSyndrome::WrFlushErr, rq.taken, 0).with(Cqe64::QPN, rqn);
            rq.taken = rq.taken.wrapping_add(1);
            if !complete(objects, rq.context.get(Rqc::CQN), rq.entry(entry), true) {
                ethernet.flushing.remove(&rqn);
            }
        }
        if any {
            self.post_raised();
        }
        any
    }
}
