//! One address for several processes of which some are killed, stopped, poor or strangers.
//!
//! Invariants:
//! 1. A forked child of a process with threads makes system calls only.
#![allow(unsafe_code)] // `fork`

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::LazyLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Clock};

use hca_core::Instant;
use hca_fabric::{Fabric, OpenError, RawFabric, RawOptions, TxBatch, UdpFabric};
use rustix::event::epoll;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketType,
};
use test_support::namespaces::Namespace;
use test_support::random::Rng;
use test_support::roles::{Helper, hear, role, say};

use crate::raw::{once_free, over_wire};
use crate::share::{REQ, first, join, management, options, send, slot, to_slot};
use crate::suite::{BUDGET, at_free_address, av, counter, of, put, receive};

/// The test that other processes run.
const MEMBER: &str = "share_survive::a_member";

/// Receives until the fabric is so far.
fn receive_all_for(fabric: &mut UdpFabric, is_so_far: impl Fn(&UdpFabric) -> bool) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    let deadline = Clock::now() + Duration::from_secs(20);
    while !is_so_far(fabric) {
        assert!(Clock::now() < deadline, "{} packets came", got.len());
        fabric.recv(time(), BUDGET, &mut |p| got.push(p.bytes.to_vec()));
    }
    got
}

/// Sends packets of one length to several slots by one train, as a sender that knows nothing of slots.
fn send_as_one_train(from: &mut UdpFabric, at: IpAddr, packets: &[Vec<u8>]) {
    let path = from.open_path(&av(at)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 16);
    packets.iter().for_each(|_| put(&mut batch, path, &packets[0]));
    let train = batch.trains()[0];
    for (room, packet) in batch.bytes_mut(&train).chunks_mut(train.segment).zip(packets) {
        room[..packet.len()].copy_from_slice(packet);
    }
    from.send(time(), &mut batch);
    from.close_path(path);
}

/// The time, which neighbours of raw Ethernet need: they are looked up again, and packets wait for them.
fn time() -> Instant {
    static START: LazyLock<Clock> = LazyLock::new(Clock::now);
    Instant::from_nanos(START.elapsed().as_nanos() as u64)
}

/// Whether the member in a slot answers, which has the address of `a`.
fn answers(a: &mut dyn Fabric, number: u32, to: u8) -> bool {
    let at = a.attr().local;
    answers_from(a, at, number, to)
}

/// Whether the member in a slot of an address answers. It is asked again: a flow of a new process may have the port of
/// one that is gone, and is known again after some packets.
fn answers_from(a: &mut dyn Fabric, at: IpAddr, number: u32, to: u8) -> bool {
    let mut ping = to_slot(to, number, 64);
    ping[12..16].copy_from_slice(&(u32::from(a.attr().qpn_slot.unwrap_or(0)) << 16 | 9).to_be_bytes());
    ping[16..20].copy_from_slice(&number.to_be_bytes());
    let deadline = Clock::now() + Duration::from_secs(20);
    let path = a.open_path(&av(at)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 12);
    while Clock::now() < deadline {
        put(&mut batch, path, &ping);
        let again = Clock::now() + Duration::from_millis(50);
        while Clock::now() < again {
            a.send(time(), &mut batch);
            let mut heard = false;
            a.recv(time(), BUDGET, &mut |p| heard |= p.bytes[16..20] == number.to_be_bytes());
            if heard {
                a.close_path(path);
                return true;
            }
            std::thread::yield_now();
        }
    }
    false
}

