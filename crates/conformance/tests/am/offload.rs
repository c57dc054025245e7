//! Bundles that the device runs: a program that makes no call still answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use hca_am::{Error, EventMask, Message, Parallel, Reason, Source, Token, Way};
use softhca::Progress;

use crate::bed::{Bed, PATIENCE, Side, next, pattern, until};
use crate::beds::Net;

const SHM: Bed = Bed::new(Net::Shm, Progress::Adaptive, Way::Verbs);
const UDP: Bed = Bed::new(Net::Udp, Progress::Thread, Way::Verbs);

/// The first side, and the second one, which the device runs.
fn pair(bed: &Bed, prepare: impl FnOnce(&mut Side)) -> (Side, Parallel) {
    let [a, mut b] = bed.pair();
    prepare(&mut b);
    (a, Parallel::offloaded(b.bundle).expect("the software adapter runs engines"))
}

fn computes_and_answers(bed: &Bed) {
    let here = std::thread::current().id();
    let (ran, elsewhere) = channel();
    let (mut a, b) = pair(bed, |b| {
        b.echo(1);
        let double = move |message: &Message<'_>, token: Token<'_>| {
            let _ = ran.send(std::thread::current().id());
            token.reply_medium(3, &[], &[message.data(), message.data()].concat()).expect("it is sent");
        };
        b.bundle.set_handler(b.ep, 4, double).unwrap();
        let back = |message: &Message<'_>, token: Token<'_>| {
            let (segment, range) =
                (message.segment().expect("it has one"), message.range().expect("it is bulk"));
            token.reply_bulk(5, &[], &segment.to_vec(range), 7).expect("it is sent");
        };
        b.bundle.set_handler(b.ep, 6, back).unwrap();
    });
    assert!(b.is_offloaded());
    let short = a.hear(2);
    for i in 0..100 {
        a.request(1, &[i, i + 1]);
        assert_eq!(next(&mut [&mut a], "a short reply", &short), [i, i + 1]);
    }
    let (tell, medium) = channel();
    let hear = move |message: &Message<'_>, _: Token<'_>| drop(tell.send(message.data().to_vec()));
    a.bundle.set_handler(a.ep, 3, hear).unwrap();
    a.bundle.request_medium(a.ep, 0, 4, &[], &pattern(2000)).unwrap();
    assert_eq!(next(&mut [&mut a], "a medium reply", &medium), [pattern(2000), pattern(2000)].concat());
    assert_ne!(
        elsewhere.try_recv().expect("the handler ran"),
        here,
        "this thread made no call of the bundle"
    );
    let bulk = a.hear(5);
    a.bundle.request_bulk(a.ep, 0, 6, &[], Source::Bytes(&pattern(70_000)), 11).unwrap();
    next(&mut [&mut a], "a bulk reply", &bulk);
    assert_eq!(a.bundle.segment(a.ep).unwrap().unwrap().to_vec(7..70_007), pattern(70_000));
    // Without the device's engine a message waits for a poll.
    let mut b = b.into_inner().expect("there is no other clone");
    a.request(1, &[7]);
    assert!(matches!(a.bundle.flush(Duration::from_millis(50)), Err(Error::TimedOut(_))));
    until(&mut [&mut a], "the reply", || {
        b.poll().unwrap();
        short.try_recv().ok()
    });
}

#[test]
fn a_process_that_computes_still_answers_over_shm() {
    computes_and_answers(&SHM);
}

#[test]
fn a_process_that_computes_still_answers_over_udp() {
    computes_and_answers(&UDP);
}

#[test]
fn what_comes_while_the_program_has_the_bundle_is_handled_afterwards() {
    let (mut a, b) = pair(&SHM, |b| b.echo(1));
    let replies = a.hear(2);
    for i in 0..3 {
        b.with(|_| {
            a.request(1, &[i]);
            // The device's thread finds the bundle in use meanwhile, or later finds it free.
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        })
        .unwrap();
        assert_eq!(next(&mut [&mut a], "a reply", &replies), [i]);
    }
}

