//! Completion queues: overrun, notification, waiting, and their life.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Duration;

use hca_core::{
    AsyncEvent, DeviceError, Notify, QpCap, QpState, RemoteAddr, Rkey, SendFlags, SendOp, SendWr, WcStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::node::{Cq, Node};
use crate::qp::{Conn, Pair, Qp, connect, qp_init, wr};
use crate::{Bed, Feature};

/// Counts how often it was woken.
#[derive(Default)]
pub(crate) struct Bell(AtomicUsize);
impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}
impl Bell {
    pub(crate) fn on(cq: &Cq) -> Arc<Self> {
        let bell = Arc::new(Self::default());
        cq.set_waker(&Waker::from(bell.clone()));
        bell
    }
    pub(crate) fn rung(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// Blocks on the queue's descriptor until there is a completion, as a program does that has nothing
/// else to do; calls no other adapter.
pub(crate) fn block_for_completion(cq: &Cq, patience: Duration) -> hca_core::Completion {
    let start = std::time::Instant::now();
    loop {
        if let Some(c) = cq.try_next() {
            return c;
        }
        cq.arm(Notify::Any);
        if let Some(c) = cq.try_next() {
            return c;
        }
        assert!(start.elapsed() < patience, "blocked in vain\n{}", cq.world.report());
        let fd = cq
            .with_port(|p| p.wait_fd().map(|fd| fd.try_clone_to_owned().expect("a descriptor")))
            .expect("a descriptor to wait on");
        let limit = Timespec::try_from(patience).unwrap();
        let n = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap_or(1);
        assert!(n > 0, "nothing woke the waiter in {patience:?}\n{}", cq.world.report());
    }
}

pub(crate) fn an_overrun_is_an_event_and_puts_queue_pairs_in_error(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let cap = QpCap { max_send_wr: 512, ..QpCap::default() };
    let conn = Conn { cap, ..Conn::default() };
    let small = a.cq(4);
    let (qa, other) = (a.qp_on(&conn, &small, &a.cq(64), None), a.qp_on(&conn, &small, &a.cq(64), None));
    let (qb, ob) = (b.qp(&conn), b.qp(&conn));
    connect(&conn, &qa, &qb);
    connect(&conn, &other, &ob);
    let healthy = Pair::between(&a, &b, Conn::default());
    for id in 0..512 {
        qa.send(id, SendOp::Write(healthy.mb.remote(0)), &[healthy.ma.sge(0, 8)]);
    }
    a.wait_event(AsyncEvent::CqOverrun(small.handle));
    qa.wait_state(QpState::Error);
    other.wait_state(QpState::Error);
    healthy.assert_works();
    a.world.settle();
    assert_eq!(a.count_events(AsyncEvent::CqOverrun(small.handle)), 1);
    // What was in the queue is still there.
    for id in 0..4 {
        small.ok(id);
    }
}

pub(crate) fn a_completion_queue_holds_its_depth(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let cap = QpCap { max_send_wr: 100, ..QpCap::default() };
    let p = Pair::between(&a, &b, Conn { cap, cq_depth: 100, ..Conn::default() });
    for id in 0..100 {
        p.a.send(id, SendOp::Write(p.mb.remote(0)), &[p.ma.sge(0, 8)]);
    }
    // Without a look at the queue until all are done.
    p.settle();
    p.a.send_cq.all_end(0..100, WcStatus::Success);
    assert_eq!(a.events(), []);
}

pub(crate) fn one_arming_notifies_once(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let bell = Bell::on(&p.b.recv_cq);
    for id in 0..4 {
        p.b.recv(id, &[p.mb.sge(0, 8)]);
    }
    let send = |id| {
        p.a.send(id, SendOp::Send, &[p.ma.sge(0, 8)]);
        p.a.send_cq.ok(id);
        p.settle();
    };
    send(0);
    assert_eq!(bell.rung(), 0, "not armed");
    p.b.recv_cq.ok(0);
    p.b.recv_cq.arm(Notify::Any);
    p.settle();
    assert_eq!(bell.rung(), 0, "armed, but nothing came");
    send(1);
    p.a.node.world.wait("the notification", || (bell.rung() == 1).then_some(()));
    send(2);
    assert_eq!(bell.rung(), 1, "armed once");
    p.b.recv_cq.all_end(1..3, WcStatus::Success);
    p.b.recv_cq.arm(Notify::Any);
    send(3);
    p.a.node.world.wait("the notification", || (bell.rung() == 2).then_some(()));
}

pub(crate) fn arming_for_solicited_passes_over_others(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let bell = Bell::on(&p.b.recv_cq);
    for id in 0..4 {
        p.b.recv(id, &[p.mb.sge(0, 8)]);
    }
    p.b.recv_cq.arm(Notify::Solicited);
    p.a.send(0, SendOp::Send, &[p.ma.sge(0, 8)]);
    p.a.send_cq.ok(0);
    p.settle();
    assert_eq!(bell.rung(), 0);
    let sge = [p.ma.sge(0, 8)];
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    p.a.try_send(&[SendWr { flags, ..wr(1, SendOp::Send, &sge) }]).unwrap();
    p.a.node.world.wait("the notification", || (bell.rung() == 1).then_some(()));
    p.b.recv_cq.all_end(0..2, WcStatus::Success);
    // An error notifies as well.
    p.b.recv_cq.arm(Notify::Solicited);
    p.b.go(QpState::Error);
    p.a.node.world.wait("the notification", || (bell.rung() == 2).then_some(()));
}

pub(crate) fn arming_for_any_overrides_arming_for_solicited(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let bell = Bell::on(&p.b.recv_cq);
    p.b.recv(0, &[p.mb.sge(0, 8)]);
    p.b.recv_cq.arm(Notify::Any);
    p.b.recv_cq.arm(Notify::Solicited);
    p.a.send(0, SendOp::Send, &[p.ma.sge(0, 8)]);
    p.a.node.world.wait("the notification", || (bell.rung() == 1).then_some(()));
}

pub(crate) fn the_descriptor_is_readable_when_a_completion_waits(bed: &dyn Bed) {
    if !bed.can(Feature::WaitFd) {
        return;
    }
    const N: u64 = 20;
    let p = Pair::rc(bed);
    let patience = bed.patience();
    let done = AtomicUsize::new(0);
    // Who is through goes on turning, so that the other gets what the network lost.
    let until_both_are_done = |qp: &Qp| {
        done.fetch_add(1, Ordering::AcqRel);
        qp.node.world.wait_idle("the other side", || {
            qp.node.dev().turn();
            (done.load(Ordering::Acquire) == 2).then_some(())
        });
    };
    for id in 0..N {
        p.a.recv(id, &[p.ma.sge(0, 8)]);
        p.b.recv(id, &[p.mb.sge(0, 8)]);
    }
    std::thread::scope(|s| {
        s.spawn(|| {
            for id in 0..N {
                let c = block_for_completion(&p.b.recv_cq, patience);
                assert_eq!((c.wr_id, c.status), (id, WcStatus::Success));
                p.b.send(id, SendOp::Send, &[p.mb.sge(0, 8)]);
            }
            until_both_are_done(&p.b);
        });
        for id in 0..N {
            p.a.send(id, SendOp::Send, &[p.ma.sge(0, 8)]);
            let c = block_for_completion(&p.a.recv_cq, patience);
            assert_eq!((c.wr_id, c.status), (id, WcStatus::Success));
        }
        until_both_are_done(&p.a);
    });
}

pub(crate) fn a_blocked_waiter_misses_nothing(bed: &dyn Bed) {
    if !bed.can(Feature::WaitFd) {
        return;
    }
    const N: u64 = 200;
    let cap = QpCap { max_recv_wr: 256, ..QpCap::default() };
    let p = Pair::new(bed, Conn { cap, ..Conn::default() });
    for id in 0..N {
        p.b.recv(id, &[p.mb.sge(0, 8)]);
    }
    std::thread::scope(|s| {
        let sender = s.spawn(|| {
            for id in 0..N {
                p.a.send(id, SendOp::Send, &[p.ma.sge(0, 8)]);
                // Bursts of changing length, so that some arrive between the look and the arming.
                if id % 7 == 0 || id % 11 == 3 || id + 1 == N {
                    p.a.node
                        .world
                        .wait_idle("a completion", || p.a.send_cq.try_next().filter(|c| c.wr_id == id));
                }
            }
        });
        for id in 0..N {
            let c = block_for_completion(&p.b.recv_cq, bed.patience());
            assert_eq!((c.wr_id, c.status), (id, WcStatus::Success));
        }
        // The receiver goes on turning until its last acknowledgements have arrived.
        while !sender.is_finished() {
            p.b.node.dev().turn();
            std::thread::yield_now();
        }
    });
}

pub(crate) fn a_queue_in_use_is_not_destroyed(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let (send_cq, recv_cq) = (node.cq(16), node.cq(16));
    let qp = node.qp_on(&Conn::default(), &send_cq, &recv_cq, None);
    for cq in [&send_cq, &recv_cq] {
        let r = cq.destroy();
        assert!(matches!(r, Err(DeviceError::InUse { .. })), "{r:?}");
    }
    drop(qp);
    for cq in [&send_cq, &recv_cq] {
        cq.destroy().unwrap();
        let r = cq.destroy();
        assert!(matches!(r, Err(DeviceError::UnknownHandle { .. })), "{r:?}");
    }
}

pub(crate) fn completions_of_a_destroyed_queue_pair_are_not_returned(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let conn = Conn::default();
    let cq = a.cq(256);
    let gone = a.qp_on(&conn, &cq, &cq, None);
    let stays = a.qp_on(&conn, &cq, &cq, None);
    let (b1, b2) = (b.qp(&conn), b.qp(&conn));
    connect(&conn, &gone, &b1);
    connect(&conn, &stays, &b2);
    let (ma, mb) = (a.mem(4096, crate::qp::ALL), b.mem(4096, crate::qp::ALL));
    for id in 0..20 {
        gone.send(id, SendOp::Write(mb.remote(0)), &[ma.sge(0, 8)]);
        stays.send(id + 100, SendOp::Write(mb.remote(8)), &[ma.sge(0, 8)]);
    }
    // Wait without polling: the last WRITE's effect, then the acknowledgements.
    a.world.settle();
    gone.go(QpState::Error);
    a.dev().destroy_qp(gone.handle).unwrap();
    for id in 100..120 {
        assert_eq!(cq.ok(id).qp, stays.handle);
    }
    cq.stays_empty();
}

pub(crate) fn completions_of_queue_pairs_that_are_gone_hold_no_entries(bed: &dyn Bed) {
    const DEPTH: u32 = 24;
    const ROUNDS: u64 = 6;
    let [a, b] = Node::open(bed);
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 1, ..QpCap::default() };
    let conn = Conn { cap, ..Conn::default() };
    let cq = a.cq(DEPTH);
    let stays = a.qp_on(&conn, &cq, &cq, None);
    let far = b.qp(&conn);
    connect(&conn, &stays, &far);
    let (ma, mb) = (a.mem(4096, crate::qp::ALL), b.mem(4096, crate::qp::ALL));
    let write = |qp: &Qp, id, at| qp.send(id, SendOp::Write(mb.remote(at)), &[ma.sge(0, 8)]);
    for round in 0..ROUNDS {
        let (gone, far) = (a.qp_on(&conn, &cq, &cq, None), b.qp(&conn));
        connect(&conn, &gone, &far);
        for id in 0..8 {
            write(&gone, id, 0);
        }
        // What others left stands between, and keeps its order.
        a.world.settle();
        write(&stays, 100 + round, 8);
        a.world.settle();
        for id in 8..16 {
            write(&gone, id, 0);
        }
        // Nobody polls meanwhile.
        a.world.settle();
        if round % 2 == 1 {
            gone.go(QpState::Reset);
        }
        gone.destroy().unwrap();
    }
    assert_eq!(a.count_events(AsyncEvent::CqOverrun(cq.handle)), 0);
    for id in 100..100 + ROUNDS {
        assert_eq!(cq.ok(id).qp, stays.handle);
    }
    cq.stays_empty();
    write(&stays, 200, 8);
    cq.ok(200);
}

pub(crate) fn a_queue_may_serve_several_queue_pairs_and_both_directions(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    let conn = Conn::default();
    let (ca, cb) = (a.cq(256), b.cq(256));
    let (ma, mb) = (a.mem(4096, crate::qp::ALL), b.mem(4096, crate::qp::ALL));
    let pairs: Vec<_> = (0..4)
        .map(|_| {
            let (x, y) = (a.qp_on(&conn, &ca, &ca, None), b.qp_on(&conn, &cb, &cb, None));
            connect(&conn, &x, &y);
            (x, y)
        })
        .collect();
    for (i, (x, y)) in pairs.iter().enumerate() {
        y.recv(i as u64, &[mb.sge(0, 64)]);
        x.send(i as u64 + 50, SendOp::Send, &[ma.sge(0, 64)]);
    }
    for (cq, base) in [(&cb, 0), (&ca, 50)] {
        let mut seen = [false; 4];
        for c in cq.take(4) {
            let i = (c.wr_id - base) as usize;
            let qp = if base == 0 { &pairs[i].1 } else { &pairs[i].0 };
            assert_eq!((c.qp, c.status), (qp.handle, WcStatus::Success));
            assert!(!core::mem::replace(&mut seen[i], true));
        }
    }
}

pub(crate) fn depths_out_of_range_are_refused(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let max = node.dev().attr().max_cqe;
    for depth in [0, max + 1] {
        let r = node.dev().create_cq(depth);
        assert!(matches!(r, Err(DeviceError::OutOfRange { .. })), "{depth}: {:?}", r.err());
    }
    drop(node.cq(max.min(1 << 17)));
    drop(node.cq(1));
}

pub(crate) fn a_stale_queue_is_refused_to_queue_pairs(bed: &dyn Bed) {
    let [node] = Node::open(bed);
    let (gone, good) = (node.cq(16), node.cq(16));
    gone.destroy().unwrap();
    let _reuses_the_slot = node.cq(16);
    let conn = Conn::default();
    for (s, r) in [(&gone, &good), (&good, &gone)] {
        let r = node.dev().create_qp(node.pd.handle, &qp_init(&conn, s, r, None));
        assert!(matches!(r, Err(DeviceError::UnknownHandle { .. })), "{:?}", r.err());
    }
}

pub(crate) fn events_wake_who_waits_for_them(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let bell = Arc::new(Bell::default());
    p.a.node.dev().set_event_waker(&Waker::from(bell.clone()));
    let there = p.ma.remote(0);
    let wrong = RemoteAddr { rkey: Rkey::new(!there.rkey.raw()), ..there };
    p.b.send(1, SendOp::Write(wrong), &[p.mb.sge(0, 8)]);
    p.a.node.world.wait("the waker", || (bell.rung() > 0).then_some(()));
    p.a.wait_event(AsyncEvent::QpAccessError);
}

pub(crate) fn a_waker_may_poll_and_arm_again(bed: &dyn Bed) {
    /// Notes that work is there; what a reactor does in its waker.
    struct Note(Mutex<u32>);
    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            *self.0.lock().unwrap() += 1;
        }
    }
    let p = Pair::rc(bed);
    let note = Arc::new(Note(Mutex::new(0)));
    p.b.recv_cq.set_waker(&Waker::from(note.clone()));
    for id in 0..10_u64 {
        p.b.recv(id, &[p.mb.sge(0, 8)]);
        p.b.recv_cq.arm(Notify::Any);
        p.a.send(id, SendOp::Send, &[p.ma.sge(0, 8)]);
        p.a.node.world.wait("the waker", || (*note.0.lock().unwrap() as u64 == id + 1).then_some(()));
        p.b.recv_cq.ok(id);
    }
}
