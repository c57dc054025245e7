//! Received messages as values; dropping one posts its buffer again.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};

use futures_core::Stream;
use hca_core::{Completion, RecvExtra};

use super::lock;
use super::qp::{Handle, RecvHalf};
use super::request::RequestError;
use super::waiters::Ticket;
use crate::grh::Grh;
use crate::service::Service;
use crate::{AddressHandle, Buf, DeviceError, Pd, QpHandle, Qpn, Refused, Rkey, Srq, SrqRef, Wc};

/// Where receive requests are posted.
pub(crate) trait Home: Send + Sync {
    fn post_recv(&self, buf: Buf) -> Result<(), Refused<Buf>>;
}

/// A message that waits to be taken.
pub(super) struct Arrived {
    buf: Option<Buf>,
    start: usize,
    completion: Completion,
}

impl Arrived {
    pub(super) fn new(wc: &mut Wc<'_>) -> Self {
        Self { buf: wc.take_buf(), start: wc.payload_start(), completion: **wc }
    }
}

/// A received message, which derefs to its payload. Dropping it posts its buffer again, to the queue that it came from.
pub struct Message {
    buf: Option<Buf>,
    /// Where the payload begins.
    start: usize,
    completion: Completion,
    home: Arc<dyn Home>,
}

impl Message {
    /// The immediate data, if the message has any.
    pub fn imm(&self) -> Option<u32> {
        match self.completion.extra {
            RecvExtra::Imm(data) => Some(data),
            RecvExtra::None | RecvExtra::Invalidated(_) => None,
        }
    }
    /// The key that the sender invalidated, if it did.
    pub fn invalidated(&self) -> Option<Rkey> {
        match self.completion.extra {
            RecvExtra::Invalidated(rkey) => Some(rkey),
            RecvExtra::None | RecvExtra::Imm(_) => None,
        }
    }
    /// The number of bytes that arrived; the bytes of an RDMA WRITE with immediate are not in the payload.
    pub fn byte_len(&self) -> u32 {
        self.completion.byte_len
    }
    /// The queue pair that received it.
    pub fn qp(&self) -> QpHandle {
        self.completion.qp
    }
    /// The sender's queue pair, of a datagram.
    pub fn src_qp(&self) -> Option<Qpn> {
        Some(self.completion.src_qp).filter(|qpn| qpn.raw() != 0)
    }
    /// The GRH of a datagram, with the sender's address and the path.
    pub fn grh(&self) -> Option<Grh> {
        if !self.completion.grh {
            return None;
        }
        Grh::parse(self.buf.as_ref()?.first_chunk()?)
    }
    /// An address handle for the path back to the sender of a datagram; `None` where [`grh`](Self::grh) is.
    ///
    /// # Errors
    /// The device's limits, or no path.
    pub fn reply_ah(&self, pd: &Pd) -> Option<Result<AddressHandle, DeviceError>> {
        self.grh().map(|grh| pd.create_ah(&grh.reply_path()))
    }
    /// Takes the message's whole buffer for the program's own use, with the 40 bytes before a datagram. The receive
    /// queue then has one request less. `None` if the receive request had no buffer.
    pub fn into_buf(mut self) -> Option<Buf> {
        self.buf.take()
    }

    fn range(&self) -> std::ops::Range<usize> {
        let len = self.buf.as_ref().map_or(0, |buf| buf.len());
        let start = self.start.min(len);
        // An RDMA WRITE counts bytes that lie elsewhere.
        let here = self.completion.opcode == crate::WcOpcode::Recv;
        let end = if here { len.min(self.completion.byte_len as usize) } else { start };
        start..end.max(start)
    }
}

impl Deref for Message {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buf.as_ref().map_or(&[], |buf| &buf[self.range()])
    }
}
impl DerefMut for Message {
    fn deref_mut(&mut self) -> &mut [u8] {
        let range = self.range();
        self.buf.as_mut().map_or(&mut [], |buf| &mut buf[range])
    }
}
impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("len", &self.len()).field("imm", &self.imm()).finish_non_exhaustive()
    }
}
impl Drop for Message {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take() {
            // A queue that is gone, or fails, takes none: then its memory goes to where it came from.
            drop(self.home.post_recv(buf));
        }
    }
}

impl<S: Service> Handle<S> {
    /// The oldest message that has come.
    fn take_from(&self, half: &mut RecvHalf<S>) -> Result<Option<Message>, RequestError> {
        if let Some(Arrived { buf, start, completion }) = half.arrived.pop_front() {
            return Ok(Some(Message { buf, start, completion, home: self.home() }));
        }
        match half.failed {
            Some(error) => Err(error.into()),
            None if half.driverless => Err(RequestError::Driverless),
            None => Ok(None),
        }
    }
    pub(super) fn take_message(&self) -> Result<Option<Message>, RequestError> {
        self.take_from(&mut lock(&self.lane.recv))
    }

