//! Portals 3.3: match entries with memory descriptors attached, pairs of events, the access control list.

mod rig;

use EventKind::*;
use ListKind::Priority;
use hca_matching::atomic::{AtomicOp, Datatype};
use hca_matching::*;
use rig::*;

/// A memory descriptor as 3.3 makes it: everything is told to the rig's queue.
fn md(rig: &Rig, length: u64, options: Options) -> Region {
    Region { eq: Some(rig.eq), unlink: false, ..region(length, options) }
}

fn entry(rig: &mut Rig, criteria: Criteria, unlink: bool) -> EntryHandle {
    rig.ni.append(rig.pt, Priority, Entry::bare(criteria, unlink)).unwrap()
}

/// The acknowledgement of a put of 8 bytes.
const ACKED: Response =
    Response { kind: ResponseKind::Ack, fail: NiFail::Ok, mlength: 8, offset: 0, list: ListKind::Priority };

#[test]
fn put_start_put_end_get_start_get_end_get_put_start_and_get_put_end_enclose_and_share_a_link() {
    for (operation, start, end) in [
        (Operation::Put, PutStart, PutEnd),
        (Operation::Get, GetStart, GetEnd),
        (Operation::GetPut, GetPutStart, GetPutEnd),
    ] {
        let mut rig = Rig::v3();
        let me = entry(&mut rig, Criteria::ANY, false);
        let region = md(&rig, 64, OP | Options::MANAGE_LOCAL);
        let md = rig.ni.attach(me, region).unwrap();
        let first = rig.begin(Header { hdr_data: 1, ..rig.header(operation, 8) });
        let second = rig.begin(Header { hdr_data: 2, ..rig.header(operation, 8) });
        let _ = rig.end(second);
        let _ = rig.end(first);
        let events = rig.events();
        let told: Vec<_> = events.iter().map(|e| (e.kind, e.hdr_data, e.offset)).collect();
        assert_eq!(told, [(start, 1, 0), (start, 2, 8), (end, 2, 8), (end, 1, 0)], "ends come as they come");
        assert!(events[0].link == events[3].link && events[1].link == events[2].link);
        assert_ne!(events[0].link, events[1].link);
        assert!(events.iter().all(|e| (e.md, e.entry) == (Some(md), Some(me))));
        assert_eq!(events.iter().map(|e| e.sequence).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }
}

#[test]
fn event_start_disable_and_event_end_disable_leave_a_half_of_the_pair_out() {
    for (options, wanted) in [
        (Options::EVENT_START_DISABLE, &[PutEnd][..]),
        (Options::EVENT_END_DISABLE, &[PutStart]),
        (Options::EVENT_START_DISABLE | Options::EVENT_END_DISABLE, &[]),
    ] {
        let mut rig = Rig::v3();
        let me = entry(&mut rig, Criteria::ANY, false);
        let region = md(&rig, 64, OP | options);
        rig.ni.attach(me, region).unwrap();
        rig.send(rig.put(8)).unwrap();
        assert_eq!(rig.kinds(), wanted);
    }
}

#[test]
fn events_hold_the_memory_descriptor_as_it_was_right_after() {
    let mut rig = Rig::v3();
    let me = entry(&mut rig, Criteria::ANY, false);
    let region = Region { threshold: Threshold::Count(3), ..md(&rig, 64, OP) };
    rig.ni.attach(me, region).unwrap();
    rig.send(rig.put(8)).unwrap();
    rig.send(rig.put(8)).unwrap();
    let mut left = Vec::new();
    while rig.event().is_some() {
        left.push(rig.ni.eq_last_md(rig.eq).unwrap().unwrap().threshold);
    }
    assert_eq!(left, [2, 2, 1, 1].map(Threshold::Count));
}

#[test]
fn an_entry_without_memory_is_passed_by() {
    let mut rig = Rig::v3();
    let bare = entry(&mut rig, Criteria::ANY, true);
    let me = entry(&mut rig, Criteria::ANY, true);
    let region = md(&rig, 64, OP);
    rig.ni.attach(me, region).unwrap();
    assert_eq!(rig.send(rig.put(8)), Ok((me, 0, 8)));
    rig.ni.attach(bare, region).unwrap();
    assert_eq!(rig.send(rig.put(8)), Ok((bare, 0, 8)));
}

#[test]
fn an_entry_that_may_not_take_a_message_is_passed_by() {
    let mut rig = Rig::v3();
    for options in [Options::OP_GET, Options::OP_PUT | Options::NO_TRUNCATE, Options::OP_PUT] {
        let me = entry(&mut rig, Criteria::ANY, false);
        let region = md(&rig, 4, options);
        rig.ni.attach(me, region).unwrap();
    }
    let delivery = rig.begin(rig.put(8));
    assert_eq!((delivery.options, delivery.mlength), (Options::OP_PUT, 4));
    let _ = rig.end(delivery);
    let header = rig.header(Operation::GetPut, 4);
    assert_eq!(rig.send(header), Err(NiFail::Dropped), "nobody does both");
    assert_eq!(rig.ni.status(), Status { dropped: 1, ..Status::default() });
}

#[test]
fn manage_remote_is_the_absence_of_manage_local() {
    let mut rig = Rig::v3();
    let me = entry(&mut rig, Criteria::ANY, false);
    let region = md(&rig, 64, OP);
    rig.ni.attach(me, region).unwrap();
    assert_eq!(rig.send(Header { remote_offset: 48, ..rig.put(8) }), Ok((me, 48, 8)));
}

#[test]
fn a_threshold_of_nothing_left_makes_it_inactive_and_keeps_it_where_it_is() {
    let mut rig = Rig::v3();
    let me = entry(&mut rig, Criteria::ANY, true);
    let region = Region { threshold: Threshold::Count(1), ..md(&rig, 64, OP) };
    let md = rig.ni.attach(me, region).unwrap();
    rig.send(rig.put(8)).unwrap();
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::Dropped));
    assert_eq!(rig.kinds(), [PutStart, PutEnd]);
    let again = Region { threshold: Threshold::Count(1), ..region };
    assert_eq!(rig.ni.md_update(md, Some(again), None).map(|old| old.threshold), Ok(Threshold::Count(0)));
    assert_eq!(rig.send(rig.put(8)), Ok((me, 0, 8)));
}

