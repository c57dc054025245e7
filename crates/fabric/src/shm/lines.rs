//! The fast path of small messages: one cache line each, from a link's name straight to its ring and back.
//!
//! The fast path handles the common case only: a link that is up, a ring with room, a message in one line. It leaves
//! every other case unchanged to [`send_messages`](ShmFabric::send_messages) and [`recv_all`](ShmFabric::recv_all).
#![allow(unsafe_code)] // one contract that is handed on

use super::counters::Counters;
use super::fabric::ShmFabric;
use super::grant::LinkId;
use super::link::{Link, Stage, send_wake};
use super::memory::{LINE, LineView};
use super::peer::PeerName;
use super::ring::{Line, Peeked, halves, pair};

/// The bytes of data in a line, behind the ring's word and a head of three words.
pub const LINE_DATA_BYTES: usize = 48;
/// Bytes of a message's head.
const HEAD_BYTES: usize = 12;
/// The word of a line in which the data begin.
const DATA_WORD: usize = 2;
const _: () = assert!(DATA_WORD * 8 + LINE_DATA_BYTES == LINE);

/// A message that fits into one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineMessage {
    line: Line,
    len: usize,
}

impl LineMessage {
    /// A message of `len` bytes of data, all zeros.
    #[inline]
    pub fn new(head: [u32; 3], len: usize) -> Self {
        debug_assert!(len <= LINE_DATA_BYTES);
        let mut line = [0; 8];
        (line[0], line[1]) = (pair(0, head[0]), pair(head[1], head[2]));
        Self { line, len }
    }
    /// The message's data, for writing.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.line[2..])[..self.len]
    }
}

/// The data of a message in a peer's ring, which the peer may change: it is copied out once.
pub struct LineData<'a> {
    line: LineView<'a>,
    len: usize,
}

impl LineData<'_> {
    /// The number of bytes.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.len
    }
    /// Copies the data to its receiver's memory.
    ///
    /// # Safety
    /// That of [`hca_dma::store`], for as many bytes from `to`.
    #[inline(always)]
    pub unsafe fn place(self, to: *mut u8) {
        // SAFETY: our caller's; no ring is memory that a program is given.
        unsafe { self.line.copy_to::<DATA_WORD>(to, self.len) }
    }
}

/// A ring with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found(u32);

/// The messages that [`ShmFabric::take_lines`] took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// The number of taken messages.
    pub taken: usize,
    /// Whether [`ShmFabric::recv_all`] has work.
    pub other: bool,
}

/// A receiver of messages of one line.
pub trait LineSink {
    /// Takes a message of this link, given the words of its head and its data. `false`: the receiver did nothing, and
    /// wants the message by the general path.
    fn line(&mut self, from: LinkId, head: [u32; 3], data: LineData<'_>) -> bool;
}

/// A sender of messages of one line to one peer.
pub struct LineTx<'a> {
    link: &'a mut Link,
    counters: &'a mut Counters,
    local: &'a PeerName,
    sent: u64,
}

impl LineTx<'_> {
    /// Sends a message; afterwards only head and data of `message` are valid. `false`: the caller has to send the
    /// message by the general path.
    #[inline(always)]
    pub fn push(&mut self, message: &mut LineMessage) -> bool {
        let pushed = self.link.tx.push_line(&mut message.line, HEAD_BYTES + message.len);
        self.sent += u64::from(pushed);
        pushed
    }
    /// Calls the peer if it does not poll; to be called after the last message.
    #[inline]
    pub fn call(self) {
        let Self { link, counters, local, sent } = self;
        counters.tx_messages_quick += sent;
        if sent > 0 {
            counters.note_call(link.call_if_due(|socket| send_wake(socket, *local)));
        }
    }
}

impl ShmFabric {
    /// The fast path to a peer; `None` if it is not available.
    #[inline(always)]
    pub fn line_tx(&mut self, to: LinkId) -> Option<LineTx<'_>> {
        let link = self.links.named_mut(to.token())?;
        if !matches!(link.stage, Stage::Up(_)) {
            return None;
        }
        Some(LineTx { link, counters: &mut self.counters, local: &self.own.local, sent: 0 })
    }

    /// Polls the rings, and names one with a message. If several have messages, each call names another one, a ring whose
    /// producer has called before the others. `None`: no polled ring has a message.
    #[inline(always)]
    pub fn look(&mut self) -> Option<Found> {
        if self.is_blind() {
            return None;
        }
        let &[slot] = &self.rounds.polled[..] else { return self.look_at_many() };
        self.links.get(slot)?.rx.as_ref()?.has_record().then_some(Found(slot))
    }
    #[inline(never)]
    fn look_at_many(&mut self) -> Option<Found> {
        if self.doorbells.rung() {
            self.rounds.look_at = self.rounds.polled.len();
            self.answer_calls();
            self.park_surplus();
        }
        let count = self.rounds.polled.len();
        for _ in 0..count {
            if self.rounds.look_at >= count {
                self.rounds.look_at = 0;
            }
            let slot = self.rounds.polled[self.rounds.look_at];
            self.rounds.look_at += 1;
            if let Some(Link { rx: Some(rx), .. }) = self.links.get(slot)
                && rx.has_record()
            {
                return Some(Found(slot));
            }
        }
        None
    }

    /// Takes messages of one line from a ring, at most `max`, up to the first record of another kind. Records that no
    /// correct peer writes are left to [`recv_all`](Self::recv_all).
    #[inline(never)]
    pub fn take_lines<S: LineSink>(&mut self, Found(slot): Found, max: usize, sink: &mut S) -> Lines {
        let mut found = Lines { taken: 0, other: false };
        let Some(link) = self.links.get_mut(slot) else { return found };
        let from = LinkId::new(link.token(slot));
        let Some(rx) = &mut link.rx else { return found };
        let counters = &mut self.counters;
        loop {
            let Peeked::Line(len, line) = rx.peek_line() else {
                found.other = rx.has_record();
                break;
            };
            let ([_, first], [second, third]) = (halves(line.word::<0>()), halves(line.word::<1>()));
            if !sink.line(from, [first, second, third], LineData { line, len: len - HEAD_BYTES }) {
                found.other = true;
                break;
            }
            rx.pass_line();
            found.taken += 1;
            if found.taken == max || !rx.has_record() {
                break;
            }
        }
        if found.taken > 0 {
            link.last_input = self.now;
            counters.rx_messages_quick += found.taken as u64;
            let local = self.own.local;
            counters.note_call(link.call_for_credits(|socket| send_wake(socket, local)));
        }
        found
    }
    /// Whether there is work outside of rings.
    #[inline(always)]
    pub fn is_called(&self) -> bool {
        self.doorbells.rung() || self.rounds.ended > 0
    }
}
