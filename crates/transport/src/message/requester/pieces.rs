//! The messages of a request: pieces with their bytes, loans, READ questions, and reports of finished fetches.

use hca_core::wire::Feth;
use hca_core::{Instant, RemoteAddr, SendFlags, SendOp, Srqn};

use super::super::{
    FIRST, Head, LAST, LENT, LOAN_MIN, MAX_DATA, MAX_LOAN, NOT_LENT, Op, REMOTE_BYTES, SOLICITED, loan_bytes,
    put_loan, put_remote, reserve, reserve_for,
};
use super::{Fetched, Requester, Step};
use crate::connection::{Path, Variant};
use crate::emit::local_status;
use crate::inflight::Kind;
use crate::{ATOMIC_BYTES, Host, SendRequest, TxSink};

impl Requester {
    /// A SEND or WRITE, or the next piece of it.
    #[inline]
    pub(super) fn send_piece<H: Host, T: TxSink>(
        &mut self,
        now: Instant,
        path: &Path,
        done: u16,
        request: &SendRequest,
        host: &mut H,
        tx: &mut T,
    ) -> Step {
        if request.len >= LOAN_MIN
            && path.variant == Variant::Plain
            && self.may_lend()
            && let Some(step) = self.lend(now, path, done, request, host, tx)
        {
            return step;
        }
        let data = ((request.len - self.sent) as usize).min(MAX_DATA);
        let last = self.sent as usize + data == request.len as usize;
        let (remote, srq) = (self.names_remote(request), self.names_srq(path, host));
        let head = self.piece_head(path, request, done, last, 0);
        let body = if remote.is_some() { REMOTE_BYTES + data } else { data };
        let Some(out) = reserve_for(tx, &head, srq, body) else { return Step::Full };
        let out = match remote {
            Some(remote) => {
                let (ext, rest) = out.split_first_chunk_mut().expect("room was made for it");
                put_remote(ext, remote, request.len);
                rest
            }
            None => out,
        };
        if data > 0
            && let Err(e) = host.gather(self.next, self.sent, out)
        {
            return self.local_failure(local_status(e));
        }
        tx.commit();
        self.piece_left(now, request, data as u32, last);
        Step::Sent
    }

    /// The memory that a WRITE's first piece names.
    #[inline]
    fn names_remote(&self, request: &SendRequest) -> Option<RemoteAddr> {
        match request.op.op() {
            SendOp::Write(remote) | SendOp::WriteImm(remote, _) if self.sent == 0 => Some(remote),
            _ => None,
        }
    }

    /// The shared receive queue that a request's first message names.
    #[inline]
    fn names_srq<H: Host>(&self, path: &Path, host: &H) -> Option<Srqn> {
        (path.variant == Variant::Initiator && self.sent == 0).then(|| host.named_srq(self.next))
    }

    /// The head of a SEND's or WRITE's next piece.
    #[inline]
    fn piece_head(&self, path: &Path, request: &SendRequest, done: u16, last: bool, flags: u8) -> Head {
        let (op, extra) = match request.op.op() {
            SendOp::SendImm(imm) => (Op::SendImm, imm),
            SendOp::SendInv(rkey) => (Op::SendInv, rkey.raw()),
            SendOp::Write(_) => (Op::Write, 0),
            SendOp::WriteImm(_, imm) => (Op::WriteImm, imm),
            _ => (Op::Send, 0),
        };
        let solicited = if request.flags.contains(SendFlags::SOLICITED) { SOLICITED } else { 0 };
        let place = if self.sent == 0 { FIRST } else { 0 } | if last { LAST } else { 0 };
        self.head(path, op, flags | place | solicited, done, extra)
    }

    /// A piece of a SEND or WRITE has left.
    #[inline]
    fn piece_left(&mut self, now: Instant, request: &SendRequest, len: u32, last: bool) {
        if self.sent == 0 {
            self.credits.take(Kind::of(&request.op));
        }
        if last {
            self.left(now);
        } else {
            self.sent += len;
            self.current = Some(*request);
        }
    }

