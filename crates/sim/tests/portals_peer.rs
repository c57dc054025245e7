//! The committed corpus of the fuzz target `portals_peer` through its own function, and inputs at random.

#[path = "../../../fuzz/src/portals_peer.rs"]
mod portals_peer;

use test_support::counting::{self, Counting};
use test_support::random::Rng;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What one input may allocate at most: three adapters, two nodes, and what is under way.
const MAX_BYTES: isize = 16 << 20;

/// An input that fails is left where it can be replayed from.
fn named(name: &str, data: &[u8]) -> (portals::Counts, [u64; 3]) {
    let run = || {
        let (counted, bytes) = counting::most_bytes(|| portals_peer::portals_peer(data));
        assert!(bytes <= MAX_BYTES, "{bytes} bytes");
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
    let mut rng = Rng::new(1);
    let mut sums = [0; 7];
    for n in 0..count {
        let len = rng.below(512);
        let input = rng.bytes(len);
        let (counts, status) = named(&format!("input {n}"), &input);
        let counted = [counts.malformed, counts.strangers, counts.connected, counts.lost];
        for (sum, n) in sums.iter_mut().zip(counted.into_iter().chain(status)) {
            *sum += n;
        }
    }
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
    for (name, input) in test_support::corpus::of("portals_peer", 60) {
        named(&name, &input);
    }
}
