//! The trace of a run: a hash of all events, and the last events as text.

use core::fmt;
use std::collections::VecDeque;
use std::panic::catch_unwind;

use hca_core::wire::{Bth, Opcode};
use hca_core::{Completion, Instant, Psn, Qpn};

use crate::checker::fingerprint;

/// Events that a violation shows.
const KEPT: usize = 60;

/// A packet, as events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTag {
    /// The number of the frame; copies have the same number.
    pub id: u64,
    /// Sending node.
    pub from: usize,
    /// Receiving node.
    pub to: usize,
    /// Operation code.
    pub opcode: Opcode,
    /// Destination queue pair.
    pub qpn: Qpn,
    /// The packet sequence number.
    pub psn: Psn,
    /// Bytes from BTH to ICRC.
    pub len: usize,
    /// A digest of the bytes, without virtual addresses in RETH and AtomicETH, which differ from run to run.
    pub digest: u32,
}

impl FrameTag {
    pub(crate) fn new(id: u64, from: usize, to: usize, bytes: &[u8]) -> Self {
        let mut tag = Self {
            id,
            from,
            to,
            opcode: Opcode::new(0),
            qpn: Qpn::new(0),
            psn: Psn::new(0),
            len: bytes.len(),
            digest: 0,
        };
        if let Some(head) = bytes.get(..Bth::BYTES) {
            tag.opcode = Opcode::new(head[0]);
            tag.qpn = Qpn::new(u32::from_be_bytes([0, head[5], head[6], head[7]]));
            tag.psn = Psn::new(u32::from_be_bytes([0, head[9], head[10], head[11]]));
        }
        tag.digest = match tag.opcode.layout().map(|l| usize::from(l.reth.max(l.atomic))) {
            Some(va) if va > 0 && bytes.len() >= va + 12 => {
                let rest = &bytes[va + 8..bytes.len() - 4];
                (fingerprint(&bytes[..va], 0) ^ fingerprint(rest, 1)) as u32
            }
            _ => bytes.last_chunk::<4>().map_or(0, |c| u32::from_le_bytes(*c)),
        };
        tag
    }
}

impl fmt::Display for FrameTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, from, to, opcode, qpn, psn, len, .. } = self;
        write!(f, "frame {id} n{from}>n{to} {opcode:?} qp {qpn} psn {psn} {len} B")
    }
}

/// The reason why a frame did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Loss {
    /// The link's loss rate.
    Random,
    /// The link's queue was full.
    QueueFull,
    /// The link is cut.
    Partition,
    /// No adapter is at the address: it crashed, or never existed.
    NoAdapter,
    /// The adapter's receive buffer was full.
    BufferFull,
    /// The ICRC or the length is wrong.
    Corrupt,
}

/// An event of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A frame left an adapter.
    Sent(FrameTag),
    /// A frame was lost.
    Lost(FrameTag, Loss),
    /// A second copy of a frame is on its way.
    Duplicated(FrameTag),
    /// A frame was held back so that later ones may pass it.
    HeldBack(FrameTag),
    /// Bits of a frame were changed.
    Corrupted(FrameTag),
    /// A frame got the mark "congestion experienced".
    Marked(FrameTag),
    /// A frame reached the buffer of an adapter.
    Arrived(FrameTag),
    /// A node was cut from another, one way.
    Cut(usize, usize),
    /// The cut between two nodes healed, one way.
    Healed(usize, usize),
    /// A node's adapter opened.
    Opened(usize),
    /// A node crashed.
    Crashed(usize),
    /// A node stands still.
    Stalled(usize),
    /// A node moves again.
    Resumed(usize),
    /// A node polled its neighbours' writes to shared memory.
    Looked(usize),
    /// A completion was polled at a node.
    Completed(usize, Completion),
    /// A task ran.
    Polled(usize),
    /// A note of a program.
    Note(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sent(t) => write!(f, "sent        {t}"),
            Self::Lost(t, why) => write!(f, "lost        {t} ({why:?})"),
            Self::Duplicated(t) => write!(f, "duplicated  {t}"),
            Self::HeldBack(t) => write!(f, "held back   {t}"),
            Self::Corrupted(t) => write!(f, "corrupted   {t}"),
            Self::Marked(t) => write!(f, "marked CE   {t}"),
            Self::Arrived(t) => write!(f, "arrived     {t}"),
            Self::Cut(a, b) => write!(f, "cut         n{a}>n{b}"),
            Self::Healed(a, b) => write!(f, "healed      n{a}>n{b}"),
            Self::Opened(n) => write!(f, "opened      n{n}"),
            Self::Crashed(n) => write!(f, "crashed     n{n}"),
            Self::Stalled(n) => write!(f, "stalled     n{n}"),
            Self::Resumed(n) => write!(f, "resumed     n{n}"),
            Self::Looked(n) => write!(f, "looked      n{n}"),
            Self::Completed(n, c) => write!(
                f,
                "completed   n{n} qp {} wr {} {:?} {:?} {} B",
                c.qp, c.wr_id, c.opcode, c.status, c.byte_len
            ),
            Self::Polled(t) => write!(f, "polled      task {t}"),
            Self::Note(s) => write!(f, "note        {s}"),
        }
    }
}

