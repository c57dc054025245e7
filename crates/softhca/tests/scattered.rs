//! Regions of memory in several pieces, written to by a peer over shared memory.
//!
//! Invariants:
//! 1. The pieces lie in memory that outlives their region, and no reference to it exists.
#![allow(unsafe_code)]

mod ends;

use std::sync::Arc;

use ends::{End, post, shm_pair};
use hca_core::{Access, Device, RemoteAddr, SendFlags, SendOp};
use softhca::{Progress, Scattered};

const IOVA: u64 = 0x5_0000;

fn bytes(end: &End, at: usize, len: usize) -> Vec<u8> {
    // SAFETY: (1)
    (at..at + len).map(|at| unsafe { end.memory.addr().as_ptr().add(at).read_volatile() }).collect()
}

#[test]
fn a_peer_writes_over_the_gaps_by_messages_and_is_never_granted_the_memory() {
    for progress in [Progress::Inline, Progress::Adaptive] {
        let [mut a, b] = shm_pair(progress);
        let base = b.memory.addr();
        let piece = |at: usize, len| (base.map_addr(|a| a.saturating_add(at)), len);
        let memory = Arc::new(Scattered::new([piece(2048, 3), piece(512, 2), piece(1024, 2)]).unwrap());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // SAFETY: (1)
        let keys = unsafe { b.device.reg_scattered(b.pd, memory, (IOVA, access), 7) }.unwrap();
        let to = RemoteAddr { addr: IOVA, rkey: keys.rkey };
        let came = b.counter("rx_messages");
        for _ in 0..100 {
            post(&mut a.rc, &[SendOp::Write(to)], SendFlags::SIGNALED);
            a.next(&*b.device).expect("the WRITE completes");
        }
        assert!(b.counter("rx_messages") >= came + 100, "{progress}: each WRITE is a message");
        for (at, part) in [(2048, &b"mes"[..]), (512, b"sa"), (1024, b"ge")] {
            assert_eq!(bytes(&b, at, part.len()), part, "{progress}: at {at}");
            assert_eq!(bytes(&b, at + part.len(), 1), [0], "{progress}: behind it");
        }
        b.device.dereg_mr(keys.handle).unwrap();
        a.close();
        b.close();
    }
}