#[test]
fn max_size_makes_it_inactive_as_soon_as_less_is_left() {
    let mut rig = Rig::v3();
    let me = entry(&mut rig, Criteria::ANY, false);
    let region = Region { min_free: 16, unlink: true, ..md(&rig, 32, OP | Options::MANAGE_LOCAL) };
    rig.ni.attach(me, region).unwrap();
    rig.send(rig.put(16)).unwrap();
    rig.send(rig.put(8)).unwrap();
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::Dropped));
    assert_eq!(rig.kinds(), [PutStart, PutEnd, PutStart, PutEnd, Unlink]);
}

#[test]
fn unlink_and_retain_of_both_objects() {
    for (md_unlinks, me_unlinks) in [(false, true), (true, false), (true, true)] {
        let mut rig = Rig::v3();
        let me = entry(&mut rig, Criteria::ANY, me_unlinks);
        let region = Region { threshold: Threshold::Count(1), unlink: md_unlinks, ..md(&rig, 64, OP) };
        let md = rig.ni.attach(me, region).unwrap();
        let delivery = rig.begin(rig.put(8));
        assert_eq!(rig.ni.md_unlink(md), Err(Error::InUse { argument: "md", pending: 1 }));
        let _ = rig.end(delivery);
        let events = rig.events();
        assert_eq!(events.iter().filter(|e| e.kind == Unlink).count(), usize::from(md_unlinks));
        if md_unlinks {
            let unlink = events[2];
            assert_eq!((unlink.md, unlink.link), (Some(md), events[0].link), "linked to what used it up");
        }
        assert_eq!(rig.ni.md_region(md).is_err(), md_unlinks);
        assert_eq!(rig.ni.list_len(rig.pt, Priority), Ok(u32::from(!(md_unlinks && me_unlinks))));
        if md_unlinks && !me_unlinks {
            rig.ni.attach(me, region).unwrap();
            assert_eq!(rig.send(rig.put(8)), Ok((me, 0, 8)), "another one is attached");
        }
    }
}

