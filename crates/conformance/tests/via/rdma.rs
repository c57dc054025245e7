//! RDMA, and the rights that it needs.

use hca_via::{
    ErrorKind, MemAttributes, Op, Reliability, RemoteAddress, Request, Status, ViAttributes, ViState,
};
use softhca::Progress;

use crate::bed::{Bed, DATA, End, error, pattern};

fn place(end: &End, offset: usize) -> RemoteAddress {
    let memory = &end.side.memory;
    RemoteAddress { addr: memory.addr() + (DATA + offset) as u64, handle: memory.handle() }
}

pub(crate) fn an_rdma_write_needs_no_descriptor(bed: &Bed) {
    let pair = bed.pair();
    for len in [0, 8, 10_000] {
        pair.a.side.fill(0, &pattern(len));
        let data = [pair.a.side.data(0, len / 3), pair.a.side.data(len / 3, len - len / 3)];
        pair.a.post(0, &Request::write(&data, place(&pair.b, 7)));
        let sent = pair.sent();
        assert_eq!((sent.status.op(), sent.status.is_ok()), (Some(Op::RdmaWrite), true), "{sent:?}");
        assert_eq!(pair.b.side.bytes(7, len), pattern(len));
    }
    assert!(pair.b.vi.recv_done().is_none());
}

pub(crate) fn an_rdma_write_with_immediate_data_consumes_a_receive_descriptor(bed: &Bed) {
    for level in crate::bed::LEVELS {
        let pair = bed.pair_of(level);
        pair.b.receive(0, 0, 64);
        pair.a.side.fill(0, &pattern(500));
        let data = [pair.a.side.data(0, 500)];
        pair.a.post(0, &Request::write(&data, place(&pair.b, 1000)).immediate(9));
        assert!(pair.sent().status.is_ok());
        let received = pair.received();
        assert_eq!(received.status.op(), Some(Op::RemoteRdmaWrite), "{level:?}");
        assert_eq!((received.length, received.immediate), (500, Some(9)));
        assert_eq!(pair.b.side.bytes(1000, 500), pattern(500));
    }
}

pub(crate) fn an_rdma_read_fetches(bed: &Bed) {
    for level in [Reliability::Delivery, Reliability::Reception] {
        let pair = bed.pair_of(level);
        for len in [0, 8, 10_000] {
            pair.b.side.fill(3, &pattern(len));
            let data = [pair.a.side.data(0, len)];
            pair.a.post(0, &Request::read(&data, place(&pair.b, 3)));
            let sent = pair.sent();
            assert_eq!((sent.status.op(), sent.status.is_ok()), (Some(Op::RdmaRead), true), "{sent:?}");
            assert_eq!(pair.a.side.bytes(0, len), pattern(len));
        }
        // A send behind a fence brings what was read.
        pair.b.receive(0, 5000, 64);
        pair.b.side.fill(0, &[7; 32]);
        let data = [pair.a.side.data(0, 32)];
        pair.a.post(0, &Request::read(&data, place(&pair.b, 0)));
        let data = [pair.a.side.data(0, 32), pair.a.side.data(100, 32)];
        pair.a.post(1, &Request::new(&data[..1]).fence());
        assert!(pair.sent().status.is_ok() && pair.sent().status.is_ok());
    }
}

pub(crate) fn an_unreliable_vi_writes_and_does_not_read(bed: &Bed) {
    let pair = bed.pair_of(Reliability::Unreliable);
    pair.b.receive(0, 0, 64);
    let data = [pair.a.side.data(0, 8)];
    pair.a.post(0, &Request::read(&data, place(&pair.b, 0)));
    assert_eq!(error(&pair.sent()), Status::FORMAT_ERROR);
    pair.a.side.fill(0, b"unlikely");
    pair.a.post(0, &Request::write(&data, place(&pair.b, 200)));
    pair.a.send(1, 0, 8);
    assert!(pair.sent().status.is_ok() && pair.sent().status.is_ok());
    assert!(pair.received().status.is_ok());
    assert_eq!(pair.b.side.bytes(200, 8), b"unlikely");
}

