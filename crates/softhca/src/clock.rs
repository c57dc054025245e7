//! The system's monotonic clock as one number.
//!
//! The engine reads the clock once a turn; with `std::time::Instant`, the difference of two times would take several
//! times the instructions of the clock itself.
//!
//! Where even the clock takes too long, ticks of the processor give the passed time roughly.
//!
//! Invariants:
//! 1. The structure that the C library fills lives on the stack for the call.
#![allow(unsafe_code)]

/// Nanoseconds since some moment before this process began.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: (1). The call can't fail: every Linux has this clock, and the pointer is good.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// A count that goes on with time, from one to five a nanosecond or so: its low bits, which come again in a second or
/// four.
#[inline(always)]
pub(crate) fn ticks() -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every processor of this architecture has the instruction, and Linux allows it.
    return unsafe { core::arch::x86_64::_rdtsc() as u32 };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    return monotonic_ns() as u32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_as_the_clock_of_the_standard_library_does() {
        // The one that is looked at last began last, whatever lies between.
        let (before, begin) = (monotonic_ns(), std::time::Instant::now());
        while begin.elapsed().as_micros() < 200 {}
        assert!(monotonic_ns() - before >= 200_000);
    }

    #[test]
    fn ticks_are_neither_far_more_nor_far_fewer_than_nanoseconds() {
        // The ticks of a time that lies within the outer one and around the inner one, whatever passes between two
        // looks; none of more than a second, after which the ticks may begin again.
        let measured = (0..1000).find_map(|_| {
            let (outer, ticks_before, inner) = (monotonic_ns(), ticks(), monotonic_ns());
            while monotonic_ns() - inner < 200_000 {}
            let within = monotonic_ns() - inner;
            let passed = u64::from(ticks().wrapping_sub(ticks_before));
            let around = monotonic_ns() - outer;
            (around < 500_000_000).then_some((passed, within, around))
        });
        let (passed, within, around) = measured.expect("the machine is never so late a thousand times");
        assert!((within / 2..around * 10).contains(&passed), "{passed} ticks in {within} to {around} ns");
    }
}
