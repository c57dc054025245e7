//! The calls of sockets over RDMA: streams, memory that the peer writes to, and datagrams.

use core::ffi::{c_int, c_long};
use core::mem::offset_of;
use core::net::SocketAddr;
use core::ops::Range;
use std::time::{Duration, Instant};

use super::border::{address, address_bytes, bytes, copy_to, descriptor_flags, storage};
use super::changes::{Waiter, left_ms};
use super::datagram::{self, Datagrams};
use super::device::CmDevice;
use super::stream::{CHUNK, Phase, Socket};
use crate::entry::{Errno, INVALID, In, cancellable, counted, exports};
use crate::waiting::{poll, waiting, whole};

/// The options of RDMA sockets themselves, beside those of sockets and of TCP.
const SOL_RDMA: c_int = 0x1_0000;
/// The bytes that `rgetsockopt` tells of buffers.
const BUFFER_BYTES: c_int = 1 << 19;

/// Stores an address where the program has a place for it and for its length. As in rdma-core, it is not told otherwise:
/// what came with it would be lost.
fn tell_address(found: Option<SocketAddr>, to: *mut u8, len: In<u32>) -> Result<(), Errno> {
    if to.is_null() || len.raw().is_null() { Ok(()) } else { give_address(found, to, len) }
}
/// Stores an address, as much of it as the program has room for.
fn give_address(found: Option<SocketAddr>, to: *mut u8, len: In<u32>) -> Result<(), Errno> {
    let found = found.ok_or(Errno(libc::ENOTCONN))?;
    let bytes = address_bytes(found);
    let room = bytes.min(*len.get()? as usize);
    copy_to(to, &storage(Some(found)).0[..room])?;
    len.set(bytes as u32)
}

/// No datagram is as long.
const LONGEST: usize = 1 << 16;

/// An address and a length.
type Entry = (*mut u8, usize);

/// The memory of a list of entries.
fn entries(list: In<libc::iovec>, count: usize) -> Result<Vec<Entry>, Errno> {
    (0..count).map(|i| list.at(i).map(|entry| (entry.iov_base.cast(), entry.iov_len))).collect()
}
/// The bytes that the entries have. Programs may give a length that is more than all that there is.
fn count(list: &[Entry]) -> usize {
    list.iter().fold(0, |sum, (_, len)| sum.saturating_add(*len))
}
/// # Errors
/// An entry has a length, and no address.
fn check(list: &[Entry]) -> Result<(), Errno> {
    if list.iter().any(|&(at, len)| at.is_null() && len > 0) { Err(Errno(libc::EFAULT)) } else { Ok(()) }
}
/// Copies some bytes of the entries.
fn part(list: &[Entry], range: Range<usize>) -> Vec<u8> {
    let (mut before, mut left) = (range.start, range.len());
    let mut all = Vec::with_capacity(left);
    for &(at, len) in list {
        let from = before.min(len);
        let some = left.min(len - from);
        all.extend(bytes(at.wrapping_add(from), some));
        (before, left) = (before - from, left - some);
    }
    all
}
/// Sends the bytes of the entries: as a part of the stream, or as a datagram, which has an address unless the socket is
/// connected.
async fn send_all(
    socket: c_int,
    list: &[Entry],
    flags: c_int,
    to: In<libc::sockaddr>,
) -> Result<isize, Errno> {
    let socket = Socket::of(socket)?;
    check(list)?;
    let waits = flags & libc::MSG_DONTWAIT == 0;
    let to = if to.raw().is_null() { None } else { Some(address(to)?) };
    if socket.is_datagram() {
        let bytes = part(list, 0..count(list).min(LONGEST));
        return socket.send_datagram(&bytes, to, waits).await.map(|sent| sent as isize);
    }
    if to.is_some() {
        return Err(Errno(libc::EISCONN));
    }
    socket.send(count(list), |range| part(list, range), None, waits).await.map(|sent| sent as isize)
}
/// What a receiving call has found.
struct Received {
    from: Option<SocketAddr>,
    count: isize,
    /// A datagram had more bytes than the entries.
    is_cut: bool,
}
async fn recv_all(socket: c_int, list: &[Entry], flags: c_int) -> Result<Received, Errno> {
    let socket = Socket::of(socket)?;
    // Before anything is taken, which would be lost.
    check(list)?;
    let room = count(list);
    let (from, mut all) = if socket.is_datagram() {
        let (peeks, waits) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_DONTWAIT == 0);
        let (from, all) = socket.recv_datagram(peeks, waits).await?;
        (Some(from), all)
    } else {
        let all = socket.recv(room, flags).await?;
        (socket.state().peer, all)
    };
    let from = socket.state().shown(from);
    let whole = all.len();
    all.truncate(room);
    let mut rest = &all[..];
    for &(at, len) in list {
        let (part, after) = rest.split_at(len.min(rest.len()));
        copy_to(at, part)?;
        rest = after;
    }
    let count = if flags & libc::MSG_TRUNC != 0 { whole } else { all.len() };
    Ok(Received { from, count: count as isize, is_cut: whole > all.len() })
}

