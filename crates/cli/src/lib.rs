//! The `hca` command as a library for its binary, which calls [`main`]; programs use nothing else.
//!
//! | module | contents |
//! |---|---|
//! | `args` | the command line, its help, and exit codes |
//! | `devinfo`, `exec`, `list`, `logp`, `perf`, `ping`, `pingpong`, `run`, `serve`, `stat`, `trace` | the commands |
//! | `warnings` | the library's warnings, on standard error |
#![forbid(unsafe_code)]

mod args;
mod devinfo;
mod exec;
mod list;
mod logp;
mod perf;
mod ping;
mod pingpong;
mod run;
mod serve;
mod stat;
mod trace;
mod warnings;

pub use args::main;
#[cfg(fuzzing)]
pub use pingpong::fuzzed::ping_pong as fuzz_ping_pong;
