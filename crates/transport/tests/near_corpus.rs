//! The committed corpus of the fuzz target `message_pair`, through its own function.
#[path = "../../../fuzz/src/message_pair.rs"]
mod message_pair;
mod messages;
mod pair;

#[test]
#[cfg_attr(miri, ignore = "reads a directory, from which miri isolates it")]
fn the_corpus_of_pairs_by_messages_passes() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/message_pair");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 30, "{} files", files.len());
    for file in files {
        println!("{}", file.display());
        message_pair::message_pair(&std::fs::read(&file).unwrap());
    }
}
