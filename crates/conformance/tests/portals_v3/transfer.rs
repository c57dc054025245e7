//! Moving bytes: every length, parts, vectors, exchanges; messages that no entry takes.

use portals::v3::{AckReq, EventKind, Limits, Md, MdOptions, NiFail, ReturnCode, StatusRegister, Unlink};
use portals::{NodeOptions, Pieces};

use crate::pair::{Bed, Side, pattern};

const BOTH: MdOptions = MdOptions::OP_PUT.union(MdOptions::OP_GET);
const EAGER: usize = 4096;
const LENGTHS: [usize; 6] = [0, 1, EAGER, EAGER + 1, 70_000, 1 << 20];

/// No starts, so that tests read what ends.
const ENDS: MdOptions = MdOptions::EVENT_START_DISABLE;

pub(crate) fn put_moves_bytes_of_every_length(bed: &Bed) {
    let p = bed.pair();
    let memory = p.b.zeroed(1 << 20);
    let md = p.b.md(&memory, ENDS | MdOptions::OP_PUT | MdOptions::MANAGE_REMOTE);
    p.b.post(1, &md);
    for len in LENGTHS {
        let bytes = pattern(len);
        p.a.put(p.a.silent(&bytes), &p.b, 1, 0);
        assert_eq!(p.b.expect(EventKind::PutEnd, &p.a).mlength, len as u64);
        assert_eq!(memory.to_vec()[..len], bytes);
    }
}

pub(crate) fn get_fetches_bytes_of_every_length(bed: &Bed) {
    let p = bed.pair();
    let bytes = pattern(1 << 20);
    p.b.post(1, &Md { eq: None, ..p.b.md(p.b.filled(&bytes), MdOptions::OP_GET | MdOptions::MANAGE_REMOTE) });
    for len in LENGTHS {
        let memory = p.a.zeroed(len);
        let md = p.a.ni.md_bind(&p.a.md(&memory, ENDS), Unlink::Retain).unwrap();
        p.a.ni.get(md, p.b.id(), 1, 0, 0, 0).unwrap();
        assert_eq!(p.a.expect(EventKind::ReplyEnd, &p.b).mlength, len as u64);
        assert_eq!(memory.to_vec(), bytes[..len]);
    }
}

pub(crate) fn put_and_get_reach_this_process_too(bed: &Bed) {
    let p = bed.pair();
    let memory = p.a.zeroed(5000);
    p.a.post(1, &p.a.md(&memory, ENDS | BOTH | MdOptions::MANAGE_REMOTE));
    let bytes = pattern(5000);
    p.a.put_acked(p.a.silent(&bytes), &p.a, 1, 0);
    p.a.expect(EventKind::PutEnd, &p.a);
    assert_eq!(memory.to_vec(), bytes);
    let back = p.a.zeroed(10);
    let md = p.a.ni.md_bind(&p.a.md(&back, ENDS), Unlink::Retain).unwrap();
    p.a.ni.get(md, p.a.id(), 1, 0, 0, 7).unwrap();
    let mut kinds = [p.a.next(&p.a).event.kind, p.a.next(&p.a).event.kind];
    kinds.sort_by_key(|kind| *kind == EventKind::ReplyEnd);
    assert_eq!(kinds, [EventKind::GetEnd, EventKind::ReplyEnd]);
    assert_eq!(back.to_vec(), bytes[7..17]);
}

pub(crate) fn put_region_sends_a_part(bed: &Bed) {
    let p = bed.pair();
    let memory = p.b.zeroed(1 << 20);
    p.b.post(1, &p.b.md(&memory, ENDS | MdOptions::OP_PUT | MdOptions::MANAGE_REMOTE));
    let bytes = pattern(1 << 20);
    let md = p.a.silent(&bytes);
    for (offset, len) in [(0, 0), (5, 3), (1 << 20, 0), (100, EAGER + 1), (17, 500_000)] {
        let to = p.b.id();
        p.a.ni.put_region(md, offset as u64, len as u64, AckReq::NoAck, to, 1, 0, 0, 9, 0).unwrap();
        p.b.expect(EventKind::PutEnd, &p.a);
        assert_eq!(memory.to_vec()[9..9 + len], bytes[offset..offset + len]);
    }
}

pub(crate) fn get_region_fills_a_part(bed: &Bed) {
    let p = bed.pair();
    let bytes = pattern(600_000);
    p.b.post(1, &Md { eq: None, ..p.b.md(p.b.filled(&bytes), MdOptions::OP_GET | MdOptions::MANAGE_REMOTE) });
    let memory = p.a.zeroed(1 << 20);
    let md = p.a.ni.md_bind(&p.a.md(&memory, ENDS), Unlink::Retain).unwrap();
    for (offset, len) in [(0, 0), (5, 3), (1 << 20, 0), (100, EAGER + 1), (17, 500_000)] {
        p.a.ni.get_region(md, offset as u64, len as u64, p.b.id(), 1, 0, 0, 9).unwrap();
        assert_eq!(p.a.expect(EventKind::ReplyEnd, &p.b).offset, offset as u64);
        assert_eq!(memory.to_vec()[offset..offset + len], bytes[9..9 + len]);
    }
}

