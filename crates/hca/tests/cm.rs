//! Connections by RDMA CM, between two devices on each kind of network.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Context as TaskContext;
use std::time::Duration;

use hca::cm::wire::{Kind, Reason};
use hca::cm::{
    ConnectParams, Connection, ConnectionError, DatagramListener, Failure, Listener, UDP_QKEY, connect,
    connect_async, connect_with, resolve, resolve_async,
};
use hca::{AsyncQp, CompletionQueue, Completions, Context, Pd, QueuePair, Rc, Reactor, Ud, WcStatus};
use test_support::waiting::ends;
use test_support::wakers;

/// Two devices of a network of this test's own.
fn networks(test: &str) -> Vec<(String, [Context; 2])> {
    let id = std::process::id();
    let names = [
        format!("loopback://{test}-{id}"),
        format!("shm://{test}-{id}"),
        "udp://".into(),
        "auto://".into(),
        one_address("udp", test),
        one_address("auto", test),
        // The manager has a thread of its own.
        "udp://?progress=inline".into(),
        "auto://?progress=thread".into(),
    ];
    names
        .map(|name| {
            (name.clone(), [0; 2].map(|_| hca::open(&name).unwrap_or_else(|e| panic!("{name}: {e}"))))
        })
        .into()
}

/// The name of devices that share an address of this test's own.
fn one_address(scheme: &str, test: &str) -> String {
    let [a, b, c, ..] = RandomState::new().hash_one(test).to_ne_bytes();
    format!("{scheme}://127.{}.{b}.{}?share=8", 90 + a % 100, 1 + c % 254)
}

struct End {
    pd: Pd,
    cq: CompletionQueue,
    qp: QueuePair<Rc>,
}

fn end(context: &Context) -> End {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(256).unwrap();
    let qp = pd.qp::<Rc>(&cq).build().unwrap();
    End { pd, cq, qp }
}

impl End {
    fn next(&mut self) -> (WcStatus, Vec<u8>) {
        let mut wcs = Completions::with_capacity(1);
        let mut got =
            self.cq.wait(&mut wcs, Some(Duration::from_secs(60))).expect("a completion").collect::<Vec<_>>();
        let wc = got.pop().unwrap();
        (wc.status, wc.payload().map(<[u8]>::to_vec).unwrap_or_default())
    }
}

