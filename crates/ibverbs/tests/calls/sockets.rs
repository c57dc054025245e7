//! Calls of sockets over RDMA.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::processes::{alone, alone_with, forbid};
use super::{common, errno};

/// Calls a function of librdmacm of the first node.
macro_rules! cm {
    ($name:ident($($arg:expr),*)) => {
        cm!($name($($arg),*) -> c_int)
    };
    ($name:ident($($arg:expr),*) -> $ret:ty) => {
        call!(@ common::symbol(stringify!($name), "RDMACM_1.0").expect(stringify!($name)), ($($arg),*) -> $ret)
    };
}

mod cancelled;
mod streams;

const NONE: *mut c_void = null_mut();

fn socket() -> c_int {
    let socket = cm!(rsocket(libc::AF_INET, libc::SOCK_STREAM, 0));
    assert!(socket >= 0, "{}", errno());
    socket
}
/// An address as C has it; port 0 for any.
fn address(ip: [u8; 4], port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip) },
        sin_zero: [0; 8],
    }
}
fn events(socket: c_int, events: i16, timeout_ms: c_int) -> i16 {
    let mut fd = libc::pollfd { fd: socket, events, revents: 0 };
    assert!(cm!(rpoll(&raw mut fd, 1, timeout_ms)) >= 0, "{}", errno());
    fd.revents
}
fn listening() -> (c_int, u16) {
    listening_for(8)
}
/// A socket that so many connections may wait for, and its port.
fn listening_for(backlog: c_int) -> (c_int, u16) {
    let (listener, any) = (socket(), address([0; 4], 0));
    assert_eq!(cm!(rbind(listener, &raw const any, 16)), 0);
    assert_eq!(cm!(rlisten(listener, backlog)), 0, "{}", errno());
    let (mut found, mut len) = (address([0; 4], 0), 16_u32);
    assert_eq!(cm!(rgetsockname(listener, &raw mut found, &raw mut len)), 0);
    (listener, u16::from_be(found.sin_port))
}
/// Two ends of a connection.
fn pair() -> [c_int; 2] {
    let (listener, port) = listening();
    let (client, to) = (socket(), address([127, 0, 0, 1], port));
    assert_eq!(cm!(rconnect(client, &raw const to, 16)), 0, "{}", errno());
    assert_eq!(events(listener, libc::POLLIN, 60_000), libc::POLLIN);
    let server = cm!(raccept(listener, NONE, NONE));
    assert!(server >= 0, "{}", errno());
    assert_eq!(cm!(rclose(listener)), 0);
    [client, server]
}

/// An address of IPv6; that of IPv4 within it if `v4` is there.
fn address6(v4: Option<[u8; 4]>, port: u16) -> libc::sockaddr_in6 {
    // SAFETY: numbers.
    let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    (address.sin6_family, address.sin6_port) = (libc::AF_INET6 as u16, port.to_be());
    if let Some(v4) = v4 {
        address.sin6_addr.s6_addr[10..].copy_from_slice(&[&[0xff; 2][..], &v4].concat());
    }
    address
}

#[test]
fn a_socket_of_ipv6_shows_addresses_of_ipv4_in_those_of_ipv6() {
    type Named = fn(c_int, *mut libc::sockaddr_in6, *mut u32) -> c_int;
    let [peer_of, own_of]: [Named; 2] = [
        |socket, to, len| cm!(rgetpeername(socket, to, len)),
        |socket, to, len| cm!(rgetsockname(socket, to, len)),
    ];
    let named = |socket, of: Named| {
        let (mut found, mut len) = (address6(None, 0), 28_u32);
        assert_eq!(of(socket, &raw mut found, &raw mut len), 0, "{}", errno());
        assert_eq!((found.sin6_family, len), (libc::AF_INET6 as u16, 28));
        (found.sin6_addr.s6_addr, u16::from_be(found.sin6_port))
    };
    let [listener, client] = [(); 2].map(|()| cm!(rsocket(libc::AF_INET6, libc::SOCK_STREAM, 0)));
    assert_eq!(named(listener, own_of), ([0; 16], 0));
    let any = address6(None, 0);
    assert_eq!(cm!(rbind(listener, &raw const any, 28)), 0);
    assert_eq!(cm!(rlisten(listener, 8)), 0, "{}", errno());
    let (_, port) = named(listener, own_of);
    let to = address6(Some([127, 0, 0, 1]), port);
    assert_eq!(cm!(rconnect(client, &raw const to, 28)), 0, "{}", errno());
    assert_eq!(events(listener, libc::POLLIN, 60_000), libc::POLLIN);
    let (mut from, mut len) = (address6(None, 0), 28_u32);
    let server = cm!(raccept(listener, &raw mut from, &raw mut len));
    assert!(server >= 0, "{}", errno());
    let mapped = to.sin6_addr.s6_addr;
    assert_eq!((from.sin6_family, from.sin6_addr.s6_addr, len), (libc::AF_INET6 as u16, mapped, 28));
    assert_eq!((named(client, peer_of), named(server, own_of)), ((mapped, port), (mapped, port)));
    assert_eq!((named(client, own_of).0, named(server, peer_of).0), (mapped, mapped));
    assert_eq!([client, server, listener].map(|socket| cm!(rclose(socket))), [0; 3]);
}

