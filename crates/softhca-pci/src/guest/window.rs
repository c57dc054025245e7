//! Runs of client memory side by side. The invariants (1) to (3) are those of [`super`].
#![allow(unsafe_code)]

use core::num::NonZeroUsize;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::sync::Arc;

use hca_dma as dma;
use softhca::{Pieces, Scattered};

use super::{Mapping, NoWindow, Piece};

/// Ranges among which that of a page is looked for: the memory of a machine without an IOMMU is in few of them, and its
/// pages come in any order.
const LATEST: usize = 4;
/// Bytes of a table for a piece of a window, and for a range of which it shows a part, about.
const PIECE: usize = 16;
const RANGE: usize = 64;

/// The contents of a window.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pieces: Pieces,
    /// The pieces are longer than addresses go.
    too_long: bool,
    /// The ranges of which it shows parts, joined where one follows the other: where each begins for the client, and where
    /// it ends.
    pub(super) ranges: Vec<(u64, u64)>,
    /// The owners of the mappings, by address, and the one that was used last.
    memories: BTreeMap<NonZeroUsize, Arc<Mapping>>,
    last: Option<NonZeroUsize>,
}

impl Shown {
    pub(super) fn add(&mut self, piece: &Piece<'_>) {
        self.too_long |= self.pieces.push(piece.addr, piece.len as usize).is_none();
        let holds = |range: &(u64, u64)| range.0 <= piece.range.0 && piece.range.1 <= range.1;
        if !self.ranges.iter().rev().take(LATEST).any(holds) {
            match self.ranges.last_mut() {
                Some(last) if last.1 == piece.range.0 => last.1 = piece.range.1,
                _ => self.ranges.push(piece.range),
            }
        }
        let base = Some(piece.memory.base.addr());
        if let Some(new) = base.filter(|_| self.last != base) {
            self.memories.insert(new, piece.memory.clone());
            self.last = base;
        }
    }

    /// Whether it shows a part of a range that lies here, at least in part.
    pub(super) fn touches(&self, iova: u64, size: u64) -> bool {
        let end = iova.saturating_add(size);
        self.ranges.iter().any(|range| range.0 < end && iova < range.1)
    }

    pub(super) fn finish(self, write: bool) -> Result<Window, NoWindow> {
        let Self { pieces, too_long, mut ranges, memories, .. } = self;
        ranges.sort_unstable();
        // Ranges lie apart, or are the same, or follow each other.
        ranges.dedup_by(|next, last| {
            let joined = next.0 <= last.1;
            if joined {
                last.1 = last.1.max(next.1);
            }
            joined
        });
        let memory = Arc::new(pieces.finish().filter(|_| !too_long).ok_or(NoWindow::Pages)?);
        let (addr, in_one) = memory.at(0);
        let len = memory.len();
        let scattered = (in_one < len).then_some(memory);
        let (ranges, memories) = (ranges.into(), memories.into_values().collect());
        Ok(Window { addr, scattered, len, write, ranges, _memories: memories })
    }
}

/// Client memory side by side.
#[derive(Debug)]
pub(crate) struct Window {
    /// Its first byte, and where it goes on if that is not right behind it.
    addr: NonNull<u8>,
    scattered: Option<Arc<Scattered>>,
    len: usize,
    write: bool,
    /// The ranges of which it shows parts, in order, joined where one follows the other: where each begins for the client,
    /// and where it ends.
    ranges: Box<[(u64, u64)]>,
    /// The owner of the mapping.
    pub(super) _memories: Box<[Arc<Mapping>]>,
}

