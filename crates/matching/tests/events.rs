//! The events of 4.3, each in its case and with all its fields; queues, flow control, searches.

mod rig;

use EventKind::*;
use ListKind::{Overflow, Priority};
use hca_matching::atomic::{AtomicOp, Datatype};
use hca_matching::*;
use rig::*;

const SUM: (AtomicOp, Datatype) = (AtomicOp::Sum, Datatype::U64);

/// The four operations of 4.3 with their events here and in the overflow list.
const OPERATIONS: [(Operation, EventKind, EventKind); 5] = [
    (Operation::Put, Put, PutOverflow),
    (Operation::Get, Get, GetOverflow),
    (Operation::Atomic(SUM.0, SUM.1), Atomic, AtomicOverflow),
    (Operation::FetchAtomic(SUM.0, SUM.1), FetchAtomic, FetchAtomicOverflow),
    (Operation::Swap(AtomicOp::Swap, Datatype::U64), FetchAtomic, FetchAtomicOverflow),
];

#[test]
fn put_get_atomic_and_fetch_atomic_tell_every_field() {
    for (operation, kind, _) in OPERATIONS {
        let mut rig = Rig::new();
        let entry = rig.append_for(Priority, bits(5), Region { user_ptr: 77, ..region(64, OP) });
        let header = Header {
            match_bits: 5,
            remote_offset: 16,
            hdr_data: 99,
            uid: Uid(3),
            jid: Jid(4),
            ..rig.header(operation, 8)
        };
        rig.send(header).unwrap();
        let wanted = Event {
            kind,
            fail: NiFail::Ok,
            list: Priority,
            atomic: operation.atomic(),
            pt_index: rig.pt,
            initiator: HERE,
            uid: Uid(3),
            jid: Jid(4),
            match_bits: 5,
            rlength: 8,
            mlength: 8,
            remote_offset: 16,
            offset: 16,
            start: 0x1010,
            user_ptr: 77,
            hdr_data: 99,
            entry: Some(entry),
            md: None,
            link: 1,
            sequence: 0,
        };
        assert_eq!(rig.event(), Some(wanted));
        assert_eq!(rig.event(), None);
    }
}

#[test]
fn put_overflow_get_overflow_atomic_overflow_and_fetch_atomic_overflow_tell_where_the_bytes_are() {
    for (operation, kind, overflow_kind) in OPERATIONS {
        let mut rig = Rig::new();
        let holder = rig.append(Overflow, Region { user_ptr: 1, ..region(64, OP | Options::MANAGE_LOCAL) });
        rig.send(Header { match_bits: 4, ..rig.header(operation, 8) }).unwrap();
        rig.send(Header { match_bits: 5, hdr_data: 9, ..rig.header(operation, 16) }).unwrap();
        let events = rig.events();
        assert!(events.iter().all(|e| (e.kind, e.list, e.entry) == (kind, Overflow, Some(holder))));
        let region = Region { start: 0x9000, user_ptr: 2, ..region(64, OP | Options::USE_ONCE) };
        rig.append_for(Priority, bits(5), region);
        let event = rig.event().unwrap();
        assert_eq!((event.kind, event.list, event.fail), (overflow_kind, Overflow, NiFail::Ok));
        assert_eq!((event.start, event.user_ptr, event.match_bits, event.hdr_data), (0x1008, 2, 5, 9));
        assert_eq!((event.rlength, event.mlength, event.initiator), (16, 16, HERE));
        assert_eq!(rig.kinds(), [AutoUnlink], "it was used up, and not linked");
        assert_eq!(rig.ni.list_len(rig.pt, Priority), Ok(0));
        assert_eq!(rig.ni.unexpected_len(rig.pt), Ok(1));
    }
}

#[test]
fn a_persistent_entry_finds_all_that_waited_and_is_linked() {
    let mut rig = Rig::new();
    rig.append(Overflow, region(64, OP));
    (0..3).for_each(|i| assert!(rig.send(Header { match_bits: i % 2, ..rig.put(8) }).is_ok()));
    rig.events();
    let entry = rig.ni.append(rig.pt, Priority, Entry::new(bits(0), region(64, OP))).unwrap();
    assert_eq!(rig.kinds(), [PutOverflow, PutOverflow, Link]);
    assert_eq!(rig.send(rig.put(8)), Ok((entry, 0, 8)));
}

