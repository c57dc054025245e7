//! Functions that are served at sockets.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use hca_conformance::{Bed, Feature};
use hca_core::{AtomicScope, Device, Gid};
use hca_fabric::LoopbackNet;
use hca_mlx5::Mlx5;
use hca_vfio::{PciFunction, UserOptions};
use softhca::{Progress, SoftHca};
use softhca_pci::{PortKind, Script, Served, ServerOptions};

use super::*;

/// Functions of one served adapter, each with a driver of its own.
pub(crate) struct ServedBed {
    port: PortKind,
    trouble: Trouble,
    /// Servers of the devices that were opened; those are gone before the bed is.
    servers: Mutex<Vec<Served>>,
}

impl ServedBed {
    pub(crate) const fn new(port: PortKind) -> Self {
        Self::troubled(port, Trouble::None)
    }
    /// The same, of functions that do something else besides.
    pub(crate) const fn troubled(port: PortKind, trouble: Trouble) -> Self {
        Self { port, trouble, servers: Mutex::new(Vec::new()) }
    }

    /// Serves `n` functions of an adapter on a network of its own, and returns their sockets.
    fn serve(&self, n: usize) -> Vec<PathBuf> {
        let fabric = LoopbackNet::new().attach(Ipv4Addr::new(10, 0, 0, 1).into());
        let options = softhca::Options { progress: Progress::Inline, ..softhca::Options::default() };
        let hca = SoftHca::open(Box::new(fabric), options).expect("the adapter opens");
        let no_spare_pages = self.trouble == Trouble::NoSparePages;
        let script: Option<Arc<dyn Script>> = match self.trouble {
            Trouble::None | Trouble::NoSparePages => None,
            trouble => Some(Arc::new(trouble)),
        };
        let how = ServerOptions { no_spare_pages, script, ..self.port.into() };
        let served = Served::start(hca, n, how).expect("it is served");
        let sockets = served.sockets().to_vec();
        self.servers.lock().unwrap_or_else(PoisonError::into_inner).push(served);
        sockets
    }
}

impl Bed for ServedBed {
    fn name(&self) -> String {
        format!("vfio-user {} {:?}", self.port.name(), self.trouble)
    }
    fn open(&self, n: usize) -> Vec<Arc<dyn Device>> {
        let open = |(i, socket): (usize, PathBuf)| -> Arc<dyn Device> {
            let function = PciFunction::connect(&socket, UserOptions::default()).expect("it connects");
            let device = Mlx5::open(function, options(self.port, i)).expect("the driver starts");
            let atomics = if self.trouble == Trouble::Plain { AtomicScope::None } else { AtomicScope::Hca };
            assert_eq!(device.attr().atomics, atomics, "a plain function offers none");
            device
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
