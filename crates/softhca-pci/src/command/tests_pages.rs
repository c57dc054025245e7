//! Pages that are asked for, and given back, while the function runs.

use hca_prm::command::eq::DestroyEqIn;
use hca_prm::command::hca::*;
use hca_prm::command::mkey::{CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn};
use hca_prm::command::resource::{AllocPdIn, AllocPdOut};
use hca_prm::*;

use crate::bed::{Answer, Driver, Server, TestEq};
use crate::bus::uar::PAGE;
use crate::function::{FunctionOptions, PortKind};

/// Where pages lie that are lent at run time.
const MORE: u64 = 0xa_0000_0000;
/// Pages of a running function without objects.
const FIRST: usize = 24;
const NO_RES: Answer = Answer::Delivered(CmdStatus::NoRes, Vec::new());

/// A running function whose driver hears of pages, with a protection domain.
fn running() -> (Driver, TestEq, u32) {
    let mut d = Driver::new(&Server::new(), 0, PortKind::InfiniBand);
    d.boot();
    d.uar();
    let eq = d.eq(7, 0, &[EventType::PageRequest]);
    let pd = d.command(&AllocPdIn::new()).unwrap().get(AllocPdOut::PD);
    (d, eq, pd)
}

/// Gives a command by a slot; what went by other slots before keeps its mailboxes.
fn by_slot(d: &mut Driver, slot: u32, input: &[u8], room: usize) -> Answer {
    d.put(slot, input, room);
    d.store(0x18, 1 << slot);
    match d.answer(slot) {
        Answer::Delivered(status, _) if status != CmdStatus::Ok => Answer::Delivered(status, Vec::new()),
        answer => answer,
    }
}

/// A key whose list of pages takes so many pages of the adapter's, with the key itself.
fn key(pd: u32, pages: usize) -> Vec<u8> {
    let mut context = Mkc::new()
        .with(Mkc::PD, pd)
        .with(Mkc::QPN, Mkc::ANY_QPN)
        .with(Mkc::LENGTH64, true)
        .with(Mkc::LR, true);
    context.set_access_mode(AccessMode::Pa);
    let input = CreateMkeyIn::new().with(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY, context);
    let mut bytes = input.as_bytes().to_vec();
    bytes.resize(CreateMkeyIn::SIZE + pages * PAGE as usize - Mkc::SIZE, 0);
    bytes
}

fn index_of(answer: &Answer) -> u32 {
    let Answer::Delivered(CmdStatus::Ok, out) = answer else { panic!("{answer:?}") };
    CreateMkeyOut::from_bytes(out).unwrap().get(CreateMkeyOut::MKEY_INDEX)
}

fn lend(d: &mut Driver, first: u64, count: u64) -> Answer {
    let pages: Vec<u64> = (0..count).map(|i| MORE + (first + i) * PAGE).collect();
    let give = ManagePagesIn::new()
        .with(ManagePagesIn::OP_MOD, ManagePagesMod::AllocationSuccess.code())
        .with(ManagePagesIn::INPUT_NUM_ENTRIES, count as u32);
    let mut input = give.as_bytes().to_vec();
    input.resize(ManagePagesIn::SIZE + pages.len() * pas::ENTRY, 0);
    pas::write(&pages, &mut input[ManagePagesIn::SIZE..]).unwrap();
    by_slot(d, 31, &input, ManagePagesOut::SIZE)
}

/// Pages that the driver was asked for, or (negative) to take, since the last call.
fn asked(d: &Driver, eq: &mut TestEq) -> Vec<i32> {
    let request = |event: Eqe| PagesReqEvent::from_bytes(&event.get(Eqe::EVENT_DATA)).unwrap();
    let pages = |event| request(event).get(PagesReqEvent::NUM_PAGES) as i32;
    std::iter::from_fn(|| d.event(eq)).map(pages).collect()
}

#[test]
fn a_command_for_which_there_are_no_pages_waits_for_them_while_others_are_done() {
    let (mut d, mut eq, pd) = running();
    let small = index_of(&by_slot(&mut d, 1, &key(pd, 8), CreateMkeyOut::SIZE));
    assert_eq!(asked(&d, &mut eq).len(), 0, "it has room in the first pages");
    assert_eq!(by_slot(&mut d, 3, &key(pd, 20), CreateMkeyOut::SIZE), Answer::Lost);
    assert_eq!(by_slot(&mut d, 4, &key(pd, 20), CreateMkeyOut::SIZE), Answer::Lost);
    assert_eq!(asked(&d, &mut eq), [32], "20 in multiples of 16, once");
    assert!(matches!(by_slot(&mut d, 5, NopIn::new().as_bytes(), 16), Answer::Delivered(CmdStatus::Ok, _)));
    assert!(matches!(lend(&mut d, 0, 16), Answer::Delivered(CmdStatus::Ok, _)));
    assert_eq!((d.answer(3), asked(&d, &mut eq)), (Answer::Lost, vec![]), "the others are still to come");
    assert!(matches!(lend(&mut d, 16, 16), Answer::Delivered(CmdStatus::Ok, _)));
    let first = index_of(&d.answer(3));
    assert_eq!((d.answer(4), asked(&d, &mut eq)), (Answer::Lost, vec![16]), "of 20 it lacks 8");
    assert!(matches!(lend(&mut d, 32, 16), Answer::Delivered(CmdStatus::Ok, _)));
    let second = index_of(&d.answer(4));
    assert_eq!(d.take_back(768).len(), 8, "48 of 56 are needed");
    for (index, offered) in [(first, vec![-16]), (second, vec![]), (small, vec![])] {
        let gone = DestroyMkeyIn::new().with(DestroyMkeyIn::MKEY_INDEX, index);
        d.command(&gone).unwrap();
        assert_eq!(asked(&d, &mut eq), offered, "offered once, until the driver has answered");
    }
    assert_eq!(d.take_back(16).len(), 16);
    assert_eq!(asked(&d, &mut eq), [-24], "what became free meanwhile");
    assert_eq!(d.take_back(24).len(), 24);
    assert_eq!((asked(&d, &mut eq), d.shut()), (vec![], FIRST));
}

