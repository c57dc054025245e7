//! Waiting, on adapters of one process with the descriptors that programs use.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hca_core::OffloadEngine;
use hca_fabric::LoopbackNet;
use rustix::io::{FdFlags, fcntl_getfd, read};
use softhca::{Options, Progress, SoftHca};

use super::*;
use crate::Error;
use crate::v4::{CtEvent, ReturnCode};

/// Two nodes, which the program moves.
pub(super) fn nodes(with: impl Fn(NodeOptions) -> NodeOptions) -> [Node; 2] {
    let net = LoopbackNet::new();
    let cards = Arc::new(Mutex::new(Listed::default()));
    [1, 2].map(|n| {
        let fabric = Box::new(net.attach(Ipv4Addr::new(10, 0, 0, n).into()));
        let options = Options { progress: Progress::Inline, ..Options::default() };
        let context = Context::new(SoftHca::open(fabric, options).unwrap());
        let options = NodeOptions {
            eager_bytes: EAGER,
            offload: false,
            rank: Some(Rank(u32::from(n) - 1)),
            directory: cards.clone(),
            ..NodeOptions::default()
        };
        let node = Node::open(&context, with(options)).unwrap();
        cards.lock().unwrap().0.push(node.card());
        node
    })
}

/// Returns when so many waits have begun to sleep.
fn sleeps(node: &Node, count: u64) {
    while node.sleeps() < count {
        thread::yield_now();
    }
}

pub(super) fn waiters(node: &Node) -> u32 {
    node.with(|state| state.waiters)
}

#[test]
fn a_wait_ends_with_its_time_and_not_before() {
    let [node, _] = nodes(|o| o);
    let (ni, ..) = interface(&node);
    let eq = ni.eq_alloc(4).unwrap();
    for ms in [0, 1, 30] {
        let (began, timeout) = (std::time::Instant::now(), Duration::from_millis(ms));
        assert_eq!(ni.eq_poll(&[eq], Some(timeout)).unwrap(), None);
        assert!(began.elapsed() >= timeout);
    }
    assert!(node.sleeps() > 0, "30 ms are not spent spinning");
    assert_eq!(waiters(&node), 0);
}

#[test]
fn who_waits_moves_its_node() {
    let [a, b] = nodes(|o| o);
    let (ni, md, ct) = interface(&a);
    let (there, ..) = interface(&b);
    let eq = there.eq_alloc(8).unwrap();
    there.pt_alloc(PtOptions::empty(), Some(eq), Some(0)).unwrap();
    let options = MeOptions::OP_PUT | MeOptions::EVENT_LINK_DISABLE;
    let me = Me { options, ..Me::new(b.alloc(64).unwrap()) };
    there.me_append(0, &me, ListKind::Priority, 0).unwrap();
    let to = Process::physical(b.card().nid, b.card().pid);
    thread::scope(|scope| {
        let waits = scope.spawn(|| there.eq_wait(eq).unwrap().event.hdr_data);
        sleeps(&b, 1);
        ni.put(&Put { hdr_data: 5, ack_req: AckReq::Ack, ..Put::new(md, 8, to, 0) }).unwrap();
        let count = ni.ct_wait(ct, 1);
        assert_eq!((waits.join().unwrap(), count.unwrap().success), (5, 1));
    });
    assert_eq!((waiters(&a), waiters(&b)), (0, 0));
}

#[test]
fn who_sleeps_is_woken_by_what_another_thread_does() {
    let [node, _] = nodes(|o| o);
    let (ni, _, ct) = interface(&node);
    assert_eq!(node.sleeps(), 0);
    thread::scope(|scope| {
        let waits = [(); 2].map(|()| scope.spawn(|| ni.ct_wait(ct, 1).unwrap().success));
        sleeps(&node, 2);
        ni.ct_inc(ct, CtEvent { success: 1, failure: 0 }).unwrap();
        assert_eq!(waits.map(|waits| waits.join().unwrap()), [1, 1]);
    });
    thread::scope(|scope| {
        let before = node.sleeps();
        let waits = scope.spawn(|| ni.ct_wait(ct, 2).unwrap_err().code());
        sleeps(&node, before + 1);
        ni.abort();
        assert_eq!(waits.join().unwrap(), ReturnCode::Aborted);
    });
    assert_eq!(waiters(&node), 0);
}

