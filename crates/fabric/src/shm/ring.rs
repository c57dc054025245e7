//! The ring between two processes: packets one way, credits the other.
//!
//! Each side of a link writes one piece of shared memory, its *outbox*, and only reads the peer's. An outbox
//! begins with the credit line for the ring that its owner consumes; behind it stands the ring that its owner fills.
//!
//! ```text
//! outbox   line 0   credits: lines consumed (u32), how often the consumer parked (u32); and of the ring behind it:
//!                   how often its producer asked to be called for credits (u32)
//!          line 1   unused, so that the prefetch of pairs of lines brings nothing of the ring along
//!          line 2…  the ring, a power of two of lines
//! record   line n   word (u32), then 60 bytes of the packet or message
//!          line n+1… the rest of it, 64 bytes a line
//! word     tag << 16 | kind << 13 | length in bytes
//! ```
//!
//! The producer stores the word last, with Release, and the word's tag is the number of the lap. So the consumer polls
//! the packet's own line, and no index. Bytes in the place of a word must never look like a word of this lap: if a line
//! was the middle of a longer packet in the lap before, the producer clears the line before it publishes the packet in
//! front of it. Both sides keep their indices private; the consumer returns credits every eighth of the ring.
//!
//! The consumer reads each byte of the peer once, checks it, and copies it out before any other code uses it. Of a
//! message of one line on the fast path (`lines`) the head is read as numbers, and the data is copied straight to its
//! destination.
//!
//! **Parking.** A consumer that stops polling a ring raises the count in its credit line, runs a barrier on every
//! process ([`Barrier`]), and polls the ring once more. A producer reads the count after every batch; if it finds a new
//! count, it has to call the consumer once by other means ([`Producer::call_due`]).
//!
//! **A full ring.** A producer that found its ring full and is about to sleep asks for a call in the same way: it
//! raises a count, runs the barrier, and reads the credits once more. A consumer reads the count whenever it returns
//! credits, and calls the producer once when it finds a new count ([`Consumer::call_due`]).

use super::memory::{LINE, LineView, Lines, OwnLines, PeerWord, Segment, Window};
#[cfg(not(loom))]
use crate::glance::{Glance, InputWord};
use crate::sync::{Ordering, fence};

/// Where the consumer of the other ring says how many lines it has consumed.
const CREDIT_AT: usize = 0;
/// Where it says how often it has parked.
const PARK_AT: usize = 4;
/// Where the producer of the ring says how often it asked to be called for credits.
const WANT_AT: usize = 8;
/// Where the ring begins.
const RING_AT: usize = 2 * LINE;
/// Bytes of a packet that stand in its first line.
pub(super) const FIRST_BYTES: usize = LINE - 4;
/// Bytes of a record at most: headers, the largest path MTU, attributes.
pub(super) const MAX_RECORD: usize = 4096 + 124;
/// Bytes of a packet at least: a BTH.
const MIN_PACKET: usize = 12;
/// Lines of the longest record.
#[cfg(not(loom))]
const MAX_LINES: u32 = lines_of(MAX_RECORD);
/// Lines of a ring at least.
#[cfg(not(any(loom, miri)))]
pub(super) const MIN_RING_LINES: u32 = 1 << 10;
/// Small, so that the exploration ends.
#[cfg(loom)]
pub(super) const MIN_RING_LINES: u32 = 2;
/// Small, as miri is slow.
#[cfg(miri)]
pub(super) const MIN_RING_LINES: u32 = 1 << 7;
/// Lines of a ring at most: 64 MiB.
pub(super) const MAX_RING_LINES: u32 = 1 << 20;
const LEN_BITS: u32 = 13;
const LEN_MASK: u32 = (1 << LEN_BITS) - 1;
const KIND_MASK: u32 = 7;
const TAG_SHIFT: u32 = 16;

const _: () = assert!(MAX_RECORD <= LEN_MASK as usize);
#[cfg(not(any(loom, miri)))]
const _: () = assert!(MAX_LINES < MIN_RING_LINES / 8);

const fn lines_of(record: usize) -> u32 {
    1 + (record.saturating_sub(FIRST_BYTES)).div_ceil(LINE) as u32
}

/// The tag of the lap behind the one of this tag; 0 is none, as fresh memory holds it.
const fn next_tag(tag: u32) -> u32 {
    if tag == 0xffff { 1 } else { tag + 1 }
}
const fn previous_tag(tag: u32) -> u32 {
    if tag == 1 { 0xffff } else { tag - 1 }
}

