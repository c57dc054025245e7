//! Puts.

use portals::v4::{
    AckReq, CtEvent, EventKind, ListKind, Md, MdOptions, Me, MeOptions, NiFail, NiOptions, PtOptions, Put,
    StatusRegister,
};

use crate::bed::{Bed, LIST, MATCHING, Pair, Sink, Source, accept, id, pattern};

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

/// Lengths at which something changes: nothing, inline, a slot, fetched by the target in one part and in more.
fn lengths() -> Vec<usize> {
    vec![0, 1, 8, 63, 64, 256, 1500, 4095, 4096, 4097, 65_536, 1 << 20]
}

pub(crate) fn puts_of_every_length_land_whole(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let most = 1 << 20;
    let (source, sink) =
        (Source::new(&pair.a, most, MdOptions::empty()), Sink::new(&pair.b, most, PtOptions::empty()));
    sink.post(&pair.b, MeOptions::OP_PUT);
    for len in lengths() {
        sink.memory.write_at(0, &vec![0xaa; most]);
        let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, len as u64, id(&pair.b), sink.pt) };
        pair.a.put(&put).unwrap();
        let event = pair.event(&pair.b, sink.eq, EventKind::Put);
        assert_eq!((event.mlength, event.rlength), (len as u64, len as u64));
        pair.event(&pair.a, source.eq, EventKind::Send);
        pair.event(&pair.a, source.eq, EventKind::Ack);
        let there = sink.memory.to_vec();
        assert!(there[..len] == pattern(most)[..len], "{len} bytes");
        assert!(there[len..].iter().all(|&b| b == 0xaa), "nothing behind {len} bytes");
    }
}

pub(crate) fn a_put_of_many_reads_lands_whole(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let most = bed.huge();
    let (source, sink) =
        (Source::new(&pair.a, most, MdOptions::empty()), Sink::new(&pair.b, most, PtOptions::empty()));
    sink.post(&pair.b, MeOptions::OP_PUT);
    let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, most as u64, id(&pair.b), sink.pt) };
    pair.a.put(&put).unwrap();
    pair.event(&pair.b, sink.eq, EventKind::Put);
    assert!(sink.memory.to_vec() == pattern(most));
}

pub(crate) fn a_process_puts_to_itself(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let ni = &pair.a;
    let (source, sink) = (Source::new(ni, 8192, MdOptions::empty()), Sink::new(ni, 8192, PtOptions::empty()));
    sink.post(ni, MeOptions::OP_PUT);
    for len in [0, 8, 4096, 8192] {
        let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, len, id(ni), sink.pt) };
        ni.put(&put).unwrap();
        assert_eq!(pair.event(ni, sink.eq, EventKind::Put).initiator, id(ni));
        pair.event(ni, source.eq, EventKind::Send);
        assert_eq!(pair.event(ni, source.eq, EventKind::Ack).mlength, len);
    }
    assert_eq!(sink.memory.to_vec(), pattern(8192));
}

pub(crate) fn a_put_without_matching_takes_the_first_entry(bed: &Bed) {
    let pair = bed.pair(LIST);
    let (source, sink) =
        (Source::new(&pair.a, 64, MdOptions::empty()), Sink::new(&pair.b, 64, PtOptions::empty()));
    accept(&pair.b, sink.pt, &sink.memory);
    pair.a.put(&Put { match_bits: 77, ..Put::new(source.md, 64, id(&pair.b), sink.pt) }).unwrap();
    assert_eq!(pair.event(&pair.b, sink.eq, EventKind::Put).match_bits, 77);
    assert_eq!(sink.memory.to_vec(), pattern(64));
}

