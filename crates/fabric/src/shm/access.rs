//! A direct access to a peer's memory: a bracket that the peer can wait for the end of.
#![allow(unsafe_code)]

use super::grant::AccessError;

/// One access to a peer's region. The peer, if it takes the region back, waits until this is dropped; so it is held
/// for a copy of at most [`MAX_BRACKET_BYTES`](super::MAX_BRACKET_BYTES), and nothing is waited for within.
///
/// Offsets count from the region's first byte. An aligned piece of 1, 2, 4 or 8 bytes is moved whole. What was moved
/// is visible to the peer before whatever is moved later.
#[derive(Debug)]
pub struct Bracket<'a> {
    of: core::marker::PhantomData<&'a mut ()>,
}

impl Bracket<'_> {
    /// Writes a slice.
    ///
    /// # Errors
    /// As [`AccessError`] says; nothing was written then.
    #[inline]
    pub fn write(&self, _offset: u64, _from: &[u8]) -> Result<(), AccessError> {
        Err(AccessError::Right)
    }
    /// Reads into a slice.
    ///
    /// # Errors
    /// As [`AccessError`] says; nothing was read then.
    #[inline]
    pub fn read(&self, _offset: u64, _to: &mut [u8]) -> Result<(), AccessError> {
        Err(AccessError::Right)
    }
    /// Writes from memory that others may change meanwhile.
    ///
    /// # Errors
    /// As [`AccessError`] says; nothing was written then.
    ///
    /// # Safety
    /// `from .. from + len` is mapped and readable for the call.
    #[inline]
    pub unsafe fn write_from(&self, _offset: u64, _from: *const u8, _len: usize) -> Result<(), AccessError> {
        Err(AccessError::Right)
    }
    /// Reads into memory that others may change meanwhile.
    ///
    /// # Errors
    /// As [`AccessError`] says; nothing was read then.
    ///
    /// # Safety
    /// `to .. to + len` is mapped and writable for the call.
    #[inline]
    pub unsafe fn read_into(&self, _offset: u64, _to: *mut u8, _len: usize) -> Result<(), AccessError> {
        Err(AccessError::Right)
    }
    /// Swaps an aligned word of 8 bytes, in this machine's byte order, if it is `compare`; returns the old value.
    ///
    /// # Errors
    /// As [`AccessError`] says; nothing was changed then.
    #[inline]
    pub fn compare_swap(&self, _offset: u64, _compare: u64, _swap: u64) -> Result<u64, AccessError> {
        Err(AccessError::Right)
    }
    /// Adds to an aligned word of 8 bytes, in this machine's byte order; returns the old value.
    ///
    /// # Errors
    /// As [`AccessError`] says; nothing was changed then.
    #[inline]
    pub fn fetch_add(&self, _offset: u64, _add: u64) -> Result<u64, AccessError> {
        Err(AccessError::Right)
    }
}
