//! Interfaces: the four kinds, identities, maps, limits, waiting and its end.

use std::time::Duration;

use hca_core::{Access, PortAttr, Psn, QpAttr, QpCap, QpState, QpType, SrqInit};
use hca_verbs::raw::{RawCq, RawQp, RawSrq};
use hca_verbs::{ConnectOptions, Context, Endpoint};
use portals::v4::{
    AckReq, EventKind, Features, Get, Limits, ListKind, Md, MdOptions, Me, MeOptions, Ni, NiFail, NiOptions,
    Pid, Process, PtOptions, Put, Rank, ReturnCode, Source as From, StatusRegister,
};
use portals::{Memory, NodeOptions};

use crate::bed::{Bed, LIST, MATCHING, Sink, Source, accept, code, id, pattern, until};

const KINDS: [NiOptions; 4] = [
    NiOptions::MATCHING.union(NiOptions::PHYSICAL),
    NiOptions::MATCHING.union(NiOptions::LOGICAL),
    NiOptions::NO_MATCHING.union(NiOptions::PHYSICAL),
    NiOptions::NO_MATCHING.union(NiOptions::LOGICAL),
];

fn init(node: &portals::Node, options: NiOptions) -> Ni {
    Ni::init(node, options, None, &Limits::default()).unwrap()
}

pub(crate) fn all_four_kinds_work_at_once_and_apart(bed: &Bed) {
    let nodes = bed.nodes(2);
    let sides: Vec<_> = (KINDS.into_iter())
        .map(|kind| {
            let (a, b) = (init(&nodes[0], kind), init(&nodes[1], kind));
            let (source, sink) =
                (Source::new(&a, 8, MdOptions::empty()), Sink::new(&b, 8, PtOptions::empty()));
            assert_eq!(
                (a.is_matching(), a.is_logical()),
                (kind.contains(NiOptions::MATCHING), kind.contains(NiOptions::LOGICAL))
            );
            assert_eq!(sink.pt, 0, "each has a portal table of its own");
            accept(&b, sink.pt, &sink.memory);
            (a, b, source, sink)
        })
        .collect();
    for (n, (a, b, source, sink)) in (1..).zip(&sides) {
        a.put(&Put { hdr_data: n, ..Put::new(source.md, 8, id(b), sink.pt) }).unwrap();
    }
    for (n, (a, b, _, sink)) in (1..).zip(&sides) {
        let got = until(&[a, b], "a put", || b.eq_get(sink.eq).unwrap());
        assert_eq!((got.event.kind, got.event.hdr_data, got.event.initiator), (EventKind::Put, n, id(a)));
        assert_eq!(b.eq_get(sink.eq).unwrap(), None);
    }
}

pub(crate) fn an_interface_that_is_open_is_opened_again_as_the_same(bed: &Bed) {
    let nodes = bed.nodes(1);
    let few = Limits { max_cts: 3, ..Limits::default() };
    let first = Ni::init(&nodes[0], MATCHING, None, &few).unwrap();
    let second = init(&nodes[0], MATCHING);
    assert_eq!((first.handle(), first.limits()), (second.handle(), second.limits()));
    let eq = first.eq_alloc(8).unwrap();
    assert_eq!(second.eq_get(eq).unwrap(), None);
    assert_ne!(init(&nodes[0], LIST).handle(), first.handle());
    drop(first);
    assert_eq!(second.eq_get(eq).unwrap(), None, "it is open as long as one is left");
    let old = second.handle();
    drop(second);
    let anew = init(&nodes[0], MATCHING);
    assert_ne!(anew.handle(), old);
    assert_eq!(code(anew.eq_get(eq)), ReturnCode::ArgInvalid, "its objects went with it");
    assert_eq!(anew.limits().max_cts, Limits::default().max_cts);
}

pub(crate) fn many_threads_open_and_close_one_interface(bed: &Bed) {
    let nodes = bed.nodes(1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let ni = init(&nodes[0], MATCHING);
                    let ct = ni.ct_alloc().unwrap();
                    ni.ct_free(ct).unwrap();
                }
            });
        }
    });
}

pub(crate) fn options_are_one_of_each_pair(bed: &Bed) {
    let nodes = bed.nodes(1);
    for options in [
        NiOptions::empty(),
        NiOptions::MATCHING,
        NiOptions::PHYSICAL,
        MATCHING | NiOptions::NO_MATCHING,
        MATCHING | NiOptions::LOGICAL,
        NiOptions::all(),
        MATCHING | NiOptions::from_bits_retain(1 << 7),
    ] {
        let error = Ni::init(&nodes[0], options, None, &Limits::default()).unwrap_err();
        assert_eq!((error.code(), error.call()), (ReturnCode::ArgInvalid, "PtlNIInit"), "{options:?}");
    }
}

