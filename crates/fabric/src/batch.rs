//! Batches of packets to send, gathered into trains: packets of equal size on one path, the last one possibly shorter.
//!
//! The packets of a train have the top byte of the destination's number in common: if processes share an address, the
//! kernel gives a whole train to one of them.

use hca_core::Qpn;
use hca_core::wire::ICRC_BYTES;

use crate::PathId;
use crate::lent::Lent;
use crate::paths::Process;

/// Segments of one train at most: what UDP_SEGMENT takes.
const MAX_SEGMENTS: usize = 64;
/// The payload of a packet that is lent is rarely shorter than this.
const LENT_BYTES: usize = 1024;
/// Bytes of one train at most: what fits one UDP datagram before it is cut.
const MAX_TRAIN_BYTES: usize = 65_000;

/// A train: consecutive packets of a [`TxBatch`] that leave on one path in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// The path of the packets.
    pub path: PathId,
    /// First byte in the batch.
    pub start: usize,
    /// Bytes, ICRCs included.
    pub len: usize,
    /// Bytes of every packet but the last, which may be shorter; ICRC included.
    pub segment: usize,
}

impl Train {
    /// The number of packets in this train.
    pub fn packets(&self) -> usize {
        if self.is_single() { 1 } else { (self.len as u32).div_ceil(self.segment as u32) as usize }
    }
    /// Whether the train is a single packet.
    #[inline]
    pub fn is_single(&self) -> bool {
        self.len == self.segment
    }
}

/// An append-only batch of packets in one buffer, with room for each ICRC, which the fabric fills in.
pub struct TxBatch {
    buf: Box<[u8]>,
    used: usize,
    trains: Vec<Train>,
    /// Trains before this index were sent.
    sent: usize,
    /// Packets that the last train still takes.
    open: usize,
    /// The process that the last train is for; unknown until a second packet asks.
    process: Process,
    /// A packet of this many bytes (ICRC included) is reserved behind `used`.
    reserved: Option<(PathId, usize)>,
    /// The payloads that lie elsewhere, in the order of their packets.
    lent: Vec<Lent>,
    /// One bit each to flip after the ICRC is on: (byte in the batch, bit).
    flips: Vec<(usize, u8)>,
}

