//! The states of queue pairs and the transitions between them.

use hca_core::{
    AsyncEvent, DeviceError, Mtu, PostErrorKind, Psn, QpAttr, QpAttrMask, QpState, QpType, RecvWr, SendOp,
    TransitionError, WcStatus,
};

use crate::mem::pattern;
use crate::node::Node;
use crate::qp::{ALL, Conn, Pair, Qp, connect, to_state, wr};
use crate::{Bed, Feature};

use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};

const TYPES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

/// The states that a queue pair can be brought to without an error of its own.
fn states(bed: &dyn Bed) -> Vec<QpState> {
    let all = [Reset, Init, Rtr, Rts, Sqd, Error];
    all.into_iter().filter(|s| *s != Sqd || bed.can(Feature::Drain)).collect()
}

/// A queue pair brought to a state on the shortest way; its peer is itself.
fn in_state(node: &Node, conn: &Conn, state: QpState) -> Qp {
    let qp = node.qp(conn);
    let steps: &[QpState] = match state {
        Reset => &[],
        Init => &[Init],
        Rtr => &[Init, Rtr],
        Rts => &[Init, Rtr, Rts],
        Sqd => &[Init, Rtr, Rts, Sqd],
        Error => &[Init, Error],
        Sqe => unreachable!("only an error leads there"),
    };
    for step in steps {
        let attr = match step {
            Init => conn.init(),
            Rtr => conn.rtr(qp.qpn, node.gid(), conn.psn[0]),
            Rts => conn.rts(conn.psn[0]),
            other => to_state(*other),
        };
        qp.modify(&attr).expect("a legal transition");
    }
    assert_eq!(qp.state(), state);
    qp
}

/// What a transition needs, as far as one to this state ever needs anything.
fn attr_for(conn: &Conn, qp: &Qp, from: QpState, to: QpState) -> QpAttr {
    match (from, to) {
        (Reset, Init) => conn.init(),
        (Init, Rtr) => conn.rtr(qp.qpn, qp.node.gid(), 0),
        (Rtr, Rts) => conn.rts(0),
        _ => to_state(to),
    }
}

pub(crate) fn illegal_transitions_are_refused_and_change_nothing(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let legal = |from, to| {
        matches!(
            (from, to),
            (_, Reset | Error)
                | (Reset, Init)
                | (Init, Init | Rtr)
                | (Rtr, Rts)
                | (Rts, Rts | Sqd)
                | (Sqd, Rts | Sqd)
        )
    };
    for qp_type in TYPES {
        let conn = Conn::of(qp_type);
        for from in states(bed) {
            for to in [Reset, Init, Rtr, Rts, Sqd, Sqe, Error] {
                if (from, to) == (Rts, Sqd) && !bed.can(Feature::Drain) {
                    continue;
                }
                let qp = in_state(&node, &conn, from);
                let r = qp.modify(&attr_for(&conn, &qp, from, to));
                if legal(from, to) {
                    r.unwrap_or_else(|e| panic!("{qp_type:?} {from:?} to {to:?}: {e}"));
                    assert_eq!(qp.state(), to);
                } else {
                    let told = TransitionError::Illegal { qp_type, from, to };
                    assert!(
                        matches!(r, Err(DeviceError::Transition(t)) if t == told),
                        "{from:?} to {to:?}: {r:?}"
                    );
                    assert_eq!(qp.state(), from);
                }
            }
        }
    }
}

pub(crate) fn a_transition_names_the_attributes_that_are_missing(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    for qp_type in TYPES {
        let conn = Conn::of(qp_type);
        for (from, to) in [(Reset, Init), (Init, Rtr), (Rtr, Rts)] {
            let qp = in_state(&node, &conn, from);
            let needed = attr_for(&conn, &qp, from, to).mask();
            let r = qp.modify(&to_state(to));
            if needed.is_empty() {
                r.unwrap();
                continue;
            }
            let missing = needed;
            let told = TransitionError::Missing { from, to, missing };
            assert!(matches!(r, Err(DeviceError::Transition(t)) if t == told), "{r:?}");
            assert_eq!(qp.state(), from);
        }
    }
}

