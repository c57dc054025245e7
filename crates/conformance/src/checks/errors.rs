//! Failures: the cause first, then the flushed requests, within the time that the settings give.

use std::time::{Duration, Instant};

use hca_core::{AckTimeout, AsyncEvent, QpState, RnrTimer, SendFlags, SendOp, SendWr, WcStatus};

use crate::mem::pattern;
use crate::node::Node;
use crate::qp::{Conn, Pair, Qp, wr};
use crate::{Bed, Ran};

/// Beyond the computed bound: what the adapter and the check may take of a processor.
const SLACK: Duration = Duration::from_secs(3);

pub(crate) fn the_failing_request_tells_why_and_later_ones_are_flushed(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    for id in 0..3 {
        p.a.recv(id + 50, &[p.ma.sge(8192, 64)]);
        p.b.recv(id + 60, &[p.mb.sge(8192, 64)]);
    }
    let sge = [p.ma.sge(0, 3000)];
    let good = SendOp::Write(p.mb.remote(0));
    let bad = SendOp::Write(p.mb.remote(-1));
    p.ma.write(0, &pattern(1, 3000));
    p.a.try_send(&[
        wr(0, good, &sge),
        SendWr { flags: SendFlags::empty(), ..wr(1, good, &sge) },
        // A failure is told whether or not a success would be.
        SendWr { flags: SendFlags::empty(), ..wr(2, bad, &sge) },
        SendWr { flags: SendFlags::empty(), ..wr(3, good, &sge) },
        wr(4, SendOp::Send, &[p.ma.sge(0, 8)]),
        wr(5, SendOp::Read(p.mb.remote(0)), &sge),
    ])
    .unwrap();
    p.a.send_cq.ok(0);
    p.a.send_cq.ends(2, WcStatus::RemoteAccess);
    p.a.send_cq.all_end(3..6, WcStatus::WrFlushed);
    p.a.recv_cq.all_end(50..53, WcStatus::WrFlushed);
    assert_eq!(p.a.state(), QpState::Error);
    // The target told its program by an event, and is in error too.
    p.b.wait_event(AsyncEvent::QpAccessError);
    p.b.recv_cq.all_end(60..63, WcStatus::WrFlushed);
    assert_eq!(p.b.state(), QpState::Error);
    p.a.send_cq.stays_empty();
    p.b.recv_cq.stays_empty();
    p.mb.assert_bytes(0, &pattern(1, 3000));
}

pub(crate) fn what_follows_a_failed_request_is_not_carried_out(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    p.ma.fill(9);
    p.a.try_send(&[
        wr(1, SendOp::Read(p.mb.remote(-1)), &[p.ma.sge(0, 64)]),
        wr(2, SendOp::Write(p.mb.remote(0)), &[p.ma.sge(64, 64)]),
        wr(3, SendOp::FetchAdd { remote: p.mb.remote(512), add: 1 }, &[p.ma.sge(128, 8)]),
    ])
    .unwrap();
    p.a.send_cq.ends(1, WcStatus::RemoteAccess);
    p.a.send_cq.all_end(2..4, WcStatus::WrFlushed);
    p.settle();
    p.mb.assert_bytes(0, &[0; 1024]);
}

pub(crate) fn a_receive_that_is_too_small_fails_on_both_sides(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    for (room, len) in [(99, 100), (0, 1), (1024, 1025), (3000, 5000)] {
        let p = Pair::between(&a, &b, Conn::default());
        p.ma.fill(5);
        p.b.recv(1, &[p.mb.sge(0, room)]);
        p.b.recv(2, &[p.mb.sge(8192, 8192)]);
        p.a.send(3, SendOp::Send, &[p.ma.sge(0, len)]);
        p.a.send(4, SendOp::Send, &[p.ma.sge(0, 8)]);
        p.b.recv_cq.ends(1, WcStatus::LocalLength);
        p.b.recv_cq.ends(2, WcStatus::WrFlushed);
        p.a.send_cq.ends(3, WcStatus::RemoteInvalidRequest);
        p.a.send_cq.ends(4, WcStatus::WrFlushed);
        p.b.wait_state(QpState::Error);
        p.mb.assert_untouched_but(0, room, 0);
    }
}

