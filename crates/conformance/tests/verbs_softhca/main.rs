//! The safe API over the software adapter, in all progress modes: every service and operation, waiting,
//! async, several threads, and memory that peers change.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::Duration;

use hca_core::{Access, AsyncEvent, DeviceError, Qkey, SrqInit, WcOpcode, WcStatus};
use hca_fabric::{Fabric, LoopbackNet};
use hca_verbs::*;
use softhca::{Options, Progress, SoftHca};

mod carried_out;
mod class;
mod rd;

/// One end: an adapter of its own on a network that both share.
struct End {
    context: Context,
    pd: Pd,
    cq: CompletionQueue,
    wcs: Completions,
}

fn ends(progress: Progress) -> [End; 2] {
    let net = LoopbackNet::new();
    ends_on(progress, |addr| Box::new(net.attach(addr.parse().unwrap())))
}
fn ends_on(progress: Progress, open: impl Fn(&str) -> Box<dyn Fabric>) -> [End; 2] {
    ["10.0.0.1", "10.0.0.2"].map(|addr| {
        let fabric = open(addr);
        let options = Options { progress, seed: Some(7), ..Options::default() };
        let context = Context::with_seed(SoftHca::open(fabric, options).unwrap(), 3);
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(512).unwrap();
        End { context, pd, cq, wcs: Completions::default() }
    })
}

impl End {
    fn qp<S: Connected>(&self) -> QueuePair<S> {
        self.pd.qp::<S>(&self.cq).max_send_wr(32).max_recv_wr(32).max_inline(256).build().unwrap()
    }
    fn buf(&self, bytes: &[u8]) -> Buf {
        let mut buf = self.pd.alloc(bytes.len()).unwrap();
        buf.copy_from_slice(bytes);
        buf
    }
}

fn connect<S: Connected>(a: &QueuePair<S>, b: &QueuePair<S>) {
    let options = ConnectOptions::default();
    // As text, as two programs would.
    a.connect(&b.endpoint().to_string().parse().unwrap(), &options).unwrap();
    b.connect(&a.endpoint().to_string().parse().unwrap(), &options).unwrap();
}

/// What came, by opcode, with its buffers: polls both ends until both have as many as they should.
type Came = Vec<(WcOpcode, WcStatus, Vec<Part>)>;

fn collect(ends: &mut [End; 2], want: [usize; 2]) -> [Came; 2] {
    let mut came = [Vec::new(), Vec::new()];
    let start = std::time::Instant::now();
    while came[0].len() < want[0] || came[1].len() < want[1] {
        assert!(start.elapsed() < Duration::from_secs(20), "only {came:?} came");
        for (end, came) in ends.iter_mut().zip(&mut came) {
            for mut wc in end.cq.poll(&mut end.wcs) {
                came.push((wc.opcode, wc.status, wc.take_parts().collect()));
            }
        }
    }
    came
}

fn bytes(part: &Part) -> &[u8] {
    match part {
        Part::Buf(buf) => buf,
        other => panic!("{other:?} is no buffer"),
    }
}

fn in_all_modes(test: impl Fn(&mut [End; 2])) {
    for progress in Progress::ALL {
        test(&mut ends(progress));
    }
}

#[test]
fn a_message_of_many_packets_arrives_whole() {
    in_all_modes(|ends| {
        let (mut a, mut b) = (ends[0].qp::<Rc>(), ends[1].qp::<Rc>());
        connect(&a, &b);
        let text: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
        b.post_recv(ends[1].pd.alloc(text.len()).unwrap()).unwrap();
        a.send(ends[0].buf(&text)).unwrap();
        let [sent, received] = collect(ends, [1, 1]);
        assert_eq!(sent[0].1, WcStatus::Success);
        assert_eq!(bytes(&received[0].2[0]), text);
    });
}

