//! Limits: a device grants the limits that it reports, refuses requests beyond them, and never accepts a handle of a
//! destroyed object.

use hca_core::{
    DeviceError, Payload, PdHandle, PostErrorKind, QpCap, QpState, QpType, RecvWr, SendOp, SendWr, Sge,
    WcStatus,
};

use crate::Bed;
use crate::node::Node;
use crate::qp::{ALL, Conn, Pair, qp_init, wr};

pub(crate) fn capabilities_beyond_the_limits_are_refused(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let attr = node.dev().attr().clone();
    let good = QpCap::default();
    let cq = node.cq(16);
    for cap in [
        QpCap { max_send_wr: attr.max_qp_wr + 1, ..good },
        QpCap { max_recv_wr: attr.max_qp_wr + 1, ..good },
        QpCap { max_send_sge: attr.max_sge + 1, ..good },
        QpCap { max_recv_sge: attr.max_sge + 1, ..good },
        QpCap { max_inline: attr.max_inline + 1, ..good },
    ] {
        let r =
            node.dev().create_qp(node.pd.handle, &qp_init(&Conn { cap, ..Conn::default() }, &cq, &cq, None));
        assert!(matches!(r, Err(DeviceError::OutOfRange { .. })), "{cap:?}: {:?}", r.err());
    }
    let all = QpCap {
        max_send_wr: attr.max_qp_wr,
        max_recv_wr: attr.max_qp_wr,
        max_send_sge: attr.max_sge,
        max_recv_sge: attr.max_sge,
        max_inline: attr.max_inline,
    };
    drop(node.qp(&Conn { cap: all, ..Conn::default() }));
}

pub(crate) fn a_queue_takes_its_depth_and_no_more(bed: &dyn Bed) {
    let [node, peer] = Node::open(bed);
    let depth = node.dev().attr().max_qp_wr;
    let cap = QpCap { max_recv_wr: depth, max_recv_sge: 1, ..QpCap::default() };
    let conn = Conn { cap, min_rnr_timer: 20, ..Conn::default() };
    let p = Pair::between(&node, &peer, conn);
    let sge = [p.ma.sge(0, 8)];
    let batch: Vec<RecvWr<'_>> = (0..1024).map(|wr_id| RecvWr { wr_id, sges: &sge }).collect();
    let mut taken = 0;
    let e = loop {
        match p.a.try_recv(&batch) {
            Ok(()) => taken += batch.len(),
            Err(e) => break e,
        }
        assert!(taken <= p.a.cap.max_recv_wr as usize, "it is never full");
    };
    assert_eq!(taken + e.accepted, p.a.cap.max_recv_wr as usize, "{e}");
    assert_eq!(e.kind, PostErrorKind::QueueFull { depth: p.a.cap.max_recv_wr });
    // The send queue: nothing completes, as the peer has no receive request.
    let depth = p.a.cap.max_send_wr;
    for id in 0..depth {
        p.a.send(id.into(), SendOp::Send, &sge);
    }
    let e = p.a.try_send(&[wr(0, SendOp::Send, &sge)]).unwrap_err();
    assert_eq!((e.accepted, e.kind), (0, PostErrorKind::QueueFull { depth }));
}

pub(crate) fn a_refused_request_leaves_those_before_it_taken(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let good = [p.ma.sge(0, 8)];
    let many = vec![p.ma.sge(0, 1); p.a.cap.max_send_sge as usize + 1];
    let op = SendOp::Write(p.mb.remote(0));
    let e =
        p.a.try_send(&[wr(1, op, &good), wr(2, op, &good), wr(3, op, &many), wr(4, op, &good)]).unwrap_err();
    let told = PostErrorKind::too_many_sges(many.len(), p.a.cap.max_send_sge);
    assert_eq!((e.accepted, e.kind), (2, told));
    p.a.send_cq.all_end(1..3, WcStatus::Success);
    p.a.send_cq.stays_empty();
    let many = vec![p.mb.sge(0, 1); p.b.cap.max_recv_sge as usize + 1];
    let recv = |wr_id, sges| RecvWr { wr_id, sges };
    let e = p.b.try_recv(&[recv(1, &good), recv(2, &many[..])]).unwrap_err();
    assert_eq!(e.accepted, 1);
    assert!(matches!(e.kind, PostErrorKind::TooManySges { .. }), "{e}");
}

