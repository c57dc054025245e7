//! Files that are mapped into this process: registers, memory for DMA, words shared with a server.
//!
//! Invariants:
//! 1. `base .. base + len` is a mapping of the process that made it, readable and writable, as long as `Mapping` lives;
//!    no other code unmaps or maps there. A forked child has no memory there, or memory of its own. `base` is a
//!    multiple of the requested alignment.
//! 2. Neither this module nor a caller that asks for `base` ever makes a reference to plain bytes of the mapping,
//!    because others may write them at any time.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::os::fd::BorrowedFd;

use hca_process::Fork;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A shared mapping of a part of a file.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    fork: Fork,
}

// SAFETY: an address and the right to unmap it; what stands there is reached by atomics and volatile accesses (2).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.fork.is_child() {
            return;
        }
        // SAFETY: (1) it is ours, and whoever was given its address holds this mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Mapping {
    /// Maps `len` bytes of a file from `offset` on, at a multiple of `align`. Children get none of it.
    pub(crate) fn of_file(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        align: usize,
    ) -> Result<Self, Errno> {
        let page = rustix::param::page_size();
        let align = align.max(page);
        let (reserved, prot) =
            (len.checked_add(align).ok_or(Errno::NOMEM)?, ProtFlags::READ | ProtFlags::WRITE);
        if len == 0 || !len.is_multiple_of(page) {
            return Err(Errno::INVAL);
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses changes no memory of ours.
        let room = unsafe {
            rustix::mm::mmap_anonymous(core::ptr::null_mut(), reserved, ProtFlags::empty(), flags)?
        };
        let room: *mut u8 = room.cast();
        let before = room.addr().next_multiple_of(align) - room.addr();
        // SAFETY: within the room that was just reserved, as `before` is less than `align`.
        let at = unsafe { room.add(before) };
        // SAFETY: it replaces a part of the room, which is ours and holds nothing.
        let mapped = unsafe {
            rustix::mm::mmap(at.cast(), len, prot, MapFlags::SHARED | MapFlags::FIXED, file, offset)
        };
        // SAFETY: the rest of the room before it, or all of it where nothing was mapped; nobody has its address.
        let _ = unsafe { rustix::mm::munmap(room.cast(), if mapped.is_ok() { before } else { reserved }) };
        mapped?;
        let behind = align - before;
        if behind > 0 {
            // SAFETY: the rest of the room behind it, from `at + len` on, which is whole pages.
            let _ = unsafe { rustix::mm::munmap(at.add(len).cast(), behind) };
        }
        let base = NonNull::new(at).expect("the kernel maps nothing at 0 by itself");
        let this = Self { base, len, fork: Fork::new() };
        // SAFETY: (1) the advice changes no content.
        unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxDontFork)? };
        Ok(this)
    }

    /// Asks for huge pages where the system has them to spare.
    pub(crate) fn advise_huge(&self) {
        // SAFETY: (1) the advice changes no content. Where it means nothing it does nothing.
        let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
    }

    /// Has all pages be there.
    pub(crate) fn populate(&self) -> Result<(), Errno> {
        let base = self.base.as_ptr().cast();
        // SAFETY: (1) populating changes no byte.
        match unsafe { rustix::mm::madvise(base, self.len, Advice::LinuxPopulateWrite) } {
            // Kernels before 5.14 do not know it; pages come by faults there.
            Err(Errno::INVAL) => Ok(()),
            other => other,
        }
    }

    /// Has ordinary memory be there instead of the file, which this mapping holds no more. Accesses go on meanwhile.
    pub(crate) fn detach(&self) -> Result<(), Errno> {
        let (at, prot) = (self.base.as_ptr().cast(), ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: (1) it replaces a mapping of ours by one that is as long, readable and writable; (2) whoever reaches
        // it does so by accesses that take what comes.
        unsafe { rustix::mm::mmap_anonymous(at, self.len, prot, flags)? };
        // SAFETY: (1) the advice changes no content.
        unsafe { rustix::mm::madvise(at, self.len, Advice::LinuxDontFork) }
    }

    /// Where it begins; for accesses of single words, and by those who hold the mapping.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
    /// The length.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
