//! Requests as futures, and the errors of requests.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use hca_core::{PostErrorKind, WcOpcode};
use thiserror::Error;

use super::lock;
use super::qp::{Handle, Posted};
use super::waiters::Ticket;
use crate::part::{Emptying, GatherList, Part};
use crate::request::SendRequest;
use crate::service::{OfferedBy, Service};
use crate::{PostRefusal, WcError};

/// A request as a future: it posts when there is room, and its list comes back when the request has completed. From
/// [`AsyncQp::send`](super::AsyncQp::send) and similar calls. Dropping it leaves the request in its queue, and its
/// buffers to [`AsyncQp::reclaim`](super::AsyncQp::reclaim).
#[must_use = "a request is posted when its future is polled"]
pub struct Request<S: Service, O, L: GatherList> {
    handle: Arc<Handle<S>>,
    state: State<O, L>,
    ticket: Ticket,
    /// The queue was looked at since the request was posted, or found no room.
    looked: bool,
}

enum State<O, L: GatherList> {
    Unposted(SendRequest<O, L>),
    InFlight { key: u64, id: u64, shell: L::Shell },
    Done,
}

impl<S: Service, O, L: GatherList> Request<S, O, L> {
    pub(super) fn new(handle: &Arc<Handle<S>>, request: SendRequest<O, L>) -> Self {
        Self {
            handle: Arc::clone(handle),
            state: State::Unposted(request),
            ticket: Ticket::default(),
            looked: false,
        }
    }
    pub(super) fn posted(handle: &Arc<Handle<S>>, Posted { key, id, shell }: Posted<L>) -> Self {
        let state = State::InFlight { key, id, shell };
        Self { handle: Arc::clone(handle), state, ticket: Ticket::default(), looked: false }
    }
}

impl<S: Service, O: OfferedBy<S>, L: GatherList> Request<S, O, L> {
    /// Posts the request, or has the task woken when there is room.
    fn post(&mut self, waker: &Waker) -> Poll<Result<(), Failed<L::Back>>> {
        loop {
            let own = self.looked.then(|| waker.clone());
            let State::Unposted(request) = std::mem::replace(&mut self.state, State::Done) else {
                unreachable!("it is unposted")
            };
            let needs_peer = request.head.op.wc_opcode() == WcOpcode::Send;
            let mut half = lock(&self.handle.lane.send);
            if half.driverless {
                return Poll::Ready(Err(Failed::new(request, RequestError::Driverless)));
            }
            match half.post::<true, O, L>(request) {
                Ok(Posted { key, id, shell }) => {
                    let spent = half.room.served(&mut self.ticket);
                    drop(half);
                    drop(spent);
                    self.state = State::InFlight { key, id, shell };
                    // A message completes when its receiver has taken it: a look at once would be in vain.
                    self.looked = needs_peer;
                    return Poll::Ready(Ok(()));
                }
                Err(refused)
                    if matches!(refused.error, PostRefusal::Queue(PostErrorKind::QueueFull { .. })) =>
                {
                    self.state = State::Unposted(refused.request);
                    let Some(own) = own else {
                        drop(half);
                        // Perhaps some have completed.
                        self.looked = true;
                        self.handle.core().try_turn();
                        continue;
                    };
                    let spent = half.room.wait(&mut self.ticket, own);
                    drop(half);
                    drop(spent);
                    return Poll::Pending;
                }
                Err(refused) => {
                    // The place that it was woken for is the next one's.
                    let left = half.room.leave(&mut self.ticket);
                    drop(half);
                    left.pass_on();
                    return Poll::Ready(Err(Failed::new(refused.request, refused.error.into())));
                }
            }
        }
    }

    fn finish(&mut self, waker: &Waker) -> Poll<Result<L, Failed<L::Back>>> {
        let State::InFlight { key, id, .. } = self.state else { panic!("polled after it was ready") };
        // A request that completes at once wakes no task.
        let mut own = self.looked.then(|| waker.clone());
        if own.is_none() {
            self.handle.core().try_turn();
        }
        let mut half = lock(&self.handle.lane.send);
        let Some(ending) = half.ops.poll(key, &mut own) else {
            let driverless = half.driverless;
            drop(half);
            if driverless {
                return Poll::Ready(Err(Failed { local: None, error: RequestError::Driverless }));
            }
            return if std::mem::replace(&mut self.looked, true) {
                Poll::Pending
            } else {
                self.finish(waker)
            };
        };
        let State::InFlight { shell, .. } = std::mem::replace(&mut self.state, State::Done) else {
            unreachable!("it was in flight")
        };
        let local = L::restore(shell, &mut Emptying(&mut half.ops.take_parts(key)));
        half.ops.end(key);
        drop(half);
        Poll::Ready(match ending.result(id) {
            Ok(()) => Ok(local),
            Err(error) => Err(Failed { local: Some(local.back()), error: error.into() }),
        })
    }
}

