//! Settings that an operator has fixed: no request of a driver changes them.

use hca_core::Gid;
use hca_prm::CmdStatus;
use hca_prm::command::counter::{QueryVportCounterIn, QueryVportCounterOut, TrafficCounter};
use hca_prm::command::vport::{
    MacAddress, ModifyNicVportContextIn, NicVportContext, NicVportFieldSelect, RoceAddr, SetRoceAddressIn,
};

use crate::bed::Server;
use crate::bed::ethernet::{Port, Request, frame, look};
use crate::function::FunctionOptions;
use crate::port::fixed::Fixed;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const STRANGE: [u8; 6] = [2, 1, 1, 1, 1, 1];

/// Of a server's two functions the first one has this fixed.
fn ports(server: &Server, fixed: Fixed) -> [Port; 2] {
    let a = Port::with(server, FunctionOptions { fixed, ..FunctionOptions::default() });
    [a, Port::new(server, 1)]
}

fn mac_fixed() -> Fixed {
    Fixed { mac: Some(MAC), ..Fixed::default() }
}

fn set_gid(port: &mut Port, gid: &str, mac: [u8; 6]) -> Result<(), CmdStatus> {
    let mut address = RoceAddr::new().with(RoceAddr::SOURCE_L3_ADDRESS, Gid::from_ip(gid.parse().unwrap()).0);
    address.set_mac(mac);
    port.d.command(&SetRoceAddressIn::new().with(SetRoceAddressIn::ROCE_ADDRESS, address)).map(drop)
}

fn ask_for(port: &mut Port, macs: &[[u8; 6]]) -> Result<(), CmdStatus> {
    let command = ModifyNicVportContextIn::new()
        .with(
            ModifyNicVportContextIn::FIELD_SELECT,
            NicVportFieldSelect::new().with(NicVportFieldSelect::ADDRESSES_LIST, true),
        )
        .with(
            ModifyNicVportContextIn::NIC_VPORT_CONTEXT,
            NicVportContext::new().with(NicVportContext::ALLOWED_LIST_SIZE, macs.len() as u32),
        );
    let entry = |mac: &[u8; 6]| u64::from_be_bytes(*MacAddress::new().set_mac(*mac).as_bytes());
    let list: Vec<u64> = macs.iter().map(entry).collect();
    port.d.command_with(&command, &list, 0).map(drop)
}

fn set_permanent(port: &mut Port, mac: [u8; 6]) -> Result<(), CmdStatus> {
    let mut address = MacAddress::new();
    address.set_mac(mac);
    let command = ModifyNicVportContextIn::new()
        .with(
            ModifyNicVportContextIn::FIELD_SELECT,
            NicVportFieldSelect::new().with(NicVportFieldSelect::PERMANENT_ADDRESS, true),
        )
        .with(
            ModifyNicVportContextIn::NIC_VPORT_CONTEXT,
            NicVportContext::new().with(NicVportContext::PERMANENT_ADDRESS, address),
        );
    port.d.command(&command).map(drop)
}

/// Frames that a port has not sent.
fn refused(port: &mut Port) -> u64 {
    let told = port.d.command(&QueryVportCounterIn::new()).unwrap();
    told.get(QueryVportCounterOut::TRANSMIT_ERRORS).get(TrafficCounter::PACKETS)
}

#[test]
fn a_driver_can_not_change_an_ethernet_address_that_was_fixed() {
    let server = Server::new();
    let [mut a, mut b] = ports(&server, mac_fixed());
    assert_eq!(a.mac, MAC);
    assert_eq!(set_permanent(&mut a, STRANGE), Err(CmdStatus::BadParam));
    assert_eq!(set_permanent(&mut a, MAC), Ok(()));
    assert_eq!(ask_for(&mut a, &[MAC, STRANGE]), Err(CmdStatus::BadParam));
    assert_eq!(ask_for(&mut a, &[MAC]), Ok(()));
    assert_eq!(set_gid(&mut a, "10.0.0.1", STRANGE), Err(CmdStatus::BadParam));
    assert_eq!(set_gid(&mut a, "10.0.0.1", MAC), Ok(()));
    assert_eq!(set_permanent(&mut b, STRANGE), Ok(()), "of another function nothing is fixed");
}

#[test]
fn frames_from_an_address_that_is_not_the_senders_are_dropped_and_counted() {
    let server = Server::new();
    let [mut a, mut b] = ports(&server, mac_fixed());
    let come = |from: &mut Port, to: &mut Port, source| {
        to.recv_2k();
        from.post(&Request::inline(&frame(to.mac, source, 60)));
        look(&mut [&mut *from, &mut *to]);
        assert!(from.sent().is_some(), "the request ends");
        to.received().is_some()
    };
    assert!(come(&mut a, &mut b, MAC));
    assert!(!come(&mut a, &mut b, STRANGE));
    let mac_b = b.mac;
    assert!(!come(&mut a, &mut b, mac_b));
    assert_eq!(refused(&mut a), 2);
    // Nobody else sends by the address that was fixed; other ones are as free as before.
    assert!(!come(&mut b, &mut a, MAC));
    assert!(come(&mut b, &mut a, STRANGE));
    assert_eq!(refused(&mut b), 1);
}

#[test]
fn nobody_has_an_address_that_was_fixed_of_a_function_that_is_not_there_yet() {
    let server = Server::new();
    let fixed = Fixed { mac: Some(MAC), ips: vec!["10.0.0.9".parse().unwrap()], rate: None };
    server.function(FunctionOptions { number: 2, fixed, ..FunctionOptions::default() });
    let [mut a, mut b] = [0, 1].map(|number| Port::new(&server, number));
    ask_for(&mut b, &[MAC]).unwrap();
    b.recv_2k();
    a.post(&Request::inline(&frame(MAC, a.mac, 60)));
    look(&mut [&mut a, &mut b]);
    assert!(b.received().is_none());
    let mac_b = b.mac;
    for taken in ["10.0.0.9", "fe80::ff:fe00:9"] {
        assert_eq!(set_gid(&mut b, taken, mac_b), Err(CmdStatus::BadRes), "{taken}");
    }
}

#[test]
fn a_driver_can_have_no_ip_addresses_but_those_that_were_fixed() {
    let server = Server::new();
    let ips = ["10.0.0.5", "2001:db8::1"].map(|ip| ip.parse().unwrap()).to_vec();
    let [mut a, mut b] = ports(&server, Fixed { mac: Some(MAC), ips, rate: None });
    for allowed in ["10.0.0.5", "2001:db8::1", "fe80::ff:fe00:9", "::"] {
        assert_eq!(set_gid(&mut a, allowed, MAC), Ok(()), "{allowed}");
    }
    let (own, mac_b) = (server.gid(), b.mac);
    for other in ["10.0.0.2", "2001:db8::2", "fe80::1", &std::net::Ipv6Addr::from(own.0).to_string()] {
        assert_eq!(set_gid(&mut a, other, MAC), Err(CmdStatus::BadParam), "{other}");
    }
    assert_eq!(set_gid(&mut b, "10.0.0.5", mac_b), Err(CmdStatus::BadRes), "it is another function's");
    assert_eq!(set_gid(&mut b, "10.0.0.2", mac_b), Ok(()));
}
