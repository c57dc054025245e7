//! The responder of a reliable connection: it executes requests in the order of their PSNs, answers duplicate requests
//! without executing them again, and refuses requests that the rules forbid.
//!
//! READ requests, atomics, ATOMIC WRITEs and FLUSHes wait in a ring until their responses have left, in order; no
//! acknowledgement or NAK passes them.

use hca_core::wire::{AtomicAckEth, Be64, BthFlags, NakCode, Packet, PacketOp, Syndrome};
use hca_core::{Access, MAX_MESSAGE_BYTES, Psn, Qkey, Qpn, RemoteAddr, Rkey, Srqn, WcStatus};

use crate::answered;
use crate::build::{Ext, pad, reserve_packet};
use crate::connection::{Path, Variant, aeth};
use crate::executed::{Deed, Executed, History, Named, Read, Repeat};
use crate::inbound::{Fault, Inbound, Piece, failed_recv, is_send_or_write, recv_status};
use crate::{AckOwed, AtomicOp, Count, Host, QpEvent, TxSink};

/// Repeated READs and atomics of one connection that were never asked for the first time, before it ends. A healthy
/// requester sends none; whoever guesses keys has so many guesses, none of which tells anything.
const MAX_STRANGE_REPEATS: u8 = 64;

/// A request that puts the queue pair in error. The NAK is on its way already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fatal {
    /// How the held receive request ends, if the fault is its own.
    pub(crate) recv: Option<WcStatus>,
    /// The event for the program.
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
    /// The message was refused, and all that follows is until a RESYNC (RD).
    Message(NakCode),
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
    executed: History,
    max_dest_rd_atomic: u8,
    /// What the last request named.
    named: Named,
    /// Repeated requests that were never made before.
    strange: u8,
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
            executed: History::new(max_dest_rd_atomic),
            max_dest_rd_atomic,
            named: Named::default(),
            strange: 0,
        }
    }
    /// The limit on READs and atomics changed. It holds from the next one on; what was carried out is remembered.
    pub(crate) fn set_max_dest_rd_atomic(&mut self, max: u8) {
        self.max_dest_rd_atomic = max;
        self.executed.grow(max);
    }
    /// Bytes on the heap.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.executed.heap_bytes()
    }
    /// Whether responses or NAKs wait.
    #[inline]
    pub(crate) fn wants_transmit(&self) -> bool {
        self.executed.is_pending() || self.nak.is_some()
    }
    /// The acknowledgement that may leave now.
    #[inline]
    pub(crate) fn ack_owed(&self) -> Option<AckOwed> {
        (self.ack && !self.wants_transmit()).then_some(AckOwed { delivered: self.delivered })
    }
    /// Nothing more is answered.
    pub(crate) fn stop(&mut self) {
        self.executed.clear();
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
            return self.handle_unexpected(path, op, psn, packet, host);
        }
        if self.refused != Refused::No {
            if let Refused::Message(code) = self.refused
                && op != PacketOp::Resync
            {
                host.count(Count::Duplicate);
                self.nak = Some((psn, Syndrome::Nak(code)));
                return Ok(());
            }
            self.refused = Refused::No;
            self.nak = None;
        }
        if path.variant != Variant::Plain {
            if op == PacketOp::Resync {
                self.resync(psn, packet, host);
                return Ok(());
            }
            self.enter(path, psn, packet, host)?;
        }
        if is_send_or_write(op) {
            let accepted = match Piece::of_packet(op, packet, path.mtu) {
                Ok(piece) => self.inbound.accept(&piece, path.access, host),
                Err(fault) => Err(fault),
            };
            match accepted {
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

    /// Has the request go to the queue that it names.
    #[inline(never)]
    fn enter<H: Host>(
        &mut self,
        path: &Path,
        psn: Psn,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Fatal> {
        match path.variant {
            Variant::Plain | Variant::Initiator => Ok(()),
            Variant::Target => self.enter_srq(psn, packet, host),
            Variant::EndToEnd => self.enter_queue_pair(psn, packet, host),
        }
    }
    /// Has the request go to the shared receive queue that it names. A queue that is unknown, or of another XRC domain,
    /// is refused like a wrong key: drivers report both as access errors of the queue pair (Linux's qedr).
    #[inline(never)]
    fn enter_srq<H: Host>(&mut self, psn: Psn, packet: &Packet<'_>, host: &mut H) -> Result<(), Fatal> {
        let named = named_srq(packet);
        if self.inbound != Inbound::Idle && named != self.named {
            return Err(self.refuse(psn, NakCode::InvalidRequest, None, host));
        }
        self.named = named;
        let srq = Srqn::new(named.to);
        host.enter_srq(srq).map_err(|_| self.refuse(psn, NakCode::RemoteAccess, None, host))
    }
    /// Has the request go to the queue pair that it is for.
    #[inline(never)]
    fn enter_queue_pair<H: Host>(
        &mut self,
        psn: Psn,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Fatal> {
        let named = named_queue_pairs(packet);
        let begun = self.inbound != Inbound::Idle;
        if begun && named != self.named {
            return Err(self.refuse(psn, NakCode::InvalidRequest, None, host));
        }
        self.named = named;
        let qkey = packet.deth().map(|deth| Qkey::new(deth.qkey.get()));
        let entered = host.enter_queue_pair(Qpn::new(named.to), qkey);
        entered.map_err(|_| self.refuse(psn, NakCode::InvalidRd, None, host))
    }

    /// Goes on behind what the peer has abandoned (RD).
    #[cold]
    fn resync<H: Host>(&mut self, psn: Psn, packet: &Packet<'_>, host: &mut H) {
        if psn.is_before(self.expected) {
            // The acknowledgement was lost.
            host.count(Count::Duplicate);
        } else {
            self.drop_inbound(WcStatus::RemoteAborted, host);
            self.named = named_queue_pairs(packet);
            self.executed.clear();
            (self.refused, self.nak) = (Refused::No, None);
            (self.expected, self.ack_psn) = (psn.add(1), psn);
        }
        self.ack = true;
    }
    /// Drops the message under way; its receive request completes with `status`.
    fn drop_inbound<H: Host>(&mut self, status: WcStatus, host: &mut H) {
        if let Inbound::Send { .. } = core::mem::take(&mut self.inbound) {
            host.complete_recv(&failed_recv(status));
        }
    }
    /// Refuses the rest of the message that was refused just now, and all that follows it until a RESYNC (RD). `recv`:
    /// how its receive request ends, if the fault is its own.
    pub(crate) fn refuse_message<H: Host>(&mut self, recv: Option<WcStatus>, host: &mut H) {
        if let Some((_, Syndrome::Nak(code))) = self.nak {
            self.refused = Refused::Message(code);
        }
        match recv {
            // It is held, if also no message is under way.
            Some(status) => {
                self.inbound = Inbound::Idle;
                host.complete_recv(&failed_recv(status));
            }
            None => self.drop_inbound(WcStatus::RemoteAborted, host),
        }
    }
    /// The queue pair that the message under way is for goes, or ends its requests: the rest is refused (RD).
    pub(crate) fn refuse_inbound<H: Host>(&mut self, host: &mut H) {
        if self.inbound != Inbound::Idle {
            host.count(Count::NakInvalid);
            self.nak = Some((self.expected, Syndrome::Nak(NakCode::InvalidRd)));
            self.drop_inbound(WcStatus::WrFlushed, host);
            self.refuse_message(None, host);
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
            fault => nak_code(fault),
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
        if self.inbound != Inbound::Idle || self.executed.fresh() >= usize::from(self.max_dest_rd_atomic) {
            return Err(self.refuse(psn, NakCode::InvalidRequest, None, host));
        }
        let done = match op {
            PacketOp::ReadRequest => requested(packet).and_then(|read| {
                let remote = RemoteAddr { addr: read.va, rkey: read.rkey };
                answered::read(path, (remote, read.len), host)?;
                Ok((Deed::Read(read), path.packets(read.len)))
            }),
            PacketOp::CompareSwap | PacketOp::FetchAdd => {
                atomic_request(path, op, packet, host).map(|original| (Deed::Atomic { original }, 1))
            }
            PacketOp::AtomicWrite | PacketOp::Flush => placed(path, packet, host).map(|()| (Deed::Placed, 1)),
            _ => Err(Fault::Invalid),
        };
        let (deed, packets) = match done {
            Ok(done) => done,
            Err(fault) => return Err(self.refuse(psn, nak_code(fault), None, host)),
        };
        self.expected = psn.add(packets);
        self.msn = self.msn.wrapping_add(1);
        // Its response answers all requests before it as well.
        self.ack = false;
        self.executed.push(psn, self.msn, (deed, self.named), packets);
        Ok(())
    }

    #[cold]
    fn handle_unexpected<H: Host>(
        &mut self,
        path: &Path,
        op: PacketOp,
        psn: Psn,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Fatal> {
        if op == PacketOp::Resync {
            self.resync(psn, packet, host);
            return Ok(());
        }
        if !psn.is_before(self.expected) {
            if self.refused == Refused::No {
                self.refused = Refused::Sequence;
                host.count(Count::NakSequence);
                self.nak = Some((self.expected, Syndrome::Nak(NakCode::PsnSequence)));
            } else {
                host.count(Count::DroppedPsn);
            }
            return Ok(());
        }
        let repeat = match op {
            PacketOp::ReadRequest => self.repeat_read(path, psn, packet),
            PacketOp::CompareSwap | PacketOp::FetchAdd => self.executed.done_again(psn, false, self.msn),
            PacketOp::AtomicWrite | PacketOp::Flush => self.executed.done_again(psn, true, self.msn),
            op if is_send_or_write(op) => {
                self.ack = true;
                Repeat::Answered
            }
            _ => Repeat::Unknown,
        };
        host.count(if repeat == Repeat::Answered { Count::Duplicate } else { Count::DroppedInvalid });
        if repeat != Repeat::Strange {
            return Ok(());
        }
        self.strange += 1;
        if self.strange < MAX_STRANGE_REPEATS {
            return Ok(());
        }
        Err(self.refuse(self.expected, NakCode::RemoteAccess, None, host))
    }

    /// A READ that came before, or a part of one: sent again as far as the key still allows it. It may be a late copy
    /// of a READ long done, so that it is allowed no more ends nothing.
    fn repeat_read(&mut self, path: &Path, psn: Psn, packet: &Packet<'_>) -> Repeat {
        match requested(packet) {
            Ok(read)
                if u64::from(read.len) <= MAX_MESSAGE_BYTES && path.access.contains(Access::REMOTE_READ) =>
            {
                let named = match path.variant {
                    Variant::Plain | Variant::Initiator => Named::default(),
                    Variant::Target => named_srq(packet),
                    Variant::EndToEnd => named_queue_pairs(packet),
                };
                let read = (read, named);
                self.executed.read_again(psn, read, path.packets(read.0.len), path.mtu, self.msn)
            }
            _ => Repeat::Unknown,
        }
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
            let Some(response) = self.executed.front() else { break };
            let step = match response.deed {
                Deed::Atomic { original } => self.send_atomic(path, &response, original, host, tx),
                Deed::Read(read) => self.send_read(path, &response, read, host, tx),
                Deed::Placed => self.send_read(path, &response, NO_BYTES, host, tx),
            };
            match step {
                Ok(true) => sent += 1,
                Ok(false) => return (sent, Ok(false)),
                Err(fatal) => return (sent, Err(fatal)),
            }
        }
        if sent < max
            && !self.executed.is_pending()
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
        response: &Executed,
        original: u64,
        host: &mut H,
        tx: &mut T,
    ) -> Result<bool, Fatal> {
        let (to, mut ext) = path.answer(response.named.from, aeth(ack_syndrome(host), response.msn));
        ext.push(&AtomicAckEth { original: Be64::new(original) });
        let bth = path.bth_to(to, PacketOp::AtomicAcknowledge, BthFlags::empty(), 0, response.psn);
        if reserve_packet(tx, None, &bth, &ext, 0).is_none() {
            return Ok(false);
        }
        tx.commit();
        self.executed.sent();
        Ok(true)
    }

    fn send_read<H: Host, T: TxSink>(
        &mut self,
        path: &Path,
        response: &Executed,
        read: Read,
        host: &mut H,
        tx: &mut T,
    ) -> Result<bool, Fatal> {
        use PacketOp as P;
        let offset = response.next * path.mtu;
        let len = (read.len - offset).min(path.mtu);
        let op = match (response.begins(), response.ends()) {
            (true, true) => P::ReadResponseOnly,
            (true, false) => P::ReadResponseFirst,
            (false, false) => P::ReadResponseMiddle,
            (false, true) => P::ReadResponseLast,
        };
        let asker = response.named.from;
        let (to, ext) = if op == P::ReadResponseMiddle {
            path.answer_alone(asker)
        } else {
            path.answer(asker, aeth(ack_syndrome(host), response.msn))
        };
        let psn = response.psn.add(response.next);
        let bth = path.bth_to(to, op, BthFlags::empty(), pad(len as usize), psn);
        let Some(body) = reserve_packet(tx, None, &bth, &ext, len as usize) else { return Ok(false) };
        let reached = path.variant == Variant::Plain || reach(path, response.named, host);
        let from = read.va.wrapping_add(offset.into());
        if len > 0 && !(reached && host.read_remote(read.rkey, from, body).is_ok()) {
            if !response.fresh {
                self.executed.leave_off();
                host.count(Count::DroppedInvalid);
                return Ok(true);
            }
            self.executed.clear();
            return Err(self.refuse(psn, NakCode::RemoteAccess, None, host));
        }
        tx.commit();
        self.executed.sent();
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
        // With headers of one length, where most are.
        let aeth = aeth(syndrome, self.msn);
        let sent = if path.variant == Variant::EndToEnd {
            send_empty(path.answer(self.named.from, aeth), path, psn, tx)
        } else {
            send_empty((path.dest_qpn, Ext::one(&aeth)), path, psn, tx)
        };
        if !sent {
            return false;
        }
        // A NAK acknowledges all before it as well.
        (self.ack, self.delivered) = (false, false);
        true
    }
}

#[inline]
fn ack_syndrome<H: Host>(host: &H) -> Syndrome {
    Syndrome::Ack(host.recv_credits().map(Syndrome::encode_credits))
}

/// The shared receive queue that a request of XRC names.
fn named_srq(packet: &Packet<'_>) -> Named {
    Named { to: packet.xrceth().map_or(0, |xrceth| xrceth.srqn.get()), from: 0 }
}
/// The queue pairs that a request of RD names.
fn named_queue_pairs(packet: &Packet<'_>) -> Named {
    let from = packet.deth().map_or(0, |deth| deth.src_qp.get());
    Named { to: packet.bth().dest_qp().raw(), from }
}
/// Has what follows go to the queue that a request named. `false`: it is gone.
#[inline(never)]
fn reach<H: Host>(path: &Path, named: Named, host: &mut H) -> bool {
    match path.variant {
        Variant::EndToEnd => host.enter_queue_pair(Qpn::new(named.to), None).is_ok(),
        _ => host.enter_srq(Srqn::new(named.to)).is_ok(),
    }
}

/// Sends an acknowledgement to this queue pair. `false`: the sink has no room.
#[inline(always)]
fn send_empty<T: TxSink>((to, ext): (Qpn, Ext), path: &Path, psn: Psn, tx: &mut T) -> bool {
    let bth = path.bth_to(to, PacketOp::Acknowledge, BthFlags::empty(), 0, psn);
    let sent = reserve_packet(tx, None, &bth, &ext, 0).is_some();
    if sent {
        tx.commit();
    }
    sent
}

/// The READ whose response is that of an ATOMIC WRITE or FLUSH.
const NO_BYTES: Read = Read { rkey: Rkey::new(0), va: 0, len: 0 };

/// The NAK for a fault other than a missing receive request.
pub(crate) fn nak_code(fault: Fault) -> NakCode {
    match fault {
        Fault::NoRecv | Fault::NotLent => unreachable!("the peer is to send the request again"),
        Fault::Invalid | Fault::TooLong => NakCode::InvalidRequest,
        Fault::Access | Fault::Invalidate => NakCode::RemoteAccess,
        Fault::Placement(_) => NakCode::RemoteOperational,
    }
}

/// Executes an ATOMIC WRITE, or a FLUSH, which has a header of its own.
fn placed<H: Host>(path: &Path, packet: &Packet<'_>, host: &mut H) -> Result<(), Fault> {
    let reth = packet.reth().ok_or(Fault::Invalid)?;
    let remote = RemoteAddr { addr: reth.va.get(), rkey: Rkey::new(reth.rkey.get()) };
    let what = (remote, reth.dma_len.get());
    match packet.feth() {
        Some(feth) => answered::flush(path, *feth, what, host),
        None => answered::atomic_write(path, what, packet.payload(), host),
    }
}

/// The range of a READ request, allowed or not.
fn requested(packet: &Packet<'_>) -> Result<Read, Fault> {
    let reth = packet.reth().ok_or(Fault::Invalid)?;
    Ok(Read { rkey: Rkey::new(reth.rkey.get()), va: reth.va.get(), len: reth.dma_len.get() })
}

fn atomic_request<H: Host>(
    path: &Path,
    op: PacketOp,
    packet: &Packet<'_>,
    host: &mut H,
) -> Result<u64, Fault> {
    let eth = packet.atomic().ok_or(Fault::Invalid)?;
    let swap_add = eth.swap_add.get();
    let atomic = if op == PacketOp::FetchAdd {
        AtomicOp::FetchAdd { add: swap_add }
    } else {
        AtomicOp::CompareSwap { compare: eth.compare.get(), swap: swap_add }
    };
    let remote = RemoteAddr { addr: eth.va.get(), rkey: Rkey::new(eth.rkey.get()) };
    answered::atomic(path, remote, atomic, host)
}
