//! The committed corpus of the fuzz target `matching` through its own function, and inputs at random.

#[path = "../../../fuzz/src/matching.rs"]
mod matching;

#[test]
#[cfg_attr(miri, ignore = "reads a directory, from which miri isolates it")]
fn the_corpus_of_calls_and_messages_passes() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/matching");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 50, "{} files", files.len());
    for file in files {
        println!("{}", file.display());
        matching::matching(&std::fs::read(&file).unwrap());
    }
}

#[test]
fn inputs_at_random_pass() {
    let mut x = 1u64;
    for _ in 0..if cfg!(miri) { 5 } else { 2_000 } {
        let input: Vec<u8> = (0..x % 1024)
            .map(|_| {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (x >> 56) as u8
            })
            .collect();
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        matching::matching(&input);
    }
}