#[test]
fn a_threshold_that_what_waited_does_not_use_up_counts_it() {
    let mut rig = Rig::new();
    rig.append(Overflow, region(64, OP));
    rig.send(rig.put(8)).unwrap();
    let entry = rig.append(Priority, Region { threshold: Threshold::Count(2), ..region(64, OP) });
    assert_eq!(rig.send(rig.put(8)), Ok((entry, 0, 8)));
    assert_eq!(rig.kinds(), [Put, PutOverflow, Put, AutoUnlink]);
}

#[test]
fn no_rights_are_asked_of_what_waited() {
    let mut rig = Rig::new();
    rig.append(Overflow, region(64, OP));
    rig.send(rig.put(8)).unwrap();
    let entry = Entry { uid: Some(Uid(5)), ..Entry::new(Criteria::ANY, region(64, Options::OP_GET)) };
    rig.ni.append(rig.pt, Priority, entry).unwrap();
    assert_eq!(rig.kinds(), [Put, PutOverflow, Link]);
    assert_eq!(rig.ni.status(), Status::default());
}

#[test]
fn no_truncate_leaves_what_waited_and_is_too_long() {
    let mut rig = Rig::new();
    rig.append(Overflow, region(64, OP));
    rig.send(rig.put(16)).unwrap();
    rig.send(rig.put(8)).unwrap();
    rig.events();
    rig.append(Priority, region(8, OP | Options::NO_TRUNCATE));
    let events = rig.events();
    assert_eq!(events.iter().map(|e| (e.kind, e.rlength)).collect::<Vec<_>>(), [(PutOverflow, 8)]);
    assert_eq!(rig.ni.unexpected_len(rig.pt), Ok(1));
}

#[test]
fn link_names_the_entry_and_its_list() {
    for list in [Priority, Overflow] {
        let mut rig = Rig::new();
        let region = Region { user_ptr: 6, ..region(8, OP) };
        let entry = rig.ni.append(rig.pt, list, Entry::new(Criteria::ANY, region)).unwrap();
        let event = rig.event().unwrap();
        assert_eq!((event.kind, event.list, event.entry, event.user_ptr), (Link, list, Some(entry), 6));
        assert_eq!((event.pt_index, event.start), (rig.pt, 0x1000));
    }
}

#[test]
fn auto_unlink_comes_when_nothing_on_the_entry_is_under_way() {
    let mut rig = Rig::new();
    let options = OP | Options::MANAGE_LOCAL;
    let entry = rig.append(Priority, Region { min_free: 1, user_ptr: 6, ..region(16, options) });
    let first = rig.begin(rig.put(8));
    let second = rig.begin(rig.put(8));
    assert_eq!(rig.ni.list_len(rig.pt, Priority), Ok(0));
    assert_eq!(
        rig.ni.unlink(entry),
        Err(Error::Handle { argument: "entry" }),
        "it is not in the list any more"
    );
    let _ = rig.end(second);
    assert_eq!(rig.kinds(), [Put]);
    let _ = rig.end(first);
    let events = rig.events();
    assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), [Put, AutoUnlink]);
    assert_eq!((events[1].entry, events[1].user_ptr, events[1].list), (Some(entry), 6, Priority));
}

#[test]
fn auto_free_comes_when_the_last_header_of_a_used_up_overflow_entry_is_gone() {
    let mut rig = Rig::new();
    let options = OP | Options::MANAGE_LOCAL;
    let holder = rig.append(Overflow, Region { min_free: 8, user_ptr: 3, ..region(20, options) });
    rig.send(Header { match_bits: 1, ..rig.put(8) }).unwrap();
    rig.send(Header { match_bits: 2, ..rig.put(8) }).unwrap();
    assert_eq!(rig.kinds(), [Put, Put, AutoUnlink]);
    rig.append_for(Priority, bits(2), region(8, OP | Options::USE_ONCE));
    assert_eq!(rig.kinds(), [PutOverflow, AutoUnlink]);
    rig.append_for(Priority, bits(1), region(8, OP | Options::USE_ONCE));
    let events = rig.events();
    assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), [PutOverflow, AutoUnlink, AutoFree]);
    let free = events[2];
    assert_eq!((free.entry, free.user_ptr, free.list, free.pt_index), (Some(holder), 3, Overflow, rig.pt));
    assert_eq!(rig.ni.pt_free(rig.pt), Ok(()), "nothing is left");
}

