//! The suite on the ConnectX driver: against the software adapter served as PCI functions, over vfio-user sockets in
//! this process; and on functions of this machine, where the environment names some.

mod linux;
mod served;

use std::net::{IpAddr, Ipv4Addr};

use hca_conformance::{Feature, suite};
use hca_core::Gid;
use hca_mlx5::Options;
use linux::LinuxBed;
use served::ServedBed;
use softhca_pci::PortKind;

suite!(infiniband, ServedBed::new(PortKind::InfiniBand));
suite!(roce, ServedBed::new(PortKind::Roce));
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
