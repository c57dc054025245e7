//! The system calls that need raw pointers: control messages, several datagrams a call, options that
//! the safe crates do not name. Those of the data path go by `syscall`: the C library's wrappers of them
//! are cancellation points, which costs a program with threads two locked instructions a call, and where
//! a thread that was cancelled would end half way through the adapter's work.
//!
//! Invariants:
//! 1. Every pointer in a `msghdr` handed to the kernel points into memory that lives and is not
//!    moved for the whole call, with the length beside it.
//! 2. [`RxSlots`] owns its buffers in boxed slices that are never reallocated, and its headers point
//!    into them only; the headers are refreshed before each call, as the kernel changes the lengths.
//! 3. A slot's bytes are read only up to the length that the kernel reported for it.
//! 4. The C structs built by `zeroed` (`msghdr`, `mmsghdr`, `iovec`, `sockaddr_storage`, `ifreq`) are
//!    plain data for which zeros are valid.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::OpenError;
use crate::lent::Lent;

/// Bytes of one receive buffer: the longest UDP datagram, before GRO takes it apart.
pub(crate) const RX_BUFFER_BYTES: usize = 65_536;
/// Room for the control messages of one datagram: GRO size, traffic class, hop limit, with spares.
const CONTROL_BYTES: usize = 128;
/// Datagrams of one send call at most.
pub(crate) const TX_BATCH: usize = 16;
/// Pieces of one send call that take no allocation: each packet of a batch that is lent its payload has two.
const TX_PIECES: usize = 1024;
/// Bytes of an address as the kernel writes it.
pub(crate) const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// Sets an integer option.
///
/// # Errors
/// The kernel refuses it.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_value(fd, level, name, &value)
}

/// Sets an option that is a C struct.
///
/// # Errors
/// The kernel refuses it.
pub(crate) fn set_value<T>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    let (at, len) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: (1) the value outlives the call, and its size is given.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, at, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has what a socket sends to multicast groups leave by this interface.
///
/// # Errors
/// The kernel refuses it.
pub(crate) fn send_to_groups_by(fd: BorrowedFd<'_>, v6: bool, interface: u32) -> io::Result<()> {
    if v6 {
        return set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, interface as i32);
    }
    let any = libc::in_addr { s_addr: 0 };
    let by = libc::ip_mreqn { imr_multiaddr: any, imr_address: any, imr_ifindex: interface as i32 };
    set_value(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &by)
}

/// Has the kernel choose among the sockets of this one's group, which share an address and port, by what a program
/// returns for a datagram: the index of a socket in the order in which they were bound.
///
/// # Errors
/// The kernel refuses it.
pub(crate) fn steer(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The kernel reads the padding, too, and memory checkers look at it.
    let mut of_kernel = core::mem::MaybeUninit::<libc::sock_fprog>::uninit();
    let at = of_kernel.as_mut_ptr();
    // SAFETY: the value, and both of its fields.
    unsafe {
        at.write_bytes(0, 1);
        (&raw mut (*at).len).write(len);
        (&raw mut (*at).filter).write(program.as_ptr().cast_mut());
    }
    // The kernel reads the program, which lives for the call, and copies it.
    set_value(fd, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &of_kernel)
}

/// Datagrams that the kernel dropped at a socket since it was opened, for want of buffer.
pub(crate) fn dropped(fd: BorrowedFd<'_>) -> Option<u64> {
    const SK_MEMINFO_DROPS: usize = 8;
    let mut info = [0_u32; 16];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: (1) the array lives on the stack for the call and its size is given.
    let r = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    (r == 0 && len as usize > SK_MEMINFO_DROPS * 4).then(|| u64::from(info[SK_MEMINFO_DROPS]))
}

