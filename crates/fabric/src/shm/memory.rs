//! Memory that two processes share: a [`Segment`] is written by this side, a [`Window`] is only read.
//!
//! Invariants:
//! 1. `base .. base + len` is mapped as long as the mapping lives; `base` is a multiple of 64 and `len` of 64.
//! 2. A mapped file is a memfd sealed against shrinking before it was mapped, so that no access to it ends in SIGBUS: a
//!    peer's seals are verified by [`Sealed`], [`create`] seals our own files.
//! 3. No reference to bytes is made: single words are atomics, ranges go by `dma`. Every offset is checked. The one
//!    exception is [`Segment::bytes_mut`], on bytes that no other process can write, and that no process reads yet.
//! 4. A `Window` has no method that writes, and is mapped without the right to.
#![allow(unsafe_code)]

#[cfg(not(loom))]
use core::marker::PhantomData;
#[cfg(not(loom))]
use core::ptr::NonNull;
#[cfg(not(loom))]
use std::io;
#[cfg(not(loom))]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[cfg(not(loom))]
use rustix::fs::{MemfdFlags, SealFlags};
#[cfg(not(loom))]
use rustix::mm::{Advice, MapFlags, ProtFlags};

#[cfg(not(loom))]
use crate::glance::{Glance, InputWord};
#[cfg(not(loom))]
use crate::sync::AtomicU64;
use crate::sync::{Arc, AtomicU32, Ordering};
#[cfg(not(loom))]
use hca_dma as dma;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

#[cfg(not(loom))]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    heap: bool,
}

// SAFETY: (3) all access is by atomics and racy-by-design copies; the owner's rights to the memory move with it.
#[cfg(not(loom))]
unsafe impl Send for Mapping {}
// SAFETY: as above.
#[cfg(not(loom))]
unsafe impl Sync for Mapping {}

#[cfg(not(loom))]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: (1) the whole range was mapped or allocated by our constructors with this length, and nobody
        // has a pointer into it, since none leaves this module.
        unsafe {
            if self.heap {
                std::alloc::dealloc(self.base.as_ptr(), layout(self.len));
            } else {
                let _ = rustix::mm::munmap(self.base.as_ptr().cast(), self.len);
            }
        }
    }
}

#[cfg(not(loom))]
#[cold]
#[inline(never)]
fn outside(at: usize, len: usize, of: usize) -> ! {
    panic!("{len} bytes at {at} of {of}");
}

#[cfg(not(loom))]
fn layout(len: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(len, 128).expect("a size of some megabytes")
}

#[cfg(not(loom))]
impl Mapping {
    fn heap(len: usize) -> Self {
        let len = len.next_multiple_of(LINE).max(LINE);
        // SAFETY: the layout is not of size 0.
        let base = unsafe { std::alloc::alloc_zeroed(layout(len)) };
        let base = NonNull::new(base).unwrap_or_else(|| std::alloc::handle_alloc_error(layout(len)));
        Self { base, len, heap: true }
    }

    /// Maps a file of this length, of which the first `dense` bytes are to be there at once.
    fn map(fd: BorrowedFd<'_>, len: usize, dense: usize, writable: bool) -> io::Result<Self> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses changes no memory of ours.
        let base = unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0)? };
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at 0 by itself");
        let mapping = Self { base, len, heap: false };
        mapping.populate(0, dense, writable)?;
        Ok(mapping)
    }
    /// Has pages be there, so that no access to them has to ask the system for memory.
    fn populate(&self, at: usize, len: usize, writable: bool) -> io::Result<()> {
        let advice = if writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: (1) it is our mapping, and populating changes no byte.
        match unsafe { rustix::mm::madvise(self.at(at, len).cast(), len, advice) } {
            // Kernels before 5.14 do not know it; pages come by faults there.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    #[inline(always)]
    fn at(&self, at: usize, len: usize) -> *mut u8 {
        if at > self.len || len > self.len - at {
            outside(at, len, self.len);
        }
        // SAFETY: (1) and the lines above.
        unsafe { self.base.as_ptr().add(at) }
    }
    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4));
        // SAFETY: (1) four bytes at a multiple of 4, alive as long as `self`.
        unsafe { AtomicU32::from_ptr(self.at(at, 4).cast()) }
    }
    #[inline(always)]
    fn word64(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8));
        // SAFETY: (1) eight bytes at a multiple of 8, alive as long as `self`.
        unsafe { AtomicU64::from_ptr(self.at(at, 8).cast()) }
    }
    #[inline]
    fn store(&self, at: usize, data: &[u8]) {
        // SAFETY: `at` checked the range; only `Segment` calls this, whose memory is writable (4).
        unsafe { dma::store_relaxed(self.at(at, data.len()), data) }
    }
    #[inline]
    fn load(&self, at: usize, out: &mut [u8]) {
        // SAFETY: `at` checked the range.
        unsafe { dma::load_relaxed(self.at(at, out.len()), out) }
    }
    #[inline]
    fn load_line(&self, at: usize, out: &mut [u8; LINE]) {
        assert!(at.is_multiple_of(LINE));
        // SAFETY: `at` checked the range, and the line above the alignment.
        unsafe { dma::load_line(self.at(at, LINE), out) }
    }
}