pub(crate) fn ranks_put_to_ranks(bed: &Bed) {
    for options in [NiOptions::MATCHING | NiOptions::LOGICAL, NiOptions::NO_MATCHING | NiOptions::LOGICAL] {
        let pair = bed.pair(options);
        let (source, sink) =
            (Source::new(&pair.a, 64, MdOptions::empty()), Sink::new(&pair.b, 64, PtOptions::empty()));
        accept(&pair.b, sink.pt, &sink.memory);
        pair.a.put(&Put::new(source.md, 64, id(&pair.b), sink.pt)).unwrap();
        let event = pair.event(&pair.b, sink.eq, EventKind::Put);
        assert_eq!((event.initiator.rank().0, id(&pair.b).rank().0), (0, 1));
    }
}

/// A put that is refused, with each kind of acknowledgement.
fn refused(pair: &Pair, source: &Source, pt: u32, len: u64, fail: NiFail) {
    let target = id(&pair.b);
    let put = Put::new(source.md, len, target, pt);
    pair.a.put(&Put { ack_req: AckReq::Ack, ..put }).unwrap();
    pair.event(&pair.a, source.eq, EventKind::Send);
    let ack = pair.failure(&pair.a, source.eq, EventKind::Ack);
    assert_eq!((ack.ni_fail_type, ack.mlength), (fail, 0));
}

pub(crate) fn a_put_that_nothing_takes_is_dropped_and_counted(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink) =
        (Source::new(&pair.a, 8192, MdOptions::empty()), Sink::new(&pair.b, 64, PtOptions::empty()));
    refused(&pair, &source, sink.pt, 8, NiFail::Dropped);
    refused(&pair, &source, sink.pt + 1, 8, NiFail::Dropped);
    refused(&pair, &source, 60_000, 8, NiFail::Dropped);
    refused(&pair, &source, sink.pt, 8192, NiFail::Dropped);
    pair.status(&pair.b, StatusRegister::DropCount, 4);
}

pub(crate) fn a_put_that_the_entry_does_not_do_is_an_operation_violation(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink) =
        (Source::new(&pair.a, 64, MdOptions::empty()), Sink::new(&pair.b, 64, PtOptions::empty()));
    sink.post(&pair.b, MeOptions::OP_GET);
    refused(&pair, &source, sink.pt, 8, NiFail::OpViolation);
    pair.status(&pair.b, StatusRegister::OperationViolations, 1);
    pair.status(&pair.b, StatusRegister::DropCount, 0);
}

pub(crate) fn a_put_of_another_user_is_a_permission_violation(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink) =
        (Source::new(&pair.a, 64, MdOptions::empty()), Sink::new(&pair.b, 64, PtOptions::empty()));
    let other = portals::v4::Uid(pair.a.uid().0 ^ 1);
    let me = Me { uid: Some(other), ..sink.me(MeOptions::OP_PUT | MeOptions::USE_ONCE) };
    let entry = pair.b.me_append(sink.pt, &me, ListKind::Priority, 0).unwrap();
    refused(&pair, &source, sink.pt, 8, NiFail::PermViolation);
    pair.status(&pair.b, StatusRegister::PermissionViolations, 1);
    pair.b.me_unlink(entry).unwrap();
    pair.b.me_append(sink.pt, &Me { uid: Some(pair.a.uid()), ..me }, ListKind::Priority, 0).unwrap();
    pair.a.put(&Put::new(source.md, 8, id(&pair.b), sink.pt)).unwrap();
    pair.event(&pair.b, sink.eq, EventKind::Put);
}

pub(crate) fn a_put_that_does_not_fit_is_truncated(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    for (len, room) in [(64, 40), (8192, 5000), (8192, 100), (16, 0)] {
        let (source, sink) = (
            Source::new(&pair.a, len as usize, MdOptions::empty()),
            Sink::new(&pair.b, room, PtOptions::empty()),
        );
        sink.post(&pair.b, MeOptions::OP_PUT);
        let put = Put { ack_req: AckReq::Ack, ..Put::new(source.md, len, id(&pair.b), sink.pt) };
        pair.a.put(&put).unwrap();
        let event = pair.event(&pair.b, sink.eq, EventKind::Put);
        assert_eq!((event.rlength, event.mlength), (len, room as u64));
        pair.event(&pair.a, source.eq, EventKind::Send);
        assert_eq!(pair.event(&pair.a, source.eq, EventKind::Ack).mlength, room as u64);
        assert_eq!(sink.memory.to_vec(), pattern(room));
    }
}

