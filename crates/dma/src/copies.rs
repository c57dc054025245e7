//! Copies and atomics on memory that others (the program, its peers, other processes) may read and write meanwhile.
//!
//! Invariants:
//! 1. The caller guarantees that each raw range is mapped, with the right to this access, during the call, or that the
//!    program has unmapped it and has called [`survive`](crate::survive). A slice is memory of this process that no
//!    other code accesses.
//! 2. This module makes no reference to memory behind a raw range, and no access by Rust's own operations, atomic or
//!    not. All accesses are those of `word`, or assembly, which is opaque to the compiler, so a race with others is a
//!    race of hardware loads and stores, not undefined behaviour.
//! 3. An aligned piece of 1, 2, 4 or 8 bytes is moved by one access, so others see it whole; of copies of 128 bytes and
//!    more, if both ranges begin and end at multiples of 8.
//! 4. Others see the bytes of one call before the bytes of a later call, also if a copy bypasses the caches, whose
//!    stores the processor does not order by itself.
//!
//! The fastest way depends on length and processor. Rates relative to the C library's `memcpy` on the same buffers, on
//! one core of a Cascade Lake Xeon, the better of several runs (above 1 is faster):
//!
//! | bytes, how far off a line | `memcpy` | 16-byte moves | 32-byte moves | string move | past the caches |
//! |---|---|---|---|---|---|
//! | 128, source by 4 | 16 GB/s | 0.98 | 1.27 | 0.36 | |
//! | 960, source by 60 | 35 GB/s | 0.69 | 1.41 | 0.69 | |
//! | 3968, target by 60 | 36 GB/s | 0.51 | 1.09 | 1.18 | |
//! | 4 KiB | 92 GB/s | 0.50 | 0.92 | 1.06 | 0.08 |
//! | 64 KiB | 22 GB/s | 1.10 | 1.43 | 1.17 | 0.33 |
//! | 64 KiB, by 3 and 5 | 26 GB/s | 0.61 | 0.92 | 1.00 | |
//! | 1 MiB | 12 GB/s | 0.92 | 0.98 | 1.21 | 0.54 |
//! | 16 MiB | 5.2 GB/s | 0.89 | 0.93 | 0.75 | 1.01 |
//! | 256 MiB, cold | 5.1 GB/s | 0.91 | 0.94 | 0.75 | 1.03 |
//!
//! In the last two rows the C library goes past the caches, too. For 256 MiB, rates lie between 0.6 and 1.7 from run to
//! run. [`copy`] of 128 to 256 bytes takes about twice the time of `memcpy`. On other processors, or without a fast
//! string move, 32-byte moves serve for all lengths that the caches hold; that was not measured.
#![allow(unsafe_code)] // the copies themselves: raw memory, and intrinsics

use core::sync::atomic::{Ordering, fence};

use crate::word;

/// From here on assembly moves the bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const MANY_BYTES: usize = 128;
/// The bytes that go through a buffer of this process in one go, if others may access both sides.
pub const FEW_BYTES: usize = 128;

/// The place where a copy leaves the written bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caching {
    /// In the caches, for bytes that are read or written again soon.
    #[default]
    Cached,
    /// In memory, for more bytes than the caches hold.
    Streaming,
    /// Where another processor reads the bytes quickly: in memory, as bytes in the caches of this one are slow to read
    /// for a processor that shares none of them; on Intel's processors, which share the last one, in the caches.
    Passed,
}

/// A detector of long sequential copies, by the start of each copy: the caches hold the bytes of other copies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Footprint {
    end: u64,
    run: u64,
}

impl Footprint {
    /// The caching for a copy of these bytes: past the caches, once the bytes copied in one direction without a step
    /// back fill a good part of them.
    #[inline]
    pub fn caching(&mut self, at: u64, len: usize) -> Caching {
        let len = len as u64;
        let goes_on = at == self.end;
        self.run = if goes_on { self.run.saturating_add(len) } else { len };
        self.end = at.wrapping_add(len);
        if self.run > streaming_bytes() { Caching::Streaming } else { Caching::Cached }
    }
}

/// Copies a slice to `to`, ordered after all earlier stores of this thread.
///
/// # Safety
/// (1) for `to .. to + data.len()`, which is written.
#[inline(always)]
pub unsafe fn store(to: *mut u8, data: &[u8]) {
    // SAFETY: our caller's (1).
    unsafe {
        if !store_word(to, data) {
            store_other(to, data);
        }
    }
}

