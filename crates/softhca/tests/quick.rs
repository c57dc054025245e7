//! Small messages over shared memory: they take the fast path, with the same effects as on the general path.

mod ends;

use ends::{End, open, post, send, shm_pair, shm_pair_with};
use hca_core::{AsyncEvent, Completion, Device, QpState, SendFlags, SendOp, WcOpcode};
use softhca::{Options, Progress};

/// Sends so many messages one by one; returns how many of them came the quick way.
fn exchange(a: &mut End, b: &mut End, count: u64, flags: SendFlags) -> u64 {
    let before = b.counter("rx_messages_quick");
    for _ in 0..count {
        b.recv();
        send(&mut a.rc, flags);
        let received = b.next(&*a.device).expect("the message arrives");
        assert_eq!((received.byte_len, received.solicited), (7, flags.contains(SendFlags::SOLICITED)));
        a.next(&*b.device).expect("the SEND completes");
    }
    b.counter("rx_messages_quick") - before
}

#[test]
fn plain_sends_take_the_quick_way_and_others_the_long_one() {
    for progress in [Progress::Inline, Progress::Adaptive] {
        let [mut a, mut b] = shm_pair(progress);
        // Until both have met, and the link is known.
        exchange(&mut a, &mut b, 8, SendFlags::SIGNALED);
        // Whole turns, and the adapter's thread, take the long way.
        let quick = exchange(&mut a, &mut b, 80, SendFlags::SIGNALED);
        assert!(quick >= 10, "{progress}: {quick} of 80 came the quick way");
        let solicited = SendFlags::SIGNALED | SendFlags::SOLICITED;
        assert_eq!(exchange(&mut a, &mut b, 20, solicited), 0, "{progress}");
        a.close();
        b.close();
    }
}

/// Polls in vain know where the next message comes, which is another place each time.
#[test]
fn the_first_poll_behind_a_message_finds_it_however_many_were_in_vain() {
    for progress in [Progress::Inline, Progress::Adaptive] {
        let [mut a, mut b] = shm_pair(progress);
        exchange(&mut a, &mut b, 8, SendFlags::SIGNALED);
        exchange(&mut b, &mut a, 8, SendFlags::SIGNALED);
        let mut one = [Completion::default()];
        for round in 0..60 {
            for _ in 0..round % 7 {
                assert_eq!(a.cq.poll(&mut one), 0);
            }
            a.recv();
            send(&mut b.rc, SendFlags::SIGNALED);
            let at_once = a.cq.poll(&mut one) == 1;
            // The adapter's thread may have the engine, for as long as the system keeps it from its CPU, and take the
            // message in the poller's place.
            let came = at_once || progress == Progress::Adaptive && a.next(&*b.device).is_some();
            assert!(came, "{progress}, round {round}");
            b.next(&*a.device).expect("the SEND completes");
        }
        a.close();
        b.close();
    }
}

/// A WRITE to memory that the peer has not granted yet goes as a message, and the peer's answer says it to be done.
#[test]
fn what_a_quick_send_says_to_be_done_completes_as_what_it_was() {
    // So that the answer alone says it.
    let lazy = Options { progress: Progress::Inline, lazy_acks: true, ..Options::default() };
    let [mut a, mut b] = shm_pair_with(&lazy);
    exchange(&mut a, &mut b, 8, SendFlags::SIGNALED);
    exchange(&mut b, &mut a, 8, SendFlags::SIGNALED);
    // A new limit of receive requests, which goes by an acknowledgement of its own, is seldom due.
    (0..24).for_each(|_| b.recv());
    let mut quick = 0;
    for _ in 0..80 {
        let keys = b.open_to_writes();
        a.recv();
        b.recv();
        let came = ["rx_messages", "rx_messages_quick"].map(|name| a.counter(name));
        post(&mut a.rc, &[SendOp::Write(b.remote(&keys)), SendOp::Send], SendFlags::SIGNALED);
        let opcode = |c: Option<Completion>| c.expect("it completes").opcode;
        assert_eq!(opcode(b.next(&*a.device)), WcOpcode::Recv);
        send(&mut b.rc, SendFlags::SIGNALED);
        let all = [(); 3].map(|()| opcode(a.next(&*b.device)));
        assert_eq!(all, [WcOpcode::RdmaWrite, WcOpcode::Send, WcOpcode::Recv]);
        assert_eq!(opcode(b.next(&*a.device)), WcOpcode::Send);
        let now = ["rx_messages", "rx_messages_quick"].map(|name| a.counter(name));
        // Nothing else came that could have told that they are done.
        quick += u32::from(now == came.map(|count| count + 1));
        b.device.dereg_mr(keys.handle).unwrap();
    }
    assert!(quick >= 10, "{quick} of 80 were said to be done by the quick way alone");
    a.close();
    b.close();
}

