//! Multicast groups: their members, and the delivery of a group's messages.

use std::net::IpAddr;

use hca_core::wire::Packet;
use hca_core::{DeviceError, Gid, Instant, QpHandle, QpType};
use hca_fabric::RxPacket;
use hca_transport::RxMeta;

use crate::engine::host::QpHost;
use crate::engine::{Core, Engine, write_grh};
use crate::limits::MAX_MEMBERS;
use crate::objects::qp::QpEntry;

impl Engine {
    /// Checks a group and its would-be member.
    fn membership(&self, qp: QpHandle, group: Gid) -> Result<IpAddr, DeviceError> {
        let entry = self.core.qps.known(qp.index, qp.generation)?;
        let address = group.ip();
        let refused = |why| Err(DeviceError::Multicast { group, why });
        if !address.is_multicast() {
            return refused(
                "this is no group's address: give an IP multicast address, as 239.1.2.3 or ff0e::1:2",
            );
        }
        if address.is_ipv4() != self.network.attr().local.is_ipv4() {
            return refused("the group is of another IP version than this port's GID");
        }
        if entry.machine.qp_type() != QpType::Ud {
            return refused("the queue pair is connected, and members are datagram queue pairs");
        }
        Ok(address)
    }

    pub(crate) fn attach_mcast(&mut self, qp: QpHandle, group: Gid) -> Result<(), DeviceError> {
        let address = self.membership(qp, group)?;
        let groups = &mut self.core.groups.0;
        let count = groups.len();
        if let Some(members) = groups.get_mut(&address) {
            if members.contains(&qp.index) {
                return Err(DeviceError::Multicast { group, why: "the queue pair is a member already" });
            }
            if members.len() == MAX_MEMBERS as usize {
                let limit = MAX_MEMBERS.into();
                return Err(DeviceError::LimitReached { what: "member of the multicast group", limit });
            }
            members.push(qp.index);
            return Ok(());
        }
        let network =
            self.network.groups().ok_or(DeviceError::Unsupported { what: "multicast on its network" })?;
        if count == network.limit() as usize {
            return Err(DeviceError::LimitReached { what: "multicast group", limit: network.limit().into() });
        }
        network
            .join(address)
            .map_err(|source| DeviceError::Io { doing: "joining a multicast group", source })?;
        self.core.groups.0.insert(address, vec![qp.index]);
        Ok(())
    }

    pub(crate) fn detach_mcast(&mut self, qp: QpHandle, group: Gid) -> Result<(), DeviceError> {
        let address = self.membership(qp, group)?;
        if self.leave_group(qp.index, address) {
            return Ok(());
        }
        Err(DeviceError::Multicast { group, why: "the queue pair is no member" })
    }

    /// Whether the queue pair in a slot was a member.
    pub(crate) fn leave_group(&mut self, slot: u32, group: IpAddr) -> bool {
        let Some(members) = self.core.groups.0.get_mut(&group) else { return false };
        let Some(at) = members.iter().position(|m| *m == slot) else { return false };
        members.remove(at);
        if members.is_empty() {
            self.core.groups.0.remove(&group);
            if let Some(network) = self.network.groups() {
                network.leave(group);
            }
        }
        true
    }

    /// The queue pair in a slot goes.
    pub(crate) fn leave_groups(&mut self, slot: u32) {
        let of_slot = self.core.groups.0.iter().filter(|(_, members)| members.contains(&slot));
        let groups: Vec<IpAddr> = of_slot.map(|(group, _)| *group).collect();
        for group in groups {
            self.leave_group(slot, group);
        }
    }
}

impl Core {
    /// One packet to the members of a group.
    #[cold]
    pub(crate) fn receive_multicast(&mut self, now: Instant, rx: &RxPacket<'_>, packet: &Packet<'_>) {
        let Some(members) = self.groups.0.get_mut(&rx.header.dst) else {
            self.counters.rx_unknown_group += 1;
            return;
        };
        let members = core::mem::take(members);
        let mut grh = [0; 40];
        write_grh(rx, &mut grh);
        let meta = RxMeta { ce: rx.congestion_experienced(), grh: Some(&grh) };
        for &slot in &members {
            let entry = self.qps.at_mut(slot).expect("a queue pair leaves its groups before it goes");
            let QpEntry { machine, res, .. } = &mut **entry;
            let mut host = QpHost::new(res, &mut self.tables, &self.ahs);
            machine.handle_packet(now, &meta, packet, &mut host);
            self.settle(slot);
        }
        *self.groups.0.get_mut(&rx.header.dst).expect("a packet ends no group") = members;
    }
}
