//! Memory descriptors: each option by its name.

use portals::v4::{
    AckReq, AtomicOp, CtEvent, Datatype, EventKind, Fetch, Get, ListKind, Md, MdOptions, Me, MeOptions,
    PtOptions, Put, ReturnCode,
};

use crate::bed::{Bed, MATCHING, Pair, Sink, Source, code, id, pattern};

/// A target for everything, and the count on a descriptor with these options after a put of 24 bytes with an
/// acknowledgement and a get of 16 bytes; with the kinds of the events there.
fn counted(pair: &Pair, options: MdOptions, wanted: u64) -> Vec<EventKind> {
    let sink = Sink::new(&pair.b, 64, PtOptions::empty());
    sink.post(&pair.b, MeOptions::OP_PUT | MeOptions::OP_GET);
    let source = Source::new(&pair.a, 64, options);
    let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, 24, id(&pair.b), sink.pt) };
    pair.a.put(&put).unwrap();
    pair.event(&pair.b, sink.eq, EventKind::Put);
    pair.settled(&[]);
    pair.a.get(&Get::new(source.md, 16, id(&pair.b), sink.pt)).unwrap();
    pair.event(&pair.b, sink.eq, EventKind::Get);
    pair.settled(&[]);
    assert_eq!(pair.a.ct_get(source.ct).unwrap(), CtEvent { success: wanted, failure: 0 }, "{options:?}");
    std::iter::from_fn(|| pair.a.eq_get(source.eq).unwrap()).map(|got| got.event.kind).collect()
}

pub(crate) fn event_ct_send_counts_what_was_sent(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let all = [EventKind::Send, EventKind::Ack, EventKind::Reply];
    assert_eq!(counted(&pair, MdOptions::EVENT_CT_SEND, 1), all);
    assert_eq!(counted(&pair, MdOptions::EVENT_CT_SEND | MdOptions::EVENT_CT_BYTES, 24), all);
}

pub(crate) fn event_ct_reply_counts_replies(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    counted(&pair, MdOptions::EVENT_CT_REPLY, 1);
    counted(&pair, MdOptions::EVENT_CT_REPLY | MdOptions::EVENT_CT_BYTES, 16);
}

pub(crate) fn event_ct_ack_counts_acknowledgements(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    counted(&pair, MdOptions::EVENT_CT_ACK, 1);
    counted(&pair, MdOptions::EVENT_CT_ACK | MdOptions::EVENT_CT_BYTES, 24);
}

pub(crate) fn event_ct_bytes_counts_bytes_of_all_that_is_counted(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let all = MdOptions::EVENT_CT_SEND | MdOptions::EVENT_CT_REPLY | MdOptions::EVENT_CT_ACK;
    counted(&pair, all, 3);
    counted(&pair, all | MdOptions::EVENT_CT_BYTES, 64);
    counted(&pair, MdOptions::EVENT_CT_BYTES, 0);
}

pub(crate) fn event_success_disable_leaves_failures_to_be_told(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let options = MdOptions::EVENT_SUCCESS_DISABLE;
    assert_eq!(counted(&pair, options | MdOptions::EVENT_CT_ACK, 1), []);
    let source = Source::new(&pair.a, 64, options | MdOptions::EVENT_CT_ACK);
    let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, 24, id(&pair.b), 99) };
    pair.a.put(&put).unwrap();
    pair.failure(&pair.a, source.eq, EventKind::Ack);
    assert_eq!(pair.a.ct_get(source.ct).unwrap(), CtEvent { success: 0, failure: 1 });
}

pub(crate) fn event_send_disable_leaves_the_others_to_be_told(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let options = MdOptions::EVENT_SEND_DISABLE | MdOptions::EVENT_CT_SEND;
    assert_eq!(counted(&pair, options, 1), [EventKind::Ack, EventKind::Reply]);
}

pub(crate) fn unordered_and_unreliable_change_nothing(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let options = MdOptions::UNORDERED | MdOptions::UNRELIABLE | MdOptions::EVENT_CT_ACK;
    assert_eq!(counted(&pair, options, 1), [EventKind::Send, EventKind::Ack, EventKind::Reply]);
}

