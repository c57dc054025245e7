//! `unsafe` posting on the program's own memory, below the safe API, for language bindings.
//!
//! This layer has no slots, owns no buffers and reserves no completion queue entries. The program keeps posted memory
//! in place until its completion.
//!
//! ```
//! # use hca_verbs::{Context, Pd, raw::{RawCq, RawQp}};
//! # use hca_core::*;
//! # fn example(context: &Context, pd: &Pd, sges: &[Sge]) -> Result<(), Box<dyn std::error::Error>> {
//! let mut cq = RawCq::create(context, 256)?;
//! let mut qp = RawQp::create(pd, QpType::Rc, &cq, &cq, None, QpCap::default())?;
//! // ... qp.modify(..) to INIT, RTR and RTS ...
//! let recv = RecvWr { wr_id: 1, sges };
//! // SAFETY: the memory of `sges` is registered and left alone until request 1 completes.
//! unsafe { qp.post_recv(&[recv])? };
//! let mut out = [Completion::default(); 16];
//! let n = cq.poll(&mut out);
//! # Ok(()) }
//! ```
//!
//! Invariants of the unsafe code:
//! 1. The caller takes over the requirements of the device's ports on memory, in the same words.
#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use hca_core::{
    Access, Completion, CqHandle, CqPort, DeviceError, Lkey, Notify, Pkey, PostError, PostErrorKind, QpAttr,
    QpCap, QpHandle, QpInit, QpPorts, QpState, QpStatus, QpType, Qpn, RecvPort, RecvWr, SendPort, SendWr,
    Sge, SrqHandle, SrqInit,
};

use crate::connect::steps;
use crate::context::Ctx;
use crate::pd::PdCore;
use crate::region::Region;
use crate::{Buf, ConnectError, ConnectOptions, Context, Endpoint, Pd, SharedRange};

/// A part of a region as an entry of a bare request's list.
///
/// # Panics
/// The part is longer than an entry can be (4 GiB - 1).
#[inline]
#[track_caller]
pub fn sge(range: &SharedRange) -> Sge {
    let len = u32::try_from(range.len()).expect("an entry is shorter than 4 GiB");
    Sge { addr: range.addr(), len, lkey: range.region().lkey() }
}

/// The key of a buffer's region, for entries of bare requests.
pub fn lkey(buf: &Buf) -> Lkey {
    buf.region().lkey()
}

/// The last reference to a region. Dropping it deregisters the region, which waits for the device.
#[must_use = "dropped, it is deregistered at once"]
pub struct LastHold {
    _region: Region,
}

impl fmt::Debug for LastHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LastHold")
    }
}

/// Drops a range without waiting. If it was the last holder of its region, returns the region's last reference;
/// dropping that may wait.
pub fn let_go(range: SharedRange) -> Option<LastHold> {
    range.into_region().map(|region| LastHold { _region: region })
}

/// A completion queue that yields bare completions. It can overrun: the program has to make it deep enough.
pub struct RawCq {
    port: Box<dyn CqPort>,
    owner: Arc<CqOwner>,
}

struct CqOwner {
    ctx: Arc<Ctx>,
    handle: CqHandle,
}

impl RawCq {
    /// Creates the queue on a device.
    ///
    /// # Errors
    /// The device's limits.
    pub fn create(context: &Context, depth: u32) -> Result<Self, DeviceError> {
        let ctx = Arc::clone(&context.ctx);
        let (handle, port) = ctx.device.create_cq(depth)?;
        Ok(Self { port, owner: Arc::new(CqOwner { ctx, handle }) })
    }
    /// The handle that the device knows.
    pub fn handle(&self) -> CqHandle {
        self.owner.handle
    }
    /// Fills `out` from its start, and returns the number of completions.
    pub fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.port.poll(out)
    }
    /// Asks for one notification; poll once more before waiting for it.
    pub fn arm(&mut self, notify: Notify) {
        self.port.arm(notify);
    }
    /// Sets the waker that notifications wake, beside the descriptor.
    pub fn set_waker(&mut self, waker: &Waker) {
        self.port.set_waker(waker);
    }
    /// Makes waiters sleep on [`Device::turn_fd`](hca_core::Device::turn_fd), to be woken by the waker alone.
    pub fn wait_by_waker(&mut self) {
        self.port.wait_by_waker();
    }
    /// The time that a waiter should poll before it sleeps.
    pub fn look_before_sleep(&self) -> Duration {
        self.port.look_before_sleep()
    }
    /// The descriptor to wait on.
    ///
    /// # Errors
    /// The device has no descriptor.
    pub fn wait_fd(&mut self) -> Result<BorrowedFd<'_>, DeviceError> {
        self.port.wait_fd()
    }
}