/// Under loom: words of its own kind.
#[cfg(loom)]
struct Mapping {
    words: Vec<AtomicU32>,
}

#[cfg(loom)]
impl Mapping {
    fn heap(len: usize) -> Self {
        Self { words: (0..len / 4).map(|_| AtomicU32::new(0)).collect() }
    }
    fn word(&self, at: usize) -> &AtomicU32 {
        &self.words[at / 4]
    }
    fn store(&self, at: usize, data: &[u8]) {
        for (word, four) in self.words[at / 4..].iter().zip(data.chunks(4)) {
            word.store(u32::from_ne_bytes(four.try_into().expect("whole words")), Ordering::Relaxed);
        }
    }
    fn load(&self, at: usize, out: &mut [u8]) {
        for (word, four) in self.words[at / 4..].iter().zip(out.chunks_mut(4)) {
            four.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes()[..four.len()]);
        }
    }
    /// Only the line's first 16 bytes, since every word is a branch of the exploration.
    fn load_line(&self, at: usize, out: &mut [u8; LINE]) {
        self.load(at + 4, &mut out[4..16]);
    }
}

/// Memory that this side writes.
#[derive(Clone)]
pub(super) struct Segment(Arc<Mapping>);

/// Memory that the peer writes, and this side reads.
#[derive(Clone)]
pub(super) struct Window(Arc<Mapping>);

impl Segment {
    /// Zeroed memory of this process alone, for what ends at it.
    pub(super) fn heap(len: usize) -> Self {
        Self(Arc::new(Mapping::heap(len)))
    }
    /// A word, to be reached often.
    pub(super) fn word_at(&self, at: usize) -> OwnWord {
        OwnWord(Word::new(&self.0, at))
    }
    /// The same memory as whoever reads it sees it.
    pub(super) fn window(&self) -> Window {
        Window(Arc::clone(&self.0))
    }
    #[inline]
    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        self.0.word(at)
    }
    #[cfg(not(loom))]
    #[inline]
    pub(super) fn word64(&self, at: usize) -> &AtomicU64 {
        self.0.word64(at)
    }
    #[inline]
    pub(super) fn store(&self, at: usize, data: &[u8]) {
        self.0.store(at, data);
    }
    /// A word to be looked at without the segment, and its value while nothing has come.
    #[cfg(not(loom))]
    pub(super) fn glance(&self, at: usize, quiet: u32) -> InputWord {
        InputWord::new(&self.0, |mapping| mapping.word(at), quiet)
    }
    /// So many lines, from here on.
    pub(super) fn lines(&self, at: usize, count: u32) -> OwnLines {
        OwnLines(Lines::new(&self.0, at, count))
    }
    /// A range to be written before anybody is told of it. `self` is that of the one producer of a ring, who keeps
    /// the ring's bytes to himself until he shows them.
    #[cfg(not(loom))]
    #[inline]
    pub(super) fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: `at` checked the range, and it lives as long as `self` is borrowed. (3) The memory is sealed against
        // other writers, or on our heap; consumers read what was shown, of which these bytes are no part.
        unsafe { core::slice::from_raw_parts_mut(self.0.at(at, len), len) }
    }
}

