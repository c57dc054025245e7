//! Events of 3.3, with every field that the interface defines.

use hca_matching::{Event as Raw, EventKind as RawKind, Jid, NiFail, Region, Uid};

use super::error::ReturnCode;
use super::handle::{MdHandle, NiHandle, ProcessId};
use super::md::MdState;

/// The kind of an event (`ptl_event_kind_t`, `PTL_EVENT_*`), in the C interface's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A get began at this target.
    GetStart,
    /// A get ended at this target: its bytes have left.
    GetEnd,
    /// A put began at this target: its place is reserved, and its bytes may still be arriving.
    PutStart,
    /// A put ended at this target: its bytes are in memory.
    PutEnd,
    /// An exchange began at this target.
    GetPutStart,
    /// An exchange ended at this target.
    GetPutEnd,
    /// The first bytes of a reply arrive.
    ReplyStart,
    /// A reply's bytes are in memory.
    ReplyEnd,
    /// Sending began.
    SendStart,
    /// The sent memory may be changed again.
    SendEnd,
    /// A put was acknowledged.
    Ack,
    /// A used-up descriptor was unlinked, and no operation on its memory is under way.
    Unlink,
}

impl EventKind {
    fn of(kind: RawKind) -> Self {
        match kind {
            RawKind::GetStart => Self::GetStart,
            RawKind::GetEnd => Self::GetEnd,
            RawKind::PutStart => Self::PutStart,
            RawKind::PutEnd => Self::PutEnd,
            RawKind::GetPutStart => Self::GetPutStart,
            RawKind::GetPutEnd => Self::GetPutEnd,
            RawKind::ReplyStart => Self::ReplyStart,
            RawKind::ReplyEnd => Self::ReplyEnd,
            RawKind::SendStart => Self::SendStart,
            RawKind::SendEnd => Self::SendEnd,
            RawKind::Ack => Self::Ack,
            RawKind::Unlink => Self::Unlink,
            of_v4 => unreachable!("an interface of 3.3 tells no {of_v4:?}"),
        }
    }
}

/// An event of an event queue (`ptl_event_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind (`type`).
    pub kind: EventKind,
    /// The other process of the operation: at the target the initiator, at the initiator the target.
    pub initiator: ProcessId,
    /// The initiator's user; 0 at the initiator.
    pub uid: Uid,
    /// The initiator's job; 0 at the initiator.
    pub jid: Jid,
    /// The target's portal.
    pub pt_index: u32,
    /// The message's match bits.
    pub match_bits: u64,
    /// Bytes asked for.
    pub rlength: u64,
    /// Bytes that are moved.
    pub mlength: u64,
    /// The offset in the descriptor's memory; for `SEND_*` the offset requested at the target, for `ACK` the offset
    /// used there.
    pub offset: u64,
    /// The descriptor.
    pub md_handle: MdHandle,
    /// The values of the descriptor right after this event.
    pub md: MdState,
    /// The message's 64 bits.
    pub hdr_data: u64,
    /// The operation's number, the same in all events of one operation, and in the `UNLINK` event if the operation used
    /// the descriptor up.
    pub link: u64,
    /// The result.
    pub ni_fail_type: NiFail,
    /// The event's number in its queue; lost events are counted, too.
    pub sequence: u64,
}

/// An event that was taken from a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    /// The event.
    pub event: Event,
    /// Whether events before this one were lost, because the queue had no room. Each loss is reported once.
    pub dropped: bool,
}

impl Got {
    /// `PTL_OK`, or `PTL_EQ_DROPPED` if events before it were lost.
    pub fn code(&self) -> ReturnCode {
        if self.dropped { ReturnCode::EqDropped } else { ReturnCode::Ok }
    }
    pub(super) fn of(ni: NiHandle, got: hca_matching::Got, md: &Region) -> Self {
        let kind = EventKind::of(got.event.kind);
        let Raw { uid, jid, pt_index, match_bits, rlength, mlength, hdr_data, .. } = got.event;
        let Raw { link, fail, sequence, start, remote_offset, offset, .. } = got.event;
        let (mlength, offset) = match kind {
            EventKind::SendStart | EventKind::SendEnd => (rlength, remote_offset),
            EventKind::ReplyStart | EventKind::ReplyEnd => (mlength, start.wrapping_sub(md.start)),
            _ => (mlength, offset),
        };
        let event = Event {
            kind,
            initiator: ProcessId::of(got.event.initiator),
            uid,
            jid,
            pt_index,
            match_bits,
            rlength,
            mlength,
            offset,
            md_handle: MdHandle { ni, raw: got.event.md.expect("events of 3.3 are a descriptor's") },
            md: MdState::of(ni, md),
            hdr_data,
            link,
            ni_fail_type: fail,
            sequence,
        };
        Self { event, dropped: got.dropped }
    }
}
