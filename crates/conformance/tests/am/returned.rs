//! Messages that come back, and calls that are refused.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;

use hca_am::{Error, EventMask, MAX_ARGS, Message, Parallel, Reason, ReturnCode, Source, Tag, Token};

use crate::bed::{Back, Bed, SEGMENT, TAG, next, pattern, until};

fn back(reason: Reason, handler: u16, args: &[u32], data: Vec<u8>) -> Back {
    Back { reason, index: 0, handler, args: args.to_vec(), data, range: None }
}

pub(crate) fn a_request_with_another_tag_comes_back(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let told = b.hear(1);
    for (tag, admits) in [(Tag(1), false), (Tag::NONE, false), (Tag::ALL, true), (TAG, true)] {
        b.bundle.set_tag(b.ep, tag).unwrap();
        a.request(1, &[9]);
        a.bundle.poll().unwrap();
        crate::bed::answered(&mut a, &mut [&mut b]);
        let expected = (!admits).then(|| back(Reason::BadTag, 1, &[9], vec![]));
        assert_eq!(a.back.try_recv().ok(), expected, "{tag:?}");
        assert_eq!(told.try_recv().is_ok(), admits, "{tag:?}");
    }
}

pub(crate) fn a_request_for_a_handler_that_is_not_there_comes_back(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let told = b.hear(1);
    // Not set, beyond the table, and the error handler itself; of each kind; with requests of no reply before them.
    for handler in [7, 256, u16::MAX, 0] {
        for data in [vec![], pattern(50), pattern(2000)] {
            a.request(1, &[]);
            a.bundle.request_medium(a.ep, 0, handler, &[1, 2], &data).unwrap();
            let from = std::mem::replace(&mut a.back, channel().1);
            let came = next(&mut [&mut a, &mut b], "it", &from);
            a.back = from;
            assert_eq!(came, back(Reason::BadHandler, handler, &[1, 2], data));
        }
    }
    a.bundle.request_bulk(a.ep, 0, 7, &[3], &pattern(100), 11).unwrap();
    let from = std::mem::replace(&mut a.back, channel().1);
    let came = next(&mut [&mut a, &mut b], "it", &from);
    assert_eq!(came, Back { range: Some((11, 100)), ..back(Reason::BadHandler, 7, &[3], vec![]) });
    assert_eq!(told.try_iter().count(), 12);
    assert_eq!(a.bundle.outstanding(a.ep, 0).unwrap(), 0);
}

pub(crate) fn a_reply_without_a_handler_is_rejected(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    b.echo(1);
    a.request(1, &[5]);
    crate::bed::answered(&mut a, &mut [&mut b]);
    assert_eq!(a.back.try_recv(), Ok(back(Reason::ReplyRejected, 2, &[5], vec![])));
}

pub(crate) fn a_reply_has_no_reply(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    b.echo(1);
    let (tell, told) = channel();
    let hear = move |_: &Message<'_>, token: Token<'_>| tell.send(token.reply(1, &[])).unwrap();
    a.bundle.set_handler(a.ep, 2, hear).unwrap();
    a.request(1, &[]);
    let refused = next(&mut [&mut a, &mut b], "the reply", &told);
    assert!(matches!(refused, Err(Error::NotARequest)), "{refused:?}");
}

pub(crate) fn calls_out_of_range_are_refused(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let (bundle, ep) = (&mut a.bundle, a.ep);
    let limits = bundle.limits(ep, 0).unwrap();
    assert_eq!(limits, (4096, SEGMENT as u64));
    let many = [0; MAX_ARGS + 1];
    assert!(matches!(bundle.request(ep, 0, 1, &many), Err(Error::Args { count: 17, max: 16 })));
    assert!(matches!(bundle.request(ep, 1, 1, &[]), Err(Error::Index { index: 1, len: 256 })));
    assert!(matches!(bundle.request(ep, 256, 1, &[]), Err(Error::Index { index: 256, .. })));
    let long = vec![0; 4097];
    assert!(matches!(
        bundle.request_medium(ep, 0, 1, &[], &long),
        Err(Error::Length { len: 4097, max: 4096 })
    ));
    let (end, one) = (SEGMENT as u64, &[1_u8]);
    for offset in [end, end + 1, u64::MAX] {
        let refused = bundle.request_bulk(ep, 0, 1, &[], one, offset);
        assert!(matches!(refused, Err(Error::Segment { .. })), "{offset}");
    }
    let own = bundle.alloc(10).unwrap();
    #[allow(clippy::reversed_empty_ranges)] // it has to be refused
    for range in [0..11, 11..11, 5..4] {
        let refused = bundle.request_bulk(ep, 0, 1, &[], Source::Segment(&own, range.clone()), 0);
        assert!(matches!(refused, Err(Error::Segment { .. })), "{range:?}");
    }
    for handler in [0, 256] {
        let refused = bundle.set_handler(ep, handler, |_, _| ());
        assert_eq!(refused.unwrap_err().code(), ReturnCode::BadArg);
    }
    let name = b.name();
    assert_eq!(bundle.map(ep, 0, &name, TAG).unwrap_err().code(), ReturnCode::InUse);
    assert_eq!(bundle.map(ep, 256, &name, TAG).unwrap_err().code(), ReturnCode::BadArg);
    // None of them was sent, and none took a credit.
    let told = b.hear(1);
    for i in 0..4 {
        a.bundle.try_request(a.ep, 0, 1, &[i]).unwrap();
        assert_eq!(next(&mut [&mut b], "a request", &told), [i]);
    }
}

