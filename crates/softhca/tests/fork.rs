//! A program that forks: the child's use of the adapter is refused, and the parent goes on working.
//!
//! The test has no harness, because a child would lack the harness's threads. An alarm ends a child that hangs.
//!
//! Invariants:
//! 1. Between fork and `_exit` the child calls the adapter, and allocates, which glibc allows.
#![allow(unsafe_code)]

mod ends;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;
use std::time::Duration;

use ends::{End, network, open, post, send};
use hca_core::{
    Completion, Device, DeviceError, Instant, MrKeys, Notify, OffloadEngine, Payload, PostErrorKind, QpAttr,
    QpState, RecvWr, SendFlags, SendOp, SendWr,
};
use hca_fabric::{Capture, ShmFabric, ShmOptions, Tap, TapFrame};
use softhca::{Options, Progress, SoftHca};

/// Messages after the fork.
const MESSAGES: u64 = 50;

/// A Portals engine that wants to be run every now and then.
struct Restless(AtomicU32);

impl OffloadEngine for Restless {
    fn run(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) == u32::MAX
    }
    fn next_deadline(&self) -> Option<Duration> {
        Some(Duration::from_micros(100))
    }
}

/// What the child finds of the engine that the parent attached.
fn engine_is_the_parents(e: &mut End, engine: &Arc<Restless>) -> bool {
    let portals = e.device.offload().expect("the software adapter runs engines");
    let refused = |r: Result<(), DeviceError>| matches!(r, Err(DeviceError::Unsupported { .. }));
    let weak: Weak<Restless> = Arc::downgrade(engine);
    let all = refused(portals.attach(e.cq_handle, weak))
        && refused(portals.nudge(e.cq_handle))
        && refused(portals.detach(e.cq_handle));
    let (runs, begun) = (engine.0.load(Ordering::Relaxed), std::time::Instant::now());
    // Longer than to its deadline.
    while begun.elapsed() < Duration::from_millis(1) {
        e.device.turn();
        e.cq.poll(&mut [Completion::default()]);
    }
    all && engine.0.load(Ordering::Relaxed) == runs
}

/// What the child finds: a bit for each promise that is broken.
fn child(ends: &mut [End; 2], engine: &Arc<Restless>, fabric: &str) -> i32 {
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
        e.cq.arm(Notify::Any);
        e.cq.set_waker(Waker::noop());
        expect(10, refused(e.cq.wait_fd().map(|_| ())));
        expect(11, without_the_engine(d));
        // What peers reach is the parent's alone.
        expect(12, fabric != "shm" || !is_mapped(e.memory.addr().as_ptr()));
        expect(13, engine_is_the_parents(e, engine));
    }
    broken
}

/// Whether there is a page at this address.
fn is_mapped(at: *mut u8) -> bool {
    let mut there = 0_u8;
    // SAFETY: it looks at no byte of the page, and the answer lives on the stack.
    unsafe { libc::mincore(at.cast(), 1, &mut there) == 0 }
}

/// What of an adapter is no control call and takes no error: it answers, whoever holds the engine.
fn without_the_engine(d: &SoftHca) -> bool {
    d.set_event_waker(Waker::noop());
    let known = d.fabric().local == d.port().gid.ip() && d.fabric().name == d.attr().fabric;
    known && d.wait_fd().is_none() && d.next_deadline().is_none() && d.counters().is_empty() && !d.turn()
}

/// Forks; 0 in the child, which its alarm ends if it hangs.
fn fork() -> libc::pid_t {
    // SAFETY: (1)
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: takes no pointer.
        unsafe { libc::alarm(20) };
    }
    pid
}

/// Ends the child at once, with the first promise that was broken.
fn end_child(broken: i32) -> ! {
    // SAFETY: runs nothing of this process.
    unsafe { libc::_exit(i32::from(broken != 0) * (1 + broken.trailing_zeros() as i32)) }
}

/// Waits for the child; its status.
fn wait(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: the status lives on the stack.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(waited, pid);
    status
}

/// The child ended by itself, and no promise was broken.
fn expect_kept(what: &str, status: i32) {
    assert!(libc::WIFEXITED(status), "{what}: the child was ended by a signal: {status:#x}");
    let code = libc::WEXITSTATUS(status);
    assert_eq!(code, 0, "{what}: promise {} was broken in the child", code - 1);
}

