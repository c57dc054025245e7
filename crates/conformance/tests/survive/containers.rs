//! Containers that share a folder and nothing else: namespaces for users, processes, mounts and networks of each one's
//! own.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use hca_core::WcStatus;
use hca_fabric::{ProcessVm, ShmFabric, ShmOptions};
use softhca::Progress;

use crate::bulk::Bulk;
use crate::limits::chain;
use crate::load::{Load, counters, pattern};
use crate::namespaces::{Container, Shared, Walls, me};
use crate::{ROLES, domain, system};
use hca_conformance::Ran;
use test_support::roles::{Helper, hear, say};

/// When something that has to come is despaired of.
const PATIENCE: Duration = Duration::from_secs(20);
/// A user that is no other process's.
const SOMEBODY: u32 = 64_201;
const SOMEBODY_ELSE: u32 = 64_202;
/// What the system calls users that a user namespace does not map.
const NOBODY: u32 = 65_534;
/// Memory of a process that the system takes back behind its sockets.
const BALLAST: usize = 128 << 20;

fn options(folder: &str) -> ShmOptions {
    ShmOptions { ring_bytes: 1 << 18, folder: Some(folder.into()), ..ShmOptions::default() }
}

fn open(domain: &str, folder: &str, any_user: bool) -> Result<ShmFabric, String> {
    ShmFabric::open(domain, &ShmOptions { any_user, ..options(folder) }).map_err(|e| e.to_string())
}

/// A child's part: `WALLS WHAT DOMAIN FOLDER ARGUMENT`.
pub(crate) fn child(argument: &str) {
    let words: Vec<&str> = argument.split(' ').collect();
    let [walls, what, domain, folder, argument] = words[..] else { panic!("{argument}") };
    assert_eq!(std::process::id() == 1, walls == "All", "the first process of its container");
    match what {
        "bulk" => bulk(domain, folder, argument),
        "load" => load(domain, folder, argument),
        "open" => say(open(domain, folder, argument == "any").err().unwrap_or_else(|| "it opens".into())),
        "refuse" => refuse(domain, folder),
        "shut" => shut(domain, folder),
        _ => panic!("no part {what}"),
    }
}

/// Exchanges messages with a peer: `MEMORY,USERS,UNTIL`. The memory is the library's, or the process's own, which may
/// be one that nobody may read (`hidden`), or that lets itself be read (`asks`).
fn bulk(domain: &str, folder: &str, argument: &str) {
    let words: Vec<&str> = argument.split(',').collect();
    let [memory, users, until] = words[..] else { panic!("{argument}") };
    if memory == "hidden" {
        system::hide().unwrap();
    }
    let process_vm = if memory == "asks" { ProcessVm::Any } else { ProcessVm::Yes };
    let options = ShmOptions { any_user: users == "any", process_vm, ..options(folder) };
    let fabric = ShmFabric::open(domain, &options).expect("shared memory can be had");
    let until = (until != "-").then_some(until);
    say(Bulk::open(fabric, memory != "library").exchange_as_told(until));
}

/// Keeps its queue pairs to a peer full until that is gone (`stay`), or leaves (`leave`) when it is told.
fn load(domain: &str, folder: &str, argument: &str) {
    let mut load =
        Load::on(open(domain, folder, false).expect("shared memory can be had"), Progress::Adaptive);
    let ballast = hca_fabric::SharedPages::alloc(BALLAST);
    if argument.contains("own") {
        load = load.on_own_memory();
    }
    let (peer, line) = load.invite();
    say(line);
    load.connect(peer, &hear());
    say("connected");
    hear();
    let mut ran = Ran::new();
    while load.peers[peer].as_ref().unwrap().done < 300 {
        load.pump();
        assert!(ran.tick() < PATIENCE, "{}", counters(&load.context));
    }
    assert_eq!(load.peers[peer].as_ref().unwrap().why, None);
    say("under load");
    if argument.contains("leave") {
        let told = std::thread::spawn(hear);
        while !told.is_finished() {
            load.pump();
        }
        load.peers[peer].as_ref().unwrap().check_written(&pattern());
        load.forget(peer);
        drop((load, ballast));
        say("left");
        return;
    }
    while !load.peers[peer].as_ref().unwrap().is_over() {
        load.pump();
    }
    let gone = load.peers[peer].as_ref().unwrap();
    gone.check_written(&pattern());
    say(format!("{:?} {}", gone.why.unwrap().1, counters(&load.context)));
    // It goes on to look at its sockets, until it is told to go.
    hear();
    drop((load, ballast));
    say("gone");
}

