//! Regions: memory keys over memory that the adapter can access.
//!
//! A key translates by a list of pages of one size. Memory from an arena, or within one mapping, is contiguous for the
//! adapter, so a key uses the largest page size of which whole pages lie in the memory. A request's address and the
//! adapter's address have to agree in the bits below the page size.
//!
//! A region that is changed has another key over the same memory, and the older key is destroyed.
//!
//! Invariants:
//! 1. A mapping of the program's own memory is removed only after the key over it is destroyed, or the adapter can no
//!    longer access any memory.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use hca_core::{Access, DeviceError, Lkey, MrHandle, MrInit, MrKeys, MrStatus, PdHandle, Rkey};
use hca_prm::command::mkey::{CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn};
use hca_prm::{AccessMode, Mkc, pas};
use hca_vfio::{DmaBuf, DmaMapping, DmaRights};

use crate::cmd::{CmdError, CommandQueue};
use crate::error::memory;
use crate::hca::Hca;
use crate::health::Death;
use crate::table::Table;

/// Bytes of the longest region that is of use, as a power of two.
pub(crate) const LOG_MAX_BYTES: u32 = 40;
/// The smallest page, as a power of two.
const LOG_MIN_PAGE: u32 = 12;
/// The largest page, as a power of two.
const LOG_MAX_PAGE: u32 = 30;
/// Pages of a key's list: 8 MiB of input, in a chain of 16,384 mailboxes. The interface counts these with 32 bits; what
/// is to be longer is better told by larger pages, for which addresses have to agree.
const MAX_PAGES: u64 = 1 << 20;

/// The memory of a region, as requests and the adapter address it.
#[derive(Clone, Copy, Debug)]
struct Place {
    iova: u64,
    len: u64,
    bus: u64,
    /// What is mapped around it.
    within: (u64, u64),
    /// The adapter may write there.
    is_writable: bool,
}

/// A key of a region, and what it permits.
struct Key {
    pd: PdHandle,
    access: Access,
    index: u32,
    tag: u32,
}

/// A region.
struct Mr {
    key: Key,
    place: Place,
    /// A mapping of the program's own memory.
    mapping: Option<DmaMapping>,
}

/// All regions.
pub(crate) struct Mrs {
    table: Mutex<Table<Mr>>,
    /// The lowest byte of the next key.
    tag: AtomicU32,
    /// Held by a change of a region, so that its memory stays mapped, and shared by those that take regions back.
    changes: RwLock<()>,
}

impl Mrs {
    pub(crate) fn new(limit: u32) -> Self {
        let table = Mutex::new(Table::new("memory region", limit));
        Self { table, tag: AtomicU32::new(1), changes: RwLock::new(()) }
    }
    fn table(&self) -> MutexGuard<'_, Table<Mr>> {
        // It is whole between any two of its operations.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers memory.
    ///
    /// # Safety
    /// As [`hca_core::Device::reg_mr`].
    pub(crate) unsafe fn register(
        &self,
        hca: &Hca,
        pd: PdHandle,
        init: &MrInit,
    ) -> Result<MrKeys, DeviceError> {
        check(init, 1 << hca.caps.log_max_mr_bytes)?;
        self.table().check_room()?;
        let addr = init.addr.addr().get();
        let mut is_writable = true;
        let (bus, within, mapping) = match hca.lent.find(addr, init.len) {
            Some(found) => (found.iova, found.piece, None),
            None => {
                // SAFETY: our caller's: the memory stays until the region is deregistered, which unmaps it, and nobody
                // relies on what it holds where the adapter may write.
                let map = |rights| unsafe { hca.function().dma_map(init.addr, init.len, rights) };
                let mapped = match map(DmaRights::ALL) {
                    // The program itself may only read it, perhaps.
                    Err(e) if !writes(init.access) => {
                        is_writable = false;
                        map(DmaRights::READ).map_err(|_| e)
                    }
                    mapped => mapped,
                };
                let mapping = mapped.map_err(memory)?;
                // What of the first and the last page is not mapped is beyond the key's range as well, and no server
                // that would want to map whole pages is given such memory.
                (mapping.iova().0, (0, u64::MAX), Some(mapping))
            }
        };
        let place = Place { iova: init.iova, len: init.len as u64, bus, within, is_writable };
        let key = match self.key(hca, pd, init.access, &place) {
            Ok(key) => key,
            Err(e) => {
                unmap(hca, mapping)?;
                return Err(e);
            }
        };
        let mut made = Some(Mr { key, place, mapping });
        let inserted = insert(&mut self.table(), &mut made);
        match made {
            // Somebody took the last place meanwhile.
            Some(made) => end(hca, made).and(inserted),
            None => inserted,
        }
    }

