//! Counters of the adapter: one set for all queue pairs, and those of the port.

use hca_core::{Counter, PortCounterNames};
use hca_prm::Field;
use hca_prm::command::counter::{
    AllocQCounterIn, AllocQCounterOut, DeallocQCounterIn, QueryQCounterIn, QueryQCounterOut as Set,
    QueryVportCounterIn, QueryVportCounterOut as Vport, TrafficCounter,
};

use crate::cmd::{CmdError, CommandQueue};
use crate::hca::Hca;

/// The numbers of a set, of 32 bits that go around, by the names that Linux has for them.
const OF_QUEUE_PAIRS: [(&str, Field<Set, u32>); 25] = [
    ("rx_write_requests", Set::RX_WRITE_REQUESTS),
    ("rx_read_requests", Set::RX_READ_REQUESTS),
    ("rx_atomic_requests", Set::RX_ATOMIC_REQUESTS),
    ("out_of_buffer", Set::OUT_OF_BUFFER),
    ("out_of_sequence", Set::OUT_OF_SEQUENCE),
    ("duplicate_request", Set::DUPLICATE_REQUEST),
    ("rnr_nak_retry_err", Set::RNR_NAK_RETRY_ERR),
    ("packet_seq_err", Set::PACKET_SEQ_ERR),
    ("local_ack_timeout_err", Set::LOCAL_ACK_TIMEOUT_ERR),
    ("req_rnr_retries_exceeded", Set::REQ_RNR_RETRIES_EXCEEDED),
    ("req_transport_retries_exceeded", Set::REQ_TRANSPORT_RETRIES_EXCEEDED),
    ("req_cqe_error", Set::REQ_CQE_ERROR),
    ("req_cqe_flush_error", Set::REQ_CQE_FLUSH_ERROR),
    ("req_local_length_error", Set::REQ_LOCAL_LENGTH_ERROR),
    ("req_local_protection", Set::REQ_LOCAL_PROTECTION),
    ("req_bad_response", Set::REQ_BAD_RESPONSE),
    ("req_remote_invalid_request", Set::REQ_REMOTE_INVALID_REQUEST),
    ("req_remote_access_errors", Set::REQ_REMOTE_ACCESS_ERRORS),
    ("req_remote_operation_errors", Set::REQ_REMOTE_OPERATION_ERRORS),
    ("resp_cqe_error", Set::RESP_CQE_ERROR),
    ("resp_cqe_flush_error", Set::RESP_CQE_FLUSH_ERROR),
    ("resp_local_length_error", Set::RESP_LOCAL_LENGTH_ERROR),
    ("resp_local_protection", Set::RESP_LOCAL_PROTECTION),
    ("resp_remote_invalid_request", Set::RESP_REMOTE_INVALID_REQUEST),
    ("resp_remote_access_errors", Set::RESP_REMOTE_ACCESS_ERRORS),
];

/// The counters of the port that the IBA has names for.
pub(crate) const OF_PORT: PortCounterNames<'static> = PortCounterNames {
    octets: (&["unicast_xmit_bytes"], &["unicast_rcv_bytes"]),
    packets: (&["unicast_xmit_packets"], &["unicast_rcv_packets"]),
    rcv_errors: &["port_rcv_errors"],
    xmit_discards: &["port_xmit_errors"],
};

/// The set that all queue pairs name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CounterSet(Option<u32>);

impl CounterSet {
    /// Takes a set; none where the adapter gives none.
    pub(crate) fn open(cmd: &CommandQueue) -> Result<Self, CmdError> {
        match cmd.exec(&AllocQCounterIn::new()) {
            Ok(answer) => Ok(Self(Some(answer.get(AllocQCounterOut::COUNTER_SET_ID)))),
            Err(e @ CmdError::Refused { .. }) => {
                tracing::debug!(%e, "the adapter has no counters for this function's queue pairs");
                Ok(Self(None))
            }
            Err(e) => Err(e),
        }
    }
    /// The number in the contexts of queue pairs.
    pub(crate) fn id(self) -> u32 {
        self.0.unwrap_or(0)
    }
    /// Gives it back, before the adapter is stopped.
    pub(crate) fn close(self, cmd: &CommandQueue) -> Result<(), CmdError> {
        let Some(set) = self.0 else { return Ok(()) };
        cmd.exec(&DeallocQCounterIn::new().with(DeallocQCounterIn::COUNTER_SET_ID, set)).map(drop)
    }
    fn read(self, hca: &Hca) -> Option<Set> {
        hca.exec(&QueryQCounterIn::new().with(QueryQCounterIn::COUNTER_SET_ID, self.0?)).ok()
    }
}

/// The adapter's counters now. Counters that the adapter refuses, as of a virtual function's port, are left out.
pub(crate) fn read(hca: &Hca, out: &mut Vec<Counter>) {
    if let Some(set) = hca.counter_set.read(hca) {
        out.extend(OF_QUEUE_PAIRS.map(|(name, field)| Counter { name, value: set.get(field).into() }));
    }
    let Ok(port) = hca.exec(&QueryVportCounterIn::new()) else { return };
    let sum = |of: fn(&TrafficCounter) -> u64, fields: [TrafficCounter; 2]| fields.iter().map(of).sum();
    let received = [port.get(Vport::RECEIVED_ETH_UNICAST), port.get(Vport::RECEIVED_IB_UNICAST)];
    let sent = [port.get(Vport::TRANSMITTED_ETH_UNICAST), port.get(Vport::TRANSMITTED_IB_UNICAST)];
    let errors = [port.get(Vport::RECEIVED_ERRORS), port.get(Vport::TRANSMIT_ERRORS)];
    let (packets, octets) = (
        |c: &TrafficCounter| c.get(TrafficCounter::PACKETS),
        |c: &TrafficCounter| c.get(TrafficCounter::OCTETS),
    );
    let named = [
        ("unicast_rcv_packets", sum(packets, received)),
        ("unicast_rcv_bytes", sum(octets, received)),
        ("unicast_xmit_packets", sum(packets, sent)),
        ("unicast_xmit_bytes", sum(octets, sent)),
        ("port_rcv_errors", packets(&errors[0])),
        ("port_xmit_errors", packets(&errors[1])),
    ];
    out.extend(named.map(|(name, value)| Counter { name, value }));
}
