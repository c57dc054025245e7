//! The committed fuzz corpus of the live queue pairs through the fuzz target's own function, and random
//! changes of it, on any compiler.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[path = "../../../fuzz/src/live_qp/mod.rs"]
mod live_qp;

/// What one input may allocate at most, the adapter and its send buffer included.
const MAX_BYTES: isize = 2 << 20;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: isize) {
    NOW.set(NOW.get() + bytes);
    MOST.set(MOST.get().max(NOW.get()));
}

// SAFETY: hands every call on to the system's allocator, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: our caller's contract is the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One input; it leaves nothing behind, and takes no more memory on its way than it may.
fn run(data: &[u8]) {
    let before = NOW.get();
    MOST.set(before);
    live_qp::live_qp(data);
    assert!(MOST.get() - before <= MAX_BYTES, "{} bytes", MOST.get() - before);
}

fn corpus() -> Vec<(String, Vec<u8>)> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/live_qp");
    let files = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path());
    let mut all: Vec<_> = files.map(|p| (p.display().to_string(), std::fs::read(&p).unwrap())).collect();
    all.sort();
    all
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
    let corpus = corpus();
    assert!(corpus.len() >= 60, "{} files", corpus.len());
    for (name, data) in &corpus {
        named(name, data);
    }
    let left = NOW.get();
    run(&corpus[0].1);
    assert_eq!(NOW.get(), left, "an adapter that is gone leaves nothing allocated");
}

/// Bytes changed, cut out, repeated and taken from another input.
fn mutate(random: &mut impl FnMut() -> u64, data: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..1 + random() % 6 {
        let (at, r) = (random() as usize % data.len().max(1), random());
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
    let corpus = corpus();
    let rounds = std::env::var("LIVE_QP_ROUNDS").map_or(2000, |n| n.parse().unwrap());
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
    };
    for n in 0..rounds {
        let pick = |r: u64| &corpus[r as usize % corpus.len()].1;
        let (mut data, other) = (pick(random()).clone(), pick(random()).clone());
        mutate(&mut random, &mut data, &other);
        named(&format!("change {n}"), &data);
    }
}
