//! The committed fuzz corpus of the live queue pairs through the fuzz target's own function, and random
//! changes of it, on any compiler.

#[path = "../../../fuzz/src/live_qp/mod.rs"]
mod live_qp;

use test_support::counting::{self, Counting};
use test_support::random::Rng;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What one input may allocate at most, the adapter and its send buffer included.
const MAX_BYTES: isize = 2 << 20;

/// One input; it leaves nothing behind, and takes no more memory on its way than it may.
fn run(data: &[u8]) {
    let ((), bytes) = counting::most_bytes(|| live_qp::live_qp(data));
    assert!(bytes <= MAX_BYTES, "{bytes} bytes");
}

/// An input that fails is left where it can be replayed from.
fn named(name: &str, data: &[u8]) {
    if let Err(panic) = std::panic::catch_unwind(|| run(data)) {
        let kept = std::env::temp_dir().join("live_qp-failure");
        std::fs::write(&kept, data).unwrap();
        eprintln!("{name} failed; the input is in {}", kept.display());
        std::panic::resume_unwind(panic);
    }
}

#[test]
#[cfg_attr(miri, ignore = "reads a directory, from which miri isolates it")]
fn the_corpus_of_the_live_queue_pairs_passes() {
    let corpus = test_support::corpus::of("live_qp", 60);
    for (name, data) in &corpus {
        named(name, data);
    }
    let left = counting::held_bytes();
    run(&corpus[0].1);
    assert_eq!(counting::held_bytes(), left, "an adapter that is gone leaves nothing allocated");
}

/// Bytes changed, cut out, repeated and taken from another input.
fn mutate(rng: &mut Rng, data: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..1 + rng.next_u64() % 6 {
        let (at, r) = (rng.next_u64() as usize % data.len().max(1), rng.next_u64());
        match r % 5 {
            0 if !data.is_empty() => data[at] = (r >> 8) as u8,
            1 if !data.is_empty() => data[at] ^= 1 << (r >> 8 & 7),
            2 => data.truncate(at.max(1)),
            3 => {
                let end = data.len().min(at + (r >> 8) as usize % 40);
                let piece = data[at.min(end)..end].to_vec();
                data.splice(at.min(end)..at.min(end), piece);
            }
            _ => {
                let from = (r >> 8) as usize % other.len().max(1);
                data.truncate(at);
                data.extend_from_slice(&other[from.min(other.len())..]);
            }
        }
    }
    data.truncate(4096);
}

#[test]
#[cfg_attr(miri, ignore = "reads a directory, from which miri isolates it")]
fn changed_inputs_pass() {
    let corpus = test_support::corpus::of("live_qp", 60);
    let rounds = std::env::var("LIVE_QP_ROUNDS").map_or(2000, |n| n.parse().unwrap());
    let mut rng = Rng::new(1);
    for n in 0..rounds {
        let pick = |r: u64| &corpus[r as usize % corpus.len()].1;
        let (mut data, other) = (pick(rng.next_u64()).clone(), pick(rng.next_u64()).clone());
        mutate(&mut rng, &mut data, &other);
        named(&format!("change {n}"), &data);
    }
}
