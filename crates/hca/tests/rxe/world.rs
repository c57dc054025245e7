//! Connections between this project's adapter and Linux's rxe, memory with the same layout at both ends, and rounds of
//! operations whose bytes are checked.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hca::hca_core::{
    Access, AckTimeout, Gid, Lid, Mtu, Psn, QpType, Qpn, RecvExtra, RemoteAddr, Rkey, RnrTimer, SrqInit,
};
use hca::{
    CompletionQueue, Completions, ConnectOptions, Connected, Context, Endpoint, OfferedBy, Pd, Placement,
    QueuePair, Rc, RemoteMr, SendRequest, Service, SharedMr, SharedRange, Srq, Uc, ops,
};

use crate::peer::{Peer, variable};

/// Bytes on each side of a message that nobody may touch.
pub(crate) const GUARD: usize = 32;
/// What they hold.
const BLANK: u8 = 0xee;
/// Receive requests' ids begin here.
const RECV_ID: u64 = 1000;
/// How long anything may take. Under emulation, on a machine that has other work, seconds are short.
const LIMIT: Duration = Duration::from_secs(100);

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Ours,
    Rxe,
}
impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::Ours, Self::Rxe];
    pub(crate) fn other(self) -> Self {
        if self == Self::Ours { Self::Rxe } else { Self::Ours }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    Add,
    CompareSwap,
    /// A SEND that takes back the key in `a` of the request.
    SendInvalidate,
    /// ATOMIC WRITE of `a`.
    AtomicWrite,
    /// FLUSH of the request's range for visibility; of the whole region, or window, if `b` is 1.
    Flush,
}
impl Kind {
    pub(crate) const ALL: [Self; 7] =
        [Self::Send, Self::SendImm, Self::Write, Self::WriteImm, Self::Read, Self::Add, Self::CompareSwap];
    /// Those of unreliable connections.
    pub(crate) const UNRELIABLE: [Self; 4] = [Self::Send, Self::SendImm, Self::Write, Self::WriteImm];

    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::Add | Self::CompareSwap)
    }
    fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }
    fn has_imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }
    /// Its name at the peer.
    fn word(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendImm => "sendimm",
            Self::Write => "write",
            Self::WriteImm => "writeimm",
            Self::Read => "read",
            Self::Add => "add",
            Self::CompareSwap => "cas",
            Self::SendInvalidate => "sendinv",
            Self::AtomicWrite => "atomicwrite",
            Self::Flush => "flush",
        }
    }
}

/// One operation of a round: what its bytes are, follows from the seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) by: Side,
    pub(crate) kind: Kind,
    pub(crate) len: usize,
    pub(crate) seed: u64,
}

/// A work request, with all that its kind may need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    /// Where its bytes are in the memory of the side that posts it.
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) remote: RemoteAddr,
    /// Immediate data, or what is added, compared or written, or the key that is taken back.
    pub(crate) a: u64,
    /// The value that a compare-and-swap stores, or the selectivity of a FLUSH.
    pub(crate) b: u64,
}

/// The end of a work request, at either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) link: usize,
    pub(crate) id: u64,
    /// By the number that verbs have for it, 0 for success.
    pub(crate) status: u32,
    pub(crate) bytes: u32,
    /// Immediate data, or the key that was taken back.
    pub(crate) imm: u32,
}

/// How a connection is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) mtu: usize,
    /// First PSNs, ours and the peer's.
    pub(crate) psn: [u32; 2],
    pub(crate) timeout: u8,
    /// Retries, ours and the peer's.
    pub(crate) retry: [u8; 2],
    pub(crate) rnr_retry: u8,
    /// Whether receives are posted to a shared receive queue at both ends.
    pub(crate) shared: bool,
    /// Whether rxe's queue pair has ATOMIC WRITE and FLUSH, where its device has them.
    pub(crate) extended: bool,
}
impl Default for Setup {
    fn default() -> Self {
        // 268 ms, six times: rxe takes 7 for "for ever".
        Self {
            mtu: 1024,
            psn: [0x00_1234, 0x65_4321],
            timeout: 16,
            retry: [6, 6],
            rnr_retry: 7,
            shared: false,
            extended: false,
        }
    }
}

