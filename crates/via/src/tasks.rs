//! The thread of an adapter that waits for what peers do: connections that end, requests, peers that connect.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use hca_process::Fork;

use crate::{Error, lock};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tasks, on a thread of their own. Dropped, it drops them.
pub(crate) struct Tasks {
    thread: Mutex<Option<JoinHandle<()>>>,
    shared: Arc<Shared>,
    fork: Fork,
}

impl Default for Tasks {
    fn default() -> Self {
        Self { thread: Mutex::default(), shared: Arc::default(), fork: Fork::new() }
    }
}

#[derive(Default)]
struct Shared {
    new: Mutex<Vec<Task>>,
    ended: AtomicBool,
    /// The next time at which a task wants to be polled.
    alarm: Mutex<Option<Instant>>,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Tasks {
    /// Runs a future to its end.
    ///
    /// # Errors
    /// The system has no thread. The future is dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
        self.spawn_on(task, |shared| hca_process::spawn("hca-via", move || shared.run()))
    }
    /// The same, given how the thread is started.
    fn spawn_on(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
        start: impl FnOnce(Arc<Shared>) -> io::Result<JoinHandle<()>>,
    ) -> Result<(), Error> {
        let mut thread = lock::lock(&self.thread);
        let thread = match &mut *thread {
            Some(thread) => thread,
            none => none.insert(start(Arc::clone(&self.shared))?),
        };
        lock::lock(&self.shared.new).push(Box::pin(task));
        thread.thread().unpark();
        Ok(())
    }
    /// The clock of tasks of this thread.
    pub(crate) fn alarm(&self) -> Alarm {
        Alarm(Arc::clone(&self.shared))
    }
}

/// Has the thread poll tasks at a time.
pub(crate) struct Alarm(Arc<Shared>);

impl Alarm {
    /// A future that is ready at that time.
    pub(crate) async fn sleep_until(&self, at: Instant) {
        std::future::poll_fn(|_| {
            if Instant::now() >= at {
                return Poll::Ready(());
            }
            let mut alarm = lock::lock(&self.0.alarm);
            *alarm = Some(alarm.map_or(at, |earlier| earlier.min(at)));
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // A forked child has no such thread.
        if self.fork.is_child() {
            return;
        }
        self.shared.ended.store(true, Ordering::Release);
        let Some(thread) = lock::lock(&self.thread).take() else { return };
        thread.thread().unpark();
        // A callback on the thread itself may have dropped the last VI.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        let mut tasks: Vec<Task> = Vec::new();
        // Each is polled once more after the end, so that a connection that a VI has left is ended.
        loop {
            let ended = self.ended.load(Ordering::Acquire);
            *lock::lock(&self.alarm) = None;
            tasks.append(&mut lock::lock(&self.new));
            // A panic is that of the program's handler of errors, and has told of itself: the other tasks go on.
            tasks.retain_mut(|task| {
                catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut cx).is_pending())).unwrap_or(false)
            });
            if ended {
                return;
            }
            let alarm = *lock::lock(&self.alarm);
            match alarm.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(left) => std::thread::park_timeout(left),
                None => std::thread::park(),
            }
        }
    }
}

/// Asks a task to end.
#[derive(Default)]
pub(crate) struct Stop(Mutex<(bool, Option<Waker>)>);

impl Stop {
    pub(crate) fn ask(&self) {
        let mut state = lock::lock(&self.0);
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
    /// The value of the future; `None` if the task is asked to end first.
    pub(crate) async fn or<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| {
            let mut state = lock::lock(&self.0);
            if state.0 {
                return Poll::Ready(None);
            }
            state.1 = Some(cx.waker().clone());
            drop(state);
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

/// The value of the future; `None` if that time is first.
pub(crate) async fn before<T>(tasks: impl Future<Output = ()>, future: impl Future<Output = T>) -> Option<T> {
    let (mut end, mut future) = (std::pin::pin!(tasks), std::pin::pin!(future));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        end.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Blocks until the future is ready.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut future, mut cx) = (std::pin::pin!(future), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        std::thread::park();
    }
}

/// The time that is left until the end of a timeout.
pub(crate) fn left(end: Option<Instant>) -> Option<Duration> {
    end.map(|end| end.saturating_duration_since(Instant::now()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_task_that_there_is_no_thread_for_is_dropped_and_the_next_one_runs() {
        let (tasks, (tell, told)) = (Tasks::default(), channel());
        let refused = tell.clone();
        let task = async move { refused.send("the refused one").unwrap() };
        let none = |_: Arc<Shared>| Err(io::ErrorKind::WouldBlock.into());
        assert!(matches!(tasks.spawn_on(task, none), Err(Error::Io(_))));
        tasks.spawn(async move { tell.send("the next one").unwrap() }).unwrap();
        drop(tasks);
        // The end of the last sender: nothing holds the refused task.
        assert_eq!(Vec::from_iter(told.iter()), ["the next one"]);
    }
}
