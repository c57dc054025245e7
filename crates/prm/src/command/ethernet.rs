//! Commands for Ethernet: transport interfaces, queues, and the flow tables that steer frames to them.

use crate::codes::codes;
use crate::context::{Rqc, Sqc};
use crate::layout;

commands! {
    list COMMANDS;

    /// Makes a transport interface for sending (TIS).
    CREATE_TIS => CreateTisIn: 0xc0 {
        /// What it shall be.
        CTX: 0x20 {Tisc},
    }, CreateTisOut: 0x10 {
        /// The number.
        TISN: 0x08 [23:0],
    }

    /// Takes a transport interface for sending (TIS) away.
    DESTROY_TIS => DestroyTisIn: 0x10 {
        /// The number.
        TISN: 0x08 [23:0],
    }

    /// Makes a transport interface for receiving (TIR).
    CREATE_TIR => CreateTirIn: 0x110 {
        /// What it shall be.
        CTX: 0x20 {Tirc},
    }, CreateTirOut: 0x10 {
        /// The number.
        TIRN: 0x08 [23:0],
    }

    /// Takes a transport interface for receiving (TIR) away.
    DESTROY_TIR => DestroyTirIn: 0x10 {
        /// The number.
        TIRN: 0x08 [23:0],
    }

    /// Changes a transport interface for receiving.
    MODIFY_TIR => ModifyTirIn: 0x110 {
        /// The number.
        TIRN: 0x08 [23:0],
        /// What is changed.
        BITMASK: 0x10 [u8; 8],
        /// What it shall be.
        CTX: 0x20 {Tirc},
    }

    /// Makes a list of receive queues (RQT); their numbers follow, 4 bytes each.
    CREATE_RQT => CreateRqtIn: 0x110 {
        /// What it shall be.
        RQT_CONTEXT: 0x20 {Rqtc},
    }, CreateRqtOut: 0x10 {
        /// The number.
        RQTN: 0x08 [23:0],
    }

    /// Takes a list of receive queues away.
    DESTROY_RQT => DestroyRqtIn: 0x10 {
        /// The number.
        RQTN: 0x08 [23:0],
    }

    /// Changes a list of receive queues; their numbers follow, 4 bytes each.
    MODIFY_RQT => ModifyRqtIn: 0x110 {
        /// The number.
        RQTN: 0x08 [23:0],
        /// What is changed.
        BITMASK: 0x10 [u8; 8],
        /// What it shall be.
        CTX: 0x20 {Rqtc},
    }

    /// Makes a receive queue (RQ), whose pages follow.
    CREATE_RQ => CreateRqIn: 0x110 {
        /// What it shall be.
        CTX: 0x20 {Rqc},
    }, CreateRqOut: 0x10 {
        /// The number.
        RQN: 0x08 [23:0],
    }

    /// Takes a receive queue (RQ) away.
    DESTROY_RQ => DestroyRqIn: 0x10 {
        /// The number.
        RQN: 0x08 [23:0],
    }

    /// Changes a receive queue.
    MODIFY_RQ => ModifyRqIn: 0x110 {
        /// The state that it has now.
        RQ_STATE: 0x08 [31:28],
        /// The number.
        RQN: 0x08 [23:0],
        /// What is changed.
        MODIFY_BITMASK: 0x10 [63:0],
        /// What it shall be.
        CTX: 0x20 {Rqc},
    }

    /// Asks how a receive queue is.
    QUERY_RQ => QueryRqIn: 0x10 {
        /// The number.
        RQN: 0x08 [23:0],
    }, QueryRqOut: 0x110 {
        /// How it is.
        RQ_CONTEXT: 0x20 {Rqc},
    }

    /// Makes a send queue (SQ), whose pages follow.
    CREATE_SQ => CreateSqIn: 0x110 {
        /// What it shall be.
        CTX: 0x20 {Sqc},
    }, CreateSqOut: 0x10 {
        /// The number.
        SQN: 0x08 [23:0],
    }

    /// Takes a send queue (SQ) away.
    DESTROY_SQ => DestroySqIn: 0x10 {
        /// The number.
        SQN: 0x08 [23:0],
    }

    /// Changes a send queue.
    MODIFY_SQ => ModifySqIn: 0x110 {
        /// The state that it has now.
        SQ_STATE: 0x08 [31:28],
        /// The number.
        SQN: 0x08 [23:0],
        /// What it shall be.
        CTX: 0x20 {Sqc},
    }

    /// Asks how a send queue is.
    QUERY_SQ => QuerySqIn: 0x10 {
        /// The number.
        SQN: 0x08 [23:0],
    }, QuerySqOut: 0x110 {
        /// How it is.
        SQ_CONTEXT: 0x20 {Sqc},
    }

    /// Makes a table of flows.
    CREATE_FLOW_TABLE => CreateFlowTableIn: 0x40 {
        /// What the table is for: a [`FlowTableType`] code.
        TABLE_TYPE: 0x10 [31:24],
        /// What it shall be.
        FLOW_TABLE_CONTEXT: 0x18 {FlowTableContext},
    }, CreateFlowTableOut: 0x10 {
        /// The number.
        TABLE_ID: 0x08 [23:0],
    }

    /// Takes a table of flows away.
    DESTROY_FLOW_TABLE => DestroyFlowTableIn: 0x40 {
        /// What the table is for: a [`FlowTableType`] code.
        TABLE_TYPE: 0x10 [31:24],
        /// The number.
        TABLE_ID: 0x14 [23:0],
    }

    /// Changes a table of flows.
    MODIFY_FLOW_TABLE => ModifyFlowTableIn: 0x40 {
        /// What is changed: the table that follows it (1), or that of other ports (0x8000).
        MODIFY_FIELD_SELECT: 0x0c [15:0],
        /// What the table is for: a [`FlowTableType`] code.
        TABLE_TYPE: 0x10 [31:24],
        /// The number.
        TABLE_ID: 0x14 [23:0],
        /// What it shall be.
        FLOW_TABLE_CONTEXT: 0x18 {FlowTableContext},
    }

    /// Makes a group of flows in a table, which look at the same fields.
    CREATE_FLOW_GROUP => CreateFlowGroupIn: 0x400 {
        /// What the table is for: a [`FlowTableType`] code.
        TABLE_TYPE: 0x10 [31:24],
        /// The table.
        TABLE_ID: 0x14 [23:0],
        /// The first flow.
        START_FLOW_INDEX: 0x1c [31:0],
        /// The last flow.
        END_FLOW_INDEX: 0x24 [31:0],
        /// Which parts of the criteria hold: the outer headers (1), miscellaneous (2), the inner headers (4).
        MATCH_CRITERIA_ENABLE: 0x3c [7:0],
        /// Which bits are looked at.
        MATCH_CRITERIA: 0x40 {FteMatchParam},
    }, CreateFlowGroupOut: 0x10 {
        /// The number.
        GROUP_ID: 0x08 [23:0],
    }

    /// Takes a group of flows away.
    DESTROY_FLOW_GROUP => DestroyFlowGroupIn: 0x40 {
        /// What the table is for: a [`FlowTableType`] code.
        TABLE_TYPE: 0x10 [31:24],
        /// The table.
        TABLE_ID: 0x14 [23:0],
        /// The number.
        GROUP_ID: 0x18 [31:0],
    }

    /// Sets a flow. Its destinations follow as [`DestFormat`].
    SET_FLOW_TABLE_ENTRY => SetFteIn: 0x340 {
        /// What the table is for: a [`FlowTableType`] code.
        TABLE_TYPE: 0x10 [31:24],
        /// The table.
        TABLE_ID: 0x14 [23:0],
        /// What of a flow that is there is changed.
        MODIFY_ENABLE_MASK: 0x18 [7:0],
        /// The number.
        FLOW_INDEX: 0x20 [31:0],
        /// What it shall be.
        FLOW_CONTEXT: 0x40 {FlowContext},
    }

    /// Takes a flow away.
    DELETE_FLOW_TABLE_ENTRY => DeleteFteIn: 0x40 {
        /// What the table is for: a [`FlowTableType`] code.
        TABLE_TYPE: 0x10 [31:24],
        /// The table.
        TABLE_ID: 0x14 [23:0],
        /// The number.
        FLOW_INDEX: 0x20 [31:0],
    }

    /// Makes a table the first one that frames come to.
    SET_FLOW_TABLE_ROOT => SetFlowTableRootIn: 0x40 {
        /// What the table is for: a [`FlowTableType`] code.
        TABLE_TYPE: 0x10 [31:24],
        /// The table.
        TABLE_ID: 0x14 [23:0],
    }

}

