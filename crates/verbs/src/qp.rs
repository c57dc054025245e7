//! Queue pairs: posting, and their two halves.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hca_core::{
    Access, AckTimeout, AsyncEvent, DeviceError, PostErrorKind, Qkey, QpAttr, QpCap, QpHandle, QpState,
    QpStatus, QpType, Qpn, WcOpcode,
};

use crate::ah::UdPeer;
use crate::connect::{ConnectOptions, Endpoint, steps};
use crate::cq::{CqShared, Need, unregister};
use crate::mr::RemoteMr;
use crate::part::{GatherList, Held, Inline, ScatterList};
use crate::pd::PdCore;
use crate::post::{RecvSide, SendSide};
use crate::rd::{RdDomain, RdPeer};
use crate::request::SendRequest;
use crate::service::{Connected, OfferedBy, Rc, Rd, Service, Ud, ops};
use crate::slots::{RecvSlots, RingSlots};
use crate::srq::SrqInner;
use crate::wait::deadline;
use crate::{CompletionQueue, Completions, ConnectError, PostRefusal, Refused, WaitError, Wc, sync};

/// How long a drain waits for completions between two looks for its event.
const EVENT_LOOK: Duration = Duration::from_millis(1);

/// A queue pair of service `S`. Built by [`Pd::qp`](crate::Pd::qp), connected by
/// [`connect`](QpControl::connect) or, as a datagram one, by [`activate`](QpControl::activate).
///
/// It consists of two halves for posting ([`SendQueue`], [`RecvQueue`]) and a control handle ([`QpControl`], to which
/// it derefs). Several threads can use the three apart, after [`split`](Self::split). When the last of them is dropped,
/// the device's queue pair is destroyed, and its buffers in flight are freed, at the latest when its completion queue
/// is next polled.
pub struct QueuePair<S: Service> {
    /// The sending half.
    pub sq: SendQueue<S>,
    /// The receiving half.
    pub rq: RecvQueue<S>,
}

impl<S: Service> QueuePair<S> {
    pub(crate) fn new(inner: QpInner, send: SendSide, recv: Option<RecvSide>) -> Self {
        let control = QpControl { inner: Arc::new(inner), service: PhantomData };
        Self { sq: SendQueue { side: send, control: control.clone() }, rq: RecvQueue { side: recv, control } }
    }

    /// Splits the queue pair into its two halves, for a thread each. Each half still has the [control
    /// handle](QpControl).
    pub fn split(self) -> (SendQueue<S>, RecvQueue<S>) {
        (self.sq, self.rq)
    }
    /// A handle that controls the queue pair, for use elsewhere.
    pub fn control(&self) -> QpControl<S> {
        self.sq.control.clone()
    }

    /// Posts a request and rings the doorbell, like [`SendQueue::post_send`].
    ///
    /// # Errors
    /// As [`SendQueue::post_send`].
    #[inline(always)]
    pub fn post_send<O: OfferedBy<S>, L: GatherList>(
        &mut self,
        request: SendRequest<O, L>,
    ) -> Result<(), Refused<SendRequest<O, L>>> {
        self.sq.post_send(request)
    }
    /// Has a request done within the call, like [`SendQueue::carry_out`].
    ///
    /// # Errors
    /// As [`SendQueue::carry_out`].
    #[inline(always)]
    #[allow(clippy::result_large_err)] // the request comes back by value, unallocated
    pub fn carry_out<O: OfferedBy<S>, L: GatherList>(
        &mut self,
        request: SendRequest<O, L>,
    ) -> Result<L, SendRequest<O, L>> {
        self.sq.carry_out(request)
    }
    /// Begins a batch of send requests, like [`SendQueue::batch`].
    pub fn batch(&mut self) -> SendBatch<'_, S> {
        self.sq.batch()
    }
    /// Posts a receive request with id 0, like [`RecvQueue::post_recv`].
    ///
    /// # Errors
    /// As [`RecvQueue::post_recv`].
    #[inline(always)]
    pub fn post_recv<L: ScatterList>(&mut self, local: L) -> Result<(), Refused<L>> {
        self.rq.post_recv(local)
    }
    /// Posts a receive request with an id, like [`RecvQueue::post_recv_id`].
    ///
    /// # Errors
    /// As [`RecvQueue::post_recv_id`].
    #[inline(always)]
    pub fn post_recv_id<L: ScatterList>(&mut self, id: u64, local: L) -> Result<(), Refused<L>> {
        self.rq.post_recv_id(id, local)
    }
    /// Begins a batch of receive requests, like [`RecvQueue::batch`].
    pub fn recv_batch(&mut self) -> RecvBatch<'_> {
        self.rq.batch()
    }
}

