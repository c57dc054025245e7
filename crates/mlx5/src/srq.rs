//! Shared receive queues.

use std::sync::Arc;

use hca_core::{DeviceError, PdHandle, RecvPort, SrqHandle, SrqInit};

use crate::caps::Caps;
use crate::hca::Hca;

/// All shared receive queues.
pub(crate) struct Srqs;

impl Srqs {
    pub(crate) fn new(_caps: &Caps) -> Self {
        Self
    }
    pub(crate) fn create(
        &self,
        _hca: &Arc<Hca>,
        _pd: PdHandle,
        _init: &SrqInit,
    ) -> Result<(SrqHandle, Box<dyn RecvPort>), DeviceError> {
        Err(DeviceError::Unsupported { what: "shared receive queues" })
    }
    pub(crate) fn set_limit(&self, _hca: &Arc<Hca>, _srq: SrqHandle, _limit: u32) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported { what: "shared receive queues" })
    }
    pub(crate) fn destroy(&self, _hca: &Arc<Hca>, _srq: SrqHandle) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported { what: "shared receive queues" })
    }
    /// The shared receive queue of this number, for events.
    pub(crate) fn by_number(&self, _srqn: u32) -> Option<SrqHandle> {
        None
    }
}
