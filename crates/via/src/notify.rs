//! The thread that calls the program when descriptors complete.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use crate::source::{Source, State};
use crate::wait::Waiters;
use crate::{Error, lock};

/// What a notification finds.
pub(crate) enum Look<T> {
    Found(T),
    Nothing,
    /// What it looks at is gone: there will be no call.
    Gone,
}

type Call = Box<dyn FnOnce() + Send>;
type Check = Box<dyn FnMut(&mut State) -> Look<Call> + Send>;

/// Calls that were asked for, and the thread that makes them. Dropped, it makes no more calls.
pub(crate) struct Notifier {
    thread: Mutex<Option<JoinHandle<()>>>,
    shared: Arc<Shared>,
}

struct Shared {
    waiters: Arc<Waiters>,
    jobs: Mutex<Jobs>,
    added: Condvar,
}

#[derive(Default)]
struct Jobs {
    list: VecDeque<Job>,
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
        let (jobs, added) = Default::default();
        let shared = Shared { waiters: Arc::clone(waiters), jobs, added };
        Self { thread: Mutex::default(), shared: Arc::new(shared) }
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
        let mut thread = lock::lock(&self.thread);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            *thread = Some(hca_process::spawn("hca-via-notify", move || shared.run())?);
        }
        lock::lock(&self.shared.jobs).list.push_back(job);
        self.shared.added.notify_all();
        self.shared.waiters.call();
        Ok(())
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        lock::lock(&self.shared.jobs).ended = true;
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
        loop {
            let mut jobs = lock::lock(&self.jobs);
            while jobs.list.is_empty() && !jobs.ended {
                jobs = self.added.wait(jobs).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            drop(jobs);
            // `None`: the end, or no job is left.
            match self.waiters.wait(None, || self.arm(), || self.look()) {
                Ok(Some(call)) => call(),
                Ok(None) => {}
                Err(error) => tracing::error!(%error, "notifications are late"),
            }
            if lock::lock(&self.jobs).ended {
                return;
            }
        }
    }
    fn arm(&self) {
        for job in &lock::lock(&self.jobs).list {
            job.source.arm();
        }
    }
    /// The next call to make.
    fn look(&self) -> Option<Option<Call>> {
        let mut jobs = lock::lock(&self.jobs);
        let Jobs { list, ended } = &mut *jobs;
        let mut at = 0;
        while at < list.len() {
            let (before, rest) = list.make_contiguous().split_at_mut(at);
            let Job { source, key, check } = &mut rest[0];
            // One that has found nothing is first.
            if before.iter().any(|job| Arc::ptr_eq(&job.source, source) && job.key == *key) {
                at += 1;
                continue;
            }
            match source.polled(check) {
                Look::Found(call) => {
                    list.remove(at);
                    return Some(Some(call));
                }
                Look::Nothing => at += 1,
                Look::Gone => drop(list.remove(at)),
            }
        }
        (list.is_empty() || *ended).then_some(None)
    }
}
