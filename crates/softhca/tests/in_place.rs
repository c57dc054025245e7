//! Payloads that the network sends in place: the conditions, and the time for which the network reads them.
//!
//! Invariants:
//! 1. The memory that is posted outlives its queue pair.
//! 2. It is written by no reference while its request is under way.
#![allow(unsafe_code)]

mod ends;

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ends::End;
use hca_core::{
    AddressVector, Counter, Device, Instant, Payload, QpAttr, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge,
};
use hca_fabric::{
    Fabric, FabricAttr, LoopbackFabric, LoopbackNet, PathError, PathId, QpEnds, RxBudget, RxOutcome,
    RxPacket, Tap, TxBatch,
};
use softhca::{Options, Progress, SoftHca};

/// Two packets.
const LEN: usize = 2048;

/// A network within the process that would take every payload from where it lies, and can be made to take nothing.
struct Full {
    inner: LoopbackFabric,
    full: Arc<AtomicBool>,
    /// A batch came with payloads that were not copied.
    lent: Arc<AtomicBool>,
}

impl Fabric for Full {
    fn attr(&self) -> &FabricAttr {
        self.inner.attr()
    }
    fn open_path_of(&mut self, av: &AddressVector, ends: QpEnds) -> Result<PathId, PathError> {
        self.inner.open_path_of(av, ends)
    }
    fn close_path(&mut self, path: PathId) {
        self.inner.close_path(path);
    }
    fn send(&mut self, now: Instant, batch: &mut TxBatch) {
        self.lent.fetch_or(batch.is_lent(), Ordering::Relaxed);
        if !self.full.load(Ordering::Relaxed) {
            batch.take_in();
            self.inner.send(now, batch);
        }
    }
    fn sends_in_place_from(&self) -> Option<u32> {
        Some(1)
    }
    fn recv(&mut self, now: Instant, budget: RxBudget, sink: &mut dyn FnMut(&RxPacket<'_>)) -> RxOutcome {
        self.inner.recv(now, budget, sink)
    }
    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }
    fn counters(&self, out: &mut Vec<Counter>) {
        self.inner.counters(out);
    }
    fn set_tap(&mut self, tap: Option<Box<dyn Tap>>) {
        self.inner.set_tap(tap);
    }
}

struct Bench {
    a: End,
    b: End,
    full: Arc<AtomicBool>,
    lent: Arc<AtomicBool>,
}

impl Bench {
    fn new() -> Self {
        let net = LoopbackNet::new();
        let at = |n| net.attach(IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)));
        let (full, lent) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let near = Full { inner: at(1), full: full.clone(), lent: lent.clone() };
        let open = |fabric: Box<dyn Fabric>| {
            End::new(
                SoftHca::open(fabric, Options { progress: Progress::Inline, ..Options::default() }).unwrap(),
            )
        };
        let (a, b) = (open(Box::new(near)), open(Box::new(at(2))));
        a.connect(&b);
        b.connect(&a);
        Self { a, b, full, lent }
    }
    /// Fills the memory of A.
    fn fill(&self, byte: u8) {
        // SAFETY: (1, 2)
        unsafe { self.a.memory.addr().as_ptr().write_bytes(byte, LEN) };
    }
    /// Posts a SEND of two packets of it, in as many entries as are asked for.
    fn post(&mut self, entries: u64, flags: SendFlags) {
        let len = LEN as u64 / entries;
        let base = self.a.memory.addr().as_ptr() as u64;
        let entry = |k| Sge { addr: base + k * len, len: len as u32, lkey: self.a.keys.lkey };
        let sges: Vec<_> = (0..entries).map(entry).collect();
        let wr = SendWr { wr_id: 1, op: SendOp::Send, flags, payload: Payload::Sges(&sges), dest: None };
        // SAFETY: (1, 2)
        unsafe { self.a.rc.send.post(&[wr]) }.unwrap();
        self.a.rc.send.ring();
        self.a.device.turn();
    }
    /// Has B expect it.
    fn receive(&mut self) {
        let addr = self.b.memory.addr().as_ptr() as u64;
        let sges = [Sge { addr, len: LEN as u32, lkey: self.b.keys.lkey }];
        // SAFETY: (1, 2)
        unsafe { self.b.rc.recv.post(&[RecvWr { wr_id: 0, sges: &sges }]) }.unwrap();
        self.b.rc.recv.ring();
    }
    /// What arrives at B.
    fn received(&mut self) -> [u8; LEN] {
        self.b.next(&*self.a.device).expect("the message arrives");
        let mut bytes = [0; LEN];
        // SAFETY: (1, 2)
        unsafe { self.b.memory.addr().as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), LEN) };
        bytes
    }
}

#[test]
fn what_the_network_had_no_room_for_is_read_no_more_once_its_request_has_ended() {
    let mut t = Bench::new();
    t.receive();
    t.fill(7);
    t.full.store(true, Ordering::Relaxed);
    t.post(1, SendFlags::SIGNALED | SendFlags::STABLE);
    assert!(t.lent.load(Ordering::Relaxed));
    let error = QpAttr { state: Some(QpState::Error), ..QpAttr::default() };
    t.a.device.modify_qp(t.a.rc.handle, &error).unwrap();
    // The request was flushed: the memory is the program's again.
    t.fill(9);
    t.full.store(false, Ordering::Relaxed);
    t.a.device.turn();
    assert_eq!(t.received(), [7; LEN]);
}

#[test]
fn only_what_is_promised_to_stay_and_lies_in_its_lists_first_piece_is_lent() {
    for (entries, flags, lent) in [
        (1, SendFlags::STABLE, true),
        (1, SendFlags::empty(), false),
        (2, SendFlags::STABLE, true),
        (4, SendFlags::STABLE, false),
    ] {
        let mut t = Bench::new();
        t.receive();
        t.fill(5);
        t.post(entries, flags | SendFlags::SIGNALED);
        assert_eq!(t.received(), [5; LEN]);
        assert_eq!(t.lent.load(Ordering::Relaxed), lent, "{entries} entries, {flags:?}");
    }
}
