//! Sends and receives, and what a descriptor says of them.

use std::time::Duration;

use hca_via::{MemAttributes, Nic, NicOptions, Op, Reliability, Request, ReturnCode, Status, ViAttributes};

use crate::bed::{Bed, LEVELS, PATIENCE, Pair, Side, code, error, pattern};

pub(crate) fn messages_of_every_length_arrive_on_every_level(bed: &Bed) {
    for level in LEVELS {
        let pair = bed.pair_of(level);
        // Packets of a long message may be lost where they wait.
        let longest = if level.is_reliable() { 100_000 } else { 4096 };
        for len in [0, 1, 8, 63, 64, 65, 1000, 4096, longest] {
            let bytes = pattern(len);
            pair.a.side.fill(0, &bytes);
            pair.b.receive(0, 0, 100_000);
            pair.a.send(0, 0, len);
            let (sent, received) = (pair.sent(), pair.received());
            assert_eq!((sent.status, sent.length), (Status::DONE, len as u32), "{level:?}");
            assert!(received.status.is_ok(), "{level:?}, {len} bytes: {received:?}");
            assert_eq!((received.status.op(), received.length), (Some(Op::Receive), len as u32));
            assert_eq!(pair.b.side.bytes(0, len), bytes, "{level:?}, {len} bytes");
        }
    }
}

pub(crate) fn a_message_is_gathered_and_scattered_in_the_order_of_its_segments(bed: &Bed) {
    let pair = bed.pair();
    for lens in [[3, 5, 2], [300, 700, 24]] {
        let total: usize = lens.iter().sum();
        let bytes = pattern(total);
        pair.a.side.fill(0, &bytes);
        // The first piece is last in memory.
        let [x, y, z] = lens;
        let from = [pair.a.side.data(y + z, x), pair.a.side.data(z, y), pair.a.side.data(0, z)];
        let to = [pair.b.side.data(5000, 1), pair.b.side.data(0, total - 1)];
        let receive = pair.b.side.written(0, &Request::new(&to));
        pair.b.vi.post_recv(&receive).unwrap();
        pair.a.post(0, &Request::new(&from));
        assert!(pair.sent().status.is_ok());
        assert_eq!(pair.received().length as usize, total);
        let sent = [&bytes[y + z..], &bytes[z..y + z], &bytes[..z]].concat();
        let got = [pair.b.side.bytes(5000, 1), pair.b.side.bytes(0, total - 1)].concat();
        assert_eq!(got, sent);
    }
}

pub(crate) fn immediate_data_arrives(bed: &Bed) {
    for level in LEVELS {
        let pair = bed.pair_of(level);
        pair.b.receive(0, 0, 64);
        let data = [pair.a.side.data(0, 8)];
        pair.a.post(0, &Request::new(&data).immediate(0xfeed_f00d));
        assert!(pair.sent().status.is_ok());
        let received = pair.received();
        assert_eq!(received.status, Status::of_receive() | Status::IMMEDIATE);
        assert_eq!(received.immediate, Some(0xfeed_f00d));
        assert_eq!(received.descriptor.control().immediate, 0xfeed_f00d, "it is in memory");
    }
}

trait OfReceive {
    fn of_receive() -> Status;
}
impl OfReceive for Status {
    fn of_receive() -> Status {
        Status::DONE | Status::from_bits_retain(1 << 16)
    }
}

pub(crate) fn the_status_word_is_in_memory(bed: &Bed) {
    let pair = bed.pair();
    let receive = pair.b.receive(0, 0, 64);
    assert_eq!(receive.status(), Status::empty(), "the post clears it");
    pair.a.send(0, 0, 5);
    // No descriptor is taken off a queue; the polls of the loop write the word.
    pair.until("the status", || receive.status().contains(Status::DONE).then_some(()));
    let control = receive.control();
    assert_eq!((control.status, control.length), (Status::of_receive().bits(), 5));
    assert_eq!(pair.received().status, Status::of_receive());
}

pub(crate) fn a_descriptor_stays_on_its_queue_until_it_is_taken_off(bed: &Bed) {
    let pair = bed.pair();
    for i in 0..3 {
        pair.b.receive(i, 64 * i, 64);
        pair.a.send(i, 0, i);
    }
    pair.until("all", || pair.b.side.descriptor(2).status().contains(Status::DONE).then_some(()));
    assert!(!pair.b.vi.query().receive_queue_empty);
    for i in 0..3 {
        assert_eq!(pair.received().descriptor.addr(), pair.b.side.descriptor(i).addr());
    }
    assert!(pair.b.vi.query().receive_queue_empty);
    assert!(pair.b.vi.recv_done().is_none());
}

