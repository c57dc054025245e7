//! The border to C of librdmacm, beside `entry`: fields that the library and the program use, and addresses.
//!
//! Invariants, beside those of `entry`:
//! 1. A [`Field`] lies in an object that the program has the address of. The program reads and writes it by its own
//!    instructions. That no two threads do so at the same time is the contract of librdmacm: one thread at a time calls
//!    functions of an identifier and looks at it. So each access here is a volatile copy, and no reference is made.
//! 2. Memory that a program passes with a length has so many bytes, and no thread changes it during the call.
//! 3. Memory that a program maps for a socket's peer stays until the program unmaps it or closes the socket. It is written
//!    under the lock that both calls take.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_long};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::ptr::{null, null_mut};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use hca_process::PerProcess;

use super::abi::SockaddrStorage;
use crate::entry::{Errno, INVALID, In, lock};

/// A field that the program uses, too.
#[repr(transparent)]
#[allow(unreachable_pub)] // layouts have it
pub struct Field<T>(UnsafeCell<T>);

// SAFETY: (1): the program sees to it that one thread at a time uses the field. Pointers in it are the program's.
unsafe impl<T> Send for Field<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Field<T> {}

impl<T: Copy> Field<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }
    pub(crate) fn get(&self) -> T {
        // SAFETY: (1)
        unsafe { self.0.get().read_volatile() }
    }
    pub(crate) fn set(&self, value: T) {
        // SAFETY: (1)
        unsafe { self.0.get().write_volatile(value) };
    }
    /// Returns the value, and stores another one.
    pub(crate) fn replace(&self, value: T) -> T {
        let before = self.get();
        self.set(value);
        before
    }
    /// The address of the field.
    pub(crate) fn at(&self) -> *const T {
        self.0.get()
    }
}
impl<T> Field<*mut T> {
    pub(crate) const fn null() -> Self {
        Self::new(null_mut())
    }
}

/// The objects of one kind that programs have, by their addresses. One that is not listed was destroyed, or never was
/// one: it is refused, not read. A forked child has none.
pub(super) struct Registry<T: Send + Sync + 'static>(PerProcess<Mutex<HashMap<usize, Arc<T>>>>);

impl<T: Send + Sync> Registry<T> {
    pub(super) const fn new() -> Self {
        Self(PerProcess::new())
    }
    /// Gives an object to the program.
    pub(super) fn give(&self, object: &Arc<T>) -> *mut T {
        let at = Arc::as_ptr(object).cast_mut();
        lock(self.0.get()).insert(at as usize, Arc::clone(object));
        at
    }
    pub(super) fn get<U>(&self, at: In<U>) -> Result<Arc<T>, Errno> {
        lock(self.0.get()).get(&(at.raw() as usize)).cloned().ok_or(INVALID)
    }
    /// Takes an object back.
    pub(super) fn take<U>(&self, at: In<U>) -> Result<Arc<T>, Errno> {
        lock(self.0.get()).remove(&(at.raw() as usize)).ok_or(INVALID)
    }
    /// All objects that programs have.
    pub(super) fn all(&self) -> Vec<Arc<T>> {
        lock(self.0.get()).values().cloned().collect()
    }
}

/// Copies bytes of the program's; none for a null pointer.
pub(super) fn bytes(at: *const u8, len: usize) -> Vec<u8> {
    if at.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: (2)
    unsafe { core::slice::from_raw_parts(at, len) }.to_vec()
}

/// Copies bytes to memory of the program's, of a call or mapped.
pub(super) fn copy_to(at: *mut u8, from: &[u8]) -> Result<(), Errno> {
    if at.is_null() && !from.is_empty() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: (2), (3)
    unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), at, from.len()) };
    Ok(())
}