impl Window {
    /// A word, to be reached often.
    pub(super) fn word_at(&self, at: usize) -> PeerWord {
        PeerWord(Word::new(&self.0, at))
    }
    /// So many lines, from here on.
    pub(super) fn lines(&self, at: usize, count: u32) -> Lines {
        Lines::new(&self.0, at, count)
    }
    /// So many words of eight bytes, from here on.
    pub(super) fn words64(&self, at: usize, count: u32) -> PeerWords {
        PeerWords::new(&self.0, at, count)
    }
    /// A word of eight bytes.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(super) fn word64(&self, at: usize, order: Ordering) -> u64 {
        self.0.word64(at).load(order)
    }
    /// Has a page be there whose file may have a hole in its place.
    #[cfg(not(loom))]
    pub(super) fn populate(&self, at: usize, len: usize) -> io::Result<()> {
        self.0.populate(at, len, false)
    }
    #[inline(always)]
    pub(super) fn word(&self, at: usize, order: Ordering) -> u32 {
        self.0.word(at).load(order)
    }
    #[inline]
    pub(super) fn load(&self, at: usize, out: &mut [u8]) {
        self.0.load(at, out);
    }
    #[inline]
    pub(super) fn load_line(&self, at: usize, out: &mut [u8; LINE]) {
        self.0.load_line(at, out);
    }
}

/// A word that is reached often: without a check each time.
struct Word {
    /// Within the mapping (1), which `of` keeps, and a multiple of 4.
    #[cfg(not(loom))]
    at: NonNull<u32>,
    #[cfg(loom)]
    at: usize,
    #[cfg_attr(not(loom), expect(dead_code, reason = "it keeps the memory"))]
    of: Arc<Mapping>,
}

// SAFETY: (3) all access is by atomics; the right to it is the mapping's.
#[cfg(not(loom))]
unsafe impl Send for Word {}

impl Word {
    fn new(of: &Arc<Mapping>, at: usize) -> Self {
        #[cfg(not(loom))]
        let at = NonNull::new(of.word(at).as_ptr()).expect("no mapping is at 0");
        Self { at, of: Arc::clone(of) }
    }
    #[inline]
    fn get(&self) -> &AtomicU32 {
        // SAFETY: (1), as `new` checked, and alive as long as `self`.
        #[cfg(not(loom))]
        return unsafe { AtomicU32::from_ptr(self.at.as_ptr()) };
        #[cfg(loom)]
        return self.of.word(self.at);
    }
}

/// A word of this side's.
pub(super) struct OwnWord(Word);

impl OwnWord {
    #[inline]
    pub(super) fn store(&self, value: u32, order: Ordering) {
        self.0.get().store(value, order);
    }
}

/// A word of the peer's.
pub(super) struct PeerWord(Word);

impl PeerWord {
    /// Where it stands.
    #[cfg(not(loom))]
    pub(super) fn place(&self) -> &AtomicU32 {
        self.0.get()
    }
    #[inline]
    pub(super) fn load(&self, order: Ordering) -> u32 {
        self.0.get().load(order)
    }
}

/// Words of eight bytes of the peer's: a power of two of them, reached by a masked index, without a check each time.
pub(super) struct PeerWords {
    /// `mask + 1` words from here on lie within the mapping (1), which `of` keeps.
    #[cfg(not(loom))]
    first: NonNull<u64>,
    #[cfg(loom)]
    first: usize,
    mask: u32,
    #[cfg_attr(not(loom), expect(dead_code, reason = "it keeps the memory"))]
    of: Arc<Mapping>,
}

// SAFETY: (3) all access is by atomics; the right to it is the mapping's.
#[cfg(not(loom))]
unsafe impl Send for PeerWords {}

impl PeerWords {
    fn new(of: &Arc<Mapping>, at: usize, count: u32) -> Self {
        assert!(count.is_power_of_two() && at.is_multiple_of(8));
        #[cfg(not(loom))]
        let first = NonNull::new(of.at(at, count as usize * 8).cast()).expect("no mapping is at 0");
        #[cfg(loom)]
        let first = at;
        Self { first, mask: count - 1, of: Arc::clone(of) }
    }
    /// Where the word of this index stands.
    #[cfg(not(loom))]
    pub(super) fn place(&self, index: u32) -> *const u64 {
        // SAFETY: (1) the masked index is below the number of words, as `new` checked.
        unsafe { self.first.as_ptr().add((index & self.mask) as usize) }
    }
    /// The word of this index; under loom its first four bytes.
    #[inline(always)]
    pub(super) fn load(&self, index: u32, order: Ordering) -> u64 {
        let index = (index & self.mask) as usize;
        // SAFETY: (1) the masked index is below the number of words, as `new` checked; aligned, and alive as long as
        // `self`.
        #[cfg(not(loom))]
        return unsafe { AtomicU64::from_ptr(self.first.as_ptr().add(index)) }.load(order);
        #[cfg(loom)]
        return self.of.word(self.first + index * 8).load(order).into();
    }
}

