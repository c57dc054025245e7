//! The receivers of each frame: ports, links, addresses, groups, the gateway.

use hca_prm::CmdStatus;
use hca_prm::command::ethernet::{DestinationType, FteMatchSetLyr24, ModifyTirIn, Tirc};
use hca_prm::command::vport::{
    AllowedListType, MacAddress, ModifyNicVportContextIn, NicVportContext, NicVportFieldSelect,
    QueryNicVportContextIn, RoceAddr, SetRoceAddressIn,
};

use crate::bed::Server;
use crate::bed::ethernet::{Port, Request, frame, look};

const ALL: [u8; 6] = [0xff; 6];

#[test]
fn no_frame_leaves_or_comes_by_a_link_that_is_down() {
    let server = Server::new();
    let [mut a, mut b, mut c] = [0, 1, 2].map(|number| Port::new(&server, number));
    for port in [&mut a, &mut b, &mut c] {
        (0..3).for_each(|_| _ = port.recv_2k());
    }
    for down in [0, 1] {
        server.directory.switch().set_link(down, false);
        for to in [b.mac, ALL] {
            a.post(&Request::inline(&frame(to, a.mac, 60)));
        }
        look(&mut [&mut a, &mut b, &mut c]);
        assert!(a.sent().is_some() && a.sent().is_some(), "requests end well");
        assert!(b.received().is_none());
        assert_eq!(c.received().is_some(), down == 1, "only what is for all comes there");
        assert_eq!(server.directory.switch().lost(1), 0);
        server.directory.switch().set_link(down, true);
    }
    a.post(&Request::inline(&frame(b.mac, a.mac, 60)));
    look(&mut [&mut a, &mut b, &mut c]);
    assert!(b.received().is_some());
}

#[test]
fn own_frames_come_back_to_interfaces_that_take_them_unless_the_port_keeps_them() {
    let server = Server::new();
    let [mut a, mut b] = [0, 1].map(|number| Port::new(&server, number));
    (0..9).for_each(|_| _ = a.recv_2k());
    (0..9).for_each(|_| _ = b.recv_2k());
    let mut come = |a: &mut Port, to| {
        a.post(&Request::inline(&frame(to, a.mac, 60)));
        look(&mut [&mut *a, &mut b]);
        assert!(a.sent().is_some());
        (a.received().is_some(), b.received().is_some())
    };
    // What Linux changes for its self-test.
    let take = |port: &mut Port, which: u32| {
        let command = ModifyTirIn::new()
            .with(ModifyTirIn::TIRN, port.tir)
            .with(ModifyTirIn::BITMASK, [0, 0, 0, 0, 0, 0, 0, 0x10])
            .with(ModifyTirIn::CTX, Tirc::new().with(Tirc::SELF_LB_BLOCK, which));
        port.d.command(&command).unwrap();
    };
    let keep = |port: &mut Port, unicast: bool, groups: bool| {
        let select = NicVportFieldSelect::new()
            .with(NicVportFieldSelect::DISABLE_UC_LOCAL_LB, true)
            .with(NicVportFieldSelect::DISABLE_MC_LOCAL_LB, true);
        let context = NicVportContext::new()
            .with(NicVportContext::DISABLE_UC_LOCAL_LB, unicast)
            .with(NicVportContext::DISABLE_MC_LOCAL_LB, groups);
        let command = ModifyNicVportContextIn::new()
            .with(ModifyNicVportContextIn::FIELD_SELECT, select)
            .with(ModifyNicVportContextIn::NIC_VPORT_CONTEXT, context);
        port.d.command(&command).unwrap();
    };
    let mac = a.mac;
    for (which, unicast, groups) in [(0, false, false), (1, true, false), (2, false, true), (3, true, true)] {
        take(&mut a, which);
        assert_eq!(come(&mut a, mac), (unicast, false), "{which}");
        assert_eq!(come(&mut a, ALL), (groups, true), "{which}");
        (0..2).for_each(|_| _ = a.recv_2k());
    }
    for (unicast, groups) in [(true, false), (false, true), (true, true), (false, false)] {
        keep(&mut a, unicast, groups);
        assert_eq!((come(&mut a, mac), come(&mut a, ALL)), ((!unicast, false), (!groups, true)));
    }
    // Another interface, which does not take them, hears others' all the same.
    let other = a.direct(a.rq.number).unwrap();
    let first = std::mem::replace(&mut a.tir, other);
    let group = a.group(a.table, 1..=1, FteMatchSetLyr24::new()).unwrap();
    a.flow(a.table, group, 1, FteMatchSetLyr24::new(), &[(DestinationType::Tir, other)]).unwrap();
    assert_eq!(come(&mut a, mac), (true, false));
    a.tir = first;
    take(&mut a, 0);
    a.tir = other;
    take(&mut a, 1);
    assert_eq!(come(&mut a, mac), (false, false), "the first flow leads to the first one");
}

