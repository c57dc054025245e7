//! Control groups with little memory: shared memory with a peer that has no memory left, or that the kernel kills for
//! that.

use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hca_conformance::Ran;
use hca_fabric::{SharedPages, ShmFabric, ShmOptions};
use softhca::Progress;

use crate::bulk::Bulk;
use crate::group::Group;
use crate::limits::{chain, works};
use crate::load::{Load, OWN, counters, pattern};
use crate::{domain, own_domain, peer, start};
use test_support::roles::{Helper, hear, say};

/// The time in which a survivor's requests to the dead end, as with any other death.
const A_SECOND: Duration = Duration::from_secs(1);
/// When something that has to come is despaired of.
const PATIENCE: Duration = Duration::from_secs(20);
/// What a process may have beyond what it took to get under way: page tables, and what the system counts by batches.
const SOME: u64 = 512 << 10;
/// What it may have before it comes to want memory.
const MORE: u64 = 16 << 20;
/// What it takes then, piece by piece.
const MEAL: usize = 64 << 20;
const BITE: usize = 64 << 10;

/// A child's part, in a group that it waits to be taken into: `WHAT ARGUMENT`.
pub(crate) fn child(argument: &str) {
    let (what, argument) = argument.split_once(' ').unwrap();
    say("waits");
    hear();
    match what {
        "bulk" => bulk(argument),
        "eater" => eater(argument),
        "lacking" => lacking(),
        _ => panic!("no part {what}"),
    }
}

fn bulk(domain: &str) {
    let options = ShmOptions { ring_bytes: 1 << 18, ..ShmOptions::default() };
    let fabric = ShmFabric::open(domain, &options).expect("shared memory can be had");
    let bulk = Bulk::open(fabric, domain.starts_with(OWN));
    say(bulk.exchange_as_told_twice());
}

/// Under load until it is told to eat, or killed.
fn eater(domain: &str) {
    let mut load = Load::open(domain, Progress::Inline);
    let (peer, line) = load.invite();
    say(line);
    load.connect(peer, &hear());
    say("connected");
    hear();
    let (hungry, mut full) = (AtomicBool::new(false), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            hear();
            hungry.store(true, Ordering::Relaxed);
        });
        loop {
            load.pump();
            assert_eq!(load.peers[peer].as_ref().unwrap().why, None);
            if hungry.load(Ordering::Relaxed) && full.len() * BITE < MEAL {
                // In the midst of its work, and on the thread that does it.
                full.push(vec![1_u8; BITE]);
                if full.len() * BITE == MEAL {
                    say("full");
                }
            }
        }
    });
}

/// Wants what it can't have.
fn lacking() {
    let domain = domain();
    let big = ShmOptions { ring_bytes: 64 << 20, ..ShmOptions::default() };
    let load = || Load::on(ShmFabric::open(&domain, &big).unwrap(), Progress::Inline);
    let (mut a, mut b) = (load(), load());
    let ((i, _), (_, theirs)) = (a.invite(), b.invite());
    say("ready");
    hear();
    let pages = SharedPages::alloc(64 << 20);
    say(pages.map_or_else(|e| chain(&e), |_| "there is memory".to_owned()));
    say(a.try_connect(i, &theirs).map_or_else(|e| chain(&e), |()| "it connects".to_owned()));
    hear();
    assert!(SharedPages::alloc(64 << 20).is_ok());
    works();
}

