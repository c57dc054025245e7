//! The listening socket and its path in the file system.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use hca_process::Fork;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use thiserror::Error;

/// The reason why listening at a path failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another server listens at the path already.
    #[error("{}: another server listens there; stop it, or name another path", path.display())]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// The file at the path is not a socket.
    #[error("{}: a file that is not a socket is there; remove it, or name another path", path.display())]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// The system can't create the socket.
    #[error("{}: listening there: {source}{}", path.display(), hca_core::remedy(source))]
    System {
        /// The socket's path.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
}

/// A listening socket at a path. Dropping the listener removes the socket's file, except in a forked child, which does
/// not own the file.
#[derive(Debug)]
pub struct Listener {
    path: PathBuf,
    socket: UnixListener,
    fork: Fork,
}

impl AsFd for Listener {
    /// The socket, to be waited on: a client is there when it is readable.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Listener {
    /// Listens at a path. A socket that a dead server has left at the path is replaced.
    ///
    /// # Errors
    /// Another server listens there, the path is not a socket, or the system refuses.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let here = path.to_path_buf();
        let system = |source| ListenError::System { path: here.clone(), source };
        if let Ok(found) = std::fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return Err(ListenError::NoSocket { path: here });
            }
            match knock(path) {
                // One that accepts nobody for now is a server, too.
                Ok(()) | Err(Errno::AGAIN) => return Err(ListenError::InUse { path: here }),
                Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(system)?,
                Err(e) => return Err(system(e.into())),
            }
        }
        let socket = UnixListener::bind(path).map_err(system)?;
        let this = Self { path: here.clone(), socket, fork: Fork::new() };
        this.socket.set_nonblocking(true).map_err(system)?;
        Ok(this)
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the next client, if there is one; never waits.
    ///
    /// # Errors
    /// The system has no descriptor or no memory for the connection. The client then still waits, so the socket stays
    /// readable: the caller leaves the socket alone for some time.
    pub fn accept(&self) -> std::io::Result<Option<OwnedFd>> {
        match self.socket.accept() {
            Ok((socket, _)) => Ok(Some(socket.into())),
            // The connection is none any more.
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Connects to a path, and never waits for a place in a server's line.
fn knock(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.fork.is_child() {
            return;
        }
        if let Err(e) = std::fs::remove_file(&self.path) {
            tracing::warn!("{}: removing the socket failed: {e}", self.path.display());
        }
    }
}
