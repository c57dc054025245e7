//! Each option of an entry, of a portal and of an interface does what its name says.

mod rig;

use EventKind::*;
use ListKind::{Overflow, Priority};
use hca_matching::atomic::{AtomicOp, Datatype};
use hca_matching::*;
use rig::*;

#[test]
fn op_put_takes_puts_and_op_get_takes_gets_and_both_take_what_does_both() {
    use Operation::{Atomic, FetchAtomic, Get, GetPut, Put, Swap};
    let sum = (AtomicOp::Sum, Datatype::U64);
    for (operation, needs) in [
        (Put, Options::OP_PUT),
        (Atomic(sum.0, sum.1), Options::OP_PUT),
        (Get, Options::OP_GET),
        (FetchAtomic(sum.0, sum.1), OP),
        (Swap(AtomicOp::Swap, Datatype::U64), OP),
        (GetPut, OP),
    ] {
        for has in [Options::empty(), Options::OP_PUT, Options::OP_GET, OP] {
            let mut rig = Rig::new();
            rig.append(Priority, region(64, has));
            let sent = rig.send(rig.header(operation, 8));
            let wanted = if has.contains(needs) { Ok(8) } else { Err(NiFail::OpViolation) };
            assert_eq!(sent.map(|(_, _, mlength)| mlength), wanted, "{operation:?} {has:?}");
            assert_eq!(rig.ni.status().operation_violations, u64::from(wanted.is_err()));
        }
    }
}

#[test]
fn use_once_takes_one_message_and_is_gone() {
    let mut rig = Rig::new();
    let entry = rig.append(Priority, region(64, OP | Options::USE_ONCE));
    assert_eq!(rig.send(rig.put(8)), Ok((entry, 0, 8)));
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::Dropped));
    assert_eq!(rig.kinds(), [Put, AutoUnlink]);
    assert_eq!(rig.ni.unlink(entry), Err(Error::Handle { argument: "entry" }));
}

#[test]
fn without_use_once_an_entry_stays() {
    let mut rig = Rig::new();
    let entry = rig.append(Priority, region(64, OP));
    for _ in 0..3 {
        assert_eq!(rig.send(rig.put(8)), Ok((entry, 0, 8)));
    }
    assert_eq!(rig.ni.unlink(entry), Ok(()));
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::Dropped));
}

#[test]
fn a_threshold_counts_messages_down() {
    let mut rig = Rig::new();
    let entry = rig.append(Priority, Region { threshold: Threshold::Count(2), ..region(64, OP) });
    assert_eq!(rig.send(rig.put(8)), Ok((entry, 0, 8)));
    assert_eq!(rig.send(rig.put(8)), Ok((entry, 0, 8)));
    assert_eq!(rig.send(rig.put(8)), Err(NiFail::Dropped));
    assert_eq!(rig.kinds(), [Put, Put, AutoUnlink]);
}

#[test]
fn the_offset_is_the_messages_by_default() {
    let mut rig = Rig::new();
    let entry = rig.append(Priority, region(64, OP));
    let header = Header { remote_offset: 40, ..rig.put(8) };
    assert_eq!(rig.send(header), Ok((entry, 40, 8)));
    let event = rig.event().unwrap();
    assert_eq!((event.start, event.offset, event.remote_offset), (0x1000 + 40, 40, 40));
}

#[test]
fn manage_local_puts_messages_one_behind_the_other() {
    let mut rig = Rig::new();
    let entry = rig.append(Priority, region(64, OP | Options::MANAGE_LOCAL));
    let header = Header { remote_offset: 40, ..rig.put(24) };
    assert_eq!(rig.send(header), Ok((entry, 0, 24)));
    assert_eq!(rig.send(rig.header(Operation::Get, 8)), Ok((entry, 24, 8)), "one offset for both directions");
    assert_eq!(rig.send(header), Ok((entry, 32, 24)));
    assert_eq!(rig.send(header), Ok((entry, 56, 8)), "what does not fit is cut off");
    assert_eq!(rig.send(header), Ok((entry, 64, 0)));
    let event = rig.event().unwrap();
    assert_eq!((event.offset, event.remote_offset), (0, 40), "the event tells what was asked for, too");
}

