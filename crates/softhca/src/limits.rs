//! The limits and the numbers of an adapter's objects, and the errors that tell of them.

use core::time::Duration;

use hca_core::{CqModeration, PdHandle, Qpn};

/// The longest queue.
pub(crate) const MAX_WR: u32 = 32_768;
/// The longest completion queue: what many queues of the longest kind complete into.
pub(crate) const MAX_CQE: u32 = 1 << 22;
/// Entries of a list.
pub(crate) const MAX_SGE: u32 = 64;
/// Memory windows, where regions leave keys for them.
pub(crate) const MAX_MW: u32 = 65_536;
/// The most that notifications are held back.
pub(crate) const MAX_MODERATION: CqModeration =
    CqModeration { count: u16::MAX, period: Duration::from_micros(65_535) };
/// Bytes of a request that are copied as it is posted.
pub(crate) const MAX_INLINE: u32 = 1024;
/// READs and atomics of a queue pair that are under way.
pub(crate) const MAX_RD_ATOMIC: u8 = 128;
/// Members of a group.
pub(crate) const MAX_MEMBERS: u32 = 256;
/// XRC domains.
pub(crate) const MAX_XRCD: u32 = 4096;
/// RD domains.
pub(crate) const MAX_RDD: u32 = 4096;
/// The slot of no object: no table has so many.
pub(crate) const NONE: u32 = u32::MAX;
/// The same of protection domains.
pub(crate) const NO_PD: PdHandle = PdHandle { index: NONE, generation: NONE };
/// QPNs are `generation << SLOT_BITS | slot + FIRST_QPN`: 0 and 1 are the management queue pairs'. Where processes share
/// an address, the fabric's slot stands in the place of the generation.
const SLOT_BITS: u32 = 16;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
const FIRST_QPN: u32 = 2;
/// Queue pairs at most: the last number of a process at a shared address stands for the process, and that of all
/// numbers for the members of a multicast group.
pub(crate) const MAX_QPS: u32 = (1 << SLOT_BITS) - FIRST_QPN - 1;
/// Queue pairs that go before the slot of one is used again, so that packets under way to it find nobody. Slots of
/// that many cost 64 KiB; a number comes again 256 times as late.
pub(crate) const SPARED_SLOTS: usize = 4096;
/// The number of the general services queue pair.
pub(crate) const GENERAL_SERVICES: Qpn = Qpn::new(1);

/// The number of a queue pair.
pub(crate) fn qpn_of(index: u32, generation: u32) -> Qpn {
    Qpn::new(generation << SLOT_BITS | (index + FIRST_QPN))
}

/// The slot of a queue pair's number.
#[inline]
pub(crate) fn slot_of(qpn: u32) -> u32 {
    (qpn & SLOT_MASK).wrapping_sub(FIRST_QPN)
}
