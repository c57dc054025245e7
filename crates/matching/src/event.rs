//! Events, and the queues that hold them.

use crate::atomic::{AtomicOp, Datatype};
use crate::{EntryHandle, Jid, ListKind, MdHandle, NiFail, Process, Region, Uid};

/// The events of 4.3, numbered as there, and those of 3.3 behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// A get read bytes at this target.
    Get = 0,
    /// An appended entry matched a get that had arrived before.
    GetOverflow = 1,
    /// A put wrote bytes at this target.
    Put = 2,
    /// An appended entry matched a put that had arrived before.
    PutOverflow = 3,
    /// An atomic operation without a reply ran at this target.
    Atomic = 4,
    /// An appended entry matched such an operation that had arrived before.
    AtomicOverflow = 5,
    /// An atomic operation with a reply ran at this target.
    FetchAtomic = 6,
    /// An appended entry matched such an operation that had arrived before.
    FetchAtomicOverflow = 7,
    /// The bytes of a reply have arrived.
    Reply = 8,
    /// The sent memory may be changed again.
    Send = 9,
    /// An acknowledgement has arrived.
    Ack = 10,
    /// A portal ran out of a resource, and takes no more messages.
    PtDisabled = 11,
    /// An entry was linked.
    Link = 12,
    /// An entry was used up.
    AutoUnlink = 13,
    /// The memory of an entry that had left the overflow list is no longer in use.
    AutoFree = 14,
    /// A search ended.
    Search = 15,
    /// 3.3: a get began at this target.
    GetStart = 16,
    /// 3.3: a get ended at this target.
    GetEnd = 17,
    /// 3.3: a put began at this target.
    PutStart = 18,
    /// 3.3: a put ended at this target.
    PutEnd = 19,
    /// 3.3: an exchange began at this target.
    GetPutStart = 20,
    /// 3.3: an exchange ended at this target.
    GetPutEnd = 21,
    /// 3.3: the first bytes of a reply arrive.
    ReplyStart = 22,
    /// 3.3: all bytes of a reply have arrived.
    ReplyEnd = 23,
    /// 3.3: sending began.
    SendStart = 24,
    /// 3.3: the sent memory may be changed again.
    SendEnd = 25,
    /// 3.3: a memory descriptor was used up and unlinked.
    Unlink = 26,
}

/// An event, with the fields of both interfaces. Fields without a meaning for an event are 0 or `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind of the event.
    pub kind: EventKind,
    /// The result of the operation.
    pub fail: NiFail,
    /// The list whose entry took the message.
    pub list: ListKind,
    /// The atomic operation and its type.
    pub atomic: Option<(AtomicOp, Datatype)>,
    /// The portal.
    pub pt_index: u32,
    /// The initiator of the operation.
    pub initiator: Process,
    /// The user.
    pub uid: Uid,
    /// The job.
    pub jid: Jid,
    /// The message's match bits.
    pub match_bits: u64,
    /// Bytes asked for.
    pub rlength: u64,
    /// Bytes that were moved.
    pub mlength: u64,
    /// The offset that the message asked for.
    pub remote_offset: u64,
    /// The offset that was used.
    pub offset: u64,
    /// The region's start plus the offset that was used.
    pub start: u64,
    /// The user's value: the entry's, the memory descriptor's or the call's.
    pub user_ptr: u64,
    /// The message's 64 bits.
    pub hdr_data: u64,
    /// The entry, for events of an entry.
    pub entry: Option<EntryHandle>,
    /// The memory descriptor, for events of a descriptor.
    pub md: Option<MdHandle>,
    /// 3.3: the operation's number, the same in the start and end events of an operation and in its unlink event.
    pub link: u64,
    /// 3.3: the event's number in its queue.
    pub sequence: u64,
}

impl Event {
    pub(crate) fn new(kind: EventKind) -> Self {
        Self {
            kind,
            fail: NiFail::Ok,
            list: ListKind::Priority,
            atomic: None,
            pt_index: 0,
            initiator: Process::default(),
            uid: Uid(0),
            jid: Jid(0),
            match_bits: 0,
            rlength: 0,
            mlength: 0,
            remote_offset: 0,
            offset: 0,
            start: 0,
            user_ptr: 0,
            hdr_data: 0,
            entry: None,
            md: None,
            link: 0,
            sequence: 0,
        }
    }
}

