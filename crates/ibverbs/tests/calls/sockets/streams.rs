//! The ends of streams, their ports, and what their calls do in the way.

use std::time::Duration;

use super::super::waits::{Call, LONG, handle, join, start};
use super::*;

/// Sends until neither side takes more. The bytes that were sent.
pub(super) fn fill(socket: c_int) -> usize {
    let (chunk, mut sent) = ([7_u8; 50_000], 0);
    loop {
        let now = cm!(rsend(socket, chunk.as_ptr(), chunk.len(), libc::MSG_DONTWAIT) -> isize);
        match usize::try_from(now) {
            Ok(now) => sent += now,
            Err(_) => assert_eq!(errno(), libc::EAGAIN),
        }
        if now < 0 && events(socket, libc::POLLOUT, 300) == 0 {
            return sent;
        }
    }
}
/// Reads to the end of the stream. The bytes that came.
pub(super) fn drain(socket: c_int) -> usize {
    let (mut room, mut came) = ([0_u8; 50_000], 0);
    loop {
        assert_ne!(events(socket, libc::POLLIN, 60_000) & libc::POLLIN, 0, "{came} bytes, and no end");
        match cm!(rrecv(socket, room.as_mut_ptr(), room.len(), 0) -> isize) {
            0 => return came,
            now => came += usize::try_from(now).unwrap_or_else(|_| panic!("{came} bytes, {}", errno())),
        }
    }
}

#[test]
fn the_end_of_a_stream_follows_what_was_sent_though_there_is_no_room_for_it_yet() {
    let [client, server] = pair();
    let sent = fill(client);
    assert_eq!(cm!(rfcntl(client, libc::F_SETFL, libc::O_NONBLOCK)), 0);
    assert_eq!(cm!(rshutdown(client, libc::SHUT_WR)), 0, "{}", errno());
    assert_eq!((cm!(rsend(client, b"x".as_ptr(), 1, 0) -> isize), errno()), (-1, libc::EPIPE));
    assert_eq!(drain(server), sent);
    assert_eq!([cm!(rclose(client)), cm!(rclose(server))], [0, 0]);
}

#[test]
fn a_connection_that_its_peer_has_closed_ends_without_an_error() {
    let [client, server] = pair();
    assert_eq!(cm!(rclose(server)), 0);
    while events(client, libc::POLLIN, 60_000) & libc::POLLHUP == 0 {}
    assert_eq!(cm!(rshutdown(client, libc::SHUT_RDWR)), 0, "{}", errno());
    let (mut error, mut len) = (-1, 4_u32);
    assert_eq!(cm!(rgetsockopt(client, libc::SOL_SOCKET, libc::SO_ERROR, &raw mut error, &raw mut len)), 0);
    assert_eq!(error, 0);
    assert_eq!(cm!(rclose(client)), 0);
}

/// Nobody reads any more what comes to a socket that is closed.
#[test]
fn a_socket_that_is_closed_keeps_nobody_from_sending() {
    let [client, server] = pair();
    let sent = fill(client);
    fill(server);
    assert_eq!(cm!(rclose(client)), 0);
    assert_ne!(events(server, libc::POLLOUT, 20_000), 0, "the peer waits for a reader that has gone");
    assert_eq!(drain(server), sent);
    assert_eq!(cm!(rclose(server)), 0);
}

#[test]
fn a_signal_ends_a_call_that_waits_for_a_socket_if_its_handler_is_of_that_kind() {
    let test =
        "sockets::streams::a_signal_ends_a_call_that_waits_for_a_socket_if_its_handler_is_of_that_kind";
    if !alone(test, "signal") {
        return;
    }
    let [client, server] = pair();
    let (listener, _) = listening();
    let symbol = |name| common::symbol(name, "RDMACM_1.0").unwrap();
    let mut byte = 0_u8;
    let call = |at, socket: c_int, room: *mut u8| {
        Call::new(at, &[socket as usize, room as usize, usize::from(!room.is_null())])
    };
    let mut calls =
        [call(symbol("raccept"), listener, null_mut()), call(symbol("rread"), server, &raw mut byte)];
    handle(libc::SIGUSR1, 0);
    for call in &mut calls {
        let thread = start(call);
        // SAFETY: a thread that was not joined.
        assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
        assert!(join(thread, LONG).is_some());
        assert_eq!((call.result, call.errno), (-1, libc::EINTR));
    }
    handle(libc::SIGUSR1, libc::SA_RESTART);
    let read = &mut calls[1];
    let thread = start(read);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
    assert!(join(thread, Duration::from_millis(300)).is_none());
    assert_eq!(cm!(rsend(client, b"x".as_ptr(), 1, 0) -> isize), 1);
    assert!(join(thread, LONG).is_some());
    assert_eq!((read.result, byte), (1, b'x'));
    assert_eq!([client, server, listener].map(|socket| cm!(rclose(socket))), [0; 3]);
}

