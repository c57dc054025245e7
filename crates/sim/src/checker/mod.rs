//! Checkers: models of what must hold, fed with what a program posted and saw.
//!
//! They know nothing of the simulation, so that a program on a real adapter may use them as well. Each
//! returns a [`Breach`] that says what was broken; [`Sim::violation`](crate::Sim::violation) adds the
//! seed, the time and the events.

mod deliveries;
mod ledger;
mod shadow;

use hca_core::WcStatus;
use thiserror::Error;

pub use deliveries::{Datagrams, Stream, fingerprint};
pub use ledger::{Ended, Ledger, Order};
pub use shadow::Shadow;

/// A promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Breach {
    /// A completion for a request that is not outstanding.
    #[error(
        "a completion ({status:?}) for request {wr_id:#x}, which is not outstanding: never posted, or completed already"
    )]
    Unknown {
        /// As completed.
        wr_id: u64,
        /// The status.
        status: WcStatus,
    },
    /// A completion before that of an earlier request.
    #[error("request {wr_id:#x} completed ({status:?}) before the earlier request {earlier:#x}")]
    OutOfOrder {
        /// As completed.
        wr_id: u64,
        /// The status.
        status: WcStatus,
        /// Which should have completed.
        earlier: u64,
    },
    /// A request that asked for no completion got one although it succeeded.
    #[error("request {wr_id:#x} is not signalled, but its success was completed")]
    NotSignaled {
        /// As completed.
        wr_id: u64,
    },
    /// After a failure every later request is flushed.
    #[error(
        "request {wr_id:#x} completed as {status:?} after a failure ({first:?}); it should have been flushed"
    )]
    NotFlushed {
        /// As completed.
        wr_id: u64,
        /// The status.
        status: WcStatus,
        /// The failure.
        first: WcStatus,
    },
    /// Requests that never completed.
    #[error("{count} requests never completed; the oldest is {wr_id:#x}")]
    Unfinished {
        /// The oldest.
        wr_id: u64,
        /// The number.
        count: usize,
    },
    /// A message arrived that is not the next one.
    #[error("message {number} of the stream was expected, but {found}")]
    WrongMessage {
        /// Number of the message that is due, from 0.
        number: u64,
        /// What arrived instead.
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
    /// A datagram that nobody sent, or with other bytes.
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
    /// A byte changed that nobody may change, or is not what it should be.
    #[error("byte {at:#x} of the memory is {found:#04x} and should be {expected:#04x}")]
    Memory {
        /// Offset.
        at: usize,
        /// What it should be.
        expected: u8,
        /// The kind.
        found: u8,
    },
}

/// What arrived instead of the message that was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Found {
    /// An earlier message, again.
    #[error("message {0} arrived again")]
    Again(u64),
    /// A later message.
    #[error("message {0} arrived: those between are lost or overtaken")]
    Later(u64),
    /// None that was sent.
    #[error("what arrived was never sent like this (bytes, length or immediate data differ)")]
    Other,
}
