//! Memory of a program's own, registered: from the C library's allocator, as most programs have theirs.
//!
//! Invariants:
//! 1. The memory is reached through its region only, from registration to the end.
//! 2. The region, all its clones and all requests that name it are gone before the memory: who holds a [`Foreign`]
//!    drops its queue pairs first.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use hca::{Pd, SharedMr};
use hca_core::Access;
use hca_perf::Failure;

const PAGE_BYTES: usize = 4096;

/// Memory, and its region.
pub struct Foreign {
    mr: SharedMr,
    _memory: Box<[u64]>,
}

impl Foreign {
    /// Registers so many bytes, which begin at a page and have pages behind them.
    ///
    /// # Errors
    /// The device has no more regions.
    pub fn register(pd: &Pd, bytes: usize, access: Access) -> Result<Self, Failure> {
        let mut memory = vec![1_u64; (bytes + PAGE_BYTES).div_ceil(8)].into_boxed_slice();
        let start = memory.as_mut_ptr().cast::<u8>();
        let skip = start.align_offset(PAGE_BYTES);
        let at = NonNull::new(start.wrapping_add(skip)).expect("within an allocation");
        // SAFETY: (1) (2) `bytes` from there on lie within the allocation, which has room for a page more.
        let mr = unsafe { pd.register(at, bytes, access) }?;
        Ok(Self { mr, _memory: memory })
    }
    /// Its region.
    pub fn mr(&self) -> &SharedMr {
        &self.mr
    }
}
