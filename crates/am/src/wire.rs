//! The messages on a link, as bytes. `DESIGN.md` has the table.
//!
//! All numbers are little-endian. A message is parsed before anything of it is used; parsing allocates nothing and
//! never panics.

use crate::{MAX_ARGS, Reason};

/// Bytes of the header of each message.
pub const HEADER_BYTES: usize = 8;
/// Bytes of the range behind the arguments of a bulk message.
pub const RANGE_BYTES: usize = 16;
/// The most bytes of a message without its payload.
pub const MAX_HEAD_BYTES: usize = HEADER_BYTES + 4 * MAX_ARGS + RANGE_BYTES;
/// Bytes of a hello.
pub const HELLO_BYTES: usize = 64;
/// The version of the format, which both hellos of a link carry.
pub const VERSION: u8 = 1;

/// The data of a message besides its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// Nothing: a short message.
    Short,
    /// Bytes: a medium message.
    Medium(&'a [u8]),
    /// A range of the receiver's segment, into which the bytes were written before: a bulk message.
    Bulk {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
}

impl<'a> Body<'a> {
    /// The payload of a medium message; of others none.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        match self {
            Self::Medium(payload) => payload,
            Self::Short | Self::Bulk { .. } => &[],
        }
    }
}

/// A request or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The handler.
    pub handler: u16,
    /// The arguments.
    pub args: Args<'a>,
    /// Its data.
    pub body: Body<'a>,
}

/// The arguments of a message as they stand in its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Args<'a> {
    words: &'a [[u8; 4]],
}

impl<'a> Args<'a> {
    /// The arguments in these words, of which the first [`MAX_ARGS`] count. The lowest byte of each comes first.
    #[must_use]
    pub fn new(words: &'a [[u8; 4]]) -> Self {
        Self { words }
    }
    /// The arguments as numbers.
    #[inline]
    pub fn read(&self) -> ArgList {
        let mut list = ArgList { args: [0; MAX_ARGS], count: self.words.len().min(MAX_ARGS) };
        for (arg, word) in list.args.iter_mut().zip(self.words) {
            *arg = u32::from_le_bytes(*word);
        }
        list
    }
}

/// Up to [`MAX_ARGS`] arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgList {
    args: [u32; MAX_ARGS],
    count: usize,
}

impl std::ops::Deref for ArgList {
    type Target = [u32];
    #[inline]
    fn deref(&self) -> &[u32] {
        &self.args[..self.count]
    }
}

/// A message of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A request.
    Request(Call<'a>),
    /// A reply to the oldest open request, behind `acks` that have ended without one.
    Reply {
        /// The number of older requests that have ended without a reply.
        acks: u16,
        /// The reply.
        call: Call<'a>,
    },
    /// The oldest requests have ended without a reply.
    Ack(u16),
    /// The oldest open request, behind `acks` that have ended without a reply, was not carried out.
    Returned {
        /// The number of older requests that have ended without a reply.
        acks: u16,
        /// The reason.
        reason: Reason,
    },
    /// The first message of each side.
    Hello(Hello),
}

/// The first message of each side of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Hello {
    /// The requests that the side takes before it has answered one.
    pub credits: u16,
    /// The most bytes of a medium message that the side takes.
    pub max_medium: u32,
    /// The tag that the side expects its peer to have, if it has mapped the peer.
    pub tag: u64,
    /// The address of the side's segment.
    pub segment_addr: u64,
    /// Its length; 0 for none.
    pub segment_len: u64,
    /// Its key, or its memory handle.
    pub segment_key: u32,
    /// The address of the side's host, as IPv6.
    pub host: [u8; 16],
    /// The side's endpoint at that host.
    pub endpoint: u64,
}

/// A message that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The message ends too early, or has bytes behind its end.
    #[error("a message of kind {kind} has {len} bytes")]
    Length {
        /// The kind.
        kind: u8,
        /// The bytes that came.
        len: usize,
    },
    /// The kind, or a field, has no such value.
    #[error("field {field} has the value {value}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

