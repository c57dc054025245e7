//! One process: its node, its interface, and the expected state of its lists and counts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hca_core::Instant;
use hca_sim::{Rng, Sim};
use portals::v4::{
    CtHandle, EqHandle, Limits, ListKind, Md, MdHandle, MdOptions, Me, MeHandle, MeOptions, Ni, NiOptions,
    Pid, Process, PtOptions, Rank, Source, Uid,
};
use portals::{Listed, Node, NodeOptions};

use crate::arena::Arena;
use crate::plan::Plan;

/// Receives that are posted one by one, and overflow memory.
pub(crate) const BOX: u32 = 0;
/// Entries that stay.
pub(crate) const WINDOW: u32 = 1;
/// Flow control.
pub(crate) const FLOW: u32 = 2;
/// What triggered operations send.
pub(crate) const LOG: u32 = 3;
/// A portal that nobody allocated.
pub(crate) const NOBODY: u32 = 9;

/// Tags of the window: what is read, …
pub(crate) const READ_ONLY: u64 = 0;
/// … where each process has cells of its own, …
pub(crate) const CELLS: u64 = 1;
/// … what all combine, …
pub(crate) const SUMS: u64 = 2;
/// … one large message at a time, …
pub(crate) const BIG: u64 = 3;
/// … what does no gets, what is for another user, and nothing at all.
pub(crate) const NO_GETS: u64 = 4;
pub(crate) const FORBIDDEN: u64 = 5;
pub(crate) const ABSENT: u64 = 6;
const TAGS: u64 = 6;

pub(crate) const CELLS_EACH: usize = 4;
pub(crate) const SUM_WORDS: usize = 8;
pub(crate) const LARGE: usize = 1 << 20;
/// Entries of the flow-controlled portal.
const FLOW_ENTRIES: usize = 3;

/// The cards of all, as each finds them: the latest that was opened.
pub(crate) type Cards = Mutex<Listed>;

/// What an entry is, by its `user_ptr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Receive(usize),
    Overflow(usize),
    Window(u64),
    Flow(usize),
    Log,
    /// Looks for all that waits.
    Search(usize),
}

impl Role {
    pub(crate) fn to_word(self) -> u64 {
        let (kind, value) = match self {
            Self::Receive(i) => (1, i as u64),
            Self::Overflow(i) => (2, i as u64),
            Self::Window(tag) => (3, tag),
            Self::Flow(i) => (4, i as u64),
            Self::Log => (5, 0),
            Self::Search(i) => (6, i as u64),
        };
        kind << 48 | value
    }
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let value = word & 0xffff_ffff_ffff;
        Some(match word >> 48 {
            1 => Self::Receive(value as usize),
            2 => Self::Overflow(value as usize),
            3 => Self::Window(value),
            4 => Self::Flow(value as usize),
            5 => Self::Log,
            6 => Self::Search(value as usize),
            _ => return None,
        })
    }
}

/// An entry that takes messages of the box.
pub(crate) struct Receive {
    /// Of whom and with which tag; `None` is any.
    pub(crate) from: Option<usize>,
    pub(crate) tag: Option<u64>,
    /// Its buffer; a search has none.
    pub(crate) buffer: Option<(usize, usize)>,
    pub(crate) handle: Option<MeHandle>,
    /// Messages that it was told of.
    pub(crate) took: u32,
    pub(crate) unlinked: bool,
}

/// An entry of the overflow list.
pub(crate) struct Overflow {
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) handle: MeHandle,
    /// Headers whose bytes it holds.
    pub(crate) headers: u32,
    pub(crate) unlinked: bool,
    pub(crate) freed: bool,
}

pub(crate) struct FlowEntry {
    pub(crate) at: usize,
    pub(crate) handle: MeHandle,
    pub(crate) took: bool,
}

/// A counting event, and what it must count in the end.
pub(crate) struct Count {
    pub(crate) ct: CtHandle,
    pub(crate) expected: u64,
    pub(crate) failed: u64,
}