pub(crate) fn a_process_number_is_the_nodes(bed: &Bed) {
    let nodes = bed.nodes_with(1, |_, options| NodeOptions { pid: Some(Pid(4711)), ..options });
    let limits = Limits::default();
    let ni = Ni::init(&nodes[0], MATCHING, Some(Pid(4711)), &limits).unwrap();
    assert_eq!(ni.phys_id().pid(), Pid(4711));
    assert_eq!(code(Ni::init(&nodes[0], LIST, Some(Pid(4712)), &limits)), ReturnCode::PidInUse);
}

pub(crate) fn a_process_is_known_by_numbers_and_by_rank(bed: &Bed) {
    let nodes = bed.nodes(2);
    let (physical, logical) = (init(&nodes[1], KINDS[0]), init(&nodes[1], KINDS[1]));
    let card = nodes[1].card();
    assert_eq!(id(&physical), Process::physical(card.nid, card.pid));
    assert_eq!(id(&logical), Process::logical(Rank(1)));
    assert_eq!(logical.phys_id(), id(&physical));
    assert_eq!(logical.uid(), nodes[1].uid());
    let cards = [nodes[0].card(), card].map(|card| (card.nid, card.pid));
    assert_eq!(logical.get_map().unwrap(), cards, "the job's ranks");
    assert_eq!(code(physical.get_map()), ReturnCode::ArgInvalid);
    assert_eq!(code(physical.set_map(cards.to_vec())), ReturnCode::ArgInvalid);
}

pub(crate) fn a_map_is_set_once(bed: &Bed) {
    let pair = bed.pair(KINDS[1]);
    let [a, b] = [&pair.a, &pair.b].map(|ni| (ni.phys_id().nid(), ni.phys_id().pid()));
    // The job's ranks are used before, and turned round.
    let source = Source::new(&pair.a, 8, MdOptions::empty());
    let sink = Sink::new(&pair.b, 8, PtOptions::empty());
    accept(&pair.b, sink.pt, &sink.memory);
    pair.a.put(&Put::new(source.md, 8, Process::logical(Rank(1)), sink.pt)).unwrap();
    assert_eq!(pair.event(&pair.b, sink.eq, EventKind::Put).initiator.rank(), Rank(0));
    assert_eq!(code(pair.a.set_map(Vec::new())), ReturnCode::ArgInvalid);
    for ni in [&pair.a, &pair.b] {
        ni.set_map(vec![b, a, b]).unwrap();
        assert_eq!(code(ni.set_map(vec![a])), ReturnCode::Ignored);
        assert_eq!(ni.get_map().unwrap(), [b, a, b]);
    }
    assert_eq!((id(&pair.a).rank(), id(&pair.b).rank()), (Rank(1), Rank(0)));
    // Rank 1 was the other one.
    let own = Sink::new(&pair.a, 8, PtOptions::empty());
    accept(&pair.a, own.pt, &own.memory);
    pair.a.put(&Put::new(source.md, 8, Process::logical(Rank(1)), own.pt)).unwrap();
    pair.event(&pair.a, own.eq, EventKind::Put);
    for rank in [0, 2] {
        pair.a.put(&Put::new(source.md, 8, Process::logical(Rank(rank)), sink.pt)).unwrap();
        assert_eq!(pair.event(&pair.b, sink.eq, EventKind::Put).initiator.rank(), Rank(1));
    }
    let beyond = Put::new(source.md, 8, Process::logical(Rank(3)), sink.pt);
    assert_eq!(code(pair.a.put(&beyond)), ReturnCode::ArgInvalid);
}

pub(crate) fn a_process_that_is_not_on_the_map_has_no_rank(bed: &Bed) {
    let pair = bed.pair(KINDS[1]);
    let b = (pair.b.phys_id().nid(), pair.b.phys_id().pid());
    pair.a.set_map(vec![b]).unwrap();
    assert_eq!(code(pair.a.id()), ReturnCode::ArgInvalid);
}