#[test]
fn a_waker_may_use_the_manager_while_it_is_cloned_and_dropped() {
    for (name, [context, _]) in networks("wakers") {
        ends(&name, move || {
            let listener = Listener::bind(&context, "0.0.0.0:0").unwrap();
            let waker = wakers::running(move || drop(Listener::bind(&context, "0.0.0.0:0").unwrap()));
            let mut next = pin!(listener.accept_async());
            for _ in 0..2 {
                assert!(next.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
            }
        });
    }
}

/// A connection of two ends, and the data that each side has of the other.
fn connected([client, server]: &[Context; 2]) -> ([End; 2], [Connection; 2]) {
    let listener = Listener::bind(server, "0.0.0.0:0").unwrap();
    let address = listener.address();
    let [mut a, mut b] = [end(client), end(server)];
    for end in [&mut a, &mut b] {
        end.qp.post_recv(end.pd.alloc(64).unwrap()).unwrap();
    }
    let control = a.qp.control();
    let (from_client, from_server) = std::thread::scope(|s| {
        let asks = s.spawn(|| connect(client, &control, address, b"who is there?").unwrap());
        let incoming = listener.accept().unwrap();
        assert!(incoming.private_data().starts_with(b"who is there?\0"));
        assert_eq!(incoming.source().ip(), client.port().gid.ip());
        let accepted = incoming.accept(&b.qp, b"me").unwrap();
        (asks.join().unwrap(), accepted)
    });
    assert!(from_client.private_data().starts_with(b"me\0"));
    ([a, b], [from_client, from_server])
}

#[test]
fn two_programs_connect_talk_and_disconnect() {
    for (name, contexts) in networks("talk") {
        let ([mut a, mut b], [client, server]) = connected(&contexts);
        for _ in 0..3 {
            a.qp.send_inline(b"over the connection").unwrap();
            assert_eq!(a.next().0, WcStatus::Success, "{name}");
            assert_eq!(b.next(), (WcStatus::Success, b"over the connection".to_vec()), "{name}");
            b.qp.post_recv(b.pd.alloc(64).unwrap()).unwrap();
        }
        assert!(server.is_connected());
        client.disconnect().unwrap();
        assert!(server.wait_disconnected(Some(Duration::from_secs(60))).unwrap(), "{name}");
        assert!(!server.is_connected());
        // The queue pairs of both sides have let go of what was posted.
        assert_eq!((a.next().0, b.next().0), (WcStatus::WrFlushed, WcStatus::WrFlushed), "{name}");
    }
}

/// As Linux's rdma_cm takes the starting PSN of a REQ and a REP.
#[test]
fn each_side_sends_from_the_psn_that_the_other_side_has_chosen() {
    let (_, contexts) = networks("psn").remove(0);
    let ([a, b], _connections) = connected(&contexts);
    for (one, other) in [(&a, &b), (&b, &a)] {
        let attr = one.qp.query().unwrap().attr;
        assert_eq!(attr.sq_psn, Some(other.qp.endpoint().psn));
        assert_eq!(attr.rq_psn, Some(one.qp.endpoint().psn));
    }
}

#[test]
fn a_dropped_connection_is_told_to_the_peer() {
    for (name, contexts) in networks("drop") {
        let (_ends, [client, server]) = connected(&contexts);
        drop(server);
        assert!(client.wait_disconnected(Some(Duration::from_secs(60))).unwrap(), "{name}");
    }
}

/// Each connection has a manager of its own, which ends with it.
#[test]
fn the_last_connection_ends_at_the_peer_though_messages_are_lost() {
    for seed in 1..9 {
        let server = hca::open("udp://").unwrap();
        let client = hca::open(&format!("udp://?fault=loss=0.3,seed={seed}")).unwrap();
        let (_, [of_client, of_server]) = connected(&[client, server]);
        drop(of_client);
        assert!(of_server.wait_disconnected(Some(Duration::from_secs(5))).unwrap(), "seed {seed}");
    }
}

#[test]
fn a_rejection_tells_reason_and_private_data() {
    for (name, [client, server]) in networks("reject") {
        let listener = Listener::bind(&server, "0.0.0.0:0").unwrap();
        let a = end(&client);
        let control = a.qp.control();
        std::thread::scope(|s| {
            let asks = s.spawn(|| connect(&client, &control, listener.address(), b"").unwrap_err());
            listener.accept().unwrap().reject(b"full").unwrap();
            let ConnectionError::Rejected { reason, private_data } = asks.join().unwrap() else {
                panic!("{name}")
            };
            assert_eq!((reason, &private_data[..5]), (Reason::CONSUMER_DEFINED, &b"full\0"[..]), "{name}");
        });
        let address = SocketAddr::new(server.port().gid.ip(), 1);
        let refused = connect(&client, &a.qp, address, b"").unwrap_err();
        assert!(
            matches!(refused, ConnectionError::Rejected { reason: Reason::INVALID_SERVICE_ID, .. }),
            "{refused}"
        );
        // A queue pair that was rejected can still be connected.
        std::thread::scope(|s| {
            let asks = s.spawn(|| connect(&client, &control, listener.address(), b"").unwrap());
            let b = end(&server);
            let accepted = listener.accept().unwrap().accept(&b.qp, b"").unwrap();
            drop((asks.join().unwrap(), accepted));
        });
    }
}

/// As in programs that serve one peer.
#[test]
fn a_request_that_was_taken_outlives_its_listener() {
    for (name, [client, server]) in networks("taken") {
        let listener = Listener::bind(&server, "0.0.0.0:0").unwrap();
        let (address, [a, b]) = (listener.address(), [end(&client), end(&server)]);
        let control = a.qp.control();
        std::thread::scope(|s| {
            let asks = s.spawn(|| connect(&client, &control, address, b""));
            let incoming = listener.accept().unwrap();
            drop(listener);
            let accepted = incoming.accept(&b.qp, b"").unwrap_or_else(|e| panic!("{name}: {e}"));
            drop((asks.join().unwrap().unwrap(), accepted));
        });
    }
}

#[test]
fn a_datagram_service_is_resolved() {
    for (name, [client, server]) in networks("sidr") {
        let pds = [&client, &server].map(|c| c.alloc_pd().unwrap());
        let mut cqs = [&client, &server].map(|c| c.create_cq(256).unwrap());
        let [mut from, mut to] = [0, 1].map(|i| pds[i].qp::<Ud>(&cqs[i]).build().unwrap());
        for qp in [&from, &to] {
            qp.activate(UDP_QKEY).unwrap();
        }
        to.post_recv(pds[1].alloc(128).unwrap()).unwrap();
        let listener = DatagramListener::bind(&server, "0.0.0.0:0").unwrap();
        let found = std::thread::scope(|s| {
            let asks = s.spawn(|| resolve(&client, listener.address(), b"news?").unwrap());
            let request = listener.accept_within(None).unwrap().unwrap();
            assert!(request.private_data().starts_with(b"news?\0"));
            request.accept(&to, UDP_QKEY, b"here").unwrap();
            asks.join().unwrap()
        });
        assert_eq!((found.qpn, &found.private_data[..5]), (to.qpn(), &b"here\0"[..]), "{name}");
        from.send_to(hca::Inline(b"hello"), &found.peer(&pds[0]).unwrap()).unwrap();
        let mut wcs = Completions::default();
        let got: Vec<_> = cqs[1].wait(&mut wcs, Some(Duration::from_secs(60))).unwrap().collect();
        assert_eq!(got[0].payload(), Some(&b"hello"[..]), "{name}");
        let nobody = SocketAddr::new(server.port().gid.ip(), 1);
        assert!(matches!(resolve(&client, nobody, b""), Err(ConnectionError::Unresolved { .. })), "{name}");
    }
}

#[test]
fn a_port_has_one_listener_and_an_address_has_to_be_the_devices() {
    let context = hca::open(&format!("loopback://ports-{}", std::process::id())).unwrap();
    let listener = Listener::bind(&context, "0.0.0.0:7471").unwrap();
    assert!(matches!(Listener::bind(&context, "0.0.0.0:7471"), Err(ConnectionError::Cm(_))));
    assert!(matches!(Listener::bind(&context, "192.0.2.1:7472"), Err(ConnectionError::NotLocal { .. })));
    drop(listener);
    Listener::bind(&context, "0.0.0.0:7471").unwrap();
}

#[test]
fn many_connections_come_and_go() {
    for (name, contexts) in networks("many") {
        let [client, server] = &contexts;
        let listener = Listener::bind(server, "0.0.0.0:0").unwrap();
        let begun = std::time::Instant::now();
        let count = 100;
        std::thread::scope(|s| {
            s.spawn(|| {
                for _ in 0..count {
                    let b = end(server);
                    let connection = listener.accept().unwrap().accept(&b.qp, b"").unwrap();
                    connection.wait_disconnected(None).unwrap();
                }
            });
            for _ in 0..count {
                let a = end(client);
                connect(client, &a.qp, listener.address(), b"").unwrap().disconnect().unwrap();
            }
        });
        println!("{name}: {:.0} connections a second", f64::from(count) / begun.elapsed().as_secs_f64());
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn async_qp(context: &Context) -> (Pd, AsyncQp<Rc>) {
    let pd = context.alloc_pd().unwrap();
    let reactor = Reactor::spawn(context.create_cq(256).unwrap()).unwrap();
    let qp = pd.qp::<Rc>(&reactor).build_async(&reactor).unwrap();
    qp.post_recv(pd.alloc(64).unwrap()).unwrap();
    (pd, qp)
}

#[test]
fn tasks_connect_talk_and_disconnect() {
    for (name, [client, server]) in networks("tasks") {
        runtime().block_on(async {
            let listener = Listener::bind(&server, "0.0.0.0:0").unwrap();
            let address = listener.address();
            let serving = tokio::spawn(async move {
                let (_pd, qp) = async_qp(&server);
                let incoming = listener.accept_async().await.unwrap();
                assert!(incoming.private_data().starts_with(b"a task\0"));
                let connection = incoming.accept_async(&qp, b"another").await.unwrap();
                let heard = qp.recv().await.unwrap();
                // The client ends the connection once it has this, which may be before the acknowledgement is here.
                let _ = qp.send(hca::Inline(&heard[..])).await;
                drop(heard);
                connection.disconnected().await.unwrap();
                qp.query().unwrap().state
            });
            let (_pd, qp) = async_qp(&client);
            let params = ConnectParams { private_data: b"a task", ..ConnectParams::default() };
            let connection = connect_async(&client, &qp, address, &params).await.unwrap();
            assert!(connection.private_data().starts_with(b"another\0"), "{name}");
            qp.send(hca::Inline(b"echo")).await.unwrap();
            assert_eq!(&qp.recv().await.unwrap()[..], b"echo", "{name}");
            connection.disconnect_async().await.unwrap();
            assert_eq!(serving.await.unwrap(), hca::hca_core::QpState::Error, "{name}");
        });
    }
}

#[test]
fn a_service_is_resolved_by_tasks() {
    let [client, server] = networks("tasks-sidr").remove(0).1;
    runtime().block_on(async {
        let listener = DatagramListener::bind(&server, "0.0.0.0:0").unwrap();
        let (pd, cq) = (server.alloc_pd().unwrap(), server.create_cq(256).unwrap());
        let qp = pd.qp::<Ud>(&cq).build().unwrap();
        let ask = resolve_async(&client, listener.address(), b"news?");
        let answer = async { listener.accept_async().await?.accept(&qp, UDP_QKEY, b"here") };
        let (found, answered) = tokio::join!(ask, answer);
        answered.unwrap();
        assert_eq!(found.unwrap().qpn, qp.qpn());
    });
}

/// A future that is polled once, and dropped.
fn poll_once<T>(future: impl Future<Output = T>) {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(std::pin::pin!(future).poll(&mut cx).is_pending());
}

#[test]
fn a_dropped_future_takes_its_request_back_and_loses_none() {
    for (name, [client, server]) in networks("dropped") {
        let listener = Listener::bind(&server, "0.0.0.0:0").unwrap();
        let address = listener.address();
        // The client's manager stays, and answers a reply to the request that was taken back.
        let _stays = Listener::bind(&client, "0.0.0.0:0").unwrap();
        poll_once(listener.accept_async());
        let (a, b) = (end(&client), end(&server));
        poll_once(connect_async(&client, &a.qp, address, &ConnectParams::default()));
        // The request and its end may both have come before the listener looks.
        let first = listener.accept_within(Some(Duration::from_millis(100))).unwrap();
        let mut has_come = first.is_some();
        if let Some(incoming) = first {
            incoming.accept(&b.qp, b"").unwrap_err();
        }
        let control = a.qp.control();
        std::thread::scope(|s| {
            let asks = s.spawn(|| connect(&client, &control, address, b"again").unwrap());
            let (b, accepted) = loop {
                let incoming = listener.accept().unwrap();
                let (b, is_second) = (end(&server), incoming.private_data().starts_with(b"again\0"));
                match incoming.accept(&b.qp, b"") {
                    Ok(accepted) => break (b, accepted),
                    // Beside other work it may come later than the listener waits.
                    Err(_) if !is_second && !has_come => has_come = true,
                    Err(e) => panic!("{name}: {e}"),
                }
            };
            drop((asks.join().unwrap(), accepted));
            drop(b);
        });
    }
}

#[test]
fn a_connect_gives_up_at_the_time_that_the_program_says() {
    for (name, [client, server]) in networks("timeout") {
        let a = end(&client);
        let params = ConnectParams { timeout: Some(Duration::from_millis(20)), ..ConnectParams::default() };
        // Nobody listens on queue pair 1 there, unless this side does so, as it has the same address.
        if !name.contains("share=") {
            let address = SocketAddr::new(server.port().gid.ip(), 7471);
            let late = connect_with(&client, &a.qp, address, &params).unwrap_err();
            let on_time = matches!(late, ConnectionError::TimedOut(time) if time.as_millis() == 20);
            assert!(on_time, "{name}: {late}");
        }
        // The queue pair can still be connected, and the time is that of the connect alone.
        let listener = Listener::bind(&server, "0.0.0.0:0").unwrap();
        let control = a.qp.control();
        let params = ConnectParams { timeout: Some(Duration::from_secs(60)), ..params };
        std::thread::scope(|s| {
            let asks = s.spawn(|| connect_with(&client, &control, listener.address(), &params).unwrap());
            let b = end(&server);
            let _accepted = listener.accept().unwrap().accept(&b.qp, b"").unwrap();
            assert!(asks.join().unwrap().is_connected(), "{name}");
        });
    }
}

#[test]
#[ignore = "takes 26 s: a request without an answer"]
fn a_port_without_a_connection_manager_is_told_by_silence() {
    let [client, server] =
        [0; 2].map(|_| hca::open(&format!("loopback://silent-{}", std::process::id())).unwrap());
    let a = end(&client);
    let address = SocketAddr::new(server.port().gid.ip(), 7471);
    let failed = connect(&client, &a.qp, address, b"").unwrap_err();
    assert!(matches!(failed, ConnectionError::Failed(Failure::NoAnswer(Kind::Req))), "{failed}");
}

#[test]
fn listeners_at_one_address_do_not_disturb_each_other() {
    for scheme in ["udp", "auto"] {
        let name = one_address(scheme, "listeners");
        let [a, b, c] = [0; 3].map(|_| hca::open(&name).unwrap_or_else(|e| panic!("{name}: {e}")));
        let elsewhere = hca::open(&format!("{scheme}://")).unwrap();
        let [at_a, at_b] = [(&a, "0.0.0.0:7471"), (&b, "0.0.0.0:7472")]
            .map(|(context, address)| (context, Listener::bind(context, address).unwrap()));
        // A service has one listener at an address, whichever process has it.
        let taken = Listener::bind(&b, "0.0.0.0:7471").unwrap_err();
        assert!(matches!(taken, ConnectionError::Cm(hca::cm::CmError::InUse { .. })), "{taken}");
        for client in [&c, &a, &b, &elsewhere] {
            for (server, listener) in [&at_a, &at_b] {
                let ends = [end(client), end(server)];
                let control = ends[0].qp.control();
                std::thread::scope(|s| {
                    let asks = s.spawn(|| connect(client, &control, listener.address(), b"").unwrap());
                    let incoming = listener.accept_within(Some(Duration::from_secs(60))).unwrap();
                    let accepted = incoming.expect("a request").accept(&ends[1].qp, b"").unwrap();
                    let connection = asks.join().unwrap();
                    connection.disconnect().unwrap();
                    assert!(accepted.wait_disconnected(Some(Duration::from_secs(60))).unwrap());
                });
            }
            let nobody = SocketAddr::new(a.port().gid.ip(), 7473);
            let refused = connect(client, &end(client).qp, nobody, b"").unwrap_err();
            let ConnectionError::Rejected { reason, .. } = refused else { panic!("{refused}") };
            assert_eq!(reason, Reason::INVALID_SERVICE_ID);
        }
        // A listener that has gone leaves its service to another process.
        drop(at_a);
        drop(a);
        drop(Listener::bind(&b, "0.0.0.0:7471").unwrap());
    }
}
