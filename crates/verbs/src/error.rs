//! Errors, with one enum for each family of operations.

use core::fmt;
use core::time::Duration;

use hca_core::{DeviceError, PostErrorKind, QpHandle, QpType, WcOpcode, WcStatus};
use thiserror::Error;

hca_core::debug_as_display!(
    MemoryError,
    RangeError,
    BuildError,
    ConnectError,
    WaitError,
    PostRefusal,
    WcError,
    ParseEndpointError,
    ExchangeError,
);

/// An error of memory allocation or registration.
#[derive(Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The device refused the operation.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device reaches only memory that it gave out itself.
    #[error(
        "this device ({device}) can't reach memory of the program's own; use memory of `Pd::alloc` or `Pd::alloc_shared`"
    )]
    ForeignMemory {
        /// The device's name.
        device: String,
    },
    /// The region would have no bytes.
    #[error("a region has at least 1 byte")]
    Empty,
    /// The region is longer than the device allows.
    #[error("the region has {len} bytes; this device takes at most {max}")]
    TooLong {
        /// Bytes asked for.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
}

/// The error of a range that does not lie inside of memory.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("range {start}..{end} of {len} bytes")]
pub struct RangeError {
    /// The start of the range.
    pub start: usize,
    /// The end of the range.
    pub end: usize,
    /// Bytes of the memory.
    pub len: usize,
}

/// An error of building a queue pair.
#[derive(Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The device refused the operation.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A completion queue could overrun.
    #[error(
        "the {side} completion queue has {depth} entries, {reserved} of them reserved; this queue pair needs {needed} more: create it with a depth of at least {}",
        reserved + needed
    )]
    CqDepth {
        /// `send` or `receive`.
        side: &'static str,
        /// The number of entries.
        depth: u32,
        /// Entries that other queues have reserved.
        reserved: u32,
        /// Entries that this queue pair has to reserve.
        needed: u32,
    },
    /// A queue has no entries, or lists have more entries than can be posted.
    #[error("{what} of {value} is out of range: {min} to {max}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// The given value.
        value: u32,
        /// The least allowed value.
        min: u32,
        /// The largest allowed value.
        max: u32,
    },
    /// A part belongs to another context.
    #[error(
        "the {what} belongs to another context; make it from the context of the queue pair, or of the XRC or RD domain"
    )]
    ForeignContext {
        /// The part.
        what: &'static str,
    },
}

/// An error of connecting a queue pair.
#[derive(Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The device refused the operation.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The far end is a queue pair of another service.
    #[error(
        "the peer's queue pair is {theirs:?}, this one is {ours:?}; it connects to one of the service {:?}",
        ours.peer()
    )]
    Service {
        /// This end's.
        ours: QpType,
        /// The far end's.
        theirs: QpType,
    },
    /// The change to RESET is not allowed, because it drops requests without a completion.
    #[error("a queue pair of the safe API can't go back to RESET; drop it and build another")]
    Reset,
}

/// The reason why a wait ended without a completion or event.
#[derive(Error)]
#[non_exhaustive]
pub enum WaitError {
    /// No completion or event came in time.
    #[error("nothing arrived within {0:?}")]
    TimedOut(Duration),
    /// The device has no descriptor to wait on.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The operating system refused to wait.
    #[error("waiting on the device's descriptor: {0}")]
    Io(#[from] std::io::Error),
}

/// The reason why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostRefusal {
    /// The queue refuses the request.
    #[error(transparent)]
    Queue(#[from] PostErrorKind),
    /// The memory belongs to another protection domain.
    #[error(
        "entry {entry} of the list belongs to another protection domain than the queue pair; take its memory from the queue pair's own"
    )]
    ForeignPd {
        /// The index of the entry.
        entry: usize,
    },
    /// The address handle belongs to another protection domain.
    #[error(
        "the address handle belongs to another protection domain than the queue pair; create one in the queue pair's own"
    )]
    ForeignAh,
    /// The end-to-end context belongs to another context.
    #[error(
        "the end-to-end context belongs to another context than the queue pair; build one in the queue pair's RD domain"
    )]
    ForeignEe,
    /// The queue would be full for ever, because all of its requests would be unsignalled.
    #[error(
        "{run} requests in a row are unsignalled, and a queue of {depth} would never be freed; signal at least every {depth}th"
    )]
    NeverSignaled {
        /// Unsignalled requests since the last signalled one.
        run: u32,
        /// The queue's depth.
        depth: u32,
    },
    /// The remote range ends before the local list does.
    #[error(
        "{len} bytes, but the remote range has {room}; shorten the list, or have the peer give a longer range"
    )]
    RemoteTooShort {
        /// Bytes of the local list.
        len: u64,
        /// Bytes of the remote range.
        room: u64,
    },
    /// The word of an atomic operation is not aligned.
    #[error("an atomic needs an address aligned to 8 bytes, and {addr:#x} is not")]
    Misaligned {
        /// Address at the peer.
        addr: u64,
    },
}

