//! Sends of 8 bytes between VIs with Reliable Delivery, each answered by one.

use std::cell::RefCell;
use std::rc::Rc;

use hca_sim::Sim;
use hca_via::{Descriptor, MemAttributes, Memory, Nic, NicOptions, Request, Segment, Vi, ViAttributes};

use super::{Asks, Ends, WINDOW};

/// Bytes of a descriptor and its data.
const STRIDE: usize = 128;
/// Descriptors of each queue.
const SLOTS: usize = 2 * WINDOW;

struct End {
    vi: Vi,
    _nic: Nic,
    _memory: Memory,
    sends: Vec<Descriptor>,
    open: usize,
}

impl End {
    fn open(sim: &Sim) -> Self {
        let context = sim.add_node().context();
        let options = NicOptions { by_hand: true, ..NicOptions::default() };
        let nic = Nic::open_with(&context, &options).expect("an adapter");
        let ptag = nic.create_ptag().expect("a tag");
        let memory = nic.alloc(2 * SLOTS * STRIDE, &MemAttributes::new(&ptag)).expect("memory");
        let vi = nic.create_vi(&ViAttributes::new(&ptag), None, None).expect("a VI");
        let mut sends = Vec::new();
        for slot in 0..2 * SLOTS {
            let descriptor = memory.descriptor(slot * STRIDE).expect("it is within the memory");
            let data = Segment::new(&memory, slot * STRIDE + STRIDE / 2, 8);
            descriptor.write(&Request::new(&[data])).expect("it fits");
            if slot < SLOTS {
                vi.post_recv(descriptor).expect("there is room");
            } else {
                sends.push(descriptor);
            }
        }
        Self { vi, _nic: nic, _memory: memory, sends, open: 0 }
    }
    /// Sends, if a descriptor is free.
    fn send(&mut self) -> bool {
        while let Some(done) = self.vi.send_done() {
            assert!(done.status.is_ok(), "{:?}", done.status);
            self.sends.push(done.descriptor);
        }
        let descriptor = self.sends.pop();
        descriptor
            .is_some_and(|descriptor| self.vi.post_send(descriptor).map(|()| true).expect("there is room"))
    }
    /// Takes what has come, and posts the descriptors again.
    fn received(&self) -> usize {
        let mut received = 0;
        while let Some(done) = self.vi.recv_done() {
            assert!(done.status.is_ok(), "{:?}", done.status);
            self.vi.post_recv(done.descriptor).expect("there is room");
            received += 1;
        }
        received
    }
}

impl Asks for End {
    fn ask(&mut self) -> bool {
        let sent = self.open < WINDOW && self.send();
        self.open += usize::from(sent);
        sent
    }
    fn answers(&mut self) -> usize {
        let answers = self.received();
        self.open -= answers;
        answers
    }
}

pub(super) fn open(sim: &Sim) -> Ends {
    let [near, mut far] = [0, 1].map(|_| End::open(sim));
    for (one, other) in [(&near, &far), (&far, &near)] {
        one.vi.connect_by_hand(&other.vi.endpoint_by_hand()).expect("they connect");
    }
    // An answer waits for a descriptor.
    let mut owed = 0;
    let serve = Box::new(move || {
        owed += far.received();
        while owed > 0 && far.send() {
            owed -= 1;
        }
    });
    (Rc::new(RefCell::new(near)), serve)
}
