//! Each kind of event, and each field.

use portals::v3::{AckReq, EventKind, MdOptions, MdState, NiFail, Threshold, Unlink};
use portals::v3::{Event, Jid, Md, Uid};
use portals::{NodeOptions, Pieces};

use crate::pair::{Bed, Pair, Side, pattern, times};

const BOTH: MdOptions = MdOptions::OP_PUT.union(MdOptions::OP_GET);

/// The two events of an operation, which share all but their kind, their number and the end's failure.
#[track_caller]
fn pair_of(side: &Side, other: &Side, start: EventKind, end: EventKind) -> Event {
    let began = side.expect(start, other);
    let ended = side.expect(end, other);
    assert_eq!(began, Event { kind: start, sequence: began.sequence, ..ended });
    assert!(began.sequence < ended.sequence);
    ended
}

pub(crate) fn put_start_and_put_end_tell_all_fields(bed: &Bed) {
    let as_user = |uid, jid| NodeOptions { uid: Uid(uid), jid: Jid(jid), ..NodeOptions::default() };
    let p = bed.pair_of(&Default::default(), [as_user(7, 70), as_user(8, 80)]);
    p.b.ni.ac_entry(5, portals::v3::MatchId::ANY, None).unwrap();
    let memory = p.b.zeroed(64);
    let options = MdOptions::OP_PUT | MdOptions::MANAGE_REMOTE;
    let md = Md { threshold: times(9), user_ptr: 0xbeef, ..p.b.md(&memory, options) };
    let (_, handle) = p.b.post(3, &md);
    let from = p.a.silent(b"hello");
    p.a.ni.put(from, AckReq::NoAck, p.b.id(), 3, 5, 0x77, 16, 0x88).unwrap();
    let event = pair_of(&p.b, &p.a, EventKind::PutStart, EventKind::PutEnd);
    let state = MdState {
        start: memory.addr(),
        length: 64,
        threshold: times(8),
        max_size: 0,
        options,
        user_ptr: 0xbeef,
        eq: Some(p.b.eq),
    };
    let wanted = Event {
        kind: EventKind::PutEnd,
        initiator: p.a.id(),
        uid: Uid(7),
        jid: Jid(70),
        pt_index: 3,
        match_bits: 0x77,
        rlength: 5,
        mlength: 5,
        offset: 16,
        md_handle: handle,
        md: state,
        hdr_data: 0x88,
        link: event.link,
        ni_fail_type: NiFail::Ok,
        sequence: 1,
    };
    assert_eq!(event, wanted);
    assert_eq!(memory.to_vec()[16..21], *b"hello");
    p.b.nothing_left();
}

pub(crate) fn get_start_and_get_end_at_the_target_reply_start_and_reply_end_at_the_initiator(bed: &Bed) {
    let p = bed.pair();
    let (_, posted) = p.b.post(4, &p.b.md(p.b.filled(b"0123456789"), BOTH | MdOptions::MANAGE_REMOTE));
    let memory = p.a.zeroed(16);
    let into = p.a.ni.md_bind(&p.a.md(&memory, MdOptions::empty()), Unlink::Retain).unwrap();
    p.a.ni.get_region(into, 8, 4, p.b.id(), 4, 0, 9, 3).unwrap();
    let served = pair_of(&p.b, &p.a, EventKind::GetStart, EventKind::GetEnd);
    assert_eq!((served.initiator, served.md_handle, served.pt_index), (p.a.id(), posted, 4));
    assert_eq!((served.match_bits, served.offset, served.rlength, served.mlength), (9, 3, 4, 4));
    let here = pair_of(&p.a, &p.b, EventKind::ReplyStart, EventKind::ReplyEnd);
    assert_eq!((here.initiator, here.md_handle), (p.b.id(), into));
    assert_eq!((here.offset, here.rlength, here.mlength), (8, 4, 4), "where it is in the descriptor here");
    assert_eq!(memory.to_vec(), b"\0\0\0\0\0\0\0\x003456\0\0\0\0");
    p.a.nothing_left();
    p.b.nothing_left();
}

