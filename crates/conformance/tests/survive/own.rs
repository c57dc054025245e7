//! Registered memory of a test.
//!
//! Invariants:
//! 1. A piece of memory is never freed or unmapped while it is registered, unless a test states so: regions and
//!    requests may outlive the code that created them. The memory is reused once its region is gone.
//! 2. The memory is accessed through its region only.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use hca_core::Access;
use hca_verbs::{Pd, SharedMr};

/// Memory from the system, in whole pages.
pub(crate) struct Own {
    at: NonNull<u8>,
    len: usize,
}

impl Own {
    pub(crate) fn new(len: usize) -> Self {
        let len = len.next_multiple_of(4096);
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping changes no memory of ours.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), len, prot, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at: NonNull::new(at.cast()).expect("mapped"), len }
    }
    /// Registers it. The caller lets go of an earlier region before.
    pub(crate) fn register(&self, pd: &Pd) -> SharedMr {
        // SAFETY: (1) (2)
        unsafe { pd.register(self.at, self.len, Access::BY_PEERS) }.expect("the device takes any memory")
    }
    /// Takes the pages away although they are registered. Whoever of this process touches them then is at fault, so
    /// only another one's reading is left.
    pub(crate) fn unmap(self) {
        // SAFETY: (1) as a test says; nothing of this process reads or writes there any more.
        assert_eq!(unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) }, 0);
    }
}
