//! Tests of a full send buffer, and of the packets that it refuses.
//!
//! Over loopback the kernel frees a packet's share of the send buffer before the send call returns, so no buffer fills
//! up. Over a link, a buffer fills up while the neighbour's address is unknown: the kernel holds the packets, which
//! count in the sending socket's buffer.

use std::net::IpAddr;
use std::time::{Duration, Instant as WallTime};

use test_support::namespaces::{Wire, ip};

use super::refusals::{BUDGET, Ends, NOW, counter, packet};
use super::{UdpFabric, UdpOptions};
use crate::Fabric;

const FAR_LINK: &str = "02:00:00:00:77:02";
/// Packets to send: more than the buffer takes many times over.
const PACKETS: u32 = 400;

/// Receives until `count` packets came, and sends what waits meanwhile.
fn exchange(e: &mut Ends, got: &mut Vec<Vec<u8>>, count: usize) {
    let begun = WallTime::now();
    while got.len() < count {
        assert!(begun.elapsed() < Duration::from_secs(10), "{} of {count} packets came", got.len());
        if !e.batch.is_empty() {
            e.send();
        }
        e.b.recv(NOW, BUDGET, &mut |p| got.push(p.bytes.to_vec()));
    }
}

fn a_full_buffer(packets_a_train: u32) {
    let wire = Wire::with_addresses(1500).unwrap();
    let at = |end, arguments: &str| _ = wire.within(end, || ip(arguments)).unwrap();
    at(1, &format!("link set wire address {FAR_LINK}"));
    let [near, far] = [1, 2].map(|last| {
        let address = IpAddr::from([10, 77, 0, last]);
        wire.within(usize::from(last) - 1, || UdpFabric::open(address, &UdpOptions::default()).unwrap())
    });
    let mut e = wire.within(0, || Ends::between(near, far));
    e.a.end.sender.paths.shrink_send_buffer(e.path);
    let mut got = Vec::new();
    e.put(0, 1, 20);
    exchange(&mut e, &mut got, 1);

    // From now on the neighbour is unknown, and does not tell.
    at(1, "link set wire arp off");
    at(0, "neighbour delete 10.77.0.2 dev wire");
    let mut sent = vec![packet(0, 20)];
    for n in (1..=PACKETS).step_by(packets_a_train as usize) {
        // Another length ends the train.
        let len = 24 + 4 * (n / packets_a_train % 2) as usize;
        e.put(n, packets_a_train, len);
        sent.extend((n..n + packets_a_train).map(|n| packet(n, len)));
    }
    e.send();
    let left = e.batch.trains().len();
    assert!(left > 0 && e.batch.trains()[0] != e.batch.trains()[left - 1], "the buffer is full long before");
    assert_eq!(counter(&e.a, "tx_blocked"), 1);
    assert!(e.a.next_deadline().is_some_and(|at| at > NOW), "it is tried again without being asked");
    e.send();
    assert_eq!(e.batch.trains().len(), left, "and stays full");
    e.b.recv(NOW, BUDGET, &mut |p| panic!("came without a neighbour: {p:?}"));

    at(0, &format!("neighbour replace 10.77.0.2 lladdr {FAR_LINK} dev wire"));
    exchange(&mut e, &mut got, sent.len());
    assert_eq!(got, sent, "nothing is lost, doubled or out of order");
    assert!(e.batch.is_empty());
    assert_eq!(e.a.next_deadline(), None);
    assert_eq!(counter(&e.a, "tx_lost_no_buffers") + counter(&e.a, "tx_lost_other"), 0);
    assert_eq!(counter(&e.b, "icrc_ident_solved"), 0, "what is refused uses up no Identification");
    e.expect_certain();
}

#[test]
#[ignore = "needs root: network namespaces"]
fn what_a_full_send_buffer_does_not_take_leaves_later_in_order() {
    [1, 8].into_iter().for_each(a_full_buffer);
}
