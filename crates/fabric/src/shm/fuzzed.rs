//! The fuzz target `shm_peer`: an adapter is connected to a peer that writes arbitrary bytes of the input into its
//! outbox, its board, the page of calls and its socket, between the actions of an honest peer. The corpus runs through
//! it in `cargo test` too.
//!
//! An input is a sequence of records: a byte that names the action, and up to eight more. Time is virtual, except
//! during the revocation of a region. A record can make the adapter's turn take messages of one line by the fast path,
//! too.
//!
//! For every input: the adapter does not panic, its turns end, the messages that it takes are whole, an honest third
//! adapter reaches it, and no state of the peer is left once the peer is gone.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use hca_core::{Access, AddressVector, Instant};
use rustix::fs::{MemfdFlags, SealFlags};

use super::board::generation_at;
use super::frame;
use super::lines::{LINE_DATA_BYTES, LineData, LineMessage, LineSink};
use super::link::Stage;
use super::memory::{Sealed, Segment, Writers};
use super::peer::PeerName;
use super::ring::{FIRST_BYTES, MAX_RECORD, MIN_RING_LINES, outbox_bytes};
use super::{
    Grant, GrantId, LinkId, Notice, QpGuard, Reach, SharedPages, ShmFabric, ShmOptions, ShmSink, hello,
};
use crate::sync::Ordering;
use crate::{Fabric, PathId, RxBudget, RxPacket, TxBatch};

/// Records of one input at most.
const MAX_RECORDS: usize = 200;
const QPN: u32 = 5;
const QP_WORD: u64 = 0xfeed_0001;
const PAGES: usize = 8192;
const ALL: Access = Access::BY_PEERS;
/// What a turn of the adapter lets pass.
const STEP: Duration = Duration::from_micros(20);

/// Runs one input, and panics if one of the module's promises does not hold.
#[cfg_attr(not(fuzzing), expect(unreachable_pub, reason = "the fuzz target's"))]
pub fn shm_peer(data: &[u8]) {
    let mut input = Input(data);
    let mut bed = Bed::new();
    for _ in 0..MAX_RECORDS {
        let Some([what]) = input.take() else { break };
        bed.record(what, &mut input);
    }
    bed.end();
}

struct Input<'a>(&'a [u8]);
impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

/// Where the adapter's input goes.
struct Sink<'a> {
    honest: PeerName,
    /// Packets and messages of the honest one, which are numbered.
    heard: &'a mut u32,
    /// What the peer has granted, and how it is reached.
    reached: Option<(GrantId, QpGuard)>,
}

impl ShmSink for Sink<'_> {
    fn packet(&mut self, packet: &RxPacket<'_>) {
        assert!(packet.bytes.len() <= MAX_RECORD, "{} bytes", packet.bytes.len());
        if packet.header.src == self.honest.ip() {
            hear(self.heard, packet.bytes);
        }
    }
    fn message(&mut self, from: PeerName, message: &[u8], mut reach: Reach<'_>) -> usize {
        assert!(message.len() <= MAX_RECORD);
        if from == self.honest {
            hear(self.heard, message);
            return 0;
        }
        let Some((grant, guard)) = &self.reached else { return 0 };
        let Ok(mut bracket) = reach.access(*grant, guard) else { return 0 };
        let at = u64::from(message.last().copied().unwrap_or(0)) * 64;
        let mut bytes = [0; 100];
        let _ = bracket.read(at, &mut bytes);
        let _ = bracket.write(at, &bytes);
        let _ = bracket.fetch_add(at, 1);
        bytes.len()
    }
}

/// Where messages of one line go that the adapter takes by the quick way.
struct Quick<'a> {
    /// The link of the honest one, and what was heard of it.
    honest: Option<LinkId>,
    heard: &'a mut u32,
    /// The peer's first link, and what the peer writes there.
    peer: Option<LinkId>,
    outbox: &'a Segment,
    /// Each so many messages one is refused; 0: none.
    refuses: usize,
    offered: usize,
    taken: usize,
}

impl LineSink for Quick<'_> {
    fn line(&mut self, from: LinkId, head: [u32; 3], data: LineData<'_>) -> bool {
        self.offered += 1;
        if self.refuses > 0 && self.offered.is_multiple_of(self.refuses) {
            return false;
        }
        // Wherever the memory begins that it goes to.
        let message = line_bytes(head, data, self.offered % 9);
        if Some(from) == self.honest {
            hear(self.heard, &message);
        } else if Some(from) == self.peer {
            assert!(stands_in(self.outbox, &message), "{message:?} stands in no line");
        }
        self.taken += 1;
        true
    }
}

