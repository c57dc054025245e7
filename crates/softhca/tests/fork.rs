//! A program that forks: the child's use of the adapter is refused, and the parent goes on working.
//!
//! It has no test harness, whose threads a child would lack. A child that hangs is ended by its alarm.
//!
//! Invariants:
//! 1. The memory that is registered outlives its region, which goes before it in [`End::close`].
//! 2. What is posted names that memory, and no reference to it exists.
//! 3. Between fork and `_exit` the child calls the adapter, and allocates, which glibc allows.
#![allow(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use hca_core::{
    Access, AckTimeout, AddressVector, Completion, CqHandle, CqPort, Device, DeviceError, DmaMemory, Gid,
    MrInit, MrKeys, Mtu, Payload, PdHandle, Pkey, PostErrorKind, Psn, QpAttr, QpCap, QpHandle, QpInit,
    QpState, QpType, Qpn, RecvPort, RecvWr, RnrTimer, SendFlags, SendOp, SendPort, SendWr, Sge, SrqInit,
    WcStatus,
};
use hca_fabric::{Fabric, OpenError, UdpFabric, UdpOptions, UringFabric, UringOptions};
use softhca::{Options, Progress, SoftHca};

/// Messages after the fork.
const MESSAGES: u64 = 50;

struct Qp {
    handle: QpHandle,
    qpn: Qpn,
    send: Box<dyn SendPort>,
    recv: Box<dyn RecvPort>,
}

/// One adapter with a reliable and an unreliable queue pair.
struct End {
    device: Arc<SoftHca>,
    pd: PdHandle,
    cq_handle: CqHandle,
    cq: Box<dyn CqPort>,
    srq: Box<dyn RecvPort>,
    rc: Qp,
    uc: Qp,
    keys: MrKeys,
    memory: DmaMemory,
}

fn open(fabric: &str, progress: Progress, salt: u32) -> Option<Arc<SoftHca>> {
    for host in 1..=200 {
        let ip: IpAddr =
            Ipv4Addr::from(0x7f00_0000 | (std::process::id() << 9 ^ salt << 8 | host) & 0xff_ffff).into();
        let opened: Result<Box<dyn Fabric>, OpenError> = match fabric {
            "udp" => UdpFabric::open(ip, &UdpOptions::default()).map(|f| Box::new(f) as _),
            _ => UringFabric::open(ip, &UringOptions::default()).map(|f| Box::new(f) as _),
        };
        match opened {
            Ok(f) => return Some(SoftHca::open(f, Options { progress, ..Options::default() }).unwrap()),
            Err(OpenError::InUse(_)) => {}
            Err(e @ OpenError::Unsupported { .. }) => {
                println!("skipped: {e}");
                return None;
            }
            Err(e) => panic!("{e}"),
        }
    }
    panic!("no free loopback address");
}

impl End {
    fn new(device: Arc<SoftHca>) -> Self {
        let pd = device.alloc_pd().unwrap();
        let memory = device.alloc_memory(4096).unwrap();
        let (addr, access) = (memory.addr(), Access::LOCAL_WRITE);
        let init = MrInit { addr, len: 4096, iova: addr.as_ptr() as u64, access };
        // SAFETY: (1, 2)
        let keys = unsafe { device.reg_mr(pd, &init) }.unwrap();
        let (cq_handle, cq) = device.create_cq(512).unwrap();
        let (_, srq) = device.create_srq(pd, &SrqInit { max_wr: 8, max_sge: 1 }).unwrap();
        let qp = |qp_type| {
            let init =
                QpInit { qp_type, send_cq: cq_handle, recv_cq: cq_handle, srq: None, cap: QpCap::default() };
            let ports = device.create_qp(pd, &init).unwrap();
            Qp { handle: ports.handle, qpn: ports.qpn, send: ports.send, recv: ports.recv.unwrap() }
        };
        let (rc, uc) = (qp(QpType::Rc), qp(QpType::Uc));
        Self { device, pd, cq_handle, cq, srq, rc, uc, keys, memory }
    }

