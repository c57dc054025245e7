//! Reliable datagrams (RD): domains, and the end-to-end contexts that lead from one adapter to another.

use std::fmt;
use std::sync::Arc;

use hca_core::{
    Access, DeviceError, PdHandle, Pkey, Psn, Qkey, QpAttr, QpHandle, QpInit, QpPorts, QpState, QpStatus,
    QpType, Qpn, RdDest, RddHandle, ReliableDatagrams,
};

use crate::builder::{QpBuilder, endpoint, to_init};
use crate::connect::{ConnectOptions, Endpoint, steps};
use crate::context::Ctx;
use crate::cq::CqRef;
use crate::pd::PdCore;
use crate::qp::QpControl;
use crate::service::Rd;
use crate::{BuildError, ConnectError, Context, Pd};

/// A domain of reliable datagrams: queue pairs of the service [`Rd`], and the end-to-end contexts ([`EeContext`]) by which
/// they reach the queue pairs of other adapters. So one connection between two adapters serves all queue pairs of both.
/// From [`Context::alloc_rd_domain`]. Cheap to clone; queue pairs and contexts keep the domain alive.
///
/// - A queue pair has one message under way, and so has a context. Requests of one queue pair, to whatever peers, are
///   carried out in their order; contexts serve their queue pairs in turn.
/// - A request that fails takes its queue pair to [`QpState::Sqe`]; [`QpControl::resume`] makes the queue pair ready
///   again. The context goes on with its other queue pairs.
/// - A peer that does not answer takes the context to the error state, and further requests by it fail with
///   `InvalidEecState`.
/// - A receive completion names the sender's queue pair (`wc.src_qp`). Messages have no GRH before them.
///
/// ```
/// use hca_verbs::*;
/// # type Failure = Box<dyn std::error::Error>;
///
/// const QKEY: Qkey = Qkey::new(7);
///
/// /// Each of the peer's queue pairs gets a greeting from the same queue pair, by one connection.
/// fn greet(context: &Context, pd: &Pd, exchange: impl Fn(Endpoint) -> (Endpoint, Vec<Qpn>)) -> Result<(), Failure> {
///     let (domain, mut cq) = (context.alloc_rd_domain()?, context.create_cq(256)?);
///     let link = domain.ee_context().build()?;
///     let (remote, queue_pairs) = exchange(link.endpoint());
///     link.connect(&remote, &ConnectOptions::default())?; // the peer connects to `link.endpoint()`
///     let mut qp = domain.qp(pd, &cq).build()?;
///     qp.activate(QKEY)?;
///     for qpn in &queue_pairs {
///         qp.send_to(Inline(b"hello"), &link.peer(*qpn, QKEY))?;
///     }
///     let (mut done, mut wcs) = (0, Completions::default());
///     while done < queue_pairs.len() {
///         for wc in cq.wait(&mut wcs, None)? {
///             wc.ok()?;
///             done += 1;
///         }
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct RdDomain {
    inner: Arc<DomainInner>,
}

struct DomainInner {
    ctx: Arc<Ctx>,
    handle: RddHandle,
}

fn device(ctx: &Ctx) -> Result<&dyn ReliableDatagrams, DeviceError> {
    ctx.device.reliable_datagrams().ok_or(DeviceError::Unsupported {
        what: "reliable datagrams (RD): `Abilities::max_rdd` is 0; connect an RC queue pair for each pair of programs",
    })
}

