//! The access control list.

use portals::v3::{
    AckReq, EventKind, Jid, Limits, MatchId, Md, MdOptions, NiFail, Nid, StatusRegister, Uid, Unlink,
};
use portals::{NodeOptions, Pid};

use crate::pair::{Bed, Pair};

fn as_users(bed: &Bed, a: u32, b: u32) -> Pair {
    let as_user = |uid| NodeOptions { uid: Uid(uid), jid: Jid(uid * 10), ..NodeOptions::default() };
    bed.pair_of(&Limits::default(), [as_user(a), as_user(b)])
}
/// What becomes of a message that names an entry of the list.
fn sent(p: &Pair, ac_index: u32, pt_index: u32) -> NiFail {
    let md = p.a.md(p.a.zeroed(4), MdOptions::EVENT_START_DISABLE | MdOptions::EVENT_END_DISABLE);
    let md = p.a.ni.md_bind(&md, Unlink::Retain).unwrap();
    p.a.ni.put(md, AckReq::Ack, p.b.id(), pt_index, ac_index, 0, 0, 0).unwrap();
    let ack = p.a.next(&p.b).event;
    assert_eq!(ack.kind, EventKind::Ack);
    ack.ni_fail_type
}
fn open(p: &Pair) {
    p.b.post(1, &Md { eq: None, ..p.b.md(p.b.zeroed(8), MdOptions::OP_PUT | MdOptions::MANAGE_REMOTE) });
}

pub(crate) fn entry_0_admits_the_own_user_and_the_others_nobody_until_they_are_set(bed: &Bed) {
    for (other, fail) in [(5, NiFail::Ok), (6, NiFail::PermViolation)] {
        let p = as_users(bed, other, 5);
        open(&p);
        assert_eq!(sent(&p, 0, 1), fail);
        for unset in [1, 255, 256, 65_535] {
            assert_eq!(sent(&p, unset, 1), NiFail::PermViolation);
        }
        p.b.ni.ac_entry(1, MatchId::ANY, None).unwrap();
        assert_eq!(sent(&p, 1, 1), NiFail::Ok);
    }
}

pub(crate) fn ac_entry_selects_by_process_user_job_and_portal(bed: &Bed) {
    let p = as_users(bed, 5, 6);
    open(&p);
    let (id, any) = (p.a.id(), MatchId::ANY);
    let cases = [
        (MatchId::from(id), None, true),
        (MatchId { nid: Some(Nid(id.nid.0 ^ 1)), ..any }, None, false),
        (MatchId { pid: Some(Pid(id.pid.0 ^ 1)), ..any }, None, false),
        (MatchId { uid: Some(Uid(5)), ..any }, None, true),
        (MatchId { uid: Some(Uid(6)), ..any }, None, false),
        (MatchId { jid: Some(Jid(50)), ..any }, None, true),
        (MatchId { jid: Some(Jid(60)), ..any }, None, false),
        (any, Some(1), true),
        (any, Some(2), false),
    ];
    for (i, (match_id, pt_index, admits)) in cases.into_iter().enumerate() {
        p.b.ni.ac_entry(i as u32, match_id, pt_index).unwrap();
        let wanted = if admits { NiFail::Ok } else { NiFail::PermViolation };
        assert_eq!(sent(&p, i as u32, 1), wanted, "{match_id:?} {pt_index:?}");
    }
}

pub(crate) fn a_violation_is_counted_and_so_is_the_drop_at_any_portal(bed: &Bed) {
    let p = as_users(bed, 5, 6);
    open(&p);
    let counts = || {
        let ni = &p.b.ni;
        (ni.status(StatusRegister::PermissionsViolations), ni.status(StatusRegister::DropCount))
    };
    assert_eq!(sent(&p, 0, 1), NiFail::PermViolation);
    assert_eq!(counts(), (1, 1));
    assert_eq!(sent(&p, 0, 7), NiFail::PermViolation, "nobody uses that portal");
    assert_eq!(counts(), (2, 2));
    let md = p.a.ni.md_bind(&p.a.md(p.a.zeroed(1 << 16), MdOptions::EVENT_START_DISABLE), Unlink::Retain);
    p.a.ni.get(md.unwrap(), p.b.id(), 1, 3, 0, 0).unwrap();
    let reply = p.a.next(&p.b).event;
    assert_eq!((reply.kind, reply.ni_fail_type), (EventKind::ReplyEnd, NiFail::PermViolation));
    assert_eq!(counts(), (3, 3));
}