/// A field of a message that the call writes.
fn field<T>(of: In<libc::msghdr>, offset: usize) -> In<T> {
    In::of(of.raw().wrapping_byte_add(offset).cast())
}
/// The entries of a message, and its address. Control data is left alone.
fn message(message: In<libc::msghdr>) -> Result<(Vec<Entry>, *mut u8), Errno> {
    let message = message.get()?;
    Ok((entries(In::of(message.msg_iov), message.msg_iovlen)?, message.msg_name.cast()))
}
async fn recv_message(socket: c_int, to: In<libc::msghdr>, flags: c_int) -> Result<isize, Errno> {
    let (list, name) = message(to)?;
    let received = recv_all(socket, &list, flags).await?;
    tell_address(received.from, name, field(to, offset_of!(libc::msghdr, msg_namelen)))?;
    let cut = if received.is_cut { libc::MSG_TRUNC } else { 0 };
    field(to, offset_of!(libc::msghdr, msg_controllen)).set(0_usize)?;
    field(to, offset_of!(libc::msghdr, msg_flags)).set(cut)?;
    Ok(received.count)
}

/// Looks at all descriptors, sockets of RDMA and others; how many have events.
async fn look(fds: &mut [libc::pollfd], waiter: &Waiter, timeout_ms: c_int) -> Result<isize, Errno> {
    let mut others: Vec<libc::pollfd> = fds.to_vec();
    let mut ready = 0;
    for (fd, other) in fds.iter_mut().zip(&mut others) {
        fd.revents = 0;
        let Some(socket) = Socket::find(fd.fd) else { continue };
        other.fd = -1;
        fd.revents = socket.events() & (fd.events | libc::POLLHUP | libc::POLLERR);
        ready += isize::from(fd.revents != 0);
    }
    let own = std::os::fd::AsRawFd::as_raw_fd(&*waiter.0);
    others.push(libc::pollfd { fd: own, events: libc::POLLIN, revents: 0 });
    poll(&mut others, if ready > 0 { 0 } else { timeout_ms }).await?;
    for (fd, other) in fds.iter_mut().zip(&others).filter(|(_, other)| other.fd >= 0) {
        fd.revents = other.revents;
        ready += isize::from(fd.revents != 0);
    }
    Ok(ready)
}
/// Waits until a descriptor has an event; for ever with a negative time.
async fn wait(fds: &mut [libc::pollfd], timeout_ms: c_int) -> Result<isize, Errno> {
    let end = u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
    let waiter = Waiter::new()?;
    loop {
        waiter.clear();
        let left = left_ms(end);
        let ready = look(fds, &waiter, left).await?;
        if ready > 0 || left == 0 {
            return Ok(ready);
        }
    }
}

