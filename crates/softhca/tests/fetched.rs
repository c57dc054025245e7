//! Memory that is lent over shared memory is fetched by the peer: memory of a program's own, though the peer has asked
//! for nothing itself, and memory of the adapter, by whichever queue pair.
//!
//! Invariants:
//! 1. The memory is leaked, or outlives its region, and no reference to it exists once it is registered.
#![allow(unsafe_code)]

mod ends;

use core::ptr::NonNull;

use ends::{End, PATIENT, Qp, connect_with, shm_pair};
use hca_core::{
    Access, Device, Gid, MrInit, MrKeys, Payload, QpCap, QpInit, QpType, RecvWr, RemoteAddr, SendFlags,
    SendOp, SendWr, Sge,
};
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
        let mut write = || {
            // SAFETY: (1)
            unsafe { a.rc.send.post_now(&SendWr { wr_id: 1, op, flags, payload, dest: None }) }.unwrap();
            a.next(&*b.device).expect("the WRITE completes");
            b.counter("process_fetch_bytes")
        };
        // The first ones come before the adapters have agreed on it.
        let agreed = (0..SENDS).any(|_| write() > 0);
        let before = write();
        let fetched = (0..100).map(|_| write()).last().unwrap_or(before) - before;
        // SAFETY: (1)
        let landed = (0..LEN).all(|at| unsafe { to.as_ptr().add(at).read_volatile() } == 7);
        assert!(landed, "{progress}");
        if b.counter("processes_not_readable") > 0 {
            println!("skipped: this system lets no process read another");
        } else {
            assert!(
                agreed && fetched > (50 * LEN) as u64,
                "{progress}: most are fetched, not {fetched} bytes"
            );
            assert!(a.counter("nak_received") <= 1, "{progress}: what is lent is not sent again");
        }
        b.device.dereg_mr(keys.handle).unwrap();
        a.device.dereg_mr(local.handle).unwrap();
        a.close();
        b.close();
    }
}

/// One more reliable queue pair.
fn another(end: &End) -> Qp {
    let (send_cq, recv_cq) = (end.cq_handle, end.cq_handle);
    let init = QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap: QpCap::default() };
    let ports = end.device.create_qp(end.pd, &init).unwrap();
    let recv = ports.recv.expect("it has a queue of its own");
    Qp { handle: ports.handle, qpn: ports.qpn, send: ports.send, recv }
}
fn connect(end: &End, qp: &Qp, peer: &End, to: &Qp) {
    connect_with(&end.device, qp.handle, (Gid::from_ip(peer.device.fabric().local), to.qpn), Some(PATIENT));
}

/// Memory of the adapter that SENDs come from, and memory that they go to.
struct Memory {
    from: Sge,
    to: Sge,
}

/// Sends all of the memory, and returns the lines of the ring that it took.
fn send(qp: &mut Qp, memory: &Memory, [a, b]: [&mut End; 2]) -> u64 {
    let before = a.counter("tx_lines");
    let (payload, flags) = (Payload::Sges(&[memory.from]), SendFlags::SIGNALED);
    // SAFETY: (1)
    unsafe { qp.send.post_now(&SendWr { wr_id: 1, op: SendOp::Send, flags, payload, dest: None }) }.unwrap();
    a.next(&*b.device).expect("the SEND completes");
    b.next(&*a.device).expect("the receive request completes");
    a.counter("tx_lines") - before
}
fn receive(qp: &mut Qp, memory: &Memory) {
    // SAFETY: (1)
    unsafe { qp.recv.post(&[RecvWr { wr_id: 2, sges: &[memory.to] }]) }.unwrap();
    qp.recv.ring();
}

/// Two adapters, memory that the first one sends from, and two pairs of queue pairs, which are not connected.
fn two_pairs() -> ([End; 2], [[Qp; 2]; 2], Memory) {
    let [a, b] = shm_pair(Progress::Inline);
    let pairs = [(); 2].map(|()| [&a, &b].map(another));
    let lent = Box::leak(Box::new(a.device.alloc_memory(LEN).unwrap()));
    let (addr, access) = (lent.addr(), Access::LOCAL_WRITE);
    let init = MrInit { addr, len: LEN, iova: addr.as_ptr() as u64, access };
    // SAFETY: (1)
    let from = unsafe { a.device.reg_mr(a.pd, &init) }.unwrap();
    let (to, keys) = register(&b, 0, Access::LOCAL_WRITE);
    let sge = |addr: NonNull<u8>, lkey| Sge { addr: addr.as_ptr() as u64, len: LEN as u32, lkey };
    ([a, b], pairs, Memory { from: sge(addr, from.lkey), to: sge(to, keys.lkey) })
}

/// Lines that a SEND takes at most that is lent; by the ring it takes thousands.
const LENT: u64 = 64;
/// SENDs within which a queue pair begins to lend. It is told what it needs a few milliseconds apart.
const SENDS: usize = 10_000;

