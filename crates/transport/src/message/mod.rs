//! RC by messages: between adapters of one machine, over a channel that neither loses nor reorders.
//!
//! A message takes the place of packets, without a path MTU, PSNs and retransmission: requests are numbered, the target
//! executes them in order and reports the number of executed requests. Numbers begin at the queue pairs' PSNs, so that
//! leftover messages of an earlier connection are recognised. The channel loses messages in one case only: the target's
//! queue pair was not ready for them. A requester without an answer for some time therefore sends again from the oldest
//! request on; the target drops requests that it has executed already.
//!
//! ```text
//! byte 0      operation | flags << 4
//! byte 1..4   queue pair
//! byte 4..6   number of the request
//! byte 6..8   number of the oldest request of the other direction that is not done
//! byte 8..12  immediate data, key to take back, syndrome, P_Key, limit of receive requests, or FETH
//! then        the number of a shared receive queue, in the first message of a request by XRC
//! then        the operation's own fields, and data
//! ```
//! All fields are in the byte order of the machine, which both ends share.

mod lane;
mod requester;
mod responder;

use hca_core::{Instant, QpAttr, Qpn, RemoteAddr, Rkey, Srqn, WcStatus};

use crate::connection::Path;
use crate::{Host, Loan, QpConfig, TxSink};

pub use lane::{Lane, Lanes, plain_send_to};
pub(crate) use requester::Requester;
pub(crate) use responder::Responder;

/// Bytes of a message's head.
pub const HEAD_BYTES: usize = 12;
/// Data bytes of one message; longer requests take several.
pub(crate) const MAX_DATA: usize = 4096;
/// A SEND or WRITE of so many bytes is lent, if it can be: from there on one copy is quicker than three, by
/// measurement. Streams of shorter ones between processors with common caches are a fifth quicker by three. The host
/// knows of memory for which this begins later.
pub(crate) const LOAN_MIN: u32 = 512;
/// Bytes that one message lends at most.
pub(crate) const MAX_LOAN: u32 = 128 << 10;
/// Bytes of the longest message.
pub const MAX_MESSAGE: usize = HEAD_BYTES + SRQ_BYTES + REMOTE_BYTES + MAX_DATA;

/// The number of a shared receive queue.
const SRQ_BYTES: usize = 4;
/// Address, key and length of remote memory.
const REMOTE_BYTES: usize = 16;
/// What the adapters agreed to look at around fetching from a process.
const TERMS_BYTES: usize = 16;

/// It begins its request.
const FIRST: u8 = 1;
/// It ends its request.
const LAST: u8 = 2;
/// The receiver's program wants to be woken by it.
const SOLICITED: u8 = 4;
/// Of a SEND, a WRITE or a response to a READ: its data is lent, and to be fetched.
const LENT: u8 = 8;
/// Of a refusal, or where a READ's data was fetched: what was lent is out of reach, and is to be sent instead.
const NOT_LENT: u8 = 8;
/// Of a response to a READ: it is sent by value, as the requester could not fetch it.
const BY_VALUE: u8 = 4;
/// Of an acknowledgement: it tells a limit of receive requests.
const LIMITED: u8 = 4;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    Send = 0,
    SendImm = 1,
    SendInv = 2,
    Write = 3,
    WriteImm = 4,
    Read = 5,
    CompareSwap = 6,
    FetchAdd = 7,
    /// Before the first request, and whenever requests are sent again: the requester's P_Key.
    Hello = 8,
    Ack = 9,
    Nak = 10,
    ReadData = 11,
    Original = 12,
    /// Tells that what the response to a READ lent was fetched, or from where on it could not be.
    Fetched = 13,
    /// ATOMIC WRITE.
    AtomicWrite = 14,
    /// FLUSH; the head has the bits of its FETH.
    Flush = 15,
}