#[test]
fn a_word_is_written_behind_what_was_flushed() {
    in_all_modes(|ends| {
        let (mut a, b) = (ends[0].qp::<Rc>(), ends[1].qp::<Rc>());
        connect(&a, &b);
        let log = ends[1].pd.alloc_shared(4096, Access::REMOTE_WRITE | Access::FLUSH_GLOBAL).unwrap();
        let remote = log.remote();
        a.post_send(SendRequest::write(ends[0].buf(b"record"), remote.range(8..14)).signaled(false)).unwrap();
        a.post_send(SendRequest::flush(remote.range(8..14), Placement::GLOBAL_VISIBILITY).id(2)).unwrap();
        a.post_send(SendRequest::atomic_write(remote.range(..8), 0x0102_0304)).unwrap();
        a.post_send(SendRequest::flush_region(remote, Placement::GLOBAL_VISIBILITY)).unwrap();
        let [sent, _] = collect(ends, [3, 0]);
        let done: Vec<_> = sent.iter().map(|c| (c.0, c.1)).collect();
        let [flush, word] = [WcOpcode::Flush, WcOpcode::AtomicWrite].map(|op| (op, WcStatus::Success));
        assert_eq!(done, [flush, word, flush]);
        let mut found = [0; 6];
        log.read_at(8, &mut found);
        assert_eq!((log.load_u64(0), &found), (0x0102_0304, b"record"));
        // A request that breaks a rule is refused as it is posted.
        let odd = a.post_send(SendRequest::atomic_write(remote.range(4..12), 1)).unwrap_err();
        assert!(matches!(odd.error, PostRefusal::Misaligned { .. }), "{odd}");
        let short = a.post_send(SendRequest::atomic_write(remote.range(..7), 1)).unwrap_err();
        assert_eq!(short.error, PostRefusal::RemoteTooShort { len: 8, room: 7 });
        let long = RemoteMr { len: (1 << 31) + 1, ..remote };
        let long = a.post_send(SendRequest::flush(long, Placement::GLOBAL_VISIBILITY)).unwrap_err();
        assert!(matches!(long.error, PostRefusal::Queue(PostErrorKind::MessageTooLong { .. })), "{long}");
        let kept = ends[1].pd.alloc_shared(4096, Access::FLUSH_PERSISTENT).unwrap_err();
        assert!(kept.to_string().contains("persistence"), "{kept}");
    });
}

#[test]
fn every_operation_of_a_reliable_connection_does_what_it_says() {
    in_all_modes(|ends| {
        let (mut a, mut b) = (ends[0].qp::<Rc>(), ends[1].qp::<Rc>());
        connect(&a, &b);
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let window = ends[1].pd.alloc_shared(4096, all).unwrap();
        let remote = RemoteMr::from_bytes(&window.remote().to_bytes());
        b.post_recv(()).unwrap();
        let head = ends[0].buf(b"head");
        let body = ends[0].buf(b"-body-").freeze();
        a.post_send(SendRequest::write((head, body.slice(1..5)), remote.range(64..72)).imm(5)).unwrap();
        a.post_send(SendRequest::fetch_add(ends[0].pd.alloc(8).unwrap(), remote.range(8..16), 3)).unwrap();
        a.post_send(SendRequest::compare_swap(ends[0].pd.alloc(8).unwrap(), remote.range(8..16), 3, 4))
            .unwrap();
        a.post_send(SendRequest::read(ends[0].pd.alloc(8).unwrap(), remote.range(64..72)).fence()).unwrap();
        let [sent, received] = collect(ends, [4, 1]);
        assert_eq!(received[0].0, WcOpcode::RecvRdmaWithImm);
        assert!(sent.iter().all(|c| c.1 == WcStatus::Success), "{sent:?}");
        let word = |i: usize| u64::from_ne_bytes(bytes(&sent[i].2[0]).try_into().unwrap());
        assert_eq!((word(1), word(2), window.load_u64(8)), (0, 3, 4));
        assert_eq!(bytes(&sent[3].2[0]), b"headbody");
    });
}

#[test]
fn a_key_that_was_taken_back_is_refused_and_the_rest_flushed() {
    in_all_modes(|ends| {
        let (mut a, b) = (ends[0].qp::<Rc>(), ends[1].qp::<Rc>());
        connect(&a, &b);
        let window = ends[1].pd.alloc_shared(4096, Access::REMOTE_WRITE).unwrap();
        window.revoke().unwrap();
        for _ in 0..3 {
            a.post_send(SendRequest::write(ends[0].buf(b"x"), window.remote()).signaled(false)).unwrap();
        }
        let [sent, _] = collect(ends, [3, 0]);
        let statuses: Vec<_> = sent.iter().map(|c| (c.1, c.2.len())).collect();
        let flushed = (WcStatus::WrFlushed, 1);
        assert_eq!(statuses, [(WcStatus::RemoteAccess, 1), flushed, flushed]);
        assert_eq!(a.outstanding().0, 0);
        drop((a, b));
    });
}

fn word(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}
/// How a WRITE of 8 bytes from the first end to `remote` ends.
fn write_ends(ends: &mut [End; 2], a: &mut QueuePair<Rc>, remote: RemoteMr, byte: u8) -> WcStatus {
    let data = ends[0].buf(&[byte; 8]);
    a.post_send(SendRequest::write(data, remote.range(..8))).unwrap();
    collect(ends, [1, 0])[0][0].1
}

