//! One adapter's view of the network.

use core::net::IpAddr;
use core::time::Duration;
use std::os::fd::BorrowedFd;

use hca_core::wire::{Bth, ICRC_BYTES};
use hca_core::{AddressVector, Counter, Instant, Mtu, counters};
use hca_fabric::{
    Direction, Fabric, FabricAttr, FabricLink, MulticastGroups, PacketHeader, PathError, PathId, QpEnds,
    RxBudget, RxOutcome, RxPacket, Tap, TapFrame, TxBatch,
};

use crate::SimNet;
use crate::near::NodeChance;
use crate::net::{Path, RECV_BUFFER_BYTES, seal};

/// Paths that may be open at once.
const MAX_PATHS: usize = 1 << 20;
/// Groups of one adapter.
const MAX_GROUPS: u32 = 16;
/// When a sender may come again that was told to.
const COME_AGAIN: Duration = Duration::from_micros(3);
/// Time to live of a packet whose path names none.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// The fabric of one adapter in a simulation. It works packet by packet, and adds and checks the ICRC, so that it
/// detects changed packets as on a real network.
///
/// A crashed node may open another fabric at the same address; the old one's packets are then lost, and it receives
/// nothing.
pub struct SimFabric {
    net: SimNet,
    node: usize,
    incarnation: u32,
    attr: FabricAttr,
    paths: Vec<Option<Path>>,
    tap: Option<Box<dyn Tap>>,
    counts: Counts,
    /// When the network, which took a part of a batch, takes the rest.
    come_again_at: Option<Instant>,
}

counters! {
    Counts:
    fabric_tx_packets,
    fabric_tx_bytes,
    fabric_rx_packets,
    fabric_rx_bytes,
}

impl SimFabric {
    /// The adapter's chances with neighbours on its machine.
    pub(crate) fn chance(&self) -> NodeChance {
        NodeChance { net: self.net.clone(), node: self.node, incarnation: self.incarnation }
    }
    pub(crate) fn open(net: &SimNet, node: usize) -> Self {
        let mut inner = net.lock();
        let incarnation = inner.open_port(node);
        let attr = FabricAttr {
            name: "sim".into(),
            local: inner.ip(node),
            max_mtu: Mtu::B4096,
            recv_buffer_bytes: RECV_BUFFER_BYTES,
            qpn_slot: None,
            link: FabricLink::none(),
            notes: Vec::new(),
        };
        drop(inner);
        let (paths, counts) = (Vec::new(), Counts::default());
        Self { net: net.clone(), node, incarnation, attr, paths, tap: None, counts, come_again_at: None }
    }
}

impl Fabric for SimFabric {
    fn attr(&self) -> &FabricAttr {
        &self.attr
    }