pub(crate) fn get_put_start_and_get_put_end_come_at_the_target(bed: &Bed) {
    let p = bed.pair();
    let (_, posted) = p.b.post(4, &p.b.md(p.b.filled(b"old"), BOTH));
    let (into, from) = (p.a.zeroed(3), p.a.loud(b"new"));
    let reply = p.a.ni.md_bind(&p.a.md(&into, MdOptions::empty()), Unlink::Retain).unwrap();
    p.a.ni.get_put(reply, from, p.b.id(), 4, 0, 5, 0, 6).unwrap();
    let there = pair_of(&p.b, &p.a, EventKind::GetPutStart, EventKind::GetPutEnd);
    assert_eq!((there.md_handle, there.hdr_data, there.mlength), (posted, 6, 3));
    let sent = pair_of(&p.a, &p.b, EventKind::SendStart, EventKind::SendEnd);
    let got = pair_of(&p.a, &p.b, EventKind::ReplyStart, EventKind::ReplyEnd);
    assert_eq!((sent.md_handle, got.md_handle), (from, reply));
    assert_eq!(sent.link, got.link, "one operation");
    assert_eq!(into.to_vec(), b"old");
}

pub(crate) fn send_start_and_send_end_enclose_what_leaves(bed: &Bed) {
    let p = bed.pair();
    p.b.post(1, &p.b.md(p.b.zeroed(1 << 16), MdOptions::OP_PUT));
    for len in [0, 100, 5000] {
        let md = p.a.loud(&pattern(len));
        p.a.ni.put(md, AckReq::NoAck, p.b.id(), 1, 0, 2, 3, 4).unwrap();
        let event = pair_of(&p.a, &p.b, EventKind::SendStart, EventKind::SendEnd);
        assert_eq!((event.initiator, event.md_handle, event.pt_index), (p.b.id(), md, 1));
        assert_eq!((event.rlength, event.mlength, event.offset), (len as u64, len as u64, 3));
        assert_eq!((event.match_bits, event.hdr_data), (2, 4));
        p.a.nothing_left();
    }
}

pub(crate) fn ack_tells_what_became_of_a_put_and_comes_only_where_it_is_asked_for(bed: &Bed) {
    let p = bed.pair();
    let md = p.b.md(p.b.zeroed(8), MdOptions::OP_PUT | MdOptions::TRUNCATE);
    p.b.post(1, &md);
    let from = p.a.loud(b"twelve bytes");
    p.a.put(from, &p.b, 1, 0);
    let sent = pair_of(&p.a, &p.b, EventKind::SendStart, EventKind::SendEnd);
    p.a.fence(&p.b);
    p.a.nothing_left();
    p.b.ni.md_update(p.b.expect(EventKind::PutStart, &p.a).md_handle, Some(&md), None).unwrap();
    p.a.put_acked(from, &p.b, 1, 77);
    let again = pair_of(&p.a, &p.b, EventKind::SendStart, EventKind::SendEnd);
    let ack = p.a.expect(EventKind::Ack, &p.b);
    assert_ne!(sent.link, again.link);
    assert_eq!((ack.link, ack.md_handle, ack.match_bits), (again.link, from, 77));
    assert_eq!((ack.rlength, ack.mlength), (12, 8), "what was asked for, and what was taken");
    assert_eq!(ack.md.threshold, Threshold::Infinite);
}

pub(crate) fn unlink_comes_last_and_is_linked_to_what_used_the_descriptor_up(bed: &Bed) {
    let p = bed.pair();
    let md = Md { threshold: times(2), ..p.b.md(p.b.zeroed(64), MdOptions::OP_PUT) };
    let me =
        p.b.ni.me_attach(1, portals::v3::MatchId::ANY, 0, !0, Unlink::Unlink, portals::v3::Position::After);
    let (me, from) = (me.unwrap(), p.a.silent(b"x"));
    let handle = p.b.ni.md_attach(me, &md, Unlink::Unlink).unwrap();
    p.a.put(from, &p.b, 1, 0);
    p.a.put(from, &p.b, 1, 0);
    let first = pair_of(&p.b, &p.a, EventKind::PutStart, EventKind::PutEnd);
    let second = pair_of(&p.b, &p.a, EventKind::PutStart, EventKind::PutEnd);
    let unlink = p.b.expect(EventKind::Unlink, &p.a);
    assert_eq!((unlink.md_handle, unlink.link), (handle, second.link));
    assert_ne!(first.link, second.link);
    assert_eq!(unlink.md.threshold, times(0));
    p.b.nothing_left();
}