#[test]
fn unlinking_by_call_takes_both_as_they_were_told_and_says_nothing() {
    let mut rig = Rig::v3();
    let (keeps, goes) = (entry(&mut rig, Criteria::ANY, false), entry(&mut rig, Criteria::ANY, true));
    let region = md(&rig, 64, OP);
    let (a, b) = (rig.ni.attach(keeps, region).unwrap(), rig.ni.attach(goes, region).unwrap());
    assert_eq!(rig.ni.attach(keeps, region), Err(Error::InUse { argument: "entry", pending: 1 }));
    rig.ni.md_unlink(a).unwrap();
    rig.ni.md_unlink(b).unwrap();
    assert_eq!(rig.ni.list_len(rig.pt, Priority), Ok(1));
    let c = rig.ni.attach(keeps, region).unwrap();
    rig.ni.unlink(keeps).unwrap();
    assert_eq!(rig.ni.md_region(c), Err(Error::Handle { argument: "md" }), "it went with its entry");
    assert_eq!(rig.kinds(), []);
}

#[test]
fn ack_disable_keeps_acknowledgements_of_3_3_back() {
    let mut rig = Rig::v3();
    let me = entry(&mut rig, Criteria::ANY, false);
    let region = md(&rig, 64, OP | Options::ACK_DISABLE);
    rig.ni.attach(me, region).unwrap();
    let delivery = rig.begin(Header { ack: AckRequest::Full, ..rig.put(8) });
    assert_eq!(rig.end(delivery).kind, ResponseKind::None);
}

#[test]
fn no_truncate_leaves_what_is_too_long_to_another_entry_and_without_it_the_rest_is_cut_off() {
    let mut rig = Rig::v3();
    let me = entry(&mut rig, Criteria::ANY, false);
    let region = md(&rig, 16, OP | Options::NO_TRUNCATE);
    let md = rig.ni.attach(me, region).unwrap();
    assert_eq!(rig.send(rig.put(17)), Err(NiFail::Dropped));
    let truncates = Region { options: OP, ..region };
    rig.ni.md_update(md, Some(truncates), None).unwrap();
    assert_eq!(rig.send(rig.put(17)), Ok((me, 0, 16)));
}

#[test]
fn a_threshold_of_none_is_inactive_and_an_infinite_one_stays() {
    let mut rig = Rig::v3();
    let me = entry(&mut rig, Criteria::ANY, true);
    let infinite = Region { unlink: true, ..md(&rig, 64, OP) };
    let none = Region { threshold: Threshold::Count(0), ..infinite };
    let md = rig.ni.attach(me, none).unwrap();
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::Dropped));
    rig.ni.md_update(md, Some(infinite), None).unwrap();
    for _ in 0..3 {
        assert_eq!(rig.send(rig.put(8)), Ok((me, 0, 8)));
    }
    assert_eq!(rig.ni.md_region(md), Ok(infinite));
}

#[test]
fn insert_before_and_after_and_at_both_ends() {
    let mut rig = Rig::v3();
    let mut insert = |place| rig.ni.insert(place, Entry::bare(Criteria::ANY, false)).unwrap();
    let c = insert(Place::Last(rig.pt, Priority));
    let a = insert(Place::First(rig.pt, Priority));
    let b = insert(Place::Before(c));
    let e = insert(Place::After(c));
    let d = insert(Place::After(c));
    let f = insert(Place::Last(rig.pt, Priority));
    let mut order = Vec::new();
    rig.ni.explain(&rig.put(0), |entry, _, _| order.push(entry));
    assert_eq!(order, [a, b, c, d, e, f]);
    rig.ni.unlink(c).unwrap();
    assert_eq!(
        rig.ni.insert(Place::After(c), Entry::bare(Criteria::ANY, false)),
        Err(Error::Handle { argument: "place" })
    );
}

