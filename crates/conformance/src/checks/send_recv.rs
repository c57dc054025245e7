//! SEND and receive on reliable connections.

use hca_core::{
    Mixed, Mtu, Payload, PostErrorKind, QpCap, QpType, RecvExtra, RecvWr, SendFlags, SendOp, SendWr, Sge,
    WcOpcode, WcStatus,
};

use crate::Bed;
use crate::mem::pattern;
use crate::node::Node;
use crate::qp::{ALL, Conn, Pair, wr};

/// Sends `len` bytes and fails unless they, and nothing else, arrive.
fn transfer(p: &Pair, seed: u64, len: usize) {
    let bytes = pattern(seed, len);
    p.ma.write(8, &bytes);
    p.mb.fill(0xee);
    p.b.recv(seed, &[p.mb.sge(16, len + 8)]);
    p.a.send(seed, SendOp::Send, &[p.ma.sge(8, len)]);
    let c = p.b.recv_cq.ok(seed);
    assert_eq!((c.opcode, c.byte_len as usize, c.qp), (WcOpcode::Recv, len, p.b.handle));
    assert_eq!((c.extra, c.grh), (RecvExtra::None, false));
    let c = p.a.send_cq.ok(seed);
    assert_eq!((c.opcode, c.qp), (WcOpcode::Send, p.a.handle));
    p.mb.assert_bytes(16, &bytes);
    p.mb.assert_untouched_but(16, len, 0xee);
}

pub(crate) fn rc_delivers_messages_of_every_size(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let mtu = p.conn.mtu.bytes() as usize;
    for len in [0, 1, 3, 8, 63, 64, 65, mtu - 1, mtu, mtu + 1, 2 * mtu, 5 * mtu + 7] {
        transfer(&p, len as u64, len);
    }
}

pub(crate) fn rc_delivers_long_messages(bed: &dyn Bed) {
    let p = Pair::new(bed, Conn { mtu: Mtu::B4096, mem_bytes: (1 << 20) + 64, ..Conn::default() });
    transfer(&p, 1, 64 << 10);
    transfer(&p, 2, 1 << 20);
}

pub(crate) fn rc_works_with_every_path_mtu(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let max = a.dev().port().active_mtu;
    for mtu in Mtu::ALL.into_iter().filter(|m| *m <= max) {
        let p = Pair::between(&a, &b, Conn { mtu, ..Conn::default() });
        transfer(&p, 1, 3 * mtu.bytes() as usize + 1);
        transfer(&p, 2, mtu.bytes() as usize);
    }
}

pub(crate) fn rc_delivers_immediate_data(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let bytes = pattern(4, 3000);
    p.ma.write(0, &bytes);
    for (id, len) in [(1, 3000), (2, 0)] {
        p.b.recv(id, &[p.mb.sge(0, 4000)]);
        p.a.send(id, SendOp::SendImm(0xdead_0000 + id as u32), &[p.ma.sge(0, len)]);
        let c = p.b.recv_cq.ok(id);
        assert_eq!((c.byte_len as usize, c.extra), (len, RecvExtra::Imm(0xdead_0000 + id as u32)));
        p.a.send_cq.ok(id);
    }
    p.mb.assert_bytes(0, &bytes);
}

pub(crate) fn rc_inline_data_is_copied_at_the_post(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let max = a.dev().attr().max_inline as usize;
    let cap = QpCap { max_inline: max as u32, ..QpCap::default() };
    let p = Pair::between(&a, &b, Conn { cap, ..Conn::default() });
    for (i, len) in [0, 1, 8, 60, 64, max].into_iter().enumerate() {
        let id = i as u64;
        let mut bytes = pattern(id + 1, len);
        let sent = bytes.clone();
        p.b.recv(id, &[p.mb.sge(0, 4096)]);
        let inline = SendWr { payload: Payload::Inline(&bytes), ..wr(id, SendOp::Send, &[]) };
        p.a.try_send(&[inline]).expect("inline is taken");
        bytes.fill(0);
        assert_eq!(p.b.recv_cq.ok(id).byte_len as usize, len);
        p.a.send_cq.ok(id);
        p.mb.assert_bytes(0, &sent);
    }
}

