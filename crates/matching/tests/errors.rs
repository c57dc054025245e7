//! Bad arguments: each gets an error that names it, and nothing changes.

mod rig;

use ListKind::{Overflow, Priority};
use hca_matching::atomic::{AtomicOp, Datatype};
use hca_matching::*;
use rig::*;

#[test]
fn portals_are_asked_for_and_refused() {
    let limits = Limits { max_pt_index: 1, ..Limits::default() };
    let mut ni = Interface::new(Config { limits, ..Config::default() });
    let none = PortalOptions::empty();
    assert_eq!(ni.pt_alloc(PortalOptions::FLOWCTRL, None, None), Err(Error::PtEqNeeded));
    assert_eq!(ni.pt_alloc(none, None, Some(2)), Err(Error::PtIndex { pt_index: 2 }));
    assert_eq!(ni.pt_alloc(none, None, Some(1)), Ok(1));
    assert_eq!(ni.pt_alloc(none, None, Some(1)), Err(Error::PtInUse { pt_index: 1 }));
    assert_eq!(ni.pt_alloc(none, None, None), Ok(0));
    assert_eq!(ni.pt_alloc(none, None, None), Err(Error::PtFull { limit: 2 }));
    assert_eq!(ni.pt_free(1), Ok(()));
    assert_eq!(ni.pt_free(1), Err(Error::PtIndex { pt_index: 1 }));
    assert_eq!(ni.pt_enable(1), Err(Error::PtIndex { pt_index: 1 }));
    assert_eq!(ni.pt_disable(u32::MAX), Err(Error::PtIndex { pt_index: u32::MAX }));
    assert_eq!(ni.pt_is_enabled(7), Err(Error::PtIndex { pt_index: 7 }));
    let stale = ni.eq_alloc(1).unwrap();
    ni.eq_free(stale).unwrap();
    assert_eq!(ni.pt_alloc(none, Some(stale), None), Err(Error::Handle { argument: "eq" }));
}

#[test]
fn a_portal_with_entries_or_waiting_headers_is_in_use() {
    let mut rig = Rig::new();
    let entry = rig.append(Overflow, region(8, OP));
    assert_eq!(rig.ni.pt_free(rig.pt), Err(Error::InUse { argument: "pt_index", pending: 1 }));
    rig.send(rig.put(8)).unwrap();
    assert_eq!(rig.ni.pt_free(rig.pt), Err(Error::InUse { argument: "pt_index", pending: 2 }));
    let delivery = rig.begin(rig.put(8));
    assert_eq!(rig.ni.pt_free(rig.pt), Err(Error::InUse { argument: "pt_index", pending: 4 }));
    let _ = rig.end(delivery);
    rig.ni.search(rig.pt, &Entry::new(Criteria::ANY, region(8, OP)), SearchOp::Delete).unwrap();
    rig.ni.unlink(entry).unwrap();
    assert_eq!(rig.ni.pt_free(rig.pt), Ok(()));
}

#[test]
fn flow_control_gives_the_place_in_its_queue_back() {
    let mut rig = Rig::flow_control(1);
    rig.ni.pt_free(rig.pt).unwrap();
    let pt = rig.ni.pt_alloc(PortalOptions::empty(), Some(rig.eq), None).unwrap();
    for _ in 0..2 {
        rig.ni.append(pt, Priority, Entry::new(Criteria::ANY, region(8, OP))).unwrap();
    }
    assert!(rig.ni.eq_get(rig.eq).unwrap().unwrap().dropped, "room for one event again");
    assert_eq!(rig.event(), None);
}

