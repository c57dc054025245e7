//! Buffers and shared regions: what requests do with them, and when the device has let go of them.

use super::*;

#[test]
fn memory_of_buffers_is_promised_to_stay_as_it_is_and_that_of_shared_regions_is_not() {
    let mut p = pair();
    let mr = p.pd.alloc_shared(64, Access::REMOTE_WRITE).unwrap();
    let frozen = buf(&p.pd, b"frozen").freeze();
    let mut promised = |local: Vec<Part>| {
        let before = p.fake.faults.stable.load(Relaxed);
        p.a.post_send(SendRequest::write(local, mr.remote())).unwrap();
        assert_eq!(p.cq.poll(&mut p.wcs).len(), 1);
        p.fake.faults.stable.load(Relaxed) - before
    };
    assert_eq!(promised(vec![buf(&p.pd, b"mine").into(), frozen.clone().into()]), 1);
    assert_eq!(promised(vec![buf(&p.pd, b"mine").into(), mr.range(..4).into(), frozen.into()]), 0);
    let before = p.fake.faults.stable.load(Relaxed);
    p.a.post_send(SendRequest::write(mr.range(8..12), mr.remote())).unwrap();
    p.a.post_send(SendRequest::write((mr.range(8..12), buf(&p.pd, b"mine")), mr.remote())).unwrap();
    assert_eq!(p.fake.faults.stable.load(Relaxed), before);
    p.a.post_send(SendRequest::write(buf(&p.pd, b"mine"), mr.remote())).unwrap();
    assert_eq!(p.fake.faults.stable.load(Relaxed), before + 1);
}

#[test]
fn lists_mix_buffers_frozen_ones_and_shared_ranges() {
    let mut p = pair();
    let mr = p.pd.alloc_shared(64, Access::empty()).unwrap();
    mr.write_at(3, b"cc");
    let frozen = buf(&p.pd, b"xbbx").freeze();
    p.b.post_recv((buf(&p.pd, b"...."), mr.range(32..40))).unwrap();
    p.a.send((buf(&p.pd, b"aa"), frozen.slice(1..3), mr.range(3..5))).unwrap();
    let got = poll_ok(&mut p.cq, &mut p.wcs);
    assert!(matches!(&got[0].2[..], [Part::Buf(b), Part::Shared(r)] if **b == *b"aabb" && r.offset() == 32));
    assert!(matches!(&got[1].2[..], [Part::Buf(_), Part::Frozen(_), Part::Shared(_)]));
    let mut tail = [0; 3];
    mr.read_at(32, &mut tail);
    assert_eq!(&tail, b"cc\0");
    let list: Vec<Part> = vec![buf(&p.pd, b"1").into(), mr.range(..1).into(), frozen.into()];
    p.b.post_recv([p.pd.alloc(4).unwrap(), p.pd.alloc(4).unwrap()]).unwrap();
    p.a.send(list).unwrap();
    assert_eq!(poll_ok(&mut p.cq, &mut p.wcs)[1].2.len(), 3);
}

#[test]
fn one_frozen_buffer_goes_to_many_and_thaws_when_all_have_it() {
    let mut p = pair();
    let frozen = buf(&p.pd, b"news").freeze();
    for _ in 0..4 {
        p.b.post_recv(p.pd.alloc(4).unwrap()).unwrap();
        p.a.send(frozen.clone()).unwrap();
    }
    let frozen = frozen.try_unfreeze().unwrap_err();
    let got = poll_ok(&mut p.cq, &mut p.wcs);
    assert_eq!(got.len(), 8);
    drop(got);
    assert_eq!(&*frozen.try_unfreeze().unwrap(), b"news");
}

#[test]
fn only_the_first_bytes_are_sent_and_the_whole_buffer_comes_back() {
    let mut p = pair();
    p.b.post_recv(p.pd.alloc(8).unwrap()).unwrap();
    p.a.send(buf(&p.pd, b"abcdef").first(2)).unwrap();
    let mut polled = p.cq.poll(&mut p.wcs);
    assert_eq!(polled.next().unwrap().byte_len, 2);
    assert_eq!(&*polled.next().unwrap().take_buf().unwrap(), b"abcdef");
}

#[test]
fn dropping_a_queue_pair_frees_its_buffers_after_the_device_let_go() {
    let mut p = pair();
    p.b.post_recv(p.pd.alloc(1 << 20).unwrap()).unwrap();
    let [_, regions, ..] = p.fake.objects();
    let (other_half, control) = (p.b.control(), p.b.control());
    drop(p.b);
    assert_eq!(p.fake.objects()[3], 2, "controls keep it");
    drop((other_half, control));
    assert_eq!(p.fake.objects()[3], 1);
    assert_eq!(p.cq.poll(&mut p.wcs).len(), 0);
    assert_eq!(p.fake.objects()[1], regions - 1);
    assert_eq!(p.cq.reference().reserved(), 16);
}