/// Takes a message from a socket's error queue: the frame that a timestamp was taken of.
///
/// # Errors
/// `WouldBlock` when there is none.
pub(crate) fn recv_error(fd: BorrowedFd<'_>, frame: &mut [u8]) -> io::Result<usize> {
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: (1) the slice lives for the call and its length is given.
    let n = unsafe {
        let (at, nowhere) = (frame.as_mut_ptr(), std::ptr::null_mut::<u8>());
        libc::syscall(libc::SYS_recvfrom, fd.as_raw_fd(), at, frame.len(), flags, nowhere, nowhere)
    };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Sends one packet by a connected socket.
///
/// # Errors
/// Why it did not leave.
#[inline]
pub(crate) fn send_one(fd: BorrowedFd<'_>, packet: &[u8]) -> io::Result<()> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let (at, nowhere) = (packet.as_ptr(), std::ptr::null::<u8>());
    // SAFETY: (1) the slice lives for the call and its length is given; the socket's own peer is meant.
    let n =
        unsafe { libc::syscall(libc::SYS_sendto, fd.as_raw_fd(), at, packet.len(), flags, nowhere, 0_usize) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What the control messages of a datagram said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Control {
    /// Bytes of each packet of a merged train; 0: it is one packet.
    pub(crate) segment: usize,
    /// DSCP and ECN.
    pub(crate) traffic_class: u8,
    /// TTL, where it was asked for.
    pub(crate) hop_limit: u8,
}

impl Control {
    /// Reads the control messages as the kernel laid them out.
    #[inline]
    pub(crate) fn parse(mut bytes: &[u8]) -> Self {
        const HEAD: usize = size_of::<libc::cmsghdr>();
        const { assert!(HEAD == 16, "a 64-bit system") };
        let mut c = Self::default();
        while let Some(head) = bytes.first_chunk::<HEAD>() {
            let len = usize::from_ne_bytes(head[..8].try_into().expect("8 bytes"));
            let level = i32::from_ne_bytes(head[8..12].try_into().expect("4 bytes"));
            let kind = i32::from_ne_bytes(head[12..16].try_into().expect("4 bytes"));
            if len < HEAD || len > bytes.len() {
                break;
            }
            let data = &bytes[HEAD..len];
            let int = || data.first_chunk::<4>().map_or(0, |b| i32::from_ne_bytes(*b));
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => c.segment = int().max(0) as usize,
                (libc::IPPROTO_IP, libc::IP_TOS) => c.traffic_class = data.first().copied().unwrap_or(0),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => c.traffic_class = int() as u8,
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    c.hop_limit = int() as u8;
                }
                _ => {}
            }
            bytes = bytes.get(len.next_multiple_of(8)..).unwrap_or_default();
        }
        c
    }
}

/// Reads a socket address as the kernel laid it out.
#[inline]
pub(crate) fn parse_name(name: &[u8]) -> Option<(IpAddr, u16)> {
    let family = i32::from(u16::from_ne_bytes(*name.first_chunk()?));
    let port = u16::from_be_bytes([*name.get(2)?, *name.get(3)?]);
    match family {
        libc::AF_INET => {
            let a: [u8; 4] = name.get(4..8)?.try_into().ok()?;
            Some((IpAddr::V4(Ipv4Addr::from(a)), port))
        }
        libc::AF_INET6 => {
            let a: [u8; 16] = name.get(8..24)?.try_into().ok()?;
            Some((IpAddr::V6(Ipv6Addr::from(a)), port))
        }
        _ => None,
    }
}

/// One datagram that was received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<'a> {
    pub(crate) src: IpAddr,
    pub(crate) src_port: u16,
    pub(crate) control: Control,
    pub(crate) bytes: &'a [u8],
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct ControlBuffer([u8; CONTROL_BYTES]);

/// The count that a system call returned, or the number of its error.
#[inline]
fn counted(n: libc::c_long) -> Result<usize, i32> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// Buffers for receive calls of one or several datagrams.
pub(crate) struct RxSlots {
    data: Box<[u8]>,
    names: Box<[[u8; NAME_BYTES]]>,
    controls: Box<[ControlBuffer]>,
    iovecs: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
}
// SAFETY: (2) the pointers in `headers` and `iovecs` lead into buffers that the same value owns, so
// they go with it to another thread.
unsafe impl Send for RxSlots {}

impl RxSlots {
    /// `count` buffers. Their pages are touched when datagrams come.
    pub(crate) fn new(count: usize) -> Self {
        // SAFETY: (4) zeros are valid for both.
        let (iovec, header) = unsafe { (zeroed::<libc::iovec>(), zeroed::<libc::mmsghdr>()) };
        Self {
            data: vec![0; count * RX_BUFFER_BYTES].into_boxed_slice(),
            names: vec![[0; NAME_BYTES]; count].into_boxed_slice(),
            controls: vec![ControlBuffer([0; CONTROL_BYTES]); count].into_boxed_slice(),
            iovecs: vec![iovec; count].into_boxed_slice(),
            headers: vec![header; count].into_boxed_slice(),
        }
    }

    #[inline]
    fn prepare(&mut self, count: usize) {
        let data = self.data.as_mut_ptr();
        for i in 0..count {
            // The offset stays inside of `data`: `i` is below the number of slots.
            self.iovecs[i] = libc::iovec {
                iov_base: data.wrapping_add(i * RX_BUFFER_BYTES).cast(),
                iov_len: RX_BUFFER_BYTES,
            };
            let h = &mut self.headers[i].msg_hdr;
            h.msg_name = self.names[i].as_mut_ptr().cast();
            h.msg_namelen = NAME_BYTES as libc::socklen_t;
            h.msg_iov = &raw mut self.iovecs[i];
            h.msg_iovlen = 1;
            h.msg_control = self.controls[i].0.as_mut_ptr().cast();
            h.msg_controllen = CONTROL_BYTES as _;
            h.msg_flags = 0;
        }
    }

    /// Receives one datagram into slot 0.
    ///
    /// # Errors
    /// The error number: EAGAIN when there is none, or a pending error of the socket.
    #[inline]
    pub(crate) fn recv_one(&mut self, fd: BorrowedFd<'_>) -> Result<(), i32> {
        self.prepare(1);
        // SAFETY: (1, 2) the header was just pointed at slot 0's buffers.
        let n = unsafe {
            libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &mut self.headers[0].msg_hdr, libc::MSG_DONTWAIT)
        };
        self.headers[0].msg_len = counted(n)? as u32;
        Ok(())
    }

    /// As [`recv_one`](Self::recv_one), of which nothing but the source is told.
    ///
    /// # Errors
    /// As `recv_one`'s.
    #[inline]
    pub(crate) fn recv_from(&mut self, fd: BorrowedFd<'_>) -> Result<(), i32> {
        let (data, name) = (self.data.as_mut_ptr(), self.names[0].as_mut_ptr());
        let mut name_len = NAME_BYTES as libc::socklen_t;
        let (fd, flags, len) = (fd.as_raw_fd(), libc::MSG_DONTWAIT, RX_BUFFER_BYTES);
        // SAFETY: (1, 2) slot 0's buffers have these lengths.
        let n = unsafe { libc::syscall(libc::SYS_recvfrom, fd, data, len, flags, name, &raw mut name_len) };
        self.headers[0].msg_len = counted(n)? as u32;
        self.headers[0].msg_hdr.msg_controllen = 0;
        Ok(())
    }

    /// Receives datagrams into as many slots as there are, and returns how many came.
    ///
    /// # Errors
    /// As `recv_one`'s.
    pub(crate) fn recv_many(&mut self, fd: BorrowedFd<'_>) -> Result<usize, i32> {
        let count = self.headers.len();
        self.prepare(count);
        // SAFETY: (1, 2) all headers were just pointed at their slots' buffers.
        let n = unsafe {
            let (headers, no_timeout) = (self.headers.as_mut_ptr(), std::ptr::null::<libc::timespec>());
            libc::syscall(libc::SYS_recvmmsg, fd.as_raw_fd(), headers, count, libc::MSG_DONTWAIT, no_timeout)
        };
        counted(n)
    }

    /// The datagram in a slot, after a call that filled it; `None` if its source is not an IP address.
    #[inline]
    pub(crate) fn datagram(&self, slot: usize) -> Option<Datagram<'_>> {
        let h = &self.headers[slot];
        let len = (h.msg_len as usize).min(RX_BUFFER_BYTES);
        let (src, src_port) = parse_name(&self.names[slot])?;
        // (3) as slices, so that a length beyond the buffer would panic and not read on.
        #[allow(clippy::unnecessary_cast, reason = "the C library decides over the type")]
        let control_len = (h.msg_hdr.msg_controllen as usize).min(CONTROL_BYTES);
        let control = Control::parse(&self.controls[slot].0[..control_len]);
        let at = slot * RX_BUFFER_BYTES;
        Some(Datagram { src, src_port, control, bytes: &self.data[at..at + len] })
    }
}