#[test]
fn min_free_uses_an_entry_up_as_soon_as_less_is_left() {
    let mut rig = Rig::new();
    let entry = rig.append(Priority, Region { min_free: 32, ..region(64, OP | Options::MANAGE_LOCAL) });
    assert_eq!(rig.send(rig.put(32)), Ok((entry, 0, 32)));
    assert_eq!(rig.send(rig.put(1)), Ok((entry, 32, 1)), "32 bytes were left");
    assert_eq!(rig.send(rig.put(1)), Err(NiFail::Dropped));
    assert_eq!(rig.kinds(), [Put, Put, AutoUnlink]);
}

#[test]
fn truncation_cuts_what_is_too_long_and_beyond_the_end_everything() {
    let mut rig = Rig::new();
    let entry = rig.append(Priority, region(64, OP));
    for (remote_offset, length, mlength) in
        [(0, 65, 64), (60, 8, 4), (64, 8, 0), (65, 8, 0), (u64::MAX, 8, 0), (1, 1 << 40, 63)]
    {
        let header = Header { remote_offset, ..rig.put(length) };
        assert_eq!(rig.send(header), Ok((entry, remote_offset, mlength)));
        let event = rig.event().unwrap();
        assert_eq!((event.rlength, event.mlength), (length, mlength));
    }
}

#[test]
fn truncation_keeps_elements_whole() {
    let mut rig = Rig::new();
    let entry = rig.append(Priority, region(20, OP));
    let sum = Operation::Atomic(AtomicOp::Sum, Datatype::U64);
    assert_eq!(rig.send(rig.header(sum, 24)), Ok((entry, 0, 16)));
}

#[test]
fn no_truncate_leaves_what_is_too_long_to_the_next_entry() {
    let mut rig = Rig::new();
    let short = rig.append(Priority, region(16, OP | Options::NO_TRUNCATE));
    let long = rig.append(Priority, region(64, OP));
    assert_eq!(rig.send(rig.put(16)), Ok((short, 0, 16)));
    assert_eq!(rig.send(rig.put(17)), Ok((long, 0, 17)));
    let header = Header { remote_offset: 8, ..rig.put(9) };
    assert_eq!(rig.send(header), Ok((long, 8, 9)), "the offset counts");
}

#[test]
fn no_truncate_counts_what_is_left_of_locally_managed_memory() {
    let mut rig = Rig::new();
    let first = rig.append(Priority, region(16, OP | Options::NO_TRUNCATE | Options::MANAGE_LOCAL));
    let second = rig.append(Priority, region(64, OP));
    assert_eq!(rig.send(rig.put(10)), Ok((first, 0, 10)));
    assert_eq!(rig.send(rig.put(10)), Ok((second, 0, 10)));
    assert_eq!(rig.send(rig.put(6)), Ok((first, 10, 6)));
}

#[test]
fn may_align_begins_at_a_multiple_where_the_message_fits_from_there() {
    let mut rig = Rig::new();
    let entry = rig.append(Priority, region(64, OP | Options::MANAGE_LOCAL | Options::MAY_ALIGN));
    assert_eq!(rig.send(rig.put(3)), Ok((entry, 0, 3)));
    assert_eq!(rig.send(rig.put(30)), Ok((entry, ALIGN_BYTES, 30)));
    assert_eq!(rig.send(rig.put(18)), Ok((entry, 46, 18)), "from 48 it would be cut off");
}

