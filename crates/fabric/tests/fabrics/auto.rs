//! Choice by path, across network namespaces.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant as Clock;

use hca_core::{Instant, Qpn};
use hca_fabric::{AutoFabric, Fabric, PathId, ShmOptions, UdpOptions};

use test_support::namespaces::Namespace;

use crate::suite::{BUDGET, av, counter};

fn at(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}
fn auto(last: u8) -> AutoFabric {
    AutoFabric::open(at(last), &UdpOptions::default(), &ShmOptions::default()).expect("it opens")
}
fn messages_to(f: &mut AutoFabric, last: u8) -> Option<PathId> {
    f.open_messages(&av(at(last)), Qpn::new(7)).expect("it can be asked for")
}
fn linked(f: &AutoFabric) -> u64 {
    counter(f, "shm_peers_linked")
}

#[test]
#[ignore = "needs root: network namespaces"]
fn adapters_of_two_namespaces_at_one_address_are_told_apart() {
    let (near, far) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    let (mut far_two, mut far_four) = far.within(|| (auto(2), auto(4)));
    near.within(|| {
        let (mut two, mut three) = (auto(2), auto(3));
        assert_eq!(messages_to(&mut three, 4), None, "it listens in another namespace");
        messages_to(&mut three, 2).expect("it listens in this namespace");
        let begin = Clock::now();
        while linked(&two) == 0 || linked(&three) == 0 {
            let now = Instant::from_nanos(begin.elapsed().as_nanos() as u64 + 1);
            for f in [&mut two, &mut three] {
                let shm = f.near().expect("nobody has its name");
                shm.recv(now, BUDGET, &mut |_| {});
                f.recv(now, BUDGET, &mut |_| {});
            }
            assert!(begin.elapsed().as_secs() < 10, "they do not meet");
        }
        far.within(|| assert_eq!(messages_to(&mut far_four, 3), None, "it listens in another namespace"));
    });
    far_two.recv(Instant::from_nanos(1), BUDGET, &mut |_| {});
    assert_eq!(linked(&far_two), 0);
}