impl Op {
    const ALL: [Self; 16] = [
        Self::Send,
        Self::SendImm,
        Self::SendInv,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::Hello,
        Self::Ack,
        Self::Nak,
        Self::ReadData,
        Self::Original,
        Self::Fetched,
        Self::AtomicWrite,
        Self::Flush,
    ];
    /// Whether it is a SEND or RDMA WRITE, or a piece of one.
    #[inline]
    const fn is_send_or_write(self) -> bool {
        (self as u8) <= Self::WriteImm as u8
    }
    /// Whether it answers a request.
    #[inline]
    pub(crate) const fn is_answer(self) -> bool {
        matches!(self, Self::Ack | Self::Nak | Self::ReadData | Self::Original)
    }
}

/// The head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) op: Op,
    pub(crate) flags: u8,
    pub(crate) dest: Qpn,
    pub(crate) number: u16,
    pub(crate) done: u16,
    pub(crate) extra: u32,
}

impl Head {
    #[inline]
    fn write(&self, out: &mut [u8; HEAD_BYTES]) {
        let kind = u32::from(self.op as u8 | self.flags << 4);
        let words =
            [kind | self.dest.raw() << 8, u32::from(self.number) | u32::from(self.done) << 16, self.extra];
        for (to, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_ne_bytes();
        }
    }
    /// The head, and the bytes behind it.
    #[inline]
    pub(crate) fn read(message: &[u8]) -> Option<(Self, &[u8])> {
        let (head, body) = message.split_first_chunk::<HEAD_BYTES>()?;
        let word = |i: usize| u32::from_ne_bytes(head.as_chunks::<4>().0[i]);
        let (kind, numbers) = (word(0), word(1));
        let op = Op::ALL[(kind & 15) as usize];
        let flags = (kind >> 4 & 15) as u8;
        let dest = Qpn::new(kind >> 8);
        Some((
            Self { op, flags, dest, number: numbers as u16, done: (numbers >> 16) as u16, extra: word(2) },
            body,
        ))
    }
    #[inline]
    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The number of the queue pair that a message is for.
#[inline]
pub fn dest_of(message: &[u8]) -> Option<Qpn> {
    let word = u32::from_ne_bytes(*message.first_chunk()?);
    Some(Qpn::new(word >> 8))
}

/// Room for a message, its head written; what remains is the body.
#[inline]
fn reserve<'a, T: TxSink>(tx: &'a mut T, head: &Head, body: usize) -> Option<&'a mut [u8]> {
    let (first, rest) = tx.reserve(None, HEAD_BYTES + body)?.split_first_chunk_mut::<HEAD_BYTES>()?;
    head.write(first);
    Some(rest)
}

/// The same of a message that names a shared receive queue.
#[inline]
fn reserve_for<'a, T: TxSink>(
    tx: &'a mut T,
    head: &Head,
    srq: Option<Srqn>,
    body: usize,
) -> Option<&'a mut [u8]> {
    let Some(srq) = srq else { return reserve(tx, head, body) };
    let (named, rest) = reserve(tx, head, SRQ_BYTES + body)?.split_first_chunk_mut::<SRQ_BYTES>()?;
    *named = srq.raw().to_ne_bytes();
    Some(rest)
}

/// Remote memory as messages name it.
fn put_remote(out: &mut [u8; REMOTE_BYTES], remote: RemoteAddr, len: u32) {
    out[..8].copy_from_slice(&remote.addr.to_ne_bytes());
    out[8..12].copy_from_slice(&remote.rkey.raw().to_ne_bytes());
    out[12..].copy_from_slice(&len.to_ne_bytes());
}

/// Address, key, length, and what follows.
fn take_remote(body: &[u8]) -> Option<(RemoteAddr, u32, &[u8])> {
    let (remote, rest) = body.split_first_chunk::<REMOTE_BYTES>()?;
    let (addr, more) = remote.split_first_chunk::<8>()?;
    let (rkey, len) = more.split_first_chunk::<4>()?;
    let rkey = Rkey::new(u32::from_ne_bytes(*rkey));
    let remote = RemoteAddr { addr: u64::from_ne_bytes(*addr), rkey };
    Some((remote, u32::from_ne_bytes(*len.first_chunk()?), rest))
}