    fn connect(&self, peer: &Self) {
        let dgid = Gid::from_ip(peer.device.fabric().local);
        for (qp, to, rc) in [(&self.rc, &peer.rc, true), (&self.uc, &peer.uc, false)] {
            let init = QpAttr {
                state: Some(QpState::Init),
                pkey: Some(Pkey::DEFAULT),
                access: Some(Access::empty()),
                ..QpAttr::default()
            };
            let rtr = QpAttr {
                state: Some(QpState::Rtr),
                dest_qpn: Some(to.qpn),
                av: Some(AddressVector { dgid, ..AddressVector::default() }),
                path_mtu: Some(Mtu::B1024),
                rq_psn: Some(Psn::new(7)),
                max_dest_rd_atomic: rc.then_some(1),
                min_rnr_timer: rc.then_some(RnrTimer::new(1)),
                ..QpAttr::default()
            };
            let rts = QpAttr {
                state: Some(QpState::Rts),
                sq_psn: Some(Psn::new(7)),
                timeout: rc.then_some(AckTimeout::new(14)),
                retry_cnt: rc.then_some(7),
                rnr_retry: rc.then_some(7),
                max_rd_atomic: rc.then_some(1),
                ..QpAttr::default()
            };
            for attr in [init, rtr, rts] {
                self.device.modify_qp(qp.handle, &attr).unwrap();
            }
        }
    }

    fn sge(&self) -> Sge {
        Sge { addr: self.memory.addr().as_ptr() as u64, len: 64, lkey: self.keys.lkey }
    }
    fn recv(&mut self) {
        let sges = [self.sge()];
        for qp in [&mut self.rc, &mut self.uc] {
            // SAFETY: (2)
            unsafe { qp.recv.post(&[RecvWr { wr_id: 0, sges: &sges }]) }.unwrap();
            qp.recv.ring();
        }
    }
    /// Polls until a completion comes; `None` after a long time.
    fn next(&mut self, turn: &dyn Device) -> Option<Completion> {
        let mut one = [Completion::default()];
        for _ in 0..20_000_000 {
            if self.cq.poll(&mut one) == 1 {
                assert_eq!(one[0].status, WcStatus::Success);
                return Some(one[0]);
            }
            turn.turn();
        }
        None
    }
    fn counter(&self, name: &str) -> u64 {
        self.device.counters().iter().find(|c| c.name == name).expect("it is counted").value
    }
    fn close(self) {
        for qp in [self.rc, self.uc] {
            self.device.destroy_qp(qp.handle).unwrap();
        }
        self.device.dereg_mr(self.keys.handle).unwrap();
    }
}

fn send(qp: &mut Qp) {
    let payload = Payload::Inline(b"message");
    let wr = SendWr { wr_id: 1, op: SendOp::Send, flags: SendFlags::SIGNALED, payload, dest: None };
    // SAFETY: inline data names no memory.
    unsafe { qp.send.post(&[wr]) }.unwrap();
    qp.send.ring();
}

