//! Direct accesses to peers' memory, and the mapped regions of peers.
//!
//! Invariants:
//! 1. `base .. base + len` is mapped as long as a [`Region`] lives in the process that made it, over a peer's memory
//!    file whose seals, kind and size were verified: no access ends in SIGBUS because a page of the file is missing. If
//!    `writable` is set, the mapping may be written. A forked child has no memory there, or memory of its own, and
//!    makes no access.
//! 2. Every offset is checked against the range that was granted, which lies within the file.
//! 3. The peer and other processes change these bytes at any time: they are accessed by `dma` only.
//! 4. `MappedRegions::era` is another after each removal from the table, and no two tables have ever had the same: a
//!    slot that was in use in this era is in use still.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use hca_core::Access;
use hca_dma::{self as dma, Caching, Footprint};
use hca_process::Fork;
use rustix::mm::Advice;

use super::bell::SLEEPS_AT;
use super::board::{QP_WORDS_AT, is_writable};
use super::bracket;
use super::bracket::{Stale, Terms};
use super::grant::{
    AccessError, Denied, GrantId, Granted, LinkId, MAX_BRACKET_BYTES, MAX_MAPPED, MAX_MAPPED_OF_PEER,
    MAX_QP_WORDS, QpGuard,
};
use super::memory::{MemoryFault, OwnWord, PeerWord, PeerWords, Sealed, Segment, Window};
use super::note::Place;
use super::pages::{HUGE, PAGE, map_aligned};
use super::process::Processes;
use super::process_write::{Held, ProcessMemory, Written, max_process_write};
use super::ring::Barrier;

/// Bytes of a region whose pages are made ready when it is mapped; those behind come by faults, so that a peer with
/// a large and empty file costs no more than a small one.
const READY_BYTES: usize = 16 << 20;

/// A peer's memory, mapped.
pub(super) struct Region {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Where it is mapped.
    fork: Fork,
}

// SAFETY: (3) all access is by copies and atomics that a race can't make undefined.
unsafe impl Send for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        if self.fork.is_child() {
            return;
        }
        // SAFETY: (1) it is our mapping, and no pointer into it outlives a call.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Region {
    pub(super) fn map(sealed: &Sealed<'_>, writable: bool) -> Result<Self, MemoryFault> {
        let len = sealed.len();
        let unit = if len >= HUGE { HUGE } else { PAGE };
        let base = map_aligned(sealed.fd(), len, unit, writable)?;
        let region = Self { base, len, writable, fork: Fork::new() };
        let at = base.as_ptr().cast();
        let ready = if writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: (1) none of the advices changes a byte. A child of ours is no party to the grant.
        unsafe {
            rustix::mm::madvise(at, len, Advice::LinuxDontFork)?;
            if len >= HUGE {
                let _ = rustix::mm::madvise(at, len, Advice::LinuxHugepage);
            }
            match rustix::mm::madvise(at, len.min(READY_BYTES), ready) {
                Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(region),
                Err(e) => Err(MemoryFault::Io(io::Error::from(e))),
            }
        }
    }
}

/// Where the memory of a peer's region is reached.
pub(super) enum Memory {
    Mapped(Region),
    /// By the kernel.
    Process(Arc<ProcessMemory>),
}

/// A peer's region that may be reached from here, and all that an access to it looks at.
pub(super) struct Mapped {
    /// Where the granted range begins. Nowhere for a region that is not mapped.
    base: NonNull<u8>,
    memory: Memory,
    granted: Granted,
    /// The rights by which loads and stores reach it: none of a region that is not mapped.
    rights: Access,
    /// Whether the peer's adapter sleeps.
    sleeps: PeerWord,
    footprint: Footprint,
    place: Place,
    generation_now: PeerWord,
    in_use: OwnWord,
    qp_words: PeerWords,
    barrier: Barrier,
    pub(super) link: LinkId,
    pub(super) key: u32,
    /// How often the peer granted it.
    pub(super) times: u32,
}

/// What an access needs of the link to the peer.
pub(super) struct Ends {
    pub(super) link: LinkId,
    pub(super) own: Segment,
    pub(super) in_use_at: usize,
    pub(super) board: Window,
    pub(super) barrier: Barrier,
}

