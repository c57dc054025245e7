//! Memory of a program's own, written to a peer over shared memory: the peer fetches it, though it has asked for nothing
//! itself.
//!
//! Invariants:
//! 1. The memory is leaked, and no reference to it exists once it is registered.
#![allow(unsafe_code)]

mod ends;

use core::ptr::NonNull;

use ends::{End, shm_pair};
use hca_core::{Access, Device, MrInit, MrKeys, Payload, RemoteAddr, SendFlags, SendOp, SendWr, Sge};
use softhca::Progress;

const LEN: usize = 256 << 10;

fn register(end: &End, fill: u8, access: Access) -> (NonNull<u8>, MrKeys) {
    let addr = NonNull::from(Box::leak(vec![fill; LEN].into_boxed_slice())).cast();
    let init = MrInit { addr, len: LEN, iova: addr.as_ptr() as u64, access };
    // SAFETY: (1)
    (addr, unsafe { end.device.reg_mr(end.pd, &init) }.unwrap())
}

#[test]
fn a_peer_that_requests_nothing_itself_fetches_what_is_written_to_it() {
    for progress in [Progress::Inline, Progress::Adaptive] {
        let [mut a, b] = shm_pair(progress);
        let (from, local) = register(&a, 7, Access::LOCAL_WRITE);
        let (to, keys) = register(&b, 0, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let sges = [Sge { addr: from.as_ptr() as u64, len: LEN as u32, lkey: local.lkey }];
        let op = SendOp::Write(RemoteAddr { addr: to.as_ptr() as u64, rkey: keys.rkey });
        let (payload, flags) = (Payload::Sges(&sges), SendFlags::SIGNALED);
        for _ in 0..100 {
            // SAFETY: (1)
            unsafe { a.rc.send.post_now(&SendWr { wr_id: 1, op, flags, payload, dest: None }) }.unwrap();
            a.next(&*b.device).expect("the WRITE completes");
        }
        // SAFETY: (1)
        let landed = (0..LEN).all(|at| unsafe { to.as_ptr().add(at).read_volatile() } == 7);
        assert!(landed, "{progress}");
        if b.counter("processes_not_readable") > 0 {
            println!("skipped: this system lets no process read another");
        } else {
            // The first ones come before the adapters have agreed on it.
            assert!(b.counter("process_fetch_bytes") > (50 * LEN) as u64, "{progress}: most are fetched");
            assert!(a.counter("nak_received") <= 1, "{progress}: what is lent is not sent again");
        }
        b.device.dereg_mr(keys.handle).unwrap();
        a.device.dereg_mr(local.handle).unwrap();
        a.close();
        b.close();
    }
}