/// A message of one line, its data copied to so many bytes behind a word's begin.
#[allow(unsafe_code)]
pub(super) fn line_bytes(head: [u32; 3], data: LineData<'_>, at: usize) -> Vec<u8> {
    const UNTOUCHED: u8 = 0xa5;
    let mut words = [u64::from_ne_bytes([UNTOUCHED; 8]); 10];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    let len = data.len();
    assert!(len <= LINE_DATA_BYTES, "{len} bytes in a line");
    // SAFETY: `bytes` has room for a line's data from there on, and nobody else knows it.
    unsafe { data.place(bytes[at..at + LINE_DATA_BYTES].as_mut_ptr()) };
    let beside = bytes[..at].iter().chain(&bytes[at + len..]);
    assert!(beside.copied().all(|byte| byte == UNTOUCHED), "more than {len} bytes were written");
    [bytemuck::cast_slice(&head), &bytes[at..at + len]].concat()
}

/// Whether a message stands in one line of a ring.
fn stands_in(outbox: &Segment, message: &[u8]) -> bool {
    (2..2 + MIN_RING_LINES as usize).any(|line| {
        let mut bytes = [0; FIRST_BYTES];
        outbox.window().load(line * 64 + 4, &mut bytes);
        bytes.starts_with(message)
    })
}

/// An honest one's packets and messages come whole and in order.
fn hear(heard: &mut u32, bytes: &[u8]) {
    assert_eq!(bytes, numbered(*heard), "the honest one's {heard}th");
    *heard += 1;
}

/// Whether the honest one's so-manyth is a message of one line, and no packet.
fn is_line(number: u32) -> bool {
    number % 3 == 1
}

/// A packet or message of the honest one.
fn numbered(number: u32) -> Vec<u8> {
    let most = if is_line(number) { LINE_DATA_BYTES + 1 } else { 300 };
    let mut packet = vec![number as u8; 12 + (number as usize * 37) % most];
    packet[..4].copy_from_slice(&number.to_le_bytes());
    packet
}

struct Bed {
    domain: String,
    /// The adapter, its peer, and an honest one.
    a: ShmFabric,
    b: ShmFabric,
    c: ShmFabric,
    a_to_b: PathId,
    b_to_a: PathId,
    c_to_a: PathId,
    now: Instant,
    /// What the peer writes, and the page that all peers of the adapter write.
    outbox: Segment,
    calls: Segment,
    /// The adapter's link to the peer, of which that outbox is.
    peer: Option<LinkId>,
    /// A file that may be granted.
    file: OwnedFd,
    /// Memory of either that is granted.
    pages: [SharedPages; 2],
    reached: Option<(GrantId, QpGuard)>,
    heard: u32,
    sent: u32,
    /// A region was taken back already, which may take a while.
    revoked: bool,
}

