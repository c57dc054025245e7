//! Paces: limits of the rate at which a group of queue pairs sends.
//!
//! A [`Pace`] is one number: the time at which all bytes sent so far would have left at the rate. More may be sent
//! while this time is ahead of the clock by no more than the duration of the burst.

use core::num::NonZeroU64;

use hca_core::Instant;

use crate::sync::{AtomicBool, AtomicU64, Ordering};

const NS_PER_S: u128 = 1_000_000_000;
/// Bytes that may leave at once behind a pause, at any rate.
const BURST_BYTES: u64 = 64 << 10;
/// How long a sender may sleep without losing a part of its rate.
const BURST_NS: u64 = 1_000_000;

/// A limit of the rate at which a group of queue pairs sends, in bits a second of RoCE packets without their Ethernet,
/// IP and UDP headers.
///
/// Over any span of time the group sends at most that rate, and in addition a burst (the bytes of 1 ms at the rate, or
/// 64 KiB if that is more) and one packet. Acknowledgements are neither counted nor delayed.
#[derive(Debug)]
pub struct Pace {
    bits_per_s: NonZeroU64,
    burst_ns: u64,
    /// When all that was sent has left at the rate.
    sent_by_ns: AtomicU64,
    /// Bytes that queue pairs have sent.
    queue_pairs: AtomicU64,
    /// A queue pair waits for room.
    waited_for: AtomicBool,
}

impl Pace {
    /// A limit of `bits_per_s` bits a second.
    pub fn new(bits_per_s: NonZeroU64) -> Self {
        let mut pace = Self {
            bits_per_s,
            burst_ns: 0,
            sent_by_ns: AtomicU64::new(0),
            queue_pairs: AtomicU64::new(0),
            waited_for: AtomicBool::new(false),
        };
        pace.burst_ns = pace.ns_of(BURST_BYTES).max(BURST_NS);
        pace
    }

    /// How long so many bytes take.
    fn ns_of(&self, bytes: u64) -> u64 {
        let ns = u128::from(bytes) * 8 * NS_PER_S / u128::from(self.bits_per_s.get());
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// The bytes that may be sent now. A longer packet leaves whole, and its excess delays the next one.
    pub fn room(&self, now: Instant) -> u64 {
        let ahead_ns = self.sent_by_ns.load(Ordering::Relaxed).saturating_sub(now.as_nanos());
        let left_ns = self.burst_ns.saturating_sub(ahead_ns);
        let bytes = u128::from(left_ns) * u128::from(self.bits_per_s.get()) / (8 * NS_PER_S);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The time at which there is room for a byte again, if there is none now.
    pub fn opens_at(&self) -> Instant {
        let opens_ns = self.sent_by_ns.load(Ordering::Relaxed).saturating_sub(self.burst_ns);
        Instant::from_nanos(opens_ns.saturating_add(self.ns_of(1).max(1)))
    }

    /// Counts the bytes that were sent.
    pub fn spend(&self, now: Instant, bytes: u64) {
        let ns = self.ns_of(bytes);
        let later = |by: u64| Some(by.max(now.as_nanos()).saturating_add(ns));
        let _ = self.sent_by_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }

    /// A queue pair sent so many bytes.
    pub(crate) fn spend_of_queue_pair(&self, now: Instant, bytes: usize) {
        self.spend(now, bytes as u64);
        self.queue_pairs.fetch_add(bytes as u64, Ordering::Relaxed);
        self.waited_for.store(false, Ordering::Relaxed);
    }

    /// The bytes that queue pairs of this pace have sent.
    pub fn sent_by_queue_pairs(&self) -> u64 {
        self.queue_pairs.load(Ordering::Relaxed)
    }

    /// Whether a queue pair waits for room. Other senders at this pace then leave the queue pairs their share.
    pub fn is_waited_for(&self) -> bool {
        self.waited_for.load(Ordering::Relaxed)
    }
}

/// Queue pairs that wait until their pace has room.
#[derive(Debug, Default)]
pub(crate) struct Paced {
    waiting: Vec<u32>,
    /// The earliest time at which one of them may send; too early at most.
    opens_at: Option<Instant>,
}

impl Paced {
    /// A queue pair that wants to send waits.
    #[cold]
    pub(crate) fn wait(&mut self, slot: u32, pace: &Pace) {
        let opens_at = pace.opens_at();
        self.opens_at = Some(self.opens_at.map_or(opens_at, |at| at.min(opens_at)));
        pace.waited_for.store(true, Ordering::Relaxed);
        self.waiting.push(slot);
    }
    pub(crate) fn opens_at(&self) -> Option<Instant> {
        self.opens_at
    }
    /// Those that wait, if it is time for one of them; who still has no room waits again.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<u32> {
        if self.opens_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.opens_at = None;
        core::mem::take(&mut self.waiting)
    }
    /// A queue pair has gone.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.waiting.retain(|s| *s != slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_us(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    fn pace(bits_per_s: u64) -> Pace {
        Pace::new(NonZeroU64::new(bits_per_s).unwrap())
    }

    #[test]
    fn behind_a_pause_a_burst_may_leave_and_then_the_rate() {
        // A byte a microsecond: 64 KiB are more than what 1 ms yields.
        let pace = pace(8_000_000);
        let start = at_us(5_000_000);
        assert_eq!(pace.room(start), 64 << 10);
        pace.spend(start, 64 << 10);
        assert_eq!(pace.room(start), 0);
        assert_eq!(pace.room(at_us(5_000_100)), 100);
        assert!(pace.opens_at() > start && pace.opens_at() <= at_us(5_000_001));
        // However long the pause, it is one burst.
        assert_eq!(pace.room(at_us(900_000_000)), 64 << 10);
        // What was sent beyond the room is owed.
        pace.spend(at_us(900_000_000), 64 << 10);
        pace.spend(at_us(900_000_000), 4096);
        assert_eq!(pace.room(at_us(900_004_096)), 0);
        assert_eq!(pace.room(at_us(900_004_097)), 1);
    }

    #[test]
    fn at_high_rates_a_millisecond_of_sleep_costs_nothing() {
        let pace = pace(80_000_000_000);
        let start = at_us(1000);
        assert_eq!(pace.room(start), 10_000_000);
        pace.spend(start, 10_000_000);
        assert_eq!(pace.room(at_us(2000)), 10_000_000);
    }

    #[test]
    fn no_rate_and_no_length_overflows() {
        for bits in [1, 1_000_000, u64::MAX] {
            let pace = pace(bits);
            for bytes in [0, 1, u64::MAX] {
                pace.spend(Instant::from_nanos(u64::MAX - 1), bytes);
                let _ = (pace.room(Instant::ZERO), pace.room(Instant::from_nanos(u64::MAX)), pace.opens_at());
            }
        }
    }
}