#[test]
fn ack_disable_keeps_every_acknowledgement_back_and_no_reply() {
    let mut rig = Rig::new();
    rig.append(Priority, region(64, OP | Options::ACK_DISABLE));
    for ack in [AckRequest::Full, AckRequest::Count, AckRequest::Complete] {
        let delivery = rig.begin(Header { ack, ..rig.put(8) });
        assert_eq!(rig.end(delivery).kind, ResponseKind::None);
    }
    let delivery = rig.begin(rig.header(Operation::Get, 8));
    assert_eq!(rig.end(delivery).kind, ResponseKind::Reply);
}

#[test]
fn iovec_and_is_accessible_are_passed_on_to_who_moves_the_bytes() {
    let mut rig = Rig::new();
    rig.append(Priority, region(64, OP | Options::IOVEC | Options::IS_ACCESSIBLE));
    let delivery = rig.begin(rig.put(8));
    assert!(delivery.options.contains(Options::IOVEC | Options::IS_ACCESSIBLE));
    let _ = rig.end(delivery);
}

#[test]
fn unexpected_hdr_disable_takes_messages_that_nobody_will_find() {
    let mut rig = Rig::new();
    let entry = rig.append(Overflow, region(0, OP | Options::UNEXPECTED_HDR_DISABLE));
    assert_eq!(rig.send(rig.put(8)), Ok((entry, 0, 0)));
    assert_eq!(rig.ni.unexpected_len(rig.pt), Ok(0));
    assert_eq!(rig.kinds(), [Put]);
    rig.append(Priority, region(64, OP));
    assert_eq!(rig.kinds(), []);
}

#[test]
fn local_inc_uh_rlength_counts_waiting_messages_as_if_they_had_come_here() {
    let mut rig = Rig::new();
    rig.append(Overflow, region(1024, OP));
    for length in [10, 20] {
        rig.send(rig.put(length)).unwrap();
    }
    rig.events();
    let options = OP | Options::MANAGE_LOCAL | Options::LOCAL_INC_UH_RLENGTH;
    let entry = rig.append(Priority, Region { min_free: 8, ..region(64, options) });
    assert_eq!(rig.kinds(), [PutOverflow, PutOverflow]);
    assert_eq!(rig.send(rig.put(4)), Ok((entry, 30, 4)));
}

#[test]
fn local_inc_uh_rlength_uses_an_entry_up_before_it_is_linked() {
    let mut rig = Rig::new();
    rig.append(Overflow, region(1024, OP));
    for length in [30, 30, 30] {
        rig.send(rig.put(length)).unwrap();
    }
    rig.events();
    let options = OP | Options::MANAGE_LOCAL | Options::LOCAL_INC_UH_RLENGTH;
    rig.append(Priority, Region { min_free: 8, ..region(64, options) });
    assert_eq!(rig.kinds(), [PutOverflow, PutOverflow, AutoUnlink]);
    assert_eq!(rig.ni.list_len(rig.pt, Priority), Ok(0));
    assert_eq!(rig.ni.unexpected_len(rig.pt), Ok(1), "the third still waits");
}

#[test]
fn event_link_disable() {
    for (options, wanted) in [(OP, &[Link][..]), (OP | Options::EVENT_LINK_DISABLE, &[])] {
        let mut rig = Rig::new();
        rig.ni.append(rig.pt, Priority, Entry::new(Criteria::ANY, region(8, options))).unwrap();
        assert_eq!(rig.kinds(), wanted);
    }
}

#[test]
fn event_comm_disable_hides_successes_and_failures() {
    let mut rig = Rig::new();
    rig.append(Priority, region(64, OP | Options::EVENT_COMM_DISABLE));
    rig.send(rig.put(8)).unwrap();
    let delivery = rig.begin(rig.put(8));
    let _ = rig.ni.complete(delivery, NiFail::Undeliverable);
    assert_eq!(rig.kinds(), []);
}

#[test]
fn event_success_disable_hides_successes_only() {
    let mut rig = Rig::new();
    rig.append(Priority, region(64, OP | Options::EVENT_SUCCESS_DISABLE));
    rig.send(rig.put(8)).unwrap();
    assert_eq!(rig.kinds(), []);
    let delivery = rig.begin(rig.put(8));
    let _ = rig.ni.complete(delivery, NiFail::Segv);
    let event = rig.event().unwrap();
    assert_eq!((event.kind, event.fail, event.mlength), (Put, NiFail::Segv, 0));
}

