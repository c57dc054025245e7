//! Completions of requests that are done directly on the peer's memory.

use super::*;

#[test]
fn what_goes_directly_is_completed_if_it_was_asked_for_and_counted() {
    let mut pair = Pair::warm();
    let before = pair.a.counter("completions");
    for (i, len) in [(0, 0), (1, 8), (2, 8), (3, 8)] {
        let (op, sge) = (ops(pair.remote(0))[i].0, pair.sge(0, 8));
        pair.try_post(op, &[sge], SendFlags::empty()).unwrap();
        assert!(pair.alone().is_none(), "{op:?} was not signalled");
        pair.post(op, sge);
        let c = pair.alone().expect("it is done directly");
        assert_eq!((c.wr_id, c.qp, c.status), (7, pair.a.rc.handle, WcStatus::Success));
        assert_eq!((c.opcode, c.byte_len), (op.wc_opcode(), len));
        assert!(pair.alone().is_none(), "once");
    }
    assert_eq!(pair.a.counter("completions"), before + 4);
}

#[test]
fn completions_of_what_goes_directly_keep_their_order_among_others() {
    let mut pair = Pair::warm();
    for _ in 0..50 {
        // A list of two goes another way.
        for (wr_id, two) in [(1, false), (2, true), (3, false), (4, true), (5, true), (6, false)] {
            let sges = [pair.sge(0, 4), pair.sge(4, 4)];
            let sges = if two { &sges[..] } else { &sges[..1] };
            let (op, flags) = (SendOp::Write(pair.remote(0)), SendFlags::SIGNALED);
            let wr = SendWr { wr_id, op, flags, payload: Payload::Sges(sges), dest: None };
            // SAFETY: (1, 2)
            unsafe { pair.a.rc.send.post(&[wr]) }.unwrap();
            pair.a.rc.send.ring();
        }
        for wr_id in 1..=6 {
            assert_eq!(pair.alone().map(|c| c.wr_id), Some(wr_id));
        }
    }
}

#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn who_armed_the_queue_is_told_of_what_went_directly() {
    for i in 0..4 {
        let mut pair = Pair::warm();
        let woken = Arc::new(Woken::default());
        pair.a.cq.set_waker(&Waker::from(woken.clone()));
        let times = || woken.0.load(Ordering::Relaxed);
        let op = ops(pair.remote(0))[i].0;
        pair.post(op, pair.sge(0, 8));
        assert_eq!(times(), 0, "nobody asked");
        pair.a.cq.arm(Notify::Any);
        for _ in 0..2 {
            pair.post(op, pair.sge(0, 8));
            assert_eq!(times(), 1, "one arming, one notification");
        }
        // It is not solicited.
        pair.a.cq.arm(Notify::Solicited);
        pair.post(op, pair.sge(0, 8));
        assert_eq!(times(), 1);
        for _ in 0..4 {
            assert!(pair.alone().is_some());
        }
    }
}

#[test]
fn who_armed_the_queue_is_told_of_what_a_poll_takes_at_once() {
    let mut pair = Pair::warm();
    let Pair { a, b, .. } = &mut pair;
    for round in 1..=40 {
        let woken = Arc::new(Woken::default());
        b.cq.set_waker(&Waker::from(woken.clone()));
        b.cq.arm(Notify::Any);
        b.recv();
        ends::send(&mut a.rc, SendFlags::empty());
        b.next(&*a.device).expect("the message arrives");
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "round {round}");
    }
}

#[test]
fn an_overrun_by_what_went_directly_is_told() {
    const ROOM: u32 = 8;
    let [a, b] = [0, 1].map(|n| open("shm", Progress::Inline, n).expect("there is shared memory"));
    let (a, b) = (End::with_cq(a, ROOM), End::new(b));
    a.connect(&b);
    b.connect(&a);
    let target = register(&b, b.pd, BEGIN..END, ALL);
    let local = register(&a, a.pd, 0..4096, ALL);
    put(&a, 0..4096, OURS);
    let mut pair = Pair { a, b, target, local };
    pair.warm_up(Access::REMOTE_WRITE);
    for _ in 0..ROOM {
        pair.post(SendOp::Write(pair.remote(0)), pair.sge(0, 8));
    }
    assert_eq!(pair.a.device.poll_event(), None);
    pair.post(SendOp::Write(pair.remote(0)), pair.sge(0, 8));
    assert_eq!(pair.a.device.poll_event(), Some(AsyncEvent::CqOverrun(pair.a.cq_handle)));
    let state = pair.a.device.query_qp(pair.a.rc.handle).unwrap().state;
    assert_eq!(state, QpState::Error);
    for _ in 0..ROOM {
        assert_eq!(pair.alone().map(|c| c.status), Some(WcStatus::Success));
    }
    assert!(pair.alone().is_none());
}

#[test]
fn a_poll_takes_no_more_than_it_has_room_for_and_leaves_its_memory_alone_afterwards() {
    let mut pair = Pair::warm();
    let untouched = Completion { wr_id: u64::MAX, ..Completion::default() };
    let before = pair.b.counter("completions");
    let mut next = 0;
    for round in 0..50_u64 {
        let room = 1 + round as usize % 3;
        let Pair { a, b, .. } = &mut pair;
        let sges = [Sge { addr: b.memory.addr().as_ptr() as u64, len: 64, lkey: b.keys.lkey }];
        for i in 0..6 {
            // SAFETY: (1, 2)
            unsafe { b.rc.recv.post(&[RecvWr { wr_id: round * 6 + i, sges: &sges }]) }.unwrap();
            b.rc.recv.ring();
            ends::send(&mut a.rc, SendFlags::empty());
        }
        let mut looks = 0;
        while next < round * 6 + 6 {
            let mut out = vec![untouched; 8];
            let n = b.cq.poll(&mut out[..room]);
            assert!(n <= room, "{n} completions where there is room for {room}");
            for c in &out[..n] {
                assert_eq!((c.wr_id, c.status), (next, WcStatus::Success), "round {round}");
                next += 1;
            }
            assert!(out[n..].iter().all(|c| *c == untouched), "round {round}: behind {n} of {room}");
            a.device.turn();
            looks += 1;
            assert!(looks < 5_000_000, "round {round}: it does not arrive");
        }
    }
    assert_eq!(pair.b.counter("completions"), before + next);
    // What completes when nobody polls goes to the queue.
    let Pair { a, b, .. } = &mut pair;
    let mut out = vec![untouched; 4];
    b.recv();
    while b.cq.poll(&mut out) > 0 {}
    out.fill(untouched);
    let error = QpAttr { state: Some(QpState::Error), ..QpAttr::default() };
    b.device.modify_qp(b.rc.handle, &error).unwrap();
    assert!(out.iter().all(|c| *c == untouched), "a completion went where a poll had been");
    assert_eq!(b.cq.poll(&mut out), 1);
    assert_eq!(out[0].status, WcStatus::WrFlushed);
    a.device.turn();
}
