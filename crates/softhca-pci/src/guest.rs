//! The client's memory: what it has mapped for the function, and all accesses of it.
//!
//! Nothing else in this crate touches memory of the client's, but through [`Guest`] and the windows that it makes.
//! Every access by address is refused while bus mastering is off; windows are dropped by their owners then.
//!
//! A [`Window`] shows runs of client memory side by side, as the list of pages of a key or of a queue names them: where
//! they lie in one mapping it is a part of that, otherwise the runs are mapped once more next to each other. So a key is
//! one range for the adapter, and a queue has plain offsets.
//!
//! Invariants of the unsafe code:
//!
//! 1. A [`Mapping`] owns `base .. base + len` of this process's addresses: nobody else maps or unmaps there. All of it
//!    is mapped, readable, and writable if its client granted that, until it is dropped.
//! 2. What is mapped are parts of files that can't be shrunk (they are sealed), that reach as far, and that are not of
//!    hugetlbfs: no access ends in a signal. Where holes are punched, which no seal forbids without forbidding writes, the
//!    next access finds zeros in a new page. Only hugetlbfs may have none left.
//! 3. The client writes there whenever it likes: the memory is reached by single atomics and by the copies of
//!    `hca_fabric::dma`, whose invariants hold by 1 and 2; no reference to plain bytes of it is ever made.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use hca_fabric::dma;
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of the pages in which memory is mapped.
pub(crate) const PAGE: u64 = 4096;
/// What the system says of a file of hugetlbfs (`statfs`).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// Mappings of this process that all clients of a server may have at one time: the system limits those of a process
/// (`vm.max_map_count`, 65,530), and the server needs some itself.
const ALL_MAPPINGS: usize = 48 << 10;
/// Addresses of this process that they may have: a quarter of what x86-64 and 64-bit ARM have.
const ALL_BYTES: u64 = 32 << 40;
/// Descriptors that are not for memory: the server's and the adapter's, and those of each function: sockets, doorbells,
/// interrupts, and what comes with one message.
const OWN_DESCRIPTORS: u64 = 64;
const FUNCTION_DESCRIPTORS: u64 = 64;
/// Ranges that each client may map however few descriptors there are.
const FEWEST_MAPS: usize = 32;

/// A function's part of what the process has for all clients: however much one takes, the others have theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Ranges that the client may map, each with a descriptor of its own.
    pub(crate) maps: usize,
    /// Mappings of this process: ranges, and pieces that windows show side by side.
    pub(crate) mappings: usize,
    /// Addresses of this process.
    pub(crate) bytes: u64,
}

impl Part {
    /// The part of one of so many functions, where the process may have so many descriptors.
    pub(crate) fn of(functions: usize, descriptors: u64) -> Self {
        let n = functions.max(1);
        let others = OWN_DESCRIPTORS + FUNCTION_DESCRIPTORS * n as u64;
        let each = usize::try_from(descriptors.saturating_sub(others) / n as u64).unwrap_or(usize::MAX);
        let mappings = ALL_MAPPINGS / n;
        Self { maps: each.max(FEWEST_MAPS).min(mappings), mappings, bytes: ALL_BYTES / n as u64 }
    }
}

impl Default for Part {
    /// That of a function alone.
    fn default() -> Self {
        Self::of(1, u64::MAX)
    }
}

/// An address is not mapped, not for this kind of access, or bus mastering is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device can't reach {len} bytes at {iova:#x}: not mapped by the client, or bus mastering is off")]
pub(crate) struct Fault {
    /// The address.
    pub(crate) iova: u64,
    /// How many bytes from there.
    pub(crate) len: u64,
}

/// Why there is no window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoWindow {
    /// A part is out of reach.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The pages are fewer than the length needs, or lie where pages can't begin.
    #[error("the list of pages does not fit what is to be mapped")]
    Pages,
    /// The memory is in too many pieces.
    #[error(
        "the function's part of the server's mappings or addresses is used up: use larger pages, or fewer keys"
    )]
    Pieces,
    /// The system refuses to map.
    #[error("mapping client memory side by side: {0}")]
    System(Errno),
}

/// A range of addresses of this process that shows parts of files.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    _counted: Counted,
}

/// What a function uses of its part.
#[derive(Debug, Default)]
struct Used {
    mappings: AtomicUsize,
    bytes: AtomicU64,
}

