//! Errors of global memory.

use hca_am::Reason;
use hca_job::JobError;

/// The error of an access or a collective.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A process of the job is gone, or does not answer.
    #[error("process {rank} is gone, or does not answer")]
    Lost {
        /// The process.
        rank: usize,
    },
    /// No process has this rank.
    #[error("process {rank} is none of the {size} of the job")]
    Rank {
        /// The rank.
        rank: usize,
        /// The number of processes.
        size: usize,
    },
    /// Elements outside of an array.
    #[error("elements {first} to {end} are not in an array of {len}")]
    Bounds {
        /// The first of them.
        first: usize,
        /// The one behind the last.
        end: usize,
        /// The elements that each process has.
        len: usize,
    },
    /// The memory of the processes has no room for an array.
    #[error("{asked} bytes are asked for, and {left} are left: start the job with more memory")]
    Room {
        /// The bytes of the array.
        asked: usize,
        /// The bytes that are left.
        left: usize,
    },
    /// An element that is too large for a message.
    #[error("an element of {len} bytes is too large: use the bulk calls")]
    Element {
        /// Its bytes.
        len: usize,
    },
    /// A value was asked for before the sync that fetches it.
    #[error("the value has not come: call sync first, or poll until outstanding is 0")]
    NotSynced,
    /// A procedure that a process has not registered.
    #[error(
        "process {rank} has not registered the procedure: all register it in the same order, before a barrier"
    )]
    Procedure {
        /// The process.
        rank: usize,
    },
    /// Processes that differ in an argument of a collective.
    #[error("process {rank} calls another collective, or with other sizes")]
    Mismatch {
        /// The process.
        rank: usize,
    },
    /// A message came back.
    #[error("a message to process {rank} came back: {reason}")]
    Returned {
        /// The process.
        rank: usize,
        /// The reason.
        reason: Reason,
    },
    /// Active Messages failed.
    #[error(transparent)]
    Am(#[from] hca_am::Error),
    /// The job failed.
    #[error(transparent)]
    Job(#[from] JobError),
}
