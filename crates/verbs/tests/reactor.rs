//! Requests as futures, over a device in memory and an executor that panics where nobody is woken. Runs under Miri as
//! well (README).

mod fake;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use fake::Fake;
use futures_core::Stream;
use hca_verbs::*;
use test_support::waiting::ends;
use test_support::wakers;

type Task = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Default)]
struct Woken(AtomicBool);
impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// Polls tasks whenever they were woken, until the first one is done.
///
/// # Panics
/// The first one is not done, and nobody was woken.
fn run(tasks: Vec<Task>) {
    let mut tasks: Vec<_> =
        tasks.into_iter().map(|t| (Some(t), Arc::new(Woken(AtomicBool::new(true))))).collect();
    while tasks[0].0.is_some() {
        let mut any = false;
        for (task, woken) in &mut tasks {
            if let Some(future) = task.as_mut().filter(|_| woken.0.swap(false, SeqCst)) {
                any = true;
                let waker = Waker::from(Arc::clone(woken));
                if future.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_ready() {
                    *task = None;
                }
            }
        }
        assert!(any, "everybody waits, and nobody is woken");
    }
}

/// Polls a future once, as by a task that is never heard of again.
fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut TaskContext::from_waker(Waker::noop()))
}

/// Polls a future once, as by a task that is told when it is woken.
fn poll_by<F: Future>(future: Pin<&mut F>, woken: &Arc<Woken>) -> Poll<F::Output> {
    future.poll(&mut TaskContext::from_waker(&Waker::from(Arc::clone(woken))))
}

struct World {
    fake: Arc<Fake>,
    pd: Pd,
    reactor: Reactor,
    driver: Driver,
    a: AsyncQp<Rc>,
    b: AsyncQp<Rc>,
}

/// Two connected queue pairs on one completion queue, whose send queues have room for 4.
fn world() -> World {
    let fake = Fake::new();
    let context = Context::with_seed(Arc::clone(&fake) as _, 1);
    let pd = context.alloc_pd().unwrap();
    let (reactor, driver) = Reactor::new(context.create_cq(64).unwrap());
    let build = || pd.qp::<Rc>(&reactor).max_send_wr(4).max_recv_wr(8).build_async(&reactor).unwrap();
    let (a, b) = (build(), build());
    a.connect(&b.endpoint(), &ConnectOptions::default()).unwrap();
    b.connect(&a.endpoint(), &ConnectOptions::default()).unwrap();
    b.post_recvs(pd.alloc_many(4, 16).unwrap()).unwrap();
    World { fake, pd, reactor, driver, a, b }
}

impl World {
    fn buf(&self, bytes: &[u8]) -> Buf {
        let mut buf = self.pd.alloc(bytes.len()).unwrap();
        buf.copy_from_slice(bytes);
        buf
    }
    fn hold(&self, yes: bool) {
        self.fake.faults.hold.store(yes, Relaxed);
    }
    fn release(&self) {
        self.hold(false);
        self.pd.context().turn();
    }
}

#[test]
fn a_waker_may_use_the_connection_while_it_is_cloned_and_dropped() {
    ends("futures are polled", || {
        let world = world();
        world.hold(true);
        let World { a, b, .. } = &world;
        let (sends, receives) = (a.clone(), b.clone());
        let waker = wakers::running(move || {
            drop((receives.try_recv(), sends.try_reclaim()));
            let _ = poll_once(pin!(sends.ready()));
        });
        let mut cx = TaskContext::from_waker(&waker);
        let mut abandoned = Box::pin(a.send(world.buf(b"1")));
        assert!(poll_once(abandoned.as_mut()).is_pending());
        drop(abandoned);
        let mut futures: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = vec![
            Box::pin(async { drop(a.send(world.buf(b"2")).await) }),
            Box::pin(async { drop(b.recv().await) }),
            Box::pin(async { drop(a.reclaim().await) }),
            Box::pin(async { drop(a.send(world.buf(b"3")).await) }),
            Box::pin(async { drop(a.send(world.buf(b"4")).await) }),
            Box::pin(async { assert!(a.ready().await.is_ok()) }),
            Box::pin(async { drop(a.send(world.buf(b"no room")).await) }),
            Box::pin(async { assert!(b.drain().unwrap().await.is_ok()) }),
        ];
        for future in &mut futures {
            // Once more: the waker is put in its own place.
            for _ in 0..2 {
                assert!(future.as_mut().poll(&mut cx).is_pending());
            }
        }
    });
}

