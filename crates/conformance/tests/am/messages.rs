//! Requests and replies of each kind, and their order.

use std::sync::mpsc::channel;

use hca_am::{EndpointName, Error, Message, Options, Source, Tag, Token};

use crate::bed::{Bed, SEGMENT, Side, TAG, answered, next, pattern, until};

pub(crate) fn short_requests_with_every_number_of_arguments_arrive(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let told = b.hear(1);
    for count in 0..=16 {
        let args: Vec<u32> = (0..count).map(|i| 0x8000_0000 + i).collect();
        a.request(1, &args);
        assert_eq!(next(&mut [&mut a, &mut b], "a request", &told), args);
    }
}

pub(crate) fn medium_requests_of_every_length_arrive(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let (tell, told) = channel();
    let hear = move |message: &Message<'_>, _: Token<'_>| {
        tell.send((message.arg(0), message.data().to_vec())).unwrap();
    };
    b.bundle.set_handler(b.ep, 1, hear).unwrap();
    for len in [0, 1, 31, 64, 65, 168, 169, 240, 256, 257, 1000, 4095, 4096] {
        let data = pattern(len);
        a.bundle.request_medium(a.ep, 0, 1, &[len as u32], &data).unwrap();
        assert_eq!(next(&mut [&mut a, &mut b], "a request", &told), (len as u32, data));
    }
}

pub(crate) fn a_medium_message_is_as_long_as_both_bundles_take(bed: &Bed) {
    let contexts = bed.contexts(2);
    let options = [512, 4096].map(|max_medium| Options { max_medium, ..bed.options() });
    let [mut a, mut b] = [0, 1].map(|i| bed.side(&contexts[i], &options[i]));
    a.map(0, &b).unwrap();
    b.map(0, &a).unwrap();
    let told = [&mut a, &mut b].map(|side| {
        let (tell, told) = channel();
        // The longer reply is refused, and leaves the request without one.
        let reply = move |message: &Message<'_>, token: Token<'_>| {
            let [len, ..] = message.args() else { return };
            tell.send((message.data().to_vec(), token.reply_medium(2, &[], &pattern(*len as usize)).is_ok()))
                .unwrap();
        };
        side.bundle.set_handler(side.ep, 1, reply).unwrap();
        told
    });
    for (from, to, heard) in [(0, 1, &told[1]), (1, 0, &told[0])] {
        let mut sides = [&mut a, &mut b];
        assert_eq!(sides[from].bundle.limits(sides[from].ep, 0).unwrap().0, 512);
        for len in [512, 513, 4096] {
            let side = &mut *sides[from];
            let sent = side.bundle.request_medium(side.ep, 0, 1, &[len], &pattern(len as usize));
            let fits = len == 512;
            assert!(
                matches!(sent, Ok(()) if fits)
                    || matches!(sent, Err(Error::Length { max: 512, .. }) if !fits)
            );
            side.bundle.request_medium(side.ep, 0, 1, &[len], &pattern(100)).unwrap();
            let expected = if fits { vec![(pattern(512), true)] } else { Vec::new() };
            for expected in expected.into_iter().chain([(pattern(100), fits)]) {
                assert_eq!(next(&mut sides, "a request", heard), expected, "{from} to {to}");
            }
        }
    }
}

pub(crate) fn a_bulk_request_is_in_the_segment_when_its_handler_runs(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let (tell, told) = channel();
    let hear = move |message: &Message<'_>, _: Token<'_>| {
        let range = message.range().unwrap();
        tell.send((range.start, message.segment().unwrap().to_vec(range))).unwrap();
    };
    b.bundle.set_handler(b.ep, 1, hear).unwrap();
    for (len, offset) in [(0, SEGMENT), (1, SEGMENT - 1), (5000, 3), (SEGMENT, 0)] {
        let data = pattern(len);
        a.bundle.request_bulk(a.ep, 0, 1, &[], &data, offset as u64).unwrap();
        assert_eq!(next(&mut [&mut a, &mut b], "a request", &told), (offset, data));
    }
    let own = a.bundle.alloc(9000).unwrap();
    own.write_at(0, &pattern(9000));
    a.bundle.request_bulk(a.ep, 0, 1, &[], Source::Segment(&own, 1000..8000), 77).unwrap();
    assert_eq!(next(&mut [&mut a, &mut b], "a request", &told), (77, pattern(9000)[1000..8000].to_vec()));
}

pub(crate) fn replies_of_each_kind_come_back(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let reply = |message: &Message<'_>, token: Token<'_>| match message.arg(0) {
        0 => token.reply(2, &[10]).unwrap(),
        1 => token.reply_medium(2, &[11], &pattern(3000)).unwrap(),
        _ => token.reply_bulk(2, &[12], &pattern(100_000), 55).unwrap(),
    };
    b.bundle.set_handler(b.ep, 1, reply).unwrap();
    let (tell, told) = channel();
    let hear = move |message: &Message<'_>, _: Token<'_>| {
        assert!(!message.is_request());
        let bulk = message.range().map(|range| (range.start, message.segment().unwrap().to_vec(range)));
        tell.send((message.arg(0), message.data().to_vec(), bulk)).unwrap();
    };
    a.bundle.set_handler(a.ep, 2, hear).unwrap();
    let expected =
        [(10, vec![], None), (11, pattern(3000), None), (12, vec![], Some((55, pattern(100_000))))];
    for (kind, expected) in expected.into_iter().enumerate() {
        a.request(1, &[kind as u32]);
        assert_eq!(next(&mut [&mut a, &mut b], "a reply", &told), expected);
        assert_eq!(a.bundle.outstanding(a.ep, 0).unwrap(), 0);
    }
}

