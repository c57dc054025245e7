//! Unreliable connections: no packet is sent again, and arriving messages are whole and in order.

use hca_core::{PostErrorKind, QpState, QpType, RecvExtra, SendOp, WcOpcode, WcStatus};

use crate::checks::placement::{flush_range, write_word};
use crate::mem::pattern;
use crate::node::Node;
use crate::qp::{Conn, Pair, wr};
use crate::{Bed, Feature};

pub(crate) fn uc_delivers_messages_of_every_size(bed: &dyn Bed) {
    if !bed.can(Feature::Lossless) {
        return;
    }
    let p = Pair::new(bed, Conn::of(QpType::Uc));
    let mtu = p.conn.mtu.bytes() as usize;
    for (i, len) in [0, 1, 8, mtu - 1, mtu, mtu + 1, 4 * mtu + 3].into_iter().enumerate() {
        let id = i as u64;
        let bytes = pattern(id, len);
        p.ma.write(0, &bytes);
        p.mb.fill(0x44);
        p.b.recv(id, &[p.mb.sge(7, 6000)]);
        p.a.send(id, SendOp::SendImm(i as u32), &[p.ma.sge(0, len)]);
        p.a.send_cq.ok(id);
        let c = p.b.recv_cq.ok(id);
        assert_eq!((c.byte_len as usize, c.extra), (len, RecvExtra::Imm(i as u32)));
        p.mb.assert_bytes(7, &bytes);
        p.mb.assert_untouched_but(7, len, 0x44);
    }
}

pub(crate) fn uc_writes_with_and_without_immediate(bed: &dyn Bed) {
    if !bed.can(Feature::Lossless) {
        return;
    }
    let p = Pair::new(bed, Conn::of(QpType::Uc));
    let bytes = pattern(5, 3001);
    p.ma.write(0, &bytes);
    p.a.send(1, SendOp::Write(p.mb.remote(1)), &[p.ma.sge(0, 3001)]);
    p.b.recv(2, &[]);
    p.a.send(2, SendOp::WriteImm(p.mb.remote(8192), 77), &[p.ma.sge(0, 3001)]);
    p.a.send_cq.all_end(1..3, WcStatus::Success);
    let c = p.b.recv_cq.ok(2);
    assert_eq!((c.opcode, c.extra, c.byte_len), (WcOpcode::RecvRdmaWithImm, RecvExtra::Imm(77), 3001));
    p.mb.assert_bytes(1, &bytes);
    p.mb.assert_bytes(8192, &bytes);
}

pub(crate) fn uc_drops_what_nobody_receives_and_goes_on(bed: &dyn Bed) {
    let p = Pair::new(bed, Conn::of(QpType::Uc));
    p.a.send(1, SendOp::Send, &[p.ma.sge(0, 3000)]);
    p.a.send_cq.ok(1);
    p.a.node.world.wait_no_recv(1, 1);
    p.ma.write(0, &pattern(2, 3000));
    p.b.recv(2, &[p.mb.sge(0, 3000)]);
    p.b.recv_cq.stays_empty();
    if bed.can(Feature::Lossless) {
        p.a.send(2, SendOp::Send, &[p.ma.sge(0, 3000)]);
        p.b.recv_cq.ok(2);
        p.mb.assert_bytes(0, &pattern(2, 3000));
    }
    assert_eq!((p.a.state(), p.b.state()), (QpState::Rts, QpState::Rts));
}

pub(crate) fn uc_keeps_order(bed: &dyn Bed) {
    let p = Pair::new(bed, Conn::of(QpType::Uc));
    for id in 0..50 {
        p.b.recv(id, &[p.mb.sge(0, 2000)]);
    }
    for id in 0..50 {
        p.a.send(id, SendOp::SendImm(id as u32), &[p.ma.sge(0, 2000)]);
    }
    p.a.send_cq.all_end(0..50, WcStatus::Success);
    let lossless = bed.can(Feature::Lossless);
    if !lossless {
        p.settle();
    }
    let mut last = None;
    let mut n = 0;
    // All come where none is lost, when they come.
    let next = |n| if lossless { (n < 50).then(|| p.b.recv_cq.next()) } else { p.b.recv_cq.try_next() };
    while let Some(c) = next(n) {
        let RecvExtra::Imm(imm) = c.extra else { panic!("no immediate data in {c:?}") };
        assert_eq!((c.status, c.byte_len, c.wr_id), (WcStatus::Success, 2000, n));
        assert!(last < Some(imm), "{imm} after {last:?}");
        last = Some(imm);
        n += 1;
    }
}

