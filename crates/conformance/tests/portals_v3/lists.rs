//! Match entries: order, criteria, insertion and removal.

use portals::NodeOptions;
use portals::v3::{
    EventKind, Jid, Limits, MatchId, Md, MdHandle, MdOptions, Nid, Pid, Position, ReturnCode, StatusRegister,
    Threshold, Uid, Unlink,
};

use crate::pair::{Bed, Side, times};

const PUT: MdOptions = MdOptions::OP_PUT.union(MdOptions::EVENT_START_DISABLE);

/// An entry for everything with a descriptor for one message, told by its `user_ptr`.
fn once(side: &Side, me: portals::v3::MeHandle, user_ptr: u64) -> MdHandle {
    let md = Md { threshold: times(1), user_ptr, ..side.md(side.zeroed(8), PUT) };
    side.ni.md_attach(me, &md, Unlink::Unlink).unwrap()
}
/// Whose descriptors take so many messages, in order.
fn taken(from: &Side, by: &Side, pt_index: u32, count: usize) -> Vec<u64> {
    let md = from.silent(b"x");
    (0..count).for_each(|_| from.put(md, by, pt_index, 0));
    let mut out = Vec::new();
    while out.len() < count {
        let event = by.next(from).event;
        if event.kind == EventKind::PutEnd {
            out.push(event.md.user_ptr);
        }
    }
    out
}

pub(crate) fn me_attach_before_and_after_go_to_the_ends_of_the_list(bed: &Bed) {
    let p = bed.pair();
    for (user_ptr, position) in
        [(3, Position::After), (2, Position::Before), (4, Position::After), (1, Position::Before)]
    {
        let me = p.b.ni.me_attach(1, MatchId::ANY, 0, 0, Unlink::Unlink, position).unwrap();
        once(&p.b, me, user_ptr);
    }
    assert_eq!(taken(&p.a, &p.b, 1, 4), [1, 2, 3, 4]);
}

pub(crate) fn me_insert_before_and_after_go_beside_an_entry(bed: &Bed) {
    let p = bed.pair();
    let ni = &p.b.ni;
    let attach = || ni.me_attach(1, MatchId::ANY, 0, 0, Unlink::Retain, Position::After).unwrap();
    let (first, last) = (attach(), attach());
    let insert = |base, position| ni.me_insert(base, MatchId::ANY, 0, 0, Unlink::Unlink, position).unwrap();
    once(&p.b, insert(last, Position::Before), 4);
    once(&p.b, insert(last, Position::After), 6);
    once(&p.b, insert(first, Position::After), 3);
    once(&p.b, insert(first, Position::Before), 1);
    once(&p.b, first, 2);
    once(&p.b, last, 5);
    assert_eq!(taken(&p.a, &p.b, 1, 6), [1, 2, 3, 4, 5, 6]);
}

pub(crate) fn me_attach_any_takes_portals_without_entries_until_it_is_ptl_pt_full(bed: &Bed) {
    let limits = Limits { max_pt_index: 61, ..Limits::default() };
    let p = bed.pair_with(&limits, &NodeOptions::default());
    let ni = &p.b.ni;
    ni.me_attach(0, MatchId::ANY, 0, 0, Unlink::Retain, Position::After).unwrap();
    let any = || ni.me_attach_any(MatchId::ANY, 0, 0, Unlink::Retain);
    let mut made: Vec<_> = (0..60).map(|_| any().unwrap()).collect();
    made.sort_by_key(|(pt_index, _)| *pt_index);
    let wanted: Vec<u32> = (1..62).filter(|&pt| pt != 60).collect();
    assert_eq!(made.iter().map(|(pt_index, _)| *pt_index).collect::<Vec<_>>(), wanted);
    let refused = any().unwrap_err();
    assert_eq!(refused.code(), ReturnCode::PtFull, "{refused}");
    let (pt_index, me) = made[30];
    ni.me_unlink(me).unwrap();
    let (again, me) = any().unwrap();
    assert_eq!(again, pt_index, "whose entries have gone");
    once(&p.b, me, 9);
    assert_eq!(taken(&p.a, &p.b, pt_index, 1), [9]);
}

