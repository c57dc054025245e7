//! What the fuzz target `live_qp` does with its input: a software adapter with connected queue pairs of
//! every service, in virtual time, fed raw transport packets. The corpus runs through it in `cargo test` too.
//! It is one file since the target and the test include it by path.
//!
//! The first byte of an input chooses the set-up. Then come records; the low three bits of a record's
//! first byte say what it is:
//!
//! | bits | record | what follows |
//! |---|---|---|
//! | 0 to 4 | a packet for queue pair `byte >> 3` | what to repair ([`Repair`]), length, bytes from the BTH on |
//! | 5 | time passes, up to seconds | exponent |
//! | 6 | a request is posted | which |
//! | 7 | a call of the control path | which |
//!
//! Repairs give a packet what random bytes never get right: the queue pair's number, a PSN near the
//! expected one or of a request under way, a key that exists, a length that fits.
//!
//! Invariants of the unsafe code:
//! 1. The [`Arena`]'s bytes are reached through its pointer only, while adapter and target take turns on
//!    one thread.
//! 2. The arena is freed after the adapter that it is registered with.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hca_core::wire::{ICRC_BYTES, Opcode, Packet, PacketOp, TransportKind};
use hca_core::{
    Access, AckTimeout, AddressVector, AhHandle, Completion, Counter, CqHandle, CqPort, Device, Gid, Instant,
    MrInit, MrKeys, Mtu, Notify, Payload, PdHandle, Pkey, PostErrorKind, Psn, Qkey, QpAttr, QpCap, QpHandle,
    QpInit, QpState, QpType, Qpn, RecvPort, RecvWr, RemoteAddr, Rkey, RnrTimer, SendFlags, SendOp, SendPort,
    SendWr, Sge, SrqHandle, SrqInit, UdDest, WcOpcode, WcStatus,
};
use hca_fabric::{Fabric, FabricAttr, PathError, PathId, RxBudget, RxOutcome, RxPacket, Tap, TxBatch};
use softhca::{Clock, Limits, Options, Progress, SoftHca};

/// Records of one input at most.
const MAX_RECORDS: usize = 192;
/// Turns after which an adapter without new input has to be idle.
const MAX_TURNS: usize = 2_000;
/// Requests of a queue pair whose PSNs are remembered.
const REMEMBERED: usize = 64;
const QKEY: u32 = 0x1234_5678;
/// Number of the peer of the queue pair at this index.
const PEER_QPN: [u32; 3] = [0x111, 0x222, 0x333];
const SERVICES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

/// What memory holds that no peer may read. It never comes from an input.
const SECRET: u8 = 0xee;
/// As many secret bytes in a row are a leak.
const LEAK: usize = 24;
const GUARD: usize = 64;
const SLOT: usize = 640;
const SLOTS: usize = 24;

/// The regions of the arena, in its order, each between guards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Area {
    /// Peers may do anything.
    Open = 0,
    /// Peers may read.
    ReadOnly = 1,
    /// Receive buffers and what READs and atomics bring: no peer may name it.
    Landing = 2,
    /// Peers may write.
    WriteOnly = 3,
    /// Peers may do anything, but it is another protection domain's.
    Foreign = 4,
    /// Its key was taken back.
    Gone = 5,
    /// What is sent: no peer may name it.
    Source = 6,
}
const AREAS: [(Area, usize, Access); 7] = [
    (Area::Open, 4096, Access::all()),
    (Area::ReadOnly, 1024, Access::REMOTE_READ),
    (Area::Landing, SLOT * SLOTS, Access::LOCAL_WRITE),
    (Area::WriteOnly, 1024, Access::LOCAL_WRITE.union(Access::REMOTE_WRITE)),
    (Area::Foreign, 512, Access::all()),
    (Area::Gone, 512, Access::all()),
    (Area::Source, 2048, Access::empty()),
];

/// Repairs of a packet before it is fed.
struct Repair(u8);
impl Repair {
    /// The queue pair's number.
    const QPN: u8 = 1;
    /// The PSN: near what the responder expects.
    const PSN: u8 = 1 << 1;
    /// With `PSN`: that of a request under way instead.
    const RESPONSE: u8 = 1 << 2;
    /// A key that exists, an address in or near its region, a short DMA length.
    const KEY: u8 = 1 << 3;
    /// No padding, and a payload of the path MTU where the operation demands it.
    const LENGTH: u8 = 1 << 4;
    /// The service bits of the opcode.
    const SERVICE: u8 = 1 << 5;
    /// Version, P_Key, Q_Key.
    const HEADER: u8 = 1 << 6;
    /// It met congestion on its way.
    const CONGESTION: u8 = 1 << 7;

