//! Shared memory regions, which peers can access: by copies and atomics, never as a slice.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hca_core::{Access, DeviceError, MrHandle, MrStatus, RemoteAddr, Rkey};

use crate::buf::{bounds, try_bounds};
use crate::region::Region;
use crate::shared::SharedBytes;
use crate::{Pd, RangeError, WaitError};

/// A memory region that peers can access, with the rights that it was created with. From
/// [`Pd::alloc_shared`](crate::Pd::alloc_shared).
///
/// A peer may change it at any time, so it is never a slice: the program copies in and out, and does
/// atomic operations on aligned words. Clones are the same region; it is deregistered when the last
/// clone, range, and request in flight is gone.
///
/// Guarantees while peers write: an aligned WRITE of up to 8 bytes is seen whole; WRITEs of one queue pair are seen in
/// their order; the order within a longer WRITE is undefined. Once a completion or a received message was polled, or
/// [`load_u64`](Self::load_u64) has seen a later WRITE's value, all earlier data is visible.
#[derive(Clone)]
pub struct SharedMr {
    region: Arc<Region>,
}

impl SharedMr {
    pub(crate) fn new(region: Region) -> Self {
        Self { region: Arc::new(region) }
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)] // a region has at least one
    pub fn len(&self) -> usize {
        self.region.len()
    }
    /// The accesses that peers and requests may make.
    pub fn access(&self) -> Access {
        self.region.access()
    }
    /// The handle that the device knows.
    pub fn handle(&self) -> MrHandle {
        self.region.keys().handle
    }

    /// The address and key with which a peer accesses the whole region.
    pub fn remote(&self) -> RemoteMr {
        let addr = self.region.base().addr().get() as u64;
        RemoteMr { addr, rkey: self.region.keys().rkey, len: self.len() as u64 }
    }

    /// A part of the region, as a local entry of any request.
    ///
    /// # Panics
    /// The range does not lie inside.
    #[inline]
    #[track_caller]
    pub fn range(&self, range: impl RangeBounds<usize>) -> SharedRange {
        let (start, end) = bounds(range, self.len());
        SharedRange { region: Arc::clone(&self.region), bytes: self.region.bytes().part(start, end - start) }
    }

    /// Copies from `offset` on into `out`.
    ///
    /// # Panics
    /// The bytes do not lie inside.
    #[inline]
    #[track_caller]
    pub fn read_at(&self, offset: usize, out: &mut [u8]) {
        self.region.bytes().read(offset, out);
    }
    /// Reads words one after the other, each as [`load_u64`](Self::load_u64) does.
    ///
    /// # Panics
    /// `offset` is not a multiple of 8, or the words do not lie inside.
    #[inline]
    #[track_caller]
    pub fn load_words<const N: usize>(&self, offset: usize) -> [u64; N] {
        self.region.bytes().words(offset)
    }
    /// Copies `data` to the bytes from `offset` on.
    ///
    /// # Panics
    /// The bytes do not lie inside.
    #[track_caller]
    pub fn write_at(&self, offset: usize, data: &[u8]) {
        self.region.bytes().write(offset, data);
    }
    /// Copies `data` to the bytes from `offset` on, for a [near](hca_core::QpStatus::near) peer, whose processor reads
    /// them next: past the caches of this processor, where one that shares no cache with it reads them several times as
    /// quickly then (not on Intel's). This processor reads them more slowly.
    ///
    /// # Panics
    /// The bytes do not lie inside.
    #[track_caller]
    pub fn pass_at(&self, offset: usize, data: &[u8]) {
        self.region.bytes().pass(offset, data);
    }
    /// Reads a word in this machine's byte order (Acquire): stores before the store of its value are visible
    /// afterwards.
    ///
    /// # Panics
    /// `offset` is not a multiple of 8, or lies outside.
    #[inline]
    #[track_caller]
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.region.bytes().load(offset)
    }
    /// Writes a word (Release): earlier stores are visible to a reader of the word's new value.
    ///
    /// # Panics
    /// `offset` is not a multiple of 8, or lies outside.
    #[inline]
    #[track_caller]
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.region.bytes().store(offset, value);
    }
    /// Adds to a word and returns its old value. Atomic against peers' atomics only where the device's
    /// `AtomicScope` is `Cpu`.
    ///
    /// # Panics
    /// `offset` is not a multiple of 8, or lies outside.
    #[track_caller]
    pub fn fetch_add(&self, offset: usize, value: u64) -> u64 {
        self.region.bytes().fetch_add(offset, value)
    }
    /// Swaps `new` into a word if it is `current`. Atomic against peers' atomics only where the device's
    /// `AtomicScope` is `Cpu`.
    ///
    /// # Errors
    /// The word is not `current`; the error holds the word's value.
    ///
    /// # Panics
    /// `offset` is not a multiple of 8, or lies outside.
    #[track_caller]
    pub fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.region.bytes().compare_exchange(offset, current, new)
    }

    /// Waits until the word at `offset` satisfies `done`, and returns it. Meanwhile the call turns the device, since no
    /// other thread might; after some time without work it lets other threads run.
    ///
    /// # Panics
    /// `offset` is not a multiple of 8, or lies outside.
    #[track_caller]
    pub fn wait_until(&self, offset: usize, mut done: impl FnMut(u64) -> bool) -> u64 {
        loop {
            let value = self.load_u64(offset);
            if done(value) {
                return value;
            }
            self.turn();
        }
    }

    /// Like [`wait_until`](Self::wait_until), for at most `timeout`.
    ///
    /// # Errors
    /// The word did not satisfy `done` in time.
    ///
    /// # Panics
    /// `offset` is not a multiple of 8, or lies outside.
    #[track_caller]
    pub fn wait_until_timeout(
        &self,
        offset: usize,
        timeout: Duration,
        mut done: impl FnMut(u64) -> bool,
    ) -> Result<u64, WaitError> {
        let start = Instant::now();
        loop {
            let value = self.load_u64(offset);
            if done(value) {
                return Ok(value);
            }
            if start.elapsed() >= timeout {
                return Err(WaitError::TimedOut(timeout));
            }
            self.turn();
        }
    }

    /// Invalidates the keys now, while clones exist: after the return neither peers nor requests can access the region
    /// (their accesses fail). The program still can.
    ///
    /// # Errors
    /// The device refused; the keys are still good.
    pub fn revoke(&self) -> Result<(), DeviceError> {
        self.region.revoke()
    }

    /// Moves the region to another protection domain of its device, and lets peers access it as `access` says. Its
    /// memory and addresses stay; [`remote`](Self::remote) may give another key. On return, no access is under way that
    /// is no longer allowed.
    ///
    /// ```
    /// # use hca_verbs::*;
    /// fn publish(pd: &Pd, mr: &mut SharedMr) -> Result<RemoteMr, DeviceError> {
    ///     mr.rereg(pd, Access::REMOTE_READ)?;
    ///     Ok(mr.remote())
    /// }
    /// ```
    ///
    /// # Errors
    /// Clones, ranges or requests in flight hold the region, the domain is of another device, or the device can not
    /// (`Abilities::mr_rereg`); the region is as it was. Or the device does not know whether a peer on this machine is
    /// still within an access: the keys are taken back, and the memory is leaked.
    pub fn rereg(&mut self, pd: &Pd, access: Access) -> Result<(), DeviceError> {
        let users = Arc::strong_count(&self.region) as u64 - 1;
        let in_use = DeviceError::InUse { what: "memory region", users };
        let region = Arc::get_mut(&mut self.region).ok_or(in_use)?;
        if !Arc::ptr_eq(&region.pd.ctx, &pd.core.ctx) {
            return Err(DeviceError::ForeignPd { what: "the memory region" });
        }
        region.rereg(&pd.core, access | Access::LOCAL_WRITE)
    }
    /// The attributes of the region as the device has them.
    ///
    /// # Errors
    /// The device has no such query, or the keys were taken back.
    pub fn query(&self) -> Result<MrStatus, DeviceError> {
        self.region.pd.ctx.device.query_mr(self.handle())
    }

    /// Between two looks. A device that finds nothing many times in a row gives way to other threads.
    fn turn(&self) {
        self.region.pd.ctx.device.turn();
        std::hint::spin_loop();
    }
}