/// Bytes of an outbox with a ring of so many lines.
#[cfg(not(loom))]
pub(super) const fn outbox_bytes(lines: u32) -> usize {
    (RING_AT + lines as usize * LINE).next_multiple_of(4096)
}

/// The peer wrote what no peer of this kind writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Garbage {
    /// The word of a packet.
    #[error("invalid first word {word:#010x} in lap {tag}")]
    Word { word: u32, tag: u32 },
    /// The credits.
    #[error("{credits} lines consumed, outside of {from} to {to}")]
    Credits { credits: u32, from: u32, to: u32 },
}

/// IP header fields that travel with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attributes {
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

impl Attributes {
    const HOPS: u8 = 64;
    const NONE: Self = Self { traffic_class: 0, hop_limit: Self::HOPS };
    const ECT0: Self = Self { traffic_class: 2, hop_limit: Self::HOPS };
    /// Bytes behind the packet that tell attributes which its word can't.
    const BYTES: usize = 2;

    fn kind(self) -> Kind {
        match self {
            Self::NONE => Kind::Plain,
            Self::ECT0 => Kind::Ect0,
            _ => Kind::Told,
        }
    }
}

/// How a record tells its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain = 1,
    Ect0 = 2,
    Told = 3,
    /// It is no packet and has none.
    Message = 4,
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A packet.
    Packet(Attributes),
    /// A message of one adapter's queue pair to another's.
    Message,
}

/// A line of a ring: the ring's word, a message's head of three words, and 48 bytes of data.
pub(super) type Line = [u64; LINE / 8];

/// What stands next in a ring.
pub(super) enum Peeked<'a> {
    Nothing,
    /// A message that one line takes, and its length.
    Line(usize, LineView<'a>),
    Other,
}

/// The two words of four bytes that stand in one of eight.
#[inline]
pub(super) fn halves(word: u64) -> [u32; 2] {
    bytemuck::cast(word)
}
/// Two words of four bytes as they stand in one of eight.
#[inline]
pub(super) fn pair(first: u32, second: u32) -> u64 {
    bytemuck::cast([first, second])
}

/// How a process makes sure that another one's stores and loads are in order, without a fence of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Barrier {
    /// Who parks has every processor of every process run one, by `membarrier`.
    #[cfg(not(loom))]
    System,
    /// Both run a fence of their own.
    Fence,
}

impl Barrier {
    /// On the side that parks: behind its store, before it looks again.
    pub(super) fn on_parking(self) {
        match self {
            #[cfg(not(loom))]
            Self::System => {
                use rustix::thread::{MembarrierCommand, membarrier};
                // SeqCst for what is on this processor; the call reaches the others.
                fence(Ordering::SeqCst);
                if membarrier(MembarrierCommand::GlobalExpedited).is_err() {
                    // Out of memory for a moment. The slow one needs none.
                    let _ = membarrier(MembarrierCommand::Global);
                }
            }
            Self::Fence => fence(Ordering::SeqCst),
        }
    }
    /// On the side that shows: behind its store, before it reads the parking side's word.
    #[inline]
    pub(super) fn on_showing(self) {
        match self {
            #[cfg(not(loom))]
            Self::System => core::sync::atomic::compiler_fence(Ordering::SeqCst),
            Self::Fence => fence(Ordering::SeqCst),
        }
    }
}

/// The reason why a packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The ring is full.
    Full,
    /// The peer's credits are impossible.
    Garbage(Garbage),
}

impl From<Garbage> for Refusal {
    fn from(g: Garbage) -> Self {
        Self::Garbage(g)
    }
}

/// The side that fills a ring.
pub(super) struct Producer {
    out: Segment,
    ring: OwnLines,
    /// In the consumer's outbox, its credits and how often it parked; none until it is known.
    consumer: Option<[PeerWord; 2]>,
    barrier: Barrier,
    lines: u32,
    /// Lines filled, and lines consumed as last seen; both run free.
    tail: u32,
    head: u32,
    /// The tag of the lap that `tail` is in.
    tag: u32,
    /// A bit a line: the middle of a longer packet was written to it last.
    middle: Box<[u64]>,
    /// Whether any bit may be set.
    has_middles: bool,
    /// The count of parkings that a call was made for.
    called: u32,
    /// How often it asked for a call, and what was consumed when it did so last.
    wants: u32,
    asked_at: Option<u32>,
    /// The length of the record that room was made for, and where it stands if not in the ring.
    reserved: usize,
    aside: Vec<u8>,
}