/// As [`store`], of any length.
///
/// # Safety
/// As [`store`].
#[inline(never)]
unsafe fn store_other(to: *mut u8, data: &[u8]) {
    // Release: what was placed earlier is seen by whoever sees this.
    fence(Ordering::Release);
    // SAFETY: our caller's (1).
    unsafe {
        match data.len() {
            4 if to.addr() & 3 == 0 => {
                let v = u32::from_ne_bytes(data.try_into().expect("4 bytes"));
                word::store32(to, v);
            }
            2 if to.addr() & 1 == 0 => {
                let v = u16::from_ne_bytes(data.try_into().expect("2 bytes"));
                word::store16(to, v);
            }
            _ => store_relaxed(to, data),
        }
    }
}

/// Copies an aligned word of 8 bytes, as [`store`] does. `false`: it is none.
///
/// # Safety
/// As [`store`].
#[inline(always)]
unsafe fn store_word(to: *mut u8, data: &[u8]) -> bool {
    let Ok(word) = <[u8; 8]>::try_from(data) else { return false };
    let aligned = to.addr() & 7 == 0;
    if aligned {
        // Release: what was placed earlier is seen by whoever sees this.
        fence(Ordering::Release);
        // SAFETY: our caller's (1).
        unsafe { word::store64(to, u64::from_ne_bytes(word)) };
    }
    aligned
}

/// Copies from `from` into a slice, ordered before all later loads of this thread.
///
/// # Safety
/// (1) for `from .. from + out.len()`, which is read.
#[inline(always)]
pub unsafe fn load(from: *const u8, out: &mut [u8]) {
    match <&mut [u8; 8]>::try_from(&mut *out) {
        Ok(word) if from.addr() & 7 == 0 => {
            // SAFETY: our caller's (1).
            *word = unsafe { word::load64(from) }.to_ne_bytes();
            fence(Ordering::Acquire);
        }
        // SAFETY: our caller's (1).
        _ => unsafe { load_other(from, out) },
    }
}

/// As [`load`], of any length.
///
/// # Safety
/// As [`load`].
#[inline(never)]
unsafe fn load_other(from: *const u8, out: &mut [u8]) {
    let at = from.cast_mut();
    // SAFETY: our caller's (1).
    unsafe {
        match out.len() {
            4 if at.addr() & 3 == 0 => {
                let word = word::load32(at);
                out.copy_from_slice(&word.to_ne_bytes());
            }
            2 if at.addr() & 1 == 0 => {
                let word = word::load16(at);
                out.copy_from_slice(&word.to_ne_bytes());
            }
            _ => load_relaxed(from, out),
        }
    }
    fence(Ordering::Acquire);
}

/// Copies between two ranges that others may change meanwhile, ordered after this thread's earlier stores and before
/// its later loads. The ranges must not overlap.
///
/// # Safety
/// (1) for `from .. from + len`, which is read, and `to .. to + len`, which is written; no byte is in both.
#[inline(always)]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize, caching: Caching) {
    if len == 8 && (to.addr() | from.addr()) & 7 == 0 {
        // SAFETY: our caller's (1).
        unsafe {
            let word = word::load64(from);
            fence(Ordering::AcqRel);
            word::store64(to, word);
        }
        fence(Ordering::Acquire);
        return;
    }
    // SAFETY: our caller's (1).
    unsafe { copy_bytes(to, from, len, caching) };
}

/// # Safety
/// As [`copy`].
#[inline(never)]
unsafe fn copy_bytes(to: *mut u8, from: *const u8, len: usize, caching: Caching) {
    if len <= FEW_BYTES {
        fence(Ordering::Release);
        // SAFETY: our caller's (1).
        unsafe { copy_few(to, from, len) };
        fence(Ordering::Acquire);
        return;
    }
    fence(Ordering::Release);
    // SAFETY: our caller's (1); more bytes than a few.
    unsafe { copy_many(to, from, len, caching) };
    fence(Ordering::Acquire);
}

