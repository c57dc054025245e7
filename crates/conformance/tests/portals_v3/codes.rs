//! Each return code, by each way to get it that no other test goes.

use std::sync::Arc;

use portals::v3::{
    AckReq, EventKind, Limits, MatchId, Md, MdOptions, Ni, Position, ProcessId, ReturnCode, Unlink,
};
use portals::{Card, Directory, DirectoryError, Nid, Node, NodeOptions, Pid, Pieces, Rank};

use crate::pair::{Bed, Side, times};

const KEEP: Unlink = Unlink::Retain;
const LAST: Position = Position::After;

#[track_caller]
fn refused<T: std::fmt::Debug>(
    result: Result<T, portals::v3::Error>,
    code: ReturnCode,
    call: &str,
    argument: &str,
) {
    let error = result.unwrap_err();
    assert_eq!((error.code(), error.call()), (code, call), "{error}");
    let told = error.to_string();
    assert!(told.contains(argument) && told.contains(code.name()) && told.contains(call), "{told}");
}

/// Handles of what is gone: an entry, a descriptor, a queue.
fn gone(side: &Side) -> (portals::v3::MeHandle, portals::v3::MdHandle, portals::v3::EqHandle) {
    let (me, md) = side.post(9, &Md::new(side.zeroed(8)));
    side.ni.me_unlink(me).unwrap();
    let eq = side.ni.eq_alloc(1, None).unwrap();
    side.ni.eq_free(eq).unwrap();
    (me, md, eq)
}

pub(crate) fn ptl_me_invalid_is_an_entry_that_is_gone_or_anothers(bed: &Bed) {
    let p = bed.pair();
    let (others, _) = p.b.post(1, &Md::new(p.b.zeroed(8)));
    let md = Md::new(p.a.zeroed(8));
    for me in [gone(&p.a).0, others] {
        let code = ReturnCode::MeInvalid;
        refused(p.a.ni.me_unlink(me), code, "PtlMEUnlink", "entry");
        refused(p.a.ni.me_insert(me, MatchId::ANY, 0, 0, KEEP, LAST), code, "PtlMEInsert", "place");
        refused(p.a.ni.md_attach(me, &md, KEEP), code, "PtlMDAttach", "entry");
        let posted = p.a.ni.me_md_post(me, MatchId::ANY, 0, 0, KEEP, LAST, &md, KEEP, None);
        refused(posted, code, "PtlMEMDPost", "place");
    }
}

pub(crate) fn ptl_md_invalid_is_a_descriptor_that_is_gone_or_anothers(bed: &Bed) {
    let p = bed.pair();
    let (_, others) = p.b.post(1, &Md::new(p.b.zeroed(8)));
    let (good, to) = (p.a.silent(b"x"), p.b.id());
    for md in [gone(&p.a).1, others] {
        let code = ReturnCode::MdInvalid;
        let ni = &p.a.ni;
        refused(ni.md_unlink(md), code, "PtlMDUnlink", "md");
        refused(ni.md_update(md, None, None), code, "PtlMDUpdate", "md");
        refused(ni.md_update(md, Some(&Md::new(p.a.zeroed(1))), None), code, "PtlMDUpdate", "md");
        refused(ni.put(md, AckReq::Ack, to, 1, 0, 0, 0, 0), code, "PtlPut", "md");
        refused(ni.put_region(md, 0, 1, AckReq::Ack, to, 1, 0, 0, 0, 0), code, "PtlPutRegion", "md");
        refused(ni.get(md, to, 1, 0, 0, 0), code, "PtlGet", "md");
        refused(ni.get_region(md, 0, 1, to, 1, 0, 0, 0), code, "PtlGetRegion", "md");
        refused(ni.get_put(md, good, to, 1, 0, 0, 0, 0), code, "PtlGetPut", "reply");
        refused(ni.get_put(good, md, to, 1, 0, 0, 0, 0), code, "PtlGetPut", "md");
    }
}

pub(crate) fn ptl_eq_invalid_is_a_queue_that_is_gone_or_anothers(bed: &Bed) {
    let p = bed.pair();
    let me = p.a.ni.me_attach(2, MatchId::ANY, 0, 0, KEEP, LAST).unwrap();
    let md = p.a.silent(b"x");
    for eq in [gone(&p.a).2, p.b.eq] {
        let (ni, code) = (&p.a.ni, ReturnCode::EqInvalid);
        let with = Md { eq: Some(eq), ..Md::new(p.a.zeroed(8)) };
        let plain = Md::new(p.a.zeroed(8));
        refused(ni.md_attach(me, &with, KEEP), code, "PtlMDAttach", "eq");
        refused(ni.md_bind(&with, KEEP), code, "PtlMDBind", "eq");
        refused(ni.md_update(md, Some(&with), None), code, "PtlMDUpdate", "eq");
        refused(ni.md_update(md, Some(&plain), Some(eq)), code, "PtlMDUpdate", "test");
        let posted = ni.me_md_post(me, MatchId::ANY, 0, 0, KEEP, LAST, &plain, KEEP, Some(eq));
        refused(posted, code, "PtlMEMDPost", "test");
        refused(ni.eq_free(eq), code, "PtlEQFree", "eq");
        refused(ni.eq_get(eq), code, "PtlEQGet", "eq");
        refused(ni.eq_wait(eq), code, "PtlEQWait", "eq");
        refused(ni.eq_wait_timeout(eq, Default::default()), code, "PtlEQWait_timeout", "eq");
        refused(ni.eq_poll(&[p.a.eq, eq], None), code, "PtlEQPoll", "eq");
    }
}