/// Members that are killed at any instant, others that come: each that lives gets its packets, and no others.
fn kills(rounds: usize, a: &mut dyn Fabric, at: IpAddr, begin: &dyn Fn() -> Helper) {
    let mut random = Rng::new(rounds as u64);
    let mut members: Vec<(Helper, Option<u8>)> = (0..5).map(|_| (begin(), None)).collect();
    for round in 0..rounds {
        let victim = random.below(members.len());
        let (member, known) = members.swap_remove(victim);
        // Some of them while they join.
        if known.is_some() || random.one_in(2) {
            member.kill();
        } else {
            members.push((member, known));
        }
        while members.len() < 5 {
            members.push((begin(), None));
        }
        for (i, (member, slot)) in members.iter_mut().enumerate() {
            // One is left to join while others are asked.
            if slot.is_none() && i > 0 {
                *slot = Some(member.line().parse().unwrap());
            }
            if let Some(slot) = *slot {
                assert!(
                    answers_from(a, at, (round * 8 + i) as u32, slot),
                    "round {round}: slot {slot} is silent"
                );
            }
        }
        let mut slots: Vec<_> = members.iter().filter_map(|m| m.1).chain(a.attr().qpn_slot).collect();
        slots.sort_unstable();
        assert!(slots.windows(2).all(|w| w[0] != w[1]), "round {round}: {slots:?}");
    }
    for (member, _) in members {
        member.kill();
    }
}

/// The same over UDP, asked by a member.
fn kills_over_udp(rounds: usize) {
    let mut a = first(209, 16);
    let at = a.attr().local;
    kills(rounds, &mut a, at, &|| Helper::start(MEMBER, "echo", &at.to_string(), None));
    assert_eq!((counter(&a, "strays_handed_on"), counter(&a, "strays_lost")), (0, 0));
}

/// The same on raw Ethernet, asked by the other end of the wire.
fn kills_over_raw(rounds: usize) {
    over_wire(1500, |wire| {
        let mut a = wire.within(0, || RawFabric::open("wire", &RawOptions::default())).unwrap();
        let at: IpAddr = "10.77.0.2".parse().unwrap();
        let argument = format!("{at} {}", a.attr().local);
        let begin = || wire.within(1, || Helper::start(MEMBER, "echo", &argument, None));
        kills(rounds, &mut a, at, &begin);
        assert_eq!(counter(&a, "icrc_errors"), 0);
        // No process holds the address any more.
        wire.within(1, || once_free(|| UdpFabric::open(at, &options(0))));
    });
}

#[test]
fn members_that_are_killed_are_missed_by_nobody() {
    kills_over_udp(20);
}

