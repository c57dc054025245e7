//! General capabilities.

use crate::layout;

layout! {
    list LAYOUTS;

    /// General capabilities.
    pub struct HcaCap: 0x100 {
        /// The driver may ask that no pages are asked for at run time.
        PAGE_REQUEST_DISABLE: 0x00 [25],
        /// `NATIVE_PORT_NUM` holds.
        ABS_NATIVE_PORT_NUM: 0x00 [24],
        /// Objects of the driver's may be used by user contexts.
        SHARED_OBJECT_TO_USER_OBJECT_ALLOWED: 0x00 [15],
        /// The function manages others' resources.
        VHCA_RESOURCE_MANAGER: 0x00 [0],
        /// There are [`HcaCap2`].
        HCA_CAP_2: 0x04 [31],
        /// Ports may be joined while one is down.
        CREATE_LAG_WHEN_NOT_MASTER_UP: 0x04 [30],
        /// There is the register of timeouts, see [`Dtor`](crate::register::Dtor).
        DTOR: 0x04 [29],
        /// The function's number on the adapter.
        VHCA_ID: 0x04 [15:0],
        /// Entries of a shared receive queue.
        LOG_MAX_SRQ_SZ: 0x10 [31:24],
        /// Entries of a work queue.
        LOG_MAX_QP_SZ: 0x10 [23:16],
        /// There are capabilities of events.
        EVENT_CAP: 0x10 [15],
        /// Frames of a priority need a VLAN tag.
        PRIO_TAG_REQUIRED: 0x10 [7],
        /// Queue pairs.
        LOG_MAX_QP: 0x10 [4:0],
        /// Peers may agree on more than the standard.
        ECE_SUPPORT: 0x14 [28],
        /// Shared receive queues.
        LOG_MAX_SRQ: 0x14 [20:16],
        /// Whether the embedded switch follows the link can be set.
        UPLINK_FOLLOW: 0x14 [14],
        /// Times of sending go to a queue of their own.
        TS_CQE_TO_DEST_CQN: 0x14 [13],
        /// Lost packets can be sent again from the gap on.
        GO_BACK_N: 0x14 [6],
        /// Places in a list that are fast.
        MAX_SGL_FOR_OPTIMIZED_PERFORMANCE: 0x18 [31:24],
        /// Entries of a completion queue.
        LOG_MAX_CQ_SZ: 0x18 [23:16],
        /// Work requests can let writes pass each other.
        RELAXED_ORDERING_WRITE_UMR: 0x18 [15],
        /// Work requests can let reads pass each other.
        RELAXED_ORDERING_READ_UMR: 0x18 [14],
        /// Completion queues.
        LOG_MAX_CQ: 0x18 [4:0],
        /// Entries of an event queue.
        LOG_MAX_EQ_SZ: 0x1c [31:24],
        /// Writes may pass each other on the bus.
        RELAXED_ORDERING_WRITE: 0x1c [23],
        /// Reads may pass each other on the bus, where the bus is set so.
        RELAXED_ORDERING_READ_PCI_ENABLED: 0x1c [22],
        /// Memory keys.
        LOG_MAX_MKEY: 0x1c [21:16],
        /// Atomics pass through tunnels.
        TUNNELED_ATOMIC: 0x1c [15],
        /// The key that ends a list is asked for by a command.
        TERMINATE_SCATTER_LIST_MKEY: 0x1c [9],
        /// There is a key whose memory repeats.
        REPEATED_MKEY: 0x1c [8],
        /// There is a key whose memory swallows all.
        DUMP_FILL_MKEY: 0x1c [7],
        /// There are doorbells with data.
        DPP: 0x1c [6],
        /// The adapter can be stopped by a register.
        FAST_TEARDOWN: 0x1c [4],
        /// Event queues.
        LOG_MAX_EQ: 0x1c [3:0],
        /// How deep indirect keys may lead to indirect ones.
        MAX_INDIRECTION: 0x20 [31:24],
        /// Indirect keys may have parts of one length.
        FIXED_BUFFER_SIZE: 0x20 [23],
        /// Bytes of a region.
        LOG_MAX_MRW_SZ: 0x20 [22:16],
        /// The adapter can be stopped at once.
        FORCE_TEARDOWN: 0x20 [15],
        /// Signatures of a key.
        LOG_MAX_BSF_LIST_SIZE: 0x20 [13:8],
        /// Parts of a large translation can be changed.
        UMR_EXTENDED_TRANSLATION_OFFSET: 0x20 [7],
        /// There is a key whose memory cannot be touched.
        NULL_MKEY: 0x20 [6],
        /// Entries of an indirect key.
        LOG_MAX_KLM_LIST_SIZE: 0x20 [5:0],
        /// The context of a queue pair has an extension.
        QPC_EXTENSION: 0x24 [29],
        /// READs and atomics under way on a dynamic connection.
        LOG_MAX_RA_REQ_DC: 0x24 [21:16],
        /// Requests that carry too little of the headers are counted.
        ETH_WQE_TOO_SMALL: 0x24 [13],
        /// Overruns of completion queues are counted.
        VNIC_ENV_CQ_OVERRUN: 0x24 [6],
        /// READs and atomics of a peer on a dynamic connection.
        LOG_MAX_RA_RES_DC: 0x24 [5:0],
        /// All pages can be taken back at once.
        RELEASE_ALL_PAGES: 0x28 [26],
        /// There is a register for how RoCE recovers from loss.
        ROCE_ACCL: 0x28 [22],
        /// READs and atomics under way of a queue pair.
        LOG_MAX_RA_REQ_QP: 0x28 [21:16],
        /// READs and atomics of a peer on a queue pair.
        LOG_MAX_RA_RES_QP: 0x28 [5:0],
        /// Messages' ends can be filled up to the cache line.
        END_PAD: 0x2c [31],
        /// Congestion control can be asked for.
        CC_QUERY_ALLOWED: 0x2c [30],
        /// Congestion control can be changed.
        CC_MODIFY_ALLOWED: 0x2c [29],
        /// Messages' beginnings can be filled up to the cache line.
        START_PAD: 0x2c [28],
        /// The cache line has 128 bytes.
        CACHE_LINE_128BYTE: 0x2c [27],
        /// The shared receive queue can be changed while ready to send.
        RTS2RTS_QP_RMP: 0x2c [24],
        /// The set of counters can be changed while ready to send.
        RTS2RTS_QP_COUNTERS_SET_ID: 0x2c [22],
        /// The class of service can be changed while ready to send.
        RTS2RTS_QP_DSCP: 0x2c [21],
        /// Missing receive requests are counted.
        VNIC_ENV_INT_RQ_OOB: 0x2c [19],
        /// There is the register of buffers.
        SBCAM_REG: 0x2c [18],
        /// There is the register of what quality of service can do.
        QCAM_REG: 0x2c [16],
        /// Entries of a port's table of addresses: a code, see [`HcaCap::gids`].
        GID_TABLE_SIZE: 0x2c [15:0],
        /// Packets out of order are counted.
        OUT_OF_SEQ_CNT: 0x30 [31],
        /// Ports have counters.
        VPORT_COUNTERS: 0x30 [30],
        /// Packets sent again are counted.
        RETRANSMISSION_Q_COUNTERS: 0x30 [29],
        /// There are means to look into the adapter.
        DEBUG: 0x30 [28],
        /// A receive queue's set of counters can be changed.
        MODIFY_RQ_COUNTER_SET_ID: 0x30 [27],
        /// Packets can wait for a receive request.
        RQ_DELAY_DROP: 0x30 [26],
        /// Sets of counters.
        MAX_QP_CNT: 0x30 [25:16],
        /// Entries of a port's table of partition keys: a code, see [`HcaCap::pkeys`].
        PKEY_TABLE_SIZE: 0x30 [15:0],
        /// The function manages virtual ports.
        VPORT_GROUP_MANAGER: 0x34 [31],
        /// The function manages others.
        VHCA_GROUP_MANAGER: 0x34 [30],
        /// InfiniBand ports are virtual: their state is asked for by commands.
        IB_VIRT: 0x34 [29],
        /// Ethernet ports are virtual.
        ETH_VIRT: 0x34 [28],
        /// Queues' faults are counted.
        VNIC_ENV_QUEUE_COUNTERS: 0x34 [27],
        /// Bandwidth can be shared out.
        ETS: 0x34 [26],
        /// There are tables of flows.
        NIC_FLOW_TABLE: 0x34 [25],
        /// The function manages the embedded switch.
        ESWITCH_MANAGER: 0x34 [24],
        /// There is memory on the adapter.
        DEVICE_MEMORY: 0x34 [23],
        /// There is the register of what management registers there are.
        MCAM_REG: 0x34 [22],
        /// There is the register of what port registers there are.
        PCAM_REG: 0x34 [21],
        /// How long the adapter may take to acknowledge: 4.096 us times two to this power.
        LOCAL_CA_ACK_DELAY: 0x34 [20:16],
        /// A port's module makes events.
        PORT_MODULE_EVENT: 0x34 [15],
        /// Errors are counted apart.
        ENHANCED_ERROR_Q_COUNTERS: 0x34 [14],
        /// Ports check themselves.
        PORTS_CHECK: 0x34 [13],
        /// Links can be kept down.
        DISABLE_LINK_UP: 0x34 [11],
        /// A light can be made to blink.
        BEACON_LED: 0x34 [10],
        /// What ports are: a [`PortType`] code.
        PORT_TYPE: 0x34 [9:8],
        /// Ports.
        NUM_PORTS: 0x34 [7:0],
        /// There are pulses per second.
        PPS: 0x38 [30],
        /// Pulses can be changed.
        PPS_MODIFY: 0x38 [29],
        /// Bytes of a message.
        LOG_MAX_MSG: 0x38 [28:24],
        /// Traffic classes.
        MAX_TC: 0x38 [19:16],
        /// Heat makes an event.
        TEMP_WARN_EVENT: 0x38 [15],
        /// Priorities can be agreed on with the switch.
        DCBX: 0x38 [14],
        /// There are general events.
        GENERAL_NOTIFICATION_EVENT: 0x38 [13],
        /// There is a programmable part.
        FPGA: 0x38 [10],
        /// Rates that can be limited to, a bit each.
        STAT_RATE_SUPPORT: 0x3c [31:16],
        /// An update makes an event.
        PCI_SYNC_FOR_FW_UPDATE_EVENT: 0x3c [14],
        /// An initialised queue pair can choose among ports.
        INIT2_LAG_TX_PORT_AFFINITY: 0x3c [7],
        /// Completions carry the user's numbers (1) or the adapter's (0).
        CQE_VERSION: 0x3c [3:0],
        /// The short form of an address vector is understood.
        COMPACT_ADDRESS_VECTOR: 0x40 [31],
        /// Receive requests may have many strides.
        STRIDING_RQ: 0x40 [30],
        /// There are more offloads for IP over InfiniBand.
        IPOIB_ENHANCED_OFFLOADS: 0x40 [28],
        /// There are offloads for IP over InfiniBand.
        IPOIB_BASIC_OFFLOADS: 0x40 [27],
        /// Repeated blocks cannot be changed.
        REPEATED_BLOCK_DISABLED: 0x40 [25],
        /// Work requests cannot change the page size.
        UMR_MODIFY_ENTITY_SIZE_DISABLED: 0x40 [24],
        /// Work requests cannot change the right to atomics.
        UMR_MODIFY_ATOMIC_DISABLED: 0x40 [23],
        /// Work requests cannot change indirect keys.
        UMR_INDIRECT_MKEY_DISABLED: 0x40 [22],
        /// Which fence a change of a key needs: strong (0), small (1), none (2).
        UMR_FENCE: 0x40 [21:20],
        /// Short answers on a dynamic connection lie in the completion.
        DC_REQ_SCAT_DATA_CQE: 0x40 [19],
        /// The send queue can drain at a signature error.
        DRAIN_SIGERR: 0x40 [16],
        /// Which signatures of commands are checked: none (0), as at the start (1), all (3).
        CMDIF_CHECKSUM: 0x40 [15:14],
        /// Signature errors make completions.
        SIGERR_CQE: 0x40 [13],
        /// Work queue entries can carry signatures.
        WQ_SIGNATURE: 0x40 [11],
        /// Short messages can lie in the completion.
        SCTR_DATA_CQE: 0x40 [10],
        /// Signatures can be handed over.
        SHO: 0x40 [8],
        /// The bus may be told where data are wanted.
        TPH: 0x40 [7],
        /// Remote faults can be handled.
        RF: 0x40 [6],
        /// There are dynamic connections.
        DCT: 0x40 [5],
        /// There is quality of service.
        QOS: 0x40 [4],
        /// There are offloads for Ethernet.
        ETH_NET_OFFLOADS: 0x40 [3],
        /// There is RDMA over Ethernet.
        ROCE: 0x40 [2],
        /// There are atomics.
        ATOMIC: 0x40 [1],
        /// Completion queues can ignore overruns.
        CQ_OI: 0x44 [31],
        /// Completion queues can be moved to other memory.
        CQ_RESIZE: 0x44 [30],
        /// Completion queues' events can wait for more.
        CQ_MODERATION: 0x44 [29],
        /// When the period begins can be changed.
        CQ_PERIOD_MODE_MODIFY: 0x44 [28],
        /// Completion queues can change their event queue.
        CQ_EQ_REMAP: 0x44 [25],
        /// Memory may be missing.
        PG: 0x44 [24],
        /// Multicast can be kept from looping back.
        BLOCK_LB_MC: 0x44 [23],
        /// Solicited completions need not wait.
        SCQE_BREAK_MODERATION: 0x44 [21],
        /// The period can begin at the last completion.
        CQ_PERIOD_START_FROM_CQE: 0x44 [20],
        /// Queues can start each other.
        CD: 0x44 [19],
        /// Paths can migrate.
        APM: 0x44 [17],
        /// Vectors can be calculated with.
        VECTOR_CALC: 0x44 [16],
        /// Changes of keys can use the reserved local key.
        UMR_PTR_RLKY: 0x44 [15],
        /// Inline data in a list are allowed.
        IMAICL: 0x44 [14],
        /// Requests can be retried by the packet.
        QP_PACKET_BASED: 0x44 [13],
        /// Violations of datagrams' keys are counted.
        QKV: 0x44 [9],
        /// Violations of partition keys are counted.
        PKV: 0x44 [8],
        /// Datagrams can give another number as their source.
        SET_DETH_SQPN: 0x44 [7],
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
        /// Reliable connections may loop back while RoCE is off.
        FL_RC_QP_WHEN_ROCE_DISABLED: 0x48 [23],
        /// Doorbell pages in BAR 0, as a power of two of MiB.
        UAR_SZ: 0x48 [21:16],
        /// There are capabilities of the choice among ports.
        PORT_SELECTION_CAP: 0x48 [15],
        /// There is the register of what the interface can do.
        NIC_CAP_REG: 0x48 [14],
        /// The driver's own context may register user memory.
        UMEM_UID_0: 0x48 [13],
        /// Bytes of the smallest page.
        LOG_PG_SZ: 0x48 [7:0],
        /// Data may be written to the doorbell (BlueFlame).
        BF: 0x4c [31],
        /// The driver may say who it is.
        DRIVER_VERSION: 0x4c [30],
        /// Short frames are filled up.
        PAD_TX_ETH_PACKET: 0x4c [29],
        /// Keys may be chosen by the driver.
        MKEY_BY_NAME: 0x4c [25],
        /// Bytes of a send doorbell, both buffers.
        LOG_BF_REG_SIZE: 0x4c [20:16],
        /// A queue pair in error says why.
        QP_ERROR_SYNDROME: 0x4c [12],
        /// How dynamic connections choose among ports.
        LAG_DCT: 0x4c [9:8],
        /// Queue pairs can choose among ports.
        LAG_TX_PORT_AFFINITY: 0x4c [7],
        /// The embedded switch can choose among ports.
        LAG_NATIVE_FDB_SELECTION: 0x4c [6],
        /// The function may join ports.
        LAG_MASTER: 0x4c [4],
        /// Ports that can be joined.
        NUM_LAG_PORTS: 0x4c [3:0],
        /// Counters for diagnosis.
        NUM_OF_DIAGNOSTIC_COUNTERS: 0x50 [31:16],
        /// Bytes of an entry of a send queue.
        MAX_WQE_SZ_SQ: 0x50 [15:0],
        /// Headers can be split from data.
        SHAMPO: 0x54 [20],
        /// Bytes of an entry of a receive queue.
        MAX_WQE_SZ_RQ: 0x54 [15:0],
        /// Counters of flows, upper part.
        MAX_FLOW_COUNTER_31_16: 0x58 [31:16],
        /// Bytes of an entry of the send queue of a dynamic connection.
        MAX_WQE_SZ_SQ_DC: 0x58 [15:0],
        /// Queue pairs in a multicast group.
        MAX_QP_MCG: 0x5c [24:0],
        /// Which bulks of counters can be taken.
        FLOW_COUNTER_BULK_ALLOC: 0x60 [15:8],
        /// Multicast groups.
        LOG_MAX_MCG: 0x60 [7:0],
        /// Transport domains.
        LOG_MAX_TRANSPORT_DOMAIN: 0x64 [28:24],
        /// Reads may pass each other on the bus.
        RELAXED_ORDERING_READ: 0x64 [21],
        /// Protection domains.
        LOG_MAX_PD: 0x64 [20:16],
        /// Datagrams may be put in place out of order.
        DP_ORDERING_OOO_ALL_UD: 0x64 [15],
        /// Packets of unreliable connections may.
        DP_ORDERING_OOO_ALL_UC: 0x64 [14],
        /// Packets of extended reliable connections may.
        DP_ORDERING_OOO_ALL_XRC: 0x64 [13],
        /// Packets of dynamic connections may.
        DP_ORDERING_OOO_ALL_DC: 0x64 [12],
        /// Packets of reliable connections may.
        DP_ORDERING_OOO_ALL_RC: 0x64 [11],
        /// Sets of counters can be read together.
        Q_COUNTER_AGGREGATION: 0x64 [6],
        /// Others' sets of counters can be read.
        Q_COUNTER_OTHER_VPORT: 0x64 [5],
        /// Domains of extended reliable connections.
        LOG_MAX_XRCD: 0x64 [4:0],
        /// Frames without a flow are counted.
        NIC_RECEIVE_STEERING_DISCARD: 0x68 [31],
        /// Frames for a port that is down are counted.
        RECEIVE_DISCARD_VPORT_DOWN: 0x68 [30],
        /// Frames of a port that is down are counted.
        TRANSMIT_DISCARD_VPORT_DOWN: 0x68 [29],
        /// Overruns of event queues are counted.
        EQ_OVERRUN_COUNT: 0x68 [28],
        /// Invalid commands are counted.
        INVALID_COMMAND_COUNT: 0x68 [26],
        /// Commands beyond a quota are counted.
        QUOTA_EXCEEDED_COUNT: 0x68 [25],
        /// Counters in a bulk.
        LOG_MAX_FLOW_COUNTER_BULK: 0x68 [23:16],
        /// Counters of flows, lower part.
        MAX_FLOW_COUNTER_15_0: 0x68 [15:0],
        /// Receive queues of Ethernet.
        LOG_MAX_RQ: 0x6c [28:24],
        /// Send queues of Ethernet.
        LOG_MAX_SQ: 0x6c [20:16],
        /// Transport interfaces for receiving.
        LOG_MAX_TIR: 0x6c [12:8],
        /// Transport interfaces for sending.
        LOG_MAX_TIS: 0x6c [4:0],
        /// Entries of shared receive queues may have no segment that names the next.
        BASIC_CYCLIC_RCV_WQE: 0x70 [31],
        /// Receive memory pools.
        LOG_MAX_RMP: 0x70 [28:24],
        /// Lists of receive queues.
        LOG_MAX_RQT: 0x70 [20:16],
        /// Entries of such a list.
        LOG_MAX_RQT_SIZE: 0x70 [12:8],
        /// Transport interfaces of a send queue.
        LOG_MAX_TIS_PER_SQ: 0x70 [4:0],
        /// Entries may have fewer strides.
        EXT_STRIDE_NUM_RANGE: 0x74 [31],
        /// Whether RoCE is on can be set.
        ROCE_RW_SUPPORTED: 0x74 [30],
        /// How many addresses an interface has can be set.
        LOG_MAX_CURRENT_UC_LIST_WR_SUPPORTED: 0x74 [29],
        /// Bytes of an entry of a receive queue, at most.
        LOG_MAX_STRIDE_SZ_RQ: 0x74 [28:24],
        /// Bytes of an entry of a receive queue, at least.
        LOG_MIN_STRIDE_SZ_RQ: 0x74 [20:16],
        /// Bytes of an entry of a send queue, at most.
        LOG_MAX_STRIDE_SZ_SQ: 0x74 [12:8],
        /// Bytes of an entry of a send queue, at least.
        LOG_MIN_STRIDE_SZ_SQ: 0x74 [4:0],
        /// What is received can be sent.
        HAIRPIN: 0x78 [31],
        /// Entries of an Ethernet queue.
        LOG_MAX_WQ_SZ: 0x78 [4:0],
        /// Changes of an interface from elsewhere make events.
        NIC_VPORT_CHANGE_EVENT: 0x7c [31],
        /// Unicast can be kept from looping back.
        DISABLE_LOCAL_LB_UC: 0x7c [30],
        /// Multicast can be kept from looping back.
        DISABLE_LOCAL_LB_MC: 0x7c [29],
        /// The interface can be kept silent.
        SILENT_MODE: 0x7c [22],
        /// There are states of functions.
        VHCA_STATE: 0x7c [21],
        /// VLANs of an interface.
        LOG_MAX_VLAN_LIST: 0x7c [20:16],
        /// Multicast addresses of an interface.
        LOG_MAX_CURRENT_MC_LIST: 0x7c [12:8],
        /// Addresses of an interface.
        LOG_MAX_CURRENT_UC_LIST: 0x7c [4:0],
        /// Which general objects there are, a bit each.
        GENERAL_OBJ_TYPES: 0x80 [63:0],
        /// What times a send queue can have: free running (0), the time of day (1), either (2).
        SQ_TS_FORMAT: 0x88 [31:30],
        /// What times a receive queue can have.
        RQ_TS_FORMAT: 0x88 [29:28],
        /// Which generation of tables of flows it is.
        STEERING_FORMAT_VERSION: 0x88 [27:24],
        /// Where free numbers of queue pairs begin.
        CREATE_QP_START_HINT: 0x88 [23:0],
        /// The adapter translates addresses by the bus.
        ATS: 0x8c [30],
        /// User contexts.
        LOG_MAX_UCTX: 0x8c [28:24],
        /// Registered user memories.
        LOG_MAX_UMEM: 0x8c [20:16],
        /// Event queues, where not a power of two; 0 if `LOG_MAX_EQ` holds.
        MAX_NUM_EQS: 0x8c [15:0],
        /// Entries of the table of Ethernet addresses.
        LOG_MAX_L2_TABLE: 0x90 [28:24],
        /// Bytes of a doorbell page that the driver counts in, as a power of two less 12; it chooses it.
        LOG_UAR_PAGE_SZ: 0x90 [15:0],
        /// The frequency of the clock, MHz.
        DEVICE_FREQUENCY_MHZ: 0x98 [31:0],
        /// The frequency of the clock, kHz.
        DEVICE_FREQUENCY_KHZ: 0x9c [31:0],
        /// Doorbell pages in a page of the host's.
        NUM_OF_UARS_PER_PAGE: 0xa4 [31:0],
        /// There are capabilities of more RDMA.
        ADV_RDMA: 0xac [14],
        /// Streams of a dynamic connection.
        LOG_MAX_DCI_STREAM_CHANNELS: 0xb0 [20:16],
        /// Streams in error of a dynamic connection.
        LOG_MAX_DCI_ERRORED_STREAMS: 0xb0 [12:8],
        /// Completions can be compressed in another way.
        ENHANCED_CQE_COMPRESSION: 0xb4 [15],
        /// Keys can lead to another function.
        CROSSING_VHCA_MKEY: 0xb4 [13],
        /// Compressed completions can name strides.
        MINI_CQE_RESP_STRIDE_INDEX: 0xb4 [3],
        /// All completions have 128 bytes.
        CQE_128_ALWAYS: 0xb4 [2],
        /// Completions of 128 bytes can be compressed.
        CQE_COMPRESSION_128: 0xb4 [1],
        /// Completions can be compressed.
        CQE_COMPRESSION: 0xb4 [0],
        /// How long a completion waits to be compressed.
        CQE_COMPRESSION_TIMEOUT: 0xb8 [31:16],
        /// Completions compressed into one.
        CQE_COMPRESSION_MAX_NUM: 0xb8 [15:0],
        /// Tags can be matched.
        TAG_MATCHING: 0xbc [15],
        /// Long tagged messages are fetched on reliable connections.
        RNDV_OFFLOAD_RC: 0xbc [14],
        /// Long tagged messages are fetched on dynamic connections.
        RNDV_OFFLOAD_DC: 0xbc [13],
        /// Tags of a queue.
        LOG_TAG_MATCHING_LIST_SZ: 0xbc [12:8],
        /// Extended shared receive queues.
        LOG_MAX_XRQ: 0xbc [4:0],
        /// How a port can be shared.
        AFFILIATE_NIC_VPORT_CRITERIA: 0xc0 [31:24],
        /// Which port of the adapter is the function's.
        NATIVE_PORT_NUM: 0xc0 [23:16],
        /// Ports that a function has, 0 or 1 for one.
        NUM_VHCA_PORTS: 0xc0 [15:8],
        /// The driver may name itself.
        SW_OWNER_ID: 0xc0 [1],
        /// What user contexts can do.
        UCTX_CAP: 0xd4 [31:0],
    }

    /// General capabilities, continued.
    pub struct HcaCap2: 0x100 {
        /// The function can be moved to another machine.
        MIGRATABLE: 0x10 [31],
        /// The order of packets can be chosen against the peer.
        DP_ORDERING_FORCE: 0x10 [23],
        /// The function has a name that does not change.
        QUERY_VUID: 0x10 [13],
        /// Work requests can set page sizes of 4 GiB and more.
        UMR_LOG_ENTITY_SIZE_5: 0x10 [7],
        /// Functions share event queues.
        SF_EQ_USAGE: 0x18 [13],
        /// The driver may number functions.
        SW_VHCA_ID_VALID: 0x44 [30],
        /// The driver's number of this function.
        SW_VHCA_ID: 0x44 [29:16],
        /// Event queues.
        MAX_NUM_EQS_24B: 0x88 [23:0],
    }
}

impl HcaCap {
    /// Entries of a port's table of addresses that `GID_TABLE_SIZE` stands for.
    #[must_use]
    pub fn gids(&self) -> Option<u32> {
        match self.get(Self::GID_TABLE_SIZE) {
            code @ 0..=4 => Some(8 << code),
            _ => None,
        }
    }

    /// Entries of a port's table of partition keys that `PKEY_TABLE_SIZE` stands for.
    #[must_use]
    pub fn pkeys(&self) -> Option<u32> {
        match self.get(Self::PKEY_TABLE_SIZE) {
            code @ 0..=5 => Some(128 << code),
            _ => None,
        }
    }
}

crate::codes::codes! {
    /// What ports are.
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
