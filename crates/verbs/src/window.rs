//! Memory windows: keys for parts of a region that are given and taken back without a registration.

use std::fmt;
use std::sync::Arc;

use hca_core::{Access, DeviceError, MemoryWindows, MwKeys, MwRange, MwStatus, MwType, Rkey, SendOp};

use crate::mr::{RemoteMr, SharedRange};
use crate::pd::PdCore;
use crate::region::Region;
use crate::request::SendRequest;
use crate::service::ops;

/// A memory window of type 1: bound by a call, and used by the peers of all queue pairs of its protection domain. From
/// [`Pd::alloc_window`](crate::Pd::alloc_window).
///
/// The region of the ranges that it shows has [`Access::MW_BIND`], and is not deregistered meanwhile. Dropping the
/// window takes its key back.
///
/// ```
/// # use hca_verbs::*;
/// fn show(pd: &Pd, page: &SharedMr) -> Result<(MemoryWindow, RemoteMr), DeviceError> {
///     let mut window = pd.alloc_window()?;
///     let shown = window.bind(&page.range(..4096), Access::REMOTE_READ)?;
///     Ok((window, shown)) // `window.unbind()?` takes it back
/// }
/// ```
pub struct MemoryWindow {
    window: Window,
}

/// A memory window of type 2: bound by a request of a queue pair, and used by the peer of that queue pair alone. From
/// [`Pd::alloc_qp_window`](crate::Pd::alloc_qp_window).
///
/// [`SendRequest::bind`] binds it while it is not bound. [`SendRequest::local_inv`] takes its key back, or the peer does
/// so by a SEND with invalidate, whose completion names the key.
///
/// ```
/// # use hca_verbs::*;
/// fn lend(qp: &mut QueuePair<Rc>, window: &mut QpWindow, page: &SharedMr) -> Result<RemoteMr, Box<dyn std::error::Error>> {
///     let bind = SendRequest::bind(window, &page.range(..4096), Access::REMOTE_WRITE)?;
///     qp.post_send(bind.signaled(false)).map_err(|refused| refused.error)?;
///     // A SEND that is posted behind it may tell the peer.
///     Ok(window.remote().expect("it is bound by then"))
/// }
/// ```
pub struct QpWindow {
    window: Window,
    remote: Option<RemoteMr>,
}

struct Window {
    pd: Arc<PdCore>,
    keys: MwKeys,
    /// The regions that it may be bound to, the last one first asked for last.
    regions: Vec<Arc<Region>>,
}

fn windows(pd: &PdCore) -> Result<&dyn MemoryWindows, DeviceError> {
    pd.ctx.device.windows().ok_or(DeviceError::Unsupported { what: "memory windows" })
}

impl Window {
    fn create(pd: &Arc<PdCore>, kind: MwType) -> Result<Self, DeviceError> {
        let keys = windows(pd)?.alloc_mw(pd.handle, kind)?;
        Ok(Self { pd: Arc::clone(pd), keys, regions: Vec::new() })
    }
    fn query(&self) -> Result<MwStatus, DeviceError> {
        windows(&self.pd)?.query_mw(self.keys.handle)
    }
    fn range(range: &SharedRange, access: Access, zero_based: bool) -> MwRange {
        let (addr, len) = (range.addr(), range.len() as u64);
        MwRange { lkey: range.region().lkey(), addr, len, access, zero_based }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let gone = if self.pd.ctx.forked() {
            Ok(())
        } else {
            windows(&self.pd).and_then(|device| device.dealloc_mw(self.keys.handle))
        };
        if let Err(error) = gone {
            tracing::error!(window = %self.keys.handle, %error, "the device keeps the memory window");
        }
    }
}

