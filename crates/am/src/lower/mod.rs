//! The layer below a bundle: links to peers, over verbs or over VIs.

mod acceptor;
mod acceptors;
mod stores;
mod verbs;
mod via;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use hca_core::{CqHandle, Device};
use hca_verbs::{Buf, Endpoint};

pub(crate) use verbs::Verbs;
pub(crate) use via::Via;

use crate::bundle::Options;
use crate::segment::{Remote, Segment, Source};
use crate::{EndpointId, EndpointName, Error};

/// Messages and writes that a handled request, or a call of the program that may not wait, sends at most on a link: a bulk
/// message, and an acknowledgement.
const AN_ANSWER: u32 = 3;
/// Polls between two looks at completed sends.
const POLLS_A_LOOK: u32 = 8;
/// Bytes of registered memory through which bytes of the program's go, piece by piece: few enough to stay in the caches
/// from the copy to the write.
pub(crate) const STAGE: usize = 1 << 17;
/// Pieces of so many bytes that are under way at most.
const STAGES: usize = 8;

/// A link: the index of its place, with a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkId(pub(crate) u64);

impl LinkId {
    #[inline]
    pub(crate) fn place(self) -> usize {
        self.0 as u32 as usize
    }
}

/// A sent message that is kept until it was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept(u32);

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsent {
    /// The queue has no room: poll.
    Full,
    /// The link has failed.
    Down,
    /// The device has no memory for it, and no end of another message would bring any.
    NoMemory,
}

/// A message that came.
#[derive(Debug)]
pub(crate) enum Received {
    /// In the buffer of a receive request.
    Buf(Buf, usize),
    /// Copied out of the memory of a descriptor, which has this number.
    Copy(Vec<u8>, u32),
}

impl Received {
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            // The device has placed at most as many bytes as the buffer has.
            Self::Buf(buf, len) => &buf[..(*len).min(buf.len())],
            Self::Copy(bytes, _) => bytes,
        }
    }
}

/// An event of a link.
#[derive(Debug)]
pub(crate) enum Event {
    /// A peer has mapped an endpoint.
    Accepted(EndpointId, LinkId),
    /// A message came.
    Received(LinkId, Received),
    /// A link has failed. Told once.
    Down(LinkId),
}

