//! What two processes can do on memory that they share, without any RDMA: a ring, bare stores, accesses to lines that
//! the other CPU owns.
//!
//! 1. A copy between a private buffer and lines is made by one side while the word that hands them over says that they
//!    are its own (Release, Acquire), and is as long as both.
#![allow(unsafe_code)]

use std::hint::{black_box, spin_loop};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Far, Figures, LINE_BYTES, Line, START_LIMIT, Shared};
use hca_perf::batches::{median_ns, median_of, per_second};

/// Lines that are shared.
pub(super) const LINES: usize = 4 * SLOTS;
/// Slots of a ring.
const SLOTS: usize = 1024;
/// The consumer of a ring gives credits back after so many messages.
const CREDIT_EVERY: u64 = 64;
/// Round trips between two looks at the clock.
const ROUNDS: usize = 64;
/// Messages of a stream between two looks at the clock.
const BURST: usize = 4096;
/// Bytes of the large put.
const PUT_BYTES: usize = 4096;
/// Lines that the far side takes for itself before each round of accesses.
pub const OWNED: usize = 64;
/// Lines from one of them to the next that is accessed: too far for a prefetcher, in pages that the TLB holds.
pub const OWNED_STRIDE: usize = 16;

/// The place of the `i`th access among the owned lines, in an order that no prefetcher foresees.
pub const fn owned_line(i: usize) -> usize {
    (i * 37 % OWNED) * OWNED_STRIDE
}

/// What is done on shared lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 8 bytes there and back through two rings; a message and its sequence word are one line.
    RingPingPong,
    /// 8-byte messages one way through such a ring, a second.
    RingStream,
    /// 8 bytes there and back: each side stores into memory of the other and spins on its own.
    PutPingPong,
    /// The same of 4 KiB, copied from a private buffer, and a flag behind them.
    LargePutPingPong,
    /// 8-byte stores into successive lines of the other side's memory, each its own flag, which the other side follows,
    /// a second.
    StoreStream,
    /// A load of a line that the other CPU has written.
    OwnedLoad,
    /// A fetch-and-add on such a line.
    OwnedAdd,
    /// A compare-and-swap on such a line.
    OwnedSwap,
}

impl Kind {
    pub(super) const ALL: [Self; 8] = [
        Self::RingPingPong,
        Self::RingStream,
        Self::PutPingPong,
        Self::LargePutPingPong,
        Self::StoreStream,
        Self::OwnedLoad,
        Self::OwnedAdd,
        Self::OwnedSwap,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RingPingPong => "ring-ping-pong",
            Self::RingStream => "ring-stream",
            Self::PutPingPong => "put-ping-pong",
            Self::LargePutPingPong => "large-put-ping-pong",
            Self::StoreStream => "store-stream",
            Self::OwnedLoad => "owned-load",
            Self::OwnedAdd => "owned-add",
            Self::OwnedSwap => "owned-swap",
        }
    }

    pub(super) fn bytes(self) -> usize {
        if self == Self::LargePutPingPong { PUT_BYTES } else { 8 }
    }
}

/// A wait for the other process that does not outlive it.
struct Patience(u32);

impl Patience {
    /// Whether something is wrong, looked at now and then.
    #[inline]
    fn ends(&mut self, mut wrong: impl FnMut() -> bool) -> bool {
        self.0 = self.0.wrapping_add(1);
        self.0.is_multiple_of(1 << 16) && wrong()
    }
}

/// Spins until `word` has this value; `false`: the measurement is over, or the other process is gone.
#[inline]
fn wait(word: &AtomicU64, value: u64, pause: bool, wrong: impl FnMut() -> bool + Copy) -> bool {
    let mut patience = Patience(0);
    while word.load(Ordering::Acquire) != value {
        if pause {
            spin_loop();
        }
        if patience.ends(wrong) {
            return false;
        }
    }
    true
}

/// One direction of a ring: slots of a line, sequence word and message in it, credits in a line of their own.
struct Ring<'a> {
    slots: &'a [Line],
    credit: &'a AtomicU64,
    seq: u64,
    seen: u64,
}

