//! Entries: each option by its name, unlinking and searching.

use portals::v4::{
    AckReq, AtomicOp, CtEvent, Datatype, EventKind, Fetch, Get, Le, LeOptions, ListKind, Md, MdOptions, Me,
    MeOptions, NiFail, Nid, PtOptions, Put, ReturnCode, SearchOp, Source as From, StatusRegister,
};

use crate::bed::{Bed, LIST, MATCHING, Pair, Sink, Source, code, id, pattern};

/// A pair with a source of 64 bytes and a sink of `room`.
fn sides(bed: &Bed, room: usize) -> (Pair, Source, Sink) {
    let pair = bed.pair(MATCHING);
    let (source, sink) = (
        Source::new(&pair.a, 64, MdOptions::EVENT_SEND_DISABLE),
        Sink::new(&pair.b, room, PtOptions::empty()),
    );
    (pair, source, sink)
}
/// Sends so many bytes and waits until the target has looked at them; how that ended.
fn send(pair: &Pair, source: &Source, sink: &Sink, length: u64, match_bits: u64) -> NiFail {
    let put = Put { match_bits, ack_req: AckReq::Ack, ..Put::new(source.md, length, id(&pair.b), sink.pt) };
    pair.a.put(&put).unwrap();
    pair.got(&pair.a, source.eq).event.ni_fail_type
}
/// The kinds of what is in the target's queue.
fn kinds(pair: &Pair, sink: &Sink) -> Vec<EventKind> {
    pair.settled(&[]);
    std::iter::from_fn(|| pair.b.eq_get(sink.eq).unwrap()).map(|got| got.event.kind).collect()
}

pub(crate) fn op_put_and_op_get_are_rights(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    let entry = sink.post(&pair.b, MeOptions::empty());
    assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::OpViolation);
    pair.b.me_unlink(entry).unwrap();
    let entry = sink.post(&pair.b, MeOptions::OP_GET);
    assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::OpViolation);
    pair.a.get(&Get::new(source.md, 8, id(&pair.b), sink.pt)).unwrap();
    pair.event(&pair.a, source.eq, EventKind::Reply);
    pair.b.me_unlink(entry).unwrap();
    sink.post(&pair.b, MeOptions::OP_PUT);
    assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::Ok);
    pair.a.get(&Get::new(source.md, 8, id(&pair.b), sink.pt)).unwrap();
    assert_eq!(pair.failure(&pair.a, source.eq, EventKind::Reply).ni_fail_type, NiFail::OpViolation);
    assert_eq!(kinds(&pair, &sink), [EventKind::Get, EventKind::Put]);
}

pub(crate) fn use_once_uses_the_entry_up(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    let entry = sink.post(&pair.b, MeOptions::OP_PUT | MeOptions::USE_ONCE);
    assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::Ok);
    assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::Dropped);
    assert_eq!(kinds(&pair, &sink), [EventKind::Put, EventKind::AutoUnlink]);
    assert_eq!(code(pair.b.me_unlink(entry)), ReturnCode::ArgInvalid, "it is gone");
}

pub(crate) fn match_bits_and_ignore_bits_choose_the_entry(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    for (n, match_bits, ignore_bits) in [(1, 0x10, 0), (2, 0x20, 0x0f), (3, 0, u64::MAX)] {
        let me = Me { match_bits, ignore_bits, ..sink.me(MeOptions::OP_PUT) };
        pair.b.me_append(sink.pt, &me, ListKind::Priority, n).unwrap();
    }
    for (match_bits, wanted) in [(0x10, 1), (0x11, 3), (0x25, 2), (0x20, 2), (0x30, 3), (1 << 63 | 0x10, 3)] {
        assert_eq!(send(&pair, &source, &sink, 8, match_bits), NiFail::Ok);
        let event = pair.event(&pair.b, sink.eq, EventKind::Put);
        assert_eq!((event.user_ptr, event.match_bits), (wanted, match_bits));
    }
}

