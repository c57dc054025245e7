//! The corpus, and inputs at random.

use proptest::prelude::*;

use super::served_function;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/served_function");

/// A client that does nothing, and one that is never started.
#[test]
fn an_empty_input_passes() {
    for setup in 0..4 {
        served_function(&[setup]);
    }
}

#[test]
fn the_corpus_of_served_function_passes() {
    let files = std::fs::read_dir(CORPUS).unwrap();
    let seeds: Vec<_> = files.map(|f| f.unwrap().path()).collect();
    assert!(seeds.len() >= 20, "{} files in {CORPUS}", seeds.len());
    for seed in seeds {
        println!("{}", seed.display());
        served_function(&std::fs::read(seed).unwrap());
    }
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
