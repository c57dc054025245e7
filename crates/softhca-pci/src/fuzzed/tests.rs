//! The corpus, and inputs at random.

use proptest::prelude::*;

use super::served_function;

/// A client that does nothing, and one that is never started.
#[test]
fn an_empty_input_passes() {
    for setup in 0..4 {
        served_function(&[setup]);
    }
}

#[test]
fn the_corpus_of_served_function_passes() {
    test_support::corpus::run("served_function", 20, served_function);
}

/// The deep paths of Ethernet are not found by chance in `cargo test`.
#[test]
fn the_corpus_brings_frames_to_queues_and_to_others() {
    let seeds = test_support::corpus::of("served_function", 20).into_iter().map(|(_, seed)| seed);
    let (mut filled, mut sent) = (0, 0);
    for seed in seeds.filter(|seed| seed.first().is_some_and(|setup| setup & 3 == 1)) {
        let mut bed = super::run(&seed);
        let (more, others) = bed.driver.function.ethernet.moved();
        (filled, sent) = (filled + more, sent + others);
    }
    assert!(filled >= 10 && sent >= 5, "{filled} requests filled, {sent} frames sent");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_client_does_the_others_talk_and_the_next_one_finds_all_as_new(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        served_function(&bytes);
    }
}
