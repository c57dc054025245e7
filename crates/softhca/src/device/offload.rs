//! Portals engines, as the layer above attaches them; `drive::offload` says which threads run them.

use std::sync::Weak;

use hca_core::{CqHandle, DeviceError, Offload, OffloadEngine};

use crate::device::SoftHca;
use crate::notify::runs::{ASKED, NEVER, RunWord};
use crate::queues::attached::Attached;
use crate::sync::{Arc, AtomicU64, lock};

impl Offload for SoftHca {
    fn attach(&self, cq: CqHandle, engine: Weak<dyn OffloadEngine>) -> Result<(), DeviceError> {
        let shared = self.shared();
        let attention = shared.attention.clone();
        let (word, at) = (RunWord::new(), AtomicU64::new(NEVER));
        let attached = Arc::new(Attached { cq, word, at, engine, attention });
        self.control(|e| {
            let entry = e.cq(cq)?;
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
        let attached = self.control(|e| {
            let attached = shared.attached(e, cq)?;
            e.cq(cq)?.detach();
            Ok(attached)
        })?;
        shared.retire(&attached);
        Ok(())
    }

    fn nudge(&self, cq: CqHandle) -> Result<(), DeviceError> {
        let shared = self.shared();
        let attached = self.control(|e| shared.attached(e, cq))?;
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
