//! Access to registers, with its barriers.
//!
//! Invariants:
//! 1. `base .. base + len` lies within the mapping that `held` keeps, and `base` is a multiple of 8.
//! 2. Registers are not memory of the program: no reference to them is ever made, and each access is one volatile load
//!    or store of its width, so the compiler never duplicates, splits, drops or reorders accesses.
//! 3. A [`Register`]'s address was checked when the register was created, by the same rule as each access of an
//!    [`Mmio`].
//! 4. An access to a register can cause the device to access memory. The device reaches only memory that was mapped for
//!    it, and no reference to that memory is ever made.
//!
//! # Caching and BlueFlame
//!
//! Linux's vfio maps registers uncached. Each store then leaves the processor on its own, in order, and eight stores of
//! 8 bytes are eight transactions on the bus: a BlueFlame write of 64 bytes works, but costs more than the doorbell
//! that it replaces. Only a mapping with write combining makes one transaction of the eight stores. Neither vfio nor,
//! for a function that vfio holds, sysfs offers such a mapping. So a driver rings doorbells, and uses BlueFlame only on
//! request. Registers of a vfio-user server are ordinary cached memory: stores are quick, and the server sees them in
//! order.
//!
//! # Barriers
//!
//! | | before | x86-64 | aarch64 | others |
//! |---|---|---|---|---|
//! | [`dma_wmb`] | a store that announces earlier stores to the device by memory (a doorbell record) | stores stay in order: the compiler is kept to it | `dmb oshst` | full fence |
//! | [`dma_rmb`] | reading the device's data, once its valid bit was seen | loads stay in order: the compiler is kept to it | `dmb oshld` | full fence |
//! | [`doorbell_wmb`] | writing a register that makes the device read memory | an uncached store waits for all before it: the compiler is kept to it | `dsb st` | full fence |
//! | [`wc_flush`] | any store that must follow combined stores | `sfence` | `dsb st` | full fence |
#![allow(unsafe_code)]

use core::fmt;
use core::ptr::NonNull;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use core::sync::atomic::fence;
use core::sync::atomic::{Ordering, compiler_fence};
use std::any::Any;
use std::sync::{Arc, Weak};

use rustix::io::Errno;

use crate::mapping::Mapping;

/// A window on registers. Clones and parts are windows on the same registers. The registers stay mapped as long as one
/// window lives.
///
/// Offsets count from the window's beginning, and are multiples of the access's width.
///
/// Two threads may use windows on the same registers at the same time, as far as the device allows; the driver has to
/// know the device's rules for that.
#[derive(Clone)]
pub struct Mmio {
    base: NonNull<u8>,
    len: usize,
    held: Arc<Held>,
}

pub(crate) struct Held {
    mapping: Mapping,
    /// The owner that keeps the registers mapped.
    _owner: Box<dyn Any + Send + Sync>,
}

impl Held {
    /// Has ordinary memory be in the registers' place.
    pub(crate) fn detach(&self) -> Result<(), Errno> {
        self.mapping.detach()
    }
}

// SAFETY: (2) no reference is made to what it points at, and registers belong to no thread.
unsafe impl Send for Mmio {}
// SAFETY: as above.
unsafe impl Sync for Mmio {}

impl fmt::Debug for Mmio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mmio").field("base", &self.base).field("len", &self.len).finish_non_exhaustive()
    }
}

impl Mmio {
    /// A window on `len` bytes from `at` on of what is mapped, which keeps `owner`.
    pub(crate) fn new(mapping: Mapping, at: usize, len: usize, owner: impl Any + Send + Sync) -> Self {
        let whole = Self {
            base: mapping.base(),
            len: mapping.len(),
            held: Arc::new(Held { mapping, _owner: Box::new(owner) }),
        };
        whole.part(at, len)
    }

    /// The mapping of the window, for code that replaces the registers under it.
    pub(crate) fn held(&self) -> Weak<Held> {
        Arc::downgrade(&self.held)
    }

