//! Queue pairs with a pace: together they send at its rate, for all kinds of requests; no other queue pair waits for
//! it.
#![allow(unsafe_code)] // what is posted names memory that outlives its region

mod ends;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ends::{End, Qp, network, send};
use hca_core::{
    Access, Completion, Device, MrInit, Payload, QpAttr, QpState, RecvWr, RemoteAddr, SendFlags, SendOp,
    SendWr, Sge, WcStatus,
};
use hca_fabric::{Fabric, LoopbackNet};
use softhca::{Clock, Options, Pace, Progress, SoftHca};

/// A byte each microsecond.
const RATE: u64 = 8_000_000;
/// What may leave at once at that rate.
const BURST: u64 = 64 << 10;
const LEN: u32 = 2048;
/// What the headers of a packet may add to its bytes.
const HEADERS: u64 = 64;

/// Two connected ends by one clock, of which the first one has a pace.
struct Bed {
    clock: Arc<AtomicU64>,
    a: End,
    b: End,
    pace: Arc<Pace>,
}

impl Bed {
    fn new(shm: bool) -> Self {
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let net = LoopbackNet::new();
        let [a, b] = [1, 2].map(|n| {
            let fabric: Box<dyn Fabric> = if shm {
                network("shm", n).expect("there is shared memory")
            } else {
                Box::new(net.attach(format!("10.0.0.{n}").parse().unwrap()))
            };
            let clock = Clock::Virtual(clock.clone());
            let options = Options { progress: Progress::Inline, clock, ..Options::default() };
            End::with_cq(SoftHca::open(fabric, options).unwrap(), 4096)
        });
        let pace = Arc::new(Pace::new(NonZeroU64::new(RATE).unwrap()));
        a.device.set_pace(a.rc.handle, pace.clone());
        a.connect(&b);
        b.connect(&a);
        for end in [&a, &b] {
            let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
            let attr = QpAttr { access: Some(access), ..QpAttr::default() };
            end.device.modify_qp(end.rc.handle, &attr).unwrap();
        }
        Self { clock, a, b, pace }
    }

    /// Turns both until nothing moves, and takes what completed at each.
    fn turn(&mut self) -> [usize; 2] {
        let mut all = [Completion::default(); 64];
        let mut done = [0; 2];
        let mut quiet = 0;
        while quiet < 4 {
            quiet += 1;
            for (end, done) in [&mut self.a, &mut self.b].into_iter().zip(&mut done) {
                quiet = if end.device.turn() { 0 } else { quiet };
                let count = end.cq.poll(&mut all);
                assert!(all[..count].iter().all(|c| c.status == WcStatus::Success), "{:?}", all[0]);
                *done += count;
            }
        }
        done
    }

    fn wait(&mut self, ns: u64) {
        self.clock.fetch_add(ns, Ordering::Relaxed);
    }
}

/// The memory of an end, registered for peers.
fn remote(end: &End) -> RemoteAddr {
    let addr = end.memory.addr();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let init = MrInit { addr, len: 4096, iova: addr.as_ptr() as u64, access };
    // SAFETY: the memory lives as long as the device is used.
    let keys = unsafe { end.device.reg_mr(end.pd, &init) }.unwrap();
    RemoteAddr { addr: addr.as_ptr() as u64, rkey: keys.rkey }
}

fn post(qp: &mut Qp, from: (u64, hca_core::Lkey), op: SendOp, count: usize) {
    let sges = [Sge { addr: from.0, len: LEN, lkey: from.1 }];
    let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sges));
    for _ in 0..count {
        // SAFETY: the memory lives as long as the device is used.
        unsafe { qp.send.post(&[SendWr { wr_id: 1, op, flags, payload, dest: None }]) }.unwrap();
    }
    qp.send.ring();
}

fn local(end: &End) -> (u64, hca_core::Lkey) {
    (end.memory.addr().as_ptr() as u64, end.keys.lkey)
}

/// Has bytes of the first end leave until `count` operations are done at the end `at`, and holds each moment against
/// the rate.
fn leaves_at_the_rate(mut bed: Bed, at: usize, count: u64) {
    let start = bed.clock.load(Ordering::Relaxed);
    let mut done = 0;
    loop {
        done += bed.turn()[at] as u64;
        let now_us = (bed.clock.load(Ordering::Relaxed) - start) / 1000;
        let bytes = done * u64::from(LEN);
        assert!(bytes <= now_us + BURST + 4096, "{bytes} bytes in {now_us} us");
        if done == count {
            // Beside the burst they took their time, with their headers, and not much more.
            let least = bytes - BURST - 4096;
            let most = done * (u64::from(LEN) + 2 * HEADERS) - BURST + 20_000;
            assert_eq!(bed.a.counter("probes"), 0, "it takes its own pace for no loss");
            assert!(bed.b.counter("probes") <= 2, "who waits for answers learns how long they take");
            assert!((least..most).contains(&now_us), "{bytes} bytes in {now_us} us");
            return;
        }
        let asleep = bed.a.device.next_deadline().expect("somebody wakes it");
        assert!(!asleep.is_zero(), "it does not spin");
        bed.wait(500_000);
    }
}

