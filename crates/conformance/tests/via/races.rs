//! A thread that polls while another one drops VIs: what it finds is about connections that are no more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use hca_via::{
    AsyncError, Cq, Descriptor, MemAttributes, Memory, Nic, NicOptions, Request, Segment, Vi, ViAttributes,
    ViState,
};
use softhca::Progress;

use crate::bed::{Bed, until};
use crate::beds::Net;

const ROUNDS: usize = 300;

/// An adapter whose connections are made by hand, with a completion queue that a thread polls.
struct Ground {
    nic: Nic,
    cq: Cq,
    attributes: ViAttributes,
    memory: Memory,
    receive: Descriptor,
    errors: Arc<Mutex<Vec<AsyncError>>>,
}

impl Ground {
    fn new() -> Self {
        let context = Bed::new(Net::Shm, Progress::Inline).contexts(1).remove(0);
        let nic = Nic::open_with(&context, &NicOptions { by_hand: true, ..NicOptions::default() }).unwrap();
        let errors = Arc::<Mutex<Vec<AsyncError>>>::default();
        let told = errors.clone();
        nic.set_error_handler(Some(Arc::new(move |error| told.lock().unwrap().push(*error))));
        let ptag = nic.create_ptag().unwrap();
        let memory = nic.alloc(4096, &MemAttributes::new(&ptag)).unwrap();
        let receive = memory.descriptor(0).unwrap();
        receive.write(&Request::new(&[Segment::new(&memory, 1024, 64)])).unwrap();
        let cq = nic.create_cq(64).unwrap();
        Self { nic, cq, attributes: ViAttributes::new(&ptag), memory, receive, errors }
    }
    /// The `i`-th descriptor, to receive or send so many bytes.
    fn descriptor(&self, i: usize, len: u32) -> Descriptor {
        let descriptor = self.memory.descriptor(i * 128).unwrap();
        descriptor.write(&Request::new(&[Segment::new(&self.memory, 1024, len)])).unwrap();
        descriptor
    }
    /// Runs a test beside a thread that polls.
    fn beside_a_poll(test: impl FnOnce(&Self)) {
        let ground = Self::new();
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _ = ground.cq.done();
                }
            });
            // The thread ends, also behind a panic.
            let _over = Over(&over);
            test(&ground);
        });
    }
    fn vi(&self) -> Vi {
        self.nic.create_vi(&self.attributes, None, Some(&self.cq)).unwrap()
    }
    fn connect(a: &Vi, b: &Vi) {
        a.connect_by_hand(&b.endpoint_by_hand()).unwrap();
        b.connect_by_hand(&a.endpoint_by_hand()).unwrap();
    }
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_vi_that_the_program_drops_tells_of_no_error() {
    Ground::beside_a_poll(|ground| {
        for _ in 0..ROUNDS {
            let (a, b) = (ground.vi(), ground.vi());
            Ground::connect(&a, &b);
            a.post_recv(&ground.receive).unwrap();
            let id = a.id();
            drop(a);
            let told = ground.errors.lock().unwrap().clone();
            assert!(told.iter().all(|error| error.vi != id), "{told:?}");
        }
    });
}

/// The handler of one VI's error connects the other one anew, of whose old connection the same poll has found an error.
#[test]
fn news_of_a_connection_that_is_no_more_ends_no_later_one() {
    let ground = Ground::new();
    let (first, second) = (ground.vi(), Arc::new(ground.vi()));
    let peers = [ground.vi(), ground.vi()];
    Ground::connect(&first, &peers[0]);
    Ground::connect(&second, &peers[1]);
    let later = Arc::new(ground.vi());
    let (id, told) = (first.id(), ground.errors.clone());
    let (of_handler, peer) = (second.clone(), later.clone());
    ground.nic.set_error_handler(Some(Arc::new(move |error| {
        told.lock().unwrap().push(*error);
        if error.vi == id {
            of_handler.disconnect().unwrap();
            Ground::connect(&of_handler, &peer);
        }
    })));
    first.post_recv(&ground.receive).unwrap();
    second.post_recv(ground.descriptor(1, 64)).unwrap();
    // Longer than there is room for, and both are there before the queue is looked at.
    for (i, peer) in peers.iter().enumerate() {
        peer.post_send(ground.descriptor(2 + i, 128)).unwrap();
    }
    until(&[], "an error", || {
        let _ = ground.cq.done();
        (!ground.errors.lock().unwrap().is_empty()).then_some(())
    });
    let told = ground.errors.lock().unwrap().clone();
    assert!(told.iter().all(|error| error.vi == id), "{told:?}");
    assert_eq!(second.state(), ViState::Connected);
    ground.nic.set_error_handler(None);
}