impl Producer {
    /// Over an outbox of ours, which is all zeros.
    pub(super) fn new(out: Segment, lines: u32, barrier: Barrier) -> Self {
        assert!(lines.is_power_of_two() && (MIN_RING_LINES..=MAX_RING_LINES).contains(&lines));
        let middle = vec![0; lines.div_ceil(64) as usize].into_boxed_slice();
        Self {
            ring: out.lines(RING_AT, lines),
            out,
            consumer: None,
            barrier,
            lines,
            tail: 0,
            head: 0,
            tag: 1,
            middle,
            has_middles: false,
            called: 0,
            wants: 0,
            asked_at: None,
            reserved: 0,
            aside: Vec::new(),
        }
    }
    /// The consumer has been met.
    pub(super) fn link(&mut self, credits: &Window, barrier: Barrier) {
        self.consumer = Some([CREDIT_AT, PARK_AT].map(|at| credits.word_at(at)));
        self.barrier = barrier;
    }
    /// Lines filled and not known to be consumed.
    pub(super) fn unconsumed(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }
    #[inline]
    fn line(&self, index: u32) -> usize {
        RING_AT + (index & (self.lines - 1)) as usize * LINE
    }

    /// Looks how far the consumer has come. `true`: farther than before.
    pub(super) fn refresh(&mut self) -> Result<bool, Garbage> {
        let Some([credits, _]) = &self.consumer else { return Ok(false) };
        // Acquire: pairs with the Release in `Consumer::give_credits`.
        let credits = credits.load(Ordering::Acquire);
        if credits.wrapping_sub(self.head) > self.unconsumed() {
            return Err(Garbage::Credits { credits, from: self.head, to: self.tail });
        }
        let moved = credits != self.head;
        self.head = credits;
        Ok(moved)
    }

    /// Asks the consumer of this ring, which is full, to call when it gives credits. `true`: it was not asked before,
    /// so [`Barrier::on_parking`] is due, and one more look at the credits.
    pub(super) fn ask_for_call(&mut self) -> bool {
        if self.asked_at.replace(self.head) == Some(self.head) {
            return false;
        }
        self.wants = self.wants.wrapping_add(1);
        self.out.word(WANT_AT).store(self.wants, Ordering::Release);
        true
    }

    /// Shows a packet to the consumer; returns the lines that it takes.
    ///
    /// # Panics
    /// If the packet is shorter than 12 bytes or longer than a path MTU with headers.
    #[inline]
    pub(super) fn push(&mut self, attributes: Attributes, packet: &[u8]) -> Result<u32, Refusal> {
        let kind = attributes.kind();
        let told = if kind == Kind::Told { Attributes::BYTES } else { 0 };
        let (to, rest) = self.reserve(packet.len() + told)?.split_at_mut(packet.len());
        to.copy_from_slice(packet);
        if told > 0 {
            rest.copy_from_slice(&[attributes.traffic_class, attributes.hop_limit]);
        }
        Ok(self.commit(kind))
    }

    /// Room for a record of so many bytes, with whatever is in it: every one is to be written, and
    /// [`commit_message`](Self::commit_message) then shows it. Another one takes its place.
    ///
    /// # Panics
    /// If the record is shorter than 12 bytes or longer than a path MTU with headers.
    #[inline]
    pub(super) fn reserve(&mut self, len: usize) -> Result<&mut [u8], Refusal> {
        assert!((MIN_PACKET..=MAX_RECORD).contains(&len), "a record of {len} bytes");
        let lines = lines_of(len);
        // One more: the line behind the record may have to be cleared.
        if self.lines - self.unconsumed() <= lines {
            self.refresh()?;
            if self.lines - self.unconsumed() <= lines {
                return Err(Refusal::Full);
            }
        }
        if self.reserved > 0 {
            // What it was given was written to perhaps, and is shown to nobody.
            self.set_middle(self.tail.wrapping_add(1), lines_of(self.reserved) - 1, true);
        }
        self.reserved = len;
        #[cfg(not(loom))]
        if !self.reaches_across_the_end(len) {
            let at = self.line(self.tail) + 4;
            return Ok(self.out.bytes_mut(at, len));
        }
        self.aside.resize(len, 0);
        Ok(&mut self.aside)
    }