/// A descriptor of the program's, for the time of a call.
pub(super) fn borrowed<'a>(fd: c_int) -> Result<BorrowedFd<'a>, Errno> {
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: the program gives a descriptor that is open during the call; of a wrong one the kernel says so.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Tells or sets the flags of a descriptor of this library, as `fcntl` does, which a program may have another one of.
pub(super) fn descriptor_flags(fd: c_int, command: c_int, flags: c_long) -> Result<c_int, Errno> {
    // SAFETY: neither command takes a pointer.
    let done = unsafe { libc::syscall(libc::SYS_fcntl, fd, command, flags) };
    if done < 0 {
        Err(std::io::Error::last_os_error().raw_os_error().map_or(INVALID, Errno))
    } else {
        Ok(done as c_int)
    }
}

/// The address in a `struct sockaddr` of IPv4 or IPv6.
///
/// # Errors
/// Null, or another family.
pub(super) fn address(at: In<libc::sockaddr>) -> Result<SocketAddr, Errno> {
    const NO_FAMILY: Errno = Errno(libc::EAFNOSUPPORT);
    match c_int::from(at.get()?.sa_family) {
        libc::AF_INET => {
            // SAFETY: (2): an address of this family is a `sockaddr_in`.
            let v4 = unsafe { at.raw().cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: (2): an address of this family is a `sockaddr_in6`.
            let v6 = unsafe { at.raw().cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Ok(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => Err(NO_FAMILY),
    }
}

/// Bytes of an address.
pub(super) fn address_bytes(address: SocketAddr) -> usize {
    if address.is_ipv4() { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() }
}

/// An address as a `struct sockaddr_storage`; all 0 for none.
pub(super) fn storage(address: Option<SocketAddr>) -> SockaddrStorage {
    let mut all = [0; 128];
    let Some(address) = address else { return SockaddrStorage(all) };
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u16;
    all[..2].copy_from_slice(&family.to_ne_bytes());
    all[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => all[4..8].copy_from_slice(&v4.ip().octets()),
        SocketAddr::V6(v6) => {
            all[8..24].copy_from_slice(&v6.ip().octets());
            all[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
        }
    }
    SockaddrStorage(all)
}

/// A text of the program's; `None` for null.
pub(super) fn c_text<'a>(text: *const c_char) -> Option<&'a CStr> {
    if text.is_null() {
        return None;
    }
    // SAFETY: (2): a text ends with a zero.
    Some(unsafe { CStr::from_ptr(text) })
}

/// An address that a name stands for.
pub(super) struct Found {
    pub(super) address: SocketAddr,
    pub(super) socket_type: c_int,
    pub(super) protocol: c_int,
}

/// The addresses of a node and a service, as `getaddrinfo` finds them.
///
/// # Errors
/// The number that `getaddrinfo` returns.
pub(super) fn look_up(
    node: Option<&CStr>,
    service: Option<&CStr>,
    flags: c_int,
    family: c_int,
    socket_type: c_int,
) -> Result<Vec<Found>, c_int> {
    let text = |text: Option<&CStr>| text.map_or(null(), CStr::as_ptr);
    // SAFETY: all fields may be zero.
    let mut hints: libc::addrinfo = unsafe { core::mem::zeroed() };
    (hints.ai_flags, hints.ai_family, hints.ai_socktype) = (flags, family, socket_type);
    let mut list = null_mut();
    // SAFETY: both texts end with a zero or are null, and the hints are zero where they say nothing.
    let failed = unsafe { libc::getaddrinfo(text(node), text(service), &raw const hints, &raw mut list) };
    if failed != 0 {
        return Err(failed);
    }
    let mut found = Vec::new();
    let mut next: *mut libc::addrinfo = list;
    // SAFETY: the elements of a list that was returned are there until it is freed.
    while let Some(info) = unsafe { next.as_ref() } {
        if let Ok(address) = address(In::of(info.ai_addr)) {
            found.push(Found { address, socket_type: info.ai_socktype, protocol: info.ai_protocol });
        }
        next = info.ai_next;
    }
    // SAFETY: the list was returned, and nothing refers to it any more.
    unsafe { libc::freeaddrinfo(list) };
    Ok(found)
}
