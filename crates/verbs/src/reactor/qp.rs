//! [`AsyncQp`]: a queue pair whose requests are futures.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use hca_core::{PostErrorKind, QpHandle, WcStatus};

use super::message::{Arrived, Home, Receive};
use super::ops::{Abandoned, Ending, Ops};
use super::request::{Drain, Ready, Reclaim, Request, RequestError, Unclaimed};
use super::waiters::Waiters;
use super::{Core, Messages, Reactor, Route, lock};
use crate::ah::UdPeer;
use crate::mr::RemoteMr;
use crate::part::sealed::List;
use crate::part::{GatherList, Part, ScatterList};
use crate::qp::{QpControl, QueuePair, RecvQueue, SendQueue};
use crate::request::SendRequest;
use crate::service::{Connected, OfferedBy, Rc, Service, Ud, ops};
use crate::{BuildError, QpBuilder, Refused, Wc, WcError};

/// A queue pair on a [`Reactor`]: requests are futures, received messages are awaited. From
/// [`QpBuilder::build_async`]. Cheap to clone; any number of tasks use it at once. It derefs to its [control](QpControl),
/// which connects it.
///
/// **Cancelling.** Dropping a request's future leaves the request in the queue. Once the request has completed,
/// [`try_reclaim`](Self::try_reclaim) and [`reclaim`](Self::reclaim) give its buffers back. The queue pair keeps as
/// many such leftovers as both queues are deep; beyond that it frees the oldest. [`recv`](Self::recv) and
/// [`ready`](Self::ready) may be cancelled at any time: no message is lost.
///
/// **Order.** Requests are posted in the order in which their futures are first polled, while there is room. Tasks that
/// wait for room are served in the order of their arrival; a request that arrives while there is room may be posted
/// before them.
///
/// **Receive requests**: the program posts them by [`post_recvs`](Self::post_recvs); each is posted again when its
/// [`Message`](super::Message) is dropped.
pub struct AsyncQp<S: Service> {
    pub(super) handle: Arc<Handle<S>>,
}

/// The state that the clones of a queue pair and its futures share.
pub(super) struct Handle<S: Service> {
    pub(super) lane: Arc<Lane<S>>,
    control: QpControl<S>,
    /// Behind the control: the device's queue pair goes first.
    attached: Attached,
}

/// The place of a queue pair among those of a reactor.
struct Attached {
    reactor: Reactor,
    qp: QpHandle,
}

/// A queue pair as its completions reach it.
pub(super) struct Lane<S: Service> {
    pub(super) send: Mutex<SendHalf<S>>,
    pub(super) recv: Mutex<RecvHalf<S>>,
    unclaimed: Mutex<Leftovers>,
    home: Option<Arc<dyn Home>>,
}

pub(super) struct SendHalf<S: Service> {
    /// `None` once the last handle is gone.
    queue: Option<SendQueue<S>>,
    pub(super) ops: Ops<Part>,
    pub(super) room: Waiters,
    /// Tasks that wait for all to come back. They take no place, so each completion wakes all of them.
    pub(super) drains: Waiters,
    pub(super) driverless: bool,
}

pub(super) struct RecvHalf<S: Service> {
    /// `None` once the last handle is gone.
    queue: Option<RecvQueue<S>>,
    pub(super) arrived: VecDeque<Arrived>,
    /// The first receive that went wrong: no message comes after it.
    pub(super) failed: Option<WcError>,
    pub(super) waiters: Waiters,
    /// Requests that were posted here, and whose ends were not handed out.
    pub(super) posted: u32,
    /// As those of the send half.
    pub(super) drains: Waiters,
    pub(super) driverless: bool,
}

/// The parts of requests that no future waited for.
struct Leftovers {
    kept: VecDeque<Unclaimed>,
    max: usize,
    waiters: Waiters,
}

impl<S: Service> QpBuilder<'_, S> {
    /// Builds a queue pair whose completions, of both queues, go to a reactor: each request is a future.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_async(self, reactor: &Reactor) -> Result<AsyncQp<S>, BuildError> {
        let qp = self.send_cq(reactor).recv_cq(reactor).build()?;
        Ok(AsyncQp { handle: Arc::new(Handle::new(qp, reactor.clone())) })
    }
}