pub(crate) fn targets_that_nobody_knows_are_refused(bed: &Bed) {
    let nodes = bed.nodes(2);
    let (physical, logical) = (init(&nodes[0], KINDS[0]), init(&nodes[0], KINDS[1]));
    let of = |ni: &Ni| Source::new(ni, 8, MdOptions::empty()).md;
    let (p, l) = (of(&physical), of(&logical));
    let as_a_rank = Process::physical(physical.phys_id().nid(), Pid(1));
    for target in [Process::logical(Rank(2)), Process::logical(Rank(u32::MAX)), physical.phys_id(), as_a_rank]
    {
        assert_eq!(code(logical.put(&Put::new(l, 8, target, 0))), ReturnCode::ArgInvalid, "{target:?}");
        assert_eq!(code(logical.get(&Get::new(l, 8, target, 0))), ReturnCode::ArgInvalid);
        let ct = logical.ct_alloc().unwrap();
        assert_eq!(code(logical.triggered_put(&Put::new(l, 8, target, 0), ct, 1)), ReturnCode::ArgInvalid);
    }
    let card = nodes[0].card();
    for target in [Process::logical(Rank(1)), Process::physical(card.nid, Pid(card.pid.0 ^ 0xffff))] {
        assert_eq!(code(physical.put(&Put::new(p, 8, target, 0))), ReturnCode::ArgInvalid, "{target:?}");
        let ct = physical.ct_alloc().unwrap();
        assert_eq!(code(physical.triggered_put(&Put::new(p, 8, target, 0), ct, 1)), ReturnCode::ArgInvalid);
    }
}

pub(crate) fn sources_of_the_other_kind_of_address_are_refused(bed: &Bed) {
    let nodes = bed.nodes(1);
    for (kind, good, bad) in [
        (KINDS[0], From::physical(None, Some(Pid(3))), From::logical(Some(Rank(0)))),
        (KINDS[1], From::logical(Some(Rank(0))), From::physical(None, Some(Pid(3)))),
    ] {
        let ni = init(&nodes[0], kind);
        let sink = Sink::new(&ni, 8, PtOptions::empty());
        for (match_id, wanted) in [(good, None), (From::ANY, None), (bad, Some(ReturnCode::ArgInvalid))] {
            let me = Me { match_id, ..sink.me(MeOptions::OP_PUT) };
            let appended = ni.me_append(sink.pt, &me, ListKind::Priority, 0);
            assert_eq!(appended.err().map(|e| e.code()), wanted, "{match_id:?}");
        }
    }
}

pub(crate) fn limits_are_granted_as_far_as_they_go(bed: &Bed) {
    let nodes = bed.nodes_with(1, |_, options| NodeOptions { eager_bytes: 2048, ..options });
    let asked = Limits {
        max_entries: 10,
        max_pt_index: 3,
        max_iovecs: 20,
        max_msg_size: 1000,
        max_atomic_size: 64,
        max_waw_ordered_size: 7,
        ..Limits::default()
    };
    let ni = Ni::init(&nodes[0], MATCHING, None, &asked).unwrap();
    let granted = *ni.limits();
    assert_eq!((granted.max_entries, granted.max_iovecs), (10, 20));
    assert_eq!(
        (granted.max_msg_size, granted.max_atomic_size, granted.max_fetch_atomic_size),
        (1000, 64, 2048)
    );
    assert_eq!(granted.max_pt_index, 63, "the least that an interface has");
    let node = (granted.max_waw_ordered_size, granted.max_war_ordered_size, granted.max_volatile_size);
    assert_eq!((node, granted.features), ((2048, 2048, 2048), Features::empty()));
    let most =
        Limits { max_msg_size: u64::MAX, max_iovecs: u32::MAX, max_mds: u32::MAX, ..Limits::default() };
    let ni = Ni::init(&nodes[0], LIST, None, &most).unwrap();
    assert_eq!((ni.limits().max_msg_size, ni.limits().max_iovecs), (u64::from(u32::MAX), 2048 / 16));
    assert_eq!(ni.limits().max_mds, 1 << 24);
}

