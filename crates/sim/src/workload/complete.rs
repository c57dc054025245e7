//! Checks of completions.

use core::net::IpAddr;
use core::time::Duration;
use std::rc::Rc;

use hca_core::{AhHandle, Completion, Gid, QpHandle, QpType, Qpn, RecvExtra, Srqn, WcOpcode, WcStatus};

use super::end::{End, Lending, Life, Op, Promise, RecvBuf, Role, Span};
use super::plan::ConnPlan;
use super::post::{GRH_BYTES, With};
use super::world::{Checked, World};
use crate::checker::fingerprint;

/// The longest time that a requester lets pass before it asks again.
const RECOVERY: Duration = Duration::from_millis(100);
/// The same where nothing was measured yet, it would repeat a READ, and the queue pair has no timeout.
const FIRST_READ: Duration = Duration::from_secs(1);

/// How long a request may take once nothing is lost any more: the requester asks again by its own timer, a first READ
/// after the queue pair's timeout, and the responder's program posts receive requests after its pause.
fn recovery_bound(plan: &ConnPlan) -> Duration {
    let first_read = plan.timeout.duration().unwrap_or(FIRST_READ);
    first_read + RECOVERY + plan.rnr_timer.duration() * 4 + plan.recv_pause * 4
}

/// Whether an end's own region was deregistered.
fn revoked(end: &End) -> bool {
    end.own.as_ref().is_some_and(|o| o.revoked)
}

impl World {
    fn end_of(&self, n: usize, c: &Completion) -> Checked<usize> {
        match self.by_qp.get(&(n, c.qp.index, c.qp.generation)) {
            Some(e) if self.ends[*e].life != Life::Gone => Ok(*e),
            Some(_) => Err(self.broken(format!("a completion of the destroyed qp {} of n{n}: {c:?}", c.qp))),
            None => Err(self.broken(format!("a completion of an unknown qp {} of n{n}: {c:?}", c.qp))),
        }
    }

    pub(super) fn request_completed(&mut self, n: usize, c: &Completion) -> Checked<()> {
        let e = self.end_of(n, c)?;
        if c.status == WcStatus::Success {
            self.is_not_drained(e, &format!("request {:#x}", c.wr_id))?;
            self.says_what_it_was(e, c)?;
        }
        let first = self.ends[e].sq.failed().is_none();
        let ended = self.ends[e].sq.complete(c.wr_id, c.status);
        for ended in self.check(e, "send queue", ended)? {
            self.request_ended(e, ended.wr_id, ended.status)?;
        }
        if c.status == WcStatus::Success {
            self.has_recovered(e)?;
        }
        self.ends[e].progress_at = self.now();
        if c.status != WcStatus::Success && first {
            self.is_truthful(e, c)?;
            self.went_down(e);
        }
        Ok(())
    }

    /// A completion names the operation that was posted, and how much came back.
    fn says_what_it_was(&self, e: usize, c: &Completion) -> Checked<()> {
        // The ledger tells of one that nobody posted.
        let Some(op) = self.ends[e].ops.get(&c.wr_id) else { return Ok(()) };
        let returns =
            matches!(op.promise, Promise::Read { .. } | Promise::Atomic { .. } | Promise::SharedAdd);
        if c.opcode == op.opcode && (!returns || c.byte_len as usize == op.len) {
            return Ok(());
        }
        Err(self.broken(format!("a {:?} of {} B ended as another: {c:?}", op.opcode, op.len)))
    }

    /// A request ended well. Once all faults have ended, none waits longer for that than its queue pair's settings
    /// allow.
    fn has_recovered(&mut self, e: usize) -> Checked<()> {
        let Some(healed_at) = self.healed_at.filter(|_| self.ends[e].drain.is_none()) else { return Ok(()) };
        let end = &self.ends[e];
        let waited = self.now().since(end.progress_at.max(healed_at).max(end.resumed_at));
        self.report.recovery_ns = self.report.recovery_ns.max(waited.as_nanos() as u64);
        let plan = &self.plan.conns[end.conn];
        let bound = recovery_bound(plan);
        // A reliable datagram waits for those of others.
        if plan.kind != QpType::Rc || plan.rd || waited <= bound {
            return Ok(());
        }
        Err(self.broken(format!(
            "a request of qp {} of n{} ended well {waited:?} after the last of its queue pair, or the last fault; that may \
             take {bound:?} (timeout {:?})",
            end.qpn,
            end.host,
            plan.timeout.duration(),
        )))
    }