/// Copies a few bytes, each word of eight by one load and one store where both sides are aligned alike.
///
/// # Safety
/// As [`copy`].
#[inline]
unsafe fn copy_few(to: *mut u8, from: *const u8, len: usize) {
    let words = if (to.addr() | from.addr()) & 7 == 0 { len / 8 } else { 0 };
    // SAFETY: our caller's (1); words are aligned, and as many as fit.
    unsafe {
        for at in (0..words).map(|i| i * 8) {
            word::store64(to.add(at), word::load64(from.add(at)));
        }
        let at = words * 8;
        if at < len {
            let mut rest = [0; FEW_BYTES];
            let rest = &mut rest[..len - at];
            load(from.add(at), rest);
            store(to.add(at), rest);
        }
    }
}

/// Copies a slice as [`copy`] does, with a choice of caching.
///
/// # Safety
/// As [`store`].
#[inline(always)]
pub unsafe fn store_as(to: *mut u8, data: &[u8], caching: Caching) {
    // SAFETY: our caller's (1).
    if unsafe { store_word(to, data) } {
        return;
    }
    // SAFETY: our caller's (1).
    unsafe { store_bytes(to, data, caching) };
}

/// # Safety
/// As [`store`].
#[inline(never)]
unsafe fn store_bytes(to: *mut u8, data: &[u8], caching: Caching) {
    if data.len() <= FEW_BYTES {
        // SAFETY: our caller's (1).
        return unsafe { store(to, data) };
    }
    fence(Ordering::Release);
    // SAFETY: our caller's (1); more bytes than a few.
    unsafe { store_many(to, data, caching) };
}

/// Copies into a slice as [`copy`] does, with a choice of caching.
///
/// # Safety
/// As [`load`].
#[inline]
pub unsafe fn load_as(from: *const u8, out: &mut [u8], caching: Caching) {
    if out.len() <= FEW_BYTES {
        // SAFETY: our caller's (1).
        return unsafe { load(from, out) };
    }
    // SAFETY: our caller's (1); more bytes than a few.
    unsafe { load_many(from, out, caching) };
    fence(Ordering::Acquire);
}

/// Exchanges the word at `at` for `swap` if it is `compare`, by an atomic operation of the processor; returns the old
/// value.
///
/// # Safety
/// (1) for `at .. at + 8`, which is read and written; `at` is a multiple of 8.
#[inline]
pub unsafe fn compare_swap(at: *mut u8, compare: u64, swap: u64) -> u64 {
    debug_assert_eq!(at.addr() & 7, 0);
    fence(Ordering::Release);
    // SAFETY: our caller's (1) and alignment.
    let old = unsafe { word::swap_if_equal(at, compare, swap) };
    fence(Ordering::Acquire);
    old
}

/// Adds to the word at `at`, by an atomic operation of the processor; returns the old value.
///
/// # Safety
/// As [`compare_swap`].
#[inline]
pub unsafe fn fetch_add(at: *mut u8, add: u64) -> u64 {
    debug_assert_eq!(at.addr() & 7, 0);
    fence(Ordering::Release);
    // SAFETY: our caller's (1) and alignment.
    let old = unsafe { word::add(at, add) };
    fence(Ordering::Acquire);
    old
}

/// Loads the word at `at`, ordered before all later loads of this thread.
///
/// # Safety
/// (1) for `at .. at + 8`, which is read; `at` is a multiple of 8.
#[inline(always)]
pub unsafe fn load_u64(at: *const u8) -> u64 {
    debug_assert_eq!(at.addr() & 7, 0);
    // SAFETY: our caller's (1) and alignment.
    let word = unsafe { word::load64(at) };
    fence(Ordering::Acquire);
    word
}

/// Stores the word at `at`, ordered after all earlier stores of this thread.
///
/// # Safety
/// (1) for `at .. at + 8`, which is written; `at` is a multiple of 8.
#[inline(always)]
pub unsafe fn store_u64(at: *mut u8, value: u64) {
    debug_assert_eq!(at.addr() & 7, 0);
    fence(Ordering::Release);
    // SAFETY: our caller's (1) and alignment.
    unsafe { word::store64(at, value) };
}

/// Sets bytes to 0, without any ordering.
///
/// # Safety
/// (1) for `to .. to + len`, which is written.
pub unsafe fn zero(to: *mut u8, len: usize) {
    const ZEROS: [u8; 256] = [0; 256];
    let mut at = 0;
    while at < len {
        // Up to a multiple of their number, so that no word of 8 is torn.
        let n = (ZEROS.len() - (to.addr() + at) % ZEROS.len()).min(len - at);
        // SAFETY: our caller's (1).
        unsafe { store_relaxed(to.add(at), &ZEROS[..n]) };
        at += n;
    }
}

