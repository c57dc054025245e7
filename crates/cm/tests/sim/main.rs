//! Two machines in virtual time, on a channel that loses, doubles, delays and reorders datagrams, with peers that die
//! at any moment and with garbage. One seed makes one run. After each run both sides agree about each connection, no
//! private data is changed, and nothing is left.
//!
//! `CM_SEEDS` is the number of runs; `CM_SEED` is the one seed to run, whose messages are printed.

mod world;

use test_support::seeds::{number, seeds};
use world::{Plan, World};

fn run(plan: Plan, default: u64) {
    let (one, mut count) = (number("CM_SEED"), 0);
    let mut totals = [0; 4];
    for seed in seeds(one, 0, number("CM_SEEDS").unwrap_or(default)) {
        let talk = one.is_some();
        count += 1;
        let done = std::panic::catch_unwind(|| World::new(seed, plan, talk).run());
        let Ok(done) = done else { panic!("{plan:?}: seed {seed} fails; CM_SEED={seed} shows its messages") };
        for (total, n) in totals.iter_mut().zip(done) {
            *total += n;
        }
    }
    let [asked, established, resolved, restarts] = totals;
    println!(
        "{plan:?}: {count} seeds, {asked} requests, {established} established, {resolved} resolved, {restarts} restarts"
    );
    assert!(established > 0 && resolved > 0 && asked > established);
}

#[test]
fn both_sides_agree_on_a_network_that_loses_doubles_and_reorders() {
    run(Plan { deaths: false, garbage: false }, 400);
}

#[test]
fn whoever_is_left_ends_in_time_when_peers_die() {
    run(Plan { deaths: true, garbage: false }, 300);
}

#[test]
fn garbage_in_every_field_leaves_nothing_behind() {
    run(Plan { deaths: true, garbage: true }, 300);
}