struct Link<S: Service> {
    /// Ours, until it was destroyed.
    qp: Option<QueuePair<S>>,
    /// The peer's, by its name for it.
    theirs: usize,
    qpn: u32,
}

/// Both ends of some connections.
pub(crate) struct World<S: Service> {
    pub(crate) peer: Peer,
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    cq: CompletionQueue,
    wcs: Completions,
    srq: Option<Srq>,
    links: Vec<Link<S>>,
    pub(crate) memory: SharedMr,
    /// The peer's region of the same size, which it calls 0.
    pub(crate) region: RemoteAddr,
    pub(crate) transfers: u64,
    pub(crate) bytes: u64,
}

/// The bytes that a seed makes: as [`Rng::bytes`](test_support::random::Rng::bytes), and as `rxe_peer` makes them.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    test_support::random::Rng::new(seed).bytes(len)
}

/// Opens the adapter that the environment names.
pub(crate) fn our_context() -> Context {
    let name = variable("HCA_RXE_DEVICE");
    hca::open(&name).unwrap_or_else(|e| panic!("{name}: {e}"))
}

impl<S: Connected> World<S>
where
    QueuePair<S>: Post,
{
    /// With so many bytes of memory at each end, and no connection yet.
    pub(crate) fn new(bytes: usize) -> Self {
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        Self::with_rights(bytes, rights, "wra")
    }
    /// As [`new`](Self::new), with these rights of the memory at our end and at rxe's.
    pub(crate) fn with_rights(bytes: usize, rights: Access, theirs: &str) -> Self {
        let mut peer = Peer::open(&variable("HCA_RXE_ADDRESS"));
        let region = remote_region(&peer.ask(&format!("region {bytes} {theirs}")));
        let context = our_context();
        let pd = context.alloc_pd().unwrap();
        let memory = pd.alloc_shared(bytes, rights).unwrap();
        let cq = context.create_cq(4096).unwrap();
        let wcs = Completions::default();
        let (links, srq) = (Vec::new(), None);
        Self { peer, context, pd, cq, wcs, srq, links, memory, region, transfers: 0, bytes: 0 }
    }
    /// With one connection.
    pub(crate) fn connected(bytes: usize, setup: Setup) -> Self {
        let mut world = Self::new(bytes);
        world.connect(setup);
        world
    }

    /// Another connection; its number.
    pub(crate) fn connect(&mut self, setup: Setup) -> usize {
        let kind = match S::TYPE {
            QpType::Uc => "uc",
            _ if setup.extended => "rcx",
            _ => "rc",
        };
        if setup.shared && self.srq.is_none() {
            self.srq = Some(self.pd.create_srq(SrqInit { max_wr: 128, max_sge: 1 }).unwrap());
            self.peer.ask("srq 128");
        }
        let mut builder =
            self.pd.qp::<S>(&self.cq).psn(Psn::new(setup.psn[0])).context(self.links.len() as u64);
        if let Some(srq) = self.srq.as_ref().filter(|_| setup.shared) {
            builder = builder.srq(srq);
        }
        let qp = builder.build().unwrap();
        let made = self.peer.ask(&format!("qp {kind} 128 {}", u8::from(setup.shared)));
        let (theirs, qpn) = made.split_once(' ').expect("two numbers");
        let (theirs, qpn) = (theirs.parse().unwrap(), qpn.parse().unwrap());
        let far = Endpoint {
            service: S::TYPE,
            qpn: Qpn::new(qpn),
            psn: Psn::new(setup.psn[1]),
            mtu: Mtu::from_bytes(setup.mtu as u32).unwrap(),
            rd_atomic: 16,
            gid: gid_of_peer(),
            lid: Lid::default(),
        };
        let options = ConnectOptions {
            mtu: Mtu::from_bytes(setup.mtu as u32),
            timeout: AckTimeout::new(setup.timeout),
            retry_cnt: setup.retry[0],
            rnr_retry: setup.rnr_retry,
            min_rnr_timer: RnrTimer::default(),
            ..ConnectOptions::default()
        };
        let near = qp.endpoint();
        self.peer.ask(&format!(
            "connect {theirs} {} {} {} {} {} {} {} {} 12",
            near.qpn.raw(),
            near.psn.raw(),
            setup.psn[1],
            near.gid,
            setup.mtu,
            setup.timeout,
            setup.retry[1],
            setup.rnr_retry
        ));
        qp.connect(&far, &options).unwrap();
        self.links.push(Link { qp: Some(qp), theirs, qpn });
        self.links.len() - 1
    }

    /// Another connection in the place of the last one, which broke.
    pub(crate) fn reconnect(&mut self, setup: Setup) {
        let last = self.links.len() - 1;
        for side in Side::BOTH {
            self.destroy(last, side);
        }
        // What is left of its completions is nobody's.
        for side in Side::BOTH {
            while !self.poll(side, 100).is_empty() {}
        }
        self.links.pop();
        self.connect(setup);
    }

    /// Where something of the other side's memory is, as `by` names it.
    pub(crate) fn remote(&self, by: Side, at: usize) -> RemoteAddr {
        let base = match by {
            Side::Ours => self.region,
            Side::Rxe => {
                let RemoteMr { addr, rkey, .. } = self.memory.remote();
                RemoteAddr { addr, rkey }
            }
        };
        RemoteAddr { addr: base.addr + at as u64, ..base }
    }

    /// Posts on one side of a connection.
    pub(crate) fn post(&mut self, link: usize, by: Side, request: &Request) {
        match by {
            Side::Ours => {
                let parts = list(&self.memory, request.at, request.len);
                self.links[link].qp.as_mut().expect("it is there").post_it(request, parts);
            }
            Side::Rxe => {
                let Request { id, kind, at, len, remote, a, b } = request;
                let (theirs, word) = (self.links[link].theirs, kind.word());
                // Placement types of a FLUSH: visibility.
                let a = if *kind == Kind::Flush { &1 } else { a };
                let RemoteAddr { addr, rkey } = remote;
                self.peer
                    .tell(&format!("post {theirs} {id} {word} 0 {at} {len} {addr} {} {a} {b}", rkey.raw()));
            }
        }
    }
    /// Posts a receive request on one side: to the shared queue, if there is one.
    pub(crate) fn post_recv(&mut self, link: usize, on: Side, id: u64, at: usize, len: usize) {
        match on {
            Side::Ours => {
                let parts = list(&self.memory, at, len);
                match &mut self.srq {
                    Some(srq) => srq.post_recv_id(id, parts).unwrap(),
                    None => {
                        let qp = self.links[link].qp.as_mut().expect("it is there");
                        qp.post_recv_id(id, parts).unwrap();
                    }
                }
            }
            Side::Rxe => {
                let theirs = if self.srq.is_some() { -1 } else { self.links[link].theirs as i64 };
                self.peer.tell(&format!("recv {theirs} {id} 0 {at} {len}"));
            }
        }
    }

    /// What completed at one side, if anything did within some milliseconds.
    pub(crate) fn poll(&mut self, side: Side, ms: u64) -> Vec<Done> {
        self.peer.settle();
        match side {
            Side::Ours => {
                let wait = Some(Duration::from_millis(ms));
                let Ok(wcs) = self.cq.wait(&mut self.wcs, wait) else { return Vec::new() };
                wcs.map(|wc| Done {
                    link: wc.context as usize,
                    id: wc.id,
                    status: wc.status as u32,
                    bytes: wc.byte_len,
                    imm: match wc.extra {
                        RecvExtra::Imm(data) => data,
                        RecvExtra::Invalidated(rkey) => rkey.raw(),
                        RecvExtra::None => 0,
                    },
                })
                .collect()
            }
            Side::Rxe => {
                let said = self.peer.ask(&format!("poll {ms} 64"));
                said.split(' ').skip(1).map(|one| self.parse(one)).collect()
            }
        }
    }
    fn parse(&self, said: &str) -> Done {
        let fields: Vec<u64> = said.split(':').map(|n| n.parse().expect("a number")).collect();
        let [id, status, _opcode, bytes, imm, qpn, _source] = fields[..] else { panic!("{said}") };
        let link = self.links.iter().position(|link| u64::from(link.qpn) == qpn).expect("one of ours");
        Done { link, id, status: status as u32, bytes: bytes as u32, imm: imm as u32 }
    }
    /// So many completions of one side.
    ///
    /// # Panics
    /// They do not come.
    pub(crate) fn reap(&mut self, side: Side, count: usize) -> Vec<Done> {
        let (mut all, begun) = (Vec::new(), Instant::now());
        while all.len() < count {
            all.extend(self.poll(side, 100));
            assert!(begun.elapsed() < LIMIT, "{side:?}: {} of {count} completions: {all:?}", all.len());
        }
        assert_eq!(all.len(), count, "{side:?}: {all:?}");
        all
    }

    /// Our end of a connection.
    pub(crate) fn ours(&mut self, link: usize) -> &mut QueuePair<S> {
        self.links[link].qp.as_mut().expect("it is there")
    }
    /// The peer's name for its end of a connection.
    pub(crate) fn theirs(&self, link: usize) -> usize {
        self.links[link].theirs
    }

    /// One end of a connection goes, without a word to the other.
    pub(crate) fn destroy(&mut self, link: usize, side: Side) {
        match side {
            Side::Ours => self.links[link].qp = None,
            Side::Rxe => {
                let theirs = self.links[link].theirs;
                self.peer.ask(&format!("destroy {theirs}"));
            }
        }
    }

    pub(crate) fn fill(&mut self, side: Side, at: usize, len: usize, seed: u64) {
        match side {
            Side::Ours => self.memory.write_at(at, &pattern(seed, len)),
            Side::Rxe => self.peer.tell(&format!("fill 0 {at} {len} {seed}")),
        }
    }
    pub(crate) fn blank(&mut self, side: Side, at: usize, len: usize) {
        match side {
            Side::Ours => self.memory.write_at(at, &vec![BLANK; len]),
            Side::Rxe => self.peer.tell(&format!("blank 0 {at} {len}")),
        }
    }
    pub(crate) fn set(&mut self, side: Side, at: usize, value: u64) {
        match side {
            Side::Ours => self.memory.store_u64(at, value),
            Side::Rxe => self.peer.tell(&format!("set 0 {at} {value}")),
        }
    }
    pub(crate) fn word(&mut self, side: Side, at: usize) -> u64 {
        match side {
            Side::Ours => self.memory.load_u64(at),
            Side::Rxe => self.peer.ask(&format!("word 0 {at}")).parse().unwrap(),
        }
    }
    /// Whether the bytes at one side are the seed's, with the guard around them.
    pub(crate) fn check(&mut self, side: Side, at: usize, len: usize, seed: u64) -> Result<(), String> {
        if side == Side::Rxe {
            return self.peer.try_ask(&format!("check 0 {at} {len} {seed}")).map(|_| ());
        }
        let mut found = vec![0; len + 2 * GUARD];
        self.memory.read_at(at - GUARD, &mut found);
        let wanted = [&[BLANK; GUARD][..], &pattern(seed, len), &[BLANK; GUARD]].concat();
        match found.iter().zip(&wanted).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(i) => Err(format!(
                "byte {} of {len} is {:02x} instead of {:02x}",
                i as i64 - GUARD as i64,
                found[i],
                wanted[i]
            )),
        }
    }

    /// Carries operations out side by side on the first connection: completions, their order, and every byte are right.
    ///
    /// # Errors
    /// Something is not.
    pub(crate) fn round(&mut self, ops: &[Op]) -> Result<(), String> {
        let longest = ops.iter().map(|op| op.len).max().unwrap_or(0).max(8);
        let slot = (longest + 8 + 2 * GUARD).next_multiple_of(64);
        assert!(slot * ops.len() <= self.memory.len(), "{} operations of {longest} bytes", ops.len());
        let at = |i: usize, op: &Op| {
            let odd = if op.kind.is_atomic() { 0 } else { op.seed as usize % 8 };
            i * slot + GUARD + odd
        };
        for (i, op) in ops.iter().enumerate() {
            self.prepare(op, at(i, op));
        }
        for (i, op) in ops.iter().enumerate().filter(|(_, op)| op.kind.takes_receive()) {
            let len = if op.kind == Kind::WriteImm { 0 } else { op.len };
            self.post_recv(0, op.by.other(), RECV_ID + i as u64, at(i, op), len);
        }
        self.peer.settle();
        for side in Side::BOTH {
            for (i, op) in ops.iter().enumerate().filter(|(_, op)| op.by == side) {
                let (a, b) = match op.kind {
                    Kind::Add => (op.seed >> 3, 0),
                    Kind::CompareSwap => (op.seed, !op.seed),
                    _ => (u64::from(op.seed as u32), 0),
                };
                let (at, remote) = (at(i, op), self.remote(side, at(i, op)));
                let len = if op.kind.is_atomic() { 8 } else { op.len };
                self.post(0, side, &Request { id: i as u64, kind: op.kind, at, len, remote, a, b });
            }
        }
        if let Err(why) = self.check_completions(ops) {
            // What both sides say behind it tells who of the two began.
            let rest = Side::BOTH.map(|side| self.poll(side, 200));
            let seen = rest.map(|of| of.into_iter().take(4).collect::<Vec<_>>());
            return Err(format!("{why}; then ours and rxe's {seen:?}"));
        }
        for (i, op) in ops.iter().enumerate() {
            let (mut result, begun) = (self.check_bytes(op, at(i, op)), Instant::now());
            // Unreliable WRITEs complete before they arrive, and nobody is told when they do.
            while S::TYPE == QpType::Uc && result.is_err() && begun.elapsed() < LIMIT {
                result = self.check_bytes(op, at(i, op));
            }
            result.map_err(|why| format!("{op:?}: {why}"))?;
            self.transfers += 1;
            self.bytes += if op.kind.is_atomic() { 8 } else { op.len as u64 };
        }
        Ok(())
    }

    fn prepare(&mut self, op: &Op, at: usize) {
        let around = |at: usize| at - GUARD;
        if op.kind.is_atomic() {
            self.blank(op.by, around(at), 8 + 2 * GUARD);
            self.set(op.by.other(), at, op.seed);
            return;
        }
        let from = if op.kind == Kind::Read { op.by.other() } else { op.by };
        self.fill(from, at, op.len, op.seed);
        self.blank(from.other(), around(at), op.len + 2 * GUARD);
    }

    fn check_completions(&mut self, ops: &[Op]) -> Result<(), String> {
        let mut missing = Side::BOTH.map(|side| Missing::of(side, ops));
        let begun = Instant::now();
        while missing.iter().any(|of| !of.is_empty()) {
            for (side, of) in Side::BOTH.into_iter().zip(&mut missing) {
                if of.is_empty() {
                    continue;
                }
                for done in self.poll(side, 20) {
                    of.take(done, ops).map_err(|why| format!("{side:?}: {why}"))?;
                }
            }
            if begun.elapsed() > LIMIT {
                return Err(format!("stands still, ours and rxe's: {missing:?}: {ops:?}"));
            }
        }
        Ok(())
    }

    fn check_bytes(&mut self, op: &Op, at: usize) -> Result<(), String> {
        let far = op.by.other();
        let new = match op.kind {
            Kind::Add => op.seed.wrapping_add(op.seed >> 3),
            Kind::CompareSwap => !op.seed,
            Kind::Read => return self.check(op.by, at, op.len, op.seed),
            _ => return self.check(far, at, op.len, op.seed),
        };
        let (old, now) = (self.word(op.by, at), self.word(far, at));
        if (old, now) == (op.seed, new) {
            return Ok(());
        }
        Err(format!("brought {old:#x} and left {now:#x}, not {:#x} and {new:#x}", op.seed))
    }
}