    fn poll_message(&self, ticket: &mut Ticket, waker: &Waker) -> Poll<Result<Message, RequestError>> {
        for looked in [false, true] {
            let own = looked.then(|| waker.clone());
            let mut half = lock(&self.lane.recv);
            if let Some(result) = self.take_from(&mut half).transpose() {
                let spent = half.waiters.served(ticket);
                drop(half);
                drop(spent);
                return Poll::Ready(result);
            }
            if let Some(own) = own {
                // Under the lock of the look: what arrives behind it wakes the task.
                let spent = half.waiters.wait(ticket, own);
                drop(half);
                drop(spent);
            } else {
                drop(half);
                self.core().try_turn();
            }
        }
        Poll::Pending
    }

    fn leave_messages(&self, ticket: &mut Ticket) {
        let left = lock(&self.lane.recv).waiters.leave(ticket);
        left.pass_on();
    }
}

/// The next message of a queue pair. From [`AsyncQp::recv`](super::AsyncQp::recv).
#[must_use = "a future waits when it is polled"]
pub struct Receive<S: Service> {
    handle: Arc<Handle<S>>,
    ticket: Ticket,
}

impl<S: Service> Receive<S> {
    pub(super) fn new(handle: &Arc<Handle<S>>) -> Self {
        Self { handle: Arc::clone(handle), ticket: Ticket::default() }
    }
}

impl<S: Service> Future for Receive<S> {
    type Output = Result<Message, RequestError>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.handle.poll_message(&mut this.ticket, cx.waker())
    }
}

impl<S: Service> Drop for Receive<S> {
    fn drop(&mut self) {
        self.handle.leave_messages(&mut self.ticket);
    }
}
impl<S: Service> fmt::Debug for Receive<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receive").finish_non_exhaustive()
    }
}

/// The messages of a queue pair, as a stream. From [`AsyncQp::messages`](super::AsyncQp::messages).
#[must_use = "a stream yields when it is polled"]
pub struct Messages<S: Service> {
    handle: Arc<Handle<S>>,
    ticket: Ticket,
    ended: bool,
}

impl<S: Service> Messages<S> {
    pub(super) fn new(handle: &Arc<Handle<S>>) -> Self {
        Self { handle: Arc::clone(handle), ticket: Ticket::default(), ended: false }
    }
}

impl<S: Service> Stream for Messages<S> {
    type Item = Result<Message, RequestError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        let message = std::task::ready!(this.handle.poll_message(&mut this.ticket, cx.waker()));
        this.ended = message.is_err();
        Poll::Ready(Some(message))
    }
}

impl<S: Service> Drop for Messages<S> {
    fn drop(&mut self) {
        self.handle.leave_messages(&mut self.ticket);
    }
}
impl<S: Service> fmt::Debug for Messages<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// A shared receive queue for queue pairs that are built by `build_async` after it: their messages' buffers are posted
/// here again. Cheap to clone; any number of tasks use it.
///
/// ```
/// # use hca_verbs::*;
/// # fn example(pd: &Pd, reactor: &Reactor) -> Result<(), Box<dyn std::error::Error>> {
/// let srq = AsyncSrq::new(pd.create_srq(SrqInit { max_wr: 256, max_sge: 1 })?);
/// srq.post_recvs(pd.alloc_many(256, 4096)?)?;
/// let qps = (0..32).map(|_| pd.qp::<Rc>(reactor).srq(&srq).build_async(reactor));
/// # drop(qps); Ok(()) }
/// ```
#[derive(Clone)]
pub struct AsyncSrq {
    home: Arc<SrqHome>,
    reference: SrqRef,
}

struct SrqHome(Mutex<Srq>);

impl Home for SrqHome {
    fn post_recv(&self, buf: Buf) -> Result<(), Refused<Buf>> {
        lock(&self.0).post_recv(buf)
    }
}

impl AsyncSrq {
    /// Wraps a shared receive queue for tasks.
    pub fn new(srq: Srq) -> Self {
        let reference = srq.reference();
        let home = Arc::new(SrqHome(Mutex::new(srq)));
        let weak = Arc::downgrade(&home);
        // A queue is shared once: `srq` was given by value, and there is no other of it.
        let _ = reference.inner.home.set(weak);
        Self { home, reference }
    }
    /// Posts a receive request.
    ///
    /// # Errors
    /// As [`Srq::post_recv`].
    pub fn post_recv(&self, buf: Buf) -> Result<(), Refused<Buf>> {
        self.home.post_recv(buf)
    }
    /// Posts several receive requests.
    ///
    /// # Errors
    /// As [`Srq::post_recv`], for the first refused request; the requests before it are posted.
    pub fn post_recvs(&self, bufs: impl IntoIterator<Item = Buf>) -> Result<(), Refused<Buf>> {
        bufs.into_iter().try_for_each(|buf| self.post_recv(buf))
    }
    /// Arms the limit event, like [`Srq::set_limit`].
    ///
    /// # Errors
    /// As [`Srq::set_limit`].
    pub fn set_limit(&self, limit: u32) -> Result<(), DeviceError> {
        lock(&self.home.0).set_limit(limit)
    }
    /// The number of posted requests that no message has used.
    pub fn outstanding(&self) -> u32 {
        lock(&self.home.0).outstanding()
    }
}

impl AsRef<SrqRef> for AsyncSrq {
    fn as_ref(&self) -> &SrqRef {
        &self.reference
    }
}
impl fmt::Debug for AsyncSrq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reference.fmt(f)
    }
}
