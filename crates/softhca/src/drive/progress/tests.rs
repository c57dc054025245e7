//! Tests of the two modes, of the guard, and of the acknowledgements that wait for an answer.

use core::cell::Cell;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::drive::sleeper::SLEEPERS_TOLERANCE;

/// A guard that so many turns of the program end.
fn guarded(turns: u32) -> Sleeper {
    let sleeper = Sleeper::new(Progress::Adaptive).unwrap();
    sleeper.mode.store(turns, Ordering::SeqCst);
    sleeper
}
fn mode(s: &Sleeper) -> u32 {
    s.mode.load(Ordering::SeqCst)
}
/// Whether its thread was kicked since the last look.
fn kicked(s: &Sleeper) -> bool {
    let kick = s.kick.as_ref().unwrap();
    let fd = kick.fd();
    let readable =
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1;
    kick.clear();
    readable
}

/// A turn of the program; whether it leaves what it did not do to a guard.
fn turn(s: &Sleeper) -> bool {
    s.program_turned() && s.turned_beside_guard()
}

#[test]
fn what_an_engine_does_on_the_adapters_thread_is_no_turn_of_the_programs() {
    let sleeper = guarded(1);
    assert!(!turn(&sleeper));
    assert_eq!(mode(&sleeper), ACTIVE);
    sleeper.mode.store(1, Ordering::SeqCst);
    OWN.set(core::ptr::from_ref(&sleeper).addr());
    assert!(!turn(&sleeper));
    OWN.set(0);
    assert_eq!(mode(&sleeper), 1, "it would look at the network once a tick only");
}

#[test]
fn a_guard_that_sleeps_tells_until_when_and_is_woken_once() {
    let sleeper = guarded(2);
    assert_eq!(sleeper.sleeps_until(), None, "it is awake");
    sleeper.until.store(7, Ordering::Relaxed);
    sleeper.asleep.store(true, Ordering::SeqCst);
    assert_eq!(sleeper.sleeps_until(), Some(Instant::from_nanos(7)));
    assert!(turn(&sleeper), "the program's last turn but one");
    sleeper.wake_if_asleep();
    sleeper.wake_if_asleep();
    assert_eq!((mode(&sleeper), kicked(&sleeper), kicked(&sleeper)), (1, true, false));
}

#[test]
fn who_says_that_it_sleeps_is_guarded_at_once() {
    let sleeper = guarded(ACTIVE);
    assert!(!sleeper.program_sleeps());
    assert!(mode(&sleeper) != ACTIVE && kicked(&sleeper));
    assert!(sleeper.program_sleeps());
    assert!(!kicked(&sleeper), "its thread stands guard");
}

#[test]
fn a_program_that_is_woken_and_sleeps_again_does_not_end_its_guard() {
    let sleeper = guarded(ACTIVE);
    assert!(!sleeper.program_sleeps());
    for _ in 0..10 {
        sleeper.stand_guard(MIN_TOLERANCE);
        sleeper.guard_found_work(MIN_TOLERANCE);
        assert!(turn(&sleeper) && sleeper.program_sleeps());
    }
    assert_eq!((1..SLEEPERS_TOLERANCE).filter(|_| !turn(&sleeper)).count(), 0);
    assert!(!turn(&sleeper) && mode(&sleeper) == ACTIVE, "it has polled on and on");
    sleeper.stand_guard(MIN_TOLERANCE);
    sleeper.guard_found_work(MIN_TOLERANCE);
    assert!(!turn(&sleeper), "it has not slept since");
}

