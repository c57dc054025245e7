//! The packet socket's system calls that need raw pointers, and the ring that the kernel fills.
//!
//! Invariants:
//! 1. Every pointer handed to the kernel points into memory that lives and is not moved for the whole
//!    call, with its true length beside it.
//! 2. The ring's mapping is `blocks * BLOCK_BYTES` long, page-aligned, and lives as long as the [`Ring`], or longer for
//!    a holder of a status word.
//! 3. A slot begins at a multiple of [`SLOT_ALIGN`] within the mapping and ends within its block; it begins with a
//!    `tpacket2_hdr`, whose first word, the status, names the owner of the rest of the slot.
//! 4. A slot whose status has the user bit belongs to this side: the kernel writes the status last (Release), this side
//!    reads it with Acquire, and the kernel does not access the slot before this side stores 0 to the status with
//!    Release. Only between this load and this store does this side read the slot through plain references, which end
//!    before the store.
//! 5. The status word itself is only ever touched as an atomic.
//! 6. The C structs built by `zeroed` are plain data for which zeros are valid.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use socket2::Socket;

#[cfg(not(loom))]
use crate::glance::{Glance, InputWord};
use crate::udp::sys::set_value;

/// Bytes of a block, in which slots lie; the kernel wants whole pages.
const BLOCK_BYTES: usize = 1 << 18;
const SLOT_ALIGN: usize = 128;
/// What stands in front of a frame: the slot's header, a link-layer address, the `virtio_net_hdr`, gaps.
const SLOT_HEAD_BYTES: usize = 128;
/// Bytes of a `virtio_net_hdr`.
pub(super) const VNET_BYTES: usize = 10;
/// Frames of one send call at most.
pub(super) const TX_BATCH: usize = 64;

pub(super) const SOL_PACKET: i32 = libc::SOL_PACKET;
pub(super) const PACKET_VERSION: i32 = 10;
pub(super) const PACKET_COPY_THRESH: i32 = 7;
pub(super) const PACKET_VNET_HDR: i32 = 15;
pub(super) const PACKET_QDISC_BYPASS: i32 = 20;
pub(super) const PACKET_IGNORE_OUTGOING: i32 = 23;
pub(super) const TPACKET_V2: i32 = 1;
const PACKET_RX_RING: i32 = 5;
const PACKET_STATISTICS: i32 = 6;
const STATUS_USER: u32 = 1 << 0;
/// The frame did not fit; all of it waits in the socket's queue.
pub(super) const STATUS_COPY: u32 = 1 << 1;
/// The UDP checksum is yet to be put on.
pub(super) const STATUS_CSUM_NOT_READY: u32 = 1 << 3;
/// The UDP checksum was found right.
pub(super) const STATUS_CSUM_VALID: u32 = 1 << 7;

/// The head of a slot, as the kernel writes it (`struct tpacket2_hdr`).
#[repr(C)]
#[derive(Clone, Copy)]
struct SlotHeader {
    status: u32,
    len: u32,
    snap_len: u32,
    mac: u16,
    net: u16,
    sec: u32,
    nsec: u32,
    vlan_tci: u16,
    vlan_tpid: u16,
    padding: [u8; 4],
}
const _: () = assert!(size_of::<SlotHeader>() == 32 && offset_of!(SlotHeader, mac) == 12);

/// How many slots of which size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    slot: usize,
    per_block: usize,
    blocks: usize,
}

impl Shape {
    /// Slots for frames of so many bytes, in about so much memory.
    pub(super) fn new(frame_bytes: usize, bytes: usize) -> Self {
        let slot = (SLOT_HEAD_BYTES + frame_bytes).next_multiple_of(SLOT_ALIGN);
        assert!(slot <= BLOCK_BYTES, "a slot of {slot} bytes in a block of {BLOCK_BYTES}");
        Self { slot, per_block: BLOCK_BYTES / slot, blocks: (bytes / BLOCK_BYTES).max(1) }
    }
    pub(super) fn slots(&self) -> usize {
        self.per_block * self.blocks
    }
    pub(super) fn bytes(&self) -> usize {
        self.blocks * BLOCK_BYTES
    }
}