pub(crate) fn no_receive_within_the_retries_is_an_error(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    for (rnr_retry, timer) in [(0, 12), (2, 14), (5, 8)] {
        let conn = Conn { rnr_retry, min_rnr_timer: timer, ..Conn::default() };
        let p = Pair::between(&a, &b, conn);
        let start = Instant::now();
        p.a.send(1, SendOp::Send, &[p.ma.sge(0, 64)]);
        p.a.send(2, SendOp::Send, &[p.ma.sge(0, 64)]);
        p.a.send_cq.ends(1, WcStatus::RnrRetryExceeded);
        let took = start.elapsed();
        p.a.send_cq.ends(2, WcStatus::WrFlushed);
        let least = RnrTimer::new(timer).duration() * u32::from(rnr_retry);
        assert!(took >= least, "{rnr_retry} retries took {took:?}, but {least:?} is the least");
        // The responder only said "not ready": it is as it was.
        assert_eq!(p.b.state(), QpState::Rts);
    }
}

pub(crate) fn a_receive_posted_late_takes_the_message(bed: &dyn Bed) {
    let p = Pair::new(bed, Conn { rnr_retry: 7, min_rnr_timer: 12, ..Conn::default() });
    p.ma.write(0, &pattern(8, 5000));
    p.a.send(1, SendOp::Send, &[p.ma.sge(0, 5000)]);
    p.a.send(2, SendOp::WriteImm(p.mb.remote(8192), 3), &[p.ma.sge(0, 5000)]);
    p.a.send_cq.stays_empty();
    p.b.recv(1, &[p.mb.sge(0, 5000)]);
    p.b.recv_cq.ok(1);
    p.a.send_cq.ok(1);
    p.mb.assert_bytes(0, &pattern(8, 5000));
    p.a.send_cq.stays_empty();
    p.b.recv(2, &[]);
    p.b.recv_cq.ok(2);
    p.a.send_cq.ok(2);
}

/// A queue pair in RTS towards an address where nobody answers.
fn to_nobody(bed: &dyn Bed, node: &Node, conn: &Conn) -> Option<Qp> {
    let gid = bed.silent_gid()?;
    let qp = node.qp(conn);
    qp.to_init(conn);
    qp.to_rts(conn, hca_core::Qpn::new(0x123), gid, 0);
    Some(qp)
}

pub(crate) fn a_silent_peer_is_told_within_the_time_of_the_settings(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let m = node.mem(4096, crate::qp::ALL);
    for (timeout, retry_cnt) in [(8, 2), (10, 0), (9, 7)] {
        let conn = Conn { timeout, retry_cnt, ..Conn::default() };
        let Some(qp) = to_nobody(bed, &node, &conn) else { return };
        qp.recv(7, &[m.sge(0, 64)]);
        let start = Instant::now();
        qp.send(1, SendOp::Send, &[m.sge(0, 64)]);
        qp.send(2, SendOp::Write(m.remote(0)), &[m.sge(0, 64)]);
        let mut ran = Ran::new();
        let first = node.world.wait("the end of the first request", || {
            ran.tick();
            qp.send_cq.try_next()
        });
        let (took, took_running) = (start.elapsed(), ran.tick());
        assert_eq!((first.wr_id, first.status), (1, WcStatus::RetryExceeded));
        qp.send_cq.ends(2, WcStatus::WrFlushed);
        qp.recv_cq.ends(7, WcStatus::WrFlushed);
        assert_eq!(qp.state(), QpState::Error);
        // The IBA lets a timer run out between its value and four times that.
        let one = AckTimeout::new(timeout).duration().unwrap();
        let least = one * (u32::from(retry_cnt) + 1);
        assert!(took >= least, "gave up after {took:?}, before {least:?}");
        // Time in which others had the processors does not count.
        assert!(took_running < least * 4 + SLACK, "gave up after {took:?} only");
    }
}

pub(crate) fn timeout_zero_waits_for_ever(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let m = node.mem(4096, crate::qp::ALL);
    let conn = Conn { timeout: 0, retry_cnt: 0, ..Conn::default() };
    let Some(qp) = to_nobody(bed, &node, &conn) else { return };
    qp.send(1, SendOp::Send, &[m.sge(0, 64)]);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(30) {
        node.world.turn();
        assert_eq!(qp.send_cq.try_next(), None);
        std::thread::yield_now();
    }
    qp.go(QpState::Error);
    qp.send_cq.ends(1, WcStatus::WrFlushed);
}

