//! Between opening a path and closing it, sending and receiving allocate nothing.

use std::net::IpAddr;

use hca_core::{AddressVector, Gid, Instant};
use hca_fabric::{Fabric, OpenError, RxBudget, TxBatch, UdpFabric, UdpOptions};
use test_support::addresses;
use test_support::counting::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn open<F>(salt: u32, open: impl Fn(IpAddr) -> Result<F, OpenError>) -> F {
    addresses::at_free(salt, |addr| match open(addr) {
        Err(OpenError::InUse(_)) => None,
        other => Some(other.unwrap()),
    })
}

/// The longest wait for the last packets.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

/// Sends singles and trains both ways, and says how often that allocated once it was warm.
fn allocations(a: &mut dyn Fabric, b: &mut dyn Fabric) -> u64 {
    let now = Instant::from_nanos(1);
    let budget = RxBudget { packets: 256, bytes: 1 << 18 };
    let to = |f: &dyn Fabric, flow_label| AddressVector {
        dgid: Gid::from_ip(f.attr().local),
        flow_label,
        ..AddressVector::default()
    };
    let paths = [1, 2].map(|label| a.open_path(&to(b, label)).unwrap());
    let mut batch = TxBatch::with_capacity(1 << 18);
    let mut before = 0;
    let mut got = 0;
    for round in 0..100 {
        if round == 10 {
            before = counting::calls();
        }
        for i in 0..20 {
            let packet = batch.reserve(paths[i / 10], if i % 7 == 6 { 20 } else { 1036 }).unwrap();
            packet.fill(i as u8);
            batch.commit();
        }
        a.send(now, &mut batch);
        // A late packet comes with a later round.
        for _ in 0..8 {
            got += b.recv(now, budget, &mut |_| {}).packets;
        }
    }
    let begin = std::time::Instant::now();
    while got < 2000 && begin.elapsed() < PATIENCE {
        got += b.recv(now, budget, &mut |_| {}).packets;
    }
    let allocated = counting::calls() - before;
    assert_eq!(got, 2000);
    allocated
}

#[test]
fn udp_allocates_nothing_while_it_sends_and_receives() {
    let (mut a, mut b) = (
        open(1, |at| UdpFabric::open(at, &UdpOptions::default())),
        open(2, |at| UdpFabric::open(at, &UdpOptions::default())),
    );
    assert_eq!(allocations(&mut a, &mut b), 0);
}

#[cfg(feature = "io-uring")]
#[test]
fn uring_allocates_nothing_while_it_sends_and_receives() {
    use hca_fabric::{UringFabric, UringOptions};
    let (mut a, mut b) = (
        open(3, |at| UringFabric::open_or_udp(at, &UringOptions::default())),
        open(4, |at| UringFabric::open_or_udp(at, &UringOptions::default())),
    );
    assert_eq!(allocations(&mut *a, &mut *b), 0);
}
