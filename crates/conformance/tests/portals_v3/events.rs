//! Each kind of event, and each field.

use portals::v3::{AckReq, EventKind, MdOptions};

use crate::pair::Bed;

pub(crate) fn put_start_and_put_end_come_in_order_and_are_linked(bed: &Bed) {
    let p = bed.pair();
    p.b.post(3, &p.b.md(p.b.zeroed(64), MdOptions::OP_PUT));
    let md = p.a.silent(b"hello");
    p.a.ni.put(md, AckReq::NoAck, p.b.id(), 3, 0, 77, 0, 88).unwrap();
    let start = p.b.expect(EventKind::PutStart, &p.a);
    let end = p.b.expect(EventKind::PutEnd, &p.a);
    assert_eq!(start.link, end.link);
    assert!(start.sequence < end.sequence);
    p.b.nothing_left();
}
