//! The suite on the ConnectX driver, against the software adapter served as PCI functions, over vfio-user sockets in
//! this process.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use hca_conformance::{Bed, Feature, suite};
use hca_core::{Device, Gid};
use hca_fabric::LoopbackNet;
use hca_mlx5::{Mlx5, Options};
use hca_vfio::{PciFunction, UserOptions};
use softhca::{Progress, SoftHca};
use softhca_pci::{PortKind, Server, Stopper};

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

/// A server in a thread.
struct Served {
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
    folder: PathBuf,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stopper.stop();
        let ended = self.thread.take().expect("joined once").join();
        let _ = std::fs::remove_dir(&self.folder);
        if !std::thread::panicking() {
            ended.expect("the server ends as it should");
        }
    }
}

impl ServedBed {
    const fn new(port: PortKind) -> Self {
        Self { port, servers: Mutex::new(Vec::new()) }
    }

    /// Serves `n` functions of an adapter on a network of its own, and returns their sockets.
    fn serve(&self, n: usize) -> Vec<PathBuf> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("hca-served-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for sockets");
        let sockets: Vec<PathBuf> = (0..n).map(|i| folder.join(i.to_string())).collect();
        let (tell, told) = mpsc::channel();
        let (port, paths) = (self.port, sockets.clone());
        let thread = std::thread::spawn(move || {
            let fabric = LoopbackNet::new().attach(Ipv4Addr::new(10, 0, 0, 1).into());
            let options = softhca::Options { progress: Progress::Inline, ..softhca::Options::default() };
            let hca = SoftHca::open(Box::new(fabric), options).expect("the adapter opens");
            let mut server = Server::open(hca, &paths, port).expect("it listens");
            tell.send(server.stopper().expect("a descriptor is left")).expect("the test waits");
            server.run();
        });
        let stopper = told.recv().expect("the server starts");
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.push(Served { stopper, thread: Some(thread), folder });
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
