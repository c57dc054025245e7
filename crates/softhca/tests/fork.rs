//! A program that forks: the child's use of the adapter is refused, and the parent goes on working.
//!
//! It has no test harness, whose threads a child would lack. A child that hangs is ended by its alarm.
//!
//! Invariants:
//! 1. Between fork and `_exit` the child calls the adapter, and allocates, which glibc allows.
#![allow(unsafe_code)]

mod ends;

use ends::{End, open, send};
use hca_core::{
    Completion, Device, DeviceError, Payload, PostErrorKind, QpAttr, QpState, RecvWr, SendFlags, SendOp,
    SendWr,
};
use softhca::Progress;

/// Messages after the fork.
const MESSAGES: u64 = 50;

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
        expect(6, refused(d.dereg_mr(e.keys.handle)) && refused(d.destroy_qp(e.uc.handle).map(drop)));
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
    send(&mut a.rc, SendFlags::SIGNALED);
    while b.counter("completions") == 0 {
        b.device.turn();
        a.device.turn();
    }
    // And a message that nobody would send again: by itself, it is taken by the parent or by nobody.
    send(&mut a.uc, SendFlags::SIGNALED);
    // SAFETY: (1)
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
        send(&mut a.rc, SendFlags::SIGNALED);
        send(&mut a.uc, SendFlags::SIGNALED);
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