/// The lines of a ring: a power of two of them, reached by an index that runs free, without a check each time.
#[cfg(not(loom))]
pub(super) struct Lines {
    /// `mask + 1` lines from here on lie within the mapping (1), which `of` keeps.
    first: NonNull<[u64; LINE / 8]>,
    mask: u32,
    /// Where they begin in it.
    offset: usize,
    of: Arc<Mapping>,
}

// SAFETY: (3) all access is by atomics; the right to it is the mapping's.
#[cfg(not(loom))]
unsafe impl Send for Lines {}

#[cfg(not(loom))]
impl Lines {
    fn new(of: &Arc<Mapping>, at: usize, count: u32) -> Self {
        assert!(count.is_power_of_two() && at.is_multiple_of(LINE));
        let first = NonNull::new(of.at(at, count as usize * LINE).cast()).expect("no mapping is at 0");
        Self { first, mask: count - 1, offset: at, of: Arc::clone(of) }
    }
    #[inline]
    fn at(&self, index: u32) -> *mut u8 {
        // SAFETY: (1) the masked index is below the number of lines, as `new` checked.
        unsafe { self.first.as_ptr().add((index & self.mask) as usize).cast() }
    }
    /// Brings a glance, which may be another ring's, to the first word of a line, whose value stays so until something
    /// comes; `others` makes the word that tells of other input.
    #[inline]
    pub(super) fn glance(
        &self,
        index: u32,
        quiet: u32,
        glance: &mut Glance,
        others: impl FnOnce() -> InputWord,
    ) {
        let at = self.offset + (index & self.mask) as usize * LINE;
        glance.look_at(&self.of, |of| of.word(at), quiet, others);
    }
    #[inline]
    fn atomic(&self, index: u32) -> &AtomicU32 {
        // SAFETY: (1), aligned, and alive as long as `self`.
        unsafe { AtomicU32::from_ptr(self.at(index).cast()) }
    }
    /// A line, where it stands.
    #[inline(always)]
    pub(super) fn view(&self, index: u32) -> LineView<'_> {
        LineView { at: self.at(index), of: PhantomData }
    }
    /// A line, to be written; only those of a segment may be.
    #[inline(always)]
    fn own(&self, index: u32) -> &[AtomicU64; LINE / 8] {
        // SAFETY: (1), aligned, and alive as long as `self`; a segment's memory is writable (4), and this line is
        // written by words of eight bytes alone while somebody has this.
        unsafe { &*self.at(index).cast() }
    }
}

/// Under loom: where its words are. A word of eight bytes is two of them, of which another thread may see one alone.
#[cfg(loom)]
pub(super) struct Lines {
    first: usize,
    mask: u32,
    of: Arc<Mapping>,
}

#[cfg(loom)]
impl Lines {
    fn new(of: &Arc<Mapping>, at: usize, count: u32) -> Self {
        Self { first: at, mask: count - 1, of: Arc::clone(of) }
    }
    fn at(&self, index: u32) -> usize {
        self.first + (index & self.mask) as usize * LINE
    }
    fn atomic(&self, index: u32) -> &AtomicU32 {
        self.of.word(self.at(index))
    }
    pub(super) fn view(&self, index: u32) -> LineView<'_> {
        LineView { at: self.at(index), of: &self.of }
    }
    fn own(&self, index: u32) -> [LoomWord<'_>; LINE / 8] {
        core::array::from_fn(|i| LoomWord([0, 4].map(|half| self.of.word(self.at(index) + i * 8 + half))))
    }
}

/// A word of eight bytes under loom.
#[cfg(loom)]
struct LoomWord<'a>([&'a AtomicU32; 2]);

#[cfg(loom)]
impl LoomWord<'_> {
    fn store(&self, value: u64, order: Ordering) {
        let [first, second]: [u32; 2] = bytemuck::cast(value);
        self.0[1].store(second, Ordering::Relaxed);
        self.0[0].store(first, order);
    }
}