#[test]
fn bad_handles_are_named() {
    let mut rig = Rig::new();
    let eq = EqHandle::from_bits(0);
    let ct = CtHandle::from_bits(u64::MAX);
    let md = MdHandle::from_bits(123);
    let entry = EntryHandle::from_bits(1 << 24);
    let bad = |argument| Error::Handle { argument };
    let ni = &mut rig.ni;
    assert_eq!(ni.eq_get(eq), Err(bad("eq")));
    assert_eq!(ni.eq_free(eq), Err(bad("eq")));
    assert_eq!(ni.eq_last_md(eq), Err(bad("eq")));
    assert_eq!(ni.eq_poll(&[eq], 0), Err(bad("eqs")));
    assert_eq!(ni.ct_get(ct), Err(bad("ct")));
    assert_eq!(ni.ct_set(ct, Count::default()), Err(bad("ct")));
    assert_eq!(ni.ct_inc(ct, Count::default()), Err(bad("ct")));
    assert_eq!(ni.ct_free(ct), Err(bad("ct")));
    assert_eq!(ni.ct_cancel_triggered(ct), Err(bad("ct")));
    assert_eq!(ni.ct_poll(&[(ct, 0)], 0), Err(bad("cts")));
    assert_eq!(ni.trigger(ct, 0, Triggered::CtSet(ct, Count::default())), Err(bad("trig_ct")));
    let good = ni.ct_alloc().unwrap();
    assert_eq!(ni.trigger(good, 0, Triggered::CtSet(ct, Count::default())), Err(bad("ct")));
    assert_eq!(ni.unlink(entry), Err(bad("entry")));
    assert_eq!(
        ni.insert(Place::Before(entry), Entry::new(Criteria::ANY, Region::default())),
        Err(bad("place"))
    );
    assert_eq!(ni.md_unlink(md), Err(bad("md")));
    assert_eq!(ni.md_region(md), Err(bad("md")));
    assert_eq!(ni.md_update(md, None, None), Err(bad("md")));
    assert_eq!(ni.md_bind(Md { eq: Some(eq), ..Md::default() }), Err(bad("eq")));
    assert_eq!(ni.md_bind(Md { ct: Some(ct), ..Md::default() }), Err(bad("ct")));
    let with = |region| Entry::new(Criteria::ANY, region);
    assert_eq!(
        ni.append(rig.pt, Priority, with(Region { eq: Some(eq), ..Region::default() })),
        Err(bad("eq"))
    );
    assert_eq!(
        ni.append(rig.pt, Priority, with(Region { ct: Some(ct), ..Region::default() })),
        Err(bad("ct"))
    );
    assert_eq!(ni.append(9, Priority, with(Region::default())), Err(Error::PtIndex { pt_index: 9 }));
    assert_eq!(ni.search(9, &with(Region::default()), SearchOp::Only), Err(Error::PtIndex { pt_index: 9 }));
}

#[test]
fn handles_of_what_is_gone_do_not_name_what_came_after() {
    let mut rig = Rig::new();
    let old = rig.append(Priority, region(8, OP));
    rig.ni.unlink(old).unwrap();
    let new = rig.append(Priority, region(8, OP));
    assert_ne!(old, new);
    assert_eq!(rig.ni.unlink(old), Err(Error::Handle { argument: "entry" }));
    assert_eq!(rig.ni.unlink(new), Ok(()));
    let old = rig.ni.ct_alloc().unwrap();
    rig.ni.ct_free(old).unwrap();
    let new = rig.ni.ct_alloc().unwrap();
    assert_eq!(
        (rig.ni.ct_get(old), rig.ni.ct_get(new)),
        (Err(Error::Handle { argument: "ct" }), Ok(Count::default()))
    );
    let of_queue = Region { eq: Some(rig.eq), ..region(8, OP) };
    rig.append(Priority, of_queue);
    rig.ni.eq_free(rig.eq).unwrap();
    let other = rig.ni.eq_alloc(8).unwrap();
    rig.send(rig.put(8)).unwrap();
    assert_eq!(rig.ni.eq_get(other), Ok(None), "events for a queue that is gone go nowhere");
}

#[test]
fn full_limits_are_told_with_their_numbers() {
    let limits = Limits {
        max_entries: 3,
        max_list_size: 2,
        max_mds: 1,
        max_cts: 1,
        max_eqs: 1,
        max_eq_events: 8,
        ..Limits::default()
    };
    let mut rig = Rig::with(Config { limits, ..Config::default() }, PortalOptions::empty(), 8);
    assert_eq!(rig.ni.eq_alloc(9), Err(Error::TooLarge { argument: "count", value: 9, limit: 8 }));
    assert_eq!(rig.ni.eq_alloc(8), Err(Error::NoSpace { what: "event queues", limit: 1 }));
    rig.ni.ct_alloc().unwrap();
    assert_eq!(rig.ni.ct_alloc(), Err(Error::NoSpace { what: "counting events", limit: 1 }));
    rig.ni.md_bind(Md::default()).unwrap();
    assert_eq!(rig.ni.md_bind(Md::default()), Err(Error::NoSpace { what: "memory descriptors", limit: 1 }));
    let entry = Entry::new(Criteria::ANY, Region::default());
    let mut append = |list| rig.ni.append(rig.pt, list, entry).map(drop);
    assert_eq!([append(Priority), append(Priority)], [Ok(()), Ok(())]);
    assert_eq!(append(Priority), Err(Error::ListTooLong { limit: 2 }));
    assert_eq!(append(Overflow), Ok(()));
    assert_eq!(append(Overflow), Err(Error::NoSpace { what: "entries", limit: 3 }));
}

#[test]
fn limits_are_granted_as_asked_as_far_as_they_go() {
    let asked = Limits { max_entries: u32::MAX, max_cts: 7, ..Limits::default() };
    let ni = Interface::new(Config { limits: asked, ..Config::default() });
    assert_eq!(*ni.limits(), Limits { max_entries: Limits::MAX.max_entries, ..asked });
    assert_eq!(*ni.limits(), Limits::grant(&asked));
}

