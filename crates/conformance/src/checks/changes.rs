//! Changes of objects that exist: queues are resized, notifications held back, regions moved to another domain. A
//! device that can not refuses.

use std::time::Duration;

use hca_core::{
    Access, Completion, CqHandle, CqModeration, DeviceError, MrHandle, Notify, QpCap, QpState, SendOp,
    SrqHandle, WcStatus,
};

use super::cq::Bell;
use crate::Bed;
use crate::mem::pattern;
use crate::node::Node;
use crate::qp::{ALL, Conn, Pair, connect};

/// Fails unless a device refused what its attributes deny.
fn assert_unsupported<T: core::fmt::Debug>(refused: &Result<T, DeviceError>) {
    assert!(matches!(refused, Err(DeviceError::Unsupported { .. })), "{refused:?}");
}
fn assert_unknown<T: core::fmt::Debug>(refused: &Result<T, DeviceError>) {
    assert!(matches!(refused, Err(DeviceError::UnknownHandle { .. })), "{refused:?}");
}
fn assert_out_of_range<T: core::fmt::Debug>(refused: &Result<T, DeviceError>) {
    assert!(matches!(refused, Err(DeviceError::OutOfRange { .. })), "{refused:?}");
}
fn assert_in_use<T: core::fmt::Debug>(refused: &Result<T, DeviceError>) {
    assert!(matches!(refused, Err(DeviceError::InUse { .. })), "{refused:?}");
}

pub(crate) fn a_completion_queue_that_is_resized_keeps_what_waits_in_it(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let cap = QpCap { max_send_wr: 200, ..QpCap::default() };
    let conn = Conn { cap, ..Conn::default() };
    let (cq, other) = (a.cq(8), a.cq(8));
    let (qa, qb) = (a.qp_on(&conn, &cq, &other, None), b.qp(&conn));
    connect(&conn, &qa, &qb);
    let (ma, mb) = (a.mem(4096, ALL), b.mem(4096, ALL));
    let write = |ids: core::ops::Range<u64>| {
        ids.for_each(|id| qa.send(id, SendOp::Write(mb.remote(0)), &[ma.sge(0, 8)]));
        // None is polled.
        a.world.settle();
    };
    let resize = |depth| cq.with_port(|port| port.resize(depth));
    if !a.dev().attr().abilities.cq_resize {
        assert_unsupported(&resize(16));
        return;
    }
    for depth in [0, a.dev().attr().max_cqe + 1] {
        assert_out_of_range(&resize(depth));
    }
    write(0..8);
    let depth = resize(100).unwrap();
    assert!(depth >= 100 && a.dev().query_cq(cq.handle).unwrap().depth == depth);
    write(8..100);
    // A check's queue polls 16 at a time.
    cq.all_end(0..48, WcStatus::Success);
    let depth = resize(52).unwrap();
    assert!((52..100).contains(&depth), "{depth}");
    cq.all_end(48..100, WcStatus::Success);
    // A notification that was asked for before is one of the queue.
    let bell = Bell::on(&cq);
    cq.arm(Notify::Any);
    resize(120).unwrap();
    write(100..220);
    a.world.wait("the notification", || (bell.rung() > 0).then_some(()));
    assert_eq!(a.events(), [], "nothing was lost");
    cq.all_end(100..148, WcStatus::Success);
    // The completions that are left are of a queue pair that is destroyed.
    qa.destroy().unwrap();
    a.world.settle();
    // By its port: a check's queue may have polled more than it gave out.
    assert_eq!(cq.with_port(|port| port.poll(&mut [Completion::default(); 16])), 0);
    assert_eq!(resize(1).unwrap().max(1), a.dev().query_cq(cq.handle).unwrap().depth);
    // Requests that are flushed wait at once.
    let flushed = a.cq(16);
    let qp = a.qp_on(&conn, &other, &flushed, None);
    qp.to_init(&conn);
    (0..8).for_each(|id| qp.recv(id, &[ma.sge(0, 8)]));
    qp.go(QpState::Error);
    assert_in_use(&flushed.with_port(|port| port.resize(7)));
    flushed.with_port(|port| port.resize(8)).unwrap();
    flushed.all_end(0..8, WcStatus::WrFlushed);
    assert_unknown(&a.dev().query_cq(CqHandle { generation: cq.handle.generation ^ 1, ..cq.handle }));
}

