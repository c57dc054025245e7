//! Faults that programs over shared memory survive, at the level of verbs: peers that are killed or stopped, systems
//! that refuse, containers, and little memory. Each test starts processes of its own, which are this program again in a
//! role.
#![deny(unsafe_code)]

mod bulk;
mod containers;
mod group;
mod kills;
mod limits;
mod load;
mod namespaces;
mod own;
mod pressure;
mod spin;
mod stopped;
mod system;
mod torn;

use std::sync::atomic::{AtomicU32, Ordering};

use hca_fabric::{Fabric, UdpFabric, UdpOptions};
use load::Load;
use softhca::Progress;
use test_support::roles::{Helper, hear, role, say};

/// A domain that no other test uses.
fn domain() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("s{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A domain whose processes work on memory of their own.
fn own_domain() -> String {
    format!("{}{}", load::OWN, domain())
}

/// One address for all processes, which have shared memory with each other.
fn shared_address() -> String {
    let free = test_support::addresses::at_free(40, |a| UdpFabric::open(a, &UdpOptions::default()).ok());
    format!("{}{}", load::AT, free.attr().local)
}

/// The test that a child runs.
const ROLES: &str = "a_child_in_its_role";

fn start(role: &str, argument: &str) -> Helper {
    Helper::start(ROLES, role, argument, None)
}

#[test]
#[ignore = "needs another test to start it"]
fn a_child_in_its_role() {
    let Some((role, argument)) = role() else { return };
    match role.as_str() {
        "load" => under_load(&argument),
        "survivor" => kills::survivor(&argument),
        "limits" => limits::child(&argument),
        "contained" => containers::child(&argument),
        "pressed" => pressure::child(&argument),
        _ => panic!("no role {role}"),
    }
}

/// Keeps its queue pairs to the one that started it full, until it is killed. Requests may fail in `any` way, or in
/// `none`.
fn under_load(argument: &str) {
    let words: Vec<&str> = argument.split(' ').collect();
    let [domain, progress, ends] = words[..] else { panic!("{argument}") };
    let mut load = Load::open(domain, progress.parse().unwrap());
    let (peer, line) = load.invite();
    say(line);
    load.ends = if ends == "any" { stopped::ANY_END } else { &[] };
    load.connect(peer, &hear());
    say("connected");
    hear();
    while !load.peers[peer].as_ref().unwrap().is_over() {
        load.pump();
        std::thread::yield_now();
    }
    say("over");
    hear();
}

/// A child under load that is connected to `load`, and the peer that it is there. Its requests may fail in `any` way,
/// or in `none`.
fn peer(load: &mut Load, domain: &str, progress: Progress, ends: &str) -> (Helper, usize) {
    let mut child = start("load", &format!("{domain} {progress} {ends}"));
    let (index, line) = load.invite();
    let theirs = child.line();
    child.tell(&line);
    load.connect(index, &theirs);
    assert_eq!(child.line(), "connected");
    child.tell("begin");
    (child, index)
}
