//! A process under load: an adapter on shared memory, and queue pairs to others, each kept full of requests of every
//! kind. Every byte that moves is known: all regions begin with the same pattern, messages and WRITEs carry pieces of
//! it, and each piece lands where its place in the pattern says.

use hca_core::{Access, AckTimeout, WcOpcode, WcStatus};
use hca_fabric::{AutoFabric, Fabric, ShmFabric, ShmOptions, UdpOptions};
use hca_verbs::{
    CompletionQueue, Completions, ConnectError, ConnectOptions, Context, Endpoint, Pd, QueuePair, Rc,
    RemoteMr, SendRequest, SharedMr, Wc,
};
use softhca::{Options, Progress, SoftHca};

use crate::own::Own;

/// Queue pairs to each peer.
pub(crate) const QPS: usize = 4;
/// Requests outstanding on each of them.
const FULL: u32 = 16;
const RECVS: usize = 8;

/// Processes of a domain whose name begins so work on memory of their own instead of the adapter's.
pub(crate) const OWN: &str = "own.";
/// Begins a domain that is one address for all, behind this.
pub(crate) const AT: &str = "at.";

/// What a region consists of.
const PATTERN: usize = 256 << 10;
const READ_INTO: usize = PATTERN;
const READ_BYTES: usize = 80 << 10;
const RECV_INTO: usize = READ_INTO + QPS * READ_BYTES;
const RECV_BYTES: usize = 2 << 10;
const WRITE_INTO: usize = RECV_INTO + QPS * RECVS * RECV_BYTES;
const COUNTER: usize = WRITE_INTO + PATTERN;
pub(crate) const REGION: usize = COUNTER + 4096;

/// An ACK timeout of half a second: eight of them pass before a queue pair gives a silent peer up.
const TIMEOUT: u8 = 17;

/// A receive's id has this bit, and its slot; a request's has its kind and place.
const RECV: u64 = 1 << 63;

/// The pattern that all regions begin with.
pub(crate) fn pattern() -> Vec<u8> {
    (0..PATTERN).map(|i| ((i * 31) ^ (i >> 7)) as u8 | 1).collect()
}

/// The connection to one peer.
pub(crate) struct Peer {
    pub(crate) window: SharedMr,
    qps: Vec<QueuePair<Rc>>,
    remote: RemoteMr,
    /// Requests and receive requests under way, of each queue pair.
    pub(crate) sends: [u32; QPS],
    pub(crate) recvs: [u32; QPS],
    /// Whether it has failed, and takes no more.
    pub(crate) dead: [bool; QPS],
    /// How the first request that failed did.
    pub(crate) why: Option<(WcOpcode, WcStatus)>,
    reading: [bool; QPS],
    /// Requests that succeeded.
    pub(crate) done: u64,
    next: u64,
}

/// An adapter with its peers.
pub(crate) struct Load {
    pub(crate) context: Context,
    pd: Pd,
    cq: CompletionQueue,
    wcs: Completions,
    pattern: Vec<u8>,
    /// How requests may end where they do not succeed.
    pub(crate) ends: &'static [WcStatus],
    /// Memory is used for something else, so that what has arrived can't be looked at.
    pub(crate) blind: bool,
    pub(crate) peers: Vec<Option<Peer>>,
    /// Memory of its own, for each place among the peers; none: the adapter's serves.
    own: Option<Vec<Own>>,
}

impl Load {
    pub(crate) fn open(domain: &str, progress: Progress) -> Self {
        let options = ShmOptions { ring_bytes: 1 << 18, ..ShmOptions::default() };
        if let Some(address) = domain.strip_prefix(AT) {
            let udp = UdpOptions { slots: 16, ..UdpOptions::default() };
            let fabric = AutoFabric::open(address.parse().expect("an address"), &udp, &options);
            return Self::on(fabric.expect("the address has room"), progress);
        }
        let fabric = ShmFabric::open(domain, &options).expect("shared memory can be had");
        let load = Self::on(fabric, progress);
        if domain.starts_with(OWN) { load.on_own_memory() } else { load }
    }

    /// The same, on memory of this process's own.
    pub(crate) fn on_own_memory(self) -> Self {
        Self { own: Some(Vec::new()), ..self }
    }

