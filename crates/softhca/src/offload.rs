//! Portals engines of the layer above, which the adapter runs as the firmware of an offloading adapter would.
//!
//! A thread whose turn of the adapter put completions into the queue of a Portals engine runs that engine, after it has
//! released the adapter's engine lock. That is the adapter's thread, or a thread of the program in a post, a poll of
//! another queue, [`Device::turn`] or a control call. A thread that polls the queue itself gets the completions
//! directly, and runs nothing. Work beyond a thread's share, and work that is due by a Portals engine's own deadline,
//! is done by the adapter's thread before it sleeps, or by the program's next turn.
//!
//! [`Device::turn`]: hca_core::Device::turn

use core::time::Duration;
use std::sync::Weak;

use hca_core::{CqHandle, DeviceError, Offload, OffloadEngine};

use crate::SoftHca;
use crate::device::unknown;
use crate::engine::Engine;
use crate::options::{Progress, Time};
use crate::runs::{ASKED, Attention, CAME, NEVER, RunWord, this_thread};
use crate::shared::Shared;
use crate::sync::{Arc, Ordering, lock};
use core::sync::atomic::AtomicU64;

/// A deadline is not taken for sooner than this, so that an engine that can't do now what is due does not take a CPU.
const SOONEST: Duration = Duration::from_micros(20);

/// An engine, attached to a completion queue.
pub(crate) struct Attached {
    cq: CqHandle,
    word: RunWord,
    /// When it wants to be run, in nanoseconds.
    at: AtomicU64,
    engine: Weak<dyn OffloadEngine>,
    attention: Arc<Attention>,
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
    fn run(&self, time: &Time, polled: bool) -> bool {
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

impl Shared {
    /// Runs the engines that are due, unless this is a child. `polled`: the queue whose poller calls; what came there
    /// is his. Returns whether any ran. No lock of the adapter is held.
    #[cold]
    pub(crate) fn run_due(&self, polled: Option<CqHandle>) -> bool {
        if self.fork.is_child() || !self.attention.take_due() {
            return false;
        }
        let mut ran = false;
        let mut next = 0;
        loop {
            let attached = lock(&self.engines).get(next).cloned();
            let Some(attached) = attached else { break };
            ran |= attached.run(&self.time, polled == Some(attached.cq));
            next += 1;
        }
        // One that was passed over, as another left the list meanwhile, is found here.
        self.settle_engines();
        ran
    }

    /// Looks what is left to be run, and when; and sees that somebody does.
    fn settle_engines(&self) {
        let (due, earlier) = {
            let engines = lock(&self.engines);
            let at = engines.iter().map(|a| a.at.load(Ordering::Relaxed)).min().unwrap_or(NEVER);
            // Under the lock: who runs one of them and then looks has the last word.
            (engines.iter().any(|a| a.word.is_waiting()), self.attention.set_next_at(at))
        };
        if due {
            self.attention.raise();
        }
        if due | earlier {
            self.wake_for_engines();
        }
    }

    /// Something is due, or due earlier, that nobody is about to see to.
    fn wake_for_engines(&self) {
        self.sleeper.wake_if_asleep();
        if self.progress != Progress::Thread && self.attention.has_waiters() {
            self.prepare_wait();
        }
    }

    /// Takes all engines away, as the adapter goes.
    pub(crate) fn retire_engines(&self) {
        let engines = core::mem::take(&mut *lock(&self.engines));
        self.attention.set_next_at(NEVER);
        engines.iter().for_each(|a| a.word.retire(this_thread()));
    }

    /// Takes an engine away that its queue has let go of.
    pub(crate) fn retire(&self, attached: &Arc<Attached>) {
        lock(&self.engines).retain(|a| !Arc::ptr_eq(a, attached));
        attached.word.retire(this_thread());
        self.settle_engines();
    }

    fn attached(&self, e: &mut Engine, cq: CqHandle) -> Result<Arc<Attached>, DeviceError> {
        let entry = e.core.tables.cqs.get_mut(cq.index, cq.generation);
        let entry = entry.ok_or_else(|| unknown("completion queue", cq.index))?;
        entry.engine().cloned().ok_or_else(|| unknown("Portals engine of completion queue", cq.index))
    }
}

impl Offload for SoftHca {
    fn attach(&self, cq: CqHandle, engine: Weak<dyn OffloadEngine>) -> Result<(), DeviceError> {
        let shared = self.shared();
        shared.fork.check()?;
        let attention = shared.attention.clone();
        let (word, at) = (RunWord::new(), AtomicU64::new(NEVER));
        let attached = Arc::new(Attached { cq, word, at, engine, attention });
        shared.control(|e| {
            let entry = e.core.tables.cqs.get_mut(cq.index, cq.generation);
            let entry = entry.ok_or_else(|| unknown("completion queue", cq.index))?;
            if entry.engine().is_some() {
                return Err(DeviceError::HasEngine { cq: cq.index });
            }
            entry.attach(attached.clone());
            lock(&shared.engines).push(attached.clone());
            Ok(())
        })?;
        // For what lies in the queue already, and the first deadline. Not before: a control call runs what is due, and
        // the caller may not be ready for that.
        attached.word.call(ASKED);
        shared.settle_engines();
        Ok(())
    }

    fn detach(&self, cq: CqHandle) -> Result<(), DeviceError> {
        let shared = self.shared();
        shared.fork.check()?;
        let attached = shared.control(|e| {
            let attached = shared.attached(e, cq)?;
            e.core.tables.cqs.at_mut(cq.index).map(|entry| entry.detach());
            Ok::<_, DeviceError>(attached)
        })?;
        shared.retire(&attached);
        Ok(())
    }

    fn nudge(&self, cq: CqHandle) -> Result<(), DeviceError> {
        let shared = self.shared();
        shared.fork.check()?;
        let attached = shared.control(|e| shared.attached(e, cq))?;
        attached.word.call(ASKED);
        shared.attention.raise();
        shared.wake_for_engines();
        Ok(())
    }
    fn program_sleeps(&self) {
        let shared = self.shared();
        if !shared.fork.is_child() && !shared.sleeper.stands_guard() && !shared.attention.has_waiters() {
            shared.program_sleeps();
        }
    }
}
