//! Capabilities of one kind of work each.

use crate::layout;

layout! {
    list LAYOUTS;

    /// Capabilities of RDMA over Ethernet.
    pub struct RoceCap: 0x100 {
        /// Paths can migrate.
        ROCE_APM: 0x00 [31],
        /// The UDP source port is the driver's choice.
        SW_R_ROCE_SRC_UDP_PORT: 0x00 [27],
        /// Reliable connections may loop back while RoCE is off.
        FL_RC_QP_WHEN_ROCE_DISABLED: 0x00 [26],
        /// Reliable connections may loop back while RoCE is on.
        FL_RC_QP_WHEN_ROCE_ENABLED: 0x00 [25],
        /// Congestion control has a general part.
        ROCE_CC_GENERAL: 0x00 [24],
        /// Queue pairs send out of order unless told otherwise.
        QP_OOO_TRANSMIT_DEFAULT: 0x00 [23],
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

    /// Capabilities of atomics.
    pub struct AtomicCaps: 0x100 {
        /// In which byte order the operands of 8 bytes are in memory: the host's (1), big-endian (0).
        ATOMIC_REQ_8B_ENDIANNESS_MODE: 0x08 [31:30],
        /// The host's byte order can be chosen.
        SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1: 0x08 [25],
        /// Which operations: a bit each, see the constants.
        ATOMIC_OPERATIONS: 0x10 [15:0],
        /// Which sizes on a queue pair: bit n for two to the power of n bytes.
        ATOMIC_SIZE_QP: 0x14 [15:0],
        /// Which sizes on a dynamic connection.
        ATOMIC_SIZE_DC: 0x18 [15:0],
    }

    /// Capabilities of memory that may be missing.
    pub struct OdpCap: 0x100 {
        /// Where the transport handles it.
        TRANSPORT_PAGE_FAULT_SCHEME_CAP: 0x00 {OdpSchemeCap},
        /// Where the memory handles it.
        MEMORY_PAGE_FAULT_SCHEME_CAP: 0x40 {OdpSchemeCap},
        /// The memory handles it.
        MEM_PAGE_FAULT: 0xc0 [31],
    }

    /// Capabilities of one way to handle memory that is missing.
    pub struct OdpSchemeCap: 0x40 {
        /// There is such a way.
        SIG: 0x08 [31],
        /// Memory can be fetched before.
        PAGE_PREFETCH: 0x08 [26],
        /// On reliable connections.
        RC_ODP_CAPS: 0x10 {OdpPerTransportCap},
        /// On unreliable connections.
        UC_ODP_CAPS: 0x14 {OdpPerTransportCap},
        /// On unreliable datagrams.
        UD_ODP_CAPS: 0x18 {OdpPerTransportCap},
        /// On extended reliable connections.
        XRC_ODP_CAPS: 0x1c {OdpPerTransportCap},
        /// On dynamic connections.
        DC_ODP_CAPS: 0x20 {OdpPerTransportCap},
    }

    /// Which operations may meet memory that is missing.
    pub struct OdpPerTransportCap: 0x4 {
        /// Sends.
        SEND: 0x00 [31],
        /// Receives.
        RECEIVE: 0x00 [30],
        /// WRITEs.
        WRITE: 0x00 [29],
        /// READs.
        READ: 0x00 [28],
        /// Atomics.
        ATOMIC: 0x00 [27],
        /// Receives from a shared queue.
        SRQ_RECEIVE: 0x00 [26],
    }

    /// Capabilities of Ethernet.
    pub struct EthOffloadCap: 0x100 {
        /// Checksums are made and checked.
        CSUM_CAP: 0x00 [31],
        /// VLAN tags are taken off.
        VLAN_CAP: 0x00 [30],
        /// Frames are joined.
        LRO_CAP: 0x00 [29],
        /// Joined frames are ended by a flag of TCP.
        LRO_PSH_FLAG: 0x00 [28],
        /// Joined frames may have times.
        LRO_TIME_STAMP: 0x00 [27],
        /// A request can have a VLAN tag put in.
        WQE_VLAN_INSERT: 0x00 [24],
        /// Loopback can be changed.
        SELF_LB_EN_MODIFIABLE: 0x00 [23],
        /// Bytes of a frame to be segmented, as a power of two.
        MAX_LSO_CAP: 0x00 [20:16],
        /// A request may have several packets.
        MULTI_PKT_SEND_WQE: 0x00 [15:14],
        /// How much of the headers a request must carry: the first two layers' (0), as the interface says (1), none
        /// (2).
        WQE_INLINE_MODE: 0x00 [13:12],
        /// Entries of a list of receive queues, as a power of two.
        RSS_IND_TBL_CAP: 0x00 [11:8],
        /// Send queues can change keys.
        REG_UMR_SQ: 0x00 [7],
        /// Checksums of frames can be delivered.
        SCATTER_FCS: 0x00 [6],
        /// A request may have several packets, in another way.
        ENHANCED_MULTI_PKT_SEND_WQE: 0x00 [5],
        /// Segments in a tunnel have the same identification.
        TUNNEL_LSO_CONST_OUT_IP_ID: 0x00 [4],
        /// Frames in a GRE tunnel are joined.
        TUNNEL_LRO_GRE: 0x00 [3],
        /// Frames in a VXLAN tunnel are joined.
        TUNNEL_LRO_VXLAN: 0x00 [2],
        /// Headers in a GRE tunnel are looked at.
        TUNNEL_STATELESS_GRE: 0x00 [1],
        /// Headers in a VXLAN tunnel are looked at.
        TUNNEL_STATELESS_VXLAN: 0x00 [0],
        /// Requests can say where headers are.
        SWP: 0x04 [31],
        /// Checksums are made there.
        SWP_CSUM: 0x04 [30],
        /// Segments are made there.
        SWP_LSO: 0x04 [29],
        /// Completions carry the sum of the whole frame.
        CQE_CHECKSUM_FULL: 0x04 [28],
        /// Ports of VXLAN.
        MAX_VXLAN_UDP_PORTS: 0x04 [15:8],
        /// The least payload of joined frames.
        LRO_MIN_MSS_SIZE: 0x08 [15:0],
        /// How long frames can wait to be joined, four numbers.
        LRO_TIMER_SUPPORTED_PERIODS: 0x30 [u8; 16],
    }

    /// Capabilities of tables of flows.
    pub struct FlowTableNicCap: 0x1000 {
        /// A flow may lead to several interfaces.
        NIC_RX_MULTI_PATH_TIRS: 0x00 [31],
        /// A flow may lead to several interfaces and tables.
        NIC_RX_MULTI_PATH_TIRS_FTS: 0x00 [30],
        /// Copies may go to an interface that has other flows.
        ALLOW_SNIFFER_AND_NIC_RX_SHARED_TIR: 0x00 [29],
        /// Headers that can be given, as a power of two.
        LOG_MAX_PACKET_REFORMAT_CONTEXT: 0x04 [20:16],
        /// Bytes of such headers.
        MAX_ENCAP_HEADER_SIZE: 0x04 [9:0],
        /// Of what is received.
        FLOW_TABLE_PROPERTIES_NIC_RECEIVE: 0x40 {FlowTableProp},
        /// Of RDMA that is received.
        FLOW_TABLE_PROPERTIES_NIC_RECEIVE_RDMA: 0x80 {FlowTableProp},
        /// Of copies of what is received.
        FLOW_TABLE_PROPERTIES_NIC_RECEIVE_SNIFFER: 0xc0 {FlowTableProp},
        /// Of what is sent.
        FLOW_TABLE_PROPERTIES_NIC_TRANSMIT: 0x100 {FlowTableProp},
        /// Of RDMA that is sent.
        FLOW_TABLE_PROPERTIES_NIC_TRANSMIT_RDMA: 0x140 {FlowTableProp},
        /// Of copies of what is sent.
        FLOW_TABLE_PROPERTIES_NIC_TRANSMIT_SNIFFER: 0x180 {FlowTableProp},
    }

    /// Capabilities of the tables of one kind.
    pub struct FlowTableProp: 0x40 {
        /// There are such tables.
        FT_SUPPORT: 0x00 [31],
        /// Flows can be counted.
        FLOW_COUNTER: 0x00 [29],
        /// Flows can be changed.
        FLOW_MODIFY_EN: 0x00 [28],
        /// The first table can be changed.
        MODIFY_ROOT: 0x00 [27],
        /// Frames without a flow can go to a table named.
        IDENTIFIED_MISS_TABLE_MODE: 0x00 [26],
        /// Tables can be changed.
        FLOW_TABLE_MODIFY: 0x00 [25],
        /// Frames can be given headers.
        REFORMAT: 0x00 [24],
        /// Frames can be taken headers from.
        DECAP: 0x00 [23],
        /// The first table can be what it was.
        RESET_ROOT_TO_DEFAULT: 0x00 [22],
        /// VLAN tags can be taken off.
        POP_VLAN: 0x00 [21],
        /// VLAN tags can be put on.
        PUSH_VLAN: 0x00 [20],
        /// Drivers can write tables themselves.
        SW_OWNER: 0x00 [14],
        /// Flows in a table.
        LOG_MAX_FT_SIZE: 0x04 [29:24],
        /// Changes of headers.
        LOG_MAX_MODIFY_HEADER_CONTEXT: 0x04 [23:16],
        /// Steps of a change.
        MAX_MODIFY_HEADER_ACTIONS: 0x04 [15:8],
        /// The highest level.
        MAX_FT_LEVEL: 0x04 [7:0],
        /// Tables.
        LOG_MAX_FT_NUM: 0x0c [7:0],
        /// Counters.
        LOG_MAX_FLOW_COUNTER: 0x10 [15:8],
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
    /// Masked COMPARE SWAP in `ATOMIC_OPERATIONS`.
    pub const MASKED_COMPARE_SWAP: u32 = 1 << 2;
    /// Masked FETCH ADD in `ATOMIC_OPERATIONS`.
    pub const MASKED_FETCH_ADD: u32 = 1 << 3;
}
