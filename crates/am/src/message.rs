//! Messages as handlers see them, and the token that answers a request.

use std::collections::VecDeque;
use std::ops::Range;

use crate::lower::{Event, LinkId, Lower, Unsent};
use crate::segment::{Remote, Segment, Source};
use crate::wire::{Body, Head, Hello};
use crate::{EndpointId, EndpointName, Error, MAX_ARGS, Reason, Tag, Way};

/// A message, as a handler sees it.
#[derive(Debug)]
pub struct Message<'a> {
    pub(crate) args: &'a [u32],
    pub(crate) body: Body<'a>,
    pub(crate) endpoint: EndpointId,
    pub(crate) way: Way,
    /// The hello of the sender.
    pub(crate) peer: &'a Hello,
    pub(crate) segment: Option<&'a Segment>,
    pub(crate) is_request: bool,
}

impl<'a> Message<'a> {
    /// The arguments of 32 bits.
    #[inline]
    pub fn args(&self) -> &'a [u32] {
        self.args
    }
    /// The argument with an index; 0 if the message has fewer.
    #[inline]
    pub fn arg(&self, index: usize) -> u32 {
        self.args.get(index).copied().unwrap_or(0)
    }
    /// The payload of a medium message; of others none.
    #[inline]
    pub fn data(&self) -> &'a [u8] {
        self.body.payload()
    }
    /// Whether it is a medium message, which may have a payload of no bytes.
    pub fn is_medium(&self) -> bool {
        matches!(self.body, Body::Medium(_))
    }
    /// The bytes of the endpoint's segment that a bulk message has written.
    pub fn range(&self) -> Option<Range<usize>> {
        match self.body {
            // It was checked against the segment.
            Body::Bulk { offset, len } => Some(offset as usize..(offset + len) as usize),
            _ => None,
        }
    }
    /// The segment of the endpoint.
    pub fn segment(&self) -> Option<&'a Segment> {
        self.segment
    }
    /// The endpoint that the message came to (`AM_GetDestEndpoint`).
    pub fn endpoint(&self) -> EndpointId {
        self.endpoint
    }
    /// The name of the endpoint that has sent the message (`AM_GetSourceEndpoint`).
    pub fn source(&self) -> EndpointName {
        EndpointName::of_wire(self.way, self.peer.host, self.peer.endpoint)
    }
    /// The tag that the sender gave (`AM_GetMsgTag`).
    pub fn tag(&self) -> Tag {
        Tag(self.peer.tag)
    }
    /// Whether it is a request, and not a reply.
    pub fn is_request(&self) -> bool {
        self.is_request
    }
}

/// A request that came back to its sender, for the error handler.
#[derive(Debug)]
pub struct Returned<'a> {
    /// The reason.
    pub reason: Reason,
    /// The index of the translation table that it was sent to; the peer's reply came from there, for
    /// [`Reason::ReplyRejected`].
    pub index: usize,
    /// The handler that it was for.
    pub handler: u16,
    /// Its arguments.
    pub args: &'a [u32],
    /// The payload of a medium message.
    pub data: &'a [u8],
    /// The range of the peer's segment of a bulk message: its offset and its length.
    pub range: Option<(u64, u64)>,
    /// Whether it is a medium message, which may have a payload of no bytes.
    pub is_medium: bool,
}

/// The right to reply to a request, once.
///
/// A handler gets it with the message. A token that is dropped ends the request without a reply. A reply has one, too,
/// which refuses.
///
/// ```compile_fail,E0382
/// fn twice(token: hca_am::Token<'_>) -> Result<(), hca_am::Error> {
///     token.reply(1, &[])?;
///     token.reply(1, &[])
/// }
/// ```
///
/// A token does not outlive the handler:
///
/// ```compile_fail
/// let mut later = None;
/// let handler = |_: &hca_am::Message<'_>, token: hca_am::Token<'_>| later = Some(token);
/// ```
pub struct Token<'a>(pub(crate) Option<Answer<'a>>);

pub(crate) struct Answer<'a> {
    pub(crate) lower: &'a mut dyn Lower,
    pub(crate) events: &'a mut VecDeque<Event>,
    pub(crate) link: LinkId,
    pub(crate) acks: u16,
    pub(crate) max_medium: usize,
    pub(crate) peer: Remote,
    pub(crate) answered: &'a mut bool,
    /// Whether the reply may wait for room.
    pub(crate) waits: bool,
}