/// Completions of a round that one side waits for, in their order.
#[derive(Debug)]
struct Missing {
    sends: VecDeque<u64>,
    recvs: VecDeque<u64>,
}
impl Missing {
    fn of(side: Side, ops: &[Op]) -> Self {
        let numbered = || (0..).zip(ops);
        let sends = numbered().filter(|(_, op)| op.by == side).map(|(i, _)| i);
        let recvs = numbered().filter(|(_, op)| op.by != side && op.kind.takes_receive());
        Self { sends: sends.collect(), recvs: recvs.map(|(i, _): (u64, _)| RECV_ID + i).collect() }
    }
    fn is_empty(&self) -> bool {
        self.sends.is_empty() && self.recvs.is_empty()
    }
    /// A completion, which has to be the next one, and right.
    fn take(&mut self, done: Done, ops: &[Op]) -> Result<(), String> {
        let op = ops.get((done.id % RECV_ID) as usize);
        let queue = if done.id < RECV_ID { &mut self.sends } else { &mut self.recvs };
        let (Some(op), Some(next)) = (op, queue.pop_front()) else {
            return Err(format!("{done:?}: nothing of ours"));
        };
        let imm = if op.kind.has_imm() { op.seed as u32 } else { 0 };
        let wrong = done.id >= RECV_ID && (done.bytes as usize, done.imm) != (op.len, imm);
        if done.status != 0 || wrong || next != done.id {
            return Err(format!("{done:?} of {op:?}, where {next} is next"));
        }
        Ok(())
    }
}

