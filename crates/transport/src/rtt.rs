//! The round trip as measured, and the probe timer that follows from it.

/// Before any sample: what a probe waits.
const INITIAL_PROBE_NS: u64 = 2_000_000;
/// No probe waits less.
const MIN_PROBE_NS: u64 = 300_000;
/// No probe waits more, where the queue pair has no timeout of its own.
const MAX_PROBE_NS: u64 = 1_000_000_000;
/// Doublings of the probe timer at most.
const MAX_BACKOFF: u32 = 12;

/// Smoothed round trip time, its variation and its minimum, in nanoseconds (the estimator of RFC 6298).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    /// Smoothed; 0 before the first sample.
    pub(crate) srtt_ns: u64,
    /// Mean deviation.
    pub(crate) rttvar_ns: u64,
    /// The least one seen.
    min_ns: u64,
    /// Probes since the last progress.
    backoff: u32,
}

impl Rtt {
    /// Takes a sample.
    pub(crate) fn sample(&mut self, rtt_ns: u64) {
        let rtt = rtt_ns.max(1);
        if self.srtt_ns == 0 {
            (self.srtt_ns, self.rttvar_ns, self.min_ns) = (rtt, rtt / 2, rtt);
            return;
        }
        self.rttvar_ns = self.rttvar_ns - self.rttvar_ns / 4 + self.srtt_ns.abs_diff(rtt) / 4;
        self.srtt_ns = (self.srtt_ns - self.srtt_ns / 8 + rtt / 8).max(1);
        self.min_ns = self.min_ns.min(rtt);
    }
    /// The peer answered: probes start over.
    #[inline]
    pub(crate) fn progressed(&mut self) {
        self.backoff = 0;
    }
    /// A probe was sent: the next one waits twice as long.
    pub(crate) fn probed(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }
    /// What the next probe waits; never more than `ceiling_ns`, the queue pair's own timeout.
    #[inline]
    pub(crate) fn probe_ns(&self, ceiling_ns: u64) -> u64 {
        let base = if self.srtt_ns == 0 {
            INITIAL_PROBE_NS
        } else {
            (self.srtt_ns + 4 * self.rttvar_ns).max(MIN_PROBE_NS)
        };
        (base << self.backoff).min(ceiling_ns).min(MAX_PROBE_NS)
    }
    /// Whether packets queue up on the path so much that the window should not grow.
    #[inline]
    pub(crate) fn is_congested(&self) -> bool {
        self.srtt_ns > 4 * self.min_ns + 1_000_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_timer_follows_the_round_trip_and_never_exceeds_the_queue_pairs_timeout() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.probe_ns(u64::MAX), INITIAL_PROBE_NS);
        rtt.sample(10_000);
        assert_eq!(rtt.probe_ns(u64::MAX), MIN_PROBE_NS);
        for _ in 0..50 {
            rtt.sample(5_000_000);
        }
        assert!(rtt.probe_ns(u64::MAX) >= 4_900_000);
        assert_eq!(rtt.probe_ns(131_072), 131_072);
        let before = rtt.probe_ns(u64::MAX);
        rtt.probed();
        assert_eq!(rtt.probe_ns(u64::MAX), 2 * before);
    }
}