impl<S: Connected> QueuePair<S>
where
    ops::Send: OfferedBy<S>,
    ops::Write: OfferedBy<S>,
{
    /// Posts a plain SEND, like [`SendQueue::send`].
    ///
    /// # Errors
    /// As [`SendQueue::send`].
    #[inline(always)]
    pub fn send<L: GatherList>(&mut self, local: L) -> Result<(), Refused<L::Back>> {
        self.sq.send(local)
    }
    /// Posts a plain SEND of inline bytes, like [`SendQueue::send_inline`].
    ///
    /// # Errors
    /// As [`SendQueue::send_inline`].
    #[inline(always)]
    pub fn send_inline(&mut self, bytes: &[u8]) -> Result<(), PostRefusal> {
        self.sq.send_inline(bytes)
    }
    /// Posts a plain RDMA WRITE, like [`SendQueue::write`].
    ///
    /// # Errors
    /// As [`SendQueue::write`].
    #[inline(always)]
    pub fn write<L: GatherList>(&mut self, local: L, remote: RemoteMr) -> Result<(), Refused<L::Back>> {
        self.sq.write(local, remote)
    }
}

impl QueuePair<Rc> {
    /// Posts a plain RDMA READ, like [`SendQueue::read`].
    ///
    /// # Errors
    /// As [`SendQueue::read`].
    #[inline(always)]
    pub fn read<L: ScatterList>(&mut self, local: L, remote: RemoteMr) -> Result<(), Refused<L::Back>> {
        self.sq.read(local, remote)
    }
}

impl QueuePair<Ud> {
    /// Posts a plain datagram, like [`SendQueue::send_to`].
    ///
    /// # Errors
    /// As [`SendQueue::send_to`].
    #[inline(always)]
    pub fn send_to<L: GatherList>(&mut self, local: L, peer: &UdPeer) -> Result<(), Refused<L::Back>> {
        self.sq.send_to(local, peer)
    }
}

impl QueuePair<Rd> {
    /// Posts a plain SEND as a reliable datagram, like [`SendQueue::send_to`](SendQueue::<Rd>::send_to).
    ///
    /// # Errors
    /// As [`SendQueue::post_send`].
    pub fn send_to<L: GatherList>(&mut self, local: L, peer: &RdPeer) -> Result<(), Refused<L::Back>> {
        self.sq.send_to(local, peer)
    }
}

impl<S: Service> Deref for QueuePair<S> {
    type Target = QpControl<S>;
    fn deref(&self) -> &QpControl<S> {
        &self.sq.control
    }
}
impl<S: Service> fmt::Debug for QueuePair<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sq.control.fmt(f)
    }
}

/// The sending half of a queue pair. One thread at a time posts.
pub struct SendQueue<S: Service> {
    pub(crate) side: SendSide,
    control: QpControl<S>,
}

impl<S: Service> SendQueue<S> {
    /// Posts a request and tells the device.
    ///
    /// # Errors
    /// The request is refused and comes back: the queue is full or in a state that takes no requests, the list is too
    /// long or of another protection domain, or the remote range is too short.
    #[inline(always)]
    #[allow(clippy::result_large_err)] // the request comes back by value, unallocated
    pub fn post_send<O: OfferedBy<S>, L: GatherList>(
        &mut self,
        request: SendRequest<O, L>,
    ) -> Result<(), Refused<SendRequest<O, L>>> {
        self.side.post_request::<true, O, L>(request)
    }

