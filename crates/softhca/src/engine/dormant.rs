//! Dormant queue pairs: packets and messages for a dormant queue pair wait, and the queue pair's owner learns that some
//! do.
//!
//! An owner of many queue pairs that finds posted requests by polling each queue pair skips the dormant ones: it takes
//! the requests of a dormant queue pair when a packet or message arrives that could need them.

use hca_core::{Instant, QpHandle};
use hca_fabric::{PeerName, RxPacket, ShmFabric};

use crate::engine::{Core, Engine};
use crate::objects::dormant::{Came, Dormancy, Waiting};
use crate::objects::qp::QpEntry;

impl Core {
    #[cold]
    pub(crate) fn keep_packet(&mut self, slot: u32, rx: &RxPacket<'_>) {
        let Some(entry) = self.qps.at_mut(slot) else { return };
        let came = Came::Packet(rx.header);
        self.dormant.keep(entry.res.shared.handle, &mut entry.dormancy, came, rx.bytes);
    }
    #[cold]
    pub(crate) fn keep_message(&mut self, slot: u32, from: PeerName, message: &[u8]) {
        let Some(entry) = self.qps.at_mut(slot) else { return };
        let came = Came::Message { from };
        self.dormant.keep(entry.res.shared.handle, &mut entry.dormancy, came, message);
    }
}

impl Engine {
    pub(crate) fn make_dormant(&mut self, qp: QpHandle) -> bool {
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
    pub(crate) fn wake(&mut self, now: Instant, qp: QpHandle, stay: bool) {
        let Self { network, core, .. } = self;
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
                Came::Packet(header) => core.receive(now, &RxPacket { header, bytes }),
                Came::Message { from } => {
                    if let Some(near) = network.near() {
                        take_message(core, near, now, from, bytes);
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

fn take_message(core: &mut Core, near: &mut ShmFabric, now: Instant, from: PeerName, bytes: &[u8]) {
    near.reach(|reach| core.receive_message(now, from, bytes, reach));
}
