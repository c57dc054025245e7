//! The tests that every fabric has to pass. `pair` opens two ends that reach each other.

use std::net::IpAddr;
use std::time::{Duration, Instant as Clock};

use hca_core::{AddressVector, Counter, Gid, Instant, Qpn};
use hca_fabric::{Fabric, Glance, OpenError, PORTS_PER_PEER, PathError, PathId, QpEnds, RxBudget, TxBatch};
use test_support::addresses;

pub(crate) const BUDGET: RxBudget = RxBudget { packets: 1024, bytes: 1 << 20 };

/// The longest wait for a packet or for a descriptor: the machine may be busy with other programs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Time stands still in these tests.
pub(crate) fn now() -> Instant {
    Instant::from_nanos(1_000_000)
}

/// Opens a fabric at a loopback address that this process found free.
pub(crate) fn at_free_address<F>(salt: u32, open: impl Fn(IpAddr) -> Result<F, OpenError>) -> F {
    addresses::at_free(salt, |addr| match open(addr) {
        Ok(f) => Some(f),
        Err(OpenError::InUse(_)) => None,
        Err(e) => panic!("{e}"),
    })
}

pub(crate) fn av(peer: IpAddr) -> AddressVector {
    AddressVector { dgid: Gid::from_ip(peer), ..AddressVector::default() }
}

/// The ends of a path of which only this side's queue pair is known.
pub(crate) fn of(qpn: u32) -> QpEnds {
    QpEnds { local: Some(Qpn::new(qpn)), peer: None }
}

/// A packet of `len` bytes whose content tells its number. All are for the queue pairs of one slot.
pub(crate) fn packet(number: u32, len: usize) -> Vec<u8> {
    let mut p: Vec<u8> = (0..len).map(|i| (i as u32).wrapping_mul(7).wrapping_add(number) as u8).collect();
    p[5] = 0;
    p[8..12].copy_from_slice(&number.to_be_bytes());
    p
}

pub(crate) fn put(batch: &mut TxBatch, path: PathId, bytes: &[u8]) {
    batch.reserve(path, bytes.len()).expect("room").copy_from_slice(bytes);
    batch.commit();
}

/// Receives until `count` packets came, or [`PATIENCE`] passed.
pub(crate) fn receive(fabric: &mut dyn Fabric, count: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    let deadline = Clock::now() + PATIENCE;
    while got.len() < count && Clock::now() < deadline {
        fabric.recv(now(), BUDGET, &mut |p| got.push(p.bytes.to_vec()));
    }
    got
}

pub(crate) fn counter(fabric: &dyn Fabric, name: &str) -> u64 {
    let mut all: Vec<Counter> = Vec::new();
    fabric.counters(&mut all);
    all.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no counter {name}: {all:?}")).value
}

/// Receives until so many datagrams were dropped, of which none is a packet.
pub(crate) fn takes_none(fabric: &mut dyn Fabric, datagrams: u64) {
    let deadline = Clock::now() + PATIENCE;
    while counter(fabric, "short_packets") + counter(fabric, "icrc_errors") < datagrams
        && Clock::now() < deadline
    {
        assert_eq!(fabric.recv(now(), BUDGET, &mut |_| panic!("none is a packet")).packets, 0);
    }
    fabric.recv(now(), BUDGET, &mut |_| panic!("none is a packet"));
}

/// Sends packets from `a` to `b` and says what arrived.
pub(crate) fn pass(a: &mut dyn Fabric, b: &mut dyn Fabric, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(4 << 20);
    for p in packets {
        put(&mut batch, path, p);
    }
    let mut got = Vec::new();
    while !batch.is_empty() {
        a.send(now(), &mut batch);
        b.recv(now(), BUDGET, &mut |p| got.push(p.bytes.to_vec()));
    }
    let rest = packets.len() - got.len();
    got.extend(receive(b, rest));
    a.close_path(path);
    got
}

