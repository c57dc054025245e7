//! [`check()`]: runs one test with many seeds.

use core::ops::Range;

use crate::{Sim, SimBuilder, Violation};

/// Runs `test` once a seed and panics with the report of the first violation.
///
/// With `HCA_SIM_SEED` set only that seed runs, with `HCA_SIM_TRACE` set every event is printed; both together replay a
/// failure.
///
/// # Panics
/// On a violation.
pub fn check(seeds: Range<u64>, test: impl Fn(SimBuilder) -> Result<(), Violation>) {
    let one = std::env::var("HCA_SIM_SEED").ok().map(|s| match s.parse::<u64>() {
        Ok(seed) => seed,
        Err(e) => panic!("HCA_SIM_SEED is {s:?}, which is no number: {e}"),
    });
    for seed in chosen(one, seeds) {
        if let Err(violation) = test(Sim::builder(seed)) {
            panic!("{violation}");
        }
    }
}

/// `one` alone if it is given, which may be the last number of all, else all of a range.
fn chosen(one: Option<u64>, all: Range<u64>) -> impl Iterator<Item = u64> {
    one.into_iter().chain(if one.is_some() { 0..0 } else { all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_seed_runs_alone_and_may_be_any_number() {
        assert_eq!(chosen(None, 3..5).collect::<Vec<_>>(), [3, 4]);
        for seed in [0, 17, u64::MAX] {
            assert_eq!(chosen(Some(seed), 3..5).collect::<Vec<_>>(), [seed]);
        }
    }
}
