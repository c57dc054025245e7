//! Tests of network, executor and runner, over a device that answers every packet once.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Waker;
use core::time::Duration;
use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use hca_core::wire::{Bth, BthFlags, Opcode, PacketOp};
use hca_core::{
    AddressVector, AhHandle, AsyncEvent, AtomicScope, Counter, CqHandle, CqPort, Device, DeviceAttr,
    DeviceError, DmaMemory, Gid, Instant, Lid, LinkLayer, MrHandle, MrInit, MrKeys, Mtu, PdHandle, Pkey,
    PortAttr, Psn, QpAttr, QpHandle, QpInit, QpPorts, QpStatus, Qpn, RecvPort, SrqHandle, SrqInit,
};
use hca_fabric::{Fabric, RxBudget, TxBatch};

use crate::{
    LinkProfile, NetStats, Node, Outcome, Rng, Sim, Step, now, random, sleep, spawn, timeout, yield_now,
};

/// A device that sends what it is told to and answers each packet of QPN 1 by one of QPN 2.
struct Echo {
    inner: Mutex<EchoInner>,
    clock: Arc<AtomicU64>,
    attr: DeviceAttr,
}
struct EchoInner {
    fabric: Box<dyn Fabric>,
    batch: TxBatch,
    sent: u32,
    seen: Vec<(u32, u32)>,
}

impl Echo {
    fn open(fabric: Box<dyn Fabric>, clock: Arc<AtomicU64>, _: u64) -> Result<Arc<dyn Device>, DeviceError> {
        Ok(Arc::new(Self::new(fabric, clock)))
    }
    fn new(fabric: Box<dyn Fabric>, clock: Arc<AtomicU64>) -> Self {
        let attr = DeviceAttr {
            name: "echo".into(),
            fabric: "sim".into(),
            max_qp: 0,
            max_qp_wr: 0,
            max_sge: 0,
            max_inline: 0,
            max_cq: 0,
            max_cqe: 0,
            max_mr: 0,
            max_mr_bytes: 0,
            max_pd: 0,
            max_ah: 0,
            max_srq: 0,
            max_srq_wr: 0,
            max_rd_atomic: 0,
            atomics: AtomicScope::None,
            foreign_memory: false,
            general_services: false,
            abilities: hca_core::Abilities::default(),
        };
        let batch = TxBatch::with_capacity(1 << 16);
        Self { inner: Mutex::new(EchoInner { fabric, batch, sent: 0, seen: Vec::new() }), clock, attr }
    }
    fn now(&self) -> Instant {
        Instant::from_nanos(self.clock.load(Ordering::Relaxed))
    }
    fn send(&self, to: IpAddr, qpn: u32, traffic_class: u8) {
        let inner = &mut *self.inner.lock().unwrap();
        inner.send(to, qpn, traffic_class);
        inner.fabric.send(self.now(), &mut inner.batch);
    }
    /// QPN and PSN of each packet that arrived.
    fn seen(&self) -> Vec<(u32, u32)> {
        self.inner.lock().unwrap().seen.clone()
    }
}
impl EchoInner {
    fn send(&mut self, to: IpAddr, qpn: u32, traffic_class: u8) {
        let av = AddressVector { dgid: Gid::from_ip(to), traffic_class, ..AddressVector::default() };
        let path = self.fabric.open_path(&av).unwrap();
        let op = Opcode::rc(PacketOp::SendOnly);
        let bth = Bth::new(op, BthFlags::empty(), 0, Pkey::DEFAULT, Qpn::new(qpn), Psn::new(self.sent));
        let out = self.batch.reserve(path, 112).unwrap();
        out.fill(0xab);
        out[..12].copy_from_slice(&raw(&bth));
        self.batch.commit();
        self.sent += 1;
    }
}
fn raw(bth: &Bth) -> [u8; 12] {
    let mut out = [0; 12];
    out[0] = bth.opcode().raw();
    out[1] = 0x40;
    out[2..4].copy_from_slice(&bth.pkey().raw().to_be_bytes());
    out[5..8].copy_from_slice(&bth.dest_qp().raw().to_be_bytes()[1..]);
    out[9..12].copy_from_slice(&bth.psn().raw().to_be_bytes()[1..]);
    out
}

