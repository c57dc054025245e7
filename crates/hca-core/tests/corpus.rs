//! The committed fuzz corpus through the fuzz target's own function, on any compiler.

#[path = "../../../fuzz/src/parse.rs"]
mod parse;

#[test]
#[cfg_attr(miri, ignore = "reads a directory, from which miri isolates it")]
fn the_corpus_of_the_parsers_passes() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/parse");
    let files = std::fs::read_dir(dir).unwrap();
    let run = files.map(|f| parse::parse(&std::fs::read(f.unwrap().path()).unwrap())).count();
    assert!(run >= 100, "{run} files in {dir}");
}

/// Cheap mutations of the golden frames: every byte cut off, every byte changed.
#[test]
fn cut_and_changed_golden_frames_pass() {
    let rows: serde_json::Value = serde_json::from_str(include_str!("data/rocev2_packets.json")).unwrap();
    let rows = rows.as_array().unwrap();
    let step = if cfg!(miri) { 25 } else { 1 };
    for row in rows.iter().step_by(step) {
        let hex = row["frame"].as_str().unwrap();
        let frame: Vec<u8> =
            (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
        let heads = frame.len().min(120);
        for at in (0..heads).step_by(if cfg!(miri) { 37 } else { 1 }) {
            parse::parse(&frame[..at]);
            for byte in [0, 0xff, frame[at] ^ 1, frame[at] ^ 0x80] {
                let mut bad = frame.clone();
                bad[at] = byte;
                parse::parse(&bad);
            }
        }
    }
}