pub(crate) fn match_id_chooses_the_initiator(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    let (a, b) = (id(&pair.a), id(&pair.b));
    // Both may be at one address, which is one node then.
    let elsewhere = Nid(a.nid().0 ^ 1 << 31);
    for (n, match_id) in [
        (1, From::exactly(b)),
        (2, From::physical(Some(elsewhere), None)),
        (3, From::physical(Some(a.nid()), Some(a.pid()))),
    ] {
        let me = Me { match_id, ..sink.me(MeOptions::OP_PUT) };
        pair.b.me_append(sink.pt, &me, ListKind::Priority, n).unwrap();
    }
    assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::Ok);
    assert_eq!(pair.event(&pair.b, sink.eq, EventKind::Put).user_ptr, 3);
    let local = Source::new(&pair.b, 8, MdOptions::empty());
    pair.b.put(&Put::new(local.md, 8, b, sink.pt)).unwrap();
    assert_eq!(pair.event(&pair.b, sink.eq, EventKind::Put).user_ptr, 1);
}

pub(crate) fn manage_local_appends_messages_and_min_free_ends_it(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    let me = Me { min_free: 20, ..sink.me(MeOptions::OP_PUT | MeOptions::MANAGE_LOCAL) };
    pair.b.me_append(sink.pt, &me, ListKind::Priority, 0).unwrap();
    for (length, at) in [(10, 0), (20, 10), (14, 30), (24, 44)] {
        let put = Put {
            remote_offset: 3,
            ack_req: AckReq::Ack,
            ..Put::new(source.md, length, id(&pair.b), sink.pt)
        };
        pair.a.put(&put).unwrap();
        let event = pair.event(&pair.b, sink.eq, EventKind::Put);
        assert_eq!((event.start - sink.memory.addr(), event.remote_offset), (at, 3));
        assert_eq!(event.mlength, length.min(64 - at));
        let ack = pair.event(&pair.a, source.eq, EventKind::Ack);
        assert_eq!(ack.remote_offset, at, "the offset that was used");
        assert_eq!(
            sink.memory.to_vec()[at as usize..][..event.mlength as usize],
            pattern(64)[..event.mlength as usize]
        );
    }
    assert_eq!(kinds(&pair, &sink), [EventKind::AutoUnlink]);
    assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::Dropped);
}

pub(crate) fn may_align_begins_messages_at_multiples_of_16(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    sink.post(&pair.b, MeOptions::OP_PUT | MeOptions::MANAGE_LOCAL | MeOptions::MAY_ALIGN);
    for (length, at) in [(5, 0), (5, 16), (30, 32), (2, 62)] {
        assert_eq!(send(&pair, &source, &sink, length, 0), NiFail::Ok);
        assert_eq!(pair.event(&pair.b, sink.eq, EventKind::Put).start - sink.memory.addr(), at);
    }
}

pub(crate) fn no_truncate_passes_on_what_does_not_fit(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    let short =
        Me { memory: sink.memory.slice(..16).into(), ..sink.me(MeOptions::OP_PUT | MeOptions::NO_TRUNCATE) };
    pair.b.me_append(sink.pt, &short, ListKind::Priority, 1).unwrap();
    assert_eq!(send(&pair, &source, &sink, 17, 0), NiFail::Dropped);
    pair.b.me_append(sink.pt, &sink.me(MeOptions::OP_PUT), ListKind::Priority, 2).unwrap();
    for (length, wanted) in [(16, 1), (17, 2)] {
        assert_eq!(send(&pair, &source, &sink, length, 0), NiFail::Ok);
        assert_eq!(pair.event(&pair.b, sink.eq, EventKind::Put).user_ptr, wanted);
    }
}

pub(crate) fn is_accessible_changes_nothing(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    sink.post(&pair.b, MeOptions::OP_PUT | MeOptions::IS_ACCESSIBLE);
    assert_eq!(send(&pair, &source, &sink, 64, 0), NiFail::Ok);
    assert_eq!(kinds(&pair, &sink), [EventKind::Put]);
}

