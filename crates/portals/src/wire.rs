//! The messages between two nodes: each is the payload of one RC SEND.
//!
//! Numbers are big-endian. A request has 24 bytes, and 8 more for each optional field: an offset, header data, the
//! atomic operation. With offset and header data, 8 bytes of a put still fit the 48 bytes that one cache line carries
//! over shared memory. An answer has 24 bytes. Behind these come the bytes of the message, or the pieces of memory from
//! which the other side fetches the bytes.
//!
//! ```text
//!  request   0 kind  1 interface, ack  2 operation  3 fields  4 portal (2)  6 access control index (2)
//!            8 token (4)  12 length (4)  16 match bits (8)  then: offset (8), header data (8), atomic (8), operand (32)
//!  answer    0 kind  1 form  2 failure  3 list  4 token (4)  8 length moved (8)  16 offset (8)  then: lender's token (8)
//!  piece     0 address (8)  8 key (4)  12 length (4)
//! ```

use hca_core::{RemoteAddr, Rkey};
use hca_matching::atomic::{AtomicOp, Datatype};
use hca_matching::{AckRequest, Header, ListKind, NiFail, Operation, Response, ResponseKind};

/// Bytes of the longest head.
pub(crate) const MAX_HEAD: usize = 24 + 8 + 8 + 8 + 32;
/// Bytes of an operand: of the largest type.
const OPERAND_BYTES: usize = 32;
/// Bytes of a piece.
pub(crate) const PIECE_BYTES: usize = 16;
/// The longest message between nodes: what 32 bits count.
pub(crate) const MAX_MESSAGE: u64 = u32::MAX as u64;

const REQUEST: u8 = 1;
const REQUEST_LENT: u8 = 2;
const RESPONSE: u8 = 3;
const RESPONSE_LENT: u8 = 4;
const FETCHED: u8 = 5;
const BYE: u8 = 6;
const PING: u8 = 7;

/// The code of the operation put.
const PUT: u8 = 0;

const HAS_OFFSET: u8 = 1;
const HAS_HDR_DATA: u8 = 2;
const HAS_ATOMIC: u8 = 4;
const HAS_OPERAND: u8 = 8;

/// A piece of the sender's memory, where the other side reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) at: RemoteAddr,
    pub(crate) len: u32,
}

/// The pieces of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces<'a>(&'a [u8]);

impl Pieces<'_> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Piece> {
        self.0.chunks_exact(PIECE_BYTES).map(|p| Piece {
            at: RemoteAddr { addr: u64_at(p, 0), rkey: Rkey::new(u32_at(p, 8)) },
            len: u32_at(p, 12),
        })
    }
    /// The bytes of all of them.
    pub(crate) fn total(&self) -> u64 {
        self.iter().map(|piece| u64::from(piece.len)).sum()
    }
}

/// A parsed message that begins no operation; its fields are not checked against the node's state.
#[derive(Debug)]
pub(crate) enum Message<'a> {
    /// What became of one, with the bytes of a reply. The bytes of a lent request were fetched.
    Response(u32, Response, &'a [u8]),
    /// A reply whose bytes the initiator fetches; `Fetched` answers the second token.
    ResponseLent(u32, Response, u32, Pieces<'a>),
    /// A reply's bytes were fetched, or can't be.
    Fetched(u32, NiFail),
    /// The other side goes.
    Bye,
    /// A probe. The transport's acknowledgement is the answer.
    Ping,
}

/// The head of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    /// Which of the node's interfaces.
    pub(crate) ni: u8,
    /// The token of its answer.
    pub(crate) token: u32,
    /// The header without its sender, which the connection knows.
    pub(crate) header: Header,
    /// What a conditional swap compares with, or the mask; empty for other operations.
    pub(crate) operand: &'a [u8],
}

/// An error of reading a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// It ends before its fields do.
    #[error("a message of {length} bytes is cut off")]
    Short { length: usize },
    /// A field has a value without meaning.
    #[error("{field} is {value}, which is not defined")]
    Field { field: &'static str, value: u8 },
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}
#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Bytes that a message begins with, or all of it, with room for a body as long as the rest of the longest head.
///
/// It is built of words, since its reader loads words or more, and a load waits for narrower stores.
pub(crate) struct Head {
    /// In the byte order of the wire.
    words: [u64; MAX_HEAD / 8],
    len: usize,
}

