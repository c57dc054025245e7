//! Commands that real drivers give, row by row, and commands that the function refuses.

use std::fs::File;
use std::os::unix::fs::FileExt;

use hca_core::Gid;
use hca_prm::caps::{AtomicCaps, HcaCap, RoceCap};
use hca_prm::command::eq::{DestroyEqIn, QueryEqIn, QueryEqOut};
use hca_prm::command::ethernet::{
    CreateFlowTableIn, CreateFlowTableOut, CreateTisIn, CreateTisOut, DestroyTisIn, Tisc,
};
use hca_prm::command::hca::*;
use hca_prm::command::resource::*;
use hca_prm::command::vport::*;
use hca_prm::register::{Ptys, RegisterId};
use hca_prm::*;

use crate::bed::{Answer, Driver, Server};
use crate::bus::uar::{FIRST_UAR, PAGE};
use crate::function::PortKind;

fn driver(port: PortKind) -> Driver {
    Driver::new(&Server::new(), 0, port)
}

fn running() -> Driver {
    let mut d = driver(PortKind::InfiniBand);
    d.boot();
    d
}

fn capability(d: &mut Driver, kind: HcaCapType, current: bool) -> [u8; 4096] {
    let query = QueryHcaCapIn::new().with(QueryHcaCapIn::OP_MOD, kind.op_mod(current));
    d.command(&query).unwrap().get(QueryHcaCapOut::CAPABILITY)
}

#[test]
fn a_driver_of_an_infiniband_port_gets_from_new_to_running_and_back() {
    let mut d = driver(PortKind::InfiniBand);
    assert_eq!((d.load(4) >> 16, d.load(0x1fc) >> 31, d.load(0x14) & 0xff), (5, 0, 0x56));
    d.command(&EnableHcaIn::new()).unwrap();
    let issi = d.command(&QueryIssiIn::new()).unwrap();
    assert_eq!(issi.get(QueryIssiOut::SUPPORTED_ISSI_DW0), 2);
    d.command(&SetIssiIn::new().with(SetIssiIn::CURRENT_ISSI, 1)).unwrap();
    assert_eq!(d.command(&QueryIssiIn::new()).unwrap().get(QueryIssiOut::CURRENT_ISSI), 1);
    assert_eq!(d.lend(QueryPagesMod::Boot), 16);
    d.register(RegisterId::HostEndianness, AccessRegMod::Write, &mut [0; 16]).unwrap();

    let most = HcaCap::from_bytes(&capability(&mut d, HcaCapType::GeneralDevice, false)).unwrap();
    assert!(
        most.get(HcaCap::IB_VIRT)
            && most.get(HcaCap::XRC)
            && most.get(HcaCap::UMR_MODIFY_ENTITY_SIZE_DISABLED)
    );
    let requested = most.with(HcaCap::LOG_MAX_QP, 9).with(HcaCap::LOG_MAX_PD, 31);
    let mut bytes = [0; 4096];
    bytes[..HcaCap::SIZE].copy_from_slice(requested.as_bytes());
    d.command(&SetHcaCapIn::new().with(SetHcaCapIn::CAPABILITY, bytes)).unwrap();
    let now = HcaCap::from_bytes(&capability(&mut d, HcaCapType::GeneralDevice, true)).unwrap();
    assert_eq!((now.get(HcaCap::LOG_MAX_QP), now.get(HcaCap::LOG_MAX_PD)), (9, most.get(HcaCap::LOG_MAX_PD)));

    // Linux chooses the byte order of atomics, with all other fields empty.
    let requested = AtomicCaps::new().with(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE, 1);
    let mut bytes = [0; 4096];
    bytes[..AtomicCaps::SIZE].copy_from_slice(requested.as_bytes());
    let mode = HcaCapType::Atomic.op_mod(true);
    let set = SetHcaCapIn::new().with(SetHcaCapIn::OP_MOD, mode).with(SetHcaCapIn::CAPABILITY, bytes);
    d.command(&set).unwrap();
    let now = AtomicCaps::from_bytes(&capability(&mut d, HcaCapType::Atomic, true)).unwrap();
    assert_eq!(now.get(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE), 1);
    assert_eq!(now.get(AtomicCaps::ATOMIC_OPERATIONS), AtomicCaps::COMPARE_SWAP | AtomicCaps::FETCH_ADD);

    assert_eq!(d.command(&InitHcaIn::new()), Err(CmdStatus::NoRes), "pages are missing");
    assert_eq!(d.lend(QueryPagesMod::Init), 8);
    d.command(&InitHcaIn::new()).unwrap();
    let adapter = d.command(&QueryAdapterIn::new()).unwrap().get(QueryAdapterOut::QUERY_ADAPTER_STRUCT);
    assert_eq!(adapter.get(AdapterParamBlock::VSD_VENDOR_ID), 0x15b3);
    assert_eq!(d.take_back(768).len(), 0, "pages that a running adapter needs stay");
    assert_eq!(d.uar(), FIRST_UAR);

    // The queue of command events is made by a command that is waited for by looking.
    let line = d.line(1);
    let mut eq = d.eq(5, 1, &[EventType::Cmd]);
    assert_eq!((d.event(&mut eq), line.count()), (None, 0));
    d.consume(&eq, true);
    d.command(&NopIn::new()).unwrap();
    let event = d.event(&mut eq).expect("each command has an event from now on");
    let done = CmdInterCompEvent::from_bytes(&event.get(Eqe::EVENT_DATA)).unwrap();
    assert_eq!(EventType::from_code(event.get(Eqe::EVENT_TYPE)), Some(EventType::Cmd));
    assert_eq!(done.get(CmdInterCompEvent::COMMAND_COMPLETION_VECTOR), 1);
    assert_eq!(line.count(), 1);

    port_of_infiniband(&mut d);
    d.command(&AllocXrcdIn::new()).unwrap();
    let pd = d.command(&AllocPdIn::new()).unwrap().get(AllocPdOut::PD);
    d.command(&AllocTransportDomainIn::new()).unwrap();
    d.command(&DeallocPdIn::new().with(DeallocPdIn::PD, pd)).unwrap();
    d.command(&DestroyEqIn::new().with(DestroyEqIn::EQ_NUMBER, eq.eqn)).unwrap();
    d.command(&DeallocUarIn::new().with(DeallocUarIn::UAR, FIRST_UAR)).unwrap();
    assert_eq!(d.shut(), 24, "every page comes back");
    assert_eq!(d.command(&QueryIssiIn::new()), Err(CmdStatus::BadSysState));
    d.boot();
}