pub(crate) fn event_link_disable_leaves_link_out(bed: &Bed) {
    let (pair, _, sink) = sides(bed, 64);
    let me = Me { options: MeOptions::OP_PUT, ..sink.me(MeOptions::empty()) };
    for (list, user_ptr) in [(ListKind::Priority, 1), (ListKind::Overflow, 2)] {
        pair.b.me_append(sink.pt, &me, list, user_ptr).unwrap();
        let event = pair.event(&pair.b, sink.eq, EventKind::Link);
        assert_eq!((event.user_ptr, event.ptl_list, event.pt_index), (user_ptr, list, sink.pt));
        sink.post(&pair.b, MeOptions::OP_PUT);
    }
    assert_eq!(kinds(&pair, &sink), []);
}

pub(crate) fn event_comm_disable_leaves_operations_out(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    sink.post(&pair.b, MeOptions::OP_PUT | MeOptions::EVENT_COMM_DISABLE | MeOptions::USE_ONCE);
    assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::Ok);
    assert_eq!(kinds(&pair, &sink), [EventKind::AutoUnlink]);
}

pub(crate) fn event_success_disable_leaves_what_ended_well_out(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    let ct = pair.b.ct_alloc().unwrap();
    let options = MeOptions::OP_PUT | MeOptions::EVENT_SUCCESS_DISABLE | MeOptions::EVENT_CT_COMM;
    let me = Me { ct: Some(ct), ..sink.me(options) };
    pair.b.me_append(sink.pt, &me, ListKind::Priority, 0).unwrap();
    assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::Ok);
    assert_eq!(kinds(&pair, &sink), []);
    assert_eq!(pair.b.ct_get(ct).unwrap().success, 1);
}

pub(crate) fn event_unlink_disable_leaves_auto_unlink_and_auto_free_out(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    let options = MeOptions::OP_PUT | MeOptions::USE_ONCE;
    for (more, wanted) in [
        (
            MeOptions::empty(),
            vec![EventKind::Put, EventKind::AutoUnlink, EventKind::PutOverflow, EventKind::AutoFree],
        ),
        (MeOptions::EVENT_UNLINK_DISABLE, vec![EventKind::Put, EventKind::PutOverflow]),
    ] {
        sink.post_overflow(&pair.b, options | more);
        assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::Ok);
        sink.post(&pair.b, options | MeOptions::EVENT_UNLINK_DISABLE);
        assert_eq!(kinds(&pair, &sink), wanted);
    }
}

pub(crate) fn event_over_disable_leaves_overflow_events_and_searches_out(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    sink.post_overflow(&pair.b, MeOptions::OP_PUT | MeOptions::EVENT_COMM_DISABLE);
    for options in [MeOptions::EVENT_OVER_DISABLE, MeOptions::empty()] {
        assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::Ok);
        let me = sink.me(MeOptions::OP_PUT | MeOptions::USE_ONCE | MeOptions::EVENT_UNLINK_DISABLE | options);
        pair.b.me_search(sink.pt, &me, SearchOp::Only, 0).unwrap();
        pair.b.me_append(sink.pt, &me, ListKind::Priority, 0).unwrap();
        let wanted = match options.is_empty() {
            true => vec![EventKind::Search, EventKind::PutOverflow],
            false => vec![],
        };
        assert_eq!(kinds(&pair, &sink), wanted);
    }
}

