//! Queues and doorbell records: memory that the adapter reads and writes at any time, as words.
//!
//! Invariants:
//! 1. `first .. first + count` are cells of 16 bytes, aligned to that, and valid as long as `owner` lives.
//! 2. The adapter may write the cells at any time: they are accessed by atomic words only, and no other reference is
//!    made. Words that are read are untrusted: no unchecked word is used as a bound or an index.
//! 3. A [`Ring`] has `mask + 1` blocks, a power of two, which are cells as in 1, and begin at a multiple of 64 bytes.
//! 4. A [`Word`] lies within cells as in 1, aligned.
#![allow(unsafe_code)]

#[cfg(test)]
use core::any::Any;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use hca_vfio::DmaBuf;

/// 16 bytes: the unit in which entries of send queues are measured.
pub(crate) type Cell = [AtomicU64; 2];
/// Bytes of a cell.
pub(crate) const CELL: usize = 16;

/// 64 bytes: the unit in which send queues are counted, and an entry of a completion queue.
pub(crate) type Block = [Cell; 4];

/// Memory shared with the adapter. Clones are the same memory.
#[derive(Clone)]
pub(crate) struct SharedCells {
    first: NonNull<Cell>,
    count: usize,
    owner: Arc<Owner>,
}

/// The owner that keeps the memory.
struct Owner {
    /// Nothing, of memory that no adapter knows.
    buf: Option<DmaBuf>,
    /// Kept as long as the function is open, by whoever gave it out.
    leaked: AtomicBool,
    #[cfg(test)]
    _lines: Option<Arc<dyn Any + Send + Sync>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.leaked.load(Ordering::Relaxed)
            && let Some(buf) = self.buf.take()
        {
            buf.leak();
        }
    }
}

// SAFETY: (2) it is reached by atomics only, and its owner may go to any thread.
unsafe impl Send for SharedCells {}
// SAFETY: as above.
unsafe impl Sync for SharedCells {}

impl Deref for SharedCells {
    type Target = [Cell];
    #[inline(always)]
    fn deref(&self) -> &[Cell] {
        // SAFETY: (1) it is there as long as `self`, which keeps the owner; (2) these are atomics.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl SharedCells {
    /// All of `buf`.
    pub(crate) fn of(buf: DmaBuf) -> Self {
        let (first, count) = (buf.addr().cast(), buf.len() / CELL);
        // (1) a buffer is whole pages, mapped as long as it lives.
        let owner = Owner {
            buf: Some(buf),
            leaked: AtomicBool::new(false),
            #[cfg(test)]
            _lines: None,
        };
        Self { first, count, owner: Arc::new(owner) }
    }

    /// Memory that no adapter knows.
    #[cfg(test)]
    pub(crate) fn on_heap(count: usize) -> Self {
        #[repr(align(64))]
        struct Line(#[expect(dead_code)] [Cell; 4]);
        let line = || Line(core::array::from_fn(|_| [AtomicU64::new(0), AtomicU64::new(0)]));
        let lines: Vec<Line> = (0..count.div_ceil(4)).map(|_| line()).collect();
        let lines: Arc<[Line]> = lines.into();
        let first = NonNull::from(&lines[..]).cast();
        // (1) a line is four cells, and an `Arc`'s content does not move.
        let owner = Owner { buf: None, leaked: AtomicBool::new(false), _lines: Some(Arc::new(lines)) };
        Self { first, count, owner: Arc::new(owner) }
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it does not lie within.
    pub(crate) fn part(&self, at: usize, count: usize) -> Self {
        // (1) by the check of the range.
        Self { first: NonNull::from(&self[at..at + count]).cast(), count, owner: self.owner.clone() }
    }

    /// The word of 4 bytes at a multiple of 4: a doorbell record's.
    ///
    /// # Panics
    /// If it lies outside or is not aligned.
    #[inline(always)]
    pub(crate) fn word32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at / CELL < self.count, "no word at {at:#x} of {} cells", self.count);
        // SAFETY: (1) within, aligned; (2).
        unsafe { AtomicU32::from_ptr(self.first.as_ptr().cast::<u32>().add(at / 4)) }
    }

    /// The same word, looked up once.
    ///
    /// # Panics
    /// As [`word32`](Self::word32).
    pub(crate) fn word(&self, at: usize) -> Word {
        // (4) by the checks there.
        Word { word: NonNull::from(self.word32(at)), _owner: self.owner.clone() }
    }

    /// Keeps the memory until the function is closed: the adapter may still reach it.
    pub(crate) fn leak(&self) {
        self.owner.leaked.store(true, Ordering::Relaxed);
    }

    /// Copies `cells` out, for tests and for dumps.
    #[cfg(test)]
    pub(crate) fn bytes(&self, at: usize, cells: usize) -> Vec<u8> {
        self[at..at + cells].iter().flatten().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }
}

/// Blocks in a circle, named by numbers that count on without end. Clones are the same memory.
#[derive(Clone)]
pub(crate) struct Ring {
    first: NonNull<Block>,
    mask: usize,
    cells: SharedCells,
}

// SAFETY: (2), as for the cells.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// All of `cells`.
    ///
    /// # Panics
    /// If they are no power of two of blocks, or begin in the middle of 64 bytes.
    pub(crate) fn new(cells: SharedCells) -> Self {
        let (blocks, rest) = cells.as_chunks::<4>();
        assert!(rest.is_empty() && blocks.len().is_power_of_two(), "{} cells", cells.len());
        assert!(cells.first.addr().get().is_multiple_of(size_of::<Block>()), "not aligned");
        // (3)
        Self { first: cells.first.cast(), mask: blocks.len() - 1, cells }
    }
    /// How many blocks it has.
    pub(crate) fn blocks(&self) -> usize {
        self.mask + 1
    }
    /// The block of a number.
    #[inline(always)]
    pub(crate) fn block(&self, number: u32) -> &Block {
        // SAFETY: (3) what is masked lies within; (1) it is there as long as `self`; (2) these are atomics.
        unsafe { self.first.add(number as usize & self.mask).as_ref() }
    }
    /// The cells, from the first block on.
    pub(crate) fn cells(&self) -> &[Cell] {
        &self.cells
    }
}

