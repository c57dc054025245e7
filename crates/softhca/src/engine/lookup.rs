//! Objects of an engine: lookup, use counts, paths.

use hca_core::{
    AddressVector, CqHandle, DeviceError, Gid, PdHandle, QpHandle, QpInit, QpType, Qpn, SrqHandle,
};
use hca_fabric::{Fabric, PathError, PathId, PeerName, QpEnds};
use hca_transport::{Qp, QpConfig};

use crate::engine::Engine;
use crate::limits::{GENERAL_SERVICES, MAX_INLINE, MAX_RD_ATOMIC, MAX_SGE, MAX_WR, qpn_of};
use crate::objects::dormant::Dormancy;
use crate::objects::machine::Machine;
use crate::objects::qp::{QpEntry, QpRes};
use crate::objects::srq::SrqEntry;
use crate::objects::tables::Pd;
use crate::queues::cq::CqEntry;

/// ECN-capable transport, codepoint 0: what an address vector without a traffic class is sent with.
const ECT0: u8 = 0b10;
/// The bits of a traffic class that tell of congestion; the others are the DSCP.
const ECN: u8 = 0b11;

/// An address vector that says that its packets are to be marked on congestion, unless it says so or that they met
/// some.
fn with_traffic_class(av: &AddressVector) -> AddressVector {
    let traffic_class = if av.traffic_class & ECN == 0 { av.traffic_class | ECT0 } else { av.traffic_class };
    AddressVector { traffic_class, ..*av }
}

fn no_path(gid: Gid, e: PathError) -> DeviceError {
    match e {
        PathError::Family { .. } => DeviceError::NoPath { gid, why: "the peer has the other IP version" },
        PathError::NotUnicast { why, .. } => DeviceError::NoPath { gid, why },
        PathError::Limit(_) => DeviceError::NoPath { gid, why: "too many paths are open" },
        PathError::Io { doing, source } => DeviceError::Io { doing, source },
        PathError::ForeignUser { .. } => {
            let why = "the process there belongs to another user: run both as one user, or let both sides admit any (users=any)";
            DeviceError::NoPath { gid, why }
        }
        _ => DeviceError::NoPath { gid, why: "the network refuses it" },
    }
}

impl Engine {
    pub(crate) fn use_pd(&mut self, pd: PdHandle) -> Result<&mut Pd, DeviceError> {
        self.core.tables.pds.known_mut(pd.index, pd.generation)
    }
    pub(crate) fn leave_pd(&mut self, pd: PdHandle) {
        if let Some(p) = self.core.tables.pds.get_mut(pd.index, pd.generation) {
            p.users -= 1;
        }
    }
    pub(crate) fn open_path(&mut self, av: &AddressVector, ends: QpEnds) -> Result<PathId, DeviceError> {
        let av = with_traffic_class(av);
        self.network.open_path_of(&av, ends).map_err(|e| no_path(av.dgid, e))
    }
    /// The path of a queue pair, and its peer if messages go by it. `as_before`: it is connected, in this way.
    pub(crate) fn open_path_of(
        &mut self,
        now: hca_core::Instant,
        (qp_type, ends): (QpType, QpEnds),
        av: &AddressVector,
        as_before: Option<bool>,
    ) -> Result<(PathId, Option<PeerName>), DeviceError> {
        let near_too = self.network.has_near() && Qp::may_use_messages(qp_type) && as_before != Some(false);
        if let Some(peer) = ends.peer.filter(|_| near_too) {
            self.part_from_predecessor(now, av.dgid.ip(), peer);
            let av = with_traffic_class(av);
            if let Some(path) = self.network.open_messages(&av, peer).map_err(|e| no_path(av.dgid, e))? {
                return Ok((path, self.network.near().and_then(|near| near.peer_of(path))));
            }
        }
        if as_before == Some(true) {
            let why = "the device is not reached by shared memory, but the connection is";
            return Err(DeviceError::NoPath { gid: av.dgid, why });
        }
        Ok((self.open_path(av, ends)?, None))
    }
    pub(crate) fn close_path(&mut self, path: PathId, messages: bool) {
        match self.network.near().filter(|_| messages) {
            Some(near) => near.close_path(path),
            None => self.network.close_path(path),
        }
    }
    pub(crate) fn cq(&mut self, cq: CqHandle) -> Result<&mut CqEntry, DeviceError> {
        self.core.tables.cqs.known_mut(cq.index, cq.generation)
    }
    pub(crate) fn cq_users(&mut self, cq: CqHandle) -> Result<&mut u32, DeviceError> {
        self.cq(cq).map(|c| &mut c.users)
    }
    pub(crate) fn srq(&mut self, srq: SrqHandle) -> Result<&mut SrqEntry, DeviceError> {
        self.core.tables.srqs.known_mut(srq.index, srq.generation)
    }