/// A group of its own for a child in its part, which waits there; none, and why, where there can be none.
fn grouped(part: &str, domain: &str) -> Option<(Group, Helper)> {
    let name = format!("{}.{part}", domain.trim_start_matches(OWN));
    match Group::new(&name) {
        Ok(group) => {
            let mut child = start("pressed", &format!("{part} {domain}"));
            group.take(&mut child);
            Some((group, child))
        }
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

fn ends_well(mut child: Helper) {
    assert!(child.child.wait().unwrap().success());
}

/// Two exchange messages; then one of them is given no more than it had so far, and they go on.
fn no_more_than_before(domain: &str) {
    let Some((group, mut pressed)) = grouped("bulk", domain) else { return };
    let mut other = start("pressed", &format!("bulk {domain}"));
    assert_eq!(other.line(), "waits");
    other.tell("go on");
    let (to_other, to_pressed) = (pressed.line(), other.line());
    pressed.tell(&format!("a b {to_pressed}"));
    other.tell(&format!("b a {to_other}"));
    for word in ["connected", "once"] {
        assert_eq!([pressed.line(), other.line()], [word, word]);
        if word == "once" {
            group.limit(group.peak() + SOME);
        }
        pressed.tell("go on");
        other.tell("go on");
    }
    let counted = [pressed.line(), other.line()];
    println!("{} bytes at most; {counted:?}", group.peak());
    assert_ne!(group.killed(), Some(1));
    ends_well(pressed);
    ends_well(other);
    group.remove();
}

#[test]
fn a_peer_whose_memory_is_no_more_than_it_had_takes_and_sends_long_messages() {
    no_more_than_before(&domain());
}

#[test]
fn a_peer_whose_own_memory_is_no_more_than_it_had_takes_and_sends_long_messages() {
    no_more_than_before(&own_domain());
}

/// An adapter under load to a child that is given so much more memory, and to another one.
struct Table {
    group: Group,
    eater: Helper,
    load: Load,
    eating: usize,
    steady: Helper,
    living: usize,
}

impl Table {
    fn lay(domain: &str) -> Option<Self> {
        let (group, mut eater) = grouped("eater", domain)?;
        let mut load = Load::open(domain, Progress::Adaptive);
        let (steady, living) = peer(&mut load, domain, Progress::Adaptive, "none");
        let (eating, line) = load.invite();
        let theirs = eater.line();
        eater.tell(&line);
        load.connect(eating, &theirs);
        assert_eq!(eater.line(), "connected");
        eater.tell("begin");
        let mut table = Self { group, eater, load, eating, steady, living };
        table.goes_on(eating, "under load");
        table.group.limit(table.group.usage() + MORE);
        Some(table)
    }
    fn done(&self, peer: usize) -> u64 {
        self.load.peers[peer].as_ref().unwrap().done
    }
    /// So does the traffic with a peer.
    fn goes_on(&mut self, peer: usize, when: &str) {
        let (goal, mut ran) = (self.done(peer) + 300, Ran::new());
        while self.done(peer) < goal {
            self.load.pump();
            assert!(ran.tick() < PATIENCE, "{when}: it stands still; {}", counters(&self.load.context));
        }
        let why = self.load.peers[peer].as_ref().unwrap().why;
        assert_eq!(why, None, "{when}; {}", counters(&self.load.context));
    }
    fn is_over(&self) -> bool {
        self.load.peers[self.eating].as_ref().unwrap().is_over()
    }
}

/// The system takes a peer that wants more memory than there is.
fn killed_for_want(domain: &str) {
    let Some(mut table) = Table::lay(domain) else { return };
    table.eater.tell("eat");
    let mut ran = Ran::new();
    let ended = loop {
        if let Some(status) = table.eater.child.try_wait().unwrap() {
            break status;
        }
        table.load.pump();
        assert!(ran.tick() < PATIENCE, "it lives on");
    };
    assert_eq!(ended.signal(), Some(9));
    assert!(table.group.killed().is_none_or(|n| n > 0), "nobody was killed for want of memory");
    let mut ran = Ran::new();
    while !table.is_over() {
        table.load.pump();
        assert!(ran.tick() < PATIENCE, "requests to the dead do not end");
    }
    assert!(ran.tick() < A_SECOND, "{:?}", ran.tick());
    table.load.peers[table.eating].as_ref().unwrap().check_written(&pattern());
    table.load.forget(table.eating);
    table.goes_on(table.living, "the living peer, after a death");
    table.load.peers[table.living].as_ref().unwrap().check_written(&pattern());
    // What it had, and what was mapped here of it, is in nobody's way.
    table.group.remove();
    table.steady.kill();
}

#[test]
fn a_peer_that_is_killed_for_want_of_memory_fails_its_own_requests_and_nobody_elses() {
    killed_for_want(&domain());
}

#[test]
fn a_peer_whose_memory_is_fetched_and_that_is_killed_for_want_fails_its_own_requests_and_nobody_elses() {
    killed_for_want(&own_domain());
}

#[test]
fn a_peer_that_waits_for_memory_holds_up_nobody_else_and_goes_on() {
    for domain in [domain(), own_domain()] {
        let Some(mut table) = Table::lay(&domain) else { return };
        if let Err(why) = table.group.spare() {
            table.eater.kill();
            table.steady.kill();
            return println!("skipped: {why}");
        }
        table.eater.tell("eat");
        let mut ran = Ran::new();
        while !table.group.is_wanting() {
            table.load.pump();
            assert!(ran.tick() < PATIENCE, "it has memory enough");
        }
        table.goes_on(table.living, "the other peer, while one waits for memory");
        table.group.lift();
        assert_eq!(table.eater.line(), "full");
        let eating = table.eating;
        table.goes_on(eating, "the one that has waited");
        table.load.peers[eating].as_ref().unwrap().check_written(&pattern());
        table.goes_on(table.living, "the other peer");
        table.eater.kill();
        table.group.remove();
        table.steady.kill();
    }
}

#[test]
fn where_a_group_has_no_memory_left_calls_say_so_and_work_later() {
    let Some((group, mut child)) = grouped("lacking", &domain()) else { return };
    assert_eq!(child.line(), "ready");
    if let Err(why) = group.spare() {
        child.kill();
        return println!("skipped: {why}");
    }
    group.limit(group.usage() + MORE);
    child.tell("now");
    let said = [child.line(), child.line()];
    for said in &said {
        assert!(said.contains("Cannot allocate memory"), "{said}");
    }
    group.lift();
    child.tell("again");
    assert_eq!(child.line(), "works");
    ends_well(child);
    group.remove();
}