    /// Does a READ, a WRITE, an atomic or a FLUSH on the memory of a [near](hca_core::QpStatus::near) peer within the
    /// call, without a completion: the list comes back, and a READ's bytes are there. A WRITE may have more
    /// [`Inline`](crate::Inline) bytes than the queue pair takes.
    ///
    /// ```
    /// # use hca_verbs::*;
    /// # fn example(sq: &mut SendQueue<Rc>, word: Buf, from: RemoteMr) -> Result<(), PostRefusal> {
    /// match sq.carry_out(SendRequest::read(word, from)) {
    ///     Ok(word) => println!("{word:?}"),
    ///     // By the queue, with a completion.
    ///     Err(request) => sq.post_send(request).map_err(|refused| refused.error)?,
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Nothing was done: the peer is not near; its adapter has granted no access to the region yet, for which a post asks;
    /// earlier requests are under way; the list has more than one entry; or the request is none that may be done. It comes
    /// back. A post of it gives the reason, if it is wrong.
    #[inline(always)]
    #[allow(clippy::result_large_err)] // the request comes back by value, unallocated
    pub fn carry_out<O: OfferedBy<S>, L: GatherList>(
        &mut self,
        request: SendRequest<O, L>,
    ) -> Result<L, SendRequest<O, L>> {
        self.side.carry_out(request)
    }

    /// Begins a batch: many requests, one doorbell.
    ///
    /// ```
    /// # use hca_verbs::*;
    /// # fn example(sq: &mut SendQueue<Rc>, parts: Vec<Buf>, remote: RemoteMr) -> Result<(), Box<dyn std::error::Error>> {
    /// let last = parts.len() - 1;
    /// let mut batch = sq.batch();
    /// for (i, part) in parts.into_iter().enumerate() {
    ///     let at = remote.try_range(i * 4096..)?;
    ///     batch.post_send(SendRequest::write(part, at).id(i as u64).signaled(i == last))?;
    /// }
    /// batch.ring();
    /// # Ok(()) }
    /// ```
    pub fn batch(&mut self) -> SendBatch<'_, S> {
        SendBatch { queue: self, posted: 0 }
    }

    /// The handle that controls the queue pair.
    pub fn control(&self) -> &QpControl<S> {
        &self.control
    }

    #[inline(always)]
    #[allow(clippy::result_large_err)] // the request comes back by value, unallocated
    fn post_plain<O: OfferedBy<S>, L: GatherList>(
        &mut self,
        request: SendRequest<O, L>,
    ) -> Result<(), Refused<L::Back>> {
        self.post_send(request)
            .map_err(|Refused { request, error }| Refused { request: request.into_local().back(), error })
    }
}

impl<S: Connected> SendQueue<S>
where
    ops::Send: OfferedBy<S>,
    ops::Write: OfferedBy<S>,
{
    /// Posts a plain SEND, signalled, id 0.
    ///
    /// # Errors
    /// Like [`post_send`](Self::post_send).
    #[inline(always)]
    #[allow(clippy::result_large_err)]
    pub fn send<L: GatherList>(&mut self, local: L) -> Result<(), Refused<L::Back>> {
        self.post_plain(SendRequest::send(local))
    }
    /// Posts a plain SEND of bytes that are copied at once, so that no buffer has to come back.
    ///
    /// # Errors
    /// Like [`post_send`](Self::post_send).
    #[inline(always)]
    pub fn send_inline(&mut self, bytes: &[u8]) -> Result<(), PostRefusal> {
        self.post_plain(SendRequest::send(Inline(bytes))).map_err(|refused| refused.error)
    }
    /// Posts a plain RDMA WRITE, signalled, id 0.
    ///
    /// # Errors
    /// Like [`post_send`](Self::post_send).
    #[inline(always)]
    #[allow(clippy::result_large_err)]
    pub fn write<L: GatherList>(&mut self, local: L, remote: RemoteMr) -> Result<(), Refused<L::Back>> {
        self.post_plain(SendRequest::write(local, remote))
    }
}

