//! The interface itself: opening, closing, and its queries.

use portals::v3::{
    AckReq, EventKind, Limits, MatchId, Md, MdOptions, Ni, NiFail, Position, ProcessId, ReturnCode,
    StatusRegister, Unlink,
};
use portals::{Jid, Nid, NodeOptions, Pid, Uid};

use crate::pair::{Bed, Side};

pub(crate) fn ni_init_takes_the_nodes_process_number_or_is_ptl_pid_invalid_and_again_yields_the_same_interface(
    bed: &Bed,
) {
    let options = NodeOptions { pid: Some(Pid(77)), ..NodeOptions::default() };
    let node = bed.nodes(&[options]).remove(0);
    let refused = Ni::init(&node, Some(78), &Limits::default()).unwrap_err();
    assert_eq!(refused.code(), ReturnCode::PidInvalid, "{refused}");
    assert!(refused.to_string().contains("78"), "{refused}");
    let ni = Ni::init(&node, Some(77), &Limits::default()).unwrap();
    assert_eq!(ni.id(), ProcessId { nid: node.card().nid, pid: Pid(77) });
    let few = Limits { max_mes: 1, ..Limits::default() };
    let again = Ni::init(&node, None, &few).unwrap();
    assert_eq!((again.ni_handle(), again.limits()), (ni.ni_handle(), ni.limits()));
    let eq = ni.eq_alloc(1, None).unwrap();
    drop(ni);
    assert_eq!(again.eq_get(eq).unwrap(), None, "it is open until the last is gone");
    let old = again.ni_handle();
    drop(again);
    let new = Ni::init(&node, None, &few).unwrap();
    assert_ne!(new.ni_handle(), old);
    assert_eq!(new.limits().max_mes, 1);
}

pub(crate) fn ni_fini_ends_an_interface_and_its_handles(bed: &Bed) {
    let p = bed.pair();
    let node = p.b.ni.node().clone();
    let (me, md) = p.b.post(1, &p.b.md(p.b.zeroed(8), MdOptions::OP_PUT));
    let (eq, old) = (p.b.eq, p.b.ni.ni_handle());
    drop(p.b);
    let again = Side::new(&node, &Limits::default());
    assert_ne!(again.ni.ni_handle(), old);
    assert_eq!(again.ni.me_unlink(me).unwrap_err().code(), ReturnCode::MeInvalid);
    assert_eq!(again.ni.md_unlink(md).unwrap_err().code(), ReturnCode::MdInvalid);
    assert_eq!(again.ni.eq_get(eq).unwrap_err().code(), ReturnCode::EqInvalid);
    let from = p.a.loud(b"x");
    p.a.put_acked(from, &again, 1, 0);
    p.a.expect(EventKind::SendStart, &again);
    p.a.expect(EventKind::SendEnd, &again);
    assert_eq!(p.a.next(&again).event.ni_fail_type, NiFail::Dropped, "its entries are gone");
}

pub(crate) fn a_put_to_a_node_whose_interface_is_closed_is_dropped(bed: &Bed) {
    let p = bed.pair();
    let (id, node) = (p.b.id(), p.b.ni.node().clone());
    drop(p.b);
    let from = p.a.loud(b"x");
    p.a.ni.put(from, AckReq::Ack, id, 1, 0, 0, 0, 0).unwrap();
    let mut last = None;
    let began = std::time::Instant::now();
    while last != Some(EventKind::Ack) {
        node.progress();
        if let Some(got) = p.a.ni.eq_get(p.a.eq).unwrap() {
            last = Some(got.event.kind);
            assert_eq!(got.event.ni_fail_type == NiFail::Dropped, last == Some(EventKind::Ack));
        }
        assert!(began.elapsed() < crate::pair::LIMIT);
    }
}

pub(crate) fn ni_status_reads_drop_count_and_permissions_violations_and_others_are_ptl_sr_index_invalid(
    bed: &Bed,
) {
    let p = bed.pair();
    let from = p.a.silent(b"x");
    p.a.put(from, &p.b, 1, 0);
    p.a.ni.put(from, AckReq::NoAck, p.b.id(), 1, 9, 0, 0, 0).unwrap();
    p.a.fence(&p.b);
    let [drops, violations] = [0, 1].map(|index| StatusRegister::try_from(index).unwrap());
    assert_eq!((drops, violations), (StatusRegister::DropCount, StatusRegister::PermissionsViolations));
    assert_eq!((p.b.ni.status(drops), p.b.ni.status(violations)), (2, 1));
    assert_eq!(StatusRegister::try_from(2).unwrap_err().code(), ReturnCode::SrIndexInvalid);
}