pub(crate) fn event_ct_comm_overflow_and_bytes_count(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    for (options, comm, overflow) in [
        (MeOptions::EVENT_CT_COMM, 1, 0),
        (MeOptions::EVENT_CT_OVERFLOW, 0, 1),
        (MeOptions::EVENT_CT_COMM | MeOptions::EVENT_CT_BYTES, 24, 0),
        (MeOptions::EVENT_CT_OVERFLOW | MeOptions::EVENT_CT_BYTES, 0, 24),
        (MeOptions::EVENT_CT_BYTES, 0, 0),
    ] {
        let overflows = sink.post_overflow(&pair.b, MeOptions::OP_PUT);
        let once = MeOptions::OP_PUT | MeOptions::USE_ONCE;
        let ct = pair.b.ct_alloc().unwrap();
        let me = Me { ct: Some(ct), ..sink.me(once | options) };
        assert_eq!(send(&pair, &source, &sink, 24, 0), NiFail::Ok);
        pair.b.me_append(sink.pt, &me, ListKind::Priority, 0).unwrap();
        assert_eq!(pair.b.ct_get(ct).unwrap(), CtEvent { success: overflow, failure: 0 }, "{options:?}");
        pair.b.me_append(sink.pt, &me, ListKind::Priority, 0).unwrap();
        assert_eq!(send(&pair, &source, &sink, 24, 0), NiFail::Ok);
        let count = pair.counted(&pair.b, ct, comm + overflow);
        assert_eq!(count, CtEvent { success: comm + overflow, failure: 0 }, "{options:?}");
        pair.b.me_unlink(overflows).unwrap();
        pair.b.ct_free(ct).unwrap();
    }
}

pub(crate) fn a_message_to_the_overflow_list_waits_for_its_entry(bed: &Bed) {
    let (pair, _, sink) = sides(bed, 16_384);
    // Short ones, and some that are fetched.
    for len in [0, 24, 9000] {
        let source = Source::new(&pair.a, len, MdOptions::EVENT_SEND_DISABLE);
        let overflow = pair.b.me_append(sink.pt, &sink.me(MeOptions::OP_PUT), ListKind::Overflow, 7).unwrap();
        let put = Put { hdr_data: 5, match_bits: 0, ..Put::new(source.md, len as u64, id(&pair.b), sink.pt) };
        pair.a.put(&put).unwrap();
        let put = pair.event(&pair.b, sink.eq, EventKind::Put);
        assert_eq!((put.ptl_list, put.user_ptr), (ListKind::Overflow, 7));
        assert_eq!(code(pair.b.me_unlink(overflow)), ReturnCode::InUse, "a header waits");
        let me = sink.me(MeOptions::OP_PUT | MeOptions::USE_ONCE);
        pair.b.me_append(sink.pt, &me, ListKind::Priority, 8).unwrap();
        let found = pair.event(&pair.b, sink.eq, EventKind::PutOverflow);
        assert_eq!((found.user_ptr, found.hdr_data, found.mlength), (8, 5, len as u64));
        assert_eq!((found.start, found.ptl_list), (put.start, ListKind::Overflow));
        assert_eq!(sink.memory.to_vec()[..len], pattern(len));
        pair.event(&pair.b, sink.eq, EventKind::AutoUnlink);
        pair.b.me_unlink(overflow).unwrap();
    }
}

pub(crate) fn unexpected_hdr_disable_forgets_messages(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    sink.post_overflow(&pair.b, MeOptions::OP_PUT | MeOptions::UNEXPECTED_HDR_DISABLE);
    assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::Ok);
    pair.b.me_search(sink.pt, &sink.me(MeOptions::empty()), SearchOp::Only, 0).unwrap();
    pair.event(&pair.b, sink.eq, EventKind::Put);
    assert_eq!(pair.failure(&pair.b, sink.eq, EventKind::Search).ni_fail_type, NiFail::NoMatch);
}

pub(crate) fn local_inc_uh_rlength_counts_headers_that_waited(bed: &Bed) {
    for (more, at) in [(MeOptions::LOCAL_INC_UH_RLENGTH, 40), (MeOptions::empty(), 0)] {
        let (pair, source, sink) = sides(bed, 256);
        sink.post_overflow(&pair.b, MeOptions::OP_PUT | MeOptions::EVENT_COMM_DISABLE);
        for length in [10, 30] {
            assert_eq!(send(&pair, &source, &sink, length, 0), NiFail::Ok);
        }
        sink.post(&pair.b, MeOptions::OP_PUT | MeOptions::MANAGE_LOCAL | more);
        pair.event(&pair.b, sink.eq, EventKind::PutOverflow);
        pair.event(&pair.b, sink.eq, EventKind::PutOverflow);
        assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::Ok);
        let event = pair.event(&pair.b, sink.eq, EventKind::Put);
        assert_eq!(event.start - sink.memory.addr(), at, "{more:?}");
    }
}

