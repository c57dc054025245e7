//! Cases that random seeds have found, or that they reach too seldom: each by itself, on a network with scripted
//! faults.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hca_core::Instant;
use hca_sim::{LinkProfile, Sim};
use portals::v4::{
    AckReq, CtHandle, EqHandle, EventKind, Get, Limits, ListKind, Md, MdHandle, MdOptions, Me, MeOptions, Ni,
    NiFail, NiOptions, PtOptions, Put, Rank,
};
use portals::{Card, Listed, Node, NodeOptions};

use crate::host::Cards;

/// A process that counts its replies and acknowledgements, and lends its memory to all.
struct Process {
    node: Node,
    ni: Ni,
    eq: EqHandle,
    ct: CtHandle,
    md: MdHandle,
}

impl Process {
    fn open(sim: &Sim, n: usize, cards: &Arc<Cards>, with: impl Fn(NodeOptions) -> NodeOptions) -> Self {
        let net = sim.net().clone();
        let options = NodeOptions {
            eager_bytes: 64,
            rank: Some(Rank(n as u32)),
            directory: cards.clone(),
            clock: Some(Arc::new(move || net.now().since(Instant::ZERO))),
            seed: Some(n as u64),
            ..NodeOptions::default()
        };
        let node = Node::open(&sim.node(n).context(), with(options)).unwrap();
        let ni = NiOptions::MATCHING | NiOptions::LOGICAL;
        let ni = Ni::init(&node, ni, None, &Limits::default()).unwrap();
        let (eq, ct) = (ni.eq_alloc(1 << 14).unwrap(), ni.ct_alloc().unwrap());
        let memory = node.alloc(1 << 16).unwrap();
        let options = MdOptions::EVENT_CT_REPLY | MdOptions::EVENT_CT_ACK | MdOptions::EVENT_SEND_DISABLE;
        let md = ni.md_bind(&Md { options, eq: Some(eq), ct: Some(ct), ..Md::new(&memory) }).unwrap();
        assert_eq!(ni.pt_alloc(PtOptions::empty(), None, Some(0)).unwrap(), 0);
        let options = MeOptions::OP_PUT | MeOptions::OP_GET;
        let me = Me { options, ..Me::new(node.alloc(1 << 16).unwrap()) };
        ni.me_append(0, &me, ListKind::Priority, 0).unwrap();
        cards.lock().unwrap().0[n] = node.card();
        Self { node, ni, eq, ct, md }
    }
    fn counted(&self) -> u64 {
        let count = self.ni.ct_get(self.ct).unwrap();
        assert_eq!(count.failure, 0, "nothing fails here");
        count.success
    }
}

/// Processes on clean links.
fn processes(sim: &Sim, n: usize, with: impl Fn(NodeOptions) -> NodeOptions) -> (Vec<Process>, Arc<Cards>) {
    let none = Card {
        nid: portals::Nid(0),
        pid: portals::Pid(0),
        gid: hca_core::Gid::default(),
        lid: hca_core::Lid::default(),
        datagrams: hca_core::Qpn::new(0),
    };
    let cards = Arc::new(Mutex::new(Listed(vec![none; n])));
    for _ in 0..n {
        sim.add_node();
    }
    ((0..n).map(|i| Process::open(sim, i, &cards, &with)).collect(), cards)
}

fn to(rank: u32) -> portals::Process {
    portals::Process::logical(Rank(rank))
}

/// Runs until `done`, with a look of every process each time that anything moved.
fn until(sim: &Sim, processes: &[Process], most: Duration, mut done: impl FnMut(&[Process]) -> bool) {
    let end = sim.now() + most;
    let mut steps = 0;
    while !done(processes) {
        assert!(
            sim.now() < end,
            "it has not come in {most:?}: {:?}",
            processes.iter().map(|p| p.node.holdings()).collect::<Vec<_>>()
        );
        for process in processes {
            for _ in 0..33 {
                process.node.progress();
            }
        }
        // What has not come at once waits for a timeout.
        let step = if steps < 2000 { Duration::from_micros(20) } else { Duration::from_millis(5) };
        steps += 1;
        sim.run_for(step).unwrap();
    }
}

fn more_than_the_window(offload: bool, both_ways: bool) {
    const OPS: u64 = 1400;
    let sim = Sim::new(1);
    let (processes, _) = processes(&sim, 2, |options| NodeOptions { offload, ..options });
    for i in 0..OPS {
        for (n, process) in processes.iter().enumerate().take(if both_ways { 2 } else { 1 }) {
            let get = Get { local_offset: 8 * i, ..Get::new(process.md, 100, to(1 - n as u32), 0) };
            process.ni.get(&get).unwrap();
            if both_ways {
                let put = Put {
                    ack_req: AckReq::Ct,
                    local_offset: 8 * i,
                    ..Put::new(process.md, 100, to(1 - n as u32), 0)
                };
                process.ni.put(&put).unwrap();
            }
        }
    }
    let wanted = if both_ways { [2 * OPS; 2] } else { [OPS, 0] };
    until(&sim, &processes, Duration::from_secs(5), |p| [p[0].counted(), p[1].counted()] == wanted);
    for process in &processes {
        assert_eq!((process.node.counts().malformed, process.node.counts().lost), (0, 0));
    }
}

