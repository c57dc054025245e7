//! Commands for counters: of queue pairs, and of ports.

use crate::layout;

commands! {
    list COMMANDS;

    /// Takes a set of counters for queue pairs.
    ALLOC_Q_COUNTER => AllocQCounterIn: 0x10 {
    }, AllocQCounterOut: 0x10 {
        /// The number.
        COUNTER_SET_ID: 0x08 [7:0],
    }

    /// Gives a set of counters back.
    DEALLOC_Q_COUNTER => DeallocQCounterIn: 0x10 {
        /// The number.
        COUNTER_SET_ID: 0x08 [7:0],
    }

    /// Reads a set of counters.
    QUERY_Q_COUNTER => QueryQCounterIn: 0x20 {
        /// They begin anew.
        CLEAR: 0x18 [31],
        /// The number.
        COUNTER_SET_ID: 0x1c [7:0],
    }, QueryQCounterOut: 0x100 {
        /// WRITE requests received.
        RX_WRITE_REQUESTS: 0x10 [31:0],
        /// READ requests received.
        RX_READ_REQUESTS: 0x18 [31:0],
        /// Atomic requests received.
        RX_ATOMIC_REQUESTS: 0x20 [31:0],
        /// Packets for which no receive request was there.
        OUT_OF_BUFFER: 0x30 [31:0],
        /// Packets that came too early.
        OUT_OF_SEQUENCE: 0x38 [31:0],
        /// Requests received again.
        DUPLICATE_REQUEST: 0x40 [31:0],
        /// Requests sent again because the receiver was not ready.
        RNR_NAK_RETRY_ERR: 0x48 [31:0],
        /// Negative acknowledgements of a gap.
        PACKET_SEQ_ERR: 0x50 [31:0],
        /// Acknowledgements that did not come in time.
        LOCAL_ACK_TIMEOUT_ERR: 0x60 [31:0],
        /// Requests given up because the receiver was not ready.
        REQ_RNR_RETRIES_EXCEEDED: 0x70 [31:0],
        /// Messages received that were too long.
        RESP_LOCAL_LENGTH_ERROR: 0x78 [31:0],
        /// Requests whose length was wrong.
        REQ_LOCAL_LENGTH_ERROR: 0x7c [31:0],
        /// Faults of the queue pair at the receiver.
        RESP_LOCAL_QP_ERROR: 0x80 [31:0],
        /// Faults of the queue pair at the requester.
        LOCAL_OPERATION_ERROR: 0x84 [31:0],
        /// Receive requests whose memory could not be used.
        RESP_LOCAL_PROTECTION: 0x88 [31:0],
        /// Requests whose memory could not be used.
        REQ_LOCAL_PROTECTION: 0x8c [31:0],
        /// Receive requests that completed in error.
        RESP_CQE_ERROR: 0x90 [31:0],
        /// Requests that completed in error.
        REQ_CQE_ERROR: 0x94 [31:0],
        /// Windows that could not be bound.
        REQ_MW_BINDING: 0x98 [31:0],
        /// Answers that fit nothing.
        REQ_BAD_RESPONSE: 0x9c [31:0],
        /// Requests that the peer called invalid.
        REQ_REMOTE_INVALID_REQUEST: 0xa0 [31:0],
        /// Requests of the peer that were invalid.
        RESP_REMOTE_INVALID_REQUEST: 0xa4 [31:0],
        /// Requests that the peer refused access to.
        REQ_REMOTE_ACCESS_ERRORS: 0xa8 [31:0],
        /// Requests of the peer that were refused access.
        RESP_REMOTE_ACCESS_ERRORS: 0xac [31:0],
        /// Requests that the peer could not carry out.
        REQ_REMOTE_OPERATION_ERRORS: 0xb0 [31:0],
        /// Requests given up because the peer did not answer.
        REQ_TRANSPORT_RETRIES_EXCEEDED: 0xb4 [31:0],
        /// Receive requests flushed.
        RESP_CQE_FLUSH_ERROR: 0xbc [31:0],
        /// Requests flushed.
        REQ_CQE_FLUSH_ERROR: 0xc0 [31:0],
    }

    /// Reads the counters of a port.
    QUERY_VPORT_COUNTER => QueryVportCounterIn: 0x20 {
    }, QueryVportCounterOut: 0x210 {
        /// Received in error.
        RECEIVED_ERRORS: 0x10 {TrafficCounter},
        /// Not sent, in error.
        TRANSMIT_ERRORS: 0x20 {TrafficCounter},
        /// InfiniBand received.
        RECEIVED_IB_UNICAST: 0x30 {TrafficCounter},
        /// InfiniBand sent.
        TRANSMITTED_IB_UNICAST: 0x40 {TrafficCounter},
        /// Ethernet broadcast received.
        RECEIVED_ETH_BROADCAST: 0x70 {TrafficCounter},
        /// Ethernet broadcast sent.
        TRANSMITTED_ETH_BROADCAST: 0x80 {TrafficCounter},
        /// Ethernet received.
        RECEIVED_ETH_UNICAST: 0x90 {TrafficCounter},
        /// Ethernet sent.
        TRANSMITTED_ETH_UNICAST: 0xa0 {TrafficCounter},
        /// Ethernet multicast received.
        RECEIVED_ETH_MULTICAST: 0xb0 {TrafficCounter},
        /// Ethernet multicast sent.
        TRANSMITTED_ETH_MULTICAST: 0xc0 {TrafficCounter},
    }
}

layout! {
    list LAYOUTS;

    /// A counter of packets.
    pub struct TrafficCounter: 0x10 {
        /// Packets.
        PACKETS: 0x00 [63:0],
        /// Bytes.
        OCTETS: 0x08 [63:0],
    }
}
