//! The executor: tasks and timers on virtual time.

use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Wake;

use hca_core::Instant;

use crate::trace::Event;
use crate::{Rng, SimNet};

thread_local! {
    static CURRENT: RefCell<Option<Rc<Executor>>> = const { RefCell::new(None) };
}

/// Tasks that were woken, in the order of their wake-ups.
#[derive(Default)]
struct Ready {
    queue: Mutex<VecDeque<usize>>,
}

struct TaskWaker {
    id: usize,
    /// In the queue already.
    queued: AtomicBool,
    ready: Arc<Ready>,
}
impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        // Relaxed: everything happens on one thread; the flag is atomic because a waker has to be Sync.
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push_back(self.id);
        }
    }
}

struct Task {
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    waker: Arc<TaskWaker>,
    /// The task dies with this node.
    node: Option<usize>,
}

/// The single-threaded executor of one simulation.
pub(crate) struct Executor {
    net: SimNet,
    rng: RefCell<Rng>,
    tasks: RefCell<BTreeMap<usize, Task>>,
    next_task: Cell<usize>,
    ready: Arc<Ready>,
    timers: RefCell<BTreeMap<(Instant, u64), Waker>>,
    next_timer: Cell<u64>,
    /// The node whose task runs.
    running_for: Cell<Option<usize>>,
}

impl Executor {
    pub(crate) fn new(net: SimNet, rng: Rng) -> Rc<Self> {
        Rc::new(Self {
            net,
            rng: RefCell::new(rng),
            tasks: RefCell::default(),
            next_task: Cell::new(0),
            ready: Arc::default(),
            timers: RefCell::default(),
            next_timer: Cell::new(0),
            running_for: Cell::new(None),
        })
    }

    /// Makes this the executor that `now`, `sleep` and `spawn` refer to until the guard is dropped.
    pub(crate) fn enter(self: &Rc<Self>) -> Entered {
        Entered { before: CURRENT.with(|c| c.replace(Some(Rc::clone(self)))) }
    }

    pub(crate) fn spawn<T: 'static>(
        &self,
        node: Option<usize>,
        future: impl Future<Output = T> + 'static,
    ) -> JoinHandle<T> {
        let id = self.next_task.replace(self.next_task.get() + 1);
        let slot = Rc::new(RefCell::new(Slot::Running(None)));
        let done = Finish { slot: Rc::clone(&slot) };
        let future = async move {
            let value = future.await;
            done.finish(Slot::Done(value));
        };
        let ready = Arc::clone(&self.ready);
        let waker = Arc::new(TaskWaker { id, queued: AtomicBool::new(false), ready });
        waker.wake_by_ref();
        let task = Task { future: Some(Box::pin(future)), waker, node };
        self.tasks.borrow_mut().insert(id, task);
        JoinHandle { slot }
    }

    /// Polls every task that is ready now, once each; returns how many.
    pub(crate) fn run_ready(&self) -> usize {
        let batch: Vec<usize> = {
            let mut queue = self.ready.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            queue.drain(..).collect()
        };
        let mut polled = 0;
        for id in batch {
            let Some((mut future, waker)) = self.tasks.borrow_mut().get_mut(&id).and_then(|t| {
                t.waker.queued.store(false, Ordering::Relaxed);
                self.running_for.set(t.node);
                t.future.take().map(|f| (f, Arc::clone(&t.waker)))
            }) else {
                continue;
            };
            polled += 1;
            self.net.event(Event::Polled(id));
            let waker = Waker::from(waker);
            if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                self.tasks.borrow_mut().remove(&id);
                continue;
            }
            // A task that was cancelled while it ran is gone from the table; its future goes with it.
            let mut tasks = self.tasks.borrow_mut();
            if let Some(task) = tasks.get_mut(&id) {
                task.future = Some(future);
            } else {
                drop(tasks);
                drop(future);
            }
        }
        self.running_for.set(None);
        polled
    }

    /// Drops the tasks of a node.
    pub(crate) fn cancel_node(&self, node: usize) {
        let gone: Vec<Task> = {
            let mut tasks = self.tasks.borrow_mut();
            let ids: Vec<usize> = tasks.iter().filter(|t| t.1.node == Some(node)).map(|t| *t.0).collect();
            ids.iter().filter_map(|id| tasks.remove(id)).collect()
        };
        // Outside of the borrow: what a future drops may spawn or wake.
        drop(gone);
    }
    /// Drops all tasks.
    pub(crate) fn clear(&self) {
        let gone = core::mem::take(&mut *self.tasks.borrow_mut());
        drop(gone);
    }
    pub(crate) fn tasks(&self) -> usize {
        self.tasks.borrow().len()
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timers.borrow().keys().next().map(|k| k.0)
    }
    /// Wakes whoever waits for a time that has come.
    pub(crate) fn fire_timers(&self) {
        let now = self.net.now();
        loop {
            let mut timers = self.timers.borrow_mut();
            match timers.first_entry() {
                Some(e) if e.key().0 <= now => {
                    let waker = e.remove();
                    drop(timers);
                    waker.wake();
                }
                _ => return,
            }
        }
    }
    fn add_timer(&self, at: Instant, waker: &Waker) -> (Instant, u64) {
        let key = (at, self.next_timer.replace(self.next_timer.get() + 1));
        self.timers.borrow_mut().insert(key, waker.clone());
        key
    }
}