impl TxBatch {
    /// A batch of at most `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            buf: vec![0; bytes].into_boxed_slice(),
            used: 0,
            trains: Vec::with_capacity(64),
            sent: 0,
            open: 0,
            process: Process::Unknown,
            reserved: None,
            lent: Vec::with_capacity(bytes / LENT_BYTES),
            flips: Vec::new(),
        }
    }

    /// Whether no packet waits to be sent.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sent == self.trains.len()
    }

    /// The bytes gathered since the batch was last empty, sent ones included: the offset of the next reserved packet.
    pub fn len_bytes(&self) -> usize {
        self.used
    }

    /// Reserves room for a packet of `len` bytes (BTH to padding) on `path`; `None` if the batch is full.
    #[inline]
    pub fn reserve(&mut self, path: PathId, len: usize) -> Option<&mut [u8]> {
        let total = len + ICRC_BYTES;
        if self.room() < total {
            return None;
        }
        self.reserved = Some((path, total));
        Some(&mut self.buf[self.used..self.used + len])
    }

    /// Whether a packet of `len` bytes begins a train that the end of the batch may cut short. Such a train leaves
    /// whole with the next batch; a send call for a part of it costs as much as for all.
    #[inline]
    pub fn cuts_short(&self, path: PathId, len: usize) -> bool {
        let (room, total) = (self.room(), len + ICRC_BYTES);
        room < MAX_TRAIN_BYTES && !self.joins(path, total) && self.used > 0 && room < train_bytes(total)
    }

    /// Whether a packet of `total` bytes becomes a part of the last train.
    #[inline]
    fn joins(&self, path: PathId, total: usize) -> bool {
        self.open > 0 && self.trains.last().is_some_and(|t| t.path == path && total <= t.segment)
    }

    /// The number of the queue pair that the packet at `start` is for.
    #[inline]
    fn number_at(&self, start: usize) -> Qpn {
        let [_, high, middle, low] = *self.buf[start + 4..].first_chunk().expect("a packet has a BTH");
        Qpn::new(u32::from_be_bytes([0, high, middle, low]))
    }
    /// The number of the queue pair that the first packet of a train is for.
    pub(crate) fn number(&self, train: &Train) -> Qpn {
        self.number_at(train.start)
    }
    /// Whether the packet at `start`, which has been written, and the last train are for one process.
    #[inline(always)]
    fn is_for_same_process(&mut self, start: usize) -> bool {
        if self.process == Process::Unknown {
            let first = self.trains.last().map_or(start, |t| t.start);
            self.process = Process::of(self.number_at(first));
        }
        // Each management datagram has a recipient of its own.
        Process::of(self.number_at(start)) == self.process && self.process != Process::Management
    }
    /// Has the waiting train of this index leave by another path.
    pub(crate) fn redirect(&mut self, index: usize, path: PathId) {
        self.trains[self.sent + index].path = path;
    }

    /// Appends the packet last reserved.
    ///
    /// # Panics
    /// If no packet is reserved, or it has fewer bytes than a BTH.
    #[inline]
    pub fn commit(&mut self) {
        let (path, total) = self.reserved.take().expect("a packet was reserved");
        let start = self.used;
        self.used += total;
        if self.joins(path, total) && self.is_for_same_process(start) {
            let t = self.trains.last_mut().expect("it is open");
            t.len += total;
            self.open = if total < t.segment { 0 } else { self.open - 1 };
            return;
        }
        (self.open, self.process) = (segments(total).saturating_sub(1), Process::Unknown);
        self.trains.push(Train { path, start, len: total, segment: total });
    }

    /// Appends the packet last reserved, whose `len` bytes from `at` on lie at `from`. These bytes are read when the
    /// batch is sent, or [taken in](Self::take_in). Only for a fabric that [sends in
    /// place](crate::Fabric::sends_in_place_from).
    ///
    /// # Safety
    /// Until the batch is empty or taken in, the bytes at `from` are readable, and no code writes them.
    ///
    /// # Panics
    /// If no packet is reserved, the bytes exceed the packet, or `len` is not a multiple of 4.
    #[inline]
    #[allow(unsafe_code)]
    pub unsafe fn commit_lent(&mut self, at: usize, from: *const u8, len: usize) {
        let (_, total) = self.reserved.expect("a packet was reserved");
        assert!(at + len + ICRC_BYTES == total && len.is_multiple_of(4), "{len} bytes at {at} of {total}");
        // SAFETY: our caller's.
        self.lent.push(unsafe { Lent::new(self.used + at, from, len) });
        self.commit();
    }
    /// Copies payloads that are still in the sender's memory, so that the batch no longer reads that memory.
    #[inline]
    pub fn take_in(&mut self) {
        if self.lent.is_empty() {
            return;
        }
        for lent in self.lent.drain(..) {
            let bytes = lent.bytes();
            self.buf[lent.at..lent.at + bytes.len()].copy_from_slice(bytes);
        }
    }
    /// Whether payloads lie outside of the batch's buffer.
    pub fn is_lent(&self) -> bool {
        !self.lent.is_empty()
    }
    /// The payloads of a train that lie elsewhere.
    #[inline]
    pub(crate) fn lent(&self, train: &Train) -> &[Lent] {
        lent_of(&self.lent, train)
    }
    /// The bytes of a train, and its payloads that lie elsewhere.
    pub(crate) fn parts_mut(&mut self, train: &Train) -> (&mut [u8], &[Lent]) {
        (&mut self.buf[train.start..train.start + train.len], lent_of(&self.lent, train))
    }

    /// The trains that wait to be sent, oldest first.
    pub fn trains(&self) -> &[Train] {
        &self.trains[self.sent..]
    }
    /// The bytes of a train.
    pub fn bytes(&self, train: &Train) -> &[u8] {
        &self.buf[train.start..train.start + train.len]
    }
    /// The bytes of a train, for the fabric to put the ICRCs on.
    pub fn bytes_mut(&mut self, train: &Train) -> &mut [u8] {
        &mut self.buf[train.start..train.start + train.len]
    }
    /// The number of free bytes. A packet takes [`ICRC_BYTES`] more than its transport bytes.
    pub fn room(&self) -> usize {
        self.buf.len() - self.used
    }
    /// Orders the flip of a bit in byte `offset` of the batch, after the ICRC is put on.
    pub fn flip_later(&mut self, offset: usize, bit: u8) {
        self.flips.push((offset, bit & 7));
    }
    /// A bit that is to be flipped within this range of the batch, as (offset into the range, bit).
    pub(crate) fn flip_within(&self, range: core::ops::Range<usize>) -> Option<(usize, u8)> {
        self.flips.iter().find(|f| range.contains(&f.0)).map(|&(at, bit)| (at - range.start, bit))
    }
    /// Flips the ordered bits of a train. The fabric calls this after it has put on the ICRCs, and once more to undo
    /// the flips when the train could not leave.
    #[inline]
    pub fn apply_flips(&mut self, train: &Train) {
        if self.flips.is_empty() {
            return;
        }
        let within = train.start..train.start + train.len;
        for &(at, bit) in self.flips.iter().filter(|f| within.contains(&f.0)) {
            self.buf[at] ^= 1 << bit;
        }
    }
    /// Takes the flips in the waiting trains `from .. to` back, which could not leave.
    #[inline]
    pub(crate) fn take_flips_back(&mut self, from: usize, to: usize) {
        if self.flips.is_empty() {
            return;
        }
        for at in from..to {
            let train = self.trains()[at];
            self.apply_flips(&train);
        }
    }
    /// Removes the oldest `n` waiting trains, which were sent (or lost), and empties the batch when none is left.
    pub fn advance(&mut self, n: usize) {
        if !self.flips.is_empty() {
            let gone = &self.trains[self.sent..self.sent + n];
            self.flips.retain(|f| !gone.iter().any(|t| (t.start..t.start + t.len).contains(&f.0)));
        }
        self.sent += n;
        assert!(self.sent <= self.trains.len(), "advanced past the batch's end");
        if self.is_empty() {
            self.used = 0;
            self.trains.clear();
            self.sent = 0;
            self.open = 0;
            self.lent.clear();
            self.flips.clear();
        }
    }
    /// Moves the trains for one path behind the others, of the oldest `n`, and returns how many it were.
    pub(crate) fn put_behind(&mut self, path: PathId, n: usize) -> usize {
        let trains = &mut self.trains[self.sent..][..n];
        trains.sort_by_key(|t| t.path == path);
        // The last train may no longer be the one whose bytes end the batch.
        self.open = 0;
        trains.iter().filter(|t| t.path == path).count()
    }
    /// Removes the oldest `n` packets of the oldest train, which were sent (or lost); `n` is less than the train's
    /// packets.
    ///
    /// # Panics
    /// If no train waits, or the train has no more packets than `n`.
    pub fn advance_packets(&mut self, n: usize) {
        let t = &mut self.trains[self.sent];
        let bytes = n * t.segment;
        assert!(bytes < t.len, "a whole train is advanced over by `advance`");
        let gone = t.start..t.start + bytes;
        t.start += bytes;
        t.len -= bytes;
        self.flips.retain(|f| !gone.contains(&f.0));
    }
}