pub(crate) fn each_limit_is_reached_and_said(bed: &Bed) {
    let few = Limits {
        max_entries: 2,
        max_mds: 2,
        max_cts: 2,
        max_eqs: 2,
        max_pt_index: 63,
        max_iovecs: 2,
        max_list_size: 2,
        max_triggered_ops: 2,
        max_msg_size: 64,
        ..Limits::default()
    };
    let nodes = bed.nodes(1);
    let ni = Ni::init(&nodes[0], MATCHING, None, &few).unwrap();
    let memory = ni.alloc(100).unwrap();
    let eqs = [(); 2].map(|()| ni.eq_alloc(4).unwrap());
    assert_eq!(code(ni.eq_alloc(4)), ReturnCode::NoSpace);
    ni.eq_free(eqs[0]).unwrap();
    ni.eq_alloc(4).unwrap();
    let cts = [(); 2].map(|()| ni.ct_alloc().unwrap());
    assert_eq!(code(ni.ct_alloc()), ReturnCode::NoSpace);
    let mds = [(); 2].map(|()| ni.md_bind(&Md::new(&memory)).unwrap());
    assert_eq!(code(ni.md_bind(&Md::new(&memory))), ReturnCode::NoSpace);
    ni.md_release(mds[0]).unwrap();
    let vector = |n| Vec::from_iter(std::iter::repeat_n(memory.clone(), n));
    assert_eq!(code(ni.md_bind(&Md::new(vector(3)))), ReturnCode::ArgInvalid, "max_iovecs");
    let md = ni.md_bind(&Md::new(vector(2))).unwrap();
    let pts: Vec<u32> = (0..64).map(|_| ni.pt_alloc(PtOptions::empty(), None, None).unwrap()).collect();
    assert_eq!(pts, Vec::from_iter(0..64));
    assert_eq!(code(ni.pt_alloc(PtOptions::empty(), None, None)), ReturnCode::PtFull);
    assert_eq!(code(ni.pt_alloc(PtOptions::empty(), None, Some(3))), ReturnCode::PtInUse);
    assert_eq!(code(ni.pt_alloc(PtOptions::empty(), None, Some(64))), ReturnCode::ArgInvalid);
    let me = Me::new(&memory);
    let entries = [(); 2].map(|()| ni.me_append(0, &me, ListKind::Priority, 0).unwrap());
    assert_eq!(code(ni.me_append(0, &me, ListKind::Priority, 0)), ReturnCode::ListTooLong);
    assert_eq!(code(ni.me_append(1, &me, ListKind::Priority, 0)), ReturnCode::NoSpace);
    ni.me_unlink(entries[0]).unwrap();
    ni.me_append(1, &me, ListKind::Overflow, 0).unwrap();
    let put = Put::new(md, 65, id(&ni), 0);
    assert_eq!(code(ni.put(&put)), ReturnCode::ArgInvalid, "max_msg_size");
    let put = Put { length: 64, ..put };
    for threshold in [7, 8] {
        ni.triggered_put(&put, cts[0], threshold).unwrap();
    }
    assert_eq!(code(ni.triggered_put(&put, cts[1], 7)), ReturnCode::NoSpace, "max_triggered_ops");
}

pub(crate) fn handles_of_other_interfaces_are_refused(bed: &Bed) {
    let nodes = bed.nodes(1);
    let (one, other) = (init(&nodes[0], KINDS[0]), init(&nodes[0], KINDS[1]));
    let make = |ni: &Ni| {
        let sink = Sink::new(ni, 8, PtOptions::empty());
        let entry = sink.post(ni, MeOptions::OP_PUT);
        (sink.eq, ni.ct_alloc().unwrap(), ni.md_bind(&Md::new(&sink.memory)).unwrap(), entry)
    };
    let (mine, theirs) = (make(&one), make(&other));
    assert_eq!((mine.0.ni(), mine.2.ni(), mine.3.ni()), (one.handle(), one.handle(), one.handle()));
    assert!(mine.0 != theirs.0 && mine.1 != theirs.1 && mine.2 != theirs.2 && mine.3 != theirs.3);
    let (eq, ct, md, entry) = theirs;
    let refused = [
        code(one.eq_get(eq)),
        code(one.eq_wait(eq)),
        code(one.eq_poll(&[mine.0, eq], None)),
        code(one.eq_free(eq)),
        code(one.ct_get(ct)),
        code(one.ct_wait(ct, 1)),
        code(one.ct_poll(&[(mine.1, 1), (ct, 1)], None)),
        code(one.ct_set(ct, Default::default())),
        code(one.ct_inc(ct, Default::default())),
        code(one.ct_cancel_triggered(ct)),
        code(one.ct_free(ct)),
        code(one.md_release(md)),
        code(one.me_unlink(entry)),
        code(one.pt_alloc(PtOptions::empty(), Some(eq), None)),
        code(one.md_bind(&Md { eq: Some(eq), ..Md::new(one.alloc(8).unwrap()) })),
        code(one.md_bind(&Md { ct: Some(ct), ..Md::new(one.alloc(8).unwrap()) })),
        code(one.me_append(0, &Me { ct: Some(ct), ..Me::new(one.alloc(8).unwrap()) }, ListKind::Priority, 0)),
        code(one.put(&Put::new(md, 8, id(&one), 0))),
        code(one.triggered_put(&Put::new(mine.2, 8, id(&one), 0), ct, 1)),
        code(one.triggered_ct_inc(ct, Default::default(), mine.1, 1)),
        code(one.triggered_ct_set(ct, Default::default(), mine.1, 1)),
    ];
    assert!(refused.iter().all(|&code| code == ReturnCode::ArgInvalid), "{refused:?}");
}

