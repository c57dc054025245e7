//! Memory descriptors: their options, thresholds and offsets; updates.

use portals::v3::{
    AckReq, EventKind, MatchId, Md, MdOptions, NiFail, Position, ReturnCode, StatusRegister, Threshold,
    Unlink,
};

use crate::pair::{Bed, Side, times, until};

const ENDS: MdOptions = MdOptions::EVENT_START_DISABLE;
const PUT: MdOptions = MdOptions::OP_PUT.union(ENDS);

fn drops(side: &Side) -> u64 {
    side.ni.status(StatusRegister::DropCount)
}

pub(crate) fn op_put_and_op_get_say_what_is_taken(bed: &Bed) {
    let p = bed.pair();
    let both = MdOptions::OP_PUT | MdOptions::OP_GET;
    for (pt, options) in [(0, MdOptions::empty()), (1, MdOptions::OP_PUT), (2, MdOptions::OP_GET), (3, both)]
    {
        let md = p.b.md(p.b.zeroed(64), options | MdOptions::MANAGE_REMOTE | ENDS);
        p.b.post(pt, &Md { eq: None, ..md });
        let md = p.a.md(p.a.zeroed(4), ENDS);
        let from = p.a.ni.md_bind(&md, Unlink::Retain).unwrap();
        p.a.put_acked(from, &p.b, pt, 0);
        p.a.expect(EventKind::SendEnd, &p.b);
        let put = p.a.next(&p.b).event.ni_fail_type;
        p.a.ni.get(from, p.b.id(), pt, 0, 0, 0).unwrap();
        let got = p.a.next(&p.b).event.ni_fail_type;
        let into = p.a.ni.md_bind(&md, Unlink::Retain).unwrap();
        p.a.ni.get_put(into, from, p.b.id(), pt, 0, 0, 0, 0).unwrap();
        p.a.expect(EventKind::SendEnd, &p.b);
        let exchanged = p.a.next(&p.b).event.ni_fail_type;
        let wanted = |does| if does { NiFail::Ok } else { NiFail::Dropped };
        let (puts, gets) = (options.contains(MdOptions::OP_PUT), options.contains(MdOptions::OP_GET));
        assert_eq!([put, got, exchanged], [wanted(puts), wanted(gets), wanted(puts && gets)]);
    }
    assert_eq!(drops(&p.b), 3 + 2 + 2);
}

pub(crate) fn an_entry_whose_descriptor_may_not_take_a_message_passes_it_on(bed: &Bed) {
    let p = bed.pair();
    for (user_ptr, len, options) in
        [(1, 64, MdOptions::OP_GET), (2, 4, MdOptions::OP_PUT), (3, 64, MdOptions::OP_PUT)]
    {
        p.b.post(1, &Md { user_ptr, ..p.b.md(p.b.zeroed(len), options | ENDS) });
    }
    p.a.put(p.a.silent(b"12345"), &p.b, 1, 0);
    assert_eq!(p.b.expect(EventKind::PutEnd, &p.a).md.user_ptr, 3, "two had no right, or no room");
}

pub(crate) fn offsets_are_managed_locally_unless_manage_remote(bed: &Bed) {
    let p = bed.pair();
    let (local, remote) = (p.b.zeroed(16), p.b.zeroed(16));
    p.b.post(1, &p.b.md(&local, PUT));
    p.b.post(2, &p.b.md(&remote, PUT | MdOptions::MANAGE_REMOTE));
    let from = p.a.silent(b"abc");
    for (pt, offsets) in [(1, [0, 3, 6]), (2, [9, 9, 9])] {
        for wanted in offsets {
            p.a.ni.put(from, AckReq::NoAck, p.b.id(), pt, 0, 0, 9, 0).unwrap();
            assert_eq!(p.b.expect(EventKind::PutEnd, &p.a).offset, wanted);
        }
    }
    assert_eq!(local.to_vec(), b"abcabcabc\0\0\0\0\0\0\0");
    assert_eq!(remote.to_vec(), b"\0\0\0\0\0\0\0\0\0abc\0\0\0\0");
}

pub(crate) fn truncate_cuts_off_and_without_it_what_is_too_long_is_rejected(bed: &Bed) {
    let p = bed.pair();
    for len in [9, 5000] {
        let memory = p.b.zeroed(8);
        let (_, md) = p.b.post(1, &p.b.md(&memory, PUT));
        let from = p.a.silent(&vec![7; len]);
        p.a.put(from, &p.b, 1, 0);
        p.a.fence(&p.b);
        p.b.nothing_left();
        p.b.ni.md_update(md, Some(&p.b.md(&memory, PUT | MdOptions::TRUNCATE)), None).unwrap();
        p.a.put(from, &p.b, 1, 0);
        let event = p.b.expect(EventKind::PutEnd, &p.a);
        assert_eq!((event.rlength, event.mlength, memory.to_vec()), (len as u64, 8, vec![7; 8]));
        p.b.ni.md_unlink(md).unwrap();
    }
    assert_eq!(drops(&p.b), 2);
}

