//! libvipl: the 41 functions of VIPL, the C library of the VI Architecture, over [`hca::via`].
//!
//! C programs include `include/vipl.h` and link with `libvipl.so`. Programs in Rust use [`hca::via`] itself.
//!
//! | module | contents |
//! |---|---|
//! | `abi` | layouts and numbers of the header |
//! | `border` | the border to C: pointers, null, panics |
//! | `table` | handles |
//! | `nic` | adapters, their attributes, asynchronous errors, what an adapter knows of its network |
//! | `vi` | VIs |
//! | `connect` | connections between clients and servers, and between peers |
//! | `memory` | protection tags and registered memory |
//! | `queue` | posts, completions, notify callbacks |
//! | `cq` | completion queues |
//! | `names` | the name service |
//! | `fuzzed` | the fuzz target of calls, in tests and under the fuzzer only |
#![deny(unsafe_code)]
// They panic where standard error can not be written, which is to change no result.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![allow(non_snake_case)] // the functions have the names of VIPL

mod abi;
mod border;
mod connect;
mod cq;
#[cfg(any(test, fuzzing))]
mod fuzzed;
mod memory;
mod names;
mod nic;
mod queue;
mod table;
mod vi;

#[cfg(fuzzing)]
pub use fuzzed::calls as fuzz_calls;

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}
