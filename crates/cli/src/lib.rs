//! The `hca` command as a library: its binary calls [`main`], and nothing else is meant for programs.
//!
//! | module | what it holds |
//! |---|---|
//! | `args` | the command line and its help, and how each command ends |
//! | `devinfo`, `perf`, `pingpong`, `run`, `serve`, `trace` | the commands |
//! | `warnings` | what the library warns of, on standard error |
#![forbid(unsafe_code)]

mod args;
mod devinfo;
mod perf;
mod pingpong;
mod run;
mod serve;
mod trace;
mod warnings;

pub use args::main;
#[cfg(fuzzing)]
pub use pingpong::fuzzed::ping_pong as fuzz_ping_pong;