#[test]
fn a_window_shows_one_range_until_it_is_bound_anew_taken_back_or_dropped() {
    in_all_modes(|ends| {
        let page = ends[1].pd.alloc_shared(4096, Access::MW_BIND).unwrap();
        let mut window = ends[1].pd.alloc_window().unwrap();
        assert!(matches!(
            window.bind(&page.range(..0), Access::REMOTE_WRITE),
            Err(DeviceError::OutOfRange { .. })
        ));
        type End = fn(MemoryWindow, &SharedMr) -> Option<MemoryWindow>;
        let ways: [End; 3] = [
            |mut window, page| {
                window.bind(&page.range(64..), Access::REMOTE_WRITE).unwrap();
                Some(window)
            },
            |mut window, _| {
                window.unbind().unwrap();
                Some(window)
            },
            |_dropped, _| None,
        ];
        for way in ways {
            let (mut a, b) = (ends[0].qp::<Rc>(), ends[1].qp::<Rc>());
            connect(&a, &b);
            let shown = window.bind(&page.range(8..16), Access::REMOTE_WRITE).unwrap();
            assert_eq!(shown.len, 8);
            assert_eq!(write_ends(ends, &mut a, shown, 9), WcStatus::Success);
            assert_eq!(page.load_u64(8), word(9));
            assert!(matches!(page.revoke(), Err(DeviceError::InUse { .. })), "a window shows it");
            let kept = way(window, &page);
            assert_eq!(write_ends(ends, &mut a, shown, 5), WcStatus::RemoteAccess);
            assert_eq!(page.load_u64(8), word(9));
            window = kept.unwrap_or_else(|| ends[1].pd.alloc_window().unwrap());
        }
        drop(window);
        page.revoke().unwrap();
    });
}

#[test]
fn a_window_of_a_queue_pair_is_bound_by_requests_and_taken_back_by_either_end() {
    in_all_modes(|ends| {
        let (mut a, mut b) = (ends[0].qp::<Rc>(), ends[1].qp::<Rc>());
        connect(&a, &b);
        let pages = [1, 2].map(|_| ends[1].pd.alloc_shared(4096, Access::MW_BIND).unwrap());
        let mut window = ends[1].pd.alloc_qp_window().unwrap();
        assert!(window.remote().is_none());
        // Taken back by the peer, with a message.
        let bind = SendRequest::bind(&mut window, &pages[0].range(..64), Access::REMOTE_WRITE).unwrap();
        b.post_send(bind).unwrap();
        let first = window.remote().unwrap();
        assert_eq!(collect(ends, [0, 1])[1][0].1, WcStatus::Success);
        assert_eq!(write_ends(ends, &mut a, first, 3), WcStatus::Success);
        b.post_recv(()).unwrap();
        a.post_send(SendRequest::send(()).invalidate(window.rkey())).unwrap();
        let [sent, received] = collect(ends, [1, 1]);
        assert_eq!((sent[0].1, received[0].1), (WcStatus::Success, WcStatus::Success));
        assert_eq!(window.query().unwrap().range, None);
        pages[0].revoke().unwrap();
        // Bound to the other region, by addresses from 0, and taken back by its owner.
        let bind = SendRequest::bind_zero_based(&mut window, &pages[1].range(64..), Access::REMOTE_WRITE);
        b.post_send(bind.unwrap()).unwrap();
        let second = window.remote().unwrap();
        assert_eq!((second.addr, window.rkey() == first.rkey), (0, false));
        assert_eq!(collect(ends, [0, 1])[1][0].1, WcStatus::Success);
        assert_eq!(write_ends(ends, &mut a, second, 4), WcStatus::Success);
        assert_eq!((pages[0].load_u64(0), pages[1].load_u64(64)), (word(3), word(4)));
        b.post_send(SendRequest::local_inv(window.rkey())).unwrap();
        assert_eq!(collect(ends, [0, 1])[1][0].1, WcStatus::Success);
        assert_eq!(write_ends(ends, &mut a, second, 5), WcStatus::RemoteAccess);
        assert_eq!(pages[1].load_u64(64), word(4));
    });
}

/// An XRC domain at the second end with two queues, on that end's completion queue, and a connection to the domain.
struct Xrcd {
    a: QueuePair<Xrc>,
    queues: [XrcSrq; 2],
    target: XrcTarget,
    domain: XrcDomain,
}

