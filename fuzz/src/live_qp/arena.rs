//! The adapter's memory: areas with different rights, and the check that only what may change does.
//!
//! Invariants of the unsafe code:
//! 1. The [`Arena`]'s bytes are reached through its pointer only, while adapter and target take turns on
//!    one thread.
//! 2. The arena is freed after the adapter that it is registered with.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use hca_core::{Access, Device, MrInit, MrKeys, PdHandle};
use softhca::SoftHca;

/// What memory holds that no peer may read. It never comes from an input.
pub(super) const SECRET: u8 = 0xee;
/// As many secret bytes in a row are a leak.
pub(super) const LEAK: usize = 24;
pub(super) const GUARD: usize = 64;
pub(super) const SLOT: usize = 640;
pub(super) const SLOTS: usize = 24;

/// The regions of the arena, in its order, each between guards.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Area {
    /// Peers may do anything.
    Open = 0,
    /// Peers may read.
    ReadOnly = 1,
    /// Receive buffers and what READs and atomics bring: no peer may name it.
    Landing = 2,
    /// Peers may write.
    WriteOnly = 3,
    /// Peers may do anything, but it is another protection domain's.
    Foreign = 4,
    /// Its key was taken back.
    Gone = 5,
    /// What is sent: no peer may name it.
    Source = 6,
}
/// All rights that memory of the adapter has.
const ALL: Access = Access::all().difference(Access::FLUSH_PERSISTENT);
pub(super) const AREAS: [(Area, usize, Access); 7] = [
    (Area::Open, 4096, ALL),
    (Area::ReadOnly, 1024, Access::REMOTE_READ),
    (Area::Landing, SLOT * SLOTS, Access::LOCAL_WRITE),
    (Area::WriteOnly, 1024, Access::LOCAL_WRITE.union(Access::REMOTE_WRITE)),
    (Area::Foreign, 512, ALL),
    (Area::Gone, 512, ALL),
    (Area::Source, 2048, Access::empty()),
];

/// All memory of the adapter, with a copy of what may not have changed.
pub(super) struct Arena {
    memory: NonNull<[u8]>,
    /// What every byte has to be that nobody may write now.
    shadow: Vec<u8>,
    /// Whether a peer may write this area now.
    pub(super) written: [bool; AREAS.len()],
    /// Slots of the landing area that a posted request holds.
    pub(super) held: [bool; SLOTS],
}

impl Arena {
    pub(super) fn new() -> Self {
        let len = AREAS.iter().map(|a| a.1 + GUARD).sum::<usize>() + GUARD;
        let mut bytes = vec![SECRET; len];
        for area in [Area::Open, Area::ReadOnly, Area::WriteOnly, Area::Source] {
            let range = Self::range(area);
            bytes[range.clone()].iter_mut().zip(range).for_each(|(b, i)| *b = i as u8 & 0x7f);
        }
        let shadow = bytes.clone();
        let memory = NonNull::from(Box::leak(bytes.into_boxed_slice()));
        let mut written = [false; AREAS.len()];
        written[Area::Open as usize] = true;
        written[Area::WriteOnly as usize] = true;
        Self { memory, shadow, written, held: [false; SLOTS] }
    }
    pub(super) fn range(area: Area) -> std::ops::Range<usize> {
        let before: usize = AREAS[..area as usize].iter().map(|a| a.1 + GUARD).sum();
        before + GUARD..before + GUARD + AREAS[area as usize].1
    }
    pub(super) fn slot(n: usize) -> std::ops::Range<usize> {
        let start = Self::range(Area::Landing).start + n * SLOT;
        // The last bytes of a slot are in no request's list.
        start..start + SLOT - 32
    }
    pub(super) fn addr(&self, at: usize) -> NonNull<u8> {
        // SAFETY: `at` comes from a range of the arena.
        unsafe { self.memory.cast::<u8>().add(at) }
    }
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: (1) nobody writes while this thread looks.
        unsafe { self.memory.as_ref() }
    }
    /// What stands there now is what has to stand there from now on.
    pub(super) fn keep(&mut self, range: std::ops::Range<usize>) {
        let now = self.bytes()[range.clone()].to_vec();
        self.shadow[range].copy_from_slice(&now);
    }
    pub(super) fn release(&mut self, slot: usize) {
        assert!(std::mem::replace(&mut self.held[slot], false), "slot {slot} was held");
        self.keep(Self::slot(slot));
    }
    /// Nothing changed that no peer and no request could change.
    pub(super) fn check(&self) {
        let mut from = 0;
        for (area, _, _) in AREAS {
            let range = Self::range(area);
            if self.written[area as usize] {
                self.same(from..range.start);
                from = range.end;
            }
            if area == Area::Landing {
                for slot in (0..SLOTS).filter(|n| self.held[*n]).map(Self::slot) {
                    self.same(from..slot.start);
                    from = slot.end;
                }
            }
        }
        self.same(from..self.shadow.len());
    }
    fn same(&self, range: std::ops::Range<usize>) {
        let (now, then) = (&self.bytes()[range.clone()], &self.shadow[range.clone()]);
        if now != then {
            let at = now.iter().zip(then).position(|(a, b)| a != b).map(|i| range.start + i);
            panic!("the byte at {at:?} of the arena was changed");
        }
    }
}
impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, freed once; (2) the adapter is gone.
        drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
    }
}

pub(super) fn register(device: &SoftHca, pds: &[PdHandle; 2], arena: &Arena, area: Area) -> MrKeys {
    let (_, len, access) = AREAS[area as usize];
    let addr = arena.addr(Arena::range(area).start);
    let init = MrInit { addr, len, iova: addr.as_ptr() as u64, access };
    let pd = pds[usize::from(area == Area::Foreign)];
    // SAFETY: (2) the arena outlives the adapter, and (1) no references to it are made meanwhile.
    unsafe { device.reg_mr(pd, &init) }.expect("a region is registered")
}
