//! Buffers: owned parts of regions that peers can't access.
//!
//! Invariants of the unsafe code:
//! 1. `addr .. addr + len` lies inside of `region`, which keeps the memory until the last part is dropped.
//! 2. The region grants no remote access, and its parts never overlap: each byte has one owner.
//! 3. Posting moves a [`Buf`] into the queue's slots, so while a request may access the bytes the program holds no
//!    `Buf` of them, and no slice of them exists. The bytes of a [`FrozenBuf`] in a queue are only ever read, by the
//!    device and by the program.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::RangeError;
use crate::part::First;
use crate::region::Region;

/// An owned part of a region that peers can't access: a slice while the program holds it; posting moves it, and its
/// completion gives it back. From [`Pd::alloc`](crate::Pd::alloc).
///
/// Dropping a buffer returns its bytes to their protection domain or owner; forgetting it leaks them.
pub struct Buf {
    region: Arc<Region>,
    addr: NonNull<u8>,
    len: usize,
}

// SAFETY: (2), (3): a `Buf` owns its bytes as a `Box<[u8]>` does.
unsafe impl Send for Buf {}
// SAFETY: as above.
unsafe impl Sync for Buf {}

impl Buf {
    /// The owner of these bytes, which have no other.
    pub(crate) fn new(region: Arc<Region>, addr: NonNull<u8>, len: usize) -> Self {
        Self { region, addr, len }
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Splits the buffer into two parts: the first `mid` bytes, and the rest.
    ///
    /// # Panics
    /// `mid` lies beyond the end.
    #[track_caller]
    #[must_use]
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        assert!(mid <= self.len, "split at {mid} of a buffer of {} bytes", self.len);
        let (region, addr, len) = self.into_raw();
        // SAFETY: (1): `mid` is at most `len`.
        let second = unsafe { addr.add(mid) };
        (Self::new(Arc::clone(&region), addr, mid), Self::new(region, second, len - mid))
    }

    /// Splits the buffer into parts of `part_len` bytes, in order; the last may be shorter. Dropping the iterator drops
    /// the parts that it has not yielded.
    ///
    /// # Panics
    /// `part_len` is 0.
    pub fn split_into(self, part_len: usize) -> SplitInto {
        assert!(part_len > 0, "parts of 0 bytes");
        SplitInto { rest: Some(self).filter(|b| b.len > 0), part_len }
    }

    /// Joins two adjacent parts: the result begins where this part begins and ends where `next` ends.
    ///
    /// # Errors
    /// `next` does not begin where this part ends, or lies in another region: both come back.
    pub fn join(self, next: Self) -> Result<Self, (Self, Self)> {
        // SAFETY: (1): one past the end at most.
        let end = unsafe { self.addr.add(self.len) };
        if !Arc::ptr_eq(&self.region, &next.region) || end != next.addr {
            return Err((self, next));
        }
        let (region, addr, len) = self.into_raw();
        let (_, _, more) = next.into_raw();
        Ok(Self::new(region, addr, len + more))
    }

    /// Makes the buffer read-only and cloneable: one buffer can be sent to many peers.
    pub fn freeze(self) -> FrozenBuf {
        let (addr, len) = (self.addr, self.len);
        FrozenBuf { whole: Arc::new(self), addr, len }
    }

    /// Gives back the owner of the program's memory, as it was passed to [`Pd::adopt`](crate::Pd::adopt).
    ///
    /// # Errors
    /// The buffer is only a part of the adopted memory, its owner is not a `T`, or the device does not release it. The
    /// error holds the buffer. [`join`](Self::join) puts parts together first.
    pub fn into_owner<T: 'static>(self) -> Result<T, Self> {
        let whole = self.addr == self.region.base() && self.len == self.region.len();
        let (mut region, addr, len) = self.into_raw();
        let owner = Arc::get_mut(&mut region).filter(|_| whole).and_then(Region::take_owner);
        owner.ok_or_else(|| Self::new(region, addr, len))
    }

    /// The first `len` bytes as an entry of a list: only they are posted, and the completion gives the whole buffer
    /// back.
    ///
    /// # Panics
    /// `len` lies beyond the end.
    #[track_caller]
    pub fn first(self, len: usize) -> First {
        assert!(len <= self.len, "the first {len} of a buffer of {} bytes", self.len);
        First::new(self, len)
    }

    /// Takes it apart without giving the bytes back.
    fn into_raw(self) -> (Arc<Region>, NonNull<u8>, usize) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is never used again, so the `Arc` moves out once.
        (unsafe { std::ptr::read(&this.region) }, this.addr, this.len)
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        self.region.give_back(self.addr, self.len);
    }
}