/// A frame in the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived<'a> {
    pub(super) status: u32,
    /// Its end did not fit the slot.
    pub(super) truncated: bool,
    /// From the `virtio_net_hdr` on, if there is one.
    pub(super) bytes: &'a [u8],
}

/// The ring's mapping.
struct Memory {
    base: NonNull<u8>,
    len: usize,
}
// SAFETY: (2) the mapping does not depend on a thread.
unsafe impl Send for Memory {}
// SAFETY: (5) what is reached by a shared reference is a status, by an atomic.
unsafe impl Sync for Memory {}

impl Memory {
    /// The status of the slot that begins at this offset.
    fn status(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(SLOT_ALIGN) && at < self.len);
        // SAFETY: (3) the status is the slot's first word, aligned; (5) it is touched as an atomic only.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }
}
impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: (2) nobody has a reference into it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The receive ring of a packet socket.
pub(super) struct Ring {
    memory: Arc<Memory>,
    shape: Shape,
    block: usize,
    slot: usize,
    /// Bytes of `virtio_net_hdr` in front of each frame, or 0.
    vnet: usize,
}

impl Ring {
    /// Makes the ring of a socket that is not bound yet, or at least receives nothing yet.
    pub(super) fn new(socket: &Socket, shape: Shape, vnet: bool) -> io::Result<Self> {
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: shape.blocks as u32,
            tp_frame_size: shape.slot as u32,
            tp_frame_nr: shape.slots() as u32,
        };
        set_value(socket.as_fd(), SOL_PACKET, PACKET_RX_RING, &request)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), shape.bytes(), prot, flags, socket, 0) }?;
        let vnet = if vnet { VNET_BYTES } else { 0 };
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at 0 by itself");
        let memory = Arc::new(Memory { base, len: shape.bytes() });
        Ok(Self { memory, shape, block: 0, slot: 0, vnet })
    }

    /// Where the oldest slot begins: in the mapping (2, 3), as `block` and `slot` are kept below their limits.
    #[inline]
    fn offset(&self) -> usize {
        self.block * BLOCK_BYTES + self.slot * self.shape.slot
    }
    #[inline]
    fn at(&self) -> *mut u8 {
        self.memory.base.as_ptr().wrapping_add(self.offset())
    }
    #[inline]
    fn status(&self) -> &AtomicU32 {
        // SAFETY: (3) the status is the slot's first word, aligned; (5) it is touched as an atomic only.
        unsafe { AtomicU32::from_ptr(self.at().cast()) }
    }

    /// Brings a glance to the slot that the kernel fills next. `false`: a frame waits there.
    #[cfg(not(loom))]
    pub(super) fn renew_glance(&self, glance: &mut Glance) -> bool {
        let (at, quiet) = (self.offset(), self.status().load(Ordering::Relaxed));
        let is_quiet = quiet & STATUS_USER == 0;
        if is_quiet {
            glance.look_at(&self.memory, |memory| memory.status(at), quiet, InputWord::silent);
        }
        is_quiet
    }

    /// Whether a frame waits.
    #[inline]
    pub(super) fn has_frame(&self) -> bool {
        // Acquire: pairs with the kernel's barrier between the slot's bytes and its status.
        self.status().load(Ordering::Acquire) & STATUS_USER != 0
    }

    /// The oldest frame, which stays until [`release`](Self::release).
    #[inline]
    pub(super) fn peek(&self) -> Option<Arrived<'_>> {
        // Acquire: pairs with the kernel's barrier between the slot's bytes and its status.
        let status = self.status().load(Ordering::Acquire);
        if status & STATUS_USER == 0 {
            return None;
        }
        let at = self.at();
        // SAFETY: (3, 4) the slot is ours until `release`, which needs `&mut self`; it is read past the status word.
        let rest = unsafe { std::slice::from_raw_parts(at.wrapping_add(4), self.shape.slot - 4) };
        let half = |of: usize| usize::from(u16::from_ne_bytes([rest[of - 4], rest[of - 3]]));
        let word = |of: usize| u32::from_ne_bytes([rest[of - 4], rest[of - 3], rest[of - 2], rest[of - 1]]);
        let mac = half(offset_of!(SlotHeader, mac)).max(size_of::<SlotHeader>() + self.vnet);
        let snap = word(offset_of!(SlotHeader, snap_len)) as usize;
        // As a slice of the slot: offsets that lie give nothing.
        let bytes = rest.get(mac - self.vnet - 4..).unwrap_or_default();
        let bytes = &bytes[..bytes.len().min(snap.saturating_add(self.vnet))];
        let len = word(offset_of!(SlotHeader, len)) as usize;
        Some(Arrived { status, truncated: bytes.len() < len.saturating_add(self.vnet), bytes })
    }

    /// Gives the oldest frame's slot back to the kernel.
    #[inline]
    pub(super) fn release(&mut self) {
        // Release: our reads of the slot come before the kernel's next writes (4).
        self.status().store(0, Ordering::Release);
        self.slot += 1;
        if self.slot == self.shape.per_block {
            self.slot = 0;
            self.block = if self.block + 1 == self.shape.blocks { 0 } else { self.block + 1 };
        }
    }
}

