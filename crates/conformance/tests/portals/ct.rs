//! Counting events.

use std::time::{Duration, Instant};

use portals::v4::{AckReq, CtEvent, ListKind, MdOptions, Me, MeOptions, PtOptions, Put, ReturnCode};

use crate::bed::{Bed, MATCHING, Sink, Source, code, id};

const fn success(success: u64) -> CtEvent {
    CtEvent { success, failure: 0 }
}
const fn failure(failure: u64) -> CtEvent {
    CtEvent { success: 0, failure }
}

pub(crate) fn a_count_is_set_and_incremented(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let ct = pair.a.ct_alloc().unwrap();
    assert_eq!(pair.a.ct_get(ct).unwrap(), success(0));
    pair.a.ct_inc(ct, success(3)).unwrap();
    pair.a.ct_inc(ct, failure(2)).unwrap();
    assert_eq!(pair.a.ct_get(ct).unwrap(), CtEvent { success: 3, failure: 2 });
    let both = CtEvent { success: 1, failure: 1 };
    assert_eq!(code(pair.a.ct_inc(ct, both)), ReturnCode::ArgInvalid);
    pair.a.ct_set(ct, both).unwrap();
    assert_eq!(pair.a.ct_get(ct).unwrap(), both);
    pair.a.ct_inc(ct, success(u64::MAX)).unwrap();
    assert_eq!(pair.a.ct_get(ct).unwrap().success, 0, "-1 in C");
    pair.a.ct_free(ct).unwrap();
    let refused = [
        code(pair.a.ct_get(ct)),
        code(pair.a.ct_set(ct, both)),
        code(pair.a.ct_inc(ct, success(1))),
        code(pair.a.ct_wait(ct, 0)),
        code(pair.a.ct_free(ct)),
        code(pair.a.ct_cancel_triggered(ct)),
    ];
    assert_eq!(refused, [ReturnCode::ArgInvalid; 6]);
}

pub(crate) fn waiting_takes_successes_and_failures_together(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let ct = pair.a.ct_alloc().unwrap();
    assert_eq!(pair.a.ct_wait(ct, 0).unwrap(), success(0));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pair.a.ct_wait(ct, 3).unwrap());
        pair.a.ct_inc(ct, success(2)).unwrap();
        pair.a.ct_inc(ct, failure(1)).unwrap();
        assert_eq!(waits.join().unwrap(), CtEvent { success: 2, failure: 1 });
    });
}

pub(crate) fn waiting_on_several_says_which_and_ends_with_its_time(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let cts: Vec<_> = (1..=20).map(|test| (pair.a.ct_alloc().unwrap(), test)).collect();
    for ms in [0, 1, 30] {
        let (began, timeout) = (Instant::now(), Duration::from_millis(ms));
        assert_eq!(pair.a.ct_poll(&cts, Some(timeout)).unwrap(), None, "PTL_CT_NONE_REACHED");
        assert!(began.elapsed() >= timeout);
    }
    for (n, &(ct, test)) in cts.iter().enumerate() {
        pair.a.ct_set(ct, success(test)).unwrap();
        assert_eq!(pair.a.ct_poll(&cts, None).unwrap(), Some((success(test), n)));
        assert_eq!(pair.a.ct_poll(&cts[n..=n], None).unwrap(), Some((success(test), 0)));
        pair.a.ct_set(ct, success(0)).unwrap();
    }
    assert_eq!(code(pair.a.ct_poll(&[], None)), ReturnCode::ArgInvalid);
}

pub(crate) fn ct_wait_waits_for_the_peer(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 8, MdOptions::EVENT_CT_ACK);
    let sink = Sink::new(&pair.b, 8, PtOptions::empty());
    let ct = pair.b.ct_alloc().unwrap();
    let me = Me { ct: Some(ct), ..sink.me(MeOptions::OP_PUT | MeOptions::EVENT_CT_COMM) };
    pair.b.me_append(sink.pt, &me, ListKind::Priority, 0).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pair.b.ct_wait(ct, 100).unwrap());
        for _ in 0..100 {
            pair.a.put(&Put { ack_req: AckReq::Ct, ..Put::new(source.md, 8, id(&pair.b), sink.pt) }).unwrap();
        }
        let poll = scope.spawn(|| {
            // The target's program may have left already.
            while !waits.is_finished() {
                pair.a.node().progress();
            }
            waits.join().unwrap()
        });
        assert_eq!(poll.join().unwrap(), success(100));
    });
    assert_eq!(pair.counted(&pair.a, source.ct, 100), success(100));
}
