//! Memory of the program's own, at lengths around those from which adapters treat it in other ways.

use hca_core::{Access, RecvExtra, SendOp, WcStatus};

use crate::mem::{Mem, pattern};
use crate::node::Node;
use crate::qp::{ALL, Conn, Pair};
use crate::{Bed, Feature};

/// A page, what adapters on one machine lend each other at once, and the lengths from which they do.
const LENGTHS: [usize; 12] = [
    1,
    4095,
    4097,
    16 << 10,
    (32 << 10) - 1,
    32 << 10,
    (64 << 10) - 1,
    64 << 10,
    (64 << 10) + 1,
    128 << 10,
    (128 << 10) + 1,
    300_001,
];
const BYTES: usize = 320 << 10;

/// Whether devices take memory of the program's own.
fn is_taken(bed: &dyn Bed) -> bool {
    let [node] = Node::open(bed);
    node.dev().attr().foreign_memory
}

/// Two queue pairs whose memory is the program's own on both sides, if devices take that.
fn foreign(bed: &dyn Bed) -> Option<(Pair, Mem, Mem)> {
    if !is_taken(bed) {
        return None;
    }
    let [a, b] = Node::open(bed);
    let p = Pair::between(&a, &b, Conn::default());
    let (ma, mb) = (a.foreign_mem(BYTES, ALL), b.foreign_mem(BYTES, ALL));
    // Adapters may come to an understanding by the first long message of a connection.
    for id in 0..2 {
        p.a.send(id, SendOp::Write(mb.remote(0)), &[ma.sge(0, 200_000)]);
        p.a.send_cq.ok(id);
        p.a.send(id, SendOp::Read(mb.remote(0)), &[ma.sge(0, 200_000)]);
        p.a.send_cq.ok(id);
        p.settle();
    }
    Some((p, ma, mb))
}

pub(crate) fn rc_foreign_memory_is_sent_at_every_length(bed: &dyn Bed) {
    let Some((p, ma, mb)) = foreign(bed) else { return };
    for (id, len) in (0..).zip(LENGTHS) {
        let bytes = pattern(id, len);
        mb.fill(0x55);
        ma.write(5, &bytes);
        // Two entries on either side, which meet at different places.
        let (first, second) = (len / 3, len / 2);
        p.b.recv(id, &[mb.sge(9, second), mb.sge(9 + second, len - second)]);
        p.a.send(id, SendOp::SendImm(7), &[ma.sge(5, first), ma.sge(5 + first, len - first)]);
        let c = p.b.recv_cq.ok(id);
        assert_eq!((c.byte_len as usize, c.extra), (len, RecvExtra::Imm(7)));
        p.a.send_cq.ok(id);
        mb.assert_bytes(9, &bytes);
        mb.assert_untouched_but(9, len, 0x55);
    }
}

pub(crate) fn rc_foreign_memory_is_written_at_every_length(bed: &dyn Bed) {
    let Some((p, ma, mb)) = foreign(bed) else { return };
    for (id, len) in (0..).zip(LENGTHS) {
        let bytes = pattern(id, len);
        mb.fill(0x55);
        ma.write(3, &bytes);
        if id % 2 == 0 {
            p.a.send(id, SendOp::Write(mb.remote(11)), &[ma.sge(3, len)]);
        } else {
            p.b.recv(id, &[]);
            p.a.send(id, SendOp::WriteImm(mb.remote(11), 4), &[ma.sge(3, len)]);
            assert_eq!(p.b.recv_cq.ok(id).byte_len as usize, len);
        }
        p.a.send_cq.ok(id);
        mb.assert_bytes(11, &bytes);
        mb.assert_untouched_but(11, len, 0x55);
    }
}

pub(crate) fn rc_foreign_memory_is_read_at_every_length(bed: &dyn Bed) {
    let Some((p, ma, mb)) = foreign(bed) else { return };
    let bytes = pattern(6, BYTES);
    mb.write(0, &bytes);
    for (id, len) in (0..).zip(LENGTHS) {
        ma.fill(0x55);
        let first = len / 3;
        p.a.send(id, SendOp::Read(mb.remote(13)), &[ma.sge(1, first), ma.sge(1 + first, len - first)]);
        let c = p.a.send_cq.ok(id);
        assert_eq!(c.byte_len as usize, len);
        ma.assert_bytes(1, &bytes[13..13 + len]);
        ma.assert_untouched_but(1, len, 0x55);
    }
}