impl fmt::Debug for SharedMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RemoteMr { addr, rkey, len } = self.remote();
        write!(f, "SharedMr {{ addr: {addr:#x}, len: {len}, rkey: {rkey}, access: {:?} }}", self.access())
    }
}

/// A part of a [`SharedMr`], as a local entry of a request; it keeps the region registered.
#[derive(Clone)]
pub struct SharedRange {
    region: Arc<Region>,
    /// Its bytes of the region's.
    bytes: SharedBytes,
}

impl SharedRange {
    /// The region, if nothing else holds it.
    pub(crate) fn into_region(self) -> Option<Region> {
        Arc::into_inner(self.region)
    }
    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }
    /// Whether the part has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The offset in the region.
    pub fn offset(&self) -> usize {
        self.bytes.addr().addr().get() - self.region.base().addr().get()
    }
    /// The region that the part lies in.
    pub fn mr(&self) -> SharedMr {
        SharedMr { region: Arc::clone(&self.region) }
    }
    /// Whether the part belongs to this protection domain.
    pub fn is_of(&self, pd: &Pd) -> bool {
        Arc::ptr_eq(&self.region.pd, &pd.core)
    }
    /// A part of this part.
    ///
    /// # Panics
    /// The range does not lie inside.
    #[must_use]
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let (start, end) = bounds(range, self.len());
        Self { region: Arc::clone(&self.region), bytes: self.bytes.part(start, end - start) }
    }
    /// The address and key with which a peer accesses the part.
    pub fn remote(&self) -> RemoteMr {
        RemoteMr { addr: self.addr(), rkey: self.region.keys().rkey, len: self.len() as u64 }
    }
    /// Copies bytes out, like [`SharedMr::read_at`], with an offset in the part.
    ///
    /// # Panics
    /// The bytes do not lie inside.
    #[inline]
    #[track_caller]
    pub fn read_at(&self, offset: usize, out: &mut [u8]) {
        self.bytes.read(offset, out);
    }
    /// Copies bytes in, like [`SharedMr::write_at`], with an offset in the part.
    ///
    /// # Panics
    /// The bytes do not lie inside.
    #[inline]
    #[track_caller]
    pub fn write_at(&self, offset: usize, data: &[u8]) {
        self.bytes.write(offset, data);
    }
    /// Reads a word, like [`SharedMr::load_u64`], with an offset in the part.
    ///
    /// # Panics
    /// The word is not aligned to 8 bytes, or does not lie inside.
    #[inline]
    #[track_caller]
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.bytes.load(offset)
    }
    /// Writes a word, like [`SharedMr::store_u64`], with an offset in the part.
    ///
    /// # Panics
    /// The word is not aligned to 8 bytes, or does not lie inside.
    #[inline]
    #[track_caller]
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.bytes.store(offset, value);
    }
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }
    pub(crate) fn addr(&self) -> u64 {
        self.bytes.addr().addr().get() as u64
    }
}