/// Packets of `total` bytes that one train takes.
#[inline]
fn segments(total: usize) -> usize {
    (MAX_TRAIN_BYTES / total).min(MAX_SEGMENTS)
}

/// Their bytes.
#[inline]
fn train_bytes(total: usize) -> usize {
    segments(total) * total
}

/// The payloads of a train, among all of `lent`, which are in order.
#[inline]
fn lent_of<'a>(lent: &'a [Lent], train: &Train) -> &'a [Lent] {
    if lent.is_empty() {
        return lent;
    }
    let before = |end: usize| lent.partition_point(|l| l.at < end);
    &lent[before(train.start)..before(train.start + train.len)]
}

#[cfg(test)]
#[allow(unsafe_code)] // payloads are lent
mod tests {
    use super::*;

    fn push(b: &mut TxBatch, path: u32, len: usize) {
        let room = b.reserve(PathId(path), len).unwrap();
        room.fill(len as u8);
        room[5] = 0;
        b.commit();
    }

    #[test]
    fn a_packet_for_another_slot_begins_a_train() {
        let mut b = TxBatch::with_capacity(4096);
        for slot in [1, 1, 2, 2, 1] {
            b.reserve(PathId(1), 20).unwrap()[5..7].copy_from_slice(&[slot, 1]);
            b.commit();
        }
        assert_eq!(b.trains().iter().map(Train::packets).collect::<Vec<_>>(), [2, 2, 1]);
    }