pub(crate) fn a_put_behind_the_end_moves_nothing(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink) =
        (Source::new(&pair.a, 64, MdOptions::empty()), Sink::new(&pair.b, 64, PtOptions::empty()));
    sink.post(&pair.b, MeOptions::OP_PUT);
    for remote_offset in [64, 65, u64::MAX] {
        let put = Put { remote_offset, ..Put::new(source.md, 8, id(&pair.b), sink.pt) };
        pair.a.put(&put).unwrap();
        let event = pair.event(&pair.b, sink.eq, EventKind::Put);
        assert_eq!((event.mlength, event.remote_offset), (0, remote_offset));
    }
    assert_eq!(sink.memory.to_vec(), [0; 64]);
}

pub(crate) fn acknowledgements_of_each_kind_are_told_and_counted(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let sink = Sink::new(&pair.b, 64, PtOptions::empty());
    sink.post(&pair.b, MeOptions::OP_PUT);
    for len in [8, 64] {
        for (ack_req, event, bytes) in [
            (AckReq::None, false, None),
            (AckReq::Ack, true, Some(len)),
            (AckReq::Ct, false, Some(len)),
            (AckReq::Oc, false, Some(1)),
        ] {
            for (options, wanted) in [
                (MdOptions::EVENT_CT_ACK, bytes.map(|_| 1)),
                (MdOptions::EVENT_CT_ACK | MdOptions::EVENT_CT_BYTES, bytes),
            ] {
                let source = Source::new(&pair.a, 64, options | MdOptions::EVENT_SEND_DISABLE);
                pair.a.put(&Put { ack_req, ..Put::new(source.md, len, id(&pair.b), sink.pt) }).unwrap();
                pair.event(&pair.b, sink.eq, EventKind::Put);
                if event {
                    assert_eq!(pair.event(&pair.a, source.eq, EventKind::Ack).mlength, len);
                }
                if let Some(success) = wanted {
                    let count = pair.counted(&pair.a, source.ct, success);
                    assert_eq!(count, CtEvent { success, failure: 0 }, "{ack_req:?} {options:?}");
                }
                pair.settled(&[(&pair.a, source.eq)]);
                assert_eq!(pair.a.ct_get(source.ct).unwrap().success, wanted.unwrap_or(0));
            }
        }
    }
}

pub(crate) fn an_operation_completed_ack_comes_for_what_failed_too(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let options = MdOptions::EVENT_CT_ACK | MdOptions::EVENT_SEND_DISABLE;
    let (oc, ct) = (Source::new(&pair.a, 64, options), Source::new(&pair.a, 64, options));
    pair.a.put(&Put { ack_req: AckReq::Oc, ..Put::new(oc.md, 8, id(&pair.b), 9) }).unwrap();
    pair.a.put(&Put { ack_req: AckReq::Ct, ..Put::new(ct.md, 8, id(&pair.b), 9) }).unwrap();
    assert_eq!(pair.counted(&pair.a, oc.ct, 1), CtEvent { success: 1, failure: 0 });
    assert_eq!(pair.counted(&pair.a, ct.ct, 1), CtEvent { success: 0, failure: 1 });
    pair.settled(&[(&pair.a, oc.eq), (&pair.a, ct.eq)]);
}

