//! Slots for buffers in flight: the poster fills them and the poller empties them, without a lock.
//!
//! Send requests complete in order, and so do those of a queue pair's own receive queue: their slots are a
//! ring ([`RingSlots`]) with one poster, one taker and two counters. Requests of a shared receive queue may
//! complete in any order, since several queue pairs take from it: theirs are a pool ([`PoolSlots`]) with one
//! poster, any number of takers, and a stack of freed slots that takers push to and the poster takes as a
//! whole (so that no ABA arises).
//!
//! Invariants of the unsafe code:
//! 1. There is one [`RingPoster`] and one [`RingTaker`] of a [`RingSlots`], and one [`PoolPoster`] of a
//!    [`PoolSlots`]: `create` hands them out, they are not `Clone`, and they work by `&mut self`.
//! 2. Ring: slots `freed .. posted` belong to the taker, all others to the poster. The poster moves `posted` (Release)
//!    after it filled a slot; the taker reads it (Acquire) before it looks. The taker moves `freed` (Release) after it
//!    emptied slots; the poster reads it (Acquire) before it fills. The poster takes a slot back only if the device has
//!    refused that very request. A device completes no refused request, so the taker does not read the slot. If the
//!    poster then fills the slot once more, the taker may have seen this value of `posted` before: the device, which
//!    takes a request before it completes the request, orders the second filling before the taker's read.
//! 3. Ring: in slots `head .. posted` the first `Head::parts` cells hold values; all other cells are empty. The taker
//!    moves its `head` before it moves values out, so that an unwinding leaks and doubles nothing, and leaves it in
//!    `taken` when it is dropped, before the slots are.
//! 4. Pool: a slot whose generation is odd is full: its first `Head::parts` cells hold values, and the thread that
//!    increments the generation by compare-and-swap (Acquire) owns them. A slot whose generation is even belongs to the
//!    poster, or is on its way to the poster on the stack of freed slots (pushed by Release, taken by Acquire).
//! 5. Ring: there are `mask + 1` heads and first cells, and `stride` times as many other cells.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;

use crate::sync::{Arc, AtomicU32, AtomicU64, CachePadded, Ordering, UnsafeCell};

/// The contents of a slot beside its parts.
#[derive(Clone, Copy, Default)]
struct Head {
    /// The program's own number for the request.
    id: u64,
    /// How many cells are filled.
    parts: u32,
}

type Cell<T> = UnsafeCell<MaybeUninit<T>>;

fn cells<T>(n: usize) -> Box<[Cell<T>]> {
    (0..n).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect()
}

/// The cells of a slot: most requests have one part, or none.
struct Cells<'a, T> {
    first: &'a Cell<T>,
    others: &'a [Cell<T>],
}

impl<'a, T> Cells<'a, T> {
    #[inline(always)]
    fn get(&self, part: usize) -> Option<&'a Cell<T>> {
        match part.checked_sub(1) {
            None => Some(self.first),
            Some(other) => self.others.get(other),
        }
    }
}

/// Fills one slot.
pub(crate) struct SlotWriter<'a, T> {
    cells: Cells<'a, T>,
    filled: usize,
}

impl<T> SlotWriter<'_, T> {
    /// Puts one more value in. A value without a cell aborts: one that may have to be dropped by an unwinding would be
    /// copied to where that finds it.
    #[inline(always)]
    pub(crate) fn push(&mut self, value: T) {
        let Some(cell) = self.cells.get(self.filled) else { overfull() };
        // SAFETY: (2), (4): the slot belongs to the poster, which made this writer from its `&mut self`.
        cell.with_mut(|p| unsafe { (*p).write(value) });
        self.filled += 1;
    }
}

/// Reports a list with more parts than its queue's slots have cells.
#[cold]
#[inline(never)]
extern "C" fn overfull() -> ! {
    panic!("a list was found to fit its slot, and has more parts than were counted");
}

/// Empties one slot; unread values are dropped.
pub(crate) struct SlotReader<'a, T> {
    cells: Cells<'a, T>,
    next: usize,
    end: usize,
}

impl<T> Iterator for SlotReader<'_, T> {
    type Item = T;
    fn next(&mut self) -> Option<T> {
        if self.next == self.end {
            return None;
        }
        let cell = self.cells.get(self.next).expect("a slot is no longer than its cells");
        self.next += 1;
        // SAFETY: (3), (4): cells below `end` hold values and are the maker's of this reader, who
        // has marked them as taken; `next` moves past each once.
        Some(cell.with(|p| unsafe { (*p).assume_init_read() }))
    }
}