#[test]
fn a_wait_ends_with_what_the_device_has_handled() {
    let mut told = None;
    let (mut a, b) = pair(&SHM, |b| {
        told = Some(b.hear(1));
        b.bundle.set_event_mask(b.ep, EventMask::NotEmpty).unwrap();
    });
    let told = told.unwrap();
    std::thread::scope(|s| {
        let waits = s.spawn(move || {
            for i in 0..50 {
                while told.try_recv() != Ok(vec![i]) {
                    assert!(b.wait(Some(PATIENCE)).unwrap(), "no event for message {i}");
                }
            }
        });
        for i in 0..50 {
            a.request(1, &[i]);
            a.bundle.flush(PATIENCE).unwrap();
        }
        waits.join().unwrap();
    });
}

#[test]
fn a_handler_that_panics_in_a_run_returns_its_request() {
    let (mut a, _b) = pair(&SHM, |b| {
        b.bundle.set_handler(b.ep, 4, |_, _| panic!("a handler of the test panics")).unwrap();
        b.echo(1);
    });
    let replies = a.hear(2);
    let returned = std::mem::replace(&mut a.back, channel().1);
    // More often than there are receive buffers: none is lost.
    for i in 0..100 {
        a.request(4, &[i]);
        let back = until(&mut [&mut a], "the request", || returned.try_recv().ok());
        assert_eq!((back.reason, back.args), (Reason::HandlerPanicked, vec![i]));
    }
    a.request(1, &[5]);
    assert_eq!(next(&mut [&mut a], "a reply", &replies), [5]);
}

#[test]
fn what_a_panic_within_a_call_leaves_is_handled_by_the_device() {
    let (mut a, b) = pair(&SHM, |b| {
        b.echo(1);
        b.bundle.set_handler(b.ep, 3, |_, _| panic!("as planned")).unwrap();
    });
    let told = a.hear(2);
    let call = || {
        b.with(|bundle| {
            a.request(3, &[]);
            a.request(1, &[7]);
            // The device finds the bundle in use.
            std::thread::sleep(Duration::from_millis(50));
            bundle.poll()
        })
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
    assert_eq!(next(&mut [&mut a], "the reply", &told), [7]);
}

#[test]
fn two_sides_that_the_devices_run_ask_each_other() {
    let [mut a, mut b] = SHM.pair();
    b.map(0, &a).unwrap();
    let counts = [&mut a, &mut b].map(|side| {
        side.echo(1);
        let count = Arc::<AtomicU32>::default();
        let counts = Arc::clone(&count);
        let add = move |_: &Message<'_>, _: Token<'_>| {
            counts.fetch_add(1, Ordering::Relaxed);
        };
        side.bundle.set_handler(side.ep, 2, add).unwrap();
        count
    });
    let sides = [a, b].map(|side| (side.ep, Parallel::offloaded(side.bundle).unwrap()));
    const EACH: u32 = 300;
    std::thread::scope(|s| {
        for ((ep, side), count) in sides.iter().zip(&counts) {
            s.spawn(move || {
                for i in 0..EACH {
                    side.with(|bundle| bundle.request(*ep, 0, 1, &[i])).unwrap();
                }
                let end = Instant::now() + PATIENCE;
                // The device takes the replies.
                while count.load(Ordering::Relaxed) < EACH {
                    assert!(Instant::now() < end, "replies are missing");
                    std::thread::yield_now();
                }
            });
        }
    });
}

#[test]
fn a_bundle_over_vis_has_no_engine() {
    let bed = Bed::new(Net::Shm, Progress::Adaptive, Way::Via);
    let side = bed.sides(1).remove(0);
    assert!(matches!(Parallel::offloaded(side.bundle), Err(Error::NoEngine)));
}