    /// Once an end has drained, nothing of it moves until it goes on.
    fn is_not_drained(&self, e: usize, what: &str) -> Checked<()> {
        let end = &self.ends[e];
        match end.drain.and_then(|d| d.drained) {
            Some(at) if at < self.now() => Err(self.broken(format!(
                "{what} of qp {} of n{} ended well, but its send queue said at {at:?} that it has drained",
                end.qpn, end.host
            ))),
            _ => Ok(()),
        }
    }

    /// An event says that a queue pair is in error, since its peer was refused something: with a shared
    /// receive queue and nothing to send, no completion says so.
    pub(super) fn has_fallen(&mut self, n: usize, qp: QpHandle) -> Checked<()> {
        let Some(e) = self.end_by_handle(n, qp) else { return Ok(()) };
        let end = &self.ends[e];
        if self.ends[end.peer].made.is_none() && !revoked(end) && !end.forced {
            return Err(self
                .broken(format!("qp {} of n{n} fell, which nothing that its peer did calls for", end.qpn)));
        }
        self.went_down(e);
        Ok(())
    }

    pub(super) fn went_down(&mut self, e: usize) {
        if self.ends[e].life == Life::Up {
            self.ends[e].life = Life::Down;
            let (now, peer) = (self.now(), self.ends[e].peer);
            self.ends[peer].progress_at = self.ends[peer].progress_at.max(now);
        }
    }

    /// Whether the first failure of a send queue says what really happened.
    fn is_truthful(&self, e: usize, c: &Completion) -> Checked<()> {
        let end = &self.ends[e];
        let plan = &self.plan.conns[end.conn];
        let peer = &self.ends[end.peer];
        let peer_erred = peer.made.is_some() || peer.life != Life::Up || end.forced;
        let true_word = match c.status {
            WcStatus::WrFlushed => peer_erred || revoked(end) || end.overran,
            // One that is refused may also run out of retries, as the peer is in error after that. A READ that
            // is repeated after its region was deregistered is not answered: it may be a late copy.
            WcStatus::RetryExceeded => {
                plan.may_fail || peer.life != Life::Up || end.made.is_some() || revoked(peer)
            }
            WcStatus::RnrRetryExceeded => plan.rnr_retry < 7,
            WcStatus::RemoteAccess => end.made == Some(WcStatus::RemoteAccess) || revoked(peer),
            WcStatus::RemoteInvalidRequest => end.made == Some(WcStatus::RemoteInvalidRequest),
            // The end-to-end context has failed with the request of another queue pair.
            WcStatus::InvalidEecState => plan.rd && plan.may_fail,
            WcStatus::RemoteInvalidRd => plan.rd && peer.life != Life::Up,
            _ => false,
        };
        if true_word && plan.kind == QpType::Rc
            || end.forced
            || end.overran && c.status == WcStatus::WrFlushed
        {
            return Ok(());
        }
        Err(self.broken(format!(
            "{:?} qp {} of n{}: request {:#x} ended as {:?}, which nothing that happened calls for \
             (timeout {:?}, retry_cnt {}, rnr_retry {}; peer {:?})",
            plan.kind,
            end.qpn,
            end.host,
            c.wr_id,
            c.status,
            plan.timeout.duration(),
            plan.retry_cnt,
            plan.rnr_retry,
            peer.life,
        )))
    }

    /// A request has ended: what it promised must be so.
    pub(super) fn request_ended(&mut self, e: usize, wr_id: u64, status: WcStatus) -> Checked<()> {
        let op = self.ends[e].ops.remove(&wr_id).expect("the ledger names requests that were posted");
        match status {
            WcStatus::Success => {
                self.report.requests += 1;
                self.report.bytes += op.len as u64;
                self.keep_promise(e, wr_id, op)
            }
            _ => {
                if status == WcStatus::WrFlushed {
                    self.report.flushed += 1;
                } else {
                    self.report.errors += 1;
                }
                self.forget(e, op);
                Ok(())
            }
        }
    }

