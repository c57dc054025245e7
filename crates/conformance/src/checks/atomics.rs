//! Compare-and-swap and fetch-and-add.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use hca_core::{AtomicScope, Payload, PostErrorKind, RemoteAddr, SendOp, SendWr, WcOpcode, WcStatus};

use crate::Bed;
use crate::node::Node;
use crate::qp::{Conn, Pair, Qp, wr};

fn has_atomics(p: &Pair) -> bool {
    p.b.node.dev().attr().atomics != AtomicScope::None
}

/// Does one atomic and returns what the peer's word held before.
fn old_value(p: &Pair, op: SendOp) -> u64 {
    p.ma.word(8).store(0x5555, Relaxed);
    p.a.send(1, op, &[p.ma.sge(8, 8)]);
    let c = p.a.send_cq.ok(1);
    assert_eq!((c.opcode, c.byte_len), (op.wc_opcode(), 8));
    p.ma.word(8).load(Relaxed)
}

pub(crate) fn compare_swap_swaps_only_on_a_match(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    if !has_atomics(&p) {
        return;
    }
    let remote = p.mb.remote(16);
    p.mb.word(16).store(5, Relaxed);
    assert_eq!(old_value(&p, SendOp::CompareSwap { remote, compare: 4, swap: 9 }), 5);
    assert_eq!(p.mb.word(16).load(Relaxed), 5);
    assert_eq!(old_value(&p, SendOp::CompareSwap { remote, compare: 5, swap: u64::MAX - 1 }), 5);
    assert_eq!(p.mb.word(16).load(Relaxed), u64::MAX - 1);
    assert_eq!(p.mb.word(8).load(Relaxed) | p.mb.word(24).load(Relaxed), 0, "neighbours were touched");
}

pub(crate) fn fetch_add_returns_the_old_value_and_wraps(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    if !has_atomics(&p) {
        return;
    }
    let remote = p.mb.remote(4088);
    p.mb.word(4088).store(u64::MAX - 1, Relaxed);
    assert_eq!(old_value(&p, SendOp::FetchAdd { remote, add: 1 }), u64::MAX - 1);
    assert_eq!(old_value(&p, SendOp::FetchAdd { remote, add: 3 }), u64::MAX);
    assert_eq!(p.mb.word(4088).load(Relaxed), 2);
}

pub(crate) fn atomics_complete_in_order_beyond_the_outstanding_limit(bed: &dyn Bed) {
    let p = Pair::new(bed, Conn { max_rd_atomic: 3, max_dest_rd_atomic: 3, ..Conn::default() });
    if !has_atomics(&p) {
        return;
    }
    let remote = p.mb.remote(0);
    for i in 0..50 {
        p.a.send(i, SendOp::FetchAdd { remote, add: 1 }, &[p.ma.sge(i as usize * 8, 8)]);
    }
    p.a.send_cq.all_end(0..50, WcStatus::Success);
    for i in 0..50 {
        assert_eq!(p.ma.word(i * 8).load(Relaxed), i as u64);
    }
}

pub(crate) fn a_misaligned_atomic_is_an_invalid_request(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    for offset in [1, 4, 7] {
        let p = Pair::between(&a, &b, Conn::default());
        if !has_atomics(&p) {
            return;
        }
        p.a.send(1, SendOp::FetchAdd { remote: p.mb.remote(offset), add: 1 }, &[p.ma.sge(0, 8)]);
        p.a.send_cq.ends(1, WcStatus::RemoteInvalidRequest);
        p.mb.assert_bytes(0, &[0; 32]);
    }
}

