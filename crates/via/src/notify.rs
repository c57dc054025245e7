//! The thread that calls the program when descriptors complete.
//!
//! The thread holds no lock of the notifier while it looks at jobs, and while it drops them: a look may call the
//! handler of asynchronous errors, and a callback that goes may take the last reference to the adapter along. Both may
//! use the notifier.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use hca_process::Fork;

use crate::source::{Calling, Source, State};
use crate::wait::Waiters;
use crate::{Error, lock};

/// What a notification finds.
pub(crate) enum Look<T> {
    Found(T),
    Nothing,
    /// What it looks at is gone: there will be no call.
    Gone,
}

/// Until the next look where the system refuses to wait.
const LATE: Duration = Duration::from_millis(10);

type Call = Box<dyn FnOnce() + Send>;
type Check = Box<dyn FnMut(&mut State) -> Look<Call> + Send>;

/// Calls that were asked for, and the thread that makes them. Dropped, it makes no more calls.
pub(crate) struct Notifier {
    thread: Mutex<Option<JoinHandle<()>>>,
    shared: Arc<Shared>,
    fork: Fork,
}

struct Shared {
    waiters: Arc<Waiters>,
    inbox: Mutex<Inbox>,
    added: Condvar,
}

/// The jobs that the thread has not taken over yet.
#[derive(Default)]
struct Inbox {
    jobs: Vec<Job>,
    ended: bool,
}

struct Job {
    source: Arc<Source>,
    /// Jobs of one key of a source are done in their order.
    key: u64,
    check: Check,
}

impl Notifier {
    pub(crate) fn new(waiters: &Arc<Waiters>) -> Self {
        let (inbox, added) = Default::default();
        let shared = Shared { waiters: Arc::clone(waiters), inbox, added };
        Self { thread: Mutex::default(), shared: Arc::new(shared), fork: Fork::new() }
    }
    /// Has `call` called once with what `look` finds in the source.
    pub(crate) fn add<T: Send + 'static>(
        &self,
        source: &Arc<Source>,
        key: u64,
        mut look: impl FnMut(&mut State) -> Look<T> + Send + 'static,
        call: impl FnOnce(T) + Send + 'static,
    ) -> Result<(), Error> {
        let mut call = Some(call);
        let check = move |state: &mut State| match look(state) {
            Look::Found(value) => match call.take() {
                Some(call) => Look::Found(Box::new(move || call(value)) as Call),
                None => Look::Gone,
            },
            Look::Nothing => Look::Nothing,
            Look::Gone => Look::Gone,
        };
        let job = Job { source: Arc::clone(source), key, check: Box::new(check) };
        self.start()?;
        lock::lock(&self.shared.inbox).jobs.push(job);
        self.shared.added.notify_all();
        self.shared.waiters.call();
        Ok(())
    }
    fn start(&self) -> Result<(), Error> {
        let mut thread = lock::lock(&self.thread);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            *thread = Some(hca_process::spawn("hca-via-notify", move || shared.run())?);
        }
        Ok(())
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        // A forked child has no such thread.
        if self.fork.is_child() {
            return;
        }
        lock::lock(&self.shared.inbox).ended = true;
        self.shared.added.notify_all();
        self.shared.waiters.call();
        let Some(thread) = lock::lock(&self.thread).take() else { return };
        // A callback may have dropped the last VI.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let jobs = RefCell::default();
        while self.wait_for_jobs(&jobs) {
            // The panic of a callback or of the handler of errors has told of itself, and the others go on.
            let _ = catch_unwind(AssertUnwindSafe(|| self.call_next(&jobs)));
        }
    }
    fn call_next(&self, jobs: &RefCell<Vec<Job>>) {
        // `None`: the end, or no job is left.
        match self.waiters.wait(None, || arm(&jobs.borrow()), || self.look(jobs)) {
            Ok(Some((call, _calling))) => call(),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%error, "notifications are late");
                // The system may refuse for as long as it likes.
                std::thread::sleep(LATE);
            }
        }
    }
    /// Waits until there are jobs; returns `false` at the end.
    fn wait_for_jobs(&self, jobs: &RefCell<Vec<Job>>) -> bool {
        let mut inbox = lock::lock(&self.inbox);
        while jobs.borrow().is_empty() && inbox.jobs.is_empty() && !inbox.ended {
            inbox = self.added.wait(inbox).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        !inbox.ended
    }
    /// Takes the jobs over that were added; returns whether the end has come.
    fn take_over(&self, jobs: &mut Vec<Job>) -> bool {
        let mut inbox = lock::lock(&self.inbox);
        jobs.append(&mut inbox.jobs);
        inbox.ended
    }
    /// The next call to make.
    fn look(&self, jobs: &RefCell<Vec<Job>>) -> Option<Option<(Call, Calling)>> {
        let mut jobs = jobs.borrow_mut();
        if self.take_over(&mut jobs) {
            return Some(None);
        }
        let mut at = 0;
        while at < jobs.len() {
            let (before, rest) = jobs.split_at_mut(at);
            let Job { source, key, check } = &mut rest[0];
            // One that has found nothing is first.
            if before.iter().any(|job| Arc::ptr_eq(&job.source, source) && job.key == *key) {
                at += 1;
                continue;
            }
            match source.look(check) {
                Look::Found(call) => {
                    jobs.remove(at);
                    return Some(Some(call));
                }
                Look::Nothing => at += 1,
                Look::Gone => drop(jobs.remove(at)),
            }
        }
        jobs.is_empty().then_some(None)
    }
}

fn arm(jobs: &[Job]) {
    for job in jobs {
        job.source.arm();
    }
}
