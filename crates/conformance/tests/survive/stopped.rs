//! SIGSTOP of a peer in the middle of its work, and deregistration.

use std::time::Duration;

use hca_conformance::Ran;
use hca_core::WcStatus;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use softhca::Progress;
use test_support::random::Rng;

use crate::load::{Load, REGION};
use crate::{domain, own_domain, peer};

/// What taking a key back may take.
const A_SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);
/// How requests end whose own memory, or the peer's, lost its key.
pub(crate) const ANY_END: &[WcStatus] = &[
    WcStatus::RetryExceeded,
    WcStatus::WrFlushed,
    WcStatus::LocalProtection,
    WcStatus::RemoteAccess,
    WcStatus::RemoteOperation,
];
/// What the memory holds once its key is taken back.
const OURS: u8 = 0xee;

/// Stops a child under load at any moment, takes the key of its region back, uses the memory for something else, and
/// lets the child go on: no byte changes any more.
fn stop_and_take_back(domain: &str, rounds: u32, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        let mut load = Load::open(domain, Progress::ALL[round as usize % 3]);
        let mode = Progress::ALL[round as usize / 3 % 3];
        let (mut child, index) = peer(&mut load, domain, mode, "any");
        let pid = Pid::from_child(&child.child);
        let (requests, spins) = (rng.below(500) as u64, rng.next_u64() & 0xfff);
        let mut ran = Ran::new();
        while load.peers[index].as_ref().unwrap().done < requests {
            load.pump();
            assert!(ran.tick() < PATIENCE, "round {round}");
        }
        for _ in 0..spins {
            std::hint::spin_loop();
        }
        (load.ends, load.blind) = (ANY_END, true);
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().expect("it is waited for");
        assert!(status.stopped(), "round {round}: {status:?}");
        let window = load.peers[index].as_ref().unwrap().window.clone();
        let mut ran = Ran::new();
        if round % 2 == 0 {
            window.revoke().unwrap();
        } else {
            // The queue pairs first, then the region: what is under way on them ends as well.
            load.forget(index);
            window.revoke().unwrap();
        }
        longest = longest.max(ran.tick());
        let ours = vec![OURS; REGION];
        window.write_at(0, &ours);
        let unchanged = |when: &str| {
            let mut now = vec![0; REGION];
            window.read_at(0, &mut now);
            let changed = now.iter().position(|&b| b != OURS);
            assert_eq!(changed, None, "round {round}: a byte changed {when}");
        };
        unchanged("while the peer was stopped");
        kill_process(pid, Signal::CONT).unwrap();
        // It goes on with its copy, finds itself refused, and says so; or nobody answers it any more.
        let mut ran = Ran::new();
        if round % 2 == 0 {
            while !load.peers[index].as_ref().unwrap().dead.contains(&true) {
                load.pump();
                assert!(ran.tick() < PATIENCE, "round {round}");
            }
        }
        while ran.tick() < Duration::from_millis(20) {
            load.context.turn();
            std::thread::yield_now();
        }
        unchanged("when the peer went on");
        if round % 2 == 0 && mode != Progress::Inline && round % 3 != 0 {
            // It has looked at all bytes that it took for ours, and found none of what they are now.
            assert_eq!(child.line(), "over", "round {round}");
        }
        child.kill();
        unchanged("when the peer was gone");
    }
    println!("{rounds} stopped peers; taking a key back took {longest:?} at most");
    assert!(longest < A_SECOND, "{longest:?}");
}

#[test]
fn a_key_is_taken_back_from_a_stopped_peer_and_no_byte_changes_when_it_goes_on() {
    stop_and_take_back(&domain(), 18, 1);
}

#[test]
fn a_stopped_peer_that_was_fetching_takes_nothing_that_was_written_since_the_key_was_taken_back() {
    stop_and_take_back(&own_domain(), 36, 2);
}

#[test]
#[ignore = "needs minutes"]
fn keys_are_taken_back_from_hundreds_of_stopped_peers() {
    stop_and_take_back(&domain(), 360, u64::from(std::process::id()));
    stop_and_take_back(&own_domain(), 360, u64::from(std::process::id()));
}
