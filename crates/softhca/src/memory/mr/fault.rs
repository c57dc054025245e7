//! The reason why a key was refused, found once the quick ways have refused it.

use hca_core::{Access, KeyFault, MwRange, MwType, PdHandle, QpHandle};

use super::{MrTable, State};

/// The user of a key: a protection domain, and for a peer's access the queue pair that serves the peer.
pub(crate) type User = (PdHandle, Option<QpHandle>);

/// The memory that a key names: the address of its first byte, the length in bytes, and the rights.
struct Named {
    base: u64,
    len: u64,
    access: Access,
}

impl Named {
    fn covers(&self, addr: u64, len: u64) -> bool {
        let end = addr.checked_sub(self.base).and_then(|offset| offset.checked_add(len));
        end.is_some_and(|end| end <= self.len)
    }
}

impl MrTable {
    /// The reason why this user's access was refused.
    #[cold]
    pub(crate) fn fault(&self, user: User, key: u32, addr: u64, len: u64, access: Access) -> KeyFault {
        // One that is allowed is a word of an atomic operation that lies in two pieces of memory.
        self.allows(user, key, Some((addr, len)), access).err().unwrap_or(KeyFault::Range)
    }
    /// Whether this user may access a range, or all that the key names (`None`).
    #[cold]
    pub(crate) fn allows(
        &self,
        user: User,
        key: u32,
        range: Option<(u64, u64)>,
        access: Access,
    ) -> Result<(), KeyFault> {
        let named = self.named(user, key)?;
        if range.is_some_and(|(addr, len)| !named.covers(addr, len)) {
            return Err(KeyFault::Range);
        }
        if named.access.contains(access) { Ok(()) } else { Err(KeyFault::Right) }
    }
    /// The reason why this user could not take a key back.
    #[cold]
    pub(crate) fn invalidate_fault(&self, user: User, key: u32) -> KeyFault {
        self.named(user, key).err().unwrap_or(KeyFault::Right)
    }
    /// The reason why a queue pair could not bind a window of type 2.
    #[cold]
    pub(crate) fn bind_fault(&self, (pd, key): (PdHandle, u32), range: &MwRange) -> KeyFault {
        let entry = self.entries.get(self.slot(key) as usize);
        let Some((entry, window)) = entry.and_then(|e| Some((e, e.window.as_deref()?))) else {
            return KeyFault::Unknown;
        };
        if entry.pd != pd {
            return KeyFault::OtherPd;
        }
        if window.kind != MwType::Two || window.bound.is_some() || entry.tag == key as u8 {
            return KeyFault::Right;
        }
        match self.named((pd, None), range.lkey.raw()) {
            Err(fault) => fault,
            Ok(named) if range.len == 0 || !named.covers(range.addr, range.len) => KeyFault::Range,
            Ok(_) => KeyFault::Right,
        }
    }