pub(crate) fn max_size_makes_it_inactive_as_soon_as_less_is_left(bed: &Bed) {
    let p = bed.pair();
    let me = p.b.ni.me_attach(1, MatchId::ANY, 0, 0, Unlink::Unlink, Position::After).unwrap();
    let md = Md { max_size: 4, ..p.b.md(p.b.zeroed(10), PUT | MdOptions::MAX_SIZE) };
    p.b.ni.md_attach(me, &md, Unlink::Unlink).unwrap();
    let from = p.a.silent(b"abc");
    (0..3).for_each(|_| p.a.put(from, &p.b, 1, 0));
    p.a.fence(&p.b);
    assert_eq!(p.b.expect(EventKind::PutEnd, &p.a).offset, 0);
    assert_eq!(
        p.b.expect(EventKind::PutEnd, &p.a).offset,
        3,
        "7 were left, and then 4: as many as are to be"
    );
    assert_eq!(p.b.expect(EventKind::PutEnd, &p.a).offset, 6);
    p.b.expect(EventKind::Unlink, &p.a);
    p.b.nothing_left();
}

pub(crate) fn max_size_counts_only_where_it_is_set_and_messages_do_not_say_where(bed: &Bed) {
    let p = bed.pair();
    for options in [MdOptions::empty(), MdOptions::MAX_SIZE | MdOptions::MANAGE_REMOTE] {
        let md = Md { max_size: 7, ..p.b.md(p.b.zeroed(9), PUT | options) };
        let (_, md) = p.b.post(1, &md);
        let from = p.a.silent(b"abc");
        (0..3).for_each(|_| p.a.put(from, &p.b, 1, 0));
        (0..3).for_each(|_| _ = p.b.expect(EventKind::PutEnd, &p.a));
        p.b.ni.md_unlink(md).unwrap();
    }
}

pub(crate) fn a_threshold_counts_what_comes_and_at_0_it_is_inactive(bed: &Bed) {
    let p = bed.pair();
    let md = Md { threshold: times(2), ..p.b.md(p.b.zeroed(64), PUT | MdOptions::OP_GET) };
    let (_, md) = p.b.post(1, &md);
    let from = p.a.silent(b"abc");
    p.a.put(from, &p.b, 1, 0);
    p.a.ni.get(from, p.b.id(), 1, 0, 0, 0).unwrap();
    p.a.put(from, &p.b, 1, 0);
    p.a.fence(&p.b);
    p.b.expect(EventKind::PutEnd, &p.a);
    p.b.expect(EventKind::GetEnd, &p.a);
    p.b.nothing_left();
    assert_eq!(drops(&p.b), 1);
    let old = p.b.ni.md_update(md, Some(&p.b.md(p.b.zeroed(64), PUT)), None).unwrap();
    assert_eq!(old.threshold, times(0));
    (0..3).for_each(|_| p.a.put(from, &p.b, 1, 0));
    (0..3).for_each(|_| assert_eq!(p.b.expect(EventKind::PutEnd, &p.a).md.threshold, Threshold::Infinite));
}

pub(crate) fn a_threshold_counts_what_an_initiator_is_told_of(bed: &Bed) {
    let p = bed.pair();
    p.b.post(
        1,
        &Md { eq: None, ..p.b.md(p.b.zeroed(64), PUT | MdOptions::OP_GET | MdOptions::MANAGE_REMOTE) },
    );
    let md = Md { threshold: times(3), ..p.a.md(p.a.zeroed(3), ENDS) };
    let md = p.a.ni.md_bind(&md, Unlink::Unlink).unwrap();
    p.a.put_acked(md, &p.b, 1, 0);
    assert_eq!(p.a.expect(EventKind::SendEnd, &p.b).md.threshold, times(2));
    assert_eq!(p.a.expect(EventKind::Ack, &p.b).md.threshold, times(1));
    p.a.ni.get(md, p.b.id(), 1, 0, 0, 0).unwrap();
    assert_eq!(p.a.expect(EventKind::ReplyEnd, &p.b).md.threshold, times(0));
    assert_eq!(p.a.expect(EventKind::Unlink, &p.b).md_handle, md);
    let refused = p.a.ni.put(md, AckReq::NoAck, p.b.id(), 1, 0, 0, 0, 0).unwrap_err();
    assert_eq!(refused.code(), ReturnCode::MdInvalid, "{refused}");
}