    pub(crate) fn on(fabric: impl Fabric, progress: Progress) -> Self {
        let options = Options { progress, ..Options::default() };
        let context = Context::new(SoftHca::open(Box::new(fabric), options).expect("an adapter opens"));
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024).unwrap();
        let wcs = Completions::with_capacity(64);
        let ends = &[WcStatus::RetryExceeded, WcStatus::WrFlushed];
        Self { context, pd, cq, wcs, pattern: pattern(), ends, blind: false, peers: Vec::new(), own: None }
    }

    /// Queue pairs and a region for one more peer, and the line that tells it of them.
    pub(crate) fn invite(&mut self) -> (usize, String) {
        let index = self.peers.iter().position(Option::is_none).unwrap_or(self.peers.len());
        let window = match &mut self.own {
            None => self.pd.alloc_shared(REGION, Access::BY_PEERS).unwrap(),
            Some(own) => {
                if index == own.len() {
                    own.push(Own::new(REGION));
                }
                own[index].register(&self.pd)
            }
        };
        window.write_at(0, &self.pattern);
        let qp = |i: usize| {
            let builder = self.pd.qp::<Rc>(&self.cq).max_send_wr(2 * FULL).max_recv_wr(RECVS as u32);
            builder.access(Access::all()).context((index * QPS + i) as u64).build().unwrap()
        };
        let qps: Vec<_> = (0..QPS).map(qp).collect();
        let key = hex(&window);
        let ends = qps.iter().map(|q| q.endpoint().to_string());
        let line = ends.fold(key, |line, end| format!("{line} {end}"));
        let peer = Peer {
            window,
            qps,
            remote: RemoteMr::default(),
            sends: [0; QPS],
            recvs: [0; QPS],
            dead: [false; QPS],
            why: None,
            reading: [false; QPS],
            done: 0,
            next: 0,
        };
        if index == self.peers.len() {
            self.peers.push(None);
        }
        self.peers[index] = Some(peer);
        (index, line)
    }

    /// Connects to the peer that has sent this line.
    pub(crate) fn connect(&mut self, index: usize, line: &str) {
        self.try_connect(index, line).expect("it connects");
    }

    pub(crate) fn try_connect(&mut self, index: usize, line: &str) -> Result<(), ConnectError> {
        let peer = self.peers[index].as_mut().expect("it was invited");
        let mut words = line.split(' ');
        peer.remote = key_of(words.next().expect("the region's key"));
        let options = ConnectOptions { timeout: AckTimeout::new(TIMEOUT), ..ConnectOptions::default() };
        for (i, word) in words.enumerate() {
            let end: Endpoint = word.parse().expect("an endpoint");
            for slot in 0..RECVS {
                peer.post_recv(i, slot);
            }
            peer.qps[i].control().connect(&end, &options)?;
        }
        Ok(())
    }

    /// Fills the send queues and takes what has completed.
    pub(crate) fn pump(&mut self) {
        for peer in self.peers.iter_mut().flatten() {
            peer.fill();
        }
        for wc in self.cq.poll(&mut self.wcs) {
            let (index, i) = (wc.context as usize / QPS, wc.context as usize % QPS);
            let peer = self.peers[index].as_mut().expect("a peer that is gone has no completions");
            if wc.status == WcStatus::Success {
                peer.succeeded(i, &wc, if self.blind { None } else { Some(&self.pattern) });
            } else {
                // The first request tells why; what stands behind it, and the receive requests, are flushed.
                let told = self.ends.contains(&wc.status);
                assert!(told, "{:?} ended as: {}\n{}", wc.opcode, wc.status, counters(&self.context));
                peer.why.get_or_insert((wc.opcode, wc.status));
                peer.failed(i, wc.opcode.is_recv());
            }
        }
    }

    /// Takes a peer's queue pairs and region away.
    pub(crate) fn forget(&mut self, index: usize) {
        self.peers[index] = None;
    }
}

impl Peer {
    fn post_recv(&mut self, i: usize, slot: usize) {
        let at = recv_at(i, slot);
        let range = self.window.range(at..at + RECV_BYTES);
        if self.qps[i].post_recv_id(RECV | slot as u64, range).is_ok() {
            self.recvs[i] += 1;
        }
    }

    /// Posts until every queue is full.
    fn fill(&mut self) {
        for i in 0..QPS {
            while self.sends[i] < FULL && !self.dead[i] {
                self.next =
                    self.next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                self.post(i, (self.next >> 33) as usize);
                self.sends[i] += 1;
            }
        }
    }

