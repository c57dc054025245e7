//! Whole messages, with their descriptors, over a stream socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use thiserror::Error;

use super::wire::{HEADER_BYTES, Header, MAX_DESCRIPTORS, WireError};

/// A received message with its descriptors.
#[derive(Debug)]
pub struct Received {
    /// The message's header.
    pub header: Header,
    /// The bytes behind the header.
    pub payload: Vec<u8>,
    /// The descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
}

/// The received part of a message.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    payload: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// The reason why a message was not sent or not received.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The other side has closed the socket, or died.
    #[error("the other side has closed the connection")]
    Closed,
    /// The deadline has passed.
    #[error("the other side did not answer in time")]
    Deadline,
    /// The received bytes are not a message.
    #[error("invalid message: {0}")]
    Wire(#[from] WireError),
    /// A message came with more descriptors than a message may have.
    #[error("more than {MAX_DESCRIPTORS} descriptors came with one message")]
    Descriptors,
    /// The operating system refused the call.
    #[error("{doing}: {}{}", std::io::Error::from(*errno), hca_core::remedy(&std::io::Error::from(*errno)))]
    Socket {
        /// The operation.
        doing: &'static str,
        /// The reason.
        errno: Errno,
    },
}

/// A stream socket (`AF_UNIX`) that carries messages. Client and server use it.
///
/// After an error the stream may be in the middle of a message, so the channel is unusable.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

impl AsFd for Channel {
    /// The socket, to be waited on: a message, or the end, is there when it is readable.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Channel {
    /// A channel over a connected socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Ends the connection, though the channel is still held.
    pub(crate) fn hang_up(&self) {
        // One that the other side has ended is ended.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Sends a whole message (header and payload), with descriptors, until `deadline` at most.
    ///
    /// # Errors
    /// The other side is gone, does not read, or the system refuses.
    ///
    /// # Panics
    /// If there are more descriptors than [`MAX_DESCRIPTORS`].
    pub fn send(
        &self,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<(), ChannelError> {
        let mut rest = message;
        let mut with = descriptors;
        while !rest.is_empty() {
            let sent = self.send_some(rest, with)?;
            if sent == 0 {
                self.wait(PollFlags::OUT, deadline)?;
                continue;
            }
            rest = &rest[sent..];
            // They travel with the first byte.
            with = &[];
        }
        Ok(())
    }

    /// Receives the next message, which must be complete by `deadline`. It allocates no more bytes than arrive.
    ///
    /// # Errors
    /// The other side is gone or silent, the message is malformed, or the system refuses.
    pub fn recv(&self, deadline: Option<Instant>) -> Result<Received, ChannelError> {
        let mut incoming = Incoming::default();
        loop {
            if let Some(received) = self.recv_some(&mut incoming)? {
                return Ok(received);
            }
            self.wait(PollFlags::IN, deadline)?;
        }
    }

    /// Sends the next bytes of a message, without waiting. Returns the number of sent bytes; 0: the socket is full.
    ///
    /// # Panics
    /// If there are more descriptors than [`MAX_DESCRIPTORS`].
    pub(super) fn send_some(&self, rest: &[u8], with: &[BorrowedFd<'_>]) -> Result<usize, ChannelError> {
        assert!(with.len() <= MAX_DESCRIPTORS, "{} descriptors", with.len());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !with.is_empty() {
            let taken = control.push(SendAncillaryMessage::ScmRights(with));
            assert!(taken, "there is room for all that may come");
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(rest)], &mut control, flags) {
                Ok(sent) => return Ok(sent),
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ChannelError::Closed),
                Err(errno) => return Err(ChannelError::Socket { doing: "sending a message", errno }),
            }
        }
    }

    /// Receives a part of a message, without waiting. Returns the message once it is whole.
    pub(super) fn recv_some(&self, incoming: &mut Incoming) -> Result<Option<Received>, ChannelError> {
        while incoming.header_bytes < HEADER_BYTES {
            let room = &mut incoming.header[incoming.header_bytes..];
            let Some(came) = self.some(room, &mut incoming.descriptors)? else { return Ok(None) };
            incoming.header_bytes += came;
        }
        let header = Header::parse(&incoming.header)?;
        // Never beyond this message, whose descriptors come with its bytes; and no more room than comes.
        while incoming.payload.len() < header.payload_bytes {
            const STEP: usize = 64 << 10;
            let at = incoming.payload.len();
            incoming.payload.resize(header.payload_bytes.min(at + STEP), 0);
            let came = self.some(&mut incoming.payload[at..], &mut incoming.descriptors);
            incoming.payload.truncate(at + came.as_ref().map_or(0, |came| came.unwrap_or(0)));
            if came?.is_none() {
                return Ok(None);
            }
        }
        let Incoming { payload, descriptors, .. } = core::mem::take(incoming);
        Ok(Some(Received { header, payload, descriptors }))
    }

    /// Takes some bytes, one at least. `None`: there are none.
    fn some(&self, into: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<Option<usize>, ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message = loop {
            match recvmsg(&self.socket, &mut [IoSliceMut::new(into)], &mut control, flags) {
                Ok(message) => break message,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Err(ChannelError::Closed),
                Err(errno) => return Err(ChannelError::Socket { doing: "receiving a message", errno }),
            }
        };
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                descriptors.extend(fds);
            }
        }
        if message.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MAX_DESCRIPTORS {
            return Err(ChannelError::Descriptors);
        }
        if message.bytes == 0 { Err(ChannelError::Closed) } else { Ok(Some(message.bytes)) }
    }

    /// Whether the other end is closed; messages may still wait.
    pub(super) fn has_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }

    /// Sleeps until the socket is ready, which the end of the other side is, too.
    fn wait(&self, for_what: PollFlags, deadline: Option<Instant>) -> Result<(), ChannelError> {
        loop {
            let left = match deadline {
                None => None,
                Some(d) => {
                    let left = d.checked_duration_since(Instant::now()).filter(|l| !l.is_zero());
                    let left = left.ok_or(ChannelError::Deadline)?;
                    Some(Timespec::try_from(left).expect("less than the age of the universe"))
                }
            };
            let mut fds = [PollFd::new(&self.socket, for_what)];
            match poll(&mut fds, left.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(ChannelError::Socket { doing: "waiting for the socket", errno }),
            }
        }
    }
}
