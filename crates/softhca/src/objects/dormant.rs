//! The packets and messages that wait for dormant queue pairs.

use std::collections::VecDeque;

use hca_core::QpHandle;
use hca_fabric::{PacketHeader, PeerName};

use crate::sync::{Arc, AtomicUsize, Ordering};

/// Packets and messages that wait for all queue pairs that were called; further ones are lost, as in a network.
const MAX_WAITING: usize = 4096;

/// Whether a queue pair is dormant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dormancy {
    #[default]
    Awake,
    Dormant,
    /// Something waits for it.
    Called,
}

/// A packet or message for a dormant queue pair.
pub(crate) enum Came {
    Packet(PacketHeader),
    Message { from: PeerName },
}

pub(crate) struct Waiting {
    pub(crate) slot: u32,
    pub(crate) came: Came,
    pub(crate) bytes: Box<[u8]>,
}

/// Packets and messages that wait for dormant queue pairs, and the queue pairs that were called.
#[derive(Default)]
pub(crate) struct DormantQps {
    pub(crate) waiting: VecDeque<Waiting>,
    pub(crate) called: Vec<QpHandle>,
    /// The number of called queue pairs, for readers without the engine's lock.
    pub(crate) calls: Arc<AtomicUsize>,
}

impl DormantQps {
    /// Keeps what has come for a dormant queue pair, and calls its owner if that was not done yet.
    pub(crate) fn keep(&mut self, qp: QpHandle, dormancy: &mut Dormancy, came: Came, bytes: &[u8]) {
        if *dormancy == Dormancy::Dormant {
            *dormancy = Dormancy::Called;
            self.called.push(qp);
            self.count();
        }
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(Waiting { slot: qp.index, came, bytes: bytes.into() });
        }
    }
    /// Shows how many were called.
    pub(crate) fn count(&self) {
        // Whoever reads it takes the engine's lock before it looks at anything else.
        self.calls.store(self.called.len(), Ordering::Relaxed);
    }
    /// Takes all that waits for a queue pair.
    pub(crate) fn take(&mut self, slot: u32) -> Vec<Waiting> {
        let (mine, others) = core::mem::take(&mut self.waiting).into_iter().partition(|w| w.slot == slot);
        self.waiting = others;
        Vec::from(mine)
    }
    /// A queue pair has gone.
    pub(crate) fn forget(&mut self, slot: u32) {
        if !self.called.is_empty() || !self.waiting.is_empty() {
            self.called.retain(|qp| qp.index != slot);
            self.waiting.retain(|w| w.slot != slot);
            self.count();
        }
    }
}
