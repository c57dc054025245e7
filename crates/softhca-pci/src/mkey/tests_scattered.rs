//! Keys of pages that lie anywhere.

use std::os::unix::fs::FileExt;

use hca_prm::command::hca::{QueryIssiIn, QueryIssiOut};
use hca_prm::command::mkey::{CreateMkeyIn, CreateMkeyOut};
use hca_prm::{AccessMode, CmdStatus, CqeOpcode, CqeSyndrome, DataSeg, Mkc, RaddrSeg, WqeOpcode};
use proptest::prelude::*;

use crate::bed::{Answer, BASE, Client, End, LEN, PAGE, Pair, QpShape, Wqe, sealed};
use crate::qp::tests::{opcode, syndrome};

/// Where the key's bytes begin for its users.
const START: u64 = 0x77_0000_0123;

/// A key of pages of the client's in this order, from byte 0x123 of the first one on.
struct Key {
    key: u32,
    pages: Vec<u64>,
    len: u64,
}

impl Key {
    fn new(client: &mut Client, order: &[u64]) -> Self {
        let room = client.alloc(order.len() as u64 * PAGE, PAGE);
        let pages: Vec<u64> = order.iter().map(|n| room + n * PAGE).collect();
        let len = pages.len() as u64 * PAGE - 0x200;
        let key = client.try_mr(&pages, START, len, |context| context).unwrap();
        Self { key, pages, len }
    }
    fn place(&self, at: u64) -> u64 {
        let at = at + START % PAGE;
        self.pages[(at / PAGE) as usize] + at % PAGE
    }
    fn read(&self, client: &Client, at: u64, len: u64) -> Vec<u8> {
        (at..at + len).flat_map(|at| client.read(self.place(at), 1)).collect()
    }
    fn write(&self, client: &Client, at: u64, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            client.write(self.place(at), &[*byte]);
        }
    }
    fn seg(&self, at: u64, len: u64) -> DataSeg {
        DataSeg::pointer(len as u32, self.key, START + at)
    }
    fn remote(&self, at: u64) -> RaddrSeg {
        RaddrSeg::new().with(RaddrSeg::RADDR, START + at).with(RaddrSeg::RKEY, self.key)
    }
}

fn done(p: &mut Pair, wqe: &Wqe) -> CqeOpcode {
    p.a.post(wqe);
    opcode(&p.sent())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_operation_reaches_scattered_pages_on_both_sides_as_if_they_were_in_one_piece(
        orders in (Just((0..6_u64).collect::<Vec<_>>()).prop_shuffle(), Just((0..6_u64).collect::<Vec<_>>()).prop_shuffle()),
        (from, to) in (0_u64..8_000, 0_u64..8_000),
        len in 1_u64..16_000,
    ) {
        let mut p = Pair::new(QpShape::default());
        let (a, b) = (Key::new(&mut p.a.client, &orders.0), Key::new(&mut p.b.client, &orders.1));
        let text: Vec<u8> = (0..len).map(|i| (i * 7 / 3) as u8).collect();
        a.write(&p.a.client, from, &text);
        prop_assert_eq!(
            done(&mut p, &Wqe::new(WqeOpcode::RdmaWrite).to(b.remote(to)).seg(a.seg(from, len))),
            CqeOpcode::Req
        );
        prop_assert_eq!(&b.read(&p.b.client, to, len), &text);
        // Back to another place, by a READ, and there again by a SEND.
        let back = Wqe::new(WqeOpcode::RdmaRead).to(b.remote(to)).seg(a.seg(to, len));
        prop_assert_eq!(done(&mut p, &back), CqeOpcode::Req);
        prop_assert_eq!(&a.read(&p.a.client, to, len), &text);
        p.b.client.post_recv(&mut p.b.qp, &[b.seg(from, len)]);
        prop_assert_eq!(done(&mut p, &Wqe::new(WqeOpcode::Send).seg(a.seg(to, len))), CqeOpcode::Req);
        p.received();
        prop_assert_eq!(&b.read(&p.b.client, from, len), &text);
    }
}

#[test]
fn the_ends_of_a_key_of_scattered_pages_are_its_ends() {
    let ends = |p: &mut Pair| (Key::new(&mut p.b.client, &[3, 1, 2, 0]), p.a.mr.seg(0, 8192));
    let mut p = Pair::new(QpShape::default());
    let (b, mine) = ends(&mut p);
    let last = b.len - 8192;
    assert_eq!(done(&mut p, &Wqe::new(WqeOpcode::RdmaWrite).to(b.remote(last)).seg(mine)), CqeOpcode::Req);
    p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(b.remote(last + 1)).seg(mine));
    assert_eq!(syndrome(&p.sent()), CqeSyndrome::RemoteAccessErr);
    // What would cut a range is refused, and nothing goes.
    let mut p = Pair::new(QpShape::default());
    let (b, mine) = ends(&mut p);
    assert!(p.b.client.function.dma_unmap(BASE, LEN - PAGE).is_err());
    assert_eq!(done(&mut p, &Wqe::new(WqeOpcode::RdmaWrite).to(b.remote(0)).seg(mine)), CqeOpcode::Req);
    // A range that goes takes it along, and so does a reset.
    for reset in [false, true] {
        let mut p = Pair::new(QpShape::default());
        let (b, mine) = ends(&mut p);
        if reset {
            p.b.client.function.reset();
        } else {
            p.b.client.function.release_memory(BASE, LEN);
        }
        p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(b.remote(0)).seg(mine));
        assert_ne!(opcode(&p.sent()), CqeOpcode::Req);
    }
}