const NO: DeviceError = DeviceError::Unsupported { what: "anything but packets" };
#[allow(unsafe_code)] // a promise
// SAFETY: it touches no memory, and gives out neither keys nor ports.
unsafe impl Device for Echo {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }
    fn port(&self) -> PortAttr {
        let ip = self.inner.lock().unwrap().fabric.attr().local;
        PortAttr {
            gid: Gid::from_ip(ip),
            lid: Lid::new(0),
            active_mtu: Mtu::B4096,
            active: true,
            link_layer: LinkLayer::Unspecified,
            link: None,
        }
    }
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
    fn alloc_pd(&self) -> Result<PdHandle, DeviceError> {
        Err(NO)
    }
    fn dealloc_pd(&self, _: PdHandle) -> Result<(), DeviceError> {
        Err(NO)
    }
    fn alloc_memory(&self, _: usize) -> Result<DmaMemory, DeviceError> {
        Err(NO)
    }
    #[allow(unsafe_code)] // the trait's method is unsafe; this one touches no memory
    unsafe fn reg_mr(&self, _: PdHandle, _: &MrInit) -> Result<MrKeys, DeviceError> {
        Err(NO)
    }
    fn dereg_mr(&self, _: MrHandle) -> Result<(), DeviceError> {
        Err(NO)
    }
    fn create_cq(&self, _: u32) -> Result<(CqHandle, Box<dyn CqPort>), DeviceError> {
        Err(NO)
    }
    fn destroy_cq(&self, _: CqHandle) -> Result<(), DeviceError> {
        Err(NO)
    }
    fn create_srq(&self, _: PdHandle, _: &SrqInit) -> Result<(SrqHandle, Box<dyn RecvPort>), DeviceError> {
        Err(NO)
    }
    fn set_srq_limit(&self, _: SrqHandle, _: u32) -> Result<(), DeviceError> {
        Err(NO)
    }
    fn destroy_srq(&self, _: SrqHandle) -> Result<(), DeviceError> {
        Err(NO)
    }
    fn create_ah(&self, _: PdHandle, _: &AddressVector) -> Result<AhHandle, DeviceError> {
        Err(NO)
    }
    fn destroy_ah(&self, _: AhHandle) -> Result<(), DeviceError> {
        Err(NO)
    }
    fn create_qp(&self, _: PdHandle, _: &QpInit) -> Result<QpPorts, DeviceError> {
        Err(NO)
    }
    fn modify_qp(&self, _: QpHandle, _: &QpAttr) -> Result<(), DeviceError> {
        Err(NO)
    }
    fn query_qp(&self, _: QpHandle) -> Result<QpStatus, DeviceError> {
        Err(NO)
    }
    fn destroy_qp(&self, _: QpHandle) -> Result<Vec<u64>, DeviceError> {
        Err(NO)
    }
    fn poll_event(&self) -> Option<AsyncEvent> {
        None
    }
    fn set_event_waker(&self, _: &Waker) {}
    fn turn(&self) -> bool {
        let inner = &mut *self.inner.lock().unwrap();
        let now = Instant::from_nanos(self.clock.load(Ordering::Relaxed));
        let mut answers = Vec::new();
        let budget = RxBudget { packets: 16, bytes: 1 << 16 };
        let seen = &mut inner.seen;
        let done = inner.fabric.recv(now, budget, &mut |p| {
            let field = |at: usize| u32::from_be_bytes([0, p.bytes[at], p.bytes[at + 1], p.bytes[at + 2]]);
            seen.push((field(5) | u32::from(p.congestion_experienced()) << 31, field(9)));
            if field(5) == 1 {
                answers.push(p.header.src);
            }
        });
        for to in answers {
            inner.send(to, 2, 0);
        }
        inner.fabric.send(now, &mut inner.batch);
        done.packets > 0
    }
    fn needs_turns(&self) -> bool {
        false
    }
    fn next_deadline(&self) -> Option<Duration> {
        None
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

type Echoes = Rc<RefCell<Vec<Arc<Echo>>>>;

/// A simulation of echo devices, and a way to reach them as what they are.
fn echoes(seed: u64, profile: &LinkProfile, nodes: usize) -> (Sim, Vec<Node>, Echoes) {
    let devices: Echoes = Rc::default();
    let list = Rc::clone(&devices);
    let sim = Sim::builder(seed)
        .links(profile)
        .opener(move |fabric, clock, _| {
            let echo = Arc::new(Echo::new(fabric, clock));
            list.borrow_mut().push(Arc::clone(&echo));
            Ok(echo)
        })
        .build();
    let nodes = (0..nodes).map(|_| sim.add_node()).collect();
    (sim, nodes, devices)
}

/// Sends `count` packets, one a microsecond, and runs until everything is quiet.
fn stream(profile: &LinkProfile, count: u32) -> (NetStats, Vec<(u32, u32)>, u64) {
    let (sim, nodes, devices) = echoes(5, profile, 2);
    let (to, echo) = (nodes[1].address(), Arc::clone(&devices.borrow()[0]));
    sim.spawn(async move {
        for _ in 0..count {
            echo.send(to, 7, 2);
            sleep(Duration::from_micros(1)).await;
        }
    });
    assert_eq!(sim.run(), Ok(Outcome::Idle));
    let seen = devices.borrow()[1].seen();
    (sim.stats(), seen, sim.trace_hash())
}

#[test]
fn a_clean_link_delivers_everything_in_order() {
    let (stats, seen, _) = stream(&LinkProfile::default(), 1000);
    assert_eq!((stats.sent, stats.arrived, stats.faults()), (1000, 1000, 0));
    assert_eq!(seen, (0..1000).map(|n| (7, n)).collect::<Vec<_>>());
}

#[test]
fn faults_happen_at_their_rates() {
    let profile =
        LinkProfile { loss: 0.1, duplicate: 0.2, reorder: 0.3, corrupt: 0.05, ..LinkProfile::default() };
    let (stats, seen, _) = stream(&profile, 20_000);
    let near = |what, n: u64, of: u64, p: f64| {
        let (expected, n) = (of as f64 * p, n as f64);
        assert!((expected * 0.9..expected * 1.1).contains(&n), "{what}: {n} of {of}, expected {expected}");
    };
    near("lost", stats.lost, stats.sent, 0.1);
    let through = stats.sent - stats.lost;
    near("duplicated", stats.duplicated, through, 0.2);
    near("reordered", stats.reordered, through, 0.3);
    near("corrupted", stats.corrupted, through + stats.duplicated, 0.05);
    assert_eq!(seen.len() as u64, through + stats.duplicated - stats.rejected);
    let out_of_order = seen.windows(2).filter(|w| w[0].1 > w[1].1).count();
    assert!(out_of_order > 1000, "{out_of_order}");
}

#[test]
fn a_changed_packet_is_dropped_unless_only_the_byte_that_the_icrc_leaves_out_changed() {
    let profile = LinkProfile { corrupt: 1.0, ..LinkProfile::default() };
    let (stats, seen, _) = stream(&profile, 10_000);
    assert_eq!((stats.corrupted, stats.arrived), (10_000, 10_000));
    // Byte 4 of the BTH is one of 116; the packet that it changed is seen as it was sent.
    assert!(seen.len() < 150, "{}", seen.len());
    assert!(seen.iter().all(|s| s.0 == 7), "{seen:?}");
    assert_eq!(stats.rejected, 10_000 - seen.len() as u64);
}

#[test]
fn a_slow_link_marks_and_drops() {
    let profile = LinkProfile {
        bits_per_second: Some(100_000_000),
        queue_bytes: 2000,
        ecn_bytes: Some(500),
        ..LinkProfile::default()
    };
    let (stats, seen, _) = stream(&profile, 200);
    assert!(stats.overflowed > 50 && stats.marked > 20, "{stats:?}");
    assert_eq!(seen.iter().filter(|s| s.0 >> 31 == 1).count() as u64, stats.marked);
}

#[test]
fn one_seed_gives_one_trace() {
    let profile = LinkProfile::hostile();
    assert_eq!(stream(&profile, 500).2, stream(&profile, 500).2);
    let other = LinkProfile { loss: 0.03, ..profile.clone() };
    assert_ne!(stream(&profile, 500).2, stream(&other, 500).2);
}

#[test]
fn a_partition_swallows_packets_until_it_heals() {
    let (sim, nodes, devices) = echoes(1, &LinkProfile::default(), 3);
    let echo = Arc::clone(&devices.borrow()[0]);
    let (near, far) = (nodes[1].address(), nodes[2].address());
    sim.net().partition(&[0, 1]);
    echo.send(near, 7, 0);
    echo.send(far, 7, 0);
    sim.run().unwrap();
    sim.net().rejoin(&[0, 1]);
    echo.send(far, 8, 0);
    sim.run().unwrap();
    let seen = |n: usize| devices.borrow()[n].seen();
    assert_eq!((seen(1), seen(2)), (vec![(7, 0)], vec![(8, 2)]));
}

#[test]
fn what_is_under_way_is_lost_in_a_partition_and_at_a_crashed_node() {
    let (sim, nodes, devices) = echoes(1, &LinkProfile::default(), 2);
    let (echo, to) = (Arc::clone(&devices.borrow()[0]), nodes[1].address());
    echo.send(to, 7, 0);
    sim.net().cut(0, 1);
    sim.run().unwrap();
    sim.net().heal(0, 1);
    echo.send(to, 7, 0);
    nodes[1].crash();
    sim.run().unwrap();
    assert_eq!(sim.stats().unreachable, 2);
    echo.send(to, 7, 0);
    nodes[1].restart(); // before the packet arrives: the new adapter gets it
    sim.run().unwrap();
    assert!(devices.borrow()[1].seen().is_empty());
    assert_eq!(devices.borrow()[2].seen(), [(7, 2)]);
}

#[test]
fn a_crashed_adapter_sends_into_the_void() {
    let (sim, nodes, devices) = echoes(1, &LinkProfile::default(), 2);
    let (old, to) = (Arc::clone(&devices.borrow()[1]), nodes[0].address());
    nodes[1].crash();
    nodes[1].restart();
    old.send(to, 7, 0);
    sim.run().unwrap();
    assert_eq!(sim.stats().sent, 0);
}

#[test]
fn a_stalled_node_reads_its_buffer_later_and_loses_what_does_not_fit() {
    let (sim, nodes, devices) = echoes(1, &LinkProfile::default(), 2);
    let (echo, to) = (Arc::clone(&devices.borrow()[0]), nodes[1].address());
    nodes[1].stall();
    for _ in 0..3000 {
        echo.send(to, 7, 0);
    }
    sim.run().unwrap();
    assert!(devices.borrow()[1].seen().is_empty());
    nodes[1].resume();
    sim.run().unwrap();
    let seen = devices.borrow()[1].seen().len() as u64;
    assert_eq!((seen, sim.stats().overflowed), (212_992 / 116, 3000 - 212_992 / 116));
}

#[test]
fn a_node_reaches_itself_and_ipv6_works() {
    let sim = Sim::builder(3)
        .ipv6(true)
        .opener(|fabric, clock, _| {
            let echo = Echo::new(fabric, clock);
            let own = echo.inner.lock().unwrap().fabric.attr().local;
            assert!(own.is_ipv6());
            echo.send(own, 1, 0);
            Ok(Arc::new(echo))
        })
        .build();
    sim.add_node();
    sim.run().unwrap();
    assert_eq!(sim.stats().arrived, 2, "the packet and its answer");
}

#[test]
fn sleeping_takes_virtual_time_only_and_in_order() {
    let sim = Sim::builder(1).opener(Echo::open).build();
    let log: Rc<RefCell<Vec<(u64, char)>>> = Rc::default();
    for (name, ms) in [('a', 30_000), ('b', 10_000), ('c', 20_000)] {
        let log = Rc::clone(&log);
        sim.spawn(async move {
            sleep(Duration::from_millis(ms)).await;
            log.borrow_mut().push((now().as_nanos() / 1_000_000, name));
        });
    }
    assert_eq!(sim.run(), Ok(Outcome::Idle));
    assert_eq!(*log.borrow(), [(10_000, 'b'), (20_000, 'c'), (30_000, 'a')]);
}

#[test]
fn timeout_ends_a_wait_and_leaves_no_timer_behind() {
    let sim = Sim::builder(1).build();
    let out = sim.block_on(async {
        let late = timeout(Duration::from_millis(1), sleep(Duration::from_secs(9))).await;
        let early = timeout(Duration::from_secs(9), sleep(Duration::from_millis(1))).await;
        (late.is_err(), early.is_ok(), now())
    });
    assert_eq!(out, Ok((true, true, Instant::from_nanos(2_000_000))));
    assert_eq!(sim.run(), Ok(Outcome::Idle));
    assert_eq!(sim.now(), Instant::from_nanos(2_000_000));
}

#[test]
fn tasks_start_tasks_and_wait_for_them() {
    let sim = Sim::builder(9).build();
    let sum = sim.block_on(async {
        let parts: Vec<_> = (0..10)
            .map(|n| {
                spawn(async move {
                    sleep(Duration::from_nanos(random() % 1000)).await;
                    yield_now().await;
                    n
                })
            })
            .collect();
        let mut sum = 0;
        for p in parts {
            sum += p.await.unwrap();
        }
        sum
    });
    assert_eq!(sum, Ok(45));
}

#[test]
fn a_crash_cancels_the_tasks_of_its_node_and_those_that_they_started() {
    let (sim, nodes, _) = echoes(1, &LinkProfile::default(), 2);
    let inner = nodes[0].spawn(async {
        let inner = spawn(sleep(Duration::from_secs(1)));
        sleep(Duration::from_micros(1)).await;
        (inner,)
    });
    let other = nodes[1].spawn(async { sleep(Duration::from_secs(1)).await });
    let node = nodes[0].clone();
    let seen = sim.block_on(async move {
        let (inner,) = inner.await.unwrap();
        node.crash();
        inner.await.is_err()
    });
    assert_eq!(seen, Ok(true));
    sim.run().unwrap();
    assert_eq!(other.try_take(), Some(Ok(())));
}

#[test]
fn a_panic_of_a_task_is_a_violation_with_the_seed() {
    let sim = Sim::builder(77).replay("the command").build();
    sim.spawn(async {
        sleep(Duration::from_micros(3)).await;
        panic!("told to");
    });
    let v = sim.run().unwrap_err();
    assert_eq!((v.seed, v.at.as_nanos(), v.replay.as_str()), (77, 3000, "the command"));
    assert!(v.to_string().contains("panic: told to"), "{v}");
}

#[test]
fn a_task_that_never_lets_time_pass_is_a_violation() {
    let sim = Sim::new(1);
    sim.spawn(async {
        loop {
            yield_now().await;
        }
    });
    assert!(sim.run().unwrap_err().what.contains("livelock"));
}

#[test]
fn a_program_that_waits_for_nothing_is_a_violation() {
    let sim = Sim::new(1);
    assert!(sim.block_on(core::future::pending::<()>()).unwrap_err().what.contains("still waits"));
}

#[test]
fn an_actor_steps_when_its_time_has_come_or_an_adapter_has_moved() {
    let (sim, nodes, devices) = echoes(1, &LinkProfile::default(), 2);
    let times: Rc<RefCell<Vec<u64>>> = Rc::default();
    let log = Rc::clone(&times);
    sim.add_actor(move |now: Instant| {
        log.borrow_mut().push(now.as_nanos());
        if log.borrow().len() < 4 { Step::After(Duration::from_micros(10)) } else { Step::Done }
    });
    devices.borrow()[0].send(nodes[1].address(), 1, 0);
    sim.run().unwrap();
    assert_eq!(*times.borrow(), [0, 2000, 4000, 14_000]);
}

#[test]
fn a_random_profile_stays_within_what_a_reliable_service_survives() {
    let mut rng = Rng::new(4);
    for _ in 0..100 {
        let p = LinkProfile::random(&mut rng);
        assert!(p.loss + p.corrupt + p.reorder <= 0.1 && p.healed().loss == 0.0, "{p:?}");
    }
}
