//! The reactor: a completion queue that tasks share. Each request is a future, and each connection may be a task.
//!
//! | module | contents |
//! |---|---|
//! | here | [`Reactor`] and [`Driver`], which polls the queue and hands each completion to its connection |
//! | `qp` | [`AsyncQp`]: a connection |
//! | `request` | [`Request`]: a request as a future |
//! | `message` | [`Message`], [`Messages`], [`AsyncSrq`]: received messages |
//! | `ops`, `waiters` | requests in flight with their wakers; tasks that wait for room or a message |

mod message;
mod ops;
mod qp;
mod request;
mod waiters;

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::hash::BuildHasherDefault;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context as TaskContext, Poll, Waker};

use hca_core::{QpHandle, WakerSlot};

use crate::cq::HandleHasher;
use crate::{CompletionQueue, Completions, CqRef, Wc};

pub(crate) use message::Home;
pub use message::{AsyncSrq, Message, Messages, Receive};
pub use qp::{AsyncBatch, AsyncQp};
pub use request::{Drain, Failed, Ready, Reclaim, Request, RequestError, Unclaimed};

/// Completions that one poll of the queue takes.
const BATCH: usize = 32;
/// Polls in a row that find something before the driver lets other tasks run.
const BUDGET: u32 = 8;

/// A completion queue that many tasks share: [`AsyncQp`]s are built on it, and its [`Driver`] wakes waiting tasks.
/// Cheap to clone.
///
/// ```
/// # use hca_verbs::*;
/// # fn spawn(_: impl Future<Output = ()> + Send + 'static) {}
/// # async fn example(context: &Context, remote: &Endpoint) -> Result<(), Box<dyn std::error::Error>> {
/// let pd = context.alloc_pd()?;
/// let (reactor, driver) = Reactor::new(context.create_cq(4096)?);
/// spawn(driver); // a task of any runtime; on tokio `Reactor::spawn` does both
/// let qp = pd.qp::<Rc>(&reactor).build_async(&reactor)?;
/// qp.post_recvs(pd.alloc_many(16, 4096)?)?;
/// qp.connect(remote, &ConnectOptions::default())?;
///
/// let mut buf = pd.alloc(5)?;
/// buf.copy_from_slice(b"hello");
/// let buf = qp.send(buf).await?; // waits for room, posts, and waits for the completion
/// let answer = qp.recv().await?; // its buffer is posted anew when it is dropped
/// assert_eq!(answer[..], buf[..]);
/// # Ok(()) }
/// ```
///
/// # Costs
///
/// A request takes a lock of its connection two or three times, and its completion once; a task that has to wait is
/// woken through its runtime. Between posting and completion nothing is allocated once a connection is warm. The first
/// poll of the future of a WRITE, READ or atomic polls the queue, so a request that completes at once (on the memory of
/// a peer on this machine) needs no wake-up. A SEND completes when its receiver has taken the message: its future leaves
/// the poll to the driver.
///
/// Instructions, of 8 bytes over shared memory (`benches/instructions.toml`):
///
/// | what | by futures | by polls |
/// |---|---:|---:|
/// | a WRITE, posted and completed | 1,490 | 490 |
/// | a message there and one back, both ends | 11,420 | 2,770 |
///
/// All messages by futures are signalled, and the polls of both drivers count; by polls every 64th is signalled. A
/// program that wants the last nanosecond polls the [`CompletionQueue`] itself.
#[derive(Clone)]
pub struct Reactor {
    owner: Arc<Owner>,
}

/// Ends the driver when the last reactor, queue pair and future is gone.
struct Owner {
    core: Arc<Core>,
}

/// The state that a reactor and its driver share.
pub(crate) struct Core {
    turn: Mutex<Turn>,
    cq: CqRef,
    /// Queue pairs that came (`Some`) or went since the last turn.
    changes: Mutex<Vec<Change>>,
    changed: AtomicBool,
    /// The driver's task.
    driver: WakerSlot,
    /// The last reactor is gone.
    closed: AtomicBool,
    /// The driver is gone, so that nobody would wake a task.
    driverless: AtomicBool,
}

