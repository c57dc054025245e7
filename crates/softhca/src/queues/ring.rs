//! A ring of fixed slots between one producer and one consumer: send queues, receive queues and
//! completion queues.
//!
//! A slot is a header and an area of 16-byte cells (scatter/gather entries or inline bytes). The
//! consumer may read a slot any number of times before it releases it, in order.
//!
//! Invariants:
//! 1. There is one [`Producer`] and one [`Consumer`] a ring; neither can be cloned, and each method that moves an index
//!    takes `&mut self`.
//! 2. Slots of the indices `head .. tail` belong to the consumer, all others to the producer; both
//!    indices run free (wrapping), and `tail - head <= depth <= slots`.
//! 3. Only the producer stores `tail`, with Release after it has written the slots; only the consumer
//!    stores `head`, with Release after it has read them.
//! 4. There are `mask + 1` headers, and `cells_per_slot` times as many cells.
//! 5. [`Producer::retain`] does the consumer's part of (2) and (3). Meanwhile the holder of the consumer does not use
//!    it, and afterwards makes the consumer [resume](Consumer::resume) behind the retained slots.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;

use hca_turn_lock::Barrier;

use crate::sync::{Arc, AtomicU32, CachePadded, Ordering, UnsafeCell};

/// 16 bytes of a slot's area.
pub(crate) type Cell = [u64; 2];

/// The header of a slot.
pub(crate) trait Header: Copy {
    /// Puts it into a slot: by fields where it is large, as a copy of the whole waits for the stores that made it.
    #[inline(always)]
    fn put(self, slot: &mut MaybeUninit<Self>) {
        slot.write(self);
    }
}
impl Header for u32 {}
impl Header for hca_core::Completion {}

struct Ring<H> {
    headers: Box<[UnsafeCell<MaybeUninit<H>>]>,
    cells: Box<[UnsafeCell<Cell>]>,
    cells_per_slot: usize,
    mask: u32,
    depth: u32,
    head: CachePadded<AtomicU32>,
    tail: CachePadded<AtomicU32>,
}

// SAFETY: (2) a slot is touched by one side at a time, and (3) hands it over with Release/Acquire; `H`
// moves between the threads, hence `H: Send`.
unsafe impl<H: Send> Send for Ring<H> {}
// SAFETY: as above.
unsafe impl<H: Send> Sync for Ring<H> {}

/// The side that fills slots.
pub(crate) struct Producer<H> {
    ring: Arc<Ring<H>>,
    tail: u32,
    /// `head` as last seen.
    head: u32,
}

/// The side that reads and releases slots.
pub(crate) struct Consumer<H> {
    ring: Arc<Ring<H>>,
    head: u32,
    /// `tail` as last seen.
    tail: u32,
}

/// The ring has no free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// A ring of `depth` slots, each with an area of `cells` cells. One of none takes nothing.
pub(crate) fn ring<H: Header>(depth: u32, cells: usize) -> (Producer<H>, Consumer<H>) {
    let slots = depth.next_power_of_two();
    let ring = Arc::new(Ring {
        headers: (0..slots).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
        cells: (0..slots as usize * cells).map(|_| UnsafeCell::new([0; 2])).collect(),
        cells_per_slot: cells,
        mask: slots - 1,
        depth,
        head: CachePadded::new(AtomicU32::new(0)),
        tail: CachePadded::new(AtomicU32::new(0)),
    });
    (Producer { ring: ring.clone(), tail: 0, head: 0 }, Consumer { ring, head: 0, tail: 0 })
}

impl<H> Ring<H> {
    /// The header of a slot, by an index that runs free.
    #[inline(always)]
    fn header(&self, index: u32) -> &UnsafeCell<MaybeUninit<H>> {
        // SAFETY: (4): slot `mask` is the last one.
        unsafe { self.headers.get_unchecked((index & self.mask) as usize) }
    }
    /// The cells of a slot, likewise.
    #[inline(always)]
    fn area(&self, index: u32) -> &[UnsafeCell<Cell>] {
        let first = (index & self.mask) as usize * self.cells_per_slot;
        // SAFETY: (4).
        unsafe { self.cells.get_unchecked(first..first + self.cells_per_slot) }
    }
}

