//! Capabilities by kind: RoCE, atomics, Ethernet offloads, flow tables.

use crate::layout;

layout! {
    list LAYOUTS;

    /// Capabilities of RDMA over Ethernet.
    pub struct RoceCap: 0x100 {
        /// The UDP source port is the driver's choice.
        SW_R_ROCE_SRC_UDP_PORT: 0x00 [27],
        /// What times a queue pair can have.
        QP_TS_FORMAT: 0x00 [1:0],
        /// What stands below UDP: IPv4 ([`RoceCap::L3_IPV4`]), IPv6 ([`RoceCap::L3_IPV6`]).
        L3_TYPE: 0x10 [19:16],
        /// Which versions: a bit for each [`RoceVersion`](crate::command::vport::RoceVersion) code.
        ROCE_VERSION: 0x10 [7:0],
        /// The UDP port that it is sent to, 4791.
        R_ROCE_DEST_UDP_PORT: 0x14 [15:0],
        /// The highest UDP source port.
        R_ROCE_MAX_SRC_UDP_PORT: 0x18 [31:16],
        /// The lowest UDP source port.
        R_ROCE_MIN_SRC_UDP_PORT: 0x18 [15:0],
        /// Entries of the table of addresses.
        ROCE_ADDRESS_TABLE_SIZE: 0x1c [15:0],
    }

    /// The capabilities of atomic operations.
    pub struct AtomicCaps: 0x100 {
        /// In which byte order the operands of 8 bytes are in memory: the host's (1), big-endian (0).
        ATOMIC_REQ_8B_ENDIANNESS_MODE: 0x08 [31:30],
        /// The host's byte order can be chosen.
        SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1: 0x08 [25],
        /// Which operations: a bit each, see the constants.
        ATOMIC_OPERATIONS: 0x10 [15:0],
        /// Which sizes on a queue pair: bit n for two to the power of n bytes.
        ATOMIC_SIZE_QP: 0x14 [15:0],
    }

    /// The capabilities of Ethernet offloads.
    pub struct EthOffloadCap: 0x100 {
        /// Checksums are made and checked.
        CSUM_CAP: 0x00 [31],
        /// VLAN tags are taken off.
        VLAN_CAP: 0x00 [30],
        /// Loopback can be changed.
        SELF_LB_EN_MODIFIABLE: 0x00 [23],
        /// Bytes of a frame to be segmented, as a power of two.
        MAX_LSO_CAP: 0x00 [20:16],
        /// How much of the headers a request must carry: the first two layers' (0), as the interface says (1), none
        /// (2).
        WQE_INLINE_MODE: 0x00 [13:12],
        /// Entries of a list of receive queues, as a power of two.
        RSS_IND_TBL_CAP: 0x00 [11:8],
    }

    /// The capabilities of flow tables.
    pub struct FlowTableNicCap: 0x1000 {
        /// Of what is received.
        FLOW_TABLE_PROPERTIES_NIC_RECEIVE: 0x40 {FlowTableProp},
    }

    /// The capabilities of the flow tables of one kind.
    pub struct FlowTableProp: 0x40 {
        /// There are such tables.
        FT_SUPPORT: 0x00 [31],
        /// Flows can be changed.
        FLOW_MODIFY_EN: 0x00 [28],
        /// The first table can be changed.
        MODIFY_ROOT: 0x00 [27],
        /// Frames without a flow can go to a table named.
        IDENTIFIED_MISS_TABLE_MODE: 0x00 [26],
        /// Tables can be changed.
        FLOW_TABLE_MODIFY: 0x00 [25],
        /// Flows in a table.
        LOG_MAX_FT_SIZE: 0x04 [29:24],
        /// The highest level.
        MAX_FT_LEVEL: 0x04 [7:0],
        /// Tables.
        LOG_MAX_FT_NUM: 0x0c [7:0],
        /// Destinations of a flow.
        LOG_MAX_DESTINATION: 0x10 [7:0],
        /// Flows.
        LOG_MAX_FLOW: 0x14 [7:0],
        /// Which fields can be looked at, a bit each.
        FT_FIELD_SUPPORT: 0x20 [u8; 16],
        /// Of which fields parts can be looked at, a bit each.
        FT_FIELD_BITMASK_SUPPORT: 0x30 [u8; 16],
    }
}

impl RoceCap {
    /// IPv4 in `L3_TYPE`.
    pub const L3_IPV4: u32 = 1 << 1;
    /// IPv6 in `L3_TYPE`.
    pub const L3_IPV6: u32 = 1 << 2;
}

impl AtomicCaps {
    /// COMPARE SWAP in `ATOMIC_OPERATIONS`.
    pub const COMPARE_SWAP: u32 = 1 << 0;
    /// FETCH ADD in `ATOMIC_OPERATIONS`.
    pub const FETCH_ADD: u32 = 1 << 1;
}