    /// The memory that a key names for a user.
    fn named(&self, (pd, qp): User, key: u32) -> Result<Named, KeyFault> {
        let entry = self.entries.get(self.slot(key) as usize).filter(|e| e.tag == key as u8);
        let entry = entry.ok_or(KeyFault::Unknown)?;
        let bound = match (&entry.window, entry.state) {
            (Some(window), _) => Some(window.bound.ok_or(KeyFault::Freed)?),
            (None, State::Valid) => None,
            (None, _) => return Err(KeyFault::Freed),
        };
        if entry.pd != pd {
            return Err(KeyFault::OtherPd);
        }
        let Some(bound) = bound else {
            let len = entry.scattered.as_ref().map_or(entry.len, |memory| memory.len() as u64);
            return Ok(Named { base: entry.iova, len, access: entry.access });
        };
        // A window gives no local access.
        let qp = qp.ok_or(KeyFault::Right)?;
        if bound.qp.is_some_and(|of| of != qp) {
            return Err(KeyFault::OtherPd);
        }
        Ok(Named { base: bound.base(), len: bound.range.len, access: bound.range.access })
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::NonNull;

    use hca_core::MrInit;

    use super::*;
    use hca_core::SplitMix64 as Random;

    const PD: PdHandle = PdHandle { index: 1, generation: 0 };
    const OTHER: PdHandle = PdHandle { index: 2, generation: 0 };
    const QP: QpHandle = QpHandle { index: 1, generation: 7 };
    const STRANGER: QpHandle = QpHandle { index: 1, generation: 8 };
    const READ: Access = Access::REMOTE_READ;

    #[test]
    fn each_refusal_of_a_region_has_its_reason() {
        let mut t = MrTable::new(8, Random::new(1));
        let mut buf = [0; 100];
        let addr = NonNull::new(buf.as_mut_ptr()).unwrap();
        let access = READ | Access::REMOTE_INVALIDATE;
        let mr = t.register(PD, &MrInit { addr, len: 100, iova: 1000, access }).unwrap();
        let key = mr.rkey.raw();
        let us = (PD, Some(QP));
        for (at, len) in [(999, 1), (1100, 1), (1000, 101), (1001, u64::MAX)] {
            assert_eq!(t.fault(us, key, at, len, READ), KeyFault::Range, "{at} {len}");
        }
        assert_eq!(t.fault(us, key, 1000, 100, Access::REMOTE_WRITE), KeyFault::Right);
        assert_eq!(t.fault((OTHER, Some(QP)), key, 1000, 1, READ), KeyFault::OtherPd);
        for wrong in [key ^ 1, key ^ 0x80, key ^ 0x100, 0] {
            assert_eq!(t.fault(us, wrong, 1000, 1, READ), KeyFault::Unknown);
        }
        t.invalidate(PD, key).unwrap();
        assert_eq!(t.fault(us, key, 1000, 1, READ), KeyFault::Freed, "invalidated");
        assert_eq!(t.invalidate_fault(us, key), KeyFault::Freed);
        let ended = t.end(mr.handle).unwrap();
        assert_eq!(t.fault(us, key, 1000, 1, READ), KeyFault::Freed, "ending");
        t.free(ended);
        assert_eq!(t.fault(us, key, 1000, 1, READ), KeyFault::Freed, "deregistered");
    }

    #[test]
    fn each_refusal_of_a_window_has_its_reason() {
        let mut t = MrTable::new(8, Random::new(1)).with_windows(4);
        let mut buf = [0; 100];
        let addr = NonNull::new(buf.as_mut_ptr()).unwrap();
        let region = |t: &mut MrTable, pd, access| {
            t.register(pd, &MrInit { addr, len: 100, iova: 1000, access }).unwrap().lkey
        };
        let (mine, plain) = (region(&mut t, PD, Access::MW_BIND), region(&mut t, PD, READ));
        let foreign = region(&mut t, OTHER, Access::MW_BIND);
        let mw = t.alloc_window(PD, MwType::Two).unwrap();
        let (old, key) = (mw.rkey.raw(), mw.rkey.raw() ^ 1);
        let us = (PD, Some(QP));
        assert_eq!(t.fault(us, old, 10, 1, READ), KeyFault::Freed, "not bound");
        let good = MwRange { lkey: mine, addr: 1010, len: 20, access: READ, zero_based: false };
        for (range, fault) in [
            (MwRange { len: 0, ..good }, KeyFault::Range),
            (MwRange { len: 91, ..good }, KeyFault::Range),
            (MwRange { lkey: plain, ..good }, KeyFault::Right),
            (MwRange { lkey: foreign, ..good }, KeyFault::OtherPd),
            (MwRange { lkey: hca_core::Lkey::new(mine.raw() ^ 1), ..good }, KeyFault::Unknown),
        ] {
            assert!(t.bind_two(PD, QP, key, &range).is_err());
            assert_eq!(t.bind_fault((PD, key), &range), fault);
        }
        assert_eq!(t.bind_fault((OTHER, key), &good), KeyFault::OtherPd);
        assert_eq!(t.bind_fault((PD, old), &good), KeyFault::Right, "the same key");
        assert_eq!(t.bind_fault((PD, mine.raw()), &good), KeyFault::Unknown, "a region's");
        t.bind_two(PD, QP, key, &good).unwrap();
        assert_eq!(t.bind_fault((PD, key ^ 2), &good), KeyFault::Right, "it is bound");
        assert_eq!(t.fault(us, key, 1009, 1, READ), KeyFault::Range);
        assert_eq!(t.fault(us, key, 1010, 1, Access::REMOTE_WRITE), KeyFault::Right);
        assert_eq!(t.fault((PD, Some(STRANGER)), key, 1010, 1, READ), KeyFault::OtherPd);
        assert_eq!(t.fault((OTHER, Some(QP)), key, 1010, 1, READ), KeyFault::OtherPd);
        assert_eq!(t.fault((PD, None), key, 1010, 1, Access::empty()), KeyFault::Right, "locally");
        assert_eq!(t.invalidate_fault((PD, Some(STRANGER)), key), KeyFault::OtherPd);
    }
}
