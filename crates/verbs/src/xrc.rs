//! Extended reliable connections (XRC): domains, their shared receive queues by number, and target queue pairs.

use std::fmt;
use std::sync::Arc;

use hca_core::{
    Access, DeviceError, ExtendedConnections, Pkey, Psn, QpAttr, QpHandle, QpState, QpStatus, QpType, Qpn,
    SrqHandle, SrqInit, SrqStatus, Srqn, XrcdHandle,
};

use crate::builder::{endpoint, to_init};
use crate::connect::{ConnectOptions, Endpoint, steps};
use crate::context::Ctx;
use crate::cq::{CqRef, CqShared, Need};
use crate::part::ScatterList;
use crate::qp::RecvBatch;
use crate::{BuildError, ConnectError, Context, Pd, Refused, Srq};

/// An XRC domain: shared receive queues, and the target queue pairs whose peers send to these queues by their numbers.
/// So one connection serves all threads behind the domain, each with a queue of its own. From
/// [`Context::alloc_xrc_domain`]. Cheap to clone; queues and targets keep the domain alive.
///
/// The peer's end of a connection is an initiator: a queue pair of the service [`Xrc`](crate::Xrc), whose requests name
/// a queue ([`SendRequest::to_srq`](crate::SendRequest::to_srq)). A domain belongs to the context that allocated it, and
/// is not shared between processes.
///
/// ```
/// use hca_verbs::*;
/// # type Failure = Box<dyn std::error::Error>;
///
/// /// Two queues behind one connection; the peer learns their numbers.
/// fn serve(context: &Context, pd: &Pd, peer: &Endpoint) -> Result<(XrcTarget, [(XrcSrq, CompletionQueue); 2]), Failure> {
///     let domain = context.alloc_xrc_domain()?;
///     let queue = || -> Result<_, Failure> {
///         let cq = context.create_cq(64)?;
///         let mut srq = domain.create_srq(pd, &cq, SrqInit { max_wr: 64, max_sge: 1 })?;
///         srq.post_recv(pd.alloc(4096)?)?;
///         Ok((srq, cq))
///     };
///     let queues = [queue()?, queue()?];
///     let target = domain.target().build()?;
///     target.connect(peer, &ConnectOptions::default())?; // the peer connects to `target.endpoint()`
///     Ok((target, queues))
/// }
///
/// /// A message for each queue.
/// fn ask(qp: &mut QueuePair<Xrc>, pd: &Pd, queues: [Srqn; 2]) -> Result<(), Failure> {
///     for number in queues {
///         qp.post_send(SendRequest::send(pd.alloc(100)?).to_srq(number))?;
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct XrcDomain {
    inner: Arc<DomainInner>,
}

pub(crate) struct DomainInner {
    ctx: Arc<Ctx>,
    handle: XrcdHandle,
}

fn device(ctx: &Ctx) -> Result<&dyn ExtendedConnections, DeviceError> {
    ctx.device.xrc().ok_or(DeviceError::Unsupported {
        what: "extended reliable connections (XRC): `Abilities::max_xrcd` is 0; connect an RC queue pair for each receiver",
    })
}

impl XrcDomain {
    pub(crate) fn create(ctx: Arc<Ctx>) -> Result<Self, DeviceError> {
        let handle = device(&ctx)?.alloc_xrcd()?;
        Ok(Self { inner: Arc::new(DomainInner { ctx, handle }) })
    }
    /// The context of the domain.
    pub fn context(&self) -> Context {
        Context { ctx: Arc::clone(&self.inner.ctx) }
    }
    /// The handle that the device knows.
    pub fn handle(&self) -> XrcdHandle {
        self.inner.handle
    }

    /// Creates a shared receive queue of the domain. Its requests complete on `cq`, which reserves the depth of the
    /// queue; the memory of its requests, and the keys that peers name with its number, are those of `pd`.
    ///
    /// # Errors
    /// `cq` has too few entries left, a limit of the device is reached, or a part belongs to another context.
    pub fn create_srq(&self, pd: &Pd, cq: impl AsRef<CqRef>, init: SrqInit) -> Result<XrcSrq, BuildError> {
        let cq = &cq.as_ref().shared;
        for (what, ctx) in [("protection domain", &pd.core.ctx), ("completion queue", &cq.ctx)] {
            if !Arc::ptr_eq(ctx, &self.inner.ctx) {
                return Err(BuildError::ForeignContext { what });
            }
        }
        let place = XrcPlace { number: Srqn::default(), cq: Arc::clone(cq), domain: Arc::clone(&self.inner) };
        Srq::create_in_domain(&pd.core, init, place).map(|srq| XrcSrq { srq })
    }
    /// Begins a target queue pair of the domain.
    pub fn target(&self) -> XrcTargetBuilder<'_> {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        XrcTargetBuilder { domain: self, access, pkey: Pkey::DEFAULT, psn: None, rd_atomic: None }
    }
}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("XrcDomain").field(&self.inner.handle).finish()
    }
}

