//! The API over a device in memory. Runs under Miri as well (README).

#[path = "../fake/mod.rs"]
mod fake;
mod memory;
mod owned;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use fake::Fake;
use hca_core::{Access, AsyncEvent, PostErrorKind, Qkey, QpAttr, QpState, SrqInit, WcOpcode, WcStatus};
use hca_verbs::*;
use test_support::waiting::ends;
use test_support::wakers;

struct Pair {
    fake: Arc<Fake>,
    pd: Pd,
    cq: CompletionQueue,
    a: QueuePair<Rc>,
    b: QueuePair<Rc>,
    wcs: Completions,
}

fn context() -> (Arc<Fake>, Context) {
    let fake = Fake::new();
    (Arc::clone(&fake), Context::with_seed(fake, 1))
}

fn connect<S: Connected>(a: &QueuePair<S>, b: &QueuePair<S>) {
    a.connect(&b.endpoint(), &ConnectOptions::default()).unwrap();
    b.connect(&a.endpoint(), &ConnectOptions::default()).unwrap();
}

fn pair() -> Pair {
    let (fake, context) = context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64).unwrap();
    let build = |context| pd.qp::<Rc>(&cq).max_send_wr(8).max_recv_wr(8).context(context).build().unwrap();
    let (a, b) = (build(1), build(2));
    connect(&a, &b);
    Pair { fake, pd, cq, a, b, wcs: Completions::default() }
}

/// Polls once; everything must have gone well.
fn poll_ok(cq: &mut CompletionQueue, wcs: &mut Completions) -> Vec<(u64, WcOpcode, Vec<Part>)> {
    cq.poll(wcs)
        .map(|wc| {
            let mut wc = wc.ok().unwrap();
            (wc.id, wc.opcode, wc.take_parts().collect())
        })
        .collect()
}

fn buf(pd: &Pd, bytes: &[u8]) -> Buf {
    let mut buf = pd.alloc(bytes.len()).unwrap();
    buf.copy_from_slice(bytes);
    buf
}

#[test]
fn a_message_arrives_and_both_buffers_come_back() {
    let mut p = pair();
    p.b.post_recv_id(7, p.pd.alloc(16).unwrap()).unwrap();
    p.a.post_send(SendRequest::send(buf(&p.pd, b"hello")).id(9).imm(77).solicited()).unwrap();
    let mut seen = 0;
    for wc in p.cq.poll(&mut p.wcs) {
        let mut wc = wc.ok().unwrap();
        match wc.id {
            7 => {
                assert_eq!(wc.payload(), Some(&b"hello"[..]));
                assert_eq!((wc.imm(), wc.context, wc.solicited), (Some(77), 2, true));
                assert_eq!(wc.qp, p.b.handle());
                assert_eq!(wc.take_buf().unwrap().len(), 16);
            }
            9 => assert_eq!((&*wc.take_buf().unwrap(), wc.context), (&b"hello"[..], 1)),
            id => panic!("{id}"),
        }
        assert!(wc.take_buf().is_none());
        seen += 1;
    }
    assert_eq!(seen, 2);
}

#[test]
fn retries_that_can_not_be_are_refused_and_the_queue_pair_goes_on() {
    let mut p = pair();
    let refused = p.a.set_retries(None, Some(8)).unwrap_err();
    assert!(refused.to_string().contains("rnr_retry"), "{refused}");
    assert_eq!(p.a.query().unwrap().state, QpState::Rts);
    p.b.post_recv(p.pd.alloc(16).unwrap()).unwrap();
    p.a.send_inline(b"hello").unwrap();
    assert_eq!(poll_ok(&mut p.cq, &mut p.wcs).len(), 2);
    p.a.set_retries(None, Some(7)).unwrap();
}

#[test]
fn a_signalled_completion_gives_back_all_unsignalled_buffers_before_it() {
    let mut p = pair();
    let mr = p.pd.alloc_shared(64, Access::REMOTE_WRITE).unwrap();
    let mut batch = p.a.batch();
    for i in 0..5_u8 {
        let at = mr.remote().range(usize::from(i) * 8..);
        let request = SendRequest::write(buf(&p.pd, &[i; 8]), at).id(i.into()).signaled(i == 4);
        batch.post_send(request).unwrap();
    }
    assert!(batch.ring() == 5);
    assert_eq!(p.a.outstanding().0, 5);
    let mut polled = p.cq.poll(&mut p.wcs);
    let mut wc = polled.next().unwrap().ok().unwrap();
    assert_eq!((wc.id, polled.len()), (4, 0));
    let bufs: Vec<u8> = wc.take_bufs().map(|b| b[0]).collect();
    assert_eq!(bufs, [0, 1, 2, 3, 4]);
    assert_eq!(p.a.outstanding().0, 0);
    assert_eq!(mr.load_u64(24), 0x0303_0303_0303_0303);
}

