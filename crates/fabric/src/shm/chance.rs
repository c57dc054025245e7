//! The decisions that a simulation makes in place of processors, time and the system.

use hca_core::Instant;

/// The system calls that a simulation may refuse, so that peers take another path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusable {
    /// A region is handed to a peer.
    Grant,
    /// A peer's region is mapped.
    Mapping,
    /// A peer's process is read.
    ProcessRead,
}

/// A simulation's control over one adapter's end of shared memory: when it looks at peers' writes, and which system
/// calls are refused. Rings, sockets and memory are real.
pub trait ShmChance: Send {
    /// Something lies there to be taken, from this time on or from now: when this side looks.
    fn looks_at(&self, earliest: Option<Instant>) -> Instant;
    /// Whether this is such a time.
    fn looks_now(&self) -> bool;
    /// A control call looks, whatever the time.
    fn must_look(&mut self);
    /// Messages that this look takes at most.
    fn takes_at_most(&mut self) -> usize;
    /// A look found nothing: whether the rings are parked, as before a sleep.
    fn sleeps(&mut self) -> bool;
    /// Whether the system refuses this.
    fn refuses(&mut self, what: Refusable) -> bool;
    /// A number that peers can't guess.
    fn nonce(&mut self) -> u64;
    /// The process was killed: what it shares stays as it is, and its sockets close.
    fn is_killed(&self) -> bool;
}
