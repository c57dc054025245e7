//! Signals and futures, on adapters of one process.

use std::future::Future;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::{Pin, pin};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context as TaskContext, Poll, Wake, Waker};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_support::waiting::ends;
use test_support::wakers;

use super::waits::{nodes, waiters};
use super::*;
use crate::node::{ARMED, Signal};
use crate::v4::{CtEvent, Got};

/// For how long what has to come is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
const ONE: CtEvent = CtEvent { success: 1, failure: 0 };

/// Whether a descriptor is readable, or gets so in time.
fn is_readable(fd: &impl AsFd, within: Duration) -> bool {
    let within = Timespec::try_from(within).unwrap();
    poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)], Some(&within)).unwrap() > 0
}

/// Arms a signal of a node that has nothing to do; what came before it may be told, too.
fn arm(signal: &Signal, node: &Node) {
    for _ in 0..100 {
        node.with(|state| state.progress() | state.run_timers());
        signal.arm();
        if !is_readable(signal, Duration::ZERO) {
            return;
        }
    }
    panic!("it tells for ever, and nothing comes");
}

/// Tells a channel that it was woken.
struct Tells(Mutex<Sender<()>>);
impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
    }
}
fn waker() -> (Waker, Receiver<()>) {
    let (tells, told) = channel();
    (Waker::from(Arc::new(Tells(Mutex::new(tells)))), told)
}
fn poll_by<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut TaskContext::from_waker(waker))
}

/// A queue of events of puts, and a put that makes one.
fn put_to(b: &Node) -> (Ni, crate::v4::EqHandle, Process) {
    let (ni, ..) = interface(b);
    let eq = ni.eq_alloc(8).unwrap();
    ni.pt_alloc(PtOptions::empty(), Some(eq), Some(0)).unwrap();
    let options = MeOptions::OP_PUT | MeOptions::EVENT_LINK_DISABLE;
    let me = Me { options, ..Me::new(b.alloc(64).unwrap()) };
    ni.me_append(0, &me, ListKind::Priority, 0).unwrap();
    (ni, eq, Process::physical(b.card().nid, b.card().pid))
}

#[test]
fn a_signal_tells_once_of_what_comes_behind_its_arming() {
    let [node, _] = nodes(|o| o);
    let (ni, _, ct) = interface(&node);
    let signals = [(); 2].map(|()| node.signal().unwrap());
    assert_eq!(signals[0].as_raw_fd(), signals[0].as_fd().as_raw_fd());
    ni.ct_inc(ct, ONE).unwrap();
    assert!(!is_readable(&signals[0], Duration::ZERO), "nobody has armed it");
    arm(&signals[0], &node);
    assert_eq!(waiters(&node), ARMED);
    ni.ct_inc(ct, ONE).unwrap();
    assert!(signals.iter().all(|signal| is_readable(signal, PATIENCE)), "all of a node's are told");
    assert_eq!(waiters(&node), 0, "it has to be armed anew");
    arm(&signals[0], &node);
    assert!(is_readable(&signals[1], Duration::ZERO), "the other has not heard of it");
    // The waker of the completion queue, in both ways to call it.
    let waker = Waker::from(Arc::new(crate::node::signal::WakeAll(Arc::downgrade(&node.inner))));
    waker.wake_by_ref();
    assert!(is_readable(&signals[0], PATIENCE));
    arm(&signals[0], &node);
    waker.wake();
    assert!(is_readable(&signals[0], PATIENCE));
    assert!(format!("{:?}", signals[0]).contains("Signal"));
}

#[test]
fn a_signal_leads_a_loop_to_what_has_come() {
    let [a, b] = nodes(|o| o);
    let (ni, md, _) = interface(&a);
    let (there, eq, to) = put_to(&b);
    let signal = b.signal().unwrap();
    thread::scope(|scope| {
        let hears = scope.spawn(|| {
            loop {
                if let Some(got) = there.eq_get(eq).unwrap() {
                    return got.event.hdr_data;
                }
                signal.arm();
                if let Some(got) = there.eq_get(eq).unwrap() {
                    return got.event.hdr_data;
                }
                assert!(is_readable(&signal, PATIENCE), "nothing tells of it");
            }
        });
        ni.put(&Put { hdr_data: 6, ack_req: AckReq::None, ..Put::new(md, 8, to, 0) }).unwrap();
        // The other node's hello has its answer by this one's turns.
        while !hears.is_finished() {
            a.with(|state| state.progress() | state.run_timers());
            thread::yield_now();
        }
        assert_eq!(hears.join().unwrap(), 6);
    });
}

