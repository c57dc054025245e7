//! Fixed send rates: a function sends RDMA and frames together at its rate, and no other traffic waits for the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hca_core::Device;
use hca_fabric::LoopbackNet;
use hca_prm::{Cqe64, CqeOpcode, WqeOpcode};

use crate::bed::ethernet::{Port, Request, frame, is_error, look};
use crate::bed::{ClientMr, ClientQp, QpShape, Server, Wqe};
use crate::function::FunctionOptions;
use crate::port::fixed::Fixed;
use crate::port::rate::Rate;

/// A byte each microsecond.
const RATE: u64 = 8_000_000;
/// What may leave at once at that rate.
const BURST: u64 = 64 << 10;
const FRAME: usize = 1414;
const WRITE: u32 = 4096;

/// Two ports by one clock, of which the first one's rate is fixed.
struct Bed {
    clock: Arc<AtomicU64>,
    server: Server,
    a: Port,
    b: Port,
    /// Frames of the first one that its driver has posted and that have not ended, and bytes of those that have.
    posted: usize,
    sent: u64,
}

impl Bed {
    fn new() -> Self {
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let server = Server::by_clock(&LoopbackNet::new(), "10.0.0.1", clock.clone());
        let fixed = Fixed { rate: Some(Rate::bits_per_s(RATE).unwrap()), ..Fixed::default() };
        let a = Port::with(&server, FunctionOptions { fixed, ..FunctionOptions::default() });
        let b = Port::new(&server, 1);
        Self { clock, server, a, b, posted: 0, sent: 0 }
    }

    fn now_us(&self) -> u64 {
        self.clock.load(Ordering::Relaxed) / 1000
    }

    /// Looks until nothing is found.
    fn look(&mut self) {
        for _ in 0..8 {
            look(&mut [&mut self.a, &mut self.b]);
            self.server.hca.turn();
        }
        while let Some(entry) = self.a.sent() {
            assert_eq!(entry.get(Cqe64::OPCODE), CqeOpcode::Req.code());
            self.posted -= 1;
            self.sent += FRAME as u64;
        }
    }

    fn post_frames(&mut self) {
        let place = self.a.place(FRAME as u32 - 14);
        let header = frame(self.b.mac, self.a.mac, 14);
        while self.posted < 12 {
            self.a.post(&Request::inline(&header).places(&[place]));
            self.posted += 1;
        }
    }
}

/// A queue pair of the first port that writes to one of the second.
struct Writer {
    qp: ClientQp,
    cq: crate::bed::ClientCq,
    from: ClientMr,
    to: ClientMr,
    posted: usize,
    sent: u64,
}

impl Writer {
    fn new(bed: &mut Bed) -> Self {
        let gid = bed.server.gid();
        let [(qp, cq, from), (peer, _, to)] = [&mut bed.a.d, &mut bed.b.d].map(|client| {
            let cq = client.cq(6);
            let qp = client.qp(QpShape::default(), &cq, &cq);
            let mr = client.mr(1 << 16);
            (qp, cq, mr)
        });
        bed.a.d.connect(&qp, gid, peer.qpn);
        bed.b.d.connect(&peer, gid, qp.qpn);
        Self { qp, cq, from, to, posted: 0, sent: 0 }
    }

    fn post(&mut self, bed: &mut Bed) {
        while self.posted < 16 {
            let wqe = Wqe::new(WqeOpcode::RdmaWrite).to(self.to.remote(0)).seg(self.from.seg(0, WRITE));
            bed.a.d.post_send(&mut self.qp, &wqe);
            self.posted += 1;
        }
    }

    fn poll(&mut self, bed: &mut Bed) {
        while let Some(entry) = bed.a.d.poll(&mut self.cq) {
            assert_eq!(entry.get(Cqe64::OPCODE), CqeOpcode::Req.code());
            self.posted -= 1;
            self.sent += u64::from(WRITE);
        }
    }
}