/// A list of one entry, or of none for no bytes.
fn list(memory: &SharedMr, at: usize, len: usize) -> Vec<SharedRange> {
    if len == 0 { Vec::new() } else { vec![memory.range(at..at + len)] }
}

/// The answer to `region`.
pub(crate) fn remote_region(said: &str) -> RemoteAddr {
    let mut fields = said.split(' ').skip(1);
    let addr = fields.next().unwrap().parse().unwrap();
    RemoteAddr { addr, rkey: Rkey::new(fields.next().unwrap().parse().unwrap()) }
}

/// The peer's port.
pub(crate) fn gid_of_peer() -> Gid {
    Gid::from_ip(variable("HCA_RXE_ADDRESS").parse().expect("HCA_RXE_ADDRESS is an IP address"))
}

/// Posts a request of any kind that its service offers.
pub(crate) trait Post {
    fn post_it(&mut self, request: &Request, list: Vec<SharedRange>);
}
impl Post for QueuePair<Uc> {
    fn post_it(&mut self, request: &Request, list: Vec<SharedRange>) {
        post_common(self, request, list);
    }
}
impl Post for QueuePair<Rc> {
    fn post_it(&mut self, request: &Request, list: Vec<SharedRange>) {
        let &Request { id, kind, a, b, .. } = request;
        let far = reach(request);
        match kind {
            Kind::Read => self.post_send(SendRequest::read(list, far).id(id)).unwrap(),
            Kind::Add => self.post_send(SendRequest::fetch_add(list, far, a).id(id)).unwrap(),
            Kind::CompareSwap => {
                self.post_send(SendRequest::compare_swap(list, far, a, b).id(id)).unwrap();
            }
            Kind::SendInvalidate => {
                let send = SendRequest::send(list).invalidate(Rkey::new(a as u32));
                self.post_send(send.id(id)).unwrap();
            }
            Kind::AtomicWrite => self.post_send(SendRequest::atomic_write(far, a).id(id)).unwrap(),
            Kind::Flush => {
                let of = if b == 1 { SendRequest::flush_region } else { SendRequest::flush };
                self.post_send(of(far, Placement::GLOBAL_VISIBILITY).id(id)).unwrap();
            }
            _ => post_common(self, request, list),
        }
    }
}

fn post_common<S: Connected>(qp: &mut QueuePair<S>, request: &Request, list: Vec<SharedRange>)
where
    ops::Send: OfferedBy<S>,
    ops::Write: OfferedBy<S>,
{
    let &Request { id, kind, a, .. } = request;
    let far = reach(request);
    match kind {
        Kind::Send => qp.post_send(SendRequest::send(list).id(id)).unwrap(),
        Kind::SendImm => qp.post_send(SendRequest::send(list).imm(a as u32).id(id)).unwrap(),
        Kind::Write => qp.post_send(SendRequest::write(list, far).id(id)).unwrap(),
        Kind::WriteImm => qp.post_send(SendRequest::write(list, far).imm(a as u32).id(id)).unwrap(),
        _ => panic!("{kind:?} is none of this service's"),
    }
}

/// Far memory of as many bytes as the request has.
fn reach(request: &Request) -> RemoteMr {
    let RemoteAddr { addr, rkey } = request.remote;
    RemoteMr { addr, rkey, len: request.len as u64 }
}
