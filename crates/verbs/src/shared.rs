//! Reads and writes of memory that others may touch at any time: peers, the device, other threads.
//!
//! Invariants of the unsafe code:
//! 1. A [`SharedBytes`] covers memory that is valid while the region that it came from lives, which
//!    its holder sees to.
//! 2. No reference to such memory is ever made; all access goes through the functions here.
//! 3. Access is by relaxed atomics of the largest size that address and length allow, up to 8 bytes,
//!    so that an aligned piece of 8, 4 or 2 bytes is read or written whole. Long copies inside of which
//!    nothing is promised are one machine instruction that the compiler can't look into.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// Copies of at least this many bytes go by `rep movsb`, where there is one.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LONG_COPY: usize = 512;

/// Memory that others may touch.
#[derive(Clone, Copy)]
pub(crate) struct SharedBytes {
    addr: NonNull<u8>,
    len: usize,
}

// SAFETY: all access is by atomics (3); whose memory it is, the holder sees to (1).
unsafe impl Send for SharedBytes {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// Covers `addr .. addr + len`.
    ///
    /// # Safety
    /// The memory stays valid for as long as the value is used, and is touched through no reference.
    pub(crate) const unsafe fn new(addr: NonNull<u8>, len: usize) -> Self {
        Self { addr, len }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn addr(&self) -> NonNull<u8> {
        self.addr
    }

    /// The address of `len` bytes at `offset`.
    ///
    /// # Panics
    /// They do not lie inside.
    #[inline]
    #[track_caller]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "bytes {offset}..{} of a region of {}",
            offset.saturating_add(len),
            self.len
        );
        // SAFETY: inside of the memory, as just checked; (1).
        unsafe { self.addr.as_ptr().add(offset) }
    }

    #[inline]
    #[track_caller]
    fn word(&self, offset: usize) -> &AtomicU64 {
        let p = self.at(offset, 8).cast::<u64>();
        assert!(p.is_aligned(), "offset {offset} is not aligned to 8 bytes");
        // SAFETY: valid (1), aligned, and touched by atomics only (2), (3).
        unsafe { AtomicU64::from_ptr(p) }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    #[inline]
    #[track_caller]
    pub(crate) fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    #[track_caller]
    pub(crate) fn fetch_add(&self, offset: usize, value: u64) -> u64 {
        self.word(offset).fetch_add(value, Ordering::AcqRel)
    }

    #[track_caller]
    pub(crate) fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.word(offset).compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }

    /// Copies from here.
    #[inline]
    #[track_caller]
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        let from = self.at(offset, out.len()).cast_const();
        if let Ok(word) = <&mut [u8; 8]>::try_from(&mut *out)
            && from.addr() & 7 == 0
        {
            // SAFETY: 8 bytes lie inside (1), aligned, and access is atomic (3).
            *word = unsafe { load64(from) }.to_ne_bytes();
            return fence(Ordering::Acquire);
        }
        // SAFETY: as many bytes lie inside.
        unsafe { Self::read_from(from, out) }
    }
    /// # Safety
    /// As many bytes as `out` has lie inside of the memory from `from` on.
    unsafe fn read_from(mut from: *const u8, out: &mut [u8]) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if out.len() >= LONG_COPY {
            // SAFETY: `at` checked the source, `out` is the target.
            unsafe { move_bytes(from, out.as_mut_ptr(), out.len()) };
            fence(Ordering::Acquire);
            return;
        }
        let mut rest = out;
        while !rest.is_empty() {
            let n = piece(from.addr(), rest.len());
            let (now, later) = rest.split_at_mut(n);
            // SAFETY: `n` bytes are left inside (1), `from` is aligned to `n`, access is atomic (3).
            unsafe {
                match n {
                    8 => now.copy_from_slice(&load64(from).to_ne_bytes()),
                    4 => now.copy_from_slice(&load32(from).to_ne_bytes()),
                    2 => now.copy_from_slice(&load16(from).to_ne_bytes()),
                    _ => now[0] = AtomicU8::from_ptr(from.cast_mut()).load(Ordering::Relaxed),
                }
                from = from.add(n);
            }
            rest = later;
        }
        fence(Ordering::Acquire);
    }

    /// Copies to here.
    #[inline]
    #[track_caller]
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        let to = self.at(offset, data.len());
        fence(Ordering::Release);
        if let Ok(word) = <&[u8; 8]>::try_from(data)
            && to.addr() & 7 == 0
        {
            // SAFETY: 8 bytes lie inside (1), aligned, and access is atomic (3).
            let to = unsafe { AtomicU64::from_ptr(to.cast()) };
            return to.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        // SAFETY: as many bytes lie inside.
        unsafe { Self::write_to(to, data) }
    }
    /// # Safety
    /// As many bytes as `data` has lie inside of the memory from `to` on.
    unsafe fn write_to(mut to: *mut u8, data: &[u8]) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if data.len() >= LONG_COPY {
            // SAFETY: `at` checked the target, `data` is the source.
            unsafe { move_bytes(data.as_ptr(), to, data.len()) };
            return;
        }
        let mut rest = data;
        while !rest.is_empty() {
            let n = piece(to.addr(), rest.len());
            let (now, later) = rest.split_at(n);
            // SAFETY: `n` bytes are left inside (1), `to` is aligned to `n`, access is atomic (3).
            unsafe {
                match n {
                    8 => AtomicU64::from_ptr(to.cast())
                        .store(u64::from_ne_bytes(now.try_into().expect("8 bytes")), Ordering::Relaxed),
                    4 => AtomicU32::from_ptr(to.cast())
                        .store(u32::from_ne_bytes(now.try_into().expect("4 bytes")), Ordering::Relaxed),
                    2 => AtomicU16::from_ptr(to.cast())
                        .store(u16::from_ne_bytes(now.try_into().expect("2 bytes")), Ordering::Relaxed),
                    _ => AtomicU8::from_ptr(to).store(now[0], Ordering::Relaxed),
                }
                to = to.add(n);
            }
            rest = later;
        }
    }
}

