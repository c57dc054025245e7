//! Peers that ask for each other.

use std::time::Duration;

use hca_cm::{ConnectParams, ConnectionError};
use hca_verbs::Rc;
use hca_via::{NetAddress, Reliability, Request, ReturnCode, ViAttributes, ViState};

use crate::bed::{Bed, PATIENCE, Side, code, name, until};

fn at(side: &Side, text: &str) -> NetAddress {
    NetAddress { host: side.nic.attributes().host, discriminator: name(text) }
}

pub(crate) fn peers_connect_whichever_asks_first(bed: &Bed) {
    for reversed in [false, true] {
        let [a, b] = bed.sides();
        let [x, y] = [a.vi(), b.vi()];
        y.post_recv(b.written(0, &Request::new(&[b.data(0, 64)]))).unwrap();
        let asks = [(&x, "left", at(&b, "right")), (&y, "right", at(&a, "left"))];
        let order: [usize; 2] = if reversed { [1, 0] } else { [0, 1] };
        for (i, &which) in order.iter().enumerate() {
            let (vi, local, remote) = &asks[which];
            vi.peer_request(name(local), remote, Some(PATIENCE)).unwrap();
            assert!(i == 1 || vi.peer_done().unwrap().is_none(), "the other side has not asked");
        }
        until(&[&x, &y], "the connection", || x.peer_done().unwrap().zip(y.peer_done().unwrap()));
        assert_eq!(x.peer_wait().unwrap().reliability, Reliability::Delivery);
        assert_eq!([x.state(), y.state()], [ViState::Connected; 2]);
        x.post_send(a.written(0, &Request::new(&[a.data(0, 8)]))).unwrap();
        assert!(until(&[&x, &y], "a message", || y.recv_done()).status.is_ok());
    }
}

pub(crate) fn a_peer_that_does_not_ask_is_a_timeout(bed: &Bed) {
    let [a, b] = bed.sides();
    // One of them asks again and again, and the other waits to be asked.
    for (side, remote) in [(&a, at(&b, "silent")), (&b, at(&a, "silent"))] {
        let vi = side.vi();
        vi.peer_request(name("asker"), &remote, Some(Duration::from_millis(80))).unwrap();
        assert_eq!(vi.state(), ViState::ConnectPending);
        assert_eq!(code(vi.peer_wait()), ReturnCode::Timeout);
        assert_eq!(code(vi.peer_done()), ReturnCode::InvalidState, "it is told once");
        assert_eq!(vi.state(), ViState::Idle);
    }
    let vi = a.vi();
    assert_eq!(code(vi.peer_request(name("me"), &at(&a, "me"), None)), ReturnCode::InvalidParameter);
}

pub(crate) fn a_peer_of_other_attributes_is_refused(bed: &Bed) {
    let [a, b] = bed.sides();
    let unreliable =
        |attributes: ViAttributes| ViAttributes { reliability: Reliability::Unreliable, ..attributes };
    let [x, y] = [a.vi(), b.vi_with(unreliable)];
    x.peer_request(name("left"), &at(&b, "right"), Some(PATIENCE)).unwrap();
    y.peer_request(name("right"), &at(&a, "left"), Some(PATIENCE)).unwrap();
    for vi in [&x, &y] {
        assert_eq!(code(vi.peer_wait()), ReturnCode::InvalidReliabilityLevel);
        assert_eq!(vi.state(), ViState::Idle);
    }
}

pub(crate) fn a_client_is_no_peer(bed: &Bed) {
    let [a, b] = bed.sides();
    let [x, y] = [a.vi(), b.vi()];
    for (vi, to) in [(&x, at(&b, "right")), (&y, at(&a, "left"))] {
        let (local, asks) = if to.host == b.nic.attributes().host && to == at(&b, "right") {
            ("left", &y)
        } else {
            ("right", &x)
        };
        vi.peer_request(name(local), &to, Some(Duration::from_millis(50))).unwrap();
        let here = NetAddress {
            host: if local == "left" { a.nic.attributes().host } else { b.nic.attributes().host },
            discriminator: name(local),
        };
        assert_eq!(code(asks.connect(name("client"), &here, None)), ReturnCode::NoMatch);
        assert_eq!(code(vi.peer_wait()), ReturnCode::Timeout);
    }
}

pub(crate) fn a_peer_request_is_taken_back_by_a_disconnect(bed: &Bed) {
    let [a, b] = bed.sides();
    for (side, remote) in [(&a, at(&b, "silent")), (&b, at(&a, "silent"))] {
        let vi = side.vi();
        vi.peer_request(name("asker"), &remote, None).unwrap();
        vi.disconnect().unwrap();
        assert_eq!(vi.state(), ViState::Idle);
        vi.peer_request(name("asker"), &remote, None).unwrap();
        // Dropped, it ends as well.
    }
}

/// What the peer "first" of the tests says when it asks "hello".
fn hello_of_first() -> [u8; 45] {
    let mut hello = [0; 45];
    hello[..13].copy_from_slice(&[b'V', b'I', b'A', b'1', 1, 2, 3, 0, 0x10, 0, 0, 5, 5]);
    hello[13..18].copy_from_slice(b"first");
    hello[29..34].copy_from_slice(b"hello");
    hello
}

pub(crate) fn a_peer_that_gives_up_while_it_is_accepted_may_ask_again(bed: &Bed) {
    /// The first port of the discriminator "hello".
    const PORT: u16 = 42_317;
    let mut contexts = bed.contexts(2);
    contexts.sort_by_key(|context| context.port().gid.ip());
    let [a, b] = [0, 1].map(|i| Side::new(&contexts[i]));
    let [x, y] = [a.vi(), b.vi()];
    y.post_recv(b.written(0, &Request::new(&[b.data(0, 64)]))).unwrap();
    y.peer_request(name("hello"), &at(&a, "first"), Some(2 * PATIENCE)).unwrap();

    let pd = contexts[0].alloc_pd().unwrap();
    let cq = contexts[0].create_cq(256).unwrap();
    let (asker, _) = pd.qp::<Rc>(&cq.reference()).build().unwrap().split();
    let to = std::net::SocketAddr::new(b.nic.attributes().host, PORT);
    // A client is refused with words of its own once the other side waits.
    until(&[&x, &y], "the other side to wait", || {
        let mut client = hello_of_first();
        client[4] = 0;
        let params = ConnectParams { private_data: &client, ..ConnectParams::default() };
        let refused = hca_cm::connect_with(&contexts[0], asker.control(), to, &params).unwrap_err();
        matches!(refused, ConnectionError::Rejected { private_data, .. } if private_data.starts_with(b"VIA1"))
            .then_some(())
    });
    // One whose queue pair is of no use takes its request back when the answer comes.
    asker.control().to_error().unwrap();
    let hello = hello_of_first();
    let params = ConnectParams { private_data: &hello, ..ConnectParams::default() };
    let refused = hca_cm::connect_with(&contexts[0], asker.control(), to, &params).unwrap_err();
    assert!(matches!(refused, ConnectionError::QueuePair(_)), "the other side has answered: {refused}");
    x.peer_request(name("first"), &at(&b, "hello"), Some(PATIENCE)).unwrap();
    until(&[&x, &y], "the connection", || x.peer_done().unwrap().zip(y.peer_done().unwrap()));
    x.post_send(a.written(0, &Request::new(&[a.data(0, 8)]))).unwrap();
    let received = until(&[&x, &y], "a message", || y.recv_done());
    assert!(received.status.is_ok(), "the descriptor that was posted before: {received:?}");
}
