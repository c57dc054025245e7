//! The measured round trip, and the probe timer that follows from it.

/// The delay of a probe before the first sample.
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
    /// Before any sample: the time from a probe to the answer, which the round trip is not below; 0: there was none.
    least_ns: u64,
    /// Probes since the last sample. What was probed yields none, so a path that became slow is measured only once a
    /// probe waits long enough.
    backoff: u32,
    /// Since the last sample an answer came too soon after a probe to be the probe's.
    doubted: bool,
}

impl Rtt {
    /// Takes a sample.
    pub(crate) fn sample(&mut self, rtt_ns: u64) {
        let rtt = rtt_ns.max(1);
        (self.backoff, self.doubted) = (0, false);
        if self.srtt_ns == 0 {
            (self.srtt_ns, self.rttvar_ns, self.min_ns) = (rtt, rtt / 2, rtt);
            return;
        }
        self.rttvar_ns = self.rttvar_ns - self.rttvar_ns / 4 + self.srtt_ns.abs_diff(rtt) / 4;
        self.srtt_ns = (self.srtt_ns - self.srtt_ns / 8 + rtt / 8).max(1);
        self.min_ns = self.min_ns.min(rtt);
    }
    /// An answer came so long after a probe. It may be an older packet's, so the round trip may be longer.
    pub(crate) fn probe_answered(&mut self, after_ns: u64) {
        self.least_ns = after_ns.max(1);
    }
    /// A probe was sent: the next one waits twice as long.
    pub(crate) fn probed(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }
    /// The delay of the next probe; never more than `ceiling_ns`, the queue pair's own timeout. `costly`: it repeats a
    /// READ, so it waits for that timeout where nothing was measured yet.
    #[inline]
    pub(crate) fn probe_ns(&self, ceiling_ns: u64, costly: bool) -> u64 {
        let base = match (self.srtt_ns, self.least_ns) {
            (0, 0) if costly => MAX_PROBE_NS,
            (0, 0) => INITIAL_PROBE_NS,
            // As if it were the first sample.
            (0, least) => least.saturating_mul(3).max(MIN_PROBE_NS),
            (srtt, _) => (srtt + 4 * self.rttvar_ns).max(MIN_PROBE_NS),
        };
        base.saturating_mul(1 << self.backoff).min(ceiling_ns).min(MAX_PROBE_NS)
    }
    /// Whether an answer that came so soon after a probe is taken for the probe's: from half of the least round trip
    /// on, as the times of turns are coarse. One that comes sooner may be an older packet's. It is no accident the
    /// second time without a sample between: the path has become faster, which no sample tells while only probes are
    /// sent.
    pub(crate) fn is_answer(&mut self, after_ns: u64) -> bool {
        let soon = after_ns < self.min_ns / 2;
        !soon || core::mem::replace(&mut self.doubted, true)
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
        assert_eq!(rtt.probe_ns(u64::MAX, false), INITIAL_PROBE_NS);
        assert_eq!(rtt.probe_ns(u64::MAX, true), MAX_PROBE_NS);
        assert_eq!(rtt.probe_ns(67_108_864, true), 67_108_864);
        rtt.sample(10_000);
        assert_eq!(rtt.probe_ns(u64::MAX, false), MIN_PROBE_NS);
        for _ in 0..50 {
            rtt.sample(5_000_000);
        }
        assert!(rtt.probe_ns(u64::MAX, false) >= 4_900_000);
        assert_eq!(rtt.probe_ns(131_072, false), 131_072);
        let before = rtt.probe_ns(u64::MAX, false);
        rtt.probed();
        assert_eq!(rtt.probe_ns(u64::MAX, true), 2 * before);
    }

    #[test]
    fn samples_are_smoothed_as_rfc_6298_has_it() {
        let mut rtt = Rtt::default();
        let seen = |r: &Rtt| (r.srtt_ns, r.rttvar_ns, r.min_ns);
        rtt.sample(800_001);
        assert_eq!(seen(&rtt), (800_001, 400_000, 800_001));
        // Of the deviation 3/4 stay and 1/4 is new, of the mean 7/8 and 1/8.
        rtt.sample(1_600_003);
        assert_eq!(seen(&rtt), (900_001, 500_000, 800_001));
        rtt.sample(100_000);
        assert_eq!(seen(&rtt), (800_001, 575_000, 100_000));
        assert_eq!(rtt.probe_ns(u64::MAX, true), 800_001 + 4 * 575_000);
        rtt.sample(0);
        assert_eq!(rtt.min_ns, 1, "no round trip takes no time");
    }

    #[test]
    fn a_probe_waits_twice_as_long_each_time_until_there_is_a_sample() {
        let mut rtt = Rtt::default();
        for n in 1..=20 {
            rtt.probed();
            assert_eq!(rtt.backoff, n.min(MAX_BACKOFF));
        }
        assert_eq!(rtt.probe_ns(u64::MAX, false), MAX_PROBE_NS);
        rtt.sample(1_000_000);
        assert_eq!((rtt.backoff, rtt.probe_ns(u64::MAX, false)), (0, 3_000_000));
    }

    #[test]
    fn an_answer_to_a_probe_bounds_the_round_trip_until_there_is_a_sample() {
        let mut rtt = Rtt::default();
        rtt.probe_answered(0);
        assert_eq!((rtt.least_ns, rtt.probe_ns(u64::MAX, true)), (1, MIN_PROBE_NS));
        rtt.probe_answered(1_000_000);
        assert_eq!(rtt.probe_ns(u64::MAX, true), 3_000_000);
        rtt.sample(2_000_000);
        assert_eq!(rtt.probe_ns(u64::MAX, true), 6_000_000);
    }

    #[test]
    fn an_answer_is_a_probes_from_half_of_the_least_round_trip_on() {
        let mut rtt = Rtt::default();
        assert!(rtt.is_answer(0), "nothing is known");
        rtt.sample(1000);
        assert_eq!([501, 500, 499].map(|ns| rtt.is_answer(ns)), [true, true, false]);
    }

    #[test]
    fn the_second_answer_that_comes_too_soon_is_believed_until_there_is_a_sample() {
        let mut rtt = Rtt::default();
        rtt.sample(1000);
        assert_eq!([499, 1, 600, 1].map(|ns| rtt.is_answer(ns)), [false, true, true, true]);
        rtt.sample(1000);
        assert_eq!([600, 499, 499].map(|ns| rtt.is_answer(ns)), [true, false, true]);
    }

    #[test]
    fn a_path_is_congested_when_it_takes_four_times_its_least_and_a_millisecond_more() {
        let of = |srtt_ns, min_ns| Rtt { srtt_ns, min_ns, ..Rtt::default() }.is_congested();
        assert_eq!([1_400_000, 1_400_001].map(|ns| of(ns, 100_000)), [false, true]);
        assert!(!of(0, 0));
    }
}