pub(crate) fn ni_dist_tells_this_process_this_node_and_others_apart(bed: &Bed) {
    let p = bed.pair();
    assert_eq!(p.a.ni.dist(p.a.id()).unwrap(), 0);
    assert_eq!(p.b.ni.dist(p.ghost).unwrap(), 1, "beside it");
    assert_eq!(p.a.ni.dist(p.b.id()).unwrap(), 2);
    let nobody = ProcessId { nid: Nid(1), pid: Pid(2) };
    let refused = p.a.ni.dist(nobody).unwrap_err();
    assert_eq!(refused.code(), ReturnCode::ProcessInvalid, "{refused}");
}

pub(crate) fn ni_handle_knows_its_own_while_they_name_something_and_others_are_ptl_handle_invalid(bed: &Bed) {
    let p = bed.pair();
    let (me, md) = p.a.post(1, &p.a.md(p.a.zeroed(8), MdOptions::OP_PUT));
    let eq = p.a.ni.eq_alloc(1, None).unwrap();
    let own = p.a.ni.ni_handle();
    assert_eq!(p.a.ni.handle(own).unwrap(), own);
    assert_eq!(p.a.ni.handle(me).unwrap(), own);
    assert_eq!(p.a.ni.handle(md).unwrap(), own);
    assert_eq!(p.a.ni.handle(eq).unwrap(), own);
    p.a.ni.me_unlink(me).unwrap();
    p.a.ni.eq_free(eq).unwrap();
    let invalid = |refused: Result<_, portals::v3::Error>| {
        assert_eq!(refused.map(|_| ()).unwrap_err().code(), ReturnCode::HandleInvalid);
    };
    invalid(p.a.ni.handle(me));
    invalid(p.a.ni.handle(md));
    invalid(p.a.ni.handle(eq));
    invalid(p.a.ni.handle(p.b.ni.ni_handle()));
    invalid(p.a.ni.handle(p.b.eq));
}

pub(crate) fn get_uid_get_id_and_get_jid_tell_the_nodes(bed: &Bed) {
    let options = NodeOptions { uid: Uid(5), jid: Jid(6), ..NodeOptions::default() };
    let p = bed.pair_with(&Limits::default(), &options);
    let card = p.a.ni.node().card();
    assert_eq!(p.a.ni.id(), ProcessId { nid: card.nid, pid: card.pid });
    assert_eq!((p.a.ni.uid(), p.a.ni.jid()), (Uid(5), Jid(6)));
}

pub(crate) fn ni_eq_dump_lists_the_queues_and_what_they_hold(bed: &Bed) {
    let p = bed.pair();
    let eq = p.b.ni.eq_alloc(5, None).unwrap();
    let handled = p.b.ni.eq_alloc(6, Some(Box::new(|_, _| {}))).unwrap();
    let freed = p.b.ni.eq_alloc(7, None).unwrap();
    p.b.ni.eq_free(freed).unwrap();
    let md = Md { eq: Some(eq), ..p.b.md(p.b.zeroed(8), MdOptions::OP_PUT) };
    p.b.post(1, &md);
    p.a.put(p.a.silent(b"x"), &p.b, 1, 0);
    p.a.fence(&p.b);
    let told = p.b.ni.ni_eq_dump();
    let told: Vec<_> = told[2..].iter().map(|q| (q.eq, q.count, q.held, q.handled)).collect();
    assert_eq!(told, [(eq, 5, 2, false), (handled, 6, 0, true)]);
}

