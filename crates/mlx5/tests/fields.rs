//! Fields that the driver writes into commands and contexts, beyond the fields that are needed for success, on a
//! function that records them.

mod scripted;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hca_core::{Device, QpCap, QpInit, QpType};
use hca_mlx5::{Mlx5, Options};
use hca_prm::caps::{EthOffloadCap, HcaCap, RoceCap};
use hca_prm::command::eq::CreateEqIn;
use hca_prm::command::ethernet::CreateSqIn;
use hca_prm::command::hca::{HcaCapType, SetHcaCapIn};
use hca_prm::command::qp::CreateQpIn;
use hca_prm::command::vport::{
    ModifyNicVportContextIn, NicVportContext, NicVportFieldSelect, SetL2TableEntryIn, SetRoceAddressIn,
};
use hca_prm::{CmdStatus, EventType, Opcode, Qpc, Sqc};
use scripted::commands::{AllCaps, MAC};
use scripted::{Scripted, State, Wants};

/// What an adapter can beside what all can.
type More = fn(&mut AllCaps);

fn options(ethernet: bool) -> Options {
    let mut options = Options::default();
    options.health_interval = Duration::from_secs(3600);
    if ethernet {
        options.ip = vec![IpAddr::from([10, 0, 0, 2])];
    }
    options
}
fn wants(more: More) -> Wants {
    Wants { ethernet: true, ethernet_queues: true, more, ..Wants::default() }
}
fn open(scripted: &Scripted) -> Arc<Mlx5> {
    let ethernet = scripted.state().wants.ethernet;
    Mlx5::open(scripted.function(), options(ethernet)).unwrap()
}
fn queue_pair(device: &Mlx5) {
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(16).unwrap().0;
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let init = QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap };
    // The model has one clock, and refuses others.
    if let Ok(ports) = device.create_qp(pd, &init) {
        device.destroy_qp(ports.handle).unwrap();
    }
    device.destroy_cq(cq).unwrap();
    device.dealloc_pd(pd).unwrap();
}
/// Ends the driver, and the function with it; all is taken back.
fn end(mut scripted: Scripted, device: Arc<Mlx5>) {
    drop(device);
    let state = scripted.end();
    assert!(state.faults.is_empty() && state.objects.is_empty() && state.resets == 1, "{:?}", state.faults);
}

/// An adapter whose clock tells the time of day refuses queues that want a counter that runs freely.
#[test]
fn queues_take_the_clock_that_the_adapter_has() {
    const TIME_OF_DAY: u32 = 1;
    let clocks: [More; 2] = [
        |_| {},
        |caps| {
            caps.general.set(HcaCap::SQ_TS_FORMAT, TIME_OF_DAY).set(HcaCap::RQ_TS_FORMAT, TIME_OF_DAY);
            caps.roce.set(RoceCap::QP_TS_FORMAT, TIME_OF_DAY);
        },
    ];
    for (ethernet, expected, more) in [(true, 0, clocks[0]), (true, 1, clocks[1]), (false, 1, clocks[1])] {
        let scripted = Scripted::serve(Wants { ethernet, ethernet_queues: ethernet, ..wants(more) });
        let device = open(&scripted);
        queue_pair(&device);
        let state = scripted.state();
        let qp = state.all::<CreateQpIn>()[0].get(CreateQpIn::QPC).get(Qpc::TS_FORMAT);
        let sq = state
            .all::<CreateSqIn>()
            .iter()
            .map(|c| c.get(CreateSqIn::CTX).get(Sqc::TS_FORMAT))
            .collect::<Vec<_>>();
        let queues = if ethernet { vec![expected] } else { vec![] };
        assert_eq!((qp, sq), (expected, queues), "Ethernet: {ethernet}");
        drop(state);
        end(scripted, device);
    }
}

#[test]
fn udp_source_ports_are_the_drivers_choice_where_that_can_be_had() {
    let set = |state: &State| {
        let roce = HcaCapType::Roce.op_mod(false);
        let caps = state.all::<SetHcaCapIn>().into_iter().find(|c| c.get(SetHcaCapIn::OP_MOD) == roce)?;
        let caps = RoceCap::from_bytes(&caps.get(SetHcaCapIn::CAPABILITY)[..RoceCap::SIZE]).unwrap();
        Some((caps.get(RoceCap::SW_R_ROCE_SRC_UDP_PORT), caps.get(RoceCap::ROCE_ADDRESS_TABLE_SIZE)))
    };
    let scripted = Scripted::serve(wants(|_| {}));
    let device = open(&scripted);
    assert_eq!(set(&scripted.state()), None, "it can't be had");
    end(scripted, device);
    // What is used now is 0 until the driver sets it: the function gives one answer to both.
    let scripted = Scripted::serve(Wants { source_ports: true, ..wants(|_| {}) });
    let device = open(&scripted);
    assert_eq!(set(&scripted.state()), Some((true, 3)), "and the others stay as they are");
    end(scripted, device);
}

#[test]
fn only_events_that_every_function_has_are_asked_for() {
    let scripted = Scripted::serve(Wants { unknown_events: 0, ..Wants::default() });
    let device = open(&scripted);
    let masks: Vec<_> =
        scripted.state().all::<CreateEqIn>().iter().map(|c| c.get(CreateEqIn::EVENT_BITMASK)[0]).collect();
    let all = masks.iter().fold(0, |all, mask| all | mask);
    for event in [EventType::InternalError, EventType::NicVportChange] {
        assert_eq!(all & event.mask()[0], 0, "{event:?} is asked for");
    }
    for event in [EventType::Cmd, EventType::PageRequest, EventType::PortChange, EventType::CqError] {
        assert_ne!(all & event.mask()[0], 0, "{event:?} is not asked for");
    }
    assert_eq!(masks.iter().filter(|mask| **mask != 0).count(), 2, "commands, and all else but completions");
    end(scripted, device);
}

