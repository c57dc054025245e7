//! Memory windows: keys for parts of regions, in the table of the regions.
//!
//! A window has a slot of its own, in a state in which the quick ways find nothing by its key. Who was refused by these
//! asks [`MrTable::through_window`], which names the same bytes by the key of the region. A window gives no local
//! access, and is granted to no peer on this machine.

use hca_core::{Access, DeviceError, MwHandle, MwKeys, MwRange, MwStatus, MwType, PdHandle, QpHandle, Rkey};

use super::{Entry, MrTable, Refused, State};

/// The rights that a window can give to peers.
const RIGHTS: Access = Access::BY_PEERS;

/// A memory window.
pub(super) struct Window {
    pub(super) kind: MwType,
    pub(super) bound: Option<Bound>,
}

/// The range that a window shows, and the queue pair that it is for.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    pub(super) range: MwRange,
    /// The slot of the region, which stays as long as this is bound.
    region: u32,
    /// The one queue pair that serves its peer by the window (type 2).
    pub(super) qp: Option<QpHandle>,
}

impl Bound {
    /// The address by which peers name the first byte.
    pub(super) fn base(&self) -> u64 {
        if self.range.zero_based { 0 } else { self.range.addr }
    }
}

const UNKNOWN: &str = "memory window";

impl MrTable {
    /// Makes room for so many windows.
    pub(crate) fn with_windows(mut self, limit: u32) -> Self {
        self.window_limit = limit;
        self
    }

    pub(crate) fn alloc_window(&mut self, pd: PdHandle, kind: MwType) -> Result<MwKeys, DeviceError> {
        if self.windows == self.window_limit {
            return Err(DeviceError::LimitReached { what: UNKNOWN, limit: self.windows.into() });
        }
        let slot = self.take_slot(pd, None)?;
        let tag = self.other_tag(slot);
        let entry = &mut self.entries[slot as usize];
        (entry.tag, entry.pd, entry.state) = (tag, pd, State::Window);
        entry.window = Some(Box::new(Window { kind, bound: None }));
        let handle = MwHandle { index: slot, generation: entry.generation };
        self.windows += 1;
        Ok(MwKeys { handle, rkey: Rkey::new(self.key_of(slot)) })
    }
    /// Takes a window out of the table; returns its protection domain.
    pub(crate) fn free_window(&mut self, mw: MwHandle) -> Result<PdHandle, DeviceError> {
        self.window(mw)?;
        self.unbind(mw.index);
        let entry = &mut self.entries[mw.index as usize];
        (entry.state, entry.window) = (State::Free, None);
        entry.generation = entry.generation.wrapping_add(1);
        let pd = entry.pd;
        self.windows -= 1;
        self.free.push_back(mw.index);
        Ok(pd)
    }
    fn window(&self, mw: MwHandle) -> Result<(&Entry, &Window), DeviceError> {
        let entry = self.entries.get(mw.index as usize).filter(|e| e.generation == mw.generation);
        let found = entry.and_then(|e| Some((e, e.window.as_deref()?)));
        found.ok_or(DeviceError::UnknownHandle { what: UNKNOWN, handle: mw.index })
    }
    /// The attributes of a window.
    pub(crate) fn window_status(&self, mw: MwHandle) -> Result<MwStatus, DeviceError> {
        let (entry, &Window { kind, bound }) = self.window(mw)?;
        let rkey = Rkey::new(self.key_of(mw.index));
        Ok(MwStatus { kind, pd: entry.pd, rkey, range: bound.map(|b| b.range), qp: bound.and_then(|b| b.qp) })
    }

