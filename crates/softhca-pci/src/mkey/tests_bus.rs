//! Keys of the bus's own addresses.

use std::os::unix::fs::FileExt;

use hca_core::{Lkey, Sge};
use hca_prm::{AccessMode, CqeOpcode, CqeSyndrome, DataSeg, Mkc, RaddrSeg, WqeOpcode};

use crate::bed::{BASE, Client, LEN, PAGE, Pair, QpShape, Wqe, sealed};
use crate::function::Function;
use crate::mkey::bus::{MAX_RANGES, Names};
use crate::qp::tests::{opcode, syndrome};

/// A key of the bus's addresses, with all rights but those that `change` takes.
fn bus_key(client: &mut Client, change: impl Fn(Mkc) -> Mkc) -> u32 {
    let pa = |context: Mkc| {
        let mut context = change(context.with(Mkc::LENGTH64, true));
        context.set_access_mode(AccessMode::Pa);
        context
    };
    client.try_mr(&[], 0, 0, pa).unwrap()
}
fn seg(key: u32, addr: u64, len: u32) -> DataSeg {
    DataSeg::new().with(DataSeg::LKEY, key).with(DataSeg::ADDR, addr).with(DataSeg::BYTE_COUNT, len)
}
/// Another range of the client's, right behind its memory.
fn map_more(client: &mut Client) -> std::fs::File {
    let file = sealed(2 * PAGE);
    let copy = file.try_clone().unwrap().into();
    client.function.dma_map(BASE + LEN, 2 * PAGE, (true, true), Some((copy, 0))).unwrap();
    file
}

#[test]
fn a_key_of_the_bus_names_whatever_is_mapped_on_both_sides_of_a_request() {
    let mut p = Pair::new(QpShape::default());
    let (key_a, key_b) = (bus_key(&mut p.a.client, |c| c), bus_key(&mut p.b.client, |c| c));
    let (file_a, file_b) = (map_more(&mut p.a.client), map_more(&mut p.b.client));
    let text: Vec<u8> = (0..2 * PAGE).map(|i| (i * 7 / 3) as u8).collect();
    // Over the border of two ranges, which lie in different files.
    p.a.client.write(BASE + LEN - 1000, &text[..1000]);
    file_a.write_all_at(&text[1000..3000], 0).unwrap();
    p.b.client.post_recv(&mut p.b.qp, &[seg(key_b, BASE + LEN - 500, 4000)]);
    p.a.post(&Wqe::new(WqeOpcode::Send).seg(seg(key_a, BASE + LEN - 1000, 3000)));
    assert_eq!((opcode(&p.sent()), opcode(&p.received())), (CqeOpcode::Req, CqeOpcode::RespSend));
    let mut behind = vec![0; 2500];
    file_b.read_exact_at(&mut behind, 0).unwrap();
    assert_eq!([p.b.client.read(BASE + LEN - 500, 500), behind].concat(), text[..3000]);
    // What goes is reached no more; what was there stays so.
    p.a.client.function.dma_unmap(BASE + LEN, 2 * PAGE).unwrap();
    p.b.client.post_recv(&mut p.b.qp, &[seg(key_b, BASE + LEN - 500, 4000)]);
    p.a.post(&Wqe::new(WqeOpcode::Send).seg(seg(key_a, BASE + LEN - 8, 8)));
    assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
    p.a.post(&Wqe::new(WqeOpcode::Send).seg(seg(key_a, BASE + LEN - 8, 9)));
    assert_eq!(syndrome(&p.sent()), CqeSyndrome::LocalProtErr);
}

#[test]
fn no_peer_reaches_anything_by_a_key_of_the_bus_and_rights_are_kept() {
    let mut p = Pair::new(QpShape::default());
    let mine = p.a.mr.seg(0, 8);
    let key = bus_key(&mut p.b.client, |c| c);
    p.a.post(
        &Wqe::new(WqeOpcode::RdmaWrite)
            .to(RaddrSeg::new().with(RaddrSeg::RADDR, BASE).with(RaddrSeg::RKEY, key))
            .seg(mine),
    );
    assert_eq!(syndrome(&p.sent()), CqeSyndrome::RemoteAccessErr);
    // Without the right to write, nothing is received by it.
    let mut p = Pair::new(QpShape::default());
    let key = bus_key(&mut p.b.client, |c| c.with(Mkc::LW, false));
    p.b.client.post_recv(&mut p.b.qp, &[seg(key, BASE, 64)]);
    let mine = p.a.mr.seg(0, 8);
    p.a.post(&Wqe::new(WqeOpcode::Send).seg(mine));
    assert_eq!(syndrome(&p.received()), CqeSyndrome::LocalProtErr);
    // Nor by one whose lowest byte is another, and none that is gone.
    for stale in [false, true] {
        let mut p = Pair::new(QpShape::default());
        let key = bus_key(&mut p.a.client, |c| c);
        if stale {
            p.a.client.function.objects.destroy_mkey(key >> 8).unwrap();
        }
        let named = if stale { key } else { key ^ 1 };
        p.a.post(&Wqe::new(WqeOpcode::Send).seg(seg(named, BASE, 8)));
        assert_eq!(syndrome(&p.sent()), CqeSyndrome::LocalProtErr);
        assert_eq!(p.a.client.function.objects.buses.counts(), (usize::from(!stale), 0));
    }
}