fn check(fabric: &str, progress: Progress) {
    let Some(devices) = [0, 1].map(|n| open(fabric, progress, n)).into_iter().collect::<Option<Vec<_>>>()
    else {
        return;
    };
    let mut ends: [End; 2] = devices.into_iter().map(End::new).collect::<Vec<_>>().try_into().ok().unwrap();
    ends[0].connect(&ends[1]);
    ends[1].connect(&ends[0]);
    let engine = Arc::new(Restless(AtomicU32::new(0)));
    for e in &ends {
        let weak: Weak<Restless> = Arc::downgrade(&engine);
        e.device.offload().expect("the software adapter runs engines").attach(e.cq_handle, weak).unwrap();
    }
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
    let ranges = left_out_of_children();
    let pid = fork();
    if pid == 0 {
        let broken = child(&mut ends, &engine, fabric);
        settle(&ranges);
        // Whatever it drops, and in whatever order, touches nothing of the parent's, and none of its own.
        drop(ends);
        end_child(broken | i32::from(!are_mapped(&ranges)) << 14);
    }
    expect_kept(&format!("{fabric} {progress:?}"), wait(pid));

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
    assert!(engine.0.load(Ordering::Relaxed) > 0, "{fabric} {progress:?}: the parent's engine is not run");
    a.close();
    b.close();
    println!("fork over {fabric}, progress {progress:?}: ok");
}

const OPEN: u32 = 0;
const SHUT: u32 = 1;
const WAITING: u32 = 2;

/// Keeps whoever turns the engine in the middle of its turn while the gate is shut.
struct Gate(Arc<AtomicU32>);

impl Tap for Gate {
    fn frame(&mut self, _: Instant, _: &TapFrame<'_>) {
        let shut = self.0.compare_exchange(SHUT, WAITING, Ordering::AcqRel, Ordering::Acquire).is_ok();
        while shut && self.0.load(Ordering::Acquire) == WAITING {
            std::thread::yield_now();
        }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Forks while another thread, which the child has not, is in the middle of a turn.
fn check_held() {
    let gate = Arc::new(AtomicU32::new(OPEN));
    let inline = Options { progress: Progress::Inline, ..Options::default() };
    let mut ends = [0, 1].map(|n| {
        let mut fabric = network("udp", n).expect("every Linux has UDP");
        fabric.set_tap(Some(Box::new(Gate(gate.clone()))));
        End::new(SoftHca::open(fabric, inline.clone()).unwrap())
    });
    ends[0].connect(&ends[1]);
    ends[1].connect(&ends[0]);
    let [a, b] = &mut ends;
    b.recv();
    gate.store(SHUT, Ordering::Release);
    let device = a.device.clone();
    std::thread::scope(|s| {
        s.spawn(|| send(&mut a.rc, SendFlags::SIGNALED));
        while gate.load(Ordering::Acquire) != WAITING {
            std::thread::yield_now();
        }
        let pid = fork();
        if pid == 0 {
            end_child(i32::from(!without_the_engine(&device)));
        }
        let status = wait(pid);
        gate.store(OPEN, Ordering::Release);
        expect_kept("in the middle of a turn", status);
    });
    drop(device);
    assert!(b.next(&*a.device).is_some(), "the message that was under way is lost");
    assert!(a.next(&*b.device).is_some(), "the send did not complete");
    let [a, b] = ends;
    a.close();
    b.close();
    println!("fork in the middle of a turn: ok");
}

/// Where this process has memory mapped that it leaves out of children.
fn left_out_of_children() -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut left_out = Vec::new();
    let mut range = (0, 0);
    for line in maps.lines() {
        let hex = |text| usize::from_str_radix(text, 16).ok();
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.first().and_then(|first| first.split_once('-')) {
            Some((from, to)) => range = (hex(from).unwrap(), hex(to).unwrap()),
            None if words[0] == "VmFlags:" && words.contains(&"dc") => left_out.push(range),
            None => {}
        }
    }
    left_out
}

/// Memory of the child's own where its parent has what is not the child's.
fn settle(ranges: &[(usize, usize)]) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    for (from, to) in ranges {
        let at = std::ptr::without_provenance_mut(*from);
        // SAFETY: nothing is replaced.
        let mapped = unsafe { libc::mmap(at, to - from, libc::PROT_READ, flags, -1, 0) };
        assert_eq!(mapped, at, "{from:x} is free in a child: {}", std::io::Error::last_os_error());
    }
}