/// The suite.
pub(crate) fn run(mut a: Box<dyn Fabric>, mut b: Box<dyn Fabric>) {
    singles_and_trains_arrive_in_order(&mut *a, &mut *b);
    the_identification_is_predicted(&mut *a, &mut *b);
    a_flipped_bit_is_dropped_and_counted(&mut *a, &mut *b);
    source_and_traffic_class_are_told(&mut *a, &mut *b);
    equal_address_vectors_share_a_path(&mut *a, &mut *b);
    packets_to_a_closed_path_are_lost_and_counted(&mut *a, &mut *b);
    a_budget_is_kept(&mut *a, &mut *b);
    the_descriptor_is_readable_when_a_packet_came(&mut *a, &mut *b);
    a_glance_sees_whatever_comes(&mut *a, &mut *b);
    both_directions_at_once(&mut *a, &mut *b);
    an_address_that_names_no_single_peer_has_no_path(&mut *a);
}

fn an_address_that_names_no_single_peer_has_no_path(a: &mut dyn Fabric) {
    for peer in ["224.0.0.1", "239.255.255.250", "255.255.255.255", "0.0.0.0", "::", "ff02::1"] {
        // A path to one queue pair: others may lead to groups.
        let ends = QpEnds { peer: Some(Qpn::new(5)), local: None };
        let e = a.open_path_of(&av(peer.parse().unwrap()), ends).expect_err(peer);
        assert!(matches!(e, PathError::NotUnicast { .. }), "{peer}: {e}");
        assert!(e.to_string().contains(peer) && e.to_string().contains("the peer's own"), "{e}");
    }
}

fn singles_and_trains_arrive_in_order(a: &mut dyn Fabric, b: &mut dyn Fabric) {
    // Singles, a train with a shorter end, trains at both limits, then singles again.
    let mut sizes = vec![12, 20, 16, 300];
    sizes.extend([28; 20]);
    sizes.push(24);
    sizes.extend([1036; 70]);
    sizes.extend([4108; 40]);
    sizes.extend([12, 4108, 12]);
    let packets: Vec<_> = sizes.iter().enumerate().map(|(i, &n)| packet(i as u32, n)).collect();
    let got = pass(a, b, &packets);
    assert_eq!(got.len(), packets.len());
    assert!(got == packets, "bytes and order are kept");
    assert_eq!(counter(b, "icrc_errors"), 0);
    assert_eq!(counter(b, "short_packets"), 0);
}

fn the_identification_is_predicted(a: &mut dyn Fabric, b: &mut dyn Fabric) {
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 20);
    // A path that is opened again begins at a number of its own.
    put(&mut batch, path, &packet(0, 20));
    a.send(now(), &mut batch);
    assert_eq!(receive(b, 1).len(), 1);
    let learned = counter(b, "icrc_flows_learned");
    let solved = counter(b, "icrc_ident_solved");
    for round in 0..300_u32 {
        for i in 0..=round % 9 {
            put(&mut batch, path, &packet(i, 20 + 4 * (round as usize % 3)));
        }
        a.send(now(), &mut batch);
        assert_eq!(receive(b, (round % 9 + 1) as usize).len(), (round % 9 + 1) as usize);
    }
    a.close_path(path);
    assert_eq!(counter(b, "icrc_ident_solved"), solved);
    assert_eq!(counter(b, "icrc_flows_learned"), learned);
}

fn a_flipped_bit_is_dropped_and_counted(a: &mut dyn Fabric, b: &mut dyn Fabric) {
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 16);
    // The flow is known then.
    put(&mut batch, path, &packet(0, 20));
    a.send(now(), &mut batch);
    assert_eq!(receive(b, 1).len(), 1);
    let errors = damaged(b);
    for i in 0..5 {
        put(&mut batch, path, &packet(i, 60));
    }
    batch.flip_later(2 * 64 + 30, 5);
    a.send(now(), &mut batch);
    let got = receive(b, 4);
    assert_eq!(got, [packet(0, 60), packet(1, 60), packet(3, 60), packet(4, 60)]);
    assert_eq!(damaged(b), errors + 1);
    a.close_path(path);
}

