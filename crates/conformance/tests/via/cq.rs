//! Completion queues.

use std::time::Duration;

use hca_via::{CqEntry, ErrorKind, Queue, RemoteAddress, Request, ReturnCode, Status, ViAttributes};

use crate::bed::{Bed, DATA, PATIENCE, code, connect, until};

pub(crate) fn a_completion_queue_names_the_queues_in_the_order_of_completions(bed: &Bed) {
    let [a, b] = bed.sides();
    let cq = a.nic.create_cq(16).unwrap();
    let attributes = ViAttributes::new(&a.ptag);
    let x = a.nic.create_vi(&attributes, Some(&cq), Some(&cq)).unwrap();
    let y = b.vi();
    connect((&a, &x), (&b, &y)).unwrap();
    x.post_recv(a.written(0, &Request::new(&[a.data(0, 64)]))).unwrap();
    y.post_recv(b.written(0, &Request::new(&[b.data(0, 64)]))).unwrap();
    x.post_send(a.written(1, &Request::new(&[a.data(0, 8)]))).unwrap();
    let sent = until(&[&x, &y], "an entry", || cq.done());
    assert_eq!(sent, CqEntry { vi: x.id(), queue: Queue::Send });
    assert!(x.recv_done().is_none());
    assert!(x.send_done().unwrap().status.is_ok(), "the descriptor is on its queue until now");
    y.post_send(b.written(1, &Request::new(&[b.data(0, 8)]))).unwrap();
    let received = until(&[&x, &y], "an entry", || cq.done());
    assert_eq!(received, CqEntry { vi: x.id(), queue: Queue::Receive });
    assert!(x.recv_done().unwrap().status.is_ok());
    assert!(cq.done().is_none());
    // A failure at the post has its entry, too.
    let bad = hca_via::Segment { handle: 0x55, ..a.data(0, 8) };
    x.post_recv(a.written(2, &Request::new(&[bad]))).unwrap();
    assert_eq!(cq.done(), Some(CqEntry { vi: x.id(), queue: Queue::Receive }));
}

pub(crate) fn the_ends_of_writes_are_told_unasked(bed: &Bed) {
    let [a, b] = bed.sides();
    let cq = a.nic.create_cq(16).unwrap();
    let attributes = ViAttributes { enable_rdma_write: true, ..ViAttributes::new(&a.ptag) };
    let x = a.nic.create_vi(&attributes, Some(&cq), None).unwrap();
    let y = b.vi_with(|attributes| ViAttributes { enable_rdma_write: true, ..attributes });
    connect((&a, &x), (&b, &y)).unwrap();
    let to = RemoteAddress { addr: b.memory.addr() + DATA as u64, handle: b.memory.handle() };
    for i in 0..5 {
        x.post_send(a.written(1 + i, &Request::write(&[a.data(0, 8)], to))).unwrap();
    }
    let entry = CqEntry { vi: x.id(), queue: Queue::Send };
    for _ in 0..5 {
        assert_eq!(until(&[&y], "the end of a write", || cq.done_unasked()), entry);
        assert!(x.send_done().unwrap().status.is_ok());
    }
    for i in 0..2 {
        x.post_send(a.written(1 + i, &Request::write(&[a.data(0, 8)], to))).unwrap();
    }
    assert_eq!(until(&[&y], "the end of a write", || cq.done_unasked()), entry);
    let more = until(&[&y], "the end of a write", || cq.more().or_else(|| cq.done_unasked()));
    assert_eq!((more, cq.more()), (entry, None));
}

pub(crate) fn an_attached_queue_is_not_waited_for(bed: &Bed) {
    let [a, _] = bed.sides();
    let cq = a.nic.create_cq(16).unwrap();
    let vi = a.nic.create_vi(&ViAttributes::new(&a.ptag), None, Some(&cq)).unwrap();
    assert_eq!(code(vi.recv_wait(Some(PATIENCE))), ReturnCode::InvalidParameter);
    assert_eq!(code(vi.recv_notify(|_| ())), ReturnCode::InvalidParameter);
    assert_eq!(code(vi.send_wait(Some(Duration::ZERO))), ReturnCode::Timeout, "it has none");
}

pub(crate) fn vis_that_threads_create_at_once_have_room_in_their_completion_queue(bed: &Bed) {
    let [a, _] = bed.sides();
    let cq = a.nic.create_cq(16).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let create = |_| a.nic.create_vi(&ViAttributes::new(&a.ptag), Some(&cq), Some(&cq)).unwrap();
                let vis: Vec<_> = (0..16).map(create).collect();
                drop(vis);
            });
        }
    });
}

