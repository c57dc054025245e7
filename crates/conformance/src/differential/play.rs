//! Plays a script on two adapters of a bed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hca_core::{
    AhHandle, AsyncEvent, Completion, Lkey, Mixed, MrKeys, Payload, Qkey, QpAttr, QpCap, QpHandle, QpState,
    QpType, Qpn, RecvExtra, RecvWr, RemoteAddr, Rkey, SendFlags, SendOp, SendWr, Sge, UdDest, WcOpcode,
    WcStatus,
};

use super::draw::{DEPTH, SGES};
use super::outcome::{Entry, Outcome};
use super::script::{Act, Config, Cqs, Data, Far, KeyOf, Op, Part, Piece, Request, Script, Side, slot};
use crate::mem::{Mem, pattern};
use crate::node::{Cq, Node};
use crate::qp::{Conn, QKEY, Qp, Srq, connect, to_state};
use crate::world::World;
use crate::{Bed, Ran};

/// A request's local list: its entries, which of them are inline, and the bytes of these.
#[derive(Default)]
struct List {
    entries: Vec<Sge>,
    inline: u64,
    bytes: Vec<u8>,
}

/// Turns of both adapters that find nothing, before all is called quiet.
const IDLE_TURNS: usize = 12;
/// How long a request that waits for what does not come is left to it.
const HELD_FOR: Duration = Duration::from_micros(500);

/// A region with the keys that it had before.
struct Memory {
    mem: Mem,
    before: Option<MrKeys>,
}

/// A request that was posted.
struct Posted {
    wr_id: u64,
    signalled: bool,
    expect: WcStatus,
}

/// One end of a pair.
struct End {
    qp: Qp,
    posted: Vec<Posted>,
    /// How many of them have ended, by their own completion or a later one's.
    ended: usize,
}

/// Two adapters in the middle of a script.
struct Play<'a> {
    script: &'a Script,
    world: Arc<World>,
    nodes: [Node; 2],
    memory: [Vec<Memory>; 2],
    ahs: [AhHandle; 2],
    /// Both ends of each pair.
    ends: Vec<[Option<End>; 2]>,
    srqs: [Option<Arc<Srq>>; 2],
    cqs: [Vec<Arc<Cq>>; 2],
    /// Every queue pair that ever was, by a name that holds on any fabric.
    names: [HashMap<QpHandle, String>; 2],
    builds: usize,
    outcome: Outcome,
    patience: Duration,
}

/// Plays a script.
pub(super) fn play(bed: &dyn Bed, script: &Script) -> Result<Outcome, String> {
    let mut play = Play::new(bed, script);
    play.build(script.psn, None);
    for act in &script.acts {
        play.act(act).map_err(|what| format!("{what}\nat {act:?}\n{}", play.world.report()))?;
    }
    play.finish()
}

impl<'a> Play<'a> {
    fn new(bed: &dyn Bed, script: &'a Script) -> Self {
        let nodes: [Node; 2] = Node::open(bed);
        let memory = [0, 1].map(|side| regions(&nodes[side], side, &script.config, &script.content));
        let ahs = [0, 1].map(|side| nodes[side].ah(nodes[1 - side].gid()));
        let queues = |(pair, _): (usize, &QpType)| {
            [0, 1].map(|side| {
                ["send", "receive"].map(|q| (format!("{q} queue of pair {pair}, side {side}"), Vec::new()))
            })
        };
        let queues = script.config.pairs.iter().enumerate().flat_map(queues).flatten().collect();
        Self {
            script,
            world: nodes[0].world.clone(),
            nodes,
            memory,
            ahs,
            ends: Vec::new(),
            srqs: [None, None],
            cqs: Default::default(),
            names: Default::default(),
            builds: 0,
            outcome: Outcome { queues, ..Outcome::default() },
            patience: bed.patience(),
        }
    }

