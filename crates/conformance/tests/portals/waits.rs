//! Futures and descriptors: waiting without a thread of the program's that sleeps in a call.

use std::future::Future;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use portals::v4::{
    AckReq, EqHandle, EventKind, Got, ListKind, MdOptions, Me, MeOptions, Ni, PtOptions, Put, ReturnCode,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::bed::{Bed, MATCHING, PATIENCE, Pair, Pump, Sink, Source, code, id};

struct Unpark(Thread);
impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which sleeps meanwhile.
#[track_caller]
fn block_on<T>(mut future: Pin<&mut impl Future<Output = T>>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let end = Instant::now() + PATIENCE;
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        assert!(Instant::now() < end, "nothing woke the task in {PATIENCE:?}");
        std::thread::park_timeout(PATIENCE);
    }
}
fn is_pending<T>(future: Pin<&mut impl Future<Output = T>>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// A source at A, and a portal at B that takes its puts. Only A is moved by others.
fn one_way(bed: &Bed) -> (Pair, Source, Sink, Pump) {
    let pair = bed.pair(MATCHING);
    let source = Source::new(&pair.a, 8, MdOptions::empty());
    let sink = Sink::new(&pair.b, 8, PtOptions::empty());
    sink.post(&pair.b, MeOptions::OP_PUT);
    let pump = Pump::new(vec![pair.a.node().clone()]);
    (pair, source, sink, pump)
}
fn put(pair: &Pair, source: &Source, sink: &Sink, hdr_data: u64) {
    pair.a.put(&Put { hdr_data, ..Put::new(source.md, 8, id(&pair.b), sink.pt) }).unwrap();
}

pub(crate) fn a_future_yields_the_event_that_its_task_is_woken_for(bed: &Bed) {
    let (pair, source, sink, _pump) = one_way(bed);
    for n in 0..10 {
        let mut next = pin!(pair.b.eq_next(sink.eq));
        assert!(is_pending(next.as_mut()));
        put(&pair, &source, &sink, n);
        let got = block_on(next).unwrap();
        assert_eq!((got.event.kind, got.event.hdr_data), (EventKind::Put, n));
    }
}

pub(crate) fn a_future_that_is_dropped_takes_no_event(bed: &Bed) {
    let (pair, source, sink, _pump) = one_way(bed);
    for n in 0..5 {
        {
            let mut dropped = pin!(pair.b.eq_next(sink.eq));
            assert!(is_pending(dropped.as_mut()));
        }
        put(&pair, &source, &sink, n);
        let got = block_on(pin!(pair.b.eq_next(sink.eq))).unwrap();
        assert_eq!(got.event.hdr_data, n);
    }
    assert_eq!(pair.b.eq_get(sink.eq).unwrap(), None);
}

pub(crate) fn futures_of_several_queues_each_yield_their_own(bed: &Bed) {
    let (pair, source, first, _pump) = one_way(bed);
    let second = Sink::new(&pair.b, 8, PtOptions::empty());
    second.post(&pair.b, MeOptions::OP_PUT);
    let threads: Vec<(u64, EqHandle)> = vec![(1, first.eq), (2, second.eq)];
    std::thread::scope(|scope| {
        let b = &pair.b;
        let waits: Vec<_> = (threads.into_iter())
            .map(|(n, eq)| scope.spawn(move || (n, block_on(pin!(b.eq_next(eq))).unwrap().event.hdr_data)))
            .collect();
        put(&pair, &source, &second, 2);
        put(&pair, &source, &first, 1);
        for wait in waits {
            let (n, came) = wait.join().unwrap();
            assert_eq!(n, came);
        }
    });
}

pub(crate) fn a_future_yields_a_count_that_is_reached(bed: &Bed) {
    let (pair, source, sink, _pump) = one_way(bed);
    let ct = pair.b.ct_alloc().unwrap();
    let counted = Sink::new(&pair.b, 8, PtOptions::empty());
    let me = Me { ct: Some(ct), ..counted.me(MeOptions::OP_PUT | MeOptions::EVENT_CT_COMM) };
    pair.b.me_append(counted.pt, &me, ListKind::Priority, 0).unwrap();
    let mut reached = pin!(pair.b.ct_reached(ct, 20));
    assert!(is_pending(reached.as_mut()));
    for _ in 0..20 {
        let to = Put::new(source.md, 8, id(&pair.b), counted.pt);
        pair.a.put(&Put { ack_req: AckReq::None, ..to }).unwrap();
    }
    assert_eq!(block_on(reached).unwrap().success, 20);
    drop(sink);
}

pub(crate) fn who_awaits_is_told_of_an_abort_and_of_a_queue_that_is_freed(bed: &Bed) {
    let pair = bed.pair(MATCHING);
    let [freed, other] = [4, 4].map(|count| pair.b.eq_alloc(count).unwrap());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| code(block_on(pin!(pair.b.eq_next(freed)))));
        pair.b.eq_free(freed).unwrap();
        assert_eq!(waits.join().unwrap(), ReturnCode::ArgInvalid);
        let waits = scope.spawn(|| code(block_on(pin!(pair.b.eq_next(other)))));
        pair.b.abort();
        assert_eq!(waits.join().unwrap(), ReturnCode::Aborted);
    });
}

