//! Portals: each option by its name, and flow control.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use portals::trace::{Step, Trace};
use portals::v4::{
    AckReq, EventKind, Limits, ListKind, MdOptions, Me, MeOptions, NiFail, PtOptions, Put, ReturnCode,
    StatusRegister,
};

use crate::bed::{Bed, MATCHING, Pair, Sink, Source, code, id, pattern};

fn send(pair: &Pair, source: &Source, pt: u32, length: u64) -> NiFail {
    let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, length, id(&pair.b), pt) };
    pair.a.put(&put).unwrap();
    pair.got(&pair.a, source.eq).event.ni_fail_type
}
fn source(pair: &Pair) -> Source {
    Source::new(&pair.a, 64, MdOptions::EVENT_SEND_DISABLE)
}

pub(crate) fn a_portal_is_allocated_where_it_is_wanted(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let none = PtOptions::empty();
    assert_eq!(pair.a.pt_alloc(none, None, Some(1)).unwrap(), 1);
    assert_eq!(code(pair.a.pt_alloc(none, None, Some(1))), ReturnCode::PtInUse);
    assert_eq!(pair.a.pt_alloc(none, None, None).unwrap(), 0);
    assert_eq!(pair.a.pt_alloc(none, None, None).unwrap(), 2);
    pair.a.pt_free(1).unwrap();
    assert_eq!(pair.a.pt_alloc(none, None, None).unwrap(), 1);
    for bad in [3, 255, 256, u32::MAX] {
        let refused = [pair.a.pt_free(bad), pair.a.pt_enable(bad), pair.a.pt_disable(bad)].map(code);
        assert_eq!(refused, [ReturnCode::ArgInvalid; 3], "{bad}");
    }
    assert_eq!(code(pair.a.pt_alloc(PtOptions::FLOWCTRL, None, None)), ReturnCode::PtEqNeeded);
}

pub(crate) fn a_disabled_portal_takes_nothing_until_it_is_enabled(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink) = (source(&pair), Sink::new(&pair.b, 64, PtOptions::empty()));
    sink.post(&pair.b, MeOptions::OP_PUT);
    pair.b.pt_disable(sink.pt).unwrap();
    assert_eq!(send(&pair, &source, sink.pt, 8), NiFail::PtDisabled);
    pair.settled(&[(&pair.b, sink.eq)]);
    pair.b.pt_enable(sink.pt).unwrap();
    assert_eq!(send(&pair, &source, sink.pt, 8), NiFail::Ok);
    pair.event(&pair.b, sink.eq, EventKind::Put);
    pair.status(&pair.b, StatusRegister::DropCount, 1);
}

pub(crate) fn alloc_disabled_begins_disabled(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink) = (source(&pair), Sink::new(&pair.b, 64, PtOptions::ALLOC_DISABLED));
    sink.post(&pair.b, MeOptions::OP_PUT);
    assert_eq!(send(&pair, &source, sink.pt, 8), NiFail::PtDisabled);
    pair.b.pt_enable(sink.pt).unwrap();
    assert_eq!(send(&pair, &source, sink.pt, 8), NiFail::Ok);
}

pub(crate) fn disabling_waits_for_what_is_under_way(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let most = 4 << 20;
    let source = Source::new(&pair.a, most, MdOptions::EVENT_SEND_DISABLE);
    let sink = Sink::new(&pair.b, most, PtOptions::empty());
    sink.post(&pair.b, MeOptions::OP_PUT);
    let came = Arc::new(AtomicBool::new(false));
    let tells = came.clone();
    pair.b.set_trace(Some(Trace::new(move |step| {
        if matches!(step, Step::Came(_)) {
            tells.store(true, Ordering::SeqCst);
        }
    })));
    let _pump = pair.pump();
    for _ in 0..4 {
        let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, most as u64, id(&pair.b), sink.pt) };
        pair.a.put(&put).unwrap();
        pair.until("the message", || came.swap(false, Ordering::SeqCst).then_some(()));
        pair.b.pt_disable(sink.pt).unwrap();
        let got = pair.b.eq_get(sink.eq).unwrap().expect("what it took is done");
        assert_eq!((got.event.kind, got.event.mlength), (EventKind::Put, most as u64));
        assert!(sink.memory.to_vec() == pattern(most));
        assert_eq!(pair.got(&pair.a, source.eq).event.ni_fail_type, NiFail::Ok);
        pair.b.pt_enable(sink.pt).unwrap();
    }
}

