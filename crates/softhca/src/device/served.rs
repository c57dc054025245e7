//! Calls for the owner of an adapter that serves others: dormant queue pairs, paces, the clock.

use hca_core::{Instant, QpHandle};

use crate::device::SoftHca;
use crate::engine::Engine;
use crate::objects::pace::Pace;
use crate::sync::{Arc, Ordering};

/// Dormant queue pairs.
impl SoftHca {
    /// Makes a queue pair dormant if it has no work: packets and messages for it wait until it is [woken](Self::wake).
    /// Returns whether it is dormant now. Requests that are posted to a dormant queue pair are carried out as always;
    /// the poster should wake the queue pair first, because answers would wait.
    pub fn make_dormant(&self, qp: QpHandle) -> bool {
        !self.shared().fork.is_child() && self.shared().control(|e| e.make_dormant(qp))
    }
    /// Wakes a dormant queue pair, which then takes the packets and messages that waited. A queue pair that is not
    /// dormant stays unchanged.
    pub fn wake(&self, qp: QpHandle) {
        if !self.shared().fork.is_child() {
            let now = self.shared().time.now();
            self.shared().control(|e| e.wake(now, qp, false));
        }
    }
    /// Has a dormant queue pair take the packets and messages that waited, and stay dormant: those that come later wait
    /// again. Answers leave as always. A queue pair for which nothing waits stays unchanged.
    pub fn deliver(&self, qp: QpHandle) {
        if !self.shared().fork.is_child() {
            let now = self.shared().time.now();
            self.shared().control(|e| e.wake(now, qp, true));
        }
    }
    /// The dormant queue pairs, among those that `meant` picks, for which a packet or message waits. Each is listed
    /// until it is [woken](Self::wake), or has [taken](Self::deliver) what waits. If nothing waits for any queue pair, the call costs one load.
    pub fn called(&self, meant: impl Fn(QpHandle) -> bool) -> Vec<QpHandle> {
        if self.calls.load(Ordering::Relaxed) == 0 || self.shared().fork.is_child() {
            return Vec::new();
        }
        self.shared().control(|e| e.core.dormant.called.iter().copied().filter(|qp| meant(*qp)).collect())
    }
}

impl Engine {
    fn set_pace(&mut self, qp: QpHandle, pace: Arc<Pace>) {
        let Some(entry) = self.core.qps.get_mut(qp.index, qp.generation) else { return };
        entry.res.pace = Some(pace);
    }
}

impl SoftHca {
    /// Limits the rate at which a queue pair sends, together with all others of the same pace: requests,
    /// retransmissions, and responses to READs and atomics. Flushes and acknowledgements are not delayed. To be called
    /// before the queue pair is connected. Between adapters of one machine a queue pair with a pace sends all of its
    /// bytes as messages.
    pub fn set_pace(&self, qp: QpHandle, pace: Arc<Pace>) {
        if !self.shared().fork.is_child() {
            self.shared().control(|e| e.set_pace(qp, pace));
        }
    }

    /// The adapter's time, by which a [`Pace`] counts.
    pub fn now(&self) -> Instant {
        self.shared().time.now()
    }
}
