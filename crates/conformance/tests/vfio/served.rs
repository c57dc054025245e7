//! Functions that are served at sockets.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use hca_conformance::{Bed, Feature};
use hca_core::{Device, Gid};
use hca_fabric::LoopbackNet;
use hca_mlx5::Mlx5;
use hca_vfio::{PciFunction, UserOptions};
use softhca::{Progress, SoftHca};
use softhca_pci::{PortKind, Served};

use super::*;

/// Functions of one served adapter, each with a driver of its own.
pub(crate) struct ServedBed {
    port: PortKind,
    /// Servers of the devices that were opened; those are gone before the bed is.
    servers: Mutex<Vec<Served>>,
}

impl ServedBed {
    pub(crate) const fn new(port: PortKind) -> Self {
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
            Mlx5::open(function, options(self.port, i)).expect("the driver starts")
        };
        self.serve(n).into_iter().enumerate().map(open).collect()
    }
    fn can(&self, feature: Feature) -> bool {
        offered(feature)
    }
    fn silent_gid(&self) -> Option<Gid> {
        silent(self.port)
    }
}
