//! Memory that both processes of a measurement share: a page of counters in cache lines of their own, and behind it
//! lines for data.
//!
//! 1. The mapping has the descriptor's length: [`WORDS_BYTES`] and whole lines, zeroed, none of it given back before
//!    the mapping ends with its [`Shared`].
//! 2. Only atomics are ever made of it, and nobody keeps a reference longer than the [`Shared`] that it came from.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

const WORDS_BYTES: usize = 4096;
/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// A cache line.
#[repr(C, align(64))]
pub struct Line(pub [AtomicU64; 8]);
const _: () = assert!(size_of::<Line>() == LINE_BYTES);

/// A counter in cache lines of its own.
#[repr(C, align(128))]
pub struct Word(AtomicU64);

impl Word {
    /// Reads, with all that was written before the value.
    #[inline]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
    /// Writes, after all that was written before.
    #[inline]
    pub fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
    /// The counter itself.
    pub fn word(&self) -> &AtomicU64 {
        &self.0
    }
}

/// What lies in the page.
#[repr(C)]
pub struct Words {
    /// The far side's port, once it listens.
    pub port: Word,
    /// Packets or bytes that arrived.
    pub arrived: Word,
    /// The far side ends when this is 1.
    pub stop: Word,
    /// What the near side asks for, by number.
    pub asked: Word,
    /// What the far side has done, by the same number.
    pub done: Word,
}
const _: () = assert!(size_of::<Words>() <= WORDS_BYTES);

/// The memory, and the descriptor that the far side inherits.
pub struct Shared {
    fd: OwnedFd,
    words: NonNull<Words>,
    bytes: usize,
}

impl Shared {
    /// The counters alone. Their descriptor is inherited by the processes that this one starts.
    ///
    /// # Errors
    /// The system has no descriptor or memory left.
    pub fn new() -> io::Result<Self> {
        Self::with_lines(0)
    }

    /// The counters, and so many lines behind them.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_lines(lines: usize) -> io::Result<Self> {
        let fd = rustix::fs::memfd_create("floor", MemfdFlags::empty())?;
        rustix::fs::ftruncate(&fd, (WORDS_BYTES + lines * LINE_BYTES) as u64)?;
        Self::map(fd)
    }

    /// The memory of the process that started this one.
    ///
    /// # Errors
    /// The descriptor is not open.
    pub fn open(fd: u32) -> io::Result<Self> {
        // SAFETY: the number was given to this process by its starter, which left it open for it;
        // `try_clone_to_owned` makes a descriptor of our own and fails if there is none.
        let inherited = unsafe { BorrowedFd::borrow_raw(fd as i32) };
        Self::map(inherited.try_clone_to_owned()?)
    }

    fn map(fd: OwnedFd) -> io::Result<Self> {
        let bytes = usize::try_from(rustix::fs::fstat(&fd)?.st_size).expect("a length");
        assert!(bytes >= WORDS_BYTES, "memory of {bytes} bytes holds no counters");
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let page = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, flags, &fd, 0) }?;
        let words = NonNull::new(page.cast()).expect("a mapping is not at zero");
        Ok(Self { fd, words, bytes })
    }

    /// The descriptor's number.
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// The lines behind the counters.
    pub fn lines(&self) -> &[Line] {
        let count = (self.bytes - WORDS_BYTES) / LINE_BYTES;
        // SAFETY: (1) so many lines lie behind the counters, aligned as pages are; (2) they are atomics, so that the
        // other process may change them, and the slice lives no longer than the mapping.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast::<u8>().add(WORDS_BYTES).cast(), count) }
    }
}

impl std::ops::Deref for Shared {
    type Target = Words;
    fn deref(&self) -> &Words {
        // SAFETY: (1) the page is aligned, large enough and mapped; (2) `Words` holds atomics only, so that the
        // other process may change it.
        unsafe { self.words.as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: (1, 2) the mapping is ours, and nobody has a reference to it any more. That it can't be unmapped
        // can't be.
        let _ = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), self.bytes) };
    }
}
