//! Memory of the program's own, exchanged endpoints, drained queues and kept paths.

use super::*;

#[test]
fn memory_of_the_programs_own_is_a_buffer_and_comes_back_as_it_was() {
    let mut p = pair();
    let (text, room) = (b"adopted".to_vec(), vec![0_u8; 16].into_boxed_slice());
    let (at, room_at) = (text.as_ptr(), room.as_ptr());
    p.b.post_recv(p.pd.adopt(room).unwrap()).unwrap();
    p.a.send(p.pd.adopt(text).unwrap()).unwrap();
    let mut regions = p.fake.objects()[1];
    for (_, opcode, mut parts) in poll_ok(&mut p.cq, &mut p.wcs) {
        let buf = parts.pop().unwrap().into_buf().unwrap();
        if opcode == WcOpcode::Send {
            let buf = buf.into_owner::<Box<[u8]>>().unwrap_err(); // of another type
            let (head, tail) = buf.split_at(3);
            let head = head.into_owner::<Vec<u8>>().unwrap_err(); // not all of it
            let text: Vec<u8> = head.join(tail).unwrap().into_owner().unwrap();
            assert_eq!((&text[..], text.as_ptr()), (&b"adopted"[..], at));
        } else {
            let room: Box<[u8]> = buf.into_owner().unwrap();
            assert_eq!((&room[..7], room.as_ptr()), (&b"adopted"[..], room_at));
        }
        regions -= 1;
        assert_eq!(p.fake.objects()[1], regions, "it is deregistered");
    }
    let own = p.pd.alloc(8).unwrap().into_owner::<Vec<u8>>().unwrap_err();
    assert_eq!(own.len(), 8, "memory of the device's own has no owner of the program's");
}

#[test]
fn memory_that_is_only_read_is_frozen_and_stays_so() {
    let mut p = pair();
    let shared: Arc<[u8]> = (*b"shared by many").into();
    let frozen = p.pd.adopt_frozen(Arc::clone(&shared)).unwrap();
    p.b.post_recv(p.pd.alloc(32).unwrap()).unwrap();
    p.a.send((frozen.slice(..6), p.pd.adopt_frozen(&b" static"[..]).unwrap())).unwrap();
    let got = poll_ok(&mut p.cq, &mut p.wcs);
    assert!(
        got.iter().any(|(.., parts)| matches!(&parts[..], [Part::Buf(b)] if b.starts_with(b"shared static")))
    );
    drop(got);
    let frozen = frozen.try_unfreeze().unwrap_err();
    let back: Arc<[u8]> = frozen.into_owner().unwrap();
    assert!(Arc::ptr_eq(&back, &shared));
}

#[test]
fn shared_memory_may_be_the_programs_own() {
    let p = pair();
    let bytes = vec![3_u8; 16].into_boxed_slice();
    let at = bytes.as_ptr();
    let shared = p.pd.adopt_shared(bytes, Access::REMOTE_READ).unwrap();
    assert_eq!((shared.remote().addr, shared.remote().len), (at as u64, 16));
    let clone = shared.clone();
    drop(shared);
    let mut read = [0; 16];
    clone.read_at(0, &mut read);
    assert_eq!(read, [3; 16]);
}

