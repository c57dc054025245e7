//! Asynchronous events: what no completion can tell.

use crate::{CqHandle, QpHandle, SrqHandle};

/// An event of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion was lost because its queue was full; the queue pairs on it are in error.
    CqOverrun(CqHandle),
    /// A packet arrived on a queue pair that waits in RTR: the peer has connected.
    CommEstablished(QpHandle),
    /// The send queue is empty after a transition to SQD.
    SqDrained(QpHandle),
    /// A queue pair on a shared receive queue took its last request before going to error.
    LastWqeReached(QpHandle),
    /// A queue pair found an error that no work request can report; it is in error.
    QpFatal(QpHandle),
    /// A peer sent a malformed request; the queue pair is in error.
    QpRequestError(QpHandle),
    /// A peer was refused access; the queue pair is in error.
    QpAccessError(QpHandle),
    /// A shared receive queue has fewer requests than its limit; the limit is disarmed.
    SrqLimitReached(SrqHandle),
    /// The port carries packets.
    PortActive,
    /// The port does not carry packets.
    PortError,
    /// The device is unusable; every outstanding request ends with status `Fatal`.
    DeviceFatal,
}
