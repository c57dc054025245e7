//! Copies and atomics on memory that others (devices, peers, other processes and threads) may read and write meanwhile.
//!
//! No slice of such memory may exist, and neither `memcpy` nor atomics serve: what others write makes a `memcpy`
//! undefined behaviour, and so do two sizes of atomics on the same bytes. All crates of the project that touch such
//! memory by ranges of bytes do it by the functions here.
//!
//! What holds for all of them: an aligned piece of 1, 2, 4 or 8 bytes is moved by one access, so that others see it
//! whole. Inside of a longer copy nothing is promised.
//!
//! | module | what it holds |
//! |---|---|
//! | `copies` | copies of any length, the quickest way for each |
//! | `word` | the accesses that they are made of: assembly, volatile words, bytes under Miri |
#![deny(unsafe_code)]

mod copies;
mod word;

pub use copies::{
    Caching, FEW_BYTES, Footprint, compare_swap, copy, fetch_add, load, load_as, load_line, load_relaxed,
    load_u64, store, store_as, store_relaxed, store_u64, zero,
};
