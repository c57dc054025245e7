//! Errors of calls, and the reasons for which messages come back.

use std::time::Duration;

use hca_cm::ConnectionError;
use hca_verbs::{BuildError, ConnectError, DeviceError, MemoryError};

/// The reason for which a message came back to the error handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// An argument is wrong (`EBADARGS`).
    BadArgs,
    /// The index of the translation table is not mapped (`EBADENTRY`).
    BadEntry,
    /// The tag is not the endpoint's (`EBADTAG`).
    BadTag,
    /// The endpoint has no such handler (`EBADHANDLER`).
    BadHandler,
    /// The range begins beyond the endpoint's segment (`EBADSEGOFF`).
    BadSegmentOffset,
    /// The message is too long (`EBADLENGTH`).
    BadLength,
    /// There is no such endpoint (`EBADENDPOINT`).
    BadEndpoint,
    /// The receiver has no room (`ECONGESTION`).
    Congestion,
    /// The peer does not answer, or has gone (`EUNREACHABLE`).
    Unreachable,
    /// A reply was refused (`EREPLYREJECTED`).
    ReplyRejected,
    /// The handler has panicked.
    HandlerPanicked,
}

const REASONS: [Reason; 11] = [
    Reason::BadArgs,
    Reason::BadEntry,
    Reason::BadTag,
    Reason::BadHandler,
    Reason::BadSegmentOffset,
    Reason::BadLength,
    Reason::BadEndpoint,
    Reason::Congestion,
    Reason::Unreachable,
    Reason::ReplyRejected,
    Reason::HandlerPanicked,
];

impl Reason {
    /// Its number on the wire, which is that of the C interface up to `EREPLYREJECTED`.
    pub fn code(self) -> u16 {
        self as u16 + 1
    }
    pub(crate) fn of_code(code: u16) -> Option<Self> {
        REASONS.get(usize::from(code).checked_sub(1)?).copied()
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::BadArgs => "an argument is wrong",
            Self::BadEntry => "the index is not mapped",
            Self::BadTag => "the tag is not that of the endpoint",
            Self::BadHandler => "the endpoint has no such handler",
            Self::BadSegmentOffset => "the range is not in the segment",
            Self::BadLength => "the message is too long",
            Self::BadEndpoint => "there is no such endpoint",
            Self::Congestion => "the receiver has no room",
            Self::Unreachable => "the peer does not answer, or has gone",
            Self::ReplyRejected => "the reply has no handler",
            Self::HandlerPanicked => "the handler has panicked",
        })
    }
}

/// The error of a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// More arguments than a message has.
    #[error("a message has up to {max} arguments, not {count}")]
    Args {
        /// The arguments of the call.
        count: usize,
        /// The most.
        max: usize,
    },
    /// No endpoint of the bundle.
    #[error("the bundle has no such endpoint")]
    Endpoint,
    /// An index of the translation table that is not mapped, or is beyond the table.
    #[error("index {index} of the translation table is not mapped, or is beyond its {len} entries")]
    Index {
        /// The index.
        index: usize,
        /// The entries of the table.
        len: usize,
    },
    /// A handler beyond the table, or 0, which is the error handler.
    #[error("handler {handler} is not in 1..{len}")]
    Handler {
        /// The handler.
        handler: u16,
        /// The entries of the table.
        len: usize,
    },
    /// A payload that is too long.
    #[error("{len} bytes are more than the peer takes: {max}")]
    Length {
        /// The bytes.
        len: usize,
        /// The most.
        max: usize,
    },
    /// A range outside of a segment.
    #[error("{len} bytes at {offset} do not lie in the segment of {segment} bytes")]
    Segment {
        /// The first byte.
        offset: u64,
        /// The bytes.
        len: u64,
        /// The bytes of the segment.
        segment: u64,
    },
    /// The device can not run handlers, or the bundle does not stand on verbs.
    #[error(
        "the device has no engine for handlers: that takes a bundle over verbs, and a device that runs engines"
    )]
    NoEngine,
    /// There is no credit: the call would have to wait.
    #[error("all credits for requests to this peer are in use: poll, and call again")]
    NotSent,
    /// The peer does not answer, or has gone.
    #[error("the peer does not answer, or has gone: unmap the index")]
    Unreachable,
    /// The message is a reply, which has no reply.
    #[error("a reply has no reply")]
    NotARequest,
    /// The call was made by a handler, which may only reply.
    #[error("a handler may only reply")]
    InHandler,
    /// An object is in use.
    #[error("{what} in use: {users}")]
    InUse {
        /// The object.
        what: &'static str,
        /// Its users.
        users: usize,
    },
    /// An option is out of its range, or a limit is reached.
    #[error("{what}: at most {max}")]
    Limit {
        /// The limited resource.
        what: &'static str,
        /// The most.
        max: usize,
    },
    /// No endpoint of the bundle has an event mask, so that a wait would have no end.
    #[error("no endpoint of the bundle asks for events")]
    NoEvents,
    /// A name of the other way below, or a text that is none.
    #[error("the name is none of an endpoint of {0}")]
    Name(&'static str),
    /// Nothing happened in time.
    #[error("nothing happened within {0:?}")]
    TimedOut(Duration),
    /// RDMA CM failed.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// A call of the VI Architecture failed.
    #[error(transparent)]
    Via(#[from] hca_via::Error),
    /// The device has no more registered memory for messages.
    #[error("the device has no more memory for messages of the program's bytes: free some, and call again")]
    NoMemory,
    /// Memory was refused.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A queue pair could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The queue pair could not be changed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The system refused to start a thread, or to wait.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// A return code of the C interface other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReturnCode {
    /// `AM_ERR_BAD_ARG`.
    BadArg,
    /// `AM_ERR_RESOURCE`.
    Resource,
    /// `AM_ERR_NOT_SENT`.
    NotSent,
    /// `AM_ERR_IN_USE`.
    InUse,
}

impl Error {
    /// The return code of the C interface for the error.
    pub fn code(&self) -> ReturnCode {
        match self {
            Self::Args { .. }
            | Self::Endpoint
            | Self::Index { .. }
            | Self::Handler { .. }
            | Self::Length { .. }
            | Self::Segment { .. }
            | Self::NotARequest
            | Self::InHandler
            | Self::NoEvents
            | Self::Name(_) => ReturnCode::BadArg,
            Self::NotSent | Self::Unreachable => ReturnCode::NotSent,
            Self::InUse { .. } => ReturnCode::InUse,
            _ => ReturnCode::Resource,
        }
    }
}