#[test]
fn writes_leave_at_the_rate() {
    let mut bed = Bed::new(false);
    let (to, from) = (remote(&bed.b), local(&bed.a));
    post(&mut bed.a.rc, from, SendOp::Write(to), 100);
    leaves_at_the_rate(bed, 0, 100);
}

#[test]
fn writes_to_a_near_peer_leave_at_the_rate() {
    let mut bed = Bed::new(true);
    let (to, from) = (remote(&bed.b), local(&bed.a));
    // What the rings lend and reach directly would not be counted.
    post(&mut bed.a.rc, from, SendOp::Write(to), 100);
    leaves_at_the_rate(bed, 0, 100);
}

#[test]
fn small_sends_to_a_near_peer_leave_at_the_rate() {
    const EACH: usize = 8;
    let mut bed = Bed::new(true);
    let (mut posted, mut done) = (0, 0);
    // Each takes a cache line of the ring.
    while posted < 8 * (BURST as usize / 64) {
        for _ in 0..EACH {
            let sges = [Sge { addr: local(&bed.b).0, len: 64, lkey: local(&bed.b).1 }];
            // SAFETY: the memory lives as long as the device is used.
            unsafe { bed.b.rc.recv.post_now(&RecvWr { wr_id: 0, sges: &sges }) }.unwrap();
            send(&mut bed.a.rc, SendFlags::SIGNALED);
        }
        posted += EACH;
        let [sent, _] = bed.turn();
        done += sent;
        if sent == 0 {
            break;
        }
    }
    assert!(done > 0, "the burst leaves");
    assert!(done < 2 * (BURST as usize / 64), "{done} left at once, of {posted}");
    let asleep = bed.a.device.next_deadline().expect("somebody wakes it");
    assert!(!asleep.is_zero(), "it does not spin");
    bed.wait(10_000_000);
    let [sent, _] = bed.turn();
    assert!(sent > 0, "they go on");
}

#[test]
fn answers_to_reads_leave_at_the_rate_of_who_answers() {
    let mut bed = Bed::new(false);
    let (to, from) = (remote(&bed.a), local(&bed.b));
    post(&mut bed.b.rc, from, SendOp::Read(to), 60);
    leaves_at_the_rate(bed, 1, 60);
}

#[test]
fn a_queue_pair_without_a_pace_waits_for_none() {
    let mut bed = Bed::new(false);
    let (to, from) = (remote(&bed.b), local(&bed.a));
    post(&mut bed.a.rc, from, SendOp::Write(to), 100);
    post(&mut bed.a.uc, from, SendOp::Write(to), 100);
    let [done, _] = bed.turn();
    assert!(done >= 100, "{done}: all of the unlimited queue pair's left");
    assert!(done < 100 + 40, "{done}: of the other one's a burst did");
}

#[test]
fn a_flush_waits_for_nothing() {
    let mut bed = Bed::new(false);
    let (to, from) = (remote(&bed.b), local(&bed.a));
    post(&mut bed.a.rc, from, SendOp::Write(to), 100);
    let [done, _] = bed.turn();
    assert!(done < 40);
    let error = QpAttr { state: Some(QpState::Error), ..QpAttr::default() };
    bed.a.device.modify_qp(bed.a.rc.handle, &error).unwrap();
    let mut all = [Completion::default(); 128];
    let flushed = bed.a.cq.poll(&mut all);
    assert_eq!(done + flushed, 100);
    assert!(all[..flushed].iter().all(|c| c.status == WcStatus::WrFlushed));
}

#[test]
fn a_queue_pair_that_waits_can_be_destroyed() {
    let mut bed = Bed::new(false);
    let (to, from) = (remote(&bed.b), local(&bed.a));
    post(&mut bed.a.rc, from, SendOp::Write(to), 100);
    bed.turn();
    assert_eq!(bed.pace.room(bed.a.device.now()), 0);
    bed.a.device.destroy_qp(bed.a.rc.handle).unwrap();
    bed.wait(1_000_000_000);
    bed.turn();
    assert!(bed.a.device.next_deadline().is_none_or(|at| !at.is_zero()), "nothing waits for its turn");
}
