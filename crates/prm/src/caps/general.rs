//! General capabilities.

use crate::layout;

layout! {
    list LAYOUTS;

    /// The general capabilities of an adapter.
    pub struct HcaCap: 0x100 {
        /// Entries of a shared receive queue.
        LOG_MAX_SRQ_SZ: 0x10 [31:24],
        /// Entries of a work queue.
        LOG_MAX_QP_SZ: 0x10 [23:16],
        /// Queue pairs.
        LOG_MAX_QP: 0x10 [4:0],
        /// Shared receive queues.
        LOG_MAX_SRQ: 0x14 [20:16],
        /// Whether the embedded switch follows the link can be set.
        UPLINK_FOLLOW: 0x14 [14],
        /// Entries of a completion queue.
        LOG_MAX_CQ_SZ: 0x18 [23:16],
        /// Completion queues.
        LOG_MAX_CQ: 0x18 [4:0],
        /// Entries of an event queue.
        LOG_MAX_EQ_SZ: 0x1c [31:24],
        /// Memory keys.
        LOG_MAX_MKEY: 0x1c [21:16],
        /// Event queues.
        LOG_MAX_EQ: 0x1c [3:0],
        /// Bytes of a region.
        LOG_MAX_MRW_SZ: 0x20 [22:16],
        /// READs and atomics under way of a queue pair.
        LOG_MAX_RA_REQ_QP: 0x28 [21:16],
        /// READs and atomics of a peer on a queue pair.
        LOG_MAX_RA_RES_QP: 0x28 [5:0],
        /// Entries of a port's table of addresses: a code, see [`HcaCap::gids`].
        GID_TABLE_SIZE: 0x2c [15:0],
        /// Ports have counters.
        VPORT_COUNTERS: 0x30 [30],
        /// Sets of counters.
        MAX_QP_CNT: 0x30 [25:16],
        /// Entries of a port's table of partition keys: a code, see [`HcaCap::pkeys`].
        PKEY_TABLE_SIZE: 0x30 [15:0],
        /// InfiniBand ports are virtual: their state is asked for by commands.
        IB_VIRT: 0x34 [29],
        /// Ethernet ports are virtual.
        ETH_VIRT: 0x34 [28],
        /// There are tables of flows.
        NIC_FLOW_TABLE: 0x34 [25],
        /// The function manages the embedded switch.
        ESWITCH_MANAGER: 0x34 [24],
        /// How long the adapter may take to acknowledge: 4.096 us times two to this power.
        LOCAL_CA_ACK_DELAY: 0x34 [20:16],
        /// What ports are: a [`PortType`] code.
        PORT_TYPE: 0x34 [9:8],
        /// Ports.
        NUM_PORTS: 0x34 [7:0],
        /// Bytes of a message.
        LOG_MAX_MSG: 0x38 [28:24],
        /// Rates that can be limited to, a bit each.
        STAT_RATE_SUPPORT: 0x3c [31:16],
        /// Completions carry the user's numbers (1) or the adapter's (0).
        CQE_VERSION: 0x3c [3:0],
        /// Work requests cannot change the page size.
        UMR_MODIFY_ENTITY_SIZE_DISABLED: 0x40 [24],
        /// Work requests cannot change indirect keys.
        UMR_INDIRECT_MKEY_DISABLED: 0x40 [22],
        /// Which signatures of commands are checked: none (0), as at the start (1), all (3).
        CMDIF_CHECKSUM: 0x40 [15:14],
        /// There are dynamic connections.
        DCT: 0x40 [5],
        /// There are offloads for Ethernet.
        ETH_NET_OFFLOADS: 0x40 [3],
        /// There is RDMA over Ethernet.
        ROCE: 0x40 [2],
        /// There are atomics.
        ATOMIC: 0x40 [1],
        /// Completion queues' events can wait for more.
        CQ_MODERATION: 0x44 [29],
        /// There are extended reliable connections.
        XRC: 0x44 [3],
        /// There are unreliable datagrams.
        UD: 0x44 [2],
        /// There are unreliable connections.
        UC: 0x44 [1],
        /// There are reliable connections.
        RC: 0x44 [0],
        /// Doorbell pages of 4 KiB stand side by side.
        UAR_4K: 0x48 [31],
        /// Doorbell pages in BAR 0, as a power of two of MiB.
        UAR_SZ: 0x48 [21:16],
        /// Bytes of the smallest page.
        LOG_PG_SZ: 0x48 [7:0],
        /// Data may be written to the doorbell (BlueFlame).
        BF: 0x4c [31],
        /// The driver may say who it is.
        DRIVER_VERSION: 0x4c [30],
        /// Bytes of a send doorbell, both buffers.
        LOG_BF_REG_SIZE: 0x4c [20:16],
        /// Bytes of an entry of a send queue.
        MAX_WQE_SZ_SQ: 0x50 [15:0],
        /// Bytes of an entry of a receive queue.
        MAX_WQE_SZ_RQ: 0x54 [15:0],
        /// Transport domains.
        LOG_MAX_TRANSPORT_DOMAIN: 0x64 [28:24],
        /// Protection domains.
        LOG_MAX_PD: 0x64 [20:16],
        /// Domains of extended reliable connections.
        LOG_MAX_XRCD: 0x64 [4:0],
        /// Receive queues of Ethernet.
        LOG_MAX_RQ: 0x6c [28:24],
        /// Send queues of Ethernet.
        LOG_MAX_SQ: 0x6c [20:16],
        /// Transport interfaces for receiving.
        LOG_MAX_TIR: 0x6c [12:8],
        /// Transport interfaces for sending.
        LOG_MAX_TIS: 0x6c [4:0],
        /// Receive memory pools.
        LOG_MAX_RMP: 0x70 [28:24],
        /// Lists of receive queues.
        LOG_MAX_RQT: 0x70 [20:16],
        /// Entries of such a list.
        LOG_MAX_RQT_SIZE: 0x70 [12:8],
        /// Transport interfaces of a send queue.
        LOG_MAX_TIS_PER_SQ: 0x70 [4:0],
        /// Bytes of an entry of a receive queue, at most.
        LOG_MAX_STRIDE_SZ_RQ: 0x74 [28:24],
        /// Bytes of an entry of a receive queue, at least.
        LOG_MIN_STRIDE_SZ_RQ: 0x74 [20:16],
        /// Bytes of an entry of a send queue, at most.
        LOG_MAX_STRIDE_SZ_SQ: 0x74 [12:8],
        /// Bytes of an entry of a send queue, at least.
        LOG_MIN_STRIDE_SZ_SQ: 0x74 [4:0],
        /// Entries of an Ethernet queue.
        LOG_MAX_WQ_SZ: 0x78 [4:0],
        /// Unicast can be kept from looping back.
        DISABLE_LOCAL_LB_UC: 0x7c [30],
        /// Multicast can be kept from looping back.
        DISABLE_LOCAL_LB_MC: 0x7c [29],
        /// VLANs of an interface.
        LOG_MAX_VLAN_LIST: 0x7c [20:16],
        /// Multicast addresses of an interface.
        LOG_MAX_CURRENT_MC_LIST: 0x7c [12:8],
        /// Addresses of an interface.
        LOG_MAX_CURRENT_UC_LIST: 0x7c [4:0],
        /// What times a send queue can have: free running (0), the time of day (1), either (2).
        SQ_TS_FORMAT: 0x88 [31:30],
        /// What times a receive queue can have.
        RQ_TS_FORMAT: 0x88 [29:28],
        /// Entries of the table of Ethernet addresses.
        LOG_MAX_L2_TABLE: 0x90 [28:24],
        /// Bytes of a doorbell page that the driver counts in, as a power of two less 12; it chooses it.
        LOG_UAR_PAGE_SZ: 0x90 [15:0],
        /// The frequency of the clock, MHz.
        DEVICE_FREQUENCY_MHZ: 0x98 [31:0],
        /// The frequency of the clock, kHz.
        DEVICE_FREQUENCY_KHZ: 0x9c [31:0],
        /// Ports that a function has, 0 or 1 for one.
        NUM_VHCA_PORTS: 0xc0 [15:8],
    }

}

