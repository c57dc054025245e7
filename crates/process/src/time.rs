//! Times that programs choose.

use std::time::{Duration, Instant};

/// What stands for a time beyond all others: longer than any process lives, and within what the clock counts.
const FOR_EVER: Duration = Duration::from_secs(1 << 33);

/// The time so much later than now. One beyond what the clock counts (`Duration::MAX`) is centuries from now.
pub fn in_time(later: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(later).or_else(|| now.checked_add(FOR_EVER)).unwrap_or(now)
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
