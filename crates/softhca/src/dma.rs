//! Copies and atomics of [`hca_dma`], on memory that others (the program, its peers) may read and write meanwhile.
//!
//! Every address comes from a region of the key table, range checked, under the engine's lock; `reg_mr`'s contract
//! keeps it valid until `dereg_mr`, which takes that lock.
#![allow(unsafe_code)]

use hca_dma::{compare_swap, fetch_add, store_u64};
pub(crate) use hca_dma::{load, store};
use hca_transport::AtomicOp;

/// Does an atomic operation of the CPU on the aligned word at `at`; returns the old value, or the one that it stored.
///
/// # Safety
/// `at .. at + 8` is valid as above, and `at` is a multiple of 8.
pub(crate) unsafe fn atomic(at: *mut u8, op: AtomicOp) -> u64 {
    // SAFETY: our caller's.
    unsafe {
        match op {
            AtomicOp::CompareSwap { compare, swap } => compare_swap(at, compare, swap),
            AtomicOp::FetchAdd { add } => fetch_add(at, add),
            AtomicOp::Write { value } => {
                store_u64(at, value);
                value
            }
        }
    }
}
