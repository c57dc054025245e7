//! The registers of a port's link.

use hca_prm::command::hca::AccessRegMod::{Read, Write};
use hca_prm::command::vport::*;
use hca_prm::register::{Paos, Pmtu, PortAdmin, PortOper, Ptys, RegisterId};
use hca_prm::*;

use crate::bed::{Driver, Server, TestEq};
use crate::function::PortKind;

/// A running function that listens to changes of its port.
fn listening(port: PortKind) -> (Driver, TestEq) {
    let mut d = Driver::new(&Server::new(), 0, port);
    d.boot();
    d.uar();
    let eq = d.eq(5, 0, &[EventType::PortChange]);
    (d, eq)
}

fn ask(d: &mut Driver, port: u32, admin: u32) -> Result<(), CmdStatus> {
    let mut asked =
        Paos::new().with(Paos::LOCAL_PORT, port).with(Paos::ADMIN_STATUS, admin).with(Paos::ASE, true);
    d.register(RegisterId::Paos, Write, asked.as_bytes_mut())
}

/// What the registers and commands say: asked for, there, and whether the port has a speed.
fn told(d: &mut Driver) -> (Option<PortAdmin>, Option<PortOper>, u32, bool) {
    let (mut status, mut speeds) = (Paos::new(), Ptys::new());
    d.register(RegisterId::Paos, Read, status.as_bytes_mut()).unwrap();
    d.register(RegisterId::Ptys, Read, speeds.as_bytes_mut()).unwrap();
    let vport = d.command(&QueryVportStateIn::new()).unwrap();
    let speed = speeds.get(Ptys::ETH_PROTO_OPER) | speeds.get(Ptys::IB_PROTO_OPER);
    let admin = PortAdmin::from_code(status.get(Paos::ADMIN_STATUS));
    let oper = PortOper::from_code(status.get(Paos::OPER_STATUS));
    (admin, oper, vport.get(QueryVportStateOut::STATE), speed != 0)
}

#[test]
fn a_link_is_down_when_it_was_set_so_and_its_driver_hears_of_each_change() {
    for port in [PortKind::InfiniBand, PortKind::Roce] {
        let (mut d, mut eq) = listening(port);
        assert_eq!(told(&mut d), (Some(PortAdmin::Up), Some(PortOper::Up), 1, true));
        let mut heard = |d: &mut Driver| {
            let event = d.event(&mut eq)?;
            let data = PortStateChangeEvent::from_bytes(&event.get(Eqe::EVENT_DATA)).unwrap();
            assert_eq!(data.get(PortStateChangeEvent::PORT_NUM), 1);
            PortChangeSubtype::from_code(event.get(Eqe::EVENT_SUB_TYPE))
        };
        ask(&mut d, 1, PortAdmin::Up.code()).unwrap();
        assert_eq!(heard(&mut d), None, "nothing has changed");
        ask(&mut d, 1, PortAdmin::Down.code()).unwrap();
        assert_eq!(told(&mut d), (Some(PortAdmin::Down), Some(PortOper::Down), 0, false));
        assert_eq!((heard(&mut d), heard(&mut d)), (Some(PortChangeSubtype::Down), None));
        ask(&mut d, 1, PortAdmin::UpOnce.code()).unwrap();
        assert_eq!(told(&mut d), (Some(PortAdmin::UpOnce), Some(PortOper::Up), 1, true));
        assert_eq!((heard(&mut d), heard(&mut d)), (Some(PortChangeSubtype::Active), None));
        // Another port, and what a driver can't ask for.
        for (port, admin) in [(2, 2), (0, 2), (1, 0), (1, PortAdmin::Disabled.code()), (1, 9)] {
            assert_eq!(ask(&mut d, port, admin), Err(CmdStatus::BadParam));
        }
        let mut not_meant = Paos::new().with(Paos::LOCAL_PORT, 1).with(Paos::ADMIN_STATUS, 2);
        d.register(RegisterId::Paos, Write, not_meant.as_bytes_mut()).unwrap();
        assert_eq!((told(&mut d).1, heard(&mut d)), (Some(PortOper::Up), None));
    }
}

#[test]
fn a_link_of_ethernet_stays_as_it_was_set_when_its_driver_goes() {
    let left_down = |port| {
        let (mut d, _) = listening(port);
        ask(&mut d, 1, PortAdmin::Down.code()).unwrap();
        d.shut();
        d.function.disconnect();
        d.map();
        d.attach();
        d.boot();
        d
    };
    let mut d = left_down(PortKind::Roce);
    assert_eq!(told(&mut d), (Some(PortAdmin::Down), Some(PortOper::Down), 0, false));
    ask(&mut d, 1, PortAdmin::Up.code()).unwrap();
    assert_eq!(told(&mut d).1, Some(PortOper::Up), "though nobody listens");
    let mut d = left_down(PortKind::InfiniBand);
    assert_eq!(told(&mut d), (Some(PortAdmin::Up), Some(PortOper::Up), 1, true));
    assert!(!d.function.directory.lock().is_down(hca_core::Gid::default(), d.function.lid()));
}

#[test]
fn an_infiniband_port_whose_link_is_down_is_down() {
    let (mut d, _) = listening(PortKind::InfiniBand);
    ask(&mut d, 1, PortAdmin::Down.code()).unwrap();
    let out = d.command(&QueryHcaVportContextIn::new()).unwrap();
    let context = out.get(QueryHcaVportContextOut::HCA_VPORT_CONTEXT);
    let states = [HcaVportContext::VPORT_STATE, HcaVportContext::PORT_STATE].map(|f| context.get(f));
    assert_eq!(states, [PortState::Down.code(); 2]);
    assert_eq!(context.get(HcaVportContext::PORT_PHYSICAL_STATE), 3);
}

#[test]
fn frames_are_as_long_as_was_asked_for_within_what_the_port_takes() {
    let (mut d, _) = listening(PortKind::Roce);
    let sizes = |d: &mut Driver| {
        let mut sizes = Pmtu::new();
        d.register(RegisterId::Pmtu, Read, sizes.as_bytes_mut()).unwrap();
        [Pmtu::MAX_MTU, Pmtu::ADMIN_MTU, Pmtu::OPER_MTU].map(|field| sizes.get(field))
    };
    let set = |d: &mut Driver, port, bytes| {
        let mut asked = Pmtu::new().with(Pmtu::LOCAL_PORT, port).with(Pmtu::ADMIN_MTU, bytes);
        d.register(RegisterId::Pmtu, Write, asked.as_bytes_mut())
    };
    assert_eq!(sizes(&mut d), [9978; 3]);
    set(&mut d, 1, 1522).unwrap();
    assert_eq!(sizes(&mut d), [9978, 1522, 1522]);
    for (port, bytes) in [(1, 9979), (1, 0), (2, 1522)] {
        assert_eq!(set(&mut d, port, bytes), Err(CmdStatus::BadParam));
    }
    set(&mut d, 1, 9978).unwrap();
    assert_eq!(sizes(&mut d), [9978; 3]);
    let (mut ib, _) = listening(PortKind::InfiniBand);
    set(&mut ib, 1, 1522).unwrap();
    assert_eq!(sizes(&mut ib), [4096; 3], "the subnet's manager says it");
}
