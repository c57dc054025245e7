//! `mckey`: members of a multicast group, one of which sends, with the number of its queue pair as immediate data.

use std::net::IpAddr;
use std::time::Duration;

use hca::cm::{UDP_QKEY, group, join};
use hca::{Context, SendRequest, Ud};

use crate::end::End;
use crate::theirs::{self, Program};

const MESSAGES: usize = 12;
const SIZE: usize = 300;
const GRH_BYTES: usize = 40;

/// A group of the IP version of the far end.
fn the_group() -> IpAddr {
    let group = if theirs::address().is_ipv4() { "239.17.2.3" } else { "ff0e::17:2:3" };
    group.parse().unwrap()
}
fn mckey(options: &str) -> Program {
    let (group, address) = (the_group(), theirs::address());
    Program::start(&format!("mckey -m {group} -b {address} -S {SIZE} {options}"))
}

/// Linux's rdma_cm has no groups of IPv6 on RoCEv2 (ENOTSUPP).
fn has_groups() -> bool {
    let has = theirs::address().is_ipv4();
    if !has {
        println!("skipped: Linux's rdma_cm joins no IPv6 groups on RoCEv2");
    }
    has
}

/// Shows what an adapter counted where a test fails.
struct Counted(Context);

impl Drop for Counted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let counters = self.0.counters();
            counters.iter().filter(|c| c.value > 0).for_each(|c| println!("{} {}", c.name, c.value));
        }
    }
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run cm"]
fn this_adapter_hears_mckey() {
    if !has_groups() {
        return;
    }
    let context = theirs::device();
    let _counted = Counted(context.clone());
    let mut end = End::<Ud>::new(&context);
    end.qp.activate(UDP_QKEY).unwrap();
    let membership = join(&context, &end.qp, the_group()).unwrap();
    end.post_recvs(64, GRH_BYTES + SIZE);
    // Once it has posted all, the program destroys its address handle, and rxe loses the messages that it has not sent
    // by then: of a few, all.
    let mut senders = 0;
    while !end.has_received() {
        senders += 1;
        assert!(senders < 10, "none of the messages came");
        mckey("-C 1000 -s").succeeds();
    }
    let message = &end.received(1)[0];
    assert_eq!(message.len, GRH_BYTES + SIZE);
    assert!(message.imm.is_some_and(|qpn| qpn > 1), "the number of the sender's queue pair");
    membership.leave().unwrap();
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run cm"]
fn mckey_hears_this_adapter() {
    if !has_groups() {
        return;
    }
    let context = theirs::device();
    let mut end = End::<Ud>::new(&context);
    end.qp.activate(UDP_QKEY).unwrap();
    let mut receiver = mckey(&format!("-C {MESSAGES}"));
    // The sender is no member. The program may not have joined yet: what is too early is lost.
    let members = group(&context, &end.pd, the_group()).unwrap();
    while receiver.runs() {
        let buf = end.pd.alloc(SIZE).unwrap();
        end.qp.post_send(SendRequest::send(buf).to(&members).imm(end.qp.qpn().raw())).unwrap();
        end.completed(1);
        std::thread::sleep(Duration::from_millis(10));
    }
    receiver.succeeds();
}