/// Pages of half a gibibyte.
const PAGES: u64 = 128 << 10;

/// A key of half a gibibyte, whose pages lie in the other order in memory. Its file is mapped in pieces of so many pages,
/// in this order or the other one; a part that goes takes the key along, and no other one.
fn half_a_gibibyte(piece: u64, forwards: bool, part: u64) {
    let mut p = Pair::new(QpShape::default());
    let End { client, .. } = &mut p.a;
    // As one of eight functions.
    client.function.set_part(crate::guest::Part::of(8, 16 << 30));
    let (more, file) = (BASE + LEN, sealed(PAGES * PAGE));
    for page in (0..PAGES).step_by(piece as usize) {
        let copy = file.try_clone().unwrap().into();
        let offset = if forwards { page } else { PAGES - piece - page } * PAGE;
        client
            .function
            .dma_map(more + page * PAGE, piece * PAGE, (true, true), Some((copy, offset)))
            .unwrap();
    }
    let pages = (0..PAGES).map(|n| more + if forwards { PAGES - 1 - n } else { n } * PAGE);
    let key = client.try_mr(&pages.collect::<Vec<_>>(), more, PAGES * PAGE, |context| context).unwrap();
    let beside = client.mr(PAGE);
    let seg = DataSeg::pointer(8, key, more + PAGE - 4);
    file.write_all_at(b"last", PAGES * PAGE - 4).unwrap();
    file.write_all_at(b"next", (PAGES - 2) * PAGE).unwrap();
    let to = p.b.mr.remote(0);
    let write = |seg| Wqe::new(WqeOpcode::RdmaWrite).to(to).seg(seg);
    assert_eq!(done(&mut p, &write(seg)), CqeOpcode::Req);
    assert_eq!(p.b.bytes(0, 8), b"lastnext");
    p.a.client.function.dma_unmap(more + part * PAGE, piece * PAGE).unwrap();
    assert_eq!(done(&mut p, &write(beside.seg(0, 8))), CqeOpcode::Req, "other keys stay");
    p.a.post(&write(seg));
    assert_eq!(syndrome(&p.sent()), CqeSyndrome::LocalProtErr);
}

#[test]
fn half_a_gibibyte_of_scattered_pages_takes_no_mappings_and_its_range_takes_it_along() {
    half_a_gibibyte(PAGES, true, 0);
}

/// As an IOMMU has them: side by side for the function.
#[test]
fn half_a_gibibyte_that_is_mapped_page_by_page_is_one_key_and_any_page_that_goes_takes_it_along() {
    half_a_gibibyte(1, false, 70_000);
}

/// A client with as many pages as are looked up in five looks, in a range of their own, and the command that makes a key of
/// them in the other order.
fn long_key() -> (Pair, Vec<u8>) {
    const PAGES: u64 = 40 << 10;
    let mut p = Pair::new(QpShape::default());
    let End { client, .. } = &mut p.a;
    let (more, file) = (BASE + LEN, sealed(PAGES * PAGE));
    client.function.dma_map(more, PAGES * PAGE, (true, true), Some((file.into(), 0))).unwrap();
    let mut context = Mkc::new()
        .with(Mkc::PD, client.pd)
        .with(Mkc::LR, true)
        .with(Mkc::LW, true)
        .with(Mkc::QPN, Mkc::ANY_QPN)
        .with(Mkc::START_ADDR, more)
        .with(Mkc::LEN, PAGES * PAGE)
        .with(Mkc::LOG_PAGE_SIZE, 12);
    context.set_access_mode(AccessMode::Mtt);
    let command = CreateMkeyIn::new()
        .with(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, (PAGES / 2) as u32)
        .with(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY, context);
    let pages = (0..PAGES).rev().flat_map(|n| (more + n * PAGE).to_be_bytes());
    let input = command.as_bytes().iter().copied().chain(pages).collect();
    (p, input)
}

#[test]
fn a_key_of_many_pages_is_made_bit_by_bit_and_other_commands_wait() {
    let (mut p, input) = long_key();
    let driver = &mut p.a.client;
    assert_eq!(driver.give(&input, CreateMkeyOut::SIZE), Answer::Lost);
    let query = QueryIssiIn::new();
    driver.put(1, query.as_bytes(), QueryIssiOut::SIZE);
    driver.store(0x18, 2);
    // A doorbell is as good as a look here.
    let mut looks = 2;
    while driver.answer(0) == Answer::Lost {
        assert_eq!(driver.answer(1), Answer::Lost);
        assert!(driver.function.look());
        looks += 1;
    }
    // The list is read in one look, and a fifth of it looked up in each.
    assert_eq!(looks, 5);
    assert!(matches!(driver.answer(0), Answer::Delivered(CmdStatus::Ok, _)));
    driver.function.look();
    assert!(matches!(driver.answer(1), Answer::Delivered(CmdStatus::Ok, _)));
    assert!(!driver.function.look_at_commands());
}

