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
    for seed in one.map_or(seeds, |s| s..s + 1) {
        if let Err(violation) = test(Sim::builder(seed)) {
            panic!("{violation}");
        }
    }
}
