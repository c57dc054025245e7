//! Memory that this process gives out and that peers may map: one file in memory for each allocation, so that a
//! descriptor opens this allocation and nothing else.
//!
//! Invariants:
//! 1. `base .. base + len` is mapped as long as `Inner` lives in the process that made it, readable and writable, over
//!    a whole file of `len` bytes or over private copies of its pages; both are whole pages. No other code maps or
//!    unmaps there, unless the pages are the program's own, which this module moved to the file: the program may do all
//!    with them that it may with other memory, and this module never unmaps them. A forked child has no memory there,
//!    or memory of its own: its copy of `Inner` touches no mapping.
//! 2. The file is sealed against shrinking before its descriptor can leave, so that no access ends in SIGBUS.
//! 3. This module neither reads nor writes the memory. The memory belongs to its holder, under the rules of raw memory.
#![allow(unsafe_code)]

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hca_process::{
    Backing, Fork, Mapping, PerProcess, allocate_pages, mappings, memory_file, without_signals,
};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use super::error::GrantError;

/// The most allocations with a descriptor of their own, at one time in a process.
pub const MAX_SHARED_ALLOCATIONS: u32 = 256;
/// Bytes of a page.
pub(super) const PAGE: usize = 4096;
/// From here on huge pages are asked for.
pub(super) const HUGE: usize = 2 << 20;

/// Allocations that live, by address. It is one for the process, as its address space is: a region may be registered
/// with another adapter than the one whose memory it is. A forked child has none of its parent's.
static LIVE: PerProcess<Mutex<BTreeMap<usize, Weak<Inner>>>> = PerProcess::new();
/// Their number, and of those that are being made.
static COUNT: AtomicU32 = AtomicU32::new(0);

fn live() -> MutexGuard<'static, BTreeMap<usize, Weak<Inner>>> {
    // The map is whole between any two of its operations.
    LIVE.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of this process that can be granted to peers: whole pages, zeroed at first, and all allocated from the
/// beginning.
///
/// Clones are the same memory, which lives as long as one of them.
#[derive(Clone)]
pub struct SharedPages(Arc<Inner>);

impl core::fmt::Debug for SharedPages {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SharedPages")
            .field("addr", &self.0.base)
            .field("len", &self.0.len)
            .finish_non_exhaustive()
    }
}

struct Inner {
    base: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
    state: Mutex<State>,
    /// The adapter that has granted it; 0: none.
    granted_by: AtomicU64,
    /// The mapping is the program's, whose bytes were moved to the file.
    is_program: bool,
    /// Where it is mapped.
    fork: Fork,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Whoever has a descriptor may write.
    Open,
    /// Nobody but this process, and those who have mapped it for writing already.
    ReadOnly,
    /// It can't be granted any more.
    GivenUp,
    /// The file is no longer what stands at the address.
    Private,
}

// SAFETY: an address and the right to unmap it; nothing is read or written through it (3).
unsafe impl Send for Inner {}
// SAFETY: as above; what changes stands behind a lock.
unsafe impl Sync for Inner {}

fn io(doing: &'static str) -> impl FnOnce(rustix::io::Errno) -> GrantError {
    move |e| GrantError::Io { doing, source: e.into() }
}

/// A place among [`MAX_SHARED_ALLOCATIONS`].
struct Place;

impl Place {
    fn take() -> Option<Self> {
        let more = |n| (n < MAX_SHARED_ALLOCATIONS).then_some(n + 1);
        COUNT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self)
    }
}
impl Drop for Place {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(Place);
        // A thread that a child has not may have held the lock of the others.
        if self.fork.is_child() {
            return;
        }
        let mut live = live();
        self.leave(&mut live);
        if self.is_program {
            return;
        }
        // Another allocation may stand there already only once this one is unmapped.
        // SAFETY: (1) the mapping is ours, and whoever was given its address is gone with the last handle.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl SharedPages {
    /// Allocates zeroed memory of at least `len` bytes, in whole pages, all of them present; from 2 MiB on in huge
    /// pages, if the system has them.
    ///
    /// # Errors
    /// [`MAX_SHARED_ALLOCATIONS`] live already, or the system refuses a file in memory, its pages or address space. The
    /// caller then takes memory of another kind, which only packets can reach.
    ///
    /// # Panics
    /// If `len` is 0.
    pub fn alloc(len: usize) -> Result<Self, GrantError> {
        assert!(len > 0, "an allocation of no bytes");
        let inner = Inner::create(len)?;
        // A child would share them with us, and with our peers.
        // SAFETY: (1) the advice changes no content.
        unsafe { rustix::mm::madvise(inner.base.as_ptr().cast(), inner.len, Advice::LinuxDontFork) }
            .map_err(io("keeping memory from children"))?;
        Ok(inner.into_live())
    }

