//! A layer with the faults of bad networks: loss, duplication, reordering, delay, corruption.
//!
//! The layer decides about each packet on its own, also within trains, acknowledgements included, and separately in
//! each direction. The decisions depend only on the seed and on the order of packets.

mod plan;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use hca_core::wire::ICRC_BYTES;
use hca_core::{AddressVector, Counter, Instant, SplitMix64, counters};

use crate::{
    Direction, Fabric, FabricAttr, ManagementDesk, MulticastGroups, PacketHeader, PathError, PathId, QpEnds,
    RxBudget, RxOutcome, RxPacket, Tap, TxBatch,
};
pub use plan::{FaultPlan, FaultPlanError, Faults, Script, Verdict};

/// Packets that are held back at most; what comes beyond is lost.
const MAX_HELD: usize = 4096;
/// Bytes of survivors that wait for the fabric below.
const OUT_BYTES: usize = 1 << 20;
/// At most so many later packets overtake a reordered one.
const MAX_OVERTAKERS: u64 = 4;
/// A reordered packet that nothing overtakes goes on after this time.
const REORDER_PATIENCE: Duration = Duration::from_millis(1);
/// When the fabric below took nothing, it is asked again after this time.
const RETRY_AFTER: Duration = Duration::from_micros(100);
/// The byte of the BTH that the ICRC does not cover.
const UNCOVERED_BYTE: usize = 4;

/// A generator of chances.
struct Rng(SplitMix64);

impl Rng {
    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.0.next_u64() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }
    /// A number below `n`.
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(n)) >> 64) as u64
    }
}

/// What happens to one packet.
#[derive(Clone, Copy, Default)]
struct Fate {
    lost: bool,
    twice: bool,
    flip: Option<(usize, u8)>,
    /// Held until this time.
    until: Option<Instant>,
    /// Or until this many packets of its direction have passed.
    overtakers: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Tx(PathId),
    Rx(PacketHeader),
}

struct Held {
    way: Way,
    flip: Option<(usize, u8)>,
    bytes: Vec<u8>,
}

/// The luck of each kind of faults: numbers of its own, so that one setting does not shift another's luck.
struct Luck {
    loss: Rng,
    duplicate: Rng,
    corrupt: Rng,
    reorder: Rng,
    delay: Rng,
}

impl Luck {
    fn new(seed: u64) -> Self {
        let mut seeds = SplitMix64::new(seed);
        let mut rng = || Rng(SplitMix64::new(seeds.next_u64()));
        let [loss, duplicate, corrupt, reorder, delay] = [(); 5].map(|()| rng());
        Self { loss, duplicate, corrupt, reorder, delay }
    }
}

/// The packets of one direction that are held back, and the chances there.
struct Side {
    faults: Faults,
    luck: Luck,
    /// Packets that were decided over.
    seen: u64,
    /// By time, then by arrival: index into `held`.
    by_time: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    /// (number of the packet behind which it goes on, index into `held`).
    by_number: Vec<(u64, usize)>,
    held: Vec<Option<Held>>,
    free: Vec<usize>,
    arrivals: u64,
    counts: Counts,
}

counters! {
    Counts, "faulty_tx_", "faulty_rx_":
    lost,
    duplicated,
    reordered,
    delayed,
    corrupted,
    overflowed,
}

impl Side {
    fn new(faults: Faults, seed: u64) -> Self {
        Self {
            faults,
            luck: Luck::new(seed),
            seen: 0,
            by_time: BinaryHeap::new(),
            by_number: Vec::new(),
            held: Vec::new(),
            free: Vec::new(),
            arrivals: 0,
            counts: Counts::default(),
        }
    }

    fn decide(&mut self, now: Instant, verdict: Verdict, len: usize) -> Fate {
        let f = self.faults;
        let mut fate = Fate::default();
        self.seen += 1;
        match verdict {
            Verdict::Pass => {}
            Verdict::Drop => fate.lost = true,
            Verdict::Duplicate => fate.twice = true,
            Verdict::Delay(by) => fate.until = Some(now + by),
            Verdict::Corrupt(at, bit) => fate.flip = Some((at % (len + ICRC_BYTES), bit & 7)),
        }
        // Every chance is drawn for every packet, whatever the others come to.
        let luck = &mut self.luck;
        fate.lost |= luck.loss.chance(f.loss);
        fate.twice |= luck.duplicate.chance(f.duplicate);
        if luck.corrupt.chance(f.corrupt) {
            let at = luck.corrupt.below((len + ICRC_BYTES) as u64 - 1) as usize;
            let at = if at >= UNCOVERED_BYTE { at + 1 } else { at };
            fate.flip = Some((at, luck.corrupt.below(8) as u8));
        }
        if luck.reorder.chance(f.reorder) {
            fate.overtakers = Some(1 + luck.reorder.below(MAX_OVERTAKERS));
        }
        if luck.delay.chance(f.delay) {
            let spread = f.delay_max.saturating_sub(f.delay_min).as_nanos() as u64;
            fate.until = Some(now + f.delay_min + Duration::from_nanos(luck.delay.below(spread + 1)));
        }
        if fate.lost {
            self.counts.lost += 1;
            return Fate { lost: true, ..Fate::default() };
        }
        self.counts.duplicated += u64::from(fate.twice);
        self.counts.corrupted += u64::from(fate.flip.is_some());
        self.counts.delayed += u64::from(fate.until.is_some());
        self.counts.reordered += u64::from(fate.overtakers.is_some() && fate.until.is_none());
        fate
    }