pub(crate) fn an_atomic_takes_eight_bytes_of_memory(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let op = SendOp::FetchAdd { remote: p.mb.remote(0), add: 1 };
    for sges in [&[][..], &[p.ma.sge(0, 4)], &[p.ma.sge(0, 16)], &[p.ma.sge(0, 8), p.ma.sge(8, 8)]] {
        let e = p.a.try_send(&[wr(1, op, sges)]).unwrap_err();
        assert!(matches!(e.kind, PostErrorKind::AtomicLength { .. }), "{e}");
    }
    let inline = SendWr { payload: Payload::Inline(&[0; 8]), ..wr(1, op, &[]) };
    let e = p.a.try_send(&[inline]).unwrap_err();
    assert!(matches!(e.kind, PostErrorKind::Unsupported { .. } | PostErrorKind::AtomicLength { .. }), "{e}");
    // Eight bytes in two pieces are eight bytes.
    p.mb.word(0).store(0x1122_3344_5566_7788, Relaxed);
    p.a.send(2, op, &[p.ma.sge(0, 4), p.ma.sge(100, 4)]);
    assert_eq!(p.a.send_cq.ok(2).opcode, WcOpcode::FetchAdd);
    let old = 0x1122_3344_5566_7788_u64.to_ne_bytes();
    p.ma.assert_bytes(0, &old[..4]);
    p.ma.assert_bytes(100, &old[4..]);
}

/// Adds 1 to a word `n` times, at most four requests at a time.
fn add(qp: &Qp, ma: &crate::mem::Mem, remote: RemoteAddr, n: u64) {
    let (mut posted, mut done) = (0, 0);
    while done < n {
        while posted < n && posted - done < 4 {
            qp.send(posted, SendOp::FetchAdd { remote, add: 1 }, &[ma.sge(posted as usize % 4 * 8, 8)]);
            posted += 1;
        }
        qp.send_cq.ok(done);
        done += 1;
    }
}

pub(crate) fn adds_of_several_queue_pairs_sum_up_exactly(bed: &dyn Bed) {
    const N: u64 = 100;
    let nodes: [Node; 3] = Node::open(bed);
    let pairs: Vec<Pair> = (0..4).map(|i| Pair::between(&nodes[i % 2], &nodes[2], Conn::default())).collect();
    if !has_atomics(&pairs[0]) {
        return;
    }
    let word = nodes[2].mem(64, crate::qp::ALL);
    std::thread::scope(|s| {
        for p in &pairs {
            s.spawn(|| add(&p.a, &p.ma, word.remote(0), N));
        }
    });
    assert_eq!(word.word(0).load(Acquire), 4 * N);
}

pub(crate) fn compare_swap_elects_one_winner(bed: &dyn Bed) {
    let nodes: [Node; 3] = Node::open(bed);
    let pairs: Vec<Pair> = (0..4).map(|i| Pair::between(&nodes[i % 2], &nodes[2], Conn::default())).collect();
    if !has_atomics(&pairs[0]) {
        return;
    }
    let words = nodes[2].mem(4096, crate::qp::ALL);
    for round in 0..10_usize {
        for (i, p) in pairs.iter().enumerate() {
            let remote = words.remote(round as i64 * 8);
            p.a.send(0, SendOp::CompareSwap { remote, compare: 0, swap: i as u64 + 1 }, &[p.ma.sge(0, 8)]);
        }
        let mut winners = Vec::new();
        for (i, p) in pairs.iter().enumerate() {
            p.a.send_cq.ok(0);
            if p.ma.word(0).load(Relaxed) == 0 {
                winners.push(i as u64 + 1);
            }
        }
        assert_eq!(winners, [words.word(round * 8).load(Relaxed)]);
    }
}

pub(crate) fn adds_mix_with_those_of_the_cpu(bed: &dyn Bed) {
    const N: u64 = 150;
    let [a, b] = Node::open(bed);
    if b.dev().attr().atomics != AtomicScope::Cpu {
        return;
    }
    let pairs = [Pair::between(&a, &b, Conn::default()), Pair::between(&a, &b, Conn::default())];
    let word = b.mem(64, crate::qp::ALL);
    std::thread::scope(|s| {
        for p in &pairs {
            s.spawn(|| add(&p.a, &p.ma, word.remote(8), N));
        }
        for _ in 0..2 {
            s.spawn(|| {
                for i in 0..20 * N {
                    word.word(8).fetch_add(1, Relaxed);
                    if i % 64 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert_eq!(word.word(8).load(Acquire), 42 * N);
}
