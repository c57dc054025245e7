//! The requests of an initiator, to run at once or when a count is reached.

use bitflags::bitflags;

use crate::{AckRequest, CtHandle, EqHandle, MdHandle, Operation, Process};

bitflags! {
    /// The options of an initiator's memory descriptor (4.3).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MdOptions: u32 {
        /// [`Md::start`] names a vector of pieces. Only the caller uses it.
        const IOVEC = 1 << 0;
        /// Sent messages are counted.
        const EVENT_CT_SEND = 1 << 1;
        /// Replies are counted.
        const EVENT_CT_REPLY = 1 << 2;
        /// Acknowledgements are counted.
        const EVENT_CT_ACK = 1 << 3;
        /// Bytes are counted instead; failures are still counted one by one.
        const EVENT_CT_BYTES = 1 << 4;
        /// No event for a successful operation.
        const EVENT_SUCCESS_DISABLE = 1 << 5;
        /// No `Send` event.
        const EVENT_SEND_DISABLE = 1 << 6;
        /// Messages may overtake each other. Only the caller uses it.
        const UNORDERED = 1 << 7;
        /// The bytes may change as soon as the call returns. Only the caller uses it.
        const VOLATILE = 1 << 8;
        /// Messages may be lost. Only the caller uses it.
        const UNRELIABLE = 1 << 9;
    }
}

/// An initiator's memory descriptor (4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Md {
    /// The start address; the engine only adds offsets to it, for events.
    pub start: u64,
    /// The bytes.
    pub length: u64,
    /// The events of its operations.
    pub options: MdOptions,
    /// The queue of its events.
    pub eq: Option<EqHandle>,
    /// The counting event of its operations.
    pub ct: Option<CtHandle>,
}

/// A message that an initiator sends, with all arguments of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The action.
    pub operation: Operation,
    /// The memory that a put, an atomic or an exchange sends, or that receives a get's bytes.
    pub md: MdHandle,
    /// The offset in that memory.
    pub local_offset: u64,
    /// The memory descriptor and the offset for the bytes of a fetching operation.
    pub reply: Option<(MdHandle, u64)>,
    /// The number of bytes.
    pub length: u64,
    /// The acknowledgement that is wanted.
    pub ack: AckRequest,
    /// The target process.
    pub target: Process,
    /// The portal.
    pub pt_index: u32,
    /// The entry of its access control list (3.3).
    pub ac_index: u32,
    /// The match bits.
    pub match_bits: u64,
    /// The offset in the target's memory.
    pub remote_offset: u64,
    /// The user's value in the initiator's events (4.3).
    pub user_ptr: u64,
    /// 64 bits for the target's event.
    pub hdr_data: u64,
    /// The operand of a conditional swap, or the mask, in the first bytes.
    pub operand: [u8; 32],
}

/// Successes and failures, as a counting event holds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Count {
    /// The number of operations, or bytes, that succeeded.
    pub success: u64,
    /// The number of operations that failed.
    pub failure: u64,
}

/// An operation that waits for a count: put, get, atomic, fetching atomic, swap, increment, set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Triggered {
    /// A message is sent: [`Interface::fired`](crate::Interface::fired) returns it.
    Transfer(Transfer),
    /// A counting event is incremented.
    CtInc(CtHandle, Count),
    /// A counting event is set.
    CtSet(CtHandle, Count),
}
