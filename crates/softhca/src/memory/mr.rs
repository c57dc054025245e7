//! Memory regions and their keys: the one place where an access to memory is checked.
//!
//! A key is 24 bits of index and 8 bits of tag. The index is a keyed permutation of the table's slot,
//! so that keys can't be guessed by counting, and the tag is random for each registration, so that an
//! old key misses a slot that was used again. Slots are used again in the order in which they were
//! freed, and only once a number of them are free.

mod fault;
mod windows;

use core::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use hca_core::{Access, DeviceError, MrHandle, MrInit, MrKeys, MrStatus, PdHandle};

use crate::memory::scattered::Scattered;
use hca_core::SplitMix64 as Random;
use windows::Window;

/// Free slots that are kept unused before one is used again.
const QUARANTINE: usize = 4096;
/// Free slots among which one with another tag is looked for.
const TAG_SEARCH: usize = 16;
const INDEX_BITS: u32 = 24;

struct Entry {
    base: *mut u8,
    iova: u64,
    len: u64,
    pd: PdHandle,
    access: Access,
    tag: u8,
    state: State,
    generation: u32,
    /// The memory of one that lies in several pieces; `len` is 0 then, so that the quick ways find nothing.
    scattered: Option<Arc<Scattered>>,
    /// Windows that are bound to the region.
    windows: u32,
    /// It is a memory window, and no region.
    window: Option<Box<Window>>,
}

// SAFETY: an entry is an address and a rule; whoever follows the address argues for it in `dma`.
#[allow(unsafe_code)]
unsafe impl Send for Entry {}

impl Entry {
    /// Whether it is this region, which has not ended.
    fn is(&self, mr: MrHandle) -> bool {
        self.generation == mr.generation && matches!(self.state, State::Valid | State::Invalidated)
    }
}
fn unknown(mr: MrHandle) -> DeviceError {
    DeviceError::UnknownHandle { what: "memory region", handle: mr.index }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Valid,
    /// A peer took the key back; the region still exists.
    Invalidated,
    /// It goes, and its key is being taken back.
    Ending,
    /// It is a memory window.
    Window,
}

pub(crate) struct MrTable {
    entries: Vec<Entry>,
    free: VecDeque<u32>,
    permutation: Permutation,
    /// The key index that was looked up last, and its slot, of accesses that read and of those that write: most are to
    /// one region each.
    last: [Cell<(u32, u32)>; 2],
    random: Random,
    limit: u32,
    live: u32,
    /// Slots of regions, of those that go as well.
    regions: u32,
    window_limit: u32,
    windows: u32,
    /// Index and generation of a queue pair, and the slot of a window that is bound to that queue pair.
    windows_of_qps: BTreeSet<(u32, u32, u32)>,
}

/// A region that goes: its place is taken until it is [freed](MrTable::free).
#[must_use]
pub(crate) struct EndedMr {
    slot: u32,
    pub(crate) key: u32,
    pub(crate) pd: PdHandle,
}

/// An access was refused. [`MrTable::fault`] finds the reason, which the quick ways do not look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

impl MrTable {
    pub(crate) fn new(limit: u32, mut random: Random) -> Self {
        assert!(limit <= 1 << INDEX_BITS, "a key has {INDEX_BITS} index bits");
        let permutation = Permutation::new(&mut random);
        let last = [0; 2].map(|slot| Cell::new((permutation.forward(slot), slot)));
        let (entries, free) = (Vec::new(), VecDeque::new());
        let (live, regions, window_limit, windows, windows_of_qps) = (0, 0, 0, 0, BTreeSet::new());
        Self {
            entries,
            free,
            permutation,
            last,
            random,
            limit,
            live,
            regions,
            window_limit,
            windows,
            windows_of_qps,
        }
    }

    pub(crate) fn register(&mut self, pd: PdHandle, mr: &MrInit) -> Result<MrKeys, DeviceError> {
        let slot = self.region_slot(pd, None)?;
        let tag = self.other_tag(slot);
        Ok(self.fill(slot, pd, mr, tag))
    }
    /// Another tag than a slot had last: the old key must miss.
    fn other_tag(&mut self, slot: u32) -> u8 {
        let (tag, last) = (self.random.next_u64() as u8, self.entries[slot as usize].tag);
        if tag == last { tag.wrapping_add(1) } else { tag }
    }
    /// The key of a slot with its present tag.
    fn key_of(&self, slot: u32) -> u32 {
        self.permutation.forward(slot) << 8 | u32::from(self.entries[slot as usize].tag)
    }
    /// A free slot for a region, as [`take_slot`](Self::take_slot) has it.
    fn region_slot(&mut self, pd: PdHandle, avoid: Option<u8>) -> Result<u32, DeviceError> {
        if self.regions == self.limit {
            return Err(DeviceError::LimitReached { what: "memory region", limit: self.limit.into() });
        }
        let slot = self.take_slot(pd, avoid)?;
        self.regions += 1;
        Ok(slot)
    }