/// The target makes no call between the post and the look at its memory.
pub(crate) fn reliable_reception_completes_when_the_data_is_in_the_targets_memory(bed: &Bed) {
    let pair = bed.pair_of(Reliability::Reception);
    if bed.progress == Progress::Inline {
        return; // The target's calls move its adapter.
    }
    for round in 1..50 {
        pair.b.receive(0, 9000, 64);
        pair.a.side.fill(0, &[round; 3000]);
        let data = [pair.a.side.data(0, 3000)];
        pair.a.post(0, &Request::write(&data, place(&pair.b, 0)));
        assert!(pair.a.vi.send_wait(Some(crate::bed::PATIENCE)).unwrap().status.is_ok());
        assert_eq!(pair.b.side.bytes(0, 3000), [round; 3000]);
        pair.a.send(0, 0, 64);
        assert!(pair.a.vi.send_wait(Some(crate::bed::PATIENCE)).unwrap().status.is_ok());
        assert_eq!(pair.b.side.bytes(9000, 64), [round; 64]);
        assert!(pair.received().status.is_ok());
    }
}

#[track_caller]
fn refused(pair: &crate::bed::Pair, request: &Request<'_>, expected: Status) {
    pair.a.post(0, request);
    assert_eq!(error(&pair.sent()), expected);
    pair.until_lost();
}

pub(crate) fn rdma_that_the_memory_does_not_allow_is_refused(bed: &Bed) {
    for write in [false, true] {
        let pair = bed.pair();
        let mut rights = MemAttributes::rdma(&pair.b.side.ptag);
        (rights.enable_rdma_write, rights.enable_rdma_read) = (!write, write);
        let memory = pair.b.side.nic.alloc(4096, &rights).unwrap();
        let data = [pair.a.side.data(0, 8)];
        let there = RemoteAddress { addr: memory.addr(), handle: memory.handle() };
        let request = if write { Request::write(&data, there) } else { Request::read(&data, there) };
        refused(&pair, &request, Status::RDMA_PROTECTION_ERROR);
        assert_eq!(memory.to_vec(0, 8), [0; 8]);
    }
}

pub(crate) fn rdma_that_the_vi_does_not_allow_is_refused(bed: &Bed) {
    for write in [false, true] {
        let pair = bed.pair_with(|_, attributes| ViAttributes {
            enable_rdma_write: !write,
            enable_rdma_read: write,
            ..attributes
        });
        let data = [pair.a.side.data(0, 8)];
        let there = place(&pair.b, 0);
        pair.a.side.fill(0, b"intruder");
        let request = if write { Request::write(&data, there) } else { Request::read(&data, there) };
        pair.a.post(0, &request);
        assert!(!error(&pair.sent()).is_empty());
        pair.until_lost();
        assert_eq!(pair.b.side.bytes(0, 8), [0; 8]);
    }
}

pub(crate) fn rdma_into_memory_of_another_tag_is_refused(bed: &Bed) {
    let pair = bed.pair();
    let other = pair.b.side.nic.create_ptag().unwrap();
    let memory = pair.b.side.nic.alloc(4096, &MemAttributes::rdma(&other)).unwrap();
    let data = [pair.a.side.data(0, 8)];
    let there = RemoteAddress { addr: memory.addr(), handle: memory.handle() };
    refused(&pair, &Request::write(&data, there), Status::RDMA_PROTECTION_ERROR);
}

pub(crate) fn the_owner_of_refused_memory_is_told(bed: &Bed) {
    for kind in [ErrorKind::WriteProtection, ErrorKind::ReadProtection] {
        let pair = bed.pair();
        let data = [pair.a.side.data(0, 8)];
        // The error handler is not told of an allowed access.
        pair.a.post(0, &Request::read(&data, place(&pair.b, 0)));
        assert!(pair.sent().status.is_ok());
        let beyond = RemoteAddress { addr: place(&pair.b, 0).addr + DATA as u64, ..place(&pair.b, 0) };
        let write = kind == ErrorKind::WriteProtection;
        let request = if write { Request::write(&data, beyond) } else { Request::read(&data, beyond) };
        pair.a.post(0, &request);
        assert_eq!(error(&pair.sent()), Status::RDMA_PROTECTION_ERROR);
        pair.until("an error at the target", || (!pair.b.side.told().is_empty()).then_some(()));
        let told = pair.b.side.told();
        assert_eq!((told.len(), told[0].vi), (1, pair.b.vi.id()));
        assert_eq!(told[0].kind, kind);
        assert_eq!(pair.b.vi.state(), ViState::Error);
    }
}