/// Control messages of one datagram to send.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct TxControl {
    bytes: [u8; 72],
    len: usize,
}

impl TxControl {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; 72], len: 0 }
    }
    fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        const HEAD: usize = size_of::<libc::cmsghdr>();
        let at = self.len;
        self.bytes[at..at + 8].copy_from_slice(&(HEAD + data.len()).to_ne_bytes());
        self.bytes[at + 8..at + 12].copy_from_slice(&level.to_ne_bytes());
        self.bytes[at + 12..at + 16].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[at + HEAD..at + HEAD + data.len()].copy_from_slice(data);
        self.len = at + (HEAD + data.len()).next_multiple_of(8);
    }
    /// To be cut into packets of this many bytes.
    #[inline]
    pub(crate) fn segment(&mut self, bytes: usize) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, &(bytes as u16).to_ne_bytes());
    }
    /// With this traffic class and hop limit.
    pub(crate) fn header(&mut self, v6: bool, traffic_class: u8, hop_limit: u8) {
        let (tc, hops) = (i32::from(traffic_class).to_ne_bytes(), i32::from(hop_limit).to_ne_bytes());
        if v6 {
            self.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &tc);
            self.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &hops);
        } else {
            self.push(libc::IPPROTO_IP, libc::IP_TOS, &tc);
            self.push(libc::IPPROTO_IP, libc::IP_TTL, &hops);
        }
    }
}

