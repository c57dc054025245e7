//! One address for several processes.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant as Clock;

use hca_core::Instant;
use hca_fabric::{Fabric, OpenError, RxPacket, TxBatch, UdpFabric, UdpOptions};
use test_support::namespaces::Namespace;

use crate::raw::once_free;
use crate::suite::{BUDGET, PATIENCE, at_free_address, av, counter, now, packet, put, receive};

pub(crate) fn options(slots: u16) -> UdpOptions {
    UdpOptions { slots, ..UdpOptions::default() }
}

pub(crate) fn join(at: IpAddr, slots: u16) -> Result<UdpFabric, OpenError> {
    UdpFabric::open(at, &options(slots))
}

/// The first one at an address that nobody has.
pub(crate) fn first(salt: u32, slots: u16) -> UdpFabric {
    at_free_address(salt, |addr| join(addr, slots))
}

pub(crate) fn slot(fabric: &dyn Fabric) -> u8 {
    fabric.attr().qpn_slot.expect("its address is shared")
}

/// A packet to a queue pair.
pub(crate) fn packet_to(qpn: u32, number: u32, len: usize) -> Vec<u8> {
    let mut p = packet(number, len);
    p[4..8].copy_from_slice(&qpn.to_be_bytes());
    p
}

/// A packet to a queue pair of a slot.
pub(crate) fn to_slot(slot: u8, number: u32, len: usize) -> Vec<u8> {
    packet_to(u32::from(slot) << 16 | 7, number, len)
}

/// Sends packets from `a` to an address, all by one batch.
pub(crate) fn send(a: &mut dyn Fabric, to: IpAddr, packets: &[Vec<u8>]) {
    let path = a.open_path(&av(to)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 20);
    for p in packets {
        put(&mut batch, path, p);
    }
    while !batch.is_empty() {
        a.send(now(), &mut batch);
    }
    a.close_path(path);
}

/// A time for each call, so that a fabric looks at all that it has.
fn later(n: u64) -> Instant {
    Instant::from_nanos(n * 10_000_000)
}

