//! Bare Ethernet: a spinning ping-pong of frames between two namespaces, received from a ring that the kernel fills
//! (TPACKET_V2), sent past the queueing discipline. Both ends call their interface `wire`.
//!
//! 1. Option values, addresses and frames outlive the call that is given them, with their true lengths.
//! 2. The mapping is [`RING_BYTES`] long, its slots begin at multiples of [`SLOT_BYTES`], and it is never unmapped.
//! 3. A slot's first word is its status and is touched as an atomic only; nothing else of a slot is read but one byte
//!    of its frame, while the status says that the slot is ours.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};

use super::{Far, Figures, STALL, Shared};

/// The interface at both ends.
const INTERFACE: &std::ffi::CStr = c"wire";
/// For experiments on one link (IEEE 802).
const ETHER_TYPE: u16 = 0x88b5;
const ETHERNET_BYTES: usize = 14;
const RING_BYTES: usize = 16 << 20;
const BLOCK_BYTES: usize = 1 << 17;
const SLOT_BYTES: usize = 8192;
/// Frames under way at most: the kernel's own queue in front of the ring takes 1000.
const FRAMES_UNDER_WAY: u64 = 512;
/// Frames that one call sends.
const CALL_FRAMES: usize = 64;
const PACKET_RX_RING: i32 = 5;
const PACKET_VERSION: i32 = 10;
const PACKET_QDISC_BYPASS: i32 = 20;

/// An end of the wire.
pub(super) trait End: Sized {
    /// Opens it, for frames of so many bytes behind their Ethernet header.
    fn open(bytes: usize) -> io::Result<Self>;
    /// Sends a frame.
    fn send(&mut self) -> bool;
    /// Takes a frame, if one is there; its last byte.
    fn recv(&mut self) -> Option<u8>;
}

/// A frame for everybody on the wire, of so many bytes behind its Ethernet header.
pub(super) fn frame(bytes: usize) -> Vec<u8> {
    let mut frame = vec![5; ETHERNET_BYTES + bytes];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&ETHER_TYPE.to_be_bytes());
    frame
}

/// The interface's number.
pub(super) fn link() -> u32 {
    // SAFETY: (1) the name is a C string.
    unsafe { libc::if_nametoindex(INTERFACE.as_ptr()) }
}

/// By packet sockets.
pub(super) struct Packets {
    _rx: OwnedFd,
    tx: OwnedFd,
    ring: *mut u8,
    slot: usize,
    frame: Vec<u8>,
}

impl End for Packets {
    fn open(bytes: usize) -> io::Result<Self> {
        let rx = socket()?;
        set(&rx, PACKET_VERSION, &1_i32)?;
        let blocks = RING_BYTES / BLOCK_BYTES;
        let request = [BLOCK_BYTES, blocks, SLOT_BYTES, RING_BYTES / SLOT_BYTES].map(|n| n as u32);
        set(&rx, PACKET_RX_RING, &request)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let ring = unsafe { rustix::mm::mmap(std::ptr::null_mut(), RING_BYTES, prot, flags, &rx, 0) }?;
        bind(&rx, ETHER_TYPE)?;
        let tx = socket()?;
        set(&tx, PACKET_QDISC_BYPASS, &1_i32)?;
        bind(&tx, 0)?;
        Ok(Self { _rx: rx, tx, ring: ring.cast(), slot: 0, frame: frame(bytes) })
    }

    fn send(&mut self) -> bool {
        // SAFETY: (1) the frame outlives the call.
        unsafe { libc::send(self.tx.as_raw_fd(), self.frame.as_ptr().cast(), self.frame.len(), 0) > 0 }
    }

