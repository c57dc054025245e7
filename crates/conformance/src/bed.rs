//! What a device brings to the suite.

use std::sync::Arc;
use std::time::Duration;

use hca_core::{Device, Gid};

/// What not every bed offers; a check that needs it passes without a word where it is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// The network between the adapters loses nothing, so that unreliable services can be counted on
    /// and times have upper bounds.
    Lossless,
    /// An adapter moves while its program calls nothing: it has a thread, or is silicon.
    Passive,
    /// A completion queue has a descriptor to wait on.
    WaitFd,
    /// Send queues can be drained: there is the state SQD.
    Drain,
}

/// Where the checks take their adapters from.
pub trait Bed: Sync {
    /// A name for messages.
    fn name(&self) -> String;
    /// Opens `n` new adapters that can reach each other, each with an address of its own.
    ///
    /// # Panics
    /// If that is impossible here. What a bed needs beyond a plain user's rights stands in its `suite!`.
    fn open(&self, n: usize) -> Vec<Arc<dyn Device>>;
    /// Whether this bed offers something.
    fn can(&self, feature: Feature) -> bool;
    /// An address of this network at which nobody answers, if there is one.
    fn silent_gid(&self) -> Option<Gid>;
    /// How long a check waits for what has to come before it fails.
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
