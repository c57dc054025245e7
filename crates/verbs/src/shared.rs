//! Bounds-checked access to memory that others (peers, the device, other threads) may access at any time.
//!
//! Invariants of the unsafe code:
//! 1. A [`SharedBytes`] covers memory that is valid while its region lives; the holder keeps the region alive.
//! 2. No reference to such memory is ever made; all access goes through this module's functions, and these use
//!    [`hca_dma`].
#![allow(unsafe_code)]

use core::ptr::NonNull;

/// Memory that others may touch.
#[derive(Clone, Copy)]
pub(crate) struct SharedBytes {
    addr: NonNull<u8>,
    len: usize,
}

// SAFETY: (2) all access is made for memory that others touch; whose it is, the holder sees to (1).
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

    /// The `len` bytes at `offset`.
    ///
    /// # Panics
    /// They do not lie inside.
    #[inline]
    #[track_caller]
    pub(crate) fn part(&self, offset: usize, len: usize) -> Self {
        let addr = NonNull::new(self.at(offset, len)).expect("no memory is at 0");
        Self { addr, len }
    }

    /// The address of `len` bytes at `offset`.
    ///
    /// # Panics
    /// They do not lie inside.
    #[inline(always)]
    #[track_caller]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            outside(offset, len, self.len);
        }
        // SAFETY: inside of the memory, as just checked; (1).
        unsafe { self.addr.as_ptr().add(offset) }
    }

    #[inline]
    #[track_caller]
    fn word(&self, offset: usize) -> *mut u8 {
        aligned(self.at(offset, 8), offset)
    }

    #[inline]
    #[track_caller]
    pub(crate) fn load(&self, offset: usize) -> u64 {
        // SAFETY: 8 bytes inside, aligned, as `word` has checked; (1).
        unsafe { hca_dma::load_u64(self.word(offset)) }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn words<const N: usize>(&self, offset: usize) -> [u64; N] {
        let at = aligned(self.at(offset, 8 * N), offset);
        // SAFETY: as many words inside, aligned, as just checked; (1).
        core::array::from_fn(|i| unsafe { hca_dma::load_u64(at.add(8 * i)) })
    }

    #[inline]
    #[track_caller]
    pub(crate) fn store(&self, offset: usize, value: u64) {
        // SAFETY: as above.
        unsafe { hca_dma::store_u64(self.word(offset), value) };
    }

    #[track_caller]
    pub(crate) fn fetch_add(&self, offset: usize, value: u64) -> u64 {
        // SAFETY: as above.
        unsafe { hca_dma::fetch_add(self.word(offset), value) }
    }

    #[track_caller]
    pub(crate) fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<u64, u64> {
        // SAFETY: as above.
        let old = unsafe { hca_dma::compare_swap(self.word(offset), current, new) };
        if old == current { Ok(old) } else { Err(old) }
    }

    /// Copies from here.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        // SAFETY: as many bytes lie inside, as `at` has checked; (1).
        unsafe { hca_dma::load(self.at(offset, out.len()), out) };
    }

    /// Copies to here.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        // SAFETY: as above.
        unsafe { hca_dma::store(self.at(offset, data.len()), data) };
    }

    /// Copies to here, past this processor's caches.
    #[inline]
    #[track_caller]
    pub(crate) fn pass(&self, offset: usize, data: &[u8]) {
        // SAFETY: as above.
        unsafe { hca_dma::store_as(self.at(offset, data.len()), data, hca_dma::Caching::Passed) };
    }
}

/// The address, which is that of a word.
#[inline(always)]
#[track_caller]
fn aligned(at: *mut u8, offset: usize) -> *mut u8 {
    if at.addr() & 7 != 0 {
        misaligned(offset);
    }
    at
}

// Of values: what a message points to would have to lie in memory wherever it may be needed.
#[cold]
#[inline(never)]
#[track_caller]
fn outside(offset: usize, len: usize, whole: usize) -> ! {
    panic!("bytes {offset}..{} of memory of {whole}", offset.saturating_add(len));
}
#[cold]
#[inline(never)]
#[track_caller]
fn misaligned(offset: usize) -> ! {
    panic!("offset {offset} is not aligned to 8 bytes");
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
        // Miri takes bytes one by one, and long for it.
        for offset in if cfg!(miri) { 7..9 } else { 0..9 } {
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
    fn threads_read_and_write_the_same_bytes_in_pieces_of_several_sizes() {
        let mut words = [0; 2];
        let shared = region(&mut words);
        let rounds = if cfg!(miri) { 30 } else { 3_000 };
        std::thread::scope(|s| {
            s.spawn(|| (0..rounds).for_each(|i| shared.write(0, &[(i % 2) as u8; 8])));
            for _ in 0..rounds {
                let (mut half, mut odd) = ([0; 4], [0; 11]);
                shared.read(0, &mut half);
                shared.read(3, &mut odd);
                assert!(half == [0; 4] || half == [1; 4], "{half:?} was seen in part");
                assert!([0, 0x0101_0101_0101_0101].contains(&shared.load(0)), "a word was seen in part");
            }
        });
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
    #[should_panic(expected = "bytes 9..17 of memory of 16")]
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