    fn has(&self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

/// Runs one input. Panics on whatever must not happen.
pub(crate) fn live_qp(data: &[u8]) {
    let mut input = Input(data);
    let Some(setup) = input.byte() else { return };
    let mut bed = Bed::new(setup);
    for _ in 0..MAX_RECORDS {
        let Some(kind) = input.byte() else { break };
        match kind & 7 {
            5 => bed.pass(input.byte().unwrap_or(0)),
            6 => bed.post(input.byte().unwrap_or(0)),
            7 => bed.control(input.byte().unwrap_or(0)),
            _ => {
                let repair = Repair(input.byte().unwrap_or(0));
                let len = usize::from(input.byte().unwrap_or(0));
                let bytes = input.take(len);
                bed.packet(usize::from(kind >> 3), &repair, bytes);
            }
        }
        bed.settle();
    }
    bed.end();
}

struct Input<'a>(&'a [u8]);
impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(len.min(self.0.len()));
        self.0 = tail;
        head
    }
}

/// What the network of the target holds: packets that will arrive, and what is known of those that left.
#[derive(Default)]
struct Wire {
    arriving: VecDeque<(bool, bool, Vec<u8>)>,
    /// PSNs of requests that left, by queue pair.
    requests: [VecDeque<u32>; 3],
    /// The PSN that the RC responder is thought to expect.
    expected: u32,
    paths: Vec<bool>,
    mtu: usize,
}

struct WireFabric {
    attr: FabricAttr,
    peer: IpAddr,
    wire: Arc<Mutex<Wire>>,
}

impl Wire {
    /// One packet leaves.
    fn left(&mut self, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("what the adapter sends is a packet");
        assert!(packet.payload().len() <= self.mtu, "a payload beyond the path MTU");
        let secrets = packet.payload().split(|b| *b != SECRET).map(<[u8]>::len).max();
        assert!(secrets.unwrap_or(0) < LEAK, "memory that no peer may read left: {packet:?}");
        let Some(op) = packet.opcode().op() else { return };
        let psn = packet.bth().psn().raw();
        let qp = PEER_QPN.iter().position(|q| *q == packet.bth().dest_qp().raw());
        let qp = qp.expect("packets go to the peers that were given");
        match op {
            PacketOp::Acknowledge => {
                // A positive one names the last PSN that was taken, a negative one that expected.
                let positive = packet.aeth().is_some_and(|a| a.syndrome >> 5 == 0);
                self.expected = Psn::new(psn).add(u32::from(positive)).raw();
            }
            PacketOp::AtomicAcknowledge
            | PacketOp::ReadResponseFirst
            | PacketOp::ReadResponseMiddle
            | PacketOp::ReadResponseLast
            | PacketOp::ReadResponseOnly => {
                if Psn::new(self.expected).is_before(Psn::new(psn).add(1)) {
                    self.expected = Psn::new(psn).add(1).raw();
                }
            }
            _ => {
                let known = &mut self.requests[qp];
                if !known.contains(&psn) {
                    known.push_back(psn);
                }
                if known.len() > REMEMBERED {
                    known.pop_front();
                }
            }
        }
    }
}

