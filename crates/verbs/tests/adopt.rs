//! Adopted memory of each kind: it comes back unchanged, however its request ends.

mod fake;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context as TaskContext, Poll, Waker};

use bytes::{Bytes, BytesMut};
use fake::Fake;
use hca_verbs::*;
use memmap2::MmapMut;

const TEXT: &[u8] = b"memory of the program's own";

struct World {
    fake: Arc<Fake>,
    pd: Pd,
    a: AsyncQp<Rc>,
    b: AsyncQp<Rc>,
    _driver: Driver,
}

/// Two connected queue pairs, whose send queues have room for 2.
fn world() -> World {
    let fake = Fake::new();
    let context = Context::with_seed(Arc::clone(&fake) as _, 1);
    let pd = context.alloc_pd().unwrap();
    let (reactor, driver) = Reactor::new(context.create_cq(64).unwrap());
    let build = || pd.qp::<Rc>(&reactor).max_send_wr(2).max_recv_wr(8).build_async(&reactor).unwrap();
    let (a, b) = (build(), build());
    a.connect(&b.endpoint(), &ConnectOptions::default()).unwrap();
    b.connect(&a.endpoint(), &ConnectOptions::default()).unwrap();
    World { fake, pd, a, b, _driver: driver }
}

impl World {
    fn hold(&self, yes: bool) {
        self.fake.faults.hold.store(yes, Relaxed);
    }
    fn release(&self) {
        self.hold(false);
        self.pd.context().turn();
    }
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut TaskContext::from_waker(Waker::noop()))
}

/// Sends a list that is made anew for each way in which a request may end, and gives what came back to `is_as_it_was`.
fn comes_back<L: GatherList<Back = L> + 'static>(
    make: impl Fn(&Pd) -> L,
    from_part: impl Fn(Part) -> L,
    is_as_it_was: impl Fn(L),
) {
    // It succeeds.
    let w = world();
    w.b.post_recvs(w.pd.alloc_many(4, 64).unwrap()).unwrap();
    let mut done = Box::pin(w.a.send(make(&w.pd)));
    assert!(poll_once(done.as_mut()).is_pending(), "the driver, or who looks, finds the completion");
    assert_eq!(*w.b.try_recv().unwrap().unwrap(), *TEXT);
    let Poll::Ready(Ok(sent)) = poll_once(done.as_mut()) else { panic!("it was sent") };
    is_as_it_was(sent);

    // It is refused.
    w.fake.faults.refuse_post.store(true, Relaxed);
    is_as_it_was(w.a.try_request(SendRequest::send(make(&w.pd))).unwrap_err().request.into_local());
    let Poll::Ready(Err(failed)) = poll_once(pin!(w.a.send(make(&w.pd)))) else { panic!("it is refused") };
    is_as_it_was(failed.local.unwrap());
    w.fake.faults.refuse_post.store(false, Relaxed);

    // Its future is dropped, in flight and before it is posted.
    w.hold(true);
    let dropped: Vec<_> = (0..3).map(|_| Box::pin(w.a.send(make(&w.pd)))).collect();
    for mut future in dropped {
        assert!(poll_once(future.as_mut()).is_pending());
    }
    w.release();
    let left: Vec<_> = std::iter::from_fn(|| w.a.try_reclaim()).collect();
    let cancelled = left.iter().filter(|left| left.result == Err(RequestError::Cancelled)).count();
    assert_eq!((left.len(), cancelled), (3, 1), "the queue has room for two");
    left.into_iter().flat_map(|left| left.parts).for_each(|part| is_as_it_was(from_part(part)));

    // It ends by an error.
    w.hold(true);
    let mut flushed = Box::pin(w.a.send(make(&w.pd)));
    assert!(poll_once(flushed.as_mut()).is_pending());
    w.a.to_error().unwrap();
    w.release();
    assert!(w.a.try_reclaim().is_none(), "a look at the queue, which finds the completion");
    let Poll::Ready(Err(failed)) = poll_once(flushed.as_mut()) else { panic!("it was flushed") };
    assert!(matches!(failed.error, RequestError::Failed(e) if e.status == WcStatus::WrFlushed));
    is_as_it_was(failed.local.unwrap());
}

fn owned_comes_back<T: OwnedBytes>(make: impl Fn() -> T) {
    let at = std::cell::Cell::new(std::ptr::null());
    let adopt = |pd: &Pd| {
        let buf = pd.adopt(make()).map_err(|e| e.error).unwrap();
        at.set(buf.as_ptr());
        buf
    };
    comes_back(
        adopt,
        |part| part.into_buf().unwrap(),
        |buf| {
            let bytes = buf.as_ptr();
            let mut owner: T = buf.into_owner().expect("all of it, of its own type");
            assert_eq!(
                (owner.bytes().as_ptr(), &*owner.bytes()),
                (bytes, TEXT),
                "neither copied nor changed"
            );
        },
    );
    // And what was received into it.
    let w = world();
    w.b.post_recv(adopt(&w.pd)).unwrap();
    let mut done = pin!(w.a.send(Inline(b"MEMORY")));
    assert!(poll_once(done.as_mut()).is_pending());
    let buf = w.b.try_recv().unwrap().unwrap().into_buf().unwrap();
    assert!(poll_once(done.as_mut()).is_ready());
    let mut owner: T = buf.into_owner().unwrap();
    assert_eq!((owner.bytes().as_ptr(), &owner.bytes()[..9]), (at.get(), &b"MEMORY of"[..]));
}

fn frozen_comes_back<T: FrozenBytes>(make: impl Fn() -> T) {
    let frozen = |part| match part {
        Part::Frozen(buf) => buf,
        other => panic!("{other:?}"),
    };
    comes_back(
        |pd| pd.adopt_frozen(make()).map_err(|e| e.error).unwrap(),
        frozen,
        |buf| {
            let bytes = buf.as_ptr();
            let owner: T = buf.into_owner().expect("all of it, of its own type");
            assert_eq!((owner.bytes().as_ptr(), owner.bytes()), (bytes, TEXT), "neither copied nor changed");
        },
    );
}

fn mapped() -> MmapMut {
    let mut map = MmapMut::map_anon(TEXT.len()).unwrap();
    map.copy_from_slice(TEXT);
    map
}

#[test]
fn vectors_and_boxed_slices_come_back_as_they_were() {
    owned_comes_back(|| TEXT.to_vec());
    owned_comes_back(|| TEXT.to_vec().into_boxed_slice());
    frozen_comes_back(|| String::from_utf8(TEXT.to_vec()).unwrap());
    frozen_comes_back(|| Arc::<[u8]>::from(TEXT));
}

#[test]
fn bytes_come_back_as_they_were() {
    owned_comes_back(|| BytesMut::from(TEXT));
    frozen_comes_back(|| Bytes::copy_from_slice(TEXT));
    frozen_comes_back(|| Bytes::copy_from_slice(&[b"of more ", TEXT].concat()).slice(8..));
}

#[test]
fn mappings_come_back_as_they_were() {
    owned_comes_back(mapped);
    frozen_comes_back(|| mapped().make_read_only().unwrap());
}
