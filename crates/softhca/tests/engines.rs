//! Portals engines that the adapter runs; one of this test's engines answers each message with the same bytes.
//!
//! Invariants:
//! 1. The memory that is registered outlives its region and its queues, as it is the last field.
//! 2. Posted requests name that memory, and no reference to it exists.
#![allow(unsafe_code)]

mod ends;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::{Duration, Instant};

use ends::{connect, open};
use hca_core::{
    Access, Completion, CqHandle, CqPort, Device, DeviceError, DmaMemory, Gid, MrInit, MrKeys, Notify,
    Offload, OffloadEngine, Payload, QpCap, QpHandle, QpInit, QpType, Qpn, RecvPort, RecvWr, SendFlags,
    SendOp, SendPort, SendWr, Sge, SrqInit, WcStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softhca::{Progress, SoftHca};
use test_support::waiting::until;

/// Longer than anything here takes on a machine that is busy with other work.
const LONG: Duration = Duration::from_secs(20);
const FABRICS: [&str; 2] = ["udp", "shm"];
/// Requests of a shared receive queue.
const REQUESTS: u64 = 32;
const SLOT: usize = 64;

/// One queue pair with a shared receive queue, and its ports.
struct Ports {
    cq: Box<dyn CqPort>,
    srq: Box<dyn RecvPort>,
    send: Box<dyn SendPort>,
    base: u64,
    keys: MrKeys,
    taken: u64,
}

/// An adapter with such ports.
struct Side {
    ports: Option<Ports>,
    device: Arc<SoftHca>,
    cq: CqHandle,
    qp: QpHandle,
    qpn: Qpn,
    memory: Option<DmaMemory>,
}

impl Ports {
    fn post_recv(&mut self, wr_id: u64) {
        let sges = [Sge { addr: self.base + wr_id * SLOT as u64, len: SLOT as u32, lkey: self.keys.lkey }];
        // SAFETY: (2)
        unsafe { self.srq.post(&[RecvWr { wr_id, sges: &sges }]) }.unwrap();
        self.srq.ring();
    }
    fn send(&mut self, payload: Payload<'_>) {
        let flags = SendFlags::empty();
        // SAFETY: (2)
        unsafe { self.send.post_now(&SendWr { wr_id: 0, op: SendOp::Send, flags, payload, dest: None }) }
            .unwrap();
    }
    /// Answers what came, of at most so many messages; returns how many came.
    fn answer(&mut self, most: usize) -> usize {
        let mut wcs = [Completion::default(); 8];
        let n = self.cq.poll(&mut wcs[..most]);
        self.answer_each(&wcs[..n]);
        n
    }
    /// Answers all that came, once it has taken it by so many at a time.
    fn answer_all_by(&mut self, most: usize) {
        let (mut all, mut some) = (Vec::new(), [Completion::default(); 8]);
        loop {
            let n = self.cq.poll(&mut some[..most]);
            all.extend_from_slice(&some[..n]);
            if n == 0 {
                return self.answer_each(&all);
            }
        }
    }
    fn answer_each(&mut self, wcs: &[Completion]) {
        for wc in wcs {
            assert_eq!(wc.status, WcStatus::Success);
            let at = self.base + wc.wr_id * SLOT as u64;
            let sges = [Sge { addr: at, len: wc.byte_len, lkey: self.keys.lkey }];
            self.send(Payload::Sges(&sges));
            self.post_recv(wc.wr_id);
        }
        self.taken += wcs.len() as u64;
    }
}

impl Side {
    fn open(fabric: &str, progress: Progress, salt: u32) -> Self {
        let device = open(fabric, progress, salt).expect("every kernel has this network");
        let pd = device.alloc_pd().unwrap();
        let memory = device.alloc_memory(4096).unwrap();
        let (addr, access) = (memory.addr(), Access::LOCAL_WRITE);
        let base = addr.as_ptr() as u64;
        // SAFETY: (1, 2)
        let keys = unsafe { device.reg_mr(pd, &MrInit { addr, len: 4096, iova: base, access }) }.unwrap();
        let (cq, cq_port) = device.create_cq(256).unwrap();
        let (srq, srq_port) = device.create_srq(pd, &SrqInit { max_wr: 64, max_sge: 1 }).unwrap();
        let init =
            QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: Some(srq), cap: QpCap::default() };
        let qp = device.create_qp(pd, &init).unwrap();
        let mut ports = Ports { cq: cq_port, srq: srq_port, send: qp.send, base, keys, taken: 0 };
        (0..REQUESTS).for_each(|id| ports.post_recv(id));
        Self { ports: Some(ports), device, cq, qp: qp.handle, qpn: qp.qpn, memory: Some(memory) }
    }
    fn connect(&self, to: &Self) {
        connect(&self.device, self.qp, (Gid::from_ip(to.device.fabric().local), to.qpn), true);
    }
    fn offload(&self) -> &dyn Offload {
        self.device.offload().expect("the software adapter runs engines")
    }
    fn send(&mut self) {
        self.ports.as_mut().unwrap().send(Payload::Inline(b"message"));
    }
    /// Takes what came; returns how many messages.
    fn take(&mut self) -> u64 {
        let ports = self.ports.as_mut().unwrap();
        let mut wcs = [Completion::default(); 8];
        let n = ports.cq.poll(&mut wcs);
        for wc in &wcs[..n] {
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 7));
            ports.post_recv(wc.wr_id);
        }
        n as u64
    }
    /// Waits for so many answers.
    fn wait(&mut self, count: u64, mut meanwhile: impl FnMut()) {
        let (begun, mut came) = (Instant::now(), 0);
        while came < count {
            came += self.take();
            meanwhile();
            assert!(begun.elapsed() < LONG, "{came} of {count} answers came");
        }
    }
    fn runs(&self) -> u64 {
        self.device.counters().iter().find(|c| c.name == "portals_runs").expect("it is counted").value
    }
}