pub(crate) fn an_inactive_descriptor_sends_nothing_and_says_so(bed: &Bed) {
    let p = bed.pair();
    let md = Md { threshold: times(1), ..Md::new(p.a.zeroed(5000)) };
    let md = p.a.ni.md_bind(&md, Unlink::Retain).unwrap();
    p.a.put(md, &p.b, 1, 0);
    let refused = p.a.ni.put(md, AckReq::NoAck, p.b.id(), 1, 0, 0, 0, 0).unwrap_err();
    assert_eq!(refused.code(), ReturnCode::MdInvalid);
    assert!(refused.to_string().contains("inactive"), "{refused}");
    let refused = p.a.ni.get(md, p.b.id(), 1, 0, 0, 0).unwrap_err();
    assert_eq!(refused.code(), ReturnCode::MdInvalid);
}

pub(crate) fn a_reply_to_an_inactive_descriptor_is_dropped_with_its_bytes(bed: &Bed) {
    let p = bed.pair();
    for len in [4_usize, 5000] {
        p.b.post(
            1,
            &Md {
                eq: None,
                ..p.b.md(p.b.filled(&vec![7; len]), MdOptions::OP_GET | MdOptions::MANAGE_REMOTE)
            },
        );
        let memory = p.a.zeroed(2 * len);
        let md = Md { threshold: times(1), ..p.a.md(&memory, ENDS) };
        let md = p.a.ni.md_bind(&md, Unlink::Unlink).unwrap();
        let n = len as u64;
        let before = drops(&p.a);
        p.a.ni.get_region(md, 0, n, p.b.id(), 1, 0, 0, 0).unwrap();
        // An adapter that moves by itself may have the first reply by now, and with it used the descriptor up.
        let second = p.a.ni.get_region(md, n, n, p.b.id(), 1, 0, 0, 0);
        let both = second.is_ok();
        assert!(both || bed.offload && second.is_err_and(|e| e.code() == ReturnCode::MdInvalid));
        p.a.expect(EventKind::ReplyEnd, &p.b);
        p.a.expect(EventKind::Unlink, &p.b);
        p.a.nothing_left();
        // The second one may come late.
        until(&p.a, &p.b, || drops(&p.a) - before >= u64::from(both));
        assert_eq!(drops(&p.a) - before, u64::from(both));
        // Of long ones, both may be on their way before the first is here.
        if len == 4 {
            assert_eq!(memory.to_vec(), [[7; 4], [0; 4]].concat());
        }
        p.a.fence(&p.b);
    }
}

pub(crate) fn an_attached_descriptor_can_be_sent_from(bed: &Bed) {
    let p = bed.pair();
    let memory = p.b.zeroed(8);
    let (_, here) = p.b.post(1, &p.b.md(&memory, PUT));
    p.a.post(1, &Md { eq: None, ..p.a.md(p.a.zeroed(8), PUT) });
    p.a.put(p.a.silent(b"received"), &p.b, 1, 0);
    p.b.expect(EventKind::PutEnd, &p.a);
    p.b.put(here, &p.a, 1, 0);
    assert_eq!(p.b.expect(EventKind::SendEnd, &p.a).md_handle, here);
}

pub(crate) fn md_update_tells_the_old_values_and_sets_the_new_ones(bed: &Bed) {
    let p = bed.pair();
    let (old_memory, new_memory) = (p.b.zeroed(16), p.b.zeroed(8));
    let first = Md { threshold: times(5), user_ptr: 1, ..p.b.md(&old_memory, PUT) };
    let (_, md) = p.b.post(1, &first);
    let from = p.a.silent(b"abc");
    p.a.put(from, &p.b, 1, 0);
    p.b.expect(EventKind::PutEnd, &p.a);
    let read = p.b.ni.md_update(md, None, None).unwrap();
    assert_eq!((read.threshold, read.user_ptr, read.options, read.eq), (times(4), 1, PUT, Some(p.b.eq)));
    assert_eq!((read.memory.addr(), read.memory.len()), (old_memory.addr(), 16));
    let second = Md { user_ptr: 2, eq: None, ..p.b.md(&new_memory, PUT | MdOptions::TRUNCATE) };
    let old = p.b.ni.md_update(md, Some(&second), None).unwrap();
    assert_eq!((old.threshold, old.user_ptr, old.memory.addr()), (times(4), 1, old_memory.addr()));
    p.a.put(from, &p.b, 1, 0);
    p.a.fence(&p.b);
    p.b.nothing_left();
    assert_eq!(new_memory.to_vec(), b"abc\0\0\0\0\0", "from its beginning on");
    let back = p.b.ni.md_update(md, Some(&old), None).unwrap();
    assert_eq!(back.user_ptr, 2, "what was read can be set again");
}

