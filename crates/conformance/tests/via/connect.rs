//! Clients and servers.

use std::time::Duration;

use hca_via::{NetAddress, Reliability, Request, ReturnCode, ViAttributes, ViState};

use crate::bed::{Bed, PATIENCE, Side, code, connect, name, until};

fn at(side: &Side, text: &str) -> NetAddress {
    NetAddress { host: side.nic.attributes().host, discriminator: name(text) }
}

pub(crate) fn a_client_finds_the_server_by_its_discriminator(bed: &Bed) {
    let [a, b] = bed.sides();
    let servers = ["one", "two", "three"].map(|text| (text, b.nic.listen(name(text)).unwrap()));
    for (text, listener) in &servers {
        let (client, server) = (a.vi(), b.vi());
        std::thread::scope(|s| {
            let asks = s.spawn(|| client.connect(name("me"), &at(&b, text), Some(PATIENCE)).unwrap());
            let request = listener.wait(Some(PATIENCE)).unwrap();
            assert_eq!(request.remote(), at(&a, "me"));
            assert_eq!(request.attributes().reliability, Reliability::Delivery);
            request.accept(&server).unwrap();
            assert_eq!(asks.join().unwrap().max_transfer_size, 1 << 20);
        });
        assert_eq!([client.state(), server.state()], [ViState::Connected; 2]);
        assert_eq!(code(client.connect(name("me"), &at(&b, text), None)), ReturnCode::InvalidState);
    }
}

pub(crate) fn a_vi_knows_whether_its_peer_takes_bytes_from_its_memory(bed: &Bed) {
    let pair = bed.pair();
    assert_eq!([pair.a.vi.is_near(), pair.b.vi.is_near()], [bed.is_near(); 2]);
    assert!(!pair.a.side.vi().is_near(), "one without a peer");
}

pub(crate) fn nobody_who_waits_is_no_match(bed: &Bed) {
    let [a, b] = bed.sides();
    let client = a.vi();
    assert_eq!(code(client.connect(name("me"), &at(&b, "nobody"), None)), ReturnCode::NoMatch);
    let listener = b.nic.listen(name("nobody")).unwrap();
    drop(listener);
    assert_eq!(code(client.connect(name("me"), &at(&b, "nobody"), None)), ReturnCode::NoMatch);
    assert_eq!(client.state(), ViState::Idle);
}

pub(crate) fn a_rejection_is_told(bed: &Bed) {
    let [a, b] = bed.sides();
    let (client, listener) = (a.vi(), b.nic.listen(name("strict")).unwrap());
    std::thread::scope(|s| {
        let asks = s.spawn(|| client.connect(name("me"), &at(&b, "strict"), None));
        listener.wait(Some(PATIENCE)).unwrap().reject();
        assert_eq!(code(asks.join().unwrap()), ReturnCode::Reject);
    });
    assert_eq!(client.state(), ViState::Idle);
}

pub(crate) fn a_server_that_does_not_answer_is_a_timeout(bed: &Bed) {
    let [a, b] = bed.sides();
    let (client, listener) = (a.vi(), b.nic.listen(name("lazy")).unwrap());
    let asked = client.connect(name("me"), &at(&b, "lazy"), Some(Duration::from_millis(100)));
    assert_eq!(code(asked), ReturnCode::Timeout);
    assert_eq!(client.state(), ViState::Idle);
    // The request of a client that has given up is accepted by nobody.
    if let Ok(request) = listener.wait(Some(Duration::ZERO)) {
        let server = b.vi();
        assert!(request.accept(&server).is_err());
        assert_eq!(server.state(), ViState::Idle);
    }
    assert_eq!(code(listener.wait(Some(Duration::from_millis(1))).map(drop)), ReturnCode::Timeout);
}

