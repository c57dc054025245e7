//! Triggered operations.

use portals::v4::{
    AckReq, AtomicOp, CtEvent, CtHandle, Datatype, EventKind, Fetch, Get, Limits, MdOptions, MeOptions,
    NiFail, PtOptions, Put, ReturnCode,
};

use crate::bed::{Bed, LIST, MATCHING, Pair, Sink, Source, accept, code, id, pattern};

const fn success(success: u64) -> CtEvent {
    CtEvent { success, failure: 0 }
}

/// A source, a sink that takes everything, and a count.
fn sides(pair: &Pair) -> (Source, Sink, CtHandle) {
    let source = Source::new(&pair.a, 64, MdOptions::EVENT_SEND_DISABLE);
    let sink = Sink::new(&pair.b, 64, PtOptions::empty());
    accept(&pair.b, sink.pt, &sink.memory);
    (source, sink, pair.a.ct_alloc().unwrap())
}

pub(crate) fn a_triggered_put_leaves_when_the_count_is_reached(bed: &Bed) {
    for options in [MATCHING, LIST] {
        let pair = bed.pair(options);
        let (source, sink, ct) = sides(&pair);
        let put = Put { ack_req: AckReq::Ack, hdr_data: 6, ..Put::new(source.md, 64, id(&pair.b), sink.pt) };
        pair.a.triggered_put(&put, ct, 2).unwrap();
        pair.a.ct_inc(ct, success(1)).unwrap();
        pair.settled(&[(&pair.b, sink.eq)]);
        pair.a.ct_inc(ct, CtEvent { success: 0, failure: 1 }).unwrap();
        assert_eq!(pair.event(&pair.b, sink.eq, EventKind::Put).hdr_data, 6);
        pair.event(&pair.a, source.eq, EventKind::Ack);
        assert_eq!(sink.memory.to_vec(), pattern(64));
        // At once where it is reached, and not twice.
        pair.a.triggered_put(&put, ct, 1).unwrap();
        pair.event(&pair.b, sink.eq, EventKind::Put);
        pair.event(&pair.a, source.eq, EventKind::Ack);
        pair.a.ct_inc(ct, success(5)).unwrap();
        pair.settled(&[(&pair.b, sink.eq), (&pair.a, source.eq)]);
    }
}

pub(crate) fn a_triggered_get_fetches_when_the_count_is_reached(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink, ct) = sides(&pair);
    sink.memory.write_at(0, &[7; 64]);
    pair.a.triggered_get(&Get::new(source.md, 64, id(&pair.b), sink.pt), ct, 1).unwrap();
    pair.settled(&[(&pair.b, sink.eq)]);
    pair.a.ct_set(ct, success(1)).unwrap();
    pair.event(&pair.a, source.eq, EventKind::Reply);
    assert_eq!(source.memory.to_vec(), [7; 64]);
}

pub(crate) fn triggered_atomics_of_each_kind_are_done(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink, ct) = sides(&pair);
    let got = Source::new(&pair.a, 64, MdOptions::empty());
    let (op, ty) = (AtomicOp::Sum, Datatype::U64);
    let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, 8, id(&pair.b), sink.pt) };
    let fetch = Fetch::new(got.md, source.md, 8, id(&pair.b), sink.pt);
    source.memory.store_u64(0, 5);
    pair.a.triggered_swap(&fetch, &10u64.to_ne_bytes(), AtomicOp::Cswap, ty, ct, 3).unwrap();
    pair.a.triggered_fetch_atomic(&fetch, op, ty, ct, 2).unwrap();
    pair.a.triggered_atomic(&put, op, ty, ct, 1).unwrap();
    let there = || sink.memory.load_u64(0);
    assert_eq!(there(), 0);
    pair.a.ct_inc(ct, success(1)).unwrap();
    pair.event(&pair.a, source.eq, EventKind::Ack);
    assert_eq!(there(), 5);
    pair.a.ct_inc(ct, success(1)).unwrap();
    pair.event(&pair.a, got.eq, EventKind::Reply);
    assert_eq!((there(), got.memory.load_u64(0)), (10, 5));
    source.memory.store_u64(0, 99);
    pair.a.ct_inc(ct, success(1)).unwrap();
    pair.event(&pair.a, got.eq, EventKind::Reply);
    assert_eq!((there(), got.memory.load_u64(0)), (99, 10));
}

