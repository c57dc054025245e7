//! Events, and the queues that hold them.

use std::collections::VecDeque;

use crate::atomic::{AtomicOp, Datatype};
use crate::{EntryHandle, Jid, ListKind, MdHandle, NiFail, Process, Region, Uid};

/// The events of 4.3, numbered as there, and those of 3.3 behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// Bytes were read here.
    Get = 0,
    /// An appended entry found a get that had come before it.
    GetOverflow = 1,
    /// Bytes were written here.
    Put = 2,
    /// An appended entry found a put that had come before it.
    PutOverflow = 3,
    /// An atomic operation without a reply was done here.
    Atomic = 4,
    /// An appended entry found such an operation.
    AtomicOverflow = 5,
    /// An atomic operation with a reply was done here.
    FetchAtomic = 6,
    /// An appended entry found such an operation.
    FetchAtomicOverflow = 7,
    /// A reply's bytes are here.
    Reply = 8,
    /// What was sent may be changed.
    Send = 9,
    /// An acknowledgement came.
    Ack = 10,
    /// A portal ran out of something and takes no more.
    PtDisabled = 11,
    /// An entry was linked.
    Link = 12,
    /// An entry was used up.
    AutoUnlink = 13,
    /// Nothing refers any more to the memory of an entry that had left the overflow list.
    AutoFree = 14,
    /// A search ended.
    Search = 15,
    /// 3.3: a get began here.
    GetStart = 16,
    /// 3.3: a get ended here.
    GetEnd = 17,
    /// 3.3: a put began here.
    PutStart = 18,
    /// 3.3: a put ended here.
    PutEnd = 19,
    /// 3.3: an exchange began here.
    GetPutStart = 20,
    /// 3.3: an exchange ended here.
    GetPutEnd = 21,
    /// 3.3: a reply's bytes begin to come.
    ReplyStart = 22,
    /// 3.3: a reply's bytes are here.
    ReplyEnd = 23,
    /// 3.3: sending began.
    SendStart = 24,
    /// 3.3: what was sent may be changed.
    SendEnd = 25,
    /// 3.3: a memory descriptor was used up and left.
    Unlink = 26,
}

/// An event, with the fields of both interfaces. Those that an event has no use for are 0 or `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// How it ended.
    pub fail: NiFail,
    /// The list whose entry took the message.
    pub list: ListKind,
    /// The atomic operation and its type.
    pub atomic: Option<(AtomicOp, Datatype)>,
    /// The portal.
    pub pt_index: u32,
    /// Who asked for it.
    pub initiator: Process,
    /// Its user.
    pub uid: Uid,
    /// Its job.
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
    /// The entry, if it is one's.
    pub entry: Option<EntryHandle>,
    /// The memory descriptor, if it is one's.
    pub md: Option<MdHandle>,
    /// 3.3: the same in the two events of an operation, and in the one that tells that it used the memory up.
    pub link: u64,
    /// 3.3: counts the events of the queue.
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

/// What [`Interface::eq_get`](crate::Interface::eq_get) takes from a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    /// The event.
    pub event: Event,
    /// Whether events between this one and the one taken before were lost, as the queue had no room. Said once.
    pub dropped: bool,
}

/// A queue of events with a limit. Where there is no room, the oldest give way, and whoever takes the next one hears of it.
#[derive(Debug)]
pub(crate) struct EventQueue {
    ring: VecDeque<Event>,
    /// As many as events, in an interface of 3.3; otherwise empty.
    mds: VecDeque<Option<Region>>,
    with_mds: bool,
    last_md: Option<Region>,
    capacity: usize,
    /// Places that are kept for events to come (flow control).
    reserved: usize,
    dropped: bool,
    sequence: u64,
}

impl EventQueue {
    pub(crate) fn new(capacity: usize, with_mds: bool) -> Self {
        let mds = if with_mds { VecDeque::with_capacity(capacity) } else { VecDeque::new() };
        Self {
            ring: VecDeque::with_capacity(capacity),
            mds,
            with_mds,
            last_md: None,
            capacity,
            reserved: 0,
            dropped: false,
            sequence: 0,
        }
    }
    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }
    /// A place more, which is kept for the event that a portal was disabled.
    pub(crate) fn grow_reserved(&mut self) {
        self.capacity += 1;
        self.reserved += 1;
    }
    /// Gives such a place back.
    pub(crate) fn shrink(&mut self, was_reserved: bool) {
        self.capacity -= 1;
        self.reserved -= usize::from(was_reserved);
        while self.ring.len() + self.reserved > self.capacity && self.drop_oldest() {}
    }
    /// Keeps places for events to come, all of them or none.
    #[inline]
    pub(crate) fn reserve(&mut self, events: usize) -> bool {
        let fits = self.ring.len() + self.reserved + events <= self.capacity;
        self.reserved += if fits { events } else { 0 };
        fits
    }
    pub(crate) fn release(&mut self, events: usize) {
        self.reserved -= events;
    }
    /// Puts an event in; `reserved` uses a place that was kept.
    #[inline]
    pub(crate) fn push(&mut self, mut event: Event, md: Option<&Region>, reserved: bool) {
        self.reserved -= usize::from(reserved);
        event.sequence = self.sequence;
        self.sequence += 1;
        if self.ring.len() + self.reserved >= self.capacity && !self.drop_oldest() {
            self.dropped = true;
            return;
        }
        self.ring.push_back(event);
        if self.with_mds {
            self.mds.push_back(md.copied());
        }
    }
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Got> {
        let event = self.ring.pop_front()?;
        if self.with_mds {
            self.last_md = self.mds.pop_front().flatten();
        }
        Some(Got { event, dropped: std::mem::take(&mut self.dropped) })
    }
    /// Of the event that was taken last, its memory descriptor as it was right after the event.
    pub(crate) fn last_md(&self) -> Option<Region> {
        self.last_md
    }
    #[cold]
    fn drop_oldest(&mut self) -> bool {
        self.mds.pop_front();
        let lost = self.ring.pop_front().is_some();
        self.dropped |= lost;
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(user_ptr: u64) -> Event {
        Event { user_ptr, ..Event::new(EventKind::Put) }
    }
    fn pop(queue: &mut EventQueue) -> Option<(u64, bool)> {
        queue.pop().map(|got| (got.event.user_ptr, got.dropped))
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
    fn sequence_numbers_count_lost_events_too() {
        let mut queue = EventQueue::new(1, false);
        (0..3).for_each(|i| queue.push(event(i), None, false));
        assert_eq!(queue.pop().unwrap().event.sequence, 2);
    }
}