    fn key(&self, hca: &Hca, pd: PdHandle, access: Access, place: &Place) -> Result<Key, DeviceError> {
        if access.intersects(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT) {
            return Err(DeviceError::Unsupported { what: "a region for peers to FLUSH" });
        }
        if writes(access) && !place.is_writable {
            return Err(DeviceError::Unsupported { what: "a right to write to memory that is read-only" });
        }
        let pages = Pages::of(place.bus, place.len, place.iova, place.within)?;
        let tag = self.tag.fetch_add(1, Ordering::Relaxed) & 0xff;
        hca.pds.hold(pd, |pdn| {
            let context = context(access, (place.iova, place.len), pdn, tag, &pages);
            let (input, list) = pages.command(context);
            let out = hca.exec_with(&input, &list, &mut [])?;
            Ok(Key { pd, access, index: out.get(CreateMkeyOut::MKEY_INDEX), tag })
        })
    }

    /// Gives a region another key, of this domain and these rights, and takes the older one back.
    pub(crate) fn change(
        &self,
        hca: &Hca,
        mr: MrHandle,
        pd: PdHandle,
        access: Access,
    ) -> Result<MrKeys, DeviceError> {
        let _changes = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        let place = self.table().find(mr.index, mr.generation)?.place;
        let mut key = self.key(hca, pd, access, &place)?;
        let keys = {
            let mut table = self.table();
            let mut region = table.remove(mr.index, mr.generation)?;
            core::mem::swap(&mut region.key, &mut key);
            insert(&mut table, &mut Some(region))?
        };
        take_back(hca, &key).map(|()| keys)
    }
    /// The attributes of a region.
    pub(crate) fn query(&self, mr: MrHandle) -> Result<MrStatus, DeviceError> {
        let table = self.table();
        let Mr { key, place, .. } = table.find(mr.index, mr.generation)?;
        Ok(MrStatus { pd: key.pd, iova: place.iova, len: place.len, access: key.access })
    }

    /// Takes a region's keys back.
    pub(crate) fn deregister(&self, hca: &Hca, mr: MrHandle) -> Result<(), DeviceError> {
        let _changes = self.changes.read().unwrap_or_else(PoisonError::into_inner);
        let found = self.table().remove(mr.index, mr.generation)?;
        end(hca, found)
    }
}

