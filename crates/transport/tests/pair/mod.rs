//! Two queue pairs, their hosts, and a wire between them whose faults a test scripts by packet number.
#![allow(dead_code, unreachable_pub, missing_docs)]

mod raw;

use std::collections::{BTreeMap, VecDeque};

use hca_core::wire::{NakCode, Packet, PacketOp, Syndrome};
use hca_core::*;
use hca_transport::*;

#[allow(unused_imports)] // not all tests make packets by hand
pub use raw::Raw;

/// Bytes of each side's memory, all of it one region.
pub const MEMORY: usize = 1 << 20;
/// The key of all memory, with all rights.
pub const KEY: Rkey = Rkey::new(0x1234);
/// First send request index: the indices wrap in most tests.
pub const SQ_BASE: u32 = u32::MAX - 2;
/// One way through the wire.
pub const LATENCY_NS: u64 = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}
impl Side {
    pub fn other(self) -> Self {
        if self == Self::A { Self::B } else { Self::A }
    }
}

/// The wire's decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    Drop,
    Double,
    Late(u64),
}

#[derive(Clone, Copy, Debug)]
pub struct Posted {
    pub request: SendRequest,
    pub addr: usize,
    pub bad: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedRecv {
    pub id: u32,
    pub addr: usize,
    pub len: usize,
    pub bad: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Send(u32, WcStatus, u32),
    Recv(u32, RecvDone),
    RecvFlushed(u32),
    Event(QpEvent),
}

/// A host whose queues and memory are plain vectors.
pub struct MockHost {
    pub sq: Vec<Posted>,
    pub completed: usize,
    pub rq: VecDeque<PostedRecv>,
    pub held: Option<PostedRecv>,
    pub next_recv: u32,
    pub mem: Vec<u8>,
    pub done: Vec<Done>,
    pub counts: BTreeMap<u8, u64>,
    pub srq: bool,
    pub revoked: bool,
    pub invalidated: Vec<Rkey>,
    pub atomics: u32,
    pub flushes: Vec<Flushed>,
    pub writes: u32,
    pub near: Near,
    /// Whether lists may be sent in place, by their place in `mem`.
    pub stays: bool,
    /// The shared receive queue that requests name from now on (XRC initiators).
    pub names: Srqn,
    named: Vec<Srqn>,
    pub xrc: XrcQueues,
}

/// The shared receive queues of an XRC target.
#[derive(Default)]
pub struct XrcQueues {
    /// The waiting requests of each queue, and the key of the memory that its protection domain has.
    pub queues: BTreeMap<u32, (VecDeque<PostedRecv>, Rkey)>,
    /// The queue that the request under way names.
    pub entered: Option<u32>,
    /// The queue of the request that is held.
    held_of: u32,
    /// The queues of completed requests, in their order.
    pub completed: Vec<u32>,
}

/// A FLUSH: range, rights, and the number of WRITEs and atomics that were placed before.
pub type Flushed = (Option<(u64, u64)>, Access, u32);
/// A rule for the outcome of a request (index, request, behind) on the peer's memory.
pub type DirectRule = Box<dyn FnMut(u32, &SendRequest, bool) -> Direct>;
/// A rule for the number of lent bytes of a request's list (index, offset, at most).
pub type LendRule = Box<dyn FnMut(u32, u32, u32) -> Option<u32>>;

/// A rule for the number of lent bytes of a READ (address, at most).
pub type LendReadRule = Box<dyn FnMut(u64, u32) -> Option<u32>>;

/// A host's knowledge of a peer on the same machine.
#[derive(Default)]
pub struct Near {
    /// The peer's memory, while a test lets this side reach it.
    pub memory: Vec<u8>,
    pub direct: Option<DirectRule>,
    pub lend: Option<LendRule>,
    /// The rule for loans of the memory that the peer READs, by address and length.
    pub lend_read: Option<LendReadRule>,
    /// The loan that comes is of memory that the peer does not have.
    pub bad: bool,
    /// Of the loans to come, those that are out of reach, by order.
    pub gone: VecDeque<bool>,
    /// Loans that were fetched.
    pub fetched: Vec<Loan>,
}

impl MockHost {
    /// What the peer lends, if it is within reach.
    fn fetch(&mut self, loan: &Loan) -> Result<Vec<u8>, LoanError> {
        if self.near.gone.pop_front().unwrap_or(false) {
            return Err(LoanError::Gone);
        }
        if self.near.bad {
            return Err(LoanError::Bad);
        }
        let at = loan.memory.addr as usize;
        let end = at.checked_add(loan.len as usize).ok_or(LoanError::Gone)?;
        let data = self.near.memory.get(at..end).ok_or(LoanError::Gone)?.to_vec();
        self.near.fetched.push(*loan);
        Ok(data)
    }
    pub fn new() -> Self {
        Self {
            sq: Vec::new(),
            completed: 0,
            rq: VecDeque::new(),
            held: None,
            next_recv: 0,
            mem: vec![0; MEMORY],
            done: Vec::new(),
            counts: BTreeMap::new(),
            srq: false,
            revoked: false,
            invalidated: Vec::new(),
            atomics: 0,
            flushes: Vec::new(),
            writes: 0,
            near: Near::default(),
            stays: false,
            names: Srqn::default(),
            named: Vec::new(),
            xrc: XrcQueues::default(),
        }
    }
    /// Queues a request, without a notification of the queue pair.
    pub fn push(&mut self, posted: Posted) {
        self.sq.push(posted);
        self.named.push(self.names);
    }
    fn at(index: u32) -> usize {
        index.wrapping_sub(SQ_BASE) as usize
    }
    pub fn counted(&self, what: Count) -> u64 {
        self.counts.get(&(what as u8)).copied().unwrap_or(0)
    }
    /// Statuses of the send completions, in order, unsignalled ones as well.
    pub fn statuses(&self) -> Vec<WcStatus> {
        self.done.iter().filter_map(|d| if let Done::Send(_, s, _) = d { Some(*s) } else { None }).collect()
    }
    pub fn recvs(&self) -> Vec<(u32, RecvDone)> {
        self.done
            .iter()
            .filter_map(|d| if let Done::Recv(i, r) = d { Some((*i, *r)) } else { None })
            .collect()
    }
    pub fn has_event(&self, event: QpEvent) -> bool {
        self.done.contains(&Done::Event(event))
    }
    fn remote(&self, rkey: Rkey, va: u64, len: u64) -> Result<usize, RemoteAccessError> {
        let end = va.checked_add(len).ok_or(RemoteAccessError)?;
        let key = self.xrc.entered.map_or(KEY, |srq| self.xrc.queues[&srq].1);
        if rkey != key || self.revoked || end > MEMORY as u64 {
            Err(RemoteAccessError)
        } else {
            Ok(va as usize)
        }
    }
    /// Does a request straight on the peer's memory.
    fn reach(&mut self, index: u32, request: &SendRequest) {
        let here = self.sq[Self::at(index)].addr;
        let len = request.len as usize;
        let at = |remote: RemoteAddr| remote.addr as usize;
        match request.op.op() {
            SendOp::Write(to) => {
                self.near.memory[at(to)..at(to) + len].copy_from_slice(&self.mem[here..here + len]);
            }
            SendOp::Read(from) => {
                self.mem[here..here + len].copy_from_slice(&self.near.memory[at(from)..at(from) + len]);
            }
            SendOp::FetchAdd { remote, add } => {
                let word = &mut self.near.memory[at(remote)..at(remote) + 8];
                let old = u64::from_ne_bytes((&*word).try_into().unwrap());
                word.copy_from_slice(&old.wrapping_add(add).to_ne_bytes());
                self.mem[here..here + 8].copy_from_slice(&old.to_ne_bytes());
            }
            op => panic!("{op:?} is not done directly"),
        }
    }
    fn local(&self, index: u32) -> Result<Posted, LocalError> {
        let p = self.sq[Self::at(index)];
        if p.bad { Err(LocalError::Protection) } else { Ok(p) }
    }
}

impl Host for MockHost {
    fn sq_posted(&self) -> u32 {
        SQ_BASE.wrapping_add(self.sq.len() as u32)
    }
    fn named_srq(&self, index: u32) -> Srqn {
        self.named[Self::at(index)]
    }
    fn enter_srq(&mut self, number: Srqn) -> Result<(), RemoteAccessError> {
        if !self.xrc.queues.contains_key(&number.raw()) {
            return Err(RemoteAccessError);
        }
        self.xrc.entered = Some(number.raw());
        Ok(())
    }
    fn send_request(&self, index: u32) -> SendRequest {
        self.sq[Self::at(index)].request
    }
    fn gather(&mut self, index: u32, offset: u32, out: &mut [u8]) -> Result<(), LocalError> {
        let p = self.local(index)?;
        let at = p.addr + offset as usize;
        out.copy_from_slice(&self.mem[at..at + out.len()]);
        Ok(())
    }
    fn in_place(&mut self, index: u32, offset: u32, len: u32) -> Option<InPlace> {
        let at = self.local(index).ok()?.addr + offset as usize;
        self.stays.then_some(InPlace { addr: at, len })
    }
    fn scatter(&mut self, index: u32, offset: u32, data: &[u8]) -> Result<(), LocalError> {
        let p = self.local(index)?;
        assert!(offset as usize + data.len() <= p.request.len as usize, "response beyond the list");
        let at = p.addr + offset as usize;
        self.mem[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn check_local(&mut self, index: u32, _write: bool) -> Result<(), LocalError> {
        self.local(index).map(|_| ())
    }
    fn complete_send(&mut self, index: u32, status: WcStatus, byte_len: u32) {
        assert_eq!(Self::at(index), self.completed, "send completions out of order");
        self.completed += 1;
        self.done.push(Done::Send(index, status, byte_len));
    }
    fn take_recv(&mut self, _packet: Option<&Packet<'_>>) -> Option<u64> {
        assert!(self.held.is_none(), "two receive requests held");
        self.held = match self.xrc.entered {
            Some(srq) => {
                self.xrc.held_of = srq;
                self.xrc.queues.get_mut(&srq).and_then(|queue| queue.0.pop_front())
            }
            None => self.rq.pop_front(),
        };
        self.held.map(|r| r.len as u64)
    }
    fn place_recv(&mut self, offset: u32, data: &[u8]) -> Result<(), LocalError> {
        let r = self.held.expect("a receive request is held");
        if r.bad {
            return Err(LocalError::Protection);
        }
        assert!(offset as usize + data.len() <= r.len, "placed beyond the receive request");
        let at = r.addr + offset as usize;
        self.mem[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn complete_recv(&mut self, done: &RecvDone) {
        let r = self.held.take().expect("a receive request is held");
        self.done.push(Done::Recv(r.id, *done));
        self.xrc.completed.extend(self.xrc.entered.map(|_| self.xrc.held_of));
    }
    fn return_recv(&mut self) {
        let r = self.held.take().expect("a receive request is held");
        let held_of = self.xrc.entered.map(|_| self.xrc.held_of);
        match held_of.and_then(|srq| self.xrc.queues.get_mut(&srq)) {
            Some(queue) => queue.0.push_front(r),
            None => self.rq.push_front(r),
        }
    }
    fn recv_credits(&self) -> Option<u32> {
        if self.srq { None } else { Some(self.rq.len() as u32) }
    }
    fn flush_recv(&mut self) {
        let rest = if self.srq { None } else { Some(self.rq.drain(..)) };
        for r in self.held.take().into_iter().chain(rest.into_iter().flatten()) {
            self.done.push(Done::RecvFlushed(r.id));
        }
    }
    fn has_srq(&self) -> bool {
        self.srq
    }
    fn check_remote(&mut self, rkey: Rkey, va: u64, len: u64, _: Access) -> Result<(), RemoteAccessError> {
        if len == 0 { Ok(()) } else { self.remote(rkey, va, len).map(|_| ()) }
    }
    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), RemoteAccessError> {
        let at = self.remote(rkey, va, data.len() as u64)?;
        self.mem[at..at + data.len()].copy_from_slice(data);
        self.writes += 1;
        Ok(())
    }
    fn read_remote(&mut self, rkey: Rkey, va: u64, out: &mut [u8]) -> Result<(), RemoteAccessError> {
        let at = self.remote(rkey, va, out.len() as u64)?;
        out.copy_from_slice(&self.mem[at..at + out.len()]);
        Ok(())
    }
    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, RemoteAccessError> {
        let at = self.remote(rkey, va, 8)?;
        let old = u64::from_ne_bytes(self.mem[at..at + 8].try_into().unwrap());
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } => {
                if old == compare {
                    swap
                } else {
                    old
                }
            }
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
            AtomicOp::Write { value } => value,
        };
        self.mem[at..at + 8].copy_from_slice(&new.to_ne_bytes());
        self.atomics += 1;
        Ok(old)
    }
    fn flush_remote(
        &mut self,
        rkey: Rkey,
        range: Option<(u64, u64)>,
        rights: Access,
    ) -> Result<(), RemoteAccessError> {
        let (va, len) = range.unwrap_or((0, 1));
        self.remote(rkey, va, len)?;
        self.flushes.push((range, rights, self.writes + self.atomics));
        Ok(())
    }
    fn invalidate(&mut self, rkey: Rkey) -> Result<(), RemoteAccessError> {
        if rkey != KEY {
            return Err(RemoteAccessError);
        }
        self.invalidated.push(rkey);
        Ok(())
    }
    fn direct(&mut self, index: u32, request: &SendRequest, behind: bool) -> Direct {
        let Some(rule) = &mut self.near.direct else { return Direct::Unable };
        let outcome = rule(index, request, behind);
        if outcome == Direct::Done {
            self.reach(index, request);
        }
        outcome
    }
    fn lend(&mut self, index: u32, offset: u32, max: u32) -> Option<Loan> {
        let len = self.near.lend.as_mut()?(index, offset, max)?;
        assert!(len <= max, "more is lent than asked for");
        let addr = self.sq[Self::at(index)].addr as u64 + u64::from(offset);
        // Some are of memory that was not granted.
        let terms = (len % 2 == 0).then_some([u64::from(index), addr]);
        Some(Loan { memory: RemoteAddr { addr, rkey: KEY }, len, terms })
    }
    fn place_loan(&mut self, offset: u32, loan: &Loan) -> Result<(), LoanError> {
        let data = self.fetch(loan)?;
        Ok(self.place_recv(offset, &data)?)
    }
    fn write_loan(&mut self, rkey: Rkey, va: u64, loan: &Loan) -> Result<(), LoanError> {
        self.check_remote(rkey, va, loan.len.into(), Access::REMOTE_WRITE).map_err(|_| LoanError::Remote)?;
        let data = self.fetch(loan)?;
        self.write_remote(rkey, va, &data).map_err(|_| LoanError::Remote)
    }
    fn lend_remote(&mut self, rkey: Rkey, va: u64, max: u32) -> Option<Loan> {
        self.check_remote(rkey, va, max.into(), Access::REMOTE_READ).ok()?;
        let len = self.near.lend_read.as_mut()?(va, max)?;
        assert!(len <= max, "more is lent than asked for");
        Some(Loan { memory: RemoteAddr { addr: va, rkey: KEY }, len, terms: Some([va, 1]) })
    }
    fn scatter_loan(&mut self, index: u32, offset: u32, loan: &Loan) -> Result<(), LoanError> {
        let data = self.fetch(loan)?;
        Ok(self.scatter(index, offset, &data)?)
    }
    fn event(&mut self, event: QpEvent) {
        self.done.push(Done::Event(event));
    }
    fn count(&mut self, what: Count) {
        *self.counts.entry(what as u8).or_default() += 1;
    }
}

/// Collects packets; refuses beyond `room`.
#[derive(Default)]
pub struct VecSink {
    pub out: Vec<(Option<AhHandle>, Vec<u8>)>,
    reserved: Option<(Option<AhHandle>, Vec<u8>)>,
    pub room: usize,
}
impl VecSink {
    pub fn with_room(room: usize) -> Self {
        Self { room, ..Self::default() }
    }
}
impl TxSink for VecSink {
    fn reserve(&mut self, to: Option<AhHandle>, len: usize) -> Option<&mut [u8]> {
        if self.out.len() >= self.room {
            return None;
        }
        // What is not written shows.
        Some(&mut self.reserved.insert((to, vec![0xa5; len])).1)
    }
    fn commit(&mut self) {
        self.out.push(self.reserved.take().expect("a packet was reserved"));
    }
}

pub struct Node {
    pub qp: Qp,
    pub host: MockHost,
}

/// One packet as it was sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub side: Side,
    pub at_ns: u64,
    pub bytes: Vec<u8>,
}
impl Sent {
    pub fn op(&self) -> Option<PacketOp> {
        Packet::parse(&self.bytes).unwrap().opcode().op()
    }
    pub fn psn(&self) -> u32 {
        Packet::parse(&self.bytes).unwrap().bth().psn().raw()
    }
    pub fn syndrome(&self) -> Option<Syndrome> {
        Packet::parse(&self.bytes).unwrap().aeth().and_then(|a| Syndrome::decode(a.syndrome))
    }
}

pub type Script = Box<dyn FnMut(Side, usize, &Packet<'_>) -> Fate>;

/// How a pair is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    pub qp_type: QpType,
    pub mtu: Mtu,
    pub max_send_wr: u32,
    pub psn_a: u32,
    pub psn_b: u32,
    pub window_bytes: u32,
    pub rd_atomic: u8,
    pub dest_rd_atomic: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub access: Access,
    pub srq_b: bool,
}
impl Default for Setup {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            mtu: Mtu::B256,
            max_send_wr: 128,
            psn_a: 0xff_fffd,
            psn_b: 0xff_fffe,
            window_bytes: 128 << 10,
            rd_atomic: 4,
            dest_rd_atomic: 4,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            rnr_timer: 1,
            access: Access::all(),
            srq_b: false,
        }
    }
}

