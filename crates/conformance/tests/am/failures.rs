//! Credits, peers that do not answer, and peers that go.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

use hca_am::{Error, Message, Options, Reason, ReturnCode, Token, Way};
use hca_fabric::LoopbackNet;
use hca_verbs::Context;
use softhca::{Limits, Options as SoftOptions, Progress, SoftHca};

use crate::bed::{Bed, PATIENCE, SEGMENT, TAG, answered, next, pattern, until};

pub(crate) fn a_request_beyond_the_credits_is_not_sent(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let told = b.hear(1);
    for i in 0..4 {
        a.bundle.try_request(a.ep, 0, 1, &[i]).unwrap();
    }
    assert!(matches!(a.bundle.try_request(a.ep, 0, 1, &[4]), Err(Error::NotSent)));
    assert!(matches!(a.bundle.try_request_medium(a.ep, 0, 1, &[4], &pattern(999)), Err(Error::NotSent)));
    assert!(matches!(a.bundle.try_request_bulk(a.ep, 0, 1, &[4], &pattern(99), 0), Err(Error::NotSent)));
    answered(&mut a, &mut [&mut b]);
    assert!(told.try_iter().eq((0..4).map(|i| vec![i])));
    a.bundle.try_request(a.ep, 0, 1, &[4]).unwrap();
    assert_eq!(next(&mut [&mut a, &mut b], "it", &told), [4]);
}

pub(crate) fn credits_exhausted_both_ways_are_no_deadlock(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    b.map(0, &a).unwrap();
    let answers = [a.hear(2), b.hear(2)];
    for side in [&mut a, &mut b] {
        let echo = |message: &Message<'_>, token: Token<'_>| {
            token.reply_medium(2, message.args(), message.data()).unwrap();
        };
        side.bundle.set_handler(side.ep, 1, echo).unwrap();
    }
    const EACH: u32 = 100;
    let done = AtomicU32::new(0);
    // Both wait for credits, and each can go on only if the other one answers while it waits itself.
    std::thread::scope(|s| {
        for side in [&mut a, &mut b] {
            s.spawn(|| {
                let end = Instant::now() + PATIENCE;
                for i in 0..EACH {
                    side.bundle.request_medium(side.ep, 0, 1, &[i], &pattern(1000)).unwrap();
                }
                done.fetch_add(1, Ordering::Relaxed);
                while done.load(Ordering::Relaxed) < 2 && Instant::now() < end {
                    side.bundle.poll().unwrap();
                }
            });
        }
    });
    for side in [&mut a, &mut b] {
        side.bundle.poll().unwrap();
    }
    answered(&mut a, &mut [&mut b]);
    answered(&mut b, &mut [&mut a]);
    for (side, told) in [(&a, &answers[0]), (&b, &answers[1])] {
        assert!(told.try_iter().eq((0..EACH).map(|i| vec![i])), "{:?}", side.bundle);
    }
}

pub(crate) fn a_handler_that_blocks_holds_its_own_bundle_only(bed: &Bed) {
    let mut sides = bed.sides(3);
    let [mut a, mut b, mut c] = [sides.remove(0), sides.remove(0), sides.remove(0)];
    a.map(0, &b).unwrap();
    a.map(1, &c).unwrap();
    let (go, gate) = channel::<()>();
    let (begun, begins) = channel();
    let handler = move |_: &Message<'_>, _: Token<'_>| {
        begun.send(()).unwrap();
        gate.recv().unwrap();
    };
    b.bundle.set_handler(b.ep, 1, handler).unwrap();
    c.echo(1);
    let told = a.hear(2);
    std::thread::scope(|s| {
        s.spawn(move || {
            let mut handled = 0;
            while handled < 4 {
                handled += b.bundle.poll().unwrap().min(4);
                if handled == 0 {
                    std::thread::yield_now();
                }
            }
            b
        });
        for i in 0..4 {
            a.request(1, &[i]);
        }
        until(&mut [&mut a], "the handler", || begins.try_recv().ok());
        assert!(matches!(a.bundle.try_request(a.ep, 0, 1, &[]), Err(Error::NotSent)));
        a.bundle.request(a.ep, 1, 1, &[7]).unwrap();
        assert_eq!(next(&mut [&mut a, &mut c], "the other peer's answer", &told), [7]);
        for _ in 0..4 {
            go.send(()).unwrap();
        }
    });
}

