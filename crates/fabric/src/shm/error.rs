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

/// The reason why a request for a grant, or a grant, failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GrantError {
    /// There is no such link, or the two sides are not connected yet.
    #[error("no shared-memory connection to this peer exists")]
    Link,
    /// The peer's process belongs to another user.
    #[error("the peer's process belongs to another user, which may exchange packets only")]
    ForeignUser,
    /// This adapter does not share memory with peers.
    #[error("this adapter was opened with isolated=yes or process_vm=no")]
    Isolated,
    /// A limit is reached.
    #[error("{limit} {what}, which is the limit")]
    Limit {
        /// The limited objects.
        what: &'static str,
        /// The most of them.
        limit: u32,
    },
    /// The region does not cover all pages of its memory, and a descriptor would open the others as well.
    #[error("the region does not cover all pages of its memory")]
    Partial,
    /// The program has put other memory in the place of a region that peers have been granted.
    #[error("the region's memory is not the one that was granted by its key before")]
    Exchanged,
    /// The region is being revoked, and a peer is still within an access to it.
    #[error("the region is being revoked")]
    Ending,
    /// The memory is private to this process, since a peer was dropped within an access to it.
    #[error("the memory became private when a peer that had mapped it was dropped")]
    Private,
    /// The memory was granted for reading only once, and is sealed against other writers for good.
    #[error("the memory was granted for reading only, and can't be granted for writing later")]
    ReadOnly,
    /// Memory of the program's own is granted for writing alone, to peers that this process was offered to.
    #[error("the memory is the program's own, and the peer may not write there by the kernel")]
    Process,
    /// Another adapter of this process has granted it.
    #[error("the memory is granted by another adapter of this process")]
    Elsewhere,
    /// The operating system refused the call.
    #[error("{doing}: {source}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The reason.
        source: io::Error,
    },
}
