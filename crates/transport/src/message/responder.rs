//! The responder: it executes the peer's requests on arrival, and reports their results.

use alloc::collections::VecDeque;

use hca_core::wire::{Feth, NakCode, Syndrome};
use hca_core::{Pkey, Psn, Qpn, RecvExtra, RemoteAddr, Rkey, Srqn, WcStatus};

use super::{
    BY_VALUE, FIRST, Head, LAST, LENT, LIMITED, LOAN_MIN, MAX_DATA, MAX_LOAN, NOT_LENT, Op, SOLICITED,
    loan_bytes, put_loan, reserve, take_loan, take_remote,
};
use crate::answered;
use crate::connection::{Path, Variant};
use crate::inbound::{Accepted, Body, Fault, Inbound, Piece, recv_status};
use crate::responder::{Fatal, nak_code};
use crate::{AckOwed, AtomicOp, Count, Host, Loan, TxSink};

/// A READ, atomic, ATOMIC WRITE or FLUSH whose response has not left.
#[derive(Clone, Copy, Debug)]
struct Response {
    number: u16,
    /// The shared receive queue that it named (XRC).
    srq: Srqn,
    answer: Answer,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Read { remote: RemoteAddr, len: u32, sent: u32, lent: Lent },
    Atomic { original: u64 },
}

/// The answer to an ATOMIC WRITE or FLUSH.
const NO_BYTES: Answer =
    Answer::Read { remote: RemoteAddr { addr: 0, rkey: Rkey::new(0) }, len: 0, sent: 0, lent: Lent::Not };

/// The state of loans in a READ's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lent {
    /// Nothing was so far.
    Not,
    /// Some was: the requester tells what became of it, and until then the response stands.
    Some,
    /// The requester could not fetch it.
    Never,
}

impl Response {
    /// All of it has left, and what was lent is yet to be fetched.
    fn is_awaited(&self) -> bool {
        matches!(self.answer, Answer::Read { len, sent, lent: Lent::Some, .. } if sent == len)
    }
}

/// The responder of one connection.
#[derive(Debug)]
pub(crate) struct Responder {
    /// The number of the request that comes next, or is under way.
    expected: u16,
    inbound: Inbound,
    /// Its receive request was missing; until it comes again all is dropped.
    refused: bool,
    nak: Option<Syndrome>,
    /// The refusal says that what was lent is out of reach.
    not_lent: bool,
    /// Something is to be acknowledged, and a receive request was completed since the last time.
    ack: bool,
    delivered: bool,
    /// Receive requests completed, and the limit that the requester was told.
    completed: u32,
    told: u32,
    responses: VecDeque<Response>,
    /// The oldest one whose response found nobody: it is never said to be done.
    lost: Option<u16>,
    max_dest_rd_atomic: u8,
    /// The shared receive queue of the request under way, or of the last one (XRC).
    srq: Srqn,
    /// The requester's P_Key, and whether ours lets it in.
    peer_pkey: Option<Pkey>,
    admitted: bool,
}

