//! Checkers: models of the guarantees, which take a program's posts and observations.
//!
//! They do not depend on the simulation, so that a program on a real adapter may use them as well. Each returns a
//! [`Breach`] that names the violated guarantee; [`Sim::violation`](crate::Sim::violation) adds the seed, the time and
//! the events.

mod deliveries;
mod ledger;
mod shadow;

use hca_core::WcStatus;
use thiserror::Error;

pub use deliveries::{Datagrams, Stream, fingerprint};
pub use ledger::{Ended, Ledger, Order};
pub use shadow::Shadow;

/// A guarantee that was violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Breach {
    /// A completion for a request that is not outstanding.
    #[error(
        "a completion ({status:?}) for request {wr_id:#x}, which is not outstanding: never posted, or completed already"
    )]
    Unknown {
        /// The id of the completed request.
        wr_id: u64,
        /// The status.
        status: WcStatus,
    },
    /// A completion before that of an earlier request.
    #[error("request {wr_id:#x} completed ({status:?}) before the earlier request {earlier:#x}")]
    OutOfOrder {
        /// The id of the completed request.
        wr_id: u64,
        /// The status.
        status: WcStatus,
        /// The id of the request that should have completed.
        earlier: u64,
    },
    /// A request that asked for no completion got one although it succeeded.
    #[error("request {wr_id:#x} is not signalled, but its success was completed")]
    NotSignaled {
        /// The id of the completed request.
        wr_id: u64,
    },
    /// A later request than a failed one was not flushed.
    #[error(
        "request {wr_id:#x} completed as {status:?} after a failure ({first:?}); it should have been flushed"
    )]
    NotFlushed {
        /// The id of the completed request.
        wr_id: u64,
        /// The status.
        status: WcStatus,
        /// The failure.
        first: WcStatus,
    },
    /// Requests that never completed.
    #[error("{count} requests never completed; the oldest is {wr_id:#x}")]
    Unfinished {
        /// The id of the oldest request.
        wr_id: u64,
        /// The number of requests.
        count: usize,
    },
    /// A request came back that is not outstanding.
    #[error("request {wr_id:#x} came back, but is not outstanding: never posted, completed, or back already")]
    NotHeld {
        /// The id of the request.
        wr_id: u64,
    },
    /// A message arrived that is not the next one.
    #[error("message {number} of the stream was expected, but {found}")]
    WrongMessage {
        /// Number of the message that is due, from 0.
        number: u64,
        /// The message that arrived instead.
        found: Found,
    },
    /// A message was acknowledged that did not arrive.
    #[error("message {number} was acknowledged, but only {arrived} have arrived")]
    NotDelivered {
        /// Number of the message, from 0.
        number: u64,
        /// Messages that arrived.
        arrived: u64,
    },
    /// A datagram arrived that was never sent with these bytes.
    #[error("a message arrived that was never sent like this (bytes, length or immediate data differ)")]
    NeverSent,
    /// A datagram arrived more often than it may.
    #[error("a message that was sent {sent} times arrived {arrived} times")]
    TooOften {
        /// Times that it was sent.
        sent: u64,
        /// Times that it arrived.
        arrived: u64,
    },
    /// A message arrived behind a later one, though the network keeps the order.
    #[error(
        "message {number} arrived, but message {last} arrived before it, and the network keeps the order"
    )]
    Overtaken {
        /// Number of the message, from 0.
        number: u64,
        /// Number of the latest that arrived.
        last: u64,
    },
    /// A byte of memory has a wrong value.
    #[error("byte {at:#x} of the memory is {found:#04x} and should be {expected:#04x}")]
    Memory {
        /// The byte's offset.
        at: usize,
        /// The expected value.
        expected: u8,
        /// The found value.
        found: u8,
    },
}

/// The message that arrived instead of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Found {
    /// An earlier message, again.
    #[error("message {0} arrived again")]
    Again(u64),
    /// A later message.
    #[error("message {0} arrived: those between are lost or overtaken")]
    Later(u64),
    /// A message that was never sent.
    #[error("what arrived was never sent like this (bytes, length or immediate data differ)")]
    Other,
}