impl Lines {
    /// The first word of a line.
    #[inline]
    pub(super) fn word(&self, index: u32, order: Ordering) -> u32 {
        self.atomic(index).load(order)
    }
}

/// Under loom: where it stands among its words.
#[cfg(loom)]
#[derive(Clone, Copy)]
pub(super) struct LineView<'a> {
    at: usize,
    of: &'a Mapping,
}

#[cfg(loom)]
impl LineView<'_> {
    pub(super) fn word<const N: usize>(self) -> u64 {
        let [first, second] = [0, 4].map(|half| self.of.word(self.at + N * 8 + half).load(Ordering::Relaxed));
        bytemuck::cast([first, second])
    }
}

/// A line of a peer's, where it stands: each look may find something else.
#[cfg(not(loom))]
#[derive(Clone, Copy)]
pub(super) struct LineView<'a> {
    /// A whole line from here on lies within the mapping (1), which is borrowed.
    at: *const u8,
    of: PhantomData<&'a Lines>,
}

#[cfg(not(loom))]
impl LineView<'_> {
    /// The word of eight bytes, of eight.
    #[inline(always)]
    pub(super) fn word<const N: usize>(self) -> u64 {
        const { assert!(N < LINE / 8) };
        // SAFETY: (1), aligned, and alive as long as the mapping is borrowed.
        unsafe { AtomicU64::from_ptr(self.at.add(N * 8).cast_mut().cast()).load(Ordering::Relaxed) }
    }
    /// Copies its bytes from that word on.
    ///
    /// # Safety
    /// Those of `dma`, (1), for `to .. to + len`, which is written, and is no memory of the ring's.
    ///
    /// # Panics
    /// The line does not have as many bytes there.
    #[inline(always)]
    pub(super) unsafe fn copy_to<const N: usize>(self, to: *mut u8, len: usize) {
        assert!(len <= LINE - N * 8);
        if len == 8 && to.addr() & 7 == 0 {
            let word = self.word::<N>();
            // SAFETY: our caller's; `to` is a multiple of 8.
            return unsafe { AtomicU64::from_ptr(to.cast()).store(word, Ordering::Release) };
        }
        // SAFETY: our caller's; (1) for the line.
        unsafe { dma::copy(to, self.at.add(N * 8), len, dma::Caching::Cached) }
    }
}

/// [`Lines`] that this side writes.
pub(super) struct OwnLines(Lines);

impl OwnLines {
    /// The first word of a line.
    #[inline]
    pub(super) fn word(&self, index: u32) -> &AtomicU32 {
        self.0.atomic(index)
    }
    /// Writes a line, or only its first three words, the very first last: who finds that finds the others.
    #[inline(always)]
    pub(super) fn store(&self, index: u32, line: &[u64; LINE / 8], three: bool) {
        let to = self.0.own(index);
        let put = |i: usize| to[i].store(line[i], Ordering::Relaxed);
        if !three {
            (3..LINE / 8).for_each(put);
        }
        put(2);
        put(1);
        to[0].store(line[0], Ordering::Release);
    }
}

/// Who may write to a file of shared memory.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writers {
    /// Only the mapping that its creator has: no other one can be made, and no hole be punched.
    Creator,
    /// Whoever has the descriptor.
    Anybody,
}

#[cfg(not(loom))]
impl Writers {
    fn seals(self) -> SealFlags {
        let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        match self {
            Self::Creator => size | SealFlags::FUTURE_WRITE,
            Self::Anybody => size,
        }
    }
}

/// Creates shared memory of this size, mapped, its pages there and its size sealed.
#[cfg(not(loom))]
pub(super) fn create(name: &str, len: usize, writers: Writers) -> io::Result<(OwnedFd, Segment)> {
    create_sparse(name, len, len, writers)
}

/// Creates shared memory of this size, of which only the first `dense` bytes have pages.
#[cfg(not(loom))]
pub(super) fn create_sparse(
    name: &str,
    len: usize,
    dense: usize,
    writers: Writers,
) -> io::Result<(OwnedFd, Segment)> {
    let fd = hca_process::memory_file(name, MemfdFlags::ALLOW_SEALING, len as u64)?;
    // Says now, as an error, that there is no room; a page fault would say it by a signal.
    hca_process::allocate_pages(fd.as_fd(), 0, dense as u64)?;
    let mapping = Mapping::map(fd.as_fd(), len, dense, true)?;
    rustix::fs::fcntl_add_seals(&fd, writers.seals())?;
    Ok((fd, Segment(Arc::new(mapping))))
}