pub(crate) fn triggered_counts_set_off_each_other(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink, _) = sides(&pair);
    let ni = &pair.a;
    let cts: Vec<CtHandle> = (0..50).map(|_| ni.ct_alloc().unwrap()).collect();
    for (n, pair) in cts.windows(2).enumerate() {
        match n % 2 {
            0 => ni.triggered_ct_inc(pair[1], success(2), pair[0], 2).unwrap(),
            _ => ni.triggered_ct_set(pair[1], success(2), pair[0], 2).unwrap(),
        }
    }
    let put = Put::new(source.md, 8, id(&pair.b), sink.pt);
    ni.triggered_put(&put, cts[49], 2).unwrap();
    ni.ct_inc(cts[0], success(2)).unwrap();
    pair.event(&pair.b, sink.eq, EventKind::Put);
    assert!(cts.iter().all(|&ct| ni.ct_get(ct).unwrap() == success(2)));
    let both = CtEvent { success: 1, failure: 1 };
    assert_eq!(code(ni.triggered_ct_inc(cts[0], both, cts[1], 1)), ReturnCode::ArgInvalid);
    ni.triggered_ct_set(cts[0], both, cts[1], 1).unwrap();
    assert_eq!(ni.ct_get(cts[0]).unwrap(), both);
}

pub(crate) fn thresholds_are_reached_in_their_order_whatever_the_order_of_the_calls(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink, ct) = sides(&pair);
    let log = pair.a.ct_alloc().unwrap();
    // Each writes its threshold: the last one stays.
    for threshold in [5, 1, 4, 2, 3, 3] {
        let put = Put { hdr_data: threshold, ..Put::new(source.md, 8, id(&pair.b), sink.pt) };
        pair.a.triggered_put(&put, ct, threshold).unwrap();
        pair.a.triggered_ct_set(log, success(threshold), ct, threshold).unwrap();
    }
    pair.a.ct_inc(ct, success(2)).unwrap();
    assert_eq!(pair.a.ct_get(log).unwrap(), success(2));
    pair.a.ct_inc(ct, success(3)).unwrap();
    assert_eq!(pair.a.ct_get(log).unwrap(), success(5));
    for wanted in [1, 2, 3, 3, 4, 5] {
        assert_eq!(pair.event(&pair.b, sink.eq, EventKind::Put).hdr_data, wanted);
    }
}

pub(crate) fn cancelled_operations_are_not_done(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink, ct) = sides(&pair);
    let put = Put::new(source.md, 8, id(&pair.b), sink.pt);
    for threshold in [1, 2, 3] {
        pair.a.triggered_put(&put, ct, threshold).unwrap();
    }
    pair.a.ct_inc(ct, success(1)).unwrap();
    pair.event(&pair.b, sink.eq, EventKind::Put);
    assert_eq!(pair.a.ct_cancel_triggered(ct).unwrap(), 2);
    pair.a.ct_inc(ct, success(9)).unwrap();
    let other = pair.a.ct_alloc().unwrap();
    pair.a.triggered_put(&put, other, 1).unwrap();
    pair.a.ct_free(other).unwrap();
    pair.settled(&[(&pair.b, sink.eq)]);
}

pub(crate) fn every_kind_counts_towards_max_triggered_ops(bed: &Bed) {
    let limits = Limits { max_triggered_ops: 7, ..Limits::default() };
    let pair = bed.pair_with(MATCHING, &limits, |_, options| options);
    let (source, sink, ct) = sides(&pair);
    let ni = &pair.a;
    let (op, ty) = (AtomicOp::Sum, Datatype::U64);
    let put = Put::new(source.md, 8, id(&pair.b), sink.pt);
    let get = Get::new(source.md, 8, id(&pair.b), sink.pt);
    let fetch = Fetch::new(source.md, source.md, 8, id(&pair.b), sink.pt);
    let other = ni.ct_alloc().unwrap();
    let all = || {
        [
            ni.triggered_put(&put, ct, 1),
            ni.triggered_get(&get, ct, 1),
            ni.triggered_atomic(&put, op, ty, ct, 1),
            ni.triggered_fetch_atomic(&fetch, op, ty, ct, 1),
            ni.triggered_swap(&fetch, &[], AtomicOp::Swap, ty, ct, 1),
            ni.triggered_ct_inc(other, success(1), ct, 1),
            ni.triggered_ct_set(other, success(1), ct, 1),
        ]
    };
    assert!(all().iter().all(Result::is_ok));
    assert!(all().map(code).iter().all(|&code| code == ReturnCode::NoSpace));
    assert_eq!(ni.ct_cancel_triggered(ct).unwrap(), 7);
    assert!(all().iter().all(Result::is_ok), "there is room again");
}