/// Packets of all sockets, until there are so many or [`PATIENCE`] passed.
pub(crate) fn receive_all(fabric: &mut dyn Fabric, count: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    let deadline = Clock::now() + PATIENCE;
    let mut n = 1;
    while got.len() < count && Clock::now() < deadline {
        n += 1;
        fabric.recv(later(n), BUDGET, &mut |p: &RxPacket<'_>| got.push(p.bytes.to_vec()));
    }
    got
}

fn packets_go_to_their_slots(mut a: UdpFabric) {
    let at = a.attr().local;
    let (mut b, mut c) = (join(at, 1).unwrap(), join(at, 1).unwrap());
    let slots = [&a, &b, &c].map(|f| slot(f));
    assert!(slots.iter().all(|s| *s < 16), "the first one said how many: {slots:?}");
    assert!(slots[0] != slots[1] && slots[1] != slots[2] && slots[0] != slots[2], "{slots:?}");
    // Trains of packets for all three in turns, of the sizes that would make one train.
    let packets: Vec<_> = (0..60).map(|n| to_slot(slots[n as usize / 5 % 3], n, 512)).collect();
    send(&mut a, at, &packets);
    for (i, f) in [&mut a, &mut b, &mut c].into_iter().enumerate() {
        let mine: Vec<_> = packets.iter().filter(|p| p[5] == slots[i]).cloned().collect();
        assert_eq!(receive(f, mine.len()), mine);
        assert_eq!((counter(f, "strays_handed_on"), counter(f, "icrc_errors")), (0, 0));
    }
}

#[test]
fn packets_go_to_their_slots_over_ipv4() {
    packets_go_to_their_slots(first(201, 16));
}

#[test]
#[ignore = "needs root: it makes a network namespace"]
fn packets_go_to_their_slots_at_the_one_loopback_address_of_ipv6() {
    let namespace = Namespace::new().unwrap();
    namespace.within(|| packets_go_to_their_slots(join(Ipv6Addr::LOCALHOST.into(), 16).unwrap()));
}

#[test]
fn what_is_of_no_process_comes_to_one_of_them_by_the_desk() {
    let mut a = first(202, 4);
    let at = a.attr().local;
    let mut b = join(at, 4).unwrap();
    b.desk().unwrap().read(true);
    let packets: Vec<_> = [0, 1, 0xff_ffff, 0x04_0000, 0xfe_0000].map(|qpn| packet_to(qpn, qpn, 64)).into();
    send(&mut a, at, &packets);
    let mut got = receive_all(&mut b, packets.len());
    assert_eq!(counter(&b, "desk_datagrams"), 5);
    got.sort();
    let mut all = packets.clone();
    all.sort();
    assert_eq!(got, all);
    assert_eq!(receive(&mut a, 0), Vec::<Vec<u8>>::new());
}

/// A packet with a message of the connection manager: its attribute, and the words behind its head.
pub(crate) fn management(attribute: u16, number: u32, words: [u32; 4]) -> Vec<u8> {
    let mut p = packet_to(1, number, 276);
    p[21] = 7;
    p[36..38].copy_from_slice(&attribute.to_be_bytes());
    for (word, at) in words.into_iter().zip((44..).step_by(4)) {
        p[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
    p
}

/// The message REQ, and REP, whose recipient's ID is the second word.
pub(crate) const REQ: u16 = 0x10;
pub(crate) const REP: u16 = 0x13;

#[test]
fn management_datagrams_go_one_by_one_to_their_processes() {
    let mut a = first(215, 4);
    let at = a.attr().local;
    let (mut b, mut c) = (join(at, 4).unwrap(), join(at, 4).unwrap());
    let mut sender = at_free_address(216, |addr| UdpFabric::open(addr, &options(0)));
    let slots = [&a, &b, &c].map(|f| slot(f));
    let to = |n: u32| management(REP, n, [77, u32::from(slots[n as usize % 3]) << 24 | 5, 0, 0]);
    let packets: Vec<_> = (0..30).map(to).collect();
    send(&mut sender, at, &packets);
    for (i, f) in [&mut a, &mut b, &mut c].into_iter().enumerate() {
        let mine: Vec<_> = packets.iter().skip(i).step_by(3).cloned().collect();
        assert_eq!(receive(f, mine.len()), mine);
        assert_eq!((counter(f, "strays_handed_on"), counter(f, "icrc_errors")), (0, 0));
    }
}

/// Claims a service that was just released: as [`once_free`], where a name is what copies of a descriptor hold.
fn once_named(mut claim: impl FnMut() -> std::io::Result<()>) {
    let begin = Clock::now();
    while let Err(e) = claim() {
        assert!(e.kind() == std::io::ErrorKind::AddrInUse && begin.elapsed() < PATIENCE, "{e}");
        std::thread::yield_now();
    }
}

#[test]
fn requests_go_to_the_process_that_has_claimed_the_service() {
    let mut a = first(217, 4);
    let at = a.attr().local;
    let (mut b, mut c) = (join(at, 4).unwrap(), join(at, 4).unwrap());
    let mut sender = at_free_address(218, |addr| UdpFabric::open(addr, &options(0)));
    b.desk().unwrap().claim(0x0106_1d2f).unwrap();
    let taken = c.desk().unwrap().claim(0x0106_1d2f).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    a.desk().unwrap().read(true);
    let to = |service, n| management(REQ, n, [77, 0, 0, service]);
    // One for which nobody listens stays with the process that reads the desk.
    send(&mut sender, at, &[to(0x0106_1d2f, 1), to(0x0106_1d30, 2)]);
    assert_eq!(receive_all(&mut a, 1), [to(0x0106_1d30, 2)]);
    assert_eq!(receive_all(&mut b, 1), [to(0x0106_1d2f, 1)]);
    // The service of a process that has gone is free, and another process reads the desk.
    b.desk().unwrap().release(0x0106_1d2f);
    once_named(|| c.desk().unwrap().claim(0x0106_1d2f));
    c.desk().unwrap().read(true);
    drop(a);
    send(&mut sender, at, &[to(0x0106_1d2f, 3), to(0x0106_1d30, 4)]);
    assert_eq!(receive_all(&mut c, 2), [to(0x0106_1d2f, 3), to(0x0106_1d30, 4)]);
    // An answer to a process that the sender does not know comes to all.
    let unknown = management(0x12, 5, [77, 0, 0, 0]);
    send(&mut sender, at, std::slice::from_ref(&unknown));
    for f in [&mut c, &mut b] {
        assert_eq!(receive_all(f, 1), std::slice::from_ref(&unknown));
    }
}

#[test]
fn datagrams_to_many_processes_are_each_counted_by_their_receiver() {
    let mut a = first(219, 4);
    let at = a.attr().local;
    let mut b = join(at, 4).unwrap();
    let mut sender = at_free_address(220, |addr| UdpFabric::open(addr, &options(0)));
    let slots = [slot(&a), slot(&b)];
    let path = sender.open_path(&av(at)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 20);
    // More to the one than a receiver expects to be lost.
    for round in 0..4 {
        for (to, f) in [(0, &mut a), (1, &mut b)] {
            for n in 0..if to == 0 { 400 } else { 1 } {
                put(&mut batch, path, &to_slot(slots[to], n, 64 + n as usize % 2 * 4));
                sender.send(now(), &mut batch);
            }
            let count = if to == 0 { 400 } else { 1 };
            assert_eq!(receive(f, count).len(), count, "round {round}");
        }
    }
    for f in [&a, &b] {
        assert_eq!((counter(f, "icrc_idents_refused"), counter(f, "icrc_ident_solved")), (0, 0));
    }
    sender.close_path(path);
}

#[test]
fn a_train_of_another_sender_for_two_slots_is_handed_on() {
    let mut a = first(203, 8);
    let at = a.attr().local;
    let mut b = join(at, 8).unwrap();
    // A sender that knows nothing of slots: its train is for both.
    let mut sender = at_free_address(204, |addr| UdpFabric::open(addr, &options(0)));
    let path = sender.open_path(&av(at)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 16);
    (0..4).for_each(|n| put(&mut batch, path, &to_slot(slot(&a), n, 256)));
    let train = batch.trains()[0];
    assert_eq!((batch.trains().len(), train.packets()), (1, 4));
    for n in [1, 3] {
        batch.bytes_mut(&train)[n * train.segment + 5] = slot(&b);
    }
    sender.send(now(), &mut batch);
    let mine = receive_all(&mut a, 2);
    let theirs = receive_all(&mut b, 2);
    assert_eq!((mine.len(), theirs.len()), (2, 2));
    assert_eq!(counter(&a, "strays_handed_on") + counter(&b, "strays_handed_on"), 2);
}

#[test]
fn all_slots_taken_is_an_error_and_one_that_was_left_is_taken_again() {
    let a = first(205, 2);
    let at = a.attr().local;
    let b = join(at, 2).unwrap();
    let taken = join(at, 2).err().expect("there are two");
    assert!(matches!(taken, OpenError::SlotsTaken { slots: 2, .. }), "{taken}");
    assert!(taken.to_string().contains("all 2 processes that share 127."), "{taken}");
    let left = slot(&b);
    drop(b);
    let again = once_free(|| join(at, 2));
    assert_eq!(slot(&again), left);
    // The last one frees the address.
    drop((a, again));
    drop(once_free(|| UdpFabric::open(at, &options(0))));
}

#[test]
fn an_address_is_shared_or_somebodys_alone() {
    let alone = at_free_address(206, |addr| UdpFabric::open(addr, &options(0)));
    let at = alone.attr().local;
    let refused = join(at, 4).err().expect("it is taken");
    assert!(matches!(refused, OpenError::InUse(_)), "{refused}");
    drop(alone);
    let _shared = once_free(|| join(at, 4));
    let refused = UdpFabric::open(at, &options(0)).err().expect("it is taken");
    assert!(matches!(refused, OpenError::InUse(_)) && refused.to_string().contains("share=yes"), "{refused}");
}

#[test]
fn what_was_for_a_process_before_does_not_reach_the_next_one_in_its_slot() {
    let a = first(207, 2);
    let at = a.attr().local;
    let b = join(at, 2).unwrap();
    let (left, mut sender) = (slot(&b), at_free_address(208, |addr| UdpFabric::open(addr, &options(0))));
    drop(b);
    // Nobody receives them, but others hold the socket.
    send(&mut sender, at, &[to_slot(left, 1, 64), to_slot(left, 2, 64)]);
    let mut c = once_free(|| join(at, 2));
    send(&mut sender, at, &[to_slot(left, 3, 64)]);
    assert_eq!((slot(&c), receive(&mut c, 1)), (left, vec![to_slot(left, 3, 64)]));
}