/// The largest piece of 8, 4, 2 or 1 bytes that is aligned at `addr` and not longer than `len`.
#[inline]
fn piece(addr: usize, len: usize) -> usize {
    let aligned = 1 << addr.trailing_zeros().min(3);
    let fits = 1 << len.ilog2().min(3);
    usize::min(aligned, fits)
}

/// # Safety
/// `p` is valid and aligned to 8, and the memory is touched by atomics only.
#[inline]
unsafe fn load64(p: *const u8) -> u64 {
    // SAFETY: as the caller promised.
    unsafe { AtomicU64::from_ptr(p.cast_mut().cast()) }.load(Ordering::Relaxed)
}

/// # Safety
/// `p` is valid and aligned to 4, and the memory is touched by atomics only.
#[inline]
unsafe fn load32(p: *const u8) -> u32 {
    // SAFETY: as the caller promised.
    unsafe { AtomicU32::from_ptr(p.cast_mut().cast()) }.load(Ordering::Relaxed)
}

/// # Safety
/// `p` is valid and aligned to 2, and the memory is touched by atomics only.
#[inline]
unsafe fn load16(p: *const u8) -> u16 {
    // SAFETY: as the caller promised.
    unsafe { AtomicU16::from_ptr(p.cast_mut().cast()) }.load(Ordering::Relaxed)
}

/// Moves bytes by one instruction, which the compiler takes for anything that may happen there.
///
/// # Safety
/// Both ranges are valid and do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn move_bytes(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: (3): the ranges are valid; the direction flag is clear by the ABI.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(words: &mut [u64]) -> SharedBytes {
        let addr = NonNull::new(words.as_mut_ptr().cast::<u8>()).unwrap();
        // SAFETY: the tests use the words through the region alone while they use the region.
        unsafe { SharedBytes::new(addr, words.len() * 8) }
    }

    #[test]
    fn copies_of_every_length_and_alignment_arrive() {
        let mut words = [0_u64; 160];
        let shared = region(&mut words);
        let lens = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 511, 512, 513, 1000];
        for offset in 0..9 {
            for (seed, len) in lens.into_iter().enumerate() {
                let data: Vec<u8> = (0..len).map(|i| (i * 7 + seed + offset) as u8).collect();
                shared.write(0, &[0xee; 1280]);
                shared.write(offset, &data);
                let mut back = vec![0; len];
                shared.read(offset, &mut back);
                assert_eq!(back, data);
                let mut after = [0];
                shared.read(offset + len, &mut after);
                assert_eq!(after, [0xee], "nothing beyond is touched");
            }
        }
    }

    #[test]
    fn pieces_are_the_largest_that_fit() {
        assert_eq!([piece(8, 9), piece(12, 9), piece(10, 9), piece(9, 9)], [8, 4, 2, 1]);
        assert_eq!([piece(16, 7), piece(16, 3), piece(16, 1)], [4, 2, 1]);
    }

    #[test]
    fn words_are_updated_atomically() {
        let mut words = [5, 0];
        let shared = region(&mut words);
        assert_eq!(shared.fetch_add(0, 3), 5);
        assert_eq!(shared.compare_exchange(0, 8, 9), Ok(8));
        assert_eq!(shared.compare_exchange(0, 8, 10), Err(9));
        shared.store(8, 1);
        assert_eq!((shared.load(0), shared.load(8)), (9, 1));
    }

    #[test]
    #[should_panic(expected = "bytes 9..17 of a region of 16")]
    fn access_beyond_the_end_panics() {
        let mut words = [0; 2];
        region(&mut words).write(9, &[0; 8]);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn a_misaligned_word_panics() {
        let mut words = [0; 2];
        region(&mut words).load(4);
    }
}
