//! Nodes to test Portals on: any fabric, matched by the program's calls or by the adapter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hca_conformance::Pause;
use hca_verbs::Context;
use portals::v4::{
    AckReq, CtEvent, CtHandle, EqHandle, Error, Event, EventKind, Got, Le, LeHandle, LeOptions, Limits,
    ListKind, Md, MdHandle, MdOptions, Me, MeHandle, MeOptions, Ni, NiOptions, Process, PtOptions, Put, Rank,
    ReturnCode, StatusRegister,
};
use portals::{Listed, Memory, Node, NodeOptions, Pieces};
use softhca::Progress;

use crate::beds::Net;
use crate::ground::Ground;

/// How long what has to come may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// The interface of most tests.
pub(crate) const MATCHING: NiOptions = NiOptions::MATCHING.union(NiOptions::PHYSICAL);
pub(crate) const MATCHING_BY_RANK: NiOptions = NiOptions::MATCHING.union(NiOptions::LOGICAL);
pub(crate) const LIST: NiOptions = NiOptions::NO_MATCHING.union(NiOptions::PHYSICAL);

/// One kind of network and of matching.
#[derive(Clone, Copy)]
pub(crate) struct Bed {
    on: Ground,
    pub(crate) progress: Progress,
    pub(crate) offload: bool,
}

impl Bed {
    pub(crate) const fn new(net: Net, progress: Progress, offload: bool) -> Self {
        Self { on: Ground::Soft(net), progress, offload }
    }
    pub(crate) const fn raw(progress: Progress, offload: bool) -> Self {
        Self { on: Ground::Raw, progress, offload }
    }
    fn devices(&self) -> Box<dyn hca_conformance::Bed> {
        self.on.devices(self.progress)
    }
    /// 64 MiB; less where packets are made by code that is not optimised.
    pub(crate) fn huge(&self) -> usize {
        let packets = !matches!(self.on, Ground::Soft(Net::Shm | Net::Auto | Net::AutoShared));
        if packets && cfg!(debug_assertions) { 8 << 20 } else { 64 << 20 }
    }
    /// `n` devices that can reach each other.
    pub(crate) fn contexts(&self, n: usize) -> Vec<Context> {
        self.devices().open(n).into_iter().map(Context::new).collect()
    }
    /// `n` nodes that know each other by rank.
    pub(crate) fn nodes(&self, n: usize) -> Vec<Node> {
        self.nodes_with(n, |_, options| options)
    }
    pub(crate) fn nodes_with(&self, n: usize, with: impl Fn(usize, NodeOptions) -> NodeOptions) -> Vec<Node> {
        let cards = Arc::new(Mutex::new(Listed::default()));
        (self.contexts(n).iter().enumerate())
            .map(|(i, context)| {
                let options = NodeOptions {
                    offload: self.offload,
                    rank: Some(Rank(i as u32)),
                    directory: cards.clone(),
                    ..NodeOptions::default()
                };
                let node = Node::open(context, with(i, options)).expect("a node opens");
                cards.lock().unwrap().0.push(node.card());
                node
            })
            .collect()
    }
    /// Two processes on one kind of interface.
    pub(crate) fn pair(&self, options: NiOptions) -> Pair {
        self.pair_with(options, &Limits::default(), |_, options| options)
    }
    pub(crate) fn pair_with(
        &self,
        options: NiOptions,
        limits: &Limits,
        with: impl Fn(usize, NodeOptions) -> NodeOptions,
    ) -> Pair {
        let nis: Vec<Ni> = (self.nodes_with(2, with).iter())
            .map(|node| Ni::init(node, options, None, limits).expect("an interface opens"))
            .collect();
        let [a, b] = <[Ni; 2]>::try_from(nis).expect("two nodes");
        Pair { a, b }
    }
}

/// An initiator and a target.
pub(crate) struct Pair {
    pub(crate) a: Ni,
    pub(crate) b: Ni,
}

