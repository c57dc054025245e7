//! The same ping-pong by AF_XDP sockets in copy mode, behind a generic XDP program that redirects frames of the
//! floor's EtherType: what a second kind of raw Ethernet would have for its floor. It needs CAP_NET_ADMIN and
//! CAP_BPF beside CAP_NET_RAW.
//!
//! 1. Option values, attributes, the program and the addresses outlive the call that is given them, with their true
//!    lengths.
//! 2. The four rings and the frames are mapped for [`SLOTS`] entries each and live as long as the [`Xsk`]; an index is
//!    taken modulo [`SLOTS`] before it becomes an address.
//! 3. Producer and consumer words are touched as atomics only. An entry is read or written only while it is ours by
//!    these words, and so is the frame that it names.
#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::STALL;
use super::raw::{End, frame, link};

const SLOTS: u32 = 256;
const FRAME_BYTES: usize = 2048;

// Numbers of <linux/bpf.h> that libc does not have.
const BPF_MAP_CREATE: i64 = 0;
const BPF_MAP_UPDATE_ELEM: i64 = 2;
const BPF_PROG_LOAD: i64 = 5;
const BPF_LINK_CREATE: i64 = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const XDP_PASS: i32 = 2;
/// The program sees frames where the stack takes them, on any device.
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const REDIRECT_MAP: i32 = 51;

/// An attribute of a bpf call, as words; what is not set is zero.
#[repr(C, align(8))]
struct Attribute([u32; 32]);

impl Attribute {
    fn new(words: &[(usize, u32)], addresses: &[(usize, *const u8)]) -> Self {
        let mut a = Self([0; 32]);
        for &(at, word) in words {
            a.0[at] = word;
        }
        for &(at, address) in addresses {
            let address = address as u64;
            (a.0[at], a.0[at + 1]) = (address as u32, (address >> 32) as u32);
        }
        a
    }

    fn call(&self, command: i64) -> io::Result<i64> {
        // SAFETY: (1) the attribute and what it points at outlive the call.
        match unsafe { libc::syscall(libc::SYS_bpf, command, &raw const self.0, size_of::<Self>()) } {
            -1 => Err(io::Error::last_os_error()),
            n => Ok(n),
        }
    }

