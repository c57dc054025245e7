//! Plans for two queue pairs by messages: the posts of each side, the order of turns, and the conditions at the end.

use hca_core::*;
use hca_transport::*;

use super::Ways;
use crate::pair::*;
use Side::{A, B};

/// Fewer operations than this in a plan. Miri takes a second for each.
pub const MAX_OPS: usize = if cfg!(miri) { 4 } else { 26 };
/// Local memory of request `n`, its target at the peer, and where it is received: what each takes.
const SLOT: usize = 13_000;
const TARGETS: usize = MAX_OPS * SLOT;
const RECVS: usize = 2 * MAX_OPS * SLOT;
/// The word that atomics count in.
pub const COUNTER: usize = MEMORY - 64;
const _: () = assert!(3 * MAX_OPS * SLOT <= COUNTER);

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Send(u32),
    Write(u32),
    WriteImm(u32),
    Read(u32),
    Add,
}

/// One turn of a plan.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// A step on the way from RESET to RTS.
    Ready(Side),
    Post(Side),
    /// The same with so many, and what was posted leaves at once if it may.
    PostAtOnce(Side, usize),
    Recv(Side),
    Send(Side, usize),
    Ack(Side),
    Take(Side, usize),
    /// Time passes, and timers fire.
    Pass(u64),
    /// To SQD, or back.
    Drain(Side),
}

/// Plays one turn of both sides' plans.
pub fn play(p: &mut Ways, plans: &mut [Plan; 2], setup: &Setup, act: Act) {
    match act {
        Act::Ready(side) => plans[side as usize].ready(p, setup),
        Act::Post(side) => plans[side as usize].post(p, 1, false),
        Act::PostAtOnce(side, n) => plans[side as usize].post(p, n, true),
        Act::Recv(side) => plans[side as usize].recv(p),
        Act::Drain(side) => plans[side as usize].drain(p),
        Act::Send(side, burst) => {
            p.burst = burst;
            p.send_side(side);
        }
        Act::Ack(side) => {
            p.ack_side(side);
        }
        Act::Take(side, n) => {
            for _ in 0..n {
                p.take(side);
            }
        }
        Act::Pass(ns) => {
            p.now += ns;
            p.fire(A);
            p.fire(B);
        }
    }
}

/// Posts and sends all that is left, until all is quiet.
pub fn finish(p: &mut Ways, plans: &mut [Plan; 2], setup: &Setup) {
    p.burst = 64;
    for plan in &mut *plans {
        plan.finish(p, setup);
    }
    p.run();
}

/// One side of a plan.
pub struct Plan {
    pub side: Side,
    pub ops: Vec<(Op, SendFlags)>,
    posted: usize,
    /// Receive requests that the peer posted for them.
    recvs: usize,
    pub steps_to_ready: u8,
}

impl Plan {
    pub fn new(side: Side, ops: Vec<(Op, SendFlags)>) -> Self {
        Self { side, ops, posted: 0, recvs: 0, steps_to_ready: 2 }
    }
    pub fn receives(&self) -> Vec<usize> {
        let receives = |op: &Op| matches!(op, Op::Send(_) | Op::WriteImm(_));
        (0..self.ops.len()).filter(|n| receives(&self.ops[*n].0)).collect()
    }
    /// Posts the next requests.
    pub fn post(&mut self, p: &mut Ways, count: usize, at_once: bool) {
        let side = self.side;
        let before = self.posted;
        for _ in 0..count {
            self.queue(p);
        }
        if self.posted > before && !(at_once && p.send_at_once(side)) {
            p.with(side, |now, qp, host| qp.handle_posted(now, host));
        }
    }
    /// Puts the next request into the send queue.
    fn queue(&mut self, p: &mut Ways) {
        if self.steps_to_ready == 2 {
            return;
        }
        let Some((op, flags)) = self.ops.get(self.posted).copied() else { return };
        let (n, side) = (self.posted, self.side);
        let (local, target) = (n * SLOT, TARGETS + n * SLOT);
        let (op, len) = match op {
            Op::Send(len) if len % 2 == 0 => (SendOp::Send, len),
            Op::Send(len) => (SendOp::SendImm(n as u32), len),
            Op::Write(len) => (SendOp::Write(remote(target)), len),
            Op::WriteImm(len) => (SendOp::WriteImm(remote(target), n as u32), len),
            Op::Read(len) => (SendOp::Read(remote(target)), len),
            Op::Add => (SendOp::FetchAdd { remote: remote(COUNTER), add: 1 }, 8),
        };
        p.fill(side, local, len as usize);
        if let SendOp::Read(_) = op {
            p.fill(side.other(), target, len as usize);
        }
        self.posted += 1;
        let request = SendRequest { op: op.into(), flags, len, dest: None };
        p.node(side).host.sq.push(Posted { request, addr: local, bad: false });
    }
    /// The peer posts the next receive request.
    pub fn recv(&mut self, p: &mut Ways) {
        if let Some(n) = self.receives().get(self.recvs) {
            p.recv(self.side.other(), RECVS + n * SLOT, SLOT);
            self.recvs += 1;
        }
    }
    /// A step of this side towards RTS.
    pub fn ready(&mut self, p: &mut Ways, setup: &Setup) {
        match self.steps_to_ready {
            // One that has failed stays so.
            1 if p.node(self.side).qp.state() == QpState::Error => {}
            2 => p.ready_to_receive(self.side, setup),
            1 => p.ready_to_send(self.side, setup),
            _ => return,
        }
        self.steps_to_ready -= 1;
    }
    pub fn drain(&mut self, p: &mut Ways) {
        let to = match p.node(self.side).qp.state() {
            QpState::Rts => QpState::Sqd,
            QpState::Sqd => QpState::Rts,
            _ => return,
        };
        p.state(self.side, to);
    }
    pub fn finish(&mut self, p: &mut Ways, setup: &Setup) {
        while self.steps_to_ready > 0 {
            self.ready(p, setup);
        }
        if p.node(self.side).qp.state() == QpState::Sqd {
            self.drain(p);
        }
        while self.posted < self.ops.len() {
            self.post(p, 1, false);
        }
        while self.recvs < self.receives().len() {
            self.recv(p);
        }
    }
    /// Checks the conditions at the end.
    pub fn check(&self, p: &mut Ways) {
        let side = self.side;
        assert_eq!(p.node(side).host.statuses(), vec![WcStatus::Success; self.ops.len()]);
        let imms: Vec<_> = p.node(side.other()).host.recvs().iter().map(|r| r.1.extra).collect();
        let want: Vec<_> = self.receives().iter().map(|n| extra(*n, self.ops[*n].0)).collect();
        assert_eq!(imms, want, "receives: each once, in order");
        let mut adds = 0_u64;
        for (n, (op, _)) in self.ops.iter().enumerate() {
            let (local, target) = (n * SLOT, TARGETS + n * SLOT);
            match *op {
                Op::Send(len) => p.expect_bytes(side.other(), RECVS + n * SLOT, local, len as usize),
                Op::Write(len) | Op::WriteImm(len) => {
                    p.expect_bytes(side.other(), target, local, len as usize);
                }
                Op::Read(len) => p.expect_bytes(side, local, target, len as usize),
                Op::Add => {
                    assert_eq!(p.node(side).host.mem[local..local + 8], adds.to_ne_bytes());
                    adds += 1;
                }
            }
        }
        assert_eq!(p.node(side.other()).host.mem[COUNTER..COUNTER + 8], adds.to_ne_bytes());
        let n = p.node(side);
        assert_eq!(n.qp.state(), QpState::Rts);
        assert!(n.qp.next_deadline().is_none() && n.qp.ack_owed().is_none() && n.host.held.is_none());
        assert!(n.qp.is_idle_near());
    }
    /// Checks, once this side is in ERROR, that each request ended once.
    pub fn check_ended(&self, p: &mut Ways) {
        p.state(self.side, QpState::Error);
        let n = p.node(self.side);
        assert_eq!(n.host.completed, n.host.sq.len());
        let recvs = n.host.done.iter().filter(|d| matches!(d, Done::Recv(..) | Done::RecvFlushed(_))).count();
        assert_eq!(recvs + n.host.rq.len(), n.host.next_recv as usize);
        assert!(n.host.held.is_none() && n.qp.next_deadline().is_none());
    }
}