pub(crate) fn a_queue_tells_beforehand_what_it_takes(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let good = [p.ma.sge(0, 8)];
    let many = vec![p.ma.sge(0, 1); p.a.cap.max_send_sge as usize + 1];
    let bytes = vec![7; p.a.cap.max_inline as usize + 1];
    let write = |sges| wr(1, SendOp::Write(p.mb.remote(0)), sges);
    let inline = SendWr { payload: Payload::Inline(&bytes), ..write(&[]) };
    let add = SendOp::FetchAdd { remote: p.mb.remote(0), add: 1 };
    for request in [write(&many), inline, wr(1, add, &[p.ma.sge(0, 4)])] {
        let told = p.a.would_take(&request, 0).expect_err("it is refused");
        assert_eq!(told, p.a.try_send(&[request]).unwrap_err().kind, "{request:?}");
    }
    // Nothing completes, as the peer has no receive request.
    let depth = p.a.cap.max_send_wr as usize;
    let send = wr(1, SendOp::Send, &good);
    for posted in 0..depth {
        let left = depth - posted;
        assert_eq!(p.a.would_take(&send, left - 1), Ok(()), "behind {posted}");
        assert_eq!(p.a.would_take(&send, left), Err(PostErrorKind::QueueFull { depth: depth as u32 }));
        p.a.send(posted as u64, SendOp::Send, &good);
    }
    assert!(p.a.would_take(&send, 0).is_err());
    p.a.go(QpState::Reset);
    let told = p.a.would_take(&send, 0).expect_err("a queue pair in RESET sends nothing");
    assert_eq!(told, p.a.try_send(&[send]).unwrap_err().kind);
}

pub(crate) fn too_much_inline_data_is_refused(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let max = p.a.cap.max_inline;
    let bytes = vec![7; max as usize + 1];
    let one = |n: usize| SendWr {
        payload: Payload::Inline(&bytes[..n]),
        ..wr(1, SendOp::Write(p.mb.remote(0)), &[])
    };
    let e = p.a.try_send(&[one(max as usize + 1)]).unwrap_err();
    assert_eq!(e.kind, PostErrorKind::inline_too_long(max as usize + 1, max));
    p.a.try_send(&[one(max as usize)]).unwrap();
    p.a.send_cq.ok(1);
    let read = SendWr { payload: Payload::Inline(&bytes[..8]), ..wr(1, SendOp::Read(p.mb.remote(0)), &[]) };
    let e = p.a.try_send(&[read]).unwrap_err();
    assert!(matches!(e.kind, PostErrorKind::Unsupported { .. }), "{e}");
}

pub(crate) fn a_message_beyond_two_to_the_31_is_refused(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let half = Sge { len: 1 << 30, ..p.ma.sge(0, 0) };
    let e = p.a.try_send(&[wr(1, SendOp::Send, &[half, half, p.ma.sge(0, 1)])]).unwrap_err();
    let PostErrorKind::MessageTooLong { len, max_log2 } = e.kind else { panic!("{e}") };
    // The IBA's limit; an adapter may have a lower one, of half that.
    assert!(len == (1 << 31) + 1 && (max_log2 == 31 || max_log2 == 30), "{e}");
    let whole = Sge { len: u32::MAX, ..p.ma.sge(0, 0) };
    let e = p.a.try_send(&[wr(1, SendOp::Write(p.mb.remote(0)), &[whole, whole])]).unwrap_err();
    assert!(matches!(e.kind, PostErrorKind::MessageTooLong { .. }), "{e}");
    // As long as may be: taken, and refused by the key.
    let longest = if max_log2 == 31 { &[half, half][..] } else { &[half] };
    p.a.send(2, SendOp::Send, longest);
    p.a.send_cq.ends(2, WcStatus::LocalProtection);
}

pub(crate) fn a_domain_in_use_is_not_freed(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let dev = node.dev();
    let r = |pd: PdHandle| dev.dealloc_pd(pd);
    let (n1, n2, n3) = (node.other_pd(), node.other_pd(), node.other_pd());
    let (m, s, q) = (n1.mem(64, ALL), n2.srq(8, 1), n3.qp(&Conn::default()));
    for n in [&n1, &n2, &n3] {
        assert!(matches!(r(n.pd.handle), Err(DeviceError::InUse { .. })));
    }
    m.dereg().unwrap();
    s.destroy().unwrap();
    dev.destroy_qp(q.handle).unwrap();
    for n in [&n1, &n2, &n3] {
        r(n.pd.handle).unwrap();
        assert!(matches!(r(n.pd.handle), Err(DeviceError::UnknownHandle { .. })));
        assert!(matches!(node.try_reg(n.pd.handle, 64), Err(DeviceError::UnknownHandle { .. })));
    }
}