#[test]
fn a_queue_that_would_never_be_freed_is_refused() {
    let mut p = pair();
    let mr = p.pd.alloc_shared(8, Access::REMOTE_WRITE).unwrap();
    let write = || SendRequest::write(Inline(&[1; 8]), mr.remote()).signaled(false);
    (0..7).for_each(|_| p.a.post_send(write()).unwrap());
    let refused = p.a.post_send(write()).unwrap_err();
    assert_eq!(refused.error, PostRefusal::NeverSignaled { run: 8, depth: 8 });
    p.a.post_send(write().signaled(true)).unwrap();
    let refused = p.a.post_send(write().signaled(true)).unwrap_err();
    assert_eq!(refused.error, PostRefusal::Queue(PostErrorKind::QueueFull { depth: 8 }));
    assert_eq!(poll_ok(&mut p.cq, &mut p.wcs).len(), 1);
    p.a.post_send(write()).unwrap();
}

#[test]
fn what_nobody_takes_out_of_completions_ends_with_the_next_poll() {
    let mut p = pair();
    p.wcs = Completions::with_parts(4, 1);
    let frozen = buf(&p.pd, b"news").freeze();
    // More parts than there was room for at first, and again in places that were used.
    for _ in 0..3 {
        let mut batch = p.a.batch();
        for i in 0..3 {
            p.b.post_recv(p.pd.alloc(4).unwrap()).unwrap();
            batch.post_send(SendRequest::send(frozen.clone()).signaled(i == 2)).unwrap();
        }
        drop(batch);
        assert_eq!(p.cq.poll(&mut p.wcs).len(), 4);
    }
    let frozen = frozen.try_unfreeze().unwrap_err();
    assert_eq!(p.cq.poll(&mut p.wcs).len(), 0);
    assert_eq!(&*frozen.try_unfreeze().unwrap(), b"news");
}

#[test]
fn reads_and_atomics_come_back_into_local_memory() {
    let mut p = pair();
    let mr = p.pd.alloc_shared(64, Access::REMOTE_READ | Access::REMOTE_ATOMIC).unwrap();
    mr.store_u64(8, 40);
    p.a.post_send(SendRequest::fetch_add(p.pd.alloc(8).unwrap(), mr.remote().range(8..16), 2)).unwrap();
    p.a.post_send(SendRequest::compare_swap(p.pd.alloc(8).unwrap(), mr.remote().range(8..), 42, 7).fence())
        .unwrap();
    p.a.read(mr.range(24..32), mr.remote().range(8..)).unwrap();
    let got = poll_ok(&mut p.cq, &mut p.wcs);
    let word = |i: usize| match &got[i].2[0] {
        Part::Buf(b) => u64::from_ne_bytes(b[..].try_into().unwrap()),
        other => panic!("{other:?}"),
    };
    assert_eq!((word(0), word(1), mr.load_u64(24)), (40, 42, 7));
}