/// Whether a set of `select` has a descriptor.
fn has(set: Option<[u64; 16]>, fd: usize) -> bool {
    set.is_some_and(|words| words[fd / 64] >> (fd % 64) & 1 != 0)
}
/// `rselect`: the events of three sets.
async fn select(count: c_int, sets: [In<[u64; 16]>; 3], timeout: In<libc::timeval>) -> Result<isize, Errno> {
    let count = usize::try_from(count).ok().filter(|count| *count <= 1024).ok_or(INVALID)?;
    let asked = sets.map(|set| set.opt().copied());
    let kinds = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    let mut fds: Vec<libc::pollfd> = Vec::new();
    for fd in 0..count {
        let events = (0..3).filter(|&i| has(asked[i], fd)).fold(0, |events, i| events | kinds[i]);
        if events != 0 {
            fds.push(libc::pollfd { fd: fd as c_int, events, revents: 0 });
        }
    }
    let ms = |time: &libc::timeval| {
        let ms = time.tv_sec.saturating_mul(1000).saturating_add((time.tv_usec.max(0) + 999) / 1000);
        c_int::try_from(ms.min(c_int::MAX.into())).ok().filter(|ms| *ms >= 0).ok_or(INVALID)
    };
    wait(&mut fds, timeout.opt().map_or(Ok(-1), ms)?).await?;
    let ends = [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Err(Errno(libc::EBADF));
    }
    let mut found = 0;
    for i in 0..3 {
        if asked[i].is_none() {
            continue;
        }
        let mut words = [0_u64; 16];
        for fd in fds.iter().filter(|fd| fd.events & kinds[i] != 0 && fd.revents & ends[i] != 0) {
            words[fd.fd as usize / 64] |= 1 << (fd.fd % 64);
            found += 1;
        }
        sets[i].set(words)?;
    }
    Ok(found)
}

fn is_known(level: c_int) -> bool {
    [libc::SOL_SOCKET, libc::IPPROTO_TCP, libc::IPPROTO_IPV6, SOL_RDMA].contains(&level)
}
/// The value of an option: what was set, or what stands without that.
fn option(socket: &Socket, level: c_int, name: c_int) -> Result<Vec<u8>, Errno> {
    if !is_known(level) {
        return Err(Errno(libc::ENOPROTOOPT));
    }
    let local = socket.state().local;
    // As much as a datagram to the peer may have: programs take it for that.
    let segment = local
        .and_then(|local| CmDevice::at(local.ip()).ok())
        .map_or(CHUNK, |device| device.agent.mtu().bytes() as usize - datagram::HEADER);
    let mut guard = socket.state();
    let state = &mut *guard;
    let number = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => match state.phase {
            Phase::Failed(e) if !std::mem::replace(&mut state.error_told, true) => e.0,
            _ => 0,
        },
        (libc::SOL_SOCKET, libc::SO_TYPE) if state.datagrams.is_some() => libc::SOCK_DGRAM,
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => segment as c_int,
        // Counters of a TCP that is not there.
        (libc::IPPROTO_TCP, libc::TCP_INFO) => return Ok(vec![0; 1024]),
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_RCVBUF) => BUFFER_BYTES,
        _ => 0,
    };
    Ok(state.options.get(&(level, name)).cloned().unwrap_or_else(|| number.to_ne_bytes().to_vec()))
}

async fn accept(socket: c_int, from: *mut u8, len: In<u32>) -> Result<isize, Errno> {
    let (number, accepted) = Socket::of(socket)?.accept().await?;
    let state = accepted.state();
    tell_address(state.shown(state.peer), from, len)?;
    Ok(number as isize)
}
async fn connect(socket: c_int, to: In<libc::sockaddr>) -> Result<isize, Errno> {
    let (socket, to) = (Socket::of(socket)?, address(to)?);
    let connected =
        if socket.is_datagram() { socket.connect_datagrams(to) } else { socket.connect(to).await };
    connected.map(|()| 0)
}
async fn poll_all(fds: In<libc::pollfd>, count: libc::nfds_t, timeout_ms: c_int) -> Result<isize, Errno> {
    let count = count as usize;
    let mut list: Vec<libc::pollfd> = (0..count).map(|i| fds.at(i).copied()).collect::<Result<_, _>>()?;
    let ready = wait(&mut list, timeout_ms).await?;
    for (i, fd) in list.into_iter().enumerate() {
        fds.set_at(i, count, fd)?;
    }
    Ok(ready)
}
/// The number of entries of a program's list.
fn length(count: c_int) -> Result<usize, Errno> {
    usize::try_from(count).map_err(|_| INVALID)
}

