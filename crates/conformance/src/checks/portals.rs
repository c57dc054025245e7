//! Portals engines that the adapter runs itself, if it supports that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hca_core::{DeviceError, OffloadEngine, SendOp, WcOpcode, WcStatus};

use crate::mem::{Mem, pattern};
use crate::node::Node;
use crate::qp::{ALL, Conn, Qp, Srq, connect};
use crate::{Bed, Feature};

/// Receive requests of the engine's, and the bytes of each.
const REQUESTS: usize = 16;
const ROOM: usize = 64;
/// Completions that a run takes at most.
const MOST: usize = 4;

/// Answers each message with its own bytes.
struct Echo {
    qp: Qp,
    srq: Arc<Srq>,
    mem: Mem,
    running: AtomicBool,
}

impl Echo {
    fn recv(&self, place: u64) {
        self.srq.recv(place, &[self.mem.sge(place as usize * ROOM, ROOM)]);
    }
}

impl OffloadEngine for Echo {
    fn run(&self) -> bool {
        assert!(!self.running.swap(true, Ordering::AcqRel), "two runs at once");
        let mut taken = 0;
        while taken < MOST
            && let Some(c) = self.qp.recv_cq.try_next()
        {
            assert_eq!(c.status, WcStatus::Success);
            if c.opcode == WcOpcode::Recv {
                let at = c.wr_id as usize * ROOM;
                self.qp.send(c.wr_id, SendOp::Send, &[self.mem.sge(at, c.byte_len as usize)]);
            } else {
                self.recv(c.wr_id);
            }
            taken += 1;
        }
        self.running.store(false, Ordering::Release);
        taken == MOST
    }
    fn next_deadline(&self) -> Option<Duration> {
        None
    }
}

pub(crate) fn an_engine_answers_while_the_target_program_computes(bed: &dyn Bed) {
    let [na, nb] = Node::open(bed);
    let Some(portals) = nb.dev().offload() else { return };
    let conn = Conn::default();
    let (srq, cq) = (nb.srq(REQUESTS as u32, 1), nb.cq(256));
    let (a, b) = (na.qp(&conn), nb.qp_on(&conn, &cq, &cq, Some(&srq)));
    connect(&conn, &a, &b);
    let (ma, mem) = (na.mem(4096, ALL), nb.mem(REQUESTS * ROOM, ALL));
    let echo = Arc::new(Echo { qp: b, srq, mem, running: AtomicBool::new(false) });
    (0..REQUESTS as u64).for_each(|place| echo.recv(place));
    let engine: Weak<Echo> = Arc::downgrade(&echo);
    portals.attach(cq.handle, engine.clone()).expect("the queue has none");
    let again = portals.attach(cq.handle, engine);
    assert!(matches!(again, Err(DeviceError::HasEngine { .. })), "{again:?}");
    for round in 0..24 {
        // One to eight at a time.
        let burst = 1 + round % 8;
        for i in 0..burst {
            a.recv(i as u64, &[ma.sge(2048 + i * ROOM, ROOM)]);
            ma.write(i * ROOM, &pattern((round * 8 + i) as u64, 8 + i));
            a.send(100, SendOp::Send, &[ma.sge(i * ROOM, 8 + i)]);
        }
        for i in 0..burst {
            // Where the adapter moves by itself nobody calls it.
            let passive = bed.can(Feature::Passive);
            let c = if passive { a.recv_cq.next_alone() } else { a.recv_cq.next() };
            assert_eq!((c.status, c.wr_id, c.byte_len as usize), (WcStatus::Success, i as u64, 8 + i));
            ma.assert_bytes(2048 + i * ROOM, &pattern((round * 8 + i) as u64, 8 + i));
        }
        (0..burst).for_each(|_| _ = a.send_cq.ok(100));
    }
    portals.detach(cq.handle).expect("it has one");
    assert_eq!(Arc::strong_count(&echo), 1, "the device keeps nothing of an engine that was taken away");
    assert!(matches!(portals.detach(cq.handle), Err(DeviceError::UnknownHandle { .. })));
}

pub(crate) fn an_engine_is_run_at_its_deadline(bed: &dyn Bed) {
    struct Restless(AtomicBool);
    impl OffloadEngine for Restless {
        fn run(&self) -> bool {
            self.0.store(true, Ordering::Release);
            false
        }
        fn next_deadline(&self) -> Option<Duration> {
            Some(Duration::from_millis(1))
        }
    }
    let [node] = Node::open(bed);
    let Some(portals) = node.dev().offload() else { return };
    let (cq, engine) = (node.cq(8), Arc::new(Restless(AtomicBool::new(false))));
    let weak: Weak<Restless> = Arc::downgrade(&engine);
    portals.attach(cq.handle, weak).expect("the queue has none");
    for run in 0..4 {
        let ready = || engine.0.swap(false, Ordering::AcqRel).then_some(());
        match bed.can(Feature::Passive) {
            true => node.world.wait_idle("a run", ready),
            false => node.world.wait("a run", ready),
        }
        // None is told while a thread of the adapter runs it.
        let due = node.world.wait_idle("its deadline", || node.dev().next_deadline());
        assert!(due <= Duration::from_millis(1), "run {run}: next in {due:?}");
    }
    cq.destroy().expect("nothing uses it");
    engine.0.store(false, Ordering::Release);
    node.world.settle();
    assert!(!engine.0.load(Ordering::Acquire), "a run after its queue's end");
}