impl fmt::Debug for RawCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RawCq").field(&self.owner.handle).finish()
    }
}
impl Drop for CqOwner {
    fn drop(&mut self) {
        if !self.ctx.forked()
            && let Err(error) = self.ctx.device.destroy_cq(self.handle)
        {
            tracing::error!(cq = %self.handle, %error, "the device keeps the completion queue");
        }
    }
}

/// A shared receive queue that takes bare requests.
pub struct RawSrq {
    port: Box<dyn RecvPort>,
    owner: Arc<SrqOwner>,
}

struct SrqOwner {
    pd: Arc<PdCore>,
    handle: SrqHandle,
}

impl RawSrq {
    /// Creates the queue on a device.
    ///
    /// # Errors
    /// The device's limits.
    pub fn create(pd: &Pd, init: &SrqInit) -> Result<Self, DeviceError> {
        let pd = Arc::clone(&pd.core);
        let (handle, port) = pd.ctx.device.create_srq(pd.handle, init)?;
        Ok(Self { port, owner: Arc::new(SrqOwner { pd, handle }) })
    }
    /// The handle that the device knows.
    pub fn handle(&self) -> SrqHandle {
        self.owner.handle
    }
    /// Posts requests and tells the device.
    ///
    /// # Safety
    /// Like [`RawQp::post_recv`].
    ///
    /// # Errors
    /// The first refused request and the reason; the requests before it are posted.
    pub unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: (1).
        let result = unsafe { self.port.post(wrs) };
        self.port.ring();
        result
    }
}

impl fmt::Debug for RawSrq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RawSrq").field(&self.owner.handle).finish()
    }
}
impl Drop for SrqOwner {
    fn drop(&mut self) {
        if !self.pd.ctx.forked()
            && let Err(error) = self.pd.ctx.device.destroy_srq(self.handle)
        {
            tracing::error!(srq = %self.handle, %error, "the device keeps the shared receive queue");
        }
    }
}

/// A maker of queue pairs on given queues. It keeps the queues alive while other threads use them: a program that has
/// the queues behind a lock can create queue pairs without the lock.
#[derive(Clone)]
pub struct RawQpMaker {
    pd: Arc<PdCore>,
    queues: (Arc<CqOwner>, Arc<CqOwner>, Option<Arc<SrqOwner>>),
}

impl RawQpMaker {
    /// A maker of queue pairs on these queues.
    pub fn new(pd: &Pd, send_cq: &RawCq, recv_cq: &RawCq, srq: Option<&RawSrq>) -> Self {
        let srq = srq.map(|srq| Arc::clone(&srq.owner));
        let queues = (Arc::clone(&send_cq.owner), Arc::clone(&recv_cq.owner), srq);
        Self { pd: Arc::clone(&pd.core), queues }
    }
    /// Creates a queue pair in state RESET.
    ///
    /// # Errors
    /// The device's limits.
    pub fn make(&self, qp_type: QpType, cap: QpCap) -> Result<RawQp, DeviceError> {
        let (send_cq, recv_cq, srq) = &self.queues;
        let (send_cq, recv_cq, srq) = (send_cq.handle, recv_cq.handle, srq.as_ref().map(|srq| srq.handle));
        let init = QpInit { qp_type, send_cq, recv_cq, srq, cap };
        let QpPorts { handle, qpn, cap, send, recv } = self.pd.ctx.device.create_qp(self.pd.handle, &init)?;
        let (pd, queues) = (Arc::clone(&self.pd), self.queues.clone());
        Ok(RawQp { send, recv, handle, qpn, cap, pd, destroyed: false, _queues: queues })
    }
}

impl fmt::Debug for RawQpMaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RawQpMaker").field(&self.queues.0.handle).finish()
    }
}

/// A queue pair without the safe API's bookkeeping. Dropping it destroys the device's queue pair; if the device does
/// not confirm that, it is logged, and memory of requests in flight must stay in place for ever.
pub struct RawQp {
    send: Box<dyn SendPort>,
    recv: Option<Box<dyn RecvPort>>,
    handle: QpHandle,
    qpn: Qpn,
    cap: QpCap,
    pd: Arc<PdCore>,
    destroyed: bool,
    _queues: (Arc<CqOwner>, Arc<CqOwner>, Option<Arc<SrqOwner>>),
}

