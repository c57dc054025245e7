//! The client's memory: its mappings for the function, and all accesses to it.
//!
//! This crate accesses client memory only through [`Guest`] and the windows that a guest creates. While bus mastering
//! is off every access by address is refused, and the owners of windows drop them.
//!
//! A [`Window`] shows runs of client memory side by side, as the list of pages of a key or of a queue names them. If
//! the runs do not lie side by side in a mapping, a table gives the place of each access; scattered pages cost table
//! entries, and nothing else.
//!
//! Invariants of the unsafe code:
//!
//! 1. A [`Mapping`] owns `base .. base + len` of this process's addresses: no other code maps or unmaps there. All of
//!    it is mapped, readable, and writable if its client granted that, until it is dropped.
//! 2. The mapped files are sealed against shrinking, are as long as the mapping, and are not of hugetlbfs: no access
//!    ends in a signal. The client may punch holes, which no seal forbids without forbidding writes; the next access
//!    finds zeros in a new page. Only hugetlbfs may have no page left.
//! 3. The client writes there whenever it likes: the memory is reached by the copies of
//!    `hca_dma`, whose invariants hold by 1 and 2; no reference to plain bytes of it is ever made.
#![allow(unsafe_code)]

pub(crate) mod users;
mod window;

use core::ptr::NonNull;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use hca_dma as dma;
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use window::Shown;
pub(crate) use window::Window;

/// Bytes of the pages in which memory is mapped.
pub(crate) const PAGE: u64 = 4096;
/// What the system says of a file of hugetlbfs (`statfs`).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// Mappings of this process that all clients of a server may have at one time, one for each file: the system limits those
/// of a process (`vm.max_map_count`, 65,530), and the server needs some itself.
const ALL_MAPPINGS: usize = 48 << 10;
/// Ranges that all clients may map, and that one may: each is an entry of some 64 bytes in a table. Behind an IOMMU of its
/// own a guest maps page by page, so that these are 16 GiB, and 4 GiB.
const ALL_RANGES: usize = 4 << 20;
const MOST_RANGES: usize = 1 << 20;
/// Ranges that lie apart and of which one window shows parts. Drivers behind an IOMMU have a region's pages side by side.
const MOST_APART: usize = if cfg!(test) { 1 << 10 } else { 1 << 17 };
/// Addresses of this process that they may have: a quarter of what x86-64 and 64-bit ARM have.
const ALL_BYTES: u64 = 32 << 40;
/// Bytes that the adapter's queues may have for one function, and that they may have whatever the others' have. All have
/// a quarter of the machine's memory.
pub(crate) const MOST_QUEUE_BYTES: usize = 1 << 30;
const FEWEST_QUEUE_BYTES: usize = 16 << 20;

/// A function's part of what the process has for all clients: however much one takes, the others have theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Ranges that the client may map.
    pub(crate) maps: usize,
    /// Mappings of this process.
    pub(crate) mappings: usize,
    /// Addresses of this process.
    pub(crate) bytes: u64,
    /// Bytes of the adapter's queues.
    pub(crate) queue_bytes: usize,
}

impl Part {
    /// The part of one of so many functions, where the machine has so many bytes of memory.
    pub(crate) fn of(functions: usize, memory: u64) -> Self {
        let n = functions.max(1);
        let queue_bytes = usize::try_from(memory / 4 / n as u64).unwrap_or(usize::MAX);
        Self {
            maps: (ALL_RANGES / n).min(MOST_RANGES),
            mappings: ALL_MAPPINGS / n,
            bytes: ALL_BYTES / n as u64,
            queue_bytes: queue_bytes.clamp(FEWEST_QUEUE_BYTES, MOST_QUEUE_BYTES),
        }
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

/// The reason why there is no window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoWindow {
    /// A part is out of reach.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The pages are fewer than the length needs, or lie where pages can't begin.
    #[error("the list of pages does not fit the range to map")]
    Pages,
    /// The pages are of more ranges that lie apart than one window shows.
    #[error("the pages form more than {MOST_APART} separate ranges: map contiguous memory")]
    Apart,
}

/// A file of a client's, and how it is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileId {
    device: u64,
    inode: u64,
    write: bool,
}

