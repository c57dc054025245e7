//! Other processes: this test program again, in a role that the environment names.

use std::net::Ipv6Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::super::name::Domain;
use super::super::rounds::TICK;
use super::{outside, process, process_write, short, *};
use test_support::roles::{Helper, hear, role, say};

const NOBODY: u32 = 65_534;

pub(super) fn child(role: &str, argument: &str, uid: Option<u32>) -> Helper {
    Helper::start("shm::tests::children::a_child_in_its_role", role, argument, uid)
}

#[test]
#[ignore = "needs another test to start it"]
fn a_child_in_its_role() {
    let Some((role, argument)) = role() else { return };
    let argument = argument.as_str();
    match role.as_str() {
        "flood" => flood(argument),
        "echo" => echo(argument),
        "knock" => knock(argument),
        "squat" => squat(argument),
        "count" => count_descriptors(argument),
        "folder" => folder(argument),
        "forks" => forks(argument),
        "grab" => outside::grab(argument),
        "scribble" => outside::scribble(argument),
        "scrawl" => process_write::scrawl(argument),
        "dwell" => outside::dwell(argument),
        "stranger" => outside::stranger(argument),
        "lender" => process::lender(argument),
        "execs" => process::execs(argument),
        "successor" => process::successor(),
        "short" => short::short_of_descriptors_and_memory(argument),
        "tidy" => outside::tidy(argument),
        _ => panic!("no role {role}"),
    }
}

/// Sends what it can to the address that it is told, and takes what comes, until it is killed.
fn flood(domain: &str) {
    let mut f = open(domain);
    say(f.own.local);
    let path = f.open_path(&av(hear().parse().unwrap())).unwrap();
    let packets: Vec<_> = (0..64).map(|i| packet(i, 12 + (i as usize * 97) % 4000)).collect();
    loop {
        send(&mut f, path, &packets);
        recv(&mut f, &mut Vec::new());
        std::thread::yield_now();
    }
}

/// Sends every packet back until its input ends.
fn echo(domain: &str) {
    let mut f = open(domain);
    say(f.own.local);
    let path = f.open_path(&av(hear().parse().unwrap())).unwrap();
    loop {
        let mut got = Vec::new();
        if recv(&mut f, &mut got) == 0 {
            std::thread::yield_now();
        }
        for (_, p) in got {
            if p == packet(0, 12) {
                return;
            }
            send(&mut f, path, &[p]);
        }
    }
}

/// Connects to a socket of another user's.
fn knock(address: &str) {
    let (domain, address) = address.split_once(' ').unwrap();
    // As root's, whatever this user is.
    let domain = Domain::of_user(domain, 0);
    let connected = domain.connect(address.parse::<Ipv6Addr>().unwrap().into());
    say(connected.is_ok());
    hear();
}

/// Listens where another user's adapter would.
fn squat(address: &str) {
    let (domain, address) = address.split_once(' ').unwrap();
    let address: Ipv6Addr = address.parse().unwrap();
    let domain =
        if domain == "network" { Domain::of_network_of(0, address) } else { Domain::of_user(domain, 0) };
    let listener = domain.listen(address.into()).unwrap();
    say("listening");
    hear();
    drop(listener);
}

fn resources() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let maps = maps.lines().filter(|l| l.contains("hca-shm")).count();
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), maps)
}

/// Opens, meets, parts and counts what is left.
fn count_descriptors(domain: &str) {
    let before = resources();
    for _ in 0..3 {
        let (mut a, mut b) = (open(domain), open(domain));
        let to_b = a.open_path(&av(b.attr().local)).unwrap();
        let to_a = b.open_path(&av(a.attr().local)).unwrap();
        let mut got = [Vec::new(), Vec::new()];
        send(&mut a, to_b, &[packet(1, 40)]);
        send(&mut b, to_a, &[packet(1, 40)]);
        turn_until(&mut [&mut a, &mut b], &mut got, |g| g.iter().all(|g| g.len() == 1));
        while a.meetings.greetings + b.meetings.greetings > 0 {
            recv(&mut a, &mut got[0]);
            recv(&mut b, &mut got[1]);
        }
        let (fds, maps) = resources();
        // Listener, epoll, two pages and a socket each; two pages, and four mappings of the link each.
        assert_eq!((fds - before.0, maps - before.1), (10, 12));
        drop(b);
        let start = Clock::now();
        while a.links.len() > 0 {
            recv(&mut a, &mut got[0]);
            assert!(start.elapsed() < Duration::from_secs(10));
        }
        let (fds, maps) = resources();
        assert_eq!((fds - before.0, maps - before.1), (4, 2));
    }
    assert_eq!(resources(), before);
    say("clean");
}

