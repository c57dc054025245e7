//! Registered memory and protection tags.

use std::sync::{Arc, Mutex, mpsc};

use hca_via::{
    MemAttributes, Memory, NetAddress, RemoteAddress, Request, ReturnCode, Segment, Status, ViAttributes,
};

use crate::bed::{Bed, LEVELS, PATIENCE, Side, code, error, name};

pub(crate) fn memory_with_posted_descriptors_is_not_deregistered(bed: &Bed) {
    let pair = bed.pair();
    let memory = pair.a.side.nic.alloc(4096, &MemAttributes::new(&pair.a.side.ptag)).unwrap();
    let descriptor = memory.descriptor(64).unwrap();
    descriptor.write(&Request::new(&[])).unwrap();
    pair.a.vi.post_recv(&descriptor).unwrap();
    let clone = memory.clone();
    let (memory, refused) = memory.deregister().unwrap_err();
    assert_eq!(refused.code(), ReturnCode::ErrorResource);
    drop((clone, descriptor));
    let (memory, _) = memory.deregister().unwrap_err();
    // It is still what it was.
    assert!(pair.a.vi.post_at(hca_via::Queue::Receive, memory.addr() + 64, memory.handle()).is_ok());
    pair.a.vi.disconnect().unwrap();
    for _ in 0..2 {
        assert_eq!(error(&pair.a.vi.recv_done().unwrap()), Status::FLUSHED_ERROR);
    }
    memory.deregister().unwrap();
}

pub(crate) fn a_refused_deregistration_disturbs_no_post(bed: &Bed) {
    let [side, _] = bed.sides();
    let (vi, memory) = (side.vi(), side.nic.alloc(4096, &MemAttributes::new(&side.ptag)).unwrap());
    let (addr, handle) = (memory.addr(), memory.handle());
    let post = || vi.post_at(hca_via::Queue::Receive, addr, handle);
    while post().is_ok() {}
    std::thread::scope(|s| {
        let refused = s.spawn(move || {
            let refuse = |memory: Memory, _| memory.deregister().expect_err("descriptors are posted in it").0;
            // The memory stays in the table behind the last refusal, too.
            (0..20_000).fold(memory, refuse)
        });
        while !refused.is_finished() {
            assert_eq!(code(post()), ReturnCode::ErrorResource, "the queue is full, and the memory there");
        }
        drop(refused.join().unwrap());
    });
}

pub(crate) fn deregistered_memory_is_not_reached(bed: &Bed) {
    let pair = bed.pair();
    let memory = pair.b.side.nic.alloc(4096, &MemAttributes::rdma(&pair.b.side.ptag)).unwrap();
    let there = RemoteAddress { addr: memory.addr(), handle: memory.handle() };
    // A receive whose data lies there is under way.
    let receive = pair.b.side.written(0, &Request::new(&[Segment::new(&memory, 0, 64)]));
    pair.b.vi.post_recv(&receive).unwrap();
    let data = [pair.a.side.data(0, 8)];
    pair.a.post(0, &Request::write(&data, there));
    assert!(pair.sent().status.is_ok());
    memory.deregister().unwrap();
    pair.a.post(0, &Request::write(&data, there));
    assert_eq!(error(&pair.sent()), Status::RDMA_PROTECTION_ERROR);
    let late = pair
        .b
        .side
        .written(1, &Request::new(&[Segment { addr: there.addr, handle: there.handle.0, len: 8 }]));
    pair.b.vi.post_recv(&late).unwrap();
    pair.until_lost();
    assert_eq!(error(&pair.received()), Status::FLUSHED_ERROR);
    assert!(error(&pair.received()).intersects(Status::PROTECTION_ERROR | Status::FLUSHED_ERROR));
}

pub(crate) fn a_receive_whose_memory_has_gone_ends_the_connection(bed: &Bed) {
    for level in LEVELS {
        let pair = bed.pair_of(level);
        let memory = pair.b.side.nic.alloc(4096, &MemAttributes::new(&pair.b.side.ptag)).unwrap();
        let receive = pair.b.side.written(0, &Request::new(&[Segment::new(&memory, 0, 64)]));
        pair.b.vi.post_recv(&receive).unwrap();
        pair.b.receive(1, 0, 64);
        memory.deregister().unwrap();
        pair.a.send(0, 0, 8);
        assert_eq!(error(&pair.received()), Status::PROTECTION_ERROR, "{level:?}");
        // Nothing is sent or received any more, and both programs learn of it.
        assert_eq!(error(&pair.received()), Status::FLUSHED_ERROR, "{level:?}");
        pair.until_lost();
        pair.until("both are told", || {
            (!pair.a.side.told().is_empty() && !pair.b.side.told().is_empty()).then_some(())
        });
    }
}