pub(crate) fn a_get_that_is_cut_off_replies_with_what_there_is(bed: &Bed) {
    let p = bed.pair();
    let md = p.b.md(p.b.filled(b"short"), MdOptions::OP_GET | MdOptions::TRUNCATE);
    p.b.post(1, &Md { eq: None, ..md });
    let memory = p.a.filled(&[b'-'; 8]);
    let md = p.a.ni.md_bind(&p.a.md(&memory, ENDS), Unlink::Retain).unwrap();
    p.a.ni.get(md, p.b.id(), 1, 0, 0, 0).unwrap();
    let reply = p.a.expect(EventKind::ReplyEnd, &p.b);
    assert_eq!((reply.rlength, reply.mlength), (8, 5));
    assert_eq!(memory.to_vec(), b"short---");
}

pub(crate) fn get_put_exchanges(bed: &Bed) {
    let p = bed.pair();
    let memory = p.b.filled(b"0123456789");
    p.b.post(1, &Md { eq: None, ..p.b.md(&memory, BOTH | MdOptions::MANAGE_REMOTE) });
    let (into, from) = (p.a.zeroed(4), p.a.silent(b"abc"));
    let reply = p.a.ni.md_bind(&p.a.md(&into, ENDS), Unlink::Retain).unwrap();
    p.a.ni.get_put(reply, from, p.b.id(), 1, 0, 0, 4, 0).unwrap();
    assert_eq!(p.a.expect(EventKind::ReplyEnd, &p.b).mlength, 3);
    assert_eq!(into.to_vec(), b"456\0");
    assert_eq!(memory.to_vec(), b"0123abc789");
}

pub(crate) fn get_put_goes_up_to_max_getput_md(bed: &Bed) {
    let limits = Limits { max_getput_md: 100, ..Limits::default() };
    for (limits, most) in [(limits, 100), (Limits::default(), EAGER)] {
        let p = bed.pair_with(&limits, &NodeOptions::default());
        assert_eq!(p.a.ni.limits().max_getput_md as usize, most);
        let memory = p.b.filled(&pattern(2 * EAGER));
        p.b.post(1, &Md { eq: None, ..p.b.md(&memory, BOTH | MdOptions::MANAGE_REMOTE) });
        let into = p.a.zeroed(2 * EAGER);
        let reply = p.a.ni.md_bind(&p.a.md(&into, ENDS), Unlink::Retain).unwrap();
        let new = vec![0xee; most + 1];
        let longer = p.a.silent(&new);
        let refused = p.a.ni.get_put(reply, longer, p.b.id(), 1, 0, 0, 0, 0).unwrap_err();
        assert_eq!(refused.code(), ReturnCode::MdIllegal, "{refused}");
        assert!(refused.to_string().contains("max_getput_md"), "{refused}");
        p.a.ni.get_put(reply, p.a.silent(&new[1..]), p.b.id(), 1, 0, 0, 0, 0).unwrap();
        p.a.expect(EventKind::ReplyEnd, &p.b);
        assert_eq!(into.to_vec()[..most], pattern(2 * EAGER)[..most]);
        assert_eq!(memory.to_vec()[..most], new[1..]);
    }
}

/// Memory in pieces of odd lengths, empty ones among them.
fn pieces(side: &Side, len: usize) -> (Pieces, Vec<portals::Memory>) {
    let mut pieces = Vec::new();
    let mut left = len;
    for i in 0.. {
        let n = [1, 0, 3000, 17, 70_000, 2][i % 6].min(left);
        pieces.push(side.zeroed(n));
        left -= n;
        if left == 0 {
            break;
        }
    }
    (Pieces::from(pieces.clone()), pieces)
}
fn fill(pieces: &[portals::Memory], bytes: &[u8]) {
    let mut at = 0;
    for piece in pieces {
        piece.write_at(0, &bytes[at..at + piece.len()]);
        at += piece.len();
    }
}
fn bytes_of(pieces: &[portals::Memory]) -> Vec<u8> {
    pieces.iter().flat_map(portals::Memory::to_vec).collect()
}

