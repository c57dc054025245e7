//! Gets.

use portals::v4::{
    CtEvent, EventKind, Get, ListKind, MdOptions, Me, MeOptions, NiFail, PtOptions, StatusRegister,
};

use crate::bed::{Bed, LIST, MATCHING, Sink, Source, accept, id, pattern};

fn filled(sink: &Sink) {
    sink.memory.write_at(0, &pattern(sink.memory.len()));
}

pub(crate) fn a_get_fetches_with_its_events(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let (source, sink) =
        (Source::new(&pair.a, 64, MdOptions::empty()), Sink::new(&pair.b, 64, PtOptions::empty()));
    filled(&sink);
    pair.b.me_append(sink.pt, &sink.me(MeOptions::OP_GET), ListKind::Priority, 5).unwrap();
    source.memory.write_at(0, &[0xaa; 64]);
    let get = Get {
        local_offset: 8,
        remote_offset: 16,
        user_ptr: 9,
        ..Get::new(source.md, 24, id(&pair.b), sink.pt)
    };
    pair.a.get(&get).unwrap();
    let there = pair.event(&pair.b, sink.eq, EventKind::Get);
    let reply = pair.event(&pair.a, source.eq, EventKind::Reply);
    assert_eq!((there.mlength, there.rlength, there.remote_offset, there.user_ptr), (24, 24, 16, 5));
    assert_eq!((there.start, there.initiator), (sink.memory.addr() + 16, id(&pair.a)));
    assert_eq!((reply.mlength, reply.remote_offset, reply.user_ptr), (24, 16, 9));
    let here = source.memory.to_vec();
    assert_eq!(here[8..32], pattern(64)[16..40]);
    assert!(here[..8].iter().chain(&here[32..]).all(|&b| b == 0xaa));
    pair.settled(&[(&pair.a, source.eq), (&pair.b, sink.eq)]);
}

pub(crate) fn gets_of_every_length_fetch_all(bed: &Bed) {
    let pair = bed.pair(LIST);
    let most = 1 << 20;
    let (source, sink) =
        (Source::new(&pair.a, most, MdOptions::empty()), Sink::new(&pair.b, most, PtOptions::empty()));
    filled(&sink);
    accept(&pair.b, sink.pt, &sink.memory);
    for len in [0, 1, 8, 64, 256, 4095, 4096, 4097, 65_536, most] {
        source.memory.write_at(0, &vec![0xaa; most]);
        pair.a.get(&Get::new(source.md, len as u64, id(&pair.b), sink.pt)).unwrap();
        assert_eq!(pair.event(&pair.a, source.eq, EventKind::Reply).mlength, len as u64);
        assert_eq!(pair.event(&pair.b, sink.eq, EventKind::Get).mlength, len as u64);
        let here = source.memory.to_vec();
        assert!(here[..len] == pattern(most)[..len], "{len} bytes");
        assert!(here[len..].iter().all(|&b| b == 0xaa), "nothing behind {len} bytes");
    }
}

pub(crate) fn a_get_of_many_reads_fetches_all(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let most = bed.huge();
    let (source, sink) =
        (Source::new(&pair.a, most, MdOptions::empty()), Sink::new(&pair.b, most, PtOptions::empty()));
    filled(&sink);
    source.memory.write_at(0, &vec![0; most]);
    sink.post(&pair.b, MeOptions::OP_GET);
    pair.a.get(&Get::new(source.md, most as u64, id(&pair.b), sink.pt)).unwrap();
    pair.event(&pair.a, source.eq, EventKind::Reply);
    assert!(source.memory.to_vec() == pattern(most));
}

pub(crate) fn a_get_that_does_not_fit_is_truncated(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    for (len, room) in [(64, 40), (8192, 5000), (8192, 100), (16, 0)] {
        let (source, sink) = (
            Source::new(&pair.a, len as usize, MdOptions::empty()),
            Sink::new(&pair.b, room, PtOptions::empty()),
        );
        filled(&sink);
        source.memory.write_at(0, &vec![0xaa; len as usize]);
        sink.post(&pair.b, MeOptions::OP_GET);
        pair.a.get(&Get::new(source.md, len, id(&pair.b), sink.pt)).unwrap();
        let reply = pair.event(&pair.a, source.eq, EventKind::Reply);
        assert_eq!((reply.rlength, reply.mlength), (len, room as u64));
        let here = source.memory.to_vec();
        assert_eq!(here[..room], pattern(room));
        assert!(here[room..].iter().all(|&b| b == 0xaa));
    }
}

pub(crate) fn a_get_that_nothing_answers_fails_by_its_reply(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 64, MdOptions::EVENT_CT_REPLY);
    let sink = Sink::new(&pair.b, 64, PtOptions::empty());
    let fails = [NiFail::Dropped, NiFail::OpViolation, NiFail::PermViolation];
    for (n, wanted) in (1..).zip(fails) {
        let me = match wanted {
            NiFail::Dropped => None,
            NiFail::OpViolation => Some(sink.me(MeOptions::OP_PUT)),
            _ => Some(Me { uid: Some(portals::v4::Uid(pair.a.uid().0 + 1)), ..sink.me(MeOptions::OP_GET) }),
        };
        let entry = me.map(|me| pair.b.me_append(sink.pt, &me, ListKind::Priority, 0).unwrap());
        pair.a.get(&Get::new(source.md, 8, id(&pair.b), sink.pt)).unwrap();
        let reply = pair.failure(&pair.a, source.eq, EventKind::Reply);
        assert_eq!((reply.ni_fail_type, reply.mlength), (wanted, 0));
        assert_eq!(pair.counted(&pair.a, source.ct, n), CtEvent { success: 0, failure: n });
        if let Some(entry) = entry {
            pair.b.me_unlink(entry).unwrap();
        }
    }
    for register in
        [StatusRegister::DropCount, StatusRegister::OperationViolations, StatusRegister::PermissionViolations]
    {
        pair.status(&pair.b, register, 1);
    }
    assert_eq!(source.memory.to_vec(), pattern(64), "nothing was written");
}

pub(crate) fn a_process_gets_from_itself(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let ni = &pair.a;
    let (source, sink) = (Source::new(ni, 8192, MdOptions::empty()), Sink::new(ni, 8192, PtOptions::empty()));
    filled(&sink);
    sink.post(ni, MeOptions::OP_GET);
    for len in [0, 8, 4096, 8192] {
        source.memory.write_at(0, &[0; 8192]);
        ni.get(&Get::new(source.md, len, id(ni), sink.pt)).unwrap();
        pair.event(ni, sink.eq, EventKind::Get);
        pair.event(ni, source.eq, EventKind::Reply);
        assert_eq!(source.memory.to_vec()[..len as usize], pattern(8192)[..len as usize]);
    }
}
