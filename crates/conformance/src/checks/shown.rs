//! Checks of the link, the GID table, the counters, the queue pairs and the clock that a device shows.

use hca_core::{
    AsyncEvent, Completion, Counter, DeviceError, EventObject, GidType, LinkLayer, Notify, Pkey,
    PortCounters, QpHandle, QpType, RemoteAddr, Rkey, SendOp,
};

use crate::Bed;
use crate::node::Node;
use crate::qp::{ALL, Conn, Pair, connect};

/// A counter's value; `None` where the device has none of the name.
fn value(of: &[Counter], name: &str) -> Option<u64> {
    of.iter().find(|c| c.name == name).map(|c| c.value)
}

pub(crate) fn the_gid_table_holds_the_ports_gid_and_fits_its_link(bed: &dyn Bed) {
    for node in Node::open::<2>(bed) {
        let (port, gids) = (node.dev().port(), node.dev().gids());
        assert!(gids.iter().any(|entry| entry.gid == port.gid), "{port:?} {gids:?}");
        for entry in &gids {
            assert_eq!(node.dev().gid(entry.index).as_ref(), Some(entry));
        }
        assert_eq!(node.dev().gid(u32::MAX), None);
        assert!(node.dev().pkeys().contains(&Pkey::DEFAULT));
        assert!(gids.windows(2).all(|pair| pair[0].index < pair[1].index), "{gids:?}");
        let is_ib = port.link_layer == LinkLayer::InfiniBand;
        assert!(gids.iter().all(|entry| (entry.kind == GidType::Ib) == is_ib), "{port:?} {gids:?}");
        if let Some(link) = port.link {
            assert!(link.mbps > 0 && link.lanes != Some(0), "{link:?}");
            assert_ne!(port.link_layer, LinkLayer::Unspecified, "a speed is one of a link");
        }
    }
}

pub(crate) fn each_index_of_the_gid_table_names_an_address_that_connections_reach(bed: &dyn Bed) {
    let conn = Conn::default();
    let [a, b] = Node::open(bed);
    for (mine, theirs) in a.dev().gids().into_iter().zip(b.dev().gids()) {
        assert_eq!(mine.index, theirs.index, "devices of one kind have tables of one kind");
        let of_a = a.dev().query_gid(mine.index).expect("the table has it");
        let of_b = b.dev().query_gid(theirs.index).expect("the table has it");
        assert_eq!((&of_a, &of_b), (&mine, &theirs));
        let p = Pair::to(&a, &b, conn, [of_a.gid, of_b.gid]);
        p.assert_works();
    }
}

pub(crate) fn the_gid_table_is_asked_by_index_type_and_interface(bed: &dyn Bed) {
    for node in Node::open::<2>(bed) {
        let (device, table) = (node.dev(), node.dev().gids());
        let used: Vec<u32> = table.iter().map(|entry| entry.index).collect();
        let unused = (0..8).chain([u32::MAX]).filter(|index| !used.contains(index));
        for index in unused {
            let refused = device.query_gid(index).expect_err("the table lacks it");
            assert!(
                matches!(&refused, DeviceError::UnusedGidIndex { index: i, used: u } if (*i, u) == (index, &used)),
                "{refused}"
            );
            let said = refused.to_string();
            assert!(used.iter().all(|index| said.contains(&index.to_string())), "{said}");
        }
        for entry in &table {
            let own = entry.interface.as_deref();
            assert!(device.gids_of(entry.kind, None).contains(entry));
            assert!(device.gids_of(entry.kind, own).contains(entry));
            assert_eq!(device.gids_of(entry.kind, Some("no such interface")), []);
            // Programs are told these by people who know Linux's table.
            if let (GidType::RoceV2, true) = (entry.kind, device.attr().name.starts_with("softhca-")) {
                assert!([1, 3].iter().all(|index| used.contains(index)), "{table:?}");
            }
        }
        for kind in [GidType::Ib, GidType::RoceV1, GidType::RoceV2] {
            assert!(device.gids_of(kind, None).iter().all(|entry| entry.kind == kind));
        }
    }
}