// SAFETY: an address in mappings that it keeps; the memory is reached as (3) says, from any thread.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the tables in which it stands, about.
    pub(crate) fn table_bytes(&self) -> usize {
        self.scattered.as_ref().map_or(0, |memory| memory.pieces() * PIECE) + self.ranges.len() * RANGE
    }

    /// Whether it is for writing.
    pub(crate) fn is_writable(&self) -> bool {
        self.write
    }

    /// The first byte, for the adapter's own accesses; good as long as the window lives.
    pub(crate) fn addr(&self) -> NonNull<u8> {
        self.addr
    }

    /// Its memory, if that is in several pieces; good as long as the window lives.
    pub(crate) fn scattered(&self) -> Option<&Arc<Scattered>> {
        self.scattered.as_ref()
    }

    /// The ranges of which it shows parts, in order, joined where one follows the other: where each begins for the
    /// client, and where it ends.
    pub(crate) fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// Whether a range of which it shows a part lies in this one of the client's, at least in part. Ranges are unmapped as
    /// a whole.
    pub(crate) fn touches(&self, iova: u64, size: u64) -> bool {
        let first = self.ranges.partition_point(|(_, end)| *end <= iova);
        // The highest half of all addresses ends where no number does.
        self.ranges.get(first).is_some_and(|(begin, _)| *begin < iova.saturating_add(size))
    }

    /// Where `len` bytes at `at` are, which lie in one piece.
    #[inline]
    fn place(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of a window of {}", self.len);
        let Some(memory) = &self.scattered else {
            // SAFETY: within the mapping, as the window is.
            return unsafe { self.addr.as_ptr().add(at) };
        };
        let (place, room) = memory.at(at);
        assert!(len <= room, "{len} bytes at {at} are in pieces");
        place.as_ptr()
    }

    /// Goes through `len` bytes at `at`, piece by piece.
    #[inline]
    fn each(&self, at: usize, len: usize, mut f: impl FnMut(*mut u8, core::ops::Range<usize>)) {
        // No byte may lie where the window ends.
        if len == 0 {
            return;
        }
        let Some(memory) = &self.scattered else { return f(self.place(at, len), 0..len) };
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of a window of {}", self.len);
        let mut done = 0;
        for (place, part) in memory.parts(at, len) {
            f(place.as_ptr(), done..done + part);
            done += part;
        }
    }

    /// Copies out.
    ///
    /// # Panics
    /// It does not lie within: offsets are ours, not the client's.
    #[inline]
    pub(crate) fn load(&self, at: usize, into: &mut [u8]) {
        self.each(at, into.len(), |from, part| {
            // SAFETY: (1), (2): within, and readable.
            unsafe { dma::load(from, &mut into[part]) };
        });
    }

    /// Copies in.
    ///
    /// # Panics
    /// It does not lie within, or is not for writing.
    #[inline]
    pub(crate) fn store(&self, at: usize, bytes: &[u8]) {
        assert!(self.write, "the window is for writing");
        self.each(at, bytes.len(), |to, part| {
            // SAFETY: (1), (2): within, and writable.
            unsafe { dma::store(to, &bytes[part]) };
        });
    }

    /// Loads 4 bytes at once as a big-endian number; what the client had stored before it stored them is seen by later
    /// loads.
    ///
    /// # Panics
    /// It does not lie within, or is not aligned.
    #[inline]
    pub(crate) fn load32(&self, at: usize) -> u32 {
        let place = self.place(at, 4);
        assert!(place.addr().is_multiple_of(4), "{at} is not aligned");
        let mut bytes = [0; 4];
        // Pairs with the client's barrier between requests and record.
        // SAFETY: (1), (2) mapped; aligned; (3).
        unsafe { dma::load(place, &mut bytes) };
        u32::from_be_bytes(bytes)
    }

    /// Stores 8 bytes at once, behind all that was stored before.
    ///
    /// # Panics
    /// It does not lie within, is not aligned, or is not for writing.
    #[inline]
    pub(crate) fn store64(&self, at: usize, bytes: [u8; 8]) {
        assert!(self.write, "the window is for writing");
        let place = self.place(at, 8);
        assert!(place.addr().is_multiple_of(8), "{at} is not aligned");
        // Pairs with the client's look at the last byte, behind which it reads the rest.
        // SAFETY: (1), (2) mapped and writable; aligned; (3).
        unsafe { dma::store(place, &bytes) };
    }
}
