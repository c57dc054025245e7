//! Single accesses of memory that others change, 1 to 8 bytes wide, and the atomic operations on words of 8.
//!
//! Rust's memory model leaves unordered accesses of several sizes to the same bytes undefined, atomic or not. A program
//! may read 4 bytes while another thread writes the 8 around them, so none of these are Rust's own accesses:
//!
//! | where | how | an aligned access is seen whole |
//! |---|---|---|
//! | x86-64 | one instruction of assembly | yes |
//! | other processors | one volatile access; atomics for the operations on words | yes, as these compile |
//! | Miri, which has no assembly | atomics of one byte each, under one lock | yes |
//!
//! Under Miri the lock orders more than processors do: Miri proves that copies are not undefined behaviour, but not
//! that a program orders them enough.
//!
//! Invariants:
//! 1. The caller guarantees that the address is mapped, with the right to this access, and is a multiple of the width.
//! 2. Accesses by themselves order only the compiler; a caller that needs more order puts fences around them.
#![allow(unsafe_code)] // volatile words of raw memory, and assembly

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use assembly::*;
#[cfg(miri)]
pub(crate) use bytes::*;
#[cfg(not(any(target_arch = "x86_64", miri)))]
pub(crate) use volatile::*;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod assembly {
    use core::arch::asm;

    use crate::fault::survivable;

    macro_rules! access {
        ($($load:ident $store:ident $t:ty, $class:ident, $get:literal, $clear:literal, $put:literal;)*) => {$(
            /// # Safety
            /// (1) for reads.
            #[inline(always)]
            pub(crate) unsafe fn $load(at: *const u8) -> $t {
                let value: $t;
                // SAFETY: our caller's.
                unsafe {
                    asm!(
                        survivable!(lost: $get, $clear),
                        v = out($class) value, at = in(reg) at,
                        options(nostack, preserves_flags)
                    );
                }
                value
            }
            /// # Safety
            /// (1) for writes.
            #[inline(always)]
            pub(crate) unsafe fn $store(at: *mut u8, value: $t) {
                // SAFETY: our caller's.
                unsafe {
                    asm!(
                        survivable!(dropped: $put),
                        v = in($class) value, at = in(reg) at,
                        options(nostack, preserves_flags)
                    );
                }
            }
        )*};
    }
    access! {
        load8 store8 u8, reg_byte, "mov {v}, byte ptr [{at}]", "mov {v}, 0", "mov byte ptr [{at}], {v}";
        load16 store16 u16, reg, "movzx {v:e}, word ptr [{at}]", "mov {v:e}, 0", "mov word ptr [{at}], {v:x}";
        load32 store32 u32, reg, "mov {v:e}, dword ptr [{at}]", "mov {v:e}, 0", "mov dword ptr [{at}], {v:e}";
        load64 store64 u64, reg, "mov {v}, qword ptr [{at}]", "mov {v:e}, 0", "mov qword ptr [{at}], {v}";
    }

    /// Loads a byte, if its page is there.
    ///
    /// # Safety
    /// (1) for reads, or the page is missing.
    pub(crate) unsafe fn load_if_there(at: *const u8) -> Option<u8> {
        let (value, is_there): (u8, u32);
        // SAFETY: our caller's.
        unsafe {
            asm!(
                "mov {there:e}, 1",
                survivable!(told: "mov {v}, byte ptr [{at}]", "mov {there:e}, 0"),
                v = out(reg_byte) value, there = out(reg) is_there, at = in(reg) at,
                options(nostack, preserves_flags)
            );
        }
        (is_there != 0).then_some(value)
    }
    /// Stores a byte, if its page is there.
    ///
    /// # Safety
    /// (1) for writes, or the page is missing.
    pub(crate) unsafe fn store_if_there(at: *mut u8, value: u8) -> bool {
        let is_there: u32;
        // SAFETY: our caller's.
        unsafe {
            asm!(
                "mov {there:e}, 1",
                survivable!(told: "mov byte ptr [{at}], {v}", "mov {there:e}, 0"),
                v = in(reg_byte) value, there = out(reg) is_there, at = in(reg) at,
                options(nostack, preserves_flags)
            );
        }
        is_there != 0
    }

    /// Returns the old value.
    ///
    /// # Safety
    /// (1) for reads and writes.
    #[inline(always)]
    pub(crate) unsafe fn swap_if_equal(at: *mut u8, compare: u64, swap: u64) -> u64 {
        let mut old = compare;
        // SAFETY: our caller's.
        unsafe {
            asm!(
                survivable!(lost: "lock cmpxchg qword ptr [{at}], {swap}", "xor eax, eax"),
                at = in(reg) at, swap = in(reg) swap, inout("rax") old,
                options(nostack)
            );
        }
        old
    }
    /// Returns the old value.
    ///
    /// # Safety
    /// (1) for reads and writes.
    #[inline(always)]
    pub(crate) unsafe fn add(at: *mut u8, add: u64) -> u64 {
        let mut value = add;
        // SAFETY: our caller's.
        unsafe {
            asm!(
                survivable!(lost: "lock xadd qword ptr [{at}], {v}", "xor {v:e}, {v:e}"),
                at = in(reg) at, v = inout(reg) value,
                options(nostack)
            );
        }
        value
    }
}

