//! RDMA WRITE and READ on reliable connections.

use hca_core::{
    Access, Mtu, Payload, QpCap, RecvExtra, RemoteAddr, Rkey, SendFlags, SendOp, SendWr, Sge, WcOpcode,
    WcStatus,
};

use crate::Bed;
use crate::mem::pattern;
use crate::node::Node;
use crate::qp::{ALL, Conn, Pair, wr};

pub(crate) fn rc_write_places_bytes_at_any_offset_and_length(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let mtu = p.conn.mtu.bytes() as usize;
    for (i, (offset, len)) in
        [(0, 1), (3, 8), (0, mtu), (1, mtu), (mtu - 1, mtu + 1), (4095, 2), (5, 3 * mtu + 11), (7, 0)]
            .into_iter()
            .enumerate()
    {
        let id = i as u64;
        let bytes = pattern(id, len);
        p.mb.fill(0x55);
        p.ma.write(offset ^ 1, &bytes);
        p.a.send(id, SendOp::Write(p.mb.remote(offset as i64)), &[p.ma.sge(offset ^ 1, len)]);
        assert_eq!(p.a.send_cq.ok(id).opcode, WcOpcode::RdmaWrite);
        p.mb.assert_bytes(offset, &bytes);
        p.mb.assert_untouched_but(offset, len, 0x55);
    }
    p.b.recv_cq.stays_empty();
}

pub(crate) fn rc_read_fetches_bytes_at_any_offset_and_length(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let mtu = p.conn.mtu.bytes() as usize;
    let bytes = pattern(5, p.mb.len());
    p.mb.write(0, &bytes);
    for (i, (offset, len)) in
        [(0, 1), (3, 8), (0, mtu), (1, mtu), (mtu - 1, mtu + 1), (4095, 2), (5, 3 * mtu + 11), (7, 0)]
            .into_iter()
            .enumerate()
    {
        let id = i as u64;
        p.ma.fill(0x55);
        p.a.send(id, SendOp::Read(p.mb.remote(offset as i64)), &[p.ma.sge(offset ^ 1, len)]);
        let c = p.a.send_cq.ok(id);
        assert_eq!((c.opcode, c.byte_len as usize), (WcOpcode::RdmaRead, len));
        p.ma.assert_bytes(offset ^ 1, &bytes[offset..offset + len]);
        p.ma.assert_untouched_but(offset ^ 1, len, 0x55);
    }
}

pub(crate) fn rc_write_with_immediate_consumes_a_receive(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    p.mb.fill(0x55);
    let bytes = pattern(3, 3000);
    p.ma.write(0, &bytes);
    for (id, len) in [(1, 3000), (2, 8), (3, 0)] {
        p.b.recv(id, &[p.mb.sge(8192, 64)]);
        p.a.send(id, SendOp::WriteImm(p.mb.remote(100), id as u32), &[p.ma.sge(0, len)]);
        let c = p.b.recv_cq.ok(id);
        assert_eq!((c.opcode, c.byte_len as usize), (WcOpcode::RecvRdmaWithImm, len));
        assert_eq!(c.extra, RecvExtra::Imm(id as u32));
        assert_eq!(p.a.send_cq.ok(id).opcode, WcOpcode::RdmaWrite);
    }
    p.mb.assert_bytes(100, &bytes);
    p.mb.assert_untouched_but(100, 3000, 0x55);
}

pub(crate) fn rc_write_with_immediate_needs_no_receive_memory(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    p.b.recv(1, &[]);
    p.a.send(1, SendOp::WriteImm(p.mb.remote(0), 9), &[p.ma.sge(0, 2000)]);
    assert_eq!(p.b.recv_cq.ok(1).extra, RecvExtra::Imm(9));
    p.a.send_cq.ok(1);
}

pub(crate) fn rc_zero_length_needs_no_key(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let nowhere = RemoteAddr { addr: 0xdead_beef_0000, rkey: Rkey::new(0x1357_9bdf) };
    p.a.send(1, SendOp::Write(nowhere), &[]);
    p.a.send_cq.ok(1);
    p.a.send(2, SendOp::Read(nowhere), &[]);
    assert_eq!(p.a.send_cq.ok(2).byte_len, 0);
    p.b.recv(3, &[]);
    p.a.send(3, SendOp::WriteImm(nowhere, 7), &[]);
    assert_eq!(p.b.recv_cq.ok(3).byte_len, 0);
    p.a.send_cq.ok(3);
    p.a.send(4, SendOp::Write(nowhere), &[Sge::default()]);
    p.a.send_cq.ok(4);
    p.assert_works();
}

pub(crate) fn rc_moves_four_mebibytes(bed: &dyn Bed) {
    const LEN: usize = 4 << 20;
    let p = Pair::new(bed, Conn { mtu: Mtu::B4096, mem_bytes: LEN, ..Conn::default() });
    let bytes = pattern(11, LEN);
    p.ma.write(0, &bytes);
    p.a.send(1, SendOp::Write(p.mb.remote(0)), &[p.ma.sge(0, LEN)]);
    p.a.send_cq.ok(1);
    p.mb.assert_bytes(0, &bytes);
    p.ma.fill(0);
    p.a.send(2, SendOp::Read(p.mb.remote(0)), &[p.ma.sge(0, LEN)]);
    assert_eq!(p.a.send_cq.ok(2).byte_len as usize, LEN);
    p.ma.assert_bytes(0, &bytes);
}

