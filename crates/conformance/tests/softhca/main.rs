//! The suite on the software adapter: every fabric in every progress mode, and hostile networks.

mod beds;
mod limits;
mod raw;
mod raw_shared;

use beds::{Net, SoftBed};
use hca_conformance::suite;
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
