//! Memory for DMA: a file in memory that this process maps, and whose descriptor lets a server map it, too.
//!
//! Invariants:
//! 1. The mapping is all of the file, which is sealed against shrinking, so that no access ends in SIGBUS.
//! 2. The device may write the memory at any time: it is accessed by atomic words and by the copies of `hca_dma`, and
//!    no reference to plain bytes of it is made. References to it are references to atomics only.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hca_process::{allocate_pages, memory_file};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::error::DmaError;
use crate::mapping::Mapping;

/// Bytes of a huge page, and how all of this memory is aligned.
pub(crate) const HUGE: usize = 2 << 20;

/// From here on it is looked whether the system has as much: where it has not, it would not refuse, but end processes.
const MUCH: usize = 32 << 20;

/// The available memory of the system, swap included, from `/proc/meminfo`, in KiB.
fn available(meminfo: &str) -> Option<u64> {
    let of = |name| {
        let line = meminfo.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    let kib = of("MemAvailable:")?.checked_add(of("SwapFree:").unwrap_or(0))?;
    kib.checked_mul(1024)
}

/// A file of zeros in memory, with all its pages there, that only this process may resize (it does not).
pub(crate) fn memfd(name: &str, len: u64) -> Result<OwnedFd, Errno> {
    let file = memory_file(name, MemfdFlags::ALLOW_SEALING, len)?;
    allocate_pages(file.as_fd(), 0, len)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Memory of the library's own.
#[derive(Debug)]
pub(crate) struct Memory {
    mapping: Mapping,
    file: OwnedFd,
    huge: bool,
}

impl Memory {
    /// Zeroed memory of `len` bytes, whole pages; of huge pages where these are asked for, the system has set some
    /// aside, and `len` is a multiple of theirs.
    pub(crate) fn new(len: usize, huge: bool) -> Result<Self, DmaError> {
        if huge && len.is_multiple_of(HUGE) {
            match Self::of_huge_pages(len) {
                Ok(this) => return Ok(this),
                Err(e) => tracing::debug!(len, %e, "no huge pages"),
            }
        }
        let refused = |doing| move |e: Errno| DmaError::Memory { bytes: len, doing, source: e.into() };
        let meminfo = if len >= MUCH { std::fs::read_to_string("/proc/meminfo") } else { Ok(String::new()) };
        if available(&meminfo.unwrap_or_default()).is_some_and(|has| len as u64 > has) {
            return Err(refused("looking whether the system has as much to spare")(Errno::NOMEM));
        }
        let file = memfd("hca-dma", len as u64).map_err(refused("making a file in memory"))?;
        let mapping = Mapping::of_file(file.as_fd(), 0, len, HUGE).map_err(refused("mapping it"))?;
        if len >= HUGE {
            mapping.advise_huge();
        }
        mapping.populate().map_err(refused("making its pages"))?;
        Ok(Self { mapping, file, huge: false })
    }

    fn of_huge_pages(len: usize) -> Result<Self, Errno> {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let file = memory_file("hca-dma", flags, len as u64)?;
        // Pages are set aside by it, and lack of them is told here, not by a signal.
        allocate_pages(file.as_fd(), 0, len as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::of_file(file.as_fd(), 0, len, HUGE)?;
        mapping.populate()?;
        Ok(Self { mapping, file, huge: true })
    }

    pub(crate) fn len(&self) -> usize {
        self.mapping.len()
    }
    pub(crate) fn is_huge(&self) -> bool {
        self.huge
    }
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
    pub(crate) fn base(&self) -> core::ptr::NonNull<u8> {
        self.mapping.base()
    }

    #[inline(always)]
    fn place<T>(&self, at: usize) -> *mut T {
        let len = self.mapping.len();
        assert!(at <= len && size_of::<T>() <= len - at, "{} bytes at {at:#x} of {len:#x}", size_of::<T>());
        assert!(at.is_multiple_of(size_of::<T>()), "{at:#x} is not aligned");
        // SAFETY: within the mapping, by the first line.
        unsafe { self.mapping.base().as_ptr().add(at).cast() }
    }
    #[inline]
    pub(crate) fn word32(&self, at: usize) -> &AtomicU32 {
        // SAFETY: (1) mapped as long as `self`, aligned as the mapping is; (2) atomics only.
        unsafe { AtomicU32::from_ptr(self.place(at)) }
    }
    #[inline]
    pub(crate) fn word64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.place(at)) }
    }

    /// # Panics
    /// The bytes do not lie inside.
    fn bytes(&self, at: usize, len: usize) -> *mut u8 {
        let all = self.mapping.len();
        assert!(at <= all && len <= all - at, "{len} bytes at {at:#x} of {all:#x}");
        // SAFETY: within the mapping, by the line above.
        unsafe { self.mapping.base().as_ptr().add(at) }
    }
    /// Copies bytes in, aligned words of 8 whole.
    pub(crate) fn store(&self, at: usize, data: &[u8]) {
        // SAFETY: (1) mapped, and within, as `bytes` has checked.
        unsafe { hca_dma::store(self.bytes(at, data.len()), data) };
    }
    /// Copies bytes out, aligned words of 8 whole.
    pub(crate) fn load(&self, at: usize, out: &mut [u8]) {
        // SAFETY: as above.
        unsafe { hca_dma::load(self.bytes(at, out.len()), out) };
    }
    /// Makes bytes 0.
    pub(crate) fn zero(&self, at: usize, len: usize) {
        // SAFETY: as above.
        unsafe { hca_dma::zero(self.bytes(at, len), len) };
    }
}

