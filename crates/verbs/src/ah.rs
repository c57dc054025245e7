//! Address handles: the paths of datagrams.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use hca_core::{AddressVector, AhHandle, DeviceError, Qkey, Qpn, UdDest};

use crate::pd::PdCore;
use crate::{Message, Pd, Wc};

/// An address handle: the path to a port. Cheap to clone; a request in flight holds a clone, and the last drop destroys
/// the device's handle.
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
    /// The handle of the device's object.
    pub fn handle(&self) -> AhHandle {
        self.inner.handle
    }
    /// The destination of a queue pair at the end of the path, with the Q_Key that it accepts.
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
    /// The queue pair at the path's end; [`Qpn::MULTICAST`] at a group's.
    pub qpn: Qpn,
    /// The Q_Key to send; a value with bit 31 set sends the sender's own Q_Key.
    pub qkey: Qkey,
}

impl UdPeer {
    pub(crate) fn dest(&self) -> UdDest {
        UdDest { ah: self.ah.handle(), qpn: self.qpn, qkey: self.qkey }
    }
}

/// A cache of address handles for the paths of a program's datagrams, each created once: a server answers without a
/// call of the device for each message.
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
    /// A cache of at most `max` paths (at least one), which evicts the least recently used path.
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

    /// The sender of a datagram as a destination with this Q_Key; `None` if [`Wc::grh`] is `None`, or the completion is
    /// not of a datagram.
    ///
    /// # Errors
    /// The device's limits, or no path.
    pub fn reply_to(&mut self, wc: &Wc<'_>, qkey: Qkey) -> Option<Result<UdPeer, DeviceError>> {
        let (path, qpn) = (wc.grh()?.reply_path(), wc.src_qp);
        Some(self.ah(&path).map(|ah| ah.peer(qpn, qkey)))
    }

    /// The sender of a message of an [`AsyncQp`](crate::AsyncQp) as a destination, like [`reply_to`](Self::reply_to).
    ///
    /// # Errors
    /// As [`reply_to`](Self::reply_to).
    pub fn reply_to_message(&mut self, message: &Message, qkey: Qkey) -> Option<Result<UdPeer, DeviceError>> {
        let (path, qpn) = (message.grh()?.reply_path(), message.src_qp()?);
        Some(self.ah(&path).map(|ah| ah.peer(qpn, qkey)))
    }

    /// The number of cached paths.
    pub fn len(&self) -> usize {
        self.paths.len()
    }
    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }
}
