//! Two queue pairs, their hosts, and a wire between them whose faults a test scripts by packet number; and the names
//! that tests use most.
#![allow(dead_code, unreachable_pub, unused_imports, missing_docs)] // each test takes some of it

mod host;
pub mod ops;
mod raw;

pub use hca_core::wire::{
    BthFlags, Feth, NakCode, Opcode, Packet, PacketOp, PacketOp as P, Placement, Selectivity, Syndrome,
    TransportKind,
};
pub use hca_core::*;
pub use hca_transport::*;

pub use Side::{A, B};
pub use WcStatus::{Success, WrFlushed};
pub use host::*;
pub use raw::Raw;

/// Bytes of each side's memory, all of it one region.
pub const MEMORY: usize = 1 << 20;
/// The key of all memory, with all rights.
pub const KEY: Rkey = Rkey::new(0x1234);
/// First send request index: the indices wrap in most tests.
pub const SQ_BASE: u32 = u32::MAX - 2;
/// A's first PSN.
pub const PSN: u32 = 0xff_fffd;
/// One way through the wire.
pub const LATENCY_NS: u64 = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}
impl Side {
    pub fn other(self) -> Self {
        if self == Self::A { Self::B } else { Self::A }
    }
}

/// The wire's decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    Drop,
    Double,
    Late(u64),
}

/// Collects packets; refuses beyond `room`.
#[derive(Default)]
pub struct VecSink {
    pub out: Vec<(Option<AhHandle>, Vec<u8>)>,
    reserved: Option<(Option<AhHandle>, Vec<u8>)>,
    pub room: usize,
}
impl VecSink {
    pub fn with_room(room: usize) -> Self {
        Self { room, ..Self::default() }
    }
}
impl TxSink for VecSink {
    fn reserve(&mut self, to: Option<AhHandle>, len: usize) -> Option<&mut [u8]> {
        if self.out.len() >= self.room {
            return None;
        }
        // What is not written shows.
        Some(&mut self.reserved.insert((to, vec![0xa5; len])).1)
    }
    fn commit(&mut self) {
        self.out.push(self.reserved.take().expect("a packet was reserved"));
    }
}

pub struct Node {
    pub qp: Qp,
    pub host: MockHost,
}

/// One packet as it was sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub side: Side,
    pub at_ns: u64,
    pub bytes: Vec<u8>,
}
impl Sent {
    pub fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes).unwrap()
    }
    pub fn op(&self) -> Option<PacketOp> {
        self.packet().opcode().op()
    }
    pub fn psn(&self) -> u32 {
        self.packet().bth().psn().raw()
    }
    pub fn syndrome(&self) -> Option<Syndrome> {
        self.packet().aeth().and_then(|a| Syndrome::decode(a.syndrome))
    }
}

pub type Script = Box<dyn FnMut(Side, usize, &Packet<'_>) -> Fate>;

/// How a pair is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    pub qp_type: QpType,
    pub mtu: Mtu,
    pub max_send_wr: u32,
    pub psn_a: u32,
    pub psn_b: u32,
    pub window_bytes: u32,
    pub rd_atomic: u8,
    pub dest_rd_atomic: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub access: Access,
    pub srq_b: bool,
}
impl Default for Setup {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            mtu: Mtu::B256,
            max_send_wr: 128,
            psn_a: PSN,
            psn_b: 0xff_fffe,
            window_bytes: 128 << 10,
            rd_atomic: 4,
            dest_rd_atomic: 4,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            rnr_timer: 1,
            access: Access::all(),
            srq_b: false,
        }
    }
}

