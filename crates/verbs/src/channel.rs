//! Completion channels: one descriptor and one waiter for any number of completion queues.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use hca_core::{CqHandle, DeviceError, WakerSet};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::context::Ctx;
use crate::wait::{deadline, wait_readable};
use crate::{CompletionQueue, WaitError};

/// A channel for the notifications of completion queues, as `ibv_comp_channel` is: one descriptor for all of them, and
/// the name of the queue that has completions. From [`Context::create_channel`](crate::Context::create_channel). Clones
/// are the same channel.
///
/// The channel names an [attached](Self::attach) and armed queue once when the queue has completions. The program then
/// polls the queue, arms it again, and polls once more.
///
/// ```
/// # use hca_verbs::*;
/// # use hca_core::Notify;
/// fn serve(context: &Context, queues: &mut [CompletionQueue]) -> Result<(), Box<dyn std::error::Error>> {
///     let channel = context.create_channel()?;
///     for cq in &mut *queues {
///         channel.attach(cq);
///         cq.arm(Notify::Any);
///     }
///     let mut wcs = Completions::default();
///     loop {
///         let named = channel.wait(None)?;
///         let cq = queues.iter_mut().find(|cq| cq.handle() == named).expect("one of them");
///         cq.arm(Notify::Any);
///         loop {
///             let completions = cq.poll(&mut wcs);
///             if completions.len() == 0 {
///                 break;
///             }
///             for wc in completions {
///                 println!("{}", wc.ok()?.id);
///             }
///         }
///     }
/// }
/// ```
#[derive(Clone)]
pub struct CompletionChannel {
    ctx: Arc<Ctx>,
    shared: Arc<Shared>,
    /// Readable when a queue is named, or the device needs a turn.
    epoll: Arc<OwnedFd>,
}

struct Shared {
    state: Mutex<State>,
    /// Readable while a queue is named.
    event: OwnedFd,
}

#[derive(Default)]
struct State {
    /// Queues with a notification that was not taken, each once.
    named: VecDeque<CqHandle>,
    /// Tasks that wait for one.
    tasks: WakerSet,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // It is whole between any two of its operations.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn name(&self, cq: CqHandle) {
        let mut state = self.lock();
        if state.named.contains(&cq) {
            return;
        }
        state.named.push_back(cq);
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        let tasks = state.tasks.take();
        drop(state);
        tasks.into_iter().for_each(Waker::wake);
    }
    fn take(&self) -> Option<CqHandle> {
        let mut state = self.lock();
        let cq = state.named.pop_front();
        if cq.is_some() && state.named.is_empty() {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
        cq
    }
}

/// The waker of one queue.
struct Named {
    shared: Arc<Shared>,
    cq: CqHandle,
}

impl Wake for Named {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.shared.name(self.cq);
    }
}

impl CompletionChannel {
    pub(crate) fn create(ctx: Arc<Ctx>) -> Result<Self, DeviceError> {
        let io = |doing| move |e: rustix::io::Errno| DeviceError::Io { doing, source: e.into() };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(io("creating the descriptor of a completion channel"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(io("creating the descriptor of a completion channel"))?;
        for fd in [Some(event.as_fd()), ctx.device.turn_fd()].into_iter().flatten() {
            epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN)
                .map_err(io("watching the descriptors of a completion channel"))?;
        }
        let shared = Arc::new(Shared { state: Mutex::default(), event });
        Ok(Self { ctx, shared, epoll: Arc::new(epoll) })
    }

    /// Sends the notifications of a queue to this channel, instead of to an earlier one. A waker that was set for the
    /// queue ([`CompletionQueue::poll_next`]) is replaced.
    pub fn attach(&self, cq: &mut CompletionQueue) {
        let named = Named { shared: Arc::clone(&self.shared), cq: cq.handle() };
        cq.notify_by(Waker::from(Arc::new(named)));
    }

    /// Takes the oldest named queue that no call has taken yet; the queue may have been dropped since. Never waits. On
    /// a device that only the program's calls move, this call makes progress.
    pub fn poll(&self) -> Option<CqHandle> {
        self.shared.take().or_else(|| {
            self.ctx.device.turn();
            self.shared.take()
        })
    }

    /// Waits until a queue is named; for ever without a `timeout`.
    ///
    /// # Errors
    /// No queue was named in time, or the operating system refused to wait.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<CqHandle, WaitError> {
        let deadline = deadline(timeout);
        loop {
            if let Some(cq) = self.poll() {
                return Ok(cq);
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(WaitError::TimedOut(timeout.unwrap_or_default()));
            }
            wait_readable(self.epoll.as_fd(), left)?;
        }
    }

    /// The next named queue, for any runtime. Like [`CompletionQueue::next`], the future makes the progress of a device
    /// without a thread. A dropped future takes no notification.
    pub async fn next(&self) -> CqHandle {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&self, cx: &mut TaskContext<'_>) -> Poll<CqHandle> {
        if let Some(cq) = self.poll() {
            return Poll::Ready(cq);
        }
        // Its clone is the program's code, as is its drop.
        let mut waker = Some(cx.waker().clone());
        let longest = self.shared.lock().tasks.add(&mut waker);
        longest.into_iter().for_each(Waker::wake);
        if let Some(cq) = self.shared.take() {
            return Poll::Ready(cq);
        }
        if self.ctx.device.needs_turns() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// Readable when a queue is named or the device needs a turn: then [`CompletionChannel::poll`] until that yields none.
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("named", &self.shared.lock().named).finish_non_exhaustive()
    }
}
