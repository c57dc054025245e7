//! The engine's counters, by name.

use hca_core::wire::ParseError;
use hca_core::{Counter, KeyFault, PortCounterNames, WcOpcode, counters};
use hca_transport::{Count, Served};

use crate::sync::{AtomicU64, Ordering};

counters! {
    EngineCounters:
    turns,
    tx_requests_and_responses,
    rx_unknown_qp,
    rx_unknown_group,
    rx_foreign_source,
    rx_short,
    rx_unknown_opcode,
    rx_bad_version,
    rx_bad_length,
}

/// Requests that succeeded, by operation, and the bytes of their messages: the queue pair's own, and those of its peer
/// that it served. What a peer on this machine does straight on this side's memory, the peer alone counts.
///
/// The owner of the engine counts alone; so no count is lost, though a load and a store are not one step.
#[derive(Debug, Default)]
pub(crate) struct OpCounts([Done; KINDS]);

#[derive(Debug, Default)]
struct Done {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Done {
    #[inline(always)]
    fn add(&self, requests: u64, bytes: u64) {
        for (count, more) in [(&self.requests, requests), (&self.bytes, bytes)] {
            count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        }
    }
    fn get(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// Those of [`WcOpcode`], and behind them those of [`Served`].
const KINDS: usize = FIRST_SERVED + Served::COUNT;
const FIRST_SERVED: usize = WcOpcode::RecvRdmaWithImm as usize + 1;
const SERVED_WRITE: usize = FIRST_SERVED + Served::Write as usize;
const SERVED_READ: usize = FIRST_SERVED + Served::Read as usize;
const SERVED_ATOMIC: usize = FIRST_SERVED + Served::Atomic as usize;
const SERVED_ATOMIC_WRITE: usize = FIRST_SERVED + Served::AtomicWrite as usize;
const SERVED_FLUSH: usize = FIRST_SERVED + Served::Flush as usize;

impl OpCounts {
    /// A request of this side, or a message that a receive request took.
    #[inline(always)]
    pub(crate) fn completed(&self, opcode: WcOpcode, bytes: u32) {
        self.add(opcode as usize, bytes);
    }
    /// An operation of the peer.
    #[inline(always)]
    pub(crate) fn served(&self, what: Served, bytes: u32) {
        self.add(FIRST_SERVED + what as usize, bytes);
    }
    #[inline(always)]
    fn add(&self, kind: usize, bytes: u32) {
        self.0[kind].add(1, bytes.into());
    }
    /// Adds those of another queue pair.
    pub(crate) fn add_all(&self, other: &Self) {
        for (to, from) in self.0.iter().zip(&other.0) {
            let (requests, bytes) = from.get();
            to.add(requests, bytes);
        }
    }
    /// All of them, with their names.
    pub(crate) fn named(&self, out: &mut Vec<Counter>) {
        let of = |kinds: &[usize]| {
            let done = kinds.iter().map(|kind| self.0[*kind].get());
            done.fold((0, 0), |sum, done| (sum.0 + done.0, sum.1 + done.1))
        };
        use WcOpcode::{AtomicWrite, CompSwap, FetchAdd, Flush, RdmaRead, RdmaWrite, Recv, Send};
        let both = [
            (["tx_send_requests", "tx_send_bytes"], of(&[Send as usize])),
            (["tx_write_requests", "tx_write_bytes"], of(&[RdmaWrite as usize])),
            (["tx_read_requests", "tx_read_bytes"], of(&[RdmaRead as usize])),
            (["rx_send_requests", "rx_send_bytes"], of(&[Recv as usize])),
            (["rx_write_requests", "rx_write_bytes"], of(&[SERVED_WRITE])),
            (["rx_read_requests", "rx_read_bytes"], of(&[SERVED_READ])),
        ];
        for ([requests, bytes], (count, sum)) in both {
            out.push(Counter { name: requests, value: count });
            out.push(Counter { name: bytes, value: sum });
        }
        let atomics = [
            ("tx_atomic_requests", of(&[CompSwap as usize, FetchAdd as usize]).0),
            ("rx_atomic_requests", of(&[SERVED_ATOMIC]).0),
            ("tx_atomic_write_requests", of(&[AtomicWrite as usize]).0),
            ("rx_atomic_write_requests", of(&[SERVED_ATOMIC_WRITE]).0),
            ("tx_flush_requests", of(&[Flush as usize]).0),
            ("rx_flush_requests", of(&[SERVED_FLUSH]).0),
        ];
        out.extend(atomics.map(|(name, value)| Counter { name, value }));
    }
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
    "reads_refused",
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
            ParseError::UnknownOpcode(_) => &mut self.rx_unknown_opcode,
            ParseError::Version(_) => &mut self.rx_bad_version,
            ParseError::PayloadLength { .. } => &mut self.rx_bad_length,
            _ => &mut self.rx_short,
        } += 1;
    }
}

/// The fabrics' and the engine's counters that the IBA has names for. Those of shared memory beside a network have
/// names of their own, and are not among them.
pub(crate) const OF_PORT: PortCounterNames<'static> = PortCounterNames {
    octets: (&["tx_bytes"], &["rx_bytes"]),
    packets: (&["tx_packets"], &["rx_packets"]),
    rcv_errors: &[
        "icrc_errors",
        "short_packets",
        "udp_checksum_errors",
        "rx_malformed",
        "rx_truncated",
        "rx_short",
        "rx_unknown_opcode",
        "rx_bad_version",
        "rx_bad_length",
    ],
    xmit_discards: &[
        "tx_lost_unreachable",
        "tx_lost_no_buffers",
        "tx_lost_other",
        "tx_lost_closed",
        "tx_lost_unresolved",
        "tx_lost_interface",
    ],
};

/// The refused accesses of peers, with the names of their reasons.
pub(crate) fn named_faults(counts: &[u64; KeyFault::ALL.len()], out: &mut Vec<Counter>) {
    out.extend(KeyFault::ALL.into_iter().zip(counts).map(|(fault, &value)| {
        let name = match fault {
            KeyFault::Unknown => "rx_refused_unknown_key",
            KeyFault::Freed => "rx_refused_freed_key",
            KeyFault::OtherPd => "rx_refused_other_pd",
            KeyFault::Range => "rx_refused_range",
            KeyFault::Right => "rx_refused_right",
        };
        Counter { name, value }
    }));
}

/// What the transport counts, with its names.
pub(crate) fn named(transport: &[u64; Count::COUNT], out: &mut Vec<Counter>) {
    out.extend(NAMES.iter().zip(transport).map(|(name, value)| Counter { name, value: *value }));
}
