//! The suite on the software adapter: every fabric in every progress mode, and hostile networks.

mod beds;
mod limits;
mod raw;
mod raw_shared;

use beds::{Net, SoftBed};
use hca_conformance::{Bed, suite};
use hca_core::AtomicScope;
use hca_fabric::RoceVersion;
use raw::RawBed;
use raw_shared::{SharedOn, SharedRawBed};
use softhca::Progress;

suite!(loopback_inline, SoftBed::new(Net::Loopback, Progress::Inline));
suite!(loopback_thread, SoftBed::new(Net::Loopback, Progress::Thread));
suite!(loopback_adaptive, SoftBed::new(Net::Loopback, Progress::Adaptive));
suite!(loopback6_inline, SoftBed::new(Net::Loopback6, Progress::Inline));

suite!(udp_inline, SoftBed::new(Net::Udp, Progress::Inline));
suite!(udp_thread, SoftBed::new(Net::Udp, Progress::Thread));
suite!(udp_adaptive, SoftBed::new(Net::Udp, Progress::Adaptive));

suite!(uring_inline, SoftBed::new(Net::Uring, Progress::Inline));
suite!(uring_thread, SoftBed::new(Net::Uring, Progress::Thread));
suite!(uring_adaptive, SoftBed::new(Net::Uring, Progress::Adaptive));

suite!(shared_inline, SoftBed::new(Net::Shared, Progress::Inline));
suite!(shared_adaptive, SoftBed::new(Net::SharedUring, Progress::Adaptive));

suite!(auto_inline, SoftBed::new(Net::Auto, Progress::Inline));
suite!(auto_thread, SoftBed::new(Net::Auto, Progress::Thread));
suite!(auto_adaptive, SoftBed::new(Net::Auto, Progress::Adaptive));

suite!(auto_shared_inline, SoftBed::new(Net::AutoShared, Progress::Inline));
suite!(auto_shared_thread, SoftBed::new(Net::AutoShared, Progress::Thread));
suite!(auto_shared_adaptive, SoftBed::new(Net::AutoShared, Progress::Adaptive));

suite!(shm_inline, SoftBed::new(Net::Shm, Progress::Inline));
suite!(shm_thread, SoftBed::new(Net::Shm, Progress::Thread));
suite!(shm_adaptive, SoftBed::new(Net::Shm, Progress::Adaptive));
suite!(shm_isolated, SoftBed::new(Net::ShmIsolated, Progress::Adaptive));

/// A check passes at once on an adapter without the ability that it is about: this one has all.
#[test]
fn no_check_is_passed_over_for_want_of_an_ability() {
    use Net::{Auto, AutoShared, Loopback, Loopback6, Shared, SharedUring, Shm, ShmIsolated, Udp, Uring};
    for net in [Loopback, Loopback6, Udp, Uring, Shared, SharedUring, Auto, AutoShared, Shm, ShmIsolated] {
        let device = SoftBed::new(net, Progress::Inline).open(1).remove(0);
        let attr = device.attr();
        let groups = !matches!(net, Shm | ShmIsolated);
        let abilities = [
            ("memory windows", device.windows().is_some()),
            ("XRC", device.xrc().is_some()),
            ("RD", device.reliable_datagrams().is_some()),
            ("multicast", device.multicast().is_some() == groups),
            ("Portals", device.offload().is_some()),
            ("a clock", device.clock().is_some()),
            ("a descriptor", device.wait_fd().is_some()),
            ("atomics", attr.atomics == AtomicScope::Cpu),
            ("memory of the program's own", attr.foreign_memory),
            ("general services", attr.general_services),
            ("queues of completions that change", attr.abilities.cq_resize),
            ("shared receive queues that change", attr.abilities.srq_resize),
            ("regions that change", attr.abilities.mr_rereg),
            ("ATOMIC WRITE", attr.abilities.atomic_write),
            ("FLUSH", !attr.abilities.flush.is_empty()),
            ("reasons", device.counters().iter().any(|c| c.name == "rx_refused_unknown_key")),
        ];
        for (what, is_there) in abilities {
            assert!(is_there, "{net:?}: {what}");
        }
    }
}

#[test]
fn the_uring_beds_say_what_they_run_on() {
    let fabric = beds::uring();
    match fabric.attr().name.as_str() {
        "uring" => println!("the uring beds run on io_uring"),
        "udp" => println!("skipped: no io_uring here, so the uring beds repeat the udp ones"),
        other => panic!("the uring beds run on {other}"),
    }
}

suite!(
    raw_adaptive,
    RawBed { version: RoceVersion::V2, progress: Progress::Adaptive },
    needs = "needs root: Ethernet interfaces in network namespaces"
);
suite!(
    raw_inline,
    RawBed { version: RoceVersion::V2, progress: Progress::Inline },
    needs = "needs root: Ethernet interfaces in network namespaces"
);
suite!(
    raw_v1_adaptive,
    RawBed { version: RoceVersion::V1, progress: Progress::Adaptive },
    needs = "needs root: Ethernet interfaces in network namespaces"
);
suite!(
    raw_shared_inline,
    SharedRawBed { interface: SharedOn::Loopback, progress: Progress::Inline },
    needs = "needs root: Ethernet interfaces in network namespaces"
);
suite!(
    raw_shared_adaptive,
    SharedRawBed { interface: SharedOn::Loopback, progress: Progress::Adaptive },
    needs = "needs root: Ethernet interfaces in network namespaces"
);
suite!(
    raw_shared_ethernet,
    SharedRawBed { interface: SharedOn::Ethernet, progress: Progress::Adaptive },
    needs = "needs root: Ethernet interfaces in network namespaces"
);

suite!(udp_one_percent_loss, SoftBed::new(Net::Udp, Progress::Adaptive).with_faults("loss=0.01"));
suite!(
    loopback_hostile,
    SoftBed::new(Net::Loopback, Progress::Inline).with_faults("loss=0.02,dup=0.02,reorder=0.02,corrupt=0.01")
);
suite!(
    shm_hostile,
    SoftBed::new(Net::Shm, Progress::Inline).with_faults("loss=0.02,dup=0.02,reorder=0.02,corrupt=0.01")
);