#[test]
fn each_request_gives_its_list_back_and_each_message_its_bytes() {
    let World { pd, driver, a, b, .. } = world();
    let mr = pd.alloc_shared(64, Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC).unwrap();
    let main = async move {
        let mut buf = pd.alloc(8).unwrap();
        buf.copy_from_slice(&7_u64.to_ne_bytes());
        let buf = a.send(buf).await.unwrap();
        let message = b.recv().await.unwrap();
        assert_eq!((&message[..], message.imm()), (&buf[..], None));
        let buf = a.write(buf, mr.remote()).await.unwrap();
        assert_eq!(mr.load_u64(0), 7);
        let (buf, range) = a.read((buf, mr.range(16..24)), mr.remote()).await.unwrap();
        assert_eq!((buf.len(), range.offset(), mr.load_u64(16)), (8, 16, 0));
        let old = a.fetch_add(buf, mr.remote(), 5).await.unwrap();
        assert_eq!((&old[..], mr.load_u64(0)), (&7_u64.to_ne_bytes()[..], 12));
        let old = a.compare_swap(old, mr.remote(), 12, 1).await.unwrap();
        assert_eq!((&old[..], mr.load_u64(0)), (&12_u64.to_ne_bytes()[..], 1));
        let first = a.request(SendRequest::send(old.first(3)).imm(9)).await.unwrap();
        let message = b.recv().await.unwrap();
        assert_eq!((message.len(), message.imm(), first.into_buf().len()), (3, Some(9), 8));
        a.send(Inline(b"inline")).await.unwrap();
        assert_eq!(*b.recv().await.unwrap(), *b"inline");
    };
    run(vec![Box::pin(main), Box::pin(driver)]);
}

#[test]
fn a_request_that_is_dropped_in_flight_gives_its_buffer_back_by_reclaim() {
    let w = world();
    w.hold(true);
    let mut sent = Box::pin(w.a.request(SendRequest::send(w.buf(b"dropped")).id(70)));
    assert!(poll_once(sent.as_mut()).is_pending());
    drop(sent);
    assert!(w.a.try_reclaim().is_none(), "the device has it still");
    let (mut first, mut second) = (pin!(w.a.reclaim()), pin!(w.a.reclaim()));
    let woken = Arc::new(Woken::default());
    assert!(poll_once(first.as_mut()).is_pending() && poll_by(second.as_mut(), &woken).is_pending());
    w.release();
    assert!(w.b.try_recv().unwrap().is_some(), "the message was sent all the same");
    assert!(woken.0.load(SeqCst), "nothing is left that the second could wait for");
    let Poll::Ready(Some(left)) = poll_once(first.as_mut()) else { panic!("it has completed") };
    assert_eq!((left.id, left.opcode, left.result), (70, WcOpcode::Send, Ok(())));
    assert_eq!(*left.into_bufs().next().unwrap(), *b"dropped");
    assert!(matches!(poll_once(second.as_mut()), Poll::Ready(None)), "nothing else was dropped");
}

#[test]
fn a_request_that_completed_before_it_is_dropped_leaves_its_buffer_too() {
    let w = world();
    let sent = w.a.try_request(SendRequest::send(w.buf(b"done")).id(71)).unwrap();
    assert_eq!(w.b.try_recv().unwrap().unwrap().len(), 4);
    drop(sent);
    let left = w.a.try_reclaim().unwrap();
    assert_eq!((left.id, left.parts.len()), (71, 1));
}