pub(crate) fn iovecs_gather_and_scatter_at_every_length(bed: &Bed) {
    let p = bed.pair();
    for len in [1, 100, EAGER, EAGER + 1, 300_000] {
        let (vector, there) = pieces(&p.b, len);
        let (me, md) = p.b.post(1, &p.b.md(vector, ENDS | BOTH | MdOptions::MANAGE_REMOTE));
        let (vector, here) = pieces(&p.a, len);
        let bytes = pattern(len);
        fill(&here, &bytes);
        let from = p.a.ni.md_bind(&p.a.md(vector, ENDS), Unlink::Retain).unwrap();
        p.a.put(from, &p.b, 1, 0);
        p.a.expect(EventKind::SendEnd, &p.b);
        assert!(p.b.expect(EventKind::PutEnd, &p.a).md.options.contains(MdOptions::IOVEC));
        assert_eq!(bytes_of(&there), bytes, "{len}");

        fill(&here, &vec![0; len]);
        p.a.ni.get(from, p.b.id(), 1, 0, 0, 0).unwrap();
        p.a.expect(EventKind::ReplyEnd, &p.b);
        assert_eq!(bytes_of(&here), bytes, "{len}");
        p.b.expect(EventKind::GetEnd, &p.a);
        // The end at the target may be told after the reply.
        p.a.fence(&p.b);
        p.b.ni.md_unlink(md).unwrap();
        p.b.ni.me_unlink(me).unwrap();
    }
}

pub(crate) fn parts_of_iovecs_begin_and_end_inside_of_pieces(bed: &Bed) {
    let p = bed.pair();
    let (vector, there) = pieces(&p.b, 200_000);
    p.b.post(1, &p.b.md(vector, ENDS | MdOptions::OP_PUT | MdOptions::MANAGE_REMOTE));
    let (vector, here) = pieces(&p.a, 200_000);
    let bytes = pattern(200_000);
    fill(&here, &bytes);
    let from = p.a.ni.md_bind(&Md::new(vector), Unlink::Retain).unwrap();
    for (at, len, to) in [(2, 10, 2999), (500, 150_000, 3), (3000, 4097, 73_017), (199_999, 1, 0)] {
        p.a.ni
            .put_region(from, at as u64, len as u64, AckReq::NoAck, p.b.id(), 1, 0, 0, to as u64, 0)
            .unwrap();
        p.b.expect(EventKind::PutEnd, &p.a);
        assert_eq!(bytes_of(&there)[to..to + len], bytes[at..at + len]);
    }
}

pub(crate) fn an_iovec_of_as_many_pieces_as_max_md_iovecs_goes_as_a_long_message(bed: &Bed) {
    for eager_bytes in [0, 64, EAGER] {
        let options = NodeOptions { eager_bytes, ..NodeOptions::default() };
        let p = bed.pair_with(&Limits::default(), &options);
        let most = p.a.ni.limits().max_md_iovecs as usize;
        assert_eq!(most, (eager_bytes / 16).max(1));
        let whole = p.a.filled(&pattern(most * 100));
        let part = |i: usize| whole.slice(i * 100..(i + 1) * 100);
        let vector = |n: usize| p.a.md((0..n).map(|i| part(i % most)).collect::<Vec<_>>(), ENDS);
        let refused = p.a.ni.md_bind(&vector(most + 1), Unlink::Retain).unwrap_err();
        assert_eq!(refused.code(), ReturnCode::MdIllegal, "{refused}");
        let from = p.a.ni.md_bind(&vector(most), Unlink::Retain).unwrap();
        let memory = p.b.zeroed(most * 100);
        p.b.post(1, &p.b.md(&memory, ENDS | MdOptions::OP_PUT));
        p.b.ni.ac_entry(7, portals::v3::MatchId::ANY, None).unwrap();
        p.a.ni.put(from, AckReq::Ack, p.b.id(), 1, 7, 0, 1 << 40, 5).unwrap();
        p.b.expect(EventKind::PutEnd, &p.a);
        assert_eq!(memory.to_vec(), whole.to_vec());
    }
}

pub(crate) fn messages_to_no_entry_are_dropped_counted_and_told_to_who_asks(bed: &Bed) {
    let p = bed.pair();
    p.b.post_for(1, 5, 0, &p.b.md(p.b.zeroed(64), MdOptions::OP_PUT));
    let quiet = p.a.silent(b"nobody");
    for len in [6, EAGER + 1] {
        let md = p.a.ni.md_bind(&p.a.md(p.a.zeroed(len), ENDS), Unlink::Retain).unwrap();
        // Other bits; a portal that nobody ever used; one beyond the table.
        for (pt_index, bits) in [(1, 6), (2, 5), (40_000, 5)] {
            p.a.put_acked(md, &p.b, pt_index, bits);
            let mut told = [p.a.next(&p.b).event, p.a.next(&p.b).event];
            told.sort_by_key(|event| event.kind == EventKind::Ack);
            assert_eq!((told[0].kind, told[0].ni_fail_type), (EventKind::SendEnd, NiFail::Ok));
            assert_eq!(
                (told[1].kind, told[1].ni_fail_type, told[1].mlength),
                (EventKind::Ack, NiFail::Dropped, 0)
            );
            p.a.ni.get(md, p.b.id(), pt_index, 0, bits, 0).unwrap();
            let reply = p.a.next(&p.b).event;
            assert_eq!((reply.kind, reply.ni_fail_type), (EventKind::ReplyEnd, NiFail::Dropped));
            p.a.put(quiet, &p.b, pt_index, bits);
        }
    }
    p.a.fence(&p.b);
    p.a.nothing_left();
    p.b.nothing_left();
    assert_eq!(p.b.ni.status(StatusRegister::DropCount), 18);
    assert_eq!(p.b.ni.status(StatusRegister::PermissionsViolations), 0);
    assert_eq!(p.a.ni.status(StatusRegister::DropCount), 0);
}

