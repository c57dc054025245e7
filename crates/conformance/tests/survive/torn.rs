//! Memory that a program unmaps although it is registered: the fault harms this program only.

use hca_core::{Access, WcStatus};
use hca_fabric::{ShmFabric, ShmOptions};
use hca_verbs::{
    CompletionQueue, Completions, ConnectOptions, Context, QueuePair, Rc, SendRequest, SharedMr,
};
use softhca::{Options, Progress, SoftHca};

use crate::domain;
use crate::own::Own;
use hca_conformance::Ran;

const BYTES: usize = 256 << 10;

struct Side {
    qps: Vec<QueuePair<Rc>>,
    cq: CompletionQueue,
    wcs: Completions,
    window: SharedMr,
    torn: SharedMr,
    memory: Option<Own>,
    context: Context,
}

impl Side {
    fn open(domain: &str) -> Self {
        let fabric = ShmFabric::open(domain, &ShmOptions::default()).unwrap();
        let options = Options { progress: Progress::Inline, ..Options::default() };
        let context = Context::new(SoftHca::open(Box::new(fabric), options).unwrap());
        let (pd, wcs) = (context.alloc_pd().unwrap(), Completions::with_capacity(16));
        let cq = context.create_cq(1024).unwrap();
        let qps =
            (0..2).map(|i| pd.qp::<Rc>(&cq).access(Access::all()).context(i).build().unwrap()).collect();
        let memory = Own::new(BYTES);
        let (window, torn) = (Own::new(BYTES).register(&pd), memory.register(&pd));
        Self { qps, cq, wcs, window, torn, memory: Some(memory), context }
    }
    /// The next completion: of which queue pair, and how it ended.
    fn next(&mut self, peer: &mut Self) -> (u64, WcStatus) {
        let mut ran = Ran::new();
        loop {
            peer.context.turn();
            if let Some(wc) = self.cq.poll(&mut self.wcs).next() {
                return (wc.context, wc.status);
            }
            assert!(ran.tick().as_secs() < 20, "nothing completes");
        }
    }
}

/// `read`: the peer reads what is gone; else it is sent from there.
fn tear(read: bool) {
    let domain = domain();
    let (mut a, mut b) = (Side::open(&domain), Side::open(&domain));
    for i in 0..2 {
        let (to_b, to_a) = (b.qps[i].endpoint(), a.qps[i].endpoint());
        a.qps[i].control().connect(&to_b, &ConnectOptions::default()).unwrap();
        b.qps[i].control().connect(&to_a, &ConnectOptions::default()).unwrap();
    }
    // The other queue pair's traffic brings the two to fetch from each other.
    let goes_on = |a: &mut Side, b: &mut Side| {
        let remote = b.window.remote();
        a.qps[1].post_send(SendRequest::write(a.window.range(..), remote)).unwrap();
        assert_eq!(a.next(b), (1, WcStatus::Success));
        a.qps[1].post_send(SendRequest::read(a.window.range(..), remote)).unwrap();
        assert_eq!(a.next(b), (1, WcStatus::Success));
    };
    let fetches = |s: &Side| s.context.counter("process_fetches").unwrap();
    let mut ran = Ran::new();
    while fetches(&a) == 0 || fetches(&b) == 0 {
        goes_on(&mut a, &mut b);
        assert!(ran.tick().as_secs() < 20, "nothing is fetched");
    }
    // The memory that will be gone, too, while it is there.
    let before = (fetches(&a), fetches(&b));
    while fetches(&a) < before.0 + 2 || fetches(&b) < before.1 + 2 {
        let (window, torn) = (b.window.remote(), b.torn.remote());
        a.qps[0].post_send(SendRequest::write(a.torn.range(..), window)).unwrap();
        assert_eq!(a.next(&mut b), (0, WcStatus::Success));
        a.qps[0].post_send(SendRequest::read(a.window.range(..), torn)).unwrap();
        assert_eq!(a.next(&mut b), (0, WcStatus::Success));
        assert!(ran.tick().as_secs() < 20, "nothing is fetched");
    }
    if read {
        b.memory.take().unwrap().unmap();
        let torn = b.torn.remote();
        a.qps[0].post_send(SendRequest::read(a.window.range(..), torn)).unwrap();
        assert_eq!(a.next(&mut b), (0, WcStatus::BadResponse));
    } else {
        a.memory.take().unwrap().unmap();
        let remote = b.window.remote();
        a.qps[0].post_send(SendRequest::write(a.torn.range(..), remote)).unwrap();
        assert_eq!(a.next(&mut b), (0, WcStatus::RemoteInvalidRequest));
    }
    goes_on(&mut a, &mut b);
    assert_eq!(a.context.counter("peers_dropped_garbage"), Some(0));
    assert_eq!(b.context.counter("peers_dropped_garbage"), Some(0));
}

#[test]
fn what_is_written_from_memory_that_is_gone_ends_its_connection_only() {
    tear(false);
}

#[test]
fn what_is_read_from_memory_that_is_gone_ends_its_connection_only() {
    tear(true);
}
