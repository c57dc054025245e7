//! The suite over raw Ethernet, between two namespaces and over the loopback interface, and what only raw
//! frames have.

use std::net::IpAddr;

use hca_core::Instant;
use hca_fabric::{Fabric, OpenError, RawFabric, RawOptions, RoceVersion, TxBatch};

use crate::namespaces::Wire;
use crate::suite::{BUDGET, at_free_address, av, packet, put};

/// Runs a test between two namespaces, or says why not.
fn over_wire(mtu: u32, test: impl FnOnce(&Wire)) {
    match Wire::with_addresses(mtu) {
        Ok(wire) => test(&wire),
        Err(why) => println!("skipped: {why}"),
    }
}

fn open(wire: &Wire, end: usize, options: RawOptions) -> Box<dyn Fabric> {
    let fabric = wire.within(end, || RawFabric::open("wire", &options));
    Box::new(fabric.unwrap_or_else(|e| panic!("{e}")))
}

fn v6(end: usize) -> Option<IpAddr> {
    format!("fd77::{}", end + 1).parse().ok()
}

/// Has both find out each other's hardware address, which takes time, and in the suite time stands still.
fn acquaint(a: &mut dyn Fabric, b: &mut dyn Fabric) {
    let start = std::time::Instant::now();
    let clock = || Instant::from_nanos(start.elapsed().as_nanos() as u64);
    let meet = |from: &mut dyn Fabric, to: &mut dyn Fabric| {
        let path = from.open_path(&av(to.attr().local)).unwrap();
        let mut batch = TxBatch::with_capacity(4096);
        put(&mut batch, path, &packet(0, 20));
        from.send(clock(), &mut batch);
        let mut came = 0;
        while came == 0 {
            assert!(start.elapsed().as_secs() < 5, "nobody answers");
            from.recv(clock(), BUDGET, &mut |_| {});
            to.recv(clock(), BUDGET, &mut |_| came += 1);
        }
        from.close_path(path);
    };
    meet(a, b);
    meet(b, a);
}

fn suite(mut a: Box<dyn Fabric>, mut b: Box<dyn Fabric>) {
    acquaint(&mut *a, &mut *b);
    crate::suite::run(a, b);
}

#[test]
fn the_suite_passes_between_two_namespaces() {
    over_wire(4500, |wire| {
        let [a, b] = [0, 1].map(|end| open(wire, end, RawOptions::default()));
        suite(a, b);
    });
}

#[test]
fn the_suite_passes_over_ipv6() {
    over_wire(4500, |wire| {
        let [a, b] = [0, 1].map(|end| open(wire, end, RawOptions { ip: v6(end), ..RawOptions::default() }));
        suite(a, b);
    });
}

#[test]
fn the_suite_passes_in_a_vlan() {
    over_wire(4500, |wire| {
        let options = RawOptions { vlan: Some(7), ..RawOptions::default() };
        let [a, b] = [0, 1].map(|end| open(wire, end, options));
        suite(a, b);
    });
}

#[test]
fn the_suite_passes_over_rocev1() {
    over_wire(4500, |wire| {
        for ip in [|_| None, v6] {
            let options = |end| RawOptions { ip: ip(end), version: RoceVersion::V1, vlan: None };
            let [a, b] = [0, 1].map(|end| open(wire, end, options(end)));
            suite(a, b);
        }
    });
}

/// An adapter on the loopback interface, where raw frames are allowed.
fn on_loopback(salt: u32) -> Option<RawFabric> {
    let mut denied = false;
    let fabric = at_free_address(salt, |ip| {
        match RawFabric::open("lo", &RawOptions { ip: Some(ip), ..RawOptions::default() }) {
            Ok(f) => Ok(Some(f)),
            Err(OpenError::NeedsNetRaw { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    });
    denied |= fabric.is_none();
    if denied {
        println!("skipped: raw frames need CAP_NET_RAW");
    }
    fabric
}

#[test]
fn the_suite_passes_over_the_loopback_interface() {
    let (Some(a), Some(b)) = (on_loopback(71), on_loopback(72)) else { return };
    crate::suite::run(Box::new(a), Box::new(b));
}
