//! A program with Portals nodes that forks: the child drops objects of its parent, and the parent is not affected.
//!
//! The test has no harness, because a child would lack the harness's threads. An alarm ends a child that hangs.
//!
//! Invariants:
//! 1. The child drops inherited objects, which allocates at most, and ends by `_exit`.
//! 2. The nodes are freed when no other thread uses them: in the parent once the thread is joined, and in a child,
//!    which has no other.
#![allow(unsafe_code)] // `fork`, with `alarm` and `_exit` in its child; memory that both share

#[allow(dead_code)] // the suite of devices has the others of its beds
#[path = "softhca/beds.rs"]
mod beds;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use beds::{Net, SoftBed};
use hca_conformance::Bed;
use hca_verbs::Context;
use portals::v4::{
    AckReq, CtHandle, Limits, ListKind, Md, MdOptions, Me, MeOptions, Ni, NiOptions, PtOptions, Put,
};
use portals::{Node, NodeOptions};
use softhca::Progress;

/// Children, one behind the other: the parent's threads are somewhere else each time.
const CHILDREN: u64 = 20;

/// An interface with all that it needs to speak to the other one.
struct End {
    ni: Ni,
    put: Option<Put>,
    acks: CtHandle,
}

impl End {
    fn new(node: &Node) -> Self {
        let kind = NiOptions::MATCHING | NiOptions::PHYSICAL;
        let ni = Ni::init(node, kind, None, &Limits::default()).unwrap();
        ni.pt_alloc(PtOptions::empty(), None, Some(0)).unwrap();
        let me = Me { options: MeOptions::OP_PUT, ..Me::new(ni.alloc(64).unwrap()) };
        ni.me_append(0, &me, ListKind::Priority, 0).unwrap();
        let acks = ni.ct_alloc().unwrap();
        Self { ni, put: None, acks }
    }
    fn speak_to(&mut self, other: &Ni) {
        let options = MdOptions::EVENT_CT_ACK;
        let md = Md { options, ct: Some(self.acks), ..Md::new(self.ni.alloc(8).unwrap()) };
        let md = self.ni.md_bind(&md).unwrap();
        self.put = Some(Put { ack_req: AckReq::Ct, ..Put::new(md, 8, other.id().unwrap(), 0) });
    }
}

/// The nodes, which a thread uses that a child has not.
#[derive(Clone, Copy)]
struct Nodes(*mut [Node; 2]);

// SAFETY: (2), and nodes may be used by any thread.
unsafe impl Send for Nodes {}

impl Nodes {
    fn get(&self) -> &[Node; 2] {
        // SAFETY: (2)
        unsafe { &*self.0 }
    }
    /// # Safety
    /// As (2) says.
    unsafe fn free(self) {
        // SAFETY: it came from a box.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Drops these in a child as well; the child has to end by itself.
fn drop_in_child(what: &str, ends: [End; 2], nodes: Nodes) -> [End; 2] {
    // SAFETY: (1)
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: takes no pointer.
        unsafe { libc::alarm(20) };
        drop(ends);
        // SAFETY: (2)
        unsafe { nodes.free() };
        // SAFETY: (1)
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the status lives on the stack.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "{what}: the child ended with status {status:#x}, of which 0x7f is the signal");
    ends
}

/// Each end puts, and hears that the other one has it; the first waits in turn with a thread that uses both nodes.
fn exchange(what: &str, ends: &[End; 2], nodes: &[Node; 2], round: u64) {
    for end in ends {
        end.ni.put(end.put.as_ref().expect("it knows the other one")).unwrap();
        let count = end.ni.ct_wait(end.acks, round).unwrap();
        assert_eq!((count.success, count.failure), (round, 0), "{what}: round {round}");
    }
    for node in nodes {
        let counts = node.counts();
        assert_eq!((node.connections(), counts.connected, counts.lost), (1, 1, 0), "{what}: {counts:?}");
    }
}

fn check(net: Net, progress: Progress, offload: bool) {
    let what =
        format!("{net:?}, {progress:?}, {}", if offload { "by the adapter" } else { "by the program" });
    let contexts: Vec<Context> = SoftBed::new(net, progress).open(2).into_iter().map(Context::new).collect();
    let options = NodeOptions { offload, ..NodeOptions::default() };
    let nodes: [Node; 2] = Node::open_all(&contexts, &options).unwrap().try_into().expect("two");
    drop(contexts);
    let [mut a, mut b] = [End::new(&nodes[0]), End::new(&nodes[1])];
    a.speak_to(&b.ni);
    b.speak_to(&a.ni);
    let end = Arc::new(AtomicBool::new(false));
    let nodes = Nodes(Box::into_raw(Box::new(nodes)));
    let (ends, moved) = (end.clone(), nodes);
    // It holds the nodes' locks most of the time: in a child for ever.
    let mover = thread::spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            moved.get().iter().for_each(|node| _ = node.progress());
        }
    });
    let mut both = [a, b];
    exchange(&what, &both, nodes.get(), 1);
    for round in 2..2 + CHILDREN {
        both = drop_in_child(&what, both, nodes);
        exchange(&what, &both, nodes.get(), round);
    }
    end.store(true, Ordering::Relaxed);
    mover.join().unwrap();
    drop(both);
    // SAFETY: (2)
    unsafe { nodes.free() };
    println!("{what}: ok");
}

fn main() {
    for (net, progress, offload) in [
        (Net::Udp, Progress::Inline, false),
        (Net::Shm, Progress::Inline, false),
        (Net::Auto, Progress::Adaptive, false),
        (Net::Auto, Progress::Adaptive, true),
        (Net::Auto, Progress::Thread, true),
        (Net::AutoShared, Progress::Adaptive, true),
    ] {
        check(net, progress, offload);
    }
}
