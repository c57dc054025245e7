//! The committed corpus of the fuzz target `matching` through its own function, and inputs at random.

#[path = "../../../fuzz/src/matching.rs"]
mod matching;

#[test]
#[cfg_attr(miri, ignore = "reads a directory, from which miri isolates it")]
fn the_corpus_of_calls_and_messages_passes() {
    test_support::corpus::run("matching", 50, matching::matching);
}

#[test]
fn inputs_at_random_pass() {
    let mut rng = test_support::random::Rng::new(1);
    for _ in 0..if cfg!(miri) { 5 } else { 2_000 } {
        let len = rng.below(1024);
        matching::matching(&rng.bytes(len));
    }
}