pub(crate) fn a_post_takes_a_chain_in_its_order(bed: &Bed) {
    let pair = bed.pair();
    let bytes = pattern(300);
    pair.a.side.fill(0, &bytes);
    let make = |side: &Side, i: usize| side.written(i, &Request::new(&[side.data(100 * i, 100)]));
    let sends = [0, 1, 2].map(|i| make(&pair.a.side, i));
    let receives = [0, 1, 2].map(|i| make(&pair.b.side, i));
    for chain in [&sends, &receives] {
        chain[0].chain(Some(&chain[1]));
        chain[1].chain(Some(&chain[2]));
    }
    // The links stay: each round posts the heads alone.
    for _ in 0..2 {
        pair.b.vi.post_recv(&receives[0]).unwrap();
        pair.a.vi.post_send(&sends[0]).unwrap();
        for i in 0..3 {
            assert_eq!(pair.sent().descriptor.addr(), sends[i].addr());
            let received = pair.received();
            assert_eq!((received.descriptor.addr(), received.length), (receives[i].addr(), 100));
        }
        assert_eq!(pair.b.side.bytes(0, 300), bytes);
    }
    sends[0].chain(None);
    pair.b.vi.post_recv(&receives[2]).unwrap();
    pair.a.vi.post_send(&sends[0]).unwrap();
    assert!(pair.sent().status.is_ok() && pair.received().status.is_ok());
    assert!(pair.a.vi.query().send_queue_empty && pair.b.vi.query().receive_queue_empty);
}

pub(crate) fn a_chain_is_posted_as_a_whole_or_not_at_all(bed: &Bed) {
    let pair = bed.pair();
    let data = [pair.a.side.data(0, 4)];
    let [one, other] = [0, 1].map(|i| pair.a.side.written(i, &Request::new(&data)));
    // A circle of two, and one of itself.
    one.chain(Some(&other));
    for next in [&one, &other] {
        other.chain(Some(next));
        assert_eq!(code(pair.a.vi.post_send(&one)), ReturnCode::InvalidParameter);
    }
    // Its second descriptor lies nowhere, is misaligned, or has another tag.
    let at = one.addr() - pair.a.side.memory.addr();
    for (addr, handle) in [(64, 0xdead_beef), (other.addr() + 8, other.handle().0), (64, other.handle().0)] {
        pair.a.side.memory.write_at(at as usize, &addr.to_ne_bytes());
        pair.a.side.memory.write_at(at as usize + 8, &handle.to_ne_bytes());
        assert_eq!(code(pair.a.vi.post_send(&one)), ReturnCode::InvalidParameter);
    }
    assert!(pair.a.vi.query().send_queue_empty);
    // One place is left, for two.
    other.chain(None);
    let receive = pair.b.side.written(0, &Request::new(&[]));
    let most = pair.b.side.nic.attributes().max_descriptors_per_queue;
    for _ in 1..most {
        pair.b.vi.post_recv(&receive).unwrap();
    }
    receive.chain(Some(&pair.b.side.written(1, &Request::new(&[]))));
    assert_eq!(code(pair.b.vi.post_recv(&receive)), ReturnCode::ErrorResource);
    receive.chain(None);
    pair.b.vi.post_recv(&receive).unwrap();
}

pub(crate) fn a_descriptor_that_is_posted_twice_completes_twice(bed: &Bed) {
    let pair = bed.pair();
    pair.b.receive(0, 0, 64);
    pair.b.receive(1, 64, 64);
    let descriptor = pair.a.send(0, 0, 4);
    pair.a.vi.post_send(&descriptor).unwrap();
    for _ in 0..2 {
        assert!(pair.sent().status.is_ok());
        assert_eq!(pair.received().length, 4);
    }
}

pub(crate) fn a_queue_takes_as_many_descriptors_as_the_attributes_say(bed: &Bed) {
    let context = &bed.contexts(1)[0];
    for descriptors_per_queue in [1, 7, 8, 255] {
        let options = NicOptions { descriptors_per_queue, ..NicOptions::default() };
        let nic = Nic::open_with(context, &options).unwrap();
        let ptag = nic.create_ptag().unwrap();
        let vi = nic.create_vi(&ViAttributes::new(&ptag), None, None).unwrap();
        let memory = nic.alloc(4096, &MemAttributes::new(&ptag)).unwrap();
        let descriptor = memory.descriptor(0).unwrap();
        descriptor.write(&Request::new(&[])).unwrap();
        for _ in 0..3 {
            for _ in 0..descriptors_per_queue {
                vi.post_recv(&descriptor).unwrap();
            }
            assert_eq!(code(vi.post_recv(&descriptor)), ReturnCode::ErrorResource);
            vi.disconnect().unwrap();
            for _ in 0..descriptors_per_queue {
                assert_eq!(error(&vi.recv_done().expect("it was flushed")), Status::FLUSHED_ERROR);
            }
            assert!(vi.recv_done().is_none());
        }
    }
}

/// More small sends than end together, and fewer than so many again.
const SOME: usize = 13;

/// Sends of which the program has taken no end off, all of them received by the peer.
fn delivered(pair: &Pair) {
    for i in 0..SOME {
        pair.b.receive(i, 64 * i, 64);
    }
    for i in 0..SOME {
        pair.a.send(i, 0, 8);
    }
    for _ in 0..SOME {
        assert!(pair.received().status.is_ok());
    }
}

