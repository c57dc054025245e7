//! Shared receive queues.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use hca_core::{DeviceError, RecvPort, SrqHandle, SrqInit, SrqStatus, Srqn};

use crate::part::{Held, ScatterList};
use crate::pd::PdCore;
use crate::post::RecvSide;
use crate::qp::RecvBatch;
use crate::reactor::Home;
use crate::slots::{PoolSlots, RecvPoster, Taker};
use crate::xrc::XrcPlace;
use crate::{BuildError, Refused, sync};

/// A shared receive queue, from which many queue pairs take requests. One thread at a time posts; queue pairs are built
/// on its [`reference`](Self::reference) and keep the queue alive.
///
/// If a queue pair is dropped, the requests that it has consumed and whose completions were not polled are lost: their
/// buffers return to their domain, and their places in the queue are free again. To lose none, move the queue pair to
/// the error state first, and poll until `AsyncEvent::LastWqeReached` and the last completion have come.
pub struct Srq {
    side: RecvSide,
    srq: SrqRef,
}

/// A reference to a shared receive queue, for building queue pairs. Cheap to clone.
#[derive(Clone)]
pub struct SrqRef {
    pub(crate) inner: Arc<SrqInner>,
}

/// The state that a shared receive queue and its queue pairs share.
pub(crate) struct SrqInner {
    pub(crate) pd: Arc<PdCore>,
    pub(crate) handle: SrqHandle,
    pub(crate) init: SrqInit,
    /// The room that it may be given; completion queues have entries for as many.
    pub(crate) most: u32,
    pub(crate) slots: sync::Arc<PoolSlots<Held>>,
    /// Where messages that tasks have done with go, if it is an [`AsyncSrq`](crate::AsyncSrq).
    pub(crate) home: OnceLock<Weak<dyn Home>>,
    /// Where it is one of an XRC domain.
    xrc: Option<XrcPlace>,
}

impl Srq {
    pub(crate) fn create(pd: &Arc<PdCore>, init: SrqInit, most: u32) -> Result<Self, DeviceError> {
        let most = most.max(init.max_wr);
        let max = pd.ctx.device.attr().max_srq_wr;
        if most > max {
            let (value, max) = (most.into(), max.into());
            return Err(DeviceError::OutOfRange { what: "max_wr", value, min: 1, max });
        }
        let (handle, port) = pd.ctx.device.create_srq(pd.handle, &init)?;
        Ok(Self::assemble(pd, handle, port, init, most, None))
    }
    /// Creates one of an XRC domain, at a place whose number is still to come.
    pub(crate) fn create_in_domain(
        pd: &Arc<PdCore>,
        init: SrqInit,
        mut place: XrcPlace,
    ) -> Result<Self, BuildError> {
        let need = XrcPlace::need(init.max_wr);
        place.cq.reserve("receive", need)?;
        let created = place
            .device()
            .and_then(|(device, domain)| device.create_xrc_srq(pd.handle, domain, place.cq.handle, &init))
            .inspect_err(|_| place.cq.release(need))?;
        place.number = created.number;
        let srq = Self::assemble(pd, created.handle, created.recv, init, init.max_wr, Some(place));
        let taker = Taker::Shared(sync::Arc::clone(&srq.srq.inner.slots));
        if let Some(place) = &srq.srq.inner.xrc {
            place.cq.change_srq(place.number, Some(taker));
        }
        Ok(srq)
    }
    fn assemble(
        pd: &Arc<PdCore>,
        handle: SrqHandle,
        port: Box<dyn RecvPort>,
        init: SrqInit,
        most: u32,
        xrc: Option<XrcPlace>,
    ) -> Self {
        let (slots, poster) = PoolSlots::create(most, init.max_sge as usize);
        let inner = SrqInner { pd: Arc::clone(pd), handle, init, most, slots, home: OnceLock::new(), xrc };
        let side = RecvSide::new(port, RecvPoster::Shared(poster), Arc::clone(pd), init.max_wr, init.max_sge);
        Self { side, srq: SrqRef { inner: Arc::new(inner) } }
    }
    /// Its number in its XRC domain.
    pub(crate) fn number(&self) -> Option<Srqn> {
        self.srq.inner.xrc.as_ref().map(|place| place.number)
    }

