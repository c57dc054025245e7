//! Event queues: taking, waiting, polling, losing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portals::v3::{EventKind, Md, MdOptions, ReturnCode};

use crate::pair::{Bed, LIMIT};

const ENDS: MdOptions = MdOptions::OP_PUT.union(MdOptions::EVENT_START_DISABLE);

pub(crate) fn eq_get_takes_the_oldest_and_none_is_ptl_eq_empty(bed: &Bed) {
    let p = bed.pair();
    p.b.post(1, &p.b.md(p.b.zeroed(64), ENDS));
    assert_eq!(p.b.ni.eq_get(p.b.eq).unwrap(), None);
    let from = p.a.silent(b"x");
    (0..3).for_each(|_| p.a.put(from, &p.b, 1, 0));
    p.a.fence(&p.b);
    for i in 0..3 {
        let got = p.b.ni.eq_get(p.b.eq).unwrap().expect("three came");
        assert_eq!((got.event.offset, got.code()), (i, ReturnCode::Ok));
    }
    assert_eq!(p.b.ni.eq_get(p.b.eq).unwrap(), None);
}

pub(crate) fn ptl_eq_dropped_tells_once_that_events_were_lost_oldest_first(bed: &Bed) {
    let p = bed.pair();
    let eq = p.b.ni.eq_alloc(3, None).unwrap();
    p.b.post(1, &Md { eq: Some(eq), ..p.b.md(p.b.zeroed(64), ENDS) });
    let from = p.a.silent(b"x");
    (0..8).for_each(|_| p.a.put(from, &p.b, 1, 0));
    p.a.fence(&p.b);
    let got = p.b.ni.eq_get(eq).unwrap().unwrap();
    assert_eq!((got.dropped, got.code(), got.event.sequence), (true, ReturnCode::EqDropped, 5));
    p.a.put(from, &p.b, 1, 0);
    p.a.fence(&p.b);
    for sequence in 6..9 {
        let got = p.b.ni.eq_get(eq).unwrap().unwrap();
        assert_eq!((got.dropped, got.event.sequence), (false, sequence), "it goes on");
    }
    assert_eq!(p.b.ni.eq_get(eq).unwrap(), None);
}

pub(crate) fn eq_wait_sleeps_until_an_event_comes(bed: &Bed) {
    let p = bed.pair();
    p.b.post(1, &p.b.md(p.b.zeroed(64), ENDS));
    let from = p.a.silent(b"x");
    // A connection first, so that the wait below is for one message.
    p.a.fence(&p.b);
    let waits = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            waits.store(true, Ordering::Release);
            p.b.ni.eq_wait(p.b.eq).unwrap()
        });
        while !waits.load(Ordering::Acquire) {
            thread::yield_now();
        }
        p.a.put(from, &p.b, 1, 0);
        while !waiter.is_finished() {
            p.a.ni.progress();
            thread::yield_now();
        }
        assert_eq!(waiter.join().unwrap().event.kind, EventKind::PutEnd);
    });
}

pub(crate) fn eq_wait_timeout_and_eq_poll_come_back_without_an_event(bed: &Bed) {
    let p = bed.pair();
    for timeout in [Duration::ZERO, Duration::from_millis(30)] {
        let began = Instant::now();
        assert_eq!(p.a.ni.eq_wait_timeout(p.a.eq, timeout).unwrap(), None);
        assert_eq!(p.a.ni.eq_poll(&[p.a.eq, p.a.eq], Some(timeout)).unwrap(), None);
        assert!(began.elapsed() >= 2 * timeout && began.elapsed() < LIMIT);
    }
    p.a.post(1, &p.a.md(p.a.zeroed(64), ENDS));
    p.a.put(p.a.silent(b"x"), &p.a, 1, 0);
    let got = p.a.ni.eq_wait_timeout(p.a.eq, Duration::MAX).unwrap().expect("it came");
    assert_eq!(got.event.kind, EventKind::PutEnd);
}

pub(crate) fn eq_poll_tells_of_which_queue_and_is_fair_to_all(bed: &Bed) {
    let p = bed.pair();
    let queues: Vec<_> = (0..3).map(|_| p.a.ni.eq_alloc(64, None).unwrap()).collect();
    let from = p.a.silent(b"x");
    for (pt, &eq) in queues.iter().enumerate() {
        p.a.post(pt as u32, &Md { eq: Some(eq), ..p.a.md(p.a.zeroed(64), ENDS) });
        (0..10).for_each(|_| p.a.put(from, &p.a, pt as u32, 0));
    }
    p.a.fence(&p.a);
    let mut taken = [0; 3];
    for _ in 0..9 {
        let (which, got) = p.a.ni.eq_poll(&queues, None).unwrap().expect("there are many");
        assert_eq!(got.event.pt_index as usize, which);
        taken[which] += 1;
    }
    assert_eq!(taken, [3; 3]);
    let refused = p.a.ni.eq_poll(&[], None).unwrap_err();
    assert_eq!(refused.code(), ReturnCode::EqInvalid);
}

pub(crate) fn a_queue_that_is_freed_ends_the_wait_for_it(bed: &Bed) {
    let p = bed.pair();
    let waits = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            waits.store(true, Ordering::Release);
            p.b.ni.eq_wait(p.b.eq).map(|_| ()).map_err(|error| error.code())
        });
        while !waits.load(Ordering::Acquire) {
            thread::yield_now();
        }
        p.b.ni.eq_free(p.b.eq).unwrap();
        assert_eq!(waiter.join().unwrap(), Err(ReturnCode::EqInvalid));
    });
    assert_eq!(p.b.ni.eq_free(p.b.eq).unwrap_err().code(), ReturnCode::EqInvalid);
}

pub(crate) fn events_for_a_queue_that_is_freed_are_lost_and_their_messages_are_not(bed: &Bed) {
    let p = bed.pair();
    let (eq, memory) = (p.b.ni.eq_alloc(4, None).unwrap(), p.b.zeroed(8));
    p.b.post(1, &Md { eq: Some(eq), ..p.b.md(&memory, ENDS) });
    p.b.ni.eq_free(eq).unwrap();
    let another = p.b.ni.eq_alloc(4, None).unwrap();
    p.a.put(p.a.silent(b"x"), &p.b, 1, 0);
    p.a.fence(&p.b);
    assert_eq!(memory.to_vec()[0], b'x');
    assert_eq!(p.b.ni.eq_get(another).unwrap(), None, "it has the place, and not the events");
    assert_eq!(p.b.ni.eq_get(eq).unwrap_err().code(), ReturnCode::EqInvalid);
}