impl RdDomain {
    pub(crate) fn create(ctx: Arc<Ctx>) -> Result<Self, DeviceError> {
        let handle = device(&ctx)?.alloc_rdd()?;
        Ok(Self { inner: Arc::new(DomainInner { ctx, handle }) })
    }
    /// The context of the domain.
    pub fn context(&self) -> Context {
        Context { ctx: Arc::clone(&self.inner.ctx) }
    }
    /// The handle that the device knows.
    pub fn handle(&self) -> RddHandle {
        self.inner.handle
    }
    /// Begins to build a queue pair of the domain, with memory of `pd`, whose queues both complete on `cq`. It has no
    /// shared receive queue.
    pub fn qp<'a>(&self, pd: &'a Pd, cq: impl AsRef<CqRef>) -> QpBuilder<'a, Rd> {
        QpBuilder::of_rd_domain(pd, cq.as_ref().clone(), self.clone())
    }
    /// Begins to build an end-to-end context of the domain.
    pub fn ee_context(&self) -> EeContextBuilder<'_> {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        EeContextBuilder { domain: self, access, pkey: Pkey::DEFAULT, psn: None, rd_atomic: None }
    }
    /// Whether a protection domain is of the domain's context.
    pub(crate) fn is_of(&self, pd: &PdCore) -> bool {
        Arc::ptr_eq(&self.inner.ctx, &pd.ctx)
    }
    /// Creates a queue pair of the domain.
    pub(crate) fn create_qp(&self, pd: PdHandle, init: &QpInit) -> Result<QpPorts, DeviceError> {
        device(&self.inner.ctx)?.create_rd_qp(pd, self.inner.handle, init)
    }
}

impl fmt::Debug for RdDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RdDomain").field(&self.inner.handle).finish()
    }
}

impl Drop for DomainInner {
    fn drop(&mut self) {
        if !self.ctx.forked()
            && let Err(error) = device(&self.ctx).and_then(|device| device.dealloc_rdd(self.handle))
        {
            tracing::error!(rdd = %self.handle, %error, "the device keeps the RD domain");
        }
    }
}

/// A builder of end-to-end contexts. From [`RdDomain::ee_context`].
#[derive(Clone, Debug)]
#[must_use = "a builder builds nothing until `build` is called"]
pub struct EeContextBuilder<'a> {
    domain: &'a RdDomain,
    access: Access,
    pkey: Pkey,
    psn: Option<Psn>,
    rd_atomic: Option<u8>,
}

impl EeContextBuilder<'_> {
    /// The operations that peers may execute by the context on regions whose keys they have; all unless given.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }
    /// The partition; the default one unless given.
    pub fn pkey(mut self, pkey: Pkey) -> Self {
        self.pkey = pkey;
        self
    }
    /// The first PSN that the context sends; drawn by the [`Context`] unless given.
    pub fn psn(mut self, psn: Psn) -> Self {
        self.psn = Some(psn);
        self
    }
    /// The peer's READs and atomics that the context serves at once; the device's limit, but at most 16, unless given.
    pub fn rd_atomic(mut self, n: u8) -> Self {
        self.rd_atomic = Some(n);
        self
    }
    /// Builds the end-to-end context in state INIT, where it waits to be [connected](EeContext::connect).
    ///
    /// # Errors
    /// A limit of the device is reached.
    pub fn build(self) -> Result<EeContext, BuildError> {
        let (domain, ctx) = (self.domain.clone(), &self.domain.inner.ctx);
        let (handle, number) = device(ctx)?.create_eec(domain.inner.handle)?;
        let endpoint = endpoint(ctx, QpType::Eec, number, self.psn, self.rd_atomic);
        let context = EeContext { inner: Arc::new(EeInner { domain, handle, endpoint }) };
        // From here on, dropping it undoes everything.
        context.modify(&to_init(QpType::Eec, self.pkey, self.access))?;
        Ok(context)
    }
}

/// An end-to-end context: one end of a connection between two adapters, by which the queue pairs of an
/// [`RdDomain`] send to those of the far adapter. Cheap to clone; a request in flight holds a clone, and the last drop
/// destroys the device's context. From [`RdDomain::ee_context`].
#[derive(Clone)]
pub struct EeContext {
    inner: Arc<EeInner>,
}

struct EeInner {
    domain: RdDomain,
    handle: QpHandle,
    endpoint: Endpoint,
}

