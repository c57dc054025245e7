//! Descriptors that fail, and messages that find none.

use hca_via::{
    CONTROL_BYTES, ErrorKind, MemAttributes, Queue, Reliability, RemoteAddress, Request, ReturnCode, Segment,
    Status, ViState,
};

use crate::bed::{Bed, DATA, MEMORY, PATIENCE, code, connect, error, until};

pub(crate) fn a_message_without_a_receive_descriptor_ends_a_reliable_connection(bed: &Bed) {
    for level in [Reliability::Delivery, Reliability::Reception] {
        let pair = bed.pair_of(level);
        pair.a.send(0, 0, 8);
        assert_eq!(error(&pair.sent()), Status::REMOTE_DESCRIPTOR_ERROR, "{level:?}");
        pair.until_lost();
        pair.until("the receiver hears of it", || (!pair.b.side.told().is_empty()).then_some(()));
        assert_eq!(pair.a.side.told()[0].kind, ErrorKind::Descriptor);
        assert_eq!(pair.b.side.told()[0].kind, ErrorKind::ReceiveQueueEmpty);
        // A message that found one, and the end of the peer after it, are no such error.
        let pair = bed.pair_of(level);
        pair.b.receive(0, 0, 8);
        pair.a.send(0, 0, 8);
        assert!(pair.received().status.is_ok());
        pair.a.vi.disconnect().unwrap();
        pair.until("the end is told", || (!pair.b.side.told().is_empty()).then_some(()));
        assert_eq!(pair.b.side.told()[0].kind, ErrorKind::ConnectionLost);
    }
}

pub(crate) fn a_message_without_a_receive_descriptor_is_lost_on_an_unreliable_vi(bed: &Bed) {
    let pair = bed.pair_of(Reliability::Unreliable);
    pair.a.side.fill(0, b"lostkept");
    pair.a.send(0, 0, 4);
    assert!(pair.sent().status.is_ok());
    // The receiver's adapter has had the first message when it has the write behind it.
    let there = RemoteAddress {
        addr: pair.b.side.memory.addr() + (DATA + 100) as u64,
        handle: pair.b.side.memory.handle(),
    };
    let data = [pair.a.side.data(4, 4)];
    pair.a.post(0, &Request::write(&data, there));
    pair.until("the write", || (pair.b.side.bytes(100, 4) == b"kept").then_some(()));
    pair.b.receive(0, 0, 64);
    pair.a.send(1, 4, 4);
    assert!(pair.received().status.is_ok());
    assert_eq!(pair.b.side.bytes(0, 4), b"kept");
    assert_eq!([pair.a.vi.state(), pair.b.vi.state()], [ViState::Connected; 2]);
}

pub(crate) fn a_message_that_is_too_long_is_a_length_error(bed: &Bed) {
    let pair = bed.pair();
    pair.b.receive(0, 0, 7);
    pair.a.send(0, 0, 8);
    assert_eq!(error(&pair.sent()), Status::REMOTE_DESCRIPTOR_ERROR);
    assert_eq!(error(&pair.received()), Status::LENGTH_ERROR);
    pair.until_lost();
}

pub(crate) fn a_message_that_an_unreliable_vi_can_not_take_is_lost(bed: &Bed) {
    let pair = bed.pair_of(Reliability::Unreliable);
    pair.b.receive(0, 0, 16);
    // Longer than the descriptor; and to memory that nobody has.
    pair.a.send(0, 0, 17);
    assert!(pair.sent().status.is_ok());
    let nowhere = RemoteAddress { addr: 0, handle: hca_via::MemHandle(pair.b.side.memory.handle().0 ^ 0x55) };
    pair.a.post(0, &Request::write(&[pair.a.side.data(0, 8)], nowhere));
    assert!(pair.sent().status.is_ok());
    pair.a.send(0, 0, 9);
    assert_eq!(pair.received().length, 9);
    assert_eq!([pair.a.vi.state(), pair.b.vi.state()], [ViState::Connected; 2]);
    assert!(pair.b.side.told().is_empty(), "{:?}", pair.b.side.told());
}