/// MPI libraries give these hints, and append blocks for what is unexpected to the same portal.
pub(crate) fn only_use_once_and_only_truncate_are_hints(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink) =
        (source(&pair), Sink::new(&pair.b, 64, PtOptions::ONLY_USE_ONCE | PtOptions::ONLY_TRUNCATE));
    let block = MeOptions::OP_PUT | MeOptions::MANAGE_LOCAL | MeOptions::NO_TRUNCATE;
    for list in [ListKind::Overflow, ListKind::Priority] {
        pair.b.me_append(sink.pt, &sink.me(block), list, 0).unwrap();
        for _ in 0..2 {
            assert_eq!(send(&pair, &source, sink.pt, 8), NiFail::Ok);
        }
    }
}

pub(crate) fn match_unordered_keeps_the_order_all_the_same(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink) = (source(&pair), Sink::new(&pair.b, 64, PtOptions::MATCH_UNORDERED));
    for user_ptr in 0..4 {
        let me = sink.me(MeOptions::OP_PUT | MeOptions::USE_ONCE | MeOptions::EVENT_UNLINK_DISABLE);
        pair.b.me_append(sink.pt, &me, ListKind::Priority, user_ptr).unwrap();
    }
    for user_ptr in 0..4 {
        assert_eq!(send(&pair, &source, sink.pt, 8), NiFail::Ok);
        assert_eq!(pair.event(&pair.b, sink.eq, EventKind::Put).user_ptr, user_ptr);
    }
}

/// The portal was disabled by a message, says so once, and is enabled again after `mend`.
fn flow(pair: &Pair, source: &Source, sink: &Sink, mend: impl FnOnce()) {
    assert_eq!(send(pair, source, sink.pt, 8), NiFail::PtDisabled, "the one that finds no room");
    assert_eq!(send(pair, source, sink.pt, 8), NiFail::PtDisabled, "and all behind it");
    let got = pair.until("PT_DISABLED", || {
        pair.b.eq_get(sink.eq).unwrap().filter(|got| got.event.kind == EventKind::PtDisabled)
    });
    assert_eq!((got.event.pt_index, got.event.ni_fail_type), (sink.pt, NiFail::PtDisabled));
    assert!(!got.dropped, "nothing was lost");
    pair.settled(&[(&pair.b, sink.eq)]);
    mend();
    pair.b.pt_enable(sink.pt).unwrap();
    assert_eq!(send(pair, source, sink.pt, 64), NiFail::Ok);
    assert_eq!(sink.memory.to_vec(), pattern(64));
}

pub(crate) fn flowctrl_disables_where_no_entry_matches(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink) = (source(&pair), Sink::new(&pair.b, 64, PtOptions::FLOWCTRL));
    flow(&pair, &source, &sink, || {
        sink.post(&pair.b, MeOptions::OP_PUT);
    });
    // A second time, and a third.
    for _ in 0..2 {
        pair.event(&pair.b, sink.eq, EventKind::Put);
        let put = Put { match_bits: 1, ack_req: AckReq::Ack, ..Put::new(source.md, 8, id(&pair.b), sink.pt) };
        pair.a.put(&put).unwrap();
        assert_eq!(pair.got(&pair.a, source.eq).event.ni_fail_type, NiFail::PtDisabled);
        assert_eq!(pair.got(&pair.b, sink.eq).event.kind, EventKind::PtDisabled);
        pair.b.pt_enable(sink.pt).unwrap();
        assert_eq!(send(&pair, &source, sink.pt, 8), NiFail::Ok);
    }
}