#[test]
fn event_over_disable_hides_what_waited() {
    let mut rig = Rig::new();
    rig.append(Overflow, region(64, OP | Options::EVENT_COMM_DISABLE));
    rig.send(rig.put(8)).unwrap();
    rig.append(Priority, region(64, OP | Options::EVENT_OVER_DISABLE));
    assert_eq!(rig.kinds(), []);
    assert_eq!(rig.ni.unexpected_len(rig.pt), Ok(0), "it was found all the same");
}

#[test]
fn event_unlink_disable_hides_both_ends() {
    let mut rig = Rig::new();
    let options = OP | Options::USE_ONCE | Options::EVENT_UNLINK_DISABLE | Options::UNEXPECTED_HDR_DISABLE;
    rig.append(Overflow, region(64, options));
    rig.send(rig.put(8)).unwrap();
    assert_eq!(rig.kinds(), [Put]);
}

#[test]
fn event_ct_comm_counts_operations_and_failures() {
    let mut rig = Rig::new();
    let ct = rig.ni.ct_alloc().unwrap();
    let options = OP | Options::EVENT_CT_COMM | Options::EVENT_COMM_DISABLE;
    rig.append(Priority, Region { ct: Some(ct), ..region(64, options) });
    rig.send(rig.put(8)).unwrap();
    rig.send(rig.header(Operation::Get, 8)).unwrap();
    let delivery = rig.begin(rig.put(8));
    let _ = rig.ni.complete(delivery, NiFail::Undeliverable);
    assert_eq!(rig.ni.ct_get(ct), Ok(Count { success: 2, failure: 1 }));
}

#[test]
fn event_ct_bytes_counts_bytes_and_single_failures() {
    let mut rig = Rig::new();
    let ct = rig.ni.ct_alloc().unwrap();
    let options = OP | Options::EVENT_CT_COMM | Options::EVENT_CT_BYTES;
    rig.append(Priority, Region { ct: Some(ct), ..region(64, options) });
    rig.send(rig.put(100)).unwrap();
    let delivery = rig.begin(rig.put(8));
    let _ = rig.ni.complete(delivery, NiFail::Undeliverable);
    assert_eq!(rig.ni.ct_get(ct), Ok(Count { success: 64, failure: 1 }), "the bytes that were moved");
}

#[test]
fn event_ct_overflow_counts_what_waited() {
    for (options, success) in [(Options::empty(), 2), (Options::EVENT_CT_BYTES, 30)] {
        let mut rig = Rig::new();
        let ct = rig.ni.ct_alloc().unwrap();
        rig.append(Overflow, region(64, OP));
        rig.send(rig.put(10)).unwrap();
        rig.send(rig.put(20)).unwrap();
        let region = Region { ct: Some(ct), ..region(64, OP | Options::EVENT_CT_OVERFLOW | options) };
        rig.append(Priority, region);
        assert_eq!(rig.ni.ct_get(ct), Ok(Count { success, failure: 0 }));
        rig.send(rig.put(8)).unwrap();
        assert_eq!(rig.ni.ct_get(ct), Ok(Count { success, failure: 0 }), "not what comes later");
    }
}

#[test]
fn uid_keeps_other_users_out_and_ends_the_search() {
    let mut rig = Rig::new();
    let mine = Entry { uid: Some(Uid(7)), ..Entry::new(Criteria::ANY, region(64, OP)) };
    let entry = rig.ni.append(rig.pt, Priority, mine).unwrap();
    rig.append(Priority, region(64, OP));
    assert_eq!(rig.send(Header { uid: Uid(7), ..rig.put(8) }), Ok((entry, 0, 8)));
    assert_eq!(rig.send(Header { uid: Uid(8), ..rig.put(8) }), Err(NiFail::PermViolation));
    assert_eq!(rig.ni.status(), Status { permission_violations: 1, ..Status::default() });
}