#[test]
fn a_refused_request_comes_back_whole() {
    let mut p = pair();
    let mr = p.pd.alloc_shared(8, Access::REMOTE_WRITE).unwrap();
    let long = p.a.write(buf(&p.pd, &[5; 9]), mr.remote()).unwrap_err();
    assert_eq!(long.error, PostRefusal::RemoteTooShort { len: 9, room: 8 });
    assert_eq!(&*long.request, &[5; 9]);
    let odd = RemoteMr { addr: mr.remote().addr + 4, len: 8, ..mr.remote() };
    let odd = p.a.post_send(SendRequest::fetch_add(p.pd.alloc(8).unwrap(), odd, 1)).unwrap_err();
    assert!(matches!(odd.error, PostRefusal::Misaligned { .. }), "{odd}");
    let five = [(); 5].map(|()| p.pd.alloc(1).unwrap());
    let five = p.a.send(five).unwrap_err();
    assert_eq!(five.error, PostErrorKind::TooManySges { count: 5, max: 4 }.into());
    let other = p.pd.context().alloc_pd().unwrap();
    let mixed = p.a.send((p.pd.alloc(1).unwrap(), buf(&other, b"!"))).unwrap_err();
    assert_eq!(mixed.error, PostRefusal::ForeignPd { entry: 1 });

    p.fake.faults.refuse_post.store(true, Relaxed);
    let list = (buf(&p.pd, b"ab").first(1), mr.range(2..4));
    let back = p.a.post_send(SendRequest::send(list).id(3)).unwrap_err();
    assert_eq!(back.error, PostErrorKind::Destroyed.into());
    let (first, range) = back.request.into_local();
    assert_eq!((&*first.into_buf(), range.offset()), (&b"ab"[..], 2));
    let back = p.a.send(vec![buf(&p.pd, b"1"), buf(&p.pd, b"2")]).unwrap_err();
    assert_eq!(back.request.iter().map(|b| b[0]).collect::<Vec<_>>(), b"12");
    let back = p.b.post_recv([buf(&p.pd, b"1"), buf(&p.pd, b"2")]).unwrap_err();
    assert_eq!(&*back.request[1], b"2");
    p.fake.faults.refuse_post.store(false, Relaxed);
    p.b.post_recv(back.request).unwrap();
    p.a.send(()).unwrap();
    assert_eq!(poll_ok(&mut p.cq, &mut p.wcs).len(), 2);
}

#[test]
fn a_failure_says_what_to_do_and_the_rest_is_flushed_with_its_buffers() {
    let mut p = pair();
    let mr = p.pd.alloc_shared(64, Access::REMOTE_WRITE).unwrap();
    p.fake.faults.hold.store(true, Relaxed);
    p.fake.faults.fail_rdma.store(true, Relaxed);
    for id in 0..3 {
        p.a.post_send(SendRequest::write(buf(&p.pd, b"x"), mr.remote()).id(id).signaled(id == 2)).unwrap();
    }
    assert!(p.pd.context().turn());
    let mut ends = Vec::new();
    for mut wc in p.cq.poll(&mut p.wcs) {
        ends.push((wc.id, wc.status, wc.take_bufs().count()));
        let error = wc.ok().unwrap_err();
        assert!(error.to_string().contains(&format!("request {} of queue pair {}", error.id, p.a.handle())));
    }
    let flushed = WcStatus::WrFlushed;
    assert_eq!(ends, [(0, WcStatus::RemoteAccess, 1), (1, flushed, 1), (2, flushed, 1)]);
    assert_eq!(p.a.outstanding(), (0, 0));
}

#[test]
fn in_the_error_state_every_request_comes_back() {
    let mut p = pair();
    (0..3).for_each(|i| p.b.post_recv_id(i, p.pd.alloc(64).unwrap()).unwrap());
    assert_eq!(p.b.outstanding(), (0, 3));
    p.b.to_error().unwrap();
    assert_eq!(p.b.query().unwrap().state, QpState::Error);
    let ids: Vec<_> = p.cq.poll(&mut p.wcs).map(|mut wc| (wc.id, wc.take_buf().is_some())).collect();
    assert_eq!(ids, [(0, true), (1, true), (2, true)]);
    assert_eq!(p.b.outstanding(), (0, 0));
    let reset = p.b.modify(&QpAttr { state: Some(QpState::Reset), ..QpAttr::default() });
    assert!(matches!(reset, Err(ConnectError::Reset)));
}

#[test]
fn completion_queues_can_not_overrun() {
    let (_fake, context) = context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(20).unwrap();
    let qp = pd.qp::<Rc>(&cq).max_send_wr(8).max_recv_wr(4).build().unwrap();
    let error = pd.qp::<Rc>(&cq).max_send_wr(8).max_recv_wr(4).build().unwrap_err();
    assert!(
        matches!(error, BuildError::CqDepth { side: "receive", depth: 20, reserved: 20, needed: 4 }),
        "{error}"
    );
    assert_eq!(error.to_string().split("at least ").nth(1), Some("24"));
    let srq = pd.create_srq(SrqInit { max_wr: 6, max_sge: 1 }).unwrap();
    let error = pd.qp::<Rc>(&cq).max_send_wr(4).srq(&srq).build().unwrap_err();
    assert!(matches!(error, BuildError::CqDepth { needed: 6, .. }), "{error}");
    drop(qp);
    let on_srq = || pd.qp::<Rc>(&cq).max_send_wr(1).srq(&srq).build().unwrap();
    let (a, b) = (on_srq(), on_srq());
    assert_eq!(cq.reference().reserved(), 8, "the shared queue's depth counts once");
    drop((a, b));
    assert_eq!(cq.reference().reserved(), 0);
}