#[test]
fn a_guard_that_sleeps_until_packets_come_sleeps_on_when_its_program_sleeps_too() {
    let device = device();
    let shared = device.shared();
    let s = &shared.sleeper;
    let begin = std::time::Instant::now();
    let sleeps = || s.stands_guard() && s.asleep.load(Ordering::SeqCst);
    while !(sleeps() && s.until.load(Ordering::SeqCst) == crate::notify::runs::NEVER) {
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
    for _ in 0..100 {
        shared.program_sleeps();
        assert!(sleeps(), "it was woken");
    }
}

/// A device on an address of its own.
fn device() -> Arc<crate::SoftHca> {
    device_with(crate::Options::default())
}
fn device_with(options: crate::Options) -> Arc<crate::SoftHca> {
    let open = |host| hca_fabric::UdpFabric::open(host, &hca_fabric::UdpOptions::default()).ok();
    let pid = std::process::id();
    let hosts = (1..=200).map(|n| std::net::Ipv4Addr::from(0x7f00_0000 | (pid << 8 | n) & 0xff_ffff));
    let fabric = hosts.into_iter().find_map(|host| open(host.into())).expect("a free address");
    crate::SoftHca::open(Box::new(fabric), options).unwrap()
}

#[test]
fn who_arms_a_queue_that_has_a_waker_and_no_descriptor_is_guarded_at_once() {
    use hca_core::{Completion, Device, Notify};
    let device = device();
    let (_, mut cq) = device.create_cq(4).unwrap();
    let mut one = [Completion::default()];
    let is_guarded = || mode(&device.shared().sleeper) != ACTIVE;
    cq.poll(&mut one);
    cq.set_waker(core::task::Waker::noop());
    cq.arm(Notify::Any);
    assert!(is_guarded());
    assert!(cq.poll(&mut one) == 0 && is_guarded(), "the look behind it is the last one");
    // Its thread may stand guard again soon.
    while cq.poll(&mut one) > 0 || is_guarded() {}
}

#[test]
fn a_guard_that_finds_the_engine_held_waits_for_nobody_and_has_the_holder_turn() {
    let device = device_with(crate::Options { progress: Progress::Inline, ..crate::Options::default() });
    let shared = device.shared();
    let turns = Cell::new(0);
    let turn = || shared.turn_or_ask(|_| turns.set(turns.get() + 1)).is_some();
    shared.control(|_| assert!(!turn()));
    assert_eq!(turns.get(), 0);
    assert!(!shared.sleeper.is_asked_for_a_turn(), "the holder has turned");
    assert!(turn() && turns.get() == 1 && !shared.sleeper.is_asked_for_a_turn());
}

#[test]
fn a_program_whose_other_thread_sleeps_on_a_descriptor_has_no_guard_at_once() {
    use hca_core::{Device, Notify, Offload};
    let device = device();
    let sleeper = &device.shared().sleeper;
    let (_, mut cq) = device.create_cq(4).unwrap();
    // Whether the mode is still that of a program which turns, behind its word that it sleeps. A tick may have come
    // in between.
    let stays_active = || {
        let seen = || {
            while sleeper.stands_guard() {
                device.turn();
            }
            Offload::program_sleeps(&*device);
            !sleeper.stands_guard()
        };
        (0..2000).any(|_| seen())
    };
    assert!(!stays_active());
    cq.wait_fd().unwrap();
    cq.arm(Notify::Any);
    assert!(stays_active());
}

#[test]
fn a_guard_learns_from_work_that_was_left_lying() {
    let mut tolerance = MIN_TOLERANCE;
    for _ in 0..5 {
        tolerance = learn(tolerance, true);
    }
    assert_eq!(tolerance, MAX_TOLERANCE);
    let sleeper = guarded(tolerance);
    (1..tolerance).for_each(|_| assert!(turn(&sleeper)));
    assert!(mode(&sleeper) != ACTIVE && !kicked(&sleeper));
    sleeper.guard_found_work(tolerance);
    (1..tolerance).for_each(|_| assert!(turn(&sleeper)));
    assert!(mode(&sleeper) != ACTIVE, "the turns are counted since it found work");
    assert!(!turn(&sleeper));
    assert!(mode(&sleeper) == ACTIVE && kicked(&sleeper));
    sleeper.guard_found_work(tolerance);
    assert_eq!(mode(&sleeper), ACTIVE, "it was sent away");
    assert!(learn(tolerance, false) > tolerance / 2, "one tick without work says little");
    for _ in 0..50 {
        tolerance = learn(tolerance, false);
    }
    assert_eq!(tolerance, MIN_TOLERANCE);
}

/// Brings a queue pair of a service to RTS, towards that of a number at another device.
fn connect(
    device: &crate::SoftHca,
    (qp, qp_type): (hca_core::QpHandle, hca_core::QpType),
    (peer, qpn): (&crate::SoftHca, hca_core::Qpn),
) {
    use hca_core::{
        AckTimeout, AddressVector, Device, Gid, Mtu, Pkey, Psn, QpAttr, QpState, QpType, RnrTimer,
    };
    let (receives, sends) = (qp_type != QpType::XrcIni, qp_type != QpType::XrcTgt);
    let init = QpAttr { state: Some(QpState::Init), pkey: Some(Pkey::DEFAULT), ..QpAttr::default() };
    let init = QpAttr { access: Some(hca_core::Access::REMOTE_WRITE), ..init };
    let dgid = Gid::from_ip(peer.fabric().local);
    let rtr = QpAttr {
        state: Some(QpState::Rtr),
        dest_qpn: Some(qpn),
        av: Some(AddressVector { dgid, ..AddressVector::default() }),
        path_mtu: Some(Mtu::B1024),
        rq_psn: Some(Psn::new(7)),
        max_dest_rd_atomic: receives.then_some(1),
        min_rnr_timer: receives.then(|| RnrTimer::new(1)),
        ..QpAttr::default()
    };
    let rts = QpAttr {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(7)),
        timeout: Some(AckTimeout::new(18)),
        retry_cnt: sends.then_some(7),
        rnr_retry: sends.then_some(7),
        max_rd_atomic: sends.then_some(1),
        ..QpAttr::default()
    };
    for attr in [init, rtr, rts] {
        device.modify_qp(qp, &attr).unwrap();
    }
}
/// Two queue pairs of these devices, connected to each other, with a receive request each.
fn connected(devices: &[Arc<crate::SoftHca>; 2]) -> [hca_core::QpPorts; 2] {
    use hca_core::Device;
    connected_by(devices, [0, 1].map(|n| devices[n].create_cq(16).unwrap().0))
}
/// The same, with these completion queues.
#[allow(unsafe_code)] // posts, as a program does
fn connected_by(devices: &[Arc<crate::SoftHca>; 2], cqs: [hca_core::CqHandle; 2]) -> [hca_core::QpPorts; 2] {
    use hca_core::{Device, QpCap, QpInit, QpType, RecvWr};
    let mut qps = [0, 1].map(|n| {
        let (device, cq) = (&devices[n], cqs[n]);
        let (pd, cap) = (device.alloc_pd().unwrap(), QpCap::default());
        let init = QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap };
        device.create_qp(pd, &init).unwrap()
    });
    for (n, device) in devices.iter().enumerate() {
        connect(device, (qps[n].handle, QpType::Rc), (&devices[1 - n], qps[1 - n].qpn));
        let recv = qps[n].recv.as_mut().unwrap();
        // SAFETY: the request names no memory.
        unsafe { recv.post(&[RecvWr { wr_id: 0, sges: &[] }]) }.unwrap();
        recv.ring();
    }
    qps
}
/// An initiator of XRC at the first device, with its completion queue, and the number of a queue at the second, which
/// has so many receive requests.
#[allow(unsafe_code)] // posts, as a program does
fn connected_xrc(
    devices: &[Arc<crate::SoftHca>; 2],
    requests: u64,
) -> (hca_core::QpPorts, Box<dyn hca_core::CqPort>, hca_core::Srqn) {
    use hca_core::{Device, ExtendedConnections, QpCap, QpInit, QpType, RecvWr, SrqInit};
    let (send_cq, port) = devices[0].create_cq(16).unwrap();
    let cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..QpCap::default() };
    let init = QpInit { qp_type: QpType::XrcIni, send_cq, recv_cq: send_cq, srq: None, cap };
    let initiator = devices[0].create_qp(devices[0].alloc_pd().unwrap(), &init).unwrap();
    let (cq, pd) = (devices[1].create_cq(16).unwrap().0, devices[1].alloc_pd().unwrap());
    let domain = devices[1].alloc_xrcd().unwrap();
    let mut srq = devices[1].create_xrc_srq(pd, domain, cq, &SrqInit { max_wr: 16, max_sge: 1 }).unwrap();
    let (target, qpn) = devices[1].create_xrc_target(domain).unwrap();
    connect(&devices[1], (target, QpType::XrcTgt), (&devices[0], initiator.qpn));
    connect(&devices[0], (initiator.handle, QpType::XrcIni), (&devices[1], qpn));
    for wr_id in 0..requests {
        // SAFETY: the request names no memory.
        unsafe { srq.recv.post(&[RecvWr { wr_id, sges: &[] }]) }.unwrap();
    }
    srq.recv.ring();
    (initiator, port, srq.number)
}

