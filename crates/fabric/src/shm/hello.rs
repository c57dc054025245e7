//! The messages between two adapters over their socket: each has a fixed length, and some carry descriptors of shared
//! memory.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Ipv6Addr;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::frame::{BYTES, HelloFault, check_header, header};
use super::note;
use super::note::Note;
use super::peer::PeerName;

const SLOT_AT: usize = 36;
const NONCE_AT: usize = 40;
/// Stands for the slot of an adapter that has its address to itself.
const NO_SLOT: u16 = u16::MAX;
/// Descriptors of a greeting: the outbox, the page of bits, the page that says whether we sleep.
pub(super) const DESCRIPTORS: usize = 3;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// From who connects, with descriptors.
    Hello = 1,
    /// The answer, with descriptors.
    Welcome = 2,
    /// Both have connected to each other, and the receiver's connection is the one to give up.
    Crossed = 3,
    /// The receiver is not wanted.
    Refused = 4,
    /// There is something in the sender's ring.
    Wake = 5,
    /// What the sender was asked over the network, at the address that it says it has.
    Answer = 6,
    /// The receiver has proved its address.
    Proven = 7,
}

/// What a greeting tells of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) kind: Kind,
    pub(super) from: PeerName,
    /// Lines of the ring in the outbox.
    pub(super) ring_lines: u32,
    /// The bit by which the receiver calls the sender.
    pub(super) bit: u32,
    /// The sender runs system-wide barriers, and is reached by those of others.
    pub(super) barriers: bool,
    /// In an answer: what came over the network.
    pub(super) nonce: u64,
}

impl Greeting {
    fn encode(&self) -> [u8; BYTES] {
        let mut m = header(self.kind as u8);
        m[11] = self.barriers.into();
        m[12..16].copy_from_slice(&self.ring_lines.to_le_bytes());
        m[16..32].copy_from_slice(&self.from.address.octets());
        m[32..36].copy_from_slice(&self.bit.to_le_bytes());
        let slot = self.from.slot.map_or(NO_SLOT, u16::from);
        m[SLOT_AT..SLOT_AT + 2].copy_from_slice(&slot.to_le_bytes());
        m[NONCE_AT..NONCE_AT + 8].copy_from_slice(&self.nonce.to_le_bytes());
        m
    }

    fn decode(m: &[u8; BYTES]) -> Result<Self, HelloFault> {
        let word = |at: usize| u32::from_le_bytes(*m[at..].first_chunk().expect("within the message"));
        let kind = match check_header(m)? {
            1 => Kind::Hello,
            2 => Kind::Welcome,
            3 => Kind::Crossed,
            4 => Kind::Refused,
            5 => Kind::Wake,
            6 => Kind::Answer,
            7 => Kind::Proven,
            _ => return Err(HelloFault::Field("kind")),
        };
        let ring_lines = word(12);
        let fits = super::ring::MIN_RING_LINES..=super::ring::MAX_RING_LINES;
        let brings_memory = matches!(kind, Kind::Hello | Kind::Welcome);
        if brings_memory && !(ring_lines.is_power_of_two() && fits.contains(&ring_lines)) {
            return Err(HelloFault::Field("ring"));
        }
        let address = Ipv6Addr::from(*m[16..].first_chunk::<16>().expect("within the message"));
        let slot = match u16::from_le_bytes([m[SLOT_AT], m[SLOT_AT + 1]]) {
            NO_SLOT => None,
            slot => Some(u8::try_from(slot).map_err(|_| HelloFault::Field("slot"))?),
        };
        let from = PeerName { address, slot };
        let nonce = u64::from_le_bytes(*m[NONCE_AT..].first_chunk().expect("within the message"));
        Ok(Self { kind, from, ring_lines, bit: word(32), barriers: m[11] & 1 != 0, nonce })
    }

    /// Whether messages of this kind bring descriptors.
    fn descriptors(&self) -> usize {
        if matches!(self.kind, Kind::Hello | Kind::Welcome) { DESCRIPTORS } else { 0 }
    }
}

/// Sends a message without waiting.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    greeting: &Greeting,
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    send_bytes(socket, &greeting.encode(), fds)
}

/// Sends a note without waiting, and the descriptor that it brings.
pub(super) fn send_note(
    socket: BorrowedFd<'_>,
    note: &Note,
    fd: Option<BorrowedFd<'_>>,
) -> rustix::io::Result<()> {
    assert_eq!(note.brings_descriptor(), fd.is_some());
    send_bytes(socket, &note.encode(), fd.as_slice())
}

