//! The reasons for which a call is refused.

use crate::atomic::{AtomicOp, Datatype};

/// The reason why a call was refused; nothing has changed then. Where an argument is at fault, it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A handle of something freed, or one that was never given out.
    #[error("{argument} names nothing that is there")]
    Handle {
        /// The argument.
        argument: &'static str,
    },
    /// No portal is allocated there.
    #[error("portal {pt_index} is not allocated")]
    PtIndex {
        /// The index that was given.
        pt_index: u32,
    },
    /// The portal that was asked for is allocated already.
    #[error("portal {pt_index} is in use")]
    PtInUse {
        /// The index that was asked for.
        pt_index: u32,
    },
    /// All portals are allocated.
    #[error("all {limit} portals are allocated")]
    PtFull {
        /// The number.
        limit: u32,
    },
    /// Flow control tells of itself by an event.
    #[error("a portal with flow control needs an event queue")]
    PtEqNeeded,
    /// A limit of the interface is reached.
    #[error("the interface holds no more than {limit} {what}")]
    NoSpace {
        /// Of what.
        what: &'static str,
        /// How many it holds.
        limit: u32,
    },
    /// The list is as long as lists get.
    #[error("a list holds no more than {limit} entries")]
    ListTooLong {
        /// How many it holds.
        limit: u32,
    },
    /// Something is still under way, or still refers to it.
    #[error("{argument} is in use: {pending} operations, entries or headers still need it")]
    InUse {
        /// The argument.
        argument: &'static str,
        /// How many need it.
        pending: u32,
    },
    /// A number beyond what it may be.
    #[error("{argument} is {value}, and may be {limit} at most")]
    TooLarge {
        /// The argument.
        argument: &'static str,
        /// The given value.
        value: u64,
        /// What would do.
        limit: u64,
    },
    /// Offset and length name bytes that the memory descriptor does not have.
    #[error("{argument} and length name bytes {offset} to {offset}+{length} of {available}")]
    Range {
        /// The offset's argument.
        argument: &'static str,
        /// The offset.
        offset: u64,
        /// The length.
        length: u64,
        /// The bytes that there are.
        available: u64,
    },
    /// The operation is not defined on the type, or not by this call, or not at this length.
    #[error("{op:?} on {ty:?} of {length} bytes is no operation of this call")]
    Atomic {
        /// The operation.
        op: AtomicOp,
        /// The elements' type.
        ty: Datatype,
        /// The bytes.
        length: u64,
    },
    /// Options that exclude each other, or the place where they are used.
    #[error("{argument}: {why}")]
    Options {
        /// The argument.
        argument: &'static str,
        /// What excludes what.
        why: &'static str,
    },
    /// The memory descriptor takes no more operations.
    #[error("{argument} is inactive")]
    Inactive {
        /// The argument.
        argument: &'static str,
    },
    /// The event queue of a conditional update was not empty.
    #[error("the update was not made: {argument} is not empty")]
    NoUpdate {
        /// The argument.
        argument: &'static str,
    },
    /// A count that is both of successes and of failures, or not a number.
    #[error("{argument} counts both successes and failures")]
    Increment {
        /// The argument.
        argument: &'static str,
    },
    /// Waiting was ended by [`Interface::abort`](crate::Interface::abort).
    #[error("waiting was aborted")]
    Aborted,
}