#[test]
fn an_entry_without_memory_is_refused() {
    let mut rig = Rig::new();
    let bare = rig.ni.append(rig.pt, Priority, Entry::bare(Criteria::ANY, true));
    assert!(matches!(bare, Err(Error::Options { argument: "region", .. })));
}

#[test]
fn an_interface_of_3_3_has_no_overflow_list() {
    let mut rig = Rig::v3();
    for entry in [Entry::bare(Criteria::ANY, true), Entry::new(Criteria::ANY, region(8, OP))] {
        let refused = rig.ni.append(rig.pt, Overflow, entry);
        assert!(matches!(refused, Err(Error::Options { argument: "list", .. })));
    }
}

#[test]
fn memory_is_attached_in_3_3_only() {
    let mut rig = Rig::new();
    // An entry of 4.3 that is told to stay without its memory stays without any.
    let once = Region { threshold: Threshold::Count(1), ..region(8, OP) };
    let entry = Entry { unlink: false, ..Entry::new(Criteria::ANY, once) };
    let entry = rig.ni.append(rig.pt, Priority, entry).unwrap();
    rig.send(rig.put(8)).unwrap();
    assert!(matches!(rig.ni.attach(entry, once), Err(Error::Options { argument: "entry", .. })));
    let mut rig = Rig::v3();
    let stale = EntryHandle::from_bits(1 << 24);
    assert_eq!(rig.ni.attach(stale, once), Err(Error::Handle { argument: "entry" }));
}

#[test]
fn messages_of_an_initiator_are_checked_before_they_leave() {
    let limits =
        Limits { max_msg_size: 48, max_atomic_size: 32, max_fetch_atomic_size: 16, ..Limits::default() };
    let mut ni = Interface::new(Config { limits, ..Config::default() });
    let md = ni.md_bind(Md { length: 64, ..Md::default() }).unwrap();
    let sum = Operation::Atomic(AtomicOp::Sum, Datatype::U64);
    let fetch = Operation::FetchAtomic(AtomicOp::Sum, Datatype::U64);
    let swap = Operation::Swap(AtomicOp::Cswap, Datatype::U64);
    let with = |operation, local_offset, length| Transfer {
        operation,
        md,
        local_offset,
        reply: None,
        length,
        ack: AckRequest::None,
        target: Process::default(),
        pt_index: 0,
        ac_index: 0,
        match_bits: 0,
        remote_offset: 0,
        user_ptr: 0,
        hdr_data: 0,
        operand: [0; 32],
    };
    let too_large = |value, limit| Error::TooLarge { argument: "length", value, limit };
    let range = |argument, offset, length| Error::Range { argument, offset, length, available: 64 };
    let atomic = |op, ty, length| Error::Atomic { op, ty, length };
    let replying = |transfer: Transfer, md, offset| Transfer { reply: Some((md, offset)), ..transfer };
    for (transfer, error) in [
        (with(Operation::Put, 0, 49), too_large(49, 48)),
        (with(sum, 0, 40), too_large(40, 32)),
        (with(fetch, 0, 24), too_large(24, 16)),
        (with(Operation::Put, 60, 8), range("md", 60, 8)),
        (with(Operation::Get, u64::MAX, 8), range("md", u64::MAX, 8)),
        (with(sum, 0, 12), atomic(AtomicOp::Sum, Datatype::U64, 12)),
        (with(swap, 0, 16), atomic(AtomicOp::Cswap, Datatype::U64, 16)),
        (
            with(Operation::Atomic(AtomicOp::Band, Datatype::F32), 0, 4),
            atomic(AtomicOp::Band, Datatype::F32, 4),
        ),
        (
            with(Operation::Atomic(AtomicOp::Swap, Datatype::U8), 0, 1),
            atomic(AtomicOp::Swap, Datatype::U8, 1),
        ),
        (with(fetch, 0, 8), Error::Handle { argument: "reply" }),
        (replying(with(fetch, 0, 8), MdHandle::from_bits(5), 0), Error::Handle { argument: "reply" }),
        (replying(with(fetch, 0, 8), md, 57), range("reply", 57, 8)),
        (
            Transfer { md: MdHandle::from_bits(5), ..with(Operation::Put, 0, 8) },
            Error::Handle { argument: "md" },
        ),
    ] {
        assert_eq!(ni.begin(&transfer), Err(error));
        let ct = ni.ct_alloc().unwrap();
        assert_eq!(ni.trigger(ct, 0, Triggered::Transfer(transfer)), Err(error), "and before they wait");
    }
    assert_eq!(ni.md_unlink(md), Ok(()), "none is under way");
}

#[test]
#[should_panic = "a delivery of this interface"]
fn a_delivery_goes_back_to_where_it_came_from() {
    let (mut rig, mut other) = (Rig::new(), Rig::new());
    rig.append(Priority, region(8, OP));
    let delivery = rig.begin(rig.put(8));
    let _ = other.end(delivery);
}