/// An event that [`Interface::eq_get`](crate::Interface::eq_get) has taken from a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    /// The event.
    pub event: Event,
    /// Whether events between this one and the one taken before were lost, because the queue had no room. Each loss is
    /// reported once.
    pub dropped: bool,
}

/// A queue of events with a limit. Where there is no room, the oldest give way, and whoever takes the next one hears of
/// it.
///
/// Events are written where they will be read, and an empty queue begins at its front again, so that who takes events
/// as they come stays in one place of memory however long the queue is.
#[derive(Debug)]
pub(crate) struct EventQueue {
    /// The places that were used so far, at most `capacity`.
    ring: Vec<Event>,
    /// As many as events, in an interface of 3.3; otherwise empty.
    mds: Vec<Option<Region>>,
    with_mds: bool,
    last_md: Option<Region>,
    /// The oldest event's place.
    head: usize,
    len: usize,
    capacity: usize,
    /// Places that are kept for events to come (flow control).
    reserved: usize,
    dropped: bool,
    sequence: u64,
}

impl EventQueue {
    pub(crate) fn new(capacity: usize, with_mds: bool) -> Self {
        Self {
            ring: Vec::with_capacity(capacity),
            mds: Vec::with_capacity(if with_mds { capacity } else { 0 }),
            with_mds,
            last_md: None,
            head: 0,
            len: 0,
            capacity,
            reserved: 0,
            dropped: false,
            sequence: 0,
        }
    }
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// A place more, which is kept for the event that a portal was disabled.
    pub(crate) fn grow_reserved(&mut self) {
        self.straighten();
        self.capacity += 1;
        self.reserved += 1;
    }
    /// Gives such a place back.
    pub(crate) fn shrink(&mut self, was_reserved: bool) {
        self.reserved -= usize::from(was_reserved);
        while self.len + self.reserved > self.capacity - 1 && self.drop_oldest() {}
        self.straighten();
        self.capacity -= 1;
    }
    /// Moves the oldest event to the front, and forgets the places behind the youngest.
    fn straighten(&mut self) {
        self.ring.rotate_left(self.head);
        self.ring.truncate(self.len);
        if self.with_mds {
            self.mds.rotate_left(self.head);
            self.mds.truncate(self.len);
        }
        self.head = 0;
    }
    /// Keeps places for events to come, all of them or none.
    #[inline]
    pub(crate) fn reserve(&mut self, events: usize) -> bool {
        let fits = self.len + self.reserved + events <= self.capacity;
        self.reserved += if fits { events } else { 0 };
        fits
    }
    #[inline]
    pub(crate) fn release(&mut self, events: usize) {
        self.reserved -= events;
    }
    /// Puts an event in; `reserved` uses a place that was kept.
    pub(crate) fn push(&mut self, event: Event, md: Option<&Region>, reserved: bool) {
        if let Some(at) = self.next_place(reserved) {
            if self.with_mds {
                self.mds[at] = md.copied();
            }
            self.ring[at] = Event { sequence: self.sequence - 1, ..event };
        }
    }
    /// A place for an event, to be filled in: each field is stored once, where it will be read.
    #[inline(always)]
    pub(crate) fn place(&mut self, reserved: bool) -> Option<&mut Event> {
        let at = self.next_place(reserved)?;
        let place = &mut self.ring[at];
        place.sequence = self.sequence - 1;
        Some(place)
    }
    #[inline(always)]
    fn next_place(&mut self, reserved: bool) -> Option<usize> {
        self.reserved -= usize::from(reserved);
        self.sequence += 1;
        if self.len + self.reserved >= self.capacity && !self.drop_oldest() {
            self.dropped = true;
            return None;
        }
        let mut at = self.head + self.len;
        at -= if at >= self.capacity { self.capacity } else { 0 };
        self.len += 1;
        if at == self.ring.len() {
            self.lengthen();
        }
        Some(at)
    }
    #[cold]
    fn lengthen(&mut self) {
        self.ring.push(Event::new(EventKind::Get));
        if self.with_mds {
            self.mds.push(None);
        }
    }
    /// Shows the oldest event, and whether others before it were lost, and takes it.
    #[inline(always)]
    pub(crate) fn pop<R>(&mut self, show: impl FnOnce(&Event, bool) -> R) -> Option<R> {
        if self.len == 0 {
            return None;
        }
        let at = self.head;
        if self.with_mds {
            self.last_md = self.mds[at];
        }
        self.step();
        let dropped = std::mem::take(&mut self.dropped);
        Some(show(&self.ring[at], dropped))
    }
    /// Forgets the oldest event.
    #[inline]
    fn step(&mut self) {
        self.len -= 1;
        self.head += 1;
        if self.head == self.capacity || self.len == 0 {
            self.head = 0;
        }
    }
    /// Whether an event more would cost one that was not taken.
    pub(crate) fn is_full(&self) -> bool {
        self.len + self.reserved >= self.capacity
    }
    /// Whether the event that a portal was disabled is still to be taken.
    pub(crate) fn holds_notice(&self, pt_index: u32) -> bool {
        let places = (self.head..).take(self.len).map(|at| at % self.capacity);
        places.map(|at| &self.ring[at]).any(|e| (e.kind, e.pt_index) == (EventKind::PtDisabled, pt_index))
    }
    /// Of the event that was taken last, its memory descriptor as it was right after the event.
    pub(crate) fn last_md(&self) -> Option<Region> {
        self.last_md
    }
    #[cold]
    fn drop_oldest(&mut self) -> bool {
        let lost = self.len > 0;
        if lost {
            self.step();
        }
        self.dropped |= lost;
        lost
    }
}