impl Xrcd {
    fn new(ends: &[End; 2]) -> Self {
        let domain = ends[1].context.alloc_xrc_domain().unwrap();
        let init = SrqInit { max_wr: 4, max_sge: 1 };
        let queues = [(); 2].map(|()| domain.create_srq(&ends[1].pd, &ends[1].cq, init).unwrap());
        let (a, target) = Self::connection(ends, &domain);
        Self { a, queues, target, domain }
    }
    fn connection(ends: &[End; 2], domain: &XrcDomain) -> (QueuePair<Xrc>, XrcTarget) {
        let (a, target) = (ends[0].qp::<Xrc>(), domain.target().build().unwrap());
        let options = ConnectOptions::default();
        a.connect(&target.endpoint().to_string().parse().unwrap(), &options).unwrap();
        target.connect(&a.endpoint().to_string().parse().unwrap(), &options).unwrap();
        (a, target)
    }
    fn send(&mut self, ends: &[End; 2], queue: usize, byte: u8) {
        let request = SendRequest::send(ends[0].buf(&[byte; 16])).imm(byte.into());
        self.a.post_send(request.to_srq(self.queues[queue].number())).unwrap();
    }
    /// Waits for the end of all requests, and looks at no message.
    fn sent(&self, ends: &mut [End; 2]) {
        let [a, b] = ends;
        while self.a.outstanding().0 > 0 {
            a.cq.poll(&mut a.wcs).for_each(|wc| assert_eq!(wc.status, WcStatus::Success));
            b.context.turn();
        }
    }
}

/// The queue, the target and the bytes of the next message, and how many sends completed meanwhile.
fn received(ends: &mut [End; 2]) -> (Srqn, hca_core::QpHandle, Vec<u8>) {
    let start = std::time::Instant::now();
    let [a, b] = ends;
    loop {
        assert!(start.elapsed() < Duration::from_secs(20), "no message came");
        a.cq.poll(&mut a.wcs).for_each(|wc| assert_eq!(wc.ok().unwrap().srq, Srqn::default()));
        // One completion at a time.
        let mut one = Completions::with_capacity(1);
        if let Some(wc) = b.cq.poll(&mut one).next() {
            let wc = wc.ok().unwrap();
            assert_eq!(wc.imm(), Some(wc.payload().unwrap()[0].into()));
            return (wc.srq, wc.qp, wc.payload().unwrap().to_vec());
        }
    }
}

#[test]
fn one_connection_serves_the_queues_of_a_domain_and_their_memory() {
    in_all_modes(|ends| {
        let mut x = Xrcd::new(ends);
        for round in 0..6 {
            for queue in [1, 0] {
                x.queues[queue].post_recv_id(round, ends[1].pd.alloc(64).unwrap()).unwrap();
            }
            for queue in [0, 1] {
                x.send(ends, queue, round as u8 * 2 + queue as u8);
                let (srq, qp, bytes) = received(ends);
                assert_eq!((srq, qp), (x.queues[queue].number(), x.target.handle()));
                assert_eq!(bytes, [round as u8 * 2 + queue as u8; 16]);
            }
        }
        assert_eq!([0, 1].map(|i| x.queues[i].outstanding()), [0, 0]);
        // RDMA and atomics need no receive request, and name a queue.
        x.sent(ends);
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let window = ends[1].pd.alloc_shared(4096, all).unwrap();
        let (remote, queue) = (window.remote(), x.queues[1].number());
        x.a.post_send(SendRequest::write(ends[0].buf(&[7; 8]), remote.range(..8)).to_srq(queue)).unwrap();
        let read = SendRequest::read(ends[0].pd.alloc(8).unwrap(), remote.range(..8));
        x.a.post_send(read.fence().to_srq(queue)).unwrap();
        let add = SendRequest::fetch_add(ends[0].pd.alloc(8).unwrap(), remote.range(8..16), 3);
        x.a.post_send(add.to_srq(queue)).unwrap();
        let [sent, _] = collect(ends, [3, 0]);
        assert!(sent.iter().all(|c| c.1 == WcStatus::Success), "{sent:?}");
        assert_eq!((bytes(&sent[1].2[0]), window.load_u64(8)), (&[7; 8][..], 3));
    });
}

