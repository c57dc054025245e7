//! UDP between link-local addresses, over a veth pair between two network namespaces.

use std::net::IpAddr;

use hca_fabric::{
    AutoFabric, Fabric, OpenError, PathError, ShmOptions, UdpFabric, UdpOptions, interface_index,
};
use test_support::namespaces::{Wire, ip};

use crate::raw::once_free;
use crate::suite::{av, packet, pass};

fn at(end: usize) -> IpAddr {
    format!("fe80::77:{}", end + 1).parse().unwrap()
}

/// A link with a link-local address at each end, beside those that the kernel gives.
fn wire() -> Wire {
    let wire = Wire::new(1500).unwrap();
    for end in 0..2 {
        wire.within(end, || ip(&format!("addr add {}/64 dev wire nodad", at(end)))).unwrap();
    }
    wire
}

type Open = fn(IpAddr, UdpOptions) -> Result<Box<dyn Fabric>, OpenError>;

fn opens() -> Vec<(&'static str, Open)> {
    let udp: Open = |ip, options| Ok(Box::new(UdpFabric::open(ip, &options)?));
    let auto: Open = |ip, options| Ok(Box::new(AutoFabric::open(ip, &options, &ShmOptions::default())?));
    #[cfg(feature = "io-uring")]
    let uring: Open = |ip, udp| {
        let options = hca_fabric::UringOptions { udp, ..hca_fabric::UringOptions::default() };
        hca_fabric::UringFabric::open_or_udp(ip, &options)
    };
    vec![
        ("udp", udp),
        ("auto", auto),
        #[cfg(feature = "io-uring")]
        ("uring", uring),
    ]
}

#[test]
#[ignore = "needs root: network namespaces"]
fn link_local_addresses_reach_each_other_on_their_interface() {
    let wire = wire();
    // One packet, and trains of several lengths.
    let packets: Vec<_> = (0..200).map(|n| packet(n, if n < 100 { 24 } else { 800 })).collect();
    for (name, open) in opens() {
        for max_paths in [1024, 0] {
            let options = UdpOptions { max_paths, ..UdpOptions::default() };
            let open = |end| wire.within(end, || once_free(|| open(at(end), options)));
            let (mut a, mut b) = (open(0), open(1));
            assert_eq!((a.attr().local, a.attr().max_mtu.bytes()), (at(0), 1024), "{name}");
            for end in 0..2 {
                let got = wire.within(end, || pass(&mut *a, &mut *b, &packets));
                assert_eq!(got, packets, "{name}, to end {}", 1 - end);
                std::mem::swap(&mut a, &mut b);
            }
        }
    }
}

#[test]
#[ignore = "needs root: network namespaces"]
fn a_link_local_address_that_several_interfaces_have_takes_the_one_that_is_named() {
    let wire = wire();
    let other = "link add other mtu 9000 type veth peer name another";
    let address = format!("addr add {}/64 dev other nodad", at(0));
    let up = ["link set other up", "link set another up", &address];
    wire.within(0, || [other].iter().chain(&up).try_for_each(|a| ip(a).map(drop))).unwrap();
    let open = |end, interface: &str| {
        wire.within(end, || {
            let interface = if interface.is_empty() { 0 } else { interface_index(interface)? };
            UdpFabric::open(at(end), &UdpOptions { interface, ..UdpOptions::default() })
        })
    };
    let refused = open(0, "").err().expect("two have it");
    assert!(matches!(refused, OpenError::NotUnicast(ip) if ip == at(0)), "{refused}");
    assert!(refused.to_string().contains("udp://[fe80::1%eth0]"), "{refused}");
    // Both at once: they are two addresses.
    let (mut a, other, mut b) =
        (open(0, "wire").unwrap(), open(0, "other").unwrap(), open(1, "wire").unwrap());
    assert_eq!([&a, &other].map(|f| f.attr().max_mtu.bytes()), [1024, 4096]);
    let packets = [packet(1, 24), packet(2, 300)];
    assert_eq!(wire.within(0, || pass(&mut a, &mut b, &packets)), packets);
    assert!(matches!(open(0, "eth9"), Err(OpenError::NoInterface { .. })));
    // The interface has to have the address.
    assert!(matches!(open(0, "lo"), Err(OpenError::NotLocal(_))));
}

#[test]
#[ignore = "needs root: network namespaces"]
fn a_link_local_peer_is_refused_at_another_address_and_told_how_it_is_reached() {
    let wire = Wire::with_addresses(1500).unwrap();
    let local = "fd77::1".parse().unwrap();
    wire.within(0, || {
        let mut f = UdpFabric::open(local, &UdpOptions::default()).unwrap();
        let refused = f.open_path(&av(at(1))).unwrap_err();
        assert!(matches!(refused, PathError::NotUnicast { .. }), "{refused}");
        assert!(refused.to_string().contains("udp://[fe80::1%eth0]"), "{refused}");
    });
}
