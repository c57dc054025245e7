//! Asynchronous errors, which no descriptor reports, and their handler.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::{ViId, lock};

/// The kind of an asynchronous error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The connection has ended: the peer disconnected, failed, or does not answer (`VIP_ERROR_CONN_LOST`).
    ConnectionLost,
    /// A message came to a reliable VI, and found no receive descriptor, which ended the connection
    /// (`VIP_ERROR_RECVQ_EMPTY`).
    ReceiveQueueEmpty,
    /// A descriptor failed on a reliable VI, or as the device carried it out, which ended the connection
    /// (`VIP_ERROR_POST_DESC`).
    Descriptor,
    /// A completion queue has lost a completion, since the program did not take the others (`VIP_ERROR_VI_OVERRUN`).
    Overrun,
    /// The peer's RDMA WRITE was refused, which ended the connection (`VIP_ERROR_RDMAW_PROT`). Adapters that do not tell
    /// which of the two was refused say this of an RDMA READ as well.
    WriteProtection,
    /// The peer's RDMA READ was refused, which ended the connection (`VIP_ERROR_RDMAR_PROT`).
    ReadProtection,
    /// The device has failed for good, which ended the connection (`VIP_ERROR_CATASTROPHIC`). Each VI with descriptors
    /// that the device had is told.
    Catastrophic,
}

/// An asynchronous error of a VI, for the error handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncError {
    /// The kind.
    pub kind: ErrorKind,
    /// The VI.
    pub vi: ViId,
}

impl fmt::Display for AsyncError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            ErrorKind::ConnectionLost => "the connection is lost",
            ErrorKind::Descriptor => "a descriptor failed, which ended the connection",
            ErrorKind::Overrun => "its completion queue is full, and has lost a completion",
            ErrorKind::ReceiveQueueEmpty => {
                "a message found no receive descriptor, which ended the connection: post as many as the peer sends"
            }
            ErrorKind::WriteProtection => "the peer's RDMA WRITE was refused, which ended the connection",
            ErrorKind::Catastrophic => "the device has failed: close the adapter, and open it again",
            ErrorKind::ReadProtection => "the peer's RDMA READ was refused, which ended the connection",
        };
        write!(f, "{}: {what}", self.vi)
    }
}

/// A handler of asynchronous errors.
pub type ErrorHandler = Arc<dyn Fn(&AsyncError) + Send + Sync>;

/// The error handler of an adapter.
#[derive(Default)]
pub(crate) struct Handlers(Mutex<Option<ErrorHandler>>);

impl Handlers {
    pub(crate) fn set(&self, handler: Option<ErrorHandler>) {
        let before = std::mem::replace(&mut *lock::lock(&self.0), handler);
        // Without the lock: with the earlier handler goes what it holds.
        drop(before);
    }
    /// Calls the handler, without a lock.
    pub(crate) fn raise(&self, error: &AsyncError) {
        let handler = lock::lock(&self.0).clone();
        match handler {
            Some(handler) => handler(error),
            None => tracing::error!("{error}"),
        }
    }
}
