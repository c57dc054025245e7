//! Adapters on addresses of the network, some of which are not theirs.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use hca_core::Qpn;

use super::super::access::Reach;
use super::super::hello::{self, Greeting, Kind};
use super::super::link::Stage;
use super::super::name::{Domain, Listener};
use super::super::peer::PeerName;
use super::super::sink::ShmSink;
use super::children::as_nobody;
use super::short::with_too_many_on_their_way;
use super::*;
use crate::{AutoFabric, OpenError, RxPacket, UdpFabric, UdpOptions};

/// A queue pair of a peer.
const PEER: Qpn = Qpn::new(0x05_0007);

/// The name of an adapter that has an address to itself.
fn alone(address: IpAddr) -> PeerName {
    PeerName::new(address, None)
}

/// An address that nobody has.
fn free<T>(open: impl Fn(IpAddr) -> Result<T, OpenError>) -> (IpAddr, T) {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [_, _, b, c] = std::process::id().wrapping_mul(40_503).to_be_bytes();
    for _ in 0..50 {
        let last = 2 + (NEXT.fetch_add(1, Ordering::Relaxed) % 250) as u8;
        let address = Ipv4Addr::new(127, 16 + b % 224, c, last).into();
        match open(address) {
            Ok(opened) => return (address, opened),
            Err(OpenError::InUse(_)) => {}
            Err(e) => panic!("{e}"),
        }
    }
    panic!("50 addresses in a row are in use");
}
fn auto_at(address: IpAddr) -> Result<AutoFabric, OpenError> {
    AutoFabric::open(address, &UdpOptions::default(), &small())
}
fn auto() -> (IpAddr, AutoFabric) {
    free(auto_at)
}
/// Opens an adapter where another one was just closed, with its name: a process that another test starts has copies of
/// all descriptors until it runs its program.
fn again(open: impl Fn() -> Result<AutoFabric, OpenError>) -> AutoFabric {
    let start = Clock::now();
    loop {
        match open() {
            Ok(mut f) => {
                if f.near().is_some() {
                    return f;
                }
            }
            Err(OpenError::InUse(_) | OpenError::SlotsTaken { .. }) => {}
            Err(e) => panic!("{e}"),
        }
        assert!(start.elapsed() < Duration::from_secs(20), "the address is not free");
        std::thread::yield_now();
    }
}
fn small() -> ShmOptions {
    ShmOptions { ring_bytes: 1 << 16, ..ShmOptions::default() }
}

/// Takes messages, with their senders.
#[derive(Default)]
struct Inbox(Vec<(PeerName, Vec<u8>)>);

impl ShmSink for Inbox {
    fn packet(&mut self, _: &RxPacket<'_>) {
        panic!("no packets are sent");
    }
    fn message(&mut self, from: PeerName, message: &[u8], _: Reach<'_>) -> usize {
        self.0.push((from, message.to_vec()));
        0
    }
}

/// A turn as an adapter takes it, at this time.
fn turn_at(now: Instant, f: &mut AutoFabric, inbox: &mut Inbox) {
    let budget = RxBudget { packets: 512, bytes: 1 << 18 };
    f.near().unwrap().recv_all(now, budget, inbox);
    f.recv(now, budget, &mut |p| panic!("a packet of {}", p.header.src));
}
fn turn(f: &mut AutoFabric, inbox: &mut Inbox) {
    turn_at(now(), f, inbox);
}

/// Sends a message; whether there was room.
fn say(now: Instant, shm: &mut ShmFabric, path: PathId, message: &[u8]) -> Option<bool> {
    shm.send_messages(now, path, |tx, _| {
        let room = tx.reserve(message.len());
        let there = room.is_some();
        if let Some(room) = room {
            room.copy_from_slice(message);
            tx.commit();
        }
        there
    })
}

fn messages_to(f: &mut AutoFabric, peer: IpAddr) -> Option<PathId> {
    f.open_messages(&av(peer), PEER).unwrap()
}

