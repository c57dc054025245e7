//! The `hca` command as a library for its binary, which calls [`main`]; programs use nothing else.
//!
//! | module | contents |
//! |---|---|
//! | `args` | the command line, its help, and exit codes |
//! | `devinfo`, `exec`, `list`, `logp`, `perf`, `ping`, `pingpong`, `run`, `serve`, `stat`, `trace` | the commands |
//! | `output` | what commands print |
//! | `warnings` | the library's warnings, on standard error |
#![forbid(unsafe_code)]
// They panic when nobody reads: `output` has what takes their place.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod args;
mod devinfo;
mod exec;
mod list;
mod logp;
mod output;
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