impl<S: Service, O: OfferedBy<S>, L: GatherList> Future for Request<S, O, L> {
    type Output = Result<L, Failed<L::Back>>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let State::Unposted(_) = this.state {
            match this.post(cx.waker()) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(failed)) => return Poll::Ready(Err(failed)),
                Poll::Pending => return Poll::Pending,
            }
        }
        this.finish(cx.waker())
    }
}

impl<S: Service, O, L: GatherList> Drop for Request<S, O, L> {
    fn drop(&mut self) {
        let lane = &self.handle.lane;
        let left = match std::mem::replace(&mut self.state, State::Done) {
            State::Done => return,
            State::InFlight { key, .. } => {
                let (left, spent) = lock(&lane.send).ops.abandon(key);
                drop(spent);
                left.map(Unclaimed::from)
            }
            State::Unposted(request) => {
                let left = lock(&lane.send).room.leave(&mut self.ticket);
                left.pass_on();
                let (id, opcode) = (request.head.id, request.head.op.wc_opcode());
                let mut parts = Vec::new();
                request.into_local().give(&mut |part| parts.push(part));
                Some(Unclaimed { id, opcode, result: Err(RequestError::Cancelled), parts })
            }
        };
        let mut wakers = Vec::new();
        if let Some(left) = left {
            lane.leave(left, &mut wakers);
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl<S: Service, O, L: GatherList> fmt::Debug for Request<S, O, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Unposted(_) => "not posted",
            State::InFlight { .. } => "in flight",
            State::Done => "done",
        };
        f.debug_struct("Request").field("state", &state).finish_non_exhaustive()
    }
}

/// Waits until a send queue has room. From [`AsyncQp::ready`](super::AsyncQp::ready).
#[must_use = "a future waits when it is polled"]
pub struct Ready<S: Service> {
    handle: Arc<Handle<S>>,
    ticket: Ticket,
}

impl<S: Service> Ready<S> {
    pub(super) fn new(handle: &Arc<Handle<S>>) -> Self {
        Self { handle: Arc::clone(handle), ticket: Ticket::default() }
    }
}

impl<S: Service> Future for Ready<S> {
    type Output = Result<(), RequestError>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        for looked in [false, true] {
            let own = looked.then(|| cx.waker().clone());
            let mut half = lock(&this.handle.lane.send);
            if half.driverless {
                return Poll::Ready(Err(RequestError::Driverless));
            }
            if half.has_room() {
                // It takes no place: the next one that waits for it may.
                let left = half.room.leave(&mut this.ticket);
                drop(half);
                left.pass_on();
                return Poll::Ready(Ok(()));
            }
            if let Some(own) = own {
                let spent = half.room.wait(&mut this.ticket, own);
                drop(half);
                drop(spent);
            } else {
                drop(half);
                this.handle.core().try_turn();
            }
        }
        Poll::Pending
    }
}

impl<S: Service> Drop for Ready<S> {
    fn drop(&mut self) {
        let left = lock(&self.handle.lane.send).room.leave(&mut self.ticket);
        left.pass_on();
    }
}
impl<S: Service> fmt::Debug for Ready<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").finish_non_exhaustive()
    }
}

/// The next leftover of a queue pair. From [`AsyncQp::reclaim`](super::AsyncQp::reclaim).
#[must_use = "a future waits when it is polled"]
pub struct Reclaim<S: Service> {
    handle: Arc<Handle<S>>,
    ticket: Ticket,
}

impl<S: Service> Reclaim<S> {
    pub(super) fn new(handle: &Arc<Handle<S>>) -> Self {
        Self { handle: Arc::clone(handle), ticket: Ticket::default() }
    }
}

impl<S: Service> Future for Reclaim<S> {
    type Output = Option<Unclaimed>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let Self { handle, ticket } = self.get_mut();
        handle.core().try_turn();
        let mut own = Some(cx.waker().clone());
        // Under the lock: what completes behind it wakes the task, and another task may take it before.
        let half = lock(&handle.lane.send);
        let waiting = half.ops.abandoned() > 0 && !half.driverless;
        let (spent, found) = handle.lane.with_reclaimers(|kept, waiters| match kept.pop_front() {
            None if waiting => (own.take().and_then(|own| waiters.wait(ticket, own)), Poll::Pending),
            left => (waiters.served(ticket), Poll::Ready(left)),
        });
        drop(half);
        drop(spent);
        found
    }
}