struct Slot {
    generation: u32,
    mapped: Option<Box<Mapped>>,
}

/// A time of a table in which no region is unmapped (4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Era(u64);

impl Default for Era {
    /// One that there was not yet.
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// All peers' regions that are mapped here.
#[derive(Default)]
pub(super) struct MappedRegions {
    era: Era,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// By link and by region on the peer's board.
    by_place: HashMap<(LinkId, u32), u32>,
    /// How many of each link's.
    counts: HashMap<LinkId, u32>,
    /// Accesses so far, modulo what an in-use word counts.
    accesses: u32,
    /// Peers' processes, where what is not granted is fetched from.
    pub(super) processes: Processes,
}

impl MappedRegions {
    /// The way to a region by way of a queue pair of the same peer.
    pub(super) fn way(&mut self, grant: GrantId, guard: QpGuard) -> Option<Way> {
        self.get_mut(grant).filter(|m| m.link == guard.link)?;
        Some(Way { era: self.era, slot: grant.slot, guard })
    }
    /// Whether one more of this link's is too many.
    pub(super) fn is_full(&self, link: LinkId) -> bool {
        let of_link = self.counts.get(&link).copied().unwrap_or(0);
        of_link >= MAX_MAPPED_OF_PEER || self.by_place.len() >= MAX_MAPPED as usize
    }
    pub(super) fn len(&self) -> usize {
        self.by_place.len()
    }
    /// The grant of this place; an older one of the same region is none.
    pub(super) fn find(&self, link: LinkId, place: &Place) -> Option<GrantId> {
        let slot = *self.by_place.get(&(link, place.region))?;
        let found = &self.slots[slot as usize];
        let id = GrantId { slot, generation: found.generation };
        found.mapped.as_ref().filter(|m| m.place.generation == place.generation).map(|_| id)
    }
    /// The key of what is mapped of this place.
    pub(super) fn key_at(&self, link: LinkId, place: &Place) -> Option<u32> {
        let slot = self.find(link, place)?.slot;
        self.slots[slot as usize].mapped.as_ref().map(|m| m.key)
    }
    /// Grants once more what is mapped; tells what that is.
    pub(super) fn again(&mut self, id: GrantId) -> Option<Granted> {
        let m = self.get_mut(id)?;
        m.times += 1;
        Some(m.granted)
    }
    /// Any grant of a link.
    pub(super) fn of_link(&self, link: LinkId) -> Option<GrantId> {
        let (_, &slot) = self.by_place.iter().find(|((l, _), _)| *l == link)?;
        Some(GrantId { slot, generation: self.slots[slot as usize].generation })
    }
    pub(super) fn of_region(&self, link: LinkId, region: u32) -> Option<GrantId> {
        let slot = *self.by_place.get(&(link, region))?;
        Some(GrantId { slot, generation: self.slots[slot as usize].generation })
    }
    pub(super) fn insert(
        &mut self,
        ends: Ends,
        key: u32,
        place: Place,
        granted: Granted,
        memory: Memory,
        generation_at: usize,
    ) -> GrantId {
        let (base, rights) = match &memory {
            Memory::Mapped(region) => {
                let len = region.len as u64;
                assert!(granted.len <= len && place.offset <= len - granted.len);
                assert!(region.writable || !is_writable(granted.access));
                // SAFETY: (1) within the mapping.
                (unsafe { region.base.add(place.offset as usize) }, granted.access)
            }
            Memory::Process(_) => (NonNull::dangling(), Access::empty()),
        };
        let Ends { link, own, in_use_at, board, barrier } = ends;
        let footprint = Footprint::default();
        let mapped = Mapped {
            base,
            memory,
            granted,
            rights,
            sleeps: board.word_at(SLEEPS_AT),
            footprint,
            place,
            generation_now: board.word_at(generation_at),
            in_use: own.word_at(in_use_at),
            qp_words: board.words64(QP_WORDS_AT, MAX_QP_WORDS),
            barrier,
            link,
            key,
            times: 1,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, mapped: None });
            self.slots.len() as u32 - 1
        });
        self.by_place.insert((link, place.region), slot);
        *self.counts.entry(link).or_default() += 1;
        let at = &mut self.slots[slot as usize];
        at.mapped = Some(Box::new(mapped));
        GrantId { slot, generation: at.generation }
    }
    pub(super) fn remove(&mut self, id: GrantId) -> Option<Box<Mapped>> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|s| s.generation == id.generation)?;
        self.era = Era::default();
        let mapped = slot.mapped.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        self.by_place.remove(&(mapped.link, mapped.place.region));
        match self.counts.get_mut(&mapped.link) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.counts.remove(&mapped.link)),
        }
        Some(mapped)
    }
    #[inline(always)]
    fn get_mut(&mut self, id: GrantId) -> Option<&mut Mapped> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation == id.generation { slot.mapped.as_deref_mut() } else { None }
    }
    #[inline(always)]
    pub(super) fn access(&mut self, grant: GrantId, guard: &QpGuard) -> Result<Bracket<'_>, Denied> {
        self.accesses = self.accesses.wrapping_add(1);
        let count = self.accesses;
        let m = self.get_mut(grant).filter(|m| m.link == guard.link).ok_or(Denied::Unknown)?;
        m.access(count, guard)
    }
    /// As [`access`](Self::access), without a look in the table.
    #[inline(always)]
    pub(super) fn access_by(&mut self, way: &Way) -> Option<Bracket<'_>> {
        if way.era != self.era {
            return None;
        }
        self.accesses = self.accesses.wrapping_add(1);
        // SAFETY: (4): `way` is of this table and era, and its maker found the slot in use.
        let m = unsafe {
            let slot = self.slots.get_unchecked_mut(way.slot as usize);
            slot.mapped.as_deref_mut().unwrap_unchecked()
        };
        m.access(self.accesses, &way.guard).ok()
    }
}