#[test]
#[ignore = "needs minutes"]
fn a_thousand_members_that_are_killed_are_missed_by_nobody() {
    kills_over_udp(1000);
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn members_on_raw_ethernet_that_are_killed_are_missed_by_nobody() {
    kills_over_raw(10);
}

#[test]
#[ignore = "needs root and a minute: Ethernet interfaces in network namespaces"]
fn a_hundred_members_on_raw_ethernet_that_are_killed_are_missed_by_nobody() {
    kills_over_raw(100);
}

#[test]
fn after_all_were_killed_at_once_the_next_one_begins_anew() {
    let a = first(210, 8);
    let at = a.attr().local;
    let mut members: Vec<_> = (0..4).map(|_| Helper::start(MEMBER, "echo", &at.to_string(), None)).collect();
    for member in &mut members {
        member.line();
    }
    drop(a);
    for member in &mut members {
        member.child.kill().unwrap();
    }
    for mut member in members {
        member.child.wait().unwrap();
    }
    // Another number of slots shows that the sockets are new ones.
    let mut b = join(at, 3).unwrap();
    assert!(b.attr().notes.iter().any(|n| n.1.contains("of 3:")), "{:?}", b.attr().notes);
    let mine = slot(&b);
    send(&mut b, at, &[to_slot(mine, 1, 64)]);
    assert_eq!(receive(&mut b, 1).len(), 1);
}

/// One member is stopped for this time, in which others join and talk.
fn one_stands_still(salt: u32, time: Duration) {
    let mut a = first(salt, 8);
    let at = a.attr().local;
    let start = || Helper::start(MEMBER, "echo", &at.to_string(), None);
    let slot_of = |member: &mut Helper| member.line().parse::<u8>().unwrap();
    let (mut still, mut beside) = (start(), start());
    let (still_slot, beside_slot) = (slot_of(&mut still), slot_of(&mut beside));
    let stop = |signal| {
        let pid = rustix::process::Pid::from_child(&still.child);
        rustix::process::kill_process(pid, signal).unwrap();
    };
    stop(rustix::process::Signal::STOP);
    let (mut number, end) = (0, Clock::now() + time);
    while number < 5 || Clock::now() < end {
        number += 1;
        // What comes for the member that is stopped waits, and is in nobody's way.
        send(&mut a, at, &[to_slot(still_slot, 0, 64)]);
        let mut joined = start();
        let slot = slot_of(&mut joined);
        for to in [beside_slot, slot] {
            assert!(answers(&mut a, number, to), "slot {to} is silent after {number} joins");
        }
        joined.kill();
    }
    // Where all are stopped, the error says so.
    beside.kill();
    drop(a);
    let refused = join(at, 8).err().expect("nobody answers");
    assert!(matches!(refused, OpenError::NoAnswer { .. }), "{refused}");
    assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
    stop(rustix::process::Signal::CONT);
    let mut a = join(at, 8).unwrap();
    assert!(answers(&mut a, 1_000_000, still_slot), "it goes on");
    still.kill();
}

#[test]
fn a_member_that_stands_still_keeps_nobody_from_joining_and_talking() {
    one_stands_still(211, Duration::ZERO);
}

#[test]
#[ignore = "needs minutes"]
fn a_member_that_stands_still_for_ten_seconds_keeps_nobody_from_joining_and_talking() {
    one_stands_still(221, Duration::from_secs(10));
}

#[test]
fn sixty_four_join_at_once() {
    let a = first(212, 64);
    let at = a.attr().local;
    drop(a);
    let mut members: Vec<_> =
        (0..64).map(|_| Helper::start(MEMBER, "echo", &format!("{at}"), None)).collect();
    let mut slots: Vec<u8> = members.iter_mut().map(|m| m.line().parse().unwrap()).collect();
    slots.sort_unstable();
    assert!(slots.windows(2).all(|w| w[0] != w[1]), "{slots:?}");
    for member in members {
        member.kill();
    }
}

/// How often the threads of a process that let others join went to sleep.
fn sleeps_of_server(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
    let servers = tasks.filter(|task| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "hca-share")
    });
    let sleeps = servers.map(|task| {
        let status = std::fs::read_to_string(task.join("status")).unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse::<u64>().unwrap()
    });
    sleeps.sum()
}

#[test]
fn a_join_wakes_few_of_the_processes_that_are_there() {
    const MEMBERS: u64 = 16;
    const JOINS: u64 = 10;
    let a = first(230, 32);
    let at = a.attr().local;
    let mut members: Vec<_> =
        (0..MEMBERS).map(|_| Helper::start(MEMBER, "echo", &at.to_string(), None)).collect();
    for member in &mut members {
        member.line();
    }
    let sleeps = || -> u64 { members.iter().map(|member| sleeps_of_server(member.child.id())).sum() };
    let before = sleeps();
    for _ in 0..JOINS {
        drop(join(at, 32).unwrap());
    }
    // One each; where that is slow, another one is asked.
    let woken = sleeps() - before;
    assert!(woken < JOINS * MEMBERS / 2, "{JOINS} joins woke {woken} of {MEMBERS} processes");
    members.into_iter().for_each(Helper::kill);
}

