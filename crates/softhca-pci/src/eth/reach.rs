//! Client memory that data segments of Ethernet queues name by keys.

use hca_core::PdHandle;
use hca_prm::{CqeSyndrome, DataSeg};

use crate::guest::Guest;
use crate::mkey::Mkey;
use crate::mkey::bus::Buses;
use crate::objects::{Numbered, Objects};

/// The keys of a function, for one that copies.
pub(super) struct Reach<'a> {
    guest: &'a Guest,
    mkeys: &'a Numbered<Mkey>,
    buses: &'a Buses,
}

impl<'a> Reach<'a> {
    pub(super) fn new(guest: &'a Guest, objects: &'a Objects) -> Self {
        Self { guest, mkeys: &objects.mkeys, buses: &objects.buses }
    }

    /// Copies from a place that a key names to a queue of this protection domain.
    pub(super) fn read(
        &self,
        pd: Option<PdHandle>,
        place: &DataSeg,
        into: &mut [u8],
    ) -> Result<(), CqeSyndrome> {
        let wrong = CqeSyndrome::LocalProtErr;
        let (pd, lkey, addr) = (pd.ok_or(wrong)?, place.get(DataSeg::LKEY), place.get(DataSeg::ADDR));
        if self.buses.right(pd, lkey).is_some() {
            return self.guest.read(addr, into).map_err(|_| wrong);
        }
        let key = self.mkeys.get(&(lkey >> 8)).ok_or(wrong)?;
        if key.load(pd, lkey, addr, into) { Ok(()) } else { Err(wrong) }
    }

    /// Copies to a place that a key names to a queue of this protection domain.
    pub(super) fn write(
        &self,
        pd: Option<PdHandle>,
        place: &DataSeg,
        bytes: &[u8],
    ) -> Result<(), CqeSyndrome> {
        let wrong = CqeSyndrome::LocalProtErr;
        let (pd, lkey, addr) = (pd.ok_or(wrong)?, place.get(DataSeg::LKEY), place.get(DataSeg::ADDR));
        match self.buses.right(pd, lkey) {
            Some(true) => return self.guest.write(addr, bytes).map_err(|_| wrong),
            Some(false) => return Err(wrong),
            None => {}
        }
        let key = self.mkeys.get(&(lkey >> 8)).ok_or(wrong)?;
        if key.store(pd, lkey, addr, bytes) { Ok(()) } else { Err(wrong) }
    }
}