    fn recv(&mut self) -> Option<u8> {
        let at = self.ring.wrapping_add(self.slot * SLOT_BYTES);
        // SAFETY: (2, 3) the status is the slot's first word, aligned.
        let status = unsafe { AtomicU32::from_ptr(at.cast()) };
        if status.load(Ordering::Acquire) & 1 == 0 {
            return None;
        }
        // SAFETY: (3) the slot is ours; where the frame begins is told in its header, within the slot.
        let byte = unsafe {
            let mac = usize::from(at.add(12).cast::<u16>().read()).min(SLOT_BYTES / 2);
            at.add(mac + self.frame.len() - 1).read()
        };
        status.store(0, Ordering::Release);
        self.slot = (self.slot + 1) % (RING_BYTES / SLOT_BYTES);
        Some(byte)
    }
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    match unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the descriptor is new, and nobody else's.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn set<T>(fd: &OwnedFd, name: i32, value: &T) -> io::Result<()> {
    let at = std::ptr::from_ref(value).cast();
    // SAFETY: (1) the value outlives the call.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_PACKET, name, at, size_of::<T>() as u32) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn bind(fd: &OwnedFd, protocol: u16) -> io::Result<()> {
    // SAFETY: zeros are valid for this struct.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = link() as i32;
    // SAFETY: (1) the address outlives the call.
    match unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bounces a frame for `time` and takes the median.
pub(super) fn ping<E: End>(
    bytes: usize,
    shared: &Shared,
    far: &mut Far,
    time: Duration,
) -> io::Result<Figures> {
    let mut end = E::open(bytes)?;
    far.port(shared)?;
    let mut samples = Vec::with_capacity(1 << 20);
    let begin = Instant::now();
    let mut before = begin;
    while samples.len() < samples.capacity() && before - begin < time {
        end.send();
        while end.recv().is_none() {
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

/// Sends a frame back for each that comes.
pub(super) fn pong<E: End>(bytes: usize, shared: &Shared) -> io::Result<()> {
    let mut end = E::open(bytes)?;
    shared.port.store(1);
    let mut empty = 0_u32;
    loop {
        if end.recv().is_some() {
            end.send();
        } else {
            empty = empty.wrapping_add(1);
            if empty.is_multiple_of(256) && shared.stop.load() != 0 {
                return Ok(());
            }
        }
    }
}

/// Sends frames, as many a call as one takes, and counts what arrives.
pub(super) fn stream(bytes: usize, shared: &Shared, far: &mut Far, time: Duration) -> io::Result<Figures> {
    let end = Packets::open(bytes)?;
    far.port(shared)?;
    let (at, len) = (end.frame.as_ptr().cast_mut().cast(), end.frame.len());
    let mut part = libc::iovec { iov_base: at, iov_len: len };
    // SAFETY: zeros are valid for this struct.
    let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
    (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (&raw mut part, 1);
    let mut headers = [header; CALL_FRAMES];
    let start = Instant::now();
    let (mut begin, mut before, mut warm, mut sent) = (start, 0, false, 0_u64);
    let (mut seen, mut seen_at) = (0, start);
    loop {
        let now = Instant::now();
        if !warm && now - start > time / 10 {
            (warm, before, begin) = (true, shared.arrived.load(), now);
        }
        if now - start > time {
            break;
        }
        let arrived = shared.arrived.load();
        if arrived != seen {
            (seen, seen_at) = (arrived, now);
        }
        if sent.saturating_sub(arrived) > FRAMES_UNDER_WAY {
            std::hint::spin_loop();
            if now - seen_at > STALL {
                // The rest was lost.
                sent = arrived;
            }
            continue;
        }
        // SAFETY: (1) the headers, the part and the frame outlive the call.
        let n = unsafe {
            libc::sendmmsg(
                end.tx.as_raw_fd(),
                headers.as_mut_ptr(),
                CALL_FRAMES as u32,
                libc::MSG_DONTWAIT as _,
            )
        };
        sent += n.max(0) as u64;
    }
    let frames = (shared.arrived.load() - before) as f64 / begin.elapsed().as_secs_f64();
    Ok(Figures { packets_per_s: frames, bytes_per_s: frames * bytes as f64, ..Figures::default() })
}

/// Takes frames, and says how many came.
pub(super) fn sink(bytes: usize, shared: &Shared) -> io::Result<()> {
    let mut end = Packets::open(bytes)?;
    shared.port.store(1);
    let (mut empty, mut arrived) = (0_u32, 0);
    loop {
        if end.recv().is_some() {
            arrived += 1;
            shared.arrived.store(arrived);
        } else {
            empty = empty.wrapping_add(1);
            if empty.is_multiple_of(256) && shared.stop.load() != 0 {
                return Ok(());
            }
        }
    }
}
