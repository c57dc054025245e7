//! Errors, with the return codes of VIPL.

use std::time::Duration;

use hca_cm::ConnectionError;
use hca_verbs::{BuildError, ConnectError, DeviceError, MemoryError, WaitError};

use crate::ViState;

/// A return code of VIPL other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReturnCode {
    /// `VIP_INVALID_PARAMETER`.
    InvalidParameter,
    /// `VIP_ERROR_RESOURCE`.
    ErrorResource,
    /// `VIP_TIMEOUT`.
    Timeout,
    /// `VIP_REJECT`.
    Reject,
    /// `VIP_INVALID_RELIABILITY_LEVEL`.
    InvalidReliabilityLevel,
    /// `VIP_INVALID_MTU`.
    InvalidMtu,
    /// `VIP_INVALID_PTAG`.
    InvalidPtag,
    /// `VIP_INVALID_RDMAREAD`.
    InvalidRdmaRead,
    /// `VIP_INVALID_STATE`.
    InvalidState,
    /// `VIP_ERROR_NAMESERVICE`.
    ErrorNameService,
    /// `VIP_NO_MATCH`.
    NoMatch,
}

/// The error of a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is out of its range.
    #[error("{what}: {why}")]
    Parameter {
        /// The argument.
        what: &'static str,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// A memory handle names no registered memory, or not the bytes that the call needs.
    #[error("memory handle {handle:#x} has no {len} bytes at address {addr:#x}")]
    Memory {
        /// The handle.
        handle: u32,
        /// The first byte.
        addr: u64,
        /// The number of bytes.
        len: usize,
    },
    /// The VI is in a state that does not allow the call.
    #[error("the VI is in the state {state:?}; {needs}")]
    State {
        /// The state.
        state: ViState,
        /// The remedy.
        needs: &'static str,
    },
    /// An object is in use, or a queue is full.
    #[error("{what} in use: {users}")]
    InUse {
        /// The object.
        what: &'static str,
        /// The number of its users.
        users: usize,
    },
    /// A protection tag of another adapter.
    #[error("the protection tag belongs to another adapter")]
    Ptag,
    /// The adapter lacks a level of reliability, or the peer's VI has another one.
    #[error("the reliability level is not the peer's, or the adapter does not support it")]
    Reliability,
    /// The maximum transfer size is not the peer's, or is beyond the adapter's.
    #[error("the maximum transfer size is not the peer's, or the adapter does not support it")]
    Mtu,
    /// RDMA READ is not supported on this level of reliability.
    #[error("an unreliable VI has no RDMA READ")]
    RdmaRead,
    /// Nothing happened in time.
    #[error("nothing happened within {0:?}")]
    TimedOut(Duration),
    /// The peer rejected the connection.
    #[error("the peer has rejected the connection")]
    Rejected,
    /// No program waits with this discriminator at the address.
    #[error("no program waits for connections with this discriminator at the address")]
    NoMatch,
    /// The name service knows no such host.
    #[error("the name service knows no {0}")]
    Name(String),
    /// RDMA CM failed.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// Memory was refused.
    #[error(transparent)]
    Registration(#[from] MemoryError),
    /// A queue pair could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The queue pair could not be changed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The system refused to wait.
    #[error("waiting for the adapter: {0}")]
    Io(#[from] std::io::Error),
}

impl Error {
    /// The return code of VIPL for the error.
    pub fn code(&self) -> ReturnCode {
        match self {
            Self::Parameter { .. } | Self::Memory { .. } => ReturnCode::InvalidParameter,
            Self::State { .. } => ReturnCode::InvalidState,
            Self::Ptag => ReturnCode::InvalidPtag,
            Self::Reliability => ReturnCode::InvalidReliabilityLevel,
            Self::Mtu => ReturnCode::InvalidMtu,
            Self::RdmaRead => ReturnCode::InvalidRdmaRead,
            Self::TimedOut(_) | Self::Connection(ConnectionError::TimedOut(_)) => ReturnCode::Timeout,
            Self::Rejected => ReturnCode::Reject,
            Self::NoMatch => ReturnCode::NoMatch,
            Self::Name(_) => ReturnCode::ErrorNameService,
            Self::InUse { .. }
            | Self::Connection(_)
            | Self::Registration(_)
            | Self::Build(_)
            | Self::Device(_)
            | Self::Connect(_)
            | Self::Io(_) => ReturnCode::ErrorResource,
        }
    }
}

impl From<WaitError> for Error {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::TimedOut(time) => Self::TimedOut(time),
            WaitError::Device(error) => Self::Device(error),
            WaitError::Io(error) => Self::Io(error),
            other => Self::Io(std::io::Error::other(other.to_string())),
        }
    }
}
