//! The decisions that a simulation makes in place of processors, time and the system.

use hca_core::Instant;

/// The system calls that a simulation may refuse, so that peers take another path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusable {
    /// The grant of a region to a peer.
    Grant,
    /// The mapping of a peer's region.
    Mapping,
    /// The read of a peer's process.
    ProcessRead,
}

/// A simulation's control over one adapter's end of shared memory: the times at which the adapter sees peers' writes,
/// and the system calls that are refused. Rings, sockets and memory are real.
pub trait ShmChance: Send {
    /// The time at which this side sees input that is there from `earliest` on, or from now.
    fn looks_at(&self, earliest: Option<Instant>) -> Instant;
    /// Whether the present time is such a time.
    fn looks_now(&self) -> bool;
    /// A control call sees all input now, regardless of the chosen times.
    fn must_look(&mut self);
    /// The most messages that this look takes.
    fn takes_at_most(&mut self) -> usize;
    /// Whether the rings are parked, as before a sleep, after a look without input.
    fn sleeps(&mut self) -> bool;
    /// Whether the system refuses this call.
    fn refuses(&mut self, what: Refusable) -> bool;
    /// A number that peers can't guess.
    fn nonce(&mut self) -> u64;
    /// Whether the process was killed: its shared memory then stays unchanged, and its sockets close.
    fn is_killed(&self) -> bool;
}