/// The counter of an adapter.
fn count(f: &AutoFabric, name: &str) -> u64 {
    let mut all = Vec::new();
    f.counters(&mut all);
    all.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no counter {name}")).value
}

/// Many processes that connect at once have many descriptors on their way.
#[test]
fn a_greeting_that_the_system_does_not_take_is_said_again() {
    let ((_, mut a), (there, mut b)) = (auto(), auto());
    let to_b = with_too_many_on_their_way(|| messages_to(&mut a, there)).expect("it listens");
    assert!(a.next_deadline().is_some(), "who sleeps says it again as well");
    let (mut at_a, mut at_b) = (Inbox::default(), Inbox::default());
    let (start, mut said) = (Clock::now(), false);
    while at_b.0.is_empty() {
        said = said || say(now(), a.near().unwrap(), to_b, &packet(7, 40)) == Some(true);
        turn(&mut a, &mut at_a);
        turn(&mut b, &mut at_b);
        assert!(start.elapsed() < Duration::from_secs(10), "they do not meet");
    }
    assert_eq!(a.near().unwrap().meetings.greetings + b.near().unwrap().meetings.greetings, 0);
}

#[test]
fn two_adapters_of_a_machine_exchange_messages_once_both_have_proved_their_addresses() {
    let ((here, mut a), (there, mut b)) = (auto(), auto());
    let to_b = messages_to(&mut a, there).expect("it listens");
    let to_a = messages_to(&mut b, here).expect("it listens");
    let message = packet(7, 40);
    assert_eq!(say(now(), a.near().unwrap(), to_b, &message), Some(false), "nothing leaves before the proof");
    let (mut at_a, mut at_b) = (Inbox::default(), Inbox::default());
    let start = Clock::now();
    let (mut a_said, mut b_said) = (false, false);
    while at_a.0.is_empty() || at_b.0.is_empty() {
        for (f, path, said) in [(&mut a, to_b, &mut a_said), (&mut b, to_a, &mut b_said)] {
            *said = *said || say(now(), f.near().unwrap(), path, &message) == Some(true);
        }
        turn(&mut a, &mut at_a);
        turn(&mut b, &mut at_b);
        assert!(start.elapsed() < Duration::from_secs(10), "they do not meet");
    }
    assert_eq!(at_b.0, [(alone(here), message.clone())]);
    assert_eq!(at_a.0, [(alone(there), message)]);
    assert_eq!((count(&a, "paths_by_shm"), count(&a, "paths_by_udp")), (1, 0));
    assert_eq!((count(&a, "shm_peers_linked"), count(&a, "shm_peers_not_proven")), (1, 0));
    assert_eq!(a.near().unwrap().meetings.greetings + b.near().unwrap().meetings.greetings, 0);
}

#[test]
fn a_peer_is_told_that_it_has_proved_its_address_though_the_socket_was_full_then() {
    let ((here, mut a), (there, mut b)) = (auto(), auto());
    messages_to(&mut a, there).expect("it listens");
    let mut idle = Inbox::default();
    for _ in 0..8 {
        // The answer to another question, which says nothing.
        let from = alone(here);
        let g = Greeting { kind: Kind::Answer, from, ring_lines: 0, bit: 0, barriers: false, nonce: 1 };
        let shm = a.near().unwrap();
        let link = shm.links.find(alone(there)).and_then(|slot| shm.links.get(slot)).unwrap();
        if let Stage::Up(socket) = &link.stage {
            while hello::send(socket.as_fd(), &g, &[]).is_ok() {}
        }
        turn(&mut a, &mut idle);
        turn(&mut b, &mut idle);
    }
    let start = Clock::now();
    while count(&a, "shm_peers_linked") + count(&b, "shm_peers_linked") < 2 {
        turn(&mut a, &mut idle);
        turn(&mut b, &mut idle);
        assert!(start.elapsed() < Duration::from_secs(10), "they do not meet");
    }
}

