//! A Portals engine that is attached to a completion queue, and its runs.

use core::time::Duration;
use std::sync::Weak;

use hca_core::{CqHandle, OffloadEngine};

use crate::notify::runs::{Attention, CAME, NEVER, RunWord, this_thread};
use crate::options::Time;
use crate::sync::{Arc, AtomicU64, Ordering};

/// A deadline is not taken for sooner than this, so that an engine that can't do now what is due does not take a CPU.
const SOONEST: Duration = Duration::from_micros(20);

/// An engine, attached to a completion queue.
pub(crate) struct Attached {
    pub(crate) cq: CqHandle,
    pub(crate) word: RunWord,
    /// When it wants to be run, in nanoseconds.
    pub(crate) at: AtomicU64,
    pub(crate) engine: Weak<dyn OffloadEngine>,
    pub(crate) attention: Arc<Attention>,
}

impl Attached {
    /// Completions came to its queue, not by its poller. Under the engine's lock.
    pub(crate) fn came(&self) {
        self.word.call(CAME);
        self.attention.raise();
    }
    /// Its poller, who runs this under the engine's lock, has taken all that is in the queue.
    pub(crate) fn all_taken(&self) {
        self.word.all_taken();
    }
    /// Runs it if it is due; returns whether it did.
    pub(crate) fn run(&self, time: &Time, polled: bool) -> bool {
        let late = self.at.load(Ordering::Relaxed) <= time.now().as_nanos();
        if polled && !late {
            return false;
        }
        self.word.run(late, this_thread(), || {
            self.attention.count_run();
            // Gone again before the run counts as over.
            let engine = self.engine.upgrade();
            let more = engine.as_ref().is_some_and(|e| e.run());
            let delay = engine.and_then(|e| e.next_deadline()).map(|d| d.max(SOONEST));
            let after = |d: Duration| {
                u64::try_from(d.as_nanos()).map_or(NEVER, |d| time.now().as_nanos().saturating_add(d))
            };
            self.at.store(delay.map_or(NEVER, after), Ordering::Relaxed);
            more
        })
    }
}