#[test]
fn queue_pairs_come_and_go_while_their_completion_queue_is_resized() {
    let (fake, context) = context();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(16).unwrap();
    let reference = cq.reference();
    let build = move |n| pd.qp::<Ud>(&reference).max_send_wr(n).max_recv_wr(n).build();
    let first = build(4).unwrap();
    // (old depth, new depth, room meanwhile, whether the device can)
    for (from, to, room, can) in
        [(16, 32, 16, true), (32, 16, 16, true), (16, 64, 16, false), (16, 8, 8, false)]
    {
        assert_eq!(cq.depth(), from);
        let build = build.clone();
        let (asked, ask) = std::sync::mpsc::channel();
        let (answer, answered) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            ask.recv().unwrap();
            let none = build((room - 8) / 2 + 1).unwrap_err();
            let another = (room > 8).then(|| build((room - 8) / 2).unwrap());
            answer.send((none, another)).unwrap();
        });
        let during = move || {
            asked.send(()).unwrap();
            let (none, another) =
                answered.recv_timeout(Duration::from_secs(60)).expect("nobody waits for the resize");
            assert!(matches!(none, BuildError::CqDepth { depth, .. } if depth == room), "{none:?}");
            drop(another);
            can
        };
        *fake.faults.while_resizing.lock().unwrap() = Some(Box::new(during));
        assert_eq!(cq.resize(to).is_ok(), can);
        assert_eq!(cq.depth(), if can { to } else { from });
        other.join().unwrap();
    }
    assert!(matches!(cq.resize(7), Err(hca_core::DeviceError::InUse { users: 8, .. })));
    drop(first);
}

#[test]
fn limits_and_foreign_parts_are_refused_by_name() {
    let (_fake, context) = context();
    let (_other_fake, other) = self::context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64).unwrap();
    let error = pd.qp::<Rc>(&cq).max_send_sge(33).build().unwrap_err();
    assert!(matches!(error, BuildError::OutOfRange { what: "max_send_sge", value: 33, max: 32, .. }));
    let foreign = other.create_cq(64).unwrap();
    let error = pd.qp::<Rc>(&foreign).build().unwrap_err();
    assert!(matches!(error, BuildError::ForeignContext { what: "send completion queue" }));
    assert!(matches!(pd.alloc_shared(0, Access::empty()), Err(MemoryError::Empty)));
    let uc = pd.qp::<Uc>(&cq).max_send_wr(1).max_recv_wr(1).build().unwrap();
    let rc = pd.qp::<Rc>(&cq).max_send_wr(1).max_recv_wr(1).build().unwrap();
    let error = rc.connect(&uc.endpoint(), &ConnectOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::Service { .. }));
}

#[test]
fn connecting_takes_what_both_sides_can() {
    let p = pair();
    let a = p.pd.qp::<Rc>(&p.cq).max_send_wr(1).max_recv_wr(1).build().unwrap();
    let theirs = Endpoint { mtu: hca_core::Mtu::B1024, rd_atomic: 3, ..p.b.endpoint() };
    a.connect(&theirs, &ConnectOptions::default()).unwrap();
    let attr = a.query().unwrap().attr;
    assert_eq!((attr.path_mtu, attr.max_rd_atomic), (Some(hca_core::Mtu::B1024), Some(3)));
    assert_ne!(p.a.endpoint().psn, p.b.endpoint().psn);
}

#[test]
fn initial_psns_repeat_with_their_seed() {
    let psns = |seed| {
        let context = Context::with_seed(Fake::new(), seed);
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024).unwrap();
        [(); 3].map(|()| pd.qp::<Rc>(&cq).build().unwrap().endpoint().psn)
    };
    assert_eq!(psns(5), psns(5));
    assert_ne!(psns(5), psns(6));
}

