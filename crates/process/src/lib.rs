//! Process facilities for libraries: detection of forked children, descriptors that children do not keep, the limit of
//! file sizes, threads without signals, registration for memory barriers.
//!
//! ```
//! use hca_process::Fork;
//!
//! struct Socket(Fork);
//! impl Drop for Socket {
//!     fn drop(&mut self) {
//!         if !self.0.is_child() {
//!             // Its file goes with it, in the process that made it only.
//!         }
//!     }
//! }
//! drop(Socket(Fork::new()));
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `access` | [`can_access`], a look at memory before a device accesses it |
//! | `barrier` | [`register_while_alone`], which registers for the system's memory barriers before there are threads |
//! | `children` | [`NotInChildren`], descriptors that a forked child does not keep |
//! | `fork` | [`Fork`], which tells a drop whether it runs in a forked child; [`PerProcess`], a static that a child has anew |
//! | `file` | [`memory_file`], an error beyond the limit of file sizes; [`allocate_pages`], whatever signals come |
//! | `mapping` | [`mappings`], which tells what is mapped at addresses |
//! | `thread` | [`spawn`], a thread without signals; [`is_library`], [`is_only_thread_of_program`], [`without_signals`], [`run_soon`] |
//! | `time` | [`after`] and [`in_time`], times of the program's choice, which may be beyond what the clock counts |
#![deny(unsafe_code)]

mod access;
mod barrier;
mod children;
mod file;
mod fork;
mod mapping;
mod thread;
mod time;

pub use access::can_access;
pub use barrier::register_while_alone;
pub use children::NotInChildren;
pub use file::{allocate_pages, check_file_len, memory_file};
pub use fork::{Fork, PerProcess};
pub use mapping::{Backing, Mapping, mappings};
pub use thread::{as_library, is_library, is_only_thread_of_program, run_soon, spawn, without_signals};
pub use time::{after, in_time};
