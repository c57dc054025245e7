//! Address handles.

use std::sync::Arc;

use hca_core::{AddressVector, AhHandle, DeviceError, PdHandle};

use crate::caps::Caps;
use crate::hca::Hca;

/// All address handles.
pub(crate) struct Ahs;

/// Address handles are the driver's own, so this is no limit of the adapter.
pub(crate) const LIMIT: u32 = 1 << 20;

impl Ahs {
    pub(crate) fn new(_caps: &Caps) -> Self {
        Self
    }
    pub(crate) fn create(
        &self,
        _hca: &Arc<Hca>,
        _pd: PdHandle,
        _av: &AddressVector,
    ) -> Result<AhHandle, DeviceError> {
        Err(DeviceError::Unsupported { what: "address handles" })
    }
    pub(crate) fn destroy(&self, _hca: &Arc<Hca>, _ah: AhHandle) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported { what: "address handles" })
    }
}
