//! The suite over UDP sockets, and tests of UDP only.

use std::net::IpAddr;
use std::time::Instant as Clock;

use crate::raw::{once_free, over_wire};
use crate::suite::{
    BUDGET, PATIENCE, at_free_address, av, counter, now, of, packet, pass, ports_of, put,
    queue_pairs_are_spread, receive, takes_none,
};
use hca_fabric::{Fabric, OpenError, PORTS_PER_PEER, TxBatch, UdpFabric, UdpOptions};
use test_support::namespaces::ip;

fn open(salt: u32) -> UdpFabric {
    at_free_address(salt, |addr| UdpFabric::open(addr, &UdpOptions::default()))
}

#[test]
fn the_suite_passes_over_udp() {
    crate::suite::run(Box::new(open(1)), Box::new(open(2)));
}

#[test]
fn the_suite_passes_without_sockets_of_their_own_for_paths() {
    let options = UdpOptions { max_paths: 0, ..UdpOptions::default() };
    let a = at_free_address(3, |addr| UdpFabric::open(addr, &options));
    crate::suite::run(Box::new(a), Box::new(open(4)));
}

#[test]
fn the_suite_passes_where_the_kernel_does_not_cut_trains() {
    let options = UdpOptions { segmentation: false, ..UdpOptions::default() };
    let a = at_free_address(12, |addr| UdpFabric::open(addr, &options));
    crate::suite::run(Box::new(a), Box::new(open(13)));
}

/// As where a server forks a process for something else, ends, and is started anew.
#[test]
#[allow(unsafe_code)] // a child that makes three system calls
fn an_address_is_free_behind_its_fabric_though_a_child_lives() {
    let fabric = open(65);
    let local = fabric.attr().local;
    // SAFETY: should nobody end the child, the signal does.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the calls take numbers.
        unsafe {
            libc::alarm(60);
            libc::pause();
            libc::_exit(0);
        }
    }
    drop(fabric);
    let start = Clock::now();
    let again = loop {
        match UdpFabric::open(local, &UdpOptions::default()) {
            // The child has just begun.
            Err(OpenError::InUse(_)) if start.elapsed().as_secs() < 5 => std::thread::yield_now(),
            opened => break opened.map(drop),
        }
    };
    // SAFETY: the child is this test's.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, core::ptr::null_mut(), 0);
    }
    again.unwrap();
}

#[test]
fn queue_pairs_to_one_peer_have_several_source_ports() {
    queue_pairs_are_spread(&mut open(61), &mut open(62));
}

#[test]
fn queue_pairs_are_spread_by_a_part_of_the_sockets_only() {
    const SOCKETS: usize = 32;
    let options = UdpOptions { max_paths: SOCKETS, ..UdpOptions::default() };
    let mut a = at_free_address(63, |addr| UdpFabric::open(addr, &options));
    let peers: Vec<_> =
        (0..SOCKETS / 2).map(|n| std::net::Ipv4Addr::new(127, 200, 0, n as u8 + 1).into()).collect();
    // The first peers' queue pairs take all that is for spreading.
    for &peer in &peers {
        for n in 0..4 * u32::from(PORTS_PER_PEER) {
            a.open_path_of(&av(peer), of(n)).unwrap();
        }
    }
    assert_eq!(counter(&a, "tx_shared_paths"), 0, "each peer has a socket of its own");
    let sockets = counter(&a, "tx_ident_probes") as usize;
    assert!((SOCKETS / 2..SOCKETS).contains(&sockets), "{sockets} sockets for {} peers", peers.len());
}

#[test]
fn a_flow_label_says_the_port_of_all_queue_pairs() {
    let mut a = open(64);
    let labelled = hca_core::AddressVector { flow_label: 7, ..av(open(65).attr().local) };
    let paths: Vec<_> = (0..8).map(|n| a.open_path_of(&labelled, of(n)).unwrap()).collect();
    assert!(paths.iter().all(|p| *p == paths[0]), "{paths:?}");
}

#[test]
fn queue_pairs_without_sockets_of_their_own_share_a_port() {
    let options = UdpOptions { max_paths: 0, ..UdpOptions::default() };
    let mut a = at_free_address(66, |addr| UdpFabric::open(addr, &options));
    assert_eq!(ports_of(&mut a, &mut open(67), 0..64), 1);
}