impl MemoryWindow {
    pub(crate) fn create(pd: &Arc<PdCore>) -> Result<Self, DeviceError> {
        Ok(Self { window: Window::create(pd, MwType::One)? })
    }
    /// Shows a range to peers, in place of what the window showed. Returns the address and the new key; nothing is
    /// reached by the old one any more.
    ///
    /// # Errors
    /// The region has no [`Access::MW_BIND`], is of another protection domain, or its keys were taken back; `access`
    /// holds more than remote rights; the range is empty. The window is as it was.
    pub fn bind(&mut self, range: &SharedRange, access: Access) -> Result<RemoteMr, DeviceError> {
        let shown = Window::range(range, access, false);
        let rkey = windows(&self.window.pd)?.bind_mw(self.window.keys.handle, Some(&shown))?;
        self.window.keys.rkey = rkey;
        self.window.regions = vec![Arc::clone(range.region())];
        Ok(RemoteMr { addr: shown.addr, rkey, len: shown.len })
    }
    /// Takes the key back: on return nothing is reached by it any more.
    ///
    /// # Errors
    /// The device refuses.
    pub fn unbind(&mut self) -> Result<(), DeviceError> {
        self.window.keys.rkey = windows(&self.window.pd)?.bind_mw(self.window.keys.handle, None)?;
        self.window.regions.clear();
        Ok(())
    }
    /// The attributes of the window as the device has them.
    ///
    /// # Errors
    /// The device refuses.
    pub fn query(&self) -> Result<MwStatus, DeviceError> {
        self.window.query()
    }
}

impl QpWindow {
    pub(crate) fn create(pd: &Arc<PdCore>) -> Result<Self, DeviceError> {
        Ok(Self { window: Window::create(pd, MwType::Two)?, remote: None })
    }
    /// The key that the last bind gave, or that the device gave first.
    pub fn rkey(&self) -> Rkey {
        self.window.keys.rkey
    }
    /// The peer's view of the range of the last bind that was requested; `None` before the first one.
    pub fn remote(&self) -> Option<RemoteMr> {
        self.remote
    }
    /// The attributes of the window as the device has them.
    ///
    /// # Errors
    /// The device refuses.
    pub fn query(&self) -> Result<MwStatus, DeviceError> {
        self.window.query()
    }
    fn ask(&mut self, range: &SharedRange, access: Access, zero_based: bool) -> Result<SendOp, DeviceError> {
        let window = &mut self.window;
        if window.query()?.range.is_none() {
            // The last bind that was asked for may not have been carried out yet.
            let done = window.regions.len().saturating_sub(1);
            window.regions.drain(..done);
        }
        if !window.regions.last().is_some_and(|last| Arc::ptr_eq(last, range.region())) {
            window.regions.push(Arc::clone(range.region()));
        }
        let key = window.keys.rkey.raw();
        // Another lowest byte at each bind: the key before is none any more.
        let rkey = Rkey::new(key & !0xff | key.wrapping_add(1) & 0xff);
        let range = Window::range(range, access, zero_based);
        window.keys.rkey = rkey;
        let addr = if zero_based { 0 } else { range.addr };
        self.remote = Some(RemoteMr { addr, rkey, len: range.len });
        Ok(SendOp::BindMw { rkey, range })
    }
}

impl SendRequest<ops::Bind, ()> {
    /// Bind of a window that is not bound: from then on the peer accesses the range as `access` says, by
    /// [`QpWindow::remote`]. The bind is carried out when all earlier requests of the queue have completed, and before
    /// all later ones. One that fails puts the queue pair in error.
    ///
    /// # Errors
    /// The device refuses.
    pub fn bind(window: &mut QpWindow, range: &SharedRange, access: Access) -> Result<Self, DeviceError> {
        Ok(Self::new(window.ask(range, access, false)?, None, ()))
    }
    /// As [`bind`](Self::bind); the peer names the first byte by address 0.
    ///
    /// # Errors
    /// The device refuses.
    pub fn bind_zero_based(
        window: &mut QpWindow,
        range: &SharedRange,
        access: Access,
    ) -> Result<Self, DeviceError> {
        Ok(Self::new(window.ask(range, access, true)?, None, ()))
    }
}

impl SendRequest<ops::LocalInvalidate, ()> {
    /// Taking back of the key of a [`QpWindow`] that is bound to this queue pair, when all earlier requests of the queue
    /// have completed. One that fails puts the queue pair in error.
    pub fn local_inv(rkey: Rkey) -> Self {
        Self::new(SendOp::LocalInv(rkey), None, ())
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryWindow").field(&self.window.keys).finish()
    }
}
impl fmt::Debug for QpWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QpWindow").field(&self.window.keys).finish()
    }
}