/// One datagram to send: a packet, or a train that the kernel cuts.
#[derive(Clone, Copy)]
pub(crate) struct TxDatagram<'a> {
    pub(crate) bytes: &'a [u8],
    /// What lies elsewhere of it: it begins at this byte of its batch.
    pub(crate) lent: (usize, &'a [Lent]),
    pub(crate) to: Option<&'a socket2::SockAddr>,
    pub(crate) control: TxControl,
}

impl TxDatagram<'_> {
    /// Appends the pieces that the kernel is to gather, and returns how many they are.
    #[inline]
    fn pieces(&self, out: &mut Vec<libc::iovec>) -> usize {
        let piece = |b: &[u8]| libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() };
        let (start, lent) = self.lent;
        let (before, mut from) = (out.len(), 0);
        for l in lent {
            let at = l.at - start;
            out.extend([piece(&self.bytes[from..at]), piece(l.bytes())]);
            from = at + l.bytes().len();
        }
        out.push(piece(&self.bytes[from..]));
        out.len() - before
    }
}

/// Headers for send calls of one or several datagrams; all pointers are set anew for each call.
pub(crate) struct TxHeaders {
    iovecs: Vec<libc::iovec>,
    headers: [libc::mmsghdr; TX_BATCH],
}
// SAFETY: (1) the pointers left over from a call are never followed: each call sets its own first.
unsafe impl Send for TxHeaders {}

impl TxHeaders {
    pub(crate) fn new() -> Box<Self> {
        // SAFETY: (4) zeros are valid.
        let headers = unsafe { zeroed() };
        Box::new(Self { iovecs: Vec::with_capacity(TX_PIECES), headers })
    }