impl<T> Drop for SlotReader<'_, T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// Moves the values of a slot out. Most have none, or one.
///
/// # Safety
/// `first` is the first cell of a slot of which `cells` gives all. The first `parts` of them hold values, which are the
/// caller's and are not moved out again.
#[inline(always)]
unsafe fn empty<'a, T: 'a>(
    parts: u32,
    first: &Cell<T>,
    cells: impl FnOnce() -> Cells<'a, T>,
    sink: &mut impl Sink<T>,
) {
    if parts > 0 {
        // SAFETY: our caller's: the first cell holds a value, as `parts` is not 0.
        sink.take(first.with(|p| unsafe { (*p).assume_init_read() }));
        if parts > 1 {
            empty_others(parts, cells(), sink);
        }
    }
}
#[inline(never)]
fn empty_others<T>(parts: u32, cells: Cells<'_, T>, sink: &mut impl Sink<T>) {
    SlotReader { cells, next: 1, end: parts as usize }.for_each(|value| sink.take(value));
}

/// Where the values of emptied slots go.
pub(crate) trait Sink<T> {
    /// Takes a value.
    fn take(&mut self, value: T);
}
impl<T, F: FnMut(T)> Sink<T> for F {
    fn take(&mut self, value: T) {
        self(value);
    }
}

/// The slots of a queue that completes in order.
pub(crate) struct RingSlots<T> {
    depth: u32,
    mask: u64,
    /// Cells of a slot beside its first.
    stride: usize,
    /// Apart from the parts: a queue of requests without any touches a line for four of them.
    heads: Box<[UnsafeCell<Head>]>,
    firsts: Box<[Cell<T>]>,
    others: Box<[Cell<T>]>,
    posted: CachePadded<AtomicU64>,
    freed: CachePadded<AtomicU64>,
    /// The end of the slots that were emptied, once the taker is gone.
    taken: AtomicU64,
}

// SAFETY: (2) says which thread touches which cell, with the memory orders that hand a cell over; the
// values themselves go from thread to thread, hence `T: Send`. Tested under loom and Miri.
unsafe impl<T: Send> Send for RingSlots<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for RingSlots<T> {}

impl<T> RingSlots<T> {
    /// Slots for `depth` requests of at most `parts` parts.
    pub(crate) fn create(depth: u32, parts: usize) -> (Arc<Self>, RingPoster<T>, RingTaker<T>) {
        let capacity = (depth.max(1) as usize).next_power_of_two();
        let stride = parts.saturating_sub(1);
        let slots = Arc::new(Self {
            depth,
            mask: capacity as u64 - 1,
            stride,
            heads: (0..capacity).map(|_| UnsafeCell::new(Head::default())).collect(),
            firsts: cells(capacity),
            others: cells(capacity * stride),
            posted: CachePadded::new(AtomicU64::new(0)),
            freed: CachePadded::new(AtomicU64::new(0)),
            taken: AtomicU64::new(0),
        });
        let poster = RingPoster { slots: Arc::clone(&slots), next: 0, freed: 0 };
        let taker = RingTaker { slots: Arc::clone(&slots), head: 0, posted: 0 };
        (slots, poster, taker)
    }

    /// Requests that are posted and not yet given back.
    pub(crate) fn outstanding(&self) -> u32 {
        let freed = self.freed.load(Ordering::Acquire);
        self.posted.load(Ordering::Acquire).saturating_sub(freed) as u32
    }

    #[inline(always)]
    fn cells_of(&self, seq: u64) -> Cells<'_, T> {
        let at = (seq & self.mask) as usize * self.stride;
        // SAFETY: (5): slot `mask` is the last one.
        let others = unsafe { self.others.get_unchecked(at..at + self.stride) };
        Cells { first: self.first_of(seq), others }
    }
    #[inline(always)]
    fn first_of(&self, seq: u64) -> &Cell<T> {
        // SAFETY: (5).
        unsafe { self.firsts.get_unchecked((seq & self.mask) as usize) }
    }
    #[inline(always)]
    fn head_of(&self, seq: u64) -> &UnsafeCell<Head> {
        // SAFETY: (5).
        unsafe { self.heads.get_unchecked((seq & self.mask) as usize) }
    }

    /// Moves the values of a slot out, by the taker, who has marked it as taken; returns the request's id.
    #[inline(always)]
    fn empty(&self, seq: u64, sink: &mut impl Sink<T>) -> u64 {
        // SAFETY: (2): our caller's, as it found it posted by Acquire.
        let Head { id, parts } = self.head_of(seq).with(|p| unsafe { *p });
        // SAFETY: (2) as above; (3): each slot is gone through once.
        unsafe { empty(parts, self.first_of(seq), || self.cells_of(seq), sink) };
        id
    }
    /// Empties the slots from `first` on, up to that of `end`, which is left.
    #[inline(never)]
    fn empty_each(&self, first: u64, end: u64, sink: &mut impl Sink<T>) {
        for seq in first..end {
            self.empty(seq, sink);
        }
    }
}