#[test]
fn a_process_without_descriptors_sleeps_while_another_one_waits_to_join_and_lets_it_in_once_there_are_some() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

    let a = first(231, 8);
    let at = a.attr().local;
    let IpAddr::V4(v4) = at else { panic!("{at}") };
    let mut member = Helper::start(MEMBER, "echo", &at.to_string(), None);
    member.line();
    // It is the only one that can answer.
    drop(a);
    let pid = member.child.id();
    let set = |current| {
        let limit = Rlimit { current, ..getrlimit(Resource::Nofile) };
        prlimit(Some(Pid::from_child(&member.child)), Resource::Nofile, limit).unwrap()
    };
    let (had, before) = (set(Some(1)), sleeps_of_server(pid));
    let waits = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    net::connect(&waits, &SocketAddrUnix::new_abstract_name(name_of(v4).as_bytes()).unwrap()).unwrap();
    // A thread that spins never goes to sleep.
    let deadline = Clock::now() + Duration::from_secs(20);
    while sleeps_of_server(pid) < before + 3 {
        assert!(Clock::now() < deadline, "the thread that lets others join spins");
        // Between two looks at the counters of the other process.
        std::thread::sleep(Duration::from_millis(10));
    }
    set(had.current);
    let mut watched = [rustix::event::PollFd::new(&waits, rustix::event::PollFlags::IN)];
    let patience = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut watched, Some(&patience)), Ok(1), "it is let in");
    member.kill();
}

/// The socket at which processes that join are accepted, as one that joins gets it, with all others.
fn sockets_of(at: Ipv4Addr) -> Vec<OwnedFd> {
    let socket = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    net::connect(&socket, &SocketAddrUnix::new_abstract_name(name_of(at).as_bytes()).unwrap()).unwrap();
    let (mut bytes, mut space) = ([0; 64], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))]);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    net::recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).unwrap();
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    rights.flatten().collect()
}

/// The name by which the processes of this user share an address.
fn name_of(at: Ipv4Addr) -> String {
    let uid = rustix::process::geteuid().as_raw();
    format!("hca-share/{uid}/{:032x}/0", at.to_ipv6_mapped().to_bits())
}

/// A thread that waits for processes that join, and does not answer: as one that is killed behind its wake-up.
fn silent(listener: &OwnedFd) -> JoinHandle<usize> {
    let waits = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let one = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
    epoll::add(&waits, listener, epoll::EventData::new_u64(0), one).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let silent = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
        let mut events = [epoll::Event { flags: one, data: epoll::EventData::new_u64(0) }];
        epoll::wait(&waits, &mut events, None).unwrap()
    });
    let status = format!("/proc/self/task/{}/status", told.recv().unwrap());
    // It may have been woken, and be gone.
    while std::fs::read_to_string(&status).is_ok_and(|status| !status.contains("State:\tS")) {
        std::thread::yield_now();
    }
    silent
}

#[test]
fn a_process_that_is_woken_and_does_not_answer_keeps_nobody_from_joining() {
    let mut member = first(216, 8);
    let at = member.attr().local;
    let IpAddr::V4(v4) = at else { panic!("{at}") };
    let sockets = sockets_of(v4);
    // The kernel wakes who has waited for the longest time: the silent one, once the member in front of it is gone. On a
    // busy machine the join of the member behind it may have woken it already.
    let silent = loop {
        let silent = silent(&sockets[0]);
        drop(std::mem::replace(&mut member, join(at, 8).unwrap()));
        if !silent.is_finished() {
            break silent;
        }
    };
    drop(join(at, 8).unwrap());
    assert_eq!(silent.join().unwrap(), 1);
}