pub(crate) fn search_only_leaves_what_it_finds(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    sink.post_overflow(&pair.b, MeOptions::OP_PUT | MeOptions::EVENT_COMM_DISABLE);
    let me = sink.me(MeOptions::USE_ONCE);
    pair.b.me_search(sink.pt, &me, SearchOp::Only, 1).unwrap();
    let event = pair.failure(&pair.b, sink.eq, EventKind::Search);
    assert_eq!((event.ni_fail_type, event.user_ptr), (NiFail::NoMatch, 1));
    assert_eq!(send(&pair, &source, &sink, 24, 0), NiFail::Ok);
    let ct = pair.b.ct_alloc().unwrap();
    let counting = Me { ct: Some(ct), options: me.options | MeOptions::EVENT_CT_OVERFLOW, ..me.clone() };
    for n in 1..4 {
        pair.b.me_search(sink.pt, &counting, SearchOp::Only, 2).unwrap();
        let event = pair.event(&pair.b, sink.eq, EventKind::Search);
        assert_eq!((event.user_ptr, event.mlength, event.initiator), (2, 24, id(&pair.a)));
        assert_eq!(pair.b.ct_get(ct).unwrap(), CtEvent { success: n, failure: 0 });
    }
    pair.b.me_search(sink.pt, &Me { match_bits: 9, ..me.clone() }, SearchOp::Only, 3).unwrap();
    pair.failure(&pair.b, sink.eq, EventKind::Search);
    // Searching counts nothing in the status registers.
    pair.status(&pair.b, StatusRegister::DropCount, 0);
}

pub(crate) fn a_persistent_search_finds_all_and_fails_only_on_nothing(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    sink.post_overflow(&pair.b, MeOptions::OP_PUT | MeOptions::EVENT_COMM_DISABLE);
    for length in [1, 2, 3] {
        assert_eq!(send(&pair, &source, &sink, length, 0), NiFail::Ok);
    }
    for (op, kind) in [(SearchOp::Only, EventKind::Search), (SearchOp::Delete, EventKind::PutOverflow)] {
        pair.b.me_search(sink.pt, &sink.me(MeOptions::empty()), op, 0).unwrap();
        for length in [1, 2, 3] {
            assert_eq!(pair.event(&pair.b, sink.eq, kind).mlength, length, "oldest first");
        }
        assert_eq!(kinds(&pair, &sink), [], "{op:?}: nothing follows the matches");
    }
    for op in [SearchOp::Only, SearchOp::Delete] {
        pair.b.me_search(sink.pt, &sink.me(MeOptions::empty()), op, 0).unwrap();
        assert_eq!(pair.failure(&pair.b, sink.eq, EventKind::Search).ni_fail_type, NiFail::NoMatch);
    }
}

pub(crate) fn search_delete_takes_what_it_finds(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    let overflow = sink.post_overflow(&pair.b, MeOptions::OP_PUT | MeOptions::EVENT_COMM_DISABLE);
    for length in [24, 25] {
        assert_eq!(send(&pair, &source, &sink, length, 0), NiFail::Ok);
    }
    let ct = pair.b.ct_alloc().unwrap();
    let me = Me { ct: Some(ct), ..sink.me(MeOptions::USE_ONCE | MeOptions::EVENT_CT_OVERFLOW) };
    for (n, length) in [(1, 24), (2, 25)] {
        pair.b.me_search(sink.pt, &me, SearchOp::Delete, 0).unwrap();
        assert_eq!(pair.event(&pair.b, sink.eq, EventKind::PutOverflow).mlength, length);
        assert_eq!(pair.b.ct_get(ct).unwrap(), CtEvent { success: n, failure: 0 });
    }
    pair.b.me_search(sink.pt, &me, SearchOp::Delete, 0).unwrap();
    pair.failure(&pair.b, sink.eq, EventKind::Search);
    assert_eq!(pair.b.ct_get(ct).unwrap(), CtEvent { success: 2, failure: 1 });
    pair.b.me_unlink(overflow).unwrap();
}

