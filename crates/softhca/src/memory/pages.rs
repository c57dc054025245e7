//! Memory that the adapter allocates for programs: pages of this process, huge ones if available.
//!
//! Invariants:
//! 1. A `Pages` owns one allocation, made and freed with the layout that it keeps; no other code frees it.
#![allow(unsafe_code)]

use core::alloc::Layout;
use core::ptr::NonNull;
use std::alloc::{alloc_zeroed, dealloc};

use hca_core::{DeviceError, DmaMemory};

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
/// The longest piece: what an allocation may have, in whole huge pages.
pub(crate) const MAX_BYTES: u64 = (isize::MAX as usize & !(HUGE - 1)) as u64;

struct Pages(NonNull<u8>, Layout);

// SAFETY: pages and the right to free them; nothing is read or written through this type.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: (1)
        unsafe { dealloc(self.0.as_ptr(), self.1) }
    }
}

/// Zeroed memory that peers on this machine can be given, if there is more of it.
pub(crate) fn alloc_shared(len: usize) -> Option<DmaMemory> {
    let pages = match hca_fabric::SharedPages::alloc(len.max(1)) {
        Ok(pages) if len > 0 => pages,
        Ok(_) => return None,
        Err(why) => {
            tracing::debug!(%why, "memory that peers can't be given takes the place");
            return None;
        }
    };
    // SAFETY: mapped, zeroed, and unmapped when the owner and all peers' grants are gone.
    Some(unsafe { DmaMemory::new(pages.addr(), len, Box::new(pages)) })
}

/// Zeroed memory of at least `len` bytes.
pub(crate) fn alloc(len: usize) -> Result<DmaMemory, DeviceError> {
    let range =
        |_| DeviceError::OutOfRange { what: "memory length", value: len as u64, min: 1, max: MAX_BYTES };
    if len == 0 {
        return Err(range(()));
    }
    let align = if len >= HUGE { HUGE } else { PAGE };
    let layout = Layout::from_size_align(len, align).map_err(|_| range(()))?.pad_to_align();
    // SAFETY: the layout's size is not 0.
    let Some(addr) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
        return Err(DeviceError::OutOfMemory { bytes: len as u64 });
    };
    #[cfg(not(miri))]
    if len >= HUGE {
        // SAFETY: the range is ours; the advice changes no content. Without huge pages it does nothing.
        let _ = unsafe {
            rustix::mm::madvise(addr.as_ptr().cast(), layout.size(), rustix::mm::Advice::LinuxHugepage)
        };
    }
    // SAFETY: freshly allocated, zeroed, and `Pages` frees it when the owner is dropped.
    Ok(unsafe { DmaMemory::new(addr, len, Box::new(Pages(addr, layout))) })
}