#[test]
fn an_overflow_entry_whose_headers_wait_cannot_be_unlinked() {
    let mut rig = Rig::new();
    let holder = rig.append(Overflow, region(64, OP));
    rig.send(rig.put(8)).unwrap();
    assert_eq!(rig.ni.unlink(holder), Err(Error::InUse { argument: "entry", pending: 1 }));
    rig.append(Priority, region(8, OP | Options::USE_ONCE));
    assert_eq!(rig.ni.unlink(holder), Ok(()));
}

#[test]
fn an_entry_that_finds_bytes_still_coming_hears_of_them_when_they_are_there() {
    let mut rig = Rig::new();
    rig.append(Overflow, region(64, OP | Options::USE_ONCE));
    let delivery = rig.begin(rig.put(8));
    rig.append(Priority, region(64, OP | Options::USE_ONCE));
    assert_eq!(rig.kinds(), []);
    assert_eq!(rig.ni.list_len(rig.pt, Priority), Ok(0), "the header is its own already");
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::Dropped));
    let _ = rig.end(delivery);
    assert_eq!(rig.kinds(), [Put, PutOverflow, AutoUnlink, AutoUnlink, AutoFree]);
}

#[test]
fn bytes_that_fail_to_come_are_told_to_who_found_their_header() {
    let mut rig = Rig::new();
    rig.append(Overflow, region(64, OP));
    let delivery = rig.begin(rig.put(8));
    let ct = rig.ni.ct_alloc().unwrap();
    let region = Region { ct: Some(ct), ..region(64, OP | Options::USE_ONCE | Options::EVENT_CT_OVERFLOW) };
    rig.append(Priority, region);
    let response = rig.ni.complete(delivery, NiFail::Undeliverable);
    assert_eq!(response.fail, NiFail::Undeliverable);
    let events = rig.events();
    let told: Vec<_> = events.iter().map(|e| (e.kind, e.fail, e.mlength)).collect();
    assert_eq!(
        told,
        [
            (Put, NiFail::Undeliverable, 0),
            (PutOverflow, NiFail::Undeliverable, 0),
            (AutoUnlink, NiFail::Ok, 0)
        ]
    );
    assert_eq!(rig.ni.ct_get(ct), Ok(Count { success: 0, failure: 1 }));
}

#[test]
fn search_only_tells_of_what_waits_and_leaves_it() {
    let mut rig = Rig::new();
    let ct = rig.ni.ct_alloc().unwrap();
    rig.append(Overflow, region(64, OP | Options::EVENT_COMM_DISABLE));
    for match_bits in [1, 55, 1, 55, 1] {
        rig.send(Header { match_bits, hdr_data: match_bits, ..rig.put(8) }).unwrap();
    }
    for (match_bits, is_once, found) in
        [(55, false, 2), (1, false, 3), (1, true, 1), (101, true, 0), (101, false, 0)]
    {
        let once = if is_once { Options::USE_ONCE } else { Options::empty() };
        let options = OP | Options::EVENT_CT_OVERFLOW | once;
        let region = Region { ct: Some(ct), user_ptr: 8, ..region(0, options) };
        rig.ni.ct_set(ct, Count::default()).unwrap();
        rig.ni.search(rig.pt, &Entry::new(bits(match_bits), region), SearchOp::Only).unwrap();
        // A failure is counted behind the last match, by which a program without events learns that all were found.
        let failure = u64::from(!is_once || found == 0);
        assert_eq!(rig.ni.ct_get(ct), Ok(Count { success: found, failure }), "{match_bits} {once:?}");
        let events = rig.events();
        assert!(events.iter().all(|e| (e.kind, e.user_ptr) == (Search, 8)));
        let (ok, last) = events.split_at(found as usize);
        assert!(ok.iter().all(|e| (e.fail, e.match_bits, e.mlength) == (NiFail::Ok, match_bits, 8)));
        assert!(last.iter().all(|e| e.fail == NiFail::NoMatch) && last.len() == usize::from(found == 0));
    }
    assert_eq!(rig.ni.unexpected_len(rig.pt), Ok(5));
    assert_eq!(rig.ni.status(), Status::default(), "a search counts in no register");
}

