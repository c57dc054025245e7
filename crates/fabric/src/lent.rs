//! Payloads that are sent without a copy.
//!
//! Invariant:
//! 1. The owner of memory that is lent to a batch keeps the memory readable and unwritten until the batch is empty or
//!    has copied it; both end the loan. So as long as a [`Lent`] lives, its bytes satisfy the rules of a shared slice.
#![allow(unsafe_code)]

use core::slice;

/// A payload that lies elsewhere than its packet.
pub(crate) struct Lent {
    /// Where its bytes belong in the batch.
    pub(crate) at: usize,
    from: *const u8,
    len: usize,
}
// SAFETY: (1) the memory is only read, and by whoever has the batch.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Lent {
    /// # Safety
    /// (1) holds for `len` bytes at `from`.
    #[inline]
    pub(crate) unsafe fn new(at: usize, from: *const u8, len: usize) -> Self {
        Self { at, from, len }
    }
    /// The bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: (1)
        unsafe { slice::from_raw_parts(self.from, self.len) }
    }
}