pub(crate) fn a_transition_refuses_attributes_that_it_cannot_set(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let conn = Conn::default();
    let qp = in_state(&node, &conn, Reset);
    let r = qp.modify(&QpAttr { path_mtu: Some(Mtu::B256), ..conn.init() });
    let unexpected = QpAttrMask::PATH_MTU;
    let told = TransitionError::Unexpected { from: Reset, to: Init, unexpected };
    assert!(matches!(r, Err(DeviceError::Transition(t)) if t == told), "{r:?}");
    let qp = in_state(&node, &conn, Rts);
    let r = qp.modify(&QpAttr { rq_psn: Some(Psn::new(1)), ..QpAttr::default() });
    assert!(matches!(r, Err(DeviceError::Transition(TransitionError::Unexpected { .. }))), "{r:?}");
    let ud = in_state(&node, &Conn::of(QpType::Ud), Init);
    let r = ud.modify(&conn.rtr(ud.qpn, node.gid(), 0));
    assert!(matches!(r, Err(DeviceError::Transition(TransitionError::Unexpected { .. }))), "{r:?}");
}

pub(crate) fn attributes_out_of_range_are_refused(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let conn = Conn::default();
    let beyond = node.dev().attr().max_rd_atomic.checked_add(1);
    let too_many_reads = beyond.map(|_| QpAttr { max_rd_atomic: beyond, ..conn.rts(0) });
    let too_often =
        [QpAttr { retry_cnt: Some(8), ..conn.rts(0) }, QpAttr { rnr_retry: Some(8), ..conn.rts(0) }];
    for bad in too_often.into_iter().chain(too_many_reads) {
        let qp = in_state(&node, &conn, Rtr);
        let r = qp.modify(&bad);
        assert!(
            matches!(
                r,
                Err(DeviceError::Transition(TransitionError::Value { .. }) | DeviceError::OutOfRange { .. })
            ),
            "{r:?}"
        );
        assert_eq!(qp.state(), Rtr);
        qp.modify(&conn.rts(0)).expect("the refusal changed nothing");
    }
    let qp = in_state(&node, &conn, Init);
    if node.dev().port().active_mtu < Mtu::B4096 {
        let r = qp.modify(&QpAttr { path_mtu: Some(Mtu::B4096), ..conn.rtr(qp.qpn, node.gid(), 0) });
        assert!(r.is_err(), "a path MTU beyond the port's");
    }
}

pub(crate) fn query_returns_what_was_set(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let conn = Conn { retry_cnt: 3, rnr_retry: 2, timeout: 17, ..Conn::default() };
    let qp = in_state(&node, &conn, Rts);
    let got = qp.query();
    assert_eq!(got.state, Rts);
    assert_eq!(got.cap, qp.cap);
    let (rtr, rts) = (conn.rtr(qp.qpn, node.gid(), conn.psn[0]), conn.rts(conn.psn[0]));
    assert_eq!(
        (got.attr.retry_cnt, got.attr.rnr_retry, got.attr.timeout),
        (rts.retry_cnt, rts.rnr_retry, rts.timeout)
    );
    assert_eq!(
        (got.attr.dest_qpn, got.attr.path_mtu, got.attr.rq_psn),
        (rtr.dest_qpn, rtr.path_mtu, rtr.rq_psn)
    );
    assert_eq!(got.attr.av.map(|av| av.dgid), Some(node.gid()));
    assert_eq!((got.attr.pkey, got.attr.access), (conn.init().pkey, conn.init().access));
}

pub(crate) fn each_state_takes_the_requests_it_should(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let m = node.mem(4096, ALL);
    for qp_type in TYPES {
        let conn = Conn::of(qp_type);
        for state in [Reset, Init, Rtr] {
            let qp = in_state(&node, &conn, state);
            let dest = (qp_type == QpType::Ud).then(|| hca_core::UdDest {
                ah: node.ah(node.gid()),
                qpn: qp.qpn,
                qkey: crate::qp::QKEY,
            });
            let e = qp
                .try_send(&[hca_core::SendWr {
                    dest: dest.map(Into::into),
                    ..wr(1, SendOp::Send, &[m.sge(0, 8)])
                }])
                .unwrap_err();
            assert_eq!((e.accepted, e.kind), (0, PostErrorKind::WrongState(state)), "{qp_type:?}");
            let r = qp.try_recv(&[RecvWr { wr_id: 1, sges: &[m.sge(0, 100)] }]);
            if state == Reset {
                assert_eq!(r.unwrap_err().kind, PostErrorKind::WrongState(Reset));
            } else {
                r.unwrap();
            }
            qp.send_cq.stays_empty();
            qp.recv_cq.stays_empty();
        }
    }
}