#[test]
fn match_id_selects_by_source() {
    let mut rig = Rig::new();
    let exact = Criteria { source: Source::exactly(HERE), ..Criteria::ANY };
    let node = Criteria { source: Source::physical(Some(Nid(1)), None), ..Criteria::ANY };
    let first = rig.append_for(Priority, exact, region(64, OP));
    let second = rig.append_for(Priority, node, region(64, OP));
    let third = rig.append(Priority, region(64, OP));
    let from = |nid, pid| Process::physical(Nid(nid), Pid(pid));
    for (initiator, wanted) in [(HERE, first), (from(1, 3), second), (from(2, 2), third)] {
        assert_eq!(rig.send(Header { initiator, ..rig.put(0) }), Ok((wanted, 0, 0)));
    }
}

#[test]
fn sources_whose_digests_agree_are_told_apart() {
    let mut rig = Rig::new();
    // 16 bits of each number tell nothing about these two.
    let (a, b) = (Process::physical(Nid(0x1_0001), Pid(5)), Process::physical(Nid(0), Pid(5)));
    let only = |process| Criteria { source: Source::exactly(process), ..Criteria::ANY };
    rig.append_for(Priority, only(a), region(64, OP));
    let second = rig.append_for(Priority, only(b), region(64, OP));
    assert_eq!(rig.send(Header { initiator: b, ..rig.put(0) }), Ok((second, 0, 0)));
}

#[test]
fn only_use_once_and_only_truncate_are_hints_and_no_entry_is_refused_for_them() {
    let portal = PortalOptions::ONLY_USE_ONCE | PortalOptions::ONLY_TRUNCATE;
    let mut rig = Rig::with(Config::default(), portal, 8);
    for (list, options) in [(Overflow, OP), (Priority, OP), (Priority, OP | Options::NO_TRUNCATE)] {
        let entry = Entry::new(Criteria::ANY, region(8, options));
        assert_eq!(rig.ni.append(rig.pt, list, entry).map(drop), Ok(()), "{list:?} {options:?}");
        assert_eq!(rig.ni.search(rig.pt, &entry, SearchOp::Only), Ok(()));
    }
    assert!([0; 2].into_iter().all(|_| rig.send(rig.put(9)).is_ok_and(|(_, _, length)| length == 8)));
}

#[test]
fn min_free_is_looked_at_with_manage_local_only() {
    let mut rig = Rig::new();
    let entry = rig.append(Priority, Region { min_free: 8, ..region(8, OP) });
    for _ in 0..2 {
        assert_eq!(rig.send(rig.put(8)), Ok((entry, 0, 8)));
    }
}

#[test]
fn match_unordered_keeps_the_order_all_the_same() {
    let mut rig = Rig::with(Config::default(), PortalOptions::MATCH_UNORDERED, 8);
    let first = rig.append(Priority, region(8, OP));
    rig.append(Priority, region(8, OP));
    assert_eq!(rig.send(rig.put(1)), Ok((first, 0, 1)));
}

#[test]
fn alloc_disabled_begins_disabled() {
    let mut rig = Rig::with(Config::default(), PortalOptions::ALLOC_DISABLED, 8);
    let entry = rig.append(Priority, region(8, OP));
    assert_eq!(rig.send(rig.put(1)), Err(NiFail::PtDisabled));
    rig.ni.pt_enable(rig.pt).unwrap();
    assert_eq!(rig.send(rig.put(1)), Ok((entry, 0, 1)));
    assert_eq!(rig.ni.status().dropped, 1);
}

