//! Long WRITEs, which are done on the peer's memory in pieces, a turn each.

use std::time::{Duration, Instant};

use hca_core::{
    Access, Completion, Device, DmaMemory, MrInit, MrKeys, Payload, RemoteAddr, SendFlags, SendOp, SendWr,
    Sge, WcStatus,
};
use softhca::Progress;

use crate::ends::{End, shm_pair};
use crate::{ALL, PATIENCE, REMOTE};

const LONG: usize = 4 << 20;

/// Memory that peers can map, registered.
struct Memory {
    of: DmaMemory,
    keys: MrKeys,
}

impl Memory {
    fn new(end: &End, len: usize, access: Access) -> Self {
        let of = end.device.alloc_memory(len).unwrap();
        let addr = of.addr();
        let init = MrInit { addr, len, iova: addr.as_ptr() as u64, access };
        // SAFETY: (1)
        let keys = unsafe { end.device.reg_mr(end.pd, &init) }.unwrap();
        Self { of, keys }
    }
    fn at(&self) -> u64 {
        self.of.addr().as_ptr() as u64
    }
    fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.at(), rkey: self.keys.rkey }
    }
    fn fill(&self, value: u8) {
        // SAFETY: (1, 2)
        unsafe { self.of.addr().as_ptr().write_bytes(value, self.of.len()) };
    }
    /// How many of the first bytes have this value.
    fn first(&self, len: usize, value: u8) -> usize {
        // SAFETY: (1, 2)
        (0..len).take_while(|at| unsafe { self.of.addr().as_ptr().add(*at).read_volatile() } == value).count()
    }
}

fn write(a: &mut End, from: &Memory, to: RemoteAddr, len: usize) {
    let sges = [Sge { addr: from.at(), len: len as u32, lkey: from.keys.lkey }];
    let wr = SendWr {
        wr_id: 7,
        op: SendOp::Write(to),
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(&sges),
        dest: None,
    };
    // SAFETY: (1, 2)
    unsafe { a.rc.send.post(&[wr]) }.unwrap();
    a.rc.send.ring();
}
fn polled(a: &mut End) -> Option<WcStatus> {
    let mut one = [Completion::default()];
    (a.cq.poll(&mut one) == 1).then_some(one[0].status)
}
fn ends(a: &mut End, b: &End) -> WcStatus {
    (0..5_000_000)
        .find_map(|_| {
            b.device.turn();
            polled(a)
        })
        .expect("it completes")
}
/// Repeats a WRITE of a few bytes until it is done without the peer.
fn warm_up(a: &mut End, b: &End, from: &Memory, to: RemoteAddr) {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        write(a, from, to, 8);
        if let Some(status) = polled(a) {
            return assert_eq!(status, WcStatus::Success);
        }
        assert_eq!(ends(a, b), WcStatus::Success);
    }
    panic!("it always goes as a message");
}

/// The target changes its region while a WRITE is half done, and grants another one in that moment.
#[test]
fn a_write_that_goes_on_as_a_message_leaves_nothing_to_the_next_one() {
    let [mut a, b] = shm_pair(Progress::Inline);
    let qp = hca_core::QpAttr { access: Some(REMOTE), ..hca_core::QpAttr::default() };
    b.device.modify_qp(b.rc.handle, &qp).unwrap();
    let from = Memory::new(&a, LONG, Access::LOCAL_WRITE);
    let [to, other] = [0, 1].map(|_| Memory::new(&b, LONG, ALL));
    from.fill(0x55);
    warm_up(&mut a, &b, &from, to.remote());
    // The target's adapter looks at its sockets each millisecond, and has done so just now.
    std::thread::sleep(Duration::from_millis(2));
    b.device.turn();
    write(&mut a, &from, other.remote(), 8);
    let done = (0..100).find_map(|_| {
        b.device.turn();
        polled(&mut a)
    });
    assert_eq!(done, Some(WcStatus::Success), "it went as a message");
    write(&mut a, &from, to.remote(), LONG);
    let begun = to.first(LONG, 0x55);
    assert!((1..LONG).contains(&begun), "{begun} bytes are done");
    b.device.rereg_mr(to.keys.handle, b.pd, ALL).unwrap();
    // As above: until the next look.
    std::thread::sleep(Duration::from_millis(2));
    b.device.turn();
    assert_eq!(ends(&mut a, &b), WcStatus::Success);
    assert_eq!(to.first(LONG, 0x55), LONG);
    for value in 1..20 {
        from.fill(value);
        write(&mut a, &from, to.remote(), 2 << 20);
        let status = polled(&mut a).unwrap_or_else(|| ends(&mut a, &b));
        assert_eq!((status, to.first(LONG, value)), (WcStatus::Success, 2 << 20), "WRITE {value}");
    }
}