    /// Moves pages of the program to memory that can be granted to peers. They keep their address and their bytes. The
    /// mapping stays the program's: it may unmap the pages and map others there at any time, and has to see to it that
    /// a forked child gets copies.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), or writers can't be [held](hca_dma::hold_writers). The pages are as before.
    ///
    /// # Safety
    /// `at .. at + len` are whole pages, one at least, of private memory without a file, which can be read and written.
    /// The calling thread's stack is not there, and no kernel writes there on behalf of a call that is under way. Other
    /// threads and handlers of signals wait.
    pub unsafe fn move_in(at: NonNull<u8>, len: usize) -> Result<Self, GrantError> {
        let mut inner = Inner::create(len)?;
        let base = inner.base.as_ptr();
        // Nothing is allocated here: the pages may be those of the allocator's own notes.
        let exchange = || {
            // SAFETY: as many bytes of both, which nobody writes meanwhile; the file's mapping was just made. It then
            // takes the place of the program's pages, which have the same bytes.
            unsafe {
                core::ptr::copy_nonoverlapping(at.as_ptr(), base, len);
                rustix::mm::mremap_fixed(base.cast(), len, len, MremapFlags::MAYMOVE, at.as_ptr().cast())
            }
        };
        // SAFETY: whole pages that can be read and written, before and after; nothing but the exchange happens
        // meanwhile.
        let moved = without_signals(|| unsafe { hca_dma::hold_writers(at, len, exchange) });
        let exchanged = moved.unwrap_or(Err(rustix::io::Errno::OPNOTSUPP));
        exchanged.map_err(io("moving pages to a file in memory"))?;
        (inner.base, inner.is_program) = (at, true);
        Ok(inner.into_live())
    }

    /// Gives pages of [`move_in`](Self::move_in) up: nobody finds them any more, and they can't be granted.
    pub fn give_up(&self) {
        self.0.leave(&mut live());
        let mut state = self.0.state();
        if *state != State::Private {
            *state = State::GivenUp;
        }
    }

    /// Gives pages up, and makes them private copies for ever, while other threads of this process go on to write
    /// there: pages that the program then tells the kernel to drop (`MADV_DONTNEED`) are zero, as without a file. After
    /// a grant for reading only they are as they were now.
    ///
    /// # Errors
    /// As [`make_private`](Self::make_private).
    pub fn end(&self) -> io::Result<()> {
        self.give_up();
        if !self.0.fork.is_child() {
            self.make_private()?;
            // A file that is sealed against writing keeps its bytes.
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(self.fd(), how, 0, self.0.len as u64);
        }
        Ok(())
    }

    /// Where the file's pages are still mapped in their places, which the program may have changed.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn mapped(&self) -> io::Result<Vec<Mapping>> {
        self.0.mapped()
    }

    /// The allocation that holds all of `addr .. addr + len`, if there is one.
    pub fn find(addr: usize, len: usize) -> Option<Self> {
        // What a parent had stays in the map of a child.
        let own = |inner: &Arc<Inner>| !inner.fork.is_child();
        let mut last = addr;
        loop {
            let inner = live().range(..=last).rev().find_map(|(_, w)| w.upgrade().filter(own))?;
            let base = inner.base.addr().get();
            let has_all = addr - base <= inner.len && len <= inner.len - (addr - base);
            if has_all && (!inner.is_program || inner.is_all_mapped().ok()?) {
                return Some(Self(inner));
            }
            // The program may have unmapped some of its own, and other memory may stand there.
            last = base.checked_sub(1).filter(|_| inner.is_program)?;
        }
    }

    /// The address of the first byte.
    pub fn addr(&self) -> NonNull<u8> {
        self.0.base
    }
    /// The length in bytes: whole pages.
    pub fn len(&self) -> usize {
        self.0.len
    }
    /// Whether the memory is empty: never, as it has one page at least.
    pub fn is_empty(&self) -> bool {
        false
    }
    /// Whether the memory can no longer be granted to peers.
    pub fn is_private(&self) -> bool {
        matches!(*self.0.state(), State::GivenUp | State::Private)
    }
}

