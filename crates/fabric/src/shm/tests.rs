//! Adapters' ends in one process, and children that are killed.

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

fn open(domain: &str) -> ShmFabric {
    ShmFabric::open(domain, &ShmOptions { ring_bytes: 1 << 16, ..ShmOptions::default() }).unwrap()
}

fn av(to: IpAddr) -> AddressVector {
    AddressVector { dgid: to.into(), ..AddressVector::default() }
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
    f.recv(now(), budget, &mut |p| into.push((p.src, p.bytes.to_vec()))).packets
}

/// Turns all of them until the condition holds.
fn turn_until(
    fabrics: &mut [&mut ShmFabric],
    got: &mut [Vec<(IpAddr, Vec<u8>)>],
    done: impl Fn(&[Vec<(IpAddr, Vec<u8>)>]) -> bool,
) {
    let start = Clock::now();
    while !done(got) {
        for (f, got) in fabrics.iter_mut().zip(got.iter_mut()) {
            recv(f, got);
        }
        assert!(start.elapsed() < Duration::from_secs(10), "it does not come to an end");
    }
}

fn counter(f: &ShmFabric, name: &str) -> u64 {
    let mut all = Vec::new();
    f.counters(&mut all);
    all.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no counter {name}")).value
}

#[test]
fn packets_of_every_length_arrive_whole_and_in_order() {
    let d = domain();
    let (mut a, mut b) = (open(&d), open(&d));
    let path = a.open_path(&av(b.attr().local)).unwrap();
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
fn both_connect_at_once_and_one_link_stays() {
    for _ in 0..4 {
        let d = domain();
        let (mut a, mut b) = (open(&d), open(&d));
        let to_b = a.open_path(&av(b.attr().local)).unwrap();
        let to_a = b.open_path(&av(a.attr().local)).unwrap();
        send(&mut a, to_b, &[packet(1, 40)]);
        send(&mut b, to_a, &[packet(2, 400)]);
        let mut got = [Vec::new(), Vec::new()];
        turn_until(&mut [&mut a, &mut b], &mut got, |g| g.iter().all(|g| g.len() == 1));
        assert_eq!((counter(&a, "peers_linked"), counter(&b, "peers_linked")), (1, 1));
        assert_eq!((a.greetings, b.greetings), (0, 0));
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
