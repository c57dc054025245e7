//! Futures for threads that block, and the tasks that wait for the same thing.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use hca_core::WakerSet;

use crate::ServiceId;
use crate::wire::CommId;

/// The thing that a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// A connection or a resolution changes.
    Id(CommId),
    /// A request comes to a listener.
    Service(ServiceId),
}

/// The tasks that wait, by what they wait for, and those that have to be woken.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    waiting: HashMap<Subject, WakerSet>,
    woken: Vec<Waker>,
}

impl Waiters {
    pub(super) fn wait(&mut self, subject: Subject, waker: &mut Option<Waker>) {
        self.woken.extend(self.waiting.entry(subject).or_default().add(waker));
    }
    /// All tasks that wait for this have to be woken.
    pub(super) fn notify(&mut self, subject: Subject) {
        self.woken.extend(self.waiting.remove(&subject).iter_mut().flat_map(WakerSet::take));
    }
    pub(super) fn notify_all(&mut self) {
        self.woken.extend(self.waiting.drain().flat_map(|(_, mut waiting)| waiting.take()));
    }
    /// The tasks to wake, once no lock is held.
    pub(super) fn woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks until the future is ready, for ever without a `timeout`; `None` if the future is not ready in time.
pub(super) fn block_on<T>(future: impl Future<Output = T>, timeout: Option<Duration>) -> Option<T> {
    let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut future, mut cx) = (pin!(future), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return Some(value);
        }
        match end.map(|end| end.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => return None,
            Some(left) => std::thread::park_timeout(left),
            None => std::thread::park(),
        }
    }
}

/// As [`block_on`], without a timeout.
pub(super) fn block<T>(future: impl Future<Output = T>) -> T {
    block_on(future, None).expect("without a timeout it is waited for")
}