    fn open(&self, command: i64) -> io::Result<OwnedFd> {
        let fd = self.call(command)? as i32;
        // SAFETY: the descriptor is new, and nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Redirects frames of this type to the sockets of a map, and passes all others.
fn program(map: &OwnedFd, ether_type: u16) -> Vec<u64> {
    let op = |code: u8, dst: u8, src: u8, off: i16, imm: i32| {
        u64::from(code)
            | u64::from(src << 4 | dst) << 8
            | u64::from(off as u16) << 16
            | u64::from(imm as u32) << 32
    };
    let (load_word, load_half, copy, add, set, above, unequal) = (0x61, 0x69, 0xbf, 0x07, 0xb7, 0x2d, 0x55);
    let (call, exit, load_map) = (0x85, 0x95, 0x18);
    vec![
        op(copy, 6, 1, 0, 0),
        op(load_word, 2, 1, 0, 0),
        op(load_word, 3, 1, 4, 0),
        op(copy, 4, 2, 0, 0),
        op(add, 4, 0, 0, 14),
        op(above, 4, 3, 8, 0),
        op(load_half, 5, 2, 12, 0),
        op(unequal, 5, 0, 6, i32::from(ether_type.to_be())),
        op(load_word, 2, 6, 16, 0),
        op(load_map, 1, 1, 0, map.as_raw_fd()),
        0,
        op(set, 3, 0, 0, XDP_PASS),
        op(call, 0, 0, 0, REDIRECT_MAP),
        op(exit, 0, 0, 0, 0),
        op(set, 0, 0, 0, XDP_PASS),
        op(exit, 0, 0, 0, 0),
    ]
}

/// A ring that is shared with the kernel.
struct Ring {
    base: *mut u8,
    bytes: usize,
    producer: usize,
    consumer: usize,
    entries: usize,
}

impl Ring {
    fn map(socket: &OwnedFd, at: u64, offset: &libc::xdp_ring_offset, entry: usize) -> io::Result<Self> {
        let bytes = offset.desc as usize + SLOTS as usize * entry;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, prot, flags, socket, at) }?;
        let [producer, consumer, entries] =
            [offset.producer, offset.consumer, offset.desc].map(|o| o as usize);
        Ok(Self { base: base.cast(), bytes, producer, consumer, entries })
    }
    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: (2) `at` is an offset that the kernel told; (3) it is touched as an atomic only.
        unsafe { AtomicU32::from_ptr(self.base.add(at).cast()) }
    }
    fn producer(&self) -> &AtomicU32 {
        self.word(self.producer)
    }
    fn consumer(&self) -> &AtomicU32 {
        self.word(self.consumer)
    }
    fn entry<T>(&self, index: u32) -> *mut T {
        // SAFETY: (2) the index is below the entries that are mapped.
        unsafe { self.base.add(self.entries).cast::<T>().add((index % SLOTS) as usize) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A mapping would keep the socket, and with it the interface's queue.
        // SAFETY: (2) the mapping is this ring's, and nothing of it is used any more.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

/// An AF_XDP socket on queue 0 of the interface, with its frames.
pub(super) struct Xsk {
    socket: OwnedFd,
    frames: *mut u8,
    fill: Ring,
    done: Ring,
    rx: Ring,
    tx: Ring,
    received: u32,
    sent: u32,
    frame: Vec<u8>,
    /// The program stays on the interface as long as these live.
    _kept: [OwnedFd; 3],
}

impl End for Xsk {
    fn open(bytes: usize) -> io::Result<Self> {
        let map =
            Attribute::new(&[(0, BPF_MAP_TYPE_XSKMAP), (1, 4), (2, 4), (3, 1)], &[]).open(BPF_MAP_CREATE)?;
        let frame = frame(bytes);
        let code = program(&map, u16::from_be_bytes([frame[12], frame[13]]));
        let words = [(0, BPF_PROG_TYPE_XDP), (1, code.len() as u32)];
        let pointers = [(2, code.as_ptr().cast()), (4, c"GPL".as_ptr().cast())];
        let program = Attribute::new(&words, &pointers).open(BPF_PROG_LOAD)?;
        // SAFETY: takes no pointers.
        let socket = match unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: the descriptor is new, and nobody else's.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
        let len = 2 * SLOTS as usize * FRAME_BYTES;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let frames = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }?.cast::<u8>();
        // SAFETY: zeros are valid for this struct.
        let mut memory: libc::xdp_umem_reg = unsafe { zeroed() };
        (memory.addr, memory.len, memory.chunk_size) = (frames as u64, len as u64, FRAME_BYTES as u32);
        set(&socket, libc::XDP_UMEM_REG, &memory)?;
        for ring in
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING]
        {
            set(&socket, ring, &SLOTS)?;
        }
        let at = offsets(&socket)?;
        let entry = size_of::<libc::xdp_desc>();
        let rx = Ring::map(&socket, libc::XDP_PGOFF_RX_RING as u64, &at.rx, entry)?;
        let tx = Ring::map(&socket, libc::XDP_PGOFF_TX_RING as u64, &at.tx, entry)?;
        let fill = Ring::map(&socket, libc::XDP_UMEM_PGOFF_FILL_RING, &at.fr, 8)?;
        let done = Ring::map(&socket, libc::XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, 8)?;
        for slot in 0..SLOTS {
            // SAFETY: (3) the kernel has no entry of this ring yet.
            unsafe { fill.entry::<u64>(slot).write(u64::from(slot) * FRAME_BYTES as u64) };
        }
        fill.producer().store(SLOTS, Ordering::Release);
        bind(&socket)?;
        let (key, value) = (0_u32, socket.as_raw_fd());
        let pointers = [(2, (&raw const key).cast()), (4, (&raw const value).cast())];
        Attribute::new(&[(0, map.as_raw_fd() as u32)], &pointers).call(BPF_MAP_UPDATE_ELEM)?;
        let words = [(0, program.as_raw_fd() as u32), (1, link()), (2, BPF_XDP), (3, XDP_FLAGS_SKB_MODE)];
        let attached = Attribute::new(&words, &[]).open(BPF_LINK_CREATE)?;
        let _kept = [map, program, attached];
        Ok(Self { socket, frames, fill, done, rx, tx, received: 0, sent: 0, frame, _kept })
    }

    fn send(&mut self) -> bool {
        // What has left is free again.
        self.done.consumer().store(self.done.producer().load(Ordering::Acquire), Ordering::Release);
        let at = (SLOTS + self.sent % SLOTS) as usize * FRAME_BYTES;
        // SAFETY: (2, 3) the frame is this side's, since one at a time is under way.
        unsafe {
            std::ptr::copy_nonoverlapping(self.frame.as_ptr(), self.frames.add(at), self.frame.len());
            let entry = libc::xdp_desc { addr: at as u64, len: self.frame.len() as u32, options: 0 };
            self.tx.entry::<libc::xdp_desc>(self.sent).write(entry);
        }
        self.sent = self.sent.wrapping_add(1);
        self.tx.producer().store(self.sent, Ordering::Release);
        let nothing = std::ptr::null();
        // SAFETY: (1) no bytes are given.
        unsafe { libc::send(self.socket.as_raw_fd(), nothing, 0, libc::MSG_DONTWAIT) >= 0 }
    }

    fn recv(&mut self) -> Option<u8> {
        if self.rx.producer().load(Ordering::Acquire) == self.received {
            return None;
        }
        // SAFETY: (2, 3) the entry and its frame are ours until the consumer word moves on.
        let (address, byte) = unsafe {
            let entry = self.rx.entry::<libc::xdp_desc>(self.received).read();
            let last = (entry.addr as usize + entry.len as usize - 1) % (2 * SLOTS as usize * FRAME_BYTES);
            (entry.addr, self.frames.add(last).read())
        };
        let free = self.fill.producer().load(Ordering::Relaxed);
        // SAFETY: (3) there are as many entries as frames, so this one is free.
        unsafe { self.fill.entry::<u64>(free).write(address - address % FRAME_BYTES as u64) };
        self.fill.producer().store(free.wrapping_add(1), Ordering::Release);
        self.received = self.received.wrapping_add(1);
        self.rx.consumer().store(self.received, Ordering::Release);
        Some(byte)
    }
}

