//! Address handles: where datagrams go.

use std::fmt;
use std::sync::Arc;

use hca_core::{AddressVector, AhHandle, DeviceError, Qkey, Qpn, UdDest};

use crate::pd::PdCore;

/// The path to a port. Cheap to clone; a request in flight holds one, and the last drop destroys it.
#[derive(Clone)]
pub struct AddressHandle {
    inner: Arc<Inner>,
}

struct Inner {
    pd: Arc<PdCore>,
    handle: AhHandle,
    av: AddressVector,
}

impl AddressHandle {
    pub(crate) fn create(pd: &Arc<PdCore>, av: &AddressVector) -> Result<Self, DeviceError> {
        let handle = pd.ctx.device.create_ah(pd.handle, av)?;
        Ok(Self { inner: Arc::new(Inner { pd: Arc::clone(pd), handle, av: *av }) })
    }

    /// The path that the handle stands for.
    pub fn av(&self) -> &AddressVector {
        &self.inner.av
    }
    /// The handle that the device knows.
    pub fn handle(&self) -> AhHandle {
        self.inner.handle
    }
    /// A queue pair at the end of the path, with the Q_Key that it takes.
    pub fn peer(&self, qpn: Qpn, qkey: Qkey) -> UdPeer {
        UdPeer { ah: self.clone(), qpn, qkey }
    }

    pub(crate) fn is_of(&self, pd: &Arc<PdCore>) -> bool {
        Arc::ptr_eq(&self.inner.pd, pd)
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AddressHandle").field(&self.inner.av.dgid).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.pd.ctx.forked()
            && let Err(error) = self.pd.ctx.device.destroy_ah(self.handle)
        {
            tracing::error!(ah = %self.handle, %error, "the device keeps the address handle");
        }
    }
}

/// The destination of a datagram.
#[derive(Clone, Debug)]
pub struct UdPeer {
    /// The path.
    pub ah: AddressHandle,
    /// The queue pair at its end.
    pub qpn: Qpn,
    /// The Q_Key to send; one with bit 31 set sends the sender's own.
    pub qkey: Qkey,
}

impl UdPeer {
    pub(crate) fn dest(&self) -> UdDest {
        UdDest { ah: self.ah.handle(), qpn: self.qpn, qkey: self.qkey }
    }
}