impl fmt::Debug for SharedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedRange({}..{})", self.offset(), self.offset() + self.len())
    }
}

/// Memory at a peer: address, length and key. Plain data, which the owner sends to the program that is to use the
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteMr {
    /// First byte at the peer.
    pub addr: u64,
    /// Key of the peer's region.
    pub rkey: Rkey,
    /// The number of bytes.
    pub len: u64,
}

impl RemoteMr {
    /// The length of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = 20;

    /// A part of the memory. For a length from a peer use [`try_range`](Self::try_range), which does not panic.
    ///
    /// # Panics
    /// The range does not lie inside.
    #[track_caller]
    #[must_use]
    pub fn range(&self, range: impl RangeBounds<usize>) -> Self {
        self.try_range(range).unwrap_or_else(|error| panic!("{error}"))
    }
    /// A part of the memory, for a length or a range that a peer may have chosen.
    ///
    /// # Errors
    /// The range does not lie inside.
    pub fn try_range(&self, range: impl RangeBounds<usize>) -> Result<Self, RangeError> {
        let (start, end) = try_bounds(range, usize::try_from(self.len).unwrap_or(usize::MAX))?;
        Ok(Self { addr: self.addr.wrapping_add(start as u64), rkey: self.rkey, len: (end - start) as u64 })
    }

    /// The value as bytes for sending: address, key and length, big-endian.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.addr.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.raw().to_be_bytes());
        out[12..].copy_from_slice(&self.len.to_be_bytes());
        out
    }
    /// The value from the bytes of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let u64_at = |i: usize| u64::from_be_bytes(bytes[i..i + 8].try_into().expect("8 bytes"));
        let rkey = Rkey::new(u32::from_be_bytes(bytes[8..12].try_into().expect("4 bytes")));
        Self { addr: u64_at(0), rkey, len: u64_at(12) }
    }

    pub(crate) fn target(&self) -> RemoteAddr {
        RemoteAddr { addr: self.addr, rkey: self.rkey }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_what_a_peer_has_is_refused_where_it_is_shorter() {
        let remote = RemoteMr { addr: u64::MAX - 7, rkey: Rkey::new(1), len: 100 };
        assert_eq!(remote.try_range(8..12), Ok(RemoteMr { addr: 0, len: 4, ..remote }));
        assert_eq!(remote.try_range(100..), Ok(RemoteMr { addr: 92, len: 0, ..remote }));
        let refused = |start, end| Err(RangeError { start, end, len: 100 });
        assert_eq!(remote.try_range(101..), refused(101, 100));
        assert_eq!(remote.try_range(..101), refused(0, 101));
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = remote.try_range(3..2);
        assert_eq!(reversed, refused(3, 2));
        assert_eq!(remote.try_range(..=usize::MAX), refused(0, usize::MAX));
        let all = RemoteMr { len: u64::MAX, ..remote };
        assert!(all.try_range(..=usize::MAX).is_err(), "what ends at the last address has none behind it");
        assert_eq!(refused(101, 100).unwrap_err().to_string(), "range 101..100 of 100 bytes");
    }
}
