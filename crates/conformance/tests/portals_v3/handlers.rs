//! Handlers of event queues.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use portals::v3::{AckReq, EqHandler, Got, Md, MdOptions, Ni, Threshold};

use crate::pair::{Bed, LIMIT, Side, until};

const ENDS: MdOptions = MdOptions::OP_PUT.union(MdOptions::EVENT_START_DISABLE);

fn handler(f: impl FnMut(&Ni, &Got) + Send + 'static) -> Option<EqHandler> {
    Some(Box::new(f))
}

/// A portal whose events a handler gets.
fn handled(side: &Side, pt_index: u32, count: u32, f: impl FnMut(&Ni, &Got) + Send + 'static) {
    let eq = side.ni.eq_alloc(count, handler(f)).unwrap();
    let md = Md { eq: Some(eq), ..side.md(side.zeroed(1 << 16), ENDS | MdOptions::MANAGE_REMOTE) };
    side.post(pt_index, &md);
}

fn numbered(from: &Side, to: &Side, pt_index: u32, numbers: std::ops::Range<u64>) {
    let md = from.silent(b"x");
    for i in numbers {
        from.ni.put(md, AckReq::NoAck, to.id(), pt_index, 0, 0, 0, i).unwrap();
    }
}

pub(crate) fn a_handler_gets_each_event_in_order_and_eq_get_finds_none(bed: &Bed) {
    let p = bed.pair();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let eq = p.b.ni.eq_alloc(256, handler(move |_, got| log.lock().unwrap().push(got.event.hdr_data)));
    let eq = eq.unwrap();
    p.b.post(1, &Md { eq: Some(eq), ..p.b.md(p.b.zeroed(256), ENDS) });
    numbered(&p.a, &p.b, 1, 0..100);
    until(&p.a, &p.b, || {
        assert_eq!(p.b.ni.eq_get(eq).unwrap(), None);
        seen.lock().unwrap().len() == 100
    });
    assert_eq!(*seen.lock().unwrap(), (0..100).collect::<Vec<_>>());
}

pub(crate) fn a_handler_runs_in_calls_that_look_for_other_events(bed: &Bed) {
    let p = bed.pair();
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    handled(&p.b, 1, 64, move |_, _| _ = counted.fetch_add(1, Ordering::Relaxed));
    p.b.post(2, &p.b.md(p.b.zeroed(8), ENDS));
    numbered(&p.a, &p.b, 1, 0..10);
    p.a.put(p.a.silent(b"x"), &p.b, 2, 0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(p.b.ni.eq_wait(p.b.eq).unwrap().event.pt_index, 2);
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            p.a.ni.progress();
            thread::yield_now();
        }
    });
    assert_eq!(count.load(Ordering::Relaxed), 10, "what came before was handled before");
}

pub(crate) fn a_wait_runs_the_handlers_that_bring_about_what_it_waits_for(bed: &Bed) {
    let p = bed.pair();
    let (from, to) = (p.a.silent(b"x"), p.a.id());
    handled(&p.a, 1, 64, move |ni, _| ni.put(from, AckReq::NoAck, to, 2, 0, 0, 0, 0).unwrap());
    p.a.post(2, &p.a.md(p.a.zeroed(8), ENDS));
    // To one's own the first message makes the connection, so it is not there when this returns.
    numbered(&p.a, &p.a, 1, 0..1);
    let got = p.a.ni.eq_wait_timeout(p.a.eq, LIMIT).unwrap().expect("the handler sent it");
    assert_eq!(got.event.pt_index, 2);
}

pub(crate) fn a_handler_is_dropped_where_it_may_call_portals(bed: &Bed) {
    /// What a handler holds.
    struct Calls(Ni, Arc<AtomicBool>);
    impl Drop for Calls {
        fn drop(&mut self) {
            let eq = self.0.eq_alloc(1, None).unwrap();
            self.0.eq_free(eq).unwrap();
            self.0.progress();
            self.1.store(true, Ordering::Release);
        }
    }
    let p = bed.pair();
    let dropped = Arc::new(AtomicBool::new(false));
    let calls = Calls(p.a.ni.clone(), Arc::clone(&dropped));
    let eq = p.a.ni.eq_alloc(1, handler(move |_, _| _ = &calls)).unwrap();
    thread::scope(|scope| {
        // One that looks through the handlers all the while.
        scope.spawn(|| {
            while !dropped.load(Ordering::Acquire) {
                p.a.ni.eq_wait_timeout(p.a.eq, Duration::from_millis(1)).unwrap();
            }
        });
        p.a.ni.eq_free(eq).unwrap();
    });
}

pub(crate) fn a_wait_that_sees_only_handled_events_still_ends_in_time(bed: &Bed) {
    let p = bed.pair();
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    handled(&p.a, 1, 64, move |_, _| _ = counted.fetch_add(1, Ordering::Relaxed));
    numbered(&p.a, &p.a, 1, 0..5);
    assert_eq!(p.a.ni.eq_wait_timeout(p.a.eq, Duration::from_millis(50)).unwrap(), None);
    until(&p.a, &p.b, || count.load(Ordering::Relaxed) == 5);
}