pub(crate) fn rc_read_and_write_take_lists(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let max = a.dev().attr().max_sge;
    let cap = QpCap { max_send_sge: max, ..QpCap::default() };
    let p = Pair::between(&a, &b, Conn { cap, mem_bytes: 32 << 10, ..Conn::default() });
    let bytes = pattern(12, 16384);
    p.ma.write(0, &bytes);
    let pieces: Vec<(usize, usize)> =
        (0..max as usize).map(|i| (16000 - 230 * i, 1 + i * 37 % 200)).collect();
    let list: Vec<Sge> = pieces.iter().map(|&(o, l)| p.ma.sge(o, l)).collect();
    let joined: Vec<u8> = pieces.iter().flat_map(|&(o, l)| bytes[o..o + l].to_vec()).collect();
    p.a.send(1, SendOp::Write(p.mb.remote(1)), &list);
    p.a.send_cq.ok(1);
    p.mb.assert_bytes(1, &joined);
    p.ma.fill(0);
    p.a.send(2, SendOp::Read(p.mb.remote(1)), &list);
    assert_eq!(p.a.send_cq.ok(2).byte_len as usize, joined.len());
    for (offset, len) in pieces {
        p.ma.assert_bytes(offset, &bytes[offset..offset + len]);
    }
}

pub(crate) fn rc_writes_inline(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let bytes = pattern(13, 60);
    let inline = SendWr { payload: Payload::Inline(&bytes), ..wr(1, SendOp::Write(p.mb.remote(3)), &[]) };
    p.a.try_send(&[inline]).unwrap();
    p.a.send_cq.ok(1);
    p.mb.assert_bytes(3, &bytes);
}

pub(crate) fn rc_more_reads_than_may_be_outstanding_all_complete_in_order(bed: &dyn Bed) {
    let p = Pair::new(bed, Conn { max_rd_atomic: 2, max_dest_rd_atomic: 2, ..Conn::default() });
    let bytes = pattern(14, 8000);
    p.mb.write(0, &bytes);
    for i in 0..20 {
        p.a.send(i as u64, SendOp::Read(p.mb.remote(i * 300)), &[p.ma.sge(i as usize * 300, 300)]);
    }
    p.a.send_cq.all_end(0..20, WcStatus::Success);
    p.ma.assert_bytes(0, &bytes[..6000]);
}

pub(crate) fn rc_reads_beyond_what_the_responder_takes_are_refused(bed: &dyn Bed) {
    let p = Pair::new(bed, Conn { max_rd_atomic: 4, max_dest_rd_atomic: 0, ..Conn::default() });
    p.a.send(1, SendOp::Read(p.mb.remote(0)), &[p.ma.sge(0, 64)]);
    let c = p.a.send_cq.next();
    let status = p.a.node.world.as_refusal(c.status, WcStatus::RemoteInvalidRequest);
    // An adapter that can't be told of none takes the right away instead.
    assert!(matches!(status, WcStatus::RemoteInvalidRequest | WcStatus::RemoteAccess), "{status:?}");
}

pub(crate) fn rc_operations_of_one_queue_pair_take_effect_in_order(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    // WRITE, READ of what it wrote, WRITE over it, SEND: the READ sees the first WRITE only. A READ is
    // overtaken by what follows it unless that is fenced.
    p.ma.write(0, &pattern(1, 3000));
    p.ma.write(3000, &pattern(2, 3000));
    p.b.recv(9, &[p.mb.sge(12000, 8)]);
    let over = SendOp::Write(p.mb.remote(0));
    p.a.try_send(&[
        wr(1, SendOp::Write(p.mb.remote(0)), &[p.ma.sge(0, 3000)]),
        wr(2, SendOp::Read(p.mb.remote(0)), &[p.ma.sge(8192, 3000)]),
        SendWr { flags: SendFlags::SIGNALED | SendFlags::FENCE, ..wr(3, over, &[p.ma.sge(3000, 3000)]) },
        wr(4, SendOp::Send, &[p.ma.sge(0, 8)]),
    ])
    .unwrap();
    p.b.recv_cq.ok(9);
    // The message arrived, so the WRITE before it is visible.
    p.mb.assert_bytes(0, &pattern(2, 3000));
    p.a.send_cq.all_end(1..5, WcStatus::Success);
    p.ma.assert_bytes(8192, &pattern(1, 3000));
}

pub(crate) fn rc_fence_waits_for_earlier_reads(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    for round in 0..5_u64 {
        let bytes = pattern(round, 4000);
        p.mb.write(0, &bytes);
        p.ma.fill(0);
        p.b.recv(round, &[p.mb.sge(8192, 4000)]);
        // The fenced SEND forwards what the READ brought.
        let sge = [p.ma.sge(0, 4000)];
        let mut fenced = wr(round + 200, SendOp::Send, &sge);
        fenced.flags |= SendFlags::FENCE;
        p.a.try_send(&[wr(round + 100, SendOp::Read(p.mb.remote(0)), &sge), fenced]).unwrap();
        p.a.send_cq.ok(round + 100);
        p.a.send_cq.ok(round + 200);
        p.b.recv_cq.ok(round);
        p.mb.assert_bytes(8192, &bytes);
    }
}