#[test]
fn a_peer_that_does_not_listen_is_reached_by_udp() {
    let (_, mut a) = auto();
    let (there, _b) = free(|ip| UdpFabric::open(ip, &UdpOptions::default()));
    assert_eq!(messages_to(&mut a, there), None);
    assert!(matches!(
        a.open_messages(&av(Ipv6Addr::LOCALHOST.into()), PEER),
        Err(crate::PathError::Family { .. })
    ));
}

#[test]
fn a_name_that_is_taken_before_its_adapter_opens_is_not_its_name() {
    // Once by who sees an earlier adapter of this address there, once by who sees none.
    for holds in [true, false] {
        let (there, holder) = free(|ip| UdpFabric::open(ip, &UdpOptions::default()));
        let holder = Some(holder).filter(|_| holds);
        let _squatter = squat(there);
        drop(holder);
        let (mut a, mut b) = (auto().1, again(|| auto_at(there)));
        meet(&mut a, &mut b);
        assert_eq!(count(&a, "shm_peers_not_proven") + count(&b, "shm_peers_not_proven"), 0);
    }
}

/// The first one connects to the other, and both are met by shared memory.
fn meet(a: &mut AutoFabric, b: &mut AutoFabric) {
    messages_to(a, b.attr().local).expect("its own process listens");
    let mut idle = Inbox::default();
    let start = Clock::now();
    while count(a, "shm_peers_linked") == 0 {
        turn(a, &mut idle);
        turn(b, &mut idle);
        assert!(start.elapsed() < Duration::from_secs(10), "they do not meet");
    }
}

#[test]
fn an_adapter_whose_name_is_taken_sends_packets() {
    let (there, holder) = free(|ip| UdpFabric::open(ip, &UdpOptions::default()));
    // In the moment in which its port is there and its name is not.
    let squatter = squat(there);
    let mut b = AutoFabric::beside(holder, &small()).unwrap();
    assert!(b.near().is_none());
    let note = b.attr().notes.iter().find(|n| n.0 == "local peers").unwrap();
    assert!(note.1.starts_with("by UDP"), "{note:?}");
    let (here, mut a) = auto();
    assert_eq!(messages_to(&mut b, here), None);
    // The other side finds the squatter, in vain, and sends packets from then on.
    finds_an_impostor(&mut a, there, |_| {});
    assert_eq!(messages_to(&mut a, there), None);
    // Once the name is free again, so is the address.
    drop((squatter, b));
    let start = Clock::now();
    // Where nobody listens any more, which may come later than the drop (see `again`), the listener is forgotten.
    while !a.near().unwrap().meetings.impostors.is_empty() {
        assert_eq!(messages_to(&mut a, there), None);
        assert!(start.elapsed() < Duration::from_secs(20), "somebody listens there");
    }
    meet(&mut a, &mut again(|| auto_at(there)));
}

/// Listens for peers of an address.
fn squat(address: IpAddr) -> Listener {
    let own = alone(address);
    Domain::of_network(own.address).unwrap().listen(own).unwrap()
}

/// Opens a path to who listens at an address without being there, who does something each turn: nothing leaves, and the
/// connection ends.
fn finds_an_impostor(a: &mut AutoFabric, there: IpAddr, mut act: impl FnMut(Instant)) {
    let before = count(a, "shm_peers_not_proven");
    let path = messages_to(a, there).expect("somebody listens");
    let mut inbox = Inbox::default();
    let begin = now();
    for ms in 0..=5_000 {
        let now = begin + Duration::from_millis(ms);
        act(now);
        turn_at(now, a, &mut inbox);
        let sent = say(now, a.near().unwrap(), path, &packet(1, 40));
        assert_ne!(sent, Some(true), "an impostor is sent a message");
        assert!(inbox.0.is_empty(), "an impostor's message is taken");
        if count(a, "shm_peers_not_proven") > before {
            assert_eq!(a.near().unwrap().next_gone(), Some(alone(there)));
            assert_eq!(a.near().unwrap().meetings.greetings, 0);
            return;
        }
    }
    panic!("it is waited for in vain");
}

