//! Progress of an adapter while its program computes, waits or sleeps.

use core::sync::atomic::Ordering::{Acquire, Release};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use hca_core::{AtomicScope, Completion, Notify, SendOp, WcStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::checks::cq::block_for_completion;
use crate::mem::{Mem, pattern};
use crate::node::Node;
use crate::qp::{Conn, Pair, Qp};
use crate::{Bed, Feature};

pub(crate) fn one_sided_operations_need_nothing_of_the_targets_program(bed: &dyn Bed) {
    if !bed.can(Feature::Passive) {
        return;
    }
    let p = Pair::rc(bed);
    let bytes = pattern(1, 5000);
    p.ma.write(0, &bytes);
    // From here on only A's queue is polled.
    p.a.send(1, SendOp::Write(p.mb.remote(0)), &[p.ma.sge(0, 5000)]);
    assert_eq!(p.a.send_cq.next_alone().status, WcStatus::Success);
    p.mb.assert_bytes(0, &bytes);
    p.a.send(2, SendOp::Read(p.mb.remote(0)), &[p.ma.sge(8192, 5000)]);
    assert_eq!(p.a.send_cq.next_alone().status, WcStatus::Success);
    p.ma.assert_bytes(8192, &bytes);
    if p.b.node.dev().attr().atomics != AtomicScope::None {
        p.a.send(3, SendOp::FetchAdd { remote: p.mb.remote(8000), add: 7 }, &[p.ma.sge(0, 8)]);
        assert_eq!(p.a.send_cq.next_alone().status, WcStatus::Success);
        assert_eq!(p.mb.word(8000).load(Acquire), 7);
    }
    p.b.recv(4, &[p.mb.sge(0, 100)]);
    p.a.send(4, SendOp::Send, &[p.ma.sge(0, 100)]);
    assert_eq!(p.a.send_cq.next_alone().status, WcStatus::Success);
    assert_eq!(p.b.recv_cq.next_alone().status, WcStatus::Success);
}

pub(crate) fn a_posted_write_lands_though_nobody_polls(bed: &dyn Bed) {
    if !bed.can(Feature::Passive) {
        return;
    }
    let p = Pair::rc(bed);
    for round in 1..4 {
        p.ma.word(0).store(round, Release);
        p.a.send(round, SendOp::Write(p.mb.remote(4096)), &[p.ma.sge(0, 8)]);
        p.a.node.world.wait_idle("the word", || (p.mb.word(4096).load(Acquire) == round).then_some(()));
    }
    // Longer than a send window, so that acknowledgements have to move it on.
    let long = Pair::between(&p.a.node, &p.b.node, Conn { mem_bytes: 1 << 20, ..Conn::default() });
    long.ma.word((1 << 20) - 8).store(9, Release);
    long.a.send(1, SendOp::Write(long.mb.remote(0)), &[long.ma.sge(0, 1 << 20)]);
    long.a
        .node
        .world
        .wait_idle("the last word", || (long.mb.word((1 << 20) - 8).load(Acquire) == 9).then_some(()));
    long.a.send_cq.ok(1);
}

pub(crate) fn a_program_that_spins_on_its_memory_turns_the_device(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    p.ma.word(0).store(1, Release);
    p.a.send(1, SendOp::Write(p.mb.remote(64)), &[p.ma.sge(0, 8)]);
    p.a.node.world.wait("the word", || (p.mb.word(64).load(Acquire) == 1).then_some(()));
    p.a.send_cq.ok(1);
}

/// A queue pair that is connected to nobody, and its memory, on a device that has a descriptor.
fn to_nobody(bed: &dyn Bed, retry_cnt: u8) -> Option<(Node, Qp, Mem)> {
    let nobody = bed.silent_gid().filter(|_| bed.can(Feature::WaitFd))?;
    let [node] = Node::open(bed);
    let conn = Conn { timeout: 9, retry_cnt, ..Conn::default() };
    let (qp, m) = (node.qp(&conn), node.mem(64, crate::qp::ALL));
    qp.to_init(&conn);
    qp.to_rts(&conn, hca_core::Qpn::new(0x55), nobody, 0);
    Some((node, qp, m))
}

pub(crate) fn a_retry_runs_out_while_the_program_sleeps_on_the_descriptor(bed: &dyn Bed) {
    let Some((_node, qp, m)) = to_nobody(bed, 2) else { return };
    qp.send(1, SendOp::Send, &[m.sge(0, 8)]);
    let c = block_for_completion(&qp.send_cq, bed.patience());
    assert_eq!((c.wr_id, c.status), (1, WcStatus::RetryExceeded));
}

pub(crate) fn a_blocked_target_serves_its_peers(bed: &dyn Bed) {
    if !bed.can(Feature::WaitFd) {
        return;
    }
    let p = Pair::rc(bed);
    p.ma.write(0, &pattern(3, 3000));
    p.b.recv(1, &[p.mb.sge(8192, 64)]);
    std::thread::scope(|s| {
        // B sleeps until the SEND at the end; the READs and WRITEs before it raise no completion.
        let sleeper = s.spawn(|| block_for_completion(&p.b.recv_cq, bed.patience()));
        for id in 0..5 {
            p.a.send(id, SendOp::Write(p.mb.remote(0)), &[p.ma.sge(0, 3000)]);
            assert_eq!(p.a.send_cq.next_alone().status, WcStatus::Success);
            p.a.send(id, SendOp::Read(p.mb.remote(0)), &[p.ma.sge(8192, 3000)]);
            assert_eq!(p.a.send_cq.next_alone().status, WcStatus::Success);
        }
        p.ma.assert_bytes(8192, &pattern(3, 3000));
        p.a.send(9, SendOp::Send, &[p.ma.sge(0, 64)]);
        ends_served_by(&p, sleeper, 9);
    });
}

/// Waits for the thread that sleeps at B to take a receive, and for the SEND of A that it is for.
fn ends_served_by(p: &Pair, sleeper: ScopedJoinHandle<'_, Completion>, sent: u64) {
    while !sleeper.is_finished() {
        p.a.node.dev().turn(); // what is lost is sent again by A, and by nobody else
        std::thread::yield_now();
    }
    assert_eq!(sleeper.join().unwrap().wr_id, 1);
    // Who took the message by a poll, and calls nothing more, owes its acknowledgement until the next turn.
    p.a.send_cq.ok(sent);
}

/// Sleeps once on the descriptor of an armed queue; whether it became readable.
fn wakes(p: &crate::node::Cq, patience: Duration) -> bool {
    let fd = p.with_port(|p| p.wait_fd().expect("a descriptor").try_clone_to_owned().expect("a descriptor"));
    let limit = Timespec::try_from(patience).unwrap();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).is_ok_and(|n| n > 0)
}

