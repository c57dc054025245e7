//! Copies to and from memory that another process may change meanwhile.
//!
//! Invariants:
//! 1. The caller vouches for the range on the shared side; the private side is a slice of ours.
//! 2. No reference is made to shared memory. Accesses are relaxed atomic words or assembly, so a race with the
//!    other process is a race of loads and stores, not undefined behaviour.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// From here on whole lines are moved by assembly.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const MANY_BYTES: usize = 128;

/// Copies `data` to shared memory.
///
/// # Safety
/// (1): `to .. to + data.len()` is mapped, writable and lives for the call.
#[inline]
pub(super) unsafe fn store(to: *mut u8, data: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if data.len() >= MANY_BYTES {
        let lines = data.len() / 64;
        // SAFETY: our caller's (1); the rest, less than a line, is within both ranges, too.
        return unsafe {
            move_lines(to, data.as_ptr(), lines);
            store(to.add(lines * 64), &data[lines * 64..]);
        };
    }
    let head = to.align_offset(8).min(data.len());
    let (head, rest) = data.split_at(head);
    let (words, tail) = rest.as_chunks::<8>();
    // SAFETY: (1) every address lies within the caller's range; words are aligned, as the head is what is
    // missing to the next multiple of 8.
    unsafe {
        store_few(to, head);
        let to = to.add(head.len());
        for (i, w) in words.iter().enumerate() {
            AtomicU64::from_ptr(to.add(i * 8).cast()).store(u64::from_ne_bytes(*w), Ordering::Relaxed);
        }
        store_few(to.add(words.len() * 8), tail);
    }
}

/// Copies from shared memory into `out`.
///
/// # Safety
/// (1): `from .. from + out.len()` is mapped, readable and lives for the call.
#[inline]
pub(super) unsafe fn load(from: *const u8, out: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if out.len() >= MANY_BYTES {
        let lines = out.len() / 64;
        // SAFETY: as in `store`.
        return unsafe {
            move_lines(out.as_mut_ptr(), from, lines);
            load(from.add(lines * 64), &mut out[lines * 64..]);
        };
    }
    let from = from.cast_mut();
    let head = from.align_offset(8).min(out.len());
    let (head, rest) = out.split_at_mut(head);
    let (words, tail) = rest.as_chunks_mut::<8>();
    // SAFETY: as in `store`.
    unsafe {
        load_few(from, head);
        let from = from.add(head.len());
        for (i, w) in words.iter_mut().enumerate() {
            *w = AtomicU64::from_ptr(from.add(i * 8).cast()).load(Ordering::Relaxed).to_ne_bytes();
        }
        load_few(from.add(words.len() * 8), tail);
    }
}

/// Loads the 64 bytes of a line.
///
/// # Safety
/// (1) for 64 bytes from `from`, a multiple of 8.
#[inline]
pub(super) unsafe fn load_line(from: *const u8, out: &mut [u8; 64]) {
    for (i, w) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: our caller's.
        let word = unsafe { AtomicU64::from_ptr(from.add(i * 8).cast_mut().cast()).load(Ordering::Relaxed) };
        *w = word.to_ne_bytes();
    }
}

/// # Safety
/// As [`store`], for at most 7 bytes.
#[inline]
unsafe fn store_few(to: *mut u8, data: &[u8]) {
    if let (4, Ok(four)) = (to.addr() & 7, <[u8; 4]>::try_from(data)) {
        // SAFETY: our caller's; the address is a multiple of 4.
        let word = unsafe { core::sync::atomic::AtomicU32::from_ptr(to.cast()) };
        return word.store(u32::from_ne_bytes(four), Ordering::Relaxed);
    }
    for (i, b) in data.iter().enumerate() {
        // SAFETY: our caller's.
        unsafe { AtomicU8::from_ptr(to.add(i)).store(*b, Ordering::Relaxed) };
    }
}

/// # Safety
/// As [`load`], for at most 7 bytes.
#[inline]
unsafe fn load_few(from: *mut u8, out: &mut [u8]) {
    for (i, b) in out.iter_mut().enumerate() {
        // SAFETY: our caller's.
        *b = unsafe { AtomicU8::from_ptr(from.add(i)).load(Ordering::Relaxed) };
    }
}

/// Moves at least one line. Assembly is opaque to the compiler, so that nothing is assumed of either side. 16 bytes a
/// move are quicker than a string instruction here, as one of the sides is never aligned to a line.
///
/// # Safety
/// Both ranges of `lines * 64` bytes are valid; at most one of them is shared; `lines` is not 0.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn move_lines(to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: our caller's.
    unsafe {
        core::arch::asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {n}",
            "jnz 2b",
            n = inout(reg) lines => _,
            to = inout(reg) to => _,
            from = inout(reg) from => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_length_and_alignment_touch_their_range_only() {
        // Miri is slow, and takes the words only.
        let (few, many): (usize, &[usize]) =
            if cfg!(miri) { (20, &[63, 65]) } else { (70, &[127, 128, 129, 191, 192, 700]) };
        for len in (0..few).chain(many.iter().copied()) {
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
}