impl Setup {
    /// An initiator at A and a target at B.
    pub fn xrc() -> Self {
        Self { qp_type: QpType::XrcIni, srq_b: true, ..Self::default() }
    }
    /// An end-to-end context on either side.
    pub fn rd() -> Self {
        Self { qp_type: QpType::Eec, srq_b: true, ..Self::default() }
    }
    fn type_of(&self, side: Side) -> QpType {
        if side == Side::A { self.qp_type } else { self.qp_type.peer() }
    }
    pub fn config(&self, side: Side) -> QpConfig {
        QpConfig {
            qp_type: self.type_of(side),
            qpn: qpn(side),
            max_rd_atomic_limit: 16,
            max_send_wr: self.max_send_wr,
            window_bytes: self.window_bytes,
            port_mtu: Mtu::B4096,
        }
    }
    /// The steps of a side from RESET to RTR.
    pub fn to_rtr(&self, side: Side) -> [QpAttr; 2] {
        let serves = matches!(self.type_of(side), QpType::Rc | QpType::XrcTgt | QpType::Eec);
        let ud = self.qp_type == QpType::Ud;
        let init = QpAttr {
            state: Some(QpState::Init),
            pkey: Some(Pkey::DEFAULT),
            access: (!ud).then_some(self.access),
            qkey: ud.then_some(QKEY),
            ..QpAttr::default()
        };
        let rq_psn = if side == Side::A { self.psn_b } else { self.psn_a };
        let rtr = QpAttr {
            state: Some(QpState::Rtr),
            av: (!ud).then(AddressVector::default),
            path_mtu: (!ud).then_some(self.mtu),
            dest_qpn: (!ud).then_some(qpn(side.other())),
            rq_psn: (!ud).then_some(Psn::new(rq_psn)),
            max_dest_rd_atomic: serves.then_some(self.dest_rd_atomic),
            min_rnr_timer: serves.then_some(RnrTimer::new(self.rnr_timer)),
            ..QpAttr::default()
        };
        [init, rtr]
    }
    /// The step of a side from RTR to RTS.
    pub fn to_rts(&self, side: Side) -> QpAttr {
        let of = self.type_of(side);
        let sends = matches!(of, QpType::Rc | QpType::XrcIni | QpType::Eec);
        let sq_psn = if side == Side::A { self.psn_a } else { self.psn_b };
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(sq_psn)),
            timeout: of.is_reliable().then_some(AckTimeout::new(self.timeout)),
            retry_cnt: sends.then_some(self.retry_cnt),
            rnr_retry: sends.then_some(self.rnr_retry),
            max_rd_atomic: sends.then_some(self.rd_atomic),
            ..QpAttr::default()
        }
    }
}

/// A packet on its way: when it arrives, the order of those that do so together, to whom, and its bytes.
type InTransit = (u64, usize, Side, Vec<u8>);

pub struct Pair {
    pub now: u64,
    pub a: Node,
    pub b: Node,
    pub script: Script,
    pub wire: Vec<Sent>,
    pub counts: [usize; 2],
    transit: Vec<InTransit>,
    order: usize,
    pub mark_ce: bool,
    pub sink_room: usize,
}

pub fn qpn(side: Side) -> Qpn {
    Qpn::new(if side == Side::A { 0x11 } else { 0x22 })
}
pub const QKEY: Qkey = Qkey::new(0x1111_1111);