impl<T> Drop for RingSlots<T> {
    fn drop(&mut self) {
        for seq in self.taken.load(Ordering::Acquire)..self.posted.load(Ordering::Acquire) {
            // SAFETY: `&mut self`: no other thread is here; (3) says what is filled.
            let head = self.head_of(seq).with(|p| unsafe { *p });
            drop(SlotReader { cells: self.cells_of(seq), next: 0, end: head.parts as usize });
        }
    }
}

/// The posting end of a send queue's slots.
pub(crate) struct RingPoster<T> {
    slots: Arc<RingSlots<T>>,
    /// As `posted`.
    next: u64,
    /// `freed` as it was last read.
    freed: u64,
}

/// A poster whose next slot is free.
pub(crate) struct Room<'a, P>(&'a mut P);

impl<T> RingPoster<T> {
    /// The poster, if a slot is free.
    #[inline(always)]
    pub(crate) fn room(&mut self) -> Option<Room<'_, Self>> {
        if self.has_room() { Some(Room(self)) } else { None }
    }
    /// Whether a slot is free. Looks at the other end's counter only if none seems to be.
    #[inline(always)]
    pub(crate) fn has_room(&mut self) -> bool {
        if self.next - self.freed < u64::from(self.slots.depth) {
            return true;
        }
        // Acquire: pairs with the Release in `RingTaker::take`.
        self.freed = self.slots.freed.load(Ordering::Acquire);
        self.next - self.freed < u64::from(self.slots.depth)
    }

    /// Takes the last slot back: the device refused its request.
    pub(crate) fn retract(&mut self) -> SlotReader<'_, T> {
        assert!(self.next > self.freed, "nothing to take back");
        self.next -= 1;
        self.slots.posted.store(self.next, Ordering::Release);
        // SAFETY: (2): the device refused the request, so the taker does not look at this slot.
        let head = self.slots.head_of(self.next).with(|p| unsafe { *p });
        SlotReader { cells: self.slots.cells_of(self.next), next: 0, end: head.parts as usize }
    }
}

impl<T> Room<'_, RingPoster<T>> {
    /// Fills the slot, and returns the number by which the taker finds it, with what `fill` returned.
    #[inline(always)]
    pub(crate) fn fill<R>(self, id: u64, fill: impl FnOnce(&mut SlotWriter<'_, T>) -> R) -> (u64, R) {
        let RingPoster { slots, next, .. } = self.0;
        let seq = *next;
        let mut writer = SlotWriter { cells: slots.cells_of(seq), filled: 0 };
        let result = fill(&mut writer);
        let parts = writer.filled as u32;
        // SAFETY: (2): `seq` is `posted`, and less than `depth` ahead of `freed`, as `room` found: the slot is ours.
        slots.head_of(seq).with_mut(|p| unsafe { *p = Head { id, parts } });
        *next = seq + 1;
        // Release: pairs with the Acquire in `RingTaker::take`.
        slots.posted.store(seq + 1, Ordering::Release);
        (seq, result)
    }
}

/// The taking end of a ring of slots.
pub(crate) struct RingTaker<T> {
    slots: Arc<RingSlots<T>>,
    /// As `freed`.
    head: u64,
    /// `posted` as last seen.
    posted: u64,
}

