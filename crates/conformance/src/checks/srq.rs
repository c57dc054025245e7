//! Shared receive queues.

use std::sync::Arc;

use hca_core::{AsyncEvent, DeviceError, PostErrorKind, QpState, RecvWr, SendOp, SrqInit, WcStatus};

use crate::Bed;
use crate::mem::{Mem, pattern};
use crate::node::{Cq, Node};
use crate::qp::{ALL, Conn, Qp, Srq, connect};

/// `n` queue pairs of A, each connected to one of B; those of B share a receive queue and a CQ.
struct Shared {
    a: Vec<Qp>,
    b: Vec<Qp>,
    srq: Arc<Srq>,
    cq: Arc<Cq>,
    ma: Mem,
    mb: Mem,
}

impl Shared {
    fn new(bed: &dyn Bed, n: usize, conn: Conn) -> Self {
        let [na, nb] = Node::open(bed);
        let srq = nb.srq(64, 2);
        let (cq, send_cq) = (nb.cq(512), nb.cq(512));
        let (ma, mb) = (na.mem(16384, ALL), nb.mem(16384, ALL));
        let a: Vec<Qp> = (0..n).map(|_| na.qp(&conn)).collect();
        let b: Vec<Qp> = (0..n).map(|_| nb.qp_on(&conn, &send_cq, &cq, Some(&srq))).collect();
        for (qa, qb) in a.iter().zip(&b) {
            connect(&conn, qa, qb);
        }
        Self { a, b, srq, cq, ma, mb }
    }
}

pub(crate) fn a_shared_receive_queue_serves_all_its_queue_pairs(bed: &dyn Bed) {
    let s = Shared::new(bed, 4, Conn::default());
    for id in 0..40_usize {
        s.srq.recv(id as u64, &[s.mb.sge(id * 100, 50), s.mb.sge(id * 100 + 50, 50)]);
    }
    for round in 0..10_usize {
        for (i, qp) in s.a.iter().enumerate() {
            s.ma.write(0, &pattern((round * 4 + i) as u64, 100));
            qp.send(1, SendOp::SendImm((round * 4 + i) as u32), &[s.ma.sge(0, 100)]);
            qp.send_cq.ok(1);
            // One message at a time, so that requests are taken in the order of posting.
            let c = s.cq.ok((round * 4 + i) as u64);
            assert_eq!(c.qp, s.b[i].handle);
            s.mb.assert_bytes((round * 4 + i) * 100, &pattern((round * 4 + i) as u64, 100));
        }
    }
}

pub(crate) fn every_shared_request_is_taken_once(bed: &dyn Bed) {
    let s = Shared::new(bed, 4, Conn::default());
    for id in 0..40_usize {
        s.srq.recv(id as u64, &[s.mb.sge(id * 16, 16)]);
    }
    for k in 0..10_usize {
        for (i, qp) in s.a.iter().enumerate() {
            let at = (k * 4 + i) * 16;
            s.ma.write(at, &pattern((i * 10 + k) as u64, 16));
            qp.send(k as u64, SendOp::SendImm(k as u32), &[s.ma.sge(at, 16)]);
        }
    }
    let mut next = [0; 4];
    let mut taken = std::collections::HashSet::new();
    for c in s.cq.take(40) {
        assert_eq!(c.status, WcStatus::Success);
        assert!(taken.insert(c.wr_id), "request {} was taken twice", c.wr_id);
        let i = s.b.iter().position(|b| b.handle == c.qp).expect("one of ours");
        assert_eq!(c.extra, hca_core::RecvExtra::Imm(next[i]), "messages of one queue pair keep their order");
        s.mb.assert_bytes(c.wr_id as usize * 16, &pattern((i * 10) as u64 + u64::from(next[i]), 16));
        next[i] += 1;
    }
    assert_eq!(next, [10; 4]);
    s.cq.stays_empty();
}