/// What is lent, behind the head or the address of remote memory: the terms of a process's memory come last.
fn put_loan(out: &mut [u8], loan: &Loan) {
    let (memory, terms) = out.split_first_chunk_mut().expect("room was made for it");
    put_remote(memory, loan.memory, loan.len);
    for (to, word) in terms.as_chunks_mut::<8>().0.iter_mut().zip(loan.terms.into_iter().flatten()) {
        *to = word.to_ne_bytes();
    }
}

/// Bytes that [`put_loan`] fills.
fn loan_bytes(loan: &Loan) -> usize {
    REMOTE_BYTES + if loan.terms.is_some() { TERMS_BYTES } else { 0 }
}

fn take_loan(body: &[u8]) -> Option<Loan> {
    let (memory, len, terms) = take_remote(body)?;
    if len == 0 || len > MAX_LOAN {
        return None;
    }
    let terms = match terms.as_chunks::<8>() {
        ([], []) => None,
        (&[a, b], []) => Some([u64::from_ne_bytes(a), u64::from_ne_bytes(b)]),
        _ => return None,
    };
    Some(Loan { memory, len, terms })
}

/// One reliable connection by messages.
#[derive(Debug)]
pub(crate) struct Messages {
    pub(crate) path: Path,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
}

impl Messages {
    pub(crate) fn new(config: &QpConfig, attr: &QpAttr, sq_index: u32) -> Self {
        let path = Path::new(config, attr);
        Self {
            requester: Requester::new(&path, attr.sq_psn.unwrap_or_default(), sq_index),
            responder: Responder::new(
                attr.rq_psn.unwrap_or_default(),
                attr.max_dest_rd_atomic.unwrap_or_default(),
            ),
            path,
        }
    }
    /// Ready to send.
    pub(crate) fn start(&mut self, config: &QpConfig, attr: &QpAttr) {
        self.path = Path::new(config, attr);
        let (index, gone) = (self.requester.oldest(), self.requester.is_gone());
        self.requester = Requester::new(&self.path, attr.sq_psn.unwrap_or_default(), index);
        self.requester.posted();
        if gone {
            self.requester.peer_gone();
        }
    }
    /// Sends requests, which tell along what was done of the peer's.
    #[inline]
    pub(crate) fn poll_requests<H: Host, T: TxSink>(
        &mut self,
        now: Instant,
        may_start: bool,
        host: &mut H,
        tx: &mut T,
        max: usize,
    ) -> (usize, Option<WcStatus>) {
        let done = self.responder.done();
        let polled = self.requester.poll(now, &self.path, done, may_start, host, tx, max);
        if polled.0 > 0 {
            self.responder.told_along(|| host.recv_credits());
        }
        polled
    }
    /// Attributes changed, or sending may go on.
    pub(crate) fn update(&mut self, config: &QpConfig, attr: &QpAttr) {
        self.path = Path::new(config, attr);
        self.responder.set_max_dest_rd_atomic(attr.max_dest_rd_atomic.unwrap_or_default());
        self.responder.admit(None, &self.path);
        self.requester.update(&self.path);
        self.requester.posted();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_the_way() {
        for (i, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, i);
            for flags in 0..16 {
                let head = Head {
                    op,
                    flags,
                    dest: Qpn::new(0xab_cdef),
                    number: 0x1234,
                    done: 0xfedc,
                    extra: 0x8765_4321,
                };
                let mut bytes = [0; HEAD_BYTES];
                head.write(&mut bytes);
                assert_eq!(Head::read(&bytes), Some((head, &[][..])));
                assert_eq!(dest_of(&bytes), Some(head.dest));
            }
        }
        assert_eq!(Head::read(&[0; HEAD_BYTES - 1]), None);
    }
}
