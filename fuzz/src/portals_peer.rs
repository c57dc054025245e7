//! What the fuzz target `portals_peer` does with its input: a Portals node on a simulated network, with an honest peer
//! and one that knows the job's secret and says what it likes: hellos, datagrams, and messages on connections of its
//! own. The corpus runs through it in `cargo test` too.
//!
//! The first byte chooses the set-up (bit 0: the adapter matches, bit 1: processes are ranks). Then come records, each
//! a byte that says what it is and the bytes that its fields take; an input that ends within a record has zeros there.
//!
//! | byte mod 8 | record |
//! |---|---|
//! | 0, 1 | a message of raw bytes |
//! | 2, 3 | a request, built by fields: any operation, lengths and tokens that may lie, pieces of memory that is there or not |
//! | 4 | an answer, or that bytes were fetched, with a token that may be one under way |
//! | 5 | a hello by fields, or raw bytes as a datagram |
//! | 6 | the node begins an operation to the peer |
//! | 7 | time passes, the connection is made anew, or the honest peer begins an operation |
//!
//! Nothing may panic or hang; what the honest peer begins ends well; what the node began ends once; when the other one
//! is gone, nothing is left of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hca_core::{Access, AddressVector, Gid, Instant, Lid, Mtu, Psn, Qkey, QpType, Qpn};
use hca_sim::Sim;
use hca_verbs::{CompletionQueue, Completions, ConnectOptions, Endpoint, Pd, QueuePair, Rc, SharedMr, Ud};
use portals::v4::{
    AckReq, AtomicOp, CtHandle, Datatype, Fetch, Get, Limits, ListKind, Md, MdHandle, MdOptions, Me,
    MeHandle, MeOptions, Ni, NiOptions, PtOptions, Put, Source, StatusRegister,
};
use portals::{Card, Counts, Directory, DirectoryError, Memory, Nid, Node, NodeOptions, Pid, Process, Rank};

const MAX_RECORDS: usize = 96;
const KEY: u64 = 0x1122_3344_5566_7788;
const QKEY: Qkey = Qkey::new(0x5054_4c53);
const EAGER: usize = 64;
const HELLO_BYTES: usize = 88;
/// The process number of the one that says what it likes.
const PID: u32 = 7;

/// Runs one input. Panics on whatever must not happen. Says what the node counted, so that who runs it sees that it was
/// reached.
pub(crate) fn portals_peer(data: &[u8]) -> (Counts, [u64; 3]) {
    let mut input = Input(data);
    let mut bed = Bed::new(input.byte());
    for _ in 0..MAX_RECORDS {
        if input.0.is_empty() {
            break;
        }
        match input.byte() % 8 {
            0 | 1 => {
                let len = usize::from(input.byte());
                let bytes = input.take(len);
                bed.stranger.message(&bytes);
            }
            2 | 3 => bed.request(&mut input),
            4 => bed.answer(&mut input),
            5 => bed.hello(&mut input),
            6 => bed.begin(&mut input),
            _ => bed.other(&mut input),
        }
        bed.settle(1);
    }
    bed.end()
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }
    fn take(&mut self, n: usize) -> Vec<u8> {
        (0..n.min(self.0.len())).map(|_| self.byte()).collect()
    }
    fn word(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }
    /// A token that may be of something under way.
    fn token(&mut self) -> u32 {
        match self.byte() {
            0 => 0,
            1 => self.word(),
            n => (1 + u32::from(n >> 4)) << 12 | u32::from(n & 15),
        }
    }
}

/// Where all are found.
struct Cards(Mutex<Vec<Card>>);

impl Directory for Cards {
    fn size(&self) -> Option<u32> {
        Some(3)
    }
    fn by_rank(&self, rank: Rank) -> Result<Card, DirectoryError> {
        let cards = self.0.lock().unwrap();
        cards.get(rank.0 as usize).copied().ok_or(DirectoryError::Rank { rank })
    }
}

fn nid_of(gid: Gid) -> u32 {
    match gid.ip() {
        std::net::IpAddr::V4(ip) => ip.to_bits(),
        std::net::IpAddr::V6(_) => unreachable!("the simulation has IPv4 addresses"),
    }
}

/// One that keeps to the rules, on a node.
struct Honest {
    node: Node,
    ni: Ni,
    ct: CtHandle,
    md: MdHandle,
    memory: Memory,
    expected: u64,
}

