//! Served functions: a server in a thread of this process.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use hca_process::Fork;
use softhca::SoftHca;

use crate::server::{ServeError, Server, ServerOptions, Stopper};

/// A [`Server`] in a thread, with its sockets in a folder of its own: a driver's tests and benches bring their adapter
/// along. It serves until it is dropped; the drop joins the thread, and propagates a panic of the thread.
#[derive(Debug)]
pub struct Served {
    folder: PathBuf,
    sockets: Vec<PathBuf>,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
    fork: Fork,
}

impl Served {
    /// Serves `functions` functions of an adapter. The adapter has to satisfy [`Server::open`].
    ///
    /// # Errors
    /// As [`Server::open`]; the system has no threads left, or no place for temporary files.
    pub fn start(
        hca: Arc<SoftHca>,
        functions: usize,
        options: impl Into<ServerOptions>,
    ) -> Result<Self, ServeError> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("hca-served-{}-{number}", std::process::id()));
        let system = |doing| move |source| ServeError::System { doing, source };
        std::fs::create_dir_all(&folder).map_err(system("making a folder for sockets"))?;
        let sockets: Vec<PathBuf> = (0..functions).map(|i| folder.join(format!("{i}.sock"))).collect();
        let mut server = Server::open(hca, &sockets, options).inspect_err(|_| {
            let _ = std::fs::remove_dir(&folder);
        })?;
        let stopper = server.stopper().map_err(system("making an eventfd"))?;
        let thread = hca_process::spawn("hca-served", move || server.run());
        let thread = thread.map_err(system("starting a thread"))?;
        Ok(Self { folder, sockets, stopper, thread: Some(thread), fork: Fork::new() })
    }
    /// The functions' sockets, in their order.
    pub fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The thread is the parent's, and so is what stops it.
        if self.fork.is_child() {
            return;
        }
        self.stopper.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        // Not if somebody has put something else there.
        let _ = std::fs::remove_dir(&self.folder);
        if let Some(Err(panic)) = ended
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}