pub(crate) fn a_completion_queue_that_is_full_loses_entries_and_says_so(bed: &Bed) {
    let [a, _] = bed.sides();
    let cq = a.nic.create_cq(2).unwrap();
    let vi = a
        .nic
        .create_vi(
            &ViAttributes { reliability: hca_via::Reliability::Unreliable, ..ViAttributes::new(&a.ptag) },
            None,
            Some(&cq),
        )
        .unwrap();
    let bad = a.written(0, &Request::new(&[hca_via::Segment { handle: 0x55, ..a.data(0, 8) }]));
    for _ in 0..3 {
        vi.post_recv(&bad).unwrap();
    }
    let told = a.told();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((told[0].kind, told[0].vi), (ErrorKind::Overrun, vi.id()));
    assert_eq!(cq.entries(), 2);
    assert_eq!(code(cq.resize(1)), ReturnCode::ErrorResource);
    cq.resize(3).unwrap();
    assert!(cq.done().is_some() && cq.done().is_some() && cq.done().is_none());
    for _ in 0..3 {
        assert!(vi.recv_done().unwrap().status.contains(Status::PROTECTION_ERROR), "none is lost here");
    }
}

pub(crate) fn a_completion_queue_in_use_is_not_destroyed(bed: &Bed) {
    let [a, b] = bed.sides();
    assert_eq!(code(a.nic.create_cq(0)), ReturnCode::InvalidParameter);
    let most = a.nic.attributes().max_cq_entries;
    assert_eq!(code(a.nic.create_cq(most + 1)), ReturnCode::InvalidParameter);
    let cq = a.nic.create_cq(16).unwrap();
    let attributes = ViAttributes::new(&a.ptag);
    assert!(b.nic.create_vi(&ViAttributes::new(&b.ptag), Some(&cq), None).is_err(), "of another adapter");
    let vi = a.nic.create_vi(&attributes, Some(&cq), None).unwrap();
    let (cq, refused) = cq.destroy().unwrap_err();
    assert_eq!(refused.code(), ReturnCode::ErrorResource);
    vi.destroy().unwrap();
    cq.destroy().unwrap();
}

pub(crate) fn a_completion_queue_wakes_its_waiter(bed: &Bed) {
    let [a, b] = bed.sides();
    let cq = b.nic.create_cq(16).unwrap();
    let x = a.vi();
    let y = b.nic.create_vi(&ViAttributes::new(&b.ptag), None, Some(&cq)).unwrap();
    connect((&a, &x), (&b, &y)).unwrap();
    y.post_recv(b.written(0, &Request::new(&[b.data(0, 64)]))).unwrap();
    assert_eq!(code(cq.wait(Some(Duration::from_millis(1)))), ReturnCode::Timeout);
    std::thread::scope(|s| {
        let waits = s.spawn(|| cq.wait(Some(PATIENCE)).unwrap());
        x.post_send(a.written(0, &Request::new(&[a.data(0, 8)]))).unwrap();
        assert!(x.send_wait(Some(PATIENCE)).unwrap().status.is_ok());
        assert_eq!(waits.join().unwrap(), CqEntry { vi: y.id(), queue: Queue::Receive });
    });
}

pub(crate) fn several_vis_share_a_completion_queue(bed: &Bed) {
    let [a, b] = bed.sides();
    let cq = b.nic.create_cq(64).unwrap();
    let attributes = ViAttributes::new(&b.ptag);
    let clients: Vec<_> = (0..4).map(|_| a.vi()).collect();
    let servers: Vec<_> =
        (0..4).map(|_| b.nic.create_vi(&attributes, Some(&cq), Some(&cq)).unwrap()).collect();
    for (i, (client, server)) in clients.iter().zip(&servers).enumerate() {
        connect((&a, client), (&b, server)).unwrap();
        server.post_recv(b.written(i, &Request::new(&[b.data(64 * i, 64)]))).unwrap();
    }
    for (i, (client, server)) in clients.iter().zip(&servers).enumerate().rev() {
        client.post_send(a.written(i, &Request::new(&[a.data(0, i)]))).unwrap();
        let entry = until(&[client], "an entry", || cq.done());
        assert_eq!(entry, CqEntry { vi: server.id(), queue: Queue::Receive });
        assert_eq!(server.recv_done().unwrap().length as usize, i);
        // Connected anew, it still has its place on the queue.
        server.disconnect().unwrap();
        let _ = client.disconnect();
        connect((&a, client), (&b, server)).unwrap();
        assert!(cq.done().is_none());
    }
}