/// librspreload of release 44 takes a descriptor before it calls `raccept`, and hears of no event of a socket whose number
/// is lower.
#[test]
fn an_accepted_socket_has_a_number_of_the_call() {
    if !alone("sockets::an_accepted_socket_has_a_number_of_the_call", "alone") {
        return;
    }
    let (listener, port) = listening();
    let (client, to) = (socket(), address([127, 0, 0, 1], port));
    assert_eq!(cm!(rconnect(client, &raw const to, 16)), 0, "{}", errno());
    assert_eq!(events(listener, libc::POLLIN, 60_000), libc::POLLIN);
    let before = std::fs::File::open("/dev/null").unwrap();
    let server = cm!(raccept(listener, NONE, NONE));
    assert!(server > std::os::fd::AsRawFd::as_raw_fd(&before), "{server}: {}", errno());
    assert_eq!([client, server, listener].map(|socket| cm!(rclose(socket))), [0; 3]);
}

#[test]
fn what_was_sent_before_a_socket_is_closed_arrives_in_order_and_then_the_end() {
    let [client, server] = pair();
    // More than the buffers of both sides take, so that the sender waits for the receiver.
    let sent: Vec<u8> = (0..600_000_u32).flat_map(u32::to_le_bytes).collect();
    let copy = sent.clone();
    let closing = std::thread::spawn(move || {
        let (at, len) = (copy.as_ptr(), copy.len());
        assert_eq!(cm!(rsend(client, at, len, 0) -> isize), len as isize);
        cm!(rclose(client))
    });
    let mut received = vec![0_u8; sent.len() + 1];
    let mut count = 0;
    loop {
        let room = received.len() - count;
        let found = cm!(rrecv(server, received[count..].as_mut_ptr(), room, 0) -> isize);
        assert!(found >= 0, "{count}: {}", errno());
        if found == 0 {
            break;
        }
        count += found as usize;
    }
    assert!(received[..count] == sent, "{count} of {} bytes", sent.len());
    assert_eq!(closing.join().unwrap(), 0);
    assert_eq!(cm!(rclose(server)), 0);
}

#[test]
fn bytes_for_mapped_memory_come_before_later_ones_of_the_stream_and_stay_within_it() {
    let [client, server] = pair();
    let mut memory = [0_u8; 32];
    let at = memory.as_mut_ptr();
    assert_eq!(cm!(riomap(server, at, 16, libc::PROT_WRITE, 0, 1000) -> isize), 1000);
    let bytes = [7_u8; 8];
    for offset in [1004, 1012, 999, 5] {
        assert_eq!(cm!(riowrite(client, bytes.as_ptr(), 8, offset, 0) -> isize), 8);
    }
    let mut told = 0_u8;
    assert_eq!(cm!(rsend(client, bytes.as_ptr(), 1, 0) -> isize), 1);
    assert_eq!(cm!(rrecv(server, &raw mut told, 1, libc::MSG_WAITALL) -> isize), 1);
    // SAFETY: the memory lives, and the peer has written what it sent before the byte.
    let found: Vec<u8> = (0..32).map(|i| unsafe { at.add(i).read_volatile() }).collect();
    let wanted: Vec<u8> = (0..32).map(|i| if (4..12).contains(&i) { 7 } else { 0 }).collect();
    assert_eq!(found, wanted);
    assert_eq!(cm!(riounmap(server, at, 16)), 0);
    assert_eq!((cm!(riounmap(server, at, 16)), errno()), (-1, libc::EINVAL));
    assert_eq!([cm!(rclose(client)), cm!(rclose(server))], [0, 0]);
}