pub(crate) fn options_without_a_name_are_refused(bed: &Bed) {
    let nodes = bed.nodes(1);
    let ni = init(&nodes[0], MATCHING);
    let memory: Memory = ni.alloc(8).unwrap();
    let pt = ni.pt_alloc(PtOptions::empty(), None, None).unwrap();
    let md = Md { options: MdOptions::from_bits_retain(1), ..Md::new(&memory) };
    assert_eq!(code(ni.md_bind(&md)), ReturnCode::ArgInvalid);
    let me = Me { options: MeOptions::from_bits_retain(1 << 31), ..Me::new(&memory) };
    assert_eq!(code(ni.me_append(pt, &me, ListKind::Priority, 0)), ReturnCode::ArgInvalid);
    assert_eq!(code(ni.me_search(pt, &me, portals::v4::SearchOp::Only, 0)), ReturnCode::ArgInvalid);
    assert_eq!(code(ni.pt_alloc(PtOptions::from_bits_retain(1 << 9), None, None)), ReturnCode::ArgInvalid);
    assert_eq!(code(ni.me_append(pt + 1, &Me::new(&memory), ListKind::Priority, 0)), ReturnCode::ArgInvalid);
}

pub(crate) fn entries_of_the_other_kind_are_refused(bed: &Bed) {
    let nodes = bed.nodes(1);
    let (matching, list) = (init(&nodes[0], MATCHING), init(&nodes[0], LIST));
    let memory = matching.alloc(8).unwrap();
    for ni in [&matching, &list] {
        assert_eq!(ni.pt_alloc(PtOptions::empty(), None, None).unwrap(), 0);
    }
    let (le, me) = (portals::v4::Le::new(&memory), Me::new(&memory));
    let search = portals::v4::SearchOp::Only;
    assert_eq!(code(matching.le_append(0, &le, ListKind::Priority, 0)), ReturnCode::ArgInvalid);
    assert_eq!(code(matching.le_search(0, &le, search, 0)), ReturnCode::ArgInvalid);
    assert_eq!(code(list.me_append(0, &me, ListKind::Priority, 0)), ReturnCode::ArgInvalid);
    assert_eq!(code(list.me_search(0, &me, search, 0)), ReturnCode::ArgInvalid);
}

pub(crate) fn an_interface_that_is_closed_takes_nothing(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 8192, MdOptions::EVENT_SEND_DISABLE);
    let target = id(&pair.b);
    let node = pair.b.node().clone();
    let crate::bed::Pair { a, b } = pair;
    drop(b);
    let still = init(&node, LIST);
    for length in [8, 8192] {
        a.put(&Put { ack_req: AckReq::Ack, ..Put::new(source.md, length, target, 0) }).unwrap();
        let got = until(&[&a, &still], "an ack", || a.eq_get(source.eq).unwrap());
        assert_eq!((got.event.kind, got.event.ni_fail_type), (EventKind::Ack, NiFail::Dropped));
        a.get(&Get::new(source.md, length, target, 0)).unwrap();
        let got = until(&[&a, &still], "a reply", || a.eq_get(source.eq).unwrap());
        assert_eq!((got.event.kind, got.event.ni_fail_type), (EventKind::Reply, NiFail::Dropped));
    }
}

pub(crate) fn a_target_that_is_gone_is_undeliverable(bed: &Bed) {
    let pair = bed.pair_with(MATCHING, &Limits::default(), |_, options| NodeOptions {
        connect_timeout: Duration::from_millis(300),
        ..options
    });
    let source = Source::new(&pair.a, 64, MdOptions::EVENT_CT_ACK);
    let target = id(&pair.b);
    let crate::bed::Pair { a, b } = pair;
    drop(b);
    a.put(&Put { ack_req: AckReq::Ack, ..Put::new(source.md, 8, target, 0) }).unwrap();
    let kinds = [(); 2].map(|()| {
        let got = until(&[&a], "the end", || a.eq_get(source.eq).unwrap());
        assert_eq!(got.event.ni_fail_type, NiFail::Undeliverable, "{got:?}");
        got.event.kind
    });
    assert_eq!(kinds, [EventKind::Send, EventKind::Ack]);
    assert_eq!(a.ct_get(source.ct).unwrap(), portals::v4::CtEvent { success: 0, failure: 1 });
}

