//! Fields of contexts that are refused, and where fields are taken from.

use hca_core::Device;
use hca_prm::command::eq::CreateEqIn;
use hca_prm::{Ads, CmdStatus, Eqc, EventType, Opcode, Qpc, ServiceType, optpar};

use crate::bed::{Client, ClientQp, PAGE, QpShape, Server, pages};
use crate::bus::uar::FIRST_UAR;

/// A client with a queue pair of a service in INIT.
fn initialised(server: &Server, st: ServiceType) -> (Client, ClientQp) {
    let mut client = server.client(0);
    let cq = client.cq(5);
    let qp = client.qp(QpShape { st, ..QpShape::default() }, &cq, &cq);
    client.change(Opcode::RST2INIT_QP, qp.qpn, 0, Qpc::new()).unwrap();
    (client, qp)
}

#[test]
fn an_optional_field_that_a_service_has_not_is_refused() {
    let server = Server::new();
    let all = [optpar::RRE, optpar::RWE, optpar::RAE, optpar::Q_KEY, optpar::PKEY_INDEX, optpar::RNR_TIMEOUT];
    let services = [
        (ServiceType::Rc, [false, false, false, true, false, false]),
        (ServiceType::Uc, [true, false, true, true, false, true]),
        (ServiceType::Ud, [true, true, true, false, false, true]),
    ];
    for (st, refused) in services {
        let (mut client, qp) = initialised(&server, st);
        for (bit, refused) in all.into_iter().zip(refused) {
            let expected = if refused { Err(CmdStatus::BadParam) } else { Ok(()) };
            let found = client.change(Opcode::INIT2INIT_QP, qp.qpn, bit, Qpc::new());
            assert_eq!(found, expected, "{st:?}, bit {bit:#x}");
        }
    }
}

#[test]
fn a_clock_and_a_rate_that_are_not_offered_are_refused() {
    let server = Server::new();
    let (mut client, qp) = initialised(&server, ServiceType::Rc);
    let cq = client.cq(5);
    for clock in [1, 2] {
        let shape = QpShape { clock, ..QpShape::default() };
        assert_eq!(client.try_qp(shape, &cq, &cq).err(), Some(CmdStatus::BadParam));
    }
    let path = Ads::new().with(Ads::RGID_RIP, server.gid().0).with(Ads::GRH, true).with(Ads::STAT_RATE, 7);
    let rtr = Qpc::new().with(Qpc::MTU, 3).with(Qpc::REMOTE_QPN, 9).with(Qpc::PRIMARY_ADDRESS_PATH, path);
    assert_eq!(client.change(Opcode::INIT2RTR_QP, qp.qpn, 0, rtr), Err(CmdStatus::BadParam));
}

#[test]
fn roce_has_a_place_of_its_own_for_the_class_of_service() {
    let server = Server::new();
    let mut path =
        Ads::new().with(Ads::RGID_RIP, server.gid().0).with(Ads::TCLASS, 0x6d).with(Ads::DSCP, 0x2a);
    let infiniband = path.with(Ads::GRH, true);
    let roce = *path.set_rmac([2, 0, 0, 0, 0, 9]);
    for (path, expected) in [(roce, 0x2a << 2 | 1), (infiniband, 0x6d)] {
        let mut client = server.client(0);
        let cq = client.cq(5);
        let qp = client.qp(QpShape::default(), &cq, &cq);
        client.connect_by(&qp, path, 0x99, (14, 7));
        let handle = client.function.objects.qps[&qp.qpn].handle;
        let av = server.hca.query_qp(handle).unwrap().attr.av.unwrap();
        assert_eq!(av.traffic_class, expected);
        client.destroy(qp.qpn).unwrap();
    }
}

#[test]
fn an_event_that_a_function_has_not_is_refused() {
    let server = Server::new();
    let mut client = server.client(0);
    let at = client.alloc(PAGE, PAGE);
    let mut ask = |mask: [u64; 4]| {
        let context = Eqc::new().with(Eqc::LOG_EQ_SIZE, 5).with(Eqc::UAR_PAGE, FIRST_UAR);
        let command = CreateEqIn::new()
            .with(CreateEqIn::EQ_CONTEXT_ENTRY, context)
            .with(CreateEqIn::EVENT_BITMASK, mask);
        client.command_with(&command, &pages(at, PAGE), 0).map(drop)
    };
    for event in EventType::ALL {
        let known = [
            EventType::PathMig,
            EventType::CommEst,
            EventType::SqDrained,
            EventType::CqError,
            EventType::WqCatasError,
            EventType::PathMigFailed,
            EventType::PortChange,
            EventType::Cmd,
            EventType::PageRequest,
            EventType::WqInvalReqError,
            EventType::WqAccessError,
            EventType::SrqCatasError,
            EventType::SrqLastWqe,
            EventType::SrqRqLimit,
        ];
        let expected = if known.contains(event) { Ok(()) } else { Err(CmdStatus::BadParam) };
        assert_eq!(ask(event.mask()), expected, "{event:?}");
    }
    assert_eq!(ask([0, 1, 0, 0]), Err(CmdStatus::BadParam));
}
