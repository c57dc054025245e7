//! One page that both processes of a floor share: counters in cache lines of their own.
//!
//! 1. The mapping is 4096 bytes, zeroed, and lives until the process ends (it is leaked, one page a run).
//! 2. Only atomics are ever made of it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

const BYTES: usize = 4096;

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
}
const _: () = assert!(size_of::<Words>() <= BYTES);

/// The page, and the descriptor that the far side inherits.
pub struct Shared {
    fd: OwnedFd,
    words: &'static Words,
}

impl Shared {
    /// A new page. Its descriptor is inherited by the processes that this one starts.
    ///
    /// # Errors
    /// The system has no descriptor or memory left.
    pub fn new() -> io::Result<Self> {
        let fd = rustix::fs::memfd_create("floor", MemfdFlags::empty())?;
        rustix::fs::ftruncate(&fd, BYTES as u64)?;
        Self::map(fd)
    }

    /// The page of the process that started this one.
    ///
    /// # Errors
    /// The descriptor is not open.
    pub fn open(fd: u32) -> io::Result<Self> {
        // SAFETY: (1) the number was given to this process by its starter, which left it open for it;
        // `try_clone_to_owned` makes a descriptor of our own and fails if there is none.
        let inherited = unsafe { BorrowedFd::borrow_raw(fd as i32) };
        Self::map(inherited.try_clone_to_owned()?)
    }

    fn map(fd: OwnedFd) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let page = unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES, prot, flags, &fd, 0) }?;
        // SAFETY: (1) the page is aligned, large enough, zeroed and never unmapped; (2) `Words` holds
        // atomics only, so that the other process may change it.
        let words = unsafe { &*page.cast::<Words>() };
        Ok(Self { fd, words })
    }

    /// The descriptor's number.
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

impl std::ops::Deref for Shared {
    type Target = Words;
    fn deref(&self) -> &Words {
        self.words
    }
}