impl<H: Header> Producer<H> {
    /// Slots of the ring.
    pub(crate) fn depth(&self) -> u32 {
        self.ring.depth
    }
    /// The end of the slots that were filled.
    pub(crate) fn filled(&self) -> u32 {
        self.tail
    }
    /// Whether the consumer has released all slots that were filled.
    #[inline]
    pub(crate) fn is_released(&self) -> bool {
        // Acquire, as in `has_room`.
        self.ring.head.load(Ordering::Acquire) == self.tail
    }
    /// Whether a slot is free.
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        if self.tail.wrapping_sub(self.head) < self.ring.depth {
            return true;
        }
        // Acquire: pairs with the Release in `Consumer::release`.
        self.head = self.ring.head.load(Ordering::Acquire);
        self.tail.wrapping_sub(self.head) < self.ring.depth
    }
    /// Whether another slot is free behind so many that are not filled yet.
    pub(crate) fn has_room_behind(&mut self, before: usize) -> bool {
        // Acquire, as in `has_room`.
        self.head = self.ring.head.load(Ordering::Acquire);
        self.tail.wrapping_sub(self.head) as usize + before < self.ring.depth as usize
    }
    /// Fills the next slot, header and first cells; the consumer sees it after [`publish`](Self::publish).
    #[inline]
    pub(crate) fn push(&mut self, header: H, cells: impl Iterator<Item = Cell>) -> Result<(), Full> {
        if !self.has_room() {
            return Err(Full);
        }
        // SAFETY: (2) the slot at `tail` is free, so it is the producer's, which we are (1).
        self.ring.header(self.tail).with_mut(|p| unsafe { header.put(&mut *p) });
        let mut area = self.ring.area(self.tail).iter();
        for cell in cells {
            let to = area.next().expect("a list fits its slot");
            // SAFETY: as above; the cells of a slot go with it.
            to.with_mut(|p| unsafe { *p = cell });
        }
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }
    /// Fills the next slot of a ring whose slots are headers alone. `false`: it is full.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn push_header(&mut self, header: &H) -> bool {
        if !self.has_room() {
            return false;
        }
        // SAFETY: (2) the slot at `tail` is free, so it is the producer's, which we are (1).
        self.ring.header(self.tail).with_mut(|p| unsafe { (*header).put(&mut *p) });
        self.tail = self.tail.wrapping_add(1);
        true
    }
    /// Fills the next slot: header, and its first cell, of which a slot must have one.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn push_one(&mut self, header: H, cell: Cell) -> Result<(), Full> {
        if !self.has_room() {
            return Err(Full);
        }
        let first = &self.ring.area(self.tail)[0];
        // SAFETY: (2) the slot at `tail` is free, so it is the producer's, which we are (1).
        self.ring.header(self.tail).with_mut(|p| unsafe { header.put(&mut *p) });
        // SAFETY: as above; the cells of a slot go with it.
        first.with_mut(|p| unsafe { *p = cell });
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }
    /// Fills the next slot: header, and `bytes` from its first cell on; what lies behind them is left as it was.
    ///
    /// # Panics
    /// If a slot's cells do not hold that many bytes.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn push_bytes(&mut self, header: H, bytes: &[u8]) -> Result<(), Full> {
        if !self.has_room() {
            return Err(Full);
        }
        let cells = self.ring.area(self.tail);
        assert!(bytes.len() <= size_of_val(cells), "{} bytes into {} cells", bytes.len(), cells.len());
        // SAFETY: (2) the slot at `tail` is free, so it is the producer's, which we are (1). Our `UnsafeCell`
        // has the layout of its content, so the cells are one piece of memory, and long enough.
        unsafe {
            self.ring.header(self.tail).with_mut(|p| header.put(&mut *p));
            let to: *mut u8 = cells.as_ptr().cast_mut().cast();
            match bytes.first_chunk::<8>() {
                Some(word) if bytes.len() == 8 => to.cast::<[u8; 8]>().write(*word),
                _ => to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()),
            }
        }
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }
    /// The headers of all slots that the consumer has not released, oldest first. It may release some meanwhile.
    #[cfg(not(loom))]
    pub(crate) fn unreleased(&self) -> impl Iterator<Item = &H> {
        // Acquire, as in `has_room`, though nothing is overwritten.
        let head = self.ring.head.load(Ordering::Acquire);
        (0..self.tail.wrapping_sub(head)).map(move |i| {
            // SAFETY: (2) the consumer reads such slots and writes none; we write none as long as `self` is
            // borrowed; (3) they were written, by us.
            self.ring.header(head.wrapping_add(i)).with(|p| unsafe { (*p).assume_init_ref() })
        })
    }
    /// Takes back all slots that were not handed over.
    #[cfg(not(loom))]
    pub(crate) fn empty_unpublished(&mut self) {
        // Relaxed: only the producer stores it.
        self.tail = self.ring.tail.load(Ordering::Relaxed);
    }
    /// The same, and what they held, oldest first.
    #[cfg(not(loom))]
    pub(crate) fn take_unpublished(&mut self) -> Vec<H> {
        // Relaxed: only the producer stores it.
        let published = self.ring.tail.load(Ordering::Relaxed);
        // SAFETY: (2) slots from `published` on are the producer's, which we are (1), and (3) were written up to
        // `tail`.
        let read = |index| self.ring.header(index).with(|p| unsafe { (*p).assume_init() });
        let taken = (0..self.tail.wrapping_sub(published)).map(|i| read(published.wrapping_add(i))).collect();
        self.empty_unpublished();
        taken
    }
    /// Takes the slots out that `keep` says no to, of those that were handed over and not released; the others stay in
    /// order, as `keep` has changed them. The consumer must be kept from all calls meanwhile (5); who does so orders
    /// them with this one.
    #[cfg(not(loom))]
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut H) -> bool) {
        let ring = &*self.ring;
        let head = ring.head.load(Ordering::Acquire);
        let tail = ring.tail.load(Ordering::Relaxed);
        let mut first = tail;
        for index in (0..tail.wrapping_sub(head)).rev().map(|i| head.wrapping_add(i)) {
            // SAFETY: (5), (2) slots `head .. tail` are the consumer's, whose part this is, (3) and were written.
            let mut value = ring.header(index).with(|p| unsafe { (*p).assume_init() });
            if keep(&mut value) {
                first = first.wrapping_sub(1);
                // SAFETY: as above; `first` lies in `index .. tail`, and what stood there was looked at.
                ring.header(first).with_mut(|p| unsafe { _ = (*p).write(value) });
                for (from, to) in ring.area(index).iter().zip(ring.area(first)) {
                    // SAFETY: as above; the cells of a slot go with it.
                    let cell = from.with(|p| unsafe { *p });
                    // SAFETY: as above.
                    to.with_mut(|p| unsafe { *p = cell });
                }
            }
        }
        ring.head.store(first, Ordering::Release);
    }
    /// Whether the consumer was handed all slots that were filled.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn is_all_published(&self) -> bool {
        // Relaxed: only the producer stores it.
        self.ring.tail.load(Ordering::Relaxed) == self.tail
    }
    /// Hands all filled slots to the consumer.
    #[inline]
    pub(crate) fn publish(&mut self) {
        // Release: pairs with the Acquire in `Consumer::refresh`.
        self.ring.tail.store(self.tail, Ordering::Release);
    }
    /// As [`publish`](Self::publish), where the producer loads a word of the consumer next: either it finds what the
    /// consumer stored before a [heavy](Barrier::heavy) barrier, or the consumer's look at the ring behind that finds
    /// the slots.
    #[inline]
    pub(crate) fn publish_and_look(&mut self, barrier: Barrier) {
        self.publish();
        barrier.light();
    }
}

