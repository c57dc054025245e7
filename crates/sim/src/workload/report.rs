//! The report of a run.

use core::ops::AddAssign;

use super::Mix;
use crate::{NearStats, NetStats};

/// Sums over one or many runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of runs.
    pub runs: u64,
    /// Send requests that succeeded.
    pub requests: u64,
    /// Messages that arrived in receive requests.
    pub messages: u64,
    /// Those of them that named a shared receive queue of an XRC domain.
    pub xrc_messages: u64,
    /// Messages that arrived as reliable datagrams.
    pub rd_messages: u64,
    /// Datagrams to multicast groups.
    pub multicasts: u64,
    /// Connections that connection managers established.
    pub managed: u64,
    /// Queue pairs of services that connection managers found (SIDR).
    pub resolved: u64,
    /// Memory windows bound by a request.
    pub binds: u64,
    /// ATOMIC WRITEs that succeeded.
    pub atomic_writes: u64,
    /// FLUSHes that succeeded.
    pub flushes: u64,
    /// Bytes that requests moved.
    pub bytes: u64,
    /// Requests that ended with an error that the program or the network caused.
    pub errors: u64,
    /// Requests that were flushed.
    pub flushed: u64,
    /// Connections that were established.
    pub connections: u64,
    /// Nodes that crashed.
    pub crashes: u64,
    /// Packets that adapters sent again.
    pub retransmitted: u64,
    /// The number of RNR NAKs.
    pub rnr_naks: u64,
    /// Send queues that were drained and then continued.
    pub drains: u64,
    /// Limit events of shared receive queues.
    pub srq_limits: u64,
    /// Queue pairs with a shared receive queue that were destroyed as they were.
    pub gone_live: u64,
    /// Shared receive queues in which all requests were found at the end that have not completed.
    pub srqs_whole: u64,
    /// Receive requests that were too short for their message.
    pub too_short: u64,
    /// Pauses in which a program polled no completion.
    pub deaf: u64,
    /// Completion queues that overran.
    pub overruns: u64,
    /// Completion queues that were rebuilt after an overrun.
    pub rebuilt: u64,
    /// Registrations that adapters refused because they had reached their limit of regions.
    pub registrations_refused: u64,
    /// The longest wait of a request in nanoseconds, after the end of all faults.
    pub recovery_ns: u64,
    /// Comparisons of a node's whole memory.
    pub memory_checks: u64,
    /// The counts of the network.
    pub net: NetStats,
    /// The counts of events among the nodes of one machine.
    pub near: NearStats,
    /// The number of events.
    pub events: u64,
    /// A hash of all events of one run; of many, the sum.
    pub trace_hash: u64,
    /// Nanoseconds of virtual time.
    pub virtual_ns: u64,
}

impl Report {
    /// The counts of all kinds of events, by their names. In many runs together every kind should happen: a fault that
    /// was enabled and never happened was not tested.
    pub fn happenings(&self, near: bool, mix: Mix) -> Vec<(&'static str, u64)> {
        let net = &self.net;
        let mut all = vec![
            ("requests that failed as they should", self.errors),
            ("requests flushed", self.flushed),
            ("send queues drained", self.drains),
            ("limits of shared receive queues reached", self.srq_limits),
            ("queue pairs of shared queues destroyed as they were", self.gone_live),
            ("shared receive queues without a loss", self.srqs_whole),
            ("receive requests too short", self.too_short),
            ("pauses without a look at completions", self.deaf),
            ("completion queues overrun", self.overruns),
            ("  made anew", self.rebuilt),
            ("registrations refused", self.registrations_refused),
            ("packets retransmitted", self.retransmitted),
            ("RNR NAKs", self.rnr_naks),
            ("  packets lost", net.lost),
            ("  lost in full queues and buffers", net.overflowed),
            ("  lost in partitions and crashes", net.unreachable),
            ("  doubled", net.duplicated),
            ("  held back", net.reordered),
            ("  changed", net.corrupted),
            ("  marked", net.marked),
            ("  left to the sender for later", net.deferred),
            ("  crashes", self.crashes),
        ];
        let services = [
            (mix.xrc, "messages to queues of XRC domains", self.xrc_messages),
            (mix.rd, "reliable datagrams", self.rd_messages),
            (mix.multicast, "datagrams to groups", self.multicasts),
            (mix.cm, "connections by connection managers", self.managed),
            (mix.cm, "queue pairs that they found (SIDR)", self.resolved),
            (mix.windows, "windows bound by a request", self.binds),
            (mix.placement, "ATOMIC WRITEs", self.atomic_writes),
            (mix.placement, "FLUSHes", self.flushes),
        ];
        all.extend(services.into_iter().filter(|s| s.0).map(|(_, what, n)| (what, n)));
        if near {
            let n = &self.near;
            all.extend([
                ("looks at neighbours", n.looks),
                ("  that took a part only", n.parts),
                ("  that found nothing, and parked the rings", n.sleeps),
                ("messages by rings", n.messages),
                ("rings found full", n.full),
                ("regions mapped by neighbours", n.mapped),
                ("  refused", n.grants_refused),
                ("  taken back", n.revoked),
                ("messages fetched from neighbours' processes", n.fetched),
                ("  processes not let be read", n.reads_refused),
                ("neighbours woken", n.woken),
                ("neighbours gone", n.gone),
            ]);
        }
        all
    }
}

impl AddAssign for Report {
    fn add_assign(&mut self, r: Self) {
        self.runs += r.runs;
        self.requests += r.requests;
        self.messages += r.messages;
        self.xrc_messages += r.xrc_messages;
        self.rd_messages += r.rd_messages;
        self.multicasts += r.multicasts;
        self.managed += r.managed;
        self.resolved += r.resolved;
        self.binds += r.binds;
        self.atomic_writes += r.atomic_writes;
        self.flushes += r.flushes;
        self.bytes += r.bytes;
        self.errors += r.errors;
        self.flushed += r.flushed;
        self.connections += r.connections;
        self.crashes += r.crashes;
        self.retransmitted += r.retransmitted;
        self.rnr_naks += r.rnr_naks;
        self.drains += r.drains;
        self.srq_limits += r.srq_limits;
        self.gone_live += r.gone_live;
        self.srqs_whole += r.srqs_whole;
        self.too_short += r.too_short;
        self.deaf += r.deaf;
        self.overruns += r.overruns;
        self.rebuilt += r.rebuilt;
        self.registrations_refused += r.registrations_refused;
        self.recovery_ns = self.recovery_ns.max(r.recovery_ns);
        self.memory_checks += r.memory_checks;
        self.net += r.net;
        self.near += r.near;
        self.events += r.events;
        self.trace_hash = self.trace_hash.wrapping_add(r.trace_hash);
        self.virtual_ns += r.virtual_ns;
    }
}