impl<S: Service> Handle<S> {
    fn new(qp: QueuePair<S>, reactor: Reactor) -> Self {
        let (control, cap) = (qp.control(), qp.cap());
        let home = control.inner.srq.as_ref().and_then(|srq| srq.home.get()).and_then(|home| home.upgrade());
        let recv_depth = if control.inner.srq.is_some() { 0 } else { cap.max_recv_wr as usize };
        let (send, recv) = qp.split();
        let send = SendHalf {
            queue: Some(send),
            ops: Ops::with_capacity(cap.max_send_wr as usize),
            room: Waiters::default(),
            drains: Waiters::default(),
            driverless: false,
        };
        let recv = RecvHalf {
            queue: Some(recv),
            arrived: VecDeque::with_capacity(recv_depth),
            failed: None,
            waiters: Waiters::default(),
            posted: 0,
            drains: Waiters::default(),
            driverless: false,
        };
        let max = cap.max_send_wr as usize + recv_depth.max(1);
        let unclaimed = Leftovers { kept: VecDeque::new(), max, waiters: Waiters::default() };
        let lane =
            Lane { send: Mutex::new(send), recv: Mutex::new(recv), unclaimed: Mutex::new(unclaimed), home };
        let lane = Arc::new(lane);
        let attached = Attached { reactor, qp: control.handle() };
        attached.reactor.core().attach(attached.qp, Arc::clone(&lane) as Arc<dyn Route>);
        Self { lane, control, attached }
    }

    pub(super) fn core(&self) -> &Core {
        self.attached.reactor.core()
    }
}

impl<S: Service> Drop for Handle<S> {
    fn drop(&mut self) {
        // The device's queue pair goes with its halves and control, wherever the lane is kept still.
        let send = lock(&self.lane.send).queue.take();
        let mut half = lock(&self.lane.recv);
        let (recv, arrived) = (half.queue.take(), mem::take(&mut half.arrived));
        drop(half);
        drop((send, recv, arrived));
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.reactor.core().detach(self.qp);
    }
}

impl<S: Service> Route for Lane<S> {
    fn completed(&self, mut wc: Wc<'_>, wakers: &mut Vec<Waker>) {
        if wc.opcode.is_recv() {
            return self.received(wc, wakers);
        }
        let ending =
            Ending { qp: wc.qp, opcode: wc.opcode, status: wc.status, vendor_code: wc.vendor_code() };
        let mut half = lock(&self.send);
        let left = half.ops.complete(wc.id, ending, wc.take_parts(), wakers);
        wakers.extend(half.room.next_waker());
        half.drains.all(wakers);
        // Under the lock: who sees that no abandoned request is in flight finds what each has left.
        let oldest = left.and_then(|left| self.keep(left.into(), wakers));
        drop(half);
        drop(oldest);
    }

    fn close(&self, wakers: &mut Vec<Waker>) {
        let mut send = lock(&self.send);
        send.driverless = true;
        send.ops.all(wakers);
        send.room.all(wakers);
        send.drains.all(wakers);
        drop(send);
        let mut recv = lock(&self.recv);
        recv.driverless = true;
        recv.waiters.all(wakers);
        recv.drains.all(wakers);
        drop(recv);
        lock(&self.unclaimed).waiters.all(wakers);
    }
}

impl<S: Service> Lane<S> {
    fn received(&self, mut wc: Wc<'_>, wakers: &mut Vec<Waker>) {
        if let Some(error) = wc.error() {
            let parts = wc.take_parts().collect();
            self.leave(Unclaimed { id: wc.id, opcode: wc.opcode, result: Err(error.into()), parts }, wakers);
            let mut half = lock(&self.recv);
            half.posted = half.posted.saturating_sub(1);
            half.failed.get_or_insert(error);
            half.waiters.all(wakers);
            half.drains.all(wakers);
            return;
        }
        let arrived = Arrived::new(&mut wc);
        let mut half = lock(&self.recv);
        // A request of a shared queue was not posted here.
        half.posted = half.posted.saturating_sub(1);
        if half.queue.is_some() {
            half.arrived.push_back(arrived);
            wakers.extend(half.waiters.next_waker());
            half.drains.all(wakers);
        }
    }