/// Links to peers.
///
/// A link carries requests of the side that mapped to the side that was mapped, and replies back. `send` never waits;
/// the receiver has a buffer for every message that the protocol lets a peer send.
pub(crate) trait Lower: Send {
    /// Lets peers map an endpoint. The hello is what they are told first.
    fn listen(&mut self, endpoint: EndpointId, hello: crate::wire::Hello) -> Result<EndpointName, Error>;
    /// Ends that.
    fn unlisten(&mut self, endpoint: EndpointId);
    /// The means by which peers map an endpoint, which go to another bundle.
    fn take_acceptor(&mut self, endpoint: EndpointId) -> Option<Listening>;
    /// Goes on with them, for this endpoint.
    ///
    /// # Errors
    /// They are of the other way, or of another device.
    fn adopt(
        &mut self,
        endpoint: EndpointId,
        listening: Listening,
        limits: &crate::wire::Hello,
    ) -> Result<(), Listening>;
    /// Gives an endpoint a segment. Refused once a peer was told of another.
    fn set_segment(&mut self, endpoint: EndpointId, remote: Remote) -> Result<(), Error>;
    /// Memory that peers may write.
    fn alloc(&mut self, len: usize) -> Result<Segment, Error>;
    /// A link to an endpoint, on which the hello was sent.
    fn connect(
        &mut self,
        to: &EndpointName,
        hello: &crate::wire::Hello,
        timeout: Duration,
    ) -> Result<LinkId, Error>;
    /// A part of a link that the program connects itself, and its queue pair.
    fn half_link(&mut self, accepted: bool) -> Result<(LinkId, Endpoint), Error>;
    /// Connects it to the peer's, and says hello.
    fn join(&mut self, half: LinkId, remote: &Endpoint, hello: &crate::wire::Hello) -> Result<(), Error>;
    /// Ends a link. No event of it comes any more.
    fn close(&mut self, link: LinkId);
    /// Sends a message of these two parts.
    fn send(&mut self, link: LinkId, head: &[u8], payload: &[u8]) -> Result<(), Unsent>;
    /// As `send`, and keeps the message until it is [let go](Self::let_go).
    fn send_kept(&mut self, link: LinkId, head: &[u8], payload: &[u8]) -> Result<Kept, Unsent>;
    /// The bytes of a message that is kept.
    fn kept(&self, link: LinkId, kept: Kept) -> Vec<u8>;
    fn let_go(&mut self, link: LinkId, kept: Kept);
    /// Writes into the peer's memory, ahead of the next message. Bytes longer than a [`STAGE`] get memory of their own.
    fn put(&mut self, link: LinkId, from: &Source<'_>, to: Remote) -> Result<(), Unsent>;
    /// Whether the peer is on this machine, so that its memory is reached within a call.
    fn is_near(&self, link: LinkId) -> bool;
    /// Begins to write into the peer's memory, without a message. Bytes as for `put`.
    fn write(&mut self, link: LinkId, from: &Source<'_>, to: Remote) -> Result<(), Unsent>;
    /// Begins to read the peer's memory into a range of a segment.
    fn read(&mut self, link: LinkId, into: &Segment, range: Range<usize>, from: Remote)
    -> Result<(), Unsent>;
    /// The writes and reads that have not ended, after a look.
    fn accesses(&mut self, link: LinkId, events: &mut VecDeque<Event>) -> Result<usize, Unsent>;
    /// Gives the memory of a message back.
    fn recycle(&mut self, link: LinkId, received: Received);
    /// Asks the peers' adapters of the links that this side made for a sign of life, and looks whether the peers of the
    /// others have left.
    fn look_around(&mut self, into: &mut VecDeque<Event>);
    /// Takes what happened.
    fn poll(&mut self, into: &mut VecDeque<Event>);
    /// Asks for a wake-up at the next event. What came before is found by a poll afterwards.
    fn arm(&mut self);
    /// The means to sleep until then.
    fn sleeper(&self) -> Sleeper;
    /// The device and the completion queue by which messages come, if the device may handle them. From now on the
    /// device runs the queue's engine when a peer has made a link.
    fn engine_queue(&self) -> Option<(Arc<dyn Device>, CqHandle)>;
    /// Takes the ends of sends, writes and reads: their places have room for others.
    fn take_ends(&mut self, into: &mut VecDeque<Event>);
    /// Whether a link has room for all that a handled request sends. A link that has failed needs none.
    fn has_room_now(&self, link: LinkId) -> bool;
    /// The same, behind a look at what has ended.
    #[inline]
    fn has_room(&mut self, link: LinkId, events: &mut VecDeque<Event>) -> bool {
        self.has_room_now(link) || {
            self.take_ends(events);
            self.has_room_now(link)
        }
    }
}

/// The means by which peers map an endpoint.
pub(crate) enum Listening {
    Verbs(verbs::Accepting),
    Via(via::Accepting),
}

/// Sleeps until something happens on the links of a bundle, without the bundle.
#[derive(Clone)]
pub(crate) enum Sleeper {
    Verbs(hca_verbs::CompletionChannel),
    Via(via::Queues),
}

impl Sleeper {
    pub(crate) fn sleep(&self, timeout: Duration) -> Result<(), Error> {
        match self {
            Self::Verbs(channel) => match channel.wait(Some(timeout)) {
                Ok(_) | Err(hca_verbs::WaitError::TimedOut(_)) => Ok(()),
                Err(hca_verbs::WaitError::Device(error)) => Err(error.into()),
                Err(error) => Err(std::io::Error::other(error.to_string()).into()),
            },
            Self::Via(queues) => queues.sleep(timeout),
        }
    }
}

/// The sizes that both ways have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) credits: usize,
    /// Bytes of a message at most.
    pub(crate) message: usize,
    pub(crate) max_links: usize,
}

impl Sizes {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            credits: options.credits.into(),
            message: (crate::wire::MAX_HEAD_BYTES + options.max_medium).next_multiple_of(64),
            max_links: options.max_links,
        }
    }
    /// Messages that a peer may send before one was answered: requests or replies, and the hello.
    pub(crate) fn receives(&self) -> usize {
        self.credits + 2
    }
    /// Messages that this side may have on the way: replies whose acknowledgements are late, too.
    pub(crate) fn sends(&self) -> usize {
        2 * self.credits + 4
    }
}
