//! The user and process at the other end of a socket, from the kernel.
//!
//! Invariants:
//! 1. The structures and bytes that the system call fills live until the call returns, and have the sizes that the call
//!    is given.
#![allow(unsafe_code)]

use core::mem::{size_of, zeroed};
use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, UCred, sendmsg_addr,
};

/// The process that connected, or that listened when this side connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerCred {
    /// The number in our PID namespace; 0: it has none there. (So no type of numbers that are never 0 serves here.)
    pub(crate) pid: i32,
    /// Its user, by the number that our user namespace has for him.
    pub(crate) uid: u32,
}

impl PeerCred {
    pub(crate) fn of(socket: &OwnedFd) -> rustix::io::Result<Self> {
        let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: (1)
        let got = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut cred).cast(),
                &raw mut len,
            )
        };
        if got == 0 {
            Ok(Self { pid: cred.pid, uid: cred.uid })
        } else {
            Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
        }
    }
}

/// Sends a datagram that says as whose: the kernel lets nobody pose as another user.
pub(crate) fn send_as_own(socket: &OwnedFd, message: &[u8], to: &SocketAddrUnix) -> rustix::io::Result<()> {
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let uid = rustix::process::geteuid();
    let own = UCred { pid: rustix::process::getpid(), uid, gid: rustix::process::getegid() };
    assert!(control.push(SendAncillaryMessage::ScmCredentials(own)), "the space is for it");
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg_addr(socket, to, &[IoSlice::new(message)], &mut control, flags).map(drop)
}

/// Takes a datagram, and the user who sent it, from a socket that is told (`SO_PASSCRED`).
pub(crate) fn receive_from(socket: &OwnedFd, bytes: &mut [u8]) -> rustix::io::Result<(usize, Option<u32>)> {
    /// The credentials, which the kernel puts in front of other control messages.
    #[repr(C)]
    struct Told {
        head: libc::cmsghdr,
        cred: libc::ucred,
    }
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zeros are valid for both, which are plain data.
    let (mut told, mut header) = unsafe { (zeroed::<Told>(), zeroed::<libc::msghdr>()) };
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    (header.msg_control, header.msg_controllen) = ((&raw mut told).cast(), size_of::<Told>() as _);
    // SAFETY: (1)
    let got =
        unsafe { libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    let Ok(got) = usize::try_from(got) else {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    };
    let kind = (told.head.cmsg_level, told.head.cmsg_type);
    Ok((got, (kind == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS)).then_some(told.cred.uid)))
}