#[test]
fn a_domain_lives_until_the_last_of_its_queues_and_targets_is_dropped() {
    in_all_modes(|ends| {
        let reserved = ends[1].cq.reference().reserved();
        let mut x = Xrcd::new(ends);
        assert_eq!(ends[1].cq.reference().reserved(), reserved + 8);
        let domain = x.domain.handle();
        let device = ends[1].context.device().clone();
        let dealloc = || device.xrc().unwrap().dealloc_xrcd(domain);
        drop(x.domain.clone());
        assert!(matches!(dealloc(), Err(DeviceError::InUse { users: 3, .. })));
        // A queue that is dropped takes its completions, its buffers and its entries along.
        for queue in 0..2 {
            for _ in 0..2 {
                x.queues[queue].post_recv(ends[1].pd.alloc(64).unwrap()).unwrap();
            }
            x.send(ends, queue, queue as u8);
        }
        x.sent(ends);
        let Xrcd { a, queues: [one, mut two], target, domain: kept } = x;
        drop((one, kept));
        assert_eq!(ends[1].cq.reference().reserved(), reserved + 4);
        assert_eq!(received(ends).0, two.number());
        assert_eq!((two.outstanding(), ends[1].cq.poll(&mut ends[1].wcs).len()), (1, 0));
        // A target that goes leaves its queue's requests to the next.
        drop(target);
        two.post_recv(ends[1].pd.alloc(64).unwrap()).unwrap();
        a.to_error().unwrap();
        drop(a);
        assert!(matches!(dealloc(), Err(DeviceError::InUse { users: 1, .. })));
        drop(two);
        assert!(matches!(dealloc(), Err(DeviceError::UnknownHandle { .. })), "it went with the last queue");
        assert_eq!(ends[1].cq.reference().reserved(), reserved);
        // Queues that come and go again and again are told apart by the poller, and none is left.
        let domain = ends[1].context.alloc_xrc_domain().unwrap();
        for round in 0..600 {
            let init = SrqInit { max_wr: 1, max_sge: 1 };
            let mut srq = domain.create_srq(&ends[1].pd, &ends[1].cq, init).unwrap();
            srq.post_recv(ends[1].pd.alloc(16).unwrap()).unwrap();
            if round % 100 == 99 {
                let (mut a, target) = Xrcd::connection(ends, &domain);
                let request = SendRequest::send(ends[0].buf(&[3; 16])).imm(3);
                a.post_send(request.to_srq(srq.number())).unwrap();
                assert_eq!(received(ends).1, target.handle());
            }
        }
    });
}

#[test]
fn what_does_not_belong_to_a_domain_is_refused_with_a_remedy() {
    let mut ends = ends(Progress::Inline);
    let mut x = Xrcd::new(&ends);
    let rc = ends[1].qp::<Rc>();
    let refused = x.a.connect(&rc.endpoint(), &ConnectOptions::default()).unwrap_err();
    assert!(refused.to_string().ends_with("it connects to one of the service XrcTgt"), "{refused}");
    let refused = x.target.connect(&x.target.endpoint(), &ConnectOptions::default()).unwrap_err();
    assert!(matches!(refused, ConnectError::Service { theirs: QpType::XrcTgt, .. }));
    assert!(matches!(
        x.a.post_recv(()).unwrap_err().error,
        PostRefusal::Queue(PostErrorKind::Unsupported { qp_type: QpType::XrcIni, .. })
    ));
    let init = SrqInit { max_wr: 4, max_sge: 1 };
    for (pd, cq, part) in [(0, 1, "protection domain"), (1, 0, "completion queue")] {
        let refused = x.domain.create_srq(&ends[pd].pd, &ends[cq].cq, init).unwrap_err();
        assert!(matches!(refused, BuildError::ForeignContext { what } if what == part));
    }
    let small = ends[1].context.create_cq(3).unwrap();
    let refused = x.domain.create_srq(&ends[1].pd, &small, init).unwrap_err();
    assert!(matches!(refused, BuildError::CqDepth { needed: 4, .. }));
    // A number that is none of the domain's.
    let hello = SendRequest::send(ends[0].buf(b"hello")).to_srq(Srqn::new(0xab_cdef));
    x.a.post_send(hello).unwrap();
    assert_eq!(collect(&mut ends, [1, 0])[0][0].1, WcStatus::RemoteAccess);
    assert_eq!(x.target.query().unwrap().state, QpState::Error);
}