impl Drop for DomainInner {
    fn drop(&mut self) {
        if !self.ctx.forked()
            && let Err(error) = device(&self.ctx).and_then(|device| device.dealloc_xrcd(self.handle))
        {
            tracing::error!(xrcd = %self.handle, %error, "the device keeps the XRC domain");
        }
    }
}

/// The place of a shared receive queue in an XRC domain.
pub(crate) struct XrcPlace {
    pub(crate) number: Srqn,
    pub(crate) cq: Arc<CqShared>,
    domain: Arc<DomainInner>,
}

impl XrcPlace {
    pub(crate) fn need(depth: u32) -> Need {
        Need { entries: depth, srq: None }
    }
    pub(crate) fn device(&self) -> Result<(&dyn ExtendedConnections, XrcdHandle), DeviceError> {
        Ok((device(&self.domain.ctx)?, self.domain.handle))
    }
}

/// A shared receive queue of an [XRC domain](XrcDomain), which peers name by its [number](Self::number). One thread at a
/// time posts.
///
/// The completion of a request comes from the completion queue of [`XrcDomain::create_srq`], and names the target
/// ([`Completion::qp`](crate::Completion)) and the queue ([`Completion::srq`](crate::Completion)). A target that is
/// dropped loses no request of the queue. When the queue is dropped, its buffers return to their domain, and a target
/// that is receiving a message into one of them goes to the error state.
pub struct XrcSrq {
    srq: Srq,
}

impl XrcSrq {
    /// The number by which peers name the queue.
    pub fn number(&self) -> Srqn {
        self.srq.number().expect("the queue is one of a domain")
    }
    /// The handle that the device knows.
    pub fn handle(&self) -> SrqHandle {
        self.srq.handle()
    }
    /// The attributes of its creation.
    pub fn init(&self) -> SrqInit {
        self.srq.init()
    }
    /// The number of posted requests that no poll has returned.
    pub fn outstanding(&self) -> u32 {
        self.srq.outstanding()
    }
    /// Posts a receive request, as [`Srq::post_recv`] does.
    ///
    /// # Errors
    /// As [`Srq::post_recv`].
    pub fn post_recv<L: ScatterList>(&mut self, local: L) -> Result<(), Refused<L>> {
        self.srq.post_recv(local)
    }
    /// Posts a receive request with an id, as [`Srq::post_recv_id`] does.
    ///
    /// # Errors
    /// As [`Srq::post_recv`].
    pub fn post_recv_id<L: ScatterList>(&mut self, id: u64, local: L) -> Result<(), Refused<L>> {
        self.srq.post_recv_id(id, local)
    }
    /// Begins a batch: many requests, one doorbell.
    pub fn batch(&mut self) -> RecvBatch<'_> {
        self.srq.batch()
    }
    /// The attributes of the queue as the device has them.
    ///
    /// # Errors
    /// The device has no such query.
    pub fn query(&self) -> Result<SrqStatus, DeviceError> {
        self.srq.query()
    }
    /// Arms the limit event, as [`Srq::set_limit`] does.
    ///
    /// # Errors
    /// As [`Srq::set_limit`].
    pub fn set_limit(&self, limit: u32) -> Result<(), DeviceError> {
        self.srq.set_limit(limit)
    }
}

impl fmt::Debug for XrcSrq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcSrq").field("handle", &self.handle()).field("number", &self.number()).finish()
    }
}

/// A builder of target queue pairs. From [`XrcDomain::target`].
#[derive(Clone, Debug)]
#[must_use = "a builder builds nothing until `build` is called"]
pub struct XrcTargetBuilder<'a> {
    domain: &'a XrcDomain,
    access: Access,
    pkey: Pkey,
    psn: Option<Psn>,
    rd_atomic: Option<u8>,
}