fn port_of_infiniband(d: &mut Driver) {
    let port =
        d.command(&QueryHcaVportContextIn::new()).unwrap().get(QueryHcaVportContextOut::HCA_VPORT_CONTEXT);
    assert_eq!(port.get(HcaVportContext::VPORT_STATE), PortState::Active.code());
    assert_eq!(port.get(HcaVportContext::LID), 1);
    let (out, gid) = d.command_with(&QueryHcaVportGidIn::new(), &[], 16).unwrap();
    assert_eq!(out.get(QueryHcaVportGidOut::GIDS_NUM), 1);
    assert_eq!(gid[..2], [0xfe, 0x80]);
    assert_eq!(gid[8..], port.get(HcaVportContext::PORT_GUID).to_be_bytes());
    let directory = d.function.directory.clone();
    let directory = directory.lock();
    assert_eq!(directory.route_gid(Gid(gid.try_into().unwrap())), directory.own());
    drop(directory);
    let (_, pkey) = d.command_with(&QueryHcaVportPkeyIn::new(), &[], 4).unwrap();
    assert_eq!(pkey, [0, 0, 0xff, 0xff]);
    let last = QueryHcaVportPkeyIn::new().with(QueryHcaVportPkeyIn::PKEY_INDEX, 127);
    assert_eq!(d.command_with(&last, &[], 4).unwrap().1, [0; 4]);

    let text = *b"a node\0\0";
    let mut name = [0; 64];
    name[..8].copy_from_slice(&text);
    d.register(RegisterId::NodeDesc, AccessRegMod::Write, &mut name).unwrap();
    let mut read = [0; 64];
    d.register(RegisterId::NodeDesc, AccessRegMod::Read, &mut read).unwrap();
    assert_eq!(read[..8], text);
    let mut speeds = [0; Ptys::SIZE];
    d.register(RegisterId::Ptys, AccessRegMod::Read, &mut speeds).unwrap();
    assert_ne!(Ptys::from_bytes(&speeds).unwrap().get(Ptys::IB_PROTO_OPER), 0);
    let mut sizes = [0; 16];
    d.register(RegisterId::Pmtu, AccessRegMod::Read, &mut sizes).unwrap();
    assert_eq!(sizes[4..6], 4096_u16.to_be_bytes());
    let mut lanes = [0; 16];
    d.register(RegisterId::Pvlc, AccessRegMod::Read, &mut lanes).unwrap();
    assert_eq!(lanes[7], 1);

    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, 4, 1, 1]);
    let answer = d.command(&MadIfcIn::new().with(MadIfcIn::MAD, mad)).unwrap();
    assert_eq!(answer.get(MadIfcOut::RESPONSE_MAD_PACKET)[..4], [1, 4, 1, 0x81]);
}