#[test]
fn an_impostor_who_speaks_the_protocol_gets_and_gives_nothing() {
    let (there, holder) = free(|ip| UdpFabric::open(ip, &UdpOptions::default()));
    let mut impostor = ShmFabric::open_on_network(alone(there), &small()).unwrap();
    let (here, mut a) = auto();
    finds_an_impostor(&mut a, there, |now| {
        impostor.recv_all(now, RxBudget { packets: 64, bytes: 1 << 16 }, &mut Inbox::default());
        let Some(slot) = impostor.links.find(alone(here)) else { return };
        let link = impostor.links.get_mut(slot).unwrap();
        let Stage::Up(socket) = &link.stage else { return };
        // It says that it is content, answers what it can, and writes without having been asked to.
        for (kind, nonce) in [(Kind::Proven, 0), (Kind::Answer, 0x1234_5678)] {
            let from = impostor.own.local;
            let g = Greeting { kind, from, ring_lines: 0, bit: 0, barriers: false, nonce };
            let _ = hello::send(socket.as_fd(), &g, &[]);
        }
        link.unproven = None;
        let path = impostor.paths.open(alone(here), &av(here), u32::MAX).unwrap();
        let _ = say(now, &mut impostor, path, &packet(3, 40));
    });
    assert_eq!(messages_to(&mut a, there), None);
    drop(holder);
}

#[test]
#[ignore = "needs root: to be two users"]
fn another_users_listener_is_no_peer() {
    let (there, _holder) = free(|ip| UdpFabric::open(ip, &UdpOptions::default()));
    let mut child = as_nobody("squat", &format!("network {}", alone(there).address));
    assert_eq!(child.line(), "listening");
    let (_, mut a) = auto();
    assert_eq!(messages_to(&mut a, there), None);
    assert_eq!(count(&a, "shm_peers_refused"), 1);
    child.kill();
}

#[test]
fn who_comes_to_the_address_of_one_that_has_gone_is_met_anew() {
    let ((here, mut a), (there, mut b)) = (auto(), auto());
    let mut idle = Inbox::default();
    for round in 1..=3 {
        let to_b = messages_to(&mut a, there).expect("it listens");
        let to_a = messages_to(&mut b, here).expect("it listens");
        let start = Clock::now();
        while count(&a, "shm_peers_linked") < round || count(&b, "shm_peers_linked") == 0 {
            turn(&mut a, &mut idle);
            turn(&mut b, &mut idle);
            assert!(start.elapsed() < Duration::from_secs(10), "they do not meet");
        }
        let left = packet(round as u32, 40);
        assert_eq!(say(now(), b.near().unwrap(), to_a, &left), Some(true));
        drop(b);
        b = again(|| auto_at(there));
        // The new one connects before the end of the first was looked for, on every other round.
        if round % 2 == 0 {
            messages_to(&mut b, here).expect("it listens");
        }
        let (mut last, mut gone) = (Inbox::default(), None);
        let start = Clock::now();
        while a.near().unwrap().is_predecessor_leaving(there, PEER) || gone.is_none() {
            turn(&mut a, &mut last);
            gone = gone.or(a.near().unwrap().next_gone());
            assert!(start.elapsed() < Duration::from_secs(20), "it does not part");
        }
        assert_eq!(last.0, [(alone(there), left)], "what the first one left is taken");
        assert_eq!(gone, Some(alone(there)));
        a.near().unwrap().close_path(to_b);
    }
}

/// An adapter at an address that others share with it.
fn shared_at(address: IpAddr) -> Result<AutoFabric, OpenError> {
    AutoFabric::open(address, &UdpOptions { slots: 4, ..UdpOptions::default() }, &small())
}
/// A queue pair of an adapter at a shared address.
fn qp_of(f: &AutoFabric) -> Qpn {
    Qpn::new(u32::from(f.attr().qpn_slot.expect("its address is shared")) << 16 | 7)
}
/// The name of an adapter.
fn name(f: &AutoFabric) -> PeerName {
    PeerName::new(f.attr().local, f.attr().qpn_slot)
}
/// Opens a path to a queue pair, and says who has it.
fn peer_of(f: &mut AutoFabric, address: IpAddr, qpn: Qpn) -> Option<PeerName> {
    let path = f.open_messages(&av(address), qpn).unwrap()?;
    f.near().unwrap().peer_of(path)
}

