//! The driver's own Ethernet queues, on a function that knows the commands and moves no frame.

mod scripted;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hca_core::{AddressVector, Device, DeviceError, Gid, Mtu};
use hca_mlx5::{Mlx5, OpenError, Options};
use hca_prm::{CmdStatus, HealthSyndrome, Opcode};
use scripted::{Link, Scripted, Wants};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));

/// Frames that are sent when a port is opened: two groups are heard, and there are three addresses.
const TOLD: u64 = 5;

fn options() -> Options {
    let mut options = Options::default();
    options.ip = vec!["10.0.0.2".parse().unwrap(), "2001:db8::2".parse().unwrap()];
    options.health_interval = Duration::from_secs(3600);
    options.neighbour_timeout = Duration::from_millis(20);
    options
}
fn wants() -> Wants {
    Wants { ethernet: true, ethernet_queues: true, ..Wants::default() }
}
fn open(scripted: &Scripted, options: Options) -> Arc<Mlx5> {
    Mlx5::open(scripted.function(), options).unwrap()
}
fn to(ip: IpAddr) -> AddressVector {
    AddressVector { dgid: Gid::from_ip(ip), ..AddressVector::default() }
}
fn ask(device: &Mlx5) -> DeviceError {
    let pd = device.alloc_pd().unwrap();
    let e = device.create_ah(pd, &to(PEER)).unwrap_err();
    device.dealloc_pd(pd).unwrap();
    e
}
fn sent(device: &Mlx5) -> Option<u64> {
    device.counters().iter().find(|c| c.name == "neighbour_frames_sent").map(|c| c.value)
}
/// All that is made for Ethernet.
const MADE: [Opcode; 14] = [
    Opcode::ALLOC_PD,
    Opcode::ALLOC_TRANSPORT_DOMAIN,
    Opcode::CREATE_MKEY,
    Opcode::CREATE_CQ,
    Opcode::CREATE_TIS,
    Opcode::CREATE_SQ,
    Opcode::CREATE_RQ,
    Opcode::MODIFY_SQ,
    Opcode::MODIFY_RQ,
    Opcode::CREATE_TIR,
    Opcode::CREATE_FLOW_TABLE,
    Opcode::CREATE_FLOW_GROUP,
    Opcode::SET_FLOW_TABLE_ENTRY,
    Opcode::SET_FLOW_TABLE_ROOT,
];

#[test]
fn queues_are_made_addresses_announced_and_all_is_taken_back() {
    let mut scripted = Scripted::serve(wants());
    let device = open(&scripted, options());
    {
        let state = scripted.state();
        let count = |what| state.objects.iter().filter(|(kind, _)| *kind == what).count();
        // ARP to all and to the port; ICMPv6 to the port, to the groups of its two addresses, and to all; to these
        // three with options.
        assert_eq!((count("flow"), count("group"), count("table"), count("root")), (9, 2, 1, 1));
        let (one, all) = (scripted::commands::MAC, [0xff; 6]);
        let group = |a, b, c, d| [0x33, 0x33, a, b, c, d];
        let groups = [all, group(0, 0, 0, 1), group(0xff, 0, 0, 2), group(0xff, 0, 0, 7)];
        assert_eq!((&state.macs[&0][..], &state.macs[&1][..]), (&[one][..], &groups[..]));
        assert_eq!((count("send queue"), count("receive queue"), count("receiving interface")), (1, 1, 1));
    }
    assert_eq!(sent(&device), Some(TOLD), "a report of each group, and an announcement of each address");
    drop(device);
    let state = scripted.end();
    assert!(state.faults.is_empty() && state.objects.is_empty() && state.resets == 1, "{:?}", state.faults);
}

#[test]
fn a_peer_that_does_not_answer_is_told_of_with_what_to_do() {
    let scripted = Scripted::serve(wants());
    let device = open(&scripted, options());
    let e = ask(&device);
    assert!(matches!(e, DeviceError::NoPath { .. }), "{e}");
    let told = e.to_string();
    assert!(
        told.contains("10.0.0.3") && told.contains("nobody tells its MAC") && told.contains("?neigh="),
        "{told}"
    );
    assert_eq!(sent(&device), Some(TOLD + 1), "it was asked for");
}

#[test]
fn a_peer_that_was_given_is_not_asked_for() {
    let scripted = Scripted::serve(wants());
    let mut options = options();
    options.neighbours = vec![(PEER, [2, 0, 0, 0, 0, 3])];
    let device = open(&scripted, options);
    let pd = device.alloc_pd().unwrap();
    let ah = device.create_ah(pd, &to(PEER)).unwrap();
    assert_eq!(sent(&device), Some(TOLD));
    device.destroy_ah(ah).unwrap();
}