    fn open_path_of(&mut self, av: &AddressVector, _: QpEnds) -> Result<PathId, PathError> {
        let (peer, local) = (av.dgid.ip(), self.attr.local);
        if peer.is_ipv4() != local.is_ipv4() {
            return Err(PathError::Family { peer, local });
        }
        let path = Path {
            peer,
            src_port: 0xc000 | (av.flow_label ^ av.flow_label >> 14) as u16 & 0x3fff,
            traffic_class: av.traffic_class,
            hop_limit: if av.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { av.hop_limit },
        };
        let slot = match self.paths.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.paths.len() == MAX_PATHS => return Err(PathError::Limit(MAX_PATHS)),
            None => {
                self.paths.push(None);
                self.paths.len() - 1
            }
        };
        self.paths[slot] = Some(path);
        Ok(PathId(slot as u32))
    }

    fn close_path(&mut self, path: PathId) {
        if let Some(slot) = self.paths.get_mut(path.0 as usize) {
            *slot = None;
        }
    }

    fn send(&mut self, now: Instant, batch: &mut TxBatch) {
        let mut net = self.net.lock();
        let live = net.is_live(self.node, self.incarnation);
        if live && self.come_again_at.take_if(|at| now >= *at).is_none() && self.come_again_at.is_some() {
            return;
        }
        let mut done = batch.trains().len();
        for n in 0..batch.trains().len() {
            let train = batch.trains()[n];
            let Some(path) = self.paths.get(train.path.0 as usize).copied().flatten() else { continue };
            if !live {
                continue;
            }
            if net.defers(self.node, &path) {
                (done, self.come_again_at) = (n, Some(now + COME_AGAIN));
                break;
            }
            let mut idents = Vec::with_capacity(train.packets());
            for packet in batch.bytes_mut(&train).chunks_mut(train.segment) {
                let ident = net.next_ident(self.node);
                seal(self.attr.local, &path, ident, packet);
                idents.push(ident);
            }
            batch.apply_flips(&train);
            for (packet, ident) in batch.bytes(&train).chunks(train.segment).zip(idents) {
                self.counts.fabric_tx_packets += 1;
                self.counts.fabric_tx_bytes += packet.len() as u64;
                if let Some(tap) = &mut self.tap {
                    tap.frame(now, &tap_frame(Direction::Tx, path.header(self.attr.local), ident, packet));
                }
                net.send(now, self.node, &path, ident, packet);
            }
        }
        batch.advance(done);
    }

    fn recv(&mut self, now: Instant, budget: RxBudget, sink: &mut dyn FnMut(&RxPacket<'_>)) -> RxOutcome {
        let mut done = RxOutcome::default();
        let mut bytes = 0;
        if !self.net.lock().is_live(self.node, self.incarnation) {
            return done;
        }
        while done.packets < budget.packets && bytes < budget.bytes {
            let mut net = self.net.lock();
            let Some(frame) = net.take(now, self.node) else { return done };
            let src = net.ip(frame.from);
            drop(net);
            let header = PacketHeader {
                src,
                dst: frame.group.unwrap_or(self.attr.local),
                src_port: frame.src_port,
                traffic_class: frame.traffic_class,
                hop_limit: frame.hop_limit,
            };
            let packet = RxPacket { header, bytes: &frame.bytes[..frame.bytes.len() - ICRC_BYTES] };
            debug_assert!(packet.bytes.len() >= Bth::BYTES, "shorter frames are dropped by the network");
            if let Some(tap) = &mut self.tap {
                tap.frame(now, &tap_frame(Direction::Rx, header, frame.ident, &frame.bytes));
            }
            sink(&packet);
            done.packets += 1;
            bytes += frame.bytes.len();
            self.counts.fabric_rx_packets += 1;
            self.counts.fabric_rx_bytes += frame.bytes.len() as u64;
            self.net.lock().recycle(frame.bytes);
        }
        done.more = self.net.lock().has_input(self.node);
        done
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.come_again_at
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn prepare_wait(&mut self) -> bool {
        let net = self.net.lock();
        net.is_live(self.node, self.incarnation) && net.has_input(self.node)
    }

    fn groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        Some(self)
    }

    fn counters(&self, out: &mut Vec<Counter>) {
        self.counts.append(out);
    }

    fn set_tap(&mut self, tap: Option<Box<dyn Tap>>) {
        self.tap = tap;
    }
}

impl MulticastGroups for SimFabric {
    fn join(&mut self, group: IpAddr) -> std::io::Result<()> {
        self.set_member(group, true);
        Ok(())
    }
    fn leave(&mut self, group: IpAddr) {
        self.set_member(group, false);
    }
    fn limit(&self) -> u32 {
        MAX_GROUPS
    }
}

impl SimFabric {
    fn set_member(&self, group: IpAddr, joins: bool) {
        let mut net = self.net.lock();
        if net.is_live(self.node, self.incarnation) {
            net.set_member(self.node, group, joins);
        }
    }
}

pub(crate) fn tap_frame(
    direction: Direction,
    header: PacketHeader,
    ident: u16,
    payload: &[u8],
) -> TapFrame<'_> {
    TapFrame { direction, version: hca_fabric::RoceVersion::V2, header, ident, payload }
}
