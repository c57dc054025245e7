//! Dormant queue pairs: packets and messages for a dormant queue pair wait, and the queue pair's owner learns that some
//! do.
//!
//! An owner of many queue pairs that finds posted requests by polling each queue pair skips the dormant ones: it takes
//! the requests of a dormant queue pair when a packet or message arrives that could need them.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hca_core::{Instant, QpHandle};
use hca_fabric::{PeerName, RxPacket, ShmFabric};

use crate::device::SoftHca;
use crate::engine::{Core, Engine};
use crate::qp::QpEntry;

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
enum Came {
    Packet { src: IpAddr, dst: IpAddr, src_port: u16, traffic_class: u8, hop_limit: u8 },
    Message { from: PeerName },
}

struct Waiting {
    slot: u32,
    came: Came,
    bytes: Box<[u8]>,
}

/// Packets and messages that wait for dormant queue pairs, and the queue pairs that were called.
#[derive(Default)]
pub(crate) struct DormantQps {
    waiting: VecDeque<Waiting>,
    called: Vec<QpHandle>,
    /// The number of called queue pairs, for readers without the engine's lock.
    pub(crate) calls: Arc<AtomicUsize>,
}

impl DormantQps {
    fn keep(&mut self, entry: &mut QpEntry, slot: u32, came: Came, bytes: &[u8]) {
        if entry.dormancy == Dormancy::Dormant {
            entry.dormancy = Dormancy::Called;
            self.called.push(entry.res.shared.handle);
            self.count();
        }
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(Waiting { slot, came, bytes: bytes.into() });
        }
    }
    fn count(&self) {
        // Whoever reads it takes the engine's lock before it looks at anything else.
        self.calls.store(self.called.len(), Ordering::Relaxed);
    }
    fn take(&mut self, slot: u32) -> Vec<Waiting> {
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

impl Core {
    #[cold]
    pub(crate) fn keep_packet(&mut self, slot: u32, rx: &RxPacket<'_>) {
        let Some(entry) = self.qps.at_mut(slot) else { return };
        let RxPacket { src, dst, src_port, traffic_class, hop_limit, bytes } = *rx;
        let came = Came::Packet { src, dst, src_port, traffic_class, hop_limit };
        self.dormant.keep(entry, slot, came, bytes);
    }
    #[cold]
    pub(crate) fn keep_message(&mut self, slot: u32, from: PeerName, message: &[u8]) {
        let Some(entry) = self.qps.at_mut(slot) else { return };
        self.dormant.keep(entry, slot, Came::Message { from }, message);
    }
}

impl Engine {
    fn make_dormant(&mut self, qp: QpHandle) -> bool {
        let Some(entry) = self.core.qps.get_mut(qp.index, qp.generation) else { return false };
        let QpEntry { machine, res, ready, dormancy, .. } = &mut **entry;
        let busy = *ready
            || *dormancy != Dormancy::Awake
            || machine.wants_transmit()
            || machine.ack_owed().is_some()
            || machine.next_deadline().is_some()
            || res.sq.refresh() != res.sq.head();
        if busy {
            return false;
        }
        *dormancy = Dormancy::Dormant;
        // Without a link nothing takes the quick way.
        res.link = None;
        true
    }

    /// Ends a queue pair's dormancy, if it is not to `stay` dormant, and has the queue pair take what waited.
    fn wake(&mut self, now: Instant, qp: QpHandle, stay: bool) {
        let Self { fabric, core, .. } = self;
        let Some(entry) = core.qps.get_mut(qp.index, qp.generation) else { return };
        let called = entry.dormancy == Dormancy::Called;
        if called || !stay {
            entry.dormancy = Dormancy::Awake;
        }
        if !called {
            return;
        }
        core.dormant.called.retain(|called| *called != qp);
        core.dormant.count();
        core.now = now;
        for Waiting { came, bytes, .. } in core.dormant.take(qp.index) {
            let bytes = &bytes[..];
            match came {
                Came::Packet { src, dst, src_port, traffic_class, hop_limit } => {
                    core.receive(now, &RxPacket { src, dst, src_port, traffic_class, hop_limit, bytes });
                }
                Came::Message { from } => {
                    if let Some(shm) = fabric.shm() {
                        take_message(core, shm, now, from, bytes);
                    }
                }
            }
        }
        if stay && let Some(entry) = core.qps.get_mut(qp.index, qp.generation) {
            entry.dormancy = Dormancy::Dormant;
            entry.res.link = None;
        }
        core.settle_touched(None);
        self.conclude();
    }
}

fn take_message(core: &mut Core, shm: &mut ShmFabric, now: Instant, from: PeerName, bytes: &[u8]) {
    shm.reach(|reach| core.receive_message(now, from, bytes, reach));
}

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