pub(crate) fn a_translation_table_has_the_length_that_was_asked_for(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let told = b.hear(1);
    let (name, ep) = (b.name(), a.ep);
    assert_eq!(a.bundle.translations(ep).unwrap(), 256);
    a.bundle.set_translations(ep, 1000).unwrap();
    a.bundle.map(ep, 999, &name, TAG).unwrap();
    a.bundle.request(ep, 999, 1, &[7]).unwrap();
    assert_eq!(next(&mut [&mut a, &mut b], "a request", &told), [7]);
    assert!(matches!(a.bundle.set_translations(ep, 999), Err(Error::InUse { users: 1, .. })));
    assert!(matches!(a.bundle.set_translations(ep, (1 << 16) + 1), Err(Error::Limit { .. })));
    a.bundle.unmap(ep, 999).unwrap();
    a.bundle.set_translations(ep, 1).unwrap();
    assert!(matches!(a.bundle.request(ep, 1, 1, &[]), Err(Error::Index { index: 1, len: 1 })));
    a.request(1, &[8]);
    assert_eq!(next(&mut [&mut a, &mut b], "a request", &told), [8]);
}

pub(crate) fn a_handler_that_panics_returns_its_request(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let told = b.hear(1);
    b.bundle.set_handler(b.ep, 3, |_, _| panic!("as planned")).unwrap();
    a.request(1, &[1]);
    a.request(3, &[2]);
    a.request(1, &[3]);
    let mut panics = 0;
    let end = std::time::Instant::now() + crate::bed::PATIENCE;
    while a.bundle.outstanding(a.ep, 0).unwrap() > 0 {
        panics += u32::from(catch_unwind(AssertUnwindSafe(|| b.bundle.poll().unwrap())).is_err());
        a.bundle.poll().unwrap();
        assert!(std::time::Instant::now() < end, "requests are not answered");
    }
    assert_eq!((panics, a.back.try_recv()), (1, Ok(back(Reason::HandlerPanicked, 3, &[2], vec![]))));
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [[1], [3]]);
}

pub(crate) fn a_panic_within_a_map_leaves_no_link(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    b.bundle.set_handler(b.ep, 3, |_, _| panic!("as planned")).unwrap();
    b.bundle.set_event_mask(b.ep, EventMask::NotEmpty).unwrap();
    a.request(3, &[1]);
    // The message is there, and the next poll handles it, which is that of the map.
    assert!(b.bundle.wait(Some(crate::bed::PATIENCE)).unwrap());
    let links = format!("{:?}", b.bundle);
    assert!(catch_unwind(AssertUnwindSafe(|| b.map(0, &a))).is_err());
    assert_eq!(format!("{:?}", b.bundle), links);
    b.map(0, &a).unwrap();
}

pub(crate) fn an_error_handler_that_panics_leaves_the_link(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let told = b.hear(1);
    a.bundle.set_error_handler(a.ep, |_| panic!("as planned")).unwrap();
    let mut panics = 0;
    let end = std::time::Instant::now() + crate::bed::PATIENCE;
    // More than the link, and the bundle, have buffers.
    for i in 0..60 {
        a.request(3, &[i]);
        while a.bundle.outstanding(a.ep, 0).unwrap() > 0 {
            b.bundle.poll().unwrap();
            panics += u32::from(catch_unwind(AssertUnwindSafe(|| a.bundle.poll().unwrap())).is_err());
            assert!(std::time::Instant::now() < end, "request {i} has not come back");
        }
    }
    assert_eq!((panics, a.bundle.is_reachable(a.ep, 0).unwrap()), (60, true));
    a.request(1, &[7]);
    assert_eq!(next(&mut [&mut a, &mut b], "a request", &told), [7]);
    // A request that comes back by the end of the link is told as well.
    a.request(1, &[8]);
    let unmapped = catch_unwind(AssertUnwindSafe(|| a.bundle.unmap(a.ep, 0).unwrap()));
    assert!(unmapped.is_err() && a.bundle.mapped(a.ep, 0).unwrap().is_none());
}