/// Listens in a folder until it is killed.
fn folder(folder: &str) {
    let options = ShmOptions { folder: Some(folder.into()), ring_bytes: 1 << 16, ..ShmOptions::default() };
    let mut f = ShmFabric::open("kill", &options).unwrap();
    // The system frees this behind the sockets of links, and before the one that listens.
    let _ballast = crate::SharedPages::alloc(256 << 20).unwrap();
    say(f.own.local);
    let Ok(peer) = hear().parse::<Ipv6Addr>() else { return };
    let path = f.open_path(&av(peer.into())).unwrap();
    while f.link_of(path).is_none() {
        recv(&mut f, &mut Vec::new());
    }
    say("linked");
    hear();
}

/// Meets a peer, and forks a child for something else, which lives for some time.
#[allow(unsafe_code)] // `fork`
fn forks(domain: &str) {
    let mut f = open(domain);
    say(f.own.local);
    let path = f.open_path(&av(hear().parse::<Ipv6Addr>().unwrap().into())).unwrap();
    while f.link_of(path).is_none() {
        recv(&mut f, &mut Vec::new());
    }
    // SAFETY: the child makes two system calls.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the calls take numbers.
        unsafe {
            libc::sleep(60);
            libc::_exit(0);
        }
    }
    say(child);
    hear();
}

/// The child has copies of its parent's descriptors, which do not keep its sockets open.
#[test]
fn a_killed_peer_is_noticed_though_a_child_of_its_lives() {
    let d = domain();
    let mut a = open(&d);
    let mut helper = child("forks", &d, None);
    let address: Ipv6Addr = helper.line().parse().unwrap();
    let path = a.open_path(&av(address.into())).unwrap();
    helper.tell(&a.own.local.to_string());
    while a.link_of(path).is_none() {
        recv(&mut a, &mut Vec::new());
    }
    let its_child = rustix::process::Pid::from_raw(helper.line().parse().unwrap()).unwrap();
    helper.kill();
    let start = Clock::now();
    while a.links.len() > 0 && start.elapsed() < Duration::from_secs(10) {
        recv(&mut a, &mut Vec::new());
    }
    let gone = (a.links.len(), a.own.domain.connect(address.into()).is_err());
    rustix::process::kill_process(its_child, rustix::process::Signal::KILL).unwrap();
    assert_eq!(gone, (0, true), "its link, and its name");
}

/// Kills a child that sends and receives, at a time that differs each time. The survivor keeps its other peer.
fn kill_one_under_load(rounds: u32) {
    let d = domain();
    let mut a = open(&d);
    let mut steady = child("echo", &d, None);
    let to_steady = a.open_path(&av(steady.line().parse().unwrap())).unwrap();
    steady.tell(&a.own.local.to_string());
    let (mut sent, mut echoed) = (0_u32, 0_u32);
    for round in 0..rounds {
        let mut flooder = child("flood", &d, None);
        let address: Ipv6Addr = flooder.line().parse().unwrap();
        flooder.tell(&a.own.local.to_string());
        let to_flooder = a.open_path(&av(address.into())).unwrap();
        let mut flooder = Some(flooder);
        let mut flooded = 0_u32;
        let start = Clock::now();
        // Looks of this side since the peer's end, of those that are a tick apart, whatever time passed between them.
        let (mut looks, mut last_look) = (None, now());
        while looks.is_none() || a.links.find(address.into()).is_some() {
            assert!(start.elapsed() < Duration::from_secs(20), "round {round}: {sent} {echoed} {flooded}");
            if sent == echoed {
                sent += 1;
                assert_eq!(send(&mut a, to_steady, &[packet(sent, 60)]), 0);
            }
            if round % 2 == 0 {
                send(&mut a, to_flooder, &[packet(1, 1000), packet(2, 12)]);
            }
            let mut got = Vec::new();
            if let Some(looks) = looks.as_mut().filter(|_| now() > last_look + TICK) {
                *looks += 1;
                last_look = now();
            }
            if recv(&mut a, &mut got) == 0 {
                std::thread::yield_now();
            }
            for (src, p) in got {
                if src == IpAddr::from(address) {
                    // Some may be lost where this side was slow, but none is damaged.
                    let i = u32::from_le_bytes(*p.first_chunk().unwrap());
                    assert!(i < 64 && p == packet(i, 12 + (i as usize * 97) % 4000), "packet {i}");
                    flooded += 1;
                } else {
                    echoed += 1;
                    assert!(p == packet(echoed, 60), "echo {echoed}");
                }
            }
            if flooded > 500 + round * 37
                && let Some(f) = flooder.take()
            {
                f.kill();
                looks = Some(0);
            }
        }
        let looks = looks.unwrap();
        assert!(looks < 1000, "its end was noticed after {looks} looks, {TICK:?} apart");
        a.close_path(to_flooder);
    }
    assert_eq!(a.links.len(), 1);
    assert_eq!(u64::from(rounds), counter(&a, "peers_gone"));
    assert_eq!(counter(&a, "peers_dropped_garbage"), 0);
    send(&mut a, to_steady, &[packet(0, 12)]);
    steady.child.wait().unwrap();
}

