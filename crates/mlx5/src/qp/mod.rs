//! Queue pairs.

use std::sync::Arc;

use hca_core::{DeviceError, PdHandle, QpAttr, QpHandle, QpInit, QpPorts, QpStatus};

use crate::caps::Caps;
use crate::hca::Hca;

/// All queue pairs.
pub(crate) struct Qps;

impl Qps {
    pub(crate) fn new(_caps: &Caps) -> Self {
        Self
    }
    pub(crate) fn create(
        &self,
        _hca: &Arc<Hca>,
        _pd: PdHandle,
        _init: &QpInit,
    ) -> Result<QpPorts, DeviceError> {
        Err(DeviceError::Unsupported { what: "queue pairs" })
    }
    pub(crate) fn modify(&self, _hca: &Arc<Hca>, _qp: QpHandle, _attr: &QpAttr) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported { what: "queue pairs" })
    }
    pub(crate) fn query(&self, _hca: &Arc<Hca>, _qp: QpHandle) -> Result<QpStatus, DeviceError> {
        Err(DeviceError::Unsupported { what: "queue pairs" })
    }
    pub(crate) fn destroy(&self, _hca: &Arc<Hca>, _qp: QpHandle) -> Result<Vec<u64>, DeviceError> {
        Err(DeviceError::Unsupported { what: "queue pairs" })
    }
    /// The queue pair of this number, for events.
    pub(crate) fn by_number(&self, _qpn: u32) -> Option<QpHandle> {
        None
    }
}