/// A hash of every event, and the last of them.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    count: u64,
    last: VecDeque<(Instant, Event)>,
    print: bool,
}

impl Trace {
    pub(crate) fn new(print: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, count: 0, last: VecDeque::with_capacity(KEPT), print }
    }
    pub(crate) fn set_print(&mut self, print: bool) {
        self.print = print;
    }
    /// Prints what is no event: it does not count.
    pub(crate) fn say(&mut self, at: Instant, text: &str) {
        self.print(at, &text);
    }
    /// Prints, as tests capture it, and nothing more where that can't be done: it is no event of the run.
    fn print(&mut self, at: Instant, what: &dyn fmt::Display) {
        if self.print {
            let line = format!("{:>14} {what}", Micros(at).to_string());
            self.print = catch_unwind(|| println!("{line}")).is_ok();
        }
    }
    pub(crate) fn prints(&self) -> bool {
        self.print
    }
    fn word(&mut self, w: u64) {
        self.hash = (self.hash.rotate_left(5) ^ w).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    fn tag(&mut self, kind: u64, t: &FrameTag) {
        self.word(kind | (t.len as u64) << 8 | (t.from as u64) << 40 | (t.to as u64) << 48);
        self.word(t.id << 32 | u64::from(t.digest));
    }
    pub(crate) fn add(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.word(at.as_nanos());
        match &event {
            Event::Sent(t) => self.tag(1, t),
            Event::Lost(t, why) => self.tag(2 | (*why as u64) << 4, t),
            Event::Duplicated(t) => self.tag(3, t),
            Event::HeldBack(t) => self.tag(4, t),
            Event::Corrupted(t) => self.tag(5, t),
            Event::Marked(t) => self.tag(6, t),
            Event::Arrived(t) => self.tag(7, t),
            Event::Cut(a, b) => self.word(8 | (*a as u64) << 8 | (*b as u64) << 32),
            Event::Healed(a, b) => self.word(9 | (*a as u64) << 8 | (*b as u64) << 32),
            Event::Opened(n) => self.word(10 | (*n as u64) << 8),
            Event::Crashed(n) => self.word(11 | (*n as u64) << 8),
            Event::Stalled(n) => self.word(12 | (*n as u64) << 8),
            Event::Resumed(n) => self.word(13 | (*n as u64) << 8),
            Event::Completed(n, c) => {
                self.word(14 | (*n as u64) << 8 | (c.status as u64) << 32 | (c.opcode as u64) << 40);
                self.word(c.wr_id);
                self.word(u64::from(c.byte_len) << 32 | u64::from(c.qp.index));
            }
            Event::Looked(n) => self.word(16 | (*n as u64) << 8),
            Event::Polled(t) => self.word(15 | (*t as u64) << 8),
            Event::Note(s) => {
                for chunk in s.as_bytes().chunks(8) {
                    let mut w = [0; 8];
                    w[..chunk.len()].copy_from_slice(chunk);
                    self.word(u64::from_le_bytes(w));
                }
            }
        }
        self.print(at, &event);
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back((at, event));
    }
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
    pub(crate) fn last(&self) -> Vec<String> {
        self.last.iter().map(|(at, e)| format!("{:>14} {e}", Micros(*at).to_string())).collect()
    }
}

/// A time in microseconds, for people.
pub(crate) struct Micros(pub(crate) Instant);
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_nanos();
        write!(f, "{}.{:03} us", ns / 1000, ns % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_tells_the_order_and_the_time_of_events() {
        let run = |events: &[(u64, Event)]| {
            let mut t = Trace::new(false);
            for (at, e) in events {
                t.add(Instant::from_nanos(*at), e.clone());
            }
            t.hash()
        };
        let (a, b) = (Event::Cut(0, 1), Event::Crashed(1));
        let base = run(&[(1, a.clone()), (2, b.clone())]);
        assert_eq!(base, run(&[(1, a.clone()), (2, b.clone())]));
        assert_ne!(base, run(&[(1, b.clone()), (2, a.clone())]));
        assert_ne!(base, run(&[(1, a), (3, b)]));
    }

    #[test]
    fn only_the_last_events_are_kept() {
        let mut t = Trace::new(false);
        for n in 0..1000 {
            t.add(Instant::ZERO, Event::Opened(n));
        }
        let last = t.last();
        assert_eq!((t.count(), last.len()), (1000, KEPT));
        assert!(last[KEPT - 1].ends_with("n999"), "{}", last[KEPT - 1]);
    }
}