/// Is called by another user's process, and calls it.
fn refuse(domain: &str, folder: &str) {
    let mut load = Load::on(open(domain, folder, false).expect("shared memory can be had"), Progress::Inline);
    let (peer, line) = load.invite();
    say(line);
    let line = hear();
    let mut ran = Ran::new();
    while load.context.counter("peers_refused") == Some(0) {
        load.context.turn();
        assert!(ran.tick() < PATIENCE, "{}", counters(&load.context));
    }
    say(chain(&load.try_connect(peer, &line).expect_err("it is another user's")));
    say(counters(&load.context));
}

/// Connects to a socket that it may not connect to.
fn shut(domain: &str, folder: &str) {
    let load = || Load::on(open(domain, folder, false).unwrap(), Progress::Inline);
    let (mut a, mut b) = (load(), load());
    let ((i, _), (_, theirs)) = (a.invite(), b.invite());
    for socket in std::fs::read_dir(folder).unwrap() {
        std::fs::set_permissions(socket.unwrap().path(), Permissions::from_mode(0o000)).unwrap();
    }
    say(chain(&a.try_connect(i, &theirs).expect_err("it may not connect")));
}

/// A process in a container, in its part of these tests; none, and why, where there can be none.
fn start(container: &Container, shared: &Shared, part: &str, domain: &str, argument: &str) -> Option<Helper> {
    let folder = container.path(shared);
    let argument = format!("{:?} {part} {domain} {} {argument}", container.walls, folder.display());
    match Helper::start_as(ROLES, "contained", &argument, |command| container.around(command, shared)) {
        Ok(child) => Some(child),
        Err(e) => {
            println!("skipped: no container can be made: {e}");
            None
        }
    }
}

/// The same user's containers, who is called otherwise in each and finds the folder elsewhere.
fn containers(outer: u32) -> [Container; 2] {
    let walls = Walls::All;
    [(0, "here"), (1000, "over/there")].map(|(inner, place)| Container { walls, outer, inner, place })
}

/// A plain user: this one, or one that root can be.
fn plain_user() -> u32 {
    if me() == 0 { SOMEBODY } else { me() }
}

/// A number out of what was counted.
fn count(counters: &str, name: &str) -> u64 {
    let mut words = counters.split_whitespace().filter_map(|w| w.split_once('='));
    words.find(|w| w.0 == name).map_or(0, |w| w.1.parse().unwrap())
}

/// Has two exchange messages; what both have counted.
fn exchange(a: &mut Helper, b: &mut Helper) -> [String; 2] {
    let (to_b, to_a) = (a.line(), b.line());
    a.tell(&format!("a b {to_a}"));
    b.tell(&format!("b a {to_b}"));
    assert_eq!([a.line(), b.line()], ["connected", "connected"]);
    a.tell("begin");
    b.tell("begin");
    [a.line(), b.line()]
}

fn ends_well(mut child: Helper) {
    assert!(child.child.wait().unwrap().success());
}

/// What two processes of a plain user's exchange, each with its walls and its argument; their counters.
fn between(walls: [Walls; 2], arguments: [&str; 2]) -> Option<[String; 2]> {
    let (domain, user) = (domain(), plain_user());
    let shared = Shared::new(&domain, user, 0o700);
    let [mut one, mut other] = containers(user);
    [one.walls, other.walls] = walls;
    let mut a = start(&one, &shared, "bulk", &domain, arguments[0])?;
    let mut b = start(&other, &shared, "bulk", &domain, arguments[1])?;
    let counted = exchange(&mut a, &mut b);
    ends_well(a);
    ends_well(b);
    assert_eq!(shared.files(), [""; 0]);
    Some(counted)
}

/// Why two users can't be had, if so.
fn one_user_only() -> bool {
    if me() != 0 {
        println!("skipped: needs root, to be two users");
    }
    me() != 0
}