#[test]
fn a_signal_is_due_when_its_node_is() {
    let [node, _] = nodes(|o| o);
    let signal = node.signal().unwrap();
    arm(&signal, &node);
    let in_5_ms = node.inner.clock.now() + Duration::from_millis(5);
    node.with(|state| state.timer = Some(in_5_ms));
    signal.arm();
    assert!(is_readable(&signal, PATIENCE));
    assert!(node.inner.clock.now() >= in_5_ms);
}

#[test]
fn signals_that_come_and_go_leave_nothing_where_nothing_is_told() {
    let [node, _] = nodes(|o| o);
    for _ in 0..100 {
        drop(node.signal().unwrap());
    }
    let kept = node.signal().unwrap();
    assert_eq!(node.inner.signals.lock().unwrap().len(), 1);
    arm(&kept, &node);
    node.inner.tell_signals();
    assert!(is_readable(&kept, PATIENCE), "the last of many is told, too");
}

/// The states of the threads that wake futures, in this process: `S` of one that sleeps.
fn threads_that_wake() -> Vec<char> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    // The state follows the name, which is in parentheses.
    stats.filter_map(|stat| stat.split_once("(portals-wake) ")?.1.chars().next()).collect()
}

/// In one test, as they count the threads of the process.
#[test]
fn futures_are_woken_by_a_thread_that_their_node_has_while_it_is_there() {
    let [a, b] = nodes(|o| o);
    let (ni, md, _) = interface(&a);
    let (there, eq, to) = put_to(&b);
    let ct = there.ct_alloc().unwrap();
    let threads = |count| {
        while threads_that_wake().len() != count {
            thread::yield_now();
        }
    };
    threads(0);
    {
        let [(first, first_told), (second, second_told)] = [(); 2].map(|()| waker());
        let (mut once, mut twice) = (pin!(there.ct_reached(ct, 1)), pin!(there.ct_reached(ct, 2)));
        // Completions from before the call may wake them; then they sleep.
        for looks in 0.. {
            assert!(looks < 100, "they are woken for ever, and nothing comes");
            assert!(poll_by(once.as_mut(), &first).is_pending());
            assert!(poll_by(twice.as_mut(), &second).is_pending());
            while threads_that_wake() != ['S'] {
                thread::yield_now();
            }
            if !(first_told.try_recv().is_ok() | second_told.try_recv().is_ok()) {
                break;
            }
        }
        there.ct_inc(ct, ONE).unwrap();
        first_told.recv_timeout(PATIENCE).expect("it is woken");
        second_told.recv_timeout(PATIENCE).expect("so is the other, which may ask again");
        let Poll::Ready(Ok(count)) = poll_by(once, &first) else { panic!("it is reached") };
        assert_eq!(count.success, 1);
        assert!(poll_by(twice.as_mut(), &second).is_pending());
        there.ct_inc(ct, ONE).unwrap();
        second_told.recv_timeout(PATIENCE).expect("it is woken");
        assert!(poll_by(twice, &second).is_ready());
    }
    // Messages over the network wake as well.
    {
        let (waker, told) = waker();
        let mut next = pin!(there.eq_next(eq));
        assert!(poll_by(next.as_mut(), &waker).is_pending());
        ni.put(&Put { hdr_data: 7, ack_req: AckReq::None, ..Put::new(md, 8, to, 0) }).unwrap();
        let got: Got = loop {
            a.with(|state| state.progress() | state.run_timers());
            if told.try_recv().is_ok()
                && let Poll::Ready(got) = poll_by(next.as_mut(), &waker)
            {
                break got.unwrap();
            }
            thread::yield_now();
        };
        assert_eq!(got.event.hdr_data, 7);
    }
    may_wait_while_its_waker_is_cloned_and_dropped(&b);
    drop((there, b));
    threads(0);
}

/// A task whose waker's clone and drop wait for the node, too.
fn may_wait_while_its_waker_is_cloned_and_dropped(node: &Node) {
    fn look(node: &Node, waker: &Waker) {
        let looked = node.poll_ready(&mut TaskContext::from_waker(waker), |_| Ok(None::<()>));
        assert!(looked.is_pending());
    }
    // The node keeps the waker, and the waker does not keep the node.
    let (node, waits) = (node.clone(), Arc::downgrade(&node.inner));
    ends("wakers are registered", move || {
        let waits = move || waits.upgrade().map(|inner| Node { inner });
        let waker = wakers::running(move || _ = waits().map(|node| look(&node, Waker::noop())));
        (0..2).for_each(|_| look(&node, &waker));
    });
}