impl Pair {
    /// Both sides in RTS.
    pub fn new(setup: &Setup) -> Self {
        let mut pair = Self::reset(setup);
        for side in [Side::A, Side::B] {
            pair.ready_to_receive(side, setup);
            pair.ready_to_send(side, setup);
        }
        pair
    }
    pub fn rc() -> Self {
        Self::new(&Setup::default())
    }
    /// Both sides in RESET.
    pub fn reset(setup: &Setup) -> Self {
        let node = |side| Node { qp: Qp::new(&setup.config(side)), host: MockHost::new() };
        let mut pair = Self {
            now: 1_000,
            a: node(Side::A),
            b: node(Side::B),
            script: Box::new(|_, _, _| Fate::Pass),
            wire: Vec::new(),
            counts: [0; 2],
            transit: Vec::new(),
            order: 0,
            mark_ce: false,
            sink_room: usize::MAX,
        };
        pair.b.host.srq = setup.srq_b;
        pair
    }
    pub fn node(&mut self, side: Side) -> &mut Node {
        if side == Side::A { &mut self.a } else { &mut self.b }
    }
    pub fn instant(&self) -> Instant {
        Instant::from_nanos(self.now)
    }
    /// Calls `f` with a side.
    pub fn with<R>(&mut self, side: Side, f: impl FnOnce(Instant, &mut Qp, &mut MockHost) -> R) -> R {
        let now = self.instant();
        let n = self.node(side);
        f(now, &mut n.qp, &mut n.host)
    }
    pub fn modify(&mut self, side: Side, attr: QpAttr) -> Result<(), TransitionError> {
        self.with(side, |now, qp, host| qp.modify(now, &attr, host))
    }
    pub fn state(&mut self, side: Side, state: QpState) {
        self.modify(side, QpAttr { state: Some(state), ..QpAttr::default() }).unwrap();
    }
    /// To SQD, and asks to be told when all is drained.
    pub fn drain(&mut self, side: Side) {
        self.change(side, QpAttr { sqd_event: Some(true), ..QpAttr::default() });
    }
    /// Changes attributes of a side in SQD.
    pub fn change(&mut self, side: Side, attr: QpAttr) {
        self.modify(side, QpAttr { state: Some(QpState::Sqd), ..attr }).unwrap();
    }
    pub fn ready_to_receive(&mut self, side: Side, setup: &Setup) {
        for attr in setup.to_rtr(side) {
            self.modify(side, attr).unwrap();
        }
    }
    pub fn ready_to_send(&mut self, side: Side, setup: &Setup) {
        self.modify(side, setup.to_rts(side)).unwrap();
    }
    /// Drops the n-th packet (from 0) of a side, each of these once.
    pub fn drop_packets(&mut self, side: Side, numbers: &[usize]) {
        let numbers = numbers.to_vec();
        self.script =
            Box::new(move |s, n, _| if s == side && numbers.contains(&n) { Fate::Drop } else { Fate::Pass });
    }

    pub fn post(&mut self, side: Side, op: SendOp, addr: usize, len: u32, flags: SendFlags) -> u32 {
        let index = self.node(side).host.sq_posted();
        let dest = (self.node(side).qp.qp_type() == QpType::Ud).then_some(UdTarget {
            ah: AhHandle::default(),
            qpn: qpn(side.other()),
            qkey: QKEY,
        });
        self.post_raw(
            side,
            Posted { request: SendRequest { op: op.into(), flags, len, dest }, addr, bad: false },
        );
        index
    }
    pub fn post_raw(&mut self, side: Side, posted: Posted) {
        self.with(side, |now, qp, host| {
            host.push(posted);
            qp.handle_posted(now, host);
        });
    }
    /// Posts a request of A whose memory it may not use.
    pub fn send_bad(&mut self, op: SendOp, len: u32) {
        let request = SendRequest { op: op.into(), flags: SendFlags::SIGNALED, len, dest: None };
        self.post_raw(Side::A, Posted { request, addr: 0, bad: true });
    }
    pub fn send(&mut self, side: Side, op: SendOp, addr: usize, len: u32) -> u32 {
        self.post(side, op, addr, len, SendFlags::SIGNALED)
    }
    /// The same so many times.
    pub fn sends(&mut self, count: usize, side: Side, op: SendOp, addr: usize, len: u32) {
        (0..count).for_each(|_| _ = self.send(side, op, addr, len));
    }
    pub fn recv(&mut self, side: Side, addr: usize, len: usize) -> u32 {
        self.recv_raw(side, addr, len, false)
    }
    /// The same so many times.
    pub fn recvs(&mut self, count: usize, side: Side, addr: usize, len: usize) {
        (0..count).for_each(|_| _ = self.recv(side, addr, len));
    }
    /// Posts a receive request to a shared receive queue of the XRC target at B, or to a queue pair of its RD domain.
    pub fn recv_srq(&mut self, srq: u32, addr: usize, len: usize) -> u32 {
        let host = &mut self.b.host;
        let id = host.next_recv;
        host.next_recv += 1;
        let queue = host.xrc.queues.get_mut(&srq).expect("the queue exists");
        queue.0.push_back(PostedRecv { id, addr, len, bad: false });
        id
    }
    pub fn recv_raw(&mut self, side: Side, addr: usize, len: usize, bad: bool) -> u32 {
        self.with(side, |now, qp, host| {
            let id = host.next_recv;
            host.next_recv += 1;
            host.rq.push_back(PostedRecv { id, addr, len, bad });
            qp.handle_posted(now, host);
            id
        })
    }
    /// Fills memory with bytes that depend on their address.
    pub fn fill(&mut self, side: Side, addr: usize, len: usize) {
        // At once: miri minds single bytes.
        self.node(side).host.mem[addr..addr + len].copy_from_slice(&patterns(addr, len));
    }

