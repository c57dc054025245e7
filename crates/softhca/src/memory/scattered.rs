//! Memory in pieces that a region shows as one range.
//!
//! Invariants:
//! 1. This type holds addresses only: nothing is read or written through it.
#![allow(unsafe_code)] // `Send` and `Sync`, with their argument

use core::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A builder of [`Scattered`], which takes pieces of memory one by one.
#[derive(Debug, Default)]
pub struct Pieces {
    /// Where each begins in the whole, and in memory.
    starts: Vec<(usize, NonNull<u8>)>,
    len: usize,
    /// Where the last one ends in memory.
    end: usize,
}

// SAFETY: (1)
unsafe impl Send for Pieces {}
// SAFETY: (1)
unsafe impl Sync for Pieces {}

impl Pieces {
    /// Appends a piece. `None`: the piece is empty, or the total length exceeds the address space.
    pub fn push(&mut self, at: NonNull<u8>, piece: usize) -> Option<()> {
        let len = self.len.checked_add(piece)?;
        if self.starts.is_empty() || at.addr().get() != self.end {
            self.starts.push((self.len, at));
        }
        self.end = at.addr().get().checked_add(piece).filter(|_| piece > 0)?;
        self.len = len;
        Some(())
    }

    /// The appended pieces side by side. `None`: there are none.
    pub fn finish(mut self) -> Option<Scattered> {
        self.starts.shrink_to_fit();
        (self.len > 0).then_some(Scattered { starts: self.starts, len: self.len, last: AtomicUsize::new(0) })
    }
}

/// Pieces of memory side by side, for [`SoftHca::reg_scattered`](crate::SoftHca::reg_scattered). Pieces that are
/// adjacent in memory are joined, so that a list of pages costs no more than its gaps.
#[derive(Debug)]
pub struct Scattered {
    /// Where each piece begins in the whole, and in memory.
    starts: Vec<(usize, NonNull<u8>)>,
    len: usize,
    /// The piece that was found last: most accesses are to it, or to the next one.
    last: AtomicUsize,
}

// SAFETY: (1)
unsafe impl Send for Scattered {}
// SAFETY: (1)
unsafe impl Sync for Scattered {}

impl Scattered {
    /// Memory of these pieces, each with its length. `None`: there is no piece, one is empty, or the total length
    /// exceeds the address space.
    pub fn new(pieces: impl IntoIterator<Item = (NonNull<u8>, usize)>) -> Option<Self> {
        let mut all = Pieces::default();
        for (at, piece) in pieces {
            all.push(at, piece)?;
        }
        all.finish()
    }

    /// The total number of bytes.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.len
    }

    /// The number of pieces.
    pub fn pieces(&self) -> usize {
        self.starts.len()
    }

    /// The address of the byte at `offset`, and the number of bytes from there to the end of its piece.
    ///
    /// # Panics
    /// The offset is not below the total length.
    pub fn at(&self, offset: usize) -> (NonNull<u8>, usize) {
        assert!(offset < self.len, "{offset} of {} bytes", self.len);
        let last = self.last.load(Ordering::Relaxed);
        let holds = |i: usize| self.starts[i].0 <= offset && offset < self.end(i);
        let found = if holds(last) {
            last
        } else if last + 1 < self.starts.len() && holds(last + 1) {
            last + 1
        } else {
            // The first one begins at 0.
            self.starts.partition_point(|(start, _)| *start <= offset) - 1
        };
        self.last.store(found, Ordering::Relaxed);
        let (start, at) = self.starts[found];
        let skip = offset - start;
        // Within the piece, so it is not 0 either.
        let place = at.map_addr(|a| a.saturating_add(skip));
        (place, self.end(found) - offset)
    }

    /// Iterates over the parts of `len` bytes from `offset` on, each of which lies in one piece.
    ///
    /// # Panics
    /// The range exceeds the total length.
    pub fn parts(&self, offset: usize, len: usize) -> impl Iterator<Item = (NonNull<u8>, usize)> {
        let mut done = 0;
        core::iter::from_fn(move || {
            let (at, room) = (done < len).then(|| self.at(offset + done))?;
            let part = room.min(len - done);
            done += part;
            Some((at, part))
        })
    }

    fn end(&self, piece: usize) -> usize {
        self.starts.get(piece + 1).map_or(self.len, |(start, _)| *start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stand_side_by_side_and_those_that_follow_each_other_are_one() {
        let mut memory = [0_u8; 100];
        let base = NonNull::from(&mut memory[..]).cast::<u8>();
        let piece = |at: usize, len: usize| (base.map_addr(|a| a.saturating_add(at)), len);
        let pieces = [piece(50, 10), piece(0, 5), piece(5, 15), piece(90, 1)];
        let all = Scattered::new(pieces).unwrap();
        assert_eq!((all.len(), all.pieces()), (31, 3));
        let place = |offset| {
            let (at, room) = all.at(offset);
            (at.addr().get() - base.addr().get(), room)
        };
        // In any order, whatever was found last.
        for (offset, found) in [
            (30, (90, 1)),
            (0, (50, 10)),
            (9, (59, 1)),
            (10, (0, 20)),
            (29, (19, 1)),
            (12, (2, 18)),
            (30, (90, 1)),
        ] {
            assert_eq!(place(offset), found, "{offset}");
        }
        let parts: Vec<usize> = all.parts(8, 23).map(|(_, len)| len).collect();
        assert_eq!(parts, [2, 20, 1]);
        assert!(Scattered::new([]).is_none() && Scattered::new([piece(0, 0)]).is_none());
    }
}