/// The state of the poller, one at a time.
struct Turn {
    cq: CompletionQueue,
    wcs: Completions,
    routes: HashMap<QpHandle, Arc<dyn Route>, BuildHasherDefault<HandleHasher>>,
    /// Queue pairs to forget once the completions in hand are taken.
    gone: Vec<QpHandle>,
    /// Room for the tasks to wake.
    wakers: Vec<Waker>,
}

type Change = (QpHandle, Option<Arc<dyn Route>>);

/// Where the completions of one queue pair go.
pub(crate) trait Route: Send + Sync {
    /// Takes a completion, and adds the tasks that it wakes.
    fn completed(&self, wc: Wc<'_>, wakers: &mut Vec<Waker>);
    /// The driver is gone: adds all tasks that wait.
    fn close(&self, wakers: &mut Vec<Waker>);
}

impl Reactor {
    /// A reactor on a completion queue, and its driver. Spawn the driver on any runtime, or tasks wait for ever. The
    /// driver ends when all reactors, queue pairs and futures are gone.
    pub fn new(cq: CompletionQueue) -> (Self, Driver) {
        let reference = cq.reference();
        let turn = Turn {
            cq,
            wcs: Completions::with_capacity(BATCH),
            routes: HashMap::default(),
            gone: Vec::new(),
            wakers: Vec::with_capacity(2 * BATCH),
        };
        let core = Arc::new(Core {
            turn: Mutex::new(turn),
            cq: reference,
            changes: Mutex::default(),
            changed: AtomicBool::new(false),
            driver: WakerSlot::default(),
            closed: AtomicBool::new(false),
            driverless: AtomicBool::new(false),
        });
        let driver = Driver { core: Arc::clone(&core) };
        (Self { owner: Arc::new(Owner { core }) }, driver)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.owner.core
    }
    pub(crate) fn cq(&self) -> &CqRef {
        &self.owner.core.cq
    }
}

impl AsRef<CqRef> for Reactor {
    fn as_ref(&self) -> &CqRef {
        self.cq()
    }
}
impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reactor").field(self.cq()).finish()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.core.closed.store(true, Ordering::Release);
        self.core.driver.get().into_iter().for_each(Waker::wake);
    }
}

/// The future that polls a reactor's completion queue, as a task of any runtime. A device with a thread, or in a
/// simulator, wakes the driver. For a device that only the program's calls move (`progress=inline`) the driver makes
/// the progress, and so never sleeps; with the feature `tokio`, `Reactor::spawn` sleeps on the device's descriptor
/// instead.
///
/// If the driver is dropped while tasks wait, their requests end with [`RequestError::Driverless`].
#[must_use = "nobody wakes a task before the driver is spawned"]
pub struct Driver {
    core: Arc<Core>,
}

