//! Protection domains of the adapter.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hca_core::{DeviceError, PdHandle};
use hca_prm::command::resource::{AllocPdIn, AllocPdOut, DeallocPdIn};

use crate::hca::Hca;
use crate::table::Table;

struct Pd {
    pdn: u32,
    users: u64,
}

/// All protection domains.
pub(crate) struct Pds(Mutex<Table<Pd>>);

impl Pds {
    pub(crate) fn new(limit: u32) -> Self {
        Self(Mutex::new(Table::new("protection domain", limit)))
    }
    fn table(&self) -> MutexGuard<'_, Table<Pd>> {
        // It is whole between any two of its operations.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.table().len() > 0
    }
    pub(crate) fn create(&self, hca: &Hca) -> Result<PdHandle, DeviceError> {
        self.table().check_room()?;
        let pdn = hca.exec(&AllocPdIn::new())?.get(AllocPdOut::PD);
        let inserted = self.table().insert(Pd { pdn, users: 0 });
        match inserted {
            Ok((index, generation)) => Ok(PdHandle { index, generation }),
            Err(e) => {
                hca.exec(&DeallocPdIn::new().with(DeallocPdIn::PD, pdn))?;
                Err(e)
            }
        }
    }
    pub(crate) fn destroy(&self, hca: &Hca, pd: PdHandle) -> Result<(), DeviceError> {
        let mut table = self.table();
        let users = table.find(pd.index, pd.generation)?.users;
        DeviceError::unless_unused("protection domain", users)?;
        let found = table.remove(pd.index, pd.generation)?;
        drop(table);
        // A dead adapter has none any more.
        if hca.health.is_dead() {
            return Ok(());
        }
        hca.exec(&DeallocPdIn::new().with(DeallocPdIn::PD, found.pdn))?;
        Ok(())
    }

    /// The number on the adapter, for an object that will belong to it: [`release`](Self::release) takes that back.
    fn acquire(&self, pd: PdHandle) -> Result<u32, DeviceError> {
        let mut table = self.table();
        let found = table.find_mut(pd.index, pd.generation)?;
        found.users += 1;
        Ok(found.pdn)
    }
    /// Makes an object that belongs to it, by its number on the adapter.
    pub(crate) fn hold<T>(
        &self,
        pd: PdHandle,
        make: impl FnOnce(u32) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        make(self.acquire(pd)?).inspect_err(|_| self.release(pd))
    }
    /// An object of it is gone.
    pub(crate) fn release(&self, pd: PdHandle) {
        if let Ok(found) = self.table().find_mut(pd.index, pd.generation) {
            found.users -= 1;
        }
    }
}
