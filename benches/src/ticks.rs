//! A clock that costs next to nothing: the processor's time stamp counter.
//!
//! Invariants of the unsafe code:
//! 1. Reading the counter touches no memory; every x86-64 processor has it.
#![cfg_attr(target_arch = "x86_64", allow(unsafe_code))]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long the counter is held against the system's clock.
const CALIBRATION: Duration = Duration::from_millis(50);

/// The counter now; elsewhere than on x86-64 the system's clock in ns.
#[inline]
pub fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: (1).
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return since_start().as_nanos() as u64;
}

/// Nanoseconds of so many ticks.
pub fn ns(ticks: f64) -> f64 {
    static TICK: OnceLock<f64> = OnceLock::new();
    ticks
        * TICK.get_or_init(|| {
            let (from, begin) = (now(), Instant::now());
            while begin.elapsed() < CALIBRATION {
                std::hint::spin_loop();
            }
            begin.elapsed().as_nanos() as f64 / (now() - from) as f64
        })
}

#[cfg(not(target_arch = "x86_64"))]
fn since_start() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_go_forward_and_have_a_length() {
        let from = now();
        assert!(ns(1e9).is_finite() && ns(1e9) > 0.0);
        assert!(now() > from, "the calibration took time");
    }
}