/// Each of these adapters says a number to each other one, by the path to its queue pair.
fn all_exchange(all: &mut [(AutoFabric, Qpn)]) {
    let names: Vec<_> = all.iter().map(|(f, _)| name(f)).collect();
    let ends: Vec<_> = all.iter().map(|(f, qpn)| (f.attr().local, *qpn)).collect();
    let mut waiting = Vec::new();
    for (from, (f, _)) in all.iter_mut().enumerate() {
        for (to, (address, qpn)) in ends.iter().enumerate().filter(|(to, _)| *to != from) {
            let path = f.open_messages(&av(*address), *qpn).unwrap().expect("it listens");
            assert_eq!(f.near().unwrap().peer_of(path), Some(names[to]));
            waiting.push((from, to, path));
        }
    }
    let mut inboxes: Vec<_> = all.iter().map(|_| Inbox::default()).collect();
    let start = Clock::now();
    while inboxes.iter().any(|inbox| inbox.0.len() < names.len() - 1) {
        waiting.retain(|&(from, to, path)| {
            let message = packet((from * 16 + to) as u32, 40);
            say(now(), all[from].0.near().unwrap(), path, &message) != Some(true)
        });
        for ((f, _), inbox) in all.iter_mut().zip(&mut inboxes) {
            turn(f, inbox);
        }
        assert!(start.elapsed() < Duration::from_secs(10), "they do not meet");
    }
    for (to, inbox) in inboxes.iter_mut().enumerate() {
        inbox.0.sort();
        let others = names.iter().enumerate().filter(|(from, _)| *from != to);
        let mut wanted: Vec<_> =
            others.map(|(from, name)| (*name, packet((from * 16 + to) as u32, 40))).collect();
        wanted.sort();
        assert_eq!(inbox.0, wanted);
    }
}

#[test]
fn processes_at_one_address_and_adapters_elsewhere_are_told_apart_by_their_slots() {
    let (at, a) = free(shared_at);
    let (b, c) = (shared_at(at).unwrap(), shared_at(at).unwrap());
    let (_, alone) = auto();
    let mut all: Vec<_> = [a, b, c].into_iter().map(|f| (qp_of(&f), f)).map(|(q, f)| (f, q)).collect();
    // A number of the one that has its address to itself may begin with the slot of another one.
    let of_b = all[1].1;
    all.push((alone, of_b));
    all_exchange(&mut all);
}

#[test]
fn a_slot_in_which_nobody_listens_is_reached_by_udp() {
    let (at, mut a) = free(shared_at);
    let own = a.attr().qpn_slot.unwrap();
    let free = u32::from((own + 1) % 4) << 16 | 7;
    assert_eq!(peer_of(&mut a, at, Qpn::new(free)), None);
    // A process that shares the address and has no shared memory.
    let b = UdpFabric::open(at, &UdpOptions { slots: 4, ..UdpOptions::default() }).unwrap();
    let of_b = Qpn::new(u32::from(b.attr().qpn_slot.unwrap()) << 16 | 7);
    assert_eq!(peer_of(&mut a, at, of_b), None);
    let to_itself = qp_of(&a);
    assert_eq!(peer_of(&mut a, at, to_itself), Some(name(&a)));
}