#[cfg(not(any(target_arch = "x86_64", miri)))]
mod volatile {
    use core::sync::atomic::{AtomicU64, Ordering};

    macro_rules! access {
        ($($load:ident $store:ident $t:ty;)*) => {$(
            /// # Safety
            /// (1) for reads.
            #[inline(always)]
            pub(crate) unsafe fn $load(at: *const u8) -> $t {
                // SAFETY: our caller's.
                unsafe { at.cast::<$t>().read_volatile() }
            }
            /// # Safety
            /// (1) for writes.
            #[inline(always)]
            pub(crate) unsafe fn $store(at: *mut u8, value: $t) {
                // SAFETY: our caller's.
                unsafe { at.cast::<$t>().write_volatile(value) };
            }
        )*};
    }
    access! {
        load8 store8 u8;
        load16 store16 u16;
        load32 store32 u32;
        load64 store64 u64;
    }

    /// Returns the old value.
    ///
    /// # Safety
    /// (1) for reads and writes.
    #[inline(always)]
    pub(crate) unsafe fn swap_if_equal(at: *mut u8, compare: u64, swap: u64) -> u64 {
        // SAFETY: our caller's.
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|old| old)
    }
    /// Returns the old value.
    ///
    /// # Safety
    /// (1) for reads and writes.
    #[inline(always)]
    pub(crate) unsafe fn add(at: *mut u8, add: u64) -> u64 {
        // SAFETY: our caller's.
        unsafe { AtomicU64::from_ptr(at.cast()) }.fetch_add(add, Ordering::AcqRel)
    }
}

#[cfg(miri)]
mod bytes {
    use core::sync::atomic::{AtomicU8, Ordering};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    fn lock() -> MutexGuard<'static, ()> {
        static LOCK: Mutex<()> = Mutex::new(());
        LOCK.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// # Safety
    /// (1) for reads.
    unsafe fn get<const N: usize>(at: *const u8) -> [u8; N] {
        // SAFETY: our caller's.
        core::array::from_fn(|i| unsafe { AtomicU8::from_ptr(at.add(i).cast_mut()) }.load(Ordering::Relaxed))
    }
    /// # Safety
    /// (1) for writes.
    unsafe fn put<const N: usize>(at: *mut u8, bytes: [u8; N]) {
        for (i, byte) in bytes.into_iter().enumerate() {
            // SAFETY: our caller's.
            unsafe { AtomicU8::from_ptr(at.add(i)) }.store(byte, Ordering::Relaxed);
        }
    }

    macro_rules! access {
        ($($load:ident $store:ident $t:ty;)*) => {$(
            /// # Safety
            /// (1) for reads.
            pub(crate) unsafe fn $load(at: *const u8) -> $t {
                let _whole = lock();
                // SAFETY: our caller's.
                <$t>::from_ne_bytes(unsafe { get(at) })
            }
            /// # Safety
            /// (1) for writes.
            pub(crate) unsafe fn $store(at: *mut u8, value: $t) {
                let _whole = lock();
                // SAFETY: our caller's.
                unsafe { put(at, value.to_ne_bytes()) };
            }
        )*};
    }
    access! {
        load8 store8 u8;
        load16 store16 u16;
        load32 store32 u32;
        load64 store64 u64;
    }

    /// # Safety
    /// (1) for reads and writes.
    unsafe fn update(at: *mut u8, new: impl FnOnce(u64) -> u64) -> u64 {
        let _whole = lock();
        // SAFETY: our caller's.
        unsafe {
            let old = u64::from_ne_bytes(get(at));
            put(at, new(old).to_ne_bytes());
            old
        }
    }
    /// Returns the old value.
    ///
    /// # Safety
    /// (1) for reads and writes.
    pub(crate) unsafe fn swap_if_equal(at: *mut u8, compare: u64, swap: u64) -> u64 {
        // SAFETY: our caller's.
        unsafe { update(at, |old| if old == compare { swap } else { old }) }
    }
    /// Returns the old value.
    ///
    /// # Safety
    /// (1) for reads and writes.
    pub(crate) unsafe fn add(at: *mut u8, add: u64) -> u64 {
        // SAFETY: our caller's.
        unsafe { update(at, |old| old.wrapping_add(add)) }
    }
}