    /// Shows the message that room was made for; returns the lines that it takes.
    #[inline]
    pub(super) fn commit_message(&mut self) -> u32 {
        self.commit(Kind::Message)
    }

    /// Whether a record here does not stand in one piece. Under loom none does, whose memory is words.
    #[inline]
    fn reaches_across_the_end(&self, len: usize) -> bool {
        cfg!(loom) || self.line(self.tail) + 4 + len > RING_AT + self.lines as usize * LINE
    }

    #[inline]
    fn commit(&mut self, kind: Kind) -> u32 {
        let len = core::mem::take(&mut self.reserved);
        assert!(len > 0, "room was made");
        let lines = lines_of(len);
        let at = self.line(self.tail);
        if self.reaches_across_the_end(len) {
            self.store_aside(at, len);
        }
        if lines > 1 {
            self.set_middle(self.tail.wrapping_add(1), lines - 1, true);
        }
        let next = self.tail.wrapping_add(lines);
        if self.was_middle(next) {
            // Ordered before the word below by its Release.
            self.out.word(self.line(next)).store(0, Ordering::Relaxed);
            self.set_middle(next, 1, false);
        }
        let word = self.tag << TAG_SHIFT | (kind as u32) << LEN_BITS | len as u32;
        // Release: pairs with the Acquire in `Consumer::word`.
        self.out.word(at).store(word, Ordering::Release);
        self.move_to(next);
        lines
    }

    /// Shows a message that one line takes, of `len` bytes from the line's fifth byte on. `false`: there is no room
    /// now, or a look at the long way is due.
    #[inline(always)]
    pub(super) fn push_line(&mut self, line: &mut Line, len: usize) -> bool {
        debug_assert!((MIN_PACKET..=FIRST_BYTES).contains(&len));
        // One more: the line behind it may have to be cleared.
        let room = self.lines - self.unconsumed() > 1 || matches!(self.refresh(), Ok(true));
        if !room || self.reserved > 0 {
            return false;
        }
        let next = self.tail.wrapping_add(1);
        if self.was_middle(next) {
            // Ordered before the word below by its Release.
            self.ring.word(next).store(0, Ordering::Relaxed);
            self.set_middle(next, 1, false);
        }
        let word = self.tag << TAG_SHIFT | (Kind::Message as u32) << LEN_BITS | len as u32;
        line[0] = pair(word, halves(line[0])[1]);
        // Pairs with the Acquire in `Consumer::peek_line`.
        self.ring.store(self.tail, line, len <= 3 * 8 - 4);
        self.move_to(next);
        true
    }

    #[inline]
    fn move_to(&mut self, next: u32) {
        if (next ^ self.tail) & self.lines != 0 {
            self.tag = next_tag(self.tag);
        }
        self.tail = next;
    }

    /// Brings a record that was written elsewhere into the ring: its first line, and the rest behind it, or from the
    /// ring's beginning on.
    #[cold]
    fn store_aside(&mut self, at: usize, len: usize) {
        let (first, rest) = self.aside[..len].split_at(len.min(FIRST_BYTES));
        self.out.store(at + 4, first);
        let second = self.line(self.tail.wrapping_add(1));
        let fits = rest.len().min(RING_AT + self.lines as usize * LINE - second);
        self.out.store(second, &rest[..fits]);
        self.out.store(RING_AT, &rest[fits..]);
    }

    #[inline]
    fn was_middle(&self, index: u32) -> bool {
        if !self.has_middles {
            return false;
        }
        let i = index & (self.lines - 1);
        self.middle[(i / 64) as usize] >> (i % 64) & 1 != 0
    }
    fn set_middle(&mut self, from: u32, count: u32, on: bool) {
        self.has_middles |= on;
        let mut i = from & (self.lines - 1);
        let mut left = count;
        while left > 0 {
            let bits = left.min(64 - i % 64).min(self.lines - i);
            let mask = (u64::MAX >> (64 - bits)) << (i % 64);
            let word = &mut self.middle[(i / 64) as usize];
            *word = if on { *word | mask } else { *word & !mask };
            left -= bits;
            i = (i + bits) & (self.lines - 1);
        }
    }