/// Copies `data` to `to`, without any ordering: a word that the caller stores afterwards orders it.
///
/// # Safety
/// As [`store`].
#[inline]
pub unsafe fn store_relaxed(to: *mut u8, data: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if data.len() >= MANY_BYTES {
        // SAFETY: our caller's (1); many bytes.
        return unsafe { x86::move_cached(to, data.as_ptr(), data.len()) };
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
            word::store64(to.add(i * 8), u64::from_ne_bytes(*w));
        }
        store_few(to.add(words.len() * 8), tail);
    }
}

/// Copies from `from` into `out`, without any ordering.
///
/// # Safety
/// As [`load`].
#[inline]
pub unsafe fn load_relaxed(from: *const u8, out: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if out.len() >= MANY_BYTES {
        // SAFETY: our caller's (1); many bytes.
        return unsafe { x86::move_cached(out.as_mut_ptr(), from, out.len()) };
    }
    let from = from.cast_mut();
    let head = from.align_offset(8).min(out.len());
    let (head, rest) = out.split_at_mut(head);
    let (words, tail) = rest.as_chunks_mut::<8>();
    // SAFETY: as in `store_relaxed`.
    unsafe {
        load_few(from, head);
        let from = from.add(head.len());
        for (i, w) in words.iter_mut().enumerate() {
            *w = word::load64(from.add(i * 8)).to_ne_bytes();
        }
        load_few(from.add(words.len() * 8), tail);
    }
}

/// Loads the 64 bytes of a line.
///
/// # Safety
/// (1) for 64 bytes from `from`, a multiple of 8.
#[inline]
pub unsafe fn load_line(from: *const u8, out: &mut [u8; 64]) {
    for (i, w) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: our caller's.
        *w = unsafe { word::load64(from.add(i * 8)) }.to_ne_bytes();
    }
}

/// # Safety
/// As [`store`], for at most 7 bytes.
#[inline]
unsafe fn store_few(to: *mut u8, data: &[u8]) {
    if let (4, Ok(four)) = (to.addr() & 7, <[u8; 4]>::try_from(data)) {
        // SAFETY: our caller's; the address is a multiple of 4.
        return unsafe { word::store32(to, u32::from_ne_bytes(four)) };
    }
    for (i, b) in data.iter().enumerate() {
        // SAFETY: our caller's.
        unsafe { word::store8(to.add(i), *b) };
    }
}

/// # Safety
/// As [`load`], for at most 7 bytes.
#[inline]
unsafe fn load_few(from: *mut u8, out: &mut [u8]) {
    for (i, b) in out.iter_mut().enumerate() {
        // SAFETY: our caller's.
        *b = unsafe { word::load8(from.add(i)) };
    }
}

/// # Safety
/// As [`copy`], for more than [`FEW_BYTES`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_many(to: *mut u8, from: *const u8, len: usize, caching: Caching) {
    // SAFETY: our caller's.
    unsafe {
        match caching {
            Caching::Cached => x86::move_cached(to, from, len),
            Caching::Streaming => x86::move_streaming(to, from, len),
            Caching::Passed if x86::plan().hands_over => x86::move_cached(to, from, len),
            Caching::Passed => x86::move_passed(to, from, len),
        }
    }
}

/// # Safety
/// As [`copy`], for more than [`FEW_BYTES`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn copy_many(to: *mut u8, from: *const u8, len: usize, _: Caching) {
    let mut few = [0; FEW_BYTES];
    for at in (0..len).step_by(FEW_BYTES) {
        let few = &mut few[..FEW_BYTES.min(len - at)];
        // SAFETY: our caller's (1).
        unsafe {
            load_relaxed(from.add(at), few);
            store_relaxed(to.add(at), few);
        }
    }
}

/// # Safety
/// As [`store`], for more than [`FEW_BYTES`].
#[inline]
unsafe fn store_many(to: *mut u8, data: &[u8], caching: Caching) {
    // SAFETY: our caller's. A slice of ours may be read as a range; but not by atomics, as it is not to be written.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        copy_many(to, data.as_ptr(), data.len(), caching);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = caching;
        // SAFETY: our caller's.
        unsafe { store_relaxed(to, data) };
    }
}