/// Mappings and addresses that count for a function as long as this lives.
#[derive(Debug, Default)]
struct Counted {
    mappings: usize,
    bytes: u64,
    of: Arc<Used>,
}

impl Counted {
    fn new(mappings: usize, bytes: usize, part: Part, of: &Arc<Used>) -> Option<Self> {
        let bytes = bytes as u64;
        let before = of.mappings.fetch_add(mappings, Ordering::Relaxed);
        let bytes_before = of.bytes.fetch_add(bytes, Ordering::Relaxed);
        let counted = Self { mappings, bytes, of: of.clone() };
        let fits = before.saturating_add(mappings) <= part.mappings
            && bytes_before.saturating_add(bytes) <= part.bytes;
        fits.then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.of.mappings.fetch_sub(self.mappings, Ordering::Relaxed);
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

// SAFETY: an address and the right to unmap it; the memory is reached as (3) says, from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: (1) it is ours, and windows hold it as long as they use it.
        if let Err(e) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) } {
            tracing::error!("client memory stays mapped: {e}");
        }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

impl Mapping {
    /// Addresses without memory. (What counts is given here: a value made from the fields of another one would leave
    /// that to be dropped, and its addresses to be anybody's.)
    fn reserve(len: usize, counted: Counted) -> Result<Self, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses changes no memory of ours.
        let base =
            unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::empty(), flags)? };
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at 0 by itself");
        Ok(Self { base, len, _counted: counted })
    }

    /// Shows a part of a file at `at`, which lies within, as all that is mapped there does.
    fn show(
        &mut self,
        at: usize,
        len: usize,
        file: BorrowedFd<'_>,
        offset: u64,
        write: bool,
    ) -> Result<(), Errno> {
        assert!(at <= self.len && len <= self.len - at, "within what was reserved");
        let prot = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: within, by the assertion.
        let place = unsafe { self.base.as_ptr().add(at) };
        // SAFETY: (1) it replaces a part of our own addresses, to which nobody has a window yet.
        unsafe { rustix::mm::mmap(place.cast(), len, prot, flags, file, offset)? };
        Ok(())
    }

    fn of_file(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        write: bool,
        counted: Counted,
    ) -> Result<Self, Errno> {
        let mut this = Self::reserve(len, counted)?;
        this.show(0, len, file, offset, write)?;
        Ok(this)
    }
}

/// The memory behind a mapped range.
#[derive(Debug)]
struct Memory {
    mapping: Arc<Mapping>,
    file: OwnedFd,
    offset: u64,
}

/// A range that the client has mapped. Without memory it can't be reached.
#[derive(Debug)]
struct Map {
    len: u64,
    rights: (bool, bool),
    memory: Option<Memory>,
}

/// A part of a mapped range.
struct Piece<'a> {
    memory: &'a Memory,
    at: u64,
    len: u64,
}

/// All memory that the client has mapped for a function.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    bus_master: bool,
    maps: BTreeMap<u64, Map>,
    part: Part,
    used: Arc<Used>,
}

impl Guest {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// How much of the process's the client may have from now on.
    pub(crate) fn set_part(&mut self, part: Part) {
        self.part = part;
    }

    /// Whether the function may reach memory at all.
    pub(crate) fn set_bus_master(&mut self, on: bool) {
        self.bus_master = on;
    }

    /// Maps a range; `rights` are reading and writing, `file` a descriptor and where in it the range begins. Without a
    /// descriptor the range is known, and can't be reached.
    pub(crate) fn map(
        &mut self,
        iova: u64,
        size: u64,
        rights: (bool, bool),
        file: Option<(OwnedFd, u64)>,
    ) -> Result<(), Errno> {
        let whole_pages = iova.is_multiple_of(PAGE) && size.is_multiple_of(PAGE);
        if size == 0 || !whole_pages || iova.checked_add(size).is_none() {
            return Err(Errno::INVAL);
        }
        if self.overlapping(iova, size).next().is_some() {
            return Err(Errno::EXIST);
        }
        let used_up = || {
            tracing::warn!(
                size,
                "memory of a client was refused: its function's part of the server's {} mappings, {} TiB or descriptors is \
                 used up; use fewer and larger ranges, or a server with fewer functions",
                ALL_MAPPINGS,
                ALL_BYTES >> 40
            );
            Errno::NOSPC
        };
        if self.maps.len() >= self.part.maps {
            return Err(used_up());
        }
        let memory = match file {
            Some((file, offset)) if rights.0 || rights.1 => {
                let len = usize::try_from(size).map_err(|_| Errno::NOMEM)?;
                let counted = Counted::new(1, len, self.part, &self.used).ok_or_else(used_up)?;
                Some(memory_of(file, offset, len, rights.1, counted)?)
            }
            _ => None,
        };
        self.maps.insert(iova, Map { len: size, rights, memory });
        Ok(())
    }