pub(crate) fn rc_lists_may_be_inline_in_part(bed: &dyn Bed) {
    const INLINE: usize = 60;
    let [a, b] = Node::open(bed);
    let cap = QpCap { max_send_sge: 5, max_inline: INLINE as u32, ..QpCap::default() };
    let p = Pair::between(&a, &b, Conn { cap, mem_bytes: 32 << 10, ..Conn::default() });
    let (memory, bytes) = (pattern(3, 16384), pattern(4, INLINE));
    p.ma.write(0, &memory);
    // For each list its entries: inline or not, and the length. Bytes of memory follow each other at 100.
    let lists: &[&[(bool, usize)]] = &[
        &[(true, 12), (false, 300)],
        &[(false, 7), (true, 1), (false, 5000)],
        &[(true, 40), (false, 0), (true, 0), (false, 1), (true, 20)],
        &[(true, 8), (true, 9)],
        &[(false, 3), (false, 4)],
        &[(true, 1), (false, 9000), (true, 2)],
        &[(true, INLINE), (false, 64), (false, 4096)],
    ];
    for (i, list) in lists.iter().enumerate() {
        let (id, mut inline, mut at, mut own) = (i as u64, 0, 100, 0);
        let (mut entries, mut want) = (Vec::new(), Vec::new());
        for (n, &(is_inline, len)) in list.iter().enumerate() {
            let (from, next) = if is_inline { (&bytes, &mut own) } else { (&memory, &mut at) };
            entries.push(if is_inline {
                Sge { len: len as u32, ..Sge::default() }
            } else {
                p.ma.sge(*next, len)
            });
            inline |= u64::from(is_inline) << n;
            want.extend_from_slice(&from[*next..*next + len]);
            *next += len;
        }
        let mut copied = bytes[..own].to_vec();
        p.mb.fill(0xee);
        p.b.recv(id, &[p.mb.sge(16, 16384)]);
        for op in [SendOp::Send, SendOp::Write(p.mb.remote(16400))] {
            copied.copy_from_slice(&bytes[..own]);
            let payload = Payload::Mixed(Mixed { entries: &entries, inline, bytes: &copied });
            p.a.try_send(&[SendWr { payload, ..wr(id, op, &[]) }]).expect("it is within the limits");
            copied.fill(0);
        }
        p.a.send_cq.all_end([id, id], WcStatus::Success);
        assert_eq!(p.b.recv_cq.ok(id).byte_len as usize, want.len(), "list {i}");
        p.mb.assert_bytes(16, &want);
        p.mb.assert_bytes(16400, &want);
    }
    let entries = [Sge { len: INLINE as u32 + 1, ..Sge::default() }, p.ma.sge(0, 1)];
    let long = Mixed { entries: &entries, inline: 1, bytes: &[0; INLINE + 1] };
    let refused = |op, list| {
        let e = p.a.try_send(&[SendWr { payload: Payload::Mixed(list), ..wr(90, op, &[]) }]);
        e.expect_err("it is beyond a limit").kind
    };
    let max = cap.max_inline;
    assert_eq!(refused(SendOp::Send, long), PostErrorKind::inline_too_long(INLINE + 1, max));
    let entries = [p.ma.sge(0, 1); 6];
    let many = Mixed { entries: &entries, inline: 1, bytes: &[0] };
    assert_eq!(refused(SendOp::Send, many), PostErrorKind::TooManySges { count: 6, max: 5 });
    let read = Mixed { entries: &entries[..2], inline: 1, bytes: &[0] };
    let kind = refused(SendOp::Read(p.mb.remote(0)), read);
    assert!(matches!(kind, PostErrorKind::Unsupported { .. }), "{kind}");
    // The key of its memory is looked at as that of any.
    let entries = [Sge::default(), p.mb.sge(0, 8)];
    let foreign = Mixed { entries: &entries, inline: 1, bytes: &[] };
    p.b.recv(91, &[p.mb.sge(0, 64)]);
    p.a.try_send(&[SendWr { payload: Payload::Mixed(foreign), ..wr(91, SendOp::Send, &[]) }]).unwrap();
    p.a.send_cq.ends(91, WcStatus::LocalProtection);
}

