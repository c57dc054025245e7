//! Two processes on two adapters of one network, both driven by the test.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hca_conformance::Pause;
use hca_verbs::Context;
use portals::v3::{
    AckReq, EqHandle, EventKind, Got, Limits, MatchId, Md, MdHandle, MdOptions, MeHandle, Ni, Position,
    ProcessId, Threshold, Unlink,
};
use portals::{Card, Listed, Memory, Node, NodeOptions, Pid};
use softhca::Progress;

use crate::ground::Ground;

/// Far beyond what anything takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// A portal of each side at which messages of no bytes are taken, as they come, to know what came before.
const FENCE: u32 = 60;

/// A network, and whether the adapter matches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bed {
    pub(crate) on: Ground,
    pub(crate) offload: bool,
}

impl Bed {
    fn devices(&self) -> Box<dyn hca_conformance::Bed> {
        // Without the adapter's help, nothing but the program's calls moves anything.
        self.on.devices(if self.offload { Progress::Adaptive } else { Progress::Inline })
    }
    /// Nodes with these options, which know each other.
    pub(crate) fn nodes(&self, options: &[NodeOptions]) -> Vec<Node> {
        self.nodes_and_a_ghost(options).0
    }
    fn nodes_and_a_ghost(&self, options: &[NodeOptions]) -> (Vec<Node>, ProcessId) {
        let board = Arc::new(Mutex::new(Listed::default()));
        let devices = self.devices().open(options.len());
        let opened = devices.into_iter().zip(options).map(|(device, options)| {
            let offload = options.offload && self.offload;
            let options = NodeOptions { directory: board.clone(), offload, ..options.clone() };
            let node = Node::open(&Context::new(device), options).expect("the node opens");
            board.lock().unwrap().0.push(node.card());
            node
        });
        let nodes: Vec<Node> = opened.collect();
        let beside = nodes.last().expect("at least one").card();
        let ghost =
            Card { pid: Pid(beside.pid.0 ^ 0x8000), datagrams: hca_core::Qpn::new(0xab_cdef), ..beside };
        board.lock().unwrap().0.push(ghost);
        (nodes, ProcessId { nid: ghost.nid, pid: ghost.pid })
    }
    pub(crate) fn pair(&self) -> Pair {
        self.pair_with(&Limits::default(), &NodeOptions::default())
    }
    pub(crate) fn pair_with(&self, limits: &Limits, options: &NodeOptions) -> Pair {
        self.pair_of(limits, [options.clone(), options.clone()])
    }
    pub(crate) fn pair_of(&self, limits: &Limits, options: [NodeOptions; 2]) -> Pair {
        let (nodes, ghost) = self.nodes_and_a_ghost(&options);
        let [a, b] = <[Node; 2]>::try_from(nodes).unwrap().map(|node| Side::new(&node, limits));
        Pair { a, b, ghost }
    }
}

pub(crate) struct Pair {
    pub(crate) a: Side,
    pub(crate) b: Side,
    /// A process beside `b` that is known and never answers.
    pub(crate) ghost: ProcessId,
}

/// A process.
pub(crate) struct Side {
    pub(crate) ni: Ni,
    /// A queue for whatever the test does.
    pub(crate) eq: EqHandle,
    fence_eq: EqHandle,
    fence_md: MdHandle,
}

