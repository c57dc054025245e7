//! The responder of a reliable connection: it carries requests out in the order of their PSNs, answers
//! what comes twice without doing it twice, and refuses what the rules forbid.
//!
//! READ requests and atomics wait in a ring until their responses have left, in order; no
//! acknowledgement or NAK passes them.

use alloc::boxed::Box;
use alloc::vec;

use hca_core::wire::{AtomicAckEth, Be64, BthFlags, NakCode, Packet, PacketOp, Syndrome};
use hca_core::{Access, MAX_MESSAGE_BYTES, Psn, Rkey, WcStatus};

use crate::build::{Ext, pad, reserve_packet};
use crate::connection::{Path, aeth};
use crate::inbound::{Fault, Inbound, is_send_or_write, recv_status};
use crate::{AckOwed, AtomicOp, Count, Host, QpEvent, TxSink};

/// A request that puts the queue pair in error. The NAK is on its way already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fatal {
    /// How the held receive request ends, if the fault is its own.
    pub(crate) recv: Option<WcStatus>,
    /// What the program is told.
    pub(crate) event: Option<QpEvent>,
}

impl Fatal {
    /// The end of a connection by this NAK.
    #[cold]
    pub(crate) fn new<H: Host>(code: NakCode, recv: Option<WcStatus>, host: &mut H) -> Self {
        let event = match code {
            NakCode::RemoteAccess => {
                host.count(Count::NakAccess);
                Some(QpEvent::AccessError)
            }
            NakCode::RemoteOperational => {
                host.count(Count::NakOperational);
                None
            }
            _ => {
                host.count(Count::NakInvalid);
                Some(QpEvent::RequestError)
            }
        };
        // What a receive completion tells needs no event.
        Self { recv, event: if recv.is_some() { None } else { event } }
    }
}

/// What was sent, or waits to be sent, instead of an acknowledgement, until the expected packet comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    No,
    /// A packet is missing; said once.
    Sequence,
    /// There was no receive request.
    NotReady,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Read { rkey: Rkey, va: u64, len: u32, sent: u32 },
    Atomic { original: u64 },
}

/// A READ or atomic whose response has not left yet.
#[derive(Clone, Copy, Debug)]
struct Response {
    psn: Psn,
    msn: u32,
    /// Asked for again.
    duplicate: bool,
    answer: Answer,
}

const NO_RESPONSE: Response =
    Response { psn: Psn::new(0), msn: 0, duplicate: false, answer: Answer::Atomic { original: 0 } };

/// Responses in the order in which they leave.
#[derive(Debug)]
struct Responses {
    slots: Box<[Response]>,
    head: usize,
    len: usize,
    /// Those that are no duplicates.
    fresh: usize,
}

impl Responses {
    fn new(max: u8) -> Self {
        // As many duplicates as first ones, so that neither keeps the other out.
        Self { slots: vec![NO_RESPONSE; 2 * usize::from(max)].into_boxed_slice(), head: 0, len: 0, fresh: 0 }
    }
    fn at(&self, i: usize) -> usize {
        (self.head + i) % self.slots.len()
    }
    fn push(&mut self, response: Response) -> bool {
        if self.len == self.slots.len() {
            return false;
        }
        let at = self.at(self.len);
        self.slots[at] = response;
        self.len += 1;
        self.fresh += usize::from(!response.duplicate);
        true
    }
    fn front(&self) -> Option<Response> {
        (self.len > 0).then(|| self.slots[self.head])
    }
    fn front_mut(&mut self) -> &mut Response {
        &mut self.slots[self.head]
    }
    fn pop(&mut self) {
        self.fresh -= usize::from(!self.slots[self.head].duplicate);
        self.head = self.at(1);
        self.len -= 1;
    }
    /// Drops those from `psn` on: the requester has gone back and asks for them again.
    fn truncate(&mut self, psn: Psn) {
        while self.len > 0 {
            let last = &self.slots[self.at(self.len - 1)];
            if last.psn.is_before(psn) {
                break;
            }
            self.fresh -= usize::from(!last.duplicate);
            self.len -= 1;
        }
    }
    fn clear(&mut self) {
        (self.len, self.fresh) = (0, 0);
    }
}

/// Results of the latest atomics, for those that come again.
#[derive(Debug)]
struct Replay {
    slots: Box<[Option<(Psn, u64)>]>,
    next: usize,
}

impl Replay {
    fn new(max: u8) -> Self {
        Self { slots: vec![None; usize::from(max)].into_boxed_slice(), next: 0 }
    }
    fn put(&mut self, psn: Psn, original: u64) {
        self.slots[self.next] = Some((psn, original));
        self.next = (self.next + 1) % self.slots.len();
    }
    fn find(&self, psn: Psn) -> Option<u64> {
        self.slots.iter().flatten().find(|e| e.0 == psn).map(|e| e.1)
    }
}