pub(crate) fn rc_gathers_and_scatters_lists_in_order(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let max = a.dev().attr().max_sge.min(b.dev().attr().max_sge);
    let cap = QpCap { max_send_sge: max, max_recv_sge: max, ..QpCap::default() };
    let p = Pair::between(&a, &b, Conn { cap, mem_bytes: 32 << 10, ..Conn::default() });
    let bytes = pattern(9, 16384);
    p.ma.write(0, &bytes);
    // Pieces of odd lengths, back to front in memory, one of them empty.
    let pieces = |n: usize, from: usize| -> Vec<(usize, usize)> {
        (0..n).map(|i| (16000 - 200 * (i + 1), if i == 1 { 0 } else { from + i * 5 % 90 })).collect()
    };
    for (round, (ns, nr)) in
        [(1, max as usize), (max as usize, 1), (5, 3), (max as usize, max as usize)].into_iter().enumerate()
    {
        let id = round as u64;
        let send: Vec<(usize, usize)> = pieces(ns, 17);
        let total: usize = send.iter().map(|s| s.1).sum();
        let recv: Vec<(usize, usize)> = if nr == 1 { vec![(3, 8000)] } else { pieces(nr, 101) };
        let want: Vec<u8> = send.iter().flat_map(|&(o, l)| bytes[o..o + l].to_vec()).collect();
        let sges = |m: &crate::mem::Mem, l: &[(usize, usize)]| -> Vec<Sge> {
            l.iter().map(|&(o, l)| m.sge(o, l)).collect()
        };
        p.b.recv(id, &sges(&p.mb, &recv));
        p.a.send(id, SendOp::Send, &sges(&p.ma, &send));
        assert_eq!(p.b.recv_cq.ok(id).byte_len as usize, total, "round {round}");
        p.a.send_cq.ok(id);
        let mut at = 0;
        for (offset, len) in recv {
            let n = len.min(total - at);
            p.mb.assert_bytes(offset, &want[at..at + n]);
            at += n;
        }
        assert_eq!(at, total);
    }
}

pub(crate) fn rc_unsignalled_sends_yield_no_completion(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    for id in 0..10 {
        p.b.recv(id, &[p.mb.sge(0, 64)]);
    }
    let sge = [p.ma.sge(0, 64)];
    let quiet = SendWr { flags: SendFlags::empty(), ..wr(0, SendOp::Send, &sge) };
    let batch: Vec<_> = (0..9).map(|wr_id| SendWr { wr_id, ..quiet }).collect();
    p.a.try_send(&batch).unwrap();
    p.b.recv_cq.all_end(0..9, WcStatus::Success);
    p.a.send_cq.stays_empty();
    p.a.send(9, SendOp::Send, &sge);
    p.a.send_cq.ok(9);
    p.a.send_cq.stays_empty();
}

pub(crate) fn rc_slots_of_unsignalled_sends_come_back(bed: &dyn Bed) {
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 256, ..QpCap::default() };
    let p = Pair::new(bed, Conn { cap, ..Conn::default() });
    let depth = u64::from(p.a.cap.max_send_wr);
    let n = 4 * depth;
    let recv = [p.mb.sge(0, 8)];
    for id in 0..n {
        p.b.recv(id, &recv);
    }
    let sge = [p.ma.sge(0, 8)];
    for id in 0..n {
        // Every 8th is signalled, and its completion frees those before it.
        let flags = if id % 8 == 7 { SendFlags::SIGNALED } else { SendFlags::empty() };
        let one = [SendWr { flags, ..wr(id, SendOp::Send, &sge) }];
        p.a.node.world.wait("a free slot", || match p.a.try_send(&one) {
            Ok(()) => Some(()),
            Err(e) => {
                assert!(matches!(e.kind, PostErrorKind::QueueFull { .. }), "{e}");
                p.a.send_cq.try_next();
                None
            }
        });
    }
    p.b.recv_cq.all_end(0..n, WcStatus::Success);
}