impl Responder {
    pub(crate) fn new(psn: Psn, max_dest_rd_atomic: u8) -> Self {
        Self {
            expected: psn.raw() as u16,
            inbound: Inbound::Idle,
            refused: false,
            nak: None,
            not_lent: false,
            ack: false,
            delivered: false,
            completed: 0,
            told: 0,
            responses: VecDeque::with_capacity(max_dest_rd_atomic.into()),
            lost: None,
            max_dest_rd_atomic,
            srq: Srqn::default(),
            peer_pkey: None,
            admitted: false,
        }
    }
    /// Decides whether the requester is let in, by its P_Key or the one that it told before.
    pub(crate) fn admit(&mut self, pkey: Option<Pkey>, path: &Path) {
        self.peer_pkey = pkey.or(self.peer_pkey);
        self.admitted = self.peer_pkey.is_some_and(|k| path.pkey.matches(k));
    }
    /// Whether the requester has told a P_Key that ours does not let in.
    pub(crate) fn refuses_peer(&self) -> bool {
        self.peer_pkey.is_some() && !self.admitted
    }
    pub(crate) fn set_max_dest_rd_atomic(&mut self, max: u8) {
        self.max_dest_rd_atomic = max;
        self.responses.reserve(usize::from(max).saturating_sub(self.responses.len()));
    }
    /// Whether responses or a refusal wait to be sent.
    #[inline]
    pub(crate) fn wants_transmit(&self) -> bool {
        match self.responses.front() {
            None => self.nak.is_some(),
            Some(response) => !response.is_awaited(),
        }
    }
    /// The oldest request that is not done, as the requester is told.
    #[inline]
    pub(crate) fn done(&self) -> u16 {
        self.lost.or(self.responses.front().map(|r| r.number)).unwrap_or(self.expected)
    }
    #[inline]
    pub(crate) fn ack_owed(&self) -> Option<AckOwed> {
        (self.ack && !self.wants_transmit()).then_some(AckOwed { delivered: self.delivered })
    }
    /// A request of ours carried the acknowledgement along.
    #[inline(always)]
    pub(crate) fn told_along(&mut self, recv_credits: impl Fn() -> Option<u32>) {
        if !self.ack {
            return;
        }
        self.delivered = false;
        // The limit of receive requests goes by an acknowledgement of its own, long before the peer runs out.
        let left = self.told.wrapping_sub(self.taken());
        self.ack = left as i32 <= 0 && recv_credits().is_some_and(|c| c > 0)
            || left.is_multiple_of(16) && recv_credits().is_some_and(|c| left < c / 2);
    }
    /// Receive requests completed or held.
    #[inline(always)]
    fn taken(&self) -> u32 {
        self.completed.wrapping_add(matches!(self.inbound, Inbound::Send { .. }).into())
    }
    /// Whether nothing is to be said of the requester's requests but that they are done.
    #[inline]
    pub(super) fn is_silent(&self) -> bool {
        self.nak.is_none() && self.lost.is_none() && self.responses.is_empty()
    }
    /// Whether a request in one message that comes next is taken as it comes.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.admitted && !self.refused && self.inbound == Inbound::Idle
    }
    /// The number of the request that comes next.
    #[inline]
    pub(super) fn expected(&self) -> u16 {
        self.expected
    }
    /// Whether a [silent](Self::is_silent) responder owes an acknowledgement.
    #[inline]
    pub(super) fn owes(&self) -> bool {
        self.ack
    }
    /// It was executed, and used a receive request.
    #[inline]
    pub(super) fn took(&mut self) {
        self.expected = self.expected.wrapping_add(1);
        self.completed = self.completed.wrapping_add(1);
        (self.ack, self.delivered) = (true, true);
    }
    /// Nothing more is answered.
    pub(crate) fn stop(&mut self) {
        self.lost = self.lost.or(self.responses.front().map(|r| r.number));
        self.responses.clear();
        self.nak = None;
        self.ack = false;
    }

    /// Whether the requester is let in; its first message tells.
    #[inline]
    pub(crate) fn lets_in(&mut self, path: &Path, head: &Head) -> bool {
        if head.op == Op::Hello {
            self.admit(Some(Pkey::new(head.extra as u16)), path);
        }
        self.admitted
    }

    /// Takes a request, or a piece of one.
    #[inline]
    pub(crate) fn handle_request<H: Host>(
        &mut self,
        path: &Path,
        head: &Head,
        body: &[u8],
        host: &mut H,
    ) -> Result<(), Fatal> {
        let first = head.has(FIRST);
        if head.number != self.expected
            || (self.refused && !first)
            || (!first && self.inbound == Inbound::Idle)
        {
            self.drop_unexpected(head, host);
            return Ok(());
        }
        if core::mem::take(&mut self.refused) {
            self.nak = None;
            self.not_lent = false;
        }
        match self.accept(path, head, body, host) {
            Ok(accepted) => {
                if accepted.done {
                    self.expected = self.expected.wrapping_add(1);
                    self.ack = true;
                }
                self.completed = self.completed.wrapping_add(accepted.delivered.into());
                self.delivered |= accepted.delivered;
                Ok(())
            }
            Err(fault) => self.handle_fault(fault, path, host),
        }
    }

    /// What was done already is said again; what comes too early, or is of an earlier connection, is dropped.
    #[cold]
    fn drop_unexpected<H: Host>(&mut self, head: &Head, host: &mut H) {
        if head.op == Op::Fetched {
            return self.handle_fetched(head, host);
        }
        let before = (head.number.wrapping_sub(self.expected) as i16) < 0;
        self.ack |= before;
        host.count(if before { Count::Duplicate } else { Count::DroppedPsn });
    }

    /// The requester has fetched what the oldest response lent, or could not.
    #[cold]
    pub(crate) fn handle_fetched<H: Host>(&mut self, head: &Head, host: &mut H) {
        let response = self.responses.front_mut().filter(|r| r.number == head.number);
        let Some(Response { answer: Answer::Read { len, sent, lent: lent @ Lent::Some, .. }, .. }) = response
        else {
            return host.count(Count::DroppedPsn);
        };
        let not_lent = head.has(NOT_LENT);
        if not_lent && head.extra <= *sent {
            (*sent, *lent) = (head.extra, Lent::Never);
        } else if !not_lent && sent == len {
            self.responses.pop_front();
            // What was done behind it could not be told while it stood.
            self.ack |= self.expected != head.number.wrapping_add(1);
        } else {
            host.count(Count::DroppedPsn);
        }
    }

    #[inline]
    fn accept<H: Host>(
        &mut self,
        path: &Path,
        head: &Head,
        body: &[u8],
        host: &mut H,
    ) -> Result<Accepted, Fault> {
        let first = head.has(FIRST);
        if first && self.inbound != Inbound::Idle {
            self.begin_anew(host);
        }
        let body = if path.variant == Variant::Target { self.enter_srq(first, body, host)? } else { body };
        if head.op.is_send_or_write() {
            return self.inbound.accept(&piece(head, body)?, path.access, host);
        }
        if !first {
            return Err(Fault::Invalid);
        }
        self.accept_question(path, head, body, host)?;
        Ok(Accepted { done: false, delivered: false })
    }

    /// Has the request go to the shared receive queue that it names; returns the body behind the number.
    #[inline(never)]
    fn enter_srq<'b, H: Host>(
        &mut self,
        first: bool,
        mut body: &'b [u8],
        host: &mut H,
    ) -> Result<&'b [u8], Fault> {
        if first {
            let (named, rest) = body.split_first_chunk().ok_or(Fault::Invalid)?;
            (self.srq, body) = (Srqn::new(u32::from_ne_bytes(*named)), rest);
        }
        host.enter_srq(self.srq).map_err(|_| Fault::Access)?;
        Ok(body)
    }

    /// The requester left its request off and begins it again, as a refusal of an earlier try came in between.
    #[cold]
    fn begin_anew<H: Host>(&mut self, host: &mut H) {
        if let Inbound::Send { .. } = core::mem::take(&mut self.inbound) {
            host.return_recv();
        }
    }

    /// A READ, an atomic, an ATOMIC WRITE or a FLUSH.
    fn accept_question<H: Host>(
        &mut self,
        path: &Path,
        head: &Head,
        body: &[u8],
        host: &mut H,
    ) -> Result<(), Fault> {
        if self.responses.len() >= usize::from(self.max_dest_rd_atomic) {
            return Err(Fault::Invalid);
        }
        let (remote, len, operands) = take_remote(body).ok_or(Fault::Invalid)?;
        let answer = match head.op {
            Op::Read if operands.is_empty() => {
                answered::read(path, (remote, len), host)?;
                Answer::Read { remote, len, sent: 0, lent: Lent::Not }
            }
            Op::CompareSwap | Op::FetchAdd => {
                let (&[first, second], []) = operands.as_chunks::<8>() else { return Err(Fault::Invalid) };
                let (first, second) = (u64::from_ne_bytes(first), u64::from_ne_bytes(second));
                let op = if head.op == Op::FetchAdd {
                    AtomicOp::FetchAdd { add: first }
                } else {
                    AtomicOp::CompareSwap { compare: second, swap: first }
                };
                Answer::Atomic { original: answered::atomic(path, remote, op, host)? }
            }
            // As packets, XRC has neither.
            Op::AtomicWrite if path.variant == Variant::Plain => {
                answered::atomic_write(path, (remote, len), operands, host)?;
                NO_BYTES
            }
            Op::Flush if path.variant == Variant::Plain && operands.is_empty() => {
                answered::flush(path, Feth::from_bits(head.extra), (remote, len), host)?;
                NO_BYTES
            }
            _ => return Err(Fault::Invalid),
        };
        let response = Response { number: head.number, srq: self.srq, answer };
        self.responses.push_back(response);
        self.expected = self.expected.wrapping_add(1);
        // The response answers all requests before it as well.
        self.ack = false;
        Ok(())
    }

    #[cold]
    fn handle_fault<H: Host>(&mut self, fault: Fault, path: &Path, host: &mut H) -> Result<(), Fatal> {
        let code = match fault {
            Fault::NoRecv | Fault::NotLent => {
                self.not_lent = fault == Fault::NotLent;
                if !self.not_lent {
                    host.count(Count::RnrNakSent);
                }
                self.refused = true;
                self.inbound = Inbound::Idle;
                self.nak = Some(Syndrome::RnrNak(path.rnr_timer));
                return Ok(());
            }
            fault => nak_code(fault),
        };
        Err(self.refuse(code, recv_status(fault), host))
    }

    /// Sends a NAK that ends the connection.
    #[cold]
    fn refuse<H: Host>(&mut self, code: NakCode, recv: Option<WcStatus>, host: &mut H) -> Fatal {
        self.nak = Some(Syndrome::Nak(code));
        Fatal::new(code, recv, host)
    }

    /// Sends responses, and the refusal behind them. `Ok(false)`: the sink is full.
    pub(crate) fn poll<H: Host, T: TxSink>(
        &mut self,
        path: &Path,
        host: &mut H,
        tx: &mut T,
        max: usize,
    ) -> (usize, Result<bool, Fatal>) {
        let mut sent = 0;
        while sent < max {
            let Some(&response) = self.responses.front().filter(|r| !r.is_awaited()) else { break };
            match self.respond(path, response, host, tx) {
                Ok(true) => sent += 1,
                Ok(false) => return (sent, Ok(false)),
                Err(fatal) => return (sent, Err(fatal)),
            }
        }
        if sent < max
            && self.responses.is_empty()
            && let Some(syndrome) = self.nak
        {
            let flags = if self.not_lent { NOT_LENT } else { 0 };
            let head = self.head(path, Op::Nak, flags, self.expected, syndrome.encode().into());
            if reserve(tx, &head, 0).is_none() {
                return (sent, Ok(false));
            }
            tx.commit();
            (self.nak, self.not_lent, self.ack, self.delivered) = (None, false, false, false);
            sent += 1;
        }
        (sent, Ok(true))
    }

    fn respond<H: Host, T: TxSink>(
        &mut self,
        path: &Path,
        Response { number, srq, answer }: Response,
        host: &mut H,
        tx: &mut T,
    ) -> Result<bool, Fatal> {
        let last = match answer {
            Answer::Atomic { original } => {
                let head = self.head(path, Op::Original, FIRST | LAST, number, 0);
                let Some(out) = reserve(tx, &head, 8) else { return Ok(false) };
                out.copy_from_slice(&original.to_ne_bytes());
                true
            }
            Answer::Read { remote, len, sent, lent } => {
                let addr = remote.addr.wrapping_add(sent.into());
                if len - sent >= LOAN_MIN
                    && path.variant == Variant::Plain
                    && lent != Lent::Never
                    && let Some(loan) = host.lend_remote(remote.rkey, addr, MAX_LOAN.min(len - sent))
                {
                    return Ok(self.lend(path, number, (len, sent), &loan, tx));
                }
                let data = (len - sent).min(MAX_DATA as u32);
                let last = sent + data == len;
                let again = if lent == Lent::Never { BY_VALUE } else { 0 };
                let flags = again | if sent == 0 { FIRST } else { 0 } | if last { LAST } else { 0 };
                let head = self.head(path, Op::ReadData, flags, number, 0);
                let Some(out) = reserve(tx, &head, data as usize) else { return Ok(false) };
                let reached = path.variant == Variant::Plain || host.enter_srq(srq).is_ok();
                if data > 0 && !(reached && host.read_remote(remote.rkey, addr, out).is_ok()) {
                    self.responses.clear();
                    self.expected = number;
                    return Err(self.refuse(NakCode::RemoteAccess, None, host));
                }
                if let Some(Response { answer: Answer::Read { sent, .. }, .. }) = self.responses.front_mut() {
                    *sent += data;
                }
                last && lent != Lent::Some
            }
        };
        tx.commit();
        if last {
            self.responses.pop_front();
        }
        Ok(true)
    }

    /// Lends the next piece of what a READ asks for. `false`: the sink is full.
    fn lend<T: TxSink>(
        &mut self,
        path: &Path,
        number: u16,
        (len, sent): (u32, u32),
        loan: &Loan,
        tx: &mut T,
    ) -> bool {
        let end = sent + loan.len;
        let flags = if sent == 0 { FIRST } else { 0 } | if end == len { LAST } else { 0 };
        let head = self.head(path, Op::ReadData, LENT | flags, number, 0);
        let Some(out) = reserve(tx, &head, loan_bytes(loan)) else { return false };
        put_loan(out, loan);
        tx.commit();
        if let Some(Response { answer: Answer::Read { sent, lent, .. }, .. }) = self.responses.front_mut() {
            (*sent, *lent) = (end, Lent::Some);
        }
        true
    }

    /// Sends one acknowledgement for all that was done.
    #[inline]
    pub(crate) fn poll_ack<H: Host, T: TxSink>(&mut self, path: &Path, host: &mut H, tx: &mut T) -> bool {
        if self.ack_owed().is_none() {
            return false;
        }
        let (flags, limit) = match host.recv_credits() {
            Some(credits) => (LIMITED, self.taken().wrapping_add(credits)),
            None => (0, 0),
        };
        let head = self.head(path, Op::Ack, flags, self.expected, limit);
        if reserve(tx, &head, 0).is_none() {
            return false;
        }
        tx.commit();
        self.told = limit;
        (self.ack, self.delivered) = (false, false);
        true
    }

    #[inline]
    fn head(&self, path: &Path, op: Op, flags: u8, number: u16, extra: u32) -> Head {
        Head { op, flags, dest: path.dest_qpn, number, done: self.done(), extra }
    }
}