pub(crate) fn ptl_pt_index_invalid_is_beyond_the_table_or_what_a_message_can_name(bed: &Bed) {
    let p = bed.pair();
    let attach = p.a.ni.me_attach(256, MatchId::ANY, 0, 0, KEEP, LAST);
    refused(attach, ReturnCode::PtIndexInvalid, "PtlMEAttach", "256");
    refused(p.a.ni.ac_entry(0, MatchId::ANY, Some(256)), ReturnCode::PtIndexInvalid, "PtlACEntry", "256");
    let md = p.a.silent(b"x");
    p.b.post(0, &p.b.md(p.b.zeroed(8), MdOptions::OP_PUT));
    for pt_index in [65_536, u32::MAX] {
        let put = p.a.ni.put(md, AckReq::NoAck, p.b.id(), pt_index, 0, 0, 0, 0);
        refused(put, ReturnCode::PtIndexInvalid, "PtlPut", "pt_index");
        let get = p.a.ni.get(md, p.b.id(), pt_index, 0, 0, 0);
        refused(get, ReturnCode::PtIndexInvalid, "PtlGet", "pt_index");
    }
    p.a.fence(&p.b);
    p.b.nothing_left();
}

pub(crate) fn ptl_ac_index_invalid_is_beyond_the_list_or_what_a_message_can_name(bed: &Bed) {
    let p = bed.pair();
    refused(p.a.ni.ac_entry(256, MatchId::ANY, None), ReturnCode::AcIndexInvalid, "PtlACEntry", "ac_index");
    let put = p.a.ni.put(p.a.silent(b"x"), AckReq::NoAck, p.b.id(), 0, 65_536, 0, 0, 0);
    refused(put, ReturnCode::AcIndexInvalid, "PtlPut", "ac_index");
}

pub(crate) fn ptl_md_illegal_is_a_descriptor_or_a_part_that_cannot_be(bed: &Bed) {
    let p = bed.pair();
    let (ni, code, to) = (&p.a.ni, ReturnCode::MdIllegal, p.b.id());
    let unknown = Md { options: MdOptions::from_bits_retain(1 << 20), ..Md::new(p.a.zeroed(8)) };
    refused(ni.md_bind(&unknown, KEEP), code, "PtlMDBind", "option");
    let no_vector = Md { options: MdOptions::IOVEC, ..Md::new(p.a.zeroed(8)) };
    refused(ni.md_bind(&no_vector, KEEP), code, "PtlMDBind", "IOVEC");
    let whole = p.a.zeroed(8);
    let many = Pieces::from(vec![whole.clone(); 257]);
    let me = ni.me_attach(2, MatchId::ANY, 0, 0, KEEP, LAST).unwrap();
    refused(ni.md_attach(me, &Md::new(many), KEEP), code, "PtlMDAttach", "max_md_iovecs");
    let md = p.a.silent(b"12345678");
    for (offset, length) in [(9, 0), (0, 9), (8, 1), (u64::MAX, 1), (1, u64::MAX)] {
        let put = ni.put_region(md, offset, length, AckReq::NoAck, to, 1, 0, 0, 0, 0);
        refused(put, code, "PtlPutRegion", "length");
        refused(ni.get_region(md, offset, length, to, 1, 0, 0, 0), code, "PtlGetRegion", "length");
    }
    let short = p.a.silent(b"1234567");
    refused(ni.get_put(short, md, to, 1, 0, 0, 0, 0), code, "PtlGetPut", "reply");
}

pub(crate) fn ptl_segv_is_memory_of_another_node(bed: &Bed) {
    let p = bed.pair();
    let foreign = Md::new(p.b.zeroed(8));
    let mixed = Md::new(vec![p.a.zeroed(8), p.b.zeroed(8)]);
    let (me, md) = p.a.post(1, &Md::new(p.a.zeroed(8)));
    let bare = p.a.ni.me_attach(2, MatchId::ANY, 0, 0, KEEP, LAST).unwrap();
    for bad in [foreign, mixed] {
        let (ni, code) = (&p.a.ni, ReturnCode::Segv);
        refused(ni.md_bind(&bad, KEEP), code, "PtlMDBind", "memory");
        refused(ni.md_attach(bare, &bad, KEEP), code, "PtlMDAttach", "memory");
        refused(ni.md_update(md, Some(&bad), None), code, "PtlMDUpdate", "memory");
        let posted = ni.me_md_post(me, MatchId::ANY, 0, 0, KEEP, LAST, &bad, KEEP, None);
        refused(posted, code, "PtlMEMDPost", "memory");
    }
}