pub(crate) struct Host {
    pub(crate) node: Node,
    pub(crate) ni: Ni,
    pub(crate) incarnation: u32,
    pub(crate) eq: EqHandle,
    pub(crate) flow_eq: EqHandle,
    /// What puts send: any part of it.
    pub(crate) payload: Arena,
    pub(crate) payload_index: usize,
    /// Where replies come to.
    pub(crate) replies: Arena,
    /// What atomic operations send.
    pub(crate) operands: Arena,
    pub(crate) scratch: Arena,
    /// Plain, a vector, volatile, operands, replies.
    pub(crate) mds: [MdHandle; 5],
    /// One for each, and one that stands for none.
    pub(crate) counts: [Count; 6],
    pub(crate) buffers: Arena,
    pub(crate) receives: Vec<Receive>,
    pub(crate) overflows: Vec<Overflow>,
    pub(crate) flow: Vec<FlowEntry>,
    pub(crate) flow_disabled: Option<Instant>,
    pub(crate) window: Vec<(Arena, MeHandle)>,
    pub(crate) window_counts: Vec<Count>,
    pub(crate) log: (MeHandle, Count),
    /// The latest short operation of each process that came here: who, its incarnation, the operation.
    pub(crate) latest: BTreeMap<(usize, u32), usize>,
    /// What took messages of the box: the message and the entry.
    pub(crate) matched: Vec<(usize, usize)>,
    /// A bundle is open.
    pub(crate) bundle: bool,
    pub(crate) looks_again: Instant,
    pub(crate) timers_at: Instant,
}

pub(crate) const MD_PLAIN: usize = 0;
pub(crate) const MD_VECTOR: usize = 1;
pub(crate) const MD_VOLATILE: usize = 2;
pub(crate) const MD_OPERANDS: usize = 3;
pub(crate) const MD_REPLIES: usize = 4;
/// One that is not the process's, but a set's.
pub(crate) const MD_OF_SET: usize = 5;

pub(crate) fn payload_bytes(plan: &Plan) -> usize {
    6 * plan.eager + 64 + if plan.large { LARGE } else { 0 }
}
pub(crate) fn cell_bytes(plan: &Plan) -> usize {
    3 * plan.eager
}

fn bytes_of(salt: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(salt);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend(rng.next_u64().to_le_bytes());
    }
    out.truncate(len);
    out
}