pub(crate) fn limits_are_granted_as_asked_or_as_there_can_be(bed: &Bed) {
    let asked = Limits {
        max_mes: 4,
        max_mds: 5,
        max_eqs: 3,
        max_ac_index: 2,
        max_pt_index: 61,
        max_md_iovecs: 3,
        max_me_list: 2,
        max_getput_md: 8,
    };
    let p = bed.pair_with(&asked, &NodeOptions::default());
    assert_eq!(p.a.ni.limits(), asked);
    let most = u32::MAX;
    let all = Limits {
        max_mes: most,
        max_mds: most,
        max_eqs: most,
        max_ac_index: most,
        max_pt_index: most,
        max_md_iovecs: most,
        max_me_list: most,
        max_getput_md: most,
    };
    let p = bed.pair_with(&all, &NodeOptions::default());
    let granted = p.a.ni.limits();
    assert_eq!((granted.max_pt_index, granted.max_ac_index), (65_535, 65_535));
    assert_eq!((granted.max_md_iovecs, granted.max_getput_md), (256, 4096));
    assert!(granted.max_mes < most && granted.max_mds < most && granted.max_me_list < most);
}

fn limited(bed: &Bed, limits: Limits) -> Ni {
    Ni::init(&bed.nodes(&[NodeOptions::default()])[0], None, &limits).unwrap()
}

pub(crate) fn past_max_mes_and_max_mds_is_ptl_no_space_and_past_max_me_list_ptl_me_list_too_long(bed: &Bed) {
    let ni = limited(bed, Limits { max_mes: 3, max_me_list: 2, max_mds: 2, ..Limits::default() });
    let attach = |pt| ni.me_attach(pt, MatchId::ANY, 0, 0, Unlink::Unlink, Position::After);
    let first = attach(1).unwrap();
    attach(1).unwrap();
    assert_eq!(attach(1).unwrap_err().code(), ReturnCode::MeListTooLong);
    let insert = ni.me_insert(first, MatchId::ANY, 0, 0, Unlink::Unlink, Position::After);
    assert_eq!(insert.unwrap_err().code(), ReturnCode::MeListTooLong);
    let third = attach(2).unwrap();
    assert_eq!(attach(2).unwrap_err().code(), ReturnCode::NoSpace);
    let any = ni.me_attach_any(MatchId::ANY, 0, 0, Unlink::Unlink);
    assert_eq!(any.unwrap_err().code(), ReturnCode::NoSpace);
    let md = Md::new(ni.node().alloc(8).unwrap());
    let bound = ni.md_bind(&md, Unlink::Retain).unwrap();
    let attached = ni.md_attach(third, &md, Unlink::Retain).unwrap();
    assert_eq!(ni.md_bind(&md, Unlink::Retain).unwrap_err().code(), ReturnCode::NoSpace);
    assert_eq!(ni.md_attach(first, &md, Unlink::Retain).unwrap_err().code(), ReturnCode::NoSpace);
    ni.md_unlink(bound).unwrap();
    ni.md_unlink(attached).unwrap();
    assert!(ni.md_attach(first, &md, Unlink::Retain).is_ok(), "what is gone makes room");
    assert!(attach(2).is_ok(), "the entry went with its descriptor");
}

pub(crate) fn max_eqs_is_the_last_queue(bed: &Bed) {
    let ni = limited(bed, Limits { max_eqs: 2, ..Limits::default() });
    let eq = ni.eq_alloc(1, None).unwrap();
    ni.eq_alloc(1, None).unwrap();
    let refused = ni.eq_alloc(1, None).unwrap_err();
    assert_eq!(refused.code(), ReturnCode::NoSpace, "{refused}");
    ni.eq_free(eq).unwrap();
    ni.eq_alloc(1, None).unwrap();
    assert_eq!(ni.eq_alloc(u32::MAX, None).unwrap_err().code(), ReturnCode::NoSpace, "of so many events");
}

pub(crate) fn max_pt_index_and_max_ac_index_are_the_largest(bed: &Bed) {
    let ni = limited(bed, Limits { max_pt_index: 3, max_ac_index: 2, ..Limits::default() });
    let attach = |pt| ni.me_attach(pt, MatchId::ANY, 0, 0, Unlink::Unlink, Position::After);
    attach(3).unwrap();
    assert_eq!(attach(4).unwrap_err().code(), ReturnCode::PtIndexInvalid);
    ni.ac_entry(2, MatchId::ANY, Some(3)).unwrap();
    assert_eq!(ni.ac_entry(3, MatchId::ANY, None).unwrap_err().code(), ReturnCode::AcIndexInvalid);
    assert_eq!(ni.ac_entry(2, MatchId::ANY, Some(4)).unwrap_err().code(), ReturnCode::PtIndexInvalid);
}