#[test]
fn search_delete_takes_what_it_finds() {
    let mut rig = Rig::new();
    rig.append(Overflow, region(64, OP | Options::EVENT_COMM_DISABLE));
    for match_bits in [1, 55, 1, 55, 1] {
        rig.send(Header { match_bits, ..rig.put(8) }).unwrap();
    }
    let once = Entry::new(bits(1), region(0, OP | Options::USE_ONCE));
    rig.ni.search(rig.pt, &once, SearchOp::Delete).unwrap();
    assert_eq!(rig.kinds(), [PutOverflow]);
    let all = Entry::new(bits(1), region(0, OP));
    rig.ni.search(rig.pt, &all, SearchOp::Delete).unwrap();
    assert_eq!(rig.kinds(), [PutOverflow, PutOverflow]);
    for entry in [once, all] {
        rig.ni.search(rig.pt, &entry, SearchOp::Delete).unwrap();
        assert_eq!(rig.kinds(), [Search]);
    }
    assert_eq!(rig.ni.unexpected_len(rig.pt), Ok(2));
}

#[test]
fn search_delete_of_bytes_still_coming_tells_of_them_when_they_are_there() {
    let mut rig = Rig::new();
    rig.append(Overflow, region(64, OP));
    let delivery = rig.begin(rig.put(8));
    rig.ni
        .search(rig.pt, &Entry::new(Criteria::ANY, region(0, OP | Options::USE_ONCE)), SearchOp::Delete)
        .unwrap();
    assert_eq!(rig.kinds(), []);
    let _ = rig.end(delivery);
    assert_eq!(rig.kinds(), [Put, PutOverflow]);
}

#[test]
fn pt_disabled_comes_with_flowctrl_when_nothing_matches() {
    let mut rig = Rig::flow_control(8);
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::PtDisabled));
    let event = rig.event().unwrap();
    assert_eq!((event.kind, event.pt_index, event.fail), (PtDisabled, rig.pt, NiFail::PtDisabled));
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::PtDisabled));
    assert_eq!(rig.event(), None, "said once");
    assert_eq!(rig.ni.pt_is_enabled(rig.pt), Ok(false));
    assert_eq!(rig.ni.status().dropped, 2);
    let entry = rig.append(Priority, region(8, OP));
    rig.ni.pt_enable(rig.pt).unwrap();
    assert_eq!(rig.send(rig.put(8)), Ok((entry, 0, 8)));
}

#[test]
fn pt_disabled_comes_with_flowctrl_when_no_header_can_wait() {
    for (portal, wanted) in
        [(PortalOptions::FLOWCTRL, NiFail::PtDisabled), (PortalOptions::empty(), NiFail::Dropped)]
    {
        let limits = Limits { max_unexpected_headers: 2, ..Limits::default() };
        let mut rig = Rig::with(Config { limits, ..Config::default() }, portal, 64);
        rig.append(Overflow, region(64, OP | Options::EVENT_COMM_DISABLE));
        rig.send(rig.put(8)).unwrap();
        rig.send(rig.put(8)).unwrap();
        assert_eq!(rig.send(rig.put(8)), Err(wanted));
        assert_eq!(rig.ni.pt_is_enabled(rig.pt), Ok(wanted == NiFail::Dropped));
        assert_eq!(rig.kinds().len(), usize::from(wanted == NiFail::PtDisabled));
        assert_eq!(rig.ni.status().dropped, 1);
    }
}

#[test]
fn pt_disabled_comes_with_flowctrl_when_no_event_has_room_and_none_is_lost() {
    let mut rig = Rig::flow_control(3);
    rig.append(Priority, region(64, OP));
    let delivery = rig.begin(rig.put(8));
    rig.send(rig.put(8)).unwrap();
    rig.send(rig.put(8)).unwrap();
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::PtDisabled), "the first one's event has its place already");
    let _ = rig.end(delivery);
    let got: Vec<_> = std::iter::from_fn(|| rig.ni.eq_get(rig.eq).unwrap()).collect();
    assert!(got.iter().all(|got| !got.dropped));
    assert_eq!(got.iter().map(|got| got.event.kind).collect::<Vec<_>>(), [Put, Put, PtDisabled, Put]);
    rig.ni.pt_enable(rig.pt).unwrap();
    rig.send(rig.put(8)).unwrap();
}