fn pair(fabric: &str, progress: Progress) -> [Side; 2] {
    let sides = [Side::open(fabric, Progress::Inline, 0), Side::open(fabric, progress, 1)];
    sides[0].connect(&sides[1]);
    sides[1].connect(&sides[0]);
    sides
}

/// Answers each message.
struct Echo {
    ports: Mutex<Ports>,
    /// Keeps its adapter, as a Portals layer does.
    _device: Arc<SoftHca>,
    running: AtomicBool,
    /// Runs by the adapter's own thread.
    by_adapter: AtomicU64,
    most: usize,
}

impl Echo {
    fn attach(side: &mut Side, most: usize) -> Arc<Self> {
        let echo = Arc::new(Self {
            ports: Mutex::new(side.ports.take().unwrap()),
            _device: side.device.clone(),
            running: AtomicBool::new(false),
            by_adapter: AtomicU64::new(0),
            most,
        });
        side.offload().attach(side.cq, weak(&echo)).unwrap();
        echo
    }
    fn taken(&self) -> u64 {
        self.ports.lock().unwrap().taken
    }
}

impl OffloadEngine for Echo {
    fn run(&self) -> bool {
        assert!(!self.running.swap(true, Ordering::Relaxed), "two runs at once");
        if std::thread::current().name() == Some("hca-progress") {
            self.by_adapter.fetch_add(1, Ordering::Relaxed);
        }
        // It leaves no word for whoever is at it.
        let idle = self.ports.try_lock().is_ok_and(|mut p| p.answer(self.most) == 0);
        self.running.store(false, Ordering::Relaxed);
        !idle
    }
    fn next_deadline(&self) -> Option<Duration> {
        None
    }
}

fn weak<E: OffloadEngine + 'static>(engine: &Arc<E>) -> Weak<dyn OffloadEngine> {
    let engine: Weak<E> = Arc::downgrade(engine);
    engine
}

/// Runs a closure, which says whether more is left, and wants to be run at a deadline.
struct Hook<F> {
    run: F,
    deadline_us: AtomicU64,
    asked: AtomicU32,
}

impl<F: Fn() -> bool + Send + Sync + 'static> Hook<F> {
    fn new(run: F) -> Arc<Self> {
        Arc::new(Self { run, deadline_us: AtomicU64::new(u64::MAX), asked: AtomicU32::new(0) })
    }
}
impl<F: Fn() -> bool + Send + Sync> OffloadEngine for Hook<F> {
    fn run(&self) -> bool {
        (self.run)()
    }
    fn next_deadline(&self) -> Option<Duration> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let us = self.deadline_us.load(Ordering::SeqCst);
        (us != u64::MAX).then(|| Duration::from_micros(us))
    }
}