impl Setup {
    /// An initiator at A and a target at B.
    pub fn xrc() -> Self {
        Self { qp_type: QpType::XrcIni, srq_b: true, ..Self::default() }
    }
    fn type_of(&self, side: Side) -> QpType {
        if side == Side::A { self.qp_type } else { self.qp_type.peer() }
    }
}

pub struct Pair {
    pub now: u64,
    pub a: Node,
    pub b: Node,
    pub script: Script,
    pub wire: Vec<Sent>,
    pub counts: [usize; 2],
    /// (arrival, order, to, bytes, congestion mark)
    transit: Vec<(u64, usize, Side, Vec<u8>)>,
    order: usize,
    pub mark_ce: bool,
    pub sink_room: usize,
}

pub fn qpn(side: Side) -> Qpn {
    Qpn::new(if side == Side::A { 0x11 } else { 0x22 })
}
pub const QKEY: Qkey = Qkey::new(0x1111_1111);

impl Pair {
    /// Both sides in RTS.
    pub fn new(setup: &Setup) -> Self {
        let mut pair = Self::reset(setup);
        for side in [Side::A, Side::B] {
            pair.ready_to_receive(side, setup);
            pair.ready_to_send(side, setup);
        }
        pair.b.host.srq = setup.srq_b;
        pair
    }
    pub fn rc() -> Self {
        Self::new(&Setup::default())
    }
    /// Both sides in RESET.
    pub fn reset(setup: &Setup) -> Self {
        let node = |side| Node {
            qp: Qp::new(&QpConfig {
                qp_type: setup.type_of(side),
                qpn: qpn(side),
                max_rd_atomic_limit: 16,
                max_send_wr: setup.max_send_wr,
                window_bytes: setup.window_bytes,
                port_mtu: Mtu::B4096,
            }),
            host: MockHost::new(),
        };
        Self {
            now: 1_000,
            a: node(Side::A),
            b: node(Side::B),
            script: Box::new(|_, _, _| Fate::Pass),
            wire: Vec::new(),
            counts: [0; 2],
            transit: Vec::new(),
            order: 0,
            mark_ce: false,
            sink_room: usize::MAX,
        }
    }
    pub fn node(&mut self, side: Side) -> &mut Node {
        if side == Side::A { &mut self.a } else { &mut self.b }
    }
    pub fn modify(&mut self, side: Side, attr: QpAttr) -> Result<(), TransitionError> {
        let now = Instant::from_nanos(self.now);
        let n = self.node(side);
        n.qp.modify(now, &attr, &mut n.host)
    }
    pub fn state(&mut self, side: Side, state: QpState) {
        self.modify(side, QpAttr { state: Some(state), ..QpAttr::default() }).unwrap();
    }
    pub fn ready_to_receive(&mut self, side: Side, s: &Setup) {
        let serves = matches!(s.type_of(side), QpType::Rc | QpType::XrcTgt);
        let ud = s.qp_type == QpType::Ud;
        self.modify(
            side,
            QpAttr {
                state: Some(QpState::Init),
                pkey: Some(Pkey::DEFAULT),
                access: (!ud).then_some(s.access),
                qkey: ud.then_some(QKEY),
                ..QpAttr::default()
            },
        )
        .unwrap();
        let rq_psn = if side == Side::A { s.psn_b } else { s.psn_a };
        self.modify(
            side,
            QpAttr {
                state: Some(QpState::Rtr),
                av: (!ud).then(AddressVector::default),
                path_mtu: (!ud).then_some(s.mtu),
                dest_qpn: (!ud).then_some(qpn(side.other())),
                rq_psn: (!ud).then_some(Psn::new(rq_psn)),
                max_dest_rd_atomic: serves.then_some(s.dest_rd_atomic),
                min_rnr_timer: serves.then_some(RnrTimer::new(s.rnr_timer)),
                ..QpAttr::default()
            },
        )
        .unwrap();
    }
    pub fn ready_to_send(&mut self, side: Side, s: &Setup) {
        let (of, sends) = (s.type_of(side), matches!(s.type_of(side), QpType::Rc | QpType::XrcIni));
        let sq_psn = if side == Side::A { s.psn_a } else { s.psn_b };
        self.modify(
            side,
            QpAttr {
                state: Some(QpState::Rts),
                sq_psn: Some(Psn::new(sq_psn)),
                timeout: of.is_reliable().then_some(AckTimeout::new(s.timeout)),
                retry_cnt: sends.then_some(s.retry_cnt),
                rnr_retry: sends.then_some(s.rnr_retry),
                max_rd_atomic: sends.then_some(s.rd_atomic),
                ..QpAttr::default()
            },
        )
        .unwrap();
    }
    /// Drops the n-th packet (from 0) of a side, each of these once.
    pub fn drop_packets(&mut self, side: Side, numbers: &[usize]) {
        let numbers = numbers.to_vec();
        self.script =
            Box::new(move |s, n, _| if s == side && numbers.contains(&n) { Fate::Drop } else { Fate::Pass });
    }

