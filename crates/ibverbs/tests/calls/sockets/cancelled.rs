//! Threads that are cancelled in a call of a socket, as they may be in the calls of the kernel's sockets.

use super::super::waits::{CANCELLED, Call, LONG, join, make, pthread_cancel, run, start, until_asleep};
use super::streams::{drain, fill};
use super::*;

fn function(name: &str) -> usize {
    let node = if name.starts_with("repoll") { "RDMACM_1.5" } else { "RDMACM_1.0" };
    common::symbol(name, node).unwrap()
}
/// Has a call wait, and cancels its thread.
fn cancel(name: &str, arguments: &[usize]) {
    let mut call = Call::new(function(name), arguments);
    let thread = start(&mut call);
    // SAFETY: a thread that was not joined.
    assert_eq!(unsafe { pthread_cancel(thread) }, 0);
    assert_eq!(join(thread, LONG), Some(CANCELLED), "{name}");
    assert_eq!(call.result, 99, "{name} did not return");
}
/// A byte goes from one socket to another.
fn byte_over(from: c_int, to: c_int) {
    let mut byte = 0_u8;
    assert_eq!(cm!(rsend(from, b"b".as_ptr(), 1, 0) -> isize), 1, "{}", errno());
    assert_eq!((cm!(rrecv(to, &raw mut byte, 1, 0) -> isize), byte), (1, b'b'), "{}", errno());
}
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thread_that_waits_for_a_socket_is_cancelled_and_others_go_on() {
    let test = "sockets::cancelled::a_thread_that_waits_for_a_socket_is_cancelled_and_others_go_on";
    if !alone(test, "cancel") {
        return;
    }
    const ROUNDS: usize = 20;
    let [client, server] = pair();
    let (listener, port) = listening();
    let datagrams = datagrams(0).0;
    let set = call!(@ function("repoll_create"), (0) -> c_int);
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
    let added = call!(@ function("repoll_ctl"), (set, libc::EPOLL_CTL_ADD, server, &raw mut event) -> c_int);
    assert_eq!(added, 0, "{}", errno());
    let mut bytes = [0_u8; 64];
    let at = bytes.as_mut_ptr() as usize;
    let mut entry = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 4 };
    // SAFETY: numbers and pointers, which may be 0.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut entry, 1);
    let mut fd = libc::pollfd { fd: server, events: libc::POLLIN, revents: 0 };
    let mut bits = [0_u64; 16];
    bits[server as usize / 64] = 1 << (server % 64);
    let (of, list) = (server as usize, &raw mut entry as usize);
    let before = descriptors();
    for _ in 0..ROUNDS {
        cancel("raccept", &[listener as usize, 0, 0]);
        cancel("rrecv", &[of, at, 4, 0]);
        cancel("rrecvfrom", &[of, at, 4, 0, 0]);
        cancel("rrecvmsg", &[of, &raw mut message as usize, 0]);
        cancel("rread", &[of, at, 4]);
        cancel("rreadv", &[of, list, 1]);
        cancel("rrecv", &[datagrams as usize, at, 4, 0]);
        cancel("rpoll", &[&raw mut fd as usize, 1, usize::MAX]);
        cancel("rselect", &[of + 1, bits.as_mut_ptr() as usize, 0, 0, 0]);
        cancel("repoll_wait", &[set as usize, &raw mut event as usize, 1, usize::MAX]);
        byte_over(client, server);
    }
    let left = descriptors().saturating_sub(before);
    assert!(left < ROUNDS, "{left} descriptors of cancelled calls are open");
    // The next connection is another call's.
    let (next, to) = (socket(), address([127, 0, 0, 1], port));
    assert_eq!(cm!(rconnect(next, &raw const to, 16)), 0, "{}", errno());
    let accepted = cm!(raccept(listener, NONE, NONE));
    byte_over(next, accepted);
    for socket in [client, server, listener, datagrams, set, next, accepted] {
        assert_eq!(cm!(rclose(socket)), 0);
    }
}

#[test]
fn a_thread_that_waits_for_room_is_cancelled_and_what_it_has_sent_arrives() {
    let test = "sockets::cancelled::a_thread_that_waits_for_room_is_cancelled_and_what_it_has_sent_arrives";
    if !alone(test, "cancel") {
        return;
    }
    let [client, server] = pair();
    let sent = fill(client);
    let bytes = [7_u8; 64];
    let mut entry = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: 64 };
    // SAFETY: as above.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut entry, 1);
    let (of, at, list) = (client as usize, bytes.as_ptr() as usize, &raw mut entry as usize);
    cancel("rsend", &[of, at, 64, 0]);
    cancel("rsendto", &[of, at, 64, 0, 0]);
    cancel("rsendmsg", &[of, &raw mut message as usize, 0]);
    cancel("rwrite", &[of, at, 64]);
    cancel("rwritev", &[of, list, 1]);
    cancel("riowrite", &[of, at, 64, 0, 0]);
    assert_eq!(cm!(rshutdown(client, libc::SHUT_WR)), 0);
    assert_eq!(drain(server), sent);
    byte_over(server, client);
    assert_eq!([client, server].map(|socket| cm!(rclose(socket))), [0; 2]);
}

