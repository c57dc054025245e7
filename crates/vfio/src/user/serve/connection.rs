//! A session over a socket, for a server's loop that never blocks.
//!
//! The connection keeps an incomplete message until the rest arrives. While a part of a reply waits for room in the
//! socket the connection reads nothing more, so a slow client delays only itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::session::NoVersion;
use super::{Answer, Function, Session};
use crate::user::channel::Incoming;
use crate::user::{Channel, ChannelError, Received, Sleeper};

/// Messages that are seen to in one go.
const BUDGET: usize = 16;

/// The reason why a connection ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The client has gone, the received bytes are not a message, or the socket failed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The client's first message was not VERSION.
    #[error(transparent)]
    NoVersion(#[from] NoVersion),
    /// The function hangs up ([`Function::hangs_up`]).
    #[error("the function closed the connection")]
    Function,
}

impl Ended {
    /// Whether the client has closed the connection.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Channel(ChannelError::Closed))
    }
}

/// A reply that has not left whole.
#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    descriptors: Vec<OwnedFd>,
}

/// The server's end of a client's connection.
#[derive(Debug)]
pub struct Connection {
    channel: Channel,
    session: Session,
    incoming: Incoming,
    outgoing: Option<Outgoing>,
    /// A message that was done in part, and waits for the rest.
    put_off: Option<Received>,
}

impl AsFd for Connection {
    /// The socket, to be waited on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Connection {
    /// A connection over an accepted socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            channel: Channel::new(socket),
            session: Session::new(),
            incoming: Incoming::default(),
            outgoing: None,
            put_off: None,
        }
    }

    /// Whether a reply waits for room in the socket: the caller waits until the socket is writable.
    pub fn is_full(&self) -> bool {
        self.outgoing.is_some()
    }

    /// Whether a message is handled in part: call [`serve`](Self::serve) again.
    pub fn is_put_off(&self) -> bool {
        self.put_off.is_some()
    }

    /// Whether the client can wake the server.
    pub fn wakes(&self) -> bool {
        self.session.wakes()
    }

    /// Whether the other end is closed; messages may still wait.
    pub fn has_hung_up(&self) -> bool {
        self.channel.has_hung_up()
    }

    /// Handles up to 16 messages. Returns whether there were any.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn serve(&mut self, function: &mut impl Function, sleeper: Option<&Sleeper>) -> Result<bool, Ended> {
        self.send()?;
        for served in 0..BUDGET {
            if self.is_full() {
                return Ok(served > 0);
            }
            let whole = match self.put_off.take() {
                Some(message) => Some(message),
                None => self.channel.recv_some(&mut self.incoming)?,
            };
            let Some(mut message) = whole else { return Ok(served > 0) };
            let answer = self.session.answer(function, sleeper, &mut message)?;
            if function.hangs_up() {
                return Err(Ended::Function);
            }
            match answer {
                Answer::Later => {
                    self.put_off = Some(message);
                    return Ok(true);
                }
                Answer::Nothing => {}
                Answer::Reply { bytes, descriptors } => {
                    self.outgoing = Some(Outgoing { bytes, sent: 0, descriptors });
                    self.send()?;
                }
            }
        }
        Ok(true)
    }

    /// Sends as much of the reply as the socket takes.
    fn send(&mut self) -> Result<(), ChannelError> {
        while let Some(reply) = &mut self.outgoing {
            let with: Vec<BorrowedFd<'_>> = match reply.sent {
                0 => reply.descriptors.iter().map(AsFd::as_fd).collect(),
                _ => Vec::new(),
            };
            let sent = self.channel.send_some(&reply.bytes[reply.sent..], &with)?;
            if sent == 0 {
                return Ok(());
            }
            reply.sent += sent;
            if reply.sent == reply.bytes.len() {
                self.outgoing = None;
            }
        }
        Ok(())
    }
}