#[test]
fn a_forked_child_keeps_no_socket_of_the_address() {
    let a = first(214, 4);
    let at = a.attr().local;
    let mut member = Helper::start(MEMBER, "forks", &at.to_string(), None);
    let child = rustix::process::Pid::from_raw(member.line().parse().unwrap()).unwrap();
    member.kill();
    drop(a);
    // The child lives, and the address is nobody's.
    rustix::process::test_kill_process(child).unwrap();
    drop(once_free(|| UdpFabric::open(at, &options(0))));
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn too_few_descriptors_are_named() {
    // The second is the first one at its address.
    let (a, b) = (first(213, 64), first(222, 64));
    let free = b.attr().local;
    drop(b);
    for at in [a.attr().local, free] {
        let mut member = Helper::start(MEMBER, "poor", &at.to_string(), None);
        let said = member.line();
        assert!(said.contains("ulimit -n"), "{said}");
        member.kill();
    }
    // The processes that are there have lost nothing, and a name that the one took is free.
    drop(join(a.attr().local, 64).unwrap());
    drop(join(free, 64).unwrap());
}

/// A user that is not this one.
const OTHER_USER: u32 = 65_534;

#[test]
#[ignore = "needs root: it starts a process of another user"]
fn another_user_gets_no_place_at_the_address() {
    let mut a = first(223, 8);
    let at = a.attr().local;
    let mut stranger = Helper::start(MEMBER, "joins", &at.to_string(), Some(OTHER_USER));
    let said = stranger.line();
    assert!(said.contains("address in use"), "{said}");
    stranger.kill();
    let mine = slot(&a);
    send(&mut a, at, &[to_slot(mine, 1, 64)]);
    assert_eq!(receive(&mut a, 1).len(), 1);
}

#[test]
#[ignore = "needs root: it starts a process of another user"]
fn another_user_who_takes_the_name_of_an_address_is_named() {
    let a = first(224, 8);
    let at = a.attr().local;
    drop(a);
    let IpAddr::V4(v4) = at else { panic!("{at}") };
    let mut stranger = Helper::start(MEMBER, "squats", &format!("{at} {}", name_of(v4)), Some(OTHER_USER));
    assert_eq!(stranger.line(), "it is mine");
    let refused = join(at, 8).err().expect("the name is taken");
    assert!(matches!(refused, OpenError::NameTaken { uid: OTHER_USER, .. }), "{refused}");
    assert!(refused.to_string().contains(&format!("user {OTHER_USER}")), "{refused}");
    stranger.kill();
    drop(join(at, 8).unwrap());
}

#[test]
#[ignore = "needs root: it starts a process of another user"]
fn another_user_who_takes_the_name_of_a_service_can_send_nothing() {
    const SERVICE: u32 = 0x0106_1d2f;
    let mut a = first(232, 8);
    let at = a.attr().local;
    let IpAddr::V4(v4) = at else { panic!("{at}") };
    a.desk().unwrap().read(true);
    let (name, mine) = (name_of(v4), slot(&a));
    let argument = format!("{at} {name}/service/{SERVICE:016x} {name}/slot/{mine}");
    let mut stranger = Helper::start(MEMBER, "forges", &argument, Some(OTHER_USER));
    assert_eq!(stranger.line(), "it is mine");
    send(&mut a, at, &[management(REQ, 1, [77, 0, 0, SERVICE])]);
    assert_eq!(receive_all_for(&mut a, |a| counter(a, "strays_handed_on") == 1), Vec::<Vec<u8>>::new());
    // The stranger knows what each message of a member has.
    stranger.tell("forge");
    assert_eq!(stranger.line(), "forged");
    // A member's message behind the forged one is taken.
    let mut b = join(at, 8).unwrap();
    let theirs = slot(&b);
    let mut sender = at_free_address(233, |addr| UdpFabric::open(addr, &options(0)));
    let packets = [to_slot(theirs, 2, 64), to_slot(mine, 3, 64)];
    send_as_one_train(&mut sender, at, &packets);
    receive_all_for(&mut b, |b| counter(b, "strays_handed_on") == 1);
    assert_eq!(receive_all_for(&mut a, |a| counter(a, "strays_got") > 0), packets[1..]);
    stranger.kill();
}

#[test]
#[ignore = "needs root: it makes a network namespace"]
fn members_outlive_the_maker_of_their_network_namespace() {
    let at = "127.0.0.77";
    let namespace = Namespace::new().unwrap();
    let [mut a, mut b, mut late] = namespace.within(|| {
        [("echo", at), ("asks", at), ("asks", at)].map(|(what, at)| Helper::start(MEMBER, what, at, None))
    });
    let slot = a.line();
    assert_eq!(b.line(), "ready");
    b.tell("join");
    b.line();
    assert_eq!(late.line(), "ready");
    // Only sockets and processes hold it from here on.
    drop(namespace);
    b.tell(&slot);
    assert_eq!(b.line(), "true");
    late.tell("join");
    let joined = late.line();
    assert!(joined != slot, "{joined}");
    late.tell(&slot);
    assert_eq!(late.line(), "true");
    [a, b, late].into_iter().for_each(Helper::kill);
}

#[test]
#[ignore = "needs another test to start it"]
fn a_member() {
    let Some((what, argument)) = role() else { return };
    let (at, name) = argument.split_once(' ').unwrap_or((&argument, ""));
    let at: IpAddr = at.parse().unwrap();
    match what.as_str() {
        "joins" => {
            say(join(at, 8).err().expect("the address is another user's"));
            hear();
            return;
        }
        "squats" => {
            // A name is one of sockets of a type.
            let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            let listener = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
            net::bind(&listener, &name).unwrap();
            net::listen(&listener, 1).unwrap();
            say("it is mine");
            hear();
            return;
        }
        "forges" => {
            let (own, to) = name.split_once(' ').unwrap();
            let [own, to] = [own, to].map(|n| SocketAddrUnix::new_abstract_name(n.as_bytes()).unwrap());
            let socket = net::socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
            net::bind(&socket, &own).unwrap();
            say("it is mine");
            assert_eq!(hear(), "forge");
            let mut message = [0; 8192];
            let (len, _) = net::recv(&socket, &mut message[..], RecvFlags::empty()).unwrap();
            net::sendto(&socket, &message[..len], net::SendFlags::empty(), &to).unwrap();
            say("forged");
            hear();
            return;
        }
        "asks" => {
            say("ready");
            assert_eq!(hear(), "join");
            let mut fabric = join(at, 64).unwrap();
            say(slot(&fabric));
            let to = hear().parse().unwrap();
            say(answers(&mut fabric, 1, to));
            hear();
            return;
        }
        _ => {}
    }
    if what == "poor" {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(40), ..limit }).unwrap();
        say(join(at, 64).err().expect("there is no room"));
        hear();
        return;
    }
    // On raw Ethernet frames to its own address do not come back: the asker has another one.
    let (mut fabric, asker): (Box<dyn Fabric>, _) = if name.is_empty() {
        (Box::new(join(at, 64).unwrap_or_else(|e| panic!("{e}"))), at)
    } else {
        let options = RawOptions { ip: Some(at), slots: 16, ..RawOptions::default() };
        let fabric = RawFabric::open("wire", &options).unwrap_or_else(|e| panic!("{e}"));
        (Box::new(fabric), name.parse().unwrap())
    };
    if what == "forks" {
        // SAFETY: (1)
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: (1). Should nobody end this process, the signal does.
            unsafe {
                libc::alarm(20);
                libc::pause();
                libc::_exit(0);
            }
        }
        say(child);
    }
    let own = slot(&*fabric);
    say(own);
    let path = fabric.open_path_of(&av(asker), of(7)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 20);
    // Until this process is killed, or the one that started it ends.
    loop {
        fabric.recv(time(), BUDGET, &mut |p| {
            assert_eq!(p.bytes[5], own, "another slot's packet");
            let to = u32::from_be_bytes(p.bytes[12..16].try_into().unwrap());
            let mut answer = p.bytes.to_vec();
            answer[4..8].copy_from_slice(&to.to_be_bytes());
            put(&mut batch, path, &answer);
        });
        // Packets that wait for the asker's hardware address are sent in turns.
        if batch.is_empty() && fabric.next_deadline().is_none() {
            let fd = fabric.wait_fd().unwrap();
            let mut watched = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let second = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
            let _ = rustix::event::poll(&mut watched, Some(&second));
            if std::os::unix::process::parent_id() == 1 {
                return;
            }
        }
        fabric.send(time(), &mut batch);
    }
}