    /// Keeps what no future waits for, and adds all tasks that ask for such: those that find nothing may have nothing to
    /// wait for any more.
    pub(super) fn leave(&self, left: Unclaimed, wakers: &mut Vec<Waker>) {
        drop(self.keep(left, wakers));
    }
    /// As [`leave`](Self::leave); the oldest goes where there are too many, its memory without a lock.
    fn keep(&self, left: Unclaimed, wakers: &mut Vec<Waker>) -> Option<Unclaimed> {
        let mut unclaimed = lock(&self.unclaimed);
        let oldest = if unclaimed.kept.len() == unclaimed.max { unclaimed.kept.pop_front() } else { None };
        unclaimed.kept.push_back(left);
        unclaimed.waiters.all(wakers);
        oldest
    }

    /// The oldest leftover.
    pub(super) fn reclaim(&self) -> Option<Unclaimed> {
        lock(&self.unclaimed).kept.pop_front()
    }
    pub(super) fn with_reclaimers<R>(
        &self,
        f: impl FnOnce(&mut VecDeque<Unclaimed>, &mut Waiters) -> R,
    ) -> R {
        let mut unclaimed = lock(&self.unclaimed);
        let Leftovers { kept, waiters, .. } = &mut *unclaimed;
        f(kept, waiters)
    }
}

/// A request that was posted.
pub(super) struct Posted<L: List> {
    /// The number that it completes under.
    pub(super) key: u64,
    /// The program's own number.
    pub(super) id: u64,
    /// The part of its list that stays outside of the queue.
    pub(super) shell: L::Shell,
}

impl<S: Service> SendHalf<S> {
    /// Posts a request, and rings if it is to be known `NOW`.
    pub(super) fn post<const NOW: bool, O: OfferedBy<S>, L: GatherList>(
        &mut self,
        request: SendRequest<O, L>,
    ) -> Result<Posted<L>, Refused<SendRequest<O, L>>> {
        let Some(queue) = &mut self.queue else {
            return Err(Refused { request, error: PostErrorKind::Destroyed.into() });
        };
        let SendRequest { mut head, local, .. } = request.signaled(true);
        let id = head.id;
        let key = self.ops.begin(id);
        head.id = key;
        let posted = queue.side.post::<NOW, _>(head, local).map(|shell| Posted { key, id, shell });
        posted.map_err(|(mut head, local, error)| {
            self.ops.end(key);
            head.id = id;
            Refused { request: SendRequest::from_parts(head, local), error }
        })
    }
    pub(super) fn has_room(&mut self) -> bool {
        self.queue.as_mut().is_none_or(|queue| queue.side.has_room())
    }
}

impl<S: Service> Home for Lane<S> {
    fn post_recv(&self, buf: crate::Buf) -> Result<(), Refused<crate::Buf>> {
        let RecvHalf { queue, posted, .. } = &mut *lock(&self.recv);
        let Some(queue) = queue else {
            return Err(Refused { request: buf, error: PostErrorKind::Destroyed.into() });
        };
        queue.post_recv(buf)?;
        *posted += 1;
        Ok(())
    }
}

impl<S: Service> AsyncQp<S> {
    /// A request as a future: it waits for room in the queue, posts, waits for the completion, and gives the list back.
    /// Requests are always signalled.
    ///
    /// ```
    /// # use hca_verbs::*;
    /// # async fn example(qp: &AsyncQp<Rc>, buf: Buf, remote: RemoteMr) -> Result<(), Box<dyn std::error::Error>> {
    /// let buf = qp.request(SendRequest::write(buf, remote).imm(7)).await?;
    /// let word = qp.request(SendRequest::fetch_add(buf.first(8), remote, 1)).await?;
    /// # Ok(()) }
    /// ```
    pub fn request<O: OfferedBy<S>, L: GatherList>(&self, request: SendRequest<O, L>) -> Request<S, O, L> {
        Request::new(&self.handle, request)
    }

    /// Posts a request now; its future waits for the completion.
    ///
    /// # Errors
    /// The request is refused and comes back: the queue is full or in a state that takes no requests, the list is too
    /// long or of another protection domain, or the remote range is too short.
    #[allow(clippy::result_large_err)] // the request comes back by value, unallocated
    pub fn try_request<O: OfferedBy<S>, L: GatherList>(
        &self,
        request: SendRequest<O, L>,
    ) -> Result<Request<S, O, L>, Refused<SendRequest<O, L>>> {
        let posted = lock(&self.handle.lane.send).post::<true, O, L>(request)?;
        Ok(Request::posted(&self.handle, posted))
    }