/// Takes the next event, asleep on the descriptor of the node.
fn next_by_descriptor(ni: &Ni, eq: EqHandle, signal: &portals::Signal) -> Got {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(got) = ni.eq_get(eq).unwrap() {
            return got;
        }
        signal.arm();
        if let Some(got) = ni.eq_get(eq).unwrap() {
            return got;
        }
        let limit = Timespec::try_from(PATIENCE).unwrap();
        let n = poll(&mut [PollFd::from_borrowed_fd(signal.as_fd(), PollFlags::IN)], Some(&limit));
        assert!(n.unwrap_or(1) > 0 && Instant::now() < end, "nothing woke the loop in {PATIENCE:?}");
    }
}

pub(crate) fn a_descriptor_is_readable_when_there_is_an_event(bed: &Bed) {
    let (pair, source, sink, _pump) = one_way(bed);
    let signal = pair.b.node().signal().unwrap();
    for n in 0..10 {
        put(&pair, &source, &sink, n);
        assert_eq!(next_by_descriptor(&pair.b, sink.eq, &signal).event.hdr_data, n);
    }
    // Another thread takes what came from the device, and the sleeper is told all the same.
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| next_by_descriptor(&pair.b, sink.eq, &signal));
        let _other = Pump::new(vec![pair.b.node().clone()]);
        put(&pair, &source, &sink, 77);
        assert_eq!(sleeper.join().unwrap().event.hdr_data, 77);
    });
}

pub(crate) fn futures_and_the_descriptor_work_on_tokio(bed: &Bed) {
    let (pair, source, sink, _pump) = one_way(bed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        put(&pair, &source, &sink, 1);
        let got = tokio::time::timeout(PATIENCE, pair.b.eq_next(sink.eq)).await.expect("in time").unwrap();
        assert_eq!(got.event.hdr_data, 1);
        #[allow(deprecated)] // the descriptor is that of the signal, and stays open as long
        let signal = tokio::io::unix::AsyncFd::new(pair.b.node().signal().unwrap()).unwrap();
        put(&pair, &source, &sink, 2);
        let got = loop {
            signal.get_ref().arm();
            if let Some(got) = pair.b.eq_get(sink.eq).unwrap() {
                break got;
            }
            tokio::time::timeout(PATIENCE, signal.readable()).await.expect("in time").unwrap().clear_ready();
            // The runtime hears of edges only: what is readable still is looked at before it sleeps.
            if let Some(got) = pair.b.eq_get(sink.eq).unwrap() {
                break got;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(got.event.hdr_data, 2);
    });
}
