//! The reasons why a call is refused.

use crate::atomic::{AtomicOp, Datatype};

/// The reason why a call was refused; nothing has changed then. Where an argument is at fault, it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The handle belongs to a freed object, or was never given out.
    #[error("{argument} names nothing that is there")]
    Handle {
        /// The argument.
        argument: &'static str,
    },
    /// No portal is allocated at this index.
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
    /// Flow control needs an event queue, because it reports by an event.
    #[error("a portal with flow control needs an event queue")]
    PtEqNeeded,
    /// A limit of the interface is reached.
    #[error("the interface holds no more than {limit} {what}")]
    NoSpace {
        /// The objects that are limited.
        what: &'static str,
        /// How many it holds.
        limit: u32,
    },
    /// The list has the maximum length.
    #[error("a list holds no more than {limit} entries")]
    ListTooLong {
        /// How many it holds.
        limit: u32,
    },
    /// Operations on the object are under way, or other objects refer to it.
    #[error("{argument} is in use: {pending} operations, entries or headers still need it")]
    InUse {
        /// The argument.
        argument: &'static str,
        /// The number of users.
        pending: u32,
    },
    /// A number exceeds its limit.
    #[error("{argument} is {value}, and may be {limit} at most")]
    TooLarge {
        /// The argument.
        argument: &'static str,
        /// The given value.
        value: u64,
        /// The largest allowed value.
        limit: u64,
    },
    /// Offset and length exceed the memory descriptor.
    #[error("{argument} and length name bytes {offset} to {offset}+{length} of {available}")]
    Range {
        /// The offset's argument.
        argument: &'static str,
        /// The offset.
        offset: u64,
        /// The length.
        length: u64,
        /// The bytes of the memory descriptor.
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
    /// The options exclude each other, or are not allowed in this call.
    #[error("{argument}: {why}")]
    Options {
        /// The argument.
        argument: &'static str,
        /// The conflict between the options.
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
    /// A count has both successes and failures, or is not a number.
    #[error("{argument} counts both successes and failures")]
    Increment {
        /// The argument.
        argument: &'static str,
    },
    /// The wait was ended by [`Interface::abort`](crate::Interface::abort).
    #[error("waiting was aborted")]
    Aborted,
}