    fn conn(&self, pair: usize, psn: [u32; 2]) -> Conn {
        let config = &self.script.config;
        let port_mtu = |n: &Node| n.dev().port().active_mtu;
        Conn {
            qp_type: config.pairs[pair],
            cap: QpCap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: SGES,
                max_recv_sge: SGES,
                max_inline: config.max_inline,
            },
            cq_depth: 8 * DEPTH,
            mtu: config.mtu.min(port_mtu(&self.nodes[0])).min(port_mtu(&self.nodes[1])),
            timeout: config.timeout.0,
            retry_cnt: config.timeout.1,
            rnr_retry: config.rnr_retry,
            max_rd_atomic: config.max_rd_atomic,
            psn,
            ..Conn::default()
        }
    }

    /// All queue pairs, in RTS, but that one which rests in RTR.
    fn build(&mut self, psn: [u32; 2], rests: Option<Side>) {
        let config = &self.script.config;
        for side in 0..2 {
            self.srqs[side] = config.srq[side].then(|| self.nodes[side].srq(DEPTH, SGES));
            self.cqs[side].clear();
        }
        for pair in 0..config.pairs.len() {
            let conn = self.conn(pair, psn);
            let qps = [0, 1].map(|side| {
                let depth = conn.cq_depth;
                let node = &self.nodes[side];
                let cqs = &mut self.cqs[side];
                if cqs.is_empty() || config.cqs != Cqs::Adapter {
                    cqs.push(node.cq(depth));
                }
                let send_cq = cqs.last().expect("one was made").clone();
                if config.cqs == Cqs::Queue {
                    cqs.push(node.cq(depth));
                }
                let recv_cq = cqs.last().expect("one was made").clone();
                node.qp_on(&conn, &send_cq, &recv_cq, self.srqs[side].as_ref())
            });
            match rests.filter(|_| pair == 0) {
                None => connect(&conn, &qps[0], &qps[1]),
                Some(side) => {
                    qps.iter().for_each(|q| q.to_init(&conn));
                    let (rests, other) = (&qps[side], &qps[1 - side]);
                    rests.modify(&conn.rtr(other.qpn, other.node.gid(), psn[1 - side])).expect("INIT to RTR");
                    other.to_rts(&conn, rests.qpn, rests.node.gid(), 1 - side);
                }
            }
            let ends = qps.map(|qp| {
                let name = format!("queue pair {} of pair {pair}", self.builds);
                self.names[qp.node.index].insert(qp.handle, name);
                Some(End { qp, posted: Vec::new(), ended: 0 })
            });
            self.ends.push(ends);
        }
        self.builds += 1;
    }

    fn end(&mut self, side: Side, pair: usize) -> &mut End {
        self.ends[pair][side].as_mut().expect("the script knows that it is there")
    }

    fn act(&mut self, act: &Act) -> Result<(), String> {
        match act {
            Act::Recv { side, pair, wr_id, parts } => self.recv(*side, *pair, *wr_id, parts),
            Act::Post { side, pair, requests } => self.post(*side, *pair, requests)?,
            Act::Turn(n) => {
                for _ in 0..*n {
                    self.world.turn();
                }
            }
            Act::Await => self.wait(None)?,
            Act::Hold { side, pair, wr_id } => self.wait(Some((*side, *pair, *wr_id)))?,
            Act::Dereg { side, slot } => self.memory[*side][*slot].mem.dereg().map_err(|e| e.to_string())?,
            Act::Rereg { side, slot } => {
                let memory = &mut self.memory[*side][*slot];
                memory.before = Some(memory.mem.keys());
                memory.mem.register_again().map_err(|e| e.to_string())?;
            }
            Act::Fill { side, part } => {
                self.memory[*side][part.slot].mem.write(part.off, &pattern(part.off as u64, part.len));
            }
            Act::State { side, pair, to } => self.modify(*side, *pair, &to_state(*to))?,
            Act::Drain { side, pair } => {
                let attr = QpAttr { sqd_event: Some(true), ..to_state(QpState::Sqd) };
                self.modify(*side, *pair, &attr)?;
            }
            Act::Allow { side, pair, access } => {
                let attr = QpAttr { access: Some(*access), ..QpAttr::default() };
                self.modify(*side, *pair, &attr)?;
            }
            Act::Reset { pair, psn } => self.reset(*pair, *psn),
            Act::Rebuild { psn, rests } => {
                self.ends.clear();
                self.srqs = [None, None];
                self.build(*psn, *rests);
            }
            Act::Rise { side, psn } => {
                let conn = self.conn(0, [*psn; 2]);
                self.modify(*side, 0, &conn.rts(*psn))?;
            }
            Act::Destroy { side, pair } => self.ends[*pair][*side] = None,
            Act::Limit { side, limit } => {
                let srq = self.srqs[*side].as_ref().expect("the script knows that there is one");
                srq.set_limit(*limit).map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }

    fn modify(&mut self, side: Side, pair: usize, attr: &QpAttr) -> Result<(), String> {
        self.end(side, pair).qp.modify(attr).map_err(|e| e.to_string())
    }

    fn reset(&mut self, pair: usize, psn: [u32; 2]) {
        let conn = self.conn(pair, psn);
        for side in 0..2 {
            let end = self.end(side, pair);
            end.qp.go(QpState::Reset);
            (end.posted, end.ended) = (Vec::new(), 0);
        }
        let [a, b] = &self.ends[pair];
        let (Some(a), Some(b)) = (a, b) else { unreachable!("both were reset") };
        connect(&conn, &a.qp, &b.qp);
    }

    fn keys(&self, side: Side, slot: usize, key: KeyOf) -> (Lkey, Rkey) {
        let memory = &self.memory[side][slot];
        let now = memory.mem.keys();
        match key {
            KeyOf::Good => (now.lkey, now.rkey),
            KeyOf::Stale => memory.before.map_or((now.lkey, now.rkey), |k| (k.lkey, k.rkey)),
            // The same place with another tag.
            KeyOf::Unknown => (Lkey::new(now.lkey.raw() ^ 0x55), Rkey::new(now.rkey.raw() ^ 0x55)),
        }
    }

    fn sges(&self, side: Side, parts: &[Part]) -> Vec<Sge> {
        let sge = |p: &Part| {
            let lkey = self.keys(side, p.slot, p.key).0;
            Sge { lkey, ..self.memory[side][p.slot].mem.sge(p.off, p.len) }
        };
        parts.iter().map(sge).collect()
    }

    fn recv(&mut self, side: Side, pair: usize, wr_id: u64, parts: &[Part]) {
        let sges = self.sges(side, parts);
        let wr = [RecvWr { wr_id, sges: &sges }];
        let posted = match &self.srqs[side] {
            Some(srq) => srq.try_recv(&wr),
            None => self.end(side, pair).qp.try_recv(&wr),
        };
        if let Err(e) = posted {
            self.outcome.states.push(format!("receive request {wr_id}: {e}"));
        }
    }

    fn op(&self, peer: Side, op: Op) -> SendOp {
        let at = |far: Far| RemoteAddr {
            rkey: self.keys(peer, far.slot, far.key).1,
            ..self.memory[peer][far.slot].mem.remote(far.off as i64)
        };
        match op {
            Op::Send => SendOp::Send,
            Op::SendImm(imm) => SendOp::SendImm(imm),
            Op::SendInv(slot, key) => SendOp::SendInv(self.keys(peer, slot, key).1),
            Op::Write(far) => SendOp::Write(at(far)),
            Op::WriteImm(far, imm) => SendOp::WriteImm(at(far), imm),
            Op::Read(far) => SendOp::Read(at(far)),
            Op::CompareSwap(far, compare, swap) => SendOp::CompareSwap { remote: at(far), compare, swap },
            Op::FetchAdd(far, add) => SendOp::FetchAdd { remote: at(far), add },
        }
    }

    /// The local list of a request.
    fn list(&self, side: Side, data: &Data) -> List {
        let mut list = List::default();
        let pieces = match data {
            Data::Parts(parts) => return List { entries: self.sges(side, parts), ..list },
            Data::Inline(_) => return list,
            Data::Mixed(pieces) => pieces,
        };
        for (i, piece) in pieces.iter().enumerate() {
            match piece {
                Piece::Part(part) => list.entries.extend(self.sges(side, std::slice::from_ref(part))),
                Piece::Inline(bytes) => {
                    list.entries.push(Sge { len: bytes.len() as u32, ..Sge::default() });
                    list.inline |= 1 << i;
                    list.bytes.extend_from_slice(bytes);
                }
            }
        }
        list
    }

    fn wr<'r>(&self, side: Side, pair: usize, r: &'r Request, list: &'r List) -> SendWr<'r> {
        let peer = self.ends[pair][1 - side].as_ref();
        let dest = UdDest {
            ah: self.ahs[side],
            qpn: peer.map_or(Qpn::default(), |e| e.qp.qpn),
            qkey: if r.wrong_qkey { Qkey::new(QKEY.raw() ^ 1) } else { QKEY },
        };
        SendWr {
            wr_id: r.wr_id,
            op: self.op(1 - side, r.op),
            flags: r.flags,
            payload: match &r.data {
                Data::Parts(_) => Payload::Sges(&list.entries),
                Data::Inline(bytes) => Payload::Inline(bytes),
                Data::Mixed(_) => {
                    let List { entries, inline, bytes } = list;
                    Payload::Mixed(Mixed { entries, inline: *inline, bytes })
                }
            },
            dest: (self.script.config.pairs[pair] == QpType::Ud).then_some(dest.into()),
        }
    }

    fn post(&mut self, side: Side, pair: usize, requests: &[Request]) -> Result<(), String> {
        let lists: Vec<List> = requests.iter().map(|r| self.list(side, &r.data)).collect();
        let wrs: Vec<SendWr<'_>> =
            requests.iter().zip(&lists).map(|(r, list)| self.wr(side, pair, r, list)).collect();
        let end = self.ends[pair][side].as_mut().expect("the script knows that it is there");
        let taken = end.qp.try_send(&wrs);
        for r in requests {
            let signalled = r.flags.contains(SendFlags::SIGNALED);
            end.posted.push(Posted { wr_id: r.wr_id, signalled, expect: r.expect });
        }
        taken.map_err(|e| format!("a post was refused: {e}"))
    }

    /// Waits until every request that has to has completed, but those of one queue from one on, and all is quiet.
    fn wait(&mut self, but: Option<(Side, usize, u64)>) -> Result<(), String> {
        let mut ran = Ran::new();
        let mut idle = 0;
        let mut done = None;
        loop {
            let moved = self.world.turn() | self.poll()?;
            idle = if moved { 0 } else { idle + 1 };
            if self.outstanding(but).is_some() {
                if ran.tick() > self.patience {
                    let (side, pair, wr_id) = self.outstanding(but).expect("seen just now");
                    return Err(format!("request {wr_id} of pair {pair}, side {side} does not complete"));
                }
                if idle > IDLE_TURNS {
                    std::thread::yield_now();
                }
                continue;
            }
            let since = *done.get_or_insert_with(Instant::now);
            if but.is_some() {
                if since.elapsed() > HELD_FOR && idle > 0 || since.elapsed() > 20 * HELD_FOR {
                    break;
                }
            } else if idle > IDLE_TURNS {
                let unreliable = self.script.config.pairs.iter().any(|&t| t != QpType::Rc);
                if unreliable || self.world.devices.iter().any(|d| d.next_deadline().is_some()) {
                    self.world.settle();
                }
                break;
            }
        }
        // A control call waits for a turn on another thread: the acknowledgement that ended a request here left
        // before the receiver's own completion was shown.
        self.note_states();
        self.poll()?;
        Ok(())
    }

    /// A request that was posted and has to complete.
    fn outstanding(&self, but: Option<(Side, usize, u64)>) -> Option<(Side, usize, u64)> {
        self.ends.iter().enumerate().find_map(|(pair, ends)| {
            ends.iter().enumerate().find_map(|(side, end)| {
                let end = end.as_ref()?;
                let waits = |p: &&Posted| {
                    let held = but.is_some_and(|(s, q, from)| (s, q) == (side, pair) && p.wr_id >= from);
                    (p.signalled || p.expect != WcStatus::Success) && !held
                };
                end.posted[end.ended..].iter().find(waits).map(|p| (side, pair, p.wr_id))
            })
        })
    }

    fn note_states(&mut self) {
        for (pair, ends) in self.ends.iter().enumerate() {
            let states = ends.each_ref().map(|e| e.as_ref().map(|e| e.qp.state()));
            self.outcome.states.push(format!("pair {pair}: {states:?}"));
        }
    }

    /// Takes all completions; whether there were any.
    fn poll(&mut self) -> Result<bool, String> {
        let mut any = false;
        for side in 0..2 {
            for cq in self.cqs[side].clone() {
                while let Some(c) = cq.try_next() {
                    any = true;
                    self.completed(side, &c)?;
                }
            }
        }
        Ok(any)
    }

    fn completed(&mut self, side: Side, c: &Completion) -> Result<(), String> {
        let of = |ends: &[Option<End>; 2]| ends[side].as_ref().is_some_and(|e| e.qp.handle == c.qp);
        let Some(pair) = self.ends.iter().position(of) else {
            return Err(format!("a completion of a queue pair that is gone: {c:?}"));
        };
        let good = c.status == WcStatus::Success;
        let counts = c.opcode.is_recv()
            || matches!(c.opcode, WcOpcode::RdmaRead | WcOpcode::CompSwap | WcOpcode::FetchAdd);
        let extra = match c.extra {
            RecvExtra::Invalidated(key) => {
                let slot = (0..slot::COUNT).find(|&s| self.memory[side][s].mem.keys().rkey == key);
                format!("{slot:?} invalidated")
            }
            other => format!("{other:?}"),
        };
        let from = |c: &Completion| {
            self.ends.iter().position(|e| e[1 - side].as_ref().is_some_and(|e| e.qp.qpn == c.src_qp))
        };
        let entry = Entry {
            wr_id: c.wr_id,
            status: c.status,
            opcode: c.opcode,
            byte_len: if good && counts { c.byte_len } else { 0 },
            extra: if good { extra } else { String::new() },
            from: if good && c.grh { from(c) } else { None },
            solicited: good && c.solicited,
        };
        let queue = pair * 4 + side * 2 + usize::from(c.opcode.is_recv());
        self.outcome.queues[queue].1.push(entry);
        if c.opcode.is_recv() { Ok(()) } else { self.end(side, pair).sent(c) }
    }

    /// What all came to, once nothing more comes.
    fn finish(mut self) -> Result<Outcome, String> {
        self.world.settle();
        self.poll()?;
        self.ends.clear();
        let memory = std::mem::take(&mut self.memory);
        for (side, regions) in memory.into_iter().enumerate() {
            let mut events: Vec<String> =
                self.nodes[side].events().iter().map(|&e| self.event(side, e)).collect();
            events.sort();
            self.outcome.events[side] = events;
            let bytes: Result<Vec<_>, _> = regions.into_iter().map(|m| m.mem.into_bytes()).collect();
            self.outcome.memory[side] = bytes.map_err(|e| e.to_string())?;
        }
        Ok(self.outcome)
    }

    fn event(&self, side: Side, event: AsyncEvent) -> String {
        use AsyncEvent as E;
        let (what, qp) = match event {
            E::CommEstablished(qp) => ("connected", qp),
            E::SqDrained(qp) => ("drained", qp),
            E::LastWqeReached(qp) => ("last request", qp),
            E::QpFatal(qp) => ("fatal", qp),
            E::QpRequestError(qp) => ("request error", qp),
            E::QpAccessError(qp) => ("access error", qp),
            E::SrqLimitReached(_) => return "limit reached".into(),
            E::CqOverrun(_) => return "overrun".into(),
            other => return format!("{other:?}"),
        };
        format!("{what}: {}", self.names[side].get(&qp).map_or("nobody", |n| n))
    }
}

impl End {
    /// Holds the end of a request to what holds on any fabric.
    fn sent(&mut self, c: &Completion) -> Result<(), String> {
        let Some(at) = self.posted.iter().position(|p| p.wr_id == c.wr_id) else {
            return Err(format!("a completion of what was not posted: {c:?}"));
        };
        if at < self.ended {
            return Err(format!("request {} completed twice, or too late: {c:?}", c.wr_id));
        }
        let passed = &self.posted[self.ended..at];
        if let Some(p) = passed.iter().find(|p| p.signalled || p.expect != WcStatus::Success) {
            return Err(format!("request {} has no completion, but {} has", p.wr_id, c.wr_id));
        }
        let posted = &self.posted[at];
        if c.status != posted.expect {
            return Err(format!(
                "request {} ended as: {}; foreseen was: {}",
                c.wr_id, c.status, posted.expect
            ));
        }
        if !posted.signalled && c.status == WcStatus::Success {
            return Err(format!("request {} was not signalled", c.wr_id));
        }
        self.ended = at + 1;
        Ok(())
    }
}

fn regions(node: &Node, side: Side, config: &Config, content: &[u8]) -> Vec<Memory> {
    let region = |(slot, r): (usize, super::script::Region)| {
        let node = if slot == slot::STRANGE { node.other_pd() } else { node.clone() };
        let mut mem = match r.iova {
            Some(iova) => node.mem_at(r.len, r.access, iova),
            None if r.foreign => node.foreign_mem(r.len, r.access),
            None => node.mem(r.len, r.access),
        };
        // No two regions begin alike.
        let begin = (side * slot::COUNT + slot) * 8;
        mem.replace(&content[begin..][..r.len]).expect("its bytes are written");
        Memory { mem, before: None }
    };
    config.regions().into_iter().enumerate().map(region).collect()
}