    /// Unmaps all that lies in a range.
    pub(crate) fn unmap(&mut self, iova: u64, size: u64) -> Result<(), Errno> {
        // The highest half of all addresses ends where no number does.
        let end = iova.saturating_add(size);
        let found: Vec<(u64, u64)> = self.overlapping(iova, size).map(|(at, map)| (at, map.len)).collect();
        if found.iter().any(|(at, len)| *at < iova || at + len > end) {
            return Err(Errno::INVAL);
        }
        for (at, _) in found {
            self.maps.remove(&at);
        }
        Ok(())
    }

    /// Unmaps everything.
    pub(crate) fn clear(&mut self) {
        self.maps.clear();
    }

    fn overlapping(&self, iova: u64, size: u64) -> impl Iterator<Item = (u64, &Map)> {
        let end = iova.saturating_add(size);
        let before = self.maps.range(..iova).next_back().filter(|(at, map)| **at + map.len > iova);
        before.into_iter().chain(self.maps.range(iova..end)).map(|(at, map)| (*at, map))
    }

    /// The range that is mapped where an address lies: where it begins, and its length.
    pub(crate) fn range_at(&self, iova: u64) -> Option<(u64, u64)> {
        let (at, map) = self.maps.range(..=iova).next_back()?;
        (iova - at < map.len).then_some((*at, map.len))
    }

    /// The part of a range that lies in one mapping.
    fn piece(&self, iova: u64, len: u64, write: bool) -> Result<Piece<'_>, Fault> {
        let fault = Fault { iova, len };
        let (at, map) = self.maps.range(..=iova).next_back().ok_or(fault)?;
        let within = iova - at;
        let memory = map.memory.as_ref().filter(|_| within < map.len && self.bus_master).ok_or(fault)?;
        if (write && !map.rights.1) || (!write && !map.rights.0) {
            return Err(fault);
        }
        Ok(Piece { memory, at: within, len: len.min(map.len - within) })
    }

    fn each(
        &self,
        iova: u64,
        len: usize,
        write: bool,
        mut f: impl FnMut(*mut u8, core::ops::Range<usize>),
    ) -> Result<(), Fault> {
        iova.checked_add(len as u64).ok_or(Fault { iova, len: len as u64 })?;
        let mut done = 0;
        while done < len {
            let piece = self.piece(iova + done as u64, (len - done) as u64, write)?;
            // Within the mapping: `piece` found it there.
            let from = piece.memory.mapping.base.as_ptr().wrapping_add(piece.at as usize);
            f(from, done..done + piece.len as usize);
            done += piece.len as usize;
        }
        Ok(())
    }

    /// Copies client memory.
    pub(crate) fn read(&self, iova: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.each(iova, into.len(), false, |from, range| {
            // SAFETY: (1), (2): `each` found the range mapped, and readable.
            unsafe { dma::load(from, &mut into[range]) };
        })
    }

    /// Copies to client memory.
    pub(crate) fn write(&self, iova: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.each(iova, bytes.len(), true, |to, range| {
            // SAFETY: (1), (2): `each` found the range mapped, and writable.
            unsafe { dma::store(to, &bytes[range]) };
        })
    }

    /// Stores 4 aligned bytes at once, behind all that was stored before. `value` is what these bytes are in memory
    /// when read as a big-endian number.
    pub(crate) fn store32(&self, iova: u64, value: u32) -> Result<(), Fault> {
        let fault = Fault { iova, len: 4 };
        if !iova.is_multiple_of(4) {
            return Err(fault);
        }
        self.each(iova, 4, true, |to, _| {
            // SAFETY: (1), (2) mapped and writable; aligned, as mappings begin at pages of both; (3) an atomic.
            let word = unsafe { AtomicU32::from_ptr(to.cast()) };
            // Release: pairs with the client's look at this word, behind which it reads the rest.
            word.store(value.to_be(), Ordering::Release);
        })
    }

    /// Shows `runs` (addresses and lengths) side by side.
    pub(crate) fn window(&self, runs: &[(u64, u64)], write: bool) -> Result<Window, NoWindow> {
        let mut pieces = Vec::new();
        let mut total = 0_u64;
        for &(mut iova, mut len) in runs {
            iova.checked_add(len).ok_or(Fault { iova, len })?;
            total = total.checked_add(len).ok_or(NoWindow::Pages)?;
            while len > 0 {
                // What is written is read as well.
                self.piece(iova, len, false)?;
                let piece = self.piece(iova, len, write)?;
                (iova, len) = (iova + piece.len, len - piece.len);
                if pieces.len() >= self.part.mappings {
                    return Err(NoWindow::Pieces);
                }
                pieces.push(piece);
            }
        }
        let len = usize::try_from(total).map_err(|_| NoWindow::Pages)?;
        let runs = runs.to_vec();
        match &pieces[..] {
            [] => Err(NoWindow::Pages),
            [one] => {
                Ok(Window { mapping: one.memory.mapping.clone(), start: one.at as usize, len, write, runs })
            }
            many => {
                let start = (many[0].at % PAGE) as usize;
                Ok(Window {
                    mapping: Arc::new(side_by_side(many, write, self.part, &self.used)?),
                    start,
                    len,
                    write,
                    runs,
                })
            }
        }
    }

    /// Shows `len` bytes of the pages that a command lists (addresses in big endian, 8 bytes each), from `first` bytes
    /// into the first page on.
    pub(crate) fn window_of_pages(
        &self,
        pas: &[u8],
        log_page: u32,
        first: u64,
        len: u64,
        write: bool,
    ) -> Result<Window, NoWindow> {
        let runs = runs_of(pas, log_page, first, len).ok_or(NoWindow::Pages)?;
        self.window(&runs, write)
    }
}

