//! Completions: from the adapter's one queue into the client's entries, with events for those that are armed.

use std::collections::VecDeque;

use hca_core::wire::Grh;
use hca_core::{Completion, QpHandle, RecvExtra, Srqn, WcOpcode, WcStatus};
use hca_prm::{CqErrorSyndrome, Cqe64, CqeOpcode, CqeSyndrome, ErrCqe, EventType, XrcSrqc};
use softhca::SoftHca;

use crate::bus::registers::Clock;
use crate::command::Resources;
use crate::cq::arm::Bell;
use crate::cq::{Cq, Written};
use crate::guest::Guest;
use crate::mkey::bus::{Buses, Names};
use crate::mkey::{Keys, Mkey};
use crate::objects::{Numbered, Objects, Raised};
use crate::port::counters::QCounters;
use crate::port::directory::{Directory, Mark};
use crate::port::link::Wire;
use crate::qp::Qp;
use crate::qp::grh;
use crate::qp::send::{self, SendId};
use crate::srq::Srq;

/// Completions that are taken at one time, and how often in one look.
pub(crate) const BATCH: usize = 64;
const BATCHES: usize = 8;
/// Completion queues that are looked at in one look because another doorbell may have hidden theirs.
const ARMS_A_LOOK: usize = 64;
/// How often the adapter is asked before what it has completed counts as taken.
const ROUNDS: usize = 4096;

/// What is written to when a request has ended.
pub(crate) struct Shown<'a> {
    pub(crate) hca: &'a SoftHca,
    pub(crate) cqs: &'a mut Numbered<Cq>,
    pub(crate) raised: &'a mut VecDeque<Raised>,
    pub(crate) failed_cqs: &'a mut Vec<u32>,
    pub(crate) by_index: &'a Numbered<u32>,
    pub(crate) counters: &'a mut QCounters,
    pub(crate) wire: Wire,
    pub(crate) times: Times,
}

/// When completions came: all of one step of a look have the time of the first one.
pub(crate) struct Times {
    clock: Clock,
    now_ns: Option<u64>,
}

impl Times {
    pub(crate) fn of(clock: Clock) -> Self {
        Self { clock, now_ns: None }
    }
    fn now_ns(&mut self) -> u64 {
        *self.now_ns.get_or_insert_with(|| self.clock.now_ns())
    }
}

impl Shown<'_> {
    pub(crate) fn number(&self, qp: QpHandle) -> u32 {
        self.by_index.get(&qp.index).copied().unwrap_or_default()
    }

    /// Writes an entry; `urgent` are solicited ones and errors.
    pub(crate) fn write(&mut self, cqn: u32, qp: QpHandle, user_index: u32, entry: Cqe64, urgent: bool) {
        let entry = entry.with(Cqe64::QPN, self.number(qp)).with(Cqe64::SRQN_USER_INDEX, user_index);
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        match cq.write(entry, urgent, self.times.now_ns()) {
            Written::Shown | Written::Nowhere => {}
            Written::Event => self.raised.push_back(Raised::Completion { eqn: cq.eqn, cqn }),
            Written::Overrun => {
                cq.failed = true;
                self.raised.push_back(Raised::CqError { cqn, syndrome: CqErrorSyndrome::CqOverrun });
                self.failed_cqs.push(cqn);
            }
        }
    }

    /// A queue pair can't go on: its queues hold what no driver puts there. Returns `true`, as something was done.
    pub(crate) fn fail_queue_pair(&mut self, qp: &mut Qp, event: EventType) -> bool {
        qp.memory = None;
        qp.fail(self.hca);
        self.raised.push_back(Raised::Queue { event, number: self.number(qp.handle) });
        true
    }
}

/// The entry of a request that ended well.
pub(crate) fn entry(opcode: CqeOpcode, counter: u16) -> Cqe64 {
    Cqe64::new().with(Cqe64::OPCODE, opcode.code()).with(Cqe64::WQE_COUNTER, counter.into())
}

