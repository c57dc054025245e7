//! The memory that a function may access, and its device addresses.
//!
//! This module keeps the library's memory as long as the device can access it, also if unmapping fails.

use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{Backend, DmaLimits, DmaMemory, DmaRights};
use crate::error::DmaError;
use crate::iova::{Iova, Ranges, usable};
use crate::memory::{HUGE, Memory};

/// A mapping of memory for a device. Dropping this value unmaps nothing:
/// [`PciFunction::dma_unmap`](crate::PciFunction::dma_unmap) ends the mapping, and so does closing the function.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the memory stays within the device's reach until it is unmapped"]
pub struct DmaMapping {
    /// Where the whole mapping begins, and its length.
    at: u64,
    len: u64,
    /// Where in it the memory that was asked for begins.
    within: u64,
}

impl DmaMapping {
    /// The address of the memory's first byte for the device.
    pub fn iova(&self) -> Iova {
        Iova(self.at + self.within)
    }
}

pub(crate) struct DmaTable {
    granule: u64,
    max_mappings: u32,
    state: Mutex<State>,
}

struct State {
    free: Ranges,
    /// Mappings by address: the length, and the memory that has to stay.
    maps: BTreeMap<u64, (u64, Option<Arc<Memory>>)>,
    /// Mappings that are being made.
    coming: u32,
}

