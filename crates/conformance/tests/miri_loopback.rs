//! Every kind of request between two software adapters on the loopback network, on one thread and without
//! a descriptor, so that miri runs it: verbs, the adapter's rings and copies, the transport.
//!
//!     MIRIFLAGS="-Zmiri-strict-provenance -Zmiri-disable-weak-memory-emulation" \
//!         cargo +nightly miri test -p hca-conformance --test miri_loopback

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hca_core::{Access, Mtu};
use hca_fabric::LoopbackNet;
use hca_verbs::{
    Buf, CompletionQueue, Completions, ConnectOptions, Context, QueuePair, Rc, SendRequest, SharedMr,
};
use softhca::{Clock, Options, Progress, SoftHca};

struct End {
    cq: CompletionQueue,
    qp: QueuePair<Rc>,
    window: SharedMr,
    wcs: Completions,
    spare: Vec<Buf>,
}

/// Time moves on by a microsecond with every look at an empty queue.
fn end(net: &LoopbackNet, host: u8, clock: &Arc<AtomicU64>) -> End {
    let fabric = net.attach([10, 0, 0, host].into());
    let options = Options {
        progress: Progress::Inline,
        seed: Some(host.into()),
        clock: Clock::Virtual(clock.clone()),
        ..Options::default()
    };
    let context = Context::new(SoftHca::open(Box::new(fabric), options).expect("an adapter opens"));
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(32).unwrap();
    let qp = pd.qp::<Rc>(&cq).max_send_wr(16).max_recv_wr(16).access(Access::all()).build().unwrap();
    let window = pd.alloc_shared(4096, Access::BY_PEERS).unwrap();
    let spare = pd.alloc_many(8, 700).unwrap();
    End { cq, qp, window, wcs: Completions::with_capacity(8), spare }
}

impl End {
    /// Takes completions; returns how many were receives, and how many of requests.
    fn poll(&mut self) -> (u32, u32) {
        let (mut received, mut sent) = (0, 0);
        for mut wc in self.cq.poll(&mut self.wcs) {
            assert!(wc.error().is_none(), "{:?}", wc.error());
            if wc.opcode.is_recv() {
                received += 1;
                let buf = wc.take_buf().expect("a receive gives its buffer back");
                assert!(buf[..wc.byte_len as usize].iter().all(|b| *b == 0x5a || *b == b'i'));
                self.spare.push(buf);
            } else {
                sent += 1;
                self.spare.extend(wc.take_bufs());
            }
        }
        (received, sent)
    }
}

fn until(a: &mut End, b: &mut End, clock: &AtomicU64, want: (u32, u32)) {
    let (mut received, mut sent) = (0, 0);
    for _ in 0..10_000 {
        sent += a.poll().1;
        received += b.poll().0;
        if (received, sent) == want {
            return;
        }
        clock.fetch_add(1_000, Ordering::Relaxed);
    }
    panic!("{received} received and {sent} sent of {want:?}");
}

#[test]
fn every_kind_of_request_over_the_loopback_network() {
    let (net, clock) = (LoopbackNet::new(), Arc::new(AtomicU64::new(1)));
    let (mut a, mut b) = (end(&net, 1, &clock), end(&net, 2, &clock));
    let small = ConnectOptions { mtu: Some(Mtu::B256), ..ConnectOptions::default() };
    a.qp.control().connect(&b.qp.endpoint(), &small).unwrap();
    b.qp.control().connect(&a.qp.endpoint(), &small).unwrap();
    let remote = b.window.remote();
    let rounds = if cfg!(miri) { 2 } else { 50 };
    for round in 0..rounds {
        for _ in 0..2 {
            let buf = b.spare.pop().unwrap();
            b.qp.post_recv(buf).unwrap();
        }
        let mut buf = a.spare.pop().unwrap();
        buf.fill(0x5a);
        a.qp.send(buf).unwrap();
        a.qp.send_inline(b"iiiii").unwrap();
        until(&mut a, &mut b, &clock, (2, 2));

        a.window.store_u64(0, round + 7);
        a.window.store_u64(512, 5);
        a.qp.post_send(SendRequest::write(a.window.range(0..600), remote.range(1000..1600))).unwrap();
        a.qp.read(a.window.range(2048..2648), remote.range(1000..1600)).unwrap();
        a.qp.post_send(SendRequest::fetch_add(a.window.range(3000..3008), remote.range(8..16), 3)).unwrap();
        until(&mut a, &mut b, &clock, (0, 3));
        assert_eq!((a.window.load_u64(2048), a.window.load_u64(2560)), (round + 7, 5));
        assert_eq!((a.window.load_u64(3000), b.window.load_u64(8)), (3 * round, 3 * round + 3));
    }
    drop((a, b));
}