#[test]
fn shared_receive_queues_serve_many_queue_pairs() {
    let (_fake, context) = context();
    let pd = context.alloc_pd().unwrap();
    let (mut cq, mut srq_cq) = (context.create_cq(64).unwrap(), context.create_cq(64).unwrap());
    let mut srq = pd.create_srq(SrqInit { max_wr: 4, max_sge: 1 }).unwrap();
    let mut batch = srq.batch();
    (0..4).for_each(|i| batch.post_recv_id(i, pd.alloc(8).unwrap()).unwrap());
    batch.ring();
    let full = srq.post_recv(pd.alloc(8).unwrap()).unwrap_err();
    assert_eq!(full.error, PostErrorKind::QueueFull { depth: 4 }.into());
    let mut wcs = Completions::default();
    let mut kept = Vec::new();
    for i in 0..2_u64 {
        let mut a = pd.qp::<Rc>(&cq).max_send_wr(2).max_recv_wr(2).build().unwrap();
        let mut b = pd.qp::<Rc>(&cq).max_send_wr(2).recv_cq(&srq_cq).srq(&srq).context(i).build().unwrap();
        connect(&a, &b);
        let refused = b.post_recv(pd.alloc(8).unwrap()).unwrap_err();
        assert_eq!(refused.error, PostErrorKind::UsesSrq.into());
        a.send(buf(&pd, &[i as u8; 8])).unwrap();
        kept.push((a, b));
    }
    let got: Vec<_> =
        srq_cq.poll(&mut wcs).map(|mut wc| (wc.context, wc.id, wc.take_buf().unwrap()[7])).collect();
    assert_eq!(got, [(0, 0, 0), (1, 1, 1)]);
    assert_eq!(poll_ok(&mut cq, &mut wcs).len(), 2);
    assert_eq!(srq.outstanding(), 2);
    srq.post_recv(pd.alloc(8).unwrap()).unwrap();
}

#[test]
fn datagrams_say_where_they_came_from() {
    let (fake, context) = context();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(64).unwrap();
    let build = || pd.qp::<Ud>(&cq).max_send_wr(4).max_recv_wr(4).build().unwrap();
    let (mut a, mut b) = (build(), build());
    let qkey = Qkey::new(0x1234);
    a.activate(qkey).unwrap();
    b.activate(qkey).unwrap();
    let to = b.endpoint();
    let ah = pd.create_ah(&hca_core::AddressVector { dgid: to.gid, ..Default::default() }).unwrap();
    let peer = ah.peer(to.qpn, qkey);
    drop(ah);
    b.post_recv(pd.alloc(64).unwrap()).unwrap();
    fake.faults.hold.store(true, Relaxed);
    a.post_send(SendRequest::send(buf(&pd, b"hi")).to(&peer).imm(3)).unwrap();
    drop(peer);
    assert_eq!(fake.objects()[4], 1, "a request in flight holds its address handle");
    context.turn();
    let mut wcs = Completions::default();
    let mut polled = cq.poll(&mut wcs);
    let wc = polled.next().unwrap();
    assert_eq!((wc.payload(), wc.byte_len, wc.src_qp, wc.imm()), (Some(&b"hi"[..]), 42, a.qpn(), Some(3)));
    assert_eq!(wc.grh().unwrap().sgid, to.gid);
    assert_eq!(wc.reply_ah(&pd).unwrap().unwrap().av().dgid, to.gid);
    assert_eq!(fake.objects()[4], 0);
}

#[test]
fn a_datagram_without_a_header_begins_where_it_would_with_one() {
    let (fake, context) = context();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(64).unwrap();
    let mut a = pd.qp::<Ud>(&cq).max_send_wr(4).max_recv_wr(4).build().unwrap();
    a.activate(Qkey::new(0x1234)).unwrap();
    let to = a.endpoint();
    let ah = pd.create_ah(&hca_core::AddressVector { dgid: to.gid, ..Default::default() }).unwrap();
    a.post_recv(pd.alloc(64).unwrap()).unwrap();
    fake.faults.no_header.store(true, Relaxed);
    a.post_send(SendRequest::send(buf(&pd, b"hi")).to(&ah.peer(to.qpn, Qkey::new(0x1234))).signaled(false))
        .unwrap();
    context.turn();
    let mut wcs = Completions::default();
    let wc = cq.poll(&mut wcs).next().unwrap();
    assert_eq!((wc.payload(), wc.byte_len, wc.src_qp), (Some(&b"hi"[..]), 42, to.qpn));
    assert!(wc.grh().is_none() && wc.reply_ah(&pd).is_none());
}

