//! An asymmetric memory barrier: the rare side of a pair of threads pays for both sides.
//!
//! Two threads that each store a word and then load the other's may both miss the other's store, unless both run a full
//! barrier in between. If one thread does so very often and the other rarely, the rare thread makes every processor
//! that runs this process execute a barrier ([`Barrier::heavy`]), and the frequent thread only keeps its compiler from
//! reordering the store and the load ([`Barrier::light`]).
//!
//! Invariants of the unsafe code:
//! 1. The page is mapped once and never unmapped. Only its protection changes, between two protections that both allow
//!    reading. Only [`shoot_down`] reads or writes the page, under the lock.
#![allow(unsafe_code)]

use crate::sync::{Ordering, fence};

/// The kind of barrier by which the two sides order their memory accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// The rare side makes all processors execute a barrier.
    #[cfg(not(any(loom, miri)))]
    System,
    /// Both sides execute a full fence.
    Fence,
}

impl Barrier {
    /// The barrier that this system supports. Every call returns the same.
    #[cfg(not(any(loom, miri)))]
    pub fn of_system() -> Self {
        use rustix::thread::{MembarrierCommand, membarrier};
        static REGISTERED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        let register = || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        if *REGISTERED.get_or_init(register) { Self::System } else { Self::Fence }
    }
    #[cfg(any(loom, miri))]
    pub fn of_system() -> Self {
        Self::Fence
    }
    /// The frequent side's barrier, between its store and its load.
    #[inline]
    pub fn light(self) {
        match self {
            #[cfg(not(any(loom, miri)))]
            Self::System => core::sync::atomic::compiler_fence(Ordering::SeqCst),
            Self::Fence => fence(Ordering::SeqCst),
        }
    }
    /// The rare side's barrier, between its store and its load.
    #[cold]
    pub fn heavy(self) {
        fence(Ordering::SeqCst);
        #[cfg(not(any(loom, miri)))]
        if self == Self::System {
            use rustix::thread::{MembarrierCommand, membarrier};
            // It worked before; a filter of system calls may have come since.
            if membarrier(MembarrierCommand::PrivateExpedited).is_err() {
                shoot_down();
            }
            fence(Ordering::SeqCst);
        }
    }
}

/// Has every processor that runs this process run a barrier, by taking a right away from a page that each may have in
/// its translation buffer.
#[cfg(not(any(loom, miri)))]
fn shoot_down() {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
    use std::sync::{Mutex, PoisonError};
    const PAGE: usize = 4096;
    static AT: Mutex<usize> = Mutex::new(0);
    let mut at = AT.lock().unwrap_or_else(PoisonError::into_inner);
    let both = ProtFlags::READ | ProtFlags::WRITE;
    if *at == 0 {
        // SAFETY: a new mapping at an address that the kernel chooses changes no memory of ours.
        let page = unsafe { mmap_anonymous(core::ptr::null_mut(), PAGE, both, MapFlags::PRIVATE) };
        *at = page.map_or(0, |p| p.expose_provenance());
    }
    let page = core::ptr::with_exposed_provenance_mut::<core::ffi::c_void>(*at);
    if page.is_null() {
        return;
    }
    // SAFETY: (1). The write brings the page into being, and into this processor's buffer.
    unsafe {
        page.cast::<u8>().write_volatile(1);
        let _ = mprotect(page, PAGE, MprotectFlags::READ);
        let _ = mprotect(page, PAGE, MprotectFlags::READ | MprotectFlags::WRITE);
    }
}
