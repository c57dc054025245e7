//! The destinations of received frames: flow tables, groups, flows.

use hca_prm::command::ethernet::{
    DeleteFteIn, DestinationType, DestroyFlowGroupIn, DestroyFlowTableIn, DestroyTirIn, FlowTableContext,
    FlowTableType, FteMatchSetLyr24, ModifyFlowTableIn, SetFlowTableRootIn, SetFteIn,
};
use hca_prm::{CmdStatus, Cqe64};

use super::flow::MAX_FLOWS;
use super::frame::{Headers, fill_checksums};
use super::tests::udp;
use crate::bed::Server;
use crate::bed::ethernet::{Port, Request, frame, look};

type F = FteMatchSetLyr24;

fn size(log_size: u32) -> FlowTableContext {
    FlowTableContext::new().with(FlowTableContext::LOG_SIZE, log_size)
}

fn misses_to(table: u32) -> FlowTableContext {
    size(4).with(FlowTableContext::TABLE_MISS_ACTION, 1).with(FlowTableContext::TABLE_MISS_ID, table)
}

/// Sends one frame. Returns the tags of what came.
fn tags(a: &mut Port, b: &mut Port, frame: &[u8]) -> Vec<u32> {
    (0..4).for_each(|_| _ = b.recv_2k());
    a.post(&Request::inline(frame));
    look(&mut [a, b]);
    a.sent().unwrap();
    let tags = std::iter::from_fn(|| b.received()).map(|got| got.get(Cqe64::QPN)).collect();
    // The rest of the requests goes.
    let rqn = b.rq.number;
    b.change_rq(rqn, super::READY, super::RESET).unwrap();
    b.change_rq(rqn, super::RESET, super::READY).unwrap();
    b.rq.count = 0;
    tags
}

#[test]
fn the_first_flow_by_index_counts_and_without_one_the_frame_goes_to_the_next_table() {
    let server = Server::new();
    let (mut a, mut b) = (Port::new(&server, 0), Port::bare(&server, 1));
    let (arp, other) = (udp(b.mac, a.mac, b"x"), frame(b.mac, a.mac, 60));
    let tir = [(DestinationType::Tir, b.tir)];
    let by_type = F::new().with(F::ETHERTYPE, 0xffff);
    let ipv4 = F::new().with(F::ETHERTYPE, 0x0800);
    let table = b.table;
    assert_eq!(tags(&mut a, &mut b, &other), [0; 0], "no flow is there");
    let high = b.group(table, 4..=7, F::new()).unwrap();
    let low = b.group(table, 1..=2, by_type).unwrap();
    b.flow(table, high, 7, F::new(), &tir).unwrap();
    assert_eq!((tags(&mut a, &mut b, &arp), tags(&mut a, &mut b, &other)), (vec![0x107], vec![0x107]));
    b.flow(table, low, 2, ipv4, &tir).unwrap();
    b.flow(table, high, 5, F::new(), &tir).unwrap();
    assert_eq!((tags(&mut a, &mut b, &arp), tags(&mut a, &mut b, &other)), (vec![0x102], vec![0x105]));
    // Two of one group for the same frames.
    b.flow(table, low, 1, ipv4, &[]).unwrap();
    assert_eq!(tags(&mut a, &mut b, &arp), [0; 0], "it is dropped");
    let delete =
        |index| DeleteFteIn::new().with(DeleteFteIn::TABLE_ID, table).with(DeleteFteIn::FLOW_INDEX, index);
    b.d.command(&delete(1)).unwrap();
    assert_eq!(b.refuses(&delete(1)), Some(CmdStatus::BadRes));
    assert_eq!(tags(&mut a, &mut b, &arp), [0x102]);
    // A flow changes: its places, and what it is for.
    b.flow(table, low, 2, F::new().with(F::ETHERTYPE, 0x88b5), &tir).unwrap();
    assert_eq!((tags(&mut a, &mut b, &arp), tags(&mut a, &mut b, &other)), (vec![0x105], vec![0x102]));
    // Before it all comes to another table, and goes on from there.
    let first = b.table(misses_to(table)).unwrap();
    b.root(first).unwrap();
    assert_eq!(tags(&mut a, &mut b, &other), [0x102]);
    let on = b.group(first, 0..=0, by_type).unwrap();
    b.flow(first, on, 0, ipv4, &[(DestinationType::FlowTable, table), tir[0], tir[0]]).unwrap();
    assert_eq!(tags(&mut a, &mut b, &arp), [0x100, 0x100, 0x105], "three copies");
    let modify = ModifyFlowTableIn::new()
        .with(ModifyFlowTableIn::TABLE_ID, first)
        .with(ModifyFlowTableIn::MODIFY_FIELD_SELECT, 1)
        .with(ModifyFlowTableIn::FLOW_TABLE_CONTEXT, size(4));
    b.d.command(&modify).unwrap();
    assert_eq!(tags(&mut a, &mut b, &other), [0; 0]);
    let nowhere = SetFlowTableRootIn::new().with(SetFlowTableRootIn::OP_MOD, 1);
    b.d.command(&nowhere).unwrap();
    assert_eq!(tags(&mut a, &mut b, &arp), [0; 0], "there is no first table");
}