impl Bed {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let domain = format!("f{}.{number}", std::process::id());
        let options = ShmOptions { ring_bytes: MIN_RING_LINES as usize * 64, ..ShmOptions::default() };
        let [mut a, mut b, mut c] =
            [(); 3].map(|()| ShmFabric::open(&domain, &options).expect("shared memory can be had"));
        let to = |f: &ShmFabric| AddressVector { dgid: f.attr().local.into(), ..AddressVector::default() };
        let (a_to_b, b_to_a, c_to_a) =
            (a.open_path(&to(&b)).unwrap(), b.open_path(&to(&a)).unwrap(), c.open_path(&to(&a)).unwrap());
        let now = Instant::from_nanos(1);
        let meet = |f: &mut ShmFabric, path| send(f, now, path, &numbered(0));
        meet(&mut b, b_to_a);
        meet(&mut c, c_to_a);
        let calls = Sealed::verify(a.own.bits_fd.as_fd(), 4096, Writers::Anybody);
        let calls = calls.expect("it is as it was made").segment().expect("anybody may map it");
        let outbox = b.links.get(b.links.find(a.own.local).expect("it was just met")).expect("as above");
        let outbox = outbox.outbox.clone();
        let file = rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, PAGES as u64).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let pages = [(); 2].map(|()| SharedPages::alloc(PAGES).unwrap());
        let mut bed = Self {
            domain,
            a,
            b,
            c,
            a_to_b,
            b_to_a,
            c_to_a,
            now,
            outbox,
            calls,
            peer: None,
            file,
            pages,
            reached: None,
            heard: 0,
            sent: 1,
            revoked: false,
        };
        bed.settle();
        bed.peer = bed.links().0;
        bed.set_up_grants();
        bed
    }

    /// Turns all until all greetings are over.
    fn settle(&mut self) {
        for round in 0.. {
            self.turn();
            self.turn_others();
            if self.heard == self.sent
                && [&self.a, &self.b, &self.c].iter().all(|f| f.meetings.greetings == 0)
            {
                return;
            }
            assert!(round < 10_000, "they do not meet");
        }
    }

    /// The peer has granted a region, the adapter has offered one.
    fn set_up_grants(&mut self) {
        self.b.set_qp_word(QPN, QP_WORD).unwrap();
        let (to_b, _) = self.links();
        let to_b = to_b.expect("they have met");
        self.a.ask_grant(to_b, 1, QPN).unwrap();
        let offer = Grant { key: 2, ..grant(&self.pages[0], ALL) };
        self.a.offer(to_b, &offer).unwrap();
        for round in 0.. {
            if self.reached.is_some() {
                return;
            }
            assert!(round < 10_000, "the peer does not grant its memory");
            self.answer();
            self.turn_others();
            self.turn();
        }
    }

    /// The link to the peer as the adapter knows it, and the other way round.
    fn links(&self) -> (Option<LinkId>, Option<LinkId>) {
        let link = |f: &ShmFabric, peer| Some(LinkId::new(f.links.token(f.links.find(peer)?)));
        (link(&self.a, self.b.own.local), link(&self.b, self.a.own.local))
    }

    /// Looks for messages of one line, up to so many, of which each so-manyth is refused.
    fn look(&mut self, max: usize, refuses: usize) {
        let c = self.a.links.find(self.c.own.local);
        let honest = c.map(|slot| LinkId::new(self.a.links.token(slot)));
        let Self { heard, outbox, peer, .. } = self;
        let mut sink = Quick { honest, heard, peer: *peer, outbox, refuses, offered: 0, taken: 0 };
        let found = self.a.look().map(|ring| self.a.take_lines(ring, max, &mut sink));
        let Quick { offered, taken, .. } = sink;
        assert!(taken <= max && offered <= taken + 1, "{taken} of {offered} were taken, of {max} at most");
        let Some(found) = found else { return assert_eq!(offered, 0) };
        assert_eq!(found.taken, taken);
        assert!(taken > 0 || found.other, "what it found is neither taken nor left to the long way");
    }

    /// A turn of the adapter.
    fn turn(&mut self) {
        self.now = self.now + STEP;
        let mut sink = Sink { honest: self.c.own.local, heard: &mut self.heard, reached: self.reached };
        self.a.recv_all(self.now, RxBudget { packets: 512, bytes: 256 << 10 }, &mut sink);
        while self.a.next_gone().is_some() {}
        while let Some(notice) = self.a.next_notice() {
            match notice {
                Notice::GrantAsked { link, key, qpn } if key % 2 == 0 => self.a.refuse_grant(link, key, qpn),
                Notice::GrantAsked { link, key, .. } => {
                    let rights = if key % 4 == 1 { Access::REMOTE_READ } else { ALL };
                    let _ = self.a.grant(link, &Grant { key, ..grant(&self.pages[0], rights) });
                }
                Notice::Granted { link, grant, .. } => {
                    let guard = self.a.qp_guard(link, QPN, QP_WORD);
                    self.reached = guard.map(|guard| (grant, guard)).or(self.reached.take());
                }
                _ => {}
            }
        }
    }

    fn turn_others(&mut self) {
        let budget = RxBudget { packets: 512, bytes: 256 << 10 };
        self.b.recv(self.now, budget, &mut |_| {});
        self.c.recv(self.now, budget, &mut |_| {});
    }

    /// The peer answers as an honest one does.
    fn answer(&mut self) {
        while let Some(notice) = self.b.next_notice() {
            if let Notice::GrantAsked { link, key, .. } = notice {
                let _ = self.b.grant(link, &Grant { key, ..grant(&self.pages[1], ALL) });
            }
        }
    }

    fn record(&mut self, what: u8, input: &mut Input<'_>) {
        match what % 16 {
            0..=3 => self.write_outbox(what % 16, input),
            4 | 5 => {
                let Some([line, lap, kind, low, high]) = input.take() else { return };
                // A word such as a record begins with.
                let len = u32::from(u16::from_le_bytes([low, high]) & 0x1fff);
                let word = u32::from(lap) << 16 | u32::from(kind & 7) << 13 | len;
                self.outbox.word((2 + usize::from(line)) * 64).store(word, Ordering::Release);
            }
            6 => {
                let Some([at, region, generation]) = input.take() else { return };
                let at = if at & 1 == 0 { generation_at(region.into()) } else { usize::from(region) * 8 };
                self.b.grants.board().word(at).store(generation.into(), Ordering::Relaxed);
            }
            7 => {
                let Some([at, a, b, c, d]) = input.take() else { return };
                let word = u32::from_le_bytes([a, b, c, d]);
                self.calls.word(usize::from(at) * 4).store(word, Ordering::Relaxed);
            }
            8 => self.say(input),
            9 => {
                let Some([low, high]) = input.take() else { return };
                let len = 12 + usize::from(u16::from_le_bytes([low, high])) % 4080;
                send(&mut self.b, self.now, self.b_to_a, &vec![low; len]);
            }
            10 => {
                let Some([low, high]) = input.take() else { return };
                let len = 12 + usize::from(u16::from_le_bytes([low, high])) % 4080;
                self.b.send_messages(self.now, self.b_to_a, |tx, _| {
                    if let Some(room) = tx.reserve(len) {
                        room.fill(high);
                        tx.commit();
                    }
                });
            }
            11 | 12 => {
                let Some([turns]) = input.take() else { return };
                let how = usize::from(turns / 32);
                for _ in 0..=turns % 32 {
                    if how > 0 {
                        self.look(how, how - 1);
                    }
                    self.turn();
                }
            }
            13 => {
                let Some([count, len]) = input.take() else { return };
                for _ in 0..count {
                    send(&mut self.a, self.now, self.a_to_b, &vec![len; 12 + 16 * usize::from(len)]);
                }
            }
            14 => self.work(input),
            _ => {
                self.turn_others();
                self.answer();
                self.honest();
            }
        }
    }

    /// The honest one sends a packet.
    fn honest(&mut self) {
        let ahead = self.sent - self.heard;
        if ahead < 8 {
            let bytes = numbered(self.sent);
            if is_line(self.sent) {
                self.send_line(&bytes);
            } else {
                send(&mut self.c, self.now, self.c_to_a, &bytes);
            }
            self.sent += 1;
        }
    }
    /// The honest one sends a message, by the quick way if there is one.
    fn send_line(&mut self, bytes: &[u8]) {
        let (head, data) = bytes.split_first_chunk::<12>().expect("a message has a head");
        let mut message = LineMessage::new(bytemuck::cast(*head), data.len());
        message.data_mut().copy_from_slice(data);
        let to_a = self.c.links.find(self.a.own.local).map(|slot| LinkId::new(self.c.links.token(slot)));
        if let Some(mut tx) = to_a.and_then(|to_a| self.c.line_tx(to_a)) {
            let pushed = tx.push(&mut message);
            tx.call();
            if pushed {
                return;
            }
        }
        self.c.send_messages(self.now, self.c_to_a, |tx, _| {
            tx.reserve(bytes.len()).expect("there is room for one").copy_from_slice(bytes);
            tx.commit();
        });
    }

    /// The peer writes a word of its outbox: any, a little off, of the last line, or a copy of a line.
    fn write_outbox(&mut self, how: u8, input: &mut Input<'_>) {
        let words = outbox_bytes(MIN_RING_LINES) / 4;
        let Some([low, high, a, b]) = input.take() else { return };
        let at = usize::from(u16::from_le_bytes([low, high])) % words * 4;
        let value = u32::from_le_bytes([a, b, a, b]);
        match how {
            0 => self.outbox.word(at).store(value, Ordering::Release),
            1 => {
                let word = self.outbox.word(at);
                let near = word.load(Ordering::Relaxed).wrapping_add_signed(i32::from(a as i8));
                word.store(near, Ordering::Release);
            }
            2 => {
                let at = if low & 1 == 0 { words * 4 - 64 } else { 4 * usize::from(high & 3) };
                self.outbox.word(at).store(if a & 1 == 0 { b.into() } else { value }, Ordering::Release);
            }
            _ => {
                let (from, to) = ((2 + usize::from(low)) * 64, (2 + usize::from(high)) * 64);
                for i in (0..FIRST_BYTES + 4).step_by(4).rev() {
                    let word = self.outbox.word(from + i).load(Ordering::Relaxed);
                    self.outbox.word(to + i).store(word, Ordering::Release);
                }
            }
        }
    }

    /// The peer says something by its socket: a kind, some fields, and descriptors or not.
    fn say(&mut self, input: &mut Input<'_>) {
        let Some([kind, how, fields]) = input.take() else { return };
        let mut message = frame::header(kind % 26);
        for _ in 0..fields % 8 {
            let Some([at, byte]) = input.take() else { break };
            message[11 + usize::from(at) % (frame::BYTES - 11)] = byte;
        }
        let Some(slot) = self.b.links.find(self.a.own.local) else { return };
        let Some(Stage::Up(socket)) = self.b.links.get(slot).map(|l| &l.stage) else { return };
        let len = if how & 4 == 0 { frame::BYTES } else { usize::from(how) % (frame::BYTES + 1) };
        let fds = [self.file.as_fd(); hello::DESCRIPTORS];
        let _ = hello::send_raw(socket.as_fd(), &message[..len], &fds[..usize::from(how & 3)]);
    }

    /// What the adapter does of its own.
    fn work(&mut self, input: &mut Input<'_>) {
        let Some([what, key]) = input.take() else { return };
        let (Some(to_b), _) = self.links() else { return };
        let key = u32::from(key);
        match what % 8 {
            0 => drop(self.a.ask_grant(to_b, key, QPN)),
            1 => drop(self.a.offer(to_b, &Grant { key, ..grant(&self.pages[0], ALL) })),
            2 if !self.revoked => {
                self.revoked = true;
                self.a.revoke(2);
            }
            3 => drop(self.a.qp_guard(to_b, key, QP_WORD)),
            4 => {
                self.a.prepare_wait();
            }
            5 => self.now = self.now + Duration::from_micros(1 << (key % 21)),
            6 => {
                let mut reached = None;
                core::mem::swap(&mut reached, &mut self.reached);
                if let Some((grant, _)) = reached {
                    self.a.release_grant(grant);
                }
            }
            _ => {
                let Some((grant, guard)) = &self.reached else { return };
                if let Ok(mut bracket) = self.a.access(*grant, guard) {
                    let _ = bracket.write(u64::from(key) * 32, &[key as u8; 200]);
                    let _ = bracket.compare_swap(u64::from(key) * 8, 0, 1);
                }
            }
        }
    }

    /// The honest one is heard, the peer goes, and nothing is left of it.
    fn end(mut self) {
        self.honest();
        for round in 0.. {
            self.turn();
            self.now = self.now + Duration::from_millis(1);
            self.c.recv(self.now, RxBudget { packets: 1, bytes: 1 }, &mut |_| {});
            if self.heard == self.sent {
                break;
            }
            assert!(round < 5_000, "{} packets of {} were heard", self.heard, self.sent);
        }
        let peer = self.b.own.local;
        let options = ShmOptions { ring_bytes: MIN_RING_LINES as usize * 64, ..ShmOptions::default() };
        drop(std::mem::replace(&mut self.b, ShmFabric::open(&self.domain, &options).unwrap()));
        // A process that another test starts has copies of the peer's sockets until it runs its program.
        let begin = std::time::Instant::now();
        for round in 0.. {
            self.now = self.now + Duration::from_millis(1);
            self.turn();
            if self.a.links.find(peer).is_none() {
                break;
            }
            if round > 5_000 {
                std::thread::yield_now();
                assert!(begin.elapsed() < Duration::from_secs(10), "the peer is gone, and its link is not");
            }
        }
        assert_eq!((self.a.grants.mapped.len(), self.a.grants.questions), (0, 0));
        self.a.revoke(2);
    }
}

fn grant(pages: &SharedPages, access: Access) -> Grant<'_> {
    let (offset, len) = (0, pages.len());
    Grant {
        key: 1,
        qpn: QPN,
        pages: Some(pages),
        offset,
        len,
        iova: 1 << 40,
        access,
        pd: 3,
        qp_word: QP_WORD,
    }
}

fn send(f: &mut ShmFabric, now: Instant, path: PathId, packet: &[u8]) {
    let mut batch = TxBatch::with_capacity(8192);
    batch.reserve(path, packet.len()).expect("there is room for one").copy_from_slice(packet);
    batch.commit();
    f.send(now, &mut batch);
}