/// An error of mapping a peer's memory.
#[cfg(not(loom))]
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryFault {
    /// It could shrink, be written to by others, or is no memfd.
    #[error("the file's seals are {found:?}, not {needed:?}")]
    Seals { found: SealFlags, needed: SealFlags },
    /// It is no ordinary memory file, as one of huge pages.
    #[error("the file's file system has type {0:#x}, not tmpfs")]
    Kind(u64),
    /// It is of another size than it should.
    #[error("the file has {found} bytes, {needed} are needed")]
    Size { found: u64, needed: u64 },
    /// To look at it would make pages, of this process's share of memory.
    #[error("the file has pages for {found} of its {needed} bytes")]
    Holes { found: u64, needed: u64 },
    /// The system refused.
    #[error("{0}")]
    Io(io::Error),
}

#[cfg(not(loom))]
impl From<rustix::io::Errno> for MemoryFault {
    fn from(e: rustix::io::Errno) -> Self {
        Self::Io(e.into())
    }
}

/// A peer's memory whose seals, kind and size were verified.
#[cfg(not(loom))]
pub(super) struct Sealed<'a> {
    fd: BorrowedFd<'a>,
    len: usize,
}

#[cfg(not(loom))]
impl<'a> Sealed<'a> {
    /// Memory of this size to which so many may write.
    pub(super) fn verify(fd: BorrowedFd<'a>, len: usize, writers: Writers) -> Result<Self, MemoryFault> {
        let found = Self::size(fd, writers.seals())?;
        if found != len as u64 {
            return Err(MemoryFault::Size { found, needed: len as u64 });
        }
        Ok(Self { fd, len })
    }
    /// Memory of whole pages that holds as many bytes, granted by its owner. Who may write to it is the owner's
    /// affair, who may seal it further.
    pub(super) fn granted(fd: BorrowedFd<'a>, needed: usize) -> Result<Self, MemoryFault> {
        let found = Self::size(fd, SealFlags::SHRINK | SealFlags::GROW)?;
        let fits = |len: &usize| *len >= needed && len.is_multiple_of(4096);
        let len = usize::try_from(found).ok().filter(fits);
        Ok(Self { fd, len: len.ok_or(MemoryFault::Size { found, needed: needed as u64 })? })
    }
    /// The size of memory that can't change it, nor lose pages to accesses of ours.
    fn size(fd: BorrowedFd<'_>, needed: SealFlags) -> Result<u64, MemoryFault> {
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        let found = rustix::fs::fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
        if !found.contains(needed) {
            return Err(MemoryFault::Seals { found, needed });
        }
        // A hugetlbfs file takes the seals too, but holes can be punched into it nevertheless.
        let kind = rustix::fs::fstatfs(fd)?.f_type as u64;
        if kind != TMPFS_MAGIC {
            return Err(MemoryFault::Kind(kind));
        }
        Ok(rustix::fs::fstat(fd)?.st_size as u64)
    }
    /// Memory whose pages are all there. Where none but its creator writes it stays so, since nobody can punch holes.
    pub(super) fn dense(self) -> Result<Self, MemoryFault> {
        /// Bytes of what files are measured in.
        const BLOCK: u64 = 512;
        let (found, needed) = (rustix::fs::fstat(self.fd)?.st_blocks as u64 * BLOCK, self.len as u64);
        if found < needed { Err(MemoryFault::Holes { found, needed }) } else { Ok(self) }
    }
    /// Bytes of the file.
    pub(super) fn len(&self) -> usize {
        self.len
    }
    /// The file.
    pub(super) fn fd(&self) -> BorrowedFd<'a> {
        self.fd
    }
    /// Maps it with pages for its first bytes only; for the others the window's `populate` is due, unless they are
    /// there.
    pub(super) fn sparse_window(self, dense: usize) -> Result<Window, MemoryFault> {
        Mapping::map(self.fd, self.len, dense, false).map(|m| Window(Arc::new(m))).map_err(MemoryFault::Io)
    }
    pub(super) fn segment(self) -> Result<Segment, MemoryFault> {
        Mapping::map(self.fd, self.len, self.len, true).map(|m| Segment(Arc::new(m))).map_err(MemoryFault::Io)
    }
}