    /// Points the first headers at these datagrams (at most [`TX_BATCH`]). They hold pointers into
    /// `datagrams` then, to be followed only while that borrow lasts.
    fn prepare<'a>(&mut self, datagrams: impl Iterator<Item = &'a TxDatagram<'a>>) -> usize {
        let mut count = 0;
        self.iovecs.clear();
        for (h, d) in self.headers.iter_mut().zip(datagrams) {
            count += 1;
            let h = &mut h.msg_hdr;
            h.msg_iovlen = d.pieces(&mut self.iovecs) as _;
            h.msg_name = d.to.map_or(std::ptr::null_mut(), |a| a.as_ptr().cast_mut().cast());
            h.msg_namelen = d.to.map_or(0, socket2::SockAddr::len);
            h.msg_control = if d.control.len == 0 {
                std::ptr::null_mut()
            } else {
                d.control.bytes.as_ptr().cast_mut().cast()
            };
            h.msg_controllen = d.control.len as _;
            h.msg_flags = 0;
        }
        let mut pieces = self.iovecs.as_mut_ptr();
        for h in &mut self.headers[..count] {
            h.msg_hdr.msg_iov = pieces;
            #[allow(clippy::unnecessary_cast, reason = "the C library decides over the type")]
            let behind = h.msg_hdr.msg_iovlen as usize;
            pieces = pieces.wrapping_add(behind);
        }
        count
    }

    /// Points the headers at these datagrams and returns the first one's address, for a ring. What they
    /// point to is to be followed only while the datagrams live and this value is not used again.
    #[cfg(feature = "io-uring")]
    pub(crate) fn point_at<'a>(
        &mut self,
        datagrams: impl Iterator<Item = &'a TxDatagram<'a>>,
    ) -> *const libc::mmsghdr {
        self.prepare(datagrams);
        self.headers.as_ptr()
    }

    /// Sends datagrams by one call and returns how many left.
    ///
    /// # Errors
    /// Why the first one did not.
    #[inline]
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>, datagrams: &[TxDatagram<'_>]) -> io::Result<usize> {
        let count = self.prepare(datagrams.iter());
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let n = if count == 1 {
            // SAFETY: (1) the header points into `datagrams`, which outlives the call.
            let n =
                unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &self.headers[0].msg_hdr, flags) };
            if n < 0 { -1 } else { 1 }
        } else {
            // SAFETY: (1) the first `count` headers point into `datagrams`, which outlives the call.
            unsafe {
                libc::syscall(libc::SYS_sendmmsg, fd.as_raw_fd(), self.headers.as_mut_ptr(), count, flags)
            }
        };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
    }
}

/// An address of one of this machine's interfaces.
struct Own {
    name: CString,
    ip: IpAddr,
    on_loopback: bool,
}

impl Own {
    /// The interface's index; 0: it has gone.
    fn index(&self) -> u32 {
        index_of(&self.name)
    }
    fn name(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }
}

