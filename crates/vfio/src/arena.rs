//! Arenas: the library's own memory for DMA, mapped once in large chunks and given out in small pieces.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::dma::DmaMapping;
use crate::error::DmaError;
use crate::function::PciFunction;
use crate::iova::{Iova, Ranges};
use crate::memory::{HUGE, Memory};

/// The unit of pieces in bytes: a piece's length and its address are multiples of this.
pub const PIECE_BYTES: usize = 4096;
/// The largest alignment of a piece.
pub const MAX_PIECE_ALIGN: usize = HUGE;

/// A chunk that is longer than a usual one, and than this, is given back with its last piece.
const KEPT_BYTES: usize = 64 << 20;

/// The options of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaOptions {
    /// The bytes of one chunk, which is allocated and mapped at a time; a longer piece gets a chunk of its own. Rounded
    /// up to whole pages.
    pub chunk_bytes: usize,
    /// Whether to take huge pages of 2 MiB where the system has set some aside (`sysctl vm.nr_hugepages`). Chunks are
    /// multiples of 2 MiB then. A vfio-user server must not map such pages, since their owner could crash the server by
    /// punching holes. So over vfio-user the pages are ordinary ones, which the system may merge to transparent huge
    /// pages.
    pub huge_pages: bool,
}

impl Default for ArenaOptions {
    fn default() -> Self {
        Self { chunk_bytes: HUGE, huge_pages: false }
    }
}

/// Memory for DMA of one function. Clones are the same arena.
///
/// A mapping costs a system call or a message, and some time for each page. So a chunk stays mapped when its pieces are
/// free, unless it was allocated for one long piece; [`trim`](Self::trim) gives back unused chunks. An arena keeps its
/// function open.
#[derive(Clone)]
pub struct DmaArena(Arc<Inner>);

struct Inner {
    function: PciFunction,
    options: ArenaOptions,
    chunks: Mutex<Vec<Slot>>,
}

struct Slot {
    chunk: Arc<Chunk>,
    free: Ranges,
    /// From here on nothing was given out yet, and all is 0.
    fresh: u64,
}

/// Memory that is mapped.
struct Chunk {
    memory: Arc<Memory>,
    mapping: Option<DmaMapping>,
    iova: Iova,
    function: PciFunction,
}

impl Chunk {
    fn unmap(&mut self) -> Result<(), DmaError> {
        let Some(mapping) = self.mapping.take() else { return Ok(()) };
        self.function.dma_unmap(mapping)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // The function is the parent's, and what it reaches.
        if self.function.0.fork.is_child() {
            return;
        }
        if let Err(e) = self.unmap() {
            // The function's table holds the memory until the function is closed.
            tracing::warn!(%e, "memory stays mapped");
        }
    }
}

impl fmt::Debug for DmaArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaArena").field("function", &self.0.function).finish_non_exhaustive()
    }
}

