//! The placement of two CPUs, without which latencies can't be compared.
//!
//! On virtual machines the host moves the CPUs; two of them may share a cache now and sit on different
//! sockets a second later, which changes every latency by a factor. So a measurement is bracketed by
//! this probe, and compared only with one of the same class.

use core::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The placement of two CPUs to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// The CPUs share a cache: the round trip of a line takes less than 150 ns.
    Near,
    /// The CPUs share no cache: the round trip takes more than 180 ns.
    Far,
    /// The round trip is in between, or changed during the measurement.
    Mixed,
    /// Not measured: there is one CPU, or the peer is on another host.
    Unknown,
}

impl Placement {
    /// The class of a measurement that began in `self` and ended in `after`.
    #[must_use]
    pub fn and(self, after: Self) -> Self {
        if self == after { self } else { Self::Mixed }
    }
}
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Mixed => "mixed",
            Self::Unknown => "unknown",
        })
    }
}

/// Half round trips below this are near.
const NEAR_NS: f64 = 150.0;
/// Half round trips above this are far.
const FAR_NS: f64 = 180.0;
/// Round trips between two looks at the clock.
const BATCH: u64 = 200;

/// A word in cache lines of its own.
#[repr(align(256))]
struct Line(AtomicU64);

/// Bounces two cache lines between two CPUs for about 20 ms.
///
/// Both CPUs should be idle meanwhile. The call does not change the calling thread's CPU mask.
pub fn placement(a: usize, b: usize) -> Placement {
    half_round_trip_ns(a, b, Duration::from_millis(20)).map_or(Placement::Unknown, classify)
}

fn classify(half_ns: f64) -> Placement {
    match half_ns {
        x if x < NEAR_NS => Placement::Near,
        x if x > FAR_NS => Placement::Far,
        _ => Placement::Mixed,
    }
}

/// The best half round trip of two cache lines between two CPUs, in nanoseconds; `None` if the two are the same CPU, or
/// can't be used.
pub fn half_round_trip_ns(a: usize, b: usize, time: Duration) -> Option<f64> {
    if a == b {
        return None;
    }
    let (ping, pong) = (&Line(AtomicU64::new(0)), &Line(AtomicU64::new(0)));
    let (stop, failed) = (&AtomicBool::new(false), &AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(move || {
            if pin(b).is_err() {
                failed.store(true, Ordering::Release);
                return;
            }
            let mut seen = 0;
            while !stop.load(Ordering::Relaxed) {
                let now = ping.0.load(Ordering::Acquire);
                if now != seen {
                    seen = now;
                    pong.0.store(now, Ordering::Release);
                }
            }
        });
        let best = s.spawn(move || {
            let best = pin(a).is_ok().then(|| {
                let (mut best, mut i) = (f64::MAX, 0);
                let begin = Instant::now();
                while begin.elapsed() < time {
                    let batch = Instant::now();
                    for _ in 0..BATCH {
                        i += 1;
                        ping.0.store(i, Ordering::Release);
                        while pong.0.load(Ordering::Acquire) != i {
                            if failed.load(Ordering::Relaxed) {
                                return f64::MAX;
                            }
                        }
                    }
                    best = best.min(batch.elapsed().as_nanos() as f64 / (2 * BATCH) as f64);
                }
                best
            });
            stop.store(true, Ordering::Relaxed);
            best
        });
        best.join().expect("the probe does not panic").filter(|b| *b < f64::MAX)
    })
}

/// Binds the calling thread to one CPU.
///
/// # Errors
/// The CPU does not exist, or the process may not use it.
pub fn pin(cpu: usize) -> std::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(rustix::io::Errno::INVAL.into());
    }
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(Into::into)
}

/// The CPUs of this process, as the first call of this function found them.
///
/// The result is stored, since [`pin`] narrows the calling thread's mask, and a later measurement of the same process
/// would find a single CPU for both of its ends.
pub fn cpus() -> &'static [usize] {
    static GIVEN: OnceLock<Vec<usize>> = OnceLock::new();
    GIVEN.get_or_init(|| {
        let set = rustix::thread::sched_getaffinity(None);
        let allowed = |set: rustix::thread::CpuSet| {
            (0..rustix::thread::CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).collect()
        };
        set.map_or_else(|_| Vec::new(), allowed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_keep_a_gap_between_near_and_far() {
        assert_eq!(classify(45.0), Placement::Near);
        assert_eq!(classify(165.0), Placement::Mixed);
        assert_eq!(classify(230.0), Placement::Far);
        assert_eq!(Placement::Near.and(Placement::Far), Placement::Mixed);
        assert_eq!(Placement::Far.and(Placement::Far), Placement::Far);
    }

    #[test]
    fn binding_a_thread_does_not_hide_the_other_cpus() {
        let given = cpus();
        pin(given[0]).unwrap();
        assert_eq!(cpus(), given);
        let other = std::thread::spawn(cpus).join().unwrap();
        assert_eq!(other, given);
    }

    #[test]
    fn one_cpu_and_a_missing_cpu_are_unknown() {
        assert_eq!(half_round_trip_ns(0, 0, Duration::from_millis(1)), None);
        assert_eq!(half_round_trip_ns(0, 1023, Duration::from_millis(1)), None);
        assert_eq!(half_round_trip_ns(1023, 0, Duration::from_millis(1)), None);
    }
}