/// Restores the executor that was current before.
pub(crate) struct Entered {
    before: Option<Rc<Executor>>,
}
impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with(|c| *c.borrow_mut() = self.before.take());
    }
}

fn current() -> Rc<Executor> {
    CURRENT
        .with(|c| c.borrow().clone())
        .expect("this is to be called from a task or an actor of a running simulation")
}

/// The virtual time of the simulation.
///
/// # Panics
/// Outside of a simulation.
pub fn now() -> Instant {
    current().net.now()
}

/// A random number that the seed decides.
///
/// # Panics
/// Outside of a simulation.
pub fn random() -> u64 {
    current().rng.borrow_mut().next_u64()
}

/// Adds a note to the events of the run. The note is part of the trace's hash.
///
/// # Panics
/// Outside of a simulation.
pub fn note(text: impl Into<String>) {
    current().net.event(Event::Note(text.into()));
}

/// Starts a task. The task belongs to the node of the task that starts it, if there is one.
///
/// # Panics
/// Outside of a simulation.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    let executor = current();
    executor.spawn(executor.running_for.get(), future)
}

/// Waits for a span of virtual time, counted from this call.
///
/// # Panics
/// Outside of a simulation.
pub fn sleep(time: Duration) -> Sleep {
    Sleep { until: now() + time, key: None }
}

/// Lets all other ready tasks, and the adapters, run first. No time passes.
pub async fn yield_now() {
    let mut again = true;
    core::future::poll_fn(|cx| {
        if core::mem::replace(&mut again, false) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

/// The error of a future that was not ready in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not ready within {0:?}")]
pub struct Elapsed(pub Duration);

/// Waits for a future, but no longer than this.
///
/// # Errors
/// The time ran out; the future is dropped.
pub async fn timeout<F: Future>(time: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = core::pin::pin!(future);
    let mut sleep = core::pin::pin!(sleep(time));
    core::future::poll_fn(|cx| {
        if let Poll::Ready(v) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(v));
        }
        sleep.as_mut().poll(cx).map(|()| Err(Elapsed(time)))
    })
    .await
}

/// The future that [`sleep`] returns.
#[derive(Debug)]
pub struct Sleep {
    until: Instant,
    key: Option<(Instant, u64)>,
}
impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let executor = current();
        let now = executor.net.now();
        if let Some(key) = self.key.take() {
            executor.timers.borrow_mut().remove(&key);
        }
        if now >= self.until {
            return Poll::Ready(());
        }
        self.key = Some(executor.add_timer(self.until, cx.waker()));
        Poll::Pending
    }
}
impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key
            && let Some(executor) = CURRENT.with(|c| c.borrow().clone())
        {
            executor.timers.borrow_mut().remove(&key);
        }
    }
}

enum Slot<T> {
    Running(Option<Waker>),
    Done(T),
    Cancelled,
    Taken,
}

/// Sets the outcome, also when its task is dropped before the end.
struct Finish<T> {
    slot: Rc<RefCell<Slot<T>>>,
}
impl<T> Finish<T> {
    fn finish(&self, with: Slot<T>) {
        let waker = match &mut *self.slot.borrow_mut() {
            Slot::Running(waker) => waker.take(),
            _ => return,
        };
        *self.slot.borrow_mut() = with;
        if let Some(w) = waker {
            w.wake();
        }
    }
}
impl<T> Drop for Finish<T> {
    fn drop(&mut self) {
        self.finish(Slot::Cancelled);
    }
}

/// The error of a task that was dropped before it ended: its node crashed, or the simulation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task was cancelled: its node crashed, or the simulation ended")]
pub struct Cancelled;

/// A handle that waits for a task. Dropping the handle lets the task go on.
pub struct JoinHandle<T> {
    slot: Rc<RefCell<Slot<T>>>,
}
impl<T> JoinHandle<T> {
    /// Whether the task has ended, or was dropped.
    pub fn is_finished(&self) -> bool {
        !matches!(*self.slot.borrow(), Slot::Running(_))
    }
    /// Takes the outcome, if the task has ended.
    pub fn try_take(&self) -> Option<Result<T, Cancelled>> {
        let mut slot = self.slot.borrow_mut();
        if matches!(*slot, Slot::Running(_)) {
            return None;
        }
        match core::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Done(v) => Some(Ok(v)),
            Slot::Cancelled => Some(Err(Cancelled)),
            Slot::Running(_) | Slot::Taken => None,
        }
    }
}
impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Cancelled>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Slot::Running(waker) = &mut *self.slot.borrow_mut() {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(self.try_take().expect("a JoinHandle was polled after it was ready"))
    }
}