pub(crate) fn unlink_takes_an_entry_off_its_list(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    let (first, second) = (sink.post(&pair.b, MeOptions::OP_PUT), sink.post(&pair.b, MeOptions::OP_PUT));
    assert_eq!(code(pair.b.pt_free(sink.pt)), ReturnCode::InUse);
    assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::Ok);
    pair.b.me_unlink(first).unwrap();
    assert_eq!(code(pair.b.me_unlink(first)), ReturnCode::ArgInvalid);
    assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::Ok);
    pair.b.me_unlink(second).unwrap();
    assert_eq!(send(&pair, &source, &sink, 8, 0), NiFail::Dropped);
    assert_eq!(kinds(&pair, &sink), [EventKind::Put, EventKind::Put], "nothing tells of an unlink");
    pair.b.pt_free(sink.pt).unwrap();
    assert_eq!(code(pair.b.pt_free(sink.pt)), ReturnCode::ArgInvalid);
}

pub(crate) fn unlinking_races_with_messages_without_harm(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 16_384);
    let long = Source::new(&pair.a, 16_384, MdOptions::EVENT_SEND_DISABLE);
    for n in 0..200u64 {
        let entry = sink.post(&pair.b, MeOptions::OP_PUT | MeOptions::EVENT_COMM_DISABLE);
        let of = if n % 2 == 0 { &source } else { &long };
        let length = if n % 2 == 0 { 8 } else { 16_384 };
        let put = Put { ack_req: AckReq::Ack, ..Put::new(of.md, length, id(&pair.b), sink.pt) };
        pair.a.put(&put).unwrap();
        for _ in 0..n % 5 {
            pair.b.node().progress();
            pair.a.node().progress();
        }
        pair.until("an unlink", || match pair.b.me_unlink(entry) {
            Ok(()) => Some(()),
            Err(e) => {
                assert_eq!(e.code(), ReturnCode::InUse, "{e}");
                None
            }
        });
        let ack = pair.got(&pair.a, of.eq).event;
        assert!(matches!(ack.ni_fail_type, NiFail::Ok | NiFail::Dropped), "{ack:?}");
    }
}

