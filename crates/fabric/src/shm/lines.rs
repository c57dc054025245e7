//! The quick way of small messages: one line each, from a link's name straight to its ring and back.
//!
//! It takes the common case only: a link that is up, a ring with room, a message in one line. All else is left to
//! [`send_messages`](ShmFabric::send_messages) and [`recv_all`](ShmFabric::recv_all), which find everything as it was.

use std::net::Ipv6Addr;

use super::counters::Counters;
use super::fabric::ShmFabric;
use super::grant::LinkId;
use super::hello::Kind;
use super::link::{Link, Stage, tell};
use super::ring::{Line, Peeked, halves, pair};

/// Bytes of data in a line, behind the ring's word and a head of three words.
pub const LINE_DATA_BYTES: usize = 48;
/// Bytes of a message's head.
const HEAD_BYTES: usize = 12;

/// A message that one line takes.
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
    /// The words of its head.
    #[inline]
    pub fn head(&self) -> [u32; 3] {
        let [[_, first], [second, third]] = [halves(self.line[0]), halves(self.line[1])];
        [first, second, third]
    }
    /// Its data.
    #[inline]
    pub fn data(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.line[2..])[..self.len]
    }
    /// Its data, to be written.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.line[2..])[..self.len]
    }
}

/// What [`ShmFabric::recv_lines`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// Messages taken.
    pub taken: usize,
    /// Something is there for [`ShmFabric::recv_all`].
    pub other: bool,
}

/// Takes messages of one line.
pub trait LineSink {
    /// A message that came by this link. `false`: nothing was done, and it is to come by the long way.
    fn line(&mut self, from: LinkId, message: &LineMessage) -> bool;
}

/// Sends messages of one line to one peer.
pub struct LineTx<'a> {
    link: &'a mut Link,
    counters: &'a mut Counters,
    local: Ipv6Addr,
    sent: u64,
}

impl LineTx<'_> {
    /// Sends a message. `false`: it is to go by the long way.
    #[inline]
    pub fn push(&mut self, mut message: LineMessage) -> bool {
        let pushed = self.link.tx.push_line(&mut message.line, HEAD_BYTES + message.len);
        self.sent += u64::from(pushed);
        pushed
    }
    /// Calls the peer if it does not poll; to be done behind the last message.
    #[inline]
    pub fn call(self) {
        let Self { link, counters, local, sent } = self;
        counters.tx_messages += sent;
        counters.tx_lines += sent;
        if link.call_if_due(|socket| tell(socket, Kind::Wake, local)) {
            counters.wakeups_sent += 1;
        }
    }
}

impl ShmFabric {
    /// The quick way to a peer; `None` where the long one is to be taken.
    #[inline]
    pub fn line_tx(&mut self, to: LinkId) -> Option<LineTx<'_>> {
        let link = self.links.named_mut(to.token())?;
        if !matches!(link.stage, Stage::Up(_)) {
            return None;
        }
        Some(LineTx { link, counters: &mut self.counters, local: self.local, sent: 0 })
    }

    /// Looks at the rings that are polled, so many times over; the place of one that has something, which is another one
    /// each time if several have. What no peer of this kind writes is left to [`recv_all`](Self::recv_all).
    #[inline]
    pub fn look(&mut self, times: u32) -> Option<u32> {
        let count = self.polled.len();
        for _ in 0..times {
            for _ in 0..count {
                if self.look_at >= count {
                    self.look_at = 0;
                }
                let slot = self.polled[self.look_at];
                self.look_at += 1;
                if let Some(Link { rx: Some(rx), .. }) = self.links.get(slot)
                    && rx.has_record()
                {
                    return Some(slot);
                }
            }
        }
        None
    }

    /// Takes messages of one line from a ring that [`look`](Self::look) found, up to `max`, until another record stands
    /// in the way.
    #[inline]
    pub fn recv_lines<S: LineSink>(&mut self, slot: u32, max: usize, sink: &mut S) -> Lines {
        let mut found = Lines { taken: 0, other: false };
        let Some(link) = self.links.get_mut(slot) else { return found };
        let from = LinkId::new(link.token(slot));
        let Some(rx) = &mut link.rx else { return found };
        let mut bytes = 0;
        while found.taken < max {
            match rx.peek_line() {
                Peeked::Nothing => break,
                Peeked::Line(len, line) if sink.line(from, &LineMessage { line, len: len - HEAD_BYTES }) => {
                    rx.pass_line();
                    found.taken += 1;
                    bytes += len;
                }
                _ => {
                    found.other = true;
                    break;
                }
            }
        }
        if found.taken > 0 {
            link.last_input = self.now;
            let (counters, taken) = (&mut self.counters, found.taken as u64);
            counters.rx_packets += taken;
            counters.rx_messages += taken;
            counters.rx_lines += taken;
            counters.rx_bytes += bytes as u64;
            counters.rx_messages_quick += taken;
        }
        found
    }
    /// Whether something else than rings is to be looked at.
    #[inline]
    pub fn is_called(&self) -> bool {
        self.bells.rung() || self.ended > 0
    }
}