    fn keep_promise(&mut self, e: usize, wr_id: u64, op: Op) -> Checked<()> {
        let p = self.ends[e].peer;
        let rc = self.plan.conns[self.ends[e].conn].kind == QpType::Rc;
        let what = |w: &str| format!("{w} {wr_id:#x}");
        match &op.promise {
            Promise::Send(number) => self.must_have_arrived(p, *number)?,
            Promise::Write { target, bytes, number } => {
                self.must_have_arrived(p, *number)?;
                // An unreliable WRITE may never arrive: its range stays open.
                if !rc {
                    self.ends[e].tainted.push(Rc::clone(target));
                } else {
                    self.must_hold(target, bytes, &what("RDMA WRITE"))?;
                }
            }
            Promise::Read { bytes, .. } => {
                let mut at = 0;
                for piece in &op.pieces {
                    let part = &bytes[at..at + piece.range.len()];
                    self.must_hold(piece, part, &what("RDMA READ"))?;
                    at += piece.range.len();
                }
            }
            Promise::Atomic { old } => {
                let found = self.take_value(&op.pieces);
                if found != *old {
                    return Err(self.broken(format!(
                        "atomic {wr_id:#x} returned {found:#x}, but the word held {old:#x}"
                    )));
                }
            }
            Promise::SharedAdd => {
                let found = self.take_value(&op.pieces);
                self.shared_add_returned(p, found)?;
            }
            Promise::Flush { target, bytes } => {
                self.report.flushes += 1;
                self.must_hold(target, bytes, &what("FLUSH"))?;
            }
            Promise::AtomicWrite => self.report.atomic_writes += 1,
            &Promise::Bind(index) => {
                self.report.binds += 1;
                if let Some(lent) = self.ends[e].invalidatable.get_mut(index) {
                    lent.state = Lending::Lent;
                }
            }
            Promise::Mistake => {
                return Err(self.broken(format!("request {wr_id:#x} succeeded, but had to be refused")));
            }
        }
        if let Promise::Write { target: span, .. }
        | Promise::Flush { target: span, .. }
        | Promise::Read { source: Some(span), .. } = op.promise
            && rc
        {
            self.release(span);
        }
        op.pieces.into_iter().for_each(|s| self.release(s));
        Ok(())
    }

    /// A message that was acknowledged is there, unless the peer is gone.
    fn must_have_arrived(&mut self, p: usize, number: Option<u64>) -> Checked<()> {
        let Some(number) = number.filter(|_| self.ends[p].life != Life::Gone) else { return Ok(()) };
        if self.is_deaf(self.ends[p].host) {
            self.ends[p].owed = self.ends[p].owed.max(Some(number));
            return Ok(());
        }
        let arrived = self.ends[p].stream.acknowledged(number);
        self.check(p, "acknowledged message", arrived)
    }

    /// A range holds these bytes; from now on nobody changes them.
    fn must_hold(&mut self, span: &Rc<Span>, bytes: &[u8], what: &str) -> Checked<()> {
        let Some(host) = self.hosts[span.host].as_mut().filter(|h| h.epoch == span.epoch) else {
            return Ok(());
        };
        if let Some((at, found)) = host.arena.difference(span.range.start, bytes) {
            return Err(self.broken(format!(
                "{what} ended well, but byte {at} of {} at n{} is {found:#04x}, not {:#04x}",
                bytes.len(),
                span.host,
                bytes[at]
            )));
        }
        if host.shadow.is_open(&span.range) {
            host.shadow.write(span.range.start, bytes);
            host.shadow.close(span.range.clone());
        }
        Ok(())
    }

    /// The eight bytes that an atomic returned.
    fn take_value(&mut self, pieces: &[Rc<Span>]) -> u64 {
        let mut bytes = Vec::with_capacity(8);
        for p in pieces {
            bytes.extend(self.host(p.host).arena.read(p.range.clone()));
            self.seal(p);
        }
        u64::from_le_bytes(*bytes.first_chunk().expect("an atomic returns 8 bytes"))
    }