impl SharedPages {
    /// The file, for a peer.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
    /// Says that the adapter of this number grants it. `false`: another one does.
    pub(super) fn claim(&self, adapter: u64) -> bool {
        let claimed = self.0.granted_by.compare_exchange(0, adapter, Ordering::AcqRel, Ordering::Acquire);
        claimed.is_ok() || claimed == Err(adapter)
    }
    /// Says that it does so no more.
    pub(super) fn unclaim(&self, adapter: u64) {
        let _ = self.0.granted_by.compare_exchange(adapter, 0, Ordering::AcqRel, Ordering::Acquire);
    }
    /// Whether these are the same pages.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    /// Makes sure that a descriptor allows this and nothing more, for as long as the file lives.
    pub(super) fn prepare(&self, writable: bool) -> Result<(), GrantError> {
        let mut state = self.0.state();
        match *state {
            State::GivenUp | State::Private => return Err(GrantError::Private),
            State::ReadOnly if writable => return Err(GrantError::ReadOnly),
            State::ReadOnly => return Ok(()),
            State::Open => {}
        }
        if writable {
            // A peer that may write may also seal.
            let seals = rustix::fs::fcntl_get_seals(self.fd()).map_err(io("reading seals"))?;
            if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
                *state = State::ReadOnly;
                return Err(GrantError::ReadOnly);
            }
        } else {
            let seals = SealFlags::FUTURE_WRITE;
            match rustix::fs::fcntl_add_seals(self.fd(), seals) {
                Ok(()) => {}
                // A peer that may write has forbidden further seals.
                Err(e) => return Err(io("sealing memory against writing")(e)),
            }
            *state = State::ReadOnly;
        }
        Ok(())
    }

    /// Replaces the shared pages by private copies, so that a process that still has the file mapped can no longer
    /// change this memory. Concurrent writes of this process's threads are kept; concurrent writes of such a peer may
    /// be seen. Afterwards the memory can't be granted to a peer.
    ///
    /// # Errors
    /// There is no memory for the copies. Some of the pages are still shared then; trying again is possible.
    pub fn make_private(&self) -> io::Result<()> {
        let inner = &*self.0;
        let mut state = inner.state();
        let base = inner.base.addr().get();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // The program may have unmapped some of its own, or forbidden them.
        let parts: Vec<_> = match inner.is_program {
            true => inner.mapped()?.into_iter().map(|m| (m.range, m.rights, m.is_shared)).collect(),
            false => vec![(base..base + inner.len, both, *state != State::Private)],
        };
        for (part, _, _) in parts.iter().filter(|(_, _, is_shared)| *is_shared) {
            inner.exchange(part)?;
        }
        *state = State::Private;
        parts.iter().try_for_each(|(part, rights, _)| inner.copy_pages(part, *rights))
    }
}