/// The piece of a SEND or RDMA WRITE that a message carries.
#[inline(always)]
fn piece<'a>(head: &Head, body: &'a [u8]) -> Result<Piece<'a>, Fault> {
    let (first, last) = (head.has(FIRST), head.has(LAST));
    let writes = matches!(head.op, Op::Write | Op::WriteImm);
    let (target, data) = if first && writes {
        let (remote, len, data) = take_remote(body).ok_or(Fault::Invalid)?;
        (Some((remote, len)), data)
    } else {
        (None, body)
    };
    let body = if head.has(LENT) {
        Body::Lent(take_loan(data).ok_or(Fault::Invalid)?)
    } else {
        // As of packets, all but the last one are full.
        let least = if last { usize::from(!first) } else { MAX_DATA };
        if data.len() > MAX_DATA || data.len() < least {
            return Err(Fault::Invalid);
        }
        Body::Bytes(data)
    };
    let extra = match head.op {
        Op::SendImm | Op::WriteImm => RecvExtra::Imm(head.extra),
        Op::SendInv => RecvExtra::Invalidated(Rkey::new(head.extra)),
        _ => RecvExtra::None,
    };
    let solicited = head.has(SOLICITED);
    Ok(Piece { writes, first, last, target, body, extra, solicited, src_qp: Qpn::default(), packet: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_all_responses_before_the_first_read() {
        let mut responder = Responder::new(Psn::new(0), 3);
        assert!(responder.responses.capacity() >= 3);
        responder.set_max_dest_rd_atomic(40);
        assert!(responder.responses.capacity() >= 40);
    }
}
