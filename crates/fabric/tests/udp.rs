//! The suite over UDP sockets, and what only they have.

mod suite;

use hca_fabric::{Fabric, OpenError, UdpFabric, UdpOptions};
use suite::{at_free_address, av, counter, packet, pass, put, receive};

fn open(salt: u32) -> UdpFabric {
    at_free_address(salt, |addr| UdpFabric::open(addr, &UdpOptions::default()))
}

#[test]
fn the_suite_passes_over_udp() {
    suite::run(Box::new(open(1)), Box::new(open(2)));
}

#[test]
fn the_suite_passes_without_sockets_of_their_own_for_paths() {
    let options = UdpOptions { max_paths: 0, ..UdpOptions::default() };
    let a = at_free_address(3, |addr| UdpFabric::open(addr, &options));
    suite::run(Box::new(a), Box::new(open(4)));
}