#[test]
fn with_flow_control_a_portal_enabled_while_its_queue_is_full_loses_nothing() {
    let mut rig = Rig::flow_control(2);
    rig.append(Priority, region(64, OP));
    for _ in 0..2 {
        rig.send(rig.put(8)).unwrap();
    }
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::PtDisabled));
    // No event was taken, so the next message finds no room either; its notice is the one that is still to be read.
    for _ in 0..3 {
        rig.ni.pt_enable(rig.pt).unwrap();
        assert_eq!(rig.send(rig.put(8)), Err(NiFail::PtDisabled));
        assert_eq!(rig.ni.pt_is_enabled(rig.pt), Ok(false));
    }
    let all = |rig: &mut Rig| -> Vec<_> {
        let got = std::iter::from_fn(|| rig.ni.eq_get(rig.eq).unwrap());
        got.map(|got| (got.event.kind, got.dropped)).collect()
    };
    assert_eq!(all(&mut rig), [(Put, false), (Put, false), (PtDisabled, false)]);
    rig.ni.pt_enable(rig.pt).unwrap();
    for wanted in [Ok(()), Ok(()), Err(NiFail::PtDisabled)] {
        assert_eq!(rig.send(rig.put(8)).map(drop), wanted);
    }
    assert_eq!(all(&mut rig), [(Put, false), (Put, false), (PtDisabled, false)], "it is told again");
}

#[test]
fn with_flow_control_a_second_notice_is_told_where_there_is_room() {
    let mut rig = Rig::flow_control(2);
    for _ in 0..2 {
        assert_eq!(rig.send(rig.put(8)), Err(NiFail::PtDisabled), "nothing matches");
        rig.ni.pt_enable(rig.pt).unwrap();
    }
    assert_eq!(rig.kinds(), [PtDisabled, PtDisabled]);
}

#[test]
fn with_flow_control_a_notice_that_was_taken_has_its_place_again_whoever_shares_the_queue() {
    let mut rig = Rig::flow_control(1);
    let other = rig.ni.pt_alloc(PortalOptions::FLOWCTRL, Some(rig.eq), None).unwrap();
    for pt in [rig.pt, other] {
        let region = region(64, OP | Options::EVENT_LINK_DISABLE);
        rig.ni.append(pt, Priority, Entry::new(Criteria::ANY, region)).unwrap();
    }
    rig.send(rig.put(8)).unwrap();
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::PtDisabled));
    assert_eq!(rig.kinds(), [Put, PtDisabled]);
    let to_other = Header { pt_index: other, ..rig.put(8) };
    rig.send(to_other).unwrap();
    assert_eq!(rig.send(to_other), Err(NiFail::PtDisabled), "of the three places two are for notices");
    rig.ni.pt_enable(rig.pt).unwrap();
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::PtDisabled));
    let got: Vec<_> = std::iter::from_fn(|| rig.ni.eq_get(rig.eq).unwrap()).collect();
    let told: Vec<_> = got.iter().map(|got| (got.event.kind, got.event.pt_index, got.dropped)).collect();
    assert_eq!(told, [(Put, other, false), (PtDisabled, other, false), (PtDisabled, rig.pt, false)]);
}

#[test]
fn a_notice_that_gave_way_is_told_anew() {
    let mut rig = Rig::flow_control(1);
    let other = rig.ni.pt_alloc(PortalOptions::empty(), Some(rig.eq), None).unwrap();
    let region = region(64, OP | Options::EVENT_LINK_DISABLE);
    rig.ni.append(other, Priority, Entry::new(Criteria::ANY, region)).unwrap();
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::PtDisabled));
    for hdr_data in 0..5 {
        rig.send(Header { pt_index: other, hdr_data, ..rig.put(8) }).unwrap();
    }
    // The queue was full of what others may lose: whoever reads is told so, and of the portal.
    rig.ni.pt_enable(rig.pt).unwrap();
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::PtDisabled));
    let got: Vec<_> = std::iter::from_fn(|| rig.ni.eq_get(rig.eq).unwrap()).collect();
    assert!(got[0].dropped);
    assert_eq!(got.last().map(|got| got.event.kind), Some(PtDisabled));
}

#[test]
fn with_flow_control_the_ends_of_an_overflow_entry_have_their_places() {
    let mut rig = Rig::flow_control(3);
    rig.append(Overflow, region(64, OP | Options::USE_ONCE));
    rig.send(rig.put(8)).unwrap();
    rig.append(Overflow, region(64, OP));
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::PtDisabled), "2 events are there, and AutoFree is to come");
    rig.append(
        Priority,
        region(64, OP | Options::USE_ONCE | Options::EVENT_OVER_DISABLE | Options::EVENT_UNLINK_DISABLE),
    );
    assert_eq!(rig.kinds(), [Put, AutoUnlink, PtDisabled, AutoFree]);
}