    /// Whether the next request may be lent. An index is forgotten once it is reached: it comes again.
    #[inline]
    pub(super) fn may_lend(&mut self) -> bool {
        if self.lends_from.is_some_and(|from| self.next.wrapping_sub(from) as i32 >= 0) {
            self.lends_from = None;
        }
        self.lends_from.is_none()
    }

    /// The next piece of a long SEND or WRITE as a loan. `None`: it is not lent.
    fn lend<H: Host, T: TxSink>(
        &mut self,
        now: Instant,
        path: &Path,
        done: u16,
        request: &SendRequest,
        host: &mut H,
        tx: &mut T,
    ) -> Option<Step> {
        let loan = host.lend(self.next, self.sent, MAX_LOAN.min(request.len - self.sent))?;
        let last = self.sent + loan.len == request.len;
        let head = self.piece_head(path, request, done, last, LENT);
        let remote = self.names_remote(request);
        let named = if remote.is_some() { REMOTE_BYTES } else { 0 };
        let Some(out) = reserve(tx, &head, named + loan_bytes(&loan)) else { return Some(Step::Full) };
        let (target, rest) = out.split_at_mut(named);
        if let Some(remote) = remote {
            put_remote(target.first_chunk_mut().expect("room was made for it"), remote, request.len);
        }
        put_loan(rest, &loan);
        tx.commit();
        self.piece_left(now, request, loan.len, last);
        Some(Step::Sent)
    }

    /// A READ, an atomic, an ATOMIC WRITE or a FLUSH.
    pub(super) fn ask<H: Host, T: TxSink>(
        &mut self,
        now: Instant,
        path: &Path,
        done: u16,
        request: &SendRequest,
        host: &H,
        tx: &mut T,
    ) -> Step {
        let mut len = request.len;
        let mut extra = 0;
        let (op, remote, operands, count) = match request.op.op() {
            SendOp::CompareSwap { remote, compare, swap } => (Op::CompareSwap, remote, [swap, compare], 2),
            SendOp::FetchAdd { remote, add } => (Op::FetchAdd, remote, [add, 0], 2),
            SendOp::Read(remote) => (Op::Read, remote, [0; 2], 0),
            SendOp::AtomicWrite { remote, value } => {
                len = ATOMIC_BYTES;
                (Op::AtomicWrite, remote, [u64::from_ne_bytes(value), 0], 1)
            }
            SendOp::Flush { remote, len: bytes, placement, selectivity } => {
                (len, extra) = (bytes, Feth::new(selectivity, placement).bits());
                (Op::Flush, remote, [0; 2], 0)
            }
            _ => unreachable!("only these are answered"),
        };
        let head = self.head(path, op, FIRST | LAST, done, extra);
        let srq = self.names_srq(path, host);
        let Some(out) = reserve_for(tx, &head, srq, REMOTE_BYTES + count * 8) else { return Step::Full };
        let (ext, rest) = out.split_first_chunk_mut().expect("room was made for it");
        put_remote(ext, remote, len);
        for (to, word) in rest.as_chunks_mut::<8>().0.iter_mut().zip(operands) {
            *to = word.to_ne_bytes();
        }
        tx.commit();
        self.unanswered += 1;
        self.left(now);
        Step::Sent
    }

    /// Tells what became of what the response to a READ lent; the peer answers nothing behind it before. `false`: the
    /// sink is full.
    #[cold]
    pub(super) fn tell_fetched<T: TxSink>(&mut self, path: &Path, done: u16, tx: &mut T) -> bool {
        let Some(Fetched { number, not_from }) = self.fetched else { return true };
        let flags = if not_from.is_some() { NOT_LENT } else { 0 };
        let extra = not_from.unwrap_or(0);
        let head = Head { op: Op::Fetched, flags, dest: path.dest_qpn, number, done, extra };
        if reserve(tx, &head, 0).is_none() {
            return false;
        }
        tx.commit();
        self.fetched = None;
        true
    }
}
