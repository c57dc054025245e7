//! What the fuzz target `live_qp` does with its input: a software adapter with connected queue pairs of
//! every service, in virtual time, fed raw transport packets. The corpus runs through it in `cargo test` too.
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
//! 1. A request names the arena only, which outlives the adapter; no reference to the arena's bytes exists
//!    while the adapter works.
#![allow(unsafe_code)]

mod arena;
mod repair;
mod wire;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hca_core::wire::{Placement, Selectivity};
use hca_core::{
    Access, AckTimeout, AddressVector, AhHandle, Completion, CqHandle, CqPort, Device, Gid, MrKeys, Mtu,
    Notify, Payload, PdHandle, Pkey, PostErrorKind, Psn, Qkey, QpAttr, QpCap, QpHandle, QpInit, QpState,
    QpType, Qpn, RecvPort, RecvWr, RemoteAddr, Rkey, RnrTimer, SendFlags, SendOp, SendPort, SendWr, Sge,
    SrqHandle, SrqInit, UdDest, WcOpcode, WcStatus,
};
use hca_fabric::{FabricAttr, FabricLink};
use softhca::{Clock, Limits, Options, Progress, SoftHca};

use arena::{AREAS, Area, Arena, register};
use repair::Repair;
use wire::{PEER_QPN, Wire, WireFabric};

/// Records of one input at most.
const MAX_RECORDS: usize = 192;
/// Turns after which an adapter without new input has to be idle.
const MAX_TURNS: usize = 2_000;
const QKEY: u32 = 0x1234_5678;
const SERVICES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

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
            qpn_slot: None,
            link: FabricLink::none(),
            notes: Vec::new(),
        };
        let clock = Arc::new(AtomicU64::new(1));
        let options = Options {
            progress: Progress::Inline,
            lazy_acks: false,
            seed: Some(7),
            clock: Clock::Virtual(clock.clone()),
            limits: Limits { qps: 8, cqs: 4, srqs: 2, mrs: 16, pds: 4, ahs: 4 },
            ..Options::default()
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
        // SAFETY: (1)
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
            4 if which & 64 != 0 => SendOp::AtomicWrite { remote, value: [3; 8] },
            5 if which & 64 != 0 => SendOp::Flush {
                remote,
                len: 40,
                placement: Placement::GLOBAL_VISIBILITY,
                selectivity: if long { Selectivity::Region } else { Selectivity::Range },
            },
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
        let list = if op.has_list() { core::slice::from_ref(&sge) } else { &[] };
        let wr = SendWr { wr_id, op, flags, payload: Payload::Sges(list), dest: dest.map(Into::into) };
        let pair = &mut self.pairs[n];
        // SAFETY: (1)
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