/// Sleeps once on the descriptor of B's armed receive queue, while A turns its device; whether the descriptor became
/// readable. Without A's turns a message waits for ever where a program turns its device itself and the message found
/// the two adapters still introducing themselves to each other.
fn b_wakes(p: &Pair, patience: Duration) -> bool {
    std::thread::scope(|s| {
        let sleeper = s.spawn(|| wakes(&p.b.recv_cq, patience));
        while !sleeper.is_finished() {
            p.a.node.dev().turn();
            std::thread::yield_now();
        }
        sleeper.join().unwrap()
    })
}

/// Arms a queue until it is armed with its descriptor made and nothing to wake up for.
fn arm_at_rest(cq: &crate::node::Cq) {
    // A thread of the adapter may have work left, and gets a processor late.
    cq.world.wait_idle("an idle queue's descriptor that is not readable", || {
        cq.arm(Notify::Any);
        assert_eq!(cq.try_next(), None);
        (!wakes(cq, Duration::ZERO)).then_some(())
    });
}

pub(crate) fn what_is_posted_while_another_thread_sleeps_is_retried(bed: &dyn Bed) {
    let Some((node, qp, m)) = to_nobody(bed, 1) else { return };
    arm_at_rest(&qp.send_cq);
    // What another thread does while this one sleeps: it posts, and goes away.
    qp.send(1, SendOp::Send, &[m.sge(0, 8)]);
    assert!(wakes(&qp.send_cq, bed.patience()), "the retry timer woke nobody\n{}", node.world.report());
    let c = block_for_completion(&qp.send_cq, bed.patience());
    assert_eq!((c.wr_id, c.status), (1, WcStatus::RetryExceeded));
}

pub(crate) fn a_turn_by_another_thread_takes_no_wakeup_away(bed: &dyn Bed) {
    if !bed.can(Feature::WaitFd) {
        return;
    }
    let p = Pair::rc(bed);
    p.b.recv(1, &[p.mb.sge(0, 64)]);
    p.settle();
    arm_at_rest(&p.b.recv_cq);
    // What another thread does while this one sleeps.
    p.b.node.dev().turn();
    p.a.send(1, SendOp::Send, &[p.ma.sge(0, 64)]);
    assert!(b_wakes(&p, bed.patience()), "nothing woke the sleeper\n{}", p.a.node.world.report());
    p.b.recv_cq.ok(1);
}