/// Whether the adapter writes to memory by a key of these rights.
fn writes(access: Access) -> bool {
    access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

/// Puts a region into the table, unless there is no room.
fn insert(table: &mut Table<Mr>, mr: &mut Option<Mr>) -> Result<MrKeys, DeviceError> {
    table.check_room()?;
    let mr = mr.take().expect("a region is put in once");
    let key = mr.key.index << 8 | mr.key.tag;
    let (index, generation) = table.insert(mr)?;
    let handle = MrHandle { index, generation };
    Ok(MrKeys { handle, lkey: Lkey::new(key), rkey: Rkey::new(key) })
}

/// Takes a key back. An error: nobody knows whether the adapter still uses it.
fn take_back(hca: &Hca, key: &Key) -> Result<(), DeviceError> {
    let gone = hca.exec(&DestroyMkeyIn::new().with(DestroyMkeyIn::MKEY_INDEX, key.index));
    let mut kept_away = Ok(());
    if let Err(e) = gone {
        // (1) The key may still be there.
        tracing::error!(%e, "destroying a memory key failed");
        kept_away = hca.kill(Death::Holds);
    }
    hca.pds.release(key.pd);
    kept_away
}

/// Has the adapter let go of a region's memory. An error: nobody knows whether it has.
fn end(hca: &Hca, mr: Mr) -> Result<(), DeviceError> {
    let kept_away = take_back(hca, &mr.key);
    kept_away.and(unmap(hca, mr.mapping))
}

fn unmap(hca: &Hca, mapping: Option<DmaMapping>) -> Result<(), DeviceError> {
    let Some(mapping) = mapping else { return Ok(()) };
    hca.function().dma_unmap(mapping).or_else(|e| {
        tracing::error!(%e, "the program's memory stays mapped for the adapter");
        hca.kill(Death::Holds)
    })
}

fn check(init: &MrInit, max: u64) -> Result<(), DeviceError> {
    let len = init.len as u64;
    let fits =
        (init.addr.addr().get() as u64).checked_add(len).is_some() && init.iova.checked_add(len).is_some();
    if len == 0 || len > max || !fits {
        return Err(DeviceError::OutOfRange { what: "region length", value: len, min: 1, max });
    }
    Ok(())
}

/// The pages of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pages {
    first: u64,
    count: u64,
    log_size: u32,
}

impl Pages {
    /// The largest of which whole ones, within what is mapped, hold the region, and which its addresses allow.
    fn of(bus: u64, len: u64, iova: u64, (begin, end): (u64, u64)) -> Result<Self, DeviceError> {
        let pages = |log: u32| {
            let size = 1_u64 << log;
            let first = bus & !(size - 1);
            let last = bus.checked_add(len)?.checked_next_multiple_of(size)?;
            let fits = (bus ^ iova) & (size - 1) == 0 && first >= begin && last <= end;
            fits.then_some(Self { first, count: (last - first) >> log, log_size: log })
        };
        let best = (LOG_MIN_PAGE..=LOG_MAX_PAGE).rev().find_map(pages);
        let best = best.ok_or(DeviceError::Unsupported {
            what: "a region whose addresses in requests differ from the memory's in the lowest 12 bits",
        })?;
        if best.count > MAX_PAGES {
            let max = MAX_PAGES << best.log_size;
            return Err(DeviceError::OutOfRange {
                what: "length of a region of such alignment",
                value: len,
                min: 1,
                max,
            });
        }
        Ok(best)
    }

    /// Units of 16 bytes that the list takes.
    fn units(&self) -> u32 {
        self.count.div_ceil(2) as u32
    }
    fn command(&self, context: Mkc) -> (CreateMkeyIn, Vec<u8>) {
        let list: Vec<u64> = (0..self.count).map(|i| self.first + (i << self.log_size)).collect();
        let mut bytes = vec![0; self.units() as usize * 16];
        pas::write(&list, &mut bytes).expect("the units have room for all of them");
        let input = CreateMkeyIn::new()
            .with(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY, context)
            .with(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, self.units());
        (input, bytes)
    }
}

fn context(access: Access, (iova, len): (u64, u64), pdn: u32, tag: u32, pages: &Pages) -> Mkc {
    let may = |a| access.contains(a);
    let mut context = Mkc::new()
        .with(Mkc::LR, true)
        .with(Mkc::LW, may(Access::LOCAL_WRITE))
        .with(Mkc::RR, may(Access::REMOTE_READ))
        .with(Mkc::RW, may(Access::REMOTE_WRITE))
        .with(Mkc::A, may(Access::REMOTE_ATOMIC))
        .with(Mkc::EN_RINVAL, may(Access::REMOTE_INVALIDATE))
        .with(Mkc::QPN, Mkc::ANY_QPN)
        .with(Mkc::MKEY_7_0, tag)
        .with(Mkc::PD, pdn)
        .with(Mkc::START_ADDR, iova)
        .with(Mkc::LEN, len)
        .with(Mkc::TRANSLATIONS_OCTWORD_SIZE, pages.units())
        .with(Mkc::LOG_PAGE_SIZE, pages.log_size);
    context.set_access_mode(AccessMode::Mtt);
    context
}