impl Side {
    pub(crate) fn new(node: &Node, limits: &Limits) -> Self {
        let ni = Ni::init(node, None, limits).expect("the interface opens");
        let eq = ni.eq_alloc(64, None).unwrap();
        let fence_eq = ni.eq_alloc(8, None).unwrap();
        let quiet = MdOptions::EVENT_START_DISABLE | MdOptions::EVENT_END_DISABLE;
        let empty = Md { options: quiet, eq: Some(fence_eq), ..Md::new(ni.node().alloc(0).unwrap()) };
        let fence_md = ni.md_bind(&empty, Unlink::Retain).unwrap();
        let me = ni.me_attach(FENCE, MatchId::ANY, 0, !0, Unlink::Retain, Position::After).unwrap();
        let target = Md { options: quiet | MdOptions::OP_PUT, eq: None, ..empty };
        ni.md_attach(me, &target, Unlink::Retain).unwrap();
        Self { ni, eq, fence_eq, fence_md }
    }
    pub(crate) fn id(&self) -> ProcessId {
        self.ni.id()
    }
    /// Memory with these bytes.
    pub(crate) fn filled(&self, bytes: &[u8]) -> Memory {
        let memory = self.ni.node().alloc(bytes.len()).unwrap();
        memory.write_at(0, bytes);
        memory
    }
    pub(crate) fn zeroed(&self, len: usize) -> Memory {
        self.ni.node().alloc(len).unwrap()
    }
    /// A descriptor whose events go to the side's queue.
    pub(crate) fn md(&self, memory: impl Into<portals::Pieces>, options: MdOptions) -> Md {
        Md { options, eq: Some(self.eq), ..Md::new(memory) }
    }
    /// An entry for everything, at the end of a portal's list, with a descriptor; both stay.
    pub(crate) fn post(&self, pt_index: u32, md: &Md) -> (MeHandle, MdHandle) {
        self.post_for(pt_index, 0, !0, md)
    }
    pub(crate) fn post_for(&self, pt_index: u32, bits: u64, ignore: u64, md: &Md) -> (MeHandle, MdHandle) {
        let (keep, end) = (Unlink::Retain, Position::After);
        let me = self.ni.me_attach(pt_index, MatchId::ANY, bits, ignore, keep, end).unwrap();
        (me, self.ni.md_attach(me, md, keep).unwrap())
    }
    /// A descriptor to send from, without events.
    pub(crate) fn silent(&self, bytes: &[u8]) -> MdHandle {
        self.ni.md_bind(&Md::new(self.filled(bytes)), Unlink::Retain).unwrap()
    }
    /// A descriptor to send from, with all events.
    pub(crate) fn loud(&self, bytes: &[u8]) -> MdHandle {
        let md = self.md(self.filled(bytes), MdOptions::empty());
        self.ni.md_bind(&md, Unlink::Retain).unwrap()
    }
    /// Sends to portal `pt_index` of `to`, asking for nothing.
    pub(crate) fn put(&self, md: MdHandle, to: &Self, pt_index: u32, bits: u64) {
        self.ni.put(md, AckReq::NoAck, to.id(), pt_index, 0, bits, 0, 0).unwrap();
    }
    pub(crate) fn put_acked(&self, md: MdHandle, to: &Self, pt_index: u32, bits: u64) {
        self.ni.put(md, AckReq::Ack, to.id(), pt_index, 0, bits, 0, 0).unwrap();
    }
    /// Waits for the next event of a queue, while the other side does its part.
    #[track_caller]
    pub(crate) fn next_of(&self, eq: EqHandle, other: &Self) -> Got {
        let (began, mut pause) = (Instant::now(), Pause::new());
        loop {
            if let Some(got) = self.ni.eq_get(eq).unwrap() {
                return got;
            }
            pause.rest(other.ni.node().progress());
            assert!(began.elapsed() < LIMIT, "no event came");
        }
    }
    #[track_caller]
    pub(crate) fn next(&self, other: &Self) -> Got {
        self.next_of(self.eq, other)
    }
    /// The next event, which is to be of this kind and to have gone well.
    #[track_caller]
    pub(crate) fn expect(&self, kind: EventKind, other: &Self) -> portals::v3::Event {
        let got = self.next(other);
        assert_eq!(got.event.kind, kind, "{got:?}");
        assert_eq!(got.event.ni_fail_type, portals::v3::NiFail::Ok, "{got:?}");
        assert!(!got.dropped);
        got.event
    }
    #[track_caller]
    pub(crate) fn nothing_left(&self) {
        assert_eq!(self.ni.eq_get(self.eq).unwrap(), None);
    }
    /// Waits until all that was sent to `other` has been taken there, and answered.
    #[track_caller]
    pub(crate) fn fence(&self, other: &Self) {
        self.ni.put(self.fence_md, AckReq::Ack, other.id(), FENCE, 0, 0, 0, 0).unwrap();
        let got = self.next_of(self.fence_eq, other);
        assert_eq!(got.event.kind, EventKind::Ack);
        assert_eq!(got.event.ni_fail_type, portals::v3::NiFail::Ok);
    }
}

/// Waits for something that both sides work at.
#[track_caller]
pub(crate) fn until(a: &Side, b: &Side, mut done: impl FnMut() -> bool) {
    let (began, mut pause) = (Instant::now(), Pause::new());
    while !done() {
        pause.rest(a.ni.progress() | b.ni.progress());
        assert!(began.elapsed() < LIMIT, "it did not happen");
    }
}

/// So many operations.
pub(crate) const fn times(n: u32) -> Threshold {
    Threshold::Count(n)
}
/// Bytes that differ from their neighbours.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}