#[test]
fn memory_that_goes_while_a_key_of_it_is_made_is_not_the_keys() {
    for reset in [true, false] {
        let (mut p, input) = long_key();
        let driver = &mut p.a.client;
        let other = BASE + (1 << 40);
        driver.function.dma_map(other, PAGE, (true, true), Some((sealed(PAGE).into(), 0))).unwrap();
        assert_eq!(driver.give(&input, CreateMkeyOut::SIZE), Answer::Lost);
        // What the key has no part of makes no difference.
        driver.function.dma_unmap(other, PAGE).unwrap();
        assert!(driver.function.guest.is_making());
        if reset {
            driver.function.reset();
        } else {
            driver.function.dma_unmap(BASE + LEN, (40 << 10) * PAGE).unwrap();
        }
        assert!(!driver.function.guest.is_making());
        driver.function.look();
        let answer = driver.answer(0);
        let refused = matches!(answer, Answer::Delivered(CmdStatus::BadParam, _));
        assert!(if reset { answer == Answer::Lost } else { refused }, "{answer:?}");
        assert!(!driver.function.look_at_commands());
    }
}

#[test]
fn a_range_that_goes_leaves_the_keys_of_the_one_beside_it() {
    let mut p = Pair::new(QpShape::default());
    let End { client, .. } = &mut p.a;
    let file = sealed(6 * PAGE);
    let keys = [0, 3].map(|first| {
        let at = BASE + LEN + first * PAGE;
        let copy = file.try_clone().unwrap().into();
        client.function.dma_map(at, 3 * PAGE, (true, true), Some((copy, first * PAGE))).unwrap();
        (at, client.try_mr(&[at], at, PAGE, |context| context).unwrap())
    });
    let to = p.b.mr.remote(0);
    let write = |(at, key)| {
        let seg =
            DataSeg::new().with(DataSeg::LKEY, key).with(DataSeg::ADDR, at).with(DataSeg::BYTE_COUNT, 8);
        Wqe::new(WqeOpcode::RdmaWrite).to(to).seg(seg)
    };
    p.a.client.function.dma_unmap(keys[0].0, 3 * PAGE).unwrap();
    assert_eq!(done(&mut p, &write(keys[1])), CqeOpcode::Req);
    p.a.post(&write(keys[0]));
    assert_eq!(syndrome(&p.sent()), CqeSyndrome::LocalProtErr);
}

/// As those of a machine with some memory below 4 GiB and the rest above.
#[test]
fn pages_of_two_ranges_in_any_order_are_of_two_ranges() {
    let mut p = Pair::new(QpShape::default());
    let End { client, .. } = &mut p.a;
    let (other, file) = (BASE + (1 << 40), sealed(PAGE));
    client.function.dma_map(other, PAGE, (true, true), Some((file.into(), 0))).unwrap();
    let here = client.alloc(PAGE, PAGE);
    let pages: Vec<u64> = [here, other].into_iter().cycle().take(3000).collect();
    let key = client.try_mr(&pages, START, 2000 * PAGE, |context| context).unwrap();
    client.write(here, b"text");
    let seg = DataSeg::pointer(4, key, START + 1998 * PAGE - START % PAGE);
    let to = p.b.mr.remote(0);
    assert_eq!(done(&mut p, &Wqe::new(WqeOpcode::RdmaWrite).to(to).seg(seg)), CqeOpcode::Req);
    assert_eq!(p.b.bytes(0, 4), b"text");
}

#[test]
fn the_tables_of_a_functions_keys_have_a_limit_and_keys_that_go_make_room() {
    const PAGES: usize = 64 << 10;
    let mut p = Pair::new(QpShape::default());
    let End { client, .. } = &mut p.a;
    // As one of 64 functions on a machine of 1 GiB.
    client.function.set_part(crate::guest::Part::of(64, 1 << 30));
    let here = client.alloc(PAGE, PAGE);
    let pages = vec![here; PAGES];
    let len = PAGES as u64 * PAGE;
    let keys: Vec<u32> =
        (0..40).map_while(|_| client.try_mr(&pages, START - START % PAGE, len, |c| c).ok()).collect();
    // An entry of 16 bytes for each page.
    assert!((8..=16).contains(&keys.len()), "{} keys", keys.len());
    assert_eq!(client.try_mr(&pages, 0, len, |c| c), Err(CmdStatus::NoRes));
    client.mr(PAGE);
    client.function.objects.destroy_mkey(keys[0] >> 8).unwrap();
    client.try_mr(&pages, 0, len, |c| c).unwrap();
}
