//! The header of a message at its target, and the response to the initiator.

use crate::atomic::{AtomicOp, Datatype};
use crate::{Jid, ListKind, Process, Uid};

/// The header of a message as the target sees it, independent of the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The operation.
    pub operation: Operation,
    /// The acknowledgement that it asks for.
    pub ack: AckRequest,
    /// The initiating process.
    pub initiator: Process,
    /// The user, as reported by the trusted layers below.
    pub uid: Uid,
    /// The job, as reported by the trusted layers below.
    pub jid: Jid,
    /// The portal.
    pub pt_index: u32,
    /// The index of the access control list that the message names (3.3).
    pub ac_index: u32,
    /// The match bits.
    pub match_bits: u64,
    /// The offset in the target's memory, unless the offset is managed locally.
    pub remote_offset: u64,
    /// Bytes asked for or sent.
    pub length: u64,
    /// 64 bits for the target's event.
    pub hdr_data: u64,
}

impl Default for Header {
    /// A put of no bytes to portal 0.
    fn default() -> Self {
        Self {
            operation: Operation::Put,
            ack: AckRequest::None,
            initiator: Process::default(),
            uid: Uid(0),
            jid: Jid(0),
            pt_index: 0,
            ac_index: 0,
            match_bits: 0,
            remote_offset: 0,
            length: 0,
            hdr_data: 0,
        }
    }
}

/// The operations of both interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Bytes go to the target.
    Put,
    /// Bytes come from the target.
    Get,
    /// The target's bytes are combined with the message's.
    Atomic(AtomicOp, Datatype),
    /// The target's bytes are combined with the message's, and the initiator gets the old bytes.
    FetchAtomic(AtomicOp, Datatype),
    /// Bytes are exchanged, always or on a condition, or under a mask.
    Swap(AtomicOp, Datatype),
    /// Bytes are exchanged (3.3).
    GetPut,
}

impl Operation {
    /// Whether bytes go back to the initiator.
    pub const fn replies(self) -> bool {
        matches!(self, Self::Get | Self::FetchAtomic(..) | Self::Swap(..) | Self::GetPut)
    }
    /// Whether the target's bytes may change.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Get)
    }
    /// The atomic operation and the type of its elements, for operations that have them.
    pub const fn atomic(self) -> Option<(AtomicOp, Datatype)> {
        match self {
            Self::Atomic(op, ty) | Self::FetchAtomic(op, ty) | Self::Swap(op, ty) => Some((op, ty)),
            Self::Put | Self::Get | Self::GetPut => None,
        }
    }
    /// Whether the operation's kind, its elements' type and a length go together.
    pub fn is_legal(self, length: u64) -> bool {
        let (legal, ty, one) = match self {
            Self::Put | Self::Get | Self::GetPut => return true,
            Self::Atomic(op, ty) | Self::FetchAtomic(op, ty) => (!op.is_swap() && op.takes(ty), ty, false),
            Self::Swap(op, ty) => (op.is_swap() && op.takes(ty), ty, op.needs_operand()),
        };
        let size = ty.size_bytes() as u64;
        legal && length.is_multiple_of(size) && (!one || length <= size)
    }
}

/// The acknowledgement that an initiator asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AckRequest {
    /// No acknowledgement.
    #[default]
    None,
    /// An acknowledgement with all fields, for an event.
    Full,
    /// An acknowledgement that is only counted.
    Count,
    /// An acknowledgement that reports only the end of the operation, and not its result.
    Complete,
}

/// The result of an operation (`ni_fail_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NiFail {
    /// The operation succeeded.
    #[default]
    Ok = 0,
    /// The target can't be reached.
    Undeliverable = 1,
    /// The target dropped the message: no entry takes it.
    Dropped = 2,
    /// The portal is disabled, or was disabled by this message.
    PtDisabled = 3,
    /// The initiator lacks the right.
    PermViolation = 4,
    /// The entry or the interface does not allow the operation.
    OpViolation = 5,
    /// A search found nothing.
    NoMatch = 6,
    /// The memory can't be accessed.
    Segv = 7,
}

/// The response to the initiator of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the initiator may wait for it"]
pub struct Response {
    /// The form of the response.
    pub kind: ResponseKind,
    /// The result of the operation.
    pub fail: NiFail,
    /// The bytes that the operation moved; 0 if it failed.
    pub mlength: u64,
    /// The offset in the target's memory.
    pub offset: u64,
    /// The list whose entry took the message.
    pub list: ListKind,
}

/// The form of a [`Response`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResponseKind {
    /// Nothing is sent.
    None,
    /// An acknowledgement with all fields.
    Ack,
    /// An acknowledgement that is only counted.
    CountAck,
    /// An acknowledgement that the operation is over.
    CompleteAck,
    /// The reply: [`Response::mlength`] bytes of the target's memory, as they were before the operation.
    Reply,
}

impl Header {
    /// The response to this message where nothing takes it, for callers that have no [`Interface`](crate::Interface)
    /// for it.
    pub fn refused(&self, fail: NiFail) -> Response {
        self.response(fail, 0, 0, ListKind::Priority, false)
    }
    /// The response to this message, if its target does not keep it back.
    pub(crate) fn response(
        &self,
        fail: NiFail,
        mlength: u64,
        offset: u64,
        list: ListKind,
        ack_disabled: bool,
    ) -> Response {
        let kind = match self.ack {
            _ if self.operation.replies() => ResponseKind::Reply,
            _ if ack_disabled => ResponseKind::None,
            AckRequest::None => ResponseKind::None,
            AckRequest::Full => ResponseKind::Ack,
            AckRequest::Count => ResponseKind::CountAck,
            // It says that the operation is over, not how.
            AckRequest::Complete => {
                let (kind, list) = (ResponseKind::CompleteAck, ListKind::Priority);
                return Response { kind, fail: NiFail::Ok, mlength: 0, offset: 0, list };
            }
        };
        Response { kind, fail, mlength, offset, list }
    }
}