impl SendQueue<Rc> {
    /// Posts a plain RDMA READ, signalled, id 0.
    ///
    /// # Errors
    /// Like [`post_send`](Self::post_send).
    #[inline(always)]
    #[allow(clippy::result_large_err)]
    pub fn read<L: ScatterList>(&mut self, local: L, remote: RemoteMr) -> Result<(), Refused<L::Back>> {
        self.post_plain(SendRequest::read(local, remote))
    }
}

impl SendQueue<Ud> {
    /// Posts a plain datagram, signalled, id 0.
    ///
    /// # Errors
    /// Like [`post_send`](Self::post_send).
    #[inline(always)]
    #[allow(clippy::result_large_err)]
    pub fn send_to<L: GatherList>(&mut self, local: L, peer: &UdPeer) -> Result<(), Refused<L::Back>> {
        self.post_plain(SendRequest::send(local).to(peer))
    }
}

impl SendQueue<Rd> {
    /// Posts a plain SEND as a reliable datagram, signalled, id 0.
    ///
    /// # Errors
    /// Like [`post_send`](Self::post_send).
    #[allow(clippy::result_large_err)]
    pub fn send_to<L: GatherList>(&mut self, local: L, peer: &RdPeer) -> Result<(), Refused<L::Back>> {
        self.post_plain(SendRequest::send(local).to_peer(peer))
    }
}

impl<S: Service> fmt::Debug for SendQueue<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.control.fmt(f)
    }
}

/// A batch of send requests, which one doorbell announces, by [`ring`](Self::ring) or when the batch is dropped.
pub struct SendBatch<'a, S: Service> {
    queue: &'a mut SendQueue<S>,
    posted: usize,
}

impl<S: Service> SendBatch<'_, S> {
    /// Posts a request to the send queue.
    ///
    /// # Errors
    /// Like [`SendQueue::post_send`]; the requests before it are posted.
    #[inline(always)]
    #[allow(clippy::result_large_err)]
    pub fn post_send<O: OfferedBy<S>, L: GatherList>(
        &mut self,
        request: SendRequest<O, L>,
    ) -> Result<(), Refused<SendRequest<O, L>>> {
        self.queue.side.post_request::<false, O, L>(request)?;
        self.posted += 1;
        Ok(())
    }
    /// Rings the doorbell, and returns the number of posted requests.
    pub fn ring(self) -> usize {
        self.posted
    }
}

impl<S: Service> Drop for SendBatch<'_, S> {
    fn drop(&mut self) {
        if self.posted > 0 {
            self.queue.side.ring();
        }
    }
}
impl<S: Service> fmt::Debug for SendBatch<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBatch").field("posted", &self.posted).finish_non_exhaustive()
    }
}

/// The receiving half of a queue pair. One thread at a time posts. With a shared receive queue it takes no requests,
/// which are posted to the shared queue.
pub struct RecvQueue<S: Service> {
    side: Option<RecvSide>,
    control: QpControl<S>,
}

impl<S: Service> RecvQueue<S> {
    /// Why a queue pair without a receive queue refuses a request.
    const NONE: PostErrorKind = match S::TYPE {
        QpType::XrcIni => PostErrorKind::Unsupported { qp_type: S::TYPE, op: WcOpcode::Recv },
        _ => PostErrorKind::UsesSrq,
    };
    /// Posts a receive request with id 0, and tells the device. A datagram needs 40 bytes more than its payload.
    ///
    /// # Errors
    /// The request is refused, and its list comes back: the queue is full or in a state that takes no requests, the
    /// list is too long or of another protection domain, or a shared receive queue is used.
    #[inline(always)]
    pub fn post_recv<L: ScatterList>(&mut self, local: L) -> Result<(), Refused<L>> {
        self.post_recv_id(0, local)
    }
    /// Like [`post_recv`](Self::post_recv), with an id.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv).
    #[inline(always)]
    pub fn post_recv_id<L: ScatterList>(&mut self, id: u64, local: L) -> Result<(), Refused<L>> {
        post_recv::<true, _>(self.side.as_mut(), id, local, Self::NONE)
    }
    /// Begins a batch: many requests, one doorbell.
    pub fn batch(&mut self) -> RecvBatch<'_> {
        RecvBatch { side: self.side.as_mut(), posted: 0, none: Self::NONE }
    }
    /// The handle that controls the queue pair.
    pub fn control(&self) -> &QpControl<S> {
        &self.control
    }
}

