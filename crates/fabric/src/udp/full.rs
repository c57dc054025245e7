//! Tests of a full send buffer, and of the packets that it refuses.
//!
//! Over loopback the kernel frees a packet's share of the send buffer before the send call returns, so no buffer fills
//! up. Over a link, a buffer fills up while the neighbour's address is unknown: the kernel holds the packets, which
//! count in the sending socket's buffer. The link is a veth pair between two network namespaces, which the test's
//! thread creates and which end with the thread.
//!
//! Invariants:
//! 1. The descriptors are open, and the calls take no pointer.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant as WallTime};

use super::refusals::{BUDGET, Ends, NOW, counter, packet};
use super::{UdpFabric, UdpOptions};
use crate::Fabric;

const NEAR: [u8; 4] = [10, 77, 0, 1];
const FAR: [u8; 4] = [10, 77, 0, 2];
const FAR_LINK: &str = "02:00:00:00:77:02";
/// Packets to send: more than the buffer takes many times over.
const PACKETS: u32 = 400;

/// A network namespace.
struct Namespace(File);

impl Namespace {
    /// A new one, which this thread enters.
    fn new() -> Self {
        // SAFETY: (1)
        let made = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(made, 0, "making a network namespace: {}", io::Error::last_os_error());
        let namespace = Self(File::open("/proc/thread-self/ns/net").unwrap());
        namespace.ip("link set lo up");
        namespace
    }
    /// Runs `ip` in it.
    fn ip(&self, arguments: &str) {
        self.enter();
        let done = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is installed");
        assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
    }
    fn open(&self, address: [u8; 4]) -> UdpFabric {
        self.enter();
        UdpFabric::open(IpAddr::from(address), &UdpOptions::default()).unwrap()
    }
    fn enter(&self) {
        // SAFETY: (1)
        let entered = unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(entered, 0, "entering a network namespace: {}", io::Error::last_os_error());
    }
}

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
    let far = Namespace::new();
    let near = Namespace::new();
    let far_path = format!("/proc/{}/fd/{}", std::process::id(), far.0.as_raw_fd());
    near.ip(&format!("link add near type veth peer name far address {FAR_LINK} netns {far_path}"));
    far.ip("address add 10.77.0.2/24 dev far");
    far.ip("link set far up");
    near.ip("address add 10.77.0.1/24 dev near");
    near.ip("link set near up");
    let b = far.open(FAR);
    let mut e = Ends::between(near.open(NEAR), b);
    e.a.end.sender.paths.shrink_send_buffer(e.path);
    let mut got = Vec::new();
    e.put(0, 1, 20);
    exchange(&mut e, &mut got, 1);

    // From now on the neighbour is unknown, and does not tell.
    far.ip("link set far arp off");
    near.ip("neighbour delete 10.77.0.2 dev near");
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

    near.ip(&format!("neighbour replace 10.77.0.2 lladdr {FAR_LINK} dev near"));
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
    for packets_a_train in [1, 8] {
        std::thread::spawn(move || a_full_buffer(packets_a_train)).join().unwrap();
    }
}
