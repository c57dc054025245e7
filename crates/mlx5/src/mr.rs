//! Regions: memory keys over what the adapter can reach.
#![allow(unsafe_code)] // mapping the program's own memory is its promise, handed on

use hca_core::{DeviceError, MrHandle, MrInit, MrKeys, PdHandle};

use crate::hca::Hca;

/// Registers memory.
///
/// # Safety
/// As [`hca_core::Device::reg_mr`].
pub(crate) unsafe fn register(_hca: &Hca, _pd: PdHandle, _init: &MrInit) -> Result<MrKeys, DeviceError> {
    Err(DeviceError::Unsupported { what: "registering memory" })
}

/// Takes a region's keys back.
pub(crate) fn deregister(_hca: &Hca, mr: MrHandle) -> Result<(), DeviceError> {
    Err(DeviceError::UnknownHandle { what: "memory region", handle: mr.index })
}

/// Bytes of the longest region.
pub(crate) const MAX_BYTES: u64 = 1 << 40;

/// Whether memory of the program's own can be registered: a server has no way to it.
pub(crate) fn takes_foreign(hca: &Hca) -> bool {
    hca.function().name().starts_with("vfio://")
}