pub(crate) fn attributes_of_memory_are_changed(bed: &Bed) {
    let pair = bed.pair();
    let nic = &pair.b.side.nic;
    let memory = nic.alloc(4096, &MemAttributes::new(&pair.b.side.ptag)).unwrap();
    memory.write_at(0, b"contents");
    let addr = memory.addr();
    let clone = memory.clone();
    let rights = MemAttributes::rdma(&pair.b.side.ptag);
    let (memory, refused) = memory.set_attributes(&rights).unwrap_err();
    assert_eq!(refused.code(), ReturnCode::ErrorResource);
    drop(clone);
    let memory = memory.set_attributes(&rights).unwrap();
    assert_eq!((memory.attributes(), memory.addr()), (&rights, addr));
    let data = [pair.a.side.data(0, 8)];
    let there = RemoteAddress { addr, handle: memory.handle() };
    pair.a.post(0, &Request::read(&data, there));
    assert!(pair.sent().status.is_ok());
    assert_eq!(pair.a.side.bytes(0, 8), b"contents");
}

pub(crate) fn a_tag_in_use_is_not_destroyed(bed: &Bed) {
    let [side, _] = bed.sides();
    let ptag = side.nic.create_ptag().unwrap();
    let memory = side.nic.alloc(64, &MemAttributes::new(&ptag)).unwrap();
    let (ptag, refused) = ptag.destroy().unwrap_err();
    assert_eq!(refused.code(), ReturnCode::ErrorResource);
    memory.deregister().unwrap();
    let vi = side.nic.create_vi(&ViAttributes::new(&ptag), None, None).unwrap();
    let (ptag, _) = ptag.destroy().unwrap_err();
    vi.destroy().unwrap();
    ptag.destroy().unwrap();
}

pub(crate) fn a_tag_is_free_at_once_when_its_vis_are_gone(bed: &Bed) {
    // One waits to be asked, and one asks again and again.
    let [a, b] = bed.sides();
    for (side, other) in [(&a, &b), (&b, &a)] {
        let ptag = side.nic.create_ptag().unwrap();
        let vi = side.nic.create_vi(&ViAttributes::new(&ptag), None, None).unwrap();
        let silent = NetAddress { host: other.nic.attributes().host, discriminator: name("silent") };
        vi.peer_request(name("asker"), &silent, None).unwrap();
        drop(vi);
        ptag.destroy().unwrap();
    }
    // The adapter's thread has the VI in its hands, as it tells of the end of the connection.
    let pair = bed.pair();
    let (has, told) = mpsc::channel();
    let (go_on, may) = mpsc::channel();
    let (has, may) = (Mutex::new(has), Mutex::new(may));
    pair.b.side.nic.set_error_handler(Some(Arc::new(move |_| {
        has.lock().unwrap().send(()).unwrap();
        may.lock().unwrap().recv_timeout(PATIENCE).unwrap();
    })));
    pair.a.vi.disconnect().unwrap();
    // Not polled here: the thread is the one that notices.
    told.recv_timeout(PATIENCE).unwrap();
    let Side { ptag, memory, .. } = pair.b.side;
    drop(pair.b.vi);
    memory.deregister().unwrap();
    ptag.destroy().unwrap();
    go_on.send(()).unwrap();
}

pub(crate) fn a_tag_of_another_adapter_is_refused(bed: &Bed) {
    let [a, b] = bed.sides();
    assert_eq!(code(a.nic.alloc(64, &MemAttributes::new(&b.ptag))), ReturnCode::InvalidPtag);
    let memory = a.nic.alloc(64, &MemAttributes::new(&a.ptag)).unwrap();
    let (_, refused) = memory.set_attributes(&MemAttributes::new(&b.ptag)).unwrap_err();
    assert_eq!(refused.code(), ReturnCode::InvalidPtag);
}
