//! Times that programs choose.

use std::time::{Duration, Instant};

/// The stand-in for a time beyond all others: longer than any process lives, and within what the clock counts.
const FOR_EVER: Duration = Duration::from_secs(1 << 33);

/// The time so much later than another one. A time beyond what the clock counts (`Duration::MAX`) is centuries later.
pub fn after(begin: Instant, later: Duration) -> Instant {
    begin.checked_add(later).or_else(|| begin.checked_add(FOR_EVER)).unwrap_or(begin)
}
/// The time so much later than now, as [`after`] has it.
pub fn in_time(later: Duration) -> Instant {
    after(Instant::now(), later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_beyond_what_the_clock_counts_is_far_away() {
        let year = Duration::from_secs(365 * 24 * 3600);
        for later in [Duration::MAX, Duration::from_secs(u64::MAX), 100 * year] {
            assert!(in_time(later) > Instant::now() + 99 * year, "{later:?}");
        }
        let soon = in_time(Duration::from_secs(5));
        assert!(soon > Instant::now() && soon < Instant::now() + Duration::from_secs(6));
    }
}
