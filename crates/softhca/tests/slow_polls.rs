//! Polls in quick succession read shared memory only; a late poll checks everything.

mod ends;

use std::time::{Duration, Instant};

use ends::{send, shm_pair};
use hca_core::{Completion, SendFlags};
use softhca::Progress;

/// More than an adapter goes without a whole turn.
const LATE: Duration = Duration::from_millis(2);

#[test]
fn a_poll_that_comes_late_is_a_whole_turn() {
    let [mut a, mut b] = shm_pair(Progress::Inline);
    // Until both have met, and each polls the other's ring.
    for _ in 0..8 {
        b.recv();
        send(&mut a.rc, SendFlags::SIGNALED);
        b.next(&*a.device).expect("the message arrives");
        a.next(&*b.device).expect("the SEND completes");
    }
    for polls in 1..=20 {
        let (before, begin) = (a.counter("turns"), Instant::now());
        while begin.elapsed() < LATE {}
        assert_eq!(a.cq.poll(&mut [Completion::default()]), 0);
        assert_eq!(a.counter("turns") - before, 1, "poll {polls}");
    }
    a.close();
    b.close();
}