/// One word of 4 bytes, as of a doorbell record.
#[derive(Clone)]
pub(crate) struct Word {
    word: NonNull<AtomicU32>,
    _owner: Arc<Owner>,
}

// SAFETY: (2), as for the cells.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Deref for Word {
    type Target = AtomicU32;
    #[inline(always)]
    fn deref(&self) -> &AtomicU32 {
        // SAFETY: (4) it is there as long as `self`, which keeps the owner; (2).
        unsafe { self.word.as_ref() }
    }
}

/// Reads a word as the two rows of 32 bits that the manual draws, the first one in the upper half.
#[inline(always)]
pub(crate) fn rows(word: &AtomicU64) -> u64 {
    u64::from_be(word.load(Ordering::Relaxed))
}

/// Writes two rows of 32 bits.
#[inline(always)]
pub(crate) fn set_rows(word: &AtomicU64, rows: u64) {
    word.store(rows.to_be(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lie_as_the_manual_draws_them() {
        let cells = SharedCells::on_heap(3);
        assert_eq!(cells.len(), 3);
        set_rows(&cells[1][0], 0x0102_0304_0506_0708);
        assert_eq!(cells.bytes(1, 1), [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
        let part = cells.part(1, 2);
        assert_eq!((rows(&part[0][0]), part.len()), (0x0102_0304_0506_0708, 2));
        part.word32(8).store(0x0a0b_0c0d_u32.to_be(), Ordering::Relaxed);
        assert_eq!(cells.bytes(1, 1)[8..], [10, 11, 12, 13, 0, 0, 0, 0]);
    }

    #[test]
    fn a_rings_blocks_come_again_and_words_stay() {
        let cells = SharedCells::on_heap(8);
        let ring = Ring::new(cells.clone());
        let word = cells.word(20);
        drop(cells);
        set_rows(&ring.block(3)[2][1], 7);
        assert_eq!((ring.blocks(), rows(&ring.cells()[6][1]), rows(&ring.block(u32::MAX)[2][1])), (2, 7, 7));
        word.store(9_u32.to_be(), Ordering::Relaxed);
        assert_eq!(rows(&ring.block(0)[1][0]), 9);
    }

    #[test]
    fn what_lies_outside_is_refused() {
        let cells = SharedCells::on_heap(2);
        for f in [
            (|c| drop(c.part(1, 2))) as fn(&SharedCells),
            |c| c.word32(32).store(0, Ordering::Relaxed),
            |c| c.word32(2).store(0, Ordering::Relaxed),
            |c| drop(c.word(32)),
            |c| drop(Ring::new(c.clone())),
        ] {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&cells)));
            assert!(caught.is_err());
        }
    }
}
