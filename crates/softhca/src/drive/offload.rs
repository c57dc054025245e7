//! Portals engines of the layer above, which the adapter runs as the firmware of an offloading adapter would.
//!
//! A thread whose turn of the adapter put completions into the queue of a Portals engine runs that engine, after it has
//! released the adapter's engine lock. That is the adapter's thread, or a thread of the program in a post, a poll of
//! another queue, [`Device::turn`] or a control call. A thread that polls the queue itself gets the completions
//! directly, and runs nothing. Work beyond a thread's share, and work that is due by a Portals engine's own deadline,
//! is done by the adapter's thread before it sleeps, or by the program's next turn.
//!
//! [`Device::turn`]: hca_core::Device::turn

use hca_core::{CqHandle, DeviceError};

use crate::drive::shared::Shared;
use crate::engine::Engine;
use crate::notify::runs::{NEVER, this_thread};
use crate::options::Progress;
use crate::queues::attached::Attached;
use crate::sync::{Arc, Ordering, lock};

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
    pub(crate) fn settle_engines(&self) {
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
    pub(crate) fn wake_for_engines(&self) {
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

    pub(crate) fn attached(&self, e: &mut Engine, cq: CqHandle) -> Result<Arc<Attached>, DeviceError> {
        let unknown =
            DeviceError::UnknownHandle { what: "Portals engine of completion queue", handle: cq.index };
        e.cq(cq)?.engine().cloned().ok_or(unknown)
    }
}