#[test]
fn a_conditional_update_waits_for_an_empty_queue() {
    let mut rig = Rig::v3();
    let me = entry(&mut rig, Criteria::ANY, false);
    let region = md(&rig, 64, OP);
    let md = rig.ni.attach(me, region).unwrap();
    rig.send(rig.put(8)).unwrap();
    let new = Region { user_ptr: 4, ..region };
    assert_eq!(rig.ni.md_update(md, Some(new), Some(rig.eq)), Err(Error::NoUpdate { argument: "test" }));
    assert_eq!(rig.ni.md_region(md), Ok(region));
    rig.events();
    assert_eq!(rig.ni.md_update(md, Some(new), Some(rig.eq)), Ok(region));
    assert_eq!(rig.ni.md_update(md, None, None), Ok(new), "only read");
    let delivery = rig.begin(rig.put(8));
    assert_eq!(rig.ni.md_update(md, Some(region), None), Err(Error::InUse { argument: "md", pending: 1 }));
    let _ = rig.end(delivery);
    assert_eq!(rig.ni.md_update(md, Some(region), None), Ok(new));
}

#[test]
fn the_access_control_list_decides_by_the_messages_index() {
    let mut rig = Rig::v3();
    let me = entry(&mut rig, Criteria::ANY, false);
    let region = md(&rig, 64, OP);
    rig.ni.attach(me, region).unwrap();
    let any = Acl { source: Source::ANY, uid: None, jid: None, pt_index: None };
    let list = [
        Some(Acl { source: Source::exactly(HERE), ..any }),
        Some(Acl { uid: Some(Uid(1)), ..any }),
        Some(Acl { jid: Some(Jid(1)), ..any }),
        Some(Acl { pt_index: Some(9), ..any }),
        None,
        Some(any),
    ];
    for (i, acl) in list.into_iter().enumerate() {
        rig.ni.set_acl(i as u32, acl).unwrap();
    }
    let other = Header { initiator: Process::physical(Nid(7), Pid(7)), ..rig.put(8) };
    for (ac_index, header, takes) in [
        (0, rig.put(8), true),
        (0, other, false),
        (1, Header { uid: Uid(1), ..other }, true),
        (1, other, false),
        (2, Header { jid: Jid(1), ..other }, true),
        (2, other, false),
        (3, rig.put(8), false),
        (4, rig.put(8), false),
        (5, other, true),
        (6, rig.put(8), false),
        (u32::MAX, rig.put(8), false),
    ] {
        let sent = rig.send(Header { ac_index, ..header });
        assert_eq!(sent.map(drop), if takes { Ok(()) } else { Err(NiFail::PermViolation) }, "{ac_index}");
    }
    assert_eq!(rig.ni.status(), Status { dropped: 7, permission_violations: 7, operation_violations: 0 });
    assert!(matches!(rig.ni.set_acl(u32::MAX, None), Err(Error::TooLarge { argument: "ac_index", .. })));
    let wrong = Acl { pt_index: Some(u32::MAX), ..any };
    assert_eq!(rig.ni.set_acl(0, Some(wrong)), Err(Error::PtIndex { pt_index: u32::MAX }));
}

#[test]
fn users_and_jobs_are_match_criteria() {
    let mut rig = Rig::v3();
    let region = md(&rig, 64, OP);
    let criteria = Criteria { uid: Some(Uid(1)), jid: Some(Jid(2)), ..Criteria::exactly(HERE, 7) };
    let mine = entry(&mut rig, criteria, false);
    let any = entry(&mut rig, Criteria::exactly(HERE, 7), false);
    rig.ni.attach(mine, region).unwrap();
    rig.ni.attach(any, region).unwrap();
    let header = Header { match_bits: 7, uid: Uid(1), jid: Jid(2), ..rig.put(8) };
    assert_eq!(rig.send(header), Ok((mine, 0, 8)));
    assert_eq!(rig.send(Header { uid: Uid(2), ..header }), Ok((any, 0, 8)));
    assert_eq!(rig.send(Header { jid: Jid(3), ..header }), Ok((any, 0, 8)));
}