pub(crate) fn notifications_that_are_held_back_come_by_count_or_time(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let (dev, cq) = (p.a.node.dev(), &p.a.send_cq);
    let moderate = |count, period| dev.moderate_cq(cq.handle, CqModeration { count, period });
    let Some(most) = dev.attr().abilities.cq_moderation else {
        assert_unsupported(&moderate(4, Duration::from_micros(100)));
        return;
    };
    assert!(most.holds_back(), "{most:?}");
    assert_out_of_range(&moderate(4, most.period + Duration::from_micros(1)));
    let stale = CqHandle { generation: cq.handle.generation ^ 1, ..cq.handle };
    assert_unknown(&dev.moderate_cq(stale, most));
    assert!(!dev.query_cq(cq.handle).unwrap().moderation.holds_back());
    let mut id = 0;
    let mut write = |n: u64| {
        for _ in 0..n {
            p.a.send(id, SendOp::Write(p.mb.remote(0)), &[p.ma.sge(0, 8)]);
            id += 1;
        }
    };
    let bell = Bell::on(cq);
    let mut rung = 0;
    for (count, period, requests) in [
        (4, most.period, 4),
        // The time of the first one.
        (most.count, Duration::from_millis(2).min(most.period), 1),
        (4, most.period, 3),
        (0, Duration::ZERO, 1),
    ] {
        moderate(count, period).unwrap();
        let (got, want) = (dev.query_cq(cq.handle).unwrap().moderation, CqModeration { count, period });
        assert!(got == want || !(got.holds_back() || want.holds_back()), "{got:?} {want:?}");
        cq.arm(Notify::Any);
        write(requests);
        p.a.node.world.wait("the notification", || (bell.rung() > rung).then_some(()));
        // Completions themselves are not held back.
        (0..requests).for_each(|_| assert_eq!(cq.next().status, WcStatus::Success));
        p.settle();
        rung = bell.rung();
    }
    // Nobody asked, so that nobody is told.
    moderate(2, Duration::from_micros(50).min(most.period)).unwrap();
    write(5);
    p.settle();
    assert_eq!(bell.rung(), rung);
}

pub(crate) fn a_shared_queue_that_is_resized_keeps_its_requests(bed: &dyn Bed) {
    let [na, nb] = Node::open(bed);
    let (srq, conn) = (nb.srq(4, 2), Conn::default());
    let resize = |max_wr| srq.with_port(|port| port.resize(max_wr));
    if !nb.dev().attr().abilities.srq_resize {
        assert_unsupported(&resize(8));
        return;
    }
    let cq = nb.cq(64);
    let (qa, qb) = (na.qp(&conn), nb.qp_on(&conn, &nb.cq(64), &cq, Some(&srq)));
    connect(&conn, &qa, &qb);
    let (ma, mb) = (na.mem(4096, ALL), nb.mem(4096, ALL));
    let recv = |ids: core::ops::Range<u64>| {
        ids.for_each(|id| srq.recv(id, &[mb.sge(id as usize * 16, 8), mb.sge(id as usize * 16 + 8, 8)]));
    };
    let take = |ids: core::ops::Range<u64>| {
        for id in ids {
            ma.write(0, &pattern(id, 16));
            qa.send(id, SendOp::Send, &[ma.sge(0, 16)]);
            qa.send_cq.ok(id);
            cq.ok(id);
            mb.assert_bytes(id as usize * 16, &pattern(id, 16));
        }
    };
    for max_wr in [0, nb.dev().attr().max_srq_wr + 1] {
        assert_out_of_range(&resize(max_wr));
    }
    recv(0..4);
    take(0..1);
    assert_in_use(&resize(2));
    let max_wr = resize(10).unwrap();
    let told = nb.dev().query_srq(srq.handle).unwrap();
    assert!(max_wr >= 10 && (told.max_wr, told.max_sge >= 2, told.limit) == (max_wr, true, 0), "{told:?}");
    recv(4..11);
    take(1..9);
    resize(2).unwrap();
    take(9..11);
    recv(11..13);
    srq.set_limit(2).unwrap();
    assert_eq!(nb.dev().query_srq(srq.handle).unwrap().limit, 2);
    take(11..13);
    assert_unknown(&nb.dev().query_srq(SrqHandle { generation: srq.handle.generation ^ 1, ..srq.handle }));
}