#[test]
fn a_driver_of_an_ethernet_port_finds_what_it_asks_of_it() {
    let mut d = driver(PortKind::Roce);
    d.boot();
    let roce = RoceCap::from_bytes(&capability(&mut d, HcaCapType::Roce, true)).unwrap();
    assert_eq!((roce.get(RoceCap::L3_TYPE), roce.get(RoceCap::ROCE_VERSION)), (6, 4));
    assert_ne!(capability(&mut d, HcaCapType::EthernetOffload, true), [0; 4096]);
    assert_ne!(capability(&mut d, HcaCapType::NicFlowTable, true), [0; 4096]);

    let select = NicVportFieldSelect::new().with(NicVportFieldSelect::ROCE_EN, true);
    let context = NicVportContext::new().with(NicVportContext::ROCE_EN, true).with(NicVportContext::MTU, 9);
    let change = ModifyNicVportContextIn::new()
        .with(ModifyNicVportContextIn::FIELD_SELECT, select)
        .with(ModifyNicVportContextIn::NIC_VPORT_CONTEXT, context);
    d.command(&change).unwrap();
    let query = QueryNicVportContextIn::new();
    let context = d.command(&query).unwrap().get(QueryNicVportContextOut::NIC_VPORT_CONTEXT);
    assert!(context.get(NicVportContext::ROCE_EN));
    assert_eq!(context.get(NicVportContext::MTU), 1500, "only what was chosen is changed");
    let mac = context.get(NicVportContext::PERMANENT_ADDRESS).mac();
    assert_eq!(mac[0] & 3, 2, "an address of its own, that no maker gave: {mac:x?}");

    let gid = Gid([0xfe, 0x80, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
    let set = |index, gid: Gid| {
        let address = RoceAddr::new().with(RoceAddr::SOURCE_L3_ADDRESS, gid.0);
        SetRoceAddressIn::new()
            .with(SetRoceAddressIn::ROCE_ADDRESS_INDEX, index)
            .with(SetRoceAddressIn::ROCE_ADDRESS, address)
    };
    let routed = |d: &Driver| d.function.directory.lock().route_gid(gid);
    d.command(&set(3, gid)).unwrap();
    d.command(&set(4, gid)).unwrap();
    assert_eq!(d.function.gid(3), Some(gid));
    d.command(&set(3, Gid::default())).unwrap();
    assert_ne!(routed(&d), gid, "it has the address once more");
    d.command(&set(4, Gid::default())).unwrap();
    assert_eq!(routed(&d), gid);
    assert_eq!(d.command(&set(16, gid)), Err(CmdStatus::BadParam));

    assert_eq!(d.command(&CreateTisIn::new()).err(), Some(CmdStatus::BadRes), "it needs a domain");
    let domain = d.command(&AllocTransportDomainIn::new()).unwrap();
    let domain = domain.get(AllocTransportDomainOut::TRANSPORT_DOMAIN);
    let tisc = Tisc::new().with(Tisc::TRANSPORT_DOMAIN, domain);
    let tis = d.command(&CreateTisIn::new().with(CreateTisIn::CTX, tisc)).unwrap().get(CreateTisOut::TISN);
    let table = d.command(&CreateFlowTableIn::new()).unwrap().get(CreateFlowTableOut::TABLE_ID);
    assert!(tis > 0 && table > 0);
    d.command(&DestroyTisIn::new().with(DestroyTisIn::TISN, tis)).unwrap();
    assert_eq!(d.command(&DestroyTisIn::new().with(DestroyTisIn::TISN, tis)), Err(CmdStatus::BadRes));
    assert_eq!(d.shut(), 24);
    assert_eq!(d.function.gid(3), None);
}

#[test]
fn an_address_that_a_function_has_is_not_taken_from_it() {
    let server = Server::new();
    let [mut a, mut b] = [0, 1].map(|number| Driver::new(&server, number, PortKind::Roce));
    let gid = Gid([0xfe, 0x80, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
    let other = Gid([0x20; 16]);
    let set = |gid: Gid| {
        let address = RoceAddr::new().with(RoceAddr::SOURCE_L3_ADDRESS, gid.0);
        SetRoceAddressIn::new().with(SetRoceAddressIn::ROCE_ADDRESS, address)
    };
    a.boot();
    b.boot();
    a.command(&set(gid)).unwrap();
    b.command(&set(other)).unwrap();
    assert_eq!(b.command(&set(gid)).map(drop), Err(CmdStatus::BadRes));
    assert_eq!(b.function.gid(0), Some(other), "what it had stays");
    // Neither what the second one gives up nor its end takes anything from the first.
    b.command(&set(Gid::default())).unwrap();
    b.function.disconnect();
    let directory = server.directory.lock();
    assert_eq!((directory.route_gid(gid), directory.route_gid(other)), (server.gid(), other));
    drop(directory);
    // What is given up is anybody's.
    a.function.disconnect();
    let mut b = Driver::new(&server, 1, PortKind::Roce);
    b.boot();
    b.command(&set(gid)).unwrap();
    let mut directory = server.directory.lock();
    assert!(!directory.add_gid(gid, 0) && directory.add_lid(hca_core::Lid::new(9), 0));
    assert!(!directory.add_lid(hca_core::Lid::new(9), 1));
}

#[test]
fn a_command_that_can_not_be_done_says_why() {
    let mut d = driver(PortKind::InfiniBand);
    assert_eq!(d.command(&InitHcaIn::new()), Err(CmdStatus::BadSysState));
    assert_eq!(d.command(&AllocPdIn::new()), Err(CmdStatus::BadSysState));
    d.boot();
    assert_eq!(d.command(&EnableHcaIn::new()), Err(CmdStatus::BadSysState));
    assert_eq!(d.command(&InitHcaIn::new()), Err(CmdStatus::BadSysState));
    assert_eq!(d.command(&SetIssiIn::new().with(SetIssiIn::CURRENT_ISSI, 0)), Err(CmdStatus::BadParam));
    let no_such_pages = QueryPagesIn::new().with(QueryPagesIn::OP_MOD, 9);
    assert_eq!(d.command(&no_such_pages), Err(CmdStatus::BadParam));
    assert_eq!(d.command(&TeardownHcaIn::new().with(TeardownHcaIn::PROFILE, 77)), Err(CmdStatus::BadParam));
    for pd in [0, 1, 0xff_ffff] {
        assert_eq!(d.command(&DeallocPdIn::new().with(DeallocPdIn::PD, pd)), Err(CmdStatus::BadRes));
    }
    for uar in [0, FIRST_UAR, 0xff_ffff] {
        assert_eq!(d.command(&DeallocUarIn::new().with(DeallocUarIn::UAR, uar)), Err(CmdStatus::BadRes));
    }
    for eqn in [0, 1, 255] {
        assert_eq!(d.command(&DestroyEqIn::new().with(DestroyEqIn::EQ_NUMBER, eqn)), Err(CmdStatus::BadRes));
        assert_eq!(d.command(&QueryEqIn::new().with(QueryEqIn::EQ_NUMBER, eqn)), Err(CmdStatus::BadRes));
    }
    assert_eq!(d.command(&CreateTisIn::new()), Err(CmdStatus::BadOp), "it is no Ethernet port");
    let beyond = QueryHcaVportGidIn::new().with(QueryHcaVportGidIn::GID_INDEX, 8);
    assert_eq!(d.command_with(&beyond, &[], 16), Err(CmdStatus::BadParam));
    assert_eq!(d.command(&QueryHcaVportGidIn::new()), Err(CmdStatus::BadOutpLen), "there is no room for one");
    assert_eq!(d.register(RegisterId::Ptys, AccessRegMod::Read, &mut [0; 8]), Err(CmdStatus::BadInpLen));
    let status = |answer| match answer {
        Answer::Delivered(status, _) => status,
        other => panic!("{other:?}"),
    };
    assert_eq!(status(d.give(&[0xff, 0xff, 0, 0, 0, 0, 0, 0], 16)), CmdStatus::BadOp);
    assert_eq!(status(d.give(&AllocPdIn::new().as_bytes()[..8], 8)), CmdStatus::BadOutpLen);
    assert_eq!(status(d.give(&DeallocPdIn::new().as_bytes()[..8], 16)), CmdStatus::BadInpLen);
    d.uar();
    let at = d.alloc(1 << 22, PAGE);
    for (log_size, vector) in [(17, 0), (31, 0), (5, 32), (5, 4095)] {
        assert_eq!(d.try_eq(at, log_size, vector, &[]), Err(CmdStatus::BadParam), "{log_size} {vector}");
    }
    assert_eq!(d.try_eq(at + 8, 5, 0, &[]), Err(CmdStatus::BadParam), "a page begins there");
}

#[test]
fn there_are_as_many_of_each_as_was_said() {
    let mut d = running();
    let mut pds = 0;
    while d.command(&AllocPdIn::new()).is_ok() {
        pds += 1;
    }
    assert_eq!((pds, d.command(&AllocPdIn::new())), (1023, Err(CmdStatus::NoRes)));
    while d.command(&AllocUarIn::new()).is_ok() {}
    let at = d.alloc(PAGE, PAGE);
    let eqs = (0..100).take_while(|_| d.try_eq(at, 4, 0, &[]).is_ok()).count();
    assert_eq!((eqs, d.try_eq(at, 4, 0, &[])), (64, Err(CmdStatus::NoRes)));
    d.function.reset();
    d.attach();
    d.boot();
    let again = (0..2000).take_while(|_| d.command(&AllocPdIn::new()).is_ok()).count();
    assert_eq!(again, 1023, "a reset gives all of them back");
}

#[test]
fn pages_are_counted_one_by_one() {
    let mut d = running();
    let give = |pages: &[u64]| {
        let input = ManagePagesIn::new()
            .with(ManagePagesIn::OP_MOD, ManagePagesMod::AllocationSuccess.code())
            .with(ManagePagesIn::INPUT_NUM_ENTRIES, pages.len() as u32);
        (input, pages.to_vec())
    };
    let mut gives = |pages: &[u64]| {
        let (input, pages) = give(pages);
        d.command_with(&input, &pages, 0).map(drop)
    };
    assert_eq!(gives(&[0x1000, 0x2000]), Ok(()));
    assert_eq!(gives(&[0x2000]), Err(CmdStatus::BadParam), "it has that one");
    assert_eq!(gives(&[0x3000, 0x3000]), Err(CmdStatus::BadParam));
    assert_eq!(gives(&[0x3001]), Err(CmdStatus::BadParam));
    let (input, _) = give(&[0; 100_000]);
    assert_eq!(d.command(&input), Err(CmdStatus::LimErr));
    let (input, _) = give(&[0; 9]);
    assert_eq!(d.command_with(&input, &[0x5000], 0), Err(CmdStatus::BadInpLen));
    assert_eq!(d.take_back(768).len(), 2, "what it does not need");
    assert_eq!(d.shut(), 24);
}

#[test]
fn a_broken_slot_or_mailbox_is_told_by_its_delivery_status() {
    let mut d = running();
    let long = QueryHcaCapIn::new();
    let undelivered = |d: &mut Driver, change: &dyn Fn(&mut Driver, &mut CmdQueueEntry)| {
        let input = SetHcaCapIn::new();
        let mut entry = d.put(7, input.as_bytes(), 4112);
        change(d, &mut entry);
        d.write(Driver::slot_at(7), entry.as_bytes());
        d.store(0x18, 1 << 7);
        d.answer(7)
    };
    let lies = |d: &mut Driver, which: Field<CmdQueueEntry, u64>, change: fn(&mut CmdIfBox)| {
        undelivered(d, &|d, entry| {
            let at = entry.get(which) + 1024;
            let mut part = CmdIfBox::from_bytes(&d.read(at, CmdIfBox::SIZE)).unwrap();
            change(&mut part);
            d.write(at, part.as_bytes());
        })
    };
    use CmdQueueEntry as Slot;
    let set = |field, value| move |_: &mut Driver, entry: &mut Slot| _ = entry.set(field, value);
    let point = |field, value| move |_: &mut Driver, entry: &mut Slot| _ = entry.set(field, value);
    assert_eq!(undelivered(&mut d, &set(Slot::TYPE, 6)), Answer::Undelivered(DeliveryStatus::BadDescr));
    for length in [0, 7, 64 << 20, u32::MAX] {
        let answer = undelivered(&mut d, &set(Slot::INPUT_LENGTH, length));
        assert_eq!(answer, Answer::Undelivered(DeliveryStatus::BadInpLen), "{length}");
        let answer = undelivered(&mut d, &set(Slot::OUTPUT_LENGTH, length));
        assert_eq!(answer, Answer::Undelivered(DeliveryStatus::BadOutpLen), "{length}");
    }
    for pointer in [0, 8, 1 << 60, !0 << 10] {
        let answer = undelivered(&mut d, &point(Slot::INPUT_MAILBOX_POINTER, pointer));
        assert_eq!(answer, Answer::Undelivered(DeliveryStatus::BadInPtr), "{pointer:#x}");
        let answer = undelivered(&mut d, &point(Slot::OUTPUT_MAILBOX_POINTER, pointer));
        assert_eq!(answer, Answer::Undelivered(DeliveryStatus::BadOutPtr), "{pointer:#x}");
    }
    for which in [Slot::INPUT_MAILBOX_POINTER, Slot::OUTPUT_MAILBOX_POINTER] {
        let token = lies(&mut d, which, |part| _ = part.set(CmdIfBox::TOKEN, 0));
        assert_eq!(token, Answer::Undelivered(DeliveryStatus::TokErr));
        let number = lies(&mut d, which, |part| _ = part.set(CmdIfBox::BLOCK_NUMBER, 0));
        assert_eq!(number, Answer::Undelivered(DeliveryStatus::BadBlkNum));
        let end = lies(&mut d, which, |part| _ = part.set(CmdIfBox::NEXT_POINTER, 0));
        assert!(matches!(end, Answer::Undelivered(DeliveryStatus::BadInPtr | DeliveryStatus::BadOutPtr)));
    }
    assert!(matches!(d.give(long.as_bytes(), 4112), Answer::Delivered(CmdStatus::Ok, _)));
}

#[test]
fn slots_that_ring_together_are_all_run_and_those_of_the_driver_are_left_alone() {
    let mut d = running();
    d.uar();
    let mut eq = d.eq(6, 0, &[EventType::Cmd]);
    for slot in [3, 30, 31] {
        d.put(slot, NopIn::new().as_bytes(), 16);
    }
    let mut mine = d.put(5, NopIn::new().as_bytes(), 16);
    mine.set(CmdQueueEntry::OWNERSHIP, false).sign();
    d.write(Driver::slot_at(5), mine.as_bytes());
    d.store(0x18, 1 << 3 | 1 << 5 | 1 << 30 | 1 << 31);
    let mut done = 0;
    while let Some(event) = d.event(&mut eq) {
        let data = CmdInterCompEvent::from_bytes(&event.get(Eqe::EVENT_DATA)).unwrap();
        done |= data.get(CmdInterCompEvent::COMMAND_COMPLETION_VECTOR);
    }
    assert_eq!(done, 1 << 3 | 1 << 30 | 1 << 31);
    for slot in [3, 30, 31] {
        assert!(matches!(d.answer(slot), Answer::Delivered(CmdStatus::Ok, _)));
    }
    assert_eq!(d.read(Driver::slot_at(5), 64), mine.as_bytes());
}

#[test]
fn nothing_is_read_or_written_while_bus_mastering_is_off() {
    let mut d = running();
    d.function.config_write(4, &[2, 0]);
    assert_eq!(d.give(NopIn::new().as_bytes(), 16), Answer::Lost);
    d.function.config_write(4, &[6, 0]);
    assert!(matches!(d.give(NopIn::new().as_bytes(), 16), Answer::Delivered(CmdStatus::Ok, _)));
}

#[test]
fn an_armed_queue_interrupts_once_and_at_once_for_what_was_not_read() {
    let mut d = running();
    d.uar();
    let line = d.line(3);
    let mut eq = d.eq(5, 3, &[EventType::Cmd]);
    let nop = |d: &mut Driver| d.command(&NopIn::new()).map(drop).unwrap();
    nop(&mut d);
    assert_eq!(line.count(), 0, "it is not armed");
    d.consume(&eq, true);
    assert_eq!(line.count(), 1, "an event was there that the driver had not read");
    nop(&mut d);
    assert_eq!(line.count(), 0, "it interrupts once");
    while d.event(&mut eq).is_some() {}
    d.consume(&eq, false);
    nop(&mut d);
    assert_eq!(line.count(), 0, "it was told how far it is read, and not armed");
    assert!(d.event(&mut eq).is_some());
    d.consume(&eq, true);
    assert_eq!(line.count(), 0);
    nop(&mut d);
    nop(&mut d);
    assert_eq!(line.count(), 1, "two events, one of which found it armed");
    for _ in 0..200 {
        while d.event(&mut eq).is_some() {}
        d.consume(&eq, true);
        nop(&mut d);
        assert_eq!(line.count(), 1, "round after round");
    }
}

#[test]
fn a_queue_that_is_told_how_far_it_was_read_stays_armed() {
    let mut d = running();
    d.uar();
    let line = d.line(3);
    let mut eq = d.eq(5, 3, &[EventType::Cmd]);
    while d.event(&mut eq).is_some() {}
    // On a mapped page a look may find the earlier one of both behind the later one.
    d.consume(&eq, true);
    d.consume(&eq, false);
    d.command(&NopIn::new()).unwrap();
    assert_eq!(line.count(), 1);
}

#[test]
fn a_page_that_is_mapped_has_one_event_queue_which_is_armed_there() {
    let mut d = running();
    let (first, uar, other) = (d.uar(), d.uar(), d.uar());
    d.eq_uar = uar;
    let line = d.line(3);
    let mut eq = d.eq(5, 3, &[EventType::Cmd]);
    let at = d.alloc(PAGE, PAGE);
    assert_eq!(d.try_eq(at, 5, 0, &[]), Err(CmdStatus::BadParam), "a second one on that page");
    for (page, result) in [(other, true), (first, true), (first, true), (other + 1, false)] {
        d.eq_uar = page;
        assert_eq!(d.try_eq(at, 5, 0, &[]).is_ok(), result, "{page}");
    }
    let ring = |d: &Driver, eq: &crate::bed::TestEq, slot: usize| {
        let word = EqDoorbell::new().with(EqDoorbell::EQN, eq.eqn).with(EqDoorbell::CI, eq.read);
        let file = File::from(d.function.pages.file().try_clone_to_owned().unwrap());
        file.write_all_at(word.as_bytes(), u64::from(uar) * PAGE + slot as u64).unwrap();
    };
    let nop = |d: &mut Driver| d.command(&NopIn::new()).map(drop).unwrap();
    while d.event(&mut eq).is_some() {}
    for round in 0..100 {
        ring(&d, &eq, EQ_ARM);
        assert!(d.function.look() && !d.function.look());
        assert_eq!(line.count(), 0, "{round}: all was read");
        nop(&mut d);
        assert_eq!(line.count(), 1, "{round}");
        assert!(d.event(&mut eq).is_some());
        ring(&d, &eq, EQ_CI);
    }
    // Both at once, in the order in which they are not looked at: the queue is armed, and as far as was told last.
    ring(&d, &eq, EQ_ARM);
    nop(&mut d);
    assert!(d.event(&mut eq).is_some());
    ring(&d, &eq, EQ_CI);
    d.function.look();
    let query = QueryEqIn::new().with(QueryEqIn::EQ_NUMBER, eq.eqn);
    let context = d.command(&query).unwrap().get(QueryEqOut::EQ_CONTEXT_ENTRY);
    assert_eq!(context.get(Eqc::CONSUMER_COUNTER), eq.read);
    assert_eq!(line.count(), 1);
}

#[test]
fn a_queue_without_room_is_in_error_and_the_health_buffer_tells() {
    let mut d = running();
    d.uar();
    let eq = d.eq(2, 0, &[EventType::Cmd]);
    for _ in 0..4 {
        d.command(&NopIn::new()).unwrap();
    }
    assert_eq!(d.load(0x23c), 0);
    d.command(&NopIn::new()).unwrap();
    assert_eq!(d.load(0x23c) >> 16, HealthSyndrome::AsynchronousEqBufOverrun.code());
    let state = d.command(&QueryEqIn::new().with(QueryEqIn::EQ_NUMBER, eq.eqn)).unwrap();
    let context = state.get(QueryEqOut::EQ_CONTEXT_ENTRY);
    assert_eq!(context.get(Eqc::STATUS), EqStatus::WriteFailure.code());
    d.function.reset();
    assert_eq!(d.load(0x23c), 0, "a reset makes it well");
}

#[test]
fn a_queue_whose_memory_was_taken_back_is_in_error_and_the_function_is_well() {
    let mut d = running();
    d.uar();
    let eqn = d.try_eq(0xdead_0000, 5, 0, &[EventType::Cmd]).unwrap();
    d.command(&NopIn::new()).unwrap();
    assert_eq!(d.load(0x23c), 0);
    let state = d.command(&QueryEqIn::new().with(QueryEqIn::EQ_NUMBER, eqn)).unwrap();
    let context = state.get(QueryEqOut::EQ_CONTEXT_ENTRY);
    assert_eq!(context.get(Eqc::STATUS), EqStatus::WriteFailure.code());
}

#[test]
fn a_reset_in_the_middle_leaves_a_function_as_new_to_a_driver_that_begins_anew() {
    for reset in [
        |d: &mut Driver| d.function.reset(),
        |d: &mut Driver| d.function.config_write(0x68, &[0x10, 0xa0]),
        |d: &mut Driver| d.store(0x14, 7 << 8),
    ] {
        let mut d = running();
        d.uar();
        let line = d.line(2);
        let mut eq = d.eq(5, 2, &[EventType::Cmd]);
        d.consume(&eq, true);
        d.command(&AllocPdIn::new()).unwrap();
        assert!(d.event(&mut eq).is_some() && line.count() == 1);
        reset(&mut d);
        assert_ne!(
            d.load(0x14) >> 8 & 7,
            0,
            "a driver that nobody told of it finds out that it has to recover"
        );
        d.attach();
        assert_eq!(d.load(0x14) >> 8 & 7, 0);
        assert_eq!(d.command(&AllocPdIn::new()), Err(CmdStatus::BadSysState));
        assert_eq!(d.event(&mut eq), None, "nobody writes to the old queue");
        d.boot();
        assert_eq!(d.uar(), FIRST_UAR);
        assert_eq!(d.eq(5, 2, &[EventType::Cmd]).eqn, 1);
    }
}

#[test]
fn a_function_whose_interface_is_off_runs_no_commands() {
    let mut d = running();
    d.store(0x14, (crate::bed::COMMANDS as u32) | 1 << 8);
    assert_eq!(d.load(0x14) >> 8 & 7, 1, "the driver sees that it is off");
    assert_eq!(d.give(NopIn::new().as_bytes(), 16), Answer::Lost);
    d.attach();
    d.boot();
}

#[test]
fn two_functions_have_their_own_numbers_addresses_and_pages() {
    let server = Server::new();
    let mut both = [0, 1].map(|n| Driver::new(&server, n, PortKind::InfiniBand));
    let mut guids = Vec::new();
    for (n, d) in both.iter_mut().enumerate() {
        d.boot();
        assert_eq!(d.command(&AllocPdIn::new()).unwrap().get(AllocPdOut::PD), 1);
        let port = d.command(&QueryHcaVportContextIn::new()).unwrap();
        let port = port.get(QueryHcaVportContextOut::HCA_VPORT_CONTEXT);
        assert_eq!(port.get(HcaVportContext::LID), n as u32 + 1);
        guids.push(port.get(HcaVportContext::NODE_GUID));
    }
    assert_ne!(guids[0], guids[1]);
    let [first, mut second] = both;
    let lid = hca_core::Lid::new(1);
    assert!(second.function.directory.lock().route_lid(lid).is_some());
    drop(first);
    assert!(second.command(&AllocPdIn::new()).is_ok());
}

#[test]
fn the_clock_and_the_health_counter_go_on() {
    let mut d = driver(PortKind::InfiniBand);
    let clock = |d: &mut Driver| u64::from(d.load(0x1000)) << 32 | u64::from(d.load(0x1004));
    let (first, health) = (clock(&mut d), d.load(0x1010));
    let begun = std::time::Instant::now();
    while d.load(0x1010) == health {
        assert!(begun.elapsed().as_secs() < 60, "the health counter stands still");
        std::thread::yield_now();
    }
    assert!(clock(&mut d) > first);
}

#[test]
fn an_ethernet_queue_completes_what_asks_for_it() {
    use hca_prm::command::cq::{CreateCqIn, CreateCqOut};
    use hca_prm::command::ethernet::{CreateSqIn, CreateSqOut, DestroySqIn, ModifySqIn};
    let mut d = driver(PortKind::Roce);
    d.boot();
    d.uar();
    let uar = d.uar();
    let mut eq = d.eq(5, 0, &[]);
    let (ring, sq, records) = (d.alloc(PAGE, PAGE), d.alloc(PAGE, PAGE), d.alloc(PAGE, PAGE));
    for slot in 0..16 {
        d.write(ring + slot * 64 + 63, &[Cqe64::FIRST_OP_OWN]);
    }
    let cqc = Cqc::new()
        .with(Cqc::LOG_CQ_SIZE, 4)
        .with(Cqc::UAR_PAGE, uar)
        .with(Cqc::C_EQN, eq.eqn)
        .with(Cqc::DBR_ADDR, records);
    let cq = CreateCqIn::new().with(CreateCqIn::CQ_CONTEXT, cqc);
    let cqn = d.command_with(&cq, &[ring], 0).unwrap().0.get(CreateCqOut::CQN);
    let wq = Wq::new()
        .with(Wq::UAR_PAGE, uar)
        .with(Wq::DBR_ADDR, records + 64)
        .with(Wq::LOG_WQ_STRIDE, 6)
        .with(Wq::LOG_WQ_SZ, 4);
    let sqc = Sqc::new().with(Sqc::CQN, cqn).with(Sqc::WQ, wq).with(Sqc::USER_INDEX, 9);
    let (out, _) = d.command_with(&CreateSqIn::new().with(CreateSqIn::CTX, sqc), &[sq], 0).unwrap();
    let sqn = out.get(CreateSqOut::SQN);
    assert_eq!(
        d.command_with(&CreateSqIn::new().with(CreateSqIn::CTX, sqc), &[], 0).err(),
        Some(CmdStatus::BadInpLen)
    );
    let post = |d: &mut Driver, place: u64, ds: u32, ce: u32, end: u32| {
        let ctrl = CtrlSeg::new().with(CtrlSeg::DS, ds).with(CtrlSeg::CE, ce);
        d.write(sq + place % 16 * 64, ctrl.as_bytes());
        d.write(records + 68, &end.to_be_bytes());
        d.function.bar_write(u64::from(uar) * PAGE + 0x800, &[1; 8]);
        d.function.look();
    };
    let shown = |d: &Driver, slot: u64| {
        let entry = Cqe64::from_bytes(&d.read(ring + slot * 64, 64)).unwrap();
        (entry.get(Cqe64::OPCODE) == CqeOpcode::Req.code()).then(|| {
            (entry.get(Cqe64::WQE_COUNTER), entry.get(Cqe64::QPN), entry.get(Cqe64::SRQN_USER_INDEX))
        })
    };
    post(&mut d, 0, 1, 2, 1);
    assert_eq!(shown(&d, 0), None, "the queue is not ready");
    let ready = ModifySqIn::new().with(ModifySqIn::SQN, sqn).with(ModifySqIn::CTX, sqc.with(Sqc::STATE, 1));
    d.command(&ready).unwrap();
    // The queue is armed for the next completion by record and doorbell.
    d.write(records + 4, &[0; 4]);
    d.function.bar_write(u64::from(uar) * PAGE + 0x20, &[0, 0, 0, 0, 0, 0, 0, cqn as u8]);
    d.function.look();
    assert_eq!(shown(&d, 0), Some((0, sqn, 9)));
    post(&mut d, 1, 9, 0, 4);
    assert_eq!(shown(&d, 1), None, "it asks for none");
    post(&mut d, 4, 1, 2, 5);
    assert_eq!(shown(&d, 1), Some((4, sqn, 9)));
    assert!(d.event(&mut eq).is_some(), "the armed queue made an event");
    // Counts that can't be, and requests that lead beyond what was announced, end.
    post(&mut d, 5, 1, 2, 0x8000);
    assert_eq!(shown(&d, 2), None);
    post(&mut d, 5, 63, 2, 6);
    let failed = Cqe64::from_bytes(&d.read(ring + 2 * 64, 64)).unwrap();
    assert_eq!(failed.get(Cqe64::OPCODE), CqeOpcode::ReqErr.code());
    post(&mut d, 6, 1, 2, 7);
    assert_eq!(shown(&d, 3), None, "it is in error, and did not ask for others to be flushed");
    d.command(&DestroySqIn::new().with(DestroySqIn::SQN, sqn)).unwrap();
    post(&mut d, 7, 1, 2, 8);
    assert_eq!(shown(&d, 3), None);
}

/// Rings without a look before.
fn ring(d: &mut Driver, slots: u32) {
    d.function.bar_write(0x18, &slots.to_be_bytes());
}

#[test]
fn commands_of_many_doorbells_are_put_off_and_run_one_for_each_look() {
    let mut d = driver(PortKind::InfiniBand);
    let nop = NopIn::new();
    let nop = nop.as_bytes();
    let mut rounds = 0;
    let open = |d: &Driver| (0..32).filter(|slot| d.answer(*slot) == Answer::Lost).count();
    // No look comes in between, as with doorbells that lie in one message.
    loop {
        for slot in 0..32 {
            d.put(slot, nop, 16);
        }
        ring(&mut d, u32::MAX);
        d.rewind();
        rounds += 1;
        if open(&d) > 0 {
            break;
        }
        assert!(rounds < 1000, "there is an end to what is done at once");
    }
    for slot in 0..32 {
        d.put(slot, nop, 16);
    }
    ring(&mut d, u32::MAX);
    for left in (0..32).rev() {
        assert!(d.function.look());
        assert_eq!(open(&d), left);
    }
    d.function.look();
    d.put(3, nop, 16);
    ring(&mut d, 1 << 3);
    assert_eq!(open(&d), 0, "and then at once again");
}

#[test]
fn a_slot_that_can_not_be_answered_is_not_run_again_until_it_is_written_anew() {
    let mut d = driver(PortKind::InfiniBand);
    d.boot();
    // The queue where it can be read, and not be written.
    let at = crate::bed::COMMANDS - (1 << 20);
    let copy = d.commands.file.try_clone().unwrap().into();
    d.function.dma_map(at, 4096, (true, false), Some((copy, 0))).unwrap();
    d.store(0x10, (at >> 32) as u32);
    d.store(0x14, at as u32);
    let alloc = AllocUarIn::new();
    let pages = |d: &Driver| d.function.pages.polled();
    d.put(0, alloc.as_bytes(), 16);
    let before = pages(&d);
    for _ in 0..5 {
        d.store(0x18, 1);
    }
    assert_eq!((d.answer(0), pages(&d)), (Answer::Lost, before));
    // The first page given out is not polled.
    d.put(0, alloc.as_bytes(), 16);
    for _ in 0..5 {
        d.store(0x18, 1);
    }
    assert_eq!(pages(&d), before + 1, "with another token it is another command");
}