pub(crate) fn rc_messages_arrive_in_the_order_of_posting(bed: &dyn Bed) {
    const N: u64 = 100;
    let p = Pair::rc(bed);
    let recvs: Vec<[Sge; 1]> = (0..N).map(|i| [p.mb.sge(i as usize * 16, 16)]).collect();
    let wrs: Vec<_> = recvs.iter().enumerate().map(|(i, s)| RecvWr { wr_id: i as u64, sges: s }).collect();
    p.b.try_recv(&wrs).unwrap();
    for i in 0..N {
        p.ma.write(i as usize * 16, &pattern(i, 16));
    }
    let sends: Vec<[Sge; 1]> = (0..N).map(|i| [p.ma.sge(i as usize * 16, 16)]).collect();
    let wrs: Vec<_> = sends.iter().enumerate().map(|(i, s)| wr(i as u64, SendOp::Send, s)).collect();
    for batch in wrs.chunks(30) {
        p.a.try_send(batch).unwrap();
    }
    p.b.recv_cq.all_end(0..N, WcStatus::Success);
    p.a.send_cq.all_end(0..N, WcStatus::Success);
    for i in 0..N {
        p.mb.assert_bytes(i as usize * 16, &pattern(i, 16));
    }
}

pub(crate) fn rc_messages_flow_both_ways_at_once(bed: &dyn Bed) {
    const N: u64 = 40;
    let p = Pair::rc(bed);
    for id in 0..N {
        p.a.recv(id, &[p.ma.sge(8192, 3000)]);
        p.b.recv(id, &[p.mb.sge(8192, 3000)]);
    }
    p.ma.write(0, &pattern(1, 3000));
    p.mb.write(0, &pattern(2, 3000));
    for id in 0..N {
        p.a.send(id, SendOp::Send, &[p.ma.sge(0, 3000)]);
        p.b.send(id, SendOp::Send, &[p.mb.sge(0, 3000)]);
    }
    for qp in [&p.a, &p.b] {
        qp.recv_cq.all_end(0..N, WcStatus::Success);
        qp.send_cq.all_end(0..N, WcStatus::Success);
    }
    p.ma.assert_bytes(8192, &pattern(2, 3000));
    p.mb.assert_bytes(8192, &pattern(1, 3000));
}

pub(crate) fn rc_solicited_flag_reaches_the_receiver(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let sge = [p.ma.sge(0, 2000)];
    for (id, solicited) in [(1, true), (2, false)] {
        p.b.recv(id, &[p.mb.sge(0, 2000)]);
        let mut one = wr(id, SendOp::Send, &sge);
        one.flags.set(SendFlags::SOLICITED, solicited);
        p.a.try_send(&[one]).unwrap();
        assert_eq!(p.b.recv_cq.ok(id).solicited, solicited);
    }
}

pub(crate) fn rc_send_with_invalidate_takes_the_key_back(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let window = p.b.node.mem(64, ALL);
    p.a.send(1, SendOp::Write(window.remote(0)), &[p.ma.sge(0, 64)]);
    p.a.send_cq.ok(1);
    p.b.recv(2, &[p.mb.sge(0, 100)]);
    p.a.send(2, SendOp::SendInv(window.keys().rkey), &[p.ma.sge(0, 100)]);
    let c = p.b.recv_cq.ok(2);
    assert_eq!((c.extra, c.byte_len), (RecvExtra::Invalidated(window.keys().rkey), 100));
    p.a.send_cq.ok(2);
    p.a.send(3, SendOp::Write(window.remote(0)), &[p.ma.sge(0, 64)]);
    p.a.send_cq.ends(3, WcStatus::RemoteAccess);
}

pub(crate) fn rc_invalidate_needs_the_right(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let window = p.b.node.mem(64, ALL - hca_core::Access::REMOTE_INVALIDATE);
    p.b.recv(2, &[p.mb.sge(0, 100)]);
    p.a.send(2, SendOp::SendInv(window.keys().rkey), &[p.ma.sge(0, 100)]);
    let c = p.a.send_cq.next();
    let status = p.a.node.world.as_refusal(c.status, WcStatus::RemoteAccess);
    assert!(
        matches!(status, WcStatus::RemoteAccess | WcStatus::RemoteOperation | WcStatus::RemoteInvalidRequest),
        "{:?}",
        c.status
    );
    assert_ne!(p.b.recv_cq.next().status, WcStatus::Success);
}

