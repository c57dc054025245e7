//! Released objects: each is reported once, when its memory belongs to the program again; until then its handle is
//! valid.

mod rig;

use ListKind::{Overflow, Priority};
use hca_matching::*;
use rig::*;

fn rig(version: Version) -> Rig {
    Rig::with(Config { version, reports_released: true, ..Config::default() }, PortalOptions::empty(), 64)
}

fn released(rig: &mut Rig) -> Vec<Released> {
    std::iter::from_fn(|| rig.ni.released()).collect()
}

const ACK: Response =
    Response { kind: ResponseKind::Ack, fail: NiFail::Ok, mlength: 8, offset: 0, list: ListKind::Priority };

#[test]
fn a_used_up_entry_is_released_when_nothing_on_it_is_under_way() {
    let mut rig = rig(Version::V4);
    let entry = rig.append(Priority, Region { threshold: Threshold::Count(2), ..region(64, OP) });
    let (first, second) = (rig.begin(rig.put(8)), rig.begin(rig.put(8)));
    let _ = rig.end(second);
    assert_eq!(released(&mut rig), []);
    assert!(rig.ni.has_entry(entry), "its memory is written to");
    let _ = rig.end(first);
    assert_eq!(released(&mut rig), [Released::Entry(entry)]);
    assert!(!rig.ni.has_entry(entry));
}

#[test]
fn a_used_up_entry_of_the_overflow_list_is_released_with_the_last_header_whose_bytes_it_holds() {
    let mut rig = rig(Version::V4);
    let holder = rig.append(Overflow, region(64, OP | Options::USE_ONCE));
    rig.send(rig.put(8)).unwrap();
    assert_eq!(released(&mut rig), []);
    assert!(rig.ni.has_entry(holder), "a header waits");
    let finder = rig.append(Priority, region(64, OP | Options::USE_ONCE));
    assert_eq!(released(&mut rig), [Released::Entry(finder), Released::Entry(holder)]);
    assert!(!rig.ni.has_entry(finder) && !rig.ni.has_entry(holder));
}

#[test]
fn an_entry_that_found_bytes_still_coming_is_released_when_they_are_there() {
    let mut rig = rig(Version::V4);
    let holder = rig.append(Overflow, region(64, OP));
    let delivery = rig.begin(rig.put(8));
    let finder = rig.append(Priority, region(64, OP | Options::USE_ONCE));
    assert!(rig.ni.has_entry(finder));
    assert_eq!(released(&mut rig), []);
    let _ = rig.end(delivery);
    assert_eq!(released(&mut rig), [Released::Entry(finder)]);
    assert!(rig.ni.has_entry(holder));
}

#[test]
fn what_is_unlinked_is_released() {
    let mut rig = rig(Version::V3);
    let bare =
        |rig: &mut Rig, unlink| rig.ni.append(rig.pt, Priority, Entry::bare(Criteria::ANY, unlink)).unwrap();
    let (first, second, third) = (bare(&mut rig, true), bare(&mut rig, true), bare(&mut rig, false));
    let mds = [first, second, third].map(|entry| rig.ni.attach(entry, region(8, OP)).unwrap());
    rig.ni.unlink(first).unwrap();
    assert_eq!(released(&mut rig), [Released::Md(mds[0]), Released::Entry(first)]);
    rig.ni.md_unlink(mds[1]).unwrap();
    assert_eq!(released(&mut rig), [Released::Md(mds[1]), Released::Entry(second)]);
    rig.ni.md_unlink(mds[2]).unwrap();
    assert_eq!(released(&mut rig), [Released::Md(mds[2])]);
    assert!(rig.ni.has_entry(third) && !mds.iter().any(|&md| rig.ni.has_md(md)));
}

#[test]
fn an_attached_descriptor_that_is_used_up_is_released_with_or_without_its_entry() {
    for unlink in [true, false] {
        let mut rig = rig(Version::V3);
        let entry = rig.ni.append(rig.pt, Priority, Entry::bare(Criteria::ANY, unlink)).unwrap();
        let md = rig.ni.attach(entry, Region { threshold: Threshold::Count(1), ..region(8, OP) }).unwrap();
        rig.send(rig.put(8)).unwrap();
        let gone = [Released::Md(md), Released::Entry(entry)];
        assert_eq!(released(&mut rig), gone[..1 + usize::from(unlink)]);
        assert_eq!((rig.ni.has_md(md), rig.ni.has_entry(entry)), (false, !unlink));
    }
}

#[test]
fn a_bound_descriptor_is_released_with_its_last_completion_or_by_its_program() {
    let mut rig = rig(Version::V3);
    let region = Region { threshold: Threshold::Count(2), ..region(8, OP) };
    let (ends, stays) = (rig.ni.md_bind_region(region).unwrap(), rig.ni.md_bind_region(region).unwrap());
    let transfer = rig.outgoing_put(ends);
    let flight = rig.ni.begin(&transfer).unwrap();
    rig.ni.sent(&flight, NiFail::Ok);
    assert!(rig.ni.has_md(ends) && released(&mut rig).is_empty());
    rig.ni.answered(&flight, &ACK);
    assert_eq!(released(&mut rig), [Released::Md(ends)]);
    assert!(!rig.ni.has_md(ends) && rig.ni.has_md(stays));
    rig.ni.md_unlink(stays).unwrap();
    assert_eq!(released(&mut rig), [Released::Md(stays)]);
}

#[test]
fn nothing_is_kept_for_who_does_not_ask_what_was_released() {
    let mut rig = Rig::new();
    rig.append(Priority, region(8, OP | Options::USE_ONCE));
    rig.send(rig.put(8)).unwrap();
    assert_eq!(rig.ni.released(), None);
}

#[test]
fn handles_of_a_kind_have_small_indices_that_are_used_again() {
    let mut rig = rig(Version::V4);
    let entries = [0, 1, 2].map(|_| rig.append(Priority, region(8, OP)));
    assert_eq!(entries.map(EntryHandle::index), [0, 1, 2]);
    rig.ni.unlink(entries[1]).unwrap();
    let again = rig.append(Priority, region(8, OP));
    assert_eq!(again.index(), 1);
    assert_ne!(again, entries[1]);
    let md = rig.ni.md_bind(Md::default()).unwrap();
    let ct = rig.ni.ct_alloc().unwrap();
    assert_eq!((md.index(), ct.index(), rig.eq.index()), (0, 0, 0));
}

#[test]
fn lengths_of_queues_and_what_fired_can_be_asked_without_taking() {
    let mut rig = rig(Version::V4);
    rig.append(Priority, region(64, OP));
    (0..3).for_each(|_| assert!(rig.send(rig.put(8)).is_ok()));
    assert_eq!(rig.ni.eq_len(rig.eq), Ok(3));
    assert!(rig.event().is_some());
    assert_eq!(rig.ni.eq_len(rig.eq), Ok(2));
    assert_eq!(rig.ni.eq_len(EqHandle::from_bits(0)), Err(Error::Handle { argument: "eq" }));
    let ct = rig.ni.ct_alloc().unwrap();
    let md = rig.ni.md_bind(Md { length: 8, ..Md::default() }).unwrap();
    assert!(rig.ni.fired_is_empty());
    let transfer = rig.outgoing_put(md);
    rig.ni.trigger(ct, 0, Triggered::Transfer(transfer)).unwrap();
    assert!(!rig.ni.fired_is_empty());
    assert_eq!(rig.ni.fired(), Some(transfer));
    assert!(rig.ni.fired_is_empty());
}