impl EeContext {
    /// The number of the context.
    pub fn number(&self) -> Qpn {
        self.inner.endpoint.qpn
    }
    /// The handle that the device knows.
    pub fn handle(&self) -> QpHandle {
        self.inner.handle
    }
    /// The data that the far end must know to connect.
    pub fn endpoint(&self) -> Endpoint {
        self.inner.endpoint
    }
    /// A queue pair of the far adapter as the destination of requests, with the Q_Key that it accepts.
    pub fn peer(&self, qpn: Qpn, qkey: Qkey) -> RdPeer {
        RdPeer { by: self.clone(), qpn, qkey }
    }
    /// Connects the context to one of another adapter, which has to do the same with this
    /// [endpoint](Self::endpoint).
    ///
    /// # Errors
    /// The far end is no end-to-end context, this one is connected already, a value is out of range, or there is no
    /// path. The context then stays unchanged.
    pub fn connect(&self, remote: &Endpoint, options: &ConnectOptions) -> Result<(), ConnectError> {
        let (rtr, rts) = steps(&self.inner.endpoint, remote, options)?;
        self.modify(&rtr)?;
        Ok(self.modify(&rts)?)
    }
    /// Changes the rights of peers.
    ///
    /// # Errors
    /// The state does not allow it, or the device refused.
    pub fn set_access(&self, access: Access) -> Result<(), DeviceError> {
        self.modify(&QpAttr { access: Some(access), ..QpAttr::default() })
    }
    /// Moves the context to the error state. The request that it carries out is flushed, and later ones that name it
    /// fail.
    ///
    /// # Errors
    /// The device refused.
    pub fn to_error(&self) -> Result<(), DeviceError> {
        self.modify(&QpAttr { state: Some(QpState::Error), ..QpAttr::default() })
    }
    /// The state and the attributes of the context.
    ///
    /// # Errors
    /// The device refused.
    pub fn query(&self) -> Result<QpStatus, DeviceError> {
        self.inner.domain.inner.ctx.device.query_qp(self.inner.handle)
    }
    fn modify(&self, attr: &QpAttr) -> Result<(), DeviceError> {
        self.inner.domain.inner.ctx.device.modify_qp(self.inner.handle, attr)
    }
    /// Whether it is of the context of a protection domain.
    pub(crate) fn is_of(&self, pd: &PdCore) -> bool {
        self.inner.domain.is_of(pd)
    }
}

impl fmt::Debug for EeContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EeContext").field("number", &self.number()).field("handle", &self.handle()).finish()
    }
}

impl Drop for EeInner {
    fn drop(&mut self) {
        let ctx = &self.domain.inner.ctx;
        if !ctx.forked()
            && let Err(error) = ctx.device.destroy_qp(self.handle)
        {
            tracing::error!(eec = %self.handle, %error, "the device keeps the end-to-end context");
        }
    }
}

/// The destination of a reliable datagram. From [`EeContext::peer`].
#[derive(Clone, Debug)]
pub struct RdPeer {
    /// The end-to-end context that leads to the adapter of the queue pair.
    pub by: EeContext,
    /// The queue pair at the far end.
    pub qpn: Qpn,
    /// The Q_Key of the queue pair at the far end.
    pub qkey: Qkey,
}

impl RdPeer {
    pub(crate) fn dest(&self) -> RdDest {
        RdDest { eec: self.by.handle(), qpn: self.qpn, qkey: self.qkey }
    }
}

impl QpControl<Rd> {
    /// Makes the queue pair ready to send and receive reliable datagrams, and to accept those that carry `qkey`.
    ///
    /// # Errors
    /// The queue pair is active already, or the device refused.
    pub fn activate(&self, qkey: Qkey) -> Result<(), ConnectError> {
        self.modify(&QpAttr { state: Some(QpState::Rtr), qkey: Some(qkey), ..QpAttr::default() })?;
        self.resume()
    }
    /// Makes the queue pair ready to send again behind a request that failed ([`QpState::Sqe`]). Poll first until its
    /// flushed requests have come.
    ///
    /// # Errors
    /// The queue pair is in another state, or the device refused.
    pub fn resume(&self) -> Result<(), ConnectError> {
        self.modify(&QpAttr { state: Some(QpState::Rts), ..QpAttr::default() })
    }
}
