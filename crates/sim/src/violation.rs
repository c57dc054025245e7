//! Violations: the report of a run in which a guarantee was violated.

use core::fmt;

use hca_core::Instant;

use crate::trace::Micros;

/// A report of a violated guarantee: the guarantee, the time, the events before, and the command of a replay.
///
/// `Debug` prints the same report as `Display`, so that `unwrap` in a test shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Violation {
    /// The seed that replays the violation.
    pub seed: u64,
    /// The virtual time.
    pub at: Instant,
    /// The violated guarantee.
    pub what: String,
    /// The last events before the violation, oldest first.
    pub events: Vec<String>,
    /// The command that replays the violation.
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
