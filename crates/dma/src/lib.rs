//! Copies and atomics on memory that others (devices, peers, other processes and threads) may read and write meanwhile.
//!
//! No slice of such memory may exist, and neither `memcpy` nor atomics are allowed: concurrent writes of others make a
//! `memcpy` undefined behaviour, and so do two sizes of atomics on the same bytes. All crates of the project that
//! access such memory by ranges of bytes use the functions of this crate.
//!
//! Every function moves an aligned piece of 1, 2, 4 or 8 bytes by one access, so that others see it as a whole. From
//! 128 bytes on that holds for copies that begin and end at multiples of 8 on both sides; of others, a word in the
//! middle may be moved in two parts. The order within a longer copy is undefined.
//!
//! | module | contents |
//! |---|---|
//! | `copies` | copies of any length, the quickest way for each |
//! | `word` | the accesses that they are made of: assembly, volatile words, bytes under Miri |
//! | `fault` | memory that a program has unmapped: stores are dropped, and lost loads are told, after [`survive`] |
//! | `hold` | [`hold_writers`], by which memory is moved under other threads that write there |
#![deny(unsafe_code)]

mod copies;
#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
mod fault;
#[cfg(not(all(target_arch = "x86_64", target_env = "gnu", not(miri))))]
#[path = "fault_none.rs"]
mod fault;
#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
mod hold;
mod word;

pub use copies::{
    Caching, FEW_BYTES, Footprint, compare_swap, copy, fetch_add, load, load_as, load_line, load_relaxed,
    load_u64, store, store_as, store_relaxed, store_u64, zero,
};
#[cfg(not(all(target_arch = "x86_64", target_env = "gnu", not(miri))))]
pub use fault::hold_writers;
pub use fault::{has_lost, survive, survives};
#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
pub use hold::hold_writers;
