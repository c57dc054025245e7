//! Address handles: where datagrams go.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use hca_core::{AddressVector, AhHandle, DeviceError, Qkey, Qpn, UdDest};

use crate::pd::PdCore;
use crate::{Message, Pd, Wc};

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

    /// The address vector of the handle.
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

/// Address handles for the paths of a program's datagrams, each made once: a server answers without a call of the device
/// for each message.
///
/// ```
/// # use hca_verbs::*;
/// # fn example(pd: &Pd, cq: &mut CompletionQueue, qp: &mut QueuePair<Ud>, qkey: Qkey) -> Result<(), Box<dyn std::error::Error>> {
/// let (mut ahs, mut wcs) = (AhCache::new(pd, 1024), Completions::default());
/// for wc in cq.wait(&mut wcs, None)? {
///     if let Some(peer) = ahs.reply_to(&wc, qkey) {
///         qp.send_to(Inline(b"heard"), &peer?)?;
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct AhCache {
    pd: Pd,
    max: usize,
    paths: HashMap<AddressVector, Cached>,
    /// Counts uses, to find the path that was not used for longest.
    uses: u64,
}

#[derive(Debug)]
struct Cached {
    ah: AddressHandle,
    last_use: u64,
}

impl AhCache {
    /// A cache of at most `max` paths (at least one); the path that was not used for longest makes room.
    pub fn new(pd: &Pd, max: usize) -> Self {
        Self { pd: pd.clone(), max: max.max(1), paths: HashMap::new(), uses: 0 }
    }

    /// The address handle of a path.
    ///
    /// # Errors
    /// The device's limits, or no path.
    pub fn ah(&mut self, av: &AddressVector) -> Result<&AddressHandle, DeviceError> {
        self.uses += 1;
        if !self.paths.contains_key(av) {
            let ah = self.pd.create_ah(av)?;
            if self.paths.len() >= self.max {
                let oldest = self.paths.iter().min_by_key(|(_, cached)| cached.last_use).map(|(av, _)| *av);
                oldest.map(|av| self.paths.remove(&av));
            }
            self.paths.insert(*av, Cached { ah, last_use: 0 });
        }
        let cached = self.paths.get_mut(av).expect("it was just put there");
        cached.last_use = self.uses;
        Ok(&cached.ah)
    }

    /// The sender of a datagram, to be answered with its Q_Key; `None` where [`Wc::grh`] is, or if it is no datagram.
    ///
    /// # Errors
    /// The device's limits, or no path.
    pub fn reply_to(&mut self, wc: &Wc<'_>, qkey: Qkey) -> Option<Result<UdPeer, DeviceError>> {
        let (path, qpn) = (wc.grh()?.reply_path(), wc.src_qp);
        Some(self.ah(&path).map(|ah| ah.peer(qpn, qkey)))
    }

    /// As [`reply_to`](Self::reply_to), for a message of an [`AsyncQp`](crate::AsyncQp).
    ///
    /// # Errors
    /// As there.
    pub fn reply_to_message(&mut self, message: &Message, qkey: Qkey) -> Option<Result<UdPeer, DeviceError>> {
        let (path, qpn) = (message.grh()?.reply_path(), message.src_qp()?);
        Some(self.ah(&path).map(|ah| ah.peer(qpn, qkey)))
    }

    /// Paths that it holds.
    pub fn len(&self) -> usize {
        self.paths.len()
    }
    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }
}