#[test]
fn a_container_refuses_another_users_process_in_either_direction() {
    if one_user_only() {
        return;
    }
    let domain = domain();
    let shared = Shared::new(&domain, SOMEBODY, 0o700);
    let container = Container { walls: Walls::All, outer: SOMEBODY, inner: 0, place: "here" };
    let Some(mut inside) = start(&container, &shared, "refuse", &domain, "-") else { return };
    // Root outside, who may use anybody's folder.
    let outside = open(&domain, shared.folder().to_str().unwrap(), true).unwrap();
    let mut load = Load::on(outside, Progress::Inline);
    let (peer, line) = load.invite();
    let theirs = inside.line();
    load.connect(peer, &theirs);
    inside.tell(&line);
    let mut ran = Ran::new();
    while !load.peers[peer].as_ref().unwrap().is_over() {
        load.pump();
        assert!(ran.tick() < PATIENCE, "{}", counters(&load.context));
    }
    assert_eq!(load.peers[peer].as_ref().unwrap().why.unwrap().1, WcStatus::RetryExceeded);
    assert_eq!(load.peers[peer].as_ref().unwrap().done, 0);
    assert_eq!(load.context.counter("peers_refused_us"), Some(1));
    let why = inside.line();
    assert!(why.contains("another user") && why.contains("users=any"), "{why}");
    let counted = inside.line();
    assert_eq!((count(&counted, "peers_linked"), count(&counted, "completions")), (0, 0), "{counted}");
    ends_well(inside);
}

#[test]
fn containers_of_two_users_that_admit_any_exchange_messages_and_are_granted_nothing() {
    if one_user_only() {
        return;
    }
    // Inside, both are root; or both have the number that unmapped users have.
    for inner in [0, NOBODY] {
        let domain = domain();
        let shared = Shared::new(&domain, 0, 0o777);
        let one = Container { walls: Walls::All, outer: SOMEBODY, inner, place: "here" };
        let other = Container { walls: Walls::All, outer: SOMEBODY_ELSE, inner, place: "there" };
        for memory in ["library,any,-", "own,any,-"] {
            let Some(mut a) = start(&one, &shared, "bulk", &domain, memory) else { return };
            let Some(mut b) = start(&other, &shared, "bulk", &domain, memory) else { return };
            for counted in exchange(&mut a, &mut b) {
                assert_eq!(count(&counted, "peers_linked"), 1, "{inner}: {counted}");
                let shown = ["grants_given", "grants_mapped", "processes_fetched_from"];
                assert_eq!(shown.map(|name| count(&counted, name)), [0; 3], "{inner}: {counted}");
            }
            ends_well(a);
            ends_well(b);
            assert_eq!(shared.files(), [""; 0]);
        }
    }
}

/// What a process in a container says of opening an adapter in the folder of some user.
fn opening(container: Container, owner: u32, users: &str) -> Option<String> {
    let domain = domain();
    let shared = Shared::new(&domain, owner, 0o755);
    let mut child = start(&container, &shared, "open", &domain, users)?;
    let said = child.line();
    ends_well(child);
    Some(said)
}

#[test]
fn a_user_whose_number_every_other_user_has_takes_nobody_for_himself() {
    let container = Container { walls: Walls::All, outer: plain_user(), inner: NOBODY, place: "here" };
    let Some(said) = opening(container, plain_user(), "own") else { return };
    assert!(said.contains("65534") && said.contains("users=any"), "{said}");
    assert_eq!(opening(container, plain_user(), "any").unwrap(), "it opens");
}

#[test]
fn a_socket_that_may_not_be_connected_to_is_not_taken_for_nobodys() {
    let (domain, user) = (domain(), plain_user());
    let shared = Shared::new(&domain, user, 0o700);
    // Who is not root has no rights beyond those of the file.
    let container = Container { walls: Walls::All, outer: user, inner: 1000, place: "here" };
    let Some(mut child) = start(&container, &shared, "shut", &domain, "-") else { return };
    let said = child.line();
    assert!(said.contains("connecting to a peer's socket") && said.contains("Permission denied"), "{said}");
    ends_well(child);
}

#[test]
fn a_container_does_not_use_another_users_folder() {
    if one_user_only() {
        return;
    }
    let container = Container { walls: Walls::All, outer: SOMEBODY_ELSE, inner: 0, place: "here" };
    let Some(said) = opening(container, SOMEBODY, "own") else { return };
    assert!(said.contains("belongs to another user"), "{said}");
    let said = opening(container, SOMEBODY, "any").unwrap();
    assert!(said.contains("binding a socket") && said.contains("Permission denied"), "{said}");
}

#[test]
fn containers_that_share_a_folder_reach_each_others_memory() {
    let Some(counted) = between([Walls::All; 2], ["library,own,grants_mapped"; 2]) else { return };
    for counted in counted {
        assert_eq!(count(&counted, "peers_linked"), 1, "{counted}");
        assert!(count(&counted, "grants_mapped") > 0, "{counted}");
    }
}

/// Neither side reads the other one's process: all goes by the ring, and is counted.
fn by_the_ring(walls: [Walls; 2]) {
    let Some(counted) = between(walls, ["own,own,processes_not_readable"; 2]) else { return };
    for counted in counted {
        let names = ["processes_not_readable", "processes_fetched_from", "process_fetches"];
        assert_eq!(names.map(|name| count(&counted, name)), [1, 0, 0], "{walls:?}: {counted}");
    }
}