#[test]
fn unreliable_services_carry_messages() {
    in_all_modes(|ends| {
        let (mut a, mut b) = (ends[0].qp::<Uc>(), ends[1].qp::<Uc>());
        connect(&a, &b);
        b.post_recv(ends[1].pd.alloc(16).unwrap()).unwrap();
        a.send_inline(b"uc").unwrap();
        let [_, received] = collect(ends, [1, 1]);
        assert_eq!(&bytes(&received[0].2[0])[..2], b"uc");

        let qkey = Qkey::new(0x1ee7);
        let datagrams = |end: &End| {
            let qp = end.pd.qp::<Ud>(&end.cq).max_send_wr(8).max_recv_wr(8).build().unwrap();
            qp.activate(qkey).unwrap();
            qp
        };
        let (mut c, mut d) = (datagrams(&ends[0]), datagrams(&ends[1]));
        d.post_recv(ends[1].pd.alloc(104).unwrap()).unwrap();
        let to = d.endpoint();
        let path = hca_core::AddressVector { dgid: to.gid, ..Default::default() };
        let peer = ends[0].pd.create_ah(&path).unwrap().peer(to.qpn, qkey);
        c.send_to(ends[0].buf(b"datagram"), &peer).unwrap();
        let [left, right] = ends;
        let mut seen = false;
        while !seen {
            left.cq.poll(&mut left.wcs);
            for wc in right.cq.poll(&mut right.wcs) {
                let wc = wc.ok().unwrap();
                assert_eq!((wc.payload(), wc.src_qp), (Some(&b"datagram"[..]), c.qpn()));
                assert_eq!(wc.grh().unwrap().sgid, c.endpoint().gid);
                seen = true;
            }
        }
    });
}

#[test]
fn a_shared_receive_queue_serves_two_queue_pairs() {
    in_all_modes(|ends| {
        let mut srq = ends[1].pd.create_srq(SrqInit { max_wr: 8, max_sge: 1 }).unwrap();
        let mut batch = srq.batch();
        (0..4).for_each(|i| batch.post_recv_id(i, ends[1].pd.alloc(8).unwrap()).unwrap());
        assert_eq!(batch.ring(), 4);
        let mut pairs: Vec<_> = (0..2)
            .map(|_| {
                let b = ends[1].pd.qp::<Rc>(&ends[1].cq).srq(&srq).build().unwrap();
                let a = ends[0].qp::<Rc>();
                connect(&a, &b);
                (a, b)
            })
            .collect();
        for (i, (a, _)) in pairs.iter_mut().enumerate() {
            a.send_inline(&[i as u8; 8]).unwrap();
        }
        let [_, received] = collect(ends, [2, 2]);
        let mut got: Vec<u8> = received.iter().map(|c| bytes(&c.2[0])[0]).collect();
        got.sort_unstable();
        assert_eq!(got, [0, 1]);
        assert_eq!(srq.outstanding(), 2);
    });
}

#[test]
fn a_dropped_queue_pair_gives_its_places_in_a_shared_queue_back() {
    in_all_modes(|ends| {
        let mut srq = ends[1].pd.create_srq(SrqInit { max_wr: 2, max_sge: 1 }).unwrap();
        for _ in 0..4 {
            srq.post_recv(ends[1].pd.alloc(8).unwrap()).unwrap();
            let b = ends[1].pd.qp::<Rc>(&ends[1].cq).srq(&srq).build().unwrap();
            let mut a = ends[0].qp::<Rc>();
            connect(&a, &b);
            a.send_inline(&[1; 8]).unwrap();
            let [left, right] = ends;
            while left.cq.poll(&mut left.wcs).next().is_none() {
                right.context.turn();
            }
            // Its message was taken, and nobody polled for it.
            drop(b);
            assert_eq!(srq.outstanding(), 0);
            assert!(right.cq.poll(&mut right.wcs).next().is_none());
        }
    });
}

#[test]
fn a_connection_that_was_refused_can_be_made() {
    let ends = ends(Progress::Inline);
    let (a, b) = (ends[0].qp::<Rc>(), ends[1].qp::<Rc>());
    let wrong = ConnectOptions { retry_cnt: 9, ..ConnectOptions::default() };
    let refused = a.connect(&b.endpoint(), &wrong).unwrap_err();
    assert!(refused.to_string().contains("retry_cnt of 9"), "{refused}");
    connect(&a, &b);
}

#[test]
fn a_wait_may_be_longer_than_the_clock_counts() {
    let [mut left, mut right] = ends(Progress::Adaptive);
    let (mut a, mut b) = (left.qp::<Rc>(), right.qp::<Rc>());
    connect(&a, &b);
    b.post_recv(right.pd.alloc(8).unwrap()).unwrap();
    a.send(left.buf(b"12345678")).unwrap();
    assert_eq!(right.cq.wait(&mut right.wcs, Some(Duration::MAX)).unwrap().count(), 1);
    // Its own completion, which is not solicited, may or may not be there by then.
    a.post_recv(left.pd.alloc(8).unwrap()).unwrap();
    b.post_send(SendRequest::send(right.buf(b"12345678")).solicited()).unwrap();
    assert!(left.cq.wait_solicited(&mut left.wcs, Some(Duration::MAX)).unwrap().count() > 0);
    let srq = left.pd.create_srq(SrqInit { max_wr: 2, max_sge: 1 }).unwrap();
    let c = left.pd.qp::<Rc>(&left.cq).srq(&srq).build().unwrap();
    c.control().to_error().unwrap();
    let event = left.context.wait_event(Some(Duration::MAX)).unwrap();
    assert_eq!(event, AsyncEvent::LastWqeReached(c.handle()));
}

