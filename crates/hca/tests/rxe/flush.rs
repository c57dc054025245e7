//! FLUSH, with either side as the requester.
//!
//! The ICRC of rxe's FLUSH packets is wrong, at least up to Linux 7.2.13: rxe's table of opcodes has no offset of a payload
//! for FLUSH, so rxe takes the whole packet for its payload, and its ICRC covers the BTH, FETH and RETH twice. So rxe and
//! any other adapter drop each other's FLUSHes, which end as `RetryExceeded`. `vm/run rxe` has a relay between the two ends
//! that turns one ICRC into the other (`vm/jobs/rxe/flush_relay.c`).

use hca::hca_core::WcStatus;

use crate::extended::{self, AT, BYTES, LEN, ends, request};
use crate::world::{GUARD, Kind, Request, Side};

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run rxe"]
fn flushes_end_behind_the_data_before_them() {
    let Some(mut world) = extended::world(&["flush"]) else { return };
    for by in Side::BOTH {
        for n in 0..50u64 {
            world.fill(by, AT, LEN, n + 200);
            world.blank(by.other(), AT - GUARD, LEN + 2 * GUARD);
            world.peer.settle();
            let remote = world.remote(by, AT);
            world.post(0, by, &Request { id: 6, ..request(Kind::Write, AT, LEN, remote) });
            world.post(0, by, &Request { b: n % 2, ..request(Kind::Flush, 0, LEN, remote) });
            let done = world.reap(by, 2);
            assert_eq!(
                done.iter().map(|d| (d.id, d.status)).collect::<Vec<_>>(),
                [(6, 0), (7, 0)],
                "{n} by {by:?}"
            );
            world
                .check(by.other(), AT, LEN, n + 200)
                .unwrap_or_else(|e| panic!("before a FLUSH by {by:?}: {e}"));
        }
        println!("rc: 50 FLUSHes by {by:?}");
    }
    // Its address is free again.
    drop(world);
    for by in Side::BOTH {
        let Some(mut world) = extended::world(&["flush"]) else { return };
        let beyond = world.remote(by, BYTES - LEN + 1);
        let status = ends(&mut world, by, &request(Kind::Flush, 0, LEN, beyond));
        assert_eq!(status, WcStatus::RemoteAccess as u32, "a FLUSH by {by:?} that ends behind the region");
    }
}
