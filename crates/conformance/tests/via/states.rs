//! The states of a VI.

use hca_via::{
    ErrorKind, MemAttributes, Nic, Reliability, Request, ReturnCode, Status, ViAttributes, ViState,
};

use crate::bed::{Bed, code, connect, error, until};

pub(crate) fn an_idle_vi_takes_receives_and_no_sends(bed: &Bed) {
    let [a, b] = bed.sides();
    let [vi, server] = [a.vi(), b.vi()];
    let receive = b.written(0, &Request::new(&[b.data(0, 64)]));
    server.post_recv(&receive).unwrap();
    let send = a.written(0, &Request::new(&[a.data(0, 8)]));
    assert_eq!(code(vi.post_send(&send)), ReturnCode::InvalidState);
    assert_eq!(code(vi.disconnect()), ReturnCode::InvalidState);
    connect((&a, &vi), (&b, &server)).unwrap();
    vi.post_send(&send).unwrap();
    let received = until(&[&vi, &server], "the message", || server.recv_done());
    assert_eq!(received.length, 8, "the descriptor of the idle VI");
}

pub(crate) fn a_disconnect_flushes_and_makes_the_vi_idle(bed: &Bed) {
    let pair = bed.pair();
    for i in 0..3 {
        pair.a.receive(i, 0, 64);
    }
    pair.a.vi.disconnect().unwrap();
    let query = pair.a.vi.query();
    assert_eq!((query.state, query.remote), (ViState::Idle, None));
    for _ in 0..3 {
        // At once: the disconnect has completed them.
        assert_eq!(error(&pair.a.vi.recv_done().unwrap()), Status::FLUSHED_ERROR);
    }
    assert!(pair.a.vi.recv_done().is_none());
    assert!(pair.a.side.told().is_empty(), "the program's own end is no error");
}

pub(crate) fn what_was_delivered_before_a_disconnect_is_not_flushed(bed: &Bed) {
    for peer_ends in [false, true] {
        let pair = bed.pair();
        for i in 0..5 {
            pair.b.receive(i, 0, 64);
        }
        for i in 0..5 {
            pair.a.send(i, 0, 8);
        }
        for _ in 0..5 {
            assert!(pair.received().status.is_ok());
        }
        // Over shared memory the answer also says how many messages have come before.
        pair.a.receive(5, 0, 64);
        pair.b.send(6, 0, 1);
        let _ = pair.until("the answer", || pair.a.vi.recv_done());
        let ends = if peer_ends { &pair.b } else { &pair.a };
        ends.vi.disconnect().unwrap();
        if peer_ends {
            pair.until("the end", || (pair.a.vi.state() == ViState::Error).then_some(()));
        }
        let ends: Vec<_> = (0..5).map(|_| error(&pair.sent())).collect();
        let well = ends.iter().take_while(|end| end.is_empty()).count();
        assert!(ends[well..].iter().all(|end| *end == Status::FLUSHED_ERROR), "{ends:?}");
        assert!(well == 5 || !bed.acknowledges_by_answers(), "{ends:?}");
    }
}

pub(crate) fn a_vi_is_connected_again_and_again(bed: &Bed) {
    for level in [Reliability::Delivery, Reliability::Unreliable] {
        let pair = bed.pair_of(level);
        for round in 0..5 {
            pair.b.receive(0, 0, 64);
            pair.a.send(0, 0, 8 + round);
            assert!(pair.sent().status.is_ok());
            assert_eq!(pair.received().length as usize, 8 + round);
            pair.a.vi.disconnect().unwrap();
            let _ = pair.b.vi.disconnect();
            assert_eq!([pair.a.vi.state(), pair.b.vi.state()], [ViState::Idle; 2]);
            connect((&pair.b.side, &pair.b.vi), (&pair.a.side, &pair.a.vi)).unwrap();
        }
    }
}

pub(crate) fn the_end_of_the_peer_is_an_error_that_is_told_once(bed: &Bed) {
    for posted in [0, 2] {
        let pair = bed.pair();
        for i in 0..posted {
            pair.b.receive(i, 0, 64);
        }
        pair.a.vi.disconnect().unwrap();
        pair.until("the error", || (!pair.b.side.told().is_empty()).then_some(()));
        assert_eq!(pair.b.vi.state(), ViState::Error);
        for _ in 0..posted {
            assert_eq!(error(&pair.received()), Status::FLUSHED_ERROR);
        }
        let send = pair.b.side.written(5, &Request::new(&[]));
        pair.b.vi.post_send(&send).unwrap();
        assert_eq!(error(&pair.b.vi.send_done().unwrap()), Status::FLUSHED_ERROR);
        pair.b.vi.disconnect().unwrap();
        assert_eq!(pair.b.vi.state(), ViState::Idle);
        let told = pair.b.side.told();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!((told[0].kind, told[0].vi), (ErrorKind::ConnectionLost, pair.b.vi.id()));
    }
}

