//! The committed corpus of the fuzz target `connection_manager` through its own function, and inputs at random.

#[path = "../../../fuzz/src/connection_manager.rs"]
mod connection_manager;

#[test]
#[cfg_attr(miri, ignore = "reads a directory, from which miri isolates it")]
fn the_corpus_of_messages_calls_and_times_passes() {
    test_support::corpus::run("connection_manager", 10, connection_manager::connection_manager);
}

#[test]
fn inputs_at_random_pass() {
    let mut rng = test_support::random::Rng::new(1);
    for _ in 0..if cfg!(miri) { 5 } else { 20_000 } {
        let len = rng.below(1024);
        connection_manager::connection_manager(&rng.bytes(len));
    }
}