pub(crate) fn uc_offers_no_reads_and_no_atomics(bed: &dyn Bed) {
    let p = Pair::new(bed, Conn::of(QpType::Uc));
    let remote = p.mb.remote(0);
    for op in [
        SendOp::Read(remote),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap { remote, compare: 0, swap: 1 },
        write_word(remote, 1),
        flush_range(remote, 8),
    ] {
        let e = p.a.try_send(&[wr(1, op, &[p.ma.sge(0, 8)])]).unwrap_err();
        assert!(matches!(e.kind, PostErrorKind::Unsupported { qp_type: QpType::Uc, .. }), "{e}");
    }
    assert_eq!(p.a.state(), QpState::Rts);
}

pub(crate) fn uc_refuses_a_wrong_key_without_a_word(bed: &dyn Bed) {
    let p = Pair::new(bed, Conn::of(QpType::Uc));
    p.ma.fill(9);
    p.a.send(1, SendOp::Write(p.mb.remote(-1)), &[p.ma.sge(0, 3000)]);
    p.a.send(2, SendOp::Write(p.mb.remote(p.mb.len() as i64 - 2999)), &[p.ma.sge(0, 3000)]);
    p.a.send_cq.all_end(1..3, WcStatus::Success);
    p.settle();
    p.mb.assert_bytes(0, &vec![0; p.mb.len()]);
    assert_eq!(p.a.state(), QpState::Rts);
}

/// Adapters differ in whether the message is dropped or ends the queue pair; none may deliver it.
pub(crate) fn uc_does_not_deliver_into_a_receive_that_is_too_small(bed: &dyn Bed) {
    let p = Pair::new(bed, Conn::of(QpType::Uc));
    p.ma.fill(9);
    p.b.recv(1, &[p.mb.sge(0, 1500)]);
    p.a.send(1, SendOp::Send, &[p.ma.sge(0, 1501)]);
    p.a.send_cq.ok(1);
    p.settle();
    if let Some(c) = p.b.recv_cq.try_next() {
        assert_eq!((c.wr_id, c.status), (1, WcStatus::LocalLength));
    }
    p.mb.assert_untouched_but(0, 1500, 0);
}

pub(crate) fn uc_send_errors_stop_the_send_queue_only(bed: &dyn Bed) {
    let p = Pair::new(bed, Conn::of(QpType::Uc));
    crate::checks::ud::send_error_stops_the_send_queue_only(&p.a, &p.ma, None);
    if bed.can(Feature::Lossless) {
        p.a.recv(9, &[p.ma.sge(0, 64)]);
        p.b.send(9, SendOp::Send, &[p.mb.sge(0, 64)]);
        p.a.recv_cq.ok(9);
        p.b.send_cq.ok(9);
        p.a.go(QpState::Rts);
        p.assert_works();
    }
}

pub(crate) fn uc_packet_sequence_numbers_wrap(bed: &dyn Bed) {
    if !bed.can(Feature::Lossless) {
        return;
    }
    let [a, b] = Node::open(bed);
    let p = Pair::between(&a, &b, Conn { psn: [0xff_fffe, 0xff_ffff], ..Conn::of(QpType::Uc) });
    for id in 0..5 {
        p.ma.write(0, &pattern(id, 2500));
        p.b.recv(id, &[p.mb.sge(0, 2500)]);
        p.a.send(id, SendOp::Send, &[p.ma.sge(0, 2500)]);
        p.b.recv_cq.ok(id);
        p.mb.assert_bytes(0, &pattern(id, 2500));
    }
}
