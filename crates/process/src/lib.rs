//! What a library has to know of the process that it is in: whether that was forked off, and how large its files may
//! be.
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
//! | module | what it holds |
//! |---|---|
//! | `fork` | [`Fork`], by which a drop knows whether it runs in a forked child |
//! | `file` | [`memory_file`], which no limit of file sizes turns into a signal |
#![deny(unsafe_code)]

mod file;
mod fork;

pub use file::{check_file_len, memory_file};
pub use fork::Fork;