pub(crate) fn a_peer_that_leaves_is_told(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let data = pattern(500);
    a.request(1, &[1]);
    a.bundle.request_medium(a.ep, 0, 1, &[2], &data).unwrap();
    b.bundle.poll().unwrap();
    drop(b);
    let end = Instant::now() + PATIENCE;
    while a.bundle.is_reachable(a.ep, 0).unwrap() {
        a.bundle.poll().unwrap();
        std::thread::yield_now();
        assert!(Instant::now() < end, "the end is not noticed");
    }
    let back: Vec<_> = a.back.try_iter().collect();
    // What was handled, without a handler, had come back before.
    for message in &back {
        assert!(matches!(message.reason, Reason::Unreachable | Reason::BadHandler), "{message:?}");
    }
    assert_eq!(back.iter().map(|message| message.args[0]).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(back[1].data, data);
    assert!(matches!(a.bundle.request(a.ep, 0, 1, &[]), Err(Error::Unreachable)));
    assert!(matches!(a.bundle.try_request(a.ep, 0, 1, &[]), Err(Error::Unreachable)));
    assert_eq!(a.bundle.outstanding(a.ep, 0).unwrap(), 0);
}

pub(crate) fn an_endpoint_with_a_lost_mapping_stays_in_its_bundle(bed: &Bed) {
    let contexts = bed.contexts(2);
    let [mut a, lost] = [0, 1].map(|i| bed.side(&contexts[i], &bed.options()));
    let moves = a.bundle.endpoint().unwrap();
    a.bundle.map(moves, 0, &lost.name(), TAG).unwrap();
    drop(lost);
    let end = Instant::now() + PATIENCE;
    while a.bundle.is_reachable(moves, 0).unwrap() {
        a.bundle.poll().unwrap();
        std::thread::yield_now();
        assert!(Instant::now() < end, "the end is not noticed");
    }
    // Another link gets the place of the lost one.
    let mut next_one = bed.side(&contexts[1], &bed.options());
    next_one.map(0, &a).unwrap();
    let told = a.hear(1);
    next_one.request(1, &[7]);
    assert_eq!(next(&mut [&mut a, &mut next_one], "a request", &told), [7]);
    // In another bundle the mapping would be that of whatever link has its number there.
    assert!(matches!(a.bundle.detach(moves), Err(Error::InUse { users: 1, .. })));
    a.bundle.unmap(moves, 0).unwrap();
    assert!(a.bundle.detach(moves).is_ok());
}

pub(crate) fn nobody_there_is_an_error(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let nobody = hca_am::EndpointName { id: 4242, ..b.name() };
    assert!(a.bundle.map(a.ep, 1, &nobody, TAG).is_err());
    let other = if bed.way == Way::Via { Way::Verbs } else { Way::Via };
    let foreign = hca_am::EndpointName { way: other, ..b.name() };
    assert!(matches!(a.bundle.map(a.ep, 1, &foreign, TAG), Err(Error::Name(_))));
    assert_eq!(a.bundle.mapped(a.ep, 1).unwrap(), None);
    let told = b.hear(1);
    a.request(1, &[1]);
    next(&mut [&mut a, &mut b], "the mapped peer's request", &told);
}

pub(crate) fn links_have_a_limit(bed: &Bed) {
    let options = Options { max_links: 2, ..bed.options() };
    let [mut a, mut b] = bed.pair_with(&options);
    let told = b.hear(1);
    a.map(1, &b).unwrap();
    assert!(matches!(a.map(2, &b), Err(Error::Limit { max: 2, .. })));
    a.bundle.unmap(a.ep, 0).unwrap();
    // Its place at the peer is free once the peer has noticed.
    let end = Instant::now() + PATIENCE;
    // The peer's program polls once between two attempts.
    let mut polls = 0;
    while a.map(0, &b).is_err() {
        b.bundle.poll().unwrap();
        polls += 1;
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(Instant::now() < end, "the place is not free again");
    }
    assert!(polls < 240, "a program that polls seldom notices late: after {polls} polls");
    a.bundle.request(a.ep, 1, 1, &[1]).unwrap();
    a.request(1, &[0]);
    next(&mut [&mut a, &mut b], "a request", &told);
    next(&mut [&mut a, &mut b], "a request", &told);
}

/// Adapters that have so few regions that a program can take all of them.
fn devices_of_few_regions() -> [Context; 2] {
    let net = LoopbackNet::new();
    [1, 2].map(|i| {
        let limits = Limits { mrs: 40, ..Limits::default() };
        let options = SoftOptions { limits, progress: Progress::Thread, ..SoftOptions::default() };
        Context::new(SoftHca::open(Box::new(net.attach([10, 0, 0, i].into())), options).unwrap())
    })
}

#[test]
fn messages_that_the_device_has_no_memory_for_are_errors() {
    for way in [Way::Verbs, Way::Via] {
        let bed = Bed::new(crate::beds::Net::Shm, Progress::Thread, way);
        let contexts = devices_of_few_regions();
        let [mut a, mut b] = contexts.each_ref().map(|context| bed.side(context, &bed.options()));
        a.map(0, &b).unwrap();
        let told = b.hear(1);
        let pd = contexts[0].alloc_pd().unwrap();
        let region = || pd.alloc_shared(1 << 20, hca_core::Access::empty()).ok();
        let taken: Vec<_> = std::iter::from_fn(region).collect();
        let (tell, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // Over VIs a long piece needs a region, and over verbs the first longer message does.
            let long = vec![7; SEGMENT];
            let bulk = a.bundle.request_bulk(a.ep, 0, 1, &[1], &long[..], 0).map_err(|error| error.code());
            let medium = a.bundle.request_medium(a.ep, 0, 1, &[2], &long[..1000]);
            let _ = tell.send((a, bulk, medium.map_err(|error| error.code())));
        });
        let (mut a, bulk, medium) = ended.recv_timeout(PATIENCE).expect("the calls end");
        // Over verbs pieces of bulk messages go through memory that the device gives out by parts.
        let (needs, other) = if way == Way::Via { (bulk, medium) } else { (medium, bulk) };
        assert_eq!((needs, other), (Err(ReturnCode::Resource), Ok(())), "{way:?}");
        drop(taken);
        a.bundle.request_medium(a.ep, 0, 1, &[3], &[7; 1000]).unwrap();
        until(&mut [&mut a, &mut b], "the message", || told.try_iter().find(|args| args[..] == [3]));
    }
}