pub(crate) fn a_misaligned_descriptor_is_refused(bed: &Bed) {
    let pair = bed.pair();
    let memory = &pair.a.side.memory;
    for offset in [1, 8, 32, 63] {
        assert_eq!(code(memory.descriptor(offset)), ReturnCode::InvalidParameter);
        let posted = pair.a.vi.post_at(Queue::Send, memory.addr() + offset as u64, memory.handle());
        assert_eq!(code(posted), ReturnCode::InvalidParameter);
    }
    assert!(pair.a.vi.query().send_queue_empty);
}

pub(crate) fn a_descriptor_outside_of_its_memory_is_refused(bed: &Bed) {
    let pair = bed.pair();
    let memory = &pair.a.side.memory;
    let behind = memory.addr() + MEMORY as u64;
    for addr in [behind, memory.addr() - 64, 0, u64::MAX - 63] {
        let posted = pair.a.vi.post_at(Queue::Receive, addr, memory.handle());
        assert_eq!(code(posted), ReturnCode::InvalidParameter, "{addr:#x}");
    }
    let nobodys = hca_via::MemHandle(memory.handle().0 ^ 0x55);
    let posted = pair.a.vi.post_at(Queue::Send, memory.addr(), nobodys);
    assert_eq!(code(posted), ReturnCode::InvalidParameter);
    // One whose segments lie outside is queued, and fails.
    let last = memory.descriptor(MEMORY - 64).unwrap();
    last.write(&Request::new(&[pair.a.side.data(0, 4); 2])).unwrap();
    assert!(last.write(&Request::new(&[pair.a.side.data(0, 4); 3])).is_err());
    memory.write_at(MEMORY - 64 + 12, &3_u16.to_ne_bytes());
    pair.a.vi.post_send(&last).unwrap();
    assert_eq!(error(&pair.sent()), Status::FORMAT_ERROR);
}

pub(crate) fn a_descriptor_of_another_tag_is_refused(bed: &Bed) {
    let pair = bed.pair();
    let nic = &pair.a.side.nic;
    let other = nic.alloc(4096, &MemAttributes::new(&nic.create_ptag().unwrap())).unwrap();
    let descriptor = other.descriptor(0).unwrap();
    descriptor.write(&Request::new(&[])).unwrap();
    assert_eq!(code(pair.a.vi.post_send(&descriptor)), ReturnCode::InvalidPtag);
    assert_eq!(code(pair.a.vi.post_recv(&descriptor)), ReturnCode::InvalidPtag);
}

pub(crate) fn segments_outside_of_registered_memory_are_protection_errors(bed: &Bed) {
    let pair = bed.pair_of(Reliability::Unreliable);
    let good = pair.a.side.data(0, 8);
    let wrong = [
        Segment { addr: good.addr + DATA as u64 - 7, ..good },
        Segment { addr: pair.a.side.memory.addr() - 1, ..good },
        Segment { addr: u64::MAX, ..good },
        Segment { handle: good.handle ^ 0x55, ..good },
        Segment { len: 1 << 19, ..good },
    ];
    for segment in wrong {
        let receive = pair.a.side.written(1, &Request::new(&[good, segment]));
        pair.a.vi.post_recv(&receive).unwrap();
        assert_eq!(error(&pair.a.vi.recv_done().unwrap()), Status::PROTECTION_ERROR);
        for list in [&[segment][..], &[good, segment]] {
            pair.a.post(0, &Request::new(list));
            assert_eq!(error(&pair.a.vi.send_done().unwrap()), Status::PROTECTION_ERROR, "{segment:?}");
        }
    }
}

