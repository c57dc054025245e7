//! Reuse of completion queues, of queue pairs' numbers, and of requests of shared receive queues. An old object must
//! not be mistaken for its successor, and nothing is lost between the two.
//!
//! Invariants:
//! 1. The memory that is registered outlives its adapter.
//! 2. Posted requests name that memory, and no reference to it exists.
#![allow(unsafe_code)] // `reg_mr`, whose contract is its caller's

mod ends;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ends::{End, connect, open, send};
use hca_core::{
    Access, AsyncEvent, Completion, Device, DmaMemory, Gid, MrInit, MrKeys, MwRange, MwType, Payload, QpAttr,
    QpCap, QpInit, QpState, QpType, RecvWr, Rkey, SendFlags, SendOp, SendWr, Sge, WcStatus,
};
use hca_fabric::LoopbackNet;
use softhca::{Options, Progress, SoftHca};

const FABRICS: [&str; 2] = ["udp", "shm"];

fn device(options: Options) -> Arc<SoftHca> {
    let fabric = LoopbackNet::new().attach(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    SoftHca::open(Box::new(fabric), Options { progress: Progress::Inline, ..options }).unwrap()
}

/// The number of a queue pair that is made for it.
fn a_number(device: &SoftHca) -> u32 {
    let pd = device.alloc_pd().unwrap();
    let (cq, _port) = device.create_cq(4).unwrap();
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() };
    let init = QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap };
    let qp = device.create_qp(pd, &init).unwrap();
    device.destroy_qp(qp.handle).unwrap();
    qp.qpn.raw()
}

#[test]
fn the_port_of_a_destroyed_completion_queue_yields_nothing_of_its_successor() {
    for fabric in FABRICS {
        let [da, db] = [1, 2].map(|salt| open(fabric, Progress::Inline, salt).unwrap());
        let (old, mut port) = db.create_cq(64).unwrap();
        db.destroy_cq(old).unwrap();
        let (mut a, mut b) = (End::new(da), End::new(db));
        assert_eq!(b.cq_handle.index, old.index, "the successor stands in the same place");
        a.connect(&b);
        b.connect(&a);
        for round in 0..20 {
            b.recv();
            send(&mut a.rc, SendFlags::empty());
            for _ in 0..200 {
                a.device.turn();
                let mut wcs = [Completion::default(); 4];
                assert_eq!(port.poll(&mut wcs), 0, "{fabric}, round {round}: {:?}", wcs[0]);
            }
            b.next(&*a.device).expect("the message arrives");
        }
    }
}

#[test]
fn the_number_of_a_queue_pair_that_went_is_not_used_again_soon() {
    let device = device(Options::default());
    let mut slots = HashSet::new();
    for nth in 0..1000 {
        let slot = a_number(&device) & 0x1_ffff;
        assert!(slots.insert(slot), "queue pair {nth} has the slot of one before");
    }
}

#[test]
fn numbers_begin_elsewhere_with_each_adapter() {
    let firsts: HashSet<u32> = (0..32).map(|_| a_number(&device(Options::default()))).collect();
    assert!(firsts.len() > 8, "32 adapters begin with {} numbers", firsts.len());
    // By the seed alone, where there is one.
    let seeded = |seed| a_number(&device(Options { seed: Some(seed), ..Options::default() }));
    assert_eq!(seeded(1), seeded(1));
    let firsts: HashSet<u32> = (0..32).map(seeded).collect();
    assert!(firsts.len() > 8, "32 seeds give {} numbers", firsts.len());
}

/// Memory of an adapter's that is registered.
struct Region {
    memory: DmaMemory,
    keys: MrKeys,
}

impl Region {
    fn new(end: &End, len: usize) -> Self {
        let memory = end.device.alloc_memory(len).unwrap();
        let (addr, access) = (memory.addr(), Access::LOCAL_WRITE);
        let init = MrInit { addr, len, iova: addr.as_ptr() as u64, access };
        // SAFETY: (1)
        let keys = unsafe { end.device.reg_mr(end.pd, &init) }.unwrap();
        Self { memory, keys }
    }
    fn sge(&self) -> Sge {
        let (addr, len) = (self.memory.addr().as_ptr() as u64, self.memory.len() as u32);
        Sge { addr, len, lkey: self.keys.lkey }
    }
}