pub(crate) fn a_handler_may_only_reply(bed: &Bed) {
    let [mut a, b] = bed.pair();
    let ep = b.ep;
    let parallel = Parallel::new(b.bundle);
    let (tell, told) = channel();
    let inner = parallel.clone();
    let handler = move |_: &Message<'_>, _: Token<'_>| {
        tell.send(inner.with(|bundle| bundle.request(ep, 0, 1, &[]))).unwrap();
    };
    parallel.with(|bundle| bundle.set_handler(ep, 1, handler)).unwrap();
    a.request(1, &[]);
    let refused = until(&mut [&mut a], "the handler", || {
        parallel.with(|bundle| bundle.poll()).unwrap();
        told.try_recv().ok()
    });
    assert!(matches!(refused, Err(Error::InHandler)), "{refused:?}");
    // Elsewhere the thread may use it again.
    assert!(parallel.with(|bundle| bundle.poll()).is_ok());
    // The handler has a clone, which would keep the bundle for ever.
    parallel.with(|bundle| bundle.free_endpoint(ep)).unwrap();
}

pub(crate) fn a_segment_that_peers_know_is_not_changed(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    for side in [&mut a, &mut b] {
        assert_eq!(side.bundle.set_segment(side.ep, 64).unwrap_err().code(), ReturnCode::InUse);
        assert_eq!(side.bundle.segment(side.ep).unwrap().unwrap().len(), SEGMENT);
    }
}

pub(crate) fn an_index_is_unmapped_and_mapped_again(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let told = b.hear(1);
    a.request(1, &[1]);
    a.bundle.unmap(a.ep, 0).unwrap();
    // Handled or not: it was not answered.
    assert_eq!(a.back.try_recv(), Ok(back(Reason::Unreachable, 1, &[1], vec![])));
    assert_eq!(a.bundle.request(a.ep, 0, 1, &[]).unwrap_err().code(), ReturnCode::BadArg);
    assert_eq!(a.bundle.unmap(a.ep, 0).unwrap_err().code(), ReturnCode::BadArg);
    a.map(0, &b).unwrap();
    a.request(1, &[2]);
    until(&mut [&mut a, &mut b], "the request", || told.try_iter().find(|args| args[..] == [2]));
}

pub(crate) fn a_freed_endpoint_is_gone(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let (name, other) = (b.name(), b.bundle.endpoint().unwrap());
    b.bundle.free_endpoint(b.ep).unwrap();
    assert!(b.bundle.poll().is_ok());
    assert!(matches!(b.bundle.set_tag(b.ep, TAG), Err(Error::Endpoint)));
    assert!(b.bundle.name(other).is_ok());
    // A request that was sent before the end is noticed comes back.
    let _ = a.bundle.request(a.ep, 0, 1, &[]);
    let end = std::time::Instant::now() + crate::bed::PATIENCE;
    while a.bundle.is_reachable(a.ep, 0).unwrap() {
        a.bundle.poll().unwrap();
        b.bundle.poll().unwrap();
        assert!(std::time::Instant::now() < end, "the end is not noticed");
    }
    assert!(a.bundle.map(a.ep, 1, &name, TAG).is_err());
}

pub(crate) fn a_message_to_a_freed_endpoint_does_not_reach_the_next_one(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    // The peer has a link, of which the bundle does not know yet.
    a.request(1, &[7]);
    let freed = b.ep;
    b.bundle.free_endpoint(freed).unwrap();
    b.ep = b.bundle.endpoint().unwrap();
    b.bundle.set_tag(b.ep, TAG).unwrap();
    let told = b.hear(1);
    let back = std::mem::replace(&mut a.back, channel().1);
    let lost = until(&mut [&mut a, &mut b], "the lost request", || {
        assert!(told.try_recv().is_err(), "the next endpoint has handled it");
        back.try_recv().ok()
    });
    assert_eq!(lost.reason, Reason::Unreachable);
    for refused in [
        b.bundle.set_tag(freed, Tag::ALL),
        b.bundle.free_endpoint(freed),
        b.bundle.set_event_mask(freed, EventMask::NotEmpty),
        b.bundle.request(freed, 0, 1, &[]),
        b.bundle.detach(freed).map(drop),
    ] {
        assert!(matches!(refused, Err(Error::Endpoint)), "{refused:?}");
    }
    assert_eq!(b.bundle.tag(b.ep).unwrap(), TAG);
    // Peers that map the next one reach it.
    a.map(1, &b).unwrap();
    a.bundle.request(a.ep, 1, 1, &[8]).unwrap();
    assert_eq!(next(&mut [&mut a, &mut b], "the request to the next one", &told), [8]);
}