impl RawQp {
    /// Creates the queue pair in state RESET.
    ///
    /// # Errors
    /// The device's limits.
    pub fn create(
        pd: &Pd,
        qp_type: QpType,
        send_cq: &RawCq,
        recv_cq: &RawCq,
        srq: Option<&RawSrq>,
        cap: QpCap,
    ) -> Result<Self, DeviceError> {
        RawQpMaker::new(pd, send_cq, recv_cq, srq).make(qp_type, cap)
    }
    /// The device's handle, which completions carry.
    pub fn handle(&self) -> QpHandle {
        self.handle
    }
    /// The queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }
    /// The granted capabilities of the queue pair.
    pub fn cap(&self) -> QpCap {
        self.cap
    }
    /// Sets attributes and changes the state.
    ///
    /// # Errors
    /// The transition's rules, or the device refused.
    pub fn modify(&mut self, attr: &QpAttr) -> Result<(), DeviceError> {
        self.pd.ctx.device.modify_qp(self.handle, attr)
    }
    /// Takes the queue pair from RESET to RTS, connected to a queue pair of the same service. `ours` is this queue
    /// pair's endpoint as the peer knows it.
    ///
    /// # Errors
    /// The services differ, a transition is not allowed, or the device refused.
    pub fn connect(
        &mut self,
        access: Access,
        ours: &Endpoint,
        remote: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        let (rtr, rts) = steps(ours, remote, options)?;
        let state = Some(QpState::Init);
        let init = QpAttr { state, pkey: Some(Pkey::DEFAULT), access: Some(access), ..QpAttr::default() };
        for attr in [init, rtr, rts] {
            self.modify(&attr)?;
        }
        Ok(())
    }
    /// The state and the attributes of the queue pair.
    ///
    /// # Errors
    /// The device refused.
    pub fn query(&self) -> Result<QpStatus, DeviceError> {
        self.pd.ctx.device.query_qp(self.handle)
    }
    /// Posts send requests and tells the device.
    ///
    /// # Safety
    /// Until a request completes (an unsignalled one: until a later one does), or this is dropped, or is in state
    /// RESET: memory in its list that is read is not written, and memory that is written (READ, atomics) is neither
    /// read nor written by references.
    ///
    /// # Errors
    /// The first refused request and the reason; the requests before it are posted.
    pub unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: (1).
        let result = unsafe { self.send.post(wrs) };
        self.send.ring();
        result
    }
    /// Posts one send request, which the device may defer until [`ring`](Self::ring).
    ///
    /// # Safety
    /// Like [`post_send`](Self::post_send).
    ///
    /// # Errors
    /// The reason why the request is refused.
    pub unsafe fn post_send_later(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        // SAFETY: (1).
        unsafe { self.send.post_one(wr) }
    }
    /// Rings the doorbell for all posted requests.
    pub fn ring(&mut self) {
        self.send.ring();
    }
    /// Posts one send request and rings the doorbell; the device may execute the request at once.
    ///
    /// # Safety
    /// Like [`post_send`](Self::post_send).
    ///
    /// # Errors
    /// The reason why the request is refused.
    #[inline]
    pub unsafe fn post_send_now(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        // SAFETY: (1).
        unsafe { self.send.post_now(wr) }
    }
    /// Posts receive requests and tells the device.
    ///
    /// # Safety
    /// Until a request completes, or this is dropped, or is in state RESET, no reference to the memory in its list
    /// is used.
    ///
    /// # Errors
    /// The first refused request and the reason; the requests before it are posted.
    pub unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let Some(recv) = &mut self.recv else {
            return Err(PostError { accepted: 0, kind: PostErrorKind::UsesSrq });
        };
        // SAFETY: (1).
        let result = unsafe { recv.post(wrs) };
        recv.ring();
        result
    }
}

impl RawQp {
    /// Destroys the queue pair. After the return the device accesses no memory for it. Returns the `wr_id`s of requests
    /// that the queue pair took from a shared receive queue and that no poll will return any more.
    ///
    /// # Errors
    /// The device did not confirm; the memory of requests in flight must then stay in place for ever.
    pub fn destroy(mut self) -> Result<Vec<u64>, DeviceError> {
        self.destroyed = true;
        if self.pd.ctx.forked() { Ok(Vec::new()) } else { self.pd.ctx.device.destroy_qp(self.handle) }
    }
}

impl fmt::Debug for RawQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RawQp").field(&self.handle).finish()
    }
}
impl Drop for RawQp {
    fn drop(&mut self) {
        if !self.destroyed
            && !self.pd.ctx.forked()
            && let Err(error) = self.pd.ctx.device.destroy_qp(self.handle)
        {
            tracing::error!(qp = %self.handle, %error, "the device keeps the queue pair");
        }
    }
}
