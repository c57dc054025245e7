//! Operations: the begun ones, and their expected outcomes.

use portals::v4::{AckReq, AtomicOp, Datatype, Fetch, Get, NiFail, Put};

use hca_core::Instant;

use crate::host::{
    BIG, BOX, CELLS, CELLS_EACH, FLOW, FORBIDDEN, Host, LARGE, MD_OPERANDS, MD_PLAIN, MD_REPLIES, MD_VECTOR,
    MD_VOLATILE, NO_GETS, NOBODY, READ_ONLY, SUM_WORDS, SUMS, WINDOW, cell_bytes, payload_bytes,
};
use crate::world::{Checked, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    Get,
    Atomic(AtomicOp),
    FetchAtomic(AtomicOp),
    Swap(AtomicOp),
}

impl Kind {
    pub(crate) fn writes(self) -> bool {
        self != Self::Get
    }
    pub(crate) fn replies(self) -> bool {
        !matches!(self, Self::Put | Self::Atomic(_))
    }
}

/// How an operation may end where its peer is there all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    Ok,
    /// Taken, or refused for want of entries and room: then it is tried again.
    OkOr(NiFail),
    Only(NiFail),
}

/// What its target was told of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) fail: NiFail,
    pub(crate) mlength: u64,
    /// It was taken by the overflow list, and has not been found since.
    pub(crate) waits: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    pub(crate) src: usize,
    pub(crate) incarnation: u32,
    pub(crate) dst: usize,
    pub(crate) begun: Instant,
    /// The connection may be dead, and nobody knows.
    pub(crate) suspect: bool,
    pub(crate) pt: u32,
    pub(crate) tag: u64,
    pub(crate) len: usize,
    pub(crate) md: usize,
    pub(crate) remote: usize,
    pub(crate) ack: AckReq,
    pub(crate) expect: Expect,
    /// Which payload, and where in it.
    pub(crate) payload: (usize, usize),
    /// Of atomic operations: what is sent, and the operand.
    pub(crate) data: Vec<u8>,
    pub(crate) operand: u64,
    pub(crate) reply_at: Option<usize>,
    pub(crate) operand_at: Option<usize>,
    pub(crate) sent: Option<NiFail>,
    pub(crate) answered: Option<(NiFail, u64)>,
    pub(crate) seen: Option<Seen>,
    /// What its reply must bring, as its target knows, and what it brought.
    pub(crate) reply_wanted: Option<Vec<u8>>,
    pub(crate) reply_came: Option<Vec<u8>>,
    /// Its process is gone.
    pub(crate) gone: bool,
    /// When it fires is for a count to say.
    pub(crate) triggered: bool,
}

impl Op {
    /// Whether an event of its answer comes, and not only a count.
    pub(crate) fn is_told(&self) -> bool {
        self.kind.replies() || self.ack == AckReq::Ack
    }
    pub(crate) fn is_over(&self) -> bool {
        self.gone
            || (self.sent.is_some() || !self.kind.writes()) && (self.answered.is_some() || !self.is_told())
    }
    pub(crate) fn completions(&self) -> u64 {
        let answered = self.kind.replies() || self.ack != AckReq::None;
        u64::from(self.kind.writes()) + u64::from(answered)
    }
}

/// A short operation is done by its target when its message comes.
pub(crate) fn is_short(op: &Op, eager: usize) -> bool {
    op.len <= eager && !op.triggered
}

const NUMBERS: [AtomicOp; 4] = [AtomicOp::Sum, AtomicOp::Min, AtomicOp::Max, AtomicOp::Bxor];
const SWAPS: [AtomicOp; 3] = [AtomicOp::Swap, AtomicOp::Cswap, AtomicOp::Mswap];

/// The words that an operation leaves behind.
pub(crate) fn combine(kind: Kind, old: &[u8], data: &[u8], operand: u64) -> Vec<u8> {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let (Kind::Atomic(op) | Kind::FetchAtomic(op) | Kind::Swap(op)) = kind else { return data.to_vec() };
    let mut out = Vec::new();
    for (old, new) in old.chunks_exact(8).zip(data.chunks_exact(8)) {
        let (old, new) = (word(old), word(new));
        let value = match op {
            AtomicOp::Sum => old.wrapping_add(new),
            AtomicOp::Min => old.min(new),
            AtomicOp::Max => old.max(new),
            AtomicOp::Bxor => old ^ new,
            AtomicOp::Swap => new,
            AtomicOp::Cswap => {
                if operand == old {
                    new
                } else {
                    old
                }
            }
            AtomicOp::Mswap => old & !operand | new & operand,
            other => unreachable!("{other:?} is not used here"),
        };
        out.extend(value.to_le_bytes());
    }
    out
}