pub(crate) fn volatile_bytes_may_change_as_soon_as_the_call_returns(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let most = pair.a.limits().max_volatile_size;
    assert_eq!(most, 4096, "the node's eager bytes");
    let source = Source::new(&pair.a, most as usize + 1, MdOptions::VOLATILE);
    let count = 2000u64;
    let sink = Sink::new(&pair.b, count as usize * 8, PtOptions::empty());
    let ct = pair.b.ct_alloc().unwrap();
    let options = MeOptions::OP_PUT | MeOptions::EVENT_CT_COMM | MeOptions::EVENT_COMM_DISABLE;
    let me = Me { ct: Some(ct), ..sink.me(options) };
    pair.b.me_append(sink.pt, &me, ListKind::Priority, 0).unwrap();
    // None of them leaves before the two have met, most wait for room then, and a few for the window.
    for n in 0..count {
        source.memory.store_u64(0, n);
        let ack_req = if n % 3 == 0 { AckReq::Ct } else { AckReq::None };
        let put = Put { remote_offset: n * 8, ack_req, ..Put::new(source.md, 8, id(&pair.b), sink.pt) };
        match n % 2 {
            0 => pair.a.atomic(&put, AtomicOp::Sum, Datatype::U64).unwrap(),
            _ => pair.a.put(&put).unwrap(),
        }
    }
    pair.counted(&pair.b, ct, count);
    for n in 0..count {
        assert_eq!(sink.memory.load_u64(n as usize * 8), n, "message {n}");
    }
    let put = Put::new(source.md, most + 1, id(&pair.b), sink.pt);
    assert_eq!(code(pair.a.put(&put)), ReturnCode::ArgInvalid, "longer than max_volatile_size");
    let trigger = pair.a.ct_alloc().unwrap();
    assert_eq!(code(pair.a.triggered_put(&put, trigger, 1)), ReturnCode::ArgInvalid);
    pair.a.get(&Get::new(source.md, most + 1, id(&pair.b), sink.pt)).unwrap();
}

pub(crate) fn a_descriptor_is_in_use_while_its_operations_are_under_way(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 8192, MdOptions::EVENT_SEND_DISABLE);
    let sink = Sink::new(&pair.b, 8192, PtOptions::empty());
    sink.post(&pair.b, MeOptions::OP_PUT);
    // The target fetches it, which it can't before the two have met.
    let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, 8192, id(&pair.b), sink.pt) };
    pair.a.put(&put).unwrap();
    // The descriptor is in use until the event is queued, which can be at any moment here.
    match pair.a.md_release(source.md) {
        Ok(()) => {
            let event = pair.a.eq_get(source.eq).unwrap().expect("released before its acknowledgement came");
            assert_eq!(event.event.kind, EventKind::Ack);
        }
        early => {
            assert_eq!(code(early), ReturnCode::InUse);
            pair.event(&pair.a, source.eq, EventKind::Ack);
            pair.a.md_release(source.md).unwrap();
        }
    }
    assert_eq!(sink.memory.to_vec(), pattern(8192));
    assert_eq!(code(pair.a.md_release(source.md)), ReturnCode::ArgInvalid, "it is gone");
    assert_eq!(code(pair.a.put(&put)), ReturnCode::ArgInvalid, "it is gone");
}

pub(crate) fn memory_lives_as_long_as_a_descriptor_needs_it(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let sink = Sink::new(&pair.b, 8192, PtOptions::empty());
    sink.post(&pair.b, MeOptions::OP_PUT);
    let eq = pair.a.eq_alloc(8).unwrap();
    let memory = pair.a.alloc(8192).unwrap();
    memory.write_at(0, &pattern(8192));
    let md = pair.a.md_bind(&Md { eq: Some(eq), ..Md::new(memory) }).unwrap();
    for _ in 0..3 {
        pair.a.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8192, id(&pair.b), sink.pt) }).unwrap();
        pair.event(&pair.b, sink.eq, EventKind::Put);
        assert_eq!(sink.memory.to_vec(), pattern(8192));
        sink.memory.write_at(0, &[0; 8192]);
    }
}

pub(crate) fn bytes_that_a_descriptor_does_not_have_are_refused(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 64, MdOptions::empty());
    let put = Put::new(source.md, 64, id(&pair.b), 0);
    for (local_offset, length) in [(0, 65), (1, 64), (64, 1), (65, 0), (u64::MAX, 2), (0, u64::MAX)] {
        let put = Put { local_offset, length, ..put };
        let error = pair.a.put(&put).unwrap_err();
        assert_eq!((error.code(), error.call()), (ReturnCode::ArgInvalid, "PtlPut"), "{error}");
        let get = Get { local_offset, length, ..Get::new(source.md, 0, id(&pair.b), 0) };
        assert_eq!(code(pair.a.get(&get)), ReturnCode::ArgInvalid);
        let fetch = Fetch {
            local_get_offset: local_offset,
            length,
            ..Fetch::new(source.md, source.md, 0, id(&pair.b), 0)
        };
        assert_eq!(code(pair.a.fetch_atomic(&fetch, AtomicOp::Sum, Datatype::U8)), ReturnCode::ArgInvalid);
    }
    pair.a.put(&Put { local_offset: 64, length: 0, ..put }).unwrap();
}
