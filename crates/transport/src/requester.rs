//! The requester of a reliable connection: it cuts send requests into packets, keeps the messages in flight,
//! retransmits lost packets, and obeys window, credits and limits.
//!
//! No packet is stored. A message in flight is its index, its first PSN and its kind; a cursor (request, packet) names
//! the next packet to send, and a retransmission moves the cursor back. `completer` handles responses, `recovery` what is
//! lost.

mod recovery;

use hca_core::wire::{BthFlags, PacketOp};
use hca_core::{FlatOp, Instant, Psn, SendFlags, SendOp, WcStatus};

use crate::build::{Ext, pad, reserve_packet, send_packet};
use crate::connection::{Path, Variant};
use crate::emit::{Current, Extent, emit, extent, reth};
use crate::inflight::{Inflight, Kind, Unanswered};
use crate::psn::{MAX_OUTSTANDING, span};
use crate::refusal::Rnr;
use crate::rtt::Rtt;
use crate::rules::{Credits, check, may_begin};
use crate::window::{UNIT_BYTES, Window, packet_cost};
use crate::{Count, Host, QpConfig, RdEnds, SendRequest, TxSink, WindowStats};

/// Packets without an acknowledgement being asked for at most.
const MAX_UNASKED_PACKETS: u32 = 32;
/// No deadline.
pub(crate) const NEVER: u64 = u64::MAX;

/// READs and atomics that may wait for their answers. One that was begun before the limit became 0 is still asked for
/// again.
fn max_unanswered(path: &Path) -> usize {
    usize::from(path.max_rd_atomic).max(1)
}

/// The outcome of an attempt to send one packet.
enum Step {
    Sent,
    /// It is done, and nothing was sent.
    Done,
    /// Nothing more was posted.
    Idle,
    /// Something has to come in first.
    Blocked,
    SinkFull,
    Fail(WcStatus),
}

/// A probe that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probed {
    /// The PSN behind it.
    pub(crate) end: Psn,
    /// An answer that leaves what is before this PSN unacknowledged says that it was lost.
    pub(crate) tells_of: Psn,
    pub(crate) at_ns: u64,
}

/// A place in the sequence: a request, a PSN, and the cost of all before that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) index: u32,
    pub(crate) psn: Psn,
    pub(crate) cost: u16,
}

/// When packets ask for an acknowledgement.
#[derive(Debug)]
struct Asking {
    /// Packets and cost since the last packet that asked, and how many packets there may be of messages of one packet
    /// each: of those a short queue holds few.
    packets: u32,
    cost: u32,
    max_packets: u32,
    /// The PSN behind the last packet that asked, until it is answered.
    until: Option<Psn>,
}

impl Asking {
    /// The packet that ends before this PSN asks.
    #[inline]
    fn asked(&mut self, end: Psn) {
        self.begin();
        self.until = Some(end);
    }
    /// None of the packets from here on has asked.
    #[inline]
    fn begin(&mut self) {
        (self.packets, self.cost) = (0, 0);
    }
}

/// The probe for what is silent.
#[derive(Debug)]
pub(crate) struct Probe {
    at: u64,
    is_due: bool,
    pub(crate) sent: Option<Probed>,
    /// The packet of a READ that the last probe asked for by itself. Its response says that it ends there, or comes
    /// amid the others; probes of other packets are answered by now.
    pub(crate) alone: Option<Psn>,
}