/// Nobody takes the device's events, one of which is that a connection on a shared receive queue has ended.
pub(crate) fn waits_sleep_after_a_peer_was_lost(bed: &Bed) {
    const WAIT: Duration = Duration::from_millis(200);
    let pair = bed.pair_with(MATCHING, &Limits::default(), |n, options| match n {
        0 => NodeOptions { connect_timeout: Duration::from_millis(100), ..options },
        _ => options,
    });
    let source = Source::new(&pair.a, 64, MdOptions::EVENT_CT_ACK | MdOptions::EVENT_SEND_DISABLE);
    let sink = Sink::new(&pair.b, 64, PtOptions::empty());
    sink.post(&pair.b, MeOptions::OP_PUT);
    let put = Put { ack_req: AckReq::Ct, ..Put::new(source.md, 8, id(&pair.b), sink.pt) };
    // On a machine that has other things to do, the target may be given up before it is there.
    (1..).find(|&tries| {
        pair.a.put(&put).unwrap();
        pair.counted(&pair.a, source.ct, tries).success > 0
    });
    let lost = pair.a.node().counts().lost;
    let crate::bed::Pair { a, b } = pair;
    drop(b);
    // Its goodbye may still be on its way, and then it does not answer.
    while a.node().counts().lost == lost {
        a.put(&put).unwrap();
        a.ct_poll(&[(source.ct, u64::MAX)], Some(Duration::from_millis(10))).unwrap();
    }
    end_a_connection(a.node().context());
    let eq = a.eq_alloc(4).unwrap();
    let sleeps_of_a_wait = || {
        let before = a.node().sleeps();
        assert_eq!(a.eq_poll(&[eq], Some(WAIT)).unwrap(), None);
        a.node().sleeps() - before
    };
    let mut slept_in = 0;
    until(&[], "two waits that sleep", || {
        let slept = sleeps_of_a_wait();
        // A few for what the adapter itself has to do meanwhile.
        assert!(slept <= 32, "{slept} sleeps in a wait of {WAIT:?}");
        // None in one that gets no processor before its time is over.
        slept_in += u32::from(slept > 0);
        (slept_in == 2).then_some(())
    });
    assert!(a.node().context().poll_event().is_some(), "the event has waited all the time");
}

/// Has the device raise the event of a connection that has ended.
fn end_a_connection(context: &Context) {
    let pd = context.alloc_pd().unwrap();
    let cq = RawCq::create(context, 8).unwrap();
    let srq = RawSrq::create(&pd, &SrqInit { max_wr: 4, max_sge: 1 }).unwrap();
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 0, ..QpCap::default() };
    let mut qp = RawQp::create(&pd, QpType::Rc, &cq, &cq, Some(&srq), cap).unwrap();
    let PortAttr { gid, lid, active_mtu: mtu, .. } = context.port();
    let (service, qpn, psn, rd_atomic) = (QpType::Rc, qp.qpn(), Psn::new(0), 1);
    let own = Endpoint { service, qpn, psn, mtu, rd_atomic, gid, lid };
    qp.connect(Access::empty(), &own, &own, &ConnectOptions::default()).unwrap();
    qp.modify(&QpAttr { state: Some(QpState::Error), ..QpAttr::default() }).unwrap();
}

pub(crate) fn abort_ends_each_kind_of_wait(bed: &Bed) {
    let nodes = bed.nodes(1);
    let (ni, other) = (init(&nodes[0], MATCHING), init(&nodes[0], LIST));
    let (eq, ct) = (ni.eq_alloc(4).unwrap(), ni.ct_alloc().unwrap());
    let forever = None;
    std::thread::scope(|scope| {
        let waits = [
            scope.spawn(|| code(ni.eq_wait(eq))),
            scope.spawn(|| code(ni.eq_poll(&[eq], forever))),
            scope.spawn(|| code(ni.ct_wait(ct, 1))),
            scope.spawn(|| code(ni.ct_poll(&[(ct, 1)], forever))),
        ];
        ni.abort();
        assert_eq!(waits.map(|wait| wait.join().unwrap()), [ReturnCode::Aborted; 4]);
    });
    assert_eq!(code(ni.eq_wait(eq)), ReturnCode::Aborted, "for good");
    assert_eq!(ni.eq_get(eq).unwrap(), None, "what does not wait goes on");
    let theirs = other.eq_alloc(4).unwrap();
    assert_eq!(
        other.eq_poll(&[theirs], Some(Duration::ZERO)).unwrap(),
        None,
        "another interface's waits do not end"
    );
    ni.eq_free(eq).unwrap();
    ni.ct_free(ct).unwrap();
}

pub(crate) fn abort_wakes_who_sleeps(bed: &Bed) {
    let nodes = bed.nodes(1);
    let ni = init(&nodes[0], MATCHING);
    let eq = ni.eq_alloc(4).unwrap();
    std::thread::scope(|scope| {
        let wait = scope.spawn(|| code(ni.eq_wait(eq)));
        // Long enough that it does not spin any more.
        let end = std::time::Instant::now() + Duration::from_millis(50);
        while std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        ni.abort();
        assert_eq!(wait.join().unwrap(), ReturnCode::Aborted);
    });
}