#[test]
fn a_circle_of_tables_ends_and_copies_are_few() {
    let server = Server::new();
    let (mut a, mut b) = (Port::new(&server, 0), Port::bare(&server, 1));
    let (table, tir) = (b.table, b.tir);
    let group = b.group(table, 0..=0, F::new()).unwrap();
    let circle = [
        (DestinationType::FlowTable, table),
        (DestinationType::Tir, tir),
        (DestinationType::FlowTable, table),
    ];
    b.flow(table, group, 0, F::new(), &circle).unwrap();
    for _ in 0..3 {
        let one = frame(b.mac, a.mac, 60);
        assert_eq!(tags(&mut a, &mut b, &one).len(), 4, "as many as there are requests");
    }
    let lost = |b: &Port| b.d.function.ethernet.seen.out_of_buffer.get(&1).copied().unwrap_or_default();
    assert_eq!(lost(&b), 3 * 12, "sixteen copies of each");
    let places: Vec<_> = (0..64).map(|_| (DestinationType::Tir, tir)).collect();
    b.flow(table, group, 0, F::new(), &places).unwrap();
    (0..16).for_each(|_| _ = b.recv_2k());
    a.post(&Request::inline(&frame(b.mac, a.mac, 60)));
    look(&mut [&mut a, &mut b]);
    assert_eq!((std::iter::from_fn(|| b.received()).count(), lost(&b)), (16, 3 * 12));
    assert_eq!(
        b.flow(table, group, 0, F::new(), &[places, vec![(DestinationType::Tir, tir)]].concat()),
        Err(CmdStatus::BadParam)
    );
}

#[test]
fn a_circle_of_tables_with_many_groups_ends_sooner() {
    let server = Server::new();
    let (mut a, mut b) = (Port::new(&server, 0), Port::bare(&server, 1));
    let (table, tir) = (b.table(size(10)).unwrap(), b.tir);
    b.root(table).unwrap();
    for index in 0..600 {
        b.group(table, index..=index, F::new()).unwrap();
    }
    let last = b.group(table, 600..=600, F::new()).unwrap();
    let circle = [(DestinationType::Tir, tir), (DestinationType::FlowTable, table)];
    b.flow(table, last, 600, F::new(), &circle).unwrap();
    let one = frame(b.mac, a.mac, 60);
    assert_eq!(tags(&mut a, &mut b, &one), [0x100 + 600], "it is found, and not looked for again");
}

