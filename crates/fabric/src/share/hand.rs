//! The hand-over of an address's sockets to a process that joins: one message with all descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::{KEY_BYTES, MAX_SLOTS};

/// The kernel takes no more descriptors in a message.
const MAX_DESCRIPTORS: usize = 253;
/// The listener and the desk come with the slots.
const _: () = assert!(MAX_SLOTS as usize + 2 <= MAX_DESCRIPTORS);
/// The first bytes of a message: the protocol and its version.
const MAGIC: [u8; 8] = *b"hcashar1";
const BYTES: usize = MAGIC.len() + KEY_BYTES;

/// The sockets that a joining process receives, and the members' key.
pub(super) struct Handed {
    /// The key that members' messages carry, and no others.
    pub(super) key: [u8; KEY_BYTES],
    /// The listener, the desk, then the slots.
    pub(super) fds: Vec<OwnedFd>,
}

/// Gives all sockets to a process that joins.
///
/// # Errors
/// As of `sendmsg`: `ETOOMANYREFS` while too many descriptors of this user are under way.
pub(super) fn give(
    to: BorrowedFd<'_>,
    key: &[u8; KEY_BYTES],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "the space is for {MAX_DESCRIPTORS}");
    let parts = [IoSlice::new(&MAGIC), IoSlice::new(key)];
    sendmsg(to, &parts, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(|_| ())
}

/// Takes what [`give`] gave; `None`: the other end is gone, or is another program's.
///
/// # Errors
/// This process has no room for the descriptors, or the system refuses the call.
pub(super) fn take(from: BorrowedFd<'_>) -> io::Result<Option<Handed>> {
    let mut bytes = [0; BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = match recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Err(Errno::CONNRESET | Errno::AGAIN) => return Ok(None),
        got => got?,
    };
    // All are taken, so that those which are not wanted are closed.
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE.into());
    }
    let (magic, key) = bytes[..BYTES].split_at(MAGIC.len());
    let is_ours = got.bytes == BYTES && magic == MAGIC && fds.len() > 2;
    Ok(is_ours.then(|| Handed { key: key.try_into().expect("so many bytes are left"), fds }))
}