pub(crate) fn flowctrl_disables_where_headers_run_out(bed: &Bed) {
    let limits = Limits { max_unexpected_headers: 2, ..Limits::default() };
    let pair = bed.pair_with(MATCHING, &limits, |_, options| options);
    let (source, sink) = (source(&pair), Sink::new(&pair.b, 64, PtOptions::FLOWCTRL));
    sink.post_overflow(&pair.b, MeOptions::OP_PUT | MeOptions::EVENT_COMM_DISABLE);
    for _ in 0..2 {
        assert_eq!(send(&pair, &source, sink.pt, 8), NiFail::Ok);
    }
    flow(&pair, &source, &sink, || {
        let me = sink.me(MeOptions::OP_PUT | MeOptions::EVENT_OVER_DISABLE);
        pair.b.me_append(sink.pt, &me, ListKind::Priority, 0).unwrap();
    });
}

pub(crate) fn headers_that_run_out_without_flow_control_drop_the_message(bed: &Bed) {
    let limits = Limits { max_unexpected_headers: 2, ..Limits::default() };
    let pair = bed.pair_with(MATCHING, &limits, |_, options| options);
    let (source, sink) = (source(&pair), Sink::new(&pair.b, 64, PtOptions::empty()));
    sink.post_overflow(&pair.b, MeOptions::OP_PUT | MeOptions::EVENT_COMM_DISABLE);
    let ends = [(); 4].map(|()| send(&pair, &source, sink.pt, 8));
    assert_eq!(ends, [NiFail::Ok, NiFail::Ok, NiFail::Dropped, NiFail::Dropped]);
    pair.status(&pair.b, StatusRegister::DropCount, 2);
}

pub(crate) fn flowctrl_disables_where_the_event_queue_is_full(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = source(&pair);
    let eq = pair.b.eq_alloc(4).unwrap();
    let pt = pair.b.pt_alloc(PtOptions::FLOWCTRL, Some(eq), None).unwrap();
    let sink = Sink { eq, pt, memory: pair.b.alloc(64).unwrap() };
    sink.post(&pair.b, MeOptions::OP_PUT);
    let mut taken = 0;
    while send(&pair, &source, pt, 8) == NiFail::Ok {
        taken += 1;
        assert!(taken < 10, "the queue has four places");
    }
    assert!(taken >= 3, "{taken} were taken");
    for _ in 0..taken {
        pair.event(&pair.b, eq, EventKind::Put);
    }
    let got = pair.got(&pair.b, eq);
    assert_eq!((got.event.kind, got.dropped), (EventKind::PtDisabled, false));
    pair.b.pt_enable(pt).unwrap();
    assert_eq!(send(&pair, &source, pt, 8), NiFail::Ok);
}

pub(crate) fn event_flowctrl_disable_leaves_pt_disabled_out(bed: &Bed) {
    let limits = Limits { max_unexpected_headers: 1, ..Limits::default() };
    let pair = bed.pair_with(MATCHING, &limits, |_, options| options);
    let (source, sink) = (source(&pair), Sink::new(&pair.b, 64, PtOptions::FLOWCTRL));
    let quiet = MeOptions::EVENT_COMM_DISABLE | MeOptions::EVENT_FLOWCTRL_DISABLE;
    sink.post_overflow(&pair.b, MeOptions::OP_PUT | quiet);
    let ends = [(); 3].map(|()| send(&pair, &source, sink.pt, 8));
    assert_eq!(ends, [NiFail::Ok, NiFail::PtDisabled, NiFail::PtDisabled]);
    pair.settled(&[(&pair.b, sink.eq)]);
}

pub(crate) fn a_long_message_to_a_full_portal_is_refused_whole(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 100_000, MdOptions::EVENT_SEND_DISABLE);
    let sink = Sink::new(&pair.b, 100_000, PtOptions::FLOWCTRL);
    assert_eq!(send(&pair, &source, sink.pt, 100_000), NiFail::PtDisabled);
    assert!(sink.memory.to_vec().iter().all(|&b| b == 0));
    pair.b.pt_enable(sink.pt).unwrap();
    let me: Me = sink.me(MeOptions::OP_PUT);
    pair.b.me_append(sink.pt, &me, ListKind::Priority, 0).unwrap();
    assert_eq!(send(&pair, &source, sink.pt, 100_000), NiFail::Ok);
    assert_eq!(sink.memory.to_vec(), pattern(100_000));
}