#[test]
fn a_driver_that_has_no_pages_is_refused_the_object_and_asked_again_the_next_time() {
    let (mut d, mut eq, pd) = running();
    for round in 0..2 {
        assert_eq!(by_slot(&mut d, 3, &key(pd, 9), CreateMkeyOut::SIZE), Answer::Lost, "{round}");
        assert_eq!(asked(&d, &mut eq), [16]);
        let none = ManagePagesIn::new().with(ManagePagesIn::OP_MOD, ManagePagesMod::AllocationFail.code());
        by_slot(&mut d, 31, none.as_bytes(), ManagePagesOut::SIZE);
        assert!(matches!(d.answer(3), Answer::Delivered(CmdStatus::NoRes, _)));
    }
    // What no pages could hold any more is refused at once.
    d.function.objects.listed_bytes += 65_501 * PAGE as usize;
    assert_eq!(by_slot(&mut d, 3, &key(pd, 20), CreateMkeyOut::SIZE), NO_RES);
    assert_eq!(asked(&d, &mut eq).len(), 0, "it holds 65,536 pages at most");
}

#[test]
fn who_does_not_hear_of_pages_or_stops_to_hear_of_them_is_not_waited_for() {
    let (mut d, mut eq, pd) = running();
    assert_eq!(by_slot(&mut d, 3, &key(pd, 9), CreateMkeyOut::SIZE), Answer::Lost);
    assert_eq!(asked(&d, &mut eq), [16]);
    let gone = DestroyEqIn::new().with(DestroyEqIn::EQ_NUMBER, eq.eqn);
    by_slot(&mut d, 4, gone.as_bytes(), 16);
    index_of(&d.answer(3));
    index_of(&by_slot(&mut d, 3, &key(pd, 100), CreateMkeyOut::SIZE));
    // The next queue hears of what is missing from then on.
    let mut eq = d.eq(7, 0, &[EventType::PageRequest]);
    assert_eq!(by_slot(&mut d, 3, &key(pd, 1), CreateMkeyOut::SIZE), Answer::Lost);
    assert_eq!(asked(&d, &mut eq), [112]);
    // Stopping it answers who waits.
    by_slot(&mut d, 4, TeardownHcaIn::new().as_bytes(), 16);
    assert!(matches!(d.answer(3), Answer::Delivered(CmdStatus::BadSysState, _)));
    assert_eq!(d.take_back(100).len(), FIRST);
}

/// One page for each thing, which comes before it and goes with it.
#[test]
fn a_function_without_spare_pages_asks_at_each_command_that_makes_something() {
    let options = FunctionOptions { no_spare_pages: true, ..FunctionOptions::default() };
    let mut d = Driver::with(&Server::new(), options);
    d.boot();
    d.uar();
    let domain = || AllocPdIn::new().as_bytes().to_vec();
    // Nobody could be asked.
    assert_eq!(by_slot(&mut d, 1, &domain(), AllocPdOut::SIZE), NO_RES);
    let mut eq = d.eq(7, 0, &[EventType::PageRequest]);
    assert_eq!(by_slot(&mut d, 1, &domain(), AllocPdOut::SIZE), Answer::Lost);
    assert_eq!(by_slot(&mut d, 2, &domain(), AllocPdOut::SIZE), Answer::Lost);
    assert_eq!(asked(&d, &mut eq), [1], "for one at a time");
    assert!(matches!(lend(&mut d, 0, 1), Answer::Delivered(CmdStatus::Ok, _)));
    let Answer::Delivered(CmdStatus::Ok, out) = d.answer(1) else { panic!("there is a page for it") };
    let pd = AllocPdOut::from_bytes(&out).unwrap().get(AllocPdOut::PD);
    assert_eq!((d.answer(2), asked(&d, &mut eq)), (Answer::Lost, vec![1]));
    assert!(matches!(lend(&mut d, 1, 1), Answer::Delivered(CmdStatus::Ok, _)));
    assert!(matches!(d.answer(2), Answer::Delivered(CmdStatus::Ok, _)));
    // A key, and the pages of its list.
    assert_eq!(by_slot(&mut d, 3, &key(pd, 3), CreateMkeyOut::SIZE), Answer::Lost);
    assert_eq!(asked(&d, &mut eq), [4]);
    assert!(matches!(lend(&mut d, 2, 4), Answer::Delivered(CmdStatus::Ok, _)));
    let index = index_of(&d.answer(3));
    d.command(&DestroyMkeyIn::new().with(DestroyMkeyIn::MKEY_INDEX, index)).unwrap();
    assert_eq!(asked(&d, &mut eq), [-4]);
    assert_eq!(d.take_back(768).len(), 4);
    // What is stopped has nothing.
    d.command(&TeardownHcaIn::new()).unwrap();
    assert_eq!(d.take_back(768).len(), 18);
}