#[test]
fn whatever_the_order_of_drops_everything_goes_back_to_the_device() {
    for order in 0..6 {
        let Pair { fake, pd, cq, mut a, mut b, wcs } = pair();
        let mr = pd.alloc_shared(64, Access::REMOTE_WRITE).unwrap();
        a.post_recv((pd.alloc(8).unwrap(), mr.range(..))).unwrap();
        b.post_recv(pd.alloc(1 << 19).unwrap()).unwrap();
        b.write(pd.alloc(8).unwrap().freeze(), mr.remote()).unwrap();
        match order {
            0 => drop((a, b, cq, pd, mr, wcs)),
            1 => drop((cq, pd, mr, wcs, b, a)),
            2 => drop((pd, mr, a, cq, b, wcs)),
            3 => drop((mr, wcs, a, pd, b, cq)),
            4 => drop((b, cq, a, mr, pd, wcs)),
            _ => {
                let (sq, rq) = a.split();
                drop((sq, cq, pd, rq, wcs, mr, b));
            }
        }
        assert_eq!(fake.objects(), [0; 5], "order {order}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "it leaks, as it should")]
fn memory_that_a_device_does_not_let_go_of_is_leaked() {
    let Pair { fake, pd, mut cq, a, mut b, mut wcs } = pair();
    b.post_recv(pd.alloc(1 << 20).unwrap()).unwrap();
    fake.faults.refuse_destroy_qp.store(true, Relaxed);
    drop(b);
    cq.poll(&mut wcs);
    fake.faults.refuse_destroy_qp.store(false, Relaxed);
    drop((a, cq, wcs));
    assert_eq!(fake.objects()[1], 1, "the region of the buffer stays");
    fake.faults.refuse_dereg.store(true, Relaxed);
    let mr = pd.alloc_shared(1 << 12, Access::REMOTE_READ).unwrap();
    assert!(mr.revoke().is_err());
    drop(mr);
    assert_eq!(fake.objects()[1], 2, "and so does this one");
}

#[test]
#[cfg_attr(miri, ignore = "it leaks, as it should")]
fn forgetting_leaks_and_harms_nobody() {
    let mut p = pair();
    std::mem::forget(p.pd.alloc(64).unwrap());
    std::mem::forget(p.a.batch());
    p.b.post_recv(p.pd.alloc(8).unwrap()).unwrap();
    p.a.send(p.pd.alloc(8).unwrap()).unwrap();
    p.cq.poll(&mut p.wcs);
    std::mem::forget(p.wcs);
    std::mem::forget(p.b);
    assert_eq!(p.pd.alloc(64).unwrap().len(), 64);
}

#[test]
fn buffers_split_join_and_are_zeroed_when_given_out_again() {
    let p = pair();
    let whole = p.pd.alloc(1000).unwrap();
    let parts: Vec<Buf> = whole.split_into(300).collect();
    assert_eq!(parts.iter().map(|b| b.len()).collect::<Vec<_>>(), [300, 300, 300, 100]);
    let mut parts = parts.into_iter();
    let mut joined = parts.next().unwrap();
    let (second, third) = (parts.next().unwrap(), parts.next().unwrap());
    let (back, third) = joined.join(third).unwrap_err();
    joined = back.join(second).unwrap().join(third).unwrap().join(parts.next().unwrap()).unwrap();
    assert_eq!(joined.len(), 1000);
    joined.fill(0xff);
    let address = joined.as_ptr();
    drop(joined);
    let again = p.pd.alloc(1000).unwrap();
    assert_eq!(again.as_ptr(), address, "the same bytes");
    assert!(again.iter().all(|&b| b == 0));
    let (empty, rest) = again.split_at(0);
    assert_eq!(empty.join(rest).unwrap().len(), 1000);
    assert_eq!(p.pd.alloc(0).unwrap().len(), 0);
}

#[test]
fn small_buffers_share_a_registration_and_big_ones_have_their_own() {
    let p = pair();
    let before = p.fake.objects()[1];
    let small = p.pd.alloc_many(if cfg!(miri) { 40 } else { 1000 }, 100).unwrap();
    assert_eq!(p.fake.objects()[1], before + 1);
    let big = p.pd.alloc(1 << 20).unwrap();
    let (half, other) = big.split_at(1 << 19);
    drop((small, half));
    assert_eq!(p.fake.objects()[1], before + 2);
    drop(other);
    assert_eq!(p.fake.objects()[1], before + 1);
}

#[test]
fn foreign_memory_is_a_capability() {
    let context = Context::new(Fake::with(|attr| attr.foreign_memory = false));
    let pd = context.alloc_pd().unwrap();
    let mut words = [0_u64; 4];
    let addr = std::ptr::NonNull::new(words.as_mut_ptr().cast::<u8>()).unwrap();
    // SAFETY: refused.
    let refused = unsafe { pd.register(addr, 32, Access::REMOTE_WRITE) }.unwrap_err();
    assert!(refused.to_string().contains("Pd::alloc"), "{refused}");

    let p = pair();
    // SAFETY: `words` outlives the region and is not used meanwhile.
    let mr = unsafe { p.pd.register(addr, 32, Access::REMOTE_WRITE) }.unwrap();
    mr.store_u64(8, 5);
    drop(mr);
    assert_eq!(words, [0, 5, 0, 0]);
}

#[test]
fn waiting_for_memory_turns_the_device() {
    let mut p = pair();
    let mr = p.pd.alloc_shared(8, Access::REMOTE_WRITE).unwrap();
    p.fake.faults.hold.store(true, Relaxed);
    p.a.send_inline(b"").unwrap();
    p.b.write(Inline(&9_u64.to_ne_bytes()), mr.remote()).unwrap();
    assert_eq!(mr.wait_until(0, |v| v == 9), 9);
    assert!(p.fake.faults.turns.load(Relaxed) > 0);
    let late = mr.wait_until_timeout(0, Duration::ZERO, |v| v == 10);
    assert!(matches!(late, Err(WaitError::TimedOut(_))));
    assert_eq!(p.pd.context().counter("turns"), Some(p.fake.faults.turns.load(Relaxed).into()));
}