fn begins_to_lend([by, to]: &mut [Qp; 2], [a, b]: [&mut End; 2], memory: &Memory) -> bool {
    (0..SENDS).any(|_| {
        receive(to, memory);
        send(by, memory, [&mut *a, &mut *b]) < LENT
    })
}

#[test]
fn memory_that_a_peer_was_given_by_one_queue_pair_is_lent_by_each() {
    let ([mut a, mut b], pairs, memory) = two_pairs();
    for mut pair in pairs {
        connect(&a, &pair[0], &b, &pair[1]);
        connect(&b, &pair[1], &a, &pair[0]);
        assert!(begins_to_lend(&mut pair, [&mut a, &mut b], &memory), "{}", pair[0].qpn);
    }
}

#[test]
fn a_queue_pair_that_sent_before_its_peer_was_connected_lends() {
    let ([mut a, mut b], [mut first, mut late], memory) = two_pairs();
    connect(&a, &first[0], &b, &first[1]);
    connect(&b, &first[1], &a, &first[0]);
    assert!(begins_to_lend(&mut first, [&mut a, &mut b], &memory));
    connect(&a, &late[0], &b, &late[1]);
    let (payload, flags) = (Payload::Sges(&[memory.from]), SendFlags::SIGNALED);
    let wr = SendWr { wr_id: 1, op: SendOp::Send, flags, payload, dest: None };
    // SAFETY: (1)
    unsafe { late[0].send.post_now(&wr) }.unwrap();
    for _ in 0..1000 {
        a.device.turn();
        b.device.turn();
    }
    connect(&b, &late[1], &a, &late[0]);
    receive(&mut late[1], &memory);
    a.next(&*b.device).expect("it arrives in the end");
    b.next(&*a.device).expect("it arrives in the end");
    assert!(begins_to_lend(&mut late, [&mut a, &mut b], &memory));
}

/// Writes a few bytes until the peer's program has `shown` them without a turn of its adapter's, which goes on in pieces.
fn is_reached(qp: &mut Qp, to: RemoteAddr, [a, b]: [&mut End; 2]) -> bool {
    (0..SENDS).any(|_| {
        let before = a.counter("process_writes");
        ends::post(qp, &[SendOp::Write(to)], SendFlags::SIGNALED);
        a.next(&*b.device).expect("the WRITE completes");
        a.counter("process_writes") > before
    })
}

/// Memory of the program's own, in a place where the adapter's comes again.
fn own_memory_where_the_adapters_was(end: &End) -> NonNull<u8> {
    let both = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let flags = rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::FIXED_NOREPLACE;
    let place = || {
        let at = end.device.alloc_memory(LEN).unwrap().addr();
        // SAFETY: new memory, if nothing is there.
        unsafe { rustix::mm::mmap_anonymous(at.as_ptr().cast(), LEN, both, flags) }.ok().map(|_| at)
    };
    (0..100).find_map(|_| place()).expect("it is free again, unless another thread was quicker")
}

/// The program registers memory of its own, and then has memory of the adapter in its place: its key names either.
#[test]
fn a_region_whose_memory_was_exchanged_is_not_granted_once_more() {
    let [mut a, mut b] = shm_pair(Progress::Inline);
    let mut pairs = [(); 2].map(|()| [&a, &b].map(another));
    for [by, to] in &pairs {
        connect(&a, by, &b, to);
        connect(&b, to, &a, by);
    }
    let at = own_memory_where_the_adapters_was(&b);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let init = MrInit { addr: at, len: LEN, iova: at.as_ptr() as u64, access };
    // SAFETY: (1), but for a moment, in which nobody turns.
    let keys = unsafe { b.device.reg_mr(b.pd, &init) }.unwrap();
    let to = RemoteAddr { addr: at.as_ptr() as u64, rkey: keys.rkey };
    if !is_reached(&mut pairs[0][0], to, [&mut a, &mut b]) {
        return println!("skipped: this system lets no process write to another");
    }
    // SAFETY: the test's own.
    unsafe { rustix::mm::munmap(at.as_ptr().cast(), LEN) }.unwrap();
    let mut others = Vec::new();
    let _there = loop {
        let memory = b.device.alloc_memory(LEN).unwrap();
        if memory.addr() == at {
            break memory;
        }
        others.push(memory);
        if others.len() > 64 {
            return println!("skipped: the system has given the place to somebody else");
        }
    };
    for [by, _] in &mut pairs {
        for _ in 0..SENDS {
            ends::post(by, &[SendOp::Write(to)], SendFlags::SIGNALED);
            a.next(&*b.device).expect("the WRITE completes");
        }
    }
    // SAFETY: (1)
    assert_eq!(unsafe { at.as_ptr().cast::<[u8; 7]>().read_volatile() }, *b"message");
    b.device.dereg_mr(keys.handle).unwrap();
}