/// The entry of a request that ended in error.
pub(crate) fn error_entry(requester: bool, syndrome: CqeSyndrome, counter: u16, opcode: u8) -> Cqe64 {
    let kind = if requester { CqeOpcode::ReqErr } else { CqeOpcode::RespErr };
    let entry = ErrCqe::new()
        .with(ErrCqe::OPCODE, kind.code())
        .with(ErrCqe::WQE_COUNTER, counter.into())
        .with(ErrCqe::S_WQE_OPCODE, opcode.into())
        .with(ErrCqe::SYNDROME, syndrome.code());
    Cqe64::from_array(*entry.as_bytes())
}

/// As [`error_entry`], of a request of the adapter's, with its vendor code.
fn failed(requester: bool, c: &Completion, counter: u16, opcode: u8) -> Cqe64 {
    let entry = error_entry(requester, syndrome(c.status), counter, opcode);
    let entry = ErrCqe::from_array(*entry.as_bytes());
    let entry = entry.with(ErrCqe::VENDOR_ERR_SYND, c.vendor_code().into());
    Cqe64::from_array(*entry.as_bytes())
}

fn syndrome(status: WcStatus) -> CqeSyndrome {
    CqeSyndrome::of_wc_status(status).unwrap_or(CqeSyndrome::LocalQpOpErr)
}

/// The entry of a receive request; with the sender, it is a datagram's.
fn received(c: &Completion, sender: Option<Sender>) -> Cqe64 {
    let counter = c.wr_id as u16;
    if c.status != WcStatus::Success {
        return failed(false, c, counter, 0);
    }
    let opcode = match (c.opcode, c.extra) {
        (WcOpcode::RecvRdmaWithImm, _) => CqeOpcode::RespWrImm,
        (_, RecvExtra::Imm(_)) => CqeOpcode::RespSendImm,
        (_, RecvExtra::Invalidated(_)) => CqeOpcode::RespSendInv,
        (_, RecvExtra::None) => CqeOpcode::RespSend,
    };
    let mut cqe = entry(opcode, counter).with(Cqe64::BYTE_CNT, c.byte_len).with(Cqe64::SE, c.solicited);
    match c.extra {
        RecvExtra::Imm(imm) => _ = cqe.set(Cqe64::IMM, imm),
        RecvExtra::Invalidated(key) => _ = cqe.set(Cqe64::INVAL_RKEY, key.raw()),
        RecvExtra::None => {}
    }
    if let Some(Sender { lid, grh, sl }) = sender {
        cqe.set(Cqe64::RQPN, c.src_qp.raw()).set(Cqe64::SLID, lid.into());
        cqe.set(Cqe64::G, grh.into()).set(Cqe64::SL, sl);
    }
    cqe
}

/// A receive request of a domain of extended connections has ended. Its target may have gone by now.
fn received_by_domain(c: &Completion, srqs: &Numbered<Srq>, target: Option<&Qp>, shown: &mut Shown<'_>) {
    let Some(context) = srqs.get(&c.srq.raw()).and_then(Srq::extended) else { return };
    let well = c.status == WcStatus::Success;
    if let Some(target) = target.filter(|_| !well) {
        shown.counters.count_error(target.counter_set(), false, syndrome(c.status));
    }
    let (cqn, user_index) = (context.get(XrcSrqc::CQN), context.get(XrcSrqc::USER_INDEX));
    shown.write(cqn, c.qp, user_index, received(c, None), c.solicited || !well);
}

/// What a receiver is told of who has sent a datagram.
#[derive(Clone, Copy)]
struct Sender {
    /// Its LID, if it is a function here that has one.
    lid: u16,
    /// Whether there is a header.
    grh: bool,
    /// On InfiniBand, the service level; on Ethernet, what stands below UDP.
    sl: u32,
}

/// Who has sent a datagram. Writes the header in front of it as sender and receiver know each other, if both are
/// functions here.
fn sender(
    qp: &Qp,
    (number, wire): (u32, Wire),
    c: &Completion,
    directory: &Directory,
    srqs: &Numbered<Srq>,
    keys: (&Numbered<Mkey>, &Buses),
) -> Sender {
    let place = grh::Front::of(qp, srqs, keys, c.wr_id as u16);
    let mut front = place.read();
    let mut sender = Sender { lid: 0, grh: true, sl: 0 };
    let from = c.src_qp.raw();
    if let Some(seen) = grh::seen(&front).filter(|seen| seen.from == directory.own()) {
        sender.lid = directory.lid_of_qp(from).unwrap_or_default();
        match directory.marked((from, number), seen.hop_limit) {
            Some(Mark { source: None, .. }) => sender.grh = false,
            Some(Mark { source: Some(source), to, hop_limit }) => {
                let len = c.byte_len.saturating_sub(Grh::BYTES as u32);
                front = grh::header(*source, *to, seen.traffic_class, *hop_limit, len);
                place.write(&front);
            }
            None => {}
        }
    }
    if wire.ethernet {
        sender.sl = if front[0] >> 4 == 6 { Cqe64::ROCE_IPV6 } else { Cqe64::ROCE_IPV4 };
    }
    sender
}