    /// As [`register`](Self::register), with a tag that the caller chooses. Where that is the one that the slot had
    /// last another slot is taken, unless all are in use but a few that had it.
    pub(crate) fn register_tagged(
        &mut self,
        pd: PdHandle,
        mr: &MrInit,
        tag: u8,
    ) -> Result<MrKeys, DeviceError> {
        let slot = self.region_slot(pd, Some(tag))?;
        Ok(self.fill(slot, pd, mr, tag))
    }

    /// As [`register_tagged`](Self::register_tagged), of memory that lies in several pieces.
    pub(crate) fn register_scattered(
        &mut self,
        pd: PdHandle,
        memory: Arc<Scattered>,
        (iova, access): (u64, Access),
        tag: u8,
    ) -> Result<MrKeys, DeviceError> {
        let mr = MrInit { addr: core::ptr::NonNull::dangling(), len: 0, iova, access };
        let keys = self.register_tagged(pd, &mr, tag)?;
        self.scatter(keys.handle, Some(memory));
        Ok(keys)
    }
    fn scatter(&mut self, mr: MrHandle, memory: Option<Arc<Scattered>>) {
        if memory.is_some() {
            let entry = &mut self.entries[mr.index as usize];
            (entry.base, entry.scattered) = (core::ptr::null_mut(), memory);
        }
    }

    /// A free slot; one that did not have the tag `avoid` last, if that is found soon.
    fn take_slot(&mut self, pd: PdHandle, avoid: Option<u8>) -> Result<u32, DeviceError> {
        let limit = u64::from(self.limit) + u64::from(self.window_limit);
        let room = (self.entries.len() as u64) < limit;
        if room && self.free.len() < QUARANTINE {
            self.entries.push(Entry {
                base: core::ptr::null_mut(),
                iova: 0,
                len: 0,
                pd,
                access: Access::empty(),
                tag: 0,
                state: State::Free,
                generation: 0,
                scattered: None,
                windows: 0,
                window: None,
            });
            return Ok((self.entries.len() - 1) as u32);
        }
        if let Some(tag) = avoid {
            let other = |slot: &u32| self.entries[*slot as usize].tag != tag;
            if let Some(at) = self.free.iter().take(TAG_SEARCH).position(other) {
                self.free.swap(0, at);
            }
        }
        self.free.pop_front().ok_or(DeviceError::LimitReached { what: "memory region", limit })
    }

    fn fill(&mut self, slot: u32, pd: PdHandle, mr: &MrInit, tag: u8) -> MrKeys {
        let entry = &mut self.entries[slot as usize];
        entry.tag = tag;
        entry.base = mr.addr.as_ptr();
        entry.iova = mr.iova;
        entry.len = mr.len as u64;
        entry.pd = pd;
        entry.access = mr.access;
        entry.state = State::Valid;
        self.live += 1;
        let handle = MrHandle { index: slot, generation: entry.generation };
        let key = self.key_of(slot);
        MrKeys { handle, lkey: hca_core::Lkey::new(key), rkey: hca_core::Rkey::new(key) }
    }