impl Drop for Xsk {
    fn drop(&mut self) {
        // SAFETY: (2) the mapping is this value's, and nothing of it is used any more.
        let _ = unsafe { munmap(self.frames.cast(), 2 * SLOTS as usize * FRAME_BYTES) };
    }
}

fn offsets(socket: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: zeros are valid for this struct.
    let mut at: libc::xdp_mmap_offsets = unsafe { zeroed() };
    let mut len = size_of_val(&at) as libc::socklen_t;
    let (fd, to) = (socket.as_raw_fd(), (&raw mut at).cast());
    // SAFETY: (1) both outlive the call, and the length is the struct's.
    match unsafe { libc::getsockopt(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, to, &raw mut len) } {
        0 => Ok(at),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set<T>(socket: &OwnedFd, name: i32, value: &T) -> io::Result<()> {
    let at = std::ptr::from_ref(value).cast();
    // SAFETY: (1) the value outlives the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, name, at, size_of::<T>() as u32) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Binds to queue 0. A socket of the run before keeps the queue until the kernel gets round to it.
fn bind(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: zeros are valid for this struct.
    let mut address: libc::sockaddr_xdp = unsafe { zeroed() };
    address.sxdp_family = libc::AF_XDP as u16;
    address.sxdp_flags = libc::XDP_COPY;
    address.sxdp_ifindex = link();
    let begin = std::time::Instant::now();
    loop {
        let (fd, len) = (socket.as_raw_fd(), size_of_val(&address) as u32);
        // SAFETY: (1) the address outlives the call.
        if unsafe { libc::bind(fd, (&raw const address).cast(), len) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) || begin.elapsed() > 50 * STALL {
            return Err(error);
        }
        std::thread::yield_now();
    }
}