/// Packets that were dropped for damage: where UDP's checksum is looked at, it is looked at first.
fn damaged(fabric: &dyn Fabric) -> u64 {
    let mut all: Vec<Counter> = Vec::new();
    fabric.counters(&mut all);
    all.iter().filter(|c| ["icrc_errors", "udp_checksum_errors"].contains(&c.name)).map(|c| c.value).sum()
}

fn source_and_traffic_class_are_told(a: &mut dyn Fabric, b: &mut dyn Fabric) {
    let marked = AddressVector { traffic_class: 0x6b, ..av(b.attr().local) };
    let path = a.open_path(&marked).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 16);
    put(&mut batch, path, &packet(1, 20));
    a.send(now(), &mut batch);
    let (from, to) = (a.attr().local, b.attr().local);
    let mut seen = 0;
    let deadline = Clock::now() + PATIENCE;
    while seen == 0 && Clock::now() < deadline {
        b.recv(now(), BUDGET, &mut |p| {
            assert_eq!((p.header.src, p.header.dst, p.header.traffic_class), (from, to, 0x6b));
            // RoCEv1 has no ports.
            assert!(p.congestion_experienced() && (p.header.src_port >= 0xc000 || p.header.src_port == 0));
            seen += 1;
        });
    }
    assert_eq!(seen, 1);
    a.close_path(path);
}

fn equal_address_vectors_share_a_path(a: &mut dyn Fabric, b: &mut dyn Fabric) {
    let peer = av(b.attr().local);
    let one = a.open_path(&peer).unwrap();
    assert_eq!(a.open_path(&peer).unwrap(), one);
    let other = a.open_path(&AddressVector { flow_label: 0x12345, ..peer }).unwrap();
    assert_ne!(other, one);
    a.close_path(other);
    a.close_path(one);
    // One of two users is left.
    let mut batch = TxBatch::with_capacity(1 << 16);
    put(&mut batch, one, &packet(1, 20));
    a.send(now(), &mut batch);
    assert_eq!(receive(b, 1).len(), 1);
    a.close_path(one);
}

fn packets_to_a_closed_path_are_lost_and_counted(a: &mut dyn Fabric, b: &mut dyn Fabric) {
    let path = a.open_path(&av(b.attr().local)).unwrap();
    a.close_path(path);
    let mut batch = TxBatch::with_capacity(1 << 16);
    put(&mut batch, path, &packet(1, 20));
    put(&mut batch, path, &packet(1, 20));
    let before = counter(a, "tx_lost_closed");
    a.send(now(), &mut batch);
    assert!(batch.is_empty());
    assert_eq!(counter(a, "tx_lost_closed"), before + 2);
}

fn a_budget_is_kept(a: &mut dyn Fabric, b: &mut dyn Fabric) {
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 20);
    for i in 0..160 {
        put(&mut batch, path, &packet(i, 20));
    }
    a.send(now(), &mut batch);
    let mut got = 0;
    let deadline = Clock::now() + PATIENCE;
    while got < 160 && Clock::now() < deadline {
        let outcome = b.recv(now(), RxBudget { packets: 10, bytes: 1 << 20 }, &mut |_| {});
        assert!(outcome.packets <= 10 + 63, "a train may exceed it by its rest only");
        got += outcome.packets;
    }
    assert_eq!(got, 160);
    a.close_path(path);
}

fn the_descriptor_is_readable_when_a_packet_came(a: &mut dyn Fabric, b: &mut dyn Fabric) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 16);
    let readable = |b: &dyn Fabric, within: Duration| {
        let fd = b.wait_fd().expect("a descriptor");
        let timeout = Timespec::try_from(within).unwrap();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
    };
    for _ in 0..3 {
        assert!(!b.prepare_wait());
        assert!(!readable(b, Duration::ZERO));
        put(&mut batch, path, &packet(1, 20));
        a.send(now(), &mut batch);
        assert!(readable(b, PATIENCE));
        assert_eq!(receive(b, 1).len(), 1);
        b.recv(now(), BUDGET, &mut |_| panic!("one was sent"));
    }
    put(&mut batch, path, &packet(1, 20));
    a.send(now(), &mut batch);
    assert!(b.prepare_wait() || readable(b, PATIENCE));
    assert_eq!(receive(b, 1).len(), 1);
    a.close_path(path);
}

