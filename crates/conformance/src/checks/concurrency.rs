//! Checks with four threads, which are more than the CPUs of a small machine.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hca_core::{QpCap, SendOp, WcStatus};

use crate::Bed;
use crate::mem::pattern;
use crate::node::Node;
use crate::qp::{ALL, Conn, Pair, connect};
use crate::world::RaiseOnDrop;

const THREADS: usize = 4;

/// Messages of changing size in both directions, each side kept four deep; every byte is checked.
fn exchange(p: &Pair, seed: u64, n: u64) {
    let size = |i: u64| (i * 613 % 2500) as usize;
    // The slot of a message in either memory; the second half receives.
    let at = |i: u64| (i % 4) as usize * 2500;
    let (mut posted, mut done) = (0, 0);
    while done < n {
        while posted < n && posted - done < 2 {
            for (from, to, mf, mt) in [(&p.a, &p.b, &p.ma, &p.mb), (&p.b, &p.a, &p.mb, &p.ma)] {
                mf.write(at(posted), &pattern(seed ^ posted, size(posted)));
                to.recv(posted, &[mt.sge(10_000 + at(posted), 2500)]);
                from.send(posted, SendOp::SendImm(posted as u32), &[mf.sge(at(posted), size(posted))]);
            }
            posted += 1;
        }
        for (qp, m) in [(&p.b, &p.mb), (&p.a, &p.ma)] {
            let c = qp.recv_cq.ok(done);
            assert_eq!((c.byte_len as usize, c.qp), (size(done), qp.handle));
            m.assert_bytes(10_000 + at(done), &pattern(seed ^ done, size(done)));
            qp.send_cq.ok(done);
        }
        done += 1;
    }
    assert_eq!((p.a.recv_cq.try_next(), p.b.send_cq.try_next()), (None, None));
}

fn exchange_in_threads(pairs: &[Pair], n: u64) {
    std::thread::scope(|s| {
        for (i, p) in pairs.iter().enumerate() {
            s.spawn(move || exchange(p, (i as u64) << 32, n));
        }
    });
}

fn conn() -> Conn {
    Conn { mem_bytes: 20_000, ..Conn::default() }
}

pub(crate) fn four_threads_each_with_a_connection_of_their_own(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let pairs: Vec<Pair> = (0..THREADS).map(|_| Pair::between(&a, &b, conn())).collect();
    exchange_in_threads(&pairs, 40);
}

pub(crate) fn four_threads_on_one_adapter(bed: &dyn Bed) {
    let [a] = Node::open(bed);
    let pairs: Vec<Pair> = (0..THREADS).map(|_| Pair::between(&a, &a, conn())).collect();
    exchange_in_threads(&pairs, 40);
}

pub(crate) fn four_adapters_in_four_threads(bed: &dyn Bed) {
    let nodes: [Node; 4] = Node::open(bed);
    let pairs: Vec<Pair> =
        (0..THREADS).map(|i| Pair::between(&nodes[i], &nodes[(i + 1) % 4], conn())).collect();
    exchange_in_threads(&pairs, 25);
}

pub(crate) fn one_thread_posts_while_another_polls(bed: &dyn Bed) {
    const N: u64 = 300;
    let cap = QpCap { max_send_wr: 32, max_recv_wr: 32, ..QpCap::default() };
    let p = Pair::new(bed, Conn { cap, ..Conn::default() });
    let (sent, received) = (AtomicU64::new(0), AtomicU64::new(0));
    let world = &p.a.node.world;
    std::thread::scope(|s| {
        s.spawn(|| {
            for id in 0..N {
                world.wait("room in the send queue", || {
                    (id - sent.load(Ordering::Acquire) < 32).then_some(())
                });
                p.a.send(id, SendOp::SendImm(id as u32), &[p.ma.sge(0, 700)]);
            }
        });
        s.spawn(|| {
            for id in 0..N {
                p.a.send_cq.ok(id);
                sent.store(id + 1, Ordering::Release);
            }
        });
        s.spawn(|| {
            for id in 0..N {
                world.wait("room in the receive queue", || {
                    (id - received.load(Ordering::Acquire) < 32).then_some(())
                });
                p.b.recv(id, &[p.mb.sge(0, 700)]);
            }
        });
        for id in 0..N {
            let c = p.b.recv_cq.ok(id);
            assert_eq!(c.extra, hca_core::RecvExtra::Imm(id as u32));
            received.store(id + 1, Ordering::Release);
        }
    });
}

