//! Announced capabilities, each against the function's behaviour.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use hca_prm::caps::{AtomicCaps, EthOffloadCap, FlowTableNicCap, FlowTableProp, HcaCap, RoceCap};
use hca_prm::command::counter::AllocQCounterIn;
use hca_prm::command::hca::*;
use hca_prm::command::resource::*;
use hca_prm::command::vport::*;
use hca_prm::register::{Ptys, RegisterId};
use hca_prm::*;

use crate::bed::{Driver, PAGE, Server};
use crate::function::PortKind;

pub(super) fn running(port: PortKind) -> Driver {
    let mut d = Driver::new(&Server::new(), 0, port);
    d.boot();
    d
}

pub(super) fn general(d: &mut Driver) -> HcaCap {
    let ask = QueryHcaCapIn::new().with(QueryHcaCapIn::OP_MOD, HcaCapType::GeneralDevice.op_mod(false));
    let out = d.command(&ask).unwrap();
    let mut caps = HcaCap::new();
    let bytes = &out.as_bytes()[QueryHcaCapOut::CAPABILITY.offset()..];
    caps.as_bytes_mut().copy_from_slice(&bytes[..HcaCap::SIZE]);
    caps
}

#[test]
fn the_adapter_is_told_by_its_makers_numbers() {
    let block = running(PortKind::InfiniBand).command(&QueryAdapterIn::new()).unwrap();
    let block = block.get(QueryAdapterOut::QUERY_ADAPTER_STRUCT);
    // As `ibv_devinfo` shows it of an adapter in silicon.
    assert_eq!(block.get(AdapterParamBlock::IEEE_VENDOR_ID), 0x02c9);
    assert_eq!(block.get(AdapterParamBlock::VSD_VENDOR_ID), 0x15b3);
}

#[test]
fn an_infiniband_port_has_four_lanes_and_no_subnet_manager() {
    let mut d = running(PortKind::InfiniBand);
    let mut speeds = Ptys::new();
    d.register(RegisterId::Ptys, AccessRegMod::Read, speeds.as_bytes_mut()).unwrap();
    // 1X, 2X, 4X, 8X, 12X: a bit each.
    assert_eq!(speeds.get(Ptys::IB_LINK_WIDTH_OPER), 0b100);
    assert_eq!(speeds.get(Ptys::IB_LINK_WIDTH_CAPABILITY), 0b101);
    let port = d.command(&QueryHcaVportContextIn::new()).unwrap();
    let port = port.get(QueryHcaVportContextOut::HCA_VPORT_CONTEXT);
    assert_eq!((port.get(HcaVportContext::SM_LID), port.get(HcaVportContext::SM_SL)), (0, 0));
}

#[test]
fn a_driver_says_which_agents_its_port_has_and_changes_nothing_else_of_it() {
    let mut d = running(PortKind::InfiniBand);
    let query = |d: &mut Driver| {
        let port = d.command(&QueryHcaVportContextIn::new()).unwrap();
        let port = port.get(QueryHcaVportContextOut::HCA_VPORT_CONTEXT);
        (port.get(HcaVportContext::CAP_MASK1), port.get(HcaVportContext::CAP_MASK1_FIELD_SELECT))
    };
    let change = |d: &mut Driver, select: u32, mask: u32, field: u32| {
        let context = HcaVportContext::new()
            .with(HcaVportContext::FIELD_SELECT, field)
            .with(HcaVportContext::CAP_MASK1_FIELD_SELECT, select)
            .with(HcaVportContext::CAP_MASK1, mask);
        let command =
            ModifyHcaVportContextIn::new().with(ModifyHcaVportContextIn::HCA_VPORT_CONTEXT, context);
        d.command(&command).map(drop)
    };
    let (first, permitted) = query(&mut d);
    let (management, device) = (1 << 16, 1 << 19);
    assert_eq!(first & management, management, "communication management");
    assert_eq!(permitted & (management | device), management | device);
    change(&mut d, management, 0, 0).unwrap();
    assert_eq!(query(&mut d).0, first & !management);
    change(&mut d, management | device, u32::MAX, 0).unwrap();
    assert_eq!(query(&mut d).0, first | management | device);
    // It is no subnet manager, and neither its state nor its GUID is its driver's to change.
    assert_eq!(change(&mut d, 1 << 1, u32::MAX, 0), Err(CmdStatus::BadParam));
    assert_eq!(change(&mut d, 0, 0, 1), Err(CmdStatus::BadParam));
    assert_eq!(query(&mut d).0, first | management | device);
    d.shut();
    d.boot();
    assert_eq!(query(&mut d).0, first, "the next driver begins anew");
}

#[test]
fn a_program_opens_a_device_a_hundred_times() {
    let mut d = running(PortKind::InfiniBand);
    for _ in 0..100 {
        // What Linux makes for each: a protection domain, a transport domain, and up to eight doorbell pages.
        d.command(&AllocPdIn::new()).unwrap();
        d.command(&AllocTransportDomainIn::new()).unwrap();
        (0..8).for_each(|_| _ = d.command(&AllocUarIn::new()).unwrap());
    }
}