impl Head {
    #[inline(always)]
    fn new(first: [u8; 4], rest: u32) -> Self {
        let mut words = [0; MAX_HEAD / 8];
        words[0] = (u64::from(u32::from_be_bytes(first)) << 32 | u64::from(rest)).to_be();
        Self { words, len: 1 }
    }
    #[inline(always)]
    fn push(&mut self, word: u64) {
        self.words[self.len] = word.to_be();
        self.len += 1;
    }
    #[inline(always)]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words[..self.len])
    }

    /// The head with room for a body of so many bytes behind it; `None`: it has less.
    #[inline(always)]
    pub(crate) fn with_body(&mut self, body: usize) -> Option<&mut [u8]> {
        bytemuck::cast_slice_mut(&mut self.words).get_mut(..self.len * 8 + body)
    }

    /// Of an operation.
    #[inline(always)]
    pub(crate) fn request(
        ni: u8,
        token: u32,
        header: &Header,
        operand: &[u8; OPERAND_BYTES],
        lent: bool,
    ) -> Self {
        // Most are puts.
        let (operation, atomic) = match header.operation {
            Operation::Put => (PUT, None),
            other => coded(other),
        };
        let with_operand = atomic.is_some_and(|(op, _)| op.needs_operand());
        let has = |present: bool, bit: u8| if present { bit } else { 0 };
        let fields = has(header.remote_offset != 0, HAS_OFFSET)
            | has(header.hdr_data != 0, HAS_HDR_DATA)
            | has(atomic.is_some(), HAS_ATOMIC)
            | has(with_operand, HAS_OPERAND);
        let kind = if lent { REQUEST_LENT } else { REQUEST };
        let first = [kind, ni | ack_code(header.ack) << 4, operation, fields];
        let mut head = Self::new(first, (header.pt_index & 0xffff) << 16 | header.ac_index & 0xffff);
        head.push(u64::from(token) << 32 | header.length & 0xffff_ffff);
        head.push(header.match_bits);
        if header.remote_offset != 0 {
            head.push(header.remote_offset);
        }
        if header.hdr_data != 0 {
            head.push(header.hdr_data);
        }
        if let Some((op, ty)) = atomic {
            head.push((op as u64) << 56 | (ty as u64) << 48);
        }
        if with_operand {
            for word in operand.chunks_exact(8) {
                head.push(u64_at(word, 0));
            }
        }
        head
    }
    /// Of what became of one; with the token by which the lent bytes of a reply are answered.
    #[inline]
    pub(crate) fn response(token: u32, response: &Response, lender: Option<u32>) -> Self {
        let kind = if lender.is_some() { RESPONSE_LENT } else { RESPONSE };
        let first = [kind, response.kind as u8, response.fail as u8, response.list as u8];
        let mut head = Self::new(first, token);
        head.push(response.mlength);
        head.push(response.offset);
        if let Some(lender) = lender {
            head.push(lender.into());
        }
        head
    }
    /// That a reply's bytes were fetched, or can't be.
    pub(crate) fn fetched(token: u32, fail: NiFail) -> Self {
        Self::new([FETCHED, 0, fail as u8, 0], token)
    }
    pub(crate) fn bye() -> Self {
        Self::new([BYE, 0, 0, 0], 0)
    }
    pub(crate) fn ping() -> Self {
        Self::new([PING, 0, 0, 0], 0)
    }
}

impl Piece {
    pub(crate) fn to_bytes(self) -> [u8; PIECE_BYTES] {
        let mut out = [0; PIECE_BYTES];
        out[..8].copy_from_slice(&self.at.addr.to_be_bytes());
        out[8..12].copy_from_slice(&self.at.rkey.raw().to_be_bytes());
        out[12..].copy_from_slice(&self.len.to_be_bytes());
        out
    }
}

impl<'a> Message<'a> {
    /// Reads a message that is [no request](is_request). Lengths and other claims of its fields are not checked.
    #[inline(never)]
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let short = WireError::Short { length: bytes.len() };
        match *bytes.first().ok_or(short)? {
            kind @ (RESPONSE | RESPONSE_LENT) => {
                let head = bytes.get(..24).ok_or(short)?;
                let response = Response {
                    kind: response_kind(head[1])?,
                    fail: ni_fail(head[2])?,
                    mlength: u64_at(head, 8),
                    offset: u64_at(head, 16),
                    list: list(head[3])?,
                };
                let token = u32_at(head, 4);
                if kind == RESPONSE {
                    return Ok(Self::Response(token, response, &bytes[24..]));
                }
                let lender = u64_at(bytes.get(24..32).ok_or(short)?, 0) as u32;
                Ok(Self::ResponseLent(token, response, lender, pieces(&bytes[32..])?))
            }
            FETCHED => {
                let head = bytes.get(..8).ok_or(short)?;
                Ok(Self::Fetched(u32_at(head, 4), ni_fail(head[2])?))
            }
            BYE => Ok(Self::Bye),
            PING => Ok(Self::Ping),
            value => Err(WireError::Field { field: "the kind of message", value }),
        }
    }
}

