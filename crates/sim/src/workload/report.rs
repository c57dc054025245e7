//! What a run did.

use core::ops::AddAssign;

use crate::NetStats;

/// Sums over one or many runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Runs.
    pub runs: u64,
    /// Send requests that ended well.
    pub requests: u64,
    /// Messages that arrived in receive requests.
    pub messages: u64,
    /// Bytes that requests moved.
    pub bytes: u64,
    /// Requests that ended with an error that the program or the network called for.
    pub errors: u64,
    /// Requests that were flushed.
    pub flushed: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Nodes that crashed.
    pub crashes: u64,
    /// Packets that adapters sent again.
    pub retransmitted: u64,
    /// RNR NAKs.
    pub rnr_naks: u64,
    /// Send queues that were drained and went on.
    pub drains: u64,
    /// Limit events of shared receive queues.
    pub srq_limits: u64,
    /// Receive requests that were too short for their message.
    pub too_short: u64,
    /// Comparisons of a node's whole memory.
    pub memory_checks: u64,
    /// What the network did.
    pub net: NetStats,
    /// Events.
    pub events: u64,
    /// A hash of all events of one run; of many, the sum.
    pub trace_hash: u64,
    /// Nanoseconds of virtual time.
    pub virtual_ns: u64,
}

impl AddAssign for Report {
    fn add_assign(&mut self, r: Self) {
        self.runs += r.runs;
        self.requests += r.requests;
        self.messages += r.messages;
        self.bytes += r.bytes;
        self.errors += r.errors;
        self.flushed += r.flushed;
        self.connections += r.connections;
        self.crashes += r.crashes;
        self.retransmitted += r.retransmitted;
        self.rnr_naks += r.rnr_naks;
        self.drains += r.drains;
        self.srq_limits += r.srq_limits;
        self.too_short += r.too_short;
        self.memory_checks += r.memory_checks;
        self.net += r.net;
        self.events += r.events;
        self.trace_hash = self.trace_hash.wrapping_add(r.trace_hash);
        self.virtual_ns += r.virtual_ns;
    }
}