impl Honest {
    fn new(sim: &Sim, n: usize, offload: bool, logical: bool, cards: &Arc<Cards>) -> Self {
        let net = sim.net().clone();
        let options = NodeOptions {
            eager_bytes: EAGER,
            receive_slots: 16,
            send_slots: 8,
            send_depth: 16,
            connect_timeout: Duration::from_secs(2),
            keepalive: Duration::from_millis(100),
            offload,
            rank: Some(Rank(n as u32)),
            key: KEY,
            directory: cards.clone(),
            clock: Some(Arc::new(move || net.now().since(Instant::ZERO))),
            seed: Some(n as u64),
            ..NodeOptions::default()
        };
        let node = Node::open(&sim.node(n).context(), options).unwrap();
        cards.0.lock().unwrap()[n] = node.card();
        let kind = NiOptions::MATCHING | if logical { NiOptions::LOGICAL } else { NiOptions::PHYSICAL };
        let limits = Limits { max_unexpected_headers: 8, ..Limits::default() };
        let ni = Ni::init(&node, kind, None, &limits).unwrap();
        let ct = ni.ct_alloc().unwrap();
        let memory = node.alloc(4096).unwrap();
        let options = MdOptions::EVENT_CT_REPLY | MdOptions::EVENT_CT_ACK;
        let md = ni.md_bind(&Md { options, ct: Some(ct), ..Md::new(&memory) }).unwrap();
        Self { node, ni, ct, md, memory, expected: 0 }
    }
    fn counted(&self) -> (u64, u64) {
        let count = self.ni.ct_get(self.ct).unwrap();
        (count.success, count.failure)
    }
}

/// The one that does not.
struct Stranger {
    pd: Pd,
    cq: CompletionQueue,
    wcs: Completions,
    datagrams: QueuePair<Ud>,
    rc: Option<QueuePair<Rc>>,
    /// What its lies lend.
    lent: SharedMr,
    target: Card,
    heard: VecDeque<Vec<u8>>,
    incarnation: u64,
    /// Its queue pairs for the target, counted.
    attempt: u32,
}