impl Deref for Buf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: (1), (2), (3): valid, initialised (zeroed when given out), and ours alone.
        unsafe { std::slice::from_raw_parts(self.addr.as_ptr(), self.len) }
    }
}
impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.addr.as_ptr(), self.len) }
    }
}
impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
impl AsMut<[u8]> for Buf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}
impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf").field("addr", &self.addr).field("len", &self.len).finish()
    }
}

/// An iterator over the parts of one buffer; see [`Buf::split_into`].
#[derive(Debug)]
pub struct SplitInto {
    rest: Option<Buf>,
    part_len: usize,
}

impl Iterator for SplitInto {
    type Item = Buf;
    fn next(&mut self) -> Option<Buf> {
        let rest = self.rest.take()?;
        if rest.len <= self.part_len {
            return Some(rest);
        }
        let (part, rest) = rest.split_at(self.part_len);
        self.rest = Some(rest);
        Some(part)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        let n = self.rest.as_ref().map_or(0, |r| r.len.div_ceil(self.part_len));
        (n, Some(n))
    }
}
impl ExactSizeIterator for SplitInto {}

/// A read-only buffer with any number of owners: to send one buffer to many. From [`Buf::freeze`].
#[derive(Clone)]
pub struct FrozenBuf {
    whole: Arc<Buf>,
    addr: NonNull<u8>,
    len: usize,
}

// SAFETY: (3): the bytes are only ever read while it exists.
unsafe impl Send for FrozenBuf {}
// SAFETY: as above.
unsafe impl Sync for FrozenBuf {}

impl FrozenBuf {
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.whole.region
    }

    /// A part of the buffer, which shares its owner.
    ///
    /// # Panics
    /// The range does not lie inside.
    #[track_caller]
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let (start, end) = bounds(range, self.len);
        // SAFETY: (1): `bounds` has checked that both lie inside.
        let addr = unsafe { self.addr.add(start) };
        Self { whole: Arc::clone(&self.whole), addr, len: end - start }
    }

    /// The whole buffer, writable again, if this is its only owner: no clone, slice or request in flight
    /// has it.
    ///
    /// # Errors
    /// It has other owners, or comes from [`Pd::adopt_frozen`](crate::Pd::adopt_frozen) and is read-only. The error
    /// holds the buffer.
    pub fn try_unfreeze(self) -> Result<Buf, Self> {
        if self.region().access().is_empty() {
            return Err(self);
        }
        let Self { whole, addr, len } = self;
        Arc::try_unwrap(whole).map_err(|whole| Self { whole, addr, len })
    }
}

impl FrozenBuf {
    /// Gives back the owner of the program's memory, as it was passed to [`Pd::adopt_frozen`](crate::Pd::adopt_frozen),
    /// if this is the only clone and covers all of it.
    ///
    /// # Errors
    /// Other clones exist, the owner is not a `T`, or the device does not release the memory. The error holds the
    /// buffer.
    pub fn into_owner<T: 'static>(self) -> Result<T, Self> {
        let Self { whole, addr, len } = self;
        let whole = Arc::try_unwrap(whole).map_err(|whole| Self { whole, addr, len })?;
        whole.into_owner().map_err(|whole| Self { whole: Arc::new(whole), addr, len })
    }
}

impl Deref for FrozenBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: (1), (3): valid, initialised, and written by nobody while frozen.
        unsafe { std::slice::from_raw_parts(self.addr.as_ptr(), self.len) }
    }
}
impl AsRef<[u8]> for FrozenBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
impl fmt::Debug for FrozenBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrozenBuf").field("addr", &self.addr).field("len", &self.len).finish()
    }
}

/// Start and end of a range within `len`.
///
/// # Panics
/// The range does not lie inside.
#[inline]
#[track_caller]
pub(crate) fn bounds(range: impl RangeBounds<usize>, len: usize) -> (usize, usize) {
    try_bounds(range, len).unwrap_or_else(|error| panic!("{error}"))
}

/// Start and end of a range within `len`.
#[inline]
pub(crate) fn try_bounds(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize), RangeError> {
    // What ends at the last address does not lie inside of anything.
    let start = match range.start_bound() {
        Bound::Included(&s) => Some(s),
        Bound::Excluded(&s) => s.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&e) => e.checked_add(1),
        Bound::Excluded(&e) => Some(e),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok((start, end)),
        _ => Err(RangeError { start: start.unwrap_or(usize::MAX), end: end.unwrap_or(usize::MAX), len }),
    }
}
