//! Limits that a program requests, and those that are granted.

use hca_matching::Limits as Raw;

use super::Features;
use crate::wire;

/// The limits of an interface: requested in [`Ni::init`](super::Ni::init), and granted in
/// [`Ni::limits`](super::Ni::limits).
///
/// Requests are granted as far as possible, and nothing is reserved for them. The fields of the second half depend on
/// the node only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ptl_ni_limits_t")]
pub struct Limits {
    /// Entries, on all lists together.
    pub max_entries: u32,
    /// Headers that wait for an entry, at all portals together.
    pub max_unexpected_headers: u32,
    /// Memory descriptors.
    pub max_mds: u32,
    /// Counting events.
    pub max_cts: u32,
    /// Event queues.
    pub max_eqs: u32,
    /// The largest index of a portal; 63 at least.
    pub max_pt_index: u32,
    /// Pieces of a vector. One message carries their addresses, so
    /// [`NodeOptions::eager_bytes`](crate::NodeOptions::eager_bytes) bounds it.
    pub max_iovecs: u32,
    /// Entries of a list.
    pub max_list_size: u32,
    /// Triggered operations that wait.
    pub max_triggered_ops: u32,
    /// Bytes of a put or a get; 4 GiB less one at most.
    pub max_msg_size: u64,
    /// Bytes of an atomic operation without a reply; [`NodeOptions::eager_bytes`](crate::NodeOptions::eager_bytes) at
    /// most.
    pub max_atomic_size: u64,
    /// Bytes of an atomic operation with a reply; [`NodeOptions::eager_bytes`](crate::NodeOptions::eager_bytes) at
    /// most.
    pub max_fetch_atomic_size: u64,
    /// Up to this length, writes to the same bytes are done in the order of the calls, and a get reads the bytes of
    /// earlier puts. The limit is the node's [`eager_bytes`](crate::NodeOptions::eager_bytes), because a target fetches
    /// longer messages later.
    pub max_waw_ordered_size: u64,
    /// Up to this length, a get reads the bytes from before later puts. The value depends on the node.
    pub max_war_ordered_size: u64,
    /// Bytes of a message from a memory descriptor that is [`VOLATILE`](super::MdOptions::VOLATILE). The value depends
    /// on the node.
    pub max_volatile_size: u64,
    /// None of the three optional features. All memory that an entry can name is accessible; messages that are longer
    /// than an eager one, or go to other bytes, may land in any order; atomic operations are atomic with each other,
    /// not with the processor's ([`Ni::atomic_sync`](super::Ni::atomic_sync)).
    pub features: Features,
}

/// The least that `max_pt_index` may be.
const LEAST_PT_INDEX: u32 = 63;
const IOVECS: u32 = 1 << 16;

impl Default for Limits {
    /// Limits that suit most programs.
    fn default() -> Self {
        let Raw { max_entries, max_unexpected_headers, max_mds, max_cts, max_eqs, max_pt_index, .. } =
            Raw::default();
        let Raw { max_list_size, max_triggered_ops, max_msg_size, max_atomic_size, .. } = Raw::default();
        Self {
            max_entries,
            max_unexpected_headers,
            max_mds,
            max_cts,
            max_eqs,
            max_pt_index,
            max_iovecs: IOVECS,
            max_list_size,
            max_triggered_ops,
            max_msg_size,
            max_atomic_size,
            max_fetch_atomic_size: Raw::default().max_fetch_atomic_size,
            max_waw_ordered_size: u64::MAX,
            max_war_ordered_size: u64::MAX,
            max_volatile_size: u64::MAX,
            features: Features::empty(),
        }
    }
}

impl Limits {
    /// The limits in the engine's form.
    pub(super) fn to_engine(self) -> Raw {
        Raw {
            max_entries: self.max_entries,
            max_unexpected_headers: self.max_unexpected_headers,
            max_mds: self.max_mds,
            max_cts: self.max_cts,
            max_eqs: self.max_eqs,
            max_pt_index: self.max_pt_index.max(LEAST_PT_INDEX),
            max_list_size: self.max_list_size,
            max_triggered_ops: self.max_triggered_ops,
            max_msg_size: self.max_msg_size,
            max_atomic_size: self.max_atomic_size,
            max_fetch_atomic_size: self.max_fetch_atomic_size,
            ..Raw::default()
        }
    }
    /// The limits granted by the engine and by the node.
    pub(super) fn granted(self, engine: &Raw, eager_bytes: usize) -> Self {
        let pieces = u32::try_from(eager_bytes / wire::PIECE_BYTES).unwrap_or(IOVECS);
        let eager = eager_bytes as u64;
        Self {
            max_entries: engine.max_entries,
            max_unexpected_headers: engine.max_unexpected_headers,
            max_mds: engine.max_mds,
            max_cts: engine.max_cts,
            max_eqs: engine.max_eqs,
            max_pt_index: engine.max_pt_index,
            max_iovecs: self.max_iovecs.min(pieces).min(IOVECS),
            max_list_size: engine.max_list_size,
            max_triggered_ops: engine.max_triggered_ops,
            max_msg_size: engine.max_msg_size,
            max_atomic_size: engine.max_atomic_size,
            max_fetch_atomic_size: engine.max_fetch_atomic_size,
            max_waw_ordered_size: eager,
            max_war_ordered_size: eager,
            max_volatile_size: eager,
            features: Features::empty(),
        }
    }
}