pub(crate) fn medium_replies_keep_their_bytes_until_they_are_taken(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let reply = |message: &Message<'_>, token: Token<'_>| {
        let data = message.arg(0).to_le_bytes().repeat(750);
        token.reply_medium(2, message.args(), &data).unwrap();
    };
    b.bundle.set_handler(b.ep, 1, reply).unwrap();
    let (tell, told) = channel();
    let hear = move |message: &Message<'_>, _: Token<'_>| {
        let expected = message.arg(0).to_le_bytes().repeat(750);
        tell.send(message.data() == expected).unwrap();
    };
    a.bundle.set_handler(a.ep, 2, hear).unwrap();
    // More than there are places, and long enough for the peer to be granted the memory of these.
    for round in 0..400_u32 {
        for i in 0..4 {
            a.request(1, &[round * 4 + i]);
        }
        let mut sent = 0;
        until(&mut [], "four replies", || {
            sent += b.bundle.poll().unwrap();
            (sent >= 4).then_some(())
        });
        for _ in 0..4 {
            assert!(next(&mut [&mut a, &mut b], "a reply", &told), "round {round}");
        }
    }
}

pub(crate) fn requests_are_handled_in_their_order(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let told = b.hear(1);
    let back = a.hear(2);
    b.echo(3);
    for i in 0..200_u32 {
        // Without a reply, with one, short and medium.
        let (handler, data) = (if i % 3 == 0 { 3 } else { 1 }, pattern(i as usize * 7 % 400));
        until(&mut [&mut b], "room", || {
            let sent = if i % 2 == 0 {
                a.bundle.try_request(a.ep, 0, handler, &[i])
            } else {
                a.bundle.try_request_medium(a.ep, 0, handler, &[i], &data)
            };
            a.bundle.poll().unwrap();
            sent.ok()
        });
    }
    answered(&mut a, &mut [&mut b]);
    let expected = |echoed: bool| (0..200).filter(move |i| (i % 3 == 0) == echoed).map(|i| vec![i]);
    assert!(told.try_iter().eq(expected(false)));
    assert!(back.try_iter().eq(expected(true)));
}

pub(crate) fn a_request_without_a_reply_gives_its_credit_back(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let told = b.hear(1);
    a.request(1, &[1]);
    assert_eq!(a.bundle.outstanding(a.ep, 0).unwrap(), 1);
    next(&mut [&mut b], "the request", &told);
    answered(&mut a, &mut [&mut b]);
}

pub(crate) fn a_message_names_its_sender(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    let (tell, told) = channel::<(EndpointName, Tag, bool)>();
    let hear = move |message: &Message<'_>, _: Token<'_>| {
        tell.send((message.source(), message.tag(), message.is_request())).unwrap();
    };
    b.bundle.set_handler(b.ep, 1, hear).unwrap();
    a.request(1, &[]);
    assert_eq!(next(&mut [&mut a, &mut b], "a request", &told), (a.name(), TAG, true));
    assert_eq!(a.bundle.mapped(a.ep, 0).unwrap(), Some((b.name(), TAG)));
    assert_eq!(a.bundle.mapped(a.ep, 1).unwrap(), None);
}

pub(crate) fn two_endpoints_map_each_other(bed: &Bed) {
    let [mut a, mut b] = bed.pair();
    b.map(0, &a).unwrap();
    let (from_a, from_b) = (b.hear(1), a.hear(1));
    a.request(1, &[1]);
    b.request(1, &[2]);
    assert_eq!(next(&mut [&mut a, &mut b], "a request", &from_a), [1]);
    assert_eq!(next(&mut [&mut a, &mut b], "a request", &from_b), [2]);
}

pub(crate) fn an_endpoint_maps_itself(bed: &Bed) {
    let mut a = bed.sides(1).remove(0);
    let (name, told) = (a.name(), a.hear(2));
    a.echo(1);
    a.bundle.map(a.ep, 0, &name, TAG).unwrap();
    for i in 0..20 {
        a.request(1, &[i]);
    }
    for i in 0..20 {
        assert_eq!(next(&mut [&mut a], "a reply", &told), [i]);
    }
}

pub(crate) fn one_endpoint_maps_many(bed: &Bed) {
    let mut sides = bed.sides(5);
    let mut a = sides.remove(0);
    let told = a.hear(2);
    for (i, side) in sides.iter_mut().enumerate() {
        a.map(i, side).unwrap();
        side.echo(1);
    }
    for i in 0..4 {
        a.bundle.request(a.ep, i, 1, &[i as u32]).unwrap();
    }
    let mut all: Vec<&mut Side> = sides.iter_mut().collect();
    all.push(&mut a);
    let mut got: Vec<u32> = (0..4).map(|_| next(&mut all, "a reply", &told)[0]).collect();
    got.sort_unstable();
    assert_eq!(got, [0, 1, 2, 3]);
}