/// A range of addresses of this process that shows a file of a client's, from `offset` on.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    id: FileId,
    offset: u64,
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
            tracing::error!("unmapping client memory failed: {e}");
        }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} of {:?}", self.len, self.offset, self.id)
    }
}

impl Mapping {
    fn of_file(
        file: BorrowedFd<'_>,
        id: FileId,
        offset: u64,
        len: usize,
        counted: Counted,
    ) -> Result<Self, Errno> {
        let prot = if id.write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let nowhere = core::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses changes no memory of ours.
        let base = unsafe { rustix::mm::mmap(nowhere, len, prot, MapFlags::SHARED, file, offset)? };
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at 0 by itself");
        Ok(Self { base, len, id, offset, _counted: counted })
    }

    /// Where a part of the file is in it.
    fn at(&self, offset: u64, len: usize) -> Option<usize> {
        let at = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        (at <= self.len && len <= self.len - at).then_some(at)
    }
}

/// A range that the client has mapped. Without memory it can't be reached.
#[derive(Debug)]
struct Map {
    len: u64,
    rights: (bool, bool),
    /// The mapping of its file, and where it begins in it.
    memory: Option<(Arc<Mapping>, usize)>,
}

/// A part of a mapped range.
struct Piece<'a> {
    memory: &'a Arc<Mapping>,
    addr: NonNull<u8>,
    len: u64,
    /// Where the range begins for the client, and where it ends.
    range: (u64, u64),
}

/// All memory that the client has mapped for a function.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    bus_master: bool,
    maps: BTreeMap<u64, Map>,
    files: HashMap<FileId, Weak<Mapping>>,
    part: Part,
    used: Arc<Used>,
    /// What is put together bit by bit.
    making: Option<Making>,
}

/// The pages that a command lists (addresses in big endian, 8 bytes each), and which bytes of them are meant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageList<'a> {
    pub(crate) pas: &'a [u8],
    pub(crate) log_page: u32,
    /// Bytes of the first page that are before what is meant.
    pub(crate) first: u64,
    pub(crate) len: u64,
    /// Whether it is for writing.
    pub(crate) write: bool,
}

/// A window of listed pages in the making.
#[derive(Debug, Default)]
struct Making {
    /// Pages that were taken from the list, bytes that are in the others, and how many before them are not meant.
    taken: usize,
    left: u64,
    skip: u64,
    /// Of the pages that were taken what is still to be found: an address, and bytes.
    run: (u64, u64),
    shown: Shown,
}

impl Making {
    fn new(list: &PageList<'_>) -> Result<Self, NoWindow> {
        let &PageList { pas, log_page, first, len, .. } = list;
        let page = 1_u64.checked_shl(log_page).filter(|_| log_page < 63);
        let page = page.filter(|page| *page >= PAGE && first < *page && len > 0).ok_or(NoWindow::Pages)?;
        let needed = first.checked_add(len).ok_or(NoWindow::Pages)?.div_ceil(page);
        if (pas.len() / hca_prm::pas::ENTRY) as u64 >= needed {
            Ok(Self { left: len, skip: first, ..Self::default() })
        } else {
            Err(NoWindow::Pages)
        }
    }

    /// Takes pages of the list as long as one follows the other, so many at most. Returns how many.
    fn take(&mut self, list: &PageList<'_>, most: usize) -> Option<usize> {
        let before = self.taken;
        let pages = hca_prm::pas::iter(&list.pas[before * hca_prm::pas::ENTRY..]);
        for address in pages.take(most) {
            // The lowest bits can be permissions; pages begin at multiples of 4 KiB at least.
            let at = (address & !(PAGE - 1)).checked_add(self.skip)?;
            let bytes = ((1 << list.log_page) - self.skip).min(self.left);
            let (from, run) = self.run;
            if run > 0 && from.checked_add(run) != Some(at) {
                break;
            }
            self.run = if run > 0 { (from, run + bytes) } else { (at, bytes) };
            (self.skip, self.left, self.taken) = (0, self.left - bytes, self.taken + 1);
            if self.left == 0 {
                break;
            }
        }
        Some(self.taken - before)
    }
}