#[test]
fn one_thread_posts_while_another_polls() {
    let Pair { pd, mut cq, mut a, mut b, .. } = pair();
    let rounds = if cfg!(miri) { 20_u64 } else { 2000 };
    let poller = std::thread::spawn(move || {
        let mut wcs = Completions::default();
        let (mut sent, mut received) = (0, Vec::new());
        while sent < rounds || received.len() < rounds as usize {
            for wc in cq.poll(&mut wcs) {
                let mut wc = wc.ok().unwrap();
                if wc.opcode.is_recv() {
                    let buf = wc.take_buf().unwrap();
                    received.push(u64::from_ne_bytes(buf[..].try_into().unwrap()));
                } else {
                    sent += 1;
                }
            }
            std::thread::yield_now();
        }
        received
    });
    let receiver = std::thread::spawn({
        let pd = pd.clone();
        move || {
            for _ in 0..rounds {
                let mut buf = pd.alloc(8).unwrap();
                while let Err(refused) = b.post_recv(buf) {
                    buf = refused.request;
                    std::thread::yield_now();
                }
            }
            b
        }
    });
    for i in 0..rounds {
        let mut message = buf(&pd, &i.to_ne_bytes());
        while let Err(refused) = a.send(message) {
            message = refused.request;
            std::thread::yield_now();
        }
    }
    assert_eq!(poller.join().unwrap(), (0..rounds).collect::<Vec<_>>());
    drop(receiver.join().unwrap());
}

#[test]
fn a_future_is_woken_and_may_be_dropped() {
    let mut p = pair();
    let mut cx = TaskContext::from_waker(Waker::noop());
    p.b.post_recv(p.pd.alloc(8).unwrap()).unwrap();
    {
        let mut next = Box::pin(p.cq.next(&mut p.wcs));
        assert!(next.as_mut().poll(&mut cx).is_pending());
    }
    p.a.send(p.pd.alloc(8).unwrap()).unwrap();
    let mut next = Box::pin(p.cq.next(&mut p.wcs));
    let Poll::Ready(wcs) = next.as_mut().poll(&mut cx) else { panic!("there are two") };
    assert_eq!(wcs.len(), 2);

    struct Flag(std::sync::atomic::AtomicBool);
    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Relaxed);
        }
    }
    drop(next);
    let flag = Arc::new(Flag(false.into()));
    let waker = Waker::from(Arc::clone(&flag));
    let mut wcs = Completions::default();
    assert!(p.cq.poll_next(&mut TaskContext::from_waker(&waker), &mut wcs).is_pending());
    p.b.post_recv(p.pd.alloc(8).unwrap()).unwrap();
    p.a.send(()).unwrap();
    assert!(flag.0.load(Relaxed));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no eventfd through raw system calls")]
fn waiting_blocks_until_a_completion_comes() {
    let mut p = pair();
    let nothing = p.cq.wait(&mut p.wcs, Some(Duration::from_millis(1)));
    assert!(matches!(nothing, Err(WaitError::TimedOut(_))));
    p.b.post_recv(p.pd.alloc(8).unwrap()).unwrap();
    let (pd, mut a) = (p.pd.clone(), p.a);
    let sender = std::thread::spawn(move || {
        a.send(buf(&pd, b"12345678")).unwrap();
        a
    });
    let mut seen = 0;
    while seen < 2 {
        for wc in p.cq.wait(&mut p.wcs, None).unwrap() {
            wc.ok().unwrap();
            seen += 1;
        }
    }
    drop(sender.join().unwrap());
}

#[test]
fn a_waker_may_look_at_events_and_at_a_channel_while_it_is_cloned_and_dropped() {
    ends("futures are polled", || {
        let context = Context::with_seed(Fake::new(), 1);
        let channel = context.create_channel().unwrap();
        let (looks, named) = (context.clone(), channel.clone());
        let waker = wakers::running(move || assert!(looks.poll_event().is_none() && named.poll().is_none()));
        let mut cx = TaskContext::from_waker(&waker);
        let (mut event, mut name) = (pin!(context.next_event()), pin!(channel.next()));
        for _ in 0..2 {
            assert!(event.as_mut().poll(&mut cx).is_pending() && name.as_mut().poll(&mut cx).is_pending());
        }
    });
}