#[test]
fn messages_are_answered_while_the_target_program_computes() {
    for (fabric, progress) in
        FABRICS.into_iter().flat_map(|f| [(f, Progress::Adaptive), (f, Progress::Thread)])
    {
        let [mut a, mut b] = pair(fabric, progress);
        let echo = Echo::attach(&mut b, 8);
        // Nobody calls `b` from here on.
        for _ in 0..50 {
            a.send();
            a.wait(1, || ());
        }
        for _ in 0..10 {
            (0..10).for_each(|_| a.send());
            a.wait(10, || ());
        }
        assert_eq!(echo.taken(), 150, "{fabric} {progress}");
        assert!(echo.by_adapter.load(Ordering::Relaxed) > 0, "{fabric} {progress}");
        b.offload().detach(b.cq).unwrap();
    }
}

#[test]
fn who_polls_another_queue_or_turns_the_device_runs_the_engine() {
    for fabric in FABRICS {
        let [mut a, mut b] = pair(fabric, Progress::Inline);
        let echo = Echo::attach(&mut b, 8);
        let (_, mut other) = b.device.create_cq(8).unwrap();
        let mut none = [Completion::default()];
        for i in 0..200 {
            a.send();
            if i % 2 == 0 {
                a.wait(1, || assert_eq!(other.poll(&mut none), 0));
            } else {
                a.wait(1, || _ = b.device.turn());
            }
        }
        assert_eq!(echo.taken(), 200, "{fabric}");
        assert_eq!(echo.by_adapter.load(Ordering::Relaxed), 0);
        b.offload().detach(b.cq).unwrap();
    }
}

#[test]
fn a_post_that_completes_at_once_runs_the_engine_behind_it() {
    let [mut a, mut b] = pair("shm", Progress::Inline);
    // So that they have met.
    for _ in 0..20 {
        a.send();
        a.wait(1, || _ = b.ports.as_mut().unwrap().answer(8));
    }
    let runs = Arc::new(AtomicU32::new(0));
    let hook = Hook::new({
        let runs = runs.clone();
        move || runs.fetch_add(1, Ordering::SeqCst) == u32::MAX
    });
    b.offload().attach(b.cq, weak(&hook)).unwrap();
    b.device.turn();
    assert_eq!(runs.load(Ordering::SeqCst), 1, "it is run once to begin with");
    // A queue pair in error flushes what is posted.
    let error = hca_core::QpAttr { state: Some(hca_core::QpState::Error), ..hca_core::QpAttr::default() };
    b.device.modify_qp(b.qp, &error).unwrap();
    let before = runs.load(Ordering::SeqCst);
    b.send();
    assert_eq!(runs.load(Ordering::SeqCst), before + 1);
}

#[test]
fn a_poll_of_the_engines_own_queue_runs_nothing() {
    for fabric in FABRICS {
        let [mut a, mut b] = pair(fabric, Progress::Inline);
        let echo = Echo::attach(&mut b, 8);
        b.device.turn();
        let before = b.runs();
        for _ in 0..100 {
            a.send();
            // As the layer does in its own calls.
            a.wait(1, || _ = echo.ports.lock().unwrap().answer(8));
        }
        assert_eq!(b.runs(), before, "{fabric}");
        // More than it has room for at a time is left to its next polls.
        for _ in 0..10 {
            (0..8).for_each(|_| a.send());
            a.wait(8, || echo.ports.lock().unwrap().answer_all_by(2));
        }
        assert_eq!((echo.taken(), b.runs()), (180, before), "{fabric}");
    }
}

#[test]
fn what_the_own_poller_leaves_is_seen_to_by_the_next_turn() {
    for fabric in FABRICS {
        let [mut a, mut b] = pair(fabric, Progress::Inline);
        let echo = Echo::attach(&mut b, 8);
        b.device.turn();
        for _ in 0..20 {
            (0..8).for_each(|_| a.send());
            until("the first one comes", || {
                a.device.turn();
                echo.ports.lock().unwrap().answer(1) == 1
            });
            a.wait(8, || _ = b.device.turn());
        }
        assert_eq!(echo.taken(), 160, "{fabric}");
    }
}

#[test]
fn an_engine_with_more_to_do_is_run_again_though_nobody_calls() {
    const RUNS: u32 = 1000;
    for progress in [Progress::Adaptive, Progress::Thread, Progress::Inline] {
        let b = Side::open("shm", progress, 1);
        let runs = Arc::new(AtomicU32::new(0));
        let hook = Hook::new({
            let runs = runs.clone();
            move || runs.fetch_add(1, Ordering::SeqCst) + 1 < RUNS
        });
        b.offload().attach(b.cq, weak(&hook)).unwrap();
        until("it is run until nothing is left", || {
            if progress == Progress::Inline {
                b.device.turn();
            }
            runs.load(Ordering::SeqCst) == RUNS
        });
        b.offload().detach(b.cq).unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), RUNS, "{progress}");
    }
}

