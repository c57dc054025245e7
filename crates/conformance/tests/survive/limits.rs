//! Systems with few resources: shared memory works nevertheless, or an error names the missing resource, and shared
//! memory works again when the resource is there. Each test runs in a process of its own.

use std::fs::File;
use std::io::Write;

use hca_conformance::Ran;
use hca_fabric::{Fabric, ShmFabric, ShmOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use softhca::Progress;
use test_support::filter;
use test_support::roles::say;

use crate::load::{Load, pattern};
use crate::{domain, own_domain, start, system};

/// Runs a child under a limit, and returns what it says.
fn under(limit: &str) -> Vec<String> {
    let mut child = start("limits", limit);
    let mut said = Vec::new();
    loop {
        let line = child.line();
        if line == "end" {
            break;
        }
        said.push(line);
    }
    assert!(child.child.wait().unwrap().success(), "{limit}");
    said
}

/// The child's part.
pub(crate) fn child(limit: &str) {
    match limit {
        "memlock" => {
            set(Resource::Memlock, 64 << 10);
            works();
        }
        "huge pages" => {
            system::no_huge_pages().unwrap();
            works();
        }
        "process_vm" => {
            filter::refuse(&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev], libc::EPERM);
            say(notes("foreign memory"));
            works();
            fetches(None);
        }
        "process_vm, unknown" => {
            filter::refuse(&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev], libc::ENOSYS);
            say(notes("foreign memory"));
            fetches(None);
        }
        "process_vm, later" => {
            say(notes("foreign memory"));
            fetches(Some(libc::EPERM));
        }
        "pidfd" => {
            filter::refuse(&[libc::SYS_pidfd_open], libc::ENOSYS);
            fetches(None);
        }
        "membarrier" => {
            filter::refuse(&[libc::SYS_membarrier], libc::ENOSYS);
            say(notes("barrier"));
            works();
        }
        "memfd" => {
            filter::refuse(&[libc::SYS_memfd_create], libc::EPERM);
            say(refusal());
        }
        "descriptors, opening" => few_descriptors_to_open(),
        "descriptors, connecting" => few_descriptors_to_connect(),
        "descriptors, accepting" => no_descriptor_to_accept(),
        "memory" => no_memory_for_a_ring(),
        "shm full" => dev_shm(true),
        "shm absent" => dev_shm(false),
        _ => panic!("no limit {limit}"),
    }
    say("end");
}

fn set(resource: Resource, value: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(value), maximum }).unwrap();
}

fn open(domain: &str) -> Result<ShmFabric, String> {
    ShmFabric::open(domain, &ShmOptions { ring_bytes: 1 << 18, ..ShmOptions::default() })
        .map_err(|e| e.to_string())
}

/// What it says where it can't be opened.
fn refusal() -> String {
    open(&domain()).err().unwrap_or_else(|| "it opens".to_owned())
}

fn notes(about: &str) -> String {
    let fabric = open(&domain()).unwrap();
    let note = fabric.attr().notes.iter().find(|n| n.0 == about);
    note.map_or_else(|| "no note".to_owned(), |n| n.1.clone())
}

/// Every kind of request between two adapters, with all bytes checked.
pub(crate) fn works() {
    let domain = domain();
    let (mut a, mut b) = (Load::open(&domain, Progress::Inline), Load::open(&domain, Progress::Inline));
    connect(&mut a, &mut b);
    traffic(&mut a, &mut b);
    say("works");
}

/// Memory of the program's own goes by one copy until that is refused, and by two then.
fn fetches(refused_later: Option<i32>) {
    let domain = own_domain();
    let (mut a, mut b) = (Load::open(&domain, Progress::Inline), Load::open(&domain, Progress::Inline));
    connect(&mut a, &mut b);
    traffic(&mut a, &mut b);
    let counts = |a: &Load, b: &Load, name: &str| [a, b].map(|l| l.context.counter(name).unwrap());
    let until_both = |a: &mut Load, b: &mut Load, name: &str| {
        let mut ran = Ran::new();
        while counts(a, b, name).contains(&0) {
            traffic(a, b);
            assert!(ran.tick().as_secs() < 20, "{name} stays 0");
        }
    };
    if let Some(errno) = refused_later {
        until_both(&mut a, &mut b, "process_fetches");
        filter::refuse(&[libc::SYS_process_vm_readv], errno);
    }
    let before = counts(&a, &b, "process_fetches");
    until_both(&mut a, &mut b, "processes_not_readable");
    traffic(&mut a, &mut b);
    assert_eq!(counts(&a, &b, "process_fetches"), before);
    assert_eq!(counts(&a, &b, "processes_not_readable"), [1, 1]);
    say("works");
}