pub(crate) fn four_posting_threads_share_one_completion_queue(bed: &dyn Bed) {
    const N: u64 = 60;
    let [a, b] = Node::open(bed);
    let (ca, cb) = (a.cq(1024), b.cq(1024));
    let conn = Conn::default();
    let (ma, mb) = (a.mem(4096, ALL), b.mem(4096, ALL));
    let qps: Vec<_> = (0..THREADS)
        .map(|_| {
            let (x, y) = (a.qp_on(&conn, &ca, &ca, None), b.qp_on(&conn, &cb, &cb, None));
            connect(&conn, &x, &y);
            (x, y)
        })
        .collect();
    let mut next = [0; THREADS];
    std::thread::scope(|s| {
        for (i, (x, _)) in qps.iter().enumerate() {
            let (ma, mb) = (&ma, &mb);
            s.spawn(move || {
                for id in 0..N {
                    x.send(id, SendOp::Write(mb.remote(i as i64 * 512)), &[ma.sge(i * 512, 512)]);
                    std::thread::yield_now();
                }
            });
        }
        for c in ca.take(THREADS * N as usize) {
            let i = qps.iter().position(|q| q.0.handle == c.qp).expect("one of ours");
            assert_eq!((c.status, c.wr_id), (WcStatus::Success, next[i]));
            next[i] += 1;
        }
    });
    ca.stays_empty();
}

pub(crate) fn objects_come_and_go_beside_traffic(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let (p, q) = (Pair::between(&a, &b, conn()), Pair::between(&b, &a, conn()));
    let done = [AtomicBool::new(false), AtomicBool::new(false)];
    std::thread::scope(|s| {
        for (p, done) in [&p, &q].into_iter().zip(&done) {
            s.spawn(move || {
                let _end = RaiseOnDrop(done);
                exchange(p, 5, 40);
            });
        }
        for (x, y) in [(&a, &b), (&b, &a)] {
            let done = &done;
            s.spawn(move || {
                while !done.iter().all(|d| d.load(Ordering::Acquire)) {
                    let short = Pair::between(x, y, conn());
                    short.ma.write(0, &pattern(1, 100));
                    short.a.send(1, SendOp::Write(short.mb.remote(0)), &[short.ma.sge(0, 100)]);
                    short.a.send_cq.ok(1);
                    // Dropped with a request still queued.
                    short.a.send(2, SendOp::Read(short.mb.remote(0)), &[short.ma.sge(0, 100)]);
                }
            });
        }
    });
}

pub(crate) fn queue_pairs_are_destroyed_in_full_flight(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let steady = Pair::between(&a, &b, conn());
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::Acquire) {
                exchange(&steady, n, 4);
                n += 1;
            }
        });
        let _end = RaiseOnDrop(&stop);
        for round in 0..10 {
            let p = Pair::between(
                &a,
                &b,
                Conn { mem_bytes: 64 << 10, timeout: 8, retry_cnt: 1, ..Conn::default() },
            );
            for id in 0..20 {
                p.a.send(id, SendOp::Write(p.mb.remote(0)), &[p.ma.sge(0, 64 << 10)]);
                p.b.send(id, SendOp::Read(p.ma.remote(0)), &[p.mb.sge(0, 64 << 10)]);
            }
            for _ in 0..round {
                a.world.turn();
            }
            // Whoever goes first, memory is freed only when the device let go of it.
            let Pair { a: qa, b: qb, ma, mb, .. } = p;
            if round % 2 == 0 {
                drop((qa, ma));
                drop((qb, mb));
            } else {
                drop((mb, qb));
                drop((ma, qa));
            }
        }
    });
}