/// Sets how many descriptors this process may have. The number before.
fn descriptors(limit: libc::rlim_t) -> libc::rlim_t {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for the limits, and limits.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits), 0);
        let now = libc::rlimit { rlim_cur: limit, ..limits };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const now), 0);
    }
    limits.rlim_cur
}

#[test]
fn a_connection_whose_number_or_address_has_no_place_is_not_lost() {
    if !alone("sockets::streams::a_connection_whose_number_or_address_has_no_place_is_not_lost", "alone") {
        return;
    }
    let (listener, port) = listening();
    let to = address([127, 0, 0, 1], port);
    let clients = [socket(), socket()];
    for client in clients {
        assert_eq!(cm!(rconnect(client, &raw const to, 16)), 0, "{}", errno());
    }
    // More than the peers' first buffers and its own take: then the peer's thread has what it needs.
    for _ in 0..40 {
        for client in clients {
            assert_eq!(cm!(rsend(client, b"n".as_ptr(), 1, 0) -> isize), 1, "{}", errno());
        }
    }
    assert_eq!(events(listener, libc::POLLIN, 60_000), libc::POLLIN);
    // The process's own are open already.
    let before = descriptors(8);
    let refused = (cm!(raccept(listener, NONE, NONE)), errno());
    descriptors(before);
    assert_eq!(refused, (-1, libc::EMFILE));
    let mut from = address([0; 4], 7);
    let accept = |from| {
        assert_eq!(events(listener, libc::POLLIN, 10_000), libc::POLLIN, "a connection is lost");
        cm!(raccept(listener, from, NONE))
    };
    let servers = [accept(&raw mut from), accept(null_mut())];
    assert_eq!(from.sin_port, 7_u16.to_be(), "its length has no place");
    for (client, server) in clients.into_iter().zip(servers) {
        let mut byte = 0_u8;
        assert_ne!(events(server, libc::POLLIN, 10_000), 0, "the connection is not there: {server}");
        assert_eq!((cm!(rrecv(server, &raw mut byte, 1, 0) -> isize), byte), (1, b'n'));
        assert_eq!(cm!(rsend(server, b"n".as_ptr(), 1, 0) -> isize), 1, "{}", errno());
        assert_eq!((cm!(rrecv(client, &raw mut byte, 1, 0) -> isize), byte), (1, b'n'));
    }
    for socket in [listener, clients[0], clients[1], servers[0], servers[1]] {
        assert_eq!(cm!(rclose(socket)), 0);
    }
}

#[test]
fn the_descriptors_of_a_closed_socket_go_with_its_connection() {
    if !alone("sockets::streams::the_descriptors_of_a_closed_socket_go_with_its_connection", "alone") {
        return;
    }
    // Of the kind that sockets and waits have: the device opens others when it needs them.
    let open = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        let is_of_kind = |entry: std::io::Result<std::fs::DirEntry>| {
            let target = entry.and_then(|entry| std::fs::read_link(entry.path()));
            target.is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
        };
        all.map(is_of_kind).filter(|is_of_kind| *is_of_kind).count()
    };
    // The device is open.
    let (listener, _) = listening();
    let before = open();
    for socket in pair() {
        assert_eq!(cm!(rclose(socket)), 0);
    }
    let begun = std::time::Instant::now();
    while open() > before {
        assert!(begun.elapsed() < LONG, "{} descriptors are open, and not {before}", open());
        std::thread::yield_now();
    }
    assert_eq!(cm!(rclose(listener)), 0);
}

#[test]
fn what_has_no_place_in_the_program_is_not_taken() {
    let [client, server] = pair();
    assert_eq!(cm!(rsend(client, b"ab".as_ptr(), 2, 0) -> isize), 2);
    assert_eq!(events(server, libc::POLLIN, 60_000), libc::POLLIN);
    let refused = (cm!(rrecv(server, NONE, 2, 0) -> isize), errno());
    assert_eq!(refused, (-1, libc::EFAULT));
    // An address without a place for its length is not told.
    let (mut bytes, mut from) = ([0_u8; 2], address([0; 4], 7));
    let got = cm!(rrecvfrom(server, bytes.as_mut_ptr(), 2, libc::MSG_DONTWAIT, &raw mut from, NONE) -> isize);
    assert_eq!((got, &bytes, from.sin_port), (2, b"ab", 7_u16.to_be()), "{}", errno());
    assert_eq!([client, server].map(|socket| cm!(rclose(socket))), [0; 2]);
}