pub(crate) fn receives_posted_in_init_take_messages_later(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let conn = Conn::default();
    let (qa, qb, ma, mb) = (a.qp(&conn), b.qp(&conn), a.mem(4096, ALL), b.mem(4096, ALL));
    qb.to_init(&conn);
    for id in 0..3 {
        qb.recv(id, &[mb.sge(id as usize * 100, 100)]);
    }
    qa.to_init(&conn);
    qb.to_rts(&conn, qa.qpn, a.gid(), 1);
    qa.to_rts(&conn, qb.qpn, b.gid(), 0);
    for id in 0..3 {
        ma.write(0, &pattern(id, 100));
        qa.send(id, SendOp::Send, &[ma.sge(0, 100)]);
        qa.send_cq.ok(id);
        qb.recv_cq.ok(id);
        mb.assert_bytes(id as usize * 100, &pattern(id, 100));
    }
}

pub(crate) fn a_queue_pair_in_rtr_answers_and_tells_that_the_peer_connected(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let conn = Conn::default();
    let (qa, qb, ma, mb) = (a.qp(&conn), b.qp(&conn), a.mem(4096, ALL), b.mem(4096, ALL));
    qa.to_init(&conn);
    qb.to_init(&conn);
    qb.modify(&conn.rtr(qa.qpn, a.gid(), conn.psn[0])).unwrap();
    qa.to_rts(&conn, qb.qpn, b.gid(), 0);
    assert_eq!(qb.count_events(AsyncEvent::CommEstablished), 0);
    qb.recv(1, &[mb.sge(0, 64)]);
    qa.send(1, SendOp::Send, &[ma.sge(0, 64)]);
    qa.send_cq.ok(1);
    qb.recv_cq.ok(1);
    qb.wait_event(AsyncEvent::CommEstablished);
    qa.send(2, SendOp::Read(mb.remote(0)), &[ma.sge(0, 64)]);
    qa.send_cq.ok(2);
    a.world.settle();
    assert_eq!(qb.count_events(AsyncEvent::CommEstablished), 1);
    assert_eq!(qb.state(), Rtr);
    qb.modify(&conn.rts(conn.psn[1])).unwrap();
    qa.recv(3, &[ma.sge(0, 64)]);
    qb.send(3, SendOp::Send, &[mb.sge(0, 64)]);
    qb.send_cq.ok(3);
}

pub(crate) fn a_queue_pair_in_init_hears_nothing(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    // Longer than the queues are looked at while nothing may come, however little of a CPU there is.
    let conn = Conn { timeout: 17, ..Conn::default() };
    let (qa, qb, ma, mb) = (a.qp(&conn), b.qp(&conn), a.mem(4096, ALL), b.mem(4096, ALL));
    qa.to_init(&conn);
    qb.to_init(&conn);
    qb.recv(1, &[mb.sge(0, 64)]);
    qa.to_rts(&conn, qb.qpn, b.gid(), 0);
    qa.send(1, SendOp::Send, &[ma.sge(0, 64)]);
    qb.recv_cq.stays_empty();
    // A retransmission arrives once the peer listens.
    qb.to_rts(&conn, qa.qpn, a.gid(), 1);
    qb.recv_cq.ok(1);
    qa.send_cq.ok(1);
}

pub(crate) fn a_drained_send_queue_holds_requests_until_it_may_send_again(bed: &dyn Bed) {
    if !bed.can(Feature::Drain) {
        return;
    }
    let p = Pair::rc(bed);
    p.b.recv(1, &[p.mb.sge(0, 64)]);
    p.b.recv(2, &[p.mb.sge(64, 64)]);
    p.a.send(1, SendOp::Send, &[p.ma.sge(0, 64)]);
    p.a.send_cq.ok(1);
    p.a.modify(&QpAttr { sqd_event: Some(true), ..to_state(Sqd) }).unwrap();
    p.a.wait_event(AsyncEvent::SqDrained);
    p.b.recv_cq.ok(1);
    p.a.send(2, SendOp::Send, &[p.ma.sge(0, 64)]);
    p.b.recv_cq.stays_empty();
    // It still receives and answers.
    p.a.recv(7, &[p.ma.sge(512, 64)]);
    p.b.send(7, SendOp::Send, &[p.mb.sge(0, 64)]);
    p.b.send_cq.ok(7);
    p.a.recv_cq.ok(7);
    assert_eq!(p.a.state(), Sqd);
    p.a.go(Rts);
    p.a.send_cq.ok(2);
    p.b.recv_cq.ok(2);
    assert_eq!(p.a.count_events(AsyncEvent::SqDrained), 1);
}

pub(crate) fn draining_waits_for_what_is_under_way(bed: &dyn Bed) {
    if !bed.can(Feature::Drain) {
        return;
    }
    let p = Pair::new(bed, Conn { min_rnr_timer: 10, ..Conn::default() });
    // Both have met, so that the next request leaves at once: one that has not begun is not waited for.
    p.assert_works();
    p.a.send(1, SendOp::Send, &[p.ma.sge(0, 64)]); // no receive is there yet
    p.settle();
    p.a.modify(&QpAttr { sqd_event: Some(true), ..to_state(Sqd) }).unwrap();
    p.settle();
    assert_eq!(p.a.count_events(AsyncEvent::SqDrained), 0);
    p.b.recv(1, &[p.mb.sge(0, 64)]);
    p.a.send_cq.ok(1);
    p.a.wait_event(AsyncEvent::SqDrained);
}