#[test]
fn who_waits_hears_that_the_device_has_failed() {
    let [node, _] = nodes(|o| o);
    let (ni, _, ct) = interface(&node);
    let (tell, told) = std::sync::mpsc::channel();
    let waits = {
        let ni = ni.clone();
        thread::spawn(move || tell.send(ni.ct_wait(ct, 1).map_err(|e| e.code())).unwrap())
    };
    sleeps(&node, 1);
    node.with(|state| state.device_failed(&"it is gone"));
    let result = told.recv_timeout(Duration::from_secs(10)).expect("the wait goes on");
    assert_eq!(result, Err(ReturnCode::Fail));
    waits.join().unwrap();
    assert_eq!(ni.ct_wait(ct, 1).unwrap_err().code(), ReturnCode::Fail);
    // A count that is there is told.
    ni.ct_inc(ct, CtEvent { success: 1, failure: 0 }).unwrap();
    assert_eq!(ni.ct_wait(ct, 1).unwrap().success, 1);
    assert_eq!(waiters(&node), 0);
}

/// An operation of the one and one of the other are under way to a node whose program computes.
#[test]
fn an_interface_that_is_closed_leaves_others_their_connections() {
    let [a, b] = nodes(|o| o);
    let kinds = [NiOptions::MATCHING, NiOptions::NO_MATCHING].map(|kind| kind | NiOptions::PHYSICAL);
    let [(closed, md, ct), (stays, its_md, its_ct)] = kinds.map(|kind| interface_of(&a, kind));
    let _there = kinds.map(|kind| interface_of(&b, kind));
    let to = Process::physical(b.card().nid, b.card().pid);
    // Both have met.
    closed.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8, to, 0) }).unwrap();
    while closed.ct_get(ct).unwrap() == CtEvent::default() {
        b.progress();
    }
    for (ni, md) in [(&closed, md), (&stays, its_md)] {
        ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8, to, 0) }).unwrap();
    }
    let lost = a.counts().lost;
    thread::scope(|scope| {
        let before = a.sleeps();
        let closes = scope.spawn(|| drop(closed));
        while a.sleeps() == before && !closes.is_finished() {
            thread::yield_now();
        }
        while stays.ct_get(its_ct).unwrap() == CtEvent::default() {
            b.progress();
        }
    });
    assert_eq!(a.counts().lost, lost, "the connection");
}

/// A word for each waiter.
#[test]
fn all_waiters_are_woken_once() {
    let [node, _] = nodes(|o| o);
    let fds = node.inner.fds().unwrap();
    for fd in [&fds.queue, &fds.found] {
        assert!(fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC));
    }
    let words = || (0..).take_while(|_| read(&fds.found, &mut [0; 8]).is_ok()).count();
    // The word is left when the lock is given back.
    let has = |waiters, found| node.with(|state| (state.waiters, state.found) = (waiters, found));
    has(3, true);
    assert_eq!(words(), 3);
    has(2, true);
    for _ in 0..3 {
        node.with(|state| state.found = true);
    }
    assert_eq!(words(), 2, "they have not looked since they were called");
    has(3, false);
    assert_eq!(words(), 0, "they know");
    has(0, true);
    assert_eq!(words(), 0, "nobody waits");
    node.with(|state| (state.waiters, state.found) = (0, false));
    // By the device's run.
    let mut state = node.inner.state.lock();
    (state.waiters, state.found) = (2, true);
    assert!(!state.unlock());
    node.inner.run();
    assert_eq!(words(), 2);
    node.inner.wake_all();
    assert_eq!(words(), 0, "they were called");
    has(2, false);
    node.inner.wake_all();
    assert_eq!(words(), 2);
    has(0, false);
    node.inner.wake_all();
    assert_eq!(words(), 0);
}

#[test]
fn a_wait_that_fails_as_it_is_to_sleep_is_none_any_more() {
    let [node, _] = nodes(|o| o);
    let result = node.wait(None, |state| match state.waiters {
        0 => Ok(None::<()>),
        _ => Err(Error::Device),
    });
    assert!(matches!(result, Err(Error::Device)));
    assert_eq!((waiters(&node), node.sleeps()), (0, 0));
}

/// The adapter says for how long it is looked at before it is slept on.
#[test]
fn a_wait_looks_for_a_while_before_it_sleeps() {
    let looks = Arc::new(AtomicU64::new(0));
    let time = Arc::new(AtomicU64::new(0));
    let [node, _] = nodes(|o| {
        let (looks, time) = (Arc::clone(&looks), Arc::clone(&time));
        let clock = move || {
            looks.fetch_add(1, Relaxed);
            Duration::from_millis(time.load(Relaxed))
        };
        NodeOptions { clock: Some(Arc::new(clock)), ..o }
    });
    let (ni, _, ct) = interface(&node);
    thread::scope(|scope| {
        let waits = scope.spawn(|| ni.ct_wait(ct, 1).unwrap());
        let before = looks.load(Relaxed);
        while looks.load(Relaxed) < before + 100 {
            assert_eq!(node.sleeps(), 0, "no time has passed");
            thread::yield_now();
        }
        time.store(60_000, Relaxed);
        sleeps(&node, 1);
        ni.ct_inc(ct, CtEvent { success: 1, failure: 0 }).unwrap();
        waits.join().unwrap();
    });
}
