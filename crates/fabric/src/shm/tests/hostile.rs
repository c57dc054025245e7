//! Peers that break the rules.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use test_support::random::Rng;

use super::super::board::BOARD_BYTES;
use super::super::frame;
use super::super::fuzzed::line_bytes;
use super::super::hello::{self, Greeting, Kind, Received};
use super::super::link::Stage;
use super::super::memory::{MemoryFault, Sealed, Writers, create};
use super::super::note::{Note, Place};
use super::super::peer::PeerName;
use super::super::ring::{MAX_RECORD, outbox_bytes};
use super::super::{LineData, LineSink, Lines, Reach, ShmSink};
use super::*;
use crate::RxPacket;
use crate::sync::Ordering;

/// Two that have met, and the path from the first to the second.
pub(super) fn met() -> (ShmFabric, ShmFabric, PathId) {
    let (mut a, mut b, path) = two();
    b.open_path(&av(a.attr().local)).unwrap();
    send(&mut a, path, &[packet(0, 40)]);
    let mut got = [Vec::new(), Vec::new()];
    turn_until(&mut [&mut a, &mut b], &mut got, |g| g[1].len() == 1);
    let start = Clock::now();
    while a.meetings.greetings + b.meetings.greetings > 0 {
        recv(&mut a, &mut got[0]);
        recv(&mut b, &mut got[1]);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    (a, b, path)
}

#[test]
fn a_peer_that_writes_garbage_into_its_memory_is_dropped_and_the_others_stay() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let (mut a, mut b, to_b) = met();
        // A third one, who is honest.
        let d = a.own.domain.clone();
        let mut c = open(d.name());
        let c_to_a = c.open_path(&av(a.attr().local)).unwrap();
        let outbox = b.links.get(b.links.find(a.own.local).unwrap()).unwrap().outbox.clone();
        let words = outbox_bytes(1 << 10) / 4;
        let mut got = [Vec::new(), Vec::new(), Vec::new()];
        // Every word of the credits, and of every line.
        for i in 0..words {
            outbox.word(i * 4).store(rng.next_u32(), Ordering::Relaxed);
            if i % 97 == 0 {
                send(&mut a, to_b, &[packet(i as u32, 40)]);
                a.look().map(|ring| a.take_lines(ring, 1000, &mut Whole::new(rng.next_u32())));
                recv(&mut a, &mut got[0]);
            }
        }
        let full: Vec<_> = (0..200).map(|i| packet(i, 4000)).collect();
        let start = Clock::now();
        while counter(&a, "peers_dropped_garbage") == 0 {
            send(&mut a, to_b, &full);
            a.look().map(|ring| a.take_lines(ring, 1000, &mut Whole::new(rng.next_u32())));
            recv(&mut a, &mut got[0]);
            assert!(start.elapsed() < Duration::from_secs(10), "seed {seed}");
        }
        assert!(a.links.find(b.own.local).is_none());
        got[0].clear();
        send(&mut c, c_to_a, &[packet(5, 50)]);
        turn_until(&mut [&mut a, &mut b, &mut c], &mut got, |g| !g[0].is_empty());
        assert_eq!(got[0][0].1, packet(5, 50));
        // It is not taken for a peer again.
        let again = b.open_path(&av(a.attr().local)).unwrap();
        send(&mut b, again, &[packet(6, 50)]);
        turn_until(&mut [&mut a, &mut b], &mut got, |_| true);
        assert!(a.links.find(b.own.local).is_none());
    }
}

/// The word of a line that begins a record here.
fn record_word(index: u32, lines: u32, kind: u32, len: u32) -> u32 {
    (1 + index / lines) << 16 | kind << 13 | len
}

/// Whether a record may be of this kind and length.
fn is_record(kind: u32, len: u32) -> bool {
    let least = if kind == 3 { 14 } else { 12 };
    (1..=4).contains(&kind) && (least..=MAX_RECORD as u32).contains(&len)
}

