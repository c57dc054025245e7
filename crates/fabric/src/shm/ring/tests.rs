//! Rings: every pushed packet is taken, for all lengths, laps and bursts; garbage is detected.

use super::*;
use proptest::prelude::*;
use test_support::random::Rng;

const LINES: u32 = MIN_RING_LINES;
const PACKETS: core::ops::Range<usize> = if cfg!(miri) { 40..60 } else { 200..400 };

/// Both ends of a ring, and the memory of either side.
fn pair() -> (Producer, Consumer, Segment, Segment) {
    let (out, own) = (Segment::heap(outbox_bytes(LINES)), Segment::heap(outbox_bytes(LINES)));
    let mut producer = Producer::new(out.clone(), LINES, Barrier::Fence);
    producer.link(&own.window(), Barrier::Fence);
    let consumer = Consumer::new(out.window(), own.clone(), LINES, Barrier::Fence);
    (producer, consumer, out, own)
}

fn packet(number: u32, len: usize) -> Vec<u8> {
    // What the middle of a packet holds looks like words of any lap.
    let tag = (number % 5 + 1) << TAG_SHIFT | (Kind::Plain as u32) << LEN_BITS | 12;
    let mut p: Vec<u8> = tag.to_le_bytes().into_iter().cycle().take(len).collect();
    p[..4].copy_from_slice(&number.to_le_bytes());
    p
}

#[test]
fn what_was_written_and_not_shown_is_no_word_behind_a_shorter_record() {
    let (mut producer, mut consumer, ..) = pair();
    let mut record = Record::new();
    producer.reserve(4000).unwrap().fill(0xcd);
    for (number, len) in [(1, 20), (2, 200), (3, 4000), (4, 20)] {
        producer.push(Attributes::NONE, &packet(number, len)).unwrap();
        consumer.take(&mut record).unwrap().expect("it was shown");
        assert_eq!(record.packet(), packet(number, len));
        assert_eq!(consumer.take(&mut record), Ok(None), "behind record {number}");
    }
}

/// A message of one line, and its length: every word of eight bytes in it tells its number.
fn line(number: u32) -> (Line, usize) {
    let mut line = [super::pair(number, number); LINE / 8];
    line[0] = super::pair(0, number);
    (line, MIN_PACKET + number as usize % (FIRST_BYTES - MIN_PACKET + 1))
}

/// Takes the line that is next; `None`: nothing is there.
fn take_line(consumer: &mut Consumer) -> Option<(usize, u32)> {
    let taken = match consumer.peek_line() {
        Peeked::Nothing => return None,
        Peeked::Line(len, line) => (len, halves(line.word::<0>())[1]),
        Peeked::Other => panic!("a record that no line is"),
    };
    consumer.pass_line();
    Some(taken)
}

#[test]
fn what_a_longer_record_left_is_no_word_behind_a_line() {
    let (mut producer, mut consumer, ..) = pair();
    let mut record = Record::new();
    // All of the first lap but its end is in the middle of packets, full of words that would be lines of the second.
    let word = 2 << TAG_SHIFT | (Kind::Message as u32) << LEN_BITS | 20;
    let packet: Vec<u8> = word.to_le_bytes().into_iter().cycle().take(MAX_RECORD).collect();
    while producer.tail + lines_of(MAX_RECORD) < LINES {
        producer.push(Attributes::NONE, &packet).unwrap();
        consumer.take(&mut record).unwrap().expect("it was shown");
    }
    for number in 0..2 * LINES {
        let (mut line, len) = line(number);
        assert!(producer.push_line(&mut line, len));
        assert_eq!(take_line(&mut consumer), Some((len, number)));
        assert_eq!(take_line(&mut consumer), None, "behind line {number} at {}", producer.tail);
    }
}

fn attributes(number: u32) -> Attributes {
    match number % 7 {
        0 => Attributes { traffic_class: number as u8, hop_limit: 3 },
        n if n % 2 == 0 => Attributes::NONE,
        _ => Attributes::ECT0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 64 }, ..ProptestConfig::default() })]

    /// Over many laps, with bursts that fill the ring and packets that reach across its end.
    #[test]
    fn what_is_pushed_is_taken_whole_once_and_in_order(
        lens in prop::collection::vec(prop_oneof![3 => 12..80_usize, 1 => 80..4200_usize], PACKETS),
        bursts in prop::collection::vec((1..200_usize, 1..200_usize), 400),
        laps in 1..4_usize,
    ) {
        let (mut producer, mut consumer, ..) = pair();
        let mut record = Record::new();
        let total = lens.len() * laps;
        let len = |i: usize| lens[i % lens.len()];
        let (mut sent, mut taken, mut turn) = (0, 0, 0);
        while taken < total {
            let (push, take) = bursts[turn % bursts.len()];
            turn += 1;
            for _ in 0..push {
                if sent == total {
                    break;
                }
                match producer.push(attributes(sent as u32), &packet(sent as u32, len(sent))) {
                    Ok(_) => sent += 1,
                    Err(Refusal::Full) => break,
                    Err(Refusal::Garbage(g)) => panic!("{g}"),
                }
            }
            for _ in 0..take {
                let Some((found, _)) = consumer.take(&mut record).unwrap() else { break };
                prop_assert_eq!(record.packet(), packet(taken as u32, len(taken)));
                prop_assert_eq!(found, What::Packet(attributes(taken as u32)));
                taken += 1;
            }
            prop_assert!(taken <= sent);
        }
        prop_assert!(consumer.take(&mut record).unwrap().is_none());
    }
}