#[test]
fn every_field_of_the_outer_headers_is_looked_at() {
    let (to, from) = ([2, 3, 4, 5, 6, 7], [2, 8, 9, 10, 11, 12]);
    let plain = udp(to, from, b"12345");
    let seen = |frame: &[u8]| F::from_array(Headers::of(frame).fields(frame));
    let mut f = plain.clone();
    f[15] = 0xb9;
    f[22] = 63;
    let tagged = [&f[..12], &[0x81, 0, 0xb0, 7], &f[12..]].concat();
    let wanted = F::new()
        .with(F::SMAC_47_16, 0x0208_090a)
        .with(F::SMAC_15_0, 0x0b0c)
        .with(F::DMAC_47_16, 0x0203_0405)
        .with(F::DMAC_15_0, 0x0607)
        .with(F::ETHERTYPE, 0x0800)
        .with(F::FIRST_PRIO, 5)
        .with(F::FIRST_CFI, true)
        .with(F::FIRST_VID, 7)
        .with(F::CVLAN_TAG, true)
        .with(F::IP_VERSION, 4)
        .with(F::IP_PROTOCOL, 17)
        .with(F::IP_DSCP, 0x2e)
        .with(F::IP_ECN, 1)
        .with(F::TTL_HOPLIMIT, 63)
        .with(F::UDP_SPORT, 12345)
        .with(F::UDP_DPORT, 7)
        .with(F::SRC_IPV4_SRC_IPV6, u128::to_be_bytes(0x0a00_0001))
        .with(F::DST_IPV4_DST_IPV6, u128::to_be_bytes(0x0a00_0002));
    assert_eq!(seen(&tagged), wanted);
    // A service provider's tag; a fragment, which has no ports.
    let mut f = tagged.clone();
    f[12..14].copy_from_slice(&[0x88, 0xa8]);
    assert_eq!(seen(&f), wanted.with(F::CVLAN_TAG, false).with(F::SVLAN_TAG, true));
    f.clone_from(&tagged);
    f[24] = 0x20;
    assert_eq!(seen(&f), wanted.with(F::FRAG, true).with(F::UDP_SPORT, 0).with(F::UDP_DPORT, 0));
    // IPv6 with a header between, and TCP.
    let mut f = [&to[..], &from, &[0x86, 0xdd, 0x6b, 0x90, 0, 0, 0, 28, 60, 9]].concat();
    f.extend([[1; 16], [2; 16]].concat());
    f.extend([6, 0, 1, 4, 0, 0, 0, 0, 0, 80, 0, 90, 0, 0, 0, 0, 0, 0, 0, 0, 0x51, 0x12, 0, 0, 0, 0, 0, 0]);
    fill_checksums(&mut f, true, true);
    let got = seen(&f);
    let wanted = wanted
        .with(F::ETHERTYPE, 0x86dd)
        .with(F::FIRST_PRIO, 0)
        .with(F::FIRST_CFI, false)
        .with(F::FIRST_VID, 0)
        .with(F::CVLAN_TAG, false)
        .with(F::IP_VERSION, 6)
        .with(F::IP_PROTOCOL, 6)
        .with(F::TTL_HOPLIMIT, 9)
        .with(F::UDP_SPORT, 0)
        .with(F::UDP_DPORT, 0)
        .with(F::TCP_SPORT, 80)
        .with(F::TCP_DPORT, 90)
        .with(F::TCP_FLAGS, 0x112)
        .with(F::SRC_IPV4_SRC_IPV6, [1; 16])
        .with(F::DST_IPV4_DST_IPV6, [2; 16]);
    assert_eq!(got, wanted);
    let ip = Headers::of(&f).ip.unwrap();
    assert!(super::frame::check(&f, &ip).1);
    // Whatever is cut off, nothing is read that is not there.
    for frame in [&plain, &tagged, &f] {
        for len in 14..frame.len() {
            let short = &frame[..len];
            seen(short);
            if let Some(ip) = Headers::of(short).ip {
                super::frame::check(short, &ip);
            }
        }
    }
}