    /// Whether the consumer has parked and was not called since: to be asked behind the last packet of a batch.
    /// Who is told so calls.
    #[inline(always)]
    pub(super) fn call_due(&mut self) -> bool {
        let Some([_, parked]) = &self.consumer else { return false };
        self.barrier.on_showing();
        let parked = parked.load(Ordering::Acquire);
        if parked == self.called {
            return false;
        }
        self.called = parked;
        true
    }
}

/// Whether a record with this tag stands in the line of this index.
#[inline(always)]
pub(super) fn has_record(ring: &Lines, index: u32, tag: u32) -> bool {
    ring.word(index, Ordering::Relaxed) >> TAG_SHIFT == tag
}

/// A record, copied out of the ring.
#[repr(align(64))]
pub(super) struct Record {
    bytes: [u8; 4 + MAX_RECORD.next_multiple_of(LINE)],
    len: usize,
}

impl Record {
    pub(super) fn new() -> Self {
        Self { bytes: [0; 4 + MAX_RECORD.next_multiple_of(LINE)], len: 0 }
    }
    /// The packet, from BTH to padding.
    #[inline]
    pub(super) fn packet(&self) -> &[u8] {
        &self.bytes[4..4 + self.len]
    }
}

/// The side that empties a ring.
pub(super) struct Consumer {
    /// The producer's outbox.
    from: Window,
    ring: Lines,
    /// Our own, with the credits that we give.
    own: Segment,
    lines: u32,
    /// Lines consumed, which runs free.
    head: u32,
    /// What of them the producer was told.
    told: u32,
    tag: u32,
    parked: u32,
    /// Something was consumed since it parked last, so the producer may have called for that already.
    stirred: bool,
    barrier: Barrier,
    /// The count of the producer's wishes to be called, as it was last seen, and whether one was not fulfilled.
    wants: u32,
    wanted: bool,
}

impl Consumer {
    pub(super) fn new(from: Window, own: Segment, lines: u32, barrier: Barrier) -> Self {
        assert!(lines.is_power_of_two() && (MIN_RING_LINES..=MAX_RING_LINES).contains(&lines));
        Self {
            ring: from.lines(RING_AT, lines),
            from,
            own,
            lines,
            head: 0,
            told: 0,
            tag: 1,
            parked: 0,
            stirred: true,
            barrier,
            wants: 0,
            wanted: false,
        }
    }
    #[inline]
    fn line(&self, index: u32) -> usize {
        RING_AT + (index & (self.lines - 1)) as usize * LINE
    }
    /// The word of the next packet, if it is there.
    #[inline]
    fn word(&self) -> Result<Option<u32>, Garbage> {
        // Acquire: pairs with the Release in `Producer::push_record`.
        let word = self.from.word(self.line(self.head), Ordering::Acquire);
        if word >> TAG_SHIFT == self.tag {
            return Ok(Some(word));
        }
        // What an honest producer leaves there: nothing, or the packet of the lap before.
        if word == 0 || word >> TAG_SHIFT == previous_tag(self.tag) {
            return Ok(None);
        }
        Err(Garbage::Word { word, tag: self.tag })
    }
    /// Whether there is something to take, be it garbage.
    #[inline]
    pub(super) fn has_input(&self) -> bool {
        !matches!(self.word(), Ok(None))
    }

    /// Takes the next record out; returns what it is and how many lines it took, or that there is none.
    #[inline]
    pub(super) fn take(&mut self, record: &mut Record) -> Result<Option<(What, u32)>, Garbage> {
        let Some(word) = self.word()? else { return Ok(None) };
        let len = (word & LEN_MASK) as usize;
        if !(MIN_PACKET..=MAX_RECORD).contains(&len) {
            return Err(Garbage::Word { word, tag: self.tag });
        }
        let lines = lines_of(len);
        let (first, rest) = record.bytes.split_first_chunk_mut::<LINE>().expect("it is longer");
        self.from.load_line(self.line(self.head), first);
        if lines > 1 {
            self.load_rest(&mut rest[..len - FIRST_BYTES]);
        }
        record.len = len;
        let what = match word >> LEN_BITS & KIND_MASK {
            k if k == Kind::Message as u32 => What::Message,
            k if k == Kind::Ect0 as u32 => What::Packet(Attributes::ECT0),
            k if k == Kind::Plain as u32 => What::Packet(Attributes::NONE),
            k if k == Kind::Told as u32 && len >= MIN_PACKET + Attributes::BYTES => {
                record.len -= Attributes::BYTES;
                let &[traffic_class, hop_limit] =
                    record.bytes[4 + record.len..].first_chunk().expect("they were counted");
                What::Packet(Attributes { traffic_class, hop_limit })
            }
            _ => return Err(Garbage::Word { word, tag: self.tag }),
        };
        self.move_on(lines);
        Ok(Some((what, lines)))
    }