impl HcaCap {
    /// The number of entries in a port's GID table, decoded from `GID_TABLE_SIZE`.
    #[must_use]
    pub fn gids(&self) -> Option<u32> {
        match self.get(Self::GID_TABLE_SIZE) {
            code @ 0..=4 => Some(8 << code),
            _ => None,
        }
    }

    /// The number of entries in a port's table of partition keys, decoded from `PKEY_TABLE_SIZE`.
    #[must_use]
    pub fn pkeys(&self) -> Option<u32> {
        match self.get(Self::PKEY_TABLE_SIZE) {
            code @ 0..=5 => Some(128 << code),
            _ => None,
        }
    }
}

crate::codes::codes! {
    /// The kind of an adapter's ports.
    pub enum PortType {
        Ib = 0 "InfiniBand",
        Eth = 1 "Ethernet",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_tables_are_codes() {
        let caps = HcaCap::new().with(HcaCap::GID_TABLE_SIZE, 2).with(HcaCap::PKEY_TABLE_SIZE, 0);
        assert_eq!((caps.gids(), caps.pkeys()), (Some(32), Some(128)));
        let caps = HcaCap::new().with(HcaCap::GID_TABLE_SIZE, 0xffff).with(HcaCap::PKEY_TABLE_SIZE, 6);
        assert_eq!((caps.gids(), caps.pkeys()), (None, None));
    }
}