#[test]
fn an_adapter_that_refuses_some_events_is_asked_for_the_others() {
    let refused = [EventType::CommEst, EventType::SrqRqLimit];
    let unknown_events = refused.iter().fold(0, |all, event| all | event.mask()[0]);
    let scripted = Scripted::serve(Wants { unknown_events, ..Wants::default() });
    let device = open(&scripted);
    let state = scripted.state();
    let has = |event: EventType| {
        let bit = event.mask()[0];
        state.eqs.values().any(|eq| eq.events() & bit != 0)
    };
    assert!(refused.into_iter().all(|event| !has(event)));
    for event in
        [EventType::PageRequest, EventType::PortChange, EventType::WqCatasError, EventType::SqDrained]
    {
        assert!(has(event), "{event:?}");
    }
    assert_eq!(state.eqs.values().filter(|eq| eq.events() != 0).count(), 2);
    drop(state);
    end(scripted, device);
}

/// A kernel's driver switches it off, and the port's context outlives it.
#[test]
fn queue_pairs_of_a_port_are_let_reach_each_other() {
    let loop_back = |state: &State| {
        let switched = |c: &ModifyNicVportContextIn| {
            let (select, context) = (
                c.get(ModifyNicVportContextIn::FIELD_SELECT),
                c.get(ModifyNicVportContextIn::NIC_VPORT_CONTEXT),
            );
            let selected =
                [NicVportFieldSelect::DISABLE_UC_LOCAL_LB, NicVportFieldSelect::DISABLE_MC_LOCAL_LB];
            let off = [NicVportContext::DISABLE_UC_LOCAL_LB, NicVportContext::DISABLE_MC_LOCAL_LB];
            let selected = selected.map(|bit| select.get(bit));
            selected.contains(&true).then(|| (selected, off.map(|bit| context.get(bit))))
        };
        state.all::<ModifyNicVportContextIn>().iter().filter_map(switched).collect::<Vec<_>>()
    };
    let cases: [(More, Vec<_>); 3] = [
        (|_| {}, vec![]),
        (|caps| _ = caps.general.set(HcaCap::DISABLE_LOCAL_LB_UC, true), vec![([true, false], [false; 2])]),
        (
            |caps| {
                caps.general.set(HcaCap::DISABLE_LOCAL_LB_UC, true).set(HcaCap::DISABLE_LOCAL_LB_MC, true);
            },
            vec![([true; 2], [false; 2])],
        ),
    ];
    for (more, expected) in cases {
        let scripted = Scripted::serve(wants(more));
        let device = open(&scripted);
        assert_eq!(loop_back(&scripted.state()), expected);
        end(scripted, device);
    }
}

#[test]
fn a_function_that_manages_the_switch_enters_its_mac_there_and_takes_it_back() {
    let manager: More = |caps| {
        caps.general.set(HcaCap::ESWITCH_MANAGER, true).set(HcaCap::LOG_MAX_L2_TABLE, 5);
    };
    let no_table: More = |caps| _ = caps.general.set(HcaCap::ESWITCH_MANAGER, true);
    for (more, expected) in [(manager, vec![MAC]), (no_table, vec![])] {
        let scripted = Scripted::serve(wants(more));
        let device = open(&scripted);
        let entered = |c: &SetL2TableEntryIn| c.get(SetL2TableEntryIn::MAC_ADDRESS).mac();
        assert_eq!(
            scripted.state().all::<SetL2TableEntryIn>().iter().map(entered).collect::<Vec<_>>(),
            expected
        );
        end(scripted, device);
    }
    // One that is refused is used all the same.
    let scripted = Scripted::serve(wants(manager));
    scripted.state().wants.status.insert(Opcode::SET_L2_TABLE_ENTRY, (CmdStatus::BadParam.code(), 0xabc));
    let device = open(&scripted);
    end(scripted, device);
}

#[test]
fn a_function_of_several_ports_is_told_which_one_an_address_is_of() {
    let ports: More = |caps| _ = caps.general.set(HcaCap::NUM_VHCA_PORTS, 2);
    let one: More = |_| {};
    for (more, expected) in [(ports, 1), (one, 0)] {
        let mut scripted = Scripted::serve(wants(more));
        drop(open(&scripted));
        let given = scripted.end().all::<SetRoceAddressIn>();
        let ports: Vec<_> = given.iter().map(|c| c.get(SetRoceAddressIn::VHCA_PORT_NUM)).collect();
        assert_eq!(ports, [expected; 4], "two that are set, and taken back");
    }
}

#[test]
fn the_send_queue_says_what_its_requests_carry_where_the_port_asks_for_it() {
    let by_port: More = |caps| _ = caps.ethernet.set(EthOffloadCap::WQE_INLINE_MODE, 1);
    let by_adapter: More = |_| {};
    for (more, expected) in [(by_port, 2), (by_adapter, 0)] {
        let scripted = Scripted::serve(Wants { inline_mode: 2, ..wants(more) });
        let device = open(&scripted);
        let mode = scripted.state().all::<CreateSqIn>()[0].get(CreateSqIn::CTX).get(Sqc::MIN_WQE_INLINE_MODE);
        assert_eq!(mode, expected);
        end(scripted, device);
    }
}