    /// Ends a region: by its key nothing is reached any more. The key is nobody's until its place is
    /// [freed](Self::free).
    pub(crate) fn end(&mut self, mr: MrHandle) -> Result<EndedMr, DeviceError> {
        let key = self.permutation.forward(mr.index) << 8;
        let entry =
            self.entries.get_mut(mr.index as usize).filter(|entry| entry.is(mr)).ok_or(unknown(mr))?;
        DeviceError::unless_unused("memory region, by windows", entry.windows)?;
        entry.state = State::Ending;
        entry.base = core::ptr::null_mut();
        entry.len = 0;
        entry.scattered = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.live -= 1;
        Ok(EndedMr { slot: mr.index, key: key | u32::from(entry.tag), pd: entry.pd })
    }
    /// What a region was made of, and its memory if that lies in several pieces.
    pub(crate) fn init_of(&self, mr: MrHandle) -> Result<(MrInit, Option<Arc<Scattered>>), DeviceError> {
        let entry = self.entries.get(mr.index as usize).filter(|entry| entry.is(mr)).ok_or(unknown(mr))?;
        let addr = core::ptr::NonNull::new(entry.base).unwrap_or(core::ptr::NonNull::dangling());
        let init = MrInit { addr, len: entry.len as usize, iova: entry.iova, access: entry.access };
        Ok((init, entry.scattered.clone()))
    }
    /// The attributes of a region.
    pub(crate) fn status(&self, mr: MrHandle) -> Result<MrStatus, DeviceError> {
        let (init, scattered) = self.init_of(mr)?;
        let (len, MrInit { iova, access, .. }) = (scattered.map_or(init.len, |s| s.len()) as u64, init);
        Ok(MrStatus { pd: self.entries[mr.index as usize].pd, iova, len, access })
    }
    /// A region stands in the place of one that goes, with its key.
    pub(crate) fn replace(
        &mut self,
        ended: &EndedMr,
        pd: PdHandle,
        mr: &MrInit,
        scattered: Option<Arc<Scattered>>,
    ) -> MrKeys {
        let keys = self.fill(ended.slot, pd, mr, ended.key as u8);
        self.scatter(keys.handle, scattered);
        keys
    }
    /// Another region may stand in its place.
    pub(crate) fn free(&mut self, ended: EndedMr) {
        self.entries[ended.slot as usize].state = State::Free;
        self.regions -= 1;
        self.free.push_back(ended.slot);
    }
    #[cfg(test)]
    fn deregister(&mut self, mr: MrHandle) -> Result<PdHandle, DeviceError> {
        let ended = self.end(mr)?;
        let pd = ended.pd;
        self.free(ended);
        Ok(pd)
    }

    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    #[inline(always)]
    fn entry(&self, key: u32) -> Option<&Entry> {
        self.entries.get(self.slot(key) as usize).filter(|e| e.tag == key as u8 && e.state == State::Valid)
    }

    /// The slot that a key names.
    #[inline]
    fn slot(&self, key: u32) -> u32 {
        let (last, slot) = self.last[0].get();
        if last == key >> 8 { slot } else { self.look_up(key, 0) }
    }
    #[inline(never)]
    fn look_up(&self, key: u32, of: usize) -> u32 {
        let slot = self.permutation.backward(key >> 8);
        self.last[of].set((key >> 8, slot));
        slot
    }
    /// Which of the keys that were looked up last an access goes by.
    #[inline(always)]
    const fn by(access: Access) -> usize {
        access.contains(Access::LOCAL_WRITE) as usize
    }