impl Mapped {
    /// Begins an access, the `count`th, as long as the guard's queue pair and the region are as they were.
    #[inline(always)]
    fn access(&mut self, count: u32, guard: &QpGuard) -> Result<Bracket<'_>, Denied> {
        let terms = Terms {
            generation_now: &self.generation_now,
            qp_words: &self.qp_words,
            generation: self.place.generation,
            qp: guard.slot,
            qp_word: guard.word,
        };
        match bracket::enter(&self.in_use, self.place.region, count, &terms, self.barrier) {
            Ok(()) => Ok(Bracket { of: self, left: MAX_BRACKET_BYTES }),
            Err(Stale::QueuePair(found)) => Err(Denied::QueuePair { found }),
            Err(Stale::Generation) => Err(Denied::Revoked),
        }
    }
}

/// The way to a peer's region for a caller that accesses the region often. It ends when any region is unmapped.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    era: Era,
    slot: u32,
    guard: QpGuard,
}

// SAFETY: (3) as a region: `base` is within it.
unsafe impl Send for Mapped {}

/// Access to peers' regions, for a handler that also sends messages.
pub struct Reach<'a> {
    mapped: &'a mut MappedRegions,
    /// Grants that were found taken back.
    revoked: &'a mut Vec<GrantId>,
}