/// What stands in a line's other words: which line it is, and which word.
fn marked(index: u32) -> [u32; 15] {
    core::array::from_fn(|i| index << 8 | (i as u32 + 1))
}

/// Takes lines whose words say where they stand, or refuses them, by chance; and notes from which on.
struct Whole {
    rng: Rng,
    offered: Vec<(u32, usize)>,
    refused: bool,
    long: Vec<(u32, usize)>,
}

impl Whole {
    fn new(seed: u32) -> Self {
        Self { rng: Rng::new(seed.into()), offered: Vec::new(), refused: false, long: Vec::new() }
    }
    fn is_marked(bytes: &[u8]) -> u32 {
        let index = u32::from_ne_bytes(*bytes.first_chunk().unwrap()) >> 8;
        let words = marked(index);
        let whole: &[u8] = bytemuck::cast_slice(&words);
        assert_eq!(bytes, &whole[..bytes.len()], "the bytes of line {index}");
        index
    }
}

impl LineSink for Whole {
    fn line(&mut self, _: crate::LinkId, head: [u32; 3], data: LineData<'_>) -> bool {
        self.refused = self.rng.next_u32().is_multiple_of(8);
        if self.refused {
            return false;
        }
        let bytes = line_bytes(head, data, self.rng.next_u32() as usize % 9);
        // Where there is nothing but noise, nothing looks like a line of this lap.
        self.offered.push((Self::is_marked(&bytes), bytes.len()));
        true
    }
}

impl ShmSink for Whole {
    fn packet(&mut self, packet: &RxPacket<'_>) {
        self.long.push((u32::from_ne_bytes(*packet.bytes.first_chunk().unwrap()) >> 8, 0));
    }
    fn message(&mut self, _: PeerName, message: &[u8], _: Reach<'_>) -> usize {
        let index = u32::from_ne_bytes(*message.first_chunk().unwrap()) >> 8;
        self.long.push((index, message.len()));
        0
    }
}

/// Whatever word a line begins with, it is taken as what it says, by either way, or ends the link; and of a message of
/// one line the quick way gives that line's own bytes.
#[test]
fn a_line_is_taken_whole_or_left_whatever_word_it_begins_with() {
    let (mut quick, mut long, mut dropped) = (0, 0, 0);
    for seed in 0..if cfg!(miri) { 1 } else { 30 } {
        let mut rng = Rng::new(seed);
        let (mut a, b, _) = met();
        let outbox = b.links.get(b.links.find(a.own.local).unwrap()).unwrap().outbox.clone();
        let (lines, budget) = (1 << 10, RxBudget { packets: 512, bytes: 1 << 18 });
        let mut sink = Whole::new(rng.next_u32());
        let mut index = 0;
        while index < 3 * lines {
            // Mostly messages of a line, some of more lines, some records of another kind, garbage now and then.
            let (kind, len) = match rng.next_u32() % 1024 {
                0 => (rng.next_u32() % 8, rng.next_u32() % 8192),
                1 => (4, rng.next_u32() % 16),
                2..32 => (4, 56 + rng.next_u32() % 300),
                32..64 => (1 + rng.next_u32() % 4, 14 + rng.next_u32() % 47),
                _ => (4, 12 + rng.next_u32() % 49),
            };
            let at = (2 + (index % lines) as usize) * 64;
            for (i, word) in marked(index).into_iter().enumerate() {
                outbox.word(at + 4 + i * 4).store(word, Ordering::Relaxed);
            }
            assert_eq!(a.look().map(|ring| a.take_lines(ring, 10, &mut sink)), None, "nothing is there yet");
            // Nothing stands behind it: no word, or that of a record of the lap before.
            let next = index + 1 + len.saturating_sub(60).div_ceil(64);
            let of_before = record_word(next, lines, 4, 12 + rng.next_u32() % 49).wrapping_sub(1 << 16);
            let behind = if next < lines || rng.next_u32().is_multiple_of(2) { 0 } else { of_before };
            outbox.word((2 + (next % lines) as usize) * 64).store(behind, Ordering::Relaxed);
            let word = record_word(index, lines, kind, len);
            if rng.next_u32().is_multiple_of(2048) {
                // Not of this lap, nor of the one before.
                let other = 2 + rng.next_u32() % 0xfff0;
                outbox.word(at).store(word.wrapping_add(other << 16), Ordering::Release);
                assert_eq!(a.look().map(|ring| a.take_lines(ring, 10, &mut sink)), None);
                a.recv_all(now(), budget, &mut sink);
                assert_eq!((counter(&a, "peers_dropped_garbage"), sink.long.pop()), (1, None));
                dropped += 1;
                break;
            }
            outbox.word(at).store(word, Ordering::Release);
            let is_line = kind == 4 && (12..=60).contains(&len);
            let found = a.look().map(|ring| a.take_lines(ring, 10, &mut sink)).expect("it is of this lap");
            if found.taken > 0 {
                assert!(is_line);
                assert_eq!(
                    (found, sink.offered.pop()),
                    (Lines { taken: 1, other: false }, Some((index, len as usize)))
                );
                quick += 1;
                index = next;
                continue;
            }
            assert!(found.other && (sink.refused || !is_line), "kind {kind}, {len} bytes");
            a.recv_all(now(), budget, &mut sink);
            if !is_record(kind, len) {
                assert_eq!((counter(&a, "peers_dropped_garbage"), sink.long.pop()), (1, None));
                assert!(a.links.find(b.own.local).is_none());
                dropped += 1;
                break;
            }
            let expected = (index, if kind == 4 { len as usize } else { 0 });
            assert_eq!((sink.long.pop(), counter(&a, "peers_dropped_garbage")), (Some(expected), 0));
            long += 1;
            index = next;
        }
        assert_eq!(a.look().map(|ring| a.take_lines(ring, 10, &mut sink)), None);
        assert!(sink.offered.is_empty() && sink.long.is_empty());
    }
    assert!(cfg!(miri) || (quick > 1000 && long > 100 && dropped > 10), "{quick} {long} {dropped}");
}