/// The place of such bytes is computed from numbers of the peer's: a sum of them that overflows is before the memory.
#[test]
fn bytes_for_an_offset_before_zero_are_not_written_before_mapped_memory() {
    let [client, server] = pair();
    let mut memory = [0_u8; 48];
    let at = memory.as_mut_ptr();
    let mapped = at.wrapping_add(16);
    assert_eq!(cm!(riomap(server, mapped, 16, libc::PROT_WRITE, 0, 0) -> isize), 0);
    let bytes = [7_u8; 16];
    for offset in [-8_i64, -16, i64::MIN] {
        assert_eq!(cm!(riowrite(client, bytes.as_ptr(), 16, offset, 0) -> isize), 16);
    }
    // That of the stream's bytes.
    assert_eq!(cm!(riowrite(client, bytes.as_ptr(), 16, -1_i64, 0) -> isize), -1);
    let mut told = 0_u8;
    assert_eq!(cm!(rsend(client, bytes.as_ptr(), 1, 0) -> isize), 1);
    assert_eq!(cm!(rrecv(server, &raw mut told, 1, libc::MSG_WAITALL) -> isize), 1, "{}", errno());
    // SAFETY: the memory lives, and the peer has written what it sent before the byte.
    let found: Vec<u8> = (0..48).map(|i| unsafe { at.add(i).read_volatile() }).collect();
    assert_eq!(found, [0; 48]);
    assert_eq!([cm!(rclose(client)), cm!(rclose(server))], [0, 0]);
}

/// A connection whose last message comes behind the end of the listening socket.
#[test]
fn peers_of_a_listening_socket_that_is_closed_hear_of_it() {
    for round in 0..24 {
        let (listener, port) = listening();
        let peer = move || {
            let (client, to) = (socket(), address([127, 0, 0, 1], port));
            let hears = cm!(rconnect(client, &raw const to, 16)) != 0
                || events(client, libc::POLLIN, 5_000) & libc::POLLIN != 0;
            assert_eq!(cm!(rclose(client)), 0);
            hears
        };
        let peers = Vec::from_iter((0..4).map(|_| std::thread::spawn(peer)));
        // The end comes at another moment of the connecting in each round.
        std::thread::sleep(std::time::Duration::from_micros(1_000 + 500 * round));
        assert_eq!(cm!(rclose(listener)), 0);
        for peer in peers {
            assert!(peer.join().unwrap(), "round {round}: a peer waits for what nobody sends");
        }
    }
}

/// Each connection has buffers and a thread, so that peers may not make as many as they like.
#[test]
fn as_many_connections_wait_as_the_program_says() {
    let (listener, port) = listening_for(2);
    let to = address([127, 0, 0, 1], port);
    let connect = |within| {
        let client = socket();
        assert_eq!(cm!(rfcntl(client, libc::F_SETFL, libc::O_NONBLOCK)), 0);
        let done = cm!(rconnect(client, &raw const to, 16));
        assert!(done == 0 || errno() == libc::EINPROGRESS, "{}", errno());
        (client, events(client, libc::POLLOUT, within) == libc::POLLOUT)
    };
    let clients = [60_000, 60_000, 200, 200, 200, 200].map(connect);
    assert_eq!(clients.map(|(_, is_connected)| is_connected), [true, true, false, false, false, false]);
    // Connections that the program takes make room.
    for _ in 0..2 {
        let server = cm!(raccept(listener, NONE, NONE));
        assert!(server >= 0, "{}", errno());
        assert_eq!(cm!(rclose(server)), 0);
    }
    assert_eq!(events(listener, libc::POLLIN, 60_000), libc::POLLIN);
    assert_eq!(cm!(rclose(listener)), 0);
    clients.into_iter().for_each(|(client, _)| assert_eq!(cm!(rclose(client)), 0));
}

