//! The suite over raw Ethernet, between two namespaces and over the loopback interface, and tests of raw frames only.

use std::net::IpAddr;

use hca_core::wire::ether_type;
use hca_core::{Instant, Qpn};
use hca_fabric::{
    Fabric, OpenError, PathError, QpEnds, RawFabric, RawOptions, RoceVersion, TxBatch, UdpFabric, UdpOptions,
};

use socket2::{Domain, Protocol, Socket, Type};
use test_support::namespaces::{Namespace, Wire, ip};

use crate::capture::{capture_of, read};
use crate::share::to_slot;
use crate::suite::{
    BUDGET, PATIENCE, at_free_address, av, counter, now, of, packet, pass, ports_of, put,
    queue_pairs_are_spread, receive,
};

/// Runs a test between two namespaces.
pub(crate) fn over_wire(mtu: u32, test: impl FnOnce(&Wire)) {
    test(&Wire::with_addresses(mtu).unwrap());
}

fn open(wire: &Wire, end: usize, options: RawOptions) -> Box<dyn Fabric> {
    let fabric = wire.within(end, || RawFabric::open("wire", &options));
    Box::new(fabric.unwrap_or_else(|e| panic!("{e}")))
}

pub(crate) fn v6(end: usize) -> Option<IpAddr> {
    format!("fd77::{}", end + 1).parse().ok()
}

/// Has both find out each other's hardware address, which takes time, and in the suite time stands still.
pub(crate) fn acquaint(a: &mut dyn Fabric, b: &mut dyn Fabric) {
    let start = std::time::Instant::now();
    let clock = || Instant::from_nanos(start.elapsed().as_nanos() as u64);
    let meet = |from: &mut dyn Fabric, to: &mut dyn Fabric| {
        let path = from.open_path(&av(to.attr().local)).unwrap();
        let mut batch = TxBatch::with_capacity(4096);
        put(&mut batch, path, &to_slot(to.attr().qpn_slot.unwrap_or(0), 0, 20));
        from.send(clock(), &mut batch);
        let mut came = 0;
        while came == 0 {
            assert!(start.elapsed() < PATIENCE, "nobody answers");
            from.recv(clock(), BUDGET, &mut |_| {});
            to.recv(clock(), BUDGET, &mut |_| came += 1);
        }
        from.close_path(path);
    };
    meet(a, b);
    meet(b, a);
}