    fn shared_add_returned(&mut self, p: usize, value: u64) -> Checked<()> {
        let (n, epoch) = (self.ends[p].host, self.ends[p].epoch);
        let Some(host) = self.hosts[n].as_mut().filter(|h| h.epoch == epoch) else { return Ok(()) };
        if value >= host.shared_posted || host.shared_seen.contains(&value) {
            let posted = host.shared_posted;
            return Err(self.broken(format!(
                "fetch and add on the shared word of n{n} returned {value}, which another got already, \
                 or which is more than the {posted} that were posted"
            )));
        }
        host.shared_seen.push(value);
        Ok(())
    }

    /// A request failed: nobody knows what it did before.
    fn forget(&mut self, e: usize, op: Op) {
        if let Promise::Write { target: span, .. }
        | Promise::Flush { target: span, .. }
        | Promise::Read { source: Some(span), .. } = &op.promise
        {
            self.ends[e].tainted.push(Rc::clone(span));
        }
        self.ends[e].tainted.extend(op.pieces);
    }

    pub(super) fn receive_completed(&mut self, n: usize, c: &Completion) -> Checked<()> {
        let e = self.end_of(n, c)?;
        let named = self.host(n).xrc.as_ref().and_then(|x| x.queues.iter().position(|q| q.0 == c.srq));
        if named.is_some() != (self.ends[e].role == Some(Role::Target)) {
            let qpn = self.ends[e].qpn;
            return Err(self.broken(format!("a completion of qp {qpn} of n{n} names the wrong queue: {c:?}")));
        }
        let host = self.hosts[n].as_mut().expect("the node is up");
        let ended = if let Some(srq) = self.ends[e].shared_queue(host, named.unwrap_or(0)) {
            srq.ledger.complete(c.wr_id, c.status)
        } else {
            self.ends[e].rq.complete(c.wr_id, c.status)
        };
        for earlier in self.check(e, "receive queue", ended)?.iter().filter(|r| r.wr_id != c.wr_id) {
            self.receive_lost(e, earlier.wr_id);
        }
        let buf = self.recv_bufs.remove(&c.wr_id).expect("the ledger names requests that were posted");
        if c.status == WcStatus::Success {
            self.message_arrived(e, c, &buf)?;
        } else {
            if c.status == WcStatus::LocalLength {
                self.was_too_short(e, c)?;
            } else {
                self.may_be_flushed(e, c)?;
            }
            for piece in &buf.pieces {
                self.seal(piece);
            }
            self.went_down(e);
        }
        buf.pieces.into_iter().for_each(|s| self.release(s));
        Ok(())
    }

    /// A message was too long for its receive request: the one that the peer sent on purpose, its last.
    fn was_too_short(&mut self, e: usize, c: &Completion) -> Checked<()> {
        self.report.too_short += 1;
        self.ends[e].short += 1;
        let (end, peer) = (&self.ends[e], &self.ends[self.ends[e].peer]);
        if peer.too_long && end.short == 1 && end.stream.is_complete() {
            return Ok(());
        }
        Err(self.broken(format!(
            "receive request {:#x} of qp {} of n{} was too short, which nothing that was sent calls for ({} ended so)",
            c.wr_id, end.qpn, end.host, end.short
        )))
    }

    fn may_be_flushed(&self, e: usize, c: &Completion) -> Checked<()> {
        let end = &self.ends[e];
        let peer = &self.ends[end.peer];
        let called_for = end.forced
            || end.life != Life::Up
            || end.sq.failed().is_some()
            || end.made.is_some()
            || peer.made.is_some()
            || revoked(end)
            || self.plan.conns[end.conn].may_fail;
        let aborted = c.status == WcStatus::RemoteAborted && end.eec.is_some();
        if (c.status == WcStatus::WrFlushed || aborted) && called_for {
            return Ok(());
        }
        Err(self.broken(format!(
            "receive request {:#x} of qp {} of n{} ended as {:?}, which nothing that happened calls for",
            c.wr_id, end.qpn, end.host, c.status
        )))
    }