#[test]
fn waiting_ends_with_the_message_or_the_timeout() {
    in_all_modes(|ends| {
        let (mut a, mut b) = (ends[0].qp::<Rc>(), ends[1].qp::<Rc>());
        connect(&a, &b);
        b.post_recv(ends[1].pd.alloc(8).unwrap()).unwrap();
        let [left, right] = ends;
        let nothing = right.cq.wait(&mut right.wcs, Some(Duration::from_millis(1)));
        assert!(matches!(nothing, Err(WaitError::TimedOut(_))));
        std::thread::scope(|s| {
            let sender = s.spawn(|| {
                a.send(left.buf(b"12345678")).unwrap();
                let mut polled = left.cq.wait(&mut left.wcs, Some(Duration::from_secs(20))).unwrap();
                polled.next().unwrap().ok().unwrap();
            });
            let mut polled = right.cq.wait(&mut right.wcs, Some(Duration::from_secs(20))).unwrap();
            assert_eq!(polled.next().unwrap().ok().unwrap().payload(), Some(&b"12345678"[..]));
            // The acknowledgement is still due, and in Inline mode nobody else turns.
            turn_until(&right.context, || sender.is_finished());
        });
    });
}

/// Turns an adapter while its program has nothing of its own to wait for.
fn turn_until(context: &Context, mut done: impl FnMut() -> bool) {
    while !done() {
        context.turn();
        std::thread::yield_now();
    }
}

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => {
                let parked = std::time::Instant::now();
                std::thread::park_timeout(Duration::from_secs(20));
                assert!(parked.elapsed() < Duration::from_secs(20), "the future was not woken");
            }
        }
    }
}

#[test]
fn a_future_ends_on_any_runtime() {
    for progress in Progress::ALL {
        let [mut left, mut right] = ends(progress);
        let (mut a, mut b) = (left.qp::<Rc>(), right.qp::<Rc>());
        connect(&a, &b);
        b.post_recv(right.pd.alloc(8).unwrap()).unwrap();
        let acknowledged = AtomicBool::new(false);
        std::thread::scope(|s| {
            let waiter = s.spawn(|| {
                let mut polled = block_on(right.cq.next(&mut right.wcs));
                let text = polled.next().unwrap().ok().unwrap().payload().map(<[u8]>::to_vec);
                turn_until(&right.context, || acknowledged.load(Ordering::Relaxed));
                text
            });
            a.send(left.buf(b"12345678")).unwrap();
            assert!(block_on(left.cq.next(&mut left.wcs)).next().unwrap().ok().is_ok());
            acknowledged.store(true, Ordering::Relaxed);
            assert_eq!(waiter.join().unwrap().unwrap(), b"12345678");
        });
    }
}

#[test]
fn a_window_is_written_while_the_program_waits_on_it() {
    in_all_modes(|ends| {
        let (mut a, b) = (ends[0].qp::<Rc>(), ends[1].qp::<Rc>());
        connect(&a, &b);
        let window = ends[1].pd.alloc_shared(8192, Access::REMOTE_WRITE).unwrap();
        let remote = window.remote();
        let data = ends[0].buf(&[0xab; 4096]);
        a.post_send(SendRequest::write(data, remote.range(4096..)).signaled(false)).unwrap();
        a.write(Inline(&1_u64.to_ne_bytes()), remote.range(..8)).unwrap();
        std::thread::scope(|s| {
            let [left, right] = ends;
            let writer = s.spawn(|| {
                // Whoever waits for nothing of its own still has to turn, in Inline mode.
                let mut polled = left.cq.wait(&mut left.wcs, Some(Duration::from_secs(20))).unwrap();
                polled.next().unwrap().ok().unwrap();
            });
            let bell = window.wait_until_timeout(0, Duration::from_secs(20), |word| word == 1);
            assert_eq!(bell.unwrap(), 1);
            let mut got = vec![0; 4096];
            window.read_at(4096, &mut got);
            assert!(got.iter().all(|&b| b == 0xab), "earlier WRITEs are seen");
            turn_until(&right.context, || writer.is_finished());
        });
    });
}