    /// Binds a window of type 1, or takes it back; returns its new key.
    pub(crate) fn bind_one(&mut self, mw: MwHandle, range: Option<&MwRange>) -> Result<Rkey, DeviceError> {
        let (entry, window) = self.window(mw)?;
        if window.kind != MwType::One {
            return Err(DeviceError::Unsupported { what: "bind by a call of a memory window of type 2" });
        }
        let bound = match range {
            Some(range) if range.zero_based => {
                return Err(DeviceError::Unsupported { what: "a zero-based memory window of type 1" });
            }
            Some(range) => Some(self.may_bind(entry.pd, range, None)?),
            None => None,
        };
        self.unbind(mw.index);
        let tag = self.other_tag(mw.index);
        self.bind(mw.index, tag, bound);
        Ok(Rkey::new(self.key_of(mw.index)))
    }
    /// Binds a window of type 2 that is not bound to a queue pair of this protection domain.
    pub(crate) fn bind_two(
        &mut self,
        pd: PdHandle,
        qp: QpHandle,
        key: u32,
        range: &MwRange,
    ) -> Result<(), Refused> {
        let (slot, tag) = (self.slot(key), key as u8);
        let entry = self.entries.get(slot as usize).filter(|e| e.pd == pd && e.tag != tag).ok_or(Refused)?;
        let free = |w: &Window| w.kind == MwType::Two && w.bound.is_none();
        entry.window.as_deref().filter(|w| free(w)).ok_or(Refused)?;
        let bound = self.may_bind(pd, range, Some(qp)).map_err(|_| Refused)?;
        self.bind(slot, tag, Some(bound));
        Ok(())
    }
    /// Whether a window of this protection domain may show a range.
    fn may_bind(&self, pd: PdHandle, range: &MwRange, qp: Option<QpHandle>) -> Result<Bound, DeviceError> {
        let (what, key) = ("memory region", range.lkey.raw());
        let region = self.slot(key);
        let entry = self.entry(key).ok_or(DeviceError::UnknownHandle { what, handle: region })?;
        if entry.pd != pd {
            return Err(DeviceError::ForeignPd { what: "the memory region" });
        }
        let changes = range.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let needs = Access::MW_BIND | if changes { Access::LOCAL_WRITE } else { Access::empty() };
        if !entry.access.contains(needs) || !RIGHTS.contains(range.access) {
            return Err(DeviceError::Unsupported { what: "these rights of a memory window to its region" });
        }
        let len = entry.scattered.as_ref().map_or(entry.len, |memory| memory.len() as u64);
        let room = range.addr.checked_sub(entry.iova).and_then(|offset| len.checked_sub(offset)).unwrap_or(0);
        if range.len == 0 || range.len > room {
            let (value, max) = (range.len, room);
            return Err(DeviceError::OutOfRange { what: "bytes of the memory window", value, min: 1, max });
        }
        Ok(Bound { range: *range, region, qp })
    }
    /// Binds a window that is not bound.
    fn bind(&mut self, slot: u32, tag: u8, bound: Option<Bound>) {
        if let Some(bound) = &bound {
            self.entries[bound.region as usize].windows += 1;
            self.windows_of_qps.extend(bound.qp.map(|qp| (qp.index, qp.generation, slot)));
        }
        let entry = &mut self.entries[slot as usize];
        entry.tag = tag;
        entry.window.as_mut().expect("it is a window").bound = bound;
    }
    /// Takes the key of a window back; whether it was bound.
    fn unbind(&mut self, slot: u32) -> bool {
        let bound = self.entries[slot as usize].window.as_mut().and_then(|w| w.bound.take());
        if let Some(bound) = &bound {
            self.entries[bound.region as usize].windows -= 1;
            bound.qp.map(|qp| self.windows_of_qps.remove(&(qp.index, qp.generation, slot)));
        }
        bound.is_some()
    }

    /// Takes the key of a window back on behalf of a queue pair or of its peer: of type 2, and bound to that queue pair.
    /// `None`: the key is no window's.
    pub(crate) fn invalidate_window(
        &mut self,
        pd: PdHandle,
        qp: QpHandle,
        key: u32,
    ) -> Option<Result<(), Refused>> {
        let slot = self.slot(key);
        let entry = self.entries.get(slot as usize).filter(|e| e.tag == key as u8 && e.pd == pd)?;
        let bound = entry.window.as_deref()?.bound;
        if bound.and_then(|b| b.qp) != Some(qp) {
            return Some(Err(Refused));
        }
        self.unbind(slot);
        Some(Ok(()))
    }
    /// A queue pair goes: the windows that are bound to it are bound no more.
    pub(crate) fn unbind_windows_of(&mut self, qp: QpHandle) {
        let of_qp = (qp.index, qp.generation, 0)..=(qp.index, qp.generation, u32::MAX);
        while let Some(&(_, _, slot)) = self.windows_of_qps.range(of_qp.clone()).next() {
            self.unbind(slot);
        }
    }