    /// The address behind `addr .. addr + len` of the region that `key` names, if that region belongs
    /// to `pd` and grants all of `access`. `len` must not be 0.
    #[inline(always)]
    pub(crate) fn translate(
        &self,
        pd: PdHandle,
        key: u32,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<*mut u8, Refused> {
        match self.translate_again(pd, key, addr, len, access) {
            Some(at) => Ok(at),
            None => self.translate_anew(pd, key, addr, len, access),
        }
    }
    /// The same, if the key is that of the access before, and the range lies in one piece.
    #[inline(always)]
    pub(crate) fn translate_again(
        &self,
        pd: PdHandle,
        key: u32,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Option<*mut u8> {
        let (last, slot) = self.last[Self::by(access)].get();
        let e = self.entries.get(slot as usize)?;
        if last != key >> 8 || e.tag != key as u8 || e.state != State::Valid {
            return None;
        }
        let offset = addr.checked_sub(e.iova)?;
        let fits = offset.checked_add(len)? <= e.len;
        (fits && e.pd == pd && e.access.contains(access)).then(|| e.base.wrapping_add(offset as usize))
    }
    #[cold]
    #[inline(never)]
    fn translate_anew(
        &self,
        pd: PdHandle,
        key: u32,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<*mut u8, Refused> {
        self.look_up(key, Self::by(access));
        match self.translate_again(pd, key, addr, len, access) {
            Some(at) => Ok(at),
            None => self.in_one_piece(pd, key, addr, len, access),
        }
    }

    /// As [`translate`](Self::translate), of a region of several pieces, if the range lies in one.
    #[cold]
    #[inline(never)]
    fn in_one_piece(
        &self,
        pd: PdHandle,
        key: u32,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<*mut u8, Refused> {
        let (memory, offset) = self.scattered(pd, key, addr, len, access)?;
        let (at, room) = memory.at(offset);
        if len <= room as u64 { Ok(at.as_ptr()) } else { Err(Refused) }
    }

    /// The memory behind a range of a region of several pieces, and where in that it begins; refused as
    /// [`translate`](Self::translate) does. `len` must not be 0.
    #[cold]
    pub(crate) fn scattered(
        &self,
        pd: PdHandle,
        key: u32,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(&Scattered, usize), Refused> {
        let e = self.entry(key).filter(|e| e.pd == pd && e.access.contains(access)).ok_or(Refused)?;
        let memory = e.scattered.as_deref().ok_or(Refused)?;
        let offset = addr.checked_sub(e.iova).ok_or(Refused)?;
        let fits = offset.checked_add(len).is_some_and(|end| end <= memory.len() as u64);
        if fits && len > 0 { Ok((memory, offset as usize)) } else { Err(Refused) }
    }

    /// What a key stands for, for a peer of this protection domain: address, length, address by which peers name it,
    /// and rights. Nothing of one of several pieces.
    pub(crate) fn region(&self, pd: PdHandle, key: u32) -> Option<(*mut u8, usize, u64, Access)> {
        let e = self.entry(key).filter(|e| e.pd == pd && e.scattered.is_none())?;
        Some((e.base, e.len as usize, e.iova, e.access))
    }

    /// Whether this was the latest key of its slot, in this protection domain, though it may be taken back by now.
    pub(crate) fn was(&self, pd: PdHandle, key: u32) -> bool {
        self.entries.get(self.slot(key) as usize).is_some_and(|e| e.tag == key as u8 && e.pd == pd)
    }

    /// Takes a key back on behalf of a peer.
    pub(crate) fn invalidate(&mut self, pd: PdHandle, key: u32) -> Result<(), Refused> {
        let slot = self.slot(key);
        let e = self
            .entries
            .get_mut(slot as usize)
            .filter(|e| e.tag == key as u8 && e.state == State::Valid && e.pd == pd)
            .filter(|e| e.access.contains(Access::REMOTE_INVALIDATE))
            .ok_or(Refused)?;
        e.state = State::Invalidated;
        Ok(())
    }
}

/// A permutation of 24-bit numbers: a Feistel network of four rounds over two halves of 12 bits.
struct Permutation {
    keys: [u32; 4],
}

const HALF: u32 = INDEX_BITS / 2;
const HALF_MASK: u32 = (1 << HALF) - 1;

impl Permutation {
    fn new(random: &mut Random) -> Self {
        Self { keys: core::array::from_fn(|_| random.next_u64() as u32) }
    }
    #[inline]
    fn round(half: u32, key: u32) -> u32 {
        // One multiplication spreads the half over the upper bits.
        ((half ^ key).wrapping_mul(0x9e37_79b1) ^ key.rotate_left(13)).wrapping_mul(0x85eb_ca77)
            >> (32 - HALF)
    }
    #[inline]
    fn forward(&self, x: u32) -> u32 {
        let (mut l, mut r) = (x >> HALF & HALF_MASK, x & HALF_MASK);
        for k in self.keys {
            (l, r) = (r, l ^ Self::round(r, k));
        }
        l << HALF | r
    }
    #[inline]
    fn backward(&self, y: u32) -> u32 {
        let (mut l, mut r) = (y >> HALF & HALF_MASK, y & HALF_MASK);
        for k in self.keys.into_iter().rev() {
            (l, r) = (r ^ Self::round(l, k), l);
        }
        l << HALF | r
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::NonNull;

    use super::*;

    const PD: PdHandle = PdHandle { index: 1, generation: 0 };

    fn init(buf: &mut [u8], access: Access) -> MrInit {
        let addr = NonNull::new(buf.as_mut_ptr()).unwrap();
        MrInit { addr, len: buf.len(), iova: addr.addr().get() as u64, access }
    }

    #[test]
    fn the_permutation_is_one() {
        let p = Permutation::new(&mut Random::new(3));
        for x in (0..1 << INDEX_BITS).step_by(if cfg!(miri) { 99_991 } else { 997 }) {
            assert_eq!(p.backward(p.forward(x)), x);
            assert!(p.forward(x) < 1 << INDEX_BITS);
        }
    }

    #[test]
    fn range_rights_domain_and_state_are_checked() {
        let mut t = MrTable::new(16, Random::new(1));
        let mut buf = [0; 100];
        let mr = init(&mut buf, Access::REMOTE_READ);
        let k = t.register(PD, &mr).unwrap();
        let key = k.rkey.raw();
        let ok = |t: &MrTable, at, len, access| t.translate(PD, key, at, len, access).is_ok();
        assert!(ok(&t, mr.iova, 100, Access::REMOTE_READ));
        assert!(ok(&t, mr.iova + 99, 1, Access::empty()));
        assert!(!ok(&t, mr.iova, 101, Access::REMOTE_READ));
        assert!(!ok(&t, mr.iova - 1, 1, Access::REMOTE_READ));
        assert!(!ok(&t, mr.iova + 100, 1, Access::REMOTE_READ));
        assert!(!ok(&t, mr.iova + 1, u64::MAX, Access::REMOTE_READ));
        assert!(!ok(&t, mr.iova, 1, Access::REMOTE_WRITE));
        assert!(t.translate(PdHandle { index: 1, generation: 1 }, key, mr.iova, 1, Access::empty()).is_err());
        assert!(t.translate(PD, key ^ 1, mr.iova, 1, Access::empty()).is_err());
        t.deregister(k.handle).unwrap();
        assert!(!ok(&t, mr.iova, 1, Access::empty()));
        assert!(t.deregister(k.handle).is_err());
    }

    #[test]
    fn a_peer_takes_back_only_keys_that_allow_it() {
        let mut t = MrTable::new(16, Random::new(1));
        let mut buf = [0; 8];
        let plain = t.register(PD, &init(&mut buf, Access::REMOTE_WRITE)).unwrap();
        let open = t.register(PD, &init(&mut buf, Access::REMOTE_INVALIDATE)).unwrap();
        assert_eq!(t.invalidate(PD, plain.rkey.raw()), Err(Refused));
        assert_eq!(t.invalidate(PdHandle { index: 9, generation: 0 }, open.rkey.raw()), Err(Refused));
        assert_eq!(t.invalidate(PD, open.rkey.raw()), Ok(()));
        assert_eq!(t.invalidate(PD, open.rkey.raw()), Err(Refused));
        t.deregister(open.handle).unwrap();
    }

    #[test]
    fn a_key_that_was_taken_back_is_told_from_one_that_never_was() {
        let mut t = MrTable::new(8, Random::new(7));
        let mut buf = [0; 8];
        let mr = init(&mut buf, Access::all());
        let k = t.register(PD, &mr).unwrap();
        let key = k.rkey.raw();
        let other = PdHandle { index: PD.index + 1, ..PD };
        for _ in 0..2 {
            assert!(t.was(PD, key));
            assert!(!t.was(other, key) && !t.was(PD, key ^ 1) && !t.was(PD, key ^ 0x100));
            // Twice: valid, and taken back.
            let _ = t.deregister(k.handle);
            assert!(t.region(PD, key).is_none());
        }
    }

    #[test]
    fn a_region_that_is_changed_keeps_its_key_and_its_memory() {
        let mut t = MrTable::new(16, Random::new(1));
        let mut buf = [0; 100];
        let keys = t.register_tagged(PD, &init(&mut buf, Access::REMOTE_READ), 0x42).unwrap();
        let (was, _) = t.init_of(keys.handle).unwrap();
        assert_eq!(
            (was.addr.as_ptr(), was.len, was.access),
            (buf.as_mut_ptr(), buf.len(), Access::REMOTE_READ)
        );
        let ended = t.end(keys.handle).unwrap();
        assert!(t.init_of(keys.handle).is_err());
        let other = PdHandle { index: PD.index + 1, ..PD };
        let handle = t.replace(&ended, other, &MrInit { access: Access::REMOTE_WRITE, ..was }, None).handle;
        let key = keys.rkey.raw();
        assert!(t.translate(PD, key, was.iova, 1, Access::REMOTE_READ).is_err());
        assert!(t.translate(other, key, was.iova, 1, Access::REMOTE_READ).is_err());
        assert!(t.translate(other, key, was.iova, 1, Access::REMOTE_WRITE).is_ok());
        assert!(t.end(keys.handle).is_err() && t.end(handle).is_ok());
    }

    #[test]
    fn one_of_several_pieces_is_found_piece_by_piece_and_may_be_changed_too() {
        let mut t = MrTable::new(16, Random::new(1));
        let mut buf = [0_u8; 100];
        let base = NonNull::from(&mut buf[..]).cast::<u8>();
        let half = |at: usize| (base.map_addr(|a| a.saturating_add(at)), 50);
        let memory = Arc::new(Scattered::new([half(50), half(0)]).unwrap());
        let keys = t.register_scattered(PD, memory, (1000, Access::REMOTE_READ), 0x42).unwrap();
        let key = keys.rkey.raw();
        let found = |t: &MrTable, at, len, access| t.translate(PD, key, at, len, access).map(|p| p.addr());
        let first = base.addr().get();
        assert_eq!(found(&t, 1010, 40, Access::REMOTE_READ), Ok(first + 60));
        assert_eq!(found(&t, 1050, 50, Access::REMOTE_READ), Ok(first));
        assert_eq!(found(&t, 1049, 2, Access::REMOTE_READ), Err(Refused), "it lies in two");
        let whole = |t: &MrTable, at, len, access| t.scattered(PD, key, at, len, access).is_ok();
        assert!(whole(&t, 1000, 100, Access::REMOTE_READ) && t.region(PD, key).is_none());
        for (at, len) in [(999, 2), (1000, 101), (1100, 1), (1000, 0), (1099, u64::MAX)] {
            assert!(!whole(&t, at, len, Access::REMOTE_READ), "{at} {len}");
        }
        assert!(!whole(&t, 1000, 1, Access::REMOTE_WRITE));
        let (was, memory) = t.init_of(keys.handle).unwrap();
        let ended = t.end(keys.handle).unwrap();
        assert!(!whole(&t, 1000, 1, Access::REMOTE_READ));
        let handle = t.replace(&ended, PD, &MrInit { access: Access::REMOTE_WRITE, ..was }, memory).handle;
        assert!(whole(&t, 1000, 100, Access::REMOTE_WRITE) && !whole(&t, 1000, 1, Access::REMOTE_READ));
        assert!(t.end(handle).is_ok() && !whole(&t, 1000, 1, Access::REMOTE_WRITE));
    }

    #[test]
    fn a_stale_key_misses_the_slot_that_is_used_again() {
        let mut t = MrTable::new(1, Random::new(7));
        let mut buf = [0; 8];
        let mut old = Vec::new();
        for _ in 0..50 {
            let mr = init(&mut buf, Access::empty());
            let k = t.register(PD, &mr).unwrap();
            if let Some(last) = old.last() {
                assert!(t.translate(PD, *last, mr.iova, 1, Access::empty()).is_err());
            }
            assert!(matches!(t.register(PD, &mr), Err(DeviceError::LimitReached { .. })));
            old.push(k.lkey.raw());
            t.deregister(k.handle).unwrap();
        }
    }

    /// A tag drawn at random is the last one again in one of 256 registrations.
    #[test]
    fn a_slot_never_has_the_tag_that_it_had_last() {
        let mut t = MrTable::new(1, Random::new(7));
        let mut buf = [0; 8];
        let mr = init(&mut buf, Access::empty());
        let mut last = None;
        for nth in 0..if cfg!(miri) { 600 } else { 20_000 } {
            let k = t.register(PD, &mr).unwrap();
            assert_ne!(last.replace(k.lkey), Some(k.lkey), "registration {nth} revives the key before it");
            t.deregister(k.handle).unwrap();
        }
    }

    #[test]
    fn a_region_has_the_tag_that_its_caller_chose_and_an_old_key_misses_it() {
        let mut t = MrTable::new(3, Random::new(7));
        let mut buf = [0; 8];
        let mr = init(&mut buf, Access::empty());
        // Two slots that had the tag, and one that had another: that one is taken.
        let keys = [7, 7, 9].map(|tag| t.register_tagged(PD, &mr, tag).unwrap());
        assert_eq!(keys.map(|k| k.lkey.raw() & 0xff), [7, 7, 9]);
        for k in keys {
            t.deregister(k.handle).unwrap();
        }
        let new = t.register_tagged(PD, &mr, 7).unwrap();
        assert_eq!(new.handle.index, keys[2].handle.index);
        assert!(t.translate(PD, new.lkey.raw(), mr.iova, 1, Access::empty()).is_ok());
        for old in keys {
            assert!(t.translate(PD, old.lkey.raw(), mr.iova, 1, Access::empty()).is_err());
        }
    }
}
