//! The suite on the ConnectX driver: against the software adapter served as PCI functions, over vfio-user sockets in
//! this process; and on functions of this machine, where the environment names some.

mod linux;
mod served;
mod trouble;

use std::net::{IpAddr, Ipv4Addr};

use hca_conformance::{Feature, run, suite};
use hca_core::Gid;
use hca_mlx5::Options;
use linux::LinuxBed;
use served::ServedBed;
use softhca_pci::PortKind;
use trouble::Trouble;

suite!(infiniband, ServedBed::new(PortKind::InfiniBand));
suite!(roce, ServedBed::new(PortKind::Roce));
suite!(
    no_spare_pages,
    ServedBed::troubled(PortKind::Roce, Trouble::NoSparePages),
    needs =
        "needs minutes where CPUs are shared: each command takes turns of four threads; .ci/nightly has them"
);
suite!(delayed, ServedBed::troubled(PortKind::InfiniBand, Trouble::Delays));
suite!(plain, ServedBed::troubled(PortKind::InfiniBand, Trouble::Plain));
/// One check of each subject; the others are .ci/nightly's.
#[test]
fn functions_without_spare_pages_do_a_part_of_the_suite() {
    for check in [
        "atomics::adds_of_several_queue_pairs_sum_up_exactly",
        "concurrency::four_adapters_in_four_threads",
        "cq::a_blocked_waiter_misses_nothing",
        "errors::a_destroyed_peer_does_not_answer",
        "keys::a_key_taken_back_is_refused",
        "limits::a_queue_takes_its_depth_and_no_more",
        "progress::a_program_may_sleep_on_the_devices_descriptor",
        "qp_states::a_queue_pair_in_rtr_answers_and_tells_that_the_peer_connected",
        "rdma::rc_both_sides_write_and_read_one_window",
        "send_recv::queue_pairs_of_all_services_live_side_by_side",
        "srq::a_destroyed_queue_pair_names_the_shared_requests_that_it_took",
        "uc::uc_delivers_messages_of_every_size",
        "ud::ud_datagrams_begin_with_forty_bytes_of_grh",
    ] {
        run(&ServedBed::troubled(PortKind::Roce, Trouble::NoSparePages), check);
    }
}
suite!(
    linux_vfio,
    LinuxBed::new(),
    needs = "needs functions bound to vfio-pci, which HCA_VFIO_FUNCTIONS names"
);

/// An address at which nobody answers.
const SILENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 250);
/// The MAC address of nobody.
const NOBODY: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];

/// What the driver offers, wherever its function comes from.
fn offered(feature: Feature) -> bool {
    matches!(feature, Feature::Lossless | Feature::Passive | Feature::WaitFd)
}

/// An address at which nobody answers, if such a port takes one.
fn silent(port: PortKind) -> Option<Gid> {
    // An InfiniBand port reaches those that the server knows alone.
    (port == PortKind::Roce).then(|| SILENT.into())
}

/// How the `i`th function's driver is opened. On RoCE ports they find each other by ARP.
fn options(port: PortKind, i: usize) -> Options {
    let mut options = Options::default();
    if port == PortKind::Roce {
        options.ip = vec![own(i)];
        // Checks want to reach it, and to hear nothing.
        options.neighbours = vec![(SILENT.into(), NOBODY)];
    }
    options
}

/// The address of a RoCE port.
fn own(i: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 1, i as u8 + 1).into()
}