#[test]
fn frames_leave_at_the_rate() {
    let mut bed = Bed::new();
    let start = bed.now_us();
    loop {
        bed.post_frames();
        bed.look();
        let passed = bed.now_us() - start;
        assert!(bed.sent <= passed + BURST + FRAME as u64, "{} bytes in {passed} us", bed.sent);
        if passed >= 300_000 {
            assert!(bed.sent >= passed + BURST - 2 * FRAME as u64, "{} bytes in {passed} us", bed.sent);
            return;
        }
        let wait = bed.a.d.function.frames_leave_in();
        assert!(wait.is_some() || bed.sent < BURST, "frames wait");
        assert!(wait.unwrap_or_default() <= Duration::from_millis(3), "{wait:?}");
        let pause = if bed.sent < BURST { 0 } else { 500_000 };
        bed.clock.fetch_add(pause, Ordering::Relaxed);
    }
}

#[test]
fn frames_that_wait_are_nothing_to_do_until_they_may_leave() {
    let mut bed = Bed::new();
    while bed.a.d.function.frames_leave_in().is_none_or(|wait| wait.is_zero()) {
        bed.post_frames();
        bed.look();
    }
    bed.post_frames();
    bed.look();
    assert!(!bed.a.d.function.take_frames(), "a server that finds no work sleeps");
    let wait = bed.a.d.function.frames_leave_in().unwrap();
    bed.clock.fetch_add(wait.as_nanos() as u64, Ordering::Relaxed);
    assert!(bed.a.d.function.take_frames());
}

#[test]
fn frames_and_queue_pairs_of_a_function_share_its_rate_evenly() {
    let mut bed = Bed::new();
    let mut writer = Writer::new(&mut bed);
    let start = bed.now_us();
    for _ in 0..2000 {
        bed.post_frames();
        writer.post(&mut bed);
        bed.look();
        writer.poll(&mut bed);
        bed.clock.fetch_add(500_000, Ordering::Relaxed);
    }
    let passed = bed.now_us() - start;
    let all = bed.sent + writer.sent;
    assert!(all <= passed + BURST + 2 * u64::from(WRITE), "{all} bytes in {passed} us");
    // Headers of packets, and what was posted when it ended, are not counted here.
    assert!(all * 10 >= passed * 9, "{all} bytes in {passed} us");
    let share = bed.sent as f64 / all as f64;
    assert!((0.4..0.6).contains(&share), "frames had {share} of it");
}

#[test]
fn the_other_function_waits_for_nothing() {
    let mut bed = Bed::new();
    let mut writer = Writer::new(&mut bed);
    writer.post(&mut bed);
    let place = bed.b.place(FRAME as u32 - 14);
    let header = frame(bed.a.mac, bed.b.mac, 14);
    for _ in 0..100 {
        for _ in 0..8 {
            bed.b.post(&Request::inline(&header).places(&[place]));
        }
        look(&mut [&mut bed.a, &mut bed.b]);
        for _ in 0..8 {
            assert!(bed.b.sent().is_some());
        }
    }
    assert!(bed.b.d.function.frames_leave_in().is_none());
}

#[test]
fn a_queue_in_error_is_flushed_at_once() {
    let mut bed = Bed::new();
    for _ in 0..20 {
        bed.post_frames();
        bed.look();
    }
    assert!(bed.posted > 0, "some wait");
    let sqn = bed.a.sq.number;
    bed.a.change_sq(sqn, 1, 3).unwrap();
    look(&mut [&mut bed.a, &mut bed.b]);
    let mut flushed = 0;
    while let Some(entry) = bed.a.sent() {
        assert_ne!(entry.get(Cqe64::OPCODE), CqeOpcode::Req.code());
        flushed += 1;
    }
    assert_eq!(flushed, bed.posted);
    assert!(is_error(bed.a.sq_state()));
}
