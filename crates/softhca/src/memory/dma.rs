//! Copies and atomics of [`hca_dma`], on memory that others (the program, its peers) may read and write meanwhile.
//!
//! Every address comes from a region of the key table, range checked, under the engine's lock; `reg_mr`'s contract
//! keeps it valid until `dereg_mr`, which takes that lock. Where the program breaks the contract and has asked for
//! [`survive`](hca_dma::survive), stores to memory that it unmapped are dropped, as nobody sees what an adapter in
//! silicon writes to its pinned pages. What would have to be read there is [`Unmapped`].
#![allow(unsafe_code)]

pub(crate) use hca_dma::store;
use hca_dma::{compare_swap, fetch_add, has_lost, store_u64};
use hca_transport::{AtomicOp, LocalError};

/// The program has unmapped memory that is registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unmapped;

impl From<Unmapped> for LocalError {
    fn from(_: Unmapped) -> Self {
        Self::Protection
    }
}

/// Whether this thread has copied from memory that is not there.
///
/// # Errors
/// It has.
#[inline(always)]
pub(crate) fn copied() -> Result<(), Unmapped> {
    if has_lost() { Err(Unmapped) } else { Ok(()) }
}

/// Loads bytes as [`hca_dma::load`] does.
///
/// # Errors
/// The memory is not there.
///
/// # Safety
/// As [`hca_dma::load`], or the program has unmapped the memory.
#[inline(always)]
pub(crate) unsafe fn load(from: *const u8, out: &mut [u8]) -> Result<(), Unmapped> {
    // SAFETY: our caller's.
    unsafe { hca_dma::load(from, out) };
    copied()
}

/// Does an atomic operation of the CPU on the aligned word at `at`; returns the old value, or the one that it stored.
///
/// # Errors
/// The memory is not there.
///
/// # Safety
/// `at .. at + 8` is valid as above, and `at` is a multiple of 8.
pub(crate) unsafe fn atomic(at: *mut u8, op: AtomicOp) -> Result<u64, Unmapped> {
    // SAFETY: our caller's.
    let old = unsafe {
        match op {
            AtomicOp::CompareSwap { compare, swap } => compare_swap(at, compare, swap),
            AtomicOp::FetchAdd { add } => fetch_add(at, add),
            AtomicOp::Write { value } => {
                store_u64(at, value);
                value
            }
        }
    };
    copied().map(|()| old)
}
