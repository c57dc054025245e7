//! Memory that this library maps itself.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};
use std::os::fd::BorrowedFd;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::entry::{Errno, INVALID};

/// Mapped memory, which is unmapped when it is dropped. There are no references to it.
pub(crate) struct Mapping {
    first: NonNull<u8>,
    len: usize,
}
// SAFETY: an address and a length; all accesses are the device's, or copies by [`Mapping::copy_in`] and
// [`Mapping::copy_out`].
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

const PROT: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Mapping {
    /// Memory that is zero, and takes no space before it is written.
    pub(crate) fn zeroed(len: usize) -> Result<Self, Errno> {
        // SAFETY: the kernel chooses a place that is free.
        let at = unsafe { mmap_anonymous(null_mut(), len, PROT, MapFlags::PRIVATE | MapFlags::NORESERVE) }?;
        Self::at(at, len)
    }
    /// A part of what a descriptor stands for, such as a dmabuf; `offset` and `len` are of whole pages.
    pub(crate) fn of_fd(fd: c_int, offset: u64, len: usize, writes: bool) -> Result<Self, Errno> {
        if fd < 0 {
            return Err(Errno(libc::EBADF));
        }
        let prot = if writes { PROT } else { ProtFlags::READ };
        // SAFETY: the program gives a descriptor that is open during the call; of a wrong one the kernel says so.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        // SAFETY: the kernel chooses a place that is free.
        let at = unsafe { mmap(null_mut(), len, prot, MapFlags::SHARED, fd, offset) }?;
        Self::at(at, len)
    }
    fn at(at: *mut c_void, len: usize) -> Result<Self, Errno> {
        Ok(Self { first: NonNull::new(at.cast()).ok_or(INVALID)?, len })
    }
    pub(crate) fn first(&self) -> NonNull<u8> {
        self.first
    }
    fn place(&self, offset: u64, len: usize) -> Result<*mut u8, Errno> {
        let offset = usize::try_from(offset).map_err(|_| INVALID)?;
        let end = offset.checked_add(len).ok_or(INVALID)?;
        if end > self.len { Err(INVALID) } else { Ok(self.first.as_ptr().wrapping_add(offset)) }
    }
    /// Copies bytes of the program's to an offset.
    pub(crate) fn copy_in(&self, offset: u64, from: *const u8, len: usize) -> Result<(), Errno> {
        let to = self.place(offset, len)?;
        if from.is_null() && len > 0 {
            return Err(INVALID);
        }
        // SAFETY: the place is within the mapping, and the program gives as many bytes. Both may change meanwhile, as
        // memory of a device may; no reference is made.
        unsafe { core::ptr::copy(from, to, len) };
        Ok(())
    }
    /// Copies bytes at an offset to memory of the program's.
    pub(crate) fn copy_out(&self, offset: u64, to: *mut u8, len: usize) -> Result<(), Errno> {
        let from = self.place(offset, len)?;
        if to.is_null() && len > 0 {
            return Err(INVALID);
        }
        // SAFETY: as above.
        unsafe { core::ptr::copy(from, to, len) };
        Ok(())
    }
}
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no region of a device has it any more: its owner deregistered
        // it.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), self.len) };
    }
}