/// What the child finds: a bit for each promise that is broken.
fn child(ends: &mut [End; 2]) -> i32 {
    let mut broken = 0;
    let mut expect = |bit: i32, holds: bool| broken |= if holds { 0 } else { 1 << bit };
    let refused = |r: Result<(), DeviceError>| matches!(&r, Err(DeviceError::Unsupported { what }) if what.contains("fork"));
    for e in ends {
        let mut some = [Completion::default(); 8];
        expect(0, (0..100).all(|_| e.cq.poll(&mut some) == 0));
        let payload = Payload::Inline(b"child");
        let wr = SendWr { wr_id: 9, op: SendOp::Send, flags: SendFlags::SIGNALED, payload, dest: None };
        let recv = RecvWr { wr_id: 9, sges: &[] };
        for qp in [&mut e.rc, &mut e.uc] {
            // SAFETY: neither names memory.
            let (sent, received) = unsafe { (qp.send.post(&[wr]), qp.recv.post(&[recv])) };
            expect(1, sent.is_err_and(|e| e.kind == PostErrorKind::Destroyed));
            expect(2, received.is_err_and(|e| e.kind == PostErrorKind::Destroyed));
            qp.send.ring();
            qp.recv.ring();
        }
        // SAFETY: it names no memory.
        expect(3, unsafe { e.srq.post(&[recv]) }.is_err_and(|e| e.kind == PostErrorKind::Destroyed));
        e.srq.ring();
        let d = &e.device;
        let error = QpAttr { state: Some(QpState::Error), ..QpAttr::default() };
        expect(4, refused(d.modify_qp(e.rc.handle, &error)) && refused(d.query_qp(e.rc.handle).map(|_| ())));
        expect(5, refused(d.alloc_pd().map(|_| ())) && refused(d.create_cq(8).map(|_| ())));
        expect(6, refused(d.dereg_mr(e.keys.handle)) && refused(d.destroy_qp(e.uc.handle)));
        expect(7, refused(d.destroy_cq(e.cq_handle)) && refused(d.dealloc_pd(e.pd)));
        expect(
            8,
            !d.turn() && d.poll_event().is_none() && d.next_deadline().is_none() && d.counters().is_empty(),
        );
        expect(9, refused(d.window(e.rc.handle).map(|_| ())));
    }
    broken
}

fn check(fabric: &str, progress: Progress) {
    let Some(devices) = [0, 1].map(|n| open(fabric, progress, n)).into_iter().collect::<Option<Vec<_>>>()
    else {
        return;
    };
    let mut ends: [End; 2] = devices.into_iter().map(End::new).collect::<Vec<_>>().try_into().ok().unwrap();
    ends[0].connect(&ends[1]);
    ends[1].connect(&ends[0]);
    let [a, b] = &mut ends;
    a.recv();
    b.recv();
    // A completion that is there and was not polled.
    send(&mut a.rc);
    while b.counter("completions") == 0 {
        b.device.turn();
        a.device.turn();
    }
    // And a message that nobody would send again: by itself, it is taken by the parent or by nobody.
    send(&mut a.uc);
    // SAFETY: (3)
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: takes no pointer.
        unsafe { libc::alarm(20) };
        let broken = child(&mut ends);
        // Whatever it drops, and in whatever order, touches nothing of the parent's.
        drop(ends);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(broken != 0) * (1 + broken.trailing_zeros() as i32)) };
    }
    let mut status = 0;
    // SAFETY: the status lives on the stack.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(waited, pid);
    assert!(libc::WIFEXITED(status), "{fabric} {progress:?}: the child was ended by a signal: {status:#x}");
    let code = libc::WEXITSTATUS(status);
    assert_eq!(code, 0, "{fabric} {progress:?}: promise {} was broken in the child", code - 1);

    let [a, b] = &mut ends;
    for what in ["the completion from before the fork", "the message that was under way"] {
        assert!(b.next(&*a.device).is_some(), "{fabric} {progress:?}: {what} is lost");
    }
    for _ in 0..2 {
        assert!(a.next(&*b.device).is_some(), "{fabric} {progress:?}: a send did not complete");
    }
    for n in 0..MESSAGES {
        b.recv();
        send(&mut a.rc);
        send(&mut a.uc);
        for _ in 0..2 {
            let ended = a.next(&*b.device).is_some() && b.next(&*a.device).is_some();
            assert!(ended, "{fabric} {progress:?}: message {n} after the fork is lost");
        }
    }
    let [a, b] = ends;
    a.close();
    b.close();
    println!("fork over {fabric}, progress {progress:?}: ok");
}

fn main() {
    for fabric in ["udp", "uring"] {
        for progress in Progress::ALL {
            check(fabric, progress);
        }
    }
}