#[test]
fn an_error_is_told_once_and_long_times_are_long() {
    let nowhere = address([127, 0, 0, 1], 1);
    // A socket whose error was not told by the call already.
    let in_progress = || {
        let fresh = socket();
        assert_eq!(cm!(rfcntl(fresh, libc::F_SETFL, libc::O_NONBLOCK)), 0);
        assert_eq!(cm!(rconnect(fresh, &raw const nowhere, 16)), -1);
        let is_in_progress = errno() == libc::EINPROGRESS;
        is_in_progress.then_some(fresh).ok_or_else(|| cm!(rclose(fresh)))
    };
    let fresh = (0..1000).find_map(|_| in_progress().ok()).expect("a request takes its time");
    let failed = libc::POLLOUT | libc::POLLERR | libc::POLLHUP;
    assert_eq!(events(fresh, libc::POLLOUT, 60_000), failed, "as of TCP");
    let error = || {
        let (mut error, mut len) = (-1, 4_u32);
        let told = cm!(rgetsockopt(fresh, libc::SOL_SOCKET, libc::SO_ERROR, &raw mut error, &raw mut len));
        assert_eq!((told, len), (0, 4));
        error
    };
    assert_eq!([error(), error()], [libc::ECONNREFUSED, 0]);
    assert_eq!(cm!(rclose(fresh)), 0);

    // 2^32 milliseconds and a few, and a time that is none.
    let [client, server] = pair();
    let sends = std::thread::spawn(move || {
        // Behind the end of a time of which the upper half was lost.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        cm!(rsend(client, b"x".as_ptr(), 1, 0) -> isize)
    });
    let mut set = [0_u64; 16];
    set[server as usize / 64] = 1 << (server % 64);
    let select = |mut time: libc::timeval| {
        let mut set = set;
        cm!(rselect(server + 1, set.as_mut_ptr(), NONE, NONE, &raw mut time))
    };
    assert_eq!(select(libc::timeval { tv_sec: 4_294_968, tv_usec: 0 }), 1);
    assert_eq!(sends.join().unwrap(), 1);
    assert_eq!((select(libc::timeval { tv_sec: -1, tv_usec: 0 }), errno()), (-1, libc::EINVAL));
    assert_eq!((cm!(rshutdown(client, 3)), errno()), (-1, libc::EINVAL), "no end is meant");
    assert_eq!([cm!(rclose(client)), cm!(rclose(server))], [0, 0]);
}

/// As of `select`: a program that closes a descriptor early is told of it.
#[test]
fn a_set_with_a_descriptor_that_is_closed_is_refused() {
    if !alone("sockets::a_set_with_a_descriptor_that_is_closed_is_refused", "alone") {
        return;
    }
    let fresh = socket();
    assert_eq!(cm!(rclose(fresh)), 0);
    let mut set = [0_u64; 16];
    set[fresh as usize / 64] = 1 << (fresh % 64);
    let found = cm!(rselect(fresh + 1, set.as_mut_ptr(), NONE, NONE, NONE));
    assert_eq!((found, errno()), (-1, libc::EBADF));
}