impl Guest {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// How much of the process's the client may have from now on.
    pub(crate) fn set_part(&mut self, part: Part) {
        self.part = part;
    }

    /// Ranges that the client has mapped.
    #[cfg(test)]
    pub(crate) fn ranges(&self) -> usize {
        self.maps.len()
    }

    /// Ranges that the client may map.
    pub(crate) fn max_maps(&self) -> u32 {
        u32::try_from(self.part.maps).unwrap_or(u32::MAX)
    }

    /// Whether the function may reach memory at all.
    pub(crate) fn set_bus_master(&mut self, on: bool) {
        if self.bus_master != on {
            self.making = None;
        }
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
        if self.maps.len() >= self.part.maps {
            return Err(used_up(size));
        }
        let memory = match file {
            Some((file, offset)) if rights.0 || rights.1 => {
                let len = usize::try_from(size).map_err(|_| Errno::NOMEM)?;
                Some(self.memory_of(&file, offset, len, rights.1)?)
            }
            _ => None,
        };
        self.maps.insert(iova, Map { len: size, rights, memory });
        Ok(())
    }

    /// Where a part of a client's file is mapped. A file is mapped once, as a whole: parts of it that a client maps one by
    /// one cost entries in the table. Where the whole does not fit into what the client may have, the part alone is.
    fn memory_of(
        &mut self,
        file: &OwnedFd,
        offset: u64,
        len: usize,
        write: bool,
    ) -> Result<(Arc<Mapping>, usize), Errno> {
        let stat = rustix::fs::fstat(file)?;
        // Types differ between machines.
        #[allow(clippy::unnecessary_cast)]
        let id = FileId { device: stat.st_dev as u64, inode: stat.st_ino as u64, write };
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let lies_in_it = offset.checked_add(len as u64).is_some_and(|end| end <= size);
        if !offset.is_multiple_of(PAGE) || !lies_in_it {
            tracing::warn!(
                offset,
                len,
                size,
                "memory of a client was refused: the range is not within its file"
            );
            return Err(Errno::INVAL);
        }
        if let Some(mapping) = self.files.get(&id).and_then(Weak::upgrade)
            && let Some(at) = mapping.at(offset, len)
        {
            return Ok((mapping, at));
        }
        check_file(file)?;
        let whole = usize::try_from(size & !(PAGE - 1)).unwrap_or(usize::MAX);
        let map = |offset, len| {
            let counted = Counted::new(1, len, self.part, &self.used).ok_or_else(|| used_up(len as u64))?;
            Mapping::of_file(file.as_fd(), id, offset, len, counted).map(Arc::new)
        };
        let mapping = map(0, whole).or_else(|_| map(offset, len))?;
        if self.files.len() > 2 * self.used.mappings.load(Ordering::Relaxed) {
            self.files.retain(|_, file| file.strong_count() > 0);
        }
        self.files.insert(id, Arc::downgrade(&mapping));
        let at = mapping.at(offset, len).expect("it was mapped");
        Ok((mapping, at))
    }

    /// Whether all that lies in a range can be unmapped: ranges go as a whole.
    pub(crate) fn check_unmap(&self, iova: u64, size: u64) -> Result<(), Errno> {
        // The highest half of all addresses ends where no number does.
        let end = iova.saturating_add(size);
        let last = self.maps.range(..end).next_back().filter(|(at, _)| **at >= iova);
        let mut ends = self.before(iova).into_iter().chain(last);
        let cut = ends.any(|(at, map)| *at < iova || at + map.len > end);
        if cut { Err(Errno::INVAL) } else { Ok(()) }
    }

    /// Unmaps so many ranges, at most, of those that lie in a range. Returns whether there are more.
    pub(crate) fn unmap(&mut self, iova: u64, size: u64, most: usize) -> Result<bool, Errno> {
        self.check_unmap(iova, size)?;
        if self.making.as_ref().is_some_and(|making| making.shown.touches(iova, size)) {
            self.making = None;
        }
        let range = iova..iova.saturating_add(size);
        let gone = self.maps.extract_if(range.clone(), |_, _| true).take(most).count();
        Ok(gone == most && self.maps.range(range).next().is_some())
    }

