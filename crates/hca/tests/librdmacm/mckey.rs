//! `mckey`: members of a multicast group, one of which sends, with the number of its queue pair as immediate data.

use std::net::IpAddr;
use std::time::Duration;

use hca::cm::{UDP_QKEY, group, join};
use hca::{SendRequest, Ud};

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
    Program::start(&format!("mckey -m {group} -b {address} -C {MESSAGES} -S {SIZE} {options}"))
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run cm"]
fn this_adapter_hears_mckey() {
    let context = theirs::device();
    let mut end = End::<Ud>::new(&context);
    end.qp.activate(UDP_QKEY).unwrap();
    let membership = join(&context, &end.qp, the_group()).unwrap();
    end.post_recvs(MESSAGES, GRH_BYTES + SIZE);
    let sender = mckey("-s");
    let came = end.received(MESSAGES);
    for message in &came {
        assert_eq!(message.len, GRH_BYTES + SIZE);
        assert_eq!(message.imm, came[0].imm, "one queue pair sends");
    }
    sender.succeeds();
    membership.leave().unwrap();
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run cm"]
fn mckey_hears_this_adapter() {
    let context = theirs::device();
    let mut end = End::<Ud>::new(&context);
    end.qp.activate(UDP_QKEY).unwrap();
    let mut receiver = mckey("");
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
