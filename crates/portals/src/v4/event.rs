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
    /// An entry that was appended found a get that had come before it.
    GetOverflow = 1,
    /// A put wrote an entry's bytes.
    Put = 2,
    /// An entry that was appended found a put that had come before it; the bytes are where
    /// [`start`](Event::start) says.
    PutOverflow = 3,
    /// An atomic operation without a reply was done on an entry's bytes.
    Atomic = 4,
    /// An entry that was appended found such an operation.
    AtomicOverflow = 5,
    /// An atomic operation with a reply was done on an entry's bytes.
    FetchAtomic = 6,
    /// An entry that was appended found such an operation.
    FetchAtomicOverflow = 7,
    /// A reply's bytes are in the memory descriptor.
    Reply = 8,
    /// The sent memory may be changed.
    Send = 9,
    /// An acknowledgement came.
    Ack = 10,
    /// A portal with flow control ran out of something and was disabled.
    PtDisabled = 11,
    /// An entry was linked.
    Link = 12,
    /// An entry was used up and is no longer linked; nothing writes to its memory any more.
    AutoUnlink = 13,
    /// No header waits any more whose bytes are in an entry that was used up on the overflow list.
    AutoFree = 14,
    /// A search ended, with a header or with [`NiFail::NoMatch`].
    Search = 15,
}

impl EventKind {
    /// All of them, by number.
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

/// An event. Which fields have a meaning depends on its kind; the others are 0 or `None`.
///
/// | kinds | fields beside `type`, `user_ptr` and `ni_fail_type` |
/// |---|---|
/// | `Put`, `Get`, `Atomic`, `FetchAtomic`, each also as `*Overflow`, and a `Search` that found one | all; `user_ptr` is the one given with the entry |
/// | `Reply`, `Ack` | `mlength`, `remote_offset`; and what the call said: `initiator` is the target then |
/// | `Send` | what the call said |
/// | `Link`, `AutoUnlink`, `AutoFree` | `pt_index`, `ptl_list`, `start` |
/// | `PtDisabled` | `pt_index` |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ptl_event_t")]
pub struct Event {
    /// The kind (`type`).
    pub kind: EventKind,
    /// The address of the operation's first byte here. In a vector: the address of its first piece and the offset into
    /// the whole, so that the offset is always `start` less [`Pieces::addr`](crate::Pieces::addr).
    pub start: u64,
    /// The program's value: of the call that appended the entry, or that began the operation.
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
    /// The user that began it.
    pub uid: Uid,
    /// The portal.
    pub pt_index: u32,
    /// The list whose entry took the message.
    pub ptl_list: ListKind,
    /// How the operation ended.
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
    /// Whether events before this one were lost, as the queue was full (`PTL_EQ_DROPPED`). It is said once, with the
    /// first event behind the gap; the queue then goes on.
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