/// The responder of one connection.
#[derive(Debug)]
pub(crate) struct Responder {
    /// The PSN that comes next.
    expected: Psn,
    /// Messages completed.
    msn: u32,
    inbound: Inbound,
    refused: Refused,
    /// A NAK that waits for the responses before it.
    nak: Option<(Psn, Syndrome)>,
    /// The last SEND or WRITE packet that was carried out, and whether somebody is to be told.
    ack_psn: Psn,
    ack: bool,
    delivered: bool,
    responses: Responses,
    replay: Replay,
    max_dest_rd_atomic: u8,
}

impl Responder {
    pub(crate) fn new(psn: Psn, max_dest_rd_atomic: u8) -> Self {
        Self {
            expected: psn,
            msn: 0,
            inbound: Inbound::Idle,
            refused: Refused::No,
            nak: None,
            ack_psn: psn.sub(1),
            ack: false,
            delivered: false,
            responses: Responses::new(max_dest_rd_atomic),
            replay: Replay::new(max_dest_rd_atomic),
            max_dest_rd_atomic,
        }
    }
    /// The limit on READs and atomics changed; what waits keeps its place only if there is none.
    pub(crate) fn set_max_dest_rd_atomic(&mut self, max: u8) {
        if max != self.max_dest_rd_atomic && self.responses.len == 0 {
            self.max_dest_rd_atomic = max;
            self.responses = Responses::new(max);
            self.replay = Replay::new(max);
        }
    }
    /// Bytes on the heap.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.responses.slots) + size_of_val(&*self.replay.slots)
    }
    /// Whether responses or NAKs wait.
    #[inline]
    pub(crate) fn wants_transmit(&self) -> bool {
        self.responses.len > 0 || self.nak.is_some()
    }
    /// The acknowledgement that may leave now.
    #[inline]
    pub(crate) fn ack_owed(&self) -> Option<AckOwed> {
        (self.ack && !self.wants_transmit()).then_some(AckOwed { delivered: self.delivered })
    }
    /// Nothing more is answered.
    pub(crate) fn stop(&mut self) {
        self.responses.clear();
        self.nak = None;
        self.inbound = Inbound::Idle;
        self.ack = false;
    }

    /// Takes a request packet.
    #[inline]
    pub(crate) fn handle_request<H: Host>(
        &mut self,
        path: &Path,
        op: PacketOp,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Fatal> {
        let psn = packet.bth().psn();
        if psn != self.expected {
            self.handle_unexpected(path, op, psn, packet, host);
            return Ok(());
        }
        if self.refused != Refused::No {
            self.refused = Refused::No;
            self.nak = None;
        }
        if is_send_or_write(op) {
            match self.inbound.accept(op, packet, path.mtu, path.access, host) {
                Ok(accepted) => {
                    self.expected = psn.add(1);
                    self.ack_psn = psn;
                    self.ack |= packet.bth().ack_req();
                    self.msn = self.msn.wrapping_add(accepted.done.into());
                    self.delivered |= accepted.delivered;
                    Ok(())
                }
                Err(fault) => self.handle_fault(fault, psn, path, host),
            }
        } else {
            self.handle_read_or_atomic(path, op, psn, packet, host)
        }
    }

    #[cold]
    fn handle_fault<H: Host>(
        &mut self,
        fault: Fault,
        psn: Psn,
        path: &Path,
        host: &mut H,
    ) -> Result<(), Fatal> {
        let code = match fault {
            Fault::NoRecv => {
                host.count(Count::RnrNakSent);
                self.refused = Refused::NotReady;
                self.nak = Some((psn, Syndrome::RnrNak(path.rnr_timer)));
                return Ok(());
            }
            Fault::Invalid | Fault::TooLong => NakCode::InvalidRequest,
            Fault::Access | Fault::Invalidate => NakCode::RemoteAccess,
            Fault::Placement(_) => NakCode::RemoteOperational,
        };
        let recv = recv_status(fault);
        Err(self.refuse(psn, code, recv, host))
    }

    /// Sends a NAK that ends the connection.
    #[cold]
    fn refuse<H: Host>(&mut self, psn: Psn, code: NakCode, recv: Option<WcStatus>, host: &mut H) -> Fatal {
        self.nak = Some((psn, Syndrome::Nak(code)));
        Fatal::new(code, recv, host)
    }

    fn handle_read_or_atomic<H: Host>(
        &mut self,
        path: &Path,
        op: PacketOp,
        psn: Psn,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Fatal> {
        if self.inbound != Inbound::Idle || self.responses.fresh >= usize::from(self.max_dest_rd_atomic) {
            return Err(self.refuse(psn, NakCode::InvalidRequest, None, host));
        }
        let done = match op {
            PacketOp::ReadRequest => read_request(path, packet, host).map(|r| (r, path.packets(r.len))),
            PacketOp::CompareSwap | PacketOp::FetchAdd => match atomic_request(path, op, packet, host) {
                Ok(original) => return self.atomic_done(psn, original),
                Err(code) => Err(code),
            },
            _ => Err(NakCode::InvalidRequest),
        };
        let (read, packets) = match done {
            Ok(done) => done,
            Err(code) => return Err(self.refuse(psn, code, None, host)),
        };
        self.expected = psn.add(packets);
        self.msn = self.msn.wrapping_add(1);
        self.queue(psn, read.answer(), false);
        Ok(())
    }

    fn atomic_done(&mut self, psn: Psn, original: u64) -> Result<(), Fatal> {
        self.expected = psn.add(1);
        self.msn = self.msn.wrapping_add(1);
        self.replay.put(psn, original);
        self.queue(psn, Answer::Atomic { original }, false);
        Ok(())
    }

    /// Appends a response. A first one answers all requests before it as well.
    fn queue(&mut self, psn: Psn, answer: Answer, duplicate: bool) -> bool {
        if !duplicate {
            self.ack = false;
        }
        self.responses.push(Response { psn, msn: self.msn, duplicate, answer })
    }

    #[cold]
    fn handle_unexpected<H: Host>(
        &mut self,
        path: &Path,
        op: PacketOp,
        psn: Psn,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        if !psn.is_before(self.expected) {
            if self.refused == Refused::No {
                self.refused = Refused::Sequence;
                host.count(Count::NakSequence);
                self.nak = Some((self.expected, Syndrome::Nak(NakCode::PsnSequence)));
            } else {
                host.count(Count::DroppedPsn);
            }
            return;
        }
        let answered = match op {
            PacketOp::ReadRequest => self.duplicate_read(path, psn, packet, host),
            PacketOp::CompareSwap | PacketOp::FetchAdd => match self.replay.find(psn) {
                Some(original) => {
                    self.responses.truncate(psn);
                    self.queue(psn, Answer::Atomic { original }, true)
                }
                None => false,
            },
            op if is_send_or_write(op) => {
                self.ack = true;
                true
            }
            _ => false,
        };
        host.count(if answered { Count::Duplicate } else { Count::DroppedInvalid });
    }

    /// A READ that came before, or a part of one: carried out again. One that is not allowed (any more) may
    /// be a late copy of a READ long done, so it is dropped and ends nothing.
    fn duplicate_read<H: Host>(&mut self, path: &Path, psn: Psn, packet: &Packet<'_>, host: &mut H) -> bool {
        let Ok(read) = read_request(path, packet, host) else { return false };
        if self.expected.is_before(psn.add(path.packets(read.len))) {
            return false;
        }
        self.responses.truncate(psn);
        self.queue(psn, read.answer(), true)
    }

    /// Sends responses, and the NAK behind them, up to `max` packets. Stops early when the sink is full.
    pub(crate) fn poll<H: Host, T: TxSink>(
        &mut self,
        path: &Path,
        host: &mut H,
        tx: &mut T,
        max: usize,
    ) -> (usize, Result<bool, Fatal>) {
        let mut sent = 0;
        while sent < max {
            let Some(response) = self.responses.front() else { break };
            let step = match response.answer {
                Answer::Atomic { original } => self.send_atomic(path, &response, original, host, tx),
                Answer::Read { rkey, va, len, sent } => {
                    let read = Read { rkey, va, len };
                    self.send_read(path, &response, read, sent, host, tx)
                }
            };
            match step {
                Ok(true) => sent += 1,
                Ok(false) => return (sent, Ok(false)),
                Err(fatal) => return (sent, Err(fatal)),
            }
        }
        if sent < max
            && self.responses.len == 0
            && let Some((psn, syndrome)) = self.nak
        {
            if !self.send_ack(path, psn, syndrome, tx) {
                return (sent, Ok(false));
            }
            self.nak = None;
            sent += 1;
        }
        (sent, Ok(true))
    }

    fn send_atomic<H: Host, T: TxSink>(
        &mut self,
        path: &Path,
        response: &Response,
        original: u64,
        host: &mut H,
        tx: &mut T,
    ) -> Result<bool, Fatal> {
        let mut ext = Ext::one(&aeth(ack_syndrome(host), response.msn));
        ext.push(&AtomicAckEth { original: Be64::new(original) });
        let bth = path.bth(PacketOp::AtomicAcknowledge, BthFlags::empty(), 0, response.psn);
        if reserve_packet(tx, None, &bth, &ext, 0).is_none() {
            return Ok(false);
        }
        tx.commit();
        self.responses.pop();
        Ok(true)
    }

    fn send_read<H: Host, T: TxSink>(
        &mut self,
        path: &Path,
        response: &Response,
        read: Read,
        sent: u32,
        host: &mut H,
        tx: &mut T,
    ) -> Result<bool, Fatal> {
        use PacketOp as P;
        let offset = sent * path.mtu;
        let len = (read.len - offset).min(path.mtu);
        let last = offset + len == read.len;
        let op = match (sent == 0, last) {
            (true, true) => P::ReadResponseOnly,
            (true, false) => P::ReadResponseFirst,
            (false, false) => P::ReadResponseMiddle,
            (false, true) => P::ReadResponseLast,
        };
        let ext = if op == P::ReadResponseMiddle {
            Ext::none()
        } else {
            Ext::one(&aeth(ack_syndrome(host), response.msn))
        };
        let psn = response.psn.add(sent);
        let bth = path.bth(op, BthFlags::empty(), pad(len as usize), psn);
        let Some(body) = reserve_packet(tx, None, &bth, &ext, len as usize) else { return Ok(false) };
        if len > 0 && host.read_remote(read.rkey, read.va.wrapping_add(offset.into()), body).is_err() {
            if response.duplicate {
                self.responses.pop();
                host.count(Count::DroppedInvalid);
                return Ok(true);
            }
            self.responses.clear();
            return Err(self.refuse(psn, NakCode::RemoteAccess, None, host));
        }
        tx.commit();
        if last {
            self.responses.pop();
        } else if let Answer::Read { sent, .. } = &mut self.responses.front_mut().answer {
            *sent += 1;
        }
        Ok(true)
    }

    /// Sends one acknowledgement for all that was carried out.
    #[inline]
    pub(crate) fn poll_ack<H: Host, T: TxSink>(&mut self, path: &Path, host: &mut H, tx: &mut T) -> bool {
        if self.ack_owed().is_none() {
            return false;
        }
        let syndrome = ack_syndrome(host);
        self.send_ack(path, self.ack_psn, syndrome, tx)
    }

    #[inline]
    fn send_ack<T: TxSink>(&mut self, path: &Path, psn: Psn, syndrome: Syndrome, tx: &mut T) -> bool {
        let ext = Ext::one(&aeth(syndrome, self.msn));
        let bth = path.bth(PacketOp::Acknowledge, BthFlags::empty(), 0, psn);
        if reserve_packet(tx, None, &bth, &ext, 0).is_none() {
            return false;
        }
        tx.commit();
        // A NAK acknowledges all before it as well.
        (self.ack, self.delivered) = (false, false);
        true
    }
}

#[inline]
fn ack_syndrome<H: Host>(host: &H) -> Syndrome {
    Syndrome::Ack(host.recv_credits().map(Syndrome::encode_credits))
}

/// What a READ request asks for.
#[derive(Clone, Copy, Debug)]
struct Read {
    rkey: Rkey,
    va: u64,
    len: u32,
}

impl Read {
    fn answer(self) -> Answer {
        Answer::Read { rkey: self.rkey, va: self.va, len: self.len, sent: 0 }
    }
}

fn read_request<H: Host>(path: &Path, packet: &Packet<'_>, host: &mut H) -> Result<Read, NakCode> {
    let reth = packet.reth().ok_or(NakCode::InvalidRequest)?;
    let read = Read { rkey: Rkey::new(reth.rkey.get()), va: reth.va.get(), len: reth.dma_len.get() };
    if u64::from(read.len) > MAX_MESSAGE_BYTES {
        return Err(NakCode::InvalidRequest);
    }
    if !path.access.contains(Access::REMOTE_READ) {
        return Err(NakCode::RemoteAccess);
    }
    // A READ of no bytes touches nothing and needs no valid key.
    if read.len > 0 {
        host.check_remote(read.rkey, read.va, read.len.into(), Access::REMOTE_READ)
            .map_err(|_| NakCode::RemoteAccess)?;
    }
    Ok(read)
}

fn atomic_request<H: Host>(
    path: &Path,
    op: PacketOp,
    packet: &Packet<'_>,
    host: &mut H,
) -> Result<u64, NakCode> {
    let eth = packet.atomic().ok_or(NakCode::InvalidRequest)?;
    let va = eth.va.get();
    if !va.is_multiple_of(8) {
        return Err(NakCode::InvalidRequest);
    }
    if !path.access.contains(Access::REMOTE_ATOMIC) {
        return Err(NakCode::RemoteAccess);
    }
    let swap_add = eth.swap_add.get();
    let atomic = if op == PacketOp::FetchAdd {
        AtomicOp::FetchAdd { add: swap_add }
    } else {
        AtomicOp::CompareSwap { compare: eth.compare.get(), swap: swap_add }
    };
    host.atomic_remote(Rkey::new(eth.rkey.get()), va, atomic).map_err(|_| NakCode::RemoteAccess)
}