pub(crate) fn ack_disable_keeps_acks_back(bed: &Bed) {
    let p = bed.pair();
    p.b.post(1, &p.b.md(p.b.zeroed(1 << 16), ENDS | MdOptions::OP_PUT | MdOptions::ACK_DISABLE));
    for len in [4, 10_000] {
        let md = p.a.loud(&pattern(len));
        p.a.put_acked(md, &p.b, 1, 0);
        p.a.expect(EventKind::SendStart, &p.b);
        p.a.expect(EventKind::SendEnd, &p.b);
        p.b.expect(EventKind::PutEnd, &p.a);
        p.a.fence(&p.b);
        p.a.nothing_left();
        p.a.ni.md_unlink(md).expect("nothing is waited for any more");
    }
}

pub(crate) fn a_thousand_puts_of_mixed_lengths_arrive_in_order(bed: &Bed) {
    let p = bed.pair();
    let eq = p.b.ni.eq_alloc(4096, None).unwrap();
    let md = Md { eq: Some(eq), ..p.b.md(p.b.zeroed(1 << 16), MdOptions::OP_PUT | MdOptions::MANAGE_REMOTE) };
    p.b.post(1, &md);
    let mds = [0, 8, 300, EAGER + 1].map(|len| p.a.silent(&pattern(len)));
    for i in 0..1000 {
        p.a.ni.put(mds[i % 4], AckReq::NoAck, p.b.id(), 1, 0, 0, 0, i as u64).unwrap();
        if i % 50 == 0 {
            p.b.ni.node().progress();
        }
    }
    let (mut starts, mut ends) = (0, 0);
    while ends < 1000 {
        let event = p.b.next_of(eq, &p.a).event;
        match event.kind {
            EventKind::PutStart => {
                assert_eq!(event.hdr_data, starts, "matched in the order of sending");
                starts += 1;
            }
            _ => ends += 1,
        }
    }
}

pub(crate) fn an_offset_beyond_the_memory_takes_no_bytes_or_is_passed_on(bed: &Bed) {
    let p = bed.pair();
    let options = BOTH | ENDS | MdOptions::MANAGE_REMOTE;
    let (_, md) = p.b.post(1, &p.b.md(p.b.zeroed(16), options));
    let from = p.a.ni.md_bind(&p.a.md(p.a.filled(b"far"), ENDS), Unlink::Retain).unwrap();
    let far = [17, u64::MAX - 2, u64::MAX];
    let put = |offset| {
        p.a.ni.put(from, AckReq::Ack, p.b.id(), 1, 0, 0, offset, 0).unwrap();
        p.a.expect(EventKind::SendEnd, &p.b);
        p.a.next(&p.b).event
    };
    for offset in far {
        assert_eq!(put(offset).ni_fail_type, NiFail::Dropped);
    }
    p.b.ni.md_update(md, Some(&p.b.md(p.b.zeroed(16), options | MdOptions::TRUNCATE)), None).unwrap();
    for offset in far {
        let ack = put(offset);
        assert_eq!((ack.ni_fail_type, ack.mlength), (NiFail::Ok, 0));
        p.b.expect(EventKind::PutEnd, &p.a);
        p.a.ni.get(from, p.b.id(), 1, 0, 0, offset).unwrap();
        assert_eq!(p.a.expect(EventKind::ReplyEnd, &p.b).mlength, 0);
        p.b.expect(EventKind::GetEnd, &p.a);
        let into = p.a.ni.md_bind(&p.a.md(p.a.zeroed(3), ENDS), Unlink::Retain).unwrap();
        p.a.ni.get_put(into, from, p.b.id(), 1, 0, 0, offset, 0).unwrap();
        p.a.expect(EventKind::SendEnd, &p.b);
        assert_eq!(p.a.expect(EventKind::ReplyEnd, &p.b).mlength, 0);
        p.b.expect(EventKind::GetPutEnd, &p.a);
    }
}