#[test]
fn event_flowctrl_disable_disables_without_a_word() {
    let mut rig = Rig::flow_control(1);
    rig.append(Priority, region(64, OP | Options::EVENT_FLOWCTRL_DISABLE));
    rig.send(rig.put(8)).unwrap();
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::PtDisabled));
    assert_eq!(rig.kinds(), [Put]);
}

#[test]
fn a_portal_that_is_disabled_by_its_program_says_nothing_and_ends_what_is_under_way() {
    let mut rig = Rig::new();
    rig.append(Priority, region(64, OP));
    let delivery = rig.begin(rig.put(8));
    rig.ni.pt_disable(rig.pt).unwrap();
    assert_eq!(rig.ni.pt_pending(rig.pt), Ok(1));
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::PtDisabled));
    let _ = rig.end(delivery);
    assert_eq!(rig.ni.pt_pending(rig.pt), Ok(0));
    assert_eq!(rig.kinds(), [Put]);
}

#[test]
fn a_queue_that_overflows_says_so_once_and_goes_on() {
    let mut rig = Rig::with(Config::default(), PortalOptions::empty(), 2);
    rig.append(Priority, region(64, OP));
    (0..5).for_each(|hdr_data| assert!(rig.send(Header { hdr_data, ..rig.put(8) }).is_ok()));
    let mut get = || rig.ni.eq_get(rig.eq).unwrap().map(|got| (got.event.hdr_data, got.dropped));
    assert_eq!([get(), get(), get()], [Some((3, true)), Some((4, false)), None]);
    rig.send(rig.put(8)).unwrap();
    assert!(!rig.ni.eq_get(rig.eq).unwrap().unwrap().dropped);
}

#[test]
fn every_acknowledgement_is_sent_as_asked() {
    for list in [Priority, Overflow] {
        let mut rig = Rig::new();
        rig.append(list, region(6, OP));
        for (ack, kind, mlength, list) in [
            (AckRequest::None, ResponseKind::None, 6, list),
            (AckRequest::Full, ResponseKind::Ack, 6, list),
            (AckRequest::Count, ResponseKind::CountAck, 6, list),
            (AckRequest::Complete, ResponseKind::CompleteAck, 0, Priority),
        ] {
            let delivery = rig.begin(Header { ack, ..rig.put(8) });
            let response = rig.end(delivery);
            assert_eq!(response, Response { kind, fail: NiFail::Ok, mlength, offset: 0, list });
            // To a portal that is not there.
            let refused = Header { ack, pt_index: 9, ..rig.put(8) };
            let fail = if ack == AckRequest::Complete { NiFail::Ok } else { NiFail::Dropped };
            let wanted = Response { kind, fail, mlength: 0, offset: 0, list: Priority };
            assert_eq!(rig.ni.deliver(&refused), Verdict::Refuse(wanted));
            assert_eq!(refused.refused(NiFail::Dropped), wanted);
        }
        assert_eq!(rig.ni.status().dropped, 4);
    }
}

#[test]
fn a_reply_is_due_even_where_nothing_matches() {
    let mut rig = Rig::new();
    let Verdict::Refuse(response) = rig.ni.deliver(&rig.header(Operation::Get, 8)) else {
        panic!("no entry")
    };
    assert_eq!((response.kind, response.fail), (ResponseKind::Reply, NiFail::Dropped));
}

#[test]
fn messages_that_lie_are_counted_and_refused() {
    let limits =
        Limits { max_msg_size: 100, max_atomic_size: 64, max_fetch_atomic_size: 32, ..Limits::default() };
    let mut rig = Rig::with(Config { limits, ..Config::default() }, PortalOptions::empty(), 8);
    rig.append(Priority, region(64, OP));
    use AtomicOp::{Band, Cswap, Max, Min, Sum, Swap};
    let lies = [
        (Operation::Put, 101),
        (Operation::Get, u64::MAX),
        (Operation::Atomic(Sum, Datatype::U64), 72),
        (Operation::Atomic(Sum, Datatype::U64), 7),
        (Operation::Atomic(Swap, Datatype::U64), 8),
        (Operation::Atomic(Max, Datatype::C64), 16),
        (Operation::Atomic(Band, Datatype::F32), 4),
        (Operation::FetchAtomic(Min, Datatype::U64), 40),
        (Operation::Swap(Sum, Datatype::U64), 8),
        (Operation::Swap(Cswap, Datatype::U64), 16),
    ];
    for (operation, length) in lies {
        assert_eq!(rig.send(rig.header(operation, length)), Err(NiFail::OpViolation), "{operation:?}");
    }
    assert_eq!(rig.send(Header { pt_index: u32::MAX, ..rig.put(0) }), Err(NiFail::Dropped));
    assert_eq!(rig.ni.status(), Status { dropped: 1, permission_violations: 0, operation_violations: 10 });
    assert_eq!(rig.kinds(), []);
}