/// The requester of one connection.
#[derive(Debug)]
pub(crate) struct Requester {
    inflight: Inflight,
    /// The oldest request that is not completed, and the oldest PSN that is not acknowledged.
    pub(crate) una: Position,
    /// The first request that was not started.
    pub(crate) next: Position,
    /// The cursor, and the packet in its request.
    cur: Position,
    cur_packet: u32,
    current: Option<Current>,
    /// The PSN behind the last that was ever sent.
    pub(crate) sent_psn: Psn,
    unanswered: Unanswered,
    /// Something can be sent as far as is known.
    ready: bool,
    /// Something is to be sent, but waits for an input.
    blocked: bool,
    asking: Asking,
    pub(crate) credits: Credits,
    /// Messages completed that consumed receive requests.
    pub(crate) recv_done: u32,
    pub(crate) window: Window,
    pub(crate) rtt: Rtt,
    /// A packet whose round trip is being measured, and when it left.
    sample: Option<(Psn, u64)>,
    /// The queue pair's own timeout.
    timeout_at: u64,
    pub(crate) probe: Probe,
    pub(crate) rnr: Rnr,
    /// The peer had no receive request. It drops all behind the packet that it refused, so that one goes
    /// alone until it is taken.
    refused: bool,
    pub(crate) retries_left: u8,
    /// When the cursor last went back, and from where.
    rewound_at: u64,
    rewound_una: Option<Psn>,
    /// The message in flight is a RESYNC, for the queue pair of the message that was abandoned (RD).
    pub(crate) resync: Option<RdEnds>,
}

impl Requester {
    pub(crate) fn new(path: &Path, config: &QpConfig, psn: Psn, index: u32) -> Self {
        let first = Position { index, psn, cost: 0 };
        Self {
            inflight: Inflight::new(),
            una: first,
            next: first,
            cur: first,
            cur_packet: 0,
            current: None,
            sent_psn: psn,
            unanswered: Unanswered::new(path.max_rd_atomic),
            ready: false,
            blocked: false,
            asking: Asking {
                packets: 0,
                cost: 0,
                max_packets: (config.max_send_wr / 4).clamp(1, MAX_UNASKED_PACKETS),
                until: None,
            },
            credits: Credits::default(),
            recv_done: 0,
            window: Window::new(config.window_bytes, path.mtu),
            rtt: Rtt::default(),
            sample: None,
            timeout_at: NEVER,
            probe: Probe { at: NEVER, is_due: false, sent: None, alone: None },
            rnr: Rnr::new(path),
            refused: false,
            retries_left: path.retry_cnt,
            rewound_at: 0,
            rewound_una: None,
            resync: None,
        }
    }