    /// Posts many requests by one doorbell, which rings when `post` has returned; each has a future of its own. Requests
    /// of other tasks may come between them.
    ///
    /// ```
    /// # use hca_verbs::*;
    /// # async fn example(qp: &AsyncQp<Rc>, parts: Vec<Buf>, to: RemoteMr) -> Result<(), Box<dyn std::error::Error>> {
    /// let writes = qp.batch(|batch| -> Result<Vec<_>, PostRefusal> {
    ///     let at = |i: usize| to.try_range(i * 4096..).unwrap_or_default();
    ///     parts.into_iter().enumerate().map(|(i, part)| Ok(batch.post(SendRequest::write(part, at(i)))?)).collect()
    /// })?;
    /// for write in writes {
    ///     write.await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn batch<R>(&self, post: impl FnOnce(&mut AsyncBatch<'_, S>) -> R) -> R {
        post(&mut AsyncBatch { handle: &self.handle, posted: false })
    }

    /// Waits until the send queue has room for a request. Another task may take it first.
    pub fn ready(&self) -> Ready<S> {
        Ready::new(&self.handle)
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// The request is refused, and its buffer comes back: the queue is full or in a state that takes no requests, the
    /// buffer is of another protection domain, or a shared receive queue is used.
    pub fn post_recv(&self, buf: crate::Buf) -> Result<(), Refused<crate::Buf>> {
        self.handle.lane.post_recv(buf)
    }
    /// Posts several receive requests.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv), for the first refused request; the requests before it are posted.
    pub fn post_recvs(&self, bufs: impl IntoIterator<Item = crate::Buf>) -> Result<(), Refused<crate::Buf>> {
        bufs.into_iter().try_for_each(|buf| self.post_recv(buf))
    }

    /// The next message. A cancelled call leaves the message to the next call.
    ///
    /// # Errors
    /// A receive request failed, and all messages before it were taken; or the reactor's driver was dropped.
    pub fn recv(&self) -> Receive<S> {
        Receive::new(&self.handle)
    }
    /// The next message, if there is one.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn try_recv(&self) -> Result<Option<super::Message>, RequestError> {
        self.handle.core().try_turn();
        self.handle.take_message()
    }
    /// The messages as they come, as a stream. It ends after its first error.
    pub fn messages(&self) -> Messages<S> {
        Messages::new(&self.handle)
    }

    /// The buffers of the oldest request whose future was dropped, or of a receive request that failed.
    pub fn try_reclaim(&self) -> Option<Unclaimed> {
        self.handle.core().try_turn();
        self.handle.lane.reclaim()
    }
    /// The buffers of such a request, like [`try_reclaim`](Self::try_reclaim), after a wait until a request whose
    /// future was dropped has completed. `None` if there is no such request.
    pub fn reclaim(&self) -> Reclaim<S> {
        Reclaim::new(&self.handle)
    }

    /// Drains the queue pair: moves it to the error state at once; the future waits until all posted requests have
    /// completed. Earlier messages can still be [received](Self::recv), and buffers of flushed requests
    /// [reclaimed](Self::reclaim). Requests of a shared receive queue are not waited for.
    ///
    /// # Errors
    /// The device refused.
    pub fn drain(&self) -> Result<Drain<S>, crate::DeviceError> {
        self.to_error()?;
        Ok(Drain::new(&self.handle))
    }

    /// The reactor that drives this queue pair.
    pub fn reactor(&self) -> &Reactor {
        &self.handle.attached.reactor
    }
}

impl<S: Connected> AsyncQp<S>
where
    ops::Send: OfferedBy<S>,
    ops::Write: OfferedBy<S>,
{
    /// SEND: the list comes back when the peer has acknowledged the message (RC), or when the message has left (UC).
    pub fn send<L: GatherList>(&self, local: L) -> Request<S, ops::Send, L> {
        self.request(SendRequest::send(local))
    }
    /// RDMA WRITE to the beginning of `remote`.
    pub fn write<L: GatherList>(&self, local: L, remote: RemoteMr) -> Request<S, ops::Write, L> {
        self.request(SendRequest::write(local, remote))
    }
}