pub(crate) fn bundles_and_atomic_sync_lose_nothing(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 64, MdOptions::EVENT_SEND_DISABLE);
    let sink = Sink::new(&pair.b, 64, PtOptions::empty());
    sink.post(&pair.b, MeOptions::OP_PUT);
    pair.a.start_bundle();
    pair.a.start_bundle();
    for n in 0..8 {
        let put =
            Put { local_offset: n * 8, remote_offset: n * 8, ..Put::new(source.md, 8, id(&pair.b), sink.pt) };
        pair.a.put(&put).unwrap();
    }
    pair.a.end_bundle();
    pair.a.end_bundle();
    for _ in 0..8 {
        pair.event(&pair.b, sink.eq, EventKind::Put);
    }
    pair.b.atomic_sync();
    assert_eq!(sink.memory.to_vec(), pattern(64));
}

pub(crate) fn status_registers_count_apart(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let all = [
        StatusRegister::DropCount,
        StatusRegister::PermissionViolations,
        StatusRegister::OperationViolations,
    ];
    let sink = Sink::new(&pair.b, 64, PtOptions::empty());
    let options = MdOptions::EVENT_SEND_DISABLE;
    let source = Source::new(&pair.a, 64, options);
    sink.post(&pair.b, MeOptions::OP_GET);
    let put = Put::new(source.md, 8, id(&pair.b), sink.pt);
    for _ in 0..3 {
        pair.a.put(&put).unwrap();
        pair.a.put(&Put { match_bits: 1, ..put }).unwrap();
    }
    pair.status(&pair.b, StatusRegister::OperationViolations, 3);
    pair.status(&pair.b, StatusRegister::DropCount, 3);
    pair.status(&pair.b, StatusRegister::PermissionViolations, 0);
    assert_eq!(all.map(|register| pair.a.status(register)), [0; 3]);
}

/// A directory that nobody can ask.
struct Silent;

impl portals::Directory for Silent {
    fn size(&self) -> Option<u32> {
        Some(2)
    }
    fn by_rank(&self, _: Rank) -> Result<portals::Card, portals::DirectoryError> {
        Err(portals::DirectoryError::Asking { source: "the line is dead".into() })
    }
}

pub(crate) fn a_directory_that_can_t_be_asked_is_a_failure(bed: &Bed) {
    let nodes =
        bed.nodes_with(1, |_, options| NodeOptions { directory: std::sync::Arc::new(Silent), ..options });
    let ni = init(&nodes[0], KINDS[1]);
    let md = Source::new(&ni, 8, MdOptions::empty()).md;
    let error = ni.put(&Put::new(md, 8, Process::logical(Rank(1)), 0)).unwrap_err();
    assert_eq!(error.code(), ReturnCode::Fail);
    assert!(error.to_string().contains("the line is dead"), "{error}");
    assert_eq!(code(ni.get_map()), ReturnCode::Fail);
    // Its own card needs nobody.
    ni.put(&Put::new(md, 8, id(&ni), 0)).unwrap();
}

pub(crate) fn errors_name_the_call_the_argument_and_the_code(bed: &Bed) {
    let nodes = bed.nodes(1);
    let ni = init(&nodes[0], MATCHING);
    let md = Source::new(&ni, 8, MdOptions::empty()).md;
    let sink = Sink::new(&ni, 8, PtOptions::empty());
    let ct = ni.ct_alloc().unwrap();
    ni.ct_free(ct).unwrap();
    let long = Put { local_offset: 4, ..Put::new(md, 5, id(&ni), 0) };
    for (error, parts) in [
        (ni.put(&long).unwrap_err(), ["PtlPut", "md", "PTL_ARG_INVALID"]),
        (ni.ct_get(ct).unwrap_err(), ["PtlCTGet", "ct", "PTL_ARG_INVALID"]),
        (ni.pt_free(77).unwrap_err(), ["PtlPTFree", "portal 77", "PTL_ARG_INVALID"]),
        (ni.eq_poll(&[], None).unwrap_err(), ["PtlEQPoll", "eqs", "PTL_ARG_INVALID"]),
        (
            ni.pt_alloc(PtOptions::FLOWCTRL, None, None).unwrap_err(),
            ["PtlPTAlloc", "event queue", "PTL_PT_EQ_NEEDED"],
        ),
        (
            ni.me_append(sink.pt + 1, &sink.me(MeOptions::OP_PUT), ListKind::Priority, 0).unwrap_err(),
            ["PtlMEAppend", "portal", "PTL_ARG_INVALID"],
        ),
        (
            ni.atomic(&Put::new(md, 8, id(&ni), 0), portals::v4::AtomicOp::Bor, portals::v4::Datatype::F64)
                .unwrap_err(),
            ["PtlAtomic", "Bor on F64", "PTL_ARG_INVALID"],
        ),
    ] {
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}: {parts:?}");
        assert!(error.reason().to_string().len() + 20 < text.len(), "what to do is said: {text}");
    }
}