/// The error of a refused request, which gives the request back with everything that it owns.
pub struct Refused<R> {
    /// The request, as it was given.
    pub request: R,
    /// The reason.
    pub error: PostRefusal,
}

impl<R> fmt::Debug for Refused<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}
impl<R> fmt::Display for Refused<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}
impl<R> std::error::Error for Refused<R> {}
impl<R> From<Refused<R>> for PostRefusal {
    fn from(refused: Refused<R>) -> Self {
        refused.error
    }
}

/// The error of a failed completion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WcError {
    /// The request's id.
    pub id: u64,
    /// The queue pair.
    pub qp: QpHandle,
    /// The operation.
    pub opcode: WcOpcode,
    /// The status.
    pub status: WcStatus,
    /// The device's own number for the failure, 0 if it has none ([`Completion::vendor_code`]).
    ///
    /// [`Completion::vendor_code`]: hca_core::Completion::vendor_code
    pub vendor_code: u8,
}

impl WcError {
    /// The remedy, for a program or its author.
    pub const fn advice(&self) -> &'static str {
        match self.status {
            WcStatus::Success => "nothing is wrong",
            WcStatus::LocalLength => "post receive buffers as long as the longest message",
            WcStatus::LocalProtection => {
                "check that the memory belongs to the queue pair's protection domain, and is still registered with the right that the operation needs"
            }
            WcStatus::WrFlushed => {
                "an earlier completion of this queue pair, or an asynchronous event, says what went wrong; build a new queue pair to go on"
            }
            WcStatus::RemoteInvalidRequest => {
                "check that the peer's receive buffers are long enough, that it allows READs and atomics, and that both ends have the same path MTU"
            }
            WcStatus::RemoteAccess => {
                "check the remote range, its key, and the rights that the peer gave them"
            }
            WcStatus::RemoteOperation => "see the peer's completions: one of them failed",
            WcStatus::RetryExceeded => {
                "check that the peer is alive, connected back, and reachable (UDP port 4791), or raise timeout and retry_cnt"
            }
            WcStatus::RnrRetryExceeded => "have the peer post more receive requests, or raise rnr_retry",
            _ => "move the queue pair to the error state and build a new one",
        }
    }
}

impl fmt::Display for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, qp, opcode, status, vendor_code } = self;
        write!(f, "{opcode:?} request {id} of queue pair {qp}: {status}; ")?;
        if *vendor_code != 0 {
            write!(f, "vendor code {vendor_code}; ")?;
        }
        f.write_str(self.advice())
    }
}
impl std::error::Error for WcError {}

/// An error of an exchange of endpoints over a stream.
#[derive(Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The stream ended or failed.
    #[error("exchanging endpoints: {0}; do both ends call `exchange` on the same stream?")]
    Io(#[from] std::io::Error),
    /// The far end sent text that is not an endpoint.
    #[error("exchanging endpoints: {0}")]
    Parse(#[from] ParseEndpointError),
}

/// A line that is no [`Endpoint`](crate::Endpoint).
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "not an endpoint: {what} is missing or malformed; the form is rc,qpn=0x12,psn=0x3,mtu=1024,rd=16,gid=::ffff:127.0.0.1"
)]
pub struct ParseEndpointError {
    /// The field.
    pub what: &'static str,
}