#[test]
fn a_killed_peer_is_noticed_and_the_other_one_notices_nothing() {
    kill_one_under_load(50);
}

#[test]
#[ignore = "needs minutes"]
fn a_thousand_killed_peers_are_noticed() {
    kill_one_under_load(1000);
}

#[test]
fn nothing_is_left_of_adapters_that_met_and_parted() {
    let mut helper = child("count", &domain(), None);
    assert_eq!(helper.line(), "clean");
    assert!(helper.child.wait().unwrap().success());
}

pub(super) fn as_nobody(role: &str, argument: &str) -> Helper {
    child(role, argument, Some(NOBODY))
}

#[test]
#[ignore = "needs root: to be two users"]
fn another_users_process_is_turned_away() {
    let d = domain();
    let mut a = open(&d);
    let mut stranger = as_nobody("knock", &format!("{d} {}", a.own.local));
    assert_eq!(stranger.line(), "true");
    let start = Clock::now();
    while counter(&a, "peers_refused") == 0 {
        recv(&mut a, &mut Vec::new());
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    // It was not even listened to.
    assert_eq!((a.meetings.next_pending, a.links.len()), (0, 0));
    stranger.tell("done");
    stranger.child.wait().unwrap();
}

#[test]
#[ignore = "needs root: to be two users"]
fn a_name_that_another_user_has_taken_is_not_trusted() {
    let d = domain();
    let mut a = open(&d);
    let address: Ipv6Addr = "fd00::5".parse().unwrap();
    let mut squatter = as_nobody("squat", &format!("{d} {address}"));
    assert_eq!(squatter.line(), "listening");
    let refused = a.open_path(&av(address.into())).unwrap_err();
    assert!(matches!(refused, crate::PathError::ForeignUser { uid: NOBODY, .. }), "{refused}");
    assert!(refused.to_string().contains("users=any"));
    // Nor can the name be had.
    assert!(a.own.domain.listen(address.into()).is_err());
    squatter.tell("done");
    squatter.child.wait().unwrap();
}

fn sockets_in(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_folder_holds_the_sockets_of_the_living_only() {
    let folder = std::env::temp_dir().join(format!("hca-{}", domain()));
    std::fs::create_dir(&folder).unwrap();
    let mode = |m| std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(m)).unwrap();
    let options = ShmOptions { folder: Some(folder.clone()), ring_bytes: 1 << 16, ..ShmOptions::default() };
    mode(0o777);
    let refused = ShmFabric::open("kill", &options).err().unwrap().to_string();
    assert!(refused.contains("others may write"), "{refused}");
    mode(0o700);
    let mut a = ShmFabric::open("kill", &options).unwrap();
    let mut killed = child("folder", folder.to_str().unwrap(), None);
    let peer: Ipv6Addr = killed.line().parse().unwrap();
    killed.tell(&a.own.local.to_string());
    let path = a.open_path(&av(peer.into())).unwrap();
    while a.link_of(path).is_none() {
        recv(&mut a, &mut Vec::new());
    }
    assert_eq!(killed.line(), "linked");
    assert_eq!(sockets_in(&folder), 2);
    // Who had met it removes its socket, even where it still listened when its end was seen.
    outside::signal(&killed, rustix::process::Signal::KILL);
    let start = Clock::now();
    while a.links.len() > 0 || sockets_in(&folder) > 1 {
        recv(&mut a, &mut Vec::new());
        assert!(start.elapsed() < Duration::from_secs(20), "{} sockets are left", sockets_in(&folder));
    }
    killed.kill();
    // So does whoever opens an adapter there next.
    let mut killed = child("folder", folder.to_str().unwrap(), None);
    killed.line();
    killed.kill();
    assert_eq!(sockets_in(&folder), 2);
    let b = ShmFabric::open("kill", &options).unwrap();
    assert_eq!(sockets_in(&folder), 2);
    drop((a, b));
    assert_eq!(sockets_in(&folder), 0);
    std::fs::remove_dir(&folder).unwrap();
}
