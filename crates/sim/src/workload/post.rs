//! The requests that ends post.

use core::ops::Range;
use std::rc::Rc;

use hca_core::wire::{Placement, Selectivity};
use hca_core::{
    Dest, Instant, Lkey, Payload, QpType, Qpn, RdDest, RecvWr, RemoteAddr, Rkey, SendFlags, SendOp, SendWr,
    Sge, SplitMix64, Srqn, UdDest, WcStatus,
};

use super::conn::QKEY;
use super::end::{Invalidatable, Lending, Life, Op, Origin, Promise, RecvBuf, Role, Span};
use super::host::XrcDomain;
use super::plan::Mistake;
use super::world::{Checked, World};
use crate::arena::{post_recv, post_send};
use crate::checker::fingerprint;

/// The longest unreliable WRITE.
const UC_WRITE_BYTES: usize = 1024;
/// Bytes of GRH before a datagram.
pub(super) const GRH_BYTES: usize = 40;

/// The bytes of a message.
fn pattern(key: u64, len: usize) -> Vec<u8> {
    let mut numbers = SplitMix64::new(key);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&numbers.next_u64().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// What stands beside a message's bytes in its fingerprint.
#[derive(Clone, Copy, Debug)]
pub(super) enum With {
    Nothing,
    Imm(u32),
    Invalidated(Rkey),
    /// Immediate data of an RDMA WRITE of this length.
    WriteImm(u32, u32),
}
impl With {
    pub(super) fn number(self, src: u32) -> u64 {
        let (kind, a, b) = match self {
            Self::Nothing => (0, 0, 0),
            Self::Imm(i) => (1, i, 0),
            Self::Invalidated(k) => (2, k.raw(), 0),
            Self::WriteImm(i, len) => (3, i, len),
        };
        let all = kind << 60 ^ u64::from(a) << 24 ^ u64::from(b) ^ u64::from(src) << 33;
        SplitMix64::new(all).next_u64()
    }
}

/// A request that is about to be posted.
struct Draft {
    op: SendOp,
    promise: Promise,
    len: usize,
    pieces: Vec<Rc<Span>>,
    inline: Option<Vec<u8>>,
    fence: bool,
    /// It goes to the group of the connection.
    to_group: bool,
}

impl World {
    pub(super) fn post_receives(&mut self, now: Instant, e: usize) -> Checked<bool> {
        let end = &self.ends[e];
        if end.life != Life::Up || now < end.next_recv {
            return Ok(false);
        }
        let (plan, queues) = (&self.plan.conns[end.conn], end.recv_queues());
        let (n, pause) = (end.host, plan.recv_pause);
        let mut posted = false;
        for queue in 0..queues {
            posted |= self.post_receives_to(now, e, queue)?;
        }
        if self.ends[e].shares {
            self.arm_limit(n)?;
        }
        // Without memory for one it is tried again when something has completed.
        if posted {
            let wait = self.rng.up_to(pause);
            self.ends[e].next_recv = now + wait;
        }
        Ok(posted)
    }

    /// Posts receive requests to one of the queues that an end receives by.
    fn post_receives_to(&mut self, now: Instant, e: usize, queue: usize) -> Checked<bool> {
        let (end, plan) = (&self.ends[e], &self.plan.conns[self.ends[e].conn]);
        let n = end.host;
        let grh = if plan.kind == QpType::Ud { GRH_BYTES } else { 0 };
        let (mut depth, mut held, mut bytes) = (plan.recv_depth, end.rq.len(), plan.max_message);
        if let Some(srq) = self.hosts[n].as_mut().and_then(|h| end.shared_queue(h, queue)) {
            (depth, held, bytes) = (srq.depth, srq.ledger.len(), srq.buffer);
        }
        let room = (depth as usize).saturating_sub(held);
        if room == 0 {
            return Ok(false);
        }
        let wanted = 1 + self.rng.below(room as u64) as usize;
        let mut posted = false;
        for nth in 0..wanted {
            let Some(pieces) = self.take_buffer(n, bytes + grh, grh, held + nth == 0) else { break };
            for p in &pieces {
                self.host_mut(n).shadow.open(p.range.clone());
            }
            let sges = self.sges(n, &pieces);
            let wr_id = self.new_wr();
            self.recv_bufs.insert(wr_id, RecvBuf { pieces });
            let wr = RecvWr { wr_id, sges: &sges };
            let host = self.hosts[n].as_mut().expect("the node is up");
            let result = if let Some(srq) = self.ends[e].shared_queue(host, queue) {
                srq.ledger.post(wr_id, true, now);
                srq.limit.fresh += 1;
                post_recv(&mut *srq.port, &[wr]).map(|()| srq.port.ring())
            } else {
                let end = &mut self.ends[e];
                end.rq.post(wr_id, true, now);
                let recv = end.recv.as_mut().expect("it has a receive queue");
                post_recv(&mut **recv, &[wr]).map(|()| recv.ring())
            };
            if let Err(refused) = result {
                return Err(self.broken(format!("a receive request of n{n} was refused: {refused}")));
            }
            posted = true;
        }
        Ok(posted)
    }

    /// Memory for a receive request; the first one of a queue finds some in any case.
    fn take_buffer(&mut self, n: usize, len: usize, grh: usize, is_first: bool) -> Option<Vec<Rc<Span>>> {
        if let Some(pieces) = self.take_pieces(n, Origin::Recv, len, grh) {
            return Some(pieces);
        }
        let host = self.hosts[n].as_mut().filter(|_| is_first)?;
        let at = host.spares.pop().expect("a receive queue that holds no request has left its spare buffer");
        Some(vec![Rc::new(Span { host: n, epoch: host.epoch, origin: Origin::Spare, range: at..at + len })])
    }

    /// Now and then the program wants to know when a shared receive queue runs low.
    fn arm_limit(&mut self, n: usize) -> Checked<()> {
        let (wanted, r) = (self.rng.chance(0.5), self.rng.next_u64());
        let host = self.hosts[n].as_mut().expect("the node is up");
        let Some(srq) = host.srq.as_mut().filter(|s| wanted && s.limit.armed == 0) else { return Ok(()) };
        let limit = 1 + (r % u64::from(srq.depth)) as u32;
        srq.limit.arm(limit, srq.ledger.len());
        let armed = host.device.set_srq_limit(srq.handle, limit);
        self.refused("set_srq_limit", armed)
    }

    pub(super) fn post_requests(&mut self, now: Instant, e: usize) -> Checked<bool> {
        let end = &self.ends[e];
        if end.life != Life::Up
            || end.left == 0
            || now < end.next_post
            || self.ends[end.peer].life != Life::Up
        {
            return Ok(false);
        }
        let plan = &self.plan.conns[end.conn];
        let pause = plan.pause;
        let room = (plan.send_depth as usize).saturating_sub(end.sq.len()).min(end.left as usize);
        if room == 0 {
            return Ok(false);
        }
        let wanted = 1 + self.rng.below(room as u64) as usize;
        let mut drafts = Vec::new();
        while drafts.len() < wanted && (drafts.len() as u32) < self.ends[e].left {
            self.name_queue(e);
            let some = self.draft(e, room - drafts.len(), drafts.len() as u32);
            if some.is_empty() {
                break;
            }
            let names = self.ends[e].names;
            drafts.extend(some.into_iter().map(|draft| (draft, names)));
        }
        let end = &self.ends[e];
        if drafts.is_empty() && !end.sq.is_empty() && end.sq.oldest_signaled().is_none() {
            // Memory is short, and is held by requests that only a later one's completion gives back.
            self.name_queue(e);
            let send = self.draft_send_of(e, &[], Vec::new(), Some(Vec::new()), false);
            self.post(now, e, (send, self.ends[e].names), true)?;
            self.ring(e);
        }
        let posted = drafts.len();
        for draft in drafts {
            self.post(now, e, draft, false)?;
        }
        if posted > 0 {
            self.ring(e);
            self.ends[e].progress_at = now;
        }
        let wait = if posted == 0 { core::time::Duration::from_micros(5) } else { self.rng.up_to(pause) };
        self.ends[e].next_post = now + wait;
        Ok(posted > 0)
    }

    fn ring(&mut self, e: usize) {
        self.ends[e].send.as_mut().expect("who posts is there").ring();
    }

    /// The next requests of an initiator are for one of its peer's queues.
    fn name_queue(&mut self, e: usize) {
        if self.ends[e].role == Some(Role::Initiator) {
            let index = self.rng.below(XrcDomain::QUEUES as u64) as usize;
            let peer = self.host(self.ends[self.ends[e].peer].host);
            self.ends[e].names =
                peer.xrc.as_ref().expect("the node of a target has a domain").queues[index].0;
        }
    }

    fn post(&mut self, now: Instant, e: usize, (draft, names): (Draft, Srqn), must: bool) -> Checked<()> {
        let wr_id = self.new_wr();
        let end = &self.ends[e];
        let mistake = matches!(draft.promise, Promise::Mistake);
        let left = if mistake { 0 } else { end.left - 1 };
        let longest = self.plan.conns[end.conn].unsignaled;
        // The last one of all is signalled: the memory of those before it comes back for sure.
        let must = must || left == 0 || end.unsignaled >= longest;
        let signaled = must || longest < 32 && self.rng.chance(0.5);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::FENCE, draft.fence || self.rng.chance(0.05));
        flags.set(SendFlags::SOLICITED, self.rng.chance(0.1));
        let sges = self.sges(self.ends[e].host, &draft.pieces);
        let payload = match &draft.inline {
            Some(bytes) => Payload::Inline(bytes),
            None => Payload::Sges(&sges),
        };
        let end = &self.ends[e];
        let group = end.group.filter(|_| draft.to_group);
        let dest = match (group, end.ah, end.role) {
            (Some((ah, _)), ..) => Some(UdDest { ah, qpn: Qpn::MULTICAST, qkey: QKEY }.into()),
            (None, Some(ah), _) => Some(UdDest { ah, qpn: self.ends[end.peer].qpn, qkey: QKEY }.into()),
            (None, None, Some(_)) => Some(Dest::Srq(names)),
            (None, None, None) => {
                let qpn = self.ends[end.peer].qpn;
                end.eec.map(|eec| Dest::Reliable(RdDest { eec, qpn, qkey: QKEY }))
            }
        };
        let wr = SendWr { wr_id, op: draft.op, flags, payload, dest };
        if self.sim.prints() {
            self.sim.say(&format!(
                "n{} qp {} posts wr {wr_id} {:?} {} B {flags:?}",
                end.host, end.qpn, draft.op, draft.len
            ));
        }
        let end = &mut self.ends[e];
        end.left = left;
        end.unsignaled = if signaled { 0 } else { end.unsignaled + 1 };
        end.sq.post(wr_id, signaled, now);
        let opcode = draft.op.wc_opcode();
        end.ops.insert(wr_id, Op { promise: draft.promise, opcode, len: draft.len, pieces: draft.pieces });
        let port = end.send.as_mut().expect("who posts is there");
        if let Err(refused) = post_send(&mut **port, &[wr]) {
            let (n, op) = (end.host, draft.op);
            return Err(self.broken(format!("a request of n{n} ({op:?}) was refused: {refused}")));
        }
        Ok(())
    }

    /// One request, or two that belong together; none if memory is short.
    fn draft(&mut self, e: usize, room: usize, before: u32) -> Vec<Draft> {
        let end = &self.ends[e];
        if end.made.is_some() {
            return Vec::new();
        }
        let left = end.left - before;
        let kind = self.plan.conns[end.conn].kind;
        if left == 1
            && let Some(mistake) = end.mistake
        {
            return self.draft_mistake(e, mistake).into_iter().collect();
        }
        let two = room >= 2 && left >= 2 + u32::from(end.mistake.is_some());
        let one = |d: Option<Draft>| d.into_iter().collect();
        match kind {
            QpType::Ud => one(self.draft_send(e)),
            QpType::Uc => match self.rng.below(3) {
                0 => one(self.draft_write(e)),
                _ => one(self.draft_send(e)),
            },
            QpType::XrcIni | QpType::XrcTgt | QpType::Rd | QpType::Eec => {
                unreachable!("no plan has {kind:?}")
            }
            QpType::Rc => match self.rng.below(12) {
                0..4 => one(self.draft_bind(e).or_else(|| self.draft_send(e))),
                4..7 => one(self.draft_write(e)),
                7 => one(self.draft_read(e)),
                8 if two && self.places(e) && self.rng.chance(0.5) => self.draft_write_flush(e),
                8 if two => self.draft_write_read(e),
                9 if two => self.draft_read_send(e),
                10 => one(self.draft_atomic(e)),
                _ => one(self.draft_shared_add(e)),
            },
        }
    }

    /// Whether an end posts ATOMIC WRITEs and FLUSHes too, which are requests of RC alone.
    fn places(&self, e: usize) -> bool {
        self.plan.mix.placement && self.ends[e].role.is_none() && self.ends[e].eec.is_none()
    }

    /// A random length, rather short, and often near a boundary.
    fn length(&mut self, e: usize) -> usize {
        let plan = &self.plan.conns[self.ends[e].conn];
        let (max, mtu) = (plan.max_message, plan.mtu.bytes() as usize);
        let rng = &mut self.rng;
        let len = match rng.below(8) {
            0 => rng.below(9) as usize,
            1 => (mtu * (1 + rng.below(3) as usize) + rng.below(3) as usize).saturating_sub(1),
            2 => max,
            3 | 4 => rng.below(max as u64 + 1) as usize,
            _ => (rng.below(max as u64 + 1) >> rng.below(8)) as usize,
        };
        len.min(max)
    }

    /// Ranges for `len` bytes of a host's local memory; the first one of at least `first` bytes.
    fn take_pieces(&mut self, n: usize, origin: Origin, len: usize, first: usize) -> Option<Vec<Rc<Span>>> {
        let count = self.rng.between(1, 4) as usize;
        let mut cuts: Vec<usize> =
            (1..count).map(|_| self.rng.between(first.min(len) as u64, len as u64) as usize).collect();
        cuts.sort_unstable();
        cuts.push(len);
        let mut pieces = Vec::with_capacity(count);
        let mut at = 0;
        for cut in cuts {
            let host = self.hosts[n].as_mut().expect("the node is up");
            let zone = if origin == Origin::Recv { &mut host.recv_zone } else { &mut host.local.zone };
            let Some(range) = zone.take(cut - at, 1, &mut self.rng) else {
                pieces.into_iter().for_each(|p| self.release(p));
                return None;
            };
            pieces.push(Rc::new(Span { host: n, epoch: host.epoch, origin, range }));
            at = cut;
        }
        Some(pieces)
    }
    fn sges(&self, n: usize, pieces: &[Rc<Span>]) -> Vec<Sge> {
        let host = self.host(n);
        let sge = |p: &Rc<Span>| Sge {
            addr: host.arena.address(p.range.start),
            len: p.range.len() as u32,
            // An entry without bytes needs no key.
            lkey: if p.range.is_empty() { Lkey::new(0) } else { host.local.keys.lkey },
        };
        pieces.iter().map(sge).collect()
    }
    fn fill_pieces(&mut self, n: usize, pieces: &[Rc<Span>], bytes: &[u8]) {
        let mut at = 0;
        for p in pieces {
            self.host_mut(n).fill(p.range.start, &bytes[at..at + p.range.len()]);
            at += p.range.len();
        }
    }
    fn open_pieces(&mut self, n: usize, pieces: &[Rc<Span>]) {
        for p in pieces {
            self.host_mut(n).shadow.open(p.range.clone());
        }
    }
    /// Local memory filled with these bytes, or the bytes inline.
    #[allow(clippy::type_complexity)]
    fn source(&mut self, e: usize, bytes: &[u8]) -> Option<(Vec<Rc<Span>>, Option<Vec<u8>>)> {
        if bytes.len() <= 128 && self.rng.chance(0.4) {
            return Some((Vec::new(), Some(bytes.to_vec())));
        }
        let n = self.ends[e].host;
        let pieces = self.take_pieces(n, Origin::Local, bytes.len(), 0)?;
        self.fill_pieces(n, &pieces, bytes);
        Some((pieces, None))
    }

    /// A message to the peer is noted where it has to arrive. Says its number, and whether it goes to the group.
    fn expect_message(&mut self, e: usize, bytes: &[u8], with: With) -> (Option<u64>, bool) {
        let end = &self.ends[e];
        let kind = self.plan.conns[end.conn].kind;
        let src = if kind == QpType::Ud { end.qpn.raw() } else { end.names.raw() };
        let print = fingerprint(bytes, with.number(src));
        let peer = end.peer;
        if kind == QpType::Rc {
            return (Some(self.ends[peer].stream.sent(print)), false);
        }
        self.ends[peer].datagrams.sent(print);
        let to_group = self.ends[e].group.is_some() && self.rng.chance(0.5);
        if to_group {
            // It comes back as well.
            self.ends[e].datagrams.sent(print);
            self.report.multicasts += 1;
        }
        (None, to_group)
    }

    fn draft_send(&mut self, e: usize) -> Option<Draft> {
        let (len, key) = (self.length(e), self.rng.next_u64());
        let plan = &self.plan.conns[self.ends[e].conn];
        if plan.kind != QpType::Rc && self.rng.chance(0.03) {
            return self.draft_too_long(e);
        }
        let bytes = pattern(key, len);
        let (pieces, inline) = self.source(e, &bytes)?;
        Some(self.draft_send_of(e, &bytes, pieces, inline, false))
    }
    fn draft_send_of(
        &mut self,
        e: usize,
        bytes: &[u8],
        pieces: Vec<Rc<Span>>,
        inline: Option<Vec<u8>>,
        fence: bool,
    ) -> Draft {
        let end = &self.ends[e];
        let rc = self.plan.conns[end.conn].kind == QpType::Rc;
        let peer = end.peer;
        let is_lent = |i: &Invalidatable| i.state == Lending::Lent;
        let key = self.ends[peer].invalidatable.iter().position(is_lent).filter(|_| rc);
        let (op, with) = match self.rng.below(10) {
            0..5 => (SendOp::Send, With::Nothing),
            9 if key.is_some() => {
                let i = &mut self.ends[peer].invalidatable[key.expect("seen just now")];
                i.state = Lending::Used;
                (SendOp::SendInv(i.rkey), With::Invalidated(i.rkey))
            }
            _ => {
                let imm = self.rng.next_u64() as u32;
                (SendOp::SendImm(imm), With::Imm(imm))
            }
        };
        let (number, to_group) = self.expect_message(e, bytes, with);
        Draft { op, promise: Promise::Send(number), len: bytes.len(), pieces, inline, fence, to_group }
    }

    /// An unreliable message that no receive request has room for: nobody is to see anything of it.
    fn draft_too_long(&mut self, e: usize) -> Option<Draft> {
        let max = self.plan.conns[self.ends[e].conn].max_message;
        let len = max + 1 + self.rng.below(100) as usize;
        let (pieces, inline) = self.source(e, &pattern(3, len))?;
        Some(Draft {
            op: SendOp::Send,
            promise: Promise::Send(None),
            len,
            pieces,
            inline,
            fence: false,
            to_group: false,
        })
    }

    /// A range at the peer for an end to write.
    fn take_target(&mut self, e: usize, len: usize) -> Option<(Rc<Span>, RemoteAddr)> {
        let p = self.ends[e].peer;
        let n = self.ends[p].host;
        let host = self.hosts[n].as_mut().expect("the peer is up");
        let (origin, range, rkey) = match &mut self.ends[p].own {
            // A region that is gone is still named: the access has to be refused.
            Some(own) if own.revoked => return None,
            Some(own) => (Origin::Own(p), own.zone.take(len, 1, &mut self.rng)?, own.keys.rkey),
            None => {
                let range = host.remote.zone.take(len, 1, &mut self.rng)?;
                let window = self.ends[p].window.filter(|_| self.rng.chance(0.3));
                (Origin::Remote, range, window.map_or(host.remote.keys.rkey, |(_, rkey)| rkey))
            }
        };
        host.shadow.open(range.clone());
        let remote = RemoteAddr { addr: host.arena.address(range.start), rkey };
        Some((Rc::new(Span { host: n, epoch: host.epoch, origin, range }), remote))
    }

    fn draft_write(&mut self, e: usize) -> Option<Draft> {
        if let Some(refused) = self.draft_to_revoked(e) {
            return Some(refused);
        }
        let (mut len, key) = (self.length(e), self.rng.next_u64());
        if self.plan.conns[self.ends[e].conn].kind == QpType::Uc {
            // Nobody can tell when the range is free again.
            len = len.min(UC_WRITE_BYTES);
        }
        let bytes = pattern(key, len);
        let (pieces, inline) = self.source(e, &bytes)?;
        let Some((target, remote)) = self.take_target(e, len) else {
            pieces.into_iter().for_each(|p| self.release(p));
            return None;
        };
        let mut number = None;
        let mut op = SendOp::Write(remote);
        if self.rng.chance(0.3) {
            let imm = self.new_wr() as u32;
            op = SendOp::WriteImm(remote, imm);
            number = self.expect_message(e, &[], With::WriteImm(imm, len as u32)).0;
            let peer = self.ends[e].peer;
            self.ends[peer].placed.insert(imm, (target.range.clone(), bytes.clone()));
        }
        let promise = Promise::Write { target, bytes, number };
        Some(Draft { op, promise, len, pieces, inline, fence: false, to_group: false })
    }

    /// Bind of a window that the peer may take back from then on.
    fn draft_bind(&mut self, e: usize) -> Option<Draft> {
        let index = self.ends[e].invalidatable.iter().position(|i| i.state == Lending::Unbound)?;
        let host = self.host(self.ends[e].host);
        let lent = &self.ends[e].invalidatable[index];
        let (rkey, range) = (lent.rkey, host.window_range(&host.local.keys, lent.range.clone()));
        self.ends[e].invalidatable[index].state = Lending::Asked;
        let (op, promise) = (SendOp::BindMw { rkey, range }, Promise::Bind(index));
        Some(Draft {
            op,
            promise,
            len: 0,
            pieces: Vec::new(),
            inline: Some(Vec::new()),
            fence: false,
            to_group: false,
        })
    }

    /// A WRITE to the peer's region that was deregistered: it has to be refused.
    fn draft_to_revoked(&mut self, e: usize) -> Option<Draft> {
        let p = self.ends[e].peer;
        let own = self.ends[p].own.as_ref().filter(|o| o.revoked)?;
        let (rkey, at) = (own.keys.rkey, own.zone.all().start);
        let addr = self.host(self.ends[p].host).arena.address(at);
        let (pieces, inline) = self.source(e, &pattern(1, 16))?;
        self.ends[e].made = Some(WcStatus::RemoteAccess);
        let op = SendOp::Write(RemoteAddr { addr, rkey });
        Some(Draft { op, promise: Promise::Mistake, len: 16, pieces, inline, fence: false, to_group: false })
    }

    fn draft_read(&mut self, e: usize) -> Option<Draft> {
        let n = self.ends[e].host;
        let peer = self.host(self.ends[self.ends[e].peer].host);
        let (all, rkey) = (peer.readable.zone.all(), peer.readable.keys.rkey);
        let len = self.length(e).min(all.len());
        let start = all.start + self.rng.below((all.len() - len) as u64 + 1) as usize;
        let peer = self.host(self.ends[self.ends[e].peer].host);
        let bytes = peer.shadow.bytes(start..start + len).to_vec();
        let addr = peer.arena.address(start);
        let pieces = self.take_pieces(n, Origin::Local, len, 0)?;
        self.open_pieces(n, &pieces);
        let op = SendOp::Read(RemoteAddr { addr, rkey });
        Some(Draft {
            op,
            promise: Promise::Read { bytes, source: None },
            len,
            pieces,
            inline: None,
            fence: false,
            to_group: false,
        })
    }

    /// A WRITE, and a READ of the same range behind it.
    fn draft_write_read(&mut self, e: usize) -> Vec<Draft> {
        let Some(write) = self.draft_write(e) else { return Vec::new() };
        let (Promise::Write { target, bytes, .. }, SendOp::Write(remote) | SendOp::WriteImm(remote, _)) =
            (&write.promise, write.op)
        else {
            return vec![write];
        };
        let (source, bytes, n) = (Some(Rc::clone(target)), bytes.clone(), self.ends[e].host);
        let Some(pieces) = self.take_pieces(n, Origin::Local, bytes.len(), 0) else { return vec![write] };
        self.open_pieces(n, &pieces);
        let len = bytes.len();
        let promise = Promise::Read { bytes, source };
        let read = Draft {
            op: SendOp::Read(remote),
            promise,
            len,
            pieces,
            inline: None,
            fence: false,
            to_group: false,
        };
        vec![write, read]
    }

    /// A WRITE, and a FLUSH of the same range, or of its whole region, behind it.
    fn draft_write_flush(&mut self, e: usize) -> Vec<Draft> {
        let Some(write) = self.draft_write(e) else { return Vec::new() };
        let (Promise::Write { target, bytes, .. }, SendOp::Write(remote) | SendOp::WriteImm(remote, _)) =
            (&write.promise, write.op)
        else {
            return vec![write];
        };
        let promise = Promise::Flush { target: Rc::clone(target), bytes: bytes.clone() };
        let selectivity = if self.rng.chance(0.3) { Selectivity::Region } else { Selectivity::Range };
        let op = SendOp::Flush {
            remote,
            len: bytes.len() as u32,
            placement: Placement::GLOBAL_VISIBILITY,
            selectivity,
        };
        let flush =
            Draft { op, promise, len: 0, pieces: Vec::new(), inline: None, fence: false, to_group: false };
        vec![write, flush]
    }

    /// A READ, and a fenced SEND of what it brought.
    fn draft_read_send(&mut self, e: usize) -> Vec<Draft> {
        let Some(read) = self.draft_read(e) else { return Vec::new() };
        let Promise::Read { bytes, .. } = &read.promise else { return vec![read] };
        let (bytes, pieces) = (bytes.clone(), read.pieces.iter().map(Rc::clone).collect());
        let send = self.draft_send_of(e, &bytes, pieces, None, true);
        vec![read, send]
    }

    fn take_word(&mut self, e: usize) -> Option<Vec<Rc<Span>>> {
        let n = self.ends[e].host;
        let pieces = self.take_pieces(n, Origin::Local, 8, 0)?;
        self.open_pieces(n, &pieces);
        Some(pieces)
    }

    /// ATOMIC WRITE of the word that only this end changes.
    fn draft_atomic_write(&mut self, e: usize) -> Option<Draft> {
        let (range, _) = self.ends[e].word.clone()?;
        let peer = self.host(self.ends[self.ends[e].peer].host);
        let remote = RemoteAddr { addr: peer.arena.address(range.start), rkey: peer.remote.keys.rkey };
        let value = self.rng.next_u64();
        self.ends[e].word = Some((range, value));
        let op = SendOp::AtomicWrite { remote, value: value.to_le_bytes() };
        let promise = Promise::AtomicWrite;
        Some(Draft { op, promise, len: 0, pieces: Vec::new(), inline: None, fence: false, to_group: false })
    }

    /// An atomic on the same word.
    fn draft_atomic(&mut self, e: usize) -> Option<Draft> {
        if self.places(e) && self.rng.chance(0.3) {
            return self.draft_atomic_write(e);
        }
        let (range, old) = self.ends[e].word.clone()?;
        let pieces = self.take_word(e)?;
        let peer = self.host(self.ends[self.ends[e].peer].host);
        let remote = RemoteAddr { addr: peer.arena.address(range.start), rkey: peer.remote.keys.rkey };
        let number = self.rng.next_u64();
        let (op, new) = match self.rng.below(3) {
            0 => (SendOp::FetchAdd { remote, add: number }, old.wrapping_add(number)),
            1 => (SendOp::CompareSwap { remote, compare: old, swap: number }, number),
            _ => (SendOp::CompareSwap { remote, compare: old ^ 1 << (number % 64), swap: number }, old),
        };
        self.ends[e].word = Some((range, new));
        Some(Draft {
            op,
            promise: Promise::Atomic { old },
            len: 8,
            pieces,
            inline: None,
            fence: false,
            to_group: false,
        })
    }

    /// Adds 1 to the word that all peers of a node share.
    fn draft_shared_add(&mut self, e: usize) -> Option<Draft> {
        let pieces = self.take_word(e)?;
        let n = self.ends[self.ends[e].peer].host;
        let peer = self.host_mut(n);
        peer.shared_posted += 1;
        let addr = peer.arena.address(peer.shared_word.start);
        let op = SendOp::FetchAdd { remote: RemoteAddr { addr, rkey: peer.remote.keys.rkey }, add: 1 };
        Some(Draft {
            op,
            promise: Promise::SharedAdd,
            len: 8,
            pieces,
            inline: None,
            fence: false,
            to_group: false,
        })
    }

    fn draft_mistake(&mut self, e: usize, mistake: Mistake) -> Option<Draft> {
        let p = self.ends[e].peer;
        let peer = self.host(self.ends[p].host);
        let start = |r: Range<usize>| peer.arena.address(r.start);
        let end = |r: Range<usize>| peer.arena.address(r.end);
        let to = |addr, rkey| RemoteAddr { addr, rkey };
        let add = |remote| SendOp::FetchAdd { remote, add: 1 };
        let mut status = WcStatus::RemoteAccess;
        let mut len = 8;
        let op = match mistake {
            // A queue that nobody has.
            Mistake::UnknownKey if self.ends[e].role.is_some() => {
                self.ends[e].names = Srqn::new(0xff_fffe);
                SendOp::Send
            }
            Mistake::UnknownKey => {
                let key = Rkey::new(peer.remote.keys.rkey.raw() ^ 0x0100);
                SendOp::Write(to(start(peer.remote.zone.all()), key))
            }
            Mistake::BeyondRegion => {
                SendOp::Write(to(end(peer.remote.zone.all()) - 4, peer.remote.keys.rkey))
            }
            Mistake::NoWriteRight => {
                SendOp::Write(to(start(peer.readable.zone.all()), peer.readable.keys.rkey))
            }
            Mistake::NoAtomicRight => add(to(start(peer.readable.zone.all()), peer.readable.keys.rkey)),
            Mistake::NoReadRight => SendOp::Read(to(start(peer.local.zone.all()), peer.local.keys.rkey)),
            Mistake::ForeignPd => SendOp::Write(to(start(peer.foreign.zone.all()), peer.foreign.keys.rkey)),
            Mistake::Invalidated => {
                match self.ends[p].invalidatable.iter().find(|i| i.state == Lending::Used) {
                    Some(i) => SendOp::Write(to(start(i.range.clone()), i.rkey)),
                    None => return self.draft_mistake(e, Mistake::NoWriteRight),
                }
            }
            Mistake::Misaligned => {
                status = WcStatus::RemoteInvalidRequest;
                add(to(start(peer.remote.zone.all()) + 4, peer.remote.keys.rkey))
            }
            Mistake::TooLong => {
                let host = self.hosts[self.ends[p].host].as_mut().expect("the peer is up");
                let room = match self.ends[p].shared_queue(host, 0) {
                    Some(srq) => srq.buffer,
                    None => self.plan.conns[self.ends[e].conn].max_message,
                };
                status = WcStatus::RemoteInvalidRequest;
                len = room + 1 + self.rng.below(5000) as usize;
                SendOp::Send
            }
        };
        let (pieces, inline) = if op.is_read_or_atomic() {
            (self.take_word(e)?, None)
        } else {
            self.source(e, &pattern(2, len))?
        };
        self.ends[e].made = Some(status);
        self.ends[e].too_long = mistake == Mistake::TooLong;
        Some(Draft { op, promise: Promise::Mistake, len, pieces, inline, fence: false, to_group: false })
    }
}