/// The addresses of this machine's interfaces.
fn own() -> Vec<Own> {
    let mut found = Vec::new();
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: (1) the pointer to fill lives on the stack.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return found;
    }
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` walks the list that getifaddrs made and that is freed below.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        let Some(ip) = ip_of(entry.ifa_addr) else { continue };
        // SAFETY: `ifa_name` is a C string of the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_bytes();
        // An IPv4 address may have a label behind it, as in `eth0:1`; no name has a colon.
        let name = name.split(|b| *b == b':').next().unwrap_or_default();
        let name = CString::new(name).expect("a C string has no zero in it");
        found.push(Own { name, ip, on_loopback: entry.ifa_flags & libc::IFF_LOOPBACK as u32 != 0 });
    }
    // SAFETY: `list` came from getifaddrs and nothing borrows from it any more.
    unsafe { libc::freeifaddrs(list) };
    found
}

fn index_of(name: &CStr) -> u32 {
    // SAFETY: (1) the name is a C string that outlives the call.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}
/// The index of an interface, in this thread's network namespace.
///
/// # Errors
/// No interface has this name.
pub fn interface_index(name: &str) -> Result<u32, OpenError> {
    let index = CString::new(name).map_or(0, |name| index_of(&name));
    if index != 0 {
        return Ok(index);
    }
    let mut known: Vec<String> = own().iter().map(Own::name).collect();
    known.sort_unstable();
    known.dedup();
    Err(OpenError::NoInterface { name: name.to_owned(), known })
}
/// The addresses of this machine's interfaces, each with its interface's name.
pub(crate) fn named_addresses() -> Vec<(String, IpAddr)> {
    own().iter().map(|own| (own.name(), own.ip)).collect()
}
/// The interfaces that have an address.
pub(crate) fn interfaces_of(local: IpAddr) -> Vec<u32> {
    // One that goes at this moment has none any more.
    own().iter().filter(|own| own.ip == local).map(Own::index).filter(|index| *index != 0).collect()
}

/// The interface that an address belongs to: the one that has it, or the loopback interface whose network contains it.
/// `interface` is the index of the one that is meant, or 0.
fn interface_with(local: IpAddr, interface: u32) -> Option<Own> {
    let mut all = own();
    let exact = |own: &Own| own.ip == local && (interface == 0 || own.index() == interface);
    let around = |own: &Own| own.on_loopback && own.ip.is_loopback() && local.is_loopback();
    let at = all.iter().position(exact).or_else(|| all.iter().position(around))?;
    Some(all.swap_remove(at))
}

/// The index of the interface that an address belongs to; `interface` as for [`link_mtu`].
///
/// # Errors
/// There is none any more.
pub(crate) fn interface_at(local: IpAddr, interface: u32) -> io::Result<u32> {
    let index = interface_with(local, interface).map_or(0, |own| own.index());
    if index == 0 { Err(io::ErrorKind::AddrNotAvailable.into()) } else { Ok(index) }
}

/// The name of the interface that an address belongs to; `interface` as for [`link_mtu`].
pub(crate) fn interface_name(local: IpAddr, interface: u32) -> Option<String> {
    interface_with(local, interface).map(|own| own.name())
}

/// The MTU of the interface that an address belongs to; `interface` is the index of the one that is meant, or 0.
pub(crate) fn link_mtu(local: IpAddr, interface: u32) -> Option<u32> {
    let own = interface_with(local, interface)?;
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)
        .or_else(|_| socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::DGRAM, None))
        .ok()?;
    // SAFETY: (4) zeros are valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(own.name.to_bytes()) {
        *to = *from as libc::c_char;
    }
    // SAFETY: (1) the request lives on the stack, its name ends in a zero.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &mut request) } != 0 {
        return None;
    }
    // SAFETY: SIOCGIFMTU filled this member.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
}

fn ip_of(addr: *const libc::sockaddr) -> Option<IpAddr> {
    let mut name = [0_u8; NAME_BYTES];
    if addr.is_null() {
        return None;
    }
    // SAFETY: getifaddrs gives addresses of at least a `sockaddr`'s size, aligned for it.
    let len = match i32::from(unsafe { (*addr).sa_family }) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    // SAFETY: an address is as long as the struct of its family, and that is at most `NAME_BYTES`.
    unsafe { std::ptr::copy_nonoverlapping(addr.cast::<u8>(), name.as_mut_ptr(), len) };
    parse_name(&name).map(|n| n.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_that_lie_about_their_length_end_the_list() {
        let mut c = TxControl::new();
        c.push(libc::SOL_UDP, libc::UDP_GRO, &4124_i32.to_ne_bytes());
        c.push(libc::IPPROTO_IP, libc::IP_TOS, &[3]);
        let whole = Control::parse(&c.bytes[..c.len]);
        assert_eq!(whole, Control { segment: 4124, traffic_class: 3, hop_limit: 0 });
        c.bytes[..8].copy_from_slice(&usize::MAX.to_ne_bytes());
        assert_eq!(Control::parse(&c.bytes[..c.len]), Control::default());
        c.bytes[..8].copy_from_slice(&0_usize.to_ne_bytes());
        assert_eq!(Control::parse(&c.bytes[..c.len]), Control::default());
    }

    #[test]
    #[ignore = "needs root: a network namespace"]
    fn an_address_with_a_label_is_of_its_interface() {
        use test_support::namespaces::{Namespace, ip};
        Namespace::new().unwrap().within(|| {
            ip("addr add 10.9.8.7/24 dev lo label lo:1").unwrap();
            let local = Ipv4Addr::new(10, 9, 8, 7).into();
            assert_eq!(interface_name(local, 0).as_deref(), Some("lo"));
            assert!(named_addresses().contains(&("lo".to_owned(), local)));
        });
    }

    #[test]
    fn the_loopback_interface_has_an_mtu_for_all_its_addresses() {
        let exact = link_mtu(Ipv4Addr::LOCALHOST.into(), 0);
        assert!(exact.is_some());
        assert_eq!(link_mtu(Ipv4Addr::new(127, 9, 8, 7).into(), 0), exact);
        assert_eq!(interface_name(Ipv4Addr::new(127, 9, 8, 7).into(), 0).as_deref(), Some("lo"));
    }
}