    /// Lets both sides send all their packets; returns whether they sent any.
    pub fn transmit(&mut self) -> bool {
        let mut any = false;
        for side in [Side::A, Side::B] {
            any |= self.transmit_side(side);
        }
        any
    }
    pub fn transmit_side(&mut self, side: Side) -> bool {
        let mut sink = VecSink::with_room(self.sink_room);
        self.with(side, |now, qp, host| {
            if qp.wants_transmit() {
                qp.poll_transmit(now, host, &mut sink, 64);
            }
            if qp.ack_owed().is_some() {
                qp.poll_ack(now, host, &mut sink);
            }
        });
        let any = !sink.out.is_empty();
        for (_, bytes) in sink.out {
            self.carry(side, bytes);
        }
        any
    }
    fn carry(&mut self, side: Side, bytes: Vec<u8>) {
        let number = self.counts[side as usize];
        self.counts[side as usize] += 1;
        let fate = (self.script)(side, number, &Packet::parse(&bytes).expect("what is sent parses"));
        self.wire.push(Sent { side, at_ns: self.now, bytes: bytes.clone() });
        let at = self.now + LATENCY_NS;
        match fate {
            Fate::Drop => {}
            Fate::Pass => self.put(at, side.other(), bytes),
            Fate::Late(ns) => self.put(at + ns, side.other(), bytes),
            Fate::Double => {
                self.put(at, side.other(), bytes.clone());
                self.put(at, side.other(), bytes);
            }
        }
    }
    fn put(&mut self, at: u64, to: Side, bytes: Vec<u8>) {
        self.order += 1;
        self.transit.push((at, self.order, to, bytes));
    }
    /// Gives a packet to a side at once.
    pub fn deliver(&mut self, to: Side, bytes: &[u8]) {
        let rx = RxMeta { ce: self.mark_ce, grh: Some(&[7; 40]) };
        let packet = Packet::parse(bytes).unwrap();
        self.with(to, |now, qp, host| qp.handle_packet(now, &rx, &packet, host));
    }
    /// One turn: send, else deliver the next packet, else let the next timer fire. `false`: all is quiet.
    pub fn turn(&mut self) -> bool {
        if self.transmit() {
            return true;
        }
        let next = self.transit.iter().map(|t| t.0).min();
        let Some(at) = [next, self.next_timer()].into_iter().flatten().min() else { return false };
        self.now = self.now.max(at);
        let now = self.now;
        self.take(|t| t.0 <= now);
        self.fire();
        true
    }
    fn take(&mut self, of: impl Fn(&InTransit) -> bool) {
        let mut due: Vec<_> = self.transit.extract_if(.., |t| of(t)).collect();
        due.sort_by_key(|t| (t.0, t.1));
        for (at, _, to, bytes) in due {
            self.now = self.now.max(at);
            self.deliver(to, &bytes);
        }
    }
    /// Lets a side take all that is on its way to it.
    pub fn take_all(&mut self, side: Side) {
        self.take(|t| t.2 == side);
    }
    /// Lets a side send all that it may, and the other side take all that is on its way to it.
    pub fn flow(&mut self, side: Side) {
        self.transmit_side(side);
        self.take_all(side.other());
    }
    /// Loses all that is on its way.
    pub fn lose(&mut self) {
        self.transit.clear();
    }
    /// Sends and takes, and lets no timer fire, until nothing moves.
    pub fn settle(&mut self) {
        while self.transmit() || !self.transit.is_empty() {
            self.take(|_| true);
        }
    }
    fn next_timer(&self) -> Option<u64> {
        [&self.a, &self.b].iter().filter_map(|n| n.qp.next_deadline()).map(Instant::as_nanos).min()
    }
    /// Lets all timers fire that are due.
    pub fn fire(&mut self) {
        let now = self.instant();
        for n in [&mut self.a, &mut self.b] {
            if n.qp.next_deadline().is_some_and(|d| d <= now) {
                n.qp.handle_timeout(now, &mut n.host);
            }
        }
    }
    /// Lets the next timer fire. `false`: there is none.
    pub fn skip(&mut self) -> bool {
        let Some(at) = self.next_timer() else { return false };
        self.now = self.now.max(at);
        self.fire();
        true
    }
    /// Turns until all is quiet.
    pub fn run(&mut self) {
        for _ in 0..200_000 {
            if !self.turn() {
                assert!(
                    !self.a.qp.wants_transmit() && !self.b.qp.wants_transmit(),
                    "quiet, but wants to send"
                );
                return;
            }
        }
        panic!("not quiet after 200,000 turns; the last packets: {:?}", self.last(10));
    }
    /// Goes on until all is quiet; A's requests, all that it ever posted, ended like this.
    #[track_caller]
    pub fn ends(&mut self, statuses: &[WcStatus]) {
        self.run();
        self.expect_sends(statuses);
    }
    /// Turns until this time has passed or all is quiet.
    pub fn run_until(&mut self, until_ns: u64) {
        while self.now < until_ns && self.turn() {}
    }
    pub fn last(&self, n: usize) -> Vec<String> {
        let from = self.wire.len().saturating_sub(n);
        self.wire[from..].iter().map(|s| format!("{} {:?} {:?}", s.at_ns, s.side, s.packet())).collect()
    }
    /// The packets that a side sent, in order.
    pub fn sent(&self, side: Side) -> impl Iterator<Item = &Sent> {
        self.wire.iter().filter(move |s| s.side == side)
    }
    /// Operations that a side sent, in order.
    pub fn ops(&self, side: Side) -> Vec<PacketOp> {
        self.sent(side).filter_map(Sent::op).collect()
    }
    /// PSNs that a side sent, in order.
    pub fn psns(&self, side: Side) -> Vec<u32> {
        self.sent(side).map(Sent::psn).collect()
    }
    pub fn naks(&self, side: Side) -> Vec<NakCode> {
        let nak = |s: &Sent| if let Some(Syndrome::Nak(c)) = s.syndrome() { Some(c) } else { None };
        self.sent(side).filter_map(nak).collect()
    }
    /// Sends of A ended like this.
    #[track_caller]
    pub fn expect_sends(&self, statuses: &[WcStatus]) {
        assert_eq!(self.a.host.statuses(), statuses);
    }
    #[track_caller]
    pub fn expect_bytes(&mut self, side: Side, addr: usize, from: usize, len: usize) {
        let (mem, want) = (&self.node(side).host.mem[addr..addr + len], patterns(from, len));
        if mem != want {
            panic!("wrong byte at {:?}", mem.iter().zip(&want).position(|(is, wanted)| is != wanted));
        }
    }
}

