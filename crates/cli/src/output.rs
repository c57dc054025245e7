//! Lines that commands print. A line that can't be written to standard output is an error of its command; one to
//! standard error is lost.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

use thiserror::Error;

/// Prints a line on standard output; ends the function with an error if that can't be.
macro_rules! show {
    ($($words:tt)*) => { $crate::output::print(format_args!($($words)*))? };
}
/// Prints a line on standard error.
macro_rules! tell {
    ($($words:tt)*) => { $crate::output::print_error(format_args!($($words)*)) };
}
pub(crate) use {show, tell};

/// Standard output can't be written to.
#[derive(Debug, Error)]
#[error("can't write to standard output: {0}")]
pub(crate) struct OutputError(#[from] std::io::Error);

impl OutputError {
    /// Whether the reader has gone, as `head` does once it has what it wants.
    pub(crate) fn is_without_reader(&self) -> bool {
        self.0.kind() == ErrorKind::BrokenPipe
    }
}

pub(crate) fn print(words: Arguments<'_>) -> Result<(), OutputError> {
    Ok(writeln!(std::io::stdout(), "{words}")?)
}

pub(crate) fn print_error(words: Arguments<'_>) {
    // There is nowhere to say that nobody reads.
    let _ = writeln!(std::io::stderr(), "{words}");
}
