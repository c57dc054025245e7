//! The adapter that nodes have unless told otherwise.

use core::sync::atomic::AtomicU64;
use std::sync::Arc;

use hca_core::{Device, DeviceError};
use hca_fabric::Fabric;

pub(crate) fn open(
    _fabric: Box<dyn Fabric>,
    _clock: Arc<AtomicU64>,
    _seed: u64,
) -> Result<Arc<dyn Device>, DeviceError> {
    Err(DeviceError::Unsupported { what: "a default adapter; give one by SimBuilder::opener" })
}