    /// Whether a queue pair's limits are within the adapter's, and its objects exist and fit.
    pub(crate) fn check_qp(&mut self, pd: PdHandle, init: &QpInit) -> Result<(), DeviceError> {
        let cap = init.cap;
        DeviceError::unless_within("max_send_wr", cap.max_send_wr, 1, MAX_WR)?;
        DeviceError::unless_within("max_recv_wr", cap.max_recv_wr, 0, MAX_WR)?;
        DeviceError::unless_within("max_send_sge", cap.max_send_sge, 0, MAX_SGE)?;
        DeviceError::unless_within("max_recv_sge", cap.max_recv_sge, 0, MAX_SGE)?;
        DeviceError::unless_within("max_inline", cap.max_inline, 0, MAX_INLINE)?;
        self.use_pd(pd)?;
        self.cq_users(init.send_cq)?;
        self.cq_users(init.recv_cq)?;
        self.recv_pd(pd, init).map(drop)
    }

    /// The protection domain of a queue pair's receive requests: a shared queue may have another one.
    pub(crate) fn recv_pd(&self, pd: PdHandle, init: &QpInit) -> Result<PdHandle, DeviceError> {
        let Some(s) = init.srq else { return Ok(pd) };
        let srq = self.core.tables.srqs.known(s.index, s.generation)?;
        if srq.xrc.is_some() {
            return Err(DeviceError::Unsupported { what: "a shared receive queue of an XRC domain here" });
        }
        Ok(srq.pd)
    }

    /// The handle and the number that the next queue pair has.
    pub(crate) fn next_qp(&self, number: Option<Qpn>) -> Result<(QpHandle, Qpn), DeviceError> {
        let (index, generation) = self.core.qps.vacant()?;
        let generation_of_number = self.network.attr().qpn_slot.map_or(generation, u32::from);
        let qpn = number.unwrap_or(qpn_of(index, generation_of_number));
        Ok((QpHandle { index, generation }, qpn))
    }
    /// Adds the [next](Self::next_qp) queue pair.
    pub(crate) fn insert_qp(&mut self, qp_type: QpType, qpn: Qpn, res: QpRes) {
        // The header in front of a datagram tells the traffic class. Connection managers, which alone have the other
        // queue pair of datagrams, read addresses there.
        if qp_type == QpType::Ud && qpn != GENERAL_SERVICES {
            self.network.read_traffic_class();
        }
        let attr = self.network.attr();
        let machine = Qp::new(&QpConfig {
            qp_type,
            qpn,
            max_rd_atomic_limit: MAX_RD_ATOMIC,
            max_send_wr: res.cap.max_send_wr,
            window_bytes: attr.recv_buffer_bytes.min(u32::MAX as usize) as u32,
            port_mtu: self.max_mtu,
        });
        let machine = Machine::new(machine, res.shared.clone());
        let entry =
            QpEntry { machine, res, ready: false, ack_since: None, timer: None, dormancy: Dormancy::Awake };
        self.core.qps.insert(Box::new(entry)).expect("a vacant slot was seen");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_class_leaves_marks_on_congestion_possible() {
        let sent =
            |traffic_class| with_traffic_class(&AddressVector { traffic_class, ..AddressVector::default() });
        for (given, on_the_wire) in [(0, 2), (0x68, 0x6a), (0x69, 0x69), (0x6a, 0x6a), (3, 3)] {
            assert_eq!(sent(given).traffic_class, on_the_wire, "{given:#x}");
        }
    }
}