pub(crate) fn regions_of_a_bad_length_are_refused(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let r = node.try_reg(node.pd.handle, 0);
    assert!(matches!(r, Err(DeviceError::OutOfRange { .. })), "{r:?}");
    if let Ok(beyond) = usize::try_from(node.dev().attr().max_mr_bytes.saturating_add(1)) {
        let r = node.try_reg(node.pd.handle, beyond);
        assert!(r.is_err() || node.dev().attr().max_mr_bytes == u64::MAX, "{r:?}");
    }
    node.try_reg(node.pd.handle, 1).unwrap();
}

pub(crate) fn an_unreachable_address_is_refused(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let other_family = if node.gid().is_ipv4() {
        hca_core::Gid::from_ip("2001:db8::1".parse().unwrap())
    } else {
        hca_core::Gid::from_ip("192.0.2.1".parse().unwrap())
    };
    let av = hca_core::AddressVector { dgid: other_family, ..Default::default() };
    let r = node.dev().create_ah(node.pd.handle, &av);
    assert!(matches!(r, Err(DeviceError::NoPath { .. })), "{r:?}");
    let conn = Conn::default();
    let qp = node.qp(&conn);
    qp.to_init(&conn);
    let r = qp.modify(&conn.rtr(qp.qpn, other_family, 0));
    assert!(matches!(r, Err(DeviceError::NoPath { .. })), "{r:?}");
    assert_eq!(qp.state(), hca_core::QpState::Init);
    // A group of the same IP version, to which datagrams at most go, and no address at all.
    let nobody = if node.gid().is_ipv4() { ["224.0.0.1", "0.0.0.0"] } else { ["ff02::1", "::"] };
    for peer in nobody {
        let gid = hca_core::Gid::from_ip(peer.parse().unwrap());
        let av = hca_core::AddressVector { dgid: gid, ..Default::default() };
        let is_group = gid.is_multicast() && node.dev().multicast().is_some();
        match node.dev().create_ah(node.pd.handle, &av) {
            Ok(ah) if is_group => node.dev().destroy_ah(ah).unwrap(),
            Err(DeviceError::NoPath { .. }) if !is_group => {}
            r => panic!("{peer}: {r:?}"),
        }
        let r = qp.modify(&conn.rtr(qp.qpn, gid, 0));
        assert!(matches!(r, Err(DeviceError::NoPath { .. })), "{peer}: {r:?}");
    }
}

pub(crate) fn objects_come_and_go_without_end(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let dev = node.dev();
    let mut seen = std::collections::HashSet::new();
    for i in 0..300 {
        let qp = node.qp(&Conn::of([QpType::Rc, QpType::Uc, QpType::Ud][i % 3]));
        assert!(seen.insert(qp.handle), "{} was given out twice", qp.handle);
        assert!(qp.qpn.raw() > 1, "0 and 1 are for management");
    }
    for _ in 0..300 {
        drop((node.mem(64, ALL), node.srq(4, 1), node.cq(4)));
        dev.destroy_ah(node.ah(node.gid())).unwrap();
        dev.dealloc_pd(dev.alloc_pd().unwrap()).unwrap();
    }
}

pub(crate) fn many_queue_pairs_are_told_apart(bed: &dyn Bed) {
    const N: usize = 200;
    let [a, b] = Node::open(bed);
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let conn = Conn { cap, ..Conn::default() };
    let (ca, cb) = (a.cq(1024), b.cq(1024));
    let (ma, mb) = (a.mem(N * 8, ALL), b.mem(N * 8, ALL));
    let pairs: Vec<_> = (0..N)
        .map(|i| {
            let (x, y) = (a.qp_on(&conn, &ca, &ca, None), b.qp_on(&conn, &cb, &cb, None));
            crate::qp::connect(&conn, &x, &y);
            y.recv(i as u64, &[mb.sge(i * 8, 8)]);
            (x, y)
        })
        .collect();
    for (i, (x, _)) in pairs.iter().enumerate() {
        ma.write(i * 8, &(i as u64).to_ne_bytes());
        x.send(i as u64, SendOp::Send, &[ma.sge(i * 8, 8)]);
    }
    for (cq, side) in [(&cb, 1), (&ca, 0)] {
        let mut seen = [false; N];
        for c in cq.take(N) {
            let i = c.wr_id as usize;
            let qp = if side == 0 { &pairs[i].0 } else { &pairs[i].1 };
            assert_eq!((c.status, c.qp), (WcStatus::Success, qp.handle));
            assert!(!core::mem::replace(&mut seen[i], true));
        }
    }
    for i in 0..N {
        mb.assert_bytes(i * 8, &(i as u64).to_ne_bytes());
    }
}

pub(crate) fn memory_of_the_device_is_zeroed(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    for _ in 0..4 {
        let m = node.mem(10_000, ALL);
        m.assert_bytes(0, &[0; 10_000]);
        m.fill(0xff);
    }
}
