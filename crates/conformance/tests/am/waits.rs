//! Events, waits, and bundles that several threads use.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hca_am::{Error, EventMask, Message, Parallel, Token};

use crate::bed::{Bed, PATIENCE, answered};

pub(crate) fn a_wait_ends_with_a_message(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let told = b.hear(1);
    b.bundle.set_event_mask(b.ep, EventMask::NotEmpty).unwrap();
    std::thread::scope(|s| {
        let waits = s.spawn(move || {
            for i in 0..3 {
                while told.try_recv() != Ok(vec![i]) {
                    assert!(b.bundle.wait(Some(PATIENCE)).unwrap(), "no event for message {i}");
                    b.bundle.poll().unwrap();
                }
            }
        });
        for i in 0..3 {
            a.request(1, &[i]);
            a.bundle.flush(PATIENCE).unwrap();
        }
        waits.join().unwrap();
    });
}

pub(crate) fn a_wait_ends_with_its_time(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let quiet = b.bundle.endpoint().unwrap();
    b.bundle.set_event_mask(quiet, EventMask::NotEmpty).unwrap();
    let told = b.hear(1);
    a.request(1, &[]);
    // The message is for an endpoint that asks for no events.
    assert!(!b.bundle.wait(Some(Duration::from_millis(50))).unwrap());
    assert!(told.try_recv().is_err());
    answered(&mut a, &mut [&mut b]);
    assert!(told.try_recv().is_ok());
}

pub(crate) fn a_wait_needs_a_mask(bed: &Bed) {
    let [mut a, _b] = bed.pair();
    assert!(matches!(a.bundle.wait(None), Err(Error::NoEvents)));
}

pub(crate) fn several_threads_use_a_parallel_bundle(bed: &Bed) {
    let [a, mut b] = bed.pair();
    b.echo(1);
    let (ep, replies) = (a.ep, std::sync::Arc::new(AtomicU32::new(0)));
    let counted = replies.clone();
    let mut bundle = a.bundle;
    let count = move |_: &Message<'_>, _: Token<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    bundle.set_handler(ep, 2, count).unwrap();
    bundle.set_event_mask(ep, EventMask::NotEmpty).unwrap();
    let parallel = Parallel::new(bundle);
    const EACH: u32 = 50;
    std::thread::scope(|s| {
        s.spawn(|| {
            let end = std::time::Instant::now() + PATIENCE;
            while replies.load(Ordering::Relaxed) < 2 * EACH {
                b.bundle.poll().unwrap();
                assert!(std::time::Instant::now() < end, "replies are missing");
                std::thread::yield_now();
            }
        });
        for _ in 0..2 {
            s.spawn(|| {
                for i in 0..EACH {
                    parallel.with(|bundle| bundle.request(ep, 0, 1, &[i])).unwrap();
                }
            });
        }
        s.spawn(|| {
            while replies.load(Ordering::Relaxed) < 2 * EACH {
                parallel.wait(Some(Duration::from_millis(100))).unwrap();
                parallel.with(|bundle| bundle.poll()).unwrap();
            }
        });
    });
    assert!(parallel.into_inner().is_ok());
}

pub(crate) fn times_without_an_end_are_times(bed: &Bed) {
    let most = Duration::MAX;
    let options = hca_am::Options { probe_interval: most, ..bed.options() };
    let [mut a, mut b] = bed.pair_with(&options);
    let told = b.hear(1);
    a.request(1, &[5]);
    answered(&mut a, &mut [&mut b]);
    a.bundle.flush(most).unwrap();
    assert_eq!(told.try_recv(), Ok(vec![5]));
    let beyond = hca_am::Options { translations: usize::MAX, ..options };
    let refused = hca_am::Bundle::open_with(&bed.contexts(1)[0], bed.way, &beyond);
    assert!(matches!(refused, Err(Error::Limit { what: "translations", .. })), "{refused:?}");
}
