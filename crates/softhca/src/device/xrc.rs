//! XRC, as programs create domains, queues and targets.

use hca_core::{
    CqHandle, DeviceError, ExtendedConnections, PdHandle, QpHandle, Qpn, SrqHandle, SrqInit, Srqn,
    XrcSrqPort, XrcdHandle,
};

use crate::device::SoftHca;
use crate::objects::xrc::{Xrcd, number_of};

impl SoftHca {
    /// The number of a shared receive queue, which no other one of the adapter has at the same time. By the number of a
    /// queue of an XRC domain, requests of peers name it. `None`: the queue lies beyond those that have a number.
    pub fn srq_number(srq: SrqHandle) -> Option<Srqn> {
        number_of(srq)
    }
}

impl ExtendedConnections for SoftHca {
    fn alloc_xrcd(&self) -> Result<XrcdHandle, DeviceError> {
        self.control(|e| {
            let made = Xrcd { users: 0, targets: Vec::new() };
            let (index, generation) = e.core.tables.xrcds.insert(made)?;
            Ok(XrcdHandle { index, generation })
        })
    }
    fn dealloc_xrcd(&self, xrcd: XrcdHandle) -> Result<(), DeviceError> {
        self.control(|e| {
            DeviceError::unless_unused("XRC domain", e.xrcd(xrcd)?.users)?;
            e.core.tables.xrcds.remove(xrcd.index, xrcd.generation);
            Ok(())
        })
    }
    fn create_xrc_srq(
        &self,
        pd: PdHandle,
        xrcd: XrcdHandle,
        cq: CqHandle,
        init: &SrqInit,
    ) -> Result<XrcSrqPort, DeviceError> {
        let mut number = Srqn::default();
        let (handle, recv) = self.create_srq_as(pd, init, |e, srq| {
            number = e.begin_xrc_srq(srq, xrcd, cq)?;
            Ok(())
        })?;
        Ok(XrcSrqPort { handle, number, recv })
    }
    fn create_xrc_target(&self, xrcd: XrcdHandle) -> Result<(QpHandle, Qpn), DeviceError> {
        self.control(|e| e.create_xrc_target(xrcd))
    }
}
