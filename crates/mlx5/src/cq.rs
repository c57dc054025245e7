//! Completion queues.

use std::sync::Arc;

use hca_core::{CqHandle, CqPort, DeviceError};

use crate::caps::Caps;
use crate::hca::Hca;

/// All completion queues.
pub(crate) struct Cqs;

impl Cqs {
    pub(crate) fn new(_caps: &Caps) -> Self {
        Self
    }
    pub(crate) fn create(
        &self,
        _hca: &Arc<Hca>,
        _depth: u32,
    ) -> Result<(CqHandle, Box<dyn CqPort>), DeviceError> {
        Err(DeviceError::Unsupported { what: "completion queues" })
    }
    pub(crate) fn destroy(&self, _hca: &Arc<Hca>, _cq: CqHandle) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported { what: "completion queues" })
    }
    /// The adapter has an event of the completion queue of this number: it was armed, and something came.
    pub(crate) fn completed(&self, _cqn: u32) {}
    /// The completion queue of this number is in error: it has overrun, or its memory can't be reached.
    pub(crate) fn failed(&self, _cqn: u32) -> Option<CqHandle> {
        None
    }
    /// The adapter is dead: wakes all who wait.
    pub(crate) fn wake_all(&self) {}
}
