//! An adapter of software that is served as ConnectX functions by a thread of this process.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use hca::cli::Failure;
use hca_fabric::LoopbackNet;
use softhca::{Options, Progress, SoftHca};
use softhca_pci::{PortKind, Server, Stopper};

/// Functions at sockets, for as long as it lives.
pub struct Served {
    dir: PathBuf,
    urls: Vec<String>,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    /// Serves so many functions, with InfiniBand ports, in a folder of its own.
    ///
    /// # Errors
    /// The system refuses.
    pub fn start(functions: usize) -> Result<Self, Failure> {
        let dir = std::env::temp_dir().join(format!("hca-served-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let paths: Vec<PathBuf> = (0..functions).map(|i| dir.join(format!("{i}.sock"))).collect();
        let fabric = Box::new(LoopbackNet::new().attach(Ipv4Addr::new(10, 0, 0, 1).into()));
        let hca = SoftHca::open(fabric, Options { progress: Progress::Inline, ..Options::default() })?;
        let mut server = Server::open(hca, &paths, PortKind::InfiniBand)?;
        let stopper = server.stopper()?;
        let thread = std::thread::Builder::new().name("served".to_owned()).spawn(move || server.run())?;
        let urls = paths.iter().map(|path| url(path)).collect();
        Ok(Self { dir, urls, stopper, thread: Some(thread) })
    }
    /// The names of its functions, as devices.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }
}

fn url(path: &Path) -> String {
    format!("vfio-user://{}", path.display())
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            // Its panic was printed.
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
