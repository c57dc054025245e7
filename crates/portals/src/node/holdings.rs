//! The objects that a node holds at a moment, for tests that check for leaks.

use std::sync::atomic::Ordering;

use super::Node;

/// The operations in progress on a node, and their resources.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// The connections, including attempts to connect.
    pub peers: usize,
    /// The operations of this side that are not over and that a peer knows.
    pub flying: usize,
    /// The operations of this side that wait for room in the window.
    pub waiting: usize,
    /// The fetches of bytes from peers.
    pub fetches: usize,
    /// The memory ranges that peers fetch from.
    pub lendings: usize,
    /// The requests that wait to be posted.
    pub backlog: usize,
    /// The send slots that are not free.
    pub slots: usize,
    /// The send slots that connections account for; fewer than `slots` if slots leak.
    pub slots_of_peers: usize,
    /// The posted requests, by the node's count.
    pub in_use: u32,
    /// The posted requests, as the sum of the connections' counts; equal to `in_use` at rest.
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
    /// The number of times that a wait has begun to sleep. It is far larger than the number of events if a wait spins.
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
