//! Atomic Extended Transport Headers.

use bytemuck::{Pod, Zeroable};

use super::{Be32, Be64};

/// Atomic Extended Transport Header, 28 bytes: compare-and-swap and fetch-and-add requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct AtomicEth {
    /// The 64-bit word at the responder; a multiple of 8.
    pub va: Be64,
    /// Key that grants the access.
    pub rkey: Be32,
    /// Value to swap in, or to add.
    pub swap_add: Be64,
    /// Value to compare with (compare-and-swap only).
    pub compare: Be64,
}
const _: () = assert!(size_of::<AtomicEth>() == 28 && align_of::<AtomicEth>() == 1);

/// Atomic Acknowledge Extended Transport Header, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct AtomicAckEth {
    /// What the word held before.
    pub original: Be64,
}
const _: () = assert!(size_of::<AtomicAckEth>() == 8 && align_of::<AtomicAckEth>() == 1);
