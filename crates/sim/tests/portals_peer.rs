//! The committed corpus of the fuzz target `portals_peer` through its own function, and inputs at random.

#[path = "../../../fuzz/src/portals_peer.rs"]
mod portals_peer;

/// An input that fails is left where it can be replayed from.
fn named(name: &str, data: &[u8]) -> (portals::Counts, [u64; 3]) {
    std::panic::catch_unwind(|| portals_peer::portals_peer(data)).unwrap_or_else(|panic| {
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