pub(crate) fn event_start_disable_leaves_the_start_events_out(bed: &Bed) {
    left_out(bed, MdOptions::EVENT_START_DISABLE, |kinds| {
        use EventKind::*;
        assert_eq!(kinds[0], [PutEnd, GetEnd, GetPutEnd]);
        assert_eq!(kinds[1], [SendEnd, Ack, ReplyEnd, SendEnd, ReplyEnd]);
    });
}

pub(crate) fn event_end_disable_leaves_the_end_events_out_and_keeps_acks(bed: &Bed) {
    left_out(bed, MdOptions::EVENT_END_DISABLE, |kinds| {
        use EventKind::*;
        assert_eq!(kinds[0], [PutStart, GetStart, GetPutStart]);
        assert_eq!(kinds[1], [SendStart, Ack, ReplyStart, SendStart, ReplyStart]);
    });
}

pub(crate) fn both_disabled_leave_the_ack_alone(bed: &Bed) {
    left_out(bed, MdOptions::EVENT_START_DISABLE | MdOptions::EVENT_END_DISABLE, |kinds| {
        assert_eq!(kinds, [vec![], vec![EventKind::Ack]]);
    });
}

/// Puts, gets and exchanges with the same options at both ends; tells the kinds at the target and at the initiator.
fn left_out(bed: &Bed, options: MdOptions, check: impl Fn([Vec<EventKind>; 2])) {
    let p = bed.pair();
    p.b.post(1, &p.b.md(p.b.zeroed(64), BOTH | MdOptions::MANAGE_REMOTE | options));
    let md = p.a.ni.md_bind(&p.a.md(p.a.zeroed(4), options), Unlink::Retain).unwrap();
    let into = p.a.ni.md_bind(&p.a.md(p.a.zeroed(4), options), Unlink::Retain).unwrap();
    p.a.put_acked(md, &p.b, 1, 0);
    p.a.fence(&p.b);
    p.a.ni.get(into, p.b.id(), 1, 0, 0, 0).unwrap();
    p.a.fence(&p.b);
    p.a.ni.get_put(into, md, p.b.id(), 1, 0, 0, 0, 0).unwrap();
    p.a.fence(&p.b);
    check([kinds(&p.b), kinds(&p.a)]);
}

fn kinds(side: &Side) -> Vec<EventKind> {
    std::iter::from_fn(|| side.ni.eq_get(side.eq).unwrap()).map(|got| got.event.kind).collect()
}

pub(crate) fn a_start_comes_before_the_bytes_of_a_long_put_and_its_end_with_them(bed: &Bed) {
    let p = bed.pair();
    let (memory, bytes) = (p.b.zeroed(1 << 20), pattern(1 << 20));
    p.b.post(1, &p.b.md(&memory, MdOptions::OP_PUT));
    let from = p.a.silent(&bytes);
    p.a.put(from, &p.b, 1, 0);
    pair_of(&p.b, &p.a, EventKind::PutStart, EventKind::PutEnd);
    assert_eq!(memory.to_vec(), bytes);
}

pub(crate) fn the_descriptor_in_an_event_is_as_it_was_right_after_it(bed: &Bed) {
    let p = bed.pair();
    let vector = Pieces::from(vec![p.b.zeroed(32), p.b.zeroed(32)]);
    let options = MdOptions::OP_PUT | MdOptions::MAX_SIZE;
    let md = Md { threshold: times(3), max_size: 4, ..p.b.md(vector, options) };
    p.b.post(1, &md);
    let from = p.a.silent(b"abc");
    (0..3).for_each(|_| p.a.put(from, &p.b, 1, 0));
    let left: Vec<_> = (0..3).map(|_| pair_of(&p.b, &p.a, EventKind::PutStart, EventKind::PutEnd)).collect();
    for (i, event) in left.iter().enumerate() {
        assert_eq!((event.md.threshold, event.offset), (times(2 - i as u32), 3 * i as u64));
        assert_eq!((event.md.max_size, event.md.length), (4, 64));
        assert_eq!(event.md.options, options | MdOptions::IOVEC);
    }
}