#[test]
fn an_interface_without_matching_takes_what_comes_in_order() {
    let mut rig = Rig::with(Config { matching: false, ..Config::default() }, PortalOptions::empty(), 64);
    let first = rig.append(Priority, region(8, OP | Options::USE_ONCE));
    let second = rig.append(Priority, region(8, OP | Options::USE_ONCE));
    assert_eq!(rig.send(Header { match_bits: 99, ..rig.put(1) }), Ok((first, 0, 1)));
    assert_eq!(rig.send(Header { match_bits: 1, ..rig.put(1) }), Ok((second, 0, 1)));
    let exact = Entry::new(bits(1), region(8, OP));
    assert!(matches!(
        rig.ni.append(rig.pt, Priority, exact),
        Err(Error::Options { argument: "criteria", .. })
    ));
}

#[test]
fn logical_addresses_match_by_rank() {
    let mut rig = Rig::new();
    let rank = |rank| Criteria { source: Source::logical(Some(Rank(rank))), ..Criteria::ANY };
    let third = rig.append_for(Priority, rank(3), region(8, OP));
    let big = rig.append_for(Priority, rank(1_000_000), region(8, OP));
    for (from, wanted) in [(3, third), (1_000_000, big)] {
        let header = Header { initiator: Process::logical(Rank(from)), ..rig.put(1) };
        assert_eq!(rig.send(header), Ok((wanted, 0, 1)));
    }
    assert_eq!(rig.send(Header { initiator: Process::logical(Rank(4)), ..rig.put(1) }), Err(NiFail::Dropped));
}

#[test]
fn fetching_atomics_have_a_limit_of_their_own() {
    let (op, ty) = (AtomicOp::Sum, Datatype::U8);
    let limits = Limits { max_atomic_size: 16, max_fetch_atomic_size: 8, ..Limits::default() };
    let mut rig = Rig::with(Config { limits, ..Config::default() }, PortalOptions::empty(), 64);
    rig.append(ListKind::Priority, region(64, OP));
    for (operation, length, is_legal) in [
        (Operation::Atomic(op, ty), 16, true),
        (Operation::Atomic(op, ty), 17, false),
        (Operation::FetchAtomic(op, ty), 8, true),
        (Operation::FetchAtomic(op, ty), 9, false),
    ] {
        let taken = rig.send(rig.header(operation, length)).map(|(_, _, mlength)| mlength);
        let wanted = if is_legal { Ok(length) } else { Err(NiFail::OpViolation) };
        assert_eq!(taken, wanted, "{operation:?}");
    }
}

/// Headers that wait are found by criteria with wildcards by each half of their bits and of their source.
#[test]
fn a_search_looks_at_all_bits_that_count() {
    let mut rig = Rig::new();
    rig.append(ListKind::Overflow, region(64, OP | Options::MANAGE_LOCAL));
    let of = |n: u32, bit: u32| n >> bit & 1;
    let bits = |n| u64::from(of(n, 0)) | u64::from(of(n, 1)) << 32;
    let process = |n| Process::physical(Nid(of(n, 2)), Pid(of(n, 3)));
    for n in 0..16 {
        let header = Header { match_bits: bits(n), initiator: process(n), hdr_data: n.into(), ..rig.put(1) };
        rig.send(header).unwrap();
    }
    let _ = rig.events();
    for n in 0..16 {
        let criteria = Criteria { ignore: 1 << 63, ..Criteria::exactly(process(n), bits(n)) };
        let entry = Entry::new(criteria, region(8, OP | Options::USE_ONCE));
        rig.ni.search(rig.pt, &entry, SearchOp::Only).unwrap();
        let found: Vec<_> = rig.events().iter().map(|event| (event.kind, event.hdr_data)).collect();
        assert_eq!(found, [(EventKind::Search, n.into())]);
    }
}

#[test]
#[should_panic(expected = "a delivery of this interface")]
fn a_delivery_of_another_interface_is_told_as_such() {
    let (mut one, mut other) = (Rig::new(), Rig::new());
    for rig in [&mut one, &mut other] {
        rig.append(ListKind::Priority, region(64, OP));
    }
    let delivery = one.begin(one.put(8));
    let _ = other.end(delivery);
}
