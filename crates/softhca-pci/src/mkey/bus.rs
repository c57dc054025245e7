//! Keys of the bus's own addresses (access mode PA): a queue pair names any mapped client memory by such a key, at the
//! bus address of the mapping. Drivers in kernels have one such key for each protection domain. The keys give peers no
//! access, regardless of the rights that they were created with.
//!
//! The adapter knows memory regions, and no bus. So when a request first names a place in a mapped range by such a key,
//! the function registers the range as a region of the adapter, once for each protection domain, and replaces the key
//! in the request by the keys of the regions that hold the place. A place outside of all ranges keeps the key that it
//! was named by, which allows no access.

use core::ops::RangeBounds;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use hca_core::{Access, Device, Lkey, MrHandle, MrInit, PdHandle, Sge};
use softhca::SoftHca;

use super as mkey;
use crate::guest::{Guest, Window};
use crate::objects::{Numbered, Objects, gone};

/// Regions that stand for ranges, in all. A range that is beyond is not reached.
pub(crate) const MAX_RANGES: usize = 16_384;

/// What a key lets its users do, and whose it is.
type Bank = (PdHandle, bool);

/// What regions are made of, and of which memory.
type By<'a> = (&'a SoftHca, &'a Guest);

/// A key of the bus's addresses.
#[derive(Debug)]
struct BusKey {
    tag: u8,
    bank: Bank,
}

/// A range that the client has mapped, as a region.
#[derive(Debug)]
struct Range {
    window: Window,
    region: MrHandle,
    lkey: Lkey,
    write: bool,
}

/// The keys of the bus's addresses, and the regions behind them.
#[derive(Debug, Default)]
pub(crate) struct Buses {
    keys: Numbered<BusKey>,
    /// How many keys name each bank.
    named: HashMap<Bank, usize>,
    banks: HashMap<Bank, BTreeMap<u64, Range>>,
    pub(crate) ranges: usize,
    /// Ranges that were looked at as some went.
    #[cfg(test)]
    pub(crate) looked_at: usize,
}

/// What places in requests are looked up with.
pub(crate) struct Names<'a> {
    pub(crate) hca: &'a Arc<SoftHca>,
    pub(crate) guest: &'a Guest,
    pub(crate) buses: &'a mut Buses,
    /// Where requests may change keys.
    pub(crate) keys: Option<mkey::Keys<'a>>,
}

impl Names<'_> {
    /// Puts into a list of places, of which there are `len`, those of regions where they are named by a key of the
    /// bus's.
    pub(crate) fn translate(&mut self, pd: PdHandle, list: &mut [Sge], len: &mut usize) {
        self.buses.translate((self.hca, self.guest), pd, list, len);
    }
}