pub(crate) fn the_limit_event_is_raised_once(bed: &dyn Bed) {
    let s = Shared::new(bed, 2, Conn::default());
    let event = AsyncEvent::SrqLimitReached(s.srq.handle);
    let nb = &s.b[0].node;
    for id in 0..20 {
        s.srq.recv(id, &[s.mb.sge(0, 64)]);
    }
    s.srq.set_limit(10).unwrap();
    let send = |n: u64| {
        for id in 0..n {
            s.a[id as usize % 2].send(id, SendOp::Send, &[s.ma.sge(0, 64)]);
            s.a[id as usize % 2].send_cq.ok(id);
            s.cq.next();
        }
        s.a[0].node.world.settle();
    };
    send(10);
    assert_eq!(nb.count_events(event), 0, "ten are left, which is not fewer than ten");
    send(1);
    nb.wait_event(event);
    send(4);
    assert_eq!(nb.count_events(event), 1);
    // Armed anew it is raised anew, and 0 disarms.
    s.srq.set_limit(5).unwrap();
    send(1);
    nb.world.wait("the second event", || (nb.count_events(event) == 2).then_some(()));
    s.srq.set_limit(2).unwrap();
    s.srq.set_limit(0).unwrap();
    send(4);
    assert_eq!(nb.count_events(event), 2);
}

pub(crate) fn an_empty_shared_queue_is_not_ready(bed: &dyn Bed) {
    let s = Shared::new(bed, 2, Conn { min_rnr_timer: 5, ..Conn::default() });
    for (i, qp) in s.a.iter().enumerate() {
        qp.send(i as u64, SendOp::Send, &[s.ma.sge(0, 64)]);
    }
    s.a[0].send_cq.stays_empty();
    s.srq.recv(1, &[s.mb.sge(0, 64)]);
    s.srq.recv(2, &[s.mb.sge(0, 64)]);
    s.a[0].send_cq.ok(0);
    s.a[1].send_cq.ok(1);
    assert!(s.cq.take(2).iter().all(|c| c.status == WcStatus::Success));
}

pub(crate) fn an_empty_shared_queue_fails_senders_without_retries(bed: &dyn Bed) {
    let s = Shared::new(bed, 1, Conn { rnr_retry: 1, ..Conn::default() });
    s.a[0].send(1, SendOp::Send, &[s.ma.sge(0, 64)]);
    s.a[0].send_cq.ends(1, WcStatus::RnrRetryExceeded);
}

pub(crate) fn a_destroyed_queue_pair_names_the_shared_requests_that_it_took(bed: &dyn Bed) {
    let s = Shared::new(bed, 2, Conn::default());
    for id in 7..10 {
        s.srq.recv(id, &[s.mb.sge(0, 64)]);
    }
    for qp in &s.a {
        qp.send(1, SendOp::Send, &[s.ma.sge(0, 64)]);
        qp.send_cq.ok(1);
    }
    assert_eq!(s.b[1].destroy().unwrap(), [8]);
    // The other's is still there.
    assert_eq!(s.cq.ok(7).qp, s.b[0].handle);
    s.cq.stays_empty();
}

pub(crate) fn a_reset_queue_pair_flushes_the_shared_requests_that_it_took(bed: &dyn Bed) {
    let conn = Conn::default();
    let s = Shared::new(bed, 2, conn);
    for id in 7..11 {
        s.srq.recv(id, &[s.mb.sge(0, 64)]);
    }
    let send = |qp: &Qp| {
        qp.send(1, SendOp::Send, &[s.ma.sge(0, 64)]);
        qp.send_cq.ok(1);
    };
    [0, 1, 0].iter().for_each(|i| send(&s.a[*i]));
    for qp in [&s.a[0], &s.b[0]] {
        qp.go(QpState::Reset);
    }
    connect(&conn, &s.a[0], &s.b[0]);
    send(&s.a[0]);
    // In order, beside those of the other and of what came since.
    let ends =
        [(0, WcStatus::WrFlushed), (1, WcStatus::Success), (0, WcStatus::WrFlushed), (0, WcStatus::Success)];
    for (id, (of, status)) in (7..).zip(ends) {
        assert_eq!(s.cq.ends(id, status).qp, s.b[of].handle, "request {id}");
    }
    s.cq.stays_empty();
    // What is left as flushed is named by the end of the queue pair, if that comes first; once.
    s.srq.recv(11, &[s.mb.sge(0, 64)]);
    send(&s.a[0]);
    s.b[0].go(QpState::Reset);
    assert_eq!(s.b[0].destroy().unwrap(), [11]);
    s.cq.stays_empty();
}