pub(crate) fn draining_raises_no_event_unasked(bed: &dyn Bed) {
    if !bed.can(Feature::Drain) {
        return;
    }
    let p = Pair::rc(bed);
    p.a.go(Sqd);
    p.settle();
    assert_eq!(p.a.count_events(AsyncEvent::SqDrained), 0);
    p.a.go(Rts);
    p.assert_works();
}

pub(crate) fn the_error_state_flushes_what_is_queued_and_what_comes(bed: &dyn Bed) {
    let p = Pair::new(bed, Conn { min_rnr_timer: 20, ..Conn::default() });
    for id in 0..5 {
        p.a.recv(id, &[p.ma.sge(0, 64)]);
        p.a.send(id, SendOp::Send, &[p.ma.sge(0, 64)]); // the peer has no receive for any
    }
    p.a.go(Error);
    p.a.send_cq.all_end(0..5, WcStatus::WrFlushed);
    p.a.recv_cq.all_end(0..5, WcStatus::WrFlushed);
    p.a.send(8, SendOp::Write(p.mb.remote(0)), &[p.ma.sge(0, 64)]);
    p.a.recv(9, &[p.ma.sge(0, 64)]);
    p.a.send_cq.ends(8, WcStatus::WrFlushed);
    p.a.recv_cq.ends(9, WcStatus::WrFlushed);
    assert_eq!(p.a.state(), Error);
}

pub(crate) fn reset_forgets_requests_and_the_queue_pair_works_again(bed: &dyn Bed) {
    let mut p = Pair::new(bed, Conn { min_rnr_timer: 20, ..Conn::default() });
    for round in 0..3 {
        p.assert_works();
        for id in 0..5 {
            p.a.recv(id, &[p.ma.sge(0, 64)]);
            p.a.send(id, SendOp::Send, &[p.ma.sge(0, 64)]);
        }
        p.settle();
        if round == 1 {
            p.a.go(Error);
            p.a.send_cq.all_end(0..5, WcStatus::WrFlushed);
            p.a.recv_cq.all_end(0..5, WcStatus::WrFlushed);
        }
        p.a.go(Reset);
        p.b.go(Reset);
        assert_eq!(p.a.state(), Reset);
        p.a.send_cq.stays_empty();
        p.a.recv_cq.stays_empty();
        p.conn.psn = [0x100_000 * round, 0x200_000 * round + 7];
        connect(&p.conn, &p.a, &p.b);
    }
    p.assert_works();
}

pub(crate) fn a_queue_takes_its_whole_depth_again_after_reset(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let conn = Conn::default();
    let qp = node.qp(&conn);
    let m = node.mem(64, ALL);
    for _ in 0..2 {
        qp.to_init(&conn);
        for id in 0..u64::from(qp.cap.max_recv_wr) {
            qp.recv(id, &[m.sge(0, 64)]);
        }
        let e = qp.try_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap_err();
        assert_eq!(e.kind, PostErrorKind::QueueFull { depth: qp.cap.max_recv_wr });
        qp.go(Reset);
    }
}

pub(crate) fn queue_pairs_are_destroyed_in_every_state(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    for qp_type in TYPES {
        for state in states(bed) {
            let qp = in_state(&node, &Conn::of(qp_type), state);
            let (handle, dev) = (qp.handle, node.dev());
            dev.destroy_qp(handle).unwrap();
            for r in [
                dev.destroy_qp(handle).map(drop),
                dev.modify_qp(handle, &to_state(Error)),
                dev.query_qp(handle).map(|_| ()),
            ] {
                assert!(matches!(r, Err(DeviceError::UnknownHandle { .. })), "{r:?}");
            }
        }
    }
}

pub(crate) fn access_rights_can_change_while_connected(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    p.a.send(1, SendOp::Write(p.mb.remote(0)), &[p.ma.sge(0, 64)]);
    p.a.send_cq.ok(1);
    let none = hca_core::Access::empty();
    p.b.modify(&QpAttr { access: Some(none), ..QpAttr::default() }).unwrap();
    p.a.send(2, SendOp::Write(p.mb.remote(0)), &[p.ma.sge(0, 64)]);
    assert_ne!(p.a.send_cq.next().status, WcStatus::Success);
}
