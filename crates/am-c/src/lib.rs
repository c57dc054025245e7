//! libam: Active Messages II for programs in C, over [`hca::am`].
//!
//! C programs include `include/am.h` and link with `libam.so`. Programs in Rust use [`hca::am`] itself.
//!
//! | module | contents |
//! |---|---|
//! | `border` | the border to C: pointers, handlers, tokens, panics |
//! | `objects` | the device, bundles and endpoints by their handles |
//! | `endpoint` | bundles and endpoints: segments, tags, translations, handlers, events |
//! | `message` | requests, replies, and what a handler learns of its message |
//! | `fuzzed` | the fuzz target of calls, in tests and under the fuzzer only |
#![deny(unsafe_code)]
// They panic where standard error can not be written, which is to change no result.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![allow(non_snake_case)] // the functions have the names of the header

mod border;
mod endpoint;
#[cfg(any(test, fuzzing))]
#[allow(unsafe_code)] // handlers of the program
mod fuzzed;
mod message;
mod objects;

#[cfg(fuzzing)]
pub use fuzzed::calls as fuzz_calls;

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}