impl<'a> Reach<'a> {
    /// For a call behind which [`unmap_revoked`](super::fabric::ShmFabric::unmap_revoked) is due.
    pub(super) fn new(mapped: &'a mut MappedRegions, revoked: &'a mut Vec<GrantId>) -> Self {
        Self { mapped, revoked }
    }
    pub(super) fn processes(&self) -> &Processes {
        &self.mapped.processes
    }
    pub(super) fn processes_mut(&mut self) -> &mut Processes {
        &mut self.mapped.processes
    }
    /// Like [`ShmFabric::access`](crate::ShmFabric::access).
    ///
    /// # Errors
    /// As [`ShmFabric::access`](crate::ShmFabric::access).
    #[inline(always)]
    pub fn access(&mut self, grant: GrantId, guard: &QpGuard) -> Result<Bracket<'_>, Denied> {
        let access = self.mapped.access(grant, guard);
        if let Err(Denied::Revoked) = access
            && !self.revoked.contains(&grant)
        {
            self.revoked.push(grant);
        }
        access
    }
    /// Whether the adapter that granted a region sleeps, so that a message would have to wake it. A hint. `None`: the
    /// grant has ended.
    pub fn sleeps(&mut self, grant: GrantId) -> Option<bool> {
        Some(self.mapped.get_mut(grant)?.sleeps.load(Ordering::Relaxed) != 0)
    }
    /// Writes into a peer's region of [its program's own](Granted::in_process) memory, from `offset` on, by the kernel.
    /// At most [`max_process_write`] bytes.
    ///
    /// # Errors
    /// As [`ShmFabric::access`](crate::ShmFabric::access), or the kernel can't: then a part may stand there.
    ///
    /// # Safety
    /// `from .. from + len` is mapped and readable for the call.
    pub unsafe fn write_process(
        &mut self,
        grant: GrantId,
        guard: &QpGuard,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), Denied> {
        let bracket = self.access(grant, guard)?;
        let m = &*bracket.of;
        let Memory::Process(memory) = &m.memory else { return Err(Denied::Unable) };
        let within = offset <= m.granted.len && len as u64 <= m.granted.len - offset;
        if !within || len > max_process_write() || !m.granted.access.contains(Access::REMOTE_WRITE) {
            return Err(Denied::Unable);
        }
        let held = Held {
            generation_now: m.generation_now.place(),
            generation: m.place.generation,
            qp_word_now: m.qp_words.place(guard.slot),
            qp_word: guard.word,
        };
        // SAFETY: our caller's.
        let written = unsafe { memory.write(m.place.offset + offset, from, len, &held) };
        drop(bracket);
        match written {
            Written::Whole => {
                self.mapped.processes.wrote(len);
                Ok(())
            }
            // The next look tells which.
            Written::Stale => self.access(grant, guard).map(drop).and(Err(Denied::Unable)),
            Written::Unable => Err(Denied::Unable),
            Written::Fault => {
                self.mapped.processes.write_failed(guard.link, grant);
                Err(Denied::Unable)
            }
        }
    }
}

/// One access to a peer's region. A peer that revokes the region waits until the bracket is dropped. So a caller holds
/// a bracket only for a copy of at most [`MAX_BRACKET_BYTES`], and never waits within one.
///
/// Offsets count from the region's first byte. An aligned piece of 1, 2, 4 or 8 bytes is moved whole. The peer sees
/// each piece before any later piece.
pub struct Bracket<'a> {
    of: &'a mut Mapped,
    left: usize,
}

impl Drop for Bracket<'_> {
    #[inline]
    fn drop(&mut self) {
        bracket::leave(&self.of.in_use);
    }
}