pub(crate) fn sequence_counts_the_events_of_a_queue(bed: &Bed) {
    let p = bed.pair();
    p.b.post(1, &p.b.md(p.b.zeroed(64), MdOptions::OP_PUT));
    let from = p.a.silent(b"x");
    (0..5).for_each(|_| p.a.put(from, &p.b, 1, 0));
    p.a.fence(&p.b);
    let told = std::iter::from_fn(|| p.b.ni.eq_get(p.b.eq).unwrap()).map(|got| got.event.sequence);
    assert_eq!(told.collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
}

pub(crate) fn undeliverable_is_told_where_nobody_answers(bed: &Bed) {
    let options =
        NodeOptions { connect_timeout: std::time::Duration::from_millis(200), ..NodeOptions::default() };
    let Pair { a, b, ghost } = bed.pair_with(&Default::default(), &options);
    let (md, into) = (a.loud(b"x"), a.loud(b"y"));
    a.ni.put(md, AckReq::Ack, ghost, 1, 0, 0, 0, 0).unwrap();
    a.ni.get(into, ghost, 1, 0, 0, 0).unwrap();
    a.expect(EventKind::SendStart, &b);
    let ends: Vec<_> = (0..4).map(|_| a.next(&b).event).collect();
    let told: Vec<_> = ends.iter().map(|event| (event.kind, event.md_handle, event.mlength)).collect();
    use EventKind::*;
    assert_eq!(told[..2], [(SendEnd, md, 1), (Ack, md, 0)]);
    assert_eq!(told[2..], [(ReplyStart, into, 0), (ReplyEnd, into, 0)]);
    assert!(ends.iter().all(|event| event.ni_fail_type == NiFail::Undeliverable), "{ends:?}");
}

pub(crate) fn undeliverable_is_told_of_a_target_that_has_gone(bed: &Bed) {
    let hasty =
        NodeOptions { connect_timeout: std::time::Duration::from_millis(200), ..NodeOptions::default() };
    let Pair { a, b, .. } = bed.pair_of(&Default::default(), [hasty, NodeOptions::default()]);
    b.post(1, &b.md(b.zeroed(64), BOTH));
    let (md, id) = (a.loud(b"x"), b.id());
    // On a machine that has other things to do, the target may be given up before it answers.
    let met = (0..50).any(|_| {
        a.put_acked(md, &b, 1, 0);
        a.expect(EventKind::SendStart, &b);
        let ends = [(); 2].map(|()| a.next(&b).event);
        assert_eq!(ends.map(|event| event.kind), [EventKind::SendEnd, EventKind::Ack]);
        ends[1].ni_fail_type == NiFail::Ok
    });
    assert!(met, "the target never answers");
    drop(b);
    a.ni.put(md, AckReq::Ack, id, 1, 0, 0, 0, 0).unwrap();
    a.ni.get(md, id, 1, 0, 0, 0).unwrap();
    let mut told = Vec::new();
    while told.len() < 5 {
        let event = a.next(&a).event;
        if event.ni_fail_type != NiFail::Ok {
            assert_eq!(event.ni_fail_type, NiFail::Undeliverable);
        }
        told.push((event.kind, event.ni_fail_type == NiFail::Ok));
    }
    use EventKind::*;
    assert_eq!(told[0], (SendStart, true));
    // It may have left before it was known that nobody is there.
    assert_eq!(told[1].0, SendEnd);
    assert_eq!(told[2..], [(Ack, false), (ReplyStart, false), (ReplyEnd, false)]);
    a.nothing_left();
}