pub(crate) fn all_of_several_sends_end_in_their_order(bed: &Bed) {
    let pair = bed.pair();
    for _ in 0..3 {
        delivered(&pair);
        for i in 0..SOME {
            let done = pair.sent();
            assert!(done.status.is_ok());
            assert_eq!((done.descriptor.addr(), done.length), (pair.a.side.descriptor(i).addr(), 8));
        }
        assert!(pair.a.vi.query().send_queue_empty);
    }
}

pub(crate) fn a_thread_that_waits_learns_of_the_last_of_several_sends(bed: &Bed) {
    let pair = bed.pair();
    delivered(&pair);
    std::thread::scope(|s| {
        let waits = s.spawn(|| {
            (0..SOME).for_each(|_| assert!(pair.a.vi.send_wait(Some(PATIENCE)).unwrap().status.is_ok()));
        });
        pair.until("the thread", || waits.is_finished().then_some(()));
    });
}

pub(crate) fn a_call_that_was_asked_for_ahead_comes_for_a_send_behind_many(bed: &Bed) {
    let pair = bed.pair();
    // Many that are under way at once, of which the last is long: the end of each is known, without a question.
    for i in 0..41 {
        pair.b.receive(i, 0, 100);
    }
    for i in 0..40 {
        pair.a.send(i, 0, 8);
    }
    pair.a.send(40, 0, 100);
    let all = pair.until("all", || {
        let _ = pair.a.vi.query();
        pair.b.vi.recv_done().filter(|done| done.length == 100)
    });
    assert!(all.status.is_ok());
    let (tell, came) = std::sync::mpsc::channel();
    (0..41).for_each(|_| assert!(pair.sent().status.is_ok()));
    pair.a.vi.send_notify(move |done| tell.send(done.status.is_ok()).unwrap()).unwrap();
    // The thread of callbacks sleeps.
    std::thread::sleep(Duration::from_millis(50));
    pair.b.receive(41, 0, 100);
    pair.a.send(41, 0, 8);
    assert!(crate::notify::next(&came, &pair.b.vi));
}

pub(crate) fn a_full_send_queue_empties(bed: &Bed) {
    let pair = bed.pair();
    let most = pair.a.side.nic.attributes().max_descriptors_per_queue as usize;
    for _ in 0..2 {
        for i in 0..most {
            pair.b.receive(i % SOME, 0, 64);
        }
        let descriptor = pair.a.side.written(0, &Request::new(&[pair.a.side.data(0, 8)]));
        // The first ones have their ends asked for, one by one.
        for _ in 0..most {
            pair.a.vi.post_send(&descriptor).unwrap();
            let _ = pair.b.vi.recv_done();
        }
        assert_eq!(code(pair.a.vi.post_send(&descriptor)), ReturnCode::ErrorResource);
        (0..most).for_each(|_| assert!(pair.sent().status.is_ok()));
        pair.until("all", || {
            let _ = pair.b.vi.recv_done();
            pair.b.vi.query().receive_queue_empty.then_some(())
        });
    }
}

pub(crate) fn a_descriptor_has_as_many_segments_as_the_attributes_say(bed: &Bed) {
    let pair = bed.pair_of(Reliability::Unreliable);
    let most = pair.a.side.nic.attributes().max_segments_per_descriptor as usize;
    pair.b.receive(0, 0, 4096);
    let data = vec![pair.a.side.data(0, 100); most + 1];
    pair.a.post(0, &Request::new(&data[..most]));
    assert!(pair.sent().status.is_ok());
    assert_eq!(pair.received().length as usize, 100 * most);
    pair.a.post(0, &Request::new(&data));
    assert_eq!(error(&pair.sent()), Status::FORMAT_ERROR);
}

pub(crate) fn waits_end_with_their_time(bed: &Bed) {
    let pair = bed.pair();
    pair.b.receive(0, 0, 64);
    let short = Some(Duration::from_millis(5));
    assert_eq!(code(pair.b.vi.recv_wait(short)), ReturnCode::Timeout);
    assert_eq!(code(pair.a.vi.send_wait(Some(Duration::ZERO))), ReturnCode::Timeout);
}

pub(crate) fn two_threads_wait_for_the_two_queues_of_a_vi(bed: &Bed) {
    let pair = bed.pair();
    let (a, b) = (&pair.a, &pair.b);
    a.receive(0, 0, 64);
    b.receive(0, 0, 64);
    let wait = Some(PATIENCE);
    std::thread::scope(|s| {
        let receives = s.spawn(|| a.vi.recv_wait(wait).unwrap());
        let sends = s.spawn(|| a.vi.send_wait(wait).unwrap());
        let echo = s.spawn(|| {
            assert!(b.vi.recv_wait(wait).unwrap().status.is_ok());
            b.send(1, 0, 3);
            b.vi.send_wait(wait).unwrap()
        });
        a.send(1, 0, 7);
        assert_eq!(sends.join().unwrap().length, 7);
        assert_eq!(receives.join().unwrap().length, 3);
        assert_eq!(echo.join().unwrap().length, 3);
    });
}
