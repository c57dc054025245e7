//! Calls of the program when descriptors complete.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hca_via::{Cq, CqEntry, Error, ErrorKind, Nic, Queue, Request, Vi, ViAttributes};

use crate::bed::{Bed, PATIENCE, connect, until};

/// The next value, while somebody polls the other side.
#[track_caller]
pub(crate) fn next<T>(came: &Receiver<T>, other: &Vi) -> T {
    for _ in 0..PATIENCE.as_millis() {
        let _ = other.query();
        match came.recv_timeout(Duration::from_millis(1)) {
            Ok(value) => return value,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    panic!("no call has come");
}

pub(crate) fn a_receive_calls_once(bed: &Bed) {
    let pair = bed.pair();
    let (tell, came) = channel();
    pair.b.vi.recv_notify(move |done| tell.send(done.length).unwrap()).unwrap();
    pair.b.receive(0, 0, 64);
    pair.b.receive(1, 64, 64);
    pair.a.send(0, 0, 7);
    pair.a.send(1, 0, 8);
    assert_eq!(next(&came, &pair.a.vi), 7);
    assert_eq!(pair.received().length, 8, "the second has no call");
    assert!(came.recv().is_err(), "the callback is gone");
}

pub(crate) fn a_send_calls_once(bed: &Bed) {
    let pair = bed.pair();
    let (tell, came) = channel();
    pair.b.receive(0, 0, 64);
    pair.a.vi.send_notify(move |done| tell.send(done.status.is_ok()).unwrap()).unwrap();
    pair.a.send(0, 0, 7);
    assert!(next(&came, &pair.b.vi));
    assert!(came.recv().is_err());
}

pub(crate) fn a_completion_queue_calls_once(bed: &Bed) {
    let [a, b] = bed.sides();
    let cq = b.nic.create_cq(16).unwrap();
    let x = a.vi();
    let y = b.nic.create_vi(&ViAttributes::new(&b.ptag), None, Some(&cq)).unwrap();
    connect((&a, &x), (&b, &y)).unwrap();
    let (tell, came) = channel();
    cq.notify(move |entry| tell.send(entry).unwrap()).unwrap();
    y.post_recv(b.written(0, &Request::new(&[b.data(0, 64)]))).unwrap();
    x.post_send(a.written(0, &Request::new(&[a.data(0, 8)]))).unwrap();
    assert_eq!(next(&came, &x), CqEntry { vi: y.id(), queue: Queue::Receive });
    assert!(y.recv_done().unwrap().status.is_ok());
    assert!(came.recv().is_err());
    // One that is never called goes with its queue.
    let (tell, came) = channel::<()>();
    cq.notify(move |_| tell.send(()).unwrap()).unwrap();
    drop((y, cq));
    assert!(came.recv().is_err());
}

pub(crate) fn calls_are_made_in_the_order_in_which_they_were_asked_for(bed: &Bed) {
    let pair = bed.pair();
    let (tell, came) = channel();
    for i in 0..20 {
        let tell = tell.clone();
        pair.b.vi.recv_notify(move |done| tell.send((i, done.length)).unwrap()).unwrap();
        pair.b.receive(i, 64 * i, 64);
    }
    for i in 0..20 {
        pair.a.send(i, 0, i);
    }
    for i in 0..20 {
        assert_eq!(next(&came, &pair.a.vi), (i, i as u32));
    }
}

pub(crate) fn a_callback_may_ask_for_the_next_call(bed: &Bed) {
    let pair = bed.pair();
    let (tell, came) = channel();
    let crate::bed::Pair { a, b } = pair;
    for i in 0..2 {
        b.receive(i, 64 * i, 64);
    }
    let vi = Arc::new(Mutex::new(Some(b.vi)));
    let inner = vi.clone();
    let again = tell.clone();
    let held = vi.lock().unwrap();
    held.as_ref()
        .unwrap()
        .recv_notify(move |first| {
            tell.send(first.length).unwrap();
            let held = inner.lock().unwrap();
            held.as_ref().unwrap().recv_notify(move |second| again.send(second.length).unwrap()).unwrap();
        })
        .unwrap();
    drop(held);
    for i in 0..2 {
        a.vi.post_send(a.side.written(i, &Request::new(&[a.side.data(0, 5 + i)]))).unwrap();
    }
    assert_eq!([next(&came, &a.vi), next(&came, &a.vi)], [5, 6]);
}

/// Has a callback called that returns when it may, and destroys an object meanwhile.
fn destroyed_while_called<O: Send, T: 'static, K>(
    object: O,
    ask: impl FnOnce(&O, Box<dyn FnOnce(T) + Send>),
    happens: impl FnOnce(&O) -> K,
    destroy: impl FnOnce(O) -> Result<(), (O, Error)> + Send,
) {
    let ((called, calls), (go_on, may_go_on)) = (channel(), channel::<()>());
    let call = move |_| {
        called.send(()).unwrap();
        let _ = may_go_on.recv();
    };
    ask(&object, Box::new(call));
    let kept = happens(&object);
    calls.recv_timeout(PATIENCE).expect("a call");
    drop(kept);
    let (tell, destroyed) = channel();
    std::thread::scope(|s| {
        s.spawn(move || tell.send(destroy(object).is_ok()).unwrap());
        let early = destroyed.recv_timeout(Duration::from_millis(20));
        drop(go_on);
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "the callback is under way");
        assert_eq!(destroyed.recv_timeout(PATIENCE), Ok(true));
    });
}

