//! Queue pairs that doze: what comes for one waits here, and its owner is told that it was called.
//!
//! An owner that looks after many queue pairs, and has to look at each to find what was posted, need not look at those
//! that doze: whatever they were to be given is still to be had when something comes that could need it.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hca_core::{Instant, QpHandle};
use hca_fabric::{RxPacket, ShmFabric};

use crate::device::SoftHca;
use crate::engine::{Core, Engine};
use crate::qp::QpEntry;

/// Packets and messages that wait for all queue pairs that were called; further ones are lost, as in a network.
const MAX_WAITING: usize = 4096;

/// Whether a queue pair dozes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Doze {
    #[default]
    Awake,
    Dozing,
    /// Something waits for it.
    Called,
}

/// What came for a queue pair that dozes.
enum Came {
    Packet { src: IpAddr, dst: IpAddr, src_port: u16, traffic_class: u8, hop_limit: u8 },
    Message { from: Ipv6Addr },
}

struct Waiting {
    slot: u32,
    came: Came,
    bytes: Box<[u8]>,
}

/// What waits, and for whom.
#[derive(Default)]
pub(crate) struct Dozers {
    waiting: VecDeque<Waiting>,
    called: Vec<QpHandle>,
    /// How many were called, for who has not the engine.
    pub(crate) calls: Arc<AtomicUsize>,
}

impl Dozers {
    fn keep(&mut self, entry: &mut QpEntry, slot: u32, came: Came, bytes: &[u8]) {
        if entry.doze == Doze::Dozing {
            entry.doze = Doze::Called;
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
        self.dozers.keep(entry, slot, came, bytes);
    }
    #[cold]
    pub(crate) fn keep_message(&mut self, slot: u32, from: Ipv6Addr, message: &[u8]) {
        let Some(entry) = self.qps.at_mut(slot) else { return };
        self.dozers.keep(entry, slot, Came::Message { from }, message);
    }
}

impl Engine {
    fn doze(&mut self, qp: QpHandle) -> bool {
        let Some(entry) = self.core.qps.get_mut(qp.index, qp.generation) else { return false };
        let QpEntry { machine, res, ready, doze, .. } = &mut **entry;
        let busy = *ready
            || *doze != Doze::Awake
            || machine.wants_transmit()
            || machine.ack_owed().is_some()
            || machine.next_deadline().is_some()
            || res.sq.refresh() != res.sq.head();
        if busy {
            return false;
        }
        *doze = Doze::Dozing;
        // Without a link nothing takes the quick way.
        res.link = None;
        true
    }

    fn wake(&mut self, now: Instant, qp: QpHandle) {
        let Self { fabric, core, .. } = self;
        let Some(entry) = core.qps.get_mut(qp.index, qp.generation) else { return };
        if core::mem::take(&mut entry.doze) != Doze::Called {
            return;
        }
        core.dozers.called.retain(|called| *called != qp);
        core.dozers.count();
        core.now = now;
        for Waiting { came, bytes, .. } in core.dozers.take(qp.index) {
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
        core.settle_touched(None);
        self.conclude();
    }
}

fn take_message(core: &mut Core, shm: &mut ShmFabric, now: Instant, from: Ipv6Addr, bytes: &[u8]) {
    shm.reach(|reach| core.receive_message(now, from, bytes, reach));
}

/// Queue pairs that doze.
impl SoftHca {
    /// Has a queue pair doze, if it has nothing to do: what comes for it waits until it is [woken](Self::wake).
    /// Returns whether it does. What is posted to it while it dozes is carried out as ever; whoever posts wakes it
    /// first, lest answers wait.
    pub fn doze(&self, qp: QpHandle) -> bool {
        !self.shared().fork.is_child() && self.shared().control(|e| e.doze(qp))
    }
    /// Wakes a queue pair, and gives it what has come for it. One that does not doze stays as it is.
    pub fn wake(&self, qp: QpHandle) {
        if !self.shared().fork.is_child() {
            let now = self.shared().time.now();
            self.shared().control(|e| e.wake(now, qp));
        }
    }
    /// Queue pairs that doze and for which something has come, among those that are meant. They are to be
    /// [woken](Self::wake), and named until then. If there are none this is a load.
    pub fn called(&self, meant: impl Fn(QpHandle) -> bool) -> Vec<QpHandle> {
        if self.calls.load(Ordering::Relaxed) == 0 || self.shared().fork.is_child() {
            return Vec::new();
        }
        self.shared().control(|e| e.core.dozers.called.iter().copied().filter(|qp| meant(*qp)).collect())
    }
}