impl Inner {
    fn offset_of(&self, part: &Range<usize>) -> usize {
        part.start - self.base.addr().get()
    }
    /// Maps some of the pages as private ones of the same file: each is copied at the first write to it. The kernel
    /// exchanges the mapping in one step, so what was written before is in the file, and what is written later goes to
    /// a copy of that.
    fn exchange(&self, part: &Range<usize>) -> io::Result<()> {
        let offset = self.offset_of(part);
        let at = self.base.as_ptr().wrapping_add(offset).cast();
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: (1) it is our range, over the same pages of the same file.
        unsafe { rustix::mm::mmap(at, part.len(), prot, flags, self.fd.as_fd(), offset as u64)? };
        Ok(())
    }
    /// Copies pages that were exchanged, which have these rights afterwards.
    fn copy_pages(&self, part: &Range<usize>, rights: i32) -> io::Result<()> {
        let (at, len) = (self.base.as_ptr().wrapping_add(self.offset_of(part)), part.len());
        // Write faults on all pages: they copy, and change no byte.
        // SAFETY: (1), and populating changes no content.
        match unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxPopulateWrite) } {
            Err(rustix::io::Errno::INVAL) => touch(at, len),
            other => other?,
        }
        if rights != libc::PROT_READ | libc::PROT_WRITE {
            // SAFETY: (1), and the program's own choice.
            let status = unsafe { libc::mprotect(at.cast(), len, rights) };
            return if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
        }
        Ok(())
    }
    /// See [`SharedPages::mapped`].
    fn mapped(&self) -> io::Result<Vec<Mapping>> {
        let base = self.base.addr().get();
        let file = rustix::fs::fstat(&self.fd)?;
        let device = (rustix::fs::major(file.st_dev), rustix::fs::minor(file.st_dev));
        let is_own = |mapping: &Mapping| {
            matches!(mapping.backing, Backing::File { device: on, inode, offset }
                if on == device && inode == file.st_ino
                    && mapping.range.start.checked_sub(base).is_some_and(|at| at as u64 == offset))
        };
        Ok(mappings(base..base + self.len)?.into_iter().filter(is_own).collect())
    }
    fn is_all_mapped(&self) -> io::Result<bool> {
        Ok(self.mapped()?.iter().map(|mapping| mapping.range.len()).sum::<usize>() == self.len)
    }
    /// A file of at least `len` bytes, in whole pages, all of them present, and mapped where the kernel chooses.
    fn create(len: usize) -> Result<Self, GrantError> {
        let limit = || GrantError::Limit { what: "shared allocations", limit: MAX_SHARED_ALLOCATIONS };
        let place = Place::take().ok_or_else(limit)?;
        let too_long = || GrantError::Io {
            doing: "rounding the length up to pages",
            source: io::ErrorKind::InvalidInput.into(),
        };
        let unit = if len >= HUGE { HUGE } else { PAGE };
        let len = len.checked_next_multiple_of(PAGE).filter(|l| *l < isize::MAX as usize - unit);
        let len = len.ok_or_else(too_long)?;
        let fd = memory_file("hca-pages", MemfdFlags::ALLOW_SEALING, len as u64)
            .map_err(io("creating a file in memory"))?;
        let base = map_aligned(fd.as_fd(), len, unit, true).map_err(io("mapping a file in memory"))?;
        let granted_by = AtomicU64::new(0);
        std::mem::forget(place); // From here on it is given back by `Inner`.
        let (state, fork) = (Mutex::new(State::Open), Fork::new());
        let inner = Self { base, len, fd, state, granted_by, is_program: false, fork };
        if len >= HUGE {
            // SAFETY: (1) the advice changes no content. Without huge pages it does nothing.
            let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
        }
        inner.populate().map_err(io("making pages of memory"))?;
        // Not against further seals: the one against writing may follow.
        rustix::fs::fcntl_add_seals(&inner.fd, SealFlags::SHRINK | SealFlags::GROW)
            .map_err(io("sealing a file in memory"))?;
        Ok(inner)
    }
    fn into_live(self) -> SharedPages {
        let inner = Arc::new(self);
        live().insert(inner.base.addr().get(), Arc::downgrade(&inner));
        SharedPages(inner)
    }
    /// Takes it from those that live, unless another one stands there already.
    fn leave(&self, live: &mut BTreeMap<usize, Weak<Self>>) {
        let at = self.base.addr().get();
        if live.get(&at).is_some_and(|known| core::ptr::eq(known.as_ptr(), self)) {
            live.remove(&at);
        }
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Has all pages be there.
    fn populate(&self) -> rustix::io::Result<()> {
        let at = self.base.as_ptr().cast();
        // SAFETY: (1), and populating changes no content.
        match unsafe { rustix::mm::madvise(at, self.len, Advice::LinuxPopulateWrite) } {
            // Kernels before 5.14 do not know it.
            Err(rustix::io::Errno::INVAL) => allocate_pages(self.fd.as_fd(), 0, self.len as u64),
            other => other,
        }
    }
}

/// Writes to every page what stands there, for kernels that can't populate.
#[cold]
fn touch(at: *mut u8, len: usize) {
    for page in (0..len).step_by(PAGE) {
        // SAFETY: (1); an atomic operation that adds nothing changes nothing, whoever writes meanwhile.
        unsafe { AtomicU64::from_ptr(at.add(page).cast()).fetch_add(0, Ordering::Relaxed) };
    }
}

/// Maps all of a file at a multiple of `unit`, which is a power of two of pages.
pub(super) fn map_aligned(
    fd: BorrowedFd<'_>,
    len: usize,
    unit: usize,
    writable: bool,
) -> rustix::io::Result<NonNull<u8>> {
    let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    let spare = unit - PAGE;
    let nowhere = core::ptr::null_mut();
    let whole = len.checked_add(spare).ok_or(rustix::io::Errno::NOMEM)?;
    // SAFETY: new address space, where the kernel chooses; it changes no memory of ours.
    let base = unsafe { rustix::mm::mmap_anonymous(nowhere, whole, ProtFlags::empty(), MapFlags::PRIVATE)? };
    let at = base.cast::<u8>();
    let head = at.addr().next_multiple_of(unit) - at.addr();
    // SAFETY: all three are parts of the address space that was just taken, on page boundaries.
    unsafe {
        let at = at.add(head);
        let mapped = rustix::mm::mmap(at.cast(), len, prot, MapFlags::SHARED | MapFlags::FIXED, fd, 0);
        if mapped.is_err() {
            let _ = rustix::mm::munmap(base, whole);
        } else {
            if head > 0 {
                let _ = rustix::mm::munmap(base, head);
            }
            if spare > head {
                let _ = rustix::mm::munmap(at.add(len).cast(), spare - head);
            }
        }
        mapped.map(|_| NonNull::new(at).expect("the kernel maps nothing at 0 by itself"))
    }
}
