//! Bare UDP: a spinning ping-pong on connected sockets, and streams of trains by UDP_SEGMENT and UDP_GRO.
//!
//! 1. Message headers, lists and control buffers outlive the call that is given them.
#![allow(unsafe_code)]

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::{Far, Figures, STALL, Shared};

/// Segments of a train.
const MAX_SEGMENTS: usize = 64;
/// Bytes of a train.
const MAX_TRAIN_BYTES: usize = 65_000;
/// Packets under way at most.
const MAX_WINDOW: u64 = 2048;
/// What the sockets ask for; the system may grant less.
const BUFFER_BYTES: i32 = 16 << 20;
/// Memory that the system counts for a packet beside its bytes.
const PACKET_OVERHEAD: usize = 1000;

/// A socket on 127.0.0.1 with large buffers.
fn socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        set(&socket, libc::SOL_SOCKET, forced, BUFFER_BYTES)
            .or_else(|_| set(&socket, libc::SOL_SOCKET, plain, BUFFER_BYTES))?;
    }
    Ok(socket)
}

fn set(socket: &UdpSocket, level: i32, name: i32, value: i32) -> io::Result<()> {
    let (at, len) = ((&raw const value).cast(), size_of::<i32>() as u32);
    // SAFETY: (1) the option's value is an `i32` that outlives the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, at, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The receive buffer that the system granted.
fn granted(socket: &UdpSocket) -> io::Result<usize> {
    let (mut value, mut len) = (0_i32, size_of::<i32>() as u32);
    let at = (&raw mut value).cast();
    // SAFETY: (1) value and length outlive the call, and the length is the value's.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, at, &raw mut len) }
    {
        0 => Ok(value as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

fn send(socket: &UdpSocket, bytes: &[u8]) -> bool {
    // SAFETY: (1) the slice outlives the call.
    unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) > 0 }
}

fn recv(socket: &UdpSocket, bytes: &mut [u8]) -> Option<usize> {
    let (at, len) = (bytes.as_mut_ptr().cast(), bytes.len());
    // SAFETY: (1) the slice outlives the call and is as long as told.
    let n = unsafe { libc::recv(socket.as_raw_fd(), at, len, libc::MSG_DONTWAIT) };
    usize::try_from(n).ok().filter(|n| *n > 0)
}

/// A socket connected to the far side's, which has been told of it.
fn connected(shared: &Shared, far: &mut Far) -> io::Result<UdpSocket> {
    let socket = socket()?;
    socket.connect((Ipv4Addr::LOCALHOST, far.port(shared)?))?;
    send(&socket, b"hello");
    let (begin, mut buf) = (Instant::now(), [0; 64]);
    while recv(&socket, &mut buf).is_none() {
        if begin.elapsed() > super::START_LIMIT {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(socket)
}

/// A socket connected to the first that says hello, which is answered.
fn accepted(shared: &Shared) -> io::Result<UdpSocket> {
    let socket = socket()?;
    shared.port.store(socket.local_addr()?.port().into());
    let (_, from): (_, SocketAddr) = socket.recv_from(&mut [0; 64])?;
    socket.connect(from)?;
    Ok(socket)
}

/// Bounces 8 bytes for `time` and takes the median.
pub(super) fn ping(shared: &Shared, far: &mut Far, time: Duration) -> io::Result<Figures> {
    let socket = connected(shared, far)?;
    let mut samples = Vec::with_capacity(1 << 20);
    let (begin, mut buf) = (Instant::now(), [0; 64]);
    let mut before = begin;
    while samples.len() < samples.capacity() && before - begin < time {
        send(&socket, &buf[..8]);
        while recv(&socket, &mut buf).is_none() {
            if before.elapsed() > STALL {
                break;
            }
        }
        let now = Instant::now();
        if now - begin > time / 10 {
            samples.push((now - before).as_nanos() as u64);
        }
        before = now;
    }
    samples.sort_unstable();
    let median = samples.get(samples.len() / 2).copied().unwrap_or(0);
    Ok(Figures { half_rtt_ns: median as f64 / 2.0, ..Figures::default() })
}

/// Sends everything back.
pub(super) fn pong(shared: &Shared) -> io::Result<()> {
    let socket = accepted(shared)?;
    send(&socket, b"hello");
    let mut buf = [0; 64];
    let mut empty = 0_u32;
    loop {
        if recv(&socket, &mut buf).is_some() {
            send(&socket, &buf[..8]);
        } else {
            empty = empty.wrapping_add(1);
            if empty.is_multiple_of(256) && shared.stop.load() != 0 {
                return Ok(());
            }
        }
    }
}

/// Sends trains of equal segments for `time`, no more under way than the far side's buffer takes.
pub(super) fn stream(segment: usize, shared: &Shared, far: &mut Far, time: Duration) -> io::Result<Figures> {
    let socket = connected(shared, far)?;
    let segments = (MAX_TRAIN_BYTES / segment).min(MAX_SEGMENTS);
    let window = (granted(&socket)? / 2 / (segment + PACKET_OVERHEAD)) as u64;
    let window = window.clamp(segments as u64, MAX_WINDOW);
    set(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, segment as i32)?;
    let train = vec![5; segment * segments];
    let (mut sent, mut lost) = (0_u64, 0_u64);
    let mut begin = Instant::now();
    let (mut warm, mut before) = (false, 0);
    let mut progress = begin;
    loop {
        let now = Instant::now();
        if !warm && now - begin > time / 10 {
            (warm, before, begin) = (true, shared.arrived.load(), now);
        }
        if warm && now - begin > time {
            break;
        }
        let arrived = shared.arrived.load();
        if sent.saturating_sub(arrived + lost) + segments as u64 > window {
            if now - progress > STALL {
                lost = sent - arrived;
                progress = now;
            }
            std::hint::spin_loop();
            continue;
        }
        progress = now;
        if send(&socket, &train) {
            sent += segments as u64;
        }
    }
    let packets = (shared.arrived.load() - before) as f64 / begin.elapsed().as_secs_f64();
    Ok(Figures { packets_per_s: packets, bytes_per_s: packets * segment as f64, ..Figures::default() })
}

/// Receives trains and counts their segments.
pub(super) fn sink(segment: usize, shared: &Shared) -> io::Result<()> {
    let socket = accepted(shared)?;
    set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    send(&socket, b"hello");
    let mut buf = vec![0_u8; 1 << 16];
    let mut control = [0_u64; 8];
    let mut list = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let (mut arrived, mut empty) = (0, 0_u32);
    loop {
        // SAFETY: all-zero is a valid message header.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut list;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control) as _;
        // SAFETY: (1) header, list, buffer and control buffer outlive the call, with their true lengths.
        let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
        if n > 0 {
            arrived += (n as usize).div_ceil(segment) as u64;
            shared.arrived.store(arrived);
        } else {
            empty = empty.wrapping_add(1);
            if empty.is_multiple_of(256) && shared.stop.load() != 0 {
                return Ok(());
            }
        }
    }
}