#[test]
fn a_port_has_further_addresses_unless_others_have_them() {
    let server = Server::new();
    let [mut a, mut b, mut c] = [0, 1, 2].map(|number| Port::new(&server, number));
    let ask = |port: &mut Port, macs: &[[u8; 6]]| {
        let select = NicVportFieldSelect::new().with(NicVportFieldSelect::ADDRESSES_LIST, true);
        let context = NicVportContext::new().with(NicVportContext::ALLOWED_LIST_SIZE, macs.len() as u32);
        let command = ModifyNicVportContextIn::new()
            .with(ModifyNicVportContextIn::FIELD_SELECT, select)
            .with(ModifyNicVportContextIn::NIC_VPORT_CONTEXT, context);
        let list: Vec<u64> = macs
            .iter()
            .map(|mac| {
                let mut address = MacAddress::new();
                u64::from_be_bytes(*address.set_mac(*mac).as_bytes())
            })
            .collect();
        port.d.command_with(&command, &list, 0).map(|_| ())
    };
    let more = [2, 1, 1, 1, 1, 1];
    let own = b.mac;
    ask(&mut b, &[more, own]).unwrap();
    // Who comes later has none, nor has anybody what another one has by itself.
    let (mac_a, mac_b) = (a.mac, b.mac);
    ask(&mut c, &[more, mac_b, mac_a]).unwrap();
    let send = |a: &mut Port, b: &mut Port, c: &mut Port, to| {
        b.recv_2k();
        c.recv_2k();
        a.post(&Request::inline(&frame(to, a.mac, 60)));
        look(&mut [a, b, c]);
        (b.received().is_some(), c.received().is_some())
    };
    assert_eq!(send(&mut a, &mut b, &mut c, more), (true, false));
    assert_eq!(send(&mut a, &mut b, &mut c, mac_b), (true, false));
    ask(&mut b, &[]).unwrap();
    assert_eq!(send(&mut a, &mut b, &mut c, more), (false, true));
    assert_eq!(ask(&mut c, &[more; 129]), Err(CmdStatus::LimErr));
    c.d.function.reset();
    assert!(!server.directory.switch().knows(2));
}

#[test]
fn a_gateway_answers_its_asker_alone_and_not_for_addresses_of_functions() {
    let server = Server::new();
    let (mac, own) = ([2, 7, 7, 7, 7, 7], "192.0.2.1".parse().unwrap());
    assert!(server.directory.switch().gateway.is_none(), "nobody is beyond a network of this process");
    server.directory.switch().gateway = Some(super::gateway::Gateway::new(mac, own));
    let [mut a, mut b] = [0, 1].map(|number| Port::new(&server, number));
    let request = |port: &Port, target: u8| {
        let head = [&ALL[..], &port.mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &port.mac, &[10, 0, 0, 1]].concat();
        Request::inline(&[&head[..], &[0; 6], &[10, 0, 0, target]].concat())
    };
    let address = RoceAddr::new().with(RoceAddr::SOURCE_L3_ADDRESS, u128::to_be_bytes(0xffff_0a00_0005));
    b.d.command(&SetRoceAddressIn::new().with(SetRoceAddressIn::ROCE_ADDRESS, address)).unwrap();
    for (target, answers) in [(5, 0), (6, 1)] {
        a.recv_2k();
        b.recv_2k();
        a.post(&request(&a, target));
        look(&mut [&mut a, &mut b]);
        assert!(b.received().is_some(), "all others hear the question");
        assert_eq!(std::iter::from_fn(|| a.received()).count(), answers);
        assert!(b.received().is_none());
    }
    // A frame to it leads nowhere, also if somebody asks for its address.
    server.directory.switch().ask_for(1, vec![mac]);
    b.recv_2k();
    a.post(&Request::inline(&frame(mac, a.mac, 60)));
    look(&mut [&mut a, &mut b]);
    assert!(b.received().is_none() && server.directory.nothing_waits());
}