pub(crate) fn so_many_clients_wait_for_a_server(bed: &Bed) {
    let [a, b] = bed.sides();
    let (client, listener) = (a.vi(), b.nic.listen(name("lazy")).unwrap());
    for _ in 0..400 {
        let asked = client.connect(name("me"), &at(&b, "lazy"), Some(Duration::from_millis(1)));
        // At a shared address the next request may overtake the word that this one was given up.
        assert_eq!(code(asked), ReturnCode::Timeout);
    }
    // Clients that wait at the listener, and those of its connection manager.
    let waited = std::iter::from_fn(|| listener.wait(Some(Duration::ZERO)).ok()).count();
    assert!((1..=256).contains(&waited), "{waited} requests of clients that have gone");
    // One that comes then is found.
    let server = b.vi();
    std::thread::scope(|s| {
        let asks = s.spawn(|| client.connect(name("last"), &at(&b, "lazy"), Some(PATIENCE)));
        let requests = std::iter::from_fn(|| listener.wait(Some(PATIENCE)).ok());
        let mut last = requests.skip_while(|request| request.remote() != at(&a, "last"));
        last.next().unwrap().accept(&server).unwrap();
        asks.join().unwrap().unwrap();
    });
}

pub(crate) fn other_attributes_are_refused_on_both_sides(bed: &Bed) {
    let [a, b] = bed.sides();
    let other = |attributes: ViAttributes| ViAttributes { max_transfer_size: 99, ..attributes };
    let unreliable =
        |attributes: ViAttributes| ViAttributes { reliability: Reliability::Unreliable, ..attributes };
    for (server, expected) in [
        (b.vi_with(other), ReturnCode::InvalidMtu),
        (b.vi_with(unreliable), ReturnCode::InvalidReliabilityLevel),
    ] {
        let (client, listener) = (a.vi(), b.nic.listen(name("strict")).unwrap());
        std::thread::scope(|s| {
            let asks = s.spawn(|| client.connect(name("me"), &at(&b, "strict"), None));
            let accepted = listener.wait(Some(PATIENCE)).unwrap().accept(&server);
            assert_eq!(code(accepted), expected);
            assert_eq!(code(asks.join().unwrap()), expected);
        });
        assert_eq!([client.state(), server.state()], [ViState::Idle; 2]);
    }
}

pub(crate) fn of_two_listeners_with_one_discriminator_the_earlier_gets_the_requests(bed: &Bed) {
    let [a, b] = bed.sides();
    let mut listeners: Vec<_> = (0..2).map(|_| b.nic.listen(name("same")).unwrap()).collect();
    for left in [2, 1] {
        let (client, server) = (a.vi(), b.vi());
        std::thread::scope(|s| {
            let asks = s.spawn(|| client.connect(name("me"), &at(&b, "same"), Some(PATIENCE)));
            listeners[0].wait(Some(PATIENCE)).unwrap().accept(&server).unwrap();
            asks.join().unwrap().unwrap();
        });
        assert_eq!(listeners.len(), left);
        listeners.remove(0);
    }
}

pub(crate) fn a_vi_that_was_rejected_keeps_its_receive_descriptors(bed: &Bed) {
    let [a, b] = bed.sides();
    let (client, server) = (a.vi(), b.vi());
    client.post_recv(a.written(0, &Request::new(&[a.data(0, 64)]))).unwrap();
    assert_eq!(code(client.connect(name("me"), &at(&b, "nobody"), None)), ReturnCode::NoMatch);
    connect((&a, &client), (&b, &server)).unwrap();
    server.post_send(b.written(0, &Request::new(&[b.data(0, 8)]))).unwrap();
    let received = until(&[&client, &server], "a message", || client.recv_done());
    assert!(received.status.is_ok());
}

pub(crate) fn many_vis_connect_at_once(bed: &Bed) {
    const COUNT: usize = 12;
    let [a, b] = bed.sides();
    let listener = b.nic.listen(name("busy")).unwrap();
    let (clients, servers): (Vec<_>, Vec<_>) = (0..COUNT).map(|_| (a.vi(), b.vi())).unzip();
    std::thread::scope(|s| {
        for client in &clients {
            s.spawn(|| client.connect(name("me"), &at(&b, "busy"), Some(PATIENCE)).unwrap());
        }
        for server in &servers {
            listener.wait(Some(PATIENCE)).unwrap().accept(server).unwrap();
        }
    });
    assert!(clients.iter().chain(&servers).all(|vi| vi.state() == ViState::Connected));
}