#[test]
fn a_ring_is_full_until_credits_come_back() {
    let (mut producer, mut consumer, ..) = pair();
    let mut record = Record::new();
    let mut pushed = 0;
    while producer.push(Attributes::NONE, &packet(pushed, 60)).is_ok() {
        pushed += 1;
    }
    assert_eq!(pushed, LINES - 1);
    for _ in 0..LINES / 8 - 1 {
        consumer.take(&mut record).unwrap().unwrap();
    }
    assert_eq!(producer.push(Attributes::NONE, &packet(0, 60)), Err(Refusal::Full));
    consumer.take(&mut record).unwrap().unwrap();
    assert_eq!(producer.push(Attributes::NONE, &packet(0, 60)), Ok(1));
}

#[test]
fn tags_come_round_without_a_packet_seen_twice() {
    let (mut producer, mut consumer, ..) = pair();
    (producer.tag, consumer.tag) = (0xfffe, 0xfffe);
    let mut record = Record::new();
    for i in 0..LINES * 5 {
        producer.push(Attributes::NONE, &packet(i, 12 + i as usize % 120)).unwrap();
        consumer.take(&mut record).unwrap().unwrap();
        assert_eq!(record.packet(), packet(i, 12 + i as usize % 120));
        assert!(consumer.take(&mut record).unwrap().is_none());
    }
    assert!(producer.tag < 10);
}

/// Garbage in every line and in the credits, at any time between honest packets.
#[test]
fn garbage_is_refused_or_taken_as_a_packet_but_never_more() {
    let (seeds, steps) = if cfg!(miri) { (2, 40) } else { (600, 200) };
    for seed in 0..seeds {
        let mut rng = Rng::new(seed);
        let (mut producer, mut consumer, out, own) = pair();
        let mut record = Record::new();
        'case: for step in 0..steps {
            match rng.next_u32() % 5 {
                // A word that is nearly right, or not at all.
                0 => {
                    let near = consumer.tag << TAG_SHIFT | rng.next_u32() & 0xffff;
                    let word = if rng.next_u32().is_multiple_of(4) { rng.next_u32() } else { near };
                    let at = consumer.line(consumer.head.wrapping_add(rng.next_u32() % 3));
                    out.word(at).store(word, Ordering::Relaxed);
                }
                1 => {
                    let at = (rng.next_u32() as usize % (RING_AT / 4 + LINES as usize * LINE / 4)) * 4;
                    out.word(at).store(rng.next_u32(), Ordering::Relaxed);
                }
                2 if rng.next_u32().is_multiple_of(8) => {
                    let near = producer.tail.wrapping_add(rng.next_u32() % 64).wrapping_sub(48);
                    own.word(CREDIT_AT).store(near, Ordering::Relaxed);
                    own.word(PARK_AT).store(rng.next_u32(), Ordering::Relaxed);
                }
                _ => {
                    let len = 12 + rng.next_u32() as usize % 4000;
                    let _ = producer.push(attributes(step), &packet(step, len));
                    producer.call_due();
                }
            }
            for _ in 0..rng.next_u32() % 8 {
                match consumer.take(&mut record) {
                    Ok(None) => break,
                    Ok(Some((_, lines))) => {
                        assert!((12..=MAX_RECORD).contains(&record.packet().len()));
                        assert!(lines <= MAX_LINES);
                    }
                    Err(_) => break 'case,
                }
            }
            assert!(producer.unconsumed() <= LINES, "seed {seed}");
        }
    }
}

#[test]
fn credits_for_what_was_not_sent_are_garbage() {
    let (mut producer, _, _, own) = pair();
    producer.push(Attributes::NONE, &packet(0, 60)).unwrap();
    own.word(CREDIT_AT).store(2, Ordering::Relaxed);
    assert_eq!(producer.refresh(), Err(Garbage::Credits { credits: 2, from: 0, to: 1 }));
    own.word(CREDIT_AT).store(u32::MAX, Ordering::Relaxed);
    assert!(producer.refresh().is_err());
    own.word(CREDIT_AT).store(1, Ordering::Relaxed);
    assert_eq!(producer.refresh(), Ok(true));
}

#[test]
fn a_parked_consumer_is_called_once_a_parking() {
    let (mut producer, mut consumer, ..) = pair();
    let mut record = Record::new();
    let push = |p: &mut Producer| p.push(Attributes::NONE, &packet(0, 12)).unwrap();
    push(&mut producer);
    assert!(!producer.call_due());
    consumer.take(&mut record).unwrap().unwrap();
    consumer.park();
    assert!(!consumer.has_input());
    push(&mut producer);
    assert!(producer.call_due());
    push(&mut producer);
    assert!(!producer.call_due());
    // Parked again without having looked: the producer's call is on its way, and says so.
    consumer.park();
    assert!(!producer.call_due());
    consumer.note_call();
    consumer.park();
    assert!(producer.call_due());
}