    /// The region's key and the address there of a range that a window shows to the peer of this queue pair, if the
    /// window grants all of `access`. The region itself need not.
    #[cold]
    pub(crate) fn through_window(
        &self,
        (pd, qp): (PdHandle, QpHandle),
        key: u32,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(u32, u64), Refused> {
        let entry = self.entries.get(self.slot(key) as usize).filter(|e| e.tag == key as u8 && e.pd == pd);
        let window = entry.and_then(|e| e.window.as_deref()).ok_or(Refused)?;
        let bound = window.bound.filter(|b| b.qp.is_none_or(|of| of == qp)).ok_or(Refused)?;
        let offset = addr.checked_sub(bound.base()).ok_or(Refused)?;
        let fits = offset.checked_add(len).is_some_and(|end| end <= bound.range.len);
        if !fits || !bound.range.access.contains(access) {
            return Err(Refused);
        }
        Ok((self.key_of(bound.region), bound.range.addr + offset))
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::NonNull;

    use hca_core::{Lkey, MrInit};

    use super::*;
    use hca_core::SplitMix64 as Random;

    const PD: PdHandle = PdHandle { index: 1, generation: 0 };
    const OTHER: PdHandle = PdHandle { index: 2, generation: 0 };
    const QP: QpHandle = QpHandle { index: 1, generation: 7 };
    const STRANGER: QpHandle = QpHandle { index: 1, generation: 8 };
    const IOVA: u64 = 1000;

    fn region(t: &mut MrTable, buf: &mut [u8], access: Access) -> hca_core::MrKeys {
        let addr = NonNull::new(buf.as_mut_ptr()).unwrap();
        t.register(PD, &MrInit { addr, len: buf.len(), iova: IOVA, access }).unwrap()
    }
    fn range(lkey: Lkey, addr: u64, len: u64, access: Access) -> MwRange {
        MwRange { lkey, addr, len, access, zero_based: false }
    }

    #[test]
    fn a_window_shows_its_range_by_its_rights_and_nothing_locally() {
        let mut t = MrTable::new(8, Random::new(1)).with_windows(4);
        let mut buf = [0; 100];
        let mr = region(&mut t, &mut buf, Access::MW_BIND);
        let mw = t.alloc_window(PD, MwType::One).unwrap();
        let look =
            |t: &MrTable, key: Rkey, at, len, access| t.through_window((PD, QP), key.raw(), at, len, access);
        assert_eq!(look(&t, mw.rkey, IOVA, 1, Access::REMOTE_READ), Err(Refused), "it is not bound");
        let wanted = range(mr.lkey, IOVA + 10, 20, Access::REMOTE_READ);
        let key = t.bind_one(mw.handle, Some(&wanted)).unwrap();
        assert_ne!(key, mw.rkey);
        let found = (mr.rkey.raw(), IOVA + 12);
        assert_eq!(look(&t, key, IOVA + 12, 18, Access::REMOTE_READ), Ok(found));
        for (at, len) in [(IOVA + 9, 2), (IOVA + 12, 19), (IOVA + 30, 1), (IOVA + 11, u64::MAX)] {
            assert_eq!(look(&t, key, at, len, Access::REMOTE_READ), Err(Refused), "{at} {len}");
        }
        assert_eq!(look(&t, key, IOVA + 12, 1, Access::REMOTE_WRITE), Err(Refused));
        assert_eq!(look(&t, mw.rkey, IOVA + 12, 1, Access::REMOTE_READ), Err(Refused), "an old key");
        let stranger = t.through_window((OTHER, QP), key.raw(), IOVA + 12, 1, Access::REMOTE_READ);
        assert_eq!(stranger, Err(Refused));
        // It is no key of local entries, none to be granted, and no region's.
        assert!(t.translate(PD, key.raw(), IOVA + 12, 1, Access::empty()).is_err());
        assert!(t.region(PD, key.raw()).is_none() && t.was(PD, key.raw()));
        let as_region = hca_core::MrHandle { index: mw.handle.index, generation: mw.handle.generation };
        assert!(t.end(as_region).is_err() && t.status(as_region).is_err());
    }

    #[test]
    fn a_region_with_windows_stays_until_they_are_gone() {
        let mut t = MrTable::new(8, Random::new(1)).with_windows(1);
        let mut buf = [0; 100];
        let mr = region(&mut t, &mut buf, Access::MW_BIND);
        let mw = t.alloc_window(PD, MwType::One).unwrap();
        assert!(matches!(t.alloc_window(PD, MwType::One), Err(DeviceError::LimitReached { limit: 1, .. })));
        let wanted = range(mr.lkey, IOVA, 100, Access::REMOTE_READ);
        t.bind_one(mw.handle, Some(&wanted)).unwrap();
        let key = t.bind_one(mw.handle, Some(&wanted)).unwrap();
        assert!(matches!(t.end(mr.handle), Err(DeviceError::InUse { users: 1, .. })));
        assert_ne!(t.bind_one(mw.handle, None).unwrap(), key);
        assert!(t.end(mr.handle).is_ok());
        t.free_window(mw.handle).unwrap();
        assert!(matches!(t.free_window(mw.handle), Err(DeviceError::UnknownHandle { .. })));
    }

    #[test]
    fn a_bind_keeps_to_the_regions_range_rights_and_domain() {
        let mut t = MrTable::new(8, Random::new(1)).with_windows(4);
        let mut buf = [0; 100];
        let plain = region(&mut t, &mut buf, Access::all() - Access::MW_BIND).lkey;
        let fixed = region(&mut t, &mut buf, Access::MW_BIND).lkey;
        let open = region(&mut t, &mut buf, Access::MW_BIND | Access::LOCAL_WRITE).lkey;
        let one = t.alloc_window(PD, MwType::One).unwrap().handle;
        let foreign = t.alloc_window(OTHER, MwType::One).unwrap().handle;
        let two = t.alloc_window(PD, MwType::Two).unwrap();
        let read = Access::REMOTE_READ;
        for (wanted, why) in [
            (range(plain, IOVA, 1, read), "no windows"),
            (range(fixed, IOVA, 1, Access::REMOTE_WRITE), "no writes"),
            (range(open, IOVA, 1, Access::LOCAL_WRITE), "no right of peers"),
            (range(open, IOVA, 0, read), "nothing"),
            (range(open, IOVA - 1, 2, read), "before"),
            (range(open, IOVA + 99, 2, read), "behind"),
            (range(open, u64::MAX, 2, read), "far"),
            (range(Lkey::new(open.raw() ^ 1), IOVA, 1, read), "stale"),
        ] {
            assert!(t.bind_one(one, Some(&wanted)).is_err(), "{why}");
            assert_eq!(t.bind_two(PD, QP, two.rkey.raw() ^ 1, &wanted), Err(Refused), "{why}");
        }
        let good = range(open, IOVA + 99, 1, RIGHTS);
        assert!(matches!(t.bind_one(foreign, Some(&good)), Err(DeviceError::ForeignPd { .. })));
        assert!(t.bind_one(one, Some(&MwRange { zero_based: true, ..good })).is_err());
        assert!(t.bind_one(two.handle, Some(&good)).is_err(), "by a request alone");
        assert!(t.bind_one(one, Some(&good)).is_ok());
    }

    #[test]
    fn a_window_of_type_two_is_of_one_queue_pair_and_bound_once() {
        let mut t = MrTable::new(8, Random::new(1)).with_windows(4);
        let mut buf = [0; 100];
        let lkey = region(&mut t, &mut buf, Access::all()).lkey;
        let (one, two) = (t.alloc_window(PD, MwType::One).unwrap(), t.alloc_window(PD, MwType::Two).unwrap());
        let wanted = MwRange { zero_based: true, ..range(lkey, IOVA + 50, 10, Access::REMOTE_WRITE) };
        let key = two.rkey.raw() ^ 0x55;
        assert_eq!(t.bind_two(OTHER, QP, key, &wanted), Err(Refused));
        assert_eq!(t.bind_two(PD, QP, two.rkey.raw(), &wanted), Err(Refused), "the same key");
        assert_eq!(t.bind_two(PD, QP, one.rkey.raw() ^ 1, &wanted), Err(Refused), "of type 1");
        assert_eq!(t.bind_two(PD, QP, key, &wanted), Ok(()));
        assert_eq!(t.bind_two(PD, QP, key ^ 1, &wanted), Err(Refused), "it is bound");
        let look = |t: &MrTable, qp, at| t.through_window((PD, qp), key, at, 2, Access::REMOTE_WRITE);
        assert_eq!(look(&t, QP, 3).map(|found| found.1), Ok(IOVA + 53));
        assert_eq!((look(&t, STRANGER, 3), look(&t, QP, 9)), (Err(Refused), Err(Refused)));
        assert_eq!(t.invalidate_window(PD, STRANGER, key), Some(Err(Refused)));
        assert_eq!(t.invalidate_window(OTHER, QP, key), None);
        assert_eq!(t.invalidate_window(PD, QP, one.rkey.raw()), Some(Err(Refused)));
        assert_eq!(t.invalidate_window(PD, QP, key), Some(Ok(())));
        assert_eq!(t.invalidate_window(PD, QP, key), Some(Err(Refused)), "it is bound no more");
        assert_eq!(look(&t, QP, 3), Err(Refused));
        // A queue pair that goes takes its windows along.
        assert_eq!(t.bind_two(PD, QP, key ^ 1, &wanted), Ok(()));
        t.unbind_windows_of(STRANGER);
        assert_eq!(t.window_status(two.handle).unwrap().qp, Some(QP));
        t.unbind_windows_of(QP);
        assert_eq!(t.window_status(two.handle).unwrap().range, None);
    }
}
