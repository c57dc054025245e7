//! Errors: the reasons why a fabric of shared memory can't be opened.

use std::io;
use std::path::PathBuf;

use hca_core::remedy;
use thiserror::Error;

hca_core::debug_as_display!(ShmError);

/// An error of opening a [`ShmFabric`](super::ShmFabric).
#[derive(Error)]
#[non_exhaustive]
pub enum ShmError {
    /// The domain's name does not fit a socket's.
    #[error(
        "`{domain}` is not a domain of shared memory: use 1 to 32 letters, digits, dots, underscores or hyphens, as in \
         shm://lab"
    )]
    Domain {
        /// The given value.
        domain: String,
    },
    /// The folder can't hold the sockets.
    #[error("the socket folder {} can't be used: {why}; make one with `mkdir -m 700`", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        why: &'static str,
    },
    /// The folder can't be read or written.
    #[error("{doing} in the socket folder {}: {source}{}", folder.display(), folder_remedy(source))]
    FolderIo {
        /// The operation.
        doing: &'static str,
        /// The folder.
        folder: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Peers of this user can't be distinguished from peers of other users.
    #[error(
        "users can't be told apart: this process's user has the number {uid}, as has here every user that this user \
         namespace does not map; run as a user with a number of its own, or take any user for a peer (users=any)"
    )]
    User {
        /// The user's number in this user namespace.
        uid: u32,
    },
    /// The address is link-local, and another interface may have it as well.
    #[error(
        "a link-local address does not tell adapters of one machine apart; a global or unique local one does"
    )]
    LinkLocal,
    /// The size of a ring is invalid.
    #[error("the ring has {bytes} bytes: choose a power of two from 64 KiB to 64 MiB")]
    Ring {
        /// The requested value.
        bytes: usize,
    },
    /// Shared memory can't be allocated.
    #[error("{bytes} bytes of shared memory can't be had: {source}{}", memory_remedy(source))]
    Memory {
        /// The number of bytes.
        bytes: usize,
        /// The reason.
        source: io::Error,
    },
    /// The operating system refused the call.
    #[error("{doing}: {source}{}", remedy(source))]
    Io {
        /// The operation.
        doing: &'static str,
        /// The reason.
        source: io::Error,
    },
}

/// What helps where a folder can't be used.
fn folder_remedy(source: &io::Error) -> &'static str {
    let of_limits = remedy(source);
    if of_limits.is_empty() { "; make one with `mkdir -m 700`" } else { of_limits }
}

/// What helps where a memory file can't be made or filled.
fn memory_remedy(source: &io::Error) -> &'static str {
    let of_limits = remedy(source);
    if of_limits.is_empty() {
        "; free memory (or raise the limit of this control group), or allow memfd_create where a filter forbids it"
    } else {
        of_limits
    }
}