#[test]
fn there_are_as_many_small_objects_as_is_announced_and_no_more() {
    let mut d = running(PortKind::InfiniBand);
    let caps = general(&mut d);
    let count = |d: &mut Driver, log: u32, make: fn(&mut Driver) -> Result<(), CmdStatus>| {
        let made = (0..2 << log).take_while(|_| make(d).is_ok()).count();
        assert!((1_usize << log) - 1 <= made && made <= 1 << log, "{made} of {}", 1 << log);
        assert_eq!(make(d), Err(CmdStatus::NoRes));
    };
    count(&mut d, caps.get(HcaCap::LOG_MAX_PD), |d| d.command(&AllocPdIn::new()).map(drop));
    let log = caps.get(HcaCap::LOG_MAX_TRANSPORT_DOMAIN);
    count(&mut d, log, |d| d.command(&AllocTransportDomainIn::new()).map(drop));
    count(&mut d, caps.get(HcaCap::LOG_MAX_XRCD), |d| d.command(&AllocXrcdIn::new()).map(drop));
    let log = caps.get(HcaCap::MAX_QP_CNT).ilog2();
    count(&mut d, log, |d| d.command(&AllocQCounterIn::new()).map(drop));
}

/// The whole answer of a kind of capabilities.
fn answer(d: &mut Driver, kind: HcaCapType) -> QueryHcaCapOut {
    let ask = QueryHcaCapIn::new().with(QueryHcaCapIn::OP_MOD, kind.op_mod(false));
    d.command(&ask).unwrap()
}

/// The fields of a layout within an answer that are not zero.
fn announced<L: Layout>(layout: &str, answer: &[u8]) -> Vec<String> {
    let used = |field: &&FieldInfo| {
        let (start, end) = (field.start as usize, (field.start + field.width) as usize);
        match field.kind {
            Kind::Bits => field.number(answer) != 0,
            _ => answer[start / 8..end / 8].iter().any(|byte| *byte != 0),
        }
    };
    L::FIELDS.iter().filter(used).map(|field| format!("{layout}::{}", field.name)).collect()
}

/// All that functions with either port announce.
fn all_announced() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for port in [PortKind::InfiniBand, PortKind::Roce] {
        let mut d = running(port);
        for &kind in HcaCapType::ALL {
            let out = answer(&mut d, kind);
            let bytes = &out.as_bytes()[QueryHcaCapOut::CAPABILITY.offset()..];
            let fields = match kind {
                HcaCapType::GeneralDevice => announced::<HcaCap>("HcaCap", bytes),
                HcaCapType::Atomic => announced::<AtomicCaps>("AtomicCaps", bytes),
                HcaCapType::Roce => announced::<RoceCap>("RoceCap", bytes),
                HcaCapType::EthernetOffload => announced::<EthOffloadCap>("EthOffloadCap", bytes),
                HcaCapType::NicFlowTable => {
                    let at = FlowTableNicCap::FLOW_TABLE_PROPERTIES_NIC_RECEIVE.offset();
                    let mut fields = announced::<FlowTableNicCap>("FlowTableNicCap", bytes);
                    fields.extend(announced::<FlowTableProp>("FlowTableProp", &bytes[at..]));
                    fields
                }
                _ => {
                    assert!(bytes.iter().all(|byte| *byte == 0), "{kind} has no layout here");
                    Vec::new()
                }
            };
            all.extend(fields);
        }
    }
    all
}

/// The sources of this crate, one behind the other.
fn sources(folder: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all += &sources(&path);
        } else if path.extension().is_some_and(|of| of == "rs") {
            all += &fs::read_to_string(&path).unwrap();
        }
    }
    all
}

#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn each_capability_that_is_announced_has_a_check() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(here.join("../../docs/served-function-caps.md")).unwrap();
    let sources = sources(&here.join("src"));
    let mut rows = BTreeSet::new();
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, field, _, check, _] = cells[..] else { panic!("{row}: a row has three cells") };
        let (field, check) = (field.trim_matches('`'), check.trim_matches('`'));
        let before = sources.split_once(&format!("fn {check}(")).map(|(before, _)| before.trim_end());
        let is_test = before.is_some_and(|before| before.ends_with("#[test]"));
        assert!(is_test, "{field} names the test {check}, which is not there");
        assert!(rows.insert(field.to_owned()), "{field} stands there twice");
    }
    let announced = all_announced();
    let without: Vec<_> = announced.difference(&rows).collect();
    assert!(without.is_empty(), "announced without a row in docs/served-function-caps.md: {without:?}");
    let stale: Vec<_> = rows.difference(&announced).collect();
    assert!(stale.is_empty(), "not announced any more: {stale:?}");
}

#[test]
fn an_event_queue_is_as_long_as_is_announced_and_no_longer() {
    let mut d = running(PortKind::InfiniBand);
    let log = general(&mut d).get(HcaCap::LOG_MAX_EQ_SZ);
    d.uar();
    let at = d.alloc(64 << log, PAGE);
    d.try_eq(at, log, 0, &[]).unwrap();
    assert!(d.try_eq(at, log + 1, 0, &[]).is_err());
}

#[test]
fn an_acknowledgement_may_take_longer_than_a_server_sleeps() {
    let delay = general(&mut running(PortKind::InfiniBand)).get(HcaCap::LOCAL_CA_ACK_DELAY);
    // A server whose client can't wake it looks each millisecond.
    assert!(4096_u64 << delay >= 10_000_000, "{delay}");
}