fn transfer(operation: Operation, md: MdHandle, length: u64) -> Transfer {
    Transfer {
        operation,
        md,
        local_offset: 0,
        reply: None,
        length,
        ack: AckRequest::None,
        target: Process::physical(Nid(5), Pid(6)),
        pt_index: 3,
        ac_index: 0,
        match_bits: 9,
        remote_offset: 0,
        user_ptr: 0,
        hdr_data: 11,
        operand: [0; 32],
    }
}

#[test]
fn send_start_send_end_reply_start_reply_end_and_ack_of_an_initiator() {
    let ok = Response {
        kind: ResponseKind::Ack,
        fail: NiFail::Ok,
        mlength: 8,
        offset: 4,
        list: ListKind::Priority,
    };
    for (operation, ack, wanted) in [
        (Operation::Put, AckRequest::None, &[SendStart, SendEnd][..]),
        (Operation::Put, AckRequest::Full, &[SendStart, SendEnd, Ack]),
        (Operation::Get, AckRequest::None, &[ReplyStart, ReplyEnd]),
        (Operation::GetPut, AckRequest::None, &[SendStart, SendEnd, ReplyStart, ReplyEnd]),
    ] {
        let mut rig = Rig::v3();
        let region = Region { threshold: Threshold::Count(5), ..md(&rig, 64, Options::empty()) };
        let md = rig.ni.md_bind_region(region).unwrap();
        let reply = (operation == Operation::GetPut).then_some((md, 32));
        let flight = rig.ni.begin(&Transfer { ack, reply, ..transfer(operation, md, 8) }).unwrap();
        assert_eq!(
            (flight.is_sent(), flight.is_answered()),
            (wanted[0] == SendStart, wanted.len() > 2 || wanted[0] != SendStart)
        );
        if flight.is_sent() {
            rig.ni.sent(&flight, NiFail::Ok);
        }
        if flight.is_answered() {
            rig.ni.answered(&flight, &ok);
        }
        let events = rig.events();
        assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), wanted);
        assert!(
            events
                .iter()
                .all(|e| (e.link, e.md, e.match_bits, e.hdr_data) == (events[0].link, Some(md), 9, 11))
        );
        let used = events.iter().filter(|e| [SendEnd, Ack, ReplyEnd].contains(&e.kind)).count() as u32;
        assert_eq!(rig.ni.md_region(md).unwrap().threshold, Threshold::Count(5 - used));
        assert_eq!(rig.ni.md_unlink(md), Ok(()));
    }
}

#[test]
fn a_reply_that_comes_for_a_while_uses_its_descriptor_from_its_beginning() {
    let mut rig = Rig::v3();
    let region = Region { threshold: Threshold::Count(1), unlink: true, ..md(&rig, 64, Options::empty()) };
    let md = rig.ni.md_bind_region(region).unwrap();
    let reply = Response {
        kind: ResponseKind::Reply,
        fail: NiFail::Ok,
        mlength: 8,
        offset: 0,
        list: ListKind::Priority,
    };
    let mut flights = [(); 2].map(|()| rig.ni.begin(&transfer(Operation::Get, md, 8)).unwrap());
    assert!(rig.ni.reply_begins(&mut flights[0], &reply));
    assert_eq!(rig.kinds(), [ReplyStart]);
    assert!(!rig.ni.reply_begins(&mut flights[1], &reply), "the first has used it up");
    rig.ni.answered(&flights[1], &reply);
    assert_eq!((rig.kinds(), rig.ni.status().dropped), (vec![], 1));
    rig.ni.answered(&flights[0], &Response { fail: NiFail::Undeliverable, ..reply });
    let told: Vec<_> = rig.events().iter().map(|e| (e.kind, e.fail)).collect();
    assert_eq!(told, [(ReplyEnd, NiFail::Undeliverable), (Unlink, NiFail::Ok)]);
    assert_eq!(rig.ni.status().dropped, 1);
}