/// What is behind the head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// The bytes of the operation, if it has any.
    Bytes,
    /// The [`pieces`] of memory from which the target fetches the bytes.
    Pieces,
}

/// What is behind the head, if the message begins an operation; [`parse_request`] reads such a message.
#[inline(always)]
pub(crate) fn is_request(bytes: &[u8]) -> Option<Behind> {
    match *bytes.first()? {
        REQUEST => Some(Behind::Bytes),
        REQUEST_LENT => Some(Behind::Pieces),
        _ => None,
    }
}
/// The interface that a request is for, if so much can be read of it.
pub(crate) fn interface_of(bytes: &[u8]) -> Option<u8> {
    is_request(bytes)?;
    bytes.get(1).map(|ni| ni & 15)
}

/// A put whose bytes are with it.
pub(crate) struct Put<'a> {
    /// Which of the node's interfaces.
    pub(crate) ni: u8,
    /// The token of its answer.
    pub(crate) token: u32,
    /// The header without its sender, which the connection knows.
    pub(crate) header: Header,
    pub(crate) data: &'a [u8],
}

/// Reads a put whose bytes are with it. `None`: the message is another one, or is to be refused.
#[inline(always)]
pub(crate) fn parse_put(bytes: &[u8]) -> Option<Put<'_>> {
    let (head, mut data) = bytes.split_first_chunk::<24>()?;
    let [kind, ni, operation, fields] = *head.first_chunk()?;
    if kind != REQUEST || operation != PUT || fields & !(HAS_OFFSET | HAS_HDR_DATA) != 0 {
        return None;
    }
    let mut take = |bit: u8| {
        if fields & bit == 0 {
            return Some(0);
        }
        let (word, rest) = data.split_first_chunk()?;
        data = rest;
        Some(u64::from_be_bytes(*word))
    };
    let header = Header {
        operation: Operation::Put,
        ack: ack(ni >> 4).ok()?,
        pt_index: u16_at(head, 4).into(),
        ac_index: u16_at(head, 6).into(),
        match_bits: u64_at(head, 16),
        remote_offset: take(HAS_OFFSET)?,
        hdr_data: take(HAS_HDR_DATA)?,
        length: u32_at(head, 12).into(),
        ..Header::default()
    };
    let put = Put { ni: ni & 15, token: u32_at(head, 8), header, data };
    (put.header.length == data.len() as u64).then_some(put)
}

/// Reads a [request](is_request) into `request`, which is a default one; returns what is behind its head. Its claims are
/// not checked.
#[inline(always)]
pub(crate) fn parse_request<'a>(bytes: &'a [u8], request: &mut Request<'a>) -> Result<&'a [u8], WireError> {
    let short = WireError::Short { length: bytes.len() };
    let (head, mut rest) = bytes.split_at_checked(24).ok_or(short)?;
    let fields = head[3];
    let mut take = |bit: u8, n: usize| {
        if fields & bit == 0 {
            return Ok(None);
        }
        let (now, later) = rest.split_at_checked(n).ok_or(short)?;
        rest = later;
        Ok(Some(now))
    };
    // Field by field where they will be read: what is built elsewhere is copied.
    let header = &mut request.header;
    header.remote_offset = take(HAS_OFFSET, 8)?.map_or(0, |b| u64_at(b, 0));
    header.hdr_data = take(HAS_HDR_DATA, 8)?.map_or(0, |b| u64_at(b, 0));
    let mut atomic = None;
    if fields & (HAS_ATOMIC | HAS_OPERAND) != 0 {
        atomic = take(HAS_ATOMIC, 8)?.map(|b| (b[0], b[1]));
        request.operand = take(HAS_OPERAND, OPERAND_BYTES)?.unwrap_or_default();
    }
    header.operation = operation(head[2], atomic)?;
    header.ack = ack(head[1] >> 4)?;
    header.pt_index = u16_at(head, 4).into();
    header.ac_index = u16_at(head, 6).into();
    header.match_bits = u64_at(head, 16);
    header.length = u32_at(head, 12).into();
    if request.operand.is_empty() && header.operation.atomic().is_some_and(|(op, _)| op.needs_operand()) {
        return Err(short);
    }
    (request.ni, request.token) = (head[1] & 15, u32_at(head, 8));
    Ok(rest)
}