    /// The record was taken.
    #[inline]
    fn move_on(&mut self, lines: u32) {
        let next = self.head.wrapping_add(lines);
        if (next ^ self.head) & self.lines != 0 {
            self.tag = next_tag(self.tag);
        }
        self.head = next;
        self.stirred = true;
        if next.wrapping_sub(self.told) >= self.lines / 8 {
            self.give_credits();
        }
    }

    /// Whether a record is there, unless it is garbage.
    #[inline(always)]
    pub(super) fn has_record(&self) -> bool {
        has_record(&self.ring, self.head, self.tag)
    }
    /// Brings a glance to where the next record will stand. `false`: one stands there.
    #[cfg(not(loom))]
    #[inline]
    pub(super) fn renew_glance(&self, glance: &mut Glance, others: impl FnOnce() -> InputWord) -> bool {
        let word = self.ring.word(self.head, Ordering::Relaxed);
        let is_quiet = word >> TAG_SHIFT != self.tag;
        if is_quiet {
            self.ring.glance(self.head, word, glance, others);
        }
        is_quiet
    }
    /// Looks at the next record. A line stays where it is until [`pass_line`](Self::pass_line), and whatever else
    /// stands there is for [`take`](Self::take).
    #[inline(always)]
    pub(super) fn peek_line(&self) -> Peeked<'_> {
        // Acquire: pairs with the Release in `Producer::push_line` and `Producer::commit`.
        let word = self.ring.word(self.head, Ordering::Acquire);
        let len = (word ^ (self.tag << TAG_SHIFT | (Kind::Message as u32) << LEN_BITS)) as usize;
        if !(MIN_PACKET..=FIRST_BYTES).contains(&len) {
            // What an honest producer leaves there: nothing, or the record of the lap before.
            let nothing = word == 0 || word >> TAG_SHIFT == previous_tag(self.tag);
            return if nothing { Peeked::Nothing } else { Peeked::Other };
        }
        Peeked::Line(len, self.ring.view(self.head))
    }
    /// The line was taken.
    #[inline]
    pub(super) fn pass_line(&mut self) {
        self.move_on(1);
    }

    fn load_rest(&self, out: &mut [u8]) {
        let at = self.line(self.head.wrapping_add(1));
        let fits = out.len().min(RING_AT + self.lines as usize * LINE - at);
        let (left, right) = out.split_at_mut(fits);
        self.from.load(at, left);
        self.from.load(RING_AT, right);
    }

    fn give_credits(&mut self) {
        self.told = self.head;
        // Release: what was copied out may be written over from now on.
        self.own.word(CREDIT_AT).store(self.head, Ordering::Release);
        // Pairs with the barrier behind `Producer::ask_for_call`: it sees the credits, or this its wish.
        self.barrier.on_showing();
        let wants = self.from.word(WANT_AT, Ordering::Acquire);
        self.wanted |= core::mem::replace(&mut self.wants, wants) != wants;
    }
    /// Whether the producer waits to be called for credits that it was given. Who is told so calls.
    #[inline(always)]
    pub(super) fn call_due(&mut self) -> bool {
        core::mem::take(&mut self.wanted)
    }

    /// Something called for this ring, so its producer may not do so again for this time of parking.
    pub(super) fn note_call(&mut self) {
        self.stirred = true;
    }
    /// Says that this ring is polled no more. Then [`Barrier::on_parking`] is due, and one more look.
    pub(super) fn park(&mut self) {
        if self.told != self.head {
            self.give_credits();
        }
        // A producer that has not called since the last time still will.
        if core::mem::take(&mut self.stirred) {
            self.parked = self.parked.wrapping_add(1);
            self.own.word(PARK_AT).store(self.parked, Ordering::Release);
        }
    }
    /// Whether it has parked, and consumed nothing since.
    pub(super) fn is_parked(&self) -> bool {
        !self.stirred
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