impl<H: Header> Consumer<H> {
    /// The oldest slot that is not released.
    #[inline]
    pub(crate) fn head(&self) -> u32 {
        self.head
    }
    /// The end of what was seen by the last [`refresh`](Self::refresh).
    #[inline]
    pub(crate) fn tail(&self) -> u32 {
        self.tail
    }
    /// Goes on where the ring begins now, which [`Producer::retain`] has moved, perhaps beyond the end that was seen last.
    #[cfg(not(loom))]
    pub(crate) fn resume(&mut self) {
        // Acquire: pairs with the Release in `retain`.
        self.head = self.ring.head.load(Ordering::Acquire);
        self.refresh();
    }
    /// Looks how far the producer has come, and returns it.
    #[inline]
    pub(crate) fn refresh(&mut self) -> u32 {
        // Acquire: pairs with the Release in `Producer::publish`.
        self.tail = self.ring.tail.load(Ordering::Acquire);
        self.tail
    }
    /// How far the producer has come by now.
    #[inline]
    pub(crate) fn published(&self) -> u32 {
        self.ring.tail.load(Ordering::Acquire)
    }
    /// The same index, of a slot that is the consumer's.
    #[inline]
    fn slot(&self, index: u32) -> u32 {
        assert!(
            index.wrapping_sub(self.head) < self.tail.wrapping_sub(self.head),
            "slot {index} is not in {}..{}",
            self.head,
            self.tail
        );
        index
    }
    /// The header of a slot.
    ///
    /// # Panics
    /// If `index` is not in `head()..tail()`.
    #[cfg(test)]
    pub(crate) fn header(&self, index: u32) -> H {
        let slot = self.slot(index);
        // SAFETY: (2) `slot` checked that it is ours, and (3) that it was written.
        self.ring.header(slot).with(|p| unsafe { (*p).assume_init() })
    }
    /// The header of a slot, by reference.
    ///
    /// # Panics
    /// If `index` is not in `head()..tail()`.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn header_ref(&self, index: u32) -> &H {
        self.header_in(self.slot(index))
    }
    #[cfg(not(loom))]
    #[inline(always)]
    fn header_in(&self, slot: u32) -> &H {
        // SAFETY: as in `header`: our callers have `slot` from `self.slot`. The slot stays ours as long as `self` is
        // borrowed, since `release` takes `&mut self`.
        self.ring.header(slot).with(|p| unsafe { (*p).assume_init_ref() })
    }
    /// The area of a slot.
    ///
    /// # Panics
    /// If `index` is not in `head()..tail()`.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn cells(&self, index: u32) -> &[Cell] {
        self.cells_in(self.slot(index))
    }
    #[cfg(not(loom))]
    #[inline(always)]
    fn cells_in(&self, slot: u32) -> &[Cell] {
        let cells = self.ring.area(slot);
        let first: *const UnsafeCell<Cell> = cells.as_ptr();
        // SAFETY: our `UnsafeCell` has the layout of its content; the cells are ours (2), as in `header_in`, as long
        // as `self` is borrowed.
        unsafe { core::slice::from_raw_parts(first.cast::<Cell>(), cells.len()) }
    }
    /// The header and the area of a slot.
    ///
    /// # Panics
    /// If `index` is not in `head()..tail()`.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn at(&self, index: u32) -> (&H, &[Cell]) {
        let slot = self.slot(index);
        (self.header_in(slot), self.cells_in(slot))
    }
    /// The header of the oldest slot.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn oldest(&mut self) -> Option<&H> {
        if self.head == self.tail && self.refresh() == self.head {
            return None;
        }
        // SAFETY: (2) the slot at `head` is ours, as it is before `tail`, (3) and was written.
        Some(self.ring.header(self.head).with(|p| unsafe { (*p).assume_init_ref() }))
    }
    /// As [`take_headers`](Self::take_headers), with the first word of each slot's first cell.
    #[cfg(not(loom))]
    pub(crate) fn take_with_cells(&mut self, out: &mut [H], words: &mut [u64]) -> usize {
        let count = out.len().min(words.len());
        let seen = self.tail.wrapping_sub(self.head);
        for (i, word) in (0..seen).zip(&mut words[..count]) {
            *word = self.cells(self.head.wrapping_add(i)).first().map_or(0, |cell| cell[0]);
        }
        self.take_headers(&mut out[..count])
    }
    /// Moves the headers of the oldest slots that were seen to `out`, as many as there are and it takes; returns how
    /// many. The slots go back to the producer.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn take_headers(&mut self, out: &mut [H]) -> usize {
        let Some((first, others)) = out.split_first_mut().filter(|_| self.head != self.tail) else {
            return 0;
        };
        // SAFETY: (2) slots `head .. tail` are ours, (3) and were written.
        *first = self.ring.header(self.head).with(|p| unsafe { (*p).assume_init() });
        let next = self.head.wrapping_add(1);
        // Most polls take one.
        let more = if next == self.tail { 0 } else { self.copy_headers(next, others) };
        self.release(next.wrapping_add(more));
        1 + more as usize
    }
    /// Copies the headers of the slots from `index` on that were seen, as many as there are and `out` takes.
    #[cfg(not(loom))]
    #[inline(never)]
    fn copy_headers(&self, index: u32, out: &mut [H]) -> u32 {
        let count = (self.tail.wrapping_sub(index) as usize).min(out.len());
        for (i, out) in (0..).zip(&mut out[..count]) {
            // SAFETY: as in `take_headers`.
            *out = self.ring.header(index.wrapping_add(i)).with(|p| unsafe { (*p).assume_init() });
        }
        count as u32
    }
    /// Gives all slots before `head` back to the producer, which [`refresh`](Self::refresh) must have seen; `look` is
    /// shown the header of each before.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn release_each(&mut self, head: u32, mut look: impl FnMut(&H)) {
        assert!(head.wrapping_sub(self.head) <= self.tail.wrapping_sub(self.head), "slots that were seen");
        let mut index = self.head;
        while index != head {
            // SAFETY: (2) the slots before `tail` are ours, (3) and were written.
            look(self.ring.header(index).with(|p| unsafe { (*p).assume_init_ref() }));
            index = index.wrapping_add(1);
        }
        self.release(head);
    }
    /// Gives all slots before `head` back to the producer.
    #[inline]
    pub(crate) fn release(&mut self, head: u32) {
        debug_assert!(head.wrapping_sub(self.head) <= self.tail.wrapping_sub(self.head));
        self.head = head;
        // Release: pairs with the Acquire in `Producer::has_room`.
        self.ring.head.store(head, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_takes_its_depth_and_no_more() {
        let (mut p, mut c) = ring::<u32>(3, 1);
        for i in 0..3 {
            p.push(i, [[i.into(), 0]].into_iter()).unwrap();
        }
        assert_eq!(p.push(3, core::iter::empty()), Err(Full));
        p.publish();
        assert_eq!(c.refresh(), 3);
        assert_eq!((c.header(1), c.cells(2)[0][0]), (1, 2));
        c.release(1);
        p.push(3, core::iter::empty()).unwrap();
    }

    #[test]
    fn slots_that_are_taken_out_are_free_and_the_others_stay_in_order() {
        let (mut p, mut c) = ring::<u32>(5, 0);
        let mut next = 0;
        // Also where the ring wraps.
        for _ in 0..20 {
            while p.push_header(&next) {
                next += 1;
            }
            p.publish();
            c.refresh();
            c.release(c.head().wrapping_add(1));
            p.retain(|n| *n % 2 == 0);
            c.resume();
            let left = (c.head()..c.refresh()).map(|i| c.header(i)).collect::<Vec<_>>();
            let want = (next - 4..next).filter(|n| n % 2 == 0).collect::<Vec<_>>();
            assert_eq!(left, want);
            for _ in 0..5 - left.len() {
                assert!(p.push_header(&1));
            }
            assert!(!p.push_header(&1));
            p.publish();
            c.refresh();
            c.release(c.tail());
        }
    }

    #[test]
    fn bytes_fill_cells_from_the_first_on() {
        let (mut p, mut c) = ring::<u32>(2, 2);
        p.push_bytes(1, &[7; 3]).unwrap();
        p.push_bytes(2, &[9; 32]).unwrap();
        assert_eq!(p.push_bytes(3, &[]), Err(Full));
        p.publish();
        c.refresh();
        assert_eq!((c.header(0), c.cells(0)[0]), (1, [0x07_0707, 0]));
        assert_eq!((c.header(1), c.cells(1)), (2, &[[0x0909_0909_0909_0909; 2]; 2][..]));
    }

    #[test]
    #[should_panic(expected = "33 bytes into 2 cells")]
    fn more_bytes_than_cells_are_refused() {
        let (mut p, _c) = ring::<u32>(2, 2);
        let _ = p.push_bytes(1, &[0; 33]);
    }

    #[test]
    #[should_panic(expected = "is not in")]
    fn a_released_slot_cannot_be_read() {
        let (mut p, mut c) = ring::<u32>(2, 0);
        p.push(7, core::iter::empty()).unwrap();
        p.publish();
        c.refresh();
        c.release(1);
        c.header(0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// Both write one word and read the other's: one of them at least sees what the other wrote.
    #[test]
    fn who_shows_slots_and_looks_meets_who_asks_and_looks() {
        loom::model(|| {
            let (mut p, mut c) = ring::<u32>(1, 0);
            let asked = Arc::new(AtomicU32::new(0));
            let seen = asked.clone();
            let t = loom::thread::spawn(move || {
                p.push(7, core::iter::empty()).unwrap();
                p.publish_and_look(Barrier::Fence);
                seen.load(Ordering::Relaxed)
            });
            asked.fetch_max(1, Ordering::Relaxed);
            Barrier::Fence.heavy();
            let tail = c.refresh();
            assert!(t.join().unwrap() == 1 || tail == 1);
        });
    }

    #[test]
    fn slots_are_handed_over_whole_and_in_order() {
        loom::model(|| {
            let (mut p, mut c) = ring::<u32>(2, 1);
            let t = loom::thread::spawn(move || {
                for i in 0..3 {
                    while p.push(i, [[i.into(), 0]].into_iter()).is_err() {
                        loom::thread::yield_now();
                    }
                    p.publish();
                }
            });
            let mut next = 0;
            while next < 3 {
                if c.refresh() == next {
                    loom::thread::yield_now();
                    continue;
                }
                assert_eq!(c.header(next), next);
                next += 1;
                c.release(next);
            }
            t.join().unwrap();
        });
    }
}