pub(crate) fn list_entries_have_the_options_of_match_entries(bed: &Bed) {
    let pair = bed.pair(LIST);
    let source = Source::new(&pair.a, 64, MdOptions::EVENT_SEND_DISABLE);
    let sink = Sink::new(&pair.b, 64, PtOptions::empty());
    let ct = pair.b.ct_alloc().unwrap();
    let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, 24, id(&pair.b), sink.pt) };
    let le = |options| Le { options, ct: Some(ct), ..Le::new(&sink.memory) };
    // Linked, used once, counted in bytes.
    let options =
        LeOptions::OP_PUT | LeOptions::USE_ONCE | LeOptions::EVENT_CT_COMM | LeOptions::EVENT_CT_BYTES;
    pair.b.le_append(sink.pt, &le(options), ListKind::Priority, 4).unwrap();
    pair.event(&pair.b, sink.eq, EventKind::Link);
    pair.a.put(&put).unwrap();
    assert_eq!(pair.event(&pair.b, sink.eq, EventKind::Put).user_ptr, 4);
    pair.event(&pair.b, sink.eq, EventKind::AutoUnlink);
    assert_eq!(pair.b.ct_get(ct).unwrap().success, 24);
    pair.event(&pair.a, source.eq, EventKind::Ack);
    // Unexpected, searched for, found.
    let quiet = LeOptions::OP_PUT | LeOptions::EVENT_LINK_DISABLE | LeOptions::EVENT_COMM_DISABLE;
    let overflow = pair.b.le_append(sink.pt, &le(quiet), ListKind::Overflow, 0).unwrap();
    pair.a.put(&put).unwrap();
    pair.event(&pair.a, source.eq, EventKind::Ack);
    let once = le(LeOptions::OP_PUT | LeOptions::USE_ONCE | LeOptions::EVENT_UNLINK_DISABLE);
    pair.b.le_search(sink.pt, &once, SearchOp::Only, 5).unwrap();
    assert_eq!(pair.event(&pair.b, sink.eq, EventKind::Search).user_ptr, 5);
    assert_eq!(code(pair.b.le_unlink(overflow)), ReturnCode::InUse);
    pair.b.le_search(sink.pt, &once, SearchOp::Delete, 6).unwrap();
    assert_eq!(pair.event(&pair.b, sink.eq, EventKind::PutOverflow).user_ptr, 6);
    pair.a.put(&put).unwrap();
    pair.event(&pair.a, source.eq, EventKind::Ack);
    pair.b.le_append(sink.pt, &once, ListKind::Priority, 7).unwrap();
    assert_eq!(pair.event(&pair.b, sink.eq, EventKind::PutOverflow).user_ptr, 7);
    pair.b.le_unlink(overflow).unwrap();
    // Rights and users.
    let other = Le { uid: Some(portals::v4::Uid(pair.a.uid().0 + 1)), ..le(quiet) };
    let entry = pair.b.le_append(sink.pt, &other, ListKind::Priority, 0).unwrap();
    pair.a.put(&put).unwrap();
    assert_eq!(pair.failure(&pair.a, source.eq, EventKind::Ack).ni_fail_type, NiFail::PermViolation);
    pair.b.le_unlink(entry).unwrap();
    pair.settled(&[(&pair.b, sink.eq)]);
}

pub(crate) fn memory_that_is_only_read_here_is_sent(bed: &Bed) {
    // A descriptor of a part of an entry's memory that only gets are done on.
    let (pair, _, sink) = sides(bed, 64);
    let shared = pair.a.alloc(64).unwrap();
    shared.write_at(0, &pattern(64));
    let eq = pair.a.eq_alloc(8).unwrap();
    let md = pair.a.md_bind(&Md { eq: Some(eq), ..Md::new(shared.slice(16..)) }).unwrap();
    sink.post(&pair.b, MeOptions::OP_PUT);
    pair.a.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 48, id(&pair.b), sink.pt) }).unwrap();
    pair.event(&pair.b, sink.eq, EventKind::Put);
    assert_eq!(sink.memory.to_vec()[..48], pattern(64)[16..]);
    assert_eq!(shared.to_vec(), pattern(64));
}

pub(crate) fn gets_and_atomics_wait_on_the_overflow_list_too(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    let got = Source::new(&pair.a, 64, MdOptions::empty());
    sink.memory.write_at(0, &pattern(64));
    sink.post_overflow(&pair.b, MeOptions::OP_PUT | MeOptions::OP_GET);
    let put = Put::new(source.md, 8, id(&pair.b), sink.pt);
    let fetch = Fetch::new(got.md, source.md, 8, id(&pair.b), sink.pt);
    let (op, ty) = (AtomicOp::Sum, Datatype::U32);
    pair.a.get(&Get::new(got.md, 16, id(&pair.b), sink.pt)).unwrap();
    pair.a.atomic(&put, op, ty).unwrap();
    pair.a.fetch_atomic(&fetch, op, ty).unwrap();
    pair.a.swap(&fetch, &[], AtomicOp::Swap, ty).unwrap();
    for kind in [EventKind::Get, EventKind::Atomic, EventKind::FetchAtomic, EventKind::FetchAtomic] {
        assert_eq!(pair.event(&pair.b, sink.eq, kind).ptl_list, ListKind::Overflow);
    }
    let replies = [(); 3].map(|()| pair.event(&pair.a, got.eq, EventKind::Reply).mlength);
    assert_eq!(replies, [16, 8, 8]);
    sink.post(&pair.b, MeOptions::empty());
    for (kind, operation, mlength) in [
        (EventKind::GetOverflow, None, 16),
        (EventKind::AtomicOverflow, Some(op), 8),
        (EventKind::FetchAtomicOverflow, Some(op), 8),
        (EventKind::FetchAtomicOverflow, Some(AtomicOp::Swap), 8),
    ] {
        let event = pair.event(&pair.b, sink.eq, kind);
        assert_eq!((event.atomic_operation, event.mlength), (operation, mlength));
        assert_eq!((event.start, event.initiator), (sink.memory.addr(), id(&pair.a)));
    }
}