#[test]
fn an_initiators_descriptor_is_used_up_and_told_of() {
    let mut rig = Rig::v3();
    let region = Region { threshold: Threshold::Count(1), unlink: true, ..md(&rig, 64, Options::empty()) };
    let md = rig.ni.md_bind_region(region).unwrap();
    let flight =
        rig.ni.begin(&Transfer { ack: AckRequest::Full, ..transfer(Operation::Put, md, 8) }).unwrap();
    rig.ni.sent(&flight, NiFail::Ok);
    assert_eq!(rig.ni.begin(&transfer(Operation::Put, md, 8)), Err(Error::Inactive { argument: "md" }));
    let ack = Response {
        kind: ResponseKind::Ack,
        fail: NiFail::Ok,
        mlength: 8,
        offset: 0,
        list: ListKind::Priority,
    };
    rig.ni.answered(&flight, &ack);
    assert_eq!(rig.kinds(), [SendStart, SendEnd, Unlink], "for the acknowledgement nothing was left");
    assert_eq!(rig.ni.status().dropped, 1);
    assert_eq!(rig.ni.md_region(md), Err(Error::Handle { argument: "md" }));
}

#[test]
fn what_is_on_its_way_out_has_used_its_descriptor_and_ends_as_it_began() {
    let mut rig = Rig::v3();
    let region = Region { threshold: Threshold::Count(1), ..md(&rig, 64, Options::empty()) };
    let md = rig.ni.md_bind_region(region).unwrap();
    let flight = rig.ni.begin(&transfer(Operation::Put, md, 8)).unwrap();
    let second = rig.ni.begin(&transfer(Operation::Put, md, 8));
    assert_eq!(second, Err(Error::Inactive { argument: "md" }), "the first has not left, and counts");
    rig.ni.sent(&flight, NiFail::Ok);
    assert_eq!(rig.kinds(), [SendStart, SendEnd]);
    assert_eq!(rig.ni.status().dropped, 0);
}

#[test]
fn a_used_up_descriptor_whose_acknowledgement_is_forgotten_is_told_of() {
    let mut rig = Rig::v3();
    let region = Region { threshold: Threshold::Count(1), unlink: true, ..md(&rig, 64, Options::empty()) };
    let md = rig.ni.md_bind_region(region).unwrap();
    let flight =
        rig.ni.begin(&Transfer { ack: AckRequest::Full, ..transfer(Operation::Put, md, 8) }).unwrap();
    rig.ni.sent(&flight, NiFail::Ok);
    assert!(rig.ni.has_md(md));
    rig.ni.forget(&flight);
    assert_eq!(rig.kinds(), [SendStart, SendEnd, Unlink]);
    assert!(!rig.ni.has_md(md));
}

#[test]
fn sent_at_once_tells_both_halves_of_a_pair() {
    let mut rig = Rig::v3();
    let region = Region { threshold: Threshold::Count(2), ..md(&rig, 64, Options::empty()) };
    let md = rig.ni.md_bind_region(region).unwrap();
    let put = transfer(Operation::Put, md, 8);
    assert!(rig.ni.may_send_at_once(&put));
    rig.ni.sent_at_once(&put);
    assert_eq!(rig.kinds(), [SendStart, SendEnd]);
    assert_eq!(rig.ni.md_region(md).map(|region| region.threshold), Ok(Threshold::Count(1)));
    rig.ni.sent_at_once(&put);
    assert!(!rig.ni.may_send_at_once(&put), "it is used up");
}

#[test]
fn an_attached_descriptor_can_send_too() {
    let mut rig = Rig::v3();
    let me = entry(&mut rig, Criteria::ANY, true);
    let region = Region { threshold: Threshold::Count(2), unlink: true, ..md(&rig, 64, OP) };
    let md = rig.ni.attach(me, region).unwrap();
    let flight = rig.ni.begin(&transfer(Operation::Put, md, 8)).unwrap();
    assert_eq!(rig.ni.unlink(me), Err(Error::InUse { argument: "entry", pending: 1 }));
    rig.send(rig.put(8)).unwrap();
    rig.ni.sent(&flight, NiFail::Undeliverable);
    let events = rig.events();
    let told: Vec<_> = events.iter().map(|e| (e.kind, e.fail)).collect();
    assert_eq!(
        told,
        [
            (SendStart, NiFail::Ok),
            (PutStart, NiFail::Ok),
            (PutEnd, NiFail::Ok),
            (SendEnd, NiFail::Undeliverable),
            (Unlink, NiFail::Ok)
        ]
    );
    assert_eq!(rig.ni.list_len(rig.pt, Priority), Ok(0), "both are gone");
}

