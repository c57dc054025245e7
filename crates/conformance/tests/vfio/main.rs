//! The suite on the ConnectX driver, against the software adapter served as PCI functions, over vfio-user sockets in
//! this process.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use hca_conformance::{Bed, Feature, suite};
use hca_core::{Device, Gid};
use hca_fabric::LoopbackNet;
use hca_mlx5::{Mlx5, Options};
use hca_vfio::{PciFunction, UserOptions};
use softhca::{Progress, SoftHca};
use softhca_pci::{PortKind, Served};

suite!(infiniband, ServedBed::new(PortKind::InfiniBand));
suite!(roce, ServedBed::new(PortKind::Roce));

/// An address at which nobody answers.
const SILENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 250);

/// Functions of one served adapter, each with a driver of its own.
struct ServedBed {
    port: PortKind,
    /// Servers of the devices that were opened; those are gone before the bed is.
    servers: Mutex<Vec<Served>>,
}

impl ServedBed {
    const fn new(port: PortKind) -> Self {
        Self { port, servers: Mutex::new(Vec::new()) }
    }

    /// Serves `n` functions of an adapter on a network of its own, and returns their sockets.
    fn serve(&self, n: usize) -> Vec<PathBuf> {
        let fabric = LoopbackNet::new().attach(Ipv4Addr::new(10, 0, 0, 1).into());
        let options = softhca::Options { progress: Progress::Inline, ..softhca::Options::default() };
        let hca = SoftHca::open(Box::new(fabric), options).expect("the adapter opens");
        let served = Served::start(hca, n, self.port).expect("it is served");
        let sockets = served.sockets().to_vec();
        self.servers.lock().unwrap_or_else(PoisonError::into_inner).push(served);
        sockets
    }
}

impl Bed for ServedBed {
    fn name(&self) -> String {
        format!("vfio-user {}", self.port.name())
    }
    fn open(&self, n: usize) -> Vec<Arc<dyn Device>> {
        let open = |(i, socket): (usize, PathBuf)| -> Arc<dyn Device> {
            let function = PciFunction::connect(&socket, UserOptions::default()).expect("it connects");
            let mut options = Options::default();
            if self.port == PortKind::Roce {
                options.ip = vec![own(i)];
                options.neighbours =
                    (0..n).map(own).chain([SILENT.into()]).map(|ip| (ip, [2, 0, 0, 0, 0, 1])).collect();
            }
            Mlx5::open(function, options).expect("the driver starts")
        };
        self.serve(n).into_iter().enumerate().map(open).collect()
    }
    fn can(&self, feature: Feature) -> bool {
        matches!(feature, Feature::Lossless | Feature::Passive | Feature::WaitFd)
    }
    fn silent_gid(&self) -> Option<Gid> {
        // An InfiniBand port reaches those that the server knows alone.
        (self.port == PortKind::Roce).then(|| SILENT.into())
    }
}

/// The address of a RoCE port.
fn own(i: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 1, i as u8 + 1).into()
}
