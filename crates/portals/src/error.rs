//! Errors of calls, behind the return codes of both versions.

use hca_core::DeviceError;
use hca_matching::Process;
use hca_verbs::{ConnectError, MemoryError};

use crate::DirectoryError;

hca_core::debug_as_display!(OpenError, Error);

/// An error of opening a node.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The device reported an error.
    #[error("opening a Portals node: {0}")]
    Device(#[from] DeviceError),
    /// The node's memory can't be allocated.
    #[error("memory for messages: {0}")]
    Memory(#[from] MemoryError),
    /// A receive request was refused.
    #[error("posting the slots that messages arrive in: {0}")]
    Post(#[from] hca_core::PostErrorKind),
}

/// The reason why a call was refused; nothing has changed then. Each interface maps it to its own return code.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The matching engine refused the call, because of an argument, a state or a limit.
    #[error(transparent)]
    Refused(#[from] hca_matching::Error),
    /// No process has this address.
    #[error("target {target:?} is not a process of this interface")]
    Target {
        /// The given value.
        target: Process,
    },
    /// The directory can't find the process.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// An interface of this kind is open on the node.
    #[error("the node has an interface of this kind already: one is shared by the whole process")]
    InterfaceOpen,
    /// The process number is in use, or the node has another one.
    #[error("the process number {asked} is not this node's, which is {node}")]
    PidInUse {
        /// The number that was asked for.
        asked: u32,
        /// The process number that the node was opened with.
        node: u32,
    },
    /// The interface has a map of its ranks already, which stays.
    #[error("the interface has a map already")]
    MapSet,
    /// An argument that only the interface checks is invalid.
    #[error("{argument}: {why}")]
    Argument {
        /// The argument.
        argument: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// A connection can't be established.
    #[error("connecting to a peer: {0}")]
    Connect(#[from] ConnectError),
    /// The device refused an operation.
    #[error("the device: {0}")]
    DeviceRefused(#[from] DeviceError),
    /// Memory can't be allocated or registered.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The device has failed; the log gives the reason.
    #[error("the device has failed")]
    Device,
    /// The operating system refused to wait.
    #[error("{doing}: {source}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The reason.
        source: std::io::Error,
    },
}