pub(crate) fn vectors_are_gathered_and_scattered(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    for len in [0, 100, 4096, 4097, 20_000] {
        let cut = |ni: &portals::v4::Ni, sizes: &[usize]| -> Vec<portals::Memory> {
            sizes.iter().map(|&size| ni.alloc(size).unwrap()).collect()
        };
        let (from, to) =
            (cut(&pair.a, &[1, 7000, 0, 333, 16_000]), cut(&pair.b, &[50, 4000, 3, 0, 9000, 8000]));
        let mut at = 0;
        for piece in &from {
            piece.write_at(0, &pattern(30_000)[at..at + piece.len()]);
            at += piece.len();
        }
        let eq = pair.a.eq_alloc(8).unwrap();
        let md = pair.a.md_bind(&Md { eq: Some(eq), ..Md::new(from.clone()) }).unwrap();
        let sink = Sink::new(&pair.b, 0, PtOptions::empty());
        let me = Me { memory: to.clone().into(), ..sink.me(MeOptions::OP_PUT | MeOptions::OP_GET) };
        pair.b.me_append(sink.pt, &me, ListKind::Priority, 0).unwrap();
        let put = Put {
            local_offset: 5,
            remote_offset: 20,
            ack_req: AckReq::Ack,
            ..Put::new(md, len, id(&pair.b), sink.pt)
        };
        pair.a.put(&put).unwrap();
        let event = pair.event(&pair.b, sink.eq, EventKind::Put);
        assert_eq!((event.mlength, event.start), (len, me.memory.addr() + 20));
        pair.event(&pair.a, eq, EventKind::Send);
        pair.event(&pair.a, eq, EventKind::Ack);
        let all: Vec<u8> = to.iter().flat_map(|piece| piece.to_vec()).collect();
        let len = len as usize;
        assert!(all[20..20 + len] == pattern(30_000)[5..5 + len], "{len} bytes");
        assert!(all[20 + len..].iter().all(|&b| b == 0), "nothing behind {len} bytes");
        // And back, into one piece.
        let back = Source::new(&pair.a, 30_000, MdOptions::empty());
        let get = portals::v4::Get {
            remote_offset: 20,
            ..portals::v4::Get::new(back.md, len as u64, id(&pair.b), sink.pt)
        };
        pair.a.get(&get).unwrap();
        pair.event(&pair.a, back.eq, EventKind::Reply);
        assert!(back.memory.to_vec()[..len] == pattern(30_000)[5..5 + len], "{len} bytes fetched");
    }
}

pub(crate) fn puts_of_a_pair_match_in_their_order(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (count, most) = (3000, 16_384);
    let source = Source::new(&pair.a, most, MdOptions::EVENT_SEND_DISABLE);
    let sink = Sink::new(&pair.b, count * 8, PtOptions::empty());
    let (ct, eq) = (pair.b.ct_alloc().unwrap(), pair.b.eq_alloc(count as u32).unwrap());
    let pt = pair.b.pt_alloc(PtOptions::empty(), Some(eq), None).unwrap();
    let options = MeOptions::OP_PUT | MeOptions::EVENT_CT_COMM | MeOptions::USE_ONCE;
    let options = options | MeOptions::EVENT_UNLINK_DISABLE;
    for n in 0..count {
        let me =
            Me { ct: Some(ct), ..Sink { eq, pt, memory: sink.memory.slice(n * 8..n * 8 + 8) }.me(options) };
        pair.b.me_append(pt, &me, ListKind::Priority, n as u64).unwrap();
    }
    // More than the queue pair, the slots and the window hold; every eighth is fetched by its target.
    for n in 0..count as u64 {
        let length = if n % 8 == 7 { most as u64 } else { 8 + n % 1000 };
        pair.a.put(&Put { hdr_data: n, ..Put::new(source.md, length, id(&pair.b), pt) }).unwrap();
    }
    pair.counted(&pair.b, ct, count as u64);
    let mut seen = vec![false; count];
    for _ in 0..count {
        let event = pair.event(&pair.b, eq, EventKind::Put);
        assert_eq!(event.user_ptr, event.hdr_data, "the message took the entry in its place");
        assert!(!std::mem::replace(&mut seen[event.hdr_data as usize], true));
    }
}