impl Bracket<'_> {
    /// The address of a range, if it may be reached so, and how to copy there.
    #[inline(always)]
    fn at(&mut self, offset: u64, len: usize, right: Access) -> Result<(*mut u8, Caching), AccessError> {
        let granted = &self.of.granted;
        if offset > granted.len || len as u64 > granted.len - offset {
            return Err(AccessError::Range);
        }
        if !self.of.rights.contains(right) {
            return Err(AccessError::Right);
        }
        // A few bytes are copied in the same way wherever they go. They are told apart first: one access of them is
        // never too much for a bracket.
        let (left, caching) = if len <= dma::FEW_BYTES {
            (self.left.checked_sub(len), Caching::Cached)
        } else {
            (self.left.checked_sub(len), self.of.footprint.caching(offset, len))
        };
        self.left = left.ok_or(AccessError::Length)?;
        // SAFETY: (1) (2): within the range that was granted, which is within the file that is mapped, as there is a
        // right.
        Ok((unsafe { self.of.base.as_ptr().add(offset as usize) }, caching))
    }

    /// The address of an aligned word.
    #[inline(always)]
    fn word(&mut self, offset: u64, right: Access) -> Result<*mut u8, AccessError> {
        let (at, _) = self.at(offset, 8, right)?;
        if at.addr() & 7 == 0 { Ok(at) } else { Err(AccessError::Alignment) }
    }

    /// Writes an aligned word, which no reader sees in part.
    ///
    /// # Errors
    /// As [`AccessError`] says; nothing was written then.
    pub fn write_word(&mut self, offset: u64, value: u64) -> Result<(), AccessError> {
        let at = self.word(offset, Access::REMOTE_WRITE)?;
        // SAFETY: as in `write`, and aligned.
        unsafe { dma::store_u64(at, value) };
        Ok(())
    }
    /// Makes all that this side has written visible to all readers, if a range of the region may be flushed.
    ///
    /// # Errors
    /// The range leaves the region, or the right is missing.
    pub fn flush(&mut self, offset: u64, len: u64) -> Result<(), AccessError> {
        let granted = &self.of.granted;
        if offset > granted.len || len > granted.len - offset {
            return Err(AccessError::Range);
        }
        if !self.of.rights.contains(Access::FLUSH_GLOBAL) {
            return Err(AccessError::Right);
        }
        fence(Ordering::SeqCst);
        Ok(())
    }
    /// Writes a slice into the region, from `offset` on.
    ///
    /// # Errors
    /// As [`AccessError`] says; nothing was written then.
    #[inline(always)]
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        let (to, caching) = self.at(offset, from.len(), Access::REMOTE_WRITE)?;
        // SAFETY: `at` checked range and right; with this right the region is writable (1).
        unsafe { dma::store_as(to, from, caching) };
        Ok(())
    }
    /// Reads into a slice.
    ///
    /// # Errors
    /// As [`AccessError`] says; nothing was read then.
    #[inline(always)]
    pub fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<(), AccessError> {
        let (from, caching) = self.at(offset, to.len(), Access::REMOTE_READ)?;
        // SAFETY: `at` checked range and right.
        unsafe { dma::load_as(from, to, caching) };
        Ok(())
    }
    /// Writes from memory that others may change meanwhile.
    ///
    /// # Errors
    /// As [`AccessError`] says; nothing was written then.
    ///
    /// # Safety
    /// `from .. from + len` is mapped and readable for the call, and no part of the region.
    #[inline(always)]
    pub unsafe fn write_from(&mut self, offset: u64, from: *const u8, len: usize) -> Result<(), AccessError> {
        let (to, caching) = self.at(offset, len, Access::REMOTE_WRITE)?;
        // SAFETY: as in `write`, and our caller's.
        unsafe { dma::copy(to, from, len, caching) };
        Ok(())
    }
    /// Reads into memory that others may change meanwhile.
    ///
    /// # Errors
    /// As [`AccessError`] says; nothing was read then.
    ///
    /// # Safety
    /// `to .. to + len` is mapped and writable for the call, and no part of the region.
    #[inline(always)]
    pub unsafe fn read_into(&mut self, offset: u64, to: *mut u8, len: usize) -> Result<(), AccessError> {
        let (from, caching) = self.at(offset, len, Access::REMOTE_READ)?;
        // SAFETY: as in `read`, and our caller's.
        unsafe { dma::copy(to, from, len, caching) };
        Ok(())
    }
    /// Exchanges an aligned word of 8 bytes, in this machine's byte order, for `swap` if it is `compare`; returns the
    /// old value.
    ///
    /// # Errors
    /// As [`AccessError`] says; nothing was changed then.
    #[inline(always)]
    pub fn compare_swap(&mut self, offset: u64, compare: u64, swap: u64) -> Result<u64, AccessError> {
        let at = self.word(offset, Access::REMOTE_ATOMIC)?;
        // SAFETY: `word` checked range, right and alignment; with this right the region is writable (1).
        Ok(unsafe { dma::compare_swap(at, compare, swap) })
    }
    /// Adds to an aligned word of 8 bytes, in this machine's byte order; returns the old value.
    ///
    /// # Errors
    /// As [`AccessError`] says; nothing was changed then.
    #[inline(always)]
    pub fn fetch_add(&mut self, offset: u64, add: u64) -> Result<u64, AccessError> {
        let at = self.word(offset, Access::REMOTE_ATOMIC)?;
        // SAFETY: as in `compare_swap`.
        Ok(unsafe { dma::fetch_add(at, add) })
    }
}