pub(crate) fn rc_packet_sequence_numbers_wrap(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    for psn in [[0xff_fffd, 0xff_ffff], [0xff_fff0, 0x7f_fffe], [0, 0x80_0000]] {
        let p = Pair::between(&a, &b, Conn { psn, mtu: Mtu::B256, ..Conn::default() });
        for round in 0..6 {
            transfer(&p, round, 700 * round as usize);
        }
        p.assert_works();
    }
}

pub(crate) fn rc_nothing_is_lost_or_early_where_sequence_numbers_wrap(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    for first in 0xff_fff8..=0xff_ffff {
        let psn = [first, first];
        let conn = Conn { psn, mtu: Mtu::B256, min_rnr_timer: 1, ..Conn::default() };
        let p = Pair::between(&a, &b, conn);
        let bytes = pattern(first.into(), 4096);
        p.mb.write(4096, &bytes);
        // READs, messages that nobody receives yet, and an atomic behind them.
        for i in 0..4_usize {
            p.a.send(i as u64, SendOp::Read(p.mb.remote(4096 + i as i64 * 600)), &[p.ma.sge(i * 600, 600)]);
        }
        for id in 4..7 {
            p.a.send(id, SendOp::Send, &[p.ma.sge(8192, 300)]);
        }
        p.a.send(7, SendOp::FetchAdd { remote: p.mb.remote(0), add: 1 }, &[p.ma.sge(4096, 8)]);
        p.a.send_cq.all_end(0..4, WcStatus::Success);
        p.ma.assert_bytes(0, &bytes[..2400]);
        for id in 4..7 {
            assert_eq!(p.a.send_cq.try_next(), None, "nobody received message {id}");
            p.b.recv(id, &[p.mb.sge(8192, 300)]);
            p.b.recv_cq.ok(id);
            p.a.send_cq.ok(id);
        }
        p.a.send_cq.ok(7);
        p.mb.assert_bytes(0, &1_u64.to_ne_bytes());
    }
}

pub(crate) fn rc_connects_queue_pairs_of_one_adapter(bed: &dyn Bed) {
    let [a] = Node::open(bed);
    let p = Pair::between(&a, &a, Conn::default());
    transfer(&p, 1, 5000);
    transfer(&p, 2, 0);
    p.assert_works();
}

pub(crate) fn rc_connects_a_queue_pair_to_itself(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let conn = Conn { psn: [77, 77], ..Conn::default() };
    let qp = node.qp(&conn);
    qp.to_init(&conn);
    qp.to_rts(&conn, qp.qpn, node.gid(), 0);
    let m = node.mem(16384, ALL);
    for (id, len) in [(1, 8), (2, 5000), (3, 0)] {
        let bytes = pattern(id, len);
        m.write(0, &bytes);
        qp.recv(id, &[m.sge(8192, 6000)]);
        qp.send(id, SendOp::Send, &[m.sge(0, len)]);
        assert_eq!(qp.recv_cq.ok(id).byte_len as usize, len);
        qp.send_cq.ok(id);
        m.assert_bytes(8192, &bytes);
        m.fill(0);
        m.write(0, &bytes);
        qp.send(id + 10, SendOp::Write(m.remote(8192)), &[m.sge(0, len)]);
        qp.send_cq.ok(id + 10);
        m.assert_bytes(8192, &bytes);
    }
}

pub(crate) fn queue_pairs_of_all_services_live_side_by_side(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let pairs: Vec<Pair> = (0..12)
        .map(|i| {
            let qp_type = if i % 3 == 2 { QpType::Uc } else { QpType::Rc };
            Pair::between(&a, &b, Conn { mem_bytes: 8192, ..Conn::of(qp_type) })
        })
        .collect();
    let lossless = bed.can(crate::Feature::Lossless);
    for (i, p) in pairs.iter().enumerate() {
        p.ma.write(0, &pattern(i as u64, 2000));
        p.b.recv(i as u64, &[p.mb.sge(0, 2000)]);
    }
    for (i, p) in pairs.iter().enumerate() {
        p.a.send(i as u64, SendOp::Send, &[p.ma.sge(0, 2000)]);
    }
    for (i, p) in pairs.iter().enumerate().rev() {
        p.a.send_cq.ok(i as u64);
        if lossless || p.conn.qp_type == QpType::Rc {
            p.b.recv_cq.ok(i as u64);
            p.mb.assert_bytes(0, &pattern(i as u64, 2000));
        }
    }
}