const REQUEST: u8 = 1;
const REPLY: u8 = 4;
const ACK: u8 = 7;
const RETURNED: u8 = 8;
const HELLO: u8 = 9;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Takes a message apart.
///
/// # Errors
/// The bytes are none.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Frame<'_>, ParseError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(ParseError::Length { kind: bytes.first().copied().unwrap_or(0), len: bytes.len() });
    };
    let [kind, count, ..] = *head;
    let (handler, acks, reserved) = (u16_at(head, 2), u16_at(head, 4), u16_at(head, 6));
    let length = || ParseError::Length { kind, len: bytes.len() };
    let field = |field, value: u64| Err(ParseError::Field { field, value });
    if kind == HELLO {
        return hello(bytes).map(Frame::Hello);
    }
    if reserved != 0 {
        return field("reserved", reserved.into());
    }
    match kind {
        REQUEST..ACK => {
            let is_reply = kind >= REPLY;
            let call = call(kind - if is_reply { REPLY } else { REQUEST }, count, handler, rest)
                .map_err(|error| error.unwrap_or_else(length))?;
            match (is_reply, acks) {
                (true, acks) => Ok(Frame::Reply { acks, call }),
                (false, 0) => Ok(Frame::Request(call)),
                (false, acks) => field("acks", acks.into()),
            }
        }
        ACK | RETURNED if !rest.is_empty() => Err(length()),
        ACK | RETURNED if count != 0 => field("args", count.into()),
        ACK if handler != 0 => field("handler", handler.into()),
        ACK if acks == 0 => field("acks", 0),
        ACK => Ok(Frame::Ack(acks)),
        RETURNED => match Reason::of_code(handler) {
            Some(reason) => Ok(Frame::Returned { acks, reason }),
            None => field("reason", handler.into()),
        },
        _ => field("kind", kind.into()),
    }
}

/// The part of a request or reply behind its header. `Err(None)`: its length is wrong.
#[inline]
fn call(shape: u8, count: u8, handler: u16, rest: &[u8]) -> Result<Call<'_>, Option<ParseError>> {
    if usize::from(count) > MAX_ARGS {
        return Err(Some(ParseError::Field { field: "args", value: count.into() }));
    }
    let (words, tail) = rest.split_at_checked(4 * usize::from(count)).ok_or(None)?;
    let args = Args::new(words.as_chunks().0);
    let body = match (shape, tail.len()) {
        (0, 0) => Body::Short,
        (1, _) => Body::Medium(tail),
        (2, RANGE_BYTES) => Body::Bulk { offset: u64_at(tail, 0), len: u64_at(tail, 8) },
        _ => return Err(None),
    };
    Ok(Call { handler, args, body })
}

fn hello(bytes: &[u8]) -> Result<Hello, ParseError> {
    if bytes.len() != HELLO_BYTES {
        return Err(ParseError::Length { kind: HELLO, len: bytes.len() });
    }
    if bytes[1] != VERSION {
        return Err(ParseError::Field { field: "version", value: bytes[1].into() });
    }
    if bytes[60..] != [0; 4] {
        return Err(ParseError::Field { field: "reserved", value: bytes[60].into() });
    }
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let credits = u16_at(bytes, 2);
    if credits == 0 {
        return Err(ParseError::Field { field: "credits", value: 0 });
    }
    Ok(Hello {
        credits,
        max_medium: u32_at(4),
        tag: u64_at(bytes, 8),
        segment_addr: u64_at(bytes, 16),
        segment_len: u64_at(bytes, 24),
        host: bytes[32..48].try_into().expect("16 bytes"),
        endpoint: u64_at(bytes, 48),
        segment_key: u32_at(56),
    })
}

