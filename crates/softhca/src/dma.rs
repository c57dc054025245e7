//! Copies and atomics on memory that others (the program, its peers) may read and write meanwhile.
//!
//! Invariants:
//! 1. Every address comes from a region of the key table, range checked, under the engine's lock;
//!    `reg_mr`'s contract keeps it valid until `dereg_mr`, which takes that lock.
//! 2. No reference is made to such memory. Accesses are single relaxed atomics or one string
//!    instruction, so a race with the program or with another process is a race of hardware stores,
//!    not undefined behaviour.
//! 3. An aligned piece of 1, 2, 4 or 8 bytes is moved by one access, so others see it whole.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use hca_transport::AtomicOp;

/// Copies `data` to `to`.
///
/// # Safety
/// `to .. to + data.len()` satisfies (1).
#[inline]
pub(crate) unsafe fn store(to: *mut u8, data: &[u8]) {
    // Release: what was placed earlier is seen by whoever sees this.
    fence(Ordering::Release);
    // SAFETY: our caller's (1); `data` is a slice of ours.
    unsafe {
        match data.len() {
            8 if to.addr() & 7 == 0 => {
                let v = u64::from_ne_bytes(data.try_into().expect("8 bytes"));
                AtomicU64::from_ptr(to.cast()).store(v, Ordering::Release);
            }
            4 if to.addr() & 3 == 0 => {
                let v = u32::from_ne_bytes(data.try_into().expect("4 bytes"));
                AtomicU32::from_ptr(to.cast()).store(v, Ordering::Release);
            }
            2 if to.addr() & 1 == 0 => {
                let v = u16::from_ne_bytes(data.try_into().expect("2 bytes"));
                AtomicU16::from_ptr(to.cast()).store(v, Ordering::Release);
            }
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            len if len >= 128 => string_move(to, data.as_ptr(), len),
            _ => words_to(to, data),
        }
    }
}

/// Copies from `from` into `out`.
///
/// # Safety
/// `from .. from + out.len()` satisfies (1).
#[inline]
pub(crate) unsafe fn load(from: *const u8, out: &mut [u8]) {
    // SAFETY: our caller's (1); `out` is a slice of ours.
    unsafe {
        match out.len() {
            8 if from.addr() & 7 == 0 => {
                out.copy_from_slice(
                    &AtomicU64::from_ptr(from.cast_mut().cast()).load(Ordering::Acquire).to_ne_bytes(),
                );
            }
            4 if from.addr() & 3 == 0 => {
                out.copy_from_slice(
                    &AtomicU32::from_ptr(from.cast_mut().cast()).load(Ordering::Acquire).to_ne_bytes(),
                );
            }
            2 if from.addr() & 1 == 0 => {
                out.copy_from_slice(
                    &AtomicU16::from_ptr(from.cast_mut().cast()).load(Ordering::Acquire).to_ne_bytes(),
                );
            }
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            len if len >= 128 => string_move(out.as_mut_ptr(), from, len),
            _ => words_from(from, out),
        }
    }
    fence(Ordering::Acquire);
}

/// Does an atomic operation of the CPU on the aligned word at `at`; returns the old value.
///
/// # Safety
/// `at .. at + 8` satisfies (1), and `at` is a multiple of 8.
pub(crate) unsafe fn atomic(at: *mut u8, op: AtomicOp) -> u64 {
    debug_assert_eq!(at.addr() & 7, 0);
    // SAFETY: our caller's (1) and alignment.
    let word = unsafe { AtomicU64::from_ptr(at.cast()) };
    match op {
        AtomicOp::CompareSwap { compare, swap } => word
            .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|old| old),
        AtomicOp::FetchAdd { add } => word.fetch_add(add, Ordering::AcqRel),
    }
}

/// # Safety
/// As [`store`].
unsafe fn words_to(to: *mut u8, data: &[u8]) {
    let head = to.align_offset(8).min(data.len());
    let (head, rest) = data.split_at(head);
    // SAFETY: every address below lies within the range that our caller vouches for; words are aligned.
    unsafe {
        for (i, b) in head.iter().enumerate() {
            AtomicU8::from_ptr(to.add(i)).store(*b, Ordering::Relaxed);
        }
        let to = to.add(head.len());
        let words = rest.chunks_exact(8);
        let tail = words.remainder();
        for (i, w) in words.enumerate() {
            let v = u64::from_ne_bytes(w.try_into().expect("8 bytes"));
            AtomicU64::from_ptr(to.add(i * 8).cast()).store(v, Ordering::Relaxed);
        }
        let to = to.add(rest.len() - tail.len());
        for (i, b) in tail.iter().enumerate() {
            AtomicU8::from_ptr(to.add(i)).store(*b, Ordering::Relaxed);
        }
    }
}

/// # Safety
/// As [`load`].
unsafe fn words_from(from: *const u8, out: &mut [u8]) {
    let from = from.cast_mut();
    let head = from.align_offset(8).min(out.len());
    let (head, rest) = out.split_at_mut(head);
    // SAFETY: every address below lies within the range that our caller vouches for; words are aligned.
    unsafe {
        for (i, b) in head.iter_mut().enumerate() {
            *b = AtomicU8::from_ptr(from.add(i)).load(Ordering::Relaxed);
        }
        let from = from.add(head.len());
        let mut words = rest.chunks_exact_mut(8);
        let mut at = 0;
        for w in &mut words {
            w.copy_from_slice(
                &AtomicU64::from_ptr(from.add(at).cast()).load(Ordering::Relaxed).to_ne_bytes(),
            );
            at += 8;
        }
        for (i, b) in words.into_remainder().iter_mut().enumerate() {
            *b = AtomicU8::from_ptr(from.add(at + i)).load(Ordering::Relaxed);
        }
    }
}

/// One string instruction: opaque to the compiler, so that nothing is assumed of either side.
///
/// # Safety
/// Both ranges are valid; at most one of them is memory of (1).
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn string_move(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: our caller's; the direction flag is clear as the ABI demands.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_length_and_alignment_touch_their_range_only() {
        for len in (0..40).chain([127, 128, 129, 300]) {
            for at in 0..9 {
                let data: Vec<u8> = (0..len as u32).map(|i| i as u8 | 1).collect();
                let mut memory = vec![0_u8; len + 24];
                let base = memory.as_mut_ptr();
                let mut back = vec![0; len];
                // SAFETY: `at + len` is within `memory`, and nobody else touches it.
                unsafe {
                    store(base.add(at), &data);
                    load(base.add(at), &mut back);
                }
                assert_eq!(back, data);
                assert!(memory[..at].iter().chain(&memory[at + len..]).all(|b| *b == 0), "{len} at {at}");
            }
        }
    }

    #[test]
    fn atomics_return_the_old_value() {
        let mut word = 5_u64;
        let at: *mut u8 = (&raw mut word).cast();
        // SAFETY: an aligned word of ours.
        unsafe {
            assert_eq!(atomic(at, AtomicOp::FetchAdd { add: 3 }), 5);
            assert_eq!(atomic(at, AtomicOp::CompareSwap { compare: 9, swap: 1 }), 8);
            assert_eq!(atomic(at, AtomicOp::CompareSwap { compare: 8, swap: 1 }), 8);
        }
        assert_eq!(word, 1);
    }
}