pub const READ: SendOp = SendOp::Read(RemoteAddr { addr: 0, rkey: KEY });
pub const WRITE: SendOp = SendOp::Write(RemoteAddr { addr: 0, rkey: KEY });
pub const ADD: SendOp =
    SendOp::FetchAdd { remote: RemoteAddr { addr: MEMORY as u64 - 8, rkey: KEY }, add: 1 };
pub const ATOMIC_WRITE: SendOp =
    SendOp::AtomicWrite { remote: RemoteAddr { addr: 64, rkey: KEY }, value: [7; 8] };
pub const FLUSH: SendOp = SendOp::Flush {
    remote: RemoteAddr { addr: 0, rkey: KEY },
    len: 8,
    placement: Placement::GLOBAL_VISIBILITY,
    selectivity: Selectivity::Range,
};
/// The length of an operation's list where nothing else matters.
pub fn list(op: SendOp) -> u32 {
    if op.has_list() { 8 } else { 0 }
}

pub fn pattern(addr: usize) -> u8 {
    (addr.wrapping_mul(0x9e37_79b1) >> 13) as u8
}
/// The contents of memory that was filled from `addr` on.
pub fn patterns(addr: usize, len: usize) -> Vec<u8> {
    (addr..addr + len).map(pattern).collect()
}
pub fn remote(addr: usize) -> RemoteAddr {
    RemoteAddr { addr: addr as u64, rkey: KEY }
}
