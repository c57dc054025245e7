//! A peer on this machine that guesses keys.

mod ends;

use ends::peer::Stranger;
use ends::{End, open};
use hca_fabric::Notice;
use softhca::Progress;

/// What an adapter bears by way of one queue pair.
const LIMIT: u32 = 64;

/// Whether a peer is granted a region after it asked for so many keys that never were.
fn is_granted_after(wrong: u32) -> bool {
    let end = End::new(open("shm", Progress::Inline, 0).unwrap());
    let mut peer = Stranger::of(&end);
    let right = end.open_to_writes().rkey.raw();
    for n in 1..=wrong {
        // Another tag, or another index.
        let key = right ^ (n << if n % 2 == 0 { 0 } else { 8 });
        let answer = peer.ask(&end, key);
        assert!(matches!(answer, Notice::GrantRefused { key: k, .. } if k == key), "{answer:?}");
    }
    match peer.ask(&end, right) {
        Notice::Granted { .. } => true,
        Notice::GrantRefused { .. } => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_that_asks_for_keys_that_never_were_is_granted_nothing_in_the_end() {
    assert!(is_granted_after(0));
    assert!(is_granted_after(LIMIT - 1));
    assert!(!is_granted_after(LIMIT));
}

/// What was taken back is no guess: a peer may not have heard of it yet.
#[test]
fn keys_that_were_taken_back_are_no_guesses() {
    use hca_core::Device;
    let end = End::new(open("shm", Progress::Inline, 0).unwrap());
    let mut peer = Stranger::of(&end);
    for _ in 0..2 * LIMIT {
        let keys = end.open_to_writes();
        end.device.dereg_mr(keys.handle).unwrap();
        assert!(matches!(peer.ask(&end, keys.rkey.raw()), Notice::GrantRefused { .. }));
    }
    let right = end.open_to_writes().rkey.raw();
    assert!(matches!(peer.ask(&end, right), Notice::Granted { .. }));
}