/// What the receive request of operation `n` tells.
fn extra(n: usize, op: Op) -> RecvExtra {
    match op {
        Op::Send(len) if len % 2 == 0 => RecvExtra::None,
        _ => RecvExtra::Imm(n as u32),
    }
}

/// Chooses the memory of the other side that each side reaches, by pseudo-random numbers; 0: none.
pub fn reach(p: &mut Ways, seed: u64) {
    if seed == 0 {
        return;
    }
    p.reach = true;
    for (side, mut x) in [(A, seed | 1), (B, seed.rotate_left(32) | 1)] {
        let mut roll = move || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x >> 20
        };
        let near = &mut p.node(side).host.near;
        near.gone.extend((0..100).map(|_| roll() % 4 == 0));
        let mut lend = roll;
        near.lend = Some(Box::new(move |_, _, max| match lend() % 4 {
            0 => None,
            1 => Some(max.min(1 + (lend() % 5000) as u32)),
            _ => Some(max),
        }));
        // Either what is behind others waits for them always, or now and then.
        let patient = roll() % 2 == 0;
        let mut lend_read = roll;
        near.lend_read = Some(Box::new(move |_, max| match lend_read() % 4 {
            0 => None,
            1 => Some(max.min(1 + (lend_read() % 5000) as u32)),
            _ => Some(max),
        }));
        near.direct = Some(Box::new(move |_, request, behind| match roll() % 4 {
            _ if request.len == 0 => Direct::Unable,
            _ if behind && patient => Direct::Later,
            0 => Direct::Unable,
            _ if behind => Direct::Later,
            1 => Direct::Again,
            _ if matches!(request.op.op(), SendOp::WriteImm(..)) => {
                panic!("a WRITE with immediate data is not direct")
            }
            _ => Direct::Done,
        }));
    }
}

/// A fault of a plan in one message on its way.
#[derive(Clone, Debug)]
pub enum Harm {
    None,
    Flip(usize, u8),
    Cut(usize),
    Twice,
    /// Its head's kind and flags.
    Kind(u8),
    /// Its number, done, or extra moves a little.
    Nudge(usize, i8),
    Bytes(Vec<u8>),
}

/// The messages that a fault makes of one message.
pub fn harmed(mut message: Vec<u8>, harm: &Harm) -> Vec<Vec<u8>> {
    match harm {
        Harm::None => {}
        Harm::Flip(at, bit) => {
            let at = at % message.len();
            message[at] ^= bit;
        }
        Harm::Cut(len) => message.truncate(*len),
        Harm::Twice => return vec![message.clone(), message],
        Harm::Kind(kind) => message[0] = *kind,
        Harm::Nudge(at, by) => message[*at] = message[*at].wrapping_add_signed(*by),
        Harm::Bytes(bytes) => return vec![bytes.clone(), message],
    }
    vec![message]
}