#[test]
fn an_address_in_use_is_named_with_the_remedy() {
    let a = open(5);
    let addr = a.attr().local;
    let Err(e) = UdpFabric::open(addr, &UdpOptions::default()) else { panic!("two adapters on one address") };
    assert!(matches!(e, OpenError::InUse(at) if at == addr));
    let text = e.to_string();
    assert!(text.contains(&addr.to_string()) && text.contains("127.0.0.2"), "{text}");
}

#[test]
fn addresses_that_are_not_ours_are_refused() {
    let error = |addr: &str| UdpFabric::open(addr.parse().unwrap(), &UdpOptions::default()).err().unwrap();
    assert!(matches!(error("0.0.0.0"), OpenError::NotUnicast(_)));
    assert!(matches!(error("::"), OpenError::NotUnicast(_)));
    assert!(matches!(error("224.0.0.1"), OpenError::NotUnicast(_)));
    assert!(matches!(error("fe80::1"), OpenError::NotLocal(_)));
    assert!(matches!(error("192.0.2.1"), OpenError::NotLocal(_)));
}

#[test]
fn a_peer_of_the_other_ip_version_has_no_path() {
    let mut a = open(6);
    assert!(matches!(a.open_path(&av("::1".parse().unwrap())), Err(hca_fabric::PathError::Family { .. })));
}

#[test]
fn nobody_at_the_peers_address_is_loss_that_is_counted() {
    let mut a = open(7);
    // An address that was free a moment ago.
    let nobody = open(8).attr().local;
    let path = a.open_path(&av(nobody)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 16);
    // A process that another test starts may have a copy of the socket there until it runs its program.
    let begin = Clock::now();
    let mut sent = 0;
    while counter(&a, "tx_refused") < 4 {
        put(&mut batch, path, &packet(sent, 20));
        a.send(now(), &mut batch);
        assert!(batch.is_empty());
        sent += 1;
        assert!(begin.elapsed() < PATIENCE, "{sent} packets are lost, of which few are counted");
    }
    assert!(counter(&a, "tx_refused") < u64::from(sent), "a refusal is told by the next packet");
    // Somebody comes: the flow's numbers are still right.
    let mut b = once_free(|| UdpFabric::open(nobody, &UdpOptions::default()));
    for i in 0..5 {
        put(&mut batch, path, &packet(i, 20));
        a.send(now(), &mut batch);
        assert_eq!(receive(&mut b, 1), [packet(i, 20)]);
    }
    assert_eq!(counter(&b, "icrc_ident_solved"), 0);
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn a_path_is_as_it_was_once_the_way_to_its_peer_takes_packets_again() {
    for (net, bits, all_bits, flags) in [("10.77.0.", 24, 32, ""), ("fd77::", 64, 128, " nodad")] {
        over_wire(4500, |wire| {
            let address = |end: usize| -> IpAddr { format!("{net}{}", end + 1).parse().unwrap() };
            let [mut a, mut b] = [0, 1].map(|end| {
                wire.within(end, || UdpFabric::open(address(end), &UdpOptions::default()).unwrap())
            });
            let path = wire.within(0, || a.open_path(&av(address(1)))).unwrap();
            let mut batch = TxBatch::with_capacity(1 << 16);
            let packets: Vec<_> = (0..3).map(|n| packet(n, 4108)).collect();
            let mut leave = |a: &mut UdpFabric| {
                packets.iter().for_each(|p| put(&mut batch, path, p));
                a.send(now(), &mut batch);
                assert!(batch.is_empty());
            };
            leave(&mut a);
            assert_eq!(receive(&mut b, 3), packets);
            let (own, hole) = (format!("{net}1/{bits} dev wire"), format!("blackhole {net}2/{all_bits}"));
            for (goes, comes_back) in [
                ("link set wire mtu 1500".to_owned(), "link set wire mtu 4500".to_owned()),
                (format!("addr del {own}"), format!("addr add {own}{flags}")),
                (format!("route add {hole}"), format!("route del {hole}")),
            ] {
                wire.within(0, || ip(&goes)).unwrap();
                (0..3).for_each(|_| leave(&mut a));
                wire.within(0, || ip(&comes_back)).unwrap();
                leave(&mut a);
                assert_eq!(receive(&mut b, 3), packets, "{comes_back}");
                let by_other_ways = ["tx_uncut_trains", "tx_shared_paths"].map(|name| counter(&a, name));
                assert_eq!(by_other_ways, [0, 0], "{comes_back}");
            }
            assert!(!a.attr().notes.iter().any(|n| n.0 == "segmentation"), "{:?}", a.attr().notes);
        });
    }
}

#[test]
fn what_a_full_receive_buffer_throws_away_is_counted() {
    const SENT: usize = 1000;
    // Uncut trains: the kernel counts datagrams, and a train would be one.
    let options = UdpOptions { segmentation: false, ..UdpOptions::default() };
    let mut a = at_free_address(20, |addr| UdpFabric::open(addr, &options));
    let options = UdpOptions { recv_buffer: 8192, ..UdpOptions::default() };
    let mut b = at_free_address(21, |addr| UdpFabric::open(addr, &options));
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 22);
    for i in 0..SENT {
        put(&mut batch, path, &packet(i as u32, 1000));
    }
    a.send(now(), &mut batch);
    assert!(batch.is_empty());
    let (mut got, begin) = (0, Clock::now());
    while got as u64 + counter(&b, "rx_kernel_drops") < SENT as u64 && begin.elapsed() < PATIENCE {
        b.recv(now(), BUDGET, &mut |_| got += 1);
    }
    assert!((1..SENT).contains(&got), "{got} packets fit 8 KiB");
    assert_eq!(got as u64 + counter(&b, "rx_kernel_drops"), SENT as u64);
    assert_eq!(counter(&b, "icrc_errors"), 0);
}