#[test]
fn a_call_that_the_system_has_no_thread_for_may_be_made_again() {
    if !alone("sockets::streams::a_call_that_the_system_has_no_thread_for_may_be_made_again", "alone") {
        return;
    }
    let (listener, port) = listening();
    let [(sender, _), (receiver, at)] = [datagrams(0), datagrams(0)];
    let (client, to) = (socket(), address([127, 0, 0, 1], port));
    forbid(&[libc::SYS_clone, libc::SYS_clone3]);
    for round in 0..2 {
        let connected = (cm!(rconnect(client, &raw const to, 16)), errno());
        assert_eq!(connected, (-1, libc::EAGAIN), "round {round}");
        let sent = (cm!(rsendto(sender, b"x".as_ptr(), 1, 0, &raw const at, 16) -> isize), errno());
        assert_eq!(sent, (-1, libc::EAGAIN), "round {round}");
    }
    assert_eq!([listener, sender, receiver, client].map(|socket| cm!(rclose(socket))), [0; 4]);
}

/// The bytes of a call are copied as they are sent, and lengths are added up without a limit.
#[test]
fn long_lists_and_long_memory_cost_what_is_sent_of_them() {
    if !alone("sockets::streams::long_lists_and_long_memory_cost_what_is_sent_of_them", "alone") {
        return;
    }
    const LENGTH: usize = 1 << 40;
    let [client, server] = pair();
    // SAFETY: new memory, of which no page is there.
    let zeros = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(null_mut(), LENGTH, libc::PROT_READ, flags, -1, 0)
    };
    assert_ne!(zeros, libc::MAP_FAILED, "{}", errno());
    let sent = cm!(rsend(client, zeros, LENGTH, libc::MSG_DONTWAIT) -> isize);
    assert!((1..1 << 24).contains(&sent), "{sent}: {}", errno());
    assert_eq!([cm!(rclose(server)), cm!(rclose(client))], [0, 0]);

    let [client, server] = pair();
    let mut bytes = [0_u8; 3];
    let mut entry = |at: usize, len| libc::iovec { iov_base: (&raw mut bytes[at]).cast(), iov_len: len };
    // Their sum is 2^64, which is 0 in a word.
    let list = [entry(0, 1), entry(1, 1), entry(2, usize::MAX - 1)];
    assert_eq!(cm!(rsend(client, b"ab".as_ptr(), 2, 0) -> isize), 2);
    assert_eq!(cm!(rreadv(server, list.as_ptr(), 3) -> isize), 2, "{}", errno());
    assert_eq!(bytes, *b"ab\0");
    assert_eq!([cm!(rclose(server)), cm!(rclose(client))], [0, 0]);
}

#[test]
fn a_port_is_a_sockets_from_the_time_when_it_is_bound() {
    let own_port = |socket| {
        let (mut at, mut len) = (address([0; 4], 0), 16_u32);
        assert_eq!(cm!(rgetsockname(socket, &raw mut at, &raw mut len)), 0);
        u16::from_be(at.sin_port)
    };
    let peer_port = |socket| {
        let (mut at, mut len) = (address([0; 4], 0), 16_u32);
        assert_eq!(cm!(rgetpeername(socket, &raw mut at, &raw mut len)), 0, "{}", errno());
        u16::from_be(at.sin_port)
    };
    let bind = |socket, ip, port| {
        let at = address(ip, port);
        (cm!(rbind(socket, &raw const at, 16)), errno())
    };
    let [listener, other, client] = [(); 3].map(|()| socket());
    assert_eq!(bind(listener, [0; 4], 0).0, 0);
    let port = own_port(listener);
    assert_ne!(port, 0);
    assert_eq!(bind(other, [0; 4], port), (-1, libc::EADDRINUSE));
    assert_eq!(bind(other, [127, 0, 0, 1], port), (-1, libc::EADDRINUSE));
    assert_eq!(bind(listener, [0; 4], 0), (-1, libc::EINVAL), "bound twice");
    assert_eq!(bind(other, [192, 0, 2, 1], 0), (-1, libc::ENODEV), "an address elsewhere");
    assert_eq!(cm!(rlisten(listener, 8)), 0, "{}", errno());
    assert_eq!(own_port(listener), port);
    assert_eq!(bind(other, [0; 4], port), (-1, libc::EADDRINUSE));
    // Both ends see the ports of both.
    let connected = |client| {
        let to = address([127, 0, 0, 1], port);
        assert_eq!(cm!(rconnect(client, &raw const to, 16)), 0, "{}", errno());
        assert_eq!(events(listener, libc::POLLIN, 60_000), libc::POLLIN);
        let server = cm!(raccept(listener, NONE, NONE));
        assert_eq!((own_port(server), peer_port(server)), (port, own_port(client)));
        assert_ne!(own_port(client), 0);
        assert_eq!(cm!(rclose(server)), 0);
    };
    connected(client);
    assert_eq!(bind(other, [0; 4], 0).0, 0);
    let chosen = own_port(other);
    connected(other);
    assert_eq!(own_port(other), chosen);
    assert_eq!([client, other, listener].map(|socket| cm!(rclose(socket))), [0; 3]);
    let [again, once_more] = [(); 2].map(|()| socket());
    assert_eq!([bind(again, [0; 4], port).0, bind(once_more, [0; 4], chosen).0], [0; 2]);
    assert_eq!([again, once_more].map(|socket| cm!(rclose(socket))), [0; 2]);
}