    fn message_arrived(&mut self, e: usize, c: &Completion, buf: &RecvBuf) -> Checked<()> {
        self.report.messages += 1;
        let (n, conn) = (self.ends[e].host, self.ends[e].conn);
        let kind = self.plan.conns[conn].kind;
        let room: usize = buf.pieces.iter().map(|p| p.range.len()).sum();
        let placed = if c.opcode == WcOpcode::RecvRdmaWithImm { 0 } else { c.byte_len as usize };
        let grh = if kind == QpType::Ud { GRH_BYTES } else { 0 };
        if placed > room || placed < grh || c.grh != (grh > 0) {
            return Err(self.broken(format!("a message of {placed} bytes in a buffer of {room}: {c:?}")));
        }
        let bytes = self.take_message(buf, placed, n, kind == QpType::Rc)?;
        self.check_grh(e, c.src_qp, &bytes[..grh])?;
        let with = match (c.opcode, c.extra) {
            (WcOpcode::RecvRdmaWithImm, RecvExtra::Imm(imm)) => With::WriteImm(imm, c.byte_len),
            (_, RecvExtra::Imm(imm)) => With::Imm(imm),
            (_, RecvExtra::Invalidated(key)) => With::Invalidated(key),
            (_, RecvExtra::None) => With::Nothing,
        };
        let src = if kind == QpType::Ud { c.src_qp.raw() } else { c.srq.raw() };
        if self.ends[e].eec.is_some() {
            self.report.rd_messages += 1;
            let sender = self.ends[self.ends[e].peer].qpn;
            if c.src_qp != sender {
                return Err(self.broken(format!("a message of qp {sender} names another sender: {c:?}")));
            }
        }
        self.report.xrc_messages += u64::from(c.srq != Srqn::default());
        let print = fingerprint(&bytes[grh..], with.number(src));
        if kind == QpType::Rc {
            self.is_not_drained(self.ends[e].peer, "a message")?;
            let arrived = self.ends[e].stream.arrived(print).map(|_| ());
            self.check(e, "message", arrived)?;
        } else {
            let arrived = self.ends[e].datagrams.arrived(print);
            self.check(e, "message", arrived)?;
        }
        // Who looks late may find the range in use for something else.
        if let With::WriteImm(imm, _) = with
            && !self.host(n).was_deaf
            && let Some((range, bytes)) = self.ends[e].placed.get(&imm)
            && let Some((at, found)) = self.host(n).arena.difference(range.start, bytes)
        {
            return Err(self.broken(format!(
                "immediate data {imm:#x} arrived at n{n}, but byte {at} of its RDMA WRITE is {found:#04x}"
            )));
        }
        Ok(())
    }

    /// The message in a buffer; what lies behind it must be untouched on a reliable connection.
    fn take_message(&mut self, buf: &RecvBuf, len: usize, n: usize, reliable: bool) -> Checked<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        for piece in &buf.pieces {
            let host = self.host_mut(n);
            let here = (len - bytes.len()).min(piece.range.len());
            let (start, split) = (piece.range.start, piece.range.start + here);
            let part = host.arena.read(start..split);
            host.shadow.write(start, &part);
            bytes.extend(part);
            let rest = host.shadow.bytes(split..piece.range.end);
            // An unreliable message that broke off leaves its beginning in a buffer that is used again.
            if reliable && let Some((at, found)) = host.arena.difference(split, rest) {
                return Err(self.broken(format!(
                    "a message of {len} bytes at n{n}: {found:#04x} was written {at} bytes behind its end"
                )));
            }
            self.seal(piece);
        }
        Ok(bytes)
    }

    /// Source and destination in the header before a datagram.
    fn check_grh(&self, e: usize, from: Qpn, grh: &[u8]) -> Checked<()> {
        if grh.is_empty() {
            return Ok(());
        }
        let bytes = |address: IpAddr| match address {
            IpAddr::V4(a) => a.octets().to_vec(),
            IpAddr::V6(a) => a.octets().to_vec(),
        };
        let address = |n: usize| self.sim.net().address(n);
        let (end, peer) = (&self.ends[e], self.ends[self.ends[e].peer].host);
        let names = |src, dst| grh.ends_with(&[bytes(src), bytes(dst)].concat());
        let is_from_group = |(_, group): (AhHandle, Gid)| {
            // An own message has come back, unless both have the same number.
            names(address(peer), group.ip()) || from == end.qpn && names(address(end.host), group.ip())
        };
        if names(address(peer), address(end.host)) || end.group.is_some_and(is_from_group) {
            return Ok(());
        }
        Err(self
            .broken(format!("the GRH of a datagram at n{} names the wrong addresses: {grh:02x?}", end.host)))
    }
}