/// The first word of a mapping.
pub(crate) fn word_of(mapping: &Mapping) -> &AtomicU32 {
    // SAFETY: (1) there is a page at least, aligned and mapped as long as `mapping` lives; (2) atomics only.
    unsafe { AtomicU32::from_ptr(mapping.base().as_ptr().cast()) }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn bytes_are_stored_loaded_and_zeroed_at_any_place_and_of_any_length() {
        let m = Memory::new(4096, false).unwrap();
        assert_eq!((m.len(), m.is_huge(), m.base().addr().get() % HUGE), (4096, false, 0));
        for at in 0..10 {
            for len in 0..30 {
                let data: Vec<u8> = (0..len).map(|i| (i + at + 1) as u8).collect();
                m.store(100 + at, &data);
                let mut all = vec![0; 64];
                m.load(96, &mut all);
                let mut expected = vec![0; 64];
                expected[4 + at..4 + at + len].copy_from_slice(&data);
                assert_eq!(all, expected, "{len} bytes at {at}");
                m.zero(100 + at, len);
                m.load(96, &mut all);
                assert_eq!(all, [0; 64]);
            }
        }
        m.word32(8).store(1, Ordering::Relaxed);
        assert_ne!(m.word64(8).load(Ordering::Relaxed), 0);
    }

    #[test]
    fn memory_can_neither_be_shrunk_nor_grown_by_who_has_its_descriptor() {
        let m = Memory::new(8192, false).unwrap();
        assert_eq!(rustix::fs::ftruncate(m.file(), 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(m.file(), 16_384), Err(Errno::PERM));
    }

    #[test]
    fn where_there_are_no_huge_pages_others_serve() {
        let m = Memory::new(HUGE, true).unwrap();
        assert_eq!(m.len(), HUGE);
        m.store(HUGE - 3, &[1, 2, 3]);
    }

    #[test]
    fn more_memory_than_the_system_has_is_refused_and_not_tried() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   1000 kB\nSwapFree: 24 kB\n"), Some(1 << 20));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
        assert!(available(&meminfo).is_some(), "{meminfo}");
        let told = Memory::new(1 << 50, false).unwrap_err().to_string();
        assert!(told.contains("1125899906842624 bytes of memory can't be had: looking whether"), "{told}");
    }
}