    fn post(&mut self, i: usize, random: usize) {
        let (w, remote, qp) = (&self.window, self.remote, &mut self.qps[i]);
        let len = match random / 4 % 10 {
            0 => 1 + random % 200_000,
            1 | 2 => 1 + random % 32_000,
            _ => 1 + random % 100,
        };
        let at = random / 7 % (PATTERN - len);
        let source = w.range(at..at + len);
        let posted = match random % 4 {
            0 => {
                let len = len.min(RECV_BYTES);
                qp.post_send(SendRequest::send(w.range(at..at + len)).imm(at as u32)).map_err(drop)
            }
            1 if !self.reading[i] => {
                self.reading[i] = true;
                let from = random / 11 % (PATTERN - READ_BYTES);
                let into = READ_INTO + i * READ_BYTES;
                let read = SendRequest::read(
                    w.range(into..into + READ_BYTES),
                    remote.range(from..from + READ_BYTES),
                );
                qp.post_send(read.id(from as u64)).map_err(drop)
            }
            2 => {
                let word = w.range(COUNTER + 8 * (1 + i)..COUNTER + 8 * (2 + i));
                qp.post_send(SendRequest::fetch_add(word, remote.range(COUNTER..COUNTER + 8), 1))
                    .map_err(drop)
            }
            _ => {
                let into = remote.range(WRITE_INTO + at..WRITE_INTO + at + len);
                qp.post_send(SendRequest::write(source, into)).map_err(drop)
            }
        };
        posted.expect("there is room in the queue");
    }

    fn failed(&mut self, i: usize, recv: bool) {
        self.dead[i] = true;
        *(if recv { &mut self.recvs[i] } else { &mut self.sends[i] }) -= 1;
    }

    /// A request came to its end; what has arrived is compared with the pattern.
    fn succeeded(&mut self, i: usize, wc: &Wc<'_>, pattern: Option<&[u8]>) {
        self.done += 1;
        let arrived = |at: usize, from: usize, len: usize| {
            let mut got = vec![0; len];
            self.window.read_at(at, &mut got);
            assert!(
                pattern.is_none_or(|p| got == p[from..from + len]),
                "{:?} of {len} bytes of {from}",
                wc.opcode
            );
        };
        if wc.opcode.is_recv() {
            let slot = (wc.id & !RECV) as usize;
            let from = wc.imm().expect("each message tells its place") as usize;
            arrived(recv_at(i, slot), from, wc.byte_len as usize);
            self.recvs[i] -= 1;
            self.post_recv(i, slot);
            return;
        }
        assert!(!self.dead[i], "a success behind a failure");
        self.sends[i] -= 1;
        if wc.opcode == WcOpcode::RdmaRead {
            arrived(READ_INTO + i * READ_BYTES, wc.id as usize, READ_BYTES);
            self.reading[i] = false;
        }
    }

    /// Holds what the peer has written to what it may have written.
    pub(crate) fn check_written(&self, pattern: &[u8]) {
        let mut got = vec![0; PATTERN];
        self.window.read_at(WRITE_INTO, &mut got);
        let wrong = got.iter().zip(pattern).position(|(&g, &p)| g != 0 && g != p);
        assert_eq!(wrong, None, "a byte that nobody has written");
        let mut own = vec![0; PATTERN];
        self.window.read_at(0, &mut own);
        assert!(own == pattern, "a byte was written where nobody wrote");
    }

    /// Whether nothing of it is under way any more.
    pub(crate) fn is_over(&self) -> bool {
        self.dead.iter().all(|&f| f) && self.sends == [0; QPS] && self.recvs == [0; QPS]
    }
}

/// A region's key as a word.
pub(crate) fn hex(window: &SharedMr) -> String {
    window.remote().to_bytes().iter().map(|b| format!("{b:02x}")).collect()
}

/// The key that is such a word.
pub(crate) fn key_of(hex: &str) -> RemoteMr {
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hexadecimal");
    RemoteMr::from_bytes(&core::array::from_fn(byte))
}

/// The counters that are not zero, for messages.
pub(crate) fn counters(context: &Context) -> String {
    let counted = context.counters().into_iter().filter(|c| c.value > 0);
    counted.map(|c| format!("{}={} ", c.name, c.value)).collect()
}

fn recv_at(i: usize, slot: usize) -> usize {
    RECV_INTO + (i * RECVS + slot) * RECV_BYTES
}