impl<S: Service> fmt::Debug for RecvQueue<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.control.fmt(f)
    }
}

/// A batch of receive requests, which one doorbell announces, by [`ring`](Self::ring) or when the batch is dropped.
pub struct RecvBatch<'a> {
    side: Option<&'a mut RecvSide>,
    posted: usize,
    none: PostErrorKind,
}

impl<'a> RecvBatch<'a> {
    pub(crate) fn of(side: &'a mut RecvSide) -> Self {
        Self { side: Some(side), posted: 0, none: PostErrorKind::UsesSrq }
    }
    /// Posts a request to the receive queue.
    ///
    /// # Errors
    /// Like [`RecvQueue::post_recv`]; the requests before it are posted.
    #[inline(always)]
    pub fn post_recv<L: ScatterList>(&mut self, local: L) -> Result<(), Refused<L>> {
        self.post_recv_id(0, local)
    }
    /// Like [`post_recv`](Self::post_recv), with an id.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv).
    #[inline(always)]
    pub fn post_recv_id<L: ScatterList>(&mut self, id: u64, local: L) -> Result<(), Refused<L>> {
        post_recv::<false, _>(self.side.as_deref_mut(), id, local, self.none)?;
        self.posted += 1;
        Ok(())
    }
    /// Rings the doorbell, and returns the number of posted requests.
    pub fn ring(self) -> usize {
        self.posted
    }
}

impl Drop for RecvBatch<'_> {
    fn drop(&mut self) {
        if let Some(side) = self.side.as_deref_mut().filter(|_| self.posted > 0) {
            side.ring();
        }
    }
}
impl fmt::Debug for RecvBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBatch").field("posted", &self.posted).finish_non_exhaustive()
    }
}

#[inline(always)]
fn post_recv<const NOW: bool, L: ScatterList>(
    side: Option<&mut RecvSide>,
    id: u64,
    local: L,
    none: PostErrorKind,
) -> Result<(), Refused<L>> {
    let Some(side) = side else {
        return Err(Refused { request: local, error: none.into() });
    };
    side.post::<NOW, _>(id, local).map_err(|(request, error)| Refused { request, error })
}

/// A handle that controls the states and attributes of a queue pair. Cheap to clone; it keeps the queue pair alive.
pub struct QpControl<S: Service> {
    pub(crate) inner: Arc<QpInner>,
    service: PhantomData<fn() -> S>,
}

impl<S: Service> Clone for QpControl<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), service: PhantomData }
    }
}