#[test]
fn asynchronous_events_are_waited_for() {
    let (fake, context) = context();
    assert_eq!(context.poll_event(), None);
    assert!(context.wait_event(Some(Duration::ZERO)).is_err());
    let waiter = std::thread::spawn({
        let context = context.clone();
        move || context.wait_event(None).unwrap()
    });
    fake.raise(AsyncEvent::PortError);
    assert_eq!(waiter.join().unwrap(), AsyncEvent::PortError);
    let waiters = [(); 2].map(|()| {
        let context = context.clone();
        std::thread::spawn(move || context.wait_event(None).unwrap())
    });
    // One at a time, so that the second comes to one that was passed over by the first, or has yet to ask.
    fake.raise(AsyncEvent::PortError);
    while !waiters.iter().any(|w| w.is_finished()) {
        std::thread::yield_now();
    }
    fake.raise(AsyncEvent::PortError);
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap(), AsyncEvent::PortError);
    }
    let mut next = Box::pin(context.next_event());
    let mut cx = TaskContext::from_waker(Waker::noop());
    assert!(next.as_mut().poll(&mut cx).is_pending());
    fake.raise(AsyncEvent::PortActive);
    assert_eq!(next.as_mut().poll(&mut cx), Poll::Ready(AsyncEvent::PortActive));
}

#[test]
fn completions_beyond_the_room_come_with_the_next_poll() {
    let mut p = pair();
    for i in 0..4 {
        p.b.post_recv_id(i, p.pd.alloc(8).unwrap()).unwrap();
        p.a.send_inline(b"x").unwrap();
    }
    let mut wcs = Completions::with_capacity(3);
    assert_eq!([p.cq.poll(&mut wcs).len(), p.cq.poll(&mut wcs).len(), p.cq.poll(&mut wcs).len()], [3, 3, 2]);
    assert!(p.cq.poll(&mut wcs).next().is_none());
}

#[test]
fn what_is_promised_of_threads_holds() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    fn send_sync<T: Send + Sync>() {
        send::<T>();
        sync::<T>();
    }
    send_sync::<Context>();
    send_sync::<Pd>();
    send_sync::<Buf>();
    send_sync::<FrozenBuf>();
    send_sync::<SharedMr>();
    send_sync::<SharedRange>();
    send_sync::<RemoteMr>();
    send_sync::<Part>();
    send_sync::<Endpoint>();
    send_sync::<AddressHandle>();
    send_sync::<UdPeer>();
    send_sync::<CqRef>();
    send_sync::<SrqRef>();
    send_sync::<QpControl<Rc>>();
    send_sync::<SendRequest<ops::Send, Buf>>();
    send_sync::<Completions>();
    send_sync::<Wc<'_>>();
    send::<CompletionQueue>();
    send::<QueuePair<Rc>>();
    send::<SendQueue<Ud>>();
    send::<RecvQueue<Uc>>();
    send::<SendBatch<'_, Rc>>();
    send::<RecvBatch<'_>>();
    send::<Srq>();
    send::<raw::RawQp>();
    send::<raw::RawCq>();
    send::<raw::RawSrq>();
}

/// As a program writes it: `?`, with bytes that live in the function.
#[test]
fn a_refusal_of_inline_bytes_is_handed_on_out_of_the_function_that_has_them() {
    fn greet(qp: &mut QueuePair<Rc>, n: u32) -> Result<(), Box<dyn std::error::Error>> {
        let bytes = n.to_be_bytes();
        qp.send_inline(&bytes)?;
        qp.send(Inline(&bytes))?;
        Ok(())
    }
    let mut p = pair();
    greet(&mut p.a, 7).unwrap();
    p.fake.faults.refuse_post.store(true, Relaxed);
    let error = greet(&mut p.a, 7).unwrap_err();
    assert_eq!(format!("{error:?}"), "the queue was destroyed; build a new one");
}

#[test]
fn the_number_of_a_completion_is_the_programs_under_both_names() {
    let mut p = pair();
    p.b.post_recv_id(70, p.pd.alloc(16).unwrap()).unwrap();
    p.b.post_recv_id(71, p.pd.alloc(16).unwrap()).unwrap();
    for id in [90, 91] {
        p.a.post_send(SendRequest::send(Inline(b"x")).id(id)).unwrap();
    }
    let numbers: Vec<_> = p.cq.poll(&mut p.wcs).map(|wc| (wc.id, wc.wr_id)).collect();
    assert_eq!(numbers.len(), 4);
    for number in [70, 71, 90, 91] {
        assert!(numbers.contains(&(number, number)), "{numbers:?}");
    }
}