impl Buses {
    /// How many keys and kinds of keys there are.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.keys.len(), self.banks.len())
    }

    fn translate(&mut self, by: By<'_>, pd: PdHandle, list: &mut [Sge], len: &mut usize) {
        if self.keys.is_empty() || !list[..*len].iter().any(|place| self.bank(pd, place.lkey).is_some()) {
            return;
        }
        let named: Vec<Sge> = list[..*len].to_vec();
        *len = 0;
        for (i, place) in named.iter().enumerate() {
            // Where pieces would take the room of places, these are named as they were, and refused.
            let room = list.len() - (named.len() - i - 1);
            let pieces = match self.bank(pd, place.lkey) {
                Some(bank) => self.pieces(by, bank, *place, room - *len),
                None => None,
            };
            for piece in pieces.unwrap_or_else(|| vec![*place]) {
                list[*len] = piece;
                *len += 1;
            }
        }
    }

    /// Where `len` bytes lie that begin with a place, if a queue pair of this protection domain may write to this
    /// address of the bus's.
    pub(crate) fn place(&self, pd: PdHandle, place: &Sge, len: usize) -> Option<(&Window, usize)> {
        let ranges = self.bank(pd, place.lkey).and_then(|bank| self.banks.get(&bank))?;
        let (at, range) = ranges.range(..=place.addr).next_back()?;
        let within = (place.addr - at) as usize;
        let fits = within <= range.window.len() && len <= range.window.len() - within;
        (range.write && fits).then_some((&range.window, within))
    }

    /// Whether somebody of this protection domain may write by a key, if it is one of the bus's that the domain has.
    pub(crate) fn right(&self, pd: PdHandle, lkey: u32) -> Option<bool> {
        self.bank(pd, Lkey::new(lkey)).map(|(_, may_write)| may_write)
    }

    /// What a key lets this protection domain do, if it is one of the bus's that the domain has.
    fn bank(&self, pd: PdHandle, lkey: Lkey) -> Option<Bank> {
        let key = self.keys.get(&(lkey.raw() >> 8))?;
        (u32::from(key.tag) == lkey.raw() & 0xff && key.bank.0 == pd).then_some(key.bank)
    }

    /// What a place is in terms of regions, of which it has one at least and `most` at most; `None` where not all of it
    /// is mapped.
    fn pieces(&mut self, by: By<'_>, bank: Bank, place: Sge, most: usize) -> Option<Vec<Sge>> {
        let (mut addr, mut left, mut pieces) = (place.addr, u64::from(place.len), Vec::new());
        while left > 0 {
            let (at, range) = self.range(by, bank, addr)?;
            let len = left.min(at + range.window.len() as u64 - addr);
            if pieces.len() == most {
                return None;
            }
            // No longer than the place, whose length is of 32 bits.
            pieces.push(Sge { addr, len: len as u32, lkey: range.lkey });
            (addr, left) = (addr.saturating_add(len), left - len);
        }
        if pieces.is_empty() { None } else { Some(pieces) }
    }

    /// The range that holds an address, and where it begins.
    fn range(&mut self, by: By<'_>, bank: Bank, addr: u64) -> Option<(u64, &Range)> {
        let (iova, len) = by.1.range_at(addr)?;
        if self.banks.get(&bank).is_none_or(|ranges| !ranges.contains_key(&iova)) {
            let range = self.new_range(by, bank, (iova, len))?;
            self.ranges += 1;
            self.banks.entry(bank).or_default().insert(iova, range);
        }
        let found = self.banks.get(&bank)?.get(&iova)?;
        Some((iova, found))
    }

    fn new_range(&self, (hca, guest): By<'_>, bank: Bank, run: (u64, u64)) -> Option<Range> {
        let (pd, may_write) = bank;
        if self.ranges >= MAX_RANGES {
            tracing::warn!("too many ranges in keys of bus addresses");
            return None;
        }
        // What the client lets nobody read is reached by nobody.
        let (window, write) = match guest.window(&[run], may_write) {
            Ok(window) => (window, may_write),
            Err(_) => (guest.window(&[run], false).ok()?, false),
        };
        let access = if write { Access::LOCAL_WRITE } else { Access::empty() };
        let init = MrInit { addr: window.addr(), len: window.len(), iova: run.0, access };
        let (region, index) = mkey::register(hca, pd, &init, 0).ok()?;
        Some(Range { window, region, lkey: Lkey::new(index << 8), write })
    }

    /// Takes the regions of these banks back whose ranges begin here.
    fn forget(&mut self, hca: &SoftHca, of: impl Fn(&Bank) -> bool, here: impl RangeBounds<u64> + Clone) {
        for (_, ranges) in self.banks.iter_mut().filter(|(bank, _)| of(bank)) {
            for (_, range) in ranges.extract_if(here.clone(), |_, _| true) {
                #[cfg(test)]
                {
                    self.looked_at += 1;
                }
                self.ranges -= 1;
                gone("region of the bus's", hca.dereg_mr(range.region));
            }
        }
        self.banks.retain(|_, ranges| !ranges.is_empty());
    }
}

impl Objects {
    /// A key of the bus's addresses is made.
    pub(crate) fn add_bus_key(&mut self, index: u32, tag: u8, bank: Bank) {
        self.buses.keys.insert(index, BusKey { tag, bank });
        *self.buses.named.entry(bank).or_default() += 1;
    }

    /// Such a key has gone; another one may have had its number.
    pub(crate) fn remove_bus_key(&mut self, index: u32) {
        let Some(key) = self.buses.keys.remove(&index) else { return };
        let named = self.buses.named.entry(key.bank).or_default();
        *named = named.saturating_sub(1);
        if *named == 0 {
            self.buses.named.remove(&key.bank);
            self.buses.forget(&self.hca, |bank| *bank == key.bank, ..);
        }
    }

    /// All of them have gone.
    pub(crate) fn remove_bus_keys(&mut self) {
        self.buses.keys.clear();
        self.buses.named.clear();
        self.buses.forget(&self.hca, |_| true, ..);
    }

    /// The ranges go that begin here, each as a whole. When it returns, no such key reaches them any more.
    pub(crate) fn unmap_range(&mut self, iova: u64, size: u64) {
        self.buses.forget(&self.hca, |_| true, iova..iova.saturating_add(size));
    }
}