#[test]
fn a_port_hears_the_groups_that_its_driver_lists_and_all_before_it_lists_any() {
    let server = Server::new();
    let [mut a, mut b] = [0, 1].map(|number| Port::new(&server, number));
    let (one, other) = ([0x33, 0x33, 0, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 2]);
    let mut heard = |select: NicVportFieldSelect, context: NicVportContext, list: &[u64]| {
        let command = ModifyNicVportContextIn::new()
            .with(ModifyNicVportContextIn::FIELD_SELECT, select)
            .with(ModifyNicVportContextIn::NIC_VPORT_CONTEXT, context);
        b.d.command_with(&command, list, 0).unwrap();
        [one, other].map(|to| {
            b.recv_2k();
            a.post(&Request::inline(&frame(to, a.mac, 60)));
            look(&mut [&mut a, &mut b]);
            b.received().is_some()
        })
    };
    let (nothing, context) = (NicVportFieldSelect::new(), NicVportContext::new());
    assert_eq!(heard(nothing, context, &[]), [true, true]);
    let list = NicVportFieldSelect::new().with(NicVportFieldSelect::ADDRESSES_LIST, true);
    let groups = context
        .with(NicVportContext::ALLOWED_LIST_TYPE, AllowedListType::CurrentMcMacAddress.code())
        .with(NicVportContext::ALLOWED_LIST_SIZE, 1);
    assert_eq!(heard(list, groups, &[0x3333_0000_0001]), [true, false]);
    let promiscuous = NicVportFieldSelect::new().with(NicVportFieldSelect::PROMISC, true);
    assert_eq!(heard(promiscuous, context.with(NicVportContext::PROMISC_MC, true), &[]), [true, true]);
    assert_eq!(heard(promiscuous, context, &[]), [true, false]);
    assert_eq!(heard(list, groups.with(NicVportContext::ALLOWED_LIST_SIZE, 0), &[]), [false, false]);
}

#[test]
fn a_change_of_a_port_that_is_refused_changes_nothing() {
    let server = Server::new();
    let mut port = Port::new(&server, 0);
    let asked = |port: &mut Port| port.d.command(&QueryNicVportContextIn::new()).unwrap().as_bytes().to_vec();
    let before = (server.directory.switch().largest(0), asked(&mut port));
    let select = NicVportFieldSelect::new()
        .with(NicVportFieldSelect::MTU, true)
        .with(NicVportFieldSelect::PROMISC, true)
        .with(NicVportFieldSelect::ADDRESSES_LIST, true);
    // Of the two addresses that are announced none is there.
    let context = NicVportContext::new()
        .with(NicVportContext::MTU, 9000)
        .with(NicVportContext::PROMISC_ALL, true)
        .with(NicVportContext::ALLOWED_LIST_SIZE, 2);
    let command = ModifyNicVportContextIn::new()
        .with(ModifyNicVportContextIn::FIELD_SELECT, select)
        .with(ModifyNicVportContextIn::NIC_VPORT_CONTEXT, context);
    assert!(port.d.command(&command).is_err());
    assert_eq!((server.directory.switch().largest(0), asked(&mut port)), before);
}

#[test]
fn there_is_a_gateway_where_the_network_leads_out_of_the_process() {
    use crate::port::directory::SharedDirectory;
    use hca_fabric::{UdpFabric, UdpOptions};
    use softhca::{Options, Progress, SoftHca};
    assert!(SharedDirectory::of(&Server::new().hca).switch().gateway.is_none());
    let fabric = UdpFabric::open("127.77.3.9".parse().unwrap(), &UdpOptions::default()).unwrap();
    let options = Options { progress: Progress::Inline, ..Options::default() };
    let hca = SoftHca::open(Box::new(fabric), options).unwrap();
    assert!(SharedDirectory::of(&hca).switch().gateway.is_some());
}