impl Stranger {
    fn new(sim: &Sim, target: Card) -> Self {
        let context = sim.node(2).context();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024).unwrap();
        let mut datagrams = pd.qp::<Ud>(&cq).max_send_wr(64).max_recv_wr(64).build().unwrap();
        datagrams.activate(QKEY).unwrap();
        (0..32).for_each(|_| datagrams.post_recv(pd.alloc(256).unwrap()).unwrap());
        let lent = pd.alloc_shared(4096, Access::REMOTE_READ).unwrap();
        let (wcs, heard) = (Completions::default(), VecDeque::new());
        Self { pd, cq, wcs, datagrams, rc: None, lent, target, heard, incarnation: 9, attempt: 0 }
    }
    fn card(&self) -> Card {
        let Endpoint { gid, lid, .. } = self.datagrams.endpoint();
        Card { nid: Nid(nid_of(gid)), pid: Pid(PID), gid, lid, datagrams: self.datagrams.qpn() }
    }
    fn hello(&self, ours: &Endpoint, yours: Option<u32>, is_up: bool) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..4].copy_from_slice(b"PTLS");
        (out[4], out[5], out[6]) = (1, is_up.into(), ours.rd_atomic);
        let words = [nid_of(ours.gid), PID, 2, 5, 0, ours.mtu.bytes()];
        for (i, word) in words.into_iter().enumerate() {
            out[8 + 4 * i..12 + 4 * i].copy_from_slice(&word.to_be_bytes());
        }
        out[32..40].copy_from_slice(&self.incarnation.to_be_bytes());
        out[40..48].copy_from_slice(&KEY.to_be_bytes());
        let numbers = [ours.qpn.raw(), ours.psn.raw(), self.datagrams.qpn().raw(), yours.unwrap_or(u32::MAX)];
        for (i, word) in numbers.into_iter().enumerate() {
            out[48 + 4 * i..52 + 4 * i].copy_from_slice(&word.to_be_bytes());
        }
        out[64..80].copy_from_slice(&ours.gid.0);
        out[80..84].copy_from_slice(&(EAGER as u32).to_be_bytes());
        out[84..88].copy_from_slice(&self.attempt.to_be_bytes());
        out
    }
    fn datagram(&mut self, bytes: &[u8]) {
        let mut buf = self.pd.alloc(bytes.len().max(1)).unwrap();
        buf[..bytes.len()].copy_from_slice(bytes);
        let path = AddressVector { dgid: self.target.gid, ..AddressVector::default() };
        let peer = self.pd.create_ah(&path).unwrap().peer(self.target.datagrams, QKEY);
        let _ = self.datagrams.send_to(buf, &peer);
    }
    /// Says hello for a new connection as one does that keeps to the rules.
    fn meet(&mut self) -> QueuePair<Rc> {
        let rc = self.pd.qp::<Rc>(&self.cq).max_send_wr(256).max_recv_wr(64).build().unwrap();
        self.attempt += 1;
        let hello = self.hello(&rc.endpoint(), None, false);
        self.heard.clear();
        self.datagram(&hello);
        rc
    }
    /// Connects to whom the answer names.
    fn connect(&mut self, mut rc: QueuePair<Rc>) {
        let ours = rc.endpoint();
        let theirs = self.heard.iter().find_map(|bytes| {
            let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            (bytes.len() == HELLO_BYTES && word(60) == ours.qpn.raw()).then(|| Endpoint {
                service: QpType::Rc,
                qpn: Qpn::new(word(48)),
                psn: Psn::new(word(52)),
                mtu: Mtu::B1024,
                rd_atomic: 16,
                gid: self.target.gid,
                lid: self.target.lid,
            })
        });
        let Some(theirs) = theirs else { return };
        rc.set_access(Access::REMOTE_READ).unwrap();
        if rc.connect(&theirs, &ConnectOptions::default()).is_err() {
            return;
        }
        (0..64).for_each(|_| rc.post_recv(self.pd.alloc(256).unwrap()).unwrap());
        let up = self.hello(&ours, Some(theirs.qpn.raw()), true);
        self.datagram(&up);
        self.rc = Some(rc);
    }
    fn message(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut buf = self.pd.alloc(bytes.len()).unwrap();
        buf[..].copy_from_slice(bytes);
        if let Some(rc) = &mut self.rc {
            let _ = rc.send(buf);
        }
    }
    fn poll(&mut self) {
        let mut again = (0, 0);
        for wc in self.cq.poll(&mut self.wcs) {
            let Ok(wc) = wc.ok() else { continue };
            let Some(bytes) = wc.payload().map(<[u8]>::to_vec) else { continue };
            let is_datagram = wc.grh().is_some();
            match is_datagram {
                true => again.0 += 1,
                false => again.1 += 1,
            }
            if is_datagram {
                self.heard.push_back(bytes);
            }
        }
        for _ in 0..again.0 {
            let _ = self.datagrams.post_recv(self.pd.alloc(256).unwrap());
        }
        for _ in 0..again.1 {
            let buf = self.pd.alloc(256).unwrap();
            self.rc.as_mut().map(|rc| rc.post_recv(buf).is_ok());
        }
        self.heard.truncate(64);
    }
}

struct Bed {
    sim: Sim,
    target: Honest,
    honest: Honest,
    stranger: Stranger,
    /// What only the honest one writes, and what all may.
    kept: Memory,
    entries: Vec<MeHandle>,
    offload: bool,
    logical: bool,
}