impl Fabric for WireFabric {
    fn attr(&self) -> &FabricAttr {
        &self.attr
    }
    fn open_path(&mut self, _: &AddressVector) -> Result<PathId, PathError> {
        let mut wire = self.wire.lock().unwrap();
        wire.paths.push(true);
        Ok(PathId(wire.paths.len() as u32 - 1))
    }
    fn close_path(&mut self, path: PathId) {
        let open = std::mem::replace(&mut self.wire.lock().unwrap().paths[path.0 as usize], false);
        assert!(open, "a path is closed once");
    }
    fn send(&mut self, _: Instant, batch: &mut TxBatch) {
        let mut wire = self.wire.lock().unwrap();
        for train in batch.trains() {
            assert!(wire.paths[train.path.0 as usize], "a closed path is sent on");
            for packet in batch.bytes(train).chunks(train.segment) {
                wire.left(&packet[..packet.len() - ICRC_BYTES]);
            }
        }
        drop(wire);
        batch.advance(batch.trains().len());
    }
    fn recv(&mut self, _: Instant, budget: RxBudget, sink: &mut dyn FnMut(&RxPacket<'_>)) -> RxOutcome {
        let mut packets = 0;
        while packets < budget.packets {
            let Some((congested, stranger, bytes)) = self.wire.lock().unwrap().arriving.pop_front() else {
                break;
            };
            sink(&RxPacket {
                src: if stranger { self.attr.local } else { self.peer },
                dst: self.attr.local,
                src_port: 50_000,
                traffic_class: if congested { 3 } else { 2 },
                hop_limit: 64,
                bytes: &bytes,
            });
            packets += 1;
        }
        RxOutcome { packets, more: false }
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn counters(&self, _: &mut Vec<Counter>) {}
    fn set_tap(&mut self, _: Option<Box<dyn Tap>>) {}
}

/// All memory of the adapter, with a copy of what may not have changed.
struct Arena {
    memory: NonNull<[u8]>,
    /// What every byte has to be that nobody may write now.
    shadow: Vec<u8>,
    /// Whether a peer may write this area now.
    written: [bool; AREAS.len()],
    /// Slots of the landing area that a posted request holds.
    held: [bool; SLOTS],
}

impl Arena {
    fn new() -> Self {
        let len = AREAS.iter().map(|a| a.1 + GUARD).sum::<usize>() + GUARD;
        let mut bytes = vec![SECRET; len];
        for area in [Area::Open, Area::ReadOnly, Area::WriteOnly, Area::Source] {
            let range = Self::range(area);
            bytes[range.clone()].iter_mut().zip(range).for_each(|(b, i)| *b = i as u8 & 0x7f);
        }
        let shadow = bytes.clone();
        let memory = NonNull::from(Box::leak(bytes.into_boxed_slice()));
        let mut written = [false; AREAS.len()];
        written[Area::Open as usize] = true;
        written[Area::WriteOnly as usize] = true;
        Self { memory, shadow, written, held: [false; SLOTS] }
    }
    fn range(area: Area) -> std::ops::Range<usize> {
        let before: usize = AREAS[..area as usize].iter().map(|a| a.1 + GUARD).sum();
        before + GUARD..before + GUARD + AREAS[area as usize].1
    }
    fn slot(n: usize) -> std::ops::Range<usize> {
        let start = Self::range(Area::Landing).start + n * SLOT;
        // The last bytes of a slot are in no request's list.
        start..start + SLOT - 32
    }
    fn addr(&self, at: usize) -> NonNull<u8> {
        // SAFETY: `at` comes from a range of the arena.
        unsafe { self.memory.cast::<u8>().add(at) }
    }
    fn bytes(&self) -> &[u8] {
        // SAFETY: (1) nobody writes while this thread looks.
        unsafe { self.memory.as_ref() }
    }
    /// What stands there now is what has to stand there from now on.
    fn keep(&mut self, range: std::ops::Range<usize>) {
        let now = self.bytes()[range.clone()].to_vec();
        self.shadow[range].copy_from_slice(&now);
    }
    fn release(&mut self, slot: usize) {
        assert!(std::mem::replace(&mut self.held[slot], false), "slot {slot} was held");
        self.keep(Self::slot(slot));
    }
    /// Nothing changed that no peer and no request could change.
    fn check(&self) {
        let mut from = 0;
        for (area, _, _) in AREAS {
            let range = Self::range(area);
            if self.written[area as usize] {
                self.same(from..range.start);
                from = range.end;
            }
            if area == Area::Landing {
                for slot in (0..SLOTS).filter(|n| self.held[*n]).map(Self::slot) {
                    self.same(from..slot.start);
                    from = slot.end;
                }
            }
        }
        self.same(from..self.shadow.len());
    }
    fn same(&self, range: std::ops::Range<usize>) {
        let (now, then) = (&self.bytes()[range.clone()], &self.shadow[range.clone()]);
        if now != then {
            let at = now.iter().zip(then).position(|(a, b)| a != b).map(|i| range.start + i);
            panic!("the byte at {at:?} of the arena was changed");
        }
    }
}
impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, freed once; (2) the adapter is gone.
        drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
    }
}

/// A request that was posted and has not completed.
struct Posted {
    wr_id: u64,
    signaled: bool,
    slot: Option<usize>,
}

struct Pair {
    qp_type: QpType,
    handle: QpHandle,
    qpn: Qpn,
    send: Box<dyn SendPort>,
    recv: Option<Box<dyn RecvPort>>,
    sends: VecDeque<Posted>,
    recvs: VecDeque<Posted>,
}

