//! Looks at memory, before somebody else accesses it.
#![allow(unsafe_code)] // calls that change nothing of what they look at

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use std::sync::LazyLock;

use rustix::io::Errno;
use rustix::mm::{Advice, MsyncFlags, madvise, msync};

/// Whether the process can itself do what a device is to do with memory, as the kernel finds out when it pins pages: all
/// of it is mapped, and its first and last page can be read, or written if the device `writes`. The pages between are not
/// touched. `len` is at least 1, and the memory ends within the address space.
pub fn can_access(first: NonNull<u8>, len: usize, writes: bool) -> bool {
    let page = rustix::param::page_size();
    let of = |address: usize| address & !(page - 1);
    let (start, last) = (of(first.addr().get()), of(first.addr().get() + (len - 1)));
    let at = |address: usize| first.as_ptr().with_addr(address).cast::<c_void>();
    // SAFETY: it changes nothing on Linux, and tells of holes.
    let found = unsafe { msync(at(start), last - start + page, MsyncFlags::ASYNC) };
    let can = |address| {
        can(at(address), page, Advice::LinuxPopulateRead)
            && (!writes || can(at(address), page, Advice::LinuxPopulateWrite))
    };
    found != Err(Errno::NOMEM) && can(start) && can(last)
}

/// Whether a page can be read or written. A kernel before 5.14 does not tell.
fn can(at: *mut c_void, page: usize, advice: Advice) -> bool {
    static OWN: u8 = 0;
    static IS_TOLD: LazyLock<bool> = LazyLock::new(|| {
        let page = rustix::param::page_size();
        let at = ptr::from_ref(&OWN).cast_mut().map_addr(|address| address & !(page - 1));
        // SAFETY: a page of this program; no content changes.
        unsafe { madvise(at.cast(), page, Advice::LinuxPopulateRead) }.is_ok()
    });
    // SAFETY: it has the kernel do what an access would do, and changes no content.
    match unsafe { madvise(at, page, advice) } {
        Err(Errno::FAULT | Errno::NOMEM) => false,
        Err(Errno::INVAL) => !*IS_TOLD,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::*;

    #[test]
    fn memory_with_a_hole_and_memory_without_the_right_is_found_out() {
        let page = rustix::param::page_size();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: pages of this test alone.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), 4 * page, prot, MapFlags::PRIVATE) }.unwrap();
        let byte = |offset: usize| NonNull::new(at.cast::<u8>().wrapping_add(offset)).unwrap();
        assert!(can_access(byte(0), 4 * page, true) && can_access(byte(1), 4 * page - 2, true));
        // SAFETY: as above.
        unsafe { mprotect(byte(3 * page).as_ptr().cast(), page, MprotectFlags::READ) }.unwrap();
        assert!(can_access(byte(0), 4 * page, false));
        assert!(!can_access(byte(0), 4 * page, true) && can_access(byte(0), 3 * page, true));
        // SAFETY: as above.
        unsafe { munmap(byte(page).as_ptr().cast(), page) }.unwrap();
        assert!(!can_access(byte(0), 4 * page, false) && !can_access(byte(page - 1), 2, false));
        assert!(can_access(byte(0), page, true) && can_access(byte(2 * page), 2 * page, false));
        // SAFETY: as above; holes do not matter.
        unsafe { munmap(at, 4 * page) }.unwrap();
    }
}