pub(crate) fn the_ports_counters_count_what_its_link_carries(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let counters = p.a.node.dev().counters();
    // Messages over shared memory are no packets. A served function counts only Ethernet frames of its port, and not the
    // packets of its queue pairs, which the software adapter below it counts.
    let by_shm = value(&counters, "paths_by_shm").is_some_and(|paths| paths > 0);
    if by_shm || value(&counters, "tx_packets").is_none() {
        return;
    }
    let both = || p.a.node.dev().port_counters().zip(p.b.node.dev().port_counters());
    let Some((sender, receiver)) = both() else { return };
    p.b.recv(1, &[p.mb.sge(0, 1000)]);
    p.a.send(1, SendOp::Send, &[p.ma.sge(0, 1000)]);
    p.a.send_cq.ok(1);
    p.b.recv_cq.ok(1);
    let after = both().expect("they were there before");
    // Processes at one address have one port: either may be the one that counts what it carries.
    let is_shared = p.a.node.gid() == p.b.node.gid();
    let received = |(a, b): (PortCounters, PortCounters)| {
        let of_a = if is_shared { (a.rcv_pkts, a.rcv_data) } else { (0, 0) };
        (of_a.0 + b.rcv_pkts, of_a.1 + b.rcv_data)
    };
    let (received_before, received_after) = (received((sender, receiver)), received(after));
    assert!(after.0.xmit_pkts > sender.xmit_pkts && received_after.0 > received_before.0, "{after:?}");
    // The payload and at least a BTH, in words of 4 octets.
    let words = (1000 + 12) / 4;
    assert!(after.0.xmit_data >= sender.xmit_data + words, "{sender:?} {after:?}");
    assert!(received_after.1 >= received_before.1 + words, "{receiver:?} {after:?}");
}

