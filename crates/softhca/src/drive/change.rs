//! Changes that wait, without the engine, for peers within an access that has to end first.

use core::time::Duration;

use hca_core::{DeviceError, Instant};
use hca_fabric::{Revocation, TakeBack};

use crate::drive::shared::Shared;
use crate::engine::Engine;
use crate::engine::change::Change;
/// Looks without a sleep between them at a take-back.
const LOOKS: u32 = 32;
/// The sleep between looks behind these, which gets longer.
const NAPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];

impl Shared {
    /// Makes a change, and waits without the engine for peers that are within what it takes back.
    pub(crate) fn change<T>(
        &self,
        mut change: impl FnMut(&mut Engine, Instant) -> Result<Change<T>, DeviceError>,
    ) -> Result<T, DeviceError> {
        loop {
            let now = self.time.now();
            match self.control(|e| change(e, now))? {
                Change::Made(made, None) => return Ok(made),
                Change::Made(made, Some(id)) => {
                    self.taken_back(TakeBack::UnderWay(id));
                    return Ok(made);
                }
                Change::Behind(id) => _ = self.taken_back(TakeBack::UnderWay(id)),
            }
        }
    }

    /// Waits until something is taken back, and lets others have the engine meanwhile.
    pub(crate) fn taken_back(&self, begun: TakeBack) -> Revocation {
        let id = match begun {
            TakeBack::Done(done) => return done,
            TakeBack::UnderWay(id) => id,
        };
        let (mut looks, mut nap) = (0, NAPS[0]);
        loop {
            looks += 1;
            if looks < LOOKS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(nap);
                nap = (nap * 2).min(NAPS[1]);
            }
            if let Some(done) = self.control(|e| e.continue_take_back(id)) {
                return done;
            }
        }
    }
}