impl<S: Service> Drop for Reclaim<S> {
    fn drop(&mut self) {
        let left = self.handle.lane.with_reclaimers(|_, waiters| waiters.leave(&mut self.ticket));
        left.pass_on();
    }
}
impl<S: Service> fmt::Debug for Reclaim<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaim").finish_non_exhaustive()
    }
}

/// Waits until a queue pair has nothing outstanding. From [`AsyncQp::drain`](super::AsyncQp::drain).
#[must_use = "a future waits when it is polled"]
pub struct Drain<S: Service> {
    handle: Arc<Handle<S>>,
    sends: Ticket,
    recvs: Ticket,
}

impl<S: Service> Drain<S> {
    pub(super) fn new(handle: &Arc<Handle<S>>) -> Self {
        Self { handle: Arc::clone(handle), sends: Ticket::default(), recvs: Ticket::default() }
    }
}

impl<S: Service> Future for Drain<S> {
    type Output = Result<(), RequestError>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let Self { handle, sends, recvs } = self.get_mut();
        for looked in [false, true] {
            // A completion that the poller has, and has not handed out, still counts as a request in flight.
            let own = (cx.waker().clone(), cx.waker().clone());
            let mut half = lock(&handle.lane.send);
            let spent = half.drains.wait(sends, own.0);
            let (in_flight, driverless) = (half.ops.in_flight(), half.driverless);
            drop(half);
            drop(spent);
            let mut half = lock(&handle.lane.recv);
            let spent = half.drains.wait(recvs, own.1);
            let posted = half.posted;
            drop(half);
            drop(spent);
            if (in_flight, posted) == (0, 0) {
                return Poll::Ready(Ok(()));
            }
            if driverless {
                return Poll::Ready(Err(RequestError::Driverless));
            }
            if !looked {
                handle.core().try_turn();
            }
        }
        Poll::Pending
    }
}

impl<S: Service> Drop for Drain<S> {
    fn drop(&mut self) {
        let sends = lock(&self.handle.lane.send).drains.served(&mut self.sends);
        let recvs = lock(&self.handle.lane.recv).drains.served(&mut self.recvs);
        drop((sends, recvs));
    }
}
impl<S: Service> fmt::Debug for Drain<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain").finish_non_exhaustive()
    }
}

/// The parts of a request that no future waited for: its future was dropped, or a receive request failed.
#[derive(Debug)]
pub struct Unclaimed {
    /// The request's number, as given to [`SendRequest::id`].
    pub id: u64,
    /// The operation of the request.
    pub opcode: WcOpcode,
    /// The result; [`RequestError::Cancelled`] if the request was never posted.
    pub result: Result<(), RequestError>,
    /// The parts that the request owned, in the order of its list.
    pub parts: Vec<Part>,
}

impl Unclaimed {
    /// The buffers among the parts.
    pub fn into_bufs(self) -> impl Iterator<Item = crate::Buf> {
        self.parts.into_iter().filter_map(|part| part.into_buf().ok())
    }
}

/// The reason why a request of an [`AsyncQp`](super::AsyncQp) failed.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The queue refused the request.
    #[error(transparent)]
    Refused(#[from] PostRefusal),
    /// The request was posted, and failed.
    #[error(transparent)]
    Failed(#[from] WcError),
    /// The request's future was dropped before the request was posted.
    #[error("the request was cancelled before it was posted")]
    Cancelled,
    /// No driver polls the completion queue any more.
    #[error(
        "the reactor's driver was dropped, so no completion arrives; keep its task until all queue pairs are gone"
    )]
    Driverless,
}

/// A failed request, with its buffers.
pub struct Failed<B> {
    /// The parts of the local list; `None` if the driver is gone and the device still has them.
    pub local: Option<B>,
    /// The reason of the failure.
    pub error: RequestError,
}

impl<B> Failed<B> {
    fn new<O, L: GatherList<Back = B>>(request: SendRequest<O, L>, error: RequestError) -> Self {
        Self { local: Some(request.into_local().back()), error }
    }
}
impl<B> From<Failed<B>> for RequestError {
    fn from(failed: Failed<B>) -> Self {
        failed.error
    }
}
impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}
impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}
impl<B> std::error::Error for Failed<B> {}

hca_core::debug_as_display!(RequestError);