#[test]
fn more_long_gets_than_the_window_has_end_well() {
    more_than_the_window(false, false);
    more_than_the_window(true, false);
}

#[test]
fn long_gets_and_puts_of_both_sides_beyond_the_window_end_well() {
    more_than_the_window(false, true);
    more_than_the_window(true, true);
}

/// The adapter does what there is to do, though nobody calls: the first hellos are lost.
#[test]
fn a_connection_is_made_by_the_adapters_though_hellos_are_lost_and_nobody_calls() {
    let sim = Sim::new(1);
    let (processes, _) = processes(&sim, 2, |options| options);
    sim.net().set_profile(&LinkProfile { loss: 1.0, ..LinkProfile::default() });
    let process = &processes[0];
    process.ni.put(&Put { ack_req: AckReq::Ct, ..Put::new(process.md, 8, to(1), 0) }).unwrap();
    // It looks, and finds nothing; then it computes.
    assert_eq!(process.ni.eq_get(process.eq).unwrap(), None);
    sim.run_for(Duration::from_millis(5)).unwrap();
    sim.net().heal_all();
    sim.run_for(Duration::from_secs(2)).unwrap();
    assert_eq!(process.counted(), 1);
}

/// The second process begins anew at the same address, with datagrams elsewhere, and speaks to nobody.
#[test]
fn a_process_that_has_come_again_is_found() {
    let sim = Sim::new(1);
    let seconds = Duration::from_secs(1);
    let (mut processes, cards) =
        processes(&sim, 2, |options| NodeOptions { connect_timeout: seconds, ..options });
    let put = |process: &Process| {
        let put = Put { ack_req: AckReq::Ack, ..Put::new(process.md, 8, to(1), 0) };
        process.ni.put(&put).unwrap();
    };
    let ack = |processes: &[Process]| {
        let mut got = None;
        until(&sim, processes, Duration::from_secs(30), |p| {
            got = p[0].ni.eq_get(p[0].eq).unwrap();
            got.is_some()
        });
        let event = got.unwrap().event;
        assert_eq!(event.kind, EventKind::Ack);
        event.ni_fail_type
    };
    put(&processes[0]);
    assert_eq!(ack(&processes), NiFail::Ok);
    sim.node(1).crash();
    processes.pop();
    sim.node(1).restart();
    processes.push(Process::open(&sim, 1, &cards, |options| options));
    put(&processes[0]);
    assert_eq!(ack(&processes), NiFail::Undeliverable, "the connection was to the one that is gone");
    put(&processes[0]);
    assert_eq!(ack(&processes), NiFail::Ok);
}

/// Each ends once, those for which the window had no place too.
fn what_is_begun_ends_with_its_peer(offload: bool) {
    const OPS: u64 = 1500;
    let sim = Sim::new(1);
    let (mut processes, _) = processes(&sim, 2, |options| NodeOptions { offload, ..options });
    for _ in 0..OPS {
        processes[0].ni.get(&Get::new(processes[0].md, 100, to(1), 0)).unwrap();
    }
    until(&sim, &processes, Duration::from_secs(1), |p| p[0].counted() > 10);
    sim.node(1).crash();
    processes.pop();
    let count = || processes[0].ni.ct_get(processes[0].ct).unwrap();
    until(&sim, &processes, Duration::from_secs(30), |_| count().success + count().failure == OPS);
    assert!(count().failure > 1024, "the window was full: {:?}", count());
    assert!(processes[0].node.holdings().is_at_rest());
    processes[0].ni.md_release(processes[0].md).unwrap();
}

#[test]
fn what_waits_for_a_place_in_the_window_ends_when_the_peer_is_gone() {
    what_is_begun_ends_with_its_peer(false);
    what_is_begun_ends_with_its_peer(true);
}

/// The adapter has taken the message, so the transport owes nothing; the process has not looked at it, and never will.
#[test]
fn an_operation_whose_peer_dies_before_it_looks_is_undeliverable() {
    let sim = Sim::new(1);
    let (mut processes, _) = processes(&sim, 2, |options| NodeOptions { offload: false, ..options });
    let get = Get::new(processes[0].md, 8, to(1), 0);
    processes[0].ni.get(&get).unwrap();
    until(&sim, &processes, Duration::from_secs(1), |p| p[0].counted() == 1);
    processes[0].ni.get(&get).unwrap();
    sim.run_for(Duration::from_millis(500)).unwrap();
    sim.node(1).crash();
    processes.pop();
    let count = || processes[0].ni.ct_get(processes[0].ct).unwrap();
    until(&sim, &processes, Duration::from_secs(30), |_| count().failure == 1);
}