    pub fn post(&mut self, side: Side, op: SendOp, addr: usize, len: u32, flags: SendFlags) -> u32 {
        let index = self.node(side).host.sq_posted();
        let dest = (self.node(side).qp.qp_type() == QpType::Ud).then_some(UdTarget {
            ah: AhHandle::default(),
            qpn: qpn(side.other()),
            qkey: QKEY,
        });
        self.post_raw(
            side,
            Posted { request: SendRequest { op: op.into(), flags, len, dest }, addr, bad: false },
        );
        index
    }
    pub fn post_raw(&mut self, side: Side, posted: Posted) {
        let now = Instant::from_nanos(self.now);
        let n = self.node(side);
        n.host.push(posted);
        n.qp.handle_posted(now, &mut n.host);
    }
    pub fn send(&mut self, side: Side, op: SendOp, addr: usize, len: u32) -> u32 {
        self.post(side, op, addr, len, SendFlags::SIGNALED)
    }
    pub fn recv(&mut self, side: Side, addr: usize, len: usize) -> u32 {
        self.recv_raw(side, addr, len, false)
    }
    /// Posts a receive request to a shared receive queue of the XRC target at B.
    pub fn recv_srq(&mut self, srq: u32, addr: usize, len: usize) -> u32 {
        let host = &mut self.b.host;
        let id = host.next_recv;
        host.next_recv += 1;
        let queue = host.xrc.queues.get_mut(&srq).expect("the queue exists");
        queue.0.push_back(PostedRecv { id, addr, len, bad: false });
        id
    }
    pub fn recv_raw(&mut self, side: Side, addr: usize, len: usize, bad: bool) -> u32 {
        let now = Instant::from_nanos(self.now);
        let n = self.node(side);
        let id = n.host.next_recv;
        n.host.next_recv += 1;
        n.host.rq.push_back(PostedRecv { id, addr, len, bad });
        n.qp.handle_posted(now, &mut n.host);
        id
    }
    /// Fills memory with bytes that depend on their address.
    pub fn fill(&mut self, side: Side, addr: usize, len: usize) {
        // At once: miri minds single bytes.
        self.node(side).host.mem[addr..addr + len].copy_from_slice(&patterns(addr, len));
    }

