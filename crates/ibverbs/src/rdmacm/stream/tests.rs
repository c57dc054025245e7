use std::sync::mpsc::channel;

use super::*;
use crate::waiting::finish;

/// Calls that would wait for the thread of a socket, beside the state in which they do.
type Call = (Phase, fn(&Socket) -> Result<usize, Errno>);
const CALLS: [Call; 3] = [
    (Phase::Open, |socket| finish(socket.recv(1, 0)).map(|bytes| bytes.len())),
    (Phase::Open, |socket| finish(socket.send(1, |_| vec![1], None, true))),
    (Phase::Listening, |socket| finish(socket.accept()).map(|_| 0)),
];

#[test]
fn the_panic_of_a_sockets_thread_ends_the_calls_that_wait_for_it() {
    for (n, (phase, call)) in CALLS.into_iter().enumerate() {
        let socket = Socket::new().unwrap();
        socket.state().phase = phase;
        let (go, gone) = channel::<()>();
        let wait = move || _ = gone.recv();
        socket
            .listening("panics", (), move |_, ()| {
                wait();
                panic!("for the test");
            })
            .unwrap();
        let (tell, told) = channel();
        let caller = Arc::clone(&socket);
        std::thread::spawn(move || tell.send(call(&caller)));
        drop(go);
        let ended = told.recv_timeout(Duration::from_secs(10)).expect("it does not wait for ever");
        assert!(ended.is_err(), "{n}: {ended:?}");
        socket.wait_until(Instant::now() + LINGER, |state| state.threads == 0);
        let state = socket.state();
        assert_eq!((state.threads, state.listening, state.phase), (0, 0, Phase::Failed(Errno(libc::EIO))));
    }
}

#[test]
fn a_datagram_socket_without_its_thread_receives_nothing_and_says_so() {
    let socket = Socket::new().unwrap();
    socket.state().datagrams = Some(Datagrams::default());
    socket.thread("panics", |_| panic!("for the test")).unwrap();
    let (tell, told) = channel();
    let caller = Arc::clone(&socket);
    std::thread::spawn(move || tell.send(finish(caller.recv_datagram(false, true)).map(drop)));
    let ended = told.recv_timeout(Duration::from_secs(10)).expect("it does not wait for ever");
    assert_eq!(ended.map_err(|e| e.0), Err(libc::EIO));
}

/// As when a socket listens on one of its devices, and the next one refuses.
#[test]
fn a_socket_that_listens_no_more_has_no_connections_that_wait() {
    let listening = Socket::new().unwrap();
    listening.state().phase = Phase::Listening;
    let [before, behind] = [(); 2].map(|()| Socket::new().unwrap());
    assert!(listening.offer(&before));
    listening.listen_no_more();
    assert!(!listening.offer(&behind), "nobody takes it");
    assert_eq!((listening.state().accepted.len(), before.state().closing), (0, true));
    assert_eq!(listening.events() & libc::POLLIN, 0);
}

/// As when the thread's device has failed.
#[test]
fn a_socket_without_a_device_that_listens_gives_its_connections_away_and_then_tells_its_error() {
    let socket = Socket::new().unwrap();
    (socket.state().phase, socket.state().backlog) = (Phase::Listening, 8);
    assert!(socket.offer(&Socket::new().unwrap()));
    let [(go, gone), (more, no_more)] = [(); 2].map(|()| channel::<()>());
    socket.listening("fails", (), move |_, ()| _ = gone.recv()).unwrap();
    socket.listening("fails-later", (), move |_, ()| _ = no_more.recv()).unwrap();
    let (tell, told) = channel();
    let caller = Arc::clone(&socket);
    let accept = move || {
        (0..2).for_each(|_| tell.send(finish(caller.accept()).map(|(number, _)| number)).unwrap());
    };
    std::thread::spawn(accept);
    let next = || told.recv_timeout(Duration::from_secs(10)).expect("it does not wait for ever");
    drop(go);
    let number = next().expect("the connection that waited");
    Socket::close(number).unwrap();
    socket.wait_until(Instant::now() + LINGER, |state| state.listening == 1);
    assert_eq!(socket.state().phase, Phase::Listening, "another device listens");
    assert_eq!(socket.events(), 0);
    drop(more);
    assert_eq!(next().unwrap_err().0, libc::EIO);
    let all = libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP;
    assert_eq!(socket.events(), all);
}

#[test]
fn a_datagram_socket_without_a_device_that_receives_says_so() {
    let socket = Socket::new().unwrap();
    socket.state().datagrams = Some(Datagrams::default());
    let (tell, told) = channel();
    let caller = Arc::clone(&socket);
    std::thread::spawn(move || tell.send(finish(caller.recv_datagram(false, true)).map(drop)));
    socket.change(State::receiver_ended);
    let ended = told.recv_timeout(Duration::from_secs(10)).expect("it does not wait for ever");
    assert_eq!(ended.map_err(|e| e.0), Err(libc::EIO));
    assert_ne!(socket.events() & libc::POLLERR, 0);
}