impl Hello {
    /// The bytes of the message.
    pub fn bytes(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        (out[0], out[1]) = (HELLO, VERSION);
        out[2..4].copy_from_slice(&self.credits.to_le_bytes());
        out[4..8].copy_from_slice(&self.max_medium.to_le_bytes());
        out[8..16].copy_from_slice(&self.tag.to_le_bytes());
        out[16..24].copy_from_slice(&self.segment_addr.to_le_bytes());
        out[24..32].copy_from_slice(&self.segment_len.to_le_bytes());
        out[32..48].copy_from_slice(&self.host);
        out[48..56].copy_from_slice(&self.endpoint.to_le_bytes());
        out[56..60].copy_from_slice(&self.segment_key.to_le_bytes());
        out
    }
}

/// The head of a message: all of it but the payload of a medium one.
pub(crate) struct Head {
    bytes: [u8; MAX_HEAD_BYTES],
    len: usize,
}

impl Head {
    /// A request.
    #[inline]
    pub(crate) fn request(handler: u16, args: &[u32], body: &Body<'_>) -> Self {
        Self::call(REQUEST, 0, handler, args, body)
    }
    /// A reply.
    #[inline]
    pub(crate) fn reply(acks: u16, handler: u16, args: &[u32], body: &Body<'_>) -> Self {
        Self::call(REPLY, acks, handler, args, body)
    }
    pub(crate) fn ack(acks: u16) -> Self {
        Self::new(ACK, 0, 0, acks)
    }
    pub(crate) fn returned(acks: u16, reason: Reason) -> Self {
        Self::new(RETURNED, 0, reason.code(), acks)
    }
    #[inline]
    fn new(kind: u8, count: u8, handler: u16, acks: u16) -> Self {
        let mut bytes = [0; MAX_HEAD_BYTES];
        (bytes[0], bytes[1]) = (kind, count);
        bytes[2..4].copy_from_slice(&handler.to_le_bytes());
        bytes[4..6].copy_from_slice(&acks.to_le_bytes());
        Self { bytes, len: HEADER_BYTES }
    }
    #[inline]
    fn call(kind: u8, acks: u16, handler: u16, args: &[u32], body: &Body<'_>) -> Self {
        let shape = match body {
            Body::Short => 0,
            Body::Medium(_) => 1,
            Body::Bulk { .. } => 2,
        };
        let mut head = Self::new(kind + shape, args.len() as u8, handler, acks);
        for arg in args {
            head.push(arg.to_le_bytes());
        }
        if let Body::Bulk { offset, len } = body {
            head.push(offset.to_le_bytes());
            head.push(len.to_le_bytes());
        }
        head
    }
    #[inline]
    fn push<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes[self.len..self.len + N].copy_from_slice(&bytes);
        self.len += N;
    }
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Puts a message together again, as [`parse`] took it apart. For tests of peers.
#[must_use]
pub fn encode(frame: &Frame<'_>) -> Vec<u8> {
    let call = |make: fn(u16, u16, &[u32], &Body<'_>) -> Head, acks: u16, call: &Call<'_>| {
        let mut bytes = make(acks, call.handler, &call.args.read(), &call.body).bytes().to_vec();
        bytes.extend_from_slice(call.body.payload());
        bytes
    };
    match frame {
        Frame::Request(request) => {
            call(|_, handler, args, body| Head::request(handler, args, body), 0, request)
        }
        Frame::Reply { acks, call: reply } => call(Head::reply, *acks, reply),
        Frame::Ack(acks) => Head::ack(*acks).bytes().to_vec(),
        Frame::Returned { acks, reason } => Head::returned(*acks, *reason).bytes().to_vec(),
        Frame::Hello(hello) => hello.bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call<'b>(handler: u16, words: &'b [[u8; 4]], body: Body<'b>) -> Call<'b> {
        Call { handler, args: Args::new(words), body }
    }

    #[test]
    fn messages_have_the_bytes_of_the_design() {
        let short = Frame::Request(call(0x0102, &[[0xa4, 0xa3, 0xa2, 0xa1]], Body::Short));
        assert_eq!(encode(&short), [1, 1, 2, 1, 0, 0, 0, 0, 0xa4, 0xa3, 0xa2, 0xa1]);
        let medium = Frame::Reply { acks: 3, call: call(7, &[], Body::Medium(b"hey")) };
        assert_eq!(encode(&medium), [5, 0, 7, 0, 3, 0, 0, 0, b'h', b'e', b'y']);
        let bulk = Frame::Request(call(9, &[], Body::Bulk { offset: 0x10, len: 0x0102 }));
        let range = [0x10, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(encode(&bulk), [&[3, 0, 9, 0, 0, 0, 0, 0][..], &range].concat());
        assert_eq!(encode(&Frame::Ack(5)), [7, 0, 0, 0, 5, 0, 0, 0]);
        let returned = Frame::Returned { acks: 1, reason: Reason::BadTag };
        assert_eq!(encode(&returned), [8, 0, 3, 0, 1, 0, 0, 0]);
        let hello = Hello { credits: 8, max_medium: 4096, tag: 5, host: [7; 16], ..Hello::default() };
        for frame in [short, medium, bulk, Frame::Ack(5), returned, Frame::Hello(hello)] {
            assert_eq!(parse(&encode(&frame)), Ok(frame));
        }
    }

    #[test]
    fn arguments_are_read_from_the_bytes() {
        let bytes = Head::request(7, &[1, 0xa1a2_a3a4], &Body::Short).bytes().to_vec();
        let Ok(Frame::Request(call)) = parse(&bytes) else { panic!("a request") };
        assert_eq!(*call.args.read(), [1, 0xa1a2_a3a4]);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let field = |field, value| Err(ParseError::Field { field, value });
        for len in 0..HEADER_BYTES {
            assert_eq!(
                parse(&[1; HEADER_BYTES][..len]),
                Err(ParseError::Length { kind: u8::from(len > 0), len })
            );
        }
        assert_eq!(parse(&[0; 8]), field("kind", 0));
        assert_eq!(parse(&[10, 0, 0, 0, 0, 0, 0, 0]), field("kind", 10));
        assert_eq!(parse(&[1, 0, 0, 0, 0, 0, 1, 0]), field("reserved", 1));
        assert_eq!(parse(&[1, 0, 0, 0, 1, 0, 0, 0]), field("acks", 1));
        assert_eq!(parse(&[1, 17, 0, 0, 0, 0, 0, 0]), field("args", 17));
        assert_eq!(parse(&[1, 1, 0, 0, 0, 0, 0, 0]), Err(ParseError::Length { kind: 1, len: 8 }));
        assert_eq!(parse(&[1, 0, 0, 0, 0, 0, 0, 0, 9]), Err(ParseError::Length { kind: 1, len: 9 }));
        assert_eq!(parse(&[3, 0, 0, 0, 0, 0, 0, 0, 9]), Err(ParseError::Length { kind: 3, len: 9 }));
        assert_eq!(parse(&[7, 0, 0, 0, 0, 0, 0, 0]), field("acks", 0));
        assert_eq!(parse(&[7, 0, 1, 0, 1, 0, 0, 0]), field("handler", 1));
        assert_eq!(parse(&[8, 0, 0, 0, 0, 0, 0, 0]), field("reason", 0));
        let mut hello = Hello { credits: 1, ..Hello::default() }.bytes();
        hello[1] = 2;
        assert_eq!(parse(&hello), field("version", 2));
        assert_eq!(parse(&Hello::default().bytes()), field("credits", 0));
        hello[1] = VERSION;
        hello[60] = 3;
        assert_eq!(parse(&hello), field("reserved", 3));
        assert_eq!(parse(&hello[..63]), Err(ParseError::Length { kind: 9, len: 63 }));
    }
}