#[test]
fn sockets_tell_what_they_wait_for_and_refuse_what_they_are_not() {
    let refused = |call: &dyn Fn() -> isize, number: c_int| assert_eq!((call(), errno()), (-1, number));
    refused(&|| cm!(rsocket(libc::AF_INET, libc::SOCK_RAW, 0)) as isize, libc::EPROTONOSUPPORT);
    refused(&|| cm!(rsocket(libc::AF_UNIX, libc::SOCK_STREAM, 0)) as isize, libc::EAFNOSUPPORT);
    refused(&|| cm!(rclose(1 << 20)) as isize, libc::EBADF);
    let fresh = socket();
    let mut byte = 0_u8;
    refused(&|| cm!(rrecv(fresh, &raw const byte, 1, 0) -> isize), libc::ENOTCONN);
    refused(&|| cm!(rsend(fresh, &raw const byte, 1, 0) -> isize), libc::ENOTCONN);
    refused(&|| cm!(raccept(fresh, NONE, NONE)) as isize, libc::EINVAL);
    refused(&|| cm!(rgetpeername(fresh, NONE, NONE)) as isize, libc::ENOTCONN);
    refused(&|| cm!(rsetsockopt(1 << 20, 12345, 1, NONE, 0)) as isize, libc::EBADF);
    refused(&|| cm!(rsetsockopt(fresh, 12345, 1, NONE, 0)) as isize, libc::ENOPROTOOPT);
    let (listener, _) = listening();
    assert_eq!(cm!(rlisten(listener, 16)), 0, "once more");
    assert_eq!(events(listener, libc::POLLIN, 0), 0);
    assert_eq!(cm!(rclose(listener)), 0);
    // A port that is never chosen, at which nobody listens.
    let nowhere = address([127, 0, 0, 1], 1);
    refused(&|| cm!(rconnect(fresh, &raw const nowhere, 16)) as isize, libc::ECONNREFUSED);
    assert_eq!(cm!(rclose(fresh)), 0);

    let [client, server] = pair();
    assert_eq!(events(client, libc::POLLIN | libc::POLLOUT, 60_000), libc::POLLOUT);
    refused(&|| cm!(rrecv(server, &raw const byte, 1, libc::MSG_DONTWAIT) -> isize), libc::EAGAIN);
    assert_eq!(cm!(rfcntl(server, libc::F_SETFL, libc::O_NONBLOCK)), 0);
    assert_eq!(cm!(rfcntl(server, libc::F_GETFL, 0)), libc::O_NONBLOCK);
    refused(&|| cm!(rread(server, &raw const byte, 1) -> isize), libc::EAGAIN);
    assert_eq!(cm!(rwrite(client, b"x".as_ptr(), 1) -> isize), 1);
    assert_eq!(events(server, libc::POLLIN, 60_000), libc::POLLIN);
    assert_eq!(cm!(rrecv(server, &raw mut byte, 1, libc::MSG_PEEK) -> isize), 1);
    assert_eq!((cm!(rread(server, &raw mut byte, 1) -> isize), byte), (1, b'x'));
    // The other half of the connection goes on.
    assert_eq!(cm!(rshutdown(client, libc::SHUT_WR)), 0);
    assert_eq!(events(server, libc::POLLIN, 60_000), libc::POLLIN);
    assert_eq!(cm!(rread(server, &raw mut byte, 1) -> isize), 0);
    refused(&|| cm!(rwrite(client, b"y".as_ptr(), 1) -> isize), libc::EPIPE);
    assert_eq!(cm!(rwrite(server, b"z".as_ptr(), 1) -> isize), 1);
    assert_eq!((cm!(rread(client, &raw mut byte, 1) -> isize), byte), (1, b'z'));
    assert_eq!([cm!(rclose(client)), cm!(rclose(server))], [0, 0]);
}

/// A socket of datagrams at a port of its own.
fn datagrams(port: u16) -> (c_int, libc::sockaddr_in) {
    let socket = cm!(rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0));
    let mut at = address([127, 0, 0, 1], port);
    assert_eq!(cm!(rbind(socket, &raw const at, 16)), 0, "{}", errno());
    let mut len = 16_u32;
    assert_eq!(cm!(rgetsockname(socket, &raw mut at, &raw mut len)), 0);
    (socket, at)
}
/// A datagram and its sender's address.
fn receive(socket: c_int, room: usize) -> (Vec<u8>, libc::sockaddr_in) {
    assert_eq!(events(socket, libc::POLLIN, 60_000), libc::POLLIN, "no datagram in a minute");
    let (mut bytes, mut from, mut len) = (vec![0_u8; room], address([0; 4], 0), 16_u32);
    let got = cm!(rrecvfrom(socket, bytes.as_mut_ptr(), room, 0, &raw mut from, &raw mut len) -> isize);
    assert!(got >= 0, "{}", errno());
    bytes.truncate(got as usize);
    (bytes, from)
}