impl AsyncQp<Rc> {
    /// RDMA READ from the beginning of `remote`, as many bytes as the list has.
    pub fn read<L: ScatterList>(&self, local: L, remote: RemoteMr) -> Request<Rc, ops::Read, L> {
        self.request(SendRequest::read(local, remote))
    }
    /// Adds to the word at the beginning of `remote`. Its old value comes back in the 8 bytes of the list, in this
    /// machine's byte order.
    pub fn fetch_add<L: ScatterList>(
        &self,
        local: L,
        remote: RemoteMr,
        add: u64,
    ) -> Request<Rc, ops::Atomic, L> {
        self.request(SendRequest::fetch_add(local, remote, add))
    }
    /// Replaces the word at the beginning of `remote` by `swap` if it equals `compare`. Its old value comes back in the
    /// 8 bytes of the list, in this machine's byte order.
    pub fn compare_swap<L: ScatterList>(
        &self,
        local: L,
        remote: RemoteMr,
        compare: u64,
        swap: u64,
    ) -> Request<Rc, ops::Atomic, L> {
        self.request(SendRequest::compare_swap(local, remote, compare, swap))
    }
}

impl AsyncQp<Ud> {
    /// Sends a datagram; the list comes back when it has left.
    pub fn send_to<L: GatherList>(&self, local: L, peer: &UdPeer) -> Request<Ud, ops::Datagram, L> {
        self.request(SendRequest::send(local).to(peer))
    }
}

impl<S: Service> Clone for AsyncQp<S> {
    fn clone(&self) -> Self {
        Self { handle: Arc::clone(&self.handle) }
    }
}
impl<S: Service> Deref for AsyncQp<S> {
    type Target = QpControl<S>;
    fn deref(&self) -> &QpControl<S> {
        &self.handle.control
    }
}
impl<S: Service> fmt::Debug for AsyncQp<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.control.fmt(f)
    }
}

/// Requests that one doorbell announces to the device. See [`AsyncQp::batch`].
pub struct AsyncBatch<'a, S: Service> {
    handle: &'a Arc<Handle<S>>,
    posted: bool,
}

impl<S: Service> AsyncBatch<'_, S> {
    /// Posts a request; its future waits for the completion.
    ///
    /// # Errors
    /// As [`AsyncQp::try_request`]; the requests before it are posted.
    #[allow(clippy::result_large_err)] // the request comes back by value, unallocated
    pub fn post<O: OfferedBy<S>, L: GatherList>(
        &mut self,
        request: SendRequest<O, L>,
    ) -> Result<Request<S, O, L>, Refused<SendRequest<O, L>>> {
        // Locked for each by itself: the program may drop a request that it has just posted, or use the queue.
        let posted = lock(&self.handle.lane.send).post::<false, O, L>(request)?;
        self.posted = true;
        Ok(Request::posted(self.handle, posted))
    }
}

impl<S: Service> Drop for AsyncBatch<'_, S> {
    fn drop(&mut self) {
        if self.posted
            && let Some(queue) = &mut lock(&self.handle.lane.send).queue
        {
            queue.side.ring();
        }
    }
}
impl<S: Service> fmt::Debug for AsyncBatch<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncBatch").finish_non_exhaustive()
    }
}

impl From<Abandoned<Part>> for Unclaimed {
    fn from(left: Abandoned<Part>) -> Self {
        let Abandoned { id, ending, parts } = left;
        Self { id, opcode: ending.opcode, result: ending.result(id).map_err(RequestError::from), parts }
    }
}

impl Ending {
    /// The program's result.
    pub(super) fn result(self, id: u64) -> Result<(), WcError> {
        let Self { qp, opcode, status, vendor_code } = self;
        if status == WcStatus::Success {
            Ok(())
        } else {
            Err(WcError { id, qp, opcode, status, vendor_code })
        }
    }
}

impl<S: Service> Handle<S> {
    /// Where a message's buffer is posted anew.
    pub(super) fn home(&self) -> Arc<dyn Home> {
        self.lane.home.clone().unwrap_or_else(|| Arc::clone(&self.lane) as Arc<dyn Home>)
    }
}