#[test]
fn who_waits_for_room_is_served_in_turn_and_passes_its_turn_on_when_dropped() {
    let w = world();
    w.hold(true);
    let _held: Vec<_> = (0..4).map(|_| w.a.try_request(SendRequest::send(w.buf(b"full"))).unwrap()).collect();
    let refused = w.a.try_request(SendRequest::send(w.buf(b"full"))).unwrap_err();
    assert_eq!(refused.error, PostRefusal::Queue(PostErrorKind::QueueFull { depth: 4 }));
    let mut ready = Box::pin(w.a.ready());
    assert!(poll_once(ready.as_mut()).is_pending());
    let wokens = [(); 3].map(|()| Arc::new(Woken::default()));
    let mut waiting: Vec<_> =
        (0..3).map(|n| Box::pin(w.a.request(SendRequest::send(w.buf(b"wait")).id(n)))).collect();
    for (future, woken) in waiting.iter_mut().zip(&wokens) {
        let waker = Waker::from(Arc::clone(woken));
        assert!(future.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
    }
    let woken = || wokens.each_ref().map(|w| w.0.load(SeqCst));
    // The one in the middle goes: it was never posted, and its buffer is there.
    drop(waiting.remove(1));
    let left = w.a.try_reclaim().unwrap();
    assert_eq!((left.id, left.result, left.parts.len()), (1, Err(RequestError::Cancelled), 1));
    w.release();
    w.hold(true);
    let _ = w.b.try_recv();
    assert_eq!(woken(), [true, false, true], "four places are free: for `ready`, and both that wait");
    assert!(matches!(poll_once(ready.as_mut()), Poll::Ready(Ok(()))));
    assert!(waiting.iter_mut().all(|f| poll_once(f.as_mut()).is_pending()), "they are in flight now");
    assert_eq!(w.a.outstanding().0, 2);
}

#[test]
fn many_tasks_wait_for_few_places_and_all_come_through() {
    let World { pd, driver, a, b, .. } = world();
    let tasks = (0..30_u32).map(|n| {
        let (a, mut buf) = (a.clone(), pd.alloc(4).unwrap());
        Box::pin(async move {
            buf.copy_from_slice(&n.to_ne_bytes());
            a.send(buf).await.unwrap();
        }) as Task
    });
    let receiver = Box::pin(async move {
        let mut got = Vec::new();
        while got.len() < 30 {
            let message = b.recv().await.unwrap();
            got.push(u32::from_ne_bytes(message[..].try_into().unwrap()));
        }
        got.sort_unstable();
        assert_eq!(got, (0..30).collect::<Vec<_>>());
    }) as Task;
    run([receiver, Box::pin(driver)].into_iter().chain(tasks).collect());
}

#[test]
fn a_batch_is_one_doorbell_and_each_of_its_requests_a_future() {
    let w = world();
    let mr = w.pd.alloc_shared(64, Access::REMOTE_WRITE).unwrap();
    let bufs = [w.buf(b"1"), w.buf(b"2"), w.buf(b"3")];
    let writes = w.a.batch(|batch| {
        let writes = bufs.into_iter().enumerate().map(|(i, buf)| {
            let request = SendRequest::write(buf, mr.remote().range(i..));
            batch.post(request).unwrap()
        });
        let writes: Vec<_> = writes.collect();
        assert_eq!(mr.load_u64(0), 0, "the doorbell comes behind the last one");
        writes
    });
    for (write, byte) in writes.into_iter().zip(b"123") {
        let Poll::Ready(buf) = poll_once(pin!(write)) else { panic!("it is done at once") };
        assert_eq!(buf.unwrap()[..], [*byte]);
    }
    let mut seen = [0; 3];
    mr.read_at(0, &mut seen);
    assert_eq!(seen, *b"123");
}

#[test]
fn requests_of_a_batch_may_be_dropped_within_it() {
    let w = world();
    w.hold(true);
    let bufs: Vec<_> = (0..5).map(|_| w.buf(b"batch")).collect();
    let (a, (tell, told)) = (w.a.clone(), std::sync::mpsc::channel());
    // The last one is refused, and those before it are dropped with the list that they were put in.
    std::thread::spawn(move || {
        let sent = a.batch(|batch| {
            bufs.into_iter().map(|buf| Ok(batch.post(SendRequest::send(buf))?)).collect::<Result<Vec<_>, _>>()
        });
        tell.send(sent.map(|sent| sent.len())).unwrap();
    });
    let Ok(sent) = told.recv_timeout(std::time::Duration::from_secs(10)) else {
        std::mem::forget(w); // its drop would wait as well
        panic!("the batch waits for itself");
    };
    assert_eq!(sent, Err(PostRefusal::Queue(PostErrorKind::QueueFull { depth: 4 })));
    w.release();
    for _ in 0..4 {
        assert_eq!(*w.b.try_recv().unwrap().unwrap(), *b"batch", "it was posted");
    }
    assert_eq!(std::iter::from_fn(|| w.a.try_reclaim()).flat_map(Unclaimed::into_bufs).count(), 4);
}

#[test]
fn a_cancelled_receive_leaves_the_message_to_the_next_one() {
    let w = world();
    let (mut first, mut second) = (Box::pin(w.b.recv()), Box::pin(w.b.recv()));
    let woken = Arc::new(Woken::default());
    assert!(poll_once(first.as_mut()).is_pending());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(second.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
    let _sent = w.a.try_request(SendRequest::send(w.buf(b"whose"))).unwrap();
    assert!(w.a.try_reclaim().is_none(), "a look at the queue, which hands the message to the first");
    assert!(!woken.0.load(SeqCst));
    drop(first);
    assert!(woken.0.load(SeqCst), "the first one went without: it is the second one's turn");
    let Poll::Ready(Ok(message)) = poll_once(second.as_mut()) else { panic!("there is one") };
    assert_eq!(*message, *b"whose");
}

#[test]
fn the_buffer_of_a_message_is_posted_anew_unless_it_is_taken() {
    let w = world();
    let mut message = None;
    for n in 0..12_u8 {
        let _sent = w.a.try_request(SendRequest::send(w.buf(&[n]))).unwrap();
        message = w.b.try_recv().unwrap(); // the one before is dropped
        assert_eq!(*message.as_deref().unwrap(), [n]);
    }
    assert_eq!(w.b.outstanding().1, 3);
    assert_eq!(message.unwrap().into_buf().unwrap().len(), 16);
    assert_eq!(w.b.outstanding().1, 3, "it is the program's");
}

#[test]
fn a_stream_yields_what_came_before_the_failure_then_the_failure_and_ends() {
    let w = world();
    let _sent = w.a.try_request(SendRequest::send(w.buf(b"last"))).unwrap();
    let mut messages = Box::pin(w.b.messages());
    let mut next = || poll_once(pin!(poll_fn(|cx| messages.as_mut().poll_next(cx))));
    w.b.to_error().unwrap();
    w.pd.context().turn();
    let Poll::Ready(Some(Ok(message))) = next() else { panic!("it came before") };
    assert_eq!(*message, *b"last");
    let Poll::Ready(Some(Err(RequestError::Failed(error)))) = next() else { panic!("the rest was flushed") };
    assert_eq!(error.status, WcStatus::WrFlushed);
    assert!(matches!(next(), Poll::Ready(None)));
    let flushed = std::iter::from_fn(|| w.b.try_reclaim()).flat_map(Unclaimed::into_bufs).count();
    assert_eq!(flushed, 3, "buffers of flushed receives come back");
}

#[test]
fn a_request_that_goes_wrong_gives_its_list_back_with_the_programs_number() {
    let w = world();
    w.fake.faults.fail_rdma.store(true, Relaxed);
    let remote = RemoteMr { addr: 0, rkey: Rkey::new(99), len: 8 };
    let write = pin!(w.a.request(SendRequest::write(w.buf(b"lost"), remote).id(5)));
    let Poll::Ready(Err(failed)) = poll_once(write) else { panic!("it fails at once") };
    let RequestError::Failed(error) = failed.error else { panic!("{failed}") };
    assert_eq!((error.id, error.status), (5, WcStatus::RemoteAccess));
    assert_eq!(*failed.local.unwrap(), *b"lost");
    let refused = pin!(w.a.write(w.buf(b"too long"), RemoteMr { len: 4, ..remote }));
    let Poll::Ready(Err(failed)) = poll_once(refused) else { panic!("it is refused") };
    assert_eq!(failed.error, RequestError::Refused(PostRefusal::RemoteTooShort { len: 8, room: 4 }));
    assert_eq!(*failed.local.unwrap(), *b"too long");
}

#[test]
fn a_request_that_is_posted_at_once_fails_with_the_programs_number_too() {
    let remote = RemoteMr { addr: 0, rkey: Rkey::new(99), len: 8 };
    for in_a_batch in [false, true] {
        let w = world();
        w.fake.faults.fail_rdma.store(true, Relaxed);
        let request = SendRequest::write(w.buf(b"lost"), remote).id(6);
        let write = match in_a_batch {
            true => w.a.batch(|batch| batch.post(request).unwrap()),
            false => w.a.try_request(request).unwrap(),
        };
        let Poll::Ready(Err(failed)) = poll_once(pin!(write)) else { panic!("it fails at once") };
        let RequestError::Failed(error) = failed.error else { panic!("{failed}") };
        assert_eq!((error.id, error.status), (6, WcStatus::RemoteAccess));
    }
}

#[test]
fn without_a_driver_nobody_waits_for_ever() {
    let w = world();
    w.hold(true);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut sent = Box::pin(w.a.send(w.buf(b"x")));
    assert!(sent.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
    let mut message = Box::pin(w.b.recv());
    assert!(poll_once(message.as_mut()).is_pending());
    drop(w.driver);
    assert!(woken.0.load(SeqCst));
    let Poll::Ready(Err(failed)) = poll_once(sent.as_mut()) else { panic!("nobody would wake it") };
    assert_eq!((failed.error, failed.local.is_none()), (RequestError::Driverless, true));
    assert!(matches!(poll_once(message.as_mut()), Poll::Ready(Err(RequestError::Driverless))));
    let late = w.pd.qp::<Rc>(&w.reactor).max_send_wr(4).max_recv_wr(4).build_async(&w.reactor).unwrap();
    assert!(matches!(late.try_recv(), Err(RequestError::Driverless)));
}

#[test]
fn the_last_handle_destroys_the_queue_pair_and_the_last_reactor_ends_the_driver() {
    let World { fake, pd, reactor, mut driver, a, b } = world();
    let held = a.try_request(SendRequest::send(Inline(b"x"))).unwrap();
    let message = b.try_recv().unwrap().unwrap();
    drop((a, b));
    assert_eq!(fake.objects()[3], 1, "a future holds its queue pair, a message does not");
    drop(held);
    assert_eq!(fake.objects()[3], 0);
    drop(message); // there is nowhere to post it
    assert!(poll_once(Pin::new(&mut driver)).is_pending());
    drop(reactor);
    assert!(poll_once(Pin::new(&mut driver)).is_ready());
    drop((driver, pd));
    assert_eq!(fake.objects(), [0; 5]);
}

#[test]
fn leftovers_are_kept_as_many_as_the_queues_are_deep() {
    let w = world();
    for n in 0..20_u64 {
        drop(w.a.try_request(SendRequest::send(w.buf(&[0; 4])).id(n)).unwrap());
        drop(w.b.try_recv().unwrap().unwrap());
    }
    let kept: Vec<u64> = std::iter::from_fn(|| w.a.try_reclaim()).map(|left| left.id).collect();
    assert_eq!(kept, (8..20).collect::<Vec<_>>(), "4 and 8 places: the oldest went");
}

#[test]
fn messages_of_many_queue_pairs_go_back_to_their_shared_receive_queue() {
    let w = world();
    let srq = AsyncSrq::new(w.pd.create_srq(SrqInit { max_wr: 4, max_sge: 1 }).unwrap());
    srq.post_recvs(w.pd.alloc_many(2, 16).unwrap()).unwrap();
    let build = || w.pd.qp::<Rc>(&w.reactor).srq(&srq).max_send_wr(4).build_async(&w.reactor).unwrap();
    let client = || w.pd.qp::<Rc>(&w.reactor).max_send_wr(4).max_recv_wr(1).build_async(&w.reactor).unwrap();
    let pairs: Vec<_> = (0..4).map(|_| (client(), build())).collect();
    for (client, server) in &pairs {
        client.connect(&server.endpoint(), &ConnectOptions::default()).unwrap();
        server.connect(&client.endpoint(), &ConnectOptions::default()).unwrap();
    }
    for (n, (client, server)) in pairs.iter().enumerate() {
        let _sent = client.try_request(SendRequest::send(w.buf(&[n as u8]))).unwrap();
        assert_eq!(srq.outstanding(), 2);
        let message = server.try_recv().unwrap().unwrap();
        assert_eq!((&message[..], srq.outstanding()), (&[n as u8][..], 1));
    }
    assert_eq!(srq.outstanding(), 2);
}

#[test]
fn a_drain_ends_when_all_that_was_posted_has_come_back() {
    let w = world();
    w.hold(true);
    let sent = w.a.try_request(SendRequest::send(w.buf(b"flushed"))).unwrap();
    w.a.post_recvs(w.pd.alloc_many(3, 16).unwrap()).unwrap();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut drain = Box::pin(w.a.drain().unwrap());
    assert!(drain.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
    w.release();
    assert!(matches!(poll_once(pin!(sent)), Poll::Ready(Err(Failed { local: Some(_), .. }))));
    assert!(woken.0.load(SeqCst));
    assert!(matches!(poll_once(drain.as_mut()), Poll::Ready(Ok(()))));
    let bufs = std::iter::from_fn(|| w.a.try_reclaim()).flat_map(Unclaimed::into_bufs).count();
    assert_eq!((bufs, w.a.outstanding()), (3, (0, 0)));
}

/// Memory of the program's own that has something done when it goes.
struct Last(Vec<u8>, Option<Box<dyn FnOnce() + Send + Sync>>);

#[allow(unsafe_code)] // the test's own memory
// SAFETY: the bytes lie on the heap, and the vector is not used until it is dropped.
unsafe impl OwnedBytes for Last {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
impl Drop for Last {
    fn drop(&mut self) {
        self.1.take().into_iter().for_each(|last| last());
    }
}

#[test]
fn a_drain_ends_when_all_that_has_come_back_can_be_taken() {
    let w = world();
    let far = w.pd.qp::<Rc>(&w.reactor).max_send_wr(1).max_recv_wr(4).build_async(&w.reactor).unwrap();
    let near = w.pd.qp::<Rc>(&w.reactor).max_send_wr(1).max_recv_wr(0).build_async(&w.reactor).unwrap();
    for (one, other) in [(&near, &far), (&far, &near)] {
        one.connect(&other.endpoint(), &ConnectOptions::default()).unwrap();
    }
    w.hold(true);
    far.post_recvs(w.pd.alloc_many(3, 16).unwrap()).unwrap();
    // In the queue of completions that of `w.a` is first. It has the leftovers of `w.a` go, and so runs code in between.
    let mut drain = Box::pin(far.drain().unwrap());
    let woken = Arc::new(Woken::default());
    assert!(poll_by(drain.as_mut(), &woken).is_pending());
    let (tell, told) = std::sync::mpsc::channel();
    let last = Last(vec![0; 8], {
        let far = far.clone();
        Some(Box::new(move || {
            let ended = poll_by(drain.as_mut(), &woken).is_ready();
            let reclaimed = far.try_reclaim().is_some();
            tell.send((ended, reclaimed, drain, woken)).unwrap();
        }))
    });
    drop(w.a.send(w.pd.adopt(last).unwrap()));
    for _ in 0..11 {
        drop(w.a.send(Inline(b"more leftovers")));
    }
    assert!(told.try_recv().is_err(), "there is room for one in four and eight places");
    drop(w.a.try_request(SendRequest::send(w.buf(b"one more"))).unwrap());
    w.a.to_error().unwrap();
    w.release();
    assert!(w.b.try_recv().unwrap().is_none(), "a look, which hands out all that was flushed");
    let (ended, reclaimed, mut drain, woken) = told.recv().unwrap();
    assert_eq!(
        (ended, reclaimed),
        (false, false),
        "nothing was there in between, and the drain did not say so"
    );
    assert!(woken.0.load(SeqCst));
    assert!(matches!(poll_once(drain.as_mut()), Poll::Ready(Ok(()))));
    assert_eq!(std::iter::from_fn(|| far.try_reclaim()).flat_map(Unclaimed::into_bufs).count(), 3);
}

#[test]
fn a_drain_takes_nobodys_place_or_message() {
    let w = world();
    let build = || w.pd.qp::<Rc>(&w.reactor).max_send_wr(1).max_recv_wr(1).build_async(&w.reactor).unwrap();
    let (near, far) = (build(), build());
    near.connect(&far.endpoint(), &ConnectOptions::default()).unwrap();
    far.connect(&near.endpoint(), &ConnectOptions::default()).unwrap();
    far.post_recv(w.pd.alloc(16).unwrap()).unwrap();
    w.hold(true);
    let _last = near.try_request(SendRequest::send(Inline(b"last"))).unwrap();
    let _flushed = far.try_request(SendRequest::send(Inline(b"full"))).unwrap();
    let mut drain = pin!(far.drain().unwrap());
    assert!(poll_once(drain.as_mut()).is_pending());
    let [room, message] = [(); 2].map(|()| Arc::new(Woken::default()));
    let (mut send, mut recv) = (pin!(far.send(Inline(b"wait"))), pin!(far.recv()));
    assert!(poll_by(send.as_mut(), &room).is_pending() && poll_by(recv.as_mut(), &message).is_pending());
    w.release();
    assert!(w.a.try_recv().unwrap().is_none(), "it has all completions handed out");
    assert!(message.0.load(SeqCst), "the message is there for who waits for it");
    assert!(room.0.load(SeqCst), "the place is there for who waits for it");
    let Poll::Ready(Ok(message)) = poll_once(recv) else { panic!("it has come") };
    assert_eq!(*message, *b"last");
    assert!(matches!(poll_once(drain), Poll::Ready(Ok(()))));
}

#[test]
fn who_only_asks_for_room_keeps_nobody_from_it() {
    let w = world();
    w.hold(true);
    let held: Vec<_> = (0..4).map(|_| w.a.try_request(SendRequest::send(w.buf(b"full"))).unwrap()).collect();
    let mut ready = Box::pin(w.a.ready());
    assert!(poll_once(ready.as_mut()).is_pending());
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut refused = Box::pin(w.a.write(w.buf(b"too long"), RemoteMr::default()));
    let mut waiting = Box::pin(w.a.send(w.buf(b"wait")));
    assert!(poll_once(refused.as_mut()).is_ready(), "it is refused before there is room");
    assert!(waiting.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
    drop(held);
    w.release();
    assert!(matches!(poll_once(ready.as_mut()), Poll::Ready(Ok(()))));
    assert!(woken.0.load(SeqCst), "`ready` posts nothing");
    assert!(poll_once(waiting.as_mut()).is_pending(), "the peer has no receive request left");
    assert_eq!(w.a.outstanding().0, 1, "it is posted");
}

/// A task that goes with its last waker, and its futures with it.
struct Sleeping(#[allow(dead_code, reason = "it is there to be dropped")] std::sync::Mutex<Box<dyn Send>>);
impl Wake for Sleeping {
    fn wake(self: Arc<Self>) {}
}

/// Drops, with the last waker of a task, futures of the queue pair that the waker was kept for.
#[test]
fn a_task_that_ends_with_its_waker_may_use_the_same_queue_pair() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for how in ["another task polls it", "it is dropped", "it has what it waited for"] {
            let w = world();
            w.hold(true);
            let asleep = || {
                let futures = (w.b.send(w.buf(b"unposted")), w.b.recv(), w.b.reclaim());
                let task = Sleeping(std::sync::Mutex::new(Box::new(futures)));
                Waker::from(Arc::new(task))
            };
            let sent = |w: &World| w.b.try_request(SendRequest::send(w.buf(b"full"))).unwrap();
            drop(sent(&w)); // for `reclaim`
            let _held = [sent(&w), sent(&w)];
            let in_flight = w.b.send(w.buf(b"in flight"));
            type Any<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;
            let futures: [(&str, Any<'_>); 5] = [
                ("in flight", Box::pin(async { _ = in_flight.await })),
                ("request", Box::pin(async { _ = w.b.send(w.buf(b"no room")).await })),
                ("ready", Box::pin(async { _ = w.b.ready().await })),
                ("recv", Box::pin(async { _ = w.b.recv().await })),
                ("reclaim", Box::pin(async { _ = w.b.reclaim().await })),
            ];
            let mut futures = futures.map(|(what, mut future)| {
                tell.send((what, how)).unwrap();
                assert!(future.as_mut().poll(&mut TaskContext::from_waker(&asleep())).is_pending(), "{what}");
                (what, future)
            });
            match how {
                "it is dropped" => {}
                "another task polls it" => futures.iter_mut().for_each(|(what, future)| {
                    tell.send((*what, how)).unwrap();
                    let _ = poll_once(future.as_mut());
                }),
                _ => {
                    // A look hands all out; the places behind the first, which nobody is woken for, are taken out of turn.
                    w.release();
                    drop(w.a.try_request(SendRequest::send(w.buf(b"one"))).unwrap());
                    drop(w.a.try_recv());
                    for (what, future) in &mut futures {
                        tell.send((*what, how)).unwrap();
                        let _ = poll_once(future.as_mut());
                    }
                }
            }
            for (what, future) in futures {
                tell.send((what, how)).unwrap();
                drop(future);
            }
            let mut drain = Box::pin(w.b.drain().unwrap());
            tell.send(("drain", how)).unwrap();
            let _ = drain.as_mut().poll(&mut TaskContext::from_waker(&asleep()));
            let _ = poll_once(drain.as_mut());
            drop(drain);
        }
    });
    let mut last = None;
    loop {
        match told.recv_timeout(std::time::Duration::from_secs(20)) {
            Ok(at) => last = Some(at),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                panic!("a lock is held while a task ends: {last:?}")
            }
        }
    }
    assert_eq!(last, Some(("drain", "it has what it waited for")));
}
