//! What the engine counts, by name.

use hca_core::Counter;
use hca_core::wire::ParseError;
use hca_transport::Count;

#[derive(Clone, Debug, Default)]
pub(crate) struct EngineCounters {
    pub(crate) turns: u64,
    pub(crate) tx_packets: u64,
    pub(crate) unknown_qp: u64,
    pub(crate) foreign_source: u64,
    short: u64,
    unknown_opcode: u64,
    version: u64,
    payload_length: u64,
}

/// Names of [`Count`]'s kinds, in order.
const NAMES: [&str; Count::COUNT] = [
    "rx_dropped_state",
    "rx_dropped_pkey",
    "rx_dropped_qkey",
    "rx_dropped_psn",
    "rx_dropped_invalid",
    "rx_dropped_no_recv",
    "rx_duplicate",
    "nak_sequence_sent",
    "nak_invalid_sent",
    "nak_access_sent",
    "nak_operational_sent",
    "rnr_nak_sent",
    "rnr_nak_received",
    "nak_received",
    "retransmitted",
    "probes",
    "timeouts",
    "cnp_received",
    "cnp_sent",
    "ecn_marked",
];

impl EngineCounters {
    pub(crate) fn malformed(&mut self, e: ParseError) {
        *match e {
            ParseError::UnknownOpcode(_) => &mut self.unknown_opcode,
            ParseError::Version(_) => &mut self.version,
            ParseError::PayloadLength { .. } => &mut self.payload_length,
            _ => &mut self.short,
        } += 1;
    }

    pub(crate) fn list(&self, transport: &[u64; Count::COUNT], out: &mut Vec<Counter>) {
        let own = [
            ("turns", self.turns),
            ("tx_requests_and_responses", self.tx_packets),
            ("rx_unknown_qp", self.unknown_qp),
            ("rx_foreign_source", self.foreign_source),
            ("rx_short", self.short),
            ("rx_unknown_opcode", self.unknown_opcode),
            ("rx_bad_version", self.version),
            ("rx_bad_length", self.payload_length),
        ];
        out.extend(own.map(|(name, value)| Counter { name, value }));
        named(transport, out);
    }
}

/// What the transport counts, with its names.
pub(crate) fn named(transport: &[u64; Count::COUNT], out: &mut Vec<Counter>) {
    out.extend(NAMES.iter().zip(transport).map(|(name, value)| Counter { name, value: *value }));
}