pub(crate) fn md_update_keeps_whether_the_descriptor_leaves(bed: &Bed) {
    let p = bed.pair();
    for unlink in [Unlink::Retain, Unlink::Unlink] {
        let me = p.b.ni.me_attach(1, MatchId::ANY, 0, 0, Unlink::Unlink, Position::After).unwrap();
        let md = p.b.md(p.b.zeroed(16), PUT);
        let handle = p.b.ni.md_attach(me, &md, unlink).unwrap();
        p.b.ni.md_update(handle, Some(&Md { threshold: times(1), ..md }), None).unwrap();
        p.a.put(p.a.silent(b"x"), &p.b, 1, 0);
        p.b.expect(EventKind::PutEnd, &p.a);
        match unlink {
            Unlink::Unlink => drop(p.b.expect(EventKind::Unlink, &p.a)),
            Unlink::Retain => p.b.ni.md_unlink(handle).unwrap(),
        }
    }
}

pub(crate) fn md_update_is_made_only_if_the_queue_is_empty(bed: &Bed) {
    let p = bed.pair();
    let watched = p.b.ni.eq_alloc(8, None).unwrap();
    p.b.post_for(1, 1, 0, &Md { eq: Some(watched), ..p.b.md(p.b.zeroed(64), PUT) });
    let (_, md) = p.b.post_for(1, 2, 0, &Md { threshold: times(0), ..p.b.md(p.b.zeroed(64), PUT) });
    let active = p.b.md(p.b.zeroed(64), PUT);
    let from = p.a.silent(b"x");
    p.a.put(from, &p.b, 1, 1);
    p.a.fence(&p.b);
    let refused = p.b.ni.md_update(md, Some(&active), Some(watched)).unwrap_err();
    assert_eq!(refused.code(), ReturnCode::MdNoUpdate, "{refused}");
    assert!(refused.to_string().contains("test is not empty"), "{refused}");
    assert_eq!(p.b.ni.md_update(md, None, Some(watched)).unwrap().threshold, times(0), "nothing has changed");
    p.b.next_of(watched, &p.a);
    p.b.ni.md_update(md, Some(&active), Some(watched)).unwrap();
    p.a.put(from, &p.b, 1, 2);
    p.b.expect(EventKind::PutEnd, &p.a);
}

pub(crate) fn me_md_post_makes_both_only_if_the_queue_is_empty(bed: &Bed) {
    let p = bed.pair();
    let watched = p.b.ni.eq_alloc(8, None).unwrap();
    let (base, _) = p.b.post(1, &Md { eq: Some(watched), ..p.b.md(p.b.zeroed(64), PUT) });
    let md = Md { threshold: times(1), ..p.b.md(p.b.zeroed(64), PUT) };
    let post = |md: &Md| {
        let before = Position::Before;
        p.b.ni.me_md_post(
            base,
            MatchId::ANY,
            0,
            !0,
            Unlink::Unlink,
            before,
            md,
            Unlink::Unlink,
            Some(watched),
        )
    };
    let from = p.a.silent(b"x");
    p.a.put(from, &p.b, 1, 0);
    p.a.fence(&p.b);
    assert_eq!(post(&md).unwrap_err().code(), ReturnCode::MdNoUpdate);
    p.a.put(from, &p.b, 1, 0);
    p.b.next_of(watched, &p.a);
    p.b.next_of(watched, &p.a);
    let (_, handle) = post(&md).unwrap();
    p.a.put(from, &p.b, 1, 0);
    assert_eq!(p.b.expect(EventKind::PutEnd, &p.a).md_handle, handle);
    p.b.expect(EventKind::Unlink, &p.a);
    let freed = p.b.ni.eq_alloc(1, None).unwrap();
    p.b.ni.eq_free(freed).unwrap();
    assert_eq!(post(&Md { eq: Some(freed), ..md }).unwrap_err().code(), ReturnCode::EqInvalid);
    p.a.put(from, &p.b, 1, 0);
    assert_eq!(p.b.next_of(watched, &p.a).event.kind, EventKind::PutEnd, "no entry was left behind");
}