impl Pair {
    /// Moves both sides until something is there: none of them has to be offloaded for that.
    #[track_caller]
    pub(crate) fn until<R>(&self, what: &str, ready: impl FnMut() -> Option<R>) -> R {
        until(&[&self.a, &self.b], what, ready)
    }
    /// The next event of a queue of `ni`.
    #[track_caller]
    pub(crate) fn got(&self, ni: &Ni, eq: EqHandle) -> Got {
        self.until("an event", || ni.eq_get(eq).unwrap())
    }
    /// The next event, which is of this kind and ended well.
    #[track_caller]
    pub(crate) fn event(&self, ni: &Ni, eq: EqHandle, kind: EventKind) -> Event {
        let Got { event, dropped } = self.got(ni, eq);
        assert_eq!((event.kind, event.is_ok(), dropped), (kind, true, false), "{event:?}");
        event
    }
    /// The next event, which is of this kind and failed.
    #[track_caller]
    pub(crate) fn failure(&self, ni: &Ni, eq: EqHandle, kind: EventKind) -> Event {
        let Got { event, dropped } = self.got(ni, eq);
        assert_eq!((event.kind, event.is_ok(), dropped), (kind, false, false), "{event:?}");
        event
    }
    /// The count, once successes and failures together are so many.
    #[track_caller]
    pub(crate) fn counted(&self, ni: &Ni, ct: CtHandle, test: u64) -> CtEvent {
        self.until("a count", || {
            Some(ni.ct_get(ct).unwrap()).filter(|count| count.success + count.failure >= test)
        })
    }
    /// Waits until a status register is so high.
    #[track_caller]
    pub(crate) fn status(&self, ni: &Ni, register: StatusRegister, wanted: u64) {
        self.until("a status register", || (ni.status(register) >= wanted).then_some(()));
        assert_eq!(ni.status(register), wanted, "{register:?}");
    }
    /// Returns when all that was sent from `a` to `b` before has been looked at there, and that nothing is in a queue.
    #[track_caller]
    pub(crate) fn settled(&self, eqs: &[(&Ni, EqHandle)]) {
        self.roundtrip(&self.a, &self.b);
        self.roundtrip(&self.b, &self.a);
        for (ni, eq) in eqs {
            let got = ni.eq_get(*eq).unwrap();
            assert_eq!(got, None, "nothing more was to come");
        }
    }
    /// A put that is acknowledged, behind all others, on a portal of its own.
    #[track_caller]
    fn roundtrip(&self, from: &Ni, to: &Ni) {
        let pt = to.pt_alloc(PtOptions::empty(), None, None).unwrap();
        let entry = accept(to, pt, to.alloc(8).unwrap());
        let ct = from.ct_alloc().unwrap();
        let md = Md { options: MdOptions::EVENT_CT_ACK, ct: Some(ct), ..Md::new(from.alloc(8).unwrap()) };
        let md = from.md_bind(&md).unwrap();
        from.put(&Put { ack_req: AckReq::Ct, ..Put::new(md, 8, id(to), pt) }).unwrap();
        assert_eq!(self.counted(from, ct, 1), CtEvent { success: 1, failure: 0 });
        from.md_release(md).unwrap();
        from.ct_free(ct).unwrap();
        entry.unlink(to);
        to.pt_free(pt).unwrap();
    }
    /// Moves both sides on a thread of its own, for tests that wait in a call.
    pub(crate) fn pump(&self) -> Pump {
        Pump::new(vec![self.a.node().clone(), self.b.node().clone()])
    }
}

/// Moves nodes until something is there.
#[track_caller]
pub(crate) fn until<R>(nis: &[&Ni], what: &str, mut ready: impl FnMut() -> Option<R>) -> R {
    let (end, mut pause) = (Instant::now() + PATIENCE, Pause::new());
    loop {
        if let Some(found) = ready() {
            return found;
        }
        let mut moved = false;
        for ni in nis {
            moved |= ni.node().progress();
        }
        pause.rest(moved);
        assert!(Instant::now() < end, "{what} has not come in {PATIENCE:?}");
    }
}

