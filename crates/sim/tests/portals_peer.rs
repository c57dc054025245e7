//! The committed corpus of the fuzz target `portals_peer` through its own function, and inputs at random.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[path = "../../../fuzz/src/portals_peer.rs"]
mod portals_peer;

/// What one input may allocate at most: three adapters, two nodes, and what is under way.
const MAX_BYTES: isize = 16 << 20;

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

/// An input that fails is left where it can be replayed from.
fn named(name: &str, data: &[u8]) -> (portals::Counts, [u64; 3]) {
    let before = NOW.get();
    MOST.set(before);
    let run = || {
        let counted = portals_peer::portals_peer(data);
        assert!(MOST.get() - before <= MAX_BYTES, "{} bytes", MOST.get() - before);
        counted
    };
    std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        let kept = std::env::temp_dir().join("portals_peer-failure");
        std::fs::write(&kept, data).unwrap();
        eprintln!("{name} failed; the input is in {}", kept.display());
        std::panic::resume_unwind(panic);
    })
}

#[test]
fn inputs_at_random_pass() {
    let count = std::env::var("HCA_PORTALS_PEER_INPUTS").map_or(60, |n| n.parse().expect("a number"));
    let mut x = 1u64;
    let mut sums = [0; 7];
    for n in 0..count {
        let input: Vec<u8> = (0..x % 512)
            .map(|_| {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (x >> 56) as u8
            })
            .collect();
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let (counts, status) = named(&format!("input {n}"), &input);
        let counted = [counts.malformed, counts.strangers, counts.connected, counts.lost];
        for (sum, n) in sums.iter_mut().zip(counted.into_iter().chain(status)) {
            *sum += n;
        }
    }
    println!("{} bytes at most", MOST.get());
    println!("malformed, strangers, connected, lost, dropped, violations: {sums:?}");
    assert!([0, 1, 2, 3, 4, 6].iter().all(|&i| sums[i] > 0), "{sums:?}");
}

/// A hello names another rank than before, the connection ends, and the first rank is spoken to.
#[test]
fn a_peer_that_changes_its_rank_leaves_none_behind() {
    named(
        "a hello of rank 3, a message that is none, a put to rank 2",
        &[2, 5, 32, 0, 1, 1, 0, 1, 0, 6, 0, 1],
    );
}

#[test]
fn the_corpus_of_hostile_peers_passes() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/portals_peer");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 60, "{} files", files.len());
    for file in files {
        named(&file.display().to_string(), &std::fs::read(&file).unwrap());
    }
}