/// Maps a client's file, if it can't make accesses to it end in signals.
fn memory_of(file: OwnedFd, offset: u64, len: usize, write: bool, counted: Counted) -> Result<Memory, Errno> {
    let sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    if !sealed {
        tracing::warn!(
            "memory of a client was refused: its file could be cut while it is used here, as it is not sealed against \
             that; use a memfd with F_SEAL_SHRINK (QEMU: memory-backend-memfd, whose seal=on is the default)"
        );
        return Err(Errno::PERM);
    }
    if rustix::fs::fstatfs(&file)?.f_type as u64 & 0xffff_ffff == HUGETLBFS_MAGIC {
        tracing::warn!(
            "memory of a client was refused: it is of hugetlbfs, whose pages can be taken away while they are used here, \
             with no others to fill the hole; use ordinary memory, which has huge pages by itself where the system has \
             transparent ones (QEMU: memory-backend-memfd without hugetlb=on)"
        );
        return Err(Errno::OPNOTSUPP);
    }
    let end = offset.checked_add(len as u64).ok_or(Errno::INVAL)?;
    let size = rustix::fs::fstat(&file)?.st_size;
    if !offset.is_multiple_of(PAGE) || u64::try_from(size).is_ok_and(|size| size < end) {
        tracing::warn!(offset, len, size, "memory of a client was refused: it does not lie in its file");
        return Err(Errno::INVAL);
    }
    let mapping = Arc::new(Mapping::of_file(file.as_fd(), offset, len, write, counted)?);
    Ok(Memory { mapping, file, offset })
}

