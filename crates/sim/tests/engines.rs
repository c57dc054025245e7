//! Portals engines run by adapters on virtual time, over a hostile network.
//!
//! Invariants:
//! 1. The memory that requests name belongs to a region that is destroyed after its queue pair, and no reference to it
//!    exists.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use hca_core::{
    Access, Completion, Device, Lid, OffloadEngine, Payload, Psn, QpCap, QpType, RecvWr, SendFlags, SendOp,
    SendWr, SrqInit, WcOpcode, WcStatus,
};
use hca_sim::{LinkProfile, Node, Sim, check, sleep};
use hca_verbs::raw::{RawCq, RawQp, RawSrq, sge};
use hca_verbs::{Completions, ConnectOptions, Endpoint, Pd, QueuePair, Rc, SharedMr};

const MESSAGES: u32 = 40;
const REQUESTS: u64 = 8;
const ROOM: usize = 64;
/// Between two runs that nothing else causes.
const KEEPALIVE: Duration = Duration::from_millis(50);

/// Answers each message with its own bytes.
struct Echo {
    ports: Mutex<Ports>,
    runs: AtomicU32,
}

struct Ports {
    qp: RawQp,
    srq: RawSrq,
    cq: RawCq,
    memory: SharedMr,
    endpoint: Endpoint,
}

impl Ports {
    fn new(node: &Node) -> Self {
        let context = node.context();
        let pd: Pd = context.alloc_pd().unwrap();
        let cq = RawCq::create(&context, 64).unwrap();
        let srq = RawSrq::create(&pd, &SrqInit { max_wr: 64, max_sge: 1 }).unwrap();
        let qp = RawQp::create(&pd, QpType::Rc, &cq, &cq, Some(&srq), QpCap::default()).unwrap();
        let memory = pd.alloc_shared(REQUESTS as usize * ROOM, Access::LOCAL_WRITE).unwrap();
        let (port, qpn) = (context.port(), qp.qpn());
        let (service, psn, mtu, gid) = (QpType::Rc, Psn::new(5), port.active_mtu, port.gid);
        let endpoint = Endpoint { service, qpn, psn, mtu, rd_atomic: 1, gid, lid: Lid::default() };
        let mut ports = Self { qp, srq, cq, memory, endpoint };
        (0..REQUESTS).for_each(|place| ports.post_recv(place));
        ports
    }
    fn post_recv(&mut self, place: u64) {
        let at = place as usize * ROOM;
        let sges = [sge(&self.memory.range(at..at + ROOM))];
        // SAFETY: (1)
        unsafe { self.srq.post_recv(&[RecvWr { wr_id: place, sges: &sges }]) }.unwrap();
    }
    fn answer(&mut self, c: &Completion) {
        let at = c.wr_id as usize * ROOM;
        let sges = [sge(&self.memory.range(at..at + c.byte_len as usize))];
        let (op, payload) = (SendOp::Send, Payload::Sges(&sges));
        let wr = SendWr { wr_id: c.wr_id, op, flags: SendFlags::SIGNALED, payload, dest: None };
        // SAFETY: (1)
        unsafe { self.qp.post_send_now(&wr) }.unwrap();
    }
}

impl OffloadEngine for Echo {
    fn run(&self) -> bool {
        self.runs.fetch_add(1, Ordering::Relaxed);
        // Its program connects it: that is a call of the device's.
        let Ok(mut ports) = self.ports.try_lock() else { return true };
        let mut some = [Completion::default(); 3];
        let n = ports.cq.poll(&mut some);
        for c in &some[..n] {
            assert_eq!(c.status, WcStatus::Success);
            match c.opcode {
                WcOpcode::Recv => ports.answer(c),
                _ => ports.post_recv(c.wr_id),
            }
        }
        n == some.len()
    }
    fn next_deadline(&self) -> Option<Duration> {
        Some(KEEPALIVE)
    }
}

fn attach(node: &Node) -> (Arc<Echo>, Arc<dyn Device>) {
    let (ports, device) = (Ports::new(node), node.device());
    let cq = ports.cq.handle();
    let echo = Arc::new(Echo { ports: Mutex::new(ports), runs: AtomicU32::new(0) });
    let engine: Weak<Echo> = Arc::downgrade(&echo);
    device.offload().expect("the software adapter runs engines").attach(cq, engine).unwrap();
    (echo, device)
}

/// Sends to an engine whose program is not there, and takes the answers.
fn exchange(sim: &Sim) -> Result<(), hca_sim::Violation> {
    let [a, b] = [sim.add_node(), sim.add_node()];
    let (echo, _device) = attach(&b);
    let context = a.context();
    let (pd, mut cq) = (context.alloc_pd().unwrap(), context.create_cq(256).unwrap());
    let mut qp: QueuePair<Rc> = pd.qp::<Rc>(&cq).build().unwrap();
    {
        let mut ports = echo.ports.lock().unwrap();
        let (ours, options) = (ports.endpoint, ConnectOptions::default());
        qp.connect(&ours, &options).unwrap();
        ports.qp.connect(Access::empty(), &ours, &qp.endpoint(), &options).unwrap();
    }
    let seen = sim.block_on(async move {
        for buf in pd.alloc_many(MESSAGES as usize, 4).unwrap() {
            qp.post_recv(buf).unwrap();
        }
        for n in 0..MESSAGES {
            qp.send_inline(&n.to_be_bytes()).unwrap();
        }
        let (mut wcs, mut seen) = (Completions::default(), Vec::new());
        while seen.len() < MESSAGES as usize {
            for wc in cq.next(&mut wcs).await {
                if let Some(bytes) = wc.ok().unwrap().payload() {
                    seen.push(u32::from_be_bytes(bytes.try_into().unwrap()));
                }
            }
        }
        seen
    })?;
    assert_eq!(seen, Vec::from_iter(0..MESSAGES));
    Ok(())
}

#[test]
fn an_engine_answers_for_a_program_that_is_not_there() {
    check(0..30, |builder| exchange(&builder.links(&LinkProfile::hostile()).build()));
}

#[test]
fn runs_of_an_engine_follow_from_the_seed() {
    let trace = |seed| {
        let sim = Sim::builder(seed).links(&LinkProfile::hostile()).build();
        exchange(&sim).unwrap();
        (sim.trace_hash(), sim.now())
    };
    assert_eq!(trace(3), trace(3));
    assert_ne!(trace(3), trace(4));
}

#[test]
fn an_engine_is_run_at_its_deadlines_of_virtual_time() {
    let sim = Sim::new(1);
    let node = sim.add_node();
    let (echo, _device) = attach(&node);
    for after in [49, 2, 50, 500] {
        sim.block_on(async move { sleep(Duration::from_millis(after)).await }).unwrap();
        let (runs, now) =
            (u64::from(echo.runs.load(Ordering::Relaxed)), Duration::from_nanos(sim.now().as_nanos()));
        // The first run is the attachment's; one that is due at this very time may be still to come.
        let due = 1 + (now.as_nanos() / KEEPALIVE.as_nanos()) as u64;
        assert!(runs == due || runs + 1 == due, "{runs} runs in {now:?}");
    }
}