fn connect(a: &mut Load, b: &mut Load) {
    let ((i, ours), (j, theirs)) = (a.invite(), b.invite());
    a.connect(i, &theirs);
    b.connect(j, &ours);
}

fn traffic(a: &mut Load, b: &mut Load) {
    let mut ran = Ran::new();
    let done = |l: &Load| l.peers.iter().flatten().map(|p| p.done).sum::<u64>();
    let goal = (done(a) + 500, done(b) + 500);
    while done(a) < goal.0 || done(b) < goal.1 {
        a.pump();
        b.pump();
        assert!(ran.tick().as_secs() < 20, "it stands still");
    }
    for peer in a.peers.iter().chain(&b.peers).flatten() {
        assert!(!peer.dead.contains(&true));
        peer.check_written(&pattern());
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Takes all descriptors but so many.
fn all_but(free: usize) -> Vec<File> {
    let mut held: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    held.truncate(held.len() - free);
    held
}

/// What is missing is said, nothing is left of the attempt, and when there are descriptors again it works.
fn few_descriptors_to_open() {
    set(Resource::Nofile, 64);
    let before = descriptors();
    let mut refused = 0;
    for free in 0..8 {
        let held = all_but(free);
        let outcome = open(&domain());
        if let Err(why) = &outcome {
            assert!(
                why.contains("Too many open files") && why.contains("RLIMIT_NOFILE"),
                "{free} free: {why}"
            );
            refused += 1;
        }
        drop((held, outcome));
        assert_eq!(descriptors(), before, "{free} free");
    }
    say(format!("refused {}", refused > 0));
    works();
}

fn few_descriptors_to_connect() {
    set(Resource::Nofile, 64);
    let domain = domain();
    let (mut a, mut b) = (Load::open(&domain, Progress::Inline), Load::open(&domain, Progress::Inline));
    // A link takes two, for its ring and its socket.
    for free in 0..2 {
        let ((i, _), (j, theirs)) = (a.invite(), b.invite());
        let held = all_but(free);
        let why = chain(&a.try_connect(i, &theirs).expect_err("there are too few descriptors"));
        assert!(why.contains("Too many open files") && why.contains("RLIMIT_NOFILE"), "{free} free: {why}");
        assert_eq!(descriptors_left(), free);
        drop(held);
        a.forget(i);
        b.forget(j);
    }
    connect(&mut a, &mut b);
    traffic(&mut a, &mut b);
    say("works");
}

/// How many descriptors can be had.
fn descriptors_left() -> usize {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect::<Vec<_>>().len()
}

/// An error with all that caused it.
pub(crate) fn chain(e: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(e), |e| e.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The one that is called has no descriptor left: who calls waits, and is served when there are some.
fn no_descriptor_to_accept() {
    set(Resource::Nofile, 64);
    let domain = domain();
    let (mut a, mut b) = (Load::open(&domain, Progress::Inline), Load::open(&domain, Progress::Inline));
    let ((i, ours), (j, theirs)) = (a.invite(), b.invite());
    a.connect(i, &theirs);
    let held = all_but(0);
    let mut ran = Ran::new();
    while b.context.counter("accepts_failed") == Some(0) {
        a.pump();
        b.context.turn();
        assert!(ran.tick().as_secs() < 20, "it accepts without a descriptor");
    }
    drop(held);
    while b.context.counter("peers_linked") == Some(0) {
        a.pump();
        b.context.turn();
        assert!(ran.tick().as_secs() < 20, "it does not accept again");
    }
    b.connect(j, &ours);
    traffic(&mut a, &mut b);
    say("works");
}

fn no_memory_for_a_ring() {
    let domain = domain();
    let big = ShmOptions { ring_bytes: 64 << 20, ..ShmOptions::default() };
    let load = || Load::on(ShmFabric::open(&domain, &big).unwrap(), Progress::Inline);
    let (mut a, mut b) = (load(), load());
    let ((i, _), (j, theirs)) = (a.invite(), b.invite());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status
        .lines()
        .find_map(|l| l.strip_prefix("VmSize:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let unlimited = getrlimit(Resource::As);
    set(Resource::As, (kib.unwrap() + (16 << 10)) << 10);
    let refused = a.try_connect(i, &theirs).map_err(|e| chain(&e));
    setrlimit(Resource::As, unlimited).unwrap();
    say(refused.err().unwrap_or_else(|| "it connects".to_owned()));
    a.forget(i);
    b.forget(j);
    connect(&mut a, &mut b);
    traffic(&mut a, &mut b);
    say("works");
}

/// Memory files need no mounted file system.
fn dev_shm(there: bool) {
    let made = system::own_mounts().and_then(|()| {
        if there { system::mount_over(c"/dev/shm", 4096) } else { system::mount_over(c"/dev", 4096) }
    });
    if let Err(e) = made {
        say(format!("skipped: no mount namespace can be made: {e}"));
        return;
    }
    if there {
        let mut file = File::create("/dev/shm/full").unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }
    assert_eq!(std::path::Path::new("/dev/shm").exists(), there);
    works();
}

#[test]
fn little_memory_that_may_be_locked_is_enough() {
    assert_eq!(under("memlock"), ["works"]);
}

#[test]
fn huge_pages_are_not_needed() {
    assert_eq!(under("huge pages"), ["works"]);
}

#[test]
fn where_other_processes_memory_is_forbidden_it_works() {
    let said = under("process_vm");
    assert!(said[0].contains("ring") && said[0].contains("not permitted"), "{said:?}");
    assert_eq!(said[1..], ["works", "works"]);
}

#[test]
fn where_other_processes_memory_is_unknown_to_the_system_it_works_and_says_so() {
    let said = under("process_vm, unknown");
    assert!(said[0].contains("ring") && said[0].contains("not implemented"), "{said:?}");
    assert_eq!(said[1..], ["works"]);
}

#[test]
fn where_other_processes_memory_is_forbidden_one_day_it_goes_on() {
    let said = under("process_vm, later");
    // Yama may forbid what other processes want; this one reads itself.
    assert!(said[0].contains("one copy") || said[0].contains("ptrace_scope"), "{said:?}");
    assert_eq!(said[1..], ["works"]);
}

#[test]
fn where_processes_have_no_descriptors_it_works() {
    assert_eq!(under("pidfd"), ["works"]);
}

#[test]
fn without_barriers_of_the_system_it_works_and_says_what_that_costs() {
    let said = under("membarrier");
    assert!(said[0].contains("membarrier"), "{said:?}");
    assert_eq!(said[1..], ["works"]);
}

#[test]
fn without_memory_files_it_says_what_is_missing() {
    let said = under("memfd");
    assert!(said[0].contains("memfd_create"), "{said:?}");
}

#[test]
fn without_descriptors_opening_says_so_and_works_later() {
    assert_eq!(under("descriptors, opening"), ["refused true", "works"]);
}

#[test]
fn without_descriptors_connecting_says_so_and_works_later() {
    assert_eq!(under("descriptors, connecting"), ["works"]);
}

#[test]
fn without_descriptors_who_calls_is_accepted_later() {
    assert_eq!(under("descriptors, accepting"), ["works"]);
}

#[test]
fn without_memory_for_a_ring_connecting_says_so_and_works_later() {
    let said = under("memory");
    assert!(said[0].contains("Cannot allocate memory"), "{said:?}");
    assert_eq!(said[1..], ["works"]);
}

#[test]
fn a_full_dev_shm_does_not_matter() {
    unless_skipped(&under("shm full"));
}

#[test]
fn an_absent_dev_shm_does_not_matter() {
    unless_skipped(&under("shm absent"));
}

fn unless_skipped(said: &[String]) {
    if said[0].starts_with("skipped") {
        println!("{}", said[0]);
    } else {
        assert_eq!(said, ["works"]);
    }
}