pub(crate) fn rc_long_operations_on_foreign_memory_keep_their_order(bed: &dyn Bed) {
    let Some((p, ma, mb)) = foreign(bed) else { return };
    const LEN: usize = 150_000;
    let word = BYTES - 8;
    ma.write(0, &pattern(1, LEN));
    mb.write(0, &pattern(2, LEN));
    // What is read is what stood there before the WRITE behind it, and the other way round, each time.
    for round in 0..4 {
        p.b.recv(round, &[mb.sge(160_000, LEN)]);
        p.a.send(10, SendOp::Write(mb.remote(0)), &[ma.sge(0, LEN)]);
        p.a.send(11, SendOp::Read(mb.remote(0)), &[ma.sge(160_000, LEN)]);
        p.a.send(
            12,
            SendOp::FetchAdd { remote: mb.remote(word as i64 & !7), add: 1 },
            &[ma.sge(BYTES - 16, 8)],
        );
        p.a.send(13, SendOp::Send, &[ma.sge(160_000, LEN)]);
        for id in 10..14 {
            p.a.send_cq.ok(id);
        }
        p.b.recv_cq.ok(round);
        mb.assert_bytes(0, &pattern(1, LEN));
        ma.assert_bytes(160_000, &pattern(1, LEN));
    }
    p.b.recv_cq.stays_empty();
}

pub(crate) fn rc_long_operations_on_foreign_memory_need_its_key(bed: &dyn Bed) {
    for taken_back in 0..3 {
        let Some((p, ma, mb)) = foreign(bed) else { return };
        mb.fill(0x55);
        let (mine, theirs) = (ma.sge(0, 100_000), mb.remote(0));
        let end = match taken_back {
            // That of the memory that is sent from.
            0 => {
                ma.dereg().unwrap();
                p.b.recv(1, &[mb.sge(0, 100_000)]);
                p.a.send(1, SendOp::Send, &[mine]);
                WcStatus::LocalProtection
            }
            1 => {
                mb.dereg().unwrap();
                p.a.send(1, SendOp::Write(theirs), &[mine]);
                WcStatus::RemoteAccess
            }
            _ => {
                mb.dereg().unwrap();
                p.a.send(1, SendOp::Read(theirs), &[mine]);
                WcStatus::RemoteAccess
            }
        };
        let status = p.a.send_cq.next().status;
        // A refusal may be lost, and the peer is silent behind it.
        let lost = !bed.can(Feature::Lossless) && status == WcStatus::RetryExceeded;
        assert!(status == end || lost, "{status}, not {end}");
        mb.assert_untouched_but(0, 0, 0x55);
    }
}

pub(crate) fn rc_foreign_memory_of_which_peers_may_not_write_serves_locally(bed: &dyn Bed) {
    if !is_taken(bed) {
        return;
    }
    let [a, b] = Node::open(bed);
    let p = Pair::between(&a, &b, Conn::default());
    let source = a.foreign_mem(BYTES, Access::empty());
    let target = b.foreign_mem(BYTES, Access::LOCAL_WRITE);
    let bytes = pattern(3, 200_000);
    source.write(0, &bytes);
    for id in 0..4 {
        target.fill(0);
        p.b.recv(id, &[target.sge(0, 200_000)]);
        p.a.send(id, SendOp::Send, &[source.sge(0, 200_000)]);
        p.b.recv_cq.ok(id);
        p.a.send_cq.ok(id);
        target.assert_bytes(0, &bytes);
        p.settle();
    }
}

pub(crate) fn rc_read_only_memory_is_sent_and_read(bed: &dyn Bed) {
    if !is_taken(bed) {
        return;
    }
    let [a, b] = Node::open(bed);
    let p = Pair::between(&a, &b, Conn::default());
    for (id, len) in (0..).zip([8, 4096, 200_000]) {
        let bytes = pattern(id, len);
        let (source, target) = (a.read_only_mem(&bytes, Access::REMOTE_READ), b.foreign_mem(len, ALL));
        p.b.recv(id, &[target.sge(0, len)]);
        p.a.send(id, SendOp::Send, &[source.sge(0, len)]);
        p.b.recv_cq.ok(id);
        p.a.send_cq.ok(id);
        target.assert_bytes(0, &bytes);
        target.fill(0);
        p.b.send(id, SendOp::Read(source.remote(0)), &[target.sge(0, len)]);
        p.b.send_cq.ok(id);
        target.assert_bytes(0, &bytes);
    }
}
