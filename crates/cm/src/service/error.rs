//! Errors of listeners, connections and resolutions.

use core::net::IpAddr;

use hca_verbs::{BuildError, ConnectError, DeviceError, MemoryError};

use crate::wire::{PrivateDataTooLong, Reason, SidrStatus};
use crate::{CmError, Failure, IpHeaderError};

/// An error of a listener, a connection or a resolution.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The device gives its programs no queue pair 1.
    #[error(
        "the device {device} gives its programs no general services queue pair: connect without the connection manager"
    )]
    NoGeneralServices {
        /// The device.
        device: String,
    },
    /// The text of an address was not understood.
    #[error("{0}")]
    Address(#[source] std::io::Error),
    /// A listener's address is not the device's.
    #[error("the device has the address {device}, and not {asked}: listen there or at 0.0.0.0")]
    NotLocal {
        /// The address that was asked for.
        asked: IpAddr,
        /// The device's address.
        device: IpAddr,
    },
    /// All ports that can be chosen have listeners.
    #[error("no port is left")]
    NoPort,
    /// The peer rejected, or its connection manager did.
    #[error("rejected: {reason}")]
    Rejected {
        /// The reason.
        reason: Reason,
        /// The private data of the rejection, with the zeros behind it.
        private_data: Vec<u8>,
    },
    /// The peer has no queue pair for a resolution.
    #[error("not resolved: {status}")]
    Unresolved {
        /// The status.
        status: SidrStatus,
        /// The private data of the answer, with the zeros behind it.
        private_data: Vec<u8>,
    },
    /// No connection came about.
    #[error("{0}")]
    Failed(Failure),
    /// The connection was not established in the time that the program gave.
    #[error("no connection in {0:?}: the peer is unreachable, does not answer, or needs more time")]
    TimedOut(core::time::Duration),
    /// No answer came to a resolution.
    #[error(
        "no answer to the resolution and its retransmissions: the peer is unreachable, or has no connection manager"
    )]
    NoAnswer,
    /// The peer ended the connection before it was established.
    #[error("the peer has ended the connection")]
    Disconnected,
    /// The connection manager of the context has stopped.
    #[error("the connection manager has stopped: {0}")]
    Stopped(String),
    /// The rules of the connection manager.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// Private data that does not fit.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
    /// Addresses of two families.
    #[error(transparent)]
    Addresses(#[from] IpHeaderError),
    /// The queue pair refused to be connected.
    #[error(transparent)]
    QueuePair(#[from] ConnectError),
    /// The connection manager's own queue pair could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The connection manager got no memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