impl<T> RingTaker<T> {
    /// Gives all values up to and with those of request `seq` to `sink`, and returns the request's
    /// id; `None` if no such request is outstanding.
    #[inline(always)]
    pub(crate) fn take(&mut self, seq: u64, mut sink: impl Sink<T>) -> Option<u64> {
        let slots = &*self.slots;
        if seq >= self.posted {
            // Acquire: pairs with the Release in `Room::fill`.
            self.posted = slots.posted.load(Ordering::Acquire);
            if seq >= self.posted {
                return None;
            }
        }
        if seq < self.head {
            return None;
        }
        // (2): below `posted`, which we loaded by Acquire, and not below `freed`.
        let first = core::mem::replace(&mut self.head, seq + 1);
        if first != seq {
            slots.empty_each(first, seq, &mut sink);
        }
        let id = slots.empty(seq, &mut sink);
        // Release: pairs with the Acquire in `RingPoster::has_room`.
        slots.freed.store(seq + 1, Ordering::Release);
        Some(id)
    }
}

impl<T> Drop for RingTaker<T> {
    fn drop(&mut self) {
        self.slots.taken.store(self.head, Ordering::Release);
    }
}

/// The generation with which the next pool begins.
static POOLS: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// A slot of a pool.
struct PoolSlot<T> {
    /// Odd: full.
    generation: AtomicU32,
    /// Next free slot plus one; 0 ends the list.
    next_free: AtomicU32,
    head: UnsafeCell<Head>,
    first: Cell<T>,
}

/// The slots of a shared receive queue.
pub(crate) struct PoolSlots<T> {
    /// Cells of a slot beside its first.
    stride: usize,
    slots: Box<[PoolSlot<T>]>,
    others: Box<[Cell<T>]>,
    /// Freed slots, as a list: first plus one, or 0.
    freed: CachePadded<AtomicU32>,
}

// SAFETY: (4) says which thread touches which cell, with the memory orders that hand a cell over; the
// values themselves go from thread to thread, hence `T: Send`. Tested under loom and Miri.
unsafe impl<T: Send> Send for PoolSlots<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for PoolSlots<T> {}

impl<T> PoolSlots<T> {
    /// Slots for `depth` requests of at most `parts` parts.
    pub(crate) fn create(depth: u32, parts: usize) -> (Arc<Self>, PoolPoster<T>) {
        let stride = parts.saturating_sub(1);
        // Far apart, and even (4): a queue of an XRC domain is found by its number, which the next one may have, too,
        // while a completion of the one before is in the hands of a poller.
        let first = POOLS.fetch_add(0x9e37_79b2, Ordering::Relaxed);
        let slot = |i: u32| PoolSlot {
            generation: AtomicU32::new(first),
            next_free: AtomicU32::new(if i + 1 < depth { i + 2 } else { 0 }),
            head: UnsafeCell::new(Head::default()),
            first: UnsafeCell::new(MaybeUninit::uninit()),
        };
        let slots = Arc::new(Self {
            stride,
            slots: (0..depth).map(slot).collect(),
            others: cells(depth as usize * stride),
            freed: CachePadded::new(AtomicU32::new(0)),
        });
        let poster = PoolPoster { slots: Arc::clone(&slots), free: u32::from(depth > 0) };
        (slots, poster)
    }

    /// Gives the values of request `wr_id` to `sink`, and returns the request's id; `None` if no
    /// such request is outstanding.
    #[inline]
    pub(crate) fn take(&self, wr_id: u64, mut sink: impl Sink<T>) -> Option<u64> {
        let (index, slot, head) = self.claim(wr_id)?;
        // SAFETY: (4): the slot was full, and is ours.
        unsafe { empty(head.parts, &slot.first, || self.cells_of(index), &mut sink) };
        let mut first = self.freed.load(Ordering::Relaxed);
        loop {
            slot.next_free.store(first, Ordering::Relaxed);
            // Release: pairs with the Acquire in `PoolPoster::room`.
            match self.freed.compare_exchange_weak(first, index + 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Some(head.id),
                Err(now) => first = now,
            }
        }
    }

    /// Requests that are posted and not yet given back. Looks at every slot.
    pub(crate) fn outstanding(&self) -> u32 {
        self.slots.iter().map(|s| s.generation.load(Ordering::Relaxed) & 1).sum()
    }

    /// Makes a full slot ours.
    #[inline(always)]
    fn claim(&self, wr_id: u64) -> Option<(u32, &PoolSlot<T>, Head)> {
        let (index, generation) = (wr_id as u32, (wr_id >> 32) as u32);
        let slot = self.slots.get(index as usize).filter(|_| generation & 1 == 1)?;
        let next = generation.wrapping_add(1);
        // Acquire: pairs with the Release in `Room::fill`.
        slot.generation.compare_exchange(generation, next, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: (4): we moved the generation on.
        Some((index, slot, slot.head.with(|p| unsafe { *p })))
    }

    #[inline]
    fn cells_of(&self, index: u32) -> Cells<'_, T> {
        let at = index as usize * self.stride;
        Cells { first: &self.slots[index as usize].first, others: &self.others[at..at + self.stride] }
    }
}