#[test]
fn atomics_reach_an_interface_of_3_3_as_puts_and_exchanges() {
    let mut rig = Rig::v3();
    let me = entry(&mut rig, Criteria::ANY, false);
    let region = md(&rig, 64, OP);
    rig.ni.attach(me, region).unwrap();
    rig.send(rig.header(Operation::Swap(AtomicOp::Swap, Datatype::U64), 8)).unwrap();
    assert_eq!(rig.kinds(), [GetPutStart, GetPutEnd]);
}

#[test]
fn an_acknowledgement_is_told_though_ends_are_not() {
    let mut rig = Rig::v3();
    let region = md(&rig, 8, OP | Options::EVENT_START_DISABLE | Options::EVENT_END_DISABLE);
    let md = rig.ni.md_bind_region(region).unwrap();
    let flight = rig.ni.begin(&rig.outgoing_put(md)).unwrap();
    rig.ni.sent(&flight, NiFail::Ok);
    assert_eq!(rig.kinds(), []);
    rig.ni.answered(&flight, &ACKED);
    assert_eq!(rig.kinds(), [Ack]);
}

#[test]
fn the_end_of_a_bound_descriptor_is_told_with_the_last_operation_on_it() {
    let mut rig = Rig::v3();
    let region = Region { threshold: Threshold::Count(2), user_ptr: 77, unlink: true, ..md(&rig, 8, OP) };
    let md = rig.ni.md_bind_region(region).unwrap();
    // Links are counted over all operations.
    let me = entry(&mut rig, Criteria::ANY, false);
    rig.ni.attach(me, region).unwrap();
    rig.send(rig.put(8)).unwrap();
    let _ = rig.events();
    let flight = rig.ni.begin(&rig.outgoing_put(md)).unwrap();
    rig.ni.sent(&flight, NiFail::Ok);
    rig.ni.answered(&flight, &ACKED);
    let events = rig.events();
    let ack = events.iter().find(|event| event.kind == Ack).expect("it is told");
    let last = events.last().unwrap();
    assert_eq!((last.kind, last.user_ptr, last.md, last.link), (Unlink, 77, Some(md), ack.link));
    assert_ne!(last.link, 0);
}

#[test]
fn remotely_managed_memory_is_never_too_full() {
    let mut rig = Rig::v3();
    let me = entry(&mut rig, Criteria::ANY, false);
    let region = Region { min_free: 16, unlink: true, ..md(&rig, 8, OP) };
    rig.ni.attach(me, region).unwrap();
    for _ in 0..2 {
        assert_eq!(rig.send(rig.put(8)), Ok((me, 0, 8)));
    }
}

#[test]
fn access_control_has_entries_and_portals_up_to_their_limits() {
    let limits = Limits { max_ac_index: 3, max_pt_index: 5, ..Limits::default() };
    let mut ni = Interface::new(Config { version: Version::V3, limits, ..Config::default() });
    let acl = |pt_index| Some(Acl { source: Source::ANY, uid: None, jid: None, pt_index: Some(pt_index) });
    assert_eq!(ni.set_acl(3, acl(5)), Ok(()));
    assert_eq!(ni.set_acl(4, None), Err(Error::TooLarge { argument: "ac_index", value: 4, limit: 3 }));
    assert_eq!(ni.set_acl(3, acl(6)), Err(Error::PtIndex { pt_index: 6 }));
}

#[test]
fn an_update_names_a_queue_that_is_not_there() {
    let mut rig = Rig::v3();
    let region = md(&rig, 8, OP);
    let md = rig.ni.md_bind_region(region).unwrap();
    let stale = rig.ni.eq_alloc(1).unwrap();
    rig.ni.eq_free(stale).unwrap();
    let new = Region { length: 4, ..region };
    assert_eq!(rig.ni.md_update(md, Some(new), Some(stale)), Err(Error::Handle { argument: "test" }));
    assert_eq!(rig.ni.md_region(md), Ok(region));
}