impl<'a> Ring<'a> {
    fn new(slots: &'a [Line], credit: &'a AtomicU64) -> Self {
        Self { slots: &slots[..SLOTS], credit, seq: 0, seen: 0 }
    }

    #[inline]
    fn push(&mut self, message: u64, wrong: impl Fn() -> bool + Copy) -> bool {
        let mut patience = Patience(0);
        while self.seq - self.seen >= SLOTS as u64 {
            self.seen = self.credit.load(Ordering::Acquire);
            if self.seq - self.seen >= SLOTS as u64 {
                spin_loop();
                if patience.ends(wrong) {
                    return false;
                }
            }
        }
        let slot = &self.slots[self.seq as usize % SLOTS].0;
        slot[1].store(message, Ordering::Relaxed);
        self.seq += 1;
        slot[0].store(self.seq, Ordering::Release);
        true
    }

    #[inline]
    fn pop(&mut self, wrong: impl Fn() -> bool + Copy) -> Option<u64> {
        let slot = &self.slots[self.seq as usize % SLOTS].0;
        if !wait(&slot[0], self.seq + 1, true, wrong) {
            return None;
        }
        let message = slot[1].load(Ordering::Relaxed);
        self.seq += 1;
        if self.seq.is_multiple_of(CREDIT_EVERY) {
            self.credit.store(self.seq, Ordering::Release);
        }
        Some(message)
    }
}

/// Two rings, and their credits, as (towards the far side, towards the near one).
fn rings(lines: &[Line]) -> (Ring<'_>, Ring<'_>) {
    let credits = &lines[2 * SLOTS..];
    // Two lines apart, since processors fetch lines by twos.
    (Ring::new(lines, &credits[0].0[0]), Ring::new(&lines[SLOTS..], &credits[2].0[0]))
}

/// Copies a private buffer into lines.
#[inline]
fn put(source: &[u8], lines: &[Line]) {
    assert!(source.len() <= size_of_val(lines));
    let to = lines.as_ptr().cast_mut().cast::<u8>();
    // SAFETY: (1) the lines are this side's until it stores the flag, and long enough.
    unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), to, source.len()) };
}

fn lost() -> io::Error {
    io::Error::other("the floor's far side is gone")
}

/// Measures for `time`.
pub(super) fn near(kind: Kind, shared: &Shared, far: &mut Far, time: Duration) -> io::Result<Figures> {
    far.port(shared)?;
    let begin = Instant::now();
    // All it takes is bounded: nothing here waits longer than this.
    let limit = time + START_LIMIT;
    let wrong = || begin.elapsed() > limit;
    let lines = shared.lines();
    let ns = |half_rtt_ns| Ok(Figures { half_rtt_ns, ..Figures::default() });
    let rate = |packets_per_s| Ok(Figures { packets_per_s, ..Figures::default() });
    match kind {
        Kind::RingPingPong => {
            let (mut there, mut back) = rings(lines);
            ns(median_ns(time, 2 * ROUNDS, || {
                (0..ROUNDS as u64).try_for_each(|i| {
                    (there.push(i, wrong) && back.pop(wrong).is_some()).then_some(()).ok_or_else(lost)
                })
            })?)
        }
        Kind::RingStream => {
            let mut there = rings(lines).0;
            rate(per_second(time, BURST, || {
                (0..BURST as u64)
                    .try_for_each(|i| there.push(black_box(i), wrong).then_some(()).ok_or_else(lost))
            })?)
        }
        Kind::PutPingPong | Kind::LargePutPingPong => {
            let source = vec![5; PUT_BYTES];
            let mut turn = 0;
            ns(median_ns(time, 2 * ROUNDS, || {
                (0..ROUNDS).try_for_each(|_| {
                    turn += 1;
                    put_pair(kind, lines, true, &source, turn);
                    wait(&lines[2].0[0], turn, false, wrong).then_some(()).ok_or_else(lost)
                })
            })?)
        }
        Kind::StoreStream => {
            let mut turn = 0;
            rate(per_second(time, BURST, || {
                for _ in 0..BURST {
                    turn += 1;
                    lines[turn as usize % SLOTS].0[0].store(turn, Ordering::Release);
                }
                Ok::<_, io::Error>(())
            })?)
        }
        Kind::OwnedLoad | Kind::OwnedAdd | Kind::OwnedSwap => {
            ns(median_of(time, OWNED, || owned(kind, shared, wrong).ok_or_else(lost))?)
        }
    }
}