#[test]
fn processes_without_a_number_here_are_not_read_and_their_memory_goes_by_the_ring() {
    by_the_ring([Walls::All, Walls::All]);
}

#[test]
fn a_process_in_a_container_and_one_outside_do_not_read_each_other_and_go_by_the_ring() {
    by_the_ring([Walls::None, Walls::All]);
}

#[test]
fn processes_of_other_user_namespaces_are_not_read_and_their_memory_goes_by_the_ring() {
    by_the_ring([Walls::Users, Walls::Users]);
}

#[test]
fn a_process_that_may_not_be_read_reads_and_its_own_memory_goes_by_the_ring() {
    let arguments = ["hidden,own,processes_fetched_from", "own,own,processes_not_readable"];
    let yama = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    if yama.is_ok_and(|scope| scope.trim() != "0") {
        println!("skipped: Yama lets no process read another one here");
        return;
    }
    let Some([hidden, other]) = between([Walls::None; 2], arguments) else { return };
    let names = ["processes_not_readable", "processes_fetched_from"];
    assert_eq!(names.map(|name| count(&hidden, name)), [0, 1], "{hidden}");
    assert_eq!(names.map(|name| count(&other, name)), [1, 0], "{other}");
    assert!(count(&hidden, "process_fetches") > 0, "{hidden}");
    assert_eq!(count(&other, "process_fetches"), 0, "{other}");
}

#[test]
fn where_yama_forbids_it_processes_are_read_that_ask_for_it_only() {
    let yama = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if yama.trim() != "1" {
        println!("skipped: needs Yama with ptrace_scope 1; it is {yama:?} here");
        return;
    }
    let Some(counted) = between([Walls::None; 2], ["own,own,processes_not_readable"; 2]) else { return };
    for counted in counted {
        assert_eq!(count(&counted, "process_fetches"), 0, "{counted}");
    }
    let Some(counted) = between([Walls::None; 2], ["asks,own,processes_fetched_from"; 2]) else { return };
    for counted in counted {
        assert!(count(&counted, "process_fetches") > 0, "{counted}");
    }
}

/// Puts two containers under load, and has one of them end; how the other one's requests ended, and what it counted by
/// then.
fn end(memory: &str, kill: bool) -> Option<String> {
    let (domain, user) = (domain(), plain_user());
    let shared = Shared::new(&domain, user, 0o700);
    let [first, second] = containers(user);
    let stay = format!("{memory},stay");
    let mut a = start(&first, &shared, "load", &domain, &stay)?;
    let mut b = start(
        &second,
        &shared,
        "load",
        &domain,
        &format!("{memory},{}", if kill { "stay" } else { "leave" }),
    )?;
    let (to_b, to_a) = (a.line(), b.line());
    a.tell(&to_a);
    b.tell(&to_b);
    for child in [&mut a, &mut b] {
        assert_eq!(child.line(), "connected");
        child.tell("begin");
    }
    assert_eq!([a.line(), b.line()], ["under load", "under load"]);
    assert_eq!(shared.files().len(), 2);
    if kill {
        b.kill();
    } else {
        b.tell("leave");
        assert_eq!(b.line(), "left");
        ends_well(b);
    }
    let over = a.line();
    let mut ran = Ran::new();
    while shared.files().len() > 1 {
        assert!(ran.tick() < PATIENCE, "left over: {:?}", shared.files());
        std::thread::yield_now();
    }
    a.tell("go");
    assert_eq!(a.line(), "gone");
    ends_well(a);
    assert_eq!(shared.files(), [""; 0]);
    Some(over)
}

/// The news of its end ended them, and not the patience with the silent.
fn ended_by_the_news(over: &str) {
    assert!(over.starts_with("RetryExceeded "), "{over}");
    // Who connects to it once more, while the system has not closed its listening socket, is told once more.
    assert!(count(over, "peers_gone") > 0, "{over}");
}

#[test]
fn a_container_that_is_killed_fails_its_peers_requests_and_leaves_nothing() {
    for memory in ["library", "own"] {
        let Some(over) = end(memory, true) else { return };
        ended_by_the_news(&over);
    }
}

#[test]
fn a_container_that_leaves_fails_its_peers_requests_and_leaves_nothing() {
    for memory in ["library", "own"] {
        let Some(over) = end(memory, false) else { return };
        ended_by_the_news(&over);
    }
}