    /// Unmaps everything.
    pub(crate) fn clear(&mut self) {
        self.maps.clear();
        self.files.clear();
        self.making = None;
    }

    fn overlapping(&self, iova: u64, size: u64) -> impl Iterator<Item = (u64, &Map)> {
        let end = iova.saturating_add(size);
        self.before(iova).into_iter().chain(self.maps.range(iova..end)).map(|(at, map)| (*at, map))
    }

    /// The range that begins before an address and goes beyond it.
    fn before(&self, iova: u64) -> Option<(&u64, &Map)> {
        self.maps.range(..iova).next_back().filter(|(at, map)| **at + map.len > iova)
    }

    /// The range that is mapped where an address lies: where it begins, and its length.
    pub(crate) fn range_at(&self, iova: u64) -> Option<(u64, u64)> {
        let (at, map) = self.maps.range(..=iova).next_back()?;
        (iova - at < map.len).then_some((*at, map.len))
    }

    /// The part of a range that was found to hold an address, up to `end`.
    fn piece<'a>(
        &self,
        (at, map): (&u64, &'a Map),
        iova: u64,
        end: u64,
        need: (bool, bool),
    ) -> Option<Piece<'a>> {
        let within = iova - at;
        let (memory, first) = map.memory.as_ref().filter(|_| within < map.len && self.bus_master)?;
        let may = (map.rights.0 || !need.0) && (map.rights.1 || !need.1);
        // Within the mapping, as the range is.
        let addr = memory.base.map_addr(|a| a.saturating_add(first + within as usize));
        let (len, range) = ((end - iova).min(map.len - within), (*at, at + map.len));
        may.then_some(Piece { memory, addr, len, range })
    }

    /// Goes through the pieces of what is mapped in which `len` bytes lie; `need` are the rights that they are to have.
    fn each(&self, iova: u64, len: u64, need: (bool, bool), f: impl FnMut(Piece<'_>)) -> Result<(), Fault> {
        self.some(iova, len, need, usize::MAX, f).map(drop)
    }

    /// The same of so many pieces at most. Returns how many bytes they are.
    fn some(
        &self,
        iova: u64,
        len: u64,
        need: (bool, bool),
        most: usize,
        mut f: impl FnMut(Piece<'_>),
    ) -> Result<u64, Fault> {
        let fault = Fault { iova, len };
        let end = iova.checked_add(len).ok_or(fault)?;
        let mut next = iova;
        let mut go_on = |next: u64, found| {
            let piece = self.piece(found, next, end, need).ok_or(fault)?;
            let len = piece.len;
            f(piece);
            Ok(next + len)
        };
        if next < end {
            next = go_on(next, self.maps.range(..=next).next_back().ok_or(fault)?)?;
        }
        if next < end {
            for found in self.maps.range(next..end).take(most - 1) {
                if *found.0 != next {
                    return Err(fault);
                }
                next = go_on(next, found)?;
            }
        }
        // Where nothing is mapped behind it there is no further piece.
        if next == end || self.maps.range(next..end).next().is_some() { Ok(next - iova) } else { Err(fault) }
    }

    /// The same, with the part of the whole that each piece is.
    fn each_part(
        &self,
        iova: u64,
        len: usize,
        need: (bool, bool),
        mut f: impl FnMut(*mut u8, core::ops::Range<usize>),
    ) -> Result<(), Fault> {
        let mut done = 0;
        self.each(iova, len as u64, need, |piece| {
            let part = done..done + piece.len as usize;
            done = part.end;
            f(piece.addr.as_ptr(), part);
        })
    }

    /// Copies client memory.
    pub(crate) fn read(&self, iova: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.each_part(iova, into.len(), (true, false), |from, range| {
            // SAFETY: (1), (2): `each` found the range mapped, and readable.
            unsafe { dma::load(from, &mut into[range]) };
        })
    }

    /// Copies to client memory.
    pub(crate) fn write(&self, iova: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.each_part(iova, bytes.len(), (false, true), |to, range| {
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
        self.each_part(iova, 4, (false, true), |to, _| {
            // Pairs with the client's look at this word, behind which it reads the rest.
            // SAFETY: (1), (2) mapped and writable; aligned, as mappings begin at pages of both; (3).
            unsafe { dma::store(to, &value.to_be_bytes()) };
        })
    }

    /// Shows `runs` (addresses and lengths) side by side.
    pub(crate) fn window(&self, runs: &[(u64, u64)], write: bool) -> Result<Window, NoWindow> {
        let mut shown = Shown::default();
        for &(iova, len) in runs {
            // What is written is read as well.
            self.each(iova, len, (true, write), |piece| shown.add(&piece))?;
        }
        shown.finish(write)
    }

    /// Shows pages that a command lists side by side.
    pub(crate) fn window_of_pages(
        &self,
        pas: &[u8],
        log_page: u32,
        first: u64,
        len: u64,
        write: bool,
    ) -> Result<Window, NoWindow> {
        let list = PageList { pas, log_page, first, len, write };
        let mut making = Making::new(&list)?;
        self.make(&mut making, &list, usize::MAX)?;
        making.shown.finish(write)
    }

    /// The same bit by bit: looks so many pages and pieces of memory up, and returns `None` while there are more. The list
    /// has to be the same each time. What is unmapped meanwhile has it begin anew.
    pub(crate) fn window_bit_by_bit(
        &mut self,
        list: &PageList<'_>,
        most: usize,
    ) -> Result<Option<Window>, NoWindow> {
        let mut making = match self.making.take() {
            Some(making) => making,
            None => Making::new(list)?,
        };
        if self.make(&mut making, list, most)? {
            self.making = Some(making);
            return Ok(None);
        }
        making.shown.finish(list.write).map(Some)
    }

    /// Whether something is put together.
    #[cfg(test)]
    pub(crate) fn is_making(&self) -> bool {
        self.making.is_some()
    }

    /// Nothing is put together any more.
    pub(crate) fn forget_making(&mut self) {
        self.making = None;
    }

    /// Looks so many pages and pieces up. Returns whether there are more.
    fn make(&self, making: &mut Making, list: &PageList<'_>, most: usize) -> Result<bool, NoWindow> {
        let mut steps = most;
        loop {
            if making.run.1 == 0 {
                if making.left == 0 {
                    return Ok(false);
                }
                steps -= making.take(list, steps).ok_or(NoWindow::Pages)?;
            }
            if steps == 0 {
                return Ok(true);
            }
            let (iova, len) = making.run;
            let (shown, mut found) = (&mut making.shown, 0);
            // What is written is read as well.
            let done = self.some(iova, len, (true, list.write), steps, |piece| {
                shown.add(&piece);
                found += 1;
            })?;
            if shown.ranges.len() > MOST_APART {
                return Err(NoWindow::Apart);
            }
            making.run = (iova + done, len - done);
            steps -= found;
            if steps == 0 {
                return Ok(making.run.1 > 0 || making.left > 0);
            }
        }
    }
}

#[cold]
fn used_up(size: u64) -> Errno {
    tracing::warn!(
        size,
        "memory of a client was refused: its function's part of the server's {ALL_RANGES} ranges, {ALL_MAPPINGS} files or \
         {} TiB is used up; use fewer and larger ranges, or a server with fewer functions",
        ALL_BYTES >> 40
    );
    Errno::NOSPC
}

/// Whether accesses to a client's file can't end in signals.
fn check_file(file: &OwnedFd) -> Result<(), Errno> {
    let sealed = rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    if !sealed {
        tracing::warn!(
            "memory of a client was refused: its file could be cut while it is used here, as it is not sealed against \
             that; use a memfd with F_SEAL_SHRINK (QEMU: memory-backend-memfd, whose seal=on is the default)"
        );
        return Err(Errno::PERM);
    }
    if rustix::fs::fstatfs(file)?.f_type as u64 & 0xffff_ffff == HUGETLBFS_MAGIC {
        tracing::warn!(
            "memory of a client was refused: it is of hugetlbfs, whose pages can be taken away while they are used here, \
             with no others to fill the hole; use ordinary memory, which has huge pages by itself where the system has \
             transparent ones (QEMU: memory-backend-memfd without hugetlb=on)"
        );
        return Err(Errno::OPNOTSUPP);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
