//! Keys of the bus's own addresses (access mode PA): a queue pair names by them whatever its client has mapped, at the
//! addresses at which it is mapped. Drivers in kernels have one a protection domain. Peers can do nothing by them, whatever
//! rights they were made with.
//!
//! The adapter knows regions and no bus. So each range that the client has mapped is a region of it, for each protection
//! domain that has such a key; where a request names a place by the key, the keys of the regions that hold it are put
//! there. What lies in no range stays as it is named, by a key that allows nothing.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use hca_core::{Access, Device, Lkey, MrHandle, MrInit, PdHandle, Sge};
use hca_prm::CmdStatus;

use super::{Objects, gone};
use crate::guest::{Guest, Window};

/// Regions that stand for ranges, in all: clients that have such keys map few ranges.
pub(crate) const MAX_RANGES: usize = 4096;

/// What a key lets its users do, and whose it is.
type Bank = (PdHandle, bool);

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
    keys: HashMap<u32, BusKey>,
    banks: HashMap<Bank, BTreeMap<u64, Range>>,
    pub(crate) ranges: usize,
}

impl Buses {
    /// How many keys and kinds of keys there are.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.keys.len(), self.banks.len())
    }

    /// Puts into a list of places, of which there are `len`, those of regions where they are named by a key of the bus's.
    pub(crate) fn translate(&self, pd: PdHandle, list: &mut [Sge], len: &mut usize) {
        if self.keys.is_empty() || !list[..*len].iter().any(|place| self.bank(pd, place.lkey).is_some()) {
            return;
        }
        let named: Vec<Sge> = list[..*len].to_vec();
        *len = 0;
        for (i, place) in named.iter().enumerate() {
            // Where pieces would take the room of places, these are named as they were, and refused.
            let room = list.len() - (named.len() - i - 1);
            let before = *len;
            for piece in self.pieces(pd, *place) {
                if *len == room {
                    *len = before;
                    list[*len] = *place;
                    *len += 1;
                    break;
                }
                list[*len] = piece;
                *len += 1;
            }
        }
    }

    /// Copies bytes to an address of the bus's, if a queue pair of this protection domain may write there.
    pub(crate) fn store(&self, pd: PdHandle, place: &Sge, bytes: &[u8]) {
        let Some(ranges) = self.bank(pd, place.lkey) else { return };
        let Some((at, range)) = ranges.range(..=place.addr).next_back() else { return };
        let within = (place.addr - at) as usize;
        if range.write && within <= range.window.len() && bytes.len() <= range.window.len() - within {
            range.window.store(within, bytes);
        }
    }

    /// The ranges of a key, if it is one of the bus's that this protection domain has.
    fn bank(&self, pd: PdHandle, lkey: Lkey) -> Option<&BTreeMap<u64, Range>> {
        let key = self.keys.get(&(lkey.raw() >> 8))?;
        let own = u32::from(key.tag) == lkey.raw() & 0xff && key.bank.0 == pd;
        self.banks.get(&key.bank).filter(|_| own)
    }

    /// What a place is in terms of regions; itself where it is not of the bus's, or not all of it is mapped.
    fn pieces(&self, pd: PdHandle, place: Sge) -> Vec<Sge> {
        let Some(ranges) = self.bank(pd, place.lkey) else { return vec![place] };
        let (mut addr, mut left, mut pieces) = (place.addr, u64::from(place.len), Vec::new());
        while left > 0 {
            let found = ranges.range(..=addr).next_back();
            let Some((at, range)) = found.filter(|(at, r)| addr - **at < r.window.len() as u64) else {
                return vec![place];
            };
            let len = left.min(at + range.window.len() as u64 - addr);
            // No longer than the place, whose length is of 32 bits.
            pieces.push(Sge { addr, len: len as u32, lkey: range.lkey });
            (addr, left) = (addr.saturating_add(len), left - len);
        }
        if pieces.is_empty() { vec![place] } else { pieces }
    }
}

impl Objects {
    /// A key of the bus's addresses is made.
    pub(crate) fn add_bus_key(
        &mut self,
        guest: &Guest,
        index: u32,
        tag: u8,
        bank: Bank,
    ) -> Result<(), CmdStatus> {
        self.buses.keys.insert(index, BusKey { tag, bank });
        if let Entry::Vacant(new) = self.buses.banks.entry(bank) {
            new.insert(BTreeMap::new());
            let mapped: Vec<(u64, u64)> = guest.ranges().collect();
            for (iova, len) in mapped {
                if let Err(e) = self.add_range(guest, bank, iova, len) {
                    self.remove_bus_key(index);
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Such a key has gone; another one may have had its number.
    pub(crate) fn remove_bus_key(&mut self, index: u32) {
        let Some(key) = self.buses.keys.remove(&index) else { return };
        if !self.buses.keys.values().any(|other| other.bank == key.bank) {
            for range in self.buses.banks.remove(&key.bank).unwrap_or_default().into_values() {
                self.buses.ranges -= 1;
                gone("region of the bus's", self.hca.dereg_mr(range.region));
            }
        }
    }

    /// All of them have gone.
    pub(crate) fn remove_bus_keys(&mut self) {
        let all: Vec<u32> = self.buses.keys.keys().copied().collect();
        all.into_iter().for_each(|index| self.remove_bus_key(index));
    }

    /// The client has mapped a range, which all such keys reach from now on.
    pub(crate) fn map_range(&mut self, guest: &Guest, iova: u64, len: u64) {
        let banks: Vec<Bank> = self.buses.banks.keys().copied().collect();
        for bank in banks {
            if self.add_range(guest, bank, iova, len).is_err() {
                tracing::warn!(
                    iova,
                    len,
                    "keys of the bus's addresses do not reach a range: there are too many"
                );
            }
        }
    }

    /// A range goes. When it returns, no such key reaches it any more.
    pub(crate) fn unmap_range(&mut self, iova: u64, size: u64) {
        for ranges in self.buses.banks.values_mut() {
            for (_, range) in ranges.extract_if(.., |_, range| range.window.touches(iova, size)) {
                self.buses.ranges -= 1;
                gone("region of the bus's", self.hca.dereg_mr(range.region));
            }
        }
    }

    fn add_range(&mut self, guest: &Guest, bank: Bank, iova: u64, len: u64) -> Result<(), CmdStatus> {
        let (pd, may_write) = bank;
        let runs = [(iova, len)];
        // What the client lets nobody read is reached by nobody.
        let (window, write) = match guest.window(&runs, may_write) {
            Ok(window) => (window, may_write),
            Err(_) => match guest.window(&runs, false) {
                Ok(window) => (window, false),
                Err(_) => return Ok(()),
            },
        };
        if self.buses.ranges == MAX_RANGES {
            return Err(CmdStatus::NoRes);
        }
        let access = if write { Access::LOCAL_WRITE } else { Access::empty() };
        let init = MrInit { addr: window.addr(), len: window.len(), iova, access };
        let (region, index) = self.register(pd, &init, 0)?;
        self.buses.ranges += 1;
        let range = Range { window, region, lkey: Lkey::new(index << 8), write };
        let ranges = self.buses.banks.get_mut(&bank).expect("a bank whose key is there");
        if let Some(before) = ranges.insert(iova, range) {
            self.buses.ranges -= 1;
            gone("region of the bus's", self.hca.dereg_mr(before.region));
        }
        Ok(())
    }
}
