//! The receive of MPI over 3.3: expected messages go to the buffer of their receive, unexpected ones to a shared
//! buffer, and the conditional update closes the race between the search of the unexpected messages and the post.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use portals::Memory;
use portals::v3::{
    AckReq, EqHandle, Event, EventKind, MatchId, Md, MdOptions, MeHandle, Position, ReturnCode, Threshold,
    Unlink,
};

use crate::pair::{Bed, LIMIT, Side, pattern, times};

const MESSAGES: u64 = 400;

/// How many bytes a message of this tag has: some are long, and come by rendezvous.
fn length_of(tag: u64) -> usize {
    [0, 8, 100, 4096, 4097, 9000][tag as usize % 6]
}
fn bytes_of(tag: u64) -> Vec<u8> {
    let mut bytes = pattern(length_of(tag));
    bytes.iter_mut().for_each(|byte| *byte ^= tag as u8);
    bytes
}

/// One side's receives.
struct Receiver<'a> {
    side: &'a Side,
    /// What takes what nobody asked for; receives go before it.
    catch_all: MeHandle,
    buffer: Memory,
    unexpected: EqHandle,
    /// Began, and was not asked for yet.
    arrived: VecDeque<Event>,
    /// Ended, before the one that asks looked.
    ended: Vec<u64>,
    expected: u64,
    found: u64,
    lost_races: u64,
}

impl<'a> Receiver<'a> {
    fn new(side: &'a Side) -> Self {
        let buffer = side.zeroed(4 << 20);
        let unexpected = side.ni.eq_alloc(2 * MESSAGES as u32 + 8, None).unwrap();
        let catch_all = side.ni.me_attach(1, MatchId::ANY, 0, !0, Unlink::Retain, Position::After).unwrap();
        let md = Md { eq: Some(unexpected), options: MdOptions::OP_PUT, ..Md::new(&buffer) };
        side.ni.md_attach(catch_all, &md, Unlink::Retain).unwrap();
        Self {
            side,
            catch_all,
            buffer,
            unexpected,
            arrived: VecDeque::new(),
            ended: Vec::new(),
            expected: 0,
            found: 0,
            lost_races: 0,
        }
    }
    /// Takes what has come unasked for.
    fn look(&mut self) {
        while let Some(got) = self.side.ni.eq_get(self.unexpected).unwrap() {
            assert!(!got.dropped);
            match got.event.kind {
                EventKind::PutStart => self.arrived.push_back(got.event),
                _ => self.ended.push(got.event.link),
            }
        }
    }
    fn receive(&mut self, tag: u64, in_one_call: bool) -> Vec<u8> {
        let began = Instant::now();
        let memory = self.side.zeroed(length_of(tag));
        loop {
            self.look();
            if let Some(at) = self.arrived.iter().position(|event| event.match_bits == tag) {
                let event = self.arrived.remove(at).unwrap();
                while !self.ended.contains(&event.link) {
                    self.look();
                    assert!(began.elapsed() < LIMIT, "tag {tag} began and has not ended");
                    thread::yield_now();
                }
                self.found += 1;
                let (start, len) = (event.offset as usize, event.mlength as usize);
                return self.buffer.slice(start..start + len).to_vec();
            }
            let posted = if in_one_call { self.post(tag, &memory) } else { self.post_in_three(tag, &memory) };
            if posted {
                break;
            }
            self.lost_races += 1;
        }
        loop {
            assert!(began.elapsed() < LIMIT, "tag {tag} did not come");
            let got = self.side.ni.eq_get(self.side.eq).unwrap();
            match got.map(|got| got.event.kind) {
                Some(EventKind::PutEnd) => {}
                Some(EventKind::Unlink) => break,
                _ => thread::yield_now(),
            }
        }
        self.expected += 1;
        memory.to_vec()
    }
    /// Whether the receive is posted; otherwise something has come since the look.
    fn post_in_three(&self, tag: u64, memory: &Memory) -> bool {
        let (ni, before) = (&self.side.ni, Position::Before);
        let me = ni.me_insert(self.catch_all, MatchId::ANY, tag, 0, Unlink::Unlink, before).unwrap();
        let active = self.descriptor(memory);
        let md = ni.md_attach(me, &Md { threshold: times(0), ..active.clone() }, Unlink::Unlink).unwrap();
        match ni.md_update(md, Some(&active), Some(self.unexpected)) {
            Ok(old) => assert_eq!(old.threshold, Threshold::Count(0)),
            Err(refused) => {
                assert_eq!(refused.code(), ReturnCode::MdNoUpdate, "{refused}");
                ni.md_unlink(md).unwrap();
                return false;
            }
        }
        true
    }
    fn post(&self, tag: u64, memory: &Memory) -> bool {
        let (before, goes) = (Position::Before, Unlink::Unlink);
        let md = self.descriptor(memory);
        let test = Some(self.unexpected);
        let posted =
            self.side.ni.me_md_post(self.catch_all, MatchId::ANY, tag, 0, goes, before, &md, goes, test);
        match posted {
            Ok(_) => true,
            Err(refused) => {
                assert_eq!(refused.code(), ReturnCode::MdNoUpdate, "{refused}");
                false
            }
        }
    }
    fn descriptor(&self, memory: &Memory) -> Md {
        let options = MdOptions::OP_PUT | MdOptions::EVENT_START_DISABLE;
        Md { threshold: times(1), options, eq: Some(self.side.eq), ..Md::new(memory) }
    }
}

/// Lets the sender go when it is dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// One side sends all tags in order, as fast as it can or by turns; the other asks for them in its own order.
fn all_arrive(bed: &Bed, in_one_call: bool) {
    let p = bed.pair();
    let mut receiver = Receiver::new(&p.b);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut x = 1_u64;
            for tag in 0..MESSAGES {
                let md = p.a.silent(&bytes_of(tag));
                p.a.ni.put(md, AckReq::NoAck, p.b.id(), 1, 0, tag, 0, 0).unwrap();
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                for _ in 0..x >> 58 {
                    p.a.ni.progress();
                    thread::yield_now();
                }
            }
            while !done.load(Ordering::Acquire) {
                p.a.ni.progress();
                thread::yield_now();
            }
        });
        // Also if a check fails.
        let _done = Done(&done);
        for tag in 0..MESSAGES {
            // Pairs the other way round: every second one is surely asked for late.
            let tag = tag ^ 1;
            assert_eq!(receiver.receive(tag, in_one_call), bytes_of(tag), "tag {tag}");
        }
    });
    receiver.look();
    assert!(receiver.arrived.is_empty(), "nothing came twice");
    let Receiver { expected, found, lost_races, .. } = receiver;
    println!("{bed:?}: {expected} expected, {found} unexpected, {lost_races} updates refused");
    assert_eq!(expected + found, MESSAGES);
}

pub(crate) fn md_update_closes_the_race_with_messages_that_come_meanwhile(bed: &Bed) {
    all_arrive(bed, false);
}

pub(crate) fn me_md_post_closes_it_in_one_call(bed: &Bed) {
    all_arrive(bed, true);
}