pub(crate) fn a_handler_may_call_portals(bed: &Bed) {
    let p = bed.pair();
    // Each message is answered from within the handler, which also looks for events, waits, updates, and posts.
    let answers = p.b.silent(b"answer");
    let other = p.b.ni.eq_alloc(4, None).unwrap();
    let (_, updated) = p.b.post(5, &Md { threshold: Threshold::Count(0), ..p.b.md(p.b.zeroed(4), ENDS) });
    let memory = p.b.zeroed(4);
    let to = p.a.id();
    let eq = p.b.ni.eq_alloc(
        64,
        handler(move |ni, got| {
            ni.put(answers, AckReq::NoAck, to, 1, 0, 0, 0, got.event.hdr_data).unwrap();
            assert_eq!(ni.eq_get(other).unwrap(), None);
            assert_eq!(ni.eq_wait_timeout(other, Duration::from_millis(1)).unwrap(), None);
            ni.progress();
            let md = Md { options: ENDS, ..Md::new(&memory) };
            ni.md_update(updated, Some(&md), Some(other)).unwrap();
            ni.eq_free(ni.eq_alloc(1, None).unwrap()).unwrap();
        }),
    );
    p.b.post(1, &Md { eq: Some(eq.unwrap()), ..p.b.md(p.b.zeroed(256), ENDS) });
    p.a.post(1, &p.a.md(p.a.zeroed(256), ENDS));
    numbered(&p.a, &p.b, 1, 0..20);
    let mut answered = Vec::new();
    until(&p.a, &p.b, || {
        answered.extend(p.a.ni.eq_get(p.a.eq).unwrap().map(|got| got.event.hdr_data));
        answered.len() == 20
    });
    assert_eq!(answered, (0..20).collect::<Vec<_>>());
}

pub(crate) fn a_handler_that_sends_to_itself_is_called_again_and_not_within_itself(bed: &Bed) {
    let p = bed.pair();
    let depth = Arc::new(AtomicU32::new(0));
    let count = Arc::new(AtomicU32::new(0));
    let (inside, calls) = (Arc::clone(&depth), Arc::clone(&count));
    let (from, to) = (p.a.silent(b"x"), p.a.id());
    handled(&p.a, 1, 64, move |ni, got| {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "not within itself");
        calls.fetch_add(1, Ordering::SeqCst);
        if got.event.hdr_data < 50 {
            ni.put(from, AckReq::NoAck, to, 1, 0, 0, 0, got.event.hdr_data + 1).unwrap();
        }
        inside.fetch_sub(1, Ordering::SeqCst);
    });
    numbered(&p.a, &p.a, 1, 0..1);
    until(&p.a, &p.b, || count.load(Ordering::SeqCst) == 51);
}

pub(crate) fn a_handler_may_free_its_own_queue(bed: &Bed) {
    let p = bed.pair();
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let own = Arc::new(Mutex::new(None));
    let freed = Arc::clone(&own);
    let eq = p.a.ni.eq_alloc(
        64,
        handler(move |ni, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            ni.eq_free(freed.lock().unwrap().expect("it is known")).unwrap();
        }),
    );
    *own.lock().unwrap() = Some(eq.unwrap());
    p.a.post(1, &Md { eq: *own.lock().unwrap(), ..p.a.md(p.a.zeroed(64), ENDS) });
    numbered(&p.a, &p.a, 1, 0..5);
    p.a.fence(&p.a);
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

pub(crate) fn a_handler_hears_of_lost_events(bed: &Bed) {
    let p = bed.pair();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    handled(&p.b, 1, 2, move |_, got| log.lock().unwrap().push((got.event.hdr_data, got.dropped)));
    // Nothing of the interface is called there until all have come.
    numbered(&p.a, &p.b, 1, 0..6);
    p.a.fence(&p.b);
    p.b.ni.progress();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.last().map(|last| last.0), Some(5));
    assert_eq!(seen.iter().filter(|(_, dropped)| *dropped).count(), 1, "{seen:?}");
}

pub(crate) fn threads_share_an_interface_and_a_handler_is_never_in_two_of_them(bed: &Bed) {
    let p = bed.pair();
    let (inside, seen) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (entered, log) = (Arc::clone(&inside), Arc::clone(&seen));
    handled(&p.b, 1, 4096, move |_, got| {
        assert_eq!(entered.fetch_add(1, Ordering::SeqCst), 0);
        log.lock().unwrap().push(got.event.hdr_data);
        entered.fetch_sub(1, Ordering::SeqCst);
    });
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    p.b.ni.progress();
                    thread::yield_now();
                }
            });
        }
        for i in 0..20 {
            numbered(&p.a, &p.b, 1, i * 50..(i + 1) * 50);
            p.a.fence(&p.b);
        }
        until(&p.a, &p.b, || seen.lock().unwrap().len() == 1000);
        stop.store(true, Ordering::Release);
    });
    assert_eq!(*seen.lock().unwrap(), (0..1000).collect::<Vec<_>>());
}

pub(crate) fn a_handler_that_panics_is_called_for_the_next_event_all_the_same(bed: &Bed) {
    let p = bed.pair();
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    handled(&p.a, 1, 64, move |_, got| {
        counted.fetch_add(1, Ordering::SeqCst);
        assert_ne!(got.event.hdr_data, 0, "the first is one too many");
    });
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        numbered(&p.a, &p.a, 1, 0..1);
        until(&p.a, &p.b, || count.load(Ordering::SeqCst) == 1);
    }));
    assert!(caught.is_err());
    numbered(&p.a, &p.a, 1, 1..2);
    until(&p.a, &p.b, || count.load(Ordering::SeqCst) == 2);
}