fn suite(mut a: Box<dyn Fabric>, mut b: Box<dyn Fabric>) {
    acquaint(&mut *a, &mut *b);
    crate::suite::run(a, b);
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn the_suite_passes_between_two_namespaces() {
    over_wire(4500, |wire| {
        let [a, b] = [0, 1].map(|end| open(wire, end, RawOptions::default()));
        suite(a, b);
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn the_suite_passes_over_ipv6() {
    over_wire(4500, |wire| {
        let [a, b] = [0, 1].map(|end| open(wire, end, RawOptions { ip: v6(end), ..RawOptions::default() }));
        suite(a, b);
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn the_suite_passes_in_a_vlan() {
    over_wire(4500, |wire| {
        let options = RawOptions { vlan: Some(7), ..RawOptions::default() };
        let [a, b] = [0, 1].map(|end| open(wire, end, options));
        suite(a, b);
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn the_suite_passes_over_rocev1() {
    over_wire(4500, |wire| {
        for ip in [|_| None, v6] {
            let options = |end| RawOptions { ip: ip(end), version: RoceVersion::V1, ..RawOptions::default() };
            let [a, b] = [0, 1].map(|end| open(wire, end, options(end)));
            suite(a, b);
        }
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn queue_pairs_to_one_peer_have_several_source_ports_where_there_are_ports() {
    over_wire(4500, |wire| {
        for ip in [|_| None, v6] {
            let [mut a, mut b] =
                [0, 1].map(|end| open(wire, end, RawOptions { ip: ip(end), ..RawOptions::default() }));
            acquaint(&mut *a, &mut *b);
            queue_pairs_are_spread(&mut *a, &mut *b);
        }
        let options = || RawOptions { version: RoceVersion::V1, ..RawOptions::default() };
        let [mut a, mut b] = [0, 1].map(|end| open(wire, end, options()));
        acquaint(&mut *a, &mut *b);
        let path = |a: &mut dyn Fabric, n| a.open_path_of(&av(b.attr().local), of(n)).unwrap();
        let first = path(&mut *a, 0);
        assert!((1..8).all(|n| path(&mut *a, n) == first), "RoCEv1 has no ports");
        assert_eq!(ports_of(&mut *a, &mut *b, 0..8), 1);
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn the_suite_passes_over_the_loopback_interface() {
    let open = |salt| {
        at_free_address(salt, |ip| {
            RawFabric::open("lo", &RawOptions { ip: Some(ip), ..RawOptions::default() })
        })
    };
    Namespace::new().unwrap().within(|| crate::suite::run(Box::new(open(71)), Box::new(open(72))));
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn a_capture_of_rocev1_holds_the_frames_that_crossed_the_wire() {
    over_wire(4500, |wire| {
        let options = |_| RawOptions { version: RoceVersion::V1, ..RawOptions::default() };
        let [mut a, mut b] = [0, 1].map(|end| open(wire, end, options(end)));
        acquaint(&mut *a, &mut *b);
        let on_wire = wire.within(1, || {
            let protocol = Protocol::from(i32::from(ether_type::ROCEV1.to_be()));
            Socket::new(Domain::PACKET, Type::RAW.nonblocking(), Some(protocol)).unwrap()
        });
        let packets: Vec<_> = [16, 20, 1036, 4108].iter().map(|&n| packet(n as u32, n)).collect();
        let (tx, rx) = capture_of(&mut *a, &mut *b, &packets);
        let mut frame = [0_u8; 8192];
        for (tx, rx) in read(&tx).iter().zip(read(&rx)) {
            let len = rustix::net::recv(&on_wire, &mut frame[..], rustix::net::RecvFlags::empty()).unwrap().0;
            // The hardware addresses of a capture are made up.
            assert_eq!(frame[12..14], [0x89, 0x15]);
            assert_eq!((&tx.bytes[12..], &rx.bytes[12..]), (&frame[12..len], &frame[12..len]));
        }
        assert_eq!((read(&tx).len(), read(&rx).len()), (4, 4));
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn trains_that_udp_sends_uncut_are_cut() {
    over_wire(4500, |wire| {
        for v6_too in [false, true] {
            let ip = |end| if v6_too { v6(end) } else { format!("10.77.0.{}", end + 1).parse().ok() };
            let address = ip(0).unwrap();
            let sent = wire.within(0, || UdpFabric::open(address, &UdpOptions::default()).unwrap());
            let mut a: Box<dyn Fabric> = Box::new(sent);
            let mut b = open(wire, 1, RawOptions { ip: ip(1), ..RawOptions::default() });
            let sizes = [28, 28, 28, 20, 1036, 1036, 1036, 4108, 4108, 4108, 4108, 16];
            let packets: Vec<_> = sizes.iter().map(|&n| packet(n as u32, n)).collect();
            acquaint(&mut *b, &mut *a);
            assert_eq!(pass(&mut *a, &mut *b, &packets), packets);
            assert!(counter(&*b, "rx_superframes") >= 2, "{}", counter(&*b, "rx_superframes"));
            assert_eq!(counter(&*b, "icrc_errors") + counter(&*b, "rx_superframes_refused"), 0);
            // And the other way: UDP sockets take what raw frames carry.
            assert_eq!(pass(&mut *b, &mut *a, &packets), packets);
            assert_eq!(counter(&*a, "icrc_errors") + counter(&*a, "icrc_ident_solved"), 0);
        }
    });
}

#[test]
#[ignore = "needs root and ethtool: an interface whose offloads are switched"]
fn trains_leave_uncut_where_the_interface_takes_them_and_one_by_one_where_not() {
    over_wire(4500, |wire| {
        let sizes = [28, 28, 28, 20, 1036, 1036, 1036, 4108, 4108, 4108, 4108, 16];
        let packets: Vec<_> = sizes.iter().map(|&n| packet(n as u32, n)).collect();
        for v6_too in [false, true] {
            let ip = |end| if v6_too { v6(end) } else { format!("10.77.0.{}", end + 1).parse().ok() };
            let [mut a, mut b] =
                [0, 1].map(|end| open(wire, end, RawOptions { ip: ip(end), ..RawOptions::default() }));
            acquaint(&mut *a, &mut *b);
            for offloads in ["on", "off", "on"] {
                wire.within(0, || ethtool(&format!("-K wire tx-udp-segmentation {offloads}"))).unwrap();
                let before = ["tx_superframes", "tx_superframes_refused"].map(|name| counter(&*a, name));
                assert_eq!(pass(&mut *a, &mut *b, &packets), packets, "IPv6: {v6_too}, offloads {offloads}");
                let after = ["tx_superframes", "tx_superframes_refused"].map(|name| counter(&*a, name));
                let first_time = before[0] == 0;
                // Time stands still here, and so does the second in which a refusal is remembered.
                assert_eq!(after[0] > before[0], first_time, "IPv6: {v6_too}, offloads {offloads}");
                assert_eq!(after[1], u64::from(!first_time));
            }
            assert_eq!(counter(&*b, "rx_superframes"), counter(&*a, "tx_superframes"));
            let lost = ["tx_lost_no_buffers", "tx_lost_other"].map(|name| counter(&*a, name));
            assert_eq!((lost, counter(&*b, "icrc_errors") + counter(&*b, "rx_truncated")), ([0, 0], 0));
        }
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn trains_leave_uncut_again_soon_after_an_interface_had_no_room() {
    over_wire(4500, |wire| {
        let [mut a, mut b] = [0, 1].map(|end| open(wire, end, RawOptions::default()));
        acquaint(&mut *a, &mut *b);
        let path = a.open_path(&av(b.attr().local)).unwrap();
        let packets: Vec<_> = (0..4).map(|n| packet(n, 1036)).collect();
        let mut batch = TxBatch::with_capacity(1 << 16);
        let mut send = |at| {
            packets.iter().for_each(|p| put(&mut batch, path, p));
            a.send(at, &mut batch);
            ["tx_superframes", "tx_superframes_refused", "tx_lost_no_buffers"].map(|name| counter(&*a, name))
        };
        assert_eq!(send(now()), [1, 0, 0]);
        assert_eq!(receive(&mut *b, 4), packets);
        // Without a carrier, too, the interface says that it has no room.
        wire.within(1, || ip("link set wire down")).unwrap();
        assert_eq!(send(now()), [1, 1, 4]);
        wire.within(1, || ip("link set wire up")).unwrap();
        assert_eq!(send(now()), [1, 1, 4], "it is not tried at once");
        assert_eq!(send(now() + std::time::Duration::from_millis(2)), [2, 1, 4]);
        assert_eq!(receive(&mut *b, 8), [&packets[..], &packets[..]].concat());
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn no_more_packets_leave_in_a_frame_than_the_interface_says() {
    over_wire(4500, |wire| {
        let packets: Vec<_> = (0..7).map(|n| packet(n, 28)).collect();
        for (segments, frames) in [(1, 0), (3, 2), (64, 1)] {
            wire.within(0, || ip(&format!("link set wire gso_max_segs {segments}"))).unwrap();
            let [mut a, mut b] = [0, 1].map(|end| {
                let fabric =
                    wire.within(end, || once_free(|| RawFabric::open("wire", &RawOptions::default())));
                Box::new(fabric) as Box<dyn Fabric>
            });
            acquaint(&mut *a, &mut *b);
            assert_eq!(pass(&mut *a, &mut *b, &packets), packets);
            assert_eq!(counter(&*a, "tx_superframes"), frames, "{segments} packets in a frame");
            assert_eq!(counter(&*a, "tx_superframes_refused"), 0);
        }
    });
}

/// Runs `ethtool` in this thread's namespace.
fn ethtool(arguments: &str) -> Result<(), String> {
    let out = std::process::Command::new("ethtool").args(arguments.split(' ')).output();
    let out = out.map_err(|e| format!("ethtool: {e}"))?;
    let said = String::from_utf8_lossy(&out.stderr);
    if out.status.success() { Ok(()) } else { Err(format!("ethtool {arguments}: {}", said.trim())) }
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn one_address_serves_one_fabric_of_either_kind() {
    over_wire(1500, |wire| {
        wire.within(0, || {
            let address: IpAddr = "10.77.0.1".parse().unwrap();
            let raw = RawFabric::open("wire", &RawOptions::default()).unwrap();
            let second = RawFabric::open("wire", &RawOptions::default()).err();
            assert!(matches!(second, Some(OpenError::InUse(at)) if at == address), "{second:?}");
            let udp = UdpFabric::open(address, &UdpOptions::default()).err();
            assert!(matches!(udp, Some(OpenError::InUse(at)) if at == address), "{udp:?}");
            drop(raw);
            let udp = once_free(|| UdpFabric::open(address, &UdpOptions::default()));
            assert!(matches!(RawFabric::open("wire", &RawOptions::default()), Err(OpenError::InUse(_))));
            drop(udp);
            once_free(|| RawFabric::open("wire", &RawOptions::default()));
        });
    });
}

/// Opens a fabric on an address, or in a slot of an address, that was just left: a process that another test starts has
/// copies of all descriptors until it runs its program.
pub(crate) fn once_free<F>(open: impl Fn() -> Result<F, OpenError>) -> F {
    let begin = std::time::Instant::now();
    loop {
        match open() {
            Ok(fabric) => return fabric,
            Err(OpenError::InUse(_) | OpenError::SlotsTaken { .. }) if begin.elapsed() < PATIENCE => {
                std::thread::yield_now();
            }
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn refusals_say_what_to_do() {
    over_wire(1500, |wire| {
        wire.within(0, || {
            let error = |interface: &str, ip: Option<&str>| {
                let ip = ip.map(|ip| ip.parse().unwrap());
                RawFabric::open(interface, &RawOptions { ip, ..RawOptions::default() })
                    .err()
                    .unwrap()
                    .to_string()
            };
            assert!(error("eth7", None).contains("no interface eth7; this machine has lo"));
            assert!(error("a-name-that-is-longer-than-any", None).contains("no interface"));
            assert!(error("wire", Some("10.77.0.9")).contains("give one of 10.77.0.1"));
            ip("link add name bare type veth peer name other").unwrap();
            assert!(error("bare", None).contains("ip link set bare up"));
            ip("link set bare up").unwrap();
            ip("link set other up addrgenmode none").unwrap();
            ip("addr flush dev bare").unwrap();
            assert!(error("bare", None).contains("ip address add"));
        });
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn a_peer_on_the_same_machine_is_refused_with_the_remedy() {
    over_wire(1500, |wire| {
        wire.within(0, || ip("addr add 10.77.0.77/24 dev wire")).unwrap();
        let mut a = open(wire, 0, RawOptions { ip: "10.77.0.1".parse().ok(), ..RawOptions::default() });
        let e = a.open_path(&av("10.77.0.77".parse().unwrap())).unwrap_err();
        assert!(matches!(e, PathError::SameMachine { .. }) && e.to_string().contains("udp://"), "{e}");
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn packets_wait_for_the_peers_address_and_are_lost_and_counted_when_nobody_has_it() {
    over_wire(1500, |wire| {
        let mut a = open(wire, 0, RawOptions::default());
        let late: IpAddr = "10.77.0.5".parse().unwrap();
        let path = a.open_path(&av(late)).unwrap();
        let mut batch = TxBatch::with_capacity(1 << 16);
        for i in 0..3 {
            put(&mut batch, path, &packet(i, 20));
        }
        a.send(now(), &mut batch);
        assert!(batch.is_empty());
        assert_eq!((counter(&*a, "tx_waited"), counter(&*a, "tx_packets")), (3, 0));
        let deadline = a.next_deadline().expect("somebody has to look again");
        assert!(deadline > now());
        // The time is told, not waited for.
        let mut at = now();
        for _ in 0..40 {
            at = at + std::time::Duration::from_millis(100);
            a.recv(at, BUDGET, &mut |_| {});
        }
        assert_eq!(counter(&*a, "tx_lost_unresolved"), 3);
        assert_eq!(a.next_deadline(), None);
        // Somebody comes after all: what is sent then arrives.
        wire.within(1, || ip("addr add 10.77.0.5/24 dev wire")).unwrap();
        let mut b = open(wire, 1, RawOptions { ip: Some(late), ..RawOptions::default() });
        let begin = std::time::Instant::now();
        let mut got = 0;
        while got == 0 {
            assert!(begin.elapsed() < PATIENCE, "nobody answers");
            at = at + std::time::Duration::from_millis(100);
            put(&mut batch, path, &packet(9, 20));
            a.send(at, &mut batch);
            a.recv(at, BUDGET, &mut |_| {});
            b.recv(at, BUDGET, &mut |_| got += 1);
        }
    });
}

/// Takes the right to change the kernel's tables from this thread, which keeps that to raw frames.
fn give_up_net_admin() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::NET_ADMIN);
    set_capabilities(None, sets).unwrap();
    assert!(capabilities(None).unwrap().effective.contains(CapabilitySet::NET_RAW));
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn without_cap_net_admin_a_datagram_has_the_kernel_find_a_peer_out() {
    over_wire(1500, |wire| {
        for v6_too in [false, true] {
            let ip = |end| if v6_too { v6(end) } else { format!("10.77.0.{}", end + 1).parse().ok() };
            let options = |end| RawOptions { ip: ip(end), ..RawOptions::default() };
            let mut b = open(wire, 1, options(1));
            let heard = wire.within(1, || std::net::UdpSocket::bind((ip(1).unwrap(), 9)).unwrap());
            heard.set_nonblocking(true).unwrap();
            let (came, asked) = wire.within(0, || {
                give_up_net_admin();
                let mut a = RawFabric::open("wire", &options(0)).unwrap();
                let path = a.open_path(&av(b.attr().local)).unwrap();
                let mut batch = TxBatch::with_capacity(4096);
                put(&mut batch, path, &packet(0, 20));
                let (begin, mut came) = (std::time::Instant::now(), 0);
                while came == 0 && begin.elapsed() < PATIENCE {
                    let at = Instant::from_nanos(begin.elapsed().as_nanos() as u64);
                    a.send(at, &mut batch);
                    a.recv(at, BUDGET, &mut |_| {});
                    b.recv(at, BUDGET, &mut |_| came += 1);
                }
                (came, counter(&a, "neighbour_asks"))
            });
            assert_eq!((came, asked), (1, 1), "IPv6: {v6_too}");
            // It was the datagram that made the kernel look for the peer.
            let begin = std::time::Instant::now();
            let heard = std::iter::repeat_with(|| heard.recv_from(&mut [0; 8]).ok())
                .find(|got| got.is_some() || begin.elapsed() > PATIENCE)
                .flatten();
            assert_eq!(heard.map(|(len, _)| len), Some(0), "IPv6: {v6_too}");
        }
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn a_peer_that_moves_is_followed_within_a_second_of_use() {
    over_wire(1500, |wire| {
        let [mut a, mut b] = [0, 1].map(|end| open(wire, end, RawOptions::default()));
        acquaint(&mut *a, &mut *b);
        let path = a.open_path(&av(b.attr().local)).unwrap();
        let mut batch = TxBatch::with_capacity(1 << 16);
        put(&mut batch, path, &packet(1, 20));
        a.send(now(), &mut batch);
        assert_eq!(receive(&mut *b, 1).len(), 1);
        wire.within(1, || ip("link set wire address 02:00:00:00:00:77")).unwrap();
        wire.within(0, || ip("neigh replace 10.77.0.2 lladdr 02:00:00:00:00:77 dev wire")).unwrap();
        put(&mut batch, path, &packet(2, 20));
        a.send(now() + std::time::Duration::from_millis(1100), &mut batch);
        assert_eq!(receive(&mut *b, 1), [packet(2, 20)]);
        assert_eq!(counter(&*a, "neighbour_changes"), 1);
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn a_peer_behind_a_gateway_is_reached_by_the_gateways_address() {
    over_wire(1500, |wire| {
        wire.within(1, || {
            ip("addr add 10.88.0.1/24 dev lo")?;
            ip("neigh flush dev wire")
        })
        .unwrap();
        wire.within(0, || ip("route add 10.88.0.0/24 via 10.77.0.2 dev wire")).unwrap();
        let mut a = open(wire, 0, RawOptions::default());
        let mut b = open(wire, 1, RawOptions::default());
        acquaint(&mut *a, &mut *b);
        // Nobody takes it there, but it leaves at once, which it could not without the gateway's MAC address.
        let path = a.open_path(&av("10.88.0.7".parse().unwrap())).unwrap();
        let mut batch = TxBatch::with_capacity(1 << 16);
        let before = counter(&*a, "tx_packets");
        put(&mut batch, path, &packet(1, 20));
        a.send(now(), &mut batch);
        assert_eq!(counter(&*a, "tx_packets"), before + 1);
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn an_interface_that_goes_away_is_counted_and_noted() {
    over_wire(1500, |wire| {
        let [mut a, mut b] = [0, 1].map(|end| open(wire, end, RawOptions::default()));
        acquaint(&mut *a, &mut *b);
        let path = a.open_path(&av(b.attr().local)).unwrap();
        let mut batch = TxBatch::with_capacity(1 << 16);
        put(&mut batch, path, &packet(0, 20));
        a.send(now(), &mut batch);
        assert_eq!(receive(&mut *b, 1).len(), 1);
        wire.within(1, || ip("link del wire")).unwrap();
        for _ in 0..3 {
            put(&mut batch, path, &packet(1, 20));
            a.send(now(), &mut batch);
            assert!(batch.is_empty());
            a.prepare_wait();
            b.prepare_wait();
            b.recv(now(), BUDGET, &mut |_| panic!("nothing comes any more"));
        }
        assert_eq!(counter(&*a, "tx_lost_interface"), 3);
        assert_eq!(counter(&*b, "interface_errors"), 1);
        for end in [&a, &b] {
            assert!(end.attr().notes.iter().any(|n| n.0 == "interface lost"), "{:?}", end.attr().notes);
        }
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn frames_that_find_no_room_use_up_no_identification() {
    use test_support::filter;

    over_wire(4500, |wire| {
        let mut a = open(wire, 0, RawOptions::default());
        let received =
            wire.within(1, || UdpFabric::open("10.77.0.2".parse().unwrap(), &UdpOptions::default()));
        let mut b: Box<dyn Fabric> = Box::new(received.unwrap());
        acquaint(&mut *a, &mut *b);
        // Of datagrams, none has a number.
        let ends = QpEnds { peer: Some(Qpn::new(7)), ..of(7) };
        let path = a.open_path_of(&av(b.attr().local), ends).unwrap();
        let mut batch = TxBatch::with_capacity(1 << 16);
        // Lengths that ascend make each a frame of its own.
        let packets: Vec<_> = (0..40).map(|n| packet(n, 20 + 4 * n as usize)).collect();
        put(&mut batch, path, &packets[0]);
        a.send(now(), &mut batch);
        assert_eq!(receive(&mut *b, 1), packets[..1]);
        packets[1..].iter().for_each(|p| put(&mut batch, path, p));
        std::thread::scope(|s| {
            s.spawn(|| {
                filter::refuse(&[libc::SYS_sendmmsg], libc::EAGAIN);
                (0..10).for_each(|_| a.send(now(), &mut batch));
            });
        });
        assert_eq!((batch.trains().len(), counter(&*a, "tx_blocked")), (39, 10));
        a.send(now(), &mut batch);
        assert_eq!(receive(&mut *b, 39), packets[1..]);
        assert_eq!(counter(&*b, "icrc_idents_refused") + counter(&*b, "icrc_ident_solved"), 0);
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn long_frames_that_came_before_an_interface_went_down_are_received_and_so_are_those_behind_them() {
    over_wire(4500, |wire| {
        let sent = wire.within(0, || UdpFabric::open("10.77.0.1".parse().unwrap(), &UdpOptions::default()));
        let mut a: Box<dyn Fabric> = Box::new(sent.unwrap());
        let mut b = open(wire, 1, RawOptions::default());
        acquaint(&mut *b, &mut *a);
        let path = a.open_path(&av(b.attr().local)).unwrap();
        let mut batch = TxBatch::with_capacity(1 << 16);
        let trains = [0, 1].map(|n| (4 * n..4 * n + 4).map(|n| packet(n, 4108)).collect::<Vec<_>>());
        let mut send = |train: &[Vec<u8>]| {
            train.iter().for_each(|p| put(&mut batch, path, p));
            a.send(now(), &mut batch);
        };
        send(&trains[0]);
        let fd = b.wait_fd().unwrap();
        let mut watched = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let patience = rustix::time::Timespec { tv_sec: PATIENCE.as_secs() as _, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut watched, Some(&patience)), Ok(1));
        wire.within(1, || ip("link set wire down")).unwrap();
        let mut got = Vec::new();
        b.recv(now(), BUDGET, &mut |p| got.push(p.bytes.to_vec()));
        assert!(got == trains[0], "{} packets", got.len());
        wire.within(1, || ip("link set wire up")).unwrap();
        let (begin, mut got) = (std::time::Instant::now(), Vec::new());
        // The other end learns late that the link is up again; the pause gives its kernel time for that.
        while got.is_empty() {
            assert!(begin.elapsed() < PATIENCE, "nothing comes any more");
            send(&trains[1]);
            std::thread::sleep(std::time::Duration::from_millis(20));
            b.recv(now(), BUDGET, &mut |p| got.push(p.bytes.to_vec()));
        }
        assert!(got.chunks(4).all(|train| train == trains[1]), "{} packets", got.len());
        assert_eq!((counter(&*b, "interface_errors"), counter(&*b, "recv_errors")), (1, 0));
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn frames_that_are_no_packets_are_dropped_and_counted() {
    over_wire(1500, |wire| {
        let mut b = open(wire, 1, RawOptions::default());
        let stranger = wire.within(0, || std::net::UdpSocket::bind("10.77.0.1:0").unwrap());
        for len in [0, 1, 15, 16, 1400] {
            stranger.send_to(&vec![0xff; len], "10.77.0.2:4791").unwrap();
        }
        crate::suite::takes_none(&mut *b, 5);
        assert_eq!((counter(&*b, "short_packets"), counter(&*b, "icrc_errors")), (3, 2));
        // The kernel sent no error back: the port is held.
        stranger.set_read_timeout(Some(std::time::Duration::from_millis(1))).unwrap();
        stranger.connect("10.77.0.2:4791").unwrap();
        stranger.send(&[0; 40]).unwrap();
        let answer = stranger.recv(&mut [0; 8]).unwrap_err();
        assert_ne!(answer.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}
