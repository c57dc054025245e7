//! Adapters' ends in one process.

mod children;
mod direct;
mod full;
mod hostile;
mod outside;
mod process;
mod process_write;
mod proof;
mod short;

use std::net::IpAddr;
use std::time::{Duration, Instant as Clock};

use hca_core::{AddressVector, Instant};

use super::{ShmFabric, ShmOptions};
use crate::{Fabric, PathId, RxBudget, TxBatch};

/// A domain that no other test uses.
fn domain() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn now() -> Instant {
    use std::sync::OnceLock;
    static START: OnceLock<Clock> = OnceLock::new();
    Instant::from_nanos(START.get_or_init(Clock::now).elapsed().as_nanos() as u64 + 1)
}

/// The processor time of this thread since a moment: the limit of a test that turns all ends by itself and never sleeps.
/// Others may have the processors for seconds, as two programs that spin and yield for each other.
struct Worked(Duration);

impl Worked {
    fn begin() -> Self {
        Self(Self::so_far())
    }
    fn elapsed(&self) -> Duration {
        Self::so_far() - self.0
    }
    fn so_far() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

fn open(domain: &str) -> ShmFabric {
    ShmFabric::open(domain, &ShmOptions { ring_bytes: 1 << 16, ..ShmOptions::default() }).unwrap()
}

fn av(to: IpAddr) -> AddressVector {
    AddressVector { dgid: to.into(), ..AddressVector::default() }
}

/// Two ends of a domain of their own, and the path from the first to the second.
fn two() -> (ShmFabric, ShmFabric, PathId) {
    let d = domain();
    let (mut a, b) = (open(&d), open(&d));
    let path = a.open_path(&av(b.attr().local)).unwrap();
    (a, b, path)
}

/// A packet that tells its number, of this many bytes.
fn packet(number: u32, len: usize) -> Vec<u8> {
    let mut p: Vec<u8> = (0..len).map(|i| (i as u32).wrapping_mul(number | 1) as u8).collect();
    p[..4].copy_from_slice(&number.to_le_bytes());
    p
}

fn send(f: &mut ShmFabric, path: PathId, packets: &[Vec<u8>]) -> usize {
    let mut batch = TxBatch::with_capacity(1 << 20);
    for p in packets {
        batch.reserve(path, p.len()).unwrap().copy_from_slice(p);
        batch.commit();
    }
    f.send(now(), &mut batch);
    batch.trains().iter().map(|t| t.packets()).sum()
}

fn recv(f: &mut ShmFabric, into: &mut Vec<(IpAddr, Vec<u8>)>) -> usize {
    let budget = RxBudget { packets: 512, bytes: 1 << 18 };
    f.recv(now(), budget, &mut |p| into.push((p.header.src, p.bytes.to_vec()))).packets
}

/// Turns all of them until the condition holds.
fn turn_until(
    fabrics: &mut [&mut ShmFabric],
    got: &mut [Vec<(IpAddr, Vec<u8>)>],
    done: impl Fn(&[Vec<(IpAddr, Vec<u8>)>]) -> bool,
) {
    let start = Worked::begin();
    while !done(got) {
        for (f, got) in fabrics.iter_mut().zip(got.iter_mut()) {
            recv(f, got);
        }
        if start.elapsed() > Duration::from_secs(10) {
            let counters = |f: &&mut ShmFabric| {
                let mut all = Vec::new();
                f.counters(&mut all);
                all.retain(|c| c.value > 0);
                all
            };
            let got: Vec<_> = got.iter().map(Vec::len).collect();
            panic!(
                "it does not come to an end: {got:?} {:?}",
                fabrics.iter().map(counters).collect::<Vec<_>>()
            );
        }
    }
}

fn counter(f: &ShmFabric, name: &str) -> u64 {
    let mut all = Vec::new();
    f.counters(&mut all);
    all.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no counter {name}")).value
}

#[test]
fn packets_of_every_length_arrive_whole_and_in_order() {
    let (mut a, mut b, path) = two();
    let mut got = [Vec::new(), Vec::new()];
    let packets: Vec<_> = (0..300_u32).map(|i| packet(i, 12 + (i as usize * 37) % 4180)).collect();
    for p in &packets {
        while send(&mut a, path, std::slice::from_ref(p)) > 0 {
            recv(&mut a, &mut got[0]);
            recv(&mut b, &mut got[1]);
        }
    }
    turn_until(&mut [&mut a, &mut b], &mut got, |g| g[1].len() == packets.len());
    assert!(got[1].iter().all(|(src, _)| *src == a.attr().local));
    assert!(got[1].iter().zip(&packets).all(|((_, g), p)| g == p));
}

#[test]
fn packets_and_messages_are_counted_by_both_ends_alike() {
    let (mut a, mut b, path) = two();
    let mut got = [Vec::new(), Vec::new()];
    send(&mut a, path, &[packet(1, 40), packet(2, 400)]);
    turn_until(&mut [&mut a, &mut b], &mut got, |g| g[1].len() == 2);
    // A long one, and one of a line.
    for len in [300, 40] {
        let sent = a.send_messages(now(), path, |tx, _| {
            tx.reserve(len).unwrap().copy_from_slice(&packet(3, len));
            tx.commit();
        });
        assert!(sent.is_some());
    }
    while counter(&b, "rx_messages") < 2 {
        recv(&mut b, &mut got[1]);
    }
    for (count, sent, came) in [
        (2, "tx_packets", "rx_packets"),
        (440, "tx_bytes", "rx_bytes"),
        (2, "tx_messages", "rx_messages"),
        (1 + 7 + 5 + 1, "tx_lines", "rx_lines"),
    ] {
        assert_eq!((counter(&a, sent), counter(&b, came)), (count, count), "{sent}");
    }
}

#[test]
fn both_connect_at_once_and_one_link_stays() {
    for _ in 0..4 {
        let (mut a, mut b, to_b) = two();
        let to_a = b.open_path(&av(a.attr().local)).unwrap();
        send(&mut a, to_b, &[packet(1, 40)]);
        send(&mut b, to_a, &[packet(2, 400)]);
        let mut got = [Vec::new(), Vec::new()];
        turn_until(&mut [&mut a, &mut b], &mut got, |g| g.iter().all(|g| g.len() == 1));
        assert_eq!((counter(&a, "peers_linked"), counter(&b, "peers_linked")), (1, 1));
        // The connection that was given up is no reason to turn anybody away.
        let start = Worked::begin();
        while a.meetings.greetings + b.meetings.greetings > 0 || start.elapsed() < Duration::from_millis(5) {
            recv(&mut a, &mut got[0]);
            recv(&mut b, &mut got[1]);
        }
        assert_eq!((counter(&a, "peers_refused"), counter(&b, "peers_refused")), (0, 0));
        assert_eq!((a.links.len(), b.links.len()), (1, 1));
    }
}

#[test]
fn an_adapter_reaches_itself() {
    let mut a = open(&domain());
    let path = a.open_path(&av(a.attr().local)).unwrap();
    send(&mut a, path, &[packet(1, 100), packet(2, 4000)]);
    let mut got = [Vec::new()];
    turn_until(&mut [&mut a], &mut got, |g| g[0].len() == 2);
    assert_eq!(got[0][1].1, packet(2, 4000));
}

#[test]
fn a_path_to_nobody_loses_packets_and_counts_them() {
    let mut a = open(&domain());
    let path = a.open_path(&av("fd00::9".parse().unwrap())).unwrap();
    assert_eq!(send(&mut a, path, &[packet(1, 40)]), 0);
    assert_eq!(counter(&a, "tx_lost_unreachable"), 1);
    let family = a.open_path(&av("127.0.0.1".parse().unwrap()));
    assert!(matches!(family, Err(crate::PathError::Family { .. })), "{family:?}");
}

#[test]
fn header_fields_travel_with_the_packet() {
    let d = domain();
    let (mut a, mut b) = (open(&d), open(&d));
    let wanted = [(0, 64), (2, 64), (0xb9, 64), (0, 3)];
    for (traffic_class, hop_limit) in wanted {
        let av = AddressVector { traffic_class, hop_limit, ..av(b.attr().local) };
        let path = a.open_path(&av).unwrap();
        send(&mut a, path, &[packet(1, 60)]);
    }
    let mut got = Vec::new();
    let start = Worked::begin();
    while got.len() < wanted.len() && start.elapsed() < Duration::from_secs(10) {
        let budget = RxBudget { packets: 512, bytes: 1 << 18 };
        b.recv(now(), budget, &mut |p| got.push((p.header.traffic_class, p.header.hop_limit)));
    }
    assert_eq!(got, wanted);
    assert_eq!(a.links.len(), 1);
}

#[test]
fn a_peer_that_leaves_has_its_last_packets_taken_and_is_forgotten() {
    let (mut a, mut b, to_b) = two();
    let to_a = b.open_path(&av(a.attr().local)).unwrap();
    send(&mut a, to_b, &[packet(1, 40)]);
    let mut got = [Vec::new(), Vec::new()];
    turn_until(&mut [&mut a, &mut b], &mut got, |g| g[1].len() == 1);
    send(&mut b, to_a, &[packet(2, 40), packet(3, 4000)]);
    drop(b);
    let start = Worked::begin();
    while a.links.len() > 0 {
        recv(&mut a, &mut got[0]);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(got[0].iter().map(|g| g.1.clone()).collect::<Vec<_>>(), [packet(2, 40), packet(3, 4000)]);
    assert_eq!(send(&mut a, to_b, &[packet(4, 40)]), 0);
    assert_eq!(counter(&a, "tx_lost_unreachable") + counter(&a, "tx_lost_gone"), 1);
    assert_eq!((counter(&a, "peers_gone"), a.rounds.polled.len()), (1, 0));
}

#[test]
fn a_peer_that_said_hello_and_died_is_heard_nevertheless() {
    let (mut a, mut b, path) = two();
    send(&mut a, path, &[packet(7, 500)]);
    drop(a);
    let mut got = [Vec::new()];
    turn_until(&mut [&mut b], &mut got, |g| g[0].len() == 1);
    assert_eq!(got[0][0].1, packet(7, 500));
}

#[test]
fn a_full_ring_is_waited_for_and_given_up() {
    let d = domain();
    let (mut a, mut b, mut c) = (open(&d), open(&d), open(&d));
    let to_b = a.open_path(&av(b.attr().local)).unwrap();
    let to_c = a.open_path(&av(c.attr().local)).unwrap();
    let packets: Vec<_> = (0..1100).map(|i| packet(i, 60)).collect();
    let mut left = send(&mut a, to_b, &packets);
    assert!(left > 0 && counter(&a, "tx_blocked") == 1, "{left}");
    let taken = packets.len() - left;
    let start = Worked::begin();
    while left > 0 {
        left = send(&mut a, to_b, &packets[taken..]);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(counter(&a, "tx_lost_full"), (packets.len() - taken) as u64);
    // Others suffer no more, and what is in the ring is there to be taken.
    assert_eq!(send(&mut a, to_c, &[packet(1, 40)]), 0);
    let mut got = [Vec::new(), Vec::new(), Vec::new()];
    turn_until(&mut [&mut a, &mut b, &mut c], &mut got, |g| g[1].len() == taken && g[2].len() == 1);
    assert_eq!(send(&mut a, to_b, &packets[..1]), 0);
    turn_until(&mut [&mut a, &mut b, &mut c], &mut got, |g| g[1].len() == taken + 1);
}

/// Twenty peers, of which a few are polled; the others are parked, and call.
#[test]
fn peers_beyond_the_hot_ones_are_parked_and_call() {
    let d = domain();
    let mut a = open(&d);
    let mut peers: Vec<_> = (0..20).map(|_| open(&d)).collect();
    let mut got = Vec::new();
    let paths: Vec<_> = peers.iter_mut().map(|p| p.open_path(&av(a.attr().local)).unwrap()).collect();
    let mut sent = 0;
    for round in 0..50 {
        // As each tick does.
        a.park_idle();
        for (p, path) in peers.iter_mut().zip(&paths) {
            send(p, *path, &[packet(round, 40)]);
            sent += 1;
            recv(p, &mut Vec::new());
        }
        let start = Worked::begin();
        while got.len() < sent {
            recv(&mut a, &mut got);
            assert!(start.elapsed() < Duration::from_secs(10), "{} of {sent}", got.len());
        }
    }
    a.park_idle();
    assert!(a.rounds.polled.len() <= super::rounds::HOT_RINGS);
    assert!(counter(&a, "rings_parked") > 12 && counter(&a, "rings_unparked") > 20);
    // Calls brought them back, not the scan that is there for peers who take calls away.
    assert_eq!(counter(&a, "rings_found_by_scan"), 0);
}

/// More peers than are polled, of which each calls when it is its turn.
#[test]
fn a_look_answers_calls_and_leaves_no_more_rings_polled_than_there_may_be() {
    let d = domain();
    let mut a = open(&d);
    let mut peers: Vec<_> = (0..80).map(|_| open(&d)).collect();
    let paths: Vec<_> = peers.iter_mut().map(|p| p.open_path(&av(a.attr().local)).unwrap()).collect();
    let mut got = Vec::new();
    let start = Worked::begin();
    for (p, path) in peers.iter_mut().zip(&paths) {
        send(p, *path, &[packet(0, 40)]);
    }
    while got.len() < peers.len() {
        recv(&mut a, &mut got);
        for p in &mut peers {
            recv(p, &mut Vec::new());
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{} came", got.len());
    }
    a.park_idle();
    for round in 0..3 {
        for (p, path) in peers.iter_mut().zip(&paths) {
            send(p, *path, &[packet(round, 40)]);
            assert!(a.look().is_some(), "its ring is named");
            assert!(!a.doorbells.rung() && a.rounds.polled.len() <= super::rounds::MAX_POLLED);
            assert_eq!(recv(&mut a, &mut got), 1);
        }
    }
    assert!(counter(&a, "rings_unparked") > 200 && counter(&a, "rings_found_by_scan") == 0);
}

#[test]
fn the_way_to_itself_is_not_looked_at_while_it_is_idle() {
    let d = domain();
    let (mut a, mut b) = (open(&d), open(&d));
    let to_itself = a.open_path(&av(a.attr().local)).unwrap();
    let to_a = b.open_path(&av(a.attr().local)).unwrap();
    let mut got = Vec::new();
    send(&mut b, to_a, &[packet(1, 40)]);
    let start = Worked::begin();
    while got.is_empty() || a.rounds.polled.len() > 1 {
        send(&mut b, to_a, &[packet(1, 40)]);
        recv(&mut a, &mut got);
        recv(&mut b, &mut Vec::new());
        a.park_idle();
        assert!(start.elapsed() < Duration::from_secs(10), "{} rings are polled", a.rounds.polled.len());
    }
    let before = got.len();
    for round in 0..3 {
        send(&mut a, to_itself, &[packet(2, 40)]);
        recv(&mut a, &mut got);
        assert_eq!(got.len(), before + 1 + round);
    }
    assert_eq!(counter(&a, "rings_found_by_scan"), 0);
}

/// A fabric with twenty peers and their paths to it, each of which has sent one packet that was received.
fn with_twenty_peers(open: impl Fn() -> ShmFabric) -> (ShmFabric, Vec<(ShmFabric, PathId)>) {
    let (mut a, mut got, start) = (open(), Vec::new(), Worked::begin());
    let peer = |_| {
        let mut peer = open();
        let path = peer.open_path(&av(a.attr().local)).unwrap();
        send(&mut peer, path, &[packet(1, 40)]);
        (peer, path)
    };
    let mut peers: Vec<_> = (0..20).map(peer).collect();
    while got.len() < peers.len() {
        recv(&mut a, &mut got);
        for (p, _) in &mut peers {
            recv(p, &mut Vec::new());
        }
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    a.park_idle();
    (a, peers)
}

#[test]
fn a_call_that_somebody_took_back_is_made_up_for() {
    let d = domain();
    let (mut a, mut peers) = with_twenty_peers(|| open(&d));
    let (mut got, start) = (Vec::new(), Worked::begin());
    for (p, path) in &mut peers {
        send(p, *path, &[packet(2, 40)]);
    }
    // What a hostile peer would do to the page that all may write.
    a.doorbells.take(|_| {});
    while got.len() < peers.len() {
        recv(&mut a, &mut got);
        assert!(start.elapsed() < Duration::from_secs(10), "{} came", got.len());
    }
    assert!(counter(&a, "rings_found_by_scan") > 0);
}

/// The same, where another user's process may be the hostile one, and the side that was called sleeps at once.
#[test]
fn a_call_that_another_user_took_back_is_not_slept_through() {
    let d = domain();
    let options = ShmOptions { any_user: true, ring_bytes: 1 << 16, ..ShmOptions::default() };
    let (mut a, mut peers) = with_twenty_peers(|| ShmFabric::open(&d, &options).unwrap());
    let mut got = Vec::new();
    for (p, path) in &mut peers {
        let parked = !a.links.get(a.links.find(p.own.local).unwrap()).unwrap().polled;
        if parked {
            send(p, *path, &[packet(2, 40)]);
            a.doorbells.take(|_| {});
            let before = got.len();
            assert!(a.prepare_wait(), "it sleeps beside a packet, of which nobody tells again");
            assert_eq!(recv(&mut a, &mut got), 1);
            assert_eq!(got[before..], [(p.attr().local, packet(2, 40))]);
            a.park_idle();
        }
    }
    assert!(!got.is_empty(), "some are parked");
}

/// Receives one packet, asleep until it is there.
fn sleep_until_one(f: &mut ShmFabric, got: &mut Vec<(IpAddr, Vec<u8>)>) {
    let before = got.len();
    loop {
        if recv(f, got) > 0 {
            assert_eq!(got.len(), before + 1);
            return;
        }
        if f.prepare_wait() {
            continue;
        }
        let fd = f.wait_fd().unwrap();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let ten = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&ten)), Ok(1), "asleep with {} packets", got.len());
    }
}

#[test]
fn who_sleeps_on_the_descriptor_is_woken_for_every_packet() {
    const ROUNDS: u32 = 1000;
    let (mut a, mut b, to_b) = two();
    let to_a = b.open_path(&av(a.attr().local)).unwrap();
    let t = std::thread::spawn(move || {
        let mut got = Vec::new();
        for i in 0..ROUNDS {
            sleep_until_one(&mut b, &mut got);
            send(&mut b, to_a, &[packet(i, 40)]);
        }
        b
    });
    let mut got = Vec::new();
    for i in 0..ROUNDS {
        send(&mut a, to_b, &[packet(i, 40)]);
        sleep_until_one(&mut a, &mut got);
    }
    t.join().unwrap();
    assert!(counter(&a, "wakeups_sent") > 0);
}

/// As in a control group at its limit.
#[test]
fn a_peer_that_there_was_no_memory_to_wake_is_woken_when_there_is() {
    use super::link::HAS_NO_MEMORY;
    let d = domain();
    let (mut a, mut b) = (open(&d), open(&d));
    let to_b = a.open_path(&av(b.attr().local)).unwrap();
    let mut got = [Vec::new(), Vec::new()];
    send(&mut a, to_b, &[packet(1, 40)]);
    turn_until(&mut [&mut a, &mut b], &mut got, |g| g[1].len() == 1);
    let start = Worked::begin();
    while counter(&a, "peers_linked") == 0 || b.prepare_wait() {
        recv(&mut a, &mut got[0]);
        recv(&mut b, &mut got[1]);
        assert!(start.elapsed() < Duration::from_secs(10), "they do not meet, or there is always something");
    }
    let is_woken = |b: &ShmFabric| {
        let fd = b.wait_fd().unwrap();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    };
    HAS_NO_MEMORY.set(true);
    send(&mut a, to_b, &[packet(2, 40)]);
    assert_eq!((counter(&a, "wakeups_refused"), counter(&a, "wakeups_sent")), (1, 0));
    for _ in 0..2 {
        a.rounds.tick_at = Instant::ZERO;
        recv(&mut a, &mut got[0]);
        assert!(!is_woken(&b) && a.next_deadline().is_some(), "it is tried again");
    }
    HAS_NO_MEMORY.set(false);
    a.rounds.tick_at = Instant::ZERO;
    recv(&mut a, &mut got[0]);
    assert!(is_woken(&b) && !a.owes_wakes());
    turn_until(&mut [&mut a, &mut b], &mut got, |g| g[1].len() == 2);
}

/// The other side polls, and sends at every moment of this one's going to sleep.
#[test]
fn a_packet_that_comes_while_one_goes_to_sleep_is_not_slept_through() {
    const ROUNDS: u32 = 20_000;
    let (mut a, mut b, to_b) = two();
    let to_a = b.open_path(&av(a.attr().local)).unwrap();
    let t = std::thread::spawn(move || {
        for i in 0..ROUNDS {
            while recv(&mut b, &mut Vec::new()) == 0 {
                std::thread::yield_now();
            }
            for _ in 0..(i * 7) % 400 {
                std::hint::spin_loop();
            }
            send(&mut b, to_a, &[packet(i, 40)]);
        }
        b
    });
    let mut got = Vec::new();
    for i in 0..ROUNDS {
        send(&mut a, to_b, &[packet(i, 40)]);
        sleep_until_one(&mut a, &mut got);
    }
    t.join().unwrap();
}

#[test]
fn the_peer_of_a_poller_pays_for_no_wake_up() {
    let (mut a, mut b, to_b) = two();
    let mut got = [Vec::new(), Vec::new()];
    for i in 0..1000 {
        send(&mut a, to_b, &[packet(i, 40)]);
        turn_until(&mut [&mut a, &mut b], &mut got, |g| g[1].len() == i as usize + 1);
    }
    assert_eq!(counter(&a, "wakeups_sent"), 0);
}

/// Frames as a tap was shown them.
#[derive(Default)]
struct Frames(Vec<(crate::Direction, IpAddr, IpAddr, Vec<u8>)>);

impl crate::Tap for Frames {
    fn frame(&mut self, _: Instant, f: &crate::TapFrame<'_>) {
        self.0.push((f.direction, f.header.src, f.header.dst, f.payload.to_vec()));
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_tap_sees_both_directions_with_a_right_icrc() {
    use std::sync::{Arc, Mutex};
    let d = domain();
    let (mut a, mut b) = (open(&d), open(&d));
    let taps = [Arc::new(Mutex::new(Frames::default())), Arc::new(Mutex::new(Frames::default()))];
    a.set_tap(Some(Box::new(Arc::clone(&taps[0]))));
    b.set_tap(Some(Box::new(Arc::clone(&taps[1]))));
    let to_b = a.open_path(&av(b.attr().local)).unwrap();
    send(&mut a, to_b, &[packet(9, 200)]);
    let mut got = [Vec::new(), Vec::new()];
    turn_until(&mut [&mut a, &mut b], &mut got, |g| g[1].len() == 1);
    let (a, b) = (a.attr().local, b.attr().local);
    let crc = crate::icrc::FlowCrc::new(a, b, super::shown::SRC_PORT).unwrap();
    let mut sealed = packet(9, 204);
    sealed[..200].copy_from_slice(&packet(9, 200));
    crate::icrc::Icrc::new().seal(&crc, 0, sealed.len(), &mut sealed);
    for (tap, direction) in taps.iter().zip([crate::Direction::Tx, crate::Direction::Rx]) {
        assert_eq!(tap.lock().unwrap().0, [(direction, a, b, sealed.clone())]);
    }
}

/// A thread may be in another namespace than its process's first one, and its sockets are as well.
#[test]
#[ignore = "needs root: network namespaces"]
fn the_namespace_of_a_name_is_the_threads_own() {
    let namespace = test_support::namespaces::Namespace::new().unwrap();
    let named = |d: &super::name::Domain| format!("{d:?}");
    let here = || named(&super::name::Domain::new("lab", None, false).unwrap());
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(namespace.path()).unwrap());
    let there = namespace.within(here);
    assert!(there.contains(&format!("hca-shm/{inode:x}/")), "{there}");
    assert_ne!(there, here());
}

#[test]
fn what_cannot_be_opened_says_what_to_do() {
    let refusal =
        |domain: &str, options: &ShmOptions| ShmFabric::open(domain, options).err().unwrap().to_string();
    let o = ShmOptions::default();
    assert!(refusal("", &o).contains("shm://lab"));
    assert!(refusal("a/b", &o).contains("a/b"));
    assert!(refusal(&"x".repeat(33), &o).contains("1 to 32"));
    assert!(refusal("lab", &ShmOptions { ring_bytes: 100_000, ..o.clone() }).contains("power of two"));
    let folder = ShmOptions { folder: Some("/nowhere/at/all".into()), ..o };
    assert!(refusal("lab", &folder).contains("/nowhere/at/all"));
}

/// Prints what a turn costs that takes one packet of one active peer, beside so many idle ones.
#[test]
#[ignore = "a measurement: run it alone, built for release"]
fn idle_peers_cost_a_turn_nothing() {
    let cost = |idle: usize| {
        let d = domain();
        let mut a = open(&d);
        let mut active = open(&d);
        let path = active.open_path(&av(a.attr().local)).unwrap();
        let mut got = 0;
        let budget = RxBudget { packets: 512, bytes: 1 << 18 };
        let mut peers: Vec<_> = (0..idle).map(|_| open(&d)).collect();
        for p in &mut peers {
            p.open_path(&av(a.attr().local)).unwrap();
            while p.meetings.greetings > 0 {
                p.recv(now(), budget, &mut |_| {});
                a.recv(now(), budget, &mut |_| {});
            }
        }
        let mut batch = TxBatch::with_capacity(4096);
        std::thread::sleep(Duration::from_millis(20));
        const ROUNDS: usize = 300_000;
        let mut start = Clock::now();
        while got < ROUNDS {
            batch.reserve(path, 20).unwrap().fill(1);
            batch.commit();
            active.send(Instant::from_nanos(1), &mut batch);
            a.recv(now(), budget, &mut |_| got += 1);
            if got == ROUNDS / 10 {
                start = Clock::now();
            }
            if got % 100 == 0 {
                active.recv(now(), budget, &mut |_| {});
            }
        }
        start.elapsed().as_nanos() as f64 / (ROUNDS - ROUNDS / 10) as f64
    };
    for idle in [0, 7, 100, 1000, 0, 7, 100, 1000] {
        println!("{idle:5} idle peers: {:.1} ns a packet, sent and taken by one thread", cost(idle));
    }
}