/// Sends anything, as a hostile peer may.
#[cfg(any(test, fuzzing))]
pub(super) fn send_raw(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    send_bytes(socket, bytes, fds)
}

fn send_bytes(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "the space is for {DESCRIPTORS}");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(|_| ())
}

/// Whether what was not sent for this reason may be sent later: there is no room in the socket, too many descriptors are
/// on their way, or there is no memory.
pub(super) fn is_for_now(refusal: Errno) -> bool {
    matches!(refusal, Errno::AGAIN | Errno::INTR | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM)
}

/// What a look at the socket found.
#[derive(Debug)]
pub(super) enum Received {
    /// A message, with its descriptors.
    Message(Greeting, Vec<OwnedFd>),
    /// A note, with the descriptor that it brings, unless there was no room for that in this process.
    Note(Note, Option<OwnedFd>),
    /// A greeting, for whose descriptors there was no room in this process.
    NoRoom,
    /// Nothing for now.
    Nothing,
    /// The other end is closed, or its process gone.
    Closed,
    /// Something else.
    Fault(HelloFault),
}

/// Takes a message without waiting.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Received {
    let mut bytes = [0; BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut take = || recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    // Said once, of a peer that left without having read all: what it sent before is there still.
    let got = match take().or_else(|e| if e == Errno::CONNRESET { take() } else { Err(e) }) {
        Ok(got) => got,
        Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
        Err(_) => return Received::Closed,
    };
    // All are taken, so that those which are not wanted are closed.
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.bytes == 0 {
        return Received::Closed;
    }
    if got.bytes != BYTES || got.flags.contains(ReturnFlags::TRUNC) {
        return Received::Fault(HelloFault::Length);
    }
    // Descriptors are cut off where the sender gives too many, and where this process has no room for more.
    let cut = got.flags.contains(ReturnFlags::CTRUNC);
    match check_header(&bytes) {
        Ok(kind) if kind >= note::FIRST => return note_of(kind, &bytes, fds, cut),
        Ok(_) if cut && fds.len() < DESCRIPTORS => return Received::NoRoom,
        Ok(_) if cut => return Received::Fault(HelloFault::Length),
        _ => {}
    }
    match Greeting::decode(&bytes) {
        Ok(g) if g.descriptors() == fds.len() => Received::Message(g, fds),
        Ok(_) => Received::Fault(HelloFault::Length),
        Err(fault) => Received::Fault(fault),
    }
}

fn note_of(kind: u8, bytes: &[u8; BYTES], mut fds: Vec<OwnedFd>, cut: bool) -> Received {
    match Note::decode(kind, bytes) {
        Ok(note) if fds.len() > usize::from(note.brings_descriptor()) => Received::Fault(HelloFault::Length),
        Ok(note) if note.brings_descriptor() && fds.is_empty() && !cut => Received::Fault(HelloFault::Length),
        Ok(note) => Received::Note(note, fds.pop()),
        Err(fault) => Received::Fault(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_survives_the_wire() {
        let met = [Kind::Hello, Kind::Welcome, Kind::Crossed, Kind::Refused, Kind::Wake];
        let kinds = met.into_iter().chain([Kind::Answer, Kind::Proven]);
        for kind in kinds {
            let address = "fd12::34".parse().unwrap();
            let slot = [None, Some(0), Some(249)][kind as usize % 3];
            let from = PeerName { address, slot };
            let nonce = 0x0123_4567_89ab_cdef;
            let g = Greeting { kind, from, ring_lines: 1 << 14, bit: 77, barriers: true, nonce };
            assert_eq!(Greeting::decode(&g.encode()), Ok(g));
        }
    }

    #[test]
    fn what_is_no_greeting_is_told_apart() {
        let from = Ipv6Addr::LOCALHOST.into();
        let kind = Kind::Hello;
        let g = Greeting { kind, from, ring_lines: 1 << 14, bit: 0, barriers: false, nonce: 0 };
        let with = |at: usize, byte| {
            let mut m = g.encode();
            m[at] = byte;
            Greeting::decode(&m)
        };
        assert_eq!(with(0, b'x'), Err(HelloFault::Magic));
        assert_eq!(with(8, 9), Err(HelloFault::Version(9)));
        assert_eq!(with(10, 9), Err(HelloFault::Field("kind")));
        assert_eq!(with(12, 1), Err(HelloFault::Field("ring")));
        assert_eq!(with(15, 1), Err(HelloFault::Field("ring")));
        assert_eq!(with(SLOT_AT, 0), Err(HelloFault::Field("slot")));
    }
}