impl<S: Service> QpControl<S> {
    /// The queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.inner.endpoint.qpn
    }
    /// The device's handle, which completions carry.
    pub fn handle(&self) -> QpHandle {
        self.inner.handle
    }
    /// The number that the queue pair was built with, which completions carry.
    pub fn context(&self) -> u64 {
        self.inner.context
    }
    /// The limits that the queue pair was built with.
    pub fn cap(&self) -> QpCap {
        self.inner.cap
    }
    /// The data that the peer must know to connect.
    pub fn endpoint(&self) -> Endpoint {
        self.inner.endpoint
    }

    /// The state and the attributes of the queue pair.
    ///
    /// # Errors
    /// The device refused.
    pub fn query(&self) -> Result<QpStatus, DeviceError> {
        self.inner.pd.ctx.device.query_qp(self.inner.handle)
    }

    /// Sets attributes and changes the state, by the transitions of the IBA. RESET is refused, because it would drop
    /// requests without a completion.
    ///
    /// # Errors
    /// The transition's rules, or the device refused.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), ConnectError> {
        if attr.state == Some(QpState::Reset) {
            return Err(ConnectError::Reset);
        }
        Ok(self.inner.pd.ctx.device.modify_qp(self.inner.handle, attr)?)
    }

    /// Moves the queue pair to the error state: every outstanding request completes as flushed. Poll until
    /// [`outstanding`](Self::outstanding) returns zeros.
    ///
    /// # Errors
    /// The device refused.
    pub fn to_error(&self) -> Result<(), DeviceError> {
        self.inner.set_error()
    }

    /// Drains the queue pair: moves it to the error state, and passes each completion of `cq` to `each`, until all
    /// completions of this queue pair have come, with their buffers. Completions of other queue pairs on `cq` are
    /// passed as well. With a shared receive queue the call also waits for [`AsyncEvent::LastWqeReached`], after which
    /// the queue pair takes no request from the shared queue; no other thread may take events meanwhile, and other
    /// events stay queued. If the two queues complete on two completion queues, call it for each.
    ///
    /// ```
    /// # use hca_verbs::*;
    /// # fn example(qp: &QueuePair<Rc>, cq: &mut CompletionQueue) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut bufs = Vec::new();
    /// qp.drain(cq, None, |mut wc| bufs.extend(wc.take_bufs()))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The device refused, or some completions did not come in time.
    pub fn drain(
        &self,
        cq: &mut CompletionQueue,
        timeout: Option<Duration>,
        mut each: impl FnMut(Wc<'_>),
    ) -> Result<(), WaitError> {
        let (inner, deadline) = (&*self.inner, deadline(timeout));
        let ctx = &inner.pd.ctx;
        inner.set_error()?;
        let is_of = |shared: &Arc<CqShared>| Arc::ptr_eq(shared, &cq.as_ref().shared);
        let (sends, recvs) = (is_of(&inner.send_cq.0), is_of(&inner.recv_cq.0));
        let event = AsyncEvent::LastWqeReached(inner.handle);
        let mut wcs = Completions::default();
        loop {
            // The event comes once; a drain that is called again knows of it.
            if ctx.events.take(&*ctx.device, event) {
                inner.last_wqe_reached.store(true, Ordering::Relaxed);
            }
            let last_reached =
                inner.srq.is_none() || !recvs || inner.last_wqe_reached.load(Ordering::Relaxed);
            let polled = cq.poll(&mut wcs);
            let none = polled.len() == 0;
            polled.for_each(&mut each);
            let (send, recv) = self.outstanding();
            // Requests of a shared queue are others' as well: the event came before this look at the queue, which was
            // empty.
            let left = sends && send > 0 || recvs && inner.srq.is_none() && recv > 0;
            if last_reached && none && !left {
                return Ok(());
            }
            if !none {
                continue;
            }
            let time = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if time == Some(Duration::ZERO) {
                return Err(WaitError::TimedOut(timeout.unwrap_or_default()));
            }
            // The event wakes no waiter for completions.
            let look = if last_reached { time } else { Some(time.unwrap_or(EVENT_LOOK).min(EVENT_LOOK)) };
            match cq.wait(&mut wcs, look) {
                Ok(polled) => polled.for_each(&mut each),
                Err(WaitError::TimedOut(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The numbers of send and receive requests that are posted and that no poll has returned. With a shared receive
    /// queue, the second is of the whole shared queue.
    pub fn outstanding(&self) -> (u32, u32) {
        (self.outstanding_sends(), self.inner.recv.outstanding())
    }
    /// The number of send requests that are posted and not yet given back. It costs two loads, where the number of
    /// receive requests of a shared queue takes a look at each of its places.
    pub fn outstanding_sends(&self) -> u32 {
        self.inner.send.outstanding()
    }
}

impl<S: Connected> QpControl<S> {
    /// Connects the queue pair to a queue pair of the same service, an XRC initiator to an
    /// [`XrcTarget`](crate::XrcTarget), and makes it ready to send. The far end has to do the same; RC and XRC repeat
    /// messages that are sent before that, and UC loses them.
    ///
    /// # Errors
    /// The far end has another service, the queue pair is connected already, a value is out of range, or there is no
    /// path. The queue pair then stays unchanged.
    pub fn connect(&self, remote: &Endpoint, options: &ConnectOptions) -> Result<(), ConnectError> {
        let (rtr, rts) = steps(&self.inner.endpoint, remote, options)?;
        self.modify(&rtr)?;
        self.modify(&rts)
    }

    /// Changes how a connected queue pair retries: the timeout for an acknowledgement, and the number of attempts while
    /// the peer has no receive request. `None` leaves a value as it is. The send queue is drained meanwhile (SQD), so
    /// requests that were posted before complete by the old values.
    ///
    /// # Errors
    /// The queue pair is not connected, a value is out of range, or the device refused. A connected queue pair goes on as
    /// before.
    pub fn set_retries(
        &self,
        timeout: Option<AckTimeout>,
        rnr_retry: Option<u8>,
    ) -> Result<(), ConnectError> {
        let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
        self.modify(&to(QpState::Sqd))?;
        let changed = self.modify(&QpAttr { timeout, rnr_retry, ..to(QpState::Sqd) });
        // A drained queue carries nothing out, whatever became of the change.
        self.modify(&to(QpState::Rts)).and(changed)
    }

    /// Changes the peer's access rights.
    ///
    /// # Errors
    /// The state does not allow it, or the device refused.
    pub fn set_access(&self, access: Access) -> Result<(), ConnectError> {
        self.modify(&QpAttr { access: Some(access), ..QpAttr::default() })
    }
}

impl QpControl<Ud> {
    /// Makes the queue pair ready to send and receive datagrams that carry `qkey`.
    ///
    /// # Errors
    /// The queue pair is active already, or the device refused.
    pub fn activate(&self, qkey: Qkey) -> Result<(), ConnectError> {
        self.modify(&QpAttr { state: Some(QpState::Rtr), qkey: Some(qkey), ..QpAttr::default() })?;
        let sq_psn = Some(self.inner.endpoint.psn);
        self.modify(&QpAttr { state: Some(QpState::Rts), sq_psn, ..QpAttr::default() })
    }
}

impl<S: Service> fmt::Debug for QpControl<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("service", &S::TYPE)
            .field("qpn", &self.qpn())
            .field("handle", &self.handle())
            .finish_non_exhaustive()
    }
}

/// The state that the halves and controls of a queue pair share. Dropping it destroys the device's queue pair first,
/// and releases the slots then.
pub(crate) struct QpInner {
    pub(crate) pd: Arc<PdCore>,
    pub(crate) handle: QpHandle,
    pub(crate) endpoint: Endpoint,
    pub(crate) context: u64,
    pub(crate) cap: QpCap,
    pub(crate) send: sync::Arc<RingSlots<Held>>,
    pub(crate) recv: RecvSlots<Held>,
    pub(crate) send_cq: (Arc<CqShared>, Need),
    pub(crate) recv_cq: (Arc<CqShared>, Need),
    pub(crate) srq: Option<Arc<SrqInner>>,
    /// A drain has taken the event that the shared receive queue is given up.
    pub(crate) last_wqe_reached: AtomicBool,
    /// Kept for the queue pair, which is destroyed before.
    pub(crate) _rd: Option<RdDomain>,
}

impl QpInner {
    fn set_error(&self) -> Result<(), DeviceError> {
        let attr = QpAttr { state: Some(QpState::Error), ..QpAttr::default() };
        self.pd.ctx.device.modify_qp(self.handle, &attr)
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        let forked = self.pd.ctx.forked();
        if !forked {
            match self.pd.ctx.device.destroy_qp(self.handle) {
                Ok(lost) => {
                    if let Some(srq) = &self.srq {
                        for wr_id in lost {
                            let _ = srq.slots.take(wr_id, drop);
                        }
                    }
                    let ((send_cq, send_need), (recv_cq, recv_need)) = (&self.send_cq, &self.recv_cq);
                    unregister(send_cq, recv_cq, self.handle);
                    // None of its completions holds an entry any more.
                    send_cq.release(*send_need);
                    recv_cq.release(*recv_need);
                    return;
                }
                Err(error) => {
                    tracing::error!(qp = %self.handle, %error, "leaking buffers: the device keeps the queue pair");
                }
            }
        }
        std::mem::forget((sync::Arc::clone(&self.send), self.recv.clone(), self.srq.clone()));
    }
}