/// The pieces behind the head of a request whose bytes are lent.
pub(crate) fn pieces(bytes: &[u8]) -> Result<Pieces<'_>, WireError> {
    if bytes.len().is_multiple_of(PIECE_BYTES) {
        Ok(Pieces(bytes))
    } else {
        Err(WireError::Short { length: bytes.len() })
    }
}

/// The code of an operation, and what it has beside.
#[inline(never)]
fn coded(operation: Operation) -> (u8, Option<(AtomicOp, Datatype)>) {
    let code = match operation {
        Operation::Put => PUT,
        Operation::Get => 1,
        Operation::GetPut => 2,
        Operation::Atomic(..) => 3,
        Operation::FetchAtomic(..) => 4,
        Operation::Swap(..) => 5,
    };
    (code, operation.atomic())
}

#[inline]
fn operation(code: u8, atomic: Option<(u8, u8)>) -> Result<Operation, WireError> {
    let bad = |value| WireError::Field { field: "the operation", value };
    let pair = || {
        let (op, ty) = atomic.ok_or(bad(code))?;
        let op = AtomicOp::from_number(op).ok_or(bad(op))?;
        let ty = Datatype::from_number(ty).ok_or(WireError::Field { field: "the type", value: ty })?;
        Ok((op, ty))
    };
    Ok(match code {
        PUT => Operation::Put,
        1 => Operation::Get,
        2 => Operation::GetPut,
        3 => pair().map(|(op, ty)| Operation::Atomic(op, ty))?,
        4 => pair().map(|(op, ty)| Operation::FetchAtomic(op, ty))?,
        5 => pair().map(|(op, ty)| Operation::Swap(op, ty))?,
        value => return Err(bad(value)),
    })
}

fn ack_code(ack: AckRequest) -> u8 {
    match ack {
        AckRequest::None => 0,
        AckRequest::Full => 1,
        AckRequest::Count => 2,
        AckRequest::Complete => 3,
    }
}
#[inline]
fn ack(code: u8) -> Result<AckRequest, WireError> {
    Ok(match code {
        0 => AckRequest::None,
        1 => AckRequest::Full,
        2 => AckRequest::Count,
        3 => AckRequest::Complete,
        value => return Err(WireError::Field { field: "the acknowledgement", value }),
    })
}

fn response_kind(code: u8) -> Result<ResponseKind, WireError> {
    use ResponseKind as K;
    [K::None, K::Ack, K::CountAck, K::CompleteAck, K::Reply]
        .into_iter()
        .find(|&kind| kind as u8 == code)
        .ok_or(WireError::Field { field: "the form of the response", value: code })
}

fn list(code: u8) -> Result<ListKind, WireError> {
    [ListKind::Priority, ListKind::Overflow]
        .into_iter()
        .find(|&list| list as u8 == code)
        .ok_or(WireError::Field { field: "the list", value: code })
}