#[test]
fn datagrams_arrive_whole_with_their_senders_address_and_are_answered() {
    let (server, at) = datagrams(0);
    let client = cm!(rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0));
    let send = |socket, bytes: &[u8], to: &libc::sockaddr_in| cm!(rsendto(socket, bytes.as_ptr(), bytes.len(), 0, &raw const *to, 16) -> isize);
    // Those before the answer with the address's queue pair wait for it.
    for text in ["first", "second", "third"] {
        assert_eq!(send(client, text.as_bytes(), &at), text.len() as isize, "{}", errno());
    }
    let (first, from) = receive(server, 64);
    assert_eq!(first, b"first");
    assert_eq!((from.sin_addr.s_addr, from.sin_family), (at.sin_addr.s_addr, at.sin_family));
    // What has no room in the buffer is gone.
    assert_eq!([receive(server, 3).0, receive(server, 64).0], [b"sec".to_vec(), b"third".to_vec()]);
    assert_eq!(send(server, b"answer", &from), 6);
    let (answer, of) = receive(client, 64);
    assert_eq!((&answer[..], of.sin_port), (&b"answer"[..], at.sin_port));

    // A connected socket sends without an address, and hears of one alone.
    assert_eq!(cm!(rconnect(client, &raw const at, 16)), 0);
    let (other, other_at) = datagrams(0);
    assert_eq!(send(other, b"stranger", &from), 8);
    assert_eq!(cm!(rsend(client, b"x".as_ptr(), 1, 0) -> isize), 1);
    assert_eq!(receive(server, 64).0, b"x");
    assert_eq!(send(server, b"friend", &from), 6);
    assert_eq!(receive(client, 64).0, b"friend");
    // One who is not there gets nothing, and the sender is not told.
    let nowhere = address([127, 0, 0, 1], 1);
    assert_eq!(send(other, b"lost", &nowhere), 4);

    let refused = |call: &dyn Fn() -> isize, number: c_int| assert_eq!((call(), errno()), (-1, number));
    let large = vec![0_u8; 1 << 16];
    refused(&|| send(client, &large, &at), libc::EMSGSIZE);
    refused(&|| cm!(rsend(server, large.as_ptr(), 1, 0) -> isize), libc::EDESTADDRREQ);
    refused(&|| cm!(rlisten(server, 1)) as isize, libc::EOPNOTSUPP);
    refused(&|| cm!(rbind(server, &raw const at, 16)) as isize, libc::EINVAL);
    refused(&|| cm!(rrecv(server, large.as_ptr(), 1, libc::MSG_DONTWAIT) -> isize), libc::EAGAIN);
    assert_eq!(events(server, libc::POLLIN | libc::POLLOUT, 0), libc::POLLOUT);
    let taken = cm!(rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0));
    refused(&|| cm!(rbind(taken, &raw const other_at, 16)) as isize, libc::EADDRINUSE);
    // A port is free once its socket is closed.
    assert_eq!(cm!(rclose(other)), 0);
    assert_eq!(cm!(rbind(taken, &raw const other_at, 16)), 0, "{}", errno());
    assert_eq!([client, server, taken].map(|socket| cm!(rclose(socket))), [0; 3]);
}

/// A socket of datagrams at a port that others may be bound to, too.
fn shared_datagrams(at: &libc::sockaddr_in) -> c_int {
    let socket = cm!(rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0));
    let on: c_int = 1;
    assert_eq!(cm!(rsetsockopt(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &raw const on, 4)), 0);
    assert_eq!(cm!(rbind(socket, &raw const *at, 16)), 0, "{}", errno());
    socket
}