/// # Safety
/// As [`load`], for more than [`FEW_BYTES`].
#[inline]
unsafe fn load_many(from: *const u8, out: &mut [u8], caching: Caching) {
    // SAFETY: our caller's. A slice of ours may be written as a range.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        copy_many(out.as_mut_ptr(), from, out.len(), caching);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = caching;
        // SAFETY: our caller's.
        unsafe { load_relaxed(from, out) };
    }
}

/// Bytes copied in one direction from which on they go past the caches: with as many that are read, half of the
/// largest cache.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn streaming_bytes() -> u64 {
    x86::plan().streaming_bytes
}
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn streaming_bytes() -> u64 {
    u64::MAX
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) mod x86;

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths on both sides of each change of method, and what is copied at these offsets from a line.
    fn lengths() -> impl Iterator<Item = usize> {
        // Miri is slow, and takes the words only.
        let (few, many): (usize, &[usize]) = if cfg!(miri) {
            (20, &[63, 65, 127, 129, 200])
        } else {
            (300, &[700, 3071, 3072, 3073, 16_383, 16_384, 16_385, 16_600, 40_000])
        };
        (0..few).chain(many.iter().copied())
    }

    fn data(len: usize) -> Vec<u8> {
        (0..len as u32).map(|i| (i % 251) as u8 | 1).collect()
    }

    fn check(what: &str, move_it: impl Fn(*mut u8, *const u8, usize)) {
        for len in lengths() {
            for (at, from) in [(0, 0), (1, 0), (0, 3), (4, 4), (7, 8), (8, 2)] {
                let source = data(len + from);
                let mut memory = vec![0_u8; len + 24];
                move_it(memory.as_mut_ptr().wrapping_add(at), source.as_ptr().wrapping_add(from), len);
                assert_eq!(memory[at..at + len], source[from..], "{what}: {len} at {at}");
                let outside = memory[..at].iter().chain(&memory[at + len..]);
                assert!(outside.copied().all(|b| b == 0), "{what}: {len} at {at}");
            }
        }
    }

    #[test]
    fn copies_of_every_length_and_alignment_touch_their_range_only() {
        // SAFETY: all ranges are within vectors of ours, which nobody else touches.
        unsafe {
            check("zero", |to, from, len| {
                store(to, core::slice::from_raw_parts(from, len));
                zero(to.add(len / 3), len - len / 3);
                store(to.add(len / 3), core::slice::from_raw_parts(from.add(len / 3), len - len / 3));
            });
            check("store", |to, from, len| store(to, core::slice::from_raw_parts(from, len)));
            check("load", |to, from, len| load(from, core::slice::from_raw_parts_mut(to, len)));
            for caching in [Caching::Cached, Caching::Streaming, Caching::Passed] {
                check("copy", |to, from, len| copy(to, from, len, caching));
                check("store_as", |to, from, len| {
                    store_as(to, core::slice::from_raw_parts(from, len), caching);
                });
                check("load_as", |to, from, len| {
                    load_as(from, core::slice::from_raw_parts_mut(to, len), caching);
                });
            }
        }
    }

    /// Each way of its own, whichever this processor would choose.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn every_method_moves_what_it_is_told() {
        // SAFETY: as above, and a processor with AVX.
        unsafe {
            let many = |f: unsafe fn(*mut u8, *const u8, usize)| {
                move |to, from, len| {
                    if len >= 128 { f(to, from, len) } else { copy(to, from, len, Caching::Cached) }
                }
            };
            check("string", many(x86::string_move));
            check("narrow", many(x86::narrow_move));
            if std::is_x86_feature_detected!("avx") {
                check("wide", many(x86::wide_move));
                check("passed", many(x86::move_passed));
            }
        }
    }

    /// Prints how quick copies are beside the C library's, on the same buffers: the best of several runs.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    #[ignore = "a measurement: run it alone, built for release"]
    fn copies_are_as_quick_as_memcpy() {
        use std::time::Instant;
        const COLD: usize = 256 << 20;
        let source = vec![1_u8; COLD + 4096];
        let mut target = vec![2_u8; COLD + 4096];
        let (to, from) = (target.as_mut_ptr(), source.as_ptr());
        let best = |len: usize, f: &mut dyn FnMut()| {
            let (times, runs) = (((2 << 20) / len).max(1), if len > 16 << 20 { 3 } else { 30 });
            let run = |_| {
                let start = Instant::now();
                (0..times).for_each(|_| f());
                start.elapsed().as_nanos() as f64 / times as f64
            };
            (0..runs).map(run).fold(f64::MAX, f64::min)
        };
        for len in
            [128, 256, 1024, 2048, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, COLD]
        {
            // SAFETY: both are longer than what is copied, and nobody else touches them.
            let (libc, cached, streaming, pieces) = unsafe {
                (
                    best(len, &mut || _ = libc::memcpy(to.cast(), from.cast(), len)),
                    best(len, &mut || copy(to, from, len, Caching::Cached)),
                    best(len, &mut || copy(to, from, len, Caching::Streaming)),
                    best(len, &mut || {
                        let mut f = Footprint::default();
                        for at in (0..len).step_by(256 << 10) {
                            let piece = (len - at).min(256 << 10);
                            let caching = f.caching(at as u64, piece);
                            copy(to.add(at), from.add(at), piece, caching);
                        }
                    }),
                )
            };
            println!(
                "{len:10} bytes: memcpy {:5.1} GB/s, cached {:.2}, streaming {:.2}, by footprint {:.2}",
                len as f64 / libc,
                libc / cached,
                libc / streaming,
                libc / pieces
            );
        }
    }

    #[test]
    fn atomics_return_the_old_value() {
        let mut word = 5_u64;
        let at: *mut u8 = (&raw mut word).cast();
        // SAFETY: an aligned word of ours.
        unsafe {
            assert_eq!(fetch_add(at, 3), 5);
            assert_eq!(compare_swap(at, 9, 1), 8);
            assert_eq!(compare_swap(at, 8, 1), 8);
        }
        assert_eq!(word, 1);
    }

    /// What Miri calls undefined behaviour of atomics; so do the words of `load_u64` and `fetch_add`.
    #[test]
    fn accesses_of_several_sizes_to_the_same_bytes_may_race() {
        struct Shared(*mut u8);
        // SAFETY: the functions of this module are for memory that several threads touch.
        unsafe impl Sync for Shared {}
        impl Shared {
            fn at(&self) -> *mut u8 {
                self.0
            }
        }
        const WORDS: [u64; 2] = [u64::MAX, 0];
        let mut words = [0_u64; 4];
        let shared = Shared(words.as_mut_ptr().cast());
        let rounds = if cfg!(miri) { 20 } else { 5_000 };
        std::thread::scope(|s| {
            s.spawn(|| {
                for word in WORDS.into_iter().cycle().take(rounds) {
                    // SAFETY: the words are ours, aligned, and outlive the threads.
                    unsafe { store(shared.at(), &word.to_ne_bytes()) };
                }
            });
            for _ in 0..rounds {
                let (mut half, mut whole, mut odd) = ([0; 4], [0; 8], [0; 13]);
                // SAFETY: as above.
                unsafe {
                    load(shared.at(), &mut half);
                    load(shared.at(), &mut whole);
                    load(shared.at().add(1), &mut odd);
                    store(shared.at().add(9), &[1, 2, 3]);
                    fetch_add(shared.at().add(16), 1);
                    store(shared.at().add(24), &[7; 4]);
                    assert!(WORDS.contains(&load_u64(shared.at())), "torn");
                }
                assert!(WORDS.contains(&u64::from_ne_bytes(whole)), "torn");
                assert!(half == [0; 4] || half == [0xff; 4], "torn");
            }
        });
        assert_eq!(words[2], rounds as u64);
    }

    #[test]
    fn a_long_walk_goes_past_the_caches_and_a_buffer_used_again_does_not() {
        let mut f = Footprint::default();
        let piece = 256 << 10;
        for _ in 0..10_000 {
            assert_eq!(f.caching(4096, piece), Caching::Cached);
        }
        // On other machines there is one way only.
        if cfg!(all(target_arch = "x86_64", not(miri))) {
            let walk = (0..4096_u64).map(|i| f.caching(i * piece as u64, piece)).collect::<Vec<_>>();
            assert_eq!((walk[0], walk[4095]), (Caching::Cached, Caching::Streaming));
            assert_eq!(f.caching(0, piece), Caching::Cached);
        }
    }
}