#[test]
fn what_its_caller_rejects_is_counted_and_answered() {
    for (version, dropped) in [(Version::V4, 1), (Version::V3, 2)] {
        let mut rig = Rig::with(Config { version, ..Config::default() }, PortalOptions::empty(), 8);
        let asks = Header { ack: AckRequest::Full, ..rig.put(8) };
        let response = rig.ni.reject(&asks, NiFail::OpViolation);
        assert_eq!(
            (response.kind, response.fail, response.mlength),
            (ResponseKind::Ack, NiFail::OpViolation, 0)
        );
        let response = rig.ni.reject(&rig.put(8), NiFail::Dropped);
        assert_eq!((response.kind, response.fail), (ResponseKind::None, NiFail::Dropped));
        let wanted = Status { dropped, operation_violations: 1, ..Status::default() };
        assert_eq!(rig.ni.status(), wanted);
    }
}

#[test]
fn polling_takes_turns_and_ends_with_an_abort() {
    let mut rig = Rig::new();
    let other = rig.ni.eq_alloc(8).unwrap();
    rig.append(Priority, region(64, OP));
    rig.append_for(Priority, bits(1), region(64, OP));
    let second = Region { eq: Some(other), ..region(64, OP | Options::EVENT_LINK_DISABLE) };
    let pt = rig.ni.pt_alloc(PortalOptions::empty(), None, None).unwrap();
    rig.ni.append(pt, Priority, Entry::new(Criteria::ANY, second)).unwrap();
    for pt_index in [rig.pt, rig.pt, pt, pt] {
        rig.send(Header { pt_index, ..rig.put(1) }).unwrap();
    }
    let eqs = [rig.eq, other];
    let which: Vec<_> =
        (0..5).map(|turn| rig.ni.eq_poll(&eqs, turn).unwrap().map(|(which, _)| which)).collect();
    assert_eq!(which, [Some(0), Some(1), Some(0), Some(1), None]);
    assert_eq!(rig.ni.eq_poll(&[], 3), Ok(None));
    rig.ni.abort();
    assert_eq!(rig.ni.eq_poll(&eqs, 0), Err(Error::Aborted));
    assert_eq!(rig.ni.ct_poll(&[], 0), Err(Error::Aborted));
}

#[test]
fn explain_tells_why_each_entry_does_not_take_a_message() {
    let mut rig = Rig::new();
    let other = Criteria { source: Source::exactly(Process::physical(Nid(9), Pid(9))), ..Criteria::ANY };
    let user = Criteria { uid: Some(Uid(4)), ..Criteria::ANY };
    let entries = [
        rig.append_for(Priority, bits(1), region(8, OP)),
        rig.append_for(Priority, other, region(8, OP)),
        rig.append_for(Priority, user, region(8, OP)),
        rig.append(Priority, region(4, OP | Options::NO_TRUNCATE)),
        rig.append(Priority, Region { threshold: Threshold::Count(0), ..region(8, OP) }),
        rig.append(Overflow, region(8, OP)),
    ];
    rig.append(Overflow, region(8, OP));
    let mut told = Vec::new();
    rig.ni.explain(&rig.put(8), |entry, list, reason| told.push((entry, list, reason)));
    let reasons =
        [Reason::Bits, Reason::Source, Reason::User, Reason::TooLong, Reason::Inactive].map(Some).into_iter();
    let wanted: Vec<_> = entries
        .into_iter()
        .zip(reasons.chain([None]))
        .map(|(entry, reason)| (entry, if reason.is_none() { Overflow } else { Priority }, reason))
        .collect();
    assert_eq!(told, wanted);
}
