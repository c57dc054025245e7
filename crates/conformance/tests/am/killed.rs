//! A peer that is killed: its requests come back.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use hca_am::{Bundle, EndpointName, Reason, Way};
use hca_fabric::{Fabric, ShmFabric, ShmOptions, UdpFabric, UdpOptions};
use hca_verbs::Context;
use softhca::{Options, Progress, SoftHca};
use test_support::roles::{Helper, role, say};

use crate::bed::{Back, Bed, PATIENCE, TAG};
use crate::beds::{Net, on_own_address};

/// A device of this process; those of another one with the same domain reach it.
fn context(net: Net, domain: &str) -> Context {
    let fabric: Box<dyn Fabric> = match net {
        Net::Shm => Box::new(ShmFabric::open(domain, &ShmOptions::default()).unwrap()),
        _ => on_own_address(|address: IpAddr| {
            UdpFabric::open(address, &UdpOptions::default()).map(|f| Box::new(f) as _)
        }),
    };
    let options = Options { progress: Progress::Inline, ..Options::default() };
    Context::new(SoftHca::open(fabric, options).unwrap())
}

fn way(text: &str) -> Way {
    if text == "via" { Way::Via } else { Way::Verbs }
}

/// The peer: takes requests and answers none, by blocking in the handler of the first.
#[test]
#[ignore = "needs another test to start it"]
fn am_role() {
    let Some((net, rest)) = role() else { return };
    let (text, domain) = rest.split_once(' ').unwrap();
    let net = if net == "shm" { Net::Shm } else { Net::Udp };
    let mut bundle = Bundle::open(&context(net, domain), way(text)).unwrap();
    let ep = bundle.endpoint().unwrap();
    bundle.set_tag(ep, TAG).unwrap();
    let handler = |_: &hca_am::Message<'_>, _: hca_am::Token<'_>| {
        say("handles");
        loop {
            std::thread::park();
        }
    };
    bundle.set_handler(ep, 1, handler).unwrap();
    say(bundle.name(ep).unwrap().to_string());
    loop {
        bundle.poll().unwrap();
        std::thread::yield_now();
    }
}

fn a_killed_peer_is_told(net: Net, text: &str) {
    let domain = format!("am-killed-{text}-{}", std::process::id());
    let name = if net == Net::Shm { "shm" } else { "udp" };
    let mut peer = Helper::start("killed::am_role", name, &format!("{text} {domain}"), None);
    let bed = Bed::new(net, Progress::Inline, way(text));
    let mut a = bed.side(&context(net, &domain), &bed.options());
    let there: EndpointName = peer.line().parse().unwrap();
    a.bundle.map(a.ep, 0, &there, TAG).unwrap();
    // All of them are acknowledged by the peer's adapter: the transport has nothing that it waits for.
    for i in 0..4 {
        a.request(1, &[i]);
    }
    assert_eq!(peer.line(), "handles");
    let quiet = Instant::now() + Duration::from_millis(300);
    while Instant::now() < quiet {
        a.bundle.poll().unwrap();
        std::thread::yield_now();
    }
    assert_eq!(a.bundle.outstanding(a.ep, 0).unwrap(), 4);
    peer.kill();
    let killed = Instant::now();
    while a.bundle.is_reachable(a.ep, 0).unwrap() {
        a.bundle.poll().unwrap();
        std::thread::yield_now();
        assert!(killed.elapsed() < 2 * PATIENCE, "the end of a killed peer is not noticed");
    }
    println!("{name} {text}: told after {:?}", killed.elapsed());
    let back: Vec<Back> = a.back.try_iter().collect();
    assert!(back.iter().all(|message| message.reason == Reason::Unreachable), "{back:?}");
    assert!(back.iter().map(|message| message.args[0]).eq(0..4), "{back:?}");
}

#[test]
fn a_killed_peer_is_told_over_verbs_and_shared_memory() {
    a_killed_peer_is_told(Net::Shm, "verbs");
}

#[test]
fn a_killed_peer_is_told_over_vis_and_shared_memory() {
    a_killed_peer_is_told(Net::Shm, "via");
}

#[test]
fn a_killed_peer_is_told_over_verbs_and_udp() {
    a_killed_peer_is_told(Net::Udp, "verbs");
}

#[test]
fn a_killed_peer_is_told_over_vis_and_udp() {
    a_killed_peer_is_told(Net::Udp, "via");
}