#[test]
fn garbage_on_the_page_of_calls_harms_nobody() {
    let (mut a, mut b, _) = met();
    let path = b.open_path(&av(a.attr().local)).unwrap();
    let mut got = [Vec::new(), Vec::new()];
    let mut rng = Rng::new(1);
    let page = Sealed::verify(a.own.bits_fd.as_fd(), 4096, Writers::Anybody).unwrap().segment().unwrap();
    for round in 1..50 {
        for i in 0..1024 {
            page.word(i * 4).store(rng.next_u32(), Ordering::Relaxed);
        }
        send(&mut b, path, &[packet(round, 50)]);
        turn_until(&mut [&mut a, &mut b], &mut got, |g| g[0].len() == round as usize);
    }
}

/// A memfd with these seals, of this size.
fn memfd(len: u64, seals: SealFlags, flags: MemfdFlags) -> OwnedFd {
    let fd =
        rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn memory_is_mapped_only_where_it_cannot_change_under_us() {
    let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let all = size | SealFlags::FUTURE_WRITE;
    let plain = MemfdFlags::empty();
    let verify = |fd: &OwnedFd, writers| Sealed::verify(fd.as_fd(), 8192, writers).map(|_| ());
    assert!(verify(&memfd(8192, all, plain), Writers::Creator).is_ok());
    assert!(verify(&memfd(8192, size, plain), Writers::Anybody).is_ok());
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL, SealFlags::FUTURE_WRITE] {
        let found = verify(&memfd(8192, all - missing, plain), Writers::Creator);
        assert!(matches!(found, Err(MemoryFault::Seals { .. })), "{missing:?}: {found:?}");
    }
    let other = verify(&memfd(4096, all, plain), Writers::Creator);
    assert!(matches!(other, Err(MemoryFault::Size { found: 4096, .. })), "{other:?}");
    let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    assert!(matches!(verify(&file, Writers::Anybody), Err(MemoryFault::Seals { .. })));
    // Huge pages take the same seals, and holes nevertheless. The size needs no page to be there.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    if let Ok(fd) = rustix::fs::memfd_create("test", flags) {
        rustix::fs::ftruncate(&fd, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&fd, all).unwrap();
        let found = Sealed::verify(fd.as_fd(), 2 << 20, Writers::Creator).map(|_| ());
        assert!(matches!(found, Err(MemoryFault::Kind(_))), "{found:?}");
    }
}