/// As a server does that serves each peer by a socket of its own.
#[test]
fn sockets_at_one_port_get_the_datagrams_of_their_peers_and_the_last_one_those_of_others() {
    let (mut at, mut len) = (address([127, 0, 0, 1], 0), 16_u32);
    let first = shared_datagrams(&at);
    assert_eq!(cm!(rgetsockname(first, &raw mut at, &raw mut len)), 0);
    let send = |socket, bytes: &[u8]| {
        let sent = cm!(rsendto(socket, bytes.as_ptr(), bytes.len(), 0, &raw const at, 16) -> isize);
        assert_eq!(sent, bytes.len() as isize, "{}", errno());
    };
    let bind = |socket| (cm!(rbind(socket, &raw const at, 16)), errno());
    let [one, two, three] = [(); 3].map(|()| datagrams(0).0);
    send(three, b"three");
    assert_eq!(receive(first, 64).0, b"three");
    send(one, b"one");
    let (bytes, from) = receive(first, 64);
    assert_eq!((&bytes[..], cm!(rconnect(first, &raw const from, 16))), (&b"one"[..], 0));
    let alone = cm!(rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0));
    assert_eq!(bind(alone), (-1, libc::EADDRINUSE), "it does not share");
    let second = shared_datagrams(&at);
    // This one knows the first socket's queue pair, and the next one asks.
    send(three, b"handed over");
    assert_eq!(receive(second, 64).0, b"handed over");
    send(two, b"two");
    assert_eq!(receive(second, 64).0, b"two");
    send(one, b"mine");
    assert_eq!(receive(first, 64).0, b"mine");
    assert_eq!(cm!(rsend(first, b"back".as_ptr(), 4, 0) -> isize), 4);
    let (bytes, of) = receive(one, 64);
    assert_eq!((&bytes[..], of.sin_port), (&b"back"[..], at.sin_port));
    // The port stays with the other one, and is free after both.
    assert_eq!(cm!(rclose(first)), 0);
    send(two, b"still");
    assert_eq!(receive(second, 64).0, b"still");
    assert_eq!(bind(alone), (-1, libc::EADDRINUSE));
    assert_eq!(cm!(rclose(second)), 0);
    assert_eq!(cm!(rbind(alone, &raw const at, 16)), 0, "{}", errno());
    assert_eq!([one, two, three, alone].map(|socket| cm!(rclose(socket))), [0; 4]);
}

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// Calls a function of sets.
macro_rules! set {
    ($name:ident($($arg:expr),*)) => {
        call!(@ common::symbol(stringify!($name), "RDMACM_1.5").expect(stringify!($name)), ($($arg),*) -> c_int)
    };
}

#[test]
fn a_set_has_events_of_sockets_and_of_other_descriptors_by_level_by_edge_and_once() {
    let set = set!(repoll_create(libc::EPOLL_CLOEXEC));
    assert!(set >= 0, "{}", errno());
    let [client, server] = pair();
    let change = |operation: c_int, number: c_int, events: u32, data: u64| {
        let event = libc::epoll_event { events, u64: data };
        set!(repoll_ctl(set, operation, number, &raw const event))
    };
    // Each event is found by what it is of.
    let found = |timeout_ms: c_int| {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let count = set!(repoll_wait(set, events.as_mut_ptr(), 4, timeout_ms));
        let count = usize::try_from(count).unwrap_or_else(|_| panic!("{}", errno()));
        events[..count].iter().map(|event| (event.u64, event.events)).collect::<Vec<_>>()
    };
    // SAFETY: it takes no pointers.
    let other = unsafe { libc::eventfd(0, 0) };
    assert_eq!(change(libc::EPOLL_CTL_ADD, server, IN | EDGE, 7), 0, "{}", errno());
    assert_eq!(change(libc::EPOLL_CTL_ADD, other, IN, 9), 0, "{}", errno());
    assert_eq!(found(0), []);
    let write = || assert_eq!(cm!(rwrite(client, b"x".as_ptr(), 1) -> isize), 1);
    // The first byte wakes a thread that waits already, and the second is told though the first is not read.
    let waiting = std::thread::scope(|scope| {
        let thread = scope.spawn(|| found(60_000));
        write();
        thread.join().unwrap()
    });
    assert_eq!(waiting, [(7, IN)]);
    write();
    assert_eq!(found(60_000), [(7, IN)]);
    // SAFETY: 8 bytes.
    assert_eq!(unsafe { libc::write(other, [1_u8; 8].as_ptr().cast(), 8) }, 8);
    assert_eq!(found(60_000), [(9, IN)]);
    assert_eq!(change(libc::EPOLL_CTL_DEL, other, 0, 0), 0);
    // By level it is told again and again, once only once, and anew when that is asked for.
    assert_eq!(change(libc::EPOLL_CTL_MOD, server, IN, 8), 0);
    assert_eq!([found(60_000), found(60_000)], [[(8, IN)]; 2]);
    assert_eq!(change(libc::EPOLL_CTL_MOD, server, IN | OUT | ONCE, 6), 0);
    assert_eq!([found(60_000), found(0)], [vec![(6, IN | OUT)], vec![]]);
    assert_eq!(change(libc::EPOLL_CTL_MOD, server, OUT | ONCE, 5), 0);
    assert_eq!(found(60_000), [(5, OUT)]);

    let refused = |said: c_int, number: c_int| assert_eq!((said, errno()), (-1, number));
    refused(change(libc::EPOLL_CTL_ADD, server, IN, 0), libc::EEXIST);
    refused(change(libc::EPOLL_CTL_MOD, client, IN, 0), libc::ENOENT);
    refused(change(libc::EPOLL_CTL_DEL, other, 0, 0), libc::ENOENT);
    refused(change(77, server, IN, 0), libc::EINVAL);
    refused(set!(repoll_ctl(set, libc::EPOLL_CTL_MOD, server, 0)), libc::EFAULT);
    refused(set!(repoll_ctl(set, libc::EPOLL_CTL_ADD, -1_i32, 0)), libc::EBADF);
    refused(set!(repoll_wait(other, NONE, 1, 0)), libc::EFAULT);
    refused(set!(repoll_create(1)), libc::EINVAL);
    // A closed socket is no member.
    assert_eq!(change(libc::EPOLL_CTL_MOD, server, IN, 4), 0);
    assert_eq!(cm!(rclose(server)), 0);
    assert_eq!(found(0), []);
    assert_eq!(cm!(rfcntl(client, libc::F_SETFD, libc::FD_CLOEXEC)), 0);
    assert_eq!(cm!(rfcntl(client, libc::F_GETFD, 0)), libc::FD_CLOEXEC);
    assert_eq!([cm!(rclose(set)), cm!(rclose(client))], [0, 0]);
    refused(set!(repoll_wait(set, &raw const set, 1, 0)), libc::EBADF);
    // SAFETY: the descriptor is this test's.
    unsafe { libc::close(other) };
}