/// Binds a packet socket to an interface; with protocol 0 it receives nothing.
pub(super) fn bind(socket: &Socket, link: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: (6) zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = link as i32;
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: (1) the address lives on the stack for the call.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Frames that found no room in the ring since this was last asked.
pub(super) fn take_drops(socket: &Socket) -> u32 {
    // SAFETY: (6) zeros are valid.
    let mut stats: libc::tpacket_stats = unsafe { zeroed() };
    let mut len = size_of_val(&stats) as libc::socklen_t;
    let at = (&raw mut stats).cast();
    // SAFETY: (1) both live on the stack for the call, and the length is the struct's.
    let r = unsafe { libc::getsockopt(socket.as_raw_fd(), SOL_PACKET, PACKET_STATISTICS, at, &raw mut len) };
    if r == 0 { stats.tp_drops } else { 0 }
}

/// Sends one frame.
#[inline]
pub(super) fn send_one(socket: &Socket, frame: &[u8]) -> io::Result<()> {
    let (at, nowhere) = (frame.as_ptr(), std::ptr::null::<u8>());
    let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: (1) the slice lives for the call and its length is given.
    let n = unsafe { libc::syscall(libc::SYS_sendto, fd, at, frame.len(), flags, nowhere, 0_usize) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Message headers for send calls; all pointers are set anew for each.
pub(super) struct TxHeaders {
    parts: [[libc::iovec; 2]; TX_BATCH],
    headers: [libc::mmsghdr; TX_BATCH],
}
// SAFETY: (1) the pointers left over from a call are never followed: each call sets its own first.
unsafe impl Send for TxHeaders {}

impl TxHeaders {
    pub(super) fn new() -> Box<Self> {
        // SAFETY: (6) zeros are valid for both.
        Box::new(unsafe { zeroed() })
    }

    /// Sends frames, each of headers and payload, by one call and says how many left.
    pub(super) fn send<'a>(
        &mut self,
        socket: &Socket,
        frames: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> io::Result<usize> {
        let part =
            |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut count = 0;
        for (i, (head, payload)) in frames.take(TX_BATCH).enumerate() {
            self.parts[i] = [part(head), part(payload)];
            let header = &mut self.headers[i].msg_hdr;
            header.msg_iov = self.parts[i].as_mut_ptr();
            header.msg_iovlen = 2;
            count = i + 1;
        }
        // SAFETY: (1) the first `count` headers point into `parts` and at the slices, which outlive the call.
        let n = unsafe {
            let headers = self.headers.as_mut_ptr();
            libc::syscall(libc::SYS_sendmmsg, socket.as_raw_fd(), headers, count, libc::MSG_DONTWAIT)
        };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
    }
}