/// Maps pieces once more, next to each other. All but the ends have to lie at whole pages.
fn side_by_side(
    pieces: &[Piece<'_>],
    write: bool,
    part: Part,
    used: &Arc<Used>,
) -> Result<Mapping, NoWindow> {
    let (first, last) = (0, pieces.len() - 1);
    let mut places = Vec::with_capacity(pieces.len());
    let mut room = 0_u64;
    for (i, piece) in pieces.iter().enumerate() {
        let (from, to) = (piece.at / PAGE * PAGE, (piece.at + piece.len).next_multiple_of(PAGE));
        if (i != first && from != piece.at) || (i != last && to != piece.at + piece.len) {
            return Err(NoWindow::Pages);
        }
        places.push((room, from, to - from));
        room = room.checked_add(to - from).ok_or(NoWindow::Pages)?;
    }
    let room = usize::try_from(room).map_err(|_| NoWindow::Pages)?;
    let counted = Counted::new(pieces.len(), room, part, used).ok_or(NoWindow::Pieces)?;
    let mut mapping = Mapping::reserve(room, counted).map_err(NoWindow::System)?;
    for (piece, (place, from, len)) in pieces.iter().zip(places) {
        let (file, offset) = (piece.memory.file.as_fd(), piece.memory.offset + from);
        mapping.show(place as usize, len as usize, file, offset, write).map_err(NoWindow::System)?;
    }
    Ok(mapping)
}

/// The runs of addresses that a list of pages makes, joined where one follows the other.
fn runs_of(pas: &[u8], log_page: u32, first: u64, len: u64) -> Option<Vec<(u64, u64)>> {
    let page = 1_u64.checked_shl(log_page).filter(|_| log_page < 63)?;
    if page < PAGE || first >= page || len == 0 {
        return None;
    }
    let needed = first.checked_add(len)?.div_ceil(page);
    let pages = hca_prm::pas::iter(pas);
    if (pages.len() as u64) < needed {
        return None;
    }
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let (mut skip, mut left) = (first, len);
    for address in pages.take(needed as usize) {
        // The lowest bits can be permissions; pages begin at multiples of 4 KiB at least.
        let at = (address & !(PAGE - 1)).checked_add(skip)?;
        let bytes = (page - skip).min(left);
        match runs.last_mut() {
            Some((from, run)) if from.checked_add(*run) == Some(at) => *run += bytes,
            _ => runs.push((at, bytes)),
        }
        (skip, left) = (0, left - bytes);
    }
    Some(runs)
}

/// Client memory side by side.
#[derive(Debug)]
pub(crate) struct Window {
    mapping: Arc<Mapping>,
    /// Where in the mapping it begins; with `len` it lies within.
    start: usize,
    len: usize,
    write: bool,
    runs: Vec<(u64, u64)>,
}

impl Window {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Its first byte, for the adapter's own accesses; good as long as the window lives.
    pub(crate) fn addr(&self) -> NonNull<u8> {
        // SAFETY: `start` lies within the mapping.
        unsafe { self.mapping.base.add(self.start) }
    }

    /// Whether any of it lies in this range of client addresses.
    pub(crate) fn touches(&self, iova: u64, size: u64) -> bool {
        let end = iova.saturating_add(size);
        self.runs.iter().any(|(at, len)| *at < end && iova < at + len)
    }

    /// Where `len` bytes at `at` are.
    #[inline]
    fn place(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of a window of {}", self.len);
        // SAFETY: within the mapping, as the window is.
        unsafe { self.mapping.base.as_ptr().add(self.start + at) }
    }

    /// Copies out.
    ///
    /// # Panics
    /// It does not lie within: offsets are ours, not the client's.
    #[inline]
    pub(crate) fn load(&self, at: usize, into: &mut [u8]) {
        // SAFETY: (1), (2): within, and readable.
        unsafe { dma::load(self.place(at, into.len()), into) };
    }

    /// Copies in.
    ///
    /// # Panics
    /// It does not lie within, or is not for writing.
    #[inline]
    pub(crate) fn store(&self, at: usize, bytes: &[u8]) {
        assert!(self.write, "the window is for writing");
        // SAFETY: (1), (2): within, and writable.
        unsafe { dma::store(self.place(at, bytes.len()), bytes) };
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
        // SAFETY: (1), (2) mapped; aligned; (3) an atomic.
        let word = unsafe { AtomicU32::from_ptr(place.cast()) };
        // Acquire: pairs with the client's barrier between requests and record.
        u32::from_be(word.load(Ordering::Acquire))
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
        // SAFETY: (1), (2) mapped and writable; aligned; (3) an atomic.
        let word = unsafe { AtomicU64::from_ptr(place.cast()) };
        // Release: pairs with the client's look at the last byte, behind which it reads the rest.
        word.store(u64::from_ne_bytes(bytes), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;
    use rustix::fs::MemfdFlags;

    use super::*;
    use crate::path::bed::sealed;

    fn guest() -> (Guest, File) {
        let (mut guest, file) = (Guest::new(), sealed(16 * PAGE));
        guest.set_bus_master(true);
        // Two ranges that follow each other and lie elsewhere in the file, and one that stands alone.
        let ranges = [(0x10_000, 4, 8), (0x14_000, 4, 0), (0x40_000, 2, 12)];
        for (iova, pages, at) in ranges {
            let copy = file.try_clone().unwrap().into();
            guest.map(iova, pages * PAGE, (true, true), Some((copy, at * PAGE))).unwrap();
        }
        (guest, file)
    }

    #[test]
    fn what_is_written_by_address_stands_in_the_clients_file() {
        let (guest, file) = guest();
        // Over the border of two ranges.
        guest.write(0x13_ffc, b"borderline").unwrap();
        let mut seen = [0; 6];
        file.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(&seen, b"erline");
        file.read_exact_at(&mut seen[..4], 12 * PAGE - 4).unwrap();
        assert_eq!(&seen[..4], b"bord");
        let mut back = [0; 10];
        guest.read(0x13_ffc, &mut back).unwrap();
        assert_eq!(&back, b"borderline");
        guest.store32(0x40_000, 0x0102_0304).unwrap();
        file.read_exact_at(&mut seen[..4], 12 * PAGE).unwrap();
        assert_eq!(seen[..4], [1, 2, 3, 4]);
        assert!(guest.store32(0x40_002, 1).is_err(), "not aligned");
    }

    #[test]
    fn nothing_is_reached_beyond_what_is_mapped_or_without_bus_mastering_or_against_its_rights() {
        let (mut guest, file) = guest();
        let mut byte = [0; 2];
        for iova in [0, 0xf_fff, 0x17_fff, 0x3f_fff, 0x41_fff, 0x42_000, u64::MAX, u64::MAX - 1] {
            assert!(guest.read(iova, &mut byte).is_err(), "{iova:#x}");
            assert!(guest.write(iova, &byte).is_err(), "{iova:#x}");
            assert!(guest.window(&[(iova, 2)], false).is_err(), "{iova:#x}");
        }
        assert!(guest.window(&[], false).is_err());
        guest.map(0x80_000, PAGE, (true, false), Some((file.try_clone().unwrap().into(), 0))).unwrap();
        assert!(guest.read(0x80_000, &mut byte).is_ok() && guest.write(0x80_000, &byte).is_err());
        assert!(guest.window(&[(0x80_000, 8)], true).is_err());
        assert!(guest.window(&[(0x80_000, 8)], false).is_ok());
        guest.map(0x90_000, PAGE, (true, true), None).unwrap();
        assert!(guest.read(0x90_000, &mut byte).is_err(), "without a descriptor");
        guest.set_bus_master(false);
        assert!(guest.read(0x10_000, &mut byte).is_err() && guest.write(0x10_000, &byte).is_err());
        assert!(guest.window(&[(0x10_000, 8)], false).is_err());
    }

    #[test]
    fn a_file_that_could_be_cut_and_one_that_is_too_short_are_refused() {
        let mut guest = Guest::new();
        let open = rustix::fs::memfd_create("client", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, PAGE).unwrap();
        assert_eq!(guest.map(0, PAGE, (true, true), Some((open, 0))), Err(Errno::PERM));
        let plain: OwnedFd = File::open("/proc/self/exe").unwrap().into();
        assert_eq!(guest.map(0, PAGE, (true, false), Some((plain, 0))), Err(Errno::PERM));
        for (offset, len) in [(PAGE, PAGE), (0, 2 * PAGE), (8, PAGE), (u64::MAX - 4095, PAGE)] {
            let file = sealed(PAGE).into();
            assert_eq!(guest.map(0, len, (true, true), Some((file, offset))), Err(Errno::INVAL), "{offset}");
        }
    }

    #[test]
    fn memory_of_hugetlbfs_is_refused() {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let file = match rustix::fs::memfd_create("client", flags) {
            Ok(file) => file,
            Err(e) => return println!("skipped: the system has no hugetlbfs: {e}"),
        };
        rustix::fs::ftruncate(&file, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert_eq!(Guest::new().map(0, 2 << 20, (true, true), Some((file, 0))), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn ranges_do_not_overlap_and_go_as_a_whole() {
        let (mut guest, _file) = guest();
        for (iova, pages) in [(0x13_000, 1), (0xf_000, 2), (0, 0x100), (0x10_000, 4)] {
            assert_eq!(guest.map(iova, pages * PAGE, (true, true), None), Err(Errno::EXIST), "{iova:#x}");
        }
        for (iova, size) in [(0x20_001, PAGE), (0x20_000, 5), (0x20_000, 0), (u64::MAX - 4095, PAGE)] {
            assert_eq!(guest.map(iova, size, (true, true), None), Err(Errno::INVAL), "{iova:#x}");
        }
        assert_eq!(guest.unmap(0x11_000, PAGE), Err(Errno::INVAL), "a part");
        assert_eq!(guest.unmap(0x12_000, 4 * PAGE), Err(Errno::INVAL), "two parts");
        assert_eq!(guest.unmap(0x10_000, 5 * PAGE), Err(Errno::INVAL), "one and a part");
        assert_eq!(guest.unmap(0x20_000, PAGE), Ok(()), "nothing is there");
        // Both at once, with what lies around.
        assert_eq!(guest.unmap(0xf_000, 16 * PAGE), Ok(()));
        assert!(guest.read(0x10_000, &mut [0]).is_err() && guest.read(0x40_000, &mut [0]).is_ok());
        assert_eq!(guest.unmap(0, u64::MAX), Ok(()));
        assert!(guest.read(0x40_000, &mut [0]).is_err());
    }

    #[test]
    fn the_upper_half_of_all_addresses_goes_though_no_number_is_its_end() {
        const HALF: u64 = 1 << 63;
        let (mut guest, file) = guest();
        for iova in [HALF, u64::MAX - 4095 - PAGE] {
            guest.map(iova, PAGE, (true, true), Some((file.try_clone().unwrap().into(), 0))).unwrap();
            let window = guest.window(&[(iova, PAGE)], true).unwrap();
            assert!(window.touches(HALF, HALF) && window.touches(0, u64::MAX) && !window.touches(0, HALF));
        }
        assert_eq!(guest.map(HALF, HALF - PAGE, (true, true), None), Err(Errno::EXIST));
        assert_eq!(guest.unmap(HALF, HALF), Ok(()));
        assert!(guest.read(HALF, &mut [0]).is_err() && guest.read(u64::MAX - 4095 - PAGE, &mut [0]).is_err());
        assert!(guest.read(0x40_000, &mut [0]).is_ok(), "the lower half stays");
    }

    #[test]
    fn a_window_tells_which_addresses_it_shows() {
        let (guest, _file) = guest();
        let window = guest.window(&[(0x40_000, 0x1000), (0x10_000, 0x800)], true).unwrap();
        assert_eq!(window.len(), 0x1800);
        assert!(window.touches(0x40_fff, 1) && window.touches(0, u64::MAX) && window.touches(0x10_7ff, 1));
        assert!(!window.touches(0x10_800, 0x100) && !window.touches(0x41_000, PAGE));
    }

    #[test]
    fn windows_that_threads_make_at_a_time_do_not_take_each_others_place() {
        std::thread::scope(|s| {
            for thread in 0..8_u8 {
                s.spawn(move || {
                    let (guest, file) = guest();
                    file.write_all_at(&[thread + 1; 16 * PAGE as usize], 0).unwrap();
                    for _ in 0..400 {
                        let window = guest.window(&[(0x12_000, PAGE), (0x10_000, 2 * PAGE)], true).unwrap();
                        let mut seen = [0; 3 * PAGE as usize];
                        window.load(0, &mut seen);
                        assert!(seen.iter().all(|byte| *byte == thread + 1), "it shows other memory");
                    }
                });
            }
        });
    }

    #[test]
    fn one_client_has_only_so_many_mappings() {
        const PIECES: usize = 64;
        let (mut guest, _file) = guest();
        // Three are its ranges.
        guest.set_part(Part { mappings: PIECES + 3, ..Part::default() });
        let half: Vec<u8> =
            (0..PIECES as u64 / 2).flat_map(|i| (0x10_000 + i % 2 * 2 * PAGE).to_be_bytes()).collect();
        let show = |times: usize| {
            let pages = half.repeat(times);
            let len = pages.len() as u64 / 8 * PAGE;
            guest.window_of_pages(&pages, 12, 0, len, true)
        };
        assert!(matches!(show(3), Err(NoWindow::Pieces)));
        let (first, second) = (show(1).unwrap(), show(1).unwrap());
        assert!(matches!(guest.window(&[(0x10_000, PAGE), (0x12_000, PAGE)], true), Err(NoWindow::Pieces)));
        assert!(guest.window(&[(0x10_000, PAGE)], true).is_ok(), "nothing is side by side");
        drop(first);
        assert!(guest.window(&[(0x10_000, PAGE), (0x12_000, PAGE)], true).is_ok());
        drop(second);
    }

    #[test]
    fn one_client_has_only_so_many_ranges_and_addresses() {
        let (mut guest, file) = guest();
        let map = |guest: &mut Guest, iova, pages| {
            let copy = file.try_clone().unwrap().into();
            guest.map(iova, pages * PAGE, (true, true), Some((copy, 0)))
        };
        let parts = [
            Part { mappings: 4, ..Part::default() },
            Part { maps: 4, ..Part::default() },
            Part { bytes: 12 * PAGE, ..Part::default() },
        ];
        for part in parts {
            guest.set_part(part);
            map(&mut guest, 0x80_000, 2).unwrap();
            assert_eq!(map(&mut guest, 0x90_000, 1), Err(Errno::NOSPC), "{part:?}");
            assert!(guest.read(0x80_000, &mut [0]).is_ok(), "what is mapped stays");
            guest.unmap(0x80_000, 2 * PAGE).unwrap();
        }
        // What windows show counts as well.
        let show = |guest: &Guest| guest.window(&[(0x10_000, PAGE), (0x12_000, PAGE)], true);
        let window = show(&guest).unwrap();
        assert!(matches!(show(&guest), Err(NoWindow::Pieces)));
        assert_eq!(map(&mut guest, 0x80_000, 1), Err(Errno::NOSPC));
        drop(window);
        assert_eq!(map(&mut guest, 0x80_000, 2), Ok(()));
    }

    #[test]
    fn the_parts_of_all_functions_are_no_more_than_the_process_has() {
        for functions in 1..=1024 {
            let n = functions as u64;
            for descriptors in [0, 1024, 4096, 1 << 20, u64::MAX] {
                let part = Part::of(functions, descriptors);
                assert!(part.maps >= FEWEST_MAPS && part.maps <= part.mappings, "{functions} {part:?}");
                assert!(part.mappings * functions <= 49_152 && part.bytes * n <= 32 << 40);
                let descriptors_used = part.maps as u64 * n + 64 * n + 64;
                assert!(part.maps == FEWEST_MAPS || descriptors_used <= descriptors, "{functions} {part:?}");
            }
        }
    }

    proptest! {
        /// Pages in any order, from any byte to any byte.
        #[test]
        fn a_window_shows_the_bytes_of_its_pages_in_their_order(
            order in proptest::collection::vec(0_u64..8, 1..7),
            (first, last) in (0_u64..PAGE, 1_u64..=PAGE),
        ) {
            let (guest, file) = guest();
            let content: Vec<u8> = (0..16 * PAGE).map(|i| (i * 7 / 3) as u8).collect();
            file.write_all_at(&content, 0).unwrap();
            let len = (order.len() as u64 - 1) * PAGE + last;
            prop_assume!(len > first);
            let pages: Vec<u8> = order.iter().flat_map(|n| (0x10_000 + n * PAGE).to_be_bytes()).collect();
            let window = guest.window_of_pages(&pages, 12, first, len - first, true).unwrap();
            let mut seen = vec![0; window.len()];
            window.load(0, &mut seen);
            // The first range lies at page 8 of the file, the second one at page 0.
            let place = |n: u64| (n + 8) % 12 * PAGE;
            let all: Vec<u8> = order
                .iter()
                .flat_map(|n| &content[place(*n) as usize..][..PAGE as usize])
                .copied()
                .collect();
            prop_assert_eq!(&seen, &all[first as usize..len as usize]);
            // And it is the client's memory, not a copy.
            window.store(window.len() - 1, &[!seen[seen.len() - 1]]);
            let mut byte = [0];
            file.read_exact_at(&mut byte, place(order[order.len() - 1]) + last - 1).unwrap();
            prop_assert_eq!(byte[0], !seen[seen.len() - 1]);
            prop_assert!(guest.window_of_pages(&pages[8..], 12, first, len - first, true).is_err());
        }
    }
}