    /// Holds a packet back, as its fate says.
    fn hold(&mut self, now: Instant, fate: &Fate, way: Way, bytes: &[u8]) {
        if self.held.len() - self.free.len() >= MAX_HELD {
            self.counts.overflowed += 1;
            return;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() - 1
        });
        self.held[index] = Some(Held { way, flip: fate.flip, bytes: bytes.to_vec() });
        let due = fate.until.unwrap_or(now + REORDER_PATIENCE);
        self.by_time.push(Reverse((due, self.arrivals, index)));
        self.arrivals += 1;
        if fate.until.is_none() {
            self.by_number.push((self.seen + fate.overtakers.unwrap_or(0), index));
        }
    }

    /// Takes a packet whose time or turn has come.
    fn take_due(&mut self, now: Instant) -> Option<Held> {
        let index = if let Some(i) = self.by_number.iter().position(|&(n, _)| n <= self.seen) {
            let index = self.by_number.remove(i).1;
            self.by_time.retain(|&Reverse((_, _, i))| i != index);
            index
        } else {
            let &Reverse((due, _, index)) = self.by_time.peek()?;
            if due > now {
                return None;
            }
            self.by_time.pop();
            self.by_number.retain(|&(_, i)| i != index);
            index
        };
        self.free.push(index);
        self.held[index].take()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.by_time.peek().map(|&Reverse((due, ..))| due)
    }
}

/// A fabric with faults in front of another.
pub struct Faulty {
    inner: Box<dyn Fabric>,
    attr: FabricAttr,
    script: Option<Script>,
    tx: Side,
    rx: Side,
    /// Survivors on their way down.
    out: TxBatch,
    /// The fabric below took not all of `out`.
    retry_at: Option<Instant>,
}

impl Faulty {
    /// A layer with the plan's faults in front of a fabric.
    pub fn new(inner: Box<dyn Fabric>, plan: FaultPlan) -> Self {
        let mut attr = inner.attr().clone();
        attr.name = format!("faulty+{}", attr.name);
        let mut seeds = SplitMix64::new(plan.seed);
        Self {
            inner,
            attr,
            script: plan.script,
            tx: Side::new(plan.tx, seeds.next_u64()),
            rx: Side::new(plan.rx, seeds.next_u64()),
            out: TxBatch::with_capacity(OUT_BYTES),
            retry_at: None,
        }
    }

    /// Moves what is due, and what was left, down to the fabric below.
    fn push_down(&mut self, now: Instant) {
        self.release_tx(now, 0);
        if !self.out.is_empty() {
            self.inner.send(now, &mut self.out);
        }
        self.retry_at = (!self.out.is_empty()).then(|| now + RETRY_AFTER);
    }

    /// Lets packets go whose time or turn has come, as long as there is room for one, of 64 KiB at most with its ICRC,
    /// beside so many bytes; the others stay held.
    fn release_tx(&mut self, now: Instant, beside: usize) {
        while self.out.room() >= beside + (1 << 16)
            && let Some(held) = self.tx.take_due(now)
        {
            let Way::Tx(path) = held.way else { unreachable!("only sent packets are held there") };
            append(&mut self.out, path, &held.bytes, held.flip);
        }
    }

    /// Sends a packet, and then what is due, beside so many bytes that follow the packet.
    fn send_packet(
        &mut self,
        now: Instant,
        path: PathId,
        body: &[u8],
        flip: Option<(usize, u8)>,
        beside: usize,
    ) {
        let verdict = self.script.as_mut().map_or(Verdict::Pass, |s| s(Direction::Tx, body));
        let mut fate = self.tx.decide(now, verdict, body.len());
        if fate.lost {
            return;
        }
        fate.flip = fate.flip.or(flip);
        if fate.twice {
            append(&mut self.out, path, body, flip);
        }
        if fate.until.is_some() || fate.overtakers.is_some() {
            self.tx.hold(now, &fate, Way::Tx(path), body);
        } else {
            append(&mut self.out, path, body, fate.flip);
        }
        self.release_tx(now, beside);
    }
}