pub(crate) fn an_entry_without_a_descriptor_takes_nothing(bed: &Bed) {
    let p = bed.pair();
    let me = p.b.ni.me_attach(1, MatchId::ANY, 0, 0, Unlink::Unlink, Position::After).unwrap();
    p.a.put(p.a.silent(b"x"), &p.b, 1, 0);
    p.a.fence(&p.b);
    assert_eq!(p.b.ni.status(StatusRegister::DropCount), 1);
    once(&p.b, me, 1);
    assert_eq!(taken(&p.a, &p.b, 1, 1), [1]);
}

pub(crate) fn match_bits_decide_but_for_the_ignored_ones(bed: &Bed) {
    let p = bed.pair();
    for (user_ptr, bits, ignore) in [(1, 0x10, 0), (2, 0xab00, 0xff), (3, 0, !0)] {
        let md = Md { user_ptr, ..p.b.md(p.b.zeroed(64), PUT) };
        p.b.post_for(1, bits, ignore, &md);
    }
    let from = p.a.silent(b"x");
    for (bits, wanted) in [(0x10, 1), (0xab12, 2), (0x11, 3), (1 << 63 | 0x10, 3), (0xabff, 2)] {
        p.a.put(from, &p.b, 1, bits);
        assert_eq!(p.b.expect(EventKind::PutEnd, &p.a).md.user_ptr, wanted, "{bits:#x}");
    }
}

pub(crate) fn match_id_selects_by_node_process_user_and_job_each_of_them_or_any(bed: &Bed) {
    let as_user = |uid, jid| NodeOptions { uid: Uid(uid), jid: Jid(jid), ..NodeOptions::default() };
    let p = bed.pair_of(&Limits::default(), [as_user(7, 70), as_user(7, 80)]);
    let id = p.a.id();
    let no = |nid: Nid| Nid(nid.0 ^ 1);
    let any = MatchId::ANY;
    let cases: [(MatchId, bool); 11] = [
        (any, true),
        (id.into(), true),
        (MatchId { nid: Some(id.nid), ..any }, true),
        (MatchId { nid: Some(no(id.nid)), ..any }, false),
        (MatchId { pid: Some(id.pid), ..any }, true),
        (MatchId { pid: Some(Pid(id.pid.0 ^ 1)), ..any }, false),
        (MatchId { uid: Some(Uid(7)), ..any }, true),
        (MatchId { uid: Some(Uid(8)), ..any }, false),
        (MatchId { jid: Some(Jid(70)), ..any }, true),
        (MatchId { jid: Some(Jid(80)), ..any }, false),
        (MatchId { uid: Some(Uid(7)), jid: Some(Jid(70)), ..id.into() }, true),
    ];
    let from = p.a.silent(b"x");
    let fallback = Md { user_ptr: 99, ..p.b.md(p.b.zeroed(64), PUT) };
    p.b.post(1, &fallback);
    for (match_id, takes) in cases {
        let me = p.b.ni.me_attach(1, match_id, 0, 0, Unlink::Unlink, Position::Before).unwrap();
        let md = once(&p.b, me, 1);
        p.a.put(from, &p.b, 1, 0);
        let by = p.b.expect(EventKind::PutEnd, &p.a).md.user_ptr;
        assert_eq!(by, if takes { 1 } else { 99 }, "{match_id:?}");
        match takes {
            true => drop(p.b.expect(EventKind::Unlink, &p.a)),
            false => p.b.ni.md_unlink(md).unwrap(),
        }
    }
}

