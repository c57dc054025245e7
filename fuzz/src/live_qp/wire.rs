//! The network of the target: packets that arrive from nowhere, and a look at those that leave.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use hca_core::wire::{ICRC_BYTES, Packet, PacketOp};
use hca_core::{AddressVector, Counter, Instant, Psn};
use hca_fabric::{
    Fabric, FabricAttr, PacketHeader, PathError, PathId, QpEnds, RxBudget, RxOutcome, RxPacket, Tap, TxBatch,
};

use super::arena::{LEAK, SECRET};

/// Requests of a queue pair whose PSNs are remembered.
const REMEMBERED: usize = 64;
/// Number of the peer of the queue pair at this index.
pub(super) const PEER_QPN: [u32; 3] = [0x111, 0x222, 0x333];

/// What the network of the target holds: packets that will arrive, and what is known of those that left.
#[derive(Default)]
pub(super) struct Wire {
    pub(super) arriving: VecDeque<(bool, bool, Vec<u8>)>,
    /// PSNs of requests that left, by queue pair.
    pub(super) requests: [VecDeque<u32>; 3],
    /// The PSN that the RC responder is thought to expect.
    pub(super) expected: u32,
    pub(super) paths: Vec<bool>,
    pub(super) mtu: usize,
}

pub(super) struct WireFabric {
    pub(super) attr: FabricAttr,
    pub(super) peer: IpAddr,
    pub(super) wire: Arc<Mutex<Wire>>,
}

impl Wire {
    /// One packet leaves.
    fn left(&mut self, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("what the adapter sends is a packet");
        assert!(packet.payload().len() <= self.mtu, "a payload beyond the path MTU");
        let secrets = packet.payload().split(|b| *b != SECRET).map(<[u8]>::len).max();
        assert!(secrets.unwrap_or(0) < LEAK, "memory that no peer may read left: {packet:?}");
        let Some(op) = packet.opcode().op() else { return };
        let psn = packet.bth().psn().raw();
        let qp = PEER_QPN.iter().position(|q| *q == packet.bth().dest_qp().raw());
        let qp = qp.expect("packets go to the peers that were given");
        match op {
            PacketOp::Acknowledge => {
                // A positive one names the last PSN that was taken, a negative one that expected.
                let positive = packet.aeth().is_some_and(|a| a.syndrome >> 5 == 0);
                self.expected = Psn::new(psn).add(u32::from(positive)).raw();
            }
            PacketOp::AtomicAcknowledge
            | PacketOp::ReadResponseFirst
            | PacketOp::ReadResponseMiddle
            | PacketOp::ReadResponseLast
            | PacketOp::ReadResponseOnly => {
                if Psn::new(self.expected).is_before(Psn::new(psn).add(1)) {
                    self.expected = Psn::new(psn).add(1).raw();
                }
            }
            _ => {
                let known = &mut self.requests[qp];
                if !known.contains(&psn) {
                    known.push_back(psn);
                }
                if known.len() > REMEMBERED {
                    known.pop_front();
                }
            }
        }
    }
}

impl Fabric for WireFabric {
    fn attr(&self) -> &FabricAttr {
        &self.attr
    }
    fn open_path_of(&mut self, _: &AddressVector, _: QpEnds) -> Result<PathId, PathError> {
        let mut wire = self.wire.lock().unwrap();
        wire.paths.push(true);
        Ok(PathId(wire.paths.len() as u32 - 1))
    }
    fn close_path(&mut self, path: PathId) {
        let open = std::mem::replace(&mut self.wire.lock().unwrap().paths[path.0 as usize], false);
        assert!(open, "a path is closed once");
    }
    fn send(&mut self, _: Instant, batch: &mut TxBatch) {
        let mut wire = self.wire.lock().unwrap();
        for train in batch.trains() {
            assert!(wire.paths[train.path.0 as usize], "a closed path is sent on");
            for packet in batch.bytes(train).chunks(train.segment) {
                wire.left(&packet[..packet.len() - ICRC_BYTES]);
            }
        }
        drop(wire);
        batch.advance(batch.trains().len());
    }
    fn recv(&mut self, _: Instant, budget: RxBudget, sink: &mut dyn FnMut(&RxPacket<'_>)) -> RxOutcome {
        let mut packets = 0;
        while packets < budget.packets {
            let Some((congested, stranger, bytes)) = self.wire.lock().unwrap().arriving.pop_front() else {
                break;
            };
            let header = PacketHeader {
                src: if stranger { self.attr.local } else { self.peer },
                dst: self.attr.local,
                src_port: 50_000,
                traffic_class: if congested { 3 } else { 2 },
                hop_limit: 64,
            };
            sink(&RxPacket { header, bytes: &bytes });
            packets += 1;
        }
        RxOutcome { packets, more: false }
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn counters(&self, _: &mut Vec<Counter>) {}
    fn set_tap(&mut self, _: Option<Box<dyn Tap>>) {}
}