/// A thread that moves nodes. A test in which it panics fails.
pub(crate) struct Pump {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    pub(crate) fn new(nodes: Vec<Node>) -> Self {
        Self::of(move || nodes.iter().fold(false, |moved, node| moved | node.progress()))
    }
    /// Calls `turn`, which returns whether it has moved something.
    fn of(mut turn: impl FnMut() -> bool + Send + 'static) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let ends = end.clone();
        let thread = std::thread::spawn(move || {
            let mut pause = Pause::new();
            while !ends.load(Ordering::Relaxed) {
                pause.rest(turn());
            }
        });
        Self { end, thread: Some(thread) }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
#[should_panic(expected = "a node has failed")]
fn a_panic_of_the_thread_that_moves_nodes_fails_the_test() {
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let pump = Pump::of(move || {
        let _until_the_end = &tell;
        panic!("a node has failed")
    });
    assert!(told.recv().is_err(), "the thread has ended");
    drop(pump);
}

/// An entry of either kind.
pub(crate) enum AnyEntry {
    Le(LeHandle),
    Me(MeHandle),
}

impl AnyEntry {
    #[track_caller]
    pub(crate) fn unlink(self, ni: &Ni) {
        match self {
            Self::Le(le) => ni.le_unlink(le).unwrap(),
            Self::Me(me) => ni.me_unlink(me).unwrap(),
        }
    }
}

/// An entry that takes everything and tells of nothing but operations.
#[track_caller]
pub(crate) fn accept(ni: &Ni, pt: u32, memory: impl Into<Pieces>) -> AnyEntry {
    let options = LeOptions::OP_PUT | LeOptions::OP_GET | LeOptions::EVENT_LINK_DISABLE;
    let le = Le { options, ..Le::new(memory) };
    if !ni.is_matching() {
        return AnyEntry::Le(ni.le_append(pt, &le, ListKind::Priority, 0).unwrap());
    }
    let options = MeOptions::from_bits_retain(options.bits());
    let me = Me { options, ignore_bits: u64::MAX, ..Me::new(le.memory) };
    AnyEntry::Me(ni.me_append(pt, &me, ListKind::Priority, 0).unwrap())
}

/// What an initiator has: a queue, a count of acknowledgements, and memory.
pub(crate) struct Source {
    pub(crate) eq: EqHandle,
    pub(crate) ct: CtHandle,
    pub(crate) memory: Memory,
    pub(crate) md: MdHandle,
}

impl Source {
    /// `len` bytes, each another one than its neighbours.
    pub(crate) fn new(ni: &Ni, len: usize, options: MdOptions) -> Self {
        let (eq, ct) = (ni.eq_alloc(64).unwrap(), ni.ct_alloc().unwrap());
        let memory = ni.alloc(len).unwrap();
        memory.write_at(0, &pattern(len));
        let md = ni.md_bind(&Md { options, eq: Some(eq), ct: Some(ct), ..Md::new(&memory) }).unwrap();
        Self { eq, ct, memory, md }
    }
}

/// What a target has: a queue, a portal, memory.
pub(crate) struct Sink {
    pub(crate) eq: EqHandle,
    pub(crate) pt: u32,
    pub(crate) memory: Memory,
}

impl Sink {
    pub(crate) fn new(ni: &Ni, len: usize, options: PtOptions) -> Self {
        let eq = ni.eq_alloc(64).unwrap();
        let pt = ni.pt_alloc(options, Some(eq), None).unwrap();
        Self { eq, pt, memory: ni.alloc(len).unwrap() }
    }
    /// Appends an entry of all its memory, without a `Link` event, that matches the match bits 0.
    #[track_caller]
    pub(crate) fn post(&self, ni: &Ni, options: MeOptions) -> MeHandle {
        ni.me_append(self.pt, &self.me(options), ListKind::Priority, 0).unwrap()
    }
    /// The same on the overflow list.
    #[track_caller]
    pub(crate) fn post_overflow(&self, ni: &Ni, options: MeOptions) -> MeHandle {
        ni.me_append(self.pt, &self.me(options), ListKind::Overflow, 0).unwrap()
    }
    /// An entry of its memory, without a `Link` event.
    pub(crate) fn me(&self, options: MeOptions) -> Me {
        Me { options: options | MeOptions::EVENT_LINK_DISABLE, ..Me::new(&self.memory) }
    }
}

/// Bytes of which none is where another piece of the same pattern would have it.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    const PERIOD: usize = 65_521;
    let block: Vec<u8> = (0..len.min(PERIOD)).map(|i| (i * 31 + i / 256 * 7 + 1) as u8).collect();
    let mut out = block.repeat(len.div_ceil(PERIOD));
    out.truncate(len);
    out
}

/// The code of a call that was refused.
#[track_caller]
pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> ReturnCode {
    result.expect_err("it is refused").code()
}

pub(crate) fn id(ni: &Ni) -> Process {
    ni.id().unwrap()
}