pub(crate) fn threads_share_an_interface(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (threads, count) = (4u64, 200u64);
    let sink = Sink::new(&pair.b, 64, PtOptions::empty());
    let ct = pair.b.ct_alloc().unwrap();
    let options = MeOptions::OP_PUT | MeOptions::EVENT_CT_COMM | MeOptions::EVENT_COMM_DISABLE;
    pair.b.me_append(sink.pt, &Me { ct: Some(ct), ..sink.me(options) }, ListKind::Priority, 0).unwrap();
    let _pump = pair.pump();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let source =
                    Source::new(&pair.a, 64, MdOptions::EVENT_CT_ACK | MdOptions::EVENT_SEND_DISABLE);
                for n in 1..=count {
                    let put =
                        Put { ack_req: AckReq::Ct, ..Put::new(source.md, n % 64, id(&pair.b), sink.pt) };
                    pair.a.put(&put).unwrap();
                    if n % 10 == 0 {
                        assert_eq!(pair.a.ct_wait(source.ct, n).unwrap(), CtEvent { success: n, failure: 0 });
                    }
                }
            });
        }
        let all = threads * count;
        assert_eq!(pair.b.ct_wait(ct, all).unwrap(), CtEvent { success: all, failure: 0 });
    });
}

pub(crate) fn puts_without_an_answer_that_wait_for_the_window_all_leave(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 8, MdOptions::EVENT_SEND_DISABLE);
    let sink = Sink::new(&pair.b, 64, PtOptions::empty());
    let ct = pair.b.ct_alloc().unwrap();
    let options = MeOptions::OP_PUT | MeOptions::EVENT_CT_COMM | MeOptions::EVENT_COMM_DISABLE;
    pair.b.me_append(sink.pt, &Me { ct: Some(ct), ..sink.me(options) }, ListKind::Priority, 0).unwrap();
    // None of them leaves before the two have met.
    for _ in 0..3000 {
        pair.a.put(&Put::new(source.md, 8, id(&pair.b), sink.pt)).unwrap();
    }
    assert_eq!(pair.counted(&pair.b, ct, 3000).success, 3000);
}

pub(crate) fn vectors_of_as_many_pieces_as_are_granted_are_sent_and_fetched(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (count, each) = (pair.a.limits().max_iovecs as usize, 40);
    assert_eq!(count, 4096 / 16, "as many as one message tells of");
    let most = count * each;
    let pieces = |ni: &portals::v4::Ni, memory: &portals::Memory| -> Vec<portals::Memory> {
        assert_eq!(memory.len(), most, "{ni:?}");
        (0..count).map(|n| memory.slice(n * each..(n + 1) * each)).collect()
    };
    let (source, sink) =
        (Source::new(&pair.a, most, MdOptions::empty()), Sink::new(&pair.b, most, PtOptions::empty()));
    let eq = pair.a.eq_alloc(8).unwrap();
    let md = Md { eq: Some(eq), ..Md::new(pieces(&pair.a, &source.memory)) };
    let md = pair.a.md_bind(&md).unwrap();
    let me =
        Me { memory: pieces(&pair.b, &sink.memory).into(), ..sink.me(MeOptions::OP_PUT | MeOptions::OP_GET) };
    pair.b.me_append(sink.pt, &me, ListKind::Priority, 0).unwrap();
    let len = most as u64;
    pair.a.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, len, id(&pair.b), sink.pt) }).unwrap();
    pair.event(&pair.b, sink.eq, EventKind::Put);
    pair.event(&pair.a, eq, EventKind::Send);
    pair.event(&pair.a, eq, EventKind::Ack);
    assert_eq!(sink.memory.to_vec(), pattern(most));
    source.memory.write_at(0, &vec![0; most]);
    pair.a.get(&portals::v4::Get::new(md, len, id(&pair.b), sink.pt)).unwrap();
    pair.event(&pair.a, eq, EventKind::Reply);
    assert_eq!(source.memory.to_vec(), pattern(most));
}