    /// A window on a part of this window.
    ///
    /// # Panics
    /// If the part does not lie within the window, or does not begin at a multiple of 8.
    pub fn part(&self, at: usize, len: usize) -> Self {
        assert!(at.is_multiple_of(8), "{at:#x} is no multiple of 8");
        Self { base: self.place(at, len), len, held: self.held.clone() }
    }
    /// The length of the window in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether the window has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    fn place(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at:#x} of {:#x}", self.len);
        // SAFETY: (1) and the line above.
        unsafe { self.base.add(at) }
    }
    #[inline(always)]
    fn word<T>(&self, at: usize) -> *mut T {
        assert!(at.is_multiple_of(size_of::<T>()), "{at:#x} is not aligned");
        // (1) the base is aligned for all of these.
        self.place(at, size_of::<T>()).as_ptr().cast()
    }

    /// Reads 4 bytes, in the host's order.
    ///
    /// # Panics
    /// If the bytes lie outside of the window or are not aligned. The other accessors panic likewise.
    #[inline]
    pub fn load32(&self, at: usize) -> u32 {
        // SAFETY: (1) `word` has checked range and alignment; (2).
        unsafe { self.word::<u32>(at).read_volatile() }
    }
    /// Reads 8 bytes, in the host's order; by one access on 64-bit processors.
    #[inline]
    pub fn load64(&self, at: usize) -> u64 {
        // SAFETY: as in `load32`.
        unsafe { self.word::<u64>(at).read_volatile() }
    }
    /// Reads 4 bytes that are big-endian.
    #[inline]
    pub fn load32_be(&self, at: usize) -> u32 {
        u32::from_be(self.load32(at))
    }
    /// Reads 8 bytes that are big-endian.
    #[inline]
    pub fn load64_be(&self, at: usize) -> u64 {
        u64::from_be(self.load64(at))
    }
    /// Writes 4 bytes, in the host's order.
    #[inline]
    pub fn store32(&self, at: usize, v: u32) {
        // SAFETY: (1) `word` has checked range and alignment; (2), (4).
        unsafe { self.word::<u32>(at).write_volatile(v) }
    }
    /// Writes 8 bytes, in the host's order; by one access on 64-bit processors.
    #[inline]
    pub fn store64(&self, at: usize, v: u64) {
        // SAFETY: as in `store32`.
        unsafe { self.word::<u64>(at).write_volatile(v) }
    }
    /// Writes 4 bytes big-endian.
    #[inline]
    pub fn store32_be(&self, at: usize, v: u32) {
        self.store32(at, v.to_be());
    }
    /// Writes 8 bytes big-endian.
    #[inline]
    pub fn store64_be(&self, at: usize, v: u64) {
        self.store64(at, v.to_be());
    }
    /// Writes 64 bytes unchanged, by eight stores in ascending order (BlueFlame). The stores become one transaction
    /// only in a write-combining mapping, and have left the processor after [`wc_flush`].
    #[inline]
    pub fn store_64_bytes(&self, at: usize, data: &[u8; 64]) {
        assert!(at.is_multiple_of(8), "{at:#x} is not aligned");
        let to: *mut u64 = self.place(at, 64).as_ptr().cast();
        for (i, word) in data.as_chunks::<8>().0.iter().enumerate() {
            // SAFETY: (1) 64 bytes from `to` on are within, and eight words are 64 bytes; (2), (4).
            unsafe { to.add(i).write_volatile(u64::from_ne_bytes(*word)) };
        }
    }

    /// The register of 4 or 8 bytes at `at`, for registers that are written often: its address is checked once, by this
    /// call.
    ///
    /// # Panics
    /// If the register lies outside of the window or is not aligned.
    pub fn register<T: Word>(&self, at: usize) -> Register<T> {
        let word = NonNull::new(self.word::<T>(at)).expect("it lies behind a base that is not null");
        Register { word, held: self.held.clone() }
    }

    /// What is mapped, and how much: for tests of what lies below.
    #[cfg(test)]
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.held.mapping.len()
    }
}

/// The type of a register: 4 or 8 bytes.
pub trait Word: Copy + sealed::Sealed {}
impl Word for u32 {}
impl Word for u64 {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// One register of 4 or 8 bytes, in the host's order. The register stays mapped as long as this value, or a window on
/// the register, lives.
#[derive(Clone)]
pub struct Register<T> {
    word: NonNull<T>,
    held: Arc<Held>,
}

// SAFETY: (2), as for `Mmio`.
unsafe impl<T: Word> Send for Register<T> {}
// SAFETY: as above.
unsafe impl<T: Word> Sync for Register<T> {}

impl<T> fmt::Debug for Register<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { word, held } = self;
        f.debug_struct("Register").field("word", word).field("mapped", &held.mapping.len()).finish()
    }
}

