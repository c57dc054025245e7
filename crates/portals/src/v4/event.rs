//! Events, and the results of taking one from a queue.

use hca_matching::atomic::{AtomicOp, Datatype};
use hca_matching::{self as engine, ListKind, NiFail, Process, Uid};

use super::ReturnCode;

/// The kind of an event, numbered as in the interface. (`PTL_EVENT_*`)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// A get read an entry's bytes.
    Get = 0,
    /// An appended entry matched a get that had arrived before.
    GetOverflow = 1,
    /// A put wrote an entry's bytes.
    Put = 2,
    /// An appended entry matched a put that had arrived before; the bytes are at [`start`](Event::start).
    PutOverflow = 3,
    /// An atomic operation without a reply was done on an entry's bytes.
    Atomic = 4,
    /// An appended entry matched such an operation that had arrived before.
    AtomicOverflow = 5,
    /// An atomic operation with a reply was done on an entry's bytes.
    FetchAtomic = 6,
    /// An appended entry matched such an operation that had arrived before.
    FetchAtomicOverflow = 7,
    /// A reply's bytes are in the memory descriptor.
    Reply = 8,
    /// The sent memory may be changed.
    Send = 9,
    /// An acknowledgement has arrived.
    Ack = 10,
    /// A portal with flow control ran out of a resource and was disabled.
    PtDisabled = 11,
    /// An entry was linked.
    Link = 12,
    /// An entry was used up and unlinked; no operation writes to its memory any more.
    AutoUnlink = 13,
    /// The memory of a used-up entry of the overflow list no longer holds bytes of waiting headers.
    AutoFree = 14,
    /// A search ended, with a header or with [`NiFail::NoMatch`].
    Search = 15,
}

impl EventKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 16] = [
        Self::Get,
        Self::GetOverflow,
        Self::Put,
        Self::PutOverflow,
        Self::Atomic,
        Self::AtomicOverflow,
        Self::FetchAtomic,
        Self::FetchAtomicOverflow,
        Self::Reply,
        Self::Send,
        Self::Ack,
        Self::PtDisabled,
        Self::Link,
        Self::AutoUnlink,
        Self::AutoFree,
        Self::Search,
    ];
}

/// An event. Its kind decides which fields have a meaning; the others are 0 or `None`.
///
/// | kinds | fields beside `type`, `user_ptr` and `ni_fail_type` |
/// |---|---|
/// | `Put`, `Get`, `Atomic`, `FetchAtomic`, each also as `*Overflow`, and a `Search` that found one | all; `user_ptr` is the one given with the entry |
/// | `Reply`, `Ack` | `mlength`, `remote_offset`, `ptl_list`; and the arguments of the call, with the target as `initiator` |
/// | `Send` | the arguments of the call |
/// | `Link`, `AutoUnlink`, `AutoFree` | `pt_index`, `ptl_list`, `start` |
/// | `PtDisabled` | `pt_index` |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ptl_event_t")]
pub struct Event {
    /// The kind (`type`).
    pub kind: EventKind,
    /// The address of the operation's first byte at this process. In a vector: the address of its first piece and the
    /// offset into the whole, so that the offset is always `start` less [`Pieces::addr`](crate::Pieces::addr).
    pub start: u64,
    /// The program's value, from the call that appended the entry or began the operation.
    pub user_ptr: u64,
    /// 64 bits that the initiator sent along.
    pub hdr_data: u64,
    /// The message's match bits.
    pub match_bits: u64,
    /// Bytes asked for.
    pub rlength: u64,
    /// Bytes moved.
    pub mlength: u64,
    /// The offset that the initiator asked for; of `Reply` and `Ack`, the one that was used.
    pub remote_offset: u64,
    /// The initiator of the operation; for the node's own operations, their target.
    pub initiator: Process,
    /// The user that began the operation.
    pub uid: Uid,
    /// The portal.
    pub pt_index: u32,
    /// The list whose entry took the message.
    pub ptl_list: ListKind,
    /// The result of the operation.
    pub ni_fail_type: NiFail,
    /// The operation of an atomic.
    pub atomic_operation: Option<AtomicOp>,
    /// The type of an atomic.
    pub atomic_type: Option<Datatype>,
}

impl Event {
    /// Whether the operation ended well.
    pub fn is_ok(&self) -> bool {
        self.ni_fail_type == NiFail::Ok
    }
}

/// An event that was taken from an event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    /// The event.
    pub event: Event,
    /// Whether events before this one were lost, because the queue was full (`PTL_EQ_DROPPED`). Each loss is reported
    /// once, with the first event behind the gap.
    #[doc(alias = "PTL_EQ_DROPPED")]
    pub dropped: bool,
}

impl Got {
    /// The return code of this in C.
    pub fn code(&self) -> ReturnCode {
        if self.dropped { ReturnCode::EqDropped } else { ReturnCode::Ok }
    }
    #[inline(always)]
    pub(super) fn of(event: &engine::Event, dropped: bool) -> Self {
        Self { event: event_of(event), dropped }
    }
    pub(super) fn of_got(got: &engine::Got) -> Self {
        Self::of(&got.event, got.dropped)
    }
}

#[inline(always)]
fn event_of(event: &engine::Event) -> Event {
    let kind = EventKind::ALL.get(event.kind as usize).copied();
    let kind = kind.expect("an interface of 4.3 has the events of 4.3");
    let remote_offset = match kind {
        EventKind::Reply | EventKind::Ack => event.offset,
        _ => event.remote_offset,
    };
    Event {
        kind,
        start: event.start,
        user_ptr: event.user_ptr,
        hdr_data: event.hdr_data,
        match_bits: event.match_bits,
        rlength: event.rlength,
        mlength: event.mlength,
        remote_offset,
        initiator: event.initiator,
        uid: event.uid,
        pt_index: event.pt_index,
        ptl_list: event.list,
        ni_fail_type: event.fail,
        atomic_operation: event.atomic.map(|(op, _)| op),
        atomic_type: event.atomic.map(|(_, ty)| ty),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_kinds_have_the_numbers_of_the_interface_and_of_the_engine() {
        for (number, kind) in EventKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number, "{kind:?}");
        }
        assert_eq!(EventKind::Search as u8, engine::EventKind::Search as u8);
        assert_eq!(EventKind::Ack as u8, engine::EventKind::Ack as u8);
    }
}