#[test]
fn a_socket_that_can_not_listen_on_each_device_listens_on_none() {
    let test = "sockets::streams::a_socket_that_can_not_listen_on_each_device_listens_on_none";
    let devices = "a=udp://127.0.0.21?share=yes b=udp://127.0.0.22?share=yes";
    if !alone_with(test, "two", [("HCA_DEVICES", devices)]) {
        return;
    }
    let [second, both, client] = [(); 3].map(|()| socket());
    let (reuse, mut at, mut len) = (1_i32, address([127, 0, 0, 22], 0), 16_u32);
    for socket in [second, both] {
        let set = cm!(rsetsockopt(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &raw const reuse, 4));
        assert_eq!(set, 0, "{}", errno());
    }
    assert_eq!(cm!(rbind(second, &raw const at, 16)), 0, "{}", errno());
    assert_eq!(cm!(rlisten(second, 8)), 0, "{}", errno());
    assert_eq!(cm!(rgetsockname(second, &raw mut at, &raw mut len)), 0);
    at.sin_addr.s_addr = 0;
    assert_eq!(cm!(rbind(both, &raw const at, 16)), 0, "{}", errno());
    assert_eq!((cm!(rlisten(both, 8)), errno()), (-1, libc::EADDRINUSE));
    // Nobody listens on the first device, and the socket may try again.
    at.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 21]);
    assert_eq!((cm!(rconnect(client, &raw const at, 16)), errno()), (-1, libc::ECONNREFUSED));
    assert_eq!(cm!(rclose(second)), 0);
    assert_eq!(cm!(rlisten(both, 8)), 0, "{}", errno());
    assert_eq!([client, both].map(|socket| cm!(rclose(socket))), [0; 2]);
}

/// The port that a socket is bound to.
fn own_port(socket: c_int) -> u16 {
    let (mut at, mut len) = (address([0; 4], 0), 16_u32);
    assert_eq!(cm!(rgetsockname(socket, &raw mut at, &raw mut len)), 0, "{}", errno());
    u16::from_be(at.sin_port)
}
/// A socket of datagrams that shares its port.
fn sharing() -> c_int {
    let (socket, reuse) = (cm!(rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0)), 1_i32);
    assert!(socket >= 0, "{}", errno());
    let set = cm!(rsetsockopt(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &raw const reuse, 4));
    assert_eq!(set, 0, "{}", errno());
    socket
}

#[test]
fn a_datagram_socket_that_the_system_has_no_thread_for_is_not_bound() {
    let test = "sockets::streams::a_datagram_socket_that_the_system_has_no_thread_for_is_not_bound";
    if !alone(test, "alone") {
        return;
    }
    let [first, second] = [(); 2].map(|()| sharing());
    let at = address([127, 0, 0, 1], 0);
    assert_eq!(cm!(rbind(first, &raw const at, 16)), 0, "{}", errno());
    let at = address([127, 0, 0, 1], own_port(first));
    forbid(&[libc::SYS_clone, libc::SYS_clone3]);
    // The port has its thread, and only that of the socket is missing.
    for round in 0..2 {
        let bound = (cm!(rbind(second, &raw const at, 16)), errno());
        assert_eq!(bound, (-1, libc::EAGAIN), "round {round}");
        assert_eq!(own_port(second), 0, "round {round}");
    }
    assert_eq!([first, second].map(|socket| cm!(rclose(socket))), [0; 2]);
}