#[test]
fn a_member_in_another_ones_slot_proves_nothing() {
    let (at, mut a) = free(shared_at);
    // It has a slot, and listens under the name of another one, which is free.
    let member = UdpFabric::open(at, &UdpOptions { slots: 4, ..UdpOptions::default() }).unwrap();
    let taken = [&a.attr().qpn_slot, &member.attr().qpn_slot].map(|s| s.unwrap());
    let victim = (0..4).find(|slot| !taken.contains(slot)).unwrap();
    let of_victim = PeerName::new(at, Some(victim));
    let mut impostor = ShmFabric::open_on_network(of_victim, &small()).unwrap();
    let mut member = Some(member);
    let path = a.open_messages(&av(at), Qpn::new(u32::from(victim) << 16 | 7)).unwrap().expect("it listens");
    let (begin, mut inbox) = (now(), Inbox::default());
    for ms in 0..=5_000 {
        let now = begin + Duration::from_millis(ms);
        impostor.recv_all(now, RxBudget { packets: 64, bytes: 1 << 16 }, &mut Inbox::default());
        if let Some(member) = &mut member {
            let budget = RxBudget { packets: 64, bytes: 1 << 16 };
            member.recv(now, budget, &mut |p| panic!("a packet for slot {}", p.bytes[5]));
        }
        turn_at(now, &mut a, &mut inbox);
        assert_ne!(
            say(now, a.near().unwrap(), path, &packet(1, 40)),
            Some(true),
            "an impostor is sent a message"
        );
        if count(&a, "shm_peers_not_proven") > 0 {
            assert_eq!(a.near().unwrap().next_gone(), Some(of_victim));
            return;
        }
    }
    panic!("it is waited for in vain");
}

#[test]
fn who_comes_to_the_slot_of_one_that_has_gone_is_met_anew() {
    let (at, a) =
        free(|ip| AutoFabric::open(ip, &UdpOptions { slots: 2, ..UdpOptions::default() }, &small()));
    let mut a = a;
    for round in 1..=3 {
        let mut b = again(|| shared_at(at));
        let (of_a, of_b) = (qp_of(&a), qp_of(&b));
        let start = Clock::now();
        let is_linked = |a: &mut AutoFabric| a.near().unwrap().links.find(name(&b)).is_some();
        while a.near().unwrap().is_predecessor_leaving(at, of_b) || is_linked(&mut a) {
            turn(&mut a, &mut Inbox::default());
            assert!(start.elapsed() < Duration::from_secs(20), "it does not part");
        }
        assert_eq!(peer_of(&mut a, at, of_b), Some(name(&b)));
        assert_eq!(peer_of(&mut b, at, of_a), Some(name(&a)));
        let mut idle = Inbox::default();
        while count(&a, "shm_peers_linked") < round || count(&b, "shm_peers_linked") == 0 {
            turn(&mut a, &mut idle);
            turn(&mut b, &mut idle);
            assert!(start.elapsed() < Duration::from_secs(10), "they do not meet");
        }
    }
}

#[test]
fn an_old_link_of_a_slot_goes_before_its_successor_is_met() {
    let two = UdpOptions { slots: 2, ..UdpOptions::default() };
    let (at, mut a) = free(|ip| AutoFabric::open(ip, &two, &small()));
    let mut b = shared_at(at).unwrap();
    let (of_b, start) = (qp_of(&b), Clock::now());
    assert_eq!(peer_of(&mut a, at, of_b), Some(name(&b)));
    while count(&a, "shm_peers_linked") == 0 || count(&b, "shm_peers_linked") == 0 {
        turn(&mut a, &mut Inbox::default());
        turn(&mut b, &mut Inbox::default());
        assert!(start.elapsed() < Duration::from_secs(10), "they do not meet");
    }
    drop(b);
    let _successor = again(|| shared_at(at));
    // The end of the first one is seen by the question alone, without a turn.
    let (shm, start) = (a.near().unwrap(), Clock::now());
    loop {
        shm.is_predecessor_leaving(at, of_b);
        let link = shm.links.find(PeerName::new(at, Some((of_b.raw() >> 16) as u8)));
        let stage = link.map(|slot| &shm.links.get(slot).unwrap().stage);
        if matches!(stage, None | Some(Stage::Ending)) {
            break;
        }
        // Its end of the socket may be open for a moment (see `again`).
        assert!(start.elapsed() < Duration::from_secs(20), "the link to the first one is kept");
    }
}