impl Inner {
    fn chunks(&self) -> MutexGuard<'_, Vec<Slot>> {
        // It is whole between any two of its operations.
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DmaArena {
    /// An arena that has no memory yet.
    pub fn new(function: &PciFunction, options: ArenaOptions) -> Self {
        let inner = Inner { function: function.clone(), options, chunks: Mutex::new(Vec::new()) };
        Self(Arc::new(inner))
    }

    /// Zeroed memory of at least `bytes` bytes, in whole pages of [`PIECE_BYTES`], which begins at a multiple of
    /// `align` here and for the device.
    ///
    /// # Errors
    /// Nothing was asked for, `align` is no power of two up to [`MAX_PIECE_ALIGN`], there is no memory, or the memory
    /// can't be mapped.
    pub fn alloc(&self, bytes: usize, align: usize) -> Result<DmaBuf, DmaError> {
        let refused = || DmaError::Size { bytes, align, max_align: MAX_PIECE_ALIGN };
        let len = bytes.checked_next_multiple_of(PIECE_BYTES).filter(|l| *l > 0 && *l <= isize::MAX as usize);
        let len = len.filter(|_| align.is_power_of_two() && align <= MAX_PIECE_ALIGN).ok_or_else(refused)?;
        let from = |slots: &mut Vec<Slot>| slots.iter_mut().find_map(|s| s.take(len, align));
        if let Some((chunk, at, dirty)) = from(&mut self.0.chunks()) {
            return Ok(self.buf(chunk, at, len, dirty));
        }
        // Without the lock: pieces are given back meanwhile.
        let mut slot = self.chunk(len, align)?;
        let (chunk, at, dirty) = slot.take(len, align).expect("a new chunk is aligned, and long enough");
        self.0.chunks().push(slot);
        Ok(self.buf(chunk, at, len, dirty))
    }

    fn chunk(&self, len: usize, align: usize) -> Result<Slot, DmaError> {
        let ArenaOptions { chunk_bytes, huge_pages } = self.0.options;
        let unit = if huge_pages { HUGE } else { PIECE_BYTES };
        let unit = unit.max(self.0.function.0.dma.granule());
        let len = len.max(chunk_bytes).checked_next_multiple_of(unit);
        let too_long = DmaError::Size { bytes: chunk_bytes, align: 1, max_align: MAX_PIECE_ALIGN };
        let function = self.0.function.clone();
        let huge = huge_pages && function.0.backend.takes_huge_pages();
        let memory = Arc::new(Memory::new(len.ok_or(too_long)?, huge)?);
        let mapping = function.0.dma.map_own(&*function.0.backend, &memory, align)?;
        let free = Ranges::new(PIECE_BYTES as u64, &[0..=memory.len() as u64 - 1]);
        let iova = mapping.iova();
        let chunk = Arc::new(Chunk { memory, iova, mapping: Some(mapping), function });
        Ok(Slot { chunk, free, fresh: 0 })
    }

    fn buf(&self, chunk: Arc<Chunk>, at: usize, len: usize, dirty: usize) -> DmaBuf {
        chunk.memory.zero(at, dirty);
        DmaBuf { arena: self.0.clone(), chunk, at, len, leaked: false }
    }

    /// Gives back the chunks without pieces in use. Returns their bytes.
    ///
    /// # Errors
    /// A chunk could not be unmapped from the device. Its memory stays until the function is closed.
    pub fn trim(&self) -> Result<usize, DmaError> {
        // Who has just given back its last piece may still hold the chunk; new holders come under the lock only.
        let unused = |s: &mut Slot| s.free.all_free() && Arc::strong_count(&s.chunk) == 1;
        let unused: Vec<Slot> = self.0.chunks().extract_if(.., unused).collect();
        let (mut bytes, mut outcome) = (0, Ok(()));
        for slot in unused {
            let len = slot.chunk.memory.len();
            let mut chunk = Arc::into_inner(slot.chunk).expect("nobody else held it under the lock");
            match chunk.unmap() {
                Ok(()) => bytes += len,
                Err(e) => outcome = Err(e),
            }
        }
        outcome.map(|()| bytes)
    }

    /// The number of mapped bytes.
    pub fn mapped_bytes(&self) -> usize {
        self.0.chunks().iter().map(|s| s.chunk.memory.len()).sum()
    }
    /// Whether all mapped memory is huge pages that the system has set aside.
    pub fn is_huge(&self) -> bool {
        self.0.chunks().iter().all(|s| s.chunk.memory.is_huge())
    }
}

impl Slot {
    /// A piece: where it is, and how much at its begin is not 0 for sure.
    fn take(&mut self, len: usize, align: usize) -> Option<(Arc<Chunk>, usize, usize)> {
        // Here all chunks are aligned as much as any piece.
        if !self.chunk.iova.0.is_multiple_of(align as u64) {
            return None;
        }
        let at = self.free.take(len as u64, align as u64)?;
        let dirty = self.fresh.saturating_sub(at).min(len as u64);
        self.fresh = self.fresh.max(at + len as u64);
        Some((self.chunk.clone(), at as usize, dirty as usize))
    }
}

/// A piece of an arena's memory. Dropping it returns it to the arena: the device must have released it by then. If that
/// is unknown, [`leak`](Self::leak) it.
///
/// The device may write it at any time, so a piece never gives out a slice: bytes are copied in and out, words are
/// atomics.
pub struct DmaBuf {
    arena: Arc<Inner>,
    chunk: Arc<Chunk>,
    at: usize,
    len: usize,
    leaked: bool,
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBuf").field("iova", &self.iova()).field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // A thread that a child has not may have held the lock.
        if self.leaked || self.chunk.function.0.fork.is_child() {
            return;
        }
        let mut chunks = self.arena.chunks();
        let at = chunks.iter().position(|s| Arc::ptr_eq(&s.chunk, &self.chunk));
        let at = at.expect("a chunk of which a piece is given out stays");
        let slot = &mut chunks[at];
        slot.free.give(self.at as u64, self.len as u64);
        let long = slot.chunk.memory.len() > KEPT_BYTES.max(self.arena.options.chunk_bytes);
        let unused = (long && slot.free.all_free()).then(|| chunks.swap_remove(at));
        // What goes with it, as does `self.chunk`, is unmapped without the lock.
        drop(chunks);
        drop(unused);
    }
}

impl DmaBuf {
    /// The address for the device.
    pub fn iova(&self) -> Iova {
        Iova(self.chunk.iova.0 + self.at as u64)
    }
    /// The address in this process, for callers that give it to a device as raw memory.
    pub fn addr(&self) -> NonNull<u8> {
        let base = self.chunk.memory.base();
        NonNull::new(base.as_ptr().wrapping_add(self.at)).expect("within the mapping, which is not at 0")
    }
    /// The length in bytes: whole pages.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether the piece is empty: never, as it has one page at least.
    pub fn is_empty(&self) -> bool {
        false
    }

    #[inline(always)]
    fn check(&self, at: usize, len: usize) -> usize {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at:#x} of {:#x}", self.len);
        self.at + at
    }
    /// The word of 4 bytes at a multiple of 4.
    ///
    /// # Panics
    /// If the word lies outside of the piece or is not aligned. The other accessors panic likewise.
    #[inline]
    pub fn word32(&self, at: usize) -> &AtomicU32 {
        self.chunk.memory.word32(self.check(at, 4))
    }
    /// The word of 8 bytes at a multiple of 8.
    #[inline]
    pub fn word64(&self, at: usize) -> &AtomicU64 {
        self.chunk.memory.word64(self.check(at, 8))
    }
    /// Copies bytes in. The device sees aligned words of 8 bytes whole, in no order.
    pub fn store(&self, at: usize, data: &[u8]) {
        self.chunk.memory.store(self.check(at, data.len()), data);
    }
    /// Copies bytes out. Aligned words of 8 bytes are read whole, in no order.
    pub fn load(&self, at: usize, out: &mut [u8]) {
        self.chunk.memory.load(self.check(at, out.len()), out);
    }
    /// Sets bytes to 0, from `at` on.
    pub fn zero(&self, at: usize, len: usize) {
        self.chunk.memory.zero(self.check(at, len), len);
    }
    /// Leaks the piece: its memory is never reused, and stays until the arena is dropped, which unmaps the memory from
    /// the device first.
    pub fn leak(mut self) {
        self.leaked = true;
    }
}
