//! What a run reports when a promise was broken.

use core::fmt;

use hca_core::Instant;

use crate::trace::Micros;

/// A promise was broken: what, when, what happened before, and how to see it again.
///
/// `Debug` prints the same report as `Display`, so that `unwrap` in a test shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Violation {
    /// The seed that replays it.
    pub seed: u64,
    /// The virtual time.
    pub at: Instant,
    /// What was broken.
    pub what: String,
    /// The last events before it, oldest first.
    pub events: Vec<String>,
    /// The command that replays it.
    pub replay: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the last {} events:", self.events.len())?;
        for e in &self.events {
            writeln!(f, "  {e}")?;
        }
        writeln!(f, "violation at {} of seed {}: {}", Micros(self.at), self.seed, self.what)?;
        write!(f, "replay: {}", self.replay)
    }
}
impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        fmt::Display::fmt(self, f)
    }
}
impl core::error::Error for Violation {}
