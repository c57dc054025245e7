//! The suite over io_uring, and tests of io_uring only.

use hca_fabric::{Fabric, TxBatch, UringFabric, UringOptions};

use crate::suite::{BUDGET, at_free_address, av, counter, now, packet, put, queue_pairs_are_spread, receive};

fn open(salt: u32) -> Box<dyn Fabric> {
    at_free_address(salt, |addr| UringFabric::open_or_udp(addr, &UringOptions::default()))
}

#[test]
fn the_suite_passes_over_uring() {
    crate::suite::run(open(31), open(32));
}

#[test]
fn the_suite_passes_on_a_ring_of_one_thread() {
    let options = UringOptions { single_thread: true, ..UringOptions::default() };
    let open = |salt| at_free_address(salt, |addr| UringFabric::open_or_udp(addr, &options));
    crate::suite::run(open(33), open(34));
}

#[test]
fn queue_pairs_to_one_peer_have_several_source_ports() {
    queue_pairs_are_spread(&mut *open(68), &mut *open(69));
}

#[test]
fn a_batch_for_several_peers_leaves_by_one_call_and_is_predicted() {
    let mut a = open(35);
    let mut peers: Vec<_> = (36..40).map(open).collect();
    let paths: Vec<_> = peers.iter().map(|p| a.open_path(&av(p.attr().local)).unwrap()).collect();
    let mut batch = TxBatch::with_capacity(1 << 20);
    for round in 0..20 {
        for i in 0..12 {
            put(&mut batch, paths[i % 4], &packet(round, 20 + 4 * i));
        }
        a.send(now(), &mut batch);
        assert!(batch.is_empty());
        for (k, p) in peers.iter_mut().enumerate() {
            let want: Vec<_> = (0..3).map(|i| packet(round, 20 + 4 * (4 * i + k))).collect();
            assert_eq!(receive(&mut **p, 3), want);
        }
    }
    for p in &peers {
        assert_eq!(counter(&**p, "icrc_ident_solved") + counter(&**p, "icrc_errors"), 0);
    }
    if a.attr().name == "uring" {
        assert_eq!(counter(&*a, "send_calls"), 20);
    }
}

#[test]
fn a_refused_train_in_a_chain_stops_no_other_peer() {
    let mut a = open(41);
    let nobody = open(42).attr().local;
    let mut b = open(43);
    let (to_nobody, to_b) = (a.open_path(&av(nobody)).unwrap(), a.open_path(&av(b.attr().local)).unwrap());
    let mut batch = TxBatch::with_capacity(1 << 16);
    for round in 0..10 {
        put(&mut batch, to_nobody, &packet(round, 20));
        put(&mut batch, to_b, &packet(round, 20));
        a.send(now(), &mut batch);
        assert!(batch.is_empty());
        assert_eq!(receive(&mut *b, 1), [packet(round, 20)]);
    }
    assert_eq!(counter(&*b, "icrc_ident_solved") + counter(&*b, "icrc_errors"), 0);
    assert_eq!(counter(&*a, "tx_packets"), 20);
}

#[test]
fn the_receive_goes_on_when_the_thread_that_armed_it_ends() {
    let mut a = open(44);
    let mut b = std::thread::spawn(|| open(45)).join().unwrap();
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 16);
    for i in 0..5 {
        put(&mut batch, path, &packet(i, 20));
        a.send(now(), &mut batch);
        b = std::thread::spawn(move || {
            assert_eq!(receive(&mut *b, 1), [packet(i, 20)]);
            b
        })
        .join()
        .unwrap();
    }
}

#[test]
fn more_datagrams_than_buffers_arrive_all() {
    let (mut a, mut b) = (open(46), open(47));
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 20);
    // Each its own train, as the sizes ascend.
    let packets: Vec<_> = (0..300_u32).map(|i| packet(i, 20 + 4 * i as usize)).collect();
    packets.iter().for_each(|p| put(&mut batch, path, p));
    a.send(now(), &mut batch);
    assert_eq!(receive(&mut *b, 300), packets);
    b.recv(now(), BUDGET, &mut |_| panic!("all were taken"));
}