    #[test]
    fn equal_packets_join_and_a_shorter_one_closes_the_train() {
        let mut b = TxBatch::with_capacity(4096);
        for len in [20, 20, 16, 16] {
            push(&mut b, 1, len);
        }
        let t: Vec<_> = b.trains().iter().map(|t| (t.segment, t.packets())).collect();
        assert_eq!(t, [(24, 3), (20, 1)]);
    }

    #[test]
    fn another_path_and_a_longer_packet_begin_a_train() {
        let mut b = TxBatch::with_capacity(4096);
        push(&mut b, 1, 20);
        push(&mut b, 2, 20);
        push(&mut b, 2, 24);
        assert_eq!(b.trains().len(), 3);
        b.advance(3);
        assert!(b.is_empty() && b.trains().is_empty());
    }

    #[test]
    fn trains_end_at_64_segments_and_65000_bytes() {
        let mut b = TxBatch::with_capacity(1 << 20);
        for _ in 0..65 {
            push(&mut b, 1, 20);
        }
        assert_eq!(b.trains()[0].packets(), 64);
        let mut b = TxBatch::with_capacity(1 << 20);
        for _ in 0..16 {
            push(&mut b, 1, 4124);
        }
        assert_eq!(b.trains()[0].packets(), 15);
    }

    #[test]
    fn what_is_lent_belongs_to_its_train_until_it_is_taken_in() {
        let payload = [7; 16];
        let mut b = TxBatch::with_capacity(4096);
        let lend = |b: &mut TxBatch| {
            b.reserve(PathId(1), 28).unwrap().fill(1);
            // SAFETY: the payload outlives the batch, and nobody writes it.
            unsafe { b.commit_lent(12, payload.as_ptr(), 16) };
        };
        lend(&mut b);
        lend(&mut b);
        push(&mut b, 2, 28);
        lend(&mut b);
        let trains = b.trains().to_vec();
        let at = |t: &Train| b.lent(t).iter().map(|l| l.at).collect::<Vec<_>>();
        assert_eq!(trains.iter().map(at).collect::<Vec<_>>(), [vec![12, 44], vec![], vec![108]]);
        assert_eq!(b.bytes(&trains[2])[12..28], [1; 16], "it is not copied");
        b.take_in();
        assert!(trains.iter().all(|t| b.lent(t).is_empty()));
        assert_eq!(b.bytes(&trains[2])[..28], [[1; 12].as_slice(), &[7; 16]].concat());
        lend(&mut b);
        b.advance(b.trains().len());
        assert!(b.lent.is_empty(), "what was sent is not lent any more");
    }

    #[test]
    fn a_train_that_the_end_would_cut_short_is_left_for_the_next_batch() {
        let mut b = TxBatch::with_capacity(192 << 10);
        let mut packets = 0;
        while !b.cuts_short(PathId(1), 4120) {
            b.reserve(PathId(1), 4120).unwrap().fill(1);
            b.commit();
            packets += 1;
        }
        assert_eq!(packets, 3 * 15);
        assert!(!b.cuts_short(PathId(2), 20), "a train of short ones has room");
        assert!(!TxBatch::with_capacity(48).cuts_short(PathId(1), 20), "an empty batch has no more to give");
    }

    #[test]
    fn flips_are_taken_back_by_a_second_call_and_forgotten_with_the_train() {
        let mut b = TxBatch::with_capacity(48);
        push(&mut b, 1, 20);
        b.flip_later(3, 1);
        let t = b.trains()[0];
        b.apply_flips(&t);
        assert_eq!(b.bytes(&t)[3], 20 ^ 2);
        b.apply_flips(&t);
        assert_eq!(b.bytes(&t)[3], 20);
        b.advance(1);
        push(&mut b, 1, 20);
        let t = b.trains()[0];
        b.apply_flips(&t);
        assert_eq!(b.bytes(&t)[3], 20);
    }

    #[test]
    fn a_full_batch_refuses_and_an_uncommitted_packet_is_replaced() {
        let mut b = TxBatch::with_capacity(48);
        assert!(b.reserve(PathId(1), 40).is_some());
        push(&mut b, 1, 20);
        push(&mut b, 1, 20);
        assert!(b.reserve(PathId(1), 0).is_none());
    }
}