fn post_recv(end: &mut End, wr_id: u64, sge: Sge) {
    // SAFETY: (1, 2)
    unsafe { end.rc.recv.post(&[RecvWr { wr_id, sges: &[sge] }]) }.unwrap();
    end.rc.recv.ring();
}

/// Both forget what they were at, and begin anew.
fn reconnect(a: &End, b: &End) {
    for (end, peer) in [(a, b), (b, a)] {
        let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
        end.device.modify_qp(end.rc.handle, &reset).unwrap();
        let dgid = Gid::from_ip(peer.device.fabric().local);
        connect(&end.device, end.rc.handle, (dgid, peer.rc.qpn), true);
    }
}

/// Where an adapter's reliable queue pair receives from a shared queue.
fn sharing(fabric: &str) -> (End, End) {
    let [da, db] = [1, 2].map(|salt| open(fabric, Progress::Inline, salt).unwrap());
    let (a, (b, _)) = (End::new(da), End::with_shared_queue(db));
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

#[test]
fn a_request_of_a_shared_queue_in_whose_message_a_queue_pair_is_reset_is_taken_by_the_next_message() {
    for fabric in FABRICS {
        let (mut a, mut b) = sharing(fabric);
        let (from, to) = (Region::new(&a, 4 << 20), Region::new(&b, 4 << 20));
        post_recv(&mut b, 7, to.sge());
        let (op, flags) = (SendOp::Send, SendFlags::empty());
        let wr = SendWr { wr_id: 1, op, flags, payload: Payload::Sges(&[from.sge()]), dest: None };
        // SAFETY: (1, 2)
        unsafe { a.rc.send.post(&[wr]) }.unwrap();
        a.rc.send.ring();
        // More than a turn sends or takes: the message has begun, and is not over.
        for _ in 0..3 {
            b.device.turn();
        }
        reconnect(&a, &b);
        send(&mut a.rc, SendFlags::empty());
        let c = b.next(&*a.device).unwrap_or_else(|| panic!("{fabric}: the request is lost"));
        assert_eq!((c.wr_id, c.byte_len), (7, 7), "{fabric}");
    }
}

#[test]
fn what_a_queue_pair_received_into_a_shared_queue_is_named_though_it_is_reset() {
    for fabric in FABRICS {
        let (mut a, mut b) = sharing(fabric);
        let to = Region::new(&b, 4096);
        for wr_id in 1..=3 {
            post_recv(&mut b, wr_id, Sge { len: 64, ..to.sge() });
        }
        for _ in 0..2 {
            send(&mut a.rc, SendFlags::empty());
        }
        while b.counter("completions") < 2 {
            a.device.turn();
            b.device.turn();
        }
        reconnect(&a, &b);
        send(&mut a.rc, SendFlags::empty());
        let mut named = Vec::new();
        for _ in 0..1_000_000 {
            let mut wcs = [Completion::default(); 8];
            let n = b.cq.poll(&mut wcs);
            named.extend(wcs[..n].iter().map(|c| (c.wr_id, c.status)));
            if named.len() == 3 {
                break;
            }
            a.device.turn();
        }
        let flushed = WcStatus::WrFlushed;
        assert_eq!(named, [(1, flushed), (2, flushed), (3, WcStatus::Success)], "{fabric}");
        // Once, and by one of both: what is named by the end of the queue pair is not by a poll.
        send(&mut a.rc, SendFlags::empty());
        assert_eq!(b.device.destroy_qp(b.rc.handle).unwrap(), []);
        assert_eq!(b.cq.poll(&mut [Completion::default(); 8]), 0);
    }
}

#[test]
fn what_is_named_when_a_queue_pair_goes_is_not_named_again_for_its_reset() {
    let (mut a, mut b) = sharing("shm");
    let to = Region::new(&b, 4096);
    post_recv(&mut b, 9, Sge { len: 64, ..to.sge() });
    send(&mut a.rc, SendFlags::empty());
    while b.counter("completions") < 1 {
        a.device.turn();
        b.device.turn();
    }
    reconnect(&a, &b);
    assert_eq!(b.device.destroy_qp(b.rc.handle).unwrap(), [9]);
    assert_eq!(b.cq.poll(&mut [Completion::default(); 8]), 0);
}

#[test]
fn a_completion_queue_that_overran_goes_on_and_tells_of_the_next_time() {
    const ROOM: u32 = 4;
    for fabric in FABRICS {
        let [a, b] = [1, 2].map(|salt| open(fabric, Progress::Inline, salt).unwrap());
        let (mut a, mut b) = (End::new(a), End::with_cq(b, ROOM));
        for round in 0..3 {
            a.connect(&b);
            b.connect(&a);
            (0..=ROOM).for_each(|_| b.recv());
            for nth in 0..=ROOM {
                send(&mut a.rc, SendFlags::SIGNALED);
                if nth < ROOM {
                    a.next(&*b.device).expect("the SEND completes");
                }
            }
            let state = |b: &End| [&b.rc, &b.uc].map(|qp| b.device.query_qp(qp.handle).unwrap().state);
            let is_over = |b: &End| b.device.turn() && state(b) == [QpState::Error; 2];
            assert!((0..1_000_000).any(|_| is_over(&b)), "{fabric}, round {round}: {:?}", state(&b));
            assert_eq!(b.device.poll_event(), Some(AsyncEvent::CqOverrun(b.cq_handle)));
            assert_eq!(b.device.poll_event(), None, "{fabric}, round {round}: it is told once");
            (0..ROOM).for_each(|_| _ = b.next(&*a.device).expect("what was in the queue is still there"));
            let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
            for (end, qp) in [(&a, &a.rc), (&a, &a.uc), (&b, &b.rc), (&b, &b.uc)] {
                end.device.modify_qp(qp.handle, &reset).unwrap();
            }
        }
        a.close();
        b.close();
    }
}

/// Of which nothing is sent: the network is never full for them.
#[test]
fn binds_are_carried_out_as_they_are_posted_however_many_they_are() {
    const BINDS: u32 = 1000;
    for fabric in FABRICS {
        let [a, b] = [1, 2].map(|salt| End::new(open(fabric, Progress::Inline, salt).unwrap()));
        let (device, addr) = (a.device.clone(), a.memory.addr());
        let init = MrInit { addr, len: 4096, iova: 0, access: Access::MW_BIND };
        // SAFETY: (1, 2)
        let keys = unsafe { device.reg_mr(a.pd, &init) }.unwrap();
        let (cq_handle, mut cq) = device.create_cq(BINDS).unwrap();
        for qp_type in [QpType::Rc, QpType::Uc] {
            let cap = QpCap { max_send_wr: BINDS, ..QpCap::default() };
            let init = QpInit { qp_type, send_cq: cq_handle, recv_cq: cq_handle, srq: None, cap };
            let mut qp = device.create_qp(a.pd, &init).unwrap();
            let gid = Gid::from_ip(b.device.fabric().local);
            connect(&device, qp.handle, (gid, b.rc.qpn), qp_type == QpType::Rc);
            let access = Access::REMOTE_READ;
            let range = MwRange { lkey: keys.lkey, addr: 0, len: 8, access, zero_based: false };
            for wr_id in 0..BINDS.into() {
                let mw = device.windows().unwrap().alloc_mw(a.pd, MwType::Two).unwrap();
                let op = SendOp::BindMw { rkey: Rkey::new(mw.rkey.raw() ^ 1), range };
                let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&[]));
                // SAFETY: it names no memory of a list.
                unsafe { qp.send.post_one(&SendWr { wr_id, op, flags, payload, dest: None }) }.unwrap();
            }
            qp.send.ring();
            let mut done = vec![Completion::default(); BINDS as usize];
            assert_eq!(cq.poll(&mut done), BINDS as usize, "{fabric}, {qp_type:?}");
            assert!(done.iter().all(|c| c.status == WcStatus::Success));
            device.destroy_qp(qp.handle).unwrap();
        }
    }
}
