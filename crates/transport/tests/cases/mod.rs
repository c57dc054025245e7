//! How many cases property tests run, and from which seed.
#![allow(unreachable_pub)] // a module of several tests

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;

/// So many cases of a fixed seed; `PROPTEST_CASES` and `PROPTEST_RNG_SEED` ask for others.
pub fn cases(count: u32) -> ProptestConfig {
    let given = ProptestConfig::default();
    let cases = match std::env::var_os("PROPTEST_CASES") {
        _ if cfg!(miri) => 1,
        Some(_) => given.cases,
        None => count,
    };
    let rng_seed = if given.rng_seed == RngSeed::Random { RngSeed::Fixed(1) } else { given.rng_seed };
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..given }
}