/// A request of the send queue has ended.
fn sent(qp: &mut Qp, c: &Completion, shown: &mut Shown<'_>) {
    qp.held = qp.held.saturating_sub(1);
    let id = SendId::of(c.wr_id);
    if let Some(aside) = qp.aside.as_mut().filter(|_| id.aside) {
        aside.ended();
    }
    if c.status == WcStatus::Success {
        if id.signaled {
            let cqe = entry(CqeOpcode::Req, id.counter)
                .with(Cqe64::S_WQE_OPCODE, id.opcode.into())
                .with(Cqe64::BYTE_CNT, c.byte_len);
            shown.write(qp.cq_send, qp.handle, qp.user_index, cqe, false);
        }
        return;
    }
    qp.send_failed = true;
    let syndrome = syndrome(c.status);
    shown.counters.count_error(qp.counter_set(), true, syndrome);
    let cqe = failed(true, c, id.counter, id.opcode);
    shown.write(qp.cq_send, qp.handle, qp.user_index, cqe, true);
}

/// Reports a request that the adapter never had.
pub(crate) fn ended(qp: &Qp, counter: u16, opcode: u8, wrong: Option<CqeSyndrome>, shown: &mut Shown<'_>) {
    let cqe = match wrong {
        None => entry(CqeOpcode::Req, counter).with(Cqe64::S_WQE_OPCODE, opcode.into()),
        Some(syndrome) => {
            shown.counters.count_error(qp.counter_set(), true, syndrome);
            error_entry(true, syndrome, counter, opcode)
        }
    };
    shown.write(qp.cq_send, qp.handle, qp.user_index, cqe, wrong.is_some());
}

impl Objects {
    /// Takes completions from the adapter, as many as one look may. Returns whether there were any.
    pub(crate) fn take_completions(&mut self, directory: &Directory) -> bool {
        let mut any = false;
        for _ in 0..BATCHES {
            let n = self.take_batch(directory);
            any |= n > 0;
            if n < BATCH {
                break;
            }
        }
        self.end_failed();
        any | self.fail_some()
    }

    /// Takes all that the adapter has completed.
    pub(crate) fn take_all_completions(&mut self, directory: &Directory) {
        for _ in 0..ROUNDS {
            if self.take_batch(directory) == 0 {
                break;
            }
        }
        self.end_failed();
    }

    fn take_batch(&mut self, directory: &Directory) -> usize {
        let Self { completions, qps, cqs, raised, failed_cqs, by_index, hca, addresses, .. } = self;
        let (wire, times) = (self.wire, Times::of(self.clock));
        let (srqs, mkeys, buses, counters) = (&self.srqs, &self.mkeys, &self.buses, &mut self.counters);
        let Some(port) = completions else { return 0 };
        let n = port.port.poll(&mut port.batch);
        let mut shown = Shown { hca, cqs, raised, failed_cqs, by_index, counters, wire, times };
        for c in &port.batch[..n] {
            let number = shown.number(c.qp);
            if c.srq != Srqn::default() {
                let target = qps.get(&number).filter(|qp| qp.handle == c.qp);
                received_by_domain(c, srqs, target, &mut shown);
                continue;
            }
            let Some(qp) = qps.get_mut(&number).filter(|qp| qp.handle == c.qp) else { continue };
            if c.opcode.is_recv() {
                let datagram = qp.is_datagram() && c.status == WcStatus::Success;
                let sender = datagram.then(|| sender(qp, (number, wire), c, directory, srqs, (mkeys, buses)));
                if c.status != WcStatus::Success {
                    shown.counters.count_error(qp.counter_set(), false, syndrome(c.status));
                }
                let cqe = received(c, sender);
                let urgent = c.solicited || c.status != WcStatus::Success;
                shown.write(qp.cq_recv, qp.handle, qp.user_index, cqe, urgent);
            } else {
                if qp.is_datagram() {
                    addresses.in_flight = addresses.in_flight.saturating_sub(1);
                }
                sent(qp, c, &mut shown);
            }
        }
        n
    }