#[test]
fn an_engine_is_run_at_its_deadline_and_told_of_a_new_one() {
    for progress in [Progress::Adaptive, Progress::Thread, Progress::Inline] {
        let b = Side::open("udp", progress, 1);
        let runs = Arc::new(AtomicU32::new(0));
        let hook = Hook::new({
            let runs = runs.clone();
            move || runs.fetch_add(1, Ordering::SeqCst) == u32::MAX
        });
        let turn = || _ = (progress == Progress::Inline).then(|| b.device.turn());
        b.offload().attach(b.cq, weak(&hook)).unwrap();
        until("it is asked for its deadline", || {
            turn();
            hook.asked.load(Ordering::SeqCst) >= 1
        });
        until("it has no deadline", || b.device.next_deadline().is_none());
        hook.deadline_us.store(1000, Ordering::SeqCst);
        b.offload().nudge(b.cq).unwrap();
        until("it is run at its deadlines", || {
            turn();
            runs.load(Ordering::SeqCst) >= 6
        });
        assert!(b.device.next_deadline().is_some_and(|d| d <= Duration::from_millis(1)), "{progress}");
        b.offload().detach(b.cq).unwrap();
        until("its deadline goes with it", || b.device.next_deadline().is_none());
    }
}

#[test]
fn an_engine_that_is_to_be_run_ends_the_sleep_on_a_descriptor() {
    let b = Side::open("udp", Progress::Inline, 1);
    let hook = Hook::new(|| false);
    b.offload().attach(b.cq, weak(&hook)).unwrap();
    let (_, mut cq) = b.device.create_cq(4).unwrap();
    cq.wait_fd().unwrap();
    cq.arm(Notify::Any);
    let mut is_readable = || {
        let fd = cq.wait_fd().unwrap();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    };
    let sleeps = |is_readable: &mut dyn FnMut() -> bool| {
        until("nothing is left to do", || {
            b.device.turn();
            !is_readable()
        });
    };
    sleeps(&mut is_readable);
    let asked = hook.asked.load(Ordering::SeqCst);
    b.offload().nudge(b.cq).unwrap();
    until("the timer of what is due now expires", &mut is_readable);
    assert_eq!(hook.asked.load(Ordering::SeqCst), asked, "nobody has run it");
    sleeps(&mut is_readable);
    assert!(hook.asked.load(Ordering::SeqCst) > asked);
}

#[test]
fn detaching_waits_for_a_run_of_another_thread_and_none_follows() {
    let b = Side::open("shm", Progress::Thread, 1);
    let [inside, left, release] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
    let hook = Hook::new({
        let (inside, left, release) = (inside.clone(), left.clone(), release.clone());
        move || {
            assert!(!left.load(Ordering::SeqCst), "it was taken away");
            inside.store(true, Ordering::SeqCst);
            until("it is let go", || release.load(Ordering::SeqCst));
            left.store(true, Ordering::SeqCst);
            true
        }
    });
    b.offload().attach(b.cq, weak(&hook)).unwrap();
    until("the adapter's thread runs it", || inside.load(Ordering::SeqCst));
    std::thread::scope(|s| {
        let (tell, told) = mpsc::channel();
        let (device, cq, left) = (&b.device, b.cq, &left);
        let detaching = s.spawn(move || {
            tell.send(()).unwrap();
            device.offload().unwrap().detach(cq).unwrap();
            assert!(left.load(Ordering::SeqCst), "a run was under way");
        });
        told.recv().unwrap();
        (0..1000).for_each(|_| std::thread::yield_now());
        release.store(true, Ordering::SeqCst);
        detaching.join().unwrap();
    });
    assert_eq!(Arc::strong_count(&hook), 1, "the device holds nothing of it");
    let runs = b.runs();
    (0..100).for_each(|_| _ = b.device.turn());
    assert_eq!(b.runs(), runs);
    assert!(matches!(b.offload().detach(b.cq), Err(DeviceError::UnknownHandle { .. })));
    assert!(matches!(b.offload().nudge(b.cq), Err(DeviceError::UnknownHandle { .. })));
}

#[test]
fn an_engine_detaches_itself_within_its_run() {
    let b = Side::open("shm", Progress::Thread, 1);
    let runs = Arc::new(AtomicU32::new(0));
    let hook = Hook::new({
        let (device, cq, runs) = (b.device.clone(), b.cq, runs.clone());
        move || {
            device.offload().unwrap().detach(cq).unwrap();
            runs.fetch_add(1, Ordering::SeqCst);
            true
        }
    });
    b.offload().attach(b.cq, weak(&hook)).unwrap();
    until("it is run", || runs.load(Ordering::SeqCst) == 1);
    until("the run ends", || Arc::strong_count(&hook) == 1);
    assert_eq!((runs.load(Ordering::SeqCst), b.runs()), (1, 1));
}