/// A key of the driver's own over all of `buf`, for local writes, by the adapter's addresses: its index, and the key.
pub(crate) fn key_of(cmd: &CommandQueue, pdn: u32, buf: &DmaBuf) -> Result<(u32, u32), CmdError> {
    const TAG: u32 = 0;
    let (bus, len) = (buf.iova().0, buf.len() as u64);
    let pages = Pages::of(bus, len, bus, (bus, bus + len)).expect("an arena's memory is whole pages");
    let (input, list) = pages.command(context(Access::LOCAL_WRITE, (bus, len), pdn, TAG, &pages));
    let index = cmd.exec_with(&input, &list, &mut [])?.get(CreateMkeyOut::MKEY_INDEX);
    Ok((index, index << 8 | TAG))
}

#[cfg(test)]
mod tests {
    use super::*;

    const K4: u64 = 4096;
    const M2: u64 = 2 << 20;
    const G1: u64 = 1 << 30;

    #[test]
    fn the_largest_pages_are_taken_that_lie_within_and_whose_addresses_agree() {
        let of = |bus, len, iova, within| {
            let p = Pages::of(bus, len, iova, within).unwrap();
            (p.first, p.count, p.log_size)
        };
        // A piece of its own, by the program's addresses.
        assert_eq!(of(M2, 8 * M2, 0x7f00_0020_0000, (M2, 9 * M2)), (M2, 8, 21));
        assert_eq!(of(G1, 2 * G1, 0, (G1, 3 * G1)), (G1, 2, 30));
        // A part of it.
        assert_eq!(of(M2 + 5, 10, 5, (M2, 3 * M2)), (M2, 1, 21));
        assert_eq!(of(M2 - 5, 10, M2 - 5, (0, 4 * M2)), (0, 1, 23));
        // Pages reach as far as what is mapped, no further.
        assert_eq!(of(M2, K4, M2, (M2, M2 + K4)), (M2, 1, 12));
        assert_eq!(of(M2, 3 * K4, M2, (M2, M2 + 4 * K4)), (M2, 1, 14));
        // Foreign memory whose address for the adapter agrees with its own in all bits of a page of its length.
        assert_eq!(of(G1 + 5 * K4, G1, 0x7f00_0000_5000, (0, u64::MAX)), (G1, 2, 30));
        // Addresses of requests that agree in 12 bits only.
        assert_eq!(of(M2, M2, K4, (M2, 2 * M2)), (M2, 512, 12));
        assert_eq!(of(M2 + 0x10, M2 - 0x10, 0x7010, (M2, 2 * M2)), (M2, 512, 12));
    }

    #[test]
    fn regions_that_no_list_of_pages_can_hold_are_refused() {
        let refused = Pages::of(M2, K4, 1, (M2, 2 * M2)).unwrap_err().to_string();
        assert!(refused.contains("lowest 12 bits"), "{refused}");
        let refused = Pages::of(G1, 8 * G1, K4, (G1, 9 * G1)).unwrap_err().to_string();
        assert!(
            refused.contains("alignment of 8589934592") && refused.contains("1 to 4294967296"),
            "{refused}"
        );
    }

    #[test]
    fn a_list_of_an_odd_number_of_pages_fills_its_last_unit_with_zeros() {
        let pages = Pages { first: M2, count: 3, log_size: 21 };
        let (input, list) = pages.command(Mkc::new());
        assert_eq!(input.get(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE), 2);
        assert_eq!(pas::iter(&list).collect::<Vec<_>>(), [M2, 2 * M2, 3 * M2, 0]);
    }
}