impl World {
    /// Begins an operation at random.
    pub(crate) fn begin_any(&mut self, h: usize) -> Checked<()> {
        let nodes = self.plan.nodes as u64;
        let dst = match self.rng.chance(0.06) {
            true => h,
            false => (h + 1 + self.rng.below(nodes - 1) as usize) % self.plan.nodes,
        };
        match self.rng.below(100) {
            0..40 => self.put_to_box(h, dst),
            40..52 => self.put_to_cell(h, dst),
            52..62 => self.get_read_only(h, dst),
            62..68 => self.get_cell(h, dst),
            68..78 => self.atomic(h, dst),
            78..88 => self.flow(h, dst),
            88..94 => self.refused(h, dst),
            _ if self.plan.large => self.large(h, dst),
            _ => self.put_to_cell(h, dst),
        }
    }
    fn any_len(&mut self, most: usize) -> usize {
        let eager = self.plan.eager;
        let len = match self.rng.below(8) {
            0 => 0,
            1 => 8,
            2 => eager,
            3 => eager + 1,
            4 => most,
            _ => self.rng.between(0, most as u64) as usize,
        };
        len.min(most)
    }
    fn any_ack(&mut self) -> AckReq {
        self.rng.pick(&[AckReq::None, AckReq::Ack, AckReq::Ack, AckReq::Ct, AckReq::Oc])
    }
    /// An operation with nothing in it yet.
    pub(crate) fn op(&self, kind: Kind, src: usize, dst: usize, pt: u32, tag: u64, len: usize) -> Op {
        let host = self.hosts[src].as_ref().expect("it begins something");
        Op {
            kind,
            src,
            incarnation: host.incarnation,
            dst,
            begun: self.now(),
            suspect: self.is_suspect(src, dst),
            pt,
            tag,
            len,
            md: MD_PLAIN,
            remote: 0,
            ack: AckReq::Ack,
            expect: Expect::Ok,
            payload: (host.payload_index, 0),
            data: Vec::new(),
            operand: 0,
            reply_at: None,
            operand_at: None,
            sent: None,
            answered: None,
            seen: None,
            reply_wanted: None,
            reply_came: None,
            gone: false,
            triggered: false,
        }
    }
    pub(crate) fn put_to_box(&mut self, h: usize, dst: usize) -> Checked<()> {
        let len = self.any_len(3 * self.plan.eager);
        let tag = self.rng.below(3);
        let ack = self.any_ack();
        let expect = Expect::OkOr(NiFail::Dropped);
        let op = Op { ack, expect, ..self.op(Kind::Put, h, dst, BOX, tag, len) };
        self.put(op)
    }
    fn put_to_cell(&mut self, h: usize, dst: usize) -> Checked<()> {
        let (each, eager) = (cell_bytes(&self.plan), self.plan.eager);
        let cell = h * CELLS_EACH + self.rng.below(CELLS_EACH as u64) as usize;
        let len = self.any_len(each);
        let at = self.rng.between(0, (each - len) as u64) as usize;
        // What is fetched lands when it likes: nothing else may be under way there.
        let busy = self.ops.iter().any(|op| {
            let same = (op.pt, op.tag, op.dst, op.src) == (WINDOW, CELLS, dst, h);
            same && !op.is_over() && op.remote / each == cell && (op.len > eager || len > eager)
        });
        if busy {
            return Ok(());
        }
        let ack =
            if len > eager { AckReq::Ack } else { self.rng.pick(&[AckReq::Ack, AckReq::Ack, AckReq::Ct]) };
        let op = Op { remote: cell * each + at, ack, ..self.op(Kind::Put, h, dst, WINDOW, CELLS, len) };
        self.put(op)
    }
    fn get_read_only(&mut self, h: usize, dst: usize) -> Checked<()> {
        let len = self.any_len(3 * self.plan.eager);
        let remote = self.rng.between(0, (payload_bytes(&self.plan) - len) as u64) as usize;
        let op = Op { remote, ..self.op(Kind::Get, h, dst, WINDOW, READ_ONLY, len) };
        self.get(op)
    }
    fn get_cell(&mut self, h: usize, dst: usize) -> Checked<()> {
        let (each, eager) = (cell_bytes(&self.plan), self.plan.eager);
        let is_fetched = |op: &Op| {
            (op.pt, op.tag, op.dst, op.src) == (WINDOW, CELLS, dst, h) && op.len > eager && !op.is_over()
        };
        if self.ops.iter().any(is_fetched) {
            return Ok(());
        }
        let len = self.any_len(eager);
        let remote = self.rng.between(0, (each * CELLS_EACH - len) as u64) as usize + h * CELLS_EACH * each;
        let op = Op { remote, ..self.op(Kind::Get, h, dst, WINDOW, CELLS, len) };
        self.get(op)
    }
    fn atomic(&mut self, h: usize, dst: usize) -> Checked<()> {
        let (kind, words) = match self.rng.below(3) {
            0 => (Kind::Atomic(self.rng.pick(&NUMBERS)), self.rng.between(1, SUM_WORDS as u64)),
            1 => (Kind::FetchAtomic(self.rng.pick(&NUMBERS)), self.rng.between(1, SUM_WORDS as u64)),
            _ => (Kind::Swap(self.rng.pick(&SWAPS)), 1),
        };
        let words = words as usize;
        let remote = 8 * self.rng.between(0, (SUM_WORDS - words) as u64) as usize;
        let data = (0..words).flat_map(|_| self.rng.below(1000).to_le_bytes()).collect();
        let operand = self.rng.below(1000);
        let ack = if kind.replies() { AckReq::None } else { self.any_ack() };
        let op = self.op(kind, h, dst, WINDOW, SUMS, 8 * words);
        self.combine(Op { remote, data, operand, ack, md: MD_OPERANDS, ..op })
    }
    pub(crate) fn flow(&mut self, h: usize, dst: usize) -> Checked<()> {
        let len = self.any_len(2 * self.plan.eager);
        let expect = Expect::OkOr(NiFail::PtDisabled);
        let op = Op { expect, ..self.op(Kind::Put, h, dst, FLOW, 0, len) };
        self.put(op)
    }
    fn refused(&mut self, h: usize, dst: usize) -> Checked<()> {
        let len = self.any_len(3 * self.plan.eager).min(40);
        let (kind, pt, tag, fail) = match self.rng.below(5) {
            0 => (Kind::Put, NOBODY, 0, NiFail::Dropped),
            1 => (Kind::Put, WINDOW, READ_ONLY, NiFail::OpViolation),
            2 => (Kind::Get, WINDOW, NO_GETS, NiFail::OpViolation),
            3 => (Kind::Get, WINDOW, FORBIDDEN, NiFail::PermViolation),
            _ => (Kind::Put, WINDOW, crate::host::ABSENT, NiFail::Dropped),
        };
        let op = Op { expect: Expect::Only(fail), ..self.op(kind, h, dst, pt, tag, len) };
        if kind == Kind::Get { self.get(op) } else { self.put(op) }
    }
    fn large(&mut self, h: usize, dst: usize) -> Checked<()> {
        let busy = |op: &Op| op.len == LARGE && !op.is_over();
        if self.ops.iter().any(busy) {
            return Ok(());
        }
        if self.rng.chance(0.5) {
            let op = Op { remote: 8, ..self.op(Kind::Put, h, dst, WINDOW, BIG, LARGE) };
            return self.put(op);
        }
        let op = Op { remote: 3, ..self.op(Kind::Get, h, dst, WINDOW, READ_ONLY, LARGE) };
        self.get(op)
    }