#[test]
fn messages_to_a_shared_receive_queue_take_the_quick_way_too() {
    let [a, b] = [0, 1].map(|n| open("shm", Progress::Inline, n).expect("there is shared memory"));
    let (mut a, (mut b, srq)) = (End::new(a), End::with_shared_queue(b));
    a.connect(&b);
    b.connect(&a);
    exchange(&mut a, &mut b, 8, SendFlags::SIGNALED);
    let quick = exchange(&mut a, &mut b, 60, SendFlags::SIGNALED);
    assert!(quick >= 10, "{quick} of 60 came the quick way");
    // Whoever takes a request below the limit tells, by either way.
    let mut quick = 0;
    for _ in 0..40 {
        b.recv();
        b.device.set_srq_limit(srq, 1).unwrap();
        assert_eq!(b.device.poll_event(), None, "one request is there");
        let before = b.counter("rx_messages_quick");
        send(&mut a.rc, SendFlags::SIGNALED);
        b.next(&*a.device).expect("the message arrives");
        assert_eq!(b.device.poll_event(), Some(AsyncEvent::SrqLimitReached(srq)));
        a.next(&*b.device).expect("the SEND completes");
        quick += b.counter("rx_messages_quick") - before;
    }
    assert!(quick >= 5, "{quick} of 40 took the last request by the quick way");
    // Without a request it is the long way that tells the peer to wait.
    send(&mut a.rc, SendFlags::SIGNALED);
    (0..100).for_each(|_| _ = b.device.turn());
    b.recv();
    b.next(&*a.device).expect("the message arrives");
    a.next(&*b.device).expect("the SEND completes");
    a.close();
    b.close();
}

#[test]
fn an_overrun_by_a_quick_message_ends_the_queue_pairs_in_the_same_turn() {
    // A whole turn is due after some time, and may come first.
    let quick = (0..50).any(|_| overrun_came_quick());
    assert!(quick, "it always came another way");
}

/// Overruns a completion queue; returns whether it was by a quick message.
fn overrun_came_quick() -> bool {
    const ROOM: u32 = 4;
    let [a, b] = [0, 1].map(|n| open("shm", Progress::Inline, n).expect("there is shared memory"));
    let (mut a, mut b) = (End::new(a), End::with_cq(b, ROOM));
    a.connect(&b);
    b.connect(&a);
    for _ in 0..=ROOM {
        b.recv();
    }
    for _ in 0..ROOM {
        send(&mut a.rc, SendFlags::SIGNALED);
        a.next(&*b.device).expect("the SEND completes");
    }
    // Nobody has polled. Behind a whole turn come short ones, which take the quick way.
    let whole = b.counter("turns");
    while b.counter("turns") == whole {
        b.device.turn();
    }
    let state = |b: &End, qp| b.device.query_qp(qp).unwrap().state;
    assert_eq!((b.device.poll_event(), state(&b, b.rc.handle)), (None, QpState::Rts));
    let quick = b.counter("rx_messages_quick");
    send(&mut a.rc, SendFlags::SIGNALED);
    b.device.turn();
    let came_quick = b.counter("rx_messages_quick") == quick + 1;
    assert_eq!(b.device.poll_event(), Some(AsyncEvent::CqOverrun(b.cq_handle)));
    assert_eq!([b.rc.handle, b.uc.handle].map(|qp| state(&b, qp)), [QpState::Error; 2]);
    for _ in 0..ROOM {
        b.next(&*a.device).expect("what was in the queue is still there");
    }
    assert_eq!(b.device.poll_event(), None, "it is told once");
    a.close();
    b.close();
    came_quick
}