    /// The limits of the path changed.
    pub(crate) fn update(&mut self, path: &Path) {
        self.retries_left = path.retry_cnt;
        self.rnr.update(path);
        self.unanswered.grow(path.max_rd_atomic);
    }
    /// Requests were posted, or may be started now.
    #[inline]
    pub(crate) fn posted(&mut self) {
        self.ready = true;
    }
    /// An input came that may lift what sending waits for.
    #[inline]
    pub(crate) fn unblock(&mut self) {
        self.ready |= self.blocked;
    }
    /// Whether every message that was started is completed.
    pub(crate) fn is_drained(&self) -> bool {
        self.una.index == self.next.index
    }
    #[inline]
    pub(crate) fn wants_transmit(&self) -> bool {
        self.ready || self.probe.is_due
    }
    /// When [`timeout`](Self::timeout) is due.
    #[inline]
    pub(crate) fn deadline_ns(&self) -> u64 {
        self.timeout_at.min(self.probe.at).min(self.rnr.until_ns())
    }
    /// Kind of the oldest request in flight.
    #[inline]
    pub(crate) fn una_kind(&self) -> Kind {
        self.inflight.slot(self.una.index).kind
    }
    /// First PSN of a message in flight.
    #[inline]
    pub(crate) fn first_psn(&self, index: u32) -> Psn {
        self.inflight.slot(index).psn()
    }
    /// The PSN and the cost behind a message in flight.
    #[inline]
    pub(crate) fn end_of(&self, index: u32) -> (Psn, u16) {
        let next = index.wrapping_add(1);
        if next == self.next.index {
            (self.next.psn, self.next.cost)
        } else {
            (self.first_psn(next), self.inflight.slot(next).cost)
        }
    }
    /// Bytes on the heap.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.inflight.heap_bytes() + self.unanswered.heap_bytes()
    }
    pub(crate) fn stats(&self) -> WindowStats {
        WindowStats {
            cwnd_bytes: self.window.units() * UNIT_BYTES,
            inflight_bytes: u32::from(self.cur.cost.wrapping_sub(self.una.cost)) * UNIT_BYTES,
            srtt_ns: self.rtt.srtt_ns,
            rttvar_ns: self.rtt.rttvar_ns,
        }
    }

    /// Sends up to `max` packets; returns how many, and why the oldest request failed if it did.
    #[inline]
    pub(crate) fn poll<H: Host, T: TxSink>(
        &mut self,
        now: Instant,
        path: &Path,
        may_start: bool,
        host: &mut H,
        tx: &mut T,
        mut max: usize,
    ) -> (usize, Option<WcStatus>) {
        let mut sent = 0;
        if self.rnr.is_waiting() {
            self.ready = false;
            return (0, None);
        }
        // Timers run from the oldest packet that asks. As long as none does, from the last one sent.
        let waits = self.asking.until.is_some();
        if self.probe.is_due && max > 0 {
            match self.probe(now, path, host, tx) {
                Ok(true) => sent += 1,
                Ok(false) => return (0, None),
                Err(status) => return (0, Some(status)),
            }
        }
        if may_start && self.ready {
            sent += self.run_small(now, path, host, tx, max - sent);
        }
        while sent < max && self.ready {
            match self.step(now, path, may_start, host, tx) {
                Step::Sent => sent += 1,
                Step::Done => max -= 1,
                Step::SinkFull => break,
                Step::Idle => (self.ready, self.blocked) = (false, false),
                Step::Blocked => (self.ready, self.blocked) = (false, true),
                Step::Fail(status) => return (sent, Some(status)),
            }
        }
        if sent > 0 && !waits {
            self.arm(now.as_nanos(), path);
        }
        // What is blocked, or drains, waits for an answer; where nothing asked for one, the probe does.
        if !self.ready
            && (self.blocked || !may_start)
            && self.asking.until.is_none()
            && self.una.psn != self.sent_psn
        {
            self.probe.is_due = true;
        }
        (sent, None)
    }

    /// Starts plain SENDs and WRITEs of one packet in a row, as long as nothing stands against it; what
    /// stops it is for [`step`](Self::step) to judge. Returns how many. Small messages come by the million,
    /// and this takes a third of what `step` takes for each.
    #[inline]
    fn run_small<H: Host, T: TxSink>(
        &mut self,
        now: Instant,
        path: &Path,
        host: &mut H,
        tx: &mut T,
        max: usize,
    ) -> usize {
        if self.cur.index != self.next.index
            || self.sent_psn != self.cur.psn
            || path.variant != Variant::Plain
        {
            return 0;
        }
        let (posted, units) = (host.sq_posted(), self.window.units());
        let mut sent = 0;
        while sent < max && self.next.index != posted {
            let request = host.send_request(self.next.index);
            let remote = request.op.plain_write();
            if remote.is_none() && !request.op.is_plain_send() {
                break;
            }
            let kind = if remote.is_some() { Kind::Write } else { Kind::Send };
            let extent = Extent { packets: 1, cost: packet_cost(request.len) };
            let current = Current { request, kind, packets: 1 };
            if request.len > path.mtu || !self.fits(extent, units) || !self.may_start(&current) {
                break;
            }
            let ask = self.asks(&current, extent);
            let mut flags = if ask { BthFlags::ACK_REQ } else { BthFlags::empty() };
            if kind == Kind::Send && request.flags.contains(SendFlags::SOLICITED) {
                flags |= BthFlags::SOLICITED;
            }
            let (op, ext) = match remote {
                None => (PacketOp::SendOnly, Ext::none()),
                Some(remote) => (PacketOp::WriteOnly, Ext::one(&reth(remote, request.len))),
            };
            let bth = path.bth(op, flags, pad(request.len as usize), self.next.psn);
            if !matches!(send_packet((self.next.index, 0, request.len, true), &bth, &ext, host, tx), Ok(true))
            {
                break;
            }
            if ask {
                self.asked_at(self.next.psn.add(1), now);
            }
            self.start(&current, extent.cost, path);
            (self.cur.psn, self.cur.cost) = (self.next.psn, self.next.cost);
            sent += 1;
        }
        (self.cur.index, self.sent_psn) = (self.next.index, self.cur.psn);
        if self.next.index == posted {
            (self.ready, self.blocked) = (false, false);
        }
        sent
    }

    /// Whether window and PSNs have room for more.
    #[inline]
    fn fits(&self, Extent { packets, cost }: Extent, units: u32) -> bool {
        let inflight = u32::from(self.cur.cost.wrapping_sub(self.una.cost));
        (inflight == 0 || !self.refused && inflight + u32::from(cost) <= units)
            && span(self.una.psn, self.cur.psn) + packets <= MAX_OUTSTANDING
    }

    /// The packet that ends before `end`, sent for the first time, asks for an acknowledgement.
    #[inline]
    fn asked_at(&mut self, end: Psn, now: Instant) {
        self.asking.asked(end);
        if self.sample.is_none() {
            self.sample = Some((end.sub(1), now.as_nanos()));
        }
    }

    #[inline]
    fn step<H: Host, T: TxSink>(
        &mut self,
        now: Instant,
        path: &Path,
        may_start: bool,
        host: &mut H,
        tx: &mut T,
    ) -> Step {
        if let Some(ends) = self.resync {
            return self.step_resync(now, &ends, path, host, tx);
        }
        let current = match self.current {
            Some(c) => c,
            None => {
                if self.cur.index == self.next.index && self.cur.index == host.sq_posted() {
                    return Step::Idle;
                }
                let request = host.send_request(self.cur.index);
                let current =
                    Current { request, kind: Kind::of(&request.op), packets: path.packets(request.len) };
                // What one packet ends need not be kept.
                if current.packets > 1 {
                    self.current = Some(current);
                }
                current
            }
        };
        if current.kind == Kind::Local {
            return self.carry_out(may_start, host);
        }
        if self.cur.index == self.next.index {
            if !may_start
                || !self.may_start(&current)
                || path.variant == Variant::EndToEnd && !self.is_drained()
            {
                return Step::Blocked;
            }
            if let Err(status) =
                check(&current.request, (current.kind, current.packets > 1), self.cur.index, path, host)
            {
                return self.local_failure(status);
            }
        }
        let mut extent = extent(&current, self.cur_packet, path);
        if extent.packets > 1 && self.probe.alone == Some(self.cur.psn) {
            // The responder may have carried out the probe in place of the READ, and repeats no more than that.
            extent = Extent { packets: 1, cost: path.full_cost };
        }
        let Extent { packets, cost } = extent;
        if !self.fits(extent, self.window.units())
            || (current.kind.is_answered() && self.unanswered.len() >= max_unanswered(path))
        {
            return Step::Blocked;
        }
        let ask = self.asks(&current, extent);
        if self.cur.index == self.next.index {
            self.start(&current, cost, path);
        }
        match emit(&current, self.cur.index, self.cur_packet, packets, self.cur.psn, ask, path, host, tx) {
            Ok(true) => {
                self.sent(now, &current, extent, ask, host);
                Step::Sent
            }
            Ok(false) => Step::SinkFull,
            Err(status) => self.local_failure(status),
        }
    }

    /// Whether the packets at the cursor ask for an acknowledgement. What ends a signalled request does, or
    /// one of several packets; so does what else would leave the requester waiting: for its queue, its
    /// window, credits, or the end of what is sent once more. Unsignalled small messages share the
    /// acknowledgement of a later one: the peer need not send one for each.
    #[inline]
    fn asks(&mut self, current: &Current, Extent { packets, cost }: Extent) -> bool {
        self.asking.packets += packets;
        self.asking.cost += u32::from(cost);
        let ends = self.cur_packet + packets == current.packets;
        let takes_last_credit = || current.kind.consumes_recv() && !self.credits.are_more_than(1);
        ends && (current.packets > 1
            || current.request.flags.contains(SendFlags::SIGNALED)
            || takes_last_credit())
            || self.asking.packets
                >= if current.packets > 1 { MAX_UNASKED_PACKETS } else { self.asking.max_packets }
            || self.asking.cost * 4 >= self.window.units()
            || self.cur.psn.add(packets) == self.sent_psn
            || self.refused
    }

    /// Carries out the next request, of which nothing is sent, once all before it are completed.
    #[cold]
    fn carry_out<H: Host>(&mut self, may_start: bool, host: &mut H) -> Step {
        if !may_start || !self.is_drained() {
            return Step::Blocked;
        }
        if let Err(status) = host.carry_out(self.next.index) {
            return Step::Fail(status);
        }
        host.complete_send(self.next.index, WcStatus::Success, 0);
        self.next.index = self.next.index.wrapping_add(1);
        (self.una.index, self.cur.index) = (self.next.index, self.next.index);
        Step::Done
    }

    /// Fails the request at the cursor, once all before it are completed.
    #[cold]
    fn local_failure(&self, status: WcStatus) -> Step {
        if self.una.index == self.cur.index { Step::Fail(status) } else { Step::Blocked }
    }

    /// Whether the rules between messages let the next one start.
    #[inline]
    fn may_start(&mut self, current: &Current) -> bool {
        let is_alone = self.una.psn == self.cur.psn;
        may_begin(current.request.flags, current.kind, self.unanswered.len(), &self.credits, is_alone)
            && self.inflight.make_room(self.una.index, self.next.index.wrapping_sub(self.una.index))
    }

    /// Gives the message at the cursor its PSNs. `cost` is that of what is sent first of it.
    #[inline]
    fn start(&mut self, current: &Current, cost: u16, path: &Path) {
        self.inflight.put(self.next.index, self.next.psn, current.kind, self.next.cost);
        self.next.index = self.next.index.wrapping_add(1);
        self.next.psn = self.next.psn.add(current.packets);
        let whole = match current.packets {
            1 => cost,
            n => {
                let last = current.request.len - (n - 1) * path.mtu;
                path.full_cost.wrapping_mul((n - 1) as u16).wrapping_add(packet_cost(last))
            }
        };
        self.next.cost = self.next.cost.wrapping_add(whole);
        self.credits.take(current.kind);
    }

    /// A packet at the cursor left: moves the cursor on.
    #[inline]
    fn sent<H: Host>(
        &mut self,
        now: Instant,
        current: &Current,
        Extent { packets, cost }: Extent,
        asked: bool,
        host: &mut H,
    ) {
        let now_ns = now.as_nanos();
        let psn = self.cur.psn;
        self.cur.psn = psn.add(packets);
        self.cur_packet += packets;
        self.cur.cost = self.cur.cost.wrapping_add(cost);
        if current.kind.is_answered() {
            self.unanswered.push(self.cur.psn);
        }
        let ends = self.cur_packet == current.packets;
        // An answer asks for none: it is one.
        let asked = asked || current.kind.is_answered();
        if asked {
            self.asking.asked(self.cur.psn);
        }
        if span(self.una.psn, self.cur.psn) > span(self.una.psn, self.sent_psn) {
            self.sent_psn = self.cur.psn;
            if self.sample.is_none() && asked {
                self.sample = Some((psn, now_ns));
            }
        } else {
            host.count(Count::Retransmitted);
        }
        if ends {
            self.cur.index = self.cur.index.wrapping_add(1);
            self.cur_packet = 0;
            if current.packets > 1 {
                self.current = None;
            }
        }
    }

    /// Ends the oldest request, which is alone, with `status`, and nothing else (RD). What the peer has of it is aborted
    /// there by a RESYNC, before the next request is started.
    pub(crate) fn abandon<H: Host>(&mut self, status: WcStatus, path: &Path, host: &mut H) {
        let begun = !self.is_drained() && self.sent_psn != self.first_psn(self.una.index);
        let ends = host.rd_ends(self.una.index);
        host.complete_send(self.una.index, status, 0);
        self.una.index = self.una.index.wrapping_add(1);
        self.next.index = self.una.index;
        self.rest();
        self.unanswered.clear();
        (self.sample, self.probe.sent, self.probe.alone) = (None, None, None);
        self.asking.begin();
        self.refused = false;
        self.retries_left = path.retry_cnt;
        self.rnr.progressed();
        if begun {
            self.resync = Some(ends);
            self.inflight.put(self.next.index, self.next.psn, Kind::Resync, self.next.cost);
            self.next.index = self.next.index.wrapping_add(1);
            self.next.psn = self.next.psn.add(1);
            self.next.cost = self.next.cost.wrapping_add(packet_cost(0));
        }
        self.ready = true;
    }
    /// Goes on with the requests from `index` on; none is under way (RD).
    pub(crate) fn serve_from(&mut self, index: u32) {
        assert!(self.is_drained(), "one message at a time");
        (self.una.index, self.next.index, self.cur.index) = (index, index, index);
        self.ready = true;
    }
    /// The peer has answered the RESYNC.
    #[cold]
    pub(crate) fn resynchronized(&mut self) {
        self.resync = None;
        (self.next.index, self.cur.index, self.cur_packet) = (self.una.index, self.una.index, 0);
    }
    #[cold]
    fn step_resync<H: Host, T: TxSink>(
        &mut self,
        now: Instant,
        ends: &RdEnds,
        path: &Path,
        host: &mut H,
        tx: &mut T,
    ) -> Step {
        if self.cur.index == self.next.index {
            return Step::Blocked;
        }
        if !send_resync(ends, self.cur.psn, path, tx) {
            return Step::SinkFull;
        }
        let nothing =
            SendRequest { op: FlatOp::new(&SendOp::Send), flags: SendFlags::empty(), len: 0, dest: None };
        let current = Current { request: nothing, kind: Kind::Resync, packets: 1 };
        self.sent(now, &current, Extent { packets: 1, cost: packet_cost(0) }, true, host);
        Step::Sent
    }

    /// Completes the oldest request with `status` (unless there is none) and all others as flushed.
    pub(crate) fn flush<H: Host>(&mut self, status: WcStatus, host: &mut H) {
        self.una.index = flush(self.una.index, status, host);
        self.next.index = self.una.index;
        self.resync = None;
        self.rest();
    }
    /// Nothing is in flight any more. What was sent is not sent again.
    fn rest(&mut self) {
        self.next.psn = self.sent_psn;
        (self.una.psn, self.una.cost) = (self.sent_psn, self.next.cost);
        self.cursor_to_una();
        self.disarm();
        self.rnr.stop();
        (self.ready, self.blocked) = (false, false);
    }
}

/// Sends a RESYNC, which asks for an acknowledgement. `false`: the sink is full.
fn send_resync<T: TxSink>(ends: &RdEnds, psn: Psn, path: &Path, tx: &mut T) -> bool {
    let (to, ext) = path.datagram_head(ends);
    let bth = path.bth_to(to, PacketOp::Resync, BthFlags::ACK_REQ, 0, psn);
    let sent = reserve_packet(tx, None, &bth, &ext, 0).is_some();
    if sent {
        tx.commit();
    }
    sent
}

/// Completes the requests from `index` on, the first with `status` and the others as flushed; returns the index behind
/// them.
pub(crate) fn flush<H: Host>(mut index: u32, mut status: WcStatus, host: &mut H) -> u32 {
    let posted = host.sq_posted();
    while index != posted {
        host.complete_send(index, status, 0);
        index = index.wrapping_add(1);
        status = WcStatus::WrFlushed;
    }
    posted
}
