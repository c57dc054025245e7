//! XRC: domains, their shared receive queues by number, and where a target takes its receive requests from. `engine::xrc`
//! creates and ends them.

use hca_core::{CqHandle, SrqHandle, Srqn, XrcdHandle};

/// Bits of a queue's slot plus one in its number; the others are the lowest of the slot's generation.
pub(crate) const SLOT_BITS: u32 = 16;

/// An XRC domain: how many queues and targets belong to it, and the slots of the targets.
pub(crate) struct Xrcd {
    pub(crate) users: u64,
    pub(crate) targets: Vec<u32>,
}

/// The XRC side of a shared receive queue.
#[derive(Clone, Copy)]
pub(crate) struct XrcSrq {
    pub(crate) xrcd: XrcdHandle,
    pub(crate) number: Srqn,
    pub(crate) cq: CqHandle,
}

/// The number of a shared receive queue; `None`: the queue lies beyond those that have one.
pub(crate) fn number_of(srq: SrqHandle) -> Option<Srqn> {
    let slot = srq.index + 1;
    (slot >> SLOT_BITS == 0).then(|| Srqn::new(srq.generation << SLOT_BITS | slot))
}

/// Where the receive requests of a target come from.
pub(crate) struct XrcRecv {
    pub(crate) xrcd: XrcdHandle,
    /// The slot of the queue that the request under way names.
    pub(crate) entered: u32,
    /// The slot of the queue that the held request was taken from, and its number.
    pub(crate) taken_from: u32,
    pub(crate) number: Srqn,
}