pub(crate) fn segments_of_another_tag_are_protection_errors(bed: &Bed) {
    let pair = bed.pair_of(Reliability::Unreliable);
    let nic = &pair.a.side.nic;
    let other = nic.alloc(4096, &MemAttributes::rdma(&nic.create_ptag().unwrap())).unwrap();
    for len in [8, 1000] {
        pair.a.post(0, &Request::new(&[Segment::new(&other, 0, len)]));
        assert_eq!(error(&pair.sent()), Status::PROTECTION_ERROR);
    }
}

pub(crate) fn descriptors_of_a_wrong_form_are_format_errors(bed: &Bed) {
    let pair = bed.pair_of(Reliability::Unreliable);
    let data = [pair.a.side.data(0, 8)];
    let there = RemoteAddress { addr: 0, handle: pair.b.side.memory.handle() };
    let memory = &pair.a.side.memory;
    let (segments, control, length) = (12, 14, 24);
    let wrong: [(&str, Request<'_>, usize, &[u8]); 6] = [
        ("a bit without a meaning", Request::new(&data), control, &0x10_u16.to_ne_bytes()),
        ("WRITE and READ", Request::write(&data, there), control, &3_u16.to_ne_bytes()),
        ("READ with immediate data", Request::read(&data, there), control, &6_u16.to_ne_bytes()),
        ("WRITE without an address segment", Request::write(&[], there), segments, &0_u16.to_ne_bytes()),
        ("a length that is not the sum", Request::new(&data), length, &9_u32.to_ne_bytes()),
        ("too many segments", Request::new(&data), segments, &u16::MAX.to_ne_bytes()),
    ];
    for (what, request, at, bytes) in wrong {
        let descriptor = pair.a.side.written(0, &request);
        memory.write_at(at, bytes);
        pair.a.vi.post_send(&descriptor).unwrap();
        assert_eq!(error(&pair.a.vi.send_done().unwrap()), Status::FORMAT_ERROR, "{what}");
    }
    let receive = pair.a.side.written(0, &Request::new(&data).immediate(1));
    pair.a.vi.post_recv(&receive).unwrap();
    assert_eq!(error(&pair.a.vi.recv_done().unwrap()), Status::FORMAT_ERROR, "a receive with control bits");
    // Garbage of any kind completes, and harms nothing.
    let mut state = 1_u64;
    for _ in 0..500 {
        let words: Vec<u8> = (0..CONTROL_BYTES + 64)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        memory.write_at(0, &words);
        let descriptor = memory.descriptor(0).unwrap();
        assert_eq!(
            code(pair.a.vi.post_send(&descriptor)),
            ReturnCode::InvalidParameter,
            "its chain leads nowhere"
        );
        descriptor.chain(None);
        pair.a.vi.post_send(&descriptor).unwrap();
        assert!(!error(&pair.sent()).is_empty());
    }
    assert_eq!(pair.a.vi.state(), ViState::Connected);
}

pub(crate) fn a_message_beyond_the_maximum_transfer_size_is_a_length_error(bed: &Bed) {
    let pair = bed.pair_with(|_, attributes| hca_via::ViAttributes {
        max_transfer_size: 100,
        reliability: Reliability::Unreliable,
        ..attributes
    });
    pair.b.receive(0, 0, 200);
    pair.a.send(0, 0, 101);
    assert_eq!(error(&pair.sent()), Status::LENGTH_ERROR);
    pair.a.send(0, 0, 100);
    assert!(pair.sent().status.is_ok());
    assert_eq!(pair.received().length, 100);
}

pub(crate) fn a_failed_descriptor_completes_in_its_turn_and_flushes_those_behind_it(bed: &Bed) {
    let pair = bed.pair();
    for i in 0..4 {
        pair.b.receive(i, 100 * i, 100);
    }
    pair.a.send(0, 0, 100);
    let bad = Segment { handle: 0x55, ..pair.a.side.data(0, 100) };
    pair.a.post(1, &Request::new(&[bad]));
    pair.a.send(2, 0, 100);
    let ends: Vec<_> = (0..3).map(|_| pair.sent()).collect();
    assert!(ends[0].status.is_ok());
    assert_eq!(error(&ends[1]), Status::PROTECTION_ERROR);
    assert_eq!(error(&ends[2]), Status::FLUSHED_ERROR);
    pair.until_lost();
    assert!(pair.received().status.is_ok());
    for _ in 0..3 {
        assert_eq!(error(&pair.received()), Status::FLUSHED_ERROR);
    }
    // The error state takes descriptors, and flushes them.
    pair.a.send(3, 0, 8);
    assert_eq!(error(&pair.sent()), Status::FLUSHED_ERROR);
    assert_eq!(pair.a.side.told().iter().map(|e| e.kind).collect::<Vec<_>>(), [ErrorKind::Descriptor]);
}

pub(crate) fn a_failed_descriptor_of_an_unreliable_vi_leaves_those_behind_it(bed: &Bed) {
    let pair = bed.pair_of(Reliability::Unreliable);
    for i in 0..2 {
        pair.b.receive(i, 100 * i, 100);
    }
    pair.a.send(0, 0, 90);
    let bad = Segment { handle: 0x55, ..pair.a.side.data(0, 100) };
    pair.a.post(1, &Request::new(&[bad]));
    pair.a.send(2, 0, 91);
    let ends: Vec<_> = (0..3).map(|_| pair.sent()).collect();
    assert_eq!(
        ends.iter().map(error).collect::<Vec<_>>(),
        [Status::empty(), Status::PROTECTION_ERROR, Status::empty()]
    );
    assert_eq!([pair.received().length, pair.received().length], [90, 91]);
    assert_eq!(pair.a.vi.state(), ViState::Connected);
}

pub(crate) fn a_descriptor_that_ends_with_its_post_wakes_who_waits(bed: &Bed) {
    let pair = bed.pair_of(Reliability::Unreliable);
    let bad = Segment { handle: 0x55, ..pair.a.side.data(0, 100) };
    // Only a thread that sleeps can be left asleep; one that does not yet finds the end by itself.
    let asleep = || std::thread::sleep(std::time::Duration::from_millis(50));
    std::thread::scope(|s| {
        let waits = s.spawn(|| pair.a.vi.send_wait(Some(PATIENCE)).map(|done| error(&done)));
        asleep();
        pair.a.post(0, &Request::new(&[bad]));
        assert_eq!(waits.join().unwrap().unwrap(), Status::PROTECTION_ERROR);
    });
    // The connection has ended: a post is flushed at once.
    let pair = bed.pair();
    pair.b.vi.disconnect().unwrap();
    pair.until("the end", || (pair.a.vi.state() == ViState::Error).then_some(()));
    let (tell, came) = std::sync::mpsc::channel();
    pair.a.vi.recv_notify(move |done| tell.send(error(&done)).unwrap()).unwrap();
    asleep();
    pair.a.receive(0, 0, 64);
    assert_eq!(crate::notify::next(&came, &pair.b.vi), Status::FLUSHED_ERROR);
}

pub(crate) fn a_failed_receive_of_an_idle_vi_fails_alone(bed: &Bed) {
    let [a, b] = bed.sides();
    let [client, server] = [a.vi(), b.vi()];
    let bad = Segment { handle: 0x55, ..b.data(0, 100) };
    server.post_recv(b.written(0, &Request::new(&[bad]))).unwrap();
    assert_eq!(error(&server.recv_done().unwrap()), Status::PROTECTION_ERROR);
    for i in 1..3 {
        server.post_recv(b.written(i, &Request::new(&[b.data(0, 64)]))).unwrap();
    }
    connect((&a, &client), (&b, &server)).unwrap();
    for len in [8, 9] {
        client.post_send(a.written(0, &Request::new(&[a.data(0, len)]))).unwrap();
        let received = until(&[&client, &server], "the message", || server.recv_done());
        assert_eq!((error(&received), received.length as usize), (Status::empty(), len));
        let _ = until(&[&client, &server], "the end", || client.send_done());
    }
    assert!(b.told().is_empty(), "{:?}", b.told());
}