#[test]
#[allow(unsafe_code)] // posts, as a program does
fn a_post_beside_a_holder_of_the_engine_shortens_the_sleep_of_the_guard() {
    use hca_core::{Payload, SendFlags, SendOp, SendWr};
    let inline = || crate::Options { progress: Progress::Inline, ..crate::Options::default() };
    // Nobody turns the peer, so there is no answer, and the request stays to be repeated.
    let devices = [device(), device_with(inline())];
    let [mut qp, _peer] = connected(&devices);
    let shared = devices[0].shared();
    let until = |sleeps: &dyn Fn(u64) -> bool| {
        let begin = std::time::Instant::now();
        while !(shared.sleeper.asleep.load(Ordering::SeqCst)
            && shared.sleeper.stands_guard()
            && sleeps(shared.sleeper.until.load(Ordering::SeqCst)))
        {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
    };
    until(&|at| at == crate::notify::runs::NEVER);
    let (payload, flags) = (Payload::Inline(b""), SendFlags::SIGNALED);
    let message = SendWr { wr_id: 1, op: SendOp::Send, flags, payload, dest: None };
    // SAFETY: inline data names no memory.
    shared.control(|_| unsafe { qp.send.post_now(&message) }).unwrap();
    until(&|at| at != crate::notify::runs::NEVER);
}

#[test]
#[allow(unsafe_code)] // posts, as a program does
fn an_acknowledgement_that_leaves_with_an_answer_leaves_the_guard_nothing_to_do() {
    use hca_core::{Payload, SendFlags, SendOp, SendWr};
    let devices = [0, 1]
        .map(|_| device_with(crate::Options { progress: Progress::Inline, ..crate::Options::default() }));
    let mut qps = connected(&devices);
    let (payload, flags) = (Payload::Inline(b""), SendFlags::SIGNALED);
    let message = SendWr { wr_id: 1, op: SendOp::Send, flags, payload, dest: None };
    let mut held = HeldAcks::default();
    let mut turn = || {
        devices[1].shared().control(|e| {
            let now = devices[1].shared().time.now();
            guard_turn(devices[1].shared(), e, now, Some((&mut held, Duration::from_micros(250))));
            (e.owes_acks(), held.until(), e.sends_at())
        })
    };
    // SAFETY: inline data names no memory.
    unsafe { qps[0].send.post_now(&message) }.unwrap();
    let (owes, until, _) = turn();
    assert!(owes && until.is_some(), "it waits for the answer");
    // SAFETY: as above.
    unsafe { qps[1].send.post_now(&message) }.unwrap();
    assert_eq!(turn(), (false, None, None), "the guard sleeps until a packet comes or a timer fires");
}

/// A program that is given a completion looks at its memory next, and may answer what was written there.
#[test]
#[allow(unsafe_code)] // posts, as a program does
fn a_write_that_comes_beside_a_completion_is_acknowledged_with_the_answer() {
    use hca_core::{Completion, Device, Payload, RemoteAddr, Rkey, SendFlags, SendOp, SendWr};
    let options = crate::Options { progress: Progress::Inline, lazy_acks: true, ..crate::Options::default() };
    let devices = [0, 1].map(|_| device_with(options.clone()));
    let mut cqs = [0, 1].map(|n| devices[n].create_cq(16).unwrap());
    let mut qps = connected_by(&devices, [cqs[0].0, cqs[1].0]);
    let begin = std::time::Instant::now();
    // A poll by whose turn something arrives: how many completions there are, and whether acknowledgements are owed.
    let mut poll = |n: usize| {
        let shared = devices[n].shared();
        shared.control(|e| e.core.arrived = false);
        let mut found = 0;
        while !shared.control(|e| e.core.arrived) {
            assert!(begin.elapsed() < Duration::from_secs(20), "nothing arrives");
            found += cqs[n].1.poll(&mut [Completion::default()]);
        }
        (found, shared.control(|e| e.owes_acks()))
    };
    let op = SendOp::Write(RemoteAddr { addr: 0, rkey: Rkey::new(0) });
    let (payload, flags) = (Payload::Inline(b""), SendFlags::SIGNALED);
    let write = SendWr { wr_id: 1, op, flags, payload, dest: None };
    // SAFETY: inline data names no memory.
    unsafe { qps[1].send.post_now(&write) }.unwrap();
    devices[0].shared().control(|e| {
        let shared = devices[0].shared();
        e.core.arrived = false;
        while !e.core.arrived {
            assert!(begin.elapsed() < Duration::from_secs(20), "nothing arrives");
            shared.whole_turn(e, shared.time.now(), AckRule::WithAnswer);
        }
    });
    // SAFETY: as above.
    let mut post = |n: usize| unsafe { qps[n].send.post_now(&write) }.unwrap();
    post(0);
    assert_eq!(poll(1), (1, true), "the WRITE may be answered");
    post(1);
    assert!(!devices[1].shared().control(|e| e.owes_acks()), "the answer had the acknowledgement along");
    assert_eq!(poll(0), (1, true), "the same here");
    post(0);
    assert_eq!(poll(1), (1, true));
    post(0);
    assert_eq!(poll(1), (0, false), "who is given nothing acknowledges at once");
}

/// The program's answer to a message of XRC goes by another queue pair, and may overtake what the target owes.
#[test]
#[allow(unsafe_code)] // posts, as a program does
fn what_an_xrc_target_owes_waits_for_no_answer() {
    use hca_core::{Completion, Dest, Payload, SendFlags, SendOp, SendWr};
    let devices = [0, 1]
        .map(|_| device_with(crate::Options { progress: Progress::Inline, ..crate::Options::default() }));
    let mut answering = connected(&devices);
    let (mut initiator, mut cq, number) = connected_xrc(&devices, 5);
    let begin = std::time::Instant::now();
    // Turns until the turn in which the message arrives; whether acknowledgements are owed behind it.
    let turn = |rule| {
        let shared = devices[1].shared();
        shared.control(|e| {
            e.core.arrived = false;
            while !e.core.arrived {
                assert!(begin.elapsed() < Duration::from_secs(20), "{rule:?}: nothing arrives");
                shared.whole_turn(e, shared.time.now(), rule);
            }
            (e.owes_acks(), e.sends_at())
        })
    };
    let (payload, flags) = (Payload::Inline(b""), SendFlags::SIGNALED);
    let mut message = SendWr { wr_id: 1, op: SendOp::Send, flags, payload, dest: None };
    // SAFETY: inline data names no memory.
    unsafe { answering[0].send.post_now(&message) }.unwrap();
    turn(AckRule::WithAnswer);
    message.dest = Some(Dest::Srq(number));
    // The last one begins where nobody owes anything.
    let rules =
        [AckRule::WithAnswer, AckRule::NextTurn, AckRule::UnlessDelivered, AckRule::Now, AckRule::NextTurn];
    for rule in rules {
        // SAFETY: as above.
        unsafe { initiator.send.post_now(&message) }.unwrap();
        let others_owe = rule == AckRule::WithAnswer;
        assert_eq!(turn(rule), (others_owe, None), "{rule:?}");
        // Nobody turns the target's device meanwhile.
        let mut one = [Completion::default()];
        while cq.poll(&mut one) == 0 {
            assert!(begin.elapsed() < Duration::from_secs(20), "{rule:?}: it was not acknowledged");
        }
        assert_eq!(one[0].status, hca_core::WcStatus::Success, "{rule:?}");
    }
}

/// A WRITE that is done as it is posted leaves no work: who posts many pays for no look at the guard.
#[test]
#[allow(unsafe_code)] // posts and registers, as a program does
fn what_is_done_on_a_peers_memory_is_not_left_to_the_guard() {
    use hca_core::{Access, Completion, Device, MrInit, Payload, RemoteAddr, SendFlags, SendOp, SendWr};
    let domain = format!("guards.{}", std::process::id());
    let devices = [Progress::Adaptive, Progress::Inline].map(|progress| {
        let fabric = hca_fabric::ShmFabric::open(&domain, &Default::default()).unwrap();
        crate::SoftHca::open(Box::new(fabric), crate::Options { progress, ..Default::default() }).unwrap()
    });
    let (cq, mut port) = devices[0].create_cq(16).unwrap();
    let [mut qp, peer] = connected_by(&devices, [cq, devices[1].create_cq(16).unwrap().0]);
    let pd = devices[1].shared().control(|e| e.core.qps.at(peer.handle.index).expect("it is there").res.pd);
    let memory = devices[1].alloc_memory(4096).unwrap();
    let addr = memory.addr();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    // SAFETY: the memory outlives the device's use.
    let keys =
        unsafe { devices[1].reg_mr(pd, &MrInit { addr, len: 4096, iova: addr.as_ptr() as u64, access }) }
            .unwrap();
    let op = SendOp::Write(RemoteAddr { addr: addr.as_ptr() as u64, rkey: keys.rkey });
    let mut post = |flags| {
        let wr = SendWr { wr_id: 1, op, flags, payload: Payload::Inline(b"message"), dest: None };
        // SAFETY: inline data names no memory.
        unsafe { qp.send.post_now(&wr) }.unwrap();
    };
    let mut one = [Completion::default()];
    // The first ones go as messages.
    let is_direct = |_| {
        post(SendFlags::SIGNALED);
        let at_once = port.poll(&mut one) == 1;
        while !at_once && port.poll(&mut one) == 0 {
            devices[1].turn();
        }
        at_once
    };
    assert!((0..1000).any(is_direct));
    let sleeper = &devices[0].shared().sleeper;
    let begin = std::time::Instant::now();
    let mut leaves_nothing = || {
        while !(sleeper.stands_guard() && sleeper.asleep.load(Ordering::SeqCst)) {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
        let before = sleeper.left.load(Ordering::SeqCst);
        (0..100).for_each(|_| post(SendFlags::empty()));
        sleeper.left.load(Ordering::SeqCst) == before
    };
    // A guard that wakes meanwhile may have the engine, and what is posted then is left to it.
    while !leaves_nothing() {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "each hundred of WRITEs left something to the guard"
        );
    }
    drop(memory);
}