impl<T> Drop for PoolSlots<T> {
    fn drop(&mut self) {
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.generation.load(Ordering::Acquire) & 1 == 1 {
                // SAFETY: `&mut self`: no other thread is here; (4) says what is filled.
                let head = slot.head.with(|p| unsafe { *p });
                drop(SlotReader { cells: self.cells_of(index as u32), next: 0, end: head.parts as usize });
            }
        }
    }
}

/// The posting end of a pool of slots.
pub(crate) struct PoolPoster<T> {
    slots: Arc<PoolSlots<T>>,
    /// The poster's own list of free slots: first plus one, or 0.
    free: u32,
}

impl<T> PoolPoster<T> {
    /// The poster, if a slot is free.
    #[inline(always)]
    pub(crate) fn room(&mut self) -> Option<Room<'_, Self>> {
        if self.free == 0 {
            // Acquire: pairs with the Release in `PoolSlots::take`.
            self.free = self.slots.freed.swap(0, Ordering::Acquire);
        }
        if self.free == 0 { None } else { Some(Room(self)) }
    }
    /// Takes a slot back: the device refused its request.
    pub(crate) fn retract(&mut self, wr_id: u64) -> SlotReader<'_, T> {
        let (index, slot, head) = self.slots.claim(wr_id).expect("the slot was just filled");
        slot.next_free.store(self.free, Ordering::Relaxed);
        self.free = index + 1;
        SlotReader { cells: self.slots.cells_of(index), next: 0, end: head.parts as usize }
    }
}

impl<T> Room<'_, PoolPoster<T>> {
    /// Fills the slot, and returns the number by which a taker finds it, with what `fill` returned.
    #[inline(always)]
    pub(crate) fn fill<R>(self, id: u64, fill: impl FnOnce(&mut SlotWriter<'_, T>) -> R) -> (u64, R) {
        let PoolPoster { slots, free } = self.0;
        let index = *free - 1;
        let slot = &slots.slots[index as usize];
        *free = slot.next_free.load(Ordering::Relaxed);
        let mut writer = SlotWriter { cells: slots.cells_of(index), filled: 0 };
        let result = fill(&mut writer);
        let parts = writer.filled as u32;
        // SAFETY: (4): the slot was on our own list, so its generation is even and it is ours.
        slot.head.with_mut(|p| unsafe { *p = Head { id, parts } });
        let generation = slot.generation.load(Ordering::Relaxed).wrapping_add(1);
        // Release: pairs with the Acquire in `PoolSlots::claim`.
        slot.generation.store(generation, Ordering::Release);
        (u64::from(generation) << 32 | u64::from(index), result)
    }
}

/// The slots of a receive queue.
pub(crate) enum RecvSlots<T> {
    Own(Arc<RingSlots<T>>),
    Shared(Arc<PoolSlots<T>>),
}

impl<T> Clone for RecvSlots<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Own(slots) => Self::Own(Arc::clone(slots)),
            Self::Shared(slots) => Self::Shared(Arc::clone(slots)),
        }
    }
}

impl<T> RecvSlots<T> {
    /// Requests that are posted and not yet given back.
    pub(crate) fn outstanding(&self) -> u32 {
        match self {
            Self::Own(slots) => slots.outstanding(),
            Self::Shared(slots) => slots.outstanding(),
        }
    }
}

/// The posting end of a receive queue's slots.
pub(crate) enum RecvPoster<T> {
    Own(RingPoster<T>),
    Shared(PoolPoster<T>),
}

impl<T> RecvPoster<T> {
    /// A free slot, if there is one.
    #[inline(always)]
    pub(crate) fn room(&mut self) -> Option<RecvRoom<'_, T>> {
        match self {
            Self::Own(ring) => ring.room().map(RecvRoom::Own),
            Self::Shared(pool) => pool.room().map(RecvRoom::Shared),
        }
    }
    /// Takes the last slot back: the device refused its request, `wr_id`.
    pub(crate) fn retract(&mut self, wr_id: u64) -> SlotReader<'_, T> {
        match self {
            Self::Own(ring) => ring.retract(),
            Self::Shared(pool) => pool.retract(wr_id),
        }
    }
}