/// The initiator learns whether an entry waited for its message, and which bytes of its own a reply came to.
pub(crate) fn acknowledgements_and_replies_name_the_list(bed: &Bed) {
    let long = 9000;
    let (pair, source, sink) = sides(bed, 16_384);
    let most = Source::new(&pair.a, long, MdOptions::EVENT_SEND_DISABLE);
    let got = Source::new(&pair.a, 64, MdOptions::empty());
    let (target, op, ty) = (id(&pair.b), AtomicOp::Sum, Datatype::U32);
    let rights = MeOptions::OP_PUT | MeOptions::OP_GET | MeOptions::EVENT_COMM_DISABLE;
    for list in [ListKind::Overflow, ListKind::Priority] {
        pair.b.me_append(sink.pt, &sink.me(rights | MeOptions::EVENT_OVER_DISABLE), list, 0).unwrap();
        for (md, length, eq) in [(source.md, 8, source.eq), (most.md, long as u64, most.eq)] {
            let put = Put { ack_req: AckReq::Ack, ..Put::new(md, length, target, sink.pt) };
            pair.a.put(&put).unwrap();
            assert_eq!(pair.event(&pair.a, eq, EventKind::Ack).ptl_list, list, "a put of {length} bytes");
            pair.a.get(&Get { local_offset: 0, ..Get::new(md, length, target, sink.pt) }).unwrap();
            assert_eq!(pair.event(&pair.a, eq, EventKind::Reply).ptl_list, list, "a get of {length} bytes");
        }
        let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, 8, target, sink.pt) };
        pair.a.atomic(&put, op, ty).unwrap();
        assert_eq!(pair.event(&pair.a, source.eq, EventKind::Ack).ptl_list, list);
        let fetch = Fetch { local_get_offset: 24, ..Fetch::new(got.md, source.md, 8, target, sink.pt) };
        pair.a.fetch_atomic(&Fetch { local_put_offset: 16, ..fetch }, op, ty).unwrap();
        let reply = pair.event(&pair.a, got.eq, EventKind::Reply);
        assert_eq!((reply.ptl_list, reply.start - got.memory.addr()), (list, 24));
    }
}

pub(crate) fn searching_again_and_again_finds_what_comes(bed: &Bed) {
    let (pair, source, sink) = sides(bed, 64);
    sink.post_overflow(&pair.b, MeOptions::OP_PUT | MeOptions::EVENT_COMM_DISABLE);
    pair.a.put(&Put::new(source.md, 24, id(&pair.b), sink.pt)).unwrap();
    // The target's program does nothing but probe, and there is an event each time.
    let me = sink.me(MeOptions::USE_ONCE);
    let found = crate::bed::until(&[&pair.a], "a message", || {
        pair.b.me_search(sink.pt, &me, SearchOp::Only, 0).unwrap();
        pair.b.eq_get(sink.eq).unwrap().filter(|got| got.event.is_ok())
    });
    assert_eq!((found.event.kind, found.event.mlength), (EventKind::Search, 24));
}