/// What a fabric in memory has received is seen without the fabric; a glance that is made while something waits sees it,
/// too.
fn a_glance_sees_whatever_comes(a: &mut dyn Fabric, b: &mut dyn Fabric) {
    let in_memory = ["loopback", "raw"].contains(&b.attr().name.as_str());
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(4096);
    let mut glance = Glance::default();
    for number in 0..4 {
        let shows = b.renew_glance(&mut glance);
        assert_eq!(shows && glance.is_quiet(), in_memory, "nothing has come");
        put(&mut batch, path, &packet(number, 20));
        a.send(now(), &mut batch);
        let deadline = Clock::now() + PATIENCE;
        while shows && glance.is_quiet() {
            assert!(Clock::now() < deadline, "packet {number} is not seen");
        }
        assert!(!(b.renew_glance(&mut glance) && glance.is_quiet()), "packet {number} waits");
        put(&mut batch, path, &packet(number + 4, 20));
        a.send(now(), &mut batch);
        // Of two, one by one.
        let mut got = Vec::new();
        while got.is_empty() {
            b.recv(now(), RxBudget { packets: 1, ..BUDGET }, &mut |p| got.push(p.bytes.to_vec()));
        }
        assert_eq!(got, [packet(number, 20)]);
        assert!(!(b.renew_glance(&mut glance) && glance.is_quiet()), "packet {} waits", number + 4);
        assert_eq!(receive(b, 1), [packet(number + 4, 20)]);
    }
    a.close_path(path);
}

fn both_directions_at_once(a: &mut dyn Fabric, b: &mut dyn Fabric) {
    let to_b = a.open_path(&av(b.attr().local)).unwrap();
    let to_a = b.open_path(&av(a.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 16);
    for round in 0..200 {
        put(&mut batch, to_b, &packet(round, 20));
        a.send(now(), &mut batch);
        assert_eq!(receive(b, 1), [packet(round, 20)]);
        put(&mut batch, to_a, &packet(round, 16));
        b.send(now(), &mut batch);
        assert_eq!(receive(a, 1), [packet(round, 16)]);
    }
    a.close_path(to_b);
    b.close_path(to_a);
    assert_eq!(counter(a, "icrc_errors"), 0);
}

/// Opens a path for each number, sends a packet by each, and says how many source ports came.
pub(crate) fn ports_of(a: &mut dyn Fabric, b: &mut dyn Fabric, numbers: std::ops::Range<u32>) -> usize {
    let av = av(b.attr().local);
    let paths: Vec<_> =
        numbers.map(|n| a.open_path_of(&av, of(n)).unwrap_or_else(|e| panic!("{n}: {e}"))).collect();
    let mut batch = TxBatch::with_capacity(1 << 20);
    for (n, &path) in paths.iter().enumerate() {
        put(&mut batch, path, &packet(n as u32, 20));
    }
    let (mut ports, mut came) = (std::collections::HashSet::new(), 0);
    let deadline = Clock::now() + PATIENCE;
    while came < paths.len() && Clock::now() < deadline {
        a.send(now(), &mut batch);
        b.recv(now(), BUDGET, &mut |p| {
            ports.insert(p.header.src_port);
            came += 1;
        });
    }
    assert_eq!(came, paths.len(), "packets that came");
    for path in paths {
        a.close_path(path);
    }
    ports.len()
}

/// Queue pairs to one peer have several source ports, and not more than are promised.
pub(crate) fn queue_pairs_are_spread(a: &mut dyn Fabric, b: &mut dyn Fabric) {
    assert_eq!(ports_of(a, b, 1000..1001), 1);
    // Of numbers in a row, few share a port.
    assert!(ports_of(a, b, 1000..1008) >= 6, "eight queue pairs share {}", ports_of(a, b, 1000..1008));
    assert_eq!(ports_of(a, b, 1000..1064), usize::from(PORTS_PER_PEER));
}