#[cfg(test)]
mod tests {
    use test_support::random::Rng;

    use super::*;

    fn event(user_ptr: u64) -> Event {
        Event { user_ptr, ..Event::new(EventKind::Put) }
    }
    fn pop(queue: &mut EventQueue) -> Option<(u64, bool)> {
        queue.pop(|event, dropped| (event.user_ptr, dropped))
    }

    #[test]
    fn an_overflow_is_reported_once_and_the_queue_goes_on() {
        let mut queue = EventQueue::new(2, false);
        (0..5).for_each(|i| queue.push(event(i), None, false));
        assert_eq!(pop(&mut queue), Some((3, true)));
        queue.push(event(5), None, false);
        assert_eq!(pop(&mut queue), Some((4, false)));
        assert_eq!(pop(&mut queue), Some((5, false)));
        assert_eq!(pop(&mut queue), None);
    }

    #[test]
    fn a_reserved_place_is_not_taken_by_others() {
        let mut queue = EventQueue::new(2, false);
        assert!(queue.reserve(1));
        assert!(!queue.reserve(2));
        queue.push(event(0), None, false);
        queue.push(event(1), None, false);
        queue.push(event(2), None, true);
        assert_eq!(pop(&mut queue), Some((1, true)));
        assert_eq!(pop(&mut queue), Some((2, false)));
    }

    #[test]
    fn an_event_without_any_place_is_reported_too() {
        let mut queue = EventQueue::new(1, false);
        assert!(queue.reserve(1));
        queue.push(event(0), None, false);
        assert_eq!(pop(&mut queue), None);
        queue.push(event(1), None, true);
        assert_eq!(pop(&mut queue), Some((1, true)));
    }

    #[test]
    fn events_keep_their_order_round_the_end_and_while_the_queue_grows_and_shrinks() {
        let mut queue = EventQueue::new(5, true);
        let mut plain = std::collections::VecDeque::new();
        let mut rng = Rng::new(1);
        for i in 0..5000u64 {
            let x = rng.next_u64();
            // An even chance, so that the queue is seldom empty and begins at its front again.
            if x >> 63 == 0 && plain.len() < queue.capacity - queue.reserved {
                queue.push(event(i), Some(&Region { length: i, ..Region::default() }), false);
                plain.push_back(i);
            } else {
                let oldest = plain.pop_front();
                assert_eq!(pop(&mut queue), oldest.map(|i| (i, false)));
                assert!(oldest.is_none_or(|i| queue.last_md().is_some_and(|md| md.length == i)));
            }
            if x >> 40 & 7 == 0 {
                match queue.reserved {
                    0 => queue.grow_reserved(),
                    _ => queue.shrink(true),
                }
            }
            assert_eq!(queue.len(), plain.len());
            assert!(queue.ring.len() <= queue.capacity);
        }
    }

    #[test]
    fn sequence_numbers_count_lost_events_too() {
        let mut queue = EventQueue::new(1, false);
        (0..3).for_each(|i| queue.push(event(i), None, false));
        assert_eq!(queue.pop(|event, _| event.sequence), Some(2));
    }
}