/// One put: into the lines of the far side, or those of the near one, and the flag.
#[inline]
fn put_pair(kind: Kind, lines: &[Line], to_far: bool, source: &[u8], turn: u64) {
    let body = &lines[if to_far { SLOTS } else { 2 * SLOTS }..][..PUT_BYTES / LINE_BYTES];
    if kind == Kind::LargePutPingPong {
        put(source, body);
    }
    lines[if to_far { 0 } else { 2 }].0[0].store(turn, Ordering::Release);
}

/// Has the far side write all the lines, and times the accesses to them.
fn owned(kind: Kind, shared: &Shared, wrong: impl FnMut() -> bool + Copy) -> Option<Duration> {
    let round = own_again(shared, wrong)?;
    let lines = shared.lines();
    let begin = Instant::now();
    let mut carried = 0;
    for i in 0..OWNED {
        // Each access begins when the one before it has ended: its address depends on what that one gave, which is
        // `round` in every line.
        let word = &lines[owned_line(i) + (carried as usize & 1)].0[0];
        let value = match kind {
            Kind::OwnedAdd => word.fetch_add(1, Ordering::SeqCst),
            Kind::OwnedSwap => {
                let swapped = word.compare_exchange(round, round + 1, Ordering::SeqCst, Ordering::SeqCst);
                swapped.unwrap_or_else(|other| other)
            }
            _ => word.load(Ordering::Acquire),
        };
        carried = black_box(value ^ round);
    }
    let took = begin.elapsed();
    assert_eq!(carried, 0, "the far side wrote all lines before the round began");
    Some(took)
}

/// Asks the far side to write its lines once more, and waits for it; what it has written.
pub fn own_again(shared: &Shared, wrong: impl FnMut() -> bool + Copy) -> Option<u64> {
    let round = shared.asked.load() + 1;
    shared.asked.store(round);
    wait(shared.done.word(), round, true, wrong).then_some(round)
}

/// The far side, until it is told to stop.
pub(super) fn far(kind: Kind, shared: &Shared) -> io::Result<()> {
    let lines = shared.lines();
    let over = || shared.stop.load() != 0;
    shared.port.store(1);
    match kind {
        Kind::RingPingPong => {
            let (mut there, mut back) = rings(lines);
            while let Some(message) = there.pop(over) {
                back.push(message, over);
            }
        }
        Kind::RingStream => {
            let mut there = rings(lines).0;
            while let Some(message) = there.pop(over) {
                black_box(message);
            }
        }
        Kind::PutPingPong | Kind::LargePutPingPong => {
            let (source, mut turn) = (vec![5; PUT_BYTES], 1);
            while wait(&lines[0].0[0], turn, false, over) {
                put_pair(kind, lines, false, &source, turn);
                turn += 1;
            }
        }
        Kind::StoreStream => {
            let (mut turn, mut patience) = (1, Patience(0));
            loop {
                // A line that was written again since has that one's number.
                turn = match lines[turn as usize % SLOTS].0[0].load(Ordering::Acquire) {
                    value if value >= turn => value + 1,
                    _ if patience.ends(over) => break,
                    _ => {
                        spin_loop();
                        turn
                    }
                };
            }
        }
        Kind::OwnedLoad | Kind::OwnedAdd | Kind::OwnedSwap => {
            let mut round = 1;
            while wait(shared.asked.word(), round, true, over) {
                for i in 0..OWNED {
                    lines[owned_line(i)].0[0].store(round, Ordering::Release);
                }
                shared.done.store(round);
                round += 1;
            }
        }
    }
    Ok(())
}
