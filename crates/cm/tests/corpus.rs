//! The committed corpus of the fuzz target `connection_manager` through its own function, and inputs at random.

#[path = "../../../fuzz/src/connection_manager.rs"]
mod connection_manager;

#[test]
#[cfg_attr(miri, ignore = "reads a directory, from which miri isolates it")]
fn the_corpus_of_messages_calls_and_times_passes() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/connection_manager");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{} files", files.len());
    for file in files {
        println!("{}", file.display());
        connection_manager::connection_manager(&std::fs::read(&file).unwrap());
    }
}

#[test]
fn inputs_at_random_pass() {
    let mut rng = test_support::random::Rng::new(1);
    for _ in 0..if cfg!(miri) { 5 } else { 20_000 } {
        let len = rng.below(1024);
        connection_manager::connection_manager(&rng.bytes(len));
    }
}
