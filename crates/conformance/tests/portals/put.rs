//! Puts.

use portals::v4::{AckReq, EventKind, ListKind, MdOptions, MeOptions, NiFail, PtOptions, Put};

use crate::bed::{Bed, MATCHING, Sink, Source, id, pattern};

pub(crate) fn a_put_lands_with_its_events(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink) =
        (Source::new(&pair.a, 64, MdOptions::empty()), Sink::new(&pair.b, 64, PtOptions::empty()));
    pair.b.me_append(sink.pt, &sink.me(MeOptions::OP_PUT), ListKind::Priority, 5).unwrap();
    let put = Put {
        local_offset: 8,
        remote_offset: 16,
        ack_req: AckReq::Ack,
        hdr_data: 0xfeed,
        user_ptr: 9,
        ..Put::new(source.md, 24, id(&pair.b), sink.pt)
    };
    pair.a.put(&put).unwrap();
    pair.event(&pair.a, source.eq, EventKind::Send);
    let there = pair.event(&pair.b, sink.eq, EventKind::Put);
    let ack = pair.event(&pair.a, source.eq, EventKind::Ack);
    assert_eq!((there.mlength, there.rlength, there.remote_offset, there.hdr_data), (24, 24, 16, 0xfeed));
    assert_eq!((there.user_ptr, there.initiator, there.pt_index), (5, id(&pair.a), sink.pt));
    assert_eq!((there.start, there.uid), (sink.memory.addr() + 16, pair.a.uid()));
    assert_eq!((ack.mlength, ack.remote_offset, ack.user_ptr, ack.ni_fail_type), (24, 16, 9, NiFail::Ok));
    assert_eq!(sink.memory.to_vec()[16..40], pattern(64)[8..32]);
    assert_eq!(sink.memory.to_vec()[..16], [0; 16]);
}