#[test]
fn a_question_ends_with_the_adapter() {
    let scripted = Scripted::serve(wants());
    let mut options = options();
    options.neighbour_timeout = Duration::from_secs(3600);
    options.health_interval = Duration::from_millis(5);
    let device = open(&scripted, options);
    let pd = device.alloc_pd().unwrap();
    let e = std::thread::scope(|s| {
        let asker = s.spawn(|| device.create_ah(pd, &to(PEER)).unwrap_err());
        let begun = Instant::now();
        while sent(&device) < Some(TOLD + 1) {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody asks");
            std::thread::yield_now();
        }
        scripted.state().wants.health = scripted::unwell(HealthSyndrome::HwFatalErr);
        asker.join().unwrap()
    });
    assert!(!matches!(e, DeviceError::NoPath { .. }), "{e}");
    assert!(device.death().is_some());
}

#[test]
fn an_adapter_that_refuses_any_of_it_is_used_without() {
    for opcode in MADE {
        let mut scripted = Scripted::serve(wants());
        scripted.state().wants.status.insert(opcode, (CmdStatus::BadOp.code(), 0xabc));
        let device = open(&scripted, options());
        {
            let state = scripted.state();
            let left: Vec<_> = state
                .objects
                .iter()
                .filter(|(kind, _)| !["doorbell page", "event queue"].contains(kind))
                .collect();
            assert!(left.is_empty(), "{opcode}: {left:?}");
        }
        scripted.state().wants.status.clear();
        assert_eq!(sent(&device), None, "{opcode}");
        let told = ask(&device).to_string();
        assert!(told.contains("no Ethernet queues") && told.contains("?neigh="), "{told}");
        drop(device);
        let state = scripted.end();
        assert!(state.faults.is_empty() && state.resets == 1, "{opcode}: {:?}", state.faults);
    }
}

#[test]
fn a_port_that_takes_no_list_of_groups_is_used_without_and_one_that_takes_none_of_macs_as_it_is() {
    for (list, queues) in [(1, false), (0, true)] {
        let mut scripted = Scripted::serve(Wants { refuses_list: Some(list), ..wants() });
        let device = open(&scripted, options());
        assert_eq!(sent(&device).is_some(), queues, "list {list}");
        assert_eq!(scripted.state().objects.iter().any(|(kind, _)| *kind == "table"), queues);
        drop(device);
        let state = scripted.end();
        assert!(state.faults.is_empty() && state.resets == 1, "list {list}: {:?}", state.faults);
    }
}

#[test]
fn an_adapter_that_keeps_something_of_it_is_reset_and_its_link_left_as_it_was() {
    let found = Link { frame: 1522, own_frame: 1522, ..Link::default() };
    let mut scripted = Scripted::serve(Wants { link: Some(found.clone()), ..wants() });
    let mut options = options();
    options.mtu = Some(Mtu::B4096);
    let device = open(&scripted, options);
    assert_ne!(scripted.state().wants.link, Some(found.clone()), "its frames are longer now");
    scripted.state().wants.status.insert(Opcode::DESTROY_TIR, (CmdStatus::BadRes.code(), 0xabc));
    drop(device);
    let state = scripted.end();
    assert_eq!(
        (state.given(Opcode::DESTROY_TIR), state.given(Opcode::DESTROY_SQ)),
        (1, 1),
        "it goes on behind it"
    );
    let left = state.wants.link.clone().map(|link| (link.frame, link.own_frame));
    assert_eq!((left, state.resets), (Some((1522, 1522)), 2));
}

#[test]
fn an_adapter_that_does_not_offer_it_is_not_asked() {
    let scripted = Scripted::serve(Wants { ethernet_queues: false, ..wants() });
    let device = open(&scripted, options());
    assert_eq!(sent(&device), None);
    assert!(!scripted.state().log.iter().any(|(opcode, _)| *opcode == Opcode::ALLOC_TRANSPORT_DOMAIN));
}

#[test]
fn an_adapter_that_does_not_answer_is_not_opened() {
    let scripted = Scripted::serve(wants());
    scripted.state().wants.silent.insert(Opcode::CREATE_FLOW_TABLE);
    let mut options = options();
    // The function answers all other commands within this time, whatever else the machine has to do.
    options.command_timeout = Duration::from_secs(3);
    let e = Mlx5::open(scripted.function(), options).unwrap_err();
    assert!(matches!(e, OpenError::Command { .. }), "{e}");
    assert!(e.to_string().contains("CREATE_FLOW_TABLE"), "{e}");
}