#[test]
fn four_threads_post_and_poll() {
    const MESSAGES: u64 = 500;
    in_all_modes(|ends| {
        let (a, b) = (ends[0].qp::<Rc>(), ends[1].qp::<Rc>());
        connect(&a, &b);
        let ((mut sq, _a), (_b, mut rq)) = (a.split(), b.split());
        let [left, right] = ends;
        let (send_pd, recv_pd) = (left.pd.clone(), right.pd.clone());
        std::thread::scope(|s| {
            s.spawn(move || {
                for i in 0..MESSAGES {
                    let mut message = send_pd.alloc(8).unwrap();
                    message.copy_from_slice(&i.to_ne_bytes());
                    while let Err(refused) = sq.send(message) {
                        message = refused.request;
                        std::thread::yield_now();
                    }
                }
                sq
            });
            s.spawn(move || {
                for _ in 0..MESSAGES {
                    let mut buf = recv_pd.alloc(8).unwrap();
                    while let Err(refused) = rq.post_recv(buf) {
                        buf = refused.request;
                        std::thread::yield_now();
                    }
                }
                rq
            });
            let poller = s.spawn(|| {
                let mut sent = 0;
                while sent < MESSAGES {
                    for wc in left.cq.wait(&mut left.wcs, None).unwrap() {
                        wc.ok().unwrap();
                        sent += 1;
                    }
                }
            });
            let mut next = 0;
            while next < MESSAGES {
                for wc in right.cq.wait(&mut right.wcs, None).unwrap() {
                    let wc = wc.ok().unwrap();
                    assert_eq!(wc.payload(), Some(&next.to_ne_bytes()[..]), "in order, once");
                    next += 1;
                }
            }
            turn_until(&right.context, || poller.is_finished());
        });
    });
}

#[test]
fn dropping_in_mid_transfer_gives_everything_back() {
    in_all_modes(|ends| {
        for round in 0..20_u32 {
            let (mut a, mut b) = (ends[0].qp::<Rc>(), ends[1].qp::<Rc>());
            connect(&a, &b);
            b.post_recv(ends[1].pd.alloc(1 << 20).unwrap()).unwrap();
            a.send(ends[0].pd.alloc(1 << 20).unwrap()).unwrap();
            for _ in 0..round {
                ends[1].context.turn();
            }
            if round % 2 == 0 {
                drop((a, b));
            } else {
                drop((b, a));
            }
            for end in &mut *ends {
                assert_eq!(end.cq.poll(&mut end.wcs).len(), 0, "no completion of what is gone");
                assert_eq!(end.cq.reference().reserved(), 0);
            }
        }
    });
}

#[test]
fn a_member_of_a_group_gets_messages_until_its_membership_is_dropped() {
    const QKEY: Qkey = Qkey::new(0x0bad_cafe);
    in_all_modes(|ends| {
        let group: Gid = "239.1.2.3".parse::<std::net::IpAddr>().unwrap().into();
        let datagrams = |end: &End| {
            let qp = end.pd.qp::<Ud>(&end.cq).max_send_wr(8).max_recv_wr(8).build().unwrap();
            qp.activate(QKEY).unwrap();
            qp
        };
        let (mut sender, mut near) = (datagrams(&ends[0]), datagrams(&ends[0]));
        let mut far = datagrams(&ends[1]);
        let memberships = [near.join(group).unwrap(), far.join(group).unwrap()];
        assert!(matches!(far.join(group), Err(DeviceError::Multicast { .. })));
        for _ in 0..2 {
            near.post_recv(ends[0].pd.alloc(100).unwrap()).unwrap();
            far.post_recv(ends[1].pd.alloc(100).unwrap()).unwrap();
        }
        let members = ends[0].pd.group(group, QKEY).unwrap();
        sender.send_to(ends[0].buf(b"to all"), &members).unwrap();
        let [a, b] = collect(ends, [2, 1]);
        let of = |came: &Came| {
            let got = came.iter().find(|c| c.0 == WcOpcode::Recv).expect("a message");
            assert_eq!(got.1, WcStatus::Success);
        };
        of(&a);
        of(&b);
        let [near_too, far_too] = memberships;
        drop(far_too);
        sender.send_to(ends[0].buf(b"to one"), &members).unwrap();
        let [a, b] = collect(ends, [2, 0]);
        of(&a);
        assert!(b.is_empty());
        near_too.leave().unwrap();
        near.join(group).unwrap().leave().unwrap();
    });
}