/// Appends a packet that is known to fit.
fn append(out: &mut TxBatch, path: PathId, body: &[u8], flip: Option<(usize, u8)>) {
    let at = out.len_bytes();
    out.reserve(path, body.len()).expect("room was looked for").copy_from_slice(body);
    out.commit();
    if let Some((byte, bit)) = flip {
        out.flip_later(at + byte, bit);
    }
}

impl Fabric for Faulty {
    fn attr(&self) -> &FabricAttr {
        &self.attr
    }
    fn notes(&self) -> Vec<(&'static str, String)> {
        self.inner.notes()
    }
    fn open_path_of(&mut self, av: &AddressVector, ends: QpEnds) -> Result<PathId, PathError> {
        self.inner.open_path_of(av, ends)
    }
    fn close_path(&mut self, path: PathId) {
        self.inner.close_path(path);
    }

    fn send(&mut self, now: Instant, batch: &mut TxBatch) {
        self.push_down(now);
        while let Some(&train) = batch.trains().first() {
            // Bytes that the train may append: all of its own twice.
            let mut left = 2 * train.len;
            if self.out.room() < left + (1 << 16) {
                self.push_down(now);
                if self.out.room() < left + (1 << 16) {
                    return;
                }
            }
            for (k, packet) in batch.bytes(&train).chunks(train.segment).enumerate() {
                let start = train.start + k * train.segment;
                // A layer above may have corrupted it already.
                let flip = batch.flip_within(start..start + packet.len());
                left -= 2 * packet.len();
                self.send_packet(now, train.path, &packet[..packet.len() - ICRC_BYTES], flip, left);
            }
            batch.advance(1);
        }
        self.push_down(now);
    }

    fn recv(&mut self, now: Instant, budget: RxBudget, sink: &mut dyn FnMut(&RxPacket<'_>)) -> RxOutcome {
        self.push_down(now);
        let mut given = 0;
        let Self { inner, rx, script, .. } = self;
        let mut emit = |p: &RxPacket<'_>, given: &mut usize| {
            sink(p);
            *given += 1;
        };
        release(rx, now, &mut given, &mut emit);
        let mut outcome = inner.recv(now, budget, &mut |p| {
            let verdict = script.as_mut().map_or(Verdict::Pass, |s| s(Direction::Rx, p.bytes));
            let fate = rx.decide(now, verdict, p.bytes.len());
            if fate.lost {
                return;
            }
            if fate.twice {
                emit(p, &mut given);
            }
            // What a flipped bit on its way would come to: the ICRC below drops it.
            if fate.flip.is_none() {
                if fate.until.is_some() || fate.overtakers.is_some() {
                    rx.hold(now, &fate, Way::Rx(p.header), p.bytes);
                } else {
                    emit(p, &mut given);
                }
            }
            release(rx, now, &mut given, &mut emit);
        });
        outcome.packets = given;
        outcome
    }

    fn next_deadline(&self) -> Option<Instant> {
        let all =
            [self.inner.next_deadline(), self.tx.next_deadline(), self.rx.next_deadline(), self.retry_at];
        all.into_iter().flatten().min()
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }
    fn wait_fd_beside(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd_beside()
    }
    fn prepare_wait(&mut self) -> bool {
        self.inner.prepare_wait()
    }

    fn read_traffic_class(&mut self) {
        self.inner.read_traffic_class();
    }

    fn desk(&mut self) -> Option<&mut dyn ManagementDesk> {
        self.inner.desk()
    }

    fn groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        self.inner.groups()
    }

    fn counters(&self, out: &mut Vec<Counter>) {
        self.inner.counters(out);
        self.tx.counts.append_as(false, out);
        self.rx.counts.append_as(true, out);
    }

    fn set_tap(&mut self, tap: Option<Box<dyn Tap>>) {
        self.inner.set_tap(tap);
    }
}

/// Gives received packets on whose time or turn has come.
fn release(rx: &mut Side, now: Instant, given: &mut usize, emit: &mut dyn FnMut(&RxPacket<'_>, &mut usize)) {
    while let Some(held) = rx.take_due(now) {
        let Way::Rx(header) = held.way else { unreachable!("only received packets are held there") };
        emit(&RxPacket { header, bytes: &held.bytes }, given);
    }
}