impl Bed {
    fn new(setup: u8) -> Self {
        let sim = Sim::new(1);
        (0..3).for_each(|_| drop(sim.add_node()));
        let (offload, logical) = (setup & 1 != 0, setup & 2 != 0);
        let (gid, lid) = (Gid::default(), Lid::default());
        let none = Card { nid: Nid(0), pid: Pid(0), gid, lid, datagrams: Qpn::new(0) };
        let cards = Arc::new(Cards(Mutex::new(vec![none; 3])));
        let target = Honest::new(&sim, 0, offload, logical, &cards);
        let honest = Honest::new(&sim, 1, offload, logical, &cards);
        let stranger = Stranger::new(&sim, target.node.card());
        cards.0.lock().unwrap()[2] = stranger.card();
        let kept = target.node.alloc(1024).unwrap();
        let mut bed = Self { sim, target, honest, stranger, kept, entries: Vec::new(), offload, logical };
        bed.open_target();
        bed.connect();
        bed
    }
    fn process(&self, rank: u32, card: &Card) -> Process {
        match self.logical {
            true => Process::logical(Rank(rank)),
            false => Process::physical(card.nid, card.pid),
        }
    }
    fn open_target(&mut self) {
        let ni = &self.target.ni;
        let eq = ni.eq_alloc(8).unwrap();
        for (pt, options) in [(0, PtOptions::empty()), (1, PtOptions::FLOWCTRL), (2, PtOptions::empty())] {
            ni.pt_alloc(options, Some(eq), Some(pt)).unwrap();
        }
        let both = MeOptions::OP_PUT | MeOptions::OP_GET;
        let any = |len: usize| Me {
            ignore_bits: !1,
            options: both,
            ..Me::new(self.target.node.alloc(len).unwrap())
        };
        let append = |pt, me: &Me, list| ni.me_append(pt, me, list, 0).unwrap();
        self.entries.push(append(0, &any(512), ListKind::Priority));
        let unexpected = Me { options: both | MeOptions::MANAGE_LOCAL, match_bits: 1, ..any(2048) };
        append(0, &unexpected, ListKind::Overflow);
        for _ in 0..4 {
            append(1, &Me { options: both | MeOptions::USE_ONCE, ..any(256) }, ListKind::Priority);
        }
        let only = Source::exactly(self.process(1, &self.honest.node.card()));
        let kept = Me { match_id: only, options: both, ..Me::new(&self.kept) };
        self.entries.push(append(2, &kept, ListKind::Priority));
    }
    fn connect(&mut self) {
        let rc = self.stranger.meet();
        self.settle(3);
        self.stranger.connect(rc);
        self.settle(2);
    }
    /// Lets all do what there is to do.
    fn settle(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.sim.run_for(Duration::from_micros(20)).unwrap();
            if !self.offload {
                (0..3).for_each(|_| {
                    self.target.node.progress();
                });
            }
            self.honest.node.progress();
            self.stranger.poll();
        }
    }
    fn request(&mut self, input: &mut Input<'_>) {
        let lent = input.byte().is_multiple_of(3);
        let ni = input.of(&[2 + u8::from(self.logical), 2, 3, 0, 4, 15]);
        let ack = input.byte() & 7;
        let operation = input.byte() % 7;
        let fields = input.byte();
        let length = input.of(&[0, 8, 16, 64, 65, 100, 300, u32::MAX, 1 << 20]);
        let pt = u16::from(input.byte() % 4);
        let mut out = vec![if lent { 2 } else { 1 }, ni | ack << 4, operation, fields];
        out.extend(pt.to_be_bytes());
        out.extend([0; 2]);
        out.extend(input.token().to_be_bytes());
        out.extend(length.to_be_bytes());
        out.extend(u64::from(input.byte()).to_be_bytes());
        for (bit, bytes) in [(1, 8), (2, 8), (4, 8), (8, 32)] {
            if fields & bit != 0 {
                let mut field = vec![0; bytes];
                field[0] = if bit == 4 { input.byte() % 20 } else { 0 };
                field[1] = if bit == 4 { input.byte() % 16 } else { 0 };
                field[7] = if bit == 4 { 0 } else { input.byte() };
                out.extend(field);
            }
        }
        match lent {
            true => out.extend(self.pieces(input, length)),
            false => out.extend(vec![0xaa; input.of(&[length as usize, length as usize, 8]).min(400)]),
        }
        self.stranger.message(&out);
    }
    /// Pieces that are as long as is said, or not, and are there, or not.
    fn pieces(&self, input: &mut Input<'_>, length: u32) -> Vec<u8> {
        let remote = self.stranger.lent.remote();
        let mut out = Vec::new();
        let mut left = length;
        for _ in 0..1 + input.byte() % 5 {
            let lie = input.byte();
            let len = if lie.is_multiple_of(4) { left } else { left.min(u32::from(lie)) };
            left -= len;
            let addr = if lie == 5 { 1 } else { remote.addr };
            let rkey = if lie == 6 { 77 } else { remote.rkey.raw() };
            out.extend(addr.to_be_bytes());
            out.extend(rkey.to_be_bytes());
            out.extend(len.to_be_bytes());
        }
        out
    }
    fn answer(&mut self, input: &mut Input<'_>) {
        let kind = input.of(&[3, 3, 4, 5, 6, 7]);
        let mut out = vec![kind, input.byte() % 6, input.byte() % 9, 0];
        out.extend(input.token().to_be_bytes());
        if kind == 3 || kind == 4 {
            let length = input.of(&[0, 8, 16, 64, 100, 300, 1 << 20]);
            out.extend(u64::from(length).to_be_bytes());
            out.extend(u64::from(input.byte()).to_be_bytes());
            if kind == 4 {
                out.extend(u64::from(input.token()).to_be_bytes());
                out.extend(self.pieces(input, length));
            } else {
                out.extend(vec![0xbb; input.of(&[length as usize, 0, 8]).min(400)]);
            }
        }
        self.stranger.message(&out);
    }
    fn hello(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        if kind.is_multiple_of(3) {
            let bytes = input.take(usize::from(kind));
            return self.stranger.datagram(&bytes);
        }
        let ours = match &self.stranger.rc {
            Some(rc) if kind & 4 == 0 => rc.endpoint(),
            _ => Endpoint { qpn: Qpn::new(input.word() & 0xff_ffff), ..self.stranger.datagrams.endpoint() },
        };
        let yours = input.of(&[None, Some(2), Some(3), Some(input.0.len() as u32)]);
        let mut hello = self.stranger.hello(&ours, yours, kind & 8 != 0);
        for _ in 0..kind >> 5 {
            // A number of the sender's, another incarnation, a rank, or anything.
            let at = input.of(&[15, 19, 39, 31, 6, 11, 59, usize::from(input.0.len() as u8) % HELLO_BYTES]);
            hello[at] ^= input.byte();
        }
        self.stranger.datagram(&hello);
    }
    fn begin(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        let to = self.process(2, &self.stranger.card());
        let length = input.of(&[0, 8, 64, 65, 300]);
        let Honest { ni, md, expected, .. } = &mut self.target;
        let begun = match kind % 4 {
            0 | 1 => ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(*md, length, to, 0) }),
            2 => ni.get(&Get::new(*md, length, to, 0)),
            _ => {
                let fetch = Fetch::new(*md, *md, 8, to, 0);
                ni.fetch_atomic(&fetch, AtomicOp::Sum, Datatype::U64)
            }
        };
        begun.expect("it is found");
        *expected += 1;
    }
    fn other(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0 => self.settle(usize::from(input.byte() % 8)),
            1 => {
                let long = Duration::from_millis(1 << (input.byte() % 12));
                self.sim.run_for(long).unwrap();
            }
            2 | 3 => self.connect(),
            4 => {
                self.stranger.incarnation += 1;
                self.connect();
            }
            _ => self.put_honestly(),
        }
    }
    fn put_honestly(&mut self) {
        let to = self.process(0, &self.target.node.card());
        let Honest { ni, md, expected, memory, .. } = &mut self.honest;
        *expected += 1;
        let length = if *expected % 2 == 0 { 8 } else { 300 };
        memory.write_at(0, &expected.to_le_bytes());
        ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(*md, length, to, 2) }).expect("it begins");
    }
    fn end(mut self) -> (Counts, [u64; 3]) {
        self.put_honestly();
        for n in 0.. {
            self.settle(1);
            let (ended, failed) = self.honest.counted();
            assert_eq!(failed, 0, "the honest one's operations end well");
            if ended == self.honest.expected {
                break;
            }
            self.sim.run_for(Duration::from_millis(1 + n)).unwrap();
            assert!(n < 300, "the honest one waits: {ended} of {}", self.honest.expected);
        }
        assert_eq!(self.kept.load_u64(0), self.honest.expected, "what only it writes");
        self.sim.node(2).crash();
        let waits = |bed: &Self| {
            let (ended, failed) = bed.target.counted();
            ended + failed != bed.target.expected || !bed.target.node.holdings().is_at_rest()
        };
        for n in 0.. {
            if !waits(&self) {
                break;
            }
            self.sim.run_for(Duration::from_millis(100)).unwrap();
            (0..33).for_each(|_| {
                self.target.node.progress();
            });
            let (counted, expected) = (self.target.counted(), self.target.expected);
            assert!(n < 600, "{counted:?} of {expected}, {:?}", self.target.node.holdings());
        }
        let ni = &self.target.ni;
        ni.md_release(self.target.md).expect("nothing is under way on it");
        for entry in &self.entries {
            ni.me_unlink(*entry).expect("nothing is under way on it");
        }
        let registers = [
            StatusRegister::DropCount,
            StatusRegister::PermissionViolations,
            StatusRegister::OperationViolations,
        ];
        (self.target.node.counts(), registers.map(|register| ni.status(register)))
    }
}
