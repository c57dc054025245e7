//! How payloads are stored that the CPU of a near peer reads next.

use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

/// Payloads of so many bytes and more are stored in the way that is quickest for both CPUs. The near peer takes them
/// from there: devices lend SENDs of such lengths.
pub(super) const LONG: usize = 1024;

/// Of so many payloads, one is stored past the caches and one in them, each by the clock.
const SAMPLED: u32 = 256;
/// As many samples as it takes at most to change the way.
const SURE: i8 = 4;

/// The way of one link's payloads: past the caches of this CPU, or in them.
///
/// Lines that a CPU without a common cache has just read are slow to store in the caches, and slow for it to read
/// afterwards. To threads of one core both are quick, and stores past the caches are not. The kernel does not tell how
/// near CPUs are, least of all in a virtual machine, and threads move. So the way is the one that took less time
/// lately.
#[derive(Default)]
pub(super) struct Stores {
    stored: u32,
    /// Nanoseconds of the sample in the caches, and its bytes.
    in_caches: (u64, u64),
    /// Samples in favour of the caches, less those against them.
    score: i8,
}

impl Stores {
    /// Whether payloads are stored past the caches.
    fn pass(&self) -> bool {
        self.score <= 0
    }
    /// Has a payload of `len` bytes stored; `store` is told whether past the caches.
    pub(super) fn store(&mut self, len: usize, store: impl FnOnce(bool)) {
        let turn = self.stored % SAMPLED;
        self.stored = self.stored.wrapping_add(1);
        if turn > 1 {
            return store(self.pass());
        }
        let (passes, begin) = (turn == 1, Instant::now());
        store(passes);
        // Until the bytes have left the processor: without it, the next atomic operation would wait for that.
        fence(Ordering::SeqCst);
        self.note(passes, begin.elapsed().as_nanos() as u64, len as u64);
    }
    fn note(&mut self, passes: bool, ns: u64, len: u64) {
        if !passes {
            self.in_caches = (ns, len);
            return;
        }
        let (before, bytes) = self.in_caches;
        let change = if before * len < ns * bytes { 1 } else { -1 };
        self.score = (self.score + change).clamp(-SURE, SURE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples by which the caches took `in_caches` nanoseconds a KiB and stores past them `past`.
    fn sampled(stores: &mut Stores, count: usize, in_caches: u64, past: u64) {
        for _ in 0..count {
            stores.note(false, in_caches * 4, 4096);
            stores.note(true, past, 1024);
        }
    }

    #[test]
    fn the_way_is_the_one_that_takes_less_time_and_changes_with_the_cpus() {
        let mut stores = Stores::default();
        assert!(stores.pass(), "until it is known");
        sampled(&mut stores, 1, 30, 80);
        assert!(!stores.pass());
        sampled(&mut stores, 100, 30, 80);
        // A payload that was interrupted is one sample.
        sampled(&mut stores, 1, 40_000, 80);
        assert!(!stores.pass());
        sampled(&mut stores, 3, 400, 80);
        assert!(stores.pass(), "the threads are on CPUs without a common cache now");
    }

    #[test]
    fn both_ways_are_tried_time_and_again() {
        let mut stores = Stores::default();
        for _ in 0..3 {
            let mut ways = Vec::new();
            for _ in 0..SAMPLED {
                stores.store(4096, |passes| ways.push(passes));
            }
            assert_eq!(ways[..2], [false, true]);
            // In between, one way: that of the samples.
            assert!(ways[2..].iter().all(|passes| *passes == stores.pass()));
        }
    }
}