#[test]
fn what_a_command_names_has_to_be_there_and_what_others_lead_to_stays() {
    let server = Server::new();
    let mut b = Port::bare(&server, 1);
    let (table, tir) = (b.table, b.tir);
    let none = F::new();
    let (no, wrong, named) =
        (Some(CmdStatus::BadRes), Some(CmdStatus::BadParam), Some(CmdStatus::BadResState));
    assert_eq!(b.table(misses_to(99)).err(), no);
    assert_eq!(b.table(size(17)).err(), wrong);
    assert_eq!(b.root(99).err(), no);
    assert_eq!(b.group(99, 0..=0, none).err(), no);
    for range in [0..=16, 16..=16, core::ops::RangeInclusive::new(5, 4), 0..=u32::MAX] {
        assert_eq!(b.group(table, range, none).err(), wrong);
    }
    let group = b.group(table, 2..=5, none).unwrap();
    for range in [0..=2, 3..=4, 5..=6, 0..=15] {
        assert_eq!(b.group(table, range, none).err(), wrong, "it overlaps");
    }
    assert_eq!(b.flow(table, 99, 2, none, &[]).err(), no);
    assert_eq!(b.flow(table, group, 6, none, &[]).err(), Some(CmdStatus::IxErr));
    assert_eq!(b.flow(table, group, 2, none, &[(DestinationType::Tir, 99)]).err(), no);
    assert_eq!(b.flow(table, group, 2, none, &[(DestinationType::FlowTable, 99)]).err(), no);
    assert_eq!(b.flow(table, group, 2, none, &[(DestinationType::Uplink, 0)]).err(), wrong);
    let second = b.table(misses_to(table)).unwrap();
    b.flow(table, group, 2, none, &[(DestinationType::Tir, tir), (DestinationType::FlowTable, second)])
        .unwrap();
    let destroy = |table| DestroyFlowTableIn::new().with(DestroyFlowTableIn::TABLE_ID, table);
    let group_of = |group| {
        DestroyFlowGroupIn::new()
            .with(DestroyFlowGroupIn::TABLE_ID, table)
            .with(DestroyFlowGroupIn::GROUP_ID, group)
    };
    assert_eq!(b.refuses(&destroy(second)), named, "a flow leads there");
    assert_eq!(b.refuses(&group_of(group)), named, "it has a flow");
    assert_eq!(b.refuses(&DestroyTirIn::new().with(DestroyTirIn::TIRN, tir)), named);
    b.d.command(&DeleteFteIn::new().with(DeleteFteIn::TABLE_ID, table).with(DeleteFteIn::FLOW_INDEX, 2))
        .unwrap();
    b.d.command(&group_of(group)).unwrap();
    assert_eq!(b.refuses(&destroy(table)), named, "the second one leads there");
    let other_kind = destroy(second).with(DestroyFlowTableIn::TABLE_TYPE, FlowTableType::NicTx.code());
    assert_eq!(b.refuses(&other_kind), no);
    b.d.command(&destroy(second)).unwrap();
    b.d.command(&destroy(table)).unwrap();
    b.d.command(&DestroyTirIn::new().with(DestroyTirIn::TIRN, tir)).unwrap();
    // A change of a flow that is not there.
    let change = SetFteIn::new().with(SetFteIn::OP_MOD, 1).with(SetFteIn::MODIFY_ENABLE_MASK, 7);
    assert_eq!(b.refuses(&change), no);
}

#[test]
fn tables_that_nobody_looks_at_are_kept_and_flows_have_a_limit() {
    let server = Server::new();
    let mut b = Port::bare(&server, 1);
    let kind = FlowTableType::RdmaRx.code();
    use hca_prm::command::ethernet::{
        CreateFlowGroupIn, CreateFlowGroupOut, CreateFlowTableIn, CreateFlowTableOut, DestFormat, FlowContext,
    };
    let command = CreateFlowTableIn::new()
        .with(CreateFlowTableIn::TABLE_TYPE, kind)
        .with(CreateFlowTableIn::FLOW_TABLE_CONTEXT, size(16));
    let table = b.d.command(&command).unwrap().get(CreateFlowTableOut::TABLE_ID);
    let command = CreateFlowGroupIn::new()
        .with(CreateFlowGroupIn::TABLE_TYPE, kind)
        .with(CreateFlowGroupIn::TABLE_ID, table)
        .with(CreateFlowGroupIn::END_FLOW_INDEX, 0xffff);
    let group = b.d.command(&command).unwrap().get(CreateFlowGroupOut::GROUP_ID);
    let context = FlowContext::new()
        .with(FlowContext::GROUP_ID, group)
        .with(FlowContext::ACTION, 4)
        .with(FlowContext::DESTINATION_LIST_SIZE, 1);
    let set = |index| {
        SetFteIn::new()
            .with(SetFteIn::TABLE_TYPE, kind)
            .with(SetFteIn::TABLE_ID, table)
            .with(SetFteIn::FLOW_INDEX, index)
            .with(SetFteIn::FLOW_CONTEXT, context)
    };
    let uplink = DestFormat::new().with(DestFormat::DESTINATION_TYPE, DestinationType::Uplink.code());
    let list = [u64::from_be_bytes(*uplink.as_bytes())];
    for index in 0..MAX_FLOWS as u32 {
        b.d.command_with(&set(index), &list, 0).unwrap();
    }
    assert_eq!(b.d.command_with(&set(0xffff), &list, 0).err(), Some(CmdStatus::NoRes));
    b.d.command_with(&set(0), &list, 0).unwrap();
    let delete = DeleteFteIn::new().with(DeleteFteIn::TABLE_TYPE, kind).with(DeleteFteIn::TABLE_ID, table);
    b.d.command(&delete).unwrap();
    b.d.command_with(&set(0xffff), &list, 0).unwrap();
}