    /// A doorbell of this page was rung that arms this completion queue by this word, if that is known: has it, and
    /// others whose doorbells it may have hidden, make the events that are due.
    pub(crate) fn look_at_arms(&mut self, uar: u32, named: u32, word: Option<u32>) {
        if self.cqs.get(&named).is_some_and(|cq| cq.uar == uar) {
            self.look_at_arm(named, word.map_or(Bell::Named, Bell::Word));
        }
        self.arms.suspect(uar);
        self.look_at_suspected_arms();
    }

    /// Looks whether some of those are armed whose doorbell another one may have hidden. Returns whether there were
    /// any.
    fn look_at_suspected_arms(&mut self) -> bool {
        let mut any = false;
        for _ in 0..ARMS_A_LOOK {
            let Some(cqn) = self.arms.next_suspect() else { break };
            self.look_at_arm(cqn, Bell::Others);
            any = true;
        }
        any
    }

    fn look_at_arm(&mut self, cqn: u32, bell: Bell) {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        if cq.rung(bell) {
            self.raised.push_back(Raised::Completion { eqn: cq.eqn, cqn });
        }
    }

    /// Looks how many requests each send queue has announced. Returns whether there are new ones.
    pub(crate) fn note_requests(&mut self) -> bool {
        let mut any = self.look_at_suspects() | self.look_at_suspected_arms();
        for number in &self.watched.awake {
            if let Some(qp) = self.qps.get_mut(number) {
                let noted = send::note(qp);
                any |= qp.stirred(noted);
            }
        }
        any
    }

    /// Takes new receive requests. Returns whether there were any.
    pub(crate) fn take_places(&mut self, guest: &Guest) -> bool {
        self.activate_called();
        let mut any = self.read_for_called(guest);
        let Self {
            qps, watched, cqs, srqs, xrcds, raised, failed_cqs, by_index, hca, buses, counters, ..
        } = self;
        let (wire, times) = (self.wire, Times::of(self.clock));
        let mut names = Names { hca, guest, buses, keys: None };
        let mut take = |number: &u32| {
            let Some(srq) = srqs.get_mut(number) else { return false };
            any |= crate::qp::recv::take_shared(*number, srq, &mut names, raised);
            srq.more
        };
        for number in &watched.shared {
            take(number);
        }
        for number in &watched.domains {
            if let Some(domain) = xrcds.get_mut(number) {
                domain.read_all(&mut take);
            }
        }
        let mut shown = Shown { hca, cqs, raised, failed_cqs, by_index, counters, wire, times };
        for number in &watched.awake {
            if let Some(qp) = qps.get_mut(number) {
                let taken = crate::qp::recv::take(qp, &mut names, &mut shown);
                any |= qp.stirred(taken);
            }
        }
        self.wake_activated();
        self.end_failed();
        any
    }

    /// Takes the requests that were noted. Returns whether there were any.
    pub(crate) fn take_requests(
        &mut self,
        guest: &Guest,
        directory: &mut Directory,
        resources: &Resources,
    ) -> bool {
        let mut any = false;
        let Self {
            qps,
            watched,
            cqs,
            raised,
            failed_cqs,
            by_index,
            hca,
            addresses,
            room,
            buses,
            counters,
            mkeys,
            ..
        } = self;
        let (wire, times) = (self.wire, Times::of(self.clock));
        let mut names = Names { hca, guest, buses, keys: Some(Keys { mkeys, resources }) };
        let mut shown = Shown { hca, cqs, raised, failed_cqs, by_index, counters, wire, times };
        for number in &watched.awake {
            if let Some(qp) = qps.get_mut(number) {
                let taken = send::take(qp, room, addresses, directory, &mut names, &mut shown);
                any |= qp.stirred(taken);
            }
        }
        self.park_idle();
        self.end_failed();
        any
    }
}
