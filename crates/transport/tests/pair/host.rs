//! A host whose queues and memory are plain vectors.

use std::collections::{BTreeMap, VecDeque};

use super::*;

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
    /// The ends that requests have from now on (RD).
    pub ends: RdEnds,
    named: Vec<(Srqn, RdEnds)>,
    pub xrc: XrcQueues,
}

/// The shared receive queues of an XRC target, or the queue pairs of an RD domain.
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
            ends: RdEnds::default(),
            named: Vec::new(),
            xrc: XrcQueues::default(),
        }
    }
    /// Queues a request, without a notification of the queue pair.
    pub fn push(&mut self, posted: Posted) {
        self.sq.push(posted);
        self.named.push((self.names, self.ends));
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
    pub fn events(&self, event: QpEvent) -> usize {
        self.done.iter().filter(|d| **d == Done::Event(event)).count()
    }
    pub fn has_event(&self, event: QpEvent) -> bool {
        self.events(event) > 0
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
        self.named[Self::at(index)].0
    }
    fn rd_ends(&self, index: u32) -> RdEnds {
        self.named[Self::at(index)].1
    }
    fn enter_queue_pair(&mut self, number: Qpn, qkey: Option<Qkey>) -> Result<(), RemoteAccessError> {
        if qkey.is_some_and(|qkey| qkey != QKEY) {
            return Err(RemoteAccessError);
        }
        self.enter_srq(Srqn::new(number.raw()))
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