/// Whether all of them are still there.
fn are_mapped(ranges: &[(usize, usize)]) -> bool {
    ranges.iter().all(|(from, _)| is_mapped(std::ptr::without_provenance_mut(*from)))
}

/// Writes to the peer's memory; the messages that this took.
fn write(a: &mut End, b: &End, keys: &MrKeys) -> u64 {
    let before = a.counter("tx_messages");
    post(&mut a.rc, &[SendOp::Write(b.remote(keys))], SendFlags::SIGNALED);
    assert!(a.next(&*b.device).is_some(), "a WRITE did not complete");
    a.counter("tx_messages") - before
}

/// A child drops adapters that have granted memory, and mapped what was granted to them.
fn check_granted() {
    let folder = std::env::temp_dir().join(format!("hca-fork-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let inline = Options { progress: Progress::Inline, ..Options::default() };
    let options = ShmOptions { folder: Some(folder.clone()), ..ShmOptions::default() };
    let open = || {
        let fabric = ShmFabric::open("fork", &options).unwrap();
        SoftHca::open(Box::new(fabric), inline.clone()).unwrap()
    };
    let [mut a, mut b] = [open(), open()].map(End::new);
    a.connect(&b);
    b.connect(&a);
    b.recv();
    send(&mut a.rc, SendFlags::SIGNALED);
    assert!(a.next(&*b.device).is_some() && b.next(&*a.device).is_some());
    let keys = b.open_to_writes();
    // Until the peer has granted it, a WRITE goes as a message.
    while write(&mut a, &b, &keys) > 0 {}
    let sockets = || std::fs::read_dir(&folder).unwrap().count();
    assert_eq!((sockets(), b.counter("regions_granted_now")), (2, 1));

    let ranges = left_out_of_children();
    let pid = fork();
    if pid == 0 {
        settle(&ranges);
        drop((a, b));
        end_child(i32::from(!are_mapped(&ranges)));
    }
    expect_kept("grants", wait(pid));
    assert_eq!(sockets(), 2, "the parent's sockets");
    let messages: u64 = (0..16).map(|_| write(&mut a, &b, &keys)).sum();
    assert_eq!(messages, 0, "messages of WRITEs that went straight to memory before the fork");
    let c = End::new(open());
    c.connect(&b);
    assert!(
        c.device.counters().iter().any(|c| c.name == "peers_now" && c.value == 1),
        "nobody is found there"
    );
    b.device.dereg_mr(keys.handle).unwrap();
    for end in [a, b, c] {
        end.close();
    }
    std::fs::remove_dir(&folder).expect("nothing is left there");
    println!("fork with memory granted: ok");
}

/// A child has adapters of its own.
fn check_own() {
    let parents = open("shm", Progress::Inline, 0).expect("there is shared memory");
    let pid = fork();
    if pid == 0 {
        let [mut a, mut b] = ends::shm_pair(Progress::Adaptive);
        b.recv();
        send(&mut a.rc, SendFlags::SIGNALED);
        let works = a.next(&*b.device).is_some() && b.next(&*a.device).is_some();
        a.close();
        b.close();
        end_child(i32::from(!works || !parents.counters().is_empty()));
    }
    expect_kept("adapters of the child's own", wait(pid));
    println!("adapters of a child's own: ok");
}

/// A child drops an adapter whose packets go to a file.
fn check_capture() {
    let path = std::env::temp_dir().join(format!("hca-fork-{}.pcapng", std::process::id()));
    let mut fabric = network("udp", 0).expect("every Linux has UDP");
    let capture = Arc::new(Mutex::new(Capture::create(&path).unwrap()));
    fabric.set_tap(Some(Box::new(capture.clone())));
    let device = SoftHca::open(fabric, Options { progress: Progress::Inline, ..Options::default() }).unwrap();
    let pid = fork();
    if pid == 0 {
        drop((device, capture));
        end_child(0);
    }
    expect_kept("capture", wait(pid));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "bytes that the child wrote");
    drop((device, capture));
    assert!(std::fs::metadata(&path).unwrap().len() > 0);
    std::fs::remove_file(&path).unwrap();
    println!("fork with a capture: ok");
}

fn main() {
    check_held();
    check_granted();
    check_capture();
    check_own();
    for fabric in ["udp", "uring", "shm"] {
        for progress in Progress::ALL {
            check(fabric, progress);
        }
    }
}
