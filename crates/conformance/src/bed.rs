//! [`Bed`]: a device's part of the suite, which opens adapters.

use std::sync::Arc;
use std::time::Duration;

use hca_core::{Device, Gid};

/// A feature that not every bed offers; a check that needs a missing feature passes silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// The network between the adapters loses nothing, so that unreliable services deliver everything and times have
    /// upper bounds.
    Lossless,
    /// An adapter makes progress while its program makes no calls: it has a thread, or is silicon.
    Passive,
    /// A completion queue has a descriptor to wait on.
    WaitFd,
    /// Send queues can be drained: there is the state SQD.
    Drain,
}

/// The source of the checks' adapters.
pub trait Bed: Sync {
    /// The name of the bed in messages.
    fn name(&self) -> String;
    /// Opens `n` new adapters that can reach each other, each with an address of its own.
    ///
    /// # Panics
    /// If that is impossible on this machine. A bed's `suite!` names the rights that it needs beyond a plain user's.
    fn open(&self, n: usize) -> Vec<Arc<dyn Device>>;
    /// Whether this bed offers a feature.
    fn can(&self, feature: Feature) -> bool;
    /// An address of this network at which no adapter answers, if there is one.
    fn silent_gid(&self) -> Option<Gid>;
    /// The time that a check waits for an expected result before it fails.
    fn patience(&self) -> Duration {
        Duration::from_secs(10)
    }
}

/// Runs one check of the suite by its name, `topic::check`.
///
/// # Panics
/// If the check fails, or there is none of that name.
pub fn run(bed: &dyn Bed, name: &str) {
    let (_, check) = crate::CHECKS
        .iter()
        .find(|(known, _)| *known == name)
        .unwrap_or_else(|| panic!("the suite has no check {name}"));
    check(bed);
}