impl XrcTargetBuilder<'_> {
    /// The operations that the peer may execute on regions whose keys it has; all unless given.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }
    /// The partition; the default one unless given.
    pub fn pkey(mut self, pkey: Pkey) -> Self {
        self.pkey = pkey;
        self
    }
    /// The PSN of its endpoint; drawn by the context unless given.
    pub fn psn(mut self, psn: Psn) -> Self {
        self.psn = Some(psn);
        self
    }
    /// The peer's READs and atomics that the queue pair serves at once; the device's limit, but at most 16, unless
    /// given.
    pub fn rd_atomic(mut self, n: u8) -> Self {
        self.rd_atomic = Some(n);
        self
    }
    /// Builds the target in state INIT, where it waits to be [connected](XrcTarget::connect).
    ///
    /// # Errors
    /// A limit of the device is reached.
    pub fn build(self) -> Result<XrcTarget, BuildError> {
        let domain = Arc::clone(&self.domain.inner);
        let (handle, qpn) = device(&domain.ctx)?.create_xrc_target(domain.handle)?;
        let endpoint = endpoint(&domain.ctx, QpType::XrcTgt, qpn, self.psn, self.rd_atomic);
        let target = XrcTarget { inner: Arc::new(TargetInner { domain, handle, endpoint }) };
        // From here on, dropping it undoes everything.
        target.modify(&to_init(QpType::XrcTgt, self.pkey, self.access))?;
        Ok(target)
    }
}

/// A target queue pair: the receiving end of an extended reliable connection. It has no queues: each request of its peer
/// names a shared receive queue of the target's [domain](XrcDomain). Cheap to clone; the device's queue pair is destroyed
/// when the last clone is dropped. From [`XrcDomain::target`].
///
/// [`Context::poll_event_of`] tells of its events. A peer that names an unknown queue, or a key of another queue's
/// protection domain, puts the target in the error state (`AsyncEvent::QpAccessError`).
#[derive(Clone)]
pub struct XrcTarget {
    inner: Arc<TargetInner>,
}

struct TargetInner {
    domain: Arc<DomainInner>,
    handle: QpHandle,
    endpoint: Endpoint,
}

impl XrcTarget {
    /// The queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.inner.endpoint.qpn
    }
    /// The device's handle, which completions carry.
    pub fn handle(&self) -> QpHandle {
        self.inner.handle
    }
    /// The data that the initiator must know to connect.
    pub fn endpoint(&self) -> Endpoint {
        self.inner.endpoint
    }
    /// Connects the target to an initiator, which has to do the same with the target's [endpoint](Self::endpoint).
    ///
    /// # Errors
    /// The far end is no initiator, the target is connected already, a value is out of range, or there is no path. The
    /// target then stays unchanged.
    pub fn connect(&self, remote: &Endpoint, options: &ConnectOptions) -> Result<(), ConnectError> {
        let (rtr, rts) = steps(&self.inner.endpoint, remote, options)?;
        self.modify(&rtr)?;
        Ok(self.modify(&rts)?)
    }
    /// Changes the peer's access rights.
    ///
    /// # Errors
    /// The state does not allow it, or the device refused.
    pub fn set_access(&self, access: Access) -> Result<(), DeviceError> {
        self.modify(&QpAttr { access: Some(access), ..QpAttr::default() })
    }
    /// Moves the target to the error state. A request that it holds for a message under way completes as flushed.
    ///
    /// # Errors
    /// The device refused.
    pub fn to_error(&self) -> Result<(), DeviceError> {
        self.modify(&QpAttr { state: Some(QpState::Error), ..QpAttr::default() })
    }
    /// The state and the attributes of the queue pair.
    ///
    /// # Errors
    /// The device refused.
    pub fn query(&self) -> Result<QpStatus, DeviceError> {
        self.inner.domain.ctx.device.query_qp(self.inner.handle)
    }
    fn modify(&self, attr: &QpAttr) -> Result<(), DeviceError> {
        self.inner.domain.ctx.device.modify_qp(self.inner.handle, attr)
    }
}

impl fmt::Debug for XrcTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcTarget").field("qpn", &self.qpn()).field("handle", &self.handle()).finish()
    }
}

impl Drop for TargetInner {
    fn drop(&mut self) {
        if !self.domain.ctx.forked()
            && let Err(error) = self.domain.ctx.device.destroy_qp(self.handle)
        {
            tracing::error!(qp = %self.handle, %error, "the device keeps the target queue pair");
        }
    }
}
