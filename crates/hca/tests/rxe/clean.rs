//! All operations of connections, both ways, on a network that loses nothing.

use hca::{Rc, Uc};

use crate::world::{GUARD, Kind, Op, Request, Setup, Side, World};

/// Around the path MTU, and around what fits a train of packets.
fn sizes(mtu: usize) -> Vec<usize> {
    vec![0, 1, 7, mtu - 1, mtu, mtu + 1, 2 * mtu - 1, 2 * mtu, 2 * mtu + 1, 9 * mtu + 5, 64 * mtu + 3]
}

/// The path MTUs that both ports have, of three.
fn mtus(largest: usize) -> impl Iterator<Item = usize> {
    [256, 1024, 4096].into_iter().filter(move |&mtu| mtu <= largest)
}

/// Each kind by each side.
fn all(kinds: &[Kind], len: usize, seed: &mut u64) -> Vec<Op> {
    let of = |by| kinds.iter().map(move |&kind| (by, kind));
    let pairs = of(Side::Ours).chain(of(Side::Rxe));
    pairs
        .map(|(by, kind)| {
            *seed += 1;
            Op { by, kind, len, seed: *seed << 20 | 0x9_1d37 }
        })
        .collect()
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run rxe"]
fn every_operation_of_a_reliable_connection_arrives_both_ways() {
    let mut seed = 0;
    let largest = World::<Rc>::new(4096).peer.mtu;
    for mtu in mtus(largest) {
        let mut world = World::<Rc>::connected(16 << 20, Setup { mtu, ..Setup::default() });
        for len in sizes(mtu).into_iter().chain([1 << 20]) {
            world.round(&all(&Kind::ALL, len, &mut seed)).unwrap_or_else(|e| panic!("MTU {mtu}: {e}"));
        }
        println!("rc: MTU {mtu}: {} transfers, {} bytes", world.transfers, world.bytes);
    }
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run rxe"]
fn every_operation_of_an_unreliable_connection_arrives_both_ways() {
    let mut seed = 1 << 30;
    let largest = World::<Uc>::new(4096).peer.mtu;
    for mtu in mtus(largest) {
        let mut world = World::<Uc>::connected(16 << 20, Setup { mtu, ..Setup::default() });
        for len in sizes(mtu) {
            // One at a time: nobody tells a sender that its receiver's socket is full.
            for op in all(&Kind::UNRELIABLE, len, &mut seed) {
                world.round(&[op]).unwrap_or_else(|e| panic!("MTU {mtu}: {e}"));
            }
        }
        println!("uc: MTU {mtu}: {} transfers, {} bytes", world.transfers, world.bytes);
    }
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run rxe"]
fn packet_numbers_wrap_in_the_middle_of_messages() {
    for psn in [[0xff_fff0, 0xff_ffff], [0xff_ffff, 0xff_fff9], [0x7f_fffa, 0x7f_ffff], [0, 0]] {
        let mut world = World::<Rc>::connected(16 << 20, Setup { psn, ..Setup::default() });
        let mut seed = 2 << 30;
        for len in [0, 1, 5000, 33_000] {
            world.round(&all(&Kind::ALL, len, &mut seed)).unwrap_or_else(|e| panic!("PSNs {psn:x?}: {e}"));
        }
    }
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run rxe"]
fn three_connections_take_from_one_shared_receive_queue_at_each_end() {
    const LEN: usize = 3000;
    const SLOT: usize = 4096;
    const MESSAGES: usize = 60;
    let mut world = World::<Rc>::new(2 * MESSAGES * SLOT);
    let setup = Setup { shared: true, ..Setup::default() };
    let links = [(); 3].map(|()| world.connect(setup));
    for by in Side::BOTH {
        let to = by.other();
        for i in 0..MESSAGES {
            let slot = (MESSAGES + i) * SLOT + GUARD;
            world.fill(by, i * SLOT, LEN, i as u64 + 77);
            world.blank(to, slot - GUARD, LEN + 2 * GUARD);
            world.post_recv(links[0], to, i as u64, slot, LEN);
        }
        world.peer.settle();
        for i in 0..MESSAGES {
            let remote = world.remote(by, 0);
            let (id, at, a) = (i as u64, i * SLOT, i as u64);
            let request = Request { id, kind: Kind::SendImm, at, len: LEN, remote, a, b: 0 };
            world.post(links[i % 3], by, &request);
        }
        let sent = world.reap(by, MESSAGES);
        assert!(sent.iter().all(|done| done.status == 0), "{sent:?}");
        let mut seen = [false; MESSAGES];
        for done in world.reap(to, MESSAGES) {
            // Which message it is, its immediate data says; in which buffer, its id.
            let message = done.imm as usize;
            assert_eq!(
                (done.status, done.bytes as usize, done.link),
                (0, LEN, links[message % 3]),
                "{done:?}"
            );
            assert!(!std::mem::replace(&mut seen[message], true), "{message} came twice");
            let slot = (MESSAGES + done.id as usize) * SLOT + GUARD;
            world.check(to, slot, LEN, message as u64 + 77).unwrap_or_else(|e| panic!("{message}: {e}"));
        }
    }
}
