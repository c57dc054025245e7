//! The default adapter of nodes.

use core::sync::atomic::AtomicU64;
use std::sync::Arc;

use hca_core::{Device, DeviceError};
use hca_fabric::Fabric;
use softhca::{Clock, Limits, Options, Progress, SoftHca};

/// Opens the software adapter, turned by the simulation, on virtual time.
pub(crate) fn open(
    fabric: Box<dyn Fabric>,
    clock: Arc<AtomicU64>,
    seed: u64,
) -> Result<Arc<dyn Device>, DeviceError> {
    open_with(fabric, clock, seed, Limits::default())
}

/// The same with other limits.
pub(crate) fn open_with(
    fabric: Box<dyn Fabric>,
    clock: Arc<AtomicU64>,
    seed: u64,
    limits: Limits,
) -> Result<Arc<dyn Device>, DeviceError> {
    let options = Options {
        progress: Progress::Inline,
        // Acknowledgements of half of the adapters wait for answers, as where a thread stands behind the program.
        lazy_acks: seed.is_multiple_of(2),
        seed: Some(seed),
        clock: Clock::Virtual(clock),
        limits,
        ..Options::default()
    };
    let device: Arc<dyn Device> = SoftHca::open(fabric, options)?;
    Ok(device)
}