impl Driver {
    /// One poll of the driver's task: hands completions out until `next` has none.
    pub(crate) fn drive<E>(
        &self,
        cx: &mut TaskContext<'_>,
        next: impl FnMut(&mut CompletionQueue, &mut Completions, &mut TaskContext<'_>) -> Poll<Result<(), E>>,
    ) -> Poll<Result<(), E>> {
        self.core.drive(cx, next)
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let next = |cq: &mut CompletionQueue, wcs: &mut Completions, cx: &mut TaskContext<'_>| {
            cq.poll_next(cx, wcs).map(Ok::<(), Infallible>)
        };
        self.drive(cx, next).map(drop)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Driver").field(&self.core.cq).finish()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        {
            // Under the lock: a queue pair that comes sees it, or is seen below.
            let _changes = lock(&self.core.changes);
            self.core.driverless.store(true, Ordering::Release);
        }
        let (mut wakers, mut turn) = (Vec::new(), lock(&self.core.turn));
        turn.take_over(&self.core);
        turn.routes.values().for_each(|route| route.close(&mut wakers));
        let routes = mem::take(&mut turn.routes);
        drop(turn);
        drop(routes);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Core {
    fn drive<E>(
        &self,
        cx: &mut TaskContext<'_>,
        mut next: impl FnMut(&mut CompletionQueue, &mut Completions, &mut TaskContext<'_>) -> Poll<Result<(), E>>,
    ) -> Poll<Result<(), E>> {
        // Before the look at `closed`, which its setter does before it calls the waker.
        self.driver.set(cx.waker());
        for _ in 0..BUDGET {
            if self.closed.load(Ordering::Acquire) {
                return Poll::Ready(Ok(()));
            }
            let mut turn = lock(&self.turn);
            let Turn { cq, wcs, .. } = &mut *turn;
            match next(cq, wcs, cx) {
                Poll::Ready(Ok(())) => {
                    let is_all = wcs.len() < wcs.capacity() && cq.needs_turns();
                    self.hand_out(turn);
                    if is_all {
                        // It never sleeps: the next look is that of its next poll, behind the tasks that it has woken.
                        break;
                    }
                }
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => {
                    turn.settle(self);
                    return Poll::Pending;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Looks at the queue once, unless somebody is at it.
    pub(crate) fn try_turn(&self) {
        let Some(mut turn) = self.free_turn() else { return };
        let Turn { cq, wcs, .. } = &mut *turn;
        if cq.fill(wcs) > 0 {
            self.hand_out(turn);
        } else {
            turn.settle(self);
        }
    }
    /// The poller's state, unless somebody has it.
    fn free_turn(&self) -> Option<MutexGuard<'_, Turn>> {
        match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Gives the completions that were polled to their queue pairs, and wakes the tasks.
    fn hand_out(&self, mut turn: MutexGuard<'_, Turn>) {
        turn.take_over(self);
        let Turn { wcs, routes, wakers, .. } = &mut *turn;
        for wc in wcs.iter_mut() {
            match routes.get(&wc.qp) {
                Some(route) => route.completed(wc, wakers),
                None => {
                    tracing::warn!(qp = %wc.qp, "a completion of a queue pair that was not built by `build_async`");
                }
            }
        }
        if !turn.gone.is_empty() {
            turn.forget_gone();
        }
        if turn.wakers.is_empty() {
            return;
        }
        // A waker is somebody else's code: it is called without the lock.
        let mut wakers = mem::take(&mut turn.wakers);
        drop(turn);
        wakers.drain(..).for_each(Waker::wake);
        let mut turn = lock(&self.turn);
        if turn.wakers.capacity() < wakers.capacity() && turn.wakers.is_empty() {
            turn.wakers = wakers;
        }
    }

    /// A queue pair's completions go to `route` from now on.
    pub(crate) fn attach(&self, qp: QpHandle, route: Arc<dyn Route>) {
        if self.change(qp, Some(Arc::clone(&route))) {
            route.close(&mut Vec::new());
        }
    }
    /// The device yields no completion of the queue pair any more. It is forgotten at once, as perhaps nothing completes
    /// any more; where somebody has the poller's state, by the next turn.
    pub(crate) fn detach(&self, qp: QpHandle) {
        self.change(qp, None);
        if let Some(mut turn) = self.free_turn() {
            turn.settle(self);
        }
    }
    /// Whether the driver is gone, which takes over no change any more.
    fn change(&self, qp: QpHandle, route: Option<Arc<dyn Route>>) -> bool {
        let mut changes = lock(&self.changes);
        changes.push((qp, route));
        // Release: pairs with the Acquire in `take_over`.
        self.changed.store(true, Ordering::Release);
        self.driverless()
    }
    /// Whether nobody drives it any more.
    pub(crate) fn driverless(&self) -> bool {
        self.driverless.load(Ordering::Acquire)
    }
}

impl Turn {
    /// After a poll, so that a queue pair whose completion came is known.
    fn take_over(&mut self, core: &Core) {
        if !core.changed.load(Ordering::Acquire) {
            return;
        }
        core.changed.store(false, Ordering::Relaxed);
        let changes = mem::take(&mut *lock(&core.changes));
        for (qp, route) in changes {
            match route {
                Some(route) => drop(self.routes.insert(qp, route)),
                // One that went may have done so after the completions in hand were polled.
                None => self.gone.push(qp),
            }
        }
    }

    /// With no completion in hand.
    fn settle(&mut self, core: &Core) {
        if core.changed.load(Ordering::Acquire) {
            self.take_over(core);
            self.forget_gone();
        }
    }

    #[cold]
    fn forget_gone(&mut self) {
        for qp in self.gone.drain(..) {
            self.routes.remove(&qp);
        }
    }
}

/// A lock whose holder panicked guards nothing that is half done.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