/// Over shared memory a peer wakes only who has said that he sleeps. That an adapter's thread would find the message
/// later does not count.
pub(crate) fn polls_between_arming_and_sleeping_leave_the_network_told(bed: &dyn Bed) {
    if !bed.can(Feature::WaitFd) {
        return;
    }
    let p = Pair::rc(bed);
    let wakeups = || {
        let mut all = p.a.node.dev().counters().into_iter();
        all.find(|c| c.name.ends_with("wakeups_sent")).map(|c| c.value)
    };
    if p.b.node.dev().counters().iter().all(|c| !c.name.ends_with("wakeups_sent")) {
        return;
    }
    // The other one may be late, and find a thread at work in its place: as often as that gets no processor to sleep on.
    let mut id = 0;
    p.a.node.world.wait_idle("a message that wakes a sleeper", || {
        id += 1;
        p.b.recv(id, &[p.mb.sge(0, 64)]);
        p.settle();
        arm_at_rest(&p.b.recv_cq);
        for _ in 0..40 {
            assert_eq!(p.b.recv_cq.try_next(), None);
        }
        let before = wakeups();
        p.a.send(id, SendOp::Send, &[p.ma.sge(0, 64)]);
        assert!(b_wakes(&p, bed.patience()), "nothing woke the sleeper\n{}", p.a.node.world.report());
        p.b.recv_cq.ok(id);
        p.a.send_cq.ok(id);
        (wakeups() > before).then_some(())
    });
}

pub(crate) fn a_program_may_sleep_on_the_devices_descriptor(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let dev = p.b.node.dev();
    if bed.can(Feature::Passive) || dev.wait_fd().is_none() {
        return;
    }
    p.b.recv(1, &[p.mb.sge(0, 64)]);
    std::thread::scope(|s| {
        let sleeper = s.spawn(|| {
            let start = Instant::now();
            loop {
                while dev.turn() {}
                if let Some(c) = p.b.recv_cq.try_next() {
                    return c;
                }
                let limit = dev.next_deadline().unwrap_or(bed.patience()).min(bed.patience());
                let limit = Timespec::try_from(limit).unwrap();
                let fd = dev.wait_fd().expect("a descriptor");
                let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit));
                assert!(start.elapsed() < bed.patience(), "slept in vain\n{}", p.a.node.world.report());
            }
        });
        p.a.send(1, SendOp::Send, &[p.ma.sge(0, 64)]);
        ends_served_by(&p, sleeper, 1);
    });
}

/// Another thread polls meanwhile, takes a message, and goes away: the next message wakes the sleeper.
pub(crate) fn polls_beside_a_sleep_on_the_devices_descriptor_take_no_wakeup_away(bed: &dyn Bed) {
    let p = Pair::rc(bed);
    let dev = p.b.node.dev();
    if bed.can(Feature::Passive) || dev.wait_fd().is_none() {
        return;
    }
    for id in [1, 2] {
        p.b.recv(id, &[p.mb.sge(0, 64)]);
    }
    p.settle();
    let readable = |patience| {
        let limit = Timespec::try_from(patience).unwrap();
        poll(&mut [PollFd::new(&dev.wait_fd().expect("a descriptor"), PollFlags::IN)], Some(&limit))
            .is_ok_and(|n| n > 0)
    };
    let send = |id| {
        p.a.send(id, SendOp::Send, &[p.ma.sge(0, 64)]);
        p.a.node.dev().turn();
    };
    p.a.node.world.wait_idle("a device at rest", || {
        while dev.turn() {}
        dev.next_deadline();
        (!readable(Duration::ZERO)).then_some(())
    });
    std::thread::scope(|s| {
        s.spawn(|| {
            send(1);
            p.b.recv_cq.ok(1);
        });
    });
    let start = Instant::now();
    send(2);
    while !readable(Duration::ZERO) {
        assert!(start.elapsed() < bed.patience(), "nothing woke the sleeper\n{}", p.a.node.world.report());
        p.a.node.dev().turn();
        std::thread::yield_now();
    }
    p.b.recv_cq.ok(2);
}

pub(crate) fn turning_an_idle_device_is_harmless(bed: &dyn Bed) {
    let [a, b] = Node::open(bed);
    for _ in 0..200 {
        a.dev().turn();
        b.dev().turn();
    }
    let p = Pair::between(&a, &b, Conn::default());
    p.assert_works();
    let start = Instant::now();
    // A connected pair at rest comes to rest: nobody asks for turns at once for ever.
    while p.a.node.world.turn() {
        assert!(start.elapsed() < Duration::from_secs(5), "an idle device never rests\n{}", a.world.report());
        std::thread::yield_now();
    }
}