pub(crate) fn a_vi_with_descriptors_is_not_destroyed(bed: &Bed) {
    let pair = bed.pair();
    let crate::bed::Pair { a, .. } = pair;
    let (vi, refused) = a.vi.destroy().unwrap_err();
    assert_eq!(refused.code(), ReturnCode::InvalidState);
    vi.disconnect().unwrap();
    let receive = a.side.written(0, &Request::new(&[a.side.data(0, 64)]));
    vi.post_recv(&receive).unwrap();
    let (vi, refused) = vi.destroy().unwrap_err();
    assert_eq!(refused.code(), ReturnCode::ErrorResource);
    // Descriptors come off an idle VI by a change of the attributes no more than by themselves.
    let refused = vi.set_attributes(&ViAttributes::new(&a.side.ptag));
    assert_eq!(code(refused), ReturnCode::ErrorResource);
    // A disconnect flushes them, though nothing is connected.
    vi.disconnect().unwrap();
    assert_eq!(error(&vi.recv_done().unwrap()), Status::FLUSHED_ERROR);
    assert_eq!(code(vi.disconnect()), ReturnCode::InvalidState);
    vi.destroy().map_err(|(_, error)| error).unwrap();
}

pub(crate) fn a_vi_that_is_dropped_with_descriptors_lets_their_memory_go(bed: &Bed) {
    let pair = bed.pair();
    let memory = pair.b.side.nic.alloc(4096, &MemAttributes::new(&pair.b.side.ptag)).unwrap();
    let descriptor = memory.descriptor(0).unwrap();
    descriptor.write(&Request::new(&[hca_via::Segment::new(&memory, 64, 64)])).unwrap();
    pair.b.vi.post_recv(&descriptor).unwrap();
    drop(descriptor);
    let (memory, refused) = memory.deregister().unwrap_err();
    assert_eq!(refused.code(), ReturnCode::ErrorResource);
    drop(pair.b.vi);
    memory.deregister().unwrap();
}

pub(crate) fn attributes_of_an_idle_vi_are_changed(bed: &Bed) {
    let [a, b] = bed.sides();
    let [client, server] = [a.vi(), b.vi()];
    for (side, vi) in [(&a, &client), (&b, &server)] {
        let attributes = ViAttributes {
            reliability: Reliability::Unreliable,
            max_transfer_size: 12,
            ..ViAttributes::new(&side.ptag)
        };
        vi.set_attributes(&attributes).unwrap();
        assert_eq!(vi.query().attributes, attributes);
    }
    connect((&a, &client), (&b, &server)).unwrap();
    let refused = client.set_attributes(&ViAttributes::new(&a.ptag));
    assert_eq!(code(refused), ReturnCode::InvalidState);
    let send = a.written(0, &Request::new(&[a.data(0, 13)]));
    client.post_send(&send).unwrap();
    assert_eq!(error(&client.send_done().unwrap()), Status::LENGTH_ERROR);
    assert_eq!(client.state(), ViState::Connected, "as an unreliable VI");
}

pub(crate) fn attributes_that_the_adapter_lacks_are_refused(bed: &Bed) {
    let [side, other] = bed.sides();
    let good = ViAttributes::new(&side.ptag);
    let most = side.nic.attributes().max_transfer_size;
    let refused = |attributes: &ViAttributes| code(side.nic.create_vi(attributes, None, None));
    let beyond = ViAttributes { max_transfer_size: most + 1, ..good.clone() };
    assert_eq!(refused(&beyond), ReturnCode::InvalidMtu);
    assert_eq!(refused(&ViAttributes::new(&other.ptag)), ReturnCode::InvalidPtag);
    let attributes = side.nic.attributes();
    assert!(attributes.reliability_levels.contains(&Reliability::Reception), "the adapter places first");
    assert!(!attributes.rdma_read_levels.contains(&Reliability::Unreliable));
}

pub(crate) fn an_adapter_in_use_is_not_closed(bed: &Bed) {
    let context = &bed.contexts(1)[0];
    let nic = Nic::open(context).unwrap();
    let ptag = nic.create_ptag().unwrap();
    let vi = nic.create_vi(&ViAttributes::new(&ptag), None, None).unwrap();
    let (nic, refused) = nic.close().unwrap_err();
    assert_eq!(refused.code(), ReturnCode::ErrorResource);
    vi.destroy().unwrap();
    let memory = nic.alloc(64, &MemAttributes::new(&ptag)).unwrap();
    let (nic, _) = nic.close().unwrap_err();
    drop(memory);
    nic.close().unwrap();
}

pub(crate) fn a_send_beside_a_disconnect_leaves_no_trace(bed: &Bed) {
    let pair = bed.pair();
    let descriptor = pair.a.side.written(0, &Request::new(&[pair.a.side.data(0, 8)]));
    for _ in 0..10 {
        std::thread::scope(|s| {
            let ends = s.spawn(|| pair.a.vi.disconnect().unwrap());
            while !ends.is_finished() {
                // It is flushed, or refused.
                if pair.a.vi.post_send(&descriptor).is_ok() {
                    // The connection ends meanwhile, and is not kept busy.
                    std::thread::sleep(std::time::Duration::from_micros(300));
                }
            }
        });
        let _ = pair.b.vi.disconnect();
        while pair.b.vi.recv_done().is_some() || pair.a.vi.send_done().is_some() {}
        connect((&pair.a.side, &pair.a.vi), (&pair.b.side, &pair.b.vi)).unwrap();
        pair.b.receive(1, 0, 64);
        pair.a.send(2, 0, 8);
        assert_eq!(error(&pair.sent()), Status::empty());
        assert!(pair.received().status.is_ok());
    }
}