#[test]
fn ranges_are_regions_from_their_first_use_until_they_or_the_last_key_go() {
    let mut p = Pair::new(QpShape::default());
    let counts =
        |p: &Pair| (p.a.client.function.objects.buses.ranges, p.a.client.function.objects.buses.counts());
    let (first, second) =
        (bus_key(&mut p.a.client, |c| c), bus_key(&mut p.a.client, |c| c.with(Mkc::LW, false)));
    let more = map_more(&mut p.a.client);
    assert_eq!(counts(&p), (0, (2, 0)));
    let send = |p: &mut Pair, key, addr| {
        p.b.recv(0, 64);
        p.a.post(&Wqe::new(WqeOpcode::Send).seg(seg(key, addr, 8)));
        assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
    };
    for _ in 0..2 {
        send(&mut p, first, BASE);
    }
    assert_eq!(counts(&p), (1, (2, 1)));
    send(&mut p, second, BASE);
    send(&mut p, second, BASE + LEN);
    assert_eq!(counts(&p), (3, (2, 2)));
    p.a.client.function.dma_unmap(BASE + LEN, 2 * PAGE).unwrap();
    assert_eq!(counts(&p), (2, (2, 2)));
    p.a.client.function.objects.destroy_mkey(first >> 8).unwrap();
    assert_eq!(counts(&p), (1, (1, 1)));
    p.a.client.function.objects.destroy_mkey(second >> 8).unwrap();
    assert_eq!(counts(&p), (0, (0, 0)));
    bus_key(&mut p.a.client, |c| c);
    p.a.client.function.reset();
    assert_eq!(counts(&p), (0, (0, 0)));
    drop(more);
}

#[test]
fn there_is_an_end_of_ranges_and_of_pieces() {
    let mut p = Pair::new(QpShape::default());
    let (pd, key) = (p.a.client.pd, bus_key(&mut p.a.client, |c| c));
    let file = sealed(PAGE);
    for i in 0..40 {
        let copy = file.try_clone().unwrap().into();
        let at = BASE + LEN + i * PAGE;
        p.a.client.function.dma_map(at, PAGE, (true, true), Some((copy, 0))).unwrap();
    }
    let function = &mut p.a.client.function;
    let pd = function.resources.pd(pd).unwrap();
    let place = |pages: u64| Sge { addr: BASE + LEN, len: (pages * PAGE) as u32, lkey: Lkey::new(key) };
    let translate = |function: &mut Function, places: [Sge; 2]| {
        let mut list = [Sge::default(); 32];
        list[..2].copy_from_slice(&places);
        let mut len = 2;
        let (hca, guest) = (&function.hca, &function.guest);
        Names { hca, guest, buses: &mut function.objects.buses, keys: None }
            .translate(pd, &mut list, &mut len);
        list[..len].to_vec()
    };
    let most = translate(function, [place(31), place(1)]);
    assert!(most.len() == 32 && most.iter().all(|p| p.lkey.raw() != key));
    let beyond = translate(function, [place(32), place(1)]);
    assert_eq!((beyond.len(), beyond[0], beyond[1].lkey == place(1).lkey), (2, place(32), false));
    assert_eq!(translate(function, [place(41), place(41)]), [place(41); 2], "beyond what is mapped");
    function.objects.buses.ranges = MAX_RANGES;
    let last = Sge { addr: BASE + LEN + 39 * PAGE, ..place(1) };
    let full = translate(function, [last, place(1)]);
    assert_eq!((full[0], full[1].lkey == place(1).lkey), (last, false));
    function.objects.buses.ranges = 32;
    // A page that goes has no others looked at.
    function.dma_unmap(BASE + LEN + 7 * PAGE, PAGE).unwrap();
    assert_eq!((function.objects.buses.ranges, function.objects.buses.looked_at), (31, 1));
}
