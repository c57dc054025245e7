//! Numbered operations of one side: the places of their bytes, and the conditions at the end.

use super::*;

/// Fewer operations than this in a script. Miri takes a second for each.
pub const MAX_OPS: usize = if cfg!(miri) { 4 } else { 26 };
/// Local memory of operation `n`, its target at the peer, and where it is received: what each takes.
const SLOT: usize = 13_000;
const TARGETS: usize = MAX_OPS * SLOT;
const RECVS: usize = 2 * MAX_OPS * SLOT;
/// The word that atomics count in.
const COUNTER: usize = MEMORY - 64;
const _: () = assert!(3 * MAX_OPS * SLOT <= COUNTER);

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Send(u32),
    Write(u32),
    WriteImm(u32),
    Read(u32),
    Add,
}

impl Op {
    /// The operation of this number from 0 to 4.
    pub fn of(kind: i32, len: u32) -> Self {
        match kind {
            0 => Self::Send(len),
            1 => Self::Write(len),
            2 => Self::WriteImm(len),
            3 => Self::Read(len),
            _ => Self::Add,
        }
    }
    pub fn consumes_recv(self) -> bool {
        matches!(self, Self::Send(_) | Self::WriteImm(_))
    }
    /// The extra data that the completion of its receive request carries.
    fn extra(self, n: usize) -> RecvExtra {
        match self {
            Self::Send(len) if len % 2 == 0 => RecvExtra::None,
            _ => RecvExtra::Imm(n as u32),
        }
    }
}

pub type Ops = [(Op, SendFlags)];

/// The numbers of the operations that take a receive request.
pub fn receives(ops: &Ops) -> Vec<usize> {
    (0..ops.len()).filter(|n| ops[*n].0.consumes_recv()).collect()
}

impl Pair {
    /// Operation `n` of a side, its bytes in their places.
    pub fn op(&mut self, side: Side, n: usize, (op, flags): (Op, SendFlags)) -> Posted {
        let (local, target) = (n * SLOT, TARGETS + n * SLOT);
        let (op, len) = match op {
            Op::Send(len) if len % 2 == 0 => (SendOp::Send, len),
            Op::Send(len) => (SendOp::SendImm(n as u32), len),
            Op::Write(len) => (SendOp::Write(remote(target)), len),
            Op::WriteImm(len) => (SendOp::WriteImm(remote(target), n as u32), len),
            Op::Read(len) => (SendOp::Read(remote(target)), len),
            Op::Add => (SendOp::FetchAdd { remote: remote(COUNTER), add: 1 }, 8),
        };
        self.fill(side, local, len as usize);
        if let SendOp::Read(_) = op {
            self.fill(side.other(), target, len as usize);
        }
        let request = hca_transport::SendRequest { op: op.into(), flags, len, dest: None };
        Posted { request, addr: local, bad: false }
    }
    /// Posts the receive request of operation `n` of the other side.
    pub fn recv_op(&mut self, side: Side, n: usize) {
        self.recv(side, RECVS + n * SLOT, SLOT);
    }
    /// Checks that a side's operations are done: each once, in order, with the right bytes.
    pub fn check_ops(&mut self, side: Side, ops: &Ops) {
        assert_eq!(self.node(side).host.statuses(), vec![WcStatus::Success; ops.len()]);
        let told: Vec<_> = self.node(side.other()).host.recvs().iter().map(|r| r.1.extra).collect();
        let want: Vec<_> = receives(ops).iter().map(|n| ops[*n].0.extra(*n)).collect();
        assert_eq!(told, want, "receives: each once, in order");
        let mut adds = 0_u64;
        for (n, (op, _)) in ops.iter().enumerate() {
            let (local, target) = (n * SLOT, TARGETS + n * SLOT);
            match *op {
                Op::Send(len) => self.expect_bytes(side.other(), RECVS + n * SLOT, local, len as usize),
                Op::Write(len) | Op::WriteImm(len) => {
                    self.expect_bytes(side.other(), target, local, len as usize);
                }
                Op::Read(len) => self.expect_bytes(side, local, target, len as usize),
                Op::Add => {
                    assert_eq!(self.node(side).host.mem[local..local + 8], adds.to_ne_bytes());
                    adds += 1;
                }
            }
        }
        assert_eq!(self.node(side.other()).host.mem[COUNTER..COUNTER + 8], adds.to_ne_bytes());
        let n = self.node(side);
        assert_eq!(n.qp.state(), QpState::Rts);
        assert!(n.qp.next_deadline().is_none() && n.qp.ack_owed().is_none() && n.host.held.is_none());
    }
    /// Of the completions of receive requests, those that were flushed counted.
    pub fn recvs_ended(&mut self, side: Side) -> usize {
        let done = &self.node(side).host.done;
        done.iter().filter(|d| matches!(d, Done::Recv(..) | Done::RecvFlushed(_))).count()
    }
}