pub(crate) fn an_error_leaves_shared_requests_to_the_others(bed: &dyn Bed) {
    let s = Shared::new(bed, 2, Conn::default());
    for id in 0..3 {
        s.srq.recv(id, &[s.mb.sge(0, 64)]);
    }
    s.b[0].go(QpState::Error);
    s.b[0].wait_event(AsyncEvent::LastWqeReached);
    s.cq.stays_empty();
    for id in 0..3 {
        s.a[1].send(id, SendOp::Send, &[s.ma.sge(0, 64)]);
        s.a[1].send_cq.ok(id);
        assert_eq!(s.cq.ok(id).qp, s.b[1].handle);
    }
    assert_eq!(s.b[0].count_events(AsyncEvent::LastWqeReached), 1);
    assert_eq!(s.b[1].count_events(AsyncEvent::LastWqeReached), 0);
}

pub(crate) fn a_message_too_long_fails_only_the_request_it_took(bed: &dyn Bed) {
    let s = Shared::new(bed, 2, Conn::default());
    s.srq.recv(1, &[s.mb.sge(0, 32)]);
    s.srq.recv(2, &[s.mb.sge(0, 64)]);
    s.a[0].send(5, SendOp::Send, &[s.ma.sge(0, 64)]);
    assert_eq!(s.cq.ends(1, WcStatus::LocalLength).qp, s.b[0].handle);
    s.a[0].send_cq.ends(5, WcStatus::RemoteInvalidRequest);
    s.b[0].wait_event(AsyncEvent::LastWqeReached);
    s.a[1].send(6, SendOp::Send, &[s.ma.sge(0, 64)]);
    s.a[1].send_cq.ok(6);
    assert_eq!(s.cq.ok(2).qp, s.b[1].handle);
}

pub(crate) fn a_shared_queue_takes_its_depth_and_no_more(bed: &dyn Bed) {
    let s = Shared::new(bed, 1, Conn::default());
    let sge = [s.mb.sge(0, 64)];
    let mut depth = 0;
    let kind = loop {
        match s.srq.try_recv(&[RecvWr { wr_id: depth, sges: &sge }]) {
            Ok(()) => depth += 1,
            Err(e) => break e.kind,
        }
        assert!(depth < 1 << 20, "it is never full");
    };
    assert!(depth >= 64, "asked for 64, got {depth}");
    assert_eq!(kind, PostErrorKind::QueueFull { depth: depth as u32 });
    s.a[0].send(1, SendOp::Send, &[s.ma.sge(0, 64)]);
    s.cq.ok(0);
    s.srq.recv(depth, &sge);
    let three = [s.mb.sge(0, 1); 33];
    let e = s.srq.try_recv(&[RecvWr { wr_id: 0, sges: &three }]).unwrap_err();
    assert!(matches!(e.kind, PostErrorKind::TooManySges { count: 33, .. }), "{e}");
}

pub(crate) fn a_shared_queue_in_use_is_not_destroyed(bed: &dyn Bed) {
    let s = Shared::new(bed, 2, Conn::default());
    let e = s.srq.destroy().unwrap_err();
    assert!(matches!(e, DeviceError::InUse { users: 2, .. }), "{e}");
    let Shared { b, srq, .. } = s;
    drop(b);
    srq.destroy().unwrap();
    assert!(matches!(srq.destroy(), Err(DeviceError::UnknownHandle { .. })));
    assert!(matches!(srq.set_limit(1), Err(DeviceError::UnknownHandle { .. })));
}

pub(crate) fn limits_of_shared_queues_are_enforced(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let attr = node.dev().attr().clone();
    for (max_wr, max_sge) in [(0, 1), (attr.max_srq_wr + 1, 1), (8, attr.max_sge + 1)] {
        let r = node.dev().create_srq(node.pd.handle, &SrqInit { max_wr, max_sge });
        assert!(matches!(r, Err(DeviceError::OutOfRange { .. })), "{max_wr} {max_sge}: {:?}", r.err());
    }
    let srq = node.srq(8, 1);
    assert!(matches!(srq.set_limit(1 << 20), Err(DeviceError::OutOfRange { .. })));
    drop(node.srq(attr.max_srq_wr, 1));
}