pub(crate) fn rc_regions_may_be_named_by_other_addresses(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let iova = 0x7000_0000_1000;
    let (src, dst) = (p.a.node.mem_at(8192, ALL, iova), p.b.node.mem_at(8192, ALL, iova + 0x1_0000_0000));
    let bytes = pattern(15, 5000);
    src.write(11, &bytes);
    p.a.send(1, SendOp::Write(dst.remote(100)), &[src.sge(11, 5000)]);
    p.a.send_cq.ok(1);
    dst.assert_bytes(100, &bytes);
    let zero = p.b.node.mem_at(4096, ALL, 0);
    p.a.send(2, SendOp::Write(zero.remote(0)), &[src.sge(11, 4096)]);
    p.a.send_cq.ok(2);
    zero.assert_bytes(0, &bytes[..4096]);
}

pub(crate) fn rc_both_sides_write_and_read_one_window(bed: &dyn Bed) {
    // Each half has one writer; both sides read both halves while these change, and see words whole.
    let p = Pair::rc(bed);
    for round in 1..30_u64 {
        for w in 0..32 {
            p.ma.word(w * 8).store(round * 0x0101_0101_0101_0101, core::sync::atomic::Ordering::Relaxed);
        }
        p.a.try_send(&[
            wr(1, SendOp::Write(p.mb.remote(0)), &[p.ma.sge(0, 256)]),
            wr(2, SendOp::Read(p.mb.remote(0)), &[p.ma.sge(4096, 256)]),
        ])
        .unwrap();
        p.b.send(3, SendOp::Read(p.ma.remote(0)), &[p.mb.sge(4096, 256)]);
        p.a.send_cq.ok(1);
        p.a.send_cq.ok(2);
        p.b.send_cq.ok(3);
        for w in 0..32 {
            for m in [&p.ma, &p.mb] {
                let v = m.word(4096 + w * 8).load(core::sync::atomic::Ordering::Relaxed);
                assert_eq!(v, round * 0x0101_0101_0101_0101);
            }
        }
    }
}

pub(crate) fn rc_a_region_of_no_remote_rights_serves_locally(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let local = p.a.node.mem(4096, Access::empty());
    let bytes = pattern(16, 4096);
    local.write(0, &bytes);
    p.a.send(1, SendOp::Write(p.mb.remote(0)), &[local.sge(0, 4096)]);
    p.a.send_cq.ok(1);
    p.mb.assert_bytes(0, &bytes);
}

/// Where a device can: others do nothing, and say so.
pub(crate) fn what_is_done_within_a_call_is_there_behind_it_and_has_no_completion(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let local = [p.ma.sge(0, 8)];
    let (write, read) = (SendOp::Write(p.mb.remote(0)), SendOp::Read(p.mb.remote(0)));
    let mut done = [0; 2];
    p.mb.fill(0);
    for round in 0..64_u64 {
        let bytes = pattern(round, 8);
        p.ma.write(0, &bytes);
        if p.a.carries_out(&wr(round, write, &local)) {
            done[0] += 1;
            p.mb.assert_bytes(0, &bytes);
        } else {
            p.a.send(round, write, &local);
            p.a.send_cq.ok(round);
        }
        let bytes = pattern(!round, 8);
        p.mb.write(0, &bytes);
        if p.a.carries_out(&wr(round, read, &local)) {
            done[1] += 1;
            p.ma.assert_bytes(0, &bytes);
        } else {
            p.a.send(round, read, &local);
            p.a.send_cq.ok(round);
        }
        p.mb.assert_untouched_but(0, 8, 0);
    }
    assert!(p.a.query().near || done == [0; 2], "done on a peer of another machine: {done:?}");
    // A request that is none, or whose keys do not fit, is not done.
    let wrong = [Sge { lkey: hca_core::Lkey::new(local[0].lkey.raw() ^ 0x100), ..local[0] }];
    let other = SendOp::Write(RemoteAddr { rkey: Rkey::new(0x77), ..p.mb.remote(0) });
    for wr in [wr(1, SendOp::Send, &local), wr(1, write, &wrong), wr(1, read, &wrong), wr(1, other, &local)] {
        assert!(!p.a.carries_out(&wr), "{wr:?}");
    }
    p.a.send_cq.stays_empty();
    // More inline bytes than the queue takes: the peer's memory changes if the device says so, and else not.
    let bytes = pattern(7, p.a.cap.max_inline as usize + 1);
    p.mb.fill(0);
    let longer = SendWr { payload: Payload::Inline(&bytes), ..wr(1, write, &[]) };
    if p.a.carries_out(&longer) {
        p.mb.assert_bytes(0, &bytes);
    } else {
        p.mb.assert_untouched_but(0, 0, 0);
    }
    p.a.send_cq.stays_empty();
}