impl DmaTable {
    pub(crate) fn new(limits: &DmaLimits) -> Self {
        // What the kernel maps is whole pages of its own, and of the IOMMU's. More than a huge page is no page of any
        // IOMMU; what comes of it is the other side's to refuse.
        let smallest = if limits.page_sizes == 0 { 1 } else { 1_u64 << limits.page_sizes.trailing_zeros() };
        let smallest = smallest.min(HUGE as u64);
        let granule = smallest.max(rustix::param::page_size() as u64);
        let free = Ranges::new(granule, &usable(&limits.ranges));
        let state = Mutex::new(State { free, maps: BTreeMap::new(), coming: 0 });
        Self { granule, max_mappings: limits.max_mappings, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // It is whole between any two of its operations.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The unit of mappings in bytes.
    pub(crate) fn granule(&self) -> usize {
        self.granule as usize
    }

    pub(crate) fn map_foreign(
        &self,
        backend: &dyn Backend,
        memory: NonNull<u8>,
        bytes: usize,
        rights: DmaRights,
    ) -> Result<DmaMapping, DmaError> {
        let granule = self.granule as usize;
        let size = || DmaError::Size { bytes, align: 1, max_align: HUGE };
        let addr = memory.addr().get();
        let within = addr % granule;
        let len = bytes.checked_add(within).and_then(|l| l.checked_next_multiple_of(granule));
        let len = len.filter(|l| bytes > 0 && addr.checked_add(*l).is_some()).ok_or_else(size)?;
        // The first page's address; it is handed on, and nothing is read or written there.
        let first = memory.as_ptr().wrapping_sub(within);
        let first = NonNull::new(first).ok_or_else(size)?;
        let at = self.map(backend, &DmaMemory::Foreign(first, len), rights, 1)?;
        Ok(DmaMapping { at, len: len as u64, within: within as u64 })
    }

    /// Maps memory at a multiple of `align` for the device; here it is aligned as much.
    pub(crate) fn map_own(
        &self,
        backend: &dyn Backend,
        memory: &Arc<Memory>,
        align: usize,
    ) -> Result<DmaMapping, DmaError> {
        let at = self.map(backend, &DmaMemory::Own(memory), DmaRights::ALL, align as u64)?;
        Ok(DmaMapping { at, len: memory.len() as u64, within: 0 })
    }

    fn map(
        &self,
        backend: &dyn Backend,
        memory: &DmaMemory<'_>,
        rights: DmaRights,
        align: u64,
    ) -> Result<u64, DmaError> {
        let name = || backend.name().to_owned();
        let len = memory.len() as u64;
        let at = {
            let mut state = self.state();
            if state.maps.len() as u64 + u64::from(state.coming) >= self.max_mappings.into() {
                return Err(DmaError::Mappings { name: name(), limit: self.max_mappings });
            }
            let taken = place(&mut state.free, memory.addr(), len, align);
            let allowed = state.free.total();
            let none = || DmaError::Addresses { name: name(), bytes: len, allowed };
            let at = taken.ok_or_else(none)?;
            state.coming += 1;
            at
        };
        let mapped = backend.dma_map(Iova(at), memory, rights);
        let mut state = self.state();
        state.coming -= 1;
        match mapped {
            Ok(()) => {
                let own = if let DmaMemory::Own(m) = memory { Some((*m).clone()) } else { None };
                state.maps.insert(at, (len, own));
                Ok(at)
            }
            // A server that did not answer may have mapped it; nothing else will stand at this address.
            Err(DmaError::User(why)) if why.is_final() => {
                if let DmaMemory::Own(m) = memory {
                    state.maps.insert(at, (len, Some((*m).clone())));
                }
                Err(DmaError::User(why))
            }
            Err(e) => {
                state.free.give(at, len);
                Err(e)
            }
        }
    }

    pub(crate) fn unmap(&self, backend: &dyn Backend, mapping: DmaMapping) -> Result<(), DmaError> {
        let DmaMapping { at, len, .. } = mapping;
        let found = {
            let mut state = self.state();
            let fits = state.maps.get(&at).is_some_and(|(l, _)| *l == len);
            if fits { state.maps.remove(&at) } else { None }
        };
        let name = || backend.name().to_owned();
        let found = found.ok_or_else(|| DmaError::NotMapped { name: name(), iova: at, bytes: len })?;
        let done = backend.dma_unmap(Iova(at), len);
        let mut state = self.state();
        match done {
            Ok(()) => state.free.give(at, len),
            Err(_) => drop(state.maps.insert(at, found)),
        }
        done
    }
}

/// Takes addresses for memory that lies at `addr` here. They agree with that in as many bits as large pages of use for
/// so many bytes have, up to 1 GiB, or else as huge pages have, or else as `align` says: so the IOMMU needs few entries,
/// and a device's list of the memory's pages is short where the addresses of requests are the memory's own.
fn place(free: &mut Ranges, addr: usize, len: u64, align: u64) -> Option<u64> {
    const GIGABYTE: u64 = 1 << 30;
    let most = len.min(GIGABYTE).next_power_of_two();
    let sizes = [most, most.min(HUGE as u64), 1].map(|size| size.max(align));
    sizes.into_iter().find_map(|size| free.take_like(len, size, addr as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_lies_in_large_pages_for_the_device_as_it_lies_here_while_there_is_room() {
        const M1: u64 = 1 << 20;
        let mut free = Ranges::new(4096, &[0..=2048 * M1 - 1]);
        let mut at = |addr, len| place(&mut free, addr, len, 1);
        assert_eq!(at(0x7f12_3456_7000, 100 * M1), Some(0x7f12_3456_7000 % (128 * M1)));
        assert_eq!(at(0x7f12_3456_7000, 0x2000), Some(0x1000));
        assert_eq!(at(0x7fff_e000_0000, 1024 * M1), Some(512 * M1));
        // No place like that is left of this length: next come those as of huge pages, and then any.
        let huge = at(0x7f12_3467_8000, 400 * M1).unwrap();
        assert!(huge % (2 * M1) == 0x7_8000 && huge % (512 * M1) != 0x7f12_3467_8000 % (512 * M1));
        assert_eq!(at(0x7f12_3456_7000, 1024 * M1), None);
        let rest = free.total() - (1524 * M1 + 0x2000);
        let small =
            std::iter::from_fn(|| place(&mut free, 0x7f12_3467_8000, 2 * M1, 1)).count() as u64 * 2 * M1;
        assert!(rest - small < 8 * M1, "nothing is lost to alignment: {rest} {small}");
    }
}