    /// A reference with which another thread can build queue pairs.
    pub fn reference(&self) -> SrqRef {
        self.srq.clone()
    }
    /// The handle that the device knows.
    pub fn handle(&self) -> SrqHandle {
        self.srq.inner.handle
    }
    /// The attributes of its creation.
    pub fn init(&self) -> SrqInit {
        self.srq.inner.init
    }
    /// The number of posted requests that no poll has returned.
    pub fn outstanding(&self) -> u32 {
        self.srq.inner.slots.outstanding()
    }

    /// Posts a receive request with id 0, and tells the device.
    ///
    /// # Errors
    /// The request is refused, and its list comes back: the queue is full, or the list is too long or of another
    /// protection domain.
    pub fn post_recv<L: ScatterList>(&mut self, local: L) -> Result<(), Refused<L>> {
        self.post_recv_id(0, local)
    }
    /// Like [`post_recv`](Self::post_recv), with an id.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv).
    pub fn post_recv_id<L: ScatterList>(&mut self, id: u64, local: L) -> Result<(), Refused<L>> {
        self.side.post::<true, _>(id, local).map_err(|(request, error)| Refused { request, error })
    }
    /// Begins a batch: many requests, one doorbell.
    pub fn batch(&mut self) -> RecvBatch<'_> {
        RecvBatch::of(&mut self.side)
    }

    /// Gives the queue room for `max_wr` outstanding requests, up to the most that it was created for
    /// ([`Pd::create_srq_up_to`](crate::Pd::create_srq_up_to)). Requests that wait in it stay.
    ///
    /// # Errors
    /// `max_wr` is 0, beyond that, or fewer than wait; or the device can not (`Abilities::srq_resize`). The queue is as
    /// it was.
    pub fn resize(&mut self, max_wr: u32) -> Result<(), DeviceError> {
        let most = self.srq.inner.most;
        if max_wr > most {
            let (value, max) = (max_wr.into(), most.into());
            return Err(DeviceError::OutOfRange { what: "max_wr", value, min: 1, max });
        }
        self.side.resize(max_wr)
    }
    /// The attributes of the queue as the device has them.
    ///
    /// # Errors
    /// The device has no such query.
    pub fn query(&self) -> Result<SrqStatus, DeviceError> {
        let inner = &self.srq.inner;
        inner.pd.ctx.device.query_srq(inner.handle)
    }

    /// Arms the limit event, which is raised once, when fewer than `limit` requests are left; 0 disarms it.
    ///
    /// # Errors
    /// The limit is beyond the queue's depth.
    pub fn set_limit(&self, limit: u32) -> Result<(), DeviceError> {
        let inner = &self.srq.inner;
        inner.pd.ctx.device.set_srq_limit(inner.handle, limit)
    }
}

impl AsRef<SrqRef> for Srq {
    fn as_ref(&self) -> &SrqRef {
        &self.srq
    }
}
impl AsRef<Self> for SrqRef {
    fn as_ref(&self) -> &Self {
        self
    }
}
impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.srq.fmt(f)
    }
}
impl fmt::Debug for SrqRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq").field("handle", &self.inner.handle).field("init", &self.inner.init).finish()
    }
}

impl SrqRef {
    /// Checks that a queue pair of `pd` may use it.
    pub(crate) fn check_pd(&self, pd: &Arc<PdCore>) -> Result<(), BuildError> {
        if Arc::ptr_eq(&self.inner.pd, pd) {
            Ok(())
        } else {
            Err(DeviceError::ForeignPd { what: "the shared receive queue" }.into())
        }
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let forked = self.pd.ctx.forked();
        if !forked {
            if let Some(place) = &self.xrc {
                // Ahead of the destruction, behind which another queue may have the number.
                place.cq.change_srq(place.number, None);
            }
            let Err(error) = self.pd.ctx.device.destroy_srq(self.handle) else {
                if let Some(place) = &self.xrc {
                    place.cq.release(XrcPlace::need(self.init.max_wr));
                }
                return;
            };
            tracing::error!(srq = %self.handle, %error, "leaking buffers: the device keeps the shared receive queue");
        }
        std::mem::forget(sync::Arc::clone(&self.slots));
    }
}