layout! {
    list LAYOUTS;

    /// The context of a transport interface for sending (TIS).
    pub struct Tisc: 0xa0 {
        /// The transport domain.
        TRANSPORT_DOMAIN: 0x24 [23:0],
    }

    /// The context of a transport interface for receiving (TIR).
    pub struct Tirc: 0xf0 {
        /// Where frames go: to one queue (0), by hash to a list of them (1).
        DISP_TYPE: 0x04 [31:28],
        /// The one queue.
        INLINE_RQN: 0x1c [23:0],
        /// The hash is the same for both directions.
        RX_HASH_SYMMETRIC: 0x20 [31],
        /// The list of queues.
        INDIRECT_TABLE: 0x20 [23:0],
        /// How the hash is made: not at all (0), by exclusive or (1), as Toeplitz (2).
        RX_HASH_FN: 0x24 [31:28],
        /// Which of the port's own frames it takes: unicast (1), multicast (2). Linux and DPDK set a bit, whose name says
        /// otherwise, where frames are to loop back.
        SELF_LB_BLOCK: 0x24 [25:24],
        /// The transport domain.
        TRANSPORT_DOMAIN: 0x24 [23:0],
        /// The key of the hash.
        RX_HASH_TOEPLITZ_KEY: 0x28 [u8; 40],
        /// What is hashed of the outer headers.
        RX_HASH_FIELD_SELECTOR_OUTER: 0x50 {RxHashFieldSelect},
    }

    /// The fields of packets that are hashed.
    pub struct RxHashFieldSelect: 0x4 {
        /// IPv4 (0) or IPv6 (1).
        L3_PROT_TYPE: 0x00 [31],
        /// TCP (0) or UDP (1).
        L4_PROT_TYPE: 0x00 [30],
        /// Source address (1), destination address (2), source port (4), destination port (8).
        SELECTED_FIELDS: 0x00 [29:0],
    }

    /// The context of a receive queue table (RQT).
    pub struct Rqtc: 0xf0 {
        /// How many it may have.
        RQT_MAX_SIZE: 0x14 [15:0],
        /// How many it has.
        RQT_ACTUAL_SIZE: 0x18 [15:0],
    }

    /// The context of a flow table.
    pub struct FlowTableContext: 0x28 {
        /// Where frames go that no flow is for: on (0), to the table named (1).
        TABLE_MISS_ACTION: 0x00 [27:24],
        /// Flows in it, as a power of two.
        LOG_SIZE: 0x00 [7:0],
        /// The table that frames go to that no flow is for.
        TABLE_MISS_ID: 0x04 [23:0],
    }

    /// The match parameters of frames: a mask in a flow group, and values in a flow.
    pub struct FteMatchParam: 0x200 {
        /// The headers.
        OUTER_HEADERS: 0x00 {FteMatchSetLyr24},
    }

    /// The headers of a frame, from Ethernet to the transport.
    pub struct FteMatchSetLyr24: 0x40 {
        /// Source address, upper part.
        SMAC_47_16: 0x00 [31:0],
        /// Source address, lower part.
        SMAC_15_0: 0x04 [31:16],
        /// The type.
        ETHERTYPE: 0x04 [15:0],
        /// Destination address, upper part.
        DMAC_47_16: 0x08 [31:0],
        /// Destination address, lower part.
        DMAC_15_0: 0x0c [31:16],
        /// The VLAN's priority.
        FIRST_PRIO: 0x0c [15:13],
        /// The VLAN's drop bit.
        FIRST_CFI: 0x0c [12],
        /// The VLAN.
        FIRST_VID: 0x0c [11:0],
        /// The protocol above IP.
        IP_PROTOCOL: 0x10 [31:24],
        /// The class of service.
        IP_DSCP: 0x10 [23:18],
        /// The congestion bits.
        IP_ECN: 0x10 [17:16],
        /// There is a VLAN tag.
        CVLAN_TAG: 0x10 [15],
        /// There is an outer VLAN tag.
        SVLAN_TAG: 0x10 [14],
        /// It is a fragment.
        FRAG: 0x10 [13],
        /// 4 or 6.
        IP_VERSION: 0x10 [12:9],
        /// The flags of TCP.
        TCP_FLAGS: 0x10 [8:0],
        /// The source port of TCP.
        TCP_SPORT: 0x14 [31:16],
        /// The destination port of TCP.
        TCP_DPORT: 0x14 [15:0],
        /// Routers that it may pass.
        TTL_HOPLIMIT: 0x18 [7:0],
        /// The source port of UDP.
        UDP_SPORT: 0x1c [31:16],
        /// The destination port of UDP.
        UDP_DPORT: 0x1c [15:0],
        /// Source; an IPv4 address is in the last 4 bytes.
        SRC_IPV4_SRC_IPV6: 0x20 [u8; 16],
        /// Destination; an IPv4 address is in the last 4 bytes.
        DST_IPV4_DST_IPV6: 0x30 [u8; 16],
    }

    /// The action of a flow. Its destinations follow.
    pub struct FlowContext: 0x300 {
        /// The group.
        GROUP_ID: 0x04 [31:0],
        /// What completions carry.
        FLOW_TAG: 0x08 [23:0],
        /// What is done: allow (1), drop (2), forward (4), count (8).
        ACTION: 0x0c [15:0],
        /// Destinations are of the long form.
        EXTENDED_DESTINATION: 0x10 [31],
        /// How many destinations follow.
        DESTINATION_LIST_SIZE: 0x10 [23:0],
        /// Which frames it is for.
        MATCH_VALUE: 0x40 {FteMatchParam},
    }

    /// A destination of a flow.
    pub struct DestFormat: 0x8 {
        /// What it is: a [`DestinationType`] code.
        DESTINATION_TYPE: 0x00 [31:24],
        /// The number.
        DESTINATION_ID: 0x00 [23:0],
    }
}

codes! {
    /// The kind of a flow table.
    pub enum FlowTableType {
        NicRx = 0x0 "what the interface receives",
        NicTx = 0x1 "what the interface sends",
        EswEgressAcl = 0x2 "what leaves the embedded switch",
        EswIngressAcl = 0x3 "what enters the embedded switch",
        Fdb = 0x4 "what the embedded switch forwards",
        SnifferRx = 0x5 "copies of what is received",
        SnifferTx = 0x6 "copies of what is sent",
        RdmaRx = 0x7 "RDMA that is received",
        RdmaTx = 0x8 "RDMA that is sent",
    }

    /// The kind of a flow's destination.
    pub enum DestinationType {
        Vport = 0x0 "a virtual port",
        FlowTable = 0x1 "a table of flows",
        Tir = 0x2 "a transport interface",
        FlowSampler = 0x6 "a sampler",
        Uplink = 0x8 "the link",
        TableType = 0xa "the first table of a type",
    }
}
