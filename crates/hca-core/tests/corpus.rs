//! The committed fuzz corpus through the fuzz target's own function, on any compiler.

#[path = "../../../fuzz/src/parse.rs"]
mod parse;

#[test]
#[cfg_attr(miri, ignore = "reads a directory, from which miri isolates it")]
fn the_corpus_of_the_parsers_passes() {
    test_support::corpus::run("parse", 100, parse::parse);
}

/// The frames of the golden capture: a file header of 24 bytes, then 16 bytes before each frame.
fn frames() -> impl Iterator<Item = &'static [u8]> {
    let mut rest = &include_bytes!("data/rocev2_packets.pcap")[24..];
    std::iter::from_fn(move || {
        let (head, tail) = rest.split_first_chunk::<16>()?;
        let len = u32::from_le_bytes(head[8..12].try_into().unwrap()) as usize;
        let (frame, behind) = tail.split_at(len);
        rest = behind;
        Some(frame)
    })
}

/// Cheap mutations of the golden frames: every byte cut off, every byte changed.
#[test]
fn cut_and_changed_golden_frames_pass() {
    let step = if cfg!(miri) { 9 } else { 1 };
    for frame in frames().step_by(step) {
        parse::parse(frame);
        let heads = frame.len().min(120);
        for at in (0..heads).step_by(if cfg!(miri) { 37 } else { 1 }) {
            parse::parse(&frame[..at]);
            for byte in [0, 0xff, frame[at] ^ 1, frame[at] ^ 0x80] {
                let mut bad = frame.to_vec();
                bad[at] = byte;
                parse::parse(&bad);
            }
        }
    }
}
