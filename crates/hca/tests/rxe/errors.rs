//! Errors that end connections, and conditions that make them wait.

use hca::Rc;
use hca::hca_core::{RemoteAddr, Rkey, WcStatus};

use crate::world::{Done, GUARD, Kind, Request, Setup, Side, World, remote_region};

const LEN: usize = 2500;
const AT: usize = 4096;

fn world() -> World<Rc> {
    World::connected(1 << 16, Setup::default())
}
/// A request of 2500 bytes, or of 8 where it is an atomic operation.
fn request(kind: Kind, remote: RemoteAddr) -> Request {
    let len = if kind.is_atomic() { 8 } else { LEN };
    Request { id: 7, kind, at: AT, len, remote, a: 1, b: 2 }
}
fn only(world: &mut World<Rc>, side: Side) -> Done {
    world.reap(side, 1)[0]
}
/// Posts it, and it fails so; the memory that it would have changed is as it was.
fn fails(
    by: Side,
    kind: Kind,
    status: WcStatus,
    what: &str,
    bend: impl Fn(&mut World<Rc>, RemoteAddr) -> RemoteAddr,
) {
    let mut world = world();
    world.blank(by.other(), 0, 1 << 16);
    world.blank(by, 0, 1 << 16);
    let good = world.remote(by, AT);
    let remote = bend(&mut world, good);
    if kind == Kind::WriteImm {
        world.post_recv(0, by.other(), 8, 0, 0);
    }
    world.peer.settle();
    world.post(0, by, &request(kind, remote));
    let done = only(&mut world, by);
    assert_eq!((done.id, done.status), (7, status as u32), "{kind:?} by {by:?}, {what}: {done:?}");
    for side in Side::BOTH {
        // No seed: the guard around no bytes.
        for at in [AT, AT + LEN / 2, AT + LEN] {
            world
                .check(side, at, 0, 0)
                .unwrap_or_else(|e| panic!("{kind:?} by {by:?}, {what}: {side:?}: {e}"));
        }
    }
    // What is posted behind it is flushed.
    world.post(0, by, &request(kind, good));
    assert_eq!(only(&mut world, by).status, WcStatus::WrFlushed as u32, "{kind:?} by {by:?}, {what}");
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run rxe"]
fn keys_that_are_wrong_or_do_not_reach_end_the_connection() {
    for by in Side::BOTH {
        for kind in [Kind::Write, Kind::WriteImm, Kind::Read, Kind::Add, Kind::CompareSwap] {
            fails(by, kind, WcStatus::RemoteAccess, "a wrong key", |_, good| RemoteAddr {
                rkey: Rkey::new(good.rkey.raw() ^ 0x0101_0101),
                ..good
            });
            fails(by, kind, WcStatus::RemoteAccess, "behind the end", |world, good| {
                let inside = if kind.is_atomic() { 0 } else { LEN - 1 };
                RemoteAddr { addr: good.addr + (world.memory.len() - AT - inside) as u64, ..good }
            });
        }
    }
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run rxe"]
fn a_region_without_a_right_refuses_what_needs_it() {
    for (kind, rights) in [(Kind::Write, "ra"), (Kind::Read, "wa"), (Kind::Add, "wr")] {
        fails(Side::Ours, kind, WcStatus::RemoteAccess, "without the right", |world, _| {
            let said = world.peer.ask(&format!("region 65536 {rights}"));
            let region = remote_region(&said);
            RemoteAddr { addr: region.addr + AT as u64, ..region }
        });
    }
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run rxe"]
fn a_message_longer_than_its_receive_request_fails_at_both_ends() {
    for by in Side::BOTH {
        for (len, room) in [(LEN, LEN - 1), (1, 0), (500, 100), (1025, 1024)] {
            let mut world = world();
            let (to, base) = (by.other(), AT);
            world.blank(to, base - GUARD, 4 * GUARD + LEN);
            world.post_recv(0, to, 9, base, room);
            world.peer.settle();
            let remote = world.remote(by, 0);
            world.post(0, by, &Request { len, ..request(Kind::Send, remote) });
            let (sent, received) = (only(&mut world, by), only(&mut world, to));
            // rxe says otherwise than the IBA, which wants what ours says: docs/linux-rxe.md.
            let wanted = match to {
                Side::Ours => (WcStatus::RemoteInvalidRequest, WcStatus::LocalLength),
                Side::Rxe => (WcStatus::RemoteOperation, WcStatus::LocalQpOperation),
            };
            let found = (sent.status, received.id, received.status);
            assert_eq!(found, (wanted.0 as u32, 9, wanted.1 as u32), "{len} into {room} by {by:?}");
            world.check(to, base + room + GUARD, 0, 0).unwrap_or_else(|e| panic!("{len} into {room}: {e}"));
        }
    }
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run rxe"]
fn a_sender_waits_for_a_receive_request_and_gives_up_if_it_was_told_so() {
    for by in Side::BOTH {
        let mut world = world();
        let to = by.other();
        world.fill(by, AT, LEN, 5);
        world.blank(to, AT - GUARD, LEN + 2 * GUARD);
        let remote = world.remote(by, 0);
        world.post(0, by, &request(Kind::Send, remote));
        // Several times it is told that nobody is ready.
        let refused = |world: &mut World<Rc>| match to {
            Side::Ours => world.context.counter("rnr_nak_sent").unwrap(),
            Side::Rxe => world.context.counter("rnr_nak_received").unwrap(),
        };
        while refused(&mut world) < 3 {
            assert_eq!(world.poll(by, 1), [], "there is nothing to send into");
        }
        world.post_recv(0, to, 9, AT, LEN);
        world.peer.settle();
        let (sent, received) = (only(&mut world, by), only(&mut world, to));
        assert_eq!((sent.status, received.status, received.bytes), (0, 0, LEN as u32), "by {by:?}");
        world.check(to, AT, LEN, 5).unwrap_or_else(|e| panic!("by {by:?}: {e}"));

        drop(world);
        let mut world = World::<Rc>::connected(1 << 16, Setup { rnr_retry: 1, ..Setup::default() });
        let remote = world.remote(by, 0);
        world.post(0, by, &request(Kind::Send, remote));
        let sent = only(&mut world, by);
        assert_eq!(sent.status, WcStatus::RnrRetryExceeded as u32, "by {by:?}: {sent:?}");
    }
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run rxe"]
fn a_peer_whose_queue_pair_is_gone_is_given_up_on() {
    let brief = Setup { timeout: 12, retry: [3, 3], ..Setup::default() };
    for by in Side::BOTH {
        let mut world = World::<Rc>::new(1 << 16);
        world.connect(brief);
        world.destroy(0, by.other());
        let remote = world.remote(by, AT);
        world.post(0, by, &request(Kind::Write, remote));
        let done = only(&mut world, by);
        assert_eq!(done.status, WcStatus::RetryExceeded as u32, "by {by:?}: {done:?}");
    }
}