pub(crate) fn no_callback_outlives_its_vi_or_queue(bed: &Bed) {
    let [side, _] = bed.sides();
    let flushed = |vi: &Vi| {
        vi.post_recv(side.written(0, &Request::new(&[side.data(0, 64)]))).unwrap();
        vi.disconnect().unwrap();
    };
    destroyed_while_called(side.vi(), |vi, call| vi.recv_notify(call).unwrap(), flushed, Vi::destroy);
    let ends = |cq: &Cq| {
        let vi = side.nic.create_vi(&ViAttributes::new(&side.ptag), None, Some(cq)).unwrap();
        flushed(&vi);
        vi
    };
    let cq = side.nic.create_cq(16).unwrap();
    destroyed_while_called(cq, |cq, call| cq.notify(call).unwrap(), ends, Cq::destroy);
}

pub(crate) fn a_callback_may_destroy_its_vi(bed: &Bed) {
    let [side, _] = bed.sides();
    let vi = Arc::new(Mutex::new(Some(side.vi())));
    let ((tell, came), inner) = (channel(), Arc::clone(&vi));
    let held = vi.lock().unwrap();
    let own = held.as_ref().unwrap();
    let call = move |_| tell.send(inner.lock().unwrap().take().unwrap().destroy().is_ok()).unwrap();
    own.recv_notify(call).unwrap();
    own.post_recv(side.written(0, &Request::new(&[side.data(0, 64)]))).unwrap();
    own.disconnect().unwrap();
    drop(held);
    assert_eq!(came.recv_timeout(PATIENCE), Ok(true));
}

/// A part of a callback that asks for another call when it goes, and takes an adapter along.
struct Goes {
    nic: Option<Nic>,
    other: Cq,
    tell: Sender<()>,
}

impl Drop for Goes {
    fn drop(&mut self) {
        self.other.notify(|_| ()).unwrap();
        self.nic = None;
        self.tell.send(()).unwrap();
    }
}

pub(crate) fn a_callback_that_is_never_called_may_use_the_adapter_as_it_goes(bed: &Bed) {
    let nic = Nic::open(&bed.contexts(1)[0]).unwrap();
    let [cq, other] = [16, 16].map(|entries| nic.create_cq(entries).unwrap());
    let (tell, gone) = channel();
    let goes = Goes { nic: Some(nic), other, tell };
    cq.notify(move |_| drop(goes)).unwrap();
    drop(cq);
    gone.recv_timeout(PATIENCE).expect("the callback goes with its queue");
}

pub(crate) fn an_error_that_the_thread_of_callbacks_finds_may_ask_for_a_call(bed: &Bed) {
    let [a, b] = bed.sides();
    let [cq, other] = [1, 16].map(|entries| b.nic.create_cq(entries).unwrap());
    let x = a.vi();
    let y = b.nic.create_vi(&ViAttributes::new(&b.ptag), None, Some(&cq)).unwrap();
    connect((&a, &x), (&b, &y)).unwrap();
    // Neither queue that is polled here is the one of the callbacks.
    let send = |i| {
        y.post_recv(b.written(i, &Request::new(&[b.data(0, 64)]))).unwrap();
        x.post_send(a.written(i, &Request::new(&[a.data(0, 8)]))).unwrap();
        let sent = || {
            assert!(y.send_done().is_none());
            x.send_done()
        };
        assert!(until(&[], "a send", sent).status.is_ok());
    };
    let (told, errors) = channel();
    let told = Mutex::new(told);
    b.nic.set_error_handler(Some(Arc::new(move |error| {
        other.notify(|_| ()).unwrap();
        told.lock().unwrap().send((error.kind, std::thread::current().id())).unwrap();
    })));
    // The thread of callbacks is in one of them while the queue overruns.
    let (called, calls) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let tell = called.clone();
    cq.notify(move |_| {
        called.send(std::thread::current().id()).unwrap();
        let _ = may_go_on.recv();
    })
    .unwrap();
    send(0);
    let thread = next(&calls, &x);
    cq.notify(move |_| tell.send(std::thread::current().id()).unwrap()).unwrap();
    (1..4).for_each(send);
    drop(go_on);
    let told = errors.recv_timeout(PATIENCE).expect("the handler is called, and returns");
    assert_eq!(told, (ErrorKind::Overrun, thread));
    assert_eq!(calls.recv_timeout(PATIENCE), Ok(thread));
    b.nic.set_error_handler(None);
}

pub(crate) fn a_callback_that_panics_is_the_end_of_no_other(bed: &Bed) {
    let pair = bed.pair();
    let (tell, came) = channel();
    pair.b.vi.recv_notify(|_| panic!("a callback panics, as the test wants")).unwrap();
    pair.b.vi.recv_notify(move |done| tell.send(done.length).unwrap()).unwrap();
    for i in 0..2 {
        pair.b.receive(i, 64 * i, 64);
        pair.a.send(i, 0, 7 + i);
    }
    assert_eq!(next(&came, &pair.a.vi), 8);
}

pub(crate) fn an_error_handler_that_panics_leaves_the_adapter_its_thread(bed: &Bed) {
    let pair = bed.pair();
    let (tell, came) = channel();
    pair.a.side.nic.set_error_handler(Some(Arc::new(move |error| {
        tell.send(error.kind).unwrap();
        panic!("an error handler panics, as the test wants");
    })));
    pair.b.vi.disconnect().unwrap();
    assert_eq!(next(&came, &pair.b.vi), ErrorKind::ConnectionLost);
    pair.a.side.nic.set_error_handler(None);
    pair.a.vi.disconnect().unwrap();
    // The thread takes requests.
    connect((&pair.b.side, &pair.b.vi), (&pair.a.side, &pair.a.vi)).unwrap();
}