struct Bed {
    // Dropped before the arena.
    pairs: Vec<Pair>,
    cq: Box<dyn CqPort>,
    srq: Option<(SrqHandle, Box<dyn RecvPort>)>,
    srq_recvs: Vec<Posted>,
    device: Arc<SoftHca>,
    clock: Arc<AtomicU64>,
    wire: Arc<Mutex<Wire>>,
    mtu: Mtu,
    first_psn: u32,
    peer: IpAddr,
    pds: [PdHandle; 2],
    cq_handle: CqHandle,
    ah: AhHandle,
    keys: Vec<MrKeys>,
    /// Whether the key of the open area is taken back.
    closed: bool,
    next_wr: u64,
    posted: u64,
    completed: u64,
    arena: Arena,
}

impl Bed {
    fn new(setup: u8) -> Self {
        let ip = |last: u8| -> IpAddr {
            if setup & 1 == 0 {
                [10, 0, 0, last].into()
            } else {
                [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)].into()
            }
        };
        let mtu = if setup & 2 == 0 { Mtu::B256 } else { Mtu::B512 };
        let first_psn = if setup & 4 == 0 { 0xff_fffc } else { 100 };
        let (local, peer) = (ip(1), ip(2));
        let wire = Wire { expected: first_psn, mtu: mtu.bytes() as usize, ..Wire::default() };
        let wire = Arc::new(Mutex::new(wire));
        let attr = FabricAttr {
            name: "wire".into(),
            local,
            max_mtu: mtu,
            recv_buffer_bytes: 64 << 10,
            notes: Vec::new(),
        };
        let clock = Arc::new(AtomicU64::new(1));
        let options = Options {
            progress: Progress::Inline,
            seed: Some(7),
            clock: Clock::Virtual(clock.clone()),
            limits: Limits { qps: 8, cqs: 4, srqs: 2, mrs: 16, pds: 4, ahs: 4 },
        };
        let fabric = WireFabric { attr, peer, wire: wire.clone() };
        let device = SoftHca::open(Box::new(fabric), options).expect("an adapter opens");
        let pds = [device.alloc_pd().unwrap(), device.alloc_pd().unwrap()];
        let arena = Arena::new();
        let keys = AREAS.map(|(area, ..)| register(&device, &pds, &arena, area)).to_vec();
        device.dereg_mr(keys[Area::Gone as usize].handle).unwrap();
        let (cq_handle, cq) = device.create_cq(512).unwrap();
        let srq =
            (setup & 8 != 0).then(|| device.create_srq(pds[0], &SrqInit { max_wr: 8, max_sge: 2 }).unwrap());
        let ah = device
            .create_ah(pds[0], &AddressVector { dgid: Gid::from_ip(peer), ..Default::default() })
            .unwrap();
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline: 32 };
        let pairs = SERVICES.map(|qp_type| {
            let srq = srq.as_ref().map(|s| s.0).filter(|_| qp_type == QpType::Rc);
            let init = QpInit { qp_type, send_cq: cq_handle, recv_cq: cq_handle, srq, cap };
            let p = device.create_qp(pds[0], &init).expect("a queue pair is made");
            let (sends, recvs) = (VecDeque::new(), VecDeque::new());
            Pair { qp_type, handle: p.handle, qpn: p.qpn, send: p.send, recv: p.recv, sends, recvs }
        });
        let mut bed = Self {
            pairs: pairs.into(),
            cq,
            srq,
            srq_recvs: Vec::new(),
            device,
            clock,
            wire,
            mtu,
            first_psn,
            peer,
            pds,
            cq_handle,
            ah,
            keys,
            closed: false,
            next_wr: 0,
            posted: 0,
            completed: 0,
            arena,
        };
        bed.begin(setup);
        bed
    }

    /// Connects all queue pairs, and posts the first requests.
    fn begin(&mut self, setup: u8) {
        for n in 0..self.pairs.len() {
            self.connect(n);
            for _ in 0..3 {
                self.post_recv(n);
            }
        }
        if setup & 16 == 0 {
            (0..12).for_each(|which| self.post(which));
        }
        self.settle();
    }

    /// RESET to RTS.
    fn connect(&mut self, n: usize) {
        let Pair { qp_type, handle, .. } = self.pairs[n];
        let (rc, ud) = (qp_type == QpType::Rc, qp_type == QpType::Ud);
        let av = AddressVector { dgid: Gid::from_ip(self.peer), ..AddressVector::default() };
        let psn = Psn::new(self.first_psn);
        let init = QpAttr {
            state: Some(QpState::Init),
            pkey: Some(Pkey::DEFAULT),
            access: (!ud).then_some(Access::all()),
            qkey: ud.then_some(Qkey::new(QKEY)),
            ..QpAttr::default()
        };
        let rtr = QpAttr {
            state: Some(QpState::Rtr),
            dest_qpn: (!ud).then_some(Qpn::new(PEER_QPN[n])),
            av: (!ud).then_some(av),
            path_mtu: (!ud).then_some(self.mtu),
            rq_psn: (!ud).then_some(psn),
            max_dest_rd_atomic: rc.then_some(4),
            min_rnr_timer: rc.then_some(RnrTimer::new(1)),
            ..QpAttr::default()
        };
        let rts = QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(psn),
            max_rd_atomic: rc.then_some(4),
            timeout: rc.then_some(AckTimeout::new(8)),
            retry_cnt: rc.then_some(7),
            rnr_retry: rc.then_some(7),
            ..QpAttr::default()
        };
        for attr in [init, rtr, rts] {
            self.device.modify_qp(handle, &attr).expect("a legal transition");
        }
        let mut wire = self.wire.lock().unwrap();
        wire.requests[n].clear();
        if rc {
            wire.expected = self.first_psn;
        }
    }

    fn to_state(&self, n: usize, state: QpState) {
        let attr = QpAttr { state: Some(state), ..QpAttr::default() };
        // Where the state of the moment has no such transition, it is refused.
        let _ = self.device.modify_qp(self.pairs[n].handle, &attr);
    }

    /// Time passes.
    fn pass(&mut self, exponent: u8) {
        self.clock.fetch_add(1 << (exponent % 34), Ordering::Relaxed);
    }

    /// Everything that can be done without new input is done, and completions are taken.
    fn settle(&mut self) {
        let mut turns = 0;
        while self.device.turn() || !self.wire.lock().unwrap().arriving.is_empty() {
            turns += 1;
            assert!(turns < MAX_TURNS, "the adapter works on and on without input");
        }
        self.poll();
        assert!(self.device.next_deadline().is_none_or(|d| !d.is_zero()), "idle, yet a turn is overdue");
        self.arena.check();
    }

    fn poll(&mut self) {
        let mut wcs = [Completion::default(); 16];
        loop {
            let n = self.cq.poll(&mut wcs);
            if n == 0 {
                return;
            }
            wcs[..n].iter().for_each(|wc| self.complete(wc));
        }
    }

    /// Exactly one completion for each signalled request, in the order of its queue.
    fn complete(&mut self, wc: &Completion) {
        self.completed += 1;
        let pair =
            self.pairs.iter_mut().find(|p| p.handle == wc.qp).expect("a completion of a queue pair that is");
        if wc.opcode.is_recv() {
            let done = match pair.recvs.pop_front() {
                Some(first) => first,
                None => {
                    let at = self.srq_recvs.iter().position(|r| r.wr_id == wc.wr_id);
                    self.srq_recvs.swap_remove(at.expect("a receive request completes once"))
                }
            };
            assert_eq!(done.wr_id, wc.wr_id, "receive requests complete in order");
            let most = Arena::slot(0).len();
            if wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv {
                assert!(wc.byte_len as usize <= most, "{} bytes in a buffer of {most}", wc.byte_len);
            }
            self.arena.release(done.slot.expect("receive requests have a slot"));
            return;
        }
        while let Some(done) = pair.sends.pop_front() {
            if let Some(slot) = done.slot {
                self.arena.release(slot);
            }
            if done.wr_id == wc.wr_id {
                assert!(done.signaled || wc.status != WcStatus::Success, "an unsignalled success is silent");
                return;
            }
            assert!(!done.signaled, "request {} was passed over by {wc:?}", done.wr_id);
        }
        panic!("no such request is posted: {wc:?}");
    }

    fn sge(&self, area: Area, at: usize, len: usize) -> Sge {
        let addr = self.arena.addr(at).as_ptr() as u64;
        Sge { addr, len: len as u32, lkey: self.keys[area as usize].lkey }
    }

    fn take_slot(&mut self) -> Option<usize> {
        let slot = self.arena.held.iter().position(|held| !held)?;
        self.arena.held[slot] = true;
        Some(slot)
    }

    fn post_recv(&mut self, n: usize) {
        let Some(slot) = self.take_slot() else { return };
        let range = Arena::slot(slot);
        let half = range.len() / 2;
        let sges =
            [self.sge(Area::Landing, range.start, half), self.sge(Area::Landing, range.start + half, half)];
        let wr_id = self.next_wr;
        self.next_wr += 1;
        let pair = &mut self.pairs[n];
        let (port, list) = match (&mut pair.recv, &mut self.srq) {
            (Some(port), _) => (port, None),
            (None, Some((_, port))) => (port, Some(&mut self.srq_recvs)),
            (None, None) => unreachable!("a queue pair has a receive queue, or shares one"),
        };
        // SAFETY: (1) no reference to the slot is made while it is held.
        match unsafe { port.post(&[RecvWr { wr_id, sges: &sges }]) } {
            Ok(()) => {
                port.ring();
                let posted = Posted { wr_id, signaled: true, slot: Some(slot) };
                match list {
                    Some(list) => list.push(posted),
                    None => pair.recvs.push_back(posted),
                }
                self.posted += 1;
            }
            Err(e) => {
                assert!(
                    matches!(e.kind, PostErrorKind::QueueFull { .. } | PostErrorKind::WrongState(_)),
                    "{e}"
                );
                self.arena.held[slot] = false;
            }
        }
    }

    /// Posts a request: `which` chooses the queue pair, operation, length and flags.
    fn post(&mut self, which: u8) {
        let n = match which % 16 {
            0..=7 => 0,
            8..=9 => 1,
            10..=11 => 2,
            k => return self.post_recv(usize::from(k) % 3),
        };
        let long = which & 16 != 0;
        let remote = RemoteAddr { addr: 0x1000, rkey: Rkey::new(77) };
        let op = match which % 16 {
            0 | 10 => SendOp::Send,
            1 => SendOp::Write(remote),
            2 | 3 => SendOp::Read(remote),
            4 => SendOp::FetchAdd { remote, add: 1 },
            5 => SendOp::CompareSwap { remote, compare: 1, swap: 2 },
            6 => SendOp::SendInv(Rkey::new(78)),
            7 | 8 => SendOp::WriteImm(remote, 5),
            _ => SendOp::SendImm(6),
        };
        let slot = if op.is_read_or_atomic() {
            let Some(slot) = self.take_slot() else { return };
            Some(slot)
        } else {
            None
        };
        let len = match op {
            SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => 8,
            _ if long && n != 2 => 600,
            _ => 40,
        };
        let sge = match slot {
            Some(slot) => self.sge(Area::Landing, Arena::slot(slot).start, len),
            None => self.sge(Area::Source, Arena::range(Area::Source).start + 8, len),
        };
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::SIGNALED, slot.is_some() || which & 32 == 0);
        flags.set(SendFlags::FENCE, which & 64 != 0);
        flags.set(SendFlags::SOLICITED, which & 128 != 0);
        let wr_id = self.next_wr;
        self.next_wr += 1;
        let dest =
            (n == 2).then_some(UdDest { ah: self.ah, qpn: Qpn::new(PEER_QPN[2]), qkey: Qkey::new(QKEY) });
        let wr = SendWr { wr_id, op, flags, payload: Payload::Sges(&[sge]), dest };
        let pair = &mut self.pairs[n];
        // SAFETY: (1) no reference to the slot is made while it is held; the source is only read.
        match unsafe { pair.send.post(&[wr]) } {
            Ok(()) => {
                pair.send.ring();
                pair.sends.push_back(Posted { wr_id, signaled: flags.contains(SendFlags::SIGNALED), slot });
                self.posted += 1;
            }
            Err(e) => {
                assert!(
                    matches!(e.kind, PostErrorKind::QueueFull { .. } | PostErrorKind::WrongState(_)),
                    "{e}"
                );
                if let Some(slot) = slot {
                    self.arena.held[slot] = false;
                }
            }
        }
    }

    fn control(&mut self, which: u8) {
        let n = usize::from(which >> 4) % 3;
        match which & 15 {
            0 => self.cq.arm(Notify::Any),
            1 => self.cq.arm(Notify::Solicited),
            2 => self.to_state(n, QpState::Sqd),
            3 => self.to_state(n, QpState::Rts),
            4 => self.to_state(n, QpState::Error),
            5..=7 => self.reset(n),
            8 => self.close(),
            9 => self.open(),
            10 => {
                if let Some((srq, _)) = &self.srq {
                    self.device.set_srq_limit(*srq, u32::from(which >> 4) % 8).unwrap();
                }
            }
            11 => while self.device.poll_event().is_some() {},
            _ => self.pass(which),
        }
    }

    /// Back to RESET, which forgets all requests, and to RTS again.
    fn reset(&mut self, n: usize) {
        self.poll();
        self.to_state(n, QpState::Reset);
        self.forget(n);
        self.connect(n);
    }

    /// The requests of a queue pair were given up without a completion.
    fn forget(&mut self, n: usize) {
        let pair = &mut self.pairs[n];
        for gone in pair.sends.drain(..).chain(pair.recvs.drain(..)) {
            self.completed += 1;
            if let Some(slot) = gone.slot {
                self.arena.release(slot);
            }
        }
    }

    /// Takes the open area's key back: from now on it must not change.
    fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            // A SEND with invalidate took back the key, not the region.
            self.device.dereg_mr(self.keys[Area::Open as usize].handle).expect("it is registered");
            self.arena.written[Area::Open as usize] = false;
            self.arena.keep(Arena::range(Area::Open));
        }
    }

    fn open(&mut self) {
        if std::mem::replace(&mut self.closed, false) {
            self.keys[Area::Open as usize] = register(&self.device, &self.pds, &self.arena, Area::Open);
            self.arena.written[Area::Open as usize] = true;
        }
    }

    /// A packet arrives.
    fn packet(&mut self, target: usize, repair: &Repair, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        if bytes.len() < 12 {
            // A fabric drops what has no BTH.
            bytes.resize(12, 0);
        }
        let n = target % 3;
        let stranger = target % 32 == 31;
        if repair.has(Repair::SERVICE) {
            bytes[0] = bytes[0] & 0x1f | [0, 0x20, 0x60][n];
        }
        if repair.has(Repair::HEADER) {
            bytes[1] &= 0xf0;
            bytes[2..4].copy_from_slice(&Pkey::DEFAULT.raw().to_be_bytes());
        }
        if repair.has(Repair::QPN) {
            bytes[5..8].copy_from_slice(&self.pairs[n].qpn.raw().to_be_bytes()[1..]);
        }
        if repair.has(Repair::LENGTH) {
            self.repair_length(&mut bytes);
        }
        self.repair_headers(repair, &mut bytes);
        // What an input brings is never taken for a secret.
        bytes[12..].iter_mut().filter(|b| **b == SECRET).for_each(|b| *b = SECRET - 1);
        if repair.has(Repair::PSN) {
            self.repair_psn(n, repair.has(Repair::RESPONSE), &mut bytes);
        }
        self.wire.lock().unwrap().arriving.push_back((repair.has(Repair::CONGESTION), stranger, bytes));
    }

    fn repair_length(&self, bytes: &mut Vec<u8>) {
        let opcode = Opcode::new(bytes[0]);
        let Some(layout) = opcode.layout() else { return };
        bytes[1] &= 0xcf;
        let headers = usize::from(layout.header_bytes);
        if bytes.len() < headers {
            bytes.resize(headers, 0);
        }
        use PacketOp as P;
        let whole = matches!(
            opcode.op(),
            Some(
                P::SendFirst
                    | P::SendMiddle
                    | P::WriteFirst
                    | P::WriteMiddle
                    | P::ReadResponseFirst
                    | P::ReadResponseMiddle
            )
        );
        let fill = bytes[8];
        if whole {
            bytes.resize(headers + self.mtu.bytes() as usize, fill);
        } else if layout.payload {
            // One byte stands for lengths that few inputs would have otherwise.
            let more = if fill & 0x40 != 0 { usize::from(fill & 0x3f) * 4 } else { 0 };
            bytes.resize((bytes.len() + more).next_multiple_of(4), fill);
        } else {
            bytes.truncate(headers);
        }
    }

    /// Keys, addresses and lengths of the extended headers.
    fn repair_headers(&self, repair: &Repair, bytes: &mut [u8]) {
        let Some(layout) = Opcode::new(bytes[0]).layout() else { return };
        if bytes.len() < usize::from(layout.header_bytes) {
            return;
        }
        if repair.has(Repair::HEADER) && layout.deth != 0 {
            let at = usize::from(layout.deth);
            bytes[at..at + 4].copy_from_slice(&QKEY.to_be_bytes());
        }
        if !repair.has(Repair::KEY) {
            return;
        }
        let payload = bytes.len() - usize::from(layout.header_bytes);
        let at = usize::from(if layout.reth != 0 { layout.reth } else { layout.atomic });
        if at != 0 {
            // The key's last byte chooses the area, the address's last two the place, the length's
            // last two how much.
            let area = usize::from(bytes[at + 11]) % AREAS.len();
            let (range, key) = (Arena::range(AREAS[area].0), self.keys[area].rkey);
            let raw = |i: usize| u16::from_be_bytes([bytes[at + i], bytes[at + i + 1]]);
            let len = match (layout.reth, raw(14) >> 14) {
                (0, _) => 8,
                (_, 0) => payload as u32,
                (_, 1) => payload as u32 + u32::from(raw(14) & 0x3ff),
                _ => u32::from(raw(14) & 0x1fff),
            };
            let raw = raw(6);
            let place = if raw >> 12 == 0xf {
                // So that the access ends close to the end of the region, on either side of it.
                (range.end + usize::from(raw & 0x1f)).saturating_sub(16 + len as usize)
            } else {
                range.start + usize::from(raw) % (range.len() + 8)
            };
            let va = self.arena.addr(place.min(range.end + GUARD / 2)).as_ptr() as u64;
            let va = if layout.atomic != 0 && raw & 0x8000 == 0 { va & !7 } else { va };
            bytes[at..at + 8].copy_from_slice(&va.to_be_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&key.raw().to_be_bytes());
            if layout.reth != 0 {
                bytes[at + 12..at + 16].copy_from_slice(&len.to_be_bytes());
            }
        }
        if layout.ieth != 0 {
            let at = usize::from(layout.ieth);
            let area = usize::from(bytes[at + 3]) % AREAS.len();
            bytes[at..at + 4].copy_from_slice(&self.keys[area].rkey.raw().to_be_bytes());
        }
    }

    /// The PSN byte is the distance from what is expected, or the index of a request under way.
    fn repair_psn(&self, n: usize, response: bool, bytes: &mut [u8]) {
        let mut wire = self.wire.lock().unwrap();
        let given = bytes[11];
        let psn = if response {
            let known = &wire.requests[n];
            if known.is_empty() {
                return;
            }
            known[usize::from(given) % known.len()]
        } else {
            // Mostly the one that is expected.
            let away = if given < 0xc0 { 0 } else { i32::from(given) - 0xe0 };
            let psn = (wire.expected as i32).wrapping_add(away) as u32 & 0xff_ffff;
            let rc = Opcode::new(bytes[0]).kind() == Some(TransportKind::Rc);
            if away == 0 && rc {
                wire.expected = Psn::new(psn).add(1).raw();
            }
            psn
        };
        bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
    }

    /// Flushes and destroys everything; each request has ended by then.
    fn end(mut self) {
        for n in 0..self.pairs.len() {
            self.to_state(n, QpState::Error);
        }
        self.settle();
        for pair in &self.pairs {
            let left = pair.sends.iter().filter(|s| s.signaled).chain(&pair.recvs).map(|p| p.wr_id);
            assert_eq!(left.collect::<Vec<_>>(), [0; 0], "flushed requests of {:?} complete", pair.qp_type);
        }
        assert!(self.completed <= self.posted, "{} completions, {} requests", self.completed, self.posted);
        let qpns: Vec<Qpn> = self.pairs.iter().map(|p| p.qpn).collect();
        for n in 0..self.pairs.len() {
            self.forget(n);
            self.device.destroy_qp(self.pairs[n].handle).expect("it is there");
        }
        for qpn in qpns {
            let mut late = vec![0x04, 0x40, 0xff, 0xff, 0, 0, 0, 0, 0x80, 0, 0, 0, 1, 2, 3, 4];
            late[4..8].copy_from_slice(&qpn.raw().to_be_bytes());
            self.wire.lock().unwrap().arriving.push_back((false, false, late));
        }
        self.settle();
        self.device.destroy_cq(self.cq_handle).expect("nothing uses it");
        if let Some((srq, _)) = &self.srq {
            self.device.destroy_srq(*srq).expect("nothing uses it");
        }
        self.device.destroy_ah(self.ah).expect("it is there");
        for (area, _, _) in AREAS {
            let gone = area == Area::Gone || (area == Area::Open && self.closed);
            assert_eq!(self.device.dereg_mr(self.keys[area as usize].handle).is_err(), gone);
        }
        self.pds.iter().for_each(|pd| self.device.dealloc_pd(*pd).expect("it is empty"));
        assert_eq!(
            self.wire.lock().unwrap().paths.iter().filter(|open| **open).count(),
            0,
            "paths left open"
        );
        self.arena.check();
    }
}

fn register(device: &SoftHca, pds: &[PdHandle; 2], arena: &Arena, area: Area) -> MrKeys {
    let (_, len, access) = AREAS[area as usize];
    let addr = arena.addr(Arena::range(area).start);
    let init = MrInit { addr, len, iova: addr.as_ptr() as u64, access };
    let pd = pds[usize::from(area == Area::Foreign)];
    // SAFETY: (2) the arena outlives the adapter, and (1) no references to it are made meanwhile.
    unsafe { device.reg_mr(pd, &init) }.expect("a region is registered")
}