    /// Lets both sides send all their packets; returns whether they sent any.
    pub fn transmit(&mut self) -> bool {
        let mut any = false;
        for side in [Side::A, Side::B] {
            any |= self.transmit_side(side);
        }
        any
    }
    pub fn transmit_side(&mut self, side: Side) -> bool {
        let mut sink = VecSink::with_room(self.sink_room);
        let now = Instant::from_nanos(self.now);
        let n = self.node(side);
        if n.qp.wants_transmit() {
            n.qp.poll_transmit(now, &mut n.host, &mut sink, 64);
        }
        if n.qp.ack_owed().is_some() {
            n.qp.poll_ack(now, &mut n.host, &mut sink);
        }
        let any = !sink.out.is_empty();
        for (_, bytes) in sink.out {
            self.carry(side, bytes);
        }
        any
    }
    fn carry(&mut self, side: Side, bytes: Vec<u8>) {
        let number = self.counts[side as usize];
        self.counts[side as usize] += 1;
        let fate = (self.script)(side, number, &Packet::parse(&bytes).expect("what is sent parses"));
        self.wire.push(Sent { side, at_ns: self.now, bytes: bytes.clone() });
        let at = self.now + LATENCY_NS;
        match fate {
            Fate::Drop => {}
            Fate::Pass => self.put(at, side.other(), bytes),
            Fate::Late(ns) => self.put(at + ns, side.other(), bytes),
            Fate::Double => {
                self.put(at, side.other(), bytes.clone());
                self.put(at, side.other(), bytes);
            }
        }
    }
    fn put(&mut self, at: u64, to: Side, bytes: Vec<u8>) {
        self.order += 1;
        self.transit.push((at, self.order, to, bytes));
    }
    /// Gives a packet to a side at once.
    pub fn deliver(&mut self, to: Side, bytes: &[u8]) {
        let now = Instant::from_nanos(self.now);
        let rx = RxMeta { ce: self.mark_ce, grh: Some(&[7; 40]) };
        let n = self.node(to);
        n.qp.handle_packet(now, &rx, &Packet::parse(bytes).unwrap(), &mut n.host);
    }
    /// One turn: send, else deliver the next packet, else let the next timer fire. `false`: all is quiet.
    pub fn turn(&mut self) -> bool {
        if self.transmit() {
            return true;
        }
        let next = self.transit.iter().map(|t| t.0).min();
        let timer =
            [&self.a, &self.b].iter().filter_map(|n| n.qp.next_deadline()).map(Instant::as_nanos).min();
        let Some(at) = [next, timer].into_iter().flatten().min() else { return false };
        self.now = self.now.max(at);
        let mut due: Vec<_> = Vec::new();
        let now = self.now;
        self.transit.retain(|t| {
            if t.0 <= now {
                due.push(t.clone());
            }
            t.0 > now
        });
        due.sort_by_key(|t| (t.0, t.1));
        for (_, _, to, bytes) in due {
            self.deliver(to, &bytes);
        }
        let now = Instant::from_nanos(self.now);
        for n in [&mut self.a, &mut self.b] {
            if n.qp.next_deadline().is_some_and(|d| d <= now) {
                n.qp.handle_timeout(now, &mut n.host);
            }
        }
        true
    }
    /// Turns until all is quiet.
    pub fn run(&mut self) {
        for _ in 0..200_000 {
            if !self.turn() {
                assert!(
                    !self.a.qp.wants_transmit() && !self.b.qp.wants_transmit(),
                    "quiet, but wants to send"
                );
                return;
            }
        }
        panic!("not quiet after 200,000 turns; the last packets: {:?}", self.last(10));
    }
    /// Turns until this time has passed or all is quiet.
    pub fn run_until(&mut self, until_ns: u64) {
        while self.now < until_ns && self.turn() {}
    }
    pub fn last(&self, n: usize) -> Vec<String> {
        let from = self.wire.len().saturating_sub(n);
        self.wire[from..]
            .iter()
            .map(|s| format!("{} {:?} {:?}", s.at_ns, s.side, Packet::parse(&s.bytes).unwrap()))
            .collect()
    }
    /// Operations that a side sent, in order.
    pub fn ops(&self, side: Side) -> Vec<PacketOp> {
        self.wire.iter().filter(|s| s.side == side).filter_map(Sent::op).collect()
    }
    /// PSNs that a side sent, in order.
    pub fn psns(&self, side: Side) -> Vec<u32> {
        self.wire.iter().filter(|s| s.side == side).map(Sent::psn).collect()
    }
    pub fn naks(&self, side: Side) -> Vec<NakCode> {
        let nak = |s: &Sent| if let Some(Syndrome::Nak(c)) = s.syndrome() { Some(c) } else { None };
        self.wire.iter().filter(|s| s.side == side).filter_map(nak).collect()
    }
    /// Sends of A ended like this.
    #[track_caller]
    pub fn expect_sends(&self, statuses: &[WcStatus]) {
        assert_eq!(self.a.host.statuses(), statuses);
    }
    #[track_caller]
    pub fn expect_bytes(&mut self, side: Side, addr: usize, from: usize, len: usize) {
        let (mem, want) = (&self.node(side).host.mem[addr..addr + len], patterns(from, len));
        if mem != want {
            panic!("wrong byte at {:?}", mem.iter().zip(&want).position(|(is, wanted)| is != wanted));
        }
    }
}

pub fn pattern(addr: usize) -> u8 {
    (addr.wrapping_mul(0x9e37_79b1) >> 13) as u8
}
/// The contents of memory that was filled from `addr` on.
pub fn patterns(addr: usize, len: usize) -> Vec<u8> {
    (addr..addr + len).map(pattern).collect()
}
pub fn remote(addr: usize) -> RemoteAddr {
    RemoteAddr { addr: addr as u64, rkey: KEY }
}