pub(crate) fn a_region_that_is_changed_obeys_its_new_rights_and_domain(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let other = b.other_pd();
    let mut m = b.mem(4096, ALL);
    if !b.dev().attr().abilities.mr_rereg {
        assert_unsupported(&b.dev().rereg_mr(m.handle(), b.pd.handle, ALL));
        return;
    }
    let was = m.handle();
    let told = b.dev().query_mr(was).unwrap();
    assert_eq!((told.pd, told.iova, told.len), (b.pd.handle, m.remote(0).addr, 4096));
    assert!(told.access == ALL);
    // Each on a connection of its own, of which some know the region before, and reach it directly.
    let ops = |m: &crate::mem::Mem| [SendOp::Write(m.remote(0)), SendOp::Read(m.remote(8))];
    let connections = || [(); 2].map(|()| Pair::between(&a, &b, Conn::default()));
    let run = |p: &Pair, op, want| {
        p.a.send(1, op, &[p.ma.sge(0, 8)]);
        p.a.send_cq.ends(1, want);
    };
    let known = connections();
    for (p, op) in known.iter().zip(ops(&m)) {
        (0..3).for_each(|_| run(p, op, WcStatus::Success));
        p.settle();
    }
    let older = m.remote(0);
    m.rereg(&b, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    assert_eq!(b.dev().query_mr(m.handle()).unwrap().access, Access::LOCAL_WRITE | Access::REMOTE_READ);
    m.fill(5);
    known.iter().for_each(|p| p.ma.fill(7));
    let wants = [WcStatus::RemoteAccess, WcStatus::Success];
    for ((p, op), want) in known.iter().zip(ops(&m)).zip(wants) {
        run(p, op, want);
    }
    let late = Pair::between(&a, &b, Conn::default());
    late.ma.fill(7);
    run(&late, SendOp::Write(older), WcStatus::RemoteAccess);
    m.assert_bytes(0, &[5; 64]);
    known[1].ma.assert_bytes(0, &[5; 8]);
    assert_unknown(&b.dev().query_mr(was));
    assert_unknown(&b.dev().dereg_mr(was));
    // In another domain, which is in use from now on.
    let stranger = MrHandle { generation: m.handle().generation ^ 1, ..m.handle() };
    assert_unknown(&b.dev().rereg_mr(stranger, other.pd.handle, ALL));
    m.rereg(&other, ALL).unwrap();
    assert_in_use(&b.dev().dealloc_pd(other.pd.handle));
    let strangers = connections();
    for (p, op) in strangers.iter().zip(ops(&m)) {
        run(p, op, WcStatus::RemoteAccess);
    }
    let there = Pair::between(&a, &other, Conn::default());
    there.ma.fill(9);
    ops(&m).into_iter().for_each(|op| run(&there, op, WcStatus::Success));
    m.assert_bytes(0, &[9; 8]);
    // A local entry of the old domain.
    let p = Pair::between(&b, &a, Conn::default());
    p.a.send(1, SendOp::Write(p.mb.remote(0)), &[m.sge(0, 8)]);
    p.a.send_cq.ends(1, WcStatus::LocalProtection);
    p.a.wait_state(QpState::Error);
}

pub(crate) fn a_queue_without_times_has_none(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    if node.dev().clock().is_none() {
        assert_unsupported(&node.dev().create_timed_cq(8).map(|(handle, _)| handle));
        return;
    }
    let (mut out, mut at) = ([hca_core::Completion::default(); 4], [0; 4]);
    for timed in [false, true] {
        let cq = if timed { node.timed_cq(8) } else { node.cq(8) };
        let polled = cq.with_port(|port| port.poll_with_times(&mut out, &mut at));
        assert!(if timed { polled == Some(0) } else { polled.is_none_or(|n| n == 0) }, "{polled:?}");
        if let Ok(status) = node.dev().query_cq(cq.handle) {
            assert_eq!(status.timed, polled.is_some());
        }
    }
}