pub(crate) fn the_adapter_matches_where_it_is_asked_to(bed: &Bed) {
    for node in bed.nodes(2) {
        assert_eq!(node.is_offloaded(), bed.offload);
    }
}

pub(crate) fn the_adapter_places_messages_while_the_target_calls_nothing(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    // In the mode of progress that has no thread, an adapter moves in its program's calls.
    if !bed.offload || bed.progress == softhca::Progress::Inline {
        return;
    }
    for len in [8, 4096, 1 << 20] {
        let source = Source::new(&pair.a, len, MdOptions::EVENT_CT_ACK | MdOptions::EVENT_SEND_DISABLE);
        let sink = Sink::new(&pair.b, len, PtOptions::empty());
        sink.post(&pair.b, MeOptions::OP_PUT);
        let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, len as u64, id(&pair.b), sink.pt) };
        pair.a.put(&put).unwrap();
        let polled = pair.a.ct_poll(&[(source.ct, 1)], Some(crate::bed::PATIENCE)).unwrap();
        assert_eq!(polled.map(|(count, _)| count.success), Some(1));
        assert!(sink.memory.to_vec() == pattern(len), "{len} bytes are there");
        assert_eq!(pair.b.eq_get(sink.eq).unwrap().map(|got| got.event.kind), Some(EventKind::Put));
    }
}

pub(crate) fn memory_of_another_node_is_refused(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let theirs = pair.b.alloc(64).unwrap();
    let sink = Sink::new(&pair.a, 8, PtOptions::empty());
    assert_eq!(code(pair.a.md_bind(&Md::new(&theirs))), ReturnCode::ArgInvalid);
    assert_eq!(
        code(pair.a.md_bind(&Md::new(vec![sink.memory.clone(), theirs.clone()]))),
        ReturnCode::ArgInvalid
    );
    let me = Me::new(&theirs);
    assert_eq!(code(pair.a.me_append(sink.pt, &me, ListKind::Priority, 0)), ReturnCode::ArgInvalid);
}

pub(crate) fn nodes_that_are_opened_together_know_each_other(bed: &Bed) {
    let contexts = bed.contexts(3);
    let nodes =
        portals::Node::open_all(&contexts, &NodeOptions { offload: bed.offload, ..Default::default() })
            .unwrap();
    let nis: Vec<Ni> = nodes.iter().map(|node| init(node, KINDS[3])).collect();
    let sinks: Vec<Sink> = nis.iter().map(|ni| Sink::new(ni, 8, PtOptions::empty())).collect();
    let all: Vec<&Ni> = nis.iter().collect();
    for (to, (ni, sink)) in nis.iter().zip(&sinks).enumerate() {
        accept(ni, sink.pt, &sink.memory);
        assert_eq!(id(ni), Process::logical(Rank(to as u32)));
        for from in &nis {
            let source = Source::new(from, 8, MdOptions::empty());
            from.put(&Put::new(source.md, 8, id(ni), sink.pt)).unwrap();
            let got = until(&all, "a put", || ni.eq_get(sink.eq).unwrap());
            assert_eq!((got.event.kind, got.event.initiator), (EventKind::Put, id(from)));
        }
    }
}

pub(crate) fn a_node_of_other_eager_bytes_is_a_stranger(bed: &Bed) {
    let pair = bed.pair_with(MATCHING, &Limits::default(), |n, options| NodeOptions {
        eager_bytes: [4096, 256][n],
        connect_timeout: Duration::from_millis(300),
        ..options
    });
    let source = Source::new(&pair.a, 64, MdOptions::EVENT_SEND_DISABLE);
    let sink = Sink::new(&pair.b, 64, PtOptions::empty());
    sink.post(&pair.b, MeOptions::OP_PUT);
    pair.a.put(&Put { ack_req: AckReq::Ack, ..Put::new(source.md, 8, id(&pair.b), sink.pt) }).unwrap();
    let got = pair.until("the end", || {
        pair.a.eq_get(source.eq).unwrap().filter(|got| got.event.kind == EventKind::Ack)
    });
    assert_eq!(got.event.ni_fail_type, NiFail::Undeliverable);
    // The hello may be behind the end of the initiator's patience.
    pair.until("the hello", || (pair.b.node().counts().strangers > 0).then_some(()));
    assert_eq!(pair.b.eq_get(sink.eq).unwrap(), None);
}