pub(crate) fn an_incoming_message_triggers_another(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink, _) = sides(&pair);
    // b answers each message that it gets, without its program.
    let answer = Source::new(&pair.b, 64, MdOptions::EVENT_SEND_DISABLE);
    let back = Sink::new(&pair.a, 64, PtOptions::empty());
    back.post(&pair.a, MeOptions::OP_PUT);
    let ct = pair.b.ct_alloc().unwrap();
    let pt = pair.b.pt_alloc(PtOptions::empty(), None, None).unwrap();
    let me = portals::v4::Me { ct: Some(ct), ..sink.me(MeOptions::OP_PUT | MeOptions::EVENT_CT_COMM) };
    pair.b.me_append(pt, &me, portals::v4::ListKind::Priority, 0).unwrap();
    for n in 1..=20 {
        let put = Put { hdr_data: n, ..Put::new(answer.md, 8, id(&pair.a), back.pt) };
        pair.b.triggered_put(&put, ct, n).unwrap();
    }
    for n in 1..=20 {
        pair.a.put(&Put::new(source.md, 8, id(&pair.b), pt)).unwrap();
        assert_eq!(pair.event(&pair.a, back.eq, EventKind::Put).hdr_data, n);
    }
}

pub(crate) fn illegal_triggered_operations_are_refused_when_they_are_asked_for(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink, ct) = sides(&pair);
    let put = Put::new(source.md, 8, id(&pair.b), sink.pt);
    let refused = [
        code(pair.a.triggered_put(&Put { length: 65, ..put }, ct, 1)),
        code(pair.a.triggered_put(&Put { local_offset: 60, ..put }, ct, 1)),
        code(pair.a.triggered_atomic(&put, AtomicOp::Swap, Datatype::U64, ct, 1)),
        code(pair.a.triggered_atomic(&put, AtomicOp::Bor, Datatype::F64, ct, 1)),
        code(pair.a.triggered_atomic(&Put { length: 7, ..put }, AtomicOp::Sum, Datatype::U64, ct, 1)),
    ];
    assert_eq!(refused, [ReturnCode::ArgInvalid; 5]);
}

pub(crate) fn a_triggered_operation_to_who_is_gone_is_undeliverable(bed: &Bed) {
    let pair = bed.pair_with(MATCHING, &Limits::default(), |_, options| portals::NodeOptions {
        connect_timeout: std::time::Duration::from_millis(300),
        ..options
    });
    let (source, sink, ct) = sides(&pair);
    let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, 8, id(&pair.b), sink.pt) };
    pair.a.triggered_put(&put, ct, 1).unwrap();
    let Pair { a, b } = pair;
    drop(b);
    a.ct_inc(ct, success(1)).unwrap();
    let got = crate::bed::until(&[&a], "its end", || {
        a.eq_get(source.eq).unwrap().filter(|got| got.event.kind == EventKind::Ack)
    });
    assert_eq!(got.event.ni_fail_type, NiFail::Undeliverable);
}

pub(crate) fn a_triggered_operation_that_can_t_begin_any_more_is_undeliverable(bed: &Bed) {
    let options = portals::v4::NiOptions::MATCHING | portals::v4::NiOptions::LOGICAL;
    let pair = bed.pair(options);
    let (source, sink, ct) = sides(&pair);
    let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, 8, id(&pair.b), sink.pt) };
    pair.a.triggered_put(&put, ct, 1).unwrap();
    pair.a.triggered_get(&Get::new(source.md, 8, id(&pair.b), sink.pt), ct, 1).unwrap();
    // By then its target is not on the map.
    let here = pair.a.phys_id();
    pair.a.set_map(vec![(here.nid(), here.pid())]).unwrap();
    pair.a.ct_inc(ct, success(1)).unwrap();
    for kind in [EventKind::Ack, EventKind::Reply] {
        let event = pair.got(&pair.a, source.eq).event;
        let event = if event.kind == EventKind::Send { pair.got(&pair.a, source.eq).event } else { event };
        assert_eq!((event.kind, event.ni_fail_type), (kind, NiFail::Undeliverable));
    }
    pair.a.md_release(source.md).unwrap();
}
