//! The hand-over of an address's sockets to a process that joins: one message with all descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::{Common, KEY_BYTES, MAX_SLOTS};

/// The kernel takes no more descriptors in a message.
const MAX_DESCRIPTORS: usize = 253;
/// The number of slots is one byte, and the listener, the desk and its mailbox come with a socket a slot.
const _: () = assert!(MAX_SLOTS <= 0xff && MAX_SLOTS as usize + 3 <= MAX_DESCRIPTORS);
/// The first bytes of a message: the protocol and its version.
const MAGIC: [u8; 8] = *b"hcashar1";
/// Behind it come the key and the number of slots.
const BYTES: usize = MAGIC.len() + KEY_BYTES + 1;

/// Gives all sockets to a process that joins.
///
/// # Errors
/// As of `sendmsg`: `ETOOMANYREFS` while too many descriptors of this user are under way.
pub(super) fn give(to: BorrowedFd<'_>, common: &Common) -> rustix::io::Result<()> {
    let fds = common.borrowed();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "the space is for {MAX_DESCRIPTORS}");
    let slots = [common.slots as u8];
    let parts = [IoSlice::new(&MAGIC), IoSlice::new(&common.key), IoSlice::new(&slots)];
    sendmsg(to, &parts, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(|_| ())
}

/// Takes what [`give`] gave; `None`: the other end is gone, or is another program's.
///
/// # Errors
/// This process has no room for the descriptors, or the system refuses the call.
pub(super) fn take(from: BorrowedFd<'_>) -> io::Result<Option<Common>> {
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
    let (magic, rest) = bytes[..BYTES].split_at(MAGIC.len());
    let (key, slots) = rest.split_first_chunk().expect("a key is shorter");
    let slots = slots[0].into();
    let is_ours = got.bytes == BYTES && magic == MAGIC && fds.len() > 3 && (1..=MAX_SLOTS).contains(&slots);
    Ok(is_ours.then_some(Common { key: *key, slots, fds }))
}