pub(crate) fn requests_are_counted_by_operation(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let (before_a, before_b) = (p.a.node.dev().counters(), p.b.node.dev().counters());
    for id in 0..3 {
        p.b.recv(id, &[p.mb.sge(0, 64)]);
        p.a.send(id, SendOp::Send, &[p.ma.sge(0, 10)]);
        p.a.send_cq.ok(id);
        p.b.recv_cq.ok(id);
    }
    let to = p.mb.remote(0);
    let ops =
        [SendOp::Write(to), SendOp::Write(to), SendOp::Read(to), SendOp::FetchAdd { remote: to, add: 1 }];
    for (id, op) in (10..).zip(ops) {
        p.a.send(id, op, &[p.ma.sge(0, 8)]);
        p.a.send_cq.ok(id);
    }
    let expected = [
        ("send_requests", 3),
        ("send_bytes", 30),
        ("write_requests", 2),
        ("write_bytes", 16),
        ("read_requests", 1),
        ("read_bytes", 8),
        ("atomic_requests", 1),
    ];
    let grown = |before: &[Counter], after: &[Counter], name: &str| {
        Some(value(after, name)? - value(before, name).expect("names are only ever added"))
    };
    let (after_a, after_b) = (p.a.node.dev().counters(), p.b.node.dev().counters());
    for (name, count) in expected {
        if let Some(sent) = grown(&before_a, &after_a, &format!("tx_{name}")) {
            assert_eq!(sent, count, "tx_{name}");
        }
        // Direct access to a peer's memory is counted by the initiator alone.
        if let Some(served) = grown(&before_b, &after_b, &format!("rx_{name}")) {
            let may_be_direct = !name.starts_with("send");
            assert!(served == count || (may_be_direct && served < count), "rx_{name}: {served} of {count}");
        }
    }
    for qp in [p.a.handle, p.b.handle] {
        let dev = if qp == p.a.handle { p.a.node.dev() } else { p.b.node.dev() };
        match dev.qp_counters(qp) {
            Ok(own) => {
                // Acknowledgements may still come: the sum is read behind its part.
                let of_all = dev.counters();
                let names = own.iter().filter(|c| value(&of_all, c.name).is_none());
                assert_eq!(names.count(), 0, "its names are those of the device");
                assert!(own.iter().all(|c| Some(c.value) <= value(&of_all, c.name)), "{own:?}");
            }
            Err(DeviceError::Unsupported { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

pub(crate) fn what_a_queue_pair_did_is_counted_for_it_alone_and_stays_in_the_sum(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let (busy, idle) = (Pair::between(&a, &b, Conn::default()), Pair::between(&a, &b, Conn::default()));
    for id in 0..5 {
        busy.b.recv(id, &[busy.mb.sge(0, 64)]);
        busy.a.send(id, SendOp::Send, &[busy.ma.sge(0, 7)]);
        busy.a.send_cq.ok(id);
    }
    let sends = |qp: QpHandle| match a.dev().qp_counters(qp) {
        Ok(own) => value(&own, "tx_send_requests"),
        Err(DeviceError::Unsupported { .. }) => None,
        Err(e) => panic!("{e}"),
    };
    let Some(own) = sends(busy.a.handle) else { return };
    assert_eq!((own, sends(idle.a.handle)), (5, Some(0)));
    let sum = || value(&a.dev().counters(), "tx_send_requests").expect("a device that counts by queue pair");
    let (before, gone) = (sum(), busy.a.handle);
    drop(busy);
    assert_eq!(sum(), before, "what a queue pair did that is gone");
    assert!(matches!(a.dev().qp_counters(gone), Err(DeviceError::UnknownHandle { .. })));
}

pub(crate) fn queue_pairs_are_listed_with_their_peers(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let conn = Conn::default();
    let (qa, qb) = (a.qp(&conn), b.qp(&conn));
    let listed = |qp: QpHandle| a.dev().queue_pairs().into_iter().find(|info| info.handle == qp);
    let Some(fresh) = listed(qa.handle) else {
        assert!(a.dev().queue_pairs().is_empty(), "a device that lists some lists all");
        return;
    };
    assert_eq!((fresh.qpn, fresh.qp_type, fresh.dest_qpn), (qa.qpn, QpType::Rc, None));
    assert_eq!(fresh.state, a.dev().query_qp(qa.handle).unwrap().state);
    connect(&conn, &qa, &qb);
    let connected = listed(qa.handle).expect("it was there");
    assert_eq!(connected.dest_qpn, Some(qb.qpn));
    assert_eq!(connected.dest_gid, Some(b.dev().port().gid));
    assert_eq!(connected.state, a.dev().query_qp(qa.handle).unwrap().state);
    let gone = qa.handle;
    drop(qa);
    assert!(listed(gone).is_none());
}

pub(crate) fn completions_have_times_of_the_devices_clock(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let (mut out, mut at) = ([Completion::default(); 4], [0; 4]);
    let Some(before) = a.dev().clock() else {
        let polled = a.cq(4).with_port(|port| port.poll_with_times(&mut out, &mut at));
        assert_eq!(polled, None, "times without a clock mean nothing");
        return;
    };
    let (conn, cq) = (Conn::default(), a.timed_cq(512));
    let (qa, qb) = (a.qp_on(&conn, &cq, &cq, None), b.qp(&conn));
    connect(&conn, &qa, &qb);
    let (ma, mb) = (a.mem(4096, ALL), b.mem(4096, ALL));
    let mut poll = |mut ids: core::ops::Range<u64>| {
        let (mut times, end) = (Vec::new(), ids.clone().count());
        a.world.wait("completions with their times", || {
            let n = cq.with_port(|port| port.poll_with_times(&mut out, &mut at)).expect("a queue with times");
            assert!(out[..n].iter().all(|c| ids.next() == Some(c.wr_id)), "{out:?}");
            times.extend_from_slice(&at[..n]);
            (times.len() == end).then_some(())
        });
        times
    };
    let write = |id| qa.send(id, SendOp::Write(mb.remote(0)), &[ma.sge(0, 8)]);
    let mut times = Vec::new();
    for id in 0..3 {
        write(id);
        times.append(&mut poll(id..id + 1));
    }
    // Several wait: each has the time at which it came, not that of the poll. A peer that has no processor may answer
    // behind the poll, and then they are asked for again.
    let mut ids = 3..9;
    a.world.wait("completions that came before they were polled", || {
        ids.clone().for_each(write);
        a.world.settle();
        let polled = a.dev().clock().expect("it had one");
        assert_eq!(polled.khz, before.khz);
        times.append(&mut poll(ids.clone()));
        assert!(times.is_sorted() && before.now <= times[0], "{before:?} {times:?}");
        ids = ids.end..ids.end + 6;
        (*times.last()? <= polled.now).then_some(())
    });
    let next = ids.start;
    // The other ways to poll go on as before.
    cq.arm(Notify::Any);
    for id in next..next + 4 {
        write(id);
        cq.ok(id);
    }
    qa.recv(1 << 32, &[ma.sge(0, 64)]);
    qb.send(1, SendOp::Send, &[mb.sge(0, 64)]);
    cq.ok(1 << 32);
}

pub(crate) fn an_event_names_the_object_that_it_is_about(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let wrong = RemoteAddr { rkey: Rkey::new(0x1357_9bdf), ..p.mb.remote(0) };
    p.a.send(1, SendOp::Write(wrong), &[p.ma.sge(0, 8)]);
    p.a.send_cq.next();
    let about = p.a.node.world.wait("an event of the refused access", || {
        let event = p.b.node.dev().poll_event()?;
        matches!(event, AsyncEvent::QpAccessError(_)).then(|| event.object())
    });
    assert_eq!(about, EventObject::Qp(p.b.handle));
}