#[test]
fn a_thread_that_connects_is_cancelled_and_the_connection_is_made() {
    let test = "sockets::cancelled::a_thread_that_connects_is_cancelled_and_the_connection_is_made";
    if !alone(test, "cancel") {
        return;
    }
    let (listener, port) = listening_for(1);
    let to = address([127, 0, 0, 1], port);
    let [first, second] = [socket(), socket()];
    assert_eq!(cm!(rconnect(first, &raw const to, 16)), 0, "{}", errno());
    assert_eq!(events(listener, libc::POLLIN, 60_000), libc::POLLIN);
    // There is no room for it yet.
    cancel("rconnect", &[second as usize, &raw const to as usize, 16]);
    let servers = [(); 2].map(|()| cm!(raccept(listener, NONE, NONE)));
    assert_eq!(events(second, libc::POLLOUT, 60_000), libc::POLLOUT);
    byte_over(first, servers[0]);
    byte_over(second, servers[1]);
    for socket in [listener, first, second, servers[0], servers[1]] {
        assert_eq!(cm!(rclose(socket)), 0);
    }
}

/// The bytes that a call has taken when its thread is cancelled are the next call's.
#[test]
fn a_thread_that_waits_for_all_bytes_is_cancelled_and_loses_none() {
    let test = "sockets::cancelled::a_thread_that_waits_for_all_bytes_is_cancelled_and_loses_none";
    if !alone(test, "cancel") {
        return;
    }
    let [client, server] = pair();
    let mut room = [0_u8; 4];
    let all = [server as usize, room.as_mut_ptr() as usize, 4, libc::MSG_WAITALL as usize];
    let mut call = Call::new(function("rrecv"), &all);
    let thread = start(&mut call);
    assert_eq!(cm!(rsend(client, b"ab".as_ptr(), 2, 0) -> isize), 2);
    // Once a byte behind them is there, they have come, and the thread takes them.
    let mut behind = 0_u8;
    let mapped = &raw mut behind;
    assert_eq!(cm!(riomap(server, mapped, 1, libc::PROT_WRITE, 0, 0) -> isize), 0);
    assert_eq!(cm!(riowrite(client, b"x".as_ptr(), 1, 0_i64, 0) -> isize), 1);
    let mut byte = 0_u8;
    let mut peek = || cm!(rrecv(server, &raw mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) -> isize);
    // SAFETY: the byte lives, and the library's thread writes it.
    while unsafe { mapped.read_volatile() } == 0 || peek() > 0 {
        std::thread::yield_now();
    }
    // SAFETY: a thread that was not joined.
    assert_eq!(unsafe { pthread_cancel(thread) }, 0);
    assert_eq!(join(thread, LONG), Some(CANCELLED));
    assert_eq!(cm!(rsend(client, b"cd".as_ptr(), 2, 0) -> isize), 2);
    let mut all = Vec::new();
    while all.len() < 4 {
        assert_eq!(events(server, libc::POLLIN, 10_000), libc::POLLIN, "only {all:?}");
        assert_eq!(cm!(rrecv(server, &raw mut byte, 1, 0) -> isize), 1, "{}", errno());
        all.push(byte);
    }
    assert_eq!(all, b"abcd");
    assert_eq!(cm!(riounmap(server, mapped, 1)), 0);
    assert_eq!([client, server].map(|socket| cm!(rclose(socket))), [0; 2]);
}

/// A thread's own data are gone by the time when a program's destructors run, which may call, too.
#[test]
fn a_thread_that_ends_waits_for_a_socket_in_its_destructors() {
    let test = "sockets::cancelled::a_thread_that_ends_waits_for_a_socket_in_its_destructors";
    if !alone(test, "end") {
        return;
    }
    extern "C" fn destructor(call: *mut c_void) {
        make(call);
    }
    /// The key, the call of its destructor, and the one before.
    struct Both(libc::pthread_key_t, *mut Call, *mut Call);
    extern "C-unwind" fn both(with: *mut c_void) -> *mut c_void {
        // SAFETY: it lives until the thread is joined.
        let Both(key, last, first) = unsafe { &*with.cast::<Both>() };
        // SAFETY: a key that was made.
        unsafe { libc::pthread_setspecific(*key, (*last).cast()) };
        make(first.cast())
    }
    let [client, server] = pair();
    let mut key = 0;
    // SAFETY: room for the key, and a function that takes what a thread sets.
    assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, Some(destructor)) }, 0);
    let mut bytes = [0_u8; 2];
    let read = |at| Call::new(function("rread"), &[server as usize, at, 1]);
    let mut first = read(&raw mut bytes[0] as usize);
    let mut last = read(&raw mut bytes[1] as usize);
    let mut with = Both(key, &raw mut last, &raw mut first);
    let thread = run(both, (&raw mut with).cast());
    for call in [&first, &last] {
        until_asleep(&call.thread);
        assert_eq!(cm!(rsend(client, b"z".as_ptr(), 1, 0) -> isize), 1);
    }
    assert!(join(thread, LONG).is_some());
    assert_eq!((first.result, last.result, bytes), (1, 1, *b"zz"));
    assert_eq!([client, server].map(|socket| cm!(rclose(socket))), [0; 2]);
}