impl<T: Word> Register<T> {
    /// Reads the register; by one access on 64-bit processors.
    #[inline(always)]
    pub fn load(&self) -> T {
        // SAFETY: (3), (2).
        unsafe { self.word.as_ptr().read_volatile() }
    }
    /// Writes the register; by one access on 64-bit processors.
    #[inline(always)]
    pub fn store(&self, v: T) {
        // SAFETY: (3), (2), (4).
        unsafe { self.word.as_ptr().write_volatile(v) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        tracing::trace!(bytes = self.mapping.len(), "registers are no longer mapped");
    }
}

/// Orders stores to memory before later stores to memory, as the device sees them.
#[inline(always)]
pub fn dma_wmb() {
    #[cfg(target_arch = "x86_64")]
    compiler_fence(Ordering::SeqCst);
    // SAFETY: a barrier touches no memory and no register.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// Orders loads from memory that the device has written before later loads from such memory.
#[inline(always)]
pub fn dma_rmb() {
    #[cfg(target_arch = "x86_64")]
    compiler_fence(Ordering::SeqCst);
    // SAFETY: a barrier touches no memory and no register.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// Orders stores to memory before later stores to registers without write combining.
#[inline(always)]
pub fn doorbell_wmb() {
    #[cfg(target_arch = "x86_64")]
    compiler_fence(Ordering::SeqCst);
    // SAFETY: a barrier touches no memory and no register.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// Makes combined stores leave the processor before any later store.
#[inline(always)]
pub fn wc_flush() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a barrier touches no memory.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    // SAFETY: a barrier touches no memory and no register.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memory::memfd;

    fn window() -> (Mmio, Mmio) {
        let file = memfd("hca-test", 8192).unwrap();
        let map = || Mapping::of_file(file.as_fd(), 0, 8192, 1).unwrap();
        (Mmio::new(map(), 0, 8192, ()), Mmio::new(map(), 4096, 4096, ()))
    }

    #[test]
    fn registers_are_read_and_written_in_the_order_of_bytes_that_is_asked_for() {
        let (all, upper) = window();
        assert_eq!(
            (all.len(), upper.len(), upper.is_empty(), upper.mapped_bytes()),
            (8192, 4096, false, 8192)
        );
        upper.store32_be(0x10, 0x0102_0304);
        assert_eq!(all.load32(0x1010).to_ne_bytes(), [1, 2, 3, 4]);
        upper.store64_be(0x18, 0x0102_0304_0506_0708);
        assert_eq!(all.load64(0x1018).to_ne_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        all.store32(0x1020, 7);
        all.store64(0x1028, 8);
        assert_eq!((upper.load32(0x20), upper.load64(0x28)), (7, 8));
        let (word, long) = (upper.register::<u32>(0x20), upper.register::<u64>(0x28));
        word.store(word.load() + 2);
        long.store(long.load() + 2);
        assert_eq!((all.load32(0x1020), all.load64(0x1028)), (9, 10));
        assert_eq!((upper.load32_be(0x10), upper.load64_be(0x18)), (0x0102_0304, 0x0102_0304_0506_0708));
        let line: [u8; 64] = core::array::from_fn(|i| i as u8);
        let part = upper.part(0x800, 64);
        part.store_64_bytes(0, &line);
        assert_eq!(all.load64(0x1838).to_ne_bytes(), [56, 57, 58, 59, 60, 61, 62, 63]);
        for barrier in [dma_wmb, dma_rmb, doorbell_wmb, wc_flush] {
            barrier();
        }
    }

    #[test]
    fn accesses_outside_of_a_window_or_not_aligned_are_refused() {
        let (_, upper) = window();
        let panics = |f: &dyn Fn(&Mmio)| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&upper))).unwrap_err();
        };
        panics(&|w| assert_eq!(w.load32(4096), 0));
        panics(&|w| w.store64(4092, 0));
        panics(&|w| w.store64(4, 0));
        panics(&|w| assert_eq!(w.load32(2), 0));
        panics(&|w| w.store_64_bytes(4040, &[0; 64]));
        panics(&|w| assert_eq!(w.load64(usize::MAX - 7), 0));
        panics(&|w| drop(w.part(4096, 1)));
        panics(&|w| drop(w.part(4, 8)));
        panics(&|w| drop(w.register::<u64>(4)));
        panics(&|w| drop(w.register::<u32>(4096)));
        panics(&|w| drop(w.register::<u64>(4096)));
    }
}