fn ni_fail(code: u8) -> Result<NiFail, WireError> {
    use NiFail as F;
    [
        F::Ok,
        F::Undeliverable,
        F::Dropped,
        F::PtDisabled,
        F::PermViolation,
        F::OpViolation,
        F::NoMatch,
        F::Segv,
    ]
    .into_iter()
    .find(|&fail| fail as u8 == code)
    .ok_or(WireError::Field { field: "the failure", value: code })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERAND: [u8; 32] = [7; 32];

    fn request(operation: Operation, remote_offset: u64, hdr_data: u64) -> Request<'static> {
        let header = Header {
            operation,
            ack: AckRequest::Count,
            pt_index: 300,
            ac_index: 7,
            match_bits: 0x0123_4567_89ab_cdef,
            remote_offset,
            length: 8,
            hdr_data,
            ..Header::default()
        };
        let with = operation.atomic().is_some_and(|(op, _)| op.needs_operand());
        Request { ni: 3, token: 0xdead_beef, header, operand: if with { &OPERAND } else { &[] } }
    }

    fn read(bytes: &[u8]) -> Result<(Request<'_>, &[u8]), WireError> {
        let mut request = Request::default();
        parse_request(bytes, &mut request).map(|rest| (request, rest))
    }

    fn head(request: &Request<'_>) -> Head {
        Head::request(request.ni, request.token, &request.header, &OPERAND, false)
    }

    #[test]
    fn a_put_of_8_bytes_with_all_it_can_have_is_48_bytes() {
        assert_eq!(head(&request(Operation::Put, 5, 6)).as_bytes().len() + 8, 48);
        assert_eq!(head(&request(Operation::Put, 0, 0)).as_bytes().len(), 24);
    }

    #[test]
    fn every_request_is_read_as_it_was_written() {
        let operations = [Operation::Put, Operation::Get, Operation::GetPut].into_iter().chain(
            AtomicOp::ALL.iter().flat_map(|&op| {
                Datatype::ALL.iter().flat_map(move |&ty| {
                    [Operation::Atomic(op, ty), Operation::FetchAtomic(op, ty), Operation::Swap(op, ty)]
                })
            }),
        );
        for operation in operations {
            for (offset, hdr_data) in [(0, 0), (1 << 40, 0), (0, 9), (3, u64::MAX)] {
                let wanted = request(operation, offset, hdr_data);
                let mut bytes = head(&wanted).as_bytes().to_vec();
                bytes.extend(b"payload");
                assert_eq!(is_request(&bytes), Some(Behind::Bytes));
                let (got, rest) = read(&bytes).unwrap();
                assert_eq!((got, rest), (wanted, &b"payload"[..]));
                assert!(parse_put(&bytes).is_none(), "another length");
                bytes.push(b'.');
                let put = parse_put(&bytes).map(|put| (put.ni, put.token, put.header, put.data));
                let is_put = operation == Operation::Put;
                let good = (wanted.ni, wanted.token, wanted.header, &b"payload."[..]);
                assert_eq!(put, is_put.then_some(good));
                bytes.pop();
                for cut in 0..bytes.len() - 7 {
                    assert!(read(&bytes[..cut]).is_err(), "{operation:?} cut to {cut}");
                }
            }
        }
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let (kind, list) = (ResponseKind::Reply, ListKind::Overflow);
        let response = Response { kind, fail: NiFail::Segv, mlength: 9, offset: 1 << 50, list };
        let mut bytes = Head::response(4, &response, None).as_bytes().to_vec();
        bytes.push(1);
        let Ok(Message::Response(4, got, [1])) = Message::parse(&bytes) else { panic!() };
        assert_eq!(got, response);
        let piece = Piece { at: RemoteAddr { addr: 1 << 60, rkey: Rkey::new(77) }, len: 12 };
        let mut bytes = Head::response(4, &response, Some(8)).as_bytes().to_vec();
        bytes.extend(piece.to_bytes());
        let Ok(Message::ResponseLent(4, got, 8, pieces)) = Message::parse(&bytes) else { panic!() };
        assert_eq!((got, pieces.iter().collect::<Vec<_>>(), pieces.total()), (response, vec![piece], 12));
        bytes.pop();
        assert!(Message::parse(&bytes).is_err(), "half a piece");
        assert!(matches!(
            Message::parse(Head::fetched(3, NiFail::Dropped).as_bytes()),
            Ok(Message::Fetched(3, NiFail::Dropped))
        ));
        assert!(matches!(Message::parse(Head::bye().as_bytes()), Ok(Message::Bye)));
        assert!(matches!(Message::parse(Head::ping().as_bytes()), Ok(Message::Ping)));
    }

    #[test]
    fn values_without_meaning_are_refused_by_name() {
        let good = head(&request(Operation::Put, 0, 0)).as_bytes().to_vec();
        for (at, value, field) in [
            (0, 0, "the kind of message"),
            (0, 99, "the kind of message"),
            (1, 0x40, "the acknowledgement"),
            (2, 6, "the operation"),
            (2, 3, "the operation"),
        ] {
            let mut bytes = good.clone();
            bytes[at] = value;
            let message = if is_request(&bytes).is_some() {
                read(&bytes).map(drop)
            } else {
                Message::parse(&bytes).map(drop)
            };
            let Err(WireError::Field { field: got, .. }) = message else { panic!("{field}") };
            assert_eq!(got, field);
        }
        assert!(Message::parse(&[]).is_err());
        let (kind, list) = (ResponseKind::Ack, ListKind::Priority);
        let answer = Response { kind, fail: NiFail::Ok, mlength: 0, offset: 0, list };
        let mut answer = Head::response(1, &answer, None).as_bytes().to_vec();
        answer[3] = 2;
        let Err(WireError::Field { field, value: 2 }) = Message::parse(&answer) else { panic!() };
        assert_eq!(field, "the list");
    }
}