#[test]
fn a_datagram_socket_that_can_not_be_bound_to_each_device_holds_no_port_of_one() {
    let test =
        "sockets::streams::a_datagram_socket_that_can_not_be_bound_to_each_device_holds_no_port_of_one";
    let devices = "a=udp://127.0.0.21?share=yes b=udp://127.0.0.22?share=yes";
    if !alone_with(test, "two", [("HCA_DEVICES", devices)]) {
        return;
    }
    let [on_second, both, on_first] = [(); 3].map(|()| cm!(rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0)));
    let bind = |socket, ip, port| {
        let at = address(ip, port);
        (cm!(rbind(socket, &raw const at, 16)), errno())
    };
    assert_eq!(bind(on_second, [127, 0, 0, 22], 0).0, 0);
    let port = own_port(on_second);
    assert_eq!(bind(both, [0; 4], port), (-1, libc::EADDRINUSE));
    assert_eq!(own_port(both), 0);
    assert_eq!(bind(on_first, [127, 0, 0, 21], port).0, 0, "{}", errno());
    assert_eq!([on_second, on_first].map(|socket| cm!(rclose(socket))), [0; 2]);
    assert_eq!(bind(both, [0; 4], port).0, 0, "{}", errno());
    assert_eq!(cm!(rclose(both)), 0);
}

#[test]
fn a_datagram_socket_gets_a_port_that_each_device_has() {
    let test = "sockets::streams::a_datagram_socket_gets_a_port_that_each_device_has";
    let devices = "a=udp://127.0.0.21?share=yes b=udp://127.0.0.22?share=yes";
    if !alone_with(test, "two", [("HCA_DEVICES", devices)]) {
        return;
    }
    let bind = |ip, port| {
        let (socket, at) = (cm!(rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0)), address(ip, port));
        (cm!(rbind(socket, &raw const at, 16)), errno(), own_port(socket))
    };
    // A process chooses ports in their order; the second device has none of those that are next.
    let next = |port: u16| if port == u16::MAX { 49152 } else { port + 1 };
    let mut port = bind([127, 0, 0, 22], 0).2;
    for _ in 0..3 {
        port = next(port);
        assert_eq!(bind([127, 0, 0, 22], port).0, 0, "{}", errno());
    }
    let (bound, error, chosen) = bind([0; 4], 0);
    assert_eq!((bound, chosen), (0, next(port)), "{error}");
}

/// Two calls of two threads at once, in all ways that they may meet.
fn at_once<T: Send>(one: impl FnOnce() -> T + Send, other: impl FnOnce() -> T + Send) -> [T; 2] {
    let both = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            both.wait();
            other()
        });
        both.wait();
        [one(), other.join().unwrap()]
    })
}

#[test]
fn a_socket_that_two_threads_choose_for_at_once_is_one_thing() {
    let (listener, port) = listening_for(64);
    let to = address([127, 0, 0, 1], port);
    for round in 0..20 {
        let chosen = socket();
        let connect = || (cm!(rconnect(chosen, &raw const to, 16)), errno());
        let [listens, connects] = at_once(|| (cm!(rlisten(chosen, 8)), errno()), connect);
        let refused = [listens, connects].map(|(said, errno)| said < 0 && errno == libc::EINVAL);
        assert_eq!(refused.iter().filter(|no| **no).count(), 1, "round {round}: {listens:?} {connects:?}");
        assert_eq!(cm!(rclose(chosen)), 0);
        let chosen = socket();
        let connected = at_once(
            || (cm!(rconnect(chosen, &raw const to, 16)), errno()),
            || (cm!(rconnect(chosen, &raw const to, 16)), errno()),
        );
        assert_eq!(
            connected.iter().filter(|(said, _)| *said == 0).count(),
            1,
            "round {round}: {connected:?}"
        );
        assert_eq!(cm!(rclose(chosen)), 0);
        while events(listener, libc::POLLIN, 0) != 0 {
            assert_eq!(cm!(rclose(cm!(raccept(listener, NONE, NONE)))), 0);
        }
    }
    assert_eq!(cm!(rclose(listener)), 0);
}

#[test]
fn a_datagram_socket_that_two_threads_send_from_first_is_bound_once() {
    let receiver = sharing();
    let at = address([127, 0, 0, 1], 0);
    assert_eq!(cm!(rbind(receiver, &raw const at, 16)), 0, "{}", errno());
    let to = address([127, 0, 0, 1], own_port(receiver));
    for round in 0..20 {
        let sender = sharing();
        let send =
            || (cm!(rsendto(sender, b"x".as_ptr(), 1, 0, &raw const to, 16) -> isize), own_port(sender));
        let [one, other] = at_once(send, send);
        assert_eq!((one.0, other.0, one.1), (1, 1, other.1), "round {round}: {}", errno());
        assert_eq!(cm!(rclose(sender)), 0);
    }
    assert_eq!(cm!(rclose(receiver)), 0);
}