impl Token<'_> {
    /// Replies by a short message.
    ///
    /// # Errors
    /// There are too many arguments, the message is a reply, or the peer has gone.
    #[inline]
    pub fn reply(self, handler: u16, args: &[u32]) -> Result<(), Error> {
        self.answer(handler, args, &Load::Short)
    }
    /// Replies by a medium message.
    ///
    /// # Errors
    /// As [`reply`](Self::reply), or the payload is longer than the peer takes.
    pub fn reply_medium(self, handler: u16, args: &[u32], data: &[u8]) -> Result<(), Error> {
        self.answer(handler, args, &Load::Medium(data))
    }
    /// Replies by a bulk message, into the segment of the endpoint that has sent the request.
    ///
    /// # Errors
    /// As [`reply`](Self::reply), or the range does not lie in one of the segments.
    pub fn reply_bulk<'s>(
        self,
        handler: u16,
        args: &[u32],
        source: impl Into<Source<'s>>,
        offset: u64,
    ) -> Result<(), Error> {
        self.answer(handler, args, &Load::Bulk(source.into(), offset))
    }
    #[inline]
    fn answer(self, handler: u16, args: &[u32], load: &Load<'_>) -> Result<(), Error> {
        let answer = self.0.ok_or(Error::NotARequest)?;
        let body = load.check(args, answer.max_medium, answer.peer)?;
        let Answer { lower, events, link, waits, .. } = answer;
        if let Some((source, to)) = load.write(answer.peer) {
            // A handler that may not wait posts all pieces at once.
            if waits {
                source.each_piece(to, |piece, to, _| {
                    surely(lower, events, |lower| lower.put(link, piece, to))
                })?;
            } else {
                post(lower, events, waits, |lower| lower.put(link, source, to))?;
            }
        }
        let head = Head::reply(answer.acks, handler, args, &body);
        post(lower, events, waits, |lower| lower.send(link, head.bytes(), body.payload()))?;
        *answer.answered = true;
        Ok(())
    }
}

impl std::fmt::Debug for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Token" } else { "Token(used)" })
    }
}

/// The data of a request or a reply besides its arguments, as the program gives them.
pub(crate) enum Load<'a> {
    Short,
    Medium(&'a [u8]),
    /// Bytes for the peer's segment, from an offset on.
    Bulk(Source<'a>, u64),
}

impl<'a> Load<'a> {
    /// The body of the message, if the call keeps the rules that the sender checks.
    #[inline]
    pub(crate) fn check(&self, args: &[u32], max_medium: usize, peer: Remote) -> Result<Body<'a>, Error> {
        if args.len() > MAX_ARGS {
            return Err(Error::Args { count: args.len(), max: MAX_ARGS });
        }
        match self {
            Self::Short => Ok(Body::Short),
            Self::Medium(data) if data.len() > max_medium => {
                Err(Error::Length { len: data.len(), max: max_medium })
            }
            Self::Medium(data) => Ok(Body::Medium(data)),
            Self::Bulk(source, offset) => {
                let (offset, len) = (*offset, source.len() as u64);
                if len > MAX_BULK {
                    return Err(Error::Length { len: source.len(), max: MAX_BULK as usize });
                }
                if !peer.has(offset, len) {
                    return Err(Error::Segment { offset, len, segment: peer.len });
                }
                if !source.is_whole() {
                    return Err(Error::Segment { offset, len, segment: 0 });
                }
                Ok(Body::Bulk { offset, len })
            }
        }
    }
    /// The bytes that a bulk message writes before it is sent, and their place.
    #[inline]
    pub(crate) fn write(&self, peer: Remote) -> Option<(&Source<'a>, Remote)> {
        match self {
            Self::Bulk(source, offset) => Some((source, peer.part(*offset, source.len() as u64))),
            Self::Short | Self::Medium(_) => None,
        }
    }
}

/// The most bytes of a bulk message, if the segment has as many.
pub(crate) const MAX_BULK: u64 = 1 << 30;
/// Looks without success before a waiting thread sleeps.
const LOOKS: u32 = 2000;
/// How long it then sleeps at most.
const NAP: std::time::Duration = std::time::Duration::from_millis(1);

/// Sends, and takes what happens until there is room. What came is handled later: no handler runs within another.
#[inline]
pub(crate) fn surely<T>(
    lower: &mut dyn Lower,
    events: &mut VecDeque<Event>,
    mut send: impl FnMut(&mut dyn Lower) -> Result<T, Unsent>,
) -> Result<T, Error> {
    let mut pause = Pause::default();
    loop {
        match send(lower) {
            Ok(sent) => return Ok(sent),
            Err(Unsent::Down) => return Err(Error::Unreachable),
            Err(Unsent::NoMemory) => return Err(Error::NoMemory),
            Err(Unsent::Full) => {
                pause.wait(lower, events)?;
            }
        }
    }
}

/// Sends; waits for room as [`surely`] does, or not at all.
#[inline]
fn post<T>(
    lower: &mut dyn Lower,
    events: &mut VecDeque<Event>,
    waits: bool,
    mut send: impl FnMut(&mut dyn Lower) -> Result<T, Unsent>,
) -> Result<T, Error> {
    if waits {
        return surely(lower, events, send);
    }
    send(lower).map_err(|unsent| match unsent {
        Unsent::Full => Error::NotSent,
        Unsent::Down => Error::Unreachable,
        Unsent::NoMemory => Error::NoMemory,
    })
}

/// Looks for a while, and then sleeps between two looks.
#[derive(Default)]
pub(crate) struct Pause(u32);

impl Pause {
    pub(crate) fn wait(&mut self, lower: &mut dyn Lower, events: &mut VecDeque<Event>) -> Result<(), Error> {
        self.0 += 1;
        let before = events.len();
        lower.poll(events);
        if events.len() == before && self.0 > LOOKS {
            lower.arm();
            lower.poll(events);
            if events.len() == before {
                lower.sleeper().sleep(NAP)?;
            }
        }
        Ok(())
    }
}
