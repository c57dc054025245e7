//! A producer and a consumer at the same time, in all interleavings, by loom.

use super::super::bell::{Caller, Doorbells};
use super::*;

const LINES: u32 = 2;

fn memory(lines: usize) -> Segment {
    Segment::heap(lines * LINE)
}

fn linked() -> (Producer, Consumer) {
    let (out, own) = (memory(2 + LINES as usize), memory(2));
    let mut producer = Producer::new(out.clone(), LINES, Barrier::Fence);
    producer.link(&own.window(), Barrier::Fence);
    (producer, Consumer::new(out.window(), own, LINES, Barrier::Fence))
}

/// The same, and the bells by which one side calls the other: who calls, and who is called.
fn with_bells() -> (Producer, Consumer, Caller, Doorbells) {
    let (producer, consumer) = linked();
    let (bits, board) = (memory(3), memory(1));
    let caller = Caller::new(bits.clone(), board.window(), 0);
    (producer, consumer, caller, Doorbells::new(bits, board))
}

fn packet(number: u8) -> [u8; 12] {
    [number; 12]
}

/// The ring holds one packet, so each waits for the credits of the one before.
#[test]
fn packets_are_handed_over_whole_in_order_and_for_credits() {
    loom::model(|| {
        let (mut producer, mut consumer) = linked();
        let t = loom::thread::spawn(move || {
            for i in 1..=3 {
                while producer.push(Attributes::NONE, &packet(i)).is_err() {
                    loom::thread::yield_now();
                }
            }
        });
        let mut record = Record::new();
        for i in 1..=3 {
            while consumer.take(&mut record).unwrap().is_none() {
                loom::thread::yield_now();
            }
            assert_eq!(record.packet(), packet(i));
        }
        t.join().unwrap();
    });
}

fn line(number: u32) -> Line {
    let mut line = [pair(number, number); LINE / 8];
    line[0] = pair(0, number);
    line
}

/// Takes the next record: a line as it stands, or what else is there by the long way.
fn next(consumer: &mut Consumer, record: &mut Record) -> Option<u32> {
    let (number, other) = match consumer.peek_line() {
        Peeked::Line(len, line) => {
            assert_eq!(len, 20);
            let ([_, first], rest) = (halves(line.word::<0>()), line.word::<1>());
            assert_eq!((rest, line.word::<2>()), (pair(first, first), pair(first, first)));
            (first, false)
        }
        Peeked::Other => (0, true),
        Peeked::Nothing => return None,
    };
    if !other {
        consumer.pass_line();
        return Some(number);
    }
    let (what, _) = consumer.take(record).unwrap().expect("it is there");
    assert!(matches!(what, What::Packet(_)) && record.packet().iter().all(|b| *b == record.packet()[0]));
    Some(record.packet()[0].into())
}

/// As above, with messages of one line between packets, in the order of the bits; each has the place of the other
/// in the lap before.
#[test]
fn lines_are_handed_over_whole_in_order_and_for_credits_beside_packets() {
    for lines in 0..8_u32 {
        loom::model(move || {
            let (mut producer, mut consumer) = linked();
            let t = loom::thread::spawn(move || {
                for i in 1..=3 {
                    let is_line = lines >> (i - 1) & 1 != 0;
                    while !if is_line {
                        producer.push_line(&mut line(i), 20)
                    } else {
                        producer.push(Attributes::NONE, &packet(i as u8)).is_ok()
                    } {
                        loom::thread::yield_now();
                    }
                }
            });
            let mut record = Record::new();
            for i in 1..=3 {
                let number = loop {
                    if let Some(number) = next(&mut consumer, &mut record) {
                        break number;
                    }
                    loom::thread::yield_now();
                };
                assert_eq!(number, i);
            }
            t.join().unwrap();
        });
    }
}

/// The consumer parks and sleeps whenever it finds nothing. If it sleeps with a packet in the ring, then
/// somebody wakes it.
#[test]
fn who_sleeps_is_woken_for_every_packet() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut producer, mut consumer, caller, mut doorbells) = with_bells();
        // Stands for the socket: what is written to it stays until it is read.
        let socket = crate::sync::Arc::new(crate::sync::AtomicU32::new(0));
        let wake = socket.clone();
        let t = loom::thread::spawn(move || {
            for i in 1..=2 {
                while producer.push(Attributes::NONE, &packet(i)).is_err() {
                    loom::thread::yield_now();
                }
                if producer.call_due() && caller.call() {
                    wake.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        let mut record = Record::new();
        let mut taken = 0;
        while taken < 2 {
            if doorbells.rung() {
                doorbells.take(|_| consumer.note_call());
            }
            if consumer.take(&mut record).unwrap().is_some() {
                taken += 1;
                assert_eq!(record.packet(), packet(taken));
                continue;
            }
            consumer.park();
            doorbells.sleep();
            Barrier::Fence.on_parking();
            if !consumer.has_input() && !doorbells.rung() {
                // Asleep: only the socket wakes. Loom reports a deadlock where nothing ever does.
                while socket.swap(0, Ordering::SeqCst) == 0 {
                    loom::thread::yield_now();
                }
                consumer.note_call();
            }
            doorbells.wake();
        }
        t.join().unwrap();
    });
}

/// The producer sleeps whenever the ring is full. If there is room while it sleeps, then somebody wakes it.
#[test]
fn who_sleeps_beside_a_full_ring_is_woken_for_credits() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut producer, mut consumer, caller, mut doorbells) = with_bells();
        let socket = crate::sync::Arc::new(crate::sync::AtomicU32::new(0));
        let wake = socket.clone();
        let t = loom::thread::spawn(move || {
            let mut record = Record::new();
            for i in 1..=2 {
                while consumer.take(&mut record).unwrap().is_none() {
                    loom::thread::yield_now();
                }
                assert_eq!(record.packet(), packet(i));
                if consumer.call_due() && caller.call() {
                    wake.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        for i in 1..=2 {
            while producer.push(Attributes::NONE, &packet(i)).is_err() {
                let asked = producer.ask_for_call();
                doorbells.sleep();
                Barrier::Fence.on_parking();
                if !producer.refresh().unwrap() && !doorbells.rung() {
                    assert!(asked, "it was called for what it asked for before");
                    while socket.swap(0, Ordering::SeqCst) == 0 {
                        loom::thread::yield_now();
                    }
                }
                doorbells.take(|_| {});
                doorbells.wake();
            }
        }
        t.join().unwrap();
    });
}
