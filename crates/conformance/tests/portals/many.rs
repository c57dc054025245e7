//! One node and very many others.

use std::net::Ipv4Addr;

use hca_fabric::LoopbackNet;
use hca_verbs::Context;
use portals::v4::{EventKind, Limits, ListKind, Md, Me, MeOptions, Ni, Process, PtOptions, Put, Rank};
use portals::{Node, NodeOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use softhca::{Options, Progress, SoftHca};

use crate::bed::{MATCHING_BY_RANK, PATIENCE};

const OTHERS: u16 = 1000;
/// An adapter that moves by itself has a few.
const DESCRIPTORS: u64 = 8 * OTHERS as u64;

/// Connections come with the first message, and nothing is there before.
#[test]
fn a_node_speaks_to_a_thousand_others() {
    let allowed = descriptors();
    assert!(allowed >= DESCRIPTORS, "needs {DESCRIPTORS} descriptors, and may have {allowed}: ulimit -Hn");
    let net = LoopbackNet::new();
    let contexts: Vec<Context> = (1..=OTHERS + 1)
        .map(|n| {
            let [high, low] = n.to_be_bytes();
            let fabric = Box::new(net.attach(Ipv4Addr::new(10, 0, high, low).into()));
            let options = Options { progress: Progress::Adaptive, ..Options::default() };
            Context::new(SoftHca::open(fabric, options).unwrap())
        })
        .collect();
    let options =
        NodeOptions { eager_bytes: 256, receive_slots: 16, send_slots: 4, ..NodeOptions::default() };
    speak_to_all(&Node::open_all(&contexts, &options).unwrap());
}

/// How many descriptors this process may have, now that it may have as many as it can be given.
fn descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The first node puts its number to each of the others, which answer, twice.
fn speak_to_all(nodes: &[Node]) {
    let nis: Vec<Ni> = (nodes.iter())
        .map(|node| Ni::init(node, MATCHING_BY_RANK, None, &Limits::default()).unwrap())
        .collect();
    let ends: Vec<_> = (nis.iter())
        .map(|ni| {
            let eq = ni.eq_alloc(16).unwrap();
            let pt = ni.pt_alloc(PtOptions::empty(), Some(eq), Some(0)).unwrap();
            let memory = ni.alloc(8).unwrap();
            let options = MeOptions::OP_PUT | MeOptions::EVENT_LINK_DISABLE;
            ni.me_append(
                pt,
                &Me { options, ignore_bits: u64::MAX, ..Me::new(&memory) },
                ListKind::Priority,
                0,
            )
            .unwrap();
            (eq, ni.md_bind(&Md::new(ni.alloc(8).unwrap())).unwrap())
        })
        .collect();
    assert!(nodes.iter().all(|node| node.connections() == 0), "nobody has spoken yet");
    for round in 0..2 {
        for other in 1..nodes.len() {
            let send = |from: usize, to: usize| {
                let target = Process::logical(Rank(to as u32));
                nis[from]
                    .put(&Put { hdr_data: from as u64, ..Put::new(ends[from].1, 8, target, 0) })
                    .unwrap();
            };
            let hear = |at: usize, from: usize| {
                let began = std::time::Instant::now();
                let event = loop {
                    nodes[from].progress();
                    if let Some(got) = nis[at].eq_get(ends[at].0).unwrap() {
                        break got.event;
                    }
                    assert!(began.elapsed() < PATIENCE, "round {round}: {at} hears nothing of {from}");
                };
                assert_eq!((event.kind, event.hdr_data), (EventKind::Put, from as u64));
            };
            send(0, other);
            hear(other, 0);
            send(other, 0);
            hear(0, other);
        }
    }
    assert_eq!(nodes[0].connections(), nodes.len() - 1);
    assert!(nodes[1..].iter().all(|node| node.connections() == 1), "they speak to one only");
}
