//! Event queues: order, overflow, waiting on several.

use std::time::{Duration, Instant};

use portals::v4::{EventKind, MdOptions, MeOptions, PtOptions, Put, ReturnCode};

use crate::bed::{Bed, MATCHING, Sink, Source, code, id};

pub(crate) fn a_full_queue_says_once_that_events_were_lost(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 8, MdOptions::empty());
    let eq = pair.b.eq_alloc(4).unwrap();
    let pt = pair.b.pt_alloc(PtOptions::empty(), Some(eq), None).unwrap();
    let sink = Sink { eq, pt, memory: pair.b.alloc(8).unwrap() };
    sink.post(&pair.b, MeOptions::OP_PUT);
    let put = |n| Put { hdr_data: n, ..Put::new(source.md, 8, id(&pair.b), pt) };
    (0..10).for_each(|n| pair.a.put(&put(n)).unwrap());
    pair.settled(&[]);
    for n in 6..10 {
        let got = pair.b.eq_get(eq).unwrap().expect("the newest are there");
        assert_eq!((got.event.hdr_data, got.dropped), (n, n == 6));
        assert_eq!(got.code(), if n == 6 { ReturnCode::EqDropped } else { ReturnCode::Ok });
    }
    assert_eq!(pair.b.eq_get(eq).unwrap(), None);
    pair.a.put(&put(10)).unwrap();
    let got = pair.got(&pair.b, eq);
    assert_eq!((got.event.hdr_data, got.dropped), (10, false), "it goes on");
}

pub(crate) fn waiting_on_several_says_which(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 8, MdOptions::empty());
    // More than a few, so that both ways to pass them are taken.
    for count in [3, 40] {
        let sinks: Vec<Sink> = (0..count).map(|_| Sink::new(&pair.b, 8, PtOptions::empty())).collect();
        let eqs: Vec<_> = sinks.iter().map(|sink| sink.eq).collect();
        let _pump = pair.pump();
        for (n, sink) in sinks.iter().enumerate().rev() {
            sink.post(&pair.b, MeOptions::OP_PUT);
            pair.a.put(&Put::new(source.md, 8, id(&pair.b), sink.pt)).unwrap();
            let (got, which) = pair.b.eq_poll(&eqs, None).unwrap().expect("it waits for ever");
            assert_eq!((got.event.kind, which), (EventKind::Put, n));
        }
        assert_eq!(pair.b.eq_poll(&eqs, Some(Duration::ZERO)).unwrap(), None);
    }
}

pub(crate) fn waiting_ends_with_its_time(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let eq = pair.a.eq_alloc(4).unwrap();
    for ms in [0, 1, 30] {
        let (began, timeout) = (Instant::now(), Duration::from_millis(ms));
        assert_eq!(pair.a.eq_poll(&[eq], Some(timeout)).unwrap(), None);
        assert!(began.elapsed() >= timeout);
    }
    assert_eq!(code(pair.a.eq_poll(&[], None)), ReturnCode::ArgInvalid);
}

pub(crate) fn eq_wait_waits_for_the_peer(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 8, MdOptions::empty());
    let sink = Sink::new(&pair.b, 8, PtOptions::empty());
    sink.post(&pair.b, MeOptions::OP_PUT);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pair.b.eq_wait(sink.eq).unwrap().event);
        pair.a.put(&Put { hdr_data: 5, ..Put::new(source.md, 8, id(&pair.b), sink.pt) }).unwrap();
        pair.a.eq_wait(source.eq).unwrap();
        assert_eq!(waits.join().unwrap().hdr_data, 5);
    });
}

pub(crate) fn a_queue_that_is_freed_is_gone(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 8, MdOptions::empty());
    let sink = Sink::new(&pair.b, 8, PtOptions::empty());
    sink.post(&pair.b, MeOptions::OP_PUT);
    pair.b.eq_free(sink.eq).unwrap();
    assert_eq!(code(pair.b.eq_free(sink.eq)), ReturnCode::ArgInvalid);
    assert_eq!(code(pair.b.eq_get(sink.eq)), ReturnCode::ArgInvalid);
    assert_eq!(code(pair.b.eq_wait(sink.eq)), ReturnCode::ArgInvalid);
    let place = pair.b.eq_alloc(64).unwrap();
    assert_ne!(place, sink.eq, "its place has another handle");
    // What would have gone to it is lost, and harms nobody.
    pair.a.put(&Put::new(source.md, 8, id(&pair.b), sink.pt)).unwrap();
    pair.settled(&[(&pair.b, place)]);
}

pub(crate) fn who_waits_on_a_queue_that_is_freed_is_told(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let eq = pair.a.eq_alloc(4).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| code(pair.a.eq_wait(eq)));
        pair.a.eq_free(eq).unwrap();
        assert_eq!(waits.join().unwrap(), ReturnCode::ArgInvalid);
    });
}

pub(crate) fn a_queue_beyond_what_there_is_room_for_is_refused(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    assert_eq!(code(pair.a.eq_alloc(u32::MAX)), ReturnCode::NoSpace);
    let eq = pair.a.eq_alloc(0).unwrap();
    assert_eq!(pair.a.eq_get(eq).unwrap(), None);
}