    /// Where a put's bytes come from: whole memory, a vector, or memory that is changed at once.
    pub(crate) fn put(&mut self, mut op: Op) -> Checked<()> {
        let at = self.rng.between(0, (payload_bytes(&self.plan) - op.len) as u64) as usize;
        op.payload.1 = at;
        let volatile = op.len <= self.plan.eager && self.rng.chance(0.15) && !op.triggered;
        op.md = match () {
            () if volatile => MD_VOLATILE,
            () if self.rng.chance(0.2) => MD_VECTOR,
            () => MD_PLAIN,
        };
        let target = self.process(op.dst);
        let payloads = self.payloads.clone();
        let bytes = &payloads[op.payload.0][at..at + op.len];
        let index = self.ops.len();
        let host = self.host(op.src);
        let put = Put {
            local_offset: if volatile { 8 } else { at as u64 },
            ack_req: op.ack,
            match_bits: op.tag | (index as u64) << 16,
            remote_offset: op.remote as u64,
            user_ptr: index as u64,
            hdr_data: !(index as u64),
            ..Put::new(host.mds[op.md], op.len as u64, target, op.pt)
        };
        host.counts[op.md].expected += op.completions();
        if volatile {
            host.scratch.put(8, bytes);
        }
        let begun = host.ni.put(&put);
        if volatile {
            host.scratch.put(8, &vec![0x55; op.len]);
        }
        self.begun(op, begun)
    }
    pub(crate) fn get(&mut self, mut op: Op) -> Checked<()> {
        let target = self.process(op.dst);
        let index = self.ops.len();
        let host = self.host(op.src);
        let Some(at) = host.replies.take(op.len) else { return Ok(()) };
        (op.reply_at, op.md) = (Some(at), MD_REPLIES);
        let get = Get {
            local_offset: at as u64,
            match_bits: op.tag | (index as u64) << 16,
            remote_offset: op.remote as u64,
            user_ptr: index as u64,
            ..Get::new(host.mds[MD_REPLIES], op.len as u64, target, op.pt)
        };
        host.counts[MD_REPLIES].expected += 1;
        let begun = host.ni.get(&get);
        self.begun(op, begun)
    }
    fn combine(&mut self, mut op: Op) -> Checked<()> {
        let target = self.process(op.dst);
        let index = self.ops.len();
        let ty = Datatype::U64;
        let host = self.host(op.src);
        let Some(at) = host.operands.take(op.len) else { return Ok(()) };
        host.operands.put(at, &op.data);
        op.operand_at = Some(at);
        if op.kind.replies() {
            let Some(reply_at) = host.replies.take(op.len) else {
                host.operands.give_back(at);
                return Ok(());
            };
            op.reply_at = Some(reply_at);
            host.counts[MD_REPLIES].expected += 1;
            host.counts[MD_OPERANDS].expected += 1;
        } else {
            host.counts[MD_OPERANDS].expected += op.completions();
        }
        let match_bits = op.tag | (index as u64) << 16;
        let begun = match op.kind {
            Kind::Atomic(operation) => {
                let put = Put {
                    local_offset: at as u64,
                    ack_req: op.ack,
                    match_bits,
                    remote_offset: op.remote as u64,
                    user_ptr: index as u64,
                    hdr_data: !(index as u64),
                    ..Put::new(host.mds[MD_OPERANDS], op.len as u64, target, op.pt)
                };
                host.ni.atomic(&put, operation, ty)
            }
            kind => {
                let fetch = Fetch {
                    local_get_offset: op.reply_at.expect("it was taken") as u64,
                    local_put_offset: at as u64,
                    match_bits,
                    remote_offset: op.remote as u64,
                    user_ptr: index as u64,
                    hdr_data: !(index as u64),
                    ..Fetch::new(host.mds[MD_REPLIES], host.mds[MD_OPERANDS], op.len as u64, target, op.pt)
                };
                match kind {
                    Kind::Swap(operation) => host.ni.swap(&fetch, &op.operand.to_le_bytes(), operation, ty),
                    Kind::FetchAtomic(operation) => host.ni.fetch_atomic(&fetch, operation, ty),
                    _ => unreachable!("it combines"),
                }
            }
        };
        self.begun(op, begun)
    }
    pub(crate) fn begun(&mut self, op: Op, begun: Result<(), portals::v4::Error>) -> Checked<()> {
        let index = self.ops.len();
        if self.sim_prints() {
            self.sim.note(format!(
                "begun {index}: {:?} {}>{} pt {} tag {} {} B",
                op.kind, op.src, op.dst, op.pt, op.tag, op.len
            ));
        }
        self.report.ops += 1;
        self.ops.push(op);
        begun.map_err(|error| self.broken(format!("operation {index} can't be begun: {error}")))
    }
    pub(crate) fn host(&mut self, h: usize) -> &mut Host {
        self.hosts[h].as_mut().expect("it is up")
    }
}