/// As the kernel does: a program that takes one event at a time hears of all.
#[test]
fn each_socket_of_a_set_has_its_turn() {
    let set = set!(repoll_create(0));
    let pairs = [pair(), pair(), pair()];
    for (place, [client, server]) in pairs.into_iter().enumerate() {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: place as u64 };
        assert_eq!(set!(repoll_ctl(set, libc::EPOLL_CTL_ADD, server, &raw mut event)), 0);
        assert_eq!(cm!(rsend(client, b"x".as_ptr(), 1, 0) -> isize), 1);
        assert_eq!(events(server, libc::POLLIN, 60_000), libc::POLLIN);
    }
    let next = || {
        let mut event = libc::epoll_event { events: 0, u64: 99 };
        assert_eq!(set!(repoll_wait(set, &raw mut event, 1, 60_000)), 1);
        event.u64
    };
    let mut told = [0; 6].map(|_| next());
    told.sort_unstable();
    assert_eq!(told, [0, 0, 1, 1, 2, 2]);
    for socket in pairs.into_iter().flatten().chain([set]) {
        assert_eq!(cm!(rclose(socket)), 0);
    }
}

#[test]
fn a_datagram_that_is_too_long_is_refused_before_its_peer_is_known() {
    let sender = cm!(rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0));
    let (to, long) = (address([127, 0, 0, 1], 9), vec![0_u8; 60_000]);
    let sent = cm!(rsendto(sender, long.as_ptr(), long.len(), 0, &raw const to, 16) -> isize);
    assert_eq!((sent, errno()), (-1, libc::EMSGSIZE));
    assert_eq!(cm!(rclose(sender)), 0);
}

#[test]
fn a_forked_child_has_sockets_of_its_own() {
    if !alone("sockets::a_forked_child_has_sockets_of_its_own", "fork") {
        return;
    }
    let byte_over = |[from, to]: [c_int; 2]| {
        let mut byte = 0_u8;
        assert_eq!(cm!(rsend(from, b"f".as_ptr(), 1, 0) -> isize), 1);
        assert_eq!((cm!(rrecv(to, &raw mut byte, 1, 0) -> isize), byte), (1, b'f'));
    };
    let before = pair();
    byte_over(before);
    // SAFETY: the child calls this library, and ends by exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        assert_eq!((cm!(rclose(before[0])), errno()), (-1, libc::EBADF));
        let own = pair();
        byte_over(own);
        assert_eq!(own.map(|socket| cm!(rclose(socket))), [0, 0]);
        // SAFETY: it ends the child.
        unsafe { libc::exit(0) };
    }
    let mut status = 1;
    // SAFETY: the child's number, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    byte_over(before);
    assert_eq!(before.map(|socket| cm!(rclose(socket))), [0, 0]);
}