pub(crate) fn a_destroyed_peer_does_not_answer(bed: &dyn Bed) {
    // Long enough for a machine that is busy with others while the pair still has to work.
    let p = Pair::new(bed, Conn { timeout: 14, retry_cnt: 7, ..Conn::default() });
    p.assert_works();
    p.b.node.dev().destroy_qp(p.b.handle).unwrap();
    for id in 0..3 {
        p.a.send(id, SendOp::Write(p.mb.remote(0)), &[p.ma.sge(0, 64)]);
    }
    p.a.send_cq.ends(0, WcStatus::RetryExceeded);
    p.a.send_cq.all_end(1..3, WcStatus::WrFlushed);
}

pub(crate) fn a_peer_in_error_does_not_answer(bed: &dyn Bed) {
    let p = Pair::new(bed, Conn { timeout: 9, retry_cnt: 2, ..Conn::default() });
    p.b.go(QpState::Error);
    p.a.send(1, SendOp::Read(p.mb.remote(0)), &[p.ma.sge(0, 64)]);
    p.a.send_cq.ends(1, WcStatus::RetryExceeded);
}

pub(crate) fn an_error_of_one_queue_pair_leaves_others_alone(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let (p, q) = (Pair::between(&a, &b, Conn::default()), Pair::between(&a, &b, Conn::default()));
    q.assert_works();
    p.a.send(1, SendOp::Write(p.mb.remote(-1)), &[p.ma.sge(0, 64)]);
    q.assert_works();
    p.a.send_cq.ends(1, WcStatus::RemoteAccess);
    q.assert_works();
    assert_eq!((q.a.state(), q.b.state()), (QpState::Rts, QpState::Rts));
}

pub(crate) fn a_connection_to_the_wrong_service_or_number_is_not_answered(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let conn = Conn { timeout: 8, retry_cnt: 1, ..Conn::default() };
    let uc = Conn { qp_type: hca_core::QpType::Uc, ..conn };
    let (qa, qb, m) = (a.qp(&conn), b.qp(&uc), a.mem(64, crate::qp::ALL));
    qa.to_init(&conn);
    qb.to_init(&uc);
    qb.to_rts(&uc, qa.qpn, a.gid(), 1);
    qa.to_rts(&conn, qb.qpn, b.gid(), 0);
    qa.send(1, SendOp::Send, &[m.sge(0, 8)]);
    qa.send_cq.ends(1, WcStatus::RetryExceeded);
    assert_eq!(qb.state(), QpState::Rts);
}

pub(crate) fn packets_of_a_stranger_are_dropped(bed: &dyn Bed) {
    // C is connected to B's queue pair, but B's queue pair to A's.
    let [a, b, c] = Node::open(bed);
    if c.gid() == a.gid() {
        return; // nothing tells adapters at one address apart
    }
    let p = Pair::between(&a, &b, Conn::default());
    let conn = Conn { timeout: 8, retry_cnt: 1, psn: p.conn.psn, ..Conn::default() };
    let (qc, mc) = (c.qp(&conn), c.mem(4096, crate::qp::ALL));
    qc.to_init(&conn);
    qc.to_rts(&conn, p.b.qpn, b.gid(), 0);
    mc.fill(0xbb);
    qc.send(1, SendOp::Write(p.mb.remote(1024)), &[mc.sge(0, 64)]);
    qc.send_cq.ends(1, WcStatus::RetryExceeded);
    p.mb.assert_bytes(1024, &[0; 64]);
    p.assert_works();
}

pub(crate) fn a_partition_key_mismatch_is_not_answered(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let conn = Conn { timeout: 8, retry_cnt: 1, ..Conn::default() };
    let (qa, qb, m) = (a.qp(&conn), b.qp(&conn), a.mem(64, crate::qp::ALL));
    qa.to_init(&conn);
    let other = hca_core::QpAttr { pkey: Some(hca_core::Pkey::new(0x8001)), ..conn.init() };
    if qb.modify(&other).is_err() {
        return; // a device may carry the default partition only
    }
    qb.to_rts(&conn, qa.qpn, a.gid(), 1);
    qa.to_rts(&conn, qb.qpn, b.gid(), 0);
    qa.send(1, SendOp::Send, &[m.sge(0, 8)]);
    qa.send_cq.ends(1, WcStatus::RetryExceeded);
    assert_eq!(qb.state(), QpState::Rts);
}