#[test]
fn an_adapter_reaches_itself_over_ipv6() {
    // IPv6 loopback has one address, which another test process may hold.
    let Ok(mut a) = UdpFabric::open("::1".parse().unwrap(), &UdpOptions::default()) else { return };
    let path = a.open_path(&av(a.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 20);
    let packets: Vec<_> = [20, 28, 28, 28, 16, 4108, 4108].map(|n| packet(n, n as usize)).into();
    packets.iter().for_each(|p| put(&mut batch, path, p));
    a.send(now(), &mut batch);
    assert_eq!(receive(&mut a, packets.len()), packets);
    assert_eq!(counter(&a, "icrc_errors") + counter(&a, "icrc_ident_solved"), 0);
}

#[test]
fn datagrams_that_are_no_packets_are_dropped_and_counted() {
    let mut b = open(9);
    let to = std::net::SocketAddr::new(b.attr().local, 4791);
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for len in [0, 1, 15] {
        stranger.send_to(&vec![0xff; len], to).unwrap();
    }
    // Long enough, but with an ICRC that no Identification makes right.
    stranger.send_to(&[0xff; 16], to).unwrap();
    stranger.send_to(&[0; 60_000], to).unwrap();
    takes_none(&mut b, 5);
    assert_eq!(counter(&b, "short_packets"), 3);
    assert_eq!(counter(&b, "icrc_errors"), 2);
}

#[test]
fn many_small_datagrams_are_taken_several_a_call() {
    let (mut a, mut b) = (open(14), open(15));
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 16);
    // Lengths that alternate make each a datagram of its own.
    let packets: Vec<_> = (0..100).map(|i| packet(i, 20 + 4 * (i as usize % 3))).collect();
    for p in &packets {
        put(&mut batch, path, p);
        a.send(now(), &mut batch);
    }
    assert_eq!(counter(&a, "tx_trains"), 100);
    assert_eq!(receive(&mut b, 100), packets);
    assert_eq!((counter(&b, "rx_trains"), counter(&b, "rx_packets")), (100, 100));
    let calls = counter(&b, "recv_calls");
    assert!(calls <= 4 + 100_u64.div_ceil(8) + 2, "{calls} calls for 100 datagrams");
    // Once fewer come, one is taken a call again, and none is missed.
    for p in &packets[..3] {
        put(&mut batch, path, p);
        a.send(now(), &mut batch);
        assert_eq!(receive(&mut b, 1), std::slice::from_ref(p));
    }
}

#[test]
fn the_same_train_twice_keeps_its_own_identification() {
    // Trains of one path leave by one call of several datagrams; all are predicted.
    let (mut a, mut b) = (open(10), open(11));
    let packets: Vec<_> = (0..200).map(|i| packet(i, if i % 10 == 9 { 16 } else { 28 })).collect();
    assert_eq!(pass(&mut a, &mut b, &packets), packets);
    assert_eq!(counter(&a, "tx_trains"), 20);
    assert_eq!(counter(&a, "send_calls"), 2);
    assert_eq!(counter(&b, "icrc_ident_solved"), 0);
    assert_eq!(counter(&b, "icrc_flows_learned"), 1);
}