pub(crate) fn me_unlink_takes_the_entry_with_its_descriptor_and_says_nothing(bed: &Bed) {
    let p = bed.pair();
    let (me, md) = p.b.post(1, &p.b.md(p.b.zeroed(8), PUT));
    p.b.ni.me_unlink(me).unwrap();
    p.b.nothing_left();
    assert_eq!(p.b.ni.me_unlink(me).unwrap_err().code(), ReturnCode::MeInvalid);
    assert_eq!(p.b.ni.md_unlink(md).unwrap_err().code(), ReturnCode::MdInvalid);
    p.a.put(p.a.silent(b"x"), &p.b, 1, 0);
    p.a.fence(&p.b);
    assert_eq!(p.b.ni.status(StatusRegister::DropCount), 1);
}

pub(crate) fn retain_and_unlink_of_both_objects(bed: &Bed) {
    use Unlink::{Retain, Unlink as Goes};
    for (md_goes, me_goes) in [(Retain, Retain), (Retain, Goes), (Goes, Retain), (Goes, Goes)] {
        let p = bed.pair();
        let me = p.b.ni.me_attach(1, MatchId::ANY, 0, 0, me_goes, Position::After).unwrap();
        let one = Md { threshold: times(1), ..p.b.md(p.b.zeroed(8), PUT) };
        let md = p.b.ni.md_attach(me, &one, md_goes).unwrap();
        p.a.put(p.a.silent(b"x"), &p.b, 1, 0);
        p.b.expect(EventKind::PutEnd, &p.a);
        let case = format!("{md_goes:?} {me_goes:?}");
        match md_goes {
            Goes => drop(p.b.expect(EventKind::Unlink, &p.a)),
            Retain => {
                p.b.nothing_left();
                let state = p.b.ni.md_update(md, None, None).unwrap();
                assert_eq!(state.threshold, Threshold::Count(0), "{case}: inactive, and there");
            }
        }
        let again = p.b.ni.md_attach(me, &one, md_goes).map(|_| ()).map_err(|error| error.code());
        let wanted = match (md_goes, me_goes) {
            (Retain, _) => Err(ReturnCode::MeInUse),
            (Goes, Retain) => Ok(()),
            (Goes, Goes) => Err(ReturnCode::MeInvalid),
        };
        assert_eq!(again, wanted, "{case}");
    }
}

pub(crate) fn md_unlink_takes_the_entry_with_it_if_that_was_to_go(bed: &Bed) {
    let p = bed.pair();
    for me_goes in [Unlink::Retain, Unlink::Unlink] {
        let me = p.b.ni.me_attach(1, MatchId::ANY, 0, 0, me_goes, Position::After).unwrap();
        let md = p.b.ni.md_attach(me, &p.b.md(p.b.zeroed(8), PUT), Unlink::Retain).unwrap();
        p.b.ni.md_unlink(md).unwrap();
        p.b.nothing_left();
        let left = p.b.ni.me_unlink(me).map_err(|error| error.code());
        let gone = me_goes == Unlink::Unlink;
        assert_eq!(left, if gone { Err(ReturnCode::MeInvalid) } else { Ok(()) });
    }
}

pub(crate) fn a_thousand_exact_entries_each_take_their_own(bed: &Bed) {
    let p = bed.pair();
    let eq = p.b.ni.eq_alloc(4096, None).unwrap();
    let memory = p.b.zeroed(8);
    for i in 0..1000 {
        let me = p.b.ni.me_attach(1, p.a.id(), i, 0, Unlink::Unlink, Position::After).unwrap();
        let md = Md { threshold: times(1), user_ptr: i, eq: Some(eq), ..p.b.md(&memory, PUT) };
        p.b.ni.md_attach(me, &md, Unlink::Unlink).unwrap();
    }
    let from = p.a.silent(b"x");
    for i in 0..1000 {
        p.a.put(from, &p.b, 1, i * 7 % 1000);
        let event = p.b.next_of(eq, &p.a).event;
        assert_eq!((event.kind, event.md.user_ptr), (EventKind::PutEnd, i * 7 % 1000));
        assert_eq!(p.b.next_of(eq, &p.a).event.kind, EventKind::Unlink);
    }
}
