//! kill -9 of a peer under full queue pairs.

use std::time::Duration;

use hca_conformance::Ran;
use softhca::Progress;
use test_support::random::Rng;
use test_support::roles::say;

use crate::load::{AT, Load, OWN, counters, pattern};
use crate::{domain, own_domain, peer, shared_address, start};

/// The time in which a survivor's requests to the dead end: not a quarter of what a silent peer is given, so that only
/// the news of the death can end them in time.
const A_SECOND: Duration = Duration::from_secs(1);
/// When something that has to come is despaired of.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a process holds.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    mappings: usize,
    sockets: usize,
    files: usize,
}

impl Held {
    fn now(domain: &str) -> Self {
        let lines = |file: &str, word: &str| {
            std::fs::read_to_string(file).unwrap().lines().filter(|l| l.contains(word)).count()
        };
        Self {
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            mappings: lines("/proc/self/maps", "memfd:"),
            sockets: lines("/proc/net/unix", &format!("/{domain}/")),
            files: std::fs::read_dir("/dev/shm").map_or(0, |d| d.filter(is_ours).count()),
        }
    }

    fn exceeds(&self, other: &Self) -> bool {
        let all = |h: &Self| [h.descriptors, h.mappings, h.sockets, h.files];
        all(self).iter().zip(all(other)).any(|(&ours, theirs)| ours > theirs)
    }
}

/// Closed paths that an adapter keeps with their sockets at most.
const CLOSED_PATHS: usize = 16;

fn is_ours(entry: &std::io::Result<std::fs::DirEntry>) -> bool {
    entry.as_ref().is_ok_and(|e| e.file_name().to_string_lossy().contains("hca"))
}

/// What a survivor is to do: `DOMAIN ROUNDS PROGRESS SEED`.
pub(crate) fn survivor(argument: &str) {
    let words: Vec<&str> = argument.split(' ').collect();
    let [domain, rounds, progress, seed] = words[..] else { panic!("{argument}") };
    kill_under_load(domain, rounds.parse().unwrap(), progress.parse().unwrap(), seed.parse().unwrap());
}

/// Kills so many peers of a process of its own, whose descriptors and mappings nobody else changes.
fn kill(domain: &str, rounds: u32, progress: Progress, seed: u64) {
    let mut survivor = start("survivor", &format!("{domain} {rounds} {progress} {seed}"));
    println!("{}", survivor.line());
    assert!(survivor.child.wait().unwrap().success());
}

/// Kills a child after so many requests, `rounds` times. Another child's traffic goes on meanwhile.
fn kill_under_load(domain: &str, rounds: u32, progress: Progress, seed: u64) {
    let pattern = pattern();
    let mut load = Load::open(domain, progress);
    let (steady, living) = peer(&mut load, domain, Progress::Adaptive, "none");
    let mut rng = Rng::new(seed);
    let mut before = None;
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        let mode = Progress::ALL[round as usize % 3];
        let (child, dying) = peer(&mut load, domain, mode, "none");
        let (requests, spins) = (rng.below(3000) as u64, rng.next_u64() & 0x3ff);
        let mut ran = Ran::new();
        while load.peers[dying].as_ref().unwrap().done < requests {
            load.pump();
            let why = load.peers[dying].as_ref().unwrap().why;
            let told = || format!("round {round}: {}", counters(&load.context));
            assert_eq!(why, None, "before the peer was killed; {}", told());
            assert!(ran.tick() < PATIENCE, "{}", told());
        }
        for _ in 0..spins {
            std::hint::spin_loop();
        }
        child.kill();
        let mut ran = Ran::new();
        let goes_on = load.peers[living].as_ref().unwrap().done + 200;
        while !load.peers[dying].as_ref().unwrap().is_over() {
            load.pump();
            let peer = load.peers[dying].as_ref().unwrap();
            assert!(ran.tick() < PATIENCE, "round {round}: sends {:?} recvs {:?}", peer.sends, peer.recvs);
        }
        longest = longest.max(ran.tick());
        load.peers[dying].as_ref().unwrap().check_written(&pattern);
        load.forget(dying);
        let mut ran = Ran::new();
        while load.peers[living].as_ref().unwrap().done < goes_on {
            load.pump();
            assert!(ran.tick() < PATIENCE, "round {round}: the living peer's traffic stands still");
        }
        let alive = load.peers[living].as_ref().unwrap();
        assert_eq!(alive.why, None, "round {round}: the living peer; {}", counters(&load.context));
        let held = || Held::now(domain);
        let mut now = held();
        // What is left of a dead peer's link goes in a turn or two.
        while before.as_ref().is_some_and(|b| now.exceeds(b)) {
            load.pump();
            assert!(ran.tick() < PATIENCE, "round {round}: {before:?}, and now {now:?}");
            now = held();
        }
        // At a shared address closed paths keep sockets, but only so many however many rounds there are.
        let descriptors = match before {
            _ if !domain.starts_with(AT) => now.descriptors,
            Some(before) => before.descriptors,
            None => now.descriptors + CLOSED_PATHS,
        };
        before = Some(Held { descriptors, ..now });
    }
    let fetched = load.context.counter("process_fetches").unwrap_or(0);
    assert_eq!(fetched > 0, domain.starts_with(OWN), "{}", counters(&load.context));
    load.peers[living].as_ref().unwrap().check_written(&pattern);
    say(format!("{rounds} peers killed ({progress}); the last request to one ended within {longest:?}"));
    assert!(longest < A_SECOND, "{longest:?}");
    steady.kill();
}

#[test]
fn killed_peers_fail_their_own_requests_within_a_second_and_nobody_elses() {
    kill(&domain(), 50, Progress::Adaptive, 1);
}

#[test]
fn killed_peers_whose_memory_is_fetched_fail_their_own_requests_and_nobody_elses() {
    kill(&own_domain(), 50, Progress::Adaptive, 2);
}

#[test]
fn killed_peers_at_the_same_address_fail_their_own_requests_and_nobody_elses() {
    kill(&shared_address(), 50, Progress::Adaptive, 3);
}

#[test]
#[ignore = "needs minutes"]
fn a_thousand_killed_peers_fail_their_own_requests_and_nobody_elses() {
    let seed = std::env::var("HCA_KILL_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("HCA_KILL_SEED={seed}");
    for (progress, rounds) in [(Progress::Inline, 334), (Progress::Adaptive, 333), (Progress::Thread, 333)] {
        kill(&domain(), rounds, progress, seed);
        kill(&own_domain(), rounds / 2, progress, seed);
        kill(&shared_address(), rounds, progress, seed);
    }
}