impl Host {
    /// A process begins on a node.
    pub(crate) fn open(
        sim: &Sim,
        plan: &Plan,
        n: usize,
        incarnation: u32,
        cards: &Arc<Cards>,
        payload_index: usize,
        rng: &mut Rng,
    ) -> Self {
        let net = sim.net().clone();
        let options = NodeOptions {
            eager_bytes: plan.eager,
            receive_slots: plan.receive_slots,
            send_slots: plan.send_slots,
            send_depth: plan.send_depth,
            connect_timeout: plan.connect_timeout,
            keepalive: plan.keepalive,
            offload: plan.offload,
            pid: Some(Pid(100 + n as u32)),
            rank: Some(Rank(n as u32)),
            key: 77,
            uid: Uid(1000 + n as u32),
            directory: cards.clone(),
            clock: Some(Arc::new(move || net.now().since(Instant::ZERO))),
            seed: Some(rng.next_u64()),
            ..NodeOptions::default()
        };
        let node = Node::open(&sim.node(n).context(), options).expect("a node opens");
        let kind = if plan.logical { NiOptions::LOGICAL } else { NiOptions::PHYSICAL };
        let ni = Ni::init(&node, NiOptions::MATCHING | kind, None, &Limits::default()).expect("it opens");
        let eq = ni.eq_alloc(1 << 14).unwrap();
        let flow_eq = ni.eq_alloc(8).unwrap();
        for (pt, options, eq) in [
            (BOX, PtOptions::empty(), eq),
            (WINDOW, PtOptions::empty(), eq),
            (FLOW, PtOptions::FLOWCTRL, flow_eq),
            (LOG, PtOptions::empty(), eq),
        ] {
            assert_eq!(ni.pt_alloc(options, Some(eq), Some(pt)).unwrap(), pt);
        }
        let payload = Arena::filled(&node, &bytes_of(payload_index as u64, payload_bytes(plan)));
        let large = if plan.large { 2 * LARGE } else { 0 };
        let replies = Arena::new(&node, 64 * plan.eager + 4096 + large);
        let operands = Arena::new(&node, 16 << 10);
        let scratch = Arena::new(&node, plan.eager + 64);
        let whole = payload.memory.len();
        let third = whole / 3;
        let vector = vec![
            payload.memory.slice(..third),
            payload.memory.slice(third..third + 7),
            payload.memory.slice(third + 7..),
        ];
        let counted = MdOptions::EVENT_CT_SEND | MdOptions::EVENT_CT_ACK | MdOptions::EVENT_CT_REPLY;
        let count = || Count { ct: ni.ct_alloc().unwrap(), expected: 0, failed: 0 };
        let counts = [count(), count(), count(), count(), count(), count()];
        let md = |memory: portals::Pieces, options, i: usize| {
            let md = Md { options, eq: Some(eq), ct: Some(counts[i].ct), ..Md::new(memory) };
            ni.md_bind(&md).unwrap()
        };
        let mds = [
            md((&payload.memory).into(), counted, 0),
            md(vector.into(), counted, 1),
            md((&scratch.memory).into(), counted | MdOptions::VOLATILE, 2),
            md((&operands.memory).into(), counted, 3),
            md((&replies.memory).into(), counted, 4),
        ];
        let mut host = Self {
            eq,
            flow_eq,
            incarnation,
            payload,
            payload_index,
            replies,
            operands,
            scratch,
            mds,
            buffers: Arena::new(&node, 256 * plan.eager + 8192),
            receives: Vec::new(),
            overflows: Vec::new(),
            flow: Vec::new(),
            flow_disabled: None,
            window: Vec::new(),
            window_counts: Vec::new(),
            log: Self::open_log(&ni, &node, plan),
            counts,
            latest: BTreeMap::new(),
            matched: Vec::new(),
            bundle: false,
            looks_again: Instant::ZERO,
            timers_at: sim.now() + Duration::from_millis(5),
            node,
            ni,
        };
        host.open_window(plan, payload_index as u64);
        host.refill_overflow(plan);
        host.refill_flow(plan);
        cards.lock().expect("one thread").0[n] = host.node.card();
        host
    }
    fn open_log(ni: &Ni, node: &Node, plan: &Plan) -> (MeHandle, Count) {
        let count = Count { ct: ni.ct_alloc().unwrap(), expected: 0, failed: 0 };
        let options = MeOptions::OP_PUT | MeOptions::EVENT_LINK_DISABLE | MeOptions::EVENT_CT_COMM;
        let me = Me {
            options,
            ct: Some(count.ct),
            ignore_bits: u64::MAX,
            ..Me::new(node.alloc(plan.eager).unwrap())
        };
        (ni.me_append(LOG, &me, ListKind::Priority, Role::Log.to_word()).unwrap(), count)
    }
    fn open_window(&mut self, plan: &Plan, salt: u64) {
        let cells = plan.nodes * CELLS_EACH * cell_bytes(plan);
        let big = if plan.large { LARGE + 64 } else { 64 };
        let both = MeOptions::OP_PUT | MeOptions::OP_GET;
        for tag in 0..TAGS {
            let (len, options, uid) = match tag {
                READ_ONLY => (payload_bytes(plan), MeOptions::OP_GET, None),
                CELLS => (cells, both, None),
                SUMS => (SUM_WORDS * 8, both, None),
                BIG => (big, both, None),
                NO_GETS => (64, MeOptions::OP_PUT, None),
                _ => (64, both, Some(Uid(1))),
            };
            let bytes = match tag {
                SUMS => vec![0; len],
                _ => bytes_of(salt ^ 0xabcd_0000 ^ tag, len),
            };
            let arena = Arena::filled(&self.node, &bytes);
            let count = Count { ct: self.ni.ct_alloc().unwrap(), expected: 0, failed: 0 };
            let me = Me {
                options: options | MeOptions::EVENT_LINK_DISABLE | MeOptions::EVENT_CT_COMM,
                uid,
                ct: Some(count.ct),
                match_bits: tag,
                ignore_bits: !0xffff,
                ..Me::new(&arena.memory)
            };
            let role = Role::Window(tag).to_word();
            let handle = self.ni.me_append(WINDOW, &me, ListKind::Priority, role).unwrap();
            self.window.push((arena, handle));
            self.window_counts.push(count);
        }
    }
    /// Two entries stand on the overflow list, as far as there is memory.
    pub(crate) fn refill_overflow(&mut self, plan: &Plan) {
        while self.overflows.iter().filter(|o| !o.unlinked).count() < 2 {
            let len = 8 * plan.eager;
            let Some(at) = self.buffers.take(len) else { return };
            let me = Me {
                options: MeOptions::OP_PUT | MeOptions::MANAGE_LOCAL | MeOptions::EVENT_LINK_DISABLE,
                ignore_bits: u64::MAX,
                min_free: 3 * plan.eager as u64,
                ..Me::new(self.buffers.memory.slice(at..at + len))
            };
            let role = Role::Overflow(self.overflows.len()).to_word();
            let handle = self.ni.me_append(BOX, &me, ListKind::Overflow, role).unwrap();
            let overflow = Overflow { at, len, handle, headers: 0, unlinked: false, freed: false };
            self.overflows.push(overflow);
        }
    }
    pub(crate) fn refill_flow(&mut self, plan: &Plan) {
        while self.flow.iter().filter(|e| !e.took).count() < FLOW_ENTRIES {
            let len = 2 * plan.eager;
            let Some(at) = self.buffers.take(len) else { return };
            let me = Me {
                options: MeOptions::OP_PUT | MeOptions::USE_ONCE | MeOptions::EVENT_LINK_DISABLE,
                ignore_bits: u64::MAX,
                ..Me::new(self.buffers.memory.slice(at..at + len))
            };
            let role = Role::Flow(self.flow.len()).to_word();
            let handle = self.ni.me_append(FLOW, &me, ListKind::Priority, role).unwrap();
            self.flow.push(FlowEntry { at, handle, took: false });
        }
    }
    /// Posts a receive; `Link` events are asked for now and then.
    pub(crate) fn post_receive(&mut self, plan: &Plan, rng: &mut Rng, process: impl Fn(usize) -> Process) {
        let len = rng.between(0, cell_bytes(plan) as u64) as usize;
        let Some(at) = self.buffers.take(len) else { return };
        let from = rng.chance(0.5).then(|| rng.below(plan.nodes as u64) as usize);
        let tag = rng.chance(0.5).then(|| rng.below(3));
        let mut me = Me {
            options: MeOptions::OP_PUT | MeOptions::USE_ONCE | MeOptions::EVENT_LINK_DISABLE,
            match_bits: tag.unwrap_or(0),
            ignore_bits: if tag.is_some() { !0xffff } else { u64::MAX },
            ..Me::new(self.buffers.memory.slice(at..at + len))
        };
        if let Some(from) = from {
            me.match_id = Source::exactly(process(from));
        }
        if rng.chance(0.3) {
            me.options |= MeOptions::EVENT_UNLINK_DISABLE;
        }
        let quiet = me.options.contains(MeOptions::EVENT_UNLINK_DISABLE);
        let role = Role::Receive(self.receives.len()).to_word();
        // Before the append: events of it may be told within.
        self.receives.push(Receive {
            from,
            tag,
            buffer: Some((at, len)),
            handle: None,
            took: 0,
            unlinked: quiet,
        });
        let handle = self.ni.me_append(BOX, &me, ListKind::Priority, role).unwrap();
        self.receives.last_mut().expect("it was pushed").handle = Some(handle);
    }
    /// Takes all headers that wait at the box.
    pub(crate) fn search_all(&mut self) {
        let me = Me {
            options: MeOptions::OP_PUT,
            ignore_bits: u64::MAX,
            ..Me::new(self.scratch.memory.slice(..0))
        };
        let role = Role::Search(self.receives.len()).to_word();
        self.receives.push(Receive {
            from: None,
            tag: None,
            buffer: None,
            handle: None,
            took: 0,
            unlinked: true,
        });
        self.ni.me_search(BOX, &me, portals::v4::SearchOp::Delete, role).unwrap();
    }
}
