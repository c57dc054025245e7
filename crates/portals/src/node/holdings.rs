//! The objects that a node holds at a moment, for tests that check for leaks.

use std::sync::atomic::Ordering;

use super::Node;

/// The operations in progress on a node, and their resources.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Connections, or what may become one.
    pub peers: usize,
    /// Operations of this side that are not over: those that a peer knows, …
    pub flying: usize,
    /// … and those for which the window has no place.
    pub waiting: usize,
    /// Bytes that are fetched from a peer.
    pub fetches: usize,
    /// Memory that peers fetch from.
    pub lendings: usize,
    /// The requests that wait to be posted.
    pub backlog: usize,
    /// Send slots that are not free, and those that connections know to have.
    pub slots: usize,
    /// See `slots`.
    pub slots_of_peers: usize,
    /// Requests that are counted as posted, of all connections together, and those of each.
    pub in_use: u32,
    /// See `in_use`.
    pub outstanding: u32,
}

impl Holdings {
    /// Whether no operation is under way, and every taken slot has a known owner.
    pub fn is_at_rest(&self) -> bool {
        let Self { flying, waiting, fetches, lendings, backlog, slots, .. } = *self;
        [flying, waiting, fetches, lendings, backlog, slots] == [0; 6] && self.in_use == self.outstanding
    }
}

impl Node {
    /// How often a wait has begun to sleep: far more often than something came, if it spins.
    #[doc(hidden)]
    pub fn sleeps(&self) -> u64 {
        self.inner.sleeps.load(Ordering::Relaxed)
    }
    /// The present operations and their resources.
    #[doc(hidden)]
    pub fn holdings(&self) -> Holdings {
        self.with(|state| {
            let mut sum = Holdings { in_use: state.net.in_use, ..Holdings::default() };
            sum.slots = state.net.ports.slots_taken();
            sum.peers = state.net.peers.iter().flatten().count();
            let leaving = state.leaving.values().map(|leaving| &leaving.peer);
            for peer in state.net.peers.iter().flatten().chain(leaving) {
                sum.flying += peer.flying.iter().count();
                sum.waiting += peer.waiting.len();
                sum.fetches += peer.fetches.iter().count();
                sum.lendings += peer.lendings.iter().count();
                sum.backlog += peer.backlog.len();
                sum.slots_of_peers += peer.slots.len();
                sum.outstanding += peer.outstanding();
            }
            sum
        })
    }
}