exports! {
    "RDMACM_1.0" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        counted(|| {
            const FLAGS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            // A program may have put librspreload's `socket` before the C library's: this library's own are none of RDMA.
            if hca_process::is_library() || domain != libc::AF_INET && domain != libc::AF_INET6 {
                return Err(Errno(libc::EAFNOSUPPORT));
            }
            let is_datagram = match (kind & !FLAGS, protocol) {
                (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => false,
                (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => true,
                _ => return Err(Errno(libc::EPROTONOSUPPORT)),
            };
            let (number, socket) = Socket::create()?;
            let mut state = socket.state();
            state.is_v6 = domain == libc::AF_INET6;
            state.nonblocking = kind & libc::SOCK_NONBLOCK != 0;
            state.datagrams = is_datagram.then(Datagrams::default);
            Ok(number)
        })
    }
    "RDMACM_1.0" fn rbind(socket: c_int, to: In<libc::sockaddr>, _len: u32) -> c_int {
        counted(|| {
            let (socket, at) = (Socket::of(socket)?, address(to)?);
            if socket.is_datagram() {
                return socket.bind_datagrams(at).map(|()| 0);
            }
            socket.bind(at).map(|()| 0)
        })
    }
    "RDMACM_1.0" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
        counted(|| {
            Socket::of(socket)?.listen(usize::try_from(backlog).unwrap_or(0))?;
            Ok(0)
        })
    }
    "RDMACM_1.0" fn rshutdown(socket: c_int, how: c_int) -> c_int {
        counted(|| Socket::of(socket)?.shut_down(how).map(|()| 0))
    }
    "RDMACM_1.0" fn rgetpeername(socket: c_int, to: *mut u8, len: In<u32>) -> c_int {
        counted(|| {
            let socket = Socket::of(socket)?;
            let state = socket.state();
            give_address(state.shown(state.peer), to, len).map(|()| 0)
        })
    }
    "RDMACM_1.0" fn rgetsockname(socket: c_int, to: *mut u8, len: In<u32>) -> c_int {
        counted(|| {
            let socket = Socket::of(socket)?;
            let state = socket.state();
            let local = state.local.or(Some(([0, 0, 0, 0], 0).into()));
            give_address(state.shown(local), to, len).map(|()| 0)
        })
    }
    "RDMACM_1.0" fn rsetsockopt(socket: c_int, level: c_int, name: c_int, value: *const u8, len: u32) -> c_int {
        counted(|| {
            let socket = Socket::of(socket)?;
            if !is_known(level) {
                return Err(Errno(libc::ENOPROTOOPT));
            }
            let value = bytes(value, (len as usize).min(64));
            socket.state().options.insert((level, name), value);
            Ok(0)
        })
    }
    "RDMACM_1.0" fn rgetsockopt(socket: c_int, level: c_int, name: c_int, value: *mut u8, len: In<u32>) -> c_int {
        counted(|| {
            let socket = Socket::of(socket)?;
            let found = option(&socket, level, name)?;
            let count = found.len().min(*len.get()? as usize);
            copy_to(value, &found[..count])?;
            len.set(count as u32)?;
            Ok(0)
        })
    }
    // Its third argument is one of a variable number, which come in the same registers.
    "RDMACM_1.0" fn rfcntl(socket: c_int, command: c_int, argument: c_long) -> c_int {
        counted(|| {
            let socket = Socket::of(socket)?;
            let mut state = socket.state();
            match command {
                // Of the descriptor whose number the socket has.
                libc::F_GETFD | libc::F_SETFD => descriptor_flags(socket.number(), command, argument),
                libc::F_GETFL => Ok(if state.nonblocking { libc::O_NONBLOCK } else { 0 }),
                libc::F_SETFL => {
                    state.nonblocking = argument & c_long::from(libc::O_NONBLOCK) != 0;
                    Ok(0)
                }
                _ => Err(Errno(libc::EOPNOTSUPP)),
            }
        })
    }
    "RDMACM_1.0" fn riomap(socket: c_int, at: *mut u8, len: usize, _access: c_int, _flags: c_int, offset: i64) -> i64 {
        let mut found = -1;
        let done = counted(|| {
            let chosen = if offset == -1 { at as i64 } else { offset };
            Socket::of(socket)?.map(at as usize, len, chosen as u64);
            found = chosen;
            Ok(0)
        });
        if done < 0 { -1 } else { found }
    }
    "RDMACM_1.0" fn riounmap(socket: c_int, at: *mut u8, len: usize) -> c_int {
        counted(|| Socket::of(socket)?.unmap(at as usize, len).map(|()| 0))
    }
}
cancellable! {
    "RDMACM_1.0" fn raccept(socket: c_int, from: *mut u8, len: In<u32>) -> c_int {
        waiting(|| accept(socket, from, len)) as c_int
    }
    "RDMACM_1.0" fn rconnect(socket: c_int, to: In<libc::sockaddr>, _len: u32) -> c_int {
        waiting(|| connect(socket, to)) as c_int
    }
    "RDMACM_1.0" fn rclose(socket: c_int) -> c_int {
        whole(|| {
            if !super::sets::close(socket) {
                Socket::close(socket)?;
            }
            Ok(0)
        })
    }
    "RDMACM_1.0" fn rrecv(socket: c_int, at: *mut u8, len: usize, flags: c_int) -> isize {
        waiting(|| async move { Ok(recv_all(socket, &[(at, len)], flags).await?.count) })
    }
    "RDMACM_1.0" fn rrecvfrom(socket: c_int, at: *mut u8, len: usize, flags: c_int, from: *mut u8, room: In<u32>) -> isize {
        waiting(|| async move {
            let received = recv_all(socket, &[(at, len)], flags).await?;
            tell_address(received.from, from, room)?;
            Ok(received.count)
        })
    }
    "RDMACM_1.0" fn rrecvmsg(socket: c_int, msg: In<libc::msghdr>, flags: c_int) -> isize {
        waiting(|| recv_message(socket, msg, flags))
    }
    "RDMACM_1.0" fn rread(socket: c_int, at: *mut u8, len: usize) -> isize {
        waiting(|| async move { Ok(recv_all(socket, &[(at, len)], 0).await?.count) })
    }
    "RDMACM_1.0" fn rreadv(socket: c_int, list: In<libc::iovec>, count: c_int) -> isize {
        waiting(|| async move { Ok(recv_all(socket, &entries(list, length(count)?)?, 0).await?.count) })
    }
    "RDMACM_1.0" fn rsend(socket: c_int, at: *mut u8, len: usize, flags: c_int) -> isize {
        waiting(|| async move { send_all(socket, &[(at, len)], flags, In::null()).await })
    }
    "RDMACM_1.0" fn rsendto(socket: c_int, at: *mut u8, len: usize, flags: c_int, to: In<libc::sockaddr>, _room: u32) -> isize {
        waiting(|| async move { send_all(socket, &[(at, len)], flags, to).await })
    }
    "RDMACM_1.0" fn rsendmsg(socket: c_int, msg: In<libc::msghdr>, flags: c_int) -> isize {
        waiting(|| async move {
            let (list, name) = message(msg)?;
            send_all(socket, &list, flags, In::of(name.cast())).await
        })
    }
    "RDMACM_1.0" fn rwrite(socket: c_int, at: *mut u8, len: usize) -> isize {
        waiting(|| async move { send_all(socket, &[(at, len)], 0, In::null()).await })
    }
    "RDMACM_1.0" fn rwritev(socket: c_int, list: In<libc::iovec>, count: c_int) -> isize {
        waiting(|| async move { send_all(socket, &entries(list, length(count)?)?, 0, In::null()).await })
    }
    "RDMACM_1.0" fn rpoll(fds: In<libc::pollfd>, count: libc::nfds_t, timeout_ms: c_int) -> c_int {
        waiting(|| poll_all(fds, count, timeout_ms)) as c_int
    }
    "RDMACM_1.0" fn rselect(count: c_int, read: In<[u64; 16]>, write: In<[u64; 16]>, other: In<[u64; 16]>, timeout: In<libc::timeval>) -> c_int {
        waiting(|| select(count, [read, write, other], timeout)) as c_int
    }
    "RDMACM_1.0" fn riowrite(socket: c_int, at: *mut u8, len: usize, offset: i64, flags: c_int) -> usize {
        let sent = waiting(|| async move {
            let (socket, list) = (Socket::of(socket)?, [(at, len)]);
            check(&list)?;
            let waits = flags & libc::MSG_DONTWAIT == 0;
            Ok(socket.send(len, |range| part(&list, range), Some(offset as u64), waits).await? as isize)
        });
        sent as usize
    }
}