/// A poster of a receive queue, whose next slot is free.
pub(crate) enum RecvRoom<'a, T> {
    Own(Room<'a, RingPoster<T>>),
    Shared(Room<'a, PoolPoster<T>>),
}

impl<T> RecvRoom<'_, T> {
    /// Fills the slot, and returns the number by which a taker finds it, with what `fill` returned.
    #[inline(always)]
    pub(crate) fn fill<R>(self, id: u64, fill: impl FnOnce(&mut SlotWriter<'_, T>) -> R) -> (u64, R) {
        match self {
            Self::Own(room) => room.fill(id, fill),
            Self::Shared(room) => room.fill(id, fill),
        }
    }
}

/// The taking end of a queue's slots.
pub(crate) enum Taker<T> {
    Own(RingTaker<T>),
    Shared(Arc<PoolSlots<T>>),
}

impl<T> Taker<T> {
    /// Gives the values of request `wr_id` to `sink`, and returns the request's id; `None` if no such
    /// request is outstanding.
    #[inline(always)]
    pub(crate) fn take(&mut self, wr_id: u64, sink: impl Sink<T>) -> Option<u64> {
        match self {
            Self::Own(ring) => ring.take(wr_id, sink),
            Self::Shared(pool) => pool.take(wr_id, sink),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_completion_gives_back_everything_posted_before_it() {
        let (slots, mut poster, mut taker) = RingSlots::create(4, 2);
        for i in 0..3_u64 {
            poster.room().expect("a slot is free").fill(100 + i, |w| {
                w.push(Box::new(i * 2));
                w.push(Box::new(i * 2 + 1));
            });
        }
        let mut got = Vec::new();
        assert_eq!(taker.take(1, |b: Box<u64>| got.push(*b)), Some(101));
        assert_eq!(got, [0, 1, 2, 3]);
        assert_eq!(taker.take(1, |_| panic!("twice")), None);
        assert_eq!(taker.take(3, |_| panic!("never posted")), None);
        assert_eq!(slots.outstanding(), 1);
    }

    #[test]
    fn a_depth_that_is_no_power_of_two_is_kept() {
        let (_slots, mut poster, mut taker) = RingSlots::create(3, 1);
        for i in 0..3 {
            poster.room().expect("a slot is free").fill(i, |w| w.push(i));
        }
        assert!(!poster.has_room());
        taker.take(0, drop);
        assert!(poster.has_room());
    }

    #[test]
    fn a_refused_request_is_taken_back_and_its_slot_used_again() {
        let (_slots, mut poster, mut taker) = RingSlots::create(1, 2);
        poster.room().expect("a slot is free").fill(1, |w| w.push(Box::new(7)));
        assert_eq!(poster.retract().map(|b| *b).collect::<Vec<_>>(), [7]);
        assert_eq!(taker.take(0, drop), None);
        poster.room().expect("a slot is free").fill(2, |w| w.push(Box::new(8)));
        assert_eq!(taker.take(0, drop), Some(2));
    }

    #[test]
    fn receive_slots_complete_in_any_order_and_once() {
        let (slots, mut poster) = PoolSlots::create(3, 1);
        let ids: Vec<u64> = (0..3_u64)
            .map(|i| poster.room().expect("a slot is free").fill(i, |w| w.push(Box::new(i))).0)
            .collect();
        assert!(poster.room().is_none());
        let mut got = Vec::new();
        assert_eq!(slots.take(ids[2], |b: Box<u64>| got.push(*b)), Some(2));
        assert_eq!(slots.take(ids[2], |_| panic!("twice")), None);
        assert_eq!(slots.take(ids[0], |b: Box<u64>| got.push(*b)), Some(0));
        assert_eq!(got, [2, 0]);
        assert!(poster.room().is_some());
        let again = poster.room().expect("a slot is free").fill(9, |w| w.push(Box::new(9))).0;
        assert_ne!(again, ids[0]);
        assert_eq!(slots.take(ids[0], |_| panic!("stale")), None);
        assert_eq!(poster.retract(again).count(), 1);
        assert_eq!(slots.outstanding(), 1);
    }

    #[test]
    fn a_request_of_one_pool_is_none_of_another() {
        let (_first, mut poster) = PoolSlots::create(1, 1);
        let of_first = poster.room().expect("a slot is free").fill(0, |w| w.push(Box::new(1))).0;
        let (second, mut poster) = PoolSlots::create(1, 1);
        let of_second = poster.room().expect("a slot is free").fill(0, |w| w.push(Box::new(2))).0;
        assert_eq!(second.take(of_first, |_| panic!("it was posted elsewhere")), None);
        assert_eq!(second.take(of_second, drop), Some(0));
    }

    #[test]
    fn values_left_in_slots_are_dropped_with_them() {
        let token = std::sync::Arc::new(());
        let (send, mut poster, taker) = RingSlots::create(2, 1);
        poster.room().expect("a slot is free").fill(0, |w| w.push(std::sync::Arc::clone(&token)));
        let (recv, mut recv_poster) = PoolSlots::create(2, 1);
        recv_poster.room().expect("a slot is free").fill(0, |w| w.push(std::sync::Arc::clone(&token)));
        drop((send, poster, taker, recv, recv_poster));
        assert_eq!(std::sync::Arc::strong_count(&token), 1);
    }

    #[test]
    fn what_was_taken_is_not_dropped_with_the_slots() {
        struct Counted<'a>(&'a AtomicU32);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let drops = AtomicU32::new(0);
        let (slots, mut poster, mut taker) = RingSlots::create(4, 1);
        for i in 0..3 {
            poster.room().expect("a slot is free").fill(i, |w| w.push(Counted(&drops)));
        }
        taker.take(1, drop);
        assert_eq!(drops.load(Ordering::Relaxed), 2);
        drop((poster, taker, slots));
        assert_eq!(drops.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn one_thread_posts_while_another_takes() {
        let rounds = if cfg!(miri) { 50_u64 } else { 20_000 };
        let (_slots, mut poster, mut taker) = RingSlots::create(4, 1);
        let (tx, rx) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut sum = 0;
            for seq in rx {
                taker.take(seq, |b: Box<u64>| sum += *b);
            }
            sum
        });
        for i in 0..rounds {
            while !poster.has_room() {
                std::thread::yield_now();
            }
            tx.send(poster.room().expect("a slot is free").fill(i, |w| w.push(Box::new(i))).0).unwrap();
        }
        drop(tx);
        assert_eq!(thread.join().unwrap(), rounds * (rounds - 1) / 2);
    }
}

/// Run by `RUSTFLAGS="--cfg loom" cargo test -p hca-verbs --lib --release loom_`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    #[test]
    fn loom_ring_hands_every_value_over_once() {
        loom::model(|| {
            let (slots, mut poster, mut taker) = RingSlots::create(2, 1);
            // The device: tells the poller of the last request, in no order with the slots.
            let last = Arc::new(AtomicU32::new(0));
            let device = Arc::clone(&last);
            let poller = thread::spawn(move || {
                let mut got = Vec::new();
                for _ in 0..3 {
                    let n = device.load(Ordering::Relaxed);
                    if n > 0 {
                        taker.take(u64::from(n - 1), |v: Box<u32>| got.push(*v));
                    }
                }
                got
            });
            let mut posted = 0;
            for _ in 0..3 {
                if let Some(room) = poster.room() {
                    room.fill(0, |w| w.push(Box::new(posted)));
                    posted += 1;
                    last.store(posted, Ordering::Relaxed);
                }
            }
            let got = poller.join().unwrap();
            assert_eq!(got, (0..got.len() as u32).collect::<Vec<_>>());
            assert_eq!(slots.outstanding(), posted - got.len() as u32);
        });
    }

    #[test]
    fn loom_pool_gives_a_slot_to_one_taker() {
        loom::model(|| {
            let (slots, mut poster) = PoolSlots::create(2, 1);
            let ids: Vec<u64> = (0..2_u64)
                .map(|i| poster.room().expect("a slot is free").fill(i, |w| w.push(Box::new(i))).0)
                .collect();
            let other = Arc::clone(&slots);
            let (a, b) = (ids[0], ids[1]);
            let taker = thread::spawn(move || {
                let mut n = 0;
                other.take(a, |_| n += 1);
                other.take(b, |_| n += 1);
                n
            });
            let mut n = 0;
            slots.take(b, |_| n += 1);
            // The poster goes on meanwhile.
            if let Some(room) = poster.room() {
                room.fill(7, |w| w.push(Box::new(7)));
            }
            assert_eq!(n + taker.join().unwrap(), 2);
        });
    }
}