#[test]
fn nobody_else_can_write_to_an_outbox_or_punch_holes_into_it() {
    let (fd, segment) = create("test", 8192, Writers::Creator).unwrap();
    segment.word(0).store(7, Ordering::Relaxed);
    assert!(Sealed::verify(fd.as_fd(), 8192, Writers::Anybody).unwrap().segment().is_err());
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(&fd, punch, 0, 4096).is_err());
    assert!(rustix::io::write(&fd, &[1]).is_err() && rustix::fs::ftruncate(&fd, 0).is_err());
    let window = Sealed::verify(fd.as_fd(), 8192, Writers::Creator).unwrap().sparse_window(8192).unwrap();
    assert_eq!(window.word(0, Ordering::Relaxed), 7);
}

/// Speaks to an adapter's socket, and says what becomes of the connection.
fn say(a: &mut ShmFabric, greeting: &Greeting, fds: &[OwnedFd]) -> Kind {
    let (socket, _) = a.own.domain.connect(a.own.local).unwrap();
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    hello::send(socket.as_fd(), greeting, &fds).unwrap();
    let start = Clock::now();
    loop {
        recv(a, &mut Vec::new());
        match hello::receive(socket.as_fd()) {
            Received::Message(g, _) => return g.kind,
            Received::Nothing => assert!(start.elapsed() < Duration::from_secs(10)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_stranger_is_turned_away_and_told_so() {
    let mut a = open(&domain());
    let lines = 1 << 10;
    let from = "fd00::77".parse::<std::net::Ipv6Addr>().unwrap().into();
    let hello = Greeting { kind: Kind::Hello, from, ring_lines: lines, bit: 9, barriers: false, nonce: 0 };
    let len = outbox_bytes(lines) as u64;
    let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let all = size | SealFlags::FUTURE_WRITE;
    let plain = MemfdFlags::empty();
    let fds = |outbox_len, outbox_seals| {
        [dense(outbox_len, outbox_seals), memfd(4096, size, plain), memfd(BOARD_BYTES as u64, all, plain)]
    };
    assert_eq!(say(&mut a, &hello, &fds(len, size)), Kind::Refused);
    assert_eq!(say(&mut a, &hello, &fds(len - 4096, all)), Kind::Refused);
    let impostor = Greeting { from: a.own.local, ..hello };
    assert_eq!(say(&mut a, &impostor, &fds(len, all)), Kind::Refused);
    assert_eq!(say(&mut a, &hello, &fds(len, all)[..2]), Kind::Refused);
    assert_eq!(say(&mut a, &Greeting { ring_lines: 3, ..hello }, &fds(len, all)), Kind::Refused);
    assert_eq!(counter(&a, "peers_refused"), 5);
    assert_eq!((a.links.len(), a.meetings.greetings), (0, 0));
    assert_eq!(say(&mut a, &hello, &fds(len, all)), Kind::Welcome);
}

/// A memfd with all of its pages.
fn dense(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd(len, SealFlags::empty(), MemfdFlags::empty());
    rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

const SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// What somebody with a ring of so many lines says and hands over.
fn greeting(number: u16, ring_lines: u32, dense_ring: bool) -> (Greeting, [OwnedFd; 3]) {
    let address = std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, number);
    let (kind, from) = (Kind::Hello, address.into());
    let hello = Greeting { kind, from, ring_lines, bit: 9, barriers: false, nonce: 0 };
    let (len, all) = (outbox_bytes(ring_lines) as u64, SIZE | SealFlags::FUTURE_WRITE);
    let plain = MemfdFlags::empty();
    let ring = if dense_ring { dense(len, all) } else { memfd(len, all, plain) };
    (hello, [ring, memfd(4096, SIZE, plain), memfd(BOARD_BYTES as u64, all, plain)])
}

#[test]
fn a_ring_whose_pages_are_not_there_is_refused_and_makes_none() {
    let mut a = open(&domain());
    let (hello, fds) = greeting(1, 1 << 20, false);
    assert_eq!(say(&mut a, &hello, &fds), Kind::Refused);
    assert_eq!(rustix::fs::fstat(&fds[0]).unwrap().st_blocks, 0, "pages that this side made");
    assert_eq!((a.links.len(), counter(&a, "peers_refused")), (0, 1));
    let (hello, fds) = greeting(2, 1 << 12, true);
    assert_eq!(say(&mut a, &hello, &fds), Kind::Welcome);
}

#[test]
fn the_rings_of_another_users_peers_have_a_limit_and_ones_own_have_none() {
    let options = ShmOptions { any_user: true, ring_bytes: 1 << 16, ..ShmOptions::default() };
    let mut a = ShmFabric::open(&domain(), &options).unwrap();
    let mut ends = Vec::new();
    let mut meet = |a: &mut ShmFabric, number: u16, uid: u32| {
        let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
        let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
        let (ours, theirs) = rustix::net::socketpair(family, kind, flags, None).unwrap();
        let (hello, fds) = greeting(number, 1 << 14, true);
        a.meet(ours.into(), uid, &hello, &fds);
        ends.push(theirs);
        a.links.len()
    };
    let (stranger, other) = (a.own.domain.uid() + 1, a.own.domain.uid() + 2);
    let each = outbox_bytes(1 << 14) + outbox_bytes(1 << 10);
    let fit = super::super::meet::MAX_BYTES_OF_USER / each;
    for number in 0..fit as u16 {
        assert_eq!(meet(&mut a, number, stranger), usize::from(number) + 1);
    }
    assert_eq!(meet(&mut a, 1000, stranger), fit, "one more is turned away");
    assert_eq!(meet(&mut a, 1001, other), fit + 1, "another user has a limit of its own");
    let own = a.own.domain.uid();
    for number in 0..fit as u16 + 1 {
        meet(&mut a, 2000 + number, own);
    }
    assert_eq!(a.links.len(), 2 * fit + 2);
}

#[test]
fn who_connects_and_says_nothing_is_forgotten() {
    let mut a = open(&domain());
    let silent: Vec<_> = (0..100).map(|_| a.own.domain.connect(a.own.local).unwrap()).collect();
    // The time is told, not waited for.
    let begin = now();
    let later = |a: &mut ShmFabric, after: Duration| {
        a.recv(begin + after, RxBudget { packets: 1, bytes: 1 }, &mut |_| {});
    };
    for turn in 0..20 {
        later(&mut a, Duration::from_millis(turn));
    }
    assert_eq!(a.meetings.pending.len(), 64);
    assert!(a.next_deadline().is_some());
    // The others have their time behind that.
    for turn in 0..20 {
        later(&mut a, Duration::from_millis(2000 + turn));
    }
    assert_eq!(a.meetings.pending.len(), 36);
    for turn in 0..20 {
        later(&mut a, Duration::from_millis(4000 + turn));
    }
    assert_eq!((a.meetings.pending.len(), a.meetings.greetings), (0, 0));
    assert!(a.next_deadline().is_none());
    assert_eq!(counter(&a, "peers_refused"), 100);
    drop(silent);
}

/// As where many processes connect at once, each of which may lose its CPU between the connection and its hello.
#[test]
fn who_connects_while_many_have_said_nothing_waits_and_is_not_refused() {
    let d = domain();
    let (mut a, mut b) = (open(&d), open(&d));
    let silent: Vec<_> = (0..100).map(|_| a.own.domain.connect(a.own.local).unwrap()).collect();
    recv(&mut a, &mut Vec::new());
    let path = b.open_path(&av(a.attr().local)).unwrap();
    let start = Clock::now();
    while b.link_of(path).is_none() {
        recv(&mut a, &mut Vec::new());
        recv(&mut b, &mut Vec::new());
        assert!(a.meetings.pending.len() <= 64, "{} wait", a.meetings.pending.len());
        assert!(start.elapsed() < Duration::from_secs(10), "it is not met");
    }
    assert_eq!((counter(&b, "peers_gone"), counter(&b, "peers_refused_us")), (0, 0));
    drop(silent);
}

#[test]
fn another_user_who_connects_and_says_nothing_keeps_nobody_out() {
    let mut a = ShmFabric::open(&domain(), &ShmOptions { any_user: true, ..ShmOptions::default() }).unwrap();
    let connect = |a: &ShmFabric| a.own.domain.connect(a.own.local).unwrap();
    // The kernel says whose process this is: for this adapter, it is another user's.
    let own = a.own.domain.clone();
    a.own.domain = own.clone().of_other_user(own.uid() + 1);
    let silent: Vec<_> = (0..100).map(|_| connect(&a)).collect();
    let turn = |a: &mut ShmFabric, ms| {
        a.recv(now() + Duration::from_millis(ms), RxBudget { packets: 1, bytes: 1 }, &mut |_| {});
    };
    (0..20).for_each(|ms| turn(&mut a, ms));
    assert_eq!((a.meetings.pending.len(), counter(&a, "peers_refused")), (16, 84));
    a.own.domain = own;
    let welcome = connect(&a);
    (20..40).for_each(|ms| turn(&mut a, ms));
    assert_eq!(a.meetings.pending.len(), 17);
    drop((silent, welcome));
}

#[test]
fn messages_out_of_turn_end_the_link() {
    let (mut a, b, _) = met();
    let link = b.links.get(b.links.find(a.own.local).unwrap()).unwrap();
    let Stage::Up(socket) = &link.stage else { panic!("they have met") };
    let (kind, from) = (Kind::Crossed, b.own.local);
    let message = Greeting { kind, from, ring_lines: 0, bit: 0, barriers: true, nonce: 0 };
    hello::send(socket.as_fd(), &message, &[]).unwrap();
    let start = Clock::now();
    while counter(&a, "peers_dropped_garbage") == 0 {
        recv(&mut a, &mut Vec::new());
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

/// Says something by the socket of a link, whatever its fabric would say.
pub(super) fn say_note(f: &ShmFabric, peer: &ShmFabric, note: &Note, fd: Option<&OwnedFd>) {
    let link = f.links.get(f.links.find(peer.own.local).unwrap()).unwrap();
    let Stage::Up(socket) = &link.stage else { panic!("they have met") };
    hello::send_note(socket.as_fd(), note, fd.map(|fd| fd.as_fd())).unwrap();
}

fn some_grant(region: u32, len: u64, offered: bool) -> Note {
    let access = hca_core::Access::REMOTE_READ | hca_core::Access::REMOTE_WRITE;
    let granted =
        crate::Granted { qpn: 1, iova: 0, len, access, pd: 0, qp_word: 0, offered, in_process: false };
    Note::Grant { key: region, place: Place { region, generation: 0, offset: 0 }, granted }
}

/// Turns the first until it has dropped the second.
pub(super) fn drops(a: &mut ShmFabric, what: &str) {
    let start = Clock::now();
    while counter(a, "peers_dropped_garbage") == 0 {
        recv(a, &mut Vec::new());
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
    }
}

#[test]
fn answers_to_what_was_not_asked_end_the_link() {
    let fd = memfd(4096, SealFlags::SHRINK | SealFlags::GROW, MemfdFlags::empty());
    for (what, note) in [("refuse", Note::Refuse { key: 1, qpn: 1 }), ("grant", some_grant(0, 4096, false))] {
        let (mut a, b, _) = met();
        say_note(&b, &a, &note, note.brings_descriptor().then_some(&fd));
        drops(&mut a, what);
        assert_eq!(a.next_notice(), None);
    }
}

/// Each key would have a place in the tables of whoever takes it, and there are no mappings to bound these.
#[test]
fn a_region_that_is_granted_by_several_keys_ends_the_link() {
    let (mut a, b, _) = met();
    let fd = memfd(4096, SealFlags::SHRINK | SealFlags::GROW, MemfdFlags::empty());
    for other in 0..2 {
        let Note::Grant { place, granted, .. } = some_grant(0, 4096, true) else { unreachable!("it is one") };
        // Once more by the same key, for another queue pair, and then by another one.
        for key in [7, 7, 7 + other] {
            say_note(&b, &a, &Note::Grant { key, place, granted }, Some(&fd));
        }
        if other == 0 {
            let start = Clock::now();
            while counter(&a, "grants_mapped") < 3 && start.elapsed() < Duration::from_secs(10) {
                recv(&mut a, &mut Vec::new());
            }
            assert_eq!((counter(&a, "peers_dropped_garbage"), a.grants.mapped.len()), (0, 1));
        }
    }
    drops(&mut a, "two keys");
    let keys = core::iter::from_fn(|| a.next_notice()).filter_map(|n| match n {
        crate::Notice::Granted { key, .. } => Some(key),
        _ => None,
    });
    assert!(keys.eq([7; 5]), "the other key is told to nobody");
}

#[test]
fn a_queue_pair_that_there_cannot_be_has_no_guard() {
    let (mut a, b, _) = met();
    let link = crate::LinkId::new(a.links.token(a.links.find(b.own.local).unwrap()));
    assert_eq!(a.qp_guard(link, crate::MAX_QP_WORDS, 1), None);
    assert_eq!(a.qp_guard(link, u32::MAX, 1), None);
}

#[test]
fn a_peer_that_asks_more_than_it_may_is_dropped() {
    let (mut a, b, _) = met();
    for key in 0..=crate::MAX_ASKED {
        say_note(&b, &a, &Note::Ask { key, qpn: 1 }, None);
    }
    drops(&mut a, "questions");
    let asked =
        core::iter::from_fn(|| a.next_notice()).filter(|n| matches!(n, crate::Notice::GrantAsked { .. }));
    assert_eq!(asked.count(), crate::MAX_ASKED as usize);
}

#[test]
fn memory_that_a_peer_grants_is_mapped_only_where_it_cannot_shrink() {
    let (mut a, b, _) = met();
    let size = SealFlags::SHRINK | SealFlags::GROW;
    let plain = MemfdFlags::empty();
    let mut bad = vec![
        memfd(8192, SealFlags::GROW, plain),
        memfd(8192, SealFlags::SHRINK, plain),
        memfd(4096, size, plain),
        memfd(10_000, size, plain),
        OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap()),
        OwnedFd::from(std::os::unix::net::UnixDatagram::unbound().unwrap()),
    ];
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    if let Ok(fd) = rustix::fs::memfd_create("test", flags) {
        rustix::fs::ftruncate(&fd, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&fd, size).unwrap();
        bad.push(fd);
    }
    // Sealed against writing, but granted for writing.
    bad.push(memfd(8192, size | SealFlags::FUTURE_WRITE, plain));
    for fd in &bad {
        say_note(&b, &a, &some_grant(0, 8192, true), Some(fd));
    }
    let good = memfd(8192, size, plain);
    say_note(&b, &a, &some_grant(0, 8192, true), Some(&good));
    let start = Clock::now();
    let notice = loop {
        recv(&mut a, &mut Vec::new());
        if let Some(n) = a.next_notice() {
            break n;
        }
        assert!(start.elapsed() < Duration::from_secs(10));
    };
    assert!(matches!(notice, crate::Notice::Granted { key: 0, .. }), "{notice:?}");
    assert_eq!(counter(&a, "grants_not_mapped"), bad.len() as u64);
    assert_eq!((counter(&a, "grants_mapped"), a.grants.mapped.len()), (1, 1));
}

#[test]
fn a_peer_cannot_have_more_mapped_here_than_the_limit_nor_pile_up_notices() {
    let (mut a, b, _) = met();
    let fd = memfd(4096, SealFlags::SHRINK | SealFlags::GROW, MemfdFlags::empty());
    let link = b.links.get(b.links.find(a.own.local).unwrap()).unwrap();
    let Stage::Up(socket) = &link.stage else { panic!("they have met") };
    let mut say = |note: Note, fd: Option<&OwnedFd>| loop {
        match hello::send_note(socket.as_fd(), &note, fd.map(|fd| fd.as_fd())) {
            Ok(()) => return true,
            // Nobody takes them any more.
            Err(rustix::io::Errno::AGAIN) if a.links.iter().all(|(_, l)| l.direct.notices >= 512) => {
                return false;
            }
            Err(rustix::io::Errno::AGAIN) => drop(recv(&mut a, &mut Vec::new())),
            Err(e) => panic!("{e}"),
        }
    };
    for region in 0..300 {
        assert!(say(some_grant(region, 4096, true), Some(&fd)));
    }
    let place = |region| Place { region, generation: 0, offset: 0 };
    // What is taken back makes room for more, and each is a notice.
    let more = (0..100_000_u32).take_while(|i| {
        let region = i % 200;
        say(Note::Revoked { key: region, place: place(region) }, None)
            && say(some_grant(region, 4096, true), Some(&fd))
    });
    assert!(more.count() < 100_000);
    assert!(a.grants.mapped.len() <= 256 && counter(&a, "grants_not_mapped") >= 44);
    assert!(a.links.iter().all(|(_, l)| l.direct.notices <= 512));
    // Its end is noticed nevertheless.
    drop(b);
    let start = Clock::now();
    while a.links.len() > 0 {
        recv(&mut a, &mut Vec::new());
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(a.grants.mapped.len(), 0);
}

/// Any bytes behind a right header, and right notes at any time; with and without a descriptor.
#[test]
fn garbage_by_the_socket_harms_nobody_but_its_sender() {
    let fd = memfd(8192, SealFlags::SHRINK | SealFlags::GROW, MemfdFlags::empty());
    let pages = crate::SharedPages::alloc(4096).unwrap();
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (mut a, b, _) = met();
        let mut c = open(a.own.domain.clone().name());
        let c_to_a = c.open_path(&av(a.attr().local)).unwrap();
        let b_of_a = crate::LinkId::new(a.links.token(a.links.find(b.own.local).unwrap()));
        a.offer(b_of_a, &super::direct::grant(&pages, 3, super::direct::ALL)).unwrap();
        let link = b.links.get(b.links.find(a.own.local).unwrap()).unwrap();
        let Stage::Up(socket) = &link.stage else { panic!("they have met") };
        for _ in 0..100 {
            let kind = 14 + (rng.next_u32() % 10) as u8;
            let mut message = frame::header(kind);
            for byte in &mut message[12..] {
                *byte = if rng.next_u32().is_multiple_of(3) {
                    rng.next_u32() as u8
                } else {
                    (rng.next_u32() % 3) as u8
                };
            }
            let len = if rng.next_u32().is_multiple_of(20) { rng.next_u32() as usize % 96 } else { 96 };
            let fds = [fd.as_fd(); 4];
            let fds = &fds[..rng.next_u32() as usize % 4];
            let _ = hello::send_raw(socket.as_fd(), &message[..len], fds);
            recv(&mut a, &mut Vec::new());
            while let Some(notice) = a.next_notice() {
                if let crate::Notice::GrantAsked { link, key, qpn } = notice {
                    a.refuse_grant(link, key, qpn);
                }
            }
        }
        send(&mut c, c_to_a, &[packet(5, 50)]);
        let mut got = [Vec::new(), Vec::new()];
        turn_until(&mut [&mut a, &mut c], &mut got, |g| g[0].iter().any(|(_, p)| *p == packet(5, 50)));
        a.revoke(3);
    }
}

/// The committed corpus of the fuzz target `shm_peer`, through its own function.
#[test]
fn the_corpus_of_hostile_peers_passes() {
    test_support::corpus::run("shm_peer", 30, super::super::fuzzed::shm_peer);
}