pub(crate) fn ptl_me_in_use_and_ptl_md_in_use_last_until_what_is_under_way_has_ended(bed: &Bed) {
    // Longer than this thread waits for a processor between the calls.
    let options =
        NodeOptions { connect_timeout: std::time::Duration::from_secs(2), ..NodeOptions::default() };
    let p = bed.pair_with(&Limits::default(), &options);
    let (me, md) = p.a.post(1, &p.a.md(p.a.zeroed(8), MdOptions::OP_PUT));
    let another = Md::new(p.a.zeroed(8));
    refused(p.a.ni.md_attach(me, &another, KEEP), ReturnCode::MeInUse, "PtlMDAttach", "entry");
    let bound = p.a.loud(b"x");
    for md in [md, bound] {
        p.a.ni.put(md, AckReq::NoAck, p.ghost, 1, 0, 0, 0, 0).unwrap();
        refused(p.a.ni.md_unlink(md), ReturnCode::MdInUse, "PtlMDUnlink", "md");
        let update = p.a.ni.md_update(md, Some(&another), None);
        refused(update, ReturnCode::MdNoUpdate, "PtlMDUpdate", "md");
        assert!(p.a.ni.md_update(md, None, None).is_ok(), "it can be read");
    }
    refused(p.a.ni.me_unlink(me), ReturnCode::MeInUse, "PtlMEUnlink", "entry");
    let kinds: Vec<_> = (0..4).map(|_| p.a.next(&p.b).event.kind).collect();
    use EventKind::*;
    assert_eq!(kinds, [SendStart, SendStart, SendEnd, SendEnd]);
    p.a.ni.md_unlink(bound).unwrap();
    p.a.ni.me_unlink(me).unwrap();
}

pub(crate) fn ptl_process_invalid_is_nobody_the_node_can_find(bed: &Bed) {
    let p = bed.pair();
    let nobody = ProcessId { nid: Nid(1), pid: Pid(2) };
    let md = p.a.silent(b"x");
    let (ni, code) = (&p.a.ni, ReturnCode::ProcessInvalid);
    refused(ni.put(md, AckReq::NoAck, nobody, 1, 0, 0, 0, 0), code, "PtlPut", "1:2");
    refused(ni.get(md, nobody, 1, 0, 0, 0), code, "PtlGet", "1:2");
    refused(ni.get_put(md, md, nobody, 1, 0, 0, 0, 0), code, "PtlGetPut", "1:2");
    refused(ni.dist(nobody), code, "PtlNIDist", "1:2");
}

/// Nobody can be asked.
struct Mute;

impl Directory for Mute {
    fn size(&self) -> Option<u32> {
        None
    }
    fn by_rank(&self, _: Rank) -> Result<Card, DirectoryError> {
        Err(DirectoryError::Asking { source: "the line is dead".into() })
    }
    fn by_process(&self, _: Nid, _: Pid) -> Result<Card, DirectoryError> {
        self.by_rank(Rank(0))
    }
}

pub(crate) fn ptl_fail_is_what_is_below_and_its_error_says_what(bed: &Bed) {
    let beside = bed.nodes(&[NodeOptions::default()]).remove(0);
    let options = NodeOptions { directory: Arc::new(Mute), ..NodeOptions::default() };
    let node = Node::open(beside.context(), options).unwrap();
    let ni = Ni::init(&node, None, &Limits::default()).unwrap();
    let md = ni.md_bind(&Md { threshold: times(1), ..Md::new(node.alloc(1).unwrap()) }, KEEP).unwrap();
    let to = ProcessId { nid: Nid(1), pid: Pid(2) };
    refused(ni.put(md, AckReq::NoAck, to, 1, 0, 0, 0, 0), ReturnCode::Fail, "PtlPut", "the line is dead");
}

pub(crate) fn nothing_has_changed_where_a_call_was_refused(bed: &Bed) {
    let p = bed.pair();
    let me = p.a.ni.me_attach(2, MatchId::ANY, 0, 0, KEEP, LAST).unwrap();
    let foreign = Md::new(p.b.zeroed(8));
    p.a.ni.md_attach(me, &foreign, KEEP).unwrap_err();
    p.a.ni.md_attach(me, &Md::new(p.a.zeroed(8)), KEEP).expect("it is still free");
    let once = Md { threshold: times(1), ..p.a.md(p.a.zeroed(8), MdOptions::empty()) };
    let md = p.a.ni.md_bind(&once, KEEP).unwrap();
    p.a.ni.put(md, AckReq::NoAck, p.b.id(), 65_536, 0, 0, 0, 0).unwrap_err();
    let nobody = ProcessId { nid: Nid(1), pid: Pid(2) };
    p.a.ni.put(md, AckReq::NoAck, nobody, 1, 0, 0, 0, 0).unwrap_err();
    p.a.nothing_left();
    assert_eq!(p.a.ni.md_update(md, None, None).unwrap().threshold, times(1));
    p.a.put(md, &p.b, 1, 0);
}
