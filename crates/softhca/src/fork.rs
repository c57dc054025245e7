//! Whether this process is a child that was forked off after the adapter was opened.
//!
//! A child has a copy of the rings and of the engine, but neither the adapter's thread nor the right to
//! speak for its address. It must touch nothing, and must not wait for a lock that a thread held which
//! it has not. A page that the kernel zeroes in a child tells, at the price of one load.
//!
//! Invariants:
//! 1. The page is mapped once, never unmapped, and only accessed by atomics.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use hca_core::DeviceError;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

const PAGE: usize = 4096;
const PARENT: u32 = 1;

static WORD: OnceLock<&'static AtomicU32> = OnceLock::new();

/// A word that reads 1 in the process that first asked for it and 0 in its children.
fn word() -> &'static AtomicU32 {
    static FALLBACK: AtomicU32 = AtomicU32::new(PARENT);
    WORD.get_or_init(|| {
        if cfg!(miri) {
            return &FALLBACK;
        }
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let page = unsafe {
            mmap_anonymous(core::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let Ok(page) = page else { return &FALLBACK };
        // SAFETY: the page is ours. Kernels before 4.14 refuse the advice; then children are not told.
        let _ = unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) };
        // SAFETY: (1) aligned, zeroed, valid for ever, and touched by atomics only.
        let word: &'static AtomicU32 = unsafe { AtomicU32::from_ptr(page.cast()) };
        word.store(PARENT, Ordering::Relaxed);
        word
    })
}

/// What an adapter keeps to tell.
#[derive(Clone, Copy)]
pub(crate) struct Fork(&'static AtomicU32);

impl Fork {
    pub(crate) fn new() -> Self {
        Self(word())
    }
    #[inline]
    pub(crate) fn is_child(self) -> bool {
        self.0.load(Ordering::Relaxed) != PARENT
    }
    /// Refuses the control path to a child.
    pub(crate) fn check(self) -> Result<(), DeviceError> {
        if self.is_child() {
            let what = "use in a child process: it was opened before the fork; open another one in the child";
            return Err(DeviceError::Unsupported { what });
        }
        Ok(())
    }
}