#[test]
fn memory_that_is_not_adopted_comes_back_and_dropped_it_is_dropped() {
    let p = pair();
    let refused = p.pd.adopt(Vec::new()).unwrap_err();
    assert!(matches!(refused.error, MemoryError::Empty));
    let fake = Fake::with(|attr| attr.foreign_memory = false);
    let pd = Context::with_seed(fake, 1).alloc_pd().unwrap();
    let refused = pd.adopt(vec![7; 3]).unwrap_err();
    assert_eq!(refused.owner, [7; 3]);
    assert!(format!("{refused:?}").contains("`Pd::alloc`"), "{refused:?}");
    let shared: Arc<[u8]> = vec![1; 8].into();
    drop(p.pd.adopt_frozen(Arc::clone(&shared)).unwrap());
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
#[cfg_attr(miri, ignore = "it leaks, as it should")]
fn memory_of_the_programs_own_that_a_device_does_not_let_go_of_is_never_freed_under_it() {
    let p = pair();
    let shared: Arc<[u8]> = vec![1; 8].into();
    p.fake.faults.refuse_dereg.store(true, Relaxed);
    let frozen = p.pd.adopt_frozen(Arc::clone(&shared)).unwrap().into_owner::<Arc<[u8]>>().unwrap_err();
    drop(frozen);
    assert_eq!(Arc::strong_count(&shared), 2);
    p.fake.faults.refuse_dereg.store(false, Relaxed);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no recv on a pair of streams")]
fn endpoints_are_exchanged_over_a_stream_that_goes_on() {
    use std::io::{Read, Write};
    let p = pair();
    let (mut here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
    let (a, b) = (p.a.endpoint(), p.b.endpoint());
    let thread = std::thread::spawn(move || {
        let heard = b.exchange(&mut there).unwrap();
        there.write_all(b"behind").unwrap();
        heard
    });
    assert_eq!(a.exchange(&mut here).unwrap(), b);
    assert_eq!(thread.join().unwrap(), a);
    let mut rest = String::new();
    here.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "behind", "no byte of it was taken");
    for (line, what) in [(&b"hello\n"[..], "service"), (&[b'x'; 200][..], "the end of the line")] {
        let (mut here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
        there.write_all(line).unwrap();
        let error = a.exchange(&mut here).unwrap_err();
        assert!(matches!(error, ExchangeError::Parse(e) if e.what == what), "{error}");
    }
    let (mut here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(there);
    assert!(matches!(a.exchange(&mut here), Err(ExchangeError::Io(_))));
    // A line that does not end may lack a digit.
    let (mut here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
    there.write_all(b.to_string().as_bytes()).unwrap();
    there.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(matches!(a.exchange(&mut here), Err(ExchangeError::Io(_))), "it is no endpoint");
}

#[test]
fn a_drain_gives_all_buffers_back() {
    let mut p = pair();
    p.fake.faults.hold.store(true, Relaxed);
    p.a.post_send(SendRequest::send(buf(&p.pd, b"1")).signaled(false)).unwrap();
    p.a.send(buf(&p.pd, b"2")).unwrap();
    p.a.post_recv(p.pd.alloc(8).unwrap()).unwrap();
    p.b.post_recv(p.pd.alloc(8).unwrap()).unwrap();
    let timeout = Some(Duration::ZERO);
    assert!(matches!(p.a.drain(&mut p.cq, timeout, |_| {}), Err(WaitError::TimedOut(_))));
    p.fake.faults.hold.store(false, Relaxed);
    p.pd.context().turn();
    let (control, mut bufs) = (p.a.control(), 0);
    control.drain(&mut p.cq, None, |mut wc| bufs += wc.take_bufs().count()).unwrap();
    assert_eq!((bufs, p.a.outstanding(), p.b.outstanding()), (3, (0, 0), (0, 1)));
}

#[test]
fn a_drain_on_a_shared_queue_waits_for_its_event_and_leaves_the_others() {
    let (fake, context) = context();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(64).unwrap();
    let srq = pd.create_srq(SrqInit { max_wr: 4, max_sge: 1 }).unwrap();
    let qp = pd.qp::<Rc>(&cq).srq(&srq).max_send_wr(4).build().unwrap();
    fake.raise(AsyncEvent::PortError);
    let none = Some(Duration::from_millis(1));
    assert!(matches!(qp.drain(&mut cq, none, |_| {}), Err(WaitError::TimedOut(_))));
    fake.raise(AsyncEvent::LastWqeReached(qp.handle()));
    fake.raise(AsyncEvent::PortActive);
    qp.drain(&mut cq, None, |_| {}).unwrap();
    assert_eq!(
        [(); 3].map(|()| context.poll_event()),
        [Some(AsyncEvent::PortError), Some(AsyncEvent::PortActive), None]
    );
    // The event does not come again.
    qp.drain(&mut cq, Some(Duration::from_secs(10)), |_| {}).unwrap();
}

#[test]
fn a_path_is_made_once_and_the_oldest_makes_room() {
    let (fake, context) = context();
    let pd = context.alloc_pd().unwrap();
    let av = |n: u8| AddressVector { dgid: Gid([n; 16]), ..AddressVector::default() };
    let mut ahs = AhCache::new(&pd, 2);
    let first = ahs.ah(&av(1)).unwrap().handle();
    ahs.ah(&av(2)).unwrap();
    assert_eq!(ahs.ah(&av(1)).unwrap().handle(), first);
    ahs.ah(&av(3)).unwrap();
    assert_eq!((ahs.len(), fake.objects()[4]), (2, 2));
    assert_eq!(ahs.ah(&av(1)).unwrap().handle(), first, "it was used after the second one");
    let mut cq = context.create_cq(16).unwrap();
    let mut qp = pd.qp::<Ud>(&cq).max_send_wr(4).max_recv_wr(4).build().unwrap();
    qp.activate(Qkey::new(7)).unwrap();
    qp.post_recv(pd.alloc(100).unwrap()).unwrap();
    let own = ahs.ah(&qp.endpoint().av()).unwrap().peer(qp.qpn(), Qkey::new(7));
    qp.send_to(Inline(b"to itself"), &own).unwrap();
    let mut wcs = Completions::default();
    let replies: Vec<_> = cq.poll(&mut wcs).filter_map(|wc| ahs.reply_to(&wc, Qkey::new(7))).collect();
    let [Ok(reply)] = &replies[..] else { panic!("one datagram came") };
    assert_eq!((reply.qpn, reply.ah.av().dgid), (qp.qpn(), own.ah.av().dgid));
}

#[test]
fn a_queue_with_the_number_of_one_that_goes_is_known_to_the_poller() {
    let (fake, context) = context();
    let (pd, mut cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let (domain, on, init) =
        (context.alloc_xrc_domain().unwrap(), cq.reference(), SrqInit { max_wr: 4, max_sge: 1 });
    let make = move || {
        let mut queue = domain.create_srq(&pd, &on, init).unwrap();
        queue.post_recv_id(5, pd.alloc(16).unwrap()).unwrap();
        queue
    };
    let (first, mut wcs) = (make(), Completions::default());
    assert_eq!(cq.poll(&mut wcs).len(), 0, "the poller knows it now");
    let (tell, told) = std::sync::mpsc::channel();
    // Another thread makes one at the moment at which the number is free.
    let during = Box::new(move || tell.send(make()).unwrap());
    *fake.faults.while_destroying_srq.lock().unwrap() = Some(during);
    drop(first);
    let _second = told.recv().unwrap();
    fake.arrive_by_xrc();
    let came: Vec<_> = cq.poll(&mut wcs).map(|mut wc| (wc.id, wc.take_buf().is_some())).collect();
    assert_eq!(came, [(5, true)]);
}