#[test]
fn a_queue_has_one_engine_and_its_end_is_the_engines() {
    let b = Side::open("shm", Progress::Inline, 1);
    let (cq, _port) = b.device.create_cq(8).unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let hook = Hook::new({
        let runs = runs.clone();
        move || runs.fetch_add(1, Ordering::SeqCst) < u32::MAX
    });
    b.offload().attach(cq, weak(&hook)).unwrap();
    let again = b.offload().attach(cq, weak(&hook));
    assert!(matches!(again, Err(DeviceError::HasEngine { cq: of }) if of == cq.index));
    b.offload().attach(b.cq, weak(&hook)).unwrap();
    assert!(matches!(b.device.destroy_cq(b.cq), Err(DeviceError::InUse { .. })));
    b.offload().detach(b.cq).expect("a queue that is in use keeps its engine");
    b.device.turn();
    assert!(runs.load(Ordering::SeqCst) > 0);
    b.device.destroy_cq(cq).unwrap();
    let before = runs.load(Ordering::SeqCst);
    (0..10).for_each(|_| _ = b.device.turn());
    assert_eq!(runs.load(Ordering::SeqCst), before);
    assert!(matches!(b.offload().attach(cq, weak(&hook)), Err(DeviceError::UnknownHandle { .. })));
}

#[test]
fn an_adapter_whose_engine_keeps_it_is_dropped_and_runs_nothing_after() {
    for progress in [Progress::Adaptive, Progress::Thread, Progress::Inline] {
        let [mut a, mut b] = pair("shm", progress);
        let echo = Echo::attach(&mut b, 8);
        a.send();
        a.wait(1, || _ = (progress == Progress::Inline).then(|| b.device.turn()));
        let (device, memory) = (Arc::downgrade(&b.device), b.memory.take());
        drop(b);
        assert!(device.upgrade().is_some(), "the engine keeps it");
        drop(echo);
        // A run that was under way may be the last one to hold it.
        until("the adapter is gone", || device.upgrade().is_none());
        drop(memory);
    }
}

#[test]
fn an_adapter_that_goes_runs_its_engines_no_more() {
    for progress in Progress::ALL {
        let b = Side::open("shm", progress, 1);
        let runs = Arc::new(AtomicU32::new(0));
        let hook = Hook::new({
            let runs = runs.clone();
            move || runs.fetch_add(1, Ordering::SeqCst) < u32::MAX
        });
        b.offload().attach(b.cq, weak(&hook)).unwrap();
        let (_, mut other) = b.device.create_cq(8).unwrap();
        until("it is run", || {
            b.device.turn();
            runs.load(Ordering::SeqCst) > 0
        });
        let Side { ports, device, .. } = b;
        drop(device);
        let before = runs.load(Ordering::SeqCst);
        // Its ports still turn what is left of it.
        (0..100).for_each(|_| _ = other.poll(&mut [Completion::default()]));
        drop(ports);
        assert_eq!(runs.load(Ordering::SeqCst), before, "{progress}");
        assert_eq!(Arc::strong_count(&hook), 1);
    }
}

#[test]
fn threads_that_turn_at_once_run_an_engine_one_at_a_time_and_lose_nothing() {
    for (fabric, progress) in
        FABRICS.into_iter().flat_map(|f| [(f, Progress::Adaptive), (f, Progress::Inline)])
    {
        let [mut a, mut b] = pair(fabric, progress);
        let echo = Echo::attach(&mut b, 3);
        let over = AtomicBool::new(false);
        let device = &b.device;
        std::thread::scope(|s| {
            let over = &over;
            let qp = b.qp;
            for _ in 0..2 {
                let (_, mut other) = device.create_cq(8).unwrap();
                s.spawn(move || {
                    let mut none = [Completion::default()];
                    while !over.load(Ordering::Relaxed) {
                        assert_eq!(other.poll(&mut none), 0);
                        device.query_qp(qp).unwrap();
                    }
                });
            }
            for _ in 0..100 {
                (0..10).for_each(|_| a.send());
                a.wait(10, || ());
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(echo.taken(), 1000, "{fabric} {progress}");
        b.offload().detach(b.cq).unwrap();
    }
}
