//! Plans for two queue pairs by messages: the posts of each side, the order of turns, and the conditions at the end.

use super::Ways;
use crate::pair::ops::*;
use crate::pair::*;

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
        let Some(op) = self.ops.get(self.posted).copied() else { return };
        let posted = p.op(self.side, self.posted, op);
        p.node(self.side).host.sq.push(posted);
        self.posted += 1;
    }
    /// The peer posts the next receive request.
    pub fn recv(&mut self, p: &mut Ways) {
        if let Some(n) = receives(&self.ops).get(self.recvs) {
            p.recv_op(self.side.other(), *n);
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
        while self.recvs < receives(&self.ops).len() {
            self.recv(p);
        }
    }
    /// Checks the conditions at the end.
    pub fn check(&self, p: &mut Ways) {
        p.check_ops(self.side, &self.ops);
        assert!(p.node(self.side).qp.is_idle_near());
    }
    /// Checks, once this side is in ERROR, that each request ended once.
    pub fn check_ended(&self, p: &mut Ways) {
        p.state(self.side, QpState::Error);
        let recvs = p.recvs_ended(self.side);
        let n = p.node(self.side);
        assert_eq!(n.host.completed, n.host.sq.len());
        assert_eq!(recvs + n.host.rq.len(), n.host.next_recv as usize);
        assert!(n.host.held.is_none() && n.qp.next_deadline().is_none());
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
